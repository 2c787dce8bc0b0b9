//! Tests of the API over a real socket, with an engine that each test defines.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use nodlet_fuzz::cases;
use serde_json::{Value, json};

use super::*;
use crate::storage_thread::Storage;
use nodlet_registry::objects::Key;

/// A pod, whose container runs if the pod does.
pub(super) fn pod(name: &str, phase: &str) -> Value {
    let state = if phase == "Running" { "running" } else { "waiting" };
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": {"app": name}},
        "spec": {"containers": [{"name": "app"}]},
        "status": {"phase": phase, "containerStatuses": [{"name": "app", "restartCount": 0, "state": {state: {}}}]},
    })
}

pub(super) fn key(name: &str) -> Key {
    Key::new("pods", "default", name)
}

/// Pods of these names and phases. The version of the last one is 10 and their number.
pub(super) fn pods(pods: &[(&str, &str)]) -> Rc<Objects> {
    let objects = Rc::new(Objects::new(10));
    for (name, phase) in pods {
        objects.put(key(name), pod(name, phase));
    }
    objects
}

/// Runs the API, with `client` in its own thread. `engine` answers the requests.
pub(super) fn with_api<T: Send + 'static>(
    objects: Rc<Objects>,
    engine: impl FnMut(Request),
    client: impl FnOnce(PathBuf) -> T + Send + 'static,
) -> T {
    let root = tempfile::tempdir().expect("a directory");
    with_api_on(Storage::start().expect("the kernel has a thread"), root.path(), objects, engine, client)
}

/// Runs the API without objects, like [`with_api`].
fn with_no_objects<T: Send + 'static>(
    engine: impl FnMut(Request),
    client: impl FnOnce(PathBuf) -> T + Send + 'static,
) -> T {
    with_api(Rc::new(Objects::new(0)), engine, client)
}

/// Runs the API with this storage thread and root, like [`with_api`].
pub(super) fn with_api_on<T: Send + 'static>(
    storage: Storage,
    root: &Path,
    objects: Rc<Objects>,
    mut engine: impl FnMut(Request),
    client: impl FnOnce(PathBuf) -> T + Send + 'static,
) -> T {
    let listener = listen(root).expect("a socket");
    let (requests, asked) = async_channel::bounded(8);
    let (node_name, ring) = ("board".to_owned(), Rc::default());
    let places = Places::new(CONNECTIONS);
    let watches = Watches::default();
    let events = watches.clone().run();
    let api = Api { objects, requests, root: root.into(), storage, node_name, watches, ring, places };
    let socket = socket_path(root);
    smol::block_on(async {
        let (done, said) = async_channel::bounded(1);
        std::thread::spawn(move || done.try_send(client(socket)));
        let client = async { said.recv().await.expect("the client does not fail") };
        let serve = async {
            serve(api, listener).await.expect("serving never fails");
            unreachable!("serving never ends")
        };
        let engine = async {
            while let Ok(request) = asked.recv().await {
                engine(request);
            }
            unreachable!("the API holds the sender")
        };
        let events = async {
            events.await;
            unreachable!("events are handed out for ever")
        };
        smol::future::or(smol::future::or(client, events), smol::future::or(serve, engine)).await
    })
}

/// Sends bytes and reads until the server closes.
pub(super) fn raw(socket: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).expect("the API listens");
    // A server that rejects a request early may close the connection before it has read everything.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Sends a request and returns the whole response.
