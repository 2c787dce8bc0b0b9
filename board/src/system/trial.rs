//! Starts the agent, from the image or from an update, and watches the trial of an update.
//!
//! [`agent_program`] runs in the process that becomes the agent, a child of process 1 with the image's own
//! code. If an update is on trial, it leaves a process behind that watches the agent. That process keeps the
//! update, or records why it is given up and then kills the hung agent. Process 1 restarts an agent that ends
//! by itself, and each start is counted, also after reboots and power cuts.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use nodlet_kernel::process::{exit_now, fork, pidfd_open, pidfd_send_signal};

use self::watch::{Decision, Health, Watch, starting};
use super::health::{self, Pods};
use super::state::{Before, Choice, State};
use super::update_files::{self, Lock, UpdateFiles};
use crate::board_json::Rules;
use crate::boot::crash_count;

mod watch;

pub(super) use watch::longest;

/// How long the start of an agent waits for the process that watched the previous one: longer than that
/// process may wait for a response.
const LOCK: Duration = Duration::from_secs(15);

/// Delay between two checks of an agent on trial.
const BETWEEN: Duration = Duration::from_secs(2);

/// Returns the program of the agent: `image` or an update. Counts the start of an update on trial, and begins
/// to watch it.
pub(crate) fn agent_program(root: &Path, image: &Path, rules: &Rules) -> PathBuf {
    let files = UpdateFiles::new(root);
    // Most boards have never been updated.
    if !files.directory().is_dir() {
        return image.to_owned();
    }
    // The process that installs an update has the lock meanwhile.
    let state = files.read();
    let is_trial = state.as_ref().is_ok_and(|state| state.trial.is_some());
    if let (false, Ok(state), Ok(Some(_lock))) = (is_trial, state, files.lock(Duration::ZERO)) {
        // Leftovers of an interrupted installation.
        files.clean(&state);
    }
    let lock = is_trial.then(|| files.lock(LOCK)).transpose();
    let lock = lock.inspect_err(|error| note(format_args!("failed to lock the updates: {error}")));
    let lock = lock.ok().flatten().flatten();
    let (choice, before) = choose(&files, image, lock.is_some());
    match choice {
        Choice::Image => image.to_owned(),
        Choice::Kept(program) => {
            // A kept update may have worked during its trial, and not work after a boot.
            let why = if crash_count::is_counted(root) {
                "its agent kept failing until the board was rebooted".to_owned()
            } else if starts_too_often(root) {
                format!("its agent was started {STARTS_OF_KEPT} times within two minutes")
            } else {
                return files.program(&program.digest);
            };
            note(format_args!("nodlet {} is given up: {why}", program.version));
            is_saved(change(&files, |state| state.give_up(&why)));
            image.to_owned()
        }
        Choice::Trial(program) => {
            note(format_args!("testing nodlet {} for {} s", program.version, rules.healthy_after));
            // Without a watching process the trial would never end.
            match lock.map(|lock| watch_this_process(root, &files, rules, &before, lock)) {
                Some(Ok(())) => files.program(&program.digest),
                Some(Err(error)) => {
                    note(format_args!("failed to watch the update on trial: {error}"));
                    settled(&files, image)
                }
                None => settled(&files, image),
            }
        }
    }
}

/// This many starts of a kept update within [`STARTS_WITHIN`] seconds are too many.
const STARTS_OF_KEPT: usize = 6;
const STARTS_WITHIN: u64 = 120;

/// Counts a start of a kept update, in RAM. Returns whether there were too many recently.
fn starts_too_often(root: &Path) -> bool {
    let path = root.join("run/nodlet-starts");
    let text = nodlet_kernel::own_file::read_to_string(&path).unwrap_or_default();
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    // The time is 32 bits wide on some machines.
    #[allow(clippy::useless_conversion)]
    let now = now.map_or(0, |now| u64::try_from(i64::from(now.tv_sec())).unwrap_or_default());
    let (text, too_often) = count_start(&text, now);
    // Errors are ignored: if memory lacks a few bytes, nothing else runs either.
    let _ = nodlet_kernel::durable::replace_in_memory(&path, text);
    too_often
}

