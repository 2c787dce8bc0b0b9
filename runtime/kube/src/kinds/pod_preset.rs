//! PodPresets (`settings.k8s.io/v1alpha1`, Kubernetes 1.6 to 1.19): fields that are added to
//! the Pods of a namespace at admission. Pure.
//!
//! A preset contains parts of a Pod, so it is validated as a stand-in Pod that has only these parts. Fields that
//! nodlet does not support are rejected as in a Pod.

use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};

use super::applied::AppliedPreset;
use super::definition::{self, Definition, Read, Reader};
use super::generic;
use super::strategy::Strategy;
use crate::kind::Kind;
use crate::object::check::Field;
use crate::object::error::{ManifestCause, ManifestError};
use crate::object::field::{Errors, FieldError, Path, quoted};
use crate::object::value::{list, map, text};
use crate::object::walk::Validation;
use crate::object::{rules, walk};
use crate::pod::{self, Manifest, Origin};
use nodlet_core::spec::pod::PRESET_MARK;

/// Annotation that excludes a Pod from presets.
const EXCLUDE: &str = "podpreset.admission.kubernetes.io/exclude";

/// Annotation of mirror pods.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Fields of a preset's spec that are added to containers.
const OF_CONTAINERS: [&str; 3] = ["env", "envFrom", "volumeMounts"];

/// Maximum length of a preset's name, which becomes a part of an annotation's name with at most 63 characters.
const NAME: usize = 63 - "podpreset-".len();

impl Definition {
    /// Whether the preset applies to this Pod, an object with a namespace.
    pub fn is_for(&self, pod: &Value) -> bool {
        let meta = &pod["metadata"];
        let annotation = |name: &str| meta["annotations"].get(name);
        self.kind == Kind::PodPreset
            && meta["namespace"] == *self.namespace
            && annotation(EXCLUDE).and_then(Value::as_str) != Some("true")
            && annotation(MIRROR).is_none()
            && selects(&self.object()["spec"]["selector"], &meta["labels"])
    }

    /// Returns the copy that is stored with a Pod.
    pub fn applied(&self, version: u64) -> AppliedPreset {
        let mut spec = self.object()["spec"].take();
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("selector");
        }
        AppliedPreset { name: self.name.to_string(), version: version.to_string(), spec }
    }
}

/// Adds presets to a defaulted Pod, in their order.
///
/// # Errors
/// The presets conflict with the Pod or with each other; the message is that of Kubernetes' admission.
pub(crate) fn apply(pod: &mut Value, presets: &[AppliedPreset]) -> Result<(), String> {
    let mut errors = Vec::new();
    let spec = &mut pod["spec"];
    merge(presets, "volumes", "volumes", &["name"], spec, &mut errors);
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            merge(presets, "env", "env", &["name"], container, &mut errors);
            // Sources contradict nothing, and each is read once.
            merge(presets, "envFrom", "", &[], container, &mut errors);
            let keys = &["name", "mountPath"];
            merge(presets, "volumeMounts", "volume mounts", keys, container, &mut errors);
        }
    }
    if !errors.is_empty() {
        errors.dedup();
        return Err(match &errors[..] {
            [error] => error.clone(),
            errors => format!("[{}]", errors.join(", ")),
        });
    }
    let annotations = &mut pod["metadata"]["annotations"];
    for preset in presets {
        annotations[format!("{PRESET_MARK}{}", preset.name)] = preset.version.as_str().into();
    }
    Ok(())
}

/// Adds missing elements to the list `field` of `owner`. Two elements that share one of `keys` must be equal.
fn merge(
    presets: &[AppliedPreset],
    field: &str,
    what: &str,
    keys: &[&str],
    owner: &mut Value,
    errors: &mut Vec<String>,
) {
    let before = owner.get(field).and_then(Value::as_array);
    let mut list = before.cloned().unwrap_or_default();
    let length = list.len();
    for preset in presets {
        for element in preset.spec.get(field).and_then(Value::as_array).into_iter().flatten() {
            let mut known = list.iter().any(|other| is_same(other, element));
            for key in keys {
                let Some(found) = list.iter().find(|other| other[key] == element[key]) else { continue };
                known = true;
                if !is_same(found, element) {
                    let on = if *key == "mountPath" { "mount path " } else { "" };
                    errors.push(format!(
                        "merging {what} for {} has a conflict on {on}{}: \n{element}\ndoes not match\n{found}\n in container",
                        preset.name,
                        element[key].as_str().unwrap_or_default()
                    ));
                }
            }
            if !known {
                list.push(element.clone());
            }
        }
    }
    if list.len() > length {
        owner[field] = Value::Array(list);
    }
}