fn whole(socket: &Path, method: &str, target: &str, headers: &str, body: &str) -> String {
    let request = format!(
        "{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    raw(socket, request.as_bytes())
}

/// Sends a request and returns the code and the body of the response.
pub(super) fn call(socket: &Path, method: &str, target: &str, headers: &str, body: &str) -> (u16, String) {
    let answer = whole(socket, method, target, headers, body);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (code, body.to_owned())
}

/// Like [`call`]; returns a body that is no JSON as a string.
fn call_json(socket: &Path, method: &str, target: &str, headers: &str, body: &str) -> (u16, Value) {
    let (code, body) = call(socket, method, target, headers, body);
    (code, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

fn get(socket: &Path, target: &str) -> (u16, Value) {
    call_json(socket, "GET", target, "", "")
}

fn accepted(object: Value, applied: Applied) -> Result<Accepted, Status> {
    Ok(Accepted { object, applied, warnings: Vec::new() })
}

fn no_engine(request: Request) {
    panic!("nothing was to be asked: {request:?}");
}

#[test]
fn a_client_sends_its_whole_body_though_the_headers_were_rejected() {
    with_no_objects(no_engine, |socket| {
        for target in ["/api/v1/namespaces/default/pods/web/scale", "/api/v1/namespaces/default/pods/web"] {
            let mut stream = UnixStream::connect(&socket).expect("the API listens");
            let part = [b' '; 50_000];
            let length = part.len() * 20;
            let head = format!("PATCH {target} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
            stream.write_all(head.as_bytes()).expect("the server reads");
            let mut answer = vec![0; 15];
            stream.read_exact(&mut answer).expect("the server answers the headers");
            for _ in 0..20 {
                stream.write_all(&part).expect("the server receives the rest");
            }
            stream.read_to_end(&mut answer).expect("the server ends the connection");
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with("HTTP/1.1 4") && answer.ends_with('}'), "{answer}");
        }
    });
}

#[test]
fn pods_are_shown_one_by_one_and_all_together() {
    with_api(pods(&[("web", "Running"), ("db", "Pending")]), no_engine, |socket| {
        let (code, web) = get(&socket, "/api/v1/namespaces/default/pods/web");
        assert_eq!((code, web["status"]["phase"].as_str()), (200, Some("Running")));
        for (target, expected) in [
            ("/api/v1/pods", &["db", "web"][..]),
            ("/api/v1/namespaces/default/pods?limit=500", &["db", "web"]),
            ("/api/v1/namespaces/other/pods", &[]),
            ("/api/v1/pods?labelSelector=app%3Dweb", &["web"]),
            ("/api/v1/pods?fieldSelector=status.phase!%3DRunning", &["db"]),
        ] {
            let (code, list) = get(&socket, target);
            let version = &list["metadata"]["resourceVersion"];
            assert_eq!((code, &list["kind"], version), (200, &json!("PodList"), &json!("12")));
            let names: Vec<&Value> = list["items"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|pod| &pod["metadata"]["name"])
                .collect();
            assert_eq!(names, expected, "{target}");
        }

        let (code, status) = get(&socket, "/api/v1/namespaces/default/pods/none");
        assert_eq!(code, 404);
        assert_eq!(
            status,
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 404,
                   "reason": "NotFound", "message": "pods \"none\" not found", "details": {"name": "none", "kind": "pods"}})
        );
        let (code, status) = get(&socket, "/api/v1/namespaces/default/pods/web/binding");
        assert_eq!((code, &status["details"]), (404, &json!({})), "kubectl looks into it");
        let accept = "accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json\r\n";
        let (code, table) = call_json(&socket, "GET", "/api/v1/pods", accept, "");
        let first = &table["rows"][1]["cells"][0];
        assert_eq!((code, &table["kind"], first), (200, &json!("Table"), &json!("web")));
    });
}

#[test]
fn discovery_leads_a_client_to_the_pods() {
    with_no_objects(no_engine, |socket| {
        assert_eq!(get(&socket, "/api").1["versions"], json!(["v1"]));
        let (_, groups) = get(&socket, "/apis");
        let group = &groups["groups"][0];
        assert_eq!(group["name"], "settings.k8s.io");
        assert_eq!(group["preferredVersion"]["groupVersion"], "settings.k8s.io/v1alpha1");
        assert_eq!(get(&socket, "/apis/settings.k8s.io").1["kind"], "APIGroup");
        let (_, resources) = get(&socket, "/apis/settings.k8s.io/v1alpha1");
        let names = resources["resources"].as_array().into_iter().flatten().map(|one| &one["name"]);
        assert_eq!(names.collect::<Vec<_>>(), ["podpresets"]);
        let (code, openapi) = get(&socket, "/openapi/v3/apis/settings.k8s.io/v1alpha1");
        assert!(code == 200 && openapi.to_string().contains("\"kind\":\"PodPreset\""), "{openapi}");
        let (code, missing) = get(&socket, "/apis/settings.k8s.io/v1alpha1/namespaces/a/podpresets/b");
        assert_eq!((code, &missing["message"]), (404, &"podpresets.settings.k8s.io \"b\" not found".into()));
        let details = json!({"name": "b", "group": "settings.k8s.io", "kind": "podpresets"});
        assert_eq!(missing["details"], details);
        let (_, resources) = get(&socket, "/api/v1");
        assert_eq!(resources["resources"][0]["shortNames"], json!(["po"]));
        assert_eq!(get(&socket, "/version").1["major"], json!("1"));
        assert_eq!(get(&socket, "/readyz"), (200, json!("ok")));
        assert_eq!(get(&socket, "/openapi/v2"), (200, json!("\n\u{3}2.0")));
        let (_, openapi) = get(&socket, "/openapi/v3");
        let (code, openapi) =
            get(&socket, openapi["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap_or(""));
        assert_eq!((code, openapi["paths"].as_object().map(serde_json::Map::len)), (200, Some(11)));
        let schema = &openapi["components"]["schemas"]["PodSpec"];
        assert_eq!(schema["required"], json!(["containers"]));
        let (_, namespaces) = get(&socket, "/api/v1/namespaces");
        assert_eq!(namespaces["items"][0]["metadata"]["name"], "default");
        assert_eq!(get(&socket, "/api/v1/namespaces/default").1["status"]["phase"], "Active");
    });
}

#[test]
fn a_namespace_is_as_old_as_its_oldest_object_and_the_default_one_as_the_node() {
    let objects = Rc::new(Objects::new(0));
    let born = |hour: u32| json!({"metadata": {"creationTimestamp": format!("2026-01-01T{hour:02}:00:00Z")}});
    objects.put(Key::new("nodes", "", "here"), born(3));
    for (resource, namespace, name, hour) in [
        ("pods", "ci", "b", 5),
        ("pods", "ci", "c", 4),
        ("pods", "ci", "d", 6),
        ("pods", "default", "late", 7),
        ("configmaps", "ci", "a", 2),
        ("secrets", "kitchen", "a", 8),
        ("events", "none", "a", 1),
    ] {
        objects.put(Key::new(resource, namespace, name), born(hour));
    }
    with_api(objects, no_engine, move |socket| {
        assert_eq!(get(&socket, "/api/v1/namespaces/none").0, 404);
        for (namespace, hour) in [("ci", 2), ("default", 3), ("kitchen", 8)] {
            let (_, shown) = get(&socket, &format!("/api/v1/namespaces/{namespace}"));
            assert_eq!(shown["metadata"]["creationTimestamp"], born(hour)["metadata"]["creationTimestamp"]);
        }
    });
}

#[test]
fn requests_reach_the_engine_with_their_options() {
    let engine = |request| match request {
        Request::Create { object, validation, dry_run, reply } => {
            let _ = match object["metadata"]["name"].as_str() {
                Some("taken") => reply.try_send(Err(Status::already_exists("pods", "taken"))),
                _ => {
                    assert_eq!((validation, dry_run), (FieldValidation::Strict, true));
                    assert_eq!(object["metadata"]["namespace"], "kitchen");
                    let warnings = vec!["spec.foo: not \"acted\" on".to_owned()];
                    reply.try_send(Ok(Accepted { object, applied: Applied::Created, warnings }))
                }
            };
        }
        Request::Apply { object, reply, .. } => {
            let _ = reply.try_send(accepted(object, Applied::Unchanged));
        }
        Request::Update { change: Change::Replace(mut object), part: Part::Whole, reply, .. } => {
            object["updated"] = true.into();
            let _ = reply.try_send(accepted(object, Applied::Unchanged));
        }
        Request::Delete { resource: "pods", namespace, name, preconditions, grace, dry_run, reply } => {
            let Preconditions { uid, resource_version } = preconditions;
            let only = uid.or(resource_version);
            let seen = json!({"seen": [namespace, name, only, grace, dry_run]});
            let _ = reply.try_send(Ok(seen));
        }
        other => panic!("{other:?}"),
    };
    with_no_objects(engine, |socket| {
        let pods = "/api/v1/namespaces/kitchen/pods";
        let body = r#"{"kind":"Pod","metadata":{"name":"web"}}"#;
        let answer = whole(&socket, "POST", &format!("{pods}?fieldValidation=Strict&dryRun=All"), "", body);
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        assert!(answer.contains(r#"warning: 299 - "spec.foo: not \"acted\" on""#), "{answer}");
        assert_eq!(call(&socket, "POST", pods, "", r#"{"metadata":{"name":"taken"}}"#).0, 409);
        assert_eq!(call(&socket, "PUT", &format!("{pods}/web?force=true"), "", body).0, 200);
        let (code, updated) = call(&socket, "PUT", &format!("{pods}/web"), "", body);
        assert_eq!((code, updated.contains("\"updated\":true")), (200, true), "{updated}");
        let none = Value::Null;
        for (target, body, only, grace, dry_run) in [
            ("", "", none.clone(), none.clone(), false),
            ("?gracePeriodSeconds=5&dryRun=All", "", none.clone(), json!(5), true),
            ("", r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"u"}}"#, json!("u"), json!(0), false),
            ("", r#"{"gracePeriodSeconds":-3}"#, none.clone(), json!(1), false),
            ("", r#"{"preconditions":{"resourceVersion":"7"}}"#, json!("7"), none.clone(), false),
            ("?propagationPolicy=Orphan", r#"{"kind":"DeleteOptions"}"#, none.clone(), none.clone(), false),
            ("", r#"{"orphanDependents":false}"#, none.clone(), none.clone(), false),
            ("", r#"{"ignoreStoreReadErrorWithClusterBreakingPotential":false}"#, none.clone(), none, false),
        ] {
            let (_, answer) = call_json(&socket, "DELETE", &format!("{pods}/web{target}"), "", body);
            assert_eq!(answer["seen"], json!(["kitchen", "web", only, grace, dry_run]), "{target} {body}");
        }
    });
}

/// Each case of `refused.txt` is a request, and the code and the message of the response.
#[test]
fn refused_requests_get_the_codes_and_texts_of_kubernetes() {
    let pods = pods(&[("web", "Running"), ("idle", "Pending"), ("done", "Succeeded")]);
    with_api(pods, no_engine, |socket| {
        for [code, line, headers, body, expected] in cases::<5>(include_str!("tests/refused.txt")) {
            let (method, target) = line.split_once(' ').expect("a method and a target");
            let headers = headers.replace("\\r\\n", "\r\n");
            let (answered, status) = call_json(&socket, method, target, &headers, body);
            assert_eq!(answered.to_string(), code, "{line} {body}: {status}");
            assert_eq!(status["kind"], "Status", "{line} {body}: {status}");
            let message = status["message"].as_str().expect("a message");
            match expected.strip_suffix('…') {
                Some(beginning) => assert!(message.starts_with(beginning), "{line}: {message}"),
                None => assert_eq!(message, expected, "{line}"),
            }
            let is_of_options = message.contains(".meta.k8s.io \"\" is invalid: ");
            assert_eq!(is_of_options, status["details"]["group"] == "meta.k8s.io", "{line}: {status}");
        }
    });
}

#[test]
fn hostile_requests_are_refused_and_the_next_is_served() {
    with_no_objects(no_engine, |socket| {
        let pods = "/api/v1/namespaces/default/pods";
        let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(call(&socket, "POST", pods, "", &nested).0, 400);
        let large = "x".repeat(BODY_BYTES + 1);
        assert_eq!(call(&socket, "POST", pods, "", &large).0, 413);
        let (code, text) = call(&socket, "POST", pods, "", &format!("[{}0]", "0,".repeat(100_000)));
        assert_eq!(code, 413);
        assert!(text.contains("limit is 25000 values"), "{text}");
        let long = format!("GET /version HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(4 * HEADER_BYTES));
        assert!(raw(&socket, long.as_bytes()).starts_with("HTTP/1.1 431"));
        let many = format!("GET /version HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(1000));
        assert!(raw(&socket, many.as_bytes()).starts_with("HTTP/1.1 431"));
        assert!(raw(&socket, b"\0\x01\x02\r\n\r\n").starts_with("HTTP/1.1 400"));
        // After half a request, the place is freed when the client disconnects.
        for _ in 0..CONNECTIONS * 2 {
            let mut stream = UnixStream::connect(&socket).expect("the API listens");
            stream.write_all(b"GET /version HT").expect("sent");
        }
        assert_eq!(get(&socket, "/version").0, 200);
    });
}

#[test]
fn a_socket_left_behind_is_replaced_and_others_cannot_open_it() {
    let root = tempfile::tempdir().expect("a directory");
    for _ in 0..2 {
        let listener = listen(root.path()).expect("a socket");
        let mode = std::fs::metadata(socket_path(root.path())).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        drop(listener);
    }
}

#[test]
fn bodies_that_do_not_end_are_held_up_to_a_bound_for_all_clients_together() {
    with_no_objects(no_engine, |socket| {
        let target = "/api/v1/namespaces/default/pods";
        let body = " ".repeat(BODY_BYTES - 1);
        let half = format!("POST {target} HTTP/1.1\r\nhost: x\r\ncontent-length: {BODY_BYTES}\r\n\r\n{body}");
        let mut held = Vec::new();
        // The last client is rejected, and is served instead of a hanging client when it retries.
        let refused = loop {
            let mut client = UnixStream::connect(&socket).expect("it listens");
            client.set_read_timeout(Some(std::time::Duration::from_millis(300))).expect("it can be set");
            // A rejected request may not be read to its end.
            let _ = client.write_all(half.as_bytes());
            let mut answer = [0; 32];
            match client.read(&mut answer) {
                Ok(length) => break String::from_utf8_lossy(&answer[..length]).into_owned(),
                Err(_) => held.push(client),
            }
            assert!(held.len() < 8, "all are held");
        };
        assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
        assert_eq!(held.len(), 4);
        drop(held);
        let (code, answer) = call(&socket, "POST", target, "", "[]");
        assert_eq!(code, 400, "{answer}");
    });
}

#[test]
fn a_client_whose_change_is_being_made_is_not_disconnected_for_another_one() {
    let waiting = std::cell::RefCell::new(None);
    let engine = move |request| match request {
        Request::Create { object, reply, .. } => *waiting.borrow_mut() = Some((object, reply)),
        Request::Delete { reply, .. } => {
            let (object, create) = waiting.take().expect("it was sent before");
            drop((create.try_send(accepted(object, Applied::Created)), reply.try_send(Ok(Value::Null))));
        }
        other => panic!("{other:?}"),
    };
    with_no_objects(engine, |socket| {
        let target = "/api/v1/namespaces/default/pods";
        let mut first = UnixStream::connect(&socket).expect("it listens");
        let request = format!("POST {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{{}}");
        first.write_all(request.as_bytes()).expect("it is read");
        // They take all other places, and the next client one of theirs.
        let idle: Vec<_> =
            (1..CONNECTIONS).map(|_| UnixStream::connect(&socket).expect("it waits")).collect();
        assert_eq!(call(&socket, "DELETE", &format!("{target}/web"), "", "").0, 200);
        let mut answer = [0; 12];
        first.read_exact(&mut answer).expect("it is answered");
        assert_eq!(&answer, b"HTTP/1.1 201");
        drop(idle);
    });
}

#[test]
fn ephemeral_containers_are_accepted_by_patch_and_put_only() {
    let engine = |request| match request {
        Request::Ephemeral(EphemeralRequest { namespace, name, change, validation, dry_run, reply }) => {
            let change = match change {
                Change::Replace(pod) => json!(["put", pod["metadata"]["name"]]),
                Change::Patch(how, patch) => json!([format!("{how:?}"), patch]),
            };
            let object = json!({"seen": [namespace, name, change, format!("{validation:?}"), dry_run]});
            let _ = reply.try_send(accepted(object, Applied::Configured));
        }
        other => panic!("{other:?}"),
    };
    with_api(pods(&[("web", "Running")]), engine, |socket| {
        let target = "/api/v1/namespaces/default/pods/web/ephemeralcontainers";
        let (code, web) = get(&socket, target);
        assert_eq!((code, &web["metadata"]["name"]), (200, &json!("web")));
        let strategic = "content-type: application/strategic-merge-patch+json\r\n";
        let merge = "content-type: application/merge-patch+json; charset=utf-8\r\n";
        let strict = "?fieldValidation=Strict&dryRun=All";
        for (method, query, headers, body, change, how, dry_run) in [
            ("PATCH", "", strategic, r#"{"a":1}"#, json!(["Strategic", {"a": 1}]), "Warn", false),
            ("PATCH", strict, merge, "{}", json!(["Merge", {}]), "Strict", true),
            ("PUT", "", "", r#"{"metadata":{"name":"web"}}"#, json!(["put", "web"]), "Warn", false),
        ] {
            let (code, answer) = call_json(&socket, method, &format!("{target}{query}"), headers, body);
            let seen = json!(["default", "web", change, how, dry_run]);
            assert_eq!((code, &answer["seen"]), (200, &seen), "{method}");
        }
    });
}

mod options;
mod watch;
