//! Encodes and decodes DHCP messages. smoltcp knows their layout, this module the options that matter.

use std::net::Ipv4Addr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    DhcpMessageType, DhcpOpCode, DhcpOption, DhcpPacket, DhcpRepr, EthernetAddress, IpProtocol, Ipv4Packet,
    Ipv4Repr, UdpPacket, UdpRepr,
};

/// The UDP port of DHCP clients.
pub(super) const CLIENT_PORT: u16 = 68;

/// The UDP port of DHCP servers.
pub(super) const SERVER_PORT: u16 = 67;

/// The largest message that is read, in bytes: one Ethernet frame.
pub(super) const LARGEST: usize = 1472;

const MAGIC: u32 = 0x6382_5363;

const SUBNET_MASK: u8 = 1;
const ROUTER: u8 = 3;
const NAME_SERVER: u8 = 6;
const HOST_NAME: u8 = 12;
const DOMAIN_NAME: u8 = 15;
const TIME_SERVER: u8 = 42;
const LEASE_TIME: u8 = 51;
const MESSAGE_TYPE: u8 = 53;
const SERVER: u8 = 54;
const RENEWAL_TIME: u8 = 58;
const REBINDING_TIME: u8 = 59;

/// The options requested from servers.
const WANTED: &[u8] =
    &[SUBNET_MASK, ROUTER, NAME_SERVER, DOMAIN_NAME, TIME_SERVER, LEASE_TIME, RENEWAL_TIME, REBINDING_TIME];

/// The most name servers that are taken from a message: as many as C libraries read.
const NAME_SERVERS: usize = 3;

/// The most time servers that are taken from a message.
const TIME_SERVERS: usize = 4;

/// The shortest message in bytes: some relays drop messages shorter than BOOTP's.
const SHORTEST: usize = 300;

/// A message from the client.
pub(super) struct Request<'a> {
    /// Whether this is a DHCPDISCOVER; otherwise it is a DHCPREQUEST.
    pub(super) discover: bool,
    pub(super) transaction: u32,
    pub(super) seconds: u16,
    pub(super) hardware: [u8; 6],
    /// The address that the client already uses.
    pub(super) address: Option<Ipv4Addr>,
    /// The address that the client requests.
    pub(super) requested: Option<Ipv4Addr>,
    pub(super) server: Option<Ipv4Addr>,
    /// The host name to send; empty for none.
    pub(super) host_name: &'a str,
}

/// The kind of a server's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Offer,
    Ack,
    Nak,
}

/// A server's message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) kind: Kind,
    pub(super) server: Ipv4Addr,
    /// The client's address; `None` if the address cannot be assigned to a link.
    pub(super) address: Option<Ipv4Addr>,
    pub(super) prefix: Option<u8>,
    pub(super) router: Option<Ipv4Addr>,
    pub(super) dns: Vec<Ipv4Addr>,
    pub(super) domain: Option<String>,
    pub(super) ntp: Vec<Ipv4Addr>,
    /// Duration of the lease in seconds; `renew` and `rebind` are in seconds, too.
    pub(super) lease: Option<u32>,
    pub(super) renew: Option<u32>,
    pub(super) rebind: Option<u32>,
}

/// Encodes a client's message.
pub(super) fn write(request: &Request) -> Vec<u8> {
    let host_name = DhcpOption { kind: HOST_NAME, data: request.host_name.as_bytes() };
    let repr = DhcpRepr {
        message_type: if request.discover { DhcpMessageType::Discover } else { DhcpMessageType::Request },
        transaction_id: request.transaction,
        secs: request.seconds,
        client_hardware_address: EthernetAddress(request.hardware),
        client_ip: request.address.unwrap_or(Ipv4Addr::UNSPECIFIED),
        your_ip: Ipv4Addr::UNSPECIFIED,
        server_ip: Ipv4Addr::UNSPECIFIED,
        relay_agent_ip: Ipv4Addr::UNSPECIFIED,
        router: None,
        subnet_mask: None,
        // A link without an address receives only broadcasts.
        broadcast: request.address.is_none(),
        requested_ip: request.requested,
        client_identifier: Some(EthernetAddress(request.hardware)),
        server_identifier: request.server,
        parameter_request_list: Some(WANTED),
        dns_servers: None,
        max_size: Some(LARGEST as u16),
        lease_duration: None,
        renew_duration: None,
        rebind_duration: None,
        additional_options: if request.host_name.is_empty() { &[] } else { std::slice::from_ref(&host_name) },
    };
    let mut bytes = vec![0; repr.buffer_len().max(SHORTEST)];
    let written = repr.emit(&mut DhcpPacket::new_unchecked(&mut bytes[..]));
    debug_assert!(written.is_ok(), "the buffer is as long as smoltcp says");
    bytes
}

