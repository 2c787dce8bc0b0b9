//! The name server of the pods, as the resolvers of C libraries and of Go use it, and its port.

use std::net::{TcpListener, UdpSocket};

use nodlet_tests::image::Image;
use nodlet_tests::{agnhost_program, demo_program, with_dynamic_program};

use super::*;

/// The time of a name besides that of a process in the container. A resolver that asks again takes 2.5 s at least.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The demo program, whose C library is musl; getent, whose is glibc; and agnhost, which is written in Go.
fn resolvers() -> Image {
    let demo = std::fs::read(demo_program()).expect("it is built");
    let image = Image::demo("localhost/resolvers:1", &demo)
        .file("bin/agnhost", 0o755, &agnhost_program())
        .file("etc/nsswitch.conf", 0o644, b"hosts: files dns\n");
    with_dynamic_program(image, "usr/bin/getent")
}

#[test]
fn musl_glibc_and_go_find_names_and_fail_at_once_while_the_board_is_offline() {
    let (device, _board, _world) = board();
    device.load(&resolvers());
    let first = run_server(&device, "web-1", "web");
    let second = run_server(&device, "web-2", "web");
    let client = manifest::with_image(&manifest::single("client", "sleep", "", ""), "localhost/resolvers:1");
    let client = device.write_pod("client", &client).wait_ready();
    device.apply(&service("web", ""));
    device.apply(
        &service("pods", "clusterIP: None")
            .replace("app: pods", "app: web")
            .replace("port: 80,", "port: 8080,"),
    );
    device.apply("apiVersion: v1\nkind: Service\nmetadata: {name: alias}\nspec: {type: ExternalName, externalName: web.default.svc.cluster.local}\n");
    wait_answers(&device, &client, "http://web", &["web-1", "web-2"]);
    let address = cluster_ip(&device, "web");
    let mut pods = vec![first.ip(), second.ip()];
    pods.sort();
    let timed = |words: &str| {
        let began = Instant::now();
        (device.line(&format!("exec client -c app -- {words}")), began.elapsed())
    };
    let (_, process) = timed("/bin/agnhost --help");
    let musl = |name: &str| timed(&format!("/bin/demo resolve {name}"));
    // Both families are asked for, and there is no AAAA record.
    let glibc = |name: &str| timed(&format!("/usr/bin/getent ahosts {name}"));
    let addresses = |text: &str| {
        let mut addresses: Vec<String> =
            text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
        addresses.sort();
        addresses.dedup();
        addresses
    };
    for (name, expected) in [("web", vec![address.clone()]), ("pods", pods), ("alias", vec![address])] {
        for (ran, took) in [musl(name), glibc(name)] {
            assert_eq!(addresses(&ran.stdout), expected, "{name}: {ran:?}");
            assert!(took < process + AT_ONCE, "{name}: {took:?}, and a process alone {process:?}");
        }
        let port = if name == "pods" { 8080 } else { 80 };
        let (ran, took) = timed(&format!("/bin/agnhost connect {name}:{port} --timeout=5s"));
        assert_eq!((ran.code, &*ran.stderr), (0, ""), "{name}");
        assert!(took < process + AT_ONCE, "{name}: {took:?}, and a process alone {process:?}");
    }
    // A name of the board that does not exist, and one of another domain while the board is offline.
    for (name, is_ours) in [("missing.default.svc.cluster.local", true), ("www.example.com", false)] {
        let ran = [musl(name), glibc(name), timed(&format!("/bin/agnhost connect {name}:80"))];
        println!("{name}: {:?}, and a process alone {process:?}", ran.each_ref().map(|(_, took)| *took));
        for (ran, took) in &ran {
            assert_ne!(ran.code, 0, "{name}: {ran:?}");
            assert!(*took < process + AT_ONCE, "{name}: {took:?}, {ran:?}");
        }
        let [(musl, _), _, (go, _)] = &ran;
        let expected =
            if is_ours { ["Name does not resolve", "no such host"] } else { ["Try again", "misbehaving"] };
        assert!(musl.stderr.contains(expected[0]) && go.stderr.contains(expected[1]), "{name}: {ran:?}");
    }
}

