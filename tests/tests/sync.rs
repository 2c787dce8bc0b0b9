//! A board that connects to its cluster only now and then, and the traffic that a joined board causes.

use std::fs;

use nodlet_tests::{ClusterNode, ControlPlane, Device, Namespace, demo_archive};

/// A board with an agent that has joined.
struct Board {
    device: Device,
    network: Namespace,
    address: String,
    /// The output of `nodlet join` besides its success.
    warning: String,
}

impl Board {
    fn join<const N: usize>(plane: &ControlPlane, arguments: [&str; N]) -> Board {
        let mut device = Device::new();
        let network = device.own_network();
        let address = plane.connect(&network);
        device.agent_arguments(arguments);
        device.start_agent();
        device.load_image(demo_archive());
        let arguments = plane.join_arguments();
        let words: Vec<&str> = ["join"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        let joined = device.command(&words).output().expect("nodlet can be run");
        assert!(joined.status.success(), "{joined:?}");
        let warning = String::from_utf8_lossy(&joined.stderr).into_owned();
        plane.wait_for("get node board-1 --no-headers", |node| node.contains(" Ready "));
        Board { device, network, address, warning }
    }

    /// The connections of the agent to the API server.
    fn connections(&self) -> usize {
        let path = format!("/proc/{}/net/tcp", self.device.agent_pid());
        let table = fs::read_to_string(path).expect("the agent runs");
        // 10.212.0.1:6443, established.
        table.lines().filter(|line| line.contains(" 0100D40A:192B 01 ")).count()
    }

    fn bytes(&self) -> u64 {
        bytes(&self.device)
    }

    fn wait_disconnected(&self) {
        self.device.wait_for("the visit to end", || self.connections() == 0);
    }
}

/// The bytes that the link of a board to the cluster has carried, with all headers.
fn bytes(device: &Device) -> u64 {
    let path = format!("/proc/{}/net/dev", device.agent_pid());
    let table = fs::read_to_string(path).expect("the agent runs");
    let line = table.lines().find_map(|line| line.trim().strip_prefix("uplink:")).expect("a link");
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    numbers[0] + numbers[8]
}

fn pod(name: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeName: board-1
  terminationGracePeriodSeconds: 1
  containers: [{{name: app, image: 'localhost/demo:1', args: [print, began, then, wait, /end]}}]
"
    )
}

#[test]
fn a_board_connects_once_per_interval_on_request_and_when_a_link_comes_up() {
    let plane = ControlPlane::start();
    let board = Board::join(&plane, ["--node-name", "board-1", "--sync-every", "6h", "--sync-jitter", "10m"]);
    assert!(board.warning.contains("the cluster shows the Node as NotReady"), "{}", board.warning);
    board.wait_disconnected();

    // One visit takes the pod, and reports that it runs.
    plane.apply(&pod("one"));
    assert_eq!(board.connections(), 0);
    board.device.nodlet(["sync"]).ok();
    let is_ready = |pod: &str| pod.contains("1/1");
    plane.wait_for("get pod one --no-headers", is_ready);
    let log = board.device.agent_log();
    assert!(log.contains("default/one: between two synchronisations, the cluster deletes the pod"), "{log}");
    board.wait_disconnected();

    // Nothing new: a visit is short, and small.
    let before = board.bytes();
    board.device.nodlet(["sync"]).ok();
    board.wait_disconnected();
    let bytes = board.bytes() - before;
    println!("one synchronisation with nothing new: {bytes} bytes");
    assert!((2_000..40_000).contains(&bytes), "{bytes}");

    // The link goes down and comes up; then only its carrier is lost and returns.
    board.network.ip("link set uplink down");
    plane.apply(&pod("two"));
    board.network.ip("link set uplink up");
    board.network.ip("route replace default via 10.212.0.1");
    plane.wait_for("get pod two --no-headers", is_ready);
    board.wait_disconnected();
    plane.namespace().ip("link set board1 down");
    plane.apply(&pod("three"));
    plane.namespace().ip("link set board1 up");
    plane.wait_for("get pod three --no-headers", is_ready);
    board.wait_disconnected();

    // Without the cluster, the request fails and the pods stay.
    let cut = plane.partition_from(&board.address);
    board.device.nodlet(["sync"]).refused_with("no response within 15 s");
    drop(cut);
    assert!(["one", "two", "three"].iter().all(|name| board.device.pod(name).container("app").is_running()));
    plane.line("delete pod one two three --wait=false").ok();
    board.device.nodlet(["sync"]).ok();
    plane.wait_for("get pods -o name", str::is_empty);
    assert!(board.device.pods().is_empty());
}

