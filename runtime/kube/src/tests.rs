//! Tests of the structure of the crate.

use std::path::Path;

use nodlet_fuzz::imports::{circles, imports};

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
