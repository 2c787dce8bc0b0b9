//! API servers that reject, break off, send garbage, or send without end: a board retries with back-off, its memory is
//! bounded, and its pods notice nothing.

use std::fs;
use std::time::{Duration, Instant};

use nodlet_tests::{ClusterNode, ControlPlane, Device, Memory};

/// The limit of the agent's memory that no file backs, in KiB: that of large manifests in `bounded.rs`.
const MEMORY: u64 = 28 * 1024;

/// Ends the session of the board, which then retries. Not every failed request ends it.
fn end_session(device: &Device, plane: &ControlPlane) {
    let ended = || device.agent_log().matches("no connection to the cluster").count();
    let before = ended();
    plane.set_fault("500");
    device.wait_within(Duration::from_secs(150), "the session to end", || ended() > before);
}

/// Asserts that the agent has little memory that no file backs.
#[track_caller]
fn assert_small(device: &Device, what: &str) {
    let memory = Memory::of(device.agent_pid()).now;
    println!("{what}: {memory} KiB");
    assert!(memory < MEMORY, "{what}: {memory} KiB");
}

/// A board that has joined through an API server with faults, over HTTP/2.
fn join() -> (ControlPlane, Device) {
    let mut plane = ControlPlane::start();
    let device = ClusterNode::join_through_faults(&mut plane, 2);
    (plane, device)
}

/// Waits until the cluster shows a pod as ready.
#[track_caller]
fn wait_ready(plane: &ControlPlane, pod: &str) {
    plane.wait_for(&format!("get pod {pod} --no-headers"), |pod| pod.contains("1/1"));
}

