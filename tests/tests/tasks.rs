//! The manifests in `examples/tasks/`, one for each of the usual tasks with Pods: each does what it says.

use std::fs;
use std::path::{Path, PathBuf};

use nodlet_tests::{Device, Kubectl, TestPod, agnhost_image, manifest, project};

mod configuration;
mod debugging;
mod pages;
mod pods;
mod storage;

/// The directory of the manifests.
fn tasks() -> PathBuf {
    project().join("examples/tasks")
}

/// Applies the manifest of a task, all of whose objects are created.
fn apply(device: &Device, task: &str) {
    let file = tasks().join(format!("{task}.yaml"));
    let objects = fs::read_to_string(&file)
        .expect("it is text")
        .lines()
        .filter(|line| line.starts_with("kind: "))
        .count();
    let applied = device.nodlet(["apply", "-f", &file.display().to_string()]).ok();
    assert_eq!(applied.lines().filter(|line| line.ends_with(" created")).count(), objects, "{applied}");
}

/// The output of steps of the demo program in a container.
#[track_caller]
fn output(pod: &TestPod<'_>, container: &str, steps: &str) -> String {
    pod.demo(container, steps).ok().trim().to_owned()
}

/// Applies the manifest of a task about a pod of its name, and waits until the pod is ready.
#[track_caller]
fn run<'a>(device: &'a Device, task: &'a str) -> TestPod<'a> {
    apply(device, task);
    device.pod(task).wait_ready()
}

#[test]
fn commands_and_configuration() {
    let device = Device::start();
    apply(&device, "command-and-arguments");
    let greeter = device.pod("command-and-arguments").wait_phase("Succeeded");
    assert_eq!(greeter.logs("greeter"), "hello, board\n$(MISSING)\n$(GREETING)\n");

    let configured = run(&device, "configmap");
    configured.wait_log("app", "$(LOG_LEVEL)");
    assert_eq!(configured.logs("app"), "very charm $(LOG_LEVEL)\n");
    assert_eq!(output(&configured, "app", "cat /etc/config/app/settings.ini"), "level=very");
    let names = output(&configured, "app", "ls /etc/nothing");
    assert!(names.lines().all(|name| name.starts_with("..")), "{names}");
    // `settings.ini` is a name for a variable, too.
    assert!(output(&configured, "app", "env").contains("settings.ini=level=very"));
    let (code, refused) = device.patch(
        "/api/v1/namespaces/default/configmaps/special-config",
        "merge",
        &serde_json::json!({"data": {"SPECIAL_LEVEL": "little"}}),
    );
    assert_eq!(code, 422, "{refused}");
    assert!(refused["message"].as_str().is_some_and(|text| text.contains("immutable")), "{refused}");

    let secret = run(&device, "secret-credentials");
    let variables = output(&secret, "app", "env");
    for line in ["DB_username=my-app", "DB_password=39528$vdg7Jb", "SECRET_USERNAME=my-app"] {
        assert!(variables.lines().any(|other| other == line), "{line}: {variables}");
    }
    assert_eq!(output(&secret, "app", "cat /etc/all/password"), "39528$vdg7Jb");
    assert_eq!(output(&secret, "app", "cat /etc/one/my-group/my-username"), "my-app");
    let mode = |file: &str| output(&secret, "app", &format!("stat {file}"));
    assert!(mode("/etc/all/..data/password").contains(" 0400 "), "{}", mode("/etc/all/..data/password"));
    assert!(mode("/etc/one/..data/my-group/my-username").contains(" 0444 "));

    let projected = run(&device, "projected-volume");
    for (file, content) in [
        ("login/name", "admin"),
        ("mode", "production"),
        ("labels", "app=\"projected\""),
        ("memory-limit-in-mib", "16"),
    ] {
        assert_eq!(output(&projected, "app", &format!("cat /config/{file}")), content);
    }
    projected.exec("app", ["demo", "write", "/config/new", "text"]).refused();

    let informed = run(&device, "pod-information");
    let variables = output(&informed, "app", "env");
    let ip = format!("IP={}", informed.ip());
    for line in ["POD=pod-information", &ip, "ACCOUNT=default", "MEMORY_LIMIT=16777216"] {
        assert!(variables.lines().any(|other| other == line), "{line}: {variables}");
    }
    assert!(variables.lines().any(|line| line.starts_with("NODE=") && line.len() > 5), "{variables}");
    assert_eq!(output(&informed, "app", "cat /etc/podinfo/build"), "two");
    assert_eq!(output(&informed, "app", "cat /etc/podinfo/cpu-request"), "15");
    let label = serde_json::json!({"metadata": {"labels": {"zone": "cellar"}}});
    let (code, patched) = device.patch("/api/v1/namespaces/default/pods/pod-information", "merge", &label);
    assert_eq!(code, 200, "{patched}");
    device.wait_for("the new label", || {
        output(&informed, "app", "cat /etc/podinfo/labels") == "zone=\"cellar\""
    });

    apply(&device, "environment-from-file");
    let pod = device.pod("environment-from-file").wait_phase("Succeeded");
    let variables = pod.logs("app");
    assert!(variables.lines().any(|line| line == "DB_ADDRESS=db.plant.example:5432"), "{variables}");
    assert!(!variables.contains("DB_MODE"), "{variables}");

    let pod = run(&device, "image-volume");
    for file in ["/volume/srv/index.html", "/page/index.html"] {
        assert_eq!(output(&pod, "app", &format!("cat {file}")), "hello from the image", "{file}");
    }
    pod.exec("app", ["demo", "write", "/volume/srv/index.html", "x"]).refused_with("Read-only file system");

    apply(&device, "dependent-variables");
    let pod = device.pod("dependent-variables").wait_phase("Succeeded");
    assert_eq!(
        pod.logs("app"),
        "UNCHANGED_REFERENCE=$(PROTOCOL)://172.17.0.1:80\n\
         SERVICE_ADDRESS=https://172.17.0.1:80\n\
         ESCAPED_REFERENCE=$(PROTOCOL)://172.17.0.1:80\n"
    );
}

