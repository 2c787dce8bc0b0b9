//! The network of pods of a real Kubernetes cluster whose nodes are boards: ranges, routes, names and Services.

use nodlet_tests::{
    Background, ClusterNode, ControlPlane, Namespace, Sender, TestPod, coredns_archive, demo_program,
    is_in_range, kube_proxy_archive, manifest,
};

/// A pod that serves its page on a node.
fn server(name: &str, node: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: web}}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 1
  containers: [{{name: app, image: 'localhost/demo:1', imagePullPolicy: Never, args: [serve, '80', /srv]}}]
"
    )
}

/// The range of a node's pods, once the cluster has assigned it.
fn range(plane: &ControlPlane, node: &str) -> String {
    plane.wait_for(&format!("get node {node} -o jsonpath={{.spec.podCIDR}}"), |range| !range.is_empty())
}

/// Waits until a pod gets a page of another one, and returns it.
#[track_caller]
fn fetch(node: &ClusterNode, from: &TestPod<'_>, url: &str) -> String {
    let got = || from.demo("app", &format!("get {url}"));
    node.device.wait_for(url, || got().code == 0);
    got().ok()
}

#[test]
fn pods_of_two_boards_reach_each_other_under_their_own_addresses() {
    let plane = ControlPlane::start();
    plane.let_nodes_read_nodes();
    let mut one = ClusterNode::join(&plane, "board-1");
    let two = ClusterNode::join(&plane, "board-2");
    plane.apply(&server("a", "board-1"));
    plane.apply(&server("b", "board-2"));
    let (a, b) = (one.device.pod("a"), two.device.pod("b"));
    a.wait_ready();
    b.wait_ready();
    let events =
        plane.wait_for("get events -o jsonpath={.items[*].reason}", |all| all.contains("MissingClusterDNS"));
    assert!(!events.contains("DNSConfigForming"), "{events}");
    let (of_one, of_two) = (range(&plane, "board-1"), range(&plane, "board-2"));
    assert!(
        is_in_range(&a.ip(), &of_one) && is_in_range(&b.ip(), &of_two),
        "{} {of_one} {} {of_two}",
        a.ip(),
        b.ip()
    );
    assert_eq!(fetch(&one, &a, &format!("http://{}/peer", b.ip())).trim(), a.ip());
    assert_eq!(fetch(&two, &b, &format!("http://{}/peer", a.ip())).trim(), b.ip());
    // The nodes themselves reach the pods of each other, but others on their link do not.
    let reaches = |from: &Namespace, ip: &str| from.demo(&format!("connect {ip}:80"));
    reaches(&two.network, &a.ip()).expect("a node reaches all pods");
    let stranger = Namespace::new();
    plane.connect(&stranger);
    stranger.ip(&format!("route add {of_one} via {}", one.address));
    stranger.ip("route flush cache");
    let a_ip = a.ip();
    let reached = stranger.call(move || {
        let address = format!("{a_ip}:80").parse().expect("an address");
        std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_secs(2)).is_ok()
    });
    assert!(!reached, "only nodes and their pods may reach pods");

    // The routes come back with their link.
    let route = || one.network.ip(&format!("route show {of_two}"));
    assert!(route().contains(&two.address), "{}", route());
    one.network.ip("link set uplink down");
    assert_eq!(route(), "");
    one.network.ip("link set uplink up");
    one.network.ip("route add default via 10.212.0.1");
    one.device.wait_for("the route", || route().contains(&two.address));

    // After a reboot without a connection, new pods have addresses of the same range, and reach those of other nodes.
    let cut = plane.partition_from(&one.address);
    let uid = a.uid();
    one.device.cut_power();
    one.network.ip(&format!("route del {of_two}"));
    one.device.start_agent();
    let a = one.device.pod("a").wait_ready();
    assert_eq!(a.uid(), uid);
    assert!(is_in_range(&a.ip(), &of_one), "{}", a.ip());
    assert_eq!(fetch(&one, &a, &format!("http://{}/peer", b.ip())).trim(), a.ip());
    drop(cut);

    // A node that is gone has no route.
    two.verb(&["leave"]).ok();
    plane.line("delete node board-2").ok();
    one.device.wait_for("the route to be removed", || route().is_empty());
    one.verb(&["leave"]).ok();
    let own = one.device.write_pod("own", &manifest::pod("own", "wait /end")).wait_ready();
    assert!(!is_in_range(&own.ip(), &of_one), "the range of the configuration is used again: {}", own.ip());
}

