//! How much a node reports to its cluster: as a kubelet does, or less on a link that is paid by the byte. Pure.

use std::time::Duration;

use serde_json::Value;

/// How much a node reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reporting {
    /// As a kubelet does.
    #[default]
    Ordinary,
    /// As little as a cluster with the usual settings needs: the flag `--metered` of the agent.
    Metered,
}

impl Reporting {
    /// The interval of renewals of the Lease. A cluster takes a node for lost after 40 s (before Kubernetes 1.32) or
    /// 50 s: one renewal may be late by 15 s.
    pub(crate) fn renew_every(self) -> Duration {
        match self {
            Reporting::Ordinary => Duration::from_secs(10),
            Reporting::Metered => Duration::from_secs(25),
        }
    }

    /// `leaseDurationSeconds`: four renewals, as with a kubelet.
    pub fn lease_seconds(self) -> u64 {
        self.renew_every().as_secs() * 4
    }

    /// The interval of status updates of a Node that does not change.
    pub(crate) fn report_every(self) -> Duration {
        match self {
            Reporting::Ordinary => Duration::from_secs(300),
            Reporting::Metered => Duration::from_secs(3600),
        }
    }

    /// Whether changes on the board wait for the next renewal of the Lease, so that the last one of several is sent.
    pub fn waits_for_lease(self) -> bool {
        self == Reporting::Metered
    }

    /// Whether the cluster gets an event.
    pub fn sends(self, event: &Value) -> bool {
        self == Reporting::Ordinary || event["type"] == "Warning"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_metered_node_is_renewed_before_any_cluster_takes_it_for_lost() {
        assert!(Reporting::Metered.renew_every() + Duration::from_secs(15) <= Duration::from_secs(40));
        assert_eq!((Reporting::Ordinary.lease_seconds(), Reporting::Metered.lease_seconds()), (40, 100));
    }

    #[test]
    fn a_metered_node_sends_warnings_only() {
        for (kind, sent) in [("Normal", false), ("Warning", true)] {
            let event = json!({ "type": kind });
            assert_eq!(Reporting::Metered.sends(&event), sent);
            assert!(Reporting::Ordinary.sends(&event));
        }
    }
}
