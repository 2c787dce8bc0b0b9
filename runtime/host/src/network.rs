//! Addresses of pods, and the bridge that connects them.
//!
//! Each pod that does not share the host's network gets an address of one range, and a veth pair to one
//! bridge, whose address, the first of the range, is the pods' gateway. This module makes the bridge and
//! allocates addresses; the supervisor makes a pod's link (`supervisor/src/sandbox.rs`), with the requests of
//! `netlink.rs`. What the host accepts from pods is in `network/guard.rs`, what pods can send in
//! `network/filter.rs`. How pods reach the world, and the world their `hostPort`s, is in `network/firewall.rs` and
//! `network/forwarding.rs`. This module must never touch a link, route, table or sysctl of the machine that is not
//! nodlet's, but for the `forwarding` of links.
//! Nodlet's links are recognised by their names, which begin with `nl<hash of the root>`.

mod bridge;
mod cluster;
mod conntrack;
mod error;
pub mod filter;
mod firewall;
pub mod foreign;
mod forwarding;
pub mod guard;
mod range;
mod service_range;
mod services;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::PathBuf;

use nix::net::if_::if_nameindex;
use nodlet_core::sorted::{SortedMap, SortedSet};
use sha2::{Digest, Sha256};

pub use self::error::NetworkError;
use self::firewall::{Firewall, Forward};
pub use self::firewall::{TableNews, Watch};
use self::forwarding::Forwarding;
pub use self::range::Range;
use self::range::{DEFAULT_RANGE, Ipv6Range};
pub use self::service_range::ServiceOverlap;
pub use self::services::Changes;
use self::services::ServiceTable;
use self::services::rules::{BOARD_PRIORITY, CLUSTER_PRIORITY};
use crate::launch::{Ipv6Config, NetworkConfig};
use crate::netlink::{Netlink, link_index};
use crate::paths::Paths;
use nodlet_core::spec::{Pod, Uid};
use nodlet_kernel::own_file;

/// The beginning of the names of bridges and pods' links, of all agents of the machine.
const BRIDGES: &str = "nl";

/// The addresses of this node's pods.
#[derive(Debug)]
pub struct Network {
    range: Range,
    ipv6: Option<Ipv6Range>,
    /// The ranges of the configuration, which those of a cluster replace.
    configured: (Range, Option<Ipv6Range>),
    bridge: String,
    addresses: SortedMap<Uid, Ipv4Addr>,
    ipv6_addresses: SortedMap<Uid, Ipv6Addr>,
    /// The index of the bridge whose links this agent has guarded.
    guarded: Option<u32>,
    firewall: Firewall,
    services: ServiceTable,
    /// Those of the cluster that the board has joined.
    cluster_services: ServiceTable,
    forwarding: Forwarding,
    /// The file with the routes that nodlet has made.
    routes: PathBuf,
    table: TableState,
    /// Pods whose `hostPort`s may be open: the table that the kernel took last has them.
    opened: SortedSet<Uid>,
    /// The ports of UDP in the table that the kernel took last, of which no outdated connection is left.
    udp_ports: Vec<Forward>,
    logged_connections: bool,
    /// The kernel does not forward IPv6 packets, which is to be reported.
    lacks_ipv6_forwarding: bool,
    logged_ipv6_forwarding: bool,
    /// The machine's own firewall was inspected, which is repeated only when its chains change.
    inspected_foreign: bool,
    logged_foreign: bool,
}

/// A warning for the owner of the machine: the reason of its event, and the text.
pub type Warning = (&'static str, String);

/// The reason of warnings about what nodlet's table cannot do.
const UNTRANSLATED: &str = "AddressTranslationFailed";

/// Whether nodlet's nftables table is in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableState {
    /// No pod has needed the table yet.
    Unneeded,
    Installed,
    /// The kernel refused the table. Only a pod with a `hostPort` tries again.
    Refused,
}

