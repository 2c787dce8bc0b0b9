//! Finds names that a reader cannot look up: words of a sentence in place of the words of Kubernetes, Linux and Rust, each
//! of which once stood for several things in this code. A match on a bool, which read as strangely, is for
//! `clippy::match_bool`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::imports::{roots, sources};

/// No part of a name may be one of these: say reported, logged or sent; incomplete; renamed; scan, check or visit;
/// suggested.
const ANYWHERE: [&str; 6] = ["told", "blind", "aside", "look", "looks", "near"];

/// These say something beside another word, as in `found_pod`, and nothing alone.
const ALONE: [&str; 5] = ["over", "made", "left", "found", "go_on"];

/// What begins a definition.
const ITEMS: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "mod", "const", "static"];

/// The names of functions, types, fields, variants, modules and constants with a refused word, each with its file
/// relative to `project`, of all crates in `folders` outside of their tests and examples.
///
/// # Panics
/// If the source cannot be read.
pub fn refused(project: &Path, folders: &[&str]) -> BTreeSet<(PathBuf, String)> {
    let mut all = BTreeSet::new();
    for (file, code) in roots(project, folders).iter().flat_map(|root| sources(root)) {
        let file = file.strip_prefix(project).map(Path::to_owned).unwrap_or(file);
        all.extend(
            defined(&code).into_iter().filter(|name| is_refused(name)).map(|name| (file.clone(), name)),
        );
    }
    all
}

/// The names that formatted `code` defines.
fn defined(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    // The line that ends the type whose fields or variants follow.
    let mut end: Option<String> = None;
    for line in code.lines() {
        if end.as_deref() == Some(line) {
            end = None;
        } else if end.is_some() {
            names.extend(line.match_indices(": ").map(|(at, _)| last_word(&line[..at])));
            names.push(first_word(line.trim_start()));
        } else if let Some((item, rest)) = item(line) {
            names.push(first_word(rest));
            if ["struct", "enum"].contains(&item) && line.ends_with('{') {
                let indent = line.len() - line.trim_start().len();
                end = Some(format!("{}}}", " ".repeat(indent)));
            }
        }
    }
    names.into_iter().map(str::to_owned).collect()
}

/// The word that begins the definition in this line, and the text from its name on.
fn item(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let mut rest =
        line.strip_prefix("pub(in ").map_or(line, |path| path.split_once(' ').map_or("", |(_, rest)| rest));
    loop {
        let (word, after) = rest.split_once(' ')?;
        match word {
            "const" if after.starts_with("fn ") => {}
            word if ITEMS.contains(&word) => return Some((word, after)),
            "async" | "unsafe" => {}
            word if word.starts_with("pub") => {}
            _ => return None,
        }
        rest = after;
    }
}

fn first_word(text: &str) -> &str {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default()
}

fn last_word(text: &str) -> &str {
    text.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default()
}

/// Whether a name, in whatever case, has a refused word. To look something up, and a lookup, are ordinary words.
fn is_refused(name: &str) -> bool {
    let mut snake = String::new();
    for (at, letter) in name.char_indices() {
        if letter.is_uppercase() && name[..at].ends_with(char::is_lowercase) {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    let snake = snake.replace("look_up", "lookup");
    ALONE.contains(&&*snake) || snake.split('_').any(|word| ANYWHERE.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names that keep a refused word, each with the reason.
    const EXCEPTIONS: &[(&str, &str)] = &[
        ("set_aside", "users read that nodlet sets aside an object in whose handling agents died"),
        ("SetAside", "as set_aside"),
        ("report_set_aside", "as set_aside"),
        ("Found", "the observation, named by what happened, as Wanted and Started; `nodlet ring` prints it"),
    ];

    #[test]
    fn names_are_words_of_kubernetes_linux_or_rust() {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut refused = refused(&project, &["board", "rootfs", "runtime", "xtask"]);
        let is_used = |name: &str| refused.iter().any(|(_, refused)| refused == name);
        let gone: Vec<_> = EXCEPTIONS.iter().filter(|(name, _)| !is_used(name)).collect();
        assert!(gone.is_empty(), "no name needs these exceptions any more: {gone:?}");
        refused.retain(|(_, refused)| EXCEPTIONS.iter().all(|(name, _)| refused != name));
        assert!(refused.is_empty(), "find the word of Kubernetes, Linux or Rust for {refused:#?}");
    }

    #[test]
    fn names_are_found_where_they_are_defined() {
        let code = "pub(in crate::x) async fn a(found: u8) {\n    let made = Left { over: 1 };\n}\npub struct B<T> {\n    \
                    pub(super) c: T,\n    d: e::F,\n}\nmod g;\npub const H: u8 = 1;\nenum I {\n    J,\n    K(u8),\n    \
                    L { m: u8, n: u8 },\n    O {\n        p: u8,\n    },\n}\nconst fn q() {}\n";
        let names: Vec<_> = defined(code).into_iter().filter(|name| !name.is_empty()).collect();
        for name in ["a", "B", "c", "d", "g", "H", "I", "J", "K", "L", "m", "n", "O", "p", "q"] {
            assert!(names.iter().any(|one| one == name), "{name} is not in {names:?}");
        }
        assert!(names.iter().all(|name| !is_refused(name)), "{names:?}");
    }

    #[test]
    fn words_are_refused_in_any_case_and_not_as_a_part_of_another() {
        for (name, expected) in [
            ("told_foreign", true),
            ("Look", true),
            ("LOOK_AGAIN", true),
            ("is_blind", true),
            ("left", true),
            ("Found", true),
            ("go_on", true),
            ("look_up", false),
            ("LookUp", false),
            ("found_pod", false),
            ("FoundPod", false),
            ("nearest", false),
            ("handover", false),
        ] {
            assert_eq!(is_refused(name), expected, "{name}");
        }
    }
}
