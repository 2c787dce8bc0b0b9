//! API servers that reject, break off, send garbage, or send without end: a board retries with back-off, its memory is
//! bounded, and its pods notice nothing.

use std::fs;
use std::time::{Duration, Instant};

use nodlet_tests::{ClusterNode, ControlPlane, Device};

/// The limit of the agent's memory that no file backs, in KiB: that of large manifests in `bounded.rs`.
const MEMORY: u64 = 28 * 1024;

/// Ends the session of the board, which then retries. Not every failed request ends it.
fn end_session(device: &Device, plane: &ControlPlane) {
    let ended = || device.agent_log().matches("no connection to the cluster").count();
    let before = ended();
    plane.set_fault("500");
    device.wait_within(Duration::from_secs(150), "the session to end", || ended() > before);
}

/// The agent's memory that no file backs, in KiB.
fn memory(device: &Device) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", device.agent_pid())).expect("the agent runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// The processor time of the agent in ticks of 10 ms.
fn ticks(device: &Device) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", device.agent_pid())).expect("the agent runs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  nodeName: board-1
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: 'localhost/demo:1', args: [print, began, then, wait, /end]}]
";

/// A fault, the reason that the board logs, and the least seconds that so many requests of the board take; the tests of
/// `Backoff` have all waits.
type Fault = (&'static str, &'static str, usize, u64);

#[test]
fn faults_of_the_api_server_cost_neither_pods_nor_memory_and_are_retried_with_back_off() {
    survives(
        1,
        &[
            ("401", "HTTP 401 Test: a fault", 4, 5),
            ("403", "HTTP 403 Test: a fault", 1, 0),
            ("409", "HTTP 409 Test: a fault", 1, 0),
            ("429", "HTTP 429 Test: a fault", 2, 7),
            ("500", "HTTP 500 Test: a fault", 1, 0),
            ("garbage", "the API server sent something else than a JSON object", 1, 0),
            ("version", "the API server sent something else than a", 1, 0),
            ("half", "the server closed the connection", 1, 0),
            ("line", "the response is too large", 1, 0),
        ],
    );
}

#[test]
fn so_are_faults_of_an_api_server_with_http2() {
    survives(
        2,
        &[
            ("401", "HTTP 401 Test: a fault", 4, 5),
            ("403", "HTTP 403 Test: a fault", 1, 0),
            ("409", "HTTP 409 Test: a fault", 1, 0),
            ("429", "HTTP 429 Test: a fault", 1, 0),
            ("500", "HTTP 500 Test: a fault", 1, 0),
            ("version", "the API server sent something else than a", 1, 0),
            ("garbage", "the API server sent something else than a JSON object", 1, 0),
            ("half", "the server closed the connection", 1, 0),
            ("line", "the response is too large", 1, 0),
        ],
    );
}

#[test]
fn redirects_upgrades_and_large_heads_are_neither_followed_nor_kept() {
    survives(
        2,
        &[
            ("redirect", "HTTP 307", 4, 5),
            ("upgrade", "HTTP 101", 1, 0),
            ("headers", "the response is too large", 1, 0),
        ],
    );
}

fn survives(version: u8, faults: &[Fault]) {
    let mut plane = ControlPlane::start();
    let device = ClusterNode::join_through_faults(&mut plane, version);
    plane.apply(POD);
    plane.wait_for("get pod web --no-headers", |pod| pod.contains("1/1"));
    let web = device.pod("web");
    for &(fault, reason, requests, least) in faults {
        let restarts = web.container("app").restart_count();
        let reported = |device: &Device| device.agent_log().matches(reason).count();
        let (before, connected) = (reported(&device), "connected to the cluster at");
        let connections = device.agent_log().matches(connected).count();
        // A session that has a watch learns of a fault with its next request, and begins another watch after an error.
        if fault == "line" {
            end_session(&device, &plane);
        }
        let first = plane.set_fault(fault);
        device.wait_within(Duration::from_secs(150), fault, || plane.faulty_requests() > first);
        let (begun, first) = (Instant::now(), plane.faulty_requests());
        device.wait_within(Duration::from_secs(150), "more requests", || {
            plane.faulty_requests() >= first + requests
        });
        let took = begun.elapsed();
        assert!(took >= Duration::from_secs(least), "{fault}: {requests} requests within {took:?}");
        // The first answer that is of use to nobody may be that to the reading of objects, each minute.
        device.wait_within(Duration::from_secs(150), "the reason", || reported(&device) > before);
        // The pod is restarted as ever, once: the waits between restarts double.
        if restarts == 0 {
            web.tell("app", "/end");
            device.wait_for("another run", || web.container("app").restart_count() == 1);
        }
        assert!(web.container("app").is_running() && web.container("app").restart_count() == 1, "{fault}");
        let memory = memory(&device);
        println!("{fault}: {memory} KiB, {requests} requests within {took:?}");
        assert!(memory < MEMORY, "{fault}: {memory} KiB");
        plane.set_fault("");
        device.wait_within(Duration::from_secs(150), "a connection", || {
            device.nodlet(["sync"]).code == 0 && device.agent_log().matches(connected).count() > connections
        });
    }
    let restarts = "get pod web -o jsonpath={.status.containerStatuses[*].restartCount}";
    plane.wait_for(restarts, |restarts| restarts == "1");
}

