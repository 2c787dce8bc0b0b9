//! Validation of ports.

use crate::object::check::invalid;
use crate::object::field::{Errors, FieldError, Path};
use crate::object::rules;
use crate::object::value::optional_number;
use serde_json::Value;

/// Checks the number of a port.
pub(super) fn number(value: i64, path: &Path<'_>, errors: &mut Errors) {
    if let Some(error) = rules::range(value, 1, 65535) {
        errors.push(FieldError::invalid_value(path, &value.into(), error));
    }
}

/// Checks a port that is given by number or by name.
pub(super) fn number_or_name(owner: &Value, path: &Path<'_>, errors: &mut Errors) {
    let path = path.child("port");
    match owner["port"].as_str() {
        Some(name) => invalid(&path, name, rules::port_name(name), errors),
        None => number(optional_number(owner, "port").unwrap_or_default(), &path, errors),
    }
}
