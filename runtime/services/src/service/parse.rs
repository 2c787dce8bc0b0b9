//! Reads Services and EndpointSlices from the objects of the API. What Kubernetes defaults is defaulted here, too, so
//! that an object of an older server is read like one of the board.

use core::net::IpAddr;
use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    Conditions, Endpoint, EndpointPort, EndpointSlice, Family, Protocol, Service, ServicePort, ServiceType,
    Target, TrafficPolicy,
};

/// `sessionAffinityConfig.clientIP.timeoutSeconds`, if it is not set.
const AFFINITY_SECONDS: u32 = 10_800;

/// Why an object is no Service or EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// A field is missing that every such object has.
    #[error("{0}: Required value")]
    Required(String),
    /// A field has a value that it cannot have.
    #[error("{field}: Invalid value: {value}")]
    Invalid {
        /// The path of the field.
        field: String,
        /// Its value as JSON.
        value: String,
    },
}

fn invalid(field: &str, value: &Value) -> ServiceError {
    ServiceError::Invalid { field: field.to_owned(), value: value.to_string() }
}

impl Service {
    /// Reads a complete Service, as the API serves it.
    ///
    /// # Errors
    /// A field is missing, or has a value that it cannot have.
    pub fn parse(object: &Value) -> Result<Service, ServiceError> {
        let (namespace, name) = names(object)?;
        let spec = &object["spec"];
        let kind = match text(spec, "type") {
            "" | "ClusterIP" => ServiceType::ClusterIp,
            "NodePort" => ServiceType::NodePort,
            "LoadBalancer" => ServiceType::LoadBalancer,
            "ExternalName" => ServiceType::ExternalName,
            _ => return Err(invalid("spec.type", &spec["type"])),
        };
        let is_name = kind == ServiceType::ExternalName;
        let is_headless = !is_name && text(spec, "clusterIP") == "None";
        let mut cluster_ips = Vec::new();
        if !is_name && !is_headless {
            cluster_ips = addresses(spec, "clusterIPs", "spec.clusterIPs")?;
            if cluster_ips.is_empty() && !text(spec, "clusterIP").is_empty() {
                cluster_ips.push(address(&spec["clusterIP"], "spec.clusterIP")?);
            }
        }
        let mut families = Vec::new();
        for family in list(spec, "ipFamilies").iter().filter(|_| !is_name) {
            let named = family.as_str().and_then(Family::named);
            families.push(named.ok_or_else(|| invalid("spec.ipFamilies", family))?);
        }
        if families.is_empty() && !is_name {
            families = cluster_ips.iter().copied().map(Family::of).collect();
            if families.is_empty() {
                families.push(Family::V4);
            }
        }
        let mut external_ips = addresses(spec, "externalIPs", "spec.externalIPs")?;
        if kind == ServiceType::LoadBalancer {
            let ingress = list(&object["status"]["loadBalancer"], "ingress").iter();
            for one in ingress.filter(|one| one["ip"].is_string() && text(one, "ipMode") != "Proxy") {
                let address = address(&one["ip"], "status.loadBalancer.ingress")?;
                if !external_ips.contains(&address) {
                    external_ips.push(address);
                }
            }
        }
        external_ips.retain(|address| families.contains(&Family::of(*address)));
        let ports = list(spec, "ports").iter().enumerate().map(|(index, port)| service_port(port, index));
        let timeout = &spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"];
        let affinity_seconds =
            match text(spec, "sessionAffinity") {
                "" | "None" => None,
                "ClientIP" if timeout.is_null() => Some(AFFINITY_SECONDS),
                "ClientIP" => {
                    let seconds = timeout.as_u64().and_then(|seconds| u32::try_from(seconds).ok());
                    let seconds = seconds.filter(|seconds| *seconds > 0);
                    Some(seconds.ok_or_else(|| {
                        invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds", timeout)
                    })?)
                }
                _ => return Err(invalid("spec.sessionAffinity", &spec["sessionAffinity"])),
            };
        Ok(Service {
            namespace,
            name,
            kind,
            cluster_ips,
            families,
            is_headless,
            ports: ports.collect::<Result<_, _>>()?,
            selector: if is_name { BTreeMap::new() } else { map(spec, "selector") },
            affinity_seconds,
            internal_policy: policy(spec, "internalTrafficPolicy")?,
            external_policy: policy(spec, "externalTrafficPolicy")?,
            publishes_not_ready: spec["publishNotReadyAddresses"] == true,
            external_ips,
            health_check_port: spec["healthCheckNodePort"]
                .as_u64()
                .and_then(|port| u16::try_from(port).ok())
                .filter(|port| *port > 0),
            external_name: is_name.then(|| text(spec, "externalName").into()),
        })
    }
}