/// Decodes a datagram. Returns the server's message if it responds to `transaction` of the client with the
/// address `hardware`.
pub(super) fn read(bytes: &[u8], transaction: u32, hardware: [u8; 6]) -> Option<Reply> {
    let packet = DhcpPacket::new_checked(bytes).ok()?;
    if packet.opcode() != DhcpOpCode::Reply
        || packet.magic_number() != MAGIC
        || packet.transaction_id() != transaction
        || packet.client_hardware_address() != EthernetAddress(hardware)
    {
        return None;
    }
    let mut kind = None;
    let mut server = None;
    let mut reply = Reply {
        kind: Kind::Nak,
        server: Ipv4Addr::UNSPECIFIED,
        address: Some(packet.your_ip()).filter(|address| is_host(*address)),
        prefix: None,
        router: None,
        dns: Vec::new(),
        domain: None,
        ntp: Vec::new(),
        lease: None,
        renew: None,
        rebind: None,
    };
    for option in packet.options() {
        let data = option.data;
        let number = || <[u8; 4]>::try_from(data).ok().map(u32::from_be_bytes);
        let addresses = || data.chunks_exact(4).filter_map(address).filter(|address| is_host(*address));
        match option.kind {
            MESSAGE_TYPE => {
                kind = match data {
                    [2] => Some(Kind::Offer),
                    [5] => Some(Kind::Ack),
                    [6] => Some(Kind::Nak),
                    _ => None,
                }
            }
            SERVER => server = address(data).filter(|address| is_host(*address)),
            // A mask with gaps is ignored.
            SUBNET_MASK => reply.prefix = number().and_then(prefix),
            ROUTER => reply.router = addresses().next(),
            NAME_SERVER => reply.dns = addresses().take(NAME_SERVERS).collect(),
            TIME_SERVER => reply.ntp = addresses().take(TIME_SERVERS).collect(),
            DOMAIN_NAME => reply.domain = domain(data),
            LEASE_TIME => reply.lease = number().filter(|seconds| *seconds > 0),
            RENEWAL_TIME => reply.renew = number(),
            REBINDING_TIME => reply.rebind = number(),
            _ => {}
        }
    }
    reply.kind = kind?;
    reply.server = server?;
    Some(reply)
}

fn address(bytes: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(bytes).ok().map(Ipv4Addr::from)
}

/// Whether the address can be assigned to a host.
fn is_host(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    first != 0 && first < 224 && !address.is_loopback()
}

fn prefix(mask: u32) -> Option<u8> {
    (mask.leading_ones() + mask.trailing_zeros() == 32 && mask != 0).then(|| mask.leading_ones() as u8)
}

/// A domain name that is safe in `resolv.conf`: a server must not be able to inject lines.
fn domain(data: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(data).ok()?.trim_end_matches('\0');
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    (!text.is_empty() && text.bytes().all(is_right)).then(|| text.to_owned())
}

/// Wraps a message into an IP packet from no address to the broadcast address.
pub(super) fn broadcast(message: &[u8]) -> Vec<u8> {
    let udp = UdpRepr { src_port: CLIENT_PORT, dst_port: SERVER_PORT };
    let ip = Ipv4Repr {
        src_addr: Ipv4Addr::UNSPECIFIED,
        dst_addr: Ipv4Addr::BROADCAST,
        next_header: IpProtocol::Udp,
        payload_len: udp.header_len() + message.len(),
        hop_limit: 64,
    };
    let checksums = ChecksumCapabilities::default();
    let mut bytes = vec![0; ip.buffer_len() + ip.payload_len];
    ip.emit(&mut Ipv4Packet::new_unchecked(&mut bytes[..]), &checksums);
    udp.emit(
        &mut UdpPacket::new_unchecked(&mut bytes[ip.buffer_len()..]),
        &ip.src_addr.into(),
        &ip.dst_addr.into(),
        message.len(),
        |payload| payload.copy_from_slice(message),
        &checksums,
    );
    bytes
}
