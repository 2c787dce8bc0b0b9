//! Tests of the API over a real socket, with an engine that each test defines.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::storage_thread::Storage;
use nodlet_registry::objects::Key;

/// A scratch root, which is removed at the end.
pub(super) struct Root(pub(super) PathBuf);

impl Root {
    pub(super) fn new() -> Root {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("nodlet-api-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a scratch directory");
        Root(path)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn pod(name: &str, phase: &str) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": {"app": name}},
        "spec": {"containers": [{"name": "app"}]},
        "status": {"phase": phase},
    })
}

pub(super) fn key(name: &str) -> Key {
    Key::new("pods", "default", name)
}

/// Runs the API, with `client` in its own thread. `engine` answers the requests.
pub(super) fn with_api<T: Send + 'static>(
    root: &Root,
    objects: Rc<Objects>,
    engine: impl FnMut(Request),
    client: impl FnOnce(PathBuf) -> T + Send + 'static,
) -> T {
    with_api_on(Storage::start().expect("the kernel has a thread"), root, objects, engine, client)
}

/// Runs the API without objects, like [`with_api`].
fn with_no_objects<T: Send + 'static>(
    engine: impl FnMut(Request),
    client: impl FnOnce(PathBuf) -> T + Send + 'static,
) -> T {
    with_api(&Root::new(), Rc::new(Objects::new(0)), engine, client)
}

