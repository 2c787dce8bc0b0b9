//! Where connections go with kube-proxy, in the mode nftables, and with a board. Both take themselves for the node
//! `board-1`; the endpoints are addresses of a third machine.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nodlet_tests::{Background, ClusterNode, ControlPlane, Namespace, kube_proxy_program, manifest};
use serde_json::{Value, json};

/// The node that both are.
const NODE: &str = "board-1";

/// Connections of a client to an address of a Service, so that it misses one of four endpoints once in 10^24 runs.
const CONNECTIONS: usize = 200;

/// The time within which a connection is made, or not at all. Endpoints answer within a millisecond.
const WITHIN: Duration = Duration::from_secs(1);

/// Connections after which an address counts as one that does not answer.
const LOST: usize = 2;

/// The ports of all endpoints.
const PORTS: [u16; 2] = [8080, 8081];

/// An endpoint: the last byte of its address, its node, and whether it is ready, serves and terminates.
type Endpoint = (u8, &'static str, [bool; 3]);

const READY: [bool; 3] = [true, true, false];
const UNREADY: [bool; 3] = [false, false, false];
const SERVING: [bool; 3] = [false, true, true];

/// Endpoints of a Service, slice by slice.
const LAYOUTS: &[(&str, &[&[Endpoint]])] = &[
    ("none", &[]),
    ("empty", &[&[]]),
    ("both", &[&[(1, NODE, READY), (2, "other", READY)]]),
    ("four", &[&[(1, NODE, READY), (2, "other", READY)], &[(3, NODE, READY), (4, "other", READY)]]),
    ("there", &[&[(2, "other", READY), (4, "other", READY)]]),
    ("here", &[&[(1, NODE, READY)]]),
    ("unready", &[&[(1, NODE, UNREADY), (2, "other", UNREADY)]]),
    ("leaving", &[&[(1, NODE, SERVING), (2, "other", READY)]]),
    ("last", &[&[(2, "other", SERVING), (1, NODE, UNREADY)]]),
];

/// A machine that translates the addresses of Services, and what is behind it.
struct Side {
    /// The machine's address on the link of all machines.
    address: String,
    machine: Namespace,
    /// A pod on it.
    pod: Namespace,
    /// A machine whose only way leads through it.
    outside: Namespace,
}

impl Side {
    /// Adds the machine outside, with an address of `10.213.NUMBER.0/24`.
    fn new(machine: Namespace, address: String, pod: Namespace, number: u8, servers: &Namespace) -> Side {
        let outside = Namespace::new();
        machine.connect("outside", &outside, "eth0");
        machine.ip(&format!("address add 10.213.{number}.1/24 dev outside"));
        outside.ip(&format!("address add 10.213.{number}.2/24 dev eth0"));
        outside.ip(&format!("route add default via 10.213.{number}.1"));
        servers.ip(&format!("route add 10.213.{number}.0/24 via {address}"));
        Side { address, machine, pod, outside }
    }
}

/// Serves at all addresses of a machine: each connection gets the address of the server.
fn serve(machine: &Namespace) {
    for port in PORTS {
        let listener = machine.call(move || TcpListener::bind(("0.0.0.0", port)).expect("a port is free"));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                if let Ok(local) = stream.local_addr() {
                    let _ = stream.write_all(local.to_string().as_bytes());
                }
            }
        });
    }
}

/// What clients saw of an address: the endpoints, and whether connections were refused or got no answer.
type Seen = BTreeSet<String>;

/// Connects to an address from the current namespace.
fn connect(to: SocketAddr) -> String {
    let mut stream = match TcpStream::connect_timeout(&to, WITHIN) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return "refused".to_owned(),
        Err(error) if error.kind() == ErrorKind::TimedOut => return "lost".to_owned(),
        Err(error) => return error.kind().to_string(),
    };
    let mut text = String::new();
    let _ = stream.set_read_timeout(Some(WITHIN));
    match stream.read_to_string(&mut text) {
        Ok(_) => text,
        Err(_) => "silent".to_owned(),
    }
}

/// What clients in a namespace see of each address, several at once.
fn look(from: &Namespace, addresses: &[SocketAddr]) -> BTreeMap<SocketAddr, Seen> {
    let left = Arc::new(Mutex::new(addresses.to_vec()));
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (left, seen, from) = (left.clone(), seen.clone(), from.clone());
            std::thread::spawn(move || {
                from.call(move || {
                    while let Some(to) = { left.lock().expect("no panic").pop() } {
                        let (mut all, mut lost) = (Seen::new(), 0);
                        for _ in 0..CONNECTIONS {
                            let one = connect(to);
                            lost += usize::from(one == "lost");
                            all.insert(one);
                            if lost == LOST {
                                break;
                            }
                        }
                        seen.lock().expect("no panic").insert(to, all);
                    }
                });
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    Arc::into_inner(seen).expect("the threads have ended").into_inner().expect("no panic")
}

fn service(name: &str, spec: &Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "default" },
        "spec": { "ports": [{ "port": 80, "targetPort": 8080 }] },
    });
    for (field, value) in spec.as_object().expect("an object") {
        service["spec"][field] = value.clone();
    }
    service
}

