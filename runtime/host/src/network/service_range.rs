//! The ranges of the addresses of Services: read from the configuration, compared with what the machine uses, and routed
//! to the bridge. The kernel routes what the board sends before it translates the address, so that a board without a
//! default route would reach no Service; packets of pods are routed to the board anyway.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nodlet_kernel::own_file;

use super::range::{AnyRange, Ipv6Range, Range};
use super::{Network, NetworkError, is_of_an_agent, link_name};
use crate::netlink::{Netlink, link_index};
use crate::paths::Paths;

/// The range of Services without another one in the configuration.
const DEFAULT_RANGE: (IpAddr, u8) = (IpAddr::V4(Ipv4Addr::new(10, 86, 0, 0)), 16);

/// The range of IPv6 beside it, if pods have IPv6 addresses.
const DEFAULT_IPV6_RANGE: (IpAddr, u8) = (IpAddr::V6(Ipv6Addr::new(0xfd00, 0x10, 0x86, 0, 0, 0, 0, 0)), 112);

/// The prefixes of a range of IPv6. kube-apiserver accepts /64 to /128.
const IPV6_PREFIXES: std::ops::RangeInclusive<u8> = 64..=124;

impl Network {
    /// The ranges of the addresses of Services: that of the flag, otherwise that of the root's file, otherwise the
    /// default.
    ///
    /// # Errors
    /// The text is not a valid range, or the file cannot be read.
    pub fn service_ranges(
        &self,
        paths: &Paths,
        cidr: Option<&str>,
    ) -> Result<Vec<(IpAddr, u8)>, NetworkError> {
        let file = paths.service_cidr();
        let (origin, text) = match cidr {
            Some(text) => ("--service-cidr".to_owned(), text.to_owned()),
            None => match own_file::read_linked(&file) {
                Ok(text) => (file.display().to_string(), text.trim().to_owned()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let ipv6 = self.has_ipv6().then_some(DEFAULT_IPV6_RANGE);
                    return Ok([DEFAULT_RANGE].into_iter().chain(ipv6).collect());
                }
                Err(source) => return Err(NetworkError::ReadServiceRange { path: file, source }),
            },
        };
        parse(&text).map_err(|wrong| NetworkError::ServiceRange { origin, text, wrong })
    }

    /// What uses addresses of the ranges of Services already: the pods, or an address or a route of the machine.
    ///
    /// # Errors
    /// The machine's addresses or routes cannot be listed.
    pub fn service_overlap(&self, services: &[(IpAddr, u8)]) -> Result<Option<ServiceOverlap>, NetworkError> {
        let failed = |operation| move |source| NetworkError::Kernel { operation, source };
        let mut netlink = Netlink::open().map_err(failed("open a netlink socket"))?;
        let bridge = link_index(&self.bridge).ok();
        let addresses = netlink.all_addresses().map_err(failed("list the machine's addresses"))?;
        let routes = netlink.routes().map_err(failed("list the machine's routes"))?;
        let routes = routes.into_iter().map(|(link, base, prefix)| (link, base.into(), prefix));
        let of_machine =
            |what| move |(link, base, prefix): (u32, IpAddr, u8)| (what, Some(link), (base, prefix));
        let pods =
            self.ranges().into_iter().map(|range| ("range of pods", None, (range.base(), range.prefix())));
        let used = pods
            .chain(addresses.into_iter().map(of_machine("address")))
            .chain(routes.map(of_machine("route")));
        // A default route overlaps everything, but does not conflict; what is on the bridge is nodlet's.
        let mut used = used.filter(|(_, link, range)| range.1 > 0 && (link.is_none() || *link != bridge));
        Ok(used.find_map(|(what, link, (base, prefix))| {
            let services = services.iter().copied().find(|services| overlap(*services, (base, prefix)))?;
            Some(ServiceOverlap { services, what, used: (base, prefix), link: link.map(link_name) })
        }))
    }

