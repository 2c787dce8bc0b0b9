//! The messages of nftables that nodlet's table needs: `linux/netfilter/nf_tables.h` without a program or library.
//!
//! This module knows no pod. It must never send a message that names another table than those that it is given.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use netlink_packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NetlinkBuffer};

use super::netfilter::{self, Object, payload};
use super::{News, Socket, attribute, message, messages, nested, text};

pub(crate) mod expressions;
pub(crate) mod sets;

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NEWTABLE: u16 = NFNL_SUBSYS_NFTABLES << 8;
const DELTABLE: u16 = NEWTABLE | 2;
const NEWCHAIN: u16 = NEWTABLE | 3;
/// The request for a list of chains, for [`netfilter::list`].
pub(crate) const GETCHAIN: u16 = NEWTABLE | 4;
const NEWRULE: u16 = NEWTABLE | 6;
/// The request for a list of rules, for [`netfilter::list`].
pub(crate) const GETRULE: u16 = NEWTABLE | 7;
const DELRULE: u16 = NEWTABLE | 8;
const NEWGEN: u16 = NEWTABLE | 15;
const GETGEN: u16 = NEWTABLE | 16;
const NFTA_GEN_ID: u16 = 1;
const NFNLGRP_NFTABLES: u32 = 7;
const NFPROTO_INET: u8 = 1;
const NF_ACCEPT: u32 = 1;

/// The name of the table of a chain, of a rule or of anything else in it.
pub(crate) const NFTA_TABLE: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
pub(crate) const NFTA_CHAIN_NAME: u16 = 3;
pub(crate) const NFTA_CHAIN_HOOK: u16 = 4;
pub(crate) const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
pub(crate) const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_RULE_CHAIN: u16 = 2;
pub(crate) const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_RULE_USERDATA: u16 = 7;
pub(crate) const NFTA_LIST_ELEM: u16 = 1;
pub(crate) const NFTA_EXPR_NAME: u16 = 1;
pub(crate) const NFTA_EXPR_DATA: u16 = 2;
pub(crate) const NFTA_CMP_DATA: u16 = 3;
pub(crate) const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;

/// A hook of a base chain: number and priority.
pub(crate) type Hook = (u32, i32);

