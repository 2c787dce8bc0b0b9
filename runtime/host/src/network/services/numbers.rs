//! The numbers of chains, and the maps from numbers to endpoints, of which rules choose one.

use std::collections::BTreeMap;
use std::ops::Range;

use nodlet_services::service::Family;

use crate::netlink::nftables::Batch;
use crate::netlink::nftables::sets::{Data, Kind};

/// The most elements of a map, unless one rule needs more. The kernel compares each new element of a map with all rules that
/// use the map, and each new rule with all elements. With one map for all Services, it took 1.7 of 2.8 s for 5000 of them.
const ELEMENTS_PER_MAP: usize = 256;

/// The numbers after which the whole table is sent again, and they begin at 0.
const NUMBERS_MAX: u32 = u32::MAX / 2;

/// What a map from numbers leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Leads {
    /// To endpoints of a family.
    To(Family),
    /// To the chains of endpoints that clients stay with.
    ToChains,
}

/// One of the maps of a kind, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Map(Leads, u32);

impl Map {
    fn name(self) -> String {
        let Map(leads, number) = self;
        match leads {
            Leads::To(Family::V4) => format!("endpoints4-{number}"),
            Leads::To(Family::V6) => format!("endpoints6-{number}"),
            Leads::ToChains => format!("sticky-{number}"),
        }
    }
}

/// Elements of a map from numbers, of which a rule chooses one.
#[derive(Debug)]
pub(super) struct Chosen {
    map: Map,
    pub(super) numbers: Range<u32>,
}

impl Chosen {
    /// The name of the map.
    pub(super) fn map(&self) -> String {
        self.map.name()
    }
}

/// The numbers of chains and of elements.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// How many chains the kernel has.
    count: u32,
    /// Chains without rules.
    free: Vec<u32>,
    /// The next number for elements of maps from numbers.
    next: u32,
    /// The maps from numbers, with the numbers of their elements.
    maps: BTreeMap<Map, usize>,
    /// Elements that no rule uses since the latest change. A packet may still be in a rule that did.
    unused: Vec<Chosen>,
}

impl Numbers {
    /// Whether there are hardly any numbers left.
    pub(super) fn are_used_up(&self) -> bool {
        self.next > NUMBERS_MAX
    }

    /// The number of an empty chain, which is added if there is none.
    pub(super) fn take(&mut self, batch: &mut Batch) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            batch.add_chain(&chain(self.count), None);
            self.count
        })
    }

    /// The number of a chain that is empty, if a port needs one: that which it has, or another one.
    pub(super) fn keep(&mut self, batch: &mut Batch, number: Option<u32>, is_needed: bool) -> Option<u32> {
        if is_needed {
            return Some(number.unwrap_or_else(|| self.take(batch)));
        }
        self.free.extend(number);
        None
    }

    /// Takes back the number of a chain that is empty.
    pub(super) fn release(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Adds elements to a map from numbers, under numbers that nothing had before: what a packet still finds in a rule that
    /// has just been replaced must not lead it elsewhere.
    pub(super) fn assign(&mut self, batch: &mut Batch, leads: Leads, data: &[Data]) -> Chosen {
        let has_room = |elements: usize| elements == 0 || elements + data.len() <= ELEMENTS_PER_MAP;
        let mut of_kind = self.maps.range_mut(Map(leads, 0)..=Map(leads, u32::MAX)).rev().peekable();
        let next = of_kind.peek().map_or(0, |(map, _)| map.1 + 1);
        let map = match of_kind.find(|(_, elements)| has_room(**elements)) {
            Some((map, elements)) => {
                *elements += data.len();
                *map
            }
            None => {
                let map = Map(leads, next);
                let data_kind = match leads {
                    Leads::To(family) => Some(kind(family).then(Kind::PORT)),
                    Leads::ToChains => None,
                };
                batch.add_map(&map.name(), Kind::NUMBER, data_kind);
                self.maps.insert(map, data.len());
                map
            }
        };
        let first = self.next;
        self.next = first.saturating_add(u32::try_from(data.len()).unwrap_or(u32::MAX));
        batch.add_numbers(&map.name(), first, data);
        Chosen { map, numbers: first..self.next }
    }

    /// Records that no rule uses these elements any more.
    pub(super) fn drop_all(&mut self, chosen: Vec<Chosen>) {
        self.unused.extend(chosen);
    }

    /// Deletes the elements that no rule has used since the batch before this one.
    pub(super) fn delete_unused(&mut self, batch: &mut Batch) {
        for Chosen { map, numbers } in self.unused.drain(..) {
            if let Some(elements) = self.maps.get_mut(&map) {
                *elements -= numbers.len();
            }
            batch.delete_numbers(&map.name(), numbers);
        }
    }
}

/// The name of the chain with a number.
pub(super) fn chain(number: u32) -> String {
    format!("c{number}")
}

/// The kind of the addresses of a family.
pub(super) fn kind(family: Family) -> Kind {
    match family {
        Family::V4 => Kind::IPV4,
        Family::V6 => Kind::IPV6,
    }
}
