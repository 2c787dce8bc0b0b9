//! Checks of the data directory: its file system, its free space, the card beneath it, and its images.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use nodlet_rootfs::{Store, StoreError};

use super::facts::Machine;
use super::mounts::{self, Mount};
use super::probe::{self, Tried};
use super::report::{Finding, Verdict};
use crate::boot;

/// Below this much free space the directory is soon full: one large image, or one chatty pod's log, fills it.
const BYTES_FEW: u64 = 64 * 1024 * 1024;
/// Below this much free space the directory counts as full.
const BYTES_NONE: u64 = 4 * 1024 * 1024;
/// The fewest free inodes without a warning. A pod takes some ten inodes; a loaded image takes one per layer.
const INODES_FEW: u64 = 1000;

/// All checks of the data directory.
pub(super) fn findings(machine: &Machine) -> Vec<(&'static str, Finding)> {
    let mount =
        mounts::of(&machine.mounts, &machine.data.canonicalize().unwrap_or_else(|_| machine.data.clone()));
    let wanted = machine.root.join("var/lib/nodlet");
    let place = if wanted == machine.data {
        wanted.display().to_string()
    } else {
        format!("{}, to be made in {}", wanted.display(), machine.data.display())
    };
    let findings = [
        ("data directory", Some(file_system(&place, mount))),
        ("data partition", boot::storage_status(&machine.root).map(|status| judge_data_partition(&status))),
        ("writable layers", Some(writable_layers(machine, mount))),
        ("free space", Some(free_space(&machine.data))),
        ("mount options", mount.map(options)),
        ("eMMC wear", wear(&machine.data)),
        ("images", Some(images(machine))),
    ];
    findings.into_iter().filter_map(|(name, finding)| Some((name, finding?))).collect()
}

/// Checks whether the file system keeps data across a reboot.
fn file_system(place: &str, mount: Option<&Mount>) -> Finding {
    let Some(mount) = mount else {
        return Finding::unknown(format!("{place} is not listed in /proc/self/mountinfo"));
    };
    let found = format!("{place}: {} mounted at {}", mount.kind, mount.point.display());
    let new = |verdict| Finding::new(verdict, found.clone());
    if mount.has("ro") {
        return new(Verdict::Missing).because(
            "The agent does not start: the file system is read-only.",
            "Mount a writable file system at var/lib/nodlet below the root, or set another root with --root.",
        );
    }
    if mount.has("emergency_ro") {
        return new(Verdict::Missing).because(
            "The file system has found an error and accepts no more writes: running pods go on, and no container starts.",
            "Reboot the machine, so that the file system is checked; replace a card on which this happens again.",
        );
    }
    match mount.kind.as_str() {
        "tmpfs" | "ramfs" => new(Verdict::Warning).because(
            "Pods run; images, applied pods and volumes are lost at a reboot, and take memory.",
            "Mount a file system of the board's card there, or bake images into the device's own image (docs/cli.md).",
        ),
        "nfs" | "nfs4" | "cifs" | "9p" => new(Verdict::Warning).because(
            "Pods need the network to start, and their changes may not fit there.",
            "Mount a file system of the board's own card there.",
        ),
        _ => new(Verdict::Ok),
    }
}

/// File systems that cannot be the upper layer of overlayfs.
const UNFIT: [&str; 8] = ["vfat", "msdos", "exfat", "ntfs", "ntfs3", "nfs", "nfs4", "cifs"];

/// Checks whether containers' changes can be stored in the data directory.
fn writable_layers(machine: &Machine, mount: Option<&Mount>) -> Finding {
    let lack = |found: String| {
        Finding::missing(found).because(
            "No container starts, or its changes to files of its image go wrong.",
            "Put the data directory on a file system with file types in directories and extended attributes, as ext4, \
             f2fs, btrfs, ubifs, or xfs with ftype=1; an overlay or a FAT file system cannot hold it.",
        )
    };
    let directory = machine.scratch.as_ref().and_then(|scratch| scratch.directory("overlay"));
    let why = match directory.map(|directory| probe::overlay_in(&directory)) {
        Some(Tried::Works(found)) => return Finding::ok(found),
        Some(Tried::Lacks(found)) => return lack(found),
        Some(Tried::Unclear(why)) => why,
        None if machine.is_root => format!("no directory could be made in {}", machine.data.display()),
        None => "only root can try".to_owned(),
    };
    match mount {
        Some(mount) if UNFIT.contains(&mount.kind.as_str()) => {
            lack(format!("{} cannot hold them", mount.kind))
        }
        Some(_) | None => Finding::unknown(why),
    }
}

