//! Facts of a run of a container while it lasts.

use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::time::Instant;

/// The state of a run: the results of its probes, and the progress of its termination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `started`.
    pub started: bool,
    /// `ready`.
    pub ready: bool,
    /// The preStop hook has finished, so that a later agent does not run it again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pre_stopped: bool,
    /// All containers restart, and this one has not restarted yet: its newest run is to end, and the result is
    /// ignored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub superseded: bool,
    /// The spec names a new image: the run is to end, and another run follows whatever the exit code.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub redefined: bool,
}

/// Facts of a run that started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedContainer {
    /// When the container's process was executed.
    pub at: Instant,
    /// `containerID` without its scheme: 64 hex digits.
    pub id: Rc<str>,
    /// `image`: the reference, normalised.
    pub image: Rc<str>,
    /// `imageID`.
    pub image_id: Rc<str>,
    /// `image` of the spec for which the run was started; empty if unknown.
    #[serde(default)]
    pub spec_image: Rc<str>,
    /// The user and groups of the first process.
    pub user: User,
    /// The number of the signal that asks the container to end: the image's STOPSIGNAL, otherwise SIGTERM.
    pub stop_signal: i32,
}

impl StartedContainer {
    /// What the status of a finished pod continues to show of the run's process.
    pub(crate) fn process(&self) -> RunProcess {
        RunProcess { user: self.user.clone(), stop_signal: self.stop_signal }
    }
}

/// What the status of a container shows of its newest run, whether or not its process could be executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunIdentity {
    /// `containerID` without its scheme.
    pub id: Rc<str>,
    /// `image`: the reference, normalised.
    pub image: Rc<str>,
    /// `imageID`.
    pub image_id: Rc<str>,
    /// `None` in records of pods that had not finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<RunProcess>,
}

/// `user` and `stopSignal` of a container status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunProcess {
    /// The user and groups of the first process.
    pub user: User,
    /// The number of the signal that asks the container to end.
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
