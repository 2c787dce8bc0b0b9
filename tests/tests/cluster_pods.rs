//! Pods between a board and a real Kubernetes control plane: mirror pods, ephemeral containers, deletion, events.

use nodlet_tests::image::Image;
use nodlet_tests::{ClusterNode as Node, ControlPlane, TestPod, manifest};
use serde_json::Value;

mod resources;
mod status;

/// A pod in a file of a board, with a ConfigMap of the board.
const STATIC: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: local}
data: {color: green}
---
apiVersion: v1
kind: Pod
metadata: {name: fixed, labels: {app: fixed}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: localhost/demo:1
    args: [wait, /end]
    envFrom: [{configMapRef: {name: local}}]
    resources: {requests: {cpu: 100m}}
";

#[test]
fn pods_of_files_are_shown_as_mirror_pods_and_run_once() {
    let (plane, node) = Node::in_new_cluster();
    let pod = node.device.write_pod("fixed", STATIC).wait_ready();
    let born = pod.born("app");

    let line = "get pod fixed-board-1 --no-headers";
    plane.wait_for(line, |pod| pod.contains("1/1") && pod.contains("Running"));
    let object = plane.line("get pod fixed-board-1 -o json").ok();
    let object: Value = serde_json::from_str(&object).expect("JSON");
    let (metadata, annotations) = (&object["metadata"], &object["metadata"]["annotations"]);
    assert_eq!(annotations["kubernetes.io/config.source"], "file");
    assert_eq!(annotations["kubernetes.io/config.mirror"], annotations["kubernetes.io/config.hash"]);
    assert_eq!(metadata["ownerReferences"][0]["kind"], "Node");
    assert_eq!(metadata["ownerReferences"][0]["controller"], true);
    assert_eq!(object["status"]["observedGeneration"], metadata["generation"]);
    assert_eq!(object["status"]["podIP"], pod.ip());
    // The scheduler counts its resources.
    let described = plane.line("describe node board-1").ok();
    assert!(described.contains("fixed-board-1") && described.contains("100m"), "{described}");
    plane.wait_for("describe pod fixed-board-1", |described| described.contains("Container started"));

    // Whoever deletes it ends no container.
    let uid = "get pod fixed-board-1 -o jsonpath={.metadata.uid}";
    let first = plane.line(uid).ok();
    plane.line("delete pod fixed-board-1 --wait=false").ok();
    let second = plane.wait_for(uid, |uid| !uid.is_empty() && uid != first);
    plane.line("delete pod fixed-board-1 --force --grace-period=0").ok();
    let third = plane.wait_for(uid, |uid| !uid.is_empty() && uid != second);
    plane.wait_for(line, |pod| pod.contains("1/1") && pod.contains("Running"));
    assert_eq!(pod.born("app"), born);

    // Deleted while the board is away.
    let cut = plane.partition_from(&node.address);
    plane.line("delete pod fixed-board-1 --force --grace-period=0").ok();
    drop(cut);
    let fourth = plane.wait_for(uid, |uid| !uid.is_empty() && uid != third);
    assert_eq!(pod.born("app"), born);

    // Another file, and none.
    node.device.write_manifest("fixed.yaml", &STATIC.replace("100m", "200m"));
    plane.wait_for(uid, |uid| !uid.is_empty() && uid != fourth);
    let request = "get pod fixed-board-1 -o jsonpath={.spec.containers[0].resources.requests.cpu}";
    plane.wait_for(request, |request| request == "200m");
    node.device.remove_manifest("fixed.yaml");
    plane.wait_for("get pods -o name", str::is_empty);
    assert!(node.device.pods().is_empty());
}

/// A pod that the cluster assigns to a node, which runs until it ends.
fn pod(name: &str, more: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: localhost/demo:1
    args: [env, then, wait, /end]
{more}"
    )
}

/// A pod with a ConfigMap as a volume, whose `color` is green at first.
fn pod_with_settings<'a>(plane: &ControlPlane, node: &'a Node) -> TestPod<'a> {
    plane.line("create configmap settings --from-literal=color=green").ok();
    plane.apply(&pod(
        "one",
        "    volumeMounts: [{name: settings, mountPath: /settings}]
  volumes: [{name: settings, configMap: {name: settings}}]
",
    ));
    node.device.pod("one").wait_ready()
}

