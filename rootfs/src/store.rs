//! The images on this board: their files, their use by pods, and their removal.
//!
//! ```text
//! <root>/var/lib/nodlet/images/           and, read-only below it, <root>/usr/lib/nodlet/images/
//!   index.json                            the images and their names
//!   images/<config digest>.json           one image: its configuration and its layers
//!   layers/<diff ID>.erofs                one layer: a file system
//!   staging/                              the files of a running load
//! <root>/run/nodlet/leases/<image>/<pod>  a pod's use of an image, and the image's name for people;
//!                                         lost at a reboot, as the pods are
//! ```
//!
//! Only what `index.json` names exists. A load or a removal takes effect in the one rename that replaces it,
//! and the next one sweeps files to which nothing refers. Images in the read-only store are never copied and
//! never removed; `load` adds to the writable one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::config::{Document, ImageConfig};
use crate::content::{self, ContentError};
use crate::platform::Platform;
use crate::reference::{Digest, Reference};
use nodlet_kernel::own_file;

mod area;
pub(crate) mod before;
mod directory;
mod error;
pub(crate) mod usage;

use area::Entry;
pub(crate) use area::{Area, Index, IndexState, Record};
pub(crate) use directory::{Lock, lock};
use directory::{is_locked, names_in, try_lock};
pub use error::{RemoveError, StoreError};

/// The fewest digits of an ID that identify an image.
const ID_PREFIX_MIN: usize = 4;

/// The images below one root directory.
#[derive(Debug)]
pub struct Store {
    pub(crate) writable: Area,
    pub(crate) baked: Area,
    leases: PathBuf,
}

/// One image that can be mounted.
#[derive(Clone, Debug)]
pub struct Image {
    /// The digest of the image's configuration.
    pub id: Digest,
    /// Normalised names such as `docker.io/library/nginx:latest`.
    pub names: Vec<String>,
    /// Names with manifest digests, such as `docker.io/library/nginx@sha256:…`.
    pub repo_digests: Vec<String>,
    /// The digest of the image's manifest; `None` for old docker archives.
    pub manifest_digest: Option<Digest>,
    /// The diff IDs of the layers, lowest first, each once: see [`each_once`].
    pub layers: Vec<Digest>,
    /// The platform that the image is for.
    pub platform: Platform,
    /// The image's size on this board, in bytes.
    pub size: u64,
    /// The creation time, as the image's author wrote it.
    pub created: Option<String>,
    /// The configuration of the image.
    pub config: ImageConfig,
}

/// Returns the layers without all but the last copy of each. Builders add the same layer repeatedly, above all the empty
/// one; overlayfs does not mount a layer twice (`ELOOP`), and what the last copy has or hides, it has or hides whatever the
/// earlier ones did.
fn each_once(layers: &[Digest]) -> Vec<Digest> {
    let is_last = |(place, layer): &(usize, &Digest)| !layers[place + 1..].contains(layer);
    layers.iter().enumerate().filter(is_last).map(|(_, layer)| *layer).collect()
}

/// The result of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Names that no longer refer to the image.
    pub names: Vec<String>,
    /// The image, if its last name was removed.
    pub image: Option<Digest>,
    /// Removed layers, which no other image uses.
    pub layers: Vec<Digest>,
    /// The path of the read-only store, if the image is part of it and so remains.
    pub remains: Option<PathBuf>,
}

