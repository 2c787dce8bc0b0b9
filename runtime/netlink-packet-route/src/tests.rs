//! Messages as `ip` and the kernel exchange them, without `struct nlmsghdr`: recorded on x86-64 by `strace -e
//! trace=sendmsg,recvmsg -e read=all -e write=all` of iproute2 6.1 in a network namespace of their own.

use std::net::Ipv4Addr;

use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};

use crate::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope};
use crate::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use crate::neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState};
use crate::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use crate::{
    AddressFamily, RTM_DELLINK, RTM_GETADDR, RTM_GETROUTE, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH,
    RTM_NEWROUTE, RouteNetlinkMessage,
};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 86, 0, 1);

fn bytes(hex: &str) -> Vec<u8> {
    hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("two digits")).collect()
}

fn read(kind: u16, bytes: &[u8]) -> Result<RouteNetlinkMessage, String> {
    let mut header = NetlinkHeader::default();
    header.message_type = kind;
    RouteNetlinkMessage::deserialize(&header, bytes).map_err(|error| error.to_string())
}

fn written(message: &RouteNetlinkMessage) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// A message that `ip` or the kernel sends: it is read as `message`, and `message` is written as it.
fn check(command: &str, kind: u16, hex: &str, message: &RouteNetlinkMessage) {
    assert_eq!(read(kind, &bytes(hex)).as_ref(), Ok(message), "{command}");
    assert_eq!(written(message), bytes(hex), "{command}");
    assert_eq!(message.message_type(), kind, "{command}");
}

/// A message of which the kernel sends more than is written: it is only read.
fn check_read(command: &str, kind: u16, hex: &str, message: &RouteNetlinkMessage) {
    assert_eq!(read(kind, &bytes(hex)).as_ref(), Ok(message), "{command}");
}

fn link(index: u32, flags: LinkFlags, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut link = LinkMessage { attributes, ..LinkMessage::default() };
    link.header.index = index;
    (link.header.flags, link.header.change_mask) = (flags, flags);
    link
}

#[test]
fn links_are_changed_as_ip_changes_them() {
    check(
        "ip link set ve0 up",
        RTM_NEWLINK,
        "00 00 00 00 04 00 00 00 01 00 00 00 01 00 00 00",
        &RouteNetlinkMessage::NewLink(link(4, LinkFlags::Up, vec![])),
    );
    check(
        "ip link set ve0 address 02:00:00:00:00:03",
        RTM_NEWLINK,
        "00 00 00 00 04 00 00 00 00 00 00 00 00 00 00 00 0a 00 01 00 02 00 00 00 00 03 00 00",
        &RouteNetlinkMessage::NewLink(link(
            4,
            LinkFlags::empty(),
            vec![LinkAttribute::Address(vec![2, 0, 0, 0, 0, 3])],
        )),
    );
    check(
        "ip link del ve0",
        RTM_DELLINK,
        "00 00 00 00 04 00 00 00 00 00 00 00 00 00 00 00",
        &RouteNetlinkMessage::DelLink(link(4, LinkFlags::empty(), vec![])),
    );
}

/// `ip` ends the name of a driver without a zero byte, which the kernel passes over.
#[test]
fn links_are_made_as_ip_makes_them_with_a_zero_after_the_name_of_the_driver() {
    let bridge = RouteNetlinkMessage::NewLink(link(
        0,
        LinkFlags::empty(),
        vec![
            LinkAttribute::IfName("br0".into()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
        ],
    ));
    let command = "ip link add name br0 type bridge";
    let ip = "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 08 00 03 00 62 72 30 00
              10 00 12 00 0a 00 01 00 62 72 69 64 67 65 00 00";
    check_read(command, RTM_NEWLINK, ip, &bridge);
    let ours = ip.replace("0a 00 01 00 62", "0b 00 01 00 62");
    check(command, RTM_NEWLINK, &ours, &bridge);

    let peer = link(
        0,
        LinkFlags::empty(),
        vec![LinkAttribute::Address(vec![2, 0, 0, 0, 0, 2]), LinkAttribute::IfName("eth0".into())],
    );
    let veth = |data| {
        let infos = vec![LinkInfo::Kind(InfoKind::Veth), data];
        let attributes = vec![
            LinkAttribute::Controller(2),
            LinkAttribute::IfName("ve0".into()),
            LinkAttribute::LinkInfo(infos),
        ];
        RouteNetlinkMessage::NewLink(link(0, LinkFlags::empty(), attributes))
    };
    let command = "ip link add name ve0 master br0 type veth peer name eth0 address 02:00:00:00:00:02";
    let data = "2c 00 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
                0a 00 01 00 02 00 00 00 00 02 00 00 09 00 03 00 65 74 68 30 00 00 00 00";
    let ip = format!(
        "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 08 00 0a 00 02 00 00 00 08 00 03 00 76 65 30 00
         3c 00 12 00 08 00 01 00 76 65 74 68 30 00 02 00 {data}"
    );
    check_read(command, RTM_NEWLINK, &ip, &veth(LinkInfo::Other(2, bytes(data))));
    let ours =
        ip.replace("3c 00 12 00 08 00 01 00 76 65 74 68", "40 00 12 00 09 00 01 00 76 65 74 68 00 00 00 00");
    assert_eq!(written(&veth(LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))))), bytes(&ours));
}

