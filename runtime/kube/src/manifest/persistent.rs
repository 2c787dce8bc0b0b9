//! PersistentVolumes and PersistentVolumeClaims (`v1`): storage of the node, and requests for it. Pure.
//!
//! nodlet has no provisioner and attaches no storage of a network, so it rejects by name what would need one. Which
//! claim is bound to which volume is decided in the registry (`registry/src/claims.rs`).
//! Read next: `manifest/definition.rs`, which validates the metadata.

use serde_json::{Map, Value, json};

use super::convert;
use super::definition::{self, Read, Reader};
use super::validate::{self, affinity};
use crate::object::check::invalid;
use crate::object::error::ManifestError;
use crate::object::field::{Errors, FieldError, Path};
use crate::object::value::{list, map, text};
use crate::object::{check, rules};
use nodlet_core::spec::Quantity;
use nodlet_core::spec::placement::Placement;

/// `supportedAccessModes`, in the order of printing.
const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// `supportedVolumeModes`, in the order of printing.
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

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

/// Fields that ask for something that nodlet does not do, with the reason.
const REFUSED: [(&str, &str); 4] = [
    ("mountOptions", "may not specify mount options for this volume type"),
    ("volumeAttributesClassName", "nodlet has no classes of volume attributes"),
    ("dataSource", "nodlet fills no volume from another object"),
    ("dataSourceRef", "nodlet fills no volume from another object"),
];

/// Reads PersistentVolumes.
pub(crate) const VOLUME_READER: Reader =
    Reader { read: Read::Rules(volume), check_update: check_volume_update };

/// Reads PersistentVolumeClaims.
pub(crate) const CLAIM_READER: Reader = Reader { read: Read::Rules(claim), check_update: check_claim_update };

