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

use crate::object::check::Field;
use crate::object::field::Errors;
use crate::object::rules;
use crate::object::value::{list, text};

pub(crate) use ephemeral::only_added;
pub(crate) use metadata::{APPARMOR, MIRROR, SECCOMP_OF_CONTAINER, SECCOMP_OF_POD, mirror};
pub(crate) use resources::of_containers;
pub(crate) use toleration::tolerations;
pub(crate) use volume::{HUGE_PAGES_MEDIUM, host_path};

/// Checks what only a new pod must not have: ephemeral containers, which are added to existing pods through a
/// subresource, and a node together with scheduling gates.
pub(super) fn of_new(pod: &Value, errors: &mut Errors) {
    let spec = Field::root(&pod["spec"], "spec", errors);
    if !list(spec.value, "ephemeralContainers").is_empty() {
        spec.child("ephemeralContainers").forbidden("cannot be set on create");
    }
    gates::of_new(spec);
}

/// Returns all errors of a Pod.
pub(super) fn pod(pod: &Value) -> Errors {
    let mut errors = Errors::default();
    let metadata = Field::root(&pod["metadata"], "metadata", &mut errors);
    metadata::metadata(metadata);
    metadata::annotations(pod, metadata.child("annotations"));
    let spec = Field::root(&pod["spec"], "spec", &mut errors);
    self::spec(spec);
    ["containers", "initContainers"].iter().flat_map(|field| spec.items(field)).for_each(image);
    errors
}

/// All containers of a spec.
fn containers<'v, 'b>(spec: &'b Field<'v, 'b>) -> impl Iterator<Item = Field<'v, 'b>> {
    ["initContainers", "containers", "ephemeralContainers"].iter().flat_map(|field| spec.items(field))
}

/// Checks that there are no blanks around the image of a container.
fn image(container: Field<'_, '_>) {
    let image = container.child("image");
    if image.text().trim() != image.text() {
        image.invalid("must not have leading or trailing whitespace");
    }
}

fn spec(spec: Field<'_, '_>) {
    volume::huge_pages_media(spec);
    let volumes = volume::volumes(spec);
    container::all(spec, &volumes);
    container::init(spec, &volumes);
    ephemeral::all(spec, &volumes);
    resources::of_pod(spec);
    volume::file_key_volumes(spec);
    port::host_network(spec);
    spec.child("restartPolicy").one_of(&["Always", "OnFailure", "Never"]);
    spec.child("dnsPolicy").one_of(&["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]);
    spec.child("nodeSelector").labels();
    security::security_context(spec);
    affinity::all(spec.child("affinity"));
    dns::dns_config(spec);
    gates::all(spec);
    affinity::spread(spec);
    security::host_users(spec);
    dns::hostname_override(spec);
    spec.child("serviceAccountName").check_optional(rules::dns_subdomain);
    spec.child("nodeName").check_optional(rules::dns_subdomain);
    spec.child("activeDeadlineSeconds").range(1, i64::from(i32::MAX));
    spec.child("hostname").check_optional(rules::dns_label);
    spec.child("subdomain").check_optional(rules::dns_label);
    toleration::tolerations(spec);
    dns::host_aliases(spec);
    spec.child("priorityClassName").check_optional(rules::dns_subdomain);
    spec.child("runtimeClassName").check_optional(rules::dns_subdomain);
    // Admission compares it with that of its class.
    let overhead = json!({"limits": spec.value["overhead"]});
    resources::requirements(spec.child("overhead").with(&overhead));
    if let Some(policy) = spec.get("preemptionPolicy") {
        policy.one_of(&["PreemptLowerPriority", "Never"]);
    }
    if let Some(os) = spec.get("os") {
        match text(os.value, "name") {
            "" => os.child("name").required(""),
            "linux" => security::of_linux(spec),
            "windows" => security::of_windows(spec),
            _ => os.with(&os.value["name"]).not_supported(&["linux", "windows"]),
        }
    }
}

#[cfg(test)]
mod tests;
