//! Addresses of pods, and the bridge that connects them.
//!
//! Each pod that does not share the host's network gets an address of one range, and a veth pair to one
//! bridge, whose address, the first of the range, is the pods' gateway. This module makes the bridge and
//! allocates addresses; the supervisor makes a pod's link (`supervisor/src/sandbox.rs`), with the requests of
//! `network/netlink.rs`. What the host accepts from pods is in `network/guard.rs`, what pods can send in
//! `network/filter.rs`. How pods reach the world, and the world their `hostPort`s, is in `network/firewall.rs` and
//! `network/forwarding.rs`. This module must never touch a link, route, table or sysctl of the machine that is not
//! nodlet's, but for the `forwarding` of links.
//! Nodlet's links are recognised by their names, which begin with `nl<hash of the root>`.

mod cluster;
mod conntrack;
mod error;
pub mod filter;
mod firewall;
pub mod foreign;
mod forwarding;
pub mod guard;
pub mod netlink;
mod nfnetlink;
mod nft;
mod range;

use std::fs;
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
use self::netlink::{Netlink, link_index};
pub use self::range::Range;
use self::range::{DEFAULT_RANGE, Ipv6Range};
use crate::launch::{Ipv6Config, NetworkConfig};
use crate::paths::Paths;
use nodlet_core::spec::{Pod, Uid};
use nodlet_rootfs::own_file;

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
    forwarding: Forwarding,
    /// The file with the routes that nodlet has made.
    routes: PathBuf,
    table: TableState,
    /// Pods whose `hostPort`s may be open: the table that the kernel took last has them.
    opened: SortedSet<Uid>,
    /// The ports of UDP in the table that the kernel took last, of which no outdated connection is left.
    udp_ports: Vec<Forward>,
    told_connections: bool,
    /// The kernel does not forward IPv6 packets, which is to be reported.
    lacks_ipv6_forwarding: bool,
    told_ipv6_forwarding: bool,
    /// The machine's own firewall was inspected, which is repeated only when its chains change.
    inspected_foreign: bool,
    told_foreign: bool,
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
            None => match fs::read_to_string(&file) {
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
            forwarding: Forwarding::open(paths.forwarding()),
            routes: paths.routes(),
            table: TableState::Unneeded,
            opened: SortedSet::new(),
            udp_ports: Vec::new(),
            told_connections: false,
            lacks_ipv6_forwarding: false,
            told_ipv6_forwarding: false,
            inspected_foreign: false,
            told_foreign: false,
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
        let free =
            self.range.pods().find(|address| self.addresses.values().all(|taken| ids(taken) != ids(address)));
        let address =
            free.ok_or(NetworkError::Exhausted { range: self.range, pods: self.addresses.len() })?;
        self.addresses.insert(pod.uid.clone(), address);
        if let Some(ipv6) = self.ipv6 {
            let host = u128::from(address.to_bits() & !self.range.mask());
            let address = Ipv6Addr::from_bits(ipv6.base.to_bits() | host);
            self.ipv6_addresses.insert(pod.uid.clone(), address);
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
        let address = self.addresses.remove(uid);
        self.ipv6_addresses.remove(uid);
        // The last pod of an earlier range may be gone.
        if address.is_some_and(|address| !self.range.overlaps(address, 32)) {
            self.follow_ranges();
        }
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
        let installed =
            self.open_ports(&pod.uid, ports).and_then(|()| match uses_sctp && !Firewall::tracks_sctp() {
                true => Err(NetworkError::NoSctp),
                false => Ok(()),
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
        if self.told_foreign {
            return None;
        }
        let text = foreign::warning(&self.bridge, self.ipv6.is_some())?;
        self.told_foreign = true;
        Some(("FirewallDropsPackets", text))
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
        self.follow_ranges();
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
        self.forwarding.switch_on(&self.bridge).map_err(failed)?;
        if self.ipv6.is_some() {
            let forwards = self.forwarding.switch_on_ipv6(&self.bridge).map_err(failed)?;
            self.lacks_ipv6_forwarding = !forwards && !self.told_ipv6_forwarding;
            self.told_ipv6_forwarding |= !forwards;
        }
        self.apply_routes();
        Ok(())
    }

    /// Deletes the kernel's entries of UDP connections that contradict the table, after it has changed.
    fn forget_connections(&mut self) {
        let ports: Vec<Forward> = self.firewall.table.udp_ports().cloned().collect();
        let Some(change) = conntrack::Change::between(&self.udp_ports, &ports) else { return };
        match change.delete_outdated() {
            Ok(_) => self.udp_ports = ports,
            Err(error) if !std::mem::replace(&mut self.told_connections, true) => log::warn!(
                "UDP senders that began before a pod with their hostPort do not reach it while they go on: failed to \
                 delete their entries in the kernel (CONFIG_NF_CT_NETLINK): {error}"
            ),
            Err(_) => {}
        }
    }

    /// A watch of the table, if it is in the kernel.
    pub fn watch(&mut self) -> Option<io::Result<Watch>> {
        (self.table == TableState::Installed).then(|| self.firewall.watch())
    }

    /// Puts the table into the kernel again, after somebody else changed it.
    pub fn repair(&mut self) -> Result<(), NetworkError> {
        self.install()
    }

    /// The links that forward only because of nodlet, for people.
    pub fn forwarding_links(&self) -> String {
        match self.forwarding.links() {
            [] => "no link that nodlet changed".to_owned(),
            links => links.join(", "),
        }
    }

    /// Makes further links forward after an address or the forwarding of a link changed. Returns whether anything was
    /// to be done.
    pub fn follow_links(&mut self) -> Result<bool, NetworkError> {
        let failed = |source| NetworkError::Firewall { source };
        let mut netlink = Netlink::open().map_err(failed)?;
        let changed = self.forwarding.choose(&mut netlink).map_err(failed)?;
        if changed {
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

    /// Makes the bridge, with its address and up, unless it exists. Rejects a range that the machine uses for
    /// something else.
    fn ensure_bridge(&mut self) -> Result<(), NetworkError> {
        let failed = |operation| move |source| NetworkError::Kernel { operation, source };
        let mut netlink = Netlink::open().map_err(failed("open a netlink socket"))?;
        let bridge = link_index(&self.bridge).ok();
        let addresses = netlink.addresses().map_err(failed("list the machine's addresses"))?;
        if bridge.is_some_and(|index| addresses.contains(&(index, self.range.gateway(), self.range.prefix))) {
            self.guard(&mut netlink, bridge.unwrap_or_default())?;
            // A no-op if the bridge is up already, and cheaper than asking.
            return netlink.set_up(bridge.unwrap_or_default()).map_err(failed("set the bridge up"));
        }
        let earlier = self.drop_unused_ranges(&mut netlink, bridge, &addresses);
        self.refuse_overlap(&mut netlink, bridge, addresses)?;
        let index = match bridge {
            Some(index) => {
                if !earlier.is_empty() {
                    log::warn!(
                        "pods have addresses of {} now; those that began with {} keep theirs until they are \
                         replaced, and the bridge {} has the addresses of both until then",
                        self.range,
                        earlier.iter().map(|range| range.to_string()).collect::<Vec<_>>().join(", "),
                        self.bridge
                    );
                }
                index
            }
            None => {
                netlink.add_bridge(&self.bridge).map_err(|source| match source.raw_os_error() {
                    Some(libc::EOPNOTSUPP) => NetworkError::NoBridges,
                    Some(_) | None => NetworkError::Bridge { source },
                })?;
                let index = link_index(&self.bridge).map_err(failed("find the bridge"))?;
                // Otherwise the bridge has the lowest address of its ports, which changes while pods have it
                // in their ARP caches.
                netlink
                    .set_hardware_address(index, hardware_address(self.range.gateway()))
                    .map_err(failed("set the bridge's hardware address"))?;
                index
            }
        };
        self.guard(&mut netlink, index)?;
        netlink
            .add_address(index, self.range.gateway(), self.range.prefix)
            .map_err(failed("give the bridge its address"))?;
        netlink.set_up(index).map_err(failed("set the bridge up"))
    }

    /// Makes the bridge with the index `bridge`, and the pod links of an earlier agent, accept no
    /// configuration from pods. This is done once for each bridge.
    fn guard(&mut self, netlink: &mut Netlink, bridge: u32) -> Result<(), NetworkError> {
        if self.guarded == Some(bridge) {
            return Ok(());
        }
        let failed =
            |source| NetworkError::Kernel { operation: "guard the host against the pods' network", source };
        guard::load_ipv6();
        let links = if_nameindex().map_err(|errno| failed(errno.into()))?;
        for link in &links {
            let name = link.name().to_string_lossy();
            // The bridge's own name is the shortest of them.
            if !name.starts_with(&self.bridge) {
                continue;
            }
            let values = match *name == *self.bridge {
                true => {
                    let installed = self.table == TableState::Installed;
                    guard::bridge_ipv4(installed && self.firewall.table.serves_loopback())
                }
                false => guard::PORT_IPV4,
            };
            let guarded = match self.ipv6 {
                Some(_) if *name == *self.bridge => guard::accept_ipv6(&name),
                Some(_) | None => guard::refuse_ipv6(&name),
            };
            let guarded =
                guarded.map_err(io::Error::from).and_then(|()| netlink.set_ipv4(link.index(), &values));
            match guarded {
                // The link of a pod that was removed meanwhile.
                Err(_) if link_index(&name).is_err() => {}
                guarded => guarded.map_err(failed)?,
            }
        }
        if let Some(ipv6) = self.ipv6 {
            netlink.add_ipv6_address(bridge, ipv6.gateway(), ipv6.prefix).map_err(failed)?;
        }
        if !filter::is_supported(netlink, bridge) {
            log::info!(
                "this kernel cannot filter what pods send (one with CONFIG_BPF_SYSCALL, CONFIG_NET_SCH_INGRESS and \
                 CONFIG_NET_CLS_BPF, or Linux 6.6 with the first, can): a pod with CAP_NET_RAW can send under the \
                 IPv4 address of another"
            );
        }
        self.guarded = Some(bridge);
        Ok(())
    }

    /// Checks that the machine does not use the range for something else.
    pub fn check_range(&self) -> Result<(), NetworkError> {
        let failed = |operation| move |source| NetworkError::Kernel { operation, source };
        let mut netlink = Netlink::open().map_err(failed("open a netlink socket"))?;
        let addresses = netlink.addresses().map_err(failed("list the machine's addresses"))?;
        self.refuse_overlap(&mut netlink, link_index(&self.bridge).ok(), addresses)
    }

    /// The ranges of which the bridge is the gateway, besides the present one: earlier pods began with another
    /// `--pod-cidr`, or in another cluster.
    fn earlier_ranges(&self, bridge: Option<u32>, addresses: &[(u32, Ipv4Addr, u8)]) -> Vec<Range> {
        let ours = addresses.iter().filter(|(index, ..)| Some(*index) == bridge);
        let ranges = ours.filter_map(|(_, gateway, prefix)| Range::of_gateway(*gateway, *prefix));
        ranges.filter(|range| *range != self.range).collect()
    }

    /// Takes the addresses of earlier ranges from the bridge in which no pod has an address: a cluster may give such a
    /// range to another node, whose pods are then elsewhere. Returns the earlier ranges that pods still need.
    fn drop_unused_ranges(
        &self,
        netlink: &mut Netlink,
        bridge: Option<u32>,
        addresses: &[(u32, Ipv4Addr, u8)],
    ) -> Vec<Range> {
        let mut earlier = self.earlier_ranges(bridge, addresses);
        earlier.retain(|range| {
            let is_used = self.addresses.values().any(|address| range.overlaps(*address, 32));
            if !is_used && let Some(bridge) = bridge {
                match netlink.remove_address(bridge, range.gateway(), range.prefix) {
                    Ok(()) => log::info!("no pod has an address of {range} any more"),
                    Err(error) => {
                        log::warn!("failed to remove {} from {}: {error}", range.gateway(), self.bridge)
                    }
                }
            }
            is_used
        });
        earlier
    }

    /// Follows the addresses of the bridge after those of pods have changed: those that no pod needs are removed, and
    /// the table knows the ranges of all pods.
    fn follow_ranges(&mut self) {
        let Ok(bridge) = link_index(&self.bridge) else { return };
        let addresses = Netlink::open().and_then(|mut netlink| Ok((netlink.addresses()?, netlink)));
        let Ok((addresses, mut netlink)) = addresses else { return };
        for earlier in self.drop_unused_ranges(&mut netlink, Some(bridge), &addresses) {
            let range = (earlier.base.into(), earlier.prefix);
            if !self.firewall.table.ranges.contains(&range) {
                self.firewall.table.ranges.push(range);
            }
        }
    }

    fn refuse_overlap(
        &self,
        netlink: &mut Netlink,
        bridge: Option<u32>,
        addresses: Vec<(u32, Ipv4Addr, u8)>,
    ) -> Result<(), NetworkError> {
        let routes = netlink
            .routes()
            .map_err(|source| NetworkError::Kernel { operation: "list the machine's routes", source })?;
        for (what, list) in [("address", addresses), ("route", routes)] {
            for (index, base, prefix) in list {
                let ours = Some(index) == bridge;
                // A default route overlaps everything, but does not conflict.
                if !ours && prefix > 0 && self.range.overlaps(base, prefix) {
                    return Err(NetworkError::Overlap {
                        range: self.range,
                        what,
                        base,
                        prefix,
                        link: link_name(index),
                    });
                }
            }
        }
        Ok(())
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
            // In a cluster, a Service may lead a pod to itself.
            hairpin: self.firewall.table.ports.contains_key(uid) || self.firewall.table.cluster.is_some(),
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