fn slices(name: &str, layout: &[&[Endpoint]], ports: &Value) -> Vec<Value> {
    let endpoint = |(last, node, [ready, serving, terminating]): &Endpoint| {
        json!({
            "addresses": [format!("10.212.1.{last}")], "nodeName": node,
            "conditions": { "ready": ready, "serving": serving, "terminating": terminating },
        })
    };
    let slice = |(number, endpoints): (usize, &&[Endpoint])| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": format!("{name}-{number}"), "namespace": "default",
                "labels": { "kubernetes.io/service-name": name },
            },
            "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(), "ports": ports,
        })
    };
    layout.iter().enumerate().map(slice).collect()
}

/// The Services with their slices.
fn objects() -> Vec<Value> {
    let (mut services, mut all) = (Vec::new(), Vec::new());
    let unnamed = json!([{ "name": "", "port": 8080 }]);
    let mut external = 0;
    let mut add = |name: &str, spec: Value, layout: &[&[Endpoint]], ports: &Value| {
        external += 1;
        let mut service = service(name, &spec);
        if spec["type"] != "ClusterIP" {
            service["spec"]["externalIPs"] = json!([format!("203.0.113.{external}")]);
        }
        services.push(service);
        all.extend(slices(name, layout, ports));
    };
    for (layout, endpoints) in LAYOUTS {
        for internal in ["Cluster", "Local"] {
            for outside in ["Cluster", "Local"] {
                let name = format!("{layout}-{internal}-{outside}").to_lowercase();
                let spec = json!({
                    "type": "NodePort", "internalTrafficPolicy": internal, "externalTrafficPolicy": outside,
                });
                add(&name, spec, endpoints, &unnamed);
            }
        }
    }
    let four = LAYOUTS[3].1;
    for outside in ["Cluster", "Local"] {
        let spec = json!({
            "type": "NodePort", "sessionAffinity": "ClientIP", "externalTrafficPolicy": outside,
        });
        add(&format!("sticky-{}", outside.to_lowercase()), spec, four, &unnamed);
    }
    let several = json!({
        "type": "NodePort",
        "ports": [{ "name": "a", "port": 80 }, { "name": "b", "port": 81 }, { "name": "none", "port": 82 }],
    });
    let ports = json!([{ "name": "a", "port": 8080 }, { "name": "b", "port": 8081 }]);
    add("several", several, four, &ports);
    // Nobody opens a port of UDP.
    let datagrams = json!({ "type": "NodePort", "ports": [{ "port": 80, "protocol": "UDP" }] });
    add("datagrams", datagrams, four, &json!([{ "name": "", "port": 8080, "protocol": "UDP" }]));
    let other = json!({ "type": "NodePort", "ports": [{ "name": "a", "port": 80 }] });
    add("misnamed", other, four, &unnamed);
    // Both know all objects once they serve this one, which is the last of both kinds.
    add("marker", json!({ "type": "ClusterIP" }), LAYOUTS[5].1, &unnamed);
    services.append(&mut all);
    services
}

/// The addresses of the Services at which clients look, by the name of the client: from a pod and from the machine itself,
/// an address of the cluster, and from all the others.
fn addresses(services: &[Value], node: &str) -> BTreeMap<(String, &'static str), SocketAddr> {
    let mut all = BTreeMap::new();
    for service in services {
        let name = service["metadata"]["name"].as_str().expect("a name");
        let spec = &service["spec"];
        for port in spec["ports"].as_array().expect("ports") {
            let number = |field: &str| port[field].as_u64().and_then(|number| u16::try_from(number).ok());
            let own = number("port").expect("a port");
            let mut add = |kind: &'static str, address: &str, port: u16| {
                let address: IpAddr = address.parse().expect("an address");
                all.insert((format!("{name}:{own}"), kind), SocketAddr::new(address, port));
            };
            add("cluster", spec["clusterIP"].as_str().expect("an address"), own);
            // There is no such port.
            add("closed", spec["clusterIP"].as_str().expect("an address"), 9);
            if let Some(external) = spec["externalIPs"][0].as_str() {
                add("external", external, own);
            }
            if let Some(node_port) = number("nodePort") {
                add("node", node, node_port);
            }
        }
    }
    all
}

