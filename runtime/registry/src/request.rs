//! Objects from clients: the fields that belong to the server, and the replies to rejected objects.

use serde_json::{Map, Value};

use super::live_objects::{CONFIG_HASH, CONFIG_SEEN, CONFIG_SOURCE};
pub(super) use super::status::refused;
use super::{FieldValidation, Registry, Status};
use nodlet_kube::kinds::Kind;
use nodlet_kube::manifest;

/// The fields of an object that only the server sets.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `metadata.uid`.
    pub uid: String,
    /// The suffix of a generated name.
    pub suffix: String,
    /// `metadata.creationTimestamp`.
    pub created: String,
}

impl Identity {
    /// Creates an identity from random bytes, with the time `created`.
    pub fn new(mut bytes: [u8; 16], suffix: [u8; 5], created: String) -> Identity {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        // A UUID of version 4.
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let uid = format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        let letter = |byte: u8| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]);
        Identity { uid, suffix: suffix.map(letter).iter().collect(), created }
    }
}

/// The options of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestOptions {
    /// The handling of unknown and duplicate fields.
    pub validation: FieldValidation,
    /// Whether to change nothing, and only return the outcome.
    pub dry_run: bool,
    /// Whether the object must not exist yet.
    pub new: bool,
    /// Whether a PersistentVolume without `claimRef` keeps that of its binding; see [`RequestOptions::of`].
    pub keeps_claim: bool,
}

impl RequestOptions {
    /// The options for an object as a client sent it. An object without a UID is a manifest, which says nothing of the
    /// claim that a volume is bound to. One with a UID was made of the published object, whose `claimRef` was removed.
    #[must_use]
    pub fn of(self, object: &Value) -> RequestOptions {
        RequestOptions { keeps_claim: object["metadata"]["uid"].is_null(), ..self }
    }
}

impl Registry {
    /// Prepares an object from a client: checks its preconditions, sets the fields that only the server sets,
    /// and removes the fields that clients must not set.
    ///
    /// # Errors
    /// A precondition does not hold.
    pub fn prepare(
        &self,
        kind: Kind,
        object: &mut Value,
        new: bool,
        identity: &Identity,
    ) -> Result<(), Status> {
        let checked = self.check_version(kind.resource(), object, new);
        if !new {
            checked.clone()?;
        }
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            strip(metadata);
            let prefix = metadata.get("generateName").and_then(Value::as_str);
            if let Some(prefix) = prefix
                && metadata.get("name").is_none_or(|name| name.is_null() || name == "")
            {
                // `generateName` and five characters (pod-semantics: names.SimpleNameGenerator).
                let cut: String = prefix.chars().take(58).collect();
                metadata.insert("name".into(), (cut + &identity.suffix).into());
            }
            metadata.insert("uid".into(), identity.uid.as_str().into());
            metadata.insert("creationTimestamp".into(), identity.created.as_str().into());
        }
        if let Some(fields) = object.as_object_mut() {
            fields.remove("status");
        }
        checked
    }
}

/// Removes the server's own fields, which are ignored in objects from clients.
pub(super) fn strip(metadata: &mut Map<String, Value>) {
    for field in [
        "uid",
        "creationTimestamp",
        "resourceVersion",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "selfLink",
    ] {
        metadata.remove(field);
    }
    strip_config(metadata);
}

/// Removes the annotations of published objects, which a client read and sends back.
fn strip_config(metadata: &mut Map<String, Value>) {
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return };
    let known = annotations.len();
    annotations.retain(|key, _| ![CONFIG_SOURCE, CONFIG_SEEN, CONFIG_HASH].contains(&key.as_str()));
    if known > 0 && annotations.is_empty() {
        metadata.remove("annotations");
    }
}

/// Checks the types of the fields that only the server sets, before it sets them.
///
/// # Errors
/// 422: fields of `metadata` or of the status have values of a wrong type.
pub fn check_types(object: &Value, kind: Kind) -> Result<(), Status> {
    manifest::check_types(object, kind, false).map_err(|error| refused(&error))
}

/// Whether two objects differ at most in fields that the server sets.
pub(super) fn same(old: &str, new: &Value) -> bool {
    let Ok(mut old) = serde_json::from_str::<Value>(old) else { return false };
    let mut new = new.clone();
    for object in [&mut old, &mut new] {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("uid");
            metadata.remove("creationTimestamp");
            metadata.remove("generation");
        }
    }
    old == new
}
