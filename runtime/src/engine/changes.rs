//! Changes of what the board wants that are written to flash: manifests of clients and of the cluster, their removal,
//! ephemeral containers, and the removal of finished pods that are too many, as by the pod garbage collector of a
//! control plane. There is one at a time, so that each is decided with the result of the one before it; the one thread
//! of `storage_thread` writes them one after another anyway.
//!
//! ```text
//! request ─► Change ─► decided by the registry ─► a write ─► StoredChange ─► sources ─► reconcile ─► the reply
//!            waits while another one is written                `engine/stored.rs`
//! ```

use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;

use async_channel::Sender;
use nodlet_core::facts::PodIndex;
use nodlet_core::pod::PodState;
use nodlet_core::sorted::SortedSet;
use nodlet_core::spec::Uid;
use nodlet_kernel::durable;
use nodlet_registry::{Accepted, Handled, Wanted, Write, Written, ephemeral_of};
use serde_json::Value;

use super::Engine;
use super::message::{Change, ClusterManifest, Message, PodEnd, StoredChange};
use crate::api::{EphemeralRequest, Reply};

/// Changes that may wait, of those that clients ask for.
const WAITING: usize = 64;

/// The changes that wait, and the one that is being written.
#[derive(Default)]
pub(super) struct Changes {
    is_writing: bool,
    waiting: VecDeque<Change>,
    /// The pod whose manifest is being removed: only the end of the removal knows its grace period.
    removing: Option<Uid>,
    /// The finished pods whose manifests are being removed.
    collected: SortedSet<PodIndex>,
}

impl Changes {
    /// Whether clients have to wait before they ask for more. Ephemeral containers that the cluster adds count as requests;
    /// other changes of the cluster and collections do not: they are bounded.
    pub(super) fn is_full(&self) -> bool {
        let requests = self.waiting.iter().filter(|change| matches!(change, Change::Request(_)));
        requests.count() >= WAITING
    }

    /// Whether a change is being written.
    pub(super) fn is_writing(&self) -> bool {
        self.is_writing
    }

    /// Lets a change wait for its turn.
    pub(super) fn push(&mut self, change: Change) {
        match change {
            Change::Collection(index) if !self.collected.insert(index) => {}
            change => self.waiting.push_back(change),
        }
    }

    /// The next change, unless another one is being written.
    pub(super) fn next(&mut self) -> Option<Change> {
        if self.is_writing {
            return None;
        }
        loop {
            match self.waiting.pop_front()? {
                // What followed the cluster has ended: the board may have left it.
                Change::ClusterManifest(manifest) if manifest.reply.is_closed() => {}
                change => return Some(change),
            }
        }
    }

    /// Records that a change was written, or could not be.
    pub(super) fn end_write(&mut self) {
        (self.is_writing, self.removing) = (false, None);
    }

    /// Records that the collection of a pod has ended.
    pub(super) fn end_collection(&mut self, index: PodIndex) {
        self.collected.remove(&index);
    }

    /// The pod whose manifest is being removed.
    pub(super) fn removing(&self) -> Option<&Uid> {
        self.removing.as_ref()
    }
}

