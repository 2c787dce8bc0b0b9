//! Netlink (`linux/netlink.h`): sockets, messages and attributes, over `netlink-sys` and `netlink-packet-core`. The
//! only place of nodlet that encodes or decodes them.
//!
//! [`Netlink`] has the requests about links, addresses and routes, most of them messages of `netlink-packet-route`;
//! [`nftables`] those about tables of nftables, for which there is no published crate with all expressions;
//! [`netfilter`] lists what the kernel's netfilter has. [`News`] receives what the kernel reports by itself.
//!
//! Synchronous: one request, one acknowledgement, within microseconds. A socket always belongs to the network
//! namespace in which it was opened; the sandbox helper keeps one of the host and opens one of the pod.

use std::io;
use std::iter;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{
    DecodeError, Emitable, ErrorBuffer, NLA_F_NESTED, NLA_HEADER_SIZE, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST,
    NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NetlinkHeader, NetlinkSerializable, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::SocketAddr;
use netlink_sys::protocols::NETLINK_ROUTE;

mod addresses;
mod links;
pub(crate) mod netfilter;
pub(crate) mod nftables;
mod routes;
mod settings;
mod traffic;

pub use links::{LinkNews, link_index, link_news};
pub use settings::LinkSettings;

/// Bytes of a datagram with a part of a list: the kernel fills as much as the reader has room for, up to this.
const LIST_BYTES: usize = 32 << 10;

/// The most datagrams of news that are read at once. More arrive only if somebody changes things faster than they are
/// read: then the rest is for the next time.
const NEWS_AT_ONCE: usize = 1000;

/// A socket for requests of one protocol to the kernel. It receives from the kernel alone.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: netlink_sys::Socket,
    /// The port of the socket, which the kernel names in the news of its changes.
    port: u32,
    /// The sequence number of the latest request.
    sequence: u32,
    /// The latest datagram.
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket of a protocol, `NETLINK_*`, in the network namespace of the calling thread.
    pub(crate) fn open(protocol: isize) -> io::Result<Socket> {
        let mut socket = netlink_sys::Socket::new(protocol)?;
        let port = socket.bind_auto()?.port_number();
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Socket { socket, port, sequence: 0, buffer: Vec::new() })
    }

    /// Sends a request, and passes the payload of each answer to `each`, which returns whether it needs another one.
    /// Returns after the acknowledgement or at the end of the list. If `each` needs no more, the socket is of no further
    /// use: the kernel may still be sending.
    ///
    /// `flags` has NLM_F_DUMP for a list, which needs no acknowledgement, and otherwise NLM_F_ACK.
    pub(crate) fn request(
        &mut self,
        kind: u16,
        flags: u16,
        body: &[u8],
        each: &mut dyn FnMut(&[u8]) -> bool,
    ) -> io::Result<()> {
        if flags & NLM_F_DUMP == NLM_F_DUMP {
            self.buffer.reserve(LIST_BYTES);
        }
        self.exchange(|sequence| message(kind, flags, sequence, body), each)
    }

    /// Sends the messages that `encode` returns for a new sequence number, and reads the answers as
    /// [`Socket::request`] does.
    fn exchange(
        &mut self,
        encode: impl FnOnce(u32) -> Vec<u8>,
        each: &mut dyn FnMut(&[u8]) -> bool,
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = encode(self.sequence);
        self.make_room(bytes.len());
        self.socket.send(&bytes, 0)?;
        loop {
            self.receive()?;
            if read_answers(&self.buffer, self.sequence, each)? {
                return Ok(());
            }
        }
    }

    /// Lets the socket send messages of this length at once.
    fn make_room(&self, length: usize) {
        // What every socket has by default.
        if length >= 100 << 10 {
            // If the kernel refuses, it refuses the messages.
            let option = nix::sys::socket::sockopt::SndBufForce;
            let _ = nix::sys::socket::setsockopt(&self.socket, option, &(length * 2));
        }
    }

    /// Receives one datagram, whatever its length is.
    fn receive(&mut self) -> io::Result<()> {
        self.buffer.clear();
        let length = self.socket.recv(&mut self.buffer, libc::MSG_PEEK | libc::MSG_TRUNC)?;
        self.buffer.clear();
        self.buffer.reserve(length);
        self.socket.recv(&mut self.buffer, 0).map(drop)
    }
}

