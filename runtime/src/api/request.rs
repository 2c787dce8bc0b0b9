//! What the API asks of the engine: everything that changes something, and
//! everything that touches a process. What only shows objects is answered from
//! the store.

use std::os::fd::OwnedFd;
use std::time::Duration;

use serde_json::Value;

use super::{Accepted, Change, FieldValidation, Part, Preconditions, Status};

/// Answered once. Dropped without an answer, it is an internal error; a
/// receiver that is gone means that nobody waits any more.
pub(crate) type Reply<T> = async_channel::Sender<Result<T, Status>>;

/// What the engine is asked for.
#[derive(Debug)]
pub(crate) enum Request {
    /// A new pod, podpreset or priorityclass, by its kind. Answered with it as admitted.
    Create {
        /// As it was sent, its namespace filled in from the URL.
        object: Value,
        /// What to do with fields that are unknown or given twice.
        validation: FieldValidation,
        /// Admit it, and then forget it.
        dry_run: bool,
        /// The pod, `Created`.
        reply: Reply<Accepted>,
    },
    /// This pod, podpreset or priorityclass, whether it is there or not: a changed one replaces the old one.
    Apply {
        /// As it was sent, its namespace and name checked against the URL.
        object: Value,
        /// What to do with fields that are unknown or given twice.
        validation: FieldValidation,
        /// Only say what would happen.
        dry_run: bool,
        /// The pod, and what happened.
        reply: Reply<Accepted>,
    },
    /// Change a pod that is there, as the same pod, or a priorityclass.
    Update {
        /// The plural of its kind.
        resource: &'static str,
        /// `metadata.namespace`.
        namespace: String,
        /// `metadata.name`.
        name: String,
        /// What is to change.
        change: Change,
        /// Where.
        part: Part,
        /// What to do with fields that are unknown or given twice.
        validation: FieldValidation,
        /// Only say what would happen.
        dry_run: bool,
        /// The pod as it is then.
        reply: Reply<Accepted>,
    },
    /// Stop a pod and remove it; or remove a podpreset or priorityclass.
    Delete {
        /// The plural of its kind.
        resource: &'static str,
        /// `metadata.namespace`.
        namespace: String,
        /// `metadata.name`.
        name: String,
        /// Only the object that is so.
        preconditions: Preconditions,
        /// `gracePeriodSeconds`; without it the pod's own.
        grace: Option<u64>,
        /// Only say what would happen.
        dry_run: bool,
        /// The pod; without a `deletionTimestamp` it is gone already.
        reply: Reply<Value>,
    },
    /// Add ephemeral containers to a pod. Answered with the pod that has them.
    Ephemeral {
        /// `metadata.namespace`.
        namespace: String,
        /// `metadata.name`.
        name: String,
        /// What it is to have; nothing else of it changes.
        change: Change,
        /// What to do with fields that are unknown or given twice.
        validation: FieldValidation,
        /// Admit them, and then forget them.
        dry_run: bool,
        /// The pod.
        reply: Reply<Accepted>,
    },
    /// Run a command in a running container.
    Exec {
        /// `metadata.namespace`.
        namespace: String,
        /// `metadata.name`.
        pod: String,
        /// `name` of the container.
        container: String,
        /// Command and arguments.
        command: Vec<String>,
        /// Give it a terminal; then there is no `stdio`.
        tty: bool,
        /// Columns and rows of the terminal, as far as they are known.
        size: Option<(u16, u16)>,
        /// Its stdin, stdout and stderr; /dev/null where there is none.
        stdio: [Option<OwnedFd>; 3],
        /// The process, started.
        reply: Reply<ExecSession>,
    },
    /// Show what a container writes, and pass on input.
    Attach {
        /// `metadata.namespace`.
        namespace: String,
        /// `metadata.name`.
        pod: String,
        /// `name` of the container.
        container: String,
        /// The client's ends of its pipes for stdin, stdout and stderr, as far as wanted.
        stdio: [Option<OwnedFd>; 3],
        /// The master of the container's terminal, if it has one.
        reply: Reply<Option<OwnedFd>>,
    },
    /// Make a TCP socket in the network namespace of a pod.
    Socket {
        /// `metadata.namespace`.
        namespace: String,
        /// `metadata.name`.
        pod: String,
        /// `metadata.uid`: none in another pod of this name.
        uid: String,
        /// Of its address.
        family: Family,
        /// Not connected, and not blocking.
        reply: Reply<OwnedFd>,
    },
}

/// Which addresses a socket has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`.
    V6,
}

/// A process that was executed in a container.
#[derive(Debug)]
pub(crate) struct ExecSession {
    /// The master of its terminal, if it has one.
    pub terminal: Option<OwnedFd>,
    /// How it ended. Dropped earlier, nobody is interested any more: the
    /// process is to be killed (`async_channel::Sender::closed` tells).
    pub exit: async_channel::Receiver<ExecExit>,
}

/// How an executed process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExecExit {
    /// With this code, or 128 + the signal.
    Code(i32),
    /// It could not be executed, or was lost.
    Failed(String),
}

/// How long the engine may take for a request before the client is told.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(60);
