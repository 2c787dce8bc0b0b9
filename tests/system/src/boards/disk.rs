//! Tests the emulated board with its disk, as a user flashes it: power cuts, also in the middle of
//! operations, a reboot, a factory reset, and a data partition that is full, damaged or absent.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nodlet_build::task::{Outcome, TaskError};
use nodlet_build::{cross, targets};
use nodlet_dist::image::DeviceImage;
use nodlet_dist::profile::{Loader, Profile, Qemu, Update};
use nodlet_tests::manifest;

use super::monitor::{self, Monitor};
use super::push::User;
use super::update::{self, Program};
use super::{Board, Medium, alone, default_name, demo_for, flash, ssh, text};

mod boot_files;
pub(super) mod losses;
mod power_cuts;

use power_cuts::{Moments, Pushed};

const MIB: u64 = 1024 * 1024;

/// The identity's network line, with the address of a board in QEMU's user network.
const FIXED: &str = "network = eth0 10.0.2.15/24 via 10.0.2.2 dns 10.0.2.3\n";

/// The emulator's clock of a board without a battery. Not 1970, which UEFI turns into 2070.
const NO_BATTERY: [&str; 2] = ["-rtc", "base=2001-01-01"];

/// A medium and the emulator that boots from it.
struct Tried<'a> {
    qemu: &'a Qemu,
    medium: &'a Medium,
    directory: &'a Path,
    key: &'a Path,
}

/// The update rules of the board: any update is accepted, and kept soon.
pub(super) fn update_rules() -> Update {
    Update { allow_unsigned: true, healthy_after: "5s".into(), ..Update::default() }
}

/// The first identity of the board, which has no name.
pub(super) fn first_identity(key: &Path) -> Result<String, TaskError> {
    Ok(format!("{FIXED}{}end\n", login(key)?))
}

/// The identity's line that allows this key to log in.
fn login(key: &Path) -> Result<String, TaskError> {
    Ok(format!("ssh-key = {}\n", fs::read_to_string(key.with_extension("pub"))?.trim()))
}

/// Boots the disk, and boots it again after everything that may happen to its medium.
pub(super) fn try_out(
    profile: &Profile,
    qemu: &Qemu,
    image: &DeviceImage,
    directory: &Path,
    key: &Path,
) -> Outcome {
    let Some(medium) = &flash(profile, qemu, image, directory)? else {
        eprintln!("{}: its profile names no firmware: no disk is booted", profile.name);
        return Ok(());
    };
    let mut moments = Moments::new()?;
    let seed = moments.seed;
    boot(profile, image, &Tried { qemu, medium, directory, key }, &mut moments)
        .map_err(|TaskError(why)| TaskError(format!("{why}\nthe power was cut by NODLET_SEED={seed}")))
}

