//! Loading: an archive's images into the store, whole or not at all.
//!
//! 1. Layers are written to `staging/`, each synced when it is complete.
//! 2. When the manifests are known and every digest has been found right, the
//!    layers that are wanted are renamed to their places, then the records.
//! 3. One rename of `index.json` makes the images exist.
//!
//! A load that ends before the last step leaves files that nothing names; the
//! next one removes them. A file is read in the order that suits us; a stream
//! passes once, so that its layers are staged before it is known whether they
//! are wanted. Of layers that the store has, a stream's are known by the digest
//! in their names; docker archives of old name them by nothing that can be
//! known beforehand, so that those are staged again and then dropped.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::archive::source::{Directory, Passed, Seekable, TarFile, bounded, cleaned, label};
use crate::archive::{ArchiveError, DOCUMENT_MAX, Planned, PlannedLayer, Wanted, plan};
use crate::compression::{Digesting, Format, peek};
use crate::layer::{LayerBounds, LayerError, convert};
use crate::members::{Kind, Members};
use crate::platform::Platform;
use crate::reference::{Digest, Reference};
use crate::store::{Area, Image, Lock, Record, Store, StoreError, lock};

/// How to load.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// The platform to take from an archive that has several; this machine's if none.
    pub platform: Option<Platform>,
    /// The name of an image that the archive does not name.
    pub name: Option<Reference>,
}

/// What is told while a load goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// A layer is being read.
    Reading {
        /// Its name in the archive.
        layer: String,
        /// Bytes of it so far.
        bytes: u64,
        /// Bytes of it in all.
        total: u64,
    },
    /// A layer is on disk.
    Stored {
        /// Its diff ID.
        layer: Digest,
        /// The bytes that it takes.
        bytes: u64,
    },
    /// A layer was there before.
    Present {
        /// Its diff ID.
        layer: Digest,
    },
    /// Something was left out that seldom matters.
    Warning(String),
}

/// An image that is in the store after a load.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The image, with all names that it has by now.
    pub image: Image,
    /// Those that this load gave it.
    pub names: Vec<String>,
    /// Whether the load changed anything about it.
    pub new: bool,
    /// Bytes written to disk by the whole load.
    pub bytes_written: u64,
}

