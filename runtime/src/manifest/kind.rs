//! Which objects are Pods, and what is said of those that are not.

use serde_json::Value;

/// How deep a `List` may hold `List`s.
const LISTS: usize = 4;

/// A Pod, and where in its document it stands: empty, or `items[0]`.
pub(super) struct Found {
    pub(super) object: Value,
    pub(super) at: String,
}

/// The Pods that an object is: itself, or the items of a `List` or `PodList`.
pub(super) fn pods(object: Value) -> Result<Vec<Found>, String> {
    let mut pods = Vec::new();
    flatten(object, String::new(), LISTS, &mut pods)?;
    Ok(pods)
}

fn flatten(mut object: Value, at: String, depth: usize, pods: &mut Vec<Found>) -> Result<(), String> {
    if !object.is_object() {
        return Err("not an object: a Pod has apiVersion, kind, metadata and spec".to_owned());
    }
    let version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    match (kind.as_str(), version.as_str()) {
        ("", _) => Err("Object 'Kind' is missing: write kind: Pod".to_owned()),
        (_, "") => Err(format!(
            "Object 'apiVersion' is missing: write apiVersion: {}",
            version_of(&kind).unwrap_or("v1")
        )),
        ("Pod", "v1") => {
            pods.push(Found { object, at });
            Ok(())
        }
        ("List" | "PodList", "v1") => {
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
                if let (Value::Object(item), "PodList") = (&mut item, kind.as_str()) {
                    item.entry("apiVersion").or_insert_with(|| "v1".into());
                    item.entry("kind").or_insert_with(|| "Pod".into());
                }
                let at = format!("{at}{}items[{index}]", if at.is_empty() { "" } else { "." });
                flatten(item, at, depth - 1, pods).map_err(|error| format!("items[{index}]: {error}"))?;
            }
            Ok(())
        }
        ("Pod" | "List" | "PodList", _) => {
            Err(format!("no matches for kind \"{kind}\" in version \"{version}\": write apiVersion: v1"))
        }
        _ => Err(other(&kind, &version)),
    }
}

/// Kinds that hold a template of Pods, with their way on.
const WORKLOADS: [&str; 7] =
    ["CronJob", "DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"];

/// Kinds that later versions will take.
const NOT_YET: [&str; 9] = [
    "ConfigMap",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "PodPreset",
    "PriorityClass",
    "RuntimeClass",
    "Secret",
    "Service",
];

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
    if NOT_YET.contains(&kind) {
        return format!("{kind} {version}: not yet; nodlet takes Pods and Lists of them");
    }
    format!("{kind} {version}: nodlet takes Pods and Lists of them")
}

/// The version of a kind that someone may have meant.
fn version_of(kind: &str) -> Option<&'static str> {
    match kind {
        "Pod" | "List" | "PodList" | "ConfigMap" | "Secret" | "Service" => Some("v1"),
        "Deployment" | "DaemonSet" | "ReplicaSet" | "StatefulSet" => Some("apps/v1"),
        "Job" | "CronJob" => Some("batch/v1"),
        _ => None,
    }
}
