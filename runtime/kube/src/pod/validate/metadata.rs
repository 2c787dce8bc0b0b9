//! Metadata: names, labels, annotations, owners and finalizers.

use serde_json::Value;

use super::super::board_annotations;
use super::super::ulimit::{self, ULIMIT};
use crate::object::cdi::{CDI_ANNOTATION, cdi_names};
use crate::object::check::Field;
use crate::object::field::{Errors, quoted};
use crate::object::rules;
use crate::object::value::{list, map, text};

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

pub(super) fn metadata(meta: Field<'_, '_>) {
    let prefix = meta.child("generateName");
    prefix.check_optional(|prefix| {
        // `maskTrailingDash`.
        rules::dns_subdomain(&match prefix.strip_suffix('-') {
            Some(rest) if !rest.is_empty() => {
                format!("{}a", &rest[..rest.floor_char_boundary(rest.len() - 1)])
            }
            Some(_) | None => prefix.to_owned(),
        })
    });
    let (name, namespace, uid) = (meta.child("name"), meta.child("namespace"), meta.child("uid"));
    if name.text().is_empty() {
        name.required("name or generateName is required");
    } else {
        name.check(rules::dns_subdomain);
    }
    namespace.check(rules::dns_label);
    let uid_length = uid.text().len().max(UID);
    let room = FILE_NAME.saturating_sub(namespace.text().len() + uid_length + 2);
    if name.text().len() > room && rules::dns_subdomain(name.text()).is_empty() {
        name.invalid(format!(
            "must have no more than {room} characters in this namespace: the directory of the pod's logs is \
             named NAMESPACE_NAME_UID"
        ));
    }
    meta.child("generation").not_negative();
    meta.child("labels").labels();
    let annotations = meta.child("annotations");
    let mut size = 0;
    for (key, value) in map(annotations.value) {
        annotations.check_text(key, |key| rules::qualified_name(&key.to_ascii_lowercase()));
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > ANNOTATIONS {
        annotations.too_long(ANNOTATIONS);
    }
    for owner in list(meta.value, "ownerReferences") {
        // Kubernetes leaves the index out of these paths.
        owner_reference(meta.child("ownerReferences").with(owner));
    }
    for finalizer in list(meta.value, "finalizers") {
        meta.child("finalizers").with(finalizer).check(rules::qualified_name);
    }
    for finalizer in meta.items("finalizers") {
        let known = ["kubernetes", "orphan", "foregroundDeletion"];
        if !finalizer.text().contains('/') && !known.contains(&finalizer.text()) {
            finalizer.invalid("name is neither a standard finalizer name nor is it fully qualified");
        }
    }
    // Kubernetes makes uids itself. Ours may come from a file, and name directories.
    uid.check_optional(rules::dns_label);
}

fn owner_reference(owner: Field<'_, '_>) {
    let version = owner.child("apiVersion");
    let text = version.text();
    if text.is_empty() || text.ends_with('/') || text.matches('/').count() > 1 {
        version.invalid("version must not be empty");
    }
    for field in ["kind", "name", "uid"] {
        if owner.child(field).text().is_empty() {
            owner.child(field).invalid("must not be empty");
        }
    }
}

/// `ValidatePodSpecificAnnotations`.
pub(super) fn annotations(pod: &Value, annotations: Field<'_, '_>) {
    let cost = annotations.key("controller.kubernetes.io/pod-deletion-cost");
    if let Some(text) = cost.value.as_str()
        && (text.parse::<i32>().is_err() || text.starts_with('+') || text.starts_with('0') && text != "0")
    {
        cost.invalid("must be a 32bit integer");
    }
    board_annotations::check(pod, annotations);
    for (key, annotation) in annotations.entries() {
        let profile = annotation.text();
        if key.starts_with(CDI_ANNOTATION)
            && let Err(why) = cdi_names(profile)
        {
            annotation.invalid(why);
        }
        if key == ULIMIT {
            ulimit::check(annotation);
        }
        if key == SECCOMP_OF_POD || key.starts_with(SECCOMP_OF_CONTAINER) {
            seccomp_annotation(annotations.child(key));
        }
        if let Some(container) = key.strip_prefix(APPARMOR) {
            let fields = ["initContainers", "containers", "ephemeralContainers"];
            let mut all = fields.into_iter().flat_map(|field| list(&pod["spec"], field));
            if !all.any(|known| text(known, "name") == container) {
                annotation.invalid_text(container, "container not found");
            }
            if !["", "runtime/default", "unconfined"].contains(&profile) && !profile.starts_with("localhost/")
            {
                annotation.invalid(format!("invalid AppArmor profile name: {}", quoted(profile)));
            }
        }
    }
}

/// Checks that a client names the node of a mirror pod.
pub(crate) fn mirror(pod: &Value, errors: &mut Errors) {
    let metadata = Field::root(&pod["metadata"], "metadata", errors);
    let annotations = metadata.child("annotations");
    let mark = annotations.key(MIRROR);
    if mark.value.is_string() && text(&pod["spec"], "nodeName").is_empty() {
        mark.invalid("must set spec.nodeName if mirror pod annotation is set");
    }
}

/// `ValidateSeccompProfile`.
fn seccomp_annotation(annotation: Field<'_, '_>) {
    let profile = annotation.text();
    if ["runtime/default", "docker/default", "unconfined"].contains(&profile) {
        return;
    }
    match profile.strip_prefix("localhost/") {
        Some(file) if file.starts_with('/') => annotation.invalid_text(file, "must be a relative path"),
        Some(file) if file.split('/').any(|part| part == "..") => {
            annotation.invalid_text(file, "must not contain '..'");
        }
        Some(_) => {}
        None => annotation.invalid("must be a valid seccomp profile"),
    }
}
