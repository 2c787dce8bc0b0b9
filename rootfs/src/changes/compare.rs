//! The sender's side: finds the parts of a new layer that a board already has.
//!
//! Blocks of the base are searched at every byte of a file, so that an insertion costs only its own bytes;
//! tails are searched only at the end of a file. Headers of the tar stream are sent as literals, which
//! compress to a tenth. Memory holds the list of the base and the layer's data for a few pieces.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::time::Instant;

use flate2::{Compress, Compression, FlushCompress, Status};

use super::format::{BASE_MAX, COPY, LITERAL, PIECE_MAX, TAIL_MIN, UNPACKED_MAX, Weak, invalid, strong};
use crate::erofs::BLOCK;
use crate::members::{Kind, Members};

/// The most blocks whose weak hash matches but whose strong hash does not: a malicious layer could cost the
/// sender hours.
const FALSE_ALARMS_MAX: u32 = 64 * 1024;

/// The most bytes of a file without matches that are kept for the search.
const SEARCHED_MAX: usize = 64 * 1024;

/// The parsed list of a base's blocks.
pub struct Blocks {
    blocks: u64,
    /// Weak hashes of blocks; and `bits`, a bitmap by the first twenty bits of each. The bitmap quickly
    /// rejects most bytes of a layer as the start of a block: looking all of them up would take most of the
    /// time.
    weak: HashMap<u64, u32>,
    bits: Vec<u64>,
    /// The offset in the base of each block and tail, by strong hash and length.
    places: HashMap<u64, u32>,
}

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks { blocks: 0, weak: HashMap::new(), bits: vec![0; 1 << 14], places: HashMap::new() }
    }
}

/// The key of a strong hash and a length. The layer's digest reveals collisions.
fn key(hash: [u8; 8], length: usize) -> u64 {
    u64::from_be_bytes(hash).wrapping_add(length as u64)
}

/// The position of a weak hash in the bitmap.
fn bit(hash: u32) -> (usize, u64) {
    ((hash >> 18) as usize, 1 << (hash >> 12 & 63))
}

impl Blocks {
    /// Adds a part of the list.
    pub fn add(&mut self, mut piece: &[u8]) -> io::Result<()> {
        fn field<const N: usize>(bytes: &mut &[u8]) -> io::Result<[u8; N]> {
            let (field, rest) =
                bytes.split_first_chunk().ok_or_else(|| invalid("a list of blocks is cut off"))?;
            *bytes = rest;
            Ok(*field)
        }
        while !piece.is_empty() {
            let begin = self.blocks * BLOCK as u64;
            self.blocks += 1;
            // This bound ensures that offsets fit into 32 bits.
            if begin > BASE_MAX {
                return Err(invalid("a list of more blocks than a base can have"));
            }
            let begin = begin as u32;
            let weak = u32::from_be_bytes(field(&mut piece)?);
            let (word, bit) = bit(weak);
            self.bits[word] |= bit;
            self.weak.insert(u64::from(weak), 0);
            self.places.entry(key(field(&mut piece)?, BLOCK)).or_insert(begin);
            let [tails] = field(&mut piece)?;
            for _ in 0..tails {
                let offset = u16::from_be_bytes(field(&mut piece)?);
                let length = u16::from_be_bytes(field(&mut piece)?);
                let hash = field(&mut piece)?;
                if usize::from(offset) + usize::from(length) <= BLOCK {
                    let place = begin + u32::from(offset);
                    self.places.entry(key(hash, length.into())).or_insert(place);
                }
            }
        }
        Ok(())
    }

    fn has(&self, weak: Weak) -> bool {
        let (word, bit) = bit(weak.0);
        self.bits[word] & bit != 0 && self.weak.contains_key(&u64::from(weak.0))
    }

    fn find(&self, bytes: &[u8]) -> Option<u64> {
        self.places.get(&key(strong(bytes), bytes.len())).map(|place| u64::from(*place))
    }
}

/// The pieces from which a board rebuilds a layer.
pub struct Changes {
    /// The pieces, in sequence.
    file: File,
    /// The bytes that each piece makes, and its length.
    pub(super) pieces: Vec<(u64, u64)>,
    /// Bytes of the layer that the board had already rebuilt.
    from: u64,
}

impl Changes {
    /// For a board that has rebuilt `made` bytes of the layer: the offset in the file of the next piece, and
    /// the bytes of all pieces from there. `None` if no piece begins at `made`.
    pub fn rest(&self, made: u64) -> Option<(u64, u64)> {
        let (mut reached, mut place) = (self.from, 0);
        for (makes, length) in &self.pieces {
            if reached >= made {
                break;
            }
            reached += makes;
            place += length;
        }
        let all: u64 = self.pieces.iter().map(|(_, length)| length).sum();
        (reached == made).then_some((place, all - place))
    }

