//! PersistentVolumes (`v1`): storage of the node, as they are read, and as `kubectl get` prints them. Pure.
//!
//! nodlet has no provisioner and attaches no storage of a network, so it rejects by name what would need one. Which
//! claim is bound to which volume is decided in the registry (`registry/src/claims.rs`).

pub(super) mod describe;

use serde_json::{Map, Value, json};

use super::cells::{age, array, timestamp};
use super::definition::{self, Read, Reader};
use super::describe::text::of;
use super::generic;
use super::strategy::{Column, Describe, Strategy};
use crate::object::check::no_back_steps;
use crate::object::error::ManifestError;
use crate::object::field::{Errors, FieldError, Path};
use crate::object::value::{list, map, text};
use crate::pod::claim::{access_modes, canonical, common, default, positive};
use crate::pod::convert;
use crate::pod::validate::{self, affinity};
use nodlet_core::spec::placement::Placement;
use nodlet_core::time::Timestamp;

/// Fields of a PersistentVolume that are no source of a volume.
const NO_SOURCE: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

pub(super) static STRATEGY: Strategy = Strategy {
    columns: COLUMNS,
    cells,
    row_conditions: generic::no_conditions,
    describe: Describe::WithEvents(describe::describe),
    reader: Some(Reader { read: Read::Rules(rules), check_update }),
};

const COLUMNS: &[Column] = &[
    ("Name", "string", "name", 0),
    ("Capacity", "string", "", 0),
    ("Access Modes", "string", "", 0),
    ("Reclaim Policy", "string", "", 0),
    ("Status", "string", "", 0),
    ("Claim", "string", "", 0),
    ("StorageClass", "string", "", 0),
    ("VolumeAttributesClass", "string", "", 0),
    ("Reason", "string", "", 0),
    ("Age", "string", "", 0),
    ("VolumeMode", "string", "", 1),
];

fn cells(volume: &Value, now: Timestamp) -> Vec<Value> {
    let (metadata, spec, status) = (&volume["metadata"], &volume["spec"], &volume["status"]);
    let claim = match &spec["claimRef"] {
        Value::Object(claim) => {
            let part = |field| claim.get(field).map_or("", of);
            format!("{}/{}", part("namespace"), part("name"))
        }
        _ => String::new(),
    };
    vec![
        of(&metadata["name"]).into(),
        of(&spec["capacity"]["storage"]).into(),
        modes(&spec["accessModes"]).into(),
        of(&spec["persistentVolumeReclaimPolicy"]).into(),
        of(&status["phase"]).into(),
        claim.into(),
        of(&spec["storageClassName"]).into(),
        "<unset>".into(),
        of(&status["reason"]).into(),
        age(timestamp(&metadata["creationTimestamp"]), now).into(),
        of(&spec["volumeMode"]).into(),
    ]
}

/// `GetAccessModesAsString`: the short names, each once, in a fixed order.
pub(super) fn modes(given: &Value) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| array(given).any(|given| given == mode);
    let short = SHORT.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short);
    short.collect::<Vec<_>>().join(",")
}

/// The defaults of a PersistentVolume, and `ValidatePersistentVolumeSpec`.
fn rules(fields: &mut Map<String, Value>, _: &Value, errors: &mut Errors) {
    fields.remove("status");
    let spec = fields.entry("spec").or_insert_with(|| json!({}));
    default(spec, "persistentVolumeReclaimPolicy", "Retain");
    default(spec, "volumeMode", "Filesystem");
    if spec["hostPath"].is_object() {
        default(&mut spec["hostPath"], "type", "");
    }
    if let Some(capacity) = spec.get_mut("capacity") {
        canonical(capacity);
    }
    let path = Path::root("spec");
    if list(spec, "accessModes").is_empty() {
        errors.push(FieldError::required(&path.child("accessModes"), ""));
    }
    access_modes(spec, &path, errors);
    let capacity = path.child("capacity");
    if map(&spec["capacity"]).next().is_none() {
        errors.push(FieldError::required(&capacity, ""));
    }
    if map(&spec["capacity"]).any(|(resource, _)| resource != "storage") {
        let given = spec["capacity"].to_string();
        errors.push(FieldError::not_supported(&capacity, &given, &["storage"]));
    }
    positive(&spec["capacity"]["storage"], &capacity.key("storage"), errors);
    match text(spec, "persistentVolumeReclaimPolicy") {
        "Retain" | "Delete" => {}
        "Recycle" => errors.push(FieldError::forbidden(
            &path.child("persistentVolumeReclaimPolicy"),
            "Recycle: deprecated by Kubernetes, and nodlet removes no data of a volume; write Retain",
        )),
        policy => errors.push(FieldError::not_supported(
            &path.child("persistentVolumeReclaimPolicy"),
            policy,
            &["Delete", "Recycle", "Retain"],
        )),
    }
    let required = &spec["nodeAffinity"]["required"];
    if spec["nodeAffinity"].is_object() {
        let path = path.child("nodeAffinity");
        match required {
            Value::Object(_) => affinity::selector(required, &path.child("required"), errors),
            _ => errors.push(FieldError::required(
                &path.child("required"),
                "must specify required node constraints",
            )),
        }
    }
    sources(spec, required.is_object(), &path, errors);
    common(spec, &path, errors);
}

