use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use nodlet_fuzz::{Random, fuzz};
use std::io::Write;
use tar::EntryType;

use super::*;
use crate::content;
use crate::layer::{LayerBounds, convert};
use crate::testing::{Scratch, tar};

/// Converts a layer to an EROFS image, as the store does.
fn image(scratch: &Scratch, name: &str, layer: &[u8]) -> File {
    let path = scratch.path().join(name);
    let file = content::create(&path).unwrap();
    convert(&mut &*layer, file, LayerBounds::default(), &mut |_| {}).unwrap();
    File::open(path).unwrap()
}

fn listed(base: &File) -> (Blocks, u64) {
    let (mut blocks, mut bytes) = (Blocks::default(), 0);
    let mut add = |piece: &[u8]| {
        assert!(piece.len() <= PIECE_MAX);
        bytes += piece.len() as u64;
        blocks.add(piece)
    };
    list(base, &mut add).unwrap();
    (blocks, bytes)
}

fn bounds(bytes: u64) -> Bounds {
    Bounds { bytes, end: Instant::now() + Duration::from_secs(60) }
}

fn compared(scratch: &Scratch, layer: &[u8], blocks: &Blocks, from: u64, bytes: u64) -> Option<Changes> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(scratch.path().join("pieces"))
        .unwrap();
    compare(&mut &*layer, blocks, from, &bounds(bytes), file).unwrap()
}

/// The pieces as a board stores them, from an offset in the sender's file.
fn file_of(changes: &Changes, place: u64) -> Vec<u8> {
    let mut file = Vec::new();
    for piece in changes.pieces(place) {
        let piece = piece.unwrap();
        assert!(made_by(&piece).is_some());
        file.extend_from_slice(&(piece.len() as u32).to_be_bytes());
        file.extend_from_slice(&piece);
    }
    file
}

fn rebuilt(base: &File, pieces: &[u8]) -> io::Result<Vec<u8>> {
    let mut layer = Vec::new();
    Rebuilt::new(base.try_clone()?, Box::new(pieces))?.read_to_end(&mut layer)?;
    Ok(layer)
}

/// Transfers a layer as changed blocks. Returns the bytes of the changed blocks.
fn sent(old: &[u8], new: &[u8]) -> u64 {
    let scratch = Scratch::new();
    let base = image(&scratch, "base", old);
    let (blocks, _) = listed(&base);
    let changes = compared(&scratch, new, &blocks, 0, u64::MAX).unwrap();
    assert!(rebuilt(&base, &file_of(&changes, 0)).unwrap() == new, "another layer");
    changes.rest(0).unwrap().1
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    Random::of(seed).bytes(length)
}

#[test]
fn only_the_changed_blocks_of_a_large_file_are_sent() {
    let program = noise(1, 1_000_003);
    let layer =
        |program: &[u8]| tar().directory("bin").bytes("bin/app", program).file("etc/text", "x").finish();
    let old = layer(&program);
    assert!(sent(&old, &old) < 600, "the same layer");
    for (what, at, cut, put) in [
        ("at the beginning", 0, 10, 10),
        ("in the middle", 500_000, 300, 300),
        ("an insertion", 300_001, 0, 77),
        ("a deletion", 300_001, 77, 0),
        ("the last byte", 1_000_002, 1, 1),
        ("an appendix", 1_000_003, 0, 5000),
        ("a shorter end", 990_000, 10_003, 0),
    ] {
        let mut changed = program.clone();
        changed.splice(at..at + cut, noise(2, put));
        let bytes = sent(&old, &layer(&changed));
        assert!(bytes < 18_000, "{what}: {bytes} bytes");
    }
}

#[test]
fn for_many_small_files_only_names_and_changed_files_are_sent() {
    let layer = |changed: usize| {
        let mut layer = tar();
        for number in 0..300 {
            let length = 37 * number % 6000;
            let seed = number as u64 + if number == changed { 1000 } else { 0 };
            layer = layer.bytes(&format!("usr/lib/python3/module{number}.py"), &noise(seed, length));
        }
        layer.finish()
    };
    let old = layer(usize::MAX);
    assert!(old.len() > 900_000);
    let (same, changed) = (sent(&old, &old), sent(&old, &layer(40)));
    assert!(same < 30_000, "{same} bytes for names");
    assert!(changed > same + 1000 && changed < same + 2500, "{changed} bytes with a file of 1480");
}

