//! Lists of the kernel's netfilter: the requests for them, and the attributes in them (`linux/netfilter/nfnetlink.h`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;

/// Bytes of the header of a message.
const HEAD: usize = 16;

/// Passes the payload of each object of a list to `each`, which returns whether it needs another one. `request` is the
/// subsystem and the request, of all families; the number of its answers is one less.
pub(super) fn dump(request: u16, each: &mut dyn FnMut(&[u8]) -> bool) -> io::Result<()> {
    let socket = open()?;
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    send(&socket, request, flags, libc::AF_UNSPEC as u8, &[])?;
    let mut buffer = vec![0_u8; 64 * 1024];
    loop {
        let length = receive(&socket, &mut buffer)?;
        if read_messages(&buffer[..length], request - 1, each)? {
            return Ok(());
        }
    }
}

/// Opens a socket to the kernel's netfilter, in the network namespace of the calling thread.
pub(super) fn open() -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only.
    owned(unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_NETFILTER)
    })
}

pub(super) fn owned(descriptor: libc::c_int) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the descriptor is open and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Sends a request about objects of a family.
fn send(socket: &OwnedFd, request: u16, flags: u16, family: u8, attributes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(HEAD + 4 + attributes.len()).unwrap_or(u32::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(request.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    // The sequence number and the port; then family, version and resource.
    bytes.extend([0; 8]);
    bytes.extend([family, 0, 0, 0]);
    bytes.extend(attributes);
    // SAFETY: an open descriptor and a buffer of this length.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: an open descriptor; the kernel writes no more than the buffer's length.
    let length = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    usize::try_from(length).map_err(|_| io::Error::last_os_error())
}

/// Sends a request that changes something, and waits for the acknowledgement.
pub(super) fn change(socket: &OwnedFd, request: u16, family: u8, attributes: &[u8]) -> io::Result<()> {
    send(socket, request, (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16, family, attributes)?;
    // The acknowledgement has the request's header; that of a failure has all of the request.
    let mut buffer = [0_u8; 4096];
    let length = receive(socket, &mut buffer)?;
    read_messages(&buffer[..length], NLMSG_ERROR, &mut |_| true).map(drop)
}

/// Parses the messages of one receive call, and passes the payload of those of a kind to `each`. Returns whether they
/// end the list, or `each` needs no more.
pub(super) fn read_messages(
    mut bytes: &[u8],
    wanted: u16,
    each: &mut dyn FnMut(&[u8]) -> bool,
) -> io::Result<bool> {
    while let (Some(length), Some(kind)) = (word(bytes, 0, u32::from_ne_bytes), half(bytes, 4)) {
        let length = length as usize;
        let (Some(message), true) = (bytes.get(..length), length >= HEAD) else { break };
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => match word(message, HEAD, i32::from_ne_bytes) {
                Some(0) => return Ok(true),
                errno => {
                    let errno = errno.unwrap_or(-libc::EBADMSG);
                    return Err(io::Error::from_raw_os_error(errno.saturating_neg()));
                }
            },
            kind if kind == wanted && !each(&message[HEAD..]) => return Ok(true),
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Splits netlink attributes into kinds and values.
pub(super) fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    const FLAGS: u16 = 0xc000;
    let mut found = Vec::new();
    while let (Some(length), Some(kind)) = (half(bytes, 0), half(bytes, 2)) {
        let length = usize::from(length);
        let Some(value) = bytes.get(4..length) else { break };
        found.push((kind & !FLAGS, value));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

pub(super) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn word<T>(bytes: &[u8], at: usize, read: impl Fn([u8; 4]) -> T) -> Option<T> {
    Some(read(bytes.get(at..at + 4)?.try_into().ok()?))
}
