//! The changed blocks of a layer: the data from which a board rebuilds a layer that is similar to one that it
//! has.
//!
//! 1. The board lists the blocks of the layer that it has, the base: [`list`]. A base is an EROFS image; the
//!    list has each of its blocks and the tail of each file, which EROFS stores after the inode.
//! 2. The sender compares the list with the new layer, uncompressed: [`Blocks`] and `compare`. The result is a
//!    sequence of pieces, each of which has a few literals and ranges of the base.
//! 3. The board rebuilds the layer from base and pieces: [`Rebuilt`], in the process that unpacks. The digest
//!    of the whole layer decides whether it is right; nothing in a list or piece is trusted.
//!
//! The board needs the same small amount of memory for any layer. A malicious base or piece can lead to a
//! rejected layer, and to nothing else: ranges refer only to the one open file, and lengths are bounded.
//!
//! A list has, for each block: 4 bytes of a weak hash, 8 of a strong one, a byte with the number of tails in
//! the block, and for each tail 2 bytes of its offset, 2 of its length and 8 of its hash. A piece has 8 bytes
//! with the length of its result, and a deflate stream. The stream has instructions: `0`, 2 bytes of a length
//! and that many literals, or `1`, 8 bytes of an offset in the base and 4 of a length. The most significant
//! byte of a number comes first.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use flate2::{Decompress, FlushDecompress, Status};

use crate::compression::EXPANSION;
use crate::erofs::{BLOCK, INODE, SLOT, inline_tail};

mod compare;
mod format;

pub use compare::{Blocks, Changes};
pub(crate) use compare::{Bounds, compare};
pub use format::{BASE_MAX, PIECE_MAX};
use format::{COPY, LITERAL, TAIL_MIN, UNPACKED_MAX, Weak, invalid, strong};

/// The length of the head of a piece, before its stream.
const PIECE_HEAD: usize = 8;

/// The most tails in a list for each block of the base: in nodlet's images fewer than four fit.
const TAILS_PER_BLOCK: u64 = 4;

/// The size in bytes of the parts in which a list is sent.
const LIST_PIECE: usize = 32 * 1024;

/// Lists the blocks of a base, and passes the list on in parts of whole entries.
pub fn list(base: &File, tell: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let length = base.metadata()?.len();
    let blocks = length / BLOCK as u64;
    if length > BASE_MAX {
        return Err(invalid("a base that is too large for a list"));
    }
    let mut tails = blocks * TAILS_PER_BLOCK;
    let mut block = [0; BLOCK];
    let mut piece = Vec::with_capacity(LIST_PIECE + BLOCK);
    for number in 0..blocks {
        base.read_exact_at(&mut block, number * BLOCK as u64)?;
        piece.extend_from_slice(&Weak::of(&block).0.to_be_bytes());
        piece.extend_from_slice(&strong(&block));
        let count = piece.len();
        piece.push(0);
        let mut slot = 0;
        while slot + INODE <= BLOCK && tails > 0 {
            match inline_tail(&block, slot) {
                Some(tail) if tail.len() >= TAIL_MIN => {
                    piece[count] += 1;
                    tails -= 1;
                    piece.extend_from_slice(&(tail.start as u16).to_be_bytes());
                    piece.extend_from_slice(&(tail.len() as u16).to_be_bytes());
                    slot = tail.end.next_multiple_of(SLOT as usize);
                    piece.extend_from_slice(&strong(&block[tail]));
                }
                _ => slot += SLOT as usize,
            }
        }
        if piece.len() >= LIST_PIECE {
            tell(&piece)?;
            piece.clear();
        }
    }
    if piece.is_empty() { Ok(()) } else { tell(&piece) }
}

/// The length of the list of a base of this length in bytes, without tails.
pub fn list_bytes(base: u64) -> u64 {
    base / BLOCK as u64 * 14
}

/// The number of bytes of the layer that a piece makes; `None` if it is no valid piece.
pub fn made_by(piece: &[u8]) -> Option<u64> {
    let (head, stream) = piece.split_at_checked(PIECE_HEAD)?;
    let made = u64::from_be_bytes(head.try_into().ok()?);
    (made > 0 && !stream.is_empty() && piece.len() <= PIECE_MAX).then_some(made)
}

/// Rebuilds a layer, uncompressed, from its base and a file of pieces, each preceded by its length in 4
/// bytes.
pub(crate) struct Rebuilt<'a> {
    base: File,
    base_length: u64,
    pieces: Box<dyn Read + 'a>,
    taken: u64,
    given: u64,
    /// The stream of the current piece, and the position in it.
    piece: Vec<u8>,
    at: usize,
    /// Bytes that the current piece has yet to make.
    remaining: u64,
    range: Range,
}

