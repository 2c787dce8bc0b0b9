//! Out of the board and into it: pods reach the world under the board's address, and the world reaches the `hostPort`s
//! of pods. The agent has a network namespace of its own, which a veth pair connects with another one, the world.

use std::io::Read;
use std::net::{TcpListener, UdpSocket};

use nodlet_tests::{Device, Namespace, TestPod, manifest};

mod agents;
mod senders;

/// The board's address on the link to the world.
const BOARD: &str = "192.0.2.2";
/// A machine on the board's link.
const NEIGHBOUR: &str = "192.0.2.1";
/// A machine beyond the board's link.
const FAR: &str = "198.51.100.1";
const PAGE: &str = "hello from the image\n";

/// A device on a board with one link, `eth0`, to the world, which has no route to pods.
fn board() -> (Device, Namespace, Namespace) {
    let (device, board, world) = unstarted();
    let mut device = device;
    start(&mut device);
    (device, board, world)
}

fn unstarted() -> (Device, Namespace, Namespace) {
    let mut device = Device::new();
    let (board, world) = (device.own_network(), Namespace::new());
    board.connect("eth0", &world, "lan0");
    board.ip(&format!("address add {BOARD}/24 dev eth0"));
    world.ip(&format!("address add {NEIGHBOUR}/24 dev lan0"));
    world.ip(&format!("address add {FAR}/32 dev lo"));
    board.ip(&format!("route add default via {NEIGHBOUR}"));
    (device, board, world)
}

fn start(device: &mut Device) {
    device.start_agent();
    device.load_image(nodlet_tests::demo_archive());
}

/// A board as [`board`] makes it, whose link and pods have IPv6 addresses, too: the board's is 2001:db8::2.
fn board_of_both_versions() -> (Device, Namespace, Namespace) {
    let (mut device, board, world) = unstarted();
    board.ip("address add 2001:db8::2/64 dev eth0 nodad");
    world.ip("address add 2001:db8::1/64 dev lan0 nodad");
    board.ip("route add default via 2001:db8::1");
    device.agent_arguments(["--pod-cidr", "10.85.3.0/24,fd00:10:85::/64"]);
    start(&mut device);
    (device, board, world)
}

