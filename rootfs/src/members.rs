//! The members of a tar stream, in one pass and in bounded memory.
//!
//! The `tar` crate decodes headers. This module implements the walk from one header to the next, because long
//! names and PAX records must be capped while they are read, every form of sparse file must be expanded, and
//! a size in a PAX record must mean the same here as to the tools that made the archive (Go's, mostly).
//! `layer` and `archive` interpret the members.

use std::io::{self, Read};
use std::ops::Range;

use tar::{EntryType, GnuExtSparseHeader, Header};

use crate::content::read_block;
use crate::tar_error::{TarError, shown};

mod pax;
mod sparse;

use pax::Extensions;
use sparse::SEGMENTS_MAX;
pub(crate) use sparse::Segment;

const BLOCK: u64 = 512;
/// The most bytes of long names, long links and PAX records of one member. Linux caps a file's extended
/// attributes at 64 KiB, and base64 and names add to that.
const EXTENSION_MAX: u64 = 256 * 1024;
/// The most empty bytes after the end of an archive. Tools pad it to the length of a record, at most 1 MiB.
const PADDING_MAX: u64 = 16 * 1024 * 1024;

// The ranges of numbers in a header.
const MODE: Range<usize> = 100..108;
const UID: Range<usize> = 108..116;
const GID: Range<usize> = 116..124;
const SIZE: Range<usize> = 124..136;
const MTIME: Range<usize> = 136..148;
const MAJOR: Range<usize> = 329..337;
const MINOR: Range<usize> = 337..345;

/// The type of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    HardLink,
    Symlink,
    CharacterDevice,
    BlockDevice,
    Directory,
    Fifo,
}

/// Seconds and nanoseconds since 1970; earlier times have negative seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timestamp {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
}

/// One member's header, including its PAX and GNU extensions.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) path: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Timestamp,
    pub(crate) device: (u32, u32),
    /// Bytes of the file, holes included.
    pub(crate) size: u64,
    /// Extended attributes. Their names include the prefix, as in `user.x`.
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The offset of the member's data in the stream.
    pub(crate) offset: u64,
}

