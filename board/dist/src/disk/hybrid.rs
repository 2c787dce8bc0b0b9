//! Writes a hybrid master boot record that names the same partitions as the GPT, for the firmware of a
//! Raspberry Pi. `start4.elf` of Debian 13 finds no kernel on a card whose first or second entry is the
//! protective one, and older releases do not support GPT at all. Linux reads the GPT as long as any entry is
//! protective.

use std::fs::File;
use std::os::unix::fs::FileExt;

use nodlet_build::task::Outcome;

use super::{MIB, SECTOR, Sizes};

/// The offset of the four entries.
const ENTRIES: u64 = 446;

/// An entry without cylinders, heads and sectors, which nobody reads.
fn entry(kind: u8, first: u64, bytes: u64) -> Result<[u8; 16], std::num::TryFromIntError> {
    let [first, sectors] = [u32::try_from(first / SECTOR)?, u32::try_from(bytes / SECTOR)?];
    let mut entry = [0; 16];
    entry[1..4].fill(0xff);
    entry[4] = kind;
    entry[5..8].fill(0xff);
    entry[8..12].copy_from_slice(&first.to_le_bytes());
    entry[12..].copy_from_slice(&sectors.to_le_bytes());
    Ok(entry)
}

/// Replaces the protective record of a disk by entries for boot, root, and the protected table.
pub(super) fn write(file: &mut File, sizes: &Sizes) -> Outcome {
    const FAT32: u8 = 0x0c;
    const LINUX: u8 = 0x83;
    const PROTECTIVE: u8 = 0xee;
    let entries = [
        entry(FAT32, MIB, sizes.boot)?,
        entry(LINUX, MIB + sizes.boot, sizes.root)?,
        // The protective entry must begin at the sector of the GPT's header.
        entry(PROTECTIVE, SECTOR, MIB - SECTOR)?,
        [0; 16],
    ];
    Ok(file.write_all_at(entries.as_flattened(), ENTRIES)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::disk::{identifier, write_table};

    #[test]
    fn the_record_names_boot_and_root_first_and_the_gpt_is_still_what_counts() {
        let path = std::env::temp_dir().join(format!("nodlet-hybrid-{}", std::process::id()));
        let mut file =
            File::options().read(true).write(true).create_new(true).open(&path).expect("a scratch file");
        let sizes = Sizes { boot: 128 * MIB, root: 14 * MIB };
        file.set_len(sizes.image()).expect("a hole");
        let id = |name: &str| identifier(&[name.as_bytes()]);
        write_table(&mut file, &sizes, id("disk"), id("boot"), id("root")).expect("it can be written");
        write(&mut file, &sizes).expect("it can be written");
        let disk = gpt::GptConfig::new().open_from_device(&mut file).expect("it is a disk");
        assert_eq!(disk.partitions().len(), 2);
        let parts: Vec<(u64, u64)> = disk
            .partitions()
            .values()
            .map(|part| (part.first_lba, part.last_lba - part.first_lba + 1))
            .collect();
        drop(disk);
        let mut record = [0; 512];
        file.read_exact_at(&mut record, 0).expect("it is there");
        fs::remove_file(&path).expect("it is ours");
        let number = |at: usize| u64::from(u32::from_le_bytes(record[at..at + 4].try_into().expect("four")));
        let entries: Vec<(u8, u64, u64)> = (0..4)
            .map(|n| 446 + 16 * n)
            .map(|at| (record[at + 4], number(at + 8), number(at + 12)))
            .collect();
        let expected =
            [(0x0c, parts[0].0, parts[0].1), (0x83, parts[1].0, parts[1].1), (0xee, 1, 2047), (0, 0, 0)];
        assert_eq!(entries, expected);
        assert_eq!(record[510..], [0x55, 0xaa]);
    }
}
