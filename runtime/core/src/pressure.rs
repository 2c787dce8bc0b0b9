//! Pressure on the resources of the node: which eviction signals are below their thresholds, which conditions the Node
//! shows for it, and when the signals are measured. The rules and names are those of the kubelet's eviction manager.
//!
//! Which pod is evicted is decided by the node (`node/eviction.rs`), and new pods are rejected by its admission.

use std::time::Duration;

pub use records_disk::RecordsDisk;
use serde::{Deserialize, Serialize};

use crate::spec::Quantity;
use crate::time::Instant;

mod records_disk;

/// The time between two measurements under pressure (the kubelet's `evictionMonitoringPeriod`).
const EVERY: Duration = Duration::from_secs(10);

/// The time between two measurements without pressure, each of which is part of other work: less than the interval at
/// which a joined board renews its Lease.
const AT_MOST_EVERY: Duration = Duration::from_secs(9);

/// The time between two measurements when the kernel reports that processes wait for memory.
const STALLED_EVERY: Duration = Duration::from_secs(1);

/// A quantity of the node that is measured (the kubelet's eviction signals).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// `memory.available`: memory that processes can get without swapping.
    Memory,
    /// `allocatableMemory.available`: memory that pods can get within the limit of all pods. It has the threshold of
    /// `memory.available`.
    AllocatableMemory,
    /// `nodefs.available`: bytes of the file system with volumes, writable layers and records.
    NodeFs,
    /// `nodefs.inodesFree`.
    NodeFsInodes,
    /// `imagefs.available`: bytes of the file system with images.
    ImageFs,
    /// `imagefs.inodesFree`.
    ImageFsInodes,
    /// `pid.available`: process IDs.
    Pid,
}

impl Signal {
    /// All signals, in the order in which their shortage is relieved.
    pub const ALL: [Signal; 7] = [
        Signal::Memory,
        Signal::AllocatableMemory,
        Signal::NodeFs,
        Signal::NodeFsInodes,
        Signal::ImageFs,
        Signal::ImageFsInodes,
        Signal::Pid,
    ];

    fn name(self) -> &'static str {
        match self {
            Signal::Memory => "memory.available",
            Signal::AllocatableMemory => "allocatableMemory.available",
            Signal::NodeFs => "nodefs.available",
            Signal::NodeFsInodes => "nodefs.inodesFree",
            Signal::ImageFs => "imagefs.available",
            Signal::ImageFsInodes => "imagefs.inodesFree",
            Signal::Pid => "pid.available",
        }
    }

    /// The resource of which there is too little.
    pub fn resource(self) -> StarvedResource {
        match self {
            Signal::Memory | Signal::AllocatableMemory => StarvedResource::Memory,
            Signal::NodeFs | Signal::ImageFs => StarvedResource::EphemeralStorage,
            Signal::NodeFsInodes | Signal::ImageFsInodes => StarvedResource::Inodes,
            Signal::Pid => StarvedResource::Pids,
        }
    }
}

/// A resource of which the node has too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StarvedResource {
    /// `memory`.
    Memory,
    /// `ephemeral-storage`.
    EphemeralStorage,
    /// `inodes`.
    Inodes,
    /// `pids`.
    Pids,
}

impl StarvedResource {
    /// The name of the resource in messages.
    pub fn name(self) -> &'static str {
        match self {
            StarvedResource::Memory => "memory",
            StarvedResource::EphemeralStorage => "ephemeral-storage",
            StarvedResource::Inodes => "inodes",
            StarvedResource::Pids => "pids",
        }
    }

    /// The condition of the Node.
    pub fn condition(self) -> NodeCondition {
        match self {
            StarvedResource::Memory => NodeCondition::MemoryPressure,
            StarvedResource::EphemeralStorage | StarvedResource::Inodes => NodeCondition::DiskPressure,
            StarvedResource::Pids => NodeCondition::PIDPressure,
        }
    }
}

/// A condition of the Node about pressure, by the name of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the types of conditions are Kubernetes'")]
pub enum NodeCondition {
    MemoryPressure,
    DiskPressure,
    PIDPressure,
}

impl NodeCondition {
    /// All conditions about pressure, in the order of the Node's status.
    pub const ALL: [NodeCondition; 3] =
        [NodeCondition::MemoryPressure, NodeCondition::DiskPressure, NodeCondition::PIDPressure];

