//! The tests that `check` runs in a short form, for as long as one likes. Each
//! prints its seeds; a failure names the one to begin with:
//! `cargo xtask long fuzz --seed 4711 --rounds 1`. Where there is an end to the
//! cases it does them all, or with `--shard 2/5` the second of five parts of them,
//! and says of how many.

use std::process::Command;

use crate::{Failure, Outcome, cargo, earlier, guest, mutants, run as run_command, setup, target_dir, usage};

/// How a subject is tested.
enum Test {
    /// With random inputs: rounds that take some minutes, and the tests.
    Random(u64, &'static [&'static str]),
    /// The same, of a program that counts what the inputs reach.
    Guided(u64, &'static [&'static str]),
    /// As often, or as much, as is said: what takes some minutes, and the tests.
    Rounds(u64, &'static [&'static str]),
    /// Of so many cases, which the seed chooses.
    Sample(u64, fn(u64, u64) -> Outcome),
    /// In every case there is, or in those of one part: `2/5`.
    Parts(fn(&str) -> Outcome),
    /// In every case there is.
    All(fn() -> Outcome),
}

const SUBJECTS: &[(&str, Test)] = &[
    // Random images against what GNU tar and umoci extract.
    ("images", Test::Random(300, &["--package", "nodlet-rootfs", "random_images"])),
    // Archives, manifests, protocol frames and API requests, changed at random.
    (
        "fuzz",
        Test::Guided(
            50_000,
            &[
                "--package",
                "nodlet-kube",
                "--package",
                "nodlet-rootfs",
                "--package",
                "nodlet-runtime",
                "--package",
                "nodlet-supervisor",
                "--lib",
                "changed_at_random",
            ],
        ),
    ),
    // Pods whose lives chance writes, in simulated time.
    ("stories", Test::Random(2_000, &["--release", "--package", "nodlet-core", "--lib", "sim::seeds::"])),
    // Faults of one operator in the core, each of which has to fail a test.
    ("mutants", Test::Sample(20, mutants::run)),
    // An image of so many megabytes in one layer, and one of as many names as are taken.
    ("memory", Test::Rounds(500, &["--package", "nodlet-rootfs", "tests::memory::"])),
    // So many restarts of containers, and at least twice as many exec probes.
    ("soak", Test::Rounds(10_000, &["--package", "nodlet-tests", "--test", "soak"])),
    // Agent, supervisors and helpers, killed at each of their steps.
    ("kills", Test::Parts(kills)),
    // Pods that a binary of an earlier commit runs.
    ("upgrade", Test::All(upgrade)),
    // What runs in a machine of its own, with each processor.
    ("guests", Test::Parts(guest::whole)),
];

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (mut rounds, mut seed, mut shard, mut wanted) = (None, None, None, Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = |what: &str, is_one: fn(&str) -> bool| {
            let value = arguments.next().filter(|value| is_one(value));
            value.cloned().ok_or_else(|| Failure(format!("{argument} takes {what}; {}", usage("long"))))
        };
        match argument.as_str() {
            "--rounds" => rounds = Some(value("a number", is_number)?),
            "--seed" => seed = Some(value("a number", is_number)?),
            "--shard" => shard = Some(value("a part and of how many, as 2/5", is_shard)?),
            name if SUBJECTS.iter().any(|(subject, _)| *subject == name) => wanted.push(name),
            other => return Err(Failure(format!("there is no subject {other:?}; {}", usage("long")))),
        }
    }
    let chosen = || SUBJECTS.iter().filter(|(name, _)| wanted.is_empty() || wanted.contains(name));
    for (name, test) in chosen() {
        let (has_rounds, has_seed, has_parts) = match test {
            Test::Random(..) | Test::Guided(..) | Test::Sample(..) => (true, true, false),
            Test::Rounds(..) => (true, false, false),
            Test::Parts(_) => (false, false, true),
            Test::All(_) => (false, false, false),
        };
        for (option, given, fits) in [
            ("--rounds", rounds.is_some(), has_rounds),
            ("--seed", seed.is_some(), has_seed),
            ("--shard", shard.is_some(), has_parts),
        ] {
            if given && !fits {
                return Err(Failure(format!("{option} says nothing to {name}: name the subjects it is for")));
            }
        }
    }
    for (_, test) in chosen() {
        match test {
            Test::Random(default, words) | Test::Rounds(default, words) | Test::Guided(default, words) => {
                if words.contains(&"nodlet-tests") {
                    build()?;
                }
                let rounds = rounds.clone().unwrap_or_else(|| default.to_string());
                let mut cargo = cargo()?;
                if let Test::Guided(..) = test {
                    counting(&mut cargo);
                }
                run_command(
                    cargo
                        .arg("test")
                        .args(*words)
                        .args(["--", "--nocapture"])
                        .env("NODLET_ROUNDS", rounds)
                        .env("NODLET_SEED", seed.as_deref().unwrap_or("1")),
                )?;
            }
            Test::Sample(default, test) => {
                let number = |given: &Option<String>| given.as_ref().and_then(|text| text.parse().ok());
                test(number(&rounds).unwrap_or(*default), number(&seed).unwrap_or(1))?;
            }
            Test::Parts(test) => test(shard.as_deref().unwrap_or("1/1"))?,
            Test::All(test) => test()?,
        }
    }
    Ok(())
}

