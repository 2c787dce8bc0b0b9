//! Benchmarks of nodlet's size and speed on this machine, beside crun, conmon and podman in the same run: a
//! time alone says more about the machine than about nodlet. `docs/benchmarks.md` describes what is measured
//! and how. Each measure has a file below this one.
//!
//! Measures must not disturb what they measure: they send the agent no requests meanwhile. Read next:
//! `bench/race.rs` for the order of turns, `bench/spread.rs` for the definition of noise, `bench/start.rs`
//! for a measure.

use std::fs;
use std::path::PathBuf;

use nodlet_build::arguments::Arguments;
use nodlet_build::task::{Outcome, Task, TaskError, run as run_command};
use nodlet_build::toolchain::{built, cargo};
use nodlet_build::{cross, requirements, targets};

mod board;
mod boot;
mod cluster;
mod cpu;
mod crun;
mod idle;
mod load;
mod log;
mod machine;
mod memory;
mod pages;
mod podman;
mod probes;
mod race;
mod report;
mod scratch;
mod spread;
mod start;

use self::report::Rows;
use self::scratch::Scratch;

/// The parameters of all measures.
struct Bench {
    scratch: Scratch,
    program: PathBuf,
    /// The number of rounds of every measure, instead of each measure's own.
    rounds: Option<usize>,
    minutes: u64,
}

impl Bench {
    fn rounds(&self, usual: usize) -> usize {
        self.rounds.unwrap_or(usual)
    }
}

/// A measure: its name for `--only`, and its function.
type Measure = (&'static str, fn(&Bench) -> Rows);

/// All measures. Those that need a settled machine come first, and the longest comes last.
const MEASURES: &[Measure] = &[
    ("size", size),
    ("memory", memory::memory),
    ("start", start::warm),
    ("start-cold", start::cold),
    ("boot-1", boot::one),
    ("boot-20", boot::twenty),
    ("boot-100", boot::hundred),
    ("exec", probes::exec),
    ("http", probes::http),
    ("load", load::load),
    ("log", log::log),
    ("idle", idle::idle),
];

/// The task `cargo xtask bench`.
pub(crate) const TASK: Task = Task::new(
    "bench",
    "[--cluster | --write | --only NAME]... [--rounds N] [--minutes N] [--debug | --binary PATH]",
    "measure the figures of the README on this machine; --write writes them into the pages",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut arguments = Arguments::new(&TASK, arguments);
    let only: Vec<String> = arguments.all("--only")?;
    let rounds = arguments.one("--rounds")?;
    let minutes: u64 = arguments.one("--minutes")?.unwrap_or(10);
    let [cluster, write, debug] = ["--cluster", "--write", "--debug"].map(|option| arguments.has(option));
    let profile = debug.then_some("debug");
    let binary: Option<String> = arguments.one("--binary")?;
    arguments.end()?;
    if rounds == Some(0) {
        return Err("--rounds 0 measures nothing".into());
    }
    if usize::from(cluster) + usize::from(write) + usize::from(!only.is_empty()) > 1 {
        return Err(TASK.misused());
    }
    if let Some(wrong) = only.iter().find(|only| !MEASURES.iter().any(|(name, _)| name == only)) {
        let names: Vec<&str> = MEASURES.iter().map(|(name, _)| *name).collect();
        return Err(TaskError(format!("unknown measure {wrong:?}; there are {}", names.join(", "))));
    }
    if write {
        pages::require_marks()?;
        machine::require_quiet()?;
    }
    requirements::require_root()?;
    run_command(cargo()?.args(["build", "--package", "nodlet-tests", "--bin", "demo"]))?;
    let program = match binary {
        // A relative path refers to the directory in which cargo was called.
        Some(path) => fs::canonicalize(&path).map_err(|error| format!("failed to find {path}: {error}"))?,
        // The pages have the figures of the binary that is released.
        None if write && profile.is_none() => cross::build(targets::host()?)?,
        None => build(profile.unwrap_or("release"))?,
    };
    // SAFETY: this program has one thread so far; nobody else reads the environment.
    unsafe { std::env::set_var("NODLET", &program) };
    if cluster {
        return cluster::run(rounds, minutes);
    }
    let bench = Bench { scratch: Scratch::new()?, program, rounds, minutes };
    let machine = machine::describe();
    println!("{machine}\n");
    let rows = measure(&bench, &only)?;
    if write { pages::write(&machine, &rows) } else { Ok(()) }
}

/// The rows of these measures, or of all. Each is printed as soon as its measure ends.
fn measure(bench: &Bench, only: &[String]) -> Rows {
    let busy = machine::is_busy();
    println!("{}", report::HEAD);
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for (name, measure) in MEASURES {
        let wanted = only.is_empty() || only.iter().any(|only| only == name);
        if !wanted || (*name == "idle" && bench.minutes == 0) {
            continue;
        }
        eprintln!("== {name}");
        match measure(bench) {
            Ok(new) => {
                new.iter().for_each(|row| println!("{row}"));
                rows.extend(new);
            }
            Err(TaskError(why)) => {
                eprintln!("{name}: {why}");
                failed.push(*name);
            }
        }
    }
    if let Some(load) = busy {
        println!("\nThe machine was not quiet (load {load} before the first): times are no figures.");
    }
    if failed.is_empty() {
        Ok(rows)
    } else {
        Err(TaskError(format!("failed to measure {}", failed.join(", "))))
    }
}

fn build(profile: &str) -> Result<PathBuf, TaskError> {
    let mut build = cargo()?;
    build.args(["build", "--package", "nodlet"]);
    if profile == "release" {
        build.arg("--release");
    }
    run_command(&mut build)?;
    built(profile, "nodlet")
}

fn size(bench: &Bench) -> Rows {
    Ok(vec![report::figure("binary", "bytes", &[fs::metadata(&bench.program)?.len() as f64], None)])
}
