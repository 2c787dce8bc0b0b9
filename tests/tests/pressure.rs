//! What a node reports of its images and of pressure on its resources to a real control plane, eviction, and
//! certificates of the cluster in volumes.

use std::fs;

use nodlet_tests::image::Image;
use nodlet_tests::{ClusterNode as Node, ControlPlane, Device, demo_program};
use serde_json::Value;

/// A pod on this node that waits, with these further fields of its spec and of its container.
fn pod(name: &str, spec: &str, container: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeName: board-1
  terminationGracePeriodSeconds: 1
  {spec}
  containers:
  - name: app
    image: localhost/demo:1
    imagePullPolicy: IfNotPresent
    args: [wait, /end]
    {container}
"
    )
}

/// Restarts the agent with other arguments.
fn restart(node: &mut Node, arguments: &[&str]) {
    node.device.kill_agent();
    node.restart_with("board-1", arguments);
}

/// Waits until a pod has this text in its field of `status`.
#[track_caller]
fn wait_status(plane: &ControlPlane, pod: &str, field: &str, is_it: impl Fn(&str) -> bool) {
    plane.wait_for(&format!("get pod {pod} -o jsonpath={{.status.{field}}}"), is_it);
}

#[track_caller]
fn wait_ready(plane: &ControlPlane, names: &[&str]) {
    for name in names {
        plane.wait_for(&format!("get pod {name} --no-headers"), |pod| pod.contains("1/1"));
    }
}

fn condition(plane: &ControlPlane, kind: &str, status: &str) {
    let path = format!("{{.status.conditions[?(@.type=='{kind}')].status}}");
    plane.wait_for(&format!("get node board-1 -o jsonpath={path}"), |found| found == status);
}

fn json(plane: &ControlPlane, line: &str) -> Value {
    serde_json::from_str(&plane.line(&format!("get {line} -o json")).ok()).expect("JSON")
}

#[test]
fn a_node_shows_its_images_and_writes_nothing_while_they_stay() {
    let plane = ControlPlane::start();
    let node = Node::join(&plane, "board-1");
    let names = "get node board-1 -o jsonpath={.status.images[*].names}";
    plane.wait_for(names, |names| names.contains("\"localhost/demo:1\""));
    let program = fs::read(demo_program()).expect("the demo program is built");
    let more = Image::demo("localhost/other:1", &program).config("Env", serde_json::json!(["A=b"]));
    node.device.load(&more);
    plane.wait_for(names, |names| names.contains("\"localhost/other:1\""));
    let shown = json(&plane, "node board-1");
    let images = shown["status"]["images"].as_array().expect("images");
    let size = |image: &Value| image["sizeBytes"].as_u64().expect("a size");
    assert!(images.len() == 2 && images.iter().all(|image| size(image) > 10_000), "{images:?}");
    assert!(size(&images[0]) >= size(&images[1]), "{images:?}");
    let local = node.device.get("/api/v1/nodes/board-1").expect("the node");
    assert_eq!(local["status"]["images"], shown["status"]["images"]);

    // The same images once more are no news, while the Lease is renewed.
    node.device.load(&more);
    let renewed = "get lease board-1 -n kube-node-lease -o jsonpath={.spec.renewTime}";
    for _ in 0..2 {
        let before = plane.line(renewed).ok();
        plane.wait_for(renewed, |now| now != before);
    }
    let version = |node: &Value| node["metadata"]["resourceVersion"].clone();
    let status = |node: &Value| node["status"]["conditions"][0]["lastHeartbeatTime"].clone();
    let after = json(&plane, "node board-1");
    assert_eq!((version(&after), status(&after)), (version(&shown), status(&shown)));
    node.device.nodlet(["image", "rm", "localhost/other:1"]).ok();
    plane.wait_for(names, |names| !names.contains("other"));
}

