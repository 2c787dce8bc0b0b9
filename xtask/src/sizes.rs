//! Measures the size of the shipped binary: of `cargo build --release`, and of `cargo xtask cross` for each board.
//! `--compare` compares the sizes with their budgets (`nodlet_build::budgets`) and fails if one
//! has grown past its margin; `--write` writes the measurements as the new budgets. A binary that would not
//! start on a board is rejected (`elf.rs`).

use std::fs;

use nodlet_build::arguments::Arguments;
use nodlet_build::budgets::{Budgets, MEASURED_ON};
use nodlet_build::task::{Outcome, Task, TaskError, run as run_command};
use nodlet_build::toolchain::{built, cargo};
use nodlet_build::{cross, elf, targets};

/// The budget of the build with only stable Rust, as newcomers make it. Budgets of cross builds have the name
/// of their target.
const RELEASE: &str = "release";

/// The task `cargo xtask sizes`.
pub(crate) const TASK: Task = Task::new(
    "sizes",
    "[--compare | --write] [release | TARGET]...",
    "show the size of each build; --compare compares it with its budget, --write writes the budgets",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut arguments = Arguments::new(&TASK, arguments);
    let (compare, write) = (arguments.has("--compare"), arguments.has("--write"));
    if compare && write {
        return Err(TASK.misused());
    }
    let wanted = arguments.names()?;
    let wanted: Vec<&str> =
        if wanted.is_empty() { builds().collect() } else { wanted.iter().map(String::as_str).collect() };
    let mut budgets = Budgets::read()?;
    for build in wanted {
        let bytes = measure(build)?;
        if build == RELEASE && targets::host()?.triple != MEASURED_ON {
            println!("{build}: {bytes} bytes, which have a budget for {MEASURED_ON} alone");
        } else {
            budgets.measured(build, bytes)?;
        }
    }
    if write {
        budgets.write()?;
    } else if compare {
        budgets.require_kept("run `cargo xtask sizes --write`")?;
    }
    Ok(())
}

fn builds() -> impl Iterator<Item = &'static str> {
    std::iter::once(RELEASE).chain(targets::TARGETS.iter().map(|target| target.triple))
}

fn measure(build: &str) -> Result<u64, TaskError> {
    let program = if build == RELEASE {
        run_command(cargo()?.args(["build", "--release", "--package", "nodlet"]))?;
        let program = built("release", "nodlet")?;
        elf::require_static(&fs::read(&program)?, targets::host()?.machine)?;
        program
    } else {
        cross::build(targets::get(build)?)?
    };
    Ok(fs::metadata(program)?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_build_has_a_budget() {
        let budgets = Budgets::read().unwrap();
        for build in builds() {
            assert!(budgets.has(build), "{build}");
        }
    }
}