#[test]
fn changes_of_objects_reach_a_running_pod_over_one_connection() {
    let (plane, node) = Node::in_new_cluster();
    plane.line("create service clusterip shop --tcp=80:8080").ok();
    let one = pod_with_settings(&plane, &node);
    // The Services of the namespace, and that of the API server.
    for variable in
        ["SHOP_SERVICE_PORT=80", "SHOP_PORT_80_TCP_PROTO=tcp", "KUBERNETES_SERVICE_HOST=10.96.0.1"]
    {
        one.wait_log("app", variable);
    }
    let color = || one.demo("app", "cat /settings/color").stdout;
    // A periodic read would take a minute each.
    let begun = std::time::Instant::now();
    for number in 0..10 {
        plane.line(&format!("patch configmap settings -p {{\"data\":{{\"color\":\"blue{number}\"}}}}")).ok();
        node.device.wait_for("the new color", || color() == format!("blue{number}"));
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(300), "{:?}", begun.elapsed());
    // No pod refers to the objects any more.
    plane.line("delete pod one").ok();
    let left = || node.device.names("var/lib/nodlet/cluster");
    node.device
        .wait_for("the objects to be gone", || !left().iter().any(|name| name.starts_with("configmap_")));
}

#[test]
fn a_server_without_http2_has_its_pods_watched_and_its_objects_read_each_minute() {
    let plane = ControlPlane::start_with_flags(&[], &["--disable-http2-serving"]);
    let node = Node::join(&plane, "board-1");
    let one = pod_with_settings(&plane, &node);
    plane.line("patch configmap settings -p {\"data\":{\"color\":\"blue\"}}").ok();
    node.device.wait_within(std::time::Duration::from_secs(150), "the new color", || {
        one.demo("app", "cat /settings/color").stdout == "blue"
    });
    plane.line("delete pod one --wait=false").ok();
    one.wait_gone();
}

#[test]
fn a_running_pod_and_the_board_itself_are_debugged_through_the_cluster() {
    let (plane, node) = Node::in_new_cluster();
    plane.apply(&pod("one", ""));
    let one = node.device.pod("one").wait_ready();
    let born = one.born("app");
    let debug = "debug one --image=localhost/demo:1 --profile=general";
    plane.line(&format!("{debug} -c first -- /bin/demo wait /end")).ok();
    let running = "get pod one -o jsonpath={.status.ephemeralContainerStatuses[0].state}";
    plane.wait_for(running, |state| state.contains("running"));
    assert_eq!(one.born("app"), born);
    let generations = "get pod one -o jsonpath={.metadata.generation}|{.status.observedGeneration}";
    plane.wait_for(generations, |both| both == "2|2");

    // kubectl adds to the containers of `nodlet debug`.
    let words = ["--image", "localhost/demo:1", "-c", "local", "--", "/bin/demo", "exit", "3"];
    node.verb(&[&["debug", "one"], &words[..]].concat()).ok();
    plane.line(&format!("{debug} -c second -- /bin/demo exit 4")).ok();
    let ended = "get pod one -o jsonpath={range.status.ephemeralContainerStatuses[*]}{.name}={.state.terminated.exitCode};{end}";
    plane.wait_for(ended, |ended| ended.contains("local=3;") && ended.contains("second=4;"));

    // The pod that debugs a node has the files and the processes of the board.
    let steps = "cat /host/etc/passwd then cat /proc/1/cmdline";
    let debug = "debug node/board-1 --image=localhost/demo:1 --profile=sysadmin -- /bin/demo";
    plane.line(&format!("{debug} {steps}")).ok();
    let names = plane.line("get pods -o jsonpath={.items[*].metadata.name}").ok();
    let name = names.split(' ').find(|name| name.starts_with("node-debugger-board-1-"));
    let name = name.unwrap_or_else(|| panic!("no pod debugs the node: {names}"));
    plane.wait_for(&format!("get pod {name} -o jsonpath={{.status.phase}}"), |phase| phase == "Succeeded");
    let log = node.device.pod(name).logs("debugger");
    let expected = ["/etc/passwd", "/proc/1/cmdline"].map(std::fs::read_to_string);
    let expected: String = expected.into_iter().map(|text| text.expect("it is text")).collect();
    assert_eq!(log.trim_end(), expected.trim_end());
}

