//! A real Kubernetes control plane, to which boards are nodes.

use std::time::{Duration, Instant};

use nodlet_tests::bus::FakeLogind;
use nodlet_tests::{ClusterNode as Node, ControlPlane, Namespace, manifest};
use serde_json::{Map, Value, json};

#[test]
fn a_cluster_without_nodes_keeps_pods_pending_and_a_board_joins_only_with_the_right_ca_and_token() {
    let plane = ControlPlane::start();
    plane.apply(&manifest::deployment(1, &[manifest::container("web", "", "")], "", ""));
    let pods = plane.wait_for("get pods --no-headers", |pods| !pods.is_empty());
    assert!(pods.contains("web-") && pods.contains("Pending"), "{pods}");
    let why = "get pods -o jsonpath={.items[*].status.conditions[*].message}";
    let why = plane.wait_for(why, |message| !message.is_empty());
    assert!(why.contains("no nodes available to schedule pods"), "{why}");

    // What a board that joins reads without credentials, signed with its token.
    let info = plane.wait_for("get configmap cluster-info -n kube-public -o yaml", |info| {
        info.contains("jws-kubeconfig-abcdef")
    });
    assert!(info.contains(&plane.server()), "{info}");

    let (one, other) = (Namespace::new(), Namespace::new());
    let addresses = [&one, &other].map(|board| plane.connect(board));
    let reaches = |board: &Namespace| {
        let server = plane.server().parse().expect("an address");
        board.call(move || {
            std::net::TcpStream::connect_timeout(&server, std::time::Duration::from_secs(1)).is_ok()
        })
    };
    assert!(reaches(&one) && reaches(&other));
    let cut = plane.partition_from(&addresses[0]);
    assert!(!reaches(&one) && reaches(&other));
    drop(cut);
    assert!(reaches(&one));
    let cut = plane.partition();
    assert!(!reaches(&one) && !reaches(&other));
    drop(cut);
    assert!(reaches(&one) && reaches(&other));

    let node = Node::connected(&plane, "board-1");
    let right = plane.join_arguments();
    let right: Vec<&str> = right.iter().map(String::as_str).collect();
    let hash = format!("sha256:{}", "0".repeat(64));
    let mut wrong = [&["join"], &right[..]].concat();
    wrong[5] = &hash;
    node.verb(&wrong).refused_with("no CA certificate of the cluster has the hash");
    let mut wrong = [&["join"], &right[..]].concat();
    wrong[3] = "abcdef.fedcba9876543210";
    node.verb(&wrong).refused_with("the cluster rejects the token");
    node.verb(&["join", right[0], "--token", right[2]])
        .refused_with("--discovery-token-ca-cert-hash is missing");
    assert!(!node.device.path("var/lib/nodlet/cluster.json").exists());
    assert!(plane.line("get nodes -o name").ok().is_empty());

    // Another machine of the same name is in use.
    plane.apply(
        "
apiVersion: v1
kind: Node
metadata: {name: board-1}
status:
  nodeInfo:
    {machineID: another, systemUUID: '', bootID: '', kernelVersion: '', osImage: '', containerRuntimeVersion: '',
     kubeletVersion: '', kubeProxyVersion: '', operatingSystem: linux, architecture: amd64}
  conditions: [{type: Ready, status: 'True', reason: KubeletReady, message: ''}]
",
    );
    node.verb(&[&["join"], &right[..]].concat()).refused_with("uses the Node name board-1");
}