/// The bits of a pod's address from which the IDs of its user namespace follow. No two pods have the same ones, even if
/// one keeps an address of an earlier range.
pub const USER_IDS: u32 = 0x7fff;

impl Network {
    /// Reads the range: that of the flag, otherwise that of the root's file, otherwise the default. The one that a
    /// cluster has assigned replaces it.
    /// `masquerade`: whether pods reach the world under the address of the machine.
    pub fn new(paths: &Paths, cidr: Option<&str>, masquerade: bool) -> Result<Network, NetworkError> {
        let file = paths.pod_cidr();
        let (range, ipv6) = match cidr {
            Some(text) => Range::parse_all(text).map_err(|wrong| NetworkError::Range {
                origin: "--pod-cidr".to_owned(),
                text: text.to_owned(),
                wrong,
            })?,
            None => match own_file::read_linked(&file) {
                Ok(text) => Range::parse_all(text.trim()).map_err(|wrong| NetworkError::Range {
                    origin: file.display().to_string(),
                    text: text.trim().to_owned(),
                    wrong,
                })?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => (DEFAULT_RANGE, None),
                Err(source) => return Err(NetworkError::ReadRange { path: file, source }),
            },
        };
        let mut network = Network::of(paths, range, ipv6, masquerade);
        if let Ok(text) = own_file::read_to_string(&paths.cluster_network())
            && let Err(error) = network.read_cluster(Some(&text), &[])
        {
            log::error!("failed to {}", crate::error::chain(&error));
        }
        Ok(network)
    }

    /// Whether pods have IPv6 addresses.
    pub fn has_ipv6(&self) -> bool {
        self.ipv6.is_some()
    }

    /// A network for removing everything: it allocates no address, so the configured range is not read.
    pub fn without_range(paths: &Paths) -> Network {
        Network::of(paths, DEFAULT_RANGE, None, false)
    }

    fn of(paths: &Paths, range: Range, ipv6: Option<Ipv6Range>, masquerade: bool) -> Network {
        let bridge = format!("{BRIDGES}{}", paths.hash());
        Network {
            range,
            ipv6,
            configured: (range, ipv6),
            addresses: SortedMap::new(),
            ipv6_addresses: SortedMap::new(),
            guarded: None,
            firewall: Firewall::new(&paths.hash(), &bridge, masquerade, &cluster::all(range, ipv6)),
            services: ServiceTable::new(&paths.hash(), &bridge, BOARD_PRIORITY),
            cluster_services: ServiceTable::new(
                &format!("{}-cluster", paths.hash()),
                &bridge,
                CLUSTER_PRIORITY,
            ),
            forwarding: Forwarding::open(paths.forwarding()),
            routes: paths.routes(),
            table: TableState::Unneeded,
            opened: SortedSet::new(),
            udp_ports: Vec::new(),
            logged_connections: false,
            lacks_ipv6_forwarding: false,
            logged_ipv6_forwarding: false,
            inspected_foreign: false,
            logged_foreign: false,
            bridge,
        }
    }

    /// Allocates the lowest free address for `pod`, or returns the one that it has; `None` with
    /// `hostNetwork`.
    pub fn allocate(&mut self, pod: &Pod) -> Result<Option<Ipv4Addr>, NetworkError> {
        if pod.spec.host_network {
            return Ok(None);
        }
        if let Some(known) = self.address_of(&pod.uid) {
            return Ok(Some(known));
        }
        let ids = |address: &Ipv4Addr| address.to_bits() & USER_IDS;
        let with_ipv6 = |address: Ipv4Addr| {
            let host = u128::from(address.to_bits() & !self.range.mask());
            (address, self.ipv6.map(|ipv6| Ipv6Addr::from_bits(ipv6.base.to_bits() | host)))
        };
        // A pod of an earlier IPv4 range may have the IPv6 address, if the IPv6 range is the same.
        let is_free = |(address, ipv6): &(Ipv4Addr, Option<Ipv6Addr>)| {
            self.addresses.values().all(|taken| ids(taken) != ids(address))
                && self.ipv6_addresses.values().all(|taken| Some(*taken) != *ipv6)
        };
        let free = self.range.pods().map(with_ipv6).find(is_free);
        let (address, ipv6) =
            free.ok_or(NetworkError::Exhausted { range: self.range, pods: self.addresses.len() })?;
        self.addresses.insert(pod.uid.clone(), address);
        if let Some(ipv6) = ipv6 {
            self.ipv6_addresses.insert(pod.uid.clone(), ipv6);
        }
        Ok(Some(address))
    }

