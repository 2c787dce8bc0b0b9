//! The pods of the cluster that this node follows, and which files of the board they need. Pure.

use std::time::Instant;

use nodlet_core::sorted::{SortedMap, SortedSet};
use nodlet_kube::kinds::Kind;
use serde_json::Value;

use crate::pods::{self, LocalPod};
use crate::rejections::{self, Rejections};
use crate::services::{self, SERVICES};
use crate::trust::{self, BUNDLES};

/// Pods of this node that are followed. More are ignored with a message: the node admits fewer.
pub const MAX_PODS: usize = 512;

/// A pod of the cluster.
#[derive(Debug)]
pub struct Known {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The pod as the cluster has it, with the status that was last sent; without most fields after [`Known::trim`].
    pub object: Value,
    /// The objects that its manifest needs.
    pub needs: Option<LocalPod>,
    /// Its manifest is on this board.
    pub has_manifest: bool,
    /// When its tokens must be renewed.
    pub tokens_until: Option<Instant>,
    /// The PersistentVolumes of its claims.
    pub volumes: Vec<String>,
    /// The number of its ephemeral containers that were added to the pod on this board, or rejected.
    pub ephemeral: usize,
    /// The API server failed at a report about it, which is to be sent again.
    pub is_unreported: bool,
    /// Why this board does not run it, until the cluster knows.
    pub rejection: Option<String>,
    /// Until when the cluster does not learn that this board rejected it.
    pub held: Option<Instant>,
    /// The UID of its controller.
    controller: Option<Box<str>>,
    /// The version of its status.
    status_version: u64,
}

impl Known {
    /// A pod as the cluster has it.
    pub fn new(object: Value, has_manifest: bool) -> Known {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (namespace, name, status_version) = (text("namespace"), text("name"), version(&object));
        let (needs, tokens_until, volumes) = (None, None, Vec::new());
        let controller = rejections::controller(&object).map(Into::into);
        Known {
            namespace,
            name,
            object,
            needs,
            has_manifest,
            tokens_until,
            volumes,
            ephemeral: 0,
            is_unreported: false,
            rejection: None,
            held: None,
            controller,
            status_version,
        }
    }

    /// Records the pod in an event of the watch. Its status may be older than one that was sent since.
    pub fn see(&mut self, mut object: Value) {
        if version(&object) < self.status_version {
            object["status"] = self.object["status"].take();
        }
        self.object = object;
    }

    /// Drops the fields that are not needed once the manifest is written: 512 pods are followed.
    pub fn trim(&mut self) {
        const KEPT: [&str; 8] = [
            "deletionGracePeriodSeconds",
            "deletionTimestamp",
            "finalizers",
            "generation",
            "name",
            "namespace",
            "resourceVersion",
            "uid",
        ];
        if let Some(metadata) = self.object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|field, _| KEPT.contains(&field.as_str()));
        }
        if let Some(spec) = self.object.get_mut("spec").and_then(Value::as_object_mut) {
            spec.retain(|field, _| field == "ephemeralContainers");
        }
    }

    /// Records the pod in the response to a change of its status.
    pub fn record_status_response(&mut self, mut changed: Value) {
        self.status_version = version(&changed);
        self.object["status"] = changed["status"].take();
    }

    /// Whether the cluster does not learn yet that this board rejected the pod: a controller would make the next one at
    /// once.
    pub fn holds_rejection(&mut self, rejections: &mut Rejections, now: Instant) -> bool {
        let controller = self.controller.as_deref().filter(|_| !pods::has_terminal_phase(&self.object));
        self.held = controller.and_then(|uid| rejections.hold(uid, self.held, now));
        self.held.is_some()
    }

    /// The path of the pod in the cluster's API.
    pub fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }

    /// The object that an entry of [`LocalPod::objects`] names.
    pub fn reference(&self, resource: &'static str, name: &str) -> Reference {
        let is_namespaced = Kind::of_resource(resource).is_none_or(|kind| kind.row().namespaced);
        let namespace = if is_namespaced { self.namespace.clone() } else { String::new() };
        (resource, namespace, name.to_owned())
    }

    /// The name of the file with its manifest.
    pub fn file(&self) -> String {
        Kind::Pod.row().file(&self.namespace, &self.name)
    }

    /// The names of the files with its claims, their volumes, and its PriorityClass, which are not watched.
    fn unwatched_files(&self) -> Vec<String> {
        let Some(needs) = &self.needs else { return Vec::new() };
        let claims = needs.claims.iter();
        let claims = claims.map(|claim| Kind::PersistentVolumeClaim.row().file(&self.namespace, claim));
        let volumes = self.volumes.iter().map(|volume| Kind::PersistentVolume.row().file("", volume));
        let class = needs.class.as_ref().and_then(|class| class["metadata"]["name"].as_str());
        claims.chain(volumes).chain(class.map(class_file)).collect()
    }

    /// The names of the files with its tokens.
    fn token_files(&self) -> Vec<String> {
        let tokens = self.needs.iter().flat_map(|needs| &needs.tokens);
        tokens.map(|token| Kind::Secret.row().file(&self.namespace, &token.secret)).collect()
    }
}

