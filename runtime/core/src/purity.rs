//! Reads off the source that the core touches nothing of the machine, and that none of its files import from each
//! other in a circle. Cargo keeps other crates out; the standard library it cannot.

use std::fs;
use std::path::{Path, PathBuf};

use nodlet_fuzz::imports::{circles, imports};

/// The files below a directory, without those of the tests.
fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("the source is there") {
        let path = entry.expect("it can be read").path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        match name {
            "sim" | "timelines" | "tests" | "purity" | "kubelet_texts" => {}
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

#[test]
fn no_files_of_a_module_import_from_each_other() {
    for (module, (from, to)) in [
        ("spec", ("pod", "container")),
        ("facts", ("observation", "record")),
        ("pod", ("start", "container")),
        ("node", ("admission", "preemption")),
        ("status", ("conditions", "")),
    ] {
        let files =
            imports(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(module).with_extension("rs"));
        assert!(files[from].contains(to) || to.is_empty(), "{files:?}");
        let circles = circles(files);
        assert!(circles.is_empty(), "these import from each other in a circle: {circles:?}");
    }
}
