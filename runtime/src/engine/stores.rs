//! The files of the agent on flash: images, records and manifests. The one thread of [`Storage`] writes them.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodlet_core::facts::Record;
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::Uid;
use nodlet_core::time::Anchor;
use nodlet_host::paths::Paths;
use nodlet_host::volume;
use nodlet_kernel::durable::{self, Headroom, Reserve, is_full};
use nodlet_registry::Wanted;
use nodlet_rootfs::Store as Images;
use serde_json::Value;

use crate::at_rest::AtRest;
use crate::records::{AdmittedWith, LoadError, Recorded, Records};
use crate::sources::Stamp;
use crate::storage_thread::Storage;

/// The stores on flash, and the thread that reads and writes them.
pub(super) struct Stores {
    pub(super) storage: Storage,
    pub(super) images: Arc<Images>,
    pub(super) records: Arc<Records>,
    /// Spare files for what must be written when the file system is full.
    reserve: Arc<Reserve>,
    /// Encrypts what is stored of the cluster.
    pub(super) at_rest: Arc<AtRest>,
    /// Records of pods that the core does not know yet.
    pub(super) recorded: RefCell<Recorded>,
    /// A record could not be read for lack of descriptors or memory. The loop has it read again.
    pub(super) is_short: Cell<bool>,
    /// Bindings of claims that are not known to be durable, and how often they have changed.
    bindings: RefCell<(u64, Option<Vec<u8>>)>,
    pub(super) unwritten: Unwritten,
}

/// The pods whose newest record could not be written or removed, with the reasons: `nodlet down` names them.
#[derive(Default)]
pub(super) struct Unwritten(RefCell<SortedMap<String, String>>);

impl Unwritten {
    /// Records how a write or a removal of the record of a pod ended.
    pub(super) fn note(&self, wanted: &Wanted, failure: Option<String>) {
        let pod = format!("{}/{}", wanted.pod.namespace, wanted.pod.name);
        match failure {
            Some(why) => drop(self.0.borrow_mut().insert(pod, why)),
            None => drop(self.0.borrow_mut().remove(&pod)),
        }
    }

    /// A line for each pod.
    pub(super) fn lines(&self) -> Vec<String> {
        self.0.borrow().iter().map(|(pod, why)| format!("{pod}: {why}")).collect()
    }
}

impl Stores {
    pub(super) fn new(
        storage: Storage,
        images: Arc<Images>,
        records: Records,
        reserve: Reserve,
        at_rest: Arc<AtRest>,
    ) -> Stores {
        let records = Arc::new(records);
        let (recorded, bindings, is_short) = (RefCell::default(), RefCell::default(), Cell::new(false));
        let (reserve, unwritten) = (Arc::new(reserve), Unwritten::default());
        Stores { storage, images, records, reserve, at_rest, recorded, is_short, bindings, unwritten }
    }

    /// Makes the missing spare files as far as there is room, one after another, between other jobs. Does nothing if
    /// none is missing.
    pub(super) fn replenish(&self) {
        if self.reserve.is_complete() {
            return;
        }
        let reserve = self.reserve.clone();
        // The job runs to its end by itself.
        drop(self.storage.run_in_parts(move || match reserve.replenish() {
            Ok(is_done) => is_done.then_some(()),
            Err(error) => {
                // A full disk is no news: it has the condition DiskPressure.
                if is_full(&error) {
                    log::debug!("failed to make a spare file: {error}")
                } else {
                    log::warn!("failed to make a spare file for a full disk: {error}")
                }
                Some(())
            }
        }));
    }

    /// Makes `bytes` the durable content of a file that clients, the cluster or the operator may have changed.
    pub(super) fn replace(
        &self,
        path: PathBuf,
        bytes: Vec<u8>,
    ) -> impl Future<Output = io::Result<()>> + use<> {
        let reserve = self.reserve.clone();
        self.storage.run(move || durable::replace(&path, &bytes, Some((&reserve, Headroom::Half))))
    }

