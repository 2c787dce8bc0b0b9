//! The partition table of the boot medium: GPT, as the UEFI specification defines it.
//!
//! Sectors have 512 bytes. A power cut during a change leaves the old or the new table: first the copy at the
//! end of the medium is written, then the entries to one of two places that the table in use does not point
//! at, and last the one sector that points there.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use flate2::Crc;

pub(super) const SECTOR: u64 = 512;
const ENTRY: usize = 128;
/// The number of entries, as every tool writes it.
const ENTRIES: usize = 128;
/// Sectors of the array of entries.
const ARRAY: u64 = (ENTRY * ENTRIES) as u64 / SECTOR;
const HEADER: usize = 92;
const MAGIC: &[u8; 8] = b"EFI PART";
/// Partitions begin and end at multiples of this many sectors: 1 MiB.
const ALIGNMENT: u64 = 2048;
/// The two places of the array of entries. Tools use the first.
const PLACES: [u64; 2] = [2, 2 + ARRAY];

/// A GUID in its byte order on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guid(pub(super) [u8; 16]);

/// The type of the boot partition: "EFI system partition".
pub(super) const BOOT: Guid = Guid(*b"\x28\x73\x2a\xc1\x1f\xf8\xd2\x11\xba\x4b\x00\xa0\xc9\x3e\xc9\x3b");

/// The type of the data partition: "Linux variable data" of the Discoverable Partitions Specification.
pub(super) const DATA: Guid = Guid(*b"\x16\xb0\x21\x4d\x34\xb5\xc2\x45\xa9\xfb\x5c\x16\xe0\x91\xfd\x2d");

impl Guid {
    /// Parses a GUID: `4d21b016-b534-45c2-a9fb-5c16e091fd2d`.
    pub(super) fn parse(text: &str) -> Option<Guid> {
        // The first three fields are numbers, whose lowest byte comes first.
        const ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
        if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let mut bytes = [0; 16];
        for (place, pair) in ORDER.iter().zip(digits.chunks(2)) {
            bytes[*place] = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Guid(bytes))
    }
}

/// A partition: its number, and its position and size in sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    pub(super) number: usize,
    pub(super) first: u64,
    pub(super) sectors: u64,
}

/// A valid partition table.
pub(super) struct Table {
    header: [u8; HEADER],
    entries: Vec<u8>,
}

impl Table {
    /// Reads the table of a medium of this size, or the copy at its end if the first is damaged.
    pub(super) fn read(disk: &File, sectors: u64) -> Option<Table> {
        Table::read_at(disk, 1).or_else(|| Table::read_at(disk, sectors.checked_sub(1)?))
    }

    fn read_at(disk: &File, place: u64) -> Option<Table> {
        let mut header = [0; HEADER];
        disk.read_exact_at(&mut header, place * SECTOR).ok()?;
        let mut table = Table { header, entries: vec![0; ENTRY * ENTRIES] };
        let is_ours = header.starts_with(MAGIC)
            && table.checksum() == table.u32_at(16)
            && table.u64_at(24) == place
            && (table.u32_at(80), table.u32_at(84)) == (ENTRIES as u32, ENTRY as u32);
        if !is_ours {
            return None;
        }
        let array = table.u64_at(72).checked_mul(SECTOR)?;
        disk.read_exact_at(&mut table.entries, array).ok()?;
        (crc(&table.entries) == table.u32_at(88)).then_some(table)
    }

    /// Finds the first partition of this type.
    pub(super) fn of_kind(&self, kind: Guid) -> Option<Partition> {
        self.find(|entry| entry[..16] == kind.0)
    }

    /// Finds the partition with this identifier.
    pub(super) fn with_id(&self, id: Guid) -> Option<Partition> {
        self.find(|entry| entry[16..32] == id.0)
    }

