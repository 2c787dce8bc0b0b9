//! Loads the images of an archive into the store, all of them or none.
//!
//! 1. `unpack` writes layers to `staging/`, and syncs each when it is complete. It alone reads the archive, in
//!    a process of its own (`child`).
//! 2. When the manifests are known and every digest is verified, the wanted layers are renamed to their
//!    places, then the records.
//! 3. One rename of `index.json` makes the images exist.
//!
//! A load that ends before the last step leaves files that nothing refers to; the next load removes them.
//! A file is read in any order. A stream can be read only once, so its layers are staged before it is known
//! whether they are wanted. Layers of a stream that the store already has are recognised by the digest in
//! their names. Old docker archives have no such names, so their layers are staged again and then dropped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::archive::{PlannedLayer, Wanted};
use crate::config::Document;
use crate::content;
use crate::platform::Platform;
use crate::reference::{Digest, Reference};
use crate::store::{Area, Image, IndexState, Lock, Record, Store, StoreError, lock};

mod child;
mod error;
mod progress;
mod source;
mod unpack;

pub use child::{Unpacker, run_unpacker, stop_unpacker};
pub use error::{LoadError, Refusal};
pub use progress::Progress;
pub use source::{BASES_MAX, Source};
use unpack::{Request, Unpacked};

/// The options of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// The platform to select from an archive that has several; by default this machine's.
    pub platform: Option<Platform>,
    /// The name for an image that has no name in the archive.
    pub name: Option<Reference>,
    /// The size limit of the writable store after the load, in bytes; by default there is none.
    pub max_bytes: Option<u64>,
    /// The process that reads the archive. By default the calling process reads it, which is only for trusted
    /// archives, as in tests.
    pub unpacker: Option<Unpacker>,
}

/// An image that is in the store after a load.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The image, with all names that it has after the load.
    pub image: Image,
    /// The names that this load gave to the image.
    pub names: Vec<String>,
    /// Whether the load changed the image's files or names.
    pub new: bool,
    /// Bytes written to disk by the whole load.
    pub bytes_written: u64,
}

