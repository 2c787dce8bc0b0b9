//! The desired state: which objects there are to be, and from which source.
//!
//! Nothing here opens a file, reads a clock or waits: the contents of files come in as arguments.
//! Read next: `registry/sources.rs`, which says which of several objects of one name counts.

mod sources;
mod wanted;

use std::path::PathBuf;

pub use sources::{DefinitionsByName, MAX_BYTES, MAX_FILES, Size, Sources};
pub use wanted::{Wanted, WantedByName};

/// The desired state.
#[derive(Debug)]
pub struct Registry {
    /// Where desired objects come from.
    pub sources: Sources,
}

impl Registry {
    /// The registry of the objects of `directories`, lowest precedence first.
    pub fn new(directories: Vec<PathBuf>) -> Registry {
        Registry { sources: Sources::new(directories) }
    }
}

/// A file, or a pod of one, that is not obeyed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The file.
    pub source: PathBuf,
    /// Namespace and name of the pod that it would have been, where one is known.
    pub pod: Option<(String, String)>,
    /// What is wrong and what would be right.
    pub message: String,
}