#[test]
fn pods_that_a_shutdown_of_the_machine_ends_run_on_after_it_and_have_no_successors() {
    let (plane, mut node) = Node::in_new_cluster();
    let bus = node.device.path("/bus");
    let logind = FakeLogind::listen(&bus);
    node.device.agent_variable("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={}", bus.display()));
    node.device.agent_arguments(["--node-name", "board-1", "--shutdown-grace-period", "30s"]);
    node.device.restart_agent();
    let mut lock = logind.lock();
    plane.apply(&deployment(1));
    // Its container exits with 0 when it is asked to end, as one does that has done its work.
    let app = manifest::container("app", "print began then sleep", "imagePullPolicy: IfNotPresent");
    let job = manifest::deployment(1, &[app], "", "restartPolicy: OnFailure");
    let job =
        job.replace("apps/v1", "batch/v1").replace("Deployment", "Job").replace("name: web", "name: job");
    plane.apply(&job.replace("  replicas: 1\n", "").replace("  selector: {matchLabels: {app: web}}\n", ""));
    let pods = "get pods --no-headers -o custom-columns=:metadata.uid,:status.phase,:status.conditions[?(@.type=='Ready')].status";
    let are = |state: &'static str| move |pods: &str| pods.matches(state).count() == 2;
    let uids = |pods: String| -> Vec<String> {
        pods.lines().filter_map(|pod| Some(pod.split_whitespace().next()?.to_owned())).collect()
    };
    plane.wait_for(pods, |pods| pods.matches("True").count() == 2);
    let before = uids(plane.wait_for(pods, are("Running")));

    logind.prepare_for_shutdown(true);
    node.device.wait_for("the pods to end", || lock.is_released());
    assert!(node.device.container_processes().is_empty());
    plane.wait_for("get node board-1 --no-headers", |node| node.contains("NotReady"));
    // No controller has a reason for another pod, and no client takes these for ready.
    plane.wait_for(pods, |pods| pods.matches("False").count() == 2);
    assert_eq!(uids(plane.wait_for(pods, are("Running"))), before);

    node.device.power_cycle();
    plane.wait_for(pods, |pods| pods.matches("True").count() == 2);
    assert_eq!(uids(plane.wait_for(pods, are("Running"))), before);
    assert_eq!(node.device.pods().len(), 2);
    let counts = plane.line("get pods -o jsonpath={.items[*].status.containerStatuses[*].restartCount}").ok();
    assert_eq!(counts, "1 1");
    // No status was one that the API server does not let a node report. It may refuse the first token for a pod: the server
    // does not know yet where the pod was scheduled.
    let log = node.device.agent_log();
    let refused = |line: &&str| line.contains("Forbidden") && !line.contains("no token of service account");
    assert_eq!(log.lines().find(refused), None, "{log}");
}

/// A Deployment of pods that run until they are asked to end.
fn deployment(replicas: usize) -> String {
    let steps = "print began then wait /end then exit 0";
    let app = manifest::container("app", steps, "imagePullPolicy: IfNotPresent");
    manifest::deployment(replicas, &[app], "", "terminationGracePeriodSeconds: 5")
}

const NAMES: &str = "get pods -l app=web -o jsonpath={.items[*].metadata.name}";

