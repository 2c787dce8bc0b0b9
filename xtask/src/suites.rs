//! `cargo xtask suites`: runs the tests with real containers, each in a process of its own. Most of them wait most of the
//! time: while processors are idle, another one begins.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nodlet_build::arguments::Arguments;
use nodlet_build::task::{
    Outcome, Signal, Task, TaskError, end_with_us, line_of, output, project, seed_in, work,
};
use nodlet_build::toolchain::{self, cargo};
use nodlet_build::{cross, go, images, programs, requirements};

use crate::times::Times;

mod slow;

use slow::SLOW;

/// The most tests that run at once.
const AT_ONCE: usize = 8;

/// So many tests run at once even if no processor is idle.
const AT_LEAST: usize = 2;

/// Another test begins if this part of the processors' time was idle since the last check, in percent.
const IDLE_PERCENT: u64 = 25;

/// The time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(400);

/// The time after which a test hangs: three times that of the slowest one.
const HANGS: Duration = Duration::from_secs(900);

/// A test that takes longer has its reason in [`SLOW`].
const LONG: Duration = Duration::from_secs(60);

/// Tests that measure the machine or change what all share: no other one runs beside one of them.
const ALONE: &[&str] = &[
    // It compares the links of the machine before and after.
    "doctor::doctor_finds_nothing_missing_on_a_machine_that_runs_pods_and_leaves_nothing_behind",
];

/// The task `cargo xtask suites`.
pub(crate) const TASK: Task = Task::new(
    "suites",
    "[--debug | --release] [SUITE | TEST]...",
    "run tests with real containers: all that check runs, those of tests/tests/SUITE.rs, or one such as probes::NAME",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut arguments = Arguments::new(&TASK, arguments);
    let binary = match (arguments.has("--debug"), arguments.has("--release")) {
        (false, false) => Binary::OfBoards,
        (true, false) => Binary::Debug,
        (false, true) => Binary::Release,
        (true, true) => return Err(TASK.misused()),
    };
    let wanted = arguments.names()?;
    requirements::require()?;
    run_those(&wanted, binary)
}

/// The binary that the suites test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Binary {
    /// That of boards with this machine's processor.
    OfBoards,
    /// An unoptimised one.
    Debug,
    /// That of a plain `cargo build --release`.
    Release,
}

impl Binary {
    fn provide(self) -> Outcome {
        match self {
            Binary::OfBoards => cross::provide(),
            Binary::Debug => cross::provide_debug(),
            Binary::Release => cross::provide_release(),
        }
    }

    /// The option of `cargo xtask suites`, with a blank.
    fn option(self) -> &'static str {
        match self {
            Binary::OfBoards => "",
            Binary::Debug => "--debug ",
            Binary::Release => "--release ",
        }
    }
}

/// Runs the suites and tests of these names, such as `probes` or `probes::a_test`; all without a name.
pub(crate) fn run_those(wanted: &[String], binary: Binary) -> Outcome {
    let suites = names()?;
    for name in wanted {
        let suite = name.split("::").next().unwrap_or_default();
        if !suites.contains(suite) {
            return Err(TaskError(format!("there is no suite {suite:?}: each is a file of tests/tests")));
        }
    }
    let runs =
        |suite: &str| wanted.is_empty() || wanted.iter().any(|name| name.split("::").next() == Some(suite));
    let _lock = lock()?;
    // A run that was interrupted leaves devices behind.
    nodlet_tests::sweep_devices();
    go::KUBECTL.build(None)?;
    go::AGNHOST.build(None)?;
    if suites.iter().any(|suite| runs(suite) && has_control_plane(suite)) {
        go::control_plane(&[])?;
    }
    if runs("pull") {
        programs::provide("docker-registry", "docker-registry")?;
    }
    images::build()?;
    binary.provide()?;
    toolchain::programs()?;
    let program = build()?;
    let chosen = tests(&program)?.into_iter().filter(|test| is_wanted(test, wanted));
    let tests = in_order(chosen.collect());
    if tests.is_empty() {
        return Err(TaskError(format!("there is no test {}", wanted.join(" "))));
    }
    Runner::new(program, binary)?.run(tests)
}

