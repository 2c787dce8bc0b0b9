//! [`ClusterNode`]: a board in a network namespace of its own, which is a node of a [`ControlPlane`]. Any number of
//! them share the link of the control plane.

use crate::control_plane::ControlPlane;
use crate::device::{Device, Ran};
use crate::namespace::Namespace;

/// A board whose agent is a node of a cluster.
pub struct ClusterNode {
    /// The board.
    pub device: Device,
    /// The network namespace of the agent.
    pub network: Namespace,
    /// The address of the board on the link of the control plane.
    pub address: String,
}

impl ClusterNode {
    /// A board that has joined.
    pub fn join(plane: &ControlPlane, name: &str) -> Self {
        Self::join_with(plane, name, &[])
    }

    /// A new cluster, and the board `board-1` that has joined it.
    pub fn in_new_cluster() -> (ControlPlane, Self) {
        let plane = ControlPlane::start();
        let node = Self::join(&plane, "board-1");
        (plane, node)
    }

    /// A board that has joined, whose agents have further arguments.
    pub fn join_with(plane: &ControlPlane, name: &str, arguments: &[&str]) -> Self {
        Self::connected_with(plane, name, arguments).enter(plane, name)
    }

    /// The same, without the harness's requests to the agent, which cost it something.
    pub fn join_unwatched(plane: &ControlPlane, name: &str, arguments: &[&str]) -> Self {
        let mut device = Device::new();
        device.replay_nothing();
        Self::start(plane, device, name, arguments).enter(plane, name)
    }

    /// Joins the cluster with a board that reaches the API server.
    pub fn enter(self, plane: &ControlPlane, name: &str) -> Self {
        let words = plane.join_arguments();
        let words: Vec<&str> = ["join"].into_iter().chain(words.iter().map(String::as_str)).collect();
        let joined = self.verb(&words);
        assert!(joined.ok().contains(&format!("node {name} has joined")));
        plane.wait_for(&format!("get node {name} --no-headers"), |node| node.contains(" Ready "));
        // Until the cluster has removed this taint, too, its scheduler passes the board over.
        let taints = format!("get node {name} -o jsonpath={{.spec.taints[*].key}}");
        plane.wait_for(&taints, |taints| !taints.contains("not-ready"));
        self
    }

    /// A board that reaches the API server.
    pub fn connected(plane: &ControlPlane, name: &str) -> Self {
        Self::connected_with(plane, name, &[])
    }

    /// The same, whose agents have further arguments.
    pub fn connected_with(plane: &ControlPlane, name: &str, arguments: &[&str]) -> Self {
        Self::start(plane, Device::new(), name, arguments)
    }

    fn start(plane: &ControlPlane, mut device: Device, name: &str, arguments: &[&str]) -> Self {
        let network = device.own_network();
        let address = plane.connect(&network);
        device.set_agent_arguments(&[&["--node-name", name], arguments].concat());
        device.start_agent_with_demo();
        Self { device, network, address }
    }

    /// A board that has joined through the API server with faults, over this version of HTTP.
    pub fn join_through_faults(plane: &mut ControlPlane, version: u8) -> Device {
        let server = plane.misbehave(version);
        plane.set_fault("");
        let mut device = Device::new();
        // Agents are killed at any moment, and of a pod of a megabyte, the ring keeps no entry.
        device.replay_nothing();
        let network = device.own_network();
        plane.connect(&network);
        // The kubelet's port has a client of its own, whose requests would count.
        device.agent_arguments(["--node-name", "board-1", "--kubelet-port", "0"]);
        device.start_agent_with_demo();
        let mut arguments = plane.join_arguments();
        arguments[0] = server;
        let words: Vec<&str> = ["join"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        device.wait_for("the board to join", || {
            device.command(&words).output().expect("it runs").status.success()
        });
        plane.wait_for("get node board-1 --no-headers", |node| node.contains(" Ready "));
        device
    }

    /// Starts an agent with other further arguments, in place of one that was killed.
    pub fn restart_with(&mut self, name: &str, arguments: &[&str]) {
        self.device.set_agent_arguments(&[&["--node-name", name], arguments].concat());
        self.device.start_agent();
    }

    /// Approves the board's request for a serving certificate, and waits for the certificate: until then, the API
    /// server does not connect to the board.
    pub fn approve_server(&self, plane: &ControlPlane, name: &str) {
        let requests = || Self::server_requests(plane, name);
        self.device.wait_for("the request for a certificate", || !requests().is_empty());
        plane.line(&format!("certificate approve {}", requests()[0])).ok();
        let log = || self.device.agent_log();
        self.device.wait_for("the certificate", || log().contains("has a new certificate of the cluster"));
    }

    /// The names of the undecided requests of a node for a serving certificate.
    pub fn server_requests(plane: &ControlPlane, name: &str) -> Vec<String> {
        let requests = "get csr -o jsonpath={range.items[*]}{.metadata.name}|{.spec.signerName}|{.spec.username}|{.status.conditions[*].type}{'\\n'}{end}";
        let all = plane.line(requests).ok();
        let of_server = all.lines().filter(|line| line.contains("kubernetes.io/kubelet-serving|"));
        let undecided = of_server.filter(|line| line.ends_with(&format!("system:node:{name}|")));
        undecided.filter_map(|line| Some(line.split_once('|')?.0.to_owned())).collect()
    }

    /// Runs a verb.
    pub fn verb(&self, words: &[&str]) -> Ran {
        self.device.run(words, "")
    }
}
