//! The downward API: fields of a pod as variables and files show them. Pure.

use nodlet_core::facts::Amounts;
use nodlet_core::spec::container::HUGE_PAGES;
use nodlet_core::spec::reference::ResourceField;
use nodlet_core::spec::{Container, Pod, Quantity, ResourceRequirements};
use nodlet_kube::manifest::go_quoted;

/// A field of the metadata (`ExtractFieldPathAsString`); validation accepts no other path.
pub(crate) fn metadata(pod: &Pod, path: &str) -> String {
    let all = |map: &nodlet_core::sorted::SortedMap<String, String>| {
        let lines: Vec<String> =
            map.iter().map(|(key, value)| format!("{key}={}", go_quoted(value))).collect();
        lines.join("\n")
    };
    match path {
        "metadata.name" => pod.name.to_string(),
        "metadata.namespace" => pod.namespace.to_string(),
        "metadata.uid" => pod.uid.to_string(),
        "metadata.labels" => all(&pod.labels),
        "metadata.annotations" => all(&pod.annotations),
        _ => {
            let key = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']");
            let label = key("metadata.labels['").and_then(|key| pod.labels.get(key));
            let annotation = key("metadata.annotations['").and_then(|key| pod.annotations.get(key));
            label.or(annotation).cloned().unwrap_or_default()
        }
    }
}

/// A request or limit (`ExtractContainerResourceValue`): a missing limit is that of the pod as a whole or the node's allocatable amount, and a missing
/// request is zero. `own` is the container whose variable it is.
///
/// # Errors
/// There is no such container.
pub(crate) fn resource(
    pod: &Pod,
    own: Option<&Container>,
    field: &ResourceField,
    allocatable: &Amounts,
) -> Result<String, String> {
    let name = field.container.as_deref().unwrap_or_default();
    let of = match own.filter(|_| field.container.is_none()) {
        Some(own) => own,
        // Ephemeral containers are not looked for, as in Kubernetes.
        None => pod
            .spec
            .admitted_containers()
            .find(|container| container.name == name)
            .ok_or_else(|| format!("container {name} not found"))?,
    };
    let resources = &of.resources;
    let amount_of = |quantity: &Option<Quantity>, amount: fn(&Quantity) -> i64| {
        quantity.as_ref().filter(|quantity| !quantity.is_zero()).map(amount)
    };
    let milli_cpu = |resources: &ResourceRequirements| amount_of(&resources.cpu_limit, Quantity::milli_value);
    let memory = |resources: &ResourceRequirements| amount_of(&resources.memory_limit, Quantity::value);
    let request =
        |request: &Option<Quantity>, amount: fn(&Quantity) -> i64| request.as_ref().map_or(0, amount);
    let (amount, is_cpu) = match &*field.resource {
        "limits.cpu" => (pod.spec.limit_of(of, milli_cpu).unwrap_or(allocatable.cpu), true),
        "requests.cpu" => (request(&resources.cpu_request, Quantity::milli_value), true),
        "limits.memory" => (pod.spec.limit_of(of, memory).unwrap_or(allocatable.memory), false),
        "requests.memory" => (request(&resources.memory_request, Quantity::value), false),
        "limits.ephemeral-storage" => {
            let limit = amount_of(&resources.ephemeral_storage_limit, Quantity::value);
            (limit.unwrap_or(allocatable.ephemeral_storage), false)
        }
        "requests.ephemeral-storage" => {
            (request(&resources.ephemeral_storage_request, Quantity::value), false)
        }
        // Requests of huge pages equal their limits.
        other => {
            let size = other.rsplit_once(HUGE_PAGES).map_or("", |(_, size)| size);
            (resources.huge_pages_of(size).unwrap_or(0), false)
        }
    };
    let divisor = match (&field.divisor, is_cpu) {
        (None, true) => 1000,
        (None, false) => 1,
        (Some(divisor), true) => divisor.milli_value(),
        (Some(divisor), false) => divisor.value(),
    };
    Ok(amount.max(0).cast_unsigned().div_ceil(divisor.max(1).cast_unsigned()).to_string())
}