#[test]
fn a_pod_that_was_deleted_by_force_ends_before_its_name_starts_again() {
    let (plane, node) = Node::in_new_cluster();
    plane.apply(&pod("one", ""));
    let one = node.device.pod("one").wait_ready();
    // The cluster gave it two tolerations for a time, and ends it itself then.
    let tolerated = plane.line("get pod one -o jsonpath={.spec.tolerations[*].tolerationSeconds}").ok();
    assert_eq!(tolerated, "300 300");
    let log = node.device.agent_log();
    assert!(!log.contains("has no effect"), "{log}");
    let (uid, born) = (one.uid(), one.born("app"));
    let cut = plane.partition_from(&node.address);
    plane.line("delete pod one --force --grace-period=0").ok();
    plane.apply(&pod("one", ""));
    assert_eq!((one.uid(), one.born("app")), (uid.clone(), born));
    drop(cut);
    plane.wait_for("get pod one --no-headers", |pod| pod.contains("1/1") && pod.contains("Running"));
    assert_ne!(one.uid(), uid);
    // The second has run only after the first had ended.
    let log = node.device.agent_log();
    let order: Vec<usize> = ["Killing Stopping container app", "Started Container started"]
        .iter()
        .filter_map(|text| log.rfind(text))
        .collect();
    assert!(matches!(order[..], [killed, started] if killed < started), "{log}");
}

#[test]
fn events_and_the_end_of_a_pod_wait_for_the_connection_and_finalizers_are_kept() {
    let (plane, node) = Node::in_new_cluster();
    plane.apply(&pod("one", "").replace("labels:", "finalizers: [example.com/keep], labels:"));
    let one = node.device.pod("one").wait_ready();
    let cut = plane.partition_from(&node.address);
    one.tell("app", "/end");
    one.wait_restarts("app", 1);
    node.device.wait_for("its event", || one.events().iter().any(|event| event.starts_with("Started")));
    plane.line("delete pod one --wait=false").ok();
    drop(cut);
    // It ends, its phase is final, and it waits for its finalizer.
    one.wait_gone();
    let state = "get pod one -o jsonpath={.status.phase}|{.metadata.finalizers[0]}|{.metadata.deletionGracePeriodSeconds}";
    plane.wait_for(state, |state| {
        ["Succeeded|example.com/keep|0", "Failed|example.com/keep|0"].contains(&state)
    });
    let counts =
        "get events --field-selector involvedObject.name=one,reason=Started -o jsonpath={.items[*].count}";
    plane.wait_for(counts, |counts| {
        counts.split_whitespace().map(|count| count.parse::<u32>().unwrap_or(0)).sum::<u32>() >= 2
    });
    plane.kubectl(["patch", "pod", "one", "--type=merge", "-p", "{\"metadata\":{\"finalizers\":null}}"]).ok();
    plane.wait_for("get pods -o name", str::is_empty);
}

#[test]
fn of_too_many_events_of_a_time_offline_the_newest_are_sent_and_the_others_counted() {
    let plane = ControlPlane::start();
    let node = Node::join_with(&plane, "board-1", &["--max-events", "12"]);
    let cut = plane.partition_from(&node.address);
    // Each has three events at least: its image is there, and its container is created and started.
    for number in 0..8 {
        let name = format!("fixed{number}");
        node.device.run_pod(&name, "wait /end").wait_ready();
    }
    let kept = node.device.nodlet(["events", "--all-namespaces"]).ok();
    assert!(kept.lines().count() <= 13 && !kept.contains("fixed0"), "{kept}");
    drop(cut);
    let events = "get events -o jsonpath={.items[*].involvedObject.name}";
    let sent = plane.wait_for(events, |names| names.matches("fixed7-board-1").count() >= 3);
    assert!(!sent.contains("fixed0"), "{sent}");
    let dropped = "events of a time without the cluster were dropped";
    node.device.wait_logged(dropped);
    let log = node.device.agent_log();
    let line = log.lines().find(|line| line.contains(dropped)).expect("it was there");
    let count = line.split_whitespace().find_map(|word| word.parse::<u32>().ok());
    assert!(count >= Some(10), "{line}");
    // The statuses are all there.
    plane.wait_for("get pods --no-headers", |pods| pods.matches("1/1").count() == 8);
}