/// Lets a kernel before Linux 6.17 forward IPv6, once the agent has said that the kernel does not.
fn forward_ipv6(device: &Device, board: &Namespace) {
    let forwards_by_link = std::path::Path::new("/proc/sys/net/ipv6/conf/lo/force_forwarding").exists();
    if !forwards_by_link {
        assert!(device.agent_log().contains("net.ipv6.conf.all.forwarding=1"), "{}", device.agent_log());
        board.call(|| std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").expect("a setting"));
    }
}

/// A web server at port 8080 of its pod.
fn web(name: &str, ports: &str) -> String {
    manifest::single(name, "serve 8080 /srv", &format!("ports: [{ports}]"), "")
}

/// The usual port of [`web`].
const PORT: &str = "{containerPort: 8080, hostPort: 80}";

/// Runs a pod of [`web`] until it serves.
#[track_caller]
fn run_web<'a>(device: &'a Device, name: &'a str, ports: &str) -> TestPod<'a> {
    device.write_pod(name, &web(name, ports)).wait_log("app", "serving")
}

/// A server in the world at `address`, which sends back what comes, once: the address of its client.
fn show_client(world: &Namespace, address: &'static str) -> std::thread::JoinHandle<String> {
    let listener = world.call(move || TcpListener::bind((address, 80)).expect("the address is there"));
    std::thread::spawn(move || {
        let (mut connection, client) = listener.accept().expect("somebody connects");
        let _ = connection.read(&mut [0; 1]);
        client.ip().to_string()
    })
}

fn setting(board: &Namespace, name: &str) -> String {
    let path = format!("/proc/sys/net/ipv4/{name}");
    board.call(move || std::fs::read_to_string(path).expect("the kernel has it").trim().to_owned())
}

#[test]
fn a_pod_reaches_the_world_under_the_address_of_the_board() {
    let (device, board, world) = board();
    assert_eq!(board.tables(), [""; 0], "there is no table until a pod needs it");
    device.run_pod_with("host", "sleep", "hostNetwork: true").wait_ready();
    assert_eq!(board.tables(), [""; 0]);
    assert_eq!(setting(&board, "conf/eth0/forwarding"), "0");

    let client = device.run_pod("client", "sleep").wait_ready();
    for address in [NEIGHBOUR, FAR] {
        let seen = show_client(&world, address);
        client.demo("app", &format!("connect {address}:80")).ok();
        assert_eq!(seen.join().expect("it serves"), BOARD);
    }

    // Nothing but replies gets in, and the board is no router between its other links.
    world.ip(&format!("route add {}/32 via {BOARD}", client.ip()));
    assert!(!reaches_pod(&world, &device));
    let other = Namespace::new();
    board.connect("eth1", &other, "lan1");
    board.ip("address add 203.0.113.1/24 dev eth1");
    other.ip("address add 203.0.113.2/24 dev lan1");
    other.ip("route add default via 203.0.113.1");
    device.wait_for("the new link to forward", || setting(&board, "conf/eth1/forwarding") == "1");
    world.ip(&format!("route add 203.0.113.0/24 via {BOARD}"));
    let listener = other.call(|| UdpSocket::bind("203.0.113.2:9").expect("the address is there"));
    world.call(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a port is free");
        socket.send_to(b"through", "203.0.113.2:9").expect("there is a route");
    });
    // What the pod sends afterwards arrives.
    let mut buffer = [0; 16];
    client.demo("app", "send 203.0.113.2:9 pod").ok();
    listener.set_read_timeout(Some(std::time::Duration::from_secs(30))).expect("a time");
    let (length, from) = listener.recv_from(&mut buffer).expect("the pod's datagram");
    assert_eq!((&buffer[..length], from.ip().to_string()), (&b"pod"[..], "203.0.113.1".to_owned()));

    assert_eq!(setting(&board, "ip_forward"), "0", "the global switch is the owner's");
    device.nodlet(["down"]).ok();
    assert_eq!(board.tables(), [""; 0]);
    for link in ["eth0", "eth1"] {
        assert_eq!(setting(&board, &format!("conf/{link}/forwarding")), "0", "{link}");
    }
}

/// Whether a datagram from the world reaches the pod `client` without a `hostPort`.
fn reaches_pod(world: &Namespace, device: &Device) -> bool {
    let client = device.pod("client");
    let address = client.ip();
    let udp = device.run_pod("udp", "datagrams 9").wait_log("app", "bound");
    world.ip(&format!("route add {}/32 via {BOARD}", udp.ip()));
    let target = udp.ip();
    world.call(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a port is free");
        socket.send_to(b"world", (target, 9)).expect("there is a route");
    });
    client.exec("app", ["/bin/demo", "send", &format!("{}:9", udp.ip()), "pod"]).ok();
    udp.wait_log("app", &format!("{address} says pod"));
    udp.logs("app").contains("world")
}

#[test]
fn a_host_port_is_reached_from_outside_from_the_board_and_from_pods() {
    let (device, board, world) = board();
    let web = run_web(&device, "web", PORT);
    let client = device.run_pod("client", "sleep").wait_ready();
    let url = format!("http://{BOARD}/");
    assert_eq!(world.demo(&format!("get {url}")).as_deref(), Ok(PAGE));
    for here in [&url, "http://127.0.0.1/"] {
        assert_eq!(board.demo(&format!("get {here}")).as_deref(), Ok(PAGE), "{here}");
    }
    assert_eq!(client.exec("app", ["/bin/demo", "get", &url]).ok(), PAGE);
    assert_eq!(web.exec("app", ["/bin/demo", "get", &url]).ok(), PAGE, "a pod reaches itself");
    // A connection of a pod to the same port of another machine goes there.
    let seen = show_client(&world, FAR);
    client.demo("app", &format!("connect {FAR}:80")).ok();
    assert_eq!(seen.join().expect("it serves"), BOARD);
    assert!(world.demo(&format!("get http://{BOARD}:8080/")).is_err(), "only the hostPort is open");

    // The pod's rules go with it.
    device.remove_manifest("web.yaml");
    web.wait_gone();
    assert!(world.demo(&format!("get {url}")).is_err());
    assert!(board.demo("get http://127.0.0.1/").is_err());
}

