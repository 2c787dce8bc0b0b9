use nodlet_fuzz::{Random, assert_ends_with};
use serde_json::json;

use super::*;
use crate::service::Service;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn served() -> Allocations {
    let mut allocations = Allocations::default();
    allocations.serve(&[(ip("10.0.0.0"), 24), (ip("fd00::"), 112)], NODE_PORTS);
    allocations
}

fn name(name: &str) -> ServiceName {
    ("default".into(), name.into())
}

/// A client's whole way: the new version adopts fields of the held ones, and is completed.
fn apply(allocations: &mut Allocations, service: &str, mut spec: Value) -> Result<Value, AllocationError> {
    if spec["type"].is_null() {
        spec["type"] = "ClusterIP".into();
    }
    let name = name(service);
    let old = allocations.held(&name).map(|held| json!({"spec": held}));
    let mut object = json!({"spec": spec});
    adopt(old.as_ref(), &mut object);
    allocations.complete(&name, old.as_ref(), &mut object)?;
    Ok(object["spec"].take())
}

fn refused(allocations: &mut Allocations, service: &str, spec: Value) -> String {
    let before = allocations.clone().held;
    let refused = apply(allocations, service, spec).expect_err("it cannot be allocated").to_string();
    assert_eq!(allocations.held, before, "an error changes nothing");
    refused
}

#[test]
fn each_service_has_an_address_of_its_own_behind_the_latest_one() {
    let mut all = served();
    let first = apply(&mut all, "a", json!({})).expect("there is room");
    // Sixteen addresses are for requests.
    assert_eq!(first["clusterIPs"], json!(["10.0.0.17"]));
    assert_eq!((&first["clusterIP"], &first["ipFamilyPolicy"]), (&json!("10.0.0.17"), &json!("SingleStack")));
    assert_eq!(apply(&mut all, "b", json!({})).expect("there is room")["clusterIP"], "10.0.0.18");
    // An applied manifest without address keeps it.
    assert_eq!(apply(&mut all, "a", json!({})).expect("it has one")["clusterIP"], "10.0.0.17");
    all.retain(|name| &*name.1 != "a");
    assert_eq!(apply(&mut all, "c", json!({})).expect("there is room")["clusterIP"], "10.0.0.19");
}