#[test]
fn a_deleted_pod_whose_manifest_cannot_be_removed_ends_when_it_can_and_evicted_pods_are_deleted() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};

    let (plane, node) = Node::in_new_cluster();
    plane.apply(&pod("one", ""));
    let one = node.device.pod("one").wait_ready();
    // A mount point cannot be removed.
    let manifest = node.device.path("var/lib/nodlet/cluster/default_one.json");
    mount(Some(&manifest), &manifest, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("it is there");
    plane.line("delete pod one --wait=false").ok();
    node.device.wait_logged("failed to remove");
    assert!(one.container("app").is_running());
    umount2(&manifest, MntFlags::MNT_DETACH).expect("it is mounted");
    one.wait_gone();
    plane.wait_for("get pods -o name", str::is_empty);

    plane.apply(&pod("one", ""));
    one.wait_ready();
    // `kubectl drain` uses the Eviction API, and leaves mirror pods alone.
    plane.line("drain board-1 --force --ignore-daemonsets").ok();
    plane.wait_for("get pods -o name", str::is_empty);
    one.wait_gone();
    plane.line("uncordon board-1").ok();

    // The scheduler preempts a pod of lower priority.
    plane.line("create priorityclass high --value=1000").ok();
    let cpu = plane.line("get node board-1 -o jsonpath={.status.allocatable.cpu}").ok();
    let request = format!("    resources: {{requests: {{cpu: '{cpu}'}}}}\n");
    plane.apply(&pod("low", &request));
    node.device.pod("low").wait_ready();
    plane.apply(&pod("high", &format!("{request}  priorityClassName: high\n")));
    node.device.pod("high").wait_ready();
    plane.wait_for("get pods -o name", |pods| pods.trim() == "pod/high");
    node.device.pod("low").wait_gone();
}

#[test]
fn a_rejected_pod_stays_in_the_cluster_until_its_manifest_is_gone_from_the_board() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};

    let (plane, node) = Node::in_new_cluster();
    // A kubelet would find no handler of this name, and the pod waits.
    plane.create("{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: odd}, handler: odd}");
    plane.create(&pod(
        "odd",
        "  nodeName: board-1\n  runtimeClassName: odd\n  automountServiceAccountToken: false\n",
    ));
    node.device.wait_logged("RuntimeClass \"odd\" not found");
    // A mount point cannot be removed.
    let manifest = node.device.path("var/lib/nodlet/cluster/default_odd.json");
    mount(Some(&manifest), &manifest, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("it is there");
    let attempts = || node.device.agent_log().matches("failed to remove").count();
    plane.line("delete pod odd --wait=false").ok();
    node.device.wait_for("an attempt", || attempts() == 1);
    // After a power cut, the board would run it, and the cluster would not know it.
    plane.line("annotate pod odd a=b").ok();
    node.device.wait_for("the next attempt", || attempts() == 2);
    assert!(plane.line("get pods -o name").ok().contains("odd"));
    umount2(&manifest, MntFlags::MNT_DETACH).expect("it is mounted");
    plane.line("annotate pod odd c=d").ok();
    plane.wait_for("get pods -o name", str::is_empty);
    assert!(!manifest.exists());
}

#[test]
fn objects_of_the_cluster_beyond_the_quota_of_the_board_are_read_when_others_go() {
    let (plane, node) = Node::in_new_cluster();
    let of = |name: &str| {
        plane.line(&format!("create configmap {name} --from-literal=color=green")).ok();
        let volume = format!("  volumes: [{{name: v, configMap: {{name: {name}}}}}]\n");
        plane.apply(&pod(name, &format!("{volume}  automountServiceAccountToken: false\n")));
    };
    of("one");
    let one = node.device.pod("one").wait_ready();
    // The manifests of the cluster are the pod, its ConfigMap, and those of the Services.
    let manifests = node.device.names("var/lib/nodlet/cluster");
    let free = 1024 - manifests.iter().filter(|name| name.ends_with(".json")).count();
    let object =
        |number: usize| format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{number}}}\n");
    node.device.write_manifest("all.yaml", &(1..=free).map(object).collect::<String>());
    let has = |name: &str| node.device.get(&format!("/api/v1/namespaces/default/configmaps/{name}")).is_ok();
    node.device.wait_for("the quota to be used up", || has(&format!("c{free}")));
    of("two");
    for file in ["configmap_default_two", "default_two"] {
        node.device.wait_logged(&format!("{file}.json: quota exceeded: all manifests together"));
    }
    // The manifest of the pod goes first, and its ConfigMap then: each leaves room for one object.
    plane.line("delete pod one").ok();
    one.wait_gone();
    node.device.pod("two").wait_ready();
}

