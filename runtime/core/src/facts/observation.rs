//! Observations: facts that are reported to the core after they became true.

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Attempt, ClientCondition, Fence, Health, NodeInfo, PodIndex, Record, RunIdentity, Shutdown,
    StartedContainer, StatusHandover,
};
use crate::pressure::StarvedResource;
use crate::spec::{HookKind, Pod, ProbeKind, Uid};
use crate::time::{Instant, Moment};

/// A fact, reported to the core after it became true.
///
/// `P` is a Pod, and `T` a text for people. The ring keeps observations without texts, and replaces
/// the Pods by the objects that they were admitted from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Observation<P = Rc<Pod>, T = Box<str>> {
    /// A source wants this pod. If a pod with this UID and another spec exists, the new pod replaces that one.
    Wanted {
        /// The Pod as it was admitted.
        pod: P,
        /// The record of the pod on flash.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<Box<Record>>,
        /// The handover of the pod by an earlier agent of this boot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<Box<StatusHandover>>,
    },
    /// No source wants the pod any more, or a user deletes it: the pod has to stop.
    Unwanted {
        /// The UID of the pod.
        uid: Uid,
        /// A grace period in place of the pod's own. A later observation can only shorten it.
        grace: Option<Duration>,
    },
    /// An unwanted pod was deleted by force: the API no longer returns it, even while its processes end.
    Hidden {
        /// The UID of the pod.
        uid: Uid,
    },
    /// A user restarts the containers of a pod, or one of them.
    Restart {
        /// The UID of the pod.
        uid: Uid,
        /// The name of the container; `None` for all that run.
        container: Option<Box<str>>,
    },
    /// Every source has reported once. Until then no found pod is stopped because no source wants it.
    SourcesSeen,
    /// A supervisor, or the remains of one, which the agent found when it started.
    Found(Box<FoundPod<P>>),
    /// The properties of the node. Reported first; no admission is decided again because of a change.
    Node(Box<NodeInfo>),
    /// Images were added: starts that wait for an image may be retried at once.
    ImagesChanged,
    /// All pods have to stop, and no further pod is accepted.
    Shutdown(Shutdown),
    /// The shutdown was cancelled: the pods that it stopped start again.
    ShutdownCancelled,
    /// The node has too little of a resource, and nothing but the end of a pod can free more.
    Starved(Box<Starved>),
    /// A fact about one pod.
    Of(PodIndex, PodObservation<T>),
}

/// A resource of which the node has too little.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Starved {
    /// The resource.
    pub resource: StarvedResource,
    /// The amount that should be available.
    pub threshold: u64,
    /// The amount that is available.
    pub available: u64,
    /// When the measurement of that amount began.
    pub measured_at: Instant,
    /// The known usage of the resource by pods.
    pub usage: Vec<(PodIndex, PodUsage)>,
}

/// How much a pod uses of a resource.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PodUsage {
    /// The usage of the whole pod.
    pub total: u64,
    /// The usage of its running containers, by their names.
    pub containers: Vec<(Box<str>, u64)>,
}

