//! [`TestPod`]: one pod as the API shows it, and the operations of tests on it.

use std::path::PathBuf;

use serde_json::Value;

use crate::device::{Device, Ran};
use crate::manifest;

/// A pod of a device, by name; it need not exist. Every method queries the API anew.
#[derive(Clone, Copy)]
pub struct TestPod<'a> {
    device: &'a Device,
    name: &'a str,
}

/// The status of one container; missing fields are `Null`.
pub struct TestContainer(Value);

impl Device {
    /// A pod in the namespace `default`, which need not exist.
    pub fn pod<'a>(&'a self, name: &'a str) -> TestPod<'a> {
        TestPod { device: self, name }
    }

    /// Writes the manifest of a pod to a file of its name.
    pub fn write_pod<'a>(&'a self, name: &'a str, manifest: &str) -> TestPod<'a> {
        self.write_manifest(&format!("{name}.yaml"), manifest);
        self.pod(name)
    }

    /// Writes the manifest of a pod of one container that executes these steps, [`manifest::pod`], to a file of its name.
    pub fn run_pod<'a>(&'a self, name: &'a str, steps: &str) -> TestPod<'a> {
        self.write_pod(name, &manifest::pod(name, steps))
    }

    /// Writes the manifest of [`manifest::pod_with`] to a file of the pod's name.
    pub fn run_pod_with<'a>(&'a self, name: &'a str, steps: &str, spec: &str) -> TestPod<'a> {
        self.write_pod(name, &manifest::pod_with(name, steps, spec))
    }

    /// Writes the manifest of [`manifest::pod_of`] to a file of the pod's name.
    pub fn run_pod_of<'a>(&'a self, name: &'a str, containers: &[String], spec: &str) -> TestPod<'a> {
        self.write_pod(name, &manifest::pod_of(name, containers, spec))
    }

    /// Removes the manifest of [`Device::write_pod`], and waits until the pod does not exist any more.
    #[track_caller]
    pub fn remove_pod(&self, name: &str) {
        self.remove_manifest(&format!("{name}.yaml"));
        self.pod(name).wait_gone();
    }
}

impl<'a> TestPod<'a> {
    /// The whole object, if the pod exists.
    pub fn object(&self) -> Option<Value> {
        self.device.get(&format!("/api/v1/namespaces/default/pods/{}", self.name)).ok()
    }

    /// The field of the object at a JSON pointer, such as `/metadata/uid`; `Null` if it is missing.
    pub fn get(&self, pointer: &str) -> Value {
        self.object().and_then(|pod| pod.pointer(pointer).cloned()).unwrap_or_default()
    }

    /// The status of the pod; `Null` if it does not exist.
    pub fn status(&self) -> Value {
        self.object().map_or(Value::Null, |mut pod| pod["status"].take())
    }

    /// The phase: `Pending`, `Running`, `Succeeded` or `Failed`; empty if the pod does not exist.
    pub fn phase(&self) -> String {
        text(&self.status()["phase"])
    }

    /// The uid; empty if the pod does not exist.
    pub fn uid(&self) -> String {
        self.object().map_or_else(String::new, |pod| text(&pod["metadata"]["uid"]))
    }

    /// The pod's IP address; empty until it has one.
    pub fn ip(&self) -> String {
        text(&self.status()["podIP"])
    }

    /// The status of a condition, `True`, `False` or `Unknown`; empty if the condition is missing.
    pub fn condition(&self, kind: &str) -> String {
        let status = self.status();
        let conditions = status["conditions"].as_array();
        let found = conditions.and_then(|all| all.iter().find(|condition| condition["type"] == kind));
        found.map_or_else(String::new, |condition| text(&condition["status"]))
    }

    /// A whole condition; `Null` if it is missing.
    pub fn whole_condition(&self, kind: &str) -> Value {
        let conditions = self.get("/status/conditions");
        let mut all = conditions.as_array().into_iter().flatten();
        all.find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
    }