    /// Records the address that an earlier agent allocated for a pod, and the ports of the host that lead to it.
    /// [`Network::restore`] puts them into effect.
    pub fn adopt(&mut self, pod: &Pod, ip: Ipv4Addr, ipv6: Option<Ipv6Addr>) {
        self.addresses.insert(pod.uid.clone(), ip);
        if let Some(ipv6) = ipv6 {
            self.ipv6_addresses.insert(pod.uid.clone(), ipv6);
        }
        let ports = firewall::forwards(pod, &self.all_addresses(&pod.uid, ip)).unwrap_or_default();
        if !ports.is_empty() {
            self.firewall.table.ports.insert(pod.uid.clone(), ports);
            self.opened.insert(pod.uid.clone());
        }
    }

    /// Closes the ports of the host that lead to a pod, and then releases its address: no other pod may get it while a
    /// port still leads there.
    pub fn release(&mut self, uid: &Uid) -> Result<(), NetworkError> {
        if let Some(ports) = self.firewall.table.ports.remove(uid)
            && self.opened.contains(uid)
            && let Err(error) = self.install()
        {
            self.firewall.table.ports.insert(uid.clone(), ports);
            return Err(error);
        }
        self.forget_addresses(uid);
        Ok(())
    }

    /// The name of the bridge, with which the names of pods' links begin.
    pub fn bridge(&self) -> &str {
        &self.bridge
    }

    /// Connects a pod that has an address with the world: makes the bridge, lets the pod reach other machines, and
    /// forwards its `hostPort`s to it. Returns a warning, once, if the kernel cannot do the second.
    pub fn connect(&mut self, pod: &Pod, ip: Ipv4Addr) -> Result<Option<Warning>, NetworkError> {
        self.ensure_bridge()?;
        let ports = firewall::forwards(pod, &self.all_addresses(&pod.uid, ip)).map_err(NetworkError::Port)?;
        if ports.is_empty() {
            return Ok(self.masquerade());
        }
        let uses_sctp = ports.iter().any(|port| i32::from(port.protocol) == libc::IPPROTO_SCTP);
        let installed = self.open_ports(&pod.uid, ports).and_then(|()| {
            if uses_sctp && !Firewall::tracks_sctp() { Err(NetworkError::NoSctp) } else { Ok(()) }
        });
        if installed.is_err() {
            let _ = self.release(&pod.uid);
        }
        installed.map(|()| self.warning())
    }

    fn all_addresses(&self, uid: &Uid, ip: Ipv4Addr) -> Vec<IpAddr> {
        [IpAddr::V4(ip)].into_iter().chain(self.ipv6_of(uid).map(IpAddr::V6)).collect()
    }

    /// A warning, once, if the machine's own firewall drops the packets of pods, or if the kernel does not forward IPv6
    /// packets link by link.
    fn warning(&mut self) -> Option<Warning> {
        if !std::mem::replace(&mut self.inspected_foreign, true)
            && let Some(warning) = self.foreign_warning()
        {
            return Some(warning);
        }
        let text = (std::mem::take(&mut self.lacks_ipv6_forwarding)).then(|| {
            "pods reach no other machine by IPv6, and none reaches their hostPorts: before Linux 6.17, the kernel forwards \
             IPv6 packets only with net.ipv6.conf.all.forwarding=1, which nodlet does not set, because links then ignore \
             router advertisements, unless they have accept_ra=2"
                .to_owned()
        })?;
        Some((UNTRANSLATED, text))
    }

