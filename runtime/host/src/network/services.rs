//! The nftables table of Services, `inet nodlet-services-<hash of the root>`: one lookup in a map finds the chain of a new
//! connection, however many Services there are, as in kube-proxy's mode `nftables`. Packets of a known connection pass no
//! rule of it: the kernel has what to translate in the connection's entry.
//!
//! A change sends only the elements of maps and the rules of chains that differ from those that were sent last. The whole
//! table is sent at start, after somebody else has changed it, and if more differs than one batch should have. If it does
//! not fit into one batch, it grows under a second name without a hook, and the last batch gives it the hooks and deletes
//! the first one: the kernel never has half of the Services.
//!
//! Chains are never deleted while the table exists: before Linux 6.2, the kernel takes a moment until it notices that no
//! element of a map leads to a chain. The chain of a Service that is gone is empty, and the next new one gets it.
//! Endpoints are in one map as well: a map for each rule would make the kernel slow, which searches the list of all sets
//! for each. The rules are in `services/rules.rs`.

mod board;
pub(super) mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use nodlet_services::data_path::{DataPath, PortPath};
use nodlet_services::service::{Family, Protocol, TrafficPolicy};

use self::rules::{Abilities, Chains, Chosen, Frame, Pods};
use super::conntrack::{Reached, unspecified};
use super::firewall::{explain, remove_table};
use crate::netlink::nftables::sets::Data;
use crate::netlink::nftables::{Batch, Nft};

/// The bytes of a batch after which another one begins, if all Services do not fit into one. The kernel needs several
/// times as much while it handles a batch.
const BATCH_BYTES: usize = 256 << 10;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// What a change sent to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Atomic changes, of which more than one is needed only for a whole table.
    pub batches: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Whether the whole table was sent.
    pub is_whole: bool,
}

/// A key of the maps that lead to the chain of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    family: Family,
    /// `None` for a node port.
    address: Option<IpAddr>,
    protocol: Protocol,
    port: u16,
}

impl Key {
    fn map(&self) -> &'static str {
        match self.address {
            Some(_) => rules::ports(self.family),
            None => rules::node_ports(self.family),
        }
    }

    /// The address if there is one, the protocol and the port, each padded to four bytes.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.address.map(rules::octets).unwrap_or_default();
        bytes.extend([self.protocol as u8, 0, 0, 0]);
        bytes.extend(self.port.to_be_bytes());
        bytes.extend([0; 2]);
        bytes
    }
}

/// A port as the kernel has it.
#[derive(Debug)]
struct Applied {
    path: PortPath,
    chains: Chains,
}

impl Applied {
    /// The keys of the port with the numbers of their chains. An address that the port has twice counts once.
    fn elements(&self) -> BTreeMap<Key, u32> {
        let family = self.path.family();
        let key = |address, port| Key { family, address, protocol: self.path.protocol, port };
        let mut elements = BTreeMap::new();
        if let Some(inside) = self.chains.of(self.path.internal_policy) {
            elements.insert(key(Some(self.path.cluster.ip()), self.path.cluster.port()), inside);
        }
        if let Some(outside) = self.chains.outside {
            for end in &self.path.external {
                elements.entry(key(Some(end.ip()), end.port())).or_insert(outside);
            }
            elements.extend(self.path.node_port.map(|port| (key(None, port), outside)));
        }
        elements
    }
}

/// The numbers of chains.
#[derive(Debug, Default)]
struct Numbers {
    /// How many the kernel has.
    count: u32,
    /// Chains without rules.
    free: Vec<u32>,
    /// The next number for elements of maps from numbers.
    next: u32,
    /// Elements that no rule uses since the latest change. A packet may still be in a rule that did.
    unused: Vec<Chosen>,
}

/// The numbers after which the whole table is sent again, and they begin at 0.
const NUMBERS_MAX: u32 = u32::MAX / 2;