/// The bytes of an attribute whose value is a number.
pub(super) fn word(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

/// The messages of one atomic change of one table of the family `inet`.
pub(crate) struct Batch {
    bytes: Vec<u8>,
    sequence: u32,
    table: String,
    /// Where the latest message begins.
    latest: usize,
}

/// The most bytes of a comment that `nft` shows.
const COMMENT_BYTES: usize = 120;

impl Batch {
    fn begin(table: &str, sequence: u32) -> Batch {
        let mut batch = Batch { bytes: Vec::new(), sequence, table: table.to_owned(), latest: 0 };
        batch.limit(BATCH_BEGIN);
        batch
    }

    fn limit(&mut self, kind: u16) {
        let body = payload(libc::NFPROTO_UNSPEC as u8, NFNL_SUBSYS_NFTABLES, &[]);
        self.bytes.extend(message(kind, 0, self.sequence, &body));
    }

    /// Adds a message about the table.
    fn message(&mut self, kind: u16, flags: u16, mut attributes: Vec<Vec<u8>>) {
        attributes.insert(0, text(NFTA_TABLE, &self.table));
        self.latest = self.bytes.len();
        self.bytes.extend(message(kind, flags, self.sequence, &payload(NFPROTO_INET, 0, &attributes)));
    }

    /// Makes the table, unless it exists.
    pub(crate) fn add_table(&mut self) {
        self.message(NEWTABLE, 0, vec![word(NFTA_TABLE_FLAGS, 0)]);
    }

    /// Deletes the table and everything in it.
    pub(crate) fn delete_table(&mut self) {
        self.message(DELTABLE, 0, Vec::new());
    }

    /// Adds a chain: a base chain of `kind` (`filter` or `nat`) at a hook, which accepts what no rule drops, or a
    /// chain for [`expressions::jump`].
    pub(crate) fn add_chain(&mut self, name: &str, hook: Option<(&str, Hook)>) {
        let mut attributes = vec![text(NFTA_CHAIN_NAME, name)];
        if let Some((kind, (number, priority))) = hook {
            let hook = [word(NFTA_HOOK_HOOKNUM, number), word(NFTA_HOOK_PRIORITY, priority.cast_unsigned())];
            attributes.extend([
                text(NFTA_CHAIN_TYPE, kind),
                word(NFTA_CHAIN_POLICY, NF_ACCEPT),
                nested(NFTA_CHAIN_HOOK, &hook),
            ]);
        }
        self.message(NEWCHAIN, NLM_F_CREATE, attributes);
    }

    /// Adds a rule to a chain.
    pub(crate) fn add_rule(&mut self, chain: &str, expressions: &[Vec<u8>]) {
        let attributes = vec![text(NFTA_RULE_CHAIN, chain), nested(NFTA_RULE_EXPRESSIONS, expressions)];
        self.message(NEWRULE, NLM_F_CREATE | NLM_F_APPEND, attributes);
    }

    /// Adds a rule to a chain, with a comment for people.
    pub(crate) fn add_rule_with_comment(&mut self, chain: &str, expressions: &[Vec<u8>], comment: &str) {
        let comment = &comment.as_bytes()[..comment.floor_char_boundary(COMMENT_BYTES)];
        // The type of the comment among the userdata, its length, and the comment with its end.
        let length = u8::try_from(comment.len() + 1).unwrap_or(u8::MAX);
        let userdata = attribute(NFTA_RULE_USERDATA, &[&[0, length], comment, b"\0"].concat());
        let attributes =
            vec![text(NFTA_RULE_CHAIN, chain), nested(NFTA_RULE_EXPRESSIONS, expressions), userdata];
        self.message(NEWRULE, NLM_F_CREATE | NLM_F_APPEND, attributes);
    }

    /// Deletes all rules of a chain.
    pub(crate) fn flush_chain(&mut self, name: &str) {
        self.message(DELRULE, 0, vec![text(NFTA_RULE_CHAIN, name)]);
    }

    /// Deletes another table: that of `name`, and everything in it. It must exist.
    pub(crate) fn delete_other_table(&mut self, name: &str) {
        let own = std::mem::replace(&mut self.table, name.to_owned());
        self.delete_table();
        self.table = own;
    }

    /// The bytes of the batch so far.
    pub(crate) fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Ends the batch. The kernel acknowledges the latest message.
    fn end(mut self) -> Vec<u8> {
        let mut latest = NetlinkBuffer::new(&mut self.bytes[self.latest..]);
        latest.set_flags(latest.flags() | NLM_F_ACK);
        self.limit(BATCH_END);
        self.bytes
    }
}

/// A socket to the kernel's nf_tables, in the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Nft(Socket, Generation);

/// The number of the latest change of all tables before which nobody but this socket has made one whose news are unread.
/// The kernel counts the changes.
pub(crate) type Generation = Rc<Cell<Option<u32>>>;

impl Nft {
    pub(crate) fn open() -> io::Result<Nft> {
        netfilter::open().map(|socket| Nft(socket, Generation::default()))
    }

    /// Where the socket keeps the number of its latest change. Who reads the news sets it at first, and when they tell of
    /// changes by others.
    pub(crate) fn own_generation(&self) -> Generation {
        self.1.clone()
    }

    /// The number of the latest change of any table.
    pub(crate) fn generation(&mut self) -> io::Result<Option<u32>> {
        let mut found = None;
        self.0.request(GETGEN, NLM_F_ACK, &payload(libc::NFPROTO_UNSPEC as u8, 0, &[]), &mut |answer| {
            let id =
                Object::parse(answer).and_then(|object| object.find(NFTA_GEN_ID)?.first_chunk().copied());
            found = found.or(id.map(u32::from_be_bytes));
            true
        })?;
        Ok(found)
    }

    /// The port of the socket, which the kernel names in the news of its changes.
    pub(crate) fn port(&self) -> u32 {
        self.0.port
    }

    /// Makes one atomic change to `table`: all of it takes effect, or nothing. Returns how many bytes were sent.
    pub(crate) fn change(&mut self, table: &str, fill: impl FnOnce(&mut Batch)) -> io::Result<usize> {
        let before = self.generation()?;
        let mut length = 0;
        let encode = |sequence| {
            let bytes = encode(table, sequence, fill);
            length = bytes.len();
            bytes
        };
        self.0.exchange(encode, &mut |_| true)?;
        let after = self.generation()?;
        // Otherwise somebody else has changed something before or in between.
        if before == self.1.get() && after == before.map(|before| before.wrapping_add(1)) {
            self.1.set(after);
        }
        Ok(length)
    }

    /// Whether `table` exists, and has a chain of this name.
    pub(crate) fn has_chain(&mut self, table: &str, chain: &str) -> io::Result<bool> {
        let named = payload(NFPROTO_INET, 0, &[text(NFTA_TABLE, table), text(NFTA_CHAIN_NAME, chain)]);
        match self.0.request(GETCHAIN, NLM_F_ACK, &named, &mut |_| true) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            asked => asked.map(|()| true),
        }
    }
}

/// The bytes of a change.
pub(crate) fn encode(table: &str, sequence: u32, fill: impl FnOnce(&mut Batch)) -> Vec<u8> {
    let mut batch = Batch::begin(table, sequence);
    fill(&mut batch);
    batch.end()
}

/// A socket that receives the changes of all tables in its network namespace.
pub(crate) fn news() -> io::Result<News> {
    News::open(libc::NETLINK_NETFILTER, &[NFNLGRP_NFTABLES])
}

/// Whether one of the news in `bytes` is a change of one of the `tables` by another socket than that with `port`.
pub(crate) fn changes_tables(bytes: &[u8], tables: &[String], port: u32) -> bool {
    foreign(bytes, port).any(|(kind, object)| {
        let changed = object.find(NFTA_TABLE).and_then(|name| name.strip_suffix(b"\0"));
        kind & 0xff00 == NEWTABLE
            && object.family == NFPROTO_INET
            && tables.iter().any(|table| changed == Some(table.as_bytes()))
    })
}

/// Whether one of the news in `bytes` is a new or changed chain by another socket than that with `port`.
pub(crate) fn adds_chain(bytes: &[u8], port: u32) -> bool {
    foreign(bytes, port).any(|(kind, _)| kind == NEWCHAIN)
}

/// The number of the latest change that is complete in the news in `bytes`.
pub(crate) fn latest_generation(bytes: &[u8]) -> Option<u32> {
    let of = |message: NetlinkBuffer<&[u8]>| {
        let is_generation = message.message_type() == NEWGEN;
        is_generation.then(|| Object::parse(message.payload())?.find(NFTA_GEN_ID)?.first_chunk().copied())?
    };
    messages(bytes).flatten().filter_map(of).last().map(u32::from_be_bytes)
}

/// The news in `bytes` of other sockets than that with `port`: types and objects.
fn foreign(bytes: &[u8], port: u32) -> impl Iterator<Item = (u16, Object<'_>)> {
    let news = messages(bytes).flatten().filter(move |message| message.port_number() != port);
    news.filter_map(|message| Some((message.message_type(), Object::parse(message.payload())?)))
}
