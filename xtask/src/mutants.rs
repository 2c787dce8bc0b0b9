//! Mutations of single operators in the decisions of the core and of the registry, made by `cargo-mutants`: the
//! unit tests of the same crate must fail for each.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::task::{Failure, Outcome, project, run as run_command, work};
use crate::toolchain::cargo;

const VERSION: &str = "27.1.0";

/// The crates with decisions.
const PACKAGES: &[&str] = &["--package=nodlet-core", "--package=nodlet-registry"];

/// The files with decisions, including and excluding patterns.
const FILES: &[&str] = &[
    "--file=runtime/core/src/pod.rs",
    "--file=runtime/core/src/pod/**/*.rs",
    "--file=runtime/core/src/node.rs",
    "--file=runtime/core/src/node/**/*.rs",
    "--file=runtime/registry/src/**/*.rs",
    "--exclude=**/tests.rs",
    "--exclude=**/tests/**",
    "--exclude=**/seeds.rs",
    "--exclude=**/sim.rs",
    "--exclude=**/sim/**",
    "--exclude=**/timelines.rs",
    "--exclude=**/timelines/**",
];

/// The least number of caught mutations out of ten: some have no observable effect.
const CAUGHT_OF_TEN: usize = 9;

/// Tests this many mutations, which the seed chooses from all possible ones.
pub(crate) fn run(rounds: u64, seed: u64) -> Outcome {
    let mut list = mutants(&["--list", "--json"])?;
    let listed = list.output()?;
    if !listed.status.success() {
        return Err(Failure(format!("{list:?}: {}", String::from_utf8_lossy(&listed.stderr))));
    }
    let all = serde_json::from_slice::<Vec<Value>>(&listed.stdout)?.len() as u64;
    let parts = (all / rounds.max(1)).max(1);
    let shard = format!("--shard={}/{parts}", seed % parts);
    eprintln!("one of {parts} parts of {all} faults, by the seed {seed}");
    let output = work("mutants")?;
    // A fault can make a test run for ever: a test may take five times as long as without a fault.
    let times = ["--timeout-multiplier=5", "--minimum-test-timeout=60"];
    let options = ["--no-shuffle", "--sharding=round-robin", &shard];
    let mut run = mutants(&options)?;
    run.args(times);
    run.arg(format!("--output={}", output.display()));
    run.args(["--", "--lib"]);
    // Missed mutations are an outcome, which the file reports.
    let status = run.status()?;
    let outcomes = std::fs::read(output.join("mutants.out/outcomes.json"))
        .map_err(|error| format!("{run:?} ended with {status} and left no outcomes: {error}"))?;
    let outcomes: Value = serde_json::from_slice(&outcomes)?;
    let count = |kind: &str| outcomes[kind].as_u64().unwrap_or_default() as usize;
    let (caught, missed) = (count("caught") + count("timeout"), count("missed"));
    eprintln!("{caught} of {} faults were caught", caught + missed);
    if caught + missed == 0 || caught * 10 < (caught + missed) * CAUGHT_OF_TEN {
        return Err(Failure(format!("the tests miss {missed} faults of {}: see above", caught + missed)));
    }
    Ok(())
}

/// The command `cargo mutants` for the core and the registry. It runs the tests of the mutated crate only.
fn mutants(options: &[&str]) -> Result<Command, Failure> {
    let mut command = Command::new(program()?);
    command.current_dir(project()).arg("mutants").args(PACKAGES).args(FILES).args(options);
    Ok(command)
}

/// The path of `cargo-mutants`, which is built if it does not exist.
fn program() -> Result<PathBuf, Failure> {
    let root = work("tools")?;
    let program = root.join("bin/cargo-mutants");
    if !program.is_file() {
        let install = ["install", "cargo-mutants", "--locked", "--version", VERSION, "--root"];
        run_command(cargo()?.args(install).arg(&root))?;
    }
    Ok(program)
}