/// The names of the pods of the Deployment, when so many are running on the node.
#[track_caller]
fn running(plane: &ControlPlane, node: &str, count: usize) -> Vec<String> {
    plane.wait_for("get pods -l app=web -o wide --no-headers", |pods| {
        let running =
            pods.lines().filter(|pod| pod.contains("1/1") && pod.contains("Running") && pod.contains(node));
        running.count() == count && pods.lines().count() == count
    });
    plane.line(NAMES).ok().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_board_joins_runs_the_pods_of_a_deployment_and_leaves() {
    let (plane, mut node) = Node::in_new_cluster();
    plane.apply(&deployment(2));
    let names = running(&plane, "board-1", 2);

    // The pod has its service account's token, and the cluster's CA.
    let pod = node.device.pod(&names[0]);
    assert_eq!(
        pod.object().expect("it runs")["metadata"]["annotations"]["kubernetes.io/config.source"],
        "api"
    );
    let directory = "/var/run/secrets/kubernetes.io/serviceaccount";
    let listed = pod.demo("app", &format!("ls {directory}")).ok();
    assert!(["ca.crt", "namespace", "token"].iter().all(|file| listed.contains(file)), "{listed}");
    // The cluster knows by the token which pod has it, and on which node.
    let token = pod.demo("app", &format!("cat {directory}/token")).ok();
    let review = format!(
        "{{apiVersion: authentication.k8s.io/v1, kind: TokenReview, spec: {{token: '{}'}}}}",
        token.trim()
    );
    let reviewed = plane.kubectl_with(&["create", "-o", "json", "-f", "-"], &review).ok();
    let reviewed: Value = serde_json::from_str(&reviewed).expect("JSON");
    let user = &reviewed["status"]["user"];
    assert_eq!(user["username"], "system:serviceaccount:default:default", "{reviewed}");
    let extra = |name: &str| &user["extra"][format!("authentication.kubernetes.io/{name}")][0];
    assert_eq!((extra("pod-name"), extra("node-name")), (&names[0].as_str().into(), &"board-1".into()));
    let ips = plane.line("get pods -l app=web -o jsonpath={.items[*].status.podIP}").ok();
    assert!(ips.split_whitespace().any(|ip| ip == pod.ip()), "{ips} {}", pod.ip());
    let events = plane.wait_for("get events -o jsonpath={.items[*].reason}", |all| all.contains("Started"));
    assert!(events.contains("Scheduled") && events.contains("Created"), "{events}");
    let file = node.device.path("var/lib/nodlet/cluster.json");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(file).expect("it joined").permissions());
    assert_eq!(mode & 0o777, 0o600);
    let shown =
        plane.line("get node board-1 -o jsonpath={.status.features}{.status.runtimeHandlers[*].name}").ok();
    assert_eq!(shown, "{\"supplementalGroupsPolicy\":true} nodlet");
    let users = "get node board-1 -o jsonpath={.status.runtimeHandlers[*].features.userNamespaces}";
    assert_eq!(plane.line(users).ok(), "true true");
    let uuid = plane.line("get node board-1 -o jsonpath={.status.nodeInfo.systemUUID}").ok();
    let files = [
        "/sys/class/dmi/id/product_uuid",
        "/proc/device-tree/system-id",
        "/proc/device-tree/vm,uuid",
        "/etc/machine-id",
    ];
    let of_machine = files.iter().find_map(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    assert_eq!(uuid, of_machine.trim_end_matches('\0').trim());

    // Another agent finds the pods, and restarts no container.
    let born = pod.born("app");
    node.device.restart_agent();
    node.device.wait_logged("this board is node board-1");
    assert_eq!(node.device.pod(&names[0]).born("app"), born);

    // The local API leaves pods of the cluster to the cluster.
    node.verb(&["delete", "pod", &names[0]])
        .refused_with("delete it in the cluster that this board has joined");

    plane.line("scale deployment web --replicas 0").ok();
    plane.wait_for(NAMES, str::is_empty);
    node.device.wait_for("the pods to be gone", || node.device.pods().is_empty());
    let left = node.device.names("var/lib/nodlet/cluster");
    assert!(!left.iter().any(|name| name.starts_with("default_")), "{left:?}");

    plane.line("scale deployment web --replicas 1").ok();
    running(&plane, "board-1", 1);
    node.verb(&["leave"]).ok();
    node.device.wait_for("the pods to be gone", || node.device.pods().is_empty());
    for verb in ["leave", "sync"] {
        assert!(node.verb(&[verb]).refused().contains("has joined no cluster"), "{verb}");
    }
    // An attempt that stopped after the credentials were removed is repeated.
    let left = node.device.path("var/lib/nodlet/cluster/configmap_default_left.json");
    std::fs::write(&left, "{}").expect("a manifest");
    node.verb(&["leave"]).ok();
    assert!(!left.exists());
}

#[test]
fn pods_run_on_without_the_cluster_and_their_status_follows() {
    let (plane, mut node) = Node::in_new_cluster();
    plane.apply(&deployment(1));
    let names = running(&plane, "board-1", 1);
    let pod = node.device.pod(&names[0]);
    let born = pod.born("app");

    let cut = plane.partition_from(&node.address);
    // What happens meanwhile: the container ends and is started again; the cluster deletes the pod.
    pod.tell("app", "/end");
    pod.wait_run("app", 1);
    assert_ne!(pod.born("app"), born);
    drop(cut);
    let restarts = "get pods -l app=web -o jsonpath={.items[*].status.containerStatuses[*].restartCount}";
    plane.wait_for(restarts, |restarts| restarts == "1");
    assert!(pod.container("app").is_running());

    // After a reboot, the board has only what it stored.
    let cut = plane.partition_from(&node.address);
    node.device.power_cycle();
    let pod = node.device.pod(&names[0]).wait_ready();
    drop(cut);
    running(&plane, "board-1", 1);

    let cut = plane.partition_from(&node.address);
    plane.line("delete deployment web --wait=false").ok();
    plane.wait_for(NAMES.replace(".name}", ".deletionTimestamp}").as_str(), |time| !time.is_empty());
    assert!(pod.container("app").is_running(), "no pod ends without news of the cluster");
    drop(cut);
    plane.wait_for(NAMES, str::is_empty);
    pod.wait_gone();
}

#[test]
fn a_pod_that_the_board_cannot_run_is_rejected_with_an_event() {
    let (plane, node) = Node::in_new_cluster();
    plane.apply(
        "
apiVersion: v1
kind: Pod
metadata: {name: share}
spec:
  containers: [{name: app, image: 'localhost/demo:1'}]
  volumes: [{name: share, nfs: {server: server, path: /}}]
",
    );
    let status = "get pod share -o jsonpath={.status.phase}|{.status.reason}|{.status.message}";
    let status = plane.wait_for(status, |status| status.starts_with("Failed"));
    assert!(
        status.starts_with("Failed|PodSpecNotSupported|Pod was rejected: The Pod \"share\" is invalid"),
        "{status}"
    );
    assert!(status.contains("nfs"), "{status}");
    let events = "get events -o jsonpath={.items[*].message}";
    plane.wait_for(events, |events| events.contains("nfs"));
    plane.line("delete pod share").ok();

    // What the pod refers to is rejected: a kubelet would find no handler of this name, and the pod waits.
    plane.create("{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: odd}, handler: odd}");
    plane.create(
        "{apiVersion: v1, kind: Pod, metadata: {name: odd}, spec: {nodeName: board-1, runtimeClassName: odd, \
         containers: [{name: app, image: 'localhost/demo:1', args: [wait, /end]}]}}",
    );
    node.device.wait_logged("RuntimeClass \"odd\" not found");
    let of_odd = "get events --field-selector involvedObject.name=odd -o jsonpath={.items[*].message}";
    plane.wait_for(of_odd, |events| events.contains("RuntimeClass \"odd\" not found"));
    plane.line("delete pod odd --wait=false").ok();
    let deleted = Instant::now();
    plane.wait_for("get pods -o name", str::is_empty);
    // As by a kubelet: not with the next refresh, which takes place every minute.
    assert!(deleted.elapsed() < Duration::from_secs(20), "{:?}", deleted.elapsed());
}

#[test]
fn pods_get_config_and_end_when_they_are_deleted_by_force_and_files_of_the_board_keep_their_names() {
    let (plane, node) = Node::in_new_cluster();
    plane.line("create configmap settings --from-literal=color=green").ok();
    plane.line("create secret generic login --from-literal=password=hunter2").ok();
    plane.line("create priorityclass high --value=1000").ok();
    let pod = |name: &str| {
        format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  priorityClassName: high
  containers:
  - name: app
    image: localhost/demo:1
    args: [env, then, wait, /end]
    envFrom: [{{configMapRef: {{name: settings}}}}]
    env: [{{name: PASSWORD, valueFrom: {{secretKeyRef: {{name: login, key: password}}}}}}]
    volumeMounts: [{{name: settings, mountPath: /settings}}]
  volumes: [{{name: settings, configMap: {{name: settings}}}}]
"
        )
    };
    plane.apply(&pod("one"));
    let one = node.device.pod("one").wait_log("app", "color=green").wait_log("app", "PASSWORD=hunter2");
    assert_eq!(one.object().expect("it runs")["spec"]["priority"], 1000);
    plane.line("patch configmap settings -p {\"data\":{\"color\":\"blue\"}}").ok();
    node.device.wait_for("the new color", || one.demo("app", "cat /settings/color").stdout == "blue");
    plane.line("delete pod one --force --grace-period=0").ok();
    one.wait_gone();

    node.device.write_pod("two", &nodlet_tests::manifest::pod("two", "wait /end")).wait_phase("Running");
    plane.apply(&pod("two"));
    let status = "get pod two -o jsonpath={.status.phase}|{.status.message}";
    let status = plane.wait_for(status, |status| status.starts_with("Failed"));
    assert!(status.contains("two.yaml of this board defines a pod of the same name"), "{status}");
    assert!(node.device.pod("two").container("app").is_running());
    plane.line("delete pod two --wait=false").ok();
    plane.wait_for("get pods -o name", |pods| pods.trim() == "pod/two-board-1");
    assert!(node.device.pod("two").container("app").is_running(), "the file's pod is another one");
}

