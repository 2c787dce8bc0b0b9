//! Checks changes of an existing pod: changes of the spec in place, resizes, and changes of the status by clients.
//! `ValidatePodUpdate`, `ValidatePodResize` and `ValidatePodStatusUpdate` of Kubernetes, as far as they apply to a pod on
//! a board.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::object::check::Field;
use crate::object::error::ManifestError;
use crate::object::field::{Errors, Path};
use crate::object::rules;
use crate::object::value::{list, map, text};
use crate::pod::validate::affinity::REQUIRED;
use crate::pod::validate::{APPARMOR, MIRROR};

mod resize;
mod status;

pub use resize::{keep_all_but_resources, resize};
pub use status::{StatusUpdate, status};

/// The effect of an update of a pod's object.
#[derive(Debug)]
pub enum Update {
    /// The update changes nothing.
    Nothing,
    /// The same pod continues with the update.
    InPlace {
        /// Whether the spec changes, which `metadata.generation` counts.
        spec: bool,
    },
    /// The update is not possible for the same pod.
    Other(ManifestError),
}

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,\
    `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Checks that no scheduling gate was added.
///
/// # Errors
/// A gate was added: gates may only be removed.
pub fn no_new_gates(old: &Value, new: &Value) -> Result<(), ManifestError> {
    let mut errors = Errors::default();
    gates(&old["spec"], Field::root(&new["spec"], "spec", &mut errors));
    if errors.is_empty() { Ok(()) } else { Err(ManifestError::invalid(new, errors)) }
}

/// Fields of `metadata` that clients may change.
const MUTABLE_METADATA: [&str; 4] = ["annotations", "generateName", "labels", "ownerReferences"];

/// An admitted pod that a client changes: what `ValidatePodUpdate` compares the changed object with.
#[derive(Debug)]
pub struct Existing<'a> {
    admitted: &'a Value,
    /// The immutable fields of `metadata` that the client changed.
    errors: Errors,
}

impl Existing<'_> {
    /// Creates the comparison of `changed`, as a client sent it, with the object `shown` to clients and the object
    /// `admitted`, without a computed priority.
    pub fn new<'a>(shown: &Value, changed: &Value, admitted: &'a Value) -> Existing<'a> {
        Existing { admitted, errors: immutable(shown, changed) }
    }

    /// Adds the errors that concern the changes to `found`, those that `object` has in itself.
    pub(crate) fn check(self, object: &Value, found: Errors) -> Errors {
        let (of_object, more) = found.into_parts();
        let of_metadata = of_object.iter().take_while(|error| is_of_metadata(&error.path)).count();
        let mut errors = Errors::default();
        let mut of_object = of_object.into_iter();
        errors.extend(of_object.by_ref().take(of_metadata));
        errors.append(self.errors);
        errors.extend(of_object);
        errors.add_more(more);
        annotations(self.admitted, object, &mut errors);
        not_updatable(self.admitted, object, &mut errors);
        errors
    }
}

/// Whether an error with this path is of `validateCommonFields`, which come first.
fn is_of_metadata(path: &str) -> bool {
    path.starts_with("metadata.") && !path.starts_with("metadata.annotations[")
}

/// Checks the changes of `metadata` in an update (`BeforeUpdate`, `ValidateObjectMetaUpdate`,
/// `ValidatePodSpecificAnnotationUpdates`).
///
/// # Errors
/// The update changes an immutable field.
pub fn metadata(current: &Value, changed: &Value) -> Result<(), ManifestError> {
    let mut errors = immutable(current, changed);
    annotations(current, changed, &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(ManifestError::invalid(current, errors)) }
}

/// Returns the errors of immutable fields of `metadata`.
fn immutable(current: &Value, changed: &Value) -> Errors {
    let mut errors = Errors::default();
    let new = Field::root(&changed["metadata"], "metadata", &mut errors);
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        // A client may omit these fields of a pod that is being deleted.
        let new = new.child(field);
        if !new.value.is_null() && *new.value != current["metadata"][field] {
            new.invalid("field is immutable");
        }
    }
    errors
}

/// `ValidatePodSpecificAnnotationUpdates`.
fn annotations(current: &Value, changed: &Value, errors: &mut Errors) {
    let metadata = Field::root(&changed["metadata"], "metadata", errors);
    let new = metadata.child("annotations");
    let old = &current["metadata"]["annotations"];
    let guarded = |key: &str| match key {
        MIRROR => Some("mirror pod annotation"),
        _ => key.starts_with(APPARMOR).then_some("AppArmor annotations"),
    };
    for (key, value) in map(old) {
        if let Some(what) = guarded(key).filter(|_| new.value[key] != *value) {
            new.key(key).forbidden(format!("may not remove or update {what}"));
        }
    }
    for (key, added) in new.entries().filter(|(key, _)| old.get(key).is_none()) {
        if let Some(what) = guarded(key) {
            added.forbidden(format!("may not add {what}"));
        }
    }
}

/// Compares two admitted objects of one pod.
pub fn compare(old: &Value, new: &Value) -> Update {
    let mut errors = Errors::default();
    // A pod comes to a node when its last gate is removed.
    let mut placed = new.clone();
    copy_field(&mut placed["spec"], &old["spec"], "nodeName");
    not_updatable(old, &placed, &mut errors);
    if !errors.is_empty() {
        return Update::Other(ManifestError::invalid(new, errors));
    }
    let same = |field: &&str| old["metadata"].get(*field) == new["metadata"].get(*field);
    let spec = old["spec"] != new["spec"];
    if spec || !MUTABLE_METADATA.iter().all(same) { Update::InPlace { spec } } else { Update::Nothing }
}

/// Finds the changes of a spec that are not possible in place.
fn not_updatable(old: &Value, new: &Value, errors: &mut Errors) {
    let (before, after) = (&old["spec"], &new["spec"]);
    let spec = Field::root(after, "spec", errors);
    for field in ["containers", "initContainers"] {
        if list(before, field).len() != list(after, field).len() {
            return spec.child(field).forbidden("pod updates may not add or remove containers");
        }
    }
    if deadline(before, spec) {
        return;
    }
    tolerations(before, spec);
    gates(before, spec);
    let gated = !list(before, "schedulingGates").is_empty();
    let mut munged = after.clone();
    for field in ["schedulingGates", "tolerations", "activeDeadlineSeconds"] {
        copy_field(&mut munged, before, field);
    }
    if gated {
        selector(before, spec);
        affinity(before, spec);
        copy_field(&mut munged, before, "nodeSelector");
        keep_node_affinity(&mut munged, before);
    }
    for field in ["containers", "initContainers"] {
        let containers = munged.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, old) in containers.zip(list(before, field)) {
            copy_field(container, old, "image");
        }
    }
    let grace = "terminationGracePeriodSeconds";
    if before[grace].as_i64().is_some_and(|grace| grace < 0) && munged[grace] == 1 {
        copy_field(&mut munged, before, grace);
    }
    if munged != *before {
        let changes = changes(before, &munged, &spec.path);
        spec.forbidden(format!("pod updates may not change fields other than {UPDATABLE}\n{changes}"));
    }
}

/// Checks the deadline, which may be set, and may be made earlier. Returns whether nothing else is checked then.
fn deadline(before: &Value, spec: Field<'_, '_>) -> bool {
    let deadline = spec.child("activeDeadlineSeconds");
    let (old, new) = (before["activeDeadlineSeconds"].as_i64(), deadline.value.as_i64());
    let detail = match (old, new) {
        (Some(_), None) => "must not update from a positive integer to nil value".to_owned(),
        (old, Some(new)) => match rules::range(new, 0, i64::from(i32::MAX)) {
            Some(detail) => detail,
            None if old.is_some_and(|old| old < new) => {
                "must be less than or equal to previous value".to_owned()
            }
            None => return false,
        },
        (None, None) => return false,
    };
    deadline.invalid_json(detail);
    new.is_some()
}

/// Sets the field of `object` to its value in `from`, or removes it.
fn copy_field(object: &mut Value, from: &Value, field: &str) {
    let Some(map) = object.as_object_mut() else { return };
    match from.get(field) {
        Some(value) => drop(map.insert(field.to_owned(), value.clone())),
        None => drop(map.remove(field)),
    }
}

/// `validateOnlyDeletedSchedulingGates`.
fn gates(before: &Value, spec: Field<'_, '_>) {
    let known: BTreeSet<&str> =
        list(before, "schedulingGates").iter().map(|gate| text(gate, "name")).collect();
    for gate in spec.items("schedulingGates") {
        let name = gate.child("name");
        if !known.contains(name.text()) {
            let what = name.text();
            name.forbidden(format!("only deletion is allowed, but found new scheduling gate '{what}'"));
        }
    }
}

/// `validateOnlyAddedTolerations`.
fn tolerations(before: &Value, spec: Field<'_, '_>) {
    let without = |toleration: &Value| {
        let mut toleration = toleration.clone();
        toleration.as_object_mut().map(|map| map.remove("tolerationSeconds"));
        toleration.to_string()
    };
    let after: BTreeSet<String> = list(spec.value, "tolerations").iter().map(without).collect();
    if !list(before, "tolerations").iter().all(|old| after.contains(&without(old))) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        spec.child("tolerations").forbidden(detail);
    }
}

/// `validateNodeSelectorMutation`.
fn selector(before: &Value, spec: Field<'_, '_>) {
    let (new, empty) = (spec.child("nodeSelector"), json!({}));
    if map(&before["nodeSelector"]).any(|(key, value)| new.value[key] != *value) {
        let new = if new.value.is_null() { new.with(&empty) } else { new };
        new.invalid("only additions to spec.nodeSelector are allowed (no mutations or deletions)");
    }
}

/// `validateNodeAffinityMutation`.
fn affinity(before: &Value, spec: Field<'_, '_>) {
    let old = list(&before["affinity"]["nodeAffinity"][REQUIRED], "nodeSelectorTerms");
    let affinity = spec.child("affinity");
    let affinity = affinity.child("nodeAffinity");
    let required = affinity.child(REQUIRED);
    if old.is_empty() {
        return;
    }
    if old.len() != list(required.value, "nodeSelectorTerms").len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        return required.child("nodeSelectorTerms").invalid_json(detail);
    }
    for (old, new) in old.iter().zip(required.items("nodeSelectorTerms")) {
        if !only_additions(old, new.value) {
            new.invalid("only additions are allowed (no mutations or deletions)");
        }
    }
}

/// `validateNodeSelectorTermHasOnlyAdditions`.
fn only_additions(old: &Value, new: &Value) -> bool {
    let parts = ["matchExpressions", "matchFields"];
    let is_empty = |term: &Value| parts.iter().all(|part| list(term, part).is_empty());
    if is_empty(old) {
        return is_empty(new);
    }
    parts.iter().all(|part| list(new, part).starts_with(list(old, part)))
}

/// Restores the node affinity in `munged`, the only part of the affinity that may change.
fn keep_node_affinity(munged: &mut Value, before: &Value) {
    let mut affinity = munged.get("affinity").cloned().unwrap_or_else(|| json!({}));
    copy_field(&mut affinity, &before["affinity"], "nodeAffinity");
    if affinity == json!({}) && before.get("affinity").is_none() {
        copy_field(munged, before, "affinity");
    } else {
        munged["affinity"] = affinity;
    }
}

/// The changes as text: a line for each removed value, and one for each new value.
fn changes(before: &Value, after: &Value, path: &Path<'_>) -> String {
    let mut lines = Vec::new();
    difference(Some(before), Some(after), path, &mut lines);
    lines.truncate(32);
    lines.join("\n")
}

fn difference(before: Option<&Value>, after: Option<&Value>, path: &Path<'_>, lines: &mut Vec<String>) {
    match (before, after) {
        (before, after) if before == after => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            for key in before.keys().chain(after.keys().filter(|key| !before.contains_key(*key))) {
                difference(before.get(key), after.get(key), &path.child(key), lines);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) => {
            for index in 0..before.len().max(after.len()) {
                difference(before.get(index), after.get(index), &path.index(index), lines);
            }
        }
        (before, after) => {
            let line = |sign: char, value: &Value| {
                let mut text = value.to_string();
                text.truncate(text.floor_char_boundary(256));
                format!("{sign} {path}: {text}")
            };
            lines.extend(before.map(|value| line('-', value)));
            lines.extend(after.map(|value| line('+', value)));
        }
    }
}

#[cfg(test)]
mod tests;