#[test]
fn a_host_port_53_of_a_pod_takes_no_queries_of_pods() {
    let (device, _board, world) = board();
    run_server(&device, "web", "web");
    device.apply(&service("web", ""));
    let client = device.run_pod("client", "sleep").wait_ready();
    let ports =
        "ports: [{containerPort: 8080, hostPort: 53}, {containerPort: 53, hostPort: 53, protocol: UDP}]";
    let dns = manifest::single("dns", "serve 8080 /srv", ports, "");
    device.write_pod("dns", &dns).wait_ready();
    device.wait_for("the port to be open", || {
        world.demo(&format!("get http://{BOARD}:53/healthz")) == Ok("ok\n".into())
    });
    assert_eq!(client.demo("app", "resolve web").ok(), format!("{}\n", cluster_ip(&device, "web")));
}

#[test]
fn port_53_is_free_before_the_first_and_after_the_last_pod_that_uses_the_name_server() {
    let (mut device, board, _world) = board();
    let is_free = |board: &Namespace| {
        board.call(|| UdpSocket::bind("0.0.0.0:53").is_ok() && TcpListener::bind("0.0.0.0:53").is_ok())
    };
    device.run_pod_with("default", "sleep", "dnsPolicy: Default").wait_ready();
    assert!(is_free(&board));
    device.run_pod("client", "sleep").wait_ready();
    assert!(!is_free(&board));
    // Supervisors keep the sockets.
    device.kill_agent();
    assert!(!is_free(&board));
    device.start_agent();
    device.pod("client").wait_ready();
    device.remove_pod("client");
    device.wait_for("the port to be free", || is_free(&board));
    device.restart_agent();
    device.pod("default").wait_ready();
    assert!(is_free(&board));
}

#[test]
fn pods_of_an_earlier_range_resolve_names_and_those_in_the_boards_network_use_the_present_address() {
    let mut device = Device::new();
    let _board = device.own_network();
    device.agent_arguments(["--pod-cidr", "10.85.3.0/24"]);
    device.start_agent_with_demo();
    run_server(&device, "web", "web");
    device.apply(&service("web", ""));
    device.run_pod("own", "sleep").wait_ready();
    let host = "hostNetwork: true\ndnsPolicy: ClusterFirstWithHostNet";
    device.run_pod_with("host", "sleep", host).wait_ready();
    let resolv_conf = |device: &Device, name: &str| {
        let text = device.pod(name).demo("app", "cat /etc/resolv.conf").ok();
        text.lines().find_map(|line| line.strip_prefix("nameserver ")).unwrap_or_default().to_owned()
    };
    assert_eq!(resolv_conf(&device, "host"), "10.85.3.1");
    let address = cluster_ip(&device, "web");
    for name in ["own", "host"] {
        assert_eq!(device.pod(name).demo("app", "resolve web").ok(), format!("{address}\n"), "{name}");
    }
    device.restart_agent_with(["--pod-cidr", "10.85.4.0/24"]);
    device.wait_for("the present address", || resolv_conf(&device, "host") == "10.85.4.1");
    device.run_pod("new", "sleep").wait_ready();
    for (name, server) in [("own", "10.85.3.1"), ("host", "10.85.4.1"), ("new", "10.85.4.1")] {
        assert_eq!(resolv_conf(&device, name), server, "{name}");
        assert_eq!(device.pod(name).demo("app", "resolve web").ok(), format!("{address}\n"), "{name}");
    }
    // Without pods of the earlier range, the bridge has its address no more.
    for name in ["own", "web"] {
        device.remove_pod(name);
    }
    device.restart_agent();
    for name in ["host", "new"] {
        assert_eq!(device.pod(name).demo("app", "resolve web").ok(), format!("{address}\n"), "{name}");
    }
}
