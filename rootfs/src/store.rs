//! The images on this board: what there is, who uses it, and its removal.
//!
//! ```text
//! <root>/var/lib/nodlet/images/           and, read-only below it, <root>/usr/lib/nodlet/images/
//!   index.json                            which images there are, under which names
//!   images/<config digest>.json           one image: its configuration and its layers
//!   layers/<diff ID>.erofs                one layer: a file system
//!   staging/                              a load under way
//! <root>/run/nodlet/leases/<image>/<pod>  who uses an image, and its name for people; gone with the
//!                                         boot, as the pods are
//! ```
//!
//! Only what `index.json` names exists: a load or a removal takes place in the
//! one rename that replaces it, and what is named by nothing is swept by the
//! next. Images in the read-only store are never copied and never removed;
//! `load` adds to the writable one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::config::{Document, ImageConfig};
use crate::content::{Content, ContentError, is_in_memory};
use crate::platform::Platform;
use crate::reference::{Digest, Reference};
use nix::fcntl::{Flock, FlockArg};

mod area;
mod before;
mod usage;

use area::Entry;
pub(crate) use area::{Area, Index, Record, Whole};
pub use before::Before;
pub use usage::Usage;

/// The fewest digits that name an image by the beginning of its ID.
const ID_PREFIX_MIN: usize = 4;

/// The images below one root directory.
#[derive(Debug)]
pub struct Store {
    pub(crate) writable: Area,
    pub(crate) baked: Area,
    pub(crate) content: Content,
    leases: PathBuf,
}

/// One image, ready to be mounted.
#[derive(Clone, Debug)]
pub struct Image {
    /// The digest of its configuration.
    pub id: Digest,
    /// Normalised names, as `docker.io/library/nginx:latest`.
    pub names: Vec<String>,
    /// `docker.io/library/nginx@sha256:…`
    pub repo_digests: Vec<String>,
    /// The digest of its manifest; docker archives of old have none.
    pub manifest_digest: Option<Digest>,
    /// Diff IDs, lowest layer first.
    pub layers: Vec<Digest>,
    /// What it was made for.
    pub platform: Platform,
    /// Bytes on this board.
    pub size: u64,
    /// When it was made, as its maker wrote it.
    pub created: Option<String>,
    /// How it wants to be run.
    pub config: ImageConfig,
}

/// What a removal took away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Names that no longer lead to the image.
    pub names: Vec<String>,
    /// The image, if that was its last name.
    pub image: Option<Digest>,
    /// Layers that no other image uses.
    pub layers: Vec<Digest>,
    /// The read-only store, if the image is part of it and so remains.
    pub remains: Option<PathBuf>,
}

/// A failure of the store itself.
#[derive(Debug)]
pub enum StoreError {
    /// An operation on its files.
    Content(ContentError),
    /// A file of the store that cannot be understood.
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of the store in a form that is not known yet.
    Newer {
        /// The file.
        path: PathBuf,
        /// The version of its form.
        version: u32,
    },
    /// An index of more names than are read again.
    Full {
        /// The index.
        path: PathBuf,
    },
    /// No such image, so it cannot be leased.
    NoSuchImage {
        /// The image asked for.
        image: Digest,
    },
    /// A holder's name that is no file name.
    BadHolder {
        /// The name.
        holder: String,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Content(error) => error.fmt(f),
            StoreError::Damaged { path, problem } => {
                write!(f, "read {}: {problem}; load its images again", path.display())
            }
            StoreError::Newer { path, version } => {
                write!(
                    f,
                    "read {}: version {version} was written by a newer nodlet; use that one",
                    path.display()
                )
            }
            StoreError::Full { path } => write!(
                f,
                "write {}: it would have more names than are taken; remove images with nodlet image rm",
                path.display()
            ),
            StoreError::NoSuchImage { image } => write!(f, "use image {image}: it is not on this board"),
            StoreError::BadHolder { holder } => {
                write!(f, "lease an image to \"{}\": must be a file name", holder.escape_debug())
            }
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StoreError::Content(error) => error.source(),
            StoreError::Damaged { .. }
            | StoreError::Newer { .. }
            | StoreError::Full { .. }
            | StoreError::NoSuchImage { .. }
            | StoreError::BadHolder { .. } => None,
        }
    }
}

