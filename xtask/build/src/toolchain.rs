//! Provides what the tasks need of the Rust toolchain: the musl target of this machine's processor, cargo that
//! builds for it, and components such as clippy. Missing parts are added with rustup, even if rustup is configured
//! to install nothing by itself (`RUSTUP_AUTO_INSTALL=0`). Without rustup, or if it manages another compiler, the
//! error says what to install.
//!
//! xtask itself is built for the host's own target (`.cargo/config.toml`), so it runs before
//! any of this is installed. It never installs a toolchain: cargo, which runs it, is part of one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::files;
use crate::patched;
use crate::targets::{self, Target};
use crate::task::{
    Outcome, TaskError, line_of, output, plain_cargo, project, run as run_command, target_dir,
};

/// A part that rustup can add to a toolchain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The lints.
    Clippy,
    /// The formatter.
    Rustfmt,
    /// The source of the standard library, for `-Zbuild-std`.
    Source,
    /// The compiled standard library for a target.
    Library(&'static str),
}

impl Part {
    /// The arguments of rustup that add the part.
    fn arguments(self) -> [&'static str; 3] {
        match self {
            Part::Clippy => ["component", "add", "clippy"],
            Part::Rustfmt => ["component", "add", "rustfmt"],
            Part::Source => ["component", "add", "rust-src"],
            Part::Library(triple) => ["target", "add", triple],
        }
    }

    /// Whether the toolchain has it.
    pub fn exists(self) -> Result<bool, TaskError> {
        match self {
            Part::Clippy => succeeds(plain_cargo().args(["clippy", "--version"])),
            Part::Rustfmt => succeeds(plain_cargo().args(["fmt", "--version"])),
            Part::Source => Ok(rustlib()?.join("src/rust/library/Cargo.lock").is_file()),
            Part::Library(triple) => Ok(has_core(&rustlib()?.join(triple).join("lib"))),
        }
    }
}

/// Adds the parts that the toolchain lacks.
pub fn complete(parts: &[Part]) -> Outcome {
    let missing = missing(parts)?;
    if missing.is_empty() {
        return Ok(());
    }
    let added = missing.iter().try_for_each(|part| {
        run_command(Command::new("rustup").args(part.arguments()).current_dir(project()))
    });
    let missing = self::missing(&missing)?;
    if missing.is_empty() { Ok(()) } else { Err(lacking(&missing, added, &sysroot()?)) }
}

fn missing(parts: &[Part]) -> Result<Vec<Part>, TaskError> {
    let mut missing = Vec::new();
    for part in parts {
        if !part.exists()? {
            missing.push(*part);
        }
    }
    Ok(missing)
}

/// The error for parts that are still missing after rustup was asked to add them.
fn lacking(missing: &[Part], added: Outcome, sysroot: &Path) -> TaskError {
    let commands: Vec<String> =
        missing.iter().map(|part| format!("rustup {}", part.arguments().join(" "))).collect();
    let cause = match added {
        Ok(()) => "rustup manages another toolchain".to_owned(),
        Err(TaskError(cause)) => cause,
    };
    TaskError(format!(
        "the Rust toolchain in {} is incomplete and could not be completed ({cause}): install rustup, let its \
         `cargo` be the first in PATH, and run `{}`",
        sysroot.display(),
        commands.join(" && ")
    ))
}

/// The target of this machine's processor, for which nodlet and its tests are built. Installs its standard
/// library if necessary. From then on, a plain `cargo build` in this checkout builds for it, too.
pub fn host() -> Result<&'static Target, TaskError> {
    static HOST: OnceLock<&Target> = OnceLock::new();
    if let Some(host) = HOST.get() {
        return Ok(host);
    }
    let host = targets::host()?;
    complete(&[Part::Library(host.triple)])?;
    // One directory, so that removing it removes the crate and its name in the configuration.
    let directory = project().join(".cargo/host");
    let patched = patched::libcontainer(&directory)?;
    write_default(&directory, host.triple, &patched)?;
    Ok(HOST.get_or_init(|| host))
}

