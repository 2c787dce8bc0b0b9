//! The file systems of a device: at `/var`, at `/run` and where a test wants one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::{DEADLINE, Device};

/// A file system that a test has mounted. Drop it before the device.
pub struct Mount {
    pub(super) path: PathBuf,
}

impl Mount {
    /// Mounts the ext4 file system of a block device, or of a file with the option `loop`, at a directory.
    pub fn ext4(of: &Path, at: &Path, options: &str) -> Mount {
        let mounted = Command::new("mount").args(["-t", "ext4", "-o", options]).args([of, at]).output();
        let mounted = mounted.expect("mount is installed");
        assert!(mounted.status.success(), "{}: {mounted:?}", of.display());
        Mount { path: at.to_owned() }
    }

    /// Remounts the file system with other options or flags.
    pub fn remount(&self, flags: MsFlags, options: &str) {
        let none = None::<&str>;
        mount(none, &self.path, none, MsFlags::MS_REMOUNT | flags, Some(options))
            .expect("a tmpfs can be remounted");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}

/// Checks an ext4 file system that is not mounted, as process 1 does at a boot.
///
/// # Panics
/// It cannot be repaired.
pub fn check_file_system(path: &Path) {
    let begun = Instant::now();
    let check = |how: &[&str]| {
        loop {
            let checked = Command::new("e2fsck").args(how).arg(path).output().expect("e2fsck is installed");
            // A process of another test that enters a new mount namespace has a copy of the mount until it leaves its root.
            if String::from_utf8_lossy(&checked.stdout).contains("is in use") && begun.elapsed() < DEADLINE {
                thread::sleep(Duration::from_millis(50));
                continue;
            }
            // The bits 1 and 2 report repairs.
            return (checked.status.code().is_some_and(|code| code & !3 == 0), checked);
        }
    };
    if !check(&["-p"]).0 {
        let (is_whole, checked) = check(&["-y"]);
        assert!(is_whole, "the file system is damaged: {checked:?}");
    }
}

/// The device that is mounted at a path.
pub(super) fn mounted_device(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/mounts").expect("the kernel lists its mounts");
    let at = |line: &&str| line.split(' ').nth(1).is_some_and(|place| Path::new(place) == path);
    let line = mounts.lines().rfind(at).expect("it is mounted");
    line.split(' ').next().unwrap_or_default().to_owned()
}

impl Device {
    /// Mounts a tmpfs at a path of the device, until the mount is dropped.
    pub fn mount_tmpfs(&self, inside: &str, options: &str) -> Mount {
        self.mount_tmpfs_with(inside, MsFlags::empty(), options)
    }

    fn mount_tmpfs_with(&self, inside: &str, flags: MsFlags, options: &str) -> Mount {
        let path = self.path(inside);
        fs::create_dir_all(&path).expect("the root can be written to");
        let tmpfs = Some("tmpfs");
        mount(tmpfs, &path, tmpfs, flags, Some(options)).expect("root can mount a tmpfs");
        Mount { path }
    }

    /// Mounts a tmpfs at `/run`, as on every board. Leftover files in it are not checked then.
    pub fn run_in_memory(&mut self) {
        self.run = Some(self.mount_tmpfs("/run", "mode=0755"));
    }

    /// Mounts a tmpfs at `/run` with `noexec`, `nosuid`, `nodev` and `noatime`, as an initramfs of Debian does for the
    /// first three. Leftover files in it are not checked then.
    pub fn run_in_memory_without_programs(&mut self) {
        let flags = MsFlags::MS_NOEXEC | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOATIME;
        self.run = Some(self.mount_tmpfs_with("/run", flags, "mode=0755"));
    }

    /// Mounts a new ext4 file system at `/var`, which must still be empty. As on a board that boots, nothing
    /// was deleted there in the last minutes: ext4 takes long to find an inode among those deleted recently.
    pub fn run_on_a_new_disk(&mut self) {
        self.run_on_a_disk_made_with("mkfs.ext4", &[], "");
    }

    /// Mounts a new file system at `/var` that `mkfs.ext4` or `mkfs.xfs` makes with more arguments, with these options
    /// of mount.
    pub fn run_on_a_disk_made_with(&mut self, program: &str, arguments: &[&str], options: &str) {
        // The smallest that mkfs.xfs makes has 300 MiB.
        let mib = if program == "mkfs.xfs" { 512 } else { 256 };
        self.run_on_a_disk_of(mib, program, arguments, options);
    }

    /// Mounts a file system as [`Device::run_on_a_disk_made_with`] does, of this size, also of `mkfs.btrfs`.
    pub fn run_on_a_disk_of(&mut self, mib: u64, program: &str, arguments: &[&str], options: &str) {
        let (image, var) = (self.slot.dir().join("disk.img"), self.path("/var"));
        let usual = match program {
            "mkfs.xfs" | "mkfs.btrfs" => "-q -f",
            _ => "-q -F -E lazy_itable_init=0,lazy_journal_init=0",
        };
        let file = fs::File::create(&image).expect("/tmp can be written to");
        file.set_len(mib << 20).expect("it has no bytes yet");
        fs::create_dir_all(&var).expect("the root can be written to");
        let run = |command: &mut Command| {
            let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
            assert!(status.success(), "{command:?}: {status}");
        };
        run(Command::new(program).args(usual.split(' ')).args(arguments).arg(&image));
        let options = format!("loop,{options}");
        run(Command::new("mount").args(["-o", options.trim_end_matches(',')]).arg(&image).arg(&var));
        // The image is deleted when it is unmounted.
        let _ = fs::remove_file(&image);
        self.disk = Some(Mount { path: var });
    }

    /// Mounts the ext4 file system of a block device at `/var`, which must be empty.
    pub fn run_on(&mut self, device: &str, options: &str) {
        self.mount_disk(Path::new(device), options);
    }

    /// Mounts a copy of a disk at `/var` as process 1 does at a boot: it is checked first.
    pub fn run_on_a_copy(&mut self, image: &Path) {
        check_file_system(image);
        self.mount_disk(image, "loop,noatime");
    }

    /// Makes ext4 find an error on the disk of `/var`, which was mounted with `errors=remount-ro`: it accepts no more
    /// writes. After [`Device::cut_power`], it is checked and accepts them again.
    pub fn break_disk(&mut self) {
        self.is_disk_broken = true;
        let device = mounted_device(&self.disk.as_ref().expect("there is a disk").path);
        let name = device.rsplit('/').next().unwrap_or_default();
        fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "a test").expect("it is ext4");
    }

    /// Unmounts the disk of `/var`.
    pub fn run_on_nothing(&mut self) {
        self.disk = None;
    }

    fn mount_disk(&mut self, of: &Path, options: &str) {
        let var = self.path("/var");
        fs::create_dir_all(&var).expect("the root can be written to");
        self.disk = Some(Mount::ext4(of, &var, options));
    }

    /// Puts `/run` on the file system of `/var`, as on a machine whose run-time directory is no tmpfs.
    pub fn run_beside_data(&mut self) {
        let (beside, path) = (self.path("/var/run-time"), self.path("/run"));
        for directory in [&beside, &path] {
            fs::create_dir_all(directory).expect("the root can be written to");
        }
        let none = None::<&str>;
        mount(Some(&beside), &path, none, MsFlags::MS_BIND, none).expect("root can mount a directory");
        self.run = Some(Mount { path });
    }

    /// The file system that was mounted at `/var`.
    pub fn disk(&self) -> &Mount {
        self.disk.as_ref().expect("a disk was made")
    }
}