impl From<ContentError> for StoreError {
    fn from(error: ContentError) -> StoreError {
        StoreError::Content(error)
    }
}

/// Why an image was not removed.
#[derive(Debug)]
pub enum RemoveError {
    /// No image of this name or ID.
    NotFound {
        /// What was asked for.
        name: String,
    },
    /// The beginning of an ID that several images have.
    Ambiguous {
        /// What was asked for.
        name: String,
        /// The IDs that begin so.
        images: Vec<Digest>,
    },
    /// Pods use it.
    InUse {
        /// What was asked for.
        name: String,
        /// The pods.
        holders: Vec<String>,
    },
    /// It is part of the device's own image.
    BakedIn {
        /// What was asked for.
        name: String,
        /// The read-only store.
        path: PathBuf,
    },
    /// The store failed.
    Store(StoreError),
}

impl fmt::Display for RemoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoveError::NotFound { name } => write!(f, "remove image {name}: no such image"),
            RemoveError::Ambiguous { name, images } => {
                let images: Vec<String> = images.iter().map(Digest::to_string).collect();
                write!(f, "remove image {name}: several images begin so: {}", images.join(", "))
            }
            RemoveError::InUse { name, holders } => {
                write!(f, "remove image {name}: in use by {}; delete the pods first", holders.join(", "))
            }
            RemoveError::BakedIn { name, path } => {
                write!(f, "remove image {name}: it is part of the device image, in {}", path.display())
            }
            RemoveError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RemoveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RemoveError::Store(error) => error.source(),
            RemoveError::NotFound { .. }
            | RemoveError::Ambiguous { .. }
            | RemoveError::InUse { .. }
            | RemoveError::BakedIn { .. } => None,
        }
    }
}

impl<E: Into<StoreError>> From<E> for RemoveError {
    fn from(error: E) -> RemoveError {
        RemoveError::Store(error.into())
    }
}

/// Held while something is changed that others must not change at once.
pub(crate) type Lock = Flock<fs::File>;

pub(crate) fn lock(directory: &Path) -> Result<Lock, ContentError> {
    let failed = |source: io::Error| ContentError::new("lock", directory, source);
    let file = fs::File::open(directory).map_err(failed)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| failed(errno.into()))
}

/// None if somebody else holds it, or there is no such directory.
fn try_lock(directory: &Path) -> Option<Lock> {
    let file = fs::File::open(directory).ok()?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}