    /// `type`.
    pub fn name(self) -> &'static str {
        match self {
            NodeCondition::MemoryPressure => "MemoryPressure",
            NodeCondition::DiskPressure => "DiskPressure",
            NodeCondition::PIDPressure => "PIDPressure",
        }
    }

    /// `reason` and `message` of the condition with this status, and the reason of the event about a change to it.
    pub fn texts(self, status: bool) -> [&'static str; 3] {
        match (self, status) {
            (NodeCondition::MemoryPressure, true) => [
                "KubeletHasInsufficientMemory",
                "kubelet has insufficient memory available",
                "NodeHasInsufficientMemory",
            ],
            (NodeCondition::MemoryPressure, false) => [
                "KubeletHasSufficientMemory",
                "kubelet has sufficient memory available",
                "NodeHasSufficientMemory",
            ],
            (NodeCondition::DiskPressure, true) => {
                ["KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"]
            }
            (NodeCondition::DiskPressure, false) => {
                ["KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"]
            }
            (NodeCondition::PIDPressure, true) => [
                "KubeletHasInsufficientPID",
                "kubelet has insufficient PID available",
                "NodeHasInsufficientPID",
            ],
            (NodeCondition::PIDPressure, false) => {
                ["KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID"]
            }
        }
    }
}

/// How much of a signal's quantity is available, and how much there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Available amount.
    pub available: u64,
    /// All of it; a signal of which there is nothing at all is not measured.
    pub capacity: u64,
}

/// The amount below which a signal means pressure: a share of the capacity, but at most an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    /// In ten-thousandths of the capacity; `None` for the amount alone.
    share: Option<u32>,
    at_most: u64,
}

impl Limit {
    fn of(self, capacity: u64) -> u64 {
        let Some(share) = self.share else { return self.at_most };
        let share = u128::from(capacity) * u128::from(share) / u128::from(WHOLE);
        u64::try_from(share).unwrap_or(u64::MAX).min(self.at_most)
    }
}

/// The whole capacity, in the unit of [`Limit::share`].
const WHOLE: u32 = 10_000;

/// The thresholds of the signals: the kubelet's `evictionHard`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thresholds(Vec<(Signal, Limit)>);

/// The kubelet's default thresholds, scaled for boards: 100 MiB are too much of a small memory, and 10 % are too much of
/// a large disk.
impl Default for Thresholds {
    fn default() -> Self {
        const MIB: u64 = 1 << 20;
        let of =
            |signal, percent: u32, at_most| (signal, Limit { share: Some(percent * WHOLE / 100), at_most });
        let memory = Limit { share: Some(WHOLE / 16), at_most: 100 * MIB };
        Thresholds(vec![
            (Signal::Memory, memory),
            of(Signal::NodeFs, 10, 1024 * MIB),
            of(Signal::NodeFsInodes, 5, u64::MAX),
            of(Signal::ImageFs, 15, 1024 * MIB),
            of(Signal::ImageFsInodes, 5, u64::MAX),
        ])
    }
}

impl Thresholds {
    /// Parses thresholds in the kubelet's form, `memory.available<100Mi,nodefs.available<10%`. They replace all default
    /// thresholds; an empty text means none.
    ///
    /// # Errors
    /// The part that is wrong, and what would be right.
    pub fn parse(text: &str) -> Result<Thresholds, String> {
        let mut all: Vec<(Signal, Limit)> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, limit) = part.split_once('<').ok_or_else(|| {
                format!("invalid threshold {part:?}: must be SIGNAL<QUANTITY, as memory.available<64Mi")
            })?;
            let known = Signal::ALL.into_iter().filter(|signal| *signal != Signal::AllocatableMemory);
            let signal = known.clone().find(|signal| signal.name() == name).ok_or_else(|| {
                let names: Vec<_> = known.map(Signal::name).collect();
                format!("unknown signal {name:?}: must be one of {}", names.join(", "))
            })?;
            if all.iter().any(|(other, _)| *other == signal) {
                return Err(format!("signal {name} has several thresholds: must have one"));
            }
            let limit = parse_limit(limit).ok_or_else(|| {
                format!("invalid value {limit:?} for {name}: must be a quantity, as 64Mi, or a percentage from 0% to 100%")
            })?;
            all.push((signal, limit));
        }
        Ok(Thresholds(all))
    }

    /// Whether a signal has a threshold.
    pub fn concern(&self, signal: Signal) -> bool {
        self.of(signal, 0).is_some()
    }

    /// The amount below which this signal means pressure.
    fn of(&self, signal: Signal, capacity: u64) -> Option<u64> {
        let named = if signal == Signal::AllocatableMemory { Signal::Memory } else { signal };
        let found = self.0.iter().find(|(known, _)| *known == named);
        found.map(|(_, limit)| limit.of(capacity))
    }

    /// The first signal whose threshold is met.
    pub fn met(&self, levels: &[(Signal, Level)]) -> Option<Met> {
        self.all_met(levels).next()
    }

    fn all_met<'a>(&'a self, levels: &'a [(Signal, Level)]) -> impl Iterator<Item = Met> + 'a {
        Signal::ALL.into_iter().filter_map(|signal| {
            let (_, level) = levels.iter().find(|(known, _)| *known == signal)?;
            let threshold = self.of(signal, level.capacity)?;
            (level.capacity > 0 && level.available < threshold).then_some(Met {
                signal,
                threshold,
                available: level.available,
            })
        })
    }
}

