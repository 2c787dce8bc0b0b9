//! The whole check, which is also what CI runs: form, lints, unit tests, then the
//! tests with real containers. It says what it runs, stops at the first that
//! fails, and never passes over what this machine cannot do. With `--install` it
//! first gets what the tests need and this machine lacks.

use crate::{
    Failure, Outcome, agnhost, cargo, gates, guest, images, kubectl, run as run_command, setup, usage,
};

/// A step: its name, what it looks at, and the function.
type Step = (&'static str, &'static str, fn() -> Outcome);

const STEPS: &[Step] = &[
    ("fmt", "the form of the source", fmt),
    ("clippy", "lints, all of which count as errors", clippy),
    ("unit", "the tests beside the code", unit),
    ("containers", "the tests with real containers", containers),
    ("gates", "what the binary for boards costs, against its budgets", gates::check),
    ("guest", "the tests that need a kernel of their own, in QEMU", guest::check),
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
        gates::install()?;
    }
    // Asked first: nobody should learn it after ten minutes.
    if chosen("containers") {
        setup::require()?;
    }
    if chosen("gates") {
        gates::require()?;
    }
    for (name, what, step) in STEPS {
        if chosen(name) {
            eprintln!("\n== {name}: {what}");
            step()?;
        }
    }
    eprintln!("\nall is well");
    Ok(())
}

fn fmt() -> Outcome {
    run_command(cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> Outcome {
    run_command(cargo().args(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))
}

fn unit() -> Outcome {
    run_command(cargo().args(["test", "--workspace", "--exclude", "nodlet-tests"]))
}

fn containers() -> Outcome {
    kubectl::build()?;
    agnhost::build()?;
    images::build()?;
    run_command(cargo().args(["build", "--package", "nodlet"]))?;
    run_command(cargo().args(["build", "--package", "nodlet-runtime", "--example", "replay"]))?;
    // All of them, also where one fails: who reads what CI printed has no second look.
    run_command(cargo().args(["test", "--package", "nodlet-tests", "--no-fail-fast"]))
}
