//! What names mean to CoreDNS, with the Corefile of kubeadm, and to the name server of a board.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};

use nodlet_tests::{Background, ControlPlane, Device, Namespace, Seed, coredns_program, seed};
use serde_json::{Value, json};

use super::message::{Response, TYPES, ask, serve_example};

/// Where the board and CoreDNS, which listens at port 53 of all addresses, forward other names to.
const UPSTREAMS: [&str; 2] = ["127.0.0.53:53", "127.0.0.53:5399"];

/// Names to ask for: at random.
fn rounds() -> usize {
    std::env::var("NODLET_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(500)
}

fn service(namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": namespace, "name": name }, "spec": spec,
    })
}

/// A slice with endpoints: address, host name, and whether it is ready.
fn slice(
    namespace: &str,
    service: &str,
    family: &str,
    endpoints: &[(&str, &str, bool)],
    ports: Value,
) -> Value {
    let endpoint = |(address, hostname, ready): &(&str, &str, bool)| {
        let mut endpoint = json!({ "addresses": [address], "conditions": { "ready": ready } });
        if !hostname.is_empty() {
            endpoint["hostname"] = (*hostname).into();
        }
        endpoint
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
        "metadata": {
            "namespace": namespace, "name": format!("{service}-{}", family.to_lowercase()),
            "labels": { "kubernetes.io/service-name": service },
        },
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(), "ports": ports,
    })
}

/// Services and slices of two namespaces.
fn objects() -> Vec<Value> {
    let web = json!([
        { "name": "http", "port": 80 }, { "name": "https", "port": 443, "protocol": "TCP" },
        { "name": "dns", "port": 53, "protocol": "UDP" },
    ]);
    let http = json!([{ "name": "http", "port": 8080 }]);
    let endpoints = [("10.1.0.1", "a", true), ("10.1.0.2", "", true), ("10.1.0.3", "c", false)];
    let shared = [("10.1.0.1", "", true), ("10.1.0.4", "b", true)];
    let headless = |ports: &Value| json!({ "clusterIP": "None", "ports": ports });
    vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } }),
        service("default", "web", json!({ "clusterIP": "10.96.1.1", "ports": web })),
        slice(
            "default",
            "web",
            "IPv4",
            &shared,
            json!([{ "name": "http", "port": 8080 }, { "name": "dns", "port": 5353, "protocol": "UDP" }]),
        ),
        service("shop", "db", json!({ "clusterIP": "10.96.1.2", "ports": [{ "port": 5432 }] })),
        slice("shop", "db", "IPv4", &[("10.1.0.5", "", true)], json!([{ "name": "", "port": 5432 }])),
        service("shop", "alone", json!({ "clusterIP": "10.96.1.3", "ports": http })),
        service("default", "headless", headless(&http)),
        slice("default", "headless", "IPv4", &endpoints, http.clone()),
        slice("default", "headless", "IPv6", &[("fd00::a", "a", true)], http.clone()),
        service("shop", "empty", headless(&http)),
        service("shop", "unready", headless(&http)),
        slice("shop", "unready", "IPv4", &[("10.1.0.6", "u", false)], http.clone()),
        service("shop", "portless", json!({ "clusterIP": "None" })),
        slice("shop", "portless", "IPv4", &[("10.1.0.7", "p", true)], json!([])),
        service("default", "alias", json!({ "type": "ExternalName", "externalName": "www.example" })),
        service("default", "nowhere", json!({ "type": "ExternalName", "externalName": "no.example" })),
        service(
            "shop",
            "inner",
            json!({ "type": "ExternalName", "externalName": "web.default.svc.cluster.local" }),
        ),
        service(
            "shop",
            "twice",
            json!({ "type": "ExternalName", "externalName": "alias.default.svc.cluster.local" }),
        ),
        service(
            "shop",
            "round",
            json!({ "type": "ExternalName", "externalName": "round.shop.svc.cluster.local" }),
        ),
        service(
            "shop",
            "broken",
            json!({ "type": "ExternalName", "externalName": "no.shop.svc.cluster.local" }),
        ),
    ]
}

