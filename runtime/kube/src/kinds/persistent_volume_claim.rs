//! PersistentVolumeClaims (`v1`): requests for storage, as they are read, and as `kubectl get` prints them. Pure.
//!
//! The rules of their `spec` are in `pod/claim.rs`, because a Pod can have a template of a claim.

use serde_json::{Map, Value, json};

use super::cells::{age, timestamp};
use super::definition::{self, Read, Reader};
use super::describe::text::of;
use super::generic;
use super::persistent_volume::{describe, modes};
use super::strategy::{Column, Describe, Strategy};
use crate::object::error::ManifestError;
use crate::object::field::{Errors, FieldError, Path};
use crate::object::value::text;
use crate::pod::claim::{claim_spec, default_claim};
use nodlet_core::time::Timestamp;

pub use crate::pod::claim::EXCLUSIVE;

pub(super) static STRATEGY: Strategy = Strategy {
    columns: COLUMNS,
    cells,
    row_conditions: generic::no_conditions,
    describe: Describe::Claim(describe::describe_claim),
    reader: Some(Reader { read: Read::Rules(rules), check_update }),
};

const COLUMNS: &[Column] = &[
    ("Name", "string", "name", 0),
    ("Status", "string", "", 0),
    ("Volume", "string", "", 0),
    ("Capacity", "string", "", 0),
    ("Access Modes", "string", "", 0),
    ("StorageClass", "string", "", 0),
    ("VolumeAttributesClass", "string", "", 0),
    ("Age", "string", "", 0),
    ("VolumeMode", "string", "", 1),
];

fn cells(claim: &Value, now: Timestamp) -> Vec<Value> {
    let (metadata, spec, status) = (&claim["metadata"], &claim["spec"], &claim["status"]);
    vec![
        of(&metadata["name"]).into(),
        of(&status["phase"]).into(),
        of(&spec["volumeName"]).into(),
        of(&status["capacity"]["storage"]).into(),
        modes(&status["accessModes"]).into(),
        of(&spec["storageClassName"]).into(),
        "<unset>".into(),
        age(timestamp(&metadata["creationTimestamp"]), now).into(),
        of(&spec["volumeMode"]).into(),
    ]
}

/// The defaults of a PersistentVolumeClaim, and `ValidatePersistentVolumeClaim`.
fn rules(fields: &mut Map<String, Value>, _: &Value, errors: &mut Errors) {
    fields.remove("status");
    let spec = fields.entry("spec").or_insert_with(|| json!({}));
    default_claim(spec);
    claim_spec(spec, &Path::root("spec"), errors);
}

/// Checks an update of a PersistentVolumeClaim (`ValidatePersistentVolumeClaimUpdate`). A claim without `volumeName`
/// keeps its volume: the manifest from which it was created names none.
///
/// # Errors
/// An immutable field has changed; the message is that of Kubernetes.
fn check_update(old: &Value, new: &Value) -> Result<(), ManifestError> {
    let mut errors = Errors::default();
    let mut was = old["spec"].clone();
    if text(&was, "volumeName").is_empty() || text(&new["spec"], "volumeName").is_empty() {
        match new["spec"].get("volumeName") {
            Some(name) => was["volumeName"] = name.clone(),
            None => drop(was.as_object_mut().and_then(|was| was.remove("volumeName"))),
        }
    }
    if was != new["spec"] {
        errors.push(FieldError::forbidden(
            &Path::root("spec"),
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        ));
    }
    definition::refuse_update(new, errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unbound_claim_has_empty_cells() {
        let pending = json!({"metadata": {"name": "data"}, "status": {"phase": "Pending"}});
        let expected = ["data", "Pending", "", "", "", "", "<unset>", "<unknown>", ""];
        assert_eq!(cells(&pending, Timestamp(0)), expected);
    }

    #[test]
    fn the_spec_of_a_claim_is_immutable_besides_the_volume_name() {
        let claim =
            |spec: Value| json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "a"}, "spec": spec});
        let bound = claim(json!({"volumeName": "v", "volumeMode": "Block"}));
        let unnamed = claim(json!({"volumeMode": "Block"}));
        assert!(check_update(&bound, &unnamed).is_ok() && check_update(&unnamed, &bound).is_ok());
        let other = claim(json!({"volumeName": "w", "volumeMode": "Block"}));
        let refused = check_update(&bound, &other).expect_err("another volume").to_string();
        assert!(refused.contains("spec: Forbidden: spec is immutable after creation"), "{refused}");
    }
}
