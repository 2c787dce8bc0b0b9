//! What Services keep when the agent dies, the board reboots, and an update replaces the agent.

use super::*;

#[test]
fn an_agent_that_is_killed_interrupts_no_connection_no_name_and_no_endpoint() {
    let (mut device, board, _world) = board();
    run_server(&device, "web", "web");
    device.apply(&service("web", ""));
    let address = cluster_ip(&device, "web");
    device.run_pod("client", "sleep").wait_ready();
    wait_answers(&device, &device.pod("client"), "http://web", &["web"]);
    device.kill_agent();
    assert_eq!(
        board.demo(&format!("get http://{address}/healthz")),
        Ok("ok\n".to_owned()),
        "the table is the kernel's"
    );
    device.start_agent();
    assert_eq!(cluster_ip(&device, "web"), address);
    let client = device.pod("client");
    assert_eq!(answers(&client, "http://web", 10), ["web"]);
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
