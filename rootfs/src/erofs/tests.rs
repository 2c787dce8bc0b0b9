use super::writer::SUPERBLOCK;
use super::*;
use crate::content;
use crate::reference::Digest;
use crate::testing::Scratch;
use crate::tree::{Bounds, Tree};

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
