//! Runs what `check` leaves out or runs in a short form, for any time, and writes to the ledger (`ledger.rs`) which subject
//! passed as a whole. The first seed is random and printed; a failure names the seed to reproduce it:
//! `cargo xtask long fuzz --seed 4711 --rounds 1`. A subject with a finite number of cases runs all of them, or
//! with `--shard 2/5` the second of five parts, and prints their number. `cargo xtask long mutants --minutes 20` ends
//! with the mutation that is tested after 20 minutes.

use std::process::Command;
use std::time::Instant;

use nodlet_build::arguments::Arguments;
use nodlet_build::task::{
    Outcome, Task, TaskError, run as run_command, run_program, seed as random_seed, target_dir,
};
use nodlet_build::toolchain::{self, cargo};
use nodlet_build::{cross, go, requirements, targets};
use nodlet_tests::guest::Part;

use crate::programs::{DIST, SYSTEM};
use crate::{earlier, ledger, mutants, sizes, suites};

/// How a subject is tested.
enum Test {
    /// By random inputs: the number of rounds that takes some minutes, and the arguments of `cargo test`.
    Random(u64, &'static str),
    /// By random inputs guided by coverage: the program counts the code that inputs reach.
    Guided(u64, &'static str),
    /// By tests whose number of rounds can be set: the number that takes some minutes, and the arguments of
    /// `cargo test`.
    Rounds(u64, &'static str),
    /// By this many cases, chosen by the seed, or by those of them that are tested in so many minutes.
    Sample(u64, fn(u64, u64, Option<u64>) -> Outcome),
    /// By all cases, or by those of one part such as `2/5`.
    Parts(fn(&str) -> Outcome),
    /// By all cases.
    All(fn() -> Outcome),
}

const SUBJECTS: &[(&str, Test)] = &[
    // Random images, compared with what GNU tar and umoci extract.
    ("images", Test::Random(300, "--package nodlet-rootfs random_images")),
    // Archives, manifests, protocol frames, API requests and messages of the DNS, changed at random.
    (
        "fuzz",
        Test::Guided(
            50_000,
            "--package nodlet-kube --package nodlet-rootfs --package nodlet-runtime --package nodlet-services --package nodlet-supervisor --lib changed_at_random",
        ),
    ),
    // Manifests that are changed at random, as the reader of kubectl reads them.
    (
        "yaml",
        Test::Random(
            20_000,
            "--package nodlet-kube --lib manifests_changed_at_random_are_read_beside_go -- --ignored",
        ),
    ),
    // Pods with random events, in simulated time.
    (
        "stories",
        Test::Random(2_000, "--release --package nodlet-core --package nodlet-registry --lib seeds::"),
    ),
    // Mutations of the core, each of which must make a test fail.
    ("mutants", Test::Sample(20, mutants::run)),
    // An image with this many megabytes in one layer, and one with the most names that are accepted.
    ("memory", Test::Rounds(500, "--package nodlet-rootfs tests::memory::")),
    // This many restarts of containers, and at least twice as many exec probes.
    ("soak", Test::Rounds(10_000, "--package nodlet-tests --test suites soak::")),
    // This many pods of a cluster that come and go, after those that fill all rings.
    ("soak-cluster", Test::Rounds(100, "--package nodlet-tests --test suites cluster_soak:: -- --ignored")),
    // This many states of a data partition after a power cut, for each kind of operation.
    (
        "power-cuts",
        Test::Random(
            100,
            "--package nodlet-tests --test suites power_cuts:: -- --include-ignored --test-threads=1",
        ),
    ),
    // This many states of a board's medium after a power cut, each of which the board boots.
    ("board-power-cuts", Test::Sample(60, board_power_cuts)),
    // Agent, supervisors and helpers, each killed at each of its steps.
    ("kills", Test::Parts(kills)),
    // The agent, killed or cut off at each of its requests to a cluster.
    ("requests", Test::Parts(requests)),
    // Pods that are run by the binary of an earlier commit.
    ("upgrade", Test::All(upgrade)),
    // Boards in clusters of other versions of Kubernetes.
    ("clusters", Test::All(clusters)),
    // Tests in virtual machines, with each processor.
    ("guests", Test::Parts(guests)),
    // The suites with a plain release build.
    ("release", Test::All(plain_release)),
    // The size of the binary for each target.
    ("sizes", Test::All(|| sizes::run(&["--compare".to_owned()]))),
    // The API beside a real kube-apiserver.
    ("differential", Test::Random(3_000, "--package nodlet-tests --test suites differential::")),
    // Kubernetes' own tests of nodes, all of them, and those of Services and names.
    ("conformance", Test::All(conformance)),
    // Every step on every emulated board.
    ("boards", Test::All(|| run_program(SYSTEM, &["boards"], None))),
    // All files of a release for this machine's processor, twice, in two directories: the same bytes.
    ("reproducible", Test::All(reproducible)),
    // A build as a distribution makes it, and the recipes of Yocto and Buildroot.
    ("distribution", Test::All(distributions)),
];

/// Kubernetes' own tests on one board, and those of Services and names on two.
fn conformance() -> Outcome {
    run_program(SYSTEM, &["conformance"], None)?;
    run_program(SYSTEM, &["conformance", "--network"], None)
}

/// The test beside a real kube-apiserver.
const DIFFERENTIAL: &str = "differential::";

/// The names of all subjects.
pub(crate) fn subjects() -> Vec<&'static str> {
    SUBJECTS.iter().map(|(name, _)| *name).collect()
}

/// The test that needs the servers of a cluster.
const SOAK_CLUSTER: &str = "cluster_soak::";

/// The test that needs the program that answers for kubectl.
const YAML: &str = "manifests_changed_at_random_are_read_beside_go";

/// The task `cargo xtask long`.
pub(crate) const TASK: Task = Task::new(
    "long",
    "[images] [fuzz] [yaml] [stories] [mutants] [memory] [soak] [soak-cluster] [power-cuts] [board-power-cuts] [kills] [requests] [upgrade] [clusters] [guests] [release] [sizes] [differential] [conformance] [boards] [reproducible] [distribution] [--rounds N] [--minutes N] [--seed N] [--shard M/N]",
    "run what check leaves out, or runs for a short time only; what passed as a whole is written to xtask/ledger",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut arguments = Arguments::new(&TASK, arguments);
    let rounds: Option<u64> = arguments.one("--rounds")?;
    let minutes: Option<u64> = arguments.one("--minutes")?;
    let seed: Option<u64> = arguments.one("--seed")?;
    let shard: Option<String> = arguments.one("--shard")?;
    if shard.as_deref().is_some_and(|shard| !is_shard(shard)) {
        return Err(TaskError(format!("--shard takes a part and of how many, as 2/5; {}", TASK.usage())));
    }
    let wanted = arguments.names()?;
    if let Some(other) = wanted.iter().find(|name| !subjects().contains(&name.as_str())) {
        return Err(TaskError(format!("unknown subject {other:?}; {}", TASK.usage())));
    }
    let chosen = || {
        SUBJECTS.iter().filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name))
    };
    for (name, test) in chosen() {
        let (has_rounds, has_seed, has_parts) = match test {
            Test::Random(..) | Test::Guided(..) | Test::Sample(..) => (true, true, false),
            Test::Rounds(..) => (true, false, false),
            Test::Parts(_) => (false, false, true),
            Test::All(_) => (false, false, false),
        };
        for (option, given, fits) in [
            ("--rounds", rounds.is_some(), has_rounds),
            ("--minutes", minutes.is_some(), matches!(test, Test::Sample(..))),
            ("--seed", seed.is_some(), has_seed),
            ("--shard", shard.is_some(), has_parts),
        ] {
            if given && !fits {
                return Err(TaskError(format!(
                    "{option} does not apply to {name}: name the subjects it is for"
                )));
            }
        }
    }
    let seed = seed.map_or_else(random_seed, Ok)?;
    let takes_seed = |test: &Test| matches!(test, Test::Random(..) | Test::Guided(..) | Test::Sample(..));
    if chosen().any(|(_, test)| takes_seed(test)) {
        eprintln!("NODLET_SEED={seed}");
    }
    let is_part = minutes.is_some() || shard.is_some();
    for (name, test) in chosen() {
        let (tested, begun) = (ledger::Tested::now()?, Instant::now());
        let is_whole = perform(test, rounds, minutes, seed, shard.as_deref()).map_err(|TaskError(why)| {
            let given = [
                ("--rounds", rounds.map(|rounds| rounds.to_string())),
                ("--minutes", minutes.map(|minutes| minutes.to_string())),
                ("--shard", shard.clone()),
            ];
            let given = given.into_iter().filter_map(|(name, value)| Some(format!(" {name} {}", value?)));
            let mut options: String = given.collect();
            if takes_seed(test) {
                options += &format!(" --seed {seed}");
            }
            TaskError(format!("{why}\n{name} is repeated by: cargo xtask long {name}{options}"))
        })?;
        if is_whole && !is_part {
            ledger::record(name, tested, begun.elapsed())?;
        }
    }
    Ok(())
}

