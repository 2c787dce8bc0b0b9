//! Unpacks an archive: writes its layers to the staging directory and reports what they belong to. Only this
//! module reads the archive itself.
//!
//! Archives are hostile, so this runs in a process of its own (`child`) and changes only files in the staging
//! directory. All that it knows of the store is in its [`Request`], and `load` checks its results.

use std::cmp::Ordering;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::{LoadError, Refusal};
use super::progress::Progress;
use super::source::Source;
use crate::archive::source::{
    Directory, Seekable, StreamedMembers, TarFile, bounded, cleaned, finished, label, read_document,
};
use crate::archive::{ArchiveError, DOCUMENT_MAX, Planned, PlannedLayer, Wanted, plan};
use crate::changes::Rebuilt;
use crate::compression::{Digesting, Format, peek};
use crate::content;
use crate::layer::{LayerBounds, LayerError, convert};
use crate::members::{Kind, Members};
use crate::reference::Digest;

/// One divided by this is the part of the free space that no load may take: pods write, too.
const RESERVED: u64 = 16;

/// The most warnings that are reported for one archive: a malicious archive could cause millions.
const WARNINGS_MAX: usize = 16;

/// Bytes between two progress reports.
const REPORT_EVERY: u64 = 1024 * 1024;

/// The request to the process that unpacks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) wanted: Wanted,
    /// The layers of the store, by the digest of the blob from which each was made.
    pub(super) known: HashMap<Digest, Digest>,
    /// The layers of the store.
    pub(super) present: BTreeSet<Digest>,
    /// The number of the first file to write; lower numbers are taken.
    pub(super) first: usize,
    /// The most bytes that may be written, if the store has a limit.
    pub(super) room: Option<u64>,
    /// Layers whose bases are passed with the archive, in this order.
    pub(super) rebuilt: Vec<Digest>,
}

/// The result of unpacking.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Unpacked {
    pub(super) images: Vec<Planned>,
    /// Blobs that were read completely, and the layers that they contain.
    pub(super) proven: HashMap<Digest, Digest>,
    /// Layers in the staging directory, and the names of their files.
    pub(super) staged: BTreeMap<Digest, String>,
    pub(super) bytes_written: u64,
}

/// Reads the archive, and writes the layers that the store lacks to `staging`.
pub(super) fn unpack(
    source: Source,
    request: &Request,
    staging: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Unpacked, LoadError> {
    let mut unpacking = Unpacking {
        request,
        staging,
        progress,
        reserved: content::free_space(staging)? / RESERVED,
        warnings: 0,
        proven: HashMap::new(),
        staged: BTreeMap::new(),
        files: request.first,
        bytes_written: 0,
        staged_bytes: 0,
        bases: source.bases,
    };
    let images = unpacking.file(source.archive)?;
    let Unpacking { proven, staged, bytes_written, .. } = unpacking;
    Ok(Unpacked { images, proven, staged, bytes_written })
}

/// A layer that was read.
#[derive(Clone, Copy, Debug)]
struct ReadLayer {
    diff_id: Digest,
    blob: Digest,
    /// The blob's length in bytes.
    bytes: u64,
}

struct Unpacking<'a> {
    request: &'a Request,
    staging: &'a Path,
    progress: &'a mut dyn FnMut(Progress),
    /// Bytes of the disk that are reserved for others.
    reserved: u64,
    warnings: usize,
    proven: HashMap<Digest, Digest>,
    staged: BTreeMap<Digest, String>,
    files: usize,
    bytes_written: u64,
    /// Bytes of the layers in `staged`.
    staged_bytes: u64,
    /// Bases of the layers of which only the changed blocks were sent.
    bases: BTreeMap<Digest, File>,
}

/// Free space for writing, in bytes.
#[derive(Clone, Copy)]
struct Space {
    free: u64,
    /// Whether the store's limit, rather than the disk, determines the free space.
    is_limited: bool,
}