/// What the kernel has.
#[derive(Debug, Default)]
struct State {
    frame: Frame,
    ports: BTreeMap<Box<str>, Applied>,
    /// The elements of the maps, with the chains to which they lead.
    elements: BTreeMap<Key, u32>,
    /// The keys that more than one Service wanted; the first has it.
    contested: BTreeSet<Key>,
    /// How many ports have each address of the cluster.
    addresses: BTreeMap<IpAddr, u32>,
    /// How many ports have each pod of the board as an endpoint.
    pods: BTreeMap<IpAddr, u32>,
    numbers: Numbers,
}

/// The table of Services in the kernel.
#[derive(Debug)]
pub(super) struct ServiceTable {
    names: [String; 2],
    bridge: String,
    /// The priority with which it changes destinations.
    priority: i32,
    /// What the kernel has; `None` if it has no table, or an unknown one.
    state: Option<State>,
    /// What the kernel has refused, and is to have.
    refused: Option<(DataPath, Frame)>,
    abilities: Option<Abilities>,
}

impl ServiceTable {
    pub(super) fn new(hash: &str, bridge: &str, priority: i32) -> ServiceTable {
        let name = format!("nodlet-services-{hash}");
        ServiceTable {
            names: [name.clone(), format!("{name}-b")],
            bridge: bridge.to_owned(),
            priority,
            state: None,
            refused: None,
            abilities: None,
        }
    }

    /// The names of the table.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether there are Services in the table, or are to be.
    pub(super) fn has_ports(&self) -> bool {
        self.state.is_some() || self.refused.is_some()
    }

    /// A warning about what the kernel lacks, once.
    pub(super) fn warning(&mut self) -> Option<String> {
        self.abilities.as_mut().and_then(Abilities::warning)
    }

    /// Sends what has changed since the last call. `services` are the ranges of the addresses of Services. Without
    /// ports, the kernel has no table.
    ///
    /// # Errors
    /// The kernel has refused a change, and has what it had before. The next call sends all.
    pub(super) fn apply(
        &mut self,
        socket: &mut Nft,
        path: &DataPath,
        pods: Pods,
        services: &[(IpAddr, u8)],
    ) -> io::Result<Changes> {
        if path.ports.is_empty() {
            let old = self.state.iter().flat_map(|state| state.ports.values().map(|applied| &applied.path));
            let reached = self::reached(old, [].iter());
            self.remove(socket)?;
            forget_connections(&reached);
            return Ok(Changes::default());
        }
        let frame =
            Frame { bridge: self.bridge.clone(), priority: self.priority, pods, services: services.to_vec() };
        let abilities = match self.abilities {
            Some(known) => known,
            None => *self.abilities.insert(Abilities::probe(socket, &self.names[0]).map_err(explain)?),
        };
        let (changes, reached) = match self.state.take() {
            Some(mut state) if state.frame == frame => {
                let changed = state.changed(path);
                if changed.is_empty() {
                    self.state = Some(state);
                    return Ok(Changes::default());
                }
                let old = changed.iter().filter_map(|change| Some(&state.ports.get(&change.id)?.path));
                let reached = self::reached(old, changed.iter().filter_map(|change| change.new));
                let ports = changed.iter().filter_map(|change| change.new);
                let is_large = ports.map(weight).sum::<usize>() > BATCH_BYTES;
                let changes =
                    if is_large || state.frees_contested(&changed) || state.numbers.next > NUMBERS_MAX {
                        self.replace(socket, path, frame, abilities)?
                    } else {
                        let active = self.active(socket)?.unwrap_or_default();
                        let change = |batch: &mut Batch| state.change(batch, abilities, &changed);
                        match socket.change(&self.names[active], change) {
                            Ok(bytes) => {
                                self.state = Some(state);
                                Changes { batches: 1, bytes, is_whole: false }
                            }
                            // Somebody else may have changed the table.
                            Err(_) => self.replace(socket, path, frame, abilities)?,
                        }
                    };
                (changes, reached)
            }
            earlier => {
                let old = earlier.iter().flat_map(|state| state.ports.values().map(|applied| &applied.path));
                let reached = self::reached(old, path.ports.iter());
                (self.replace(socket, path, frame, abilities)?, reached)
            }
        };
        forget_connections(&reached);
        Ok(changes)
    }

