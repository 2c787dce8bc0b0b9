//! The rules of `clusterIPs`, `ipFamilies` and `ipFamilyPolicy` (`ValidateServiceClusterIPsRelatedFields`), and those
//! of the addresses of endpoints.

use core::net::IpAddr;

use serde_json::Value;

use crate::object::check::Field;
use crate::object::rules;
use crate::object::value::{list, text};

/// `isHeadlessService`
pub(super) fn is_headless(spec: &Value) -> bool {
    matches!(list(spec, "clusterIPs"), [only] if only == "None")
}

pub(super) fn cluster_ips(spec: Field<'_, '_>) {
    if text(spec.value, "type") == "ExternalName" {
        return;
    }
    let (ip, ips) = (spec.child("clusterIP"), spec.child("clusterIPs"));
    let given = list(spec.value, "clusterIPs");
    match (ip.text(), given.first()) {
        ("", Some(_)) => ips.invalid("must be empty when `clusterIP` is not specified"),
        (ip, Some(first)) if first != ip => ips.invalid("first value must match `clusterIP`"),
        _ => {}
    }
    let mut seen = Vec::new();
    for family in spec.items("ipFamilies") {
        family.supported(&["IPv4", "IPv6"]);
        if seen.contains(&family.text()) {
            family.duplicate();
        }
        seen.push(family.text());
    }
    if let Some(policy) = spec.get("ipFamilyPolicy") {
        policy.supported(&["PreferDualStack", "RequireDualStack", "SingleStack"]);
    }
    let errors = spec.error_count();
    for (index, ip) in spec.items("clusterIPs").enumerate() {
        if index > 0 || ip.text() != "None" {
            ip.check(rules::ip);
        } else if given.len() > 1 {
            ips.invalid("'None' must be the first and only value");
        }
    }
    let is_wrong = spec.error_count() > errors;
    if given.len() > 2 {
        ips.invalid("may only hold up to 2 values");
    }
    if is_wrong {
        return;
    }
    let is_v6 = |ip: &Value| ip.as_str().is_some_and(|ip| ip.contains(':'));
    if given.len() > 1 && (given.iter().all(is_v6) || !given.iter().any(is_v6)) {
        ips.invalid("may specify no more than one IP for each IP family");
    }
    if is_headless(spec.value) {
        return;
    }
    for (index, (ip, family)) in spec.items("clusterIPs").zip(list(spec.value, "ipFamilies")).enumerate() {
        let wanted = family.as_str().unwrap_or_default();
        if wanted == "IPv4" && is_v6(ip.value) || wanted == "IPv6" && !is_v6(ip.value) {
            ip.invalid(format!("expected an {wanted} value as indicated by `ipFamilies[{index}]`"));
        }
    }
}

/// `ValidateEndpointIP`, of a text that is an address.
pub(in crate::kinds) fn endpoint_ip(field: Field<'_, '_>) {
    let text = field.text();
    let Ok(address) = text.parse::<IpAddr>() else { return };
    let (is_link_local, is_local_multicast) = match address {
        IpAddr::V4(address) => (address.is_link_local(), address.octets().starts_with(&[224, 0, 0])),
        IpAddr::V6(address) => (address.is_unicast_link_local(), address.segments()[0] & 0xff0f == 0xff02),
    };
    if address.is_unspecified() {
        field.invalid(format!("may not be unspecified ({text})"));
    }
    if address.is_loopback() {
        field.invalid("may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    if is_link_local {
        field.invalid("may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if is_local_multicast {
        field.invalid("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}