impl Unpacking<'_> {
    fn file(&mut self, mut file: File) -> Result<Vec<Planned>, LoadError> {
        let failed = |source: io::Error| LoadError::from(ArchiveError::read(source));
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return self.seekable(&mut Directory::new(file.into()));
        }
        if !metadata.is_file() {
            return self.stream(&mut file);
        }
        // The file may have been read before, as standard input.
        file.rewind().map_err(failed)?;
        match peek(&file).map_err(failed)?.format {
            Format::Tar | Format::Other => self.seekable(&mut TarFile::open(file)?),
            // An archive that is compressed as a whole is not seekable.
            Format::Gzip | Format::Zstd | Format::Foreign(_) => {
                file.rewind().map_err(failed)?;
                self.stream(&mut file)
            }
        }
    }

    fn is_present(&self, layer: &Digest) -> bool {
        self.request.present.contains(layer)
    }

    /// Reads the manifests, then the missing layers.
    fn seekable(&mut self, archive: &mut dyn Seekable) -> Result<Vec<Planned>, LoadError> {
        let planned = plan(&mut |member| read_document(archive, member), &self.request.wanted)?;
        let mut missing: HashMap<Digest, PlannedLayer> = HashMap::new();
        let mut order = Vec::new();
        for layer in planned.iter().flat_map(|image| &image.layers) {
            if self.is_present(&layer.diff_id) {
                (self.progress)(Progress::Present { layer: layer.diff_id });
            } else if let Entry::Vacant(vacant) = missing.entry(layer.diff_id) {
                vacant.insert(layer.clone());
                order.push(layer.diff_id);
            }
        }
        let mut needed = 0u64;
        for layer in missing.values_mut() {
            if self.bases.contains_key(&layer.diff_id) {
                // The blob's properties in the manifest do not apply.
                layer.member = format!("{CHANGES}/{}", layer.diff_id.hex());
                (layer.blob, layer.size) = (None, None);
            }
            let (_, size) = archive.open(&layer.member)?.ok_or_else(|| absent(layer))?;
            check_size(layer, size)?;
            needed = needed.saturating_add(size);
        }
        self.require_space(needed)?;
        for diff_id in order {
            let layer = &missing[&diff_id];
            if let Some(base) = self.bases.remove(&diff_id) {
                self.rebuild(archive, layer, base)?;
                continue;
            }
            let (mut stream, size) = archive.open(&layer.member)?.ok_or_else(|| absent(layer))?;
            let met = self.convert(&layer.member, &mut stream, size)?;
            verify(layer, met)?;
            self.proven.insert(met.blob, diff_id);
        }
        Ok(planned)
    }

    /// Rebuilds a layer from its base and its changed blocks. An error that the changed blocks may have
    /// caused is distinguished, because the whole layer may be valid.
    fn rebuild(
        &mut self,
        archive: &mut dyn Seekable,
        layer: &PlannedLayer,
        base: File,
    ) -> Result<(), LoadError> {
        let (pieces, size) = archive.open(&layer.member)?.ok_or_else(|| absent(layer))?;
        let made = Rebuilt::new(base, pieces)
            .map_err(|error| LoadError::from(ArchiveError::read(error)))
            .and_then(|mut rebuilt| self.convert(&layer.member, &mut rebuilt, size))
            // The digest is not that of a blob, so it proves nothing about one.
            .and_then(|met| verify(layer, met));
        made.map_err(|error| match error {
            error @ (LoadError::Store(_) | LoadError::NotEnoughSpace { .. }) => error,
            error => LoadError::NotRebuilt { layer: layer.diff_id, cause: Refusal::of(&error) },
        })
    }

    /// Reads the whole stream once, and determines at the end which layers are wanted.
    fn stream(&mut self, input: &mut dyn Read) -> Result<Vec<Planned>, LoadError> {
        let archive = peek(input).map_err(ArchiveError::read)?;
        if let Some(problem) = archive.format.refusal() {
            return Err(ArchiveError::Foreign { problem }.into());
        }
        let mut members = Members::new(archive.decompressed());
        let mut passed = StreamedMembers::default();
        let mut met: HashMap<String, Result<ReadLayer, LoadError>> = HashMap::new();
        while let Some(member) = members.next().map_err(ArchiveError::Tar)? {
            let Some(name) = cleaned(&member.path) else { continue };
            match member.kind {
                Kind::File => {}
                _ => {
                    passed.keep_link(name, &member)?;
                    continue;
                }
            }
            let mut stream = peek(&mut members).map_err(ArchiveError::read)?;
            match stream.format {
                Format::Gzip | Format::Zstd | Format::Tar | Format::Foreign(_) => {
                    let result = match self.expected(&name) {
                        Some((blob, diff_id)) => check_present(&name, &mut stream, blob, diff_id),
                        None => {
                            self.require_space(member.size)?;
                            self.convert(&label(&member), &mut stream, member.size)
                        }
                    };
                    // Errors in unwanted layers do not matter.
                    match result {
                        Err(error @ (LoadError::Store(_) | LoadError::NotEnoughSpace { .. })) => {
                            return Err(error);
                        }
                        result => met.insert(name, result),
                    };
                    bounded(met.len())?;
                }
                Format::Other if member.size <= DOCUMENT_MAX => {
                    let mut bytes = Vec::with_capacity(member.size as usize);
                    stream.read_to_end(&mut bytes).map_err(ArchiveError::read)?;
                    passed.keep_document(name, bytes)?;
                }
                Format::Other => {}
            }
        }
        finished(members)?;
        let planned = plan(&mut |member| Ok(passed.document(member)), &self.request.wanted)?;
        for layer in planned.iter().flat_map(|image| &image.layers) {
            match passed.resolve(&layer.member).and_then(|name| met.get_mut(&name)) {
                Some(Ok(met)) => {
                    verify(layer, *met)?;
                    self.proven.insert(met.blob, met.diff_id);
                }
                Some(failed) => {
                    return match std::mem::replace(failed, Err(absent(layer))) {
                        Err(error) => Err(error),
                        Ok(_) => Err(absent(layer)),
                    };
                }
                None if self.is_present(&layer.diff_id) => {}
                None => return Err(absent(layer)),
            }
        }
        Ok(planned)
    }

    /// The blob digest and the present layer that a member's name denotes.
    fn expected(&self, name: &str) -> Option<(Digest, Digest)> {
        let file = name.rsplit('/').next()?;
        let digest = Digest::from_hex(file.strip_suffix(".tar").unwrap_or(file)).ok()?;
        let diff_id = self.request.known.get(&digest).copied().unwrap_or(digest);
        self.is_present(&diff_id).then_some((digest, diff_id))
    }

    /// The space for the next layer.
    fn space(&self) -> Result<Space, LoadError> {
        let of_disk = content::free_space(self.staging)?.saturating_sub(self.reserved);
        Ok(match self.request.room.map(|room| room.saturating_sub(self.staged_bytes)) {
            Some(free) if free < of_disk => Space { free, is_limited: true },
            Some(_) | None => Space { free: of_disk, is_limited: false },
        })
    }

    /// The error for this many bytes that do not fit.
    fn full(&self, Space { free, is_limited }: Space, needed: u64) -> LoadError {
        LoadError::not_enough_space(self.staging, needed, free, is_limited)
    }

    /// Checks, before anything is written, that there is space for the layer as stored in the archive. Its
    /// unpacked size is bounded while it is written.
    fn require_space(&self, needed: u64) -> Result<(), LoadError> {
        match self.space()? {
            space if needed > space.free => Err(self.full(space, needed)),
            _ => Ok(()),
        }
    }

    /// Writes one layer to staging.
    fn convert(&mut self, label: &str, stream: &mut dyn Read, total: u64) -> Result<ReadLayer, LoadError> {
        let name = format!("{}{LAYER_SUFFIX}", self.files);
        let path = self.staging.join(&name);
        self.files += 1;
        let space = self.space()?;
        let mut file = content::create(&path)?;
        file.limit(space.free);
        let progress = std::cell::RefCell::new(&mut *self.progress);
        let reporting = ReportingReader {
            stream,
            bytes: 0,
            reported: 0,
            report: &mut |bytes| {
                (progress.borrow_mut())(Progress::Reading { layer: label.to_owned(), bytes, total });
            },
        };
        let mut blob = Digesting::new(reporting);
        let warnings = &mut self.warnings;
        let result = convert(&mut blob, file, LayerBounds::default(), &mut |text| {
            *warnings += 1;
            let text = match (*warnings).cmp(&WARNINGS_MAX) {
                Ordering::Less => text,
                Ordering::Equal => "further warnings are omitted".to_owned(),
                Ordering::Greater => return,
            };
            (progress.borrow_mut())(Progress::Warning(text));
        });
        let converted = match result {
            Ok(converted) => converted,
            Err(LayerError::Write(error)) if error.is_limit() => {
                return Err(self.full(space, space.free.saturating_add(1)));
            }
            Err(LayerError::Write(error)) => return Err(error.into()),
            Err(source) => {
                content::remove(&path)?;
                let member = label.to_owned();
                // Damage is the better reason: a blob of another digest may be anything.
                return Err(match (digest_in(label), blob.finish()) {
                    (Some(expected), Ok((actual, _))) if actual != expected => {
                        LoadError::Digest { member, expected, actual }
                    }
                    _ => LoadError::Layer { member, source },
                });
            }
        };
        let failed = |error| LoadError::Layer { member: label.to_owned(), source: LayerError::read(error) };
        let (blob, bytes) = blob.finish().map_err(failed)?;
        let diff_id = converted.diff_id;
        self.bytes_written += converted.image.written;
        if self.is_present(&diff_id) || self.staged.contains_key(&diff_id) {
            content::remove(&path)?;
            (self.progress)(Progress::Present { layer: diff_id });
        } else {
            self.staged.insert(diff_id, name);
            self.staged_bytes += converted.image.written.min(converted.image.bytes);
            (self.progress)(Progress::Stored { layer: diff_id, bytes: converted.image.bytes });
        }
        Ok(ReadLayer { diff_id, blob, bytes })
    }
}