#[test]
fn a_host_port_has_an_address_and_a_protocol_and_shows_the_client() {
    let (device, board, world) = board();
    board.ip("address add 192.0.2.3/24 dev eth0");
    device.write_manifest("web.yaml", &web("web", "{containerPort: 8080, hostPort: 80, hostIP: 192.0.2.3}"));
    device.write_single(
        "udp",
        "datagrams 5353",
        "ports: [{containerPort: 5353, hostPort: 53, protocol: UDP}]",
        "",
    );
    device.pod("web").wait_log("app", "serving");
    device.pod("udp").wait_log("app", "bound");
    assert_eq!(world.demo("get http://192.0.2.3/").as_deref(), Ok(PAGE));
    assert!(world.demo(&format!("get http://{BOARD}/")).is_err());
    assert_eq!(setting(&board, "conf/all/route_localnet"), "0");
    world.demo(&format!("send {BOARD}:53 hello")).expect("it sends");
    device.pod("udp").wait_log("app", &format!("{NEIGHBOUR} says hello"));
    board.demo("send 127.0.0.1:53 here").expect("it sends");
    device.wait_for("the datagram of the board", || device.pod("udp").logs("app").contains("says here"));
}

#[test]
fn a_second_pod_with_the_same_host_port_is_rejected() {
    let (device, _board, world) = board();
    device.write_pod("a", &web("a", PORT)).wait_ready();
    device
        .write_pod("b", &web("b", "{containerPort: 8080, hostPort: 80, hostIP: 192.0.2.2}"))
        .wait_phase("Failed");
    let status = device.pod("b").status();
    assert_eq!(status["reason"], "NodePorts");
    assert_eq!(
        status["message"],
        "Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports: 80/TCP is taken by \
         pod default/a"
    );
    device.pod("a").wait_log("app", "serving");
    assert_eq!(world.demo(&format!("get http://{BOARD}/")).as_deref(), Ok(PAGE));
    // Another protocol or port is another place.
    device
        .write_pod(
            "c",
            &web(
                "c",
                "{containerPort: 8080, hostPort: 80, protocol: UDP}, {containerPort: 8080, hostPort: 81}",
            ),
        )
        .wait_log("app", "serving");
    assert_eq!(world.demo(&format!("get http://{BOARD}:81/")).as_deref(), Ok(PAGE));
}

#[test]
fn a_change_of_a_thousand_ports_is_no_change_by_somebody_else() {
    let (device, _board, world) = board();
    let ports: Vec<String> =
        (0..1000).map(|number| format!("{{containerPort: 8080, hostPort: {}}}", 10_000 + number)).collect();
    run_web(&device, "many", &ports.join(", "));
    assert_eq!(world.demo(&format!("get http://{BOARD}:10999/")).as_deref(), Ok(PAGE));
    device.remove_pod("many");
    let events = device.get("/api/v1/events").expect("the events").to_string();
    assert!(!events.contains("FirewallTableRestored"), "{events}");
}

#[test]
fn the_table_outlives_the_agent_and_comes_back_when_somebody_deletes_it() {
    let (mut device, board, world) = board();
    run_web(&device, "web", PORT);
    let get = format!("get http://{BOARD}/");
    let works = || {
        world.demo(&get).as_deref() == Ok(PAGE) && board.demo("get http://127.0.0.1/").as_deref() == Ok(PAGE)
    };
    assert!(works());
    let tables = board.tables();
    assert!(tables.len() == 1 && tables[0].starts_with("nodlet-"), "{tables:?}");

    device.kill_agent();
    assert!(works(), "the rules do not need the agent");
    board.flush_tables();
    assert!(!works());
    device.start_agent();
    assert!(works(), "the next agent makes them again before it answers");

    board.flush_tables();
    device.wait_for("the table to come back", || board.tables() == tables);
    assert!(works());
    let log = device.agent_log();
    assert!(log.contains("another program changed the nftables table of nodlet; it is restored"), "{log}");
    let events = device.get("/api/v1/events").expect("the API lists events").to_string();
    assert!(events.contains("FirewallTableRestored"), "{events}");

    // Another agent leaves the table as it is, and the last pod's rules go with it.
    device.stop_agent();
    device.start_agent();
    assert!(works());
    device.remove_pod("web");
    assert!(world.demo(&get).is_err());
}