/// Tests a subject. Returns whether it was with as many rounds as by default, or more.
fn perform(
    test: &Test,
    rounds: Option<u64>,
    minutes: Option<u64>,
    seed: u64,
    shard: Option<&str>,
) -> Result<bool, TaskError> {
    let rounds = |default: u64| rounds.unwrap_or(default);
    match test {
        Test::Random(default, words) | Test::Rounds(default, words) | Test::Guided(default, words) => {
            run_tests(words, matches!(test, Test::Guided(..)), rounds(*default), seed)?;
            Ok(rounds(*default) >= *default)
        }
        Test::Sample(default, test) => {
            test(rounds(*default), seed, minutes)?;
            Ok(rounds(*default) >= *default)
        }
        Test::Parts(test) => test(shard.unwrap_or("1/1")).map(|()| true),
        Test::All(test) => test().map(|()| true),
    }
}

/// Runs tests with so many rounds; `is_guided` by the coverage that their inputs reach.
fn run_tests(words: &str, is_guided: bool, rounds: u64, seed: u64) -> Outcome {
    if words.contains("nodlet-tests") {
        build()?;
    }
    if words.contains(SOAK_CLUSTER) || words.contains(DIFFERENTIAL) {
        go::control_plane(&[])?;
    }
    if words.contains(DIFFERENTIAL) {
        go::KUBECTL.build(None)?;
    }
    let mut cargo = cargo()?;
    if words.contains(YAML) {
        cargo.env("NODLET_YAML_JUDGE", go::YAML_JUDGE.build(None)?);
    }
    if is_guided {
        counting(&mut cargo);
    }
    cargo.arg("test").args(words.split(' '));
    // The subject's own arguments of the tests come after these dashes.
    if !words.contains(" -- ") {
        cargo.arg("--");
    }
    run_command(
        cargo
            .arg("--nocapture")
            .env("NODLET_ROUNDS", rounds.to_string())
            .env("NODLET_SEED", seed.to_string()),
    )
}

