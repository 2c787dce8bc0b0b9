//! Changes of the status of a pod by clients.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::object::check::Field;
use crate::object::error::ManifestError;
use crate::object::field::{Errors, cut, quoted};
use crate::object::value::{list, map, text};
use crate::object::{rules, walk};
use nodlet_core::facts::{ClientCondition, MAX_CLIENT_CONDITION_BYTES, MAX_CLIENT_CONDITIONS, is_node_owned};
use nodlet_core::time::Timestamp;

/// The error for a status field that only the node may change.
const OWNED_BY_NODE: &str = "is set by the node: clients can set only conditions that the node does not set";

/// The result of a status update by a client: the client-set conditions, and the warnings.
#[derive(Debug)]
pub struct StatusUpdate {
    /// All conditions that the node does not own.
    pub client_conditions: Vec<ClientCondition>,
    /// Warnings about fields that no status has.
    pub warnings: Vec<String>,
}

/// Checks a new status against the present one. Fields that the node owns may be omitted, since the node sets
/// them again.
///
/// # Errors
/// The new status contradicts the node, or is invalid.
pub fn status(old: &Value, new: &Value) -> Result<StatusUpdate, ManifestError> {
    let mut object = json!({ "status": new.get("status").cloned().unwrap_or_else(|| json!({})) });
    let times = list(&new["status"], "conditions").iter();
    let mut times =
        times.flat_map(|condition| [&condition["lastProbeTime"], &condition["lastTransitionTime"]]);
    if let Some(wrong) = times.find_map(|time| time.as_str().filter(|time| !Timestamp::is_time(time))) {
        return Err(ManifestError::of_kind(format!(
            "Pod in version \"v1\" cannot be handled as a Pod: parsing time {} as \"2006-01-02T15:04:05Z07:00\": it is \
             no time as in RFC 3339",
            quoted(&cut(wrong.to_owned()))
        )));
    }
    let findings = walk::check(&mut object, "Pod");
    let warnings = findings.unknown.texts(ToString::to_string);
    if !findings.errors.is_empty() {
        return Err(ManifestError::invalid(old, findings.errors));
    }
    let mut before = json!({ "status": old["status"] });
    walk::check(&mut before, "Pod");
    let mut errors = Errors::default();
    let status = Field::root(&object["status"], "status", &mut errors);
    for (field, new) in map(status.value) {
        if field != "conditions" && before["status"].get(field) != Some(new) {
            status.child(field).forbidden(OWNED_BY_NODE);
        }
    }
    let client_conditions = conditions(list(&before["status"], "conditions"), status);
    if errors.is_empty() {
        Ok(StatusUpdate { client_conditions, warnings })
    } else {
        Err(ManifestError::invalid(old, errors))
    }
}

fn conditions(before: &[Value], object: Field<'_, '_>) -> Vec<ClientCondition> {
    let mut client_conditions: Vec<ClientCondition> = Vec::new();
    let mut known = BTreeSet::new();
    for field in object.items("conditions") {
        let (condition, kind, status) = (field.value, field.child("type").text(), field.child("status"));
        if !known.insert(kind) {
            field.child("type").duplicate();
            continue;
        }
        if is_node_owned(kind) {
            if !before.contains(condition) {
                field.forbidden(format!("{} {OWNED_BY_NODE}", quoted(kind)));
            }
            continue;
        }
        // Kubernetes' own spelling of the field.
        field.child("Type").check_text(kind, rules::qualified_name);
        status.supported(&["False", "True", "Unknown"]);
        let generation = field.child("observedGeneration");
        if generation.number() < 0 {
            generation.invalid("must be a non-negative integer");
        }
        let generation = condition["observedGeneration"].as_i64();
        let time = |field: &str| condition[field].as_str().map(str::to_owned);
        client_conditions.push(ClientCondition {
            kind: kind.to_owned(),
            status: status.text().to_owned(),
            reason: text(condition, "reason").to_owned(),
            message: text(condition, "message").to_owned(),
            last_probe_time: time("lastProbeTime"),
            last_transition_time: time("lastTransitionTime"),
            observed_generation: generation.filter(|generation| *generation != 0),
        });
    }
    if client_conditions.len() > MAX_CLIENT_CONDITIONS {
        object.child("conditions").too_many(client_conditions.len(), MAX_CLIENT_CONDITIONS);
    } else if client_conditions.iter().map(ClientCondition::bytes).sum::<usize>() > MAX_CLIENT_CONDITION_BYTES
    {
        object.child("conditions").too_long(MAX_CLIENT_CONDITION_BYTES);
    }
    client_conditions
}
