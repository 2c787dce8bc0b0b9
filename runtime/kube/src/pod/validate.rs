//! Validates a defaulted Pod, and reports all errors with Kubernetes' messages and in its order.
//!
//! Fields below one that nodlet rejects as a whole ([`crate::schema::support`]) are not validated. Maps are validated
//! in the order of their keys; Kubernetes' order is random.

pub(crate) mod affinity;
mod container;
mod dns;
mod ephemeral;
mod gates;
mod lifecycle;
mod metadata;
mod port;
mod probe;
mod projection;
pub(crate) mod resources;
mod security;
mod toleration;
mod volume;

use serde_json::{Value, json};

use crate::object::check::{invalid, labels, one_of};
use crate::object::field::{Errors, FieldError, Path};
use crate::object::rules;
use crate::object::value::{list, optional_number, text};

pub(crate) use ephemeral::only_added;
pub(crate) use metadata::{APPARMOR, MIRROR, SECCOMP_OF_CONTAINER, SECCOMP_OF_POD, mirror};
pub(crate) use resources::of_containers;
pub(crate) use toleration::tolerations;
pub(crate) use volume::{HUGE_PAGES_MEDIUM, host_path};

/// Checks what only a new pod must not have: ephemeral containers, which are added to existing pods through a
/// subresource, and a node together with scheduling gates.
pub(super) fn of_new(pod: &Value, errors: &mut Errors) {
    if !list(&pod["spec"], "ephemeralContainers").is_empty() {
        let path = Path::root("spec");
        errors.push(FieldError::forbidden(&path.child("ephemeralContainers"), "cannot be set on create"));
    }
    gates::of_new(&pod["spec"], &Path::root("spec"), errors);
}

/// Returns all errors of a Pod.
pub(super) fn pod(pod: &Value) -> Errors {
    let mut errors = Errors::default();
    metadata::metadata(&pod["metadata"], &Path::root("metadata"), &mut errors);
    metadata::annotations(pod, &mut errors);
    spec(&pod["spec"], &Path::root("spec"), &mut errors);
    for field in ["containers", "initContainers"] {
        images(list(&pod["spec"], field), &Path::root("spec").child(field), &mut errors);
    }
    errors
}

fn images(containers: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, container) in containers.iter().enumerate() {
        let image = text(container, "image");
        if image.trim() != image {
            let path = path.index(index);
            errors.push(FieldError::invalid(
                &path.child("image"),
                image,
                "must not have leading or trailing whitespace",
            ));
        }
    }
}

fn spec(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    volume::huge_pages_media(spec, &path.child("volumes"), errors);
    let volumes = volume::volumes(list(spec, "volumes"), &path.child("volumes"), errors);
    container::all(spec, &volumes, &path.child("containers"), errors);
    container::init(spec, &volumes, &path.child("initContainers"), errors);
    ephemeral::all(spec, &volumes, &path.child("ephemeralContainers"), errors);
    resources::of_pod(spec, path, errors);
    volume::file_key_volumes(spec, path, errors);
    port::host_network(spec, path, errors);
    one_of(
        &path.child("restartPolicy"),
        text(spec, "restartPolicy"),
        &["Always", "OnFailure", "Never"],
        errors,
    );
    one_of(
        &path.child("dnsPolicy"),
        text(spec, "dnsPolicy"),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        errors,
    );
    labels(&spec["nodeSelector"], &path.child("nodeSelector"), errors);
    security::security_context(spec, &path.child("securityContext"), errors);
    affinity::all(&spec["affinity"], &path.child("affinity"), errors);
    dns::dns_config(spec, &path.child("dnsConfig"), errors);
    gates::all(spec, path, errors);
    let spread = "topologySpreadConstraints";
    affinity::spread(list(spec, spread), &path.child(spread), errors);
    security::host_users(spec, path, errors);
    dns::hostname_override(spec, path, errors);
    for (field, rule) in [
        ("serviceAccountName", rules::dns_subdomain as fn(&str) -> Vec<String>),
        ("nodeName", rules::dns_subdomain),
    ] {
        let value = text(spec, field);
        if !value.is_empty() {
            invalid(&path.child(field), value, rule(value), errors);
        }
    }
    if let Some(seconds) = optional_number(spec, "activeDeadlineSeconds")
        && let Some(error) = rules::range(seconds, 1, i64::from(i32::MAX))
    {
        errors.push(FieldError::invalid_value(&path.child("activeDeadlineSeconds"), &seconds.into(), error));
    }
    for field in ["hostname", "subdomain"] {
        let value = text(spec, field);
        if !value.is_empty() {
            invalid(&path.child(field), value, rules::dns_label(value), errors);
        }
    }
    toleration::tolerations(list(spec, "tolerations"), &path.child("tolerations"), errors);
    dns::host_aliases(list(spec, "hostAliases"), &path.child("hostAliases"), errors);
    let class = text(spec, "priorityClassName");
    if !class.is_empty() {
        invalid(&path.child("priorityClassName"), class, rules::dns_subdomain(class), errors);
    }
    let class = text(spec, "runtimeClassName");
    if !class.is_empty() {
        invalid(&path.child("runtimeClassName"), class, rules::dns_subdomain(class), errors);
    }
    // Admission compares it with that of its class.
    resources::requirements(&json!({"limits": spec["overhead"]}), &path.child("overhead"), errors);
    if spec.get("preemptionPolicy").is_some() {
        let policy = text(spec, "preemptionPolicy");
        one_of(&path.child("preemptionPolicy"), policy, &["PreemptLowerPriority", "Never"], errors);
    }
    if let Some(os) = spec.get("os") {
        let path = path.child("os");
        match text(os, "name") {
            "" => errors.push(FieldError::required(&path.child("name"), "")),
            "linux" => security::of_linux(spec, errors),
            "windows" => security::of_windows(spec, errors),
            other => errors.push(FieldError::not_supported(&path, other, &["linux", "windows"])),
        }
    }
}

#[cfg(test)]
mod tests;