    /// Makes `bytes` the durable content of a manifest. Returns the stamp by which the file is known again.
    pub(super) fn write_manifest(
        &self,
        path: PathBuf,
        bytes: Vec<u8>,
    ) -> impl Future<Output = io::Result<Option<Stamp>>> + use<> {
        let reserve = self.reserve.clone();
        self.storage.run(move || {
            durable::replace(&path, &bytes, Some((&reserve, Headroom::Half)))?;
            Ok(Stamp::of_file(&path))
        })
    }

    /// Makes `text` the durable content of a file about the cluster, encrypted if the board has keys. Writes nothing if
    /// that is so.
    pub(super) fn replace_sealed(
        &self,
        path: PathBuf,
        text: Vec<u8>,
    ) -> impl Future<Output = io::Result<()>> + use<> {
        let (at_rest, reserve) = (self.at_rest.clone(), self.reserve.clone());
        self.storage.run(move || {
            if nodlet_kernel::own_file::read(&path)
                .is_ok_and(|stored| at_rest.is_current(&path, stored, &text))
            {
                return Ok(());
            }
            durable::replace(&path, &at_rest.seal(&path, text)?, Some((&reserve, Headroom::Half)))
        })
    }

    /// Removes a file durably.
    pub(super) fn remove(&self, path: PathBuf) -> impl Future<Output = io::Result<()>> + use<> {
        self.storage.run(move || durable::remove(&path))
    }

    /// Removes the manifest of a pod durably. With `uid`, a file with the manifest of another pod stays, and `false` is
    /// returned: a pod of the same name may have got its manifest there meanwhile.
    pub(super) fn remove_manifest(
        &self,
        path: PathBuf,
        uid: Option<&Uid>,
    ) -> impl Future<Output = io::Result<bool>> + use<> {
        let (at_rest, uid) = (self.at_rest.clone(), uid.map(Uid::to_string));
        self.storage.run(move || match uid {
            Some(uid) if is_of_another(&at_rest, &path, &uid)? => Ok(false),
            Some(_) | None => durable::remove(&path).map(|()| true),
        })
    }

    /// Records that the bindings of claims have changed.
    pub(super) fn set_bindings(&self, bytes: Vec<u8>) {
        let mut bindings = self.bindings.borrow_mut();
        *bindings = (bindings.0 + 1, Some(bytes));
    }

    /// Makes the bindings of claims durable, unless they are.
    ///
    /// # Errors
    /// The files could not be written; another call tries again.
    pub(super) async fn save_bindings(&self, paths: &Paths) -> io::Result<()> {
        let (generation, bytes) = self.bindings.borrow().clone();
        let Some(bytes) = bytes else { return Ok(()) };
        self.replace(paths.bindings(), bytes).await?;
        let mut bindings = self.bindings.borrow_mut();
        if bindings.0 == generation {
            bindings.1 = None;
        }
        Ok(())
    }

    /// Writes a record durably. The result is reported as `Saved` or `SaveFailed`. On a full file system, a record with
    /// a terminal phase is written in a spare file: in the last one, too, if the pod is evicted, because its files are
    /// removed after that. Pods that end by themselves cannot use up the reserve.
    pub(super) fn save(
        &self,
        wanted: &Wanted,
        record: &Record,
        anchor: Anchor,
        files: PathBuf,
    ) -> impl Future<Output = io::Result<()>> + use<> {
        let (uid, priority) = (&wanted.pod.uid.0, wanted.priority.as_deref());
        let (path, bytes) = self.records.render(uid, record, &wanted.presets, priority, anchor);
        let reserve = self.reserve.clone();
        let is_terminal = record.phase.is_terminal();
        let is_evicted = record.is_evicted();
        self.storage.run(move || {
            let headroom = match (files.is_dir(), is_evicted) {
                (true, true) => Headroom::None,
                (true, false) => Headroom::Quarter,
                (false, _) => Headroom::Half,
            };
            durable::replace(&path, &bytes, is_terminal.then_some((&reserve, headroom)))
        })
    }