/// Whether two values are equal for Go, for which an empty value equals a missing one.
fn is_same(one: &Value, other: &Value) -> bool {
    fn is_empty(value: &Value) -> bool {
        match value {
            Value::Null | Value::Bool(false) => true,
            Value::Bool(true) | Value::Number(_) => false,
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            // `emptyDir: {}` is something.
            Value::Object(_) => false,
        }
    }
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let covers = |one: &Map<String, Value>, other: &Map<String, Value>| {
                one.iter().all(|(name, value)| match other.get(name) {
                    Some(other) => is_same(value, other),
                    None => is_empty(value),
                })
            };
            covers(one, other) && covers(other, one)
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        (one, other) => one == other || is_empty(one) && is_empty(other),
    }
}

/// Whether a valid label selector selects these labels; one that is missing selects all.
pub fn selects(selector: &Value, labels: &Value) -> bool {
    let matches = |requirement: &Value| {
        let label = labels.get(text(requirement, "key"));
        let is_listed = || label.is_some_and(|label| list(requirement, "values").contains(label));
        match text(requirement, "operator") {
            "In" => is_listed(),
            "NotIn" => !is_listed(),
            "Exists" => label.is_some(),
            "DoesNotExist" => label.is_none(),
            _ => false,
        }
    };
    map(&selector["matchLabels"]).all(|(key, value)| labels.get(key) == Some(value))
        && list(selector, "matchExpressions").iter().all(matches)
}

pub(super) static STRATEGY: Strategy = Strategy {
    reader: Some(Reader { read: Read::Own(read), check_update: definition::any_update }),
    ..Strategy::new(generic::COLUMNS, generic::describe)
};

