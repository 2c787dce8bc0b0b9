//! Finds the objects of a manifest whose kind the agent reads (`kind.rs`), and rejects all others.

use serde_json::Value;

use crate::kind::{self, Kind};

/// Upper bound of the depth of nested `List`s.
const MAX_LIST_DEPTH: usize = 4;

/// An object of a kind that is read, and its place in the document: empty, or `items[0]`.
pub(super) struct FoundObject {
    pub(super) object: Value,
    pub(super) kind: Kind,
    pub(super) at: String,
}

/// The objects in an object: itself, or the items of a `List`, a `PodList` and so on.
pub(super) fn objects(object: Value) -> Result<Vec<FoundObject>, String> {
    let mut objects = Vec::new();
    flatten(object, String::new(), MAX_LIST_DEPTH, &mut objects)?;
    Ok(objects)
}

fn flatten(mut object: Value, at: String, depth: usize, found: &mut Vec<FoundObject>) -> Result<(), String> {
    if !object.is_object() {
        return Err("not an object: a Pod has apiVersion, kind, metadata and spec".to_owned());
    }
    let version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    // A list of one kind, or the kind itself.
    let single = kind.strip_suffix("List").unwrap_or(&kind);
    let known = Kind::named(single);
    match (kind.as_str(), version.as_str()) {
        ("", _) if is_device(&object) => {
            Err("a device file is not a Kubernetes object: put it into etc/nodlet/devices/ \
             below the agent's root directory, it is not applied (docs/devices.md)"
                .to_owned())
        }
        ("", _) => Err("Object 'Kind' is missing: write kind: Pod".to_owned()),
        (_, "") => Err(format!(
            "Object 'apiVersion' is missing: write apiVersion: {}",
            version_of(&kind).unwrap_or("v1")
        )),
        (_, version) if known.is_some_and(|known| known.as_str() == kind && known.version() == version) => {
            found.extend(known.map(|kind| FoundObject { object, kind, at }));
            Ok(())
        }
        (name, number)
            if (name, number) == ("List", "v1") || known.is_some_and(|known| known.version() == number) =>
        {
            if depth == 0 {
                return Err("Lists within Lists within Lists".to_owned());
            }
            let items = match object["items"].take() {
                Value::Array(items) => items,
                Value::Null => Vec::new(),
                Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                    return Err(format!("items of the {kind} must be a list"));
                }
            };
            for (index, mut item) in items.into_iter().enumerate() {
                // In a PodList, the items may leave out what the list says.
                if let (Value::Object(item), Some(_)) = (&mut item, known) {
                    item.entry("apiVersion").or_insert_with(|| version.as_str().into());
                    item.entry("kind").or_insert_with(|| kind.trim_end_matches("List").into());
                }
                let at = format!("{at}{}items[{index}]", if at.is_empty() { "" } else { "." });
                flatten(item, at, depth - 1, found).map_err(|error| format!("items[{index}]: {error}"))?;
            }
            Ok(())
        }
        ("List", _) => {
            Err(format!("no matches for kind \"{kind}\" in version \"{version}\": write apiVersion: v1"))
        }
        _ => match known {
            Some(known) => Err(format!(
                "no matches for kind \"{kind}\" in version \"{version}\": write apiVersion: {}",
                known.version()
            )),
            None => Err(other(&kind, &version)),
        },
    }
}

/// Whether this is the text of a device file: see `device_file.rs`.
fn is_device(object: &Value) -> bool {
    let has = |key: &str| object.get(key).is_some();
    has("name") && ["path", "usb", "sysfs", "interface"].into_iter().any(has)
}

/// Kinds with a template of Pods.
const WORKLOADS: [&str; 7] =
    ["CronJob", "DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"];

/// The kinds that are read: Pods, PodPresets and so on.
fn readable_kinds() -> String {
    let kinds: Vec<String> = kind::readable()
        .map(|row| format!("{}{}", row.name, row.plural.get(row.name.len()..).unwrap_or_default()))
        .collect();
    format!("nodlet accepts {} and Lists of them", kinds.join(", "))
}

fn other(kind: &str, version: &str) -> String {
    if kind.eq_ignore_ascii_case("pod") || kind.eq_ignore_ascii_case("pods") {
        return format!("no matches for kind \"{kind}\" in version \"{version}\": write kind: Pod");
    }
    if kind == "Namespace" {
        return format!("{kind} {version}: namespaces need no object; write metadata.namespace into the Pod");
    }
    if kind == "CronJob" {
        return format!(
            "{kind} {version}: nodlet runs Pods; put spec.jobTemplate.spec.template into a Pod manifest"
        );
    }
    if WORKLOADS.contains(&kind) {
        return format!("{kind} {version}: nodlet runs Pods; put spec.template into a Pod manifest");
    }
    if kind == "Endpoints" {
        return format!(
            "{kind} {version}: write an EndpointSlice of discovery.k8s.io/v1, with the label kubernetes.io/service-name"
        );
    }
    format!("{kind} {version}: {}", readable_kinds())
}

/// The version of a kind that someone may have meant.
fn version_of(kind: &str) -> Option<&'static str> {
    match kind {
        "List" | "Endpoints" => Some("v1"),
        "Deployment" | "DaemonSet" | "ReplicaSet" | "StatefulSet" => Some("apps/v1"),
        "Job" | "CronJob" => Some("batch/v1"),
        _ => Kind::named(kind.strip_suffix("List").unwrap_or(kind)).map(Kind::version),
    }
}
