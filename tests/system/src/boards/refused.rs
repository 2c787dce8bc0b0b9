//! Tests profiles that must be rejected: the error names the fault, and the former image stays.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use nodlet_build::task::{Outcome, TaskError};
use nodlet_dist::image::{Contents, DeviceImage};
use nodlet_dist::profile::Profile;

use super::build;

/// A name, a change that makes the profile invalid, and the expected error.
type Wrong = (&'static str, fn(&mut Profile), &'static str);

const WRONG: &[Wrong] = &[
    ("kernel", |profile| "linux-image-none".clone_into(&mut profile.kernel), "kernel \"linux-image-none\""),
    ("module", |profile| profile.modules.push("no_such_module".into()), "has no no_such_module"),
    ("argument", |profile| profile.agent.push("--max-podz=3".into()), "unknown flag: --max-podz"),
    // The last, because it takes longest.
    (
        "memory",
        |profile| {
            profile.memory_mib = 16;
            // With a disk, the image would have only that form, and be accepted.
            profile.storage = None;
        },
        "does not fit into the 16 MiB",
    ),
];

/// Builds images of profiles that have one fault each; `image` is that of the valid profile.
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
                return Err(TaskError(format!("{}: an image with a wrong {name} was built", profile.name)));
            }
            Err(TaskError(why)) if why.contains(said) && why.contains(&profile.name) => {}
            Err(TaskError(why)) => {
                return Err(TaskError(format!("{}: a wrong {name} is reported as: {why}", profile.name)));
            }
        }
        if files(image)? != before {
            return Err(TaskError(format!("{}: a wrong {name} changed the former image", profile.name)));
        }
    }
    Ok(())
}

/// The size and the modification time of each file of an image.
fn files(image: &DeviceImage) -> Result<Vec<(u64, SystemTime)>, TaskError> {
    let of = |file: &Path| {
        let metadata = fs::metadata(file)?;
        Ok((metadata.len(), metadata.modified()?))
    };
    image.files().map(|file| of(file)).collect()
}
