//! The allocated fields that an update keeps, although its writer left them out, and those that it clears.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{list, needs_health_check, node_port, remove, text};

/// Gives the new version of a Service the allocated fields of `old` that it does not name (`patchAllocatedValues`,
/// `normalizeClusterIPs`), and clears those that its type does not have, if they are still as before
/// (`dropTypeDependentFields`). `old` is an existing Service; none if the Service is new. The new version may have
/// values of wrong types.
pub fn adopt(old: Option<&Value>, new: &mut Value) {
    let Some(new) = new.get_mut("spec").filter(|spec| spec.is_object()) else { return };
    let Some(old) = old.map(|old| &old["spec"]) else {
        // The plural of an old client.
        if !text(new, "clusterIP").is_empty() && list(new, "clusterIPs").is_empty() {
            new["clusterIPs"] = vec![new["clusterIP"].clone()].into();
        }
        return;
    };
    if needs_address(old) && needs_address(new) {
        if text(new, "clusterIP").is_empty()
            && is_absent(&new["clusterIP"])
            && !text(old, "clusterIP").is_empty()
        {
            new["clusterIP"] = old["clusterIP"].clone();
        }
        if is_absent(&new["clusterIPs"]) && !list(old, "clusterIPs").is_empty() {
            new["clusterIPs"] = old["clusterIPs"].clone();
        }
    }
    if needs_node_ports(old) && needs_node_ports(new) {
        keep_node_ports(old, new);
    }
    if needs_health_check(old)
        && needs_health_check(new)
        && new["healthCheckNodePort"].as_u64().unwrap_or(0) == 0
    {
        new["healthCheckNodePort"] = old["healthCheckNodePort"].clone();
    }
    normalize_addresses(old, new);
    clear(old, new);
}

fn keep_node_ports(old: &Value, new: &mut Value) {
    let of = |spec: &Value| list(spec, "ports").iter().filter_map(node_port).collect::<BTreeSet<u16>>();
    let used: BTreeSet<u16> = of(old).intersection(&of(new)).copied().collect();
    let by_name: BTreeMap<&str, u16> =
        list(old, "ports").iter().filter_map(|port| Some((text(port, "name"), node_port(port)?))).collect();
    for port in new
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter(|port| port.is_object())
    {
        if port["nodePort"].as_u64().unwrap_or(0) == 0
            && let Some(known) = by_name.get(text(port, "name")).filter(|known| !used.contains(*known))
        {
            port["nodePort"] = (*known).into();
        }
    }
}

/// `normalizeClusterIPs` of an update.
fn normalize_addresses(old: &Value, new: &mut Value) {
    let (was, is) = (text(old, "clusterIP").to_owned(), text(new, "clusterIP").to_owned());
    let is_same = list(old, "clusterIPs") == list(new, "clusterIPs");
    if was == is {
        return;
    }
    if !was.is_empty() && is.is_empty() {
        if is_same {
            remove(new, "clusterIPs");
        }
    } else if is_same || list(new, "clusterIPs").is_empty() {
        new["clusterIPs"] = vec![Value::from(is)].into();
    }
}

/// `dropTypeDependentFields`
fn clear(old: &Value, new: &mut Value) {
    if needs_address(old) && !needs_address(new) {
        if old["clusterIP"] == new["clusterIP"] && list(old, "clusterIPs") == list(new, "clusterIPs") {
            remove(new, "clusterIP");
            remove(new, "clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if old[field] == new[field] {
                remove(new, field);
            }
        }
    }
    if needs_node_ports(old) && !needs_node_ports(new) {
        let of = |spec: &Value| list(spec, "ports").iter().filter_map(node_port).collect::<BTreeSet<u16>>();
        if of(old).is_superset(&of(new)) {
            for port in new.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                remove(port, "nodePort");
            }
        }
    }
    if needs_health_check(old)
        && !needs_health_check(new)
        && old["healthCheckNodePort"] == new["healthCheckNodePort"]
    {
        remove(new, "healthCheckNodePort");
    }
    if text(old, "type") == "LoadBalancer" && text(new, "type") != "LoadBalancer" {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if old[field] == new[field] {
                remove(new, field);
            }
        }
    }
    if is_externally_accessible(old)
        && !is_externally_accessible(new)
        && old["externalTrafficPolicy"] == new["externalTrafficPolicy"]
    {
        remove(new, "externalTrafficPolicy");
    }
}

fn is_absent(value: &Value) -> bool {
    value.is_null() || *value == "" || value.as_array().is_some_and(Vec::is_empty)
}

fn needs_address(spec: &Value) -> bool {
    text(spec, "type") != "ExternalName"
}

fn needs_node_ports(spec: &Value) -> bool {
    matches!(text(spec, "type"), "NodePort" | "LoadBalancer")
}

/// `ExternallyAccessible`
fn is_externally_accessible(spec: &Value) -> bool {
    let is_cluster_ip = matches!(text(spec, "type"), "" | "ClusterIP");
    needs_node_ports(spec) || (is_cluster_ip && !list(spec, "externalIPs").is_empty())
}
