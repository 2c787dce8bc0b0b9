//! Writes inodes and file data as they arrive. Read next: `finish.rs`, which completes the image.

use std::io::{self, Read};

use crate::attributes::{Attributes, Nid};
use crate::content::{ContentError, File, read_block};
use crate::xattr;

pub(crate) const BLOCK: usize = 4096;
pub(crate) const SLOT: u64 = 32;
/// The size of an extended inode.
pub(crate) const INODE: usize = 64;

pub(super) const SUPERBLOCK: usize = 1024;
const SUPERBLOCK_SIZE: usize = 128;
/// The offset of the root's inode. The superblock has only 16 bits for it, so the inode is in the first
/// block, though it is written last.
pub(super) const ROOT_INODE: usize = SUPERBLOCK + SUPERBLOCK_SIZE;

pub(super) const FLAT_PLAIN: u16 = 0;
/// The inode format in which the tail of the data follows the inode in its block.
pub(super) const FLAT_INLINE: u16 = 2;

/// The most metadata blocks that are open at once. More would pack tighter; each takes 4 KiB of memory.
const OPEN_BLOCKS: usize = 8;
/// The size in bytes of the chunks in which data is written.
pub(super) const BUFFER: usize = 128 * 1024;
/// Runs of at least this many zero blocks become a hole in the file.
const HOLE_BLOCKS: u64 = 16;

pub(crate) const S_IFIFO: u16 = 0o010000;
pub(crate) const S_IFCHR: u16 = 0o020000;
pub(crate) const S_IFDIR: u16 = 0o040000;
pub(crate) const S_IFBLK: u16 = 0o060000;
pub(crate) const S_IFREG: u16 = 0o100000;
pub(crate) const S_IFLNK: u16 = 0o120000;

/// Why an image could not be written.
#[derive(Debug)]
pub(crate) enum ErofsError {
    /// The file's content could not be read.
    Read(io::Error),
    Write(ContentError),
    /// The format or one of nodlet's bounds does not allow this input.
    Refused(String),
}

impl From<ContentError> for ErofsError {
    fn from(error: ContentError) -> ErofsError {
        ErofsError::Write(error)
    }
}

/// A metadata block with free space.
pub(super) struct OpenBlock {
    pub(super) number: u64,
    used: usize,
    pub(super) bytes: Box<[u8; BLOCK]>,
}

/// An image being written.
pub(crate) struct Writer {
    pub(super) file: File,
    pub(super) blocks: u64,
    blocks_max: u64,
    pub(super) inodes: u64,
    pub(super) open: Vec<OpenBlock>,
    /// Data that is not written yet, and the number of its first block.
    buffer: Vec<u8>,
    buffer_block: u64,
    /// The number of zero blocks that follow the buffer and may become a hole.
    zeros: u64,
}

/// The fields of an inode that depend on its kind.
pub(super) struct Inode<'a> {
    pub(super) format: u16,
    pub(super) kind: u16,
    pub(super) attributes: &'a Attributes,
    pub(super) size: u64,
    /// The first data block, or the device number.
    pub(super) union: u32,
    pub(super) links: u32,
}

impl Writer {
    /// Begins an image of at most `bytes_max` bytes.
    pub(crate) fn new(file: File, bytes_max: u64) -> Writer {
        Writer {
            file,
            // The superblock takes the first block.
            blocks: 1,
            blocks_max: (bytes_max / BLOCK as u64).min(u64::from(u32::MAX)),
            inodes: 0,
            open: Vec::with_capacity(OPEN_BLOCKS),
            buffer: Vec::with_capacity(BUFFER),
            buffer_block: 1,
            zeros: 0,
        }
    }

    /// Writes a regular file with the data read from `content`.
    pub(crate) fn file(
        &mut self,
        attributes: &Attributes,
        content: &mut dyn Read,
    ) -> Result<Nid, ErofsError> {
        self.with_data(S_IFREG, attributes, content)
    }

    pub(crate) fn symlink(&mut self, attributes: &Attributes, target: &[u8]) -> Result<Nid, ErofsError> {
        let attributes = Attributes { mode: 0o777, ..attributes.clone() };
        self.with_data(S_IFLNK, &attributes, &mut &*target)
    }

