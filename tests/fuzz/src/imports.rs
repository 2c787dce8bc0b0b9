//! Reads off the source of a module which of its files import from each other, for tests that no files do so in
//! a circle: each file can then be read after those that it imports from.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The files of a folder by their names, each with the files of the folder that it imports from.
pub type Imports = BTreeMap<String, BTreeSet<String>>;

/// The imports among the files of the module whose root is the file `root`, such as `src/lib.rs` or
/// `src/events.rs`. A file in a folder of its own counts to the file of that name: in the registry,
/// `src/events/correlate.rs` to `src/events.rs`. An import of a name that the root imports from another file counts as an import
/// from that file, and so does a method that only another file defines and that is called on `self`, on a variable of
/// a declared type, or on a parameter of a closure, or that is named as a value (`Engine::read`). Imports
/// between the root and its files do not count. Code of tests does not count: files
/// `tests.rs`, folders `tests` and modules with `#[cfg(test)]`.
///
/// # Panics
/// If the source cannot be read.
pub fn imports(root: &Path) -> Imports {
    let (folder, module) = place(root);
    let root_text = read_text(root);
    let mut texts = BTreeMap::new();
    read(&folder, root, None, 1, &mut texts);
    texts.retain(|name, _| !root_text.contains(&format!("#[cfg(test)]\nmod {name};")));
    let shown = shown_names(&code(&root_text), &module, &texts);
    let file_of =
        |name: String| if texts.contains_key(&name) { Some(name) } else { shown.get(&name).cloned() };
    let methods = methods(&texts);
    let types = extended(&methods, &texts);
    let of_file = |(name, texts): (&String, &Vec<(usize, String)>)| {
        let named = texts.iter().flat_map(|(depth, text)| names(text, *depth, &module));
        let called = texts.iter().flat_map(|(_, text)| called(text, &methods, &types));
        let definers = called.filter_map(|method| methods.get(&method).filter(|files| files.len() == 1));
        let files = named.filter_map(file_of).chain(definers.flatten().cloned());
        (name.clone(), files.filter(|other| other != name).collect())
    };
    texts.iter().map(of_file).collect()
}

/// Methods of the standard library's types, such as `Result` and `Command`, which a closure's parameter may have: these
/// are not followed to a type of the crate that has one of the name.
const STANDARD: [&str; 5] = ["as_str", "find", "ok", "path", "status"];

/// A method by the names of its type and its own.
type Method = (String, String);

/// Methods, each with the files that define it.
type Methods = BTreeMap<Method, BTreeSet<String>>;

/// The inherent methods of all types, each with the files that define one of the name.
fn methods(texts: &BTreeMap<String, Vec<(usize, String)>>) -> Methods {
    let mut methods = Methods::new();
    for (file, texts) in texts {
        for (of, body) in texts.iter().flat_map(|(_, text)| blocks(text)) {
            let outer = body.lines().filter(|line| line.starts_with("    ") && !line.starts_with("     "));
            for (_, rest) in outer.filter_map(|line| line.split_once("fn ")) {
                let method = (of.to_owned(), first(rest).to_owned());
                methods.entry(method).or_default().insert(file.clone());
            }
        }
    }
    methods
}

/// The methods of other files that `text` may call: of `self`, of a variable with a declared type, of a parameter of a
/// closure, and each function of a type that it names, also as a value (`Engine::read`).
fn called(text: &str, methods: &Methods, extended: &BTreeSet<&str>) -> Vec<Method> {
    let mut calls = Vec::new();
    for (of, body) in blocks(text) {
        let body = joined(body);
        calls.extend(members(&body, "self", ".").filter(is_called).map(|(name, _)| method(of, name)));
        calls.extend(members(&body, "Self", "::").map(|(name, _)| method(of, name)));
    }
    let text = joined(text);
    for of in extended {
        calls.extend(members(&text, of, "::").map(|(name, _)| method(of, name)));
    }
    for variable in parameters(&text) {
        for (name, _) in members(&text, variable, ".").filter(is_called) {
            // The type of a closure's parameter is not written: the one type that has such a method, if there is one.
            let is_found = |(of, own): &&Method| own == name && extended.contains(of.as_str());
            let mut of = methods.keys().filter(is_found).filter(|_| !STANDARD.contains(&name));
            if let (Some(found), None) = (of.next(), of.next()) {
                calls.push(found.clone());
            }
        }
    }
    for of in extended {
        for variable in declared(&text, of) {
            calls.extend(members(&text, variable, ".").filter(is_called).map(|(name, _)| method(of, name)));
        }
    }
    calls
}

