//! Reads a program's ELF header and program headers, which determine where it can run. A binary that needs a
//! loader does not start on a board, and a build does not report that it made one, so every shipped binary is
//! checked here.

use crate::task::{Outcome, TaskError};

/// The properties of a program that matter for starting it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elf {
    /// The processor that the program is for (`e_machine`).
    pub machine: u64,
    /// Whether its addresses are fixed (`ET_EXEC`), so that nothing is relocated at the start.
    pub fixed: bool,
    /// Whether the program names an interpreter (`PT_INTERP`), which must exist where the program runs.
    pub interpreter: bool,
}

/// `e_machine` of x86-64.
pub const EM_X86_64: u64 = 62;
/// `e_machine` of 64-bit ARM.
pub const EM_AARCH64: u64 = 183;
/// `e_machine` of 32-bit ARM.
pub const EM_ARM: u64 = 40;
/// `e_machine` of RISC-V, whatever the width of its registers.
pub const EM_RISCV: u64 = 243;

/// The offsets, in a header, of the position, the size and the number of program headers; and the size of an
/// address.
struct Layout {
    start: usize,
    size: usize,
    count: usize,
    address: usize,
}

const LAYOUT_32: Layout = Layout { start: 28, size: 42, count: 44, address: 4 };
const LAYOUT_64: Layout = Layout { start: 32, size: 54, count: 56, address: 8 };

/// Reads the headers of a little-endian program of 32 or 64 bits, as on every board.
pub fn read(bytes: &[u8]) -> Result<Elf, TaskError> {
    const ET_EXEC: u64 = 2;
    const PT_INTERP: u64 = 3;
    let layout = match bytes.get(..6) {
        Some(b"\x7fELF\x01\x01") => LAYOUT_32,
        Some(b"\x7fELF\x02\x01") => LAYOUT_64,
        _ => return Err("the binary is not a little-endian ELF file".into()),
    };
    let number = |at: usize, length: usize| -> Option<u64> {
        let field = bytes.get(at..at.checked_add(length)?)?;
        Some(field.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    let headers = || {
        let start = number(layout.start, layout.address)?;
        let (size, count) = (number(layout.size, 2)?, number(layout.count, 2)?);
        let kinds = (0..count).map(|index| {
            let at = start.checked_add(index * size)?;
            number(usize::try_from(at).ok()?, 4)
        });
        let interpreter = kinds.collect::<Option<Vec<_>>>()?.contains(&PT_INTERP);
        Some(Elf { machine: number(18, 2)?, fixed: number(16, 2)? == ET_EXEC, interpreter })
    };
    headers().ok_or_else(|| "the binary's program headers are cut off".into())
}

/// The bytes of a section.
pub fn section<'a>(bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let number = |at: usize, length: usize| -> Option<usize> {
        let field = bytes.get(at..at.checked_add(length)?)?;
        usize::try_from(field.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))).ok()
    };
    // The places, in the header, of the table and of the number of its entries; and in an entry those of the section.
    let (address, table, count, offset) = match bytes.get(..6)? {
        b"\x7fELF\x01\x01" => (4, 32, 48, 16),
        b"\x7fELF\x02\x01" => (8, 40, 60, 24),
        _ => return None,
    };
    let (start, size, entries) = (number(table, address)?, number(count - 2, 2)?, number(count, 2)?);
    let entry = |index: usize| start.checked_add(index.checked_mul(size)?);
    let content = |index: usize| {
        let at = entry(index)?;
        let begin = number(at + offset, address)?;
        bytes.get(begin..begin.checked_add(number(at + offset + address, address)?)?)
    };
    let names = content(number(count + 2, 2)?)?;
    let is_named = |index: &usize| {
        let name_of = || names.get(number(entry(*index)?, 4)?..)?.split(|byte| *byte == 0).next();
        name_of() == Some(name.as_bytes())
    };
    content((0..entries).find(is_named)?)
}

/// Rejects a program that would not start on a board with this processor, or would cost some 200 KiB of
/// private memory in every process there.
pub fn require_static(bytes: &[u8], machine: u64) -> Outcome {
    let elf = read(bytes)?;
    if elf.machine != machine {
        return Err(TaskError(format!("the binary is for ELF machine {}, not {machine}", elf.machine)));
    }
    if elf.interpreter {
        return Err("the binary is dynamic (PT_INTERP): something links a C library".into());
    }
    if !elf.fixed {
        return Err(
            "the binary is position independent: .cargo/config.toml sets relocation-model=static".into()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn ourselves() -> Vec<u8> {
        fs::read("/proc/self/exe").unwrap()
    }

    fn ours() -> u64 {
        crate::targets::host().unwrap().machine
    }

    // The tests are static only if they are built as nodlet is, which `cargo xtask check` does.
    #[test]
    #[cfg(target_env = "musl")]
    fn this_very_program_is_static_and_at_a_fixed_address() {
        require_static(&ourselves(), ours()).unwrap();
    }

    #[test]
    fn a_dynamic_program_is_refused_and_cargo_is_one() {
        let cargo = fs::read(env!("CARGO")).unwrap();
        assert!(read(&cargo).unwrap().interpreter);
        assert!(require_static(&cargo, ours()).unwrap_err().0.contains("PT_INTERP"));
    }

    #[test]
    fn a_program_for_another_processor_is_refused() {
        let other = if ours() == EM_X86_64 { EM_AARCH64 } else { EM_X86_64 };
        let why = require_static(&ourselves(), other).unwrap_err().0;
        assert!(why.contains(&format!("machine {}, not {other}", ours())), "{why}");
    }

    #[test]
    #[cfg(target_env = "musl")]
    fn a_position_independent_truncated_or_non_elf_program_is_rejected() {
        let refusal = |bytes: &[u8]| require_static(bytes, ours()).unwrap_err().0;
        assert!(refusal(b"#!/bin/sh").contains("not a little-endian ELF"));
        let mut elf = ourselves();
        elf[16] = 3;
        assert!(refusal(&elf).contains("position independent"));
        elf.truncate(70);
        assert!(refusal(&elf).contains("cut off"));
        elf.truncate(10);
        assert!(refusal(&elf).contains("cut off"));
    }

    #[test]
    fn sections_are_found_by_their_names() {
        let program = ourselves();
        // The table of names is a section itself.
        let names = section(&program, ".shstrtab").unwrap();
        assert!(names.windows(6).any(|name| name == b".text\0"));
        assert!(section(&program, ".text").unwrap().len() > 1000);
        assert_eq!(section(&program, ".dep-v0"), None);
        assert_eq!(section(&program[..100], ".text"), None);
        assert_eq!(section(b"#!/bin/sh", ".text"), None);
    }

    #[test]
    fn headers_of_32_bits_are_read_where_they_are() {
        let mut elf = b"\x7fELF\x01\x01".to_vec();
        elf.resize(52, 0);
        elf[16] = 2;
        elf[18] = EM_ARM as u8;
        // The single program header follows immediately.
        (elf[28], elf[42], elf[44]) = (52, 32, 1);
        elf.extend([1, 0, 0, 0]);
        require_static(&elf, EM_ARM).unwrap();
        elf[52] = 3;
        assert!(require_static(&elf, EM_ARM).unwrap_err().0.contains("PT_INTERP"));
        assert!(require_static(&elf, EM_RISCV).unwrap_err().0.contains("machine 40, not 243"));
    }

    #[test]
    fn headers_that_lie_past_the_end_of_numbers_are_refused() {
        let mut elf = ourselves();
        elf[32..40].fill(0xff);
        assert!(read(&elf).unwrap_err().0.contains("cut off"));
    }
}