/// The pod of [`POD`] with another name.
fn pod(name: &str) -> String {
    POD.replace("{name: web}", &format!("{{name: {name}}}"))
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

/// Faults of an API server; after an answer 429, so many requests take so many seconds.
const fn faults(requests: usize, least: u64) -> [Fault; 9] {
    [
        ("401", "HTTP 401 Test: a fault", 4, 5),
        ("403", "HTTP 403 Test: a fault", 1, 0),
        ("409", "HTTP 409 Test: a fault", 1, 0),
        ("429", "HTTP 429 Test: a fault", requests, least),
        ("500", "HTTP 500 Test: a fault", 1, 0),
        ("garbage", "the API server sent something else than a JSON object", 1, 0),
        ("version", "the API server sent something else than a", 1, 0),
        ("half", "the server closed the connection", 1, 0),
        ("line", "the response is too large", 1, 0),
    ]
}

#[test]
fn faults_of_the_api_server_cost_neither_pods_nor_memory_and_are_retried_with_back_off() {
    survives(1, &faults(2, 7));
}

#[test]
fn so_are_faults_of_an_api_server_with_http2() {
    survives(2, &faults(1, 0));
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
    wait_ready(&plane, "web");
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
        assert_small(&device, &format!("{fault}, {requests} requests within {took:?}"));
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
    let (plane, device) = join();
    end_session(&device, &plane);
    plane.set_fault("endless");
    plane.apply(POD);
    wait_ready(&plane, "web");
    let (begun, before) = (Instant::now(), ticks(&device));
    let renewed = || {
        let mut last = None;
        plane.wait_for("get lease board-1 -n kube-node-lease -o jsonpath={.spec.renewTime}", |time| {
            last.get_or_insert_with(|| time.to_owned()) != time
        })
    };
    (0..2).for_each(|_| drop(renewed()));
    let (ticks, took) = (ticks(&device) - before, begun.elapsed());
    println!("{} ms of processor time in {took:?}", ticks * 10);
    assert!(u128::from(ticks) * 10 < took.as_millis() / 2, "{ticks} ticks in {took:?}");
    assert_small(&device, "a watch without end");
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
    let (mut plane, device) = join();
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
    plane.apply(&pod("other").replace("board-1", "board-2"));
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
    plane.apply(&pod("new"));
    wait_ready(&plane, "new");
    device.wait_within(WITHIN, "the new color", || web.demo("app", "cat /settings/color").stdout == "blue");
    let requests = plane.requests_since(first);
    println!("{} lists, {} requests", lists_since(), requests.len());
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
    let (plane, device) = join();
    let large: String =
        (0..9).map(|at| format!("{{name: LARGE_{at}, value: {}}}, ", "x".repeat(110_000))).collect();
    let env = format!("/end], env: [{large}]}}]");
    plane.create(&POD.replace("/end]}]", &env));
    wait_ready(&plane, "web");
    assert_small(&device, "a pod of 1 MB");

    // Pods that the board rejects: so many real ones would be a test of the machine.
    let share = "[{name: share, nfs: {server: server, path: /}}]";
    let many = (0..500).map(|at| {
        let metadata = format!("name: many-{at}, labels: {{app: many}}");
        format!("---{}  volumes: {share}\n", POD.replace("name: web", &metadata))
    });
    plane.create(&many.collect::<String>());
    plane.wait_for("get pods -l app=many --no-headers", |pods| {
        pods.lines().filter(|pod| pod.contains("PodSpecNotSupported")).count() == 500
    });
    assert_small(&device, "500 pods");
    assert!(device.pod("web").container("app").is_running());
}

#[test]
fn pods_that_no_api_server_has_touch_neither_files_nor_pods() {
    const WITHIN: Duration = Duration::from_secs(150);
    let (plane, device) = join();
    plane.apply(POD);
    let web = device.pod("web");
    web.wait_ready();
    let born = web.born("app");
    end_session(&device, &plane);
    let first = plane.set_fault("lies");
    let lists = || plane.requests_since(first).iter().filter(|one| lists(one)).count();
    device.wait_within(WITHIN, "a list with lies", || lists() > 0);
    device.pod("twin").wait_phase("Running");
    assert_small(&device, &format!("lies, {} lists", lists()));
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
    let (plane, device) = join();
    plane.set_fault("webhook");
    plane.apply(POD);
    device.wait_logged("default/web: the cluster cannot take");
    plane.apply(&pod("xenon"));
    wait_ready(&plane, "xenon");
    assert!(plane.line("get pod web --no-headers").ok().contains("0/1"));
    assert!(!device.agent_log().contains("no connection to the cluster"), "{}", device.agent_log());

    // It is reported as soon as it can be, and its end, too.
    plane.set_fault("");
    wait_ready(&plane, "web");
    plane.set_fault("webhook");
    plane.line("delete pod web --wait=false").ok();
    device.pod("web").wait_gone();
    assert!(plane.line("get pod web --no-headers").ok().contains("Terminating"));
    plane.set_fault("");
    plane.wait_for("get pods -o name", |pods| !pods.contains("web"));
}

#[test]
fn rejected_pods_and_pods_of_files_that_the_api_server_cannot_take_keep_no_other_from_being_reported() {
    let (plane, device) = join();
    plane.set_fault("webhook");
    let fixed = pod("fixed").replace("  nodeName: board-1\n", "");
    device.write_manifest("fixed.yaml", &fixed);
    plane.apply(&format!("{POD}  volumes: [{{name: v, nfs: {{server: a, path: /b}}}}]\n"));
    for name in ["default/fixed-board-1: the cluster cannot take", "default/web: the cluster cannot take"] {
        device.wait_for(name, || device.agent_log().contains(name));
    }
    plane.apply(&pod("xenon"));
    wait_ready(&plane, "xenon");
    assert!(!device.agent_log().contains("no connection to the cluster"), "{}", device.agent_log());

    plane.set_fault("");
    plane.wait_for("get pod web -o jsonpath={.status.message}", |why| why.contains("nfs"));
    plane.wait_for("get pod fixed-board-1 --no-headers", |pod| pod.contains("1/1"));
    assert!(!device.agent_log().contains("no connection to the cluster"), "{}", device.agent_log());
}

#[test]
fn secrets_that_the_api_server_cannot_read_keep_only_their_pods_from_running() {
    let (plane, device) = join();
    plane.line("create secret generic login --from-literal=password=hunter2").ok();
    let with_secret = |name: &str, optional: &str| {
        let source = format!("secretKeyRef: {{name: login, key: password{optional}}}");
        let variable = format!("[env, then, wait, /end], env: [{{name: PASSWORD, valueFrom: {{{source}}}}}]");
        pod(name).replace("[print, began, then, wait, /end]", &variable)
    };
    // The node authorizer learns of a new pod a moment later. Without the Secret, the pod would start for good.
    plane.set_fault("late");
    plane.apply(&with_secret("optional", ", optional: true"));
    device.pod("optional").wait_log("app", "PASSWORD=hunter2");
    plane.line("delete pod optional").ok();
    device.pod("optional").wait_gone();

    // It may be unable to decrypt one.
    plane.set_fault("secret");
    plane.apply(&with_secret("waits", ""));
    plane.apply(&pod("next"));
    wait_ready(&plane, "next");
    plane.wait_for("get pod waits --no-headers", |pod| pod.contains("CreateContainerConfigError"));
    assert!(!device.agent_log().contains("no connection to the cluster"), "{}", device.agent_log());
    plane.set_fault("");
    device.pod("waits").wait_log("app", "PASSWORD=hunter2");
}
