//! Restart policies of containers' own.

use super::RestartPolicy;

/// `restartPolicy` and `restartPolicyRules` of a container, in place of the pod's policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnRestart {
    /// Where no rule holds.
    pub policy: RestartPolicy,
    /// In order: the first that holds decides.
    pub rules: Vec<RestartRule>,
}

/// One entry of `restartPolicyRules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartRule {
    /// `action`.
    pub action: RestartAction,
    /// `exitCodes.operator` is `In`, else `NotIn`.
    pub within: bool,
    /// `exitCodes.values`.
    pub codes: Vec<i32>,
}

/// What follows from an exit for which a rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartAction {
    /// The container is restarted.
    Restart,
    /// All containers of the pod begin again in their sandbox, init containers first.
    RestartAllContainers,
}

impl OwnRestart {
    /// What its rules say of an exit with this code (Kubernetes: `FindMatchingContainerRestartRule`).
    pub fn action(&self, code: i32) -> Option<RestartAction> {
        let holds = |rule: &&RestartRule| rule.codes.contains(&code) == rule.within;
        self.rules.iter().find(holds).map(|rule| rule.action)
    }

    /// An exit can make all containers begin again.
    pub fn may_restart_all(&self) -> bool {
        self.rules.iter().any(|rule| rule.action == RestartAction::RestartAllContainers)
    }
}
