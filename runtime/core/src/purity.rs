//! Reads off the source that the core touches nothing of the machine, and that none of its files import from each
//! other in a circle. Cargo keeps other crates out; the standard library it cannot.

use std::path::Path;

use nodlet_fuzz::imports::{circles, imports};
use nodlet_fuzz::purity::impurities;

/// The modules of the standard library that the core uses. No part of it touches the machine, and none has random results.
const ALLOWED: [&str; 20] = [
    "borrow",
    "cmp",
    "collections::BTreeMap",
    "collections::BTreeSet",
    "collections::VecDeque",
    "convert",
    "error",
    "fmt",
    "hash::DefaultHasher",
    "hash::Hasher",
    "iter",
    "marker",
    "mem",
    "net::Ipv4Addr",
    "net::Ipv6Addr",
    "ops",
    "rc",
    "slice",
    "time::Duration",
    "vec",
];

#[test]
fn the_core_names_nothing_of_the_standard_library_that_touches_the_machine() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    assert!(impurities(&root, &[]).len() > 100, "the source is read");
    assert_eq!(impurities(&root, &ALLOWED), [""; 0]);
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