fn free_space(data: &Path) -> Finding {
    match statvfs(data) {
        Ok(found) => {
            // Integer widths differ between architectures.
            #[allow(clippy::unnecessary_cast)]
            let (bytes, inodes, all) = (
                found.blocks_available() as u64 * found.fragment_size() as u64,
                found.files_available() as u64,
                found.files() as u64,
            );
            // Some file systems, btrfs among them, do not count inodes.
            judge_free_space(bytes, (all > 0).then_some(inodes))
        }
        Err(errno) => Finding::unknown(errno.desc()),
    }
}

fn judge_free_space(bytes: u64, inodes: Option<u64>) -> Finding {
    let found = format!(
        "{} MiB{}",
        bytes / 1024 / 1024,
        inodes.map_or_else(String::new, |inodes| format!(", {inodes} inodes"))
    );
    let means = if bytes < BYTES_NONE || inodes.is_some_and(|inodes| inodes < INODES_FEW) {
        "Images cannot be loaded, and pods that write files fail."
    } else if bytes < BYTES_FEW {
        "Pods run; images that are larger than this cannot be loaded."
    } else {
        return Finding::ok(found);
    };
    Finding::warning(found)
        .because(means, "Remove images (nodlet image rm) and other files, or use a larger file system.")
}

/// Judges the data partition by the boot report.
fn judge_data_partition(status: &serde_json::Value) -> Finding {
    let found = status["message"].as_str().unwrap_or_default();
    match status["inRAM"].as_bool() {
        Some(true) => Finding::warning(found).because(
            "Pods run from RAM; applied objects and loaded images are lost at the next boot.",
            "Replace the medium; if only its data are damaged, nodlet factory-reset recreates the partition.",
        ),
        _ if status["reason"] == "Full" => Finding::warning(found).because(
            "Pods run; there may be no space for their files, or for applied objects and loaded images.",
            "Remove images with nodlet image rm, or files of pods below /var.",
        ),
        _ => Finding::ok(found),
    }
}

/// Checks the mount options for those that make a card slow or wear it out.
fn options(mount: &Mount) -> Finding {
    let new = |found: &str| Finding::warning(found);
    if ["rootfs", "tmpfs", "ramfs"].contains(&mount.kind.as_str()) {
        return Finding::ok("in RAM: nothing wears out");
    }
    if mount.has("sync") || mount.has("dirsync") {
        return new("sync").because(
            "Pods run; each small write of a log or a volume is written to the card at once, which is slow and wears it out.",
            "Mount it without sync; nodlet syncs all files that must survive a power cut.",
        );
    }
    if mount.has("nobarrier") || mount.has("barrier=0") {
        return new("nobarrier").because(
            "Pods run; a power cut can lose or damage synced data: images, applied pods, volumes.",
            "Mount it without that option.",
        );
    }
    let shown: Vec<&str> = ["noatime", "relatime", "lazytime", "discard"]
        .into_iter()
        .filter(|option| mount.has(option))
        .collect();
    if ["noatime", "relatime", "ro"].iter().any(|option| mount.has(option)) {
        Finding::ok(shown.join(", "))
    } else {
        new("strictatime").because(
            "Pods run; each file that is read is written to, which wears out a card.",
            "Mount it with noatime.",
        )
    }
}

/// Checks the wear that an eMMC reports; other disks have no common report.
fn wear(data: &Path) -> Option<Finding> {
    let device = fs::metadata(data).ok()?.dev();
    let block = PathBuf::from(format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device)));
    // A partition's directory is in that of its disk.
    let disks = [block.join("device"), block.join("../device")];
    let read = |name: &str| disks.iter().find_map(|disk| fs::read_to_string(disk.join(name)).ok());
    judge_wear(&read("life_time")?, &read("pre_eol_info").unwrap_or_default())
}

/// Judges an eMMC's wear. Both texts have hexadecimal numbers (JEDEC eMMC 5.0): the used tenths of the life
/// of two kinds of memory cells, and the state of the spare blocks.
fn judge_wear(life_time: &str, spare: &str) -> Option<Finding> {
    let number = |text: &str| u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok();
    let tenths = life_time.split_whitespace().filter_map(number).max().filter(|tenths| *tenths > 0)?;
    let spare = number(spare).unwrap_or(0);
    let found = match tenths {
        11.. => "more than its life is used".to_owned(),
        tenths => format!("{} to {} % of its life is used", (tenths - 1) * 10, tenths * 10),
    };
    if tenths >= 9 || spare >= 2 {
        return Some(Finding::warning(found).because(
            "Pods run; the eMMC will become read-only or lose data.",
            "Back up its data and replace it; mount with noatime, and let pods write less to volumes and logs.",
        ));
    }
    Some(Finding::ok(found))
}

