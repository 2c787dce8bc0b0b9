//! The tasks of nodlet's developers, run as `cargo xtask TASK`: each is a line of [`TASKS`] and has a file, here, in
//! `nodlet_build`, or in the program that the line names.

use std::process::ExitCode;

use nodlet_build::task::{self, Task};
use nodlet_build::{cross, deny, go, images, toolchain};

mod advisories;
mod changed;
mod check;
mod demo;
mod demo_image;
mod earlier;
mod ledger;
mod lines;
mod long;
mod mutants;
mod programs;
mod schema;
mod setup;
mod sizes;
mod suites;
mod times;

use programs::{BENCH, DIST, SYSTEM};

/// All tasks, as `cargo xtask` without arguments prints them.
#[rustfmt::skip]
const TASKS: &[&Task] = &[
    &demo::TASK,
    &setup::TASK,
    &check::TASK,
    &suites::TASK,
    &long::TASK,
    &cross::TASK,
    &Task::of_program("image", DIST, "build what a board of board/profiles boots, with pods and images in it, into .work/boards/PROFILE"),
    &Task::of_program("deb", DIST, "build Debian packages of the binaries for boards, into target/packages"),
    &Task::of_program("release", DIST, "build all files of a release, signed with the key of minisign, into target/release-VERSION"),
    &Task::of_program("guest", SYSTEM, "run the tests that need a kernel of their own, in QEMU"),
    &Task::of_program("boards", SYSTEM, "boot the emulated boards of board/profiles, use them over SSH, and break them"),
    &Task::of_program("peers", SYSTEM, "measure kubelet and containerd beside nodlet on an emulated board"),
    &Task::of_program("conformance", SYSTEM, "run Kubernetes' own tests of nodes on a board that is a node of a real cluster, or those of Services on two"),
    &Task::of_program("recipes", SYSTEM, "check the Yocto layer and the Buildroot tree, without Yocto and Buildroot"),
    &Task::of_program("distribution", SYSTEM, "build as a distribution does: stable Rust, this C library, offline"),
    &Task::of_program("bench", BENCH, "measure the figures of the README on this machine"),
    &Task::of_program("gates", BENCH, "check bytes, memory, system calls and wake-ups against xtask/budgets.toml"),
    &sizes::TASK,
    &lines::TASK,
    &deny::TASK,
    &advisories::TASK,
    &schema::TASK,
    &demo_image::TASK,
    &images::TASK,
    &go::AGNHOST_TASK,
    &go::KUBECTL_TASK,
    &go::CONTROL_PLANE_TASK,
];

fn main() -> ExitCode {
    // xtask is built for another target than the programs that it builds and runs.
    if let Ok(nodlet) = toolchain::built("debug", "nodlet") {
        nodlet_tests::programs_are_in(nodlet.with_file_name(""));
    }
    task::main("cargo xtask", TASKS)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nodlet_build::task::{git, project};

    use super::*;

    #[test]
    fn each_task_has_a_description_and_rejects_unknown_arguments() {
        task::check(TASKS);
    }

    #[test]
    fn a_task_of_another_program_is_one_there_with_the_same_description() {
        for task in TASKS {
            let Some(program) = task.program() else { continue };
            let directory = match program {
                DIST => "board/dist",
                SYSTEM => "tests/system",
                BENCH => "tests/bench",
                other => panic!("{other} is in no known directory"),
            };
            let listed = git(project(), &["ls-files", &format!("{directory}/src")]).unwrap();
            let is_there = listed.lines().any(|file| {
                let text = std::fs::read_to_string(project().join(file)).unwrap_or_default();
                text.contains(&format!("\"{}\",", task.name)) && text.contains(task.what)
            });
            assert!(is_there, "{} is no task of {program} with this description", task.name);
        }
    }

    /// Packages come from the locations for which the machine's own apt, cargo, rustup and go are configured,
    /// which differ behind a proxy or on another continent. Names of image registries are exempt: they are
    /// part of Kubernetes' grammar, and nothing is fetched from them.
    #[test]
    fn no_file_names_the_host_of_a_package_registry() {
        // Split, so that this file does not contain the names.
        const HOSTS: &[[&str; 2]] = &[
            ["debian", ".org"],
            ["ubuntu", ".com"],
            ["static.rust", "-lang.org"],
            ["index.crates", ".io"],
            ["static.crates", ".io"],
            ["proxy.golang", ".org"],
            ["sum.golang", ".org"],
            ["pypi", ".org"],
            ["pythonhosted", ".org"],
            ["npmjs", ".org"],
        ];
        let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(project()).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let files: Vec<&str> = listed.split_terminator('\0').collect();
        assert!(files.contains(&"xtask/src/main.rs"), "git lists the files of {}", project().display());
        let mut found = Vec::new();
        for file in files {
            // The file is no text, or is deleted in the work tree.
            let Ok(text) = std::fs::read_to_string(project().join(file)) else { continue };
            for host in HOSTS.iter().map(|parts| parts.concat()) {
                let lines = text.lines().enumerate().filter(|(_, line)| line.contains(&host));
                found.extend(lines.map(|(number, _)| format!("{file}:{}: {host}", number + 1)));
            }
        }
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}