/// The rest of the current instruction.
enum Range {
    Literal(usize),
    Copy { offset: u64, length: u32 },
}

impl<'a> Rebuilt<'a> {
    pub(crate) fn new(base: File, pieces: Box<dyn Read + 'a>) -> io::Result<Rebuilt<'a>> {
        let base_length = base.metadata()?.len();
        Ok(Rebuilt {
            base,
            base_length,
            pieces,
            taken: 0,
            given: 0,
            piece: Vec::new(),
            at: 0,
            remaining: 0,
            range: Range::Literal(0),
        })
    }

    /// Reads the next piece. Returns `false` at the end of the file.
    fn next_piece(&mut self) -> io::Result<bool> {
        if self.remaining > 0 || self.at < self.piece.len() {
            return Err(invalid("a piece does not make the declared number of bytes"));
        }
        let mut length = Vec::with_capacity(size_of::<u32>());
        (&mut self.pieces).take(size_of::<u32>() as u64).read_to_end(&mut length)?;
        let length = match <[u8; 4]>::try_from(length.as_slice()) {
            Ok(length) => u32::from_be_bytes(length) as usize,
            Err(_) if length.is_empty() => return Ok(false),
            Err(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
        };
        if length > PIECE_MAX {
            return Err(invalid("a piece is longer than any that is accepted"));
        }
        let mut piece = vec![0; length];
        self.pieces.read_exact(&mut piece)?;
        self.remaining = made_by(&piece).ok_or_else(|| invalid("a piece that makes nothing"))?;
        self.taken += length as u64;
        self.at = 0;
        // The stream cannot inflate to more than this capacity.
        self.piece = Vec::with_capacity(UNPACKED_MAX);
        let stream = &piece[PIECE_HEAD..];
        let mut inflate = Decompress::new(false);
        match inflate.decompress_vec(stream, &mut self.piece, FlushDecompress::Finish) {
            Ok(Status::StreamEnd) if inflate.total_in() == stream.len() as u64 => Ok(true),
            Ok(_) => Err(invalid("a piece is cut off, or unpacks to more than is accepted")),
            Err(_) => Err(invalid("a piece is not a deflate stream")),
        }
    }

    fn number<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let bytes = self.piece.get(self.at..self.at + N).ok_or_else(|| invalid("a piece that is cut off"))?;
        self.at += N;
        Ok(bytes.try_into().expect("as long as it was asked for"))
    }

    fn next_range(&mut self) -> io::Result<()> {
        let [kind] = self.number()?;
        let length = match kind {
            LITERAL => {
                let length = usize::from(u16::from_be_bytes(self.number()?));
                if length > self.piece.len() - self.at {
                    return Err(invalid("a piece that is cut off"));
                }
                self.range = Range::Literal(length);
                length as u64
            }
            COPY => {
                let offset = u64::from_be_bytes(self.number()?);
                let length = u32::from_be_bytes(self.number()?);
                if offset.checked_add(u64::from(length)).is_none_or(|end| end > self.base_length) {
                    return Err(invalid("a piece names a range that its base does not have"));
                }
                self.range = Range::Copy { offset, length };
                u64::from(length)
            }
            _ => return Err(invalid("a piece with an unknown instruction")),
        };
        if length == 0 || length > self.remaining {
            return Err(invalid("a piece does not make the declared number of bytes"));
        }
        self.remaining -= length;
        self.given += length;
        let (free, factor) = EXPANSION;
        let most = self.taken.saturating_mul(factor).saturating_add(self.base_length).saturating_add(free);
        if self.given > most {
            Err(invalid("pieces that make a thousand times as much as they are"))
        } else {
            Ok(())
        }
    }
}

impl Read for Rebuilt<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match &mut self.range {
                Range::Literal(0) | Range::Copy { length: 0, .. } => {
                    if self.remaining == 0 && !self.next_piece()? {
                        return Ok(0);
                    }
                    self.next_range()?;
                }
                Range::Literal(left) => {
                    let length = buffer.len().min(*left);
                    buffer[..length].copy_from_slice(&self.piece[self.at..self.at + length]);
                    self.at += length;
                    *left -= length;
                    return Ok(length);
                }
                Range::Copy { offset, length: left } => {
                    let length = buffer.len().min(*left as usize);
                    let read = self.base.read_at(&mut buffer[..length], *offset)?;
                    if read == 0 && length > 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    *offset += read as u64;
                    *left -= read as u32;
                    return Ok(read);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
