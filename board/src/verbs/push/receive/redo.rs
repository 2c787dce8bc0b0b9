//! The record of a push that is being carried out, so that a power cut leaves the whole push or nothing of
//! it.
//!
//! The record is written durably before the images are loaded, and removed when everything is done. The load
//! is one rename: if the store has the images of the record, the push is completed, otherwise it did not
//! happen. If the agent rejects a manifest that it had accepted before in the dry run, the record is marked
//! `back`: the store and the manifests applied before are restored.
//!
//! Whoever opens the spool finishes the record in it: the next push, or a process that the agent starts if it
//! finds one. The record must never be written without the spool's lock.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nodlet_core::sorted::SortedMap;
use nodlet_kernel::durable;
use nodlet_kernel::own_file::{self, if_exists};
use nodlet_kube::manifest::Validation;
use nodlet_rootfs::{Digest, Store, StoreSnapshot};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::manifest::Manifest;
use crate::error::VerbError;
use crate::verbs::apply;

/// The record's file name in the spool, from `push`. The agent looks for it when it starts.
pub(super) use nodlet_runtime::api::push::REDO;

/// The temporary name of the record while it is written.
use nodlet_runtime::api::push::REDO_NEW as NEW;

const FORMAT: u32 = 1;

/// The record of a push, as stored on the disk.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Redo {
    format: u32,
    /// The IDs of all images of the push; `names` maps names to IDs as they are after the load.
    images: Vec<Digest>,
    names: SortedMap<String, Digest>,
    manifests: Vec<Manifest>,
    validation: String,
    /// The previous contents of the agent's files of these objects; `None` if there was no file.
    before: SortedMap<String, Option<String>>,
    /// The state of the images and names in the store before the push.
    #[serde(default)]
    store: StoreSnapshot,
    /// Whether the push is being rolled back.
    back: bool,
}

/// The number that a record of any format has.
#[derive(Deserialize)]
struct Numbered {
    format: u32,
}

/// The record that the spool has.
#[derive(Debug)]
pub(super) enum StoredRedo {
    Nothing,
    Record(Redo),
    /// The file is no record, for this reason.
    Damaged(serde_json::Error),
    /// The record has a format that only another version of nodlet can read.
    OtherFormat(u32),
}

/// The result of carrying out a record.
pub(super) enum Ended {
    Done(Vec<apply::Applied>),
    /// The agent rejected a manifest, for this reason. All other changes were rolled back.
    Back(String),
    /// No agent responded for too long: the record remains.
    Waits(VerbError),
}

/// Takes back the load of images, given the store's previous state and the images with their names.
pub(super) type TakeBack<'a> = dyn FnMut(&StoreSnapshot, &[(Digest, Vec<String>)]) -> io::Result<bool> + 'a;

/// The operations that a record needs to be carried out.
pub(super) struct Steps<'a> {
    pub(super) apply: &'a mut dyn FnMut(&Manifest, Validation) -> Result<apply::Applied, VerbError>,
    /// Takes back the load of images. Returns whether anything changed.
    pub(super) take_back: &'a mut TakeBack<'a>,
}

/// The directories of the record and of what it changes.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    pub(super) spool: &'a Path,
    /// The directory in which the agent keeps applied objects.
    pub(super) applied: &'a Path,
}

impl Redo {
    /// The record of a push whose images, as pairs of ID and names, are about to be loaded.
    pub(super) fn new(
        images: &[(Digest, Vec<String>)],
        store: StoreSnapshot,
        manifests: &[Manifest],
        validation: Validation,
        applied: &Path,
    ) -> io::Result<Redo> {
        let mut names = SortedMap::new();
        for (id, of) in images {
            // If two images have the same name, the later one gets it.
            names.extend(of.iter().map(|name| (name.clone(), *id)));
        }
        let mut before = SortedMap::new();
        for manifest in manifests {
            let name = file_of(manifest)?;
            let text = read(&applied.join(&name))?;
            before.insert(name, text);
        }
        Ok(Redo {
            format: FORMAT,
            images: images.iter().map(|(id, _)| *id).collect(),
            names,
            manifests: manifests.to_vec(),
            validation: apply::validation_word(validation).to_owned(),
            before,
            store,
            back: false,
        })
    }

    /// Reads the record in the spool.
    pub(super) fn read(spool: &Path) -> io::Result<StoredRedo> {
        let text = if_exists(own_file::read(&spool.join(REDO)))?;
        let Some(text) = text else { return Ok(StoredRedo::Nothing) };
        // The format first: a record of another format may have other fields.
        Ok(match serde_json::from_slice(&text) {
            Ok(Numbered { format }) if format != FORMAT => StoredRedo::OtherFormat(format),
            Ok(_) => serde_json::from_slice(&text).map_or_else(StoredRedo::Damaged, StoredRedo::Record),
            Err(error) => StoredRedo::Damaged(error),
        })
    }

    /// Writes the record durably. If that fails, the previous one remains.
    pub(super) fn write(&self, spool: &Path) -> io::Result<()> {
        durable::replace(&spool.join(REDO), &serde_json::to_vec(self)?, None)
    }