/// The types whose methods are in several files, but for names that several files declare. A type whose methods are all
/// in one file is imported from there.
fn extended<'a>(methods: &'a Methods, texts: &BTreeMap<String, Vec<(usize, String)>>) -> BTreeSet<&'a str> {
    let mut files: BTreeMap<&str, BTreeSet<&String>> = BTreeMap::new();
    for ((of, _), in_files) in methods {
        files.entry(of).or_default().extend(in_files);
    }
    let declarations = |of: &str| {
        let texts = texts.values().flatten().flat_map(|(_, text)| text.lines());
        let names = texts.filter_map(|line| line.split_once("struct ").or(line.split_once("enum ")));
        names.filter(|(_, rest)| first(rest) == of).count()
    };
    let found = files.into_iter().filter(|(of, files)| files.len() > 1 && declarations(of) < 2);
    found.map(|(of, _)| of).collect()
}

fn method(of: &str, name: &str) -> Method {
    (of.to_owned(), name.to_owned())
}

/// `text` in one line, with each method behind its receiver.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace(" .", ".")
}

/// The names behind `of` and `separator` in `text`, each with the text behind it.
fn members<'a>(text: &'a str, of: &str, separator: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let prefix = format!("{of}{separator}");
    let is_whole =
        |before: &str| !before.ends_with(|letter: char| letter.is_alphanumeric() || "_.".contains(letter));
    let found: Vec<_> =
        text.match_indices(&prefix).filter(|(at, _)| is_whole(&text[..*at])).map(|(at, _)| at).collect();
    found.into_iter().map(move |at| {
        let rest = &text[at + prefix.len()..];
        rest.split_at(first(rest).len())
    })
}

fn is_called((_, rest): &(&str, &str)) -> bool {
    rest.starts_with('(')
}

/// The names of the parameters of closures in `text`.
fn parameters(text: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for (at, _) in text.match_indices('|') {
        let begins = ["(", "move ", ", ", "= ", "{ "].iter().any(|before| text[..at].ends_with(before));
        if let Some((list, _)) = text[at + 1..].split_once('|').filter(|_| begins) {
            names.extend(list.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(
                |name| {
                    name.starts_with(char::is_lowercase)
                        && !matches!(*name, "mut" | "ref" | "move" | "self" | "dyn" | "impl")
                },
            ));
        }
    }
    names
}

/// The names of the variables in `text` that are declared as references to the type `of`.
fn declared<'a>(text: &'a str, of: &str) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for before in ["&", "&mut ", "Rc<", "&Rc<"] {
        for (at, found) in text.match_indices(&format!(": {before}{of}")) {
            let name = text[..at].rsplit(|letter: char| !letter.is_alphanumeric() && letter != '_').next();
            let ends = !text[at + found.len()..]
                .starts_with(|letter: char| letter.is_alphanumeric() || letter == '_');
            names.extend(name.filter(|name| ends && !name.is_empty() && *name != "self"));
        }
    }
    names
}

/// The inherent `impl` blocks of `text`: the name of each type, and the block.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    let mut blocks = Vec::new();
    for part in text.split("\nimpl").skip(1) {
        let Some((head, body)) = part.split_once('{') else { continue };
        let named = match head.strip_prefix('<') {
            Some(generic) => generic.split_once("> ").map_or("", |(_, named)| named),
            None => head,
        };
        if !head.contains(" for ") {
            blocks.push((first(named.trim_start()), body.split_once("\n}\n").map_or(body, |(body, _)| body)));
        }
    }
    blocks
}

/// The roots of all modules of the crate with the root `root` that consist of more than one file, the crate's
/// root first.
///
/// # Panics
/// If the source cannot be read.
pub fn modules(root: &Path) -> Vec<PathBuf> {
    let mut modules = vec![root.to_owned()];
    let mut folders = vec![place(root).0];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder is there") {
            let path = entry.expect("it can be read").path();
            let file = path.with_extension("rs");
            if path.is_dir() && file.is_file() && stem(&path) != "tests" {
                modules.push(file);
                folders.push(path);
            }
        }
    }
    modules
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