impl Store {
    /// Opens the store below `root`. Nothing is created until an image is loaded.
    pub fn open(root: &Path) -> Result<Store, StoreError> {
        let store = Store::below(root);
        for area in [&store.writable, &store.baked] {
            match area.index() {
                // Damage is reported when an image is looked up; running pods need no index, and a load
                // repairs it.
                Ok(_) | Err(StoreError::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(store)
    }

    /// Whether the store has a directory, even without images.
    pub fn exists(&self) -> bool {
        self.writable.directory.is_dir() || self.baked.directory.is_dir()
    }

    fn below(root: &Path) -> Store {
        // An absolute path, so that a later change of the working directory does not affect the store.
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        Store {
            writable: Area { directory: root.join("var/lib/nodlet/images") },
            baked: Area { directory: root.join("usr/lib/nodlet/images") },
            leases: root.join("run/nodlet/leases"),
        }
    }

    /// All complete images, by ID.
    pub fn images(&self) -> Result<Vec<Image>, StoreError> {
        let entries = self.entries()?.into_iter();
        let images = entries.filter_map(|(id, entry)| match self.image(&id, entry) {
            // One damaged image must not hide the others; looking it up reports the damage.
            Err(StoreError::Damaged { .. }) => None,
            result => result.transpose(),
        });
        images.collect()
    }

    /// The names of all images, complete or not. Reads only the indexes.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.entries()?.into_values().flat_map(|entry| entry.names).collect())
    }

    /// Finds the image that a Pod's `image` names: by name and tag, by name and manifest digest, or by ID.
    pub fn find(&self, reference: &Reference) -> Result<Option<Image>, StoreError> {
        let id = reference.as_image_id();
        let name = reference.to_string();
        let by_digest = reference.digest().map(|digest| format!("{}@{digest}", reference.name()));
        let (mut entries, damage) = self.undamaged_entries()?;
        // An archive may name its image like the ID of another one: the ID takes precedence.
        let by_id = id.and_then(|id| entries.remove_entry(&id));
        let found = by_id.or_else(|| {
            entries.into_iter().find(|(_, entry)| match &by_digest {
                Some(by_digest) => entry.repo_digests.contains(by_digest),
                None => entry.names.contains(&name),
            })
        });
        match found {
            Some((id, entry)) => self.image(&id, entry),
            None => damage.map_or(Ok(None), Err),
        }
    }

    /// The entries of both indexes; the writable one takes precedence.
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

    /// The entries of both indexes. If the writable one is damaged, returns those of the read-only store, and
    /// the damage: images of the read-only store exist whatever happened to the other.
    fn undamaged_entries(&self) -> Result<(BTreeMap<Digest, Entry>, Option<StoreError>), StoreError> {
        match self.entries() {
            Err(damage @ StoreError::Damaged { .. }) => Ok((self.baked.index()?.images, Some(damage))),
            entries => Ok((entries?, None)),
        }
    }

    /// Reads an image's record from the first area in which it is intact.
    fn record(&self, id: &Digest) -> Result<Option<Record>, StoreError> {
        match self.writable.record(id) {
            Ok(Some(record)) => Ok(Some(record)),
            Ok(None) => self.baked.record(id),
            Err(error) => self.baked.record(id)?.map(Some).ok_or(error),
        }
    }

    /// The image, if all its files exist, else `None`: an image that lost a layer to a bad card counts as
    /// missing, to be loaded again.
    fn image(&self, id: &Digest, entry: Entry) -> Result<Option<Image>, StoreError> {
        let Some(record) = self.record(id)? else { return Ok(None) };
        let layers = each_once(&record.layers);
        let sizes = layers
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
            layers,
            platform: document.platform,
            size: size + record.config.len() as u64,
            created: document.created,
            config: document.config,
        }))
    }

    /// The path of a layer's file, if the layer exists.
    pub fn layer_path(&self, layer: &Digest) -> Option<PathBuf> {
        [&self.writable, &self.baked]
            .into_iter()
            .find(|area| area.layer_size(layer).is_some())
            .map(|area| area.layer_path(layer))
    }

    /// All existing layers, of any image.
    pub(crate) fn layers(&self) -> Result<BTreeSet<Digest>, StoreError> {
        let mut layers = BTreeSet::new();
        for area in [&self.writable, &self.baked] {
            let names = names_in(&area.layers())?.into_iter();
            let found = names.filter_map(|name| Digest::from_hex(name.strip_suffix(".erofs")?).ok());
            layers.extend(found.filter(|layer| area.layer_size(layer).is_some()));
        }
        Ok(layers)
    }

    /// Directories to watch for new images: `index.json` is renamed into them, which inotify reports as
    /// IN_MOVED_TO. They may not exist yet.
    pub fn watch_paths(&self) -> Vec<PathBuf> {
        vec![self.writable.directory.clone(), self.baked.directory.clone()]
    }

    /// Whether loaded images are in memory, which the kernel charges to the process that writes them.
    pub fn is_in_memory(&self) -> bool {
        nodlet_kernel::durable::is_in_memory(&self.writable.directory)
    }

    /// Records that `holder`, a pod, uses the image. The image cannot be removed until the lease is released
    /// or the machine reboots; the error of a removal contains `name`.
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
        own_file::clear_directory(&directory)
            .and_then(|_| fs::DirBuilder::new().recursive(true).mode(0o755).create(&directory))
            .and_then(|()| own_file::clear_file(&path))
            .and_then(|_| own_file::write(&path, name))
            .map_err(|source| ContentError::new("create", &path, source))?;
        Ok(())
    }

    /// Records that `holder` no longer uses any image.
    pub fn release(&self, holder: &str) -> Result<(), StoreError> {
        // The removal of a pod goes on without leases.
        if !own_file::is_directory(&self.leases).is_ok_and(|there| there) {
            return Ok(());
        }
        let _lock = self.lock_leases()?;
        for directory in names_in(&self.leases)? {
            let directory = self.leases.join(directory);
            let path = directory.join(holder);
            // Special files are nobody's leases, and must not hold up the removal of a pod.
            let cleared = own_file::clear_directory(&directory).and_then(|_| own_file::clear_file(&path));
            let removed = own_file::if_exists(cleared.and_then(|_| fs::remove_file(&path)))
                .map_err(|source| ContentError::new("remove", &path, source))?;
            if removed.is_some() {
                // The directory remains while others use the image.
                let _ = fs::remove_dir(&directory);
            }
        }
        Ok(())
    }

    /// The names of the pods that use the image.
    fn holders(&self, image: &Digest) -> Result<Vec<String>, StoreError> {
        self.check_leases()?;
        let directory = self.leases.join(image.hex());
        let mut names: Vec<String> = names_in(&directory)?
            .into_iter()
            .map(|holder| {
                own_file::read_to_string(&directory.join(&holder))
                    .ok()
                    .filter(|name| !name.is_empty())
                    .unwrap_or(holder)
            })
            .collect();
        names.sort();
        Ok(names)
    }

    /// Takes the lock under which leases are taken and removals are decided. It is on a tmpfs, apart from
    /// the lock of loads: the start of a pod must not wait for the end of a load.
    fn lock_leases(&self) -> Result<Lock, StoreError> {
        self.check_leases()?;
        // Any process that can open the file can lock it and delay every start.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.leases)
            .map_err(|source| ContentError::new("create directory", &self.leases, source))?;
        Ok(lock(&self.leases)?)
    }

    /// Refuses what is in the place of the directory of leases. It is not made anew here, since images of running pods could
    /// be removed then: an agent that starts makes it, and takes the leases of running pods again.
    fn check_leases(&self) -> Result<(), StoreError> {
        match fs::symlink_metadata(&self.leases) {
            Ok(found) if !found.is_dir() => {
                let advice = "it is not a directory: restart the agent, which makes it anew with the images of running pods";
                let source = io::Error::new(io::ErrorKind::InvalidInput, advice);
                Err(ContentError::new("use", &self.leases, source).into())
            }
            _ => Ok(()),
        }
    }

    /// Removes a name of an image, and with the last name the image and all layers that no other image uses.
    /// An ID stands for all names of its image.
    pub fn remove(&self, name_or_id: &str) -> Result<Removed, RemoveError> {
        let not_found = || RemoveError::NotFound { name: name_or_id.to_owned() };
        if !self.writable.directory.is_dir() && self.baked.index()?.images.is_empty() {
            return Err(not_found());
        }
        let baked_in =
            || RemoveError::BakedIn { name: name_or_id.to_owned(), path: self.baked.directory.clone() };
        let _lock =
            if self.writable.directory.is_dir() { Some(lock(&self.writable.directory)?) } else { None };
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
        // Checked again below under the lock of leases; this first check avoids needless writes.
        unused()?;
        let mut removed = Removed { names: names.into_iter().collect(), ..Removed::default() };
        let staged = self.writable.staging().join("index.json");
        content::create_directories(&self.writable.staging())?;
        content::remove(&staged)?;
        if gone {
            index.images.remove(&id);
        }
        // Written before the lock is taken for which starts of pods wait.
        let mut file = content::create(&staged)?;
        file.write_at(&self.writable.encode(&index)?, 0)?;
        file.sync()?;
        let leases = self.lock_leases()?;
        if let Err(error) = unused() {
            content::remove(&staged)?;
            return Err(error);
        }
        content::rename(&staged, &self.writable.index_path())?;
        content::sync_directory(&self.writable.directory)?;
        drop(leases);
        if gone {
            removed.layers = self.sweep(&index)?;
            if self.baked.index()?.images.contains_key(&id) {
                removed.remains = Some(self.baked.directory.clone())
            } else {
                removed.image = Some(id)
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

    /// Whether a load or a removal takes place now, for whose end another one waits.
    pub fn is_busy(&self) -> bool {
        is_locked(&self.writable.directory)
    }

    /// Removes leftovers of an interrupted load or removal. Does nothing while another one is running, which
    /// does this itself.
    pub fn tidy(&self) -> Result<(), StoreError> {
        let (Some(_store), Some(_staging)) =
            (try_lock(&self.writable.directory), try_lock(&self.writable.staging()))
        else {
            return Ok(());
        };
        self.sweep(&self.writable.index()?).map(drop)
    }

    /// Removes files that no image in the index uses: leftovers of an interrupted load or removal. The store
    /// must be locked. Returns the removed layers.
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
                // Any layer may belong to a damaged image; loading that image again will tell.
                if keep.contains(&path) || (unknown && directory == self.writable.layers()) {
                    continue;
                }
                // A foreign directory, such as lost+found.
                if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
                    continue;
                }
                content::remove(&path)?;
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

#[cfg(test)]
mod tests;