    /// Removes the record: the push is completed.
    pub(super) fn remove(spool: &Path) -> io::Result<()> {
        durable::remove(&spool.join(REDO))
    }

    /// Removes the part of a record that a power cut left. The spool's lock must be held.
    pub(super) fn clean(spool: &Path) -> io::Result<()> {
        durable::discard(&spool.join(NEW))
    }

    /// Whether the spool has a record.
    pub(super) fn is_there(spool: &Path) -> bool {
        spool.join(REDO).exists()
    }

    /// The images of the push, each with its names.
    fn loaded(&self) -> Vec<(Digest, Vec<String>)> {
        let names = |id: &Digest| {
            self.names.iter().filter(|(_, of)| *of == id).map(|(name, _)| name.clone()).collect()
        };
        self.images.iter().map(|id| (*id, names(id))).collect()
    }

    /// Whether the push is being rolled back.
    pub(super) fn is_back(&self) -> bool {
        self.back
    }

    /// Whether the images have been loaded.
    pub(super) fn is_loaded(&self, store: &Store) -> Result<bool, VerbError> {
        let images = store.images().map_err(|error| VerbError::chain(&error))?;
        let has = |id: &Digest| images.iter().any(|image| image.id == *id);
        let leads = |(name, id): (&String, &Digest)| {
            images.iter().any(|image| image.id == *id && image.names.contains(name))
        };
        Ok(self.images.iter().all(has) && self.names.iter().all(leads))
    }

    /// Applies all manifests, or restores the previous state, and removes the record.
    pub(super) fn carry_out(mut self, places: Places<'_>, steps: Steps<'_>) -> io::Result<Ended> {
        let mut why = "the push had already been rolled back".to_owned();
        if !self.back {
            match self.forward(steps.apply) {
                Ok(done) => {
                    Redo::remove(places.spool)?;
                    return Ok(Ended::Done(done));
                }
                Err((_, failure)) if failure.is_disconnected() => return Ok(Ended::Waits(failure)),
                Err((place, failure)) => why = format!("{place}: {failure}"),
            }
            let is_different = self.is_different(places)?;
            if is_different {
                why.push_str("; the manifests that were applied before it are rolled back");
            }
            if is_different || !self.images.is_empty() {
                self.back = true;
                self.write(places.spool)?;
            }
        }
        if self.back {
            // Images first, so that a restored pod finds the image that its name referred to.
            if (steps.take_back)(&self.store, &self.loaded())? {
                why.push_str("; the images of the push are removed");
            }
            for (name, text) in &self.before {
                put_back(places, name, text.as_deref())?;
            }
        }
        Redo::remove(places.spool)?;
        Ok(Ended::Back(why))
    }

    /// Whether any of the agent's files differs from its previous contents.
    fn is_different(&self, places: Places<'_>) -> io::Result<bool> {
        for (name, text) in &self.before {
            if read(&places.applied.join(name))? != *text {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Applies all manifests. An error has the place of the rejected manifest, and the reason.
    fn forward(
        &self,
        apply: &mut dyn FnMut(&Manifest, Validation) -> Result<apply::Applied, VerbError>,
    ) -> Result<Vec<apply::Applied>, (String, VerbError)> {
        let validation = apply::validation_of(&self.validation).unwrap_or_default();
        let mut done = Vec::new();
        for manifest in &self.manifests {
            let failed = |failure| (manifest.object.place.clone(), failure);
            done.push(apply(manifest, validation).map_err(failed)?);
        }
        Ok(done)
    }
}

/// Assigns a name to an object that has only `generateName`, so that applying it twice makes one object.
pub(super) fn settle_name(object: &mut Value) -> io::Result<()> {
    let metadata = &mut object["metadata"];
    let named = metadata["name"].as_str().is_some_and(|name| !name.is_empty());
    let Some(prefix) = metadata["generateName"].as_str().filter(|_| !named) else { return Ok(()) };
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let name = format!("{prefix}{}", random.get(..5).unwrap_or("00000"));
    metadata["name"] = name.into();
    Ok(())
}

/// The name of the file in which the agent keeps an applied object.
fn file_of(manifest: &Manifest) -> io::Result<String> {
    let name = manifest.object.name().unwrap_or_default();
    let namespace = &manifest.namespace;
    // The agent has validated the manifests; this only prevents paths out of its directory.
    if name.is_empty() || name.contains('/') || namespace.contains('/') {
        return Err(io::Error::other(format!("{}: invalid object name", manifest.object.place)));
    }
    Ok(manifest.object.kind().row().file(namespace, name))
}

/// Restores one of the agent's files. Does not write a file that is already the same.
fn put_back(places: Places<'_>, name: &str, text: Option<&str>) -> io::Result<()> {
    let path: PathBuf = places.applied.join(name);
    match (text, read(&path)?) {
        (Some(text), Some(now)) if text == now => Ok(()),
        (Some(text), _) => durable::replace(&path, text.as_bytes(), None),
        (None, None) => Ok(()),
        (None, Some(_)) => durable::remove(&path),
    }
}

/// The text of a file; `None` if it does not exist.
fn read(path: &Path) -> io::Result<Option<String>> {
    if_exists(own_file::read_to_string(path))
}

#[cfg(test)]
mod tests;
