//! `cargo xtask lines`: counts the lines of Rust code per crate, without comments and blank lines, as two sums: product and
//! tests. Lists the files over [`LONG`] lines that are no tables.
//!
//! Tests are what is below `tests/`, `examples/`, `sim/` and `timelines/`, the files of these names, and each item behind
//! `#[cfg(test)]`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use nodlet_build::task::{Outcome, Task, TaskError, git, project};

/// Directories of tests, and names of files with tests.
const OF_TESTS: [&str; 4] = ["tests", "examples", "sim", "timelines"];

/// The most lines of a file, with comments and blank lines, that is no table.
const LONG: usize = 600;

/// Lines of code.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Lines {
    product: usize,
    tests: usize,
}

/// The task `cargo xtask lines`.
pub(crate) const TASK: Task = Task::new(
    "lines",
    "",
    "count the lines of code of each crate, as product and tests, and list long files",
    run,
);

pub(crate) fn run(_: &[String]) -> Outcome {
    let listed =
        git(project(), &["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.rs"])?;
    let mut sources = BTreeMap::new();
    for file in listed.split_terminator('\0') {
        // A file that is deleted in the work tree is still listed.
        if let Ok(text) = fs::read_to_string(project().join(file)) {
            sources.insert(PathBuf::from(file), Source::of(&text));
        }
    }
    let tests: BTreeSet<PathBuf> =
        sources.iter().flat_map(|(file, source)| source.files_of_tests(file)).collect();
    let (mut crates, mut all) = (BTreeMap::<String, Lines>::new(), Lines::default());
    for (file, source) in &sources {
        let is_test = is_of_tests(file) || file.ancestors().any(|above| tests.contains(above));
        let lines = source.lines(is_test);
        for sum in [&mut all, crates.entry(crate_of(file)?).or_default()] {
            sum.product += lines.product;
            sum.tests += lines.tests;
        }
    }
    println!("{:<28}{:>9}{:>9}", "lines of code", "product", "tests");
    for (name, lines) in crates.iter().chain([(&"all".to_owned(), &all)]) {
        println!("{name:<28}{:>9}{:>9}", lines.product, lines.tests);
    }
    let mut long: Vec<_> = sources.iter().filter(|(_, source)| source.is_long()).collect();
    long.sort_by_key(|(_, source)| std::cmp::Reverse(source.length));
    println!("\n{} files have more than {LONG} lines and are no tables:", long.len());
    long.iter().for_each(|(file, source)| println!("{:>6} {}", source.length, file.display()));
    Ok(())
}

/// The name of the crate that has a file: that of its directory with a `Cargo.toml`.
fn crate_of(file: &Path) -> Result<String, TaskError> {
    let mut above = file.ancestors().skip(1);
    let found = above.find(|above| project().join(above).join("Cargo.toml").is_file());
    let found = found.ok_or_else(|| TaskError(format!("{} is in no crate", file.display())))?;
    Ok(found.display().to_string())
}

fn is_of_tests(file: &Path) -> bool {
    file.with_extension("").iter().any(|name| OF_TESTS.iter().any(|of_tests| name == *of_tests))
}

/// A file, reduced to what is counted.
struct Source {
    /// Its code, by lines: comments are blanks, and so are the contents of strings.
    code: String,
    /// All of its lines.
    length: usize,
}

impl Source {
    fn of(text: &str) -> Self {
        Self { code: code(text), length: text.lines().count() }
    }

    fn lines(&self, is_test: bool) -> Lines {
        let count = |code: &str| code.lines().filter(|line| !line.trim().is_empty()).count();
        let all = count(&self.code);
        let tests = if is_test { all } else { self.items_of_tests().map(count).sum() };
        Lines { product: all - tests, tests }
    }

    /// The items behind `#[cfg(test)]`, with it.
    fn items_of_tests(&self) -> impl Iterator<Item = &str> {
        let mut rest = self.code.as_str();
        std::iter::from_fn(move || {
            rest = &rest[rest.find("#[cfg(test)]")?..];
            let (found, after) = rest.split_at(end_of_item(rest));
            rest = after;
            Some(found)
        })
    }

    /// The files of modules behind `#[cfg(test)]`, as `a/b.rs` and the directory `a/b`.
    fn files_of_tests(&self, file: &Path) -> Vec<PathBuf> {
        let is_root = file.file_stem().is_some_and(|name| name == "lib" || name == "main" || name == "mod");
        let directory = if is_root { file.with_file_name("") } else { file.with_extension("") };
        let declared =
            |item: &str| item.strip_suffix(';')?.rsplit_once("mod ").map(|(_, name)| name.to_owned());
        let names = self.items_of_tests().filter_map(declared).map(|name| directory.join(name));
        names.flat_map(|module| [module.with_extension("rs"), module]).collect()
    }

    fn is_long(&self) -> bool {
        self.length > LONG && !self.is_table()
    }

    /// Whether most of the code is in constants and statics, at any depth.
    fn is_table(&self) -> bool {
        let (mut of_tables, mut rest) = (0, self.code.as_str());
        while let Some(line) = rest.lines().next() {
            let declared = line.trim_start();
            let declared = match declared.strip_prefix("pub") {
                Some(rest) => rest.trim_start_matches(|other: char| !other.is_whitespace()).trim_start(),
                None => declared,
            };
            let is_constant = ["const ", "static "].iter().any(|word| declared.starts_with(word));
            let length = if is_constant && !declared.starts_with("const fn") {
                let length = end_of_item(rest);
                of_tables += rest[..length].lines().count();
                length
            } else {
                line.len()
            };
            rest = rest.get(length.max(1)..).unwrap_or_default();
            rest = rest.strip_prefix('\n').unwrap_or(rest);
        }
        of_tables * 2 > self.length
    }
}

