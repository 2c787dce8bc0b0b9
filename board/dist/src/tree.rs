//! The files of an archive: a root file system, a package or a source tree. Writes them in the format that the kernel unpacks
//! at boot ("newc", Documentation/driver-api/early-userspace/buffer-format.rst), or as a tar.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const KIND: u32 = 0o170_000;

/// User and group of what has no owner of its own.
const ROOT: [u32; 2] = [0, 0];

/// Files, links and directories by their paths, without a slash at the beginning. A directory comes before what is in it.
#[derive(Clone, Default)]
pub struct Tree(BTreeMap<String, Entry>);

#[derive(Clone)]
struct Entry {
    /// The kind and the permissions.
    mode: u32,
    owner: [u32; 2],
    /// The content of a file, or the target of a link.
    bytes: Vec<u8>,
}

/// A file, link or directory below a directory of this machine.
pub struct Source {
    /// Its path in the directory.
    pub name: String,
    /// Its path on this machine.
    pub path: PathBuf,
    /// Its kind, permissions and owner.
    pub metadata: Metadata,
}

/// All that is below a directory, except devices, sockets and pipes.
///
/// # Errors
/// A directory cannot be read, or a name is no text.
pub fn below(directory: &Path) -> io::Result<Vec<Source>> {
    let (mut found, mut open) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(parent) = open.pop() {
        for entry in fs::read_dir(&parent)? {
            let path = entry?.path();
            let metadata = fs::symlink_metadata(&path)?;
            let name = path.strip_prefix(directory).ok().and_then(Path::to_str);
            let name =
                name.ok_or_else(|| io::Error::other(format!("{} is not valid UTF-8", path.display())))?;
            if metadata.is_dir() {
                open.push(path.clone());
            }
            if metadata.is_dir() || metadata.is_symlink() || metadata.is_file() {
                found.push(Source { name: name.to_owned(), path, metadata });
            }
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

impl Tree {
    /// Adds a file, and the directories above it.
    pub fn file(&mut self, path: &str, mode: u32, bytes: impl Into<Vec<u8>>) {
        self.insert(path, FILE | mode, ROOT, bytes.into());
    }

    /// Adds a symbolic link, and the directories above it.
    pub fn link(&mut self, path: &str, target: &str) {
        self.insert(path, LINK | 0o777, ROOT, target.into());
    }

    /// Adds a directory unless it is there, and those above it.
    pub fn directory(&mut self, path: &str) {
        self.above(&format!("{}/", path.trim_start_matches('/')));
    }

    /// Adds something of this machine. It belongs to root, and everybody may read it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn add(&mut self, path: &str, source: &Source) -> io::Result<()> {
        let is_executable = source.metadata.is_dir() || source.metadata.mode() & 0o100 != 0;
        let kind = source.metadata.mode() & KIND;
        let permissions = if kind == LINK {
            0o777
        } else if is_executable {
            0o755
        } else {
            0o644
        };
        self.insert(path, kind | permissions, ROOT, content(source)?);
        Ok(())
    }

    /// Adds the contents of a directory with their permissions and owners. The directories in `empty`, given by their
    /// paths in it, are added without contents.
    ///
    /// # Errors
    /// The contents cannot be read.
    pub fn copy(&mut self, directory: &Path, empty: &[&str]) -> io::Result<()> {
        let is_left_out = |name: &str| {
            empty.iter().any(|empty| name.strip_prefix(empty).is_some_and(|rest| rest.starts_with('/')))
        };
        for source in below(directory)?.iter().filter(|source| !is_left_out(&source.name)) {
            let owner = [source.metadata.uid(), source.metadata.gid()];
            self.insert(&source.name, source.metadata.mode(), owner, content(source)?);
        }
        Ok(())
    }

    /// Removes a file or link.
    pub fn remove(&mut self, path: &str) {
        self.0.remove(path);
    }

    /// The files and their contents.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let files = self.0.iter().filter(|(_, entry)| entry.mode & KIND == FILE);
        files.map(|(path, entry)| (path.as_str(), &*entry.bytes))
    }

    /// The number of directories and links.
    pub fn others(&self) -> usize {
        self.0.len() - self.files().count()
    }

    /// Kind and permissions, as `stat` has them, and the bytes of a file or a link's target.
    pub fn get(&self, path: &str) -> Option<(u32, &[u8])> {
        self.0.get(path).map(|entry| (entry.mode, &*entry.bytes))
    }

    fn insert(&mut self, path: &str, mode: u32, owner: [u32; 2], bytes: Vec<u8>) {
        let mut path = path.trim_start_matches('/').to_owned();
        // The kernel follows a link before what it leads to exists.
        for (end, _) in path.clone().match_indices('/') {
            if let Some((LINK.., target)) = self.get(&path[..end])
                && let Ok(target) = std::str::from_utf8(target)
            {
                path = format!("{target}{}", &path[end..]);
                break;
            }
        }
        self.above(&path);
        self.0.insert(path, Entry { mode, owner, bytes });
    }

    fn above(&mut self, path: &str) {
        for (end, _) in path.match_indices('/') {
            let directory = || Entry { mode: DIRECTORY | 0o755, owner: ROOT, bytes: Vec::new() };
            self.0.entry(path[..end].to_owned()).or_insert_with(directory);
        }
    }

    /// Writes the archive that the kernel unpacks at boot.
    ///
    /// # Errors
    /// A file is too large for the format, or cannot be written.
    pub fn write_cpio(&self, mut to: impl Write) -> io::Result<()> {
        let end = Entry { mode: 0, owner: ROOT, bytes: Vec::new() };
        let entries = self.0.iter().map(|(path, entry)| (path.as_str(), entry));
        // The kernel takes files with one number and several links for links to each other.
        for (number, (name, entry)) in entries.chain([("TRAILER!!!", &end)]).enumerate() {
            let Entry { mode, owner: [user, group], bytes } = entry;
            let size =
                u32::try_from(bytes.len()).map_err(|_| io::Error::other(format!("{name} is too large")))?;
            let (number, name_size) = (number as u32 + 1, name.len() as u32 + 1);
            let fields = [number, *mode, *user, *group, 1, 0, size, 0, 0, 0, 0, name_size, 0];
            let mut head = b"070701".to_vec();
            for field in fields {
                write!(head, "{field:08x}")?;
            }
            head.extend(name.as_bytes());
            head.push(0);
            to.write_all(&head)?;
            to.write_all(padding(head.len()))?;
            to.write_all(bytes)?;
            to.write_all(padding(bytes.len()))?;
        }
        to.flush()
    }

    /// Writes a tar in which each path begins with `prefix`, and everything was changed at `time`, in seconds since 1970.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write_tar<W: Write>(&self, to: W, prefix: &str, time: u64) -> io::Result<W> {
        let mut tar = tar::Builder::new(to);
        for (path, entry) in &self.0 {
            let mut header = tar::Header::new_gnu();
            header.set_username("root")?;
            header.set_groupname("root")?;
            header.set_uid(0);
            header.set_gid(0);
            header.set_mode(entry.mode & !KIND);
            header.set_mtime(time);
            header.set_size(0);
            let mut name = format!("{prefix}{path}");
            match entry.mode & KIND {
                DIRECTORY => {
                    header.set_entry_type(tar::EntryType::Directory);
                    if !name.ends_with('/') {
                        name.push('/');
                    }
                }
                LINK => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_link_name(String::from_utf8_lossy(&entry.bytes).as_ref())?;
                }
                _ => {
                    header.set_entry_type(tar::EntryType::Regular);
                    header.set_size(entry.bytes.len() as u64);
                }
            }
            let content = if entry.mode & KIND == FILE { &*entry.bytes } else { &[] };
            // The crate would remove `./`.
            match header.as_old_mut().name.get_mut(..name.len()) {
                Some(field) => {
                    field.copy_from_slice(name.as_bytes());
                    header.set_cksum();
                    tar.append(&header, content)?;
                }
                None => tar.append_data(&mut header, name, content)?,
            }
        }
        tar.into_inner()
    }
}

