use super::finish::crc32c;
use super::writer::SUPERBLOCK;
use super::*;
use crate::attributes::Attributes;
use crate::content;
use crate::reference::Digest;
use crate::testing::Scratch;
use crate::tree::{Bounds, Tree};

#[test]
fn the_checksum_is_crc32c_as_the_kernel_computes_it() {
    // The check value of CRC-32C, before its final inversion.
    assert_eq!(crc32c(b"123456789"), !0xe306_9283);
}

#[test]
fn devices_that_linux_does_not_have_are_refused() {
    let scratch = Scratch::new();
    let file = content::create(&scratch.path().join("image")).unwrap();
    let mut writer = Writer::new(file, 1 << 20);
    let attributes = Attributes::default();
    assert!(writer.node(S_IFBLK, &attributes, (0xfff, 0xf_ffff), 1).is_ok());
    for device in [(0x1000, 0), (0, 0x10_0000)] {
        assert!(matches!(writer.node(S_IFBLK, &attributes, device, 1), Err(ErofsError::Refused(_))));
    }
}

#[test]
fn an_erofs_image_contains_the_digest_of_its_layer() {
    let scratch = Scratch::new();
    let path = scratch.path().join("image");
    let writer = Writer::new(content::create(&path).unwrap(), 1 << 20);
    let id = Digest::of(b"layer");
    let finished = writer
        .finish(&Tree::new(Bounds { entries: 1, directories: 1, name_bytes: 1, steps: 1 }), &id)
        .unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len() as u64, finished.bytes);
    assert_eq!(bytes[SUPERBLOCK + 48..SUPERBLOCK + 64], id.bytes()[..16]);
}