/// A name to ask for. `pod` is the address of a pod of the namespace `default`.
fn name(seed: &mut Seed, pod: &str) -> String {
    let services = [
        "web", "db", "alone", "headless", "empty", "unready", "portless", "alias", "nowhere", "inner",
        "twice", "round", "broken", "no",
    ];
    let addresses = [
        "10.1.0.1",
        "10.1.0.2",
        "10.1.0.3",
        "10.1.0.4",
        "10.1.0.5",
        "10.1.0.6",
        "10.1.0.7",
        "10.96.1.1",
        "10.96.1.3",
        "10.96.9.9",
        "192.0.2.1",
        pod,
    ];
    // Most are of a Service that exists.
    let (service, namespace) = match seed.number() % 4 {
        0 => (*seed.choose(&services), *seed.choose(&["default", "shop", "missing"])),
        _ => *seed.choose(&[
            ("web", "default"),
            ("headless", "default"),
            ("alias", "default"),
            ("db", "shop"),
            ("portless", "shop"),
            ("inner", "shop"),
            ("twice", "shop"),
        ]),
    };
    let host = *seed
        .choose(&["a", "b", "c", "u", "p", "10-1-0-1", "10-1-0-2", "10-1-0-3", "10-1-0-5", "no", "fd00--a"]);
    let port = *seed.choose(&["_http", "_https", "_dns", "_no", "http"]);
    let protocol = *seed.choose(&["_tcp", "_udp", "_sctp", "tcp"]);
    let domain = "cluster.local";
    let address = *seed.choose(&addresses);
    let name = match seed.number() % 24 {
        0..5 => format!("{service}.{namespace}.svc.{domain}"),
        5..8 => format!("{port}.{protocol}.{service}.{namespace}.svc.{domain}"),
        8..11 => format!("{host}.{service}.{namespace}.svc.{domain}"),
        11..14 => {
            let mut parts: Vec<&str> = address.split('.').collect();
            parts.reverse();
            format!("{}.in-addr.arpa", parts.join("."))
        }
        14 => format!("{}.{namespace}.pod.{domain}", address.replace('.', "-")),
        15 => format!("{}.default.pod.{domain}", pod.replace('.', "-")),
        16 => format!("{namespace}.svc.{domain}"),
        17 => format!(
            "{}{domain}",
            seed.choose(&["", "svc.", "pod.", "no.", "dns-version.", "x.dns-version.", "dns."])
        ),
        18 => format!("{service}.{namespace}.svc.{domain}.{namespace}.svc.{domain}"),
        19 => format!("www.example.{namespace}.svc.{domain}"),
        20 => format!("{service}.{namespace}.{}.{domain}", seed.choose(&["svcs", "pod", "node", "any", "*"])),
        21 => format!("x.{port}.{protocol}.{service}.{namespace}.svc.{domain}"),
        22 => (*seed.choose(&[
            "www.example",
            "no.example",
            "example",
            "a.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa",
            "1.10.in-addr.arpa",
        ]))
        .to_owned(),
        _ => format!("*.{service}.{namespace}.svc.{domain}"),
    };
    match seed.number() % 8 {
        0 => name.to_uppercase(),
        _ => name,
    }
}

/// Starts CoreDNS beside the API server, at port 53.
fn coredns(plane: &ControlPlane) -> Background {
    let corefile = include_str!("../../src/cluster_names.yaml");
    let begin = corefile.find("    .:53 {").expect("a Corefile");
    let end = corefile[begin..].find("---").expect("another object");
    let config = plane.kubeconfig();
    let corefile = corefile[begin..begin + end]
        .replace("pods insecure", &format!("pods insecure\n kubeconfig {}", config.display()))
        .replace("forward . /etc/resolv.conf", &format!("forward . {}", UPSTREAMS[1]));
    let path = plane.shared("coredns").join("Corefile");
    std::fs::write(&path, corefile).expect("written");
    let mut command = std::process::Command::new(coredns_program());
    command.arg("-conf").arg(path);
    plane.namespace().give_to(&mut command);
    Background::start(command)
}

