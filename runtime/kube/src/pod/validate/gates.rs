//! Readiness gates and scheduling gates.

use nodlet_core::sorted::SortedSet;

use crate::object::check::Field;
use crate::object::rules;
use crate::object::value::{list, text};

pub(super) fn all(spec: Field<'_, '_>) {
    for gate in spec.items("readinessGates") {
        gate.child("conditionType").check(rules::qualified_name);
    }
    let mut seen = SortedSet::new();
    for gate in spec.items("schedulingGates") {
        // Kubernetes omits the field in these paths.
        let name = gate.with(&gate.value["name"]);
        name.check(rules::qualified_name);
        name.unique(&mut seen);
    }
}

/// Checks that a new pod with scheduling gates has no node.
pub(super) fn of_new(spec: Field<'_, '_>) {
    if !list(spec.value, "schedulingGates").is_empty() && !text(spec.value, "nodeName").is_empty() {
        spec.child("nodeName").forbidden("cannot be set until all schedulingGates have been cleared");
    }
}
