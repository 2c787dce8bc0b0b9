//! The common parts of the tasks: what a task is, its outcome, the directories that tasks use, and the commands that they
//! run.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

pub use nix::sys::signal::Signal;
pub use nodlet_kernel::process::end_with_parent as end_with_us;
use nodlet_kernel::process::remove_variable;

/// A task of a developer, or of somebody who makes device images and packages.
#[derive(Debug)]
pub struct Task {
    /// The first argument of the program.
    pub name: &'static str,
    /// The accepted arguments, as its usage shows them. Empty for none.
    pub arguments: &'static str,
    /// Its description in a line, which begins with a verb.
    pub what: &'static str,
    run: Run,
}

/// What does the work of a task.
#[derive(Debug)]
enum Run {
    /// A function of this program.
    Here(fn(&[String]) -> Outcome),
    /// The task of the same name of another program, which is built first: this package of the workspace.
    Program(&'static str),
}

impl Task {
    /// A task of this program.
    pub const fn new(
        name: &'static str,
        arguments: &'static str,
        what: &'static str,
        run: fn(&[String]) -> Outcome,
    ) -> Self {
        Self { name, arguments, what, run: Run::Here(run) }
    }

    /// The task of this name of another program: of this package of the workspace.
    pub const fn of_program(name: &'static str, package: &'static str, what: &'static str) -> Self {
        Self { name, arguments: "", what, run: Run::Program(package) }
    }

    /// The package whose program does the work, if that is another program.
    pub const fn program(&self) -> Option<&'static str> {
        match self.run {
            Run::Here(_) => None,
            Run::Program(package) => Some(package),
        }
    }

    /// Its usage in a line.
    pub fn usage(&self) -> String {
        format!("usage: {} {} {}", caller(), self.name, self.arguments).trim_end().into()
    }

    /// The error for arguments that the task does not accept: its usage.
    pub fn misused(&self) -> TaskError {
        TaskError(self.usage())
    }

    /// Runs the task.
    ///
    /// # Errors
    /// The task failed, or does not accept the arguments.
    pub fn perform(&self, arguments: &[String]) -> Outcome {
        match self.run {
            Run::Program(package) => Err(program(package)?.arg(self.name).args(arguments).exec().into()),
            Run::Here(_) if self.arguments.is_empty() && !arguments.is_empty() => Err(self.misused()),
            Run::Here(run) => run(arguments),
        }
    }
}

/// The environment variable with what the user calls, if that is another program than this one.
const CALLER: &str = "NODLET_CALLER";

/// The program that runs, as [`main`] was told.
static PROGRAM: OnceLock<&str> = OnceLock::new();

/// What the user calls.
fn caller() -> String {
    std::env::var(CALLER).unwrap_or_else(|_| PROGRAM.get().copied().unwrap_or("cargo xtask").to_owned())
}

/// Performs the task that the command line of the program `name` asks for, one of `tasks`.
pub fn main(name: &'static str, tasks: &[&Task]) -> ExitCode {
    PROGRAM.get_or_init(|| name);
    // A task tests the binary that it builds, and verbs that it runs never go to a board that the user's shell names; but
    // what a task of another program has chosen is chosen for this one.
    if std::env::var_os(CALLER).is_none() {
        for variable in ["NODLET", "NODLET_BOARD", "NODLET_ROOT", "NODLET_SSH"] {
            remove_variable(variable);
        }
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (task, rest) = match parse(tasks, &arguments) {
        Request::Task(task, rest) => (task, rest),
        Request::Help(text) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Request::Misuse(text) => {
            eprint!("{text}");
            return ExitCode::from(2);
        }
    };
    match task.perform(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(TaskError(why)) => {
            eprintln!("{} {}: {why}", caller(), task.name);
            ExitCode::FAILURE
        }
    }
}

/// What the arguments of a command line ask for.
#[derive(Debug)]
enum Request<'a> {
    Task(&'a Task, &'a [String]),
    /// Text for the standard output.
    Help(String),
    /// Text for the standard error.
    Misuse(String),
}

fn parse<'a>(tasks: &[&'a Task], arguments: &'a [String]) -> Request<'a> {
    let is_help = |argument: &String| matches!(argument.as_str(), "--help" | "-h" | "help");
    let Some((name, rest)) = arguments.split_first() else { return Request::Misuse(overview(tasks)) };
    if is_help(name) {
        return Request::Help(overview(tasks));
    }
    let Some(task) = tasks.iter().find(|task| task.name == name) else {
        return Request::Misuse(format!("{}: unknown task {name:?}\n{}", caller(), overview(tasks)));
    };
    if matches!(task.run, Run::Here(_)) && rest.iter().any(is_help) {
        return Request::Help(format!("{}\n{}\n", task.usage(), task.what));
    }
    Request::Task(task, rest)
}