/// The directory of the patched crate, which [`host`] has made.
pub fn patched() -> Result<PathBuf, TaskError> {
    let directory = project().join(".cargo/host");
    Ok(directory.join(patched::libcontainer(&directory)?))
}

/// The directory with the documents of the toolchain, such as the licences of the standard library.
pub fn documents() -> Result<PathBuf, TaskError> {
    Ok(sysroot()?.join("share/doc/rust"))
}

/// Writes `config.toml` of the directory `host`, which `.cargo/config.toml` includes, unless it has this content already.
/// `patched` is the name of a directory beside the file.
fn write_default(host: &Path, triple: &str, patched: &str) -> Outcome {
    // cargo reads relative paths from the parent of the file's directory.
    let text = format!(
        "# Written by `cargo xtask`.\npaths = [\"host/{patched}\"]\n\n[build]\ntarget = \"{triple}\"\n"
    );
    let file = host.join("config.toml");
    if fs::read_to_string(&file).is_ok_and(|present| present == text) {
        return Ok(());
    }
    files::write(&file, text)
}

/// `cargo` in the root of the repository, which builds for the musl target of this machine's processor.
pub fn cargo() -> Result<Command, TaskError> {
    let mut command = plain_cargo();
    command.env("CARGO_BUILD_TARGET", host()?.triple);
    Ok(command)
}

/// The path of a program of this workspace that [`cargo`] has built.
pub fn built(profile: &str, program: &str) -> Result<PathBuf, TaskError> {
    Ok(target_dir().join(targets::host()?.triple).join(profile).join(program))
}

/// The nodlet that a task itself calls on this machine: that of `$NODLET`, or an unoptimised one, which is built.
pub fn own_nodlet() -> Result<PathBuf, TaskError> {
    if let Some(path) = std::env::var_os("NODLET") {
        return Ok(path.into());
    }
    run_command(cargo()?.args(["build", "--package", "nodlet"]))?;
    built("debug", "nodlet")
}

/// Builds the programs of the tests: that in containers, the replay of observations, and an unoptimised nodlet. With the
/// features that unit tests have, so that nothing is compiled twice.
pub fn programs() -> Outcome {
    run_command(cargo()?.args(["build", "--workspace", "--bins", "--examples"]))
}

/// The directory of the toolchain's libraries, and of parts that rustup adds.
pub(crate) fn rustlib() -> Result<PathBuf, TaskError> {
    Ok(sysroot()?.join("lib/rustlib"))
}

/// The `objcopy` that comes with rustc and supports all processors.
pub fn objcopy() -> Result<PathBuf, TaskError> {
    let rustlib = rustlib()?;
    let programs = fs::read_dir(&rustlib)?.flatten().map(|entry| entry.path().join("bin/rust-objcopy"));
    programs.into_iter().find(|program| program.is_file()).ok_or_else(|| {
        TaskError(format!("{} has no bin/rust-objcopy: install the toolchain again", rustlib.display()))
    })
}

fn sysroot() -> Result<PathBuf, TaskError> {
    let mut rustc = Command::new("rustc");
    Ok(output(rustc.args(["--print", "sysroot"]).current_dir(project()))?.trim().into())
}

/// Whether a directory has a compiled `core`, as each standard library does.
fn has_core(dir: &Path) -> bool {
    let mut entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.any(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("libcore-") && name.ends_with(".rlib")
    })
}