#[test]
fn a_link_that_the_kernel_describes_is_read_and_written_again_without_a_loss() {
    // ip link show dev ve0
    let hex = include_str!("tests/link-show.hex");
    let Ok(RouteNetlinkMessage::NewLink(link)) = read(RTM_NEWLINK, &bytes(hex)) else { panic!("a link") };
    assert_eq!((link.header.index, link.header.link_layer_type), (4, 1));
    assert!(link.header.flags.contains(LinkFlags::Up));
    let known: Vec<&LinkAttribute> =
        link.attributes.iter().filter(|attribute| !matches!(attribute, LinkAttribute::Other(..))).collect();
    let [
        LinkAttribute::IfName(name),
        LinkAttribute::Controller(2),
        LinkAttribute::Address(address),
        LinkAttribute::LinkInfo(infos),
    ] = known[..]
    else {
        panic!("{known:?}")
    };
    assert_eq!((name.as_str(), &address[..]), ("ve0", &[2, 0, 0, 0, 0, 3][..]));
    assert_eq!(infos[0], LinkInfo::Kind(InfoKind::Veth));
    let mut again = read(RTM_NEWLINK, &written(&RouteNetlinkMessage::NewLink(link.clone())));
    assert_eq!(again, Ok(RouteNetlinkMessage::NewLink(link)));
    again = read(RTM_NEWLINK, &bytes(hex)[..100]);
    assert!(again.is_err(), "{again:?}");
}

#[test]
fn addresses_have_the_bytes_that_ip_sends() {
    let mut message = AddressMessage {
        attributes: vec![
            AddressAttribute::Local(GATEWAY.into()),
            AddressAttribute::Broadcast(Ipv4Addr::new(10, 86, 0, 255)),
            AddressAttribute::Address(GATEWAY.into()),
        ],
        ..AddressMessage::default()
    };
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = 24;
    message.header.index = 2;
    check(
        "ip address add 10.86.0.1/24 broadcast 10.86.0.255 dev br0",
        RTM_NEWADDR,
        "02 18 00 00 02 00 00 00 08 00 02 00 0a 56 00 01 08 00 04 00 0a 56 00 ff 08 00 01 00 0a 56 00 01",
        &RouteNetlinkMessage::NewAddress(message.clone()),
    );
    message.attributes = vec![
        AddressAttribute::Address(GATEWAY.into()),
        AddressAttribute::Local(GATEWAY.into()),
        AddressAttribute::Broadcast(Ipv4Addr::new(10, 86, 0, 255)),
        AddressAttribute::Other(3, b"br0\0".to_vec()),
        AddressAttribute::Other(8, vec![0x80, 0, 0, 0]),
        AddressAttribute::Other(6, bytes("ff ff ff ff ff ff ff ff a0 51 01 00 a0 51 01 00")),
    ];
    message.header.flags = AddressHeaderFlags::Permanent;
    check(
        "ip -4 address show",
        RTM_NEWADDR,
        "02 18 80 00 02 00 00 00 08 00 01 00 0a 56 00 01 08 00 02 00 0a 56 00 01 08 00 04 00 0a 56 00 ff
         08 00 03 00 62 72 30 00 08 00 08 00 80 00 00 00
         14 00 06 00 ff ff ff ff ff ff ff ff a0 51 01 00 a0 51 01 00",
        &RouteNetlinkMessage::NewAddress(message),
    );
    let address = "fd00::1".parse().expect("an address");
    let mut message = AddressMessage {
        attributes: vec![AddressAttribute::Local(address), AddressAttribute::Address(address)],
        ..AddressMessage::default()
    };
    message.header.family = AddressFamily::Inet6;
    message.header.prefix_len = 64;
    // IFA_F_NODAD
    message.header.flags = AddressHeaderFlags::from_bits_retain(2);
    message.header.scope = AddressScope::Universe;
    message.header.index = 2;
    check(
        "ip address add fd00::1/64 dev br0 nodad",
        RTM_NEWADDR,
        "0a 40 02 00 02 00 00 00 14 00 02 00 fd 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01
         14 00 01 00 fd 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01",
        &RouteNetlinkMessage::NewAddress(message),
    );
    let mut all = AddressMessage::default();
    all.header.family = AddressFamily::Inet;
    check(
        "ip -4 address show",
        RTM_GETADDR,
        "02 00 00 00 00 00 00 00",
        &RouteNetlinkMessage::GetAddress(all),
    );
}

