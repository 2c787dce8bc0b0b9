//! Tests of supervisors with real containers. They need root. The binary has three roles: the tests, the
//! supervisor (which the binary executes as itself), and the program in the containers.
//!
//! Each test has its own network and mount namespace, so that it does not change those of the machine.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// A table of tests by their names.
macro_rules! tests {
    ($($test:ident),* $(,)?) => {
        &[$((stringify!($test), $test)),*]
    };
}

mod agents;
mod attack;
mod exec;
mod hunt;
mod life;
mod pod;
mod program;
mod replacement;
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

/// The tests that a command line selects, with the options of Rust's own test harness: all tests without a
/// name; those whose names contain one of the names; with `--exact`, those with exactly these names. `--list`
/// runs no test, and `--ignored` selects none, because no test is ignored here.
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
    [life::TESTS, agents::TESTS, replacement::TESTS, start::TESTS, exec::TESTS, sandbox::TESTS, attack::TESTS]
        .concat()
}

/// Gives the calling process its own network and mount namespaces.
fn leave_the_machine() -> std::io::Result<()> {
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
    Ok(mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?)
}

/// Runs each test in its own process, so that the remains of a failed test can be removed.
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
