//! Measures what nodlet costs: [`mod@bench`] beside other software, [`gates`] against budgets. `cargo xtask bench` and
//! `cargo xtask gates` run it.

use std::process::ExitCode;

use nodlet_build::task::{self, Task};
use nodlet_build::toolchain;

mod bench;
mod gates;

const TASKS: &[&Task] = &[&bench::TASK, &gates::TASK];

fn main() -> ExitCode {
    // This program is built for another target than the programs that it builds and runs.
    if let Ok(nodlet) = toolchain::built("debug", "nodlet") {
        nodlet_tests::programs_are_in(nodlet.with_file_name(""));
    }
    task::main("nodlet-bench", TASKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_has_a_description_and_rejects_unknown_arguments() {
        task::check(TASKS);
    }
}
