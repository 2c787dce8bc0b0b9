//! Probes of containers.

use serde_json::Value;

use super::port;
use crate::object::check::{invalid, not_negative};
use crate::object::field::{Errors, FieldError, Path};
use crate::object::value::{list, number, optional_number, text};
use crate::object::{check, rules};

/// Checks the three probes of a container, in Kubernetes' order.
pub(super) fn all(container: &Value, path: &Path<'_>, errors: &mut Errors) {
    if let Some(liveness) = container.get("livenessProbe") {
        let path = path.child("livenessProbe");
        probe(liveness, &path, errors);
        success_threshold_is_one(liveness, &path, errors);
    }
    if let Some(readiness) = container.get("readinessProbe") {
        let path = path.child("readinessProbe");
        probe(readiness, &path, errors);
        if let Some(seconds) = readiness.get("terminationGracePeriodSeconds") {
            errors.push(FieldError::invalid_value(
                &path.child("terminationGracePeriodSeconds"),
                seconds,
                "must not be set for readinessProbes",
            ));
        }
    }
    if let Some(startup) = container.get("startupProbe") {
        let path = path.child("startupProbe");
        probe(startup, &path, errors);
        success_threshold_is_one(startup, &path, errors);
    }
}

fn success_threshold_is_one(probe: &Value, path: &Path<'_>, errors: &mut Errors) {
    let threshold = number(probe, "successThreshold");
    if threshold != 1 {
        errors.push(FieldError::invalid_value(
            &path.child("successThreshold"),
            &threshold.into(),
            "must be 1",
        ));
    }
}

fn probe(probe: &Value, path: &Path<'_>, errors: &mut Errors) {
    handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], 0, path, errors);
    for field in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        let value = number(probe, field);
        if value < 0 {
            errors.push(not_negative(&path.child(field), value));
        }
    }
    if let Some(seconds) = optional_number(probe, "terminationGracePeriodSeconds")
        && seconds <= 0
    {
        let path = path.child("terminationGracePeriodSeconds");
        errors.push(FieldError::invalid_value(&path, &seconds.into(), "must be greater than 0"));
    }
}

/// Checks that there is exactly one handler, of the kinds in `names`. A sleep may last at most `grace`
/// seconds.
pub(super) fn handler(owner: &Value, names: &[&str], grace: i64, path: &Path<'_>, errors: &mut Errors) {
    let mut handlers = 0;
    for name in names {
        let Some(handler) = owner.get(name) else { continue };
        let path = path.child(name);
        handlers += 1;
        if handlers > 1 {
            errors.push(FieldError::forbidden(&path, "may not specify more than 1 handler type"));
            continue;
        }
        match *name {
            "exec" => {
                if list(handler, "command").is_empty() {
                    errors.push(FieldError::required(&path.child("command"), ""));
                }
            }
            "httpGet" => http_get(handler, &path, errors),
            "sleep" => {
                let seconds = number(handler, "seconds");
                if seconds < 0 || seconds > grace {
                    let why =
                        format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                    errors.push(FieldError::invalid_value(&path, &seconds.into(), why));
                }
            }
            _ => port::number_or_name(handler, &path, errors),
        }
    }
    if handlers == 0 {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
}

fn http_get(handler: &Value, path: &Path<'_>, errors: &mut Errors) {
    port::number_or_name(handler, path, errors);
    check::supported(handler, "scheme", path, &["HTTP", "HTTPS"], errors);
    for header in list(handler, "httpHeaders") {
        let name = text(header, "name");
        invalid(&path.child("httpHeaders"), name, rules::http_header_name(name), errors);
    }
}