    /// Routes the ranges of Services to the bridge from now on, and no former ones. Without a bridge there is nothing to do: no pod
    /// has a network of its own, and the next one calls this again.
    ///
    /// # Errors
    /// The kernel refused a route, or cannot list them.
    pub fn route_services(&mut self, ranges: &[(IpAddr, u8)]) -> Result<(), NetworkError> {
        let failed = |source| NetworkError::Kernel { operation: "route the addresses of Services", source };
        let Ok(bridge) = link_index(&self.bridge) else { return Ok(()) };
        let mut netlink = Netlink::open().map_err(failed)?;
        keep_routes(&mut netlink, bridge, ranges).map_err(failed)?;
        for range in ranges.iter().filter(|range| range.0.is_ipv4() || self.routes_ipv6()) {
            match netlink.add_link_route(*range, bridge) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    /// Removes the routes of [`Network::route_services`], also those of former ranges.
    pub fn unroute_services(&mut self) {
        let Ok(bridge) = link_index(&self.bridge) else { return };
        if let Err(error) = Netlink::open().and_then(|mut netlink| keep_routes(&mut netlink, bridge, &[])) {
            log::warn!("failed to remove the routes to the addresses of Services: {error}");
        }
    }

    /// The addresses at which other machines reach the board, for load balancers: those of the default routes, or without
    /// one all that are not of a loopback or of a bridge of nodlet.
    ///
    /// # Errors
    /// The machine's addresses cannot be listed.
    pub fn board_addresses(&self) -> io::Result<Vec<IpAddr>> {
        let addresses = Netlink::open()?.all_addresses()?;
        let is_outside = |(link, address, _): &(u32, IpAddr, u8)| {
            let is_local = match address {
                IpAddr::V4(address) => address.is_link_local(),
                IpAddr::V6(address) => address.is_unicast_link_local(),
            };
            !is_local && !address.is_loopback() && !is_of_an_agent(&link_name(*link))
        };
        let outside: Vec<IpAddr> = addresses.iter().filter(|one| is_outside(one)).map(|one| one.1).collect();
        let default = [self.host_ip().map(IpAddr::V4), self.host_ipv6().map(IpAddr::V6)];
        let default: Vec<IpAddr> =
            default.into_iter().flatten().filter(|one| outside.contains(one)).collect();
        let has_ipv6 = self.has_ipv6();
        let rest = outside.into_iter().filter(|address| {
            (address.is_ipv4() || has_ipv6) && default.iter().all(|one| one.is_ipv4() != address.is_ipv4())
        });
        Ok(rest.chain(default.iter().copied()).collect())
    }
}

/// Removes the routes of Services from the bridge, but those to `ranges`. The kernel has made those of pods itself.
fn keep_routes(netlink: &mut Netlink, bridge: u32, ranges: &[(IpAddr, u8)]) -> io::Result<()> {
    for range in netlink.link_routes(bridge)?.iter().filter(|range| !ranges.contains(range)) {
        // It may have gone with an address of the bridge.
        let _ = netlink.remove_link_route(*range, bridge);
    }
    Ok(())
}

/// Addresses of Services that are used otherwise.
#[derive(Debug, PartialEq, Eq)]
pub struct ServiceOverlap {
    services: (IpAddr, u8),
    what: &'static str,
    used: (IpAddr, u8),
    link: Option<String>,
}

impl fmt::Display for ServiceOverlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServiceOverlap { services, what, used, link } = self;
        write!(
            f,
            "addresses of Services are of {}/{}, which overlaps the {what} {}/{}",
            services.0, services.1, used.0, used.1
        )?;
        if let Some(link) = link {
            write!(f, " on {link}")?;
        }
        f.write_str(
            ": Services hide the machines that have such addresses; choose another range with --service-cidr",
        )
    }
}

/// Parses one range, or one of IPv4 and one of IPv6 behind a comma. The error says what is wrong.
fn parse(text: &str) -> Result<Vec<(IpAddr, u8)>, String> {
    let (ipv4, ipv6) = text.split_once(',').map_or((text, None), |(ipv4, ipv6)| (ipv4, Some(ipv6)));
    let ipv4 = AnyRange::V4(Range::parse(ipv4)?);
    let ipv6 = ipv6.map(|text| Ipv6Range::parse_within(text, IPV6_PREFIXES)).transpose()?.map(AnyRange::V6);
    Ok([ipv4].into_iter().chain(ipv6).map(|range| (range.base(), range.prefix())).collect())
}