#[test]
fn a_pod_uses_a_volume_and_a_runtime_class_of_the_cluster_and_leaves_no_file() {
    let (plane, node) = Node::in_new_cluster();
    let directory = node.device.path("data");
    std::fs::create_dir_all(&directory).expect("a directory");
    plane.create(
        "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: fast}, handler: nodlet, \
         overhead: {podFixed: {cpu: 10m}}}",
    );
    plane.apply(&manifest::local_volume(&directory, ""));
    plane.wait_for("get pvc data --no-headers", |claim| claim.contains("Bound"));
    plane.apply(&pod(
        "one",
        "    volumeMounts: [{name: data, mountPath: /data}]
  runtimeClassName: fast
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
",
    ));
    let one = node.device.pod("one").wait_ready();
    std::fs::write(directory.join("file"), "text").expect("written");
    assert_eq!(one.demo("app", "cat /data/file").stdout, "text");
    assert_eq!(one.object().expect("it runs")["spec"]["overhead"]["cpu"], "10m");
    // While the connection lasts, no list removes leftovers.
    let names = |directory: &str| node.device.names(directory);
    let files = || [names("var/lib/nodlet/cluster"), names("run/nodlet/manifests")].concat();
    let with = |text: &str| files().iter().filter(|name| name.contains(text)).count();
    assert_eq!(["persistentvolume", "nodlet-token-"].map(with), [2, 1], "{:?}", files());
    plane.line("delete pod one").ok();
    node.device.wait_for("its objects and its token to be gone", || {
        ["persistentvolume", "nodlet-token-"].map(with) == [0, 0]
    });
    assert_eq!(std::fs::read_to_string(directory.join("file")).expect("it stays"), "text");
}

#[test]
fn a_label_of_the_cluster_places_pods_and_outlasts_a_boot_without_network() {
    let (plane, mut node) = Node::in_new_cluster();
    // The board may learn of the pod before it learns of the label.
    plane.apply(&pod("one", "  nodeSelector: {site: north}\n"));
    plane.line("label node board-1 site=north").ok();
    node.device.pod("one").wait_ready();
    let cut = plane.partition_from(&node.address);
    node.device.power_cycle();
    node.device.pod("one").wait_ready();
    drop(cut);
    // Assigned past the scheduler, a pod that the label does not suit is rejected as by a kubelet.
    plane.apply(&pod("two", "  nodeName: board-1\n  nodeSelector: {site: south}\n"));
    plane.wait_for("get pod two -o jsonpath={.status.reason}", |reason| reason == "NodeAffinity");
}

#[test]
fn the_objects_of_a_pod_outlast_its_end() {
    let (plane, mut node) = Node::in_new_cluster();
    plane.line("create configmap settings --from-literal=color=green").ok();
    plane.line("create secret generic key --from-literal=word=open").ok();
    // The hook fails if a file is not there when it may end.
    plane.apply(
        &pod(
            "one",
            "    envFrom: [{configMapRef: {name: settings}}]
    lifecycle: {preStop: {exec: {command: [/bin/demo, wait, /go, then, cat, /settings/color, then, cat, /key/word, then, touch, /read]}}}
    volumeMounts: [{name: settings, mountPath: /settings}, {name: key, mountPath: /key}]
  volumes: [{name: settings, configMap: {name: settings}}, {name: key, secret: {secretName: key}}]
",
        )
        .replace("terminationGracePeriodSeconds: 2", "terminationGracePeriodSeconds: 600"),
    );
    let one = node.device.pod("one").wait_ready();
    plane.line("delete pod one --wait=false").ok();
    node.device.wait_for("the hook", || {
        let events = one.events();
        events.iter().any(|event| event.contains("Killing"))
    });
    plane.line("delete configmap settings").ok();
    plane.line("delete secret key").ok();
    let texts = |node: &Node| {
        let pod = node.device.pod("one");
        ["/settings/color", "/key/word"].map(|file| pod.demo("app", &format!("cat {file}")).stdout)
    };
    // A change for a pod that runs shows that the board has seen the deletions before.
    plane.line("create configmap last --from-literal=color=red").ok();
    plane.apply(&pod("two", "    envFrom: [{configMapRef: {name: last}}]\n"));
    node.device.pod("two").wait_ready();
    assert_eq!(texts(&node), ["green", "open"]);
    // Nor does another agent that knows the pod only as one that ends.
    node.device.restart_agent();
    plane.line("delete pod two").ok();
    assert_eq!(texts(&node), ["green", "open"]);
    let one = node.device.pod("one");
    one.tell("app", "/go");
    one.wait_gone();
    plane.wait_for("get pods -o name", str::is_empty);
    node.device.assert_not_logged("FailedPreStopHook");
    // Nothing of them is left then.
    let left = || node.device.names("var/lib/nodlet/cluster");
    node.device.wait_for("the objects to be gone", || !left().iter().any(|name| name.contains("_settings")));
}