#[test]
fn routes_have_the_bytes_that_ip_sends() {
    let header = RouteHeader {
        address_family: AddressFamily::Inet,
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Boot,
        scope: RouteScope::Universe,
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    let gateway = RouteAttribute::Gateway(RouteAddress::Inet(Ipv4Addr::new(10, 86, 0, 254)));
    let main = || RouteAttribute::Other(15, vec![254, 0, 0, 0]);
    let linkdown = 0x10;
    check(
        "ip route add default via 10.86.0.254 dev br0",
        RTM_NEWROUTE,
        "02 00 00 00 fe 03 00 01 00 00 00 00 08 00 05 00 0a 56 00 fe 08 00 04 00 02 00 00 00",
        &RouteNetlinkMessage::NewRoute(RouteMessage {
            header,
            attributes: vec![gateway.clone(), RouteAttribute::Oif(2)],
        }),
    );
    check(
        "ip -4 route show",
        RTM_NEWROUTE,
        "02 00 00 00 fe 03 00 01 10 00 00 00 08 00 0f 00 fe 00 00 00 08 00 05 00 0a 56 00 fe 08 00 04 00 02 00 00 00",
        &RouteNetlinkMessage::NewRoute(RouteMessage {
            header: RouteHeader { flags: linkdown, ..header },
            attributes: vec![main(), gateway, RouteAttribute::Oif(2)],
        }),
    );
    check(
        "ip -4 route show",
        RTM_NEWROUTE,
        "02 18 00 00 fe 02 fd 01 10 00 00 00 08 00 0f 00 fe 00 00 00 08 00 01 00 0a 56 00 00
         08 00 07 00 0a 56 00 01 08 00 04 00 02 00 00 00",
        &RouteNetlinkMessage::NewRoute(RouteMessage {
            header: RouteHeader {
                destination_prefix_length: 24,
                // RTPROT_KERNEL and RT_SCOPE_LINK
                protocol: RouteProtocol::Other(2),
                scope: RouteScope::Other(253),
                flags: linkdown,
                ..header
            },
            attributes: vec![
                main(),
                RouteAttribute::Destination(RouteAddress::Inet(Ipv4Addr::new(10, 86, 0, 0))),
                RouteAttribute::Other(7, GATEWAY.octets().to_vec()),
                RouteAttribute::Oif(2),
            ],
        }),
    );
    check(
        "ip route add fd01::/64 via fd00::2 dev br0",
        RTM_NEWROUTE,
        "0a 40 00 00 fe 03 00 01 00 00 00 00 14 00 01 00 fd 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00
         14 00 05 00 fd 00 00 00 00 00 00 00 00 00 00 00 00 00 00 02 08 00 04 00 02 00 00 00",
        &RouteNetlinkMessage::NewRoute(RouteMessage {
            header: RouteHeader {
                address_family: AddressFamily::Inet6,
                destination_prefix_length: 64,
                ..header
            },
            attributes: vec![
                RouteAttribute::Destination(RouteAddress::Inet6("fd01::".parse().expect("an address"))),
                RouteAttribute::Gateway(RouteAddress::Inet6("fd00::2".parse().expect("an address"))),
                RouteAttribute::Oif(2),
            ],
        }),
    );
    check(
        "ip -4 route show",
        RTM_GETROUTE,
        "02 00 00 00 00 00 00 00 00 00 00 00 08 00 0f 00 fe 00 00 00",
        &RouteNetlinkMessage::GetRoute(RouteMessage {
            header: RouteHeader { address_family: AddressFamily::Inet, ..RouteHeader::default() },
            attributes: vec![main()],
        }),
    );
}

#[test]
fn neighbours_have_the_bytes_that_ip_sends() {
    let hardware = || NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 2]);
    let address = || NeighbourAttribute::Destination(Ipv4Addr::new(10, 86, 0, 2));
    let mut message =
        NeighbourMessage { attributes: vec![address(), hardware()], ..NeighbourMessage::default() };
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = 2;
    message.header.state = NeighbourState::Permanent;
    check(
        "ip neigh add 10.86.0.2 lladdr 02:00:00:00:00:02 dev br0 nud permanent",
        RTM_NEWNEIGH,
        "02 00 00 00 02 00 00 00 80 00 00 00 08 00 01 00 0a 56 00 02 0a 00 02 00 02 00 00 00 00 02 00 00",
        &RouteNetlinkMessage::NewNeighbour(message.clone()),
    );
    message.attributes.extend([
        NeighbourAttribute::Other(4, vec![0; 4]),
        NeighbourAttribute::Other(3, bytes("0e 00 00 00 0e 00 00 00 0e 00 00 00 00 00 00 00")),
    ]);
    // `ndm_type`, the last byte of the header, is not read.
    check_read(
        "ip neigh show",
        RTM_NEWNEIGH,
        "02 00 00 00 02 00 00 00 80 00 00 03 08 00 01 00 0a 56 00 02 0a 00 02 00 02 00 00 00 00 02 00 00
         08 00 04 00 00 00 00 00 14 00 03 00 0e 00 00 00 0e 00 00 00 0e 00 00 00 00 00 00 00",
        &RouteNetlinkMessage::NewNeighbour(message),
    );
    let mut entry = NeighbourMessage { attributes: vec![hardware()], ..NeighbourMessage::default() };
    entry.header.family = AddressFamily::Other(7);
    entry.header.ifindex = 4;
    // NUD_NOARP and NUD_REACHABLE
    entry.header.state = NeighbourState::Other(0x42);
    entry.header.flags = NeighbourFlags::Controller;
    check(
        "bridge fdb add 02:00:00:00:00:02 dev ve0 master static",
        RTM_NEWNEIGH,
        "07 00 00 00 04 00 00 00 42 00 04 00 0a 00 02 00 02 00 00 00 00 02 00 00",
        &RouteNetlinkMessage::NewNeighbour(entry),
    );
}