/// Renewals of the Lease during which the traffic is counted. The figures of docs/cluster.md are of 60.
fn renewals() -> usize {
    std::env::var("NODLET_RENEWALS").ok().and_then(|count| count.parse().ok()).unwrap_or(2)
}

/// Waits until the Lease of a node is renewed.
fn wait_renewed(plane: &ControlPlane, node: &str) {
    let mut last = None;
    let time = format!("get lease {node} -n kube-node-lease -o jsonpath={{.spec.renewTime}}");
    plane.wait_for(&time, |time| last.get_or_insert_with(|| time.to_owned()) != time);
}

#[test]
fn a_board_that_stays_connected_and_has_no_pods_of_the_cluster_sends_little() {
    let plane = ControlPlane::start();
    let board = Board::join(&plane, ["--node-name", "board-1"]);
    assert_eq!(board.warning, "");
    let renewed = || wait_renewed(&plane, "board-1");
    renewed();
    let before = board.bytes();
    (0..renewals()).for_each(|_| renewed());
    let bytes = board.bytes() - before;
    println!("{} renewals of the Lease with a watch of pods: {bytes} bytes", renewals());
    assert!(bytes < 5_000 * renewals() as u64, "{bytes}");
}

#[test]
fn only_a_board_that_has_joined_can_synchronise() {
    let device = Device::start();
    device.nodlet(["sync"]).refused_with("the board has joined no cluster");
}

#[test]
fn a_metered_board_sends_less_than_another_one_at_the_same_time() {
    let plane = ControlPlane::start();
    let ordinary = ClusterNode::join(&plane, "board-1");
    let metered = ClusterNode::join_with(&plane, "board-2", &["--metered"]);
    let on = |name: &str, node: &str| pod(name).replace("board-1", node);
    plane.apply(&format!("{}---{}", on("one", "board-1"), on("two", "board-2")));
    for name in ["one", "two"] {
        plane.wait_for(&format!("get pod {name} --no-headers"), |pod| pod.contains("1/1"));
    }
    let seconds = "get lease board-2 -n kube-node-lease -o jsonpath={.spec.leaseDurationSeconds}";
    assert_eq!(plane.line(seconds).ok(), "100");
    let renewed = || wait_renewed(&plane, "board-2");
    renewed();
    let count = |node: &ClusterNode| bytes(&node.device);
    let before = (count(&ordinary), count(&metered));
    (0..renewals().div_ceil(2)).for_each(|_| renewed());
    let (ordinary_bytes, metered_bytes) = (count(&ordinary) - before.0, count(&metered) - before.1);
    println!(
        "idle with one pod, for {} metered renewals: {ordinary_bytes} bytes, metered {metered_bytes} bytes",
        renewals().div_ceil(2)
    );
    assert!(metered_bytes * 4 < ordinary_bytes * 3, "{metered_bytes} and {ordinary_bytes}");

    // A change is sent with the next renewal, or on request; events that are not warnings are not.
    metered.device.pod("two").tell("app", "/end");
    metered.device.pod("two").wait_restarts("app", 1);
    metered.device.nodlet(["sync"]).ok();
    let restarts = "get pod two -o jsonpath={.status.containerStatuses[0].restartCount}";
    assert_eq!(plane.line(restarts).ok(), "1");
    let events = "get events --field-selector reason=Started -o jsonpath={.items[*].involvedObject.name}";
    plane.wait_for(events, |names| names.contains("one"));
    assert!(!plane.line(events).ok().contains("two"));
}
