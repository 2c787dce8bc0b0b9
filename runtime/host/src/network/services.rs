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
//! The endpoints of many Services share a map: neither one map for each rule, nor one for all, since the kernel searches the
//! list of all sets for each rule, and all elements of the set as well (`services/numbers.rs`). The rules are in
//! `services/rules.rs`.

mod board;
mod numbers;
pub(super) mod rules;
mod sending;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use nodlet_services::data_path::{DataPath, PortPath};
use nodlet_services::service::{Family, Protocol};

use self::numbers::Numbers;
use self::rules::{Abilities, Chains, Frame, Pods};
use self::sending::Sending;
use super::conntrack::{Reached, unspecified};
use super::firewall::{explain, remove_table};
use crate::netlink::nftables::sets::Data;
use crate::netlink::nftables::{Batch, Nft};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// What a change sent to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Atomic changes, of which more than one is needed only for a whole table.
    pub batches: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Whether the whole table is sent.
    pub is_whole: bool,
    /// Whether there is more to send, so that it is not in effect yet.
    pub has_more: bool,
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
    /// The table of which the kernel has a part.
    sending: Option<Sending>,
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
            sending: None,
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
        self.state.is_some() || self.sending.is_some() || self.refused.is_some()
    }

    /// A warning about what the kernel lacks, once.
    pub(super) fn warning(&mut self) -> Option<String> {
        self.abilities.as_mut().and_then(Abilities::warning)
    }

    /// Sends what has changed since the last call, or of a large table the first part: see [`Changes::has_more`] and
    /// [`ServiceTable::proceed`]. `services` are the ranges of the addresses of Services. Without
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
            let reached = self.leave();
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
        if let Some(mut state) = self.state.take_if(|state| state.frame == frame) {
            let changed = state.changed(path);
            if changed.is_empty() {
                self.state = Some(state);
                return Ok(Changes::default());
            }
            let mut reached = Reached::default();
            reached.forbid(changed.iter().filter_map(|change| Some(&state.ports.get(&change.id)?.path)));
            reached.allow(changed.iter().filter_map(|change| change.new));
            let is_large = sending::is_large(changed.iter().filter_map(|change| change.new));
            if is_large || state.frees_contested(&changed) || state.numbers.are_used_up() {
                return self.replace(socket, path, frame, reached);
            }
            let active = sending::active(socket, &self.names)?.unwrap_or_default();
            let change = |batch: &mut Batch| state.change(batch, abilities, &changed);
            return match socket.change(&self.names[active], change) {
                Ok(bytes) => {
                    self.state = Some(state);
                    forget_connections(&reached);
                    Ok(Changes { batches: 1, bytes, ..Changes::default() })
                }
                // Somebody else may have changed the table.
                Err(_) => self.replace(socket, path, frame, reached),
            };
        }
        let mut reached = self.leave();
        reached.allow(path.ports.iter());
        self.replace(socket, path, frame, reached)
    }

    /// Forgets what the kernel has, and what is on its way. Returns where packets of UDP went.
    fn leave(&mut self) -> Reached {
        let (sending, state) = (self.sending.take(), self.state.take());
        let mut reached = Reached::default();
        if let Some(sending) = sending {
            reached = sending.reached;
            reached.forbid(sending.path.ports.iter());
        }
        reached.forbid(state.iter().flat_map(|state| state.ports.values().map(|applied| &applied.path)));
        reached
    }

    /// Sends all again at once, after somebody else has changed the table, or the ranges of pods have changed.
    pub(super) fn restore(&mut self, socket: &mut Nft, pods: Pods) -> io::Result<()> {
        let (path, frame, reached) = match (self.sending.take(), self.state.take(), self.refused.take()) {
            (Some(sending), ..) => (sending.path, sending.state.frame, sending.reached),
            (None, Some(state), _) => {
                let ports = state.ports.into_values().map(|applied| applied.path).collect();
                (DataPath { ports }, state.frame, Reached::default())
            }
            (None, None, Some((path, frame))) => (path, frame, Reached::default()),
            (None, None, None) => return Ok(()),
        };
        let mut changes = self.replace(socket, &path, Frame { pods, ..frame }, reached)?;
        while changes.has_more {
            changes = self.proceed(socket)?;
        }
        Ok(())
    }

    /// Whether the table was made for other pods, or for a bridge that translates otherwise.
    pub(super) fn is_for_other(&self, pods: &Pods) -> bool {
        let sending = self.sending.as_ref().map(|sending| &sending.state);
        self.state.as_ref().or(sending).is_some_and(|state| state.frame.pods != *pods)
    }

    /// Removes the table from the kernel.
    pub(super) fn remove(&mut self, socket: &mut Nft) -> io::Result<()> {
        for name in &self.names {
            remove_table(socket, name)?;
        }
        (self.state, self.sending, self.refused) = (None, None, None);
        Ok(())
    }

    /// Begins to send the whole table. If the kernel refuses it, [`ServiceTable::restore`] tries again.
    fn replace(
        &mut self,
        socket: &mut Nft,
        path: &DataPath,
        frame: Frame,
        reached: Reached,
    ) -> io::Result<Changes> {
        self.state = None;
        match Sending::begin(socket, &self.names, path, frame.clone(), reached) {
            Ok(sending) => {
                self.sending = Some(sending);
                self.proceed(socket)
            }
            Err(error) => {
                self.refused = Some((path.clone(), frame));
                Err(error)
            }
        }
    }

    /// Sends the next batch of a table of which [`Changes::has_more`]. Does nothing if there is none.
    ///
    /// # Errors
    /// As those of [`ServiceTable::apply`].
    pub(super) fn proceed(&mut self, socket: &mut Nft) -> io::Result<Changes> {
        let (Some(mut sending), Some(abilities)) = (self.sending.take(), self.abilities) else {
            return Ok(Changes::default());
        };
        if let Err(error) = sending.step(socket, &self.names, abilities) {
            self.refused = Some((sending.path, sending.state.frame));
            return Err(error);
        }
        let changes = sending.changes;
        if changes.has_more {
            self.sending = Some(sending);
        } else {
            forget_connections(&sending.reached);
            (self.state, self.refused) = (Some(sending.state), None);
        }
        Ok(changes)
    }
}

/// A port that differs from what the kernel has.
struct Change<'a> {
    id: Box<str>,
    /// `None` if it is gone.
    new: Option<&'a PortPath>,
}

impl Reached {
    /// Records that packets of UDP may go nowhere that are sent to these ports. An address of an earlier port may be that of
    /// a new one, so [`Reached::allow`] comes after this.
    fn forbid<'a>(&mut self, ports: impl Iterator<Item = &'a PortPath>) {
        ports.for_each(|port| self.set_port(port, &[]));
    }

    /// Records where packets of UDP may go that are sent to these ports.
    fn allow<'a>(&mut self, ports: impl Iterator<Item = &'a PortPath>) {
        ports.for_each(|port| self.set_port(port, &port.may_stay));
    }

    fn set_port(&mut self, port: &PortPath, may_stay: &[SocketAddr]) {
        if port.protocol != Protocol::Udp {
            return;
        }
        let board = port.node_port.map(|number| SocketAddr::new(unspecified(port.cluster.ip()), number));
        for end in port.external.iter().chain([&port.cluster]).chain(&board) {
            self.restrict(end.ip(), end.port(), may_stay);
        }
    }
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
            batch.add_element(key.map(), &key.bytes(), Some(Data::Goto(&numbers::chain(chain))));
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
