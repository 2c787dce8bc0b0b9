//! Reads off the source of a module which of its files import from each other, for tests that no files do so in
//! a circle: each file can then be read after those that it imports from.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The files of a folder by their names, each with the files of the folder that it imports from.
pub type Imports = BTreeMap<String, BTreeSet<String>>;

/// The imports among the files of the module whose root is the file `root`, such as `src/engine.rs` or
/// `src/lib.rs`. A file in a folder of its own, such as `src/engine/events/correlate.rs`, counts to
/// `src/engine/events.rs`. An import of a name that the root imports from another file counts as an import
/// from that file. Code of tests does not count: files `tests.rs`, folders `tests` and modules with
/// `#[cfg(test)]`.
///
/// # Panics
/// If the source cannot be read.
pub fn imports(root: &Path) -> Imports {
    let (folder, module) = match root.ends_with("lib.rs") {
        true => (root.with_file_name(""), "crate::".to_owned()),
        false => (root.with_extension(""), format!("crate::{}::", stem(root))),
    };
    let mut texts = BTreeMap::new();
    read(&folder, root, None, 1, &mut texts);
    let shown = shown_names(&code(&read_text(root)), &module, &texts);
    let file_of = |name: String| match texts.contains_key(&name) {
        true => Some(name),
        false => shown.get(&name).cloned(),
    };
    let of_file = |(name, texts): (&String, &Vec<(usize, String)>)| {
        let named = texts.iter().flat_map(|(depth, text)| names(text, *depth, &module));
        (name.clone(), named.filter_map(file_of).filter(|other| other != name).collect())
    };
    texts.iter().map(of_file).collect()
}

/// The files that are left of `files` without those that import from none of the rest, and without those from
/// which none of the rest imports: those of the circles, and those between two circles.
pub fn circles(mut files: Imports) -> Imports {
    loop {
        let count = files.len();
        let names: BTreeSet<String> = files.keys().cloned().collect();
        files.values_mut().for_each(|imports| imports.retain(|name| names.contains(name)));
        files.retain(|_, imports| !imports.is_empty());
        let imported: BTreeSet<String> = files.values().flatten().cloned().collect();
        files.retain(|name, _| imported.contains(name));
        if files.len() == count {
            return files;
        }
    }
}

/// Adds the code of the files in `folder` to that of the file `of`, or of each itself. `depth` is the number of
/// times that a file writes `super::` before the name of another file.
fn read(
    folder: &Path,
    root: &Path,
    of: Option<&str>,
    depth: usize,
    texts: &mut BTreeMap<String, Vec<(usize, String)>>,
) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("it can be read").path();
        let name = stem(&path);
        if name == "tests" || path == root {
            continue;
        }
        let of = of.unwrap_or(&name);
        if path.is_dir() {
            read(&path, root, Some(of), depth + 1, texts);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            texts.entry(of.to_owned()).or_default().push((depth, code(&read_text(&path))));
        }
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().expect("a file has a name").to_string_lossy().into_owned()
}

fn read_text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `text` without comments and without modules of tests.
fn code(text: &str) -> String {
    let mut parts = text.split("#[cfg(test)]\nmod ");
    let mut code = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let head = part.lines().next().unwrap_or_default();
        let end = if head.ends_with('{') { "\n}\n" } else { "\n" };
        code.push_str(part.split_once(end).map_or("", |(_, rest)| rest));
    }
    code.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| [line, "\n"]).collect()
}

/// The names that `text` takes from the module `module`, whose root is `depth` levels above.
fn names(text: &str, depth: usize, module: &str) -> Vec<String> {
    let mut names = Vec::new();
    for prefix in ["super::".repeat(depth).as_str(), module] {
        for (at, _) in text.match_indices(prefix) {
            let is_whole =
                !text[..at].ends_with(|before: char| before.is_alphanumeric() || "_:".contains(before));
            if is_whole {
                let paths = list(&text[at + prefix.len()..]);
                names.extend(paths.into_iter().map(|path| first(path).to_owned()));
            }
        }
    }
    names
}

/// The names that the root of a module imports from its files, with the file of each.
fn shown_names<T>(root: &str, module: &str, files: &BTreeMap<String, T>) -> BTreeMap<String, String> {
    let mut shown = BTreeMap::new();
    for statement in root.split(';') {
        let statement = statement.trim_start();
        let Some((_, path)) = statement.split_once("use ").filter(|(before, _)| {
            before.is_empty() || before.starts_with("pub") && !before.contains(char::is_control)
        }) else {
            continue;
        };
        let path = path.strip_prefix("self::").or(path.strip_prefix(module)).unwrap_or(path);
        let Some((file, rest)) = path.split_once("::").filter(|(file, _)| files.contains_key(*file)) else {
            continue;
        };
        for path in list(rest) {
            let name = path.rsplit([':', ' ']).next().unwrap_or_default();
            shown.insert(name.to_owned(), file.to_owned());
        }
    }
    shown
}

/// The paths of the list in braces with which `text` begins; without one, the path.
fn list(text: &str) -> Vec<&str> {
    let Some(text) = text.strip_prefix('{') else {
        return vec![text.split([';', ',']).next().unwrap_or_default().trim()];
    };
    let (mut paths, mut begin, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                paths.push(text[begin..at].trim());
                begin = at + 1;
                if letter == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    paths
}

/// The first name of a path.
fn first(path: &str) -> &str {
    path.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(test: &str, files: &[(&str, &str)]) -> Imports {
        let directory = std::env::temp_dir().join(format!("nodlet-imports-{test}-{}", std::process::id()));
        for (name, text) in files {
            let path = directory.join(name);
            fs::create_dir_all(path.parent().expect("it has one")).expect("it can be made");
            fs::write(path, text).expect("it can be written");
        }
        let found = imports(&directory.join("pod.rs"));
        fs::remove_dir_all(directory).expect("it can be removed");
        found
    }

    #[test]
    fn a_circle_by_way_of_the_root_and_of_inner_files_is_found() {
        let found = made(
            "circle",
            &[
                (
                    "pod.rs",
                    "mod a;\nmod b;\npub use a::{A, more::B as C};\npub(crate) use self::b::D;\nuse std::fmt;\n",
                ),
                (
                    "pod/a.rs",
                    "//! See [`super::e`].\nuse super::D;\n\n#[cfg(test)]\nmod tests {\n    use super::e;\n}\n",
                ),
                ("pod/b.rs", "use super::{\n    c::{X, Y},\n    fmt,\n};\n"),
                ("pod/c.rs", "fn of() {\n    crate::pod::d::of();\n}\n"),
                ("pod/d.rs", ""),
                ("pod/d/inner.rs", "use super::a;\nuse super::super::C;\n"),
                ("pod/e.rs", "use super::a::A;\n"),
                ("pod/tests.rs", "use super::e;\n"),
                ("pod/d/tests/more.rs", "use super::super::super::e;\n"),
            ],
        );
        let of = |name: &str| found[name].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!([of("a"), of("b"), of("c"), of("d"), of("e")], [["b"], ["c"], ["d"], ["a"], ["a"]]);
        assert_eq!(circles(found).into_keys().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    }

    #[test]
    fn without_a_circle_nothing_is_left() {
        let found = made("none", &[("pod.rs", ""), ("pod/a.rs", "use super::b;\n"), ("pod/b.rs", "")]);
        assert_eq!(found.len(), 2);
        assert!(circles(found).is_empty());
    }
}
