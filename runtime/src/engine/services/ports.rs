//! The ports of the board that no Service may have: those that pods have (`hostPort`), and those on which a process of the
//! board listens.

use std::fs;
use std::net::Ipv4Addr;

use nodlet_services::allocation::ReservedPort;
use nodlet_services::service::Protocol;

use crate::engine::Engine;

/// The kernel's tables of sockets, with the state of a socket that waits for others: TCP_LISTEN, or for UDP TCP_CLOSE, which
/// is not connected.
const TABLES: [(&str, Protocol, &str); 4] = [
    ("/proc/self/net/tcp", Protocol::Tcp, "0A"),
    ("/proc/self/net/tcp6", Protocol::Tcp, "0A"),
    ("/proc/self/net/udp", Protocol::Udp, "07"),
    ("/proc/self/net/udp6", Protocol::Udp, "07"),
];

impl Engine {
    /// Reads on which ports processes of the board listen, and tells the registry which ports no Service may have.
    /// Returns whether they have changed.
    pub(in crate::engine) fn reserve_ports(&mut self) -> bool {
        let own = self.shell.machine.network.borrow().gateway();
        *self.shell.services.listening.borrow_mut() = listening(own);
        self.reserve_host_ports()
    }

    /// Tells the registry which ports pods have, besides those on which processes listened before. A pod that the node has
    /// not admitted has none. Returns whether they have changed.
    pub(in crate::engine) fn reserve_host_ports(&mut self) -> bool {
        let mut reserved = self.shell.services.listening.borrow().clone();
        for state in self.node.pods().filter(|state| state.is_admitted() && !state.phase().is_terminal()) {
            let pod = state.pod();
            reserved.extend(pod.host_ports().filter_map(|(_, port)| {
                Some(ReservedPort {
                    port: port.host_port,
                    protocol: Protocol::named(&port.protocol)?,
                    holder: format!("the hostPort of pod {}/{}", pod.namespace, pod.name).into(),
                })
            }));
        }
        self.registry.reserve_ports(reserved)
    }
}

/// The ports on which processes of the board listen, at any of its addresses but the loopback and `own`, that of the pods'
/// bridge.
pub(in crate::engine) fn listening(own: Ipv4Addr) -> Vec<ReservedPort> {
    let mut found = Vec::new();
    for (table, protocol, state) in TABLES {
        // The kernel may lack IPv6.
        let table = fs::read_to_string(table).unwrap_or_default();
        found.extend(table.lines().skip(1).filter_map(|line| port_of(line, state, own)).map(|port| {
            ReservedPort { port, protocol, holder: "a process of the board, which listens there".into() }
        }));
    }
    found
}

/// The port of a line of a table of sockets, if the socket has this state and an address that other machines reach.
fn port_of(line: &str, state: &str, own: Ipv4Addr) -> Option<u16> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (local, found) = (words.next()?, words.nth(1)?);
    let (address, port) = local.split_once(':')?;
    // Words of 32 bits in the byte order of the machine: 127.0.0.0/8 and ::1.
    let is_unreachable = match address.len() {
        8 => u32::from_str_radix(address, 16).is_ok_and(|word| {
            let address = Ipv4Addr::from(word.to_ne_bytes());
            address.is_loopback() || address == own
        }),
        _ => address
            .strip_prefix("000000000000000000000000")
            .is_some_and(|last| u32::from_str_radix(last, 16).is_ok_and(|word| u32::from_be(word) == 1)),
    };
    (found == state && !is_unreachable).then(|| u16::from_str_radix(port, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 85, 0, 1);

    #[test]
    fn ports_are_read_of_sockets_that_listen_where_others_reach_them() {
        let loopback = format!("{:08X}", u32::from_ne_bytes([127, 0, 0, 1]));
        let loopback_ipv6 = format!("{:024X}{:08X}", 0, 1_u32.to_be());
        let any_ipv6 = "0".repeat(32);
        for (local, state, expected) in [
            ("00000000:0016", "0A", Some(22)),
            ("00000000:0016", "01", None),
            (&*format!("{any_ipv6}:1F90"), "0A", Some(8080)),
            (&*format!("{loopback}:0050"), "0A", None),
            (&*format!("{:08X}:0035", u32::from_ne_bytes(OWN.octets())), "0A", None),
            (&*format!("{loopback_ipv6}:0050"), "0A", None),
            ("00000000", "0A", None),
        ] {
            let line =
                format!("   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 1 1");
            assert_eq!(port_of(&line, "0A", OWN), expected, "{line}");
        }
        assert_eq!(port_of("", "0A", OWN), None);
    }

    #[test]
    fn a_socket_that_listens_is_found() {
        let socket = std::net::TcpListener::bind("0.0.0.0:0").expect("a port is free");
        let port = socket.local_addr().expect("it is bound").port();
        assert!(listening(OWN).iter().any(|one| one.port == port && one.protocol == Protocol::Tcp));
        drop(socket);
        assert!(!listening(OWN).iter().any(|one| one.port == port && one.protocol == Protocol::Tcp));
    }
}
