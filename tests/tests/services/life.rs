//! What Services keep when the agent dies, the board reboots, and an update replaces the agent.

use std::net::UdpSocket;

use super::*;

/// A query for the address of `web.default.svc.cluster.local`.
const QUERY: &[u8] =
    b"\0\x09\x01\0\0\x01\0\0\0\0\0\0\x03web\x07default\x03svc\x07cluster\x05local\0\0\x01\0\x01";

#[test]
fn an_agent_that_is_killed_interrupts_no_connection_no_name_and_no_endpoint() {
    let (mut device, board, _world) = board();
    run_server(&device, "web", "web");
    device.apply(&service("web", ""));
    let address = cluster_ip(&device, "web");
    device.run_pod("client", "sleep").wait_ready();
    wait_answers(&device, &device.pod("client"), "http://web", &["web"]);
    let resolv_conf = device.pod("client").demo("app", "cat /etc/resolv.conf").ok();
    let name_server = resolv_conf.lines().find_map(|line| line.strip_prefix("nameserver "));
    let name_server = name_server.expect("a name server").to_owned() + ":53";
    let end = format!("{address}:80");
    // A connection that exists, one after another that begins, and queries.
    let half = &HOST_NAME[..10];
    let existing = board.call({
        let end = end.clone();
        move || {
            let mut client = connect(&end).expect("the Service is there");
            client.write_all(half.as_bytes()).expect("it is connected");
            client
        }
    });
    let requests = Requests::begin(&board, &end);
    requests.wait(&device, "web");
    device.kill_agent();
    let query = board.call(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a port is free");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
        socket.send_to(QUERY, name_server).expect("the socket of the name server is there");
        socket
    });
    assert_eq!(
        board.demo(&format!("get http://{address}/healthz")),
        Ok("ok\n".to_owned()),
        "the table is the kernel's"
    );
    device.start_agent();
    let mut answer = [0; 512];
    let length = query.recv(&mut answer).expect("a query is answered that no agent has received yet");
    let expected = address.parse::<std::net::Ipv4Addr>().expect("an address").octets();
    assert!(answer[..length].ends_with(&expected), "{:?}", &answer[..length]);
    assert_eq!(cluster_ip(&device, "web"), address);
    let client = device.pod("client");
    assert_eq!(answers(&client, "http://web", 10), ["web"]);
    assert_eq!(host_name(existing, half).expect("it goes on"), "web");
    assert_eq!(requests.end(), ["web"]);
    // What has changed while no agent ran.
    device.kill_agent();
    device.remove_manifest("web.yaml");
    device.start_agent();
    device.pod("web").wait_gone();
    let client = device.pod("client");
    device.wait_for("the endpoint to go", || {
        client.exec("app", ["/bin/demo", "get", "http://web/"]).stderr.contains("refused")
    });
}

#[test]
fn a_reboot_keeps_the_addresses_and_the_ports_of_services() {
    let (mut device, _board, _world) = board();
    run_server(&device, "web", "web");
    let baked = service("baked", "type: NodePort");
    device.write_manifest("baked.yaml", &baked);
    device.apply(&service("web", "type: NodePort"));
    device.apply(&service("gone", ""));
    device.wait_for("the Service of the file", || {
        device.get("/api/v1/namespaces/default/services/baked").is_ok()
    });
    let facts = |device: &Device, name: &str| {
        let object = shown(device, name);
        (object["spec"]["clusterIP"].clone(), object["spec"]["ports"][0]["nodePort"].clone())
    };
    let before = [facts(&device, "baked"), facts(&device, "web")];
    let gone = cluster_ip(&device, "gone");
    device.nodlet(["delete", "service", "gone"]).ok();
    device.power_cycle();
    device.wait_for("the Service of the file", || {
        device.get("/api/v1/namespaces/default/services/baked").is_ok()
    });
    assert_eq!([facts(&device, "baked"), facts(&device, "web")], before);
    device.apply(&service("late", ""));
    assert_ne!(
        cluster_ip(&device, "late"),
        gone,
        "the address of a deleted Service is the last to be used again"
    );
    device.pod("web").wait_ready();
    let client = device.run_pod("client", "sleep").wait_ready();
    wait_answers(&device, &client, "http://web", &["web"]);
}

#[test]
fn a_flushed_ruleset_is_restored_with_its_services() {
    let (device, board, _world) = board();
    run_server(&device, "web", "web");
    device.apply(&service("web", ""));
    let client = device.run_pod("client", "sleep").wait_ready();
    wait_answers(&device, &client, "http://web", &["web"]);
    board.flush_tables();
    wait_answers(&device, &client, "http://web", &["web"]);
}

#[test]
fn a_pod_of_a_version_without_names_keeps_the_name_servers_of_the_machine() {
    let mut device = Device::new();
    device.own_network();
    let file = device.write_file("/machine.conf", "nameserver 192.0.2.53\n");
    device.agent_arguments(["--resolv-conf", file.to_str().expect("the path is text")]);
    device.start_agent_with_demo();
    device.run_pod("old", "sleep").wait_ready();
    let uid = device.pod("old").uid();
    device.kill_agent();
    // What such a version leaves.
    let record = device.path(&format!("/run/nodlet/pods/{uid}/pod.json"));
    let mut pod: Value =
        serde_json::from_slice(&std::fs::read(&record).expect("it is there")).expect("it is JSON");
    pod.as_object_mut().expect("an object").remove("name_server").expect("it has the field");
    std::fs::write(&record, pod.to_string()).expect("it can be written");
    let resolv_conf = device.path(&format!("/var/lib/nodlet/pods/{uid}/resolv.conf"));
    std::fs::write(&resolv_conf, "nameserver 192.0.2.53\n").expect("it can be written");
    device.start_agent();
    device.write_file("/machine.conf", "nameserver 192.0.2.54\n");
    let shown = |device: &Device| device.pod("old").demo("app", "cat /etc/resolv.conf").ok();
    device.wait_for("the file to follow the machine's", || shown(&device) == "nameserver 192.0.2.54\n");
    // Its next sandbox has the name server of the board.
    device.remove_pod("old");
    device.run_pod("old", "sleep").wait_ready();
    assert!(shown(&device).ends_with("options ndots:5\n"), "{}", shown(&device));
}