#[test]
fn any_layer_is_rebuilt_byte_for_byte_from_its_changes() {
    let long = "directory/".repeat(30);
    let odd = tar()
        .directory("a")
        .symlink("a/link", "../b")
        .bytes("empty", &[])
        .bytes("b", &noise(3, 4096))
        .hard_link("c", "b")
        .pax(&[("SCHILY.xattr.user.x", "y"), ("mtime", "5.5")])
        .bytes("with-attributes", &noise(4, 4090))
        .bytes(&format!("{long}f"), &noise(5, 9000))
        .entry(EntryType::Fifo, "fifo", "", 0o600, &[])
        .bytes("zeros", &vec![0; 200_000])
        .finish();
    let plain = tar().bytes("b", &noise(3, 4096)).finish();
    let followed = [&plain[..], &noise(9, 3000)].concat();
    for (old, new) in [(&plain, &odd), (&odd, &plain), (&odd, &odd), (&plain, &followed)] {
        sent(old, new);
    }
    // Data that is no archive is an error here; sending the whole layer then reports it.
    let scratch = Scratch::new();
    let (blocks, _) = listed(&image(&scratch, "base", &plain));
    let file = File::create(scratch.path().join("pieces")).unwrap();
    assert!(compare(&mut &noise(6, 3000)[..], &blocks, 0, &bounds(u64::MAX), file).is_err());
}

#[test]
fn a_comparison_that_saves_too_little_or_takes_too_long_is_abandoned() {
    let scratch = Scratch::new();
    let base = image(&scratch, "base", &tar().bytes("a", &noise(1, 300_000)).finish());
    let (blocks, bytes) = listed(&base);
    assert!(bytes.abs_diff(list_bytes(base.metadata().unwrap().len())) < 200, "{bytes}");
    let other = tar().bytes("a", &noise(2, 300_000)).finish();
    assert!(compared(&scratch, &other, &blocks, 0, 150_000).is_none());
    assert!(compared(&scratch, &other, &blocks, 0, 400_000).is_some());
    let file = File::create(scratch.path().join("pieces")).unwrap();
    let late = Bounds { bytes: u64::MAX, end: Instant::now() };
    assert!(compare(&mut &other[..], &blocks, 0, &late, file).unwrap().is_none());
}

#[test]
fn a_transfer_of_changes_resumes_after_the_pieces_already_received() {
    let scratch = Scratch::new();
    let (program, config) = (noise(1, 700_000), noise(2, 150_000));
    let old = tar().bytes("app", &program).finish();
    let new = tar().bytes("app", &program).bytes("config", &config).finish();
    let base = image(&scratch, "base", &old);
    let (blocks, _) = listed(&base);
    let all = compared(&scratch, &new, &blocks, 0, u64::MAX).unwrap();
    let pieces = all.pieces.clone();
    assert!(pieces.len() > 2, "{pieces:?}");
    let first = pieces[0].0;
    let (place, left) = all.rest(first).unwrap();
    assert_eq!((place, left), (pieces[0].1, pieces[1..].iter().map(|piece| piece.1).sum()));
    let beginning = file_of(&all, 0)[..pieces[0].1 as usize + 4].to_vec();
    let rest = file_of(&all, place);
    assert!(rebuilt(&base, &[beginning.clone(), rest].concat()).unwrap() == new);
    assert_eq!(all.rest(first + 1), None);
    assert_eq!(all.rest(new.len() as u64).unwrap().1, 0);
    // Another process, of another release, can continue from any position.
    for from in [first, 1, 511, 512, 4096, 5000, 600_001, new.len() as u64 - 1] {
        let rest = compared(&scratch, &new, &blocks, from, u64::MAX).unwrap();
        assert_eq!(rest.rest(from - 1), None);
        let place = rest.rest(from).unwrap().0;
        assert!(rebuilt(&base, &file_of(&rest, place)).unwrap() == new[from as usize..], "from {from}");
    }
}