#[test]
fn resources_and_quality_of_service() {
    let device = Device::start();
    apply(&device, "assign-memory");
    device.pod("memory-within-limit").wait_ready();
    let killed = device.pod("memory-beyond-limit").wait_phase("Failed");
    assert_eq!(killed.container("app").of_state("reason"), "OOMKilled");

    apply(&device, "assign-cpu");
    let limited = device.pod("cpu-limited").wait_ready();
    assert_eq!(limited.cpu_quota(""), "10000");
    let refused = device.pod("cpu-too-large").wait_phase("Failed");
    assert_eq!(refused.status()["reason"], "OutOfcpu");

    apply(&device, "assign-pod-level-resources");
    let whole = device.pod("pod-level-resources").wait_ready();
    assert_eq!(whole.cpu_quota(""), "20000");
    assert_eq!(whole.status()["qosClass"], "Burstable");
    let described = device.nodlet(["describe", "pod", "pod-level-resources"]).ok();
    assert!(
        described.contains("Resources:\n  Limits:\n    cpu:     200m\n    memory:  64Mi\n"),
        "{described}"
    );

    apply(&device, "quality-of-service");
    for (name, class) in
        [("qos-guaranteed", "Guaranteed"), ("qos-burstable", "Burstable"), ("qos-best-effort", "BestEffort")]
    {
        device.pod(name).wait_ready();
        assert_eq!(device.pod(name).status()["qosClass"], class);
    }

    apply(&device, "node-selection");
    device.pod("node-selected").wait_ready();
    let elsewhere = device.pod("node-of-another-kind").wait_phase("Failed");
    assert_eq!(elsewhere.status()["reason"], "NodeAffinity");
}

#[test]
fn storage_and_identity() {
    let device = Device::start();
    apply(&device, "volume-storage");
    let stored = device.pod("volume-storage");
    stored.wait_run("app", 1).wait_ready();
    assert!(output(&stored, "app", "stat /data/seen").starts_with("file"));
    let mounts = output(&stored, "app", "mounts");
    let mount = mounts.lines().find(|line| line.contains(" /data ")).unwrap_or_default();
    assert!(mount.contains("tmpfs") && mount.contains("size=4096k"), "{mounts}");

    let secured = run(&device, "security-context");
    assert_eq!(output(&secured, "app", "id"), "uid=1000 gid=3000 groups=2500,3000,4000");
    let status = |container: &str, field: &str| {
        let text = output(&secured, container, "status");
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
        line.expect("a field of the kernel").trim().to_owned()
    };
    assert_eq!([status("app", "CapBnd"), status("app", "NoNewPrivs")], ["0000000000000000", "1"]);
    for container in ["app", "other"] {
        assert_eq!(status(container, "Seccomp"), "2", "{container}");
    }
    let owner = output(&secured, "app", "stat /data/file");
    assert!(owner.contains(" 1000:2500 "), "{owner}");
    secured.exec("app", ["demo", "touch", "/elsewhere"]).refused();
    assert!(output(&secured, "other", "id").starts_with("uid=2000 gid=3000"));
    let net_admin = u64::from_str_radix(&status("other", "CapBnd"), 16).expect("hex digits") >> 12 & 1;
    assert_eq!(net_admin, 1);

    let named = run(&device, "host-aliases-and-dns");
    assert_eq!(output(&named, "app", "hostname"), "gateway");
    let hosts = output(&named, "app", "cat /etc/hosts");
    assert!(hosts.contains("10.1.2.3\tsensor.local\tsensor"), "{hosts}");
    assert_eq!(
        output(&named, "app", "cat /etc/resolv.conf"),
        "search plant.example\nnameserver 192.0.2.53\noptions ndots:2"
    );

    let shared = run(&device, "share-process-namespace");
    let processes = output(&shared, "shell", "ls /proc");
    let see = |pid: &&str| {
        let file = format!("/proc/{pid}/root/tmp/of-the-server");
        shared.exec("shell", ["demo", "cat", &file]).stdout == "here\n"
    };
    assert!(
        processes.lines().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).any(|pid| see(&pid))
    );
}

