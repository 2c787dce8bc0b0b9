//! Validation of volumes whose files the agent writes.

use crate::object::check::no_back_steps;
use crate::object::field::{Errors, FieldError, Path};
use crate::object::value::{list, optional_number, text};
use nodlet_core::sorted::SortedSet;
use serde_json::{Value, json};

use super::container::{field_ref, resource_field_ref};

/// Field paths that a file may show (`validVolumeDownwardAPIFieldPathExpressions`), sorted.
const FIELD_PATHS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

/// `validateSecretVolumeSource` and `validateConfigMapVolumeSource`; `name` is the field that names the object.
pub(super) fn object(source: &Value, name: &str, path: &Path<'_>, errors: &mut Errors) {
    if text(source, name).is_empty() {
        errors.push(FieldError::required(&path.child(name), ""));
    }
    mode(source, "defaultMode", path, errors);
    items(source, path, None, errors);
}

/// `validateDownwardAPIVolumeSource`.
pub(super) fn downward_api(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    mode(source, "defaultMode", path, errors);
    for file in list(source, "items") {
        // Kubernetes leaves items and index out of these paths.
        self::file(file, path, errors);
    }
}

/// `validateProjectedVolumeSource`.
pub(super) fn projected(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    const SOURCES: [&str; 6] =
        ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"];
    mode(source, "defaultMode", path, errors);
    let mut paths = SortedSet::new();
    let field = path.child("sources");
    for (index, source) in list(source, "sources").iter().enumerate() {
        let at = field.index(index);
        for name in ["secret", "configMap"] {
            let Some(object) = source.get(name) else { continue };
            let at = at.child(name);
            if text(object, "name").is_empty() {
                errors.push(FieldError::required(&at.child("name"), ""));
            }
            items(object, &at, Some((path, &mut paths)), errors);
        }
        if let Some(downward) = source.get("downwardAPI") {
            for file in list(downward, "items") {
                self::file(file, &at.child("downwardAPI"), errors);
                let place = text(file, "path");
                if !place.is_empty() && !paths.insert(place) {
                    errors.push(FieldError::invalid(path, place, CONFLICT));
                }
            }
        }
        if SOURCES.iter().filter(|name| source.get(**name).is_some()).count() > 1 {
            errors.push(FieldError::forbidden(&at, "may not specify more than 1 volume type per source"));
        }
    }
}

const CONFLICT: &str = "conflicting duplicate paths";

/// `validateKeyToPath` for each item. No two sources of a projected volume, which has a path and a set of paths, may
/// have the same path.
fn items<'a>(
    source: &'a Value,
    path: &Path<'_>,
    mut projected: Option<(&Path<'_>, &mut SortedSet<&'a str>)>,
    errors: &mut Errors,
) {
    let path = path.child("items");
    for (index, item) in list(source, "items").iter().enumerate() {
        let path = path.index(index);
        let file = text(item, "path");
        for field in ["key", "path"] {
            if text(item, field).is_empty() {
                errors.push(FieldError::required(&path.child(field), ""));
            }
        }
        local_path(file, &path.child("path"), errors);
        mode(item, "mode", &path, errors);
        if let Some((of_volume, paths)) = &mut projected
            && !file.is_empty()
            && !paths.insert(file)
        {
            errors.push(FieldError::invalid(of_volume, text(source, "name"), CONFLICT));
        }
    }
}

/// `validateDownwardAPIVolumeFile`.
fn file(file: &Value, path: &Path<'_>, errors: &mut Errors) {
    let place = text(file, "path");
    if place.is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
    }
    local_path(place, &path.child("path"), errors);
    match (file.get("fieldRef"), file.get("resourceFieldRef")) {
        (Some(field), resource) => {
            field_ref(field, &FIELD_PATHS, &path.child("fieldRef"), errors);
            if resource.is_some() {
                errors.push(FieldError::invalid(
                    path,
                    "resource",
                    "fieldRef and resourceFieldRef can not be specified simultaneously",
                ));
            }
        }
        (None, Some(field)) => resource_field_ref(field, true, &path.child("resourceFieldRef"), errors),
        (None, None) => {
            errors.push(FieldError::required(path, "one of fieldRef and resourceFieldRef is required"));
        }
    }
    mode(file, "mode", path, errors);
}

/// `ValidateLocalNonReservedPath`.
fn local_path(place: &str, path: &Path<'_>, errors: &mut Errors) {
    if place.starts_with('/') {
        errors.push(FieldError::invalid(path, place, "must be a relative path"));
    }
    no_back_steps(place, path, errors);
    if place.starts_with("..") && !place.starts_with("../") {
        errors.push(FieldError::invalid(path, place, "must not start with '..'"));
    }
}

fn mode(owner: &Value, field: &str, path: &Path<'_>, errors: &mut Errors) {
    if let Some(mode) = optional_number(owner, field)
        && !(0..=0o777).contains(&mode)
    {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid_value(&path.child(field), &json!(mode), detail));
    }
}