/// A socket to the links, addresses and routes of a network namespace.
pub struct Netlink(Socket);

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> io::Result<Netlink> {
        Socket::open(NETLINK_ROUTE).map(Netlink)
    }

    /// Sends a request that changes something, and waits for the acknowledgement.
    fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.request(&message, flags | NLM_F_ACK, &mut |_| ())
    }

    /// Sends a request, and passes the payload of each answer to `each`.
    fn request(
        &mut self,
        message: &RouteNetlinkMessage,
        flags: u16,
        each: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()> {
        let mut body = vec![0; NetlinkSerializable::buffer_len(message)];
        message.serialize(&mut body);
        self.0.request(message.message_type(), flags, &body, &mut |answer| {
            each(answer);
            true
        })
    }
}

/// A socket that receives what the kernel reports to groups of a protocol. Reading it blocks nobody.
#[derive(Debug)]
pub struct News(netlink_sys::Socket);

impl News {
    /// Opens a socket of a protocol, `libc::NETLINK_*`, that receives the news of groups, by their numbers:
    /// `libc::RTNLGRP_*` of the links, addresses and routes.
    pub fn open(protocol: libc::c_int, groups: &[u32]) -> io::Result<News> {
        let mut socket = netlink_sys::Socket::new(protocol as isize)?;
        let groups = groups.iter().fold(0, |all, group| all | 1 << (group - 1));
        socket.bind(&SocketAddr::new(0, groups))?;
        Ok(News(socket))
    }

    /// Receives the news of one more group.
    pub fn join(&self, group: u32) -> io::Result<()> {
        self.0.add_membership(group)
    }

    /// Reads all news, and passes each datagram to `each`; `None` if the kernel had more news than the socket could
    /// hold.
    pub fn read(&self, mut each: impl FnMut(Option<&[u8]>)) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(LIST_BYTES);
        for _ in 0..NEWS_AT_ONCE {
            buffer.clear();
            match self.0.recv(&mut buffer, libc::MSG_DONTWAIT) {
                Ok(_) => each(Some(&buffer)),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => each(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl AsFd for News {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn invalid(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The bytes of a request.
fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    let mut bytes = vec![0; header.buffer_len()];
    header.length = u32::try_from(bytes.len() + body.len()).unwrap_or(u32::MAX);
    header.message_type = kind;
    header.flags = NLM_F_REQUEST | flags;
    header.sequence_number = sequence;
    header.emit(&mut bytes);
    bytes.extend(body);
    bytes
}

/// The messages in one datagram of the kernel. One that is cut off is an error, after which nothing follows.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = io::Result<NetlinkBuffer<&[u8]>>> {
    iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let message = NetlinkBuffer::new_checked(bytes);
        let length = message.as_ref().map_or(bytes.len(), |message| message.length() as usize);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message.map_err(invalid))
    })
}

/// Reads the answers to one request from one datagram of the kernel. Returns whether they are complete, or `each` needs
/// no more.
fn read_answers(bytes: &[u8], sequence: u32, each: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<bool> {
    // From linux/netlink.h. Other types below this one have no content.
    const NLMSG_MIN_TYPE: u16 = 0x10;
    for message in messages(bytes) {
        let message = message?;
        match message.message_type() {
            _ if message.sequence_number() != sequence => {}
            NLMSG_ERROR => {
                let error = ErrorBuffer::new_checked(message.payload()).map_err(invalid)?;
                let failed =
                    |code: std::num::NonZero<i32>| io::Error::from_raw_os_error(code.get().saturating_abs());
                return error.code().map_or(Ok(true), |code| Err(failed(code)));
            }
            NLMSG_DONE => return Ok(true),
            NLMSG_MIN_TYPE.. if !each(message.payload()) => return Ok(true),
            _ => {}
        }
    }
    Ok(false)
}

/// The types, without flags, and the values of attributes, up to the first one that is cut off.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(Result::ok).map(|attribute| {
        let (kind, length) = (attribute.kind(), usize::from(attribute.length()));
        (kind, &attribute.into_inner()[NLA_HEADER_SIZE..length])
    })
}

