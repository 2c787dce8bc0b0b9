//! The file of a log, read without the loop ever waiting for flash.
//!
//! Pages in memory, where the newest lines of a log nearly always are, are read at once. The storage thread reads
//! the rest.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use nodlet_kernel::file::read_cached;

use crate::storage_thread::Storage;

/// The number of bytes in which the last lines are searched. A log is rotated long before it is as large; a
/// file that a pod puts in its place may have any size, and no line feed.
const TAIL: u64 = 64 << 20;

/// A file of a log, and the position up to which it was read.
pub(super) struct LogFile {
    file: Arc<File>,
    position: u64,
    /// Where reading ends, whatever is appended later.
    end: u64,
    storage: Storage,
}

impl LogFile {
    /// A file that is read as far as it is written now, or with `follow` as far as it is ever written.
    pub(super) fn new(file: File, storage: Storage, follow: bool) -> LogFile {
        let end = if follow { u64::MAX } else { file.metadata().map_or(u64::MAX, |metadata| metadata.len()) };
        LogFile { file: Arc::new(file), position: 0, end, storage }
    }

    /// Reads the next bytes into `block`. Returns their number, which is 0 at the end of the file.
    pub(super) async fn read(&mut self, block: &mut Vec<u8>) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.position)).unwrap_or(usize::MAX);
        if left == 0 {
            return Ok(0);
        }
        let read = self.read_at(block, self.position).await?.min(left);
        self.position += read as u64;
        Ok(read)
    }

    /// Whether this is the same file as `other`.
    pub(super) fn is(&self, other: &File) -> bool {
        let place = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino())).ok();
        place(&self.file) == place(other)
    }

    /// Whether the file has more bytes than were read.
    pub(super) fn has_more(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.len() > self.position)
    }

    /// Moves to the beginning of the last `lines` lines, reading backwards block by block. Other clients are
    /// served between two blocks.
    pub(super) async fn seek_to_tail(&mut self, block: &mut Vec<u8>, lines: u64) -> io::Result<()> {
        let end = self.file.metadata()?.len().min(self.end);
        self.position = end;
        if lines == 0 {
            return Ok(());
        }
        let whole = block.len() as u64;
        // The line feed that ends the last line does not begin one.
        let mut to_see = lines.saturating_add(1);
        while self.position > end.saturating_sub(TAIL) {
            let size = self.position.min(whole);
            self.position -= size;
            block.truncate(size as usize);
            self.fill(block).await?;
            for index in memchr::memrchr_iter(b'\n', block) {
                to_see -= 1;
                if to_see == 0 {
                    self.position += index as u64 + 1;
                    block.resize(whole as usize, 0);
                    return Ok(());
                }
            }
            smol::future::yield_now().await;
        }
        block.resize(whole as usize, 0);
        Ok(())
    }

    /// Fills `block` from the current position, which does not change.
    async fn fill(&self, block: &mut Vec<u8>) -> io::Result<()> {
        let mut read = self.read_at(block, self.position).await?;
        while read < block.len() {
            let mut rest = vec![0; block.len() - read];
            let more = self.read_at(&mut rest, self.position + read as u64).await?;
            if more == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            block[read..][..more].copy_from_slice(&rest[..more]);
            read += more;
        }
        Ok(())
    }

    async fn read_at(&self, block: &mut Vec<u8>, position: u64) -> io::Result<usize> {
        match read_cached(self.file.as_fd(), block, position) {
            Err(error) if is_not_cached(&error) => {}
            read => return read,
        }
        let (file, mut taken) = (self.file.clone(), std::mem::take(block));
        let read = self.storage.read(move || {
            let read = file.read_at(&mut taken, position);
            (taken, read)
        });
        let (taken, read) = read.await;
        *block = taken;
        read
    }
}

/// Whether the error means that a read must wait for the device, that the file system cannot know, or that
/// the kernel does not support the flag.
fn is_not_cached(error: &io::Error) -> bool {
    [libc::EAGAIN, libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSYS].map(Some).contains(&error.raw_os_error())
}
