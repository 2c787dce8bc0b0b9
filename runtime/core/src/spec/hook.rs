//! Lifecycle hooks: actions after a container has started, and before it is asked to end.

use std::time::Duration;

use super::ProbeAction;

/// The two hooks of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum HookKind {
    /// `lifecycle.postStart`.
    PostStart,
    /// `lifecycle.preStop`.
    PreStop,
}

/// A hook: the same action as that of a probe, or a sleep.
#[derive(Clone, Debug, PartialEq)]
pub enum Hook {
    /// `exec` and `httpGet`. As in Kubernetes, `tcpSocket` is accepted and always fails.
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
    /// `stopSignal`, with its `SIG`; replaces that of the image.
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
