//! Sets and maps of nftables, and their elements.

use std::ops::Range;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};

use super::expressions::NFT_GOTO;
use super::{Batch, NEWTABLE, NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_LIST_ELEM, word};
use crate::netlink::{attribute, nested, text};

const NEWSET: u16 = NEWTABLE | 9;
const DELSET: u16 = NEWTABLE | 11;
const NEWSETELEM: u16 = NEWTABLE | 12;
const DELSETELEM: u16 = NEWTABLE | 14;

const NFTA_SET_NAME: u16 = 2;
const NFTA_SET_FLAGS: u16 = 3;
const NFTA_SET_KEY_TYPE: u16 = 4;
const NFTA_SET_KEY_LEN: u16 = 5;
const NFTA_SET_DATA_TYPE: u16 = 6;
const NFTA_SET_DATA_LEN: u16 = 7;
const NFTA_SET_DESC: u16 = 9;
const NFTA_SET_ID: u16 = 10;
const NFTA_SET_TIMEOUT: u16 = 11;
const NFTA_SET_DESC_SIZE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_DATA: u16 = 2;

const NFT_SET_MAP: u32 = 0x8;
const NFT_SET_TIMEOUT: u32 = 0x10;
const NFT_SET_EVAL: u32 = 0x20;
const NFT_DATA_VERDICT: u32 = 0xffff_ff00;

/// Elements of one message, whose attribute with them is less than 64 KiB long.
const ELEMENTS_PER_MESSAGE: usize = 500;

/// The type of a value, as `nft` numbers it, and its bytes. Several parts in a row are each padded to four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    number: u32,
    bytes: u32,
}

impl Kind {
    pub(crate) const IPV4: Kind = Kind { number: 7, bytes: 4 };
    pub(crate) const IPV6: Kind = Kind { number: 8, bytes: 16 };
    pub(crate) const PROTOCOL: Kind = Kind { number: 12, bytes: 4 };
    pub(crate) const PORT: Kind = Kind { number: 13, bytes: 4 };
    /// A number in the order of bytes of the machine, which `nft` shows as a mark.
    pub(crate) const NUMBER: Kind = Kind { number: 19, bytes: 4 };

    /// A value of this kind, followed by one of another.
    pub(crate) const fn then(self, other: Kind) -> Kind {
        Kind { number: self.number << 6 | other.number, bytes: self.bytes + other.bytes }
    }
}

/// What an element of a map leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'a> {
    /// A value, of the map's kind.
    Value(&'a [u8]),
    /// The rules of a chain.
    Goto(&'a str),
}

impl Data<'_> {
    fn encode(self) -> Vec<u8> {
        let data = match self {
            Data::Value(bytes) => attribute(NFTA_DATA_VALUE, bytes),
            Data::Goto(chain) => nested(NFTA_DATA_VERDICT, &[word(1, NFT_GOTO), text(2, chain)]),
        };
        nested(NFTA_SET_ELEM_DATA, &[data])
    }
}

impl Batch {
    /// Adds a set.
    pub(crate) fn add_set(&mut self, name: &str, key: Kind) {
        self.set(name, key, vec![word(NFTA_SET_FLAGS, 0), word(NFTA_SET_ID, 0)]);
    }

    /// Adds a map from keys to chains (`data` is `None`) or to values of a kind.
    pub(crate) fn add_map(&mut self, name: &str, key: Kind, data: Option<Kind>) {
        let mut attributes = vec![
            word(NFTA_SET_FLAGS, NFT_SET_MAP),
            word(NFTA_SET_DATA_TYPE, data.map_or(NFT_DATA_VERDICT, |data| data.number)),
        ];
        attributes.extend(data.map(|data| word(NFTA_SET_DATA_LEN, data.bytes)));
        attributes.push(word(NFTA_SET_ID, 0));
        self.set(name, key, attributes);
    }

    /// Adds a set to which rules add elements, of which each lasts for `seconds`.
    pub(crate) fn add_dynamic_set(&mut self, name: &str, key: Kind, seconds: u32, elements_max: u32) {
        let milliseconds = u64::from(seconds) * 1000;
        let attributes = vec![
            word(NFTA_SET_FLAGS, NFT_SET_TIMEOUT | NFT_SET_EVAL),
            attribute(NFTA_SET_TIMEOUT, &milliseconds.to_be_bytes()),
            nested(NFTA_SET_DESC, &[word(NFTA_SET_DESC_SIZE, elements_max)]),
            word(NFTA_SET_ID, 0),
        ];
        self.set(name, key, attributes);
    }

    fn set(&mut self, name: &str, key: Kind, attributes: Vec<Vec<u8>>) {
        let mut all = vec![
            text(NFTA_SET_NAME, name),
            word(NFTA_SET_KEY_TYPE, key.number),
            word(NFTA_SET_KEY_LEN, key.bytes),
        ];
        all.extend(attributes);
        self.message(NEWSET, NLM_F_CREATE, all);
    }

    /// Deletes a set that no rule uses any more.
    pub(crate) fn delete_set(&mut self, name: &str) {
        self.message(DELSET, 0, vec![text(NFTA_SET_NAME, name)]);
    }

    /// Adds elements to a map from numbers: `first`, the one after it, and so on.
    pub(crate) fn add_numbers(&mut self, map: &str, first: u32, data: &[Data]) {
        let element = |(number, data): (u32, &Data)| {
            nested(NFTA_LIST_ELEM, &[key(&number.to_ne_bytes()), data.encode()])
        };
        let elements: Vec<Vec<u8>> = (first..).zip(data).map(element).collect();
        self.elements(NEWSETELEM, NLM_F_CREATE | NLM_F_EXCL, map, &elements);
    }

    /// Deletes elements that [`Batch::add_numbers`] added.
    pub(crate) fn delete_numbers(&mut self, map: &str, numbers: Range<u32>) {
        let element = |number: u32| nested(NFTA_LIST_ELEM, &[key(&number.to_ne_bytes())]);
        self.elements(DELSETELEM, 0, map, &numbers.map(element).collect::<Vec<_>>());
    }

    /// Adds an element to a set or map.
    pub(crate) fn add_element(&mut self, set: &str, bytes: &[u8], data: Option<Data>) {
        let element = [key(bytes), data.map(Data::encode).unwrap_or_default()];
        self.elements(NEWSETELEM, NLM_F_CREATE | NLM_F_EXCL, set, &[nested(NFTA_LIST_ELEM, &element)]);
    }

    /// Deletes an element of a set or map.
    pub(crate) fn delete_element(&mut self, set: &str, bytes: &[u8]) {
        self.elements(DELSETELEM, 0, set, &[nested(NFTA_LIST_ELEM, &[key(bytes)])]);
    }

    fn elements(&mut self, kind: u16, flags: u16, set: &str, elements: &[Vec<u8>]) {
        for part in elements.chunks(ELEMENTS_PER_MESSAGE) {
            let part = nested(NFTA_SET_ELEM_LIST_ELEMENTS, part);
            self.message(kind, flags, vec![text(NFTA_SET_ELEM_LIST_SET, set), part]);
        }
    }
}

fn key(bytes: &[u8]) -> Vec<u8> {
    nested(NFTA_SET_ELEM_KEY, &[attribute(NFTA_DATA_VALUE, bytes)])
}
