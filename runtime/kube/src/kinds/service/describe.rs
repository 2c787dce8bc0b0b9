//! Services, as `kubectl describe service` prints them.

use serde_json::Value;

use super::format_labels;
use crate::kinds::describe::Tabs;
use crate::kinds::describe::text::{head, list, of};

/// The most endpoints of a port in a description.
const MAX_SHOWN: usize = 3;

/// Describes a Service with its EndpointSlices.
pub(super) fn describe(out: &mut Tabs, service: &Value, slices: &[Value]) {
    let spec = &service["spec"];
    let optional = |out: &mut Tabs, title: &str, value: &str| {
        if !value.is_empty() {
            out.line(0, &format!("{title}:\t{value}"));
        }
    };
    head(out, service);
    out.line(0, &format!("Selector:\t{}", format_labels(&spec["selector"])));
    out.line(0, &format!("Type:\t{}", of(&spec["type"])));
    optional(out, "IP Family Policy", of(&spec["ipFamilyPolicy"]));
    out.line(0, &format!("IP Families:\t{}", or_none(&joined(&spec["ipFamilies"], ","))));
    out.line(0, &format!("IP:\t{}", of(&spec["clusterIP"])));
    out.line(0, &format!("IPs:\t{}", or_none(&joined(&spec["clusterIPs"], ","))));
    optional(out, "External IPs", &joined(&spec["externalIPs"], ","));
    optional(out, "Desired LoadBalancer IP", of(&spec["loadBalancerIP"]));
    optional(out, "External Name", of(&spec["externalName"]));
    let ingress =
        list(&service["status"]["loadBalancer"]["ingress"]).iter().map(|one| match of(&one["ipMode"]) {
            "" => of(&one["ip"]).to_owned(),
            mode => format!("{} ({mode})", of(&one["ip"])),
        });
    optional(out, "LoadBalancer Ingress", &ingress.collect::<Vec<_>>().join(", "));
    for port in list(&spec["ports"]) {
        let (protocol, name) = (of(&port["protocol"]), of(&port["name"]));
        let shown = if name.is_empty() { "<unset>" } else { name };
        out.line(0, &format!("Port:\t{shown}\t{}/{protocol}", port["port"]));
        let target =
            port["targetPort"].as_str().map_or_else(|| port["targetPort"].to_string(), str::to_owned);
        out.line(0, &format!("TargetPort:\t{target}/{protocol}"));
        optional(out, "AppProtocol", of(&port["appProtocol"]));
        if port["nodePort"].as_u64().unwrap_or_default() != 0 {
            out.line(0, &format!("NodePort:\t{shown}\t{}/{protocol}", port["nodePort"]));
        }
        out.line(0, &format!("Endpoints:\t{}", endpoints(slices, name)));
    }
    out.line(0, &format!("Session Affinity:\t{}", of(&spec["sessionAffinity"])));
    optional(out, "External Traffic Policy", of(&spec["externalTrafficPolicy"]));
    optional(out, "Internal Traffic Policy", of(&spec["internalTrafficPolicy"]));
    let health = spec["healthCheckNodePort"].as_u64().filter(|port| *port > 0);
    optional(out, "HealthCheck NodePort", &health.map_or_else(String::new, |port| port.to_string()));
    optional(out, "LoadBalancer Source Ranges", &joined(&spec["loadBalancerSourceRanges"], ","));
    optional(out, "Traffic Distribution", of(&spec["trafficDistribution"]));
}

/// `formatEndpointSlices`, of the port of this name.
fn endpoints(slices: &[Value], name: &str) -> String {
    if slices.is_empty() {
        return "<none>".to_owned();
    }
    let mut found: Vec<String> = Vec::new();
    for slice in slices {
        let is_ready = |endpoint: &&Value| endpoint["conditions"]["ready"] != false;
        let addresses = || {
            list(&slice["endpoints"]).iter().filter(is_ready).map(|endpoint| of(&endpoint["addresses"][0]))
        };
        if list(&slice["ports"]).is_empty() {
            found.extend(addresses().map(str::to_owned));
        }
        for port in list(&slice["ports"]).iter().filter(|port| of(&port["name"]) == name) {
            found.extend(addresses().map(|address| host_port(address, &port["port"])));
        }
    }
    shortened(found, MAX_SHOWN)
}

/// An address with a port, as Go joins them.
pub(in crate::kinds) fn host_port(address: &str, port: &Value) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

/// The first of a list, with the count of the others.
pub(in crate::kinds) fn shortened(found: Vec<String>, most: usize) -> String {
    let shown = found.iter().take(most).map(String::as_str).collect::<Vec<_>>().join(",");
    if found.len() > most { format!("{shown} + {} more...", found.len() - most) } else { shown }
}

fn joined(values: &Value, with: &str) -> String {
    list(values).iter().map(of).collect::<Vec<_>>().join(with)
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}
