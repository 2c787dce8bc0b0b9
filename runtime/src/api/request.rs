//! What the API asks of the engine: everything that changes something, and
//! everything that touches a process. What only shows objects is answered from
//! the store.

use std::os::fd::OwnedFd;
use std::time::Duration;

use serde_json::Value;

use super::{PatchKind, Query, Status, patch};

/// Answered once. Dropped without an answer, it is an internal error; a
/// receiver that is gone means that nobody waits any more.
pub type Reply<T> = async_channel::Sender<Result<T, Status>>;

/// What the engine is asked for.
#[derive(Debug)]
pub enum Request {
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

/// How an object that is there is to change.
#[derive(Debug)]
pub enum Change {
    /// It is this from now on.
    Replace(Value),
    /// A patch says what is another.
    Patch(PatchKind, Value),
}

/// `preconditions` of a deletion: what the object must be to be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// `metadata.uid`.
    pub uid: Option<String>,
    /// `metadata.resourceVersion`.
    pub resource_version: Option<String>,
}

impl Preconditions {
    /// With those that a query of `DELETE` has, where a body said nothing of them.
    pub(super) fn with_query(self, query: &Query) -> Preconditions {
        let given = |name: &str| query.get(name).filter(|value| !value.is_empty()).map(str::to_owned);
        Preconditions {
            uid: self.uid.or_else(|| given("uid")),
            resource_version: self.resource_version.or_else(|| given("resourceVersion")),
        }
    }

    /// Checks an object of `kind`.
    ///
    /// # Errors
    /// 409, in the words of `BeforeDelete`: it is another object, or has changed.
    pub(crate) fn check(&self, kind: &str, name: &str, object: &Value) -> Result<(), Status> {
        let of = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let conflict = |field: &str, asked: &str, has: &str, then: &str| {
            Status::conflict(
                kind,
                name,
                &format!(
                    "the {field} in the precondition ({asked}) does not match the {field} in record ({has}). The object might have been {then}"
                ),
            )
        };
        match (&self.uid, &self.resource_version) {
            (Some(uid), _) if *uid != of("uid") => {
                Err(conflict("UID", uid, of("uid"), "deleted and then recreated"))
            }
            (_, Some(version)) if *version != of("resourceVersion") => {
                Err(conflict("ResourceVersion", version, of("resourceVersion"), "modified"))
            }
            (_, _) => Ok(()),
        }
    }
}

impl Change {
    /// `current`, a Pod, as it is to be.
    ///
    /// # Errors
    /// The patch says what no patch can, or makes another object of it.
    pub(crate) fn apply(self, current: &Value) -> Result<Value, Status> {
        match self {
            Change::Replace(new) => Ok(new),
            Change::Patch(how, patch) => {
                let mut object = current.clone();
                patch::apply(&mut object, &patch, how, "Pod")?;
                check_name(&object, current)?;
                Ok(object)
            }
        }
    }
}

/// `checkName`: what a patch makes is called as the URL says.
fn check_name(object: &Value, current: &Value) -> Result<(), Status> {
    let of = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (name, in_url) = (of(object, "name"), of(current, "name"));
    let (namespace, asked) = (of(object, "namespace"), of(current, "namespace"));
    let why = if name.is_empty() {
        format!("the name of the object ({in_url} based on URL) was undeterminable: name must be provided")
    } else if name != in_url {
        format!("the name of the object ({name}) does not match the name on the URL ({in_url})")
    } else if !namespace.is_empty() && namespace != asked {
        format!(
            "the namespace of the object ({namespace}) does not match the namespace on the request ({asked})"
        )
    } else {
        return Ok(());
    };
    Err(Status::bad_request(why))
}

/// What part of an object an update is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but its status.
    Whole,
    /// Its status alone.
    Status,
}

/// Which addresses a socket has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`.
    V6,
}

/// `fieldValidation` of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Refuse the object.
    #[default]
    Strict,
    /// Take it and say so.
    Warn,
    /// Take it.
    Ignore,
}

/// A pod that was taken.
#[derive(Debug)]
pub struct Accepted {
    /// As admitted.
    pub object: Value,
    /// What it did.
    pub applied: Applied,
    /// What its owner should know, a sentence each: fields without effect, deprecated ones.
    pub warnings: Vec<String>,
}

/// What applying a manifest did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// There was no such pod.
    Created,
    /// The old one is being replaced.
    Configured,
    /// It was the same.
    Unchanged,
}

/// A process that was executed in a container.
#[derive(Debug)]
pub struct ExecSession {
    /// The master of its terminal, if it has one.
    pub terminal: Option<OwnedFd>,
    /// How it ended. Dropped earlier, nobody is interested any more: the
    /// process is to be killed (`async_channel::Sender::closed` tells).
    pub exit: async_channel::Receiver<ExecExit>,
}

/// How an executed process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecExit {
    /// With this code, or 128 + the signal.
    Code(i32),
    /// It could not be executed, or was lost.
    Failed(String),
}

/// How long the engine may take for a request before the client is told.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(60);