#[test]
fn a_watch_without_end_leaves_time_for_everything_else() {
    let mut plane = ControlPlane::start();
    let device = ClusterNode::join_through_faults(&mut plane, 2);
    end_session(&device, &plane);
    plane.set_fault("endless");
    plane.apply(POD);
    plane.wait_for("get pod web --no-headers", |pod| pod.contains("1/1"));
    let (begun, before) = (Instant::now(), ticks(&device));
    let renewed = || {
        let mut last = None;
        plane.wait_for("get lease board-1 -n kube-node-lease -o jsonpath={.spec.renewTime}", |time| {
            last.get_or_insert_with(|| time.to_owned()) != time
        })
    };
    (0..2).for_each(|_| drop(renewed()));
    let (ticks, took) = (ticks(&device) - before, begun.elapsed());
    println!("{} ms of processor time in {took:?}, {} KiB", ticks * 10, memory(&device));
    assert!(u128::from(ticks) * 10 < took.as_millis() / 2, "{ticks} ticks in {took:?}");
    assert!(memory(&device) < MEMORY);
    plane.set_fault("");
}

/// The version from which a request on the list watches the pods of the node; `None` for other requests.
fn watched_version(request: &str) -> Option<u64> {
    let query = request.split_once("/api/v1/pods?")?.1;
    let version = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="))?;
    query.contains("watch=1").then(|| version.parse().expect("a number"))
}

/// Whether a request lists the pods of the node.
fn lists(request: &str) -> bool {
    request.contains("/api/v1/pods?") && request.contains("&limit=")
}

#[test]
fn a_watch_resumes_from_a_bookmark_and_after_410_gone_the_pods_are_listed_again() {
    const WITHIN: Duration = Duration::from_secs(150);
    let mut plane = ControlPlane::start();
    let device = ClusterNode::join_through_faults(&mut plane, 2);
    plane.line("create configmap settings --from-literal=color=green").ok();
    let mount = "/end], volumeMounts: [{name: settings, mountPath: /settings}]}]
  volumes: [{name: settings, configMap: {name: settings}}]";
    plane.apply(&POD.replace("/end]}]", mount));
    let web = device.pod("web");
    web.wait_ready();
    let born = web.born("app");

    // The API server sends a bookmark before a watch ends. A pod of another node makes its version a new one.
    end_session(&device, &plane);
    let first = plane.set_fault("short");
    let watched =
        |since| plane.requests_since(since).iter().filter_map(|one| watched_version(one)).next_back();
    device.wait_within(WITHIN, "a short watch", || watched(first).is_some());
    let begun = plane.faulty_requests();
    plane.apply(&POD.replace("{name: web}", "{name: other}").replace("board-1", "board-2"));
    let version = plane.line("get pod other -o jsonpath={.metadata.resourceVersion}").ok();
    let version: u64 = version.parse().expect("a number");
    device.wait_within(WITHIN, "a watch from a later version", || watched(begun) >= Some(version));
    assert!(!plane.requests_since(begun).iter().any(|one| lists(one)), "{:?}", plane.requests_since(begun));

    // The next watches begin with a version that an API server does not have any more after a restart: it answers
    // 410 Gone.
    plane.kill("kube-apiserver");
    plane.restart("kube-apiserver");
    plane.wait_for("get --raw /readyz", |ready| ready == "ok");
    let first = plane.set_fault("old");
    plane.line("patch configmap settings -p {\"data\":{\"color\":\"blue\"}}").ok();
    let lists_since = || plane.requests_since(first).iter().filter(|one| lists(one)).count();
    device.wait_within(WITHIN, "three lists", || lists_since() >= 3);
    plane.apply(&POD.replace("{name: web}", "{name: new}"));
    plane.wait_for("get pod new --no-headers", |pod| pod.contains("1/1"));
    device.wait_within(WITHIN, "the new color", || {
        web.exec("app", ["/bin/demo", "cat", "/settings/color"]).stdout == "blue"
    });
    let requests = plane.requests_since(first);
    println!("{} lists, {} requests, {} KiB", lists_since(), requests.len(), memory(&device));
    assert!(requests.len() < 100, "{requests:#?}");
    // No session ended: the next one would register the Node.
    assert!(!requests.iter().any(|one| one.ends_with(" POST /api/v1/nodes")), "{requests:#?}");
    assert!(!device.agent_log().contains("Gone"), "{}", device.agent_log());
    plane.set_fault("");
    plane.line("delete pod new --wait=false").ok();
    device.pod("new").wait_gone();
    assert_eq!(web.born("app"), born);
}

