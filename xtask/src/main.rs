//! The tasks of nodlet's developers, run as `cargo xtask TASK`. Each task has a file; `task.rs` has the list of tasks
//! and shared helpers.

use std::process::ExitCode;

mod advisories;
mod bench;
mod boards;
mod boot_files;
mod budgets;
mod changed;
mod check;
mod conformance;
mod crates;
mod cross;
mod deb;
mod debian;
mod demo;
mod demo_image;
mod deny;
mod differential;
mod disk;
mod distribution;
mod earlier;
mod elf;
mod gates;
mod go;
mod guest;
mod help;
mod image;
mod images;
mod ledger;
mod lines;
mod long;
mod musl;
mod mutants;
mod patched;
mod profile;
mod programs;
mod recipes;
mod release;
mod schema;
mod setup;
mod sizes;
mod stamp;
mod suites;
mod targets;
mod task;
mod times;
mod toolchain;
mod tools;

use task::{Failure, Outcome, TASKS, Task, misused, usage};

/// The function of the task with this name.
fn function(name: &str) -> Option<fn(&[String]) -> Outcome> {
    let function = match name {
        "demo" => demo::run,
        "setup" => setup::run,
        "check" => check::run,
        "cross" => cross::run,
        "deb" => deb::run,
        "recipes" => recipes::run,
        "release" => release::run,
        "distribution" => distribution::run,
        "deny" => deny::run,
        "advisories" => advisories::run,
        "sizes" => sizes::run,
        "lines" => lines::run,
        "bench" => bench::run,
        "gates" => gates::run,
        "guest" => guest::run,
        "long" => long::run,
        "demo-image" => demo_image::run,
        "boards" => boards::run,
        "peers" => boards::peers::run,
        "image" => image::run,
        "images" => images::run,
        "agnhost" => go::agnhost,
        "kubectl" => go::kubectl,
        "control-plane" => go::control_plane,
        "conformance" => conformance::run,
        "differential" => differential::run,
        "schema" => schema::run,
        "suites" => suites::run,
        _ => return None,
    };
    Some(function)
}

fn main() -> ExitCode {
    for name in ["NODLET", "NODLET_BOARD", "NODLET_ROOT", "NODLET_SSH"] {
        // SAFETY: no other thread exists yet. Without these variables, a task tests the binary that it builds, and
        // verbs that it runs never go to a board that the user's shell names.
        unsafe { std::env::remove_var(name) };
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (task, rest) = match parse(&arguments) {
        Request::Task(task, rest) => (task, rest),
        Request::Help(text) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Request::Misuse(text) => {
            eprint!("{text}");
            return ExitCode::from(2);
        }
    };
    let name = task.0;
    // xtask is built for another target than the programs that it builds and runs.
    if let Ok(nodlet) = toolchain::built("debug", "nodlet") {
        nodlet_tests::programs_are_in(nodlet.with_file_name(""));
    }
    match perform(task, rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(why)) => {
            eprintln!("xtask {name}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// What the arguments of a command line ask for.
#[derive(Debug)]
enum Request<'a> {
    Task(&'static Task, &'a [String]),
    /// Text for the standard output.
    Help(String),
    /// Text for the standard error.
    Misuse(String),
}

fn parse(arguments: &[String]) -> Request<'_> {
    let Some((name, rest)) = arguments.split_first() else { return Request::Misuse(overview()) };
    if is_help(name) {
        return Request::Help(overview());
    }
    let Some(task @ (_, _, what)) = TASKS.iter().find(|(task, ..)| task == name) else {
        return Request::Misuse(format!("xtask: unknown task {name:?}\n{}", overview()));
    };
    if rest.iter().any(|argument| is_help(argument)) {
        return Request::Help(format!("{}\n{what}\n", usage(name)));
    }
    Request::Task(task, rest)
}

fn perform((name, takes, _): &Task, arguments: &[String]) -> Outcome {
    if takes.is_empty() && !arguments.is_empty() {
        return Err(misused(name));
    }
    let run = function(name).ok_or_else(|| format!("{name} has no function"))?;
    run(arguments)
}

fn is_help(argument: &str) -> bool {
    matches!(argument, "--help" | "-h" | "help")
}

fn overview() -> String {
    let lines = TASKS.iter().map(|(name, _, what)| format!("  {name:<12} {what}\n"));
    format!("cargo xtask TASK, where TASK is one of\n{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::task::project;

    #[test]
    fn help_is_printed_on_request_and_misuse_is_an_error() {
        let parsed = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            match parse(&words) {
                Request::Task((name, ..), rest) => format!("{name} {rest:?}"),
                Request::Help(text) => format!("out: {text}"),
                Request::Misuse(text) => format!("err: {text}"),
            }
        };
        assert!(parsed("").starts_with("err: cargo xtask TASK"), "{}", parsed(""));
        for line in ["--help", "-h", "help"] {
            assert!(parsed(line).starts_with("out: cargo xtask TASK"), "{line}");
        }
        for line in ["setup --help", "setup -h"] {
            assert!(parsed(line).starts_with("out: usage: cargo xtask setup\ninstall"), "{line}");
        }
        assert!(parsed("nonsense --help").starts_with("err: xtask: unknown task \"nonsense\"\n"));
        assert_eq!(parsed("demo --keep"), "demo [\"--keep\"]");
    }

    /// A line of the list says what the task does, as `git help` does: a verb first.
    #[test]
    fn the_line_of_each_task_begins_with_a_verb() {
        const VERBS: &[&str] = &[
            "boot", "build", "check", "compare", "count", "install", "list", "measure", "run", "show",
            "write",
        ];
        for (name, _, what) in TASKS {
            let first = what.split(' ').next().unwrap_or_default();
            assert!(VERBS.contains(&first), "{name}: {what}");
        }
    }

    #[test]
    fn every_task_rejects_unknown_arguments_before_it_does_anything() {
        for task in TASKS {
            let name = task.0;
            let Err(Failure(why)) = perform(task, &["--nonsense".into()]) else {
                panic!("cargo xtask {name} --nonsense was done");
            };
            assert!(why.contains(&usage(name)), "cargo xtask {name} --nonsense says: {why}");
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
