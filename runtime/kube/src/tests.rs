//! Tests of the structure of the crate.

use std::path::Path;

use nodlet_fuzz::imports::{circles, imports};
use nodlet_fuzz::purity::impurities;

#[test]
fn no_files_of_a_module_import_from_each_other() {
    // The root of each module, and an import among its files, by which the reading of the source is tested.
    for (root, (from, to)) in [
        ("lib.rs", ("manifest", "kinds")),
        ("object.rs", ("check", "field")),
        ("pod.rs", ("defaults", "claim")),
        ("pod/validate.rs", ("ephemeral", "container")),
        ("kinds.rs", ("namespace", "limit_range")),
        ("manifest.rs", ("documents", "locate")),
    ] {
        let files = imports(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(root));
        assert!(files.get(from).is_some_and(|imports| imports.contains(to)), "{root}: {files:?}");
        let circles = circles(files);
        assert!(circles.is_empty(), "{root}: these import from each other in a circle: {circles:?}");
    }
}

/// The modules of the standard library that the crate uses. No part of it touches the machine.
const ALLOWED: [&str; 18] = [
    "borrow::Cow",
    "cell",
    "cmp",
    "collections",
    "error::Error",
    "fmt",
    "io::Read",
    "iter",
    "mem",
    "net::IpAddr",
    "ops",
    "path::Path",
    "rc",
    "slice",
    "str",
    "sync::Arc",
    "sync::LazyLock",
    "time::Duration",
];

/// What descriptions need besides, as in `kubectl describe`: ages, and times in the time zone of the machine.
const OF_DESCRIPTIONS: [&str; 2] = ["nodlet_kernel::time::local", "time::SystemTime"];

#[test]
fn the_crate_names_nothing_that_touches_the_machine_but_the_local_time_of_descriptions() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let root = source.join("lib.rs");
    assert!(impurities(&root, &[]).len() > 20, "the source is read");
    let place = format!("{}: ", source.join("kinds/describe/text.rs").display());
    let mut found = impurities(&root, &ALLOWED);
    found.sort();
    assert_eq!(found, OF_DESCRIPTIONS.map(|used| format!("{place}{used}")));
}