/// A fact about one pod. `T` is a text for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodObservation<T = Box<str>> {
    /// Volumes, namespaces, network and supervisor exist.
    SandboxReady {
        /// The pod's address; `None` with `hostNetwork`.
        ip: Option<Ipv4Addr>,
        /// When the sandbox became ready.
        at: Instant,
    },
    /// The sandbox could not be created.
    SandboxFailed {
        /// The part that failed.
        reason: SandboxFailure,
        /// Whether parts of the sandbox may exist: the core plans `RemoveSandbox` before it retries.
        remains: bool,
        /// The message of the event.
        message: T,
    },
    /// An object that the pod refers to was created, changed or deleted.
    ObjectsChanged,
    /// The files in the pod's volumes are up to date.
    VolumesUpdated,
    /// The files in the pod's volumes could not be updated, and show what they showed before.
    VolumesUpdateFailed {
        /// The part that failed.
        reason: SandboxFailure,
        /// The message of the event.
        message: T,
    },
    /// The limits of the pod and of its containers were written to their cgroups, or could not be.
    Resized {
        /// The generation of the `Resize`.
        generation: u64,
        /// Why the limits could not be written, if so; the core plans the write again.
        failure: Option<T>,
    },
    /// The local storage that the pod uses was measured.
    StorageMeasured(Box<StorageUsage>),
    /// The supervisor of a ready sandbox died, so that all runs have ended or are to end. If the supervisor dies
    /// before the sandbox is ready, the observation is `SandboxFailed`.
    SandboxLost {
        /// Whether processes of the pod may be alive, because they did not end in time when they were killed:
        /// `RemoveSandbox` kills them again.
        processes: bool,
    },
    /// Supervisor, namespaces, network and cgroups are gone.
    SandboxRemoved,
    /// Part of the sandbox could not be removed; the core plans the removal again.
    SandboxRemoveFailed {
        /// The message of the event.
        message: T,
    },
    /// The volumes and writable layers of the finished pod are gone.
    VolumesRemoved,
    /// Some volumes or writable layers of the finished pod still exist; the core plans the removal again.
    VolumesRemoveFailed {
        /// The message of the event.
        message: T,
    },
    /// The container's process has been executed.
    Started {
        /// The run.
        attempt: Attempt,
        /// The started container.
        container: Box<StartedContainer>,
    },
    /// The container could not be started, and has no process.
    StartFailed {
        /// The run.
        attempt: Attempt,
        /// At which step, and why.
        failure: StartFailure<T>,
        /// The run, if it was created and only its process could not be executed.
        #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
        created: Option<Box<RunIdentity>>,
    },
    /// The image of the spec was looked up while a run with another image continues.
    ImageChecked {
        /// The run.
        attempt: Attempt,
        /// Why the image cannot be started; `None` if it can.
        failure: Option<StartFailure<T>>,
    },
    /// An image was pulled from a registry, or could not be.
    ImagePulled {
        /// The run.
        attempt: Attempt,
        /// The rest of the event's text after the image, or why there is no image.
        result: Result<T, T>,
    },
    /// The attempt is over: its cgroup is empty.
    Exited {
        /// The run.
        attempt: Attempt,
        /// How it ended.
        exit: Box<Exit<T>>,
    },
    /// A probe has finished.
    Probed {
        /// The run.
        attempt: Attempt,
        /// The kind of the probe.
        kind: ProbeKind,
        /// The result of the probe.
        result: ProbeResult<T>,
    },
    /// A hook has finished.
    Hooked {
        /// The run.
        attempt: Attempt,
        /// The kind of the hook.
        kind: HookKind,
        /// Why the hook failed, if it failed: for the status, and not for events, which more people can read.
        failure: Option<T>,
    },
    /// A signal or kill could not be delivered; the core plans it again.
    StopFailed {
        /// The run.
        attempt: Attempt,
        /// The message of the event.
        message: T,
    },
    /// The record with this generation is on flash.
    Saved {
        /// The generation of the `Save`.
        generation: u64,
    },
    /// The record could not be written; the core plans the write again.
    SaveFailed {
        /// The message of the event.
        message: T,
    },
    /// The files of the pod are removed; the pod may be dropped.
    Forgotten,
    /// Some files of the pod still exist; the core plans the removal again.
    ForgetFailed {
        /// The message of the event.
        message: T,
    },
    /// A client has set conditions in the status of the pod. They replace all conditions set earlier.
    #[serde(rename = "Given")]
    ClientConditions {
        /// Conditions of types that the node does not own.
        conditions: Rc<[ClientCondition]>,
    },
    /// The node could not renew its Lease in the cluster of the pod, or could again.
    Fence(Fence),
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
            Observation::Restart { uid, container } => {
                Observation::Restart { uid: uid.clone(), container: container.clone() }
            }
            Observation::SourcesSeen => Observation::SourcesSeen,
            Observation::Found(found) => Observation::Found(Box::new(FoundPod {
                pod: pod(&found.pod)?,
                record: found.record.clone(),
                sandbox: found.sandbox,
                processes: found.processes,
                attempts: found.attempts.clone(),
                status: found.status.clone(),
            })),
            Observation::Node(info) => Observation::Node(info.clone()),
            Observation::ImagesChanged => Observation::ImagesChanged,
            Observation::Shutdown(shutdown) => Observation::Shutdown(shutdown.clone()),
            Observation::ShutdownCancelled => Observation::ShutdownCancelled,
            Observation::Starved(starved) => Observation::Starved(starved.clone()),
            Observation::Of(index, seen) => Observation::Of(*index, seen.map(text)),
        })
    }
}