    /// Sends all again, after somebody else has changed the table, or the ranges of pods have changed.
    pub(super) fn restore(&mut self, socket: &mut Nft, pods: Pods) -> io::Result<()> {
        let Some(abilities) = self.abilities else { return Ok(()) };
        let (path, frame) = match (self.state.take(), self.refused.take()) {
            (Some(state), _) => {
                let ports = state.ports.into_values().map(|applied| applied.path).collect();
                (DataPath { ports }, state.frame)
            }
            (None, Some(refused)) => refused,
            (None, None) => return Ok(()),
        };
        let frame = Frame { pods, ..frame };
        self.replace(socket, &path, frame, abilities).map(drop)
    }

    /// Whether the table was made for other pods, or for a bridge that translates otherwise.
    pub(super) fn is_for_other(&self, pods: &Pods) -> bool {
        self.state.as_ref().is_some_and(|state| state.frame.pods != *pods)
    }

    /// Removes the table from the kernel.
    pub(super) fn remove(&mut self, socket: &mut Nft) -> io::Result<()> {
        for name in &self.names {
            remove_table(socket, name)?;
        }
        (self.state, self.refused) = (None, None);
        Ok(())
    }

    /// Which of the names is that of the table whose rules are in effect.
    fn active(&self, socket: &mut Nft) -> io::Result<Option<usize>> {
        for (number, name) in self.names.iter().enumerate() {
            if socket.has_chain(name, rules::PREROUTING_CHAIN)? {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Sends the whole table. If the kernel refuses it, [`ServiceTable::restore`] tries again.
    fn replace(
        &mut self,
        socket: &mut Nft,
        path: &DataPath,
        frame: Frame,
        abilities: Abilities,
    ) -> io::Result<Changes> {
        match self.send(socket, path, frame.clone(), abilities) {
            Ok((state, changes)) => {
                (self.state, self.refused) = (Some(state), None);
                Ok(changes)
            }
            Err(error) => {
                self.refused = Some((path.clone(), frame));
                Err(error)
            }
        }
    }

    fn send(
        &self,
        socket: &mut Nft,
        path: &DataPath,
        frame: Frame,
        abilities: Abilities,
    ) -> io::Result<(State, Changes)> {
        let is_large = path.ports.iter().map(weight).sum::<usize>() > BATCH_BYTES;
        let active = self.active(socket)?;
        let target = match active {
            Some(active) if is_large => 1 - active,
            active => active.unwrap_or_default(),
        };
        let other = &self.names[1 - target];
        let has_other = socket.has_chain(other, rules::SERVICES_CHAIN)?;
        let mut state = State { frame, ..State::default() };
        let mut ports = path.ports.iter().peekable();
        let mut changes = Changes { is_whole: true, ..Changes::default() };
        while changes.batches == 0 || ports.peek().is_some() {
            changes.bytes += socket.change(&self.names[target], |batch| {
                if changes.batches == 0 {
                    batch.add_table();
                    batch.delete_table();
                    batch.add_table();
                    state.frame.add(batch, abilities);
                }
                while !is_large || batch.length() < BATCH_BYTES {
                    let Some(port) = ports.next() else { break };
                    state.add(batch, abilities, port);
                }
                if ports.peek().is_none() {
                    state.frame.add_hooks(batch);
                    if has_other {
                        batch.delete_other_table(other);
                    }
                }
            })?;
            changes.batches += 1;
        }
        Ok((state, changes))
    }
}

/// About how many bytes a port takes in a batch.
fn weight(port: &PortPath) -> usize {
    let each = if port.affinity_seconds.is_some() { 700 } else { 80 };
    800 + (port.everywhere.len() + port.here.len()) * each
}

/// A port that differs from what the kernel has.
struct Change<'a> {
    id: Box<str>,
    /// `None` if it is gone.
    new: Option<&'a PortPath>,
}

/// Where packets of UDP may go that are sent to a port as it was in `old`, and as it is in `new`.
fn reached<'a>(old: impl Iterator<Item = &'a PortPath>, new: impl Iterator<Item = &'a PortPath>) -> Reached {
    let mut reached = Reached::default();
    // An address of an earlier port may be that of a new one.
    for (path, is_new) in old.map(|port| (port, false)).chain(new.map(|port| (port, true))) {
        if path.protocol != Protocol::Udp {
            continue;
        }
        let may_stay = if is_new { path.may_stay.as_slice() } else { &[] };
        let board = path.node_port.map(|port| SocketAddr::new(unspecified(path.cluster.ip()), port));
        for end in path.external.iter().chain([&path.cluster]).chain(&board) {
            reached.set(end.ip(), end.port(), may_stay);
        }
    }
    reached
}

/// Deletes the kernel's entries of UDP connections that go where packets may not go any more.
fn forget_connections(reached: &Reached) {
    if let Err(error) = reached.delete_outdated() {
        log::warn!(
            "UDP senders to Services may go on to endpoints that are gone: failed to delete their entries in the \
             kernel (CONFIG_NF_CT_NETLINK): {error}"
        );
    }
}

impl State {
    /// The ports that differ.
    fn changed<'a>(&self, path: &'a DataPath) -> Vec<Change<'a>> {
        let is_gone = |id: &str| path.ports.binary_search_by(|port| (*port.id).cmp(id)).is_err();
        let gone = self.ports.keys().filter(|id| is_gone(id)).map(|id| Change { id: id.clone(), new: None });
        let differs =
            |port: &&PortPath| self.ports.get(&port.id).is_none_or(|applied| applied.path != **port);
        let changed = path.ports.iter().filter(differs);
        gone.chain(changed.map(|port| Change { id: port.id.clone(), new: Some(port) })).collect()
    }

    /// Whether a port gives up a key that others want too.
    fn frees_contested(&self, changes: &[Change]) -> bool {
        let frees = |change: &Change| {
            let Some(old) = self.ports.get(&change.id) else { return false };
            let keeps = change.new.is_some_and(|new| has_same_ends(&old.path, new));
            !keeps && old.elements().keys().any(|key| self.contested.contains(key))
        };
        !self.contested.is_empty() && changes.iter().any(frees)
    }

    /// Adds the messages of changes to a batch.
    fn change(&mut self, batch: &mut Batch, abilities: Abilities, changes: &[Change]) {
        self.numbers.delete_unused(batch);
        let (mut unused, mut without_ports) = (BTreeSet::new(), BTreeSet::new());
        let mut earlier: Vec<Option<Applied>> = Vec::new();
        for change in changes {
            let old = self.ports.remove(&change.id);
            if let Some(old) = &old
                && !change.new.is_some_and(|new| has_same_ends(&old.path, new))
            {
                self.remove_elements(batch, old, &mut unused);
            }
            let pods = old.as_ref().map(|old| self.frame.pods_of(&old.path)).unwrap_or_default();
            for pod in pods {
                if decrement(&mut self.pods, pod) {
                    without_ports.insert(pod);
                }
            }
            earlier.push(old);
        }
        for (change, old) in changes.iter().zip(earlier) {
            match (change.new, old) {
                (Some(new), old) => {
                    self.write(batch, abilities, new, old, &mut unused);
                    self.add_pods(batch, new, &mut without_ports);
                }
                (None, Some(old)) => old.chains.remove(batch, &mut self.numbers),
                (None, None) => {}
            }
        }
        for address in unused {
            batch.delete_element(rules::cluster(Family::of(address)), &rules::octets(address));
        }
        for address in without_ports {
            batch.delete_element(rules::hairpin(Family::of(address)), &rules::octets(address).repeat(2));
        }
    }

    /// Adds a port that is new.
    fn add(&mut self, batch: &mut Batch, abilities: Abilities, port: &PortPath) {
        self.write(batch, abilities, port, None, &mut BTreeSet::new());
        self.add_pods(batch, port, &mut BTreeSet::new());
    }

    /// Adds the pods of the board that a port leads to, which may be where its connections come from.
    fn add_pods(&mut self, batch: &mut Batch, port: &PortPath, without_ports: &mut BTreeSet<IpAddr>) {
        for pod in self.frame.pods_of(port) {
            if increment(&mut self.pods, pod) && !without_ports.remove(&pod) {
                let both = rules::octets(pod).repeat(2);
                batch.add_element(rules::hairpin(Family::of(pod)), &both, None);
            }
        }
    }

    /// Writes the rules of a port, and the elements that lead to it unless they are there.
    fn write(
        &mut self,
        batch: &mut Batch,
        abilities: Abilities,
        port: &PortPath,
        old: Option<Applied>,
        unused: &mut BTreeSet<IpAddr>,
    ) {
        let is_same =
            |same: fn(&PortPath, &PortPath) -> bool| old.as_ref().is_some_and(|old| same(&old.path, port));
        let keeps_elements = is_same(has_same_ends);
        let keeps_sticky = is_same(|old, new| old.affinity_seconds == new.affinity_seconds);
        let (numbers, old) = (&mut self.numbers, old.map(|old| old.chains));
        let chains = Chains::write(batch, numbers, abilities, port, old, keeps_sticky, &self.frame.bridge);
        let applied = Applied { path: port.clone(), chains };
        if !keeps_elements {
            self.add_elements(batch, &applied, unused);
        }
        self.ports.insert(port.id.clone(), applied);
    }

    fn add_elements(&mut self, batch: &mut Batch, applied: &Applied, unused: &mut BTreeSet<IpAddr>) {
        for (key, chain) in applied.elements() {
            if self.elements.contains_key(&key) {
                log::warn!(
                    "{}: another Service has port {} of {} already, and keeps it",
                    applied.path.id,
                    key.port,
                    key.address.map_or("the board".to_owned(), |address| address.to_string())
                );
                self.contested.insert(key);
                continue;
            }
            self.elements.insert(key, chain);
            batch.add_element(key.map(), &key.bytes(), Some(Data::Goto(&rules::chain(chain))));
        }
        let address = applied.path.cluster.ip();
        if increment(&mut self.addresses, address) && !unused.remove(&address) {
            batch.add_element(rules::cluster(Family::of(address)), &rules::octets(address), None);
        }
    }

    fn remove_elements(&mut self, batch: &mut Batch, old: &Applied, unused: &mut BTreeSet<IpAddr>) {
        for (key, chain) in old.elements() {
            if self.elements.get(&key) == Some(&chain) {
                self.elements.remove(&key);
                batch.delete_element(key.map(), &key.bytes());
            }
        }
        let address = old.path.cluster.ip();
        if decrement(&mut self.addresses, address) {
            unused.insert(address);
        }
    }
}

/// Counts an address. Returns whether it is the first time.
fn increment(counts: &mut BTreeMap<IpAddr, u32>, address: IpAddr) -> bool {
    let count = counts.entry(address).or_default();
    *count += 1;
    *count == 1
}

/// Counts an address down. Returns whether nothing is left of it.
fn decrement(counts: &mut BTreeMap<IpAddr, u32>, address: IpAddr) -> bool {
    let Some(count) = counts.get_mut(&address) else { return false };
    *count -= 1;
    let is_gone = *count == 0;
    if is_gone {
        counts.remove(&address);
    }
    is_gone
}

/// Whether the same elements lead to both ports, and to the same chains of theirs.
fn has_same_ends(one: &PortPath, other: &PortPath) -> bool {
    let ends = |port: &PortPath| (port.protocol, port.cluster, port.node_port, port.internal_policy);
    ends(one) == ends(other) && one.external == other.external
}

#[cfg(test)]
mod tests;
