//! Pods and other objects of a server that lies: each of their fields is absent, null, of another type, or too large.

use nodlet_kube::manifest::{self, Validation};
use serde_json::{Value, json};

use super::super::*;
use crate::followed::{Followed, Known};
use crate::mirrors::{self, Mirrors};
use crate::pod_cidrs::Nodes;
use crate::{enrol, gates, node, services, sync, trust};

fn pod() -> Value {
    serde_json::from_str(include_str!("damaged.json")).expect("valid")
}

/// The paths of all values within this one, and of itself.
fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
    found.push(path.to_owned());
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                paths(value, &format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), found);
            }
        }
        Value::Array(all) => {
            for (place, value) in all.iter().enumerate() {
                paths(value, &format!("{path}/{place}"), found);
            }
        }
        _ => {}
    }
}

/// Every copy of an object in which one value is absent or another one.
fn damaged(object: &Value, mut check: impl FnMut(Value)) {
    let others = [
        json!(null),
        json!(-1),
        json!(u64::MAX),
        json!(""),
        json!("\u{0}../\u{202e}ä%\r\n"),
        json!([]),
        json!([5]),
        json!({}),
    ];
    let mut all = Vec::new();
    paths(object, "", &mut all);
    for path in all {
        for other in &others {
            let mut copy = object.clone();
            *copy.pointer_mut(&path).expect("a value") = other.clone();
            if copy.is_object() {
                check(copy);
            }
        }
        let Some((parent, key)) = path.rsplit_once('/') else { continue };
        let mut copy = object.clone();
        match copy.pointer_mut(parent) {
            Some(Value::Object(fields)) => drop(fields.remove(&key.replace("~1", "/").replace("~0", "~"))),
            Some(Value::Array(all)) => drop(all.remove(key.parse().expect("a place"))),
            _ => unreachable!("values are within objects and arrays"),
        }
        check(copy);
    }
}

/// All that is decided about a pod, before and after it is damaged.
fn decide(whole: &Value, damaged: &Value) {
    for (has_manifest, is_present) in [(false, false), (false, true), (true, false), (true, true)] {
        step(damaged, has_manifest, is_present);
    }
    let mut copy = local(damaged);
    for reference in &copy.objects {
        let reference = (reference.0, "shop".to_owned(), reference.1.clone());
        let path = crate::followed::path(&reference);
        assert!(!path.contains([' ', '\r', '\n', '\u{0}']), "{path:?}");
        assert!(!crate::followed::file(&reference).contains('/'), "{reference:?}");
    }
    for token in &copy.tokens {
        assert!(token_renewal(token, damaged) <= 24 * 60 * 60);
        token_request(damaged, token);
    }
    let text = copy.take_manifest().to_string();
    let _ = manifest::parse("shop_web.json", text.as_bytes(), Validation::Strict, "board");
    sync::stays_while_unreachable(damaged);
    gates::conditions(damaged, &whole["status"], &[]);
    gates::conditions(whole, &damaged["status"], &[]);
    for (local, known) in [(whole, damaged), (damaged, whole)] {
        status_patch(local, &known["status"]);
        is_held_back(local, false);
        is_held_back(local, true);
        mirrors::shown(whole, known);
    }
    rejection_event(damaged, "board", "1", (NotRun::Unsupported, "why"), "now");
    let mut known = Known::new(whole.clone(), true);
    known.see(damaged.clone());
    known.record_status_response(damaged.clone());
    known.trim();
    known.see(whole.clone());
    let mut known = Known::new(damaged.clone(), true);
    known.needs = Some(copy);
    known.trim();
    known.see(whole.clone());
    known.record_status_response(damaged.clone());
    let mut followed = Followed::default();
    followed.insert("u".to_owned(), known);
    followed.references();
    followed.files();
    followed.surplus(0);
    let mut mirrors = Mirrors::default();
    let name = mirrors.see(damaged.clone());
    mirrors.see(whole.clone());
    mirrors.see(damaged.clone());
    mirrors.step(&name, Some(whole), std::time::Instant::now());
    mirrors.hash(&name);
    mirrors.forget("x");
}

#[test]
fn a_pod_with_any_damaged_field_is_decided_about() {
    let pod = pod();
    let mut count = 0;
    damaged(&pod, |mut damaged: Value| {
        count += 1;
        // Some take other branches.
        if let (true, Some(metadata)) = (count % 2 == 0, damaged["metadata"].as_object_mut()) {
            metadata.remove("deletionTimestamp");
            metadata.remove("annotations");
        }
        decide(&pod, &damaged);
    });
    assert!(count > 1500, "{count}");
}

#[test]
fn other_objects_with_any_damaged_field_are_read() {
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "immutable": true,
        "metadata": { "name": "s", "namespace": "shop", "labels": { "a": "b" }, "uid": "u" },
        "data": { "k": "dg==" },
        "spec": {
            "clusterIP": "10.0.0.11", "ports": [{ "name": "p", "port": 6379, "protocol": "TCP" }],
            "trustBundle": "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n",
            "podCIDRs": ["10.244.2.0/24", "fd00::/64"], "volumeName": "v",
            "claimRef": { "namespace": "shop", "name": "disk", "uid": "u" }, "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/x" },
        },
        "status": {
            "addresses": [{ "type": "InternalIP", "address": "192.0.2.7" }], "nodeInfo": { "machineID": "m" },
            "token": "t", "conditions": [{ "type": "Ready", "status": "True" }],
        },
    });
    damaged(&object, |damaged| {
        for resource in ["secrets", "configmaps", "runtimeclasses"] {
            local_object(&damaged, resource);
        }
        for kind in ["PersistentVolumeClaim", "PersistentVolume"] {
            let text = local_volume(&damaged, kind).to_string();
            let _ = manifest::parse("v.json", text.as_bytes(), Validation::Strict, "board");
        }
        let all = json!([damaged]);
        services::config_map("shop", "", &all);
        trust::config_map("shop", r#"{"signerName":"s","labelSelector":{}}"#, Some(&all));
        let mut nodes = Nodes::new("board", "1");
        let _ = nodes.see(&damaged);
        nodes.text();
        node::labels(&damaged);
        let _ = enrol::check_name(&damaged, "s", "m");
    });
}
