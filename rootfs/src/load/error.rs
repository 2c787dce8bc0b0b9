//! Why no image was loaded.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::archive::ArchiveError;
use crate::layer::LayerError;
use crate::reference::Digest;
use crate::store::StoreError;

/// The reason why no image was loaded.
#[derive(Debug)]
pub enum LoadError {
    /// The archive could not be opened.
    Open {
        /// The path of the archive.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The file is not an archive of images, or has no suitable image.
    Archive(ArchiveError),
    /// A layer is damaged or rejected.
    Layer {
        /// The layer's name in the archive.
        member: String,
        /// The reason why the layer is rejected.
        source: LayerError,
    },
    /// A layer's content does not match its digest.
    Digest {
        /// The layer's name in the archive.
        member: String,
        /// The digest that the layer should have.
        expected: Digest,
        /// The digest of the layer's content.
        actual: Digest,
    },
    /// A layer is longer or shorter than its descriptor says.
    Size {
        /// The layer's name in the archive.
        member: String,
        /// The size in bytes in the layer's descriptor.
        expected: u64,
        /// The actual size in bytes.
        actual: u64,
    },
    /// A layer cannot be rebuilt from its base and its changed blocks.
    NotRebuilt {
        /// The layer's diff ID.
        layer: Digest,
        /// The reason why the layer cannot be rebuilt.
        cause: Refusal,
    },
    /// The process that reads the archive could not be started, or communication with it failed.
    Unpacker {
        /// The operation that failed, as a verb.
        verb: &'static str,
        /// The error of the operation.
        source: io::Error,
    },
    /// The process that reads the archive rejected it.
    Refused(Refusal),
    /// The process that reads the archive died while it read.
    Died {
        /// The exit status of the process.
        status: ExitStatus,
        /// The memory limit of the process in bytes.
        memory: u64,
    },
    /// The process that reads the archive reported an impossible result.
    InvalidResult {
        /// The impossible part of the result.
        problem: String,
    },
    /// The disk lacks space for the layers.
    NotEnoughSpace {
        /// The path of the store.
        path: PathBuf,
        /// The least number of bytes that are needed.
        needed: u64,
        /// The free bytes on the disk.
        free: u64,
    },
    /// The layers exceed the store's size limit.
    StoreFull {
        /// The path of the store.
        path: PathBuf,
        /// The least number of bytes that are needed.
        needed: u64,
        /// The bytes that the limit leaves.
        free: u64,
    },
    /// An operation of the store failed.
    Store(StoreError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Open { path, .. } => write!(f, "open {}", path.display()),
            LoadError::Archive(error) => error.fmt(f),
            LoadError::Layer { member, .. } => write!(f, "load layer {}", member.escape_debug()),
            LoadError::Digest { member, expected, actual } => write!(
                f,
                "load layer {}: its content has digest {actual} but should have {expected}; the archive is damaged",
                member.escape_debug()
            ),
            LoadError::Size { member, expected, actual } => write!(
                f,
                "load layer {}: it has {actual} bytes but should have {expected}; the archive is damaged",
                member.escape_debug()
            ),
            LoadError::NotRebuilt { layer, .. } => write!(f, "make layer {layer} of its changed blocks"),
            LoadError::Unpacker { verb, .. } => f.write_str(verb),
            LoadError::Refused(refusal) => refusal.fmt(f),
            LoadError::Died { status, memory } => {
                write!(f, "unpack the archive: the process that reads it {}", ending(*status))?;
                match status.signal() {
                    Some(_) => write!(
                        f,
                        "; it can use {} MiB of memory, and an archive that needs more is rejected",
                        memory / (1024 * 1024)
                    ),
                    None => Ok(()),
                }
            }
            LoadError::InvalidResult { problem } => {
                write!(
                    f,
                    "unpack the archive: the process that reads it reported an invalid result: {problem}"
                )
            }
            LoadError::NotEnoughSpace { path, needed, free } => write!(
                f,
                "load into {}: at least {needed} bytes are needed and {free} are free; remove images with nodlet \
                 image rm",
                path.display()
            ),
            LoadError::StoreFull { path, needed, free } => write!(
                f,
                "load into {}: at least {needed} bytes are needed and its limit leaves {free}; remove images with \
                 nodlet image rm",
                path.display()
            ),
            LoadError::Store(error) => error.fmt(f),
        }
    }
}

impl LoadError {
    /// Whether the archive is the cause, so that another archive of the image may be loaded.
    pub fn is_of_archive(&self) -> bool {
        match self {
            LoadError::Archive(_)
            | LoadError::Layer { .. }
            | LoadError::Digest { .. }
            | LoadError::Size { .. }
            | LoadError::NotRebuilt { .. }
            | LoadError::Refused(_)
            | LoadError::Died { .. } => true,
            LoadError::Open { .. }
            | LoadError::Unpacker { .. }
            | LoadError::InvalidResult { .. }
            | LoadError::NotEnoughSpace { .. }
            | LoadError::StoreFull { .. }
            | LoadError::Store(_) => false,
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadError::Open { source, .. } => Some(source),
            LoadError::Archive(error) => error.source(),
            LoadError::Layer { source, .. } => Some(source),
            LoadError::Store(error) => error.source(),
            LoadError::Unpacker { source, .. } => Some(source),
            LoadError::Refused(refusal) => std::error::Error::source(refusal),
            LoadError::NotRebuilt { cause, .. } => Some(cause),
            LoadError::Digest { .. }
            | LoadError::Size { .. }
            | LoadError::Died { .. }
            | LoadError::InvalidResult { .. }
            | LoadError::NotEnoughSpace { .. }
            | LoadError::StoreFull { .. } => None,
        }
    }
}

impl<E: Into<StoreError>> From<E> for LoadError {
    fn from(error: E) -> LoadError {
        LoadError::Store(error.into())
    }
}

impl From<ArchiveError> for LoadError {
    fn from(error: ArchiveError) -> LoadError {
        LoadError::Archive(error)
    }
}

/// Why the process that reads an archive rejected it: a chain of causes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Refusal {
    text: String,
    cause: Option<Box<Refusal>>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}

impl Refusal {
    pub(super) fn new(text: &str, cause: &dyn fmt::Display) -> Refusal {
        let cause = Refusal { text: cause.to_string(), cause: None };
        Refusal { text: text.to_owned(), cause: Some(Box::new(cause)) }
    }

    pub(super) fn of(error: &(dyn std::error::Error + 'static)) -> Refusal {
        let cause = error.source().map(|cause| Box::new(Refusal::of(cause)));
        Refusal { text: error.to_string(), cause }
    }

    pub(super) fn printable(self) -> Refusal {
        let cause = self.cause.map(|cause| Box::new(cause.printable()));
        Refusal { text: printable(&self.text), cause }
    }
}

/// Escapes the control characters of a text for a terminal.
pub(super) fn printable(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// How a process ended, for messages such as "the process was killed by SIGKILL".
pub(super) fn ending(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => match Signal::try_from(signal) {
            Ok(name) => format!("was killed by {name}"),
            Err(_) => format!("was killed by signal {signal}"),
        },
        (None, Some(code)) => format!("ended with code {code}"),
        (None, None) => "ended".to_owned(),
    }
}
