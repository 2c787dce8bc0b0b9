//! The targets for which binaries for boards are built.

use crate::elf;
use crate::task::TaskError;

/// A target for which binaries for boards are built.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Rust's name of the target.
    pub triple: &'static str,
    /// Rust's name of the processor, if nodlet can be built on a machine with it.
    host: Option<&'static str>,
    /// The processor in the header of an ELF file.
    pub machine: u64,
    /// QEMU's program that emulates a machine with this processor, and Debian's package of it.
    pub emulator: (&'static str, &'static str),
    /// The most bytes that the program for boards may have.
    pub most: u64,
    /// Debian's name of the processor.
    pub debian: &'static str,
    /// The directory of the C library in Debian's package, if rustup has none.
    pub musl: Option<&'static str>,
}

/// All of these targets.
pub const TARGETS: &[Target] = &[
    Target {
        triple: "x86_64-unknown-linux-musl",
        host: Some("x86_64"),
        machine: elf::EM_X86_64,
        emulator: ("qemu-system-x86_64", "qemu-system-x86"),
        most: 7_340_032,
        debian: "amd64",
        musl: None,
    },
    Target {
        triple: "aarch64-unknown-linux-musl",
        host: Some("aarch64"),
        machine: elf::EM_AARCH64,
        emulator: ("qemu-system-aarch64", "qemu-system-arm"),
        // 6 MiB, with everything that is planned.
        most: 6_291_456,
        debian: "arm64",
        musl: None,
    },
    Target {
        triple: "riscv64gc-unknown-linux-musl",
        host: None,
        machine: elf::EM_RISCV,
        emulator: ("qemu-system-riscv64", "qemu-system-misc"),
        most: 6_291_456,
        debian: "riscv64",
        musl: Some("usr/lib/riscv64-linux-musl"),
    },
    Target {
        triple: "armv7-unknown-linux-musleabihf",
        host: None,
        machine: elf::EM_ARM,
        emulator: ("qemu-system-arm", "qemu-system-arm"),
        most: 7_340_032,
        debian: "armhf",
        musl: Some("usr/lib/arm-linux-musleabihf"),
    },
];

/// The target of this name.
pub fn get(triple: &str) -> Result<&'static Target, TaskError> {
    TARGETS.iter().find(|target| target.triple == triple).ok_or_else(|| {
        let known: Vec<&str> = TARGETS.iter().map(|target| target.triple).collect();
        TaskError(format!("unknown target {triple:?}; there are {}", known.join(", ")))
    })
}

/// The target of this machine's own processor.
pub fn host() -> Result<&'static Target, TaskError> {
    of_arch(std::env::consts::ARCH)
}

fn of_arch(arch: &str) -> Result<&'static Target, TaskError> {
    TARGETS.iter().find(|target| target.host == Some(arch)).ok_or_else(|| {
        let known: Vec<&str> = TARGETS.iter().filter_map(|target| target.host).collect();
        TaskError(format!(
            "nodlet cannot be built on a machine for {arch} yet, only on {}",
            known.join(" and ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::task::project;

    #[test]
    fn the_error_for_an_unknown_target_lists_the_known_targets() {
        assert_eq!(get("aarch64-unknown-linux-musl").unwrap().machine, elf::EM_AARCH64);
        let why = get("z80-unknown-linux-musl").unwrap_err().0;
        assert!(why.contains("z80"), "{why}");
        for known in TARGETS {
            assert!(why.contains(known.triple), "{why}");
        }
    }

    #[test]
    fn each_processor_that_a_board_may_have_can_be_the_hosts() {
        assert_eq!(of_arch("x86_64").unwrap().triple, "x86_64-unknown-linux-musl");
        assert_eq!(of_arch("aarch64").unwrap().triple, "aarch64-unknown-linux-musl");
        // These are targets for boards only.
        assert!(of_arch("riscv64").is_err() && of_arch("arm").is_err());
        assert!(of_arch("z80").unwrap_err().0.contains("z80 yet, only on x86_64 and aarch64"));
        assert!(host().unwrap().triple.starts_with(std::env::consts::ARCH));
    }

    #[test]
    fn the_documented_maximum_sizes_are_those_of_the_targets() {
        let text = fs::read_to_string(project().join("docs/building.md")).unwrap();
        let maximum = |line: &str| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            let (triple, bytes) = (cells.next()?.strip_suffix('`')?, cells.nth(1)?.strip_suffix(" bytes |")?);
            Some((triple.to_owned(), bytes.replace(' ', "").parse::<u64>().ok()?))
        };
        let mut documented: Vec<_> = text.lines().filter_map(maximum).collect();
        let mut expected: Vec<_> =
            TARGETS.iter().map(|target| (target.triple.to_owned(), target.most)).collect();
        documented.sort();
        expected.sort();
        assert_eq!(documented, expected);
    }

    #[test]
    fn each_target_has_its_flags_in_cargos_configuration() {
        let config = fs::read_to_string(project().join(".cargo/config.toml")).unwrap();
        for target in TARGETS {
            let section = config.split(&format!("[target.{}]", target.triple)).nth(1).expect(target.triple);
            let section = section.split("\n[").next().unwrap();
            assert!(section.contains("relocation-model=static"), "{section}");
        }
    }
}
