//! The contents of a pod's status, what clients may write to it, and readiness gates, with the unmodified
//! kubectl.

use std::process::Command;

use nodlet_tests::{Device, Kubectl, manifest};
use serde_json::{Value, json};

/// Runs kubectl's `patch --subresource=status`.
fn patch(kubectl: &Kubectl, pod: &str, how: &str, patch: &Value) -> nodlet_tests::Ran {
    let (how, patch) = (format!("--type={how}"), patch.to_string());
    kubectl.run(["patch", "pod", pod, "--subresource=status", &how, "-p", &patch])
}

/// Runs kubectl's `patch` of the pod `web`.
fn patch_pod(kubectl: &Kubectl, how: &str, patch: &Value) -> nodlet_tests::Ran {
    kubectl.run(["patch", "pod", "web", &format!("--type={how}"), "-p", &patch.to_string()])
}

/// A pod whose container is ready, and which waits for its readiness gates.
#[track_caller]
fn wait_gated(device: &Device, gates: &str) {
    let web = device.run_pod_with("web", "sleep", &format!("readinessGates: [{gates}]"));
    device.wait_for("its container to be ready", || web.condition("ContainersReady") == "True");
}

/// Checks the generation of the pod `web`, and that it is the same pod.
#[track_caller]
fn check_generation(device: &Device, uid: &str, generation: u64) {
    let metadata = device.pod("web").get("/metadata");
    assert_eq!((&metadata["generation"], &metadata["uid"]), (&json!(generation), &json!(uid)));
}

fn gate(kind: &str, status: &str) -> Value {
    json!({ "status": { "conditions": [{ "type": kind, "status": status }] } })
}

#[test]
fn a_readiness_gate_is_opened_through_the_status_and_stays_open() {
    let mut device = Device::start();
    wait_gated(&device, "{conditionType: example.com/a}, {conditionType: example.com/b}");
    assert_eq!(device.pod("web").whole_condition("Ready")["reason"], "ReadinessGatesNotReady");
    {
        let kubectl = Kubectl::new(&device);
        let wide = kubectl.run(["get", "pods", "-o", "wide"]).ok();
        assert!(wide.lines().nth(1).is_some_and(|row| row.ends_with("0/2")), "{wide}");
        let said = patch(&kubectl, "web", "strategic", &gate("example.com/a", "True")).ok();
        assert_eq!(said, "pod/web patched\n");
        // A merge patch replaces the list; the node's own conditions are restored.
        let both = json!({ "status": { "conditions": [
            { "type": "example.com/a", "status": "True", "lastTransitionTime": "2026-01-31T12:00:00Z" },
            { "type": "example.com/b", "status": "Unknown", "reason": "Asked", "message": "no answer yet" },
        ] } });
        patch(&kubectl, "web", "merge", &both).ok();
        let closed = "the status of pod readiness gate \"example.com/b\" is not \"True\", but Unknown";
        assert_eq!(device.pod("web").whole_condition("Ready")["message"], closed);
        assert_eq!(device.pod("web").whole_condition("example.com/b")["message"], "no answer yet");
        let replace = json!([{ "op": "replace", "path": "/status/conditions/1/status", "value": "True" }]);
        patch(&kubectl, "web", "json", &replace).ok();
        device.pod("web").wait_ready();
        let wide = kubectl.run(["get", "pods", "-o", "wide"]).ok();
        assert!(wide.lines().nth(1).is_some_and(|row| row.ends_with("2/2")), "{wide}");
        // The whole object, as `kubectl replace` sends it: the node's own conditions stay even if the object
        // lacks them.
        let mut object = device.pod("web").object().expect("it is there");
        object["status"]["conditions"]
            .as_array_mut()
            .expect("a list")
            .retain(|one| one["type"] != "example.com/b");
        let file = device.file("/web.json", object.to_string());
        kubectl.run(["replace", "--subresource=status", "-f", &file]).ok();
        assert!(!device.pod("web").is_ready());
        kubectl
            .run(["replace", "--subresource=status", "-f", &file])
            .refused_with("the object has been modified; please apply your changes");
        for status in ["False", "True"] {
            patch(&kubectl, "web", "strategic", &gate("example.com/b", status)).ok();
            device.wait_for("the gate", || device.pod("web").condition("Ready") == status);
            assert_eq!(device.pod("web").condition("ContainersReady"), "True");
        }
    }
    let before = device.pod("web").whole_condition("Ready");
    let born = device.pod("web").born("app");
    device.restart_agent();
    device.pod("web").wait_ready();
    assert_eq!(
        device.pod("web").whole_condition("example.com/a")["lastTransitionTime"],
        "2026-01-31T12:00:00Z"
    );
    assert_eq!(device.pod("web").born("app"), born, "nothing became of its container");
    assert_eq!(device.pod("web").whole_condition("Ready"), before, "nor of its transition");
}

