//! Restart policies of pods and of single containers.

/// `restartPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartPolicy {
    /// The container restarts after every exit.
    #[default]
    Always,
    /// The container restarts unless it exits with 0.
    OnFailure,
    /// The container never restarts.
    Never,
}

/// `restartPolicy` and `restartPolicyRules` of a container, which replace the pod's policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnRestart {
    /// The policy if no rule matches.
    pub policy: RestartPolicy,
    /// The rules in order: the first that matches decides.
    pub rules: Vec<RestartRule>,
}

/// One entry of `restartPolicyRules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartRule {
    /// `action`.
    pub action: RestartAction,
    /// Whether `exitCodes.operator` is `In`; otherwise it is `NotIn`.
    pub within: bool,
    /// `exitCodes.values`.
    pub codes: Vec<i32>,
}

/// The action of a rule that matches an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartAction {
    /// The container is restarted.
    Restart,
    /// All containers of the pod restart in the same sandbox, init containers first.
    RestartAllContainers,
}

impl OwnRestart {
    /// The action of the first rule that matches this exit code (Kubernetes:
    /// `FindMatchingContainerRestartRule`).
    pub fn action(&self, code: i32) -> Option<RestartAction> {
        let applies = |rule: &&RestartRule| rule.codes.contains(&code) == rule.within;
        self.rules.iter().find(applies).map(|rule| rule.action)
    }

    /// Whether an exit of the container can restart all containers.
    pub(crate) fn may_restart_all(&self) -> bool {
        self.rules.iter().any(|rule| rule.action == RestartAction::RestartAllContainers)
    }
}