/// Boots the disk, and cuts the power at random moments.
fn boot(profile: &Profile, image: &DeviceImage, tried: &Tried<'_>, moments: &mut Moments) -> Outcome {
    let Tried { medium, directory, key, .. } = *tried;
    let (Some(disk), Some(storage)) = (&image.disk, &profile.storage) else {
        return Err("a board with a disk has [storage]".into());
    };
    let login = login(key)?;
    let pushed = Pushed::write(demo_for(profile)?, directory)?;
    let newer = Program::read(&alone(|| cross::build(targets::get(&profile.target)?))?)?.with_version(1)?;

    let mut was_created = false;
    for _ in 0..2 {
        was_created |= power_cuts::during_boot(tried, moments)?;
    }
    // A data partition that was created before a power cut is not created again, and may have been created
    // without a report.
    let first: &[&str] = if was_created { &["Ready"] } else { &["Created", "Ready"] };
    let (mut board, mut monitor) = tried.boot_as("", &[], first, false)?;
    let booted = board.begun.elapsed();
    board.expect("cat /proc/sys/kernel/hostname", "", &format!("{}\n", default_name(profile)))?;
    require_fixed_address(&board)?;
    let host_key = ssh::host_key(&board)?;
    // Copy a manifest as `scp` does, which syncs nothing; the power is cut later. The agent syncs the file when it has
    // accepted it, before it writes what is applied below.
    let copied = manifest::pod("copied", "print copied then sleep");
    board.expect("cat >/etc/nodlet/manifests/copied.yaml", &copied, "")?;
    wait_for_log(&mut board, "copied", "copied\n")?;
    write_identity(&board, &format!("name = gate-17\n{FIXED}{login}end\n"))?;
    let mut user = User::new(board.port, key, directory)?;
    let board = apply(board)?;
    let was_pushed = pushed.cut(board, &mut monitor, &user, moments)?;

    let (mut board, mut monitor) = tried.boot_as("", &[], &["Ready"], false)?;
    user.reach(board.port);
    wait_for_applied(&mut board)?;
    board.expect("cat /proc/sys/kernel/hostname", "", "gate-17\n")?;
    require_host_key(&board, &host_key, true, "a power cut")?;
    wait_for_log(&mut board, "copied", "copied\n")?;
    pushed.require_whole_or_nothing(&mut board, &user, was_pushed)?;
    power_cuts::cut_update(tried, board, &mut monitor, &user, &newer, moments)?;

    let mut board = tried.boot("Ready", false)?;
    user.reach(board.port);
    power_cuts::require_either_and_install(&mut board, &user, &newer)?;
    let wrong = format!("name = gate-18\nnmae = x\n{login}end\n");
    let refused = board.ssh("nodlet identity -", &wrong)?;
    if refused.status.success() || !text(&refused.stderr).contains("line 2: unknown key \"nmae\"") {
        return Err(board.failed(&format!("a wrong identity was not refused: {refused:?}")));
    }
    overwrite_identity(&board, &wrong)?;
    let before = board.date()?;
    let born = life_of_applied(&mut board)?;
    go_down_with_grace(board)?;

    let (mut board, _) = tried.boot_as("", &NO_BATTERY, &["Ready"], false)?;
    let after = board.date()?;
    let stamped = board.output("busybox stat -c %Y /var/lib/nodlet/clock")?;
    let stamped: u64 = stamped.trim().parse().unwrap_or(0);
    if stamped < before || after < stamped {
        return Err(board.failed(&format!(
            "a board without a battery is at {after} after a shutdown that began at {before} and wrote {stamped}"
        )));
    }
    board.require_said("the clock was behind; it begins at")?;
    board.expect("cat /var/lib/said/word", "", "ended\n")?;
    let life = life_of_applied(&mut board)?;
    if life != (born.0.clone(), born.1 + 1) {
        return Err(
            board.failed(&format!("after a reboot, AGE and RESTARTS are of {life:?}, and were of {born:?}"))
        );
    }
    // Nothing of an invalid identity is applied.
    board.expect("cat /proc/sys/kernel/hostname", "", "gate-17\n")?;
    board.require_said("/boot/nodlet.conf is rejected: line 2: unknown key \"nmae\"")?;
    let refused = board.ssh("nodlet factory-reset", "")?;
    if refused.status.success() || !text(&refused.stderr).contains("the reset would delete") {
        return Err(board.failed(&format!("a reset would have taken the identity away: {refused:?}")));
    }
    require_fixed_address(&board)?;
    require_host_key(&board, &host_key, true, "a reboot")?;
    update::runs(&board, &newer.version, "kept")?;
    write_identity(&board, &format!("name = gate-19\n{login}end\n"))?;
    wait_for_applied(&mut board)?;
    // Fill all space but root's reserve, damage files, and cut the power.
    fill_and_damage(board)?;

    let mut board = tried.boot("Full", false)?;
    board.require_said("/var/lib/nodlet/ssh/host_key is damaged: making a new one")?;
    require_host_key(&board, &host_key, false, "damage to it")?;
    let host_key = ssh::host_key(&board)?;
    board.expect("rm /var/lib/fill", "", "")?;
    // The emulator ends instead of rebooting.
    board.ssh("nodlet factory-reset", "")?;
    board.wait_until_down("rebooting")?;
    drop(board);

    let board = tried.boot("Reset", false)?;
    board.expect("cat /proc/sys/kernel/hostname", "", "gate-19\n")?;
    let status = board.json("cat /run/nodlet/network.json")?;
    if status["links"][0]["dhcp"]["state"] != "bound" {
        return Err(board.failed(&format!("without an address in its identity the board has: {status}")));
    }
    require_host_key(&board, &host_key, false, "a factory reset")?;
    update::runs(&board, update::VERSION, "image")?;
    board.expect("nodlet get pods -o name", "", "pod/baked\n")?;
    board.expect("ls /boot/factory-reset 2>/dev/null; true", "", "")?;
    // A file of which a power cut left a part of a comment, and zeros.
    overwrite_identity(&board, &format!("# Gate 20{}\nend\n", "\0".repeat(512)))?;
    drop(apply(board)?);

    // The disk is copied to a larger medium, and its first superblock is lost.
    let data = data_of(&medium.file)?;
    medium.resize(storage.medium_mib * 2 * MIB)?;
    overwrite(&medium.file, data, 4096)?;
    let mut board = tried.boot("Repaired", false)?;
    board.require_said("/boot/nodlet.conf is rejected: line 1: it has a NUL byte: the file is damaged")?;
    board.expect("cat /proc/sys/kernel/hostname", "", "gate-19\n")?;
    wait_for_applied(&mut board)?;
    let free = board.output("df -k /var | tail -n 1")?;
    let kib = free.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
    if kib < storage.medium_mib * 1024 {
        return Err(board.failed(&format!("the data partition did not grow with its medium: {free:?}")));
    }
    // The kept copy is lost with the data partition.
    write_identity(&board, &format!("name = gate-20\n{login}end\n"))?;
    drop(board);

    overwrite(&medium.file, data, storage.medium_mib * 2 * MIB - data - MIB)?;
    drop(tried.boot("Damaged", true)?);
    drop(tried.boot_as(",readonly=on", &[], &["ReadOnly"], true)?);
    if storage.loader == Loader::Uefi {
        // The disk is copied to a smaller medium, so the kernel rejects its partition table. U-Boot does the
        // same, and boots nothing.
        medium.resize(storage.medium_mib * MIB)?;
        let mut board = tried.boot("Damaged", true)?;
        board.require_said("the data partition ends beyond the end of ")?;
        board.ssh("nodlet factory-reset", "")?;
        board.wait_until_down("rebooting")?;
        drop(board);
        drop(tried.boot("Reset", false)?);
        drop(tried.boot("Ready", false)?);
    }
    // The medium is only as large as the image.
    fs::copy(disk, &medium.file)?;
    drop(tried.boot("NoSpace", true)?);
    fs::remove_file(&medium.file)?;
    eprintln!(
        "{}: from its disk, the first pod was seen running after {booted:.1?}, and after 7 power cuts, 4 of them in \
         the middle of things, a reboot, a factory reset, a full partition, 3 kinds of damage and a read-only medium",
        profile.name
    );
    Ok(())
}

