//! Validation of volumes whose files the agent writes.

use nodlet_core::sorted::SortedSet;

use super::container::{field_ref, resource_field_ref};
use crate::object::check::Field;
use crate::object::value::{list, text};

/// Field paths that a file may show (`validVolumeDownwardAPIFieldPathExpressions`), sorted.
const FIELD_PATHS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

/// `validateSecretVolumeSource` and `validateConfigMapVolumeSource`; `name` is the field that names the object.
pub(super) fn object(source: Field<'_, '_>, name: &str) {
    source.child(name).require();
    mode(source.child("defaultMode"));
    items(source, None);
}

/// `validateDownwardAPIVolumeSource`.
pub(super) fn downward_api(source: Field<'_, '_>) {
    mode(source.child("defaultMode"));
    for file in list(source.value, "items") {
        // Kubernetes leaves items and index out of these paths.
        self::file(source.with(file));
    }
}

/// `validateProjectedVolumeSource`.
pub(super) fn projected(volume: Field<'_, '_>) {
    const SOURCES: [&str; 6] =
        ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"];
    mode(volume.child("defaultMode"));
    let mut paths = SortedSet::new();
    for source in volume.items("sources") {
        for object in ["secret", "configMap"].into_iter().filter_map(|name| source.get(name)) {
            object.child("name").require();
            items(object, Some((volume, &mut paths)));
        }
        let downward = source.child("downwardAPI");
        for file in list(downward.value, "items") {
            self::file(downward.with(file));
            let place = text(file, "path");
            if !place.is_empty() && !paths.insert(place) {
                volume.invalid_text(place, CONFLICT);
            }
        }
        if SOURCES.iter().filter(|name| source.get(name).is_some()).count() > 1 {
            source.forbidden("may not specify more than 1 volume type per source");
        }
    }
}

const CONFLICT: &str = "conflicting duplicate paths";

/// `validateKeyToPath` for each item. No two sources of a projected volume, which comes with a set of paths, may have the
/// same path.
fn items<'v>(source: Field<'v, '_>, mut projected: Option<(Field<'_, '_>, &mut SortedSet<&'v str>)>) {
    for item in source.items("items") {
        let path = item.child("path");
        item.child("key").require();
        path.require();
        local_path(path);
        mode(item.child("mode"));
        if let Some((volume, paths)) = &mut projected
            && !path.text().is_empty()
            && !paths.insert(path.text())
        {
            volume.invalid_text(text(source.value, "name"), CONFLICT);
        }
    }
}

/// `validateDownwardAPIVolumeFile`.
fn file(file: Field<'_, '_>) {
    file.child("path").require();
    local_path(file.child("path"));
    match (file.get("fieldRef"), file.get("resourceFieldRef")) {
        (Some(field), resource) => {
            field_ref(field, &FIELD_PATHS);
            if resource.is_some() {
                let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
                file.invalid_text("resource", why);
            }
        }
        (None, Some(field)) => resource_field_ref(field, true),
        (None, None) => file.required("one of fieldRef and resourceFieldRef is required"),
    }
    mode(file.child("mode"));
}

/// `ValidateLocalNonReservedPath`.
fn local_path(path: Field<'_, '_>) {
    path.relative_path();
    if path.text().starts_with("..") && !path.text().starts_with("../") {
        path.invalid("must not start with '..'");
    }
}

fn mode(mode: Field<'_, '_>) {
    if mode.value.as_i64().is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        mode.invalid("must be a number between 0 and 0777 (octal), both inclusive");
    }
}
