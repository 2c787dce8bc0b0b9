//! Settings that protect the host's side of the pods' network: the bridge and the host's ends of the pods'
//! links forward packets, and accept no configuration from pods.
//!
//! All settings are made on nodlet's own links, never on `all` or `default`. If the kernel combines the value
//! of a link with that of `all`, the owner of the machine decides. Read next: `network/filter.rs`.

use std::fs;
use std::io;
use std::net::{Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};

/// For the bridge and each link: no IPv6 at all, since pods have only IPv4 addresses. The other values apply
/// if somebody enables IPv6 for all links at once.
const IPV6: [(&str, &str); 4] =
    [("disable_ipv6", "1"), ("accept_ra", "0"), ("autoconf", "0"), ("accept_redirects", "0")];

/// For the bridge if pods have IPv6 addresses: only addresses that nodlet sets, and no routers.
const BRIDGE_IPV6: [(&str, &str); 6] = [
    ("accept_ra", "0"),
    ("autoconf", "0"),
    ("accept_redirects", "0"),
    ("accept_dad", "0"),
    ("addr_gen_mode", "1"),
    ("disable_ipv6", "0"),
];

/// For the pod's end of its link, where the pod's own processes may use IPv6. There is no router on the
/// bridge: a sender of router advertisements is another pod.
const POD_IPV6: [(&str, &str); 2] = [("accept_ra", "0"), ("accept_redirects", "0")];

// Of linux/ip.h: IPV4_DEVCONF_*.
const ACCEPT_REDIRECTS: u16 = 4;
const SECURE_REDIRECTS: u16 = 5;
const SEND_REDIRECTS: u16 = 6;
const RP_FILTER: u16 = 8;
const ACCEPT_SOURCE_ROUTE: u16 = 9;
const ARP_IGNORE: u16 = 19;
const ACCEPT_LOCAL: u16 = 23;
const ROUTE_LOCALNET: u16 = 26;

/// For the bridge: it answers ARP for its own address alone, and accepts only sources that are reached
/// through it. `route_localnet` is needed for a `hostPort` at 127.0.0.1; the nftables table then drops what pods
/// send there.
pub(crate) fn bridge_ipv4(route_localnet: bool) -> [(u16, u32); 8] {
    [
        (ACCEPT_REDIRECTS, 0),
        (SECURE_REDIRECTS, 0),
        (SEND_REDIRECTS, 0),
        (RP_FILTER, 1),
        (ACCEPT_SOURCE_ROUTE, 0),
        (ARP_IGNORE, 1),
        (ACCEPT_LOCAL, 0),
        (ROUTE_LOCALNET, route_localnet.into()),
    ]
}

/// For the host's end of a pod's link: no address is reached through it, so it accepts no source, and answers
/// ARP for no address.
pub const PORT_IPV4: [(u16, u32); 8] = [
    (ACCEPT_REDIRECTS, 0),
    (SECURE_REDIRECTS, 0),
    (SEND_REDIRECTS, 0),
    (RP_FILTER, 1),
    (ACCEPT_SOURCE_ROUTE, 0),
    (ARP_IGNORE, 8),
    (ACCEPT_LOCAL, 0),
    (ROUTE_LOCALNET, 0),
];

/// Whether frames that a bridge forwards pass the chains of IP (br_netfilter). Then the kernel translates what a pod answers
/// another one of its bridge.
pub(super) fn bridges_translate() -> bool {
    ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"].iter().all(|name| {
        let file = Path::new("/proc/sys/net/bridge").join(name);
        fs::read_to_string(file).is_ok_and(|text| text.trim() == "1")
    })
}

/// Loads the kernel's IPv6 module, if it is one. If it were loaded later, by the first socket of some pod,
/// existing links would get its defaults.
pub(crate) fn load_ipv6() {
    // A kernel without IPv6 needs no protection.
    let _ = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0));
}

/// Makes a link of the host reject IPv6.
pub fn refuse_ipv6(link: &str) -> Result<(), GuardError> {
    set(link, &IPV6)
}

/// Prepares the bridge for the IPv6 addresses of pods.
pub(crate) fn accept_ipv6(bridge: &str) -> Result<(), GuardError> {
    set(bridge, &BRIDGE_IPV6)
}

/// Lets the pod's end of its link have an IPv6 address.
pub fn enable_ipv6(link: &str) -> Result<(), GuardError> {
    set(link, &[("disable_ipv6", "0")])
}

/// Makes the pod's end of its link ignore IPv6 routers.
pub fn refuse_ipv6_routers(link: &str) -> Result<(), GuardError> {
    set(link, &POD_IPV6)
}

fn set(link: &str, values: &[(&str, &str)]) -> Result<(), GuardError> {
    for (name, value) in values {
        let path = Path::new("/proc/sys/net/ipv6/conf").join(link).join(name);
        match fs::write(&path, value) {
            Ok(()) => {}
            // The kernel has no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(GuardError { path, source }),
        }
    }
    Ok(())
}

/// A setting that could not be written.
#[derive(Debug)]
pub struct GuardError {
    path: PathBuf,
    source: io::Error,
}

impl From<GuardError> for io::Error {
    fn from(error: GuardError) -> io::Error {
        io::Error::new(error.source.kind(), format!("write {}: {}", error.path.display(), error.source))
    }
}
