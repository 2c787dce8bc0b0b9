//! The owners of sources, and what follows from who owns a file.

use std::path::PathBuf;

/// A source: a directory of manifests, and who decides about its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceDirectory {
    /// The directory.
    pub path: PathBuf,
    /// The owner, which alone creates, changes and removes its files.
    pub owner: Owner,
    /// How to change a pod of this source, if not by its file. Continues the sentence "it is defined by FILE; ".
    pub hint: Option<String>,
}

/// The owner of a source, which alone creates, changes and removes its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The people and programs of the board: clients of the API cannot change the pods of these files.
    File,
    /// Clients of the API: each object has a file of its own, with the name by `Row::file`.
    Client,
    /// The cluster that the board has joined.
    Cluster,
}

impl Owner {
    /// Whether the objects come from an API, of this board or of its cluster: the agent writes their files.
    pub fn is_api(self) -> bool {
        match self {
            Owner::File => false,
            Owner::Client | Owner::Cluster => true,
        }
    }
}
