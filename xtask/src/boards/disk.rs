//! The emulated board boots from its disk, as a user flashes it: power cuts, a reboot, a factory reset,
//! and a data partition that is full, damaged or absent.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nodlet_tests::manifest;
use serde_json::Value;

use super::{Board, Medium, flash, text};
use crate::image::DeviceImage;
use crate::profile::{Profile, Qemu};
use crate::{Failure, Outcome};

const MIB: u64 = 1024 * 1024;

/// A medium and what boots from it.
struct Tried<'a> {
    qemu: &'a Qemu,
    medium: &'a Medium,
    directory: &'a Path,
    key: &'a Path,
}

/// Boots the disk, and boots it again after everything that may happen to its medium.
pub(super) fn try_out(
    profile: &Profile,
    qemu: &Qemu,
    image: &DeviceImage,
    directory: &Path,
    key: &Path,
) -> Outcome {
    let (Some(disk), Some(storage)) = (&image.disk, &profile.storage) else {
        return Err("a board with a disk has [storage]".into());
    };
    let Some(medium) = &flash(profile, qemu, image, directory)? else {
        eprintln!("{}: its profile names no firmware: no disk is booted", profile.name);
        return Ok(());
    };
    let tried = Tried { qemu, medium, directory, key };

    let board = tried.boot("Created", false)?;
    let booted = board.begun.elapsed();
    // As `scp` does; the plug is pulled later.
    let copied = manifest::pod("copied", "print copied then sleep");
    board.expect("cat >/etc/nodlet/manifests/copied.yaml && sync", &copied, "")?;
    write_identity(&board, "name = gate-17")?;
    push(board)?;

    let mut board = tried.boot("Ready", false)?;
    wait_for_pushed(&mut board)?;
    board.expect("cat /proc/sys/kernel/hostname", "", "gate-17\n")?;
    write_identity(&board, "name = gate-18\nnmae = x")?;
    board.wait_for("the pod of a copied manifest to write its log", |board| {
        Ok(text(&board.ssh("nodlet logs copied", "")?.stdout) == "copied\n")
    })?;
    go_down_with_grace(board)?;

    let mut board = tried.boot("Ready", false)?;
    board.expect("cat /var/lib/said/word", "", "ended\n")?;
    // Nothing of it is applied.
    board.expect("cat /proc/sys/kernel/hostname", "", "gate-17\n")?;
    board.require_said("/boot/nodlet.conf is rejected: line 2: unknown key \"nmae\"")?;
    write_identity(&board, "name = gate-19")?;
    wait_for_pushed(&mut board)?;
    // All but what root may use beyond what is free for everybody; the plug is pulled then.
    fill(board)?;

    let mut board = tried.boot("Full", false)?;
    board.expect("rm /var/lib/fill", "", "")?;
    // The emulator ends instead of booting again.
    board.ssh("nodlet factory-reset", "")?;
    board.wait_until_down("rebooting")?;
    drop(board);

    let board = tried.boot("Reset", false)?;
    board.expect("cat /proc/sys/kernel/hostname", "", "gate-19\n")?;
    let pods = text(&board.ssh("nodlet get pods", "")?.stdout);
    if pods.contains("pushed") || pods.contains("copied") {
        return Err(board.failed(&format!("the factory reset left a pod that was applied: {pods:?}")));
    }
    board.expect("ls /boot/factory-reset 2>/dev/null; true", "", "")?;
    push(board)?;

    // Copied to a larger medium, and its first superblock is lost.
    let data = data_of(&medium.file)?;
    medium.resize(storage.medium_mib * 2 * MIB)?;
    overwrite(&medium.file, data, 4096)?;
    let mut board = tried.boot("Repaired", false)?;
    wait_for_pushed(&mut board)?;
    let free = text(&board.ssh("df -k /var | tail -n 1", "")?.stdout);
    let kib = free.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
    if kib < storage.medium_mib * 1024 {
        return Err(board.failed(&format!("the data partition did not grow with its medium: {free:?}")));
    }
    drop(board);

    overwrite(&medium.file, data, storage.medium_mib * 2 * MIB - data - MIB)?;
    drop(tried.boot("Damaged", true)?);
    drop(tried.boot_read_only()?);
    // As large as the image.
    fs::copy(disk, &medium.file)?;
    drop(tried.boot("NoSpace", true)?);
    fs::remove_file(&medium.file)?;
    eprintln!(
        "{}: from its disk, the first pod was seen running after {booted:.1?}, and after 3 power cuts, a reboot, a \
         factory reset, a full partition, 3 kinds of damage and a read-only medium",
        profile.name
    );
    Ok(())
}