/// The defaults of a PersistentVolume, and `ValidatePersistentVolumeSpec`.
fn volume(fields: &mut Map<String, Value>, _: &Value, errors: &mut Errors) {
    fields.remove("status");
    let spec = fields.entry("spec").or_insert_with(|| json!({}));
    default(spec, "persistentVolumeReclaimPolicy", "Retain");
    default(spec, "volumeMode", "Filesystem");
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
        "Retain" => {}
        policy @ ("Delete" | "Recycle") => errors.push(FieldError::forbidden(
            &path.child("persistentVolumeReclaimPolicy"),
            format!("{policy}: nodlet removes no data of a volume; write Retain, and remove them yourself"),
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
                local => check::no_back_steps(local, &at.child("path"), errors),
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

/// The defaults of a PersistentVolumeClaim, and `ValidatePersistentVolumeClaim`.
fn claim(fields: &mut Map<String, Value>, _: &Value, errors: &mut Errors) {
    fields.remove("status");
    let spec = fields.entry("spec").or_insert_with(|| json!({}));
    default_claim(spec);
    claim_spec(spec, &Path::root("spec"), errors);
}

/// Sets the defaults of a claim's `spec`.
pub(super) fn default_claim(spec: &mut Value) {
    default(spec, "volumeMode", "Filesystem");
    if let Some(requests) = spec.get_mut("resources").and_then(|resources| resources.get_mut("requests")) {
        canonical(requests);
    }
}

/// Checks `ephemeral.volumeClaimTemplate` (`ValidatePersistentVolumeClaimTemplate`).
pub(super) fn claim_template(template: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (field, _) in
        map(&template["metadata"]).filter(|(field, _)| *field != "labels" && *field != "annotations")
    {
        errors.push(FieldError::forbidden(&path.child("metadata").child(field), "cannot be set"));
    }
    claim_spec(&template["spec"], &path.child("spec"), errors);
}

/// `ValidatePersistentVolumeClaimSpec`
fn claim_spec(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    if list(spec, "accessModes").is_empty() {
        errors.push(FieldError::required(&path.child("accessModes"), "at least 1 access mode is required"));
    }
    selector(&spec["selector"], &path.child("selector"), errors);
    access_modes(spec, path, errors);
    let storage = path.child("resources");
    let storage = storage.key("storage");
    match &spec["resources"]["requests"]["storage"] {
        Value::Null => errors.push(FieldError::required(&storage, "")),
        requested => positive(requested, &storage, errors),
    }
    common(spec, path, errors);
}

/// The rules that the specs of volumes and claims share.
fn common(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let class = text(spec, "storageClassName");
    if !class.is_empty() {
        invalid(&path.child("storageClassName"), class, rules::dns_subdomain(class), errors);
    }
    let mode = text(spec, "volumeMode");
    if !VOLUME_MODES.contains(&mode) {
        errors.push(FieldError::not_supported(&path.child("volumeMode"), mode, &VOLUME_MODES));
    }
    for (field, why) in REFUSED {
        let is_set = match &spec[field] {
            Value::Null => false,
            Value::Array(list) => !list.is_empty(),
            Value::String(text) => !text.is_empty(),
            _ => true,
        };
        if is_set {
            errors.push(FieldError::forbidden(&path.child(field), why));
        }
    }
}

fn access_modes(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let path = path.child("accessModes");
    let modes: Vec<&str> = list(spec, "accessModes").iter().filter_map(Value::as_str).collect();
    for mode in modes.iter().filter(|mode| !ACCESS_MODES.contains(*mode)) {
        errors.push(FieldError::not_supported(&path, mode, &ACCESS_MODES));
    }
    let is_other = |mode: &&str| ACCESS_MODES.contains(mode) && *mode != EXCLUSIVE;
    if modes.contains(&EXCLUSIVE) && modes.iter().any(is_other) {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(&path, detail));
    }
}

/// The access mode of volumes that one pod at a time may use.
pub const EXCLUSIVE: &str = "ReadWriteOncePod";

/// `ValidateLabelSelector`
fn selector(selector: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (key, value) in map(&selector["matchLabels"]) {
        let path = path.child("matchLabels");
        invalid(&path, key, rules::qualified_name(key), errors);
        let value = value.as_str().unwrap_or_default();
        invalid(&path.key(key), value, rules::label_value(value), errors);
    }
    for (index, requirement) in list(selector, "matchExpressions").iter().enumerate() {
        let path = path.child("matchExpressions");
        let path = path.index(index);
        let (operator, values) = (text(requirement, "operator"), list(requirement, "values"));
        match operator {
            "In" | "NotIn" if values.is_empty() => errors.push(FieldError::required(
                &path.child("values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            )),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(FieldError::forbidden(
                &path.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => errors.push(FieldError::invalid(
                &path.child("operator"),
                operator,
                "not a valid selector operator",
            )),
        }
        let key = text(requirement, "key");
        invalid(&path.child("key"), key, rules::qualified_name(key), errors);
    }
}

/// Checks an amount of storage (`ValidatePositiveQuantityValue`).
fn positive(amount: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(given) = amount.as_str() else { return };
    if Quantity::parse(given).is_ok_and(|amount| amount.is_negative() || amount.is_zero()) {
        errors.push(FieldError::invalid(path, given, "must be greater than zero"));
    }
}

fn default(spec: &mut Value, field: &str, value: &str) {
    if text(spec, field).is_empty() {
        spec[field] = value.into();
    }
}

/// Writes amounts as Kubernetes does: `1024Mi` as `1Gi`.
fn canonical(amounts: &mut Value) {
    for amount in amounts.as_object_mut().into_iter().flat_map(Map::values_mut) {
        let given = amount.as_str().map(str::to_owned).unwrap_or_else(|| amount.to_string());
        if let Ok(parsed) = Quantity::parse(&given) {
            *amount = parsed.to_string().into();
        }
    }
}

/// Checks an update of a PersistentVolume (`ValidatePersistentVolumeUpdate`).
///
/// # Errors
/// An immutable field has changed; the message is that of Kubernetes.
fn check_volume_update(old: &Value, new: &Value) -> Result<(), ManifestError> {
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

/// Checks an update of a PersistentVolumeClaim (`ValidatePersistentVolumeClaimUpdate`). A claim without `volumeName`
/// keeps its volume: the manifest from which it was created names none.
///
/// # Errors
/// An immutable field has changed; the message is that of Kubernetes.
fn check_claim_update(old: &Value, new: &Value) -> Result<(), ManifestError> {
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

/// The nodes on which a PersistentVolume can be used.
pub fn placement(volume: &Value) -> Placement {
    convert::required_nodes(&volume["spec"]["nodeAffinity"]["required"])
}

#[cfg(test)]
mod tests;
