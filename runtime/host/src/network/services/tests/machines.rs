//! A board with pods, and another machine, each in a network namespace; and Services of two families.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use nodlet_services::data_path::{DataPath, PortPath};
use nodlet_services::service::{Family, Protocol, TrafficPolicy};

use crate::netlink::{Netlink, link_index};
use crate::network::services::Changes;
use crate::network::{Network, hardware_address};
use crate::paths::Paths;

const WAIT: Duration = Duration::from_secs(1);

/// A network namespace, which exists as long as this.
pub(super) struct Namespace {
    pub(super) file: File,
    _end: mpsc::Sender<()>,
}

impl Namespace {
    pub(super) fn new() -> Namespace {
        let ((end, ended), (opened, open)) = (mpsc::channel::<()>(), mpsc::channel());
        thread::spawn(move || {
            nix::sched::unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root");
            opened.send(File::open("/proc/thread-self/ns/net").expect("the namespace")).expect("its user");
            let _ = ended.recv();
        });
        Namespace { file: open.recv().expect("the namespace"), _end: end }
    }

    /// The namespace of this thread.
    pub(super) fn present() -> Namespace {
        Namespace { file: File::open("/proc/thread-self/ns/net").unwrap(), _end: mpsc::channel().0 }
    }

    /// Runs `what` in the namespace. Sockets that it returns stay there.
    pub(super) fn run<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(&self.file, CloneFlags::CLONE_NEWNET).expect("enter the namespace");
                what()
            });
            thread.join().expect("it ran")
        })
    }

    /// Connects the namespace to a bridge.
    pub(super) fn attach(&self, netlink: &mut Netlink, bridge: &str, host_link: &str, ip: [IpAddr; 2]) {
        let IpAddr::V4(ipv4) = ip[0] else { panic!("IPv4 first") };
        let hardware = hardware_address(ipv4);
        let index = link_index(bridge).unwrap();
        netlink.add_veth(host_link, index, ("eth0", hardware), self.file.as_raw_fd()).unwrap();
        let port = link_index(host_link).unwrap();
        netlink.set_port_up(port, false, &crate::network::guard::PORT_IPV4).unwrap();
        netlink.add_forwarding(port, hardware).unwrap();
        netlink.add_neighbour(index, ip[1], hardware).unwrap();
        let of_bridge = netlink.hardware_address(index).unwrap();
        self.run(|| {
            let mut pod = Netlink::open().unwrap();
            pod.set_up(link_index("lo").unwrap()).unwrap();
            let link = link_index("eth0").unwrap();
            for (address, prefix) in [(ip[0], 24), (ip[1], 64)] {
                let gateway: IpAddr = match address {
                    IpAddr::V4(address) => {
                        let [a, b, c, _] = address.octets();
                        [a, b, c, 1].into()
                    }
                    IpAddr::V6(address) => {
                        std::net::Ipv6Addr::from_bits(address.to_bits() & !0xffff | 1).into()
                    }
                };
                pod.add_address(link, address, prefix, None).unwrap();
                pod.set_up(link).unwrap();
                pod.add_neighbour(link, gateway, of_bridge).unwrap();
                pod.add_default_route(link, gateway).unwrap();
            }
        });
    }

    /// Serves TCP and UDP at a port: each client gets `name` and its own address.
    pub(super) fn serve(&self, name: &'static str, port: u16) {
        let (tcp, udp) = self.run(|| {
            let any = (std::net::Ipv6Addr::UNSPECIFIED, port);
            (TcpListener::bind(any).unwrap(), UdpSocket::bind(any).unwrap())
        });
        thread::spawn(move || {
            for client in tcp.incoming() {
                let Ok(mut client) = client else { continue };
                let from = client.peer_addr().unwrap().ip().to_canonical();
                let _ = write!(client, "{name} {from}");
            }
        });
        thread::spawn(move || {
            let mut buffer = [0; 100];
            while let Ok((_, client)) = udp.recv_from(&mut buffer) {
                let _ = udp.send_to(format!("{name} {}", client.ip().to_canonical()).as_bytes(), client);
            }
        });
    }

    pub(super) fn ask(&self, to: &str) -> Result<String, io::ErrorKind> {
        self.run(|| ask(to))
    }
}

/// What the server at an address says to a client of this namespace.
pub(super) fn ask(to: &str) -> Result<String, io::ErrorKind> {
    let asked = || {
        let mut stream = TcpStream::connect_timeout(&to.parse().unwrap(), WAIT)?;
        stream.set_read_timeout(Some(WAIT))?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    };
    asked().map_err(|error: io::Error| error.kind())
}

pub(super) fn ask_udp(socket: &UdpSocket, to: &str) -> Result<String, io::ErrorKind> {
    let asked = || {
        socket.set_read_timeout(Some(WAIT))?;
        socket.send_to(b"?", to)?;
        let mut buffer = [0; 100];
        let length = socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    };
    asked().map_err(|error: io::Error| error.kind())
}

/// Sets whether frames between pods pass the chains of IP.
pub(super) fn set_bridge_nf(passes: bool) {
    for file in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
        // A kernel without br_netfilter has no such file, and behaves as with 0.
        let _ = fs::write(format!("/proc/sys/net/bridge/{file}"), if passes { "1" } else { "0" });
    }
}

