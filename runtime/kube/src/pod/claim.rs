//! The `spec` of a PersistentVolumeClaim, of which a Pod can have a template, and the rules that PersistentVolumes share
//! with it. Pure.

use serde_json::{Map, Value};

use crate::object::check::invalid;
use crate::object::field::{Errors, FieldError, Path};
use crate::object::rules;
use crate::object::value::{list, map, text};
use nodlet_core::spec::Quantity;

/// `supportedAccessModes`, in the order of printing.
const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// `supportedVolumeModes`, in the order of printing.
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// Fields that ask for something that nodlet does not do, with the reason.
const REFUSED: [(&str, &str); 4] = [
    ("mountOptions", "may not specify mount options for this volume type"),
    ("volumeAttributesClassName", "nodlet has no classes of volume attributes"),
    ("dataSource", "nodlet does not fill volumes from other objects"),
    ("dataSourceRef", "nodlet does not fill volumes from other objects"),
];

/// Sets the defaults of a claim's `spec`.
pub(crate) fn default_claim(spec: &mut Value) {
    default(spec, "volumeMode", "Filesystem");
    if let Some(requests) = spec.get_mut("resources").and_then(|resources| resources.get_mut("requests")) {
        canonical(requests);
    }
}

/// Checks `ephemeral.volumeClaimTemplate` (`ValidatePersistentVolumeClaimTemplate`).
pub(crate) fn claim_template(template: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (field, _) in
        map(&template["metadata"]).filter(|(field, _)| *field != "labels" && *field != "annotations")
    {
        errors.push(FieldError::forbidden(&path.child("metadata").child(field), "cannot be set"));
    }
    claim_spec(&template["spec"], &path.child("spec"), errors);
}

/// `ValidatePersistentVolumeClaimSpec`
pub(crate) fn claim_spec(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
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
pub(crate) fn common(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
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

/// Checks `accessModes` of a volume or claim.
pub(crate) fn access_modes(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
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
pub(crate) fn positive(amount: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(given) = amount.as_str() else { return };
    if Quantity::parse(given).is_ok_and(|amount| amount.is_negative() || amount.is_zero()) {
        errors.push(FieldError::invalid(path, given, "must be greater than zero"));
    }
}

/// Sets a field that is missing or empty.
pub(crate) fn default(spec: &mut Value, field: &str, value: &str) {
    if text(spec, field).is_empty() {
        spec[field] = value.into();
    }
}

/// Writes amounts as Kubernetes does: `1024Mi` as `1Gi`, in whole thousandths.
pub(crate) fn canonical(amounts: &mut Value) {
    for amount in amounts.as_object_mut().into_iter().flat_map(Map::values_mut) {
        let given = amount.as_str().map(str::to_owned).unwrap_or_else(|| amount.to_string());
        if let Ok(shown) = Quantity::shown(&given, true) {
            *amount = shown.into();
        }
    }
}
