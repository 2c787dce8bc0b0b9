//! The ports on which processes of the board listen, which no Service of the cluster takes from them.

use core::net::IpAddr;
use std::collections::BTreeSet;

use nodlet_services::allocation::ReservedPort;
use nodlet_services::data_path::DataPath;

/// Removes from `path` the node ports, and the external addresses of the board with a port, on which a process of the board
/// listens (`listening`): whoever may write a Service of the cluster must not get the connections to the board's SSH.
/// kube-proxy does not look. `is_own` is whether an address is one of the board's. Returns what was removed, as
/// `ID: ADDRESS`.
pub fn leave_own_ports(
    path: &mut DataPath,
    listening: &[ReservedPort],
    is_own: impl Fn(IpAddr) -> bool,
) -> BTreeSet<String> {
    let mut removed = BTreeSet::new();
    for port in &mut path.ports {
        let is_listening =
            |number: u16| listening.iter().any(|one| one.protocol == port.protocol && one.port == number);
        if let Some(number) = port.node_port.filter(|number| is_listening(*number)) {
            port.node_port = None;
            removed.insert(format!("{}: the node port {number}", port.id));
        }
        port.external.retain(|end| {
            let is_taken = is_listening(end.port()) && is_own(end.ip());
            if is_taken {
                removed.insert(format!("{}: {end}", port.id));
            }
            !is_taken
        });
    }
    removed
}

#[cfg(test)]
mod tests {
    use nodlet_services::data_path::PortPath;
    use nodlet_services::service::{Protocol, TrafficPolicy};

    use super::*;

    fn port(protocol: Protocol, external: &[&str], node_port: u16) -> PortPath {
        PortPath {
            id: "shop/web:22/TCP/IPv4".into(),
            protocol,
            cluster: "10.96.0.7:22".parse().expect("an address"),
            external: external.iter().map(|end| end.parse().expect("an address")).collect(),
            node_port: Some(node_port),
            affinity_seconds: None,
            internal_policy: TrafficPolicy::Cluster,
            external_policy: TrafficPolicy::Cluster,
            everywhere: vec![],
            here: vec![],
            has_usable: false,
            may_stay: vec![],
        }
    }

    #[test]
    fn a_port_on_which_the_board_listens_stays_with_it() {
        let own: IpAddr = "192.0.2.1".parse().expect("an address");
        let listens = |protocol, port| ReservedPort { port, protocol, holder: "a process".into() };
        let listening = [listens(Protocol::Tcp, 22), listens(Protocol::Udp, 30053)];
        let external = ["192.0.2.1:22", "192.0.2.9:22", "192.0.2.1:80"];
        let mut path = DataPath {
            ports: vec![port(Protocol::Tcp, &external, 30053), port(Protocol::Udp, &external, 30053)],
        };
        let removed = leave_own_ports(&mut path, &listening, |address| address == own);
        let removed: Vec<&str> = removed.iter().map(String::as_str).collect();
        assert_eq!(
            removed,
            ["shop/web:22/TCP/IPv4: 192.0.2.1:22", "shop/web:22/TCP/IPv4: the node port 30053"]
        );
        assert_eq!(path.ports[0], port(Protocol::Tcp, &external[1..], 30053));
        assert_eq!((path.ports[1].external.len(), path.ports[1].node_port), (3, None));
    }
}
