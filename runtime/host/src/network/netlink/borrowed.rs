//! Interfaces that a pod borrows: their settings before a container could change them, and how these are restored. A
//! container with CAP_NET_ADMIN may have changed any of them, and chosen names that are used on the host.

use std::io;

use netlink_packet_core::{DefaultNla, NLM_F_ACK};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};

use super::{Netlink, attribute};

// From linux/if_link.h, linux/rtnetlink.h and linux/if.h.
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_GROUP: u16 = 27;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_FLAGS: u16 = 3;
const IFLA_PROP_LIST: u16 = 52;
const IFLA_ALT_IFNAME: u16 = 53;
const NLA_F_NESTED: u16 = 0x8000;
const RTM_NEWLINK: u16 = 16;
const RTM_NEWLINKPROP: u16 = 108;
const RTM_DELLINKPROP: u16 = 109;
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
            let name = text(value);
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
    attribute(IFLA_ALT_IFNAME, &[name.as_bytes(), b"\0"].concat())
}

/// The kinds and values of netlink attributes.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [low, high, kind_low, kind_high, ..] = *bytes else { return None };
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([kind_low, kind_high]) & 0x3fff, value))
    })
}

/// The number of an attribute with four bytes; 0 for another length.
fn number(value: &[u8]) -> u32 {
    <[u8; 4]>::try_from(value).map_or(0, u32::from_ne_bytes)
}

/// The text of an attribute, without the null byte at its end.
fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

fn about(index: u32) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link
}

