//! The vocabulary of the core: what is reported to it, what it asks for, what it records. Data without decisions.
//!
//! [`crate::pod`] and [`crate::node`] decide in these terms, and the shell carries them in and out.

mod action;
mod condition;
mod draft;
mod given;
mod handover;
mod node_info;
mod observation;
mod record;
mod shutdown;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::spec::ContainerIndex;

pub use action::{Action, Event, Plan};
pub use condition::{ConditionType, IMAGE_UPDATE_PENDING, is_the_nodes};
pub(crate) use draft::{Draft, Events, Wake};
pub use given::{GIVEN_BYTES, GivenCondition, MAX_GIVEN};
pub use handover::{
    FoundCondition, FoundStatus, HandedOver, HandedOverContainer, HandedOverExit, HandedOverIdentity,
    HandedOverPostStart, HandedOverVerdict, MissingImage,
};
pub use node_info::{Amounts, NodeInfo};
pub use observation::{
    Exit, Found, FoundAttempt, FoundSandbox, Health, Observation, PodObservation, ProbeResult,
    SandboxFailure, StartFailure, StartFailureReason, StartedContainer, User,
};
pub use record::{ContainerRecord, LastShown, PodPhase, Record, RecordedExit};
pub(crate) use shutdown::End;
pub use shutdown::{Shutdown, ShutdownGroup, Whole};

/// Actions in one plan, of all pods. What does not fit is planned again at
/// once ([`Plan::more`]); the bound keeps a plan on the stack.
pub const MAX_ACTIONS: usize = 32;

/// Exec probes that may run at once on the whole board. Each is a process with
/// memory of its own; many more, and probing starves what it probes.
pub const EXEC_PROBES_AT_ONCE: usize = 4;

/// Pods that a node takes, in whatever state. The kubelet's `maxPods`.
pub const MAX_PODS: usize = 110;

/// Which pod, in the life of this agent. Never reused, so that late news of a
/// pod that is gone cannot pass for news of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodIndex(pub u32);

/// One run of one container. Everything said about a container carries this,
/// so that news of an earlier run cannot pass for news of the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Attempt {
    /// Which container of the pod.
    pub container: ContainerIndex,
    /// `restartCount` while this run is the newest: 0 for the first.
    pub number: u32,
}

/// Containers and sandboxes being started at once. Starting waits for the card
/// and for the kernel in turns; more than a few at once only make each slower,
/// and the one that a person waits for with them.
pub const STARTS_AT_ONCE: usize = 8;

/// Pods of which something is being written or removed at once. The one thread that does it takes
/// them in turn, and has no longer a queue than the loop can fill without waiting for it.
pub const WRITES_AT_ONCE: usize = 64;

/// Grace of what runs though nobody wants it: it went while no agent looked.
pub(crate) const ORPHAN_GRACE: Duration = Duration::from_secs(1);