fn plain_release() -> Outcome {
    let tested = suites::run_those(&[], suites::Binary::Release);
    // The subjects that follow test the binary for boards.
    nodlet_kernel::process::remove_variable("NODLET");
    tested
}

fn board_power_cuts(states: u64, seed: u64, minutes: Option<u64>) -> Outcome {
    let mut words = vec!["boards".to_owned(), "--power-cuts".to_owned(), states.to_string()];
    words.extend(minutes.map(|minutes| minutes.to_string()));
    run_program(SYSTEM, &words, Some(seed))
}

fn guests(part: &str) -> Outcome {
    let part = if part == "1/1" { vec![] } else { vec!["--shard", part] };
    run_program(SYSTEM, &[&["guest", "--all"], &part[..]].concat(), None)
}

fn reproducible() -> Outcome {
    run_program(DIST, &["release", "--test-key", "--twice", targets::host()?.triple], None)
}

fn distributions() -> Outcome {
    run_program(SYSTEM, &["recipes"], None)?;
    run_program(SYSTEM, &["distribution"], None)
}

/// Makes cargo build with a counter in each basic block, for `tests/fuzz/src/coverage.rs`.
fn counting(cargo: &mut Command) {
    // These flags replace those of .cargo/config.toml.
    const FLAGS: &str = "-C target-feature=+crt-static -C relocation-model=static -C passes=sancov-module \
                         -C llvm-args=-sanitizer-coverage-level=3 \
                         -C llvm-args=-sanitizer-coverage-inline-8bit-counters";
    cargo.env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", target_dir().join("fuzz"));
}

