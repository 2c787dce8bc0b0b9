//! The program `nodlet-dist`: makes device images, Debian packages and releases. `cargo xtask image`, `deb` and `release` run
//! it.

use std::process::ExitCode;

use nodlet_build::task::{self, Task};
use nodlet_dist::{deb, image, release};

const TASKS: &[&Task] = &[&image::TASK, &deb::TASK, &release::TASK];

fn main() -> ExitCode {
    task::main("nodlet-dist", TASKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_has_a_description_and_rejects_unknown_arguments() {
        task::check(TASKS);
    }
}
