//! Requests of the API to the engine: all changes, and all operations on processes. The API itself serves
//! reads of objects from the store.

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use serde_json::Value;

use super::place::Held;
use super::{Accepted, Change, FieldValidation, Part, Preconditions, Status};

/// The sender for the one reply to a request. If it is dropped without a reply, the client gets an internal
/// error. If the receiver is gone, no client waits for the reply.
#[derive(Debug)]
pub(crate) struct Reply<T> {
    sender: Sender<Result<T, Status>>,
    /// The room of the request's object, which waits for the agent even if the client has gone.
    _room: Option<Held>,
}

impl<T> Reply<T> {
    /// A reply, and its receiver.
    pub(crate) fn new() -> (Reply<T>, Receiver<Result<T, Status>>) {
        let (sender, receiver) = async_channel::bounded(1);
        (Reply { sender, _room: None }, receiver)
    }

    /// A reply to a request whose object takes this room until the reply is dropped.
    pub(super) fn with_room(self, room: Option<Held>) -> Reply<T> {
        Reply { _room: room, ..self }
    }
}

impl<T> Deref for Reply<T> {
    type Target = Sender<Result<T, Status>>;

    fn deref(&self) -> &Self::Target {
        &self.sender
    }
}

/// A request to the engine.
#[derive(Debug)]
pub(crate) enum Request {
    /// Read the credentials of the cluster again: the board has joined one, or left it.
    Cluster {
        /// Only connect to the cluster now. The reply is the result.
        sync: bool,
        /// The reply, with a text for the user who joins, or an empty one.
        reply: Reply<&'static str>,
    },
    /// Measure the node, so that the conditions of its object are true now.
    Measure {
        /// The reply, when that is done.
        reply: Reply<()>,
    },
    /// How often probes succeeded and failed, in the form of the kubelet's metrics.
    ProbeMetrics {
        /// The reply: the metrics.
        reply: Reply<String>,
    },
    /// Resource usage of the node and its pods, in the form of the kubelet's summary.
    Stats {
        /// The reply: the summary.
        reply: Reply<Value>,
    },
    /// Create an object. The reply is the admitted object.
    Create {
        /// The object as sent, with its namespace from the URL.
        object: Value,
        /// The handling of unknown and duplicate fields.
        validation: FieldValidation,
        /// Whether to only admit the object.
        dry_run: bool,
        /// The reply: the object, `Created`.
        reply: Reply<Accepted>,
    },
    /// Apply an object, whether it exists or not: a changed object replaces the old one.
    Apply {
        /// The object as sent; its namespace and name match the URL.
        object: Value,
        /// The handling of unknown and duplicate fields.
        validation: FieldValidation,
        /// Whether to change nothing, and only return the outcome.
        dry_run: bool,
        /// The reply: the object, and the outcome.
        reply: Reply<Accepted>,
    },
    /// Change an existing pod in place, or a definition.
    Update {
        /// The plural of the object's kind.
        resource: &'static str,
        /// `metadata.namespace`.
        namespace: String,
        /// `metadata.name`.
        name: String,
        /// The change.
        change: Change,
        /// The part of the object that the change is limited to.
        part: Part,
        /// The handling of unknown and duplicate fields.
        validation: FieldValidation,
        /// Whether to change nothing, and only return the outcome.
        dry_run: bool,
        /// The reply: the changed object.
        reply: Reply<Accepted>,
    },
    /// Stop a pod and remove it, or remove a definition.
    Delete {
        /// The plural of the object's kind.
        resource: &'static str,
        /// `metadata.namespace`.
        namespace: String,
        /// `metadata.name`.
        name: String,
        /// The preconditions of the deletion.
        preconditions: Preconditions,
        /// `gracePeriodSeconds`; the pod's own by default.
        grace: Option<u64>,
        /// Whether to change nothing, and only return the outcome.
        dry_run: bool,
        /// The reply: the object; without a `deletionTimestamp`, it is already gone.
        reply: Reply<Value>,
    },
    /// Add ephemeral containers to a pod. The reply is the pod with them.
    Ephemeral(EphemeralRequest),
    /// Restart containers of a pod.
    Restart {
        /// `metadata.namespace`.
        namespace: String,
        /// `metadata.name`.
        name: String,
        /// The name of the container; `None` for all that run.
        container: Option<Box<str>>,
        /// The reply: the pod.
        reply: Reply<Value>,
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
        /// Whether the process gets a terminal; then there is no `stdio`.
        tty: bool,
        /// Columns and rows of the terminal, if known.
        size: Option<(u16, u16)>,
        /// The stdin, stdout and stderr of the process; /dev/null for those that are missing.
        stdio: [Option<OwnedFd>; 3],
        /// The reply: the started process.
        reply: Reply<ExecSession>,
    },
    /// Attach to the output and input of a container.
    Attach {
        /// `metadata.namespace`.
        namespace: String,
        /// `metadata.name`.
        pod: String,
        /// `name` of the container.
        container: String,
        /// The supervisor's ends of the pipes for the requested streams of stdin, stdout and stderr.
        stdio: [Option<OwnedFd>; 3],
        /// The reply: the master of the container's terminal, if it has one.
        reply: Reply<Option<OwnedFd>>,
    },
    /// Make a TCP socket in the network namespace of a pod.
    Socket {
        /// `metadata.namespace`.
        namespace: String,
        /// `metadata.name`.
        pod: String,
        /// `metadata.uid`, so that no other pod of this name gets the socket.
        uid: String,
        /// The address family of the socket.
        family: Family,
        /// The reply: a socket that is not connected, and does not block.
        reply: Reply<OwnedFd>,
    },
}

/// The address family of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`.
    V6,
}

/// An executed process in a container.
#[derive(Debug)]
pub(crate) struct ExecSession {
    /// The master of the process's terminal, if it has one.
    pub terminal: Option<OwnedFd>,
    /// The exit of the process. If the receiver is dropped earlier, no client waits for the process, which
    /// must be killed (`async_channel::Sender::closed` reports this).
    pub exit: async_channel::Receiver<ExecExit>,
}

/// How an executed process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExecExit {
    /// The exit code, or 128 + the signal.
    Code(i32),
    /// The reason why the process could not be executed, or was lost.
    Failed(String),
}

/// The maximum time of the engine for a request, after which the client gets a timeout.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// A request to add ephemeral containers to a pod.
#[derive(Debug)]
pub(crate) struct EphemeralRequest {
    /// `metadata.namespace`.
    pub(crate) namespace: String,
    /// `metadata.name`.
    pub(crate) name: String,
    /// The change of the ephemeral containers; other changes are ignored.
    pub(crate) change: Change,
    /// The handling of unknown and duplicate fields.
    pub(crate) validation: FieldValidation,
    /// Whether to only admit the ephemeral containers.
    pub(crate) dry_run: bool,
    /// The reply: the pod.
    pub(crate) reply: Reply<Accepted>,
}
