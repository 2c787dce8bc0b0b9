//! The kubelet's server of a board, at a real control plane: `kubectl logs` and the like at the cluster.

use nodlet_tests::{ControlPlane, Device, Ran, demo_archive};

/// A board whose agent is a node of a cluster, with the certificate of a server.
struct Node {
    device: Device,
    address: String,
}

impl Node {
    /// A board that has joined, and whose serving certificate is approved.
    fn join(plane: &ControlPlane, name: &str) -> Node {
        let mut device = Device::new();
        let network = device.own_network();
        let address = plane.connect(&network);
        device.agent_arguments(["--node-name", name]);
        device.start_agent();
        device.load_image(demo_archive());
        let node = Node { device, address };
        let arguments = plane.join_arguments();
        node.verb(&[&["join"], &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat()).ok();
        plane.wait_for(&format!("get node {name} --no-headers"), |node| node.contains(" Ready "));
        approve(plane, name);
        let log = || node.device.agent_log();
        node.device.wait_for("the certificate", || log().contains("has a new certificate of the cluster"));
        node
    }

    /// Runs a verb.
    fn verb(&self, words: &[&str]) -> Ran {
        let output = self.device.command(words).output().expect("nodlet can be run");
        Ran {
            command: words.join(" "),
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Approves the request of a node for a serving certificate.
fn approve(plane: &ControlPlane, node: &str) {
    let requests = "get csr -o jsonpath={range.items[*]}{.metadata.name}|{.spec.signerName}|{.spec.username}|{.status.conditions[*].type}{'\\n'}{end}";
    let is_it = |line: &&str| {
        line.contains("kubernetes.io/kubelet-serving|") && line.ends_with(&format!("system:node:{node}|"))
    };
    let all = plane.wait_for(requests, |all| all.lines().any(|line| is_it(&line)));
    let line = all.lines().find(is_it).expect("it was there");
    let (name, _) = line.split_once('|').expect("it has parts");
    plane.line(&format!("certificate approve {name}")).ok();
}

/// A pod that prints, and runs until it is told to end.
fn pod(name: &str, args: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: localhost/demo:1
    imagePullPolicy: IfNotPresent
    args: [{args}]
"
    )
}

/// Runs a pod until it is ready.
fn run(plane: &ControlPlane, name: &str, args: &str) {
    plane.apply(&pod(name, args));
    plane.wait_for(&format!("get pod {name} --no-headers"), |pod| pod.contains("1/1"));
}

#[test]
fn kubectl_reads_logs_through_the_api_server() {
    let plane = ControlPlane::start();
    let node = Node::join(&plane, "board-1");
    let port = "get node board-1 -o jsonpath={.status.daemonEndpoints.kubeletEndpoint.Port}";
    assert_eq!(plane.line(port).ok(), "10250");
    run(&plane, "web", "print, one, then, print, two, then, wait, /end");
    assert_eq!(plane.line("logs web").ok(), "one\ntwo\n");
    let _ = node.address;
}