#[test]
fn names_that_no_object_can_have_keep_no_other_pod_from_running() {
    let (plane, node) = Node::in_new_cluster();
    plane.line("create secret generic x --from-literal=key=value").ok();
    // Kubernetes' API accepts any text as a name in these fields. Sent in a request as they are, these would be errors, other
    // requests, or watches without an end.
    let odd = |name: &str, volumes: &str| {
        plane.create(&format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeName: board-1
  terminationGracePeriodSeconds: 1
  containers: [{{name: app, image: 'localhost/demo:1', args: [wait, /end]}}]
{volumes}"
        ));
    };
    odd("percent", "  volumes: [{name: a, secret: {secretName: '100%'}}]");
    odd(
        "query",
        "  volumes: [{name: a, secret: {secretName: x}}, {name: b, secret: {secretName: 'x&watch=1'}}, \
                     {name: c, projected: {sources: [{configMap: {name: 'x#y'}}]}}]",
    );
    odd("path", "  volumes: [{name: a, persistentVolumeClaim: {claimName: '../../../nodes/board-1'}}]");
    plane.create(
        "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: odd}, spec: {accessModes: [ReadWriteOnce], \
         volumeName: '../../../api/v1/nodes', resources: {requests: {storage: 1Mi}}}}",
    );
    odd("volume", "  volumes: [{name: a, persistentVolumeClaim: {claimName: odd}}]");
    odd("pull", "  imagePullSecrets: [{name: '../x?watch=1&y=%'}]");
    plane.create(&manifest::pod("after", "print began then wait /end"));
    node.device.pod("after").wait_log("app", "began");
    plane.wait_for("get pod after --no-headers", |pod| pod.contains("1/1"));
    // Secrets for pulls that do not exist are ignored.
    plane.wait_for("get pod pull --no-headers", |pod| pod.contains("1/1"));
    for (waiting, reason) in [
        ("percent", "100%"),
        ("query", "x&watch=1"),
        ("path", "../../../nodes/board-1"),
        ("volume", "persistentvolumeclaim"),
    ] {
        let line = format!("describe pod {waiting}");
        plane.wait_for(&line, |described| described.contains(reason) && described.contains("FailedMount"));
    }
    node.device.assert_not_logged("no connection to the cluster");
    plane.line("delete pods --all --wait=false").ok();
    plane.wait_for("get pods -o name", str::is_empty);
}

