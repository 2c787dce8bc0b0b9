//! DER, as much as keys, certificates and certificate requests need: a reader that never goes beyond its bytes, and
//! a writer. Lengths are definite and minimal; everything else is rejected.

/// `INTEGER`.
pub const INTEGER: u8 = 0x02;
/// `BIT STRING`.
pub(crate) const BIT_STRING: u8 = 0x03;
/// `OCTET STRING`.
pub(crate) const OCTET_STRING: u8 = 0x04;
/// `OBJECT IDENTIFIER`.
pub(crate) const OID: u8 = 0x06;
/// `UTF8String`.
pub(crate) const UTF8_STRING: u8 = 0x0c;
/// `PrintableString`.
pub(crate) const PRINTABLE_STRING: u8 = 0x13;
/// `UTCTime`.
pub const UTC_TIME: u8 = 0x17;
/// `GeneralizedTime`.
pub(crate) const GENERALIZED_TIME: u8 = 0x18;
/// `SEQUENCE`.
pub const SEQUENCE: u8 = 0x30;
/// `SET`.
pub const SET: u8 = 0x31;

/// Reads values one after the other.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// Whether all bytes were read.
    pub(crate) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the next value: its tag, its contents, and the whole value. `None` if there is no valid value.
    pub fn read(&mut self) -> Option<(u8, &'a [u8], &'a [u8])> {
        let whole = self.rest;
        let (&tag, rest) = whole.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            // Tags of several bytes are in no structure that is read here.
            _ if tag & 0x1f == 0x1f => return None,
            0..=0x7f => (usize::from(first), rest),
            0x81 => {
                let (&length, rest) = rest.split_first()?;
                (Some(usize::from(length)).filter(|length| *length >= 0x80)?, rest)
            }
            0x82 => {
                let (bytes, rest) = rest.split_first_chunk::<2>()?;
                let length = usize::from(u16::from_be_bytes(*bytes));
                (Some(length).filter(|length| *length > 0xff)?, rest)
            }
            _ => return None,
        };
        let (contents, rest) = rest.split_at_checked(length)?;
        self.rest = rest;
        Some((tag, contents, &whole[..whole.len() - rest.len()]))
    }

    /// Reads the contents of the next value, which must have this tag.
    pub fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.read().filter(|(found, ..)| *found == tag).map(|(_, contents, _)| contents)
    }

    /// Reads a positive `INTEGER`, without the zero in front that DER demands for some.
    pub fn positive(&mut self) -> Option<&'a [u8]> {
        let number = self.expect(INTEGER)?;
        let is_signed = |number: &[u8]| number.first().is_some_and(|first| *first >= 0x80);
        match number {
            [0, rest @ ..] if is_signed(rest) => Some(rest),
            [] | [0, ..] => None,
            number if is_signed(number) => None,
            number => Some(number),
        }
    }
}

/// Writes a value with these contents.
pub fn value(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
    let length: usize = contents.iter().map(|part| part.len()).sum();
    let mut bytes = vec![tag];
    match length {
        0..=0x7f => bytes.push(length as u8),
        0x80..=0xff => bytes.extend([0x81, length as u8]),
        _ => bytes.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    for part in contents {
        bytes.extend_from_slice(part);
    }
    bytes
}

/// The parts of a certificate that a client needs besides verification.
#[derive(Debug, PartialEq, Eq)]
pub struct Certificate<'a> {
    /// `subjectPublicKeyInfo`, whole, of which kubeadm's `--discovery-token-ca-cert-hash` is the hash.
    pub public_key_info: &'a [u8],
    /// `notBefore`, in seconds since 1970.
    pub not_before: i64,
    /// `notAfter`, in seconds since 1970.
    pub not_after: i64,
    /// The contents of `subject`, for [`names`].
    pub subject: &'a [u8],
}

