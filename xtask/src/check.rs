//! The check, which CI also runs: the same list each time. It prints each step, how long it took here before, and the
//! command that repeats it; stops at the first step that fails; and never skips what this machine cannot do. What it leaves
//! out, `cargo xtask long` runs, and the check says at its end what of that is overdue. With `--install` it first installs
//! what the tests need and this machine lacks. With `--changed`, it runs what the changes since a commit can affect. The
//! tests run nodlet as boards get it (`cross.rs`); with `--debug`, for the loop of a developer, the tests with containers run
//! an unoptimised binary that is built in less time, and the steps after them are left out.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Instant;

use nodlet_build::arguments::Arguments;
use nodlet_build::task::{
    Outcome, Task, TaskError, run as run_command, run_program, seed, seed_in, test_output, work,
};
use nodlet_build::toolchain::{self, Part, cargo};
use nodlet_build::{cross, deny, go, requirements, targets};

use crate::changed::Changes;
use crate::programs::{BENCH, SYSTEM};
use crate::suites::Binary;
use crate::times::Times;
use crate::{changed, ledger, long, setup, suites};

/// A step: its name, its description, and its function.
type Step = (&'static str, &'static str, fn() -> Outcome);

const STEPS: &[Step] = &[
    ("fmt", "the formatting of the source", fmt),
    ("clippy", "lints, all of which count as errors", clippy),
    ("doc", "the documentation of the code, with every link", doc),
    ("unit", "the tests beside the code", unit),
    ("containers", "the tests with real containers", containers),
    ("conformance", "a sample of Kubernetes' own tests of nodes, on a node of a real cluster", conformance),
    ("gates", "what the binary for boards costs, against its budgets", gates),
    ("deny", "the licences, versions and sources of crates, and their list in the binary", deny::check),
    ("guest", "the tests that need cgroup v2, on a kernel of their own in QEMU", guest),
    ("boards", "an emulated board with this machine's processor, over SSH", boards),
];

/// The steps that test nothing but the binary of boards.
const OF_BOARDS: [&str; 4] = ["gates", "deny", "guest", "boards"];

/// The task `cargo xtask check`.
pub(crate) const TASK: Task = Task::new(
    "check",
    "[--install] [--debug] [--changed [BASE]] [fmt] [clippy] [doc] [unit] [containers] [conformance] [gates] [deny] [guest] [boards]",
    "run the tests, the same each time: formatting, lints, unit tests, real containers, virtual machines; --changed runs what the changes since a commit can affect",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let Request { install, debug, changes, steps } = Request::parse(arguments)?;
    if install {
        setup::run(&[])?;
    }
    let is_whole = steps.is_empty() && changes.is_none() && !debug;
    // Checked first, so that a missing tool or a full disk is not reported only after ten minutes.
    if is_whole {
        setup::require_disk()?;
    }
    toolchain::complete(&[Part::Rustfmt, Part::Clippy])?;
    toolchain::host()?;
    if debug {
        cross::provide_debug()?;
    }
    let changes = changes.map(|base| changed::since(base.as_deref())).transpose()?;
    let chosen = |name: &str| {
        !(debug && OF_BOARDS.contains(&name))
            && (steps.is_empty() || steps.iter().any(|step| step == name))
            && changes.as_ref().is_none_or(|changes| changes.affect(name))
    };
    if chosen("containers") || chosen("conformance") {
        requirements::require()?;
    }
    if chosen("gates") {
        requirements::require_root()?;
        cross::complete(targets::host()?)?;
    }
    let times = Times::read("check")?;
    let (mut binary, mut boards) = (None, None);
    for (name, what, step) in STEPS {
        if chosen(name) {
            match *name {
                // To link the binary takes minutes of one processor: it is built beside the first steps.
                "clippy" if is_whole => binary = Some(std::thread::spawn(build_binary)),
                "containers" if is_whole => wait_for(binary.take())?,
                // Boards wait for watchdogs most of the time, and the steps from here on measure no time.
                "gates" if chosen("boards") => boards = Some(Beside::begin("boards")?),
                _ => {}
            }
            let last =
                times.get(name).map(|took| format!(" (took {took:.0?} here before)")).unwrap_or_default();
            eprintln!("\n== {name}: {what}{last}");
            let ahead = boards.take_if(|_| *name == "boards");
            let begun = Instant::now();
            let is_ahead = ahead.is_some();
            match (&changes, ahead) {
                (_, Some(ahead)) => ahead.wait(),
                (None, None) if debug && *name == "containers" => suites::run_those(&[], Binary::Debug),
                (Some(changes), None) => partly(name, *step, changes, debug),
                (None, None) => step(),
            }
            .map_err(|TaskError(why)| {
                let repeat = repeat(name, debug, &why);
                TaskError(format!("{why}\n{name} is repeated by: {repeat}"))
            })?;
            let took = begun.elapsed();
            let more = if is_ahead { " more" } else { "" };
            eprintln!("== {name} took {took:.0?}{more}");
            // A step that ran beside others has written its own time.
            if !is_ahead && changes.is_none() {
                Times::add("check", [(*name, took)])?;
            }
        }
    }
    if is_whole {
        ledger::print_overdue(&long::subjects())?;
    }
    eprintln!("\nall is well");
    Ok(())
}