fn content(source: &Source) -> io::Result<Vec<u8>> {
    if source.metadata.is_symlink() {
        Ok(fs::read_link(&source.path)?.into_os_string().into_vec())
    } else if source.metadata.is_file() {
        fs::read(&source.path)
    } else {
        Ok(Vec::new())
    }
}

/// What follows this many bytes: the kernel expects headers and contents at multiples of four.
fn padding(length: usize) -> &'static [u8] {
    &[0; 3][..length.wrapping_neg() % 4]
}

/// The place of a package's file: the directories at the top are links into `usr`.
pub(crate) fn below_usr(name: &str) -> String {
    match name.split_once('/') {
        Some((top @ ("bin" | "sbin" | "lib" | "lib64"), rest)) => format!("usr/{top}/{rest}"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names in an archive, in their order.
    fn names(tree: &Tree) -> (String, Vec<String>) {
        let mut bytes = Vec::new();
        tree.write_cpio(&mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let at: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert!(at.iter().all(|at| at % 4 == 0) && text.len().is_multiple_of(4), "{at:?}");
        let name = |at: &usize| text[at + 110..].split('\0').next().unwrap_or_default().to_owned();
        let names = at.iter().map(name).collect();
        (text, names)
    }

    #[test]
    fn entries_are_aligned_and_directories_come_first_and_once() {
        let mut tree = Tree::default();
        tree.file("/a/b", 0o644, b"one");
        tree.file("/a/c", 0o755, b"four");
        let (text, names) = names(&tree);
        assert_eq!(names, ["a", "a/b", "a/c", "TRAILER!!!"]);
        assert!(text.contains("a/b\0\0\0one\x00070701"), "{text:?}");
    }

    #[test]
    fn a_copied_directory_keeps_its_links_and_empties_the_named_directories() {
        let root = std::env::temp_dir().join(format!("nodlet-tree-{}", std::process::id()));
        for directory in ["usr/bin", "usr/doc"] {
            fs::create_dir_all(root.join(directory)).unwrap();
            fs::write(root.join(directory).join("true"), "").unwrap();
        }
        std::os::unix::fs::symlink("usr/bin", root.join("bin")).unwrap();
        let mut tree = Tree::default();
        tree.copy(&root, &["usr/doc"]).unwrap();
        fs::remove_dir_all(&root).unwrap();
        tree.file("usr/bin/false", 0o755, b"");
        tree.file("bin/sh", 0o755, b"");
        tree.link("usr/sbin", "bin");
        let (text, names) = names(&tree);
        let usr = ["usr", "usr/bin", "usr/bin/false", "usr/bin/sh", "usr/bin/true", "usr/doc", "usr/sbin"];
        assert_eq!(names, [&["bin"], &usr[..], &["TRAILER!!!"]].concat());
        assert!(text.contains("bin\0\0\0usr/bin\x00070701"), "{text:?}");
    }
}
