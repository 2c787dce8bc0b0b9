//! The one Node object: what `get nodes` shows of this machine.

use serde_json::{Value, json};

use crate::node::MAX_PODS;
use crate::objects::Key;
use crate::time::Instant;

use super::Shell;

impl Shell {
    /// Shows this machine as a Node. Nothing renews it: an agent that answers is the proof
    /// that it is ready.
    pub(super) fn show_node(&self) {
        let name = &self.config.node_name;
        self.objects.put(Key::new("nodes", "", name), self.node());
    }

    fn node(&self) -> Value {
        let name = &self.config.node_name;
        let anchor = self.anchor.get();
        let [began, now] = [self.began, Instant::now()].map(|at| anchor.timestamp(at).to_string());
        let since = anchor.timestamp(self.machine.since.get()).to_string();
        let (ready, reason, message) = match self.machine.goes_down.get() {
            false => ("True", "KubeletReady", "nodlet answers"),
            true => ("False", "KubeletNotReady", "node is shutting down"),
        };
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let capacity = json!({
            "cpu": cpus.to_string(),
            "memory": format!("{}Ki", self.memory >> 10),
            "pods": MAX_PODS.to_string(),
        });
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let mut addresses = vec![json!({ "type": "Hostname", "address": name })];
        if let Some(ip) = self.network.borrow().host_ip() {
            addresses.insert(0, json!({ "type": "InternalIP", "address": ip.to_string() }));
        }
        let version = env!("CARGO_PKG_VERSION");
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "creationTimestamp": began,
                "labels": {
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": architecture,
                },
            },
            "spec": {},
            "status": {
                "capacity": capacity,
                "allocatable": capacity,
                "addresses": addresses,
                "conditions": [{
                    "type": "Ready",
                    "status": ready,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": since,
                }],
                "nodeInfo": {
                    "architecture": architecture,
                    "operatingSystem": "linux",
                    "kernelVersion": first_line("/proc/sys/kernel/osrelease"),
                    "bootID": first_line("/proc/sys/kernel/random/boot_id"),
                    "machineID": first_line("/etc/machine-id"),
                    "systemUUID": "",
                    "osImage": os_image(),
                    "containerRuntimeVersion": format!("nodlet://{version}"),
                    "kubeletVersion": format!("{}+nodlet-{version}", crate::schema::KUBERNETES),
                    "kubeProxyVersion": "",
                },
            },
        })
    }
}

/// Empty where the machine has no such file.
fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// `PRETTY_NAME` of /etc/os-release.
fn os_image() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("Linux").trim_matches('"').to_owned()
}
