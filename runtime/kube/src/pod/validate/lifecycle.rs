//! Rules for hooks, stop signals, and restart policies of single containers.

use serde_json::Value;

use super::probe;
use crate::object::check;
use crate::object::field::{Errors, FieldError, Path};
use crate::object::value::{list, number, text};

/// The supported values of `lifecycle.stopSignal` (Kubernetes: `supportedStopSignalsLinux`), in its order.
const STOP_SIGNALS: [&str; 65] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMAX-1",
    "SIGRTMAX-10",
    "SIGRTMAX-11",
    "SIGRTMAX-12",
    "SIGRTMAX-13",
    "SIGRTMAX-14",
    "SIGRTMAX-2",
    "SIGRTMAX-3",
    "SIGRTMAX-4",
    "SIGRTMAX-5",
    "SIGRTMAX-6",
    "SIGRTMAX-7",
    "SIGRTMAX-8",
    "SIGRTMAX-9",
    "SIGRTMIN",
    "SIGRTMIN+1",
    "SIGRTMIN+10",
    "SIGRTMIN+11",
    "SIGRTMIN+12",
    "SIGRTMIN+13",
    "SIGRTMIN+14",
    "SIGRTMIN+15",
    "SIGRTMIN+2",
    "SIGRTMIN+3",
    "SIGRTMIN+4",
    "SIGRTMIN+5",
    "SIGRTMIN+6",
    "SIGRTMIN+7",
    "SIGRTMIN+8",
    "SIGRTMIN+9",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

/// Maximum of restart rules of one container (Kubernetes: `validateContainerRestartPolicy`).
const MAX_RULES: usize = 20;
/// Maximum of exit codes of one rule.
const MAX_CODES: usize = 255;

/// Checks `lifecycle` of a container of this pod.
pub(super) fn lifecycle(spec: &Value, container: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(lifecycle) = container.get("lifecycle") else { return };
    let path = path.child("lifecycle");
    let grace = number(spec, "terminationGracePeriodSeconds");
    for name in ["postStart", "preStop"] {
        if let Some(hook) = lifecycle.get(name) {
            probe::handler(
                hook,
                &["exec", "httpGet", "tcpSocket", "sleep"],
                grace,
                &path.child(name),
                errors,
            );
        }
    }
    let Some(signal) = lifecycle.get("stopSignal") else { return };
    let path = path.child("stopSignal");
    match (spec.get("os"), signal.as_str().unwrap_or_default()) {
        (None, _) => {
            let why = "may not be set for containers with empty `spec.os.name`";
            errors.push(FieldError::forbidden(&path, why));
        }
        (Some(os), signal) if text(os, "name") == "linux" => {
            if !STOP_SIGNALS.contains(&signal) {
                errors.push(FieldError::not_supported(&path, signal, &STOP_SIGNALS));
            }
        }
        // A pod for another operating system is rejected for that reason.
        (Some(_), _) => {}
    }
}

/// Checks `restartPolicy` and `restartPolicyRules` of a container or init container.
pub(super) fn restart_policy(container: &Value, path: &Path<'_>, errors: &mut Errors) {
    let rules = list(container, "restartPolicyRules");
    match container.get("restartPolicy") {
        None if rules.is_empty() => return,
        None => errors.push(FieldError::required(
            &path.child("restartPolicy"),
            "must specify restartPolicy when restart rules are used",
        )),
        Some(_) => {
            check::supported(container, "restartPolicy", path, &["Always", "Never", "OnFailure"], errors)
        }
    }
    let at = path.child("restartPolicyRules");
    if rules.len() > MAX_RULES {
        errors.push(FieldError::too_many(&at, rules.len(), MAX_RULES));
    }
    for (index, rule) in rules.iter().enumerate() {
        let path = at.index(index);
        let actions = ["Restart", "RestartAllContainers"];
        supported(&path.child("action"), text(rule, "action"), &actions, errors);
        let path = path.child("exitCodes");
        let Some(codes) = rule.get("exitCodes") else {
            errors.push(FieldError::required(&path, "must be specified"));
            continue;
        };
        supported(&path.child("operator"), text(codes, "operator"), &["In", "NotIn"], errors);
        let values = list(codes, "values").len();
        if values > MAX_CODES {
            errors.push(FieldError::too_many(&path.child("values"), values, MAX_CODES));
        }
    }
}