fn overview(tasks: &[&Task]) -> String {
    let lines = tasks.iter().map(|task| format!("  {:<13} {}\n", task.name, task.what));
    format!("{} TASK, where TASK is one of\n{}", caller(), lines.collect::<String>())
}

/// Runs a task of another program of the workspace. The seed of its random choices is this one, or [`seed`]; a failure
/// names it.
///
/// # Errors
/// The program could not be built, or its task failed.
pub fn run_program(package: &str, words: &[impl AsRef<OsStr>], seed: Option<u64>) -> Outcome {
    let seed = seed.map_or_else(self::seed, Ok)?;
    let mut command = program(package)?;
    // cargo becomes the program that it has built.
    end_with_us(&mut command, Signal::SIGKILL);
    run(command.args(words).env("NODLET_SEED", seed.to_string()))
        .map_err(|TaskError(why)| TaskError(format!("{why}, with NODLET_SEED={seed}")))
}

/// The command that builds a program of the workspace for this machine, and runs it in the present directory.
fn program(package: &str) -> Result<Command, TaskError> {
    let mut command = plain_cargo();
    command.args(["run", "--package", package, "--target", "host-tuple", "--"]);
    command.env(CALLER, caller()).current_dir(std::env::current_dir()?);
    Ok(command)
}

/// Checks what all programs promise of their tasks: the description begins with a verb, and unknown arguments are
/// rejected before anything is done. For the tests of programs.
///
/// # Panics
/// A task does not keep that.
pub fn check(tasks: &[&Task]) {
    const VERBS: &[&str] =
        &["boot", "build", "check", "compare", "count", "install", "list", "measure", "run", "show", "write"];
    for task in tasks {
        let first = task.what.split(' ').next().unwrap_or_default();
        assert!(VERBS.contains(&first), "{}: {}", task.name, task.what);
        if matches!(task.run, Run::Here(_)) {
            let Err(TaskError(why)) = task.perform(&["--nonsense".into()]) else {
                panic!("{} --nonsense was done", task.name);
            };
            assert!(why.contains(&task.usage()), "{} --nonsense says: {why}", task.name);
        }
    }
}

/// The result of a task.
pub type Outcome = Result<(), TaskError>;

/// Why a task failed, in a sentence that includes the remedy.
#[derive(Debug)]
pub struct TaskError(pub String);

impl<T: std::fmt::Display> From<T> for TaskError {
    fn from(cause: T) -> Self {
        Self(cause.to_string())
    }
}

/// The root directory of the repository.
pub fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("xtask/build is a member of the workspace")
}

/// A directory for files that are made once and kept: `.work/NAME`, which is not in git.
pub fn work(name: &str) -> Result<PathBuf, TaskError> {
    let dir = project().join(".work").join(name);
    std::fs::create_dir_all(&dir).map_err(|error| format!("failed to create {}: {error}", dir.display()))?;
    Ok(dir)
}

/// A path for a copy of the checkout, outside of it: cargo also reads the configuration in all parent directories, where
/// that of the checkout would add flags, a target and the patched crate. Nothing is there yet.
pub fn outside(name: &str) -> Result<PathBuf, TaskError> {
    let dir = Path::new("/var/tmp").join(format!("nodlet-{name}-{}", std::process::id()));
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(dir)
}

/// The `cargo` that runs this task, in the root of the repository, without a target yet.
pub fn plain_cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(project());
    command
}

/// Prints a command and runs it until it ends.
pub fn run(command: &mut Command) -> Outcome {
    let line = line_of(command);
    eprintln!("$ {line}");
    // cargo shows its own progress.
    let is_cargo = Path::new(command.get_program()).file_name().is_some_and(|name| name == "cargo");
    let status = if is_cargo { command.status() } else { with_progress(&line, || command.status()) };
    let status = status.map_err(|error| format!("failed to run {line}: {error}"))?;
    if status.success() { Ok(()) } else { Err(TaskError(format!("{line}: {status}"))) }
}

/// What `git` prints in a directory. Fails with git's message, as where there is no repository.
pub fn git(directory: &Path, words: &[&str]) -> Result<String, TaskError> {
    let mut git = Command::new("git");
    git.current_dir(directory).args(words).env("TZ", "UTC");
    Ok(output(&mut git)?.trim().to_owned())
}