impl Engine {
    /// Reports in the loop what becomes of a write or a removal.
    fn store<T: 'static>(
        &mut self,
        job: impl Future<Output = T> + 'static,
        stored: impl FnOnce(T) -> StoredChange + 'static,
    ) {
        self.changes.is_writing = true;
        self.shell.tasks.then(job, move |result| Message::Stored(Box::new(stored(result))));
    }

    /// Writes the manifest of a client's object.
    pub(super) fn write(&mut self, mut write: Box<Write>, reply: Reply<Accepted>) {
        self.shell.handling.release(Handled::object_of(&write.path));
        let awaited = match &write.of {
            Written::Pod(pod) => self.awaited_images(pod),
            Written::Definition(_) => Vec::new(),
        };
        // What was allocated for the object is on flash before the object, and before the reply.
        if let Some(bytes) = self.registry.allocations() {
            self.shell.stores.set_allocations(bytes);
        }
        let (shell, path, text) = (self.shell.clone(), write.path.clone(), std::mem::take(&mut write.text));
        let job = async move {
            shell.stores.save_allocations(&shell.paths).await?;
            shell.stores.write_manifest(path, text).await
        };
        self.store(job, move |written| StoredChange::Manifest { write, awaited, reply, written });
    }

    /// Removes the manifest of an object that is no pod.
    pub(super) fn remove(&mut self, object: Value, path: PathBuf, reply: Reply<Value>) {
        let job = self.shell.stores.remove(path.clone());
        self.store(job, move |removed| StoredChange::Removal { object, path, reply, removed });
    }

    /// Writes a manifest of the cluster.
    pub(super) fn write_cluster_manifest(&mut self, mut manifest: Box<ClusterManifest>) {
        let text = std::mem::take(&mut manifest.text);
        let job = self.shell.stores.replace_sealed(manifest.path.clone(), text);
        self.store(job, move |written| StoredChange::ClusterManifest { manifest, written });
    }

    /// Removes manifests of the cluster. What cannot be removed is removed with the next list of its pods.
    pub(super) fn remove_cluster_manifests(&mut self, mut paths: Vec<PathBuf>, reply: Sender<()>) {
        let job = self.shell.stores.storage.run(move || {
            paths.retain(|path| durable::discard(path).is_ok());
            paths
        });
        self.store(job, move |paths| StoredChange::ClusterRemoval { paths, reply });
    }

    /// Removes the manifest of a pod, which then ends. The manifest goes first: a power cut does not bring the pod back.
    /// If the cluster has deleted the pod, another pod of its name may have its manifest there, which stays. A client
    /// means the pod of the name: a change of it that waits for its image goes, too.
    pub(super) fn remove_pod(&mut self, uid: Uid, path: PathBuf, end: PodEnd) {
        let stays = matches!(end, PodEnd::OfCluster(_)) && self.registry.sources.is_of_others(&path, &uid);
        let removed = (!stays).then(|| self.shell.stores.remove(path.clone()));
        let job = async move {
            match removed {
                Some(removed) => removed.await.map(|()| true),
                None => Ok(false),
            }
        };
        self.changes.removing = Some(uid.clone());
        self.store(job, move |removed| StoredChange::PodRemoval { uid, path, end, removed });
    }

    /// Writes the ephemeral containers of a pod.
    pub(super) fn write_ephemeral(&mut self, index: PodIndex, wanted: Rc<Wanted>, asked: EphemeralRequest) {
        let path = self.shell.stores.records.ephemeral_path_of(&wanted.pod.uid.0);
        let job = self.shell.stores.replace(path, ephemeral_of(&wanted).to_string().into_bytes());
        self.store(job, move |written| StoredChange::Ephemeral { index, wanted, asked, written });
    }

    /// Removes the finished pods that exceed the number that is kept, of those that the registry allows to remove.
    pub(super) fn collect_terminated(&mut self) {
        let Some(kept) = self.shell.config.terminated_pod_gc_threshold else { return };
        if self.shell.config.down {
            return;
        }
        let may_go = |pod: &PodState| {
            let pods = self.shell.pods.borrow();
            pods.get(&pod.index()).is_some_and(|entry| self.registry.may_collect(&entry.wanted))
        };
        for index in self.node.terminated_beyond(kept, may_go) {
            self.changes.push(Change::Collection(index));
        }
    }

    /// Removes the manifest of a finished pod. A failure is only logged, and no action of the core, because it concerns
    /// the desired state: the next change of a finished pod chooses again which pods are too many.
    pub(super) fn collect(&mut self, index: PodIndex) {
        let Some(wanted) = self.shell.pods.wanted(index) else { return self.changes.end_collection(index) };
        let (namespace, name) = (&wanted.pod.namespace, wanted.pod.name.to_string());
        log::info!("{namespace}/{name}: removed: too many finished pods");
        self.remove_pod(wanted.pod.uid.clone(), wanted.source.clone(), PodEnd::Collected { index, name });
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nodlet_registry::{Owner, SourceFile};

    use super::*;
    use crate::api::Request;

    #[test]
    fn only_requests_of_clients_let_clients_wait() {
        let mut changes = Changes::default();
        for index in 0..WAITING as u32 {
            changes.push(Change::Collection(PodIndex(index)));
            changes.push(Change::Collection(PodIndex(index)));
        }
        assert_eq!(changes.waiting.len(), WAITING, "a pod is collected once");
        assert!(!changes.is_full());
        for _ in 0..WAITING {
            assert!(!changes.is_full());
            let (reply, _) = Reply::new();
            changes.push(Change::Request(Box::new(Request::Measure { reply })));
        }
        assert!(changes.is_full());
    }

    #[test]
    fn a_manifest_of_a_cluster_that_the_board_has_left_is_not_written() {
        let manifest = |name: &str| {
            let (reply, answer) = async_channel::bounded(1);
            let path = PathBuf::from(name);
            let text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n".to_vec();
            let contents = Ok(SourceFile::parse(&path, Owner::Cluster, &text, "node").expect("it is valid"));
            (Change::ClusterManifest(Box::new(ClusterManifest { path, text, contents, reply })), answer)
        };
        let mut changes = Changes::default();
        // `leave` ends the task that follows the cluster, which awaits the write.
        let ((left, awaited), (joined, _awaited)) = (manifest("left"), manifest("joined"));
        drop(awaited);
        changes.push(left);
        changes.push(joined);
        let Some(Change::ClusterManifest(next)) = changes.next() else { panic!("one of them is awaited") };
        assert_eq!(next.path, Path::new("joined"));
        assert!(changes.next().is_none());
    }
}
