//! Objects that clients send: what in them is the server's own, what it gives them, and its answer to
//! those that it does not take.

use serde_json::Value;

use super::publish::strip_config;
use crate::api::{FieldValidation, Status};
use crate::manifest::{ManifestError, Validation};

/// Takes away the server's own fields: what a client sends there is not obeyed.
pub(super) fn strip(metadata: &mut serde_json::Map<String, Value>) {
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

/// How strictly a manifest is taken.
pub(super) fn how(validation: FieldValidation) -> Validation {
    match validation {
        FieldValidation::Strict => Validation::Strict,
        FieldValidation::Warn => Validation::Warn,
        FieldValidation::Ignore => Validation::Ignore,
    }
}

/// The answer to an object that is not admitted.
pub(super) fn refused(error: &ManifestError) -> Status {
    let mut status = error.status();
    let message = status["message"].as_str().unwrap_or_default().to_owned();
    match status["code"].as_u64() {
        Some(422) => {
            let mut invalid = Status::invalid(error.kind_name(), "", message, Vec::new());
            invalid.details = Some(status["details"].take());
            invalid
        }
        Some(_) | None => Status::bad_request(message),
    }
}

/// Whether two objects differ only in what the server itself gave them.
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

fn random<const N: usize>() -> Result<[u8; N], Status> {
    let mut bytes = [0; N];
    crate::random::unique(&mut bytes).map_err(Status::internal)?;
    Ok(bytes)
}

/// A UUID of version 4.
pub(super) fn random_uid() -> Result<String, Status> {
    let mut bytes = random::<16>()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

/// `generateName` and five characters (pod-semantics: names.SimpleNameGenerator).
pub(super) fn generated_name(prefix: &str) -> Result<String, Status> {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let cut: String = prefix.chars().take(58).collect();
    let end: String =
        random::<5>()?.iter().map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect();
    Ok(cut + &end)
}
