//! How many bytes the one binary has, as it is shipped: by the README's `cargo
//! build --release`, and by `cargo xtask cross` for each board. `--compare` shows
//! the difference to the ledger in `xtask/sizes.toml` and fails where one has
//! grown past what is tolerated; `--write` makes what is measured the new ledger.
//! A binary that would not start on a board is refused (`elf.rs`).

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::{Failure, Outcome, built, cargo, cross, elf, misused, project, run as run_command};

/// The build with nothing but stable Rust, as a newcomer makes it.
const RELEASE: &str = "release";

/// Growth below this, in hundredths, is what a change of other things costs now and then.
const TOLERATED: usize = 2;

/// Bytes by build: [`RELEASE`], or the triple of a cross build.
type Sizes = BTreeMap<String, usize>;

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (options, wanted): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|argument| argument.starts_with('-'));
    let (compare, write) = match options.as_slice() {
        [] => (false, false),
        [one] if *one == "--compare" => (true, false),
        [one] if *one == "--write" => (false, true),
        _ => return Err(misused("sizes")),
    };
    let all = std::iter::once(RELEASE).chain(cross::TARGETS.iter().map(|target| target.triple));
    let wanted: Vec<&str> =
        if wanted.is_empty() { all.collect() } else { wanted.into_iter().map(String::as_str).collect() };

    let known = parse(&fs::read_to_string(ledger())?)?;
    let mut measured = known.clone();
    let mut grown = Vec::new();
    for build in wanted {
        let size = measure(build)?;
        measured.insert(build.to_owned(), size);
        match known.get(build) {
            Some(known) if compare => {
                println!(
                    "{build}: {size} bytes, {:+} to the ledger",
                    size.cast_signed() - known.cast_signed()
                );
                if is_too_much(*known, size) {
                    grown.push(build);
                }
            }
            None if compare => return Err(Failure(format!("xtask/sizes.toml has no line for {build}"))),
            Some(_) | None => println!("{build}: {size} bytes"),
        }
    }
    if write {
        fs::write(ledger(), text_of(&measured))?;
    }
    if grown.is_empty() {
        return Ok(());
    }
    Err(Failure(format!(
        "{} grew by more than {TOLERATED} %: make it smaller, or say why and `cargo xtask sizes --write`",
        grown.join(", ")
    )))
}

fn measure(build: &str) -> Result<usize, Failure> {
    let program = if build == RELEASE {
        run_command(cargo().args(["build", "--release", "--package", "nodlet"]))?;
        let program = built("release", "nodlet");
        elf::require_static(&fs::read(&program)?, elf::EM_X86_64)?;
        program
    } else {
        cross::build(cross::target(build)?)?
    };
    Ok(usize::try_from(fs::metadata(program)?.len())?)
}

fn is_too_much(known: usize, size: usize) -> bool {
    size > known + known * TOLERATED / 100
}

fn ledger() -> PathBuf {
    project().join("xtask/sizes.toml")
}

fn text_of(sizes: &Sizes) -> String {
    let lines: String = sizes.iter().map(|(build, size)| format!("{build} = {size}\n")).collect();
    format!(
        "# Bytes of the shipped binary: `release` is `cargo build --release`, the others are\n\
         # `cargo xtask cross`. `cargo xtask sizes --write` writes this file, `cargo xtask sizes\n\
         # --compare` holds a change against it.\n\
         {lines}"
    )
}

fn parse(text: &str) -> Result<Sizes, Failure> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (build, size) =
                line.split_once(" = ").ok_or(format!("xtask/sizes.toml: {line:?} is no size"))?;
            let size = size.trim().parse().map_err(|error| format!("xtask/sizes.toml: {line:?}: {error}"))?;
            Ok((build.to_owned(), size))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_is_read_as_it_is_written() {
        let sizes = Sizes::from([("release".into(), 123_456), ("z80".into(), 7)]);
        assert_eq!(parse(&text_of(&sizes)).unwrap(), sizes);
        assert!(parse("nothing").is_err());
        assert!(parse("release = much").is_err());
    }

    #[test]
    fn the_ledger_knows_every_build() {
        let known = parse(&fs::read_to_string(ledger()).unwrap()).unwrap();
        for target in cross::TARGETS {
            assert!(known.contains_key(target.triple), "{known:?}");
        }
        assert!(known.contains_key(RELEASE), "{known:?}");
    }

    #[test]
    fn what_grows_by_more_than_two_hundredths_is_too_much() {
        assert!(!is_too_much(1000, 1020));
        assert!(is_too_much(1000, 1021));
        assert!(!is_too_much(1000, 10));
    }
}
