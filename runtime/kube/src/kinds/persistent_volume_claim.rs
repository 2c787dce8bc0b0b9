//! PersistentVolumeClaims (`v1`): requests for storage, as they are read, and as `kubectl get` prints them. Pure.
//!
//! The rules of their `spec` are in `pod/claim.rs`, because a Pod can have a template of a claim.

use serde_json::Value;

use super::definition::{self, Read, Reader};
use super::persistent_volume::{ATTRIBUTES_CLASS, access_modes_cell, describe};
use super::strategy::{AGE, Column, NAME, Related, Strategy, column, of as column_of};
use crate::object::check::Field;
use crate::object::error::ManifestError;
use crate::object::field::Errors;
use crate::object::value::text;
use crate::pod::claim::{claim_spec, default_claim};

pub use crate::pod::claim::EXCLUSIVE;

pub(super) static STRATEGY: Strategy = Strategy {
    related: Related::Pods,
    reader: Some(Reader { read: Read::Rules(rules), check_update }),
    ..Strategy::new(COLUMNS, describe::describe_claim)
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Status", "/status/phase"),
    column("Volume", "/spec/volumeName"),
    column("Capacity", "/status/capacity/storage"),
    column_of("Access Modes", "/status/accessModes", access_modes_cell),
    column("StorageClass", "/spec/storageClassName"),
    ATTRIBUTES_CLASS,
    AGE,
    column("VolumeMode", "/spec/volumeMode").wide(),
];

/// The defaults of a PersistentVolumeClaim, and `ValidatePersistentVolumeClaim`.
fn rules(claim: &mut Value, _: &Value, errors: &mut Errors) {
    let spec = &mut claim["spec"];
    default_claim(spec);
    claim_spec(Field::root(spec, "spec", errors));
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
        Field::root(&new["spec"], "spec", &mut errors).forbidden(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        );
    }
    definition::refuse_update(new, errors)
}

#[cfg(test)]
mod tests {
    use nodlet_core::time::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unbound_claim_has_empty_cells() {
        let pending = json!({"metadata": {"name": "data"}, "status": {"phase": "Pending"}});
        let expected = ["data", "Pending", "", "", "", "", "<unset>", "<unknown>", ""];
        assert_eq!(STRATEGY.cells(&pending, Timestamp(0)), expected);
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
