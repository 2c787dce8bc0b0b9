//! Mirror pods: the pods of the board's own files, as the cluster shows them. Pure.
//!
//! A kubelet makes a mirror pod for each static pod, so that the cluster shows the pod and the scheduler counts its
//! resources. The pod itself never depends on its mirror: a mirror that is deleted in the cluster is made again, and
//! one without a pod is deleted. As with a kubelet, its name is that of the pod and of the node.

use std::time::{Duration, Instant};

use nodlet_core::sorted::{SortedMap, SortedSet};
use serde_json::{Map, Value, json};

use crate::followed::Known;
use crate::pods::{MIRROR, digest};

/// The annotation of a mirror pod: the hash of the pod that it shows.
const HASH: &str = "kubernetes.io/config.hash";
const SOURCE: &str = "kubernetes.io/config.source";

/// The annotation that changes with each agent.
const SEEN: &str = "kubernetes.io/config.seen";

/// The time after which a mirror pod that the cluster rejected is sent again.
const AGAIN: Duration = Duration::from_secs(300);

/// Namespace and name of a mirror pod.
pub type Name = (String, String);

/// The name of the mirror of a pod of the local API; `None` if the pod is not one of a file, or runs on no node yet.
pub fn name_of(local: &Value, node: &str) -> Option<Name> {
    let metadata = &local["metadata"];
    let is_of_file = metadata["annotations"][SOURCE] == "file" && local["spec"]["nodeName"].is_string();
    let name = mirror_name(metadata["name"].as_str()?, node);
    is_of_file.then(|| (metadata["namespace"].as_str().unwrap_or("default").to_owned(), name))
}

/// The name of the mirror of the pod `name` (the kubelet's `generatePodName`).
pub fn mirror_name(name: &str, node: &str) -> String {
    format!("{name}-{node}").to_ascii_lowercase()
}

/// A pod of the local API as its mirror pod shows it: with the UID and the generation of the mirror pod, which is never
/// changed.
pub fn shown(local: &Value, mirror: &Value) -> Value {
    let mut shown = json!({ "metadata": { "uid": mirror["metadata"]["uid"] }, "status": local["status"] });
    let status = &mut shown["status"];
    if let Some(status) = status.as_object_mut() {
        status.remove("ephemeralContainerStatuses");
    }
    let generation = mirror["metadata"].get("generation").cloned().unwrap_or_else(|| 1.into());
    if let Some(conditions) = status["conditions"].as_array_mut() {
        for condition in conditions {
            condition["observedGeneration"] = generation.clone();
        }
    }
    status["observedGeneration"] = generation;
    shown
}

/// Fields of a spec that name objects of the board, which the cluster need not have, or that follow from them.
const FIELDS_OF_BOARD: [&str; 12] = [
    "automountServiceAccountToken",
    "ephemeralContainers",
    "imagePullSecrets",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "resourceClaims",
    "runtimeClassName",
    "schedulingGates",
    "serviceAccount",
    "serviceAccountName",
];

/// The types of volumes that refer to no other object. Nodes may not make pods that refer to one.
const OWN_VOLUMES: [&str; 4] = ["downwardAPI", "emptyDir", "hostPath", "image"];

