//! Rules for the node affinity of a Pod (`validateNodeAffinity`), as far as nodlet acts on it.

use crate::object::check::invalid;
use crate::object::field::{Errors, FieldError, Path};
use crate::object::rules;
use crate::object::value::{list, text};
use serde_json::Value;

/// Checks the required node affinity.
pub(super) fn node(affinity: &Value, path: &Path<'_>, errors: &mut Errors) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let Some(required) = affinity.get(REQUIRED) else { return };
    let path = path.child("nodeAffinity");
    selector(required, &path.child(REQUIRED), errors);
}

/// Checks a node selector (`ValidateNodeSelector`).
pub(crate) fn selector(selector: &Value, path: &Path<'_>, errors: &mut Errors) {
    let path = path.child("nodeSelectorTerms");
    let terms = list(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        errors.push(FieldError::required(&path, "must have at least one node selector term"));
    }
    for (index, term) in terms.iter().enumerate() {
        let path = path.index(index);
        for (index, asked) in list(term, "matchExpressions").iter().enumerate() {
            let path = path.child("matchExpressions");
            of_labels(asked, &path.index(index), errors);
        }
        for (index, asked) in list(term, "matchFields").iter().enumerate() {
            let path = path.child("matchFields");
            of_fields(asked, &path.index(index), errors);
        }
    }
}

fn of_labels(asked: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (operator, values) = (text(asked, "operator"), list(asked, "values"));
    let at = path.child("values");
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            errors.push(FieldError::required(&at, "must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(FieldError::forbidden(
            &at,
            "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        )),
        "Gt" | "Lt" if values.len() != 1 => {
            let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errors.push(FieldError::required(&at, why));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        _ => not_an_operator(operator, path, errors),
    }
    let key = text(asked, "key");
    invalid(&path.child("key"), key, rules::qualified_name(key), errors);
    for (index, value) in values.iter().filter_map(Value::as_str).enumerate() {
        invalid(&at.index(index), value, rules::label_value(value), errors);
    }
}

fn of_fields(asked: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (operator, values) = (text(asked, "operator"), list(asked, "values"));
    let at = path.child("values");
    match operator {
        "In" | "NotIn" if values.len() != 1 => errors.push(FieldError::required(
            &at,
            "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
        )),
        "In" | "NotIn" => {}
        _ => not_an_operator(operator, path, errors),
    }
    let key = text(asked, "key");
    if key != "metadata.name" {
        let path = path.child("key");
        return errors.push(FieldError::invalid(&path, key, "not a valid field selector key"));
    }
    for (index, value) in values.iter().filter_map(Value::as_str).enumerate() {
        invalid(&at.index(index), value, rules::dns_subdomain(value), errors);
    }
}

fn not_an_operator(operator: &str, path: &Path<'_>, errors: &mut Errors) {
    errors.push(FieldError::invalid(&path.child("operator"), operator, "not a valid selector operator"));
}
