//! What the core is told: facts, each after it became true.

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Attempt, ClientCondition, NodeInfo, PodIndex, Record, Shutdown, StatusHandover};
use crate::spec::{HookKind, Pod, ProbeKind, Uid};
use crate::time::{Instant, Moment};

/// A fact, reported to the core after it became true.
///
/// `P` is a Pod, and `T` a text for people. The ring keeps observations without texts, and replaces
/// the Pods by the objects that they were admitted from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Observation<P = Rc<Pod>, T = Box<str>> {
    /// A source wants this pod. With a uid that is known and another spec it takes the place of
    /// the one that there is.
    Wanted {
        /// The Pod as it was admitted.
        pod: P,
        /// The record of the pod on flash.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<Box<Record>>,
        /// The state of the pod that an earlier agent left behind in this boot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<Box<StatusHandover>>,
    },
    /// No source wants it any more, or a user deletes it: stop it.
    Unwanted {
        /// Which pod.
        uid: Uid,
        /// Replaces the pod's own grace; given again it can only get shorter.
        grace: Option<Duration>,
    },
    /// A pod that is unwanted was deleted by force: nobody is shown it any more, whatever of it still ends.
    Hidden {
        /// Which pod.
        uid: Uid,
    },
    /// Every source has reported once. Until then nothing is stopped for being unwanted.
    SourcesSeen,
    /// A supervisor or its remains, found when the agent started.
    Found(Box<Found<P>>),
    /// The properties of the node. Reported first; no admission is decided again because of a change.
    Node(Box<NodeInfo>),
    /// Images were added: what waits for one may try again at once.
    ImagesChanged,
    /// Stop every pod and take no more.
    Shutdown(Shutdown),
    /// They need not end after all: what had to begins again.
    ShutdownCancelled,
    /// About one pod.
    Of(PodIndex, PodObservation<T>),
}

/// A fact about one pod. `T` is a text for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodObservation<T = Box<str>> {
    /// Volumes, namespaces, network and supervisor exist.
    SandboxReady {
        /// Its address; `None` with `hostNetwork`.
        ip: Option<Ipv4Addr>,
        /// When it became ready.
        at: Instant,
    },
    /// They do not, and whatever was made of them is undone.
    SandboxFailed {
        /// Which part.
        reason: SandboxFailure,
        /// For the event.
        message: T,
    },
    /// The supervisor died, and its containers with it; every process is gone.
    /// Told only of a sandbox that was ready; one that dies before that has failed.
    SandboxLost,
    /// Supervisor, namespaces, network and cgroups are gone.
    SandboxRemoved,
    /// Part of the sandbox could not be taken down; it will be planned again.
    SandboxRemoveFailed {
        /// For the event.
        message: T,
    },
    /// The container's process has been executed.
    Started {
        /// Which run.
        attempt: Attempt,
        /// What started.
        container: Box<StartedContainer>,
    },
    /// There is no process, and there was none.
    StartFailed {
        /// Which run.
        attempt: Attempt,
        /// At which step, and why.
        failure: StartFailure<T>,
    },
    /// The image of the spec was looked for while the run of another image goes on.
    ImageChecked {
        /// Which run.
        attempt: Attempt,
        /// Why it cannot be started; `None` if it can.
        failure: Option<StartFailure<T>>,
    },
    /// The attempt is over: its cgroup is empty.
    Exited {
        /// Which run.
        attempt: Attempt,
        /// How it ended.
        exit: Box<Exit<T>>,
    },
    /// A probe answered.
    Probed {
        /// Of which run.
        attempt: Attempt,
        /// Which probe.
        kind: ProbeKind,
        /// What it found.
        result: ProbeResult<T>,
    },
    /// A hook is over.
    Hooked {
        /// Of which run.
        attempt: Attempt,
        /// Which hook.
        kind: HookKind,
        /// Why it failed, if it has: for the status, and not for events, whom more people read.
        failure: Option<T>,
    },
    /// A signal or kill could not be delivered; it will be planned again.
    StopFailed {
        /// Of which run.
        attempt: Attempt,
        /// For the event.
        message: T,
    },
    /// The record with this generation is on flash.
    Saved {
        /// That of the `Save`.
        generation: u64,
    },
    /// It could not be written; it will be planned again.
    SaveFailed {
        /// For the event.
        message: T,
    },
    /// What the pod left on disk is gone; the pod may be dropped.
    Forgotten,
    /// Some of it is still there; it will be planned again.
    ForgetFailed {
        /// For the event.
        message: T,
    },
    /// A client has set conditions in the status of the pod. They replace all conditions set earlier.
    #[serde(rename = "Given")]
    ClientConditions {
        /// Conditions of types that the node does not own.
        conditions: Rc<[ClientCondition]>,
    },
}

