//! The medium that the board boots from, and its data partition.
//!
//! `cargo xtask image` makes a disk of a boot partition and a read-only root. At the first boot the rest of
//! the medium becomes the data partition, which is checked and repaired before each mount. A broken data
//! partition never prevents the board from booting: `/var` is then in RAM, and console and status file give
//! the reason. All steps run in a child with a deadline.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;
use nodlet_kernel::durable::replace_in_memory;
use nodlet_kernel::ioctl::{self, PartitionChange};
use nodlet_kernel::own_file;
use nodlet_kernel::process::{Ended, pidfd_open, wait_for};
use serde_json::json;

use super::process::start;
use crate::boot::STORAGE;
use crate::boot::console::say;

#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice))]
pub(super) mod first_stage;
mod gpt;

use gpt::{Guid, Partition, SECTOR, Table};

/// Where the boot partition is mounted, read-only.
pub(crate) const BOOT: &str = "/boot";

/// The file on the boot partition that requests a factory reset.
pub(crate) const RESET_MARKER: &str = "/boot/factory-reset";

const DATA: &str = "/var";

/// The deadline for all steps. A check of a large damaged card takes minutes.
const WITHIN: Duration = Duration::from_secs(15 * 60);

/// The smallest data partition, in sectors. A file system with a journal needs this much.
const DATA_SECTORS_MIN: u64 = 8 * 2048;

/// The least free space in bytes, below which pods cannot be applied.
const FREE_MIN: u64 = 1024 * 1024;

/// Why the data partition is not used: a reason for programs, and a text.
struct Problem(&'static str, String);

type Result<T> = std::result::Result<T, Problem>;

/// Mounts the partitions, in the child of process 1 that sets up the machine. Does nothing on a board whose
/// system is in an initramfs.
pub(super) fn set_up() {
    if root_id().is_none() {
        return;
    }
    if let Err(error) = make_etc_writable() {
        say(format_args!("failed to make /etc writable: {error}"));
    }
    let outcome = start(prepare).and_then(|child| finish(child, WITHIN));
    if outcome != Some(0) {
        if outcome.is_none() {
            let why = format!("the data partition was not ready within {} s", WITHIN.as_secs());
            publish_status(true, "TimedOut", &why);
        }
        if let Err(error) = mount_ram(DATA, "mode=0755") {
            say(format_args!("failed to mount {DATA} in RAM: {error}"));
        }
    }
    for directory in ["/var/lib", "/var/lib/nodlet", "/var/lib/nodlet/ssh", "/var/log"] {
        if let Err(error) = make_directory(Path::new(directory)) {
            say(format_args!("failed to create {directory}: {error}"));
        }
    }
    if let Err(error) = keep_manifests() {
        say(format_args!("manifests in {MANIFESTS} are lost at the next boot: {error}"));
    }
}

/// Creates a directory whose parent exists. Renames another file at that path, which a damaged medium may
/// have: without these directories neither agent nor SSH would start.
fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if fs::symlink_metadata(path).is_ok() {
        let damaged = path.with_extension("damaged");
        say(format_args!("{} is not a directory: renaming it to {}", path.display(), damaged.display()));
        fs::rename(path, damaged)?;
    }
    fs::create_dir(path)
}

/// The directory into which users put manifests.
pub(super) const MANIFESTS: &str = "/etc/nodlet/manifests";

/// The directory on the data partition that keeps the users' manifests.
const MANIFESTS_KEPT: &str = "/var/lib/nodlet/site-manifests";

/// Bind-mounts the manifests from the data partition, so that they survive a reboot, unlike other changes of
/// `/etc`.
fn keep_manifests() -> io::Result<()> {
    fs::create_dir_all(MANIFESTS_KEPT)?;
    fs::create_dir_all(MANIFESTS)?;
    let none = None::<&str>;
    Ok(mount(Some(MANIFESTS_KEPT), MANIFESTS, none, MsFlags::MS_BIND, none)?)
}