    fn find(&self, is_wanted: impl Fn(&[u8]) -> bool) -> Option<Partition> {
        let index = self.entries.chunks(ENTRY).position(|entry| is_used(entry) && is_wanted(entry))?;
        let (first, last) = extent(&self.entries[index * ENTRY..]);
        let sectors = last.checked_sub(first)?.checked_add(1)?;
        Some(Partition { number: index + 1, first, sectors })
    }

    /// The data partition that would use all space behind the other partitions, on a medium of this size in
    /// sectors. `None` if no entry is free or no space remains.
    pub(super) fn rest(&self, sectors: u64) -> Option<Partition> {
        let entries = || self.entries.chunks(ENTRY);
        let is_data = |entry: &[u8]| entry[..16] == DATA.0;
        let others = entries().filter(|entry| is_used(entry) && !is_data(entry));
        let first = (others.map(|entry| extent(entry).1).max()? + 1).next_multiple_of(ALIGNMENT);
        let number = entries().position(is_data).or_else(|| entries().position(|entry| !is_used(entry)))? + 1;
        let end = sectors.checked_sub(1 + ARRAY)? / ALIGNMENT * ALIGNMENT;
        let sectors = end.checked_sub(first).filter(|sectors| *sectors > 0)?;
        Some(Partition { number, first, sectors })
    }

    /// Writes the table with this data partition, durably, to a medium of this size in sectors.
    pub(super) fn write_data(
        &mut self,
        disk: &File,
        sectors: u64,
        data: Partition,
        new_id: Guid,
    ) -> io::Result<()> {
        let entry = &mut self.entries[(data.number - 1) * ENTRY..][..ENTRY];
        if !is_used(entry) {
            entry[..16].copy_from_slice(&DATA.0);
            entry[16..32].copy_from_slice(&new_id.0);
            for (place, letter) in entry[56..].chunks_mut(2).zip(b"data") {
                place[0] = *letter;
            }
        }
        entry[32..40].copy_from_slice(&data.first.to_le_bytes());
        entry[40..48].copy_from_slice(&(data.first + data.sectors - 1).to_le_bytes());
        let array_in_use = if self.u64_at(24) == 1 { self.u64_at(72) } else { 0 };
        let array = if array_in_use == PLACES[0] { PLACES[1] } else { PLACES[0] };
        let last = sectors - 1;
        self.put(40, ALIGNMENT);
        self.put(48, last - ARRAY - 1);
        let crc = crc(&self.entries);
        self.header[88..92].copy_from_slice(&crc.to_le_bytes());
        self.write_at(disk, last, 1, last - ARRAY)?;
        self.write_at(disk, 1, last, array)
    }

    fn write_at(&mut self, disk: &File, place: u64, other: u64, array: u64) -> io::Result<()> {
        self.put(24, place);
        self.put(32, other);
        self.put(72, array);
        let checksum = self.checksum();
        self.header[16..20].copy_from_slice(&checksum.to_le_bytes());
        disk.write_all_at(&self.entries, array * SECTOR)?;
        disk.sync_data()?;
        let mut sector = [0; SECTOR as usize];
        sector[..HEADER].copy_from_slice(&self.header);
        disk.write_all_at(&sector, place * SECTOR)?;
        disk.sync_data()
    }

    fn checksum(&self) -> u32 {
        let mut header = self.header;
        header[16..20].fill(0);
        crc(&header)
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.header[at], self.header[at + 1], self.header[at + 2], self.header[at + 3]])
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64_of(&self.header[at..])
    }

    fn put(&mut self, at: usize, value: u64) {
        self.header[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

fn is_used(entry: &[u8]) -> bool {
    entry[..16] != [0; 16]
}

/// The first and the last sector of an entry's partition.
fn extent(entry: &[u8]) -> (u64, u64) {
    (u64_of(&entry[32..]), u64_of(&entry[40..]))
}

fn u64_of(bytes: &[u8]) -> u64 {
    bytes[..8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[cfg(test)]
mod tests;