/// A pod reaches its own gateway, the API server by its address and as a Service, and the pod of another node; and its
/// own node reaches it.
#[track_caller]
fn reaches_all(plane: &ControlPlane, node: &ClusterNode, pod: &TestPod<'_>, far: &str) {
    let ip = pod.ip();
    let gateway = format!("{}.1", ip.rsplit_once('.').expect("an address has dots").0);
    // A closed port of the gateway answers at once, an unknown neighbour never.
    let ran = pod.demo("app", &format!("connect {gateway}:9"));
    assert!(ran.stderr.contains("refused") || ran.stdout.contains("refused"), "{}: {ran:?}", gateway);
    for to in [plane.server(), "10.96.0.1:443".to_owned(), format!("{far}:80")] {
        node.device
            .wait_for(&format!("{ip} to reach {to}"), || pod.demo("app", &format!("connect {to}")).code == 0);
    }
    node.network.demo(&format!("connect {ip}:80")).expect("the node reaches its pods");
}

#[test]
fn pods_before_and_after_a_change_of_the_range_reach_and_are_reached() {
    let plane = ControlPlane::start();
    plane.let_nodes_read_nodes();
    let two = ClusterNode::join(&plane, "board-2");
    plane.apply(&server("far", "board-2"));
    let far = two.device.pod("far").wait_ready();

    // A board runs a pod from a file, and joins.
    let one = ClusterNode::connected(&plane, "board-1");
    let local = manifest::pod("before", "serve 80 /srv");
    one.device.write_pod("before", &local).wait_ready();
    let mut one = one.enter(&plane, "board-1");
    for node in [&one, &two] {
        node.device.load_image(kube_proxy_archive());
        node.device.load_image(coredns_archive());
    }
    plane.install_services();
    plane.apply(&server("after", "board-1"));
    let first = range(&plane, "board-1");
    let after = one.device.pod("after").wait_ready();
    let before = one.device.pod("before");
    assert!(
        is_in_range(&after.ip(), &first) && !is_in_range(&before.ip(), &first),
        "{} {}",
        after.ip(),
        before.ip()
    );
    reaches_all(&plane, &one, &before, &far.ip());
    reaches_all(&plane, &one, &after, &far.ip());
    let both = |one: &ClusterNode, from: &TestPod<'_>, to: &TestPod<'_>| {
        assert_eq!(fetch(one, from, &format!("http://{}/peer", to.ip())).trim(), from.ip());
    };
    both(&one, &before, &after);
    both(&one, &after, &before);
    assert_eq!(fetch(&two, &far, &format!("http://{}/peer", after.ip())).trim(), far.ip());

    // Another agent finds pods of both ranges.
    one.device.restart_agent();
    let (before, after) = (one.device.pod("before"), one.device.pod("after"));
    reaches_all(&plane, &one, &before, &far.ip());
    reaches_all(&plane, &one, &after, &far.ip());

    // The Node is deleted and made again, which ends the pod of the cluster.
    let uid = || plane.line("get node board-1 --ignore-not-found -o jsonpath={.metadata.uid}").ok();
    let (deleted, earlier) = (uid(), range(&plane, "board-1"));
    plane.line("delete node board-1").ok();
    one.device.wait_for("another Node", || !["", &*deleted].contains(&&*uid()));
    assert_eq!(plane.line("get pod after --ignore-not-found -o name").ok(), "");
    plane.apply(&server("again", "board-1"));
    let again = one.device.pod("again").wait_ready();
    assert_ne!(range(&plane, "board-1"), earlier, "the Node has another range");
    assert!(is_in_range(&again.ip(), &range(&plane, "board-1")), "{}", again.ip());
    for pod in [&before, &again] {
        reaches_all(&plane, &one, pod, &far.ip());
    }
    both(&one, &before, &again);
    both(&one, &again, &before);
    assert_eq!(fetch(&two, &far, &format!("http://{}/peer", again.ip())).trim(), far.ip());
}

/// Another machine on the link of a board, which has the addresses 192.0.2.2 and 2001:db8::2 there.
struct Machine {
    network: Namespace,
    _server: Background,
}