/// A fault: the kernel refuses every change of nodlet's table, which another program owns.
#[test]
fn a_pod_keeps_its_address_until_its_host_ports_can_be_closed() {
    let (device, board, world) = board();
    run_web(&device, "web", PORT);
    let ip = device.pod("web").status()["podIP"].clone();
    let table = board.seize_table(&board.tables()[0]);
    let events = || device.get("/api/v1/events").unwrap_or_default().to_string();
    device.wait_for("the table to be missed", || events().contains("FirewallTableLost"));
    device.remove_manifest("web.yaml");
    let message = "error killing pod: failed to close its hostPorts: ";
    device.pod("web").wait_event_of("FailedKillPod", message);
    device.run_pod("other", "print up then sleep").wait_log("app", "up");
    assert_ne!(device.pod("other").status()["podIP"], ip);
    assert!(device.pod("web").object().is_some(), "it is there until its ports are closed");

    drop(table);
    device.pod("web").wait_gone();
    let get = format!("get http://{BOARD}/");
    assert!(world.demo(&get).is_err());
    run_web(&device, "next", PORT);
    assert_eq!(world.demo(&get).as_deref(), Ok(PAGE));
}

#[test]
fn a_pod_cannot_reach_the_loopback_address_of_the_board() {
    let (device, board, _world) = board();
    device.write_manifest("web.yaml", &web("web", PORT));
    let bad = device.run_pod("bad", "sleep");
    device.pod("web").wait_log("app", "serving");
    bad.wait_ready();
    // The bridge routes 127.0.0.1 now, for connections of the board itself.
    let local = board.call(|| UdpSocket::bind("127.0.0.1:9").expect("a port is free"));
    let open = board.call(|| UdpSocket::bind("0.0.0.0:10").expect("a port is free"));
    let from: std::net::Ipv4Addr = bad.ip().parse().expect("an address");
    let [a, b, c, d] = from.octets();
    for (to, port) in [([127, 0, 0, 1], 9_u8), ([a, b, c, 1], 10)] {
        // Ethernet from the pod to its gateway, IPv4, UDP without a checksum.
        let mut frame = vec![0x0a, 0x58, a, b, c, 1, 0x0a, 0x58, a, b, c, d, 8, 0];
        let mut ip = vec![0x45, 0, 0, 31, 0, 0, 0, 0, 64, 17, 0, 0, a, b, c, d];
        ip.extend(to);
        let sum: u32 = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend(ip);
        frame.extend([0, 7, 0, port, 0, 11, 0, 0, b'b', b'a', b'd']);
        let digits: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        bad.exec("app", ["/bin/demo", "frame", &digits]).ok();
    }
    open.set_read_timeout(Some(std::time::Duration::from_secs(30))).expect("a time");
    assert_eq!(open.recv_from(&mut [0; 8]).expect("the second frame").0, 3);
    local.set_nonblocking(true).expect("a socket");
    assert!(local.recv_from(&mut [0; 8]).is_err(), "a pod reached 127.0.0.1 of the board");
}

#[test]
fn without_masquerading_nothing_is_changed_the_world_sees_addresses_of_pods_and_a_host_port_works() {
    let (mut device, board, world) = unstarted();
    device.agent_arguments(["--masquerade=false"]);
    start(&mut device);
    let client = device.run_pod("client", "sleep").wait_ready();
    assert_eq!(board.tables(), [""; 0]);
    assert_eq!(setting(&board, "conf/eth0/forwarding"), "0");
    run_web(&device, "web", PORT);
    let url = format!("http://{BOARD}/");
    assert_eq!(world.demo(&format!("get {url}")).as_deref(), Ok(PAGE));
    assert_eq!(board.demo(&format!("get {url}")).as_deref(), Ok(PAGE));
    // The owner routes pods: the board forwards, and the world knows the way back.
    board.call(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("it is the board's own"));
    let own = client.ip();
    world.ip(&format!("route add {own}/32 via {BOARD}"));
    for address in [NEIGHBOUR, FAR] {
        let seen = show_client(&world, address);
        client.demo("app", &format!("connect {address}:80")).ok();
        assert_eq!(seen.join().expect("it serves"), own);
    }
    assert_eq!(world.demo(&format!("get {url}")).as_deref(), Ok(PAGE));
}

