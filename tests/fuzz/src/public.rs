//! Finds public functions and constants that no other crate of the workspace names: `pub(crate)` is enough for them.
//! Types do not count, since another crate can use the fields and methods of a type without its name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The public functions and constants below the folders `crates` of `project` that no file of another crate names, by
/// their files. Examples and tests in files of their own are other crates.
///
/// # Panics
/// If the source cannot be read.
pub fn unused(project: &Path, crates: &[&str]) -> Vec<String> {
    let mut texts = BTreeMap::new();
    read(project, &mut texts);
    let mut words: BTreeMap<PathBuf, BTreeSet<&str>> = BTreeMap::new();
    for (path, text) in &texts {
        let found = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        words.entry(owner(project, path)).or_default().extend(found);
    }
    let mut unused = Vec::new();
    for (path, text) in &texts {
        let of = owner(project, path);
        if !crates.iter().any(|one| project.join(one).join("src") == of) {
            continue;
        }
        let production = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for name in production.lines().filter_map(public) {
            let is_used =
                |name: &str| words.iter().any(|(other, words)| *other != of && words.contains(name));
            let renamed = texts.iter().filter(|(path, _)| owner(project, path) == of);
            let mut renamed = renamed.filter_map(|(_, text)| text.split_once(&format!("{name} as ")));
            if !is_used(name) && !renamed.any(|(_, rest)| is_used(first_word(rest))) {
                unused.push(format!("{}: {name}", path.strip_prefix(project).unwrap_or(path).display()));
            }
        }
    }
    unused
}

/// The name of the public function or constant that a line defines.
fn public(line: &str) -> Option<&str> {
    let mut rest = line.trim_start().strip_prefix("pub ")?;
    for word in ["const ", "async ", "unsafe "] {
        if let Some(after) = rest.strip_prefix(word) {
            rest = after;
            if word == "const " && rest.starts_with(|c: char| c.is_uppercase()) {
                return Some(first_word(rest));
            }
        }
    }
    Some(first_word(rest.strip_prefix("fn ").or_else(|| rest.strip_prefix("static "))?))
}

fn first_word(text: &str) -> &str {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default()
}

/// The crate of a file: the nearest folder with a `Cargo.toml`, and in it the folder `src`, `tests` or `examples`.
fn owner(project: &Path, path: &Path) -> PathBuf {
    let mut folder = path;
    while let Some(parent) = folder.parent() {
        if parent.join("Cargo.toml").exists() || parent == project {
            return folder.to_owned();
        }
        folder = parent;
    }
    folder.to_owned()
}

fn read(folder: &Path, texts: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(folder).expect("it can be read") {
        let path = entry.expect("it can be read").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            read(&path, texts);
        } else if name.ends_with(".rs") {
            texts.insert(path.clone(), fs::read_to_string(&path).expect("it can be read"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_functions_and_constants_are_used_by_another_crate() {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let crates = [
            "rootfs",
            "runtime/base64",
            "runtime/cluster",
            "runtime/core",
            "runtime/host",
            "runtime/kernel",
            "runtime/kube",
            "runtime/registry",
            "runtime/supervisor",
            "runtime/wire",
        ];
        assert_eq!(unused(&project, &crates), Vec::<String>::new());
    }

    #[test]
    fn items_that_only_one_crate_uses_are_found() {
        let project = std::env::temp_dir().join(format!("nodlet-public-{}", std::process::id()));
        for (name, text) in [
            ("a/Cargo.toml", ""),
            (
                "a/src/lib.rs",
                "pub fn used() {}\n    pub const fn alone() {}\npub const ALONE: u8 = 1;\npub(crate) fn inner() {}\n",
            ),
            ("a/tests/it.rs", "a::used();\n"),
            ("b/Cargo.toml", ""),
            ("b/src/main.rs", "pub fn not_asked() {}\n"),
        ] {
            let path = project.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
            fs::write(path, text).expect("it can be written");
        }
        let found = unused(&project, &["a"]);
        fs::remove_dir_all(&project).expect("it can be removed");
        assert_eq!(found, ["a/src/lib.rs: alone", "a/src/lib.rs: ALONE"]);
    }
}