#[test]
fn beginning_health_and_end_of_containers() {
    let device = Device::start();
    let served = run(&device, "init-container");
    assert_eq!(output(&served, "server", "get http://127.0.0.1:8080/index.html"), "installed");

    apply(&device, "probes");
    let probed = device.pod("probes");
    device.wait_for("the startup probe", || probed.status()["containerStatuses"][0]["started"] == true);
    assert!(!probed.is_ready());
    probed.exec("app", ["demo", "touch", "/tmp/ready"]).ok();
    probed.wait_ready();
    probed.exec("app", ["demo", "rm", "/tmp/alive"]).ok();
    probed.wait_restarts("app", 1);

    let handled = run(&device, "lifecycle-handlers");
    assert_eq!(output(&handled, "app", "cat /tmp/greeting"), "hello from postStart");
    device.nodlet(["delete", "pod", "lifecycle-handlers"]).ok();
    handled.wait_gone();

    apply(&device, "termination-message");
    let failed = device.pod("termination-message").wait_phase("Failed");
    let reported = |container: &str| {
        let container = failed.container(container);
        (container.exit_code(), container.message().trim().to_owned())
    };
    assert_eq!(reported("app"), (Some(3), "no sensor found".into()));
    assert_eq!(reported("from-log"), (Some(4), "last words".into()));
}