/// `resourceVersion` of an object as a number, which the versions of one resource are since Kubernetes 1.35; 0 for
/// another version.
fn version(object: &Value) -> u64 {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Resource, namespace and name of an object that pods refer to, or of Services as in `services::path`, or of
/// ClusterTrustBundles as in `trust::path`.
pub type Reference = (&'static str, String, String);

/// The name of the file with the object that a [`Reference`] names.
pub fn file((resource, namespace, name): &Reference) -> String {
    match (*resource, Kind::of_resource(resource)) {
        // What is kept of these is a ConfigMap.
        (SERVICES, _) => services::file(namespace, name),
        (BUNDLES, _) => trust::file(namespace, name),
        (_, kind) => kind.unwrap_or(Kind::ConfigMap).row().file(namespace, name),
    }
}

/// The path of a list with the object that a [`Reference`] names alone: a node may list ConfigMaps and Secrets by
/// their names only.
pub fn path((resource, namespace, name): &Reference) -> String {
    match *resource {
        SERVICES => return services::path(namespace, name),
        BUNDLES => return trust::path(name),
        _ => {}
    }
    let kind = Kind::of_resource(resource).unwrap_or(Kind::ConfigMap);
    let within = if namespace.is_empty() { String::new() } else { format!("namespaces/{namespace}/") };
    format!("/{}/{within}{resource}?fieldSelector=metadata.name%3D{name}", kind.row().root())
}

/// The name of the file with a PriorityClass.
pub fn class_file(name: &str) -> String {
    Kind::PriorityClass.row().file("", name)
}

/// All pods that this node follows, by UID.
#[derive(Debug, Default)]
pub struct Followed {
    pods: SortedMap<String, Known>,
}

impl Followed {
    /// A pod.
    pub fn get(&self, uid: &str) -> Option<&Known> {
        self.pods.get(uid)
    }

    /// Removes a pod.
    pub fn remove(&mut self, uid: &str) -> Option<Known> {
        self.pods.remove(uid)
    }

    /// Adds a pod, or puts it back.
    pub fn insert(&mut self, uid: String, known: Known) {
        self.pods.insert(uid, known);
    }

    /// The UIDs of all pods.
    pub fn uids(&self) -> Vec<String> {
        self.pods.keys().cloned().collect()
    }

    /// When the next rejection is reported that is held back.
    pub fn release_at(&self) -> Option<Instant> {
        self.pods.values().filter_map(|known| known.held).min()
    }

    /// Whether another pod may be followed.
    pub fn has_room(&self) -> bool {
        self.pods.len() < MAX_PODS
    }

    /// Of more than `kept` finished pods with a manifest on this board, the one that was reported first. A cluster keeps
    /// thousands of finished pods.
    pub fn surplus(&self, kept: usize) -> Option<String> {
        let is_finished =
            |(_, known): &(&String, &Known)| known.has_manifest && pods::has_terminal_phase(&known.object);
        if self.pods.iter().filter(is_finished).count() <= kept {
            return None;
        }
        let first = self.pods.iter().filter(is_finished).min_by_key(|(_, known)| known.status_version);
        first.map(|(uid, _)| uid.clone())
    }

    /// The UID of a pod with this name other than `uid`: it is to end before its name starts again, since a pod that
    /// was deleted by force may still run here (at most one pod has a name).
    pub fn predecessor(&self, uid: &str, namespace: &str, name: &str) -> Option<String> {
        let mut others = self.pods.iter().filter(|(other, _)| *other != uid);
        let found = others.find(|(_, known)| known.namespace == namespace && known.name == name);
        found.map(|(other, _)| other.clone())
    }

    /// The ConfigMaps and Secrets that the pods refer to which run on this board, or still end there, each once.
    pub fn references(&self) -> SortedSet<Reference> {
        let mut all = SortedSet::new();
        for known in self.pods.values() {
            for (resource, name) in known.needs.iter().flat_map(|needs| &needs.objects) {
                all.insert(known.reference(resource, name));
            }
        }
        all
    }

    /// The pods that refer to an object.
    pub fn that_need<'a>(&'a self, reference: &'a Reference) -> impl Iterator<Item = &'a Known> {
        self.pods.values().filter(move |known| {
            let objects = known.needs.iter().flat_map(|needs| &needs.objects);
            objects.into_iter().any(|(resource, name)| known.reference(resource, name) == *reference)
        })
    }

    /// The names of the files that the pods on this board need: manifests, and Secrets with tokens. A pod that ends has
    /// no manifest any more, and uses its objects until it is gone.
    pub fn files(&self) -> (SortedSet<String>, SortedSet<String>) {
        let (mut kept, mut tokens) = (SortedSet::new(), SortedSet::new());
        for known in self.pods.values() {
            if known.has_manifest {
                kept.insert(known.file());
            }
            for (resource, name) in known.needs.iter().flat_map(|needs| &needs.objects) {
                kept.insert(file(&known.reference(resource, name)));
            }
            kept.extend(known.unwatched_files());
            tokens.extend(known.token_files());
        }
        (kept, tokens)
    }

    /// The names of the files that only `gone` needed, a pod that is no longer followed: claims, volumes and a
    /// PriorityClass, and Secrets with tokens. Objects that are watched go with their watch (`Need::Stop`).
    pub fn unneeded(&self, gone: &Known) -> (Vec<String>, Vec<String>) {
        let (kept, kept_tokens) = self.files();
        let without = |files: Vec<String>, kept: &SortedSet<String>| {
            files.into_iter().filter(|file| !kept.contains(file)).collect()
        };
        (without(gone.unwatched_files(), &kept), without(gone.token_files(), &kept_tokens))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn known(name: &str, uid: &str) -> Known {
        let object = json!({
            "metadata": { "namespace": "shop", "name": name, "uid": uid },
            "spec": {
                "priorityClassName": "high",
                "volumes": [
                    { "name": "c", "configMap": { "name": "settings" } },
                    { "name": "t", "projected": { "sources": [{ "serviceAccountToken": { "path": "t" } }] } },
                ],
            },
        });
        let mut known = Known::new(object, true);
        known.needs = Some(pods::local(&known.object));
        known
    }

    /// Services are a kind of the board, too, and those of the cluster are kept as the variables of containers.
    #[test]
    fn the_services_of_a_namespace_are_kept_as_a_config_map_with_their_variables() {
        let of_all = (SERVICES, "shop".to_owned(), String::new());
        assert_eq!(file(&of_all), services::file("shop", ""));
        assert_eq!(path(&of_all), "/api/v1/namespaces/shop/services?");
        let settings = ("configmaps", "shop".to_owned(), "settings".to_owned());
        assert_eq!(file(&settings), "configmap_shop_settings.json");
        assert_eq!(
            path(&settings),
            "/api/v1/namespaces/shop/configmaps?fieldSelector=metadata.name%3Dsettings"
        );
    }

    #[test]
    fn files_are_kept_until_their_pods_are_gone_and_manifests_until_they_end() {
        let mut followed = Followed::default();
        followed.insert("u".into(), known("web-0", "u"));
        followed.insert("v".into(), known("web-1", "v"));
        let (kept, tokens) = followed.files();
        let kept: Vec<&str> = kept.iter().map(String::as_str).collect();
        assert_eq!(kept.len(), 6, "{kept:?}");
        assert_eq!(tokens.iter().count(), 2);
        assert_eq!(followed.references().iter().count(), 3);
        for uid in ["u", "v"] {
            let mut known = followed.remove(uid).expect("known");
            known.has_manifest = false;
            followed.insert(uid.into(), known);
        }
        let of_ending = followed.files().0;
        assert!(
            of_ending.iter().all(|file| !file.contains("web-")) && of_ending.iter().count() == 4,
            "{of_ending:?}"
        );
        assert_eq!(followed.references().iter().count(), 3);
        for uid in ["u", "v"] {
            followed.remove(uid);
        }
        assert!(followed.references().is_empty() && followed.files().0.is_empty());
    }

    #[test]
    fn a_pod_that_is_gone_leaves_the_files_that_another_one_needs() {
        let mut followed = Followed::default();
        for (name, uid, volume) in [("web-0", "u", "disk-0"), ("web-1", "v", "disk-1")] {
            let mut known = known(name, uid);
            known.needs.as_mut().expect("needs").claims = vec!["shared".into(), format!("data-{name}")];
            known.volumes = vec!["disk".into(), volume.into()];
            followed.insert(uid.into(), known);
        }
        let gone = followed.remove("u").expect("known");
        let claim = |name: &str| Kind::PersistentVolumeClaim.row().file("shop", name);
        let volume = |name: &str| Kind::PersistentVolume.row().file("", name);
        let token = |uid: &str| Kind::Secret.row().file("shop", &format!("nodlet-token-{uid}-0"));
        let expected = (vec![claim("data-web-0"), volume("disk-0")], vec![token("u")]);
        assert_eq!(followed.unneeded(&gone), expected);
        let last = followed.remove("v").expect("known");
        let all =
            vec![claim("shared"), claim("data-web-1"), volume("disk"), volume("disk-1"), class_file("high")];
        assert_eq!(followed.unneeded(&last), (all, vec![token("v")]));
        assert_eq!(followed.unneeded(&Known::new(json!({}), false)), (Vec::new(), Vec::new()));
    }

    #[test]
    fn of_too_many_finished_pods_the_one_that_was_reported_first_goes() {
        let mut followed = Followed::default();
        for (uid, version, phase, has_manifest) in [
            ("a", "9", "Succeeded", true),
            ("b", "7", "Failed", true),
            ("c", "1", "Running", true),
            ("d", "2", "Failed", false),
        ] {
            let metadata = json!({ "resourceVersion": version });
            let object = json!({ "metadata": metadata, "status": { "phase": phase } });
            followed.insert(uid.into(), Known::new(object, has_manifest));
        }
        assert_eq!(followed.surplus(2), None);
        assert_eq!(followed.surplus(1).as_deref(), Some("b"));
        followed.remove("b");
        assert_eq!(followed.surplus(0).as_deref(), Some("a"));
        followed.remove("a");
        assert_eq!(followed.surplus(0), None);
    }

    #[test]
    fn a_late_event_does_not_undo_the_status_that_was_sent_since() {
        let pod = |version: &str, phase: &str| json!({ "metadata": { "resourceVersion": version, "x": phase }, "status": { "phase": phase } });
        let mut known = Known::new(pod("5", "Pending"), true);
        known.record_status_response(pod("7", "Running"));
        known.see(pod("6", "Pending"));
        assert_eq!(
            json!([known.object["status"]["phase"], known.object["metadata"]["x"]]),
            json!(["Running", "Pending"])
        );
        known.see(pod("8", "Failed"));
        assert_eq!(known.object["status"]["phase"], "Failed");
    }

    #[test]
    fn a_trimmed_pod_can_be_reported_and_deleted() {
        let mut known = known("web", "u");
        known.object["metadata"]["managedFields"] = json!([{}]);
        known.object["spec"]["ephemeralContainers"] = json!([{ "name": "e" }]);
        known.object["status"] = json!({ "phase": "Failed" });
        known.trim();
        let expected = json!({
            "metadata": { "namespace": "shop", "name": "web", "uid": "u" },
            "spec": { "ephemeralContainers": [{ "name": "e" }] },
            "status": { "phase": "Failed" },
        });
        assert_eq!(known.object, expected);
    }

    #[test]
    fn a_pod_of_the_same_name_is_found_by_its_other_uid() {
        let mut followed = Followed::default();
        followed.insert("old".into(), known("web-0", "old"));
        assert_eq!(followed.predecessor("new", "shop", "web-0").as_deref(), Some("old"));
        for (uid, namespace, name) in
            [("old", "shop", "web-0"), ("new", "shop", "web-1"), ("new", "x", "web-0")]
        {
            assert_eq!(followed.predecessor(uid, namespace, name), None);
        }
    }
}
