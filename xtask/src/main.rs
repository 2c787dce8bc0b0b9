//! The tasks of nodlet's developers, run as `cargo xtask TASK`. Each task has a file; this one has the list
//! of tasks and shared helpers.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

mod bench;
mod boards;
mod boot_files;
mod budgets;
mod check;
mod commit;
mod cross;
mod deb;
mod debian;
mod demo;
mod demo_image;
mod disk;
mod distribution;
mod earlier;
mod elf;
mod gates;
mod go;
mod guest;
mod help;
mod image;
mod images;
#[cfg(target_arch = "x86_64")]
mod layout;
mod linker_script;
mod long;
mod musl;
mod mutants;
mod patched;
mod profile;
mod programs;
mod recipes;
mod schema;
mod setup;
mod sizes;
mod targets;
mod toolchain;

/// A task: its name, its arguments, its description in a line, and its function.
type Task = (&'static str, &'static str, &'static str, fn(&[String]) -> Outcome);

/// All tasks, as `cargo xtask` without arguments prints them.
const TASKS: &[Task] = &[
    (
        "demo",
        "[--keep] [--gateway | --board PROFILE]",
        "show what nodlet does, on this machine or on an emulated board; --keep leaves it running",
        demo::run,
    ),
    ("setup", "", "install what the tests need and this machine lacks (Debian, root)", setup::run),
    (
        "check",
        "[--install] [fmt] [clippy] [doc] [unit] [containers] [gates] [guest] [boards]",
        "everything that must hold: form, lints, unit tests, real containers, guests",
        check::run,
    ),
    (
        "cross",
        "[--tests] [TARGET]...",
        "static binaries for boards, into target/cross; --tests: what tests them there",
        cross::run,
    ),
    (
        "deb",
        "[--version VERSION] [TARGET]...",
        "packages for Debian with the binaries for boards, into target/packages",
        deb::run,
    ),
    (
        "recipes",
        "[yocto] [buildroot]",
        "what the Yocto layer and the Buildroot tree do, without either of them",
        recipes::run,
    ),
    (
        "distribution",
        "",
        "build as a distribution does: stable Rust, this C library, offline",
        distribution::run,
    ),
    (
        "sizes",
        "[--compare | --write] [release | TARGET]...",
        "the bytes of each build; --compare with their budgets, --write them",
        sizes::run,
    ),
    (
        "bench",
        "[--only NAME]... [--rounds N] [--minutes N] [--debug | --binary PATH]",
        "the figures of the README, measured here; of another binary with --binary",
        bench::run,
    ),
    (
        "gates",
        "[--write] [--binary PATH]",
        "bytes, memory, system calls and wake-ups, held against xtask/budgets.toml",
        gates::run,
    ),
    // Traces programs by breakpoints of x86-64.
    #[cfg(target_arch = "x86_64")]
    (
        "layout",
        "",
        "write the lists in xtask/layout: what agents and supervisors execute lies together in the binary",
        layout::run,
    ),
    (
        "guest",
        "[--target TARGET] [--shard PART/OF | --some NUMBER/COUNT] [GUEST [PROGRAM ARGUMENT...]]",
        "the tests that need a kernel of their own, in QEMU; only one guest, or only this in it, or a part",
        guest::run,
    ),
    (
        "long",
        "[images] [fuzz] [memory] [soak] [kills] [upgrade] [guests] [--rounds N] [--seed N] [--shard M/N]",
        "what check runs for a short while, for long or in every case there is",
        long::run,
    ),
    ("demo-image", "", "build the demo image into .work/images, in both archive formats", demo_image::run),
    (
        "boards",
        "[--only ssh|watchdog|disk|ten-pods|network|update|demo]... [PROFILE]...",
        "boot the emulated boards of board/profiles, use them over SSH, and break them",
        boards::run,
    ),
    (
        "peers",
        "[--rounds N] [PROFILE]",
        "measure kubelet and containerd beside nodlet on an emulated board, from the kernel's entry",
        boards::peers::run,
    ),
    (
        "image",
        "PROFILE [--pod FILE]... [--oci FILE]... [--ssh-key FILE]... [--push-key FILE]... [--config FILE] [--firmware DIR]",
        "what a board of board/profiles boots, with pods and images in it, into .work/boards/PROFILE",
        image::run,
    ),
    ("images", "", "build images of redis, nginx and python3 with buildah, podman and skopeo", images::run),
    ("agnhost", "", "build the servers of Kubernetes' own tests into .work/agnhost", go::agnhost),
    ("kubectl", "", "build the real kubectl from its Go modules into .work/kubectl", go::kubectl),
    ("schema", "", "write the table of Kubernetes' fields and docs/pods.md anew (Go, network)", schema::run),
];

type Outcome = Result<(), Failure>;

/// Why a task failed, in a sentence that includes the remedy.
#[derive(Debug)]
struct Failure(String);

impl<T: std::fmt::Display> From<T> for Failure {
    fn from(cause: T) -> Self {
        Self(cause.to_string())
    }
}

fn main() -> ExitCode {
    for name in ["NODLET_BOARD", "NODLET_ROOT", "NODLET_SSH"] {
        // SAFETY: no other thread exists yet. Without this variable, verbs run by a task never go to a board
        // that the user's shell names.
        unsafe { std::env::remove_var(name) };
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = arguments.split_first() else {
        eprint!("{}", overview());
        return ExitCode::from(2);
    };
    if is_help(name) {
        print!("{}", overview());
        return ExitCode::SUCCESS;
    }
    let Some(task @ (_, _, what, _)) = TASKS.iter().find(|(task, ..)| task == name) else {
        eprint!("xtask: there is no task {name:?}\n{}", overview());
        return ExitCode::from(2);
    };
    if rest.iter().any(|argument| is_help(argument)) {
        println!("{}\n{what}", usage(name));
        return ExitCode::SUCCESS;
    }
    // xtask is built for another target than the programs that it builds and runs.
    if let Ok(nodlet) = built("debug", "nodlet") {
        nodlet_tests::programs_are_in(nodlet.with_file_name(""));
    }
    match perform(task, rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(why)) => {
            eprintln!("xtask {name}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn perform((name, takes, _, run): &Task, arguments: &[String]) -> Outcome {
    if takes.is_empty() && !arguments.is_empty() {
        return Err(misused(name));
    }
    run(arguments)
}

fn is_help(argument: &str) -> bool {
    matches!(argument, "--help" | "-h" | "help")
}

fn overview() -> String {
    let lines = TASKS.iter().map(|(name, _, what, _)| format!("  {name:<12} {what}\n"));
    format!("cargo xtask TASK, where TASK is one of\n{}", lines.collect::<String>())
}

fn usage(name: &str) -> String {
    let takes = TASKS.iter().find(|(task, ..)| *task == name).map_or("", |(_, takes, ..)| takes);
    format!("usage: cargo xtask {name} {takes}").trim_end().into()
}

/// The error for arguments that a task does not accept: its usage.
fn misused(name: &str) -> Failure {
    Failure(usage(name))
}

/// The root directory of the repository.
fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a member of the workspace")
}

/// A directory for files that are made once and kept: `.work/NAME`, which is not in git.
fn work(name: &str) -> Result<PathBuf, Failure> {
    let dir = project().join(".work").join(name);
    std::fs::create_dir_all(&dir).map_err(|error| format!("failed to create {}: {error}", dir.display()))?;
    Ok(dir)
}

/// `cargo` in the root of the repository, which builds for the musl target of this machine's processor.
fn cargo() -> Result<Command, Failure> {
    let mut command = plain_cargo();
    command.env("CARGO_BUILD_TARGET", toolchain::host()?.triple);
    Ok(command)
}

/// The `cargo` that runs this task, in the root of the repository, without a target yet.
fn plain_cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(project());
    command
}

/// Prints a command and runs it until it ends.
fn run(command: &mut Command) -> Outcome {
    let line = line_of(command);
    eprintln!("$ {line}");
    let status = command.status().map_err(|error| format!("failed to run {line}: {error}"))?;
    if status.success() { Ok(()) } else { Err(Failure(format!("{line}: {status}"))) }
}

fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The path of a program of this workspace that [`cargo`] has built.
fn built(profile: &str, program: &str) -> Result<PathBuf, Failure> {
    Ok(target_dir().join(targets::host()?.triple).join(profile).join(program))
}

fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| project().join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_rejects_unknown_arguments_before_it_does_anything() {
        for task in TASKS {
            let name = task.0;
            let Err(Failure(why)) = perform(task, &["--nonsense".into()]) else {
                panic!("cargo xtask {name} --nonsense was done");
            };
            assert!(why.contains(&usage(name)), "cargo xtask {name} --nonsense says: {why}");
        }
    }

    /// Packages come from the locations for which the machine's own apt, cargo, rustup and go are configured,
    /// which differ behind a proxy or on another continent. Names of image registries are exempt: they are
    /// part of Kubernetes' grammar, and nothing is fetched from them.
    #[test]
    fn no_file_names_the_host_of_a_package_registry() {
        // Split, so that this file does not contain the names.
        const HOSTS: &[[&str; 2]] = &[
            ["debian", ".org"],
            ["ubuntu", ".com"],
            ["static.rust", "-lang.org"],
            ["index.crates", ".io"],
            ["static.crates", ".io"],
            ["proxy.golang", ".org"],
            ["sum.golang", ".org"],
            ["pypi", ".org"],
            ["pythonhosted", ".org"],
            ["npmjs", ".org"],
        ];
        let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(project()).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let files: Vec<&str> = listed.split_terminator('\0').collect();
        assert!(files.contains(&"xtask/src/main.rs"), "git lists the files of {}", project().display());
        let mut found = Vec::new();
        for file in files {
            // The file is no text, or is deleted in the work tree.
            let Ok(text) = std::fs::read_to_string(project().join(file)) else { continue };
            for host in HOSTS.iter().map(|parts| parts.concat()) {
                let lines = text.lines().enumerate().filter(|(_, line)| line.contains(&host));
                found.extend(lines.map(|(number, _)| format!("{file}:{}: {host}", number + 1)));
            }
        }
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}