/// Whoever may create a pod can make it as large as the API server stores it.
#[test]
fn pods_as_large_as_a_cluster_stores_them_keep_no_other_pod_from_running() {
    let plane = ControlPlane::start();
    // The ring does not hold such a pod.
    let mut node = Node::join_unwatched(&plane, "board-1", &[]);
    let create = |name: &str, metadata: Value, container: Value| {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": { "nodeName": "board-1", "terminationGracePeriodSeconds": 1, "containers": [container] },
        });
        pod["metadata"]["name"] = name.into();
        let container = &mut pod["spec"]["containers"][0];
        (container["name"], container["image"]) = ("app".into(), "localhost/demo:1".into());
        let path = "/api/v1/namespaces/default/pods";
        plane.kubectl_with(&["create", "--raw", path, "-f", "-"], &pod.to_string()).ok();
    };
    // The server sends six bytes for each of these.
    let value = "<".repeat(900_000);
    create("escaped", json!({}), json!({ "env": [{ "name": "A", "value": value }] }));
    let port = |port: u32| json!({ "containerPort": port });
    create("ports", json!({}), json!({ "ports": (1..=40_000).map(port).collect::<Value>() }));
    let labels: Map<String, Value> = (0..60_000).map(|number| (format!("l{number}"), "".into())).collect();
    create("labels", json!({ "labels": labels }), json!({}));
    let owner =
        |number: u32| json!({ "apiVersion": "v1", "kind": "A", "name": "a", "uid": number.to_string() });
    create("owners", json!({ "ownerReferences": (0..15_000).map(owner).collect::<Value>() }), json!({}));
    plane.create(&manifest::pod("after", "print began then wait /end"));
    node.device.pod("after").wait_log("app", "began");
    for name in ["ports", "labels", "owners"] {
        let why = "the pod has more than 50000 values";
        plane.wait_for(&format!("get events --field-selector involvedObject.name={name}"), |events| {
            events.contains(why)
        });
        plane.wait_for(&format!("get pod {name} -o jsonpath={{.status.phase}}"), |phase| phase == "Failed");
    }
    // From the list, too.
    node.device.stop_agent();
    node.device.start_agent();
    plane.create(&manifest::pod("later", "print began then wait /end"));
    node.device.pod("later").wait_log("app", "began");
    node.device.assert_not_logged("no connection to the cluster");
    node.device.assert_not_logged("too large");
    plane.line("delete pods --all --wait=false").ok();
    plane.wait_for("get pods -o name", str::is_empty);
}