/// Checks whether the images that the store names are complete.
fn images(machine: &Machine) -> Finding {
    let store = Store::open(&machine.root);
    let listed = store.and_then(|store| Ok((store.names()?, store.images()?)));
    match listed {
        Ok((names, images)) => {
            let whole: Vec<&String> = images.iter().flat_map(|image| &image.names).collect();
            let damaged: Vec<&str> =
                names.iter().filter(|name| !whole.contains(name)).map(String::as_str).collect();
            if damaged.is_empty() {
                return Finding::ok(format!("{} complete", images.len()));
            }
            Finding::warning(format!("damaged: {}", damaged.join(", "))).because(
                "Pods of these images wait; files of these images are missing or cannot be read.",
                "Load them again with nodlet image load.",
            )
        }
        Err(error) if is_denied(&error) => Finding::unknown("only root can read them"),
        Err(error) => {
            let found = format!("failed to {}", nodlet_host::error::chain(&error));
            Finding::warning(found).because(
                "No image of the store can be used, and pods wait for their images.",
                "Load them again with nodlet image load.",
            )
        }
    }
}

fn is_denied(error: &StoreError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| source.kind() == io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(kind: &str, options: &str) -> Mount {
        mounts::parse(&format!("1 1 179:2 / /data {options} - {kind} /dev/x {options}")).remove(0)
    }

    #[test]
    fn a_data_partition_that_is_not_used_is_a_warning_with_its_reason() {
        let judged = |in_ram: bool| {
            let status =
                serde_json::json!({ "inRAM": in_ram, "reason": "Damaged", "message": "it is damaged" });
            judge_data_partition(&status)
        };
        assert_eq!(judged(false).verdict, Verdict::Ok);
        let check = judged(true);
        assert_eq!((check.verdict, check.text.as_str()), (Verdict::Warning, "it is damaged"));
        assert!(check.remedy.contains("nodlet factory-reset"), "{}", check.remedy);
    }

    #[test]
    fn a_data_directory_must_be_writable_and_should_outlive_the_boot() {
        for (kind, options, expected) in [
            ("ext4", "rw,relatime", Verdict::Ok),
            ("ext4", "ro", Verdict::Missing),
            ("ext4", "rw,emergency_ro", Verdict::Missing),
            ("tmpfs", "rw", Verdict::Warning),
            ("nfs4", "rw", Verdict::Warning),
        ] {
            let check = file_system("/data", Some(&mount(kind, options)));
            assert_eq!(check.verdict, expected, "{check:?}");
        }
        assert_eq!(file_system("/data", None).verdict, Verdict::Unknown);
    }

    #[test]
    fn options_that_wear_a_card_out_or_lose_data_are_warned_about() {
        for (given, found, verdict) in [
            ("rw,noatime", "noatime", Verdict::Ok),
            ("rw,relatime,discard", "relatime, discard", Verdict::Ok),
            ("rw,noatime,sync", "sync", Verdict::Warning),
            ("rw,noatime,nobarrier", "nobarrier", Verdict::Warning),
            ("rw", "strictatime", Verdict::Warning),
        ] {
            let check = options(&mount("ext4", given));
            assert_eq!((check.text.as_str(), check.verdict), (found, verdict), "{given}");
        }
        assert_eq!(options(&mount("rootfs", "rw")).verdict, Verdict::Ok);
    }

    #[test]
    fn low_disk_space_is_a_warning() {
        for (mib, inodes, verdict) in [
            (1000, Some(50_000), Verdict::Ok),
            (1000, None, Verdict::Ok),
            (10, Some(50_000), Verdict::Warning),
            (1000, Some(10), Verdict::Warning),
            (1000, Some(0), Verdict::Warning),
        ] {
            assert_eq!(judge_free_space(mib * 1024 * 1024, inodes).verdict, verdict, "{mib} {inodes:?}");
        }
        assert!(judge_free_space(39 << 20, None).meaning.contains("larger than this"));
        assert!(judge_free_space(3 << 20, None).meaning.contains("cannot be loaded, and pods"));
    }

    #[test]
    fn an_emmc_at_the_end_of_its_life_is_warned_about() {
        for (life, spare, expected) in [
            ("0x01 0x02\n", "0x01\n", Some((Verdict::Ok, "10 to 20 % of its life is used"))),
            ("0x03 0x09\n", "0x01\n", Some((Verdict::Warning, "80 to 90 % of its life is used"))),
            ("0x0b 0x01\n", "0x01\n", Some((Verdict::Warning, "more than its life is used"))),
            ("0x02 0x02\n", "0x03\n", Some((Verdict::Warning, "10 to 20 % of its life is used"))),
            ("0x00 0x00\n", "0x00\n", None),
            ("garbage", "", None),
        ] {
            let check = judge_wear(life, spare);
            let judged = check.as_ref().map(|check| (check.verdict, check.text.as_str()));
            assert_eq!(judged, expected, "{life:?}");
        }
    }
}
