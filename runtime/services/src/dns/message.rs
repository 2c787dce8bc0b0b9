//! Reads queries of pods, writes answers to them, and makes queries to other name servers. Messages are hostile: the
//! crate `domain` follows compression only backwards and a bounded number of times. Answers of other name servers are
//! in `message/response.rs`.

use std::fmt;

use domain::base::iana::{Class, Opcode, Rcode, Rtype};
use domain::base::message_builder::StaticCompressor;
use domain::base::name::NameBuilder;
use domain::base::record::ComposeRecord;
use domain::base::wire::Composer;
use domain::base::{
    Header, Message, MessageBuilder, Name, Question, Serial, ToName, Ttl, rdata::ComposeRecordData,
};
use domain::rdata::{A, Aaaa, Cname, Ns, Ptr, Soa, Srv, Txt};

use super::names::{Answer, Data, Record, TTL, Type};

mod response;

pub use response::{Response, follow};

/// Maximum size in bytes of an answer by UDP to a resolver without EDNS.
const PLAIN: u16 = 512;

/// Maximum size in bytes of a message by UDP with EDNS, which no link fragments; also the size that other name
/// servers may use.
const UDP: u16 = 1232;

/// Maximum size in bytes of a message by TCP.
pub const TCP: u16 = u16::MAX;

/// Size in bytes of a record of type OPT without options.
const OPT_SIZE: usize = 11;

/// Maximum size in bytes of [`Query::written`]: a header, the longest name with type and class, and an OPT record.
pub const QUERY: usize = 12 + 255 + 4 + OPT_SIZE;

/// The version of EDNS that is known, and its error for others (RFC 6891), in the two parts of a message.
const EDNS_VERSION: u8 = 0;
const BAD_VERSION: (Rcode, u8) = (Rcode::NOERROR, 1);

/// A query that can be answered: one question of the class IN.
#[derive(Clone, Debug)]
pub struct Query {
    id: u16,
    name: Name<Vec<u8>>,
    kind: Rtype,
    is_recursion_desired: bool,
    is_checking_disabled: bool,
    edns: Option<Edns>,
    /// The extended part of the error if the version of EDNS is unknown.
    bad_version: u8,
}

/// The OPT record of a query.
#[derive(Clone, Copy, Debug)]
struct Edns {
    size: u16,
    dnssec_ok: bool,
}

/// What an answer depends on besides the Services: the name in lower case, the type, and the flags of the query.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    name: Box<[u8]>,
    kind: u16,
    is_checking_disabled: bool,
    dnssec_ok: bool,
}

/// A message that gets no regular answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Unanswerable {
    /// It is no query: an answer to it could begin an endless exchange.
    Ignored,
    /// It is rejected with this message.
    Rejected(Vec<u8>),
}

/// The code of a response without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// `SERVFAIL`
    Server,
    /// `REFUSED`
    Refused,
}

impl Query {
    /// Reads a message of a client.
    ///
    /// # Errors
    /// It is no query, or one that is rejected.
    pub fn read(bytes: &[u8]) -> Result<Query, Unanswerable> {
        let message = Message::from_slice(bytes).map_err(|_| Unanswerable::Ignored)?;
        let header = message.header();
        if header.qr() {
            return Err(Unanswerable::Ignored);
        }
        let reject = |rcode| {
            let mut bytes = Vec::with_capacity(12);
            let mut answer = answer_header(header.id(), header.rd(), false, rcode);
            answer.set_opcode(header.opcode());
            bytes.extend_from_slice(answer.as_slice());
            bytes.resize(12, 0);
            Unanswerable::Rejected(bytes)
        };
        if header.opcode() != Opcode::QUERY {
            return Err(reject(Rcode::NOTIMP));
        }
        let question = message.sole_question().map_err(|_| reject(Rcode::FORMERR))?;
        let counts = message.header_counts();
        if header.tc() || counts.ancount() != 0 || counts.nscount() != 0 || counts.arcount() > 2 {
            return Err(reject(Rcode::FORMERR));
        }
        let mut query = Query {
            id: header.id(),
            name: question.qname().to_name(),
            kind: question.qtype(),
            is_recursion_desired: header.rd(),
            is_checking_disabled: header.cd(),
            edns: None,
            bad_version: 0,
        };
        for record in message.additional().map_err(|_| reject(Rcode::FORMERR))? {
            let record = record.map_err(|_| reject(Rcode::FORMERR))?;
            if record.rtype() != Rtype::OPT {
                continue;
            }
            if query.edns.is_some() || !record.owner().is_root() {
                return Err(reject(Rcode::FORMERR));
            }
            let [_, version, flags, _] = record.ttl().as_secs().to_be_bytes();
            query.edns = Some(Edns { size: record.class().to_int(), dnssec_ok: flags & 0x80 != 0 });
            if version != EDNS_VERSION {
                query.bad_version = BAD_VERSION.1;
            }
        }
        if query.bad_version != 0 {
            return Err(Unanswerable::Rejected(query.without_records(BAD_VERSION.0)));
        }
        if question.qclass() != Class::IN || matches!(query.kind, Rtype::AXFR | Rtype::IXFR) {
            return Err(Unanswerable::Rejected(query.fail(ErrorCode::Refused)));
        }
        Ok(query)
    }

