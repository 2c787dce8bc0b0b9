//! What clients ask of objects, and what they are answered: the data of requests, whatever brings them.

use serde_json::Value;

use super::{PatchKind, Status, patch};

/// How an object that is there is to change.
#[derive(Debug)]
pub enum Change {
    /// It is this from now on.
    Replace(Value),
    /// A patch says what is another.
    Patch(PatchKind, Value),
}

/// `preconditions` of a deletion: what the object must be to be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// `metadata.uid`.
    pub uid: Option<String>,
    /// `metadata.resourceVersion`.
    pub resource_version: Option<String>,
}

impl Preconditions {
    /// Checks an object of `kind`.
    ///
    /// # Errors
    /// 409, in the words of `BeforeDelete`: it is another object, or has changed.
    pub(super) fn check(&self, kind: &str, name: &str, object: &Value) -> Result<(), Status> {
        let of = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let conflict = |field: &str, asked: &str, has: &str, then: &str| {
            Status::conflict(
                kind,
                name,
                &format!(
                    "the {field} in the precondition ({asked}) does not match the {field} in record ({has}). The object might have been {then}"
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
    /// `current` as it is to be.
    ///
    /// # Errors
    /// The patch says what no patch can, or makes another object of it.
    pub(super) fn apply(self, current: &Value) -> Result<Value, Status> {
        match self {
            Change::Replace(new) => Ok(new),
            Change::Patch(how, patch) => {
                let mut object = current.clone();
                patch::apply(&mut object, &patch, how, current["kind"].as_str().unwrap_or("Pod"))?;
                check_name(&object, current)?;
                Ok(object)
            }
        }
    }
}

/// `checkName`: what a patch makes is called as the URL says.
fn check_name(object: &Value, current: &Value) -> Result<(), Status> {
    let of = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (name, in_url) = (of(object, "name"), of(current, "name"));
    let (namespace, asked) = (of(object, "namespace"), of(current, "namespace"));
    let why = if name.is_empty() {
        format!("the name of the object ({in_url} based on URL) was undeterminable: name must be provided")
    } else if name != in_url {
        format!("the name of the object ({name}) does not match the name on the URL ({in_url})")
    } else if !namespace.is_empty() && namespace != asked {
        format!(
            "the namespace of the object ({namespace}) does not match the namespace on the request ({asked})"
        )
    } else {
        return Ok(());
    };
    Err(Status::bad_request(why))
}

/// What part of an object an update is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but its status.
    Whole,
    /// Its status alone.
    Status,
}

/// `fieldValidation` of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Refuse the object.
    #[default]
    Strict,
    /// Take it and say so.
    Warn,
    /// Take it.
    Ignore,
}

/// A pod that was taken.
#[derive(Debug)]
pub struct Accepted {
    /// As admitted.
    pub object: Value,
    /// What it did.
    pub applied: Applied,
    /// What its owner should know, a sentence each: fields without effect, deprecated ones.
    pub warnings: Vec<String>,
}

/// What applying a manifest did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// There was no such pod.
    Created,
    /// The old one is being replaced.
    Configured,
    /// It was the same.
    Unchanged,
}
