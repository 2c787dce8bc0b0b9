//! Metadata: names, labels, annotations, owners and finalizers.

use serde_json::Value;

use super::super::board_annotations;
use super::super::ulimit::{self, ULIMIT};
use crate::object::cdi::{CDI_ANNOTATION, cdi_names};
use crate::object::check::{invalid, labels, not_negative};
use crate::object::field::{Errors, FieldError, Path, quoted};
use crate::object::rules;
use crate::object::value::{list, map, number, text};

/// Maximum size of the keys and values of all annotations in bytes.
const ANNOTATIONS: usize = 256 * 1024;

/// Maximum size of a file's name in bytes (`NAME_MAX`).
const FILE_NAME: usize = 255;

/// Length of a UID as Kubernetes generates it, which is assumed for shorter or missing ones.
const UID: usize = 36;

/// The prefix of annotations that name a container and its AppArmor profile.
pub(crate) const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The annotation that names the seccomp profile of a pod.
pub(crate) const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";

/// The prefix of annotations that name a container and its seccomp profile.
pub(crate) const SECCOMP_OF_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// The annotation of a mirror pod.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

pub(super) fn metadata(meta: &Value, path: &Path<'_>, errors: &mut Errors) {
    let prefix = text(meta, "generateName");
    if !prefix.is_empty() {
        // `maskTrailingDash`.
        let masked = match prefix.strip_suffix('-') {
            Some(rest) if !rest.is_empty() => {
                format!("{}a", &rest[..rest.floor_char_boundary(rest.len() - 1)])
            }
            Some(_) | None => prefix.to_owned(),
        };
        invalid(&path.child("generateName"), prefix, rules::dns_subdomain(&masked), errors);
    }
    let name = text(meta, "name");
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), "name or generateName is required"));
    } else {
        invalid(&path.child("name"), name, rules::dns_subdomain(name), errors);
    }
    let namespace = text(meta, "namespace");
    invalid(&path.child("namespace"), namespace, rules::dns_label(namespace), errors);
    let uid = text(meta, "uid").len().max(UID);
    let room = FILE_NAME.saturating_sub(namespace.len() + uid + 2);
    if name.len() > room && rules::dns_subdomain(name).is_empty() {
        let why = format!(
            "must have no more than {room} characters in this namespace: the directory of the pod's logs is \
             named NAMESPACE_NAME_UID"
        );
        invalid(&path.child("name"), name, vec![why], errors);
    }
    let generation = number(meta, "generation");
    if generation < 0 {
        errors.push(not_negative(&path.child("generation"), generation));
    }
    labels(&meta["labels"], &path.child("labels"), errors);
    let path_of = path.child("annotations");
    let mut size = 0;
    for (key, value) in map(&meta["annotations"]) {
        invalid(&path_of, key, rules::qualified_name(&key.to_ascii_lowercase()), errors);
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > ANNOTATIONS {
        errors.push(FieldError::too_long(&path_of, ANNOTATIONS));
    }
    for owner in list(meta, "ownerReferences") {
        // Kubernetes leaves the index out of these paths.
        owner_reference(owner, &path.child("ownerReferences"), errors);
    }
    let finalizers = || list(meta, "finalizers").iter().filter_map(Value::as_str);
    for finalizer in finalizers() {
        invalid(&path.child("finalizers"), finalizer, rules::qualified_name(finalizer), errors);
    }
    for (index, finalizer) in finalizers().enumerate() {
        if !finalizer.contains('/') && !["kubernetes", "orphan", "foregroundDeletion"].contains(&finalizer) {
            let path = path.child("finalizers");
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(&path.index(index), finalizer, detail));
        }
    }
    // Kubernetes makes uids itself. Ours may come from a file, and name directories.
    let uid = text(meta, "uid");
    if !uid.is_empty() {
        invalid(&path.child("uid"), uid, rules::dns_label(uid), errors);
    }
}

fn owner_reference(owner: &Value, path: &Path<'_>, errors: &mut Errors) {
    let version = text(owner, "apiVersion");
    if version.is_empty() || version.ends_with('/') || version.matches('/').count() > 1 {
        errors.push(FieldError::invalid(&path.child("apiVersion"), version, "version must not be empty"));
    }
    for field in ["kind", "name", "uid"] {
        if text(owner, field).is_empty() {
            errors.push(FieldError::invalid(&path.child(field), "", "must not be empty"));
        }
    }
}

/// `ValidatePodSpecificAnnotations`.
pub(super) fn annotations(pod: &Value, errors: &mut Errors) {
    const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
    let path = Path::root("metadata");
    let path = path.child("annotations");
    let annotations = &pod["metadata"]["annotations"];
    if let Some(cost) = annotations[COST].as_str()
        && (cost.parse::<i32>().is_err() || cost.starts_with('+') || cost.starts_with('0') && cost != "0")
    {
        errors.push(FieldError::invalid(&path.key(COST), cost, "must be a 32bit integer"));
    }
    board_annotations::check(pod, &path, errors);
    for (key, profile) in map(annotations) {
        let profile = profile.as_str().unwrap_or_default();
        if key.starts_with(CDI_ANNOTATION)
            && let Err(why) = cdi_names(profile)
        {
            errors.push(FieldError::invalid(&path.key(key), profile, why));
        }
        if key == ULIMIT {
            ulimit::check(profile, &path.key(key), errors);
        }
        if key == SECCOMP_OF_POD || key.starts_with(SECCOMP_OF_CONTAINER) {
            seccomp_annotation(profile, &path.child(key), errors);
        }
        if let Some(container) = key.strip_prefix(APPARMOR) {
            let fields = ["initContainers", "containers", "ephemeralContainers"];
            let mut all = fields.into_iter().flat_map(|field| list(&pod["spec"], field));
            if !all.any(|known| text(known, "name") == container) {
                errors.push(FieldError::invalid(&path.key(key), container, "container not found"));
            }
            if !["", "runtime/default", "unconfined"].contains(&profile) && !profile.starts_with("localhost/")
            {
                let detail = format!("invalid AppArmor profile name: {}", quoted(profile));
                errors.push(FieldError::invalid(&path.key(key), profile, detail));
            }
        }
    }
}

/// Checks that a client names the node of a mirror pod.
pub(crate) fn mirror(pod: &Value, errors: &mut Errors) {
    let path = Path::root("metadata");
    let path = path.child("annotations");
    if let Some(value) = pod["metadata"]["annotations"][MIRROR].as_str()
        && text(&pod["spec"], "nodeName").is_empty()
    {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        errors.push(FieldError::invalid(&path.key(MIRROR), value, detail));
    }
}

/// `ValidateSeccompProfile`.
fn seccomp_annotation(profile: &str, path: &Path<'_>, errors: &mut Errors) {
    if ["runtime/default", "docker/default", "unconfined"].contains(&profile) {
        return;
    }
    match profile.strip_prefix("localhost/") {
        Some(file) if file.starts_with('/') => {
            errors.push(FieldError::invalid(path, file, "must be a relative path"));
        }
        Some(file) if file.split('/').any(|part| part == "..") => {
            errors.push(FieldError::invalid(path, file, "must not contain '..'"));
        }
        Some(_) => {}
        None => errors.push(FieldError::invalid(path, profile, "must be a valid seccomp profile")),
    }
}
