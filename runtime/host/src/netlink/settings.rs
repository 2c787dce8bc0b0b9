//! Interfaces that a pod borrows: their settings before a container could change them, and how these are restored. A
//! container with CAP_NET_ADMIN may have changed any of them, and chosen names that are used on the host.

use std::io;

use netlink_packet_core::{DefaultNla, NLA_F_NESTED, NLM_F_ACK};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkXdp};

use super::links::{IFLA_IFNAME, LinkNews, link};
use super::{Netlink, attributes, find, read_text, text};

// From linux/if_link.h, linux/rtnetlink.h and linux/if.h.
const IFLA_ADDRESS: u16 = 1;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_GROUP: u16 = 27;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;
/// IFF_DEBUG, IFF_NOARP, IFF_PROMISC, IFF_ALLMULTI and IFF_MULTICAST: the flags that a container can set.
const FLAGS: u32 = 0x4 | 0x80 | 0x100 | 0x200 | 0x1000;
/// XDP_FLAGS_SKB_MODE, XDP_FLAGS_DRV_MODE and XDP_FLAGS_HW_MODE.
const XDP_MODES: [u32; 3] = [2, 4, 8];

/// The most requests that remove alternative names. Kernels before Linux 5.19 list more than 64 KiB of them in parts.
const REMOVALS: usize = 16;

/// The settings of an interface that containers can change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkSettings {
    /// The name.
    pub name: String,
    /// The kind of the link, such as `veth`; empty for hardware, which nobody can create.
    pub kind: String,
    hardware: Vec<u8>,
    mtu: u32,
    flags: u32,
    /// The device group, which rules of firewalls may name.
    group: u32,
    queue_length: u32,
    /// The attributes `IFLA_ALT_IFNAME`, as the kernel lists them.
    alternative_names: Vec<u8>,
    has_xdp: bool,
}

impl LinkSettings {
    /// The kind and the settings as one line for [`LinkSettings::parse`].
    pub fn to_line(&self) -> String {
        let hardware: String = self.hardware.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut line = format!(
            "{} {hardware} {} {} {} {}",
            self.kind, self.mtu, self.flags, self.group, self.queue_length
        );
        for (_, value) in attributes(&self.alternative_names) {
            let name = read_text(value);
            if !name.is_empty() && !name.contains(char::is_whitespace) {
                line += " ";
                line += &name;
            }
        }
        line
    }

    /// The settings of a line, without a name. `None` for a line of an earlier version, which has no settings.
    pub fn parse(line: &str) -> Option<LinkSettings> {
        let mut words = line.split(' ');
        let (kind, hardware) = (words.next()?, words.next()?);
        let hardware = hardware.as_bytes().chunks(2).map(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 16).ok()
        });
        let hardware = hardware.collect::<Option<_>>()?;
        let mut number = || words.next()?.parse().ok();
        let (mtu, flags, group, queue_length) = (number()?, number()?, number()?, number()?);
        let alternative_names = words.flat_map(alternative_name).collect();
        Some(LinkSettings {
            kind: kind.to_owned(),
            hardware,
            mtu,
            flags,
            group,
            queue_length,
            alternative_names,
            ..Self::default()
        })
    }
}

fn alternative_name(name: &str) -> Vec<u8> {
    text(IFLA_ALT_IFNAME, name)
}

/// The attribute with alternative names, each an attribute `IFLA_ALT_IFNAME`: the message of `netlink-packet-route` has
/// only names in UTF-8.
fn properties(names: Vec<u8>) -> LinkAttribute {
    LinkAttribute::Other(DefaultNla::new(IFLA_PROP_LIST | NLA_F_NESTED, names))
}

/// The number of an attribute with four bytes; 0 for another length.
fn number(value: &[u8]) -> u32 {
    <[u8; 4]>::try_from(value).map_or(0, u32::from_ne_bytes)
}

