use serde_json::json;

use super::*;

fn service(name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": "shop", "annotations": { "a": "b" } },
        "spec": {
            "type": "ClusterIP", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "selector": { "app": "web" },
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
            "ports": [{ "port": port, "protocol": "TCP", "targetPort": 80, "appProtocol": "http" }],
        },
        "status": { "loadBalancer": {} },
    })
}

fn slice(name: &str, service: &str, ips: &[&str]) -> Value {
    let endpoints: Vec<Value> = ips
        .iter()
        .map(|ip| {
            json!({
                "addresses": [ip], "conditions": { "ready": true, "serving": true, "terminating": false },
                "nodeName": if ip.ends_with('1') { "board" } else { "other" }, "hostname": "h",
                "targetRef": { "kind": "Pod", "name": "p", "uid": "u" },
            })
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": name, "namespace": "shop", "labels": { SERVICE_NAME: service } },
        "endpoints": endpoints, "ports": [{ "name": "", "port": 80, "protocol": "TCP" }],
    })
}

/// Each Service with its port and the addresses of its endpoints; then the counts.
fn shown(services: &ClusterServices) -> String {
    let mut text = String::new();
    for entry in services.catalog.services.values() {
        let ips =
            entry.slices.iter().flat_map(|slice| &slice.endpoints).map(|one| one.addresses[0].to_string());
        let ips: Vec<String> = ips.collect();
        text += &format!("{}:{} {}; ", entry.service.name, entry.service.ports[0].port, ips.join(","));
    }
    text + &format!("{} {}", services.ports, services.endpoints)
}