    /// What answers to it can be kept and shared by.
    pub fn key(&self) -> Key {
        Key {
            name: self.name.as_slice().to_ascii_lowercase().into(),
            kind: self.kind.to_int(),
            is_checking_disabled: self.is_checking_disabled,
            dnssec_ok: self.edns.is_some_and(|edns| edns.dnssec_ok),
        }
    }

    /// The type of its question.
    pub fn kind(&self) -> Type {
        match self.kind {
            Rtype::A => Type::A,
            Rtype::AAAA => Type::Aaaa,
            Rtype::CNAME => Type::Cname,
            Rtype::NS => Type::Ns,
            Rtype::PTR => Type::Ptr,
            Rtype::SOA => Type::Soa,
            Rtype::SRV => Type::Srv,
            Rtype::TXT => Type::Txt,
            _ => Type::Other,
        }
    }

    /// Maximum size in bytes of its answer by UDP.
    pub fn udp_limit(&self) -> u16 {
        self.edns.map_or(PLAIN, |edns| edns.size.clamp(PLAIN, UDP))
    }

    /// The same query for another name; `None` if that is no name.
    pub fn with_name(&self, name: &str) -> Option<Query> {
        Some(Query { name: wire_name(name)?, ..self.clone() })
    }

    /// Its ID.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// The message that leads its client to TCP.
    pub fn truncated(&self) -> Vec<u8> {
        let mut bytes = self.without_records(Rcode::NOERROR);
        Header::for_message_slice_mut(&mut bytes).set_tc(true);
        bytes
    }

    /// The message that fails it.
    pub fn fail(&self, code: ErrorCode) -> Vec<u8> {
        self.without_records(match code {
            ErrorCode::Server => Rcode::SERVFAIL,
            ErrorCode::Refused => Rcode::REFUSED,
        })
    }

    fn without_records(&self, rcode: Rcode) -> Vec<u8> {
        let question = self.begin(false, rcode, TCP);
        self.end(question.finish())
    }

    /// The message with `answer`, of at most `limit` bytes; one that does not fit has as many whole records as do,
    /// and is marked as truncated. Addresses begin with another one for each ID (CoreDNS: `loadbalance`), so that
    /// clients which take the first share them. `None` for what another name server has.
    pub fn answer(&self, answer: &Answer, limit: u16) -> Option<Vec<u8>> {
        let (rcode, records, authority, additional) = match answer {
            Answer::Records { answer, additional } => (Rcode::NOERROR, &answer[..], None, &additional[..]),
            Answer::NoData(soa) => (Rcode::NOERROR, &[][..], Some(soa), &[][..]),
            Answer::NotExisting(soa) => (Rcode::NXDOMAIN, &[][..], soa.as_ref(), &[][..]),
            Answer::Follow { .. } | Answer::Forward => return None,
        };
        // One that is not of the domain is not ours to deny with authority.
        let is_authority = !matches!(answer, Answer::NotExisting(None));
        let mut builder = self.begin(is_authority, rcode, limit).answer();
        let is_rotated = records.iter().all(|record| matches!(record.data, Data::Address(_)));
        let first = if is_rotated { usize::from(self.id) % records.len().max(1) } else { 0 };
        let (last, records) = records.split_at(first);
        let is_cut = records.iter().chain(last).any(|record| builder.push(self.composed(record)).is_err());
        builder.header_mut().set_tc(is_cut);
        let mut builder = builder.authority();
        // What does not fit beside the answer can be asked for.
        let _ = authority.filter(|_| !is_cut).map(|record| builder.push(self.composed(record)));
        let mut builder = builder.additional();
        let _ =
            additional.iter().filter(|_| !is_cut).try_for_each(|record| builder.push(self.composed(record)));
        Some(self.end(builder.finish()))
    }

