//! The connection to the API server, the Node and its Lease, and the client certificate.

use std::time::Duration;

use serde_json::{Value, json};

use nodlet_cluster::api::random;
use nodlet_cluster::api::{Api, ApiError, JSON, MERGE, STRATEGIC, Verification};
use nodlet_cluster::credentials::{Credentials, Usability, rotation};
use nodlet_cluster::schedule::Seen;
use nodlet_cluster::{enrol, node};
use nodlet_core::error::causes;
use nodlet_registry::objects::Key;

use super::super::fencing::Fences;
use super::super::message::ClusterCall;
use super::enrolment::EnrolmentError;
use super::{Follower, SessionEnd, Shell, enrolment, labels};

/// The time for which a new certificate is awaited, during which the Lease is not renewed.
const CERTIFICATE_WITHIN: Duration = Duration::from_secs(10);

/// A client of the API server with these credentials.
pub(in crate::engine) async fn client(credentials: &Credentials) -> Result<Api, EnrolmentError> {
    let addresses = enrolment::addresses(&credentials.server).await?;
    let trust = credentials.trust().map_err(EnrolmentError::Tls)?;
    Ok(Api::new(&credentials.server.host, addresses, Verification::By(trust), None))
}

/// The Node of the local API, as it is sent to the cluster.
pub(in crate::engine) fn local_node(shell: &Shell, name: &str) -> Value {
    let object = shell.publication.objects.get(&Key::new("nodes", "", name));
    let mut node: Value =
        object.and_then(|object| serde_json::from_str(&object.json).ok()).unwrap_or_default();
    node["status"]["features"] = json!({ "supplementalGroupsPolicy": true });
    let user_namespaces = std::path::Path::new("/proc/self/ns/user").exists();
    let features = json!({ "recursiveReadOnlyMounts": true, "userNamespaces": user_namespaces });
    node["status"]["runtimeHandlers"] =
        ["", "nodlet"].iter().map(|name| json!({ "name": name, "features": features })).collect();
    let port = shell.config.kubelet_port;
    if port != 0 && node.is_object() {
        node["status"]["daemonEndpoints"] = json!({ "kubeletEndpoint": { "Port": port } });
        // The API server passes WebSockets on, instead of making SPDY of them.
        node["status"]["declaredFeatures"] = json!(["ExtendWebSocketsToKubelet"]);
    }
    node
}

impl Follower {
    /// Prepares requests to the API server; the first one opens the connection.
    pub(super) async fn connect(&mut self, api: &mut Option<Api>) -> Result<Seen, SessionEnd> {
        let mut rotate_at = i64::MAX;
        if let Some(validity) = self.credentials.validity() {
            if Usability::of(Some(validity), self.seconds()) != Usability::Valid {
                // Waits for other credentials, or the clock.
                let Some(credentials) = enrolment::credentials(&self.shell).await else {
                    self.has_ended = true;
                    return Ok(Seen::Failed);
                };
                self.credentials = credentials;
                return Ok(Seen::ConnectNow);
            }
            rotate_at = rotation(validity, random());
        }
        let server = &self.credentials.server;
        let addresses = enrolment::addresses(server).await.map_err(|error| SessionEnd::of(&error))?;
        self.address = addresses.first().copied();
        let trust = self.credentials.trust().map_err(|error| SessionEnd::of(&error))?;
        let client = || Api::new(&server.host, addresses.clone(), Verification::By(trust.clone()), None);
        // A second connection for Nodes would cost a short visit more than all else.
        let follows_nodes = self.shell.config.sync.is_none() || self.node_uid.is_empty();
        (*api, self.nodes_api) = (Some(client()), follows_nodes.then(client));
        self.proxy_api = self.proxy.is_some().then(client);
        if self.shell.config.sync.is_some() {
            self.objects.unread();
        }
        Ok(Seen::Connected { rotate_at })
    }

    /// The Node of the local API.
    pub(super) fn local_node(&self) -> Value {
        local_node(&self.shell, &self.credentials.node)
    }

