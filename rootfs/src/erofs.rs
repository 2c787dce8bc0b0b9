//! A streaming writer of EROFS, the kernel's read-only file system: file data is written to disk as it
//! arrives, inodes fill blocks between it, directories follow when all names are known, and the superblock is
//! written last.
//!
//! Memory holds a few open metadata blocks and the names that the caller keeps, but never data. The same
//! input gives the same bytes. Images are uncompressed, with 4 KiB blocks and only extended inodes (every
//! file has an mtime of its own). The format: Linux, `fs/erofs/erofs_fs.h` and
//! `Documentation/filesystems/erofs.rst`.

mod directories;
mod finish;
mod writer;

pub(crate) use finish::Finished;
pub(crate) use writer::{BLOCK, ErofsError, INODE, S_IFBLK, S_IFCHR, S_IFIFO, SLOT, Writer, inline_tail};

#[cfg(test)]
mod tests;