/// Builds the binary that boards with this machine's processor get.
fn build_binary() -> Outcome {
    cross::build(targets::host()?).map(drop)
}

/// Waits for the thread that builds it.
fn wait_for(build: Option<JoinHandle<Outcome>>) -> Outcome {
    let target = targets::host().map_or_else(|_| String::new(), |target| format!(" {}", target.triple));
    match build.map(JoinHandle::join) {
        None => Ok(()),
        Some(Ok(outcome)) => outcome.map_err(|TaskError(why)| {
            TaskError(format!("{why}\nthe build of the binary is repeated by: cargo xtask cross{target}"))
        }),
        Some(Err(_)) => Err("the build of the binary panicked".into()),
    }
}

/// A step that runs beside others, in a process of its own. What it prints is shown at its end.
struct Beside {
    child: Child,
    output: PathBuf,
}

impl Beside {
    fn begin(step: &str) -> Result<Self, TaskError> {
        let output = work("check")?.join(format!("{step}.log"));
        let file = File::create(&output)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["check", step]).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        eprintln!(
            "\n== {step} begins beside the next steps. What it prints is shown at its end, and is now in {}",
            output.display()
        );
        Ok(Self { child: command.spawn()?, output })
    }

    fn wait(mut self) -> Outcome {
        let status = self.child.wait()?;
        let output = std::fs::read(&self.output)?;
        let output = String::from_utf8_lossy(&output);
        eprint!("{output}");
        if status.success() { Ok(()) } else { Err(TaskError(format!("{status} {}", seed_in(&output)))) }
    }
}