/// Runs the API with this storage thread, like [`with_api`].
pub(super) fn with_api_on<T: Send + 'static>(
    storage: Storage,
    root: &Root,
    objects: Rc<Objects>,
    mut engine: impl FnMut(Request),
    client: impl FnOnce(PathBuf) -> T + Send + 'static,
) -> T {
    let listener = listen(&root.0).expect("a socket");
    let (requests, asked) = async_channel::bounded(8);
    let (node_name, ring) = ("board".to_owned(), Rc::default());
    let places = Places::new(CONNECTIONS);
    let watches = Watches::default();
    let events = watches.clone().run();
    let api = Api { objects, requests, root: root.0.clone(), storage, node_name, watches, ring, places };
    let socket = socket_path(&root.0);
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
pub(super) fn raw(socket: &std::path::Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).expect("the API listens");
    // A server that rejects a request early may close the connection before it has read everything.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

pub(super) fn call(
    socket: &std::path::Path,
    method: &str,
    target: &str,
    headers: &str,
    body: &str,
) -> (u16, String) {
    let request = format!(
        "{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = raw(socket, request.as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (code, body.to_owned())
}

/// Like [`call`]; returns a body that is no JSON as a string.
fn call_json(
    socket: &std::path::Path,
    method: &str,
    target: &str,
    headers: &str,
    body: &str,
) -> (u16, Value) {
    let (code, body) = call(socket, method, target, headers, body);
    (code, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

fn get(socket: &std::path::Path, target: &str) -> (u16, Value) {
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
    let objects = Rc::new(Objects::new(10));
    objects.put(key("web"), pod("web", "Running"));
    objects.put(key("db"), pod("db", "Pending"));
    with_api(&Root::new(), objects, no_engine, |socket| {
        let (code, web) = get(&socket, "/api/v1/namespaces/default/pods/web");
        assert_eq!((code, web["status"]["phase"].as_str()), (200, Some("Running")));
        let names = |target: &str| {
            let (code, list) = get(&socket, target);
            assert_eq!(
                (code, &list["kind"], &list["metadata"]["resourceVersion"]),
                (200, &json!("PodList"), &json!("12"))
            );
            let items = list["items"].as_array().cloned().unwrap_or_default();
            items
                .iter()
                .map(|pod| pod["metadata"]["name"].as_str().unwrap_or("").to_owned())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(names("/api/v1/pods"), "db web");
        assert_eq!(names("/api/v1/namespaces/default/pods?limit=500"), "db web");
        assert_eq!(names("/api/v1/namespaces/other/pods"), "");
        assert_eq!(names("/api/v1/pods?labelSelector=app%3Dweb"), "web");
        assert_eq!(names("/api/v1/pods?fieldSelector=status.phase!%3DRunning"), "db");

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
        assert_eq!(
            (code, &table["kind"], &table["rows"][1]["cells"][0]),
            (200, &json!("Table"), &json!("web"))
        );
    });
}

#[test]
fn discovery_leads_a_client_to_the_pods() {
    with_no_objects(no_engine, |socket| {
        assert_eq!(get(&socket, "/api").1["versions"], json!(["v1"]));
        let (_, groups) = get(&socket, "/apis");
        let version = &groups["groups"][0]["preferredVersion"]["groupVersion"];
        assert_eq!(
            (&groups["groups"][0]["name"], version),
            (&"settings.k8s.io".into(), &"settings.k8s.io/v1alpha1".into())
        );
        assert_eq!(get(&socket, "/apis/settings.k8s.io").1["kind"], "APIGroup");
        let (_, resources) = get(&socket, "/apis/settings.k8s.io/v1alpha1");
        let names = resources["resources"].as_array().into_iter().flatten().map(|one| &one["name"]);
        assert_eq!(names.collect::<Vec<_>>(), ["podpresets"]);
        let (code, openapi) = get(&socket, "/openapi/v3/apis/settings.k8s.io/v1alpha1");
        assert!(code == 200 && openapi.to_string().contains("\"kind\":\"PodPreset\""), "{openapi}");
        let (code, missing) = get(&socket, "/apis/settings.k8s.io/v1alpha1/namespaces/a/podpresets/b");
        assert_eq!((code, &missing["message"]), (404, &"podpresets.settings.k8s.io \"b\" not found".into()));
        assert_eq!(
            missing["details"],
            json!({"name": "b", "group": "settings.k8s.io", "kind": "podpresets"})
        );
        let (_, resources) = get(&socket, "/api/v1");
        assert_eq!(resources["resources"][0]["shortNames"], json!(["po"]));
        assert_eq!(get(&socket, "/version").1["major"], json!("1"));
        assert_eq!(get(&socket, "/readyz"), (200, json!("ok")));
        assert_eq!(get(&socket, "/openapi/v2"), (200, json!("\n\u{3}2.0")));
        let (_, openapi) = get(&socket, "/openapi/v3");
        let (code, openapi) =
            get(&socket, openapi["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap_or(""));
        assert_eq!((code, openapi["paths"].as_object().map(serde_json::Map::len)), (200, Some(10)));
        let schema = &openapi["components"]["schemas"]["PodSpec"];
        assert_eq!(schema["required"], json!(["containers"]));
        let (_, namespaces) = get(&socket, "/api/v1/namespaces");
        assert_eq!(namespaces["items"][0]["metadata"]["name"], "default");
        assert_eq!(get(&socket, "/api/v1/namespaces/default").1["status"]["phase"], "Active");
    });
}

#[test]
fn a_namespace_is_as_old_as_its_oldest_object_and_the_default_one_as_the_node() {
    let (root, objects) = (Root::new(), Rc::new(Objects::new(0)));
    let born = |hour: u32| json!({"metadata": {"creationTimestamp": format!("2026-01-01T{hour:02}:00:00Z")}});
    objects.put(Key::new("nodes", "", "here"), born(3));
    for (namespace, name, hour) in [("ci", "b", 5), ("ci", "c", 4), ("ci", "d", 6), ("default", "late", 7)] {
        objects.put(Key::new("pods", namespace, name), born(hour));
    }
    for (resource, namespace, hour) in
        [("configmaps", "ci", 2), ("secrets", "kitchen", 8), ("events", "none", 1)]
    {
        objects.put(Key::new(resource, namespace, "a"), born(hour));
    }
    with_api(&root, objects, no_engine, move |socket| {
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
        let answer = raw(
            &socket,
            format!(
                "POST {pods}?fieldValidation=Strict&dryRun=All HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
                 content-length: {}\r\n\r\n{body}",
                body.len()
            )
            .as_bytes(),
        );
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        assert!(answer.contains(r#"warning: 299 - "spec.foo: not \"acted\" on""#), "{answer}");
        assert_eq!(call(&socket, "POST", pods, "", r#"{"metadata":{"name":"taken"}}"#).0, 409);
        assert_eq!(call(&socket, "PUT", &format!("{pods}/web?force=true"), "", body).0, 200);
        let (code, updated) = call(&socket, "PUT", &format!("{pods}/web"), "", body);
        assert_eq!((code, updated.contains("\"updated\":true")), (200, true), "{updated}");
        for (target, body, seen) in [
            ("", "", json!(["kitchen", "web", null, null, false])),
            ("?gracePeriodSeconds=5&dryRun=All", "", json!(["kitchen", "web", null, 5, true])),
            (
                "",
                r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"u"}}"#,
                json!(["kitchen", "web", "u", 0, false]),
            ),
            ("", r#"{"gracePeriodSeconds":-3}"#, json!(["kitchen", "web", null, 1, false])),
            ("", r#"{"preconditions":{"resourceVersion":"7"}}"#, json!(["kitchen", "web", "7", null, false])),
            (
                "?propagationPolicy=Orphan",
                r#"{"kind":"DeleteOptions"}"#,
                json!(["kitchen", "web", null, null, false]),
            ),
            ("", r#"{"orphanDependents":false}"#, json!(["kitchen", "web", null, null, false])),
            (
                "",
                r#"{"ignoreStoreReadErrorWithClusterBreakingPotential":false}"#,
                json!(["kitchen", "web", null, null, false]),
            ),
        ] {
            let (_, answer) = call_json(&socket, "DELETE", &format!("{pods}/web{target}"), "", body);
            assert_eq!(answer["seen"], seen);
        }
    });
}

#[test]
fn unsupported_options_of_a_deletion_are_rejected_with_kubernetes_texts() {
    with_no_objects(no_engine, |socket| {
        let delete = |query: &str, body: &str| {
            let target = format!("/api/v1/namespaces/default/pods/web{query}");
            let (code, answer) = call_json(&socket, "DELETE", &target, "", body);
            (code, answer["message"].as_str().unwrap_or_default().to_owned())
        };
        let invalid = |why: &str| (422, format!("DeleteOptions.meta.k8s.io \"\" is invalid: {why}"));
        let unsupported = r#"propagationPolicy: Unsupported value: "Sometimes": supported values: "Foreground", "Background", "Orphan", "nil""#;
        assert_eq!(delete("", r#"{"propagationPolicy":"Sometimes"}"#), invalid(unsupported));
        assert_eq!(delete("?propagationPolicy=Sometimes", ""), invalid(unsupported));
        assert_eq!(
            delete("", r#"{"propagationPolicy":"Orphan","orphanDependents":true}"#),
            invalid(
                r#"propagationPolicy: Invalid value: "Orphan": orphanDependents and deletionPropagation cannot be both set"#
            )
        );
        let ignore = "ignoreStoreReadErrorWithClusterBreakingPotential";
        assert_eq!(
            delete("?dryRun=All", &format!(r#"{{"{ignore}":true,"gracePeriodSeconds":3}}"#)),
            invalid(&format!(
                "[{ignore}: Invalid value: true: cannot be set together with .dryRun, \
                 {ignore}: Invalid value: true: cannot be set together with .gracePeriodSeconds]"
            ))
        );
        assert_eq!(
            delete("", &format!(r#"{{"{ignore}":true}}"#)),
            invalid(&format!("{ignore}: Forbidden: no object is stored that cannot be read"))
        );
        for body in [
            r#"{"kind":"Pod"}"#,
            "[]",
            r#"{"preconditions":{"uid":7}}"#,
            r#"{"preconditions":{"resourceVersion":7}}"#,
            r#"{"preconditions":[]}"#,
            r#"{"propagationPolicy":1}"#,
            r#"{"orphanDependents":"yes"}"#,
            r#"{"dryRun":"All"}"#,
            r#"{"dryRun":[1]}"#,
        ] {
            assert_eq!(delete("", body).0, 400, "{body}");
        }
    });
}

#[test]
fn hostile_requests_are_refused_and_the_next_is_served() {
    with_no_objects(no_engine, |socket| {
        let pods = "/api/v1/namespaces/default/pods";
        for (method, target, headers, body, code) in [
            ("POST", pods, "", "{", 400),
            ("POST", pods, "", "[1]", 400),
            ("POST", pods, "", "", 400),
            ("POST", pods, "content-type: application/vnd.kubernetes.protobuf\r\n", "k8s", 415),
            ("POST", pods, "", r#"{"metadata":{"namespace":"other"}}"#, 400),
            ("POST", pods, "", r#"{"metadata":{"namespace":7}}"#, 422),
            ("POST", "/api/v1/pods", "", "{}", 405),
            ("PUT", "/api/v1/namespaces/default/pods/a", "", r#"{"metadata":{"name":"b"}}"#, 400),
            ("PATCH", "/api/v1/namespaces/default/pods/a", "", "{}", 415),
            ("DELETE", "/api/v1/namespaces/default/pods/a", "", r#"{"gracePeriodSeconds":"soon"}"#, 400),
            ("DELETE", "/api/v1/namespaces/default/pods/a?dryRun=Some", "", "", 422),
            ("POST", "/api/v1/namespaces/default/pods?fieldValidation=Lax", "", "{}", 422),
            ("DELETE", "/api/v1/nodes/board", "", "", 405),
            ("BREW", "/version", "", "", 405),
            ("GET", "/api/v1/pods?labelSelector=%3Dx", "", "", 400),
            ("GET", "/api/v1/pods?watch=1&resourceVersion=new", "", "", 500),
            ("GET", "/api/v1/pods?continue=abc", "", "", 400),
            ("GET", "/nothing", "", "", 404),
        ] {
            let (answered, status) = call_json(&socket, method, target, headers, body);
            assert_eq!((answered, &status["kind"]), (code, &json!("Status")), "{method} {target}: {status}");
        }
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
    let root = Root::new();
    for _ in 0..2 {
        let listener = listen(&root.0).expect("a socket");
        let mode = std::fs::metadata(socket_path(&root.0)).expect("it is there").permissions().mode();
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
    let objects = Rc::new(Objects::new(0));
    objects.put(key("web"), pod("web", "Running"));
    with_api(&Root::new(), objects, engine, |socket| {
        let target = "/api/v1/namespaces/default/pods/web/ephemeralcontainers";
        let (code, web) = get(&socket, target);
        assert_eq!((code, &web["metadata"]["name"]), (200, &json!("web")));
        let strategic = "content-type: application/strategic-merge-patch+json\r\n";
        let merge = "content-type: application/merge-patch+json; charset=utf-8\r\n";
        for (method, query, headers, body, seen) in [
            ("PATCH", "", strategic, r#"{"a":1}"#, json!([["Strategic", {"a": 1}], "Warn", false])),
            (
                "PATCH",
                "?fieldValidation=Strict&dryRun=All",
                merge,
                "{}",
                json!([["Merge", {}], "Strict", true]),
            ),
            ("PUT", "", "", r#"{"metadata":{"name":"web"}}"#, json!([["put", "web"], "Warn", false])),
        ] {
            let (code, answer) = call_json(&socket, method, &format!("{target}{query}"), headers, body);
            let seen = [&[json!("default"), json!("web")], &seen.as_array().expect("a list")[..]].concat();
            assert_eq!((code, &answer["seen"]), (200, &json!(seen)), "{method}");
        }
        for (method, headers, body, code, message) in [
            (
                "PUT",
                "",
                r#"{"kind":"EphemeralContainers","apiVersion":"v1","ephemeralContainers":[]}"#,
                400,
                "EphemeralContainers in version \"v1\" cannot be handled as a Pod: since Kubernetes 1.22 a Pod is sent here; use `kubectl debug` or `nodlet debug`",
            ),
            (
                "PUT",
                "",
                r#"{"kind":"Pod"}"#,
                400,
                "the name of the object (web based on URL) was undeterminable: name must be provided",
            ),
            ("PUT", "", r#"{"kind":"Node"}"#, 400, "\"Node\" cannot be handled as a Pod"),
            (
                "PATCH",
                "content-type: text/plain\r\n",
                "[]",
                415,
                "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json",
            ),
            ("POST", "", "{}", 405, "the server does not allow this method on the requested resource"),
            ("DELETE", "", "{}", 405, "the server does not allow this method on the requested resource"),
        ] {
            let (answered, answer) = call_json(&socket, method, target, headers, body);
            assert_eq!((answered, &answer["message"]), (code, &json!(message)), "{method} {body}");
        }
    });
}

mod options;
mod watch;