    /// Writes a device node or, with number 0:0, a fifo.
    pub(crate) fn node(
        &mut self,
        kind: u16,
        attributes: &Attributes,
        device: (u32, u32),
        links: u32,
    ) -> Result<Nid, ErofsError> {
        let (major, minor) = device;
        if major > 0xfff || minor > 0xf_ffff {
            return Err(ErofsError::Refused(format!("device {major}:{minor} is not a valid Linux device")));
        }
        let union = (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12);
        let inode = Inode { format: FLAT_PLAIN, kind, attributes, size: 0, union, links };
        self.inode(&inode, &[])
    }

    fn with_data(
        &mut self,
        kind: u16,
        attributes: &Attributes,
        content: &mut dyn Read,
    ) -> Result<Nid, ErofsError> {
        self.settle()?;
        let first_block = self.blocks;
        let mut block = [0; BLOCK];
        let mut size = 0;
        let tail = loop {
            let length = read_block(content, &mut block).map_err(ErofsError::Read)?;
            size += length as u64;
            if length < BLOCK {
                break length;
            }
            self.data_block(&block)?;
        };
        let inline = INODE + attributes.xattrs.size() + tail <= BLOCK;
        if tail > 0 && !inline {
            block[tail..].fill(0);
            self.data_block(&block)?;
        }
        self.settle()?;
        let (format, tail) =
            if tail > 0 && inline { (FLAT_INLINE, &block[..tail]) } else { (FLAT_PLAIN, &[][..]) };
        let has_blocks = self.blocks > first_block;
        let union = if has_blocks { first_block as u32 } else { 0 };
        self.inode(&Inode { format, kind, attributes, size, union, links: 1 }, tail)
    }

    /// Appends one block of data to the current run.
    fn data_block(&mut self, block: &[u8; BLOCK]) -> Result<(), ErofsError> {
        self.allocate(1)?;
        // No block of zeros to compare with or to copy: it would be 4 KiB of the binary.
        if block.as_chunks::<8>().0.iter().all(|bytes| *bytes == [0; 8]) {
            self.zeros += 1;
            return Ok(());
        }
        if self.zeros >= HOLE_BLOCKS {
            let next = self.blocks - 1;
            self.flush()?;
            self.zeros = 0;
            self.buffer_block = next;
        }
        for _ in 0..std::mem::take(&mut self.zeros) {
            self.buffer.resize(self.buffer.len() + BLOCK, 0);
            self.flush_if_full()?;
        }
        self.buffer.extend_from_slice(block);
        self.flush_if_full()
    }

