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

/// Where connections go: to the address of the cluster; from the board and its pods to the node port; from outside to the
/// node port.
fn targets(spec: Value, endpoints: &[Written<'_>]) -> [Expected; 3] {
    let mut path = DataPath::of(&catalog(spec, endpoints), NODE);
    let port = path.ports.remove(0);
    [port.internal_policy, TrafficPolicy::Cluster, port.external_policy].map(|policy| {
        assert!(port.uses(policy));
        match port.targets(policy) {
            Targets::To(targets) => Expected::To(targets.to_vec()),
            Targets::Refused => Expected::Refused,
            Targets::Dropped => Expected::Dropped,
        }
    })
}

/// As [`Targets`].
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expected {
    To(Vec<SocketAddr>),
    Refused,
    Dropped,
}

fn ends(addresses: &[&str]) -> Vec<SocketAddr> {
    addresses.iter().map(|address| address.parse().expect("an address")).collect()
}

fn to(addresses: &[&str]) -> Expected {
    Expected::To(ends(addresses))
}

fn node_port(internal: &str, external: &str) -> Value {
    json!({"type": "NodePort", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80, "nodePort": 30080}],
           "internalTrafficPolicy": internal, "externalTrafficPolicy": external})
}

#[test]
fn a_port_has_a_path_in_each_family_with_its_addresses_and_the_ready_endpoints() {
    let spec = json!({
        "type": "NodePort", "clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"],
        "externalIPs": ["192.168.1.9", "2001:db8::9"], "sessionAffinity": "ClientIP", "externalTrafficPolicy": "Local",
        "ports": [{"port": 80, "nodePort": 30080}],
    });
    let endpoints = [
        ("10.1.0.2", NODE, READY),
        ("10.1.0.1", "other", READY),
        ("10.1.0.3", NODE, UNREADY),
        ("fd01::1", NODE, READY),
    ];
    let path = DataPath::of(&catalog(spec, &endpoints), NODE);
    let ipv4 = PortPath {
        id: "default/web:80/TCP/IPv4".into(),
        protocol: Protocol::Tcp,
        cluster: ends(&["10.0.0.1:80"])[0],
        external: ends(&["192.168.1.9:80"]),
        node_port: Some(30080),
        affinity_seconds: Some(10_800),
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Local,
        everywhere: ends(&["10.1.0.1:8080", "10.1.0.2:8080"]),
        here: ends(&["10.1.0.2:8080"]),
        has_usable: true,
        may_stay: Vec::new(),
    };
    let ipv6 = PortPath {
        id: "default/web:80/TCP/IPv6".into(),
        cluster: ends(&["[fd00::1]:80"])[0],
        external: ends(&["[2001:db8::9]:80"]),
        everywhere: ends(&["[fd01::1]:8080"]),
        here: ends(&["[fd01::1]:8080"]),
        ..ipv4.clone()
    };
    assert_eq!(path.ports, [ipv4, ipv6]);
}

#[test]
fn endpoints_that_terminate_are_used_only_if_none_is_ready() {
    let spec = || node_port("Cluster", "Cluster");
    let (ready, serving) = (("10.1.0.1", NODE, READY), ("10.1.0.2", NODE, SERVING));
    assert_eq!(targets(spec(), &[ready, serving])[0], to(&["10.1.0.1:8080"]));
    assert_eq!(targets(spec(), &[("10.1.0.1", NODE, UNREADY), serving])[0], to(&["10.1.0.2:8080"]));
    let terminating = ("10.1.0.3", NODE, [false, false, true]);
    assert_eq!(targets(spec(), &[terminating]), [Expected::Refused, Expected::Refused, Expected::Refused]);
}

/// As `CategorizeEndpoints` and the rules of `externalTrafficChain`.
#[test]
fn a_local_policy_uses_the_endpoints_of_the_node_but_for_what_pods_and_the_board_send_to_external_addresses()
{
    let (here, there) = (("10.1.0.1", NODE, READY), ("10.1.0.2", "other", READY));
    let (one, other, both) =
        (to(&["10.1.0.1:8080"]), to(&["10.1.0.2:8080"]), to(&["10.1.0.1:8080", "10.1.0.2:8080"]));
    let (dropped, refused) = (Expected::Dropped, Expected::Refused);
    // Ready, then terminating endpoints, of the node before those of others.
    let serving = ("10.1.0.1", NODE, SERVING);
    let unready = ("10.1.0.1", NODE, UNREADY);
    for (internal, external, endpoints, expected) in [
        ("Cluster", "Cluster", &[here, there][..], [&both, &both, &both]),
        ("Cluster", "Local", &[here, there], [&both, &both, &one]),
        ("Local", "Cluster", &[here, there], [&one, &both, &both]),
        ("Local", "Local", &[here, there], [&one, &both, &one]),
        ("Cluster", "Local", &[there], [&other, &other, &dropped]),
        ("Local", "Cluster", &[there], [&dropped, &other, &other]),
        ("Local", "Local", &[there], [&dropped, &other, &dropped]),
        ("Cluster", "Local", &[serving, there], [&other, &other, &one]),
        ("Local", "Local", &[serving, there], [&one, &other, &one]),
        ("Local", "Local", &[unready, there], [&dropped, &other, &dropped]),
        ("Local", "Local", &[unready], [&refused; 3]),
        ("Local", "Local", &[], [&refused; 3]),
    ] {
        let found = targets(node_port(internal, external), endpoints);
        assert_eq!(found.each_ref(), expected, "{internal} {external} {endpoints:?}");
    }
}

