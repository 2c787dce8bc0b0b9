//! Services (`v1`), as they are read, and as `kubectl get` prints them. Pure. The allocation of their addresses and
//! node ports is no part of their rules: `nodlet-services` completes them.

use serde_json::Value;

use super::cells::{array, none_if_empty, text};
use super::definition::{self, Definition, Read, Reader};
use super::describe::text::entries;
use super::strategy::{AGE, Column, NAME, Related, Strategy, column, of};
use crate::kind::Kind;
use crate::object::error::ManifestError;
use crate::object::walk::Validation;
use nodlet_core::time::Timestamp;

mod addresses;
mod describe;
mod update;
mod validate;
mod warnings;

pub(super) use addresses::endpoint_ip;
pub(super) use describe::{host_port, shortened};

pub(super) static STRATEGY: Strategy = Strategy {
    related: Related::EndpointSlices,
    reader: Some(Reader { read: Read::Own(read), check_update: update::check_update }),
    ..Strategy::new(COLUMNS, describe::describe)
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Type", "/spec/type"),
    of("Cluster-IP", "", |service, _, _| {
        none_if_empty(array(&service["spec"]["clusterIPs"]).next().map_or("", text))
    }),
    of("External-IP", "", external_ip),
    of("Port(s)", "", ports),
    AGE,
    of("Selector", "/spec/selector", |service, field, _| {
        service.pointer(field).map_or_else(|| "<none>".to_owned(), format_labels).into()
    })
    .wide(),
];

fn read(
    object: Value,
    validation: Validation,
    node: &str,
    file: Option<&str>,
) -> Result<Definition, ManifestError> {
    let mut definition = definition::read(Kind::Service, object, validate::rules, (validation, node, file))?;
    definition.warnings.extend(warnings::warnings(&definition.object()));
    Ok(definition)
}

/// `getServiceExternalIP`
fn external_ip(service: &Value, _: &str, _: Timestamp) -> Value {
    let spec = &service["spec"];
    let mut addresses: Vec<String> = Vec::new();
    match text(&spec["type"]) {
        "ExternalName" => return spec["externalName"].clone(),
        "ClusterIP" | "NodePort" => {}
        "LoadBalancer" => {
            let mut ingress: Vec<&str> =
                array(&service["status"]["loadBalancer"]["ingress"]).map(|one| text(&one["ip"])).collect();
            ingress.sort_unstable();
            addresses.extend(ingress.into_iter().map(str::to_owned));
        }
        _ => return "<unknown>".into(),
    }
    addresses.extend(array(&spec["externalIPs"]).map(|ip| text(ip).to_owned()));
    match (addresses.is_empty(), text(&spec["type"])) {
        (true, "LoadBalancer") => "<pending>".into(),
        (true, _) => "<none>".into(),
        (false, _) => addresses.join(",").into(),
    }
}

/// `makePortString`
fn ports(service: &Value, _: &str, _: Timestamp) -> Value {
    let ports = array(&service["spec"]["ports"]).map(|port| {
        let protocol = text(&port["protocol"]);
        match port["nodePort"].as_u64().unwrap_or_default() {
            0 => format!("{}/{protocol}", port["port"]),
            node_port => format!("{}:{node_port}/{protocol}", port["port"]),
        }
    });
    none_if_empty(&ports.collect::<Vec<_>>().join(","))
}

/// `labels.FormatLabels`
fn format_labels(labels: &Value) -> String {
    let pairs = entries(labels).into_iter();
    let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}={}", text(value))).collect();
    if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") }
}

#[cfg(test)]
mod tests;