/// Mounts boot and data partition. Returns 0 if `/var` is on the medium.
fn prepare() -> u8 {
    match prepare_data() {
        Ok((reason, text)) => {
            publish_status(false, reason, &text);
            0
        }
        Err(Problem(reason, text)) => {
            publish_status(true, reason, &text);
            1
        }
    }
}

/// Writes the status file, and reports anything unusual on the console.
fn publish_status(in_ram: bool, reason: &str, text: &str) {
    if in_ram {
        say(format_args!("{text}; applied objects are lost at the next boot ({reason})"));
    } else if reason != "Ready" {
        say(format_args!("{text} ({reason})"));
    }
    let status = json!({ "inRAM": in_ram, "reason": reason, "message": text }).to_string();
    let written =
        fs::create_dir_all("/run/nodlet").and_then(|()| replace_in_memory(Path::new(STORAGE), status));
    if let Err(error) = written {
        say(format_args!("failed to write {STORAGE}: {error}"));
    }
}

/// Mounts the partitions. Returns the state of the data partition: a reason and a text.
fn prepare_data() -> Result<(&'static str, String)> {
    let disk = root_id().and_then(Disk::with);
    let disk = disk.ok_or_else(|| Problem("NoMedium", "no disk has the partition of the root".to_owned()))?;
    let boot = disk.table.of_kind(gpt::BOOT).map(|boot| disk.known_device(boot));
    let boot = boot.ok_or(io::ErrorKind::NotFound.into()).and_then(|device| mount_boot(&device));
    if let Err(error) = boot {
        say(format_args!("failed to mount the boot partition: {error}"));
    }
    if fs::read_to_string(format!("/sys/class/block/{}/ro", disk.name)).is_ok_and(|ro| ro.trim() == "1") {
        return Err(Problem("ReadOnly", format!("the medium {} is read-only", disk.name)));
    }
    data_of(disk)
}

/// The remedy for a data partition that cannot be used.
const RESET_MAKES_ONE: &str = "`nodlet factory-reset` makes a new one";

fn data_of(mut disk: Disk) -> Result<(&'static str, String)> {
    let failed = |what: &str, error: io::Error| Problem("Failed", format!("failed to {what}: {error}"));
    let rest = disk.table.rest(disk.sectors);
    let old = disk.table.of_kind(gpt::DATA);
    let mut done = ("Ready", "the data partition is mounted".to_owned());
    let reset = asks_for_reset(Path::new(RESET_MARKER)) && may_reset();
    let ends_beyond = |partition: Partition| partition.first + partition.sectors > disk.sectors;
    // If the contents of a larger medium were copied to this one, a reset makes a partition that fits.
    let old = old.filter(|old| !(reset && ends_beyond(*old)));
    let Some(partition) = old.or(rest).filter(|partition| partition.sectors >= DATA_SECTORS_MIN) else {
        let most = (rest.map_or(0, |rest| rest.sectors) * SECTOR) >> 20;
        let text = format!("{} has {most} MiB left for the data partition, which needs 8", disk.name);
        return Err(Problem("NoSpace", text));
    };
    if ends_beyond(partition) {
        let text = format!("the data partition ends beyond the end of {} ({RESET_MAKES_ONE})", disk.name);
        return Err(Problem("Damaged", text));
    }
    let device = if old.is_none() { disk.device(partition.number) } else { disk.known_device(partition) };
    if old.is_none() {
        // The kernel may already know a partition that ended beyond the medium, in the size that it found.
        disk.announce(PartitionChange::Add, partition)
            .or_else(|_| disk.announce(PartitionChange::Resize, partition))
            .map_err(|error| failed("add the data partition", error))?;
    }
    if old.is_none() || reset {
        make_file_system(&device)?;
        done = if reset {
            ("Reset", "the board was reset: the data partition is new".to_owned())
        } else {
            ("Created", format!("{} is the new data partition", device))
        };
    } else if let Some(text) = check(&device)? {
        done = ("Repaired", text);
    }
    // The table names a data partition only once it has a file system; after a power cut before that, all
    // steps begin anew.
    let grown = rest.filter(|rest| rest.first == partition.first && rest.sectors > partition.sectors);
    if old.is_none() || grown.is_some() {
        let extent = grown.unwrap_or(partition);
        disk.write_data(extent).map_err(|error| failed("write the partition table", error))?;
        if let (Some(_), Some(grown)) = (old, grown) {
            disk.announce(PartitionChange::Resize, grown)
                .map_err(|error| failed("grow the data partition", error))?;
        }
    }
    if let Err(error) = mount_data(&device) {
        // A cleanly unmounted file system is marked clean, and then a mere check passes even if it is
        // damaged.
        let repaired = repair(&device)?;
        mount_data(&device).map_err(|_| {
            Problem("Damaged", format!("the data partition cannot be mounted ({RESET_MAKES_ONE}): {error}"))
        })?;
        done = ("Repaired", repaired.unwrap_or_else(|| format!("the data partition was checked: {error}")));
    }
    if let Err(error) = grow_file_system(&device) {
        say(format_args!("failed to grow the file system of {device}: {error}"));
    }
    // The integer types differ between architectures.
    #[allow(clippy::unnecessary_cast)]
    let free = statvfs(DATA).map_or(u64::MAX, |stat| {
        (stat.blocks_available() as u64).saturating_mul(stat.fragment_size() as u64)
    });
    if free < FREE_MIN {
        done = ("Full", format!("the data partition is full: {} KiB are free", free / 1024));
    }
    if reset && let Err(error) = remove_marker() {
        say(format_args!("failed to remove {RESET_MARKER}: {error}; the next boot resets the board again"));
    }
    Ok(done)
}

