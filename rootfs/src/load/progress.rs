//! Reports on the progress of a load.

use serde::{Deserialize, Serialize};

use crate::reference::Digest;

/// A report on the progress of a load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Progress {
    /// A layer is being read.
    Reading {
        /// The layer's name in the archive.
        layer: String,
        /// The bytes of the layer that have been read.
        bytes: u64,
        /// The size of the layer in bytes.
        total: u64,
    },
    /// A layer was written to disk.
    Stored {
        /// The layer's diff ID.
        layer: Digest,
        /// The bytes that the layer occupies.
        bytes: u64,
    },
    /// The store already has a layer.
    Present {
        /// The layer's diff ID.
        layer: Digest,
    },
    /// A message for the user: a part of a layer that rarely matters was left out, or the kernel lacks a means
    /// to confine the process that reads the archive.
    Warning(String),
}
