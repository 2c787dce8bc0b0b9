//! Requests and limits of containers.

use crate::object::check::invalid;
use crate::object::field::{Errors, FieldError, Path};
use crate::object::value::{list, map, text};
use crate::object::{check, rules};
use nodlet_core::sorted::SortedSet;
use serde_json::{Value, json};

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

/// The resources that a pod as a whole may have (`SupportedPodLevelResources`).
const OF_PODS: [&str; 3] = ["cpu", "hugepages-", "memory"];

/// The resources that an overhead may have.
const COUNTED: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];

/// Checks `resources` of a container.
pub(crate) fn requirements(resources: &Value, path: &Path<'_>, errors: &mut Errors) {
    lists(resources, name, path, errors);
}

/// Checks the overhead of a class or a pod; `path` is that of `overhead`.
pub(crate) fn overhead(amounts: &Value, path: &Path<'_>, errors: &mut Errors) {
    requirements(&json!({"limits": amounts}), path, errors);
    let path = path.child("limits");
    for (name, _) in map(amounts).filter(|(name, _)| !COUNTED.contains(&name.as_str())) {
        errors.push(FieldError::not_supported(&path.key(name), name, &COUNTED));
    }
}

/// Checks `resources` of a pod as a whole (`validatePodResources`). `path` is that of the spec.
pub(super) fn of_pod(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(of_pod) = spec.get("resources") else { return };
    let own = path.child("resources");
    if of_pod.get("claims").is_some() {
        let detail = "claims may not be set for Resources at pod-level";
        errors.push(FieldError::forbidden(&own.child("claims"), detail));
    }
    lists(of_pod, name_of_pods, &own, errors);
    let requests = own.child("requests");
    for (resource, value) in map(&of_pod["requests"]) {
        let (Some(request), Some(needed)) = (quantity(value), of_containers(spec, "requests", resource))
        else {
            continue;
        };
        if needed > request {
            let detail = format!("must be greater than or equal to aggregate container requests of {needed}");
            errors.push(FieldError::invalid(&requests.key(resource), &request.to_string(), detail));
        }
    }
    let limits = own.child("limits");
    for (resource, value) in map(&of_pod["limits"]).filter(|(resource, _)| is_huge_pages(resource)) {
        let (Some(limit), Some(needed)) = (quantity(value), of_containers(spec, "limits", resource)) else {
            continue;
        };
        if needed > limit {
            let detail = format!("must be greater than or equal to aggregate container limits of {needed}");
            errors.push(FieldError::invalid(&limits.key(resource), &limit.to_string(), detail));
        }
    }
    let containers = own.child("containers");
    for (index, container) in list(spec, "containers").iter().enumerate() {
        for (resource, value) in map(&container["resources"]["limits"]) {
            let limit = of_pod["limits"].get(resource).and_then(quantity);
            let (Some(own), Some(limit)) = (quantity(value), limit) else { continue };
            if own > limit {
                let path = containers.index(index);
                let path = path.key(resource);
                let detail = format!("must be less than or equal to pod limits of {limit}");
                errors.push(FieldError::invalid(&path.child("limits"), &own.to_string(), detail));
            }
        }
    }
}

/// What the containers of a spec take of a resource together (`AggregateContainerRequests`): of the list
/// `requests` or `limits`. `None` if none of them names the resource.
pub(crate) fn of_containers(spec: &Value, list_name: &str, resource: &str) -> Option<Quantity> {
    let of = |container: &Value| container["resources"][list_name].get(resource).and_then(quantity);
    let plus = |sum: Option<Quantity>, one: Option<Quantity>| match (sum, one) {
        (Some(sum), Some(one)) => Some(sum.plus(&one)),
        (sum, one) => sum.or(one),
    };
    let (mut sidecars, mut most) = (None, None::<Quantity>);
    for container in list(spec, "initContainers") {
        let while_it_runs = plus(sidecars.clone(), of(container));
        if text(container, "restartPolicy") == "Always" {
            sidecars.clone_from(&while_it_runs);
        }
        if while_it_runs > most {
            most = while_it_runs;
        }
    }
    let regular = list(spec, "containers").iter().map(of).fold(None, plus);
    let regular = plus(regular, sidecars);
    if most > regular { most } else { regular }
}

fn lists(resources: &Value, name: fn(&str, &Path<'_>, &mut Errors), path: &Path<'_>, errors: &mut Errors) {
    let limits_path = path.child("limits");
    let requests_path = path.child("requests");
    for (resource, value) in map(&resources["limits"]) {
        let path = limits_path.key(resource);
        name(resource, &path, errors);
        amount(resource, value, &path, errors);
        pages(resource, value, &path, errors);
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
        pages(resource, value, &path, errors);
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

/// The name of a resource of a pod as a whole (`validatePodResourceName`).
fn name_of_pods(resource: &str, path: &Path<'_>, errors: &mut Errors) {
    let before = errors.len();
    qualified(resource, path, errors);
    if errors.len() == before && !["cpu", "memory"].contains(&resource) && !is_huge_pages(resource) {
        errors.push(FieldError::not_supported(path, resource, &OF_PODS));
    }
}

/// The name of a resource of a container (`validateContainerResourceName`).
pub(crate) fn name(resource: &str, path: &Path<'_>, errors: &mut Errors) {
    qualified(resource, path, errors);
    if resource.contains('/') {
        if !is_native(resource) && !is_extended(resource) {
            errors.push(FieldError::invalid(
                path,
                resource,
                "doesn't follow extended resource name standard",
            ));
        }
    } else if !["cpu", "memory", "ephemeral-storage"].contains(&resource) && !is_huge_pages(resource) {
        errors.push(FieldError::invalid(path, resource, "must be a standard resource for containers"));
    }
}

/// `validateResourceName`.
pub(crate) fn qualified(resource: &str, path: &Path<'_>, errors: &mut Errors) {
    let details = rules::qualified_name(resource);
    let qualified = details.is_empty();
    invalid(path, resource, details, errors);
    if resource.contains('/') {
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
}

fn amount(resource: &str, value: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(quantity) = quantity(value) else { return };
    if quantity.is_negative() {
        errors.push(FieldError::invalid(path, &quantity.to_string(), "must be greater than or equal to 0"));
    }
    if is_extended(resource) && !quantity.is_whole() {
        errors.push(FieldError::invalid(path, &quantity.to_string(), "must be an integer"));
    }
}

/// Checks that an amount of memory in huge pages is that of whole pages.
fn pages(resource: &str, value: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(quantity) = quantity(value) else { return };
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

/// `IsOvercommitAllowed`.
pub(crate) fn may_be_overcommitted(resource: &str) -> bool {
    is_native(resource) && !is_huge_pages(resource)
}

fn is_huge_pages(resource: &str) -> bool {
    resource.starts_with("hugepages-")
}

fn overcommittable(resource: &str) -> bool {
    is_native(resource) && !is_huge_pages(resource)
}

/// Checks `resizePolicy` of a container. `never`: whether the pod is never restarted.
pub(super) fn resize_policy(policies: &[Value], never: bool, path: &Path<'_>, errors: &mut Errors) {
    let mut seen = SortedSet::new();
    for (index, policy) in policies.iter().enumerate() {
        let (resource, restart) = (text(policy, "resourceName"), text(policy, "restartPolicy"));
        if !seen.insert(resource) {
            errors.push(FieldError::duplicate(&path.index(index), resource));
        }
        check::one_of(path, resource, &["cpu", "memory"], errors);
        check::one_of(path, restart, &["NotRequired", "RestartContainer"], errors);
        if never && restart != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.push(FieldError::invalid(path, restart, detail));
        }
    }
}