/// Adds a start to the times of the latest starts, one per line in seconds. Returns the lines, and whether
/// there are too many starts.
fn count_start(text: &str, now: u64) -> (String, bool) {
    let mut starts: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    starts.push(now);
    starts.drain(..starts.len().saturating_sub(STARTS_OF_KEPT));
    let too_often = starts.len() == STARTS_OF_KEPT && now.saturating_sub(starts[0]) <= STARTS_WITHIN;
    (starts.iter().map(|start| format!("{start}\n")).collect(), too_often)
}

/// Chooses the next program by the state, and saves the changed state first. Also returns the health before the
/// update.
fn choose(files: &UpdateFiles, image: &Path, may_try: bool) -> (Choice, Before) {
    // A failure to lock is ignored: on a read-only medium nobody changes the state.
    let _lock = files.changing();
    let mut state = match files.read() {
        Ok(state) => state,
        Err(error) => {
            note(format_args!("the record of updates is damaged, the image's nodlet runs: {error}"));
            return (Choice::Image, Before::default());
        }
    };
    if state.kept.is_none() && state.trial.is_none() {
        return (Choice::Image, Before::default());
    }
    let digest = match update_files::digest_of(image) {
        Ok(digest) => digest,
        Err(error) => {
            note(format_args!("failed to read {}: {error}", image.display()));
            return (Choice::Image, Before::default());
        }
    };
    loop {
        let saved = state.clone();
        let choice = if may_try || state.trial.is_none() { state.begin(&digest) } else { state.settled() };
        if state != saved {
            report(&saved, &state);
            // An uncounted start could be repeated for ever.
            if !is_saved(files.write(&state)) && matches!(choice, Choice::Trial(_)) {
                return (saved.settled(), Before::default());
            }
        }
        let (Choice::Kept(program) | Choice::Trial(program)) = &choice else {
            return (choice, Before::default());
        };
        match files.verify(&program.digest) {
            Ok(()) => {
                return (choice, state.trial.map(|trial| trial.before).unwrap_or_default());
            }
            Err(error) => {
                let saved = state.clone();
                state.reject(&choice, &nodlet_host::error::causes(&error));
                report(&saved, &state);
                is_saved(files.write(&state));
            }
        }
    }
}

/// The program that runs if no trial is possible.
fn settled(files: &UpdateFiles, image: &Path) -> PathBuf {
    match choose(files, image, false).0 {
        Choice::Kept(program) => files.program(&program.digest),
        Choice::Image | Choice::Trial(_) => image.to_owned(),
    }
}

/// Reports on the console that an update was given up.
fn report(before: &State, after: &State) {
    if before.last != after.last
        && let Some(last) = &after.last
        && let Some(why) = &last.returned
    {
        note(format_args!("nodlet {} is given up: {why}", last.version));
    }
}

/// Forks the process that watches this one. It must not be a child of this process, which executes the agent.
fn watch_this_process(
    root: &Path,
    files: &UpdateFiles,
    rules: &Rules,
    before: &Before,
    lock: Lock,
) -> io::Result<()> {
    let agent = pidfd_open(Pid::this())?;
    // This process, a child of process 1, has one thread.
    match fork()? {
        Some(child) => {
            if nix::sys::wait::waitpid(child, None)? != WaitStatus::Exited(child, 0) {
                return Err(io::Error::other("could not create a process"));
            }
            // Dropping the lock would also release that of the watching process; this copy is closed on exec.
            std::mem::forget(lock);
            Ok(())
        }
        None => {
            // The intermediate process ends, without running any of this one's destructors.
            match fork() {
                Ok(None) => {}
                Ok(Some(_)) => exit_now(0),
                Err(_) => exit_now(1),
            }
            let _ = nix::unistd::setsid();
            let _ = rustix::thread::set_name(c"nodlet:trial");
            watch(root, files, rules, before, &agent);
            drop(lock);
            std::process::exit(0)
        }
    }
}

