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

use super::health::{self, Pods};
use super::state::{Before, Choice, STARTS, State};
use super::store::{self, Lock, Store};
use crate::board_json::Rules;
use crate::boot::crash_count;

/// How long the start of an agent waits for the process that watched the previous one: longer than that
/// process may wait for a response.
const LOCK: Duration = Duration::from_secs(15);

/// Delay between two checks of an agent on trial.
const BETWEEN: Duration = Duration::from_secs(2);

/// Returns the program of the agent: `image` or an update. Counts the start of an update on trial, and begins
/// to watch it.
pub(crate) fn agent_program(root: &Path, image: &Path, rules: &Rules) -> PathBuf {
    let store = Store::new(root);
    // Most boards have never been updated.
    if !store.directory().is_dir() {
        return image.to_owned();
    }
    // The process that installs an update has the lock meanwhile.
    let state = store.read();
    let is_trial = state.as_ref().is_ok_and(|state| state.trial.is_some());
    if let (false, Ok(state), Ok(Some(_lock))) = (is_trial, state, store.lock(Duration::ZERO)) {
        // Leftovers of an interrupted installation.
        store.clean(&state);
    }
    let lock = match is_trial.then(|| store.lock(LOCK)).transpose() {
        Ok(lock) => lock.flatten(),
        Err(error) => {
            note(format_args!("failed to lock the updates: {error}"));
            None
        }
    };
    let (choice, before) = choose(&store, image, lock.is_some());
    match choice {
        Choice::Image => image.to_owned(),
        Choice::Kept(program) => {
            // A kept update may have worked during its trial, and not work after a boot.
            let why = if crash_count::is_counted(root) {
                "its agent kept failing until the board was rebooted".to_owned()
            } else if starts_too_often(root) {
                format!("its agent was started {STARTS_OF_KEPT} times within two minutes")
            } else {
                return store.program(&program.digest);
            };
            note(format_args!("nodlet {} is given up: {why}", program.version));
            if let Err(error) = change(&store, |state| state.give_up(&why)) {
                note(format_args!("failed to save the record of updates: {error}"));
            }
            image.to_owned()
        }
        Choice::Trial(program) => {
            note(format_args!("testing nodlet {} for {} s", program.version, rules.healthy_after));
            // Without a watching process the trial would never end.
            match lock.map(|lock| watch_this_process(root, &store, rules, &before, lock)) {
                Some(Ok(())) => store.program(&program.digest),
                Some(Err(error)) => {
                    note(format_args!("failed to watch the update on trial: {error}"));
                    settled(&store, image)
                }
                None => settled(&store, image),
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
fn choose(store: &Store, image: &Path, may_try: bool) -> (Choice, Before) {
    // A failure to lock is ignored: on a read-only medium nobody changes the state.
    let _lock = store.changing();
    let mut state = match store.read() {
        Ok(state) => state,
        Err(error) => {
            note(format_args!("the record of updates is damaged, the image's nodlet runs: {error}"));
            return (Choice::Image, Before::default());
        }
    };
    if state.kept.is_none() && state.trial.is_none() {
        return (Choice::Image, Before::default());
    }
    let digest = match store::digest_of(image) {
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
            if let Err(error) = store.write(&state) {
                note(format_args!("failed to save the record of updates: {error}"));
                // An uncounted start could be repeated for ever.
                if matches!(choice, Choice::Trial(_)) {
                    return (saved.settled(), Before::default());
                }
            }
        }
        let (Choice::Kept(program) | Choice::Trial(program)) = &choice else {
            return (choice, Before::default());
        };
        match store.verify(&program.digest) {
            Ok(()) => {
                return (choice, state.trial.map(|trial| trial.before).unwrap_or_default());
            }
            Err(error) => {
                let saved = state.clone();
                state.reject(&choice, &nodlet_host::error::causes(&error));
                report(&saved, &state);
                if let Err(error) = store.write(&state) {
                    note(format_args!("failed to save the record of updates: {error}"));
                }
            }
        }
    }
}

/// The program that runs if no trial is possible.
fn settled(store: &Store, image: &Path) -> PathBuf {
    match choose(store, image, false).0 {
        Choice::Kept(program) => store.program(&program.digest),
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
    store: &Store,
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
            watch(root, store, rules, before, &agent);
            drop(lock);
            std::process::exit(0)
        }
    }
}

/// Watches the agent until the trial is decided, or the agent has ended.
fn watch(root: &Path, store: &Store, rules: &Rules, before: &Before, agent: &OwnedFd) {
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
                let kept = change(store, State::keep);
                match kept {
                    Ok(state) => {
                        let version = state.kept.as_ref().map_or("", |kept| &kept.version);
                        note(format_args!("nodlet {version} was healthy for long enough, and is kept"));
                        // Crash loops of another nodlet do not count against this one.
                        if let Err(error) = crash_count::remove() {
                            note(format_args!("failed to clear the crash loops: {error}"));
                        }
                        store.clean(&state);
                    }
                    Err(error) => note(format_args!("failed to keep the update: {error}")),
                }
                return;
            }
            Decision::GoBack(why) => {
                note(format_args!("the update is given up: {why}"));
                if let Err(error) = change(store, |state| state.go_back(&why)) {
                    note(format_args!("failed to save the record of updates: {error}"));
                }
                let _ = pidfd_send_signal(agent, libc::SIGKILL);
                return;
            }
        }
    }
}