/// Parses the value of a threshold. `0%` and `100%` switch it off, as with a kubelet.
fn parse_limit(text: &str) -> Option<Limit> {
    if let Some(percent) = text.strip_suffix('%') {
        let hundredths = Quantity::parse(percent).ok()?.milli_value() / 10;
        let share = u32::try_from(hundredths).ok().filter(|share| *share <= WHOLE)?;
        return Some(Limit { share: Some(share % WHOLE), at_most: u64::MAX });
    }
    let bytes = u64::try_from(Quantity::parse(text).ok()?.value()).ok()?;
    Some(Limit { share: None, at_most: bytes })
}

/// A threshold that is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// The signal.
    pub signal: Signal,
    /// The amount that should be available.
    pub threshold: u64,
    /// The amount that is available.
    pub available: u64,
}

/// The pressure on this node, and the schedule of its measurements.
#[derive(Debug)]
pub struct Pressure {
    thresholds: Thresholds,
    /// The time for which a condition outlasts its threshold (`evictionPressureTransitionPeriod`).
    transition: Duration,
    conditions: [State; 3],
    is_measuring: bool,
    /// The time of the last measurement.
    last: Instant,
    /// Processes wait for memory since the last measurement.
    is_stalled: bool,
    /// The time of the next measurement even if nothing else is done then.
    wake_at: Option<Instant>,
}

/// A condition.
#[derive(Clone, Copy, Debug)]
struct State {
    /// The last time at which a threshold of the condition was met.
    met_at: Option<Instant>,
    is_true: bool,
    since: Instant,
}

impl Pressure {
    /// A node without pressure, which is measured later.
    pub fn new(thresholds: Thresholds, transition: Duration, now: Instant) -> Pressure {
        let conditions = [State { met_at: None, is_true: false, since: now }; 3];
        let (is_measuring, is_stalled) = (false, false);
        Pressure { thresholds, transition, conditions, is_measuring, last: now, is_stalled, wake_at: None }
    }

    /// The thresholds.
    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// Whether the node is to be measured now. [`Pressure::measured`] follows, and then [`Pressure::relieved`].
    pub fn begin(&mut self, now: Instant) -> bool {
        let at = self.last + if self.is_stalled { STALLED_EVERY } else { AT_MOST_EVERY };
        let begins = !self.is_measuring && now >= at && !self.thresholds.0.is_empty();
        if begins {
            (self.is_measuring, self.is_stalled) = (true, false);
        }
        begins
    }

    /// When the node is to be measured even if nothing else is done; `None` without pressure.
    pub fn wake_at(&self) -> Option<Instant> {
        let stalled = self.is_stalled.then_some(self.last + STALLED_EVERY);
        stalled.into_iter().chain(self.wake_at).min().filter(|_| !self.is_measuring)
    }

    /// Records that the kernel reports processes that wait for memory.
    pub fn stalled(&mut self) {
        self.is_stalled = !self.thresholds.0.is_empty();
    }

    /// Records what was measured. Returns the threshold whose resource is to be reclaimed.
    pub fn measured(&mut self, now: Instant, levels: &[(Signal, Level)]) -> Option<Met> {
        let met: Vec<NodeCondition> =
            self.thresholds.all_met(levels).map(|met| met.signal.resource().condition()).collect();
        for (condition, state) in NodeCondition::ALL.into_iter().zip(&mut self.conditions) {
            if met.contains(&condition) {
                state.met_at = Some(now);
            }
            state.met_at = state.met_at.filter(|at| *at == now || now.since(*at) < self.transition);
            if state.is_true != state.met_at.is_some() {
                (state.is_true, state.since) = (state.met_at.is_some(), now);
            }
        }
        self.thresholds.met(levels)
    }

    /// Records that a measurement is complete, with all that follows from it.
    pub fn relieved(&mut self, now: Instant) {
        self.is_measuring = false;
        self.last = now;
        // Soon while a threshold is met, and then when the condition may end.
        let again = |met_at: Instant| {
            if now.since(met_at) < EVERY {
                now + EVERY
            } else {
                (met_at + self.transition).max(now + STALLED_EVERY)
            }
        };
        self.wake_at = self.conditions.iter().filter_map(|state| state.met_at.map(again)).min();
    }

    /// The conditions: the status of each, and since when.
    pub fn conditions(&self) -> impl Iterator<Item = (NodeCondition, bool, Instant)> {
        let states = NodeCondition::ALL.into_iter().zip(self.conditions);
        states.map(|(condition, state)| (condition, state.is_true, state.since))
    }

    /// The conditions whose status is true.
    pub fn present(&self) -> Vec<NodeCondition> {
        self.conditions().filter(|(_, is_true, _)| *is_true).map(|(condition, ..)| condition).collect()
    }
}

#[cfg(test)]
mod tests;
