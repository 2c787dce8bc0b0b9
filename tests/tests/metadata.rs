//! Options of deletions, and what clients and files write into an object's metadata: each is honoured, or
//! rejected or warned about by name.

use nodlet_tests::{Background, Device, Kubectl, manifest};
use serde_json::{Value, json};

const WEB: &str = "/api/v1/namespaces/default/pods/web";
const OWNER: &str = "{apiVersion: v1, kind: ConfigMap, name: config, uid: f00}";

fn device_with_web() -> Device {
    let device = Device::start();
    device.apply(&manifest::pod("web", "sleep"));
    device.pod("web").wait_ready();
    device
}

fn version(device: &Device) -> String {
    let web = device.pod("web").object().expect("it is there");
    web["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// Asserts that an answer of the API has this code, and a message with this text.
#[track_caller]
fn assert_refused(answer: &(u16, Value), code: u16, text: &str) {
    let message = answer.1["message"].as_str().unwrap_or_default();
    assert!(answer.0 == code && message.contains(text), "{text}: {answer:?}");
}

/// Asserts that an answer of the API has this code and this message.
#[track_caller]
fn assert_answer(answer: &(u16, Value), code: u16, message: &str) {
    assert_eq!((answer.0, answer.1["message"].as_str()), (code, Some(message)));
}

/// A pod with more lines in its metadata.
fn with_metadata(name: &str, metadata: &str) -> String {
    manifest::with_metadata(&manifest::pod(name, "sleep"), metadata)
}

#[test]
fn a_deletion_that_is_for_another_version_or_another_pod_deletes_nothing() {
    let device = device_with_web();
    let delete = |preconditions: Value| {
        device.request("DELETE", WEB, Some(&json!({ "preconditions": preconditions })))
    };
    let (uid, now) = (device.pod("web").uid(), version(&device));
    let conflict = "Operation cannot be fulfilled on Pod \"web\": the";
    let stale = format!(
        "{conflict} ResourceVersion in the precondition (1) does not match the ResourceVersion in record ({now}). The \
         object might have been modified"
    );
    assert_answer(&delete(json!({ "resourceVersion": "1" })), 409, &stale);
    let other = format!(
        "{conflict} UID in the precondition (other) does not match the UID in record ({uid}). The object might have \
         been deleted and then recreated"
    );
    assert_answer(&delete(json!({ "uid": "other" })), 409, &other);
    assert_eq!(delete(json!({ "uid": uid, "resourceVersion": "1" })).0, 409);
    for query in ["uid=other", "resourceVersion=1"] {
        assert_refused(&device.request("DELETE", &format!("{WEB}?{query}"), None), 409, "");
    }
    let mut again = device.pod("web").object().expect("it is there");
    again["metadata"]["uid"] = "other".into();
    again["metadata"]["resourceVersion"] = "".into();
    let applied = device.nodlet_with_input(["apply", "-f", "-"], &again.to_string());
    let why = format!("Precondition failed: UID in precondition: other, UID in object meta: {uid}");
    assert!(applied.stderr.contains(&why), "{}", applied.stderr);
    let policy = json!({ "propagationPolicy": "Sometimes" });
    assert_refused(&device.request("DELETE", WEB, Some(&policy)), 422, "");
    assert_eq!(version(&device), now, "nothing was changed");
    let deleted = delete(json!({ "uid": uid, "resourceVersion": now }));
    assert_eq!(deleted.0, 200, "{deleted:?}");
    device.pod("web").wait_gone();
}

#[test]
fn an_object_that_is_put_or_created_with_a_version_has_that_version() {
    let device = device_with_web();
    let mut web = device.pod("web").object().expect("it is there");
    web["metadata"]["labels"] = json!({ "tier": "front" });
    web["metadata"]["resourceVersion"] = "1".into();
    for query in ["", "?force=true"] {
        let put = device.request("PUT", &format!("{WEB}{query}"), Some(&web));
        assert_refused(&put, 409, "please apply your changes to the latest version and try again");
    }
    web["metadata"]["name"] = "new".into();
    let created = device.request("POST", "/api/v1/namespaces/default/pods", Some(&web));
    assert_answer(&created, 400, "resourceVersion should not be set on objects to be created");
    let class = json!({ "metadata": { "name": "high" }, "value": 7 });
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    assert_eq!(device.request("POST", classes, Some(&class)).0, 201);
    let mut owned = class.clone();
    (owned["apiVersion"], owned["kind"]) = ("scheduling.k8s.io/v1".into(), "PriorityClass".into());
    owned["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "v1", "kind": "A", "name": "a", "uid": "f00" }]);
    let warned = device.nodlet_with_input(["apply", "--dry-run=server", "-f", "-"], &owned.to_string());
    assert!(warned.stderr.contains("metadata.ownerReferences: has no effect"), "{}", warned.stderr);
    let high = format!("{classes}/high");
    let stale =
        json!({ "metadata": { "name": "high", "resourceVersion": "1" }, "value": 7, "description": "d" });
    assert_refused(&device.request("PUT", &high, Some(&stale)), 409, "");
    let stale = json!({ "preconditions": { "resourceVersion": "1" } });
    let text = "PriorityClass.scheduling.k8s.io \"high\": the ResourceVersion";
    assert_refused(&device.request("DELETE", &high, Some(&stale)), 409, text);
    assert_eq!(device.request("DELETE", &high, None).0, 200);
}

#[test]
fn a_negative_grace_is_one_second_and_watchers_see_no_other() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let stubborn = manifest::pod_with("web", "sleep", "terminationGracePeriodSeconds: 60");
    // Each iteration is another chance to see the wrong grace period.
    for _ in 0..5 {
        device.apply(&stubborn);
        device.pod("web").wait_ready();
        let shown = "jsonpath={.metadata.deletionGracePeriodSeconds}{'\\n'}";
        let watch = Background::start(kubectl.command(["get", "pod", "web", "--watch", "-o", shown]));
        device.wait_for("the pod, not deleted", || watch.lines() == [""]);
        let answer = device.request("DELETE", WEB, Some(&json!({ "gracePeriodSeconds": -5 })));
        assert_eq!(answer.1["metadata"]["deletionGracePeriodSeconds"], 1, "{answer:?}");
        device.wait_for("the grace", || watch.saw(|grace| grace == "1"));
        device.pod("web").wait_gone();
        let graces = watch.end();
        let mut deleted = graces.iter().skip_while(|grace| grace.is_empty());
        assert!(deleted.all(|grace| grace == "1"), "{graces:?}");
    }
}

#[test]
fn annotations_that_name_profiles_have_the_warnings_of_kubernetes() {
    let device = device_with_web();
    let key = "container.apparmor.security.beta.kubernetes.io/app";
    let seccomp = "seccomp.security.alpha.kubernetes.io/pod";
    for (key, value, warning) in [
        (key, "unconfined", "deprecated since v1.30; use the \"appArmorProfile\" field instead"),
        (seccomp, "runtime/default", "non-functional in v1.27+; use the \"seccompProfile\" field instead"),
    ] {
        let open = with_metadata("open", &format!("annotations: {{{key}: {value}}}"));
        let warned = device.nodlet_with_input(["apply", "--dry-run=server", "-f", "-"], &open).stderr;
        assert!(warned.contains(&format!("metadata.annotations[{key}]: {warning}")), "{warned}");
    }

    // Nor can a patch of any kind add them to a running pod.
    for kind in ["strategic-merge", "merge"] {
        let patch = json!({ "metadata": { "annotations": { key: "unconfined" } } });
        let text = format!("metadata.annotations[{key}]: Forbidden: may not add AppArmor annotations");
        assert_refused(&device.patch(WEB, kind, &patch), 422, &text);
    }
}

#[test]
fn owners_and_prefixes_of_names_are_kept_whoever_gives_them_and_finalizers_are_refused() {
    let device = device_with_web();
    let uid = device.pod("web").uid();
    let metadata = || device.pod("web").object().expect("it is there")["metadata"].clone();
    let owner = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "config", "uid": "f00" });
    let kubectl = Kubectl::new(&device);
    let patch = json!({ "metadata": { "ownerReferences": [owner], "generateName": "web-" } }).to_string();
    let patched = kubectl.run(["patch", "pod", "web", "-p", &patch]);
    let (version, _) = env!("CARGO_PKG_VERSION").rsplit_once('.').expect("a version has dots");
    let words =
        format!("metadata.ownerReferences: has no effect: nodlet {version} deletes no object with its owner");
    assert!(patched.stderr.contains(&words), "{}", patched.stderr);
    assert_eq!(
        (&metadata()["ownerReferences"], &metadata()["generateName"]),
        (&json!([owner]), &json!("web-"))
    );

    let operations = json!([{ "op": "remove", "path": "/metadata/ownerReferences" }]);
    assert_eq!(device.patch(WEB, "json", &operations).0, 200);
    assert_eq!(metadata()["ownerReferences"], Value::Null);
    let mut web = device.pod("web").object().expect("it is there");
    web["metadata"]["ownerReferences"] = json!([owner]);
    assert_eq!(device.request("PUT", WEB, Some(&web)).0, 200);
    assert_eq!(metadata()["ownerReferences"], json!([owner]));
    assert_eq!(device.pod("web").uid(), uid, "it is the same pod");

    let words = format!(
        "metadata.finalizers: Forbidden: nodlet {version} does not keep an object for its finalizers"
    );
    let finalizers = json!({ "metadata": { "finalizers": ["example.com/hold"] } });
    for kind in ["strategic-merge", "merge"] {
        assert_refused(&device.patch(WEB, kind, &finalizers), 422, &words);
    }
    let mut held = device.pod("web").object().expect("it is there");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    assert_refused(&device.request("PUT", WEB, Some(&held)), 422, &words);
    let lines = format!("finalizers: [example.com/hold]\n  ownerReferences: [{OWNER}]");
    let text = with_metadata("held", &lines);
    device.reject(&text, &words);
    device.write_manifest("held.yaml", &text);
    device.wait_for("the file to be refused", || device.nodlet(["get", "events"]).ok().contains(&words));
    let deleted = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let words = "metadata.deletionTimestamp: Invalid value: \"2026-01-01T00:00:00Z\": field is immutable";
    assert_refused(&device.patch(WEB, "merge", &deleted), 422, words);
}

#[test]
fn ephemeral_containers_are_not_changed_by_a_patch_of_the_pod() {
    let device = device_with_web();
    let debugger = json!({ "name": "debugger", "image": "localhost/demo:1" });
    let patch = json!({ "spec": { "ephemeralContainers": [debugger] } });
    let refused = device.patch(WEB, "strategic-merge", &patch);
    let words = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`";
    assert_refused(&refused, 422, words);
    // The error mentions no fields that the agent itself has added to the pod.
    let text = refused.1.to_string();
    assert!(!text.contains("riority") && !text.contains("preemption"), "{text}");
    let added = device.patch(&format!("{WEB}/ephemeralcontainers"), "strategic-merge", &patch);
    assert_eq!(added.0, 200, "{added:?}");
    let none = json!({ "spec": { "ephemeralContainers": [] } });
    assert_refused(&device.patch(WEB, "merge", &none), 422, words);
    // A patch that leaves them unchanged can change other fields.
    let labels = json!({ "metadata": { "labels": { "tier": "front" } } });
    assert_eq!(device.patch(WEB, "merge", &labels).0, 200);
    let web = device.pod("web").object().expect("it is there");
    assert_eq!(web["spec"]["ephemeralContainers"][0]["name"], "debugger");
}
