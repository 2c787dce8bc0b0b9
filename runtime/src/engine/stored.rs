//! Continues when a change is on flash (`engine/changes.rs`): the registry and the core learn of it, and then the client
//! gets its reply.

use std::io;
use std::path::{Path, PathBuf};

use nodlet_core::error::causes;
use nodlet_core::facts::Observation;
use nodlet_core::spec::Uid;
use nodlet_host::error::chain;
use nodlet_registry::{Accepted, AwaitedImage, Handled, Status, Stop, Write};

use super::Engine;
use super::message::{Change, ClusterCall, ClusterManifest, Message, PodEnd, StoredChange};
use crate::api::Reply;
use crate::sources::{self, OwnChange, Stamp};

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
                Change::ClusterManifest(manifest) => self.write_cluster_manifest(manifest),
                Change::ClusterRemoval { paths, reply } => self.remove_cluster_manifests(paths, reply),
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
                    self.registry.not_written(&write);
                    self.save_allocations();
                    let (path, why) = (write.path.display(), chain(&error));
                    let status = Status::internal(format!("failed to write {path}: {why}"));
                    let _ = reply.try_send(Err(status));
                }
            },
            StoredChange::ClusterManifest { manifest, written } => {
                self.cluster_manifest_written(*manifest, written);
            }
            StoredChange::ClusterRemoval { paths, reply } => {
                paths.iter().for_each(|path| self.manifest_removed(path));
                self.reconcile();
                let _ = reply.try_send(());
            }
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
        stamp: Stamp,
        awaited: Vec<AwaitedImage>,
        reply: Reply<Accepted>,
    ) {
        self.manifest_reads.set_own(&write.path, OwnChange::Written(Some(stamp)));
        self.registry.written(&mut write);
        self.reconcile();
        self.publish_changed();
        let mut accepted = self.registry.reply_to(write);
        self.complete(&mut accepted.object);
        self.answer_with_images(accepted, awaited, reply);
    }

    /// Continues when a manifest of the cluster was written: the registry and the core learn of its objects.
    fn cluster_manifest_written(&mut self, manifest: ClusterManifest, written: io::Result<Option<Stamp>>) {
        let ClusterManifest { path, contents, reply, .. } = manifest;
        let _ = reply.try_send(written.is_ok());
        let stamp = match written {
            Ok(Some(stamp)) => stamp,
            // The registry knows the text, or will read it.
            Ok(None) => return,
            Err(error) => return log::error!("failed to write {}: {}", path.display(), chain(&error)),
        };
        let registered = &mut self.registry.sources;
        let has_room = match contents {
            Ok(objects) => sources::put(registered, &path, objects),
            Err(why) => {
                sources::refuse(registered, &path, why.to_string(), true);
                true
            }
        };
        self.manifest_reads.set_own(&path, OwnChange::Written(has_room.then_some(stamp)));
        self.reconcile();
    }

    fn manifest_removed(&mut self, path: &Path) {
        self.manifest_reads.set_own(path, OwnChange::Removed);
        self.shell.handling.release(Handled::object_of(path));
        self.registry.sources.remove(path);
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
            (PodEnd::Deleted { index, name, stop, replaced, reply }, removed) => {
                let removed = removed.map_err(|error| Status::internal(causes(&error)));
                let answer = removed.and_then(|()| match replaced {
                    None => self.stop(index, &name, stop),
                    Some((replaced, _)) if self.shell.pods.uid(index) == Some(replaced.clone()) => {
                        self.observe(Observation::Unwanted { uid, grace: None });
                        self.stop(index, &name, stop)
                    }
                    // It has ended meanwhile, and its replacement may have begun.
                    Some((_, object)) => {
                        self.observe(Observation::Unwanted { uid: uid.clone(), grace: stop.grace });
                        let index = self.node.index_of(&uid);
                        let begun = index.and_then(|index| self.stop(index, &name, stop).ok());
                        Ok(begun.unwrap_or(object))
                    }
                });
                let _ = reply.try_send(answer);
            }
            (PodEnd::OfCluster(end), Ok(())) => {
                end.removed.map(|reply| reply.try_send(true));
                self.observe(Observation::Unwanted { uid, grace: end.grace });
                self.publish_changed();
            }
            (PodEnd::OfCluster(mut end), Err(error)) => {
                end.removed.take().map(|reply| reply.try_send(false));
                log::error!("{}", causes(&error));
                if self.registry.desires(&uid) {
                    let wait = end.backoff.failed(nodlet_cluster::api::random());
                    self.shell.tasks.later(wait, Message::Cluster(ClusterCall::Change(Change::End(end))));
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
