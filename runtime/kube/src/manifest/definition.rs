//! What all definitions have in common: objects besides Pods that manifests hold. Pure.
//!
//! Metadata is judged as that of the Pod would be that had nothing else.

use std::rc::Rc;

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use super::field::Errors;
use super::{Kind, ManifestCause, ManifestError, Origin, Validation, walk};
use crate::schema;

/// An object besides Pods.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Its kind.
    pub kind: Kind,
    /// `metadata.namespace`; empty for a kind without namespaces.
    pub namespace: Rc<str>,
    /// `metadata.name`.
    pub name: Rc<str>,
    /// The whole object as JSON with defaults applied, namespace and uid included. Parsed, an object of many short
    /// values takes ten times the memory.
    pub json: Box<RawValue>,
    /// What of it has no effect, for people.
    pub warnings: Vec<String>,
}

impl Definition {
    /// The whole object.
    pub fn object(&self) -> Value {
        serde_json::from_str(self.json.get()).unwrap_or_default()
    }

    /// Kind, namespace and name.
    pub fn key(&self) -> (Kind, Rc<str>, Rc<str>) {
        (self.kind, self.namespace.clone(), self.name.clone())
    }
}

/// The defaults and the rules of a kind: fields, which are of the right types, metadata, and what is wrong.
pub(super) type Rules = fn(&mut Map<String, Value>, &Value, &mut Errors);

const STAND_IN: &str =
    r#"{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "class", "image": ""}]}}"#;

/// Reads an object with the types of its kind and these rules.
pub(super) fn read(
    kind: Kind,
    mut object: Value,
    rules: Rules,
    (validation, node, file): (Validation, &str, Option<&str>),
) -> Result<Definition, ManifestError> {
    let metadata = object["metadata"].take();
    let findings = match schema::find(kind.as_str()) {
        Some(of) => walk::check(&mut object, of),
        None => walk::Findings::default(),
    };
    let unknown = findings.unknown.texts(ToString::to_string);
    if validation == Validation::Strict && !unknown.is_empty() {
        let paths = findings.unknown.into_parts().0.into_iter().map(|unknown| unknown.path).collect();
        return Err(ManifestError::new(ManifestCause::Strict { messages: unknown, paths }));
    }
    let mut errors = findings.errors;
    let mut fields = match object {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    if errors.is_empty() {
        rules(&mut fields, &metadata, &mut errors);
    }

    let name = metadata["name"].as_str().unwrap_or_default().to_owned();
    // The files that the agent writes have a uid, and keep the age of their objects.
    let is_identified = metadata["uid"].as_str().is_some_and(|uid| !uid.is_empty());
    let created = file.filter(|_| is_identified).map(|_| metadata["creationTimestamp"].clone());
    // Nothing but its metadata can be wrong with it. The uid of an object of a file comes from all of this.
    let mut stand_in: Value = serde_json::from_str(STAND_IN).expect("it is JSON");
    stand_in["metadata"] = metadata;
    stand_in["spec"]["containers"][0]["image"] = kind.row().uid_text.into();
    let manifest = match super::read_pod(stand_in, validation, node, file.map_or(Origin::Api, Origin::File)) {
        Ok(manifest) => Some(manifest),
        Err(ManifestError { cause: ManifestCause::Invalid { errors: found, more, .. }, .. }) => {
            errors.extend(found);
            errors.add_more(more);
            None
        }
        Err(error) => return Err(error),
    };
    let Some(mut manifest) = manifest.filter(|_| errors.is_empty()) else {
        let (errors, more) = errors.into_parts();
        return Err(ManifestError::new(ManifestCause::Invalid { name, errors, more }));
    };
    let mut metadata = manifest.object["metadata"].take();
    if let Some(created) = created.filter(Value::is_string) {
        metadata["creationTimestamp"] = created;
    }
    let mut namespace = manifest.pod.namespace.clone();
    if !kind.row().namespaced {
        namespace = "".into();
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.remove("namespace");
        }
    }
    let mut object = Value::Object(fields);
    object["metadata"] = metadata;
    let mut warnings = if validation == Validation::Warn { unknown } else { Vec::new() };
    warnings.append(&mut manifest.warnings);
    Ok(Definition {
        kind,
        namespace,
        name: manifest.pod.name.clone(),
        json: to_raw_value(&object).expect("JSON renders as JSON"),
        warnings,
    })
}

/// For a kind of which everything may change.
pub(crate) fn any_update(_: &Value, _: &Value) -> Result<(), ManifestError> {
    Ok(())
}

/// The answer to an update to `new`, of which `errors` are wrong.
pub(super) fn refuse_update(new: &Value, errors: Errors) -> Result<(), ManifestError> {
    if errors.is_empty() {
        return Ok(());
    }
    let (errors, more) = errors.into_parts();
    let name = new["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let kind = new["kind"].as_str().and_then(Kind::named).unwrap_or_default();
    Err(ManifestError { kind, ..ManifestError::new(ManifestCause::Invalid { name, errors, more }) })
}
