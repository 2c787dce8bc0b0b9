//! The end of the pods of a Node that was deleted in the cluster, before the board registers another one.
//!
//! A kubelet registers only when it starts, so that the pods of a deleted Node are collected, and their controllers make
//! others. A board must not be lost for ever, so it does both itself: it deletes the pods in the cluster, which are not
//! Ready from then on, ends them, and registers after a pause. The UID of the Node is stored, so that this is completed
//! after a restart of the agent, and begins when a board was offline while its Node was deleted.

use std::path::PathBuf;
use std::time::Instant;

use nodlet_cluster::api::{self, Api, JSON};
use nodlet_cluster::pods::{self, Retirement};
use nodlet_cluster::schedule::may_register;
use nodlet_core::sorted::SortedSet;
use serde_json::Value;

use super::super::message::ClusterCall;
use super::{Follower, SessionEnd, cluster_network, tolerate};
use crate::storage_thread::Storage;

/// Pods in one answer of the server, each of which may be large.
const PAGE: usize = 10;

/// The UID of the Node with which the board registered; empty if there is none.
pub(super) async fn stored(storage: &Storage, path: PathBuf) -> String {
    let read = storage.run(move || nodlet_kernel::own_file::read_to_string(&path)).await;
    read.unwrap_or_default().trim().to_owned()
}

impl Follower {
    /// Records the UID of the Node with which the board has registered.
    pub(super) async fn store_node(&mut self, uid: String) -> Result<(), SessionEnd> {
        if uid != self.node_uid {
            let path = self.shell.paths.cluster_node();
            let stored = self.shell.stores.replace(path.clone(), format!("{uid}\n").into_bytes()).await;
            if let Err(error) = stored {
                log::error!("failed to write {}: {error}", path.display());
            }
        }
        (self.node_uid, self.gone_since) = (uid, None);
        Ok(())
    }

    /// Takes a step at ending the pods of a Node that was deleted. Returns whether all have ended, and the pause is over.
    pub(super) async fn retire(&mut self, api: &mut Api) -> Result<bool, SessionEnd> {
        let now = Instant::now();
        let since = match self.gone_since {
            Some(since) => since,
            None => {
                log::warn!(
                    "node {} was deleted in the cluster: its pods end here, and then the board registers again",
                    self.credentials.node
                );
                *self.gone_since.insert(now)
            }
        };
        let mut deleted = SortedSet::new();
        let mut more = String::new();
        loop {
            let target = format!("{}&limit={PAGE}&continue={more}", self.selector());
            let mut page = api.call("GET", &target, None).await?;
            for pod in api::items(&mut page)? {
                deleted.extend(self.delete_for_good(api, &pod).await?);
            }
            more = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if more.is_empty() {
                break;
            }
        }
        let has_ended = deleted.is_empty();
        self.end_deleted(deleted).await;
        let may_register = may_register(has_ended, now.duration_since(since));
        if may_register {
            cluster_network::forget_range(&self.shell).await;
        }
        Ok(may_register)
    }

    /// Takes the next step at deleting a pod in the cluster. Returns its UID, until nothing is left to do.
    async fn delete_for_good(&self, api: &mut Api, pod: &Value) -> Result<Option<String>, SessionEnd> {
        let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (namespace, name, uid) = (text("namespace"), text("name"), text("uid"));
        let is_present = self.local_pod(&uid, &namespace, &name).is_some();
        let options = match pods::retirement(pod, is_present) {
            Retirement::Done => return Ok(None),
            Retirement::Begin => Some(pods::first_deletion(&uid)),
            Retirement::Await => None,
            Retirement::Finish => Some(pods::final_deletion(&uid)),
        };
        if let Some(options) = options {
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
            tolerate(api.call("DELETE", &path, Some((JSON, &options))).await)?;
        }
        Ok(Some(uid))
    }

    /// Ends these pods of the cluster on this board; all of them, if the cluster has none any more. Others are Ready in the
    /// cluster until they are deleted there.
    async fn end_deleted(&self, deleted: SortedSet<String>) {
        for (uid, path) in self.ask(ClusterCall::Pods).await.unwrap_or_default() {
            if deleted.is_empty() || deleted.contains(&*uid.0) {
                self.end_pod(uid, path, None).await;
            }
        }
    }
}