/// Whether the marker exists. A directory of that name does not count, because it might not be removable.
fn asks_for_reset(marker: &Path) -> bool {
    let found = fs::symlink_metadata(marker);
    let is_file = found.as_ref().is_ok_and(fs::Metadata::is_file);
    if found.is_ok() && !is_file {
        say(format_args!("no factory reset: {} is not a file", marker.display()));
    }
    is_file
}

/// Whether a reset may run. If its marker could not be removed, the board would be reset at each boot; so
/// first the marker is written to, in a way that needs no space.
fn may_reset() -> bool {
    let touch = || {
        let marker = own_file::open_with(Path::new(RESET_MARKER), File::options().write(true))?;
        marker.set_modified(std::time::SystemTime::now())?;
        marker.sync_all()
    };
    let writable = change_boot(touch);
    if let Err(error) = &writable {
        say(format_args!("no factory reset: the boot partition cannot be written: {error}"));
    }
    writable.is_ok()
}

fn remove_marker() -> io::Result<()> {
    // Changes that precede the removal of the marker must be on the medium first.
    nix::unistd::sync();
    change_boot(|| fs::remove_file(RESET_MARKER))
}

/// Creates the marker, for `nodlet factory-reset`: the next boot resets the board.
pub(crate) fn leave_marker() -> io::Result<()> {
    let marker = Path::new(RESET_MARKER);
    change_boot(|| own_file::open_with(marker, File::options().write(true).create(true)).map(drop))
}

/// Makes the boot partition writable for one change, which is durable afterwards.
pub(super) fn change_boot(change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    remount_boot(true)?;
    let changed = change().and_then(|()| sync_boot());
    remount_boot(false).and(changed)
}

/// Makes all changes durable. For FAT, `syncfs` writes them and does not flush the medium; the sync of a directory does.
fn sync_boot() -> io::Result<()> {
    let boot = File::open(BOOT)?;
    rustix::fs::syncfs(&boot)?;
    boot.sync_all()
}

const BOOT_FLAGS: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

fn mount_boot(device: &str) -> io::Result<()> {
    Ok(mount(Some(device), BOOT, Some("vfat"), BOOT_FLAGS | MsFlags::MS_RDONLY, Some("umask=0077"))?)
}

fn remount_boot(writable: bool) -> io::Result<()> {
    let mode = if writable { MsFlags::MS_SYNCHRONOUS } else { MsFlags::MS_RDONLY };
    let none = None::<&str>;
    Ok(mount(none, BOOT, none, BOOT_FLAGS | MsFlags::MS_REMOUNT | mode, none)?)
}