#[test]
fn labels_and_taints_of_the_registration_place_pods() {
    let plane = ControlPlane::start();
    let flags = ["--node-labels", "site=harbour", "--register-with-taints", "dedicated=edge:NoSchedule"];
    let node = Node::join_with(&plane, "board-1", &flags);
    let taints = "get node board-1 -o jsonpath={.metadata.labels.site}|{.spec.taints[*].key}={.spec.taints[*].value}:{.spec.taints[*].effect}";
    assert_eq!(plane.line(taints).ok(), "harbour|dedicated=edge:NoSchedule");
    plane.create(&manifest::pod("elsewhere", "wait /end"));
    let spec = "nodeSelector: {site: harbour}\ntolerations: [{key: dedicated, operator: Exists}]\n";
    plane.create(&manifest::pod_with("here", "wait /end", spec));
    plane.wait_for("get pod here --no-headers", |pod| pod.contains("1/1"));
    let why = "get pod elsewhere -o jsonpath={.status.conditions[*].message}";
    plane.wait_for(why, |why| why.contains("untolerated taint"));
    // Whoever removes a taint decides: the board does not set it again.
    plane.line("taint node board-1 dedicated-").ok();
    plane.wait_for("get pod elsewhere --no-headers", |pod| pod.contains("1/1"));
    assert_eq!(node.device.pods().len(), 2);
}

#[test]
fn certificates_are_replaced_before_they_expire_and_a_deleted_node_is_made_again() {
    // Certificates are valid from five minutes ago: that of the join is replaced at once or within 42 s.
    let plane = ControlPlane::start_with(&["--cluster-signing-duration=80s"]);
    let node = Node::join(&plane, "board-1");
    let uid = plane.line("get node board-1 -o jsonpath={.metadata.uid}").ok();
    plane.line("delete node board-1").ok();
    let uids = "get node -o jsonpath={.items[*].metadata.uid}";
    plane.wait_for(uids, |new| !new.is_empty() && new != uid);
    node.device.wait_logged("the client certificate of the cluster was replaced");
    plane.apply(&deployment(1));
    running(&plane, "board-1", 1);
}