    /// The pieces from this offset in the file.
    pub fn pieces(&self, place: u64) -> impl Iterator<Item = io::Result<Vec<u8>>> + '_ {
        use std::os::unix::fs::FileExt;
        let mut at = 0;
        self.pieces.iter().filter_map(move |(_, length)| {
            let begin = at;
            at += length;
            (begin >= place).then(|| {
                let mut piece = vec![0; usize::try_from(*length).unwrap_or(0)];
                self.file.read_exact_at(&mut piece, begin).map(|()| piece)
            })
        })
    }
}

/// The limits of a comparison.
pub(crate) struct Bounds {
    /// The most bytes of all pieces.
    pub(crate) bytes: u64,
    pub(crate) end: Instant,
}

/// Compares an uncompressed layer with the blocks of a base. `from` is the number of bytes that the board has
/// already rebuilt. Returns `None` if the pieces exceed the bounds.
pub(crate) fn compare(
    layer: &mut dyn Read,
    blocks: &Blocks,
    from: u64,
    bounds: &Bounds,
    file: File,
) -> io::Result<Option<Changes>> {
    let changes = Changes { file, pieces: Vec::new(), from };
    let pieces = Pieces { changes, bytes: 0, skip: from, unpacked: Vec::new(), makes: 0, copy: (0, 0) };
    let search = RefCell::new(Search {
        blocks,
        bounds,
        pieces,
        buffer: Vec::new(),
        size: 0,
        remaining: 0,
        searched: 0,
        weak: None,
        false_alarms: 0,
        is_exceeded: false,
    });
    let walked = {
        let tapped = Tapped { stream: layer, search: &search };
        // Boxed like other layer streams, so that the code for one type of stream suffices.
        let tapped: Box<dyn Read> = Box::new(tapped);
        let mut members = Members::new(tapped);
        loop {
            match members.next() {
                Ok(Some(member)) if member.kind == Kind::File && members.is_plain() => {
                    search.borrow_mut().begin(member.size);
                }
                Ok(Some(_)) => {}
                Ok(None) => break io::copy(&mut members.into_inner(), &mut io::sink()).map(drop),
                Err(error) => break Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
            if search.borrow().is_exceeded {
                break Ok(());
            }
        }
    };
    let search = search.into_inner();
    if search.is_exceeded {
        return Ok(None);
    }
    walked?;
    search.finish()
}

/// A reader that also passes the bytes to the search.
struct Tapped<'a, 'b> {
    stream: &'a mut dyn Read,
    search: &'a RefCell<Search<'b>>,
}

impl Read for Tapped<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.search.borrow_mut().push(&buffer[..read])?;
        Ok(read)
    }
}

struct Search<'a> {
    blocks: &'a Blocks,
    bounds: &'a Bounds,
    pieces: Pieces,
    /// Bytes of the current file that were read but not yet encoded: literals up to `searched`.
    buffer: Vec<u8>,
    searched: usize,
    weak: Option<Weak>,
    /// The size of the current file, and the bytes of it that were not read yet.
    size: u64,
    remaining: u64,
    false_alarms: u32,
    /// Whether the pieces exceed the bounds.
    is_exceeded: bool,
}

