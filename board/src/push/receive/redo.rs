//! The record of a push that is being carried out, so that a power cut leaves all of it or nothing.
//!
//! It is written, durably, before the images are loaded, and removed when all is done. The load is one
//! rename: if the images of the record are in the store, the push is carried out to its end, otherwise
//! it has not happened. If the agent rejects a manifest that it had accepted when it judged it, the
//! record says `back` from then on: the store and then the manifests before it become what they were.
//!
//! Whoever opens the spool finishes the record that lies there: the next push, or a process that the
//! agent starts when it finds one. Must never be written without the spool's lock.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nodlet_kube::manifest::Validation;
use nodlet_rootfs::{Before, Digest, Store};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Manifest;
use crate::files::Object;
use crate::{Failure, apply};

/// What `push` calls the record, in the spool. The agent looks for it when it starts.
pub(super) use nodlet_runtime::api::push::REDO;

/// The record while it is written, and files that are put back.
const NEW: &str = "redo.new";

const FORMAT: u32 = 1;

/// A record of a push, as it is on the disk.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Redo {
    format: u32,
    /// The IDs of all images of the push, and what names lead to them when they are loaded.
    images: Vec<String>,
    names: BTreeMap<String, String>,
    manifests: Vec<Kept>,
    validation: String,
    /// The files that the agent keeps of these objects, as they were before; none if there was none.
    before: BTreeMap<String, Option<String>>,
    /// What the store had of the images and names.
    #[serde(default)]
    store: Before,
    /// Whether all is to become what it was.
    back: bool,
}

#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Kept {
    place: String,
    namespace: String,
    object: Value,
}

/// How a record ends.
pub(super) enum Ended {
    Done(Vec<apply::Applied>),
    /// The agent rejected a manifest: why, and what had become otherwise meanwhile is as it was.
    Back(String),
    /// No agent answered for too long: the record remains.
    Waits(Failure),
}

/// Is given what there was before, and the images with their names.
pub(super) type TakeBack<'a> = dyn FnMut(&Before, &[(Digest, Vec<String>)]) -> io::Result<bool> + 'a;

/// What a record needs of others to be carried out.
pub(super) struct Steps<'a> {
    pub(super) apply: &'a mut dyn FnMut(&Manifest, Validation) -> Result<apply::Applied, Failure>,
    /// Takes the load of the images back; whether anything was changed.
    pub(super) take_back: &'a mut TakeBack<'a>,
}

/// Where a record and what it changes lie.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    pub(super) spool: &'a Path,
    /// The agent's files of what was applied.
    pub(super) applied: &'a Path,
}

impl Redo {
    /// Of a push whose images, as pairs of ID and names, are about to be loaded.
    pub(super) fn new(
        images: &[(Digest, Vec<String>)],
        store: Before,
        manifests: &[Manifest],
        validation: Validation,
        applied: &Path,
    ) -> io::Result<Redo> {
        let mut names = BTreeMap::new();
        for (id, of) in images {
            // Of two images of one name the later one has it.
            names.extend(of.iter().map(|name| (name.clone(), id.to_string())));
        }
        let mut before = BTreeMap::new();
        for manifest in manifests {
            let name = file_of(manifest)?;
            let text = read(&applied.join(&name))?;
            before.insert(name, text);
        }
        let kept = |manifest: &Manifest| Kept {
            place: manifest.object.place.clone(),
            namespace: manifest.namespace.clone(),
            object: manifest.object.value.clone(),
        };
        Ok(Redo {
            format: FORMAT,
            images: images.iter().map(|(id, _)| id.to_string()).collect(),
            names,
            manifests: manifests.iter().map(kept).collect(),
            validation: name_of(validation).to_owned(),
            before,
            store,
            back: false,
        })
    }

