//! What is run when a container has begun and before it is asked to end.

use std::time::Duration;

use super::ProbeAction;

/// Which of a container's two hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum HookKind {
    /// `lifecycle.postStart`.
    PostStart,
    /// `lifecycle.preStop`.
    PreStop,
}

/// A hook: what a probe can ask, or nothing but time.
#[derive(Clone, Debug, PartialEq)]
pub enum Hook {
    /// `exec` and `httpGet`; `tcpSocket` is taken and never works, as Kubernetes has it.
    Asks(ProbeAction),
    /// `sleep.seconds`.
    Sleeps(Duration),
}

/// `lifecycle`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lifecycle {
    /// `postStart`.
    pub post_start: Option<Hook>,
    /// `preStop`.
    pub pre_stop: Option<Hook>,
    /// `stopSignal`, with its `SIG`; in place of the image's.
    pub stop_signal: Option<String>,
}

impl Lifecycle {
    /// The hook of `kind`, if there is one.
    pub fn hook(&self, kind: HookKind) -> Option<&Hook> {
        match kind {
            HookKind::PostStart => self.post_start.as_ref(),
            HookKind::PreStop => self.pre_stop.as_ref(),
        }
    }
}
