//! The handover of a pod from an agent to the next agent in the same boot: the published status, and the
//! state that it was derived from. The record on flash has less, and is written later, to spare flash; a
//! supervisor knows only its own processes.
//!
//! The shell writes the handover before it publishes the status, so that no agent publishes less than its
//! predecessor did. Fields that an earlier version did not write are empty when they are read.

use std::net::Ipv4Addr;
use std::ops::Not;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use super::{ClientCondition, Deletion, FoundCondition, Health, PodPhase, RunIdentity, StartedContainer};
use crate::spec::ProbeKind;
use crate::time::{Instant, Moment};

/// The handover of a pod's status from an agent to the next agent in the same boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusHandover {
    /// The conditions that the node owns.
    pub conditions: Vec<FoundCondition>,
    /// The conditions that clients set; those in the record on flash may be older.
    #[serde(rename = "given", default)]
    pub client_conditions: Option<Vec<ClientCondition>>,
    /// The rest of the state; agents of earlier versions handed over only the conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Box<HandedOver>>,
}

impl StatusHandover {
    /// Whether the node had admitted the pod, and the pod did not wait for preempted pods to end.
    pub fn was_admitted(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.is_admitted && !state.is_gated)
    }
}

/// The previous agent's knowledge of a pod besides the conditions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOver {
    /// `status.phase`.
    pub phase: PodPhase,
    /// The terminal phase that was decided, which may not be published yet.
    #[serde(rename = "verdict", default, skip_serializing_if = "Option::is_none")]
    pub terminal_phase: Option<TerminalPhase>,
    /// Whether the pod had no process and no planned run.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub has_ended: bool,
    /// `status.startTime`.
    pub start_time: Moment,
    /// When `activeDeadlineSeconds` began to count.
    pub active_since: Instant,
    /// Whether the node had admitted the pod, and the pod did not wait for preempted pods to end.
    #[serde(rename = "has_place", default, skip_serializing_if = "Not::not")]
    pub is_admitted: bool,
    /// Whether the pod waited for its scheduling gates.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_gated: bool,
    /// The grace period in seconds of the pod's deletion, if the pod was being deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<u64>,
    /// The published deletion of the pod; the next agent publishes the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<Deletion>,
    /// Whether the pod was deleted by force, so that the API no longer returns it.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_hidden: bool,
    /// Whether all containers were about to restart (`RestartAllContainers`).
    #[serde(default, skip_serializing_if = "Not::not")]
    pub restarts_all: bool,
    /// `podIP`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<Ipv4Addr>,
    /// Why the pod had no sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_failure: Option<Box<str>>,
    /// When the pod's record was last written: later writes are delayed from then on, to spare flash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_at: Option<Instant>,
    /// The amounts that are allocated to the pod, as in [`Record::allocated`](super::Record::allocated).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allocated: Vec<[String; 4]>,
    /// The resize of the pod that was not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<Box<HandedOverResize>>,
    /// The containers in the order of their indexes; empty for a rejected pod.
    pub containers: Vec<HandedOverContainer>,
}

/// The resize of a pod that was not complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOverResize {
    /// Why the wanted amounts were not allocated: whether they never can be, the message, and since when.
    pub refusal: Option<(bool, Box<str>, Moment)>,
    /// The generation of the pod whose amounts were being written to cgroups, and since when.
    pub progress: Option<(u64, Moment)>,
    /// The amounts that were in effect before.
    pub actuated: Vec<[String; 4]>,
    /// Why the amounts could not be written.
    pub error: Option<Box<str>>,
}

/// The terminal phase of a pod, with its reason and message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the field of that name of a status")]
pub struct TerminalPhase {
    pub phase: PodPhase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Box<str>>,
}

/// The previous agent's knowledge of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOverContainer {
    /// How many runs had started, as far as the agent knew; the number of the newest run is one less.
    pub attempts: u32,
    /// Whether the newest run had not ended.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_running: bool,
    /// Whether another run was to follow the newest one, and may have been planned already.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_followed: bool,
    /// The newest run that was started in this boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Box<StartedContainer>>,
    /// The newest run, if its process could not be executed and that of an earlier one was in this boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_executed: Option<Box<RunIdentity>>,
    /// The newest run, if no process was executed in this boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Box<RunIdentity>>,
    /// The newest run that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// The run that ended before `ended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Ended>,
    /// `reason` and `message` of `state.waiting`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<(Box<str>, Box<str>)>,
    /// The probe that had failed: the run is to be killed, and another run follows whatever the exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_probe: Option<ProbeKind>,
    /// Whether a run of the container had started in the present sandbox.
    #[serde(rename = "ran_here", default, skip_serializing_if = "Not::not")]
    pub ran_in_sandbox: bool,
    /// When the one run of an ephemeral container was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided: Option<Moment>,
    /// The postStart hook, if it had not finished and a later agent can continue it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_start: Option<HandedOverPostStart>,
    /// The image of the spec, if it was not on the board, so that the previous run continued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_image: Option<Box<MissingImage>>,
    /// The results of the probes, and the progress of the termination of the run.
    #[serde(default)]
    pub health: Health,
}

/// The postStart hook of a run that does not count as started yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HandedOverPostStart {
    /// The hook sleeps.
    Sleeps {
        /// When the sleep ends.
        until: Instant,
    },
    /// The hook failed, and the run is to be killed for it.
    Failed {
        /// Why the hook failed, for people.
        message: Box<str>,
    },
}

/// An image that the spec of a running container names, and that is not on the board.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingImage {
    /// The image as the spec names it.
    pub image: Box<str>,
    /// When the image was found to be missing.
    pub since: Moment,
    /// The reason, as in `state.waiting`.
    pub reason: Box<str>,
    /// The message, for people.
    pub message: Box<str>,
}

/// A run that has ended: `state.terminated`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the field of that name of a status")]
pub struct Ended {
    pub number: u32,
    pub code: i32,
    pub reason: Rc<str>,
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub message: Box<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Moment>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Moment>,
    /// `containerID` without its scheme.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Rc<str>>,
}
