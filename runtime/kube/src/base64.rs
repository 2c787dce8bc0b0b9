//! Base64 in the standard alphabet, as Go's `base64.StdEncoding` reads and writes it: line ends count for nothing, and
//! bits behind the last byte may have any value.

use std::sync::LazyLock;

use data_encoding::{BASE64, DecodeError, DecodeKind, Encoding};

/// The alphabet with the liberties of Go.
static OF_GO: LazyLock<Encoding> = LazyLock::new(|| {
    let mut specification = BASE64.specification();
    specification.check_trailing_bits = false;
    specification.ignore.push_str("\r\n");
    specification.encoding().expect("the specification contradicts nothing")
});

/// These bytes as text.
pub fn encode(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// The bytes of a text.
///
/// # Errors
/// The place of the first byte that cannot be there, as in Go's error; the length of the text if padding is missing at its
/// end.
pub fn decode(text: &[u8]) -> Result<Vec<u8>, usize> {
    let place = |DecodeError { position, kind }| match text.get(position) {
        // The crate names the beginning of the group that lacks padding.
        Some(letter)
            if kind == DecodeKind::Length && *letter != b'=' && text.trim_ascii_end().ends_with(b"=") =>
        {
            text.len()
        }
        Some(_) | None => position,
    };
    let bytes = OF_GO.decode(text).map_err(place)?;
    // The crate also reads several texts behind each other.
    let letters = text.iter().rposition(|byte| !b"=\r\n".contains(byte)).map_or(0, |last| last + 1);
    match text[..letters].iter().position(|byte| *byte == b'=') {
        Some(padding) => Err(padding + 1),
        None => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_bytes_are_decoded_to_the_same_bytes() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg=="),
            (b"fooba", "Zm9vYmE="),
            (b"\xff\xfe\xfd\x00", "//79AA=="),
            (b"\xfb\xef\xbe", "++++"),
        ] {
            assert_eq!(encode(bytes), text);
            assert_eq!(decode(text.as_bytes()).as_deref(), Ok(bytes));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(encode(&all).as_bytes()), Ok(all));
        // As Go takes it: line ends anywhere, and bits behind the last byte.
        assert_eq!(decode(b"Zm\r\n8\n=\n").as_deref(), Ok(&b"fo"[..]));
        assert_eq!(decode(b"Zm9=").as_deref(), Ok(&b"fo"[..]));
    }

    #[test]
    fn invalid_base64_is_rejected_at_the_byte_that_go_reports() {
        for (text, place) in [
            ("!", 0),
            ("Zm9v!m9v", 4),
            ("Zm 8=", 2),
            ("=", 0),
            ("Z===", 1),
            ("Zg", 0),
            ("Zm9vZ", 4),
            ("Zg=", 3),
            ("Zm8=Zm8=", 4),
            ("Zm9v=", 4),
            ("Zm8==", 4),
            ("\u{e9}", 0),
        ] {
            assert_eq!(decode(text.as_bytes()), Err(place), "{text}");
        }
    }
}
