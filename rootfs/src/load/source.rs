//! The sources of a load.

use std::collections::BTreeMap;
use std::fs::File;

use crate::reference::Digest;

/// An open archive, and the bases of its layers.
#[derive(Debug)]
pub struct Source {
    /// A file, a pipe, or a directory that is an OCI image layout.
    pub archive: File,
    /// The bases of layers of which the archive, a directory, contains only the changed blocks, in
    /// `changes/<diff ID>`; see [`crate::changes`]. At most [`BASES_MAX`].
    pub bases: BTreeMap<Digest, File>,
}

impl From<File> for Source {
    fn from(archive: File) -> Source {
        Source { archive, bases: BTreeMap::new() }
    }
}

/// The most bases of one archive: the process that unpacks has a descriptor of each.
pub const BASES_MAX: usize = 16;
