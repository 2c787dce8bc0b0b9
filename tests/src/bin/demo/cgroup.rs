//! Attempts of a container against its cgroup and the device filter. Each attempt prints a line, so that a
//! test compares all of them with the documentation.

use std::fs;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

/// Access modes of `open(2)` with which a device is tried: read, write, both, and neither (only `ioctl`).
const ACCESS: [i32; 4] = [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, 3];

/// Minor numbers that are tried for each major number.
const MINORS: [u64; 17] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 63, 130, 200, 255, 256, 1_048_575];

/// Creates a node of each device and opens it. Prints those that the device filter allows, whether the device
/// exists or not.
pub(crate) fn devices(majors: u64) -> io::Result<()> {
    let node = Path::new("/device");
    for (name, kind) in [("c", SFlag::S_IFCHR), ("b", SFlag::S_IFBLK)] {
        for major in 1..majors {
            for minor in MINORS {
                mknod(node, kind, Mode::from_bits_truncate(0o666), makedev(major, minor))?;
                let passes = |access: &i32| {
                    let flags = OFlag::from_bits_retain(*access | libc::O_NONBLOCK | libc::O_NOCTTY);
                    match open(node, flags, Mode::empty()) {
                        Ok(file) => nix::unistd::close(file).is_ok(),
                        Err(errno) => errno != Errno::EPERM,
                    }
                };
                let passed: Vec<String> =
                    ACCESS.iter().filter(|access| passes(access)).map(i32::to_string).collect();
                if !passed.is_empty() {
                    println!("{name} {major}:{minor} {}", passed.join(","));
                }
                fs::remove_file(node)?;
            }
        }
    }
    println!("no other");
    Ok(())
}

/// Prints each file below `dir` that can be opened for writing, and each directory in which one can be
/// created.
pub(crate) fn writable(dir: &Path) -> io::Result<()> {
    let mut files = 0;
    let mut open_dirs = vec![dir.to_owned()];
    while let Some(dir) = open_dirs.pop() {
        if fs::create_dir(dir.join("made")).is_ok() {
            println!("makes {}", dir.display());
            fs::remove_dir(dir.join("made"))?;
        }
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            files += 1;
            if entry.file_type()?.is_dir() {
                open_dirs.push(entry.path());
            } else if fs::OpenOptions::new().write(true).open(entry.path()).is_ok() {
                println!("writes {}", entry.path().display());
            }
        }
    }
    println!("of {files} no other");
    Ok(())
}

/// Creates this many cgroups side by side.
pub(crate) fn wide(dir: &Path, count: u32) -> io::Result<()> {
    (0..count).try_for_each(|number| fs::create_dir(dir.join(format!("wide-{number}"))))
}

/// Creates this many nested cgroups, and enters the last one: with long names, their path soon exceeds the
/// limit of every system call.
pub(crate) fn deep(dir: &Path, count: u32) -> io::Result<()> {
    std::env::set_current_dir(dir)?;
    let name = "deep".repeat(60);
    for _ in 0..count {
        fs::create_dir(&name)?;
        std::env::set_current_dir(&name)?;
    }
    fs::write("cgroup.procs", "0")
}

/// Mounts `source` with this file system type on a directory, which is created.
pub(crate) fn mount_on(kind: &str, source: &str, dir: &Path, read_only: bool) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let flags = if read_only { MsFlags::MS_RDONLY } else { MsFlags::empty() };
    Ok(mount(Some(source), dir, Some(kind), flags, None::<&str>)?)
}

/// Makes a mount writable, as far as the kernel allows it from inside a container.
pub(crate) fn remount(dir: &Path) -> io::Result<()> {
    let flags =
        MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    Ok(mount(None::<&str>, dir, None::<&str>, flags, None::<&str>)?)
}
