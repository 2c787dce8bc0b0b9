//! EndpointSlices (`discovery.k8s.io/v1`), as they are read, and as `kubectl get` and `kubectl describe` print them.
//! Pure. The agent makes those of Services with a selector; clients make those of other Services.

use nodlet_core::sorted::SortedSet;
use serde_json::Value;

use super::cells::{array, text};
use super::definition::{self, Definition, Read, Reader};
use super::service::{endpoint_ip, shortened};
use super::strategy::{AGE, Column, NAME, Strategy, column, of};
use crate::kind::Kind;
use crate::object::check::Field;
use crate::object::error::ManifestError;
use crate::object::field::Errors;
use crate::object::rules;
use crate::object::value::list;
use crate::object::walk::Validation;
use nodlet_core::time::Timestamp;

mod describe;

pub(super) static STRATEGY: Strategy = Strategy {
    reader: Some(Reader { read: Read::Own(read), check_update }),
    ..Strategy::new(COLUMNS, describe::describe)
};

const COLUMNS: &[Column] = &[
    NAME,
    column("AddressType", "/addressType"),
    of("Ports", "", ports),
    of("Endpoints", "", endpoints),
    AGE,
];

/// The most ports or addresses of a cell.
const MAX_SHOWN: usize = 3;

/// Kubernetes' bounds (`pkg/apis/discovery/validation`).
const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;

/// The label that names the Service of a slice.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

fn read(
    object: Value,
    validation: Validation,
    node: &str,
    file: Option<&str>,
) -> Result<Definition, ManifestError> {
    let mut definition = definition::read(Kind::EndpointSlice, object, check, (validation, node, file))?;
    let object = definition.object();
    if text(&object["metadata"]["labels"][SERVICE_NAME]).is_empty() {
        definition.warnings.push(format!(
            "metadata.labels: without the label {SERVICE_NAME}, no Service has these endpoints"
        ));
    }
    if array(&object["endpoints"]).any(|endpoint| !endpoint["hints"].is_null()) {
        definition.warnings.push("endpoints[*].hints: has no effect: a board is one node".to_owned());
    }
    Ok(definition)
}

/// The defaults of an EndpointSlice, and `ValidateEndpointSlice`.
fn check(slice: &mut Value, _: &Value, errors: &mut Errors) {
    for port in slice.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if port["name"].is_null() {
            port["name"] = "".into();
        }
        if port["protocol"].is_null() {
            port["protocol"] = "TCP".into();
        }
        if port["port"].is_null()
            && let Some(fields) = port.as_object_mut()
        {
            fields.remove("port");
        }
    }
    Field::root(&slice["addressType"], "addressType", errors).one_of(&["FQDN", "IPv4", "IPv6"]);
    check_ports(Field::root(&slice["ports"], "ports", errors));
    check_endpoints(Field::root(&slice["endpoints"], "endpoints", errors), text(&slice["addressType"]));
}

fn check_ports(ports: Field<'_, '_>) {
    let count = ports.elements().count();
    if count > MAX_PORTS {
        return ports.too_many(count, MAX_PORTS);
    }
    let mut names = SortedSet::new();
    for port in ports.elements() {
        let name = port.child("name");
        name.check_optional(rules::dns_label);
        name.unique(&mut names);
        port.child("protocol").one_of(&["SCTP", "TCP", "UDP"]);
        if let Some(number) = port.get("port") {
            number.range(1, 65535);
        }
        port.child("appProtocol").check_optional(rules::qualified_name);
    }
}

fn check_endpoints(endpoints: Field<'_, '_>, family: &str) {
    let count = endpoints.elements().count();
    if count > MAX_ENDPOINTS {
        return endpoints.too_many(count, MAX_ENDPOINTS);
    }
    for endpoint in endpoints.elements() {
        let addresses = endpoint.child("addresses");
        match list(endpoint.value, "addresses").len() {
            0 => addresses.required("must contain at least 1 address"),
            count if count > MAX_ADDRESSES => addresses.too_many(count, MAX_ADDRESSES),
            _ => {}
        }
        for address in endpoint.items("addresses") {
            match family {
                "FQDN" => domain_name(address),
                "IPv4" | "IPv6" if address.check(rules::ip) => {
                    if address.text().contains(':') != (family == "IPv6") {
                        addresses.invalid_text(address.text(), format!("must be an {family} address"));
                    }
                    endpoint_ip(address);
                }
                _ => {}
            }
        }
        endpoint.child("nodeName").check_optional(rules::dns_subdomain);
        if let Some(hostname) = endpoint.get("hostname") {
            hostname.check(rules::dns_label);
        }
    }
}

/// `IsFullyQualifiedDomainName`
fn domain_name(address: Field<'_, '_>) {
    let name = address.text().strip_suffix('.').unwrap_or(address.text());
    if address.text().is_empty() {
        address.required("");
    } else if address.check_text(name, rules::dns_subdomain) && !name.contains('.') {
        address.invalid_text(name, "should be a domain with at least two segments separated by dots");
    }
}

/// `ValidateEndpointSliceUpdate`
fn check_update(old: &Value, new: &Value) -> Result<(), ManifestError> {
    let mut errors = Errors::default();
    definition::immutable(old, new, "addressType", &mut errors);
    definition::refuse_update(new, errors)
}

/// `formatDiscoveryPorts`
fn ports(slice: &Value, _: &str, _: Timestamp) -> Value {
    let number = |port: &Value| match (&port["port"], text(&port["name"])) {
        (Value::Null, "") if port["name"].is_null() => "*".to_owned(),
        (Value::Null, name) => name.to_owned(),
        (number, _) => number.to_string(),
    };
    or_unset(array(&slice["ports"]).map(number).collect())
}

/// `formatDiscoveryEndpoints`
fn endpoints(slice: &Value, _: &str, _: Timestamp) -> Value {
    let addresses = array(&slice["endpoints"]).flat_map(|endpoint| array(&endpoint["addresses"]));
    or_unset(addresses.map(|address| text(address).to_owned()).collect())
}

fn or_unset(all: Vec<String>) -> Value {
    match shortened(all, MAX_SHOWN) {
        text if text.is_empty() => "<unset>".into(),
        text => text.into(),
    }
}

#[cfg(test)]
mod tests;