impl Store {
    /// The store below `root`. Nothing is created until an image is loaded.
    pub fn open(root: &Path) -> Result<Store, StoreError> {
        let store = Store::with_content(root, Content::default());
        for area in [&store.writable, &store.baked] {
            match area.index() {
                // Whoever asks for an image is told; pods that run need none, and a load mends it.
                Ok(_) | Err(StoreError::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(store)
    }

    /// Whether there is a directory of it, be it without an image.
    pub fn exists(&self) -> bool {
        self.writable.directory.is_dir() || self.baked.directory.is_dir()
    }

    pub(crate) fn with_content(root: &Path, content: Content) -> Store {
        // Whoever changes directory later must not take the store along.
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        Store {
            writable: Area { directory: root.join("var/lib/nodlet/images") },
            baked: Area { directory: root.join("usr/lib/nodlet/images") },
            content,
            leases: root.join("run/nodlet/leases"),
        }
    }

    /// All images that are whole, by ID.
    pub fn images(&self) -> Result<Vec<Image>, StoreError> {
        let entries = self.entries()?.into_iter();
        let images = entries.filter_map(|(id, entry)| match self.image(&id, entry) {
            // One damaged image must not hide the others; whoever asks for it is told.
            Err(StoreError::Damaged { .. }) => None,
            result => result.transpose(),
        });
        images.collect()
    }

    /// What images are called, whole or not: nothing of the images themselves is read.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.entries()?.into_values().flat_map(|entry| entry.names).collect())
    }

    /// The image that a Pod's `image` names: by name and tag, by name and
    /// digest of its manifest, or by its ID.
    pub fn find(&self, reference: &Reference) -> Result<Option<Image>, StoreError> {
        let id = reference.as_image_id();
        let name = reference.to_string();
        let by_digest = reference.digest().map(|digest| format!("{}@{digest}", reference.name()));
        let (entries, damage) = self.undamaged_entries()?;
        let found = entries.into_iter().find(|(image, entry)| match &by_digest {
            Some(by_digest) => entry.repo_digests.contains(by_digest),
            None => entry.names.contains(&name) || Some(*image) == id,
        });
        match found {
            Some((id, entry)) => self.image(&id, entry),
            None => damage.map_or(Ok(None), Err),
        }
    }

    /// What both indexes say, the writable one first.
    fn entries(&self) -> Result<BTreeMap<Digest, Entry>, StoreError> {
        let (writable, mut entries) = (self.writable.index()?, self.baked.index()?.images);
        let taken: BTreeSet<&String> = writable.images.values().flat_map(|entry| &entry.names).collect();
        entries.values_mut().for_each(|entry| entry.names.retain(|name| !taken.contains(name)));
        for (id, own) in &writable.images {
            let entry = entries.entry(*id).or_default();
            entry.names.extend(own.names.iter().cloned());
            entry.repo_digests.extend(own.repo_digests.iter().cloned());
        }
        Ok(entries)
    }

    /// What both indexes say; of a writable one that is damaged, the damage. Images of the read-only store are
    /// there whatever became of the other.
    fn undamaged_entries(&self) -> Result<(BTreeMap<Digest, Entry>, Option<StoreError>), StoreError> {
        match self.entries() {
            Err(damage @ StoreError::Damaged { .. }) => Ok((self.baked.index()?.images, Some(damage))),
            entries => Ok((entries?, None)),
        }
    }

    /// An image's record, from wherever it is whole.
    fn record(&self, id: &Digest) -> Result<Option<Record>, StoreError> {
        match self.writable.record(id) {
            Ok(Some(record)) => Ok(Some(record)),
            Ok(None) => self.baked.record(id),
            Err(error) => self.baked.record(id)?.map(Some).ok_or(error),
        }
    }

    /// An image whose files are all there; none otherwise, so that a layer lost
    /// to a bad card makes its image absent, to be loaded anew.
    fn image(&self, id: &Digest, entry: Entry) -> Result<Option<Image>, StoreError> {
        let Some(record) = self.record(id)? else { return Ok(None) };
        let sizes = record
            .layers
            .iter()
            .map(|layer| self.writable.layer_size(layer).or_else(|| self.baked.layer_size(layer)));
        let Some(size) = sizes.sum::<Option<u64>>() else { return Ok(None) };
        let document = Document::parse(record.config.as_bytes()).map_err(|error| StoreError::Damaged {
            path: self.writable.record_path(id),
            problem: error.to_string(),
        })?;
        Ok(Some(Image {
            id: *id,
            names: entry.names.into_iter().collect(),
            repo_digests: entry.repo_digests.into_iter().collect(),
            manifest_digest: record.manifest,
            layers: record.layers,
            platform: document.platform,
            size: size + record.config.len() as u64,
            created: document.created,
            config: document.config,
        }))
    }

    /// Where a layer's file is, if it is here.
    pub fn layer_path(&self, layer: &Digest) -> Option<PathBuf> {
        [&self.writable, &self.baked]
            .into_iter()
            .find(|area| area.layer_size(layer).is_some())
            .map(|area| area.layer_path(layer))
    }

    /// All layers that are here, of whatever image.
    pub(crate) fn layers(&self) -> Result<BTreeSet<Digest>, StoreError> {
        let mut layers = BTreeSet::new();
        for area in [&self.writable, &self.baked] {
            let names = names_in(&area.layers())?.into_iter();
            let found = names.filter_map(|name| Digest::from_hex(name.strip_suffix(".erofs")?).ok());
            layers.extend(found.filter(|layer| area.layer_size(layer).is_some()));
        }
        Ok(layers)
    }

    /// Directories to watch for a new image: `index.json` is renamed into them,
    /// which inotify tells as IN_MOVED_TO. They may not exist yet.
    pub fn watch_paths(&self) -> Vec<PathBuf> {
        vec![self.writable.directory.clone(), self.baked.directory.clone()]
    }

    /// Whether what is loaded lies in memory, where the kernel counts it as its writer's.
    pub fn is_in_memory(&self) -> bool {
        is_in_memory(&self.writable.directory)
    }

    /// Notes that `holder`, a pod, uses the image. Until it is released or the
    /// machine boots, the image is not removed; whoever tries is told `name`.
    pub fn lease(&self, image: &Digest, holder: &str, name: &str) -> Result<(), StoreError> {
        if holder.is_empty() || holder.len() > 255 || holder.contains(['/', '\0']) || holder.starts_with('.')
        {
            return Err(StoreError::BadHolder { holder: holder.to_owned() });
        }
        let _lock = self.lock_leases()?;
        let (entries, damage) = self.undamaged_entries()?;
        if !entries.contains_key(image) {
            return Err(damage.unwrap_or(StoreError::NoSuchImage { image: *image }));
        }
        let directory = self.leases.join(image.hex());
        let path = directory.join(holder);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&directory)
            .and_then(|()| fs::write(&path, name))
            .map_err(|source| ContentError::new("create", &path, source))?;
        Ok(())
    }

    /// Notes that `holder` uses no image any more.
    pub fn release(&self, holder: &str) -> Result<(), StoreError> {
        if !self.leases.is_dir() {
            return Ok(());
        }
        let _lock = self.lock_leases()?;
        for directory in names_in(&self.leases)? {
            let directory = self.leases.join(directory);
            let path = directory.join(holder);
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(ContentError::new("remove", &path, source).into()),
            }
            // Stays while others hold the image.
            let _ = fs::remove_dir(&directory);
        }
        Ok(())
    }

