//! Actions of the core: data, carried out by `engine.rs`.

use std::borrow::Cow;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use super::{Attempt, MAX_ACTIONS, PodIndex, Record};
use crate::spec::{ContainerIndex, HookKind, ProbeKind, VolumeSource};
use crate::time::Instant;

/// Something to be done. It may fail; the core learns of that by an
/// observation and never by a return value.
///
/// `R` is a record, `E` an event, and `I` an image: the ring keeps less of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action<R = Box<Record>, E = Event, I = Rc<str>> {
    /// Volumes, pod cgroup, namespaces, network and supervisor.
    CreateSandbox,
    /// Write the files of the pod's volumes anew, if they have changed. Answered by `VolumesUpdated` or
    /// `VolumesUpdateFailed`.
    UpdateVolumes,
    /// Write the limits of the pod and of its running containers to their cgroups. Answered by `Resized`.
    Resize {
        /// The generation of the pod with these limits, given back by `Resized`.
        generation: u64,
    },
    /// Measure the local storage that the pod uses. Answered by `StorageMeasured`.
    MeasureStorage(StorageScope),
    /// Find the image, make the container, execute its process.
    Start {
        /// Which run.
        attempt: Attempt,
        /// The image to start if that of the spec is not on the board: the one that ran before.
        fallback: Option<I>,
    },
    /// Look for the image that the spec names for the container of this run, which runs another.
    /// Answered by `ImageChecked`.
    CheckImage(Attempt),
    /// Pull an image from its registry. Answered by `ImagePulled`.
    PullImage {
        /// The run that needs the image.
        attempt: Attempt,
        /// The name of the image.
        image: I,
    },
    /// Run the probe once. Answered by `Probed`, after the probe's timeout at the latest.
    Probe(Attempt, ProbeKind),
    /// Run a hook (`exec`, `httpGet`, `sleep`). Answered by `Hooked`, when the run ends at the latest.
    Hook(Attempt, HookKind),
    /// Ask the container's first process to end (its stop signal).
    Terminate(Attempt),
    /// SIGKILL to every process of the attempt. A start under way is given up: its process is not executed afterwards.
    /// Then `StartFailed` follows, or `Exited` if the process was executed before.
    Kill(Attempt),
    /// Remove what an ended attempt left: writable layer and, but for the newest
    /// two of a container, its log. Nothing is answered: what cannot be removed goes with the next `Discard` of
    /// the container, and otherwise with `RemoveVolumes` or `Forget`, which are answered.
    Discard(Attempt),
    /// End the supervisor; take down network, namespaces and cgroups.
    RemoveSandbox,
    /// Remove the volumes and writable layers of a finished pod. Answered by `VolumesRemoved` or
    /// `VolumesRemoveFailed`.
    RemoveVolumes {
        /// Remove the logs, too: the pod was evicted for want of disk space.
        logs: bool,
    },
    /// Make this record durable.
    Save {
        /// The complete record: the file is replaced as a whole.
        record: R,
        /// Returned in `Saved`.
        generation: u64,
    },
    /// Remove record, volumes, logs and run-time files.
    Forget,
    /// Emit an Event of the pod.
    Emit(E),
}

impl<R, E, I> Action<R, E, I> {
    /// The action with other records, events and images.
    pub fn map<S, F, J>(
        &self,
        record: impl FnOnce(&R) -> S,
        event: impl FnOnce(&E) -> F,
        image: impl FnOnce(&I) -> J,
    ) -> Action<S, F, J> {
        match self {
            Action::CreateSandbox => Action::CreateSandbox,
            Action::UpdateVolumes => Action::UpdateVolumes,
            Action::MeasureStorage(scope) => Action::MeasureStorage(*scope),
            Action::Resize { generation } => Action::Resize { generation: *generation },
            Action::Start { attempt, fallback } => {
                Action::Start { attempt: *attempt, fallback: fallback.as_ref().map(image) }
            }
            Action::CheckImage(attempt) => Action::CheckImage(*attempt),
            Action::PullImage { attempt, image: name } => {
                Action::PullImage { attempt: *attempt, image: image(name) }
            }
            Action::Probe(attempt, kind) => Action::Probe(*attempt, *kind),
            Action::Hook(attempt, kind) => Action::Hook(*attempt, *kind),
            Action::Terminate(attempt) => Action::Terminate(*attempt),
            Action::Kill(attempt) => Action::Kill(*attempt),
            Action::Discard(attempt) => Action::Discard(*attempt),
            Action::RemoveSandbox => Action::RemoveSandbox,
            Action::RemoveVolumes { logs } => Action::RemoveVolumes { logs: *logs },
            Action::Save { record: of, generation } => {
                Action::Save { record: record(of), generation: *generation }
            }
            Action::Forget => Action::Forget,
            Action::Emit(of) => Action::Emit(event(of)),
        }
    }

    /// The run that the action is about.
    pub fn attempt(&self) -> Option<Attempt> {
        match self {
            Action::Start { attempt, .. }
            | Action::CheckImage(attempt)
            | Action::PullImage { attempt, .. }
            | Action::Probe(attempt, _)
            | Action::Hook(attempt, _)
            | Action::Terminate(attempt)
            | Action::Kill(attempt)
            | Action::Discard(attempt) => Some(*attempt),
            Action::CreateSandbox
            | Action::UpdateVolumes
            | Action::Resize { .. }
            | Action::MeasureStorage(_)
            | Action::RemoveSandbox
            | Action::RemoveVolumes { .. }
            | Action::Save { .. }
            | Action::Forget
            | Action::Emit(_) => None,
        }
    }
}

/// The local storage of a pod that is measured: only as much as its limits need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StorageScope {
    /// The emptyDir volumes on disk that have a `sizeLimit`.
    LimitedVolumes,
    /// All emptyDir volumes on disk, and the writable layer and the logs of each container.
    Pod,
}

impl StorageScope {
    /// Whether a volume of this source is measured.
    pub fn has_volume(self, source: &VolumeSource) -> bool {
        match source {
            VolumeSource::EmptyDir { memory, size_limit } => {
                !memory && (self == StorageScope::Pod || size_limit.is_some())
            }
            VolumeSource::HugePages { .. }
            | VolumeSource::HostPath { .. }
            | VolumeSource::Claim { .. }
            | VolumeSource::Image { .. }
            | VolumeSource::Projected(_) => false,
        }
    }
}

/// An event of a pod, as `kubectl describe` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `type` is `Warning`, else `Normal`.
    pub warning: bool,
    /// `reason`.
    pub reason: Cow<'static, str>,
    /// `message`.
    pub message: Box<str>,
    /// The container it is about (`involvedObject.fieldPath`).
    pub container: Option<ContainerIndex>,
}

/// The actions of now, and the time of the next plan if nothing is observed before then.
#[must_use = "a plan that is dropped is work that never happens"]
pub struct Plan {
    /// In the order in which they are to be begun.
    pub actions: heapless::Vec<(PodIndex, Action), MAX_ACTIONS>,
    /// When the next rule of time is due.
    pub wake_at: Option<Instant>,
    /// The plan is full: plan again at once.
    pub more: bool,
}
