//! Validation of ports.

use crate::object::check::invalid;
use crate::object::field::{Errors, FieldError, Path};
use crate::object::rules;
use crate::object::value::{self, flag, list, optional_number};
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

/// Checks that a pod in the network of the host has no port that is forwarded to another.
pub(super) fn host_network(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    if !flag(spec, "hostNetwork") {
        return;
    }
    let path = path.child("containers");
    for (index, container) in list(spec, "containers").iter().enumerate() {
        let path = path.index(index);
        let path = path.child("ports");
        for (index, port) in list(container, "ports").iter().enumerate() {
            let host_port = value::number(port, "hostPort");
            if host_port != value::number(port, "containerPort") {
                let path = path.index(index);
                errors.push(FieldError::invalid_value(
                    &path.child("hostPort"),
                    &host_port.into(),
                    "must match `containerPort` when `hostNetwork` is true",
                ));
            }
        }
    }
}
