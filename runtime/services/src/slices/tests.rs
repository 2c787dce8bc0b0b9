use serde_json::{Value, json};

use super::*;

fn service(spec: Value) -> Service {
    let object = json!({"metadata": {"namespace": "default", "name": "web"}, "spec": spec});
    Service::parse(&object).expect("it is valid")
}

fn pod(name: &str, address: &str) -> PodEndpoint {
    PodEndpoint {
        namespace: "default".into(),
        name: name.into(),
        uid: format!("uid-{name}").into(),
        labels: BTreeMap::from([("app".into(), "web".into())]),
        addresses: vec![address.parse().expect("an address")],
        is_ready: true,
        is_terminating: false,
        has_ended: false,
        hostname: Some(name.into()),
        subdomain: None,
        node: "board".into(),
        ports: vec![("http".into(), Protocol::Tcp, 8080)],
    }
}

fn web() -> Service {
    service(json!({
        "clusterIP": "10.0.0.1", "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}],
    }))
}

/// The names of the endpoints' pods of each slice.
fn names(slices: &[EndpointSlice]) -> Vec<Vec<&str>> {
    let mut all = Vec::new();
    for slice in slices {
        let pods = slice.endpoints.iter().filter_map(|endpoint| endpoint.pod.as_ref());
        all.push(pods.map(|(name, _)| &**name).collect());
    }
    all
}

#[test]
fn the_endpoints_of_a_service_are_the_pods_with_its_labels() {
    let mut other = pod("other", "10.1.0.3");
    other.labels = BTreeMap::from([("app".into(), "db".into())]);
    let elsewhere = PodEndpoint { namespace: "kube-system".into(), ..pod("elsewhere", "10.1.0.4") };
    let ended = PodEndpoint { has_ended: true, ..pod("ended", "10.1.0.5") };
    let homeless = PodEndpoint { addresses: Vec::new(), ..pod("homeless", "10.1.0.6") };
    let pods = [pod("b", "10.1.0.2"), pod("a", "10.1.0.1"), other, elsewhere, ended, homeless];
    let slices = slices_of(&web(), &pods);
    assert_eq!(names(&slices), [["a", "b"]]);
    let [slice] = &slices[..] else { panic!("one slice") };
    assert_eq!((&*slice.service, slice.family), ("web", Some(Family::V4)));
    assert_eq!((&*slice.ports[0].name, slice.ports[0].port), ("", Some(8080)));
    assert_eq!(slice.endpoints[0].node.as_deref(), Some("board"));
    assert!(slice.name.starts_with("web-") && slice.name.len() == 9, "{}", slice.name);
}

#[test]
fn conditions_follow_readiness_and_termination() {
    let of = |publishes_not_ready: bool, is_ready: bool, is_terminating: bool| {
        let service = Service { publishes_not_ready, ..web() };
        let slices = slices_of(&service, &[PodEndpoint { is_ready, is_terminating, ..pod("a", "10.1.0.1") }]);
        let Conditions { ready, serving, terminating } = slices[0].endpoints[0].conditions;
        (ready, serving, terminating)
    };
    assert_eq!(of(false, true, false), (true, true, false));
    assert_eq!(of(false, false, false), (false, false, false));
    assert_eq!(of(false, true, true), (false, true, true));
    assert_eq!(of(true, false, true), (true, false, true));
}

#[test]
fn pods_whose_named_port_has_another_number_have_a_slice_of_their_own() {
    let other = PodEndpoint { ports: vec![("http".into(), Protocol::Tcp, 9090)], ..pod("other", "10.1.0.3") };
    let none = PodEndpoint { ports: vec![("http".into(), Protocol::Udp, 8080)], ..pod("none", "10.1.0.4") };
    let slices = slices_of(&web(), &[pod("a", "10.1.0.1"), other, none]);
    let ports: Vec<Option<u16>> =
        slices.iter().map(|slice| slice.ports.first().and_then(|port| port.port)).collect();
    assert_eq!(names(&slices), [["none"], ["a"], ["other"]]);
    assert_eq!(ports, [None, Some(8080), Some(9090)]);
    let names: std::collections::BTreeSet<&str> = slices.iter().map(|slice| &*slice.name).collect();
    assert_eq!(names.len(), 3);
}

#[test]
fn each_family_has_slices_and_a_service_without_pods_has_an_empty_one() {
    let both = service(json!({
        "clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"], "selector": {"app": "web"},
        "ports": [{"port": 80}],
    }));
    let mut dual = pod("a", "10.1.0.1");
    dual.addresses.push("fd01::1".parse().expect("an address"));
    let slices = slices_of(&both, &[dual, pod("b", "10.1.0.2")]);
    assert_eq!(names(&slices), [vec!["a", "b"], vec!["a"]]);
    assert_eq!(slices[1].endpoints[0].addresses, ["fd01::1".parse::<IpAddr>().expect("an address")]);
    let empty = slices_of(&both, &[]);
    assert_eq!(names(&empty), [[""; 0], [""; 0]]);
    let keeps_names = slices.iter().zip(&empty).all(|(slice, empty)| slice.name == empty.name);
    assert!(keeps_names && empty[0].ports.is_empty());
    assert_eq!(slices_of(&Service { selector: BTreeMap::new(), ..both }, &[pod("a", "10.1.0.1")]), []);
}

#[test]
fn only_a_pod_with_the_service_as_subdomain_has_its_host_name_in_the_slice() {
    let with = PodEndpoint { subdomain: Some("web".into()), ..pod("a", "10.1.0.1") };
    let other = PodEndpoint { subdomain: Some("db".into()), ..pod("b", "10.1.0.2") };
    let slices = slices_of(&web(), &[with, other]);
    let hostnames: Vec<Option<&str>> =
        slices[0].endpoints.iter().map(|endpoint| endpoint.hostname.as_deref()).collect();
    assert_eq!(hostnames, [Some("a"), None]);
}

#[test]
fn a_slice_has_at_most_a_hundred_endpoints() {
    let pods: Vec<PodEndpoint> =
        (0..=MAX_ENDPOINTS).map(|place| pod(&format!("p{place:03}"), &format!("10.1.{}.1", place))).collect();
    let slices = slices_of(&web(), &pods);
    let counts: Vec<usize> = slices.iter().map(|slice| slice.endpoints.len()).collect();
    assert_eq!(counts, [MAX_ENDPOINTS, 1]);
    // The names of slices are the same for the next agent.
    assert_eq!(slices, slices_of(&web(), &pods));
    let long = Service { name: "n".repeat(63).into(), ..web() };
    assert!(slices_of(&long, &pods).iter().all(|slice| slice.name.len() <= 63));
}
