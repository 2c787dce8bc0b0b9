//! The link to the cluster that the board has joined, as the loop sees it: the task that follows the cluster, the
//! kubelet's server, and the probes that are counted for it.

use std::rc::Rc;

use async_channel::{Sender, TrySendError};
use serde_json::Value;

use nodlet_cluster::gates;
use nodlet_core::facts::{Attempt, Observation, PodIndex, PodObservation, ProbeResult};
use nodlet_core::pod::PodState;
use nodlet_core::spec::ProbeKind;
use nodlet_registry::{Owner, Status};

use super::super::message::{ClusterCall, Named};
use super::super::network::resolver;
use super::super::pods::Pods;
use super::super::stats::ProbeCounts;
use super::super::{Engine, Shell};
use super::{NOT_JOINED, follow, kubelet_server};
use crate::api::{Api, Reply};

/// Requests to synchronise that wait for a result.
const SYNC_REQUESTS: usize = 8;

/// The link to the cluster: nothing on a board that has joined none.
#[derive(Default)]
pub(in crate::engine) struct ClusterLink {
    following: Option<Following>,
    kubelet_server: Option<smol::Task<()>>,
    probe_counts: ProbeCounts,
}

/// The task that follows the cluster, until this is dropped.
struct Following {
    _task: smol::Task<()>,
    /// Requests to synchronise now, which get the result.
    requests: Sender<Reply<&'static str>>,
}

impl ClusterLink {
    /// Follows the cluster whose credentials are on the board, and no longer another one. The task ends at once if
    /// there are none.
    fn follow(&mut self, shell: &Rc<Shell>) {
        let (requests, receiver) = async_channel::bounded(SYNC_REQUESTS);
        let task = shell.tasks.start(follow(shell.clone(), receiver));
        (self.following, self.kubelet_server) = (Some(Following { _task: task, requests }), None);
    }

    /// Starts the kubelet's server with the credentials that the board has now, and no longer with others.
    fn serve(&mut self, shell: &Rc<Shell>, api: Api) {
        self.kubelet_server = Some(shell.tasks.start(kubelet_server::run(shell.clone(), api)));
    }

    /// Whether a cluster is followed, or was looked for.
    pub(in crate::engine) fn is_followed(&self) -> bool {
        self.following.is_some()
    }

    /// Has the board connect to its cluster now. The task answers, unless it cannot be asked.
    pub(in crate::engine) fn synchronise(&self, has_credentials: bool, reply: Reply<&'static str>) {
        let (reply, why) = match &self.following {
            Some(following) => match following.requests.try_send(reply) {
                Ok(()) => return,
                Err(TrySendError::Full(reply)) => (reply, "the board is synchronising"),
                Err(TrySendError::Closed(reply)) if has_credentials => {
                    (reply, "the board is not connected to a cluster; see `nodlet events`")
                }
                // It has left.
                Err(TrySendError::Closed(reply)) => (reply, NOT_JOINED),
            },
            None => (reply, NOT_JOINED),
        };
        let _ = reply.try_send(Err(Status::bad_request(why)));
    }

    /// Counts the result of a probe for the metrics of the kubelet's server.
    pub(in crate::engine) fn probed(
        &mut self,
        pod: PodIndex,
        attempt: Attempt,
        kind: ProbeKind,
        result: &ProbeResult,
    ) {
        if self.kubelet_server.is_some() {
            self.probe_counts.add(pod, attempt.container, kind, result);
        }
    }

    /// Forgets the probes of a pod.
    pub(in crate::engine) fn forget_pod(&mut self, pod: PodIndex) {
        self.probe_counts.remove(pod);
    }

    /// `/metrics/probes` of the kubelet's server.
    pub(in crate::engine) fn probe_metrics(&self, pods: &Pods) -> String {
        self.probe_counts.metrics(pods)
    }
}

impl Engine {
    /// Follows the cluster whose credentials are on the board now.
    pub(in crate::engine) fn follow_cluster(&mut self) {
        self.cluster.follow(&self.shell);
        self.list_images();
        self.follow_domain();
    }

    /// Gives the board's own names another domain, if the board has joined a cluster or left it.
    fn follow_domain(&self) {
        if self.shell.services.names.follow_domain(&self.shell) {
            let shell = self.shell.clone();
            self.shell.tasks.spawn(async move { resolver::renew_resolv_confs(&shell).await });
        }
    }

    /// Does what the task that follows the cluster asks for.
    pub(in crate::engine) fn cluster_call(&mut self, call: ClusterCall) {
        match call {
            ClusterCall::Serve => {
                let clients = self.shell.config.max_connections.div_ceil(2);
                let api = self.shell.api(&self.request_sender, &self.ring, clients);
                self.cluster.serve(&self.shell, api);
                self.follow_domain();
            }
            ClusterCall::Change(change) => self.changes.push(change),
            ClusterCall::Confirm(confirmed) => self.confirm_pods(&confirmed),
            ClusterCall::TakeConditions { local, status } => self.take_conditions(&local, &status),
            ClusterCall::Pods(reply) => {
                let pods = self.registry.wanted_of(Owner::Cluster).into_iter();
                let pods = pods.map(|one| (one.pod.uid.clone(), one.source.clone()));
                let _ = reply.try_send(pods.collect());
            }
            ClusterCall::Named { name, uid, reply } => {
                let _ = reply.try_send(Named::of(&self.registry, &name, &uid));
            }
            ClusterCall::IsDesired { uid, reply } => drop(reply.try_send(self.registry.desires(&uid))),
            ClusterCall::Turn => {}
        }
    }

    /// Takes the conditions of a pod's readiness gates from the pod's status in the cluster.
    fn take_conditions(&mut self, local: &Value, status: &Value) {
        let metadata = &local["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        let Some(index) = self.shown(text("namespace"), text("name")) else { return };
        let pods = self.shell.pods.borrow();
        if pods.get(&index).is_none_or(|pod| *pod.wanted.pod.uid.0 != *text("uid")) {
            return;
        }
        drop(pods);
        let Some(present) = self.node.pod(index).map(PodState::client_conditions) else { return };
        let Some(conditions) = gates::conditions(local, status, present) else { return };
        if conditions[..] != present[..] {
            let conditions = conditions.into();
            self.observe(Observation::Of(index, PodObservation::ClientConditions { conditions }));
            self.publish_changed();
        }
    }
}