fn mount_ram(place: &str, options: &str) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    Ok(mount(Some("tmpfs"), place, Some("tmpfs"), flags, Some(options))?)
}

/// Mounts an overlay with its changes in RAM over the `/etc` of the read-only root.
fn make_etc_writable() -> io::Result<()> {
    for directory in ["/run/etc/upper", "/run/etc/work"] {
        fs::create_dir_all(directory)?;
    }
    let options = "lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work";
    Ok(mount(Some("overlay"), "/etc", Some("overlay"), MsFlags::empty(), Some(options))?)
}

fn make_file_system(device: &str) -> Result<()> {
    let arguments = ["-q", "-F", "-t", "ext4", "-m", "0", "-e", "remount-ro", "-L", "data", device];
    let (code, output) = run("mke2fs", &arguments);
    let made = code == 0 && File::open(device).and_then(|device| device.sync_all()).is_ok();
    if made { Ok(()) } else { Err(Problem("Failed", format!("mke2fs {device} ended with {code}: {output}"))) }
}

fn mount_data(device: &str) -> io::Result<()> {
    Ok(mount(Some(device), DATA, Some("ext4"), MsFlags::MS_NOATIME, None::<&str>)?)
}

/// Checks the file system. Returns the text of the repairs, if any.
fn check(device: &str) -> Result<Option<String>> {
    let checked = run("e2fsck", &["-p", device]);
    // The exit code is a bit set; 1 and 2 mean repairs. Repairs that need an answer are made as well: nobody
    // is here to answer, and the rest of the data is worth more.
    if checked.0 & !3 == 0 { judge(checked) } else { judge(run("e2fsck", &["-y", device])) }
}

/// Repairs a file system that is marked clean, which [`check`] would trust.
fn repair(device: &str) -> Result<Option<String>> {
    judge(run("e2fsck", &["-f", "-y", device]))
}

/// Interprets the exit code and the output of a check.
fn judge((code, output): (i32, String)) -> Result<Option<String>> {
    match code {
        0 => Ok(None),
        1..=3 => Ok(Some(format!("the data partition was repaired: {output}"))),
        _ => {
            let text = format!("the data partition is damaged beyond repair ({RESET_MAKES_ONE}): {output}");
            Err(Problem("Damaged", text))
        }
    }
}

/// Runs a program. Returns its exit code and the last line of its output.
fn run(program: &str, arguments: &[&str]) -> (i32, String) {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            let text = [output.stderr, output.stdout].concat();
            let text = String::from_utf8_lossy(&text);
            let line = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
            (output.status.code().unwrap_or(128), line.to_owned())
        }
        Err(error) => (128, error.to_string()),
    }
}

/// The offset of ext4's superblock, which has the number of blocks, in two halves, and their size.
const SUPERBLOCK: u64 = 1024;

/// Grows the mounted file system to the end of its partition. The kernel does this in the journal.
fn grow_file_system(device: &str) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let name = device.trim_start_matches("/dev/");
    let sectors = sectors_of(name).unwrap_or(0);
    let mut block = [0; 0x154];
    File::open(device)?.read_exact_at(&mut block, SUPERBLOCK)?;
    let number = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let size = 1024u64 << number(0x18).min(6);
    let has = u64::from(number(0x150)) << 32 | u64::from(number(4));
    let could = sectors * SECTOR / size;
    if has >= could {
        return Ok(());
    }
    Ok(ioctl::resize_ext4(File::open(DATA)?, could)?)
}

/// The identifier of the root partition, from `root=PARTUUID=…` on the kernel's command line.
fn root_id() -> Option<Guid> {
    let line = fs::read_to_string("/proc/cmdline").ok()?;
    line.split_whitespace().filter_map(|word| Guid::parse(word.strip_prefix("root=PARTUUID=")?)).next_back()
}

/// The size of a disk or partition in sectors.
fn sectors_of(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/sys/class/block/{name}/size")).ok()?.trim().parse().ok()
}

/// A disk with a partition table.
struct Disk {
    /// The kernel's name of the disk: `mmcblk0`.
    name: String,
    sectors: u64,
    table: Table,
}

