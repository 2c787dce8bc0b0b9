//! Validation of ports.

use crate::object::check::Field;
use crate::object::rules;
use crate::object::value::{flag, number};

/// Checks the number of a port.
pub(super) fn check(port: Field<'_, '_>) {
    if let Some(error) = rules::range(port.number(), 1, 65535) {
        port.invalid_number(port.number(), error);
    }
}

/// Checks a port that is given by number or by name.
pub(super) fn number_or_name(owner: Field<'_, '_>) {
    let port = owner.child("port");
    if port.value.is_string() {
        port.check(rules::port_name);
    } else {
        check(port);
    }
}

/// Checks that a pod in the network of the host has no port that is forwarded to another.
pub(super) fn host_network(spec: Field<'_, '_>) {
    if !flag(spec.value, "hostNetwork") {
        return;
    }
    for container in spec.items("containers") {
        for port in container.items("ports") {
            let host_port = port.child("hostPort");
            if host_port.number() != number(port.value, "containerPort") {
                let why = "must match `containerPort` when `hostNetwork` is true";
                host_port.invalid_number(host_port.number(), why);
            }
        }
    }
}