#[test]
fn a_released_address_is_used_again_when_no_other_is_free() {
    let mut all = Allocations::default();
    all.serve(&[(ip("10.0.0.0"), 29)], NODE_PORTS);
    let mut given = Vec::new();
    for place in 0..6 {
        let spec = apply(&mut all, &place.to_string(), json!({})).expect("there is room");
        given.push(spec["clusterIP"].as_str().expect("an address").to_owned());
    }
    assert_eq!(given, ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
    assert_eq!(refused(&mut all, "x", json!({})), "failed to allocate a serviceIP: range is full");
    all.retain(|name| &*name.1 != "2");
    assert_eq!(apply(&mut all, "x", json!({})).expect("there is room")["clusterIP"], "10.0.0.3");
}

#[test]
fn a_requested_address_must_be_free_and_in_range() {
    let mut all = served();
    let spec = apply(&mut all, "a", json!({"clusterIP": "10.0.0.9"})).expect("it is free");
    assert_eq!(spec["clusterIPs"], json!(["10.0.0.9"]));
    let taken = refused(&mut all, "b", json!({"clusterIP": "10.0.0.9"}));
    assert_ends_with(
        &taken,
        "spec.clusterIPs: Invalid value: [\"10.0.0.9\"]: failed to allocate IP 10.0.0.9: provided IP is already allocated",
    );
    for outside in ["10.0.1.1", "10.0.0.0", "10.0.0.255"] {
        let text = refused(&mut all, "b", json!({"clusterIP": outside}));
        assert_ends_with(
            &text,
            format!(
                "the provided IP ({outside}) is not in the valid range. The range of valid IPs is 10.0.0.0/24"
            ),
        );
    }
}

#[test]
fn families_follow_their_policy() {
    let mut all = served();
    let both = apply(&mut all, "a", json!({"ipFamilyPolicy": "PreferDualStack"})).expect("there is room");
    assert_eq!(both["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(both["clusterIPs"], json!(["10.0.0.17", "fd00::101"]));
    let six = apply(&mut all, "b", json!({"ipFamilies": ["IPv6"]})).expect("there is room");
    assert_eq!((&six["ipFamilies"], &six["clusterIP"]), (&json!(["IPv6"]), &json!("fd00::102")));
    // Upgrade and downgrade.
    let upgraded =
        apply(&mut all, "b", json!({"ipFamilyPolicy": "RequireDualStack"})).expect("there is room");
    assert_eq!(upgraded["clusterIPs"], json!(["fd00::102", "10.0.0.18"]));
    let single = apply(&mut all, "b", json!({"ipFamilyPolicy": "SingleStack"})).expect("it has less");
    assert_eq!(single["clusterIPs"], json!(["fd00::102"]));
    assert_eq!(all.held(&name("b")).expect("it holds one")["clusterIPs"], json!(["fd00::102"]));
    let text =
        refused(&mut all, "c", json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4", "IPv6"]}));
    assert_ends_with(
        &text,
        "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
    );

    let mut four = Allocations::default();
    four.serve(&[(ip("10.0.0.0"), 24)], NODE_PORTS);
    assert_eq!(
        apply(&mut four, "a", json!({"ipFamilyPolicy": "PreferDualStack"})).expect("one")["ipFamilies"],
        json!(["IPv4"])
    );
    let text = refused(&mut four, "b", json!({"ipFamilyPolicy": "RequireDualStack"}));
    let expected = "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services";
    assert_ends_with(&text, expected);
    let text = refused(&mut four, "b", json!({"ipFamilies": ["IPv6"]}));
    assert_ends_with(&text, "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster");
    // A headless Service without selector has both, whatever is served.
    let open = apply(&mut four, "b", json!({"clusterIP": "None"})).expect("it needs nothing");
    assert_eq!(
        (&open["ipFamilies"], &open["ipFamilyPolicy"]),
        (&json!(["IPv4", "IPv6"]), &json!("RequireDualStack"))
    );
    let headless = apply(&mut four, "c", json!({"clusterIP": "None", "selector": {"a": "b"}}))
        .expect("it needs nothing");
    assert_eq!((&headless["ipFamilies"], &headless["clusterIPs"]), (&json!(["IPv4"]), &json!(["None"])));
    assert!(four.held(&name("c")).is_none());
}

#[test]
fn node_ports_are_allocated_kept_and_released_with_the_type() {
    let mut all = served();
    let ports = |spec: &Value| {
        list(spec, "ports")
            .iter()
            .map(|port| port["nodePort"].as_u64().unwrap_or_default())
            .collect::<Vec<u64>>()
    };
    let dns = json!({"type": "NodePort", "ports": [
        {"name": "udp", "port": 53, "protocol": "UDP"}, {"name": "tcp", "port": 53, "protocol": "TCP"},
        {"name": "web", "port": 80, "protocol": "TCP"},
    ]});
    let given = apply(&mut all, "a", dns.clone()).expect("there is room");
    // Eighty-six ports are for requests; one number serves TCP and UDP of a port.
    assert_eq!(ports(&given), [30086, 30086, 30087]);
    assert_eq!(ports(&apply(&mut all, "a", dns).expect("it has them")), [30086, 30086, 30087]);
    let requested = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30087}]});
    let text = refused(&mut all, "b", requested.clone());
    let expected = "spec.ports[0].nodePort: Invalid value: 30087: provided port is already allocated: Service default/a has it";
    assert_ends_with(&text, expected);
    let text = refused(&mut all, "b", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]}));
    assert_ends_with(
        &text,
        "provided port is not in the valid range. The range of valid ports is 30000-32767",
    );
    let inner =
        apply(&mut all, "a", json!({"ports": [{"name": "web", "port": 80}]})).expect("it has an address");
    assert_eq!(ports(&inner), [0]);
    assert_eq!(ports(&apply(&mut all, "b", requested).expect("it is free now")), [30087]);
    let name_only = apply(&mut all, "a", json!({"type": "ExternalName", "externalName": "a.example"}));
    assert_eq!(name_only.expect("it needs nothing")["clusterIP"], Value::Null);
    assert!(all.held(&name("a")).is_none());
}

