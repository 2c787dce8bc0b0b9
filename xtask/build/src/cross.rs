//! Builds static binaries for boards, for every processor from this one machine: `nodlet` as it is shipped,
//! and with `--tests` the programs that test it on a board.
//!
//! Needs no C compiler, no foreign linker and no container: rustup provides the start files and the C library
//! of a musl target, or Debian does (`musl.rs`), and rustc comes with a linker for all targets. The standard
//! library is compiled as well, so that it is optimised for size, too
//! (`docs/decisions/0004-cross-builds.md`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::arguments::Arguments;
use crate::files;
use crate::musl::{self, Musl};
use crate::targets::{self, TARGETS, Target};
use crate::task::{
    Outcome, Task, TaskError, line_of, output, passed, plain_cargo, project, run as run_command, target_dir,
    test_output,
};
use crate::toolchain::{self, Part, cargo};
use crate::{crates, elf, stamp};
use nodlet_kernel::process::set_variable;

/// The flags that make the shipped program smaller than that of a plain `cargo build --release`, each with its reason. They
/// change no meaning: the source is the same. They do not apply to programs of `cargo test`, which must unwind.
const SMALLER: [&str; 4] = [
    // A panic aborts, and nothing reads the tables.
    "-Cforce-unwind-tables=no",
    // Equal functions are kept once. No code compares the addresses of functions.
    "-Clink-arg=--icf=all",
    // Equal constants are kept once. No code compares the addresses of equal ones.
    "-Clink-arg=--ignore-data-address-equality",
    // Texts that end with another text share its bytes.
    "-Clink-arg=-O2",
];

/// Further flags for the processors of most boards and developers, of the same kind.
fn smaller_on(target: &Target) -> &'static [&'static str] {
    match target.machine {
        elf::EM_X86_64 => &[
            // Sequences of instructions that occur several times become functions, as LLVM does by itself for ARM.
            "-Cllvm-args=-enable-machine-outliner",
            // An instruction that addresses the stack by the frame pointer is a byte shorter, and can be outlined.
            "-Cforce-frame-pointers=yes",
        ],
        elf::EM_AARCH64 => &[
            // Functions that save the same registers share the instructions for it.
            "-Cllvm-args=-homogeneous-prolog-epilog",
        ],
        _ => &[],
    }
}

/// The flags that make the bytes independent of the source directory, and shorten the paths in messages.
fn remapped() -> Result<Vec<String>, TaskError> {
    let crates = match (std::env::var_os("CARGO_HOME"), std::env::var_os("HOME")) {
        (Some(home), _) => PathBuf::from(home),
        (None, Some(home)) => Path::new(&home).join(".cargo"),
        (None, None) => return Err("neither CARGO_HOME nor HOME is set".into()),
    };
    let from_to = [
        (crates.join("registry/src"), "/crates"),
        (toolchain::rustlib()?.join("src/rust"), "/rust"),
        (project().to_owned(), "/nodlet"),
    ];
    Ok(from_to.iter().map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display())).collect())
}

/// The argument of cargo that sets additional flags of a target.
fn with_flags(target: &Target, flags: &[String]) -> String {
    format!("--config=target.{}.rustflags={flags:?}", target.triple)
}

/// The task `cargo xtask cross`.
pub const TASK: Task = Task::new(
    "cross",
    "[--tests] [TARGET]...",
    "build static binaries for boards, into target/cross; --tests also builds their tests",
    run,
);

fn run(arguments: &[String]) -> Outcome {
    let mut arguments = Arguments::new(&TASK, arguments);
    let with_tests = arguments.has("--tests");
    let triples = arguments.names()?;
    let targets: Vec<&Target> = if triples.is_empty() {
        TARGETS.iter().collect()
    } else {
        triples.iter().map(|triple| targets::get(triple)).collect::<Result<_, _>>()?
    };
    for target in targets {
        if with_tests {
            build_tests(target)?;
        } else {
            let program = build(target)?;
            println!("{}: {} bytes", program.display(), fs::metadata(&program)?.len());
        }
    }
    Ok(())
}

