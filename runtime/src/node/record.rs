//! What outlives a reboot of a pod, and its phase.

use serde::{Deserialize, Serialize};

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
    /// One for each container, in the order of the spec.
    pub containers: Vec<ContainerRecord>,
    /// A deletion was asked for, with this grace in seconds.
    pub deletion_grace_period_seconds: Option<u64>,
}

impl Record {
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
                containers: vec![
                    ContainerRecord { attempts: 1, ..ContainerRecord::default() };
                    spec.containers.len()
                ],
                ..Record::default()
            })),
        }
    }
}

/// What outlives a reboot of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// Runs begun; the newest has this number less one. Coalesced: for a pod
    /// that may restart it can lag behind what took place.
    pub attempts: u32,
    /// The newest run that ended.
    pub last_exit: Option<RecordedExit>,
    /// `image`, `imageID`, `containerID` of the newest run.
    pub image: Option<String>,
    /// `imageID`.
    pub image_id: Option<String>,
    /// `containerID` without its scheme, 64 hex digits.
    pub container_id: Option<String>,
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
}