    /// Makes the Node, or updates an existing one. If the one of before was deleted, its pods end first.
    pub(super) async fn register(&mut self, api: &mut Api) -> Result<Seen, SessionEnd> {
        let local = self.local_node();
        let now = self.now().to_string();
        let path = format!("/api/v1/nodes/{}", self.credentials.node);
        if !self.node_uid.is_empty() {
            let is_gone = match api.call("GET", &path, None).await {
                Ok(found) => found["metadata"]["uid"] != *self.node_uid,
                Err(error) if error.code() == Some(404) => true,
                Err(error) => return Err(error.into()),
            };
            if is_gone && self.schedule.has_listed() {
                return Ok(Seen::NodeDeleted);
            }
            if is_gone && !self.retire(api).await? {
                return Ok(Seen::Retiring);
            }
        }
        let made = api.call("POST", "/api/v1/nodes", Some((JSON, &node::registration(&local, &now)))).await;
        let object = match made {
            Ok(mut made) => {
                log::info!("registered node {} in the cluster", self.credentials.node);
                self.reported = node::comparable(&local);
                self.known_node = node::known(&mut made);
                made
            }
            Err(error) if matches!(error.code(), Some(403 | 409)) => {
                // Without a Node, the first error is the reason.
                let Ok(mut found) = api.call("GET", &path, None).await else { return Err(error.into()) };
                let machine_id = local["status"]["nodeInfo"]["machineID"].as_str().unwrap_or_default();
                let checked = enrol::check_name(&found, &self.credentials.node, machine_id);
                checked.map_err(|error| SessionEnd::of(&error))?;
                self.known_node = node::known(&mut found);
                self.report_node(api).await?;
                found
            }
            Err(error) => return Err(error.into()),
        };
        labels::see(&self.shell, &object).await;
        let uid = object["metadata"]["uid"].as_str().ok_or(ApiError::Unexpected("a Node"))?.to_owned();
        self.store_node(uid).await?;
        Ok(Seen::Registered)
    }

    /// Reports the state of the node; and once more, if the answer has resources of other clients that the first report
    /// could not know.
    pub(super) async fn report_node(&mut self, api: &mut Api) -> Result<Seen, SessionEnd> {
        let seen = self.report_node_once(api).await?;
        if seen == Seen::NodeReported && node::is_unsettled(&self.known_node) {
            return self.report_node_once(api).await;
        }
        Ok(seen)
    }

    async fn report_node_once(&mut self, api: &mut Api) -> Result<Seen, SessionEnd> {
        let local = self.local_node();
        let patch = node::status_patch(&local, &self.known_node, &self.now().to_string());
        let path = format!("/api/v1/nodes/{}/status", self.credentials.node);
        match api.call("PATCH", &path, Some((STRATEGIC, &patch))).await {
            Ok(mut object) => {
                labels::see(&self.shell, &object).await;
                self.reported = node::comparable(&local);
                self.known_node = node::known(&mut object);
                Ok(Seen::NodeReported)
            }
            Err(error) if error.code() == Some(404) => Ok(Seen::NodeGone),
            Err(error) => Err(error.into()),
        }
    }

    /// Renews the Lease; if `create`, makes a missing one.
    pub(super) async fn renew_lease(&mut self, api: &mut Api, create: bool) -> Result<Seen, SessionEnd> {
        // `metav1.MicroTime` has six digits.
        let sent = self.shell.renewal_begins();
        let now = self.now().nanos().to_string();
        let now = format!("{}Z", now.get(..26).unwrap_or_default());
        let name = &self.credentials.node;
        let seconds = self.shell.config.reporting.lease_seconds();
        let renewal = node::renewal(name, seconds, &now);
        let renewed = api.call("PATCH", &node::lease_path(name), Some((MERGE, &renewal))).await;
        match renewed {
            Ok(lease) if lease["kind"] == "Lease" => {}
            // Whatever this is, it shows no renewal.
            Ok(_) => return Err(ApiError::Unexpected("a Lease").into()),
            Err(error) if error.code() != Some(404) => return Err(error.into()),
            // The cluster removes a Lease with its Node: a running machine registers again.
            Err(_) if !create => return Ok(Seen::NodeGone),
            Err(_) => {
                let lease = node::lease(name, &self.node_uid, seconds, &now);
                api.call("POST", node::LEASES, Some((JSON, &lease))).await?;
            }
        }
        // The node is measured as often.
        self.call(ClusterCall::Turn).await;
        self.shell.lease_renewed(sent);
        // Another session lists the pods, which may start again only then.
        if self.shell.fences.as_ref().is_some_and(Fences::needs_list) && self.schedule.has_listed() {
            return Err(SessionEnd::new("the Lease was renewed too late for the fencing period"));
        }
        Ok(Seen::LeaseRenewed)
    }

    /// Gets a certificate for a new key. Returns whether there is one.
    pub(super) async fn rotate(&mut self, api: &mut Api) -> bool {
        let requested = enrol::request_certificate(api, &self.credentials.node, CERTIFICATE_WITHIN).await;
        let (key, certificates) = match requested {
            Ok(made) => made,
            Err(error) => {
                let why = causes(&error);
                log::warn!("the client certificate of the cluster could not be replaced: {why}");
                return false;
            }
        };
        let new = Credentials { key, certificates, ..self.credentials.clone() };
        if !self.write(self.shell.paths.cluster_credentials(), new.to_json().into_bytes()).await {
            return false;
        }
        log::info!("the client certificate of the cluster was replaced");
        self.credentials = new;
        true
    }
}
