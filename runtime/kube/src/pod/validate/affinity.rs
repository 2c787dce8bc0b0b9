//! Rules for where a Pod may run: its affinity and its topology spread constraints.

use crate::object::check::{
    invalid, label_name, label_selector, label_values, operator_has_values, supported,
};
use crate::object::field::{Errors, FieldError, Path};
use crate::object::rules;
use crate::object::value::{list, number, optional_number, text};
use serde_json::Value;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Checks `spec.affinity` (`validateAffinity`).
pub(super) fn all(affinity: &Value, path: &Path<'_>, errors: &mut Errors) {
    node(&affinity["nodeAffinity"], &path.child("nodeAffinity"), errors);
    for field in ["podAffinity", "podAntiAffinity"] {
        let path = path.child(field);
        for (index, of) in list(&affinity[field], REQUIRED).iter().enumerate() {
            pod_term(of, &path.child(REQUIRED).index(index), errors);
        }
        for (index, of) in list(&affinity[field], PREFERRED).iter().enumerate() {
            let path = path.child(PREFERRED);
            let path = path.index(index);
            weight(of, &path, errors);
            pod_term(&of["podAffinityTerm"], &path.child("podAffinityTerm"), errors);
        }
    }
}

fn node(affinity: &Value, path: &Path<'_>, errors: &mut Errors) {
    if let Some(required) = affinity.get(REQUIRED) {
        selector(required, &path.child(REQUIRED), errors);
    }
    for (index, of) in list(affinity, PREFERRED).iter().enumerate() {
        let path = path.child(PREFERRED);
        let path = path.index(index);
        weight(of, &path, errors);
        term(&of["preference"], &path.child("preference"), false, errors);
    }
}

fn weight(of: &Value, path: &Path<'_>, errors: &mut Errors) {
    let weight = number(of, "weight");
    if !(1..=100).contains(&weight) {
        let detail = "must be in the range 1-100";
        errors.push(FieldError::invalid_value(&path.child("weight"), &weight.into(), detail));
    }
}

/// `validatePodAffinityTerm`.
fn pod_term(term: &Value, path: &Path<'_>, errors: &mut Errors) {
    for field in ["labelSelector", "namespaceSelector"] {
        label_selector(&term[field], &path.child(field), errors);
    }
    for name in list(term, "namespaces").iter().filter_map(Value::as_str) {
        invalid(&path.child("namespace"), name, rules::dns_label(name), errors);
    }
    label_keys(term, path, errors);
    let (key, path) = (text(term, "topologyKey"), path.child("topologyKey"));
    if key.is_empty() {
        errors.push(FieldError::required(&path, "can not be empty"));
    }
    label_name(key, &path, errors);
}

/// `ValidateMatchLabelKeysAndMismatchLabelKeys`.
fn label_keys(owner: &Value, path: &Path<'_>, errors: &mut Errors) {
    let selector = owner.get("labelSelector");
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        let (keys, path) = (list(owner, field), path.child(field));
        if selector.is_none() && !keys.is_empty() {
            errors.push(FieldError::forbidden(&path, "must not be specified when labelSelector is not set"));
            continue;
        }
        for (index, key) in keys.iter().filter_map(Value::as_str).enumerate() {
            label_name(key, &path.index(index), errors);
        }
    }
    for (index, key) in list(owner, "matchLabelKeys").iter().enumerate() {
        if list(owner, "mismatchLabelKeys").contains(key) {
            let (path, key) = (path.child("matchLabelKeys"), key.as_str().unwrap_or_default());
            let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
            errors.push(FieldError::invalid(&path.index(index), key, detail));
        }
    }
}

/// Checks `spec.topologySpreadConstraints` (`validateTopologySpreadConstraints`).
pub(super) fn spread(constraints: &[Value], path: &Path<'_>, errors: &mut Errors) {
    const POSITIVE: &str = "must be greater than zero";
    for (index, one) in constraints.iter().enumerate() {
        let path = path.index(index);
        let (key, when) = (text(one, "topologyKey"), text(one, "whenUnsatisfiable"));
        let skew = number(one, "maxSkew");
        if skew <= 0 {
            errors.push(FieldError::invalid_value(&path.child("maxSkew"), &skew.into(), POSITIVE));
        }
        if key.is_empty() {
            errors.push(FieldError::required(&path.child("topologyKey"), "can not be empty"));
        }
        supported(one, "whenUnsatisfiable", &path, &["DoNotSchedule", "ScheduleAnyway"], errors);
        let same =
            |other: &Value| (text(other, "topologyKey"), text(other, "whenUnsatisfiable")) == (key, when);
        if constraints[index + 1..].iter().any(same) {
            let both = format!("{{{key}, {when}}}");
            errors.push(FieldError::duplicate(&path.child("{topologyKey, whenUnsatisfiable}"), &both));
        }
        if let Some(domains) = optional_number(one, "minDomains") {
            let path = path.child("minDomains");
            if domains <= 0 {
                errors.push(FieldError::invalid_value(&path, &domains.into(), POSITIVE));
            }
            if when != "DoNotSchedule" {
                let detail =
                    format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}");
                errors.push(FieldError::invalid_value(&path, &domains.into(), detail));
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if one.get(field).is_some() {
                supported(one, field, &path, &["Honor", "Ignore"], errors);
            }
        }
        label_keys(one, &path, errors);
        label_selector(&one["labelSelector"], &path.child("labelSelector"), errors);
    }
}

/// Checks a node selector (`ValidateNodeSelector`).
pub(crate) fn selector(selector: &Value, path: &Path<'_>, errors: &mut Errors) {
    let path = path.child("nodeSelectorTerms");
    let terms = list(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        errors.push(FieldError::required(&path, "must have at least one node selector term"));
    }
    for (index, one) in terms.iter().enumerate() {
        term(one, &path.index(index), true, errors);
    }
}

/// `ValidateNodeSelectorTerm`; the values of labels are checked if `values` says so.
fn term(term: &Value, path: &Path<'_>, values: bool, errors: &mut Errors) {
    for (index, asked) in list(term, "matchExpressions").iter().enumerate() {
        let path = path.child("matchExpressions");
        of_labels(asked, &path.index(index), values, errors);
    }
    for (index, asked) in list(term, "matchFields").iter().enumerate() {
        let path = path.child("matchFields");
        of_fields(asked, &path.index(index), errors);
    }
}

fn of_labels(asked: &Value, path: &Path<'_>, check_values: bool, errors: &mut Errors) {
    let (operator, values) = (text(asked, "operator"), list(asked, "values"));
    let at = path.child("values");
    operator_has_values(operator, values, &at, errors);
    match operator {
        "Gt" | "Lt" if values.len() != 1 => {
            let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errors.push(FieldError::required(&at, why));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        _ => not_an_operator(operator, path, errors),
    }
    label_name(text(asked, "key"), &path.child("key"), errors);
    if check_values {
        label_values(values, &at, errors);
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
