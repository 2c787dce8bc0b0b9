//! The complete check, which CI also runs: formatting, lints, unit tests, then the tests with real
//! containers. It prints each step, stops at the first that fails, and never skips what this machine cannot
//! do. Of the slowest suites with containers, and of the longest steps with boards, it runs a part, chosen by
//! the commit; all of them if the step is named. With `--install` it first installs what the tests need and this machine lacks.
//! The tests run nodlet as boards get it (`cross.rs`); with `--debug`, an unoptimised binary that is built in less time.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Instant;

use crate::commit::CLUSTER_PARTS;
use crate::task::{Failure, Outcome, line_of, project, run as run_command, usage};
use crate::toolchain::{self, Part, cargo};
use crate::{boards, commit, conformance, cross, deny, gates, go, guest, images, programs, setup};

/// A step: its name, its description, and its function.
type Step = (&'static str, &'static str, fn() -> Outcome);

const STEPS: &[Step] = &[
    ("fmt", "the formatting of the source", fmt),
    ("clippy", "lints, all of which count as errors", clippy),
    ("doc", "the documentation of the code, with every link", doc),
    ("unit", "the tests beside the code", unit),
    ("containers", "the tests with real containers", containers),
    ("conformance", "Kubernetes' own tests of nodes, on a node of a real cluster", conformance::check),
    ("gates", "what the binary for boards costs, against its budgets", gates::check),
    ("deny", "the licences, versions and sources of crates, and their list in the binary", deny::check),
    ("guest", "the tests that need a kernel of their own, in QEMU", guest::check),
    (
        "boards",
        "an emulated board with this machine's processor, over SSH; or guests with another",
        boards::check,
    ),
];

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (options, arguments): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|argument| argument.starts_with('-'));
    if let Some(unknown) = options.iter().find(|option| !["--install", "--debug"].contains(&option.as_str()))
    {
        return Err(Failure(format!("unknown option {unknown:?}; {}", usage("check"))));
    }
    let has = |wanted: &str| options.iter().any(|option| *option == wanted);
    for wanted in &arguments {
        if !STEPS.iter().any(|(name, _, _)| name == wanted) {
            return Err(Failure(format!("unknown step {wanted:?}; {}", usage("check"))));
        }
    }
    let chosen = |name: &str| arguments.is_empty() || arguments.iter().any(|wanted| *wanted == name);
    if has("--install") {
        setup::run(&[])?;
    }
    // Checked first, so that a missing tool or a full disk is not reported only after ten minutes.
    if arguments.is_empty() {
        setup::require_disk()?;
    }
    toolchain::complete(&[Part::Rustfmt, Part::Clippy])?;
    toolchain::host()?;
    if has("--debug") {
        cross::provide_debug()?;
    }
    if chosen("containers") || chosen("conformance") {
        setup::require()?;
    }
    if chosen("gates") {
        gates::require()?;
    }
    for (name, what, step) in STEPS {
        if chosen(name) {
            eprintln!("\n== {name}: {what}");
            let begun = Instant::now();
            match *name {
                "containers" if arguments.is_empty() => containers_of_commit()?,
                "conformance" if arguments.is_empty() => conformance_of_commit()?,
                "boards" if arguments.is_empty() => boards::check_of_commit()?,
                _ => step()?,
            }
            eprintln!("== {name} took {:.0?}", begun.elapsed());
        }
    }
    eprintln!("\nall is well");
    Ok(())
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

fn unit() -> Outcome {
    let seed = seed();
    eprintln!("NODLET_SEED={seed}");
    let tests = &mut cargo()?;
    run_command(tests.args(["test", "--workspace", "--exclude", "nodlet-tests"]).env("NODLET_SEED", seed))?;
    cross::test_tls()?;
    beside_go()
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
    let beside = &mut cargo()?;
    beside.args(["test", "--package", "nodlet-kube", "--lib", "beside_go", "--", "--ignored"]);
    beside.env("NODLET_YAML_JUDGE", judge);
    let line = line_of(beside);
    eprintln!("$ {line}");
    let output = beside.stderr(Stdio::inherit()).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    // A filter that matches no test any more is no error of `cargo test`.
    if output.status.success() && BESIDE_GO.iter().all(|name| said.contains(&format!("{name} ... ok"))) {
        return Ok(());
    }
    Err(Failure(format!("{line}: {}; {} must pass", output.status, BESIDE_GO.join(", "))))
}

/// The first seed of the random inputs of unit tests: different for each commit, so that more and more inputs
/// are tried, but the same when a commit is checked again. Or `$NODLET_SEED`.
fn seed() -> String {
    let chosen = std::env::var("NODLET_SEED").ok().filter(|text| text.parse::<u64>().is_ok());
    chosen.unwrap_or_else(|| seed_of(&commit::checked_out().unwrap_or_default()).to_string())
}

/// The first seed for a commit; 1 without a commit.
fn seed_of(commit: &str) -> u64 {
    // More than the inputs that `check` tries in one test.
    const APART: u64 = 100_000;
    let beginning = commit.get(..8).and_then(|digits| u64::from_str_radix(digits, 16).ok());
    1 + beginning.unwrap_or(0) * APART
}

/// The suites with containers that take longest, in the order of their time: together three quarters of all. For
/// `cluster`, the servers of a cluster are built.
const SLOW: &[&str] = &[
    "soak",
    "bounded",
    "removal",
    "volumes",
    "agnhost",
    "documents",
    "reboot",
    "fields",
    "update",
    "attack",
    "steps",
    "policies",
    "push",
    "resources",
    "init",
    "hooks",
    "push_changes",
    "store_limits",
    "describe",
    "files",
    "real",
    "probes",
];