/// Writes the file of the board's identity to its boot partition, as docs/boards.md does.
fn write_identity(board: &Board, text: &str) -> Outcome {
    board.expect(
        "mount -o remount,rw /boot && cat > /boot/nodlet.new && mv /boot/nodlet.new /boot/nodlet.conf && \
         mount -o remount,ro /boot",
        text,
        "",
    )
}

/// Applies a pod, waits until it runs, and cuts the power.
fn push(mut board: Board) -> Outcome {
    board.expect(
        "nodlet apply -f -",
        &manifest::pod("pushed", "print pushed then sleep"),
        "pod/pushed created\n",
    )?;
    wait_for_pushed(&mut board)
}

/// A pod has its grace on the way down, with the data partition still writable.
fn go_down_with_grace(mut board: Board) -> Outcome {
    let hook = "lifecycle:\n  preStop:\n    exec:\n      command: [/bin/demo, sleep, '3', then, write, /said/word, \
                ended]\nvolumeMounts:\n- {name: said, mountPath: /said}";
    let volume = "volumes:\n- name: said\n  hostPath: {path: /var/lib/said, type: DirectoryOrCreate}";
    let last = manifest::pod_of("last", &[manifest::container("app", "print up then sleep", hook)], volume);
    board.expect("nodlet apply -f -", &last, "pod/last created\n")?;
    board.wait_for("the pod with a preStop hook to write its log", |board| {
        Ok(text(&board.ssh("nodlet logs last", "")?.stdout) == "up\n")
    })?;
    board.ssh("nodlet reboot", "")?;
    board.wait_until_down("rebooting")
}

/// Fills the data partition, and cuts the power.
fn fill(board: Board) -> Outcome {
    let kib = text(&board.ssh("df -k /var | tail -n 1", "")?.stdout);
    let kib = kib.split_whitespace().nth(3).and_then(|kib| kib.parse::<u64>().ok());
    // The rest is for the file system's record of the file.
    let bytes = kib.ok_or("df says nothing of /var")?.saturating_sub(256) * 1024;
    let command = format!("busybox fallocate -l {bytes} /var/lib/fill && sync && echo filled");
    board.expect(&command, "", "filled\n")
}

fn wait_for_pushed(board: &mut Board) -> Outcome {
    board.wait_for("the applied pod to write its log", |board| {
        Ok(text(&board.ssh("nodlet logs pushed", "")?.stdout) == "pushed\n")
    })
}

impl Tried<'_> {
    fn boot(&self, reason: &str, in_ram: bool) -> Result<Board, Failure> {
        self.boot_with("", reason, in_ram)
    }

    fn boot_read_only(&self) -> Result<Board, Failure> {
        self.boot_with(",readonly=on", "ReadOnly", true)
    }

    /// Boots until the pod of the image runs, and compares what became of the data partition.
    fn boot_with(&self, option: &str, reason: &str, in_ram: bool) -> Result<Board, Failure> {
        let mut board = self.medium.boot_with(self.qemu, self.directory, self.key, option)?;
        board.wait_for("the pod of the image to run", |board| {
            let pods = board.ssh("nodlet get pods baked", "")?;
            Ok(pods.status.success() && text(&pods.stdout).contains("Running"))
        })?;
        let status = text(&board.ssh("cat /run/nodlet/storage.json", "")?.stdout);
        let found: Value = serde_json::from_str(&status)
            .map_err(|error| board.failed(&format!("the status of the storage is {status:?}: {error}")))?;
        if found["reason"] != reason || found["inRAM"] != in_ram {
            return Err(board.failed(&format!("the status of the storage is {status}, not {reason}")));
        }
        if reason != "Ready" {
            board.require_said(&format!("({reason})"))?;
        }
        let events = text(&board.ssh("nodlet get events --no-headers", "")?.stdout);
        if events.contains(&format!("DataPartition{reason}")) != (in_ram || reason == "Full") {
            return Err(board.failed(&format!("the events of a data partition that is {reason}: {events}")));
        }
        eprintln!("  {reason}: {}", found["message"].as_str().unwrap_or_default());
        Ok(board)
    }
}

/// Where the data partition begins, by another reader of both tables than the board's.
fn data_of(medium: &Path) -> Result<u64, Failure> {
    let disk = gpt::GptConfig::new().only_valid_headers(true).open(medium)?;
    let data = disk.partitions().values().find(|partition| partition.name == "data");
    Ok(data.ok_or("the medium has no data partition")?.first_lba * 512)
}

/// Overwrites a part of the medium with what is no file system.
fn overwrite(medium: &Path, begin: u64, bytes: u64) -> io::Result<()> {
    let medium = File::options().write(true).open(medium)?;
    let block = [0xa5; 4096];
    (begin..begin + bytes).step_by(4096).try_for_each(|at| medium.write_all_at(&block, at))
}
