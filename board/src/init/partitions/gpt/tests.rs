use nodlet_tests::honest::{self, ABSENT, Disk};
use nodlet_tests::seed;

use super::*;

const ROOT: Guid = Guid([7; 16]);
const NEW: Guid = Guid([9; 16]);

/// A medium in a file of its own, which is removed after the test.
struct Medium(File);

impl Medium {
    /// A medium with the table of an image of 8 MiB: boot from 1 MiB to 3 MiB, root to 6 MiB.
    fn new(name: &str) -> Medium {
        let path = std::env::temp_dir().join(format!("nodlet-gpt-{name}-{}", std::process::id()));
        let file =
            File::options().read(true).write(true).create_new(true).open(&path).expect("a scratch file");
        std::fs::remove_file(&path).expect("it is ours");
        file.set_len(8 << 20).expect("a hole");
        let mut table = Table { header: [0; HEADER], entries: vec![0; ENTRY * ENTRIES] };
        table.header[..8].copy_from_slice(MAGIC);
        table.header[80..88].copy_from_slice(&[128, 0, 0, 0, 128, 0, 0, 0]);
        for (index, kind, id, extent) in
            [(0, BOOT, Guid([1; 16]), 2048..6144), (1, Guid([2; 16]), ROOT, 6144..12288)]
        {
            let entry: &mut [u8] = &mut table.entries[index * ENTRY..];
            entry[..16].copy_from_slice(&kind.0);
            entry[16..32].copy_from_slice(&id.0);
            entry[32..40].copy_from_slice(&u64::to_le_bytes(extent.start));
            entry[40..48].copy_from_slice(&u64::to_le_bytes(extent.end - 1));
        }
        let crc = crc(&table.entries);
        table.header[88..92].copy_from_slice(&crc.to_le_bytes());
        table.write_at(&file, 16383, 1, 16351).expect("it can be written");
        table.write_at(&file, 1, 16383, 2).expect("it can be written");
        Medium(file)
    }

    fn grow(&self, mib: u64) -> u64 {
        self.0.set_len(mib << 20).expect("a hole");
        mib << 11
    }
}

fn part(number: usize, first: u64, sectors: u64) -> Partition {
    Partition { number, first, sectors }
}

#[test]
fn a_guid_is_read_as_people_write_it() {
    assert_eq!(Guid::parse("4d21b016-b534-45c2-a9fb-5c16e091fd2d"), Some(DATA));
    assert_eq!(Guid::parse("C12A7328-F81F-11D2-BA4B-00A0C93EC93B"), Some(super::BOOT));
    for wrong in
        ["", "4d21b016", "4d21b016-b534-45c2-a9fb-5c16e091fd2", "4d21b016-b534-45c2-a9fb-5c16e091fd2x"]
    {
        assert_eq!(Guid::parse(wrong), None, "{wrong:?}");
    }
}

#[test]
fn the_data_partition_fills_the_medium_and_grows_with_it() {
    let medium = Medium::new("rest");
    let sectors = medium.grow(64);
    let mut table = Table::read(&medium.0, sectors).expect("it is whole");
    assert_eq!(table.with_id(ROOT), Some(part(2, 6144, 6144)));
    assert_eq!(table.of_kind(DATA), None);
    let data = table.rest(sectors).expect("there is room");
    assert_eq!(data, part(3, 12288, 63 * 2048 - 12288));
    table.write_data(&medium.0, sectors, data, NEW).expect("it can be written");

    let table = Table::read(&medium.0, sectors).expect("it is whole");
    assert_eq!((table.of_kind(DATA), table.with_id(NEW)), (Some(data), Some(data)));
    assert_eq!(table.rest(sectors), Some(data), "nothing more is left");
    // The image is copied to a larger medium.
    let sectors = medium.grow(100);
    let mut table = Table::read(&medium.0, sectors).expect("it is whole");
    let grown = table.rest(sectors).expect("there is room");
    assert_eq!(grown, part(3, 12288, 99 * 2048 - 12288));
    table.write_data(&medium.0, sectors, grown, Guid([5; 16])).expect("it can be written");
    let table = Table::read(&medium.0, sectors).expect("it is whole");
    assert_eq!(table.with_id(NEW), Some(grown), "it keeps its identifier");
}