#[test]
fn clients_cannot_set_status_fields_that_the_node_owns() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    device.run_pod("web", "sleep").wait_ready();
    for (change, named) in [
        (gate("Ready", "False"), "status.conditions[0]: Forbidden: \"Ready\" is set by the node"),
        (json!({ "status": { "phase": "Failed" } }), "status.phase: Forbidden: is set by the node"),
        (gate("no name", "True"), "Invalid value: \"no name\": name part must consist of"),
        (
            gate("a", "Maybe"),
            "Unsupported value: \"Maybe\": supported values: \"False\", \"True\", \"Unknown\"",
        ),
        (
            json!({ "metadata": { "uid": "other" }, "status": {} }),
            "metadata.uid: Invalid value: \"other\": field is immutable",
        ),
    ] {
        patch(&kubectl, "web", "merge", &change).refused_with(named);
    }
    assert!(device.pod("web").is_ready());
    patch(&kubectl, "absent", "merge", &gate("a", "True")).refused_with("pods \"absent\" not found");
}

#[test]
fn a_gated_pod_starts_when_its_gates_are_removed_through_the_api() {
    let mut device = Device::start_with(["--node-labels=disk=fast"]);
    let gated =
        manifest::pod_with("web", "sleep", "schedulingGates: [{name: example.com/a}, {name: example.com/b}]");
    assert_eq!(device.apply(&gated), "pod/web created\n");
    let uid = device.pod("web").uid();
    let listed = device.nodlet(["get", "pods", "-o", "wide"]).ok();
    let row: Vec<&str> = listed.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!((row[1], row[2], row[6]), ("0/1", "SchedulingGated", "<none>"), "{listed}");
    {
        let kubectl = Kubectl::new(&device);
        assert!(kubectl.run(["get", "pods"]).ok().contains("SchedulingGated"));
        let gates = |names: &[&str]| {
            let gates: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
            json!({ "spec": { "schedulingGates": gates } })
        };
        patch_pod(&kubectl, "merge", &gates(&["example.com/b"])).ok();
        check_generation(&device, &uid, 2);
        let named = "spec.schedulingGates[1].name: Forbidden: only deletion is allowed, but found new scheduling gate 'example.com/c'";
        patch_pod(&kubectl, "merge", &gates(&["example.com/b", "example.com/c"])).refused_with(named);
        // The node selector may be narrowed as long as the pod is assigned to no node.
        patch_pod(&kubectl, "merge", &json!({ "spec": { "nodeSelector": { "disk": "fast" } } })).ok();
    }
    device.restart_agent();
    check_generation(&device, &uid, 3);
    assert_eq!(device.pod("web").get("/spec/nodeSelector/disk"), "fast");
    assert!(device.container_processes().is_empty());

    let kubectl = Kubectl::new(&device);
    let remove = json!([{ "op": "remove", "path": "/spec/schedulingGates" }]);
    assert_eq!(patch_pod(&kubectl, "json", &remove).ok(), "pod/web patched\n");
    device.pod("web").wait_ready();
    check_generation(&device, &uid, 4);
    assert_eq!(device.pod("web").status()["observedGeneration"], 4);
    assert_eq!(device.pod("web").condition("PodScheduled"), "True");
    device.try_apply(&gated).refused_with("only deletion is allowed, but found new scheduling gate");
    assert!(device.pod("web").is_ready());
    // Fields that may change in place restart no container, and a change of any other field is rejected by
    // the field's name.
    let born = device.pod("web").born("app");
    assert_eq!(kubectl.run(["label", "pod", "web", "tier=front"]).ok(), "pod/web labeled\n");
    let selected = kubectl.run(["get", "pods", "-l", "tier=front", "-o", "name"]).ok();
    assert_eq!((selected.as_str(), device.pod("web").born("app")), ("pod/web\n", born));
    patch_pod(&kubectl, "strategic", &json!({ "spec": { "hostname": "other" } }))
        .refused_with("pod updates may not change fields other than");
}

#[test]
fn concurrent_patches_of_a_pod_are_all_applied() {
    let device = Device::start();
    let gates: Vec<String> = (0..6).map(|number| format!("{{name: example.com/g{number}}}")).collect();
    let gated = manifest::pod_with("web", "sleep", &format!("schedulingGates: [{}]", gates.join(", ")));
    device.apply(&gated);
    let uid = device.pod("web").uid();
    let kubectl = Kubectl::new(&device);
    let remove = |number: usize| {
        let gate = json!({ "name": format!("example.com/g{number}"), "$patch": "delete" });
        json!({ "spec": { "schedulingGates": [gate] } })
    };
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (kubectl, patch) = (&kubectl, remove(number));
            scope.spawn(move || {
                // kubectl itself retries only a limited number of times.
                while patch_pod(kubectl, "strategic", &patch).code != 0 {}
            });
        }
    });
    device.pod("web").wait_ready();
    assert_eq!(device.pod("web").uid(), uid, "it is the same pod");
}