#[test]
fn a_pod_of_a_megabyte_and_five_hundred_pods_at_once_are_handled() {
    let mut plane = ControlPlane::start();
    let device = ClusterNode::join_through_faults(&mut plane, 2);
    let large: String =
        (0..9).map(|at| format!("\n    - {{name: LARGE_{at}, value: {}}}", "x".repeat(110_000))).collect();
    plane.create(&format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  nodeName: board-1
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: localhost/demo:1
    args: [print, began, then, wait, /end]
    env:{large}
"
    ));
    plane.wait_for("get pod web --no-headers", |pod| pod.contains("1/1"));
    println!("a pod of 1 MB: {} KiB", memory(&device));
    assert!(memory(&device) < MEMORY);

    // Pods that the board rejects: so many real ones would be a test of the machine.
    let many: String = (0..500)
        .map(|at| {
            format!(
                "---
apiVersion: v1
kind: Pod
metadata: {{name: many-{at}, labels: {{app: many}}}}
spec:
  nodeName: board-1
  containers: [{{name: app, image: 'localhost/demo:1'}}]
  volumes: [{{name: share, nfs: {{server: server, path: /}}}}]
"
            )
        })
        .collect();
    plane.create(&many);
    plane.wait_for("get pods -l app=many --no-headers", |pods| {
        pods.lines().filter(|pod| pod.contains("PodSpecNotSupported")).count() == 500
    });
    let memory = memory(&device);
    println!("500 pods: {memory} KiB");
    assert!(memory < MEMORY, "{memory} KiB");
    assert!(device.pod("web").container("app").is_running());
}

#[test]
fn pods_that_no_api_server_has_touch_neither_files_nor_pods() {
    const WITHIN: Duration = Duration::from_secs(150);
    let mut plane = ControlPlane::start();
    let device = ClusterNode::join_through_faults(&mut plane, 2);
    plane.apply(POD);
    let web = device.pod("web");
    web.wait_ready();
    let born = web.born("app");
    end_session(&device, &plane);
    let first = plane.set_fault("lies");
    let lists = || plane.requests_since(first).iter().filter(|one| lists(one)).count();
    device.wait_within(WITHIN, "a list with lies", || lists() > 0);
    device.pod("twin").wait_phase("Running");
    let memory = memory(&device);
    println!("lies: {memory} KiB, {} lists", lists());
    assert!(memory < MEMORY, "{memory} KiB");
    // Everything that was made of a pod with such a name would have it.
    let mut found = vec![device.root().to_owned()];
    while let Some(directory) = found.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            assert!(!path.to_string_lossy().contains("evil"), "{}", path.display());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !path.ends_with("merged") {
                found.push(path);
            }
        }
    }
    assert!(
        !fs::exists("/tmp/evil").expect("readable") && !fs::exists("/etc/evil-0.json").expect("readable")
    );
    plane.set_fault("");
    device.wait_within(WITHIN, "a connection", || device.nodlet(["sync"]).code == 0);
    end_session(&device, &plane);
    plane.set_fault("");
    device.pod("twin").wait_gone();
    plane.wait_for("get pods --no-headers", |pods| pods.lines().count() == 1 && pods.contains("1/1"));
    assert_eq!(web.born("app"), born);
}