/// What clients see: by Service, kind of address and client.
fn see(side: &Side, services: &[Value]) -> BTreeMap<String, Seen> {
    let addresses = addresses(services, &side.address);
    let mut all = BTreeMap::new();
    for (client, from) in [("machine", &side.machine), ("pod", &side.pod), ("outside", &side.outside)] {
        // Other machines have no way to the addresses of the cluster.
        let is_used = |kind: &str| client != "outside" || ["external", "node"].contains(&kind);
        let wanted: Vec<SocketAddr> =
            addresses.iter().filter(|((_, kind), _)| is_used(kind)).map(|(_, to)| *to).collect();
        let seen = look(from, &wanted);
        for ((service, kind), to) in addresses.iter().filter(|((_, kind), _)| is_used(kind)) {
            let mut seen = seen[to].clone();
            if service.starts_with("sticky") && seen.iter().all(|one| one.starts_with("10.")) {
                // Each chooses one.
                seen = [format!("stays with {} of them", seen.len())].into();
            }
            all.insert(format!("{service} {kind} from {client}"), seen);
        }
    }
    all
}

/// Starts kube-proxy on a machine.
fn kube_proxy(plane: &ControlPlane, machine: &Namespace) -> Background {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
        "bindAddress": "0.0.0.0", "hostnameOverride": NODE, "clusterCIDR": "10.244.0.0/16",
        "clientConnection": { "kubeconfig": plane.kubeconfig() }, "conntrack": { "maxPerCore": 0 },
        // Otherwise, the address of the Node, which is the board's.
        "nodePortAddresses": ["10.212.0.0/16"],
    });
    let path = plane.shared("kube-proxy").join("config.json");
    std::fs::write(&path, config.to_string()).expect("written");
    let mut command = std::process::Command::new(kube_proxy_program());
    command.arg("--config").arg(path).stderr(std::process::Stdio::null());
    machine.give_to(&mut command);
    Background::start(command)
}

#[test]
fn connections_go_where_kube_proxy_sends_them_and_are_refused_where_it_refuses_them() {
    let plane = ControlPlane::start();
    plane.let_nodes_read_services();
    let board = ClusterNode::join_with(&plane, NODE, &["--services=cluster"]);
    let servers = Namespace::new();
    plane.connect(&servers);
    for last in 1..=4 {
        servers.ip(&format!("address add 10.212.1.{last}/16 dev uplink"));
    }
    serve(&servers);

    let sleeper = manifest::container("app", "sleep", "imagePullPolicy: Never\n");
    plane.apply(&manifest::pod_of("client", &[sleeper], &format!("nodeName: {NODE}\n")));
    let ip = board.device.pod("client").wait_ready().ip();
    let pod = Namespace::of_process(&board.device.container_processes()[0].to_string());
    servers.ip(&format!("route add {ip} via {}", board.address));
    let ours = Side::new(board.network.clone(), board.address.clone(), pod, 1, &servers);

    let (machine, pod) = (Namespace::new(), Namespace::new());
    let address = plane.connect(&machine);
    machine.call(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("root may");
        // kube-proxy refuses by ICMP, of which the kernel would send one a second to a client.
        std::fs::write("/proc/sys/net/ipv4/icmp_ratemask", "0").expect("root may");
    });
    machine.connect("pod", &pod, "eth0");
    machine.ip("address add 10.244.200.1/24 dev pod");
    pod.ip("address add 10.244.200.2/24 dev eth0");
    pod.ip("route add default via 10.244.200.1");
    servers.ip(&format!("route add 10.244.200.0/24 via {address}"));
    let theirs = Side::new(machine, address, pod, 2, &servers);
    let _proxy = kube_proxy(&plane, &theirs.machine);

    plane.create(&json!({ "apiVersion": "v1", "kind": "List", "items": objects() }).to_string());
    let listed: Value =
        serde_json::from_str(&plane.line("get services -o json").ok()).expect("kubectl prints JSON");
    let services: Vec<Value> = listed["items"].as_array().expect("a list").clone();
    let services: Vec<Value> =
        services.into_iter().filter(|service| service["metadata"]["name"] != "kubernetes").collect();
    let (marker, services): (Vec<_>, Vec<_>) =
        services.into_iter().partition(|service| service["metadata"]["name"] == "marker");
    let marker = addresses(&marker, &ours.address)[&("marker:80".to_owned(), "cluster")];
    for side in [&ours, &theirs] {
        board
            .device
            .wait_for("the last Service", || side.machine.call(move || connect(marker)).starts_with("10."));
    }

    let (ours, theirs) = (see(&ours, &services), see(&theirs, &services));
    assert!(ours.len() > 300, "{}", ours.len());
    // What is compared has each outcome.
    for outcome in ["refused", "lost", "10.212.1.4:8081", "stays with 1 of them"] {
        assert!(theirs.values().any(|seen| seen.contains(outcome)), "{outcome}");
    }
    let differing: Vec<String> = ours
        .iter()
        .filter(|(name, seen)| theirs[*name] != **seen)
        .map(|(name, seen)| format!("{name}: the board {seen:?}, kube-proxy {:?}", theirs[name]))
        .collect();
    assert!(differing.is_empty(), "{} of {}:\n{}", differing.len(), ours.len(), differing.join("\n"));
}