#[test]
fn labels_that_could_not_be_stored_are_stored_later_and_a_damaged_file_of_them_is_reported() {
    let (plane, mut node) = Node::in_new_cluster();
    plane.line("label node board-1 site=north").ok();
    let file = node.device.path("var/lib/nodlet/cluster/.labels");
    let stored = || std::fs::read_to_string(&file).unwrap_or_default();
    // A Node is reported, and its labels are read, when its status changes.
    let report = |name: &str| node.device.load(&Image::new(&format!("localhost/{name}:1")));
    report("a");
    node.device.wait_for("the label", || stored().contains("\"site\":\"north\""));

    // No file can replace a directory.
    std::fs::remove_file(&file).expect("it is there");
    std::fs::create_dir(&file).expect("its directory is there");
    plane.line("label node board-1 site=south --overwrite").ok();
    report("b");
    let failed = format!("failed to write {}", file.display());
    node.device.wait_logged(&failed);
    std::fs::remove_dir(&file).expect("it is empty");
    // Without another change of the labels.
    let long = std::time::Duration::from_secs(150);
    node.device.wait_within(long, "the label", || stored().contains("\"site\":\"south\""));
    assert_eq!(node.device.agent_log().matches(&failed).count(), 1);

    plane.apply(&pod("one", "  nodeSelector: {site: south}\n"));
    node.device.pod("one").wait_ready();
    let cut = plane.partition_from(&node.address);
    std::fs::write(&file, &stored()[..5]).expect("written");
    node.device.power_cycle();
    let ignored = format!("{} is ignored: not a JSON object", file.display());
    node.device.wait_logged(&ignored);
    node.device
        .wait_for("what the warning says", || node.device.pod("one").status()["reason"] == "NodeAffinity");
    drop(cut);
    node.device.wait_for("the label", || stored().contains("\"site\":\"south\""));
}

#[test]
fn a_pod_cannot_have_the_token_of_another_pod() {
    let (plane, node) = Node::in_new_cluster();
    plane.apply(&pod("one", ""));
    node.device.pod("one").wait_ready();
    let uid = plane.line("get pod one -o jsonpath={.metadata.uid}").ok();
    let secret = format!("nodlet-token-{}-0", uid.trim());
    let has_token = || node.device.names("run/nodlet/manifests").iter().any(|name| name.contains(&secret));
    assert!(has_token(), "the board has the Secret that the other pod names");
    plane.apply(&pod(
        "two",
        &format!(
            "    env: [{{name: STOLEN, valueFrom: {{secretKeyRef: {{name: {secret}, key: token, optional: true}}}}}}]
    envFrom: [{{prefix: ALL_, secretRef: {{name: {secret}, optional: true}}}}]
    volumeMounts: [{{name: a, mountPath: /a}}, {{name: b, mountPath: /b}}]
  volumes:
  - {{name: a, secret: {{secretName: {secret}, optional: true}}}}
  - {{name: b, projected: {{sources: [{{secret: {{name: {secret}, optional: true}}}}]}}}}
"
        ),
    ));
    let two = node.device.pod("two").wait_ready();
    for directory in ["/a", "/b"] {
        let listed = two.demo("app", &format!("ls {directory}")).ok();
        assert!(!listed.contains("token"), "{directory}: {listed}");
    }
    let variables = two.demo("app", "env").ok();
    assert!(!variables.contains("STOLEN") && !variables.contains("ALL_token"), "{variables}");
    // Its own token is still there.
    two.demo("app", "ls /var/run/secrets/kubernetes.io/serviceaccount").ok_with("token");
    assert!(has_token());
}
