//! Discovery documents and tables, byte for byte as kubectl has always received them, and whether each kind of the
//! table in `kind.rs` is served.
//!
//! Each line of `golden/answers.txt` is a path and the answer to it; for `table RESOURCE`, the table
//! of [`object`].

use serde_json::{Value, json};

use super::body::Body;
use super::{discovery, route, table};
use nodlet_core::time::Timestamp;
use nodlet_kube::kinds::{KINDS, Kind};

const ANSWERS: &str = include_str!("golden/answers.txt");

/// An object with a value for each column of each kind.
fn object() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default", "creationTimestamp": "2026-01-31T11:00:00Z",
                     "labels": {"node-role.kubernetes.io/edge": ""}},
        "data": {"a": "YQ=="}, "binaryData": {"b": "Yg=="},
        "value": 1000, "globalDefault": true, "preemptionPolicy": "Never",
        "involvedObject": {"kind": "Pod", "name": "web", "fieldPath": "spec.containers{app}"},
        "reason": "Started", "message": "Started container app\n", "type": "Normal", "count": 3,
        "source": {"component": "kubelet", "host": "board"},
        "firstTimestamp": "2026-01-31T11:00:00Z", "lastTimestamp": "2026-01-31T11:59:30Z",
        "spec": {"nodeName": "board", "unschedulable": true, "containers": [{"name": "app"}]},
        "status": {"phase": "Running", "podIP": "10.86.0.2",
                   "conditions": [{"type": "Ready", "status": "True"}],
                   "addresses": [{"type": "InternalIP", "address": "10.0.0.2"}],
                   "nodeInfo": {"kubeletVersion": "v1.36.3", "kernelVersion": "6.12"},
                   "containerStatuses": [{"name": "app", "ready": true, "restartCount": 1,
                                          "state": {"running": {}}}]},
    })
}

fn answer(path: &str) -> String {
    if let Some(resource) = path.strip_prefix("table ") {
        let row = KINDS.iter().find(|row| row.plural == resource).expect(resource);
        let now = Timestamp::parse("2026-01-31T12:00:00Z").expect("a time");
        return table::table(
            row,
            &mut std::iter::once(object()),
            json!({"resourceVersion": "7"}),
            table::Include::None,
            now,
        );
    }
    let target = route::parse(path).unwrap_or_else(|status| panic!("{path}: {status}"));
    match discovery::show(&target).unwrap_or_else(|status| panic!("{path}: {status}")).into_body() {
        Body::Whole(Some(bytes)) => {
            // The schemas are those of the table, which tests of `nodlet_kube` compare.
            let mut document: Value = serde_json::from_slice(&bytes).expect("JSON");
            match document.as_object_mut().and_then(|document| document.remove("components")) {
                Some(_) => document.to_string(),
                None => String::from_utf8(bytes.to_vec()).expect("text"),
            }
        }
        Body::Whole(None) | Body::Stream(_) => panic!("{path}: no answer"),
    }
}

#[test]
fn discovery_and_tables_are_byte_for_byte_what_they_were() {
    for line in ANSWERS.lines() {
        let (path, expected) = line.split_once('\t').expect("a path and an answer");
        assert_eq!(answer(path).trim_end(), expected, "{path}");
    }
}

/// Tests that the rows of the table of kinds are complete: every kind has a route, is listed in the document
/// of its group, and can be printed.
#[test]
fn each_kind_of_the_table_is_routed_discovered_and_printed() {
    for row in KINDS {
        let below = if row.namespaced { "/namespaces/default" } else { "" };
        let collection = format!("/{}{below}/{}", row.root(), row.plural);
        for path in [collection.clone(), format!("{collection}/web")] {
            match route::parse(&path) {
                Ok(route::Target::Objects(objects)) => assert!(objects.row.kind == row.kind, "{path}"),
                Ok(_) => panic!("{path}: not a collection"),
                Err(status) => panic!("{path}: {status}"),
            }
        }

        let document: Value = serde_json::from_str(&answer(&format!("/{}", row.root()))).expect("JSON");
        let resources = document["resources"].as_array().expect("resources");
        let find = |name: &str| {
            resources.iter().find(|found| found["name"] == name).unwrap_or_else(|| panic!("no {name}"))
        };
        let found = find(row.plural);
        assert_eq!((&found["kind"], &found["singularName"]), (&json!(row.name), &json!(row.singular)));
        assert_eq!((&found["verbs"], &found["namespaced"]), (&json!(row.verbs), &json!(row.namespaced)));
        assert!(row.verbs.is_sorted() && ["get", "list", "watch"].iter().all(|verb| row.allows(verb)));
        for part in row.subresources {
            assert_eq!(find(&format!("{}/{}", row.plural, part.name))["verbs"], json!(part.verbs));
        }
        let group: Value =
            serde_json::from_str(&answer(if row.group().is_empty() { "/api" } else { "/apis" }))
                .expect("JSON");
        assert!(group.to_string().contains(&json!(row.version).to_string()), "{group}");

        let document = answer(&format!("/openapi/v3/{}", row.root()));
        let word = if row.namespaced { "Namespaced" } else { "" };
        let of = |verb: &str| format!("\"{verb}{word}{}\"", row.name);
        assert!(
            document.contains(&of("patch")) || document.contains(&of("get")),
            "no explanation of {}",
            row.name
        );
        assert_eq!(
            document.contains(&of("patch")),
            row.allows("create"),
            "kubectl cannot apply {}",
            row.name
        );

        let table: Value = serde_json::from_str(&answer(&format!("table {}", row.plural))).expect("JSON");
        let columns = table["columnDefinitions"].as_array().expect("columns");
        let name = columns.iter().position(|column| column["format"] == "name").expect("a name");
        let cells = table["rows"][0]["cells"].as_array().expect("cells");
        assert_eq!(columns.len(), cells.len(), "{}", row.plural);
        assert_eq!(cells[name], "web", "{}", row.plural);
    }
}

/// Tests that each subresource of the table is known: a subresource without a handler would be answered with
/// 405.
#[test]
fn subresources_are_those_of_the_table() {
    let pods: Vec<&str> = Kind::Pod.row().subresources.iter().map(|part| part.name).collect();
    assert_eq!(pods, ["attach", "ephemeralcontainers", "exec", "log", "portforward", "resize", "status"]);
    assert!(KINDS.iter().all(|row| row.kind == Kind::Pod || row.subresources.is_empty()));
}
