//! The vocabulary of the core: what is reported to it, what it asks for, what it records. Data without decisions.
//!
//! [`crate::pod`] and [`crate::node`] decide in these terms, and the shell carries them in and out.

mod action;
mod client_conditions;
mod condition;
mod deletion;
mod draft;
mod fence;
mod handover;
mod node_info;
mod observation;
mod record;
mod run;
mod shutdown;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::spec::ContainerIndex;

pub use action::{Action, Event, Plan, StorageScope};
pub use client_conditions::{ClientCondition, MAX_CLIENT_CONDITION_BYTES, MAX_CLIENT_CONDITIONS};
pub use condition::{ConditionType, IMAGE_UPDATE_PENDING, is_node_owned};
pub use deletion::Deletion;
pub(crate) use draft::{Draft, Events, Wake};
pub use fence::Fence;
pub use handover::{
    Ended, HandedOver, HandedOverContainer, HandedOverPostStart, HandedOverResize, MissingImage,
    StatusHandover, TerminalPhase,
};
pub use node_info::{Amounts, NodeInfo, NodePort};
pub use observation::{
    Exit, FoundAttempt, FoundPod, FoundSandbox, Observation, PodObservation, PodUsage, ProbeResult,
    SandboxFailure, StartFailure, StartFailureReason, Starved, StorageUsage,
};
pub(crate) use record::EVICTED;
pub use record::{ContainerRecord, FoundCondition, LastShown, PodPhase, Record, RecordedExit};
pub use run::{Health, RunIdentity, RunProcess, StartedContainer, User};
pub(crate) use shutdown::{EndCause, EndRequest};
pub use shutdown::{Shutdown, ShutdownGroup, ShutdownScope};

/// Upper bound of the actions in one plan, for all pods. Actions that do not fit are planned again at once
/// ([`Plan::more`]). The bound keeps a plan on the stack.
pub(crate) const MAX_ACTIONS: usize = 32;

/// Upper bound of the exec probes that hold a place at once, on the whole board. Each is a process with memory
/// of its own; with many more, probing starves the containers that it probes.
pub(crate) const EXEC_PROBES_AT_ONCE: usize = 4;

/// How long an exec probe holds its place: the default of `timeoutSeconds`. A probe that runs for longer waits
/// for something, rather than use the processor, and must not keep the probes of other pods from running.
pub(crate) const EXEC_PROBE_HOLDS_PLACE: Duration = Duration::from_secs(1);

/// Upper bound of the exec probes of one pod that run at once, with and without a place.
pub(crate) const EXEC_PROBES_OF_A_POD: usize = 4;

/// Upper bound of the pods that a node accepts, in whatever state. The kubelet's `maxPods`.
pub const MAX_PODS: usize = 110;

/// The identity of a pod within the life of this agent. An index is never reused, so that a late report about
/// a removed pod cannot be mistaken for one about another pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodIndex(pub u32);

/// One run of one container. Every report about a container carries its attempt, so that a report about an
/// earlier run cannot be mistaken for one about the present run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Attempt {
    /// The container of the pod.
    pub container: ContainerIndex,
    /// `restartCount` while this run is the newest: 0 for the first.
    pub number: u32,
}

/// Upper bound of the containers and sandboxes that are being started at once. Starts compete for the SD card
/// and for the kernel; more than a few at once only slow down each of them, also the one that a person waits
/// for.
pub(crate) const STARTS_AT_ONCE: usize = 8;

/// Upper bound of the pods of which something is being written or removed at once. One thread does this work,
/// pod by pod, and its queue holds only as much as the loop can send without waiting.
pub(crate) const WRITES_AT_ONCE: usize = 64;

/// Grace period of a pod that runs though no source wants it: it was removed while no agent ran.
pub(crate) const ORPHAN_GRACE: Duration = Duration::from_secs(1);
