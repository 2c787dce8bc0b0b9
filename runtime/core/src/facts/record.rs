//! What outlives a reboot of a pod, and its phase.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::{FoundCondition, GivenCondition};
use crate::spec::{PodSpec, RestartPolicy};
use crate::time::Moment;

/// `status.phase`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodPhase {
    /// Not all containers have started once.
    #[default]
    Pending,
    /// At least one runs or is about to run again.
    Running,
    /// All ended with 0 and none will run again.
    Succeeded,
    /// All ended, one of them otherwise, or the pod was refused.
    Failed,
}

impl PodPhase {
    /// `Succeeded` or `Failed`: never left again.
    pub fn is_terminal(self) -> bool {
        match self {
            PodPhase::Pending | PodPhase::Running => false,
            PodPhase::Succeeded | PodPhase::Failed => true,
        }
    }
}

/// What outlives a reboot: one small file a pod, replaced as a whole by `store`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// `status.phase` as last decided.
    pub phase: PodPhase,
    /// `status.reason`, where the pod has one.
    pub reason: Option<String>,
    /// `status.message`, where the pod has one.
    pub message: Option<String>,
    /// `status.startTime`.
    pub start_time: Option<Moment>,
    /// One for each container, in the order of their indexes; none of a pod that was refused.
    pub containers: Vec<ContainerRecord>,
    /// A deletion was asked for, with this grace in seconds.
    pub deletion_grace_period_seconds: Option<u64>,
    /// What others have said of the pod in its status.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given: Vec<GivenCondition>,
    /// What is shown of a pod that is over beside how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Box<LastShown>>,
}

/// What a pod that is over goes on showing of when it lived.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastShown {
    /// Its own conditions.
    pub conditions: Vec<FoundCondition>,
    /// `podIP`.
    pub ip: Option<Ipv4Addr>,
}

impl Record {
    /// Whether both say the same of what is acted on. Since when the conditions of a pod that is
    /// over are as they are is written along, and is no reason to write.
    pub(crate) fn means(&self, other: &Record) -> bool {
        let Record {
            phase,
            reason,
            message,
            start_time,
            containers,
            deletion_grace_period_seconds,
            given,
            last: _,
        } = self;
        *phase == other.phase
            && *reason == other.reason
            && *message == other.message
            && *start_time == other.start_time
            && *containers == other.containers
            && *deletion_grace_period_seconds == other.deletion_grace_period_seconds
            && *given == other.given
    }

    /// Whether the node has taken the pod, or it is over: it is judged no more.
    pub fn was_judged(&self) -> bool {
        self.phase.is_terminal() || self.start_time.is_some()
    }

    /// What is to be taken for the record of a pod if there is one that cannot be read; `why`
    /// names it. A pod that may run again begins as if it were new, its counts lost. One with
    /// `restartPolicy: Never` has begun, or there were no record, and may be over: it has failed.
    pub fn unknown(spec: &PodSpec, why: &str) -> Option<Box<Record>> {
        match spec.restart_policy {
            RestartPolicy::Always | RestartPolicy::OnFailure => None,
            RestartPolicy::Never => Some(Box::new(Record {
                phase: PodPhase::Failed,
                reason: Some("ContainerStatusUnknown".to_owned()),
                message: Some(format!("How far the pod came is not known: {why}")),
                containers: spec
                    .all_containers()
                    .map(|container| ContainerRecord {
                        name: container.name.clone(),
                        attempts: 1,
                        ..ContainerRecord::default()
                    })
                    .collect(),
                ..Record::default()
            })),
        }
    }

    /// Puts the containers into the order of their indexes, by name. Records of before there
    /// were names have regular containers alone, in that order.
    pub(crate) fn put_in_order(&mut self, spec: &PodSpec) {
        if self.containers.is_empty() {
            return;
        }
        let mut known = std::mem::take(&mut self.containers);
        let nameless = known.iter().all(|container| container.name.is_empty());
        if nameless {
            for (container, spec) in known.iter_mut().zip(&spec.containers) {
                container.name.clone_from(&spec.name);
            }
        }
        let of = |name: &str| known.iter().find(|container| container.name == name).cloned();
        let in_order = spec.all_containers().map(|container| {
            let new = || ContainerRecord { name: container.name.clone(), ..ContainerRecord::default() };
            of(&container.name).unwrap_or_else(new)
        });
        self.containers = in_order.collect();
    }
}

/// What outlives a reboot of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// `name`; empty in records of before there were names.
    #[serde(default)]
    pub name: String,
    /// Runs begun; the newest has this number less one. Coalesced: for a pod
    /// that may restart it can lag behind what took place.
    pub attempts: u32,
    /// The newest run that ended.
    pub last_exit: Option<RecordedExit>,
    /// The one before it, of a pod that is over: what has ended for good goes on saying so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_exit: Option<RecordedExit>,
    /// `image`, `imageID`, `containerID` of the newest run.
    pub image: Option<String>,
    /// `imageID`.
    pub image_id: Option<String>,
    /// `containerID` without its scheme, 64 hex digits.
    pub container_id: Option<String>,
    /// Of an ephemeral container: when its run was decided on, which tells whether that was in
    /// the sandbox that there is.
    #[serde(default)]
    pub decided: Option<Moment>,
    /// Its newest run was ended because its image is another by now, and another run follows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redefined: bool,
    /// Its newest run ended, and counts for nothing since all were to begin again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub superseded: bool,
}

/// An exit as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedExit {
    /// Which run.
    pub number: u32,
    /// `exitCode`.
    pub code: i32,
    /// `reason`.
    pub reason: String,
    /// `message`.
    pub message: String,
    /// `startedAt`.
    pub started_at: Moment,
    /// `finishedAt`.
    pub finished_at: Moment,
    /// `containerID` without its scheme, of one that is not the newest run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}