    fn composed<'a>(&'a self, record: &'a Record) -> Composed<'a> {
        Composed { question: &self.name, record }
    }

    /// Begins a message of at most `limit` bytes with its [`Self::end`].
    fn begin(&self, is_authority: bool, rcode: Rcode, limit: u16) -> Questions {
        let target = StaticCompressor::new(Vec::with_capacity(usize::from(PLAIN)));
        let mut builder = MessageBuilder::from_target(target).expect("memory has no limit");
        let mut header = answer_header(self.id, self.is_recursion_desired, is_authority, rcode);
        header.set_cd(self.is_checking_disabled);
        *builder.header_mut() = header;
        let mut builder = builder.question();
        builder.push(Question::new(&self.name, self.kind, Class::IN)).expect("it is the first one");
        let room = usize::from(limit) - if self.edns.is_some() { OPT_SIZE } else { 0 };
        // The builder counts the byte after the last one.
        builder.set_push_limit(room + 1);
        builder
    }

    fn end(&self, message: StaticCompressor<Vec<u8>>) -> Vec<u8> {
        let mut bytes = message.into_target();
        self.push_opt(&mut bytes);
        bytes
    }

    /// Adds the OPT record that a query with one gets.
    fn push_opt(&self, bytes: &mut Vec<u8>) {
        if let Some(Edns { dnssec_ok, .. }) = self.edns {
            push_opt(bytes, UDP, self.bad_version, dnssec_ok);
        }
    }

    /// The query as it can be read again, of at most [`QUERY`] bytes: without what changes no answer, such as padding.
    pub fn written(&self) -> Vec<u8> {
        self.write(self.id, self.is_recursion_desired, self.edns)
    }

    /// The query for another name server, with this ID.
    pub(super) fn forwarded(&self, id: u16) -> Vec<u8> {
        self.write(id, true, self.edns.map(|edns| Edns { size: UDP, ..edns }))
    }

    fn write(&self, id: u16, is_recursion_desired: bool, edns: Option<Edns>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        let mut header = Header::new();
        header.set_id(id);
        header.set_rd(is_recursion_desired);
        header.set_cd(self.is_checking_disabled);
        bytes.extend_from_slice(header.as_slice());
        bytes.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(self.name.as_slice());
        bytes.extend_from_slice(&self.kind.to_int().to_be_bytes());
        bytes.extend_from_slice(&Class::IN.to_int().to_be_bytes());
        if let Some(Edns { size, dnssec_ok }) = edns {
            push_opt(&mut bytes, size, 0, dnssec_ok);
        }
        bytes
    }
}

impl Key {
    /// The labels of the name in lower case, without the root.
    pub fn labels(&self) -> Vec<&[u8]> {
        let mut labels = Vec::new();
        let mut rest = &self.name[..];
        while let Some((length, after)) = rest.split_first()
            && *length > 0
        {
            let (label, after) = after.split_at(usize::from(*length));
            labels.push(label);
            rest = after;
        }
        labels
    }

    /// Bytes that it takes.
    pub(super) fn size(&self) -> usize {
        size_of::<Key>() + self.name.len()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let labels: Vec<_> = self.labels().into_iter().map(String::from_utf8_lossy).collect();
        write!(formatter, "{} type {}", labels.join("."), self.kind)
    }
}

