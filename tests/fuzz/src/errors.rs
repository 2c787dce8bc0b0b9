//! Finds functions and types whose error is a text, `Result<_, String>` or `Result<_, Box<str>>`: such an error has no
//! `source()`, so that only files that docs/architecture.md names with a reason may have one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::imports::sources;

/// The types of errors that are texts.
const TEXTS: [&str; 2] = ["String", "Box<str>"];

/// The files of the crates with the roots `roots` that have a result whose error is a text, outside of their tests.
/// Paths are relative to `project`.
///
/// # Panics
/// If the source cannot be read.
pub fn with_text_errors(project: &Path, roots: &[&str]) -> BTreeSet<PathBuf> {
    let files = roots.iter().flat_map(|root| sources(&project.join(root)));
    let found = files.filter(|(_, code)| errors(code).iter().any(|error| TEXTS.contains(error)));
    found.map(|(file, _)| file.strip_prefix(project).map(Path::to_owned).unwrap_or(file)).collect()
}

/// The types of the errors of all results in `code`.
fn errors(code: &str) -> Vec<&str> {
    let results = code.match_indices("Result<");
    results.filter_map(|(at, name)| second_argument(&code[at + name.len()..])).collect()
}

/// The second of the generic arguments that `text` begins with.
fn second_argument(text: &str) -> Option<&str> {
    let (mut depth, mut second, mut before) = (0, None, ' ');
    for (at, letter) in text.char_indices() {
        match letter {
            '<' | '(' | '[' => depth += 1,
            '>' if before == '-' => {}
            '>' if depth == 0 => {
                return second.map(|second| text[second..at].trim().trim_end_matches(',').trim_end());
            }
            '>' | ')' | ']' => depth -= 1,
            ',' if depth == 0 && second.is_none() => second = Some(at + 1),
            _ => {}
        }
        before = letter;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The roots of the crates with code that runs on a board.
    const ROOTS: [&str; 11] = [
        "board/src/main.rs",
        "rootfs/src/lib.rs",
        "runtime/cluster/src/lib.rs",
        "runtime/core/src/lib.rs",
        "runtime/host/src/lib.rs",
        "runtime/kernel/src/lib.rs",
        "runtime/kube/src/lib.rs",
        "runtime/registry/src/lib.rs",
        "runtime/src/lib.rs",
        "runtime/supervisor/src/lib.rs",
        "runtime/wire/src/lib.rs",
    ];

    /// The paths in backticks in the table of the section "Errors that are texts" of the documentation.
    fn documented(project: &Path) -> BTreeSet<PathBuf> {
        let text = fs::read_to_string(project.join("docs/architecture.md")).expect("it can be read");
        let (_, section) = text.split_once("## Errors that are texts\n").expect("the section exists");
        let section = section.split("\n## ").next().unwrap_or_default();
        let rows = section.lines().filter(|line| line.starts_with('|'));
        let quoted = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
        quoted.filter(|path| path.ends_with(".rs")).map(PathBuf::from).collect()
    }

    #[test]
    fn every_file_with_text_errors_is_in_the_documentation() {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (found, documented) = (with_text_errors(&project, &ROOTS), documented(&project));
        let missing: Vec<_> = found.difference(&documented).collect();
        assert!(missing.is_empty(), "an error type with source() is missing in {missing:?}");
        let gone: Vec<_> = documented.difference(&found).collect();
        assert!(gone.is_empty(), "docs/architecture.md names files without text errors: {gone:?}");
    }

    #[test]
    fn errors_of_results_are_found_at_any_place() {
        let code = "fn a() -> Result<Vec<(u8, String)>, String>;\n\
                    fn b(x: Option<Result<Option<String>, ApiError>>) -> io::Result<String>;\n\
                    fn c() -> Result<\n    Result<(), Box<str>>,\n    Failure,\n>;\n\
                    type D = Result<fn(u8) -> u8, String>;\n";
        assert_eq!(errors(code), ["String", "ApiError", "Failure", "Box<str>", "String"]);
    }

    #[test]
    fn tests_may_have_text_errors() {
        let project = std::env::temp_dir().join(format!("nodlet-errors-{}", std::process::id()));
        fs::create_dir_all(project.join("src")).expect("it can be made");
        for (name, text) in [
            ("lib.rs", "mod good;\nmod bad;\nfn f() -> Result<u8, Error> {}\n"),
            ("good.rs", "#[cfg(test)]\nmod tests {\n    fn f() -> Result<u8, String> {}\n}\n"),
            ("bad.rs", "fn f() -> Result<u8, String> {}\n"),
        ] {
            fs::write(project.join("src").join(name), text).expect("it can be written");
        }
        let found = with_text_errors(&project, &["src/lib.rs"]);
        fs::remove_dir_all(&project).expect("it can be removed");
        assert_eq!(found, BTreeSet::from([PathBuf::from("src/bad.rs")]));
    }
}
