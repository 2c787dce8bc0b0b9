//! Reads off the source that the core touches nothing of the machine. Cargo keeps other crates out; the standard
//! library it cannot.

use std::fs;
use std::path::{Path, PathBuf};

/// The files below a directory, without those of the tests.
fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("the source is there") {
        let path = entry.expect("it can be read").path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        match name {
            "sim" | "timelines" | "tests" | "purity" => {}
            _ if path.is_dir() => files(&path, found),
            _ => found.push(path),
        }
    }
}

#[test]
fn the_core_names_nothing_of_the_standard_library_that_touches_the_machine() {
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(found.len() > 30, "{found:?}");
    for file in found {
        let text = fs::read_to_string(&file).expect("it can be read");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for word in [
            "std::fs",
            "fs::",
            "std::io",
            "std::env",
            "std::os",
            "std::process",
            "std::thread",
            "std::sync",
            "std::net::Tcp",
            "std::net::Udp",
            "time::SystemTime",
            "std::time::Instant",
            "println!",
            "unsafe",
        ] {
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let named: Vec<&str> = lines.filter(|line| line.contains(word)).collect();
            assert!(named.is_empty(), "{}: {named:?}", file.display());
        }
    }
}
