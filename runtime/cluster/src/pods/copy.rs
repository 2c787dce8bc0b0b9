//! The copy of a pod of the cluster for this board, and of the objects that the pod needs. Pure.

use nodlet_core::spec::container::DEVICE_DOMAIN;
use nodlet_kube::kinds::Kind;
use nodlet_kube::manifest::is_object_name;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::services::{self, SERVICES};
use crate::trust::{self, BUNDLES};

/// The copy of a pod for this board, and what it needs.
#[derive(Debug, PartialEq)]
pub struct LocalPod {
    /// The manifest, or its digest after [`LocalPod::take_manifest`].
    pub manifest: Value,
    /// Resource and name of the ConfigMaps and Secrets that the pod refers to, in its namespace, and of Services as in
    /// [`services::path`], and of ClusterTrustBundles as in [`trust::path`].
    pub objects: Vec<(&'static str, String)>,
    /// The tokens that its volumes contain.
    pub tokens: Vec<Token>,
    /// The PriorityClass of the pod.
    pub class: Option<Value>,
    /// The PersistentVolumeClaims of its volumes.
    pub claims: Vec<String>,
    /// Fields of security contexts that the pod sets and that have no effect.
    pub ignored: Vec<&'static str>,
}

impl LocalPod {
    /// Takes the manifest, and leaves its digest, which is enough to notice a change.
    pub fn take_manifest(&mut self) -> Value {
        let digest = digest(&self.manifest).into();
        std::mem::replace(&mut self.manifest, digest)
    }
}

/// The digest of an object: 16 bytes of SHA-256 in hexadecimal digits.
pub fn digest(object: &Value) -> String {
    Sha256::digest(object.to_string().as_bytes())[..16].iter().map(|byte| format!("{byte:02x}")).collect()
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

/// The first part of the names of all objects that the board itself makes for pods of the cluster: Secrets with tokens,
/// ConfigMaps with variables of Services or with certificates.
const OWN: &str = "nodlet";

/// What follows [`OWN`] in these names.
const OWN_RESTS: [&str; 3] = ["-token-", "-trust-", ".services"];

/// What replaces [`OWN`] where a pod itself names such an object. It has the same length, so that each bound of a name
/// still holds.
const NOT_OWN: &str = "denied";

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
    deny_own_objects(&mut spec, "");
    let (mut tokens, mut bundles) = (Vec::new(), Vec::new());
    // `pointer_mut` adds no field, as an index would.
    for volume in elements(spec.get_mut("volumes")) {
        for source in elements(volume.pointer_mut("/projected/sources")) {
            if let Some(selection) = trust::link(source) {
                bundles.push((BUNDLES, selection));
                continue;
            }
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
    let ignored = remove_ignored(&mut spec);
    remove_foreign_resources(&mut spec);
    let mut objects = references(&spec);
    objects.extend(services::link(&mut spec).into_iter().map(|of| (SERVICES, of)));
    objects.extend(bundles);
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
    // These are added to the pod that runs, and each counts as a change of its spec.
    let ephemeral = spec.as_object_mut().and_then(|spec| spec.remove("ephemeralContainers"));
    let added = ephemeral.as_ref().and_then(Value::as_array).map_or(0, Vec::len) as u64;
    let mut metadata = Map::new();
    for field in ["name", "namespace", "uid", "generation", "labels", "annotations"] {
        if let Some(value) = pod["metadata"].get(field) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    if let Some(generation) = metadata.get_mut("generation") {
        *generation = generation.as_u64().unwrap_or(1).saturating_sub(added).max(1).into();
    }
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    let manifest = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
    let claims = claims(&manifest);
    LocalPod { manifest, objects, tokens, class, claims, ignored }
}

fn is_own(name: &str) -> bool {
    name.strip_prefix(OWN).is_some_and(|rest| OWN_RESTS.iter().any(|own| rest.starts_with(own)))
}

/// Replaces the names of objects that the board itself makes for pods (the token of another pod, above all), wherever the
/// author of a pod refers to a ConfigMap or a Secret: such an object is only for the pod for which it was made. It comes
/// before the board's own references. `field` is the name of the field that has `value`, or the list with it.
pub fn deny_own_objects(value: &mut Value, field: &str) {
    let refers = matches!(
        field,
        "configMap"
            | "configMapKeyRef"
            | "configMapRef"
            | "imagePullSecrets"
            | "secret"
            | "secretKeyRef"
            | "secretRef"
    );
    match value {
        Value::Array(all) => all.iter_mut().for_each(|one| deny_own_objects(one, field)),
        Value::Object(fields) => {
            for (field, value) in fields.iter_mut() {
                match value {
                    Value::String(name) if refers && matches!(field.as_str(), "name" | "secretName") => {
                        if is_own(name) {
                            name.replace_range(..OWN.len(), NOT_OWN);
                        }
                    }
                    _ => deny_own_objects(value, field),
                }
            }
        }
        _ => {}
    }
}

/// Removes the fields that have no effect under a kubelet on Linux with containerd either, and returns their names. In
/// a manifest of the board they are errors.
fn remove_ignored(spec: &mut Value) -> Vec<&'static str> {
    let mut removed = Vec::new();
    let mut remove = |of: &mut Value| {
        if let Some(context) = of.get_mut("securityContext").and_then(Value::as_object_mut) {
            for field in ["seLinuxOptions", "windowsOptions"] {
                if context.remove(field).is_some() && !removed.contains(&field) {
                    removed.push(field);
                }
            }
        }
    };
    remove(spec);
    for list in ["initContainers", "containers"] {
        elements(spec.get_mut(list)).for_each(&mut remove);
    }
    removed
}

/// Removes the extended resources that are no devices of the board: somebody else advertises them, and only the scheduler
/// counts them (`removeMissingExtendedResources`). In a manifest of the board they are errors.
fn remove_foreign_resources(spec: &mut Value) {
    let is_foreign = |name: &str| {
        name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with(DEVICE_DOMAIN)
    };
    for list in ["initContainers", "containers"] {
        for container in elements(spec.get_mut(list)) {
            for amounts in ["/resources/limits", "/resources/requests"] {
                if let Some(amounts) = container.pointer_mut(amounts).and_then(Value::as_object_mut) {
                    amounts.retain(|name, _| !is_foreign(name));
                }
            }
        }
    }
}

/// The elements of a list, if it is one.
fn elements(list: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    list.and_then(Value::as_array_mut).into_iter().flatten()
}

/// The ConfigMaps and Secrets that a spec refers to, each once. The API accepts any text as the name of an object in a
/// volume: one that no object can have is not requested, since it could be a part of another request.
fn references(spec: &Value) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let mut add = |resource: &'static str, name: &Value| {
        if let Some(name) = name.as_str().filter(|name| is_object_name(name) && !is_own(name)) {
            let one = (resource, name.to_owned());
            if !found.contains(&one) {
                found.push(one);
            }
        }
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    add("runtimeclasses", &spec["runtimeClassName"]);
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

/// The PersistentVolumeClaims of a pod, those that are made for its `ephemeral` volumes included, without names that no
/// claim can have.
pub(super) fn claims(pod: &Value) -> Vec<String> {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let claim = |volume: &Value| match volume["persistentVolumeClaim"]["claimName"].as_str() {
        Some(name) => Some(name.to_owned()),
        None if volume["ephemeral"].is_object() => {
            Some(format!("{}-{}", pod["metadata"]["name"].as_str()?, volume["name"].as_str()?))
        }
        None => None,
    };
    volumes.filter_map(claim).filter(|name| is_object_name(name)).collect()
}

/// The manifest of a PersistentVolumeClaim or PersistentVolume that the cluster has bound.
pub fn local_volume(object: &Value, kind: &str) -> Value {
    let mut local = json!({
        "apiVersion": "v1",
        "kind": kind,
        "metadata": { "name": object["metadata"]["name"] },
        "spec": object["spec"],
    });
    if let Some(namespace) = object["metadata"].get("namespace") {
        local["metadata"]["namespace"] = namespace.clone();
    }
    // The board knows the claim by its name: it has no UID here.
    if let Some(claim) = local["spec"].get("claimRef") {
        local["spec"]["claimRef"] = json!({ "namespace": claim["namespace"], "name": claim["name"] });
    }
    local
}

/// The PriorityClass of a pod, as its admission by the cluster shows it; `None` for those that every board has.
pub(super) fn class(spec: &Value) -> Option<Value> {
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

/// The manifest of an object that pods refer to.
pub fn local_object(object: &Value, resource: &str) -> Value {
    let kind = Kind::of_resource(resource).unwrap_or(Kind::ConfigMap);
    let mut local = json!({
        "apiVersion": kind.version(),
        "kind": kind.as_str(),
        "metadata": { "name": object["metadata"]["name"] },
    });
    if let Some(namespace) = object["metadata"].get("namespace") {
        local["metadata"]["namespace"] = namespace.clone();
    }
    for field in ["data", "binaryData", "immutable", "type", "handler", "overhead", "scheduling"] {
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

/// The seconds after which a token is renewed that the cluster granted: 80 % of its life, which may be shorter than
/// requested (`--service-account-max-token-expiration`), and at most a day, as by a kubelet.
pub fn token_renewal(token: &Token, granted: &Value) -> u64 {
    const DAY: u64 = 24 * 60 * 60;
    let life = granted["spec"]["expirationSeconds"].as_u64().unwrap_or(token.seconds);
    (life / 5 * 4).min(DAY)
}

#[cfg(test)]
mod tests {
    use super::super::ephemeral;
    use super::*;

    #[test]
    fn the_copy_has_no_resources_that_somebody_else_advertises() {
        let amounts =
            json!({ "example.com/dongle": "3", "nodlet.dev/gps": "1", "hugepages-2Mi": "2Mi", "cpu": "1" });
        let container = json!({ "name": "a", "resources": { "limits": amounts, "requests": amounts } });
        let pod = json!({ "spec": { "containers": [container], "initContainers": [container] } });
        let copy = local(&pod).manifest;
        for list in ["containers", "initContainers"] {
            for kind in ["limits", "requests"] {
                let left = copy["spec"][list][0]["resources"][kind].as_object().expect("amounts");
                let left: Vec<&str> = left.keys().map(String::as_str).collect();
                assert_eq!(left, ["cpu", "hugepages-2Mi", "nodlet.dev/gps"], "{list} {kind}");
            }
        }
    }

    #[test]
    fn a_pod_cannot_refer_to_the_objects_that_the_board_makes_for_others() {
        assert!(TOKEN_PREFIX.starts_with(OWN) && trust::PREFIX.starts_with(OWN));
        let bundle = json!({ "clusterTrustBundle": { "name": "a", "path": "a" } });
        let own =
            { json!([{ "projected": { "sources": [{ "serviceAccountToken": { "path": "t" } }, bundle] } }]) };
        let own = json!({ "metadata": { "uid": "u" }, "spec": { "volumes": own, "containers": [{}] } });
        let linked = local(&own).manifest["spec"].to_string();
        for name in ["nodlet-token-u-0", "nodlet-trust-", "nodlet.services", "nodlet.services.kubernetes"] {
            assert!(linked.contains(name), "the board's own references: {linked}");
            let container = json!({
                "env": [
                    { "valueFrom": { "configMapKeyRef": { "name": name, "key": "k" } } },
                    { "valueFrom": { "secretKeyRef": { "name": name, "key": "k" } } },
                ],
                "envFrom": [{ "configMapRef": { "name": name } }, { "secretRef": { "name": name } }],
            });
            let spec = json!({
                "volumes": [
                    { "configMap": { "name": name } },
                    { "secret": { "secretName": name } },
                    { "projected": { "sources": [{ "configMap": { "name": name } }, { "secret": { "name": name } }] } },
                ],
                "imagePullSecrets": [{ "name": name }],
                "initContainers": [container],
                "containers": [container],
                "ephemeralContainers": [container],
            });
            let places = spec.to_string().matches(name).count();
            assert_eq!(places, 17);
            let mut denied = spec.clone();
            deny_own_objects(&mut denied, "");
            let expected = spec.to_string().replace(name, &name.replacen("nodlet", "denied", 1));
            assert_eq!(denied.to_string(), expected);
            // Without links to Services, the copy has one reference of its own, to the variables of `kubernetes`.
            let mut pod = json!({ "metadata": { "uid": "other" }, "spec": spec });
            pod["spec"]["enableServiceLinks"] = false.into();
            let copy = local(&pod);
            let left = copy.manifest.to_string().replace("\"nodlet.services.kubernetes\"", "");
            assert!(!left.contains(name), "{left}");
            let is_requested = |(resource, of): &(&str, String)| *resource != SERVICES && of == name;
            assert!(!copy.objects.iter().any(is_requested), "{:?}", copy.objects);
        }
        // Other fields and other names are the pod's own.
        let mut other = json!({ "containers": [{ "name": "nodlet-token-u-0", "envFrom": [{ "secretRef": { "name": "nodlet-x" } }] }] });
        let before = other.clone();
        deny_own_objects(&mut other, "");
        assert_eq!(other, before);
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
            ("services", "kubernetes"),
            ("services", ""),
        ];
        assert_eq!(local.objects, objects.map(|(resource, name)| (resource, name.to_owned())));
        let class = local.class.expect("a class");
        assert_eq!(json!([class["value"], class["preemptionPolicy"]]), json!([7, "Never"]));
        assert_eq!(
            local.manifest["metadata"],
            json!({ "name": "web", "namespace": "shop", "uid": "u", "labels": { "a": "b" } })
        );
        let source = &local.manifest["spec"]["volumes"][0]["projected"]["sources"][0];
        assert_eq!(source["secret"]["items"][0], json!({ "key": "token", "path": "token" }));
        assert_eq!(local.manifest["spec"]["volumes"][1], pod["spec"]["volumes"][1]);
        assert_eq!(local.manifest["spec"].get("serviceAccountName"), None);
        let request = token_request(&pod, &local.tokens[0]);
        for (granted, expected) in [(json!(3607), 2884), (json!(600), 480), (json!(172_800), 86_400)] {
            let granted = json!({ "spec": { "expirationSeconds": granted } });
            assert_eq!(token_renewal(&local.tokens[0], &granted), expected);
        }
        assert_eq!(request["spec"]["boundObjectRef"]["uid"], "u");
        assert_eq!(request["spec"].get("audiences"), None);
    }

    #[test]
    fn a_pod_needs_its_claims_and_its_runtime_class() {
        let pod = json!({ "metadata": { "name": "db" }, "spec": { "runtimeClassName": "fast", "volumes": [
            { "name": "a", "persistentVolumeClaim": { "claimName": "data" } },
            { "name": "b", "ephemeral": { "volumeClaimTemplate": {} } },
            { "name": "c", "emptyDir": {} },
        ] } });
        let local = local(&pod);
        assert_eq!(local.claims, ["data", "db-b"]);
        assert!(local.objects.contains(&("runtimeclasses", "fast".to_owned())));
        let volume = json!({ "metadata": { "name": "v", "uid": "x" }, "status": {},
            "spec": { "hostPath": { "path": "/d" }, "claimRef": { "namespace": "n", "name": "data", "uid": "y", "kind": "z" } } });
        assert_eq!(
            local_volume(&volume, "PersistentVolume"),
            json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "v" },
                "spec": { "hostPath": { "path": "/d" }, "claimRef": { "namespace": "n", "name": "data" } } })
        );
        let class =
            json!({ "metadata": { "name": "fast" }, "handler": "runc", "overhead": { "podFixed": {} } });
        let local = local_object(&class, "runtimeclasses");
        assert_eq!(json!([local["kind"], local["handler"]]), json!(["RuntimeClass", "runc"]));
        assert_eq!(local["metadata"], json!({ "name": "fast" }));
    }

    #[test]
    fn names_that_no_object_can_have_are_not_requested() {
        let mut volumes = vec![json!({ "name": "right", "secret": { "secretName": "s.1" } })];
        for odd in
            ["100%", "x&watch=1", "x?y", "x#y", "../x", "x/y", "X", "x,metadata.name=y", "", "a b", "\u{e9}"]
        {
            volumes.push(json!({ "name": "a", "secret": { "secretName": odd } }));
            volumes.push(json!({ "name": "b", "configMap": { "name": odd } }));
            volumes.push(json!({ "name": "c", "projected": { "sources": [{ "secret": { "name": odd } }] } }));
            volumes.push(json!({ "name": "d", "persistentVolumeClaim": { "claimName": odd } }));
            volumes.push(json!({ "name": odd, "ephemeral": {} }));
        }
        let pod = json!({ "metadata": { "name": "web" },
            "spec": { "volumes": volumes, "imagePullSecrets": [{ "name": "a%" }], "containers": [] } });
        let local = local(&pod);
        let objects: Vec<_> = local.objects.iter().filter(|(resource, _)| *resource != SERVICES).collect();
        assert_eq!(objects, [&("secrets", "s.1".to_owned())]);
        assert!(local.claims.is_empty(), "{:?}", local.claims);
    }

    #[test]
    fn ephemeral_containers_change_no_manifest() {
        let mut pod = json!({ "metadata": { "name": "a", "generation": 1 }, "spec": { "containers": [] } });
        let without = local(&pod);
        pod["spec"]["ephemeralContainers"] = json!([{ "name": "debug" }]);
        pod["metadata"]["generation"] = 2.into();
        assert_eq!(local(&pod), without);
        assert_eq!(ephemeral(&pod).len(), 1);
        pod["metadata"]["generation"] = 3.into();
        assert_ne!(local(&pod), without, "something else changed, too");
    }

    #[test]
    fn fields_that_no_node_with_containerd_acts_on_are_removed_and_named_once() {
        let context = json!({ "seLinuxOptions": { "level": "s0" }, "runAsUser": 1 });
        let pod = json!({ "metadata": {}, "spec": {
            "securityContext": context.clone(),
            "containers": [{ "name": "a", "securityContext": context }],
            "initContainers": [{ "name": "b", "securityContext": { "windowsOptions": {} } }],
        } });
        let local = local(&pod);
        assert_eq!(local.ignored, ["seLinuxOptions", "windowsOptions"]);
        let spec = &local.manifest["spec"];
        for left in [&spec["securityContext"], &spec["containers"][0]["securityContext"]] {
            assert_eq!(*left, json!({ "runAsUser": 1 }));
        }
        assert_eq!(spec["initContainers"][0]["securityContext"], json!({}));
    }
}