impl<P, T> Observation<P, T> {
    /// The observation with other Pods and texts.
    ///
    /// # Errors
    /// The first error of `pod`.
    pub fn map<Q, U, E>(
        &self,
        pod: impl FnOnce(&P) -> Result<Q, E>,
        text: impl Fn(&T) -> U,
    ) -> Result<Observation<Q, U>, E> {
        Ok(match self {
            Observation::Wanted { pod: of, record, status } => {
                Observation::Wanted { pod: pod(of)?, record: record.clone(), status: status.clone() }
            }
            Observation::Unwanted { uid, grace } => Observation::Unwanted { uid: uid.clone(), grace: *grace },
            Observation::Hidden { uid } => Observation::Hidden { uid: uid.clone() },
            Observation::SourcesSeen => Observation::SourcesSeen,
            Observation::Found(found) => Observation::Found(Box::new(Found {
                pod: pod(&found.pod)?,
                record: found.record.clone(),
                sandbox: found.sandbox,
                attempts: found.attempts.clone(),
                status: found.status.clone(),
            })),
            Observation::Node(info) => Observation::Node(info.clone()),
            Observation::ImagesChanged => Observation::ImagesChanged,
            Observation::Shutdown(shutdown) => Observation::Shutdown(shutdown.clone()),
            Observation::ShutdownCancelled => Observation::ShutdownCancelled,
            Observation::Of(index, seen) => Observation::Of(*index, seen.map(text)),
        })
    }
}

impl<T> PodObservation<T> {
    /// The observation with other texts.
    pub fn map<U>(&self, text: impl Fn(&T) -> U) -> PodObservation<U> {
        match self {
            PodObservation::SandboxReady { ip, at } => PodObservation::SandboxReady { ip: *ip, at: *at },
            PodObservation::SandboxFailed { reason, message } => {
                PodObservation::SandboxFailed { reason: *reason, message: text(message) }
            }
            PodObservation::SandboxLost => PodObservation::SandboxLost,
            PodObservation::SandboxRemoved => PodObservation::SandboxRemoved,
            PodObservation::SandboxRemoveFailed { message } => {
                PodObservation::SandboxRemoveFailed { message: text(message) }
            }
            PodObservation::Started { attempt, container } => {
                PodObservation::Started { attempt: *attempt, container: container.clone() }
            }
            PodObservation::StartFailed { attempt, failure } => {
                PodObservation::StartFailed { attempt: *attempt, failure: failure.map(text) }
            }
            PodObservation::ImageChecked { attempt, failure } => PodObservation::ImageChecked {
                attempt: *attempt,
                failure: failure.as_ref().map(|failure| failure.map(text)),
            },
            PodObservation::Exited { attempt, exit } => {
                PodObservation::Exited { attempt: *attempt, exit: Box::new(exit.map(text)) }
            }
            PodObservation::Probed { attempt, kind, result } => {
                PodObservation::Probed { attempt: *attempt, kind: *kind, result: result.map(text) }
            }
            PodObservation::Hooked { attempt, kind, failure } => {
                PodObservation::Hooked { attempt: *attempt, kind: *kind, failure: failure.as_ref().map(text) }
            }
            PodObservation::StopFailed { attempt, message } => {
                PodObservation::StopFailed { attempt: *attempt, message: text(message) }
            }
            PodObservation::Saved { generation } => PodObservation::Saved { generation: *generation },
            PodObservation::SaveFailed { message } => PodObservation::SaveFailed { message: text(message) },
            PodObservation::Forgotten => PodObservation::Forgotten,
            PodObservation::ForgetFailed { message } => {
                PodObservation::ForgetFailed { message: text(message) }
            }
            PodObservation::ClientConditions { conditions } => {
                PodObservation::ClientConditions { conditions: conditions.clone() }
            }
        }
    }

    /// The run that the observation is about.
    pub fn attempt(&self) -> Option<Attempt> {
        match self {
            PodObservation::Started { attempt, .. }
            | PodObservation::StartFailed { attempt, .. }
            | PodObservation::ImageChecked { attempt, .. }
            | PodObservation::Exited { attempt, .. }
            | PodObservation::Probed { attempt, .. }
            | PodObservation::Hooked { attempt, .. }
            | PodObservation::StopFailed { attempt, .. } => Some(*attempt),
            PodObservation::SandboxReady { .. }
            | PodObservation::SandboxFailed { .. }
            | PodObservation::SandboxLost
            | PodObservation::SandboxRemoved
            | PodObservation::SandboxRemoveFailed { .. }
            | PodObservation::Saved { .. }
            | PodObservation::SaveFailed { .. }
            | PodObservation::Forgotten
            | PodObservation::ForgetFailed { .. }
            | PodObservation::ClientConditions { .. } => None,
        }
    }
}

/// A pod that an agent of before left running, or the remains of one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found<P = Rc<Pod>> {
    /// The Pod as it was admitted.
    pub pod: P,
    /// The record of the pod on flash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Box<Record>>,
    /// Its supervisor answers; `None` if only remains were found, which the
    /// shell has killed: no process of it is left.
    pub sandbox: Option<FoundSandbox>,
    /// Runs that the supervisor knows of, newest last per container.
    pub attempts: Vec<FoundAttempt>,
    /// What the agent before showed of it, as far as it left word of that in this boot.
    #[serde(default)]
    pub status: StatusHandover,
}

