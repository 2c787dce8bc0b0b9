//! What an agent leaves behind of a pod for the next one in this boot: the status that it
//! published, and what that status was made of. Flash is spared and knows less, and later; a
//! supervisor knows its processes alone.
//!
//! Written by the shell before it is published, so that no agent publishes less than the one
//! before it. Fields that an earlier version did not write are empty when they are read.

use std::net::Ipv4Addr;
use std::ops::Not;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use super::{ConditionType, GivenCondition, Health, PodPhase, StartedContainer};
use crate::spec::ProbeKind;
use crate::time::{Instant, Moment};

/// What an agent leaves behind of the status of a pod, for the next one in this boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundStatus {
    /// Its own conditions.
    pub conditions: Vec<FoundCondition>,
    /// Those that others gave; what is on flash of them may be older.
    #[serde(default)]
    pub given: Option<Vec<GivenCondition>>,
    /// All else; agents of earlier versions left nothing more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Box<HandedOver>>,
}

impl FoundStatus {
    /// The node had taken the pod, and nobody else had to end for it.
    pub fn had_place(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.has_place && !state.is_gated)
    }
}

/// A condition as an agent before showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundCondition {
    /// `type`.
    pub kind: ConditionType,
    /// `status` is `True`.
    pub status: bool,
    /// `lastTransitionTime`.
    pub since: Moment,
}

/// What an agent knew of a pod beside its conditions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOver {
    /// `status.phase`.
    pub phase: PodPhase,
    /// The terminal phase that was decided, which may not be published yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<HandedOverVerdict>,
    /// No process of it was left, and none was to begin.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub has_ended: bool,
    /// `status.startTime`.
    pub start_time: Moment,
    /// When `activeDeadlineSeconds` began to count.
    pub active_since: Instant,
    /// The node had taken it, and nobody else had to end for it.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub has_place: bool,
    /// It waited for its scheduling gates.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_gated: bool,
    /// It was being deleted, with this grace in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<u64>,
    /// It was deleted by force: nobody is shown it any more.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_hidden: bool,
    /// All containers were about to begin again.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub restarts_all: bool,
    /// `podIP`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<Ipv4Addr>,
    /// Why it had no sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_failure: Option<Box<str>>,
    /// When its record was last written: flash is spared from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_at: Option<Instant>,
    /// In the order of their indexes; none of a pod that was refused.
    pub containers: Vec<HandedOverContainer>,
}

/// The terminal phase of a pod, and why it has that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the field of that name of a status")]
pub struct HandedOverVerdict {
    pub phase: PodPhase,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Box<str>>,
}

/// What an agent knew of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedOverContainer {
    /// Runs that had begun, as far as the agent had heard; the newest has this number less one.
    pub attempts: u32,
    /// The newest of them had not ended.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_running: bool,
    /// Another run was to follow it, and may have been asked for.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_followed: bool,
    /// The newest run that was started in this boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Box<StartedContainer>>,
    /// The newest run of before this boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<HandedOverIdentity>,
    /// The newest run that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<HandedOverExit>,
    /// The one before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<HandedOverExit>,
    /// Reason and message of what it waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<(Box<str>, Box<str>)>,
    /// This probe had failed: the run is to be killed, and restarted whatever it ends with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_probe: Option<ProbeKind>,
    /// A run of it had begun in the sandbox that there was.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub ran_here: bool,
    /// When the one run of an ephemeral container was decided on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided: Option<Moment>,
    /// Its postStart hook was not over, where a later agent can go on with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_start: Option<HandedOverPostStart>,
    /// The image of the spec was not on the board, and the run before went on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_image: Option<Box<MissingImage>>,
    /// What probes had found, and how far it had come with its end.
    #[serde(default)]
    pub health: Health,
}

/// The postStart hook of a run that counts as not started yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HandedOverPostStart {
    /// It sleeps.
    Sleeps {
        /// Until then.
        until: Instant,
    },
    /// It failed, and the run is to be killed for that.
    Failed {
        /// Why, for people.
        message: Box<str>,
    },
}

/// An image that a running container is to have, and that is not on the board.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingImage {
    /// As the spec names it.
    pub image: Box<str>,
    /// Since when it is known to be missing.
    pub since: Moment,
    /// The reason, as in `state.waiting`.
    pub reason: Box<str>,
    /// For people.
    pub message: Box<str>,
}

/// Which image a container ran in an earlier boot, and as what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the field of that name of a status")]
pub struct HandedOverIdentity {
    pub id: Rc<str>,
    pub image: Rc<str>,
    pub image_id: Rc<str>,
}

/// A run that was over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the field of that name of a status")]
pub struct HandedOverExit {
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