impl Machine {
    fn beside(board: &Namespace) -> Machine {
        let network = Namespace::new();
        board.connect("eth0", &network, "lan0");
        for (namespace, link, host) in [(board, "eth0", 2), (&network, "lan0", 1)] {
            namespace.ip(&format!("address add 192.0.2.{host}/24 dev {link}"));
            namespace.ip(&format!("address add 2001:db8::{host}/64 dev {link} nodad"));
        }
        board.ip("route add default via 192.0.2.1");
        board.ip("route add default via 2001:db8::1");
        let mut server = std::process::Command::new(demo_program());
        server.args(["serve", "80", "/"]);
        network.give_to(&mut server);
        let server = Background::start(server);
        Machine { network, _server: server }
    }

    /// A pod, whose port 80 is this port of the board, reaches the machine under the board's address, and the machine
    /// reaches the pod, in each of these families.
    #[track_caller]
    fn reaches_and_is_reached_by(
        &self,
        (name, pod): (&str, &TestPod<'_>),
        port: u16,
        families: &[[&str; 2]],
    ) {
        for [machine, board] in families {
            let from_pod = pod.demo("app", &format!("get http://{machine}:80/peer")).ok();
            assert_eq!(from_pod.trim(), board.trim_matches(['[', ']']), "{name} reaches {machine}");
            let answer = self.network.demo(&format!("get http://{board}:{port}/hostname"));
            assert_eq!(answer.as_deref().map(str::trim), Ok(name), "{board}:{port}");
        }
    }
}

/// The address of the machine and that of the board, as they are written before a port.
const FAMILIES: [[&str; 2]; 2] = [["192.0.2.1", "192.0.2.2"], ["[2001:db8::1]", "[2001:db8::2]"]];

#[test]
fn pods_before_and_after_another_pod_cidr_of_an_agent_reach_each_other_and_are_reached() {
    let mut device = nodlet_tests::Device::new();
    let network = device.own_network();
    let lan = Machine::beside(&network);
    device.agent_arguments(["--pod-cidr", "10.77.0.0/24,fd00:77::/64"]);
    device.start_agent_with_demo();
    let served = |name: &str, port: u16| {
        manifest::pod_of(
            name,
            &[manifest::container(
                "app",
                "serve 80 /srv",
                &format!("ports: [{{containerPort: 80, hostPort: {port}}}]"),
            )],
            "",
        )
    };
    // The pod's addresses, as they are written before a port.
    let both = |pod: &TestPod<'_>| {
        let ips = pod.status()["podIPs"].clone();
        [0, 1].map(|place| match ips[place]["ip"].as_str() {
            Some(ipv6) if ipv6.contains(':') => format!("[{ipv6}]"),
            ipv4 => ipv4.expect("the pod has two addresses").to_owned(),
        })
    };
    // Before Linux 6.17, the kernel forwards IPv6 packets with this setting alone.
    network.call(|| std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").expect("a setting"));
    device.write_pod("before", &served("before", 8081)).wait_ready();
    let traffic = |device: &nodlet_tests::Device, name: &str, port: u16, families: &[[&str; 2]]| {
        lan.reaches_and_is_reached_by((name, &device.pod(name)), port, families);
    };
    traffic(&device, "before", 8081, &FAMILIES);
    device.kill_agent();
    device.agent_arguments(["--pod-cidr", "10.78.0.0/24,fd00:78::/64"]);
    device.start_agent();
    traffic(&device, "before", 8081, &FAMILIES);
    device.write_manifest("after.yaml", &served("after", 8082));
    let (before, after) = (device.pod("before"), device.pod("after"));
    after.wait_ready();
    let (of_before, of_after) = (both(&before), both(&after));
    assert!(of_before[0].starts_with("10.77.0.") && of_before[1].starts_with("[fd00:77::"), "{of_before:?}");
    assert!(of_after[0].starts_with("10.78.0.") && of_after[1].starts_with("[fd00:78::"), "{of_after:?}");
    // Each pod reaches another machine, which reaches each pod.
    traffic(&device, "before", 8081, &FAMILIES);
    traffic(&device, "after", 8082, &FAMILIES);
    // Each pod reaches itself and the other one, by their addresses and by the host's ports.
    for (pod, gateways) in [(&before, ["10.77.0.1", "[fd00:77::1]"]), (&after, ["10.78.0.1", "[fd00:78::1]"])]
    {
        for to in of_before.iter().chain(&of_after) {
            pod.demo("app", &format!("get http://{to}:80/hostname")).ok();
        }
        for (gateway, port) in gateways.iter().flat_map(|gateway| [(gateway, 8081), (gateway, 8082)]) {
            pod.demo("app", &format!("get http://{gateway}:{port}/hostname")).ok();
        }
        for address in both(pod) {
            network.demo(&format!("connect {address}:80")).expect("the node reaches its pods");
        }
    }
    // The bridge has the earlier ranges as long as a pod has an address of them.
    let has = |address: &str| network.ip("addr show").contains(address);
    assert!(has("10.77.0.1/24") && has("fd00:77::1/64"), "{}", network.ip("addr show"));
    device.remove_manifest("before.yaml");
    before.wait_gone();
    device.wait_for("the earlier ranges to go", || !has("10.77.0.1/24") && !has("fd00:77::1/64"));
    traffic(&device, "after", 8082, &FAMILIES);
    for address in &of_after {
        network.demo(&format!("connect {address}:80")).expect("the node reaches its pods");
    }

    // Pods that begin without an IPv6 address take none from those that have one.
    device.kill_agent();
    device.agent_arguments(["--pod-cidr", "10.78.0.0/24"]);
    device.start_agent();
    device.write_pod("last", &served("last", 8083)).wait_ready();
    network.demo(&format!("connect {}:80", of_after[1])).expect("the node reaches its pods");
    traffic(&device, "after", 8082, &FAMILIES);
    traffic(&device, "last", 8083, &FAMILIES[..1]);
    assert_eq!(network.demo("get http://[fd00:78::1]:8082/hostname").as_deref(), Ok("after\n"));
    device.remove_pod("after");
    device.wait_for("the IPv6 range to go", || !has("fd00:78::1/64"));
    traffic(&device, "last", 8083, &FAMILIES[..1]);
    network.demo(&format!("connect {}:80", device.pod("last").ip())).expect("the node reaches its pods");
}

#[test]
fn a_service_is_reached_by_its_address_and_by_its_name_through_kube_proxy_and_coredns() {
    let plane = ControlPlane::start();
    plane.let_nodes_read_nodes();
    let nodes = ["board-1", "board-2"].map(|name| {
        let node = ClusterNode::join_with(&plane, name, &["--cluster-dns", "10.96.0.10"]);
        node.device.load_image(kube_proxy_archive());
        node.device.load_image(coredns_archive());
        node
    });
    plane.install_services();
    plane.apply(&server("a", "board-1"));
    plane.apply(&server("b", "board-2"));
    plane.line("create service clusterip web --tcp=8080:80").ok();
    plane.line("set selector service web app=web").ok();
    let pods = "get pods -n kube-system --no-headers";
    plane.wait_for(pods, |pods| pods.lines().filter(|pod| pod.contains("1/1")).count() == 3);
    let address = plane.line("get service web -o jsonpath={.spec.clusterIP}").ok();

    // Each pod reaches both, itself included, whether they are on its node or on the other one.
    for (node, name) in nodes.iter().zip(["a", "b"]) {
        let pod = node.device.pod(name).wait_ready();
        let resolver = pod.demo("app", "cat /etc/resolv.conf").ok();
        assert!(
            resolver.starts_with("search default.svc.cluster.local svc.cluster.local cluster.local"),
            "{resolver}"
        );
        assert!(resolver.ends_with("\nnameserver 10.96.0.10\noptions ndots:5\n"), "{resolver}");
        let hosts = [&address, "web", "web.default.svc.cluster.local"];
        for host in hosts {
            let names = std::cell::RefCell::new(std::collections::BTreeSet::new());
            node.device.wait_for(&format!("{name} to reach both pods as {host}"), || {
                // An attempt may fail until kube-proxy and CoreDNS know the Service.
                let got = pod.demo("app", &format!("get http://{host}:8080/hostname"));
                names.borrow_mut().extend((got.code == 0).then(|| got.stdout.trim().to_owned()));
                names.borrow().iter().eq(["a", "b"])
            });
        }
    }
    udp_senders_that_go_on_reach_each_pod_of_a_service(&plane, &nodes);
}

/// Three programs send UDP to a Service from one port each. They begin before it has a pod, and go on while its pod is
/// replaced, on the same node and on the other one, and while another pod has the address of a former one.
fn udp_senders_that_go_on_reach_each_pod_of_a_service(plane: &ControlPlane, nodes: &[ClusterNode; 2]) {
    plane.apply(
        "{apiVersion: v1, kind: Service, metadata: {name: udp}, spec: {selector: {app: udp}, \
          ports: [{port: 53, targetPort: 5353, protocol: UDP}]}}",
    );
    let address = plane.line("get service udp -o jsonpath={.spec.clusterIP}").ok() + ":53";
    let listen = |name: &str, node: usize, label: &str| {
        let app = manifest::container("app", "datagrams 5353", "imagePullPolicy: Never\n");
        let pod = manifest::pod_of(name, &[app], &format!("nodeName: board-{}\n", node + 1));
        plane.apply(&pod.replacen("metadata:\n", &format!("metadata:\n  labels: {{app: {label}}}\n"), 1));
    };
    let all = ["first", "second", "pod"];
    let network_of = |process: u32| std::fs::read_link(format!("/proc/{process}/ns/net")).expect("it runs");
    let of_node = network_of(nodes[0].device.agent_pid());
    let mut processes = nodes[0].device.container_processes().into_iter();
    let in_pod = processes.find(|process| network_of(*process) != of_node).expect("kube-proxy is not alone");
    let in_pod = Namespace::of_process(&in_pod.to_string());
    let _senders = [
        Sender::begin(&nodes[0].network, &address, all[0]),
        Sender::begin(&nodes[1].network, &address, all[1]),
        Sender::begin(&in_pod, &address, all[2]),
    ];
    let mut heirs: Vec<(usize, String)> = Vec::new();
    for (round, node) in [0, 1, 1].into_iter().enumerate() {
        let name = format!("udp-{round}");
        listen(&name, node, "udp");
        let pod = nodes[node].device.pod(&name);
        for word in all {
            nodes[node].device.wait_for(&format!("the sender {word} to reach {name}"), || {
                pod.logs("app").lines().any(|line| line.ends_with(&format!(" says {word}")))
            });
        }
        // From then on, nothing is sent to an address of a former pod, which another pod has now. Until then kube-proxy
        // may not have learned that the former one is gone.
        let logs = || heirs.iter().map(|(node, heir)| nodes[*node].device.pod(heir).logs("app")).collect();
        let (sent, received): (Vec<String>, usize) = (logs(), pod.logs("app").lines().count());
        nodes[node].device.wait_for("more datagrams", || pod.logs("app").lines().count() > received + 50);
        assert_eq!(logs(), sent);

        let first_address = pod.ip();
        plane.line(&format!("delete pod {name}")).ok();
        pod.wait_gone();
        let heir = format!("heir-{round}");
        listen(&heir, node, "other");
        nodes[node].device.pod(&heir).wait_log("app", "bound");
        assert_eq!(nodes[node].device.pod(&heir).ip(), first_address);
        heirs.push((node, heir));
    }
}

#[test]
fn pods_have_an_address_of_each_range_of_their_node() {
    let plane = ControlPlane::start_with(&["--cluster-cidr=10.244.0.0/16,fd00:244::/48"]);
    let node = ClusterNode::join(&plane, "board-1");
    plane.apply(&server("a", "board-1"));
    plane.wait_for("get pod a --no-headers", |pod| pod.contains("1/1"));
    let ranges = plane.line("get node board-1 -o jsonpath={.spec.podCIDRs[*]}").ok();
    let ips = plane.line("get pod a -o jsonpath={.status.podIPs[*].ip}").ok();
    let [(ipv4, of_ipv4), (ipv6, of_ipv6)] = [0, 1].map(|place| {
        let nth = |text: &str| text.split(' ').nth(place).expect("both families").to_owned();
        (nth(&ips), nth(&ranges))
    });
    assert!(is_in_range(&ipv4, &of_ipv4), "{ips} {ranges}");
    assert!(
        ipv6.starts_with(of_ipv6.strip_suffix("/64").expect("a range of the usual size")),
        "{ips} {ranges}"
    );
    node.network.demo(&format!("connect [{ipv6}]:80")).expect("the pod serves");
    // This cluster lets no node read the others, which is said once.
    let log = node.device.agent_log();
    assert_eq!(
        log.matches("pods of other nodes are reached only over routes of your own").count(),
        1,
        "{log}"
    );
}