/// Encodes a piece as a board stores it, from an uncompressed stream.
fn piece(makes: u64, stream: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(makes.to_be_bytes().to_vec(), Compression::fast());
    encoder.write_all(stream).unwrap();
    let piece = encoder.finish().unwrap();
    [&(piece.len() as u32).to_be_bytes()[..], &piece].concat()
}

fn copy(offset: u64, length: u32) -> Vec<u8> {
    [&[COPY][..], &offset.to_be_bytes(), &length.to_be_bytes()].concat()
}

#[test]
fn malformed_pieces_of_changes_are_rejected() {
    let scratch = Scratch::new();
    let base = image(&scratch, "base", &tar().bytes("a", &noise(1, 9000)).finish());
    let length = base.metadata().unwrap().len();
    assert_eq!(rebuilt(&base, &piece(3, b"\0\0\x03abc")).unwrap(), b"abc");
    let bomb = vec![0; UNPACKED_MAX + 1];
    for (pieces, expected) in [
        (piece(3, b"\0\0\x04abc"), "is cut off"),
        (piece(4, b"\0\0\x03abc"), "is cut off"),
        (piece(2, b"\0\0\x03abc"), "the declared number of bytes"),
        (piece(3, b"\0\0\x03abc\0"), "the declared number of bytes"),
        (piece(3, b"\0\0\0"), "the declared number of bytes"),
        (piece(0, b"\0\0\x03abc"), "makes nothing"),
        (piece(3, b"\x02"), "unknown instruction"),
        (piece(3, b"\x01\0"), "is cut off"),
        (piece(9, &copy(length - 8, 9)), "its base does not have"),
        (piece(9, &copy(u64::MAX - 3, 9)), "its base does not have"),
        (piece(9, &bomb), "unpacks to more"),
        (vec![0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 3], "longer than any"),
        (vec![0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1], "makes nothing"),
        (piece(3, b"\0\0\x03abc")[..12].to_vec(), "failed to fill"),
        (vec![0, 0], "end of file"),
        (vec![0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 7], ""),
    ] {
        let error = rebuilt(&base, &pieces).expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    // A few kilobytes of copy instructions that would expand to sixteen gigabytes.
    let copies = copy(0, length as u32).repeat(4000);
    let pieces = piece(length * 4000, &copies).repeat(400);
    let mut rebuilt = Rebuilt::new(base, Box::new(&pieces[..])).unwrap();
    let error = io::copy(&mut rebuilt, &mut io::sink()).expect_err("a bomb").to_string();
    assert!(error.contains("a thousand times"), "{error}");
}

#[test]
fn a_base_or_piece_changed_at_random_makes_another_layer_and_no_harm() {
    let scratch = Scratch::new();
    let layer =
        tar().bytes("a", &noise(1, 9000)).bytes("b", &noise(2, 300)).bytes("c", &noise(3, 100_000)).finish();
    let base = image(&scratch, "base", &layer);
    let (blocks, bytes) = listed(&base);
    let changes = compared(&scratch, &layer, &blocks, 0, u64::MAX).unwrap();
    let path = scratch.path().join("changed");
    let most = list_bytes(base.metadata().unwrap().len()) * 5;
    assert!(bytes < most);
    let mut image = Vec::new();
    (&base).read_to_end(&mut image).unwrap();
    fuzz("changes", 300, &[file_of(&changes, 0), piece(3, b"\0\0\x03abc")], &[&copy(0, 9)], |pieces| {
        let _ = rebuilt(&base, pieces);
    });
    fuzz("base", 100, &[image], &[&[5, 0, 0, 0, 0, 0x80, 0, 0]], |image| {
        std::fs::write(&path, image).unwrap();
        let base = File::open(&path).unwrap();
        let (blocks, bytes) = listed(&base);
        assert!(bytes <= list_bytes(image.len() as u64) * 5, "{bytes}");
        if let Some(changes) = compared(&scratch, &layer, &blocks, 0, u64::MAX) {
            assert!(rebuilt(&base, &file_of(&changes, 0)).unwrap() == layer);
        }
    });
    fuzz("list", 100, &[vec![0; 4000]], &[], |list| {
        let _ = Blocks::default().add(list);
    });
}
