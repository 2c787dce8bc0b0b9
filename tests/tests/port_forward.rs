//! Forwarding of this machine's ports to a pod, with nodlet's verb and with kubectl.

use std::io::{Read, Write};
use std::net::TcpStream;

use nodlet_tests::{Device, Forwarding, Kubectl};

/// A pod that echoes its input, and listens only on its 127.0.0.1.
fn mirror(device: &Device) {
    device
        .write_single("web", "mirror 127.0.0.1:7000", "ports: [{name: echo, containerPort: 7000}]", "")
        .wait_log("app", "mirror");
}

fn each(device: &Device, kubectl: &Kubectl, ports: &str) -> [(&'static str, Forwarding); 2] {
    [
        ("nodlet", Forwarding::start(device.command(&["port-forward", "web", ports]))),
        (
            "kubectl",
            Forwarding::start(kubectl.command(["port-forward", "--address=127.0.0.1", "pod/web", ports])),
        ),
    ]
}

#[test]
fn many_connections_reach_a_port_on_the_pods_localhost_at_once() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    mirror(&device);
    for (who, forwarding) in each(&device, &kubectl, ":7000") {
        assert_eq!(forwarding.ask(b"hello"), b"hello", "{who}");
        assert_eq!(forwarding.ask(b""), b"", "{who}");
        let open: Vec<TcpStream> = (0..20).map(|_| forwarding.connect()).collect();
        for (number, mut connection) in open.iter().enumerate().rev() {
            let text = format!("{number:0>4}");
            connection.write_all(text.as_bytes()).expect("it is taken");
            let mut answer = [0; 4];
            connection.read_exact(&mut answer).expect("it answers");
            assert_eq!(answer, text.as_bytes(), "{who}");
        }
    }
    let named = Forwarding::start(device.command(&["port-forward", "web", ":echo"]));
    assert_eq!(named.ask(b"by name"), b"by name");
}

#[test]
fn a_forwarded_port_passes_20_mb_both_ways_unchanged() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    mirror(&device);
    let bytes = nodlet_tests::binary(20_000_000);
    for (who, forwarding) in each(&device, &kubectl, ":7000") {
        let begun = std::time::Instant::now();
        assert!(forwarding.ask(&bytes) == bytes, "{who}");
        println!("{who}: 20 MB there and back in {:?}", begun.elapsed());
    }
}

#[test]
fn a_forward_to_a_closed_port_is_reported_and_the_next_connection_works() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    mirror(&device);
    for (_, forwarding) in each(&device, &kubectl, ":7001") {
        let mut answer = Vec::new();
        // The connection is reset or ended, because nobody listens.
        let _ = forwarding.connect().read_to_end(&mut answer);
        assert!(answer.is_empty());
        forwarding
            .wait_for_error("error forwarding port 7001 to pod web: failed to connect to 127.0.0.1:7001");
    }
    let forwarding = Forwarding::start(device.command(&["port-forward", "web", ":7001"]));
    let _ = forwarding.connect().read_to_end(&mut Vec::new());
    forwarding.wait_for_error("Connection refused");
    device.pod("web").demo("app", "get http://127.0.0.1:7001/").refused();
    device.nodlet(["port-forward", "absent", "80"]).refused_with("pods \"absent\" not found");
}

#[test]
fn a_client_that_does_not_read_holds_up_neither_the_agent_nor_another() {
    let device = Device::start();
    mirror(&device);
    let forwarding = Forwarding::start(device.command(&["port-forward", "web", ":7000"]));
    let stuck = forwarding.connect();
    stuck.set_nonblocking(true).expect("it is a socket");
    let piece = vec![b'x'; 1 << 20];
    let mut taken = 0;
    let mut idle = 0;
    // Write until nothing more is accepted: all buffers on the way are full.
    device.wait_for("it to be held up", || {
        match (&stuck).write(&piece) {
            Ok(written) => (taken, idle) = (taken + written, 0),
            Err(_) => idle += 1,
        }
        idle > 50
    });
    assert!(taken < 200 << 20, "{taken} bytes lie somewhere");
    assert_eq!(forwarding.ask(b"another"), b"another");
    assert!(device.pod("web").is_ready());
    drop(stuck);
    assert_eq!(forwarding.ask(b"and on"), b"and on");
}

#[test]
fn a_client_that_is_gone_while_it_is_held_up_is_forgotten() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    device.run_pod("web", "deaf 127.0.0.1:7000").wait_log("app", "deaf");
    let held = || std::fs::read_dir(format!("/proc/{}/fd", device.agent_pid())).map_or(0, Iterator::count);
    for (who, forwarding) in each(&device, &kubectl, ":7000") {
        let before = held();
        let stuck = forwarding.connect();
        stuck.set_nonblocking(true).expect("it is a socket");
        let piece = vec![b'x'; 1 << 20];
        let mut idle = 0;
        device.wait_for("it to be held up", || {
            idle = if (&stuck).write(&piece).is_ok() { 0 } else { idle + 1 };
            idle > 50
        });
        assert!(held() > before, "{who}: there is a connection");
        // kubectl's own process must go first.
        drop(forwarding);
        if who == "kubectl" {
            kubectl.cut();
        }
        device.wait_for(&format!("{who}'s connection to be gone"), || held() <= before);
    }
}

#[test]
fn a_pod_of_the_hosts_network_is_reached_and_one_that_does_not_run_is_refused() {
    let device = Device::start();
    device.run_pod_with("job", "exit 0", "restartPolicy: Never").wait_phase("Succeeded");
    device.nodlet(["port-forward", "job", "80"]).refused_with("pod is not running. Current status=Succeeded");

    // A currently free port of the machine.
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("there is one")
        .local_addr()
        .expect("it has one")
        .port();
    device
        .run_pod_with("web", &format!("mirror 127.0.0.1:{free}"), "hostNetwork: true")
        .wait_log("app", "mirror");
    let forwarding = Forwarding::start(device.command(&["port-forward", "web", &format!(":{free}")]));
    assert_eq!(forwarding.ask(b"hello"), b"hello");
}
