//! Checks of single values that many fields share, with the errors of Kubernetes.

use serde_json::Value;

use super::field::{Errors, FieldError, Path};
use super::rules;
use super::value::{list, map, optional_number, text};

/// Adds one error for each detail that a rule returned.
pub(crate) fn invalid(path: &Path<'_>, value: &str, details: Vec<String>, errors: &mut Errors) {
    errors.extend(details.into_iter().map(|detail| FieldError::invalid(path, value, detail)));
}

/// Checks that the value exists and is one of the supported values, which are in the order of printing.
pub(crate) fn one_of(path: &Path<'_>, value: &str, values: &[&str], errors: &mut Errors) {
    if value.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !values.contains(&value) {
        errors.push(FieldError::not_supported(path, value, values));
    }
}

/// Checks that the value of the field is one of the supported values.
pub(crate) fn supported(owner: &Value, field: &str, path: &Path<'_>, values: &[&str], errors: &mut Errors) {
    let value = text(owner, field);
    if !values.contains(&value) {
        errors.push(FieldError::not_supported(&path.child(field), value, values));
    }
}

/// Returns the error of a negative value.
pub(crate) fn not_negative(path: &Path<'_>, value: i64) -> FieldError {
    FieldError::invalid_value(path, &value.into(), "must be greater than or equal to 0")
}

/// Validates labels, or another map with the same rules.
pub(crate) fn labels(labels: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (key, value) in map(labels) {
        invalid(path, key, rules::qualified_name(key), errors);
        let value = value.as_str().unwrap_or_default();
        invalid(path, value, rules::label_value(value), errors);
    }
}

/// Checks a label selector (`ValidateLabelSelector`).
pub(crate) fn label_selector(selector: &Value, path: &Path<'_>, errors: &mut Errors) {
    labels(&selector["matchLabels"], &path.child("matchLabels"), errors);
    let path = path.child("matchExpressions");
    for (index, expression) in list(selector, "matchExpressions").iter().enumerate() {
        let path = path.index(index);
        let (operator, values) = (text(expression, "operator"), list(expression, "values"));
        let at = path.child("values");
        operator_has_values(operator, values, &at, errors);
        if !["In", "NotIn", "Exists", "DoesNotExist"].contains(&operator) {
            let detail = "not a valid selector operator";
            errors.push(FieldError::invalid(&path.child("operator"), operator, detail));
        }
        label_name(text(expression, "key"), &path.child("key"), errors);
        label_values(values, &at, errors);
    }
}

/// Checks that an operator of labels has values if it needs some, and none if it does not.
pub(crate) fn operator_has_values(operator: &str, values: &[Value], at: &Path<'_>, errors: &mut Errors) {
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            errors.push(FieldError::required(at, "must be specified when `operator` is 'In' or 'NotIn'"));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(at, detail));
        }
        _ => {}
    }
}

/// Checks the key of a label (`ValidateLabelName`).
pub(crate) fn label_name(name: &str, path: &Path<'_>, errors: &mut Errors) {
    invalid(path, name, rules::qualified_name(name), errors);
}

/// Checks a list of values of labels.
pub(crate) fn label_values(values: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, value) in values.iter().filter_map(Value::as_str).enumerate() {
        invalid(&path.index(index), value, rules::label_value(value), errors);
    }
}

/// Validates the id of a user or group.
pub(crate) fn id(context: &Value, field: &str, path: &Path<'_>, errors: &mut Errors) {
    if let Some(value) = optional_number(context, field)
        && let Some(error) = rules::range(value, 0, i64::from(i32::MAX))
    {
        errors.push(FieldError::invalid_value(&path.child(field), &value.into(), error));
    }
}

/// Validates a relative path, which must not contain `..`.
pub(crate) fn descending(value: &str, path: &Path<'_>, errors: &mut Errors) {
    if value.starts_with('/') {
        errors.push(FieldError::invalid(path, value, "must be a relative path"));
    }
    no_back_steps(value, path, errors);
}

/// Checks that no component of the path is `..`.
pub(crate) fn no_back_steps(value: &str, path: &Path<'_>, errors: &mut Errors) {
    if value.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(path, value, "must not contain '..'"));
    }
}