/// The roots of all crates in `folders`.
///
/// # Panics
/// If a folder cannot be read.
pub(crate) fn roots(project: &Path, folders: &[&str]) -> Vec<PathBuf> {
    let mut left: Vec<PathBuf> = folders.iter().map(|folder| project.join(folder)).collect();
    let mut roots = Vec::new();
    while let Some(folder) = left.pop() {
        let inner =
            fs::read_dir(&folder).expect("the folder is there").map(|entry| entry.expect("it can be read"));
        left.extend(inner.map(|entry| entry.path()).filter(|path| path.is_dir() && !path.ends_with("src")));
        let all = ["src/lib.rs", "src/main.rs"].map(|root| folder.join(root));
        roots.extend(all.into_iter().filter(|root| root.exists()));
    }
    roots
}

/// The files of the crate with the root `root`, each with its code; those of tests are missing.
///
/// # Panics
/// If the source cannot be read.
pub(crate) fn sources(root: &Path) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(file) = left.pop() {
        let text = read_text(&file);
        let folder = place(&file).0;
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("it can be read").path();
            let name = stem(&path);
            // A program beside a library has a root of its own.
            let is_root = ["lib.rs", "main.rs"].iter().any(|root| path.ends_with(root));
            let is_source = path.extension().is_some_and(|extension| extension == "rs") && !is_root;
            if is_source && name != "tests" && !text.contains(&format!("#[cfg(test)]\nmod {name};")) {
                left.push(path);
            }
        }
        files.push((file, code(&text)));
    }
    files
}

