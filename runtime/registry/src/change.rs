//! The data of requests of clients and of their replies, independent of the transport.

use serde_json::{Value, json};

use super::status::refused;
use super::{PatchKind, Status, patch};
use nodlet_kube::kinds::Kind;
use nodlet_kube::manifest;
pub use nodlet_kube::manifest::Validation as FieldValidation;

/// A change of an existing object.
#[derive(Debug)]
pub enum Change {
    /// Replaces the object.
    Replace(Value),
    /// Patches the object.
    Patch(PatchKind, Value),
}

/// `preconditions` of a deletion: the expected identity of the object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// `metadata.uid`.
    pub uid: Option<String>,
    /// `metadata.resourceVersion`.
    pub resource_version: Option<String>,
}

impl Preconditions {
    /// Checks the preconditions for an object of `kind`.
    ///
    /// # Errors
    /// 409, in the words of `BeforeDelete`: the object is another one, or has changed.
    pub(super) fn check(&self, kind: &str, name: &str, object: &Value) -> Result<(), Status> {
        let of = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let conflict = |field: &str, requested: &str, has: &str, then: &str| {
            Status::conflict(
                kind,
                name,
                &format!(
                    "the {field} in the precondition ({requested}) does not match the {field} in record ({has}). The object might have been {then}"
                ),
            )
        };
        match (&self.uid, &self.resource_version) {
            (Some(uid), _) if *uid != of("uid") => {
                Err(conflict("UID", uid, of("uid"), "deleted and then recreated"))
            }
            (_, Some(version)) if *version != of("resourceVersion") => {
                Err(conflict("ResourceVersion", version, of("resourceVersion"), "modified"))
            }
            (_, _) => Ok(()),
        }
    }
}

impl Change {
    /// Returns the changed object.
    ///
    /// # Errors
    /// The patch is invalid, or changes the name of the object.
    pub(super) fn apply(self, current: &Value) -> Result<Value, Status> {
        match self {
            Change::Replace(new) => Ok(new),
            Change::Patch(how, patch) => {
                let mut object = current.clone();
                patch::apply(&mut object, &patch, how, current["kind"].as_str().unwrap_or("Pod"))?;
                if object.is_object() && (object["kind"].is_null() || object["kind"] == "") {
                    object["kind"] = current["kind"].clone();
                }
                let kind = current["kind"].as_str().and_then(Kind::named).unwrap_or(Kind::Pod);
                manifest::check_types(&object, kind, true).map_err(|error| refused(&error))?;
                check_name(&object, current)?;
                Ok(object)
            }
        }
    }
}

/// `checkName`: checks that a patched object has the name in the URL, and the UID of the existing object.
fn check_name(object: &Value, current: &Value) -> Result<(), Status> {
    let of = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (name, in_url) = (of(object, "name"), of(current, "name"));
    let (namespace, requested) = (of(object, "namespace"), of(current, "namespace"));
    let (uid, requested_uid) = (of(current, "uid"), of(object, "uid"));
    let why = if !namespace.is_empty() && namespace != requested {
        "the namespace of the provided object does not match the namespace sent on the request".to_owned()
    } else if name.is_empty() {
        format!("the name of the object ({in_url} based on URL) was undeterminable: name must be provided")
    } else if name != in_url {
        format!("the name of the object ({name}) does not match the name on the URL ({in_url})")
    } else if !requested_uid.is_empty() && requested_uid != uid {
        let kind = current["kind"].as_str().and_then(Kind::named).unwrap_or(Kind::Pod).row().qualified_kind();
        let why = format!("Invalid value: {}: field is immutable", manifest::go_quoted(&requested_uid));
        let message = format!("{kind} \"{name}\" is invalid: metadata.uid: {why}");
        let cause = json!({"reason": "FieldValueInvalid", "message": why, "field": "metadata.uid"});
        return Err(Status::invalid(&kind, &name, message, vec![cause]));
    } else {
        return Ok(());
    };
    Err(Status::bad_request(why))
}

/// The part of an object that an update is limited to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything except the status.
    Whole,
    /// Only the status.
    Status,
    /// Only the amounts of cpu and memory (`resize`).
    Resize,
}

/// An accepted object.
#[derive(Debug)]
pub struct Accepted {
    /// The object as admitted.
    pub object: Value,
    /// The effect of the request.
    pub applied: Applied,
    /// Warnings, one sentence each: about fields without effect, or deprecated fields.
    pub warnings: Vec<String>,
}

/// The effect of applying a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The object is new.
    Created,
    /// The object is changed or replaced.
    Configured,
    /// The object is unchanged.
    Unchanged,
}
