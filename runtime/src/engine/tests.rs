//! Tests of the engine as a whole, which read its source.

use std::fs;
use std::path::{Path, PathBuf};

use nodlet_fuzz::imports::{circles, imports};

/// Names of the variants of a public enum in the text of a module.
fn variants(text: &str, name: &str) -> Vec<String> {
    let begin = text.find(&format!("pub enum {name}<")).expect("the enum is there");
    let body = text[begin..].split("\n}").next().unwrap_or_default();
    let names = body.lines().filter_map(|line| {
        let word = line.strip_prefix("    ").filter(|word| word.starts_with(char::is_uppercase))?;
        word.split(|letter: char| !letter.is_alphanumeric()).next()
    });
    names.map(str::to_owned).collect()
}

/// The text of the engine without its tests.
fn engine() -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![source.join("engine.rs")];
    let mut directories = vec![source.join("engine")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("the source is there") {
            let path = entry.expect("it can be read").path();
            match path.is_dir() {
                true => directories.push(path),
                false => files.push(path),
            }
        }
    }
    let is_test = |path: &PathBuf| path.file_name().is_some_and(|name| name == "tests.rs");
    files.retain(|path| !is_test(path));
    let text = files.iter().map(|path| fs::read_to_string(path).expect("it can be read"));
    text.map(|text| text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_engine_makes_every_observation_that_the_core_knows() {
    let text = include_str!("../../core/src/facts/observation.rs");
    let engine = engine();
    let mut count = 0;
    for (enumeration, paths) in
        [("Observation", &["Observation"][..]), ("PodObservation", &["PodObservation", "Seen"])]
    {
        for variant in variants(text, enumeration) {
            let is_made = paths.iter().any(|path| {
                let name = format!("{path}::{variant}");
                // As a whole word: `Started` is no `StartedContainer`.
                engine.match_indices(&name).any(|(at, _)| {
                    !engine[at + name.len()..].starts_with(|next: char| next.is_alphanumeric())
                })
            });
            assert!(is_made, "nothing makes {enumeration}::{variant}");
            count += 1;
        }
    }
    assert!(count > 20, "{count} variants were found");
}

#[test]
fn no_files_of_the_engine_import_from_each_other() {
    let files = imports(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine.rs"));
    assert!(files.len() > 20 && files["sandbox"].contains("run"), "{files:?}");
    let circles = circles(files);
    assert!(circles.is_empty(), "these import from each other in a circle: {circles:?}");
}