impl Disk {
    /// The names of all disks that have a medium.
    fn names() -> Vec<String> {
        let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| sectors_of(name).is_some_and(|sectors| sectors > 0))
            .collect();
        names.sort();
        names
    }

    /// Finds the disk with this partition.
    fn with(id: Guid) -> Option<Disk> {
        Disk::names().into_iter().find_map(|name| {
            let sectors = sectors_of(&name)?;
            let table = Table::read(&File::open(format!("/dev/{name}")).ok()?, sectors)?;
            table.with_id(id)?;
            Some(Disk { name, sectors, table })
        })
    }

    /// The device path of a partition.
    fn device(&self, number: usize) -> String {
        let between = if self.name.ends_with(|last: char| last.is_ascii_digit()) { "p" } else { "" };
        format!("/dev/{}{between}{number}", self.name)
    }

    /// The device path of a partition. A kernel that rejected the table, such as one for a larger medium, is
    /// given the partition first.
    fn known_device(&self, partition: Partition) -> String {
        let device = self.device(partition.number);
        if !Path::new(&device).exists() && partition.first + partition.sectors <= self.sectors {
            let added = self.announce(PartitionChange::Add, partition);
            say(format_args!("adding {device} to the kernel: {}", outcome(&added)));
        }
        device
    }

    fn write_data(&mut self, data: Partition) -> io::Result<()> {
        let disk = File::options().read(true).write(true).open(format!("/dev/{}", self.name))?;
        let mut id = [0; 16];
        io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut id)?;
        self.table.write_data(&disk, self.sectors, data, Guid(id))
    }

    /// Adds or resizes a partition in the kernel while its disk is in use.
    fn announce(&self, change: PartitionChange, partition: Partition) -> io::Result<()> {
        let disk = File::open(format!("/dev/{}", self.name))?;
        let (start, length) = (partition.first * SECTOR, partition.sectors * SECTOR);
        Ok(ioctl::change_partition(disk, change, partition.number as i32, start, length)?)
    }
}

fn outcome(done: &io::Result<()>) -> String {
    done.as_ref().err().map_or_else(|| "which succeeded".to_owned(), |error| format!("which failed: {error}"))
}

/// Waits for a child of this process and returns its exit code. Returns `None` if the child took longer and
/// was killed with all its children.
fn finish(child: Pid, within: Duration) -> Option<i32> {
    if let Ok(ended) = pidfd_open(child) {
        let timeout = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
        if poll(&mut [PollFd::new(ended.as_fd(), PollFlags::POLLIN)], timeout) == Ok(0) {
            // The child leads a session of its own.
            let _ = kill(Pid::from_raw(-child.as_raw()), Signal::SIGKILL);
            return None;
        }
    }
    wait_for(child).map(Ended::code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_requests_a_factory_reset() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let directory = scratch.path();
        let marker = directory.join("factory-reset");
        assert!(!asks_for_reset(&marker));
        fs::create_dir(&marker).expect("new");
        assert!(!asks_for_reset(&marker), "a directory would stay, and reset the board at each boot");
        fs::remove_dir(&marker).expect("empty");
        File::create(&marker).expect("new");
        assert!(asks_for_reset(&marker));
    }

    #[test]
    fn a_file_or_dangling_link_in_place_of_a_directory_is_moved_aside() {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let scratch = directory.path();
        let path = scratch.join("nodlet");
        make_directory(&path).expect("there is nothing");
        fs::write(path.join("kept"), "").expect("it is a directory");
        make_directory(&path).expect("there is one");
        assert!(path.join("kept").exists());
        fs::remove_dir_all(&path).expect("removed");
        fs::write(&path, "damage").expect("written");
        make_directory(&path).expect("a file is put aside");
        assert!(path.is_dir() && scratch.join("nodlet.damaged").is_file());
        fs::remove_dir(&path).expect("empty");
        std::os::unix::fs::symlink("nowhere", &path).expect("a link");
        make_directory(&path).expect("a link that leads nowhere is put aside");
        assert!(path.is_dir());
    }
}
