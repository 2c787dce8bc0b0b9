//! Why no image was loaded.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::archive::ArchiveError;
use crate::layer::LayerError;
use crate::reference::Digest;
use crate::store::StoreError;

/// The reason why no image was loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The archive could not be opened.
    #[error("open {path}")]
    Open {
        /// The path of the archive.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The file is not an archive of images, or has no suitable image.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A layer is damaged or rejected.
    #[error("load layer {}", .member.escape_debug())]
    Layer {
        /// The layer's name in the archive.
        member: String,
        /// The reason why the layer is rejected.
        source: LayerError,
    },
    /// A layer's content does not match its digest.
    #[error(
        "load layer {}: its content has digest {actual} but should have {expected}; the archive is damaged",
        .member.escape_debug()
    )]
    Digest {
        /// The layer's name in the archive.
        member: String,
        /// The digest that the layer should have.
        expected: Digest,
        /// The digest of the layer's content.
        actual: Digest,
    },
    /// A layer is longer or shorter than its descriptor says.
    #[error(
        "load layer {}: it has {actual} bytes but should have {expected}; the archive is damaged",
        .member.escape_debug()
    )]
    Size {
        /// The layer's name in the archive.
        member: String,
        /// The size in bytes in the layer's descriptor.
        expected: u64,
        /// The actual size in bytes.
        actual: u64,
    },
    /// A layer cannot be rebuilt from its base and its changed blocks.
    #[error("make layer {layer} of its changed blocks")]
    NotRebuilt {
        /// The layer's diff ID.
        layer: Digest,
        /// The reason why the layer cannot be rebuilt.
        #[source]
        cause: Refusal,
    },
    /// The process that reads the archive could not be started, or communication with it failed.
    #[error("{verb}")]
    Unpacker {
        /// The operation that failed, as a verb.
        verb: &'static str,
        /// The error of the operation.
        source: io::Error,
    },
    /// The process that reads the archive rejected it.
    #[error(transparent)]
    Refused(Refusal),
    /// The process that reads the archive died while it read.
    #[error("unpack the archive: the process that reads it {}", death(*.status, *.memory))]
    Died {
        /// The exit status of the process.
        status: ExitStatus,
        /// The memory limit of the process in bytes.
        memory: u64,
    },
    /// The process that reads the archive reported an impossible result.
    #[error("unpack the archive: the process that reads it reported an invalid result: {problem}")]
    InvalidResult {
        /// The impossible part of the result.
        problem: String,
    },
    /// The disk, or the size limit of the store, lacks space for the layers.
    #[error(
        "load into {path}: at least {needed} bytes are needed and {}; remove images with nodlet image rm",
        space(*.free, *.is_limited)
    )]
    NotEnoughSpace {
        /// The path of the store.
        path: PathBuf,
        /// The least number of bytes that are needed.
        needed: u64,
        /// The free bytes on the disk, or those that the limit leaves.
        free: u64,
        /// Whether the limit leaves less than the disk.
        is_limited: bool,
    },
    /// An operation of the store failed.
    #[error(transparent)]
    Store(StoreError),
}

/// The space that is left for layers, for a message.
fn space(free: u64, is_limited: bool) -> String {
    if is_limited { format!("its limit leaves {free}") } else { format!("{free} are free") }
}

impl LoadError {
    /// The error of a load into the store to which this staging directory belongs.
    pub(super) fn not_enough_space(staging: &Path, needed: u64, free: u64, is_limited: bool) -> LoadError {
        let path = staging.parent().unwrap_or(staging).to_owned();
        LoadError::NotEnoughSpace { path, needed, free, is_limited }
    }

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
            | LoadError::Store(_) => false,
        }
    }
}

impl<E: Into<StoreError>> From<E> for LoadError {
    fn from(error: E) -> LoadError {
        LoadError::Store(error.into())
    }
}

/// Why the process that reads an archive rejected it: a chain of causes.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    text: String,
    #[source]
    cause: Option<Box<Refusal>>,
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
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// How the process that reads an archive ended. Most often a signal ends it when it needs more than `memory` bytes.
fn death(status: ExitStatus, memory: u64) -> String {
    let mut text = ending(status);
    if status.signal().is_some() {
        let mib = memory / (1024 * 1024);
        text += &format!("; it can use {mib} MiB of memory, and an archive that needs more is rejected");
    }
    text
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
