//! The defaults of a Service (`SetDefaults_Service`), and `validateService`.

use nodlet_core::sorted::SortedSet;
use serde_json::{Value, json};

use super::addresses;
use crate::object::check::Field;
use crate::object::field::Errors;
use crate::object::rules;
use crate::object::value::{list, number, optional_number, text};

/// `DefaultClientIPServiceAffinitySeconds` and the most of it.
const AFFINITY_SECONDS: i64 = 10_800;
const MAX_AFFINITY_SECONDS: i64 = 86_400;

pub(super) const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

const NO_SOURCE_RANGES: &str =
    "nodlet does not limit the clients of a load balancer: use a firewall on the board";

/// Sets the defaults of a Service, and checks its rules except those about allocated fields that are not set.
pub(super) fn rules(service: &mut Value, metadata: &Value, errors: &mut Errors) {
    if !service["spec"].is_object() {
        service["spec"] = json!({});
    }
    default(&mut service["spec"]);
    let name = Field::root(metadata, "metadata", errors);
    let name = name.child("name");
    if !name.text().is_empty() {
        name.check(rules::dns_label);
    }
    spec(Field::root(&service["spec"], "spec", errors));
}

fn default(spec: &mut Value) {
    let set = |spec: &mut Value, field: &str, value: Value| {
        if spec[field].is_null() || spec[field] == "" {
            spec[field] = value;
        }
    };
    set(spec, "sessionAffinity", "None".into());
    set(spec, "type", "ClusterIP".into());
    if text(spec, "sessionAffinity") == "None" {
        remove(spec, "sessionAffinityConfig");
    } else if text(spec, "sessionAffinity") == "ClientIP"
        && spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"].is_null()
    {
        spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}});
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        set(port, "protocol", "TCP".into());
        if port["targetPort"].is_null() || port["targetPort"] == 0 || port["targetPort"] == "" {
            port["targetPort"] = port["port"].clone();
        }
        if port["nodePort"] == 0 {
            remove(port, "nodePort");
        }
        if port["name"] == "" {
            remove(port, "name");
        }
    }
    if is_externally_accessible(spec) {
        set(spec, "externalTrafficPolicy", "Cluster".into());
    }
    if text(spec, "type") != "ExternalName" && spec["internalTrafficPolicy"].is_null() {
        spec["internalTrafficPolicy"] = "Cluster".into();
    }
    if text(spec, "type") == "LoadBalancer" && spec["allocateLoadBalancerNodePorts"].is_null() {
        spec["allocateLoadBalancerNodePorts"] = true.into();
    }
    if spec["healthCheckNodePort"] == 0 {
        remove(spec, "healthCheckNodePort");
    }
    for field in ["clusterIP", "externalName", "loadBalancerIP", "externalTrafficPolicy"] {
        if spec[field].is_null() || spec[field] == "" {
            remove(spec, field);
        }
    }
    // The caller completes the plural of an existing Service.
    if !text(spec, "clusterIP").is_empty() && list(spec, "clusterIPs").is_empty() {
        spec["clusterIPs"] = vec![spec["clusterIP"].clone()].into();
    }
    let nulls = |_: &String, value: &mut Value| !value.is_null();
    if let Some(spec) = spec.as_object_mut() {
        spec.retain(nulls);
    }
}

