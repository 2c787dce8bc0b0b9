//! Mutations of single operators in the decisions of the core and of the registry, made by `cargo-mutants`: the
//! unit tests of the same crate must fail for each.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodlet_build::task::{Outcome, TaskError, output, project, run as run_command, work};
use nodlet_build::toolchain::cargo;
use serde_json::Value;

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

/// The kinds of outcomes of mutations in the file of `cargo-mutants`.
const KINDS: [&str; 4] = ["caught", "missed", "timeout", "unviable"];

/// Tests this many mutations, which the seed chooses from all possible ones. With `minutes`, the mutation that is tested
/// when so many have passed is the last: as they are in the order of their files, those of the last files are left out.
pub(crate) fn run(rounds: u64, seed: u64, minutes: Option<u64>) -> Outcome {
    let listed = output(&mut mutants(&["--list", "--json"])?)?;
    let all = serde_json::from_str::<Vec<Value>>(&listed)?.len() as u64;
    let parts = (all / rounds.max(1)).max(1);
    let shard = format!("--shard={}/{parts}", seed % parts);
    eprintln!("one of {parts} parts of {all} faults, by the seed {seed}");
    let directory = work("mutants")?;
    let begun = Instant::now();
    // A fault can make a test run for ever: a test may take five times as long as without a fault.
    let times = ["--timeout-multiplier=5", "--minimum-test-timeout=60"];
    let options = ["--no-shuffle", "--sharding=round-robin", &shard];
    let mut run = mutants(&options)?;
    run.args(times);
    run.arg(format!("--output={}", directory.display()));
    run.args(["--", "--lib"]);
    let file = directory.join("mutants.out/outcomes.json");
    // Those of an earlier run.
    let _ = std::fs::remove_file(&file);
    let limit = minutes.map(|minutes| Duration::from_secs(minutes.saturating_mul(60)));
    // Missed mutations are an outcome, which the file reports.
    // A shell lets what it runs in the background ignore SIGINT, and programs inherit that.
    nodlet_kernel::signal::reset(Signal::SIGINT as i32)?;
    let status = end_of(&mut run.spawn()?, &file, limit)?;
    let outcomes = std::fs::read(&file)
        .map_err(|error| format!("{run:?} ended with {status} and left no outcomes: {error}"))?;
    let outcomes: Value = serde_json::from_slice(&outcomes)?;
    let tested = tested(&outcomes);
    match limit {
        Some(_) => eprintln!("{tested} faults were tried in {} minutes", begun.elapsed().as_secs() / 60),
        None => eprintln!("{tested} faults were tried"),
    }
    let count = |kind: &str| outcomes[kind].as_u64().unwrap_or_default() as usize;
    let (caught, missed) = (count("caught") + count("timeout"), count("missed"));
    eprintln!("{caught} of {} faults were caught", caught + missed);
    if caught + missed == 0 || caught * 10 < (caught + missed) * CAUGHT_OF_TEN {
        return Err(TaskError(format!("the tests miss {missed} faults of {}: see above", caught + missed)));
    }
    Ok(())
}

/// Waits until `cargo-mutants` ends. After `limit`, interrupts it as soon as one more mutation is in the file with the
/// outcomes, which it writes anew after each.
fn end_of(run: &mut Child, file: &Path, limit: Option<Duration>) -> Result<ExitStatus, TaskError> {
    let Some(limit) = limit else { return Ok(run.wait()?) };
    let begun = Instant::now();
    let count = || match std::fs::read(file) {
        Err(_) => Some(0),
        // Nothing while it is being written.
        Ok(bytes) => serde_json::from_slice(&bytes).ok().map(|outcomes| tested(&outcomes)),
    };
    let mut at_limit = None;
    loop {
        if let Some(status) = run.try_wait()? {
            return Ok(status);
        }
        if begun.elapsed() >= limit
            && let Some(now) = count()
            && now > *at_limit.get_or_insert(now)
        {
            // It ends the tests that it has started by itself.
            kill(Pid::from_raw(i32::try_from(run.id())?), Signal::SIGINT)?;
            return Ok(run.wait()?);
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// The number of mutations that have an outcome.
fn tested(outcomes: &Value) -> u64 {
    KINDS.iter().filter_map(|kind| outcomes[kind].as_u64()).sum()
}

/// The command `cargo mutants` for the core and the registry. It runs the tests of the mutated crate only.
fn mutants(options: &[&str]) -> Result<Command, TaskError> {
    let mut command = Command::new(program()?);
    command.current_dir(project()).arg("mutants").args(PACKAGES).args(FILES).args(options);
    Ok(command)
}

/// The path of `cargo-mutants`, which is built if it does not exist.
fn program() -> Result<PathBuf, TaskError> {
    let root = work("tools")?;
    let program = root.join("bin/cargo-mutants");
    if !program.is_file() {
        let install = ["install", "cargo-mutants", "--locked", "--version", VERSION, "--root"];
        run_command(cargo()?.args(install).arg(&root))?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn after_the_limit_one_more_mutation_is_tested() {
        let file = std::env::temp_dir().join(format!("nodlet-mutants-{}.json", std::process::id()));
        std::fs::write(&file, r#"{"caught": 1}"#).unwrap();
        let script = r#"n=1; while :; do n=$((n + 1)); sleep 1; echo "{\"caught\": $n}" > "$0"; done"#;
        let mut run = Command::new("sh");
        // As before the run of `cargo-mutants`: the tests may run in the background of a shell.
        nodlet_kernel::signal::reset(Signal::SIGINT as i32).unwrap();
        let mut child = run.args(["-c", script]).arg(&file).spawn().unwrap();
        let status = end_of(&mut child, &file, Some(Duration::ZERO)).unwrap();
        let outcomes: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(status.signal(), Some(Signal::SIGINT as i32));
        assert!(tested(&outcomes) > 1, "{outcomes}");
    }
}