    /// The record of a pod that the core does not know yet.
    ///
    /// # Errors
    /// If the record is damaged, or cannot be read now.
    pub(super) fn load(&self, uid: &str) -> Result<Option<Box<Record>>, LoadError> {
        self.records.load(&self.recorded.borrow(), uid)
    }

    /// The presets and the priority with which a pod was admitted that the core does not know yet.
    ///
    /// # Errors
    /// If the record is damaged, or cannot be read now.
    pub(super) fn admitted(&self, uid: &str) -> Result<Option<AdmittedWith>, LoadError> {
        self.records.admitted(&self.recorded.borrow(), uid)
    }

    /// The ephemeral containers of a pod that the core does not know yet.
    ///
    /// # Errors
    /// If they are damaged, or cannot be read now.
    pub(super) fn ephemeral(&self, uid: &str) -> Result<Option<Value>, LoadError> {
        self.records.ephemeral(&self.recorded.borrow(), uid)
    }
}

/// Whether a file has the manifest of a pod, as the board writes it, with another UID.
///
/// # Errors
/// The file cannot be read.
fn is_of_another(at_rest: &AtRest, path: &Path, uid: &str) -> io::Result<bool> {
    let text = match nodlet_kernel::own_file::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        text => text?,
    };
    // A manifest that cannot be decrypted could not be read as that of another pod, either.
    let text = at_rest.open(path, text).unwrap_or_default();
    let found: Value = serde_json::from_slice(&text).unwrap_or_default();
    Ok(found["metadata"]["uid"].as_str().is_some_and(|found| found != uid))
}

/// Removes a directory of a pod with all files that its containers left, in parts, between which other jobs run. May
/// be interrupted and repeated.
pub(super) fn remove_tree(storage: &Storage, path: PathBuf) -> impl Future<Output = io::Result<()>> + use<> {
    let mut removal = volume::Removal::new(path);
    storage.run_in_parts(move || removal.part())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A removal that was delayed must not take the manifest of the next pod of the name.
    #[test]
    fn a_manifest_is_removed_only_if_it_is_that_of_the_pod() {
        let directory = std::env::temp_dir().join(format!("nodlet-removal-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("a directory");
        let stores = Stores::new(
            Storage::start().expect("a thread"),
            Arc::new(Images::open(&directory).expect("an empty store")),
            Records::new(directory.join("records")),
            Reserve::new(directory.join("reserve"), Vec::new()),
            Arc::new(AtRest::of(None)),
        );
        let path = directory.join("default_web-0.json");
        let manifest =
            |uid: &str| format!("{{\n  \"kind\": \"Pod\",\n  \"metadata\": {{ \"uid\": \"{uid}\" }}\n}}\n");
        let remove = |uid: Option<&str>| {
            let removed = smol::block_on(stores.remove_manifest(path.clone(), uid.map(Uid::from).as_ref()));
            assert_eq!(removed.expect("it can be read"), !path.exists());
            !path.exists()
        };
        for (content, uid, is_removed) in [
            (Some(manifest("new")), Some("old"), false),
            (Some(manifest("old")), Some("old"), true),
            (Some(manifest("new")), None, true),
            (Some("{".to_owned()), Some("old"), true),
            (None, Some("old"), true),
        ] {
            if let Some(content) = &content {
                std::fs::write(&path, content).expect("written");
            }
            assert_eq!(remove(uid), is_removed, "{content:?} {uid:?}");
        }
        std::fs::create_dir(&path).expect("a file that cannot be read");
        smol::block_on(stores.remove_manifest(path.clone(), Some(&Uid::from("old"))))
            .expect_err("unknown content");
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