fn change(store: &Store, change: impl FnOnce(&mut State)) -> io::Result<State> {
    let _lock = store.changing()?;
    let mut state = store.read()?;
    change(&mut state);
    store.write(&state)?;
    Ok(state)
}

/// Gives up the update on trial below this root because its agent hangs, which process 1 notices before the
/// watchdog resets the board. Returns `false` if no update is on trial, or the change cannot be saved.
pub(crate) fn give_up_trial(root: &Path, why: &str) -> bool {
    let store = Store::new(root);
    // An update that was never started cannot be what hangs.
    let on_trial = |state: &State| state.trial.as_ref().is_some_and(|trial| trial.starts > 0);
    if !store.directory().is_dir() || !store.read().is_ok_and(|state| on_trial(&state)) {
        return false;
    }
    note(format_args!("the update is given up: {why}"));
    let given_up = change(&store, |state| {
        if on_trial(state) {
            state.go_back(why);
        }
    });
    match given_up {
        Ok(_) => true,
        Err(error) => {
            note(format_args!("failed to save the record of updates: {error}"));
            false
        }
    }
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

/// The least time for which an agent must be unhealthy to count as hung.
const HUNG: Duration = Duration::from_secs(45);

/// The longest time for which the pods may start after a reboot, however long they needed before.
const LONGEST_START: Duration = Duration::from_secs(15 * 60);

/// The identifier of this boot.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// For how long unready pods are no reason to give up the update: no time in the boot in which it was installed,
/// since the pods ran on; else twice what the slowest pod needed before the update.
fn starting(before: &Before, boot: &str) -> Duration {
    match before.boot == boot {
        true => Duration::ZERO,
        false => Duration::from_secs(before.slowest_start.saturating_mul(2)).min(LONGEST_START),
    }
}

/// The longest time of one start of a trial in which an update is neither kept nor given up.
fn longest_of_start(healthy_after: Duration, starting: Duration) -> Duration {
    (HUNG + healthy_after) * 4 + starting
}

/// How long all starts of a trial may take, without the reboots between them.
pub(super) fn longest(rules: &Rules) -> Duration {
    let healthy_after = Duration::from_secs(rules.healthy_after);
    (longest_of_start(healthy_after, LONGEST_START) + healthy_after) * STARTS
}

/// The result of one check.
#[derive(Debug)]
enum Health {
    Good,
    /// The agent does not respond, or its loop does not turn.
    AgentFailed(String),
    /// The agent is well, and a pod that was ready before is not.
    PodsNotReady(String),
}

/// The state of the checks of an agent on trial.
struct Watch {
    begun: Instant,
    healthy_after: Duration,
    /// For how long after the start pods may become ready.
    starting: Duration,
    /// Since when every check has succeeded.
    good_since: Option<Instant>,
    last_good: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Wait,
    Keep,
    GoBack(String),
}

impl Watch {
    fn new(now: Instant, healthy_after: Duration, starting: Duration) -> Watch {
        Watch { begun: now, healthy_after, starting, good_since: None, last_good: now }
    }

    fn observe(&mut self, now: Instant, health: Health) -> Decision {
        match health {
            Health::Good => {
                let since = *self.good_since.get_or_insert(now);
                self.last_good = now;
                if now - since >= self.healthy_after {
                    return Decision::Keep;
                }
            }
            Health::PodsNotReady(_) if now - self.begun < self.starting => {
                self.good_since = None;
                self.last_good = now;
            }
            Health::AgentFailed(why) | Health::PodsNotReady(why) => {
                self.good_since = None;
                if now - self.last_good >= HUNG.max(self.healthy_after) {
                    let why = why.trim_start_matches("error: ");
                    return Decision::GoBack(format!("its agent was not healthy: {why}"));
                }
            }
        }
        // An agent that is healthy only now and then is given up.
        if self.good_since.is_none()
            && now - self.begun >= longest_of_start(self.healthy_after, self.starting)
        {
            return Decision::GoBack("it was never healthy for long enough".into());
        }
        Decision::Wait
    }
}

#[cfg(test)]
mod power_cuts;

#[cfg(test)]
mod tests {
    use nodlet_fuzz::disk::{Disk, Fault, POWER_CUTS};
    use nodlet_host::paths::Paths;

    use super::super::state::{Last, Program};
    use super::*;

    /// A data partition and the image's nodlet.
    pub(super) struct Board {
        directory: PathBuf,
        pub(super) store: Store,
    }

    impl Board {
        fn new(name: &str) -> Board {
            let directory = std::env::temp_dir().join(format!("nodlet-trial-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&directory);
            Board::at(directory)
        }

        /// A board whose root is this directory.
        pub(super) fn at(directory: PathBuf) -> Board {
            std::fs::create_dir_all(&directory).expect("a scratch directory");
            std::fs::write(directory.join("image"), "image").expect("it can be written");
            let store = Store::new(&directory);
            store.create().expect("a directory can be made");
            Board { directory, store }
        }

        fn image(&self) -> PathBuf {
            self.directory.join("image")
        }

        /// Installs an update as `nodlet system install` does.
        fn install(&self, content: &str) -> io::Result<()> {
            self.install_version(content, content)
        }

        pub(super) fn install_version(&self, version: &str, content: &str) -> io::Result<()> {
            let mut state = self.store.read()?;
            let mut file = self.store.new_program()?;
            let mut written = store::Written::new(&mut file);
            written.write(content.as_bytes())?;
            let digest = written.digest();
            self.store.add_program(file, &digest)?;
            let program = Program { digest, version: version.into() };
            state.install(store::digest_of(&self.image())?, program, Before::default());
            self.store.write(&state)?;
            self.store.clean(&state);
            Ok(())
        }

        /// Chooses the agent's program. Returns the choice and the program's content.
        pub(super) fn start(&self) -> (Choice, String) {
            let choice = choose(&self.store, &self.image(), true).0;
            let path = match &choice {
                Choice::Image => self.image(),
                Choice::Kept(program) | Choice::Trial(program) => self.store.program(&program.digest),
            };
            (choice, std::fs::read_to_string(path).expect("it is there"))
        }
    }

    #[test]
    fn a_power_cut_at_any_write_leaves_the_old_nodlet_or_the_new_one() {
        let mut seen = nodlet_core::sorted::SortedSet::new();
        for (cut, fault) in (1..40).flat_map(|cut| POWER_CUTS.map(|fault| (cut, fault))) {
            let board = Board::new("cut");
            board.install("a").expect("there is power");
            board.start();
            change(&board.store, State::keep).expect("there is power");
            // Run a whole update, with a power cut at one step.
            let disk = Disk::failing(fault, cut);
            let installed = board.install("b");
            let mut kept = false;
            if installed.is_ok() {
                let (choice, _) = board.start();
                kept = matches!(choice, Choice::Trial(_)) && change(&board.store, State::keep).is_ok();
                if let Ok(state) = board.store.read() {
                    board.store.clean(&state);
                }
            }
            // The boots after that.
            disk.repair();
            let contents: Vec<String> = (0..=STARTS).map(|_| board.start().1).collect();
            if kept {
                assert!(contents.iter().all(|content| content == "b"), "cut at {cut}: {contents:?}");
            }
            assert!(
                contents.iter().all(|content| content == "a" || content == "b"),
                "cut at {cut}: {contents:?}"
            );
            // An unwatched trial ends with the previous nodlet, which then stays.
            let last = contents.last().cloned().expect("it was started");
            assert_eq!(board.start().1, last, "cut at {cut}");
            if installed.is_err() && contents[0] == "a" {
                assert!(contents.iter().all(|content| content == "a"), "cut at {cut}: {contents:?}");
            }
            // Another update still works.
            let mut state = board.store.read().expect("it is whole");
            state.go_back("enough");
            board.store.write(&state).expect("there is power");
            board.install("c").expect("there is power");
            assert_eq!(board.start().1, "c", "cut at {cut}");
            change(&board.store, State::keep).expect("there is power");
            let state = board.store.read().expect("it is whole");
            board.store.clean(&state);
            let files = std::fs::read_dir(board.store.directory()).expect("it is there").count();
            assert_eq!(files, 3, "cut at {cut}: the state, its lock and one program");
            seen.insert(contents.join(""));
            let _ = std::fs::remove_dir_all(&board.directory);
        }
        // The power was cut at every step, from before the first write until after the last.
        let seen: Vec<&str> = seen.iter().map(String::as_str).collect();
        assert_eq!(seen, ["aaaa", "bbaa", "bbba", "bbbb"]);
    }

    #[test]
    fn two_that_change_the_record_at_once_lose_no_change() {
        let board = Board::new("at-once");
        let number = |state: &State| state.last.as_ref().map_or(0, |last| last.version.len());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let grow = |state: &mut State| {
                            let version = "x".repeat(number(state) + 1);
                            std::thread::yield_now();
                            state.last = Some(Last { version, returned: None });
                        };
                        change(&board.store, grow).expect("it can be written");
                    }
                });
            }
        });
        assert_eq!(number(&board.store.read().expect("it is whole")), 100);
        let _ = std::fs::remove_dir_all(&board.directory);
    }

    #[test]
    fn a_damaged_or_missing_file_is_never_executed() {
        let board = Board::new("damaged");
        assert_eq!(board.start(), (Choice::Image, "image".into()));
        board.install("a").expect("it can be written");
        let (Choice::Trial(a), _) = board.start() else { panic!("it is on trial") };
        change(&board.store, State::keep).expect("it can be written");
        board.install("b").expect("it can be written");
        let (Choice::Trial(b), _) = board.start() else { panic!("it is on trial") };
        std::fs::write(board.store.program(&b.digest), "x").expect("it can be written");
        assert_eq!(board.start(), (Choice::Kept(a.clone()), "a".into()));
        std::fs::remove_file(board.store.program(&a.digest)).expect("it can be removed");
        assert_eq!(board.start(), (Choice::Image, "image".into()));
        let last = board.store.read().expect("it is whole").last.and_then(|last| last.returned);
        assert!(last.expect("it says why").contains("its file cannot be read"));
        // A damaged record counts as none.
        board.install("c").expect("it can be written");
        std::fs::write(board.store.directory().join("state.json"), "{").expect("it can be written");
        assert_eq!(board.start(), (Choice::Image, "image".into()));
        let _ = std::fs::remove_dir_all(&board.directory);
    }

    #[test]
    fn a_trial_whose_start_cannot_be_counted_does_not_begin() {
        let board = Board::new("full");
        board.install("a").expect("there is power");
        let disk = Disk::failing(Fault::Death, 1);
        assert_eq!(board.start(), (Choice::Image, "image".into()));
        disk.repair();
        assert_eq!(board.start().1, "a");
        let _ = std::fs::remove_dir_all(&board.directory);
    }

    #[test]
    fn the_end_of_a_trial_is_recorded_on_a_full_disk() {
        let board = Board::new("end-on-full");
        let reserve = Paths::new(&board.directory).reserve();
        board.install("a").expect("there is room");
        while !reserve.replenish().expect("there is room") {}
        let disk = Disk::full_and_failing(Fault::Once, usize::MAX);
        board.install("b").expect_err("there is no room for a program");
        assert_eq!(board.start().1, "a");
        change(&board.store, |state| state.go_back("it hung")).expect("the reserve has room");
        assert_eq!(board.start(), (Choice::Image, "image".into()));
        disk.repair();
        board.store.clean(&board.store.read().expect("it is whole"));
        assert!(reserve.replenish().is_ok(), "the names that make room for others stay");
        let names = std::fs::read_dir(board.store.directory()).expect("it is there").flatten();
        let slack = names.filter(|name| name.file_name().to_str().is_some_and(|name| name.starts_with('.')));
        assert_eq!(slack.count(), 32);
        let _ = std::fs::remove_dir_all(&board.directory);
    }

    #[test]
    fn an_update_that_was_kept_is_given_up_if_its_agent_ends_again_and_again() {
        let run = |starts: &[u64]| {
            let mut text = String::new();
            starts
                .iter()
                .map(|&now| {
                    let (next, too_often) = count_start(&text, now);
                    text = next;
                    too_often
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(run(&[5, 5, 6, 8, 12, 20]), [false, false, false, false, false, true]);
        assert!(run(&[5, 105, 205, 305, 405, 505, 605, 705]).iter().all(|too_often| !too_often));
        assert_eq!(count_start("nonsense\n", 7), ("7\n".into(), false));
    }

    #[test]
    fn an_update_that_was_kept_is_given_up_after_a_crash_loop() {
        let board = Board::new("crash-loop");
        let rules = Rules { healthy_after: 60, ..Rules::default() };
        board.install("a").expect("it can be written");
        board.start();
        let state = change(&board.store, State::keep).expect("it can be written");
        let kept = board.store.program(&state.kept.expect("it is kept").digest);
        let next = || agent_program(&board.directory, &board.image(), &rules);
        assert_eq!(next(), kept);
        let count = board.directory.join(crash_count::FILE.trim_start_matches('/'));
        std::fs::create_dir_all(count.parent().expect("a directory")).expect("it can be made");
        for (text, program) in [("0\n", &kept), ("x", &kept), ("1\n", &board.image())] {
            std::fs::write(&count, text).expect("it can be written");
            assert_eq!(&next(), program, "{text:?}");
        }
        let last = board.store.read().expect("it is whole").last.and_then(|last| last.returned);
        assert_eq!(last.as_deref(), Some("its agent kept failing until the board was rebooted"));
        let _ = std::fs::remove_dir_all(&board.directory);
    }

    #[test]
    fn an_update_that_hangs_is_given_up_only_while_it_is_on_trial() {
        let board = Board::new("hangs");
        let give_up = || give_up_trial(&board.directory, "its agent hung");
        assert!(!give_up(), "there was never an update");
        board.install("a").expect("it can be written");
        assert!(!give_up(), "its trial has not begun");
        board.start();
        assert!(give_up());
        assert!(!give_up(), "it is given up already");
        assert_eq!(board.start(), (Choice::Image, "image".into()));
        let last = board.store.read().expect("it is whole").last.and_then(|last| last.returned);
        assert_eq!(last.as_deref(), Some("its agent hung"));
        board.install("b").expect("it can be written");
        board.start();
        change(&board.store, State::keep).expect("it can be written");
        assert!(!give_up(), "it was kept");
        assert_eq!(board.start().1, "b");
        let _ = std::fs::remove_dir_all(&board.directory);
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// The second at which the decision is reached, with one check a second, and the decision.
    fn judge_starting(
        healthy_after: u32,
        starting: u32,
        health: impl Fn(u32) -> Result<(), Health>,
    ) -> (u32, Decision) {
        let begun = Instant::now();
        let mut watch = Watch::new(begun, SECOND * healthy_after, SECOND * starting);
        let judged = (1..10_000).find_map(|second| {
            let health = health(second).err().unwrap_or(Health::Good);
            let decision = watch.observe(begun + SECOND * second, health);
            (decision != Decision::Wait).then_some((second, decision))
        });
        judged.expect("each trial ends")
    }

    fn judge(healthy_after: u32, health: impl Fn(u32) -> bool) -> (u32, Decision) {
        let hangs = || Health::AgentFailed("error: it hangs".to_owned());
        judge_starting(healthy_after, 0, |second| health(second).then_some(()).ok_or_else(hangs))
    }

    #[test]
    fn after_a_reboot_pods_have_twice_the_time_that_they_needed_before() {
        let before = Before { boot: "first".into(), slowest_start: 90, ..Before::default() };
        assert_eq!(starting(&before, "first"), Duration::ZERO);
        assert_eq!(starting(&before, "second"), SECOND * 180);
        let endless = Before { slowest_start: u64::MAX, ..before };
        assert_eq!(starting(&endless, "second"), LONGEST_START);

        let ready_after = |ready: u32| {
            move |second: u32| match second > ready {
                true => Ok(()),
                false => Err(Health::PodsNotReady("error: pod default/web is not ready".to_owned())),
            }
        };
        let unready = || Decision::GoBack("its agent was not healthy: pod default/web is not ready".into());
        // The pod needs longer than `healthy-after`.
        assert_eq!(judge_starting(60, 180, ready_after(100)), (161, Decision::Keep));
        assert_eq!(judge_starting(60, 0, ready_after(100)), (60, unready()));
        // The pod never becomes ready.
        assert_eq!(judge_starting(60, 180, ready_after(9999)), (239, unready()));
        // An agent that hangs is given up as soon as ever.
        let hangs = judge_starting(10, 180, |_| Err(Health::AgentFailed("it hangs".to_owned())));
        assert_eq!(hangs, (45, Decision::GoBack("its agent was not healthy: it hangs".into())));
        let flaps = judge_starting(60, 180, |second| match second % 30 < 20 {
            true => Ok(()),
            false => Err(Health::PodsNotReady("it is not ready".to_owned())),
        });
        assert!(SECOND * flaps.0 <= longest_of_start(SECOND * 60, SECOND * 180) + SECOND * 30, "{flaps:?}");
    }

    #[test]
    fn a_healthy_agent_is_kept_and_one_that_hangs_is_not() {
        let hangs = || Decision::GoBack("its agent was not healthy: it hangs".into());
        assert_eq!(judge(60, |_| true), (61, Decision::Keep));
        assert_eq!(judge(60, |second| second > 20), (81, Decision::Keep));
        assert_eq!(judge(10, |_| false), (45, hangs()));
        assert_eq!(judge(60, |_| false), (60, hangs()));
        // The agent hangs after a while.
        assert_eq!(judge(60, |second| second < 40), (99, hangs()));
        // The agent recovers.
        assert_eq!(judge(60, |second| !(30..60).contains(&second)), (120, Decision::Keep));
        // The agent never stays healthy.
        let flaps = judge(60, |second| second % 30 < 20);
        assert!(flaps.0 >= 420 && flaps.1 == Decision::GoBack("it was never healthy for long enough".into()));
    }
}
