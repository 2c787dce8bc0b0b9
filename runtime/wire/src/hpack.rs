//! Decodes the fields of an HTTP/2 response (RFC 7541), and encodes those of a request. Pure.
//!
//! The client announces a dynamic table of size zero, so a response refers to no dynamic table. Of the static table,
//! only the names that the client uses are decoded.

/// Maximum size of all fields of a response, with 32 additional bytes for each (`SETTINGS_MAX_HEADER_LIST_SIZE`).
pub(crate) const MAX_LIST: usize = 16 * 1024;

/// A header or trailer field.
#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// The name; empty for an unused name of the static table.
    pub name: Vec<u8>,
    /// The bytes of the value, decoded.
    pub value: Vec<u8>,
}

/// The error of fields that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HpackError {
    /// The block violates RFC 7541.
    Malformed,
    /// The fields exceed [`MAX_LIST`].
    TooLarge,
}

/// Decodes the fields of a complete block.
pub fn decode(mut block: &[u8]) -> Result<Vec<Field>, HpackError> {
    let mut fields = Vec::new();
    let mut size = 0;
    while let Some(first) = block.first().copied() {
        let field = match first {
            0x80.. => {
                let index = integer(&mut block, 7)?;
                let (name, value) = named(index)?;
                Field { name: name.to_vec(), value: value.to_vec() }
            }
            0x40..0x80 => literal(&mut block, 6)?,
            // The size of the dynamic table: there is none, and no room for one.
            0x20..0x40 => match integer(&mut block, 5)? {
                0 => continue,
                _ => return Err(HpackError::Malformed),
            },
            // "Without indexing" and "never indexed".
            ..0x20 => literal(&mut block, 4)?,
        };
        size += field.name.len() + field.value.len() + 32;
        if size > MAX_LIST {
            return Err(HpackError::TooLarge);
        }
        fields.push(field);
    }
    Ok(fields)
}

/// Encodes a field as a literal without indexing.
pub fn encode(name: &str, value: &str, block: &mut Vec<u8>) {
    block.push(0);
    for text in [name, value] {
        let mut length = text.len();
        if length < 0x7f {
            block.push(length as u8);
        } else {
            block.push(0x7f);
            length -= 0x7f;
            while length >= 0x80 {
                block.push(length as u8 | 0x80);
                length >>= 7;
            }
            block.push(length as u8);
        }
        block.extend_from_slice(text.as_bytes());
    }
}

fn literal(block: &mut &[u8], prefix: u32) -> Result<Field, HpackError> {
    let name = match integer(block, prefix)? {
        0 => string(block)?,
        index => named(index)?.0.to_vec(),
    };
    Ok(Field { name, value: string(block)? })
}

/// Returns a name and a value of the static table (RFC 7541, appendix A).
fn named(index: usize) -> Result<(&'static [u8], &'static [u8]), HpackError> {
    const STATUS: [&[u8]; 7] = [b"200", b"204", b"206", b"304", b"400", b"404", b"500"];
    match index {
        8..=14 => Ok((b":status", STATUS[index - 8])),
        31 => Ok((b"content-type", b"")),
        1..=61 => Ok((b"", b"")),
        _ => Err(HpackError::Malformed),
    }
}