/// Builds the binary as it is shipped, checks it, and returns its path.
pub fn build(target: &Target) -> Result<PathBuf, TaskError> {
    let list = crates_in(target)?;
    let cargo = &mut shipping_cargo(target)?;
    cargo.args(["-Zbuild-std=std,panic_abort", "build", "--release", "--locked", "--package", "nodlet"]);
    run_command(cargo.env("NODLET_CRATES", &list))?;
    let mut bytes = fs::read(build_dir().join(target.triple).join("release/nodlet"))?;
    elf::require_static(&bytes, target.machine)?;
    require_small(bytes.len() as u64, target)?;
    if elf::section(&bytes, LIST_OF_CRATES) != Some(&fs::read(&list)?) {
        return Err(TaskError(format!("the binary for {} does not list its crates", target.triple)));
    }
    if let Some(commit) = stamp::of(project())? {
        stamp::write(&mut bytes, &commit)?;
    }
    put_bytes(&bytes, &place(target).join("nodlet"))
}

/// The section with the list of crates, by the convention of cargo-auditable.
pub(crate) const LIST_OF_CRATES: &str = ".dep-v0";

/// Writes the list of crates that the program for a target has in itself, and returns its path. The file stays unchanged
/// with the crates, so that nothing is compiled again.
fn crates_in(target: &Target) -> Result<PathBuf, TaskError> {
    let list = crates::list(target)?;
    let file = build_dir().join(format!("crates-{}", target.triple));
    if !fs::read(&file).is_ok_and(|before| before == list) {
        fs::create_dir_all(build_dir())?;
        files::write(&file, list)?;
    }
    Ok(file)
}

/// A cargo command with the flags of the shipped program, to which the crates of the standard library are to be added
/// that it compiles. All options precede the command: cargo drops these if the same option follows the command.
fn shipping_cargo(target: &Target) -> Result<Command, TaskError> {
    toolchain::complete(&[Part::Source])?;
    let mut flags = musl::get(target)?.flags();
    flags.extend(SMALLER.iter().chain(smaller_on(target)).map(|flag| (*flag).to_owned()));
    flags.extend(remapped()?);
    let mut command = plain_cargo_for(target)?;
    command.arg(with_flags(target, &flags)).arg("-Zbuild-std-features=optimize_for_size");
    // A pinned stable compiler supports the unstable options that compile its own standard library.
    command.env("RUSTC_BOOTSTRAP", "1");
    Ok(command)
}

/// Runs the tests of TLS, compiled with the flags of the shipped program: arithmetic that a compiler optimises wrongly
/// would pass all others.
pub fn test_tls() -> Outcome {
    let cargo = &mut shipping_cargo(targets::host()?)?;
    // The tests do not unwind: each runs in a process of its own.
    cargo.args(["-Zbuild-std=std,panic_abort,test", "-Zpanic-abort-tests"]);
    cargo.args(["test", "--release", "--locked", "--package", "nodlet-wire", "--lib", "tls::"]);
    match passed(&test_output(cargo)?) {
        0 => Err(TaskError(format!("{}: no test passed", line_of(cargo)))),
        _ => Ok(()),
    }
}

/// Builds the binary that a board with this machine's processor gets, and lets all tests run it that this process starts,
/// unless this process has chosen another one before.
pub fn provide() -> Outcome {
    if std::env::var_os("NODLET").is_some() {
        return Ok(());
    }
    let program = build(targets::host()?)?;
    // This program has one thread so far.
    set_variable("NODLET", program);
    Ok(())
}

/// Builds an unoptimised binary, which takes a fraction of the time, and lets the tests run it.
pub fn provide_debug() -> Outcome {
    run_command(cargo()?.args(["build", "--package", "nodlet"]))?;
    set_variable("NODLET", toolchain::built("debug", "nodlet")?);
    Ok(())
}

