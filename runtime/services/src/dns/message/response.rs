//! The answers of other name servers: checked against the query, kept as they came but for their OPT record, and
//! written for each client with its own ID, its spelling of the name, the remaining times to live, and its size.

use std::rc::Rc;

use domain::base::iana::{Class, Rcode, Rtype};
use domain::base::{Header, Message, ParsedName, ToName};
use domain::dep::octseq::Parser;
use domain::rdata::{A, Aaaa, Cname};

use super::{ErrorCode, Key, OPT_SIZE, Query};
use crate::dns::names::Record;

/// Size in bytes of the header of a message.
const HEADER: usize = 12;

/// Records of one message at most; hardly a name has a hundred.
const RECORDS: usize = 4096;

/// An answer of another name server.
#[derive(Clone, Debug)]
pub struct Response {
    /// The message without an OPT record.
    bytes: Rc<[u8]>,
    rcode: Rcode,
    is_truncated: bool,
}

/// A record within a message.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// 0: answer, 1: authority, 2: additional.
    section: u8,
    start: usize,
    kind: Rtype,
    /// Where the four bytes of the time to live begin.
    ttl_at: usize,
    ttl: u32,
    end: usize,
}

impl Response {
    /// Reads the answer to a query that was forwarded with this ID; `None` for anything else, such as a forged one.
    pub(in crate::dns) fn read(bytes: &[u8], key: &Key, id: u16) -> Option<Response> {
        let message = Message::from_slice(bytes).ok()?;
        let header = message.header();
        if !header.qr() || header.id() != id || header.opcode().to_int() != 0 {
            return None;
        }
        // Some servers repeat no question when they fail or refuse.
        let is_bare = bytes.len() == HEADER && message.header_counts().qdcount() == 0;
        if is_bare && !matches!(header.rcode(), Rcode::NOERROR | Rcode::NXDOMAIN) {
            return Some(Response { bytes: bytes.into(), rcode: Rcode::SERVFAIL, is_truncated: false });
        }
        let question = message.sole_question().ok()?;
        let is_asked = question.qclass() == Class::IN
            && question.qtype().to_int() == key.kind
            && !question.qname().is_compressed()
            && question.qname().to_name::<Vec<u8>>().as_slice().eq_ignore_ascii_case(&key.name);
        if !is_asked {
            return None;
        }
        let (rcode, is_truncated) = (header.rcode(), header.tc());
        let (places, end) = places(bytes, key)?;
        let mut bytes = bytes[..end].to_vec();
        remove_opt(&mut bytes, &places);
        Some(Response { bytes: bytes.into(), rcode, is_truncated })
    }

    /// Whether the whole answer needs TCP.
    pub(in crate::dns) fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Whether another server may know more: this one failed or refuses.
    pub(in crate::dns) fn is_failure(&self) -> bool {
        !matches!(self.rcode, Rcode::NOERROR | Rcode::NXDOMAIN | Rcode::FORMERR)
    }

    /// Whether the name exists.
    pub(in crate::dns) fn is_positive(&self) -> bool {
        self.rcode == Rcode::NOERROR
    }

    /// Bytes that it takes.
    pub(in crate::dns) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The time in seconds for which it may be kept; `None` if not at all. That of a negative answer is of its SOA
    /// record (RFC 2308).
    pub(in crate::dns) fn lifetime(&self, key: &Key) -> Option<u32> {
        if self.is_truncated || !matches!(self.rcode, Rcode::NOERROR | Rcode::NXDOMAIN) {
            return None;
        }
        let (places, _) = places(&self.bytes, key)?;
        let has_kind = places.iter().any(|place| place.section == 0 && place.kind.to_int() == key.kind);
        let shortest = places.iter().map(|place| place.ttl).min();
        if self.rcode == Rcode::NOERROR && has_kind {
            return shortest;
        }
        let soa = places.iter().find(|place| place.section == 1 && place.kind == Rtype::SOA)?;
        // The last four bytes of a SOA record are its minimum.
        let minimum = self.bytes.get(soa.end.checked_sub(4)?..soa.end)?;
        let minimum = u32::from_be_bytes(minimum.try_into().ok()?);
        shortest.map(|shortest| shortest.min(minimum))
    }

    /// The message for the client of `query`, `age` seconds after it came.
    pub fn answer(&self, query: &Query, age: u32, limit: u16) -> Vec<u8> {
        let key = query.key();
        let Some((records, _)) = places(&self.bytes, &key) else {
            return query.fail(ErrorCode::Server);
        };
        let mut bytes = self.bytes.to_vec();
        for place in &records {
            let ttl = place.ttl.saturating_sub(age);
            bytes[place.ttl_at..place.ttl_at + 4].copy_from_slice(&ttl.to_be_bytes());
        }
        let header = Header::for_message_slice_mut(&mut bytes);
        header.set_id(query.id);
        header.set_aa(false);
        header.set_rd(query.is_recursion_desired);
        header.set_ra(true);
        header.set_cd(query.is_checking_disabled);
        let name = query.name.as_slice();
        bytes[HEADER..HEADER + name.len()].copy_from_slice(name);
        let room = usize::from(limit) - if query.edns.is_some() { OPT_SIZE } else { 0 };
        cut(&mut bytes, &records, room, HEADER + name.len() + 4);
        query.push_opt(&mut bytes);
        // A hostile name may lead into bytes that were replaced here, and is none any more.
        if places(&bytes, &key).is_none() {
            return query.fail(ErrorCode::Server);
        }
        bytes
    }
}

