//! CRC-32 as gzip, Ethernet and GPT have it (RFC 1952, section 8), with one table of 1 KiB: the interface of
//! `crc32fast` that `flate2` uses.
//!
//! Its rate, some hundred MB/s, is a multiple of that at which archives are unpacked.

#![no_std]

/// The polynomial, lowest power in the highest bit.
const POLYNOMIAL: u32 = 0xedb8_8320;

static TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = rest >> 1 ^ if rest & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
}

/// A checksum of bytes that arrive in parts.
#[derive(Clone, Debug, Default)]
pub struct Hasher {
    /// The checksum of the bytes so far.
    sum: u32,
    /// The number of these bytes.
    amount: u64,
}

impl Hasher {
    /// Creates the checksum of no bytes.
    pub fn new() -> Hasher {
        Hasher::default()
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        let add = |rest: u32, byte: &u8| rest >> 8 ^ TABLE[usize::from(rest as u8 ^ byte)];
        self.sum = !bytes.iter().fold(!self.sum, add);
        self.amount += bytes.len() as u64;
    }

    /// The checksum.
    pub fn finalize(self) -> u32 {
        self.sum
    }

    /// Begins anew.
    pub fn reset(&mut self) {
        *self = Hasher::new();
    }

    /// Adds the bytes of `other`, of which only the checksum is known.
    pub fn combine(&mut self, other: &Hasher) {
        // What `other.amount` bytes of zeros do is multiplication by a power of x: 8 for each byte.
        let (mut power, mut factor, mut left) = (1 << 31, 1 << 23, other.amount);
        while left > 0 {
            if left & 1 == 1 {
                power = product(power, factor);
            }
            factor = product(factor, factor);
            left >>= 1;
        }
        self.sum = product(power, self.sum) ^ other.sum;
        self.amount += other.amount;
    }
}

/// The product of two polynomials, modulo [`POLYNOMIAL`]; the highest bit is the power 0.
fn product(a: u32, mut b: u32) -> u32 {
    let mut sum = 0;
    for power in (0..32).rev() {
        if a >> power & 1 == 1 {
            sum ^= b;
        }
        b = b >> 1 ^ if b & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    sum
}

/// The checksum of all these bytes.
pub fn hash(bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksums_of_known_texts_are_right() {
        assert_eq!(hash(b""), 0);
        // The check value of the catalogue of CRCs (CRC-32/ISO-HDLC).
        assert_eq!(hash(b"123456789"), 0xcbf4_3926);
        assert_eq!(hash(b"The quick brown fox jumps over the lazy dog"), 0x414f_a339);
        assert_eq!(hash(&[0; 32]), 0x190a_55ad);
        assert_eq!(hash(&[0xff; 32]), 0xff6c_ab0b);
    }

    #[test]
    fn a_text_in_parts_has_the_checksum_of_the_whole() {
        let text = b"The quick brown fox jumps over the lazy dog";
        for cut in 0..=text.len() {
            let (first, second) = text.split_at(cut);
            let mut hasher = Hasher::new();
            hasher.update(first);
            let mut other = Hasher::new();
            other.update(second);
            let mut combined = hasher.clone();
            combined.combine(&other);
            hasher.update(second);
            assert_eq!(hasher.finalize(), 0x414f_a339, "cut at {cut}");
            assert_eq!(combined.finalize(), 0x414f_a339, "combined at {cut}");
        }
        let mut hasher = Hasher::new();
        hasher.update(text);
        hasher.reset();
        assert_eq!(hasher.finalize(), 0);
    }
}
