//! PersistentVolumes (`v1`): storage of the node, as they are read, and as `kubectl get` prints them. Pure.
//!
//! nodlet has no provisioner and attaches no storage of a network, so it rejects by name what would need one. Which
//! claim is bound to which volume is decided in the registry (`registry/src/claims.rs`).

pub(super) mod describe;

use serde_json::Value;

use super::cells::array;
use super::definition::{self, Read, Reader};
use super::strategy::{AGE, Column, NAME, Strategy, column, of as column_of};
use crate::object::check::Field;
use crate::object::error::ManifestError;
use crate::object::field::Errors;
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
    reader: Some(Reader { read: Read::Rules(rules), check_update }),
    ..Strategy::new(COLUMNS, describe::describe)
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Capacity", "/spec/capacity/storage"),
    column_of("Access Modes", "/spec/accessModes", access_modes_cell),
    column("Reclaim Policy", "/spec/persistentVolumeReclaimPolicy"),
    column("Status", "/status/phase"),
    column_of("Claim", "claimRef", |volume, field, _| match &volume["spec"][field] {
        claim @ Value::Object(_) => format!("{}/{}", text(claim, "namespace"), text(claim, "name")).into(),
        _ => "".into(),
    }),
    column("StorageClass", "/spec/storageClassName"),
    ATTRIBUTES_CLASS,
    column("Reason", "/status/reason"),
    AGE,
    column("VolumeMode", "/spec/volumeMode").wide(),
];

/// The column of a class that nodlet has none of.
pub(super) const ATTRIBUTES_CLASS: Column =
    column_of("VolumeAttributesClass", "<unset>", |_, text, _| text.into());

/// The cell with the access modes that a field lists.
pub(super) fn access_modes_cell(object: &Value, field: &str, _: Timestamp) -> Value {
    object.pointer(field).map_or_else(String::new, modes).into()
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
fn rules(volume: &mut Value, _: &Value, errors: &mut Errors) {
    let spec = &mut volume["spec"];
    default(spec, "persistentVolumeReclaimPolicy", "Retain");
    default(spec, "volumeMode", "Filesystem");
    if spec["hostPath"].is_object() {
        default(&mut spec["hostPath"], "type", "");
    }
    if let Some(capacity) = spec.get_mut("capacity") {
        canonical(capacity);
    }
    let spec = Field::root(spec, "spec", errors);
    let (capacity, policy) = (spec.child("capacity"), spec.child("persistentVolumeReclaimPolicy"));
    if list(spec.value, "accessModes").is_empty() {
        spec.child("accessModes").required("");
    }
    access_modes(spec);
    if map(capacity.value).next().is_none() {
        capacity.required("");
    }
    if map(capacity.value).any(|(resource, _)| resource != "storage") {
        capacity.with(&capacity.value.to_string().into()).not_supported(&["storage"]);
    }
    positive(capacity.key("storage"));
    if policy.text() == "Recycle" {
        policy.forbidden(
            "Recycle: deprecated by Kubernetes, and nodlet removes no data of a volume; write Retain",
        );
    } else {
        policy.supported(&["Delete", "Recycle", "Retain"]);
    }
    if let Some(nodes) = spec.get("nodeAffinity").filter(|nodes| nodes.value.is_object()) {
        let required = nodes.child("required");
        if required.value.is_object() {
            affinity::selector(required);
        } else {
            required.required("must specify required node constraints");
        }
    }
    sources(spec);
    common(spec);
}

fn sources(spec: Field<'_, '_>) {
    let is_source = |field: &str| !NO_SOURCE.contains(&field);
    let mut sources = spec.entries().filter(|(field, entry)| is_source(field) && entry.value.is_object());
    let Some((source, _)) = sources.next() else {
        return spec.required("must specify a volume type");
    };
    for (other, _) in sources {
        spec.child(other).forbidden("may not specify more than 1 volume type");
    }
    let field = spec.child(source);
    match source {
        "hostPath" => validate::host_path(field),
        "local" => {
            let path = field.child("path");
            path.require();
            path.no_back_steps();
            if !text(field.value, "fsType").is_empty() {
                let detail = "nodlet mounts no block device for a volume; mount it, and name the directory";
                field.child("fsType").forbidden(detail);
            }
            if !spec.value["nodeAffinity"]["required"].is_object() {
                spec.child("nodeAffinity").required("Local volume requires node affinity");
            }
        }
        _ => field.forbidden("nodlet provides no PersistentVolumes but those of hostPath and local"),
    }
}

/// `ValidatePersistentVolumeUpdate`
fn check_update(old: &Value, new: &Value) -> Result<(), ManifestError> {
    let mut errors = Errors::default();
    let (old_spec, new_spec) = (&old["spec"], &new["spec"]);
    if ["hostPath", "local"].iter().any(|source| old_spec[*source] != new_spec[*source]) {
        let source = Field::root(&Value::Null, "spec.persistentvolumesource", &mut errors);
        source.forbidden("spec.persistentvolumesource is immutable after creation");
    }
    definition::immutable(old_spec, new_spec, "volumeMode", &mut errors);
    if !old_spec["nodeAffinity"].is_null() && old_spec["nodeAffinity"] != new_spec["nodeAffinity"] {
        let affinity = Field::root(&new_spec["nodeAffinity"], "nodeAffinity", &mut errors);
        affinity.invalid_json("field is immutable");
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