    /// Whether the pod is ready.
    pub fn is_ready(&self) -> bool {
        self.condition("Ready") == "True"
    }

    /// The status of one container: main, init or ephemeral.
    pub fn container(&self, name: &str) -> TestContainer {
        let status = self.status();
        let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
        let all = lists.iter().filter_map(|list| status[*list].as_array()).flatten();
        TestContainer(all.into_iter().find(|one| one["name"] == name).cloned().unwrap_or(Value::Null))
    }

    /// The log of the container, by `nodlet logs`; empty if that fails.
    pub fn logs(&self, container: &str) -> String {
        self.device.nodlet(["logs", self.name, "-c", container]).stdout
    }

    /// Creates a file that a container waits for, by an exec. If the container ends because of it, the exec
    /// may be killed: the end of the first process in a PID namespace kills all others.
    pub fn tell(&self, container: &str, file: &str) {
        let ran = self.demo(container, &format!("touch {file}"));
        assert!([0, 137].contains(&ran.code), "{ran:?}");
    }

    /// Runs a command in the container, by `nodlet exec`.
    pub fn exec<const N: usize>(&self, container: &str, words: [&str; N]) -> Ran {
        let mut all = vec!["exec", self.name, "-c", container, "--"];
        all.extend(words);
        self.device.run(&all, "")
    }

    /// Runs the demo program in the container with these steps, which are split at spaces, by `nodlet exec`.
    pub fn demo(&self, container: &str, steps: &str) -> Ran {
        let mut all = vec!["exec", self.name, "-c", container, "--", "/bin/demo"];
        all.extend(steps.split(' '));
        self.device.run(&all, "")
    }

    /// The start time of the container's first process, in ticks since boot. It changes with any restart.
    #[track_caller]
    pub fn born(&self, container: &str) -> String {
        let stat = self.demo(container, "cat /proc/1/stat").ok();
        stat.rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(19))
            .unwrap_or_default()
            .to_owned()
    }

    /// The cgroups of all pods of the device.
    pub(crate) fn cgroups(&self) -> Vec<PathBuf> {
        self.device.cgroups()
    }

    /// All events about the pod, as `Reason: message`, oldest first.
    pub fn events(&self) -> Vec<String> {
        let list = self.device.get("/api/v1/namespaces/default/events").unwrap_or_default();
        let events = list["items"].as_array().cloned().unwrap_or_default();
        let ours = events.iter().filter(|event| event["involvedObject"]["name"] == self.name);
        ours.map(|event| format!("{}: {}", text(&event["reason"]), text(&event["message"]))).collect()
    }

    /// Whether an event about the pod contains this text, in the form of [`TestPod::events`].
    pub fn has_event(&self, text: &str) -> bool {
        self.events().iter().any(|event| event.contains(text))
    }

    /// Waits until the pod has this phase.
    #[track_caller]
    pub fn wait_phase(&self, phase: &str) -> TestPod<'a> {
        self.wait(&format!("to be {phase}"), |pod| pod.phase() == phase)
    }

    /// Waits until the pod is ready.
    #[track_caller]
    pub fn wait_ready(&self) -> TestPod<'a> {
        self.wait("to be ready", |pod| pod.is_ready())
    }

    /// Waits until the container is running.
    #[track_caller]
    pub fn wait_running(&self, container: &str) -> TestPod<'a> {
        self.wait(&format!("to run {container}"), |pod| pod.container(container).is_running())
    }

    /// Waits until the container is terminated.
    #[track_caller]
    pub fn wait_terminated(&self, container: &str) -> TestPod<'a> {
        self.wait(&format!("to end {container}"), |pod| pod.container(container).state() == "terminated")
    }

    /// Waits until the container's current state has this reason.
    #[track_caller]
    pub fn wait_reason(&self, container: &str, reason: &str) -> TestPod<'a> {
        self.wait(&format!("to show {reason} of {container}"), |pod| {
            pod.container(container).reason() == reason
        })
    }

    /// Waits until the message of the container's current state contains this text.
    #[track_caller]
    pub fn wait_message(&self, container: &str, text: &str) -> TestPod<'a> {
        let what = format!("to show {text:?} as the message of {container}");
        self.wait(&what, |pod| pod.container(container).message().contains(text))
    }

    /// Waits until the container was restarted this many times.
    #[track_caller]
    pub fn wait_restarts(&self, container: &str, count: i64) -> TestPod<'a> {
        let what = format!("to have restarted {container} {count} times");
        self.wait(&what, |pod| pod.container(container).restart_count() == count)
    }

    /// Waits until the container runs after this many restarts.
    #[track_caller]
    pub fn wait_run(&self, container: &str, restarts: i64) -> TestPod<'a> {
        self.wait(&format!("to run {container} after {restarts} restarts"), |pod| {
            let container = pod.container(container);
            container.restart_count() == restarts && container.is_running()
        })
    }

    /// Waits until an event about the pod has this reason and contains this text.
    #[track_caller]
    pub fn wait_event_of(&self, reason: &str, text: &str) -> TestPod<'a> {
        let begin = format!("{reason}: ");
        self.wait(&format!("to have the event {begin}{text:?}"), |pod| {
            pod.events().iter().any(|event| event.starts_with(&begin) && event.contains(text))
        })
    }

    /// Waits until an event about the pod contains this text, in the form of [`TestPod::events`].
    #[track_caller]
    pub fn wait_event(&self, text: &str) -> TestPod<'a> {
        self.wait(&format!("to have the event {text:?}"), |pod| pod.has_event(text))
    }

    /// Waits until the pod does not exist any more.
    #[track_caller]
    pub fn wait_gone(&self) {
        self.wait("to be gone", |pod| pod.object().is_none());
    }

    /// Waits until the container's log contains this text.
    #[track_caller]
    pub fn wait_log(&self, container: &str, text: &str) -> TestPod<'a> {
        self.wait(&format!("to have {text:?} in the log of {container}"), |pod| {
            pod.logs(container).contains(text)
        })
    }

    pub(crate) fn device(&self) -> &'a Device {
        self.device
    }

    pub(crate) fn name(&self) -> &'a str {
        self.name
    }

    #[track_caller]
    fn wait(&self, what: &str, condition: impl Fn(&Self) -> bool) -> TestPod<'a> {
        self.device.wait_for(&format!("{} {what}", self.name), || condition(self));
        *self
    }
}

