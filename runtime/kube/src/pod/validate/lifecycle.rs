//! Rules for hooks, stop signals, and restart policies of single containers.

use nodlet_core::status::signal;

use super::probe;
use crate::object::check::Field;
use crate::object::value::{list, number, text};

/// The supported values of `lifecycle.stopSignal` (Kubernetes: `supportedStopSignalsLinux`), in its order: all names that
/// a status can show, and three others for some of them.
fn stop_signals() -> Vec<String> {
    let named = (1..=64).map(signal::name).filter(|name| name.starts_with("SIG"));
    let mut all: Vec<String> = named.chain(["SIGCLD", "SIGIOT", "SIGPOLL"].map(str::to_owned)).collect();
    all.sort_unstable();
    all
}

/// Maximum of restart rules of one container (Kubernetes: `validateContainerRestartPolicy`).
const MAX_RULES: usize = 20;
/// Maximum of exit codes of one rule.
const MAX_CODES: usize = 255;

/// Checks `lifecycle` of a container of this pod.
pub(super) fn lifecycle(spec: Field<'_, '_>, container: Field<'_, '_>) {
    let Some(lifecycle) = container.get("lifecycle") else { return };
    let grace = number(spec.value, "terminationGracePeriodSeconds");
    for hook in ["postStart", "preStop"].into_iter().filter_map(|name| lifecycle.get(name)) {
        probe::handler(hook, &["exec", "httpGet", "tcpSocket", "sleep"], grace);
    }
    let Some(signal) = lifecycle.get("stopSignal") else { return };
    match spec.value.get("os") {
        None => signal.forbidden("may not be set for containers with empty `spec.os.name`"),
        Some(os) if text(os, "name") == "linux" => {
            let all = stop_signals();
            signal.supported(&all.iter().map(String::as_str).collect::<Vec<_>>());
        }
        // A pod for another operating system is rejected for that reason.
        Some(_) => {}
    }
}

/// Checks `restartPolicy` and `restartPolicyRules` of a container or init container.
pub(super) fn restart_policy(container: Field<'_, '_>) {
    let (policy, all) = (container.child("restartPolicy"), container.child("restartPolicyRules"));
    let rules = list(container.value, "restartPolicyRules").len();
    if !policy.value.is_null() {
        policy.supported(&["Always", "Never", "OnFailure"]);
    } else if rules > 0 {
        policy.required("must specify restartPolicy when restart rules are used");
    }
    if rules > MAX_RULES {
        all.too_many(rules, MAX_RULES);
    }
    for rule in container.items("restartPolicyRules") {
        rule.child("action").supported(&["Restart", "RestartAllContainers"]);
        let codes = rule.child("exitCodes");
        if codes.value.is_null() {
            codes.required("must be specified");
            continue;
        }
        codes.child("operator").supported(&["In", "NotIn"]);
        let values = list(codes.value, "values").len();
        if values > MAX_CODES {
            codes.child("values").too_many(values, MAX_CODES);
        }
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
    fn stop_signals_are_those_of_linux_by_name() {
        for signal in ["SIGUSR1", "SIGRTMIN+3", "SIGRTMAX-14", "SIGPOLL"] {
            check(&one(&format!("lifecycle: {{stopSignal: {signal}}}"), "os: {name: linux}"), &[]);
        }
        let all = super::stop_signals();
        assert_eq!(all.len(), 65);
        let all = all.iter().map(|signal| format!("{signal:?}")).collect::<Vec<_>>().join(", ");
        for signal in ["USR1", "SIGRTMIN+16", "9", ""] {
            let said = format!(
                "spec.containers[0].lifecycle.stopSignal: Unsupported value: {signal:?}: supported values: {all}"
            );
            check(&one(&format!("lifecycle: {{stopSignal: {signal:?}}}"), "os: {name: linux}"), &[&said]);
        }
    }

    #[test]
    fn too_many_restart_rules_are_rejected_with_the_errors_of_kubernetes() {
        let many = vec!["{action: Restart, exitCodes: {operator: In, values: [1]}}"; 21].join(", ");
        let codes = (0..256).map(|code| code.to_string()).collect::<Vec<_>>().join(", ");
        let codes = format!("{{action: Restart, exitCodes: {{operator: In, values: [{codes}]}}}}");
        for (rules, expected) in [
            (many, "restartPolicyRules: Too many: 21: must have at most 20 items"),
            (codes, "restartPolicyRules[0].exitCodes.values: Too many: 256: must have at most 255 items"),
        ] {
            let container = format!("restartPolicy: Never, restartPolicyRules: [{rules}]");
            check(&one(&container, ""), &[&format!("spec.containers[0].{expected}")]);
        }
    }
}
