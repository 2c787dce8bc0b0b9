//! What all definitions have in common: objects besides Pods that manifests hold. Pure.
//!
//! Metadata is judged as that of the Pod would be that had nothing else.

use std::rc::Rc;

use serde_json::{Map, Value, json};

use super::field::Errors;
use super::{Kind, ManifestCause, ManifestError, Origin, Validation};

/// An object besides Pods.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Its kind.
    pub kind: Kind,
    /// `metadata.namespace`; empty for a kind without namespaces.
    pub namespace: Rc<str>,
    /// `metadata.name`.
    pub name: Rc<str>,
    /// The whole object with defaults applied, namespace and uid included.
    pub object: Value,
    /// Bytes of its object as JSON.
    pub size: usize,
    /// What of it has no effect, for people.
    pub warnings: Vec<String>,
}

impl Definition {
    /// Kind, namespace and name.
    pub fn key(&self) -> (Kind, Rc<str>, Rc<str>) {
        (self.kind, self.namespace.clone(), self.name.clone())
    }
}

/// Judges `metadata` and returns it with `fields` as one definition, or all that is wrong with both: `errors` are
/// those of `fields`.
pub(super) fn finish(
    kind: Kind,
    metadata: Value,
    fields: Value,
    mut errors: Errors,
    (validation, node, file): (Validation, &str, Option<&str>),
) -> Result<Definition, ManifestError> {
    let name = metadata["name"].as_str().unwrap_or_default().to_owned();
    // The files that the agent writes have a uid, and keep the age of their objects.
    let is_identified = metadata["uid"].as_str().is_some_and(|uid| !uid.is_empty());
    let created = file.filter(|_| is_identified).map(|_| metadata["creationTimestamp"].clone());
    // Nothing but its metadata can be wrong with it. The uid of an object of a file comes from all of this.
    let image = if kind == Kind::PriorityClass { "class" } else { kind.resource() };
    let stand_in = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"containers": [{"name": "class", "image": image}]},
    });
    let manifest = match super::take(stand_in, validation, node, file.map_or(Origin::Api, Origin::File)) {
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
    let mut object = match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    object.insert("apiVersion".to_owned(), kind.version().into());
    object.insert("kind".to_owned(), kind.as_str().into());
    object.insert("metadata".to_owned(), metadata);
    let object = Value::Object(object);
    Ok(Definition {
        kind,
        namespace,
        name: manifest.pod.name.clone(),
        size: object.to_string().len(),
        object,
        warnings: manifest.warnings,
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
