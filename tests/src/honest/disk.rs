//! [`Disk`]: a medium as a block device of this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use nix::mount::{MntFlags, umount2};

use super::Medium;
use crate::LoopDevice;
use crate::fuse::{self, Answers, FILE, ROOT, ask};

/// The name of the one file, which is the medium.
const NAME: &str = "disk";

/// A block device whose writes, trims and flushes reach a medium in their order: a loop device over a file of a file
/// system in user space, in which nothing is cached. The kernels of test machines have no client for NBD.
pub struct Disk {
    device: Option<LoopDevice>,
    directory: PathBuf,
}

impl Disk {
    /// Makes a device of a medium. The directory is made for it.
    pub fn attach(medium: Arc<Medium>, directory: &Path) -> Disk {
        fs::create_dir_all(directory).expect("/tmp can be written to");
        fuse::mount(directory, medium);
        let device = LoopDevice::attach(&directory.join(NAME));
        Disk { device: Some(device), directory: directory.to_owned() }
    }

    /// The path of the block device.
    pub fn path(&self) -> &str {
        self.device.as_ref().expect("it is there until it is dropped").path()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.device.take());
        let _ = umount2(&self.directory, MntFlags::MNT_DETACH);
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Options of a mount on which ext4 does not write the bytes of a file by itself when it is renamed over another one, as
/// other file systems do not.
pub const HONEST_OPTIONS: &str = "noatime,noauto_da_alloc";

/// Makes a file with an empty data partition of this size, as process 1 makes it.
///
/// # Panics
/// The file cannot be written, or `mke2fs` is not installed.
pub fn make_data_partition(file: &Path, mib: u64) {
    fs::File::create(file).and_then(|file| file.set_len(mib << 20)).expect("/tmp can be written to");
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-m", "0", "-e", "remount-ro", "-L", "data"])
        .args(["-E", "lazy_itable_init=0,lazy_journal_init=0"])
        .arg(file)
        .status();
    assert!(made.expect("mke2fs is installed").success());
}

impl Medium {
    fn attributes(&self, node: u64) -> Vec<u8> {
        match node {
            ROOT => fuse::attributes(node, 0, libc::S_IFDIR | 0o700, 0),
            _ => fuse::attributes(node, self.size(), libc::S_IFREG | 0o600, 0),
        }
    }
}

impl Answers for Medium {
    fn answer(&self, opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, nix::Error> {
        let number = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("eight bytes"));
        let failed = |_| nix::Error::EIO;
        match opcode {
            ask::INIT => Ok(fuse::greeting()),
            ask::LOOKUP if body.strip_suffix(b"\0") == Some(NAME.as_bytes()) => {
                Ok(fuse::entry(FILE, &self.attributes(FILE)))
            }
            ask::LOOKUP => Err(nix::Error::ENOENT),
            ask::GETATTR | ask::SETATTR => Ok(fuse::kept(&self.attributes(node))),
            ask::OPEN => Ok(fuse::opened()),
            ask::READ => {
                let at = number(8).min(self.size());
                let length = u64::from(number(16) as u32).min(self.size() - at);
                let mut bytes = vec![0; length as usize];
                self.read(&mut bytes, at).map_err(failed)?;
                Ok(bytes)
            }
            ask::WRITE => {
                /// The bytes of `struct fuse_write_in`.
                const BEFORE: usize = 40;
                let bytes = &body[BEFORE..BEFORE + number(16) as u32 as usize];
                self.write(bytes, number(8)).map_err(failed)?;
                Ok([bytes.len() as u32, 0].map(u32::to_le_bytes).concat())
            }
            // `FALLOC_FL_PUNCH_HOLE` or `FALLOC_FL_ZERO_RANGE`, with `FALLOC_FL_KEEP_SIZE` or without: zeros.
            ask::FALLOCATE if number(24) as u32 & 0x12 != 0 => {
                self.trim(number(8), number(16)).map_err(failed)?;
                Ok(Vec::new())
            }
            ask::FSYNC => {
                self.flush();
                Ok(Vec::new())
            }
            ask::RELEASE | ask::FLUSH => Ok(Vec::new()),
            _ => Err(nix::Error::ENOSYS),
        }
    }
}