#[test]
fn a_medium_of_the_size_of_the_image_has_no_space_for_a_data_partition() {
    let medium = Medium::new("full");
    let table = Table::read(&medium.0, 16384).expect("it is whole");
    assert_eq!(table.rest(14336), None);
    assert_eq!(table.rest(16384), Some(part(3, 12288, 2048)));
}

#[test]
fn the_copy_at_the_end_is_used_where_the_first_table_is_damaged() {
    let medium = Medium::new("copy");
    for place in [SECTOR + 20, 2 * SECTOR] {
        let before = Table::read(&medium.0, 16384).expect("it is whole").entries;
        let mut byte = [0];
        medium.0.read_exact_at(&mut byte, place).expect("it is there");
        medium.0.write_all_at(&[byte[0] ^ 1], place).expect("it can be written");
        assert!(Table::read_at(&medium.0, 1).is_none());
        assert_eq!(Table::read(&medium.0, 16384).expect("there is a copy").entries, before);
        medium.0.write_all_at(&byte, place).expect("it can be written");
    }
    medium.0.write_all_at(&[0; 20], 16383 * SECTOR).expect("it can be written");
    medium.0.write_all_at(&[0; 20], SECTOR).expect("it can be written");
    assert!(Table::read(&medium.0, 16384).is_none());
}

#[test]
fn a_change_leaves_the_table_in_use_alone_until_one_sector_is_written() {
    let medium = Medium::new("cut");
    let sectors = medium.grow(64);
    let mut old = vec![0; 3 * SECTOR as usize];
    for round in 0..3 {
        medium.0.read_exact_at(&mut old, 0).expect("it is there");
        let mut table = Table::read(&medium.0, sectors).expect("it is whole");
        let data = Partition { number: 3, first: 12288, sectors: 2048 * (round + 1) };
        table.write_data(&medium.0, sectors, data, NEW).expect("it can be written");
        assert_eq!(Table::read(&medium.0, sectors).expect("it is whole").of_kind(DATA), Some(data));
        // The power is cut before the last sector is written.
        let mut header = [0; SECTOR as usize];
        medium.0.read_exact_at(&mut header, SECTOR).expect("it is there");
        medium.0.write_all_at(&old[512..1024], SECTOR).expect("it can be written");
        let before = Table::read_at(&medium.0, 1).expect("the old one is whole").of_kind(DATA);
        assert_eq!(before.map(|data| data.sectors), (round > 0).then_some(2048 * round));
        medium.0.write_all_at(&header, SECTOR).expect("it can be written");
    }
}

/// States of a medium after a power cut that are read.
const STATES: usize = 100;

/// Firmware and other tools may read the first copy alone.
#[test]
fn the_first_copy_is_the_old_or_the_new_table_whatever_a_medium_lost() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let directory = scratch.path();
    let (initial, state) = (directory.join("initial"), directory.join("state"));
    let mut medium = Medium::new("lost");
    let sectors = medium.grow(64);
    let mut copy = File::create(&initial).expect("a scratch file");
    io::copy(&mut medium.0, &mut copy).expect("it has 64 MiB");
    let recorded = honest::Medium::new(&initial, &directory.join("current")).expect("it is there");
    let disk = Disk::attach(recorded.clone(), &directory.join("fuse"));
    // The data partition is created, and then it grows.
    for mib in 1..=8 {
        let disk = File::options().read(true).write(true).open(disk.path()).expect("a block device");
        let mut table = Table::read(&disk, sectors).expect("it is whole");
        let data = part(3, 12288, 2048 * mib);
        recorded.during("data", &data.sectors.to_string(), || {
            table.write_data(&disk, sectors, data, NEW).expect("it can be written");
        });
    }
    let record = recorded.record(&initial);
    let cuts = record.cuts(&mut seed(), STATES);
    assert!(cuts.len() >= STATES / 2, "{} states differ", cuts.len());
    for cut in cuts {
        record.write(&cut, &state).expect("/tmp can be written to");
        let table = Table::read_at(&File::open(&state).expect("it was written"), 1);
        let found = match &table {
            None => "no table".to_owned(),
            Some(table) => table.of_kind(DATA).map_or(ABSENT.to_owned(), |data| data.sectors.to_string()),
        };
        if let Some(allowed) = record.allowed(&cut).get("data") {
            assert!(allowed.contains(&*found), "{found} of {allowed:?} after the {}", record.describe(&cut));
        }
    }
    drop(disk);
}