impl<T> PodObservation<T> {
    /// The observation with other texts.
    pub fn map<U>(&self, text: impl Fn(&T) -> U) -> PodObservation<U> {
        match self {
            PodObservation::SandboxReady { ip, at } => PodObservation::SandboxReady { ip: *ip, at: *at },
            PodObservation::SandboxFailed { reason, remains, message } => {
                PodObservation::SandboxFailed { reason: *reason, remains: *remains, message: text(message) }
            }
            PodObservation::ObjectsChanged => PodObservation::ObjectsChanged,
            PodObservation::VolumesUpdated => PodObservation::VolumesUpdated,
            PodObservation::VolumesUpdateFailed { reason, message } => {
                PodObservation::VolumesUpdateFailed { reason: *reason, message: text(message) }
            }
            PodObservation::Resized { generation, failure } => {
                PodObservation::Resized { generation: *generation, failure: failure.as_ref().map(text) }
            }
            PodObservation::StorageMeasured(usage) => PodObservation::StorageMeasured(usage.clone()),
            PodObservation::SandboxLost { processes } => {
                PodObservation::SandboxLost { processes: *processes }
            }
            PodObservation::SandboxRemoved => PodObservation::SandboxRemoved,
            PodObservation::SandboxRemoveFailed { message } => {
                PodObservation::SandboxRemoveFailed { message: text(message) }
            }
            PodObservation::VolumesRemoved => PodObservation::VolumesRemoved,
            PodObservation::VolumesRemoveFailed { message } => {
                PodObservation::VolumesRemoveFailed { message: text(message) }
            }
            PodObservation::Started { attempt, container } => {
                PodObservation::Started { attempt: *attempt, container: container.clone() }
            }
            PodObservation::StartFailed { attempt, failure, created } => PodObservation::StartFailed {
                attempt: *attempt,
                failure: failure.map(text),
                created: created.clone(),
            },
            PodObservation::ImageChecked { attempt, failure } => PodObservation::ImageChecked {
                attempt: *attempt,
                failure: failure.as_ref().map(|failure| failure.map(text)),
            },
            PodObservation::ImagePulled { attempt, result } => PodObservation::ImagePulled {
                attempt: *attempt,
                result: result.as_ref().map(&text).map_err(&text),
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
            PodObservation::Fence(fence) => PodObservation::Fence(*fence),
        }
    }

    /// The run that the observation is about.
    pub fn attempt(&self) -> Option<Attempt> {
        match self {
            PodObservation::Started { attempt, .. }
            | PodObservation::StartFailed { attempt, .. }
            | PodObservation::ImageChecked { attempt, .. }
            | PodObservation::ImagePulled { attempt, .. }
            | PodObservation::Exited { attempt, .. }
            | PodObservation::Probed { attempt, .. }
            | PodObservation::Hooked { attempt, .. }
            | PodObservation::StopFailed { attempt, .. } => Some(*attempt),
            PodObservation::SandboxReady { .. }
            | PodObservation::SandboxFailed { .. }
            | PodObservation::ObjectsChanged
            | PodObservation::VolumesUpdated
            | PodObservation::VolumesUpdateFailed { .. }
            | PodObservation::Resized { .. }
            | PodObservation::StorageMeasured(_)
            | PodObservation::SandboxLost { .. }
            | PodObservation::SandboxRemoved
            | PodObservation::SandboxRemoveFailed { .. }
            | PodObservation::VolumesRemoved
            | PodObservation::VolumesRemoveFailed { .. }
            | PodObservation::Saved { .. }
            | PodObservation::SaveFailed { .. }
            | PodObservation::Forgotten
            | PodObservation::ForgetFailed { .. }
            | PodObservation::ClientConditions { .. }
            | PodObservation::Fence(_) => None,
        }
    }
}

/// The local storage that a pod uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageUsage {
    /// The bytes of the writable layer and the logs of each container, in the order of their indexes.
    pub containers: Vec<u64>,
    /// The bytes of each volume, in the order of the spec; 0 for a volume that was not measured. Then those of files
    /// that belong to the pod as a whole, such as `/etc/hosts`.
    pub volumes: Vec<u64>,
}