impl Search<'_> {
    /// Begins a file of this many bytes.
    fn begin(&mut self, size: u64) {
        (self.size, self.remaining) = (size, size);
    }

    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.is_exceeded |= self.pieces.bytes > self.bounds.bytes || Instant::now() > self.bounds.end;
        if self.is_exceeded {
            return Err(invalid("too much has changed"));
        }
        let of_file = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(bytes.len());
        let (data, others) = bytes.split_at(of_file);
        if !data.is_empty() {
            self.remaining -= data.len() as u64;
            self.buffer.extend_from_slice(data);
            self.search()?;
            if self.remaining == 0 {
                self.end()?;
            }
        }
        self.pieces.literal(others)
    }

    fn search(&mut self) -> io::Result<()> {
        while let Some(block) = self.buffer.get(self.searched..self.searched + BLOCK) {
            let weak = self.weak.unwrap_or_else(|| Weak::of(block));
            self.weak = Some(weak);
            if self.blocks.has(weak) && self.false_alarms < FALSE_ALARMS_MAX {
                if let Some(place) = self.blocks.find(block) {
                    self.pieces.literal(&self.buffer[..self.searched])?;
                    self.pieces.copy(place, BLOCK)?;
                    self.forget(self.searched + BLOCK);
                    continue;
                }
                self.false_alarms += 1;
            }
            let Some(next) = self.buffer.get(self.searched + BLOCK) else { break };
            self.weak = Some(weak.moved(block[0], *next));
            self.searched += 1;
            if self.searched >= SEARCHED_MAX {
                self.pieces.literal(&self.buffer[..self.searched])?;
                let weak = self.weak;
                self.forget(self.searched);
                self.weak = weak;
            }
        }
        Ok(())
    }

    fn forget(&mut self, bytes: usize) {
        self.buffer.drain(..bytes);
        (self.searched, self.weak) = (0, None);
    }

    /// Ends a file. The bytes left may be its tail, which is less than a block.
    fn end(&mut self) -> io::Result<()> {
        let tail = usize::try_from(self.size % BLOCK as u64).unwrap_or(0);
        let mut found = None;
        if tail >= TAIL_MIN && tail <= self.buffer.len() {
            let bytes = &self.buffer[self.buffer.len() - tail..];
            found = self.blocks.find(bytes).or_else(|| {
                // A tail that does not fit after its inode has a block of its own.
                let mut block = bytes.to_vec();
                block.resize(BLOCK, 0);
                self.blocks.find(&block)
            });
        }
        match found {
            Some(place) => {
                self.pieces.literal(&self.buffer[..self.buffer.len() - tail])?;
                self.pieces.copy(place, tail)?;
            }
            None => self.pieces.literal(&self.buffer)?,
        }
        self.forget(self.buffer.len());
        Ok(())
    }

    fn finish(mut self) -> io::Result<Option<Changes>> {
        self.pieces.literal(&self.buffer)?;
        self.pieces.end()?;
        Ok((self.pieces.bytes <= self.bounds.bytes).then_some(self.pieces.changes))
    }
}

/// Packs instructions into pieces.
struct Pieces {
    changes: Changes,
    bytes: u64,
    /// Bytes of the layer that the board already has.
    skip: u64,
    /// The current piece, uncompressed, and the number of bytes that it makes.
    unpacked: Vec<u8>,
    makes: u64,
    /// The range of the base, as offset and length, that the next instruction may extend.
    copy: (u64, u64),
}

/// Bytes of an instruction of each kind, without its literals.
const LITERAL_HEAD: usize = 3;
const COPY_BYTES: usize = 13;

impl Pieces {
    fn literal(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        bytes = &bytes[self.skipped(bytes.len())..];
        if bytes.is_empty() {
            return Ok(());
        }
        self.end_copy()?;
        while !bytes.is_empty() {
            let room = UNPACKED_MAX - LITERAL_HEAD - COPY_BYTES;
            if self.unpacked.len() >= room {
                self.end_piece()?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(room - self.unpacked.len()));
            self.unpacked.push(LITERAL);
            self.unpacked.extend_from_slice(&(now.len() as u16).to_be_bytes());
            self.unpacked.extend_from_slice(now);
            self.makes += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    fn copy(&mut self, place: u64, length: usize) -> io::Result<()> {
        let skipped = self.skipped(length);
        let (place, length) = (place + skipped as u64, (length - skipped) as u64);
        let (begin, so_far) = self.copy;
        if so_far > 0 && begin + so_far == place && so_far < u64::from(u32::MAX) - length {
            self.copy.1 += length;
        } else {
            self.end_copy()?;
            self.copy = (place, length);
        }
        Ok(())
    }

    /// How many of the next `length` bytes the board already has.
    fn skipped(&mut self, length: usize) -> usize {
        let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(length);
        self.skip -= skipped as u64;
        skipped
    }

    fn end_copy(&mut self) -> io::Result<()> {
        let (place, length) = std::mem::take(&mut self.copy);
        if length == 0 {
            return Ok(());
        }
        if self.unpacked.len() + COPY_BYTES > UNPACKED_MAX {
            self.end_piece()?;
        }
        self.unpacked.push(COPY);
        self.unpacked.extend_from_slice(&place.to_be_bytes());
        self.unpacked.extend_from_slice(&(length as u32).to_be_bytes());
        self.makes += length;
        Ok(())
    }

    fn end_piece(&mut self) -> io::Result<()> {
        if self.unpacked.is_empty() {
            return Ok(());
        }
        let mut piece = Vec::with_capacity(PIECE_MAX);
        piece.extend_from_slice(&self.makes.to_be_bytes());
        let mut deflate = Compress::new(Compression::best(), false);
        // A piece has space even for incompressible data.
        match deflate.compress_vec(&self.unpacked, &mut piece, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => {}
            _ => return Err(invalid("a piece that does not fit")),
        }
        self.changes.file.write_all(&piece)?;
        self.changes.pieces.push((self.makes, piece.len() as u64));
        self.bytes += piece.len() as u64;
        self.unpacked.clear();
        self.makes = 0;
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        self.end_copy()?;
        self.end_piece()
    }
}
