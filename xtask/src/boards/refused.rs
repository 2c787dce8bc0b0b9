//! Profiles of which no image is made: the error names what is wrong, and the former image stays.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use super::build;
use crate::image::{Contents, DeviceImage};
use crate::profile::Profile;
use crate::{Failure, Outcome};

/// A name, a change that makes the profile wrong, and what the error says of it.
type Wrong = (&'static str, fn(&mut Profile), &'static str);

const WRONG: &[Wrong] = &[
    ("kernel", |profile| "linux-image-none".clone_into(&mut profile.kernel), "kernel \"linux-image-none\""),
    ("module", |profile| profile.modules.push("no_such_module".into()), "has no no_such_module"),
    ("argument", |profile| profile.agent.push("--max-podz=3".into()), "unknown flag: --max-podz"),
    // The last, for it takes longest.
    (
        "memory",
        |profile| {
            profile.memory_mib = 16;
            // With a disk, it would have that form alone.
            profile.storage = None;
        },
        "does not fit into the 16 MiB",
    ),
];

/// Builds images of profiles that are wrong in one point each; `image` is of the right one.
pub(super) fn try_out(
    profile: &Profile,
    contents: &Contents,
    image: &DeviceImage,
    directory: &Path,
) -> Outcome {
    let before = files(image)?;
    for (name, spoil, said) in WRONG {
        let mut wrong = profile.clone();
        spoil(&mut wrong);
        match build(&wrong, contents, directory) {
            Ok(_) => {
                return Err(Failure(format!("{}: an image with a wrong {name} was built", profile.name)));
            }
            Err(Failure(why)) if why.contains(said) && why.contains(&profile.name) => {}
            Err(Failure(why)) => {
                return Err(Failure(format!("{}: a wrong {name} is reported as: {why}", profile.name)));
            }
        }
        if files(image)? != before {
            return Err(Failure(format!("{}: a wrong {name} changed the former image", profile.name)));
        }
    }
    Ok(())
}

/// Size and time of the last change of each file of an image.
fn files(image: &DeviceImage) -> Result<Vec<(u64, SystemTime)>, Failure> {
    let of = |file: &Path| {
        let metadata = fs::metadata(file)?;
        Ok((metadata.len(), metadata.modified()?))
    };
    image.files().map(|file| of(file)).collect()
}