    /// The record that lies in the spool. One that cannot be understood is none.
    pub(super) fn read(spool: &Path) -> io::Result<Option<Redo>> {
        match fs::read(spool.join(REDO)) {
            Ok(text) => Ok(serde_json::from_slice(&text).ok().filter(|redo: &Redo| redo.format == FORMAT)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the record durable. On an error the one before is still there.
    pub(super) fn write(&self, spool: &Path) -> io::Result<()> {
        replace(spool, &spool.join(REDO), &serde_json::to_vec(self)?)
    }

    /// Forgets the record: the push is over.
    pub(super) fn remove(spool: &Path) -> io::Result<()> {
        step()?;
        match fs::remove_file(spool.join(REDO)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => removed?,
        }
        sync_directory(spool)
    }

    /// Whether a record lies in the spool.
    pub(super) fn is_there(spool: &Path) -> bool {
        spool.join(REDO).exists()
    }

    /// The images of the push, each with the names that lead to it.
    fn loaded(&self) -> Vec<(Digest, Vec<String>)> {
        let named = |id: &String| {
            let names = self.names.iter().filter(|(_, of)| *of == id).map(|(name, _)| name.clone());
            Some((Digest::parse(id).ok()?, names.collect()))
        };
        self.images.iter().filter_map(named).collect()
    }

    /// Whether the push is being taken back.
    pub(super) fn is_back(&self) -> bool {
        self.back
    }

    /// Whether the load of the images took place.
    pub(super) fn is_loaded(&self, store: &Store) -> Result<bool, Failure> {
        let images = store.images().map_err(|error| Failure::chain(&error))?;
        let has = |id: &String| images.iter().any(|image| image.id.to_string() == *id);
        let leads = |(name, id): (&String, &String)| {
            images.iter().any(|image| image.id.to_string() == *id && image.names.contains(name))
        };
        Ok(self.images.iter().all(has) && self.names.iter().all(leads))
    }

    /// Has all manifests applied, or puts back what there was, and forgets the record.
    pub(super) fn carry_out(mut self, places: Places<'_>, steps: Steps<'_>) -> io::Result<Ended> {
        let mut why = "the push was taken back before".to_owned();
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
                why.push_str("; the manifests that were applied before it are taken back");
            }
            if is_different || !self.images.is_empty() {
                self.back = true;
                self.write(places.spool)?;
            }
        }
        if self.back {
            // Before the manifests: a pod that comes back finds the image that its name led to.
            step()?;
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

    /// Whether a file of the agent's is not as it was before.
    fn is_different(&self, places: Places<'_>) -> io::Result<bool> {
        for (name, text) in &self.before {
            if read(&places.applied.join(name))? != *text {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Has all manifests applied; the place of the one that is rejected, and why.
    fn forward(
        &self,
        apply: &mut dyn FnMut(&Manifest, Validation) -> Result<apply::Applied, Failure>,
    ) -> Result<Vec<apply::Applied>, (String, Failure)> {
        let validation = match self.validation.as_str() {
            "warn" => Validation::Warn,
            "ignore" => Validation::Ignore,
            _ => Validation::Strict,
        };
        let mut done = Vec::new();
        for Kept { place, namespace, object } in &self.manifests {
            let object = Object { value: object.clone(), place: place.clone(), warnings: Vec::new() };
            let manifest = Manifest { namespace: namespace.clone(), object };
            done.push(apply(&manifest, validation).map_err(|failure| (place.clone(), failure))?);
        }
        Ok(done)
    }
}

/// Gives an object that has only `generateName` a name: applied twice, it must stay one object.
pub(super) fn settle_name(object: &mut Value) -> io::Result<()> {
    let metadata = &mut object["metadata"];
    let named = metadata["name"].as_str().is_some_and(|name| !name.is_empty());
    let Some(prefix) = metadata["generateName"].as_str().filter(|_| !named) else { return Ok(()) };
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let name = format!("{prefix}{}", random.get(..5).unwrap_or("00000"));
    metadata["name"] = name.into();
    Ok(())
}

/// The file in which the agent keeps an object that was applied.
fn file_of(manifest: &Manifest) -> io::Result<String> {
    let name = manifest.object.name().unwrap_or_default();
    let namespace = &manifest.namespace;
    // The agent has judged them; nothing else may lead out of its directory.
    if name.is_empty() || name.contains('/') || namespace.contains('/') {
        return Err(io::Error::other(format!("{}: no name of an object", manifest.object.place)));
    }
    Ok(manifest.object.kind().row().file(namespace, name))
}

/// A file of the agent's as it was. One that is the same already is not written.
fn put_back(places: Places<'_>, name: &str, text: Option<&str>) -> io::Result<()> {
    let path: PathBuf = places.applied.join(name);
    match (text, read(&path)?) {
        (Some(text), Some(now)) if text == now => Ok(()),
        (Some(text), _) => replace(places.spool, &path, text.as_bytes()),
        (None, None) => Ok(()),
        (None, Some(_)) => {
            step()?;
            fs::remove_file(&path)?;
            sync_directory(places.applied)
        }
    }
}

/// A file's text; none if there is no such file.
fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Puts a file in its place, whole or not at all. It is written in the spool, which is on the same
/// file system.
fn replace(spool: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = spool.join(NEW);
    step()?;
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    step()?;
    file.write_all(bytes)?;
    step()?;
    file.sync_all()?;
    step()?;
    fs::rename(&new, path)?;
    step()?;
    path.parent().map_or(Ok(()), sync_directory)
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn name_of(validation: Validation) -> &'static str {
    match validation {
        Validation::Strict => "strict",
        Validation::Warn => "warn",
        Validation::Ignore => "ignore",
    }
}

/// Called before each change of the flash, so that tests can cut the power there.
#[cfg(not(test))]
fn step() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
use crate::system::power::step;

#[cfg(test)]
mod tests;