/// Runs a command, and returns its standard output. Its standard error is in the error, unless the caller has set another
/// place for it.
///
/// # Errors
/// The command cannot be run, fails, or prints no text.
pub fn output(command: &mut Command) -> Result<String, TaskError> {
    let line = line_of(command);
    let output = command.output().map_err(|error| format!("failed to run {line}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout)?);
    }
    let why = format!("{line}: {} {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    Err(TaskError(why.trim_end().to_owned()))
}

/// A date of `date`'s, in UTC: `when` as its option `--date` reads it, in this format.
///
/// # Errors
/// `date` does not know `when`.
pub fn date(when: &str, format: &str) -> Result<String, TaskError> {
    let mut date = Command::new("date");
    Ok(output(date.env("LC_ALL", "C").args(["-u", "-d", when, format]))?.trim().to_owned())
}

/// Delay between two lines about a step that writes nothing itself.
const PROGRESS: Duration = Duration::from_secs(15);

/// The most characters of a step's name in such a line.
const NAME: usize = 60;

/// Runs a step that writes nothing for minutes; reports now and then that it still runs.
pub fn with_progress<T>(name: &str, step: impl FnOnce() -> T) -> T {
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
pub fn seed() -> Result<u64, TaskError> {
    if let Ok(text) = std::env::var("NODLET_SEED") {
        return text.parse().map_err(|_| TaskError(format!("NODLET_SEED={text:?}, which is no number")));
    }
    let mut bytes = [0; 4];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from(u32::from_le_bytes(bytes)))
}

/// The seed in what a failed test printed, as a shell sets it before the command that repeats the test; empty without one.
pub fn seed_in(text: &str) -> String {
    let after = text.split_once("NODLET_SEED=").map_or("", |(_, after)| after);
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    if digits.is_empty() { digits } else { format!("NODLET_SEED={digits} ") }
}

/// Runs `cargo test`, and prints and returns what the tests print.
///
/// # Errors
/// A test fails.
pub fn test_output(cargo: &mut Command) -> Result<String, TaskError> {
    let line = line_of(cargo);
    eprintln!("$ {line}");
    let output = cargo.stderr(Stdio::inherit()).output()?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{printed}");
    if output.status.success() { Ok(printed) } else { Err(TaskError(format!("{line}: {}", output.status))) }
}

/// The number of tests that passed, in the output of `cargo test`. A filter that matches no test any more is no error of
/// `cargo test`.
pub fn passed(output: &str) -> u64 {
    let lines = output.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    lines.filter_map(|line| line.split_once(" passed")?.0.parse::<u64>().ok()).sum()
}

/// A command as a person would type it.
pub fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The directory of what cargo builds.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| project().join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn help_is_printed_on_request_and_misuse_is_an_error() {
        const DEMO: Task = Task::new("demo", "[--keep]", "show it", |_| Ok(()));
        const IMAGE: Task = Task::of_program("image", "nodlet-dist", "build an image");
        let parsed = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            match parse(&[&DEMO, &IMAGE], &words) {
                Request::Task(task, rest) => format!("{} {rest:?}", task.name),
                Request::Help(text) => format!("out: {text}"),
                Request::Misuse(text) => format!("err: {text}"),
            }
        };
        assert!(parsed("").starts_with("err: cargo xtask TASK"), "{}", parsed(""));
        for line in ["--help", "-h", "help"] {
            assert!(parsed(line).starts_with("out: cargo xtask TASK"), "{line}");
        }
        for line in ["demo --help", "demo -h"] {
            assert_eq!(parsed(line), "out: usage: cargo xtask demo [--keep]\nshow it\n", "{line}");
        }
        assert!(parsed("nonsense --help").starts_with("err: cargo xtask: unknown task \"nonsense\"\n"));
        assert_eq!(parsed("demo --keep"), "demo [\"--keep\"]");
        assert_eq!(parsed("image --help"), "image [\"--help\"]");
    }

    #[test]
    fn a_command_ends_with_the_thread_that_starts_it() {
        let start = || {
            let mut sleep = Command::new("sleep");
            end_with_us(&mut sleep, Signal::SIGTERM);
            sleep.arg("600").spawn().expect("there is a sleep")
        };
        let mut child = std::thread::spawn(start).join().expect("it does not panic");
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&child.wait().expect("it is ours")),
            Some(15)
        );
    }

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