/// Waits until no other run of suites in this checkout builds or tests: both would write the same files, and each would be
/// slowed down by the other. The lock ends with the file.
fn lock() -> Result<File, TaskError> {
    let file = File::create(work("suites")?.join("lock"))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            eprintln!("waiting for another run of suites in this checkout");
            file.lock()?;
        }
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    Ok(file)
}

/// Whether a test is one of those with these names. A name is that of a suite, of a test, or the beginning of one.
fn is_wanted(test: &str, wanted: &[String]) -> bool {
    let is = |name: &String| match test.strip_prefix(name.as_str()) {
        Some(rest) => name.contains("::") || rest.starts_with("::"),
        None => false,
    };
    wanted.is_empty() || wanted.iter().any(is)
}

/// The names of all suites.
pub(crate) fn names() -> Result<BTreeSet<String>, TaskError> {
    let mut suites = BTreeSet::new();
    for entry in fs::read_dir(project().join("tests/tests"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            suites.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
        }
    }
    suites.remove("main");
    Ok(suites)
}

/// Whether a suite uses the servers of a cluster, which are built for it.
pub(crate) fn has_control_plane(suite: &str) -> bool {
    let path = project().join("tests/tests").join(suite);
    let files = fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path());
    files
        .chain([path.with_extension("rs")])
        .any(|file| fs::read_to_string(file).is_ok_and(|text| text.contains("ControlPlane")))
}

/// Builds the program with all suites, and returns its path.
pub(crate) fn build() -> Result<PathBuf, TaskError> {
    let mut build = cargo()?;
    build.args(["test", "--no-run", "--workspace", "--test", "suites"]);
    build.arg("--message-format=json-render-diagnostics");
    let suites = cross::executables(&mut build)?.into_iter().find(|built| built.is_test);
    Ok(suites.ok_or("cargo names what it builds")?.path)
}

/// The tests of the program, without those that `check` does not run.
fn tests(program: &Path) -> Result<Vec<String>, TaskError> {
    let list = |more: &[&str]| -> Result<Vec<String>, TaskError> {
        let text = output(Command::new(program).arg("--list").args(more))?;
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    };
    let ignored: BTreeSet<String> = list(&["--ignored"])?.into_iter().collect();
    Ok(list(&[])?.into_iter().filter(|test| !ignored.contains(test)).collect())
}

/// The order in which tests begin: the slow ones, so that none of them is alone at the end, then the others; those that
/// run alone come last.
fn in_order(mut tests: Vec<String>) -> Vec<String> {
    let place = |test: &String| SLOW.iter().position(|(slow, _)| slow == test).unwrap_or(SLOW.len());
    tests.sort_by_key(|test| (is_alone(test), place(test)));
    tests
}

fn is_alone(test: &str) -> bool {
    ALONE.contains(&test)
}

/// A test that runs.
struct Running {
    test: String,
    child: Child,
    begun: Instant,
    output: PathBuf,
}

/// How a test ended.
struct Ended {
    test: String,
    took: Duration,
    /// Why it failed, with all that it printed.
    failure: Option<String>,
}

/// Runs tests, and reports each that fails.
struct Runner {
    program: PathBuf,
    binary: Binary,
    /// The directory of what tests print.
    dir: PathBuf,
    running: Vec<Running>,
    ended: Vec<Ended>,
}

impl Runner {
    fn new(program: PathBuf, binary: Binary) -> Result<Self, TaskError> {
        Ok(Self { program, binary, dir: work("suites")?, running: Vec::new(), ended: Vec::new() })
    }

