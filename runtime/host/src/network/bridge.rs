//! The bridge of the pods' links, and the ranges of which it is the gateway: the present ones, and those with which
//! running pods began. Both families are handled alike.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use nix::net::if_::if_nameindex;
use nodlet_core::spec::Uid;

use super::range::AnyRange;
use super::{Network, NetworkError, TableState, filter, guard, hardware_address, link_name};
use crate::netlink::{Netlink, link_index};

impl Network {
    /// Makes the bridge, with its addresses and up, unless it exists. Rejects a range that the machine uses for
    /// something else.
    pub fn ensure_bridge(&mut self) -> Result<(), NetworkError> {
        let failed = |operation| move |source| NetworkError::Kernel { operation, source };
        let mut netlink = Netlink::open().map_err(failed("open a netlink socket"))?;
        let bridge = link_index(&self.bridge).ok();
        let addresses = netlink.all_addresses().map_err(failed("list the machine's addresses"))?;
        let earlier = self.drop_unused_ranges(&mut netlink, bridge, &addresses);
        let missing = self.missing_gateways(bridge, &addresses);
        if let Some(bridge) = bridge
            && missing.is_empty()
        {
            self.guard(&mut netlink, bridge)?;
            // A no-op if the bridge is up already, and cheaper than asking.
            return netlink.set_up(bridge).map_err(failed("set the bridge up"));
        }
        self.refuse_overlap(&mut netlink, bridge, &addresses)?;
        let index = match bridge {
            Some(index) => {
                if !earlier.is_empty() {
                    log::warn!(
                        "pods have addresses of {} now; those that began with {} keep theirs until they are \
                         replaced, and the bridge {} has the addresses of both until then",
                        listed(&self.ranges()),
                        listed(&earlier),
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
        for range in missing {
            netlink
                .add_address(index, range.gateway(), range.prefix(), None)
                .map_err(failed("give the bridge its address"))?;
        }
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
            let values = if *name == *self.bridge {
                let installed = self.table == TableState::Installed;
                guard::bridge_ipv4(installed && self.firewall.table.serves_loopback())
            } else {
                guard::PORT_IPV4
            };
            let guarded = if self.routes_ipv6() && *name == *self.bridge {
                guard::accept_ipv6(&name)
            } else {
                guard::refuse_ipv6(&name)
            };
            let guarded =
                guarded.map_err(io::Error::from).and_then(|()| netlink.set_ipv4(link.index(), &values));
            match guarded {
                // The link of a pod that was removed meanwhile.
                Err(_) if link_index(&name).is_err() => {}
                guarded => guarded.map_err(failed)?,
            }
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
        let addresses = netlink.all_addresses().map_err(failed("list the machine's addresses"))?;
        self.refuse_overlap(&mut netlink, link_index(&self.bridge).ok(), &addresses)
    }

    /// The ranges from which new pods get addresses.
    pub(super) fn ranges(&self) -> Vec<AnyRange> {
        let ipv6 = self.ipv6.map(AnyRange::V6);
        [AnyRange::V4(self.range)].into_iter().chain(ipv6).collect()
    }

    /// The ranges of the addresses of pods: those of new pods, and earlier ones in which pods still have addresses.
    pub fn pod_ranges(&self) -> Vec<(IpAddr, u8)> {
        let mut ranges: Vec<_> =
            self.ranges().into_iter().map(|range| (range.base(), range.prefix())).collect();
        ranges.extend(&self.firewall.table.ranges);
        ranges.sort_unstable();
        ranges.dedup();
        ranges
    }

    /// The address of the bridge, at which pods ask for names.
    pub fn gateway(&self) -> Ipv4Addr {
        self.range.gateway()
    }

    /// Whether new pods get IPv6 addresses, or a pod of an earlier range has one.
    pub(super) fn routes_ipv6(&self) -> bool {
        self.ipv6.is_some() || !self.ipv6_addresses.is_empty()
    }

    fn pods_have_addresses_of(&self, range: AnyRange) -> bool {
        match range {
            AnyRange::V4(range) => self.addresses.values().any(|address| range.overlaps(*address, 32)),
            AnyRange::V6(range) => self.ipv6_addresses.values().any(|address| range.contains(*address)),
        }
    }

    /// The ranges from which new pods get addresses, and of which the bridge is not the gateway yet.
    fn missing_gateways(&self, bridge: Option<u32>, addresses: &[(u32, IpAddr, u8)]) -> Vec<AnyRange> {
        let mut missing = self.ranges();
        missing.retain(|range| {
            let is_there = |(index, address, prefix): &(u32, IpAddr, u8)| {
                // A link has an IPv6 address only once, whatever its prefix is.
                let has_prefix = *prefix == range.prefix() || address.is_ipv6();
                Some(*index) == bridge && *address == range.gateway() && has_prefix
            };
            !addresses.iter().any(is_there)
        });
        missing
    }

    /// The ranges of which the bridge is the gateway, besides the present ones: earlier pods began with another
    /// `--pod-cidr`, or in another cluster.
    pub(super) fn earlier_ranges(
        &self,
        bridge: Option<u32>,
        addresses: &[(u32, IpAddr, u8)],
    ) -> Vec<AnyRange> {
        let ours = addresses.iter().filter(|(index, ..)| Some(*index) == bridge);
        let ranges = ours.filter_map(|(_, gateway, prefix)| AnyRange::of_gateway(*gateway, *prefix));
        let present = self.ranges();
        ranges.filter(|range| !present.contains(range)).collect()
    }

    /// Takes the addresses of earlier ranges from the bridge in which no pod has an address: a cluster may give such a
    /// range to another node, whose pods are then elsewhere. Returns the earlier ranges that pods still need.
    fn drop_unused_ranges(
        &self,
        netlink: &mut Netlink,
        bridge: Option<u32>,
        addresses: &[(u32, IpAddr, u8)],
    ) -> Vec<AnyRange> {
        let mut earlier = self.earlier_ranges(bridge, addresses);
        earlier.retain(|range| {
            let is_used = self.pods_have_addresses_of(*range);
            if !is_used && let Some(bridge) = bridge {
                match netlink.remove_address(bridge, range.gateway(), range.prefix()) {
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

    /// Follows the ranges of the pods' addresses after these have changed: the bridge gives up those that no pod needs,
    /// and the table knows the ranges of all pods, and no others. Returns whether the table is to be another one.
    pub(super) fn follow_ranges(&mut self) -> bool {
        let mut ranges = self.ranges();
        let known = std::mem::take(&mut self.firewall.table.ranges);
        let earlier = known.iter().filter_map(|(base, prefix)| AnyRange::of_base(*base, *prefix));
        ranges.extend(earlier.filter(|range| self.pods_have_addresses_of(*range)));
        ranges.extend(self.follow_bridge());
        for range in ranges {
            let range = (range.base(), range.prefix());
            if !self.firewall.table.ranges.contains(&range) {
                self.firewall.table.ranges.push(range);
            }
        }
        self.firewall.table.ranges != known
    }

    /// Removes the addresses that no pod needs from the bridge. Returns the earlier ranges that pods still need.
    fn follow_bridge(&mut self) -> Vec<AnyRange> {
        let Ok(bridge) = link_index(&self.bridge) else { return Vec::new() };
        let addresses = Netlink::open().and_then(|mut netlink| Ok((netlink.all_addresses()?, netlink)));
        let Ok((addresses, mut netlink)) = addresses else { return Vec::new() };
        let earlier = self.drop_unused_ranges(&mut netlink, Some(bridge), &addresses);
        if !self.routes_ipv6() && addresses.iter().any(|(index, ip, _)| *index == bridge && ip.is_ipv6()) {
            // The last pod with an IPv6 address is gone, and the host no longer accepts such packets from pods.
            self.guarded = None;
            if let Err(error) = self.guard(&mut netlink, bridge) {
                log::warn!("failed to {}", crate::error::chain(&error));
            }
        }
        earlier
    }

    /// Does what [`Network::follow_ranges`] does, and puts the table into the kernel again if it is another one.
    pub(super) fn follow_ranges_in_table(&mut self) -> Result<(), NetworkError> {
        if self.follow_ranges() && self.table == TableState::Installed { self.install() } else { Ok(()) }
    }

    /// Forgets the addresses of a pod.
    pub(super) fn forget_addresses(&mut self, uid: &Uid) {
        let address = self.addresses.remove(uid);
        let ipv6 = self.ipv6_addresses.remove(uid);
        // The last pod of an earlier range may be gone.
        let is_earlier = address.is_some_and(|address| !self.range.overlaps(address, 32))
            || ipv6.is_some_and(|ipv6| !self.ipv6.is_some_and(|range| range.contains(ipv6)));
        if is_earlier && let Err(error) = self.follow_ranges_in_table() {
            log::warn!("failed to {}", crate::error::chain(&error));
        }
    }

    fn refuse_overlap(
        &self,
        netlink: &mut Netlink,
        bridge: Option<u32>,
        addresses: &[(u32, IpAddr, u8)],
    ) -> Result<(), NetworkError> {
        let routes = netlink
            .routes()
            .map_err(|source| NetworkError::Kernel { operation: "list the machine's routes", source })?;
        let ipv4 = |(index, address, prefix): &(u32, IpAddr, u8)| match address {
            IpAddr::V4(address) => Some((*index, *address, *prefix)),
            IpAddr::V6(_) => None,
        };
        let addresses: Vec<(u32, Ipv4Addr, u8)> = addresses.iter().filter_map(ipv4).collect();
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
}

fn listed(ranges: &[AnyRange]) -> String {
    ranges.iter().map(AnyRange::to_string).collect::<Vec<_>>().join(", ")
}
