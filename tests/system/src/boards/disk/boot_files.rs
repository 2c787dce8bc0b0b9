//! Power cuts while files of the boot partition change, on a medium that loses what was not flushed. FAT has no journal
//! that a mount would replay, so that each state is read without a boot, by a different implementation than Linux's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Cursor, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fatfs::{FileSystem, FsOptions};
use nodlet_build::task::{Outcome, TaskError};
use nodlet_dist::image::DeviceImage;
use nodlet_dist::profile::{Profile, Qemu};
use nodlet_tests::Seed;
use nodlet_tests::honest::{ABSENT, Export, Medium};

use super::super::flash;
use super::{Tried, first_identity, write_identity};

/// States after a power cut that are read.
const STATES: usize = 300;

/// Bytes of a comment in the identity, so that its file has several clusters.
const COMMENT: usize = 9000;

/// The things whose values are checked: the identity and the marker of a factory reset, with the names of their files.
const IDENTITY: &str = "nodlet.conf";
const MARKER: &str = "factory-reset";

/// The value of a marker that exists.
const PRESENT: &str = "present";

/// Records changes of the identity and a factory reset, and reads states after a power cut: each file is the old or the
/// new one, and what was acknowledged stays.
pub(super) fn try_out(
    profile: &Profile,
    qemu: &Qemu,
    image: &DeviceImage,
    (directory, key): (&Path, &Path),
    seed: u64,
) -> Outcome {
    let flashed = flash(profile, qemu, image, directory)?.ok_or("the board's profile has no disk")?;
    let recorded = Medium::new(&flashed.file, &directory.join("current"))?;
    let export = Export::new(recorded.clone(), &directory.join("nbd"))?;
    let medium = flashed.at(export.url());
    let tried = Tried { qemu, medium: &medium, directory, key };
    let start = |reason| tried.boot_as(",discard=unmap", &[], &[reason], false);
    let identity = first_identity(key)?;
    // The image has an identity.
    let mut texts = BTreeMap::from([(ABSENT.to_owned(), identity.clone())]);
    let (mut board, _monitor) = start("Created")?;
    for number in 1..=6 {
        let name = format!("gate-{number}");
        let text = format!("name = {name}\n# {}\n{identity}", "x".repeat(COMMENT + 700 * number));
        recorded.during(IDENTITY, &name, || write_identity(&board, &text))?;
        texts.insert(name, text);
    }
    recorded.during(MARKER, PRESENT, || {
        // The connection may end before the verb's answer.
        board.ssh("nodlet factory-reset", "")?;
        board.wait_for("the shutdown", |board| Ok(board.console()?.contains("nodlet init: ending the pods")))
    })?;
    board.wait_until_down("rebooting")?;
    drop(board);
    recorded.during(MARKER, ABSENT, || start("Reset"))?.0.turn_off()?;
    drop(export);

    let record = recorded.record(&flashed.file);
    eprintln!("  {} writes and {} flushes", record.writes(), record.flushes());
    let boot = boot_of(image.disk.as_deref().ok_or("the image has no disk")?)?;
    let state = directory.join("state");
    let cuts = record.cuts(&mut Seed::new(seed), STATES);
    let number = cuts.len();
    for cut in cuts {
        record.write(&cut, &state)?;
        let found = read(&state, boot.clone(), &texts)?;
        for (thing, allowed) in record.allowed(&cut) {
            let found = &found[thing];
            if !allowed.contains(&**found) {
                let described = record.describe(&cut);
                return Err(TaskError(format!(
                    "{thing} is {found}, not one of {allowed:?}\nafter the {described}"
                )));
            }
        }
    }
    eprintln!("  {IDENTITY} and {MARKER} are old or new in {number} states");
    Ok(())
}

/// The bytes of the boot partition, which stays where the image has it.
fn boot_of(image: &Path) -> Result<Range<u64>, TaskError> {
    let disk = gpt::GptConfig::new().only_valid_headers(true).open(image)?;
    let boot = disk.partitions().values().find(|partition| partition.name == "boot");
    let boot = boot.ok_or("the image has no boot partition")?;
    Ok(boot.first_lba * 512..(boot.last_lba + 1) * 512)
}

/// The values of all things on a medium.
fn read(
    medium: &Path,
    boot: Range<u64>,
    texts: &BTreeMap<String, String>,
) -> Result<BTreeMap<&'static str, String>, TaskError> {
    let mut bytes = vec![0; usize::try_from(boot.end - boot.start)?];
    File::open(medium)?.read_exact_at(&mut bytes, boot.start)?;
    let volume = FileSystem::new(Cursor::new(bytes), FsOptions::new())?;
    let root = volume.root_dir();
    let mut text = Vec::new();
    let identity = match root.open_file(IDENTITY).and_then(|mut file| file.read_to_end(&mut text)) {
        Err(error) => format!("unreadable: {error}"),
        Ok(_) => match texts.iter().find(|(_, one)| one.as_bytes() == text) {
            Some((name, _)) => name.clone(),
            None => format!("damaged: {} bytes", text.len()),
        },
    };
    let marker = if root.open_file(MARKER).is_ok() { PRESENT } else { ABSENT };
    Ok(BTreeMap::from([(IDENTITY, identity), (MARKER, marker.to_owned())]))
}
