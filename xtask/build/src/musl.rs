//! Provides the C library of a musl target: rustup's, which comes with the target's standard library, or else
//! that of Debian's package `musl-dev` for the target's processor.
//!
//! rustup's has everything with which a program is linked. Debian's lacks `libunwind.a`; a substitute is
//! compiled (`xtask/no_unwind.rs`), with which panics can abort but not unwind.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian;
use crate::targets::Target;
use crate::task::{TaskError, project, run as run_command, work};
use crate::toolchain::{self, Part};

/// The C library with which a target's programs are linked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Musl {
    Rustup,
    /// Debian's library, and the substitute for `libunwind.a`.
    Debian {
        libraries: PathBuf,
        unwind: PathBuf,
    },
}

/// Finds a target's C library, and fetches it if necessary. One that rustup can install is preferred. One
/// that was fetched from Debian stays in use, without asking rustup each time.
pub(crate) fn get(target: &Target) -> Result<Musl, TaskError> {
    let Some(directory) = target.musl else {
        toolchain::complete(&[Part::Library(target.triple)])?;
        return Ok(Musl::Rustup);
    };
    if Part::Library(target.triple).exists()? {
        return Ok(Musl::Rustup);
    }
    if !debian::is_here(NAME, target.debian)? {
        match toolchain::complete(&[Part::Library(target.triple)]) {
            Ok(()) => return Ok(Musl::Rustup),
            Err(_) => {
                eprintln!("rustup cannot install {}; Debian's C library takes its place", target.triple)
            }
        }
    }
    let files = debian::package(NAME, target.debian).map_err(|TaskError(why)| {
        TaskError(format!(
            "{} needs a C library, and Debian's {NAME} for {} could not be fetched either: {why}",
            target.triple, target.debian
        ))
    })?;
    Ok(Musl::Debian { libraries: files.join(directory), unwind: no_unwind(target)? })
}

const NAME: &str = "musl-dev";

impl Musl {
    /// The flags that link a program with this library, in addition to those of `.cargo/config.toml`.
    pub(crate) fn flags(&self) -> Vec<String> {
        let mut flags = vec!["-Clinker=rust-lld".to_owned()];
        match self {
            Musl::Rustup => flags.push("-Clink-self-contained=yes".to_owned()),
            Musl::Debian { libraries, unwind } => {
                flags.push("-Clink-self-contained=no".to_owned());
                let path = |dir: &Path| format!("-Lnative={}", dir.display());
                flags.extend([path(libraries), path(unwind)]);
                let starts = ["crt1.o", "crti.o", "crtn.o"].map(|file| libraries.join(file));
                flags.extend(starts.iter().map(|file| format!("-Clink-arg={}", file.display())));
            }
        }
        flags
    }
}

/// Compiles the substitute for `libunwind.a`, and returns its directory. It is a single object file, which
/// the linker accepts as an archive.
fn no_unwind(target: &Target) -> Result<PathBuf, TaskError> {
    let dir = work(&format!("no_unwind/{}", target.triple))?;
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition=2024", "--target", target.triple, "--emit=obj", "-Copt-level=z", "-Cpanic=abort"]);
    rustc.args(["-Crelocation-model=static", "-Cforce-unwind-tables=no"]);
    rustc.arg(project().join("xtask/no_unwind.rs")).arg("-o").arg(dir.join("libunwind.a"));
    run_command(rustc.current_dir(project()).env("RUSTC_BOOTSTRAP", "1"))?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debians_c_library_is_linked_by_its_own_start_files_and_rustups_by_rustc() {
        let rustup = Musl::Rustup.flags();
        assert!(rustup.contains(&"-Clink-self-contained=yes".to_owned()), "{rustup:?}");
        let debian = Musl::Debian { libraries: "/musl".into(), unwind: "/unwind".into() }.flags();
        let starts = ["-Clink-arg=/musl/crt1.o", "-Clink-arg=/musl/crti.o", "-Clink-arg=/musl/crtn.o"];
        assert_eq!(debian[debian.len() - 3..], starts);
        for flag in ["-Clink-self-contained=no", "-Lnative=/musl", "-Lnative=/unwind"] {
            assert!(debian.contains(&flag.to_owned()), "{flag} is not in {debian:?}");
        }
    }
}