    fn flush_if_full(&mut self) -> Result<(), ErofsError> {
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ErofsError> {
        if !self.buffer.is_empty() {
            self.file.write_at(&self.buffer, self.buffer_block * BLOCK as u64)?;
            self.buffer_block += (self.buffer.len() / BLOCK) as u64;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Ends a run of data, so that the next allocated block need not follow it.
    fn settle(&mut self) -> Result<(), ErofsError> {
        self.flush()?;
        // The length of the file is set when the image is finished.
        self.zeros = 0;
        self.buffer_block = self.blocks;
        Ok(())
    }

    pub(super) fn allocate(&mut self, blocks: u64) -> Result<u64, ErofsError> {
        let first = self.blocks;
        self.blocks += blocks;
        if self.blocks > self.blocks_max { Err(self.too_large()) } else { Ok(first) }
    }

    /// Rejects this many bytes before anything is written, if they would not fit.
    pub(crate) fn require(&self, bytes: u64) -> Result<(), ErofsError> {
        if bytes.div_ceil(BLOCK as u64) > self.blocks_max.saturating_sub(self.blocks) {
            Err(self.too_large())
        } else {
            Ok(())
        }
    }

    fn too_large(&self) -> ErofsError {
        let bytes = self.blocks_max * BLOCK as u64;
        ErofsError::Refused(format!("the layer unpacks to more than {bytes} bytes"))
    }

    /// Places an inode, its attributes and its tail in a block with enough space.
    fn inode(&mut self, inode: &Inode<'_>, tail: &[u8]) -> Result<Nid, ErofsError> {
        self.inodes += 1;
        let mut bytes = inode.encode(self.inodes)?;
        bytes.extend_from_slice(tail);
        bytes.resize(bytes.len().next_multiple_of(SLOT as usize), 0);
        if bytes.len() > BLOCK {
            // Large attributes get a run of blocks of their own.
            bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
            let first = self.allocate((bytes.len() / BLOCK) as u64)?;
            self.file.write_at(&bytes, first * BLOCK as u64)?;
            self.buffer_block = self.blocks;
            return Ok(first * BLOCK as u64 / SLOT);
        }
        let best = self
            .open
            .iter()
            .enumerate()
            .filter(|(_, block)| BLOCK - block.used >= bytes.len())
            .max_by_key(|(_, block)| block.used)
            .map(|(index, _)| index);
        let index = match best {
            Some(index) => index,
            None => self.open_block()?,
        };
        let block = &mut self.open[index];
        let offset = block.used;
        block.bytes[offset..offset + bytes.len()].copy_from_slice(&bytes);
        block.used += bytes.len();
        Ok((block.number * BLOCK as u64 + offset as u64) / SLOT)
    }

    fn open_block(&mut self) -> Result<usize, ErofsError> {
        if self.open.len() == OPEN_BLOCKS {
            let fullest = (0..self.open.len()).max_by_key(|index| self.open[*index].used).unwrap_or(0);
            let block = self.open.remove(fullest);
            self.file.write_at(&*block.bytes, block.number * BLOCK as u64)?;
        }
        let number = self.allocate(1)?;
        self.buffer_block = self.blocks;
        self.open.push(OpenBlock { number, used: 0, bytes: Box::new([0; BLOCK]) });
        Ok(self.open.len() - 1)
    }
}

impl Inode<'_> {
    pub(super) fn encode(&self, number: u64) -> Result<Vec<u8>, ErofsError> {
        let xattrs = self.attributes.xattrs.encode();
        let xattr_count = self.attributes.xattrs.count_field().map_err(ErofsError::Refused)?;
        let mut bytes = Vec::with_capacity(INODE + xattrs.len());
        bytes.extend_from_slice(&(self.format << 1 | 1).to_le_bytes());
        bytes.extend_from_slice(&xattr_count.to_le_bytes());
        bytes.extend_from_slice(&(self.kind | self.attributes.mode & 0o7777).to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&self.size.to_le_bytes());
        bytes.extend_from_slice(&self.union.to_le_bytes());
        bytes.extend_from_slice(&(number as u32).to_le_bytes());
        bytes.extend_from_slice(&self.attributes.uid.to_le_bytes());
        bytes.extend_from_slice(&self.attributes.gid.to_le_bytes());
        bytes.extend_from_slice(&self.attributes.mtime.seconds.to_le_bytes());
        bytes.extend_from_slice(&self.attributes.mtime.nanoseconds.to_le_bytes());
        bytes.extend_from_slice(&self.links.to_le_bytes());
        bytes.extend_from_slice(&[0; 16]);
        bytes.extend_from_slice(&xattrs);
        Ok(bytes)
    }
}

/// The range of a regular file's tail within a metadata block, if an inode with a tail seems to begin at this
/// byte. What looks like an inode may be arbitrary data: only the bounds of the range are certain.
pub(crate) fn inline_tail(block: &[u8; BLOCK], at: usize) -> Option<std::ops::Range<usize>> {
    let inode = block.get(at..at + INODE)?;
    let short = |at: usize| u16::from_le_bytes([inode[at], inode[at + 1]]);
    if short(0) != FLAT_INLINE << 1 | 1 || short(4) & 0o170000 != S_IFREG || short(6) != 0 {
        return None;
    }
    let tail = (u64::from_le_bytes(inode[8..16].try_into().ok()?) % BLOCK as u64) as usize;
    let start = at + INODE + xattr::size_of_count(short(2));
    (tail > 0 && start + tail <= BLOCK).then(|| start..start + tail)
}