/// The number in a file name that [`unpack`] assigns; `None` for any other name.
pub(super) fn layer_number(name: &str) -> Option<usize> {
    let number = name.strip_suffix(LAYER_SUFFIX)?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok()).flatten()
}

/// The directory in an archive that has the changed blocks of layers.
pub(crate) const CHANGES: &str = "changes";

const LAYER_SUFFIX: &str = ".erofs";

/// The digest that a blob of an OCI image layout should have, by its name.
fn digest_in(label: &str) -> Option<Digest> {
    Digest::from_hex(label.strip_prefix("blobs/sha256/")?).ok()
}

fn absent(layer: &PlannedLayer) -> LoadError {
    ArchiveError::Missing { member: layer.member.clone() }.into()
}

/// Reads a layer that the store already has, and verifies that it has the expected digest.
fn check_present(
    name: &str,
    stream: &mut dyn Read,
    blob: Digest,
    diff_id: Digest,
) -> Result<ReadLayer, LoadError> {
    let failed = |error| LoadError::Layer { member: name.to_owned(), source: LayerError::read(error) };
    let (actual, bytes) = Digesting::new(stream).finish().map_err(failed)?;
    if actual == blob {
        Ok(ReadLayer { diff_id, blob, bytes })
    } else {
        Err(LoadError::Digest { member: name.to_owned(), expected: blob, actual })
    }
}