/// Watches the agent until the trial is decided, or the agent has ended.
fn watch(root: &Path, files: &UpdateFiles, rules: &Rules, before: &Before, agent: &OwnedFd) {
    let starting = starting(before, &boot_id());
    let mut watch = Watch::new(Instant::now(), Duration::from_secs(rules.healthy_after), starting);
    let check = || match health::check_agent(root) {
        Err(failure) => Health::AgentFailed(failure.to_string()),
        Ok(()) => match health::check_pods(root, &Pods::These(&before.ready)) {
            Err(failure) if failure.is_disconnected() => Health::AgentFailed(failure.to_string()),
            Err(failure) => Health::PodsNotReady(failure.to_string()),
            Ok(()) => Health::Good,
        },
    };
    loop {
        if has_ended(agent, BETWEEN) {
            return;
        }
        let health = check();
        // An agent that has ended is no reason to give up the update at once: the board may be going down.
        if has_ended(agent, Duration::ZERO) {
            return;
        }
        match watch.observe(Instant::now(), health) {
            Decision::Wait => {}
            Decision::Keep => {
                match change(files, State::keep) {
                    Ok(state) => {
                        let version = state.kept.as_ref().map_or("", |kept| &kept.version);
                        note(format_args!("nodlet {version} was healthy for long enough, and is kept"));
                        // Crash loops of another nodlet do not count against this one.
                        if let Err(error) = crash_count::remove() {
                            note(format_args!("failed to clear the crash loops: {error}"));
                        }
                        files.clean(&state);
                    }
                    Err(error) => note(format_args!("failed to keep the update: {error}")),
                }
                return;
            }
            Decision::GoBack(why) => {
                note(format_args!("the update is given up: {why}"));
                is_saved(change(files, |state| state.go_back(&why)));
                let _ = pidfd_send_signal(agent, libc::SIGKILL);
                return;
            }
        }
    }
}

fn change(files: &UpdateFiles, change: impl FnOnce(&mut State)) -> io::Result<State> {
    let _lock = files.changing()?;
    let mut state = files.read()?;
    change(&mut state);
    files.write(&state)?;
    Ok(state)
}

/// Returns whether the record of updates was saved, and reports it on the console if it was not.
fn is_saved<T>(result: io::Result<T>) -> bool {
    result.inspect_err(|error| note(format_args!("failed to save the record of updates: {error}"))).is_ok()
}

/// Gives up the update on trial below this root because its agent hangs, which process 1 notices before the
/// watchdog resets the board. Returns `false` if no update is on trial, or the change cannot be saved.
pub(crate) fn give_up_trial(root: &Path, why: &str) -> bool {
    let files = UpdateFiles::new(root);
    // An update that was never started cannot be what hangs.
    let on_trial = |state: &State| state.trial.as_ref().is_some_and(|trial| trial.starts > 0);
    if !files.directory().is_dir() || !files.read().is_ok_and(|state| on_trial(&state)) {
        return false;
    }
    note(format_args!("the update is given up: {why}"));
    is_saved(change(&files, |state| {
        if on_trial(state) {
            state.go_back(why);
        }
    }))
}

/// Writes to the console. Errors are ignored.
fn note(text: std::fmt::Arguments<'_>) {
    let line = format!("nodlet system: {text}\n");
    let _ = std::io::Write::write_all(&mut std::io::stderr(), crate::output::escaped(&line).as_bytes());
}

/// Waits until the process has ended, at most for `within`. Returns whether it has.
fn has_ended(process: &OwnedFd, within: Duration) -> bool {
    let timeout = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
    poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], timeout) == Ok(1)
}

/// The identifier of this boot.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod power_cuts;
#[cfg(test)]
mod tests;
