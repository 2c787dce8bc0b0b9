//! The properties of a member that precede its header: long names of GNU tar, and PAX records with their values
//! (times, extended attributes of `SCHILY` and `LIBARCHIVE`, sparse maps).

use std::sync::LazyLock;

use data_encoding::{BASE64_NOPAD, Encoding};

use super::{Timestamp, sparse};
use crate::tar_error::shown;

/// The properties that long-name members and PAX records set for the next member.
#[derive(Default)]
pub(super) struct Extensions {
    pub(super) any: bool,
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) mtime: Option<Timestamp>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) sparse: Option<sparse::Map>,
}

impl Extensions {
    /// Reads the records of a PAX member. A later record of the same key wins.
    ///
    /// # Errors
    /// What is wrong with a record.
    pub(super) fn read_pax(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (key, value, after) = pax_record(rest)
                .ok_or_else(|| "PAX record: must be \"<length> <key>=<value>\" and a line feed".to_owned())?;
            rest = after;
            // As in POSIX: an empty value keeps the header's value.
            if value.is_empty() && matches!(key, b"path" | b"linkpath" | b"size" | b"uid" | b"gid" | b"mtime")
            {
                continue;
            }
            let number = || {
                std::str::from_utf8(value)
                    .ok()
                    .and_then(|text| text.parse::<u64>().ok())
                    .ok_or_else(|| format!("PAX record {}: must be a decimal number", shown(key)))
            };
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(number()?),
                b"uid" => self.uid = Some(number()?),
                b"gid" => self.gid = Some(number()?),
                b"mtime" => {
                    let time = timestamp(value);
                    self.mtime = Some(time.ok_or_else(|| "PAX record mtime: must be a decimal".to_owned())?);
                }
                _ => {
                    if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                        self.set_xattr(name.to_vec(), value.to_vec());
                    } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                        let value = BASE64.decode(value);
                        let value =
                            value.map_err(|_| format!("PAX record {}: must be base64", shown(key)))?;
                        self.set_xattr(percent_decoded(name), value);
                    } else if let Some(name) = key.strip_prefix(b"GNU.sparse.") {
                        self.sparse.get_or_insert_default().pax_record(name, value)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Tools write both forms of the same attribute; the later record wins.
    fn set_xattr(&mut self, name: Vec<u8>, value: Vec<u8>) {
        self.xattrs.retain(|(known, _)| *known != name);
        self.xattrs.push((name, value));
    }
}

/// The first record's key and value, and the bytes after it. Records are split by their length, not by lines:
/// values may be any bytes.
fn pax_record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().take(20).position(|b| *b == b' ')?;
    let length: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
    let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|b| *b == b'=')?;
    Some((&record[..equals], &record[equals + 1..], &bytes[length..]))
}

/// Parses a time: `-12.5` is half a second after -13.
fn timestamp(value: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    if whole.starts_with('-') && nanoseconds > 0 {
        Some(Timestamp { seconds: seconds.checked_sub(1)?, nanoseconds: 1_000_000_000 - nanoseconds })
    } else {
        Some(Timestamp { seconds, nanoseconds })
    }
}

/// Base64 with or without padding. Bits behind the last byte may have any value.
static BASE64: LazyLock<Encoding> = LazyLock::new(|| {
    let mut specification = BASE64_NOPAD.specification();
    specification.check_trailing_bits = false;
    specification.ignore.push('=');
    specification.encoding().expect("the specification contradicts nothing")
});

fn percent_decoded(name: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'%')
            .then(|| after.get(..2))
            .flatten()
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match escaped {
            Some(byte) => {
                decoded.push(byte);
                rest = &after[2..];
            }
            None => {
                decoded.push(*first);
                rest = after;
            }
        }
    }
    decoded
}