#[test]
fn a_load_balancer_has_the_ports_that_it_needs() {
    let mut all = served();
    let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]});
    let local = apply(&mut all, "a", spec.clone()).expect("there is room");
    assert_eq!(
        (&local["ports"][0]["nodePort"], &local["healthCheckNodePort"]),
        (&json!(30086), &json!(30087))
    );
    assert_eq!(apply(&mut all, "a", spec).expect("it has them")["healthCheckNodePort"], 30087);
    assert_eq!(all.node_port_holder(30087), Some(&name("a")));
    // A process of the board may listen there for the Service: the port is reserved, and still the Service's own.
    let holder = "a process of the board".into();
    all.reserve(vec![ReservedPort { port: 30087, protocol: Protocol::Tcp, holder }]);
    assert_eq!(apply(&mut all, "a", local).expect("it has it")["healthCheckNodePort"], 30087);
    all.reserve(Vec::new());
    let without =
        json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [{"port": 80}]});
    assert_eq!(apply(&mut all, "b", without).expect("there is room")["ports"][0]["nodePort"], Value::Null);
}

#[test]
fn a_port_of_the_board_is_never_allocated() {
    let mut all = served();
    let reserved = |port, holder: &str| ReservedPort { port, protocol: Protocol::Tcp, holder: holder.into() };
    assert!(all.reserve(vec![
        reserved(30086, "a process of the board"),
        reserved(30010, "the hostPort of pod default/web")
    ]));
    let given =
        apply(&mut all, "a", json!({"type": "NodePort", "ports": [{"port": 80}]})).expect("there is room");
    assert_eq!(given["ports"][0]["nodePort"], 30087);
    let text =
        refused(&mut all, "b", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30010}]}));
    assert_ends_with(&text, "provided port is already allocated: the hostPort of pod default/web has it");
    let udp = json!({"type": "NodePort", "ports": [{"port": 80, "protocol": "UDP", "nodePort": 30010}]});
    assert!(apply(&mut all, "b", udp).is_ok(), "another protocol is another port");
}

#[test]
fn allocations_and_the_latest_position_survive_a_reboot() {
    let mut all = served();
    assert!(all.unsaved().is_none());
    apply(&mut all, "a", json!({"type": "NodePort", "ports": [{"name": "web", "port": 80}]}))
        .expect("there is room");
    apply(&mut all, "b", json!({})).expect("there is room");
    all.retain(|name| &*name.1 == "a");
    let saved = all.unsaved().expect("they have changed");
    assert!(all.unsaved().is_none(), "they have not changed since");
    let mut next = served();
    next.restore(&saved).expect("they are what was saved");
    assert_eq!(next.held, all.held);
    let again = apply(&mut next, "a", json!({"type": "NodePort", "ports": [{"name": "web", "port": 80}]}))
        .expect("it has them");
    assert_eq!((&again["clusterIP"], &again["ports"][0]["nodePort"]), (&json!("10.0.0.17"), &json!(30086)));
    assert!(next.unsaved().is_none(), "nothing new was allocated");
    assert_eq!(apply(&mut next, "c", json!({})).expect("there is room")["clusterIP"], "10.0.0.19");
    assert!(saved.len() < 400, "{}", String::from_utf8_lossy(&saved));
    assert!(next.restore(b"{").is_err() && next.restore(b"{\"version\":2}").is_err());
}

#[test]
fn an_address_of_a_range_that_is_no_longer_served_is_replaced() {
    let mut all = served();
    let spec = apply(&mut all, "a", json!({})).expect("there is room");
    all.serve(&[(ip("10.9.0.0"), 24)], NODE_PORTS);
    let mut object = json!({"spec": spec});
    all.remove_strange_addresses(&mut object);
    assert_eq!(object["spec"]["clusterIP"], Value::Null);
    // A file names no address, and adopts what is held.
    let mut old = all.held(&name("a")).map(|held| json!({"spec": held}));
    old.iter_mut().for_each(|old| all.remove_strange_addresses(old));
    adopt(old.as_ref(), &mut object);
    all.complete(&name("a"), old.as_ref(), &mut object).expect("there is room");
    assert_eq!(
        (&object["spec"]["clusterIP"], &object["spec"]["ipFamilies"]),
        (&json!("10.9.0.17"), &json!(["IPv4"]))
    );
    let mut before = object.clone();
    all.remove_strange_addresses(&mut before);
    assert_eq!(before, object);
}