/// Resizes a pod as the page does.
fn resize(kubectl: &Kubectl, pod: &str, spec: &str) {
    let patch = format!(r#"{{"spec": {spec}}}"#);
    let patched = kubectl.run(["patch", "pod", pod, "--subresource", "resize", "--patch", &patch]).ok();
    assert_eq!(patched, format!("pod/{pod} patched\n"));
}

#[test]
fn resizes_of_containers_and_pods() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let pod = run(&device, "resize-container");
    let born = pod.born("app");
    assert_eq!(pod.cpu_quota(""), "7000");
    let cpu = r#"{"containers": [{"name": "app", "resources": {"requests": {"cpu": "80m"}, "limits": {"cpu": "80m"}}}]}"#;
    resize(&kubectl, "resize-container", cpu);
    let shown = |resource: &str| {
        let resources = &pod.status()["containerStatuses"][0]["resources"];
        [&resources["requests"][resource], &resources["limits"][resource]].map(ToString::to_string)
    };
    device.wait_for("the cpu", || shown("cpu") == [r#""80m""#; 2]);
    assert_eq!(pod.cpu_quota(""), "8000");
    assert_eq!((pod.container("app").restart_count(), pod.born("app")), (0, born));
    let memory = r#"{"containers": [{"name": "app", "resources": {"requests": {"memory": "30Mi"}, "limits": {"memory": "30Mi"}}}]}"#;
    resize(&kubectl, "resize-container", memory);
    device.wait_for("the memory", || shown("memory") == [r#""30Mi""#; 2]);
    pod.wait_run("app", 1).wait_ready();
    assert_eq!(pod.status()["qosClass"], "Guaranteed");
    // More than the node has: the pod keeps what it has.
    let huge = r#"{"containers": [{"name": "app", "resources": {"requests": {"cpu": "1k"}, "limits": {"cpu": "1k"}}}]}"#;
    resize(&kubectl, "resize-container", huge);
    device.wait_for("the condition", || pod.whole_condition("PodResizePending")["reason"] == "Infeasible");
    assert_eq!((shown("cpu"), pod.is_ready()), ([r#""80m""#; 2].map(str::to_owned), true));

    let pod = run(&device, "resize-pod");
    let born = ["one", "two"].map(|container| pod.born(container));
    resize(
        &kubectl,
        "resize-pod",
        r#"{"resources": {"requests": {"cpu": "90m"}, "limits": {"cpu": "90m"}}}"#,
    );
    device.wait_for("the cpu of the pod", || pod.cpu_quota("") == "9000");
    device.wait_for("the status", || pod.status()["resources"]["limits"]["cpu"] == "90m");
    assert_eq!(["one", "two"].map(|container| pod.born(container)), born);
}

#[test]
fn defaults_and_bounds_of_a_namespace() {
    let device = Device::start();
    apply(&device, "limit-range");
    let resources = |name: &str| {
        device.pod(name).wait_ready();
        let resources = device.pod(name).get("/spec/containers/0/resources");
        ["requests", "limits"].map(|list| resources[list]["memory"].clone())
    };
    assert_eq!(resources("limits-by-default"), ["32Mi", "64Mi"]);
    assert_eq!(resources("limits-with-limit"), ["96Mi", "96Mi"]);
    assert_eq!(resources("limits-with-request"), ["16Mi", "64Mi"]);
    let cpu = device.pod("limits-by-default").get("/spec/containers/0/resources/limits/cpu");
    assert_eq!(cpu, "100m");
    for (resources, expected) in [
        ("{limits: {memory: 1Gi}}", "maximum memory usage per Container is 128Mi, but limit is 1Gi"),
        (
            "{requests: {memory: 4Mi}, limits: {memory: 16Mi}}",
            "minimum memory usage per Container is 8Mi, but request is 4Mi",
        ),
        ("{limits: {cpu: 400m}}", "maximum cpu usage per Container is 200m, but limit is 400m"),
    ] {
        let text = manifest::single("out-of-bounds", "sleep", &format!("resources: {resources}"), "");
        device.try_apply(&text).refused_with(&format!("pods \"out-of-bounds\" is forbidden: {expected}"));
    }
}

#[test]
fn huge_pages_where_the_machine_has_them() {
    if nodlet_tests::guest::is_guest() {
        let count = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        fs::write(count, "8").expect("the guest has memory for them");
    }
    let device = Device::start();
    let node = device.get("/api/v1/nodes").expect("the API has a node");
    let has = node["items"][0]["status"]["allocatable"]["hugepages-2Mi"].as_str().map(str::to_owned);
    apply(&device, "huge-pages");
    let pod = device.pod("huge-pages");
    if has.as_deref().is_none_or(|pages| pages == "0") {
        assert!(!nodlet_tests::guest::is_guest(), "eight pages are reserved");
        pod.wait_phase("Failed");
        let status = pod.status();
        assert_eq!(status["reason"], "OutOfhugepages-2Mi", "{status}");
        let message = status["message"].as_str().unwrap_or_default();
        assert!(message.contains("requested: 8388608, used: 0, capacity: 0"), "{message}");
    } else {
        pod.wait_ready();
        let mounts = output(&pod, "app", "mounts");
        assert!(mounts.lines().any(|line| line.contains(" /hugepages-2Mi ") && line.contains("hugetlbfs")));
    }
}

#[test]
fn users_and_kernel_parameters() {
    let mut device = Device::start();
    let pod = run(&device, "user-namespace");
    assert_eq!(output(&pod, "app", "id"), "uid=0 gid=0 groups=0");
    let ids: Vec<u32> = output(&pod, "app", "cat /proc/self/uid_map")
        .split_whitespace()
        .map(|number| number.parse().expect("a number"))
        .collect();
    assert!(ids[0] == 0 && ids[1] >= 65536 && ids[2] == 65536, "{ids:?}");
    let here = fs::read_link("/proc/self/ns/user").expect("the kernel has user namespaces");
    let there = output(&pod, "app", "stat /proc/self/ns/user");
    assert!(there.starts_with("link ") && !there.contains(&here.display().to_string()), "{there}");

    apply(&device, "sysctls");
    let safe = device.pod("sysctls-safe").wait_ready();
    for (name, expected) in
        [("kernel/shm_rmid_forced", "1"), ("net/ipv4/ip_local_port_range", "40000\t50000")]
    {
        assert_eq!(output(&safe, "app", &format!("cat /proc/sys/{name}")), expected, "{name}");
    }
    let forbidden = device.pod("sysctls-unsafe").wait_phase("Failed");
    assert_eq!(forbidden.status()["reason"], "SysctlForbidden");
    device.nodlet(["delete", "pod", "sysctls-unsafe", "sysctls-safe"]).ok();
    device.agent_arguments(["--allowed-unsafe-sysctls", "net.core.somaxconn"]);
    device.stop_agent();
    device.start_agent();
    apply(&device, "sysctls");
    let allowed = device.pod("sysctls-unsafe").wait_ready();
    assert_eq!(output(&allowed, "app", "cat /proc/sys/net/core/somaxconn"), "1024");
}

#[test]
fn profiles_of_system_calls_and_of_apparmor() {
    let device = Device::start();
    let profiles = device.root().join("var/lib/nodlet/seccomp/profiles");
    fs::create_dir_all(&profiles).expect("the root can be written to");
    for (name, text) in [
        ("audit", include_str!("../../examples/seccomp/audit.json")),
        ("deny-directories", include_str!("../../examples/seccomp/deny-directories.json")),
        ("violation", include_str!("../../examples/seccomp/violation.json")),
    ] {
        fs::write(profiles.join(format!("{name}.json")), text).expect("it can be written");
    }
    apply(&device, "seccomp");
    for (name, makes) in [("seccomp-default", true), ("seccomp-audit", true), ("seccomp-deny", false)] {
        let pod = device.pod(name).wait_ready();
        let status = output(&pod, "app", "status");
        assert!(status.contains("Seccomp:\t2\n") && status.contains("NoNewPrivs:\t1\n"), "{name}: {status}");
        let made = pod.exec("app", ["demo", "mkdir", "/tmp/directory"]);
        assert_eq!(made.code == 0, makes, "{name}: {made:?}");
    }
    device
        .pod("seccomp-deny")
        .exec("app", ["demo", "mkdir", "/tmp/directory"])
        .refused_with("Operation not permitted");
    // No call at all: not even the first program can be executed.
    let violation = device.pod("seccomp-violation");
    device.wait_for("the reason", || !violation.container("app").message().is_empty());
    assert!(!violation.container("app").is_running());
    assert!(!violation.is_ready());

    apply(&device, "apparmor");
    let pod = device.pod("apparmor-task");
    // A guest may have no securityfs.
    let is_mounted = Path::new("/sys/kernel/security/apparmor").exists();
    let enabled = fs::read("/sys/module/apparmor/parameters/enabled");
    if is_mounted && enabled.is_ok_and(|text| text.starts_with(b"Y")) {
        let named = || pod.container("app").message().contains("deny-write");
        device.wait_for("the profile that is not loaded", named);
        assert!(!pod.is_ready());
    } else {
        pod.wait_phase("Failed");
        let status = pod.status();
        assert_eq!(status["reason"], "AppArmor", "{status}");
        let message = status["message"].as_str().unwrap_or_default();
        assert!(message.contains("AppArmor is not enabled on the host"), "{message}");
    }
}

#[test]
fn probes_over_http_and_tcp() {
    let device = Device::start();
    apply(&device, "probes-http-tcp");
    let (http, tcp) = (device.pod("probes-http"), device.pod("probes-tcp"));
    http.wait_event_of("Unhealthy: Startup probe failed", ":8080: connect: connection refused");
    tcp.wait_event_of("Unhealthy: Readiness probe failed", ":8080: connect: connection refused");
    assert!(!http.is_ready() && !tcp.is_ready());
    assert_eq!(http.container("app").restart_count(), 0, "the liveness probe has not begun");
    http.exec("app", ["demo", "touch", "/tmp/loaded"]).ok();
    tcp.exec("app", ["demo", "touch", "/tmp/open"]).ok();
    http.wait_ready();
    tcp.wait_ready();
    http.exec("app", ["demo", "touch", "/tmp/sick"]).ok();
    http.wait_restarts("app", 1);
    let events = http.events();
    for expected in [
        "Unhealthy: Liveness probe failed: HTTP probe failed with statuscode: 500",
        "Killing: Container app failed liveness probe, will be restarted",
    ] {
        assert!(events.contains(&expected.to_owned()), "{expected}: {events:?}");
    }
}

#[test]
fn probes_of_grpc_health_checks() {
    let device = Device::start();
    device.load(&agnhost_image("localhost/agnhost:1"));
    let pod = run(&device, "probes-grpc");
    let client = run(&device, "pod-information");
    let url = format!("http://{}:8080/make-not-serving", pod.ip());
    client.exec("app", ["demo", "get", &url]).ok();
    pod.wait_restarts("app", 1);
    let expected = "Unhealthy: Liveness probe failed: service unhealthy (responded with \"NOT_SERVING\")";
    assert!(pod.events().contains(&expected.to_owned()), "{:?}", pod.events());
    pod.wait_ready();
}