fn succeeds(command: &mut Command) -> Result<bool, TaskError> {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    Ok(status.map_err(|error| format!("failed to run {}: {error}", line_of(command)))?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toolchain_that_stays_incomplete_is_an_error_with_the_command_that_completes_it() {
        let missing = [Part::Library("aarch64-unknown-linux-musl"), Part::Clippy];
        for (added, cause) in [
            (Ok(()), "rustup manages another toolchain"),
            (Err(TaskError("failed to run rustup target add: No such file".into())), "No such file"),
        ] {
            let TaskError(why) = lacking(&missing, added, Path::new("/usr"));
            let command = "`rustup target add aarch64-unknown-linux-musl && rustup component add clippy`";
            for part in [cause, "toolchain in /usr is incomplete", "install rustup", command] {
                assert!(why.contains(part), "{why}");
            }
            assert!(!why.contains('\n') && !why.contains(". "), "one sentence: {why}");
        }
    }

    #[test]
    fn a_target_is_installed_where_its_core_is() {
        assert!(Part::Library(targets::host().unwrap().triple).exists().unwrap());
        assert!(!Part::Library("z80-unknown-linux-musl").exists().unwrap());
    }

    #[test]
    fn the_default_target_is_written_again_only_where_it_is_another() {
        let dir = std::env::temp_dir().join(format!("xtask-toolchain-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("config.toml");
        let patched = "one-1.0.0";
        write_default(&dir, "x86_64-unknown-linux-musl", patched).unwrap();
        let paths = "paths = [\"host/one-1.0.0\"]\n";
        assert!(fs::read_to_string(&file).unwrap().contains(paths));
        assert!(fs::read_to_string(&file).unwrap().contains("target = \"x86_64-unknown-linux-musl\""));
        let written = fs::metadata(&file).unwrap().modified().unwrap();
        write_default(&dir, "x86_64-unknown-linux-musl", patched).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), written);
        write_default(&dir, "aarch64-unknown-linux-musl", patched).unwrap();
        assert!(fs::read_to_string(&file).unwrap().contains("target = \"aarch64-unknown-linux-musl\""));
        fs::remove_dir_all(&dir).unwrap();
    }

    /// `git clean -X`, and a developer who starts anew, remove what git ignores, in parts.
    #[test]
    fn without_the_directory_that_cargo_xtask_writes_cargo_uses_the_published_crate() {
        let dir = std::env::temp_dir().join(format!("xtask-host-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join(".cargo")).unwrap();
        fs::create_dir_all(dir.join("src")).unwrap();
        fs::copy(project().join(".cargo/config.toml"), dir.join(".cargo/config.toml")).unwrap();
        fs::write(dir.join("Cargo.toml"), "[package]\nname = \"empty\"\nedition = \"2024\"\n").unwrap();
        fs::write(dir.join("src/lib.rs"), "").unwrap();
        let configured = || {
            let mut cargo = plain_cargo();
            let output =
                cargo.args(["metadata", "--format-version", "1", "--offline"]).current_dir(&dir).output();
            let output = output.unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let host = dir.join(".cargo/host");
        fs::create_dir_all(host.join("one-1.0.0/src")).unwrap();
        fs::write(host.join("one-1.0.0/Cargo.toml"), "[package]\nname = \"one\"\nedition = \"2024\"\n")
            .unwrap();
        fs::write(host.join("one-1.0.0/src/lib.rs"), "").unwrap();
        write_default(&host, "x86_64-unknown-linux-musl", "one-1.0.0").unwrap();
        configured();
        // What git ignores is a single directory, so that nobody removes a part of it.
        let ignored = fs::read_to_string(project().join(".gitignore")).unwrap();
        let ours: Vec<&str> = ignored.lines().filter(|line| line.contains(".cargo")).collect();
        assert_eq!(ours, ["/.cargo/host"]);
        fs::remove_dir_all(dir.join(&ours[0][1..])).unwrap();
        configured();
        fs::remove_dir_all(&dir).unwrap();
    }

    /// A developer's machine may have any processor that a board may have, so cargo's configuration must not
    /// name one of them for all.
    #[test]
    fn cargos_configuration_chooses_no_processor() {
        let config = fs::read_to_string(project().join(".cargo/config.toml")).unwrap();
        assert!(!config.contains("[build]"), "{config}");
        let toolchain = fs::read_to_string(project().join("rust-toolchain.toml")).unwrap();
        assert!(!toolchain.contains("targets"), "{toolchain}");
    }
}
