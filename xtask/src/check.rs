//! The complete check, which CI also runs: formatting, lints, unit tests, then the tests with real
//! containers. It prints each step, stops at the first that fails, and never skips what this machine cannot
//! do. With `--install` it first installs what the tests need and this machine lacks.

use std::time::Instant;

use crate::toolchain::{self, Part};
use crate::{
    Failure, Outcome, boards, cargo, commit, gates, go, guest, images, run as run_command, setup, usage,
};

/// A step: its name, its description, and its function.
type Step = (&'static str, &'static str, fn() -> Outcome);

const STEPS: &[Step] = &[
    ("fmt", "the form of the source", fmt),
    ("clippy", "lints, all of which count as errors", clippy),
    ("doc", "the documentation of the code, with every link", doc),
    ("unit", "the tests beside the code", unit),
    ("containers", "the tests with real containers", containers),
    ("gates", "what the binary for boards costs, against its budgets", gates::check),
    ("guest", "the tests that need a kernel of their own, in QEMU", guest::check),
    (
        "boards",
        "an emulated board with this machine's processor, over SSH; or guests with another",
        boards::check,
    ),
];

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (options, arguments): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|argument| *argument == "--install");
    for wanted in &arguments {
        if !STEPS.iter().any(|(name, _, _)| name == wanted) {
            return Err(Failure(format!("there is no step {wanted:?}; {}", usage("check"))));
        }
    }
    let chosen = |name: &str| arguments.is_empty() || arguments.iter().any(|wanted| *wanted == name);
    if !options.is_empty() {
        setup::run(&[])?;
    }
    // Checked first, so that a missing tool is not reported only after ten minutes.
    toolchain::complete(&[Part::Rustfmt, Part::Clippy])?;
    toolchain::host()?;
    if chosen("containers") {
        setup::require()?;
    }
    if chosen("gates") {
        gates::require()?;
    }
    for (name, what, step) in STEPS {
        if chosen(name) {
            eprintln!("\n== {name}: {what}");
            let begun = Instant::now();
            step()?;
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
    run_command(tests.args(["test", "--workspace", "--exclude", "nodlet-tests"]).env("NODLET_SEED", seed))
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

fn containers() -> Outcome {
    go::KUBECTL.build(None)?;
    go::AGNHOST.build(None)?;
    images::build()?;
    run_command(cargo()?.args(["build", "--package", "nodlet"]))?;
    run_command(cargo()?.args(["build", "--package", "nodlet-runtime", "--example", "replay"]))?;
    // All tests run, even if one fails: readers of CI's output cannot try again.
    run_command(cargo()?.args(["test", "--package", "nodlet-tests", "--no-fail-fast"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_names_every_step_in_its_order() {
        let steps: Vec<String> = STEPS.iter().map(|(name, ..)| format!("[{name}]")).collect();
        assert!(usage("check").ends_with(&format!("[--install] {}", steps.join(" "))), "{}", usage("check"));
    }

    #[test]
    fn random_inputs_begin_elsewhere_with_every_commit() {
        assert_eq!(seed_of("00000001c5a7"), 100_001);
        assert_eq!(seed_of("6104d2f0a111\n"), 1 + 0x6104_d2f0 * 100_000);
        for none in ["", "6104d2f", "no commit"] {
            assert_eq!(seed_of(none), 1);
        }
    }
}
