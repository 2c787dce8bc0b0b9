//! The common parts of the tasks: their list, their outcome, the directories that they use, and the commands that they
//! run.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A task: its name, its arguments, and its description in a line.
pub(crate) type Task = (&'static str, &'static str, &'static str);

/// All tasks, as `cargo xtask` without arguments prints them.
pub(crate) const TASKS: &[Task] = &[
    (
        "demo",
        "[--keep] [--gateway | --cluster | --board PROFILE]",
        "show what nodlet does, on this machine, in a cluster or on an emulated board; --keep leaves it running",
    ),
    ("setup", "", "install what the tests need and this machine lacks (Debian, root)"),
    (
        "check",
        "[--install] [--debug] [--changed [BASE]] [fmt] [clippy] [doc] [unit] [containers] [conformance] [gates] [deny] [guest] [boards]",
        "run the tests, the same each time: formatting, lints, unit tests, real containers, virtual machines; --changed runs what the changes since a commit can affect",
    ),
    (
        "suites",
        "[--debug | --release] [SUITE | TEST]...",
        "run tests with real containers: all that check runs, those of tests/tests/SUITE.rs, or one such as probes::NAME",
    ),
    (
        "cross",
        "[--tests] [TARGET]...",
        "build static binaries for boards, into target/cross; --tests also builds their tests",
    ),
    (
        "deb",
        "[--version VERSION] [TARGET]...",
        "build Debian packages of the binaries for boards, into target/packages",
    ),
    (
        "recipes",
        "[yocto] [buildroot]",
        "check the Yocto layer and the Buildroot tree, without Yocto and Buildroot",
    ),
    (
        "release",
        "--key FILE [--twice] [--no-images] [TARGET]...",
        "build all files of a release, signed with the key of minisign, into target/release-VERSION; --twice compares two",
    ),
    ("distribution", "", "build as a distribution does: stable Rust, this C library, offline"),
    (
        "deny",
        "[--write]",
        "check licences, versions and sources of crates by deny.toml, and the licences in packages; --write writes these",
    ),
    (
        "advisories",
        "[--database DIR]",
        "list known vulnerabilities of the crates, from RustSec's database in DIR and from xtask/advisories.toml",
    ),
    (
        "sizes",
        "[--compare | --write] [release | TARGET]...",
        "show the size of each build; --compare compares it with its budget, --write writes the budgets",
    ),
    ("lines", "", "count the lines of code of each crate, as product and tests, and list long files"),
    (
        "bench",
        "[--cluster | --only NAME]... [--rounds N] [--minutes N] [--debug | --binary PATH]",
        "measure the figures of the README on this machine; --binary measures another binary",
    ),
    (
        "gates",
        "[--write] [--binary PATH]",
        "check bytes, memory, system calls and wake-ups against xtask/budgets.toml",
    ),
    (
        "guest",
        "[--target TARGET] [--debug] [--shard PART/OF] [GUEST [SUITE ARGUMENT...]]",
        "run the tests that need a kernel of their own, in QEMU: those of check, those of one virtual machine, or one test",
    ),
    (
        "long",
        "[images] [fuzz] [yaml] [stories] [mutants] [memory] [soak] [soak-cluster] [power-cuts] [board-power-cuts] [kills] [requests] [upgrade] [clusters] [guests] [release] [sizes] [differential] [conformance] [boards] [reproducible] [distribution] [--rounds N] [--minutes N] [--seed N] [--shard M/N]",
        "run what check leaves out, or runs for a short time only; what passed as a whole is written to xtask/ledger",
    ),
    ("demo-image", "", "build the demo image into .work/images, in both archive formats"),
    (
        "boards",
        "[--only ssh|watchdog|disk|ten-pods|network|update|cluster|demo]... [PROFILE]...",
        "boot the emulated boards of board/profiles, use them over SSH, and break them",
    ),
    (
        "peers",
        "[--rounds N] [PROFILE]",
        "measure kubelet and containerd beside nodlet on an emulated board, from the kernel's entry",
    ),
    (
        "image",
        "PROFILE [--pod FILE]... [--oci FILE]... [--ssh-key FILE]... [--push-key FILE]... [--config FILE] [--bootstrap-kubeconfig FILE] [--firmware DIR]",
        "build what a board of board/profiles boots, with pods and images in it, into .work/boards/PROFILE",
    ),
    ("images", "", "build images of redis, nginx and python3 with buildah, podman and skopeo"),
    ("agnhost", "", "build the servers of Kubernetes' own tests into .work/agnhost"),
    ("kubectl", "", "build the real kubectl from its Go modules into .work/kubectl"),
    ("control-plane", "", "build the servers of a Kubernetes cluster, kube-proxy and CoreDNS into .work"),
    (
        "conformance",
        "[--focus REGEX]... [--labels EXPRESSION] [--shard PART/OF] [--procs N] [--minutes N]",
        "run Kubernetes' own tests of nodes on a board that is a node of a real cluster",
    ),
    (
        "differential",
        "[--seed N] [--rounds N]",
        "compare the API with a real kube-apiserver: differences in the answers to changed pods, by class and count",
    ),
    ("schema", "", "write the table of Kubernetes' fields and docs/pods.md anew (Go, network)"),
];

pub(crate) type Outcome = Result<(), Failure>;

/// Why a task failed, in a sentence that includes the remedy.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl<T: std::fmt::Display> From<T> for Failure {
    fn from(cause: T) -> Self {
        Self(cause.to_string())
    }
}