#[test]
fn the_number_of_services_is_bounded_and_without_ranges_there_are_none() {
    let mut all = Allocations::default();
    assert_eq!(refused(&mut all, "a", json!({})), "this agent was started without Services");
    all.serve(&[(ip("10.0.0.0"), 16)], NODE_PORTS);
    let mut held = all.clone();
    held.held =
        (0..MAX_SERVICES).map(|place| (name(&place.to_string()), json!({"clusterIPs": []}))).collect();
    assert_eq!(refused(&mut held, "x", json!({})), "exceeded quota: a board can have at most 1000 Services");
    assert!(apply(&mut held, "7", json!({})).is_ok(), "an existing Service can change");
}

#[test]
fn random_services_never_share_an_address_or_a_port() {
    let mut random = Random::of(7);
    let mut random = |below: usize| random.below(below);
    let mut all = Allocations::default();
    all.serve(&[(ip("10.0.0.0"), 27), (ip("fd00::"), 124)], 30_000..=30_019);
    for _ in 0..3000 {
        let service = random(24).to_string();
        let spec = match random(6) {
            0 => json!({"type": "ExternalName"}),
            1 => json!({"clusterIP": "None"}),
            2 => json!({"ipFamilyPolicy": "PreferDualStack"}),
            3 => json!({"clusterIP": format!("10.0.0.{}", random(40))}),
            4 => json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_000 + random(25)}]}),
            _ => json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]}),
        };
        if random(4) == 0 {
            all.retain(|name| *name.1 != *service);
        } else {
            drop(apply(&mut all, &service, spec));
        }
        let ips: Vec<IpAddr> = all.held.values().flat_map(addresses).collect();
        assert_eq!(ips.iter().collect::<BTreeSet<_>>().len(), ips.len(), "{:?}", all.held);
        let ports: Vec<u16> = all.held.values().flat_map(node_ports).collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), ports.len(), "{:?}", all.held);
    }
}

#[test]
fn objects_with_values_of_any_type_neither_panic_nor_change_what_others_hold() {
    const FIELDS: [&str; 11] = [
        "type",
        "clusterIP",
        "clusterIPs",
        "ipFamilies",
        "ipFamilyPolicy",
        "ports",
        "healthCheckNodePort",
        "externalTrafficPolicy",
        "selector",
        "allocateLoadBalancerNodePorts",
        "externalIPs",
    ];
    let values = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(30_100),
        json!(1e300),
        json!(""),
        json!("None"),
        json!("fd00::9"),
        json!("LoadBalancer"),
        json!("Local"),
        json!("ExternalName"),
        json!("PreferDualStack"),
        json!([]),
        json!([null]),
        json!(["None", 7]),
        json!(["IPv6", "IPv4", "IPv4"]),
        json!({}),
        json!({"nodePort": 30_100}),
        json!([{"port": 1, "nodePort": 30_100}, 5, {"name": 3, "nodePort": "x"}]),
        json!([["10.0.0.9"]]),
    ];
    let mut random = Random::of(3);
    let mut all = served();
    let other =
        apply(&mut all, "other", json!({"type": "NodePort", "ports": [{"port": 1}]})).expect("there is room");
    for _ in 0..4_000 {
        let mut spec = json!({"type": "ClusterIP"});
        for _ in 0..=random.below(4) {
            spec[*random.pick(&FIELDS)] = random.pick(&values).clone();
        }
        let mut object = json!({"metadata": {"namespace": "a", "name": "b"}, "spec": spec});
        drop(Service::parse(&object));
        let old = all.held(&name("b")).map(|held| json!({"spec": held}));
        adopt(old.as_ref(), &mut object);
        drop(all.complete(&name("b"), old.as_ref(), &mut object));
        assert_eq!(all.held(&name("other")).expect("it has")["clusterIP"], other["clusterIP"]);
    }
    let not_objects = [json!(null), json!([]), json!({"spec": 7}), json!({"spec": []})];
    for mut object in not_objects {
        adopt(Some(&json!({"spec": other})), &mut object);
        assert!(Service::parse(&object).is_err());
    }
}