/// Builds the binary of a plain `cargo build --release`, and lets the tests run it.
pub fn provide_release() -> Outcome {
    run_command(cargo()?.args(["build", "--release", "--package", "nodlet"]))?;
    set_variable("NODLET", toolchain::built("release", "nodlet")?);
    Ok(())
}

/// Fails if a program is too large for boards of this kind, whatever its budget.
fn require_small(bytes: u64, target: &Target) -> Outcome {
    if bytes <= target.most {
        return Ok(());
    }
    Err(TaskError(format!("the binary for {} has {bytes} bytes, of at most {}", target.triple, target.most)))
}

/// Builds the test programs, in the test profile and with the precompiled standard library: the demo program,
/// below `tests` the suites that run the binary, and below `unit` the unit tests.
fn build_tests(target: &Target) -> Outcome {
    let place = place(target);
    // The program in the containers, and the program with which each device of the harness ends.
    for (package, kind, name, file) in [
        ("nodlet-tests", "--bin", "demo", "demo"),
        ("nodlet-runtime", "--example", "replay", "examples/replay"),
    ] {
        run_command(cargo_for(target)?.args(["build", "--locked", "--package", package, kind, name]))?;
        let program = build_dir().join(target.triple).join("debug").join(file);
        elf::require_static(&fs::read(&program)?, target.machine)?;
        println!("{}", put(&program, &place.join(file))?.display());
    }

    let mut build = cargo_for(target)?;
    build.args(["test", "--no-run", "--locked", "--workspace"]);
    // The programs that run on the developer's machine alone.
    for package in ["nodlet-bench", "nodlet-build", "nodlet-dist", "nodlet-system-tests", "xtask"] {
        build.args(["--exclude", package]);
    }
    build.arg("--message-format=json-render-diagnostics");
    for Executable { name, path, kind, .. } in executables(&mut build)?.iter().filter(|built| built.is_test) {
        // Unit tests have a directory of their own: those of `nodlet` have the name of the program for which the suites look.
        let dir = if kind == "test" { "tests" } else { "unit" };
        elf::require_static(&fs::read(path)?, target.machine)?;
        println!("{}", put(path, &place.join(dir).join(name))?.display());
    }
    Ok(())
}

/// A program that cargo has built.
#[derive(Debug, PartialEq)]
pub struct Executable {
    /// The name of cargo's target.
    pub name: String,
    /// The kind of cargo's target, such as `bin` or `test`.
    pub kind: String,
    /// The program's place.
    pub path: PathBuf,
    /// Whether it contains tests.
    pub is_test: bool,
}

/// Runs a build of cargo with the option `--message-format=json` or a variant of it, and returns the programs.
///
/// # Errors
/// The build fails.
pub fn executables(build: &mut Command) -> Result<Vec<Executable>, TaskError> {
    eprintln!("$ {}", line_of(build));
    executables_in(&output(build.stderr(Stdio::inherit()))?)
}

/// The programs in cargo's messages, one JSON object per line.
fn executables_in(messages: &str) -> Result<Vec<Executable>, TaskError> {
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        let text =
            |pointer: &str| message.pointer(pointer).and_then(|value| value.as_str()).map(str::to_owned);
        if let (Some(path), Some(name)) = (text("/executable"), text("/target/name")) {
            let kind = text("/target/kind/0").unwrap_or_default();
            programs.push(Executable {
                name,
                kind,
                path: path.into(),
                is_test: message["profile"]["test"] == true,
            });
        }
    }
    Ok(programs)
}

/// The build directory. It is separate from that of builds with other options, so that neither triggers
/// rebuilds of the other.
fn build_dir() -> PathBuf {
    target_dir().join("cross/build")
}

