//! Pods of the cluster: which of them this board runs, and what it reports about them. Pure.
//!
//! A pod becomes a manifest of the board, as a pod of any other source: the copy has no fields that only the cluster
//! acts on, and gets its service account's token from a Secret of the board.

use std::time::Duration;

use serde_json::{Map, Value, json};

/// What to do about a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, or nothing yet.
    Nothing,
    /// Write the manifest, if it differs.
    Run,
    /// Remove the manifest, and end the pod within this time; `None` for the pod's own.
    End(Option<Duration>),
    /// Delete the pod from the cluster: it has ended here.
    Delete,
}

/// Decides about a pod as the cluster has it. `has_manifest` is whether this board has its manifest; `is_present`,
/// whether anything of it may still run here.
pub fn step(pod: &Value, has_manifest: bool, is_present: bool) -> Step {
    let metadata = &pod["metadata"];
    let is_over = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    match (metadata["deletionTimestamp"].is_string(), has_manifest, is_present) {
        (true, true, _) => {
            let grace = metadata["deletionGracePeriodSeconds"].as_u64();
            // The smallest grace period of a kubelet.
            Step::End(grace.map(|seconds| Duration::from_secs(seconds.max(1))))
        }
        (true, false, true) => Step::Nothing,
        (true, false, false) => Step::Delete,
        (false, true, _) => Step::Run,
        // Neither finished nor rejected pods run again.
        (false, false, _) if is_over => Step::Nothing,
        (false, false, _) => Step::Run,
    }
}