/// Has each piece of code count how often it runs, for `tests/fuzz/src/coverage.rs`.
fn counting(cargo: &mut Command) {
    // What .cargo/config.toml says is not added to these.
    const FLAGS: &str = "-C target-feature=+crt-static -C relocation-model=static -C passes=sancov-module \
                         -C llvm-args=-sanitizer-coverage-level=3 \
                         -C llvm-args=-sanitizer-coverage-inline-8bit-counters";
    cargo.env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", target_dir().join("fuzz"));
}

fn is_number(text: &str) -> bool {
    text.parse::<u64>().is_ok()
}

fn is_shard(text: &str) -> bool {
    let numbers = text.split_once('/').and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
    numbers.is_some_and(|(part, of): (u32, u32)| (1..=of).contains(&part))
}

fn kills(shard: &str) -> Outcome {
    build()?;
    let mut tests = ignored(&["kill", "steps"])?;
    tests.env("NODLET_SHARD", shard);
    run_command(&mut tests)
}

fn upgrade() -> Outcome {
    build()?;
    for earlier in earlier::ALL {
        run_command(ignored(&["upgrade"])?.env("NODLET_EARLIER", earlier.build()?))?;
    }
    Ok(())
}

/// What the tests with real containers run.
fn build() -> Outcome {
    setup::require_root()?;
    run_command(cargo()?.args(["build", "--package", "nodlet"]))?;
    run_command(cargo()?.args(["build", "--package", "nodlet-runtime", "--example", "replay"]))
}

/// The tests of these files that `check` passes over, with what they print.
fn ignored(files: &[&str]) -> Result<Command, Failure> {
    let mut command = cargo()?;
    command.args(["test", "--package", "nodlet-tests"]);
    for file in files {
        command.args(["--test", file]);
    }
    // One after another: each makes use of the whole machine by itself.
    command.args(["--", "--ignored", "--nocapture", "--test-threads=1"]);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_one_of_those_that_there_are() {
        for (text, is) in [
            ("1/1", true),
            ("2/5", true),
            ("5/5", true),
            ("6/5", false),
            ("0/5", false),
            ("1", false),
            ("", false),
        ] {
            assert_eq!(is_shard(text), is, "{text}");
        }
        for words in [
            "upgrade --shard 1/2",
            "guests --rounds 3",
            "kills --seed 3",
            "fuzz --shard 1/2",
            "soak --seed 3",
            "memory --seed 3",
        ] {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            let Err(Failure(why)) = run(&words) else { panic!("{words:?} is refused") };
            assert!(why.contains(&format!("{} says nothing to {}", words[1], words[0])), "{why}");
        }
        let Err(Failure(why)) = run(&["kills".to_owned(), "--shard".to_owned(), "9/2".to_owned()]) else {
            panic!("it was run")
        };
        assert!(why.contains("--shard takes a part and of how many, as 2/5"), "{why}");
    }
}
