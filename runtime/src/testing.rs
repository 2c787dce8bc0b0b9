//! Pods for the tests of several modules.

use std::rc::Rc;

use nodlet_core::spec::Pod;
use nodlet_kube::manifest::{self, Validation};

/// Parses the manifest of a pod with this metadata and spec, and these fields of its container `c`.
pub(crate) fn pod(metadata: &str, container: &str, spec: &str) -> Rc<Pod> {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{{metadata}}}\n\
         spec: {{containers: [{{name: c, image: i, {container}}}], {spec}}}\n"
    );
    let parsed = manifest::parse("p.yaml", text.as_bytes(), Validation::Strict, "node");
    parsed.unwrap_or_else(|error| panic!("{error}")).remove(0).pod
}