#[test]
fn a_host_port_of_sctp_is_rejected_by_name_where_the_kernel_does_not_track_sctp() {
    let (mut device, board, _world) = unstarted();
    device.lack_sctp(true);
    start(&mut device);
    let port = "{containerPort: 8080, hostPort: 80, protocol: SCTP}";
    device.write_manifest("web.yaml", &web("web", port));
    let reported = "forward a hostPort of SCTP: this kernel does not track SCTP connections; use one with \
                CONFIG_NF_CT_PROTO_SCTP, or hostNetwork";
    device.pod("web").wait_event(reported);
    assert_eq!(device.pod("web").phase(), "Pending");
    assert!(
        device.pod("web").container("app").message().contains(reported),
        "{}",
        device.pod("web").status()
    );
    // Other protocols are not concerned.
    run_web(&device, "tcp", PORT);
    device.remove_pod("tcp");

    // This kernel itself either has it, and the same pod runs, or still has not.
    let tracks = board.call(|| {
        std::path::Path::new("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_established").exists()
    });
    device.kill_agent();
    device.lack_sctp(false);
    device.start_agent();
    if tracks {
        device.pod("web").wait_log("app", "serving");
        assert_ne!(board.tables(), [""; 0]);
    } else {
        device.pod("web").wait_event(reported);
        assert_eq!(device.pod("web").phase(), "Pending");
    }
}

#[test]
fn without_nf_tables_pods_run_and_a_host_port_waits_for_a_kernel_that_has_it() {
    let (mut device, board, world) = unstarted();
    device.lack_nftables(true);
    start(&mut device);
    device.run_pod("client", "sleep");
    device.run_pod("other", "sleep");
    device.wait_all_ready(["client", "other"]);
    let lacks = "this kernel has no nf_tables with NAT; load the modules nf_tables, nft_chain_nat, nft_nat, nft_masq, nft_ct and \
                 nft_fib_inet, or use a kernel with CONFIG_NF_TABLES, ";
    let reported = format!(
        "AddressTranslationFailed: pods reach no other machine: failed to translate addresses for pods: {lacks}"
    );
    assert_eq!(device.agent_log().matches(&reported).count(), 1, "once: {}", device.agent_log());
    assert_eq!(setting(&board, "conf/eth0/forwarding"), "0");

    device.write_manifest("web.yaml", &web("web", PORT));
    device.pod("web").wait_event(lacks);
    assert!(device.pod("web").container("app").message().contains(lacks), "{}", device.pod("web").status());
    assert_eq!(device.pod("web").phase(), "Pending");

    // With another kernel it starts.
    device.stop_agent();
    device.lack_nftables(false);
    device.start_agent();
    device.pod("web").wait_log("app", "serving");
    assert_eq!(world.demo(&format!("get http://{BOARD}/")).as_deref(), Ok(PAGE));
}