fn spec(spec: Field<'_, '_>) {
    let kind = text(spec.value, "type");
    let is_headless = addresses::is_headless(spec.value);
    if list(spec.value, "ports").is_empty() && !is_headless && kind != "ExternalName" {
        spec.child("ports").required("");
    }
    match kind {
        "LoadBalancer" | "NodePort" if is_headless => {
            spec.item("clusterIPs", 0).invalid(format!("may not be set to 'None' for {kind} services"));
        }
        "ExternalName" => external_name(spec),
        _ => {}
    }
    ports(spec);
    spec.child("selector").labels();
    spec.child("sessionAffinity").one_of(&["ClientIP", "None"]);
    if text(spec.value, "sessionAffinity") == "ClientIP" {
        affinity(spec);
    }
    addresses::cluster_ips(spec);
    for ip in spec.items("externalIPs") {
        if ip.check(rules::ip) {
            addresses::endpoint_ip(ip);
        }
    }
    spec.child("type").one_of(&["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    node_ports(spec, kind);
    load_balancer(spec, kind);
    traffic(spec, kind);
}

fn external_name(spec: Field<'_, '_>) {
    for field in ["clusterIPs", "ipFamilies"] {
        if !list(spec.value, field).is_empty() {
            spec.child(field).forbidden("may not be set for ExternalName services");
        }
    }
    if let Some(policy) = spec.get("ipFamilyPolicy") {
        policy.forbidden("may not be set for ExternalName services");
    }
    let name = spec.child("externalName");
    match name.text().strip_suffix('.').unwrap_or(name.text()) {
        "" => name.required(""),
        name_without_dot => drop(name.check_text(name_without_dot, rules::dns_subdomain)),
    }
}

fn ports(spec: Field<'_, '_>) {
    let needs_names = list(spec.value, "ports").len() > 1;
    let mut names = SortedSet::new();
    for port in spec.items("ports") {
        let name = port.child("name");
        if name.text().is_empty() {
            if needs_names {
                name.required("");
            }
        } else {
            name.check(rules::dns_label);
            name.unique(&mut names);
        }
        port_number(port.child("port"));
        port.child("protocol").one_of(&PROTOCOLS);
        let target = port.child("targetPort");
        if target.value.is_string() {
            target.check(rules::port_name);
        } else {
            port_number(target);
        }
        port.child("appProtocol").check_optional(rules::qualified_name);
    }
}

/// `IsValidPortNum`
pub(super) fn port_number(port: Field<'_, '_>) {
    if let Some(error) = rules::range(port.number(), 1, 65535) {
        port.invalid_number(port.number(), error);
    }
}

fn affinity(spec: Field<'_, '_>) {
    let config = spec.child("sessionAffinityConfig");
    let client = config.child("clientIP");
    let timeout = client.child("timeoutSeconds");
    if !(1..=MAX_AFFINITY_SECONDS).contains(&timeout.number()) {
        timeout.invalid(format!("must be greater than 0 and less than {MAX_AFFINITY_SECONDS}"));
    }
}

fn node_ports(spec: Field<'_, '_>, kind: &str) {
    let (mut node_ports, mut ports) = (SortedSet::new(), SortedSet::new());
    for port in spec.items("ports") {
        let node_port = port.child("nodePort");
        let protocol = text(port.value, "protocol");
        if node_port.number() != 0 {
            if kind == "ClusterIP" {
                node_port.forbidden("may not be used when `type` is 'ClusterIP'");
            }
            if !node_ports.insert((protocol, node_port.number())) {
                node_port.duplicate_json(node_port.value);
            }
        }
        let number = number(port.value, "port");
        if !ports.insert((protocol, number)) {
            port.duplicate_json(&json!({
                "Name": "", "Protocol": protocol, "AppProtocol": null, "Port": number, "TargetPort": 0, "NodePort": 0,
            }));
        }
    }
}

fn load_balancer(spec: Field<'_, '_>, kind: &str) {
    let is_balancer = kind == "LoadBalancer";
    let only = "may only be used when `type` is 'LoadBalancer'";
    // Kubernetes writes this name with a capital.
    let ranges = spec.child("LoadBalancerSourceRanges").with(&spec.value["loadBalancerSourceRanges"]);
    let given = list(spec.value, "loadBalancerSourceRanges");
    if !given.is_empty() && !is_balancer {
        ranges.forbidden(only);
    }
    let everybody =
        |range: &Value| range.as_str().is_some_and(|range| matches!(range.trim(), "0.0.0.0/0" | "::/0"));
    if is_balancer && !given.is_empty() && !given.iter().any(everybody) {
        spec.child("loadBalancerSourceRanges").forbidden(NO_SOURCE_RANGES);
    }
    if !is_balancer && let Some(allocates) = spec.get("allocateLoadBalancerNodePorts") {
        allocates.forbidden(only);
    }
    if let Some(class) = spec.get("loadBalancerClass") {
        if is_balancer {
            class.check(rules::qualified_name);
        } else {
            class.forbidden(only);
        }
    }
}

fn traffic(spec: Field<'_, '_>, kind: &str) {
    let policy = spec.child("externalTrafficPolicy");
    if is_externally_accessible(spec.value) {
        policy.one_of(&["Cluster", "Local"]);
    } else if !policy.text().is_empty() {
        policy.invalid("may only be set for externally-accessible services");
    }
    let health = spec.child("healthCheckNodePort");
    if kind == "LoadBalancer" && policy.text() == "Local" {
        if optional_number(spec.value, "healthCheckNodePort").is_some() {
            port_number(health);
        }
    } else if health.number() != 0 {
        health
            .invalid("may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'");
    }
    if let Some(policy) = spec.get("internalTrafficPolicy") {
        policy.supported(&["Cluster", "Local"]);
    }
    if let Some(distribution) = spec.get("trafficDistribution") {
        distribution.supported(&["PreferClose", "PreferSameZone", "PreferSameNode"]);
    }
}

/// `ExternallyAccessible`
fn is_externally_accessible(spec: &Value) -> bool {
    match text(spec, "type") {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => !list(spec, "externalIPs").is_empty(),
        _ => false,
    }
}

/// `NeedsHealthCheck`
pub(super) fn needs_health_check(spec: &Value) -> bool {
    text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local"
}

fn remove(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}
