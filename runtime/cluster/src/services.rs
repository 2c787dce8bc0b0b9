//! The environment variables of Services (the kubelet's `pkg/kubelet/envvars`). Pure.
//!
//! The variables of a namespace become a ConfigMap of the board, to which the copies of its pods refer first: every
//! variable that a pod itself sets overrides them, as with a kubelet.

use nodlet_kube::kinds::Kind;
use serde_json::{Map, Value, json};

/// The resource.
pub const SERVICES: &str = "services";

/// The Service that every container has variables of.
const KUBERNETES: &str = "kubernetes";

/// Services of one namespace whose variables are made: more would not fit into the environment of a process.
const MAX_SERVICES: usize = 512;

/// The name of the ConfigMap with the variables of `of`: the Service `kubernetes`, or all of the namespace if it is
/// empty.
fn config_map_name(of: &str) -> String {
    format!("nodlet.services{}{of}", if of.is_empty() { "" } else { "." })
}

/// The name of the file with the ConfigMap.
pub fn file(namespace: &str, of: &str) -> String {
    Kind::ConfigMap.row().file(namespace, &config_map_name(of))
}

/// The path of the list of Services.
pub fn path(namespace: &str, of: &str) -> String {
    if of.is_empty() {
        format!("/api/v1/namespaces/{namespace}/services?")
    } else {
        format!("/api/v1/namespaces/default/services?fieldSelector=metadata.name%3D{of}")
    }
}

/// Refers to the variables from all containers of a pod. Returns the names for [`file()`] and [`path()`].
pub fn link(spec: &mut Value) -> Vec<String> {
    let links = spec["enableServiceLinks"] != false;
    let names: Vec<String> =
        if links { vec![KUBERNETES.to_owned(), String::new()] } else { vec![KUBERNETES.to_owned()] };
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            let mut from: Vec<Value> = names
                .iter()
                .map(|of| json!({ "configMapRef": { "name": config_map_name(of), "optional": true } }))
                .collect();
            let others = container.get("envFrom").and_then(Value::as_array);
            from.extend(others.into_iter().flatten().cloned());
            container.insert("envFrom".to_owned(), from.into());
        }
    }
    names
}

/// The ConfigMap with the variables of Services.
pub fn config_map(namespace: &str, of: &str, services: &Value) -> Value {
    let mut data = Map::new();
    for service in services.as_array().into_iter().flatten().take(MAX_SERVICES) {
        variables(service, &mut data);
    }
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": config_map_name(of), "namespace": namespace }, "data": data,
    })
}

fn variables(service: &Value, data: &mut Map<String, Value>) {
    let ip = service["spec"]["clusterIP"].as_str().filter(|ip| !ip.is_empty() && *ip != "None");
    let (Some(ip), Some(name)) = (ip, service["metadata"]["name"].as_str()) else { return };
    let upper = |name: &str| name.replace('-', "_").to_ascii_uppercase();
    let prefix = upper(name);
    let mut set = |name: String, value: String| drop(data.insert(name, value.into()));
    set(format!("{prefix}_SERVICE_HOST"), ip.to_owned());
    for (place, port) in service["spec"]["ports"].as_array().into_iter().flatten().enumerate() {
        let number = port["port"].as_u64().unwrap_or_default();
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        let url = format!("{}://{host}:{number}", protocol.to_ascii_lowercase());
        if place == 0 {
            set(format!("{prefix}_SERVICE_PORT"), number.to_string());
            set(format!("{prefix}_PORT"), url.clone());
        }
        if let Some(name) = port["name"].as_str().filter(|name| !name.is_empty()) {
            set(format!("{prefix}_SERVICE_PORT_{}", upper(name)), number.to_string());
        }
        let port = format!("{prefix}_PORT_{number}_{}", protocol.to_ascii_uppercase());
        set(format!("{port}_PROTO"), protocol.to_ascii_lowercase());
        set(format!("{port}_PORT"), number.to_string());
        set(format!("{port}_ADDR"), ip.to_owned());
        set(port, url);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_the_variables_of_a_kubelet() {
        let services = json!([
            { "metadata": { "name": "redis-master" }, "spec": { "clusterIP": "10.0.0.11", "ports": [
                { "name": "p-q", "port": 6379, "protocol": "TCP" }, { "name": "u", "port": 53, "protocol": "UDP" },
            ] } },
            { "metadata": { "name": "headless" }, "spec": { "clusterIP": "None", "ports": [{ "port": 1 }] } },
            { "metadata": { "name": "external" }, "spec": { "externalName": "x" } },
            { "metadata": { "name": "six" }, "spec": { "clusterIP": "fd00::1", "ports": [{ "port": 80 }] } },
        ]);
        let map = config_map("shop", "", &services);
        assert_eq!(map["metadata"], json!({ "name": "nodlet.services", "namespace": "shop" }));
        assert_eq!(
            map["data"],
            json!({
                "REDIS_MASTER_SERVICE_HOST": "10.0.0.11",
                "REDIS_MASTER_SERVICE_PORT": "6379",
                "REDIS_MASTER_SERVICE_PORT_P_Q": "6379",
                "REDIS_MASTER_SERVICE_PORT_U": "53",
                "REDIS_MASTER_PORT": "tcp://10.0.0.11:6379",
                "REDIS_MASTER_PORT_6379_TCP": "tcp://10.0.0.11:6379",
                "REDIS_MASTER_PORT_6379_TCP_PROTO": "tcp",
                "REDIS_MASTER_PORT_6379_TCP_PORT": "6379",
                "REDIS_MASTER_PORT_6379_TCP_ADDR": "10.0.0.11",
                "REDIS_MASTER_PORT_53_UDP": "udp://10.0.0.11:53",
                "REDIS_MASTER_PORT_53_UDP_PROTO": "udp",
                "REDIS_MASTER_PORT_53_UDP_PORT": "53",
                "REDIS_MASTER_PORT_53_UDP_ADDR": "10.0.0.11",
                "SIX_SERVICE_HOST": "fd00::1",
                "SIX_SERVICE_PORT": "80",
                "SIX_PORT": "tcp://[fd00::1]:80",
                "SIX_PORT_80_TCP": "tcp://[fd00::1]:80",
                "SIX_PORT_80_TCP_PROTO": "tcp",
                "SIX_PORT_80_TCP_PORT": "80",
                "SIX_PORT_80_TCP_ADDR": "fd00::1",
            })
        );
    }

    #[test]
    fn containers_refer_to_the_services_first_and_without_links_to_kubernetes_only() {
        let mut spec = json!({ "containers": [{ "envFrom": [{ "secretRef": { "name": "s" } }] }] });
        assert_eq!(link(&mut spec), ["kubernetes", ""]);
        let names = ["/0/configMapRef/name", "/1/configMapRef/name", "/2/secretRef/name"]
            .map(|pointer| spec["containers"][0]["envFrom"].pointer(pointer).and_then(Value::as_str));
        assert_eq!(names, [Some("nodlet.services.kubernetes"), Some("nodlet.services"), Some("s")]);
        let mut spec = json!({ "enableServiceLinks": false, "initContainers": [{}], "containers": [{}] });
        assert_eq!(link(&mut spec), ["kubernetes"]);
        assert_eq!(spec["initContainers"][0]["envFrom"].as_array().map(Vec::len), Some(1));
        assert!(
            path("shop", "kubernetes").contains("/default/services?fieldSelector=metadata.name%3Dkubernetes")
        );
    }
}