#[test]
fn a_node_without_disk_space_is_tainted_and_evicts_pods_after_images() {
    let plane = ControlPlane::start();
    let mut node = Node::join(&plane, "board-1");
    plane.apply(&pod("web", "", "resources: {requests: {ephemeral-storage: 1Ki}}"));
    wait_ready(&plane, &["web"]);
    let critical = pod("needed", "priorityClassName: system-node-critical", "");
    plane.apply(&critical.replace("{name: needed}", "{name: needed, namespace: kube-system}"));
    plane.wait_for("get pod needed -n kube-system --no-headers", |pod| pod.contains("1/1"));
    condition(&plane, "DiskPressure", "False");
    let program = fs::read(demo_program()).expect("the demo program is built");
    node.device.load(&Image::demo("localhost/unused:1", &program).config("Env", serde_json::json!(["A=b"])));
    // No disk has as much space. Images need not be two minutes old.
    let minimum_age = ["--image-gc-high-threshold", "99", "--minimum-image-ttl-duration", "1s"];
    let full = ["--eviction-hard", "nodefs.available<1Ei"];
    restart(&mut node, &[&full[..], &minimum_age].concat());
    condition(&plane, "DiskPressure", "True");
    let taints = "get node board-1 -o jsonpath={.spec.taints[*].key}";
    plane.wait_for(taints, |keys| keys.contains("node.kubernetes.io/disk-pressure"));
    wait_status(&plane, "web", "phase", |phase| phase == "Failed");
    let evicted = json(&plane, "pod web");
    let status = &evicted["status"];
    assert_eq!(status["reason"], "Evicted", "{status}");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with(
            "The node was low on resource: ephemeral-storage. Threshold quantity: 1Ei, available: "
        ),
        "{message}"
    );
    let conditions = status["conditions"].as_array().expect("conditions");
    let target = conditions.iter().find(|one| one["type"] == "DisruptionTarget").expect("it was disrupted");
    assert_eq!((&target["reason"], &target["message"]), (&"TerminationByKubelet".into(), &status["message"]));
    let events = |of: &str| {
        format!("get events -A -o jsonpath={{range.items[?(@.reason=='{of}')]}}{{.message}}|{{end}}")
    };
    plane.wait_for(&events("EvictionThresholdMet"), |all| {
        all.contains("Attempting to reclaim ephemeral-storage")
    });
    plane.wait_for(&events("NodeHasDiskPressure"), |all| {
        all.contains("Node board-1 status is now: NodeHasDiskPressure")
    });
    plane.wait_for(&events("Evicted"), |all| all.contains(message));
    // The image went before, and the critical pod stays.
    node.device.wait_for("the removal of the image", || {
        !node.device.nodlet(["image", "ls"]).ok().contains("localhost/unused")
    });
    // A new pod is rejected, and then no pod is left to evict.
    plane.apply(&pod("late", "", "resources: {requests: {cpu: 1m}}"));
    wait_status(&plane, "late", "message", |message| {
        message == "Pod was rejected: The node had condition: [DiskPressure]. "
    });
    assert_eq!(plane.line("get pod late -o jsonpath={.status.reason}").ok(), "Evicted");
    assert!(plane.line("get pod needed -n kube-system --no-headers").ok().contains("1/1"));
    // With enough space, the node gets pods again.
    restart(&mut node, &[]);
    condition(&plane, "DiskPressure", "False");
    plane.wait_for(taints, |keys| !keys.contains("disk-pressure"));
}

#[test]
fn a_node_without_memory_evicts_the_pod_above_its_request_and_rejects_best_effort_pods() {
    let plane = ControlPlane::start();
    let mut node = Node::join(&plane, "board-1");
    let hog = "resources: {requests: {memory: 1Mi}}";
    plane.apply(&pod("above", "", hog).replace("args: [wait, /end]", "args: [hog, '20', then, wait, /end]"));
    plane.apply(&pod("within", "", "resources: {requests: {memory: 200Mi}}"));
    wait_ready(&plane, &["above", "within"]);
    let little = ["--eviction-hard", "memory.available<1Ei", "--eviction-pressure-transition-period", "1s"];
    restart(&mut node, &little);
    condition(&plane, "MemoryPressure", "True");
    wait_status(&plane, "above", "reason", |reason| reason == "Evicted");
    let message = plane.line("get pod above -o jsonpath={.status.message}").ok();
    let (low, used) = message.split_once(". Threshold quantity: 1Ei, available: ").expect("both parts");
    assert_eq!(low, "The node was low on resource: memory");
    assert!(
        used.contains(". Container app was using ")
            && used.contains(", request is 1Mi, has larger consumption of memory. "),
        "{message}"
    );
    plane.apply(&pod("careless", "", ""));
    wait_status(&plane, "careless", "message", |message| {
        message == "Pod was rejected: The node had condition: [MemoryPressure]. "
    });
    // Whoever tolerates it runs, until it is evicted.
    let tolerates = "tolerations: [{key: node.kubernetes.io/memory-pressure, operator: Exists}]";
    plane.apply(&pod("tolerant", tolerates, ""));
    wait_status(&plane, "tolerant", "message", |message| {
        message.starts_with("The node was low on resource: memory. ")
    });
}

