//! The names of one layer, which are kept in memory while its data streams to disk.
//!
//! Decides what a tar member's name means: names are resolved within the layer's own root, later members
//! replace earlier ones, and whiteouts take the form that overlayfs expects. Knows neither tar nor EROFS;
//! inodes are numbers assigned by `erofs`.

use std::collections::{BTreeMap, HashMap};

use crate::attributes::{Attributes, Nid};
use crate::xattr::Namespace;

/// The longest name of a file, in bytes.
const NAME_MAX: usize = 255;
/// The longest path of a member, in bytes.
const PATH_MAX: usize = 4096;
/// The most symbolic links that are followed for one name, as in the kernel.
const SYMLINKS_MAX: usize = 40;
/// The prefix of names that mark what a layer removes.
const WHITEOUT: &[u8] = b".wh.";
/// The prefix of AUFS's own names, of which only the mark of an opaque directory has a meaning.
const WHITEOUT_META: &[u8] = b".wh..wh.";
const WHITEOUT_OPAQUE: &[u8] = b".wh..wh..opq";

/// The trusted attribute of directories that the layer does not describe, and of all directories on the way
/// to them. `assemble::implied` reads it.
pub(crate) const MARK: &[u8] = b"nodlet.implied";
/// The value of [`MARK`] on an undescribed directory itself.
pub(crate) const IMPLIED: &[u8] = b"y";
/// The value of [`MARK`] on the way to an undescribed directory.
const ON_THE_WAY: &[u8] = b"n";

pub(crate) type DirectoryIndex = usize;
pub(crate) const ROOT: DirectoryIndex = 0;

#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) parent: DirectoryIndex,
    pub(crate) attributes: Attributes,
    /// Whether the layer uses the directory without describing it.
    implied: bool,
    /// Whether the directory hides its contents in lower layers.
    pub(crate) opaque: bool,
    pub(crate) children: BTreeMap<Box<[u8]>, Child>,
}

#[derive(Debug)]
pub(crate) enum Child {
    Directory(DirectoryIndex),
    Symlink {
        nid: Nid,
        target: Box<[u8]>,
    },
    Other {
        nid: Nid,
        kind: OtherKind,
    },
    /// An entry that hides this name in lower layers.
    Whiteout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherKind {
    File,
    CharacterDevice,
    BlockDevice,
    Fifo,
}

/// The place that a member's name denotes.
#[derive(Debug)]
pub(crate) enum Place {
    /// The layer's root itself.
    Root,
    In(DirectoryIndex, Box<[u8]>),
    /// The whiteout `.wh.<name>`.
    Whiteout(DirectoryIndex, Box<[u8]>),
    /// The mark of an opaque directory, `.wh..wh..opq`.
    Opaque(DirectoryIndex),
    /// Metadata of an old storage driver.
    Ignored,
}

/// The limits of a layer's names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) entries: usize,
    /// The most directories among the entries: each takes six times the memory of a file.
    pub(crate) directories: usize,
    pub(crate) name_bytes: usize,
    /// The most components of names that are looked up. Forty links of two thousand components each may stand
    /// for one component, and every member may have them on its way.
    pub(crate) steps: usize,
}

/// The names of one layer.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) directories: Vec<Directory>,
    /// The number of names of each inode that has, or had, more than one.
    pub(crate) link_counts: HashMap<Nid, u32>,
    bounds: Bounds,
    entries: usize,
    name_bytes: usize,
    steps: usize,
}

impl Tree {
    pub(crate) fn new(bounds: Bounds) -> Tree {
        let root = Directory {
            parent: ROOT,
            attributes: Attributes::implied_directory(),
            implied: false,
            opaque: false,
            children: BTreeMap::new(),
        };
        Tree {
            directories: vec![root],
            link_counts: HashMap::new(),
            bounds,
            entries: 0,
            name_bytes: 0,
            steps: 0,
        }
    }

    /// Determines the place of a member with this name. Directories on the way that the layer does not name
    /// become implied.
    pub(crate) fn place(&mut self, path: &[u8]) -> Result<Place, String> {
        let mut components = clean(path)?;
        if let Some(first_meta) = components.iter().position(|name| name.starts_with(WHITEOUT_META)) {
            if components[first_meta] == WHITEOUT_OPAQUE && first_meta == components.len() - 1 {
                components.pop();
                return Ok(Place::Opaque(self.walk(&components)?));
            }
            return Ok(Place::Ignored);
        }
        let Some(name) = components.pop() else { return Ok(Place::Root) };
        match name.strip_prefix(WHITEOUT) {
            Some(b"" | b"." | b"..") => Err("a whiteout of no name, \".\" or \"..\"".to_owned()),
            Some(hidden) => Ok(Place::Whiteout(self.walk(&components)?, hidden.into())),
            None => Ok(Place::In(self.walk(&components)?, name.into())),
        }
    }