impl Netlink {
    /// The settings of the link with `index`. No other attribute can hide these.
    pub fn settings(&mut self, index: u32) -> io::Result<LinkSettings> {
        let mut found = LinkSettings::default();
        let request = RouteNetlinkMessage::GetLink(link(index, Vec::new()));
        self.request(&request, NLM_F_ACK, &mut |answer| {
            let Some(link) = LinkNews::parse(answer) else { return };
            found.flags = link.flags & FLAGS;
            for (kind, value) in link.attributes() {
                match kind {
                    IFLA_ADDRESS => found.hardware = value.to_owned(),
                    IFLA_IFNAME => found.name = read_text(value),
                    IFLA_MTU => found.mtu = number(value),
                    IFLA_GROUP => found.group = number(value),
                    IFLA_TXQLEN => found.queue_length = number(value),
                    IFLA_PROP_LIST => found.alternative_names = value.to_owned(),
                    IFLA_XDP => {
                        let attached = find(value, IFLA_XDP_ATTACHED);
                        found.has_xdp = attached.is_some_and(|value| value.first() != Some(&0));
                    }
                    IFLA_LINKINFO => {
                        found.kind = find(value, IFLA_INFO_KIND).map(read_text).unwrap_or_default();
                    }
                    _ => {}
                }
            }
        })?;
        Ok(found)
    }

    /// The hardware address of the link with `index`, which must have one as Ethernet has.
    pub fn hardware_address(&mut self, index: u32) -> io::Result<[u8; 6]> {
        let hardware = self.settings(index)?.hardware;
        hardware
            .try_into()
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the link is not Ethernet"))
    }

    /// Sets a link down and restores its settings; without `before` only removes its alternative names and its XDP
    /// program. Returns the names of the settings that the kernel did not restore, joined by commas.
    pub fn restore(&mut self, index: u32, before: Option<&LinkSettings>) -> io::Result<String> {
        // A failure of a request shows in the settings afterwards.
        let _ = self.set_flags(index, LinkFlags::empty(), LinkFlags::Up);
        let mut found = self.settings(index)?;
        // A bond sets the address of its members again when they leave it.
        let _ = self.set_link(index, vec![LinkAttribute::Controller(0)]);
        if found.has_xdp {
            for mode in XDP_MODES {
                let none = LinkAttribute::Xdp(vec![LinkXdp::Fd(-1), LinkXdp::Flags(mode)]);
                let _ = self.set_link(index, vec![none]);
            }
        }
        for _ in 0..REMOVALS {
            if found.alternative_names.is_empty() {
                break;
            }
            let names = link(index, vec![properties(found.alternative_names)]);
            self.change(RouteNetlinkMessage::DelLinkProp(names), 0)?;
            found = self.settings(index)?;
        }
        let Some(before) = before else { return Ok(String::new()) };
        let [flags, mask] = [before.flags, FLAGS].map(LinkFlags::from_bits_retain);
        let _ = self.set_flags(index, flags, mask);
        for (differs, attribute) in [
            (found.hardware != before.hardware, LinkAttribute::Address(before.hardware.clone())),
            (found.mtu != before.mtu, LinkAttribute::Mtu(before.mtu)),
            (found.group != before.group, LinkAttribute::Group(before.group)),
            (found.queue_length != before.queue_length, LinkAttribute::TxQueueLen(before.queue_length)),
        ] {
            if differs {
                let _ = self.set_link(index, vec![attribute]);
            }
        }
        let now = self.settings(index)?;
        let differs = [
            ("hardware address", now.hardware != before.hardware),
            ("MTU", now.mtu != before.mtu),
            ("flags", now.flags != before.flags),
            ("group", now.group != before.group),
            ("queue length", now.queue_length != before.queue_length),
            ("XDP program", now.has_xdp),
        ];
        let differs: Vec<&str> =
            differs.into_iter().filter(|differs| differs.1).map(|(name, _)| name).collect();
        Ok(differs.join(", "))
    }

