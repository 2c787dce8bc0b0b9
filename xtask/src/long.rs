//! The tests that `check` runs in a short form, for as long as one likes. Each
//! prints its seeds; a failure names the one to begin with:
//! `cargo xtask long fuzz --seed 4711 --rounds 1`.

use crate::{Failure, Outcome, cargo, run as run_command, usage};

/// A subject: its name, rounds that take some minutes, and how it is tested.
type Subject = (&'static str, u64, &'static [&'static str]);

const SUBJECTS: &[Subject] = &[
    // Random images against what GNU tar and umoci extract.
    ("images", 300, &["--package", "nodlet-rootfs", "random_images"]),
    // Archives, manifests, protocol frames and API requests, changed at random.
    (
        "fuzz",
        50_000,
        &["--package", "nodlet-rootfs", "--package", "nodlet-runtime", "--lib", "changed_at_random"],
    ),
    // An image of so many megabytes in one layer.
    ("memory", 500, &["--package", "nodlet-rootfs", "memory_does_not_grow"]),
];

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (mut rounds, mut seed, mut wanted) = (None, "1".to_owned(), Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().filter(|value| value.parse::<u64>().is_ok());
            value.cloned().ok_or_else(|| Failure(format!("{argument} takes a number; {}", usage("long"))))
        };
        match argument.as_str() {
            "--rounds" => rounds = Some(number()?),
            "--seed" => seed = number()?,
            name if SUBJECTS.iter().any(|(subject, ..)| *subject == name) => wanted.push(name),
            other => return Err(Failure(format!("there is no subject {other:?}; {}", usage("long")))),
        }
    }
    for (name, default, test) in SUBJECTS {
        if wanted.is_empty() || wanted.contains(name) {
            let rounds = rounds.clone().unwrap_or_else(|| default.to_string());
            run_command(
                cargo()
                    .arg("test")
                    .args(*test)
                    .args(["--", "--nocapture"])
                    .env("NODLET_ROUNDS", rounds)
                    .env("NODLET_SEED", &seed),
            )?;
        }
    }
    Ok(())
}