    /// A warning, once, if the machine's own firewall drops the packets of pods.
    pub fn foreign_warning(&mut self) -> Option<Warning> {
        if self.logged_foreign {
            return None;
        }
        let text = foreign::warning(&self.bridge, self.routes_ipv6())?;
        self.logged_foreign = true;
        Some(("FirewallDropsPackets", text))
    }

    /// How the machine's own firewall drops what pods send to the board, such as queries to its name server, if it does.
    pub fn input_dropped(&self) -> Option<String> {
        foreign::input_dropped(&self.bridge, self.routes_ipv6())
    }

    fn open_ports(&mut self, uid: &Uid, ports: Vec<Forward>) -> Result<(), NetworkError> {
        self.firewall.table.ports.insert(uid.clone(), ports);
        self.install()
    }

    /// Lets pods reach other machines, unless that is done or not wanted.
    fn masquerade(&mut self) -> Option<Warning> {
        if self.table != TableState::Unneeded {
            return None;
        }
        // A firewall drops the packets of pods whether they are translated or not.
        if !self.firewall.table.masquerade && self.firewall.table.cluster.is_none() {
            return self.warning();
        }
        let Err(error) = self.install() else { return self.warning() };
        Some((
            UNTRANSLATED,
            format!("pods reach no other machine: failed to {}", crate::error::chain(&error)),
        ))
    }

    /// Puts the table into the kernel again for the pods that an earlier agent left. Returns a warning if that fails.
    pub fn restore(&mut self) -> Option<Warning> {
        // The table is not in the kernel yet.
        let _ = self.follow_ranges();
        if self.addresses.is_empty() || link_index(&self.bridge).is_err() {
            return None;
        }
        if self.firewall.table.ports.is_empty() {
            return self.masquerade();
        }
        let Err(error) = self.install() else { return self.warning() };
        let text =
            format!("the hostPorts of running pods lead nowhere: failed to {}", crate::error::chain(&error));
        Some((UNTRANSLATED, text))
    }

    /// Puts the table into the kernel, and makes it forward packets.
    fn install(&mut self) -> Result<(), NetworkError> {
        let failed = |source| NetworkError::Firewall { source };
        let mut netlink = Netlink::open().map_err(failed)?;
        self.forwarding.choose(&mut netlink).map_err(failed)?;
        self.firewall.table.uplinks = self.forwarding.links().to_vec();
        self.firewall.table.bridges_translate = guard::bridges_translate();
        let serves_loopback = self.firewall.table.serves_loopback();
        let applied = self.firewall.apply().map_err(firewall::explain);
        self.table = if applied.is_ok() { TableState::Installed } else { TableState::Refused };
        applied.map_err(failed)?;
        self.opened = self.firewall.table.ports.keys().cloned().collect();
        self.forget_connections();
        // The table comes first: it restricts what these allow.
        if let Ok(bridge) = link_index(&self.bridge) {
            netlink.set_ipv4(bridge, &guard::bridge_ipv4(serves_loopback)).map_err(failed)?;
        }
        let [pods, of_cluster] = self.service_pods();
        if self.services.is_for_other(&pods) || self.cluster_services.is_for_other(&of_cluster) {
            self.restore_services()?;
        }
        self.forwarding.switch_on(&self.bridge).map_err(failed)?;
        if self.routes_ipv6() {
            let forwards = self.forwarding.switch_on_ipv6(&self.bridge).map_err(failed)?;
            self.lacks_ipv6_forwarding = !forwards && !self.logged_ipv6_forwarding;
            self.logged_ipv6_forwarding |= !forwards;
        }
        self.apply_routes();
        Ok(())
    }

    /// Whether the table was made for bridges that translate otherwise: Docker loads br_netfilter when it starts.
    fn is_for_other_bridges(&self) -> bool {
        self.table == TableState::Installed
            && self.firewall.table.bridges_translate != guard::bridges_translate()
    }

