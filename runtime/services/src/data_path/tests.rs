use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;

const NODE: &str = "board";

/// An endpoint: its address, its node, and whether it is ready, serves and terminates.
type Written<'a> = (&'a str, &'a str, [bool; 3]);

const READY: [bool; 3] = [true, true, false];
const UNREADY: [bool; 3] = [false, false, false];
const SERVING: [bool; 3] = [false, true, true];

fn catalog(spec: Value, endpoints: &[Written<'_>]) -> Catalog {
    let service = json!({"metadata": {"namespace": "default", "name": "web"}, "spec": spec});
    let slice = |family: &str| {
        let is_of = |address: &str| address.contains(':') == (family == "IPv6");
        let endpoints =
            endpoints.iter().filter(|(address, ..)| is_of(address)).map(|(address, node, conditions)| {
                let [ready, serving, terminating] = conditions;
                json!({"addresses": [address], "nodeName": node,
                   "conditions": {"ready": ready, "serving": serving, "terminating": terminating}})
            });
        let slice = json!({
            "metadata": {"namespace": "default", "name": family, "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": family, "ports": [{"name": "", "port": 8080}], "endpoints": endpoints.collect::<Vec<_>>(),
        });
        EndpointSlice::parse(&slice).expect("it is valid")
    };
    let service = Service::parse(&service).expect("it is valid");
    let name = (service.namespace.clone(), service.name.clone());
    let entry = Entry { service, slices: vec![slice("IPv4"), slice("IPv6")] };
    Catalog { services: [(name, entry)].into(), namespaces: BTreeSet::new() }
}

/// The targets of connections from inside and from outside.
fn targets(spec: Value, endpoints: &[Written<'_>]) -> (Targets, Targets) {
    let mut path = DataPath::of(&catalog(spec, endpoints), NODE, &[]);
    let port = path.ports.remove(0);
    (port.internal, port.outside)
}

fn to(addresses: &[&str]) -> Targets {
    Targets::To(addresses.iter().map(|address| address.parse().expect("an address")).collect())
}

fn node_port(internal: &str, external: &str) -> Value {
    json!({"type": "NodePort", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80, "nodePort": 30080}],
           "internalTrafficPolicy": internal, "externalTrafficPolicy": external})
}

#[test]
fn a_port_has_its_addresses_and_the_ready_endpoints() {
    let spec = json!({
        "type": "NodePort", "clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"],
        "externalIPs": ["192.168.1.9"], "sessionAffinity": "ClientIP", "externalTrafficPolicy": "Local",
        "ports": [{"port": 80, "nodePort": 30080}],
    });
    let endpoints = [
        ("10.1.0.2", NODE, READY),
        ("10.1.0.1", NODE, READY),
        ("10.1.0.3", NODE, UNREADY),
        ("fd01::1", NODE, READY),
    ];
    let board: IpAddr = "192.168.1.2".parse().expect("an address");
    let path = DataPath::of(&catalog(spec, &endpoints), NODE, &[board, board]);
    let all = to(&["10.1.0.1:8080", "10.1.0.2:8080", "[fd01::1]:8080"]);
    let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
    assert_eq!(
        path.ports,
        [PortPath {
            id: "default/web:80/TCP".into(),
            protocol: Protocol::Tcp,
            cluster: vec![address("10.0.0.1:80"), address("[fd00::1]:80")],
            external: vec![address("192.168.1.9:80")],
            node_port: Some(30080),
            affinity_seconds: Some(10_800),
            internal: all.clone(),
            outside: all,
            keeps_outside_address: true,
        }]
    );
    assert_eq!(path.node_addresses, [board]);
}

#[test]
fn endpoints_that_terminate_are_used_only_if_none_is_ready() {
    let spec = || node_port("Cluster", "Cluster");
    let (ready, serving) = (("10.1.0.1", NODE, READY), ("10.1.0.2", NODE, SERVING));
    assert_eq!(targets(spec(), &[ready, serving]).0, to(&["10.1.0.1:8080"]));
    assert_eq!(targets(spec(), &[("10.1.0.1", NODE, UNREADY), serving]).0, to(&["10.1.0.2:8080"]));
    let terminating = ("10.1.0.3", NODE, [false, false, true]);
    assert_eq!(targets(spec(), &[terminating]), (Targets::Refused, Targets::Refused));
}

#[test]
fn a_local_policy_uses_the_endpoints_of_the_node() {
    let (here, there) = (("10.1.0.1", NODE, READY), ("10.1.0.2", "other", READY));
    let both = to(&["10.1.0.1:8080", "10.1.0.2:8080"]);
    assert_eq!(
        targets(node_port("Cluster", "Local"), &[here, there]),
        (both.clone(), to(&["10.1.0.1:8080"]))
    );
    assert_eq!(targets(node_port("Local", "Cluster"), &[here, there]), (to(&["10.1.0.1:8080"]), both));
    let expected = (Targets::Dropped, to(&["10.1.0.2:8080"]));
    assert_eq!(targets(node_port("Local", "Cluster"), &[there]), expected);
    // The node's own endpoint that terminates comes before ready ones of other nodes.
    let serving = ("10.1.0.1", NODE, SERVING);
    let expected = (to(&["10.1.0.2:8080"]), to(&["10.1.0.1:8080"]));
    assert_eq!(targets(node_port("Cluster", "Local"), &[serving, there]), expected);
    assert_eq!(targets(node_port("Local", "Local"), &[]), (Targets::Refused, Targets::Refused));
    assert_eq!(targets(node_port("Local", "Local"), &[("10.1.0.1", NODE, UNREADY)]).0, Targets::Refused);
}

#[test]
fn services_without_address_have_no_path_and_ports_are_ordered() {
    let headless = json!({"clusterIP": "None", "ports": [{"port": 80}]});
    assert_eq!(DataPath::of(&catalog(headless, &[("10.1.0.1", NODE, READY)]), NODE, &[]).ports, []);
    let name = json!({"type": "ExternalName", "externalName": "a.example"});
    assert_eq!(DataPath::of(&catalog(name, &[]), NODE, &[]).ports, []);
    let two =
        json!({"clusterIPs": ["10.0.0.1"], "ports": [{"name": "b", "port": 9}, {"name": "a", "port": 80}]});
    let path = DataPath::of(&catalog(two, &[]), NODE, &[]);
    let ids: Vec<&str> = path.ports.iter().map(|port| &*port.id).collect();
    assert_eq!(ids, ["default/web:80/TCP", "default/web:9/TCP"]);
}

#[test]
fn an_address_that_is_in_two_slices_is_one_endpoint() {
    let mut catalog = catalog(node_port("Cluster", "Cluster"), &[("10.1.0.1", NODE, UNREADY)]);
    let entry = catalog.services.values_mut().next().expect("one Service");
    let mut copy = entry.slices[0].clone();
    copy.endpoints[0].conditions = Conditions { ready: true, serving: true, terminating: false };
    entry.slices.push(copy);
    assert_eq!(DataPath::of(&catalog, NODE, &[]).ports[0].internal, to(&["10.1.0.1:8080"]));
}