/// Checks the blob's length against the descriptor's: a descriptor with a wrong length is not trusted at all.
fn check_size(layer: &PlannedLayer, actual: u64) -> Result<(), LoadError> {
    match layer.size {
        Some(expected) if expected != actual => {
            Err(LoadError::Size { member: layer.member.clone(), expected, actual })
        }
        Some(_) | None => Ok(()),
    }
}

fn verify(layer: &PlannedLayer, met: ReadLayer) -> Result<(), LoadError> {
    let member = || layer.member.clone();
    check_size(layer, met.bytes)?;
    match layer.blob {
        Some(expected) if expected != met.blob => {
            return Err(LoadError::Digest { member: member(), expected, actual: met.blob });
        }
        Some(_) | None => {}
    }
    if layer.diff_id == met.diff_id {
        Ok(())
    } else {
        Err(LoadError::Digest { member: member(), expected: layer.diff_id, actual: met.diff_id })
    }
}

/// A reader that regularly reports the progress.
struct ReportingReader<'a> {
    stream: &'a mut dyn Read,
    bytes: u64,
    reported: u64,
    report: &'a mut dyn FnMut(u64),
}

impl Read for ReportingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.bytes += read as u64;
        if self.bytes - self.reported >= REPORT_EVERY || (read == 0 && self.reported < self.bytes) {
            self.reported = self.bytes;
            (self.report)(self.bytes);
        }
        Ok(read)
    }
}
