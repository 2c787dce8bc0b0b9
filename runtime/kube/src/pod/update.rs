//! Checks changes of an existing pod: changes of the spec in place, and changes of the status by clients.
//! `ValidatePodUpdate` and `ValidatePodStatusUpdate` of Kubernetes, as far as they apply to a pod on a board.

use serde_json::{Map, Value, json};

use crate::object::error::{ManifestCause, ManifestError};
use crate::object::field::{Errors, FieldError, Path, cut, quoted};
use crate::object::value::{list, text};
use crate::object::{rules, walk};
use crate::pod::validate::{APPARMOR, MIRROR};
use crate::schema;
use nodlet_core::facts::{ClientCondition, MAX_CLIENT_CONDITION_BYTES, MAX_CLIENT_CONDITIONS, is_node_owned};
use nodlet_core::time::Timestamp;

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

/// The error for a status field that only the node may change.
const OWNED_BY_NODE: &str = "is set by the node: clients can set only conditions that the node does not set";

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,\
    `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

fn invalid(object: &Value, errors: Errors) -> ManifestError {
    let (errors, more) = errors.into_parts();
    let name = text(&object["metadata"], "name").to_owned();
    ManifestError::new(ManifestCause::Invalid { name, errors, more })
}

/// Checks that no scheduling gate was added.
///
/// # Errors
/// A gate was added: gates may only be removed.
pub fn no_new_gates(old: &Value, new: &Value) -> Result<(), ManifestError> {
    let mut errors = Errors::default();
    gates(&old["spec"], &new["spec"], &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(invalid(new, errors)) }
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
    if errors.is_empty() { Ok(()) } else { Err(invalid(current, errors)) }
}

/// Returns the errors of immutable fields of `metadata`.
fn immutable(current: &Value, changed: &Value) -> Errors {
    let mut errors = Errors::default();
    let root = Path::root("metadata");
    let (old, new) = (&current["metadata"], &changed["metadata"]);
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        // A client may omit these fields of a pod that is being deleted.
        let is_kept = new[field].is_null() || new[field] == old[field];
        if !is_kept {
            errors.push(FieldError::invalid_value(&root.child(field), &new[field], "field is immutable"));
        }
    }
    errors
}

/// `ValidatePodSpecificAnnotationUpdates`.
fn annotations(current: &Value, changed: &Value, errors: &mut Errors) {
    let path = Path::root("metadata");
    let path = path.child("annotations");
    let of = |object: &Value| object["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    let (old, new) = (of(current), of(changed));
    let guarded = |key: &str| match key {
        MIRROR => Some("mirror pod annotation"),
        _ => key.starts_with(APPARMOR).then_some("AppArmor annotations"),
    };
    for (key, value) in &old {
        if let Some(what) = guarded(key).filter(|_| new.get(key) != Some(value)) {
            errors.push(FieldError::forbidden(&path.key(key), format!("may not remove or update {what}")));
        }
    }
    for key in new.keys().filter(|key| !old.contains_key(*key)) {
        if let Some(what) = guarded(key) {
            errors.push(FieldError::forbidden(&path.key(key), format!("may not add {what}")));
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
        return Update::Other(invalid(new, errors));
    }
    let same = |field: &&str| old["metadata"].get(*field) == new["metadata"].get(*field);
    let spec = old["spec"] != new["spec"];
    if spec || !MUTABLE_METADATA.iter().all(same) { Update::InPlace { spec } } else { Update::Nothing }
}

/// Finds the changes of a spec that are not possible in place.
fn not_updatable(old: &Value, new: &Value, errors: &mut Errors) {
    let (before, after) = (&old["spec"], &new["spec"]);
    let path = Path::root("spec");
    for field in ["containers", "initContainers"] {
        if list(before, field).len() != list(after, field).len() {
            let detail = "pod updates may not add or remove containers";
            return errors.push(FieldError::forbidden(&path.child(field), detail));
        }
    }
    if deadline(before, after, &path, errors) {
        return;
    }
    tolerations(before, after, &path, errors);
    gates(before, after, errors);
    let gated = !list(before, "schedulingGates").is_empty();
    let mut munged = after.clone();
    for field in ["schedulingGates", "tolerations", "activeDeadlineSeconds"] {
        copy_field(&mut munged, before, field);
    }
    if gated {
        selector(before, after, &path, errors);
        affinity(before, after, &path, errors);
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
        let changes = changes(before, &munged, &path);
        let detail = format!("pod updates may not change fields other than {UPDATABLE}\n{changes}");
        errors.push(FieldError::forbidden(&path, detail));
    }
}

/// Makes `changed` differ from `current` in nothing but the resources and `resizePolicy` of containers, and the
/// resources of the pod as a whole (`dropNonResizeUpdates`). Containers that were added, removed or renamed stay, and
/// are rejected later.
pub fn keep_all_but_resources(current: &Value, changed: &mut Value) {
    let mut kept = current.clone();
    copy_field(&mut kept["spec"], &changed["spec"], "resources");
    for field in ["containers", "initContainers"] {
        let names = |object: &Value| -> Vec<String> {
            list(&object["spec"], field).iter().map(|one| text(one, "name").to_owned()).collect()
        };
        if names(current) != names(changed) {
            copy_field(&mut kept["spec"], &changed["spec"], field);
            continue;
        }
        let containers = kept["spec"].get_mut(field).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, new) in containers.zip(list(&changed["spec"], field)) {
            copy_field(container, new, "resources");
            copy_field(container, new, "resizePolicy");
        }
    }
    *changed = kept;
}

/// Compares two admitted objects of one pod that may differ in amounts of cpu and memory (`ValidatePodResize`).
/// `left_class` is the QoS class of `old`, if `new` has another one.
pub fn resize(old: &Value, new: &Value, left_class: Option<&str>) -> Update {
    let (before, after) = (&old["spec"], &new["spec"]);
    let path = Path::root("spec");
    let mut errors = Errors::default();
    if let Some(class) = left_class {
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid(&path, class, detail));
    }
    let mut munged = after.clone();
    pod_resources(before, after, &mut munged, &path, &mut errors);
    if container_order(before, after, &path, &mut errors) {
        return Update::Other(invalid(new, errors));
    }
    for field in ["initContainers", "containers"] {
        for (index, (old, new)) in list(before, field).iter().zip(list(after, field)).enumerate() {
            let own = path.child(field);
            let own = own.index(index);
            let own = own.child("resources");
            for (of, detail) in [
                ("requests", "resource requests cannot be removed"),
                ("limits", "resource limits cannot be removed"),
            ] {
                if removes(&old["resources"][of], &new["resources"][of]) {
                    errors.push(FieldError::forbidden(&own.child(of), detail));
                }
            }
        }
    }
    for (index, old) in list(before, "containers").iter().enumerate() {
        let kept = &mut munged["containers"][index];
        keep_amounts(kept, old);
        if kept != old {
            errors.push(FieldError::forbidden(&path, "only cpu and memory resources are mutable"));
        }
    }
    let pairs = list(before, "initContainers").iter().zip(list(after, "initContainers"));
    for (index, (old, new)) in pairs.enumerate() {
        let own = path.child("initContainers");
        let own = own.index(index);
        let kept = &mut munged["initContainers"][index];
        keep_amounts(kept, old);
        if kept != old {
            let detail = "only cpu and memory resources for init or sidecar containers are mutable";
            errors.push(FieldError::forbidden(&own, detail));
        }
        let restarts = |policy: &Value| text(policy, "restartPolicy") == "RestartContainer";
        if new != old
            && text(new, "restartPolicy") != "Always"
            && list(new, "resizePolicy").iter().any(restarts)
        {
            let detail =
                "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
            errors.push(FieldError::forbidden(&own, detail));
        }
    }
    if errors.is_empty() && munged != *before {
        errors.push(FieldError::forbidden(&path, "only cpu and memory resources are mutable"));
    }
    match errors.is_empty() {
        false => Update::Other(invalid(new, errors)),
        true if before == after => Update::Nothing,
        true => Update::InPlace { spec: true },
    }
}

/// Checks a resize of the pod as a whole, and makes `munged` differ from `before` in nothing that it may change
/// (`validatePodLevelResourcesResize`).
fn pod_resources(before: &Value, after: &Value, munged: &mut Value, path: &Path<'_>, errors: &mut Errors) {
    let (old, new) = (&before["resources"], &after["resources"]);
    if old.is_null() && new.is_null() {
        return;
    }
    let own = path.child("resources");
    if new.is_null() {
        return errors.push(FieldError::forbidden(&own, "pod-level resources cannot be removed"));
    }
    for (of, detail) in [
        ("requests", "pod-level resource requests cannot be removed"),
        ("limits", "pod-level resource limits cannot be removed"),
    ] {
        if removes(&old[of], &new[of]) {
            errors.push(FieldError::forbidden(&own.child(of), detail));
        }
    }
    keep_amounts(munged, before);
    if munged.get("resources") != before.get("resources") {
        errors.push(FieldError::forbidden(path, "only cpu and memory resources are mutable at pod-level"));
    }
}

/// Checks that a resize has the containers of the pod in their order (`validatePodResizeContainerOrdering`). Returns
/// whether it has not.
fn container_order(before: &Value, after: &Value, path: &Path<'_>, errors: &mut Errors) -> bool {
    let mut differs = false;
    let mut forbid = |path: &Path<'_>, detail: String| {
        errors.push(FieldError::forbidden(path, detail));
        differs = true;
    };
    for field in ["containers", "initContainers"] {
        let (old, new) = (list(before, field), list(after, field));
        let containers = path.child(field);
        if old.len() != new.len() {
            forbid(&containers, format!("{field} may not be added or removed on resize"));
            continue;
        }
        for (index, (old, new)) in old.iter().zip(new).enumerate() {
            if text(old, "name") != text(new, "name") {
                let own = containers.index(index);
                forbid(&own.child("name"), format!("{field} may not be renamed or reordered on resize"));
            }
        }
    }
    differs
}

/// Whether a list of amounts lacks one that it had (`resourcesRemoved`).
fn removes(old: &Value, new: &Value) -> bool {
    old.as_object().is_some_and(|old| old.keys().any(|name| new.get(name).is_none()))
}

/// Sets the amounts of cpu and memory in `resources` of `object` to those in `from`.
fn keep_amounts(object: &mut Value, from: &Value) {
    for of in ["requests", "limits"] {
        let old = from["resources"].get(of).cloned().unwrap_or_default();
        if !object["resources"].is_object() {
            if old.is_null() {
                continue;
            }
            object["resources"] = json!({});
        }
        let resources = &mut object["resources"];
        if !resources[of].is_object() {
            resources[of] = json!({});
        }
        for resource in ["cpu", "memory"] {
            copy_field(&mut resources[of], &old, resource);
        }
        if resources[of].as_object().is_some_and(Map::is_empty) && old.is_null() {
            resources.as_object_mut().map(|map| map.remove(of));
        }
    }
    let is_empty = object["resources"].as_object().is_some_and(Map::is_empty);
    if is_empty || object["resources"].is_null() {
        copy_field(object, from, "resources");
    }
}

/// Checks the deadline, which may be set, and may be made earlier. Returns whether nothing else is checked then.
fn deadline(before: &Value, after: &Value, path: &Path<'_>, errors: &mut Errors) -> bool {
    let field = "activeDeadlineSeconds";
    let (old, new) = (before[field].as_i64(), after[field].as_i64());
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
    errors.push(FieldError::invalid_value(&path.child(field), &after[field], detail));
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
fn gates(before: &Value, after: &Value, errors: &mut Errors) {
    let known = |name: &str| list(before, "schedulingGates").iter().any(|gate| text(gate, "name") == name);
    let path = Path::root("spec");
    let path = path.child("schedulingGates");
    for (index, gate) in list(after, "schedulingGates").iter().enumerate() {
        let name = text(gate, "name");
        if !known(name) {
            let path = path.index(index);
            let detail = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            errors.push(FieldError::forbidden(&path.child("name"), detail));
        }
    }
}

/// `validateOnlyAddedTolerations`.
fn tolerations(before: &Value, after: &Value, path: &Path<'_>, errors: &mut Errors) {
    let without = |toleration: &Value| {
        let mut toleration = toleration.clone();
        toleration.as_object_mut().map(|map| map.remove("tolerationSeconds"));
        toleration
    };
    let after: Vec<Value> = list(after, "tolerations").iter().map(without).collect();
    if !list(before, "tolerations").iter().all(|old| after.contains(&without(old))) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden(&path.child("tolerations"), detail));
    }
}

/// `validateNodeSelectorMutation`.
fn selector(before: &Value, after: &Value, path: &Path<'_>, errors: &mut Errors) {
    let old = before.get("nodeSelector").and_then(Value::as_object);
    let new = after.get("nodeSelector").cloned().unwrap_or_else(|| json!({}));
    if old.into_iter().flatten().any(|(key, value)| new.get(key) != Some(value)) {
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errors.push(FieldError::invalid_value(&path.child("nodeSelector"), &new, detail));
    }
}

/// `validateNodeAffinityMutation`.
fn affinity(before: &Value, after: &Value, path: &Path<'_>, errors: &mut Errors) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let terms =
        |spec: &Value| -> Value { spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"].clone() };
    let (old, new) = (terms(before), terms(after));
    let of = |terms: &Value| terms.as_array().cloned().unwrap_or_default();
    let (old_terms, new_terms) = (of(&old), of(&new));
    if old_terms.is_empty() {
        return;
    }
    let path = path.child("affinity");
    let path = path.child("nodeAffinity");
    let path = path.child(REQUIRED);
    let path = path.child("nodeSelectorTerms");
    if old_terms.len() != new_terms.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.push(FieldError::invalid_value(&path, &new, detail));
        return;
    }
    for (index, (old, new)) in old_terms.iter().zip(&new_terms).enumerate() {
        if !only_additions(old, new) {
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.push(FieldError::invalid_value(&path.index(index), new, detail));
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
    let old = before["affinity"].get("nodeAffinity").cloned();
    let mut affinity = munged.get("affinity").cloned().unwrap_or_else(|| json!({}));
    copy_field(&mut affinity, &json!({ "nodeAffinity": old }), "nodeAffinity");
    if let (None, Some(map)) = (&old, affinity.as_object_mut()) {
        map.remove("nodeAffinity");
    }
    let is_empty = affinity.as_object().is_some_and(Map::is_empty);
    if is_empty && before.get("affinity").is_none() {
        copy_field(munged, before, "affinity");
    } else if let Some(map) = munged.as_object_mut() {
        map.insert("affinity".to_owned(), affinity);
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

/// The result of a status update by a client: the client-set conditions, and the warnings.
#[derive(Debug)]
pub struct StatusUpdate {
    /// All conditions that the node does not own.
    pub client_conditions: Vec<ClientCondition>,
    /// Warnings about fields that no status has.
    pub warnings: Vec<String>,
}

/// Checks a new status against the present one. Fields that the node owns may be omitted, since the node sets
/// them again.
///
/// # Errors
/// The new status contradicts the node, or is invalid.
pub fn status(old: &Value, new: &Value) -> Result<StatusUpdate, ManifestError> {
    let mut object = json!({ "status": new.get("status").cloned().unwrap_or_else(|| json!({})) });
    let times = list(&new["status"], "conditions").iter();
    let mut times =
        times.flat_map(|condition| [&condition["lastProbeTime"], &condition["lastTransitionTime"]]);
    if let Some(wrong) = times.find_map(|time| time.as_str().filter(|time| !Timestamp::is_time(time))) {
        return Err(ManifestError::of_kind(format!(
            "Pod in version \"v1\" cannot be handled as a Pod: parsing time {} as \"2006-01-02T15:04:05Z07:00\": it is \
             no time as in RFC 3339",
            quoted(&cut(wrong.to_owned()))
        )));
    }
    let findings = match schema::find("Pod") {
        Some(pod) => walk::check(&mut object, pod),
        None => walk::Findings::default(),
    };
    let warnings = findings.unknown.texts(ToString::to_string);
    if !findings.errors.is_empty() {
        return Err(invalid(old, findings.errors));
    }
    let mut before = json!({ "status": old["status"] });
    if let Some(pod) = schema::find("Pod") {
        walk::check(&mut before, pod);
    }
    let mut errors = Errors::default();
    let path = Path::root("status");
    let status = object["status"].as_object().cloned().unwrap_or_default();
    for (field, value) in &status {
        if field != "conditions" && before["status"].get(field) != Some(value) {
            errors.push(FieldError::forbidden(&path.child(field), OWNED_BY_NODE));
        }
    }
    let path = path.child("conditions");
    let client_conditions = conditions(
        list(&before["status"], "conditions"),
        list(&object["status"], "conditions"),
        &path,
        &mut errors,
    );
    if errors.is_empty() {
        Ok(StatusUpdate { client_conditions, warnings })
    } else {
        Err(invalid(old, errors))
    }
}

fn conditions(
    before: &[Value],
    after: &[Value],
    path: &Path<'_>,
    errors: &mut Errors,
) -> Vec<ClientCondition> {
    let mut client_conditions: Vec<ClientCondition> = Vec::new();
    let mut own: Vec<&str> = Vec::new();
    for (index, condition) in after.iter().enumerate() {
        let path = path.index(index);
        let (kind, status) = (text(condition, "type"), text(condition, "status"));
        if own.contains(&kind) || client_conditions.iter().any(|known| known.kind == kind) {
            errors.push(FieldError::duplicate(&path.child("type"), kind));
            continue;
        }
        if is_node_owned(kind) {
            own.push(kind);
            if !before.contains(condition) {
                errors.push(FieldError::forbidden(&path, format!("{} {OWNED_BY_NODE}", quoted(kind))));
            }
            continue;
        }
        for detail in rules::qualified_name(kind) {
            errors.push(FieldError::invalid(&path.child("Type"), kind, detail));
        }
        if !["True", "False", "Unknown"].contains(&status) {
            errors.push(FieldError::not_supported(
                &path.child("status"),
                status,
                &["False", "True", "Unknown"],
            ));
        }
        let generation = condition["observedGeneration"].as_i64();
        if let Some(negative) = generation.filter(|generation| *generation < 0) {
            let detail = "must be a non-negative integer";
            errors.push(FieldError::invalid_value(
                &path.child("observedGeneration"),
                &negative.into(),
                detail,
            ));
        }
        let time = |field: &str| condition[field].as_str().map(str::to_owned);
        client_conditions.push(ClientCondition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: text(condition, "reason").to_owned(),
            message: text(condition, "message").to_owned(),
            last_probe_time: time("lastProbeTime"),
            last_transition_time: time("lastTransitionTime"),
            observed_generation: generation.filter(|generation| *generation != 0),
        });
    }
    if client_conditions.len() > MAX_CLIENT_CONDITIONS {
        errors.push(FieldError::too_many(path, client_conditions.len(), MAX_CLIENT_CONDITIONS));
    } else if client_conditions.iter().map(ClientCondition::bytes).sum::<usize>() > MAX_CLIENT_CONDITION_BYTES
    {
        errors.push(FieldError::too_long(path, MAX_CLIENT_CONDITION_BYTES));
    }
    client_conditions
}

#[cfg(test)]
mod tests;
