//! Supervisors with real containers. Needs root. The binary is three things: the
//! tests, the supervisor (it executes itself), and the program in the containers.
//!
//! Each runs with a network and mounts of its own, so that the machine's are not
//! touched.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

mod attack;
mod exec;
mod hunt;
mod life;
mod pod;
mod program;
mod sandbox;
mod start;

fn main() -> ExitCode {
    let mut args = std::env::args();
    let _ = args.next();
    match args.next().as_deref() {
        Some("supervisor") => nodlet_supervisor::run(std::env::args_os().skip(2)),
        Some("program") => program::run(args),
        Some("test") => {
            let name = args.next().unwrap_or_default();
            tests().into_iter().filter(|(test, _)| *test == name).for_each(|(_, test)| test());
            ExitCode::SUCCESS
        }
        first => run_all(&Selection::of(first.map(str::to_owned).into_iter().chain(args).collect())),
    }
}

/// The tests that a command line names, in the words of Rust's own harness: all without a name, those
/// whose names contain one of the names, or with `--exact` those of these names. `--list` runs none, and
/// `--ignored` names none: none is ignored here.
struct Selection {
    names: Vec<String>,
    exact: bool,
    ignored: bool,
    list: bool,
}

impl Selection {
    fn of(arguments: Vec<String>) -> Self {
        let has = |option: &str| arguments.iter().any(|argument| argument == option);
        let (exact, ignored, list) = (has("--exact"), has("--ignored"), has("--list"));
        let names = arguments.into_iter().filter(|argument| !argument.starts_with('-')).collect();
        Self { names, exact, ignored, list }
    }

    fn takes(&self, test: &str) -> bool {
        let matches = |name: &String| if self.exact { test == name } else { test.contains(name.as_str()) };
        !self.ignored && (self.names.is_empty() || self.names.iter().any(matches))
    }
}

fn tests() -> Vec<(&'static str, fn())> {
    [life::TESTS, start::TESTS, exec::TESTS, sandbox::TESTS, attack::TESTS].concat()
}

/// Gives the calling process a network and a table of mounts of its own.
fn leave_the_machine() -> std::io::Result<()> {
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
    Ok(mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?)
}

/// Each test is a process, so that one that fails can be cleaned up after.
fn run_all(selection: &Selection) -> ExitCode {
    let mut failed = Vec::new();
    let mut passed = 0;
    for (name, _) in tests().into_iter().filter(|(name, _)| selection.takes(name)) {
        if selection.list {
            println!("{name}: test");
            continue;
        }
        let mut command = Command::new(std::env::current_exe().expect("/proc is there"));
        // SAFETY: between fork and exec only system calls are made.
        unsafe { command.args(["test", name]).pre_exec(leave_the_machine) };
        let mut child = command.spawn().expect("these tests need root");
        let pid = child.id();
        let status = child.wait().expect("it is a child");
        pod::clean_up(pid);
        println!("test {name} ... {}", if status.success() { "ok" } else { "FAILED" });
        if status.success() { passed += 1 } else { failed.push(name) }
    }
    if selection.list {
        return ExitCode::SUCCESS;
    }
    println!("\ntest result: {passed} passed; {} failed {failed:?}", failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
