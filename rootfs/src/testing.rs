//! What the tests of this crate share: scratch directories and archives.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use tar::{EntryType, Header};

/// A directory below /tmp that goes with the test.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("nodlet-rootfs-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
pub(crate) fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}: is it installed?"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

pub(crate) fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    let (path, name) = (c_path(path), CString::new(name).unwrap());
    // SAFETY: both strings end in NUL, and the length is that of `value`.
    let result = unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    assert_eq!(result, 0, "{name:?}: {}", std::io::Error::last_os_error());
}

pub(crate) fn xattrs(path: &Path) -> Vec<(String, Vec<u8>)> {
    let path = c_path(path);
    let mut names = vec![0u8; 65536];
    // SAFETY: the path ends in NUL, and the length is that of the buffer.
    let length = unsafe { libc::llistxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    assert!(length >= 0, "{path:?}: {}", std::io::Error::last_os_error());
    names.truncate(length as usize);
    let mut xattrs: Vec<(String, Vec<u8>)> = names
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let c_name = CString::new(name).unwrap();
            let mut value = vec![0u8; 65536];
            // SAFETY: both strings end in NUL, and the length is that of the buffer.
            let length = unsafe {
                libc::lgetxattr(path.as_ptr(), c_name.as_ptr(), value.as_mut_ptr().cast(), value.len())
            };
            assert!(length >= 0, "{path:?}: {}", std::io::Error::last_os_error());
            value.truncate(length as usize);
            (String::from_utf8(name.to_vec()).unwrap(), value)
        })
        .collect();
    xattrs.sort();
    xattrs
}

/// A tar archive with names as they are written, however hostile.
pub(crate) struct TarBuilder(Vec<u8>);

impl TarBuilder {
    pub(crate) fn new() -> TarBuilder {
        TarBuilder(Vec::new())
    }

    pub(crate) fn file(self, name: &str, text: &str) -> TarBuilder {
        self.bytes(name, text.as_bytes())
    }

    pub(crate) fn bytes(self, name: &str, bytes: &[u8]) -> TarBuilder {
        self.entry(EntryType::Regular, name, "", 0o644, bytes)
    }

    pub(crate) fn directory(self, name: &str) -> TarBuilder {
        self.entry(EntryType::Directory, name, "", 0o755, &[])
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> TarBuilder {
        self.entry(EntryType::Symlink, name, target, 0o777, &[])
    }

    pub(crate) fn hard_link(self, name: &str, target: &str) -> TarBuilder {
        self.entry(EntryType::Link, name, target, 0o644, &[])
    }

    pub(crate) fn entry(mut self, kind: EntryType, name: &str, link: &str, mode: u32, data: &[u8]) -> TarBuilder {
        if name.len() > 100 {
            self = self.entry(EntryType::GNULongName, "././@LongLink", "", 0, format!("{name}\0").as_bytes());
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(data.len() as u64);
        let gnu = header.as_gnu_mut().unwrap();
        let name = &name.as_bytes()[..name.len().min(100)];
        gnu.name[..name.len()].copy_from_slice(name);
        gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}