    fn run(mut self, tests: Vec<String>) -> Outcome {
        let begun = Instant::now();
        let last = Times::read("suites")?;
        let usual: Duration = tests.iter().filter_map(|test| last.get(test)).sum();
        let before = if usual.is_zero() {
            String::new()
        } else {
            format!(", which took {usual:.0?} of their own time here before")
        };
        eprintln!("{} tests{before}", tests.len());
        let mut waiting = tests.into_iter().peekable();
        let mut processors = Processors::now()?;
        let mut shown = begun;
        while waiting.peek().is_some() || !self.running.is_empty() {
            std::thread::sleep(CHECK_INTERVAL);
            let now = Processors::now()?;
            let idle = now.idle_percent_since(&processors);
            processors = now;
            self.collect()?;
            let has_room = match waiting.peek() {
                None => false,
                Some(test) if is_alone(test) => self.running.is_empty(),
                Some(_) => {
                    let is_disturbed = self.running.iter().any(|running| is_alone(&running.test));
                    !is_disturbed
                        && self.running.len() < AT_ONCE
                        && (self.running.len() < AT_LEAST || idle >= IDLE_PERCENT)
                }
            };
            if has_room && let Some(test) = waiting.next() {
                self.begin(test)?;
            }
            if shown.elapsed() >= Duration::from_secs(30) {
                shown = Instant::now();
                let now: Vec<&str> = self.running.iter().map(|running| running.test.as_str()).collect();
                eprintln!(
                    "  ... {:.0?}: {} ended, running {}",
                    begun.elapsed(),
                    self.ended.len(),
                    now.join(" ")
                );
            }
        }
        let passed = self.ended.iter().filter(|ended| ended.failure.is_none());
        Times::add("suites", passed.map(|ended| (&*ended.test, ended.took)))?;
        self.report(begun.elapsed())
    }

    fn begin(&mut self, test: String) -> Outcome {
        let output = self.dir.join(format!("{}.log", test.replace("::", ".")));
        let file = File::create(&output)?;
        let mut command = Command::new(&self.program);
        command.args([&test, "--exact", "--nocapture"]).current_dir(project().join("tests"));
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        end_with_us(&mut command, Signal::SIGKILL);
        let child =
            command.spawn().map_err(|error| format!("failed to run {}: {error}", line_of(&command)))?;
        self.running.push(Running { test, child, begun: Instant::now(), output });
        Ok(())
    }

    /// Takes the tests that ended.
    fn collect(&mut self) -> Outcome {
        let mut left = Vec::new();
        for mut running in std::mem::take(&mut self.running) {
            let took = running.begun.elapsed();
            let status = match running.child.try_wait()? {
                None if took > HANGS => {
                    running.child.kill()?;
                    running.child.wait()?;
                    Err(format!("it did not end within {HANGS:?}"))
                }
                None => {
                    left.push(running);
                    continue;
                }
                Some(status) if status.success() => Ok(()),
                Some(status) => Err(status.to_string()),
            };
            let printed = String::from_utf8_lossy(&fs::read(&running.output)?).into_owned();
            // A name that matches no test is no failure of the program.
            let status = status.and_then(|()| {
                if printed.contains("test result: ok. 1 passed") {
                    Ok(())
                } else {
                    Err("it did not run".to_owned())
                }
            });
            let failure = status.err().map(|why| format!("{why}\n{printed}"));
            match &failure {
                None => fs::remove_file(&running.output)?,
                Some(why) => eprintln!("\nFAILED {} after {took:.0?}: {why}", running.test),
            }
            self.ended.push(Ended { test: running.test, took, failure });
        }
        self.running = left;
        Ok(())
    }

    /// Prints the slowest tests, and fails with the command that repeats those that failed.
    fn report(mut self, took: Duration) -> Outcome {
        self.ended.sort_by_key(|ended| std::cmp::Reverse(ended.took));
        eprintln!("\nthe slowest tests, in seconds:");
        for ended in self.ended.iter().take(10) {
            eprintln!("{:>6} {}", ended.took.as_secs(), ended.test);
        }
        for ended in self.ended.iter().filter(|ended| ended.took > LONG) {
            if SLOW.iter().all(|(slow, _)| *slow != ended.test) {
                eprintln!("{} took more than {LONG:?}, and slow.rs has no reason for it", ended.test);
            }
        }
        let failed: Vec<&Ended> = self.ended.iter().filter(|ended| ended.failure.is_some()).collect();
        eprintln!("{} tests passed in {took:.0?}", self.ended.len() - failed.len());
        if failed.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> =
            failed.iter().map(|ended| format!("  {}", repeat(ended, self.binary))).collect();
        Err(TaskError(format!(
            "{} of {} tests failed; the output of each is in {}; to repeat one:\n{}",
            failed.len(),
            self.ended.len(),
            self.dir.display(),
            lines.join("\n")
        )))
    }
}