impl Drop for Beside {
    /// When another step has failed.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the arguments ask for.
#[derive(Debug)]
struct Request {
    install: bool,
    debug: bool,
    /// What the changes since this commit can affect; since the branch began, without a commit.
    changes: Option<Option<String>>,
    /// The steps; all if there is none.
    steps: Vec<String>,
}

impl Request {
    fn parse(arguments: &[String]) -> Result<Self, TaskError> {
        let is_step = |word: &String| STEPS.iter().any(|(name, ..)| name == word);
        let mut words = arguments.to_vec();
        let changes = words.iter().position(|word| word == "--changed").map(|place| {
            words.remove(place);
            words
                .get(place)
                .is_some_and(|word| !word.starts_with('-') && !is_step(word))
                .then(|| words.remove(place))
        });
        let mut arguments = Arguments::new(&TASK, &words);
        let (install, debug) = (arguments.has("--install"), arguments.has("--debug"));
        let steps = arguments.names()?;
        if let Some(other) = steps.iter().find(|word| !is_step(word)) {
            return Err(TaskError(format!("unknown step {other:?}; {}", TASK.usage())));
        }
        let request = Self { install, debug, changes, steps };
        match request.steps.iter().find(|step| OF_BOARDS.contains(&step.as_str())) {
            Some(step) if request.debug => {
                Err(TaskError(format!("{step} tests the binary of boards, without --debug")))
            }
            _ => Ok(request),
        }
    }
}

/// Runs what of a step the changes can affect.
fn partly(name: &str, step: fn() -> Outcome, changes: &Changes, is_debug: bool) -> Outcome {
    let binary = if is_debug { Binary::Debug } else { Binary::OfBoards };
    match name {
        "unit" => unit_of(changes.packages()),
        "containers" => suites::run_those(&changes.suites()?, binary),
        _ => step(),
    }
}

/// The command that repeats a step.
fn repeat(name: &str, is_debug: bool, why: &str) -> String {
    format!("{}cargo xtask check {}{name}", seed_in(why), if is_debug { "--debug " } else { "" })
}

fn fmt() -> Outcome {
    run_command(cargo()?.args(["fmt", "--all", "--check"]))
}

fn clippy() -> Outcome {
    run_command(cargo()?.args(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))
}

/// Builds the documentation of all items: a link to an item that is renamed is an error.
fn doc() -> Outcome {
    let doc = &mut cargo()?;
    doc.args(["doc", "--workspace", "--no-deps", "--document-private-items"]);
    run_command(doc.env("RUSTDOCFLAGS", "--deny warnings"))
}

fn containers() -> Outcome {
    suites::run_those(&[], Binary::OfBoards)
}

fn conformance() -> Outcome {
    run_program(SYSTEM, &["conformance", "--sample"], None)
}

/// With the binary that the check builds anyway: `cargo xtask long sizes` checks those for other boards.
fn gates() -> Outcome {
    let program = cross::build(targets::host()?)?;
    run_program(BENCH, &["gates", "--binary", &program.display().to_string()], None)
}

fn guest() -> Outcome {
    run_program(SYSTEM, &["guest"], None)
}

fn boards() -> Outcome {
    run_program(SYSTEM, &["boards", "--check"], None)
}

fn unit() -> Outcome {
    // All but the suites with containers.
    unit_tests(&["--workspace", "--lib", "--bins", "--test", "supervisor"])?;
    cross::test_tls()?;
    beside_go()
}

/// The unit tests of these packages.
fn unit_of(packages: &[String]) -> Outcome {
    let words: Vec<&str> = packages.iter().flat_map(|name| ["--package", name.as_str()]).collect();
    unit_tests(&words)?;
    let has = |name: &str| packages.iter().any(|package| package == name);
    if has("nodlet-wire") {
        cross::test_tls()?;
    }
    if has("nodlet-kube") { beside_go() } else { Ok(()) }
}

/// Runs the unit tests that these words choose. All run, even if one fails: readers of CI's output cannot try again.
fn unit_tests(words: &[&str]) -> Outcome {
    let seed = seed()?;
    eprintln!("NODLET_SEED={seed}");
    let tests = &mut cargo()?;
    tests.args(["test", "--no-fail-fast"]).args(words).env("NODLET_SEED", seed.to_string());
    run_command(tests)
        .map_err(|TaskError(why)| TaskError(format!("{why}\nthe random inputs were of NODLET_SEED={seed}")))
}

/// The tests that compare the reader of YAML with the one of kubectl.
const BESIDE_GO: [&str; 3] = [
    "forms_are_read_beside_go",
    "documented_differences_to_go_stay_as_they_are",
    "manifests_changed_at_random_are_read_beside_go",
];

/// Runs these tests, with the program that answers for kubectl.
fn beside_go() -> Outcome {
    let judge = go::YAML_JUDGE.build(None)?;
    let seed = seed()?;
    eprintln!("NODLET_SEED={seed}");
    let beside = &mut cargo()?;
    beside.args(["test", "--package", "nodlet-kube", "--lib", "beside_go", "--", "--ignored"]);
    beside.env("NODLET_YAML_JUDGE", judge).env("NODLET_SEED", seed.to_string());
    let said = test_output(beside)?;
    if BESIDE_GO.iter().all(|name| said.contains(&format!("{name} ... ok"))) {
        return Ok(());
    }
    let all = BESIDE_GO.join(", ");
    Err(TaskError(format!("{all} must pass, with NODLET_SEED={seed}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_names_every_step_in_its_order() {
        let steps: Vec<String> = STEPS.iter().map(|(name, ..)| format!("[{name}]")).collect();
        let expected = format!("[--install] [--debug] [--changed [BASE]] {}", steps.join(" "));
        assert!(TASK.usage().ends_with(&expected), "{}", TASK.usage());
    }

    #[test]
    fn a_base_is_what_follows_changed_and_is_no_step() {
        let parse = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            Request::parse(&words)
        };
        let changes = |line: &str| parse(line).unwrap().changes;
        assert_eq!(changes("unit"), None);
        assert_eq!(changes("--changed"), Some(None));
        assert_eq!(changes("--changed HEAD~3"), Some(Some("HEAD~3".to_owned())));
        assert_eq!(changes("--changed unit"), Some(None));
        assert_eq!(changes("--changed --debug"), Some(None));
        assert_eq!(parse("unit --debug").unwrap().steps, ["unit"]);
        assert_eq!(parse("--fast").unwrap_err().0, TASK.usage());
        let TaskError(why) = parse("units").unwrap_err();
        assert!(why.contains("unknown step \"units\""), "{why}");
        let TaskError(why) = parse("gates --debug").unwrap_err();
        assert!(why.contains("gates tests the binary of boards"), "{why}");
    }

    #[test]
    fn a_failed_step_names_the_command_that_repeats_it() {
        assert_eq!(repeat("unit", false, "exit 1"), "cargo xtask check unit");
        assert_eq!(repeat("unit", false, "of NODLET_SEED=47"), "NODLET_SEED=47 cargo xtask check unit");
        assert_eq!(repeat("containers", true, ""), "cargo xtask check --debug containers");
    }
}
