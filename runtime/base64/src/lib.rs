//! Base64 in the standard alphabet, as Go's `base64.StdEncoding` reads and writes it. Pure. Some hundred bytes of
//! code, where a crate that is made for speed has five thousand.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// These bytes as text.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |place: usize| u32::from(group.get(place).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place)) as usize % 64];
            text.push(if place > group.len() { '=' } else { letter.into() });
        }
    }
    text
}

/// The bytes of a text. Line ends count for nothing.
///
/// # Errors
/// The place of the byte that cannot be there.
pub fn decode(text: &[u8]) -> Result<Vec<u8>, usize> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    // Of the present group of four: its bits, its letters, and the padding behind them.
    let (mut bits, mut letters, mut padding) = (0, 0, 0);
    for (place, letter) in text.iter().enumerate() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'\n' | b'\r' => continue,
            b'=' if letters >= 2 && letters + padding < 4 => {
                padding += 1;
                continue;
            }
            _ => return Err(place),
        };
        if padding > 0 {
            return Err(place);
        }
        bits = bits << 6 | u32::from(value);
        letters += 1;
        if letters == 4 {
            bytes.extend(&bits.to_be_bytes()[1..]);
            (bits, letters) = (0, 0);
        }
    }
    match (letters, padding) {
        (0, _) => {}
        (2, 2) => bytes.push((bits >> 4) as u8),
        (3, 1) => bytes.extend(&((bits >> 2) as u16).to_be_bytes()),
        (_, 0) => return Err(text.len() - letters),
        (_, _) => return Err(text.len()),
    }
    Ok(bytes)
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
