//! Tests that need a machine of their own, or a whole build: guests and emulated boards in QEMU, Kubernetes' own tests on a
//! node of a real cluster, the recipes for Yocto and Buildroot, and a build as a distribution makes it. `cargo xtask` runs
//! each as a task of that name, and those of the check with their option for it.

use std::process::ExitCode;

use nodlet_build::task::{self, Task};
use nodlet_build::toolchain;

mod boards;
mod conformance;
mod distribution;
mod guest;
mod recipes;

const TASKS: &[&Task] = &[
    &guest::TASK,
    &boards::TASK,
    &boards::demo::TASK,
    &boards::peers::TASK,
    &conformance::TASK,
    &recipes::TASK,
    &distribution::TASK,
];

fn main() -> ExitCode {
    // This program is built for another target than the programs that it builds and runs.
    if let Ok(nodlet) = toolchain::built("debug", "nodlet") {
        nodlet_tests::programs_are_in(nodlet.with_file_name(""));
    }
    task::main("nodlet-system-tests", TASKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_has_a_description_and_rejects_unknown_arguments() {
        task::check(TASKS);
    }
}
