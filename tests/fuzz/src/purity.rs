//! Reads off the source of a crate what it uses of the standard library, for tests that it touches nothing of the
//! machine. Cargo keeps other crates out; the standard library it cannot, nor what a crate may use of `libc` and of `nodlet_kernel`.

use std::path::Path;

use crate::imports::{paths, sources};

/// Macros that write to standard output or standard error, and `unsafe` blocks and items, with which anything can be
/// called.
const WORDS: [&str; 8] =
    ["print!", "println!", "eprint!", "dbg!", "unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];

/// What the crate with the root `root` uses outside of its tests that is not in `allowed`, a list of paths in the
/// standard library such as `collections` or `time::Duration`, of `libc`, such as `libc::tm`, and of `nodlet_kernel`; each with the file
/// that uses it. The paths in
/// braces, as in `use std::time::{Duration, Instant}`, are judged one by one.
///
/// # Panics
/// If the source cannot be read.
pub fn impurities(root: &Path, allowed: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for (file, code) in sources(root) {
        let words = WORDS.iter().filter(|word| code.contains(*word)).map(|word| (*word).to_owned());
        let named =
            used_paths(&code).into_iter().filter(|path| !allowed.iter().any(|part| is_in(path, part)));
        found.extend(words.chain(named).map(|used| format!("{}: {used}", file.display())));
    }
    found
}

/// Whether `path` is `part` or names something in it.
fn is_in(path: &str, part: &str) -> bool {
    path.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The paths in the standard library and in `libc` that `code` names, as far as each is written.
fn used_paths(code: &str) -> Vec<String> {
    let mut named = Vec::new();
    let prefixes = [("std::", ""), ("core::", ""), ("alloc::", ""), ("libc::", "libc::")];
    for (prefix, shown) in prefixes.into_iter().chain([("nodlet_kernel::", "nodlet_kernel::")]) {
        for (at, _) in code.match_indices(prefix) {
            if !code[..at].ends_with(|before: char| before.is_alphanumeric() || "_:".contains(before)) {
                paths(&code[at + prefix.len()..], shown, &mut named);
            }
        }
    }
    let end = |path: &str| path.find(|letter: char| !letter.is_alphanumeric() && !"_:*".contains(letter));
    named.iter().map(|path| path[..end(path).unwrap_or(path.len())].to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_in_braces_is_judged_and_tests_are_not() {
        let directory = std::env::temp_dir().join(format!("nodlet-purity-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("pod/deep")).expect("it can be made");
        for (name, text) in [
            ("lib.rs", "mod pod;\n#[cfg(test)]\nmod story;\nuse std::time::{Duration, Instant};\n"),
            ("story.rs", "use std::fs;\n"),
            (
                "pod.rs",
                "use std::{fmt, io::{self, Read as _}};\n\n#[cfg(test)]\nmod tests {\n    use std::env;\n}\n",
            ),
            (
                "pod/deep.rs",
                "fn now() {\n    // std::env\n    std::time::SystemTime::now();\n    libc::time(x);\n}\n",
            ),
            (
                "pod/deep/inner.rs",
                "use std::{*};\nfn f() { println!() }\nuse std::time as clock;\nuse my_std::fs;\n",
            ),
            ("pod/tests.rs", "use std::fs;\n"),
        ] {
            std::fs::write(directory.join(name), text).expect("it can be written");
        }
        let found = impurities(&directory.join("lib.rs"), &["fmt", "time::Duration"]);
        let place = format!("{}/", directory.display());
        let mut found: Vec<_> = found.iter().map(|line| line.replace(&place, "")).collect();
        found.sort();
        std::fs::remove_dir_all(&directory).expect("it can be removed");
        assert_eq!(
            found,
            [
                "lib.rs: time::Instant",
                "pod.rs: io::Read",
                "pod.rs: io::self",
                "pod/deep.rs: libc::time",
                "pod/deep.rs: time::SystemTime::now",
                "pod/deep/inner.rs: *",
                "pod/deep/inner.rs: println!",
                "pod/deep/inner.rs: time",
            ]
        );
    }
}