/// The copy of a pod for this board, and what it needs.
#[derive(Debug, PartialEq)]
pub struct LocalPod {
    /// The manifest.
    pub manifest: Value,
    /// Resource and name of the ConfigMaps and Secrets that the pod refers to, in its namespace.
    pub objects: Vec<(&'static str, String)>,
    /// The tokens that its volumes contain.
    pub tokens: Vec<Token>,
    /// The PriorityClass of the pod.
    pub class: Option<Value>,
}

/// A token of a service account in a volume.
#[derive(Debug, PartialEq, Eq)]
pub struct Token {
    /// The name of the Secret of the board that contains it.
    pub secret: String,
    /// The name of the service account.
    pub account: String,
    /// `audience`; empty for that of the API server.
    pub audience: String,
    /// `expirationSeconds`.
    pub seconds: u64,
}

/// The prefix of names of Secrets with tokens.
pub const TOKEN_PREFIX: &str = "nodlet-token-";

/// The key of a token in its Secret.
const TOKEN_KEY: &str = "token";

/// Makes the copy of a pod for this board.
pub fn local(pod: &Value) -> LocalPod {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut spec = pod["spec"].clone();
    let uid = text(&pod["metadata"]["uid"]);
    let mut account = text(&spec["serviceAccountName"]);
    if account.is_empty() {
        account = "default".to_owned();
    }
    let mut tokens = Vec::new();
    // `pointer_mut` adds no field, as an index would.
    for volume in elements(spec.get_mut("volumes")) {
        for source in elements(volume.pointer_mut("/projected/sources")) {
            let Some(token) = source.get("serviceAccountToken") else { continue };
            let secret = format!("{TOKEN_PREFIX}{uid}-{}", tokens.len());
            let items = json!([{ "key": TOKEN_KEY, "path": token["path"] }]);
            tokens.push(Token {
                secret: secret.clone(),
                account: account.clone(),
                audience: text(&token["audience"]),
                seconds: token["expirationSeconds"].as_u64().unwrap_or(3600),
            });
            // Optional: without the cluster, after a reboot, the pod starts without a token and gets it later.
            *source = json!({ "secret": { "name": secret, "optional": true, "items": items } });
        }
    }
    let objects = references(&spec);
    let class = class(&spec);
    if let Some(spec) = spec.as_object_mut() {
        // The token is in the volume; the account itself has no effect here.
        for field in
            ["serviceAccount", "serviceAccountName", "automountServiceAccountToken", "enableServiceLinks"]
        {
            spec.remove(field);
        }
        if spec.get("priorityClassName").is_none_or(|class| class == "") {
            spec.remove("priority");
            spec.remove("preemptionPolicy");
        }
    }
    let mut metadata = Map::new();
    for field in ["name", "namespace", "uid", "generation", "labels", "annotations"] {
        if let Some(value) = pod["metadata"].get(field) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    let manifest = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
    LocalPod { manifest, objects, tokens, class }
}

/// The elements of a list, if it is one.
fn elements(list: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    list.and_then(Value::as_array_mut).into_iter().flatten()
}

/// The ConfigMaps and Secrets that a spec refers to, each once.
fn references(spec: &Value) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let mut add = |resource: &'static str, name: &Value| {
        if let Some(name) = name.as_str().filter(|name| !name.is_empty() && !name.starts_with(TOKEN_PREFIX)) {
            let one = (resource, name.to_owned());
            if !found.contains(&one) {
                found.push(one);
            }
        }
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for volume in list(&spec["volumes"]) {
        add("configmaps", &volume["configMap"]["name"]);
        add("secrets", &volume["secret"]["secretName"]);
        for source in list(&volume["projected"]["sources"]) {
            add("configmaps", &source["configMap"]["name"]);
            add("secrets", &source["secret"]["name"]);
        }
    }
    for secret in list(&spec["imagePullSecrets"]) {
        add("secrets", &secret["name"]);
    }
    for container in list(&spec["containers"]).into_iter().chain(list(&spec["initContainers"])) {
        for variable in list(&container["env"]) {
            add("configmaps", &variable["valueFrom"]["configMapKeyRef"]["name"]);
            add("secrets", &variable["valueFrom"]["secretKeyRef"]["name"]);
        }
        for all in list(&container["envFrom"]) {
            add("configmaps", &all["configMapRef"]["name"]);
            add("secrets", &all["secretRef"]["name"]);
        }
    }
    found
}

/// The PriorityClass of a pod, as its admission by the cluster shows it; `None` for those that every board has.
fn class(spec: &Value) -> Option<Value> {
    let name =
        spec["priorityClassName"].as_str().filter(|name| !name.is_empty() && !name.starts_with("system-"))?;
    Some(json!({
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": { "name": name },
        "value": spec["priority"],
        "preemptionPolicy": spec.get("preemptionPolicy").cloned().unwrap_or_else(|| "PreemptLowerPriority".into()),
    }))
}

/// The manifest of a ConfigMap or Secret.
pub fn local_object(object: &Value, kind: &str) -> Value {
    let mut local = json!({
        "apiVersion": "v1",
        "kind": kind,
        "metadata": { "name": object["metadata"]["name"], "namespace": object["metadata"]["namespace"] },
    });
    for field in ["data", "binaryData", "immutable", "type"] {
        if let Some(value) = object.get(field) {
            local[field] = value.clone();
        }
    }
    local
}

/// The Secret of the board with a token.
pub fn token_secret(namespace: &str, token: &Token, value: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": token.secret, "namespace": namespace },
        "stringData": { TOKEN_KEY: value },
    })
}

/// The request for a token that is bound to a pod.
pub fn token_request(pod: &Value, token: &Token) -> Value {
    let mut request = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "expirationSeconds": token.seconds,
            "boundObjectRef": {
                "apiVersion": "v1", "kind": "Pod",
                "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
            },
        },
    });
    if !token.audience.is_empty() {
        request["spec"]["audiences"] = json!([token.audience]);
    }
    request
}

/// Fields of a pod's status that this node owns, and that are removed when they have no value any more.
const OWN_FIELDS: [&str; 13] = [
    "containerStatuses",
    "ephemeralContainerStatuses",
    "hostIP",
    "hostIPs",
    "initContainerStatuses",
    "message",
    "observedGeneration",
    "phase",
    "podIP",
    "podIPs",
    "reason",
    "resources",
    "startTime",
];

