//! The files of the agent on flash: images, records and manifests. The one thread of [`Storage`] writes them.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodlet_core::facts::Record;
use nodlet_core::sorted::SortedMap;
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
pub(super) struct Flash {
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
    /// Bindings of claims.
    bindings: Unsaved,
    /// Addresses and ports of Services.
    allocations: Unsaved,
    pub(super) unwritten: Unwritten,
}

/// The content of a file that is not known to be durable, how often it has changed, and whether a write has failed since
/// the last call of [`Unsaved::take_failed`].
#[derive(Default)]
struct Unsaved(RefCell<(u64, Option<Vec<u8>>)>, Cell<bool>);

impl Unsaved {
    fn set(&self, bytes: Vec<u8>) {
        let mut unsaved = self.0.borrow_mut();
        *unsaved = (unsaved.0 + 1, Some(bytes));
    }

    /// Makes the content durable with `write`, unless it is.
    async fn save(&self, write: impl AsyncFnOnce(Vec<u8>) -> io::Result<()>) -> io::Result<()> {
        let (generation, bytes) = self.0.borrow().clone();
        let Some(bytes) = bytes else { return Ok(()) };
        if let Err(error) = write(bytes).await {
            self.1.set(true);
            return Err(error);
        }
        let mut unsaved = self.0.borrow_mut();
        if unsaved.0 == generation {
            unsaved.1 = None;
        }
        Ok(())
    }

    /// Whether a write has failed and no other one has been tried since; the caller tries again.
    fn take_failed(&self) -> bool {
        self.1.take() && self.0.borrow().1.is_some()
    }
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

impl Flash {
    pub(super) fn new(
        storage: Storage,
        images: Arc<Images>,
        records: Records,
        reserve: Reserve,
        at_rest: Arc<AtRest>,
    ) -> Flash {
        let records = Arc::new(records);
        let (recorded, is_short) = (RefCell::default(), Cell::new(false));
        let (bindings, allocations) = (Unsaved::default(), Unsaved::default());
        let (reserve, unwritten) = (Arc::new(reserve), Unwritten::default());
        Flash {
            storage,
            images,
            records,
            reserve,
            at_rest,
            recorded,
            is_short,
            bindings,
            allocations,
            unwritten,
        }
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

    /// Makes `bytes` the durable content of a client's manifest. Returns the stamp by which the file is known again.
    pub(super) fn write_manifest(
        &self,
        path: PathBuf,
        bytes: Vec<u8>,
    ) -> impl Future<Output = io::Result<Stamp>> + use<> {
        let reserve = self.reserve.clone();
        self.storage.run(move || replace_stamped(&path, &bytes, &reserve))
    }

    /// Makes `text` the durable content of a file about the cluster, encrypted if the board has keys. Returns the stamp by
    /// which the file is known again; `None`, and writes nothing, if the file has this content already.
    pub(super) fn replace_sealed(
        &self,
        path: PathBuf,
        text: Vec<u8>,
    ) -> impl Future<Output = io::Result<Option<Stamp>>> + use<> {
        let (at_rest, reserve) = (self.at_rest.clone(), self.reserve.clone());
        self.storage.run(move || {
            if nodlet_kernel::own_file::read(&path)
                .is_ok_and(|stored| at_rest.is_current(&path, stored, &text))
            {
                return Ok(None);
            }
            replace_stamped(&path, &at_rest.seal(&path, text)?, &reserve).map(Some)
        })
    }

    /// Removes a file durably.
    pub(super) fn remove(&self, path: PathBuf) -> impl Future<Output = io::Result<()>> + use<> {
        self.storage.run(move || durable::remove(&path))
    }

    /// Records that the bindings of claims have changed.
    pub(super) fn set_bindings(&self, bytes: Vec<u8>) {
        self.bindings.set(bytes);
    }

    /// Makes the bindings of claims durable, unless they are.
    ///
    /// # Errors
    /// The files could not be written; another call tries again.
    pub(super) async fn save_bindings(&self, paths: &Paths) -> io::Result<()> {
        self.bindings.save(async |bytes| self.replace(paths.bindings(), bytes).await).await
    }

    /// Records that the addresses and ports of Services have changed.
    pub(super) fn set_allocations(&self, bytes: Vec<u8>) {
        self.allocations.set(bytes);
    }

    /// Whether the last write of the addresses and ports of Services failed; the caller tries again.
    pub(super) fn take_failed_allocations(&self) -> bool {
        self.allocations.take_failed()
    }

    /// Makes the addresses and ports of Services durable, unless they are.
    ///
    /// # Errors
    /// The file could not be written; another call tries again.
    pub(super) async fn save_allocations(&self, paths: &Paths) -> io::Result<()> {
        self.allocations.save(async |bytes| self.replace(paths.service_allocations(), bytes).await).await
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

/// Replaces a manifest durably. Returns the stamp of the new file.
fn replace_stamped(path: &Path, bytes: &[u8], reserve: &Reserve) -> io::Result<Stamp> {
    durable::replace_identified(path, bytes, Some((reserve, Headroom::Half)), Stamp::of_file)
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

    #[test]
    fn a_failed_write_is_tried_again_once() {
        let unsaved = Unsaved::default();
        unsaved.set(vec![1]);
        assert!(!unsaved.take_failed());
        let refused = async |_| Err(io::Error::other("the disk is full"));
        smol::block_on(unsaved.save(refused)).expect_err("the write fails");
        assert!(unsaved.take_failed() && !unsaved.take_failed());
        smol::block_on(unsaved.save(refused)).expect_err("the write fails again");
        smol::block_on(unsaved.save(async |_| Ok(()))).expect("the write succeeds");
        assert!(!unsaved.take_failed());
    }
}