impl EndpointSlice {
    /// Reads a complete EndpointSlice, as the API serves it.
    ///
    /// # Errors
    /// A field is missing, or has a value that it cannot have.
    pub fn parse(object: &Value) -> Result<EndpointSlice, ServiceError> {
        let (namespace, name) = names(object)?;
        let family = match text(object, "addressType") {
            "FQDN" => None,
            named => {
                Some(Family::named(named).ok_or_else(|| invalid("addressType", &object["addressType"]))?)
            }
        };
        let ports = list(object, "ports").iter().map(|one| {
            let port = if one["port"].is_null() { None } else { Some(port(&one["port"], "ports.port")?) };
            Ok(EndpointPort {
                name: text(one, "name").into(),
                protocol: protocol(one, "ports.protocol")?,
                port,
                app_protocol: optional(one, "appProtocol"),
            })
        });
        let ports = ports.collect::<Result<_, _>>()?;
        // Names are of no use to a proxy, and no addresses.
        let endpoints = list(object, "endpoints").iter().filter(|_| family.is_some());
        Ok(EndpointSlice {
            namespace,
            name,
            service: text(&object["metadata"]["labels"], SERVICE_NAME).into(),
            family,
            ports,
            endpoints: endpoints.map(|one| endpoint(one, family)).collect::<Result<_, _>>()?,
        })
    }
}

/// The label of an EndpointSlice that names its Service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

fn endpoint(one: &Value, family: Option<Family>) -> Result<Endpoint, ServiceError> {
    let addresses = addresses(one, "addresses", "endpoints.addresses")?;
    let is_other = |address: &&IpAddr| Some(Family::of(**address)) != family;
    if let Some(other) = addresses.iter().find(is_other) {
        return Err(invalid("endpoints.addresses", &other.to_string().into()));
    }
    let conditions = &one["conditions"];
    // An unknown condition counts as ready, and `serving` as `ready` (pkg/proxy/endpointslicecache.go).
    let ready = conditions["ready"] != false;
    let target = &one["targetRef"];
    let pod = (target["kind"] == "Pod").then(|| (text(target, "name").into(), text(target, "uid").into()));
    Ok(Endpoint {
        addresses,
        conditions: Conditions {
            ready,
            serving: conditions["serving"].as_bool().unwrap_or(ready),
            terminating: conditions["terminating"] == true,
        },
        hostname: optional(one, "hostname"),
        node: optional(one, "nodeName"),
        pod,
    })
}

fn service_port(one: &Value, index: usize) -> Result<ServicePort, ServiceError> {
    let path = |field: &str| format!("spec.ports[{index}].{field}");
    let number = port(&one["port"], &path("port"))?;
    let target = match &one["targetPort"] {
        Value::Null => Target::Number(number),
        Value::String(name) if name.is_empty() => Target::Number(number),
        Value::String(name) => Target::Name(name.as_str().into()),
        zero if *zero == 0 => Target::Number(number),
        value => Target::Number(port(value, &path("targetPort"))?),
    };
    let node_port = match &one["nodePort"] {
        Value::Null => None,
        zero if *zero == 0 => None,
        value => Some(port(value, &path("nodePort"))?),
    };
    Ok(ServicePort {
        name: text(one, "name").into(),
        protocol: protocol(one, &path("protocol"))?,
        port: number,
        target,
        node_port,
        app_protocol: optional(one, "appProtocol"),
    })
}

/// Namespace and name of an object.
fn names(object: &Value) -> Result<(Box<str>, Box<str>), ServiceError> {
    let metadata = &object["metadata"];
    let of = |field: &str| match text(metadata, field) {
        "" => Err(ServiceError::Required(format!("metadata.{field}"))),
        value => Ok(value.into()),
    };
    Ok((of("namespace")?, of("name")?))
}

fn addresses(object: &Value, field: &str, path: &str) -> Result<Vec<IpAddr>, ServiceError> {
    list(object, field).iter().map(|one| address(one, path)).collect()
}

fn address(value: &Value, path: &str) -> Result<IpAddr, ServiceError> {
    value.as_str().and_then(|text| text.parse().ok()).ok_or_else(|| invalid(path, value))
}

fn port(value: &Value, path: &str) -> Result<u16, ServiceError> {
    let port = value.as_u64().and_then(|number| u16::try_from(number).ok()).filter(|port| *port > 0);
    port.ok_or_else(|| invalid(path, value))
}

fn protocol(object: &Value, path: &str) -> Result<Protocol, ServiceError> {
    match text(object, "protocol") {
        "" => Ok(Protocol::Tcp),
        name => Protocol::named(name).ok_or_else(|| invalid(path, &object["protocol"])),
    }
}

fn policy(spec: &Value, field: &str) -> Result<TrafficPolicy, ServiceError> {
    match text(spec, field) {
        "" | "Cluster" => Ok(TrafficPolicy::Cluster),
        "Local" => Ok(TrafficPolicy::Local),
        _ => Err(invalid(&format!("spec.{field}"), &spec[field])),
    }
}

fn list<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object[field].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object[field].as_str().unwrap_or_default()
}

fn optional(object: &Value, field: &str) -> Option<Box<str>> {
    object[field].as_str().filter(|text| !text.is_empty()).map(Box::from)
}

fn map(object: &Value, field: &str) -> BTreeMap<Box<str>, Box<str>> {
    let entries = object[field].as_object().into_iter().flatten();
    entries.map(|(key, value)| (key.as_str().into(), value.as_str().unwrap_or_default().into())).collect()
}