type Questions = domain::base::message_builder::QuestionBuilder<StaticCompressor<Vec<u8>>>;

fn answer_header(id: u16, is_recursion_desired: bool, is_authority: bool, rcode: Rcode) -> Header {
    let mut header = Header::new();
    header.set_id(id);
    header.set_qr(true);
    header.set_aa(is_authority);
    header.set_rd(is_recursion_desired);
    header.set_ra(true);
    header.set_rcode(rcode);
    header
}

/// Adds an OPT record, and counts it.
fn push_opt(bytes: &mut Vec<u8>, size: u16, extended_rcode: u8, dnssec_ok: bool) {
    let [high, low] = size.to_be_bytes();
    let flags = if dnssec_ok { 0x80 } else { 0 };
    let kind = Rtype::OPT.to_int() as u8;
    bytes.extend_from_slice(&[0, 0, kind, high, low, extended_rcode, EDNS_VERSION, flags, 0, 0, 0]);
    let count = u16::from_be_bytes([bytes[10], bytes[11]]) + 1;
    bytes[10..12].copy_from_slice(&count.to_be_bytes());
}

/// The name with these labels; `None` if one is too long or empty.
fn wire_name(text: &str) -> Option<Name<Vec<u8>>> {
    let mut builder = NameBuilder::new_vec();
    for label in text.split('.') {
        if label.is_empty() {
            return None;
        }
        builder.append_label(label.as_bytes()).ok()?;
    }
    builder.into_name().ok()
}

/// A record beside the name of the question. One whose names are no names cannot be written, as if it did not fit.
struct Composed<'a> {
    question: &'a Name<Vec<u8>>,
    record: &'a Record,
}

impl ComposeRecord for Composed<'_> {
    fn compose_record<Target: Composer + ?Sized>(
        &self,
        target: &mut Target,
    ) -> Result<(), Target::AppendError> {
        let name = |text: &str| wire_name(text).unwrap_or_else(Name::root_vec);
        match &self.record.owner {
            None => target.append_compressed_name(self.question)?,
            Some(owner) => target.append_compressed_name(&name(owner))?,
        }
        let ttl = self.record.ttl;
        match &self.record.data {
            Data::Address(std::net::IpAddr::V4(address)) => tail(target, Rtype::A, ttl, &A::new(*address)),
            Data::Address(std::net::IpAddr::V6(address)) => {
                tail(target, Rtype::AAAA, ttl, &Aaaa::new(*address))
            }
            Data::Cname(to) => tail(target, Rtype::CNAME, ttl, &Cname::new(name(to))),
            Data::Ns(server) => tail(target, Rtype::NS, ttl, &Ns::new(name(server))),
            Data::Ptr(to) => tail(target, Rtype::PTR, ttl, &Ptr::new(name(to))),
            Data::Soa { server, mailbox, serial } => {
                let [refresh, retry, expire] = [7200, 1800, 86_400].map(Ttl::from_secs);
                let (serial, minimum) = (Serial(*serial), Ttl::from_secs(TTL));
                let soa = Soa::new(name(server), name(mailbox), serial, refresh, retry, expire, minimum);
                tail(target, Rtype::SOA, ttl, &soa)
            }
            Data::Srv { weight, port, target: to } => {
                tail(target, Rtype::SRV, ttl, &Srv::new(0, *weight, *port, name(to)))
            }
            Data::Txt(text) => {
                let text = Txt::<Vec<u8>>::build_from_slice(text.as_bytes()).expect("it is short");
                tail(target, Rtype::TXT, ttl, &text)
            }
        }
    }
}

/// What follows the name of a record.
fn tail<Target: Composer + ?Sized>(
    target: &mut Target,
    kind: Rtype,
    ttl: u32,
    data: &impl ComposeRecordData,
) -> Result<(), Target::AppendError> {
    kind.compose(target)?;
    Class::IN.compose(target)?;
    Ttl::from_secs(ttl).compose(target)?;
    data.compose_len_rdata(target)
}

#[cfg(test)]
pub(super) mod tests;
