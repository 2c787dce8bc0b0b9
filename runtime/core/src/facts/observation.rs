//! What the core is told: facts, each after it became true.

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Attempt, FoundStatus, GivenCondition, NodeInfo, PodIndex, Record, Shutdown};
use crate::spec::{HookKind, Pod, ProbeKind, Uid};
use crate::time::{Instant, Moment};

/// A fact, told to the core after it became true.
#[derive(Clone, Debug)]
pub enum Observation {
    /// A source wants this pod. With a uid that is known and another spec it takes the place of
    /// the one that there is.
    Wanted {
        /// As it was admitted.
        pod: Rc<Pod>,
        /// What survived of it from before.
        record: Option<Box<Record>>,
        /// What an agent before left behind of it in this boot.
        status: Option<Box<FoundStatus>>,
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
    Found(Found),
    /// What this node is to pods. Told first; nobody is judged anew for it.
    Node(Box<NodeInfo>),
    /// Images were added: what waits for one may try again at once.
    ImagesChanged,
    /// Stop every pod and take no more.
    Shutdown(Shutdown),
    /// They need not end after all: what had to begins again.
    ShutdownCancelled,
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
    /// Told only of a sandbox that was ready; one that dies before that has failed.
    SandboxLost,
    /// Supervisor, namespaces, network and cgroups are gone.
    SandboxRemoved,
    /// Part of the sandbox could not be taken down; it will be planned again.
    SandboxRemoveFailed {
        /// For the event.
        message: Box<str>,
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
        failure: StartFailure,
    },
    /// The image of the spec was looked for while the run of another image goes on.
    ImageChecked {
        /// Which run.
        attempt: Attempt,
        /// Why it cannot be started; `None` if it can.
        failure: Option<StartFailure>,
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
    /// A hook is over.
    Hooked {
        /// Of which run.
        attempt: Attempt,
        /// Which hook.
        kind: HookKind,
        /// Why it failed, if it has: for the status, and not for events, whom more people read.
        failure: Option<Box<str>>,
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
    /// Some of it is still there; it will be planned again.
    ForgetFailed {
        /// For the event.
        message: Box<str>,
    },
    /// Somebody has said something of the pod in its status: all that is said of it so from now on.
    Given {
        /// None of them of a type that is the node's.
        conditions: Rc<[GivenCondition]>,
    },
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
    /// What the agent before showed of it, as far as it left word of that in this boot.
    pub status: FoundStatus,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
