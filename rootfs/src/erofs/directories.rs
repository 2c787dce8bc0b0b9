//! The directories of an image, written when all names are known.
//!
//! Two passes use the same order. The first assigns each directory its place, which depends only on the
//! lengths of its names. The second writes, when every inode that a name can refer to has its number.

use super::writer::{
    BLOCK, BUFFER, ErofsError, FLAT_INLINE, FLAT_PLAIN, INODE, Inode, ROOT_INODE, S_IFDIR, SLOT, Writer,
};
use crate::attributes::{Attributes, Nid};
use crate::tree::{Child, DirectoryIndex, OtherKind, ROOT, Tree};
use crate::xattr::Namespace;

/// The size of a directory entry without its name.
const ENTRY: usize = 12;

/// The place of a directory in the image.
#[derive(Clone, Copy, Default)]
struct Placed {
    nid: Nid,
    size: u64,
    inline: bool,
    /// The directory's first data block, relative to the first of all directories.
    block: u64,
}

/// The number of names that hide something in lower layers.
pub(super) fn whiteouts(tree: &Tree) -> usize {
    reachable(tree)
        .into_iter()
        .flat_map(|index| tree.directories[index].children.values())
        .filter(|child| matches!(child, Child::Whiteout))
        .count()
}

/// All directories that still have a name, parents first, in the order of names.
fn reachable(tree: &Tree) -> Vec<DirectoryIndex> {
    let mut order = vec![ROOT];
    let mut next = 0;
    while let Some(index) = order.get(next).copied() {
        next += 1;
        order.extend(tree.directories[index].children.values().filter_map(|child| match child {
            Child::Directory(index) => Some(*index),
            Child::Symlink { .. } | Child::Other { .. } | Child::Whiteout => None,
        }));
    }
    order
}

impl Writer {
    /// Writes all directories; the root's inode goes into the first block.
    pub(super) fn directories(
        &mut self,
        tree: &Tree,
        whiteout: Option<Nid>,
        first: &mut [u8; BLOCK],
    ) -> Result<(), ErofsError> {
        let order = reachable(tree);
        let start = self.blocks * BLOCK as u64;
        let mut places = vec![Placed::default(); tree.directories.len()];
        let (mut cursor, mut data_blocks) = (start, 0);
        for index in order.iter().copied() {
            // All blocks but the last count in full.
            let size = blocks_of(tree, index)
                .fold(0u64, |size, block| size.next_multiple_of(BLOCK as u64) + block.used as u64);
            let head = INODE + attributes(tree, index)?.xattrs.size();
            let tail = (size % BLOCK as u64) as usize;
            let room = if index == ROOT { BLOCK - ROOT_INODE } else { BLOCK };
            let inline = tail > 0 && head + tail <= room;
            let nid = match index {
                ROOT if head > room => {
                    let problem = "the extended attributes of the root directory take more than 2 KiB";
                    return Err(ErofsError::Refused(problem.to_owned()));
                }
                ROOT => ROOT_INODE as u64 / SLOT,
                _ => {
                    let length =
                        (head + if inline { tail } else { 0 }).next_multiple_of(SLOT as usize) as u64;
                    if cursor % BLOCK as u64 + length > BLOCK as u64 {
                        cursor = cursor.next_multiple_of(BLOCK as u64);
                    }
                    let nid = cursor / SLOT;
                    cursor += length;
                    nid
                }
            };
            places[index] = Placed { nid, size, inline, block: data_blocks };
            data_blocks += if inline { size / BLOCK as u64 } else { size.div_ceil(BLOCK as u64) };
        }
        let inode_blocks = (cursor - start).div_ceil(BLOCK as u64);
        let first_inode = self.allocate(inode_blocks)? * BLOCK as u64;
        let first_data = self.allocate(data_blocks)?;

        let mut pending = Vec::new();
        let mut pending_at = first_inode;
        for index in order {
            let place = places[index];
            let mut tail = Vec::new();
            let mut at = (first_data + place.block) * BLOCK as u64;
            let mut blocks = blocks_of(tree, index).peekable();
            while let Some(block) = blocks.next() {
                let mut bytes = block.encode(tree, index, &places, whiteout);
                if place.inline && blocks.peek().is_none() {
                    tail = bytes;
                } else {
                    bytes.resize(BLOCK, 0);
                    self.file.write_at(&bytes, at)?;
                    at += BLOCK as u64;
                }
            }
            let subdirectories = tree.directories[index]
                .children
                .values()
                .filter(|child| matches!(child, Child::Directory(_)))
                .count();
            self.inodes += 1;
            let has_blocks = place.size > tail.len() as u64;
            let inode = Inode {
                format: if place.inline { FLAT_INLINE } else { FLAT_PLAIN },
                kind: S_IFDIR,
                attributes: &attributes(tree, index)?,
                size: place.size,
                union: if has_blocks { (first_data + place.block) as u32 } else { 0 },
                links: u32::try_from(subdirectories).unwrap_or(u32::MAX - 2) + 2,
            };
            let mut bytes = inode.encode(self.inodes)?;
            bytes.extend_from_slice(&tail);
            if index == ROOT {
                first[ROOT_INODE..ROOT_INODE + bytes.len()].copy_from_slice(&bytes);
                continue;
            }
            pending.resize((place.nid * SLOT - pending_at) as usize, 0);
            pending.extend_from_slice(&bytes);
            if pending.len() >= BUFFER {
                self.file.write_at(&pending, pending_at)?;
                pending_at += pending.len() as u64;
                pending.clear();
            }
        }
        if !pending.is_empty() {
            self.file.write_at(&pending, pending_at)?;
        }
        Ok(())
    }
}