/// Makes the mirror pod of a pod of the local API. `node_uid` is the UID of the Node.
pub fn mirror(local: &Value, (namespace, name): &Name, node: &str, node_uid: &str) -> Value {
    let mut spec = local["spec"].clone();
    let mut gone = SortedSet::new();
    if let Some(spec) = spec.as_object_mut() {
        for field in FIELDS_OF_BOARD {
            spec.remove(field);
        }
    }
    if let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) {
        volumes.retain(|volume| {
            let is_own = OWN_VOLUMES.iter().any(|kind| volume.get(*kind).is_some());
            if !is_own {
                gone.insert(volume["name"].as_str().unwrap_or_default().to_owned());
            }
            is_own
        });
    }
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(container) = container.as_object_mut() else { continue };
            container.remove("envFrom");
            let mut keep = |field: &str, is_kept: &dyn Fn(&Value) -> bool| {
                if let Some(list) = container.get_mut(field).and_then(Value::as_array_mut) {
                    list.retain(is_kept);
                }
            };
            for field in ["volumeMounts", "volumeDevices"] {
                keep(field, &|mount| !mount["name"].as_str().is_some_and(|name| gone.contains(name)));
            }
            keep("env", &|variable| {
                let from = &variable["valueFrom"];
                from.get("configMapKeyRef").or(from.get("secretKeyRef")).is_none()
            });
        }
    }
    let mut annotations = local["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    for own in [SEEN, HASH, MIRROR] {
        annotations.remove(own);
    }
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), name.as_str().into());
    metadata.insert("namespace".to_owned(), namespace.as_str().into());
    if let Some(labels) = local["metadata"].get("labels") {
        metadata.insert("labels".to_owned(), labels.clone());
    }
    metadata.insert("annotations".to_owned(), annotations.into());
    let mut mirror = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
    let hash = digest(&mirror);
    let metadata = &mut mirror["metadata"];
    metadata["annotations"][HASH] = hash.as_str().into();
    metadata["annotations"][MIRROR] = hash.into();
    // Admission of the API server requires exactly this owner (NodeRestriction).
    metadata["ownerReferences"] =
        json!([{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": true }]);
    mirror
}

/// The next step for a mirror pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, or nothing yet.
    Nothing,
    /// Create it.
    Create,
    /// Delete the one with this UID at once; create it again if there is a pod to show.
    Delete(String),
    /// Send the status as far as it differs.
    SendStatus,
}

/// The mirror pods of this node, as the cluster has them.
#[derive(Debug, Default)]
pub struct Mirrors {
    known: SortedMap<Name, Known>,
    /// The hashes of mirror pods that the cluster rejected, and when to send them again.
    rejected: SortedMap<Name, (Value, Instant)>,
}

impl Mirrors {
    /// Records that the cluster has a mirror pod in this state. Returns its name.
    pub fn see(&mut self, mut pod: Value) -> Name {
        if let Some(pod) = pod.as_object_mut() {
            pod.remove("spec");
        }
        if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (name, uid) = ((text("namespace"), text("name")), text("uid"));
        self.rejected.remove(&name);
        match self.known.get_mut(&name) {
            Some(known) if known.object["metadata"]["uid"] == uid => known.see(pod),
            _ => drop(self.known.insert(name.clone(), Known::new(pod, false))),
        }
        name
    }

    /// Records that the mirror pod with this UID is gone. Returns its name.
    pub fn forget(&mut self, uid: &str) -> Option<Name> {
        let mut all = self.known.iter();
        let (name, _) = all.find(|(_, known)| known.object["metadata"]["uid"] == uid)?;
        let name = name.clone();
        self.known.remove(&name);
        Some(name)
    }

    /// Forgets the mirror pods that are not among those with these UIDs.
    pub fn keep(&mut self, uids: &SortedSet<String>) {
        self.known.retain(|_, known| {
            known.object["metadata"]["uid"].as_str().is_some_and(|uid| uids.contains(uid))
        });
    }

    /// Records that the cluster rejected a mirror pod. Returns whether that is news.
    pub fn reject(&mut self, name: Name, mirror: &Value, now: Instant) -> bool {
        let hash = mirror["metadata"]["annotations"][MIRROR].clone();
        let old = self.rejected.insert(name, (hash.clone(), now + AGAIN));
        old.is_none_or(|(old, _)| old != hash)
    }

    /// Records that the API server failed at a request about a mirror pod, which is to be repeated.
    pub fn postpone(&mut self, name: Name, now: Instant) {
        self.rejected.insert(name, (Value::Null, now));
    }

    /// Records that such a request is repeated now. Returns whether there is one.
    pub fn resume(&mut self, name: &Name) -> bool {
        let is_postponed = self.rejected.get(name).is_some_and(|(hash, _)| hash.is_null());
        if is_postponed {
            self.rejected.remove(name);
        }
        is_postponed
    }

    /// The names of mirror pods that are to be sent again, since they were rejected, or the API server failed.
    pub fn due(&self, now: Instant) -> Vec<Name> {
        let due = self.rejected.iter().filter(|(_, (_, again))| now >= *again);
        due.map(|(name, _)| name.clone()).collect()
    }

    /// The names of all mirror pods.
    pub fn names(&self) -> Vec<Name> {
        self.known.keys().cloned().collect()
    }

    /// The hash of a mirror pod.
    pub fn hash(&self, name: &Name) -> Option<&Value> {
        self.known.get(name).map(|known| &known.object["metadata"]["annotations"][MIRROR])
    }

    /// A mirror pod, to change it.
    pub fn get_mut(&mut self, name: &Name) -> Option<&mut Known> {
        self.known.get_mut(name)
    }

    /// Decides about a mirror pod; `mirror` is the one that the cluster should have, or `None` without a pod on the
    /// board.
    pub fn step(&mut self, name: &Name, mirror: Option<&Value>, now: Instant) -> Step {
        let hash = mirror.map(|mirror| &mirror["metadata"]["annotations"][MIRROR]);
        let Some(known) = self.known.get(name) else {
            let is_rejected = |hash| {
                self.rejected.get(name).is_some_and(|(rejected, again)| rejected == hash && now < *again)
            };
            return match hash {
                Some(hash) if !is_rejected(hash) => Step::Create,
                Some(_) => Step::Nothing,
                None => {
                    self.rejected.remove(name);
                    Step::Nothing
                }
            };
        };
        let metadata = &known.object["metadata"];
        let is_current =
            !metadata["deletionTimestamp"].is_string() && hash == Some(&metadata["annotations"][MIRROR]);
        if is_current {
            Step::SendStatus
        } else {
            Step::Delete(metadata["uid"].as_str().unwrap_or_default().to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local() -> Value {
        json!({
            "metadata": {
                "name": "Web", "namespace": "shop", "uid": "local", "labels": { "a": "b" },
                "annotations": { SOURCE: "file", SEEN: "now", HASH: "local", "x": "y" },
            },
            "spec": {
                "nodeName": "board", "serviceAccountName": "robot", "priorityClassName": "high", "priority": 7,
                "volumes": [
                    { "name": "c", "configMap": { "name": "settings" } },
                    { "name": "e", "emptyDir": {} },
                    { "name": "d", "persistentVolumeClaim": { "claimName": "disk" } },
                ],
                "containers": [{
                    "name": "app", "envFrom": [{ "secretRef": { "name": "s" } }],
                    "env": [
                        { "name": "A", "value": "1" },
                        { "name": "B", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
                        { "name": "C", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                    ],
                    "volumeMounts": [{ "name": "c", "mountPath": "/c" }, { "name": "e", "mountPath": "/e" }],
                    "resources": { "requests": { "cpu": "1" } },
                }],
            },
            "status": { "phase": "Running" },
        })
    }

    fn mirrored(local: &Value) -> (Name, Value) {
        let name = name_of(local, "board").expect("a pod of a file");
        let mirror = mirror(local, &name, "board", "node-uid");
        (name, mirror)
    }

    #[test]
    fn a_mirror_pod_refers_to_no_object_and_belongs_to_the_node() {
        let (name, mirror) = mirrored(&local());
        assert_eq!(name, ("shop".to_owned(), "web-board".to_owned()));
        let hash = mirror["metadata"]["annotations"][MIRROR].as_str().expect("a hash").to_owned();
        assert_eq!(hash.len(), 32);
        assert_eq!(
            mirror["metadata"],
            json!({
                "name": "web-board", "namespace": "shop", "labels": { "a": "b" },
                "annotations": { SOURCE: "file", HASH: hash, MIRROR: hash, "x": "y" },
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "Node", "name": "board", "uid": "node-uid", "controller": true },
                ],
            })
        );
        assert_eq!(
            mirror["spec"],
            json!({
                "nodeName": "board",
                "volumes": [{ "name": "e", "emptyDir": {} }],
                "containers": [{
                    "name": "app",
                    "env": [
                        { "name": "A", "value": "1" },
                        { "name": "C", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                    ],
                    "volumeMounts": [{ "name": "e", "mountPath": "/e" }],
                    "resources": { "requests": { "cpu": "1" } },
                }],
            })
        );
    }

    #[test]
    fn the_hash_is_that_of_the_pod_and_not_of_its_status() {
        let hash = |local: &Value| mirrored(local).1["metadata"]["annotations"][MIRROR].clone();
        let (first, mut other) = (hash(&local()), local());
        other["status"]["phase"] = "Failed".into();
        other["metadata"]["annotations"][SEEN] = "later".into();
        other["metadata"]["uid"] = "x".into();
        assert_eq!(hash(&other), first);
        other["spec"]["containers"][0]["image"] = "x".into();
        assert_ne!(hash(&other), first);
    }

    #[test]
    fn pods_of_the_cluster_and_pods_that_wait_for_a_gate_have_no_mirror() {
        let mut of_cluster = local();
        of_cluster["metadata"]["annotations"][SOURCE] = "api".into();
        assert_eq!(name_of(&of_cluster, "board"), None);
        let mut gated = local();
        gated["spec"]["nodeName"] = Value::Null;
        assert_eq!(name_of(&gated, "board"), None);
    }

    #[test]
    fn a_mirror_pod_is_created_kept_replaced_and_deleted() {
        let (name, pod) = mirrored(&local());
        let now = Instant::now();
        let mut mirrors = Mirrors::default();
        assert_eq!(mirrors.step(&name, None, now), Step::Nothing);
        assert_eq!(mirrors.step(&name, Some(&pod), now), Step::Create);
        let mut seen = pod.clone();
        seen["metadata"]["uid"] = "m".into();
        assert_eq!(mirrors.see(seen.clone()), name);
        assert_eq!(mirrors.step(&name, Some(&pod), now), Step::SendStatus);
        // Another file.
        let mut other = local();
        other["spec"]["containers"][0]["image"] = "x".into();
        assert_eq!(mirrors.step(&name, Some(&mirrored(&other).1), now), Step::Delete("m".into()));
        // The file is gone.
        assert_eq!(mirrors.step(&name, None, now), Step::Delete("m".into()));
        // Deleted in the cluster.
        seen["metadata"]["deletionTimestamp"] = "t".into();
        mirrors.see(seen);
        assert_eq!(mirrors.step(&name, Some(&pod), now), Step::Delete("m".into()));
        assert_eq!(mirrors.forget("x"), None);
        assert_eq!(mirrors.forget("m"), Some(name.clone()));
        assert_eq!(mirrors.step(&name, Some(&pod), now), Step::Create);
    }

    #[test]
    fn a_rejected_mirror_pod_is_sent_again_after_a_while_or_a_change() {
        let (name, pod) = mirrored(&local());
        let now = Instant::now();
        let mut mirrors = Mirrors::default();
        assert!(mirrors.reject(name.clone(), &pod, now));
        assert_eq!(mirrors.step(&name, Some(&pod), now + AGAIN / 2), Step::Nothing);
        assert_eq!((mirrors.due(now), mirrors.due(now + AGAIN)), (vec![], vec![name.clone()]));
        let mut other = local();
        other["metadata"]["labels"]["a"] = "c".into();
        assert_eq!(mirrors.step(&name, Some(&mirrored(&other).1), now), Step::Create);
        assert_eq!(mirrors.step(&name, Some(&pod), now + AGAIN), Step::Create);
        assert!(!mirrors.reject(name.clone(), &pod, now + AGAIN), "each reason once");
        // Without the pod, nothing is remembered.
        assert_eq!(mirrors.step(&name, None, now), Step::Nothing);
        assert!(mirrors.reject(name, &pod, now));
    }

    #[test]
    fn mirror_pods_that_a_list_lacks_are_forgotten() {
        let mut mirrors = Mirrors::default();
        for uid in ["a", "b"] {
            mirrors.see(json!({ "metadata": { "name": uid, "namespace": "n", "uid": uid } }));
        }
        let mut listed = SortedSet::new();
        listed.insert("b".to_owned());
        mirrors.keep(&listed);
        assert_eq!(mirrors.names(), [("n".to_owned(), "b".to_owned())]);
    }
}
