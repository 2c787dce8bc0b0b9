//! Reads off the source that what decides about the cluster touches nothing of the machine.

use std::fs;
use std::path::Path;

use nodlet_fuzz::purity::impurities;

#[test]
fn node_pods_and_backoff_touch_nothing_of_the_machine() {
    for file in ["node.rs", "pods.rs", "backoff.rs"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
        assert_ne!(impurities(&path, &[]), [""; 0], "the source is read");
        // Instants are arguments; only the clock makes them.
        assert_eq!(impurities(&path, &["time::Duration", "time::Instant"]), [""; 0]);
        let text = fs::read_to_string(&path).expect("the source is there");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for effect in ["now()", "smol", "nodlet_wire", "crate::api", "super::api"] {
            assert!(!code.contains(effect), "{file}: {effect}");
        }
    }
}