    /// The names of those who use the image.
    fn holders(&self, image: &Digest) -> Result<Vec<String>, StoreError> {
        let directory = self.leases.join(image.hex());
        let mut names: Vec<String> = names_in(&directory)?
            .into_iter()
            .map(|holder| {
                fs::read_to_string(directory.join(&holder))
                    .ok()
                    .filter(|name| !name.is_empty())
                    .unwrap_or(holder)
            })
            .collect();
        names.sort();
        Ok(names)
    }

    /// Leases are taken and removals decided under this lock, which is on a
    /// tmpfs: a pod's start must not wait for a load to end.
    fn lock_leases(&self) -> Result<Lock, StoreError> {
        // Who can open it can lock it, and hold up every start.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.leases)
            .map_err(|source| ContentError::new("create directory", &self.leases, source))?;
        Ok(lock(&self.leases)?)
    }

    /// Takes a name off its image, and with the last name the image and all
    /// layers that no other uses. An ID stands for all names of its image.
    pub fn remove(&self, name_or_id: &str) -> Result<Removed, RemoveError> {
        let not_found = || RemoveError::NotFound { name: name_or_id.to_owned() };
        if !self.writable.directory.is_dir() && self.baked.index()?.images.is_empty() {
            return Err(not_found());
        }
        let baked_in =
            || RemoveError::BakedIn { name: name_or_id.to_owned(), path: self.baked.directory.clone() };
        let _lock = match self.writable.directory.is_dir() {
            true => Some(lock(&self.writable.directory)?),
            false => None,
        };
        let mut index = self.writable.index()?;
        let image = self.named(name_or_id)?.ok_or_else(not_found)?;
        let (id, names) = match image {
            Named::ByName(id, name) => (id, BTreeSet::from([name])),
            Named::ById(id) => {
                (id, index.images.get(&id).map(|entry| entry.names.clone()).unwrap_or_default())
            }
        };
        let entry = index.images.get_mut(&id).ok_or_else(baked_in)?;
        if !names.iter().all(|name| entry.names.contains(name)) {
            return Err(baked_in());
        }
        entry.names.retain(|name| !names.contains(name));
        let gone = entry.names.is_empty();
        let unused = || match self.holders(&id)? {
            holders if gone && !holders.is_empty() => {
                Err(RemoveError::InUse { name: name_or_id.to_owned(), holders })
            }
            _ => Ok(()),
        };
        // Asked again below, when nobody can take a lease; now, to write nothing in vain.
        unused()?;
        let mut removed = Removed { names: names.into_iter().collect(), ..Removed::default() };
        let staged = self.writable.staging().join("index.json");
        self.content.create_directories(&self.writable.staging())?;
        self.content.remove(&staged)?;
        if gone {
            index.images.remove(&id);
        }
        // Written before the lock that pods' starts wait for is taken.
        let mut file = self.content.create(&staged)?;
        file.write_at(&self.writable.encode(&index)?, 0)?;
        file.sync()?;
        let leases = self.lock_leases()?;
        if let Err(error) = unused() {
            self.content.remove(&staged)?;
            return Err(error);
        }
        self.content.rename(&staged, &self.writable.index_path())?;
        self.content.sync_directory(&self.writable.directory)?;
        drop(leases);
        if gone {
            removed.layers = self.sweep(&index)?;
            match self.baked.index()?.images.contains_key(&id) {
                true => removed.remains = Some(self.baked.directory.clone()),
                false => removed.image = Some(id),
            }
        }
        Ok(removed)
    }