/// The folder with the files of the module with the root `root`, and the prefix of their paths in the source.
fn place(root: &Path) -> (PathBuf, String) {
    if ["lib.rs", "main.rs"].iter().any(|name| root.ends_with(name)) {
        return (root.with_file_name(""), "crate::".to_owned());
    }
    let folder = root.with_extension("");
    let names: Vec<_> = folder.iter().map(|name| name.to_string_lossy()).collect();
    let source = names.iter().rposition(|name| matches!(name.as_ref(), "src" | "tests"));
    let module = match &names[source.map_or(names.len() - 1, |at| at + 1)..] {
        // A program or a test: each is a crate.
        [folder, _, module @ ..] if folder == "bin" => module,
        [_, module @ ..] if source.is_some_and(|at| names[at] == "tests") => module,
        module => module,
    };
    let path = module.iter().flat_map(|name| [name, "::"]);
    (folder.clone(), ["crate::"].into_iter().chain(path).collect())
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
    let in_crate = module.strip_prefix("crate::").unwrap_or_default();
    for (prefix, inner) in [("super::".repeat(depth).as_str(), ""), ("crate::", in_crate)] {
        for (at, _) in text.match_indices(prefix) {
            let is_whole =
                !text[..at].ends_with(|before: char| before.is_alphanumeric() || "_:".contains(before));
            if is_whole {
                let mut found = Vec::new();
                paths(&text[at + prefix.len()..], "", &mut found);
                names.extend(
                    found.iter().filter_map(|path| Some(first(path.strip_prefix(inner)?).to_owned())),
                );
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
        let mut found = Vec::new();
        paths(path, "", &mut found);
        for path in &found {
            let path = path.strip_prefix("self::").or(path.strip_prefix(module)).unwrap_or(path);
            let file = path.split_once("::").map(|(file, _)| file).filter(|file| files.contains_key(*file));
            let name = path.rsplit([':', ' ']).next().unwrap_or_default();
            if let Some(file) = file {
                shown.insert(name.to_owned(), file.to_owned());
            }
        }
    }
    shown
}

/// Adds the path with which `text` begins to `found`, behind `before`, and with the name after `as` if it has
/// one; of a list in braces, each path.
pub(crate) fn paths(text: &str, before: &str, found: &mut Vec<String>) {
    let end = text.find(|letter: char| !letter.is_alphanumeric() && !"_:".contains(letter));
    let (path, rest) = text.split_at(end.unwrap_or(text.len()));
    if rest.starts_with('{') && (path.is_empty() || path.ends_with("::")) {
        list(rest).into_iter().for_each(|inner| paths(inner, &format!("{before}{path}"), found));
    } else {
        let text = text.split([';', ',', '}']).next().unwrap_or_default().trim();
        found.push(format!("{before}{text}"));
    }
}

/// The paths of the list in braces with which `text` begins.
fn list(text: &str) -> Vec<&str> {
    let text = text.strip_prefix('{').unwrap_or(text);
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

    fn imports_of(test: &str, files: &[(&str, &str)]) -> Imports {
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
        let found = imports_of(
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
                ("pod/b.rs", "use crate::{\n    other,\n    pod::{c::{X, Y}, fmt},\n};\n"),
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
    fn a_circle_by_way_of_methods_is_found() {
        let found = imports_of(
            "methods",
            &[
                ("pod.rs", "mod a;\nmod b;\nmod c;\nstruct Pod;\n"),
                (
                    "pod/a.rs",
                    "use super::Pod;\n\nimpl Pod {\n    fn one(&self) {\n        self\n            .two();\n        self.both();\n    }\n\n    fn both() {}\n}\n",
                ),
                (
                    "pod/b.rs",
                    "use super::Pod;\n\nimpl Pod {\n    pub(super) async fn two(&self) {\n        Self::one(self);\n        self.both();\n    }\n\n    fn both() {}\n}\n",
                ),
                (
                    "pod/c.rs",
                    "struct Other;\n\nimpl Other {\n    fn three(&self) {\n        self.two();\n        self.one;\n    }\n}\n\nimpl From<u8> for Pod {\n    fn four(&self) {\n        self.one();\n    }\n}\n",
                ),
            ],
        );
        let of = |name: &str| found[name].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!([of("a"), of("b"), of("c")], [vec!["b"], vec!["a"], vec![]]);
    }

    #[test]
    fn a_circle_by_way_of_closures_and_of_functions_as_values_is_found() {
        let found = imports_of(
            "closures",
            &[
                ("pod.rs", "mod a;\nmod b;\nmod c;\nmod d;\nstruct Pod;\n"),
                (
                    "pod/a.rs",
                    "use super::Pod;\n\nimpl Pod {\n    fn one(&self) {\n        later(move |other: u8, pod| {\n            pod\n                .two();\n        });\n    }\n\n    fn both() {}\n}\n",
                ),
                (
                    "pod/b.rs",
                    "use super::Pod;\n\nimpl Pod {\n    fn two(&self) {\n        later(Pod::three);\n        let both = |pod: &Pod| pod.both();\n    }\n\n    fn both() {}\n}\n",
                ),
                (
                    "pod/c.rs",
                    "use super::Pod;\n\nimpl Pod {\n    fn three(&self) {\n        self.pod.one();\n    }\n}\n\nfn of(every: &mut Pod) {\n    every.one();\n}\n",
                ),
                (
                    "pod/d.rs",
                    "use super::Pod;\n\nimpl Pod {\n    fn four(&self, one: u8) -> bool {\n        one.two() || PodShell::three(one)\n    }\n}\n",
                ),
            ],
        );
        let of = |name: &str| found[name].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!([of("a"), of("b"), of("c"), of("d")], [vec!["b"], vec!["c"], vec!["a"], vec![]]);
        assert_eq!(circles(found).into_keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    /// The files of each crate of the workspace.
    #[test]
    fn no_files_of_one_folder_import_from_each_other_in_any_crate() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let manifest = read_text(&workspace.join("Cargo.toml"));
        let members = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next());
        let members = members.expect("the manifest lists the members").split('"').skip(1).step_by(2);
        let mut files = Imports::new();
        for member in members {
            let source = workspace.join(member).join("src");
            let root =
                ["lib.rs", "main.rs"].map(|name| source.join(name)).into_iter().find(|root| root.exists());
            for module in modules(&root.expect("each crate has a root")) {
                let name =
                    module.strip_prefix(&workspace).expect("it is in the workspace").display().to_string();
                let found = imports(&module);
                let circles = circles(found.clone());
                assert!(
                    circles.is_empty(),
                    "in {name} these import from each other in a circle: {circles:?}"
                );
                files.insert(name, found.values().flatten().cloned().collect());
            }
        }
        // The test reads crates, modules in them, and modules in those.
        for (module, imported) in [
            ("board/src/main.rs", "boot"),
            ("board/src/init.rs", "initramfs"),
            ("board/src/init/network.rs", "wire"),
            ("rootfs/src/lib.rs", "xattr"),
            ("runtime/src/lib.rs", "storage_thread"),
            ("runtime/host/src/network.rs", "range"),
            ("runtime/supervisor/src/lib.rs", "user"),
            ("runtime/wire/src/lib.rs", "tls"),
            ("tests/src/lib.rs", "device"),
            ("xtask/src/main.rs", "ledger"),
            ("xtask/build/src/lib.rs", "targets"),
        ] {
            assert!(files[module].contains(imported), "{module}: {:?}", files[module]);
        }
    }

    #[test]
    fn without_a_circle_nothing_is_left() {
        let found = imports_of("none", &[("pod.rs", ""), ("pod/a.rs", "use super::b;\n"), ("pod/b.rs", "")]);
        assert_eq!(found.len(), 2);
        assert!(circles(found).is_empty());
    }
}