/// The command that repeats a failed test, with its random choices.
fn repeat(ended: &Ended, binary: Binary) -> String {
    let seed = seed_in(ended.failure.as_deref().unwrap_or_default());
    format!("{seed}cargo xtask suites {}{}", binary.option(), ended.test)
}

/// The time that all processors have spent, in ticks.
struct Processors {
    idle: u64,
    all: u64,
}

impl Processors {
    fn now() -> Result<Self, TaskError> {
        Self::parse(&fs::read_to_string("/proc/stat")?)
            .ok_or_else(|| "/proc/stat has no line of all processors".into())
    }

    /// Reads the first line of `/proc/stat`: user, nice, system, idle, iowait and others.
    fn parse(text: &str) -> Option<Self> {
        let words = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        // The time of guests is also in that of users.
        let all = ticks.iter().take(8).sum();
        // Niced processes give way.
        Some(Self { idle: ticks.get(1)? + ticks.get(3)? + ticks.get(4)?, all })
    }

    fn idle_percent_since(&self, before: &Self) -> u64 {
        let all = self.all.saturating_sub(before.all);
        (self.idle.saturating_sub(before.idle) * 100).checked_div(all).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_a_suite_or_of_tests() {
        let check = |test: &str, wanted: &str, expected: bool| {
            assert_eq!(is_wanted(test, &[wanted.to_owned()]), expected, "{test} {wanted}");
        };
        check("push::a_pod", "push", true);
        check("push_changes::a_pod", "push", false);
        check("push::a_pod", "push::a", true);
        check("push::a_pod", "push::a_pod", true);
        check("push::a_pod", "probes", false);
        assert!(is_wanted("push::a_pod", &[]));
    }

    #[test]
    fn the_idle_time_is_that_between_two_looks() {
        let at = |text: &str| Processors::parse(text).unwrap();
        let before = at("cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 1\n");
        assert_eq!(at("cpu  20 0 20 130 30 0 0 0 9 0\n").idle_percent_since(&before), 80);
        assert_eq!(at("cpu  10 10 20 70 10 0 0 0 5 0\n").idle_percent_since(&before), 50);
        assert_eq!(before.idle_percent_since(&before), 0);
        assert!(Processors::parse("intr 1").is_none());
    }

    #[test]
    fn slow_tests_begin_first_and_those_that_run_alone_last() {
        let slow = SLOW[0].0;
        let order = in_order(vec![ALONE[0].to_owned(), "a::b".to_owned(), slow.to_owned()]);
        assert_eq!(order, [slow, "a::b", ALONE[0]]);
    }

    #[test]
    fn each_slow_test_exists_and_has_a_reason() {
        let alone = ALONE.iter().map(|test| (*test, "it has a comment"));
        for (test, reason) in SLOW.iter().copied().chain(alone) {
            let suite = test.split("::").next().unwrap_or_default();
            let name = test.rsplit("::").next().unwrap_or_default();
            let dir = project().join("tests/tests");
            let inner =
                fs::read_dir(dir.join(suite)).into_iter().flatten().flatten().map(|entry| entry.path());
            let mut files = inner.chain([dir.join(format!("{suite}.rs"))]);
            let has = |file: &Path| {
                fs::read_to_string(file).is_ok_and(|text| text.contains(&format!("fn {name}(")))
            };
            assert!(files.any(|file| has(&file)), "{test} does not exist");
            assert!(!reason.is_empty(), "{test} has no reason");
        }
    }

    #[test]
    fn a_failed_test_is_repeated_with_its_seed() {
        let ended = |text: &str| Ended {
            test: "push::a".to_owned(),
            took: Duration::ZERO,
            failure: Some(text.to_owned()),
        };
        let of_boards = |text: &str| repeat(&ended(text), Binary::OfBoards);
        assert_eq!(of_boards("exit 1\nNODLET_SEED=47\n"), "NODLET_SEED=47 cargo xtask suites push::a");
        assert_eq!(of_boards("exit 1"), "cargo xtask suites push::a");
        assert_eq!(repeat(&ended(""), Binary::Release), "cargo xtask suites --release push::a");
    }

    #[test]
    fn suites_with_a_control_plane_are_known() {
        assert!(
            has_control_plane("cluster") && has_control_plane("at_most_one") && !has_control_plane("probes")
        );
    }
}