pub(crate) fn usage(name: &str) -> String {
    let takes = TASKS.iter().find(|(task, ..)| *task == name).map_or("", |(_, takes, _)| takes);
    format!("usage: cargo xtask {name} {takes}").trim_end().into()
}

/// The error for arguments that a task does not accept: its usage.
pub(crate) fn misused(name: &str) -> Failure {
    Failure(usage(name))
}

/// The root directory of the repository.
pub(crate) fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a member of the workspace")
}

/// A directory for files that are made once and kept: `.work/NAME`, which is not in git.
pub(crate) fn work(name: &str) -> Result<PathBuf, Failure> {
    let dir = project().join(".work").join(name);
    std::fs::create_dir_all(&dir).map_err(|error| format!("failed to create {}: {error}", dir.display()))?;
    Ok(dir)
}

/// A path for a copy of the checkout, outside of it: cargo also reads the configuration in all parent directories, where
/// that of the checkout would add flags, a target and the patched crate. Nothing is there yet.
pub(crate) fn outside(name: &str) -> Result<PathBuf, Failure> {
    let dir = Path::new("/var/tmp").join(format!("nodlet-{name}-{}", std::process::id()));
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(dir)
}

/// The `cargo` that runs this task, in the root of the repository, without a target yet.
pub(crate) fn plain_cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(project());
    command
}

/// Prints a command and runs it until it ends.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let line = line_of(command);
    eprintln!("$ {line}");
    // cargo shows its own progress.
    let is_cargo = Path::new(command.get_program()).file_name().is_some_and(|name| name == "cargo");
    let status = if is_cargo { command.status() } else { with_progress(&line, || command.status()) };
    let status = status.map_err(|error| format!("failed to run {line}: {error}"))?;
    if status.success() { Ok(()) } else { Err(Failure(format!("{line}: {status}"))) }
}

/// What `git` prints in a directory. Fails with git's message, as where there is no repository.
pub(crate) fn git(directory: &Path, words: &[&str]) -> Result<String, Failure> {
    let mut git = Command::new("git");
    git.current_dir(directory).args(words).stdin(Stdio::null()).env("TZ", "UTC");
    let said = git.output().map_err(|error| format!("failed to run {}: {error}", line_of(&git)))?;
    if said.status.success() {
        return Ok(String::from_utf8(said.stdout)?.trim().to_owned());
    }
    Err(Failure(format!("{}: {}", line_of(&git), String::from_utf8_lossy(&said.stderr).trim())))
}

/// Delay between two lines about a step that writes nothing itself.
const PROGRESS: Duration = Duration::from_secs(15);

/// The most characters of a step's name in such a line.
const NAME: usize = 60;

/// Runs a step that writes nothing for minutes; reports now and then that it still runs.
pub(crate) fn with_progress<T>(name: &str, step: impl FnOnce() -> T) -> T {
    with_progress_every(PROGRESS, name, step, &|line| eprintln!("{line}"))
}

fn with_progress_every<T>(
    delay: Duration,
    name: &str,
    step: impl FnOnce() -> T,
    say: &(dyn Fn(&str) + Sync),
) -> T {
    let shown: String = name.chars().take(NAME).collect();
    let (end, is_over) = mpsc::channel::<()>();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while is_over.recv_timeout(delay) == Err(mpsc::RecvTimeoutError::Timeout) {
                say(&format!("  ... {} s: {shown}", begun.elapsed().as_secs()));
            }
        });
        let value = step();
        drop(end);
        value
    })
}

/// The seed of random choices: `$NODLET_SEED`, or a number of the kernel's. Whoever uses it prints it.
pub(crate) fn seed() -> Result<u64, Failure> {
    if let Ok(text) = std::env::var("NODLET_SEED") {
        return text.parse().map_err(|_| Failure(format!("NODLET_SEED={text:?}, which is no number")));
    }
    let mut bytes = [0; 4];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from(u32::from_le_bytes(bytes)))
}

/// The seed in what a failed test printed, as a shell sets it before the command that repeats the test; empty without one.
pub(crate) fn seed_in(text: &str) -> String {
    let after = text.split_once("NODLET_SEED=").map_or("", |(_, after)| after);
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    if digits.is_empty() { digits } else { format!("NODLET_SEED={digits} ") }
}

/// The number of tests that passed, in the output of `cargo test`. A filter that matches no test any more is no error of
/// `cargo test`.
pub(crate) fn passed(output: &str) -> u64 {
    let lines = output.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    lines.filter_map(|line| line.split_once(" passed")?.0.parse::<u64>().ok()).sum()
}

pub(crate) fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| project().join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_silent_step_is_reported_until_it_ends_and_not_after_it() {
        let lines = Mutex::new(Vec::new());
        let said = || lines.lock().expect("nobody panics with it").len();
        let say = |line: &str| lines.lock().expect("nobody panics with it").push(line.to_owned());
        let step = || {
            while said() < 3 {
                std::thread::yield_now();
            }
            7
        };
        assert_eq!(with_progress_every(Duration::from_millis(1), &"x".repeat(100), step, &say), 7);
        let lines = lines.into_inner().expect("nobody panics with it");
        assert!(lines.iter().all(|line| line.starts_with("  ... 0 s: xxx") && line.len() < 80), "{lines:?}");
    }
}