/// Why nothing was loaded.
#[derive(Debug)]
pub enum LoadError {
    /// The archive could not be opened.
    Open {
        /// The archive.
        path: PathBuf,
        /// What opening gave.
        source: io::Error,
    },
    /// The archive is none, or has no image that fits.
    Archive(ArchiveError),
    /// A layer is damaged or refused.
    Layer {
        /// Its name in the archive.
        member: String,
        /// What is wrong with it.
        source: LayerError,
    },
    /// A layer that is not what its digest says.
    Digest {
        /// Its name in the archive.
        member: String,
        /// What it should be.
        expected: Digest,
        /// What it is.
        actual: Digest,
    },
    /// The layers do not fit on the disk.
    NotEnoughSpace {
        /// The store.
        path: PathBuf,
        /// Bytes that are needed at least.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The store failed.
    Store(StoreError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Open { path, .. } => write!(f, "open {}", path.display()),
            LoadError::Archive(error) => error.fmt(f),
            LoadError::Layer { member, source } => write!(f, "load layer {member}: {source}"),
            LoadError::Digest { member, expected, actual } => write!(
                f,
                "load layer {member}: its content has digest {actual} and should have {expected}; the archive is \
                 damaged"
            ),
            LoadError::NotEnoughSpace { path, needed, free } => write!(
                f,
                "load into {}: {needed} bytes are needed and {free} are free; remove images with nodlet image rm",
                path.display()
            ),
            LoadError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LoadError::Open { source, .. } => Some(source),
            LoadError::Archive(error) => error.source(),
            LoadError::Layer { source, .. } => std::error::Error::source(source),
            LoadError::Store(error) => error.source(),
            LoadError::Digest { .. } | LoadError::NotEnoughSpace { .. } => None,
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

impl Store {
    /// Loads the images of an archive that passes once, such as standard input.
    pub fn load(
        &self,
        input: &mut dyn Read,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Loaded>, LoadError> {
        let mut loading = Loading::begin(self, options, progress)?;
        let result = loading.stream(input);
        loading.end(result)
    }

    /// Loads the images of an archive file, or of an OCI image layout that is a
    /// directory.
    pub fn load_path(
        &self,
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<Loaded>, LoadError> {
        let failed = |source: io::Error| LoadError::Open { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            let mut loading = Loading::begin(self, options, progress)?;
            let result = loading.seekable(&mut Directory::new(path));
            return loading.end(result);
        }
        // An archive that is compressed as a whole has no place to seek to.
        let plain =
            metadata.is_file() && matches!(peek(&file).map_err(failed)?.format, Format::Tar | Format::Other);
        let mut loading = Loading::begin(self, options, progress)?;
        let result = match plain {
            true => {
                TarFile::open(file).map_err(LoadError::from).and_then(|mut tar| loading.seekable(&mut tar))
            }
            false => {
                if metadata.is_file() {
                    io::Seek::rewind(&mut file).map_err(failed)?;
                }
                loading.stream(&mut file)
            }
        };
        loading.end(result)
    }
}

/// A layer that was met.
#[derive(Clone, Copy, Debug)]
struct Met {
    diff_id: Digest,
    blob: Digest,
}

/// A load under way, with the store locked against others.
struct Loading<'a> {
    store: &'a Store,
    options: &'a LoadOptions,
    progress: &'a mut dyn FnMut(Progress),
    _lock: Lock,
    /// Layers of the store by the digest of the blob they came as.
    known: HashMap<Digest, Digest>,
    /// Layers in staging, by diff ID.
    staged: HashMap<Digest, PathBuf>,
    files: usize,
    bytes_written: u64,
}

impl<'a> Loading<'a> {
    fn begin(
        store: &'a Store,
        options: &'a LoadOptions,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Result<Loading<'a>, LoadError> {
        let area = &store.writable;
        for directory in [area.layers(), area.records(), area.staging()] {
            store.content.create_directories(&directory)?;
        }
        let lock = lock(&area.directory)?;
        store.sweep()?;
        let mut known = HashMap::new();
        for area in [&store.baked, &store.writable] {
            for id in area.index()?.images.keys() {
                let Some(record) = whole(area, id)? else { continue };
                let blobs = record.blobs.iter().zip(&record.layers);
                known.extend(blobs.filter_map(|(blob, layer)| Some(((*blob)?, *layer))));
            }
        }
        Ok(Loading {
            store,
            options,
            progress,
            _lock: lock,
            known,
            staged: HashMap::new(),
            files: 0,
            bytes_written: 0,
        })
    }

    /// A load that failed takes away what it staged, as far as it can; what it
    /// cannot, the next load does.
    fn end(self, result: Result<Vec<Loaded>, LoadError>) -> Result<Vec<Loaded>, LoadError> {
        if result.is_err() {
            let _ = self.store.sweep();
        }
        result
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            platform: self.options.platform.clone().unwrap_or_else(Platform::of_this_machine),
            asked: self.options.platform.is_some(),
        }
    }

    /// Reads the manifests, then the layers that are missing.
    fn seekable(&mut self, archive: &mut dyn Seekable) -> Result<Vec<Loaded>, LoadError> {
        let planned = plan(archive, &self.wanted())?;
        let mut missing: HashMap<Digest, PlannedLayer> = HashMap::new();
        let mut order = Vec::new();
        for layer in planned.iter().flat_map(|image| &image.layers) {
            if self.store.layer_path(&layer.diff_id).is_some() {
                (self.progress)(Progress::Present { layer: layer.diff_id });
            } else if let Entry::Vacant(vacant) = missing.entry(layer.diff_id) {
                vacant.insert(layer.clone());
                order.push(layer.diff_id);
            }
        }
        let mut needed = 0u64;
        for layer in missing.values() {
            let (_, size) = archive.open(&layer.member)?.ok_or_else(|| absent(layer))?;
            needed = needed.saturating_add(size);
        }
        let free = self.store.content.free_space(&self.store.writable.directory)?;
        if needed > free {
            let path = self.store.writable.directory.clone();
            return Err(LoadError::NotEnoughSpace { path, needed, free });
        }
        for diff_id in order {
            let layer = &missing[&diff_id];
            let (mut stream, size) = archive.open(&layer.member)?.ok_or_else(|| absent(layer))?;
            let met = self.convert(&layer.member, &mut stream, size)?;
            verify(layer, met)?;
            self.known.insert(met.blob, diff_id);
        }
        self.commit(planned)
    }

    /// Reads all once, and finds out at the end what it was for.
    fn stream(&mut self, input: &mut dyn Read) -> Result<Vec<Loaded>, LoadError> {
        let archive = peek(input).map_err(ArchiveError::Read)?.decompressed();
        let mut members = Members::new(archive);
        let mut passed = Passed::default();
        let mut met: HashMap<String, Result<Met, LoadError>> = HashMap::new();
        while let Some(member) = members.next().map_err(ArchiveError::Tar)? {
            let Some(name) = cleaned(&member.path) else { continue };
            match member.kind {
                Kind::File => {}
                _ => {
                    passed.keep_link(name, &member)?;
                    continue;
                }
            }
            let mut stream = peek(&mut members).map_err(ArchiveError::Read)?;
            match stream.format {
                Format::Gzip | Format::Zstd | Format::Tar => {
                    let result = match self.expected(&name) {
                        Some((blob, diff_id)) => check_present(&name, &mut stream, blob, diff_id),
                        None => self.convert(&label(&member), &mut stream, member.size),
                    };
                    // What is wrong with a layer that nobody wants is nobody's concern.
                    match result {
                        Err(error @ LoadError::Store(_)) => return Err(error),
                        result => met.insert(name, result),
                    };
                    bounded(met.len())?;
                }
                Format::Other if member.size <= DOCUMENT_MAX => {
                    let mut bytes = Vec::with_capacity(member.size as usize);
                    stream.read_to_end(&mut bytes).map_err(ArchiveError::Read)?;
                    passed.keep_document(name, bytes)?;
                }
                Format::Other => {}
            }
        }
        // To the end, so that whoever writes into the pipe is not cut off.
        io::copy(&mut members.into_inner(), &mut io::sink()).map_err(ArchiveError::Read)?;
        let planned = plan(&mut passed, &self.wanted())?;
        for layer in planned.iter().flat_map(|image| &image.layers) {
            match passed.resolve(&layer.member).and_then(|name| met.get_mut(&name)) {
                Some(Ok(met)) => {
                    verify(layer, *met)?;
                    self.known.insert(met.blob, met.diff_id);
                }
                Some(failed) => {
                    return match std::mem::replace(failed, Err(absent(layer))) {
                        Err(error) => Err(error),
                        Ok(_) => Err(absent(layer)),
                    };
                }
                None if self.store.layer_path(&layer.diff_id).is_some() => {}
                None => return Err(absent(layer)),
            }
        }
        self.commit(planned)
    }

    /// The blob and the layer of the store that a member's name promises.
    fn expected(&self, name: &str) -> Option<(Digest, Digest)> {
        let file = name.rsplit('/').next()?;
        let digest = Digest::from_hex(file.strip_suffix(".tar").unwrap_or(file)).ok()?;
        let diff_id = self.known.get(&digest).copied().unwrap_or(digest);
        self.store.layer_path(&diff_id).map(|_| (digest, diff_id))
    }

    /// Writes one layer to staging.
    fn convert(&mut self, label: &str, stream: &mut dyn Read, total: u64) -> Result<Met, LoadError> {
        let path = self.store.writable.staging().join(format!("{}.erofs", self.files));
        self.files += 1;
        let mut file = self.store.content.create(&path)?;
        let free = self.store.content.free_space(&self.store.writable.directory)?;
        file.limit(free - free / RESERVED);
        let progress = std::cell::RefCell::new(&mut *self.progress);
        let told = Told {
            stream,
            bytes: 0,
            told: 0,
            tell: &mut |bytes| {
                (progress.borrow_mut())(Progress::Reading { layer: label.to_owned(), bytes, total });
            },
        };
        let mut blob = Digesting::new(told);
        let result = convert(&mut blob, file, LayerBounds::default(), &mut |text| {
            (progress.borrow_mut())(Progress::Warning(text));
        });
        let converted = match result {
            Ok(converted) => converted,
            Err(LayerError::Write(error)) => return Err(error.into()),
            Err(source) => {
                self.store.content.remove(&path)?;
                return Err(LoadError::Layer { member: label.to_owned(), source });
            }
        };
        let failed = |error| LoadError::Layer { member: label.to_owned(), source: LayerError::Read(error) };
        let (blob, _) = blob.finish().map_err(failed)?;
        let diff_id = converted.diff_id;
        self.bytes_written += converted.image.written;
        let present = self.store.layer_path(&diff_id).is_some();
        if present || self.staged.contains_key(&diff_id) {
            self.store.content.remove(&path)?;
            (self.progress)(Progress::Present { layer: diff_id });
        } else {
            self.staged.insert(diff_id, path);
            (self.progress)(Progress::Stored { layer: diff_id, bytes: converted.image.bytes });
        }
        Ok(Met { diff_id, blob })
    }

    /// Puts what is wanted in its place, and makes it exist with one rename.
    fn commit(&mut self, planned: Vec<Planned>) -> Result<Vec<Loaded>, LoadError> {
        let (store, area) = (self.store, &self.store.writable);
        let mut index = area.index()?;
        let before = index.clone();
        let baked = store.baked.index()?;
        let only = planned.len() == 1;
        let mut moved_layers = false;
        let mut records = Vec::new();
        let mut changed = Vec::new();
        for image in &planned {
            for layer in &image.layers {
                if let Some(staged) = self.staged.remove(&layer.diff_id) {
                    store.content.rename(&staged, &area.layer_path(&layer.diff_id))?;
                    moved_layers = true;
                }
            }
            let in_writable = whole(area, &image.id)?.is_some();
            let in_baked = whole(&store.baked, &image.id)?.is_some();
            if !in_writable && !in_baked {
                // Only what has been seen to be true: a manifest may say anything.
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
            store.content.sync_directory(&area.layers())?;
        }
        let any_record = !records.is_empty();
        for (id, bytes) in records {
            let staged = area.staging().join(format!("{}.json", id.hex()));
            self.bytes_written += bytes.len() as u64;
            store.content.replace(&staged, &area.record_path(&id), &bytes)?;
        }
        if any_record {
            store.content.sync_directory(&area.records())?;
        }
        if index != before {
            let bytes = index.encode();
            self.bytes_written += bytes.len() as u64;
            store.content.replace(&area.staging().join("index.json"), &area.index_path(), &bytes)?;
            store.content.sync_directory(&area.directory)?;
        }
        // Layers of images that were not wanted.
        for path in std::mem::take(&mut self.staged).into_values() {
            store.content.remove(&path)?;
        }
        let images = store.images()?;
        let mut loaded = Vec::new();
        for (planned, (names, changed)) in planned.iter().zip(changed) {
            let image = images.iter().find(|image| image.id == planned.id);
            let image = image.cloned().ok_or(StoreError::NoSuchImage { image: planned.id })?;
            let new =
                changed || before.images.get(&planned.id) != index.images.get(&planned.id) || moved_layers;
            loaded.push(Loaded { image, names, new, bytes_written: self.bytes_written });
        }
        Ok(loaded)
    }
}

/// An image's record, unless it is missing or damaged: then it is written anew.
fn whole(area: &Area, id: &Digest) -> Result<Option<Record>, StoreError> {
    match area.record(id) {
        Err(StoreError::Damaged { .. }) => Ok(None),
        result => result,
    }
}

fn absent(layer: &PlannedLayer) -> LoadError {
    ArchiveError::Missing { member: layer.member.clone() }.into()
}

/// A layer that the store has passes by; it must still be what its name says.
fn check_present(name: &str, stream: &mut dyn Read, blob: Digest, diff_id: Digest) -> Result<Met, LoadError> {
    let failed = |error| LoadError::Layer { member: name.to_owned(), source: LayerError::Read(error) };
    let (actual, _) = Digesting::new(stream).finish().map_err(failed)?;
    match actual == blob {
        true => Ok(Met { diff_id, blob }),
        false => Err(LoadError::Digest { member: name.to_owned(), expected: blob, actual }),
    }
}

fn verify(layer: &PlannedLayer, met: Met) -> Result<(), LoadError> {
    let member = || layer.member.clone();
    match layer.blob {
        Some(expected) if expected != met.blob => {
            return Err(LoadError::Digest { member: member(), expected, actual: met.blob });
        }
        Some(_) | None => {}
    }
    match layer.diff_id == met.diff_id {
        true => Ok(()),
        false => Err(LoadError::Digest { member: member(), expected: layer.diff_id, actual: met.diff_id }),
    }
}

/// Tells how far a stream has been read, now and then.
struct Told<'a> {
    stream: &'a mut dyn Read,
    bytes: u64,
    told: u64,
    tell: &'a mut dyn FnMut(u64),
}

/// The part of the free space that no layer may take: pods write, too.
const RESERVED: u64 = 16;

/// Bytes between two reports.
const TELL_EVERY: u64 = 1024 * 1024;

impl Read for Told<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.bytes += read as u64;
        if self.bytes - self.told >= TELL_EVERY || (read == 0 && self.told < self.bytes) {
            self.told = self.bytes;
            (self.tell)(self.bytes);
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests;