/// The UIDs of the pods of the Deployment.
const UIDS: &str = "get pods -l app=web -o jsonpath={.items[*].metadata.uid}";

#[test]
fn pods_of_a_deleted_node_end_before_the_board_registers_again() {
    let plane = ControlPlane::start();
    let mut node = Node::join_with(&plane, "board-1", &["--node-labels", "site=harbour"]);
    let born = node.device.run_pod("own", "wait /end").wait_ready().born("app");
    plane.apply(&deployment(2));
    running(&plane, "board-1", 2);
    plane.line("label node board-1 of=admin").ok();
    let uid = || plane.line("get node -o jsonpath={.items[*].metadata.uid}").ok();
    let again = |before: &str| {
        plane.wait_for("get node -o jsonpath={.items[*].metadata.uid}", |new| {
            !new.is_empty() && new != before
        });
        running(&plane, "board-1", 2);
        let ranges = plane.line("get node board-1 -o jsonpath={.spec.podCIDR}").ok();
        let ips = plane.line("get pods -l app=web -o jsonpath={.items[*].status.podIP}").ok();
        let base = ranges.strip_suffix("0/24").expect("a range of the usual size").to_owned();
        assert!(ips.split_whitespace().all(|ip| ip.starts_with(&base)), "{ranges} {ips}");
    };
    let are_new = |before: &str| {
        let now = plane.line(UIDS).ok();
        assert!(now.split_whitespace().all(|uid| !before.contains(uid)), "{before} {now}");
    };

    // The board is connected.
    let (first, pods) = (uid(), plane.line(UIDS).ok());
    plane.line("delete node board-1").ok();
    again(&first);
    are_new(&pods);
    let labels =
        plane.line("get node board-1 -o jsonpath={.metadata.labels.site}|{.metadata.labels.of}").ok();
    assert_eq!(labels, "harbour|");

    // The board is offline, and its agent begins anew meanwhile.
    let (second, pods) = (uid(), plane.line(UIDS).ok());
    let cut = plane.partition_from(&node.address);
    plane.line("delete node board-1").ok();
    node.device.restart_agent();
    drop(cut);
    again(&second);
    are_new(&pods);
    assert_eq!(node.device.pod("own").born("app"), born, "pods from files run on");
}

#[test]
fn all_pods_of_a_deleted_node_are_deleted_before_the_first_has_ended() {
    /// More than the server sends in one answer.
    const PODS: usize = 12;
    let (plane, node) = Node::in_new_cluster();
    let app = manifest::container("app", "ignore-term then sleep", "imagePullPolicy: IfNotPresent");
    plane.apply(&manifest::deployment(PODS, &[app], "", "terminationGracePeriodSeconds: 30"));
    running(&plane, "board-1", PODS);
    plane.line("delete node board-1").ok();
    // A pod is gone at the end of its grace period.
    let times = r#"get pods -l app=web -o jsonpath={range.items[*]}{.metadata.deletionTimestamp}{"\n"}{end}"#;
    plane.wait_for(times, |times| times.lines().filter(|time| !time.is_empty()).count() == PODS);
    drop(node);
}

#[test]
fn clusters_with_keys_of_rsa_and_of_p_384_are_joined_and_reach_the_board() {
    for keys in ["rsa:2048", "ec -pkeyopt ec_paramgen_curve:P-384"] {
        let plane = ControlPlane::start_with_keys(keys);
        let node = Node::join(&plane, "board-1");
        node.approve_server(&plane, "board-1");
        plane.apply(&deployment(1));
        let names = running(&plane, "board-1", 1);
        plane.wait_for(&format!("logs {}", names[0]), |log| !log.is_empty());
    }
}