/// The strategic merge patch that makes the cluster's status of a pod that of the local API; `None` if it is already.
/// Conditions of others, such as those of the scheduler, stay.
pub fn status_patch(local: &Value, known: &Value) -> Option<Value> {
    let status = &local["status"];
    let mut patch = Map::new();
    for field in OWN_FIELDS {
        match (status.get(field), known.get(field)) {
            (Some(new), old) if Some(new) != old => {
                let mut new = new.clone();
                // These merge by address: one of an earlier sandbox must go.
                if let ("podIPs" | "hostIPs", Some(list)) = (field, new.as_array_mut()) {
                    list.insert(0, json!({ "$patch": "replace" }));
                }
                patch.insert(field.to_owned(), new);
            }
            (None, Some(old)) if !old.is_null() => drop(patch.insert(field.to_owned(), Value::Null)),
            (Some(_) | None, _) => {}
        }
    }
    let known_conditions = known["conditions"].as_array();
    let is_known = |new: &Value| {
        let old = known_conditions.and_then(|all| all.iter().find(|old| old["type"] == new["type"]));
        old.is_some_and(|old| {
            new.as_object().into_iter().flatten().all(|(key, value)| old.get(key) == Some(value))
        })
    };
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let conditions: Vec<Value> =
        conditions.filter(|new| new["type"] != "PodScheduled" && !is_known(new)).cloned().collect();
    if !conditions.is_empty() {
        patch.insert("conditions".to_owned(), conditions.into());
    }
    if patch.is_empty() {
        return None;
    }
    Some(json!({ "metadata": { "uid": local["metadata"]["uid"] }, "status": patch }))
}

/// The reason of a pod that this node does not run because of its spec.
const UNSUPPORTED: &str = "PodSpecNotSupported";

/// The patch that rejects a pod, in a kubelet's form.
pub fn rejection(uid: &Value, message: &str) -> Value {
    json!({
        "metadata": { "uid": uid },
        "status": { "phase": "Failed", "reason": UNSUPPORTED, "message": format!("Pod was rejected: {message}") },
    })
}

/// The options of the final deletion of a pod.
pub fn final_deletion(uid: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": { "uid": uid } })
}

