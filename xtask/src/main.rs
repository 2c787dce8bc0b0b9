//! What developers of nodlet do again and again, as `cargo xtask TASK`. One file
//! a task; this one is the list of them and what they share.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

mod bench;
mod check;
mod demo;
mod image;
mod images;
mod kubectl;
mod schema;
mod setup;
mod sizes;

/// A task: its name, what it does in a line, and the function.
type Task = (&'static str, &'static str, fn(&[String]) -> Outcome);

/// `cargo xtask` alone prints this.
const TASKS: &[Task] = &[
    ("demo", "show what nodlet does, on this machine; --keep leaves it running", demo::run),
    ("setup", "install what the tests need and this machine lacks (Debian, root)", setup::run),
    ("check", "everything that must hold: form, lints, unit tests, real containers", check::run),
    ("sizes", "the bytes of the released binary; --compare with the ledger, --write it", sizes::run),
    ("bench", "the figures of the README, measured here; --minutes N, --rounds N, --debug", bench::run),
    ("image", "build the demo image into .work/images, in both archive formats", image::run),
    ("images", "build images of redis, nginx and python3 with buildah, podman and skopeo", images::run),
    ("kubectl", "build the real kubectl from its Go modules into .work/kubectl", kubectl::run),
    ("schema", "write the table of Kubernetes' fields and docs/pods.md anew (Go, network)", schema::run),
];

type Outcome = Result<(), Failure>;

/// Why a task failed, in a sentence that says what to do.
#[derive(Debug)]
struct Failure(String);

impl<T: std::fmt::Display> From<T> for Failure {
    fn from(cause: T) -> Self {
        Self(cause.to_string())
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = arguments.split_first() else {
        print_tasks();
        return ExitCode::from(2);
    };
    let Some((_, _, task)) = TASKS.iter().find(|(task, _, _)| task == name) else {
        eprintln!("xtask: there is no task {name:?}");
        print_tasks();
        return ExitCode::from(2);
    };
    match task(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(why)) => {
            eprintln!("xtask {name}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn print_tasks() {
    eprintln!("cargo xtask TASK, where TASK is one of");
    for (name, what, _) in TASKS {
        eprintln!("  {name:<8} {what}");
    }
}

/// The top of the repository.
fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a member of the workspace")
}

/// Where things lie that are made once and kept: `.work/NAME`, not in git.
fn work(name: &str) -> Result<PathBuf, Failure> {
    let dir = project().join(".work").join(name);
    std::fs::create_dir_all(&dir).map_err(|error| format!("failed to create {}: {error}", dir.display()))?;
    Ok(dir)
}

/// `cargo`, as it was called for this task, in the top of the repository.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(project());
    command
}

/// Runs a command to its end, saying first what is run.
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

/// The file that `cargo build` leaves for a program of this workspace.
fn built(profile: &str, program: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| project().join("target"), PathBuf::from);
    target.join("x86_64-unknown-linux-musl").join(profile).join(program)
}
