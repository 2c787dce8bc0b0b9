//! The `spec` of a PersistentVolumeClaim, of which a Pod can have a template, and the rules that PersistentVolumes share
//! with it. Pure.

use serde_json::{Map, Value};

use crate::object::check::Field;
use crate::object::rules;
use crate::object::value::{list, text};
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
pub(crate) fn claim_template(template: Field<'_, '_>) {
    let metadata = template.child("metadata");
    for (field, _) in metadata.entries().filter(|(field, _)| *field != "labels" && *field != "annotations") {
        metadata.child(field).forbidden("cannot be set");
    }
    claim_spec(template.child("spec"));
}

/// `ValidatePersistentVolumeClaimSpec`
pub(crate) fn claim_spec(spec: Field<'_, '_>) {
    if list(spec.value, "accessModes").is_empty() {
        spec.child("accessModes").required("at least 1 access mode is required");
    }
    spec.child("selector").label_selector();
    access_modes(spec);
    // Kubernetes leaves `requests` out of this path.
    let resources = spec.child("resources");
    let storage = resources.key("storage").with(&spec.value["resources"]["requests"]["storage"]);
    match storage.value {
        Value::Null => storage.required(""),
        _ => positive(storage),
    }
    common(spec);
}

/// The rules that the specs of volumes and claims share.
pub(crate) fn common(spec: Field<'_, '_>) {
    spec.child("storageClassName").check_optional(rules::dns_subdomain);
    spec.child("volumeMode").supported(&VOLUME_MODES);
    for (field, why) in REFUSED {
        let is_set = match &spec.value[field] {
            Value::Null => false,
            Value::Array(list) => !list.is_empty(),
            Value::String(text) => !text.is_empty(),
            _ => true,
        };
        if is_set {
            spec.child(field).forbidden(why);
        }
    }
}

/// Checks the access modes of a volume or claim.
pub(crate) fn access_modes(spec: Field<'_, '_>) {
    let modes = list(spec.value, "accessModes");
    for mode in modes {
        // Kubernetes leaves the index out of these paths.
        spec.child("accessModes").with(mode).supported(&ACCESS_MODES);
    }
    let is_other = |mode: &str| ACCESS_MODES.contains(&mode) && mode != EXCLUSIVE;
    let mut texts = modes.iter().filter_map(Value::as_str);
    if modes.iter().any(|mode| mode == EXCLUSIVE) && texts.any(is_other) {
        spec.child("accessModes").forbidden("may not use ReadWriteOncePod with other access modes");
    }
}

/// The access mode of volumes that one pod at a time may use.
pub const EXCLUSIVE: &str = "ReadWriteOncePod";

/// Checks an amount of storage (`ValidatePositiveQuantityValue`).
pub(crate) fn positive(amount: Field<'_, '_>) {
    if Quantity::parse(amount.text()).is_ok_and(|amount| amount.is_negative() || amount.is_zero()) {
        amount.invalid("must be greater than zero");
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