/// The value of the first attribute of a type.
pub(crate) fn find(attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    self::attributes(attributes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// The text of an attribute, without the null byte at its end.
pub(crate) fn read_text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

/// The bytes of an attribute, padded to a multiple of four.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    // No attribute of ours is near 64 KiB.
    let length = u16::try_from(NLA_HEADER_SIZE + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The bytes of an attribute whose value is attributes.
pub(crate) fn nested(kind: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NLA_F_NESTED, &attributes.concat())
}

/// The bytes of an attribute whose value is a text that ends with a null byte.
pub(crate) fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), b"\0"].concat())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Runs a test in a thread with its own network namespace, which ends with the thread.
    pub(crate) fn in_new_namespace(test: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("these tests need root");
            test();
        });
        thread.join().expect("the test failed");
    }

    #[test]
    fn a_bridge_gets_an_address_and_a_veth_pair_joins_it() {
        in_new_namespace(|| {
            let mut netlink = Netlink::open().unwrap();
            netlink.add_bridge("br0").unwrap();
            assert_eq!(netlink.add_bridge("br0").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            let bridge = link_index("br0").unwrap();
            netlink.add_address(bridge, Ipv4Addr::new(10, 1, 2, 1), 24, None).unwrap();
            netlink.set_up(bridge).unwrap();
            let here = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
            let hardware = [2, 0, 0, 0, 0, 9];
            let namespace = std::os::fd::AsRawFd::as_raw_fd(&here);
            netlink.add_veth("host0", bridge, ("eth0", hardware), namespace).unwrap();
            let port = link_index("host0").unwrap();
            netlink.set_port_up(port, true, &[(8, 1)]).unwrap();
            netlink.add_forwarding(port, hardware).unwrap();
            netlink.add_neighbour(bridge, Ipv4Addr::new(10, 1, 2, 9), hardware).unwrap();
            let peer = link_index("eth0").unwrap();
            netlink.set_up(peer).unwrap();
            assert_eq!(netlink.addresses().unwrap(), [(bridge, Ipv4Addr::new(10, 1, 2, 1), 24)]);
            assert!(netlink.routes().unwrap().contains(&(bridge, Ipv4Addr::new(10, 1, 2, 0), 24)));
            netlink.add_default_route(bridge, Ipv4Addr::new(10, 1, 2, 9)).unwrap();
            assert!(netlink.routes().unwrap().contains(&(bridge, Ipv4Addr::UNSPECIFIED, 0)));
            netlink.remove_link("host0").unwrap();
            assert!(link_index("eth0").is_err());
            assert_eq!(netlink.remove_link("host0").unwrap_err().kind(), io::ErrorKind::NotFound);
        });
    }

    /// A message as the kernel sends it, in answer to the request with this sequence number.
    pub(crate) fn answer(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = message(kind, 0, sequence, body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn the_answers_to_a_request_are_read_up_to_its_end() {
        const RTM_NEWLINK: u16 = 16;
        let message = |kind: u16, body: &[u8]| answer(kind, 7, body);
        let done = message(NLMSG_DONE, &[0; 4]);
        let bytes = [message(RTM_NEWLINK, &[1]), message(RTM_NEWLINK, &[2; 5]), done.clone()].concat();
        let read = |bytes: &[u8], sequence: u32, wanted: usize| {
            let mut seen = Vec::new();
            let is_complete = read_answers(bytes, sequence, &mut |body| {
                seen.push(body.to_vec());
                seen.len() < wanted
            });
            is_complete.map(|is_complete| (is_complete, seen))
        };
        assert_eq!(read(&bytes, 7, 9).unwrap(), (true, vec![vec![1], vec![2; 5]]));
        assert_eq!(read(&bytes, 7, 1).unwrap(), (true, vec![vec![1]]), "no further than needed");
        assert!(!read(&message(RTM_NEWLINK, &[]), 7, 9).unwrap().0, "a part of a list");
        assert!(!read(&done, 8, 9).unwrap().0, "the end of another list");
        let refused = |code: i32| message(NLMSG_ERROR, &code.to_ne_bytes());
        assert!(read(&refused(0), 7, 9).unwrap().0);
        let error = read(&refused(-libc::ENODEV), 7, 9).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        assert!(read(&message(NLMSG_ERROR, &[]), 7, 9).is_err());
        assert!(read(&[1, 2, 3], 7, 9).is_err());
        let whole = message(RTM_NEWLINK, &[2; 5]);
        for length in 1..16 + 5 {
            assert!(read(&whole[..length], 7, 9).is_err(), "{length}");
        }
    }

    #[test]
    fn attributes_are_read_as_they_are_written_up_to_one_that_is_cut_off() {
        let bytes = [text(3, "eth0"), nested(5, &[attribute(1, &[7])]), attribute(9, &[])].concat();
        let read: Vec<_> = attributes(&bytes).collect();
        assert_eq!(read, [(3, &b"eth0\0"[..]), (5, &attribute(1, &[7])), (9, &[])]);
        assert_eq!(find(&bytes, 3).map(read_text).as_deref(), Some("eth0"));
        assert_eq!(find(&bytes, 4), None);
        for length in 0..bytes.len() {
            assert!(attributes(&bytes[..length]).count() < 3, "{length}");
        }
    }
}
