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
        Some("supervisor") => nodlet_runtime::supervisor::run(std::env::args_os().skip(2)),
        Some("program") => program::run(args),
        Some("test") => {
            let name = args.next().unwrap_or_default();
            tests().into_iter().filter(|(test, _)| *test == name).for_each(|(_, test)| test());
            ExitCode::SUCCESS
        }
        first => run_all(first.filter(|filter| !filter.starts_with('-')).unwrap_or_default()),
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
fn run_all(filter: &str) -> ExitCode {
    let mut failed = Vec::new();
    let mut passed = 0;
    for (name, _) in tests().into_iter().filter(|(name, _)| name.contains(filter)) {
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
    println!("\ntest result: {passed} passed; {} failed {failed:?}", failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