#[test]
fn the_families_of_a_service_have_endpoints_of_their_own() {
    let spec = json!({
        "clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"], "internalTrafficPolicy": "Local",
        "ports": [{"port": 80}],
    });
    let endpoints = [("10.1.0.1", "other", READY), ("fd01::1", NODE, READY)];
    let path = DataPath::of(&catalog(spec.clone(), &endpoints), NODE);
    let targets =
        |path: &DataPath, place: usize| format!("{:?}", path.ports[place].targets(TrafficPolicy::Local));
    assert_eq!(targets(&path, 0), "Dropped");
    assert_eq!(targets(&path, 1), "To([[fd01::1]:8080])");
    assert!(!path.ports[0].uses(TrafficPolicy::Cluster) && path.ports[0].everywhere.is_empty());
    let path = DataPath::of(&catalog(spec, &endpoints[1..]), NODE);
    assert_eq!(targets(&path, 0), "Refused");
}

/// As `CleanStaleEntries`.
#[test]
fn senders_of_udp_may_stay_with_every_endpoint_that_serves_or_if_none_does_with_every_one() {
    let may_stay = |protocol: &str, endpoints: &[Written<'_>]| {
        let spec = json!({
            "type": "NodePort", "clusterIPs": ["10.0.0.1"], "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Local", "ports": [{"port": 53, "protocol": protocol, "nodePort": 30053}],
        });
        let mut catalog = catalog(spec, endpoints);
        for slice in catalog.services.values_mut().flat_map(|entry| &mut entry.slices) {
            slice.ports[0].protocol = Protocol::named(protocol).expect("a protocol");
        }
        DataPath::of(&catalog, NODE).ports.remove(0).may_stay
    };
    let endpoints = [
        ("10.1.0.1", NODE, READY),
        ("10.1.0.2", "other", READY),
        ("10.1.0.3", NODE, SERVING),
        ("10.1.0.4", NODE, UNREADY),
        ("10.1.0.5", NODE, [false, false, true]),
        // Published although it is not ready.
        ("10.1.0.6", NODE, [true, false, false]),
    ];
    let serving = ["10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080", "10.1.0.6:8080"];
    assert_eq!(may_stay("UDP", &endpoints), ends(&serving));
    assert_eq!(may_stay("UDP", &endpoints[3..5]), ends(&["10.1.0.4:8080", "10.1.0.5:8080"]));
    assert_eq!(may_stay("UDP", &[]), []);
    assert_eq!(may_stay("TCP", &endpoints), []);
}

#[test]
fn services_without_address_have_no_path_and_ports_are_ordered() {
    let headless = json!({"clusterIP": "None", "ports": [{"port": 80}]});
    assert_eq!(DataPath::of(&catalog(headless, &[("10.1.0.1", NODE, READY)]), NODE).ports, []);
    let name = json!({"type": "ExternalName", "externalName": "a.example"});
    assert_eq!(DataPath::of(&catalog(name, &[]), NODE).ports, []);
    let two =
        json!({"clusterIPs": ["10.0.0.1"], "ports": [{"name": "b", "port": 9}, {"name": "a", "port": 80}]});
    let path = DataPath::of(&catalog(two, &[]), NODE);
    let ids: Vec<&str> = path.ports.iter().map(|port| &*port.id).collect();
    assert_eq!(ids, ["default/web:80/TCP/IPv4", "default/web:9/TCP/IPv4"]);
}

#[test]
fn an_address_that_is_in_two_slices_is_one_endpoint() {
    let mut catalog = catalog(node_port("Cluster", "Cluster"), &[("10.1.0.1", NODE, UNREADY)]);
    let entry = catalog.services.values_mut().next().expect("one Service");
    let mut copy = entry.slices[0].clone();
    copy.endpoints[0].conditions = Conditions { ready: true, serving: true, terminating: false };
    entry.slices.push(copy);
    assert_eq!(DataPath::of(&catalog, NODE).ports[0].everywhere, ends(&["10.1.0.1:8080"]));
}
