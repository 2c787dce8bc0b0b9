//! The downward API: fields of a pod as variables and files show them. Pure.

use nodlet_core::facts::Amounts;
use nodlet_core::spec::container::HUGE_PAGES;
use nodlet_core::spec::reference::ResourceField;
use nodlet_core::spec::{Container, Pod, Quantity};
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
    let is_cpu = field.resource.ends_with(".cpu");
    let amount_of: fn(&Quantity) -> i64 = if is_cpu { Quantity::milli_value } else { Quantity::value };
    let amount =
        |quantity: &Option<Quantity>| quantity.as_ref().filter(|quantity| !quantity.is_zero()).map(amount_of);
    let amount = match &*field.resource {
        "limits.cpu" => {
            pod.spec.limit_of(of, |resources| amount(&resources.cpu_limit)).unwrap_or(allocatable.cpu)
        }
        "limits.memory" => {
            pod.spec.limit_of(of, |resources| amount(&resources.memory_limit)).unwrap_or(allocatable.memory)
        }
        "limits.ephemeral-storage" => {
            amount(&resources.ephemeral_storage_limit).unwrap_or(allocatable.ephemeral_storage)
        }
        "requests.cpu" => amount(&resources.cpu_request).unwrap_or(0),
        "requests.memory" => amount(&resources.memory_request).unwrap_or(0),
        "requests.ephemeral-storage" => amount(&resources.ephemeral_storage_request).unwrap_or(0),
        // Requests of huge pages equal their limits.
        other => {
            let size = other.rsplit_once(HUGE_PAGES).map_or("", |(_, size)| size);
            resources.huge_pages_of(size).unwrap_or(0)
        }
    };
    let divisor = field.divisor.as_ref().map_or(if is_cpu { 1000 } else { 1 }, amount_of);
    Ok(amount.max(0).cast_unsigned().div_ceil(divisor.max(1).cast_unsigned()).to_string())
}
