//! The facts that are reported to a schedule, and its decisions.

use std::time::{Duration, Instant};

/// Something to do, whose outcome is observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Prepare requests to the API server. Outcome: [`Seen::Connected`].
    Connect,
    /// Make the Node, or update the existing one. Outcome: [`Seen::Registered`], or [`Seen::Retiring`] while pods of a
    /// Node that was deleted remain, or [`Seen::NodeDeleted`] while these are watched.
    Register,
    /// Renew the Lease; if `create`, make a missing one. Outcome: [`Seen::LeaseRenewed`] or [`Seen::NodeGone`].
    RenewLease {
        /// The Node was registered just now.
        create: bool,
    },
    /// List the pods of the node. Outcome: [`Seen::Listed`].
    List,
    /// Send the statuses that differ, of all pods. Outcome: [`Seen::Sent`].
    SendStatuses,
    /// Send what has changed on the board. Outcome: [`Seen::Sent`].
    SendChanges,
    /// Report the state of the node. Outcome: [`Seen::NodeReported`] or [`Seen::NodeGone`].
    ReportNode,
    /// Renew tokens, and repeat what the cluster rejected or the board could not store. Outcome: [`Seen::Refreshed`].
    Refresh,
    /// Watch the pods of the node from this version on. Outcome: [`Seen::WatchOpened`] or [`Seen::WatchExpired`].
    Watch {
        /// `resourceVersion`.
        version: String,
    },
    /// Replace the client certificate. Outcome: [`Seen::Rotated`].
    Rotate,
    /// End the session: the connection of the watches is dead. Outcome: [`Seen::Failed`].
    GiveUp,
    /// End the visit of a periodic synchronisation, when all objects are current. Outcome: [`Seen::Synchronised`].
    Leave,
}

/// The outcome of an action, or news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Requests can be sent. The certificate is to be replaced at this time, in seconds since 1970.
    Connected {
        /// The time of the replacement.
        rotate_at: i64,
    },
    /// The cluster has the Node, and its state is current.
    Registered,
    /// The Node was deleted: its pods end before there is another one, which is looked at again then.
    Retiring,
    /// The Node was deleted, and its pods are watched, which ends.
    NodeDeleted,
    /// The Lease was renewed.
    LeaseRenewed,
    /// The cluster has no Node or no Lease. It removes a Lease with its Node.
    NodeGone,
    /// All pods were listed, at this version.
    Listed {
        /// `resourceVersion` of the list.
        version: String,
    },
    /// All changes were sent.
    Sent,
    /// The state of the node was reported.
    NodeReported,
    /// The tokens of pods are current.
    Refreshed,
    /// The watch has begun.
    WatchOpened,
    /// The watch ended.
    WatchEnded,
    /// The versions since that of the watch are not available any more (410 Gone).
    WatchExpired,
    /// An event of this length was read from the watch.
    Event {
        /// Its length in bytes.
        length: usize,
        /// `resourceVersion` of its object.
        version: Option<String>,
    },
    /// Something changed on the board.
    BoardChanged,
    /// The state of the node on the board is another than the reported one.
    NodeChanged,
    /// The client certificate was replaced, or could not be replaced.
    Rotated(bool),
    /// An action failed, or the watch did.
    Failed,
    /// An action failed, and the server accepts no request for this time.
    Busy(Duration),
    /// Something of a pod was sent or taken.
    News,
    /// A periodic synchronisation is complete.
    Synchronised,
    /// A link to the server came up, or a client requests a connection.
    ConnectNow,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an action that is not performed is never observed"]
pub enum Next {
    /// Perform this action.
    Do(Action),
    /// Wait for news until then.
    Wait {
        /// When to ask again.
        until: Instant,
        /// Whether events of the watch may be read meanwhile.
        reads: bool,
        /// Whether a change on the board is news.
        changes: bool,
    },
}
