//! How many bytes the one binary has, as it is shipped. `--compare` shows the
//! difference to the ledger in `xtask/sizes.toml` and fails where it has grown
//! past what was said there; `--write` makes what is measured the new ledger.
//! A binary that is not static or not at a fixed address is refused: the first
//! would not start on a board, the second costs 200 KiB in every process.

use std::fs;
use std::path::PathBuf;

use crate::{Failure, Outcome, built, cargo, misused, project, run as run_command};

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (compare, write) = match arguments {
        [] => (false, false),
        [one] if one == "--compare" => (true, false),
        [one] if one == "--write" => (false, true),
        _ => return Err(misused("sizes")),
    };
    run_command(cargo().args(["build", "--release", "--package", "nodlet"]))?;
    let bytes = fs::read(built("release", "nodlet"))?;
    require_static(&bytes)?;
    let size = bytes.len();
    println!("nodlet x86_64-unknown-linux-musl: {size} bytes");
    if write {
        fs::write(ledger(), text_of(size))?;
    }
    if compare {
        let known = known(&fs::read_to_string(ledger())?)?;
        let difference = size.cast_signed() - known.cast_signed();
        println!("ledger: {known} bytes, difference {difference:+}");
        if size > known + known / 50 {
            return Err(
                "more than 2 % over the ledger: make it smaller, or say why and `cargo xtask sizes --write`"
                    .into(),
            );
        }
    }
    Ok(())
}

fn ledger() -> PathBuf {
    project().join("xtask/sizes.toml")
}

fn text_of(size: usize) -> String {
    format!(
        "# Bytes of the released binary, by target. `cargo xtask sizes --write` writes this file,\n\
         # `cargo xtask sizes --compare` holds a change against it.\n\
         x86_64-unknown-linux-musl = {size}\n"
    )
}

fn known(text: &str) -> Result<usize, Failure> {
    let line = text.lines().find_map(|line| line.strip_prefix("x86_64-unknown-linux-musl = "));
    Ok(line.ok_or("xtask/sizes.toml names no x86_64-unknown-linux-musl")?.trim().parse()?)
}

/// Reads the ELF header and the program headers, 64 bit and little endian.
fn require_static(elf: &[u8]) -> Outcome {
    const ET_EXEC: u64 = 2;
    const PT_INTERP: u64 = 3;
    let number = |at: usize, length: usize| -> Option<u64> {
        let field = elf.get(at..at + length)?;
        Some(field.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    let headers = || {
        let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        (0..count)
            .map(|index| number(usize::try_from(start + index * size).ok()?, 4))
            .collect::<Option<Vec<_>>>()
    };
    if elf.get(..5) != Some(b"\x7fELF\x02") {
        return Err("the binary is no 64-bit ELF file".into());
    }
    if number(16, 2) != Some(ET_EXEC) {
        return Err(
            "the binary is position independent: .cargo/config.toml sets relocation-model=static".into()
        );
    }
    match headers() {
        None => Err("the binary's program headers are cut off".into()),
        Some(types) if types.contains(&PT_INTERP) => {
            Err("the binary is dynamic (PT_INTERP): something links a C library".into())
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_very_program_is_static_and_at_a_fixed_address() {
        require_static(&fs::read("/proc/self/exe").unwrap()).unwrap();
    }

    #[test]
    fn what_is_dynamic_movable_or_no_program_is_refused() {
        assert!(require_static(b"#!/bin/sh").unwrap_err().0.contains("no 64-bit ELF"));
        let mut elf = fs::read("/proc/self/exe").unwrap();
        elf[16] = 3;
        assert!(require_static(&elf).unwrap_err().0.contains("position independent"));
        elf[16] = 2;
        let first = usize::from(elf[32]);
        elf[first..first + 4].copy_from_slice(&[3, 0, 0, 0]);
        assert!(require_static(&elf).unwrap_err().0.contains("PT_INTERP"));
        elf.truncate(70);
        assert!(require_static(&elf).unwrap_err().0.contains("cut off"));
    }

    #[test]
    fn the_ledger_is_read_as_it_is_written() {
        assert_eq!(known(&text_of(123_456)).unwrap(), 123_456);
        assert!(known("nothing").is_err());
    }
}