/// A pod of an earlier agent that runs, or the remains of one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FoundPod<P = Rc<Pod>> {
    /// The Pod as it was admitted.
    pub pod: P,
    /// The record of the pod on flash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Box<Record>>,
    /// The sandbox whose supervisor answers. `None` if only remains were found, whose processes the shell has
    /// killed.
    pub sandbox: Option<FoundSandbox>,
    /// Without a sandbox: whether processes of the pod may be alive, as in [`PodObservation::SandboxLost`].
    #[serde(default)]
    pub processes: bool,
    /// The runs that the supervisor knows, the newest of each container last.
    pub attempts: Vec<FoundAttempt>,
    /// The handover by the previous agent of this boot; empty if there is none.
    #[serde(default)]
    pub status: StatusHandover,
}

/// A sandbox whose supervisor answers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FoundSandbox {
    /// The pod's address.
    pub ip: Option<Ipv4Addr>,
    /// When it became ready.
    pub at: Instant,
}

/// A run that the supervisor knows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FoundAttempt {
    /// The run.
    pub attempt: Attempt,
    /// Facts of the started container.
    pub container: StartedContainer,
    /// The result of the run, if it has ended.
    pub exit: Option<Exit>,
    /// The state that the previous agent of this boot handed over. By default a container with a probe is not
    /// ready until it is probed again.
    pub health: Health,
}

/// The result of a run. `T` is a text for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit<T = Box<str>> {
    /// The exit code, or 128 + the signal.
    pub code: i32,
    /// Whether the kernel killed a process of the cgroup because memory was short.
    pub oom_killed: bool,
    /// No supervisor recorded the end: the reason is `ContainerStatusUnknown`, whatever `code` and `oom_killed` are.
    pub unknown: bool,
    /// The termination message, at most 4096 bytes.
    pub message: T,
    /// When the process was executed.
    pub started_at: Moment,
    /// When the first process ended.
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

/// The part of a sandbox that could not be created, which decides the reason of the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SandboxFailure {
    /// A volume: `FailedMount`.
    Mount,
    /// An object that a volume needs is missing, or a key of it: `FailedMount`. A change of the object is reported.
    ObjectNotFound,
    /// An interface of the board that the pod requests is missing: `FailedCreatePodSandBox`. A change is reported as
    /// one of objects.
    DeviceNotFound,
    /// Agents died in the handling of the pod, which is not tried any more: `FailedCreatePodSandBox`. Its release is
    /// reported as a change of objects.
    SetAside,
    /// Anything else: `FailedCreatePodSandBox`.
    Sandbox,
}

/// The failure of a start, for `state.waiting`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFailure<T = Box<str>> {
    /// The step that failed.
    pub reason: StartFailureReason,
    /// `state.waiting.message`, for people.
    pub message: T,
    /// The image of a volume, if that one is missing and not the container's.
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    pub image: Option<T>,
    /// Whether the start failed before its image was looked for, which may not be on the board.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub before_image: bool,
}

impl StartFailure {
    /// A failure that is about the container's own image, if any.
    pub fn new(reason: StartFailureReason, message: impl Into<Box<str>>) -> StartFailure {
        StartFailure { reason, message: message.into(), image: None, before_image: false }
    }
}

impl<T> StartFailure<T> {
    fn map<U>(&self, text: impl Fn(&T) -> U) -> StartFailure<U> {
        StartFailure {
            reason: self.reason,
            message: text(&self.message),
            image: self.image.as_ref().map(text),
            before_image: self.before_image,
        }
    }
}

/// The step of a start that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartFailureReason {
    /// The image's name cannot be parsed.
    InvalidImageName,
    /// The image is not on the board and must not be pulled.
    ErrImageNeverPull,
    /// The image is not here, and no registry can be asked.
    ErrImagePull,
    /// The image is not here, and a registry may have it: the core plans `PullImage`.
    ImageToPull,
    /// The image is on the board and cannot be read.
    ImageInspectError,
    /// The spec requests something that does not fit the image or the pod.
    CreateContainerConfigError,
    /// A ConfigMap or Secret that the container refers to is missing, or its key is. A kubelet names the reason
    /// `CreateContainerConfigError`, too.
    ObjectNotFound,
    /// The root file system, the cgroup or the mounts could not be created.
    CreateContainerError,
    /// The process could not be executed. Counts as an exit with 128, `StartError`.
    RunContainerError,
}

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeResult<T = Box<str>> {
    /// The probe succeeded.
    Success,
    /// Counts as success; the text is emitted as an event.
    Warning(T),
    /// The probe failed or timed out.
    Failure(T),
    /// The probe could not be carried out, which changes nothing.
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
