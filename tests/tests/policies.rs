//! Restart policies and rules of individual containers, with real processes.

use std::fs;
use std::path::Path;

use nodlet_tests::{Device, manifest};

/// The mount of the directory in which the containers of a test record that they start.
const ONE: &str = "volumeMounts: [{name: one, mountPath: /one}]\n";

fn noting(name: &str, steps: &str, more: &str) -> String {
    manifest::container(name, &format!("append /one/story {name} then {steps}"), &format!("{ONE}{more}"))
}

fn spec(shared: &str, policy: &str) -> String {
    format!("restartPolicy: {policy}\nvolumes: [{{name: one, hostPath: {{path: {shared}}}}}]\n")
}

fn story(here: &Path) -> Vec<String> {
    let text = fs::read_to_string(here.join("story")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn rule(action: &str, codes: &str) -> String {
    format!("restartPolicyRules: [{{action: {action}, exitCodes: {{operator: In, values: [{codes}]}}}}]\n")
}

#[test]
fn containers_are_restarted_by_their_own_policies_and_rules() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let containers = [
        noting("once", "exit 3", "restartPolicy: Never\n"),
        noting("retried", "fail-once /one/retried then exit 0", "restartPolicy: OnFailure\n"),
        noting(
            "ruled",
            "fail-once /one/ruled then sleep",
            &format!("restartPolicy: Never\n{}", rule("Restart", "1, 42")),
        ),
        noting("kept", "sleep", ""),
    ];
    let web = device.run_pod_of("web", &containers, &spec(&shared, "Never"));
    let count = |name: &str| story(&here).iter().filter(|one| *one == name).count();
    device.wait_for("two to begin again", || count("retried") == 2 && count("ruled") == 2);
    device.wait_for("one to be done", || web.container("retried").exit_code() == Some(0));
    device.wait_for("two to run", || {
        web.container("ruled").is_running() && web.container("kept").is_running() && count("kept") == 1
    });
    assert_eq!((web.phase().as_str(), count("once"), count("kept")), ("Running", 1, 1));
    assert_eq!(web.container("once").exit_code(), Some(3));
    assert_eq!((web.container("ruled").restart_count(), web.container("retried").restart_count()), (1, 1));
    assert_eq!(web.container("ruled").of_last("exitCode"), 1);
}

#[test]
fn all_containers_begin_again_in_their_sandbox_for_an_exit_with_such_a_rule() {
    let mut device = Device::start();
    let (shared, here) = device.shared("one");
    let init = [noting("first", "exit 0", ""), noting("proxy", "sleep", "restartPolicy: Always\n")];
    let app = [
        noting(
            "app",
            "wait /one/go then rm /one/go then exit 42",
            &format!("restartPolicy: Never\n{}", rule("RestartAllContainers", "42")),
        ),
        noting("other", "ignore-term then sleep", ""),
    ];
    device.write_pod("web", &manifest::pod_behind("web", &init, &app, &spec(&shared, "Never"))).wait_ready();
    let (uid, ip) = (device.pod("web").uid(), device.pod("web").ip());
    assert_eq!(device.pod("web").condition("AllContainersRestarting"), "False");
    for times in 1..=2 {
        fs::write(here.join("go"), "").expect("the root can be written to");
        device.wait_for("all to begin again", || story(&here).len() == 4 * (times + 1));
        device.pod("web").wait_ready();
        let again = story(&here)[4 * times..].to_vec();
        assert_eq!(again[..2], ["first", "proxy"], "{again:?}");
        for name in ["app", "other", "proxy"] {
            let one = device.pod("web").container(name);
            assert_eq!(one.restart_count(), times as i64, "{name}");
            assert_eq!(
                (one.of_last("reason"), one.of_last("exitCode")),
                ("RestartingAllContainers".into(), 137.into())
            );
        }
        assert_eq!((device.pod("web").uid(), device.pod("web").ip()), (uid.clone(), ip.clone()));
        assert!(device.pod("web").events().iter().any(|event| event == "Killing: killing"));
        // A new agent knows the progress of the pod.
        device.restart_agent();
        device.pod("web").wait_ready();
        assert_eq!(story(&here).len(), 4 * (times + 1), "nothing begins again for a new agent");
    }
}

#[test]
fn an_agent_that_dies_while_all_begin_again_does_not_forget_it() {
    let mut device = Device::start();
    let (shared, here) = device.shared("one");
    let init = [noting("first", "exit 0", "")];
    let app = [
        noting(
            "app",
            "wait /one/go then rm /one/go then exit 42",
            &format!("restartPolicy: Never\n{}", rule("RestartAllContainers", "42")),
        ),
        noting("other", "ignore-term then sleep", ""),
    ];
    device.write_pod("web", &manifest::pod_behind("web", &init, &app, &spec(&shared, "Always"))).wait_ready();
    fs::write(here.join("go"), "").expect("the root can be written to");
    device.wait_for("the exit to be heard of", || {
        device.pod("web").condition("AllContainersRestarting") == "True"
    });
    device.restart_agent();
    device.wait_for("all to begin again", || story(&here).len() == 6);
    device.pod("web").wait_ready();
    assert_eq!(story(&here)[3], "first");
}
