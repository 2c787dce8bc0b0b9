//! Two agents on one machine, as somebody has who tries nodlet beside one that runs: neither takes anything from the
//! pods of the other.

use nodlet_tests::{Device, Namespace};

use super::{BOARD, NEIGHBOUR, PAGE, PORT, board, run_web, setting, show_client, start};

/// Another agent on the same board.
fn other_agent(board: &Namespace) -> Device {
    let mut device = Device::new();
    device.share_network(board);
    start(&mut device);
    device
}

/// Whether a pod gets replies from the world.
#[track_caller]
fn check_reaches_world(world: &Namespace, device: &Device, pod: &str) {
    let seen = show_client(world, NEIGHBOUR);
    device.pod(pod).demo("app", &format!("connect {NEIGHBOUR}:80")).ok();
    assert_eq!(seen.join().expect("it serves"), BOARD);
}

#[test]
fn pods_of_two_agents_reach_the_world_and_their_host_ports() {
    let (one, board, world) = board();
    run_web(&one, "web", PORT);
    let other = other_agent(&board);
    run_web(&other, "web", "{containerPort: 8080, hostPort: 81}");
    for (device, port) in [(&one, 80), (&other, 81)] {
        let url = format!("http://{BOARD}:{port}/");
        assert_eq!(world.demo(&format!("get {url}")).as_deref(), Ok(PAGE));
        assert_eq!(device.pod("web").exec("app", ["/bin/demo", "get", &url]).ok(), PAGE);
        check_reaches_world(&world, device, "web");
    }

    // Each agent follows what the other takes with it.
    one.nodlet(["down"]).ok();
    let forwarding = || setting(&board, "conf/eth0/forwarding");
    other.wait_for("the link to forward again", || forwarding() == "1");
    check_reaches_world(&world, &other, "web");
    assert_eq!(world.demo(&format!("get http://{BOARD}:81/")).as_deref(), Ok(PAGE));
    other.nodlet(["down"]).ok();
    assert_eq!(forwarding(), "0");
    assert_eq!(board.tables(), [""; 0]);
}

/// An agent makes its bridge before the bridge forwards. Another agent that saw it then made it one of its own links,
/// and dropped the packets of its pods.
#[test]
fn the_bridge_of_an_agent_that_starts_is_no_link_of_another_agent() {
    let (mut one, board, world) = board();
    run_web(&one, "web", PORT);
    let link = board.ip("-o link show type bridge");
    let bridge = link.split(": ").nth(1).expect("the bridge of the agent").to_owned();
    one.kill_agent();
    let set = format!("/proc/sys/net/ipv4/conf/{bridge}/forwarding");
    board.call(move || std::fs::write(set, "0").expect("the bridge has it"));

    let other = other_agent(&board);
    other.run_pod("client", "sleep").wait_ready();
    check_reaches_world(&world, &other, "client");
    assert_eq!(setting(&board, &format!("conf/{bridge}/forwarding")), "0");
    one.start_agent();
    let url = format!("http://{BOARD}/");
    assert_eq!(one.pod("web").exec("app", ["/bin/demo", "get", &url]).ok(), PAGE, "a pod reaches a hostPort");
    check_reaches_world(&world, &one, "web");
    other.nodlet(["down"]).ok();
    assert_eq!(setting(&board, &format!("conf/{bridge}/forwarding")), "1");
    assert_eq!(one.pod("web").exec("app", ["/bin/demo", "get", &url]).ok(), PAGE);
}