/// Requires that the link has the address of the board's identity, and sent no DHCP requests.
fn require_fixed_address(board: &Board) -> Outcome {
    let status = board.json("cat /run/nodlet/network.json")?;
    let link = &status["links"][0];
    if link["address"] != "10.0.2.15/24" || link["gateway"] != "10.0.2.2" || !link["dhcp"].is_null() {
        return Err(board
            .failed(&format!("the identity fixes the address, and /run/nodlet/network.json has {status}")));
    }
    board.expect("cat /etc/resolv.conf | busybox tail -n 1", "", "nameserver 10.0.2.3\n")
}

/// Requires that the board has the same SSH host key as before, or a different one.
fn require_host_key(board: &Board, before: &str, same: bool, what: &str) -> Outcome {
    let now = ssh::host_key(board)?;
    if (now == before) == same {
        return Ok(());
    }
    Err(board.failed(&format!("the board's SSH key was {before} before {what}, and is {now}")))
}

/// Replaces the board's identity file, as docs/boards.md does.
fn write_identity(board: &Board, text: &str) -> Outcome {
    let replaced = board.ssh("nodlet identity -", text)?;
    let said = self::text(&replaced.stdout);
    if replaced.status.success() && said.starts_with("/boot/nodlet.conf is replaced: ") {
        return board.expect("grep -c ' /boot vfat ro,' /proc/mounts; ls /boot | grep new; true", "", "1\n");
    }
    Err(board.failed(&format!("the identity was not replaced: {replaced:?}")))
}

/// Overwrites the board's identity file in place, without a check.
fn overwrite_identity(board: &Board, text: &str) -> Outcome {
    board.expect(
        "mount -o remount,rw /boot && cat > /boot/nodlet.conf && mount -o remount,ro /boot",
        text,
        "",
    )
}

/// Applies a pod, and waits until it runs.
fn apply(mut board: Board) -> Result<Board, TaskError> {
    board.expect(
        "nodlet apply -f -",
        &manifest::pod("applied", "print applied then sleep"),
        "pod/applied created\n",
    )?;
    wait_for_applied(&mut board)?;
    Ok(board)
}

/// Turns the board off. A pod must get its grace period, with the data partition still writable.
fn go_down_with_grace(mut board: Board) -> Outcome {
    let hook = "lifecycle:\n  preStop:\n    exec:\n      command: [/bin/demo, sleep, '3', then, write, /said/word, \
                ended]\nvolumeMounts:\n- {name: said, mountPath: /said}";
    let volume = "volumes:\n- name: said\n  hostPath: {path: /var/lib/said, type: DirectoryOrCreate}";
    let last = manifest::pod_of("last", &[manifest::container("app", "print up then sleep", hook)], volume);
    board.expect("nodlet apply -f -", &last, "pod/last created\n")?;
    board.wait_for("the pod with a preStop hook to write its log", |board| {
        Ok(board.output("nodlet logs last")? == "up\n")
    })?;
    board.ssh("nodlet reboot", "")?;
    board.wait_until_down("rebooting")
}

