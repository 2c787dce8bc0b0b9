//! Which objects are Pods and PodPresets, and what is said of those that are neither.

use serde_json::Value;

/// How deep a `List` may hold `List`s.
const LISTS: usize = 4;

/// A Pod or a PodPreset, and where in its document it stands: empty, or `items[0]`.
pub(super) struct Found {
    pub(super) object: Value,
    pub(super) kind: Kind,
    pub(super) at: String,
}

/// The kinds that are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pod,
    PodPreset,
}

/// The Pods and PodPresets that an object is: itself, or the items of a `List`, `PodList` or `PodPresetList`.
pub(super) fn objects(object: Value) -> Result<Vec<Found>, String> {
    let mut objects = Vec::new();
    flatten(object, String::new(), LISTS, &mut objects)?;
    Ok(objects)
}

fn flatten(mut object: Value, at: String, depth: usize, found: &mut Vec<Found>) -> Result<(), String> {
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
            found.push(Found { object, kind: Kind::Pod, at });
            Ok(())
        }
        ("PodPreset", PRESET_VERSION) => {
            found.push(Found { object, kind: Kind::PodPreset, at });
            Ok(())
        }
        ("List" | "PodList", "v1") | ("PodPresetList", PRESET_VERSION) => {
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
                if let (Value::Object(item), "PodList" | "PodPresetList") = (&mut item, kind.as_str()) {
                    item.entry("apiVersion").or_insert_with(|| version.as_str().into());
                    item.entry("kind").or_insert_with(|| kind.trim_end_matches("List").into());
                }
                let at = format!("{at}{}items[{index}]", if at.is_empty() { "" } else { "." });
                flatten(item, at, depth - 1, found).map_err(|error| format!("items[{index}]: {error}"))?;
            }
            Ok(())
        }
        ("Pod" | "List" | "PodList", _) => {
            Err(format!("no matches for kind \"{kind}\" in version \"{version}\": write apiVersion: v1"))
        }
        ("PodPreset" | "PodPresetList", _) => Err(format!(
            "no matches for kind \"{kind}\" in version \"{version}\": write apiVersion: {PRESET_VERSION}"
        )),
        _ => Err(other(&kind, &version)),
    }
}

/// The only version that PodPresets ever had.
pub(super) const PRESET_VERSION: &str = "settings.k8s.io/v1alpha1";

/// Kinds that hold a template of Pods, with their way on.
const WORKLOADS: [&str; 7] =
    ["CronJob", "DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"];

/// Kinds that later versions will take.
const NOT_YET: [&str; 8] = [
    "ConfigMap",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
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
        "PodPreset" | "PodPresetList" => Some(PRESET_VERSION),
        _ => None,
    }
}
