//! The state of pods of the cluster on a node that cannot renew its Lease.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Whether a pod of the cluster may run on this node, which the cluster may believe to be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fence {
    /// The pod may run.
    #[default]
    Open,
    /// The pod may go on, but begins nothing: the cluster has not yet confirmed it in this boot.
    Held,
    /// The pod has to end, and starts again when the fence is open.
    Closed {
        /// The longest grace period.
        grace: Duration,
    },
}