/// The directory of a target's finished programs.
fn place(target: &Target) -> PathBuf {
    target_dir().join("cross").join(target.triple)
}

/// A cargo command for one of the targets. For this machine's own target it uses the developer's build
/// directory, in which programs are usually already built.
pub fn cargo_for_triple(triple: &str) -> Result<Command, TaskError> {
    let target = targets::get(triple)?;
    if triple == targets::host()?.triple { cargo() } else { cargo_for(target) }
}

/// A cargo command for a target, with all options that precede the command. With Debian's C library, the
/// standard library is compiled as well, and tests do not unwind: each runs in a process of its own.
fn cargo_for(target: &Target) -> Result<Command, TaskError> {
    let musl = musl::get(target)?;
    let mut command = plain_cargo_for(target)?;
    if musl != Musl::Rustup {
        toolchain::complete(&[Part::Source])?;
        command.arg(with_flags(target, &musl.flags()));
        command.args(["-Zbuild-std=std,panic_abort,test", "-Zpanic-abort-tests"]).env("RUSTC_BOOTSTRAP", "1");
        // With an unoptimised library and in an emulator, checksums would take minutes.
        command.arg("--config=profile.dev.package.sha2.opt-level=3");
    }
    Ok(command)
}

fn plain_cargo_for(target: &Target) -> Result<Command, TaskError> {
    // Writes the configuration with the patched crate.
    toolchain::host()?;
    let mut command = plain_cargo();
    // The commit is written into the finished program.
    command.env_remove("NODLET_COMMIT").env_remove("NODLET_COMMIT_DATE");
    // These would override .cargo/config.toml.
    command.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    command.env("CARGO_TARGET_DIR", build_dir()).env("CARGO_BUILD_TARGET", target.triple);
    Ok(command)
}

/// Copies a program to its finished place.
fn put(from: &Path, to: &Path) -> Result<PathBuf, TaskError> {
    let bytes = files::read(from)?;
    put_bytes(&bytes, to)
}

fn put_bytes(bytes: &[u8], to: &Path) -> Result<PathBuf, TaskError> {
    // Tests may run the program, and compare its processes with the file.
    if fs::read(to).is_ok_and(|before| before == bytes) {
        return Ok(to.to_owned());
    }
    files::replace(to, bytes, 0o755)?;
    Ok(to.to_owned())
}

/// Adds to the toolchain what [`build`] needs for a target.
pub fn complete(target: &Target) -> Outcome {
    toolchain::complete(&[Part::Source])?;
    musl::get(target).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_larger_than_the_limit_of_a_board_is_rejected() {
        let board = targets::get("armv7-unknown-linux-musleabihf").unwrap();
        require_small(board.most, board).unwrap();
        let why = require_small(board.most + 1, board).unwrap_err().0;
        let sizes = format!("{} bytes, of at most {}", board.most + 1, board.most);
        assert!(why.contains("armv7") && why.contains(&sizes), "{why}");
    }

    #[test]
    fn programs_are_read_from_cargos_messages() {
        let messages = [
            r#"{"target":{"kind":["bin"],"name":"demo"},"profile":{"test":false},"executable":"/t/demo"}"#,
            r#"{"target":{"kind":["test"],"name":"line"},"profile":{"test":true},"executable":"/t/line-1f"}"#,
            r#"{"target":{"kind":["lib"],"name":"one"},"profile":{"test":false},"executable":null}"#,
            r#"{"reason":"build-finished","success":true}"#,
        ];
        let executable = |kind: &str, name: &str, path: &str, is_test| Executable {
            name: name.into(),
            kind: kind.into(),
            path: path.into(),
            is_test,
        };
        let expected =
            [executable("bin", "demo", "/t/demo", false), executable("test", "line", "/t/line-1f", true)];
        assert_eq!(executables_in(&messages.join("\n")).unwrap(), expected);
        assert!(executables_in("no JSON").is_err());
    }
}
