//! Changes of amounts of cpu and memory of a pod, by the subresource `resize`.

use serde_json::{Map, Value};

use super::{Update, copy_field};
use crate::object::check::Field;
use crate::object::error::ManifestError;
use crate::object::field::Errors;
use crate::object::value::{list, map, text};

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
    let mut errors = Errors::default();
    let spec = Field::root(after, "spec", &mut errors);
    if let Some(class) = left_class {
        spec.invalid_text(class, "Pod QOS Class may not change as a result of resizing");
    }
    pod_resources(&before["resources"], spec);
    if has_container_order(before, spec) {
        check_containers(before, spec);
    }
    if !errors.is_empty() {
        return Update::Other(ManifestError::invalid(new, errors));
    }
    if before == after { Update::Nothing } else { Update::InPlace { spec: true } }
}

/// Checks that nothing but the amounts of cpu and memory of the containers changes.
fn check_containers(before: &Value, spec: Field<'_, '_>) {
    for field in ["initContainers", "containers"] {
        for (old, new) in list(before, field).iter().zip(spec.items(field)) {
            removals(&old["resources"], new.child("resources"), "resource");
        }
    }
    let only = "only cpu and memory resources are mutable";
    for (old, new) in list(before, "containers").iter().zip(list(spec.value, "containers")) {
        if without_amounts(old) != without_amounts(new) {
            spec.forbidden(only);
        }
    }
    for (old, new) in list(before, "initContainers").iter().zip(spec.items("initContainers")) {
        if without_amounts(old) != without_amounts(new.value) {
            new.forbidden("only cpu and memory resources for init or sidecar containers are mutable");
        }
        let restarts = |policy: &Value| text(policy, "restartPolicy") == "RestartContainer";
        if new.value != old
            && text(new.value, "restartPolicy") != "Always"
            && list(new.value, "resizePolicy").iter().any(restarts)
        {
            let detail =
                "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
            new.forbidden(detail);
        }
    }
    let fixed = |spec: &Value| {
        let mut fixed = without_amounts(spec);
        for field in ["containers", "initContainers"] {
            let containers = fixed.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten();
            containers.for_each(|container| *container = without_amounts(container));
        }
        fixed
    };
    if spec.error_count() == 0 && fixed(before) != fixed(spec.value) {
        spec.forbidden(only);
    }
}

/// Checks a resize of the pod as a whole (`validatePodLevelResourcesResize`).
fn pod_resources(old: &Value, spec: Field<'_, '_>) {
    let new = spec.child("resources");
    if new.value.is_null() {
        if !old.is_null() {
            new.forbidden("pod-level resources cannot be removed");
        }
        return;
    }
    removals(old, new, "pod-level resource");
    if other_resources(old) != other_resources(new.value) {
        spec.forbidden("only cpu and memory resources are mutable at pod-level");
    }
}

/// Checks that a resize has the containers of the pod in their order (`validatePodResizeContainerOrdering`). Returns
/// whether it has.
fn has_container_order(before: &Value, spec: Field<'_, '_>) -> bool {
    let errors = spec.error_count();
    for field in ["containers", "initContainers"] {
        let old = list(before, field);
        if old.len() != list(spec.value, field).len() {
            spec.child(field).forbidden(format!("{field} may not be added or removed on resize"));
            continue;
        }
        for (old, new) in old.iter().zip(spec.items(field)) {
            if text(old, "name") != text(new.value, "name") {
                let detail = format!("{field} may not be renamed or reordered on resize");
                new.child("name").forbidden(detail);
            }
        }
    }
    spec.error_count() == errors
}

/// Rejects the removal of an amount (`resourcesRemoved`).
fn removals(old: &Value, new: Field<'_, '_>, what: &str) {
    for of in ["requests", "limits"] {
        let amounts = new.child(of);
        if map(&old[of]).any(|(name, _)| amounts.value.get(name).is_none()) {
            amounts.forbidden(format!("{what} {of} cannot be removed"));
        }
    }
}

/// A container or a spec without the amounts of cpu and memory in its `resources`, which a resize may change.
fn without_amounts(object: &Value) -> Value {
    let mut object = object.clone();
    object["resources"] = other_resources(&object["resources"]);
    object
}

/// The resources without the amounts of cpu and memory; null if there are no others.
fn other_resources(resources: &Value) -> Value {
    let is_empty = |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
    let mut others = resources.clone();
    for of in ["requests", "limits"] {
        if let Some(amounts) = others.get_mut(of).and_then(Value::as_object_mut) {
            amounts.retain(|name, _| name != "cpu" && name != "memory");
        }
        if is_empty(&others[of]) {
            others.as_object_mut().map(|others| others.remove(of));
        }
    }
    if is_empty(&others) { Value::Null } else { others }
}
