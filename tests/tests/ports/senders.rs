//! Senders of UDP that go on with one port, as those of sensors and of syslog do: the kernel keeps an entry of each.

use std::net::UdpSocket;
use std::time::Duration;

use nodlet_tests::{Device, Sender, manifest};

use super::{BOARD, NEIGHBOUR, board, board_of_both_versions, forward_ipv6};

/// A pod that prints what comes to two ports of the board. It listens on `port`.
fn listener(step: &str, port: u16) -> String {
    let of = |host: u16| format!("{{containerPort: {port}, hostPort: {host}, protocol: UDP}}");
    let ports = format!("ports: [{}, {}]", of(53), of(54));
    manifest::single("udp", &format!("{step} {port}"), &ports, "")
}

/// Waits until the senders of these words reach a pod.
fn wait_for(device: &Device, pod: &str, words: &[&str]) {
    for word in words {
        let pod = device.pod(pod);
        device.wait_for(&format!("the sender of {word}"), || {
            pod.logs("app").lines().any(|line| line.ends_with(&format!(" says {word}")))
        });
    }
}

#[test]
fn udp_senders_that_go_on_reach_a_pod_that_comes_later_and_those_that_replace_it() {
    let (mut device, board, world) = board();
    // The kernel tracks connections as soon as there is a pod.
    device.run_pod("first", "sleep").wait_ready();
    let all = ["world", "board", "loop", "other"];
    let _senders = [
        Sender::begin(&world, "192.0.2.2:53", "world"),
        Sender::begin(&board, "192.0.2.2:53", "board"),
        Sender::begin(&board, "127.0.0.1:53", "loop"),
        Sender::begin(&world, "192.0.2.2:54", "other"),
    ];
    device.write_manifest("udp.yaml", &listener("datagrams", 5353));
    wait_for(&device, "udp", &all);
    assert!(device.pod("udp").logs("app").contains(&format!("{NEIGHBOUR} says world")));
    let first_address = device.pod("udp").ip();

    // Another pod has the address of the first one when the second one comes.
    device.remove_pod("udp");
    device.run_pod("heir", "datagrams 5353").wait_log("app", "bound");
    assert_eq!(device.pod("heir").ip(), first_address);
    device.write_manifest("udp.yaml", &listener("datagrams", 5353));
    wait_for(&device, "udp", &all);
    assert_ne!(device.pod("udp").ip(), first_address);
    assert_eq!(device.pod("heir").logs("app"), "bound\n");

    // While no agent runs, a file changes; the next agent replaces the pod.
    let before = device.pod("udp").uid();
    device.kill_agent();
    device.write_manifest("udp.yaml", &listener("datagrams", 5354));
    device.start_agent();
    device.wait_for("the replacement", || device.pod("udp").uid() != before);
    wait_for(&device, "udp", &all);

    // A port that is closed leads to nobody, and a program of the board can have it.
    device.remove_pod("udp");
    let program = board.call(|| UdpSocket::bind((BOARD, 53)).expect("nobody has it"));
    program.set_read_timeout(Some(Duration::from_secs(30))).expect("a time");
    let mut words = Vec::new();
    while !(words.contains(&"world".to_owned()) && words.contains(&"board".to_owned())) {
        let mut buffer = [0; 16];
        let (length, _) = program.recv_from(&mut buffer).expect("both senders reach it");
        words.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    assert_eq!(device.pod("heir").logs("app"), "bound\n");
}

#[test]
fn udp_senders_of_ipv6_that_go_on_reach_a_pod_that_comes_later_and_one_that_replaces_it() {
    let (device, board, world) = board_of_both_versions();
    device.run_pod("first", "sleep").wait_ready();
    forward_ipv6(&device, &board);
    let all = ["six", "own", "world"];
    let _senders = [
        Sender::begin(&world, "[2001:db8::2]:53", "six"),
        Sender::begin(&board, "[2001:db8::2]:53", "own"),
        Sender::begin(&world, "192.0.2.2:53", "world"),
    ];
    device.write_manifest("udp.yaml", &listener("datagrams-of-both", 5353));
    wait_for(&device, "udp", &all);
    let said = device.pod("udp").logs("app");
    assert!(said.contains("2001:db8::1 says six") && said.contains("192.0.2.1 says world"), "{said}");
    let first_address = device.pod("udp").ip();

    // Another pod has the addresses of the first one when the second one comes.
    device.remove_pod("udp");
    device.run_pod("heir", "datagrams-of-both 5353").wait_log("app", "bound");
    assert_eq!(device.pod("heir").ip(), first_address);
    device.write_manifest("udp.yaml", &listener("datagrams-of-both", 5353));
    wait_for(&device, "udp", &all);
    assert_ne!(device.pod("udp").ip(), first_address);
    assert_eq!(device.pod("heir").logs("app"), "bound\n");
}
