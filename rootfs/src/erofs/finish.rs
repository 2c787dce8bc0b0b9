//! Completes an image: whiteouts, directories and the superblock.

use super::directories;
use super::writer::{BLOCK, ErofsError, ROOT_INODE, S_IFCHR, SLOT, SUPERBLOCK, Writer};
use crate::attributes::{Attributes, Nid};
use crate::reference::Digest;
use crate::tree::Tree;

/// The offset of `i_nlink` in an extended inode.
const INODE_NLINK: u64 = 44;
const MAGIC: u32 = 0xe0f5_e1e2;

/// The flag that says that the superblock has a checksum.
const FEATURE_COMPAT_SB_CHKSUM: u32 = 1;
/// The flag that says that timestamps are mtimes.
const FEATURE_COMPAT_MTIME: u32 = 2;

impl Writer {
    /// Writes whiteouts, directories and the superblock, and syncs the file. `id` becomes the file system's
    /// UUID.
    pub(crate) fn finish(mut self, tree: &Tree, id: &Digest) -> Result<Finished, ErofsError> {
        let whiteouts = directories::whiteouts(tree);
        let whiteout = match u32::try_from(whiteouts) {
            Ok(0) => None,
            Ok(count) => Some(self.node(S_IFCHR, &Attributes::default(), (0, 0), count)?),
            Err(_) => return Err(ErofsError::Refused("more whiteouts than EROFS can count".to_owned())),
        };
        for block in std::mem::take(&mut self.open) {
            self.file.write_at(&*block.bytes, block.number * BLOCK as u64)?;
        }
        let mut counts: Vec<(&Nid, &u32)> = tree.link_counts.iter().collect();
        counts.sort();
        for (nid, count) in counts {
            self.file.write_at(&count.to_le_bytes(), nid * SLOT + INODE_NLINK)?;
        }
        let mut first = [0; BLOCK];
        self.directories(tree, whiteout, &mut first)?;
        self.superblock(&mut first, id);
        self.file.write_at(&first, 0)?;
        let bytes = self.blocks * BLOCK as u64;
        self.file.set_length(bytes)?;
        self.file.sync()?;
        Ok(Finished { bytes, written: self.file.written() })
    }

    fn superblock(&self, block: &mut [u8; BLOCK], id: &Digest) {
        let mut put = |offset: usize, bytes: &[u8]| {
            block[SUPERBLOCK + offset..SUPERBLOCK + offset + bytes.len()].copy_from_slice(bytes);
        };
        let features = FEATURE_COMPAT_SB_CHKSUM | FEATURE_COMPAT_MTIME;
        let root_nid = (ROOT_INODE as u64 / SLOT) as u16;
        put(0, &MAGIC.to_le_bytes());
        put(8, &features.to_le_bytes());
        put(12, &[BLOCK.trailing_zeros() as u8]);
        put(14, &root_nid.to_le_bytes());
        put(16, &self.inodes.to_le_bytes());
        put(36, &(self.blocks as u32).to_le_bytes());
        put(48, &id.bytes()[..16]);
        let checksum = crc32c(&block[SUPERBLOCK..]);
        block[SUPERBLOCK + 4..SUPERBLOCK + 8].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// A complete and durable image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    /// The image's length.
    pub(crate) bytes: u64,
    /// Bytes that were written for the image.
    pub(crate) written: u64,
}

/// CRC-32C as the kernel computes it, without inversion at the end.
fn crc32c(bytes: &[u8]) -> u32 {
    bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}