/// The message for the client of `query` of `chain`, the names of type CNAME that lead to another name server's, with
/// the records of that one. As with CoreDNS the name exists even if the last one does not.
pub fn follow(query: &Query, chain: &[Record], response: &Response, age: u32, limit: u16) -> Vec<u8> {
    if response.is_failure() {
        return query.fail(ErrorCode::Server);
    }
    let mut builder = query.begin(true, Rcode::NOERROR, limit).answer();
    let mut is_cut = chain.iter().any(|record| builder.push(query.composed(record)).is_err());
    let parsed = Message::from_slice(&response.bytes).ok().and_then(|message| message.answer().ok());
    for record in parsed.into_iter().flatten().flatten() {
        if is_cut {
            break;
        }
        let ttl = record.ttl().as_secs().saturating_sub(age);
        let owner = record.owner().to_name::<Vec<u8>>();
        is_cut |= match record.rtype() {
            Rtype::CNAME => record.to_record::<Cname<_>>().ok().flatten().is_some_and(|record| {
                builder.push((&owner, ttl, Cname::new(record.data().cname()))).is_err()
            }),
            Rtype::A => record
                .to_record::<A>()
                .ok()
                .flatten()
                .is_some_and(|record| builder.push((&owner, ttl, record.data())).is_err()),
            Rtype::AAAA => record
                .to_record::<Aaaa>()
                .ok()
                .flatten()
                .is_some_and(|record| builder.push((&owner, ttl, record.data())).is_err()),
            _ => false,
        };
    }
    builder.header_mut().set_tc(is_cut || response.is_truncated);
    query.end(builder.finish())
}

/// The records of a message, and where it ends; `None` if they are not as the header counts them.
fn places(bytes: &[u8], key: &Key) -> Option<(Vec<Place>, usize)> {
    let counts = Message::from_slice(bytes).ok()?.header_counts();
    let counts = [counts.ancount(), counts.nscount(), counts.arcount()].map(usize::from);
    if counts.iter().sum::<usize>() > RECORDS {
        return None;
    }
    let mut parser = Parser::from_ref(bytes);
    parser.advance(HEADER + key.name.len() + 4).ok()?;
    let mut places = Vec::new();
    for (section, count) in (0..).zip(counts) {
        for _ in 0..count {
            let start = parser.pos();
            // This follows the name, so that no client gets one with a loop.
            ParsedName::parse_ref(&mut parser).ok()?;
            let kind = Rtype::from_int(parser.parse_u16_be().ok()?);
            parser.advance(2).ok()?;
            let ttl_at = parser.pos();
            let ttl = parser.parse_u32_be().ok()?;
            let length = parser.parse_u16_be().ok()?;
            parser.advance(usize::from(length)).ok()?;
            places.push(Place { section, start, kind, ttl_at, ttl, end: parser.pos() });
        }
    }
    Some((places, parser.pos()))
}

/// Removes the OPT record, which is of one hop. If it is not the last record, all additional ones go, so that no name
/// points elsewhere.
fn remove_opt(bytes: &mut Vec<u8>, places: &[Place]) {
    let additional = || places.iter().filter(|place| place.section == 2);
    let Some(opt) = additional().position(|place| place.kind == Rtype::OPT) else { return };
    let is_last = opt + 1 == additional().count();
    let kept = if is_last { opt } else { 0 };
    let from = additional().nth(kept).map_or(bytes.len(), |place| place.start);
    bytes.truncate(from);
    bytes[10..12].copy_from_slice(&u16::try_from(kept).unwrap_or(0).to_be_bytes());
}

/// Cuts a message to `room` bytes: first other records than those of the answer, then those that do not fit, and
/// marks that.
fn cut(bytes: &mut Vec<u8>, places: &[Place], room: usize, question_end: usize) {
    if bytes.len() <= room {
        return;
    }
    let answers: Vec<_> = places.iter().filter(|place| place.section == 0).collect();
    let kept = answers.iter().take_while(|place| place.end <= room).count();
    let end = kept.checked_sub(1).map_or(question_end, |last| answers[last].end);
    // A negative answer needs its SOA record.
    let is_whole = kept == answers.len() && !answers.is_empty();
    bytes.truncate(end);
    bytes[6..8].copy_from_slice(&u16::try_from(kept).unwrap_or(0).to_be_bytes());
    bytes[8..12].fill(0);
    Header::for_message_slice_mut(bytes).set_tc(!is_whole);
}
