//! The record of a pod, which survives a reboot, and the pod's phase.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::{ClientCondition, ConditionType, RunProcess};
use crate::spec::{PodSpec, RestartPolicy};
use crate::time::Moment;

/// `status.phase`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodPhase {
    /// Not all containers have started once.
    #[default]
    Pending,
    /// At least one container runs or is about to run again.
    Running,
    /// All containers ended with 0, and none will run again.
    Succeeded,
    /// All containers ended, at least one with another code than 0, or the pod was rejected.
    Failed,
}

impl PodPhase {
    /// Whether the phase is `Succeeded` or `Failed`, which a pod never leaves.
    pub fn is_terminal(self) -> bool {
        match self {
            PodPhase::Pending | PodPhase::Running => false,
            PodPhase::Succeeded | PodPhase::Failed => true,
        }
    }
}

/// The record of a pod, which survives a reboot: one small file a pod, which `records` replaces as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// `status.phase` as last decided.
    pub phase: PodPhase,
    /// `status.reason`, if the pod has one.
    pub reason: Option<String>,
    /// `status.message`, if the pod has one.
    pub message: Option<String>,
    /// `status.startTime`.
    pub start_time: Option<Moment>,
    /// One for each container, in the order of their indexes; empty for a rejected pod.
    pub containers: Vec<ContainerRecord>,
    /// The grace period in seconds of a requested deletion.
    pub deletion_grace_period_seconds: Option<u64>,
    /// The conditions that clients set in the pod's status.
    #[serde(rename = "given", default, skip_serializing_if = "Vec::is_empty")]
    pub client_conditions: Vec<ClientCondition>,
    /// The amounts of cpu and memory that are allocated to the pod: request and limit of each, of every
    /// container, then of the pod as a whole. Empty for a pod without any, and in records of versions that could
    /// not resize pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allocated: Vec<[String; 4]>,
    /// The rest of the status that a finished pod continues to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Box<LastShown>>,
}

/// The conditions and the address of a finished pod, which its status continues to show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastShown {
    /// The conditions that the node owns.
    pub conditions: Vec<FoundCondition>,
    /// `podIP`.
    pub ip: Option<Ipv4Addr>,
}

/// A condition as the previous agent showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundCondition {
    /// `type`.
    pub kind: ConditionType,
    /// `status` is `True`.
    pub status: bool,
    /// `lastTransitionTime`.
    pub since: Moment,
}

/// `reason` of an evicted pod, and of the event.
pub(crate) const EVICTED: &str = "Evicted";

impl Record {
    /// Whether the pod is evicted.
    pub fn is_evicted(&self) -> bool {
        self.reason.as_deref() == Some(EVICTED)
    }

    /// Whether both records are equal except for `last` and `allocated`, which are written along and are no reason
    /// to write.
    pub(crate) fn equals_in_progress(&self, other: &Record) -> bool {
        let Record {
            phase,
            reason,
            message,
            start_time,
            containers,
            deletion_grace_period_seconds,
            client_conditions,
            allocated: _,
            last: _,
        } = self;
        *phase == other.phase
            && *reason == other.reason
            && *message == other.message
            && *start_time == other.start_time
            && *containers == other.containers
            && *deletion_grace_period_seconds == other.deletion_grace_period_seconds
            && *client_conditions == other.client_conditions
    }

    /// Whether admission of the pod is decided: the node has admitted the pod, or the pod has finished.
    pub fn is_admission_decided(&self) -> bool {
        self.phase.is_terminal() || self.start_time.is_some()
    }

    /// The record to use in place of one that cannot be read, for the reason `why`. A pod that may run again
    /// starts as if it were new, without its counts. A pod with `restartPolicy: Never` has started, or there
    /// would be no record, and may have finished: it has failed.
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

    /// Sorts the containers into the order of their indexes, by name. Records of versions that wrote no names
    /// have only regular containers, in that order.
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

/// The part of a pod's record that concerns one container. `M` is how its times are expressed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord<M = Moment> {
    /// `name`; empty in records of versions that wrote no names.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// How many runs have started; the number of the newest run is one less. Writes are coalesced: for a pod
    /// that may restart, the count can lag behind.
    pub attempts: u32,
    /// The newest run that ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_exit: Option<RecordedExit<M>>,
    /// The run that ended before `last_exit`, of a finished pod, which continues to show it as `lastState`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous_exit: Option<RecordedExit<M>>,
    /// `image` of the newest run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// `imageID` of the newest run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    /// `containerID` of the newest run without its scheme, 64 hex digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// `user` and `stopSignal` of the newest run, of a finished pod, which continues to show them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<RunProcess>,
    /// When the run of an ephemeral container was decided, which shows whether that was in the present
    /// sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided: Option<M>,
    /// Whether the newest run was stopped because its image changed, and another run follows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redefined: bool,
    /// Whether the newest run ended and does not count, because all containers were to restart.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub superseded: bool,
}

/// A recorded exit. `M` is how its times are expressed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedExit<M = Moment> {
    /// The number of the run.
    pub number: u32,
    /// `exitCode`.
    pub code: i32,
    /// `reason`.
    pub reason: String,
    /// `message`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// `startedAt`.
    pub started_at: M,
    /// `finishedAt`.
    pub finished_at: M,
    /// `containerID` without its scheme, for an exit that is not of the newest run whose process was executed; empty if
    /// nobody has seen the newest run start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl<M> Default for ContainerRecord<M> {
    fn default() -> ContainerRecord<M> {
        ContainerRecord {
            name: String::new(),
            attempts: 0,
            last_exit: None,
            previous_exit: None,
            image: None,
            image_id: None,
            container_id: None,
            process: None,
            decided: None,
            redefined: false,
            superseded: false,
        }
    }
}

impl<M> ContainerRecord<M> {
    /// The same record with other times.
    pub(crate) fn with_times<N>(self, time: impl Fn(M) -> N) -> ContainerRecord<N> {
        ContainerRecord {
            name: self.name,
            attempts: self.attempts,
            last_exit: self.last_exit.map(|exit| exit.with_times(&time)),
            previous_exit: self.previous_exit.map(|exit| exit.with_times(&time)),
            image: self.image,
            image_id: self.image_id,
            container_id: self.container_id,
            process: self.process,
            decided: self.decided.map(time),
            redefined: self.redefined,
            superseded: self.superseded,
        }
    }
}

impl<M> RecordedExit<M> {
    fn with_times<N>(self, time: impl Fn(M) -> N) -> RecordedExit<N> {
        RecordedExit {
            number: self.number,
            code: self.code,
            reason: self.reason,
            message: self.message,
            started_at: time(self.started_at),
            finished_at: time(self.finished_at),
            id: self.id,
        }
    }
}