/// Whether two ranges have an address in common.
fn overlap(one: (IpAddr, u8), other: (IpAddr, u8)) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    let differing = bits(one.0) ^ bits(other.0);
    let shorter = u32::from(one.1.min(other.1));
    one.0.is_ipv4() == other.0.is_ipv4() && differing.checked_shr(128 - shorter).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::tests::in_new_namespace;

    #[test]
    fn ranges_of_services_are_parsed_and_wrong_ones_are_rejected_with_the_right_form() {
        let parsed = |text| {
            parse(text).map(|ranges| {
                ranges.iter().map(|range| format!("{}/{}", range.0, range.1)).collect::<Vec<_>>()
            })
        };
        assert_eq!(parsed("10.96.0.0/12"), Ok(vec!["10.96.0.0/12".to_owned()]));
        let both = vec!["10.96.0.0/12".to_owned(), "fd00:96::/112".to_owned()];
        assert_eq!(parsed("10.96.0.0/12,fd00:96::/112"), Ok(both));
        for (text, wrong) in [
            ("10.96.0.1/12", "its first address is 10.96.0.0: write 10.96.0.0/12"),
            ("10.96.0.0/30", "it must have from /8 to /29"),
            ("10.96.0.0/12,fd00:96::/48", "an IPv6 range must have from /64 to /124"),
            ("10.96.0.0/12,fd00:96::1/112", "its first address is fd00:96::: write fd00:96::/112"),
            ("many", "it is not an IPv4 range such as 10.85.0.0/24"),
        ] {
            assert_eq!(parse(text).unwrap_err(), wrong, "{text}");
        }
    }

    #[test]
    fn routes_of_former_ranges_go_and_those_of_pods_stay() {
        in_new_namespace(|| {
            let root = tempfile::tempdir().expect("a scratch directory");
            let mut network =
                Network::new(&Paths::new(root.path()), Some("10.85.0.0/24,fd00:10:85::/64"), true).unwrap();
            network.ensure_bridge().unwrap();
            let mut netlink = Netlink::open().unwrap();
            let bridge = link_index(network.bridge()).unwrap();
            let range = |text: &str, prefix| (text.parse::<IpAddr>().unwrap(), prefix);
            let former = [range("10.96.0.0", 12), range("fd00:10:96::", 112)];
            let present = [range("10.86.0.0", 16), range("fd00:10:86::", 112)];
            network.route_services(&former).unwrap();
            assert_eq!(netlink.link_routes(bridge).unwrap(), former);
            for _ in 0..2 {
                network.route_services(&present).unwrap();
                assert_eq!(netlink.link_routes(bridge).unwrap(), present);
            }
            network.unroute_services();
            assert!(netlink.link_routes(bridge).unwrap().is_empty());
            assert!(netlink.routes().unwrap().contains(&(bridge, Ipv4Addr::new(10, 85, 0, 0), 24)));
        });
    }

    #[test]
    fn ranges_overlap_if_one_contains_the_other() {
        let range = |text: &str| {
            let (base, prefix) = text.split_once('/').expect("a range");
            (base.parse::<IpAddr>().expect("an address"), prefix.parse::<u8>().expect("a prefix"))
        };
        for (one, other, expected) in [
            ("10.86.0.0/16", "10.86.3.0/24", true),
            ("10.86.3.0/24", "10.86.0.0/16", true),
            ("10.86.0.0/16", "10.85.0.0/24", false),
            ("10.86.0.0/16", "0.0.0.0/0", true),
            ("fd00:10:86::/112", "fd00:10:86::7/128", true),
            ("fd00:10:86::/112", "fd00:10:85::/64", false),
            ("10.86.0.0/16", "::/0", false),
        ] {
            assert_eq!(overlap(range(one), range(other)), expected, "{one} {other}");
        }
    }
}
