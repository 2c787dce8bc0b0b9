//! Requests and limits of containers.

use nodlet_core::sorted::SortedSet;
use nodlet_core::spec::Quantity;
use serde_json::{Value, json};

use crate::object::check::Field;
use crate::object::rules;
use crate::object::value::{list, map, text};

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
pub(crate) fn requirements(resources: Field<'_, '_>) {
    lists(resources, name);
}

/// Checks the overhead of a class.
pub(crate) fn overhead(overhead: Field<'_, '_>) {
    let limits = json!({"limits": overhead.value["podFixed"]});
    let overhead = overhead.with(&limits);
    requirements(overhead);
    for (name, amount) in overhead.child("limits").entries() {
        if !COUNTED.contains(&name) {
            amount.with(&name.into()).not_supported(&COUNTED);
        }
    }
}

/// Checks `resources` of a pod as a whole (`validatePodResources`).
pub(super) fn of_pod(spec: Field<'_, '_>) {
    let Some(of_pod) = spec.get("resources") else { return };
    if let Some(claims) = of_pod.get("claims") {
        claims.forbidden("claims may not be set for Resources at pod-level");
    }
    lists(of_pod, name_of_pods);
    for of in ["requests", "limits"] {
        for (resource, amount) in of_pod.child(of).entries() {
            let needed = of_containers(spec.value, of, resource);
            let (Some(given), Some(needed)) = (quantity(amount.value), needed) else { continue };
            if needed > given && (of == "requests" || is_huge_pages(resource)) {
                let detail = format!("must be greater than or equal to aggregate container {of} of {needed}");
                amount.invalid_text(&given.to_string(), detail);
            }
        }
    }
    for (index, container) in list(spec.value, "containers").iter().enumerate() {
        for (resource, value) in map(&container["resources"]["limits"]) {
            let limit = of_pod.value["limits"].get(resource).and_then(quantity);
            let (Some(own), Some(limit)) = (quantity(value), limit) else { continue };
            if own > limit {
                let detail = format!("must be less than or equal to pod limits of {limit}");
                let container = of_pod.item("containers", index);
                container.key(resource).child("limits").invalid_text(&own.to_string(), detail);
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

fn lists(resources: Field<'_, '_>, name: fn(Field<'_, '_>, &str)) {
    let limits = resources.child("limits");
    for (resource, limit) in limits.entries() {
        name(limit, resource);
        amount(limit, resource);
        pages(limit, resource);
    }
    let requests = resources.child("requests");
    for (resource, request) in requests.entries() {
        name(request, resource);
        amount(request, resource);
        match (quantity(request.value), limits.value.get(resource).and_then(quantity)) {
            (Some(request), Some(limit)) if !may_be_overcommitted(resource) && request != limit => {
                let detail = format!("must be equal to {resource} limit of {limit}");
                requests.invalid_text(&request.to_string(), detail);
            }
            (Some(request), Some(limit)) if request > limit => {
                let detail = format!("must be less than or equal to {resource} limit of {limit}");
                requests.invalid_text(&request.to_string(), detail);
            }
            (_, None) if !may_be_overcommitted(resource) => {
                limits.required("Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
        pages(request, resource);
    }
    let names = || map(limits.value).chain(map(requests.value)).map(|(name, _)| name.as_str());
    if names().any(is_huge_pages) && !names().any(|name| name == "cpu" || name == "memory") {
        resources.forbidden("HugePages require cpu or memory");
    }
}

/// The name of a resource of a pod as a whole (`validatePodResourceName`).
fn name_of_pods(field: Field<'_, '_>, resource: &str) {
    let before = field.error_count();
    qualified(field, resource);
    let is_known = ["cpu", "memory"].contains(&resource) || is_huge_pages(resource);
    if field.error_count() == before && !is_known {
        field.with(&resource.into()).not_supported(&OF_PODS);
    }
}

/// The name of a resource of a container (`validateContainerResourceName`).
pub(crate) fn name(field: Field<'_, '_>, resource: &str) {
    qualified(field, resource);
    if resource.contains('/') {
        if !is_native(resource) && !is_extended(resource) {
            field.invalid_text(resource, "doesn't follow extended resource name standard");
        }
    } else if !["cpu", "memory", "ephemeral-storage"].contains(&resource) && !is_huge_pages(resource) {
        field.invalid_text(resource, "must be a standard resource for containers");
    }
}

/// `validateResourceName`.
pub(crate) fn qualified(field: Field<'_, '_>, resource: &str) {
    let is_standard = resource.contains('/')
        || STANDARD.contains(&resource)
        || is_huge_pages(resource)
        || resource.starts_with("requests.hugepages-");
    if field.check_text(resource, rules::qualified_name) && !is_standard {
        field.invalid_text(resource, "must be a standard resource type or fully qualified");
    }
}

fn amount(field: Field<'_, '_>, resource: &str) {
    let Some(quantity) = quantity(field.value) else { return };
    if quantity.is_negative() {
        field.invalid_text(&quantity.to_string(), "must be greater than or equal to 0");
    }
    if is_extended(resource) && !quantity.is_whole() {
        field.invalid_text(&quantity.to_string(), "must be an integer");
    }
}

/// Checks that an amount of memory in huge pages is that of whole pages.
fn pages(field: Field<'_, '_>, resource: &str) {
    let Some(quantity) = quantity(field.value) else { return };
    if let Some(size) = resource.strip_prefix("hugepages-") {
        let pages = Quantity::parse(size).ok().filter(|size| size.is_whole()).map(|size| size.value());
        if pages.is_none_or(|size| size <= 0 || quantity.value() % size != 0) {
            let detail = format!("{quantity} is not positive integer multiple of {resource}");
            field.invalid_text(&quantity.to_string(), detail);
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

/// Checks `resizePolicy` of a container. `never`: whether the pod is never restarted.
pub(super) fn resize_policy(container: Field<'_, '_>, never: bool) {
    let mut seen = SortedSet::new();
    // Kubernetes omits index and field in most of these paths.
    let all = container.child("resizePolicy");
    for policy in container.items("resizePolicy") {
        let (resource, restart) = (&policy.value["resourceName"], &policy.value["restartPolicy"]);
        policy.with(resource).unique(&mut seen);
        all.with(resource).one_of(&["cpu", "memory"]);
        all.with(restart).one_of(&["NotRequired", "RestartContainer"]);
        if never && restart != "NotRequired" {
            all.with(restart).invalid("must be 'NotRequired' when pod `restartPolicy` is 'Never'");
        }
    }
}