#[test]
fn the_files_of_volumes_count_as_memory_of_their_pod() {
    let plane = ControlPlane::start();
    let mut node = Node::join(&plane, "board-1");
    let text = "x".repeat(900 << 10);
    plane.create(&format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: large}}, data: {{a: {text}}}}}"
    ));
    let item = |number| format!("{{configMap: {{name: large, items: [{{key: a, path: '{number}'}}]}}}}");
    let sources = (0..24).map(item).collect::<Vec<_>>().join(", ");
    let volumes = format!("volumes: [{{name: files, projected: {{sources: [{sources}]}}}}]");
    plane.apply(&pod("files", &volumes, "volumeMounts: [{name: files, mountPath: /files}]"));
    plane.apply(&pod("hog", "", "").replace("args: [wait, /end]", "args: [hog, '8', then, wait, /end]"));
    wait_ready(&plane, &["files", "hog"]);
    restart(&mut node, &["--eviction-hard", "memory.available<1Ei"]);
    for name in ["files", "hog"] {
        wait_status(&plane, name, "reason", |why| why == "Evicted");
    }
    let log = node.device.agent_log();
    let place = |name: &str| log.find(&format!("default/{name}: Evicted")).expect("its event");
    assert!(place("files") < place("hog"), "{log}");
}

#[test]
fn a_node_without_process_ids_evicts_the_pod_with_most_processes_first() {
    let plane = ControlPlane::start();
    let mut node = Node::join(&plane, "board-1");
    plane.apply(&pod("few", "", ""));
    let leaves = "leave, sleep, '600', then, ".repeat(5);
    plane.apply(&pod("many", "", "").replace("args: [wait", &format!("args: [{leaves}wait")));
    wait_ready(&plane, &["few", "many"]);
    condition(&plane, "PIDPressure", "False");
    // No machine has as many, and without a threshold of its own, the signal is not measured.
    restart(
        &mut node,
        &["--eviction-hard", "pid.available<1Ei", "--eviction-pressure-transition-period", "1s"],
    );
    condition(&plane, "PIDPressure", "True");
    let taints = "get node board-1 -o jsonpath={.spec.taints[*].key}";
    plane.wait_for(taints, |keys| keys.contains("node.kubernetes.io/pid-pressure"));
    for name in ["many", "few"] {
        wait_status(&plane, name, "message", |message| {
            message.starts_with("The node was low on resource: pids. Threshold quantity: 1Ei, available: ")
        });
    }
    let log = node.device.agent_log();
    let place = |name: &str| log.find(&format!("default/{name}: Evicted")).expect("its event");
    assert!(place("many") < place("few"), "{log}");
    plane.apply(&pod("late", "", ""));
    wait_status(&plane, "late", "message", |message| {
        message == "Pod was rejected: The node had condition: [PIDPressure]. "
    });
}

