//! The worst requests that clients of the API can send: queries, bodies, patches, and objects beyond the quota.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nodlet_tests::Device;
use serde_json::{Value, json};

use super::{LISTING, LONG, READING, SERVING, Watched};

#[test]
fn the_worst_queries_there_are_cost_little() {
    let watched = Watched::start();
    let values = |bytes: usize| "b,".repeat(bytes / 2);
    for bytes in [3_000, 50_000, 1_000_000] {
        let queries = [
            format!("labelSelector=a%20in%20({}c)", values(bytes)),
            format!("labelSelector={}c", values(bytes)),
            format!("fieldSelector={}c", "status.phase!%3Dx,".repeat(bytes / 18)),
            format!("watch=1&resourceVersion={}", "1".repeat(bytes)),
            format!("{}limit=1", "limit=1&".repeat(bytes / 8)),
        ];
        thread::scope(|scope| {
            for client in 0..60 {
                let path = format!("/api/v1/pods?{}", queries[client % queries.len()]);
                let device = &watched.device;
                // The longest are rejected.
                scope.spawn(move || drop(device.get(&path)));
            }
        });
        watched.stayed_below(SERVING, &format!("60 queries of {bytes} bytes"));
    }
    watched.ends();
}

#[test]
fn the_worst_bodies_there_are_cost_little() {
    let watched = Watched::start();
    let mib = (1 << 20) - 100;
    let kinds = ["{\"a\":0},", "[0],", "\"\",", "0,"];
    for value in kinds {
        let list = |bytes: usize| format!("[{}0]", value.repeat(bytes / value.len()));
        let of_a_pod = |bytes: usize| format!("{{\"kind\":\"Pod\",\"spec\":{{\"x\":{}}}}}", list(bytes));
        for body in [list(mib), of_a_pod(mib)] {
            let (code, answer) = watched.device.post("/api/v1/namespaces/default/pods", &body);
            let message = answer["message"].as_str().unwrap_or_default();
            assert_eq!((code, message.contains("limit is 25000 values")), (413, true), "{value}: {message}");
        }
        // The most values that are accepted, in an object that is validated.
        let (code, answer) =
            watched.device.post("/api/v1/namespaces/default/pods", &of_a_pod(12_000 * value.len()));
        assert_eq!(code, 422, "{value}: {}", answer["message"]);
        watched.stayed_below(READING, value);
    }
    // Each of them would get a dozen fields.
    let body = format!("{{\"kind\":\"Pod\",\"spec\":{{\"containers\":[{}{{}}]}}}}", "{},".repeat(24_000));
    let (code, answer) = watched.device.post("/api/v1/namespaces/default/pods", &body);
    assert_eq!(code, 422, "{}", answer["message"]);
    watched.stayed_below(READING, "containers without fields");
    // The most clients that are served at a time.
    let body = format!("{{\"kind\":\"Pod\",\"spec\":{{\"x\":[{}0]}}}}", "{\"a\":0},".repeat(12_000));
    thread::scope(|scope| {
        for _ in 0..60 {
            scope.spawn(|| watched.device.post("/api/v1/namespaces/default/pods", &body));
        }
    });
    watched.stayed_below(SERVING, "60 bodies at a time");
    let map =
        |data: &Value| json!({"kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}).to_string();
    let keys: serde_json::Map<String, Value> = (0..24_900).map(|n| (n.to_string(), "".into())).collect();
    for body in [map(&json!({"a": "x".repeat(900_000)})), map(&keys.into())] {
        let answered = AtomicUsize::new(0);
        let post = || watched.device.try_post("/api/v1/namespaces/default/configmaps?dryRun=All", &body);
        thread::scope(|scope| {
            for _ in 0..60 {
                // On a busy machine, some take so long that they are disconnected for those that wait.
                scope.spawn(|| answered.fetch_add((0..5).filter_map(|_| post()).count(), Ordering::Relaxed));
            }
        });
        let answered = answered.into_inner();
        assert!(answered >= 60, "{answered} of 300 were answered");
        watched.stayed_below(SERVING, "60 clients with large objects");
    }
    watched.ends();
}

#[test]
fn the_worst_patches_there_are_cost_little() {
    let watched = Watched::start();
    let status = "/api/v1/namespaces/default/pods/witness/status";
    let copies = |from: &str, to: &dyn Fn(usize) -> String, how_many: usize| {
        (0..how_many)
            .map(|number| json!({ "op": "copy", "from": from, "path": to(number) }))
            .collect::<Vec<_>>()
    };
    let patch = |first: Value, copies: Vec<Value>| -> Value {
        [json!({ "op": "add", "path": "/x", "value": first })].into_iter().chain(copies).collect()
    };
    let nested = (0..100).fold(json!({}), |inner, _| json!({ "a": inner }));
    let deeper = |copy: usize| format!("/x{}", "/a".repeat((101 << copy) - 1));
    let beside = |number: usize| format!("/x{number}");
    let worst = [
        ("copies into what is copied", patch(nested, copies("/x", &deeper, 8)), 422),
        ("empty lists", patch(vec![json!([]); 20_000].into(), copies("/x", &beside, 9)), 413),
        ("lists in themselves", patch(json!([[]]), copies("/x", &|_| "/x/-".to_owned(), 60)), 413),
        ("a long text", patch("x".repeat(400_000).into(), copies("/x", &beside, 9)), 413),
    ];
    for (what, patch, expected) in worst {
        let (code, answer) = watched.device.patch(status, "json", &patch);
        assert_eq!(code, expected, "{what}: {}", answer["message"]);
        watched.is_undisturbed();
        watched.stayed_below(READING, what);
    }
    let names = |turned: bool| -> Vec<Value> {
        let name = |number: i32| format!("f{}", if turned { 11_000 - number } else { number }).into();
        (0..11_000).map(name).collect()
    };
    let order = json!({ "x": names(false), "$setElementOrder/x": names(true) });
    let started = Instant::now();
    assert_eq!(watched.device.patch(status, "strategic-merge", &order).0, 200);
    // It takes some 0.2 s; with quadratic time it took more than two minutes.
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    watched.stayed_below(READING, "an order");
    watched.ends();
}

/// The objects that the API keeps, by file name.
fn kept(device: &Device) -> Vec<String> {
    let names = device.names("/var/lib/nodlet/manifests").into_iter();
    // The names that a full disk needs are no manifests.
    names.filter(|name| !name.starts_with('.')).collect()
}

#[test]
fn objects_beyond_the_manifest_quota_are_forbidden_and_leave_no_files() {
    let watched = Watched::start();
    let device = &watched.device;
    // Only some at a time, because objects that are being written already count.
    let post = |path: &str, objects: Vec<Value>| -> Vec<(u16, Value)> {
        let mut answers = Vec::new();
        for some in objects.chunks(6) {
            thread::scope(|scope| {
                let clients: Vec<_> = some
                    .iter()
                    .map(|object| scope.spawn(|| device.post(path, &object.to_string())))
                    .collect();
                answers.extend(clients.into_iter().map(|client| client.join().expect("it is answered")));
            });
        }
        answers
    };
    let pod = |number: usize, size: usize| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("p{number}"), "annotations": { "a": "x".repeat(size) } },
            "spec": { "containers": [{ "name": "a", "image": "localhost/none:1" }] },
        })
    };
    let pods = "/api/v1/namespaces/default/pods";
    let words = "is forbidden: quota exceeded: all manifests together can have at most 1024 objects and 4 MiB; delete some";
    // Creates forty, and returns the number of those that were accepted and one of them.
    let create = |path: &str, what: &str, objects: Vec<Value>| -> (usize, Value) {
        let (created, refused): (Vec<_>, Vec<_>) =
            post(path, objects).into_iter().partition(|(code, _)| *code == 201);
        for (_, answer) in refused {
            let message = answer["message"].as_str().unwrap_or_default();
            assert!(message.starts_with(what) && message.ends_with(words), "{message}");
            assert_eq!(answer["reason"], "Forbidden");
        }
        (created.len(), created[0].1.clone())
    };
    let (created, there) = create(pods, "pods \"p", (0..40).map(|number| pod(number, 200_000)).collect());
    assert_eq!((created, device.pods().len(), kept(device).len()), (20, 21, 20));
    // Replacing an object only needs space for the difference.
    let name = there["metadata"]["name"].as_str().expect("a pod has a name");
    let number: usize = name[1..].parse().expect("a number");
    let put = |size: usize| device.request("PUT", &format!("{pods}/{name}"), Some(&pod(number, size)));
    let annotate = |size: usize| {
        let patch = json!({ "metadata": { "annotations": { "a": "x".repeat(size) } } });
        device.patch(&format!("{pods}/{name}"), "merge", &patch)
    };
    assert_eq!(annotate(200_001).0, 200);
    let (code, answer) = put(200_002);
    assert_eq!(code, 200, "{}", answer["message"]);
    // Nothing is written that would be rejected.
    let before = kept(device);
    assert_eq!(post(pods, vec![pod(99, 200_000)])[0].0, 403);
    assert_eq!(device.post(&format!("{pods}?dryRun=All"), &pod(99, 200_000).to_string()).0, 403);
    assert_eq!(kept(device), before);
    for number in 0..40 {
        device.request("DELETE", &format!("{pods}/p{number}?gracePeriodSeconds=0"), None);
    }
    device.wait_within(LONG, "all pods but one to be gone", || device.pods() == ["witness"]);
    let preset = |number: usize| {
        let variables: Vec<Value> =
            (0..200).map(|name| json!({ "name": format!("V{name}"), "value": "x".repeat(1000) })).collect();
        json!({
            "apiVersion": "settings.k8s.io/v1alpha1", "kind": "PodPreset",
            "metadata": { "name": format!("p{number}") },
            "spec": { "selector": { "matchLabels": { "a": format!("b{number}") } }, "env": variables },
        })
    };
    let presets = "/apis/settings.k8s.io/v1alpha1/namespaces/default/podpresets";
    let (created, _) = create(presets, "podpresets.settings.k8s.io \"p", (0..40).map(preset).collect());
    assert!((15..=20).contains(&created), "{created} are created");
    assert_eq!(kept(device).len(), created);
    assert_eq!(device.get(presets).expect("a list")["items"].as_array().map(Vec::len), Some(created));
    for number in 0..40 {
        device.request("DELETE", &format!("{presets}/p{number}"), None);
    }
    assert!(kept(device).is_empty());
    for (kind, resource, value) in
        [("ConfigMap", "configmaps", "x".repeat(200_000)), ("Secret", "secrets", "eHh4".repeat(50_000))]
    {
        let object = |number: usize| {
            let metadata = json!({ "name": format!("p{number}") });
            json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, "data": { "a": value } })
        };
        let path = format!("/api/v1/namespaces/default/{resource}");
        let (created, _) = create(&path, &format!("{resource} \"p"), (0..40).map(object).collect());
        assert_eq!((created, kept(device).len()), (20, 20), "{resource}");
        let listed = || device.get(&path).expect("a list")["items"].as_array().map(Vec::len);
        assert_eq!(listed(), Some(20), "{resource}");
        for number in 0..40 {
            device.request("DELETE", &format!("{path}/p{number}"), None);
        }
        assert_eq!((kept(device).len(), listed()), (0, Some(0)), "{resource}");
    }
    watched.stayed_below(2 * LISTING, "40 objects of 200 KB through the API");
    watched.ends();
}