fn is_empty(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

/// A function that skips unneeded data.
pub(crate) type Skip<R> = fn(&mut R, u64) -> io::Result<()>;

/// A walk through a tar stream.
pub(crate) struct Members<R> {
    reader: R,
    skip: Skip<R>,
    position: u64,
    /// The offset of the current header.
    at: u64,
    /// The offset of the next header.
    next: u64,
    /// The parts of the current member that are still to be read, in order.
    segments: std::collections::VecDeque<Segment>,
}

impl<R: Read> Members<R> {
    pub(crate) fn new(reader: R) -> Members<R> {
        Members::with_skip(reader, |reader, bytes| {
            let skipped = io::copy(&mut reader.take(bytes), &mut io::sink())?;
            if skipped == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        })
    }

    /// A walk that skips data in its own way, such as by seeking.
    pub(crate) fn with_skip(reader: R, skip: Skip<R>) -> Members<R> {
        Members { reader, skip, position: 0, at: 0, next: 0, segments: Default::default() }
    }

    /// Proceeds to the next member. Skips the unread part of the current one.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, TarError> {
        let mut extensions = Extensions::default();
        loop {
            self.segments.clear();
            let gap = self.next - self.position;
            (self.skip)(&mut self.reader, gap).map_err(|source| TarError::read(self.position, source))?;
            self.position = self.next;
            let Some(header) = self.header()? else {
                return if extensions.any {
                    Err(self.wrong("a long name or PAX header without the member it describes"))
                } else {
                    Ok(None)
                };
            };
            let size = number(&header.as_bytes()[SIZE]).and_then(|size| u64::try_from(size).ok());
            let size = size.ok_or_else(|| self.wrong("size: must be an octal number"))?;
            let kind = header.entry_type();
            let bytes = match kind {
                EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader => {
                    self.extension(size)?
                }
                EntryType::XGlobalHeader => {
                    self.advance(size)?;
                    continue;
                }
                _ => return self.member(&header, extensions).map(Some),
            };
            extensions.any = true;
            match kind {
                EntryType::GNULongName => extensions.path = Some(until_nul(bytes)),
                EntryType::GNULongLink => extensions.link = Some(until_nul(bytes)),
                _ => extensions.read_pax(&bytes).map_err(|problem| self.wrong(&problem))?,
            }
        }
    }

    /// Whether the current member is stored without holes.
    pub(crate) fn is_plain(&self) -> bool {
        self.segments.len() == 1 && matches!(self.segments[0], Segment::Data(_))
    }

    /// Whether the stream has ended, or its end is marked, before any member.
    pub(crate) fn ended_at_once(&self) -> bool {
        self.at == 0
    }

    /// Ends the walk and returns the stream, for reading what follows the archive.
    pub(crate) fn into_inner(self) -> R {
        self.reader
    }

    /// Reads what follows the archive, to the end, so that a process that writes into a pipe is not cut off.
    /// Tools fill the last blocks with zeros; anything else is no part of the archive.
    pub(crate) fn finish(mut self) -> Result<(), TarError> {
        self.at = self.position;
        let mut block = [0; BLOCK as usize];
        loop {
            let read = read_block(&mut self.reader, &mut block);
            let read = read.map_err(|source| TarError::read(self.position, source))?;
            if !is_empty(&block[..read]) {
                return Err(self.wrong("data after its end: it is damaged, or more than one archive"));
            } else if read == 0 {
                return Ok(());
            } else if self.position - self.at >= PADDING_MAX {
                return Err(self.wrong("more than 16 MiB of zeros after its end: not a tar archive"));
            }
            self.position += read as u64;
        }
    }

    fn header(&mut self) -> Result<Option<Header>, TarError> {
        let mut header = Header::new_old();
        self.at = self.next;
        if !self.read_block(header.as_mut_bytes())? {
            return Ok(None);
        }
        self.next = self.position;
        if is_empty(header.as_bytes()) {
            return self.end().map(|()| None);
        }
        if !checksum_is_right(&header) {
            return Err(self.wrong("checksum mismatch: not a tar archive, or damaged"));
        }
        Ok(Some(header))
    }

    /// Checks the end of the archive, which is two empty blocks or the end of the file. A single empty block
    /// is rejected: Go rejects what follows it, GNU tar skips it, and users of either tool must see what
    /// runs.
    fn end(&mut self) -> Result<(), TarError> {
        let mut second = [0; BLOCK as usize];
        if self.read_block(&mut second)? && !is_empty(&second) {
            return Err(self.wrong("an empty block, which does not end the archive"));
        }
        self.next = self.position;
        Ok(())
    }

    /// Reads one block. Returns `false` at the end of the stream.
    fn read_block(&mut self, block: &mut [u8; 512]) -> Result<bool, TarError> {
        let filled = match read_block(&mut self.reader, block) {
            Ok(filled) if filled == 0 || filled == block.len() => filled,
            Ok(_) => return Err(TarError::read(self.position, io::ErrorKind::UnexpectedEof.into())),
            Err(source) => return Err(TarError::read(self.position, source)),
        };
        self.position += filled as u64;
        Ok(filled > 0)
    }

    fn advance(&mut self, size: u64) -> Result<(), TarError> {
        self.next = size
            .checked_next_multiple_of(BLOCK)
            .and_then(|padded| self.position.checked_add(padded))
            .ok_or_else(|| self.wrong("size: larger than any archive"))?;
        Ok(())
    }

    fn extension(&mut self, size: u64) -> Result<Vec<u8>, TarError> {
        if size > EXTENSION_MAX {
            let problem =
                format!("a long name or PAX header of {size} bytes: at most {EXTENSION_MAX} are accepted");
            return Err(self.wrong(&problem));
        }
        self.advance(size)?;
        let mut bytes = vec![0; size as usize];
        self.reader.read_exact(&mut bytes).map_err(|source| TarError::read(self.position, source))?;
        self.position += size;
        Ok(bytes)
    }

    fn member(&mut self, header: &Header, extensions: Extensions) -> Result<Member, TarError> {
        let path = extensions.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let refuse = |problem: String| TarError::Member { path: shown(&path), problem };
        let field = |name: &str, range: Range<usize>| {
            let value = number(&header.as_bytes()[range]);
            value.ok_or_else(|| refuse(format!("{name}: must be an octal number")))
        };
        let id = |name: &str, pax: Option<u64>, range: Range<usize>| {
            let value =
                pax.map_or_else(|| field(name, range), |pax| Ok(i64::try_from(pax).unwrap_or(i64::MAX)))?;
            u32::try_from(value).map_err(|_| refuse(format!("{name} {value}: not supported by Linux")))
        };
        let kind = match header.entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                if path.ends_with(b"/") {
                    // Before POSIX, a directory was a file whose name ends in a slash.
                    Kind::Directory
                } else {
                    Kind::File
                }
            }
            EntryType::Link => Kind::HardLink,
            EntryType::Symlink => Kind::Symlink,
            EntryType::Char => Kind::CharacterDevice,
            EntryType::Block => Kind::BlockDevice,
            EntryType::Directory => Kind::Directory,
            EntryType::Fifo => Kind::Fifo,
            other => {
                let problem = format!("type '{}' is not allowed in a layer", other.as_byte().escape_ascii());
                return Err(refuse(problem));
            }
        };
        // Only files have data; old tools write meaningless sizes for other members.
        let size = match (kind, extensions.size) {
            (Kind::File, Some(size)) => size,
            (Kind::File, None) => {
                field("size", SIZE)?.try_into().map_err(|_| refuse("size: below zero".to_owned()))?
            }
            (_, _) => 0,
        };
        let is_device = matches!(kind, Kind::CharacterDevice | Kind::BlockDevice);
        let device = |name: &str, range: Range<usize>| if is_device { id(name, None, range) } else { Ok(0) };
        let mtime = match extensions.mtime {
            Some(mtime) => mtime,
            None => Timestamp { seconds: field("mtime", MTIME)?, nanoseconds: 0 },
        };
        let mut member = Member {
            kind,
            mode: (field("mode", MODE)? & 0o7777) as u32,
            uid: id("uid", extensions.uid, UID)?,
            gid: id("gid", extensions.gid, GID)?,
            mtime,
            device: (device("device major number", MAJOR)?, device("device minor number", MINOR)?),
            size,
            xattrs: extensions.xattrs,
            link: extensions
                .link
                .or_else(|| header.link_name_bytes().map(|link| link.into_owned()))
                .unwrap_or_default(),
            offset: self.position,
            path,
        };
        self.segments = [Segment::Data(size)].into();
        let sparse = match (header.entry_type(), extensions.sparse) {
            (EntryType::GNUSparse, _) => Some(self.gnu_sparse(header)?),
            (_, Some(sparse)) if kind == Kind::File => Some(sparse),
            (_, _) => None,
        };
        let stored = size;
        let data_starts = self.position;
        self.advance(stored)?;
        if let Some(mut sparse) = sparse {
            if let Some(name) = sparse.name.take() {
                member.path = name;
            }
            let refuse = |problem: String| TarError::Member { path: shown(&member.path), problem };
            if sparse.map_in_data {
                let read = sparse.read_map(&mut self.reader, &mut self.position, stored);
                read.map_err(|error| error.of(&member.path))?;
            }
            let left = stored - (self.position - data_starts);
            self.segments = sparse.segments(left).map_err(refuse)?.into();
            member.size = sparse.real_size;
        }
        Ok(member)
    }

    /// Reads the map in an old GNU sparse header, and the blocks that extend it.
    fn gnu_sparse(&mut self, header: &Header) -> Result<sparse::Map, TarError> {
        let gnu = header.as_gnu().ok_or_else(|| self.wrong("type 'S' in a header that is not GNU's"))?;
        let wrong = |error: io::Error| format!("sparse map: {error}");
        let real_size = gnu.real_size().map_err(|e| self.wrong(&wrong(e)))?;
        let mut map = sparse::Map::of(real_size);
        let mut more = gnu.is_extended();
        for piece in gnu.sparse.iter().filter(|piece| !piece.is_empty()) {
            map.push_gnu(piece).map_err(|e| self.wrong(&wrong(e)))?;
        }
        while more {
            let mut block = GnuExtSparseHeader::new();
            if !self.read_block(block.as_mut_bytes())? {
                return Err(self.wrong("the archive ends within a sparse map"));
            }
            for piece in block.sparse.iter().filter(|piece| !piece.is_empty()) {
                map.push_gnu(piece).map_err(|e| self.wrong(&wrong(e)))?;
            }
            if map.pieces() > SEGMENTS_MAX {
                return Err(self.wrong(&format!("a sparse file of more than {SEGMENTS_MAX} pieces")));
            }
            more = block.is_extended();
        }
        Ok(map)
    }

    fn wrong(&self, problem: &str) -> TarError {
        TarError::Header { offset: self.at, problem: problem.to_owned() }
    }
}