#[test]
fn a_gated_pod_starts_when_its_gates_are_gone_from_its_file() {
    let device = Device::start();
    let with = |gates: &str| manifest::pod_with("web", "sleep", &format!("schedulingGates: [{gates}]"));
    device.write_manifest("web.yaml", &with("{name: example.com/a}, {name: example.com/b}"));
    device.pod("web").wait_phase("Pending");
    assert_eq!(device.pod("web").whole_condition("PodScheduled")["reason"], "SchedulingGated");
    device.write_manifest("web.yaml", &with("{name: example.com/b}"));
    device.wait_for("one gate to be gone", || {
        device.pod("web").get("/spec/schedulingGates").as_array().is_some_and(|gates| gates.len() == 1)
    });
    assert!(device.container_processes().is_empty());
    let kubectl = Kubectl::new(&device);
    patch_pod(&kubectl, "strategic", &json!({ "spec": { "schedulingGates": null } }))
        .refused_with("web.yaml; edit that file");
    device.write_pod("web", &with("")).wait_ready();
}

#[test]
fn kubectl_apply_of_a_manifest_without_gates_removes_them() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    kubectl.apply(&manifest::pod_with("web", "sleep", "schedulingGates: [{name: example.com/a}]")).ok();
    device.pod("web").wait_phase("Pending");
    assert_eq!(kubectl.apply(&manifest::pod("web", "sleep")).ok(), "pod/web configured\n");
    device.pod("web").wait_ready();
}

#[test]
fn edit_opens_the_status_as_it_opens_all_else() {
    let device = Device::start();
    wait_gated(&device, "{conditionType: example.com/a}");
    let kubectl = Kubectl::new(&device);
    let mut edit: Command = kubectl.command(["edit", "pod", "web", "--subresource=status"]);
    // An edit that adds a condition to the list, as a person would make it.
    let script = r#"sed -i 's|^  conditions:$|  conditions:\n  - type: example.com/a\n    status: "True"|'"#;
    let output = edit.env("KUBE_EDITOR", script).output().expect("kubectl can be run");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("pod/web edited"), "{output:?}");
    device.pod("web").wait_ready();
}

/// As under a kubelet with containerd, which has created the container; of one without its image nothing exists.
#[test]
fn a_container_that_could_not_be_executed_is_shown_with_its_id_user_and_resources() {
    let device = Device::start();
    let more = "command: [/nowhere]\n\
                securityContext: {runAsUser: 1234, runAsGroup: 2345}\n\
                resources: {requests: {cpu: 10m}, limits: {memory: 32Mi}}";
    let containers = [
        manifest::container("app", "", more),
        manifest::container("other", "", more).replace("localhost/demo:1", "localhost/none:1"),
    ];
    let lost = device.run_pod_of("lost", &containers, "restartPolicy: Never");
    let statuses = || lost.status()["containerStatuses"].clone();
    device.wait_for("both to fail", || {
        statuses()[0]["state"]["terminated"]["reason"] == "StartError"
            && ["ErrImagePull", "ImagePullBackOff"].contains(&lost.container("other").reason().as_str())
    });
    let (app, other) = (statuses()[0].take(), statuses()[1].take());
    let id = app["containerID"].as_str().expect("it has an ID");
    assert!(id.starts_with("nodlet://") && id.len() == 9 + 64, "{app}");
    assert!(lost.container("app").message().contains("/nowhere"), "{app}");
    assert_eq!(app["state"]["terminated"]["containerID"], id);
    assert!(app["imageID"].as_str().is_some_and(|image| image.contains("sha256:")), "{app}");
    assert_eq!((&app["user"]["linux"]["uid"], &app["user"]["linux"]["gid"]), (&json!(1234), &json!(2345)));
    assert_eq!(
        app["resources"],
        json!({"limits": {"memory": "32Mi"}, "requests": {"cpu": "10m", "memory": "32Mi"}})
    );
    assert_eq!(app["allocatedResources"], json!({"cpu": "10m", "memory": "32Mi"}));
    for field in ["containerID", "user", "resources", "allocatedResources"] {
        assert_eq!(other[field], Value::Null, "{field}: {other}");
    }
}

#[test]
fn only_the_newest_finished_pods_are_kept() {
    let mut device = Device::start_with(["--terminated-pod-gc-threshold", "2"]);
    device.run_pod_with("file", "exit 0", "restartPolicy: Never").wait_phase("Succeeded");
    for name in ["a", "b", "c", "d"] {
        let text = manifest::pod_with(name, "exit 0", "restartPolicy: Never");
        device.apply(&text);
        device.pod(name).wait_phase("Succeeded");
    }
    device.wait_for("the oldest to be gone", || device.pods() == ["c", "d", "file"]);
    // The oldest pod does not come back after a restart of the agent.
    device.restart_agent();
    assert_eq!(device.pods(), ["c", "d", "file"]);
}