/// The length of the item with which a code begins: to its `;` or its last brace.
fn end_of_item(code: &str) -> usize {
    let mut depth = 0_usize;
    let mut is_constant = false;
    for (at, character) in code.char_indices() {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                // The braces of a constant's value are not its end.
                if depth == 0 && character == '}' && !is_constant {
                    return at + 1;
                }
            }
            ';' if depth == 0 => return at + 1,
            '=' if depth == 0 => {
                is_constant |= ["const ", "static "].iter().any(|word| code[..at].contains(word));
            }
            _ => {}
        }
    }
    code.len()
}

/// The text with blanks in place of comments, and of what strings and characters contain.
fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_in_name = code.ends_with(|before: char| before.is_alphanumeric() || before == '_');
        let raw = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r')).filter(|_| !is_in_name);
        let hashes = raw.map_or(0, |raw| raw.len() - raw.trim_start_matches('#').len());
        let (length, is_code) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), false)
        } else if rest.starts_with("/*") {
            (block_comment(rest), false)
        } else if let Some(raw) = raw.filter(|raw| raw[hashes..].starts_with('"')) {
            let (before, end) = (rest.len() - raw.len() + hashes + 1, format!("\"{}", "#".repeat(hashes)));
            (rest[before..].find(&end).map_or(rest.len(), |at| before + at + end.len()), true)
        } else if first == '"' {
            (quoted(rest), true)
        } else if let Some(length) = character(rest) {
            (length, true)
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        for inner in rest[..length].chars() {
            // A line of a string is a line of code.
            code.push(if inner == '\n' {
                '\n'
            } else if is_code {
                '"'
            } else {
                ' '
            });
        }
        rest = &rest[length..];
    }
    code
}

/// The length of a comment between `/*` and `*/`, which may contain others.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of a string with escapes.
fn quoted(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a character such as `'{'`, which is no lifetime.
fn character(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('\'')?;
    let length = match inner.strip_prefix('\\') {
        Some(escaped) => 1 + escaped.chars().next()?.len_utf8() + escaped.get(1..)?.find('\'')?,
        None => inner.chars().next()?.len_utf8(),
    };
    inner.get(length..)?.starts_with('\'').then_some(length + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, product: usize, tests: usize) {
        assert_eq!(Source::of(text).lines(false), Lines { product, tests }, "{text}");
    }

    #[test]
    fn comments_and_blank_lines_are_no_code() {
        check("//! A module.\n\nfn one() {\n    // Why.\n    two(); // here\n}\n", 3, 0);
        check("/* one /* two\n */\n three */ fn one() {}\n", 1, 0);
        check("const A: &str = \"// no comment\n\nand /* none\";\n", 2, 0);
        check("const A: &str = r#\"// \" {\n\"#;\nconst B: u8 = b'\"'; // {\nconst C: char = '\\'';\n", 4, 0);
        check("fn of<'a>(b: &'a str) -> &'a str { // '\n    b\n}\n", 3, 0);
    }

    #[test]
    fn items_behind_cfg_test_are_tests() {
        check("fn one() {}\n\n#[cfg(test)]\nmod tests {\n    fn two() { let _ = \"}\"; }\n}\n", 1, 4);
        check("#[cfg(test)]\nmod tests;\n\nfn one() {}\n", 1, 2);
        check("#[cfg(test)]\nuse super::{A, B};\nuse super::C;\n", 1, 2);
        check("#[cfg(test)]\nfn of<A: Iterator<Item = u8>>(_: A) {\n    b();\n}\nfn one() {}\n", 1, 4);
        check("#[cfg(test)]\npub(crate) fn has(&self) -> [u8; 2] {\n    [1; 2]\n}\nfn one() {}\n", 1, 4);
    }

    #[test]
    fn files_of_modules_behind_cfg_test_are_tests() {
        let source = Source::of("#[cfg(test)]\nmod beside;\nmod other;\n");
        let files = |file: &str| source.files_of_tests(Path::new(file));
        assert_eq!(files("a/src/lib.rs"), [Path::new("a/src/beside.rs"), Path::new("a/src/beside")]);
        assert_eq!(files("a/src/b.rs"), [Path::new("a/src/b/beside.rs"), Path::new("a/src/b/beside")]);
        for file in ["tests/src/lib.rs", "a/src/tests.rs", "core/src/sim/seeds.rs", "core/src/timelines.rs"] {
            assert!(is_of_tests(Path::new(file)), "{file}");
        }
        assert!(!is_of_tests(Path::new("a/src/tested.rs")));
    }

    #[test]
    fn a_file_with_more_lines_in_constants_than_elsewhere_is_a_table() {
        let rows = "    Row { name: \"one\" },\n".repeat(LONG);
        assert!(!Source::of(&format!("pub(super) static ROWS: [Row; {LONG}] = [\n{rows}];\n")).is_long());
        assert!(Source::of(&format!("fn rows() {{\n    vec![\n{rows}];\n}}\n")).is_long());
    }
}