impl<'a> Certificate<'a> {
    /// Reads these parts of a certificate; `None` if it is malformed. Nothing is verified.
    pub fn parse(der: &'a [u8]) -> Option<Certificate<'a>> {
        let mut certificate = Reader::new(Reader::new(der).expect(SEQUENCE)?);
        let mut fields = Reader::new(certificate.expect(SEQUENCE)?);
        let (tag, ..) = fields.read()?;
        // The version, or the serial number of a certificate of version 1.
        if tag == 0xa0 {
            fields.expect(INTEGER)?;
        }
        fields.expect(SEQUENCE)?;
        fields.expect(SEQUENCE)?;
        let mut validity = Reader::new(fields.expect(SEQUENCE)?);
        let not_before = time(validity.read()?)?;
        let not_after = time(validity.read()?)?;
        let subject = fields.expect(SEQUENCE)?;
        let (_, _, public_key_info) = fields.read().filter(|(tag, ..)| *tag == SEQUENCE)?;
        Some(Certificate { public_key_info, not_before, not_after, subject })
    }
}

/// The texts of one attribute of a subject, in their order; texts that are not UTF-8 or ASCII are left out.
pub fn names(subject: &[u8], oid: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut sets = Reader::new(subject);
    while let Some(set) = sets.expect(SET) {
        let mut pairs = Reader::new(set);
        while let Some(pair) = pairs.expect(SEQUENCE) {
            let mut pair = Reader::new(pair);
            if pair.expect(OID) == Some(oid)
                && let Some((UTF8_STRING | PRINTABLE_STRING, text, _)) = pair.read()
            {
                found.extend(String::from_utf8(text.to_vec()));
            }
        }
    }
    found
}

/// Seconds since 1970 of a `UTCTime` or `GeneralizedTime` (RFC 5280, 4.1.2.5).
fn time((tag, text, _): (u8, &[u8], &[u8])) -> Option<i64> {
    let digits = text.strip_suffix(b"Z")?;
    let (year_digits, expected) = match tag {
        UTC_TIME => (2, 12),
        GENERALIZED_TIME => (4, 14),
        _ => return None,
    };
    if digits.len() != expected || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |from: usize, to: usize| {
        digits[from..to].iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
    };
    let year = match number(0, year_digits) {
        year @ 0..50 if tag == UTC_TIME => 2000 + year,
        year if tag == UTC_TIME => 1900 + year,
        year => year,
    };
    let part = |index: usize| number(year_digits + 2 * index, year_digits + 2 * index + 2);
    let (month, day) = (part(0), part(1));
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || part(2) > 23 || part(3) > 59 || part(4) > 60
    {
        return None;
    }
    // Days since 1970, of years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(((days * 24 + part(2)) * 60 + part(3)) * 60 + part(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OCTET_STRING: u8 = 0x04;

    #[test]
    fn lengths_are_minimal_and_definite_in_both_directions() {
        for length in [0, 1, 0x7f, 0x80, 0xff, 0x100, 0xffff] {
            let contents = vec![7; length];
            let written = value(OCTET_STRING, &[&contents]);
            let mut reader = Reader::new(&written);
            assert_eq!(reader.read(), Some((OCTET_STRING, &*contents, &*written)));
            assert!(reader.is_at_end());
            // Each prefix is no value.
            for end in 0..written.len().min(300) {
                assert_eq!(Reader::new(&written[..end]).read(), None, "{length} {end}");
            }
        }
        for wrong in
            [&[4, 0x80, 0, 0][..], &[4, 0x81, 1, 9], &[4, 0x82, 0, 200], &[4, 0x83, 1, 0, 0], &[0x1f, 1, 1]]
        {
            assert_eq!(Reader::new(wrong).read(), None, "{wrong:x?}");
        }
    }

    #[test]
    fn integers_are_positive_and_minimal() {
        for (bytes, expected) in [
            (&[2, 1, 5][..], Some(&[5][..])),
            (&[2, 2, 0, 0x80], Some(&[0x80])),
            (&[2, 2, 0, 5], None),
            (&[2, 1, 0x80], None),
            (&[2, 1, 0], None),
            (&[2, 0], None),
            (&[4, 1, 5], None),
        ] {
            assert_eq!(Reader::new(bytes).positive(), expected, "{bytes:x?}");
        }
    }

    #[test]
    fn times_of_certificates_become_seconds() {
        let of = |tag: u8, text: &str| time((tag, text.as_bytes(), &[]));
        assert_eq!(of(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(of(UTC_TIME, "261126154819Z"), Some(1_795_708_099));
        assert_eq!(of(GENERALIZED_TIME, "20500101000000Z"), Some(2_524_608_000));
        assert_eq!(of(GENERALIZED_TIME, "20000229235959Z"), Some(951_868_799));
        for wrong in ["261326154819Z", "2611261548Z", "26112615481Z", "261126154819", "261126154x19Z"] {
            assert_eq!(of(UTC_TIME, wrong), None, "{wrong}");
        }
        assert_eq!(of(INTEGER, "700101000000Z"), None);
    }
}
