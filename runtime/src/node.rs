//! DECISIONS for the whole node: facts go in by [`Node::observe`], what to do
//! comes out of [`Node::plan`].
//!
//! This module and `pod` know no clock, file, process, socket or log. What is
//! in flight is remembered here: an action is planned once, and its outcome is
//! an [`Observation`]. Read next: `pod.rs`, the part of this for one pod, then
//! `engine.rs`, which carries the actions out.

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::spec::{ContainerIndex, Pod, ProbeKind, Uid};
use crate::time::{Instant, Moment};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodIndex(pub u32);

/// One run of one container. Everything said about a container carries this,
/// so that news of an earlier run cannot pass for news of the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt {
    /// Which container of the pod.
    pub container: ContainerIndex,
    /// `restartCount` while this run is the newest: 0 for the first.
    pub number: u32,
}

/// A fact, told to the core after it became true.
#[derive(Clone, Debug)]
pub enum Observation {
    /// A source wants this pod.
    Wanted {
        /// As it was admitted.
        pod: Rc<Pod>,
        /// What survived of it from before.
        record: Option<Box<Record>>,
    },
    /// No source wants it any more, or a user deletes it: stop it.
    Unwanted {
        /// Which pod.
        uid: Uid,
        /// Replaces the pod's own grace; given again it can only get shorter.
        grace: Option<Duration>,
    },
    /// Every source has reported once. Until then nothing is stopped for being unwanted.
    SourcesSeen,
    /// A supervisor or its remains, found when the agent started.
    Found(Found),
    /// Images were added: what waits for one may try again at once.
    ImagesChanged,
    /// Stop every pod and take no more (`nodlet down`).
    Shutdown,
    /// About one pod.
    Of(PodIndex, PodObservation),
}

/// A fact about one pod.
#[derive(Clone, Debug)]
pub enum PodObservation {
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
        message: Box<str>,
    },
    /// The supervisor died, and its containers with it; every process is gone.
    SandboxLost,
    /// Supervisor, namespaces, network and cgroups are gone.
    SandboxRemoved,
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
        failure: StartFailure,
    },
    /// The attempt is over: its cgroup is empty.
    Exited {
        /// Which run.
        attempt: Attempt,
        /// How it ended.
        exit: Box<Exit>,
    },
    /// A probe answered.
    Probed {
        /// Of which run.
        attempt: Attempt,
        /// Which probe.
        kind: ProbeKind,
        /// What it found.
        result: ProbeResult,
    },
    /// A signal or kill could not be delivered; it will be planned again.
    StopFailed {
        /// Of which run.
        attempt: Attempt,
        /// For the event.
        message: Box<str>,
    },
    /// The record with this generation is on flash.
    Saved {
        /// That of the `Save`.
        generation: u64,
    },
    /// It could not be written; it will be planned again.
    SaveFailed {
        /// For the event.
        message: Box<str>,
    },
    /// What the pod left on disk is gone; the pod may be dropped.
    Forgotten,
}

/// A pod that an agent of before left running, or the remains of one.
#[derive(Clone, Debug)]
pub struct Found {
    /// As it was admitted.
    pub pod: Rc<Pod>,
    /// What is on flash of it.
    pub record: Option<Box<Record>>,
    /// Its supervisor answers; `None` if only remains were found, which the
    /// shell has killed: no process of it is left.
    pub sandbox: Option<FoundSandbox>,
    /// Runs that the supervisor knows of, newest last per container.
    pub attempts: Vec<FoundAttempt>,
}

/// A living sandbox.
#[derive(Clone, Copy, Debug)]
pub struct FoundSandbox {
    /// Its address.
    pub ip: Option<Ipv4Addr>,
    /// When it became ready.
    pub at: Instant,
}

/// A run that the supervisor knows of.
#[derive(Clone, Debug)]
pub struct FoundAttempt {
    /// Which run.
    pub attempt: Attempt,
    /// What started.
    pub container: StartedContainer,
    /// How it ended, if it has.
    pub exit: Option<Exit>,
}

/// What is known of a run that started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartedContainer {
    /// When its process was executed.
    pub at: Instant,
    /// `containerID` without its scheme: 64 hex digits.
    pub id: Rc<str>,
    /// `image`: the reference, normalised.
    pub image: Rc<str>,
    /// `imageID`.
    pub image_id: Rc<str>,
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

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit code, or 128 + the signal.
    pub code: i32,
    /// The cgroup's OOM counter moved.
    pub oom_killed: bool,
    /// Overrides what code and OOM say: `StartError`, `ContainerStatusUnknown`.
    pub reason: Option<&'static str>,
    /// The termination message, at most 4096 bytes.
    pub message: Box<str>,
    /// When it was executed.
    pub started_at: Moment,
    /// When its first process ended.
    pub finished_at: Moment,
}

/// Which part of a sandbox could not be made: the reason of its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxFailure {
    /// A volume: `FailedMount`.
    Mount,
    /// Anything else: `FailedCreatePodSandBox`.
    Sandbox,
}

/// Why there is no process, in the words of `state.waiting`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFailure {
    /// Which step.
    pub reason: StartFailureReason,
    /// `state.waiting.message`, for people.
    pub message: Box<str>,
}

/// The step of a start that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// It answered as it should.
    Success,
    /// Counts as success; the text is worth an event.
    Warning(Box<str>),
    /// It answered otherwise, or not in time.
    Failure(Box<str>),
    /// The probe itself could not be made: changes nothing.
    Error(Box<str>),
}

/// Something to be done. It may fail; the core learns of that by an
/// observation and never by a return value.
#[derive(Clone, Debug)]
pub enum Action {
    /// Volumes, pod cgroup, namespaces, network and supervisor.
    CreateSandbox,
    /// Find the image, make the container, execute its process.
    Start(Attempt),
    /// Ask once. Answered by `Probed`, after the probe's timeout at the latest.
    Probe(Attempt, ProbeKind),
    /// Ask the container's first process to end (its stop signal).
    Terminate(Attempt),
    /// SIGKILL to every process of the attempt.
    Kill(Attempt),
    /// Remove what an ended attempt left: writable layer and, but for the newest
    /// two of a container, its log. Nothing is answered.
    Discard(Attempt),
    /// End the supervisor; take down network, namespaces and cgroups.
    RemoveSandbox,
    /// Make this record durable.
    Save {
        /// All of it: the file is replaced as a whole.
        record: Box<Record>,
        /// Given back by `Saved`.
        generation: u64,
    },
    /// Remove record, volumes, logs and run-time files.
    Forget,
    /// Tell people: an Event of the pod.
    Emit(Event),
}

/// An event of a pod, as `kubectl describe` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `type` is `Warning`, else `Normal`.
    pub warning: bool,
    /// `reason`.
    pub reason: &'static str,
    /// `message`.
    pub message: Box<str>,
    /// The container it is about (`involvedObject.fieldPath`).
    pub container: Option<ContainerIndex>,
}

/// What to do now, and when to ask again if nothing is observed before then.
#[must_use = "a plan that is dropped is work that never happens"]
pub struct Plan {
    /// In the order in which they are to be begun.
    pub actions: heapless::Vec<(PodIndex, Action), MAX_ACTIONS>,
    /// When the next rule of time is due.
    pub wake_at: Option<Instant>,
    /// The plan is full: plan again at once.
    pub more: bool,
}

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

/// What outlives a reboot of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
