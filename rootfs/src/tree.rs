//! The names of one layer, held in memory while its data streams to disk.
//!
//! Decides what a tar member's name means: within the layer's own root, later
//! members replacing earlier ones, whiteouts as overlayfs wants them. Knows
//! neither tar nor EROFS; inodes are numbers that `erofs` gave out.

use std::collections::{BTreeMap, HashMap};

use crate::erofs::{Attributes, Namespace, Nid};

/// Longest name of a file, in bytes.
const NAME_MAX: usize = 255;
/// Longest path of a member, in bytes.
const PATH_MAX: usize = 4096;
/// Symbolic links followed for one name, as in the kernel.
const SYMLINKS_MAX: usize = 40;
/// Names that mark what a layer removes.
const WHITEOUT: &[u8] = b".wh.";
/// Names of AUFS's own, of which only the mark of an opaque directory means anything.
const WHITEOUT_META: &[u8] = b".wh..wh.";
const WHITEOUT_OPAQUE: &[u8] = b".wh..wh..opq";

/// The trusted attribute of directories that the layer does not describe, and of
/// all on the way to them. `assemble::implied` looks for it.
pub(crate) const MARK: &[u8] = b"nodlet.implied";
/// Its value where the directory itself is such a one.
pub(crate) const IMPLIED: &[u8] = b"y";
/// Its value on the way.
const ON_THE_WAY: &[u8] = b"n";

pub(crate) type DirectoryIndex = usize;
pub(crate) const ROOT: DirectoryIndex = 0;

#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) parent: DirectoryIndex,
    pub(crate) attributes: Attributes,
    /// The layer uses it and does not describe it.
    implied: bool,
    /// Hides what lower layers have in it.
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
    /// Hides what lower layers have under this name.
    Whiteout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherKind {
    File,
    CharacterDevice,
    BlockDevice,
    Fifo,
}

/// A place for a member: a directory and a name in it.
#[derive(Debug)]
pub(crate) enum Place {
    /// The layer's root itself.
    Root,
    In(DirectoryIndex, Box<[u8]>),
    /// `.wh.<name>`
    Whiteout(DirectoryIndex, Box<[u8]>),
    /// `.wh..wh..opq`
    Opaque(DirectoryIndex),
    /// Bookkeeping of an old storage driver.
    Ignored,
}

/// How much of a layer's names is held in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) entries: usize,
    /// Of the entries: one takes six times as much as a file.
    pub(crate) directories: usize,
    pub(crate) name_bytes: usize,
    /// Components of names that are looked up: forty links of two thousand each may
    /// stand for one of them, and every member may have them on its way.
    pub(crate) steps: usize,
}

/// The names of one layer.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) directories: Vec<Directory>,
    /// Names of each inode that has, or had, more than one.
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

    /// Where a member of this name goes. Directories on the way that the layer
    /// does not name are implied.
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

    /// Puts a directory there, or changes the attributes of the one there is.
    pub(crate) fn put_directory(
        &mut self,
        parent: DirectoryIndex,
        name: Box<[u8]>,
        attributes: Attributes,
    ) -> Result<(), String> {
        let index = self.directory(parent, &name)?;
        self.set_attributes(index, attributes)
    }

    /// Changes what a directory says of itself; it is kept until all is written.
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

    /// When all members are in: takes whiteouts away where all is hidden anyway, and marks
    /// the directories of which lower layers may know more.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        let count = self.directories.len();
        // A directory comes after the one it is in.
        let mut hides = vec![false; count];
        for index in 0..count {
            let directory = &self.directories[index];
            hides[index] = directory.opaque || hides[directory.parent];
            if hides[index] {
                // Overlayfs does not look for them where it merges nothing, and would list them.
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

    /// Puts anything but a directory there, in place of what there is.
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

    /// Gives the inode that `target` names one name more.
    pub(crate) fn link(
        &mut self,
        parent: DirectoryIndex,
        name: Box<[u8]>,
        target: &[u8],
    ) -> Result<(), String> {
        let shown = crate::members::shown(target);
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

    /// Hides the name in lower layers. What this layer has there stays: a
    /// whiteout speaks of the layers below only.
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

    /// The directory at a path, made where the layer does not name it.
    fn walk(&mut self, components: &[&[u8]]) -> Result<DirectoryIndex, String> {
        match self.follow(components, true)? {
            Some(index) => Ok(index),
            None => Err("parent directory could not be made".to_owned()),
        }
    }

    /// The directory at a path, if there is one.
    fn find(&mut self, components: &[&[u8]]) -> Result<Option<DirectoryIndex>, String> {
        self.follow(components, false)
    }

    /// Follows the layer's own symbolic links, never out of the root.
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
                    return Err(format!("its parent {} is not a directory", crate::members::shown(&name)));
                }
                Some(Child::Whiteout) | None if !make => return Ok(None),
                Some(Child::Whiteout) | None => self.directory(at, &name)?,
            };
        }
        Ok(Some(at))
    }

    /// The directory of this name, made if it is none yet.
    fn directory(&mut self, parent: DirectoryIndex, name: &[u8]) -> Result<DirectoryIndex, String> {
        if name.len() > NAME_MAX {
            return Err(format!("a name of {} bytes: at most {NAME_MAX} are possible", name.len()));
        }
        let opaque = match self.directories[parent].children.get(name) {
            Some(Child::Directory(index)) => return Ok(*index),
            // The name is hidden below and made anew here.
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

    /// Takes a name away, and a directory's names with it.
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
        match self.name_bytes > self.bounds.name_bytes {
            true => Err(format!(
                "more than {} bytes of names and of directories' attributes in one layer",
                self.bounds.name_bytes
            )),
            false => Ok(()),
        }
    }
}

/// The components of a member's name. A leading slash is no more than the
/// root, as in tar; what climbs out of the root is refused.
fn clean(path: &[u8]) -> Result<Vec<&[u8]>, String> {
    if path.len() > PATH_MAX {
        return Err(format!("a path of {} bytes: at most {PATH_MAX} are possible", path.len()));
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
                return Err(format!("a name of {} bytes: at most {NAME_MAX} are possible", name.len()));
            }
            name => components.push(name),
        }
    }
    Ok(components)
}