/// Suites with a control plane of Kubernetes, whose build alone takes ten minutes.
const CLUSTER: &[&str] = &[
    "at_most_one",
    "at_rest",
    "cluster",
    "cluster_network",
    "cluster_pods",
    "cluster_set_aside",
    "cluster_soak",
    "deleted_node",
    "differential",
    "enrolment",
    "konnectivity",
    "kubelet_server",
    "misbehaving",
    "pressure",
    "rejections",
    "requests",
    "restarted",
    "sync",
    "workloads",
];

/// One in so many slow suites is run for a commit.
const SLOW_PARTS: usize = 3;

/// All tests with containers.
fn containers() -> Outcome {
    containers_of(&[])
}

/// All fast suites with containers, and the part of the slow ones that is the commit's.
fn containers_of_commit() -> Outcome {
    let chosen = suites_of(&suites()?, commit::number());
    eprintln!("of {} slow suites every third, by the commit; all: cargo xtask check containers", SLOW.len());
    let mut options = vec!["--lib".to_owned(), "--bins".to_owned()];
    for suite in chosen {
        options.extend(["--test".to_owned(), suite]);
    }
    containers_of(&options)
}

/// A part of Kubernetes' own tests, for commits with suites that have a control plane.
fn conformance_of_commit() -> Outcome {
    let number = commit::number();
    if number.is_multiple_of(CLUSTER_PARTS) {
        return conformance::check_part(number / CLUSTER_PARTS);
    }
    eprintln!("not for this commit, but for one in {CLUSTER_PARTS}; all: cargo xtask check conformance");
    Ok(())
}

/// The names of all suites with containers.
fn suites() -> Result<BTreeSet<String>, Failure> {
    let mut suites = BTreeSet::new();
    for entry in std::fs::read_dir(project().join("tests/tests"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            suites.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
        }
    }
    Ok(suites)
}

/// The suites of `all` that are run for the commit with this number.
fn suites_of(all: &BTreeSet<String>, number: usize) -> BTreeSet<String> {
    let place = |suite: &String| SLOW.iter().position(|slow| slow == suite);
    let of_cluster = |suite: &String| CLUSTER.iter().position(|other| other == suite);
    let runs = |suite: &&String| match of_cluster(suite) {
        Some(place) => number.is_multiple_of(CLUSTER_PARTS) && place % 2 == number / CLUSTER_PARTS % 2,
        None => place(suite).is_none_or(|place| place % SLOW_PARTS == number % SLOW_PARTS),
    };
    all.iter().filter(runs).cloned().collect()
}

/// Runs the tests with containers that the options of `cargo test` name: all without options.
fn containers_of(options: &[String]) -> Outcome {
    go::KUBECTL.build(None)?;
    go::AGNHOST.build(None)?;
    let runs = |suite: &str| options.is_empty() || options.iter().any(|option| option == suite);
    if CLUSTER.iter().copied().any(runs) {
        go::control_plane(&[])?;
    }
    if runs("pull") {
        programs::provide("docker-registry", "docker-registry")?;
    }
    images::build()?;
    cross::provide()?;
    run_command(cargo()?.args(["build", "--package", "nodlet-runtime", "--example", "replay"]))?;
    // All tests run, even if one fails: readers of CI's output cannot try again.
    run_command(
        cargo()?
            .args(["test", "--package", "nodlet-tests", "--no-fail-fast"])
            .args(options)
            .env("NODLET_SEED", seed()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_names_every_step_in_its_order() {
        let steps: Vec<String> = STEPS.iter().map(|(name, ..)| format!("[{name}]")).collect();
        assert!(
            usage("check").ends_with(&format!("[--install] [--debug] {}", steps.join(" "))),
            "{}",
            usage("check")
        );
    }

    #[test]
    fn random_inputs_begin_elsewhere_with_every_commit() {
        assert_eq!(seed_of("00000001c5a7"), 100_001);
        assert_eq!(seed_of("6104d2f0a111\n"), 1 + 0x6104_d2f0 * 100_000);
        for none in ["", "6104d2f", "no commit"] {
            assert_eq!(seed_of(none), 1);
        }
    }
    #[test]
    fn each_suite_runs_for_its_part_of_the_commits() {
        let all = suites().unwrap();
        assert!(SLOW.iter().all(|slow| all.contains(*slow)), "a slow suite does not exist");
        for suite in &all {
            let text = std::fs::read_to_string(project().join(format!("tests/tests/{suite}.rs"))).unwrap();
            let of_cluster = CLUSTER.contains(&suite.as_str());
            assert_eq!(text.contains("ControlPlane"), of_cluster, "{suite} in CLUSTER");
        }
        assert!(
            CLUSTER.iter().all(|suite| all.contains(*suite)),
            "a suite with a control plane does not exist"
        );
        // All remainders of all divisors.
        let numbers = 2 * CLUSTER_PARTS * SLOW_PARTS;
        let parts: Vec<_> = (7..7 + numbers).map(|number| suites_of(&all, number)).collect();
        for suite in &all {
            let runs = parts.iter().filter(|part| part.contains(suite)).count();
            let expected = match suite.as_str() {
                of_cluster if CLUSTER.contains(&of_cluster) => numbers / CLUSTER_PARTS / 2,
                slow if SLOW.contains(&slow) => numbers / SLOW_PARTS,
                _ => numbers,
            };
            assert_eq!(runs, expected, "{suite}");
        }
    }
}
