//! Measures files that processes of a pod hold and that have no name any more. What they take of a disk is found by no walk
//! over its files.

use std::fs::{self, ReadDir};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{ENTRIES_PER_PART, MAX_ENTRIES, Unit};
use crate::cgroup::processes;

/// Files that count once, however many descriptors lead to them. Further files count for each descriptor.
const MAX_KNOWN: usize = 4096;

/// What a descriptor's link in /proc ends with if its file has no name.
const DELETED: &[u8] = b" (deleted)";

/// A measurement of the files without a name that the processes of a cgroup have open or mapped, in parts.
pub struct DeletedFiles {
    cgroup: PathBuf,
    /// A directory of the disk that is measured.
    directory: PathBuf,
    unit: Unit,
    begun: bool,
    /// The file system of `directory`.
    device: Option<Device>,
    /// Directories in /proc that are still to be read, with the mount of the root of their process.
    pending: Vec<(PathBuf, Option<u64>)>,
    current: Option<(ReadDir, Option<u64>)>,
    known: Vec<(Device, u64)>,
    left: usize,
    usage: u64,
}

/// Major and minor number of a file system.
type Device = (u32, u32);

/// Of linux/stat.h.
const STATX_MNT_ID: u32 = 0x1000;

impl DeletedFiles {
    /// A measurement for the processes in the v2 cgroup `cgroup` and below it, of the files on the file system of
    /// `directory` or on the mount of a process's root, which is the writable layer of its container. Kernels before Linux
    /// 5.8 do not tell the mount.
    pub fn new(cgroup: PathBuf, directory: PathBuf, unit: Unit) -> DeletedFiles {
        DeletedFiles {
            cgroup,
            directory,
            unit,
            begun: false,
            device: None,
            pending: Vec::new(),
            current: None,
            known: Vec::new(),
            left: MAX_ENTRIES,
            usage: 0,
        }
    }

    /// Measures a part. Returns what all of them use, or `None` if there is more. What cannot be read does not count: its
    /// process may have ended meanwhile. More descriptors than anybody needs use more than any limit.
    pub fn part(&mut self) -> Option<u64> {
        if !self.begun {
            self.begun = true;
            self.device = status(&self.directory).map(|found| device(&found));
            self.pending = processes(&self.cgroup)
                .into_iter()
                .flat_map(|process| {
                    let process = PathBuf::from(format!("/proc/{process}"));
                    let root = status(&process.join("root")).and_then(|found| mount(&found));
                    // Threads can have descriptors of their own.
                    let threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
                    let tables = threads.map(|thread| thread.path().join("fd"));
                    tables.chain([process.join("map_files")]).map(move |path| (path, root))
                })
                .collect();
        }
        for _ in 0..ENTRIES_PER_PART {
            if self.left == 0 {
                return Some(u64::MAX);
            }
            self.left -= 1;
            let Some((entries, root)) = &mut self.current else {
                let Some((path, root)) = self.pending.pop() else { return Some(self.usage) };
                self.current = fs::read_dir(path).ok().map(|entries| (entries, root));
                continue;
            };
            let root = *root;
            match entries.next() {
                None => self.current = None,
                Some(Ok(entry)) => self.entry(&entry.path(), root),
                Some(Err(_)) => {}
            }
        }
        None
    }

    fn entry(&mut self, path: &Path, root: Option<u64>) {
        // This reads names in the kernel's memory, and asks no file system.
        let leads_nowhere = fs::read_link(path).is_ok_and(|to| {
            to.as_os_str().as_bytes().starts_with(b"/") && to.as_os_str().as_bytes().ends_with(DELETED)
        });
        let Some(found) = leads_nowhere.then(|| status(path)).flatten() else { return };
        let file = (device(&found), found.stx_ino);
        // A file of an overlay has a device number of its own.
        let is_measured = Some(file.0) == self.device || (root.is_some() && mount(&found) == root);
        if found.stx_nlink > 0 || !is_measured || self.known.contains(&file) {
            return;
        }
        if self.known.len() < MAX_KNOWN {
            self.known.push(file);
        }
        self.usage = self.usage.saturating_add(match self.unit {
            Unit::Bytes => found.stx_blocks.saturating_mul(512),
            Unit::Inodes => 1,
        });
    }
}

fn device(found: &libc::statx) -> Device {
    (found.stx_dev_major, found.stx_dev_minor)
}

/// The ID of the mount on which a file was opened.
fn mount(found: &libc::statx) -> Option<u64> {
    (found.stx_mask & STATX_MNT_ID != 0).then_some(found.stx_mnt_id)
}

/// The status of a file as the kernel knows it: a file system of a container is not asked, since it may never answer.
fn status(path: &Path) -> Option<libc::statx> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let (flags, mask) = (libc::AT_STATX_DONT_SYNC, libc::STATX_BASIC_STATS | STATX_MNT_ID);
    // SAFETY: a path that ends with NUL, and room for the structure that the kernel writes.
    let got = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, mask, found.as_mut_ptr()) };
    // SAFETY: any bytes are a valid structure, and zeros were there before.
    (got == 0).then(|| unsafe { found.assume_init() })
}