    /// Deletes the kernel's entries of UDP connections that contradict the table, after it has changed.
    fn forget_connections(&mut self) {
        let ports: Vec<Forward> = self.firewall.table.udp_ports().cloned().collect();
        let Some(change) = conntrack::Change::between(&self.udp_ports, &ports) else { return };
        match change.delete_outdated() {
            Ok(_) => self.udp_ports = ports,
            Err(error) if !std::mem::replace(&mut self.logged_connections, true) => log::warn!(
                "UDP senders that began before a pod with their hostPort do not reach it while they go on: failed to \
                 delete their entries in the kernel (CONFIG_NF_CT_NETLINK): {error}"
            ),
            Err(_) => {}
        }
    }

    /// A watch of the table, if it is in the kernel.
    pub fn watch(&mut self) -> Option<io::Result<Watch>> {
        let others = [self.services.names(), self.cluster_services.names()].concat();
        (self.table == TableState::Installed).then(|| self.firewall.watch(&others))
    }

    /// Puts the tables into the kernel again, after somebody else changed one.
    pub fn repair(&mut self) -> Result<(), NetworkError> {
        self.install()?;
        self.restore_services()
    }

    /// The links that forward only because of nodlet.
    pub fn forwarding_links(&self) -> &[String] {
        self.forwarding.links()
    }

    /// Makes further links forward after an address or the forwarding of a link changed. Returns whether anything was
    /// to be done.
    pub fn follow_links(&mut self) -> Result<bool, NetworkError> {
        let failed = |source| NetworkError::Firewall { source };
        let mut netlink = Netlink::open().map_err(failed)?;
        let changed = self.forwarding.choose(&mut netlink).map_err(failed)?;
        if changed || self.is_for_other_bridges() {
            self.install()?;
        } else {
            self.forwarding.switch_on(&self.bridge).map_err(failed)?;
            // The kernel removes routes with the address of their link.
            self.apply_routes();
        }
        Ok(changed)
    }

    /// The address of a pod.
    pub fn address_of(&self, uid: &Uid) -> Option<Ipv4Addr> {
        self.addresses.get(uid).copied()
    }

    /// The IPv6 address of a pod, if it has one.
    pub fn ipv6_of(&self, uid: &Uid) -> Option<Ipv6Addr> {
        self.ipv6_addresses.get(uid).copied()
    }

    /// The network configuration with which the supervisor of a pod makes its link.
    pub fn config(&self, uid: &Uid, ip: Ipv4Addr) -> NetworkConfig {
        NetworkConfig {
            bridge: self.bridge.clone(),
            host_link: self.host_link(uid, ip),
            address: ip,
            prefix: self.range.prefix,
            gateway: self.range.gateway(),
            ipv6: self.ipv6_of(uid).zip(self.ipv6).map(|(address, range)| Ipv6Config {
                address,
                prefix: range.prefix,
                gateway: range.gateway(),
            }),
            // A Service, also one of a cluster, may lead a pod to itself.
            hairpin: self.firewall.table.ports.contains_key(uid)
                || self.firewall.table.cluster.is_some()
                || self.firewall.table.has_services,
            interfaces: Vec::new(),
        }
    }

    /// The name of the host's end of a pod's link: 15 bytes, the maximum for a link. The first ten mark it as
    /// nodlet's; the other five are 25 bits: the host part of the address, unique among living pods, and for
    /// the rest bits of the uid. The uid is needed because the link of a removed pod exists until the kernel
    /// has destroyed its namespace, when its address may belong to another pod already.
    pub fn host_link(&self, uid: &Uid, ip: Ipv4Addr) -> String {
        const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
        let digest = Sha256::digest(uid.0.as_bytes());
        let uid_bits = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        let host = !self.range.mask();
        // The widest range, /8, has 24 bits of address: 25 hold them all.
        let bits = ip.to_bits() & host | uid_bits & !host;
        let mut name = self.bridge.clone();
        name.extend((0..5).rev().map(|digit| char::from(DIGITS[(bits >> (5 * digit) & 31) as usize])));
        name
    }