    /// Gives the link with `name` the alternative names in `settings`. Returns whether it has all of them.
    pub fn add_alternative_names(&mut self, name: &str, settings: &LinkSettings) -> bool {
        attributes(&settings.alternative_names).fold(true, |all, (kind, value)| {
            let names = properties(super::attribute(kind, value));
            let link = link(0, vec![LinkAttribute::IfName(name.to_owned()), names]);
            self.change(RouteNetlinkMessage::NewLinkProp(link), 0).is_ok() && all
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{attribute, link_index, tests::in_new_namespace};

    const BPF_PROG_TYPE_XDP: u32 = 6;

    #[test]
    fn changes_of_an_interface_by_a_container_are_reverted() {
        in_new_namespace(|| {
            let mut netlink = Netlink::open().unwrap();
            netlink.add_bridge("can0").unwrap();
            let index = link_index("can0").unwrap();
            netlink.set_hardware_address(index, [2, 0, 0, 0, 0, 9]).unwrap();
            let line = netlink.settings(index).unwrap().to_line();
            let mut own = LinkSettings::parse(&(line.clone() + " enp1s0")).unwrap();
            assert!(netlink.add_alternative_names("can0", &own));
            let before = netlink.settings(index).unwrap();
            assert_eq!(before.to_line(), line.clone() + " enp1s0");
            own.name = "can0".to_owned();
            assert_eq!(before, own);

            netlink.set_hardware_address(index, [2, 0, 0, 0, 0, 7]).unwrap();
            let no_text = attribute(IFLA_ALT_IFNAME, b"\xff\xfe\0");
            for name in
                ["eth0", "another", &"x".repeat(120)].map(alternative_name).into_iter().chain([no_text])
            {
                let theirs = LinkSettings { alternative_names: name, ..own.clone() };
                assert!(netlink.add_alternative_names("can0", &theirs));
            }
            let theirs = LinkFlags::from_bits_retain(0x381);
            netlink.set_flags(index, theirs, theirs).unwrap();
            let values =
                vec![LinkAttribute::Mtu(1000), LinkAttribute::Group(7), LinkAttribute::TxQueueLen(5)];
            netlink.set_link(index, values).unwrap();
            let code = [(crate::bpf::MOVE, 2), (crate::bpf::EXIT, 0)];
            let code = code.map(|(operation, value)| crate::bpf::instruction(operation, 0, 0, 0, value));
            let program = crate::bpf::load(BPF_PROG_TYPE_XDP, &code).expect("root may load an XDP program");
            let fd = std::os::fd::AsRawFd::as_raw_fd(&program);
            netlink.set_link(index, vec![LinkAttribute::Xdp(vec![LinkXdp::Fd(fd)])]).unwrap();
            let changed = netlink.settings(index).unwrap();
            assert!(changed.has_xdp && changed.mtu == 1000 && changed.flags != before.flags);
            assert_eq!((changed.group, changed.queue_length), (7, 5));

            assert_eq!(netlink.restore(index, Some(&before)).unwrap(), "");
            let after = netlink.settings(index).unwrap();
            assert_eq!(after, LinkSettings { alternative_names: Vec::new(), ..before.clone() });
            // A bridge has an address of 6 bytes.
            let wrong = LinkSettings { hardware: vec![2; 20], ..before };
            assert_eq!(netlink.restore(index, Some(&wrong)).unwrap(), "hardware address");
        });
    }

    #[test]
    fn a_line_without_settings_is_none() {
        assert_eq!(LinkSettings::parse("veth"), None);
        assert_eq!(LinkSettings::parse(""), None);
        assert_eq!(LinkSettings::parse("veth 0x 1500 0 0 1000"), None);
        assert_eq!(LinkSettings::parse("veth  1500 0"), None);
        let hardware = LinkSettings::parse("  16 128 0 10").expect("it is complete");
        assert_eq!((hardware.to_line(), hardware.hardware.len()), ("  16 128 0 10".to_owned(), 0));
    }
}
