//! Objects besides pods through the real kubectl: each command that shows, changes or watches an object. `config.rs` tests
//! what only ConfigMaps and Secrets have.

use std::fs::{File, read_to_string, write};

use nodlet_tests::{Device, Kubectl};
use serde_json::{Value, json};

/// A kind, and a field of its object `one` that clients may change.
struct Kind {
    /// The kind as kubectl prints it before the name of an object.
    noun: &'static str,
    path: &'static str,
    /// The object, in which `@` is the value of the field.
    manifest: &'static str,
    /// Where the field is.
    pointer: &'static str,
    /// The value of the field at first, and after a change.
    values: [&'static str; 2],
    /// Where a field is that never changes, another value of it, and the error.
    fixed: [&'static str; 3],
}

const KINDS: &[Kind] = &[
    Kind {
        noun: "configmap",
        path: "/api/v1/namespaces/default/configmaps",
        manifest: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\ndata: {greeting: @}\n",
        pointer: "/data/greeting",
        values: ["hello", "hey"],
        fixed: ["/metadata/uid", "other", "metadata.uid: "],
    },
    Kind {
        noun: "secret",
        path: "/api/v1/namespaces/default/secrets",
        manifest: "apiVersion: v1\nkind: Secret\nmetadata: {name: one}\ndata: {greeting: @}\n",
        pointer: "/data/greeting",
        values: ["aGVsbG8=", "aGV5"],
        fixed: ["/type", "other", "type: Invalid value: \"other\": field is immutable"],
    },
    Kind {
        noun: "persistentvolume",
        path: "/api/v1/persistentvolumes",
        manifest: "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: one}\nspec:\n  capacity: {storage: @}\n  \
            accessModes: [ReadWriteOnce]\n  hostPath: {path: /srv/one}\n",
        pointer: "/spec/capacity/storage",
        values: ["1Gi", "2Gi"],
        fixed: [
            "/spec/hostPath/path",
            "/srv/two",
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation",
        ],
    },
    Kind {
        noun: "persistentvolumeclaim",
        path: "/api/v1/namespaces/default/persistentvolumeclaims",
        manifest: "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: one, labels: {of: @}}\nspec:\n  \
            storageClassName: none\n  accessModes: [ReadWriteOnce]\n  resources: {requests: {storage: 1Mi}}\n",
        pointer: "/metadata/labels/of",
        values: ["kitchen", "garden"],
        fixed: [
            "/spec/storageClassName",
            "other",
            "spec: Forbidden: spec is immutable after creation except resources.requests",
        ],
    },
    Kind {
        noun: "limitrange",
        path: "/api/v1/namespaces/default/limitranges",
        manifest: "apiVersion: v1\nkind: LimitRange\nmetadata: {name: one}\nspec:\n  limits:\n  - type: Pod\n    \
            max: {memory: @}\n",
        pointer: "/spec/limits/0/max/memory",
        values: ["128Mi", "256Mi"],
        fixed: ["/spec/limits/0/type", "Nothing", "spec.limits[0].type: "],
    },
    Kind {
        noun: "runtimeclass.node.k8s.io",
        path: "/apis/node.k8s.io/v1/runtimeclasses",
        manifest: "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: one}\nhandler: nodlet\noverhead:\n  \
            podFixed: {memory: @}\n",
        pointer: "/overhead/podFixed/memory",
        values: ["16Mi", "32Mi"],
        fixed: ["/handler", "runc", "handler: "],
    },
    Kind {
        noun: "priorityclass.scheduling.k8s.io",
        path: "/apis/scheduling.k8s.io/v1/priorityclasses",
        manifest: "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: one}\nvalue: 5\n\
            preemptionPolicy: Never\ndescription: @\n",
        pointer: "/description",
        values: ["low", "lower"],
        fixed: ["/preemptionPolicy", "PreemptLowerPriority", "preemptionPolicy: Invalid value: "],
    },
];

#[test]
fn each_command_of_kubectl_changes_and_watches_objects_of_every_kind() {
    let device = Device::start_unwatched();
    let kubectl = Kubectl::new(&device);
    for kind in KINDS {
        eprintln!("{}", kind.noun);
        changes(&device, &kubectl, kind);
    }
}

fn changes(device: &Device, kubectl: &Kubectl, kind: &Kind) {
    let Kind { noun, path, manifest, pointer, values: [first, second], fixed } = *kind;
    let get = || device.get(&format!("{path}/one")).expect("it is there");
    let value = || get().pointer(pointer).cloned().unwrap_or_default();
    let does = |line: &str, end: &str| {
        assert_eq!(kubectl.line(line).ok().trim(), format!("{noun}/one {end}"), "{line}");
    };
    let file = device.path("one.yaml").display().to_string();
    let manifest = |value: &str| write(&file, manifest.replace('@', value)).expect("a file");

    let events = device.path("events");
    let output = File::create(&events).expect("a file");
    let watch = ["get", noun, "-w", "--output-watch-events", "--no-headers"];
    let mut watching = kubectl.command(watch).stdout(output).spawn().expect("kubectl can be run");
    let seen = |event: &str| {
        let text = read_to_string(&events).expect("it is there");
        text.lines().filter(|line| line.split_whitespace().take(2).eq([event, "one"])).count()
    };

    manifest(first);
    does(&format!("create -f {file}"), "created");
    assert_eq!(value(), first);
    let (uid, version) = (get()["metadata"]["uid"].clone(), || get()["metadata"]["resourceVersion"].clone());
    device.wait_for("the object in the watch", || seen("ADDED") == 1);
    kubectl.line(&format!("create -f {file}")).refused_with("\"one\" already exists");
    let show = |rest: &str| kubectl.line(&format!("get {noun} {rest}")).ok();
    let template = format!("-o jsonpath={{{}}}", pointer.replace("/0", "[0]").replace('/', "."));
    for (form, expected) in [("-o yaml", first), ("-o json", first), (&*template, first), ("-o wide", "one ")]
    {
        assert!(show(&format!("one {form}")).contains(expected), "{noun}: {form}");
    }
    assert!(show("one --show-labels").starts_with("NAME "), "{noun}");
    // Besides the object, there are the classes of Kubernetes.
    let is_listed = || show("-o name").lines().any(|line| line == format!("{noun}/one"));
    assert!(is_listed(), "{noun}");

    // An editor that changes one value, then one that changes nothing.
    for (from, expected) in
        [(first, format!("{noun}/one edited")), ("nowhere", "Edit cancelled, no changes made.".into())]
    {
        let editor = format!("sed -i s/{from}/{second}/");
        let edited = kubectl.command(["edit", noun, "one"]).env("KUBE_EDITOR", editor).output();
        let edited = edited.expect("kubectl can be run");
        let text =
            [edited.stdout, edited.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(edited.status.success() && text.contains(&expected), "{noun}: {text}");
        assert_eq!(value(), second, "{noun}");
    }
    device.wait_for("the edit in the watch", || seen("MODIFIED") == 1);

    // Each kind of patch. A change to what is there already is none.
    does(&format!("label {noun} one tier=front"), "labeled");
    assert_eq!(show("-l tier=front -o name"), format!("{noun}/one\n"));
    assert!(show("one --show-labels").contains("tier=front"), "{noun}");
    does(&format!("annotate {noun} one why=because"), "annotated");
    let operation =
        |at: &str, value: &str| json!([{"op": "replace", "path": at, "value": value}]).to_string();
    does(&format!("patch {noun} one --type=json -p {}", operation(pointer, first)), "patched");
    assert_eq!(value(), first);
    let merge =
        format!(r#"patch {noun} one --type=merge -p {{"metadata":{{"annotations":{{"why":null}}}}}}"#);
    does(&merge, "patched");
    assert_eq!(get()["metadata"]["annotations"]["why"], Value::Null);
    does(&format!(r#"patch {noun} one -p {{"metadata":{{"labels":{{"more":"x"}}}}}}"#), "patched");
    does(
        &format!("wait {noun}/one --for=jsonpath={{.metadata.labels.more}}=x --timeout=30s"),
        "condition met",
    );
    let before = version();
    does(&merge, "patched (no change)");
    let [at, other, error] = fixed;
    let refused =
        kubectl.line(&format!("patch {noun} one --type=json -p {}", operation(at, other))).refused();
    assert!(refused.contains(error), "{noun}: {refused}");
    assert_eq!(version(), before, "{noun}: nothing has changed");

    // A file with another value.
    manifest(second);
    let differs = kubectl.command(["diff", "-f", &file]).output().expect("kubectl can be run");
    let shown = String::from_utf8_lossy(&differs.stdout).into_owned();
    assert_eq!(differs.status.code(), Some(1), "{differs:?}");
    // What `diff` shows of a Secret is no value.
    let (before_and_after, is_shown) =
        if noun == "secret" { (["*** (before)", "*** (after)"], false) } else { ([first, second], true) };
    for (sign, part) in ["-", "+"].into_iter().zip(before_and_after) {
        assert!(shown.lines().any(|line| line.starts_with(sign) && line.contains(part)), "{shown}");
    }
    assert_eq!([shown.contains(first), shown.contains(second)], [is_shown; 2], "{shown}");
    assert_eq!(version(), before, "{noun}: a diff changes nothing");
    does(&format!("apply -f {file}"), "configured");
    does(&format!("apply -f {file}"), "unchanged");
    manifest(first);
    does(&format!("replace -f {file}"), "replaced");
    assert_eq!((value(), &get()["metadata"]["uid"]), (json!(first), &uid), "{noun}: it is the same object");

    let mut waiting = kubectl.command(["wait", &format!("{noun}/one"), "--for=delete", "--timeout=60s"]);
    let waiting = waiting.stdout(std::process::Stdio::piped()).spawn().expect("kubectl can be run");
    does(&format!("label {noun} one gone=soon"), "labeled");
    kubectl.line(&format!("delete {noun} -l gone=soon")).ok_with(&format!("{noun} \"one\" deleted"));
    let waited = waiting.wait_with_output().expect("it ends");
    assert!(waited.status.success(), "{waited:?}");
    device.wait_for("the end in the watch", || seen("DELETED") == 1);
    watching.kill().expect("it still runs");
    watching.wait().expect("it has ended");
    assert!(!is_listed(), "{noun}");
}

/// In Kubernetes, the storage of the API server orders changes that come at once.
#[test]
fn changes_that_clients_ask_for_at_once_are_made_one_after_another() {
    const CLIENTS: usize = 12;
    let device = Device::start();
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {}});
    let all_at_once = |request: &(dyn Fn(usize) -> u16 + Sync)| {
        let start = std::sync::Barrier::new(CLIENTS);
        let mut codes = std::thread::scope(|scope| {
            let start = &start;
            let client = |number| {
                scope.spawn(move || {
                    start.wait();
                    request(number)
                })
            };
            let clients: Vec<_> = (0..CLIENTS).map(client).collect();
            clients.into_iter().map(|client| client.join().expect("it ends")).collect::<Vec<_>>()
        });
        codes.sort_unstable();
        codes
    };
    let one_of = |code: u16, others: u16| [vec![code], vec![others; CLIENTS - 1]].concat();
    assert_eq!(all_at_once(&|_| device.request("POST", maps, Some(&map)).0), one_of(201, 409));
    let path = format!("{maps}/one");
    let patched = all_at_once(&|number| {
        let key = format!("key{number}");
        device.patch(&path, "merge", &json!({"data": {key: "x"}})).0
    });
    assert_eq!(patched, [200; CLIENTS]);
    let data = device.get(&path).expect("it is there")["data"].clone();
    assert_eq!(data.as_object().map(serde_json::Map::len), Some(CLIENTS), "{data}");
    assert_eq!(all_at_once(&|_| device.request("DELETE", &path, None).0), one_of(200, 404));
}
