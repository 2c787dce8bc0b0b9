use nodlet_fuzz::cases;
use serde_json::json;

use super::*;

#[test]
fn a_complete_service_is_read() {
    let service = Service::parse(&json!({
        "metadata": {"namespace": "default", "name": "web"},
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7"],
            "ipFamilies": ["IPv4", "IPv6"], "selector": {"app": "web"}, "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}, "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster", "externalIPs": ["192.168.1.9"], "publishNotReadyAddresses": true,
            "ports": [
                {"name": "http", "port": 80, "targetPort": "web", "nodePort": 30080, "appProtocol": "http"},
                {"name": "dns", "port": 53, "protocol": "UDP"},
            ],
        },
        "status": {"loadBalancer": {"ingress": [
            {"ip": "192.168.1.2", "ipMode": "VIP"}, {"ip": "192.168.1.3", "ipMode": "Proxy"}, {"ip": "192.168.1.9"},
        ]}},
    }));
    let service = service.expect("it is valid");
    let addresses =
        |texts: &[&str]| texts.iter().map(|text| text.parse().expect("an address")).collect::<Vec<IpAddr>>();
    assert_eq!(service.kind, ServiceType::LoadBalancer);
    assert_eq!(service.cluster_ips, addresses(&["10.0.0.7", "fd00::7"]));
    assert_eq!(service.families, [Family::V4, Family::V6]);
    assert_eq!(service.external_ips, addresses(&["192.168.1.9", "192.168.1.2"]));
    assert_eq!(service.affinity_seconds, Some(60));
    assert_eq!(
        (service.internal_policy, service.external_policy),
        (TrafficPolicy::Cluster, TrafficPolicy::Local)
    );
    assert!(service.publishes_not_ready && !service.is_headless);
    assert_eq!(service.ports[0].target, Target::Name("web".into()));
    assert_eq!(service.ports[0].node_port, Some(30080));
    assert_eq!((service.ports[1].protocol, &service.ports[1].target), (Protocol::Udp, &Target::Number(53)));
}

#[test]
fn headless_services_and_external_names_have_no_addresses() {
    let parse = |spec: serde_json::Value| {
        Service::parse(&json!({"metadata": {"namespace": "a", "name": "b"}, "spec": spec}))
            .expect("it is valid")
    };
    let headless = parse(json!({"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv6"]}));
    assert!(headless.is_headless && headless.cluster_ips.is_empty());
    assert_eq!(headless.families, [Family::V6]);
    let name =
        parse(json!({"type": "ExternalName", "externalName": "db.example.com", "selector": {"a": "b"}}));
    assert_eq!(name.external_name.as_deref(), Some("db.example.com"));
    assert!(name.cluster_ips.is_empty() && name.families.is_empty() && name.selector.is_empty());
    // As an object of an old server.
    let old = parse(
        json!({"clusterIP": "fd00::1", "ports": [{"port": 1, "targetPort": 0}], "sessionAffinity": "ClientIP"}),
    );
    assert_eq!((old.families, old.affinity_seconds), (vec![Family::V6], Some(10_800)));
}

#[test]
fn a_slice_is_read_with_the_defaults_of_its_conditions() {
    let slice = EndpointSlice::parse(&json!({
        "metadata": {"namespace": "default", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}, {"name": "all", "protocol": "UDP"}],
        "endpoints": [
            {"addresses": ["10.1.0.1"], "nodeName": "board", "hostname": "web-0",
             "targetRef": {"kind": "Pod", "name": "web-0", "uid": "u"}},
            {"addresses": ["10.1.0.2"], "conditions": {"ready": false, "serving": true, "terminating": true}},
            {"addresses": ["10.1.0.3"], "conditions": {"ready": false}},
        ],
    }));
    let slice = slice.expect("it is valid");
    assert_eq!((&*slice.service, slice.family), ("web", Some(Family::V4)));
    assert_eq!((slice.ports[0].port, slice.ports[1].port), (Some(8080), None));
    let conditions: Vec<(bool, bool, bool)> = slice
        .endpoints
        .iter()
        .map(|Endpoint { conditions, .. }| (conditions.ready, conditions.serving, conditions.terminating))
        .collect();
    assert_eq!(conditions, [(true, true, false), (false, true, true), (false, false, false)]);
    assert_eq!(slice.endpoints[0].pod, Some(("web-0".into(), "u".into())));
    let names = json!({
        "metadata": {"namespace": "a", "name": "b"}, "addressType": "FQDN", "endpoints": [{"addresses": ["a.example"]}],
    });
    let names = EndpointSlice::parse(&names).expect("it is valid");
    assert!(names.family.is_none() && names.endpoints.is_empty());
}

#[test]
fn an_object_with_a_wrong_value_is_rejected_by_the_name_of_the_field() {
    for [text, expected] in cases(
        r#"
            {"metadata": {"name": "a"}} => metadata.namespace: Required value
            {"spec": {"type": "Router"}} => spec.type: Invalid value: "Router"
            {"spec": {"clusterIPs": ["x"]}} => spec.clusterIPs: Invalid value: "x"
            {"spec": {"clusterIP": "1.2.3"}} => spec.clusterIP: Invalid value: "1.2.3"
            {"spec": {"ipFamilies": ["IPv5"]}} => spec.ipFamilies: Invalid value: "IPv5"
            {"spec": {"ports": [{"port": 65536}]}} => spec.ports[0].port: Invalid value: 65536
            {"spec": {"ports": [{}]}} => spec.ports[0].port: Invalid value: null
            {"spec": {"ports": [{"port": 1, "protocol": "X"}]}} => spec.ports[0].protocol: Invalid value: "X"
            {"spec": {"sessionAffinity": "Cookie"}} => spec.sessionAffinity: Invalid value: "Cookie"
            {"spec": {"externalTrafficPolicy": "Near"}} => spec.externalTrafficPolicy: Invalid value: "Near"
        "#,
    ) {
        let mut object: serde_json::Value = serde_json::from_str(text).expect("JSON");
        if object["metadata"].is_null() {
            object["metadata"] = json!({"namespace": "a", "name": "b"});
        }
        assert_eq!(Service::parse(&object).expect_err(text).to_string(), expected);
    }
    let slice = |kind: &str, address: &str| {
        let object = json!({
            "metadata": {"namespace": "a", "name": "b"}, "addressType": kind, "endpoints": [{"addresses": [address]}],
        });
        EndpointSlice::parse(&object).expect_err("it is invalid").to_string()
    };
    assert_eq!(slice("IPv5", "10.0.0.1"), "addressType: Invalid value: \"IPv5\"");
    assert_eq!(slice("IPv6", "10.0.0.1"), "endpoints.addresses: Invalid value: \"10.0.0.1\"");
}