/// Whether it is a difference that docs/differences.md names.
fn is_named(name: &str, kind: &str, ours: &Response, theirs: &Response) -> bool {
    let name = name.to_ascii_lowercase();
    match (kind, ours.code, theirs.code) {
        // With `pods insecure`, each address has a name.
        (_, 3, 0) if name.ends_with(".pod.cluster.local") => true,
        // CoreDNS takes each name for one that exists.
        ("SOA", 3, 0) => name != "cluster.local",
        // A name that exists is not denied for the lack of a type.
        ("TXT", 0, 3) => name.ends_with("cluster.local") && ours.answer.is_empty(),
        (_, 0, 3) => name == "dns-version.cluster.local" && ours.answer.is_empty(),
        _ => false,
    }
}

/// A name server, as clients in a namespace see it.
struct Server {
    from: Namespace,
    address: SocketAddr,
}

impl Server {
    fn ask(&self, name: &str, kind: u16) -> Option<Response> {
        let (address, name) = (self.address, name.to_owned());
        self.from.call(move || ask(address, &name, kind))
    }
}

#[test]
fn names_are_answered_as_coredns_answers_them() {
    let mut seed = seed();
    let plane = ControlPlane::start();
    let mut device = Device::new();
    let board = device.own_network();
    for (namespace, upstream) in [&board, plane.namespace()].into_iter().zip(UPSTREAMS) {
        serve_example(namespace.call(move || UdpSocket::bind(upstream).expect("nobody has it")));
    }
    let resolv_conf = device.write_file("/etc/upstream.conf", "nameserver 127.0.0.53\n");
    device.agent_arguments([
        "--service-cidr",
        "10.96.0.0/16",
        "--resolv-conf",
        &resolv_conf.display().to_string(),
    ]);
    device.start_agent_with_demo();
    let client = device.run_pod("client", "sleep").wait_ready();
    let conf = client.demo("app", "cat /etc/resolv.conf").ok();
    let address = conf.lines().find_map(|line| line.strip_prefix("nameserver ")).expect("a name server");
    let from = Namespace::of_process(&device.container_processes()[0].to_string());
    let ours = Server { from, address: format!("{address}:53").parse().expect("an address") };

    for object in objects() {
        if object["kind"] != "Namespace" {
            device.apply(&object.to_string());
        }
        plane.create(&object.to_string());
    }
    let _coredns = coredns(&plane);
    let theirs =
        Server { from: plane.namespace().clone(), address: "127.0.0.1:53".parse().expect("an address") };
    let last = "10-1-0-7.portless.shop.svc.cluster.local";
    let last = [last, "p.portless.shop.svc.cluster.local"];
    for (what, server) in [("the board", &ours), ("CoreDNS", &theirs)] {
        device.wait_for(&format!("the last name of {what}"), || {
            last.iter().any(|name| server.ask(name, 1).is_some_and(|response| !response.answer.is_empty()))
        });
    }

    let pod = client.ip();
    let (mut differing, mut codes) = (Vec::new(), BTreeMap::new());
    for _ in 0..rounds() {
        let (name, (text, kind)) = (name(&mut seed, &pod), *seed.choose(&TYPES));
        let usual = if name.to_lowercase().ends_with(".arpa") { [12, 12, 12, 1] } else { [1, 1, 33, 28] };
        let kind = if seed.number().is_multiple_of(4) { kind } else { *seed.choose(&usual) };
        let text = TYPES.iter().find(|(_, number)| *number == kind).map_or(text, |(text, _)| text);
        let (one, other) = (ours.ask(&name, kind), theirs.ask(&name, kind));
        let (Some(one), Some(other)) = (one, other) else {
            differing.push(format!("{name} {text}: no response"));
            continue;
        };
        *codes.entry((other.code, other.answer.is_empty())).or_insert(0) += 1;
        if one != other && !is_named(&name, text, &one, &other) {
            differing.push(format!("{name} {text}:\n  the board {one:?}\n  CoreDNS   {other:?}"));
        }
    }
    println!("{codes:?}");
    // What is compared has records, names without records of the type, and names that do not exist.
    for found in [(0, false), (0, true), (3, true)] {
        assert!(codes.get(&found).is_some_and(|count| *count > rounds() / 20), "{found:?}: {codes:?}");
    }
    assert!(differing.is_empty(), "{} of {}:\n{}", differing.len(), rounds(), differing.join("\n"));
}