fn is_shard(text: &str) -> bool {
    Part::parse(text).is_some()
}

fn kills(shard: &str) -> Outcome {
    build()?;
    let mut tests = ignored(&["kill::", "steps::"])?;
    tests.env("NODLET_SHARD", shard);
    run_command(&mut tests)
}

fn requests(shard: &str) -> Outcome {
    go::KUBECTL.build(None)?;
    go::control_plane(&[])?;
    build()?;
    let mut tests = cargo()?;
    tests.args(["test", "--package", "nodlet-tests", "--test", "suites", "requests::", "--", "--nocapture"]);
    run_command(tests.env("NODLET_SHARD", shard))
}

fn upgrade() -> Outcome {
    build()?;
    for earlier in earlier::ALL {
        run_command(ignored(&["upgrade::"])?.env("NODLET_EARLIER", earlier.build()?))?;
    }
    Ok(())
}

/// Runs the suites in which a board is a Node with control planes of the minor version before and the one after.
fn clusters() -> Outcome {
    const SUITES: [&str; 6] =
        ["cluster::", "cluster_pods::", "enrolment::", "kubelet_server::", "sync::", "workloads::"];
    go::control_plane(&[])?;
    build()?;
    for program in go::OTHER_CONTROL_PLANES {
        program.build(None)?;
        eprintln!("NODLET_KUBERNETES={}", program.release);
        run_command(
            cargo()?
                .args(["test", "--package", "nodlet-tests", "--test", "suites", "--no-fail-fast", "--"])
                .args(SUITES)
                .env("NODLET_KUBERNETES", program.release),
        )?;
    }
    Ok(())
}

/// Builds the programs for the tests with real containers.
fn build() -> Outcome {
    requirements::require_root()?;
    cross::provide()?;
    toolchain::programs()
}

/// The command that runs the tests of these suites that `check` skips, with their output.
fn ignored(suites: &[&str]) -> Result<Command, TaskError> {
    let mut command = cargo()?;
    command.args(["test", "--package", "nodlet-tests", "--test", "suites", "--"]).args(suites);
    // One after another, because each uses the whole machine.
    command.args(["--ignored", "--nocapture", "--test-threads=1"]);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_names_only_subjects() {
        for subject in ledger::recorded().unwrap() {
            assert!(subjects().contains(&subject.as_str()), "{subject} is no subject");
        }
    }

    #[test]
    fn the_usage_and_the_page_on_tests_name_every_subject() {
        let names: Vec<String> = subjects().iter().map(|name| format!("[{name}]")).collect();
        assert!(TASK.usage().contains(&format!("{} [--rounds N]", names.join(" "))), "{}", TASK.usage());
        let page = std::fs::read_to_string(nodlet_build::task::project().join("docs/testing.md")).unwrap();
        let (_, table) = page.split_once("| subject | content |").unwrap();
        for name in subjects() {
            assert!(table.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn a_shard_must_be_one_of_the_declared_number() {
        for (text, is) in [
            ("1/1", true),
            ("2/5", true),
            ("5/5", true),
            ("6/5", false),
            ("0/5", false),
            ("1", false),
            ("", false),
        ] {
            assert_eq!(is_shard(text), is, "{text}");
        }
        for words in [
            "upgrade --shard 1/2",
            "guests --rounds 3",
            "kills --seed 3",
            "fuzz --shard 1/2",
            "soak --seed 3",
            "fuzz --minutes 3",
            "memory --seed 3",
        ] {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            let Err(TaskError(why)) = run(&words) else { panic!("{words:?} is refused") };
            assert!(why.contains(&format!("{} does not apply to {}", words[1], words[0])), "{why}");
        }
        let Err(TaskError(why)) = run(&["kills".to_owned(), "--shard".to_owned(), "9/2".to_owned()]) else {
            panic!("it was run")
        };
        assert!(why.contains("--shard takes a part and of how many, as 2/5"), "{why}");
    }
}
