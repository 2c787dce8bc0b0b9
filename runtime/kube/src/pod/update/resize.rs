//! Changes of amounts of cpu and memory of a pod, by the subresource `resize`.

use serde_json::{Map, Value};

use super::{Update, copy_field, invalid};
use crate::object::field::{Errors, FieldError, Path};
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
    let path = Path::root("spec");
    let mut errors = Errors::default();
    if let Some(class) = left_class {
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid(&path, class, detail));
    }
    pod_resources(&before["resources"], &after["resources"], &path, &mut errors);
    if container_order(before, after, &path, &mut errors) {
        return Update::Other(invalid(new, errors));
    }
    for field in ["initContainers", "containers"] {
        let containers = path.child(field);
        for (index, (old, new)) in list(before, field).iter().zip(list(after, field)).enumerate() {
            let own = containers.index(index);
            let (old, new) = (&old["resources"], &new["resources"]);
            removals(old, new, "resource", &own.child("resources"), &mut errors);
        }
    }
    let only = "only cpu and memory resources are mutable";
    for (old, new) in list(before, "containers").iter().zip(list(after, "containers")) {
        if without_amounts(old) != without_amounts(new) {
            errors.push(FieldError::forbidden(&path, only));
        }
    }
    let containers = path.child("initContainers");
    let pairs = list(before, "initContainers").iter().zip(list(after, "initContainers"));
    for (index, (old, new)) in pairs.enumerate() {
        let own = containers.index(index);
        if without_amounts(old) != without_amounts(new) {
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
    let fixed = |spec: &Value| {
        let mut fixed = without_amounts(spec);
        for field in ["containers", "initContainers"] {
            let containers = fixed.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten();
            containers.for_each(|container| *container = without_amounts(container));
        }
        fixed
    };
    if errors.is_empty() && fixed(before) != fixed(after) {
        errors.push(FieldError::forbidden(&path, only));
    }
    if !errors.is_empty() {
        return Update::Other(invalid(new, errors));
    }
    if before == after { Update::Nothing } else { Update::InPlace { spec: true } }
}

/// Checks a resize of the pod as a whole (`validatePodLevelResourcesResize`).
fn pod_resources(old: &Value, new: &Value, path: &Path<'_>, errors: &mut Errors) {
    if old.is_null() && new.is_null() {
        return;
    }
    let own = path.child("resources");
    if new.is_null() {
        return errors.push(FieldError::forbidden(&own, "pod-level resources cannot be removed"));
    }
    removals(old, new, "pod-level resource", &own, errors);
    if other_resources(old) != other_resources(new) {
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

/// Rejects the removal of an amount (`resourcesRemoved`).
fn removals(old: &Value, new: &Value, what: &str, path: &Path<'_>, errors: &mut Errors) {
    for of in ["requests", "limits"] {
        if map(&old[of]).any(|(name, _)| new[of].get(name).is_none()) {
            errors.push(FieldError::forbidden(&path.child(of), format!("{what} {of} cannot be removed")));
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