    /// The address under which other machines reach this one: that of the interface of the default route,
    /// otherwise the bridge's if it exists, otherwise the loopback address.
    pub fn host_ip(&self) -> Option<Ipv4Addr> {
        // Connecting a UDP socket sends nothing; the kernel chooses the address that it would send from.
        const FAR: (Ipv4Addr, u16) = (Ipv4Addr::new(203, 0, 113, 1), 9);
        let local = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
            socket.connect(FAR)?;
            socket.local_addr()
        });
        match local.map(|address| address.ip()) {
            Ok(IpAddr::V4(address)) => Some(address),
            Ok(IpAddr::V6(_)) | Err(_) if link_index(&self.bridge).is_ok() => Some(self.range.gateway()),
            Ok(IpAddr::V6(_)) | Err(_) => Some(Ipv4Addr::LOCALHOST),
        }
    }

    /// The IPv6 address under which other machines reach this one, if pods have IPv6 addresses: that of the interface
    /// of the default route, otherwise the bridge's.
    pub fn host_ipv6(&self) -> Option<Ipv6Addr> {
        const FAR: (Ipv6Addr, u16) = (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9);
        let range = self.ipv6?;
        let local = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).and_then(|socket| {
            socket.connect(FAR)?;
            socket.local_addr()
        });
        match local.map(|address| address.ip()) {
            Ok(IpAddr::V6(address)) => Some(address),
            Ok(IpAddr::V4(_)) | Err(_) => link_index(&self.bridge).is_ok().then(|| range.gateway()),
        }
    }

    /// Removes the bridge, every link of nodlet, and its nftables table.
    pub fn remove(&mut self) -> Result<(), NetworkError> {
        self.firewall.table.cluster = None;
        self.apply_routes();
        if self.forwarding.has_begun() {
            let failed = |source| NetworkError::Firewall { source };
            self.forwarding.switch_off().map_err(failed)?;
            self.firewall.remove().map_err(failed)?;
            let socket = self.firewall.socket().map_err(failed)?;
            self.services.remove(socket).map_err(failed)?;
            self.cluster_services.remove(socket).map_err(failed)?;
        }
        let failed = |operation| move |source| NetworkError::Kernel { operation, source };
        let links = if_nameindex().map_err(io::Error::from).map_err(failed("list the machine's links"))?;
        let mut netlink = Netlink::open().map_err(failed("open a netlink socket"))?;
        for link in &links {
            let name = link.name().to_string_lossy();
            // The bridge's own name is the shortest of them.
            if name.starts_with(&self.bridge) {
                match netlink.remove_link(&name) {
                    // The other end of the pair was removed first.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed.map_err(failed("remove a link"))?,
                }
            }
        }
        Ok(())
    }
}

/// Whether a link is the bridge of an agent of the machine, or the link of one of its pods.
fn is_of_an_agent(name: &str) -> bool {
    let hash = name.strip_prefix(BRIDGES).and_then(|rest| rest.as_bytes().get(..8));
    hash.is_some_and(|hash| hash.iter().all(u8::is_ascii_hexdigit))
}

fn link_name(index: u32) -> String {
    let links = if_nameindex().ok();
    let name = links.as_ref().and_then(|links| links.iter().find(|link| link.index() == index));
    name.map_or_else(|| format!("link {index}"), |link| link.name().to_string_lossy().into_owned())
}

/// The hardware address for the owner of `address`. It depends on the IP address alone, so that a pod that
/// reuses an earlier pod's address is found at once: the neighbours' ARP entries stay valid.
pub fn hardware_address(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    // Locally administered, unicast.
    [0x0a, 0x58, a, b, c, d]
}

#[cfg(test)]
mod tests;
