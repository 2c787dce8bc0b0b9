//! [`TestPod`]: one pod as the API shows it, and what a test does with it.

use serde_json::Value;

use crate::device::{Device, Ran};

/// A pod of a device, by name; it need not exist. Every question asks the API anew.
#[derive(Clone, Copy)]
pub struct TestPod<'a> {
    device: &'a Device,
    name: &'a str,
}

/// What the status says of one container. `Null`s where it says nothing.
pub struct TestContainer(Value);

impl<'a> TestPod<'a> {
    pub(crate) fn new(device: &'a Device, name: &'a str) -> Self {
        Self { device, name }
    }

    /// The whole object, if there is one.
    pub fn object(&self) -> Option<Value> {
        self.device.get(&format!("/api/v1/namespaces/default/pods/{}", self.name)).ok()
    }

    /// Its status; `Null` if there is no pod.
    pub fn status(&self) -> Value {
        self.object().map_or(Value::Null, |mut pod| pod["status"].take())
    }

    /// `Pending`, `Running`, `Succeeded`, `Failed`; empty if there is no pod.
    pub fn phase(&self) -> String {
        text(&self.status()["phase"])
    }

    /// Its uid; empty if there is no pod.
    pub fn uid(&self) -> String {
        self.object().map_or_else(String::new, |pod| text(&pod["metadata"]["uid"]))
    }

    /// Its address; empty until it has one.
    pub fn ip(&self) -> String {
        text(&self.status()["podIP"])
    }

    /// `True`, `False` or `Unknown` of a condition; empty if it is not there.
    pub fn condition(&self, kind: &str) -> String {
        let status = self.status();
        let conditions = status["conditions"].as_array();
        let found = conditions.and_then(|all| all.iter().find(|condition| condition["type"] == kind));
        found.map_or_else(String::new, |condition| text(&condition["status"]))
    }

    /// Whether the pod says it is ready.
    pub fn is_ready(&self) -> bool {
        self.condition("Ready") == "True"
    }

    /// One container, main, init or ephemeral.
    pub fn container(&self, name: &str) -> TestContainer {
        let status = self.status();
        let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
        let all = lists.iter().filter_map(|list| status[*list].as_array()).flatten();
        TestContainer(all.into_iter().find(|one| one["name"] == name).cloned().unwrap_or(Value::Null))
    }

    /// What the container has written, by `nodlet logs`; empty if it cannot be told.
    pub fn logs(&self, container: &str) -> String {
        self.device.nodlet(["logs", self.name, "-c", container]).stdout
    }

    /// Makes a file that a container waits for, by an exec. What ends upon it may take the exec
    /// with it: the first process of a PID namespace takes all others along.
    pub fn tell(&self, container: &str, file: &str) {
        let ran = self.exec(container, ["/bin/demo", "touch", file]);
        assert!([0, 137].contains(&ran.code), "{ran:?}");
    }

    /// Runs a command in the container, by `nodlet exec`.
    pub fn exec<const N: usize>(&self, container: &str, words: [&str; N]) -> Ran {
        let mut all = vec!["exec", self.name, "-c", container, "--"];
        all.extend(words);
        self.device.run(&all, "")
    }

    /// When the container's first process was started, in ticks since boot: the
    /// mark by which a restart cannot hide.
    #[track_caller]
    pub fn born(&self, container: &str) -> String {
        let stat = self.exec(container, ["/bin/demo", "cat", "/proc/1/stat"]).ok();
        stat.rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(19))
            .unwrap_or_default()
            .to_owned()
    }

    /// Warning and normal events about the pod, `Reason: message`, oldest first.
    pub fn events(&self) -> Vec<String> {
        let list = self.device.get("/api/v1/namespaces/default/events").unwrap_or_default();
        let events = list["items"].as_array().cloned().unwrap_or_default();
        let ours = events.iter().filter(|event| event["involvedObject"]["name"] == self.name);
        ours.map(|event| format!("{}: {}", text(&event["reason"]), text(&event["message"]))).collect()
    }

    /// Waits until the pod has this phase.
    #[track_caller]
    pub fn wait_phase(&self, phase: &str) {
        self.device.wait_for(&format!("{} to be {phase}", self.name), || self.phase() == phase);
    }

    /// Waits until the pod is ready.
    #[track_caller]
    pub fn wait_ready(&self) {
        self.device.wait_for(&format!("{} to be ready", self.name), || self.is_ready());
    }

    /// Waits until there is no such pod.
    #[track_caller]
    pub fn wait_gone(&self) {
        self.device.wait_for(&format!("{} to be gone", self.name), || self.object().is_none());
    }

    /// Waits until the container's log has this text in it.
    #[track_caller]
    pub fn wait_log(&self, container: &str, text: &str) {
        self.device.wait_for(&format!("{text:?} in the log of {}/{container}", self.name), || {
            self.logs(container).contains(text)
        });
    }
}

impl TestContainer {
    /// `waiting`, `running` or `terminated`; empty if there is no status.
    pub fn state(&self) -> &str {
        self.0["state"].as_object().and_then(|state| state.keys().next()).map_or("", String::as_str)
    }

    /// The reason of the present state.
    pub fn reason(&self) -> String {
        text(&self.0["state"][self.state()]["reason"])
    }

    /// The message of the present state.
    pub fn message(&self) -> String {
        text(&self.0["state"][self.state()]["message"])
    }

    /// The exit code, if it is terminated.
    pub fn exit_code(&self) -> Option<i64> {
        self.0["state"]["terminated"]["exitCode"].as_i64()
    }

    /// A field of the present state.
    pub fn of_state(&self, field: &str) -> Value {
        self.0["state"][self.state()][field].clone()
    }

    /// A field of the run before this one, `Null` if there was none.
    pub fn of_last(&self, field: &str) -> Value {
        self.0["lastState"]["terminated"][field].clone()
    }

    /// A field of the status itself that is a text.
    pub fn of_status(&self, field: &str) -> String {
        text(&self.0[field])
    }

    /// How often it was restarted.
    pub fn restart_count(&self) -> i64 {
        self.0["restartCount"].as_i64().unwrap_or(-1)
    }

    /// Whether it is ready.
    pub fn is_ready(&self) -> bool {
        self.0["ready"] == true
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.state() == "running"
    }

    /// Its id, new with every run.
    pub fn id(&self) -> String {
        text(&self.0["containerID"])
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
