//! [`ClusterNode`]: a board whose agent is a node of a [`ControlPlane`].

use crate::control_plane::ControlPlane;
use crate::device::{Device, Ran};
use crate::programs::demo_archive;

/// A board whose agent is a node of a cluster.
pub struct ClusterNode {
    /// The board.
    pub device: Device,
    /// Its address on the link to the control plane.
    pub address: String,
}

impl ClusterNode {
    /// A board that has joined.
    ///
    /// # Panics
    /// If it does not join.
    pub fn join(plane: &ControlPlane, name: &str) -> ClusterNode {
        let node = ClusterNode::connected(plane, name);
        let joined = node.verb(
            &[&["join"], &plane.join_arguments().iter().map(String::as_str).collect::<Vec<_>>()[..]].concat(),
        );
        assert!(joined.ok().contains(&format!("node {name} has joined")));
        plane.wait_for(&format!("get node {name} --no-headers"), |node| node.contains(" Ready "));
        node
    }

    /// A board that reaches the API server.
    pub fn connected(plane: &ControlPlane, name: &str) -> ClusterNode {
        let mut device = Device::new();
        let network = device.own_network();
        let address = plane.connect(&network);
        device.agent_arguments(["--node-name", name]);
        device.start_agent();
        device.load_image(demo_archive());
        ClusterNode { device, address }
    }

    /// Runs a verb.
    ///
    /// # Panics
    /// If the verb cannot be run.
    pub fn verb(&self, words: &[&str]) -> Ran {
        let mut command = self.device.command(words);
        let output = command.output().expect("nodlet can be run");
        Ran {
            command: words.join(" "),
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}
