//! Messages of the kernel's netfilter (`linux/netfilter/nfnetlink.h`): tables of nftables, and tracked connections.

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::Socket;

/// Opens a socket to the kernel's netfilter, in the network namespace of the calling thread.
pub(crate) fn open() -> io::Result<Socket> {
    Socket::open(NETLINK_NETFILTER)
}

/// The payload of a message: `struct nfgenmsg` with a family and a resource, then attributes.
pub(super) fn payload(family: u8, resource: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![family, 0];
    bytes.extend(resource.to_be_bytes());
    bytes.extend(attributes.concat());
    bytes
}

/// An object as the kernel lists or reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object<'a> {
    /// `NFPROTO_*`
    pub(crate) family: u8,
    pub(crate) attributes: &'a [u8],
}

impl<'a> Object<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Option<Object<'a>> {
        let (header, attributes) = payload.split_at_checked(4)?;
        Some(Object { family: header[0], attributes })
    }

    /// The value of the first attribute of a type.
    pub(crate) fn find(&self, wanted: u16) -> Option<&'a [u8]> {
        super::find(self.attributes, wanted)
    }
}

/// Passes each object of a list to `each`, which returns whether it needs another one. `request` is the subsystem and the
/// request, of all families.
pub(crate) fn list(request: u16, each: &mut dyn FnMut(Object) -> bool) -> io::Result<()> {
    let everything = payload(libc::AF_UNSPEC as u8, 0, &[]);
    open()?
        .request(request, NLM_F_DUMP, &everything, &mut |answer| Object::parse(answer).is_none_or(&mut *each))
}

/// Sends a request that changes something, and waits for the acknowledgement.
pub(crate) fn change(
    socket: &mut Socket,
    request: u16,
    family: u8,
    attributes: &[Vec<u8>],
) -> io::Result<()> {
    socket.request(request, NLM_F_ACK, &payload(family, 0, attributes), &mut |_| true)
}