impl Store {
    /// Loads the images of an archive file, or of a directory that is an OCI image layout.
    pub fn load_path(
        &self,
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Loaded>, LoadError> {
        let failed = |source: io::Error| LoadError::Open { path: path.to_owned(), source };
        self.load_file(File::open(path).map_err(failed)?, options, progress)
    }

    /// Loads the images of an open archive: a file is read from its beginning, a pipe from its current
    /// position.
    pub fn load_file(
        &self,
        file: File,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Loaded>, LoadError> {
        self.load_all(vec![file.into()], options, progress)
    }

    /// Loads the images of all these archives, or none of them.
    pub fn load_all(
        &self,
        sources: Vec<Source>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Loaded>, LoadError> {
        let mut loading = Loading::begin(self, options)?;
        let mut all = Unpacked::default();
        let unpacked = sources.into_iter().try_for_each(|source| loading.unpack(source, &mut all, progress));
        let result = unpacked.and_then(|()| loading.commit(all));
        loading.end(result)
    }
}

/// A running load, which holds the store's lock.
struct Loading<'a> {
    store: &'a Store,
    options: &'a LoadOptions,
    _lock: Lock,
    /// The diff IDs of the store's layers, by the digest of the blob from which each was unpacked.
    known: HashMap<Digest, Digest>,
}

impl<'a> Loading<'a> {
    fn begin(store: &'a Store, options: &'a LoadOptions) -> Result<Loading<'a>, LoadError> {
        let area = &store.writable;
        for directory in [area.layers(), area.records(), area.staging()] {
            content::create_directories(&directory)?;
        }
        let held = lock(&area.directory)?;
        // The process that unpacks holds this lock. If a load was killed, its process may live a moment
        // longer.
        drop(lock(&area.staging())?);
        store.sweep(&area.index_or_records()?.0)?;
        let mut known = HashMap::new();
        for area in [&store.baked, &store.writable] {
            for id in area.index_or_records()?.0.images.keys() {
                let Some(record) = whole(area, id)? else { continue };
                let blobs = record.blobs.iter().zip(&record.layers);
                known.extend(blobs.filter_map(|(blob, layer)| Some(((*blob)?, *layer))));
            }
        }
        Ok(Loading { store, options, _lock: held, known })
    }

    /// Removes the staged files if the load failed, as far as possible; the next load removes the rest.
    fn end(self, result: Result<Vec<Loaded>, LoadError>) -> Result<Vec<Loaded>, LoadError> {
        if result.is_err() {
            let _ = self.store.writable.index_or_records().and_then(|(index, _)| self.store.sweep(&index));
        }
        result
    }

    /// Reads an archive, in this process or in one of its own, and adds the result to `all`.
    fn unpack(
        &self,
        source: Source,
        all: &mut Unpacked,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), LoadError> {
        let mut present = self.store.layers()?;
        present.extend(all.staged.keys());
        let request = Request {
            wanted: Wanted {
                platform: self.options.platform.clone().unwrap_or_else(Platform::of_this_machine),
                is_explicit: self.options.platform.is_some(),
            },
            known: self.known.clone(),
            present,
            first: all
                .staged
                .values()
                .filter_map(|name| unpack::layer_number(name))
                .max()
                .map_or(0, |n| n + 1),
            room: match self.options.max_bytes {
                // The files of this load's earlier archives are in the staging directory, and count as used.
                Some(max) => Some(max.saturating_sub(self.store.used()?)),
                None => None,
            },
            rebuilt: source.bases.keys().copied().collect(),
        };
        let staging = self.store.writable.staging();
        let unpacked = match &self.options.unpacker {
            Some(unpacker) => unpacker.unpack(source, &request, &staging, progress),
            None => unpack::unpack(source, &request, &staging, progress),
        }?;
        check(&unpacked, &request, &staging)?;
        all.images.extend(unpacked.images);
        all.proven.extend(unpacked.proven);
        all.staged.extend(unpacked.staged);
        all.bytes_written += unpacked.bytes_written;
        Ok(())
    }

    /// Moves the wanted files to their places, and makes the images exist with one rename of the index.
    fn commit(&mut self, unpacked: Unpacked) -> Result<Vec<Loaded>, LoadError> {
        let (store, area) = (self.store, &self.store.writable);
        let Unpacked { images: planned, proven, staged, mut bytes_written } = unpacked;
        let mut staged: BTreeMap<Digest, PathBuf> =
            staged.into_iter().map(|(layer, name)| (layer, area.staging().join(name))).collect();
        self.known.extend(proven);
        let (mut index, state_before) = area.index_or_records()?;
        let before = index.clone();
        let (baked, _) = store.baked.index_or_records()?;
        let only = planned.len() == 1;
        let mut moved_layers = false;
        let mut records = Vec::new();
        let mut changed = Vec::new();
        for image in &planned {
            for layer in &image.layers {
                if let Some(staged) = staged.remove(&layer.diff_id) {
                    content::rename(&staged, &area.layer_path(&layer.diff_id))?;
                    moved_layers = true;
                }
            }
            let in_writable = whole(area, &image.id)?.is_some();
            let in_baked = whole(&store.baked, &image.id)?.is_some();
            if !in_writable && !in_baked {
                // The record contains only verified blob digests: a manifest may contain any.
                let seen = |layer: &PlannedLayer| {
                    layer.blob.filter(|blob| self.known.get(blob) == Some(&layer.diff_id))
                };
                let blobs = image.layers.iter().map(seen).collect();
                let layers = image.layers.iter().map(|layer| layer.diff_id).collect();
                let record = Record::new(image.config.clone(), image.manifest, layers, blobs);
                records.push((image.id, record.encode()));
            }
            let names: Vec<&Reference> = match (&image.names[..], &self.options.name) {
                ([], Some(name)) if only => vec![name],
                (names, _) => names.iter().collect(),
            };
            let given: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            changed.push((given, !in_writable && !in_baked));
            let baked = baked.images.get(&image.id).cloned().unwrap_or_default();
            for name in names {
                let text = name.to_string();
                let elsewhere = index
                    .images
                    .iter_mut()
                    .filter(|(id, _)| **id != image.id)
                    .fold(false, |taken, (_, entry)| entry.names.remove(&text) || taken);
                if elsewhere || !baked.names.contains(&text) {
                    index.images.entry(image.id).or_default().names.insert(text);
                }
                for digest in &image.digests {
                    let digest = format!("{}@{digest}", name.name());
                    if !baked.repo_digests.contains(&digest) {
                        index.images.entry(image.id).or_default().repo_digests.insert(digest);
                    }
                }
            }
            if !in_baked {
                index.images.entry(image.id).or_default();
            }
        }
        if moved_layers {
            content::sync_directory(&area.layers())?;
        }
        let any_record = !records.is_empty();
        for (id, bytes) in records {
            let staged = area.staging().join(format!("{}.json", id.hex()));
            bytes_written += bytes.len() as u64;
            content::replace(&staged, &area.record_path(&id), &bytes)?;
        }
        if any_record {
            content::sync_directory(&area.records())?;
        }
        if index != before || state_before == IndexState::Damaged {
            let bytes = area.encode(&index)?;
            bytes_written += bytes.len() as u64;
            content::replace(&area.staging().join("index.json"), &area.index_path(), &bytes)?;
            content::sync_directory(&area.directory)?;
        }
        // Remove the layers of images that were not wanted.
        for path in staged.into_values() {
            content::remove(&path)?;
        }
        let images = store.images()?;
        let mut loaded = Vec::new();
        for (planned, (names, changed)) in planned.iter().zip(changed) {
            let image = images.iter().find(|image| image.id == planned.id);
            let image = image.cloned().ok_or(StoreError::NoSuchImage { image: planned.id })?;
            let new =
                changed || before.images.get(&planned.id) != index.images.get(&planned.id) || moved_layers;
            loaded.push(Loaded { image, names, new, bytes_written });
        }
        Ok(loaded)
    }
}

/// Validates the result of the process that unpacks, before any file is renamed: the process has read hostile
/// bytes, so everything is checked that can be checked from here.
fn check(unpacked: &Unpacked, request: &Request, staging: &Path) -> Result<(), LoadError> {
    let wrong = |problem: String| LoadError::InvalidResult { problem };
    let mut names = BTreeSet::new();
    for (layer, name) in &unpacked.staged {
        let is_file = || fs::symlink_metadata(staging.join(name)).is_ok_and(|metadata| metadata.is_file());
        // Files with a number below `first` belong to another archive.
        let its_own = unpack::layer_number(name).is_some_and(|number| number >= request.first);
        if !its_own || !is_file() || !names.insert(name) {
            return Err(wrong(format!("layer file {name:?}")));
        }
        // An archive must not replace layers that other images use.
        if request.present.contains(layer) {
            return Err(wrong(format!("layer {layer}, which the store already has")));
        }
    }
    for image in &unpacked.images {
        let id = Digest::of(image.config.as_bytes());
        if id != image.id {
            return Err(wrong(format!("the configuration of image {} has the digest {id}", image.id)));
        }
        let document = Document::parse(image.config.as_bytes())
            .map_err(|error| error.to_string())
            .and_then(|document| document.config.check().map(|()| document))
            .map_err(|error| wrong(format!("the configuration of image {id}: {error}")))?;
        let layers = image.layers.iter().map(|layer| &layer.diff_id);
        if !layers.clone().eq(&document.diff_ids) {
            return Err(wrong(format!("the layers of image {id} differ from its configuration")));
        }
        let there =
            |layer: &&Digest| unpacked.staged.contains_key(*layer) || request.present.contains(*layer);
        if let Some(layer) = layers.clone().find(|layer| !there(layer)) {
            return Err(wrong(format!("image {id} lacks layer {layer}")));
        }
    }
    Ok(())
}

/// The record of an image; `None` if it is missing or damaged, so that it is written again.
fn whole(area: &Area, id: &Digest) -> Result<Option<Record>, StoreError> {
    match area.record(id) {
        Err(StoreError::Damaged { .. }) => Ok(None),
        result => result,
    }
}

#[cfg(test)]
mod tests;
