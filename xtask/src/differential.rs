//! Compares nodlet's API with a real kube-apiserver: both get the same randomly changed pods, and the differences are
//! printed by class and count. The suite is `tests/tests/differential.rs`; `check` runs a short form of it.

use nodlet_build::task::{Outcome, Task, TaskError, run as run_command, seed};
use nodlet_build::toolchain::cargo;
use nodlet_build::{cross, go};

/// Rounds of creates, and as many of patches, that take a minute.
const ROUNDS: &str = "3000";

/// The task `cargo xtask differential`.
pub(crate) const TASK: Task = Task::new(
    "differential",
    "[--seed N] [--rounds N]",
    "compare the API with a real kube-apiserver: differences in the answers to changed pods, by class and count",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (seed, rounds) = options(arguments)?;
    go::KUBECTL.build(None)?;
    go::control_plane(&[])?;
    cross::provide()?;
    eprintln!("NODLET_SEED={seed} NODLET_ROUNDS={rounds}");
    let mut tests = cargo()?;
    tests.args([
        "test",
        "--package",
        "nodlet-tests",
        "--test",
        "suites",
        "differential::",
        "--",
        "--nocapture",
    ]);
    run_command(tests.env("NODLET_SEED", seed).env("NODLET_ROUNDS", rounds))
}

/// The seed, by default a random one, and the number of rounds.
fn options(arguments: &[String]) -> Result<(String, String), TaskError> {
    let (mut seed, mut rounds) = (seed()?.to_string(), ROUNDS.to_owned());
    let (pairs, rest) = arguments.as_chunks::<2>();
    for [name, value] in pairs {
        let place = match name.as_str() {
            "--seed" => &mut seed,
            "--rounds" => &mut rounds,
            _ => return Err(TASK.misused()),
        };
        if value.parse::<u64>().is_err() {
            return Err(TASK.misused());
        }
        place.clone_from(value);
    }
    if rest.is_empty() { Ok((seed, rounds)) } else { Err(TASK.misused()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_are_numbers() {
        let read = |words: &str| {
            let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
            options(&words).map_or_else(|TaskError(why)| why, |(seed, rounds)| format!("{seed} {rounds}"))
        };
        assert_eq!(read("--seed 3 --rounds 20"), "3 20");
        assert_eq!(read("--seed 3"), format!("3 {ROUNDS}"));
        for wrong in ["--seed", "--seed x", "--round 3", "3 4"] {
            assert_eq!(read(wrong), "usage: cargo xtask differential [--seed N] [--rounds N]", "{wrong}");
        }
    }
}