impl TestContainer {
    /// The state: `waiting`, `running` or `terminated`; empty if there is no status.
    pub fn state(&self) -> &str {
        self.0["state"].as_object().and_then(|state| state.keys().next()).map_or("", String::as_str)
    }

    /// The reason of the current state.
    pub fn reason(&self) -> String {
        text(&self.0["state"][self.state()]["reason"])
    }

    /// The message of the current state.
    pub fn message(&self) -> String {
        text(&self.0["state"][self.state()]["message"])
    }

    /// The exit code, if the container is terminated.
    pub fn exit_code(&self) -> Option<i64> {
        self.0["state"]["terminated"]["exitCode"].as_i64()
    }

    /// A field of the current state.
    pub fn of_state(&self, field: &str) -> Value {
        self.0["state"][self.state()][field].clone()
    }

    /// A field of the last terminated run; `Null` if there was none.
    pub fn of_last(&self, field: &str) -> Value {
        self.0["lastState"]["terminated"][field].clone()
    }

    /// A text field of the container's status.
    pub fn of_status(&self, field: &str) -> String {
        text(&self.0[field])
    }

    /// The restart count; -1 if there is no status.
    pub fn restart_count(&self) -> i64 {
        self.0["restartCount"].as_i64().unwrap_or(-1)
    }

    /// Whether the container is ready.
    pub fn is_ready(&self) -> bool {
        self.0["ready"] == true
    }

    /// Whether the container is running.
    pub fn is_running(&self) -> bool {
        self.state() == "running"
    }

    /// The container ID, which is new with every run.
    pub fn id(&self) -> String {
        text(&self.0["containerID"])
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
