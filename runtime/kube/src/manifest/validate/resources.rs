//! Requests and limits of containers.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Errors, invalid, map, text};
use crate::manifest::field::{FieldError, Path};
use crate::manifest::rules;
use nodlet_core::spec::Quantity;

/// Names without a domain that Kubernetes knows, also for other objects than containers.
const STANDARD: [&str; 21] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
    "limits",
];

/// Checks `resources` of a container.
pub(super) fn requirements(resources: &Value, path: &Path<'_>, errors: &mut Errors) {
    let limits_path = path.child("limits");
    let requests_path = path.child("requests");
    for (resource, value) in map(&resources["limits"]) {
        let path = limits_path.key(resource);
        name(resource, &path, errors);
        amount(resource, value, &path, errors);
    }
    for (resource, value) in map(&resources["requests"]) {
        let path = requests_path.key(resource);
        name(resource, &path, errors);
        amount(resource, value, &path, errors);
        let limit = resources["limits"].get(resource).and_then(quantity);
        match (quantity(value), limit) {
            (Some(request), Some(limit)) if !overcommittable(resource) && request != limit => {
                let detail = format!("must be equal to {resource} limit of {limit}");
                errors.push(FieldError::invalid(&requests_path, &request.to_string(), detail));
            }
            (Some(request), Some(limit)) if request > limit => {
                let detail = format!("must be less than or equal to {resource} limit of {limit}");
                errors.push(FieldError::invalid(&requests_path, &request.to_string(), detail));
            }
            (_, None) if !overcommittable(resource) => {
                let detail = "Limit must be set for non overcommitable resources";
                errors.push(FieldError::required(&limits_path, detail));
            }
            _ => {}
        }
    }
    let names = || {
        ["limits", "requests"]
            .into_iter()
            .flat_map(|list| map(&resources[list]))
            .map(|(name, _)| name.as_str())
    };
    if names().any(is_huge_pages) && !names().any(|name| name == "cpu" || name == "memory") {
        errors.push(FieldError::forbidden(path, "HugePages require cpu or memory"));
    }
}

fn name(resource: &str, path: &Path<'_>, errors: &mut Errors) {
    let details = rules::qualified_name(resource);
    let qualified = details.is_empty();
    invalid(path, resource, details, errors);
    if resource.contains('/') {
        if !is_native(resource) && !is_extended(resource) {
            errors.push(FieldError::invalid(
                path,
                resource,
                "doesn't follow extended resource name standard",
            ));
        }
        return;
    }
    let standard = STANDARD.contains(&resource)
        || is_huge_pages(resource)
        || resource.starts_with("requests.hugepages-");
    if qualified && !standard {
        errors.push(FieldError::invalid(
            path,
            resource,
            "must be a standard resource type or fully qualified",
        ));
    }
    if !["cpu", "memory", "ephemeral-storage"].contains(&resource) && !is_huge_pages(resource) {
        errors.push(FieldError::invalid(path, resource, "must be a standard resource for containers"));
    }
}

fn amount(resource: &str, value: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(quantity) = quantity(value) else { return };
    if quantity.is_negative() {
        errors.push(FieldError::invalid(path, &quantity.to_string(), "must be greater than or equal to 0"));
    }
    if is_extended(resource) && !quantity.is_whole() {
        errors.push(FieldError::invalid(path, &quantity.to_string(), "must be an integer"));
    }
    if let Some(size) = resource.strip_prefix("hugepages-") {
        let pages = Quantity::parse(size).ok().filter(|size| size.is_whole()).map(|size| size.value());
        if pages.is_none_or(|size| size <= 0 || quantity.value() % size != 0) {
            let detail = format!("{quantity} is not positive integer multiple of {resource}");
            errors.push(FieldError::invalid(path, &quantity.to_string(), detail));
        }
    }
}

fn quantity(value: &Value) -> Option<Quantity> {
    value.as_str().and_then(|text| Quantity::parse(text).ok())
}

fn is_native(resource: &str) -> bool {
    !resource.contains('/') || resource.contains("kubernetes.io/")
}

/// Whether the resource's name belongs to a vendor other than Kubernetes.
fn is_extended(resource: &str) -> bool {
    !is_native(resource)
        && !resource.starts_with("requests.")
        && rules::qualified_name(&format!("requests.{resource}")).is_empty()
}

fn is_huge_pages(resource: &str) -> bool {
    resource.starts_with("hugepages-")
}

fn overcommittable(resource: &str) -> bool {
    is_native(resource) && !is_huge_pages(resource)
}

/// Checks `resizePolicy` of a container. `never`: whether the pod is never restarted.
pub(super) fn resize_policy(policies: &[Value], never: bool, path: &Path<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, policy) in policies.iter().enumerate() {
        let (resource, restart) = (text(policy, "resourceName"), text(policy, "restartPolicy"));
        if !seen.insert(resource) {
            errors.push(FieldError::duplicate(&path.index(index), resource));
        }
        super::one_of(path, resource, &["cpu", "memory"], errors);
        super::one_of(path, restart, &["NotRequired", "RestartContainer"], errors);
        if never && restart != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.push(FieldError::invalid(path, restart, detail));
        }
    }
}
