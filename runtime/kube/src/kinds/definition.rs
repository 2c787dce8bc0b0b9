//! Definitions: the objects in manifests besides Pods, and the rules that all of them share. Pure.
//!
//! Metadata is validated in the same way as that of a Pod.

use std::rc::Rc;

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::kind::Kind;
use crate::object::check::Field;
use crate::object::error::{ManifestCause, ManifestError};
use crate::object::field::Errors;
use crate::object::walk::{self, Findings, Validation};
use crate::pod::{self, Origin};

/// An object that is not a Pod.
#[derive(Clone, Debug)]
pub struct Definition {
    /// The kind of the object.
    pub kind: Kind,
    /// `metadata.namespace`; empty for a kind without namespaces.
    pub namespace: Rc<str>,
    /// `metadata.name`.
    pub name: Rc<str>,
    /// The whole object as JSON with defaults applied, namespace and uid included. The text needs a tenth of
    /// the memory of a parsed object with many short values.
    pub json: Box<RawValue>,
    /// Warnings for people about fields without effect.
    pub warnings: Vec<String>,
}

impl Definition {
    /// Returns the whole object.
    pub fn object(&self) -> Value {
        serde_json::from_str(self.json.get()).unwrap_or_default()
    }

    /// Returns the kind, the namespace and the name.
    pub fn key(&self) -> (Kind, Rc<str>, Rc<str>) {
        (self.kind, self.namespace.clone(), self.name.clone())
    }
}

/// How definitions of one kind are read, and how their updates are checked: a field of the kind's row.
pub(crate) struct Reader {
    /// How an object is read.
    pub(crate) read: Read,
    /// Checks an update by a client: the existing object and the new one.
    pub(crate) check_update: fn(&Value, &Value) -> Result<(), ManifestError>,
}

/// How a definition is read.
pub(crate) enum Read {
    /// Reads the object by the schema's types of its kind, and then by these rules.
    Rules(Rules),
    /// Reads the object by a function: of the object, its validation, the name of the node, and the name of the file, if
    /// the object is from a file.
    Own(fn(Value, Validation, &str, Option<&str>) -> Result<Definition, ManifestError>),
}

/// Sets the defaults of a kind and checks its rules. The arguments are the object without metadata and status, whose types
/// are right, the metadata, and the list to which errors are added.
pub(crate) type Rules = fn(&mut Value, &Value, &mut Errors);

const STAND_IN: &str =
    r#"{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "class", "image": ""}]}}"#;

/// Reads an object with the types of its kind and these rules.
pub(crate) fn read(
    kind: Kind,
    mut object: Value,
    rules: Rules,
    (validation, node, file): (Validation, &str, Option<&str>),
) -> Result<Definition, ManifestError> {
    let metadata = object["metadata"].take();
    let Findings { unknown, mut errors } = walk::check(&mut object, kind.as_str());
    let mut warnings = walk::warnings(unknown, validation)?;
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if errors.is_empty() {
        rules(&mut object, &metadata, &mut errors);
    }

    let name = metadata["name"].as_str().unwrap_or_default().to_owned();
    let created = creation(&metadata, file);
    // Only the metadata of this Pod can be wrong. The uid of an object from a file is a hash of the whole Pod.
    let mut stand_in: Value = serde_json::from_str(STAND_IN).expect("it is JSON");
    stand_in["metadata"] = metadata;
    stand_in["spec"]["containers"][0]["image"] = kind.row().uid_text().into();
    let manifest = match pod::read(stand_in, validation, node, file.map_or(Origin::Api, Origin::File)) {
        Ok(manifest) => Some(manifest),
        Err(ManifestError { cause: ManifestCause::Invalid { errors: found, more, .. }, .. }) => {
            // A kind may have a stricter rule for names.
            let has_name = errors.iter().any(|error| error.path == "metadata.name");
            errors.extend(found.into_iter().filter(|error| !has_name || error.path != "metadata.name"));
            errors.add_more(more);
            None
        }
        Err(error) => return Err(error),
    };
    let Some(mut manifest) = manifest.filter(|_| errors.is_empty()) else {
        return Err(ManifestError::invalid_name(&name, errors));
    };
    let mut metadata = manifest.object["metadata"].take();
    if let Some(created) = created {
        metadata["creationTimestamp"] = created;
    }
    // The one kind that Kubernetes counts changes of, and it never changes.
    if kind == Kind::PriorityClass {
        metadata["generation"] = 1.into();
    }
    let mut namespace = manifest.pod.namespace.clone();
    if !kind.row().namespaced {
        namespace = "".into();
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.remove("namespace");
        }
    }
    object["metadata"] = metadata;
    warnings.append(&mut manifest.warnings);
    Ok(Definition {
        kind,
        namespace,
        name: manifest.pod.name.clone(),
        json: to_raw_value(&object).expect("JSON renders as JSON"),
        warnings,
    })
}

/// The `creationTimestamp` that the object of a file keeps. The files that the agent writes have a uid, and keep the age
/// of their objects.
pub(super) fn creation(metadata: &Value, file: Option<&str>) -> Option<Value> {
    let is_identified = metadata["uid"].as_str().is_some_and(|uid| !uid.is_empty());
    file.filter(|_| is_identified).map(|_| metadata["creationTimestamp"].clone()).filter(Value::is_string)
}

/// Allows every update, for kinds without immutable fields.
pub(crate) fn any_update(_: &Value, _: &Value) -> Result<(), ManifestError> {
    Ok(())
}

/// Returns the result of an update to `new` with these `errors`.
pub(super) fn refuse_update(new: &Value, errors: Errors) -> Result<(), ManifestError> {
    if errors.is_empty() {
        return Ok(());
    }
    let kind = new["kind"].as_str().and_then(Kind::named).unwrap_or(Kind::Pod);
    Err(ManifestError { kind, ..ManifestError::invalid(new, errors) })
}

/// Checks that an update does not change a field of the object.
pub(super) fn immutable(old: &Value, new: &Value, field: &str, errors: &mut Errors) {
    if old[field] != new[field] {
        Field::root(&new[field], field, errors).invalid("field is immutable");
    }
}
