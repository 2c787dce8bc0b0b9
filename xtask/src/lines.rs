//! `cargo xtask lines`: counts the lines of Rust code per crate, without comments and blank lines, as two sums: product and
//! tests. Lists the files over [`LONG`] lines that are no tables.
//!
//! Tests are what is below `tests/`, `examples/`, `sim/` and `timelines/`, the files of these names, and each item behind
//! `#[cfg(test)]`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use nodlet_build::task::{Outcome, Task, TaskError, git, project};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

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
            sources.insert(PathBuf::from(file), Source::of(&text)?);
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

/// A file, reduced to what is counted. Lines have numbers from 1.
#[derive(Default)]
struct Source {
    /// The lines with tokens that are no comments.
    code: BTreeSet<usize>,
    /// The lines of the items behind `#[cfg(test)]`, with it.
    tests: Vec<RangeInclusive<usize>>,
    /// The names of the modules behind `#[cfg(test)]` that have files.
    modules: Vec<String>,
    /// The number of lines in constants and statics, at any depth.
    of_tables: usize,
    /// All of its lines.
    length: usize,
}

impl Source {
    fn of(text: &str) -> Result<Self, TaskError> {
        let mut source = Self { length: text.lines().count(), ..Self::default() };
        source.read(text.parse()?);
        // Those of a string.
        for (_, blank) in text.lines().zip(1..).filter(|(line, _)| line.trim().is_empty()) {
            source.code.remove(&blank);
        }
        Ok(source)
    }

    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            let lines = |end: usize| token.span().start().line..=tokens[end].span().end().line;
            match token {
                TokenTree::Group(group) if !is_documentation(group) => {
                    self.code.extend([group.span_open().start().line, group.span_close().end().line]);
                    self.read(group.stream());
                }
                TokenTree::Group(_) => {}
                // That of `#![…]`.
                TokenTree::Punct(_) if at > 0 && is_hash(&tokens[at - 1]) => {}
                hash if is_hash(hash) => {
                    let attribute = tokens[at..].iter().find_map(|token| match token {
                        TokenTree::Group(group) => Some(group),
                        _ => None,
                    });
                    self.code.extend(
                        attribute.is_some_and(|group| !is_documentation(group)).then(|| *lines(at).start()),
                    );
                    if attribute.is_some_and(|group| group.to_string().replace(' ', "") == "[cfg(test)]") {
                        let end = end_of_item(&tokens, at);
                        self.tests.push(lines(end));
                        if let [.., TokenTree::Ident(keyword), TokenTree::Ident(name), TokenTree::Punct(_)] =
                            &tokens[..=end]
                            && keyword == "mod"
                        {
                            self.modules.push(name.to_string());
                        }
                    }
                }
                other => {
                    self.code.extend(lines(at));
                    if is_constant(other)
                        && !matches!(tokens.get(at + 1), Some(TokenTree::Ident(next)) if next == "fn")
                    {
                        self.of_tables += lines(end_of_item(&tokens, at)).count();
                    }
                }
            }
        }
    }

    fn lines(&self, is_test: bool) -> Lines {
        let is_of_tests = |line: &&usize| is_test || self.tests.iter().any(|item| item.contains(line));
        let tests = self.code.iter().filter(is_of_tests).count();
        Lines { product: self.code.len() - tests, tests }
    }

    /// The files of modules behind `#[cfg(test)]`, as `a/b.rs` and the directory `a/b`.
    fn files_of_tests(&self, file: &Path) -> Vec<PathBuf> {
        let is_root = file.file_stem().is_some_and(|name| name == "lib" || name == "main" || name == "mod");
        let directory = if is_root { file.with_file_name("") } else { file.with_extension("") };
        let names = self.modules.iter().map(|name| directory.join(name));
        names.flat_map(|module| [module.with_extension("rs"), module]).collect()
    }

    /// Whether it is long, and most of it is not in constants and statics.
    fn is_long(&self) -> bool {
        self.length > LONG && self.of_tables * 2 <= self.length
    }
}

/// Whether a group is that of a comment with documentation, which the parser makes an attribute.
fn is_documentation(group: &Group) -> bool {
    group.delimiter() == Delimiter::Bracket && group.to_string().replace(' ', "").starts_with("[doc=")
}

fn is_hash(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == '#')
}

fn is_constant(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Ident(word) if word == "const" || word == "static")
}

/// The last token of the item that begins here: its `;` or its last brace, and that of a constant its `;`.
fn end_of_item(tokens: &[TokenTree], begin: usize) -> usize {
    let mut is_assigned = false;
    let is_end = |at: &usize| match &tokens[*at] {
        TokenTree::Punct(punct) => {
            is_assigned |= punct.as_char() == '=' && tokens[begin..*at].iter().any(is_constant);
            punct.as_char() == ';'
        }
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace && !is_assigned,
        _ => false,
    };
    (begin..tokens.len()).find(is_end).unwrap_or(tokens.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, product: usize, tests: usize) {
        assert_eq!(Source::of(text).unwrap().lines(false), Lines { product, tests }, "{text}");
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
        let source = Source::of("#[cfg(test)]\nmod beside;\nmod other;\n").unwrap();
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
        assert!(
            !Source::of(&format!("pub(super) static ROWS: [Row; {LONG}] = [\n{rows}];\n")).unwrap().is_long()
        );
        assert!(Source::of(&format!("fn rows() {{\n    vec![\n{rows}];\n}}\n")).unwrap().is_long());
    }
}