/// Fills the data partition, damages files whose loss must prevent neither logins nor the image's pod, and
/// cuts the power.
fn fill_and_damage(board: Board) -> Outcome {
    let kib = board.output("df -k /var | tail -n 1")?;
    let kib = kib.split_whitespace().nth(3).and_then(|kib| kib.parse::<u64>().ok());
    // The rest is needed for the file system's metadata of the file.
    let bytes = kib.ok_or("df says nothing of /var")?.saturating_sub(256) * 1024;
    // In one session, because no further one can use the damaged host key.
    let command = format!(
        "echo damaged >/var/lib/nodlet/images/index.json && busybox truncate -s 0 /var/lib/nodlet/ssh/host_key && \
         busybox fallocate -l {bytes} /var/lib/fill && sync && echo filled"
    );
    board.expect(&command, "", "filled\n")
}

/// The time from which the AGE of the applied pod counts, and its RESTARTS, when it runs.
fn life_of_applied(board: &mut Board) -> Result<(String, u64), TaskError> {
    wait_for_applied(board)?;
    let pod = board.json("nodlet get pod applied -o json")?;
    let created = pod["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
    let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or_default();
    Ok((created, restarts))
}

fn wait_for_applied(board: &mut Board) -> Outcome {
    wait_for_log(board, "applied", "applied\n")
}

/// Waits until a pod's log is this text.
fn wait_for_log(board: &mut Board, pod: &str, log: &str) -> Outcome {
    board.wait_for(&format!("{log:?} in the log of {pod}"), |board| {
        Ok(board.output(&format!("nodlet logs {pod}"))? == log)
    })
}

impl Tried<'_> {
    fn boot(&self, reason: &str, in_ram: bool) -> Result<Board, TaskError> {
        self.boot_as("", &[], &[reason], in_ram).map(|(board, _)| board)
    }

    /// Turns the board on, with more options of its drive and more arguments of the emulator.
    fn start(&self, option: &str, arguments: &[&str]) -> Result<(Board, Monitor), TaskError> {
        let mut all = arguments.iter().map(ToString::to_string).collect::<Vec<_>>();
        all.extend(monitor::arguments(self.directory));
        let mut board = self.medium.boot_with(self.qemu, self.directory, self.key, option, &all)?;
        let monitor = Monitor::connect(&mut board)?;
        Ok((board, monitor))
    }

    /// Boots until the pod of the image runs, and requires that the data partition has one of the expected
    /// states.
    fn boot_as(
        &self,
        option: &str,
        arguments: &[&str],
        reasons: &[&str],
        in_ram: bool,
    ) -> Result<(Board, Monitor), TaskError> {
        let (mut board, monitor) = self.start(option, arguments)?;
        board.wait_for("the pod of the image to run", |board| {
            let pods = board.ssh("nodlet get pods baked", "")?;
            Ok(pods.status.success() && text(&pods.stdout).contains("Running"))
        })?;
        let status = board.json("cat /run/nodlet/storage.json")?;
        let reason = status["reason"].as_str().unwrap_or_default();
        if !reasons.contains(&reason) || status["inRAM"] != in_ram {
            return Err(board.failed(&format!("the status of the storage is {status}, not {reasons:?}")));
        }
        if reason != "Ready" {
            board.require_said(&format!("({reason})"))?;
        }
        let events = board.output("nodlet get events --no-headers")?;
        if events.contains(&format!("DataPartition{reason}")) != (in_ram || reason == "Full") {
            return Err(board.failed(&format!("the events of a data partition that is {reason}: {events}")));
        }
        eprintln!("  {reason}: {}", status["message"].as_str().unwrap_or_default());
        Ok((board, monitor))
    }
}

/// The start of the data partition, read by a different GPT implementation than the board's.
fn data_of(medium: &Path) -> Result<u64, TaskError> {
    let disk = gpt::GptConfig::new().only_valid_headers(true).open(medium)?;
    let data = disk.partitions().values().find(|partition| partition.name == "data");
    Ok(data.ok_or("the medium has no data partition")?.first_lba * 512)
}

/// Overwrites a part of the medium with garbage.
fn overwrite(medium: &Path, begin: u64, bytes: u64) -> io::Result<()> {
    let medium = File::options().write(true).open(medium)?;
    let block = [0xa5; 4096];
    (begin..begin + bytes).step_by(4096).try_for_each(|at| medium.write_all_at(&block, at))
}
