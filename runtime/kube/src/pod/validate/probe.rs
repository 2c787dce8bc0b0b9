//! Probes of containers.

use super::port;
use crate::object::check::Field;
use crate::object::rules;
use crate::object::value::list;

/// Checks the three probes of a container, in Kubernetes' order.
pub(super) fn all(container: Field<'_, '_>) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.get(name) else { continue };
        self::probe(probe);
        let (threshold, grace) =
            (probe.child("successThreshold"), probe.child("terminationGracePeriodSeconds"));
        if name == "readinessProbe" {
            if !grace.value.is_null() {
                grace.invalid("must not be set for readinessProbes");
            }
        } else if threshold.number() != 1 {
            threshold.invalid_number(threshold.number(), "must be 1");
        }
    }
}

fn probe(probe: Field<'_, '_>) {
    handler(probe, &["exec", "httpGet", "tcpSocket", "grpc"], 0);
    for field in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        probe.child(field).not_negative();
    }
    let grace = probe.child("terminationGracePeriodSeconds");
    if grace.value.as_i64().is_some_and(|seconds| seconds <= 0) {
        grace.invalid("must be greater than 0");
    }
}

/// Checks that there is exactly one handler, of the kinds in `names`. A sleep may last at most `grace`
/// seconds.
pub(super) fn handler(owner: Field<'_, '_>, names: &[&str], grace: i64) {
    let mut handlers = names.iter().filter_map(|name| Some((*name, owner.get(name)?)));
    match handlers.next() {
        None => owner.required("must specify a handler type"),
        Some(("exec", exec)) if list(exec.value, "command").is_empty() => exec.child("command").required(""),
        Some(("exec", _)) => {}
        Some(("httpGet", get)) => http_get(get),
        Some(("sleep", sleep)) => {
            let seconds = sleep.child("seconds").number();
            if seconds < 0 || seconds > grace {
                let why =
                    format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                sleep.invalid_number(seconds, why);
            }
        }
        Some((_, other)) => port::number_or_name(other),
    }
    handlers.for_each(|(_, more)| more.forbidden("may not specify more than 1 handler type"));
}

fn http_get(handler: Field<'_, '_>) {
    port::number_or_name(handler);
    handler.child("scheme").supported(&["HTTP", "HTTPS"]);
    for header in list(handler.value, "httpHeaders") {
        // Kubernetes leaves the index out of these paths.
        handler.child("httpHeaders").with(&header["name"]).check(rules::http_header_name);
    }
}