#[test]
fn a_pod_whose_status_the_api_server_cannot_take_keeps_no_other_from_being_reported() {
    let mut plane = ControlPlane::start();
    let device = ClusterNode::join_through_faults(&mut plane, 2);
    plane.set_fault("webhook");
    plane.apply(POD);
    device
        .wait_for("a failed report", || device.agent_log().contains("default/web: the cluster cannot take"));
    plane.apply(&POD.replace("{name: web}", "{name: xenon}"));
    plane.wait_for("get pod xenon --no-headers", |pod| pod.contains("1/1"));
    assert!(plane.line("get pod web --no-headers").ok().contains("0/1"));
    assert!(!device.agent_log().contains("no connection to the cluster"), "{}", device.agent_log());

    // It is reported as soon as it can be, and its end, too.
    plane.set_fault("");
    plane.wait_for("get pod web --no-headers", |pod| pod.contains("1/1"));
    plane.set_fault("webhook");
    plane.line("delete pod web --wait=false").ok();
    device.pod("web").wait_gone();
    assert!(plane.line("get pod web --no-headers").ok().contains("Terminating"));
    plane.set_fault("");
    plane.wait_for("get pods -o name", |pods| !pods.contains("web"));
}

#[test]
fn rejected_pods_and_pods_of_files_that_the_api_server_cannot_take_keep_no_other_from_being_reported() {
    let mut plane = ControlPlane::start();
    let device = ClusterNode::join_through_faults(&mut plane, 2);
    plane.set_fault("webhook");
    let fixed = POD.replace("{name: web}", "{name: fixed}").replace("  nodeName: board-1\n", "");
    device.write_manifest("fixed.yaml", &fixed);
    plane.apply(&format!("{POD}  volumes: [{{name: v, nfs: {{server: a, path: /b}}}}]\n"));
    for name in ["default/fixed-board-1: the cluster cannot take", "default/web: the cluster cannot take"] {
        device.wait_for(name, || device.agent_log().contains(name));
    }
    plane.apply(&POD.replace("{name: web}", "{name: xenon}"));
    plane.wait_for("get pod xenon --no-headers", |pod| pod.contains("1/1"));
    assert!(!device.agent_log().contains("no connection to the cluster"), "{}", device.agent_log());

    plane.set_fault("");
    plane.wait_for("get pod web -o jsonpath={.status.message}", |why| why.contains("nfs"));
    plane.wait_for("get pod fixed-board-1 --no-headers", |pod| pod.contains("1/1"));
    assert!(!device.agent_log().contains("no connection to the cluster"), "{}", device.agent_log());
}

#[test]
fn secrets_that_the_api_server_cannot_read_keep_only_their_pods_from_running() {
    let mut plane = ControlPlane::start();
    let device = ClusterNode::join_through_faults(&mut plane, 2);
    plane.line("create secret generic login --from-literal=password=hunter2").ok();
    let pod = |name: &str, variable: &str| {
        POD.replace("{name: web}", &format!("{{name: {name}}}")).replace(
            "args: [print, began, then, wait, /end]",
            &format!(
                "args: [env, then, wait, /end], env: [{{name: PASSWORD, valueFrom: {{secretKeyRef: \
                 {{name: login, key: password{variable}}}}}}}]"
            ),
        )
    };
    // The node authorizer learns of a new pod a moment later. Without the Secret, the pod would start for good.
    plane.set_fault("late");
    plane.apply(&pod("optional", ", optional: true"));
    device.pod("optional").wait_log("app", "PASSWORD=hunter2");
    plane.line("delete pod optional").ok();
    device.pod("optional").wait_gone();

    // It may be unable to decrypt one.
    plane.set_fault("secret");
    plane.apply(&pod("waits", ""));
    plane.apply(&POD.replace("{name: web}", "{name: next}"));
    plane.wait_for("get pod next --no-headers", |pod| pod.contains("1/1"));
    plane.wait_for("get pod waits --no-headers", |pod| pod.contains("CreateContainerConfigError"));
    assert!(!device.agent_log().contains("no connection to the cluster"), "{}", device.agent_log());
    plane.set_fault("");
    device.pod("waits").wait_log("app", "PASSWORD=hunter2");
}