/// A board with two pods and another machine.
pub(super) struct Board {
    pub(super) network: Network,
    pub(super) pods: Vec<Namespace>,
    pub(super) lan: Namespace,
    pub(super) bridge_nf: bool,
    _root: tempfile::TempDir,
}

pub(super) fn ips(texts: [&str; 2]) -> [IpAddr; 2] {
    texts.map(|text| text.parse().unwrap())
}

impl Board {
    /// `bridge_nf`: whether frames between pods pass the chains of IP, as where Docker runs.
    pub(super) fn new(bridge_nf: bool) -> Board {
        set_bridge_nf(bridge_nf);
        let root = tempfile::tempdir().expect("a scratch directory");
        let paths = Paths::new(root.path());
        fs::create_dir_all(paths.forwarding().parent().unwrap()).unwrap();
        let mut network = Network::new(&paths, Some("10.85.0.0/24,fd00:10:85::/64"), true).unwrap();
        network.ensure_bridge().unwrap();
        let mut netlink = Netlink::open().unwrap();
        netlink.set_up(link_index("lo").unwrap()).unwrap();
        netlink.add_bridge("uplink").unwrap();
        let uplink = link_index("uplink").unwrap();
        for (address, prefix) in ips(["192.0.2.1", "2001:db8::1"]).into_iter().zip([24, 64]) {
            netlink.add_address(uplink, address, prefix, None).unwrap();
        }
        netlink.set_up(uplink).unwrap();
        let lan = Namespace::new();
        lan.attach(&mut netlink, "uplink", "lan0", ips(["192.0.2.9", "2001:db8::9"]));
        lan.serve("lan", 8080);
        let addresses = [["10.85.0.2", "fd00:10:85::2"], ["10.85.0.3", "fd00:10:85::3"]];
        let pods = addresses.into_iter().zip(["a", "b"]).map(|(address, name)| {
            let pod = Namespace::new();
            pod.attach(&mut netlink, network.bridge(), &format!("{}{name}", network.bridge()), ips(address));
            pod.serve(name, 8080);
            pod
        });
        let board = Board { pods: pods.collect(), network, lan, bridge_nf, _root: root };
        // The kernel tells a bridge up to a second later that a link is up.
        let is_up = || {
            let all = [
                "10.85.0.2",
                "10.85.0.3",
                "192.0.2.9",
                "[fd00:10:85::2]",
                "[fd00:10:85::3]",
                "[2001:db8::9]",
            ];
            all.iter().all(|server| ask(&format!("{server}:8080")).is_ok())
        };
        assert!((0..20).any(|_| is_up()), "the links are up");
        board
    }

    pub(super) fn apply(&mut self, ports: Vec<Port>) -> Changes {
        let path = path(ports);
        let ranges = [("10.96.0.0".parse().unwrap(), 16), ("fd00:10:96::".parse().unwrap(), 112)];
        let mut changes = self.network.apply_services(&path, &ranges).unwrap();
        while changes.has_more {
            let before = changes;
            changes = self.network.proceed_with_services().unwrap();
            assert_eq!(changes.batches, before.batches + 1);
        }
        changes
    }
}

pub(super) fn ends(texts: &[&str]) -> Vec<SocketAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A port of a Service, with the addresses of both families.
#[derive(Clone)]
pub(super) struct Port {
    pub(super) id: String,
    pub(super) protocol: Protocol,
    pub(super) cluster: Vec<SocketAddr>,
    pub(super) external: Vec<SocketAddr>,
    pub(super) node_port: Option<u16>,
    pub(super) affinity_seconds: Option<u32>,
    pub(super) policies: [TrafficPolicy; 2],
    pub(super) everywhere: Vec<SocketAddr>,
    pub(super) here: Vec<SocketAddr>,
    pub(super) has_usable: bool,
}

pub(super) fn path(ports: Vec<Port>) -> DataPath {
    let mut paths = Vec::new();
    for port in ports {
        for cluster in &port.cluster {
            let family = Family::of(cluster.ip());
            let of_family = |ends: &[SocketAddr]| -> Vec<SocketAddr> {
                ends.iter().copied().filter(|end| Family::of(end.ip()) == family).collect()
            };
            let everywhere = of_family(&port.everywhere);
            paths.push(PortPath {
                id: format!("{}/{}", port.id, family.as_str()).into(),
                protocol: port.protocol,
                cluster: *cluster,
                external: of_family(&port.external),
                node_port: port.node_port,
                affinity_seconds: port.affinity_seconds,
                internal_policy: port.policies[0],
                external_policy: port.policies[1],
                here: of_family(&port.here),
                has_usable: port.has_usable,
                may_stay: everywhere.clone(),
                everywhere,
            });
        }
    }
    DataPath { ports: paths }
}

pub(super) fn port(id: &str, cluster: &[&str], to: &[&str]) -> Port {
    Port {
        id: id.to_owned(),
        protocol: Protocol::Tcp,
        cluster: ends(cluster),
        external: Vec::new(),
        node_port: None,
        affinity_seconds: None,
        policies: [TrafficPolicy::Cluster; 2],
        everywhere: ends(to),
        here: Vec::new(),
        has_usable: !to.is_empty(),
    }
}