/// The event about a rejected pod.
pub fn rejection_event(pod: &Value, node: &str, suffix: &str, message: &str, now: &str) -> Value {
    let metadata = &pod["metadata"];
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": format!("{}.{suffix}", metadata["name"].as_str().unwrap_or_default()),
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod",
            "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"],
        },
        "type": "Warning",
        "reason": UNSUPPORTED,
        "message": message.chars().take(1024).collect::<String>(),
        "source": { "component": "kubelet", "host": node },
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_runs_ends_and_is_deleted_once() {
        let pod = |phase: &str, grace: Option<u64>| {
            let mut pod = json!({ "metadata": {}, "status": { "phase": phase } });
            if let Some(grace) = grace {
                pod["metadata"] = json!({ "deletionTimestamp": "t", "deletionGracePeriodSeconds": grace });
            }
            pod
        };
        let seconds = |seconds| Step::End(Some(Duration::from_secs(seconds)));
        for (phase, grace, has_manifest, is_present, expected) in [
            ("Pending", None, false, false, Step::Run),
            ("Running", None, true, true, Step::Run),
            // Known to the cluster from before a reboot without its manifest: it is to run.
            ("Running", None, false, false, Step::Run),
            ("Failed", None, false, false, Step::Nothing),
            ("Succeeded", None, false, true, Step::Nothing),
            ("Succeeded", None, true, true, Step::Run),
            ("Running", Some(30), true, true, seconds(30)),
            ("Running", Some(0), true, true, seconds(1)),
            ("Running", Some(30), false, true, Step::Nothing),
            ("Running", Some(30), false, false, Step::Delete),
            ("Failed", Some(0), false, false, Step::Delete),
        ] {
            let found = step(&pod(phase, grace), has_manifest, is_present);
            assert_eq!(found, expected, "{phase} {grace:?} {has_manifest} {is_present}");
        }
    }

    #[test]
    fn the_copy_of_a_pod_has_its_tokens_in_secrets_and_names_what_it_needs() {
        let pod = json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u", "finalizers": ["batch.kubernetes.io/job-tracking"],
                "managedFields": [{}], "ownerReferences": [{}], "resourceVersion": "9", "labels": { "a": "b" },
            },
            "spec": {
                "serviceAccountName": "robot", "priorityClassName": "high", "priority": 7, "preemptionPolicy": "Never",
                "imagePullSecrets": [{ "name": "pull" }],
                "volumes": [
                    { "name": "kube-api-access", "projected": { "sources": [
                        { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
                        { "configMap": { "name": "kube-root-ca.crt", "items": [] } },
                    ] } },
                    { "name": "s", "secret": { "secretName": "s1" } },
                ],
                "containers": [{
                    "name": "c",
                    "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s1", "key": "k" } } }],
                    "envFrom": [{ "configMapRef": { "name": "c1" } }],
                }],
            },
            "status": { "phase": "Pending" },
        });
        let local = local(&pod);
        let expected = Token {
            secret: "nodlet-token-u-0".into(),
            account: "robot".into(),
            audience: String::new(),
            seconds: 3607,
        };
        assert_eq!(local.tokens, [expected]);
        let objects = [
            ("configmaps", "kube-root-ca.crt"),
            ("secrets", "s1"),
            ("secrets", "pull"),
            ("configmaps", "c1"),
        ];
        assert_eq!(local.objects, objects.map(|(resource, name)| (resource, name.to_owned())));
        let class = local.class.expect("a class");
        assert_eq!((&class["value"], &class["preemptionPolicy"]), (&json!(7), &json!("Never")));
        assert_eq!(
            local.manifest["metadata"],
            json!({ "name": "web", "namespace": "shop", "uid": "u", "labels": { "a": "b" } })
        );
        let source = &local.manifest["spec"]["volumes"][0]["projected"]["sources"][0];
        assert_eq!(source["secret"]["items"][0], json!({ "key": "token", "path": "token" }));
        assert_eq!(local.manifest["spec"]["volumes"][1], pod["spec"]["volumes"][1]);
        assert_eq!(local.manifest["spec"].get("serviceAccountName"), None);
        let request = token_request(&pod, &local.tokens[0]);
        assert_eq!(request["spec"]["boundObjectRef"]["uid"], "u");
        assert_eq!(request["spec"].get("audiences"), None);
    }

    #[test]
    fn a_status_is_sent_as_far_as_it_differs() {
        let local = json!({ "metadata": { "uid": "u" }, "status": {
            "phase": "Running", "podIP": "10.0.0.2", "podIPs": [{ "ip": "10.0.0.2" }], "qosClass": "Burstable",
            "conditions": [
                { "type": "PodScheduled", "status": "True" },
                { "type": "Ready", "status": "True", "lastTransitionTime": "t" },
            ],
        } });
        let known = json!({ "phase": "Pending", "message": "old", "conditions": [
            { "type": "Ready", "status": "False" }, { "type": "DisruptionTarget", "status": "True" },
        ] });
        let patch = status_patch(&local, &known).expect("a patch");
        assert_eq!(
            patch,
            json!({ "metadata": { "uid": "u" }, "status": {
            "phase": "Running", "podIP": "10.0.0.2", "message": null,
            "podIPs": [{ "$patch": "replace" }, { "ip": "10.0.0.2" }],
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "t" }],
        } })
        );
        let after = json!({ "phase": "Running", "podIP": "10.0.0.2", "podIPs": [{ "ip": "10.0.0.2" }], "conditions": [
            { "type": "Ready", "status": "True", "lastTransitionTime": "t", "lastProbeTime": null },
        ] });
        assert_eq!(status_patch(&local, &after), None);
    }
}