#[test]
fn a_board_without_a_cluster_evicts_too_and_its_node_shows_why() {
    let mut device = Device::start();
    device.run_pod_with("web", "wait /end", "terminationGracePeriodSeconds: 1").wait_ready();
    // A pod that comes under pressure is rejected instead.
    device.restart_agent_with([
        "--eviction-hard",
        "nodefs.inodesFree<1Ei",
        "--eviction-pressure-transition-period",
        "1s",
    ]);
    let web = device.pod("web");
    // Work of the agent, which is when it measures: an idle one does nothing.
    device.wait_for("the eviction", || {
        let _ = device.nodlet(["image", "ls"]);
        device.write_manifest("other.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n");
        device.remove_manifest("other.yaml");
        web.status()["reason"] == "Evicted"
    });
    let message = web.status()["message"].as_str().unwrap_or_default().to_owned();
    assert!(
        message.starts_with("The node was low on resource: inodes. Threshold quantity: 1Ei, available: "),
        "{message}"
    );
    let conditions = device.get("/api/v1/nodes").expect("nodes")["items"][0]["status"]["conditions"].clone();
    let conditions = conditions.as_array().expect("a list").iter();
    let shown: Vec<_> = conditions.map(|one| [&one["type"], &one["status"]]).collect();
    let expected =
        [["MemoryPressure", "False"], ["DiskPressure", "True"], ["PIDPressure", "False"], ["Ready", "True"]];
    assert_eq!(shown, expected);
}

#[test]
fn certificates_of_the_cluster_are_files_of_a_pod_by_name_and_by_signer() {
    let gates = "--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true";
    let plane = ControlPlane::start_with_flags(
        &[],
        &[gates, "--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true"],
    );
    let node = Node::join(&plane, "board-1");
    let authority = fs::read_to_string(plane.authority()).expect("it was written");
    let indented = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let bundle = |name: &str, more: &str, text: &str| {
        format!(
            "apiVersion: certificates.k8s.io/v1beta1\nkind: ClusterTrustBundle\nmetadata:\n  name: {name}\n  labels: {{live: 'yes'}}\nspec:\n  {more}\n  trustBundle: |\n{}",
            indented(text)
        )
    };
    let volumes = "volumes:
  - name: trust
    projected:
      sources:
      - clusterTrustBundle: {name: ours, path: by-name.crt}
      - clusterTrustBundle: {name: nobody, path: none.crt, optional: true}
      - clusterTrustBundle: {signerName: example.com/ca, labelSelector: {matchLabels: {live: 'yes'}}, path: by-signer.crt}";
    let mounts = "volumeMounts: [{name: trust, mountPath: /trust}]";
    let text = pod("web", volumes, mounts).replace(
        "args: [wait, /end]",
        "args: [cat, /trust/by-name.crt, then, cat, /trust/by-signer.crt, then, stat, /trust/none.crt, then, wait, /end]",
    );
    plane.apply(&text);
    let events = "get events -o jsonpath={range.items[?(@.reason=='FailedMount')]}{.message}|{end}";
    plane.wait_for(events, |all| {
        all.contains(
            "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"ours\" not found",
        ) && all.contains("combination of signerName and labelSelector matched zero ClusterTrustBundles")
    });
    plane.apply(&bundle("ours", "", &authority));
    // Each certificate once, of however many bundles.
    for name in ["one", "two"] {
        plane.apply(&bundle(&format!("example.com:ca:{name}"), "signerName: example.com/ca", &authority));
    }
    wait_ready(&plane, &["web"]);
    let log = node.device.pod("web").logs("app");
    assert_eq!(log.matches("-----BEGIN CERTIFICATE-----").count(), 2, "{log}");
    let body: String = authority.lines().filter(|line| !line.starts_with('-')).collect();
    assert!(log.lines().collect::<String>().contains(&body), "{log}");
    // Optional sources follow what the cluster has, and others keep their files while it has nothing.
    let shown = |file: &str| {
        let path = format!("/trust/{file}.crt");
        node.device.nodlet(["exec", "web", "--", "/bin/demo", "cat", &path]).stdout
    };
    assert_eq!((shown("none"), shown("by-name").matches("BEGIN").count()), (String::new(), 1));
    plane.line("delete clustertrustbundle ours").ok();
    plane.apply(&bundle("nobody", "", &authority));
    let log = || node.device.agent_log();
    node.device.wait_for("the event about the missing bundle", || log().contains("\"ours\" not found"));
    assert_eq!(shown("by-name").matches("BEGIN").count(), 1);
    plane.apply(&bundle("ours", "", &authority));
    node.device.wait_for("the new bundle", || shown("none").contains("BEGIN"));
}
