//! Readiness gates and scheduling gates.

use crate::object::check::invalid;
use crate::object::rules;
use crate::object::value::{list, text};
use nodlet_core::sorted::SortedSet;
use serde_json::Value;

use crate::object::field::{Errors, FieldError, Path};

pub(super) fn all(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let readiness = path.child("readinessGates");
    for (index, gate) in list(spec, "readinessGates").iter().enumerate() {
        let kind = text(gate, "conditionType");
        let path = readiness.index(index);
        invalid(&path.child("conditionType"), kind, rules::qualified_name(kind), errors);
    }
    let scheduling = path.child("schedulingGates");
    let mut seen = SortedSet::new();
    for (index, gate) in list(spec, "schedulingGates").iter().enumerate() {
        let name = text(gate, "name");
        invalid(&scheduling.index(index), name, rules::qualified_name(name), errors);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&scheduling.index(index), name));
        }
    }
}

/// Checks that a new pod with scheduling gates has no node.
pub(super) fn of_new(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    if !list(spec, "schedulingGates").is_empty() && !text(spec, "nodeName").is_empty() {
        let detail = "cannot be set until all schedulingGates have been cleared";
        errors.push(FieldError::forbidden(&path.child("nodeName"), detail));
    }
}
