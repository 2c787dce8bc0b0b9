//! The true state of one pod in the simulated world, and the events to come.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_json::Value;

use super::fate::Fate;
use crate::facts::*;
use crate::spec::*;
use crate::time::Instant;

/// A future event of the world.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    /// The engine receives an observation.
    Observed(Observation),
    /// The engine receives an observation of a pod, whichever index the pod has then.
    ObservedOf(PodIndex, PodObservation),
    Executed(Uid, PodIndex, Attempt),
    Ended(Uid, Attempt, i32, bool),
    SandboxMade(Uid, PodIndex),
    SandboxGone(Uid, PodIndex),
    Written(Uid, PodIndex, u64, Box<Record>),
    Erased(Uid, PodIndex),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorldSandbox {
    None,
    Made,
    /// The supervisor is dead, and the rest of the sandbox still exists.
    Remains,
}

#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) fate: Fate,
    /// The image in the pod's spec when the run was started.
    pub(super) image: Rc<str>,
    /// When the process was executed; `None` before that.
    pub(super) started: Option<Instant>,
    pub(super) asked_to_end: Option<Instant>,
    pub(super) hooks: super::hooks::Seen,
}

/// The true state of one pod.
#[derive(Clone, Debug)]
pub(crate) struct WorldPod {
    pub(crate) pod: Rc<Pod>,
    pub(crate) wanted: bool,
    pub(super) sandbox: WorldSandbox,
    /// The versions of the objects that the volumes show.
    pub(super) shown: super::objects::Shown,
    /// When the sandbox was made.
    pub(super) made_at: Instant,
    /// Runs that are alive or about to be.
    pub(super) alive: BTreeMap<Attempt, Process>,
    /// Whether processes live that outlasted the loss of their sandbox.
    pub(super) orphans: bool,
    /// Whether volumes or writable layers of the pod exist.
    pub(super) volumes: bool,
    /// Whether `RemoveVolumes` is in flight.
    pub(super) removing_volumes: bool,
    /// Whether files of the volumes are being written.
    pub(super) updating: bool,
    /// The finished runs that the supervisor remembers.
    pub(super) over: Vec<FoundAttempt>,
    /// The record on flash, as an agent of this boot reads it.
    pub(crate) record: Option<Box<Record>>,
    /// The bytes of the record on flash.
    pub(super) flash: Vec<u8>,
    /// The files and the state that the agent's shell has of the pod, some of it for the next agent.
    pub(super) shell: super::shell::PodFiles,
    pub(crate) saves: u64,
    /// The time after which no process of the pod may live.
    pub(crate) gone_by: Option<Instant>,
    /// The terminal status that was shown.
    pub(crate) shown_terminal: Option<(PodPhase, Vec<Value>)>,
    pub(super) index: Option<PodIndex>,
    /// The runs of each container that were started, in all boots.
    pub(crate) begun: Vec<Vec<u32>>,
    pub(super) save_in_flight: bool,
    /// Containers that ran when their image changed, and have not restarted since.
    pub(super) outdated: BTreeSet<ContainerIndex>,
    /// The amounts that the cgroup of each container has.
    pub(super) limits: BTreeMap<ContainerIndex, [String; 4]>,
    /// The bytes that each container and each volume use on disk.
    pub(crate) usage: StorageUsage,
    pub(super) order: super::order::Order,
    pub(super) restarts: super::restarts::Restarts,
    pub(super) wear: super::wear::Wear,
    /// When the newest run of each container ended.
    pub(super) ended_at: BTreeMap<ContainerIndex, Instant>,
    /// Containers whose newest run was asked to end before it ended.
    pub(crate) stopped: BTreeSet<ContainerIndex>,
}

impl WorldPod {
    /// Whether no process of the pod lives.
    pub(super) fn is_still(&self) -> bool {
        self.alive.is_empty() && !self.orphans
    }
}
