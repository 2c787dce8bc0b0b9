//! One directory of images: its files and how they are read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::directory::names_in;
use super::error::StoreError;
use crate::content::ContentError;
use crate::reference::Digest;
use nodlet_kernel::own_file;

/// The largest record or index in bytes; nodlet writes no larger ones.
const RECORD_MAX: u64 = 16 * 1024 * 1024;
/// The format version of index and records that this program writes.
const VERSION: u32 = 1;

/// The contents of `index.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Index {
    version: u32,
    pub(crate) images: BTreeMap<Digest, Entry>,
}

/// Whether an index could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexState {
    Intact,
    Damaged,
}

/// One image's entry in the index: its changeable properties.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    pub(crate) names: BTreeSet<String>,
    pub(crate) repo_digests: BTreeSet<String>,
}

impl Default for Index {
    fn default() -> Index {
        Index { version: VERSION, images: BTreeMap::new() }
    }
}

/// The contents of `images/<config digest>.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    /// The configuration document, byte for byte.
    pub(crate) config: String,
    pub(crate) manifest: Option<Digest>,
    pub(crate) layers: Vec<Digest>,
    /// The digest of each layer's blob as it was loaded, by which it is recognised if a stream contains it
    /// again.
    pub(crate) blobs: Vec<Option<Digest>>,
}

impl Record {
    pub(crate) fn new(
        config: String,
        manifest: Option<Digest>,
        layers: Vec<Digest>,
        blobs: Vec<Option<Digest>>,
    ) -> Record {
        Record { version: VERSION, config, manifest, layers, blobs }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and digests are always JSON")
    }
}

/// One directory of images, writable or not.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) directory: PathBuf,
}

impl Area {
    pub(crate) fn index_path(&self) -> PathBuf {
        self.directory.join("index.json")
    }

    pub(crate) fn layers(&self) -> PathBuf {
        self.directory.join("layers")
    }

    pub(crate) fn records(&self) -> PathBuf {
        self.directory.join("images")
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.directory.join("staging")
    }

    pub(crate) fn layer_path(&self, layer: &Digest) -> PathBuf {
        self.layers().join(format!("{}.erofs", layer.hex()))
    }

    pub(crate) fn record_path(&self, image: &Digest) -> PathBuf {
        self.records().join(format!("{}.json", image.hex()))
    }

    pub(crate) fn index(&self) -> Result<Index, StoreError> {
        let path = self.index_path();
        let Some(bytes) = read(&path)? else { return Ok(Index::default()) };
        let damaged = |problem: String| StoreError::Damaged { path: path.clone(), problem };
        let index: Index = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        match index.version {
            VERSION => Ok(index),
            version => Err(StoreError::Newer { path, version }),
        }
    }

    /// Reads the index. If it is damaged, makes one of all images with an intact record. Their names are
    /// lost; loading them again restores the names, and finds the layers there.
    pub(crate) fn index_or_records(&self) -> Result<(Index, IndexState), StoreError> {
        match self.index() {
            Ok(index) => return Ok((index, IndexState::Intact)),
            Err(StoreError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        let mut index = Index::default();
        for name in names_in(&self.records())? {
            let Some(id) = name.strip_suffix(".json").and_then(|hex| Digest::from_hex(hex).ok()) else {
                continue;
            };
            match self.record(&id) {
                Ok(Some(_)) => drop(index.images.insert(id, Entry::default())),
                Ok(None) | Err(StoreError::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((index, IndexState::Damaged))
    }

    /// Encodes the index. Fails if it would be too large to be read again.
    pub(crate) fn encode(&self, index: &Index) -> Result<Vec<u8>, StoreError> {
        let bytes = serde_json::to_vec(index).expect("strings and digests are always JSON");
        if bytes.len() as u64 <= RECORD_MAX {
            Ok(bytes)
        } else {
            Err(StoreError::Full { path: self.index_path() })
        }
    }

    /// Reads an image's record, and verifies its configuration by the digest.
    pub(crate) fn record(&self, image: &Digest) -> Result<Option<Record>, StoreError> {
        let path = self.record_path(image);
        let Some(bytes) = read(&path)? else { return Ok(None) };
        let damaged = |problem: String| StoreError::Damaged { path: path.clone(), problem };
        let record: Record = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if record.version != VERSION {
            return Err(StoreError::Newer { path, version: record.version });
        }
        if Digest::of(record.config.as_bytes()) == *image {
            Ok(Some(record))
        } else {
            Err(damaged("its content does not match its digest".to_owned()))
        }
    }

    /// The layer's size in bytes, if the layer exists.
    pub(super) fn layer_size(&self, layer: &Digest) -> Option<u64> {
        fs::symlink_metadata(self.layer_path(layer)).ok().filter(fs::Metadata::is_file).map(|m| m.len())
    }
}

/// Reads a file; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    let read = || {
        let mut file = own_file::open(path)?;
        if file.metadata()?.len() > RECORD_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => Ok(Some(bytes)),
        // Like any other damage, it must keep no agent from starting, and no pod from ending.
        Err(error) if own_file::is_irregular(&error) => {
            Err(StoreError::Damaged { path: path.to_owned(), problem: error.to_string() })
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(ContentError::new("read", path, error).into()),
    }
}