/// Reads the current member, with its holes as zeros.
impl<R: Read> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(segment) = self.segments.front_mut() else { return Ok(0) };
            let read = match segment {
                Segment::Data(0) | Segment::Hole(0) => {
                    self.segments.pop_front();
                    continue;
                }
                Segment::Data(left) => {
                    let length = (*left).min(buffer.len() as u64) as usize;
                    let read = self.reader.read(&mut buffer[..length])?;
                    if read == 0 && length > 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    self.position += read as u64;
                    *left -= read as u64;
                    read
                }
                Segment::Hole(left) => {
                    let length = (*left).min(buffer.len() as u64) as usize;
                    buffer[..length].fill(0);
                    *left -= length as u64;
                    length
                }
            };
            return Ok(read);
        }
    }
}

/// Parses a number in a header, as Go does: octal digits, GNU's base 256, or zero if empty.
fn number(field: &[u8]) -> Option<i64> {
    if let [first @ 0x80..=0xff, rest @ ..] = field {
        // The second bit is the sign, and the number is in two's complement.
        let negative = first & 0x40 != 0;
        let first = i128::from(first & 0x3f) - if negative { 0x40 } else { 0 };
        let value = rest
            .iter()
            .try_fold(first, |value, byte| value.checked_mul(256)?.checked_add(i128::from(*byte)))?;
        return i64::try_from(value).ok();
    }
    let text = std::str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    match text {
        "" => Some(0),
        text => i64::from_str_radix(text.split('\0').next()?, 8).ok(),
    }
}

/// Verifies the checksum. Old tools summed signed bytes, which is accepted, too.
fn checksum_is_right(header: &Header) -> bool {
    let bytes = header.as_bytes();
    let summed = || bytes[..148].iter().chain(&[b' '; 8]).chain(&bytes[156..]);
    let unsigned = || summed().map(|b| u32::from(*b)).sum::<u32>();
    let signed = || summed().map(|b| i32::from(b.cast_signed())).sum::<i32>();
    header.cksum().is_ok_and(|sum| sum == unsigned() || i64::from(sum) == i64::from(signed()))
}

/// Whether these first 512 bytes begin a tar archive, possibly an empty one.
pub(crate) fn begins_tar(block: &[u8]) -> bool {
    let mut header = Header::new_old();
    if block.len() != header.as_bytes().len() {
        return false;
    }
    header.as_mut_bytes().copy_from_slice(block);
    block.iter().all(|b| *b == 0) || checksum_is_right(&header)
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|b| *b == 0) {
        bytes.truncate(end);
    }
    bytes
}

#[cfg(test)]
mod tests;
