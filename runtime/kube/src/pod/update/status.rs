//! Changes of the status of a pod by clients.

use serde_json::{Value, json};

use super::invalid;
use crate::object::error::ManifestError;
use crate::object::field::{Errors, FieldError, Path, cut, quoted};
use crate::object::value::{list, text};
use crate::object::{rules, walk};
use crate::schema;
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
    let findings = match schema::find("Pod") {
        Some(pod) => walk::check(&mut object, pod),
        None => walk::Findings::default(),
    };
    let warnings = findings.unknown.texts(ToString::to_string);
    if !findings.errors.is_empty() {
        return Err(invalid(old, findings.errors));
    }
    let mut before = json!({ "status": old["status"] });
    if let Some(pod) = schema::find("Pod") {
        walk::check(&mut before, pod);
    }
    let mut errors = Errors::default();
    let path = Path::root("status");
    let status = object["status"].as_object().cloned().unwrap_or_default();
    for (field, value) in &status {
        if field != "conditions" && before["status"].get(field) != Some(value) {
            errors.push(FieldError::forbidden(&path.child(field), OWNED_BY_NODE));
        }
    }
    let path = path.child("conditions");
    let client_conditions = conditions(
        list(&before["status"], "conditions"),
        list(&object["status"], "conditions"),
        &path,
        &mut errors,
    );
    if errors.is_empty() {
        Ok(StatusUpdate { client_conditions, warnings })
    } else {
        Err(invalid(old, errors))
    }
}

fn conditions(
    before: &[Value],
    after: &[Value],
    path: &Path<'_>,
    errors: &mut Errors,
) -> Vec<ClientCondition> {
    let mut client_conditions: Vec<ClientCondition> = Vec::new();
    let mut own: Vec<&str> = Vec::new();
    for (index, condition) in after.iter().enumerate() {
        let path = path.index(index);
        let (kind, status) = (text(condition, "type"), text(condition, "status"));
        if own.contains(&kind) || client_conditions.iter().any(|known| known.kind == kind) {
            errors.push(FieldError::duplicate(&path.child("type"), kind));
            continue;
        }
        if is_node_owned(kind) {
            own.push(kind);
            if !before.contains(condition) {
                errors.push(FieldError::forbidden(&path, format!("{} {OWNED_BY_NODE}", quoted(kind))));
            }
            continue;
        }
        for detail in rules::qualified_name(kind) {
            errors.push(FieldError::invalid(&path.child("Type"), kind, detail));
        }
        if !["True", "False", "Unknown"].contains(&status) {
            errors.push(FieldError::not_supported(
                &path.child("status"),
                status,
                &["False", "True", "Unknown"],
            ));
        }
        let generation = condition["observedGeneration"].as_i64();
        if let Some(negative) = generation.filter(|generation| *generation < 0) {
            let detail = "must be a non-negative integer";
            errors.push(FieldError::invalid_value(
                &path.child("observedGeneration"),
                &negative.into(),
                detail,
            ));
        }
        let time = |field: &str| condition[field].as_str().map(str::to_owned);
        client_conditions.push(ClientCondition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: text(condition, "reason").to_owned(),
            message: text(condition, "message").to_owned(),
            last_probe_time: time("lastProbeTime"),
            last_transition_time: time("lastTransitionTime"),
            observed_generation: generation.filter(|generation| *generation != 0),
        });
    }
    if client_conditions.len() > MAX_CLIENT_CONDITIONS {
        errors.push(FieldError::too_many(path, client_conditions.len(), MAX_CLIENT_CONDITIONS));
    } else if client_conditions.iter().map(ClientCondition::bytes).sum::<usize>() > MAX_CLIENT_CONDITION_BYTES
    {
        errors.push(FieldError::too_long(path, MAX_CLIENT_CONDITION_BYTES));
    }
    client_conditions
}
