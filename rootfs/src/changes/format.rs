//! The parts of lists and pieces that both sides know.

use std::io;

use sha2::{Digest as _, Sha256};

use crate::erofs::BLOCK;

/// The largest base in bytes: its list has at least 1.7 MB, and a slow board reads it in a minute.
pub const BASE_MAX: u64 = 512 * 1024 * 1024;

/// The largest piece in bytes.
pub const PIECE_MAX: usize = 64 * 1024;

/// The most bytes of a piece's uncompressed stream.
pub(super) const UNPACKED_MAX: usize = 60 * 1024;

/// The shortest tail that is listed, in bytes: a shorter one costs as much in a list as it saves.
pub(super) const TAIL_MIN: usize = 64;

pub(super) const LITERAL: u8 = 0;
pub(super) const COPY: u8 = 1;

/// The first bytes of a strong hash, which suffice to find blocks. The layer's digest reveals false matches.
pub(super) fn strong(bytes: &[u8]) -> [u8; 8] {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    digest[..8].try_into().expect("a digest has 32 bytes")
}

/// A rolling hash: a polynomial over the bytes of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Weak(pub(super) u32);

impl Weak {
    const BASE: u32 = 0x0810_4225;
    /// The factor of the first byte in a block.
    const FIRST: u32 = Weak::BASE.wrapping_pow(BLOCK as u32 - 1);

    pub(super) fn of(block: &[u8]) -> Weak {
        let next = |sum: u32, byte: &u8| sum.wrapping_mul(Weak::BASE).wrapping_add(u32::from(*byte));
        Weak(block.iter().fold(0, next))
    }

    pub(super) fn moved(self, out: u8, into: u8) -> Weak {
        let without = self.0.wrapping_sub(Weak::FIRST.wrapping_mul(u32::from(out)));
        Weak(without.wrapping_mul(Weak::BASE).wrapping_add(u32::from(into)))
    }
}

pub(super) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