    fn named(&self, name_or_id: &str) -> Result<Option<Named>, RemoveError> {
        let entries = self.entries()?;
        if let Ok(reference) = Reference::parse(name_or_id) {
            let name = reference.to_string();
            if let Some((id, _)) = entries.iter().find(|(_, entry)| entry.names.contains(&name)) {
                return Ok(Some(Named::ByName(*id, name)));
            }
            let name = reference.digest().map(|digest| format!("{}@{digest}", reference.name()));
            let by_digest =
                |entry: &Entry| name.as_ref().is_some_and(|name| entry.repo_digests.contains(name));
            if let Some((id, _)) = entries.iter().find(|(_, entry)| by_digest(entry)) {
                return Ok(Some(Named::ById(*id)));
            }
        }
        let prefix = name_or_id.strip_prefix("sha256:").unwrap_or(name_or_id);
        if prefix.len() < ID_PREFIX_MIN {
            return Ok(None);
        }
        let matching: Vec<Digest> = entries.into_keys().filter(|id| id.hex().starts_with(prefix)).collect();
        match matching.as_slice() {
            [] => Ok(None),
            [id] => Ok(Some(Named::ById(*id))),
            _ => Err(RemoveError::Ambiguous { name: name_or_id.to_owned(), images: matching }),
        }
    }

    /// Removes what a load or a removal left that was interrupted; not while
    /// another is under way, which does so itself.
    pub fn tidy(&self) -> Result<(), StoreError> {
        let (Some(_store), Some(_staging)) =
            (try_lock(&self.writable.directory), try_lock(&self.writable.staging()))
        else {
            return Ok(());
        };
        self.sweep(&self.writable.index()?).map(drop)
    }

    /// Removes files that no image in the index uses: what an interrupted load
    /// or removal left. Called with the store locked. Gives the layers removed.
    pub(crate) fn sweep(&self, index: &Index) -> Result<Vec<Digest>, StoreError> {
        let mut keep: BTreeSet<PathBuf> = BTreeSet::new();
        let mut unknown = false;
        for id in index.images.keys() {
            keep.insert(self.writable.record_path(id));
            match self.record(id) {
                Ok(record) => {
                    let layers = record.map(|record| record.layers).unwrap_or_default();
                    keep.extend(layers.iter().map(|layer| self.writable.layer_path(layer)));
                }
                Err(StoreError::Damaged { .. }) => unknown = true,
                Err(error) => return Err(error),
            }
        }
        let mut layers = Vec::new();
        for directory in [self.writable.staging(), self.writable.records(), self.writable.layers()] {
            for name in names_in(&directory)? {
                let path = directory.join(&name);
                // Any layer may be a damaged image's; loading it again tells.
                if keep.contains(&path) || (unknown && directory == self.writable.layers()) {
                    continue;
                }
                // None of ours, such as lost+found.
                if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
                    continue;
                }
                self.content.remove(&path)?;
                layers.extend(name.strip_suffix(".erofs").and_then(|hex| Digest::from_hex(hex).ok()));
            }
        }
        Ok(layers)
    }
}

enum Named {
    ByName(Digest, String),
    ById(Digest),
}

/// The names in a directory, sorted; none if it does not exist.
fn names_in(directory: &Path) -> Result<Vec<String>, StoreError> {
    let failed = |source: io::Error| ContentError::new("list", directory, source);
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error).into()),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests;
