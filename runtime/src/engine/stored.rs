//! Continues when a change is on flash (`engine/changes.rs`): the registry and the core learn of it, and then the client
//! gets its reply.

use std::io;
use std::path::{Path, PathBuf};

use nodlet_core::error::causes;
use nodlet_core::facts::Observation;
use nodlet_core::spec::Uid;
use nodlet_host::error::chain;
use nodlet_registry::{Accepted, AwaitedImage, Status, Stop, Write};

use super::Engine;
use super::changes::Change;
use super::message::{Message, PodEnd, StoredChange};
use crate::api::Reply;
use crate::sources::{OwnChange, Stamp};

/// The manifest of a pod could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("failed to remove {path}")]
struct RemoveManifestError {
    path: PathBuf,
    source: io::Error,
}

impl Engine {
    /// Makes the waiting changes, until one of them has something to write.
    pub(super) fn make_changes(&mut self) {
        while let Some(change) = self.changes.next() {
            match change {
                Change::Request(request) => self.decide(*request),
                Change::End(end) => {
                    self.remove_pod(end.uid.clone(), end.path.clone(), PodEnd::OfCluster(end));
                }
                Change::Collection(index) => self.collect(index),
            }
        }
    }

    /// Continues when a change was written: the registry and the core learn of it, and the client gets its reply. Then
    /// a read of the manifests that waits for the end of the write begins, and the next change has its turn.
    pub(super) fn stored(&mut self, change: StoredChange) {
        if !matches!(change, StoredChange::PodRemoval { .. }) {
            self.changes.end_write();
        }
        match change {
            StoredChange::Manifest { write, awaited, reply, written } => match written {
                Ok(stamp) => self.manifest_written(*write, stamp, awaited, reply),
                Err(error) => {
                    let (path, why) = (write.path.display(), chain(&error));
                    let status = Status::internal(format!("failed to write {path}: {why}"));
                    let _ = reply.try_send(Err(status));
                }
            },
            StoredChange::Removal { object, path, reply, removed } => {
                let answer = match removed {
                    Ok(()) => {
                        self.manifest_removed(&path);
                        self.reconcile();
                        self.publish_changed();
                        Ok(object)
                    }
                    Err(error) => {
                        Err(Status::internal(format!("failed to remove {}: {error}", path.display())))
                    }
                };
                let _ = reply.try_send(answer);
            }
            StoredChange::PodRemoval { uid, path, end, removed } => self.pod_removed(uid, path, end, removed),
            StoredChange::Ephemeral { index, wanted, asked, written } => {
                self.ephemeral_written(index, &wanted, asked, written);
            }
        }
        self.begin_read();
        self.make_changes();
    }

    fn manifest_written(
        &mut self,
        mut write: Write,
        stamp: Option<Stamp>,
        awaited: Vec<AwaitedImage>,
        reply: Reply<Accepted>,
    ) {
        self.manifest_reads.set_own(&write.path, OwnChange::Written(stamp));
        self.registry.written(&mut write);
        self.reconcile();
        self.publish_changed();
        let mut accepted = self.registry.reply_to(write);
        self.complete(&mut accepted.object);
        self.answer_with_images(accepted, awaited, reply);
    }

    fn manifest_removed(&mut self, path: &Path) {
        self.manifest_reads.set_own(path, OwnChange::Removed);
        self.registry.sources.remove_written(path);
    }

    /// After a failure, the pod runs on, and whoever asked repeats the removal. If the manifest is gone nevertheless,
    /// because only the sync of its directory failed, the read that follows ends the pod within its own grace period.
    fn pod_removed(&mut self, uid: Uid, path: PathBuf, end: PodEnd, removed: io::Result<bool>) {
        let removed = match removed {
            Ok(is_gone) => {
                if is_gone {
                    self.manifest_removed(&path);
                }
                // Without ending the pod: only `end` has the grace period.
                self.reconcile();
                Ok(())
            }
            Err(source) => {
                self.read_sources();
                Err(RemoveManifestError { path, source })
            }
        };
        self.changes.end_write();
        match (end, removed) {
            (PodEnd::Deleted { index, name, stop, replacement, reply }, removed) => {
                let answer = removed.map_err(|error| Status::internal(causes(&error))).and_then(|()| {
                    if let Some(uid) = replacement {
                        // Also if the pod that it replaces has ended meanwhile.
                        self.observe(Observation::Unwanted { uid, grace: None });
                    }
                    self.stop(index, &name, stop)
                });
                let _ = reply.try_send(answer);
            }
            (PodEnd::OfCluster(end), Ok(())) => {
                self.observe(Observation::Unwanted { uid, grace: end.grace });
                self.publish_changed();
            }
            (PodEnd::OfCluster(mut end), Err(error)) => {
                log::error!("{}", causes(&error));
                if self.registry.desires(&uid) {
                    let wait = end.backoff.failed(nodlet_cluster::api::random());
                    self.shell.tasks.later(wait, Message::End(end));
                }
            }
            (PodEnd::Collected { index, name }, removed) => {
                self.changes.end_collection(index);
                match removed {
                    // Nothing of it runs that would need a grace period.
                    Ok(()) => drop(self.stop(index, &name, Stop::FORCED)),
                    Err(error) => log::error!("{}", causes(&error)),
                }
            }
        }
    }
}
