//! The variables of Services in containers (`pkg/kubelet/envvars`), which docker's links had.

use core::net::SocketAddr;

use crate::service::Service;

/// The variables for these Services, in the order of a kubelet for each of them. Headless Services and those of the
/// type ExternalName have none. The caller passes the Services of the pod's namespace, if the pod has
/// `enableServiceLinks`.
pub fn variables<'a>(services: impl IntoIterator<Item = &'a Service>) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for service in services {
        let (Some(address), Some(first)) = (service.cluster_ips.first(), service.ports.first()) else {
            continue;
        };
        let prefix = upper(&service.name);
        variables.push((format!("{prefix}_SERVICE_HOST"), address.to_string()));
        variables.push((format!("{prefix}_SERVICE_PORT"), first.port.to_string()));
        for port in service.ports.iter().filter(|port| !port.name.is_empty()) {
            variables.push((format!("{prefix}_SERVICE_PORT_{}", upper(&port.name)), port.port.to_string()));
        }
        for (index, port) in service.ports.iter().enumerate() {
            let protocol = port.protocol.as_str();
            let lower = protocol.to_ascii_lowercase();
            let url = format!("{lower}://{}", SocketAddr::new(*address, port.port));
            if index == 0 {
                variables.push((format!("{prefix}_PORT"), url.clone()));
            }
            let prefix = format!("{prefix}_PORT_{}_{protocol}", port.port);
            variables.push((prefix.clone(), url));
            variables.push((format!("{prefix}_PROTO"), lower));
            variables.push((format!("{prefix}_PORT"), port.port.to_string()));
            variables.push((format!("{prefix}_ADDR"), address.to_string()));
        }
    }
    variables
}

fn upper(name: &str) -> String {
    name.to_ascii_uppercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::variables;
    use crate::service::Service;

    fn service(spec: serde_json::Value) -> Service {
        let object = json!({"metadata": {"namespace": "default", "name": "my-db"}, "spec": spec});
        Service::parse(&object).expect("it is valid")
    }

    #[test]
    fn a_service_has_the_variables_of_a_kubelet_in_its_order() {
        let service = service(json!({
            "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7", "fd00::7"], "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{"name": "sql", "port": 5432}, {"name": "x-y", "port": 53, "protocol": "UDP"}],
        }));
        let lines: Vec<String> =
            variables([&service]).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            lines,
            [
                "MY_DB_SERVICE_HOST=10.0.0.7",
                "MY_DB_SERVICE_PORT=5432",
                "MY_DB_SERVICE_PORT_SQL=5432",
                "MY_DB_SERVICE_PORT_X_Y=53",
                "MY_DB_PORT=tcp://10.0.0.7:5432",
                "MY_DB_PORT_5432_TCP=tcp://10.0.0.7:5432",
                "MY_DB_PORT_5432_TCP_PROTO=tcp",
                "MY_DB_PORT_5432_TCP_PORT=5432",
                "MY_DB_PORT_5432_TCP_ADDR=10.0.0.7",
                "MY_DB_PORT_53_UDP=udp://10.0.0.7:53",
                "MY_DB_PORT_53_UDP_PROTO=udp",
                "MY_DB_PORT_53_UDP_PORT=53",
                "MY_DB_PORT_53_UDP_ADDR=10.0.0.7",
            ]
        );
    }

    #[test]
    fn an_address_of_ipv6_is_in_brackets_before_a_port() {
        let service = service(json!({"clusterIP": "fd00::7", "ports": [{"port": 80}]}));
        let found = variables([&service]);
        assert!(found.contains(&("MY_DB_PORT".to_owned(), "tcp://[fd00::7]:80".to_owned())), "{found:?}");
        assert!(found.contains(&("MY_DB_SERVICE_HOST".to_owned(), "fd00::7".to_owned())), "{found:?}");
    }

    #[test]
    fn services_without_address_have_no_variables() {
        let headless = service(json!({"clusterIP": "None", "ports": [{"port": 80}]}));
        let external = service(json!({"type": "ExternalName", "externalName": "a.example"}));
        assert_eq!(variables([&headless, &external]), []);
    }
}