fn see(services: &mut ClusterServices, resource: Resource, object: &Value) {
    services.see(resource, object, true).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn services_and_slices_come_together_in_any_order_and_changes_without_effect_are_none() {
    use Resource::{EndpointSlices, Services};

    let mut all = ClusterServices::new("board");
    see(&mut all, EndpointSlices, &slice("web-1", "web", &["10.0.0.1", "10.0.0.2"]));
    assert_eq!(shown(&all), "0 3");
    see(&mut all, Services, &service("web", 80));
    assert_eq!(shown(&all), "web:80 10.0.0.1,10.0.0.2; 2 3");
    let endpoints = &all.catalog.services.values().next().expect("web").slices[0].endpoints;
    assert_eq!((endpoints[0].node.as_deref(), endpoints[1].node.as_deref()), (Some("board"), None));
    assert_eq!((&endpoints[0].pod, &endpoints[0].hostname), (&None, &None));
    assert!(all.take_change() && !all.take_change());

    let mut annotated = service("web", 80);
    annotated["metadata"]["annotations"] = json!({ "other": "1" });
    annotated["spec"]["selector"] = json!({ "other": "1" });
    see(&mut all, Services, &annotated);
    see(&mut all, EndpointSlices, &slice("web-1", "web", &["10.0.0.1", "10.0.0.2"]));
    assert!(!all.take_change());

    see(&mut all, Services, &service("web", 81));
    see(&mut all, EndpointSlices, &slice("web-1", "web", &["10.0.0.1"]));
    see(&mut all, EndpointSlices, &slice("web-2", "web", &["10.0.0.3"]));
    assert_eq!(shown(&all), "web:81 10.0.0.1,10.0.0.3; 2 4");
    assert!(all.take_change());
    // The slices outlive their Service, which may come back.
    all.forget(Services, &service("web", 81));
    assert_eq!(shown(&all), "0 4");
    see(&mut all, Services, &service("web", 82));
    assert_eq!(shown(&all), "web:82 10.0.0.1,10.0.0.3; 2 4");
    all.forget(EndpointSlices, &slice("web-1", "web", &[]));
    assert_eq!(shown(&all), "web:82 10.0.0.3; 2 2");
    // A slice of another Service by now.
    see(&mut all, EndpointSlices, &slice("web-2", "db", &["10.0.0.3"]));
    assert_eq!(shown(&all), "web:82 ; 2 2");
    see(&mut all, Services, &service("db", 1));
    assert_eq!(shown(&all), "db:1 10.0.0.3; web:82 ; 4 2");
    // The label is gone with the slice.
    let mut unlabelled = slice("web-2", "db", &[]);
    unlabelled["metadata"]["labels"] = json!({});
    all.forget(EndpointSlices, &unlabelled);
    assert_eq!(shown(&all), "db:1 ; web:82 ; 4 0");
    assert!(all.waiting.is_empty());
}

#[test]
fn a_refusal_names_the_binding_that_the_administrator_makes() {
    let of = |user: &str| refusal(&format!("x is forbidden: User \"{user}\" cannot list resource \"y\""));
    let begin = "kubectl create clusterrolebinding node-proxier-";
    for (user, expected) in [
        (
            "system:node:b-1",
            "b-1 --clusterrole=system:node-proxier --user=system:node:b-1`, or with --group=system:nodes",
        ),
        (
            "system:serviceaccount:kube-system:p",
            "p --clusterrole=system:node-proxier --serviceaccount=kube-system:p`",
        ),
        ("ann@example", "ann@example --clusterrole=system:node-proxier --user=ann@example`"),
        ("x; rm", "USER --clusterrole=system:node-proxier --user=USER`"),
    ] {
        assert!(of(user).contains(&format!("{begin}{expected}")), "{}", of(user));
    }
    assert!(refusal("no").contains("--user=USER"));
}

#[test]
fn only_a_complete_list_shows_that_objects_are_gone() {
    let mut all = ClusterServices::new("board");
    for name in ["a", "b"] {
        see(&mut all, Resource::Services, &service(name, 1));
        see(&mut all, Resource::EndpointSlices, &slice(&format!("{name}-1"), name, &["10.0.0.1"]));
    }
    all.take_change();
    let (mut services, mut slices) = (Listed::default(), Listed::default());
    all.list(Resource::Services, &service("b", 1), &mut services).expect("it is valid");
    all.list(Resource::EndpointSlices, &slice("b-1", "b", &["10.0.0.1"]), &mut slices).expect("it is valid");
    assert!(!all.take_change());
    all.keep(Resource::Services, &services);
    assert_eq!(shown(&all), "b:1 10.0.0.1; 2 4");
    all.keep(Resource::EndpointSlices, &slices);
    assert_eq!(shown(&all), "b:1 10.0.0.1; 2 2");
    assert!(all.take_change());
    // The slice is one of another Service by now.
    let mut slices = Listed::default();
    all.list(Resource::EndpointSlices, &slice("b-1", "a", &["10.0.0.1"]), &mut slices).expect("it is valid");
    all.keep(Resource::EndpointSlices, &slices);
    assert_eq!(shown(&all), "b:1 ; 2 2");
}

#[test]
fn what_no_proxy_serves_takes_nothing() {
    let mut all = ClusterServices::new("board");
    for (pointer, value) in [
        ("/spec/clusterIPs", json!(["None"])),
        ("/spec/type", json!("ExternalName")),
        ("/spec/clusterIPs", json!([])),
    ] {
        see(&mut all, Resource::Services, &service("web", 80));
        let mut other = service("web", 80);
        other["spec"]["clusterIP"] = if pointer == "/spec/clusterIPs" { "None".into() } else { "".into() };
        *other.pointer_mut(pointer).expect(pointer) = value;
        // Whether it is refused or passed over, nothing remains of it.
        let _ = all.see(Resource::Services, &other, true);
        assert_eq!(shown(&all), "0 0", "{pointer}");
    }
    let mut names = slice("web-1", "web", &[]);
    names["addressType"] = "FQDN".into();
    see(&mut all, Resource::EndpointSlices, &names);
    assert_eq!(shown(&all), "0 0");
}

#[test]
fn objects_beyond_the_bounds_are_named_and_ignored() {
    let mut all = ClusterServices::new("board");
    let ips: Vec<String> = (0..999).map(|number| format!("10.1.{}.{}", number / 250, number % 250)).collect();
    let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
    for number in 0..MAX_ENDPOINTS / 1000 {
        see(&mut all, Resource::EndpointSlices, &slice(&format!("s{number}"), "web", &ips));
    }
    let why = all.see(Resource::EndpointSlices, &slice("more", "web", &[]), false).expect_err("too many");
    assert!(why.to_string().starts_with("EndpointSlice shop/more: ignored"), "{why}");
    assert_eq!(all.endpoints, MAX_ENDPOINTS);
    // One that is known may change, and become less.
    see(&mut all, Resource::EndpointSlices, &slice("s0", "web", &ips[..10]));
    see(&mut all, Resource::EndpointSlices, &slice("more", "web", &ips[..10]));
    let mut large = service("web", 80);
    large["spec"]["ports"] = (0..MAX_PORTS).map(|_| json!({ "port": 1, "protocol": "TCP" })).collect();
    assert!(all.see(Resource::Services, &large, false).is_err());
    assert!(all.catalog.services.is_empty());
}

#[test]
fn the_product_of_ports_and_endpoints_has_a_bound_whatever_comes_first() {
    let ips: Vec<String> = (0..999).map(|number| format!("10.1.{}.{}", number / 250, number % 250)).collect();
    let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
    let mut wide = service("wide", 80);
    wide["spec"]["ports"] =
        (1..=100).map(|port| json!({ "port": port, "protocol": "TCP", "name": port.to_string() })).collect();
    let mut narrow = wide.clone();
    narrow["spec"]["ports"].as_array_mut().expect("ports").truncate(50);
    let mut all = ClusterServices::new("board");
    see(&mut all, Resource::Services, &wide);
    for number in 0..MAX_TARGETS / 99_900 {
        see(&mut all, Resource::EndpointSlices, &slice(&format!("s{number}"), "wide", &ips));
    }
    assert_eq!(all.targets, 199_800);
    let more = slice("more", "wide", &ips);
    let why = all.see(Resource::EndpointSlices, &more, false).expect_err("too many");
    assert!(why.to_string().starts_with("EndpointSlice shop/more: ignored"), "{why}");
    assert_eq!((all.targets, all.endpoints), (199_800, 2000));
    // Others go on, and it comes in when there is room.
    see(&mut all, Resource::Services, &service("web", 80));
    see(&mut all, Resource::EndpointSlices, &slice("web-1", "web", &["10.0.0.1", "10.0.0.2"]));
    assert_eq!(all.targets, 199_802);
    see(&mut all, Resource::Services, &narrow);
    see(&mut all, Resource::EndpointSlices, &more);
    assert_eq!(all.targets, 2 + 50 * 999 * 3);
    // The Service of before would have too many now; nothing remains of it until it is narrow again.
    let why = all.see(Resource::Services, &wide, true).expect_err("too many");
    assert!(why.to_string().starts_with("Service shop/wide: ignored"), "{why}");
    assert_eq!(all.targets, 2);
    see(&mut all, Resource::Services, &narrow);
    see(&mut all, Resource::EndpointSlices, &slice("more", "web", &ips[..3]));
    assert_eq!(all.targets, 5 + 50 * 999 * 2);
    all.keep(Resource::EndpointSlices, &Listed::default());
    assert_eq!((all.targets, all.endpoints), (0, 0));
}

#[test]
fn of_an_object_that_is_too_large_nothing_remains_but_the_message() {
    let mut all = ClusterServices::new("board");
    see(&mut all, Resource::Services, &service("web", 80));
    see(&mut all, Resource::EndpointSlices, &slice("web-1", "web", &["10.0.0.1"]));
    // Its label is not read.
    let metadata = json!({ "metadata": { "namespace": "shop", "name": "web-1" } });
    let why = all.ignore_large(Resource::EndpointSlices, &metadata);
    assert_eq!(why.to_string(), "EndpointSlice shop/web-1: ignored, since it has more than 50000 values");
    assert_eq!(shown(&all), "web:80 ; 2 0");
}

#[test]
fn an_object_that_is_not_what_it_must_be_is_named_and_ends_its_earlier_state() {
    let mut all = ClusterServices::new("board");
    see(&mut all, Resource::Services, &service("web", 80));
    let mut wrong = service("web", 80);
    wrong["spec"]["clusterIPs"] = json!(["x"]);
    let why = all.see(Resource::Services, &wrong, true).expect_err("no address");
    assert!(why.to_string().starts_with("Service shop/web: "), "{why}");
    assert_eq!(shown(&all), "0 0");
}