/// The directory's attributes, including overlayfs's mark if it is opaque.
fn attributes(tree: &Tree, index: DirectoryIndex) -> Result<Attributes, ErofsError> {
    let directory = &tree.directories[index];
    let mut attributes = directory.attributes.clone();
    if directory.opaque {
        attributes.xattrs.push(Namespace::Trusted, b"overlay.opaque", b"y").map_err(ErofsError::Refused)?;
    }
    Ok(attributes)
}

/// One block of a directory: entries, then their names.
struct Block<'a> {
    names: Vec<(&'a [u8], Option<&'a Child>)>,
    used: usize,
}

/// A directory's names, by blocks. They are sorted as bytes, including `.` and `..`, because the kernel uses
/// binary search.
fn blocks_of(tree: &Tree, index: DirectoryIndex) -> impl Iterator<Item = Block<'_>> {
    let mut dots = [&b"."[..], b".."].into_iter().peekable();
    let mut children = tree.directories[index].children.iter().peekable();
    let mut names = std::iter::from_fn(move || match (dots.peek(), children.peek()) {
        (Some(dot), Some((name, _))) if **dot > ***name => {
            children.next().map(|(name, child)| (&**name, Some(child)))
        }
        (Some(_), _) => dots.next().map(|dot| (dot, None)),
        (None, _) => children.next().map(|(name, child)| (&**name, Some(child))),
    })
    .peekable();
    std::iter::from_fn(move || {
        names.peek()?;
        let mut block = Block { names: Vec::new(), used: 0 };
        while let Some((name, child)) = names.next_if(|(name, _)| block.used + ENTRY + name.len() <= BLOCK) {
            block.used += ENTRY + name.len();
            block.names.push((name, child));
        }
        Some(block)
    })
}

impl Block<'_> {
    fn encode(&self, tree: &Tree, of: DirectoryIndex, places: &[Placed], whiteout: Option<Nid>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BLOCK);
        let mut name_offset = self.names.len() * ENTRY;
        for (name, child) in &self.names {
            let (nid, kind) = match child {
                None if *name == b"." => (places[of].nid, 2),
                None => (places[tree.directories[of].parent].nid, 2),
                Some(Child::Directory(index)) => (places[*index].nid, 2),
                Some(Child::Symlink { nid, .. }) => (*nid, 7),
                Some(Child::Other { nid, kind }) => match kind {
                    OtherKind::File => (*nid, 1),
                    OtherKind::CharacterDevice => (*nid, 3),
                    OtherKind::BlockDevice => (*nid, 4),
                    OtherKind::Fifo => (*nid, 5),
                },
                Some(Child::Whiteout) => (whiteout.unwrap_or_default(), 3),
            };
            bytes.extend_from_slice(&nid.to_le_bytes());
            bytes.extend_from_slice(&(name_offset as u16).to_le_bytes());
            bytes.extend_from_slice(&[kind, 0]);
            name_offset += name.len();
        }
        self.names.iter().for_each(|(name, _)| bytes.extend_from_slice(name));
        bytes
    }
}