/// Decodes an integer with a prefix of this many bits (RFC 7541, 5.1).
fn integer(block: &mut &[u8], prefix: u32) -> Result<usize, HpackError> {
    let mask = (1_usize << prefix) - 1;
    let mut value = usize::from(byte(block)?) & mask;
    if value < mask {
        return Ok(value);
    }
    // Three more bytes are all that a length below 2 MiB takes.
    for shift in [0, 7, 14] {
        let next = usize::from(byte(block)?);
        value += (next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(HpackError::TooLarge)
}

fn string(block: &mut &[u8]) -> Result<Vec<u8>, HpackError> {
    let coded = block.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(block, 7)?;
    if length > MAX_LIST {
        return Err(HpackError::TooLarge);
    }
    let (text, rest) = block.split_at_checked(length).ok_or(HpackError::Malformed)?;
    *block = rest;
    if coded { decode_huffman(text) } else { Ok(text.to_vec()) }
}

fn byte(block: &mut &[u8]) -> Result<u8, HpackError> {
    let (first, rest) = block.split_first().ok_or(HpackError::Malformed)?;
    *block = rest;
    Ok(*first)
}

/// Lengths in bits of the codes in RFC 7541's appendix B, for each byte and the end mark. The lengths determine the
/// codes: those of one length are consecutive in the order of their bytes, and follow the codes of the length before.
#[rustfmt::skip]
const BITS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

const MAX_CODE_BITS: usize = 30;

/// Number of codes of each length.
const CODES: [u32; MAX_CODE_BITS + 1] = {
    let mut codes = [0; MAX_CODE_BITS + 1];
    let mut symbol = 0;
    while symbol < BITS.len() {
        codes[BITS[symbol] as usize] += 1;
        symbol += 1;
    }
    codes
};

/// Bytes in the order of their codes; the last entry is the end mark.
const BY_CODE: [u16; 257] = {
    let mut sorted = [0; 257];
    let mut at = 0;
    let mut length = 0;
    while length <= MAX_CODE_BITS {
        let mut symbol = 0;
        while symbol < BITS.len() {
            if BITS[symbol] as usize == length {
                sorted[at] = symbol as u16;
                at += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    sorted
};

fn decode_huffman(coded: &[u8]) -> Result<Vec<u8>, HpackError> {
    let mut text = Vec::with_capacity(coded.len());
    let (mut code, mut length, mut first, mut before) = (0_u32, 0_usize, 0_u32, 0_u32);
    let mut only_ones = true;
    for bit in coded.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1)) {
        code = code << 1 | u32::from(bit);
        only_ones &= bit == 1;
        length += 1;
        // The first code of this length, and how many shorter ones there are.
        first = (first + CODES[length - 1]) << 1;
        before += CODES[length - 1];
        let nth = code.wrapping_sub(first);
        if nth < CODES[length] {
            let symbol = BY_CODE[(before + nth) as usize];
            text.push(u8::try_from(symbol).map_err(|_| HpackError::Malformed)?);
            (code, length, first, before, only_ones) = (0, 0, 0, 0, true);
        } else if length == MAX_CODE_BITS {
            return Err(HpackError::Malformed);
        }
    }
    // The padding of the last byte is a prefix of the EOS code.
    if length < 8 && only_ones { Ok(text) } else { Err(HpackError::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).expect("hex"), 16).expect("hex");
        digits.chunks(2).map(byte).collect()
    }

    fn decoded(block: &[u8]) -> Result<Vec<(String, String)>, HpackError> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Ok(decode(block)?.into_iter().map(|field| (text(field.name), text(field.value))).collect())
    }

    #[test]
    fn the_examples_of_rfc_7541_are_read() {
        // C.2.1, C.6.1 (without what refers to a dynamic table), C.4.1.
        for (hex, expected) in [
            (
                "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
                &[("custom-key", "custom-header")][..],
            ),
            (
                "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff\
                 6e91 9d29 ad17 1863 c78f 0b97 c8e9 ae82 ae43 d3",
                &[
                    (":status", "302"),
                    ("", "private"),
                    ("", "Mon, 21 Oct 2013 20:13:21 GMT"),
                    ("", "https://www.example.com"),
                ],
            ),
            (
                "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
                &[("", ""), ("", ""), ("", ""), ("", "www.example.com")],
            ),
            ("88 20 8d", &[(":status", "200"), (":status", "404")]),
            ("5f8b1d75d0620d263d4c4d6564", &[("content-type", "application/grpc")]),
        ] {
            let expected: Vec<_> =
                expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            assert_eq!(decoded(&bytes(hex)), Ok(expected), "{hex}");
        }
    }

    #[test]
    fn hpack_fields_round_trip() {
        for length in [0, 1, 0x7e, 0x7f, 0x80, 0xfe, 0xff, 0x100, 5000] {
            let mut block = Vec::new();
            encode(":path", &"x".repeat(length), &mut block);
            assert_eq!(decoded(&block), Ok(vec![(":path".to_owned(), "x".repeat(length))]));
        }
    }

    #[test]
    fn every_byte_has_a_code_of_its_own() {
        // The codes fill the tree: what is missing of the whole would be a code that nobody has.
        let filled: u64 = BITS.iter().map(|bits| 1_u64 << (MAX_CODE_BITS - usize::from(*bits))).sum();
        assert_eq!(filled, 1 << MAX_CODE_BITS);
        let mut symbols = BY_CODE.to_vec();
        symbols.sort_unstable();
        assert!(symbols.into_iter().eq(0..257));
        assert_eq!(BY_CODE[256], 256, "the mark of the end has the last code");
    }

    #[test]
    fn malformed_hpack_blocks_are_rejected() {
        for (hex, expected) in [
            ("80", HpackError::Malformed),         // Index 0.
            ("be", HpackError::Malformed),         // Of the dynamic table.
            ("3fe11f", HpackError::Malformed),     // A dynamic table of 4096 bytes.
            ("40", HpackError::Malformed),         // Cut.
            ("4003", HpackError::Malformed),       // Cut.
            ("40037831", HpackError::Malformed),   // Cut in the name.
            ("0001780382", HpackError::Malformed), // Cut in the value.
            ("ffffffffff01", HpackError::TooLarge),
            ("007fffff7f", HpackError::TooLarge),
            ("00017884ffffffff", HpackError::Malformed), // The mark of the end.
            ("00017881fe", HpackError::Malformed),       // Filled with zero.
            ("000178820fff", HpackError::Malformed),     // Filled with a whole byte.
        ] {
            assert_eq!(decoded(&bytes(hex)), Err(expected), "{hex}");
        }
        let mut many = Vec::new();
        for _ in 0..MAX_LIST / 34 {
            encode("a", "b", &mut many);
        }
        assert!(decoded(&many).is_ok());
        encode("a", "b", &mut many);
        assert_eq!(decoded(&many), Err(HpackError::TooLarge));
    }

    #[test]
    fn random_bytes_are_read_without_harm() {
        for seed in 0..2000 {
            let mut random = nodlet_fuzz::Random::of(seed);
            let block: Vec<u8> = (0..random.below(300)).map(|_| random.below(256) as u8).collect();
            if let Ok(fields) = decode(&block) {
                let size: usize = fields.iter().map(|field| field.name.len() + field.value.len() + 32).sum();
                assert!(size <= MAX_LIST, "seed {seed}");
            }
        }
    }
}
