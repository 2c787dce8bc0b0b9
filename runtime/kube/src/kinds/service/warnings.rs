//! The warnings about a Service: those of Kubernetes (`GetWarningsForService`), and those about fields without effect
//! on a board.

use serde_json::Value;

use super::addresses::is_headless;
use super::validate::needs_health_check;
use crate::object::value::{list, text};

pub(super) fn warnings(service: &Value) -> Vec<String> {
    let spec = &service["spec"];
    let kind = text(spec, "type");
    let has_external_ips = !list(spec, "externalIPs").is_empty();
    let is_headless = is_headless(spec) && kind == "ClusterIP";
    let has_class = !text(spec, "loadBalancerClass").is_empty();
    let distribution = text(spec, "trafficDistribution");
    let all = [
        (
            is_headless && !text(spec, "loadBalancerIP").is_empty(),
            "spec.loadBalancerIP is ignored for headless services",
        ),
        (is_headless && has_external_ips, "spec.externalIPs is ignored for headless services"),
        (
            is_headless && text(spec, "sessionAffinity") != "None",
            "spec.SessionAffinity is ignored for headless services",
        ),
        (
            has_external_ips && !is_headless && kind != "ExternalName",
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
        ),
        (
            has_external_ips && kind == "ExternalName",
            "spec.externalIPs is ignored when spec.type is \"ExternalName\"",
        ),
        (
            kind != "ExternalName" && !text(spec, "externalName").is_empty(),
            "spec.externalName is ignored when spec.type is not \"ExternalName\"",
        ),
        (
            distribution == "PreferClose",
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
        ),
        (
            !distribution.is_empty(),
            "spec.trafficDistribution: has no effect: all endpoints of a board are on one node",
        ),
        (
            has_class,
            "spec.loadBalancerClass: nodlet gives no address to a load balancer of another implementation",
        ),
        (
            needs_health_check(spec) && !has_class,
            "spec.healthCheckNodePort: nodlet allocates the port, but does not serve health checks of load balancers",
        ),
    ];
    all.into_iter().filter(|(applies, _)| *applies).map(|(_, text)| text.to_owned()).collect()
}