#[test]
fn a_message_that_is_cut_off_or_unknown_is_an_error() {
    for (kind, hex, expected) in [
        (RTM_NEWADDR, "02 18 00 00 02 00 00", "a message is shorter than its header"),
        (RTM_NEWADDR, "02 18 00 00 02 00 00 00 08 00 02 00 0a 56 00", "an attribute is cut off"),
        // Lengths that are less than those of the attribute's own header.
        (RTM_NEWADDR, "02 18 00 00 02 00 00 00 00 00 02 00", "an attribute is cut off"),
        (RTM_NEWADDR, "02 18 00 00 02 00 00 00 03 00 02 00", "an attribute is cut off"),
        (RTM_NEWROUTE, "02 00 00 00 fe 03 00 01 00 00 00", "a message is shorter than its header"),
        (RTM_NEWNEIGH, "02 00 00 00 02 00 00 00 80 00 00", "a message is shorter than its header"),
        (RTM_NEWLINK, "00 00 00 00 04 00 00 00 01 00 00 00 01 00 00", "a message is shorter than its header"),
        // RTM_NEWQDISC
        (36, "", "unsupported rtnetlink message"),
    ] {
        let refused = read(kind, &bytes(hex)).expect_err(hex);
        assert!(refused.contains(expected), "{hex}: {refused}");
    }
}

#[test]
fn a_value_of_another_size_than_its_kind_has_is_kept_as_bytes() {
    let read = |hex: &str| match read(RTM_NEWADDR, &bytes(hex)) {
        Ok(RouteNetlinkMessage::NewAddress(message)) => message.attributes,
        other => panic!("{other:?}"),
    };
    // Bytes after the last attribute that are too few for another one are passed over.
    for (hex, expected) in [
        ("02 18 00 00 02 00 00 00 07 00 02 00 0a 56 00 00", AddressAttribute::Other(2, vec![10, 86, 0])),
        ("02 18 00 00 02 00 00 00 07 00 02 00 0a 56 00", AddressAttribute::Other(2, vec![10, 86, 0])),
        ("02 18 00 00 02 00 00 00 04 00 04 00 00 00 00", AddressAttribute::Other(4, vec![])),
        // NLA_F_NESTED is no part of the kind.
        ("02 18 00 00 02 00 00 00 08 00 02 80 0a 56 00 01", AddressAttribute::Local(GATEWAY.into())),
    ] {
        assert_eq!(read(hex), [expected], "{hex}");
    }
}