/// Reads a PodPreset. `file` is `None` for objects from the API.
fn read(
    mut object: Value,
    validation: Validation,
    node: &str,
    file: Option<&str>,
) -> Result<Definition, ManifestError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut unknown = Vec::new();
    if let Value::Object(map) = &mut object {
        map.retain(|field, _| {
            let known = ["apiVersion", "kind", "metadata", "spec"].contains(&field.as_str());
            if !known {
                unknown.push(field.clone());
            }
            known
        });
    }
    let mut errors = Errors::default();
    let root = Path::root("spec");
    let mut spec = match object["spec"].take() {
        Value::Object(spec) => spec,
        Value::Null => Map::new(),
        other => {
            errors.push(FieldError::type_invalid(&root, &other, "must be a map"));
            Map::new()
        }
    };
    spec.retain(|field, value| {
        let known = field == "selector" || field == "volumes" || OF_CONTAINERS.contains(&field.as_str());
        if !known {
            unknown.push(format!("spec.{field}"));
        }
        known && !value.is_null()
    });
    let mut selector = spec.remove("selector").unwrap_or_else(|| json!({}));
    let path = root.child("selector");
    match &selector {
        Value::Object(_) => {
            let findings = walk::check(&mut selector, "LabelSelector");
            for found in findings.unknown.iter() {
                unknown.push(format!("spec.selector.{}", found.path));
            }
            let (found, more) = findings.errors.into_parts();
            let below = |error: FieldError| FieldError { path: format!("{path}.{}", error.path), ..error };
            errors.extend(found.into_iter().map(below));
            errors.add_more(more);
        }
        other => errors.push(FieldError::type_invalid(&path, other, "must be a map")),
    }
    if errors.is_empty() {
        Field::root(&selector, "spec.selector", &mut errors).label_selector();
    }
    if spec.is_empty() {
        let lists = Field::root(&Value::Null, "spec.volumes.env.envFrom.volumeMounts", &mut errors);
        lists.required("must specify at least one");
    }
    if name.len() > NAME && rules::dns_subdomain(&name).is_empty() {
        let why =
            format!("must be no more than {NAME} characters: it becomes part of the name of an annotation");
        Field::root(&object["metadata"], "metadata", &mut errors).child("name").invalid(why);
    }

    // The Pod that it would make of an empty one.
    let mut container = Map::new();
    for field in OF_CONTAINERS {
        container.extend(spec.remove_entry(field));
    }
    let given: Vec<String> = container.keys().chain(spec.keys()).cloned().collect();
    container.insert("name".to_owned(), json!("preset"));
    container.insert("image".to_owned(), json!("preset"));
    spec.insert("containers".to_owned(), json!([container]));
    let created = definition::creation(&object["metadata"], file);
    let stand_in = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": object["metadata"].take(), "spec": spec,
    });
    let taken = pod::read(stand_in, validation, node, file.map_or(Origin::Api, Origin::File));
    let strict = validation == Validation::Strict && !unknown.is_empty();
    let warning = |field: &String| format!("unknown field {}", quoted(field));
    let mut manifest = match taken {
        Err(error) => {
            return Err(error_of_preset(error, unknown.iter().map(warning).zip(unknown.clone()), errors));
        }
        Ok(_) if strict => {
            let messages = unknown.iter().map(warning).collect();
            return Err(ManifestError::new(ManifestCause::Strict { messages, paths: unknown }));
        }
        Ok(_) if !errors.is_empty() => {
            return Err(ManifestError::invalid_name(&name, errors));
        }
        Ok(manifest) => manifest,
    };
    if validation == Validation::Warn {
        manifest.warnings.splice(0..0, unknown.iter().map(warning));
    }
    if let Some(created) = created {
        manifest.object["metadata"]["creationTimestamp"] = created;
    }
    Ok(preset(manifest, &given, selector))
}

/// Converts the validated stand-in Pod back into a preset.
fn preset(mut stand_in: Manifest, given: &[String], selector: Value) -> Definition {
    let mut spec = Map::new();
    spec.insert("selector".to_owned(), selector);
    let pod = &mut stand_in.object["spec"];
    for field in given {
        let of = if field == "volumes" { &mut *pod } else { &mut pod["containers"][0] };
        let value = of[field.as_str()].take();
        if !value.is_null() {
            spec.insert(field.clone(), value);
        }
    }
    let object = json!({
        "apiVersion": Kind::PodPreset.version(),
        "kind": Kind::PodPreset.as_str(),
        "metadata": stand_in.object["metadata"].take(),
        "spec": spec,
    });
    Definition {
        kind: Kind::PodPreset,
        namespace: stand_in.pod.namespace.clone(),
        name: stand_in.pod.name.clone(),
        json: to_raw_value(&object).expect("JSON renders as JSON"),
        warnings: stand_in.warnings.iter().map(|warning| of_preset(warning)).collect(),
    }
}

/// Converts an error about the stand-in Pod into one about the preset.
fn error_of_preset(
    error: ManifestError,
    unknown: impl Iterator<Item = (String, String)>,
    own: Errors,
) -> ManifestError {
    let cause = match error.cause {
        ManifestCause::Strict { messages, paths } => {
            let (mut all, mut at): (Vec<String>, Vec<String>) = unknown.unzip();
            all.extend(messages.iter().map(|message| of_preset(message)));
            at.extend(paths.iter().map(|path| of_preset(path)));
            ManifestCause::Strict { messages: all, paths: at }
        }
        ManifestCause::Invalid { name, errors, more } => {
            let (mut all, own_more) = own.into_parts();
            all.extend(errors.into_iter().map(|error| FieldError { path: of_preset(&error.path), ..error }));
            ManifestCause::Invalid { name, errors: all, more: more + own_more }
        }
        other => other,
    };
    ManifestError { cause, ..error }
}

fn of_preset(text: &str) -> String {
    text.replace("spec.containers[0].", "spec.")
}

#[cfg(test)]
mod tests;