/// Checks the source of a volume: there is exactly one, and it is one that nodlet has.
fn sources(spec: &Value, has_affinity: bool, path: &Path<'_>, errors: &mut Errors) {
    let is_source = |field: &str| !NO_SOURCE.contains(&field);
    let mut sources = map(spec).filter(|(field, value)| is_source(field) && value.is_object());
    let Some((source, value)) = sources.next() else {
        return errors.push(FieldError::required(path, "must specify a volume type"));
    };
    for (other, _) in sources {
        errors.push(FieldError::forbidden(&path.child(other), "may not specify more than 1 volume type"));
    }
    let at = path.child(source);
    match source.as_str() {
        "hostPath" => validate::host_path(value, &at, errors),
        "local" => {
            match text(value, "path") {
                "" => errors.push(FieldError::required(&at.child("path"), "")),
                local => no_back_steps(local, &at.child("path"), errors),
            }
            if !text(value, "fsType").is_empty() {
                let detail = "nodlet mounts no block device for a volume; mount it, and name the directory";
                errors.push(FieldError::forbidden(&at.child("fsType"), detail));
            }
            if !has_affinity {
                let detail = "Local volume requires node affinity";
                errors.push(FieldError::required(&path.child("nodeAffinity"), detail));
            }
        }
        _ => errors.push(FieldError::forbidden(
            &at,
            "nodlet provides no PersistentVolumes but those of hostPath and local",
        )),
    }
}

/// Checks an update of a PersistentVolume (`ValidatePersistentVolumeUpdate`).
///
/// # Errors
/// An immutable field has changed; the message is that of Kubernetes.
fn check_update(old: &Value, new: &Value) -> Result<(), ManifestError> {
    let mut errors = Errors::default();
    let (old_spec, new_spec) = (&old["spec"], &new["spec"]);
    let path = Path::root("spec");
    if ["hostPath", "local"].iter().any(|source| old_spec[*source] != new_spec[*source]) {
        errors.push(FieldError::forbidden(
            &path.child("persistentvolumesource"),
            "spec.persistentvolumesource is immutable after creation",
        ));
    }
    if old_spec["volumeMode"] != new_spec["volumeMode"] {
        let mode = text(new_spec, "volumeMode");
        errors.push(FieldError::invalid(&Path::root("volumeMode"), mode, "field is immutable"));
    }
    if !old_spec["nodeAffinity"].is_null() && old_spec["nodeAffinity"] != new_spec["nodeAffinity"] {
        let affinity = &new_spec["nodeAffinity"];
        errors.push(FieldError::invalid_value(&Path::root("nodeAffinity"), affinity, "field is immutable"));
    }
    definition::refuse_update(new, errors)
}

/// Why a released volume of the reclaim policy `Delete` cannot be deleted: the message of Kubernetes' PV controller. It
/// would delete a directory below /tmp, which nodlet does not. `None` for other policies.
pub fn delete_failure(volume: &Value) -> Option<String> {
    let spec = &volume["spec"];
    if text(spec, "persistentVolumeReclaimPolicy") != "Delete" {
        return None;
    }
    if !spec["hostPath"].is_object() {
        let name = text(&volume["metadata"], "name");
        return Some(format!(
            "error getting deleter volume plugin for volume {name:?}: no deletable volume plugin matched"
        ));
    }
    let path = text(&spec["hostPath"], "path");
    let is_temporary = path.split_once("/tmp/").is_some_and(|(_, rest)| !rest.is_empty());
    Some(if is_temporary {
        format!("nodlet removes no data of a volume: remove {path} yourself")
    } else {
        format!("host_path deleter only supports /tmp/.+ but received provided {path}")
    })
}

/// The nodes on which a PersistentVolume can be used.
pub fn placement(volume: &Value) -> Placement {
    convert::required_nodes(&volume["spec"]["nodeAffinity"]["required"])
}

#[cfg(test)]
mod tests;