impl Netlink {
    /// The settings of the link with `index`.
    ///
    /// Attributes are read one by one, and no other one can hide these: a container may have chosen names that are no
    /// UTF-8, with which a `LinkMessage` cannot be parsed.
    pub fn settings(&mut self, index: u32) -> io::Result<LinkSettings> {
        self.send(RouteNetlinkMessage::GetLink(about(index)), NLM_F_ACK)?;
        let mut found = LinkSettings::default();
        self.receive(|kind, body| {
            // A `struct ifinfomsg`: family, type, index, flags and their mask.
            let (RTM_NEWLINK, Some((header, list))) = (kind, body.split_at_checked(16)) else { return };
            found.flags = number(&header[8..12]) & FLAGS;
            for (kind, value) in attributes(list) {
                match kind {
                    IFLA_ADDRESS => found.hardware = value.to_owned(),
                    IFLA_IFNAME => found.name = text(value),
                    IFLA_MTU => found.mtu = number(value),
                    IFLA_GROUP => found.group = number(value),
                    IFLA_TXQLEN => found.queue_length = number(value),
                    IFLA_PROP_LIST => found.alternative_names = value.to_owned(),
                    IFLA_XDP => {
                        found.has_xdp = attributes(value)
                            .any(|(kind, value)| kind == IFLA_XDP_ATTACHED && value.first() != Some(&0));
                    }
                    IFLA_LINKINFO => {
                        let name = attributes(value).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                        found.kind = name.map_or_else(String::new, |(_, name)| text(name));
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
        let mut down = about(index);
        down.header.change_mask = LinkFlags::Up;
        let _ = self.change(RouteNetlinkMessage::SetLink(down), 0);
        let mut found = self.settings(index)?;
        // A bond sets the address of its members again when they leave it.
        let mut alone = about(index);
        alone.attributes.push(LinkAttribute::Controller(0));
        let _ = self.change(RouteNetlinkMessage::SetLink(alone), 0);
        if found.has_xdp {
            for mode in XDP_MODES {
                let program = attribute(IFLA_XDP_FD, &(-1_i32).to_ne_bytes());
                let value = [program, attribute(IFLA_XDP_FLAGS, &mode.to_ne_bytes())].concat();
                let mut link = about(index);
                link.attributes.push(LinkAttribute::Other(DefaultNla::new(IFLA_XDP | NLA_F_NESTED, value)));
                let _ = self.change(RouteNetlinkMessage::SetLink(link), 0);
            }
        }
        for _ in 0..REMOVALS {
            if found.alternative_names.is_empty() {
                break;
            }
            let list = attribute(IFLA_PROP_LIST | NLA_F_NESTED, &found.alternative_names);
            self.change_properties(RTM_DELLINKPROP, index, &list)?;
            found = self.settings(index)?;
        }
        let Some(before) = before else { return Ok(String::new()) };
        let mut link = about(index);
        link.header.flags = LinkFlags::from_bits_retain(before.flags);
        link.header.change_mask = LinkFlags::from_bits_retain(FLAGS);
        let _ = self.change(RouteNetlinkMessage::SetLink(link), 0);
        if found.hardware != before.hardware {
            let mut link = about(index);
            link.attributes.push(LinkAttribute::Address(before.hardware.clone()));
            let _ = self.change(RouteNetlinkMessage::SetLink(link), 0);
        }
        for (kind, found, before) in [
            (IFLA_MTU, found.mtu, before.mtu),
            (IFLA_GROUP, found.group, before.group),
            (IFLA_TXQLEN, found.queue_length, before.queue_length),
        ] {
            if found != before {
                let mut link = about(index);
                link.attributes
                    .push(LinkAttribute::Other(DefaultNla::new(kind, before.to_ne_bytes().to_vec())));
                let _ = self.change(RouteNetlinkMessage::SetLink(link), 0);
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

    /// Renames the link with `index`, which is down. In the name, `%d` stands for the lowest free number.
    pub fn rename(&mut self, index: u32, name: &str) -> io::Result<()> {
        let mut link = about(index);
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.change(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Gives the link with `name` the alternative names in `settings`. Returns whether it has all of them.
    pub fn add_alternative_names(&mut self, name: &str, settings: &LinkSettings) -> bool {
        attributes(&settings.alternative_names).fold(true, |all, (_, value)| {
            let own = attribute(IFLA_IFNAME, &[name.as_bytes(), b"\0"].concat());
            let list = attribute(IFLA_PROP_LIST | NLA_F_NESTED, &attribute(IFLA_ALT_IFNAME, value));
            self.change_properties(RTM_NEWLINKPROP, 0, &[own, list].concat()).is_ok() && all
        })
    }

    fn change_properties(&mut self, kind: u16, index: u32, attributes: &[u8]) -> io::Result<()> {
        // The family, the type, the index, the flags and their mask.
        let mut body = vec![0; 4];
        body.extend(index.to_ne_bytes());
        body.extend([0; 8]);
        body.extend(attributes);
        self.change_with(kind, 0, &body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::netlink::{link_index, tests::in_new_namespace};

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
            let mut link = about(index);
            link.header.flags = LinkFlags::from_bits_retain(0x381);
            link.header.change_mask = LinkFlags::from_bits_retain(0x381);
            for (kind, value) in [(IFLA_MTU, 1000_u32), (IFLA_GROUP, 7), (IFLA_TXQLEN, 5)] {
                link.attributes
                    .push(LinkAttribute::Other(DefaultNla::new(kind, value.to_ne_bytes().to_vec())));
            }
            netlink.change(RouteNetlinkMessage::SetLink(link), 0).unwrap();
            let code = [(crate::bpf::MOVE, 2), (crate::bpf::EXIT, 0)];
            let code = code.map(|(operation, value)| crate::bpf::instruction(operation, 0, 0, 0, value));
            let program = crate::bpf::load(BPF_PROG_TYPE_XDP, &code).expect("root may load an XDP program");
            let fd = std::os::fd::AsRawFd::as_raw_fd(&program);
            let mut link = about(index);
            let value = attribute(IFLA_XDP_FD, &fd.to_ne_bytes());
            link.attributes.push(LinkAttribute::Other(DefaultNla::new(IFLA_XDP | NLA_F_NESTED, value)));
            netlink.change(RouteNetlinkMessage::SetLink(link), 0).unwrap();
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
