//! Network interfaces of the board as devices: they move into the pod, and come back.

use std::path::Path;
use std::process::Command;

use nodlet_tests::{Device, Namespace, manifest};

use super::{asking_with, offer};

const NET_ADMIN: &str = "securityContext: {capabilities: {add: [NET_ADMIN]}}";

/// A link of the host, which is removed when it is dropped.
struct Link(String);

impl Link {
    fn exists(&self) -> bool {
        Path::new("/sys/class/net").join(&self.0).exists()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.0]).output();
    }
}

#[test]
fn an_interface_moves_into_the_pod_and_comes_back_under_its_name() {
    let mut device = Device::start();
    let link = Link(format!("nlt{}", std::process::id()));
    offer(&device, "can", &format!("interface: {}\n", link.0));
    let steps = "ls /sys/class/net then sleep";
    device.write_pod("bus", &asking_with("bus", steps, "nodlet.dev/can: 1", NET_ADMIN));
    let missing = format!("device nodlet.dev/can was not found: there is no interface {}", link.0);
    device.pod("bus").wait_event(&format!("FailedCreatePodSandBox: Failed to create pod sandbox: {missing}"));

    let peer = format!("{}p", link.0);
    Namespace::of_process("self").ip(&format!("link add {} type veth peer name {peer}", link.0));
    device.pod("bus").wait_log("app", &format!("{}\n", link.0)).wait_ready();
    assert!(!link.exists(), "it is in the pod alone");
    device.restart_agent();
    device.pod("bus").wait_ready();
    // What the pod calls it does not matter.
    for words in ["down", "name renamed"] {
        pod_network(&device).ip(&format!("link set {} {words}", link.0));
    }
    device.remove_pod("bus");
    assert!(link.exists(), "it came back");

    let own = manifest::pod_of(
        "own",
        &[manifest::container("app", "sleep", "resources: {limits: {nodlet.dev/can: 1}}")],
        "hostNetwork: true",
    );
    device.write_pod("own", &own).wait_event("which moves into the pod's own network; remove hostNetwork");
}

/// A board with the interface `can0`, without an agent, its network, and the network beyond the interface.
fn board_with_bus() -> (Device, Namespace, Namespace) {
    let mut device = Device::new();
    let (board, world) = (device.own_network(), Namespace::new());
    board.connect("can0", &world, "far");
    (device, board, world)
}

/// The network of the only pod.
fn pod_network(device: &Device) -> Namespace {
    Namespace::of_process(&device.container_processes()[0].to_string())
}

/// Starts an agent, and the pod `bus` with the interface `can0`, which may change its links.
fn start_bus(device: &mut Device) {
    device.start_agent_with_demo();
    offer(device, "can", "interface: can0\n");
    device.write_pod("bus", &asking_with("bus", "sleep", "nodlet.dev/can: 1", NET_ADMIN)).wait_ready();
}

#[test]
fn an_interface_whose_name_was_taken_comes_back_under_a_free_one() {
    let (mut device, board, _world) = board_with_bus();
    start_bus(&mut device);
    assert!(!board.ip("link show").contains(" can0"));
    // Meanwhile another interface is plugged in, and the pod renames its own.
    for name in ["can0", "dev0", "other"] {
        board.ip(&format!("link add {name} type bridge"));
    }
    for words in ["down", "name other"] {
        pod_network(&device).ip(&format!("link set can0 {words}"));
    }
    device.remove_pod("bus");
    assert!(board.ip("-details link show dev1").contains("veth"), "{}", board.ip("link show"));
    let message = "interface can0 came back from the pod as dev1: another interface has its name";
    device.wait_for("the event", || {
        let events = device.get("/api/v1/events").expect("the API lists events").to_string();
        events.contains("InterfaceRenamed") && events.contains(message)
    });
    assert!(device.agent_log().contains(message));
}

#[test]
fn an_interface_that_a_pod_replaced_by_a_link_of_its_own_does_not_come_back() {
    let (mut device, board, _world) = board_with_bus();
    start_bus(&mut device);
    assert!(!board.ip("link show").contains(" can0"));
    // The pod replaces its interface by one of another kind with the same index.
    let inside = pod_network(&device);
    let shown = inside.ip("-oneline link show can0");
    let index = shown.split(':').next().expect("it begins with the index");
    inside.ip("link del can0");
    inside.ip(&format!("link add can0 index {index} type ifb"));
    device.remove_pod("bus");
    assert!(!board.ip("link show").contains(" can0"), "{}", board.ip("-details link show"));
    let message = "interface can0 did not come back from the pod: it was removed in the pod";
    assert!(device.agent_log().contains(message), "{}", device.agent_log());
}

#[test]
fn an_interface_comes_back_as_it_was_whatever_the_pod_did_to_it() {
    let (mut device, board, _world) = board_with_bus();
    board.ip("link property add dev can0 altname encan0");
    board.ip("link set can0 address 02:00:00:00:00:09 mtu 1400");
    // The names that the pod chooses later.
    for name in ["uplink", "dev0", "mine"] {
        board.ip(&format!("link add {name} type bridge"));
    }
    let before = board.ip("-details link show can0");
    start_bus(&mut device);
    for words in [
        "ip link set can0 down",
        "ip link set can0 name mine",
        "ip link property add dev mine altname uplink altname dev0 altname encan1",
        "ip link property del dev mine altname encan0",
        // Another link of the pod has the name that the interface has on the host.
        "ip link property add dev lo altname can0",
        "ip link set mine address 02:00:00:00:00:01 mtu 1300 promisc on allmulticast on",
        "ip link add link mine name child type macvlan mode private",
        "tc qdisc add dev mine root pfifo limit 1",
    ] {
        let mut words_of = words.split(' ');
        let mut command = Command::new(words_of.next().expect("a program"));
        pod_network(&device).give_to(&mut command);
        let output = command.args(words_of).output().expect("the machine has iproute2");
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    }
    device.remove_pod("bus");
    let shown = board.ip("-details link show");
    assert!(shown.contains(" can0"), "it did not come back: {shown}");
    let lines = |text: &str| {
        let words = text.split_whitespace().filter(|word| !word.contains('<') && !word.starts_with("can0@"));
        let all: Vec<String> = words.map(str::to_owned).collect();
        let after =
            |key: &str| all.iter().position(|word| word == key).and_then(|at| all.get(at + 1)).cloned();
        ["mtu", "link/ether", "altname"].map(after)
    };
    device.wait_for("the namespace of the pod to end", || {
        board.ip("-details link show can0").contains("promiscuity 0")
    });
    let after = board.ip("-details link show can0");
    assert_eq!(lines(&after), lines(&before), "{after}");
    assert!(after.matches("altname").count() == 1 && !after.contains("PROMISC"), "{after}");
    assert!(!after.contains("ALLMULTI") && !after.contains("pfifo "), "{after}");
    device.assert_not_logged("interface can0");
}