#[test]
fn with_an_ipv6_range_pods_have_two_addresses_and_reach_the_world_and_are_reached_by_both() {
    let (mut device, board, world) = board_of_both_versions();
    let show = "env then serve 8080 /srv";
    let fields = "ports: [{containerPort: 8080, hostPort: 80}]\nenv:\n\
                  - {name: ADDRESSES, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}\n\
                  - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}";
    device.write_single("web", show, fields, "");
    device.run_pod("client", "sleep").wait_ready();
    device.pod("web").wait_log("app", "serving");
    let status = device.pod("web").status();
    let (ip, host) = (device.pod("web").ip(), status["hostIP"].clone());
    let second = format!("fd00:10:85::{}", ip.rsplit('.').next().expect("an address has dots"));
    assert_eq!(status["podIPs"], serde_json::json!([{"ip": ip}, {"ip": second}]));
    assert_eq!(status["hostIPs"], serde_json::json!([{"ip": host}, {"ip": "2001:db8::2"}]));
    let log = device.pod("web").logs("app");
    assert!(
        log.contains(&format!("ADDRESSES={ip},{second}\n"))
            && log.contains(&format!("HOST={BOARD},2001:db8::2\n")),
        "{log}"
    );
    let hosts = device.pod("web").demo("app", "cat /etc/hosts").ok();
    assert!(hosts.contains(&format!("\n{second}\tweb\n")), "{hosts}");

    // Pods reach each other, and the world under the board's address.
    let client = device.pod("client");
    assert_eq!(client.demo("app", &format!("get http://[{second}]:8080/")).ok(), PAGE);
    forward_ipv6(&device, &board);
    let seen = show_client(&world, "2001:db8::1");
    client.demo("app", "connect [2001:db8::1]:80").ok();
    assert_eq!(seen.join().expect("it serves"), "2001:db8::2");
    let url = "http://[2001:db8::2]:80/";
    assert_eq!(world.demo(&format!("get {url}")).as_deref(), Ok(PAGE));
    assert_eq!(world.demo(&format!("get http://{BOARD}/")).as_deref(), Ok(PAGE));
    assert_eq!(board.demo(&format!("get {url}")).as_deref(), Ok(PAGE));
    assert_eq!(client.demo("app", &format!("get {url}")).ok(), PAGE);
    assert!(board.demo("get http://[::1]:80/").is_err());

    // A pod sends under its own addresses only.
    let receiver = board.call(|| UdpSocket::bind("[::]:9").expect("a port is free"));
    receiver.set_read_timeout(Some(std::time::Duration::from_secs(30))).expect("a time");
    let own: std::net::Ipv4Addr = client.ip().parse().expect("an address");
    let of_pod =
        |host: u8| format!("fd00:10:85::{host}").parse::<std::net::Ipv6Addr>().expect("an address").octets();
    let gateway = of_pod(1);
    let foreign: std::net::Ipv6Addr = second.parse().expect("an address");
    for source in [foreign.octets(), of_pod(own.octets()[3])] {
        let mut datagram = [0, 7, 0, 9, 0, 11, 0, 0, b'b', b'a', b'd', 0];
        let pseudo = [&source[..], &gateway, &[0, 0, 0, 11, 0, 0, 0, 17], &datagram].concat();
        let mut sum: u32 = pseudo.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        datagram[6..8].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        let [a, b, c, d] = own.octets();
        let ethernet = [0x0a, 0x58, a, b, c, 1, 0x0a, 0x58, a, b, c, d, 0x86, 0xdd];
        let ip = [0x60, 0, 0, 0, 0, 11, 17, 64];
        let frame = [&ethernet[..], &ip, &source, &gateway, &datagram[..11]].concat();
        let digits: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        client.exec("app", ["/bin/demo", "frame", &digits]).ok();
    }
    let (_, from) = receiver.recv_from(&mut [0; 8]).expect("a datagram");
    assert_eq!(from.ip().to_string(), format!("fd00:10:85::{}", own.octets()[3]));

    device.restart_agent();
    assert_eq!(device.pod("web").status()["podIPs"], serde_json::json!([{"ip": ip}, {"ip": second}]));
    assert_eq!(world.demo(&format!("get {url}")).as_deref(), Ok(PAGE));
}

#[test]
fn the_task_of_a_host_port_is_reachable_from_outside_and_on_the_board() {
    let (device, board, world) = board();
    let manifest = include_str!("../../examples/tasks/host-port.yaml");
    let applied = device.apply(manifest);
    assert_eq!(applied.lines().filter(|line| line.ends_with(" created")).count(), 2, "{applied}");
    device.pod("host-port").wait_ready();
    let url = format!("http://{BOARD}:8089/");
    assert_eq!(world.demo(&format!("get {url}")).as_deref(), Ok(PAGE));
    for address in [BOARD, "127.0.0.1"] {
        assert_eq!(board.demo(&format!("get http://{address}:8089/")).as_deref(), Ok(PAGE), "{address}");
    }
    let second = device.pod("host-port-2").wait_phase("Failed");
    assert_eq!(second.status()["reason"], "NodePorts");
    device.nodlet(["delete", "pod", "host-port"]).ok();
    device.pod("host-port").wait_gone();
    assert!(world.demo(&format!("get {url}")).is_err());
}