/// A living sandbox.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FoundSandbox {
    /// Its address.
    pub ip: Option<Ipv4Addr>,
    /// When it became ready.
    pub at: Instant,
}

/// A run that the supervisor knows of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FoundAttempt {
    /// Which run.
    pub attempt: Attempt,
    /// What started.
    pub container: StartedContainer,
    /// How it ended, if it has.
    pub exit: Option<Exit>,
    /// As the agent before had it, if it left word of it in this boot; by
    /// default what has a probe is probed anew before it counts.
    pub health: Health,
}

/// How a run is: what probes have found of it, `started` and `ready` of its status, and how far
/// it has come with its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `started`.
    pub started: bool,
    /// `ready`.
    pub ready: bool,
    /// Its preStop hook is over: a later agent does not run it once more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pre_stopped: bool,
    /// All containers begin again, and this one has not: its newest run is to end, and counts
    /// for nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub superseded: bool,
    /// It is to end because its image is another by now, and begins again whatever it ends with.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redefined: bool,
}

/// What is known of a run that started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedContainer {
    /// When its process was executed.
    pub at: Instant,
    /// `containerID` without its scheme: 64 hex digits.
    pub id: Rc<str>,
    /// `image`: the reference, normalised.
    pub image: Rc<str>,
    /// `imageID`.
    pub image_id: Rc<str>,
    /// `image` of the spec that it was started for; empty if nobody wrote that down.
    #[serde(default)]
    pub spec_image: Rc<str>,
    /// Ids of its first process.
    pub user: User,
    /// What asks it to end: the image's STOPSIGNAL, else SIGTERM. A number of signal(7).
    pub stop_signal: i32,
}

/// `user.linux` of a container status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// `uid`.
    pub uid: u32,
    /// `gid`.
    pub gid: u32,
    /// `supplementalGroups`.
    pub supplemental_groups: Vec<u32>,
}

/// How a run ended. `T` is a text for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit<T = Box<str>> {
    /// The exit code, or 128 + the signal.
    pub code: i32,
    /// The cgroup's OOM counter moved.
    pub oom_killed: bool,
    /// No supervisor recorded the end: the reason is `ContainerStatusUnknown`, whatever `code` and `oom_killed` are.
    pub unknown: bool,
    /// The termination message, at most 4096 bytes.
    pub message: T,
    /// When it was executed.
    pub started_at: Moment,
    /// When its first process ended.
    pub finished_at: Moment,
}

impl<T> Exit<T> {
    fn map<U>(&self, text: impl Fn(&T) -> U) -> Exit<U> {
        Exit {
            code: self.code,
            oom_killed: self.oom_killed,
            unknown: self.unknown,
            message: text(&self.message),
            started_at: self.started_at,
            finished_at: self.finished_at,
        }
    }
}

/// Which part of a sandbox could not be made: the reason of its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SandboxFailure {
    /// A volume: `FailedMount`.
    Mount,
    /// Anything else: `FailedCreatePodSandBox`.
    Sandbox,
}

/// Why there is no process, in the words of `state.waiting`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFailure<T = Box<str>> {
    /// Which step.
    pub reason: StartFailureReason,
    /// `state.waiting.message`, for people.
    pub message: T,
}

impl<T> StartFailure<T> {
    fn map<U>(&self, text: impl Fn(&T) -> U) -> StartFailure<U> {
        StartFailure { reason: self.reason, message: text(&self.message) }
    }
}

/// The step of a start that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartFailureReason {
    /// The image's name cannot be parsed.
    InvalidImageName,
    /// The image is not here and may not be pulled.
    ErrImageNeverPull,
    /// The image is not here, and no registry can be asked.
    ErrImagePull,
    /// The image is here and cannot be read.
    ImageInspectError,
    /// What the spec asks for does not fit the image or the pod.
    CreateContainerConfigError,
    /// Root file system, cgroup or mounts.
    CreateContainerError,
    /// The process could not be executed. Counts as an exit with 128, `StartError`.
    RunContainerError,
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeResult<T = Box<str>> {
    /// It answered as it should.
    Success,
    /// Counts as success; the text is worth an event.
    Warning(T),
    /// It answered otherwise, or not in time.
    Failure(T),
    /// The probe itself could not be made: changes nothing.
    Error(T),
}

impl<T> ProbeResult<T> {
    fn map<U>(&self, text: impl Fn(&T) -> U) -> ProbeResult<U> {
        match self {
            ProbeResult::Success => ProbeResult::Success,
            ProbeResult::Warning(message) => ProbeResult::Warning(text(message)),
            ProbeResult::Failure(message) => ProbeResult::Failure(text(message)),
            ProbeResult::Error(message) => ProbeResult::Error(text(message)),
        }
    }
}
