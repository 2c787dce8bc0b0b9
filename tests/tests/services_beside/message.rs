//! Queries and responses of the DNS (RFC 1035), as far as the comparison needs them.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// The types of records, with their numbers.
pub(super) const TYPES: [(&str, u16); 9] = [
    ("A", 1),
    ("NS", 2),
    ("CNAME", 5),
    ("SOA", 6),
    ("PTR", 12),
    ("MX", 15),
    ("TXT", 16),
    ("AAAA", 28),
    ("SRV", 33),
];

/// What a name server answers, without what two servers choose freely: times to live, and the order of records.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Response {
    /// 0 is success, 3 is NXDOMAIN.
    pub(super) code: u8,
    /// The records of the question.
    pub(super) answer: BTreeSet<String>,
    /// The records that show that there is none.
    pub(super) authority: BTreeSet<String>,
    /// The records beside the answer.
    pub(super) additional: BTreeSet<String>,
}

/// Asks a name server over UDP from the current namespace, up to three times.
pub(super) fn ask(server: SocketAddr, name: &str, kind: u16) -> Option<Response> {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a port is free");
    socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a time");
    let query = query(name, kind);
    for _ in 0..3 {
        socket.send_to(&query, server).ok()?;
        let mut bytes = [0; 4096];
        if let Ok(length) = socket.recv(&mut bytes) {
            return Some(read(&bytes[..length]).expect("a response is well-formed"));
        }
    }
    None
}

fn query(name: &str, kind: u16) -> Vec<u8> {
    // Recursion is desired; one question. The payload of 4096 bytes is that of EDNS.
    let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(u8::try_from(label.len()).expect("a label is short"));
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0, 1]);
    bytes.extend([0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// Reads a response; `None` if it is malformed.
fn read(bytes: &[u8]) -> Option<Response> {
    let number = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let mut at = 12;
    for _ in 0..number(4)? {
        at = name(bytes, at)?.1 + 4;
    }
    let mut sections = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
    for (section, count) in sections.iter_mut().zip([6, 8, 10]) {
        for _ in 0..number(count)? {
            let (owner, rest) = name(bytes, at)?;
            let (kind, length) = (number(rest)?, usize::from(number(rest + 8)?));
            at = rest + 10 + length;
            // That of EDNS is about the message.
            if kind != 41 {
                section.insert(format!("{owner} {}", data(bytes, kind, rest + 10, length)?));
            }
        }
    }
    let [answer, authority, additional] = sections;
    Some(Response { code: bytes[3] & 15, answer, authority, additional })
}

/// The name that begins at `at`, in lower case, and where what follows it begins.
fn name(bytes: &[u8], mut at: usize) -> Option<(String, usize)> {
    let (mut text, mut end) = (String::new(), None);
    // No more pointers than a message has.
    for _ in 0..256 {
        let length = *bytes.get(at)?;
        match length {
            0 => return Some((text.to_ascii_lowercase(), end.unwrap_or(at + 1))),
            0xc0.. => {
                end = end.or(Some(at + 2));
                at = usize::from(length & 0x3f) << 8 | usize::from(*bytes.get(at + 1)?);
            }
            _ => {
                let label = bytes.get(at + 1..at + 1 + usize::from(length))?;
                text += &format!("{}.", String::from_utf8_lossy(label));
                at += 1 + usize::from(length);
            }
        }
    }
    None
}

fn data(bytes: &[u8], kind: u16, at: usize, length: usize) -> Option<String> {
    let raw = bytes.get(at..at + length)?;
    Some(match kind {
        1 => format!("A {}", Ipv4Addr::from(<[u8; 4]>::try_from(raw).ok()?)),
        28 => format!("AAAA {}", Ipv6Addr::from(<[u8; 16]>::try_from(raw).ok()?)),
        2 => format!("NS {}", name(bytes, at)?.0),
        5 => format!("CNAME {}", name(bytes, at)?.0),
        12 => format!("PTR {}", name(bytes, at)?.0),
        // Its numbers are about zone transfers, which neither has.
        6 => {
            let (server, rest) = name(bytes, at)?;
            format!("SOA {server} {}", name(bytes, rest)?.0)
        }
        16 => format!("TXT {:?}", String::from_utf8_lossy(raw)),
        33 => {
            let number = |at: usize| u16::from_be_bytes([raw[at], raw[at + 1]]);
            format!("SRV {} {} {} {}", number(0), number(2), number(4), name(bytes, at + 6)?.0)
        }
        _ => format!("type {kind} {raw:?}"),
    })
}

/// Answers all queries to a socket as a name server of the Internet does that knows one name, `www.example`: with the
/// address 198.51.100.7, and NXDOMAIN for all others.
pub(super) fn serve_example(socket: UdpSocket) {
    std::thread::spawn(move || {
        let mut bytes = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            let query = &bytes[..length];
            let Some((asked, end)) = name(query, 12) else { continue };
            let Some(question) = query.get(12..end + 4) else { continue };
            let is_known = asked == "www.example.";
            let has_address = is_known && question.ends_with(&[0, 1, 0, 1]);
            let code = if is_known { 0x80 } else { 0x83 };
            let mut answer = vec![query[0], query[1], 0x81, code, 0, 1, 0, u8::from(has_address), 0, 0, 0, 0];
            answer.extend(question);
            if has_address {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 51, 100, 7]);
            }
            let _ = socket.send_to(&answer, from);
        }
    });
}