    /// Adds a directory, or changes the attributes of the existing one.
    pub(crate) fn put_directory(
        &mut self,
        parent: DirectoryIndex,
        name: Box<[u8]>,
        attributes: Attributes,
    ) -> Result<(), String> {
        let index = self.directory(parent, &name)?;
        self.set_attributes(index, attributes)
    }

    /// Changes a directory's attributes, which are kept until everything is written.
    pub(crate) fn set_attributes(
        &mut self,
        index: DirectoryIndex,
        attributes: Attributes,
    ) -> Result<(), String> {
        self.count_bytes(attributes.xattrs.size())?;
        self.directories[index].attributes = attributes;
        self.directories[index].implied = false;
        Ok(())
    }

    /// Finishes the tree when all members are added. Removes whiteouts where all lower contents are hidden
    /// anyway, and marks the directories that lower layers may describe.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        let count = self.directories.len();
        // A directory comes after its parent.
        let mut hides = vec![false; count];
        for index in 0..count {
            let directory = &self.directories[index];
            hides[index] = directory.opaque || hides[directory.parent];
            if hides[index] {
                // Overlayfs does not recognise whiteouts where it merges nothing, and would list them.
                self.directories[index].children.retain(|_, child| !matches!(child, Child::Whiteout));
            }
        }
        let mut marks = vec![None; count];
        for index in (0..count).rev() {
            if self.directories[index].implied && !hides[index] {
                marks[index] = Some(IMPLIED);
            }
            if marks[index].is_some() {
                marks[self.directories[index].parent].get_or_insert(ON_THE_WAY);
            }
        }
        for (directory, mark) in self.directories.iter_mut().zip(marks) {
            if let Some(mark) = mark {
                directory.attributes.xattrs.push(Namespace::Trusted, MARK, mark)?;
            }
        }
        Ok(())
    }

    /// Adds anything but a directory. Replaces an existing entry.
    pub(crate) fn put(
        &mut self,
        parent: DirectoryIndex,
        name: Box<[u8]>,
        child: Child,
    ) -> Result<(), String> {
        let target = match &child {
            Child::Symlink { target, .. } => target.len(),
            Child::Directory(_) | Child::Other { .. } | Child::Whiteout => 0,
        };
        self.count(name.len() + target)?;
        self.forget(parent, &name);
        self.directories[parent].children.insert(name, child);
        Ok(())
    }

    /// Adds another name for the inode of `target`.
    pub(crate) fn link(
        &mut self,
        parent: DirectoryIndex,
        name: Box<[u8]>,
        target: &[u8],
    ) -> Result<(), String> {
        let shown = crate::tar_error::shown(target);
        let missing = || format!("hard link to {shown}, which does not precede it in this layer");
        let mut components = clean(target)?;
        let Some(last) = components.pop() else { return Err(missing()) };
        let directory = self.find(&components)?.ok_or_else(missing)?;
        if directory == parent && *last == *name {
            return Err("hard link to itself".to_owned());
        }
        let (nid, child) = match self.directories[directory].children.get(last) {
            Some(Child::Symlink { nid, target }) => {
                (*nid, Child::Symlink { nid: *nid, target: target.clone() })
            }
            Some(Child::Other { nid, kind }) => (*nid, Child::Other { nid: *nid, kind: *kind }),
            Some(Child::Directory(_)) => return Err(format!("hard link to {shown}, which is a directory")),
            Some(Child::Whiteout) | None => return Err(missing()),
        };
        self.put(parent, name, child)?;
        *self.link_counts.entry(nid).or_insert(1) += 1;
        Ok(())
    }

    /// Hides the name in lower layers. An entry of this layer stays, because a whiteout affects only lower
    /// layers.
    pub(crate) fn put_whiteout(&mut self, parent: DirectoryIndex, name: Box<[u8]>) -> Result<(), String> {
        match self.directories[parent].children.get(&name) {
            Some(Child::Directory(index)) => {
                let index = *index;
                self.directories[index].opaque = true;
                Ok(())
            }
            Some(Child::Symlink { .. } | Child::Other { .. } | Child::Whiteout) => Ok(()),
            None => self.put(parent, name, Child::Whiteout),
        }
    }

    /// The directory at a path, which is created if the layer does not name it.
    fn walk(&mut self, components: &[&[u8]]) -> Result<DirectoryIndex, String> {
        match self.follow(components, true)? {
            Some(index) => Ok(index),
            None => Err("parent directory could not be made".to_owned()),
        }
    }

    /// The directory at a path, if it exists.
    fn find(&mut self, components: &[&[u8]]) -> Result<Option<DirectoryIndex>, String> {
        self.follow(components, false)
    }

    /// Resolves a path. Follows the layer's own symbolic links, but never out of the root.
    fn follow(&mut self, components: &[&[u8]], make: bool) -> Result<Option<DirectoryIndex>, String> {
        let mut rest: Vec<Box<[u8]>> = components.iter().rev().map(|name| (*name).into()).collect();
        let (mut at, mut followed) = (ROOT, 0);
        while let Some(name) = rest.pop() {
            self.steps += 1;
            if self.steps > self.bounds.steps {
                return Err(format!("more than {} steps from name to name in one layer", self.bounds.steps));
            }
            match &*name {
                b"" | b"." => continue,
                b".." => {
                    at = self.directories[at].parent;
                    continue;
                }
                _ => {}
            }
            at = match self.directories[at].children.get(&name) {
                Some(Child::Directory(index)) => *index,
                Some(Child::Symlink { target, .. }) => {
                    followed += 1;
                    if followed > SYMLINKS_MAX {
                        return Err(format!("more than {SYMLINKS_MAX} symbolic links on the way"));
                    }
                    if target.starts_with(b"/") {
                        at = ROOT;
                    }
                    rest.extend(target.split(|b| *b == b'/').rev().map(Into::into));
                    continue;
                }
                Some(Child::Other { .. }) => {
                    return Err(format!("its parent {} is not a directory", crate::tar_error::shown(&name)));
                }
                Some(Child::Whiteout) | None if !make => return Ok(None),
                Some(Child::Whiteout) | None => self.directory(at, &name)?,
            };
        }
        Ok(Some(at))
    }

    /// The directory with this name, which is created if it does not exist.
    fn directory(&mut self, parent: DirectoryIndex, name: &[u8]) -> Result<DirectoryIndex, String> {
        if name.len() > NAME_MAX {
            return Err(format!("the name has {} bytes, the limit is {NAME_MAX}", name.len()));
        }
        let opaque = match self.directories[parent].children.get(name) {
            Some(Child::Directory(index)) => return Ok(*index),
            // The name is hidden in lower layers and created anew here.
            Some(Child::Whiteout) => true,
            Some(Child::Symlink { .. } | Child::Other { .. }) | None => false,
        };
        self.count(name.len())?;
        let index = self.directories.len();
        if index > self.bounds.directories {
            return Err(format!("more than {} directories in one layer", self.bounds.directories));
        }
        self.forget(parent, name);
        let attributes = Attributes::implied_directory();
        self.directories.push(Directory {
            parent,
            attributes,
            implied: true,
            opaque,
            children: BTreeMap::new(),
        });
        self.directories[parent].children.insert(name.into(), Child::Directory(index));
        Ok(index)
    }

    /// Removes a name, and a directory with all its names.
    fn forget(&mut self, parent: DirectoryIndex, name: &[u8]) {
        let mut gone: Vec<Child> = self.directories[parent].children.remove(name).into_iter().collect();
        while let Some(child) = gone.pop() {
            match child {
                Child::Directory(index) => {
                    gone.extend(std::mem::take(&mut self.directories[index].children).into_values());
                }
                Child::Symlink { nid, .. } | Child::Other { nid, .. } => {
                    if let Some(count) = self.link_counts.get_mut(&nid) {
                        *count -= 1;
                    }
                }
                Child::Whiteout => {}
            }
        }
    }

    fn count(&mut self, bytes: usize) -> Result<(), String> {
        self.entries += 1;
        if self.entries > self.bounds.entries {
            return Err(format!("more than {} names in one layer", self.bounds.entries));
        }
        self.count_bytes(bytes)
    }

    fn count_bytes(&mut self, bytes: usize) -> Result<(), String> {
        self.name_bytes += bytes;
        if self.name_bytes > self.bounds.name_bytes {
            Err(format!(
                "more than {} bytes of names and of directories' attributes in one layer",
                self.bounds.name_bytes
            ))
        } else {
            Ok(())
        }
    }
}

/// Splits a member's name into components. As in tar, a leading slash has no effect; a name that leads out of
/// the root is rejected.
fn clean(path: &[u8]) -> Result<Vec<&[u8]>, String> {
    if path.len() > PATH_MAX {
        return Err(format!("the path has {} bytes, the limit is {PATH_MAX}", path.len()));
    }
    if path.contains(&0) {
        return Err("a name with a NUL byte".to_owned());
    }
    let mut components = Vec::new();
    for component in path.split(|b| *b == b'/') {
        match component {
            b"" | b"." => {}
            b".." => match components.pop() {
                Some(_) => {}
                None => return Err("would lie outside of the root file system".to_owned()),
            },
            name if name.len() > NAME_MAX => {
                return Err(format!("the name has {} bytes, the limit is {NAME_MAX}", name.len()));
            }
            name => components.push(name),
        }
    }
    Ok(components)
}
