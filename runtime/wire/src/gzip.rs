//! Compressed bodies of HTTP: the format gzip (RFC 1952), as API servers send large lists to clients that accept it. The
//! checksum is not compared: bodies come over TLS.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags};

use crate::http::HttpError;

/// The bytes after the compressed ones: the checksum, and the length of the whole.
const TAIL: usize = 8;

/// Decompresses a body.
///
/// # Errors
/// It is no complete gzip stream of one member without optional fields, or has more than `limit` bytes.
pub fn decode(body: &[u8], limit: usize) -> Result<Vec<u8>, HttpError> {
    let malformed = || HttpError::Malformed("compressed body");
    let [0x1f, 0x8b, 8, 0, _, _, _, _, _, _, rest @ ..] = body else { return Err(malformed()) };
    let (compressed, tail) = rest.split_last_chunk::<TAIL>().ok_or_else(malformed)?;
    let [.., a, b, c, d] = *tail;
    let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).map_err(|_| HttpError::TooLarge)?;
    if length > limit {
        return Err(HttpError::TooLarge);
    }
    let mut decoded = vec![0; length];
    let flags = inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let mut state = Box::<DecompressorOxide>::default();
    let (status, read, written) = decompress(&mut state, compressed, &mut decoded, 0, flags);
    let is_whole = status == TINFLStatus::Done && (read, written) == (compressed.len(), length);
    if is_whole { Ok(decoded) } else { Err(malformed()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn encoded(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).expect("memory is left");
        encoder.finish().expect("memory is left")
    }

    #[test]
    fn a_body_is_what_was_compressed_and_nothing_else_is_one() {
        let text: Vec<u8> = (0..200_000_u32).flat_map(|number| (number / 7).to_le_bytes()).collect();
        let whole = encoded(&text);
        assert_eq!(decode(&whole, text.len()).expect("it is valid"), text);
        assert_eq!(decode(&encoded(b""), 0).expect("it is valid"), b"");
        assert!(matches!(decode(&whole, text.len() - 1), Err(HttpError::TooLarge)));
        let is_malformed = |body: &[u8]| matches!(decode(body, text.len()), Err(HttpError::Malformed(_)));
        for length in [0, 1, 10, 17] {
            assert!(is_malformed(&whole[..length]), "{length}");
        }
        for (at, byte) in [(0, 0), (2, 9), (3, 8), (whole.len() - 2, 0)] {
            let mut wrong = whole.clone();
            wrong[at] = byte;
            assert!(is_malformed(&wrong), "{at}");
        }
        // A cut stream whose end claims less than it has.
        let mut cut = whole[..whole.len() / 2].to_vec();
        cut.extend([0, 0, 0, 0, 100, 0, 0, 0]);
        assert!(is_malformed(&cut));
        assert!(is_malformed(&[&whole[..], &encoded(b"more")].concat()));
    }
}