fn supported(path: &Path<'_>, value: &str, values: &[&str], errors: &mut Errors) {
    if !values.contains(&value) {
        errors.push(FieldError::not_supported(path, value, values));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;

    /// A pod with one container `c`, with additional fields in the container and in the spec.
    fn one(container: &str, spec: &str) -> String {
        format!("metadata: {{name: a}}\nspec: {{containers: [{{name: c, image: i, {container}}}], {spec}}}")
    }

    #[test]
    fn invalid_hooks_are_rejected_with_the_errors_of_kubernetes() {
        let at = "spec.containers[0].lifecycle";
        for (lifecycle, expected) in [
            ("{}", vec![]),
            ("{postStart: {exec: {command: [a]}}, preStop: {sleep: {seconds: 30}}}", vec![]),
            ("{postStart: {tcpSocket: {port: web}}, preStop: {httpGet: {port: 1, host: h}}}", vec![]),
            ("{postStart: {sleep: {seconds: 0}}}", vec![]),
            (
                "{postStart: {}, preStop: {exec: {}}}",
                vec![
                    "postStart: Required value: must specify a handler type",
                    "preStop.exec.command: Required value",
                ],
            ),
            (
                "{postStart: {exec: {command: [a]}, sleep: {seconds: 1}}}",
                vec!["postStart.sleep: Forbidden: may not specify more than 1 handler type"],
            ),
            (
                "{postStart: {sleep: {seconds: 31}}, preStop: {sleep: {seconds: -1}}}",
                vec![
                    "postStart.sleep: Invalid value: 31: must be non-negative and less than \
                     terminationGracePeriodSeconds (30)",
                    "preStop.sleep: Invalid value: -1: must be non-negative and less than \
                     terminationGracePeriodSeconds (30)",
                ],
            ),
            (
                "{preStop: {httpGet: {port: 0, scheme: ftp}}}",
                vec![
                    "preStop.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive",
                    "preStop.httpGet.scheme: Unsupported value: \"ftp\": supported values: \"HTTP\", \"HTTPS\"",
                ],
            ),
            (
                "{stopSignal: SIGUSR1}",
                vec!["stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`"],
            ),
        ] {
            let expected: Vec<String> = expected.iter().map(|text| format!("{at}.{text}")).collect();
            let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
            check(&one(&format!("lifecycle: {lifecycle}"), ""), &expected);
        }
    }

    #[test]
    fn stop_signals_are_those_of_linux_by_name() {
        for signal in ["SIGUSR1", "SIGRTMIN+3", "SIGRTMAX-14", "SIGPOLL"] {
            check(&one(&format!("lifecycle: {{stopSignal: {signal}}}"), "os: {name: linux}"), &[]);
        }
        let all = super::STOP_SIGNALS.map(|signal| format!("{signal:?}")).join(", ");
        for signal in ["USR1", "SIGRTMIN+16", "9", ""] {
            let said = format!(
                "spec.containers[0].lifecycle.stopSignal: Unsupported value: {signal:?}: supported values: {all}"
            );
            check(&one(&format!("lifecycle: {{stopSignal: {signal:?}}}"), "os: {name: linux}"), &[&said]);
        }
        assert!(super::STOP_SIGNALS.is_sorted());
    }

    #[test]
    fn invalid_restart_rules_are_rejected_with_the_errors_of_kubernetes() {
        let at = "spec.containers[0]";
        let many = vec!["{action: Restart, exitCodes: {operator: In, values: [1]}}"; 21].join(", ");
        let codes = (0..256).map(|code| code.to_string()).collect::<Vec<_>>().join(", ");
        for (container, expected) in [
            ("restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: NotIn, values: [0]}}]".to_owned(), vec![]),
            (
                "restartPolicy: Sometimes".to_owned(),
                vec!["restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"Never\", \"OnFailure\""],
            ),
            (
                "restartPolicyRules: [{action: Stop}]".to_owned(),
                vec![
                    "restartPolicy: Required value: must specify restartPolicy when restart rules are used",
                    "restartPolicyRules[0].action: Unsupported value: \"Stop\": supported values: \"Restart\", \"RestartAllContainers\"",
                    "restartPolicyRules[0].exitCodes: Required value: must be specified",
                ],
            ),
            (
                "restartPolicy: Always, restartPolicyRules: [{action: Restart, exitCodes: {operator: Is}}]".to_owned(),
                vec!["restartPolicyRules[0].exitCodes.operator: Unsupported value: \"Is\": supported values: \"In\", \"NotIn\""],
            ),
            (
                format!("restartPolicy: Never, restartPolicyRules: [{many}]"),
                vec!["restartPolicyRules: Too many: 21: must have at most 20 items"],
            ),
            (
                format!("restartPolicy: Never, restartPolicyRules: [{{action: Restart, exitCodes: {{operator: In, values: [{codes}]}}}}]"),
                vec!["restartPolicyRules[0].exitCodes.values: Too many: 256: must have at most 255 items"],
            ),
        ] {
            let expected: Vec<String> = expected.iter().map(|text| format!("{at}.{text}")).collect();
            let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
            check(&one(&container, ""), &expected);
        }
    }
}
