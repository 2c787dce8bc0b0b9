//! The manifests in `examples/tasks/`, one for each of the usual tasks with Pods: each does what it says.

use std::fs;
use std::path::{Path, PathBuf};

use nodlet_tests::image::Image;
use nodlet_tests::{Device, Kubectl, TestPod};

mod configuration;
mod debugging;
mod pages;
mod pods;
mod storage;

/// The directory of the manifests.
fn tasks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member of the workspace").join("examples/tasks")
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

/// The output of a command in a container.
fn output<const N: usize>(pod: &TestPod<'_>, container: &str, command: [&str; N]) -> String {
    pod.exec(container, command).ok().trim().to_owned()
}

#[test]
fn commands_and_configuration() {
    let device = Device::start();
    apply(&device, "command-and-arguments");
    let greeter = device.pod("command-and-arguments");
    greeter.wait_phase("Succeeded");
    assert_eq!(greeter.logs("greeter"), "hello, board\n$(MISSING)\n$(GREETING)\n");

    apply(&device, "configmap");
    let configured = device.pod("configmap");
    configured.wait_ready();
    configured.wait_log("app", "$(LOG_LEVEL)");
    assert_eq!(configured.logs("app"), "very charm $(LOG_LEVEL)\n");
    assert_eq!(output(&configured, "app", ["demo", "cat", "/etc/config/app/settings.ini"]), "level=very");
    let names = output(&configured, "app", ["demo", "ls", "/etc/nothing"]);
    assert!(names.lines().all(|name| name.starts_with("..")), "{names}");
    // `settings.ini` is a name for a variable, too.
    assert!(output(&configured, "app", ["demo", "env"]).contains("settings.ini=level=very"));
    let (code, refused) = device.patch(
        "/api/v1/namespaces/default/configmaps/special-config",
        "merge",
        &serde_json::json!({"data": {"SPECIAL_LEVEL": "little"}}),
    );
    assert_eq!(code, 422, "{refused}");
    assert!(refused["message"].as_str().is_some_and(|text| text.contains("immutable")), "{refused}");

    apply(&device, "secret-credentials");
    let secret = device.pod("secret-credentials");
    secret.wait_ready();
    let variables = output(&secret, "app", ["demo", "env"]);
    for line in ["DB_username=my-app", "DB_password=39528$vdg7Jb", "SECRET_USERNAME=my-app"] {
        assert!(variables.lines().any(|other| other == line), "{line}: {variables}");
    }
    assert_eq!(output(&secret, "app", ["demo", "cat", "/etc/all/password"]), "39528$vdg7Jb");
    assert_eq!(output(&secret, "app", ["demo", "cat", "/etc/one/my-group/my-username"]), "my-app");
    let mode = |file: &str| output(&secret, "app", ["demo", "stat", file]);
    assert!(mode("/etc/all/..data/password").contains(" 0400 "), "{}", mode("/etc/all/..data/password"));
    assert!(mode("/etc/one/..data/my-group/my-username").contains(" 0444 "));

    apply(&device, "projected-volume");
    let projected = device.pod("projected-volume");
    projected.wait_ready();
    for (file, content) in [
        ("login/name", "admin"),
        ("mode", "production"),
        ("labels", "app=\"projected\""),
        ("memory-limit-in-mib", "16"),
    ] {
        assert_eq!(output(&projected, "app", ["demo", "cat", &format!("/config/{file}")]), content);
    }
    projected.exec("app", ["demo", "write", "/config/new", "text"]).refused();

    apply(&device, "pod-information");
    let informed = device.pod("pod-information");
    informed.wait_ready();
    let variables = output(&informed, "app", ["demo", "env"]);
    let ip = format!("IP={}", informed.ip());
    for line in ["POD=pod-information", &ip, "ACCOUNT=default", "MEMORY_LIMIT=16777216"] {
        assert!(variables.lines().any(|other| other == line), "{line}: {variables}");
    }
    assert!(variables.lines().any(|line| line.starts_with("NODE=") && line.len() > 5), "{variables}");
    assert_eq!(output(&informed, "app", ["demo", "cat", "/etc/podinfo/build"]), "two");
    assert_eq!(output(&informed, "app", ["demo", "cat", "/etc/podinfo/cpu-request"]), "15");
    let label = serde_json::json!({"metadata": {"labels": {"zone": "cellar"}}});
    let (code, patched) = device.patch("/api/v1/namespaces/default/pods/pod-information", "merge", &label);
    assert_eq!(code, 200, "{patched}");
    device.wait_for("the new label", || {
        output(&informed, "app", ["demo", "cat", "/etc/podinfo/labels"]) == "zone=\"cellar\""
    });
}

/// The limit of cpu of a pod as a whole, as its cgroup has it.
fn quota(device: &Device, pod: &TestPod<'_>) -> String {
    let name = format!("pod{}", pod.uid());
    let of_pod = device.cgroups().into_iter().filter(|path| path.ends_with(&name));
    let read = |path: PathBuf| {
        let files = ["cpu.cfs_quota_us", "cpu.max"];
        files.into_iter().find_map(|file| fs::read_to_string(path.join(file)).ok())
    };
    of_pod.filter_map(read).next().expect("a limit of cpu")
}

#[test]
fn resources_and_quality_of_service() {
    let device = Device::start();
    apply(&device, "assign-memory");
    device.pod("memory-within-limit").wait_ready();
    let killed = device.pod("memory-beyond-limit");
    killed.wait_phase("Failed");
    assert_eq!(killed.container("app").of_state("reason"), "OOMKilled");

    apply(&device, "assign-cpu");
    let limited = device.pod("cpu-limited");
    limited.wait_ready();
    assert!(quota(&device, &limited).starts_with("10000"), "{}", quota(&device, &limited));
    let refused = device.pod("cpu-too-large");
    refused.wait_phase("Failed");
    assert_eq!(refused.status()["reason"], "OutOfcpu");

    apply(&device, "assign-pod-level-resources");
    let whole = device.pod("pod-level-resources");
    whole.wait_ready();
    assert!(quota(&device, &whole).starts_with("20000"), "{}", quota(&device, &whole));
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
    let elsewhere = device.pod("node-of-another-kind");
    elsewhere.wait_phase("Failed");
    assert_eq!(elsewhere.status()["reason"], "NodeAffinity");
}

#[test]
fn storage_and_identity() {
    let device = Device::start();
    apply(&device, "volume-storage");
    let stored = device.pod("volume-storage");
    device.wait_for("a restart", || stored.container("app").restart_count() == 1 && stored.is_ready());
    assert!(output(&stored, "app", ["demo", "stat", "/data/seen"]).starts_with("file"));
    assert!(
        output(&stored, "app", ["demo", "mounts"]).lines().any(|line| {
            line.contains(" /data ") && line.contains("tmpfs") && line.contains("size=4096k")
        })
    );

    apply(&device, "security-context");
    let secured = device.pod("security-context");
    secured.wait_ready();
    assert_eq!(output(&secured, "app", ["demo", "id"]), "uid=1000 gid=3000 groups=2500,3000,4000");
    let status = |container: &str, field: &str| {
        let text = output(&secured, container, ["demo", "status"]);
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
        line.expect("a field of the kernel").trim().to_owned()
    };
    assert_eq!(
        (status("app", "CapBnd"), status("app", "NoNewPrivs")),
        ("0000000000000000".into(), "1".into())
    );
    for container in ["app", "other"] {
        assert_eq!(status(container, "Seccomp"), "2", "{container}");
    }
    let owner = output(&secured, "app", ["demo", "stat", "/data/file"]);
    assert!(owner.contains(" 1000:2500 "), "{owner}");
    secured.exec("app", ["demo", "touch", "/elsewhere"]).refused();
    assert!(output(&secured, "other", ["demo", "id"]).starts_with("uid=2000 gid=3000"));
    let net_admin = u64::from_str_radix(&status("other", "CapBnd"), 16).expect("hex digits") >> 12 & 1;
    assert_eq!(net_admin, 1);

    apply(&device, "host-aliases-and-dns");
    let named = device.pod("host-aliases-and-dns");
    named.wait_ready();
    assert_eq!(output(&named, "app", ["demo", "hostname"]), "gateway");
    let hosts = output(&named, "app", ["demo", "cat", "/etc/hosts"]);
    assert!(hosts.contains("10.1.2.3\tsensor.local\tsensor"), "{hosts}");
    assert_eq!(
        output(&named, "app", ["demo", "cat", "/etc/resolv.conf"]),
        "search plant.example\nnameserver 192.0.2.53\noptions ndots:2"
    );

    apply(&device, "share-process-namespace");
    let shared = device.pod("share-process-namespace");
    shared.wait_ready();
    let processes = output(&shared, "shell", ["demo", "ls", "/proc"]);
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
    apply(&device, "init-container");
    let served = device.pod("init-container");
    served.wait_ready();
    assert_eq!(output(&served, "server", ["demo", "get", "http://127.0.0.1:8080/index.html"]), "installed");

    apply(&device, "probes");
    let probed = device.pod("probes");
    device.wait_for("the startup probe", || probed.status()["containerStatuses"][0]["started"] == true);
    assert!(!probed.is_ready());
    probed.exec("app", ["demo", "touch", "/tmp/ready"]).ok();
    probed.wait_ready();
    probed.exec("app", ["demo", "rm", "/tmp/alive"]).ok();
    device.wait_for("a restart", || probed.container("app").restart_count() == 1);

    apply(&device, "lifecycle-handlers");
    let handled = device.pod("lifecycle-handlers");
    handled.wait_ready();
    assert_eq!(output(&handled, "app", ["demo", "cat", "/tmp/greeting"]), "hello from postStart");
    device.nodlet(["delete", "pod", "lifecycle-handlers"]).ok();
    handled.wait_gone();

    apply(&device, "termination-message");
    let failed = device.pod("termination-message");
    failed.wait_phase("Failed");
    let reported = |container: &str| {
        let container = failed.container(container);
        (container.exit_code(), container.message().trim().to_owned())
    };
    assert_eq!(reported("app"), (Some(3), "no sensor found".into()));
    assert_eq!(reported("from-log"), (Some(4), "last words".into()));
}

#[test]
fn variables_and_files_of_init_containers_and_images() {
    let device = Device::start();
    apply(&device, "environment-from-file");
    let pod = device.pod("environment-from-file");
    pod.wait_phase("Succeeded");
    let variables = pod.logs("app");
    assert!(variables.lines().any(|line| line == "DB_ADDRESS=db.plant.example:5432"), "{variables}");
    assert!(!variables.contains("DB_MODE"), "{variables}");

    apply(&device, "image-volume");
    let pod = device.pod("image-volume");
    pod.wait_ready();
    for file in ["/volume/srv/index.html", "/page/index.html"] {
        assert_eq!(output(&pod, "app", ["demo", "cat", file]), "hello from the image", "{file}");
    }
    let refused = pod.exec("app", ["demo", "write", "/volume/srv/index.html", "x"]).refused();
    assert!(refused.contains("Read-only file system"), "{refused}");
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
    apply(&device, "resize-container");
    let pod = device.pod("resize-container");
    pod.wait_ready();
    let born = pod.born("app");
    assert!(quota(&device, &pod).starts_with("7000"), "{}", quota(&device, &pod));
    let cpu = r#"{"containers": [{"name": "app", "resources": {"requests": {"cpu": "80m"}, "limits": {"cpu": "80m"}}}]}"#;
    resize(&kubectl, "resize-container", cpu);
    let shown = |resource: &str| {
        let resources = &pod.status()["containerStatuses"][0]["resources"];
        [&resources["requests"][resource], &resources["limits"][resource]].map(ToString::to_string)
    };
    device.wait_for("the cpu", || shown("cpu") == [r#""80m""#; 2]);
    assert!(quota(&device, &pod).starts_with("8000"), "{}", quota(&device, &pod));
    assert_eq!((pod.container("app").restart_count(), pod.born("app")), (0, born));
    let memory = r#"{"containers": [{"name": "app", "resources": {"requests": {"memory": "30Mi"}, "limits": {"memory": "30Mi"}}}]}"#;
    resize(&kubectl, "resize-container", memory);
    device.wait_for("the memory", || shown("memory") == [r#""30Mi""#; 2]);
    device.wait_for("the restart", || pod.container("app").restart_count() == 1 && pod.is_ready());
    assert_eq!(pod.status()["qosClass"], "Guaranteed");
    // More than the node has: the pod keeps what it has.
    let huge = r#"{"containers": [{"name": "app", "resources": {"requests": {"cpu": "1k"}, "limits": {"cpu": "1k"}}}]}"#;
    resize(&kubectl, "resize-container", huge);
    let infeasible = || {
        let status = pod.status();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let pending = conditions.into_iter().find(|condition| condition["type"] == "PodResizePending");
        pending.is_some_and(|pending| pending["reason"] == "Infeasible")
    };
    device.wait_for("the condition", infeasible);
    assert_eq!((shown("cpu"), pod.is_ready()), ([r#""80m""#; 2].map(str::to_owned), true));

    apply(&device, "resize-pod");
    let pod = device.pod("resize-pod");
    pod.wait_ready();
    let born = ["one", "two"].map(|container| pod.born(container));
    resize(
        &kubectl,
        "resize-pod",
        r#"{"resources": {"requests": {"cpu": "90m"}, "limits": {"cpu": "90m"}}}"#,
    );
    device.wait_for("the cpu of the pod", || quota(&device, &pod).starts_with("9000"));
    device.wait_for("the status", || pod.status()["resources"]["limits"]["cpu"] == "90m");
    assert_eq!(["one", "two"].map(|container| pod.born(container)), born);
}

#[test]
fn defaults_and_bounds_of_a_namespace() {
    let device = Device::start();
    apply(&device, "limit-range");
    let resources = |name: &str| {
        device.pod(name).wait_ready();
        let pod = device.pod(name).object().expect("it is there");
        let resources = &pod["spec"]["containers"][0]["resources"];
        ["requests", "limits"].map(|list| resources[list]["memory"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(resources("limits-by-default"), ["32Mi", "64Mi"]);
    assert_eq!(resources("limits-with-limit"), ["96Mi", "96Mi"]);
    assert_eq!(resources("limits-with-request"), ["16Mi", "64Mi"]);
    let cpu = device.pod("limits-by-default").object().expect("it is there");
    assert_eq!(cpu["spec"]["containers"][0]["resources"]["limits"]["cpu"], "100m");
    let with = |resources: &str| {
        let app = nodlet_tests::manifest::container("app", "sleep", &format!("resources: {resources}"));
        let text = nodlet_tests::manifest::pod_of("out-of-bounds", &[app], "");
        device.nodlet_with_input(["apply", "-f", "-"], &text).refused()
    };
    for (resources, expected) in [
        ("{limits: {memory: 1Gi}}", "maximum memory usage per Container is 128Mi, but limit is 1Gi"),
        (
            "{requests: {memory: 4Mi}, limits: {memory: 16Mi}}",
            "minimum memory usage per Container is 8Mi, but request is 4Mi",
        ),
        ("{limits: {cpu: 400m}}", "maximum cpu usage per Container is 200m, but limit is 400m"),
    ] {
        let refused = with(resources);
        let whole = format!("pods \"out-of-bounds\" is forbidden: {expected}");
        assert!(refused.contains(&whole), "{refused}");
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
        let mounts = output(&pod, "app", ["demo", "mounts"]);
        assert!(mounts.lines().any(|line| line.contains(" /hugepages-2Mi ") && line.contains("hugetlbfs")));
    }
}

#[test]
fn users_and_kernel_parameters() {
    let mut device = Device::start();
    apply(&device, "user-namespace");
    let pod = device.pod("user-namespace");
    pod.wait_ready();
    assert_eq!(output(&pod, "app", ["demo", "id"]), "uid=0 gid=0 groups=0");
    let ids: Vec<u32> = output(&pod, "app", ["demo", "cat", "/proc/self/uid_map"])
        .split_whitespace()
        .map(|number| number.parse().expect("a number"))
        .collect();
    assert!(ids[0] == 0 && ids[1] >= 65536 && ids[2] == 65536, "{ids:?}");
    let here = fs::read_link("/proc/self/ns/user").expect("the kernel has user namespaces");
    let there = output(&pod, "app", ["demo", "stat", "/proc/self/ns/user"]);
    assert!(there.starts_with("link ") && !there.contains(&here.display().to_string()), "{there}");

    apply(&device, "sysctls");
    let safe = device.pod("sysctls-safe");
    safe.wait_ready();
    for (name, expected) in
        [("kernel/shm_rmid_forced", "1"), ("net/ipv4/ip_local_port_range", "40000\t50000")]
    {
        assert_eq!(output(&safe, "app", ["demo", "cat", &format!("/proc/sys/{name}")]), expected, "{name}");
    }
    let forbidden = device.pod("sysctls-unsafe");
    forbidden.wait_phase("Failed");
    assert_eq!(forbidden.status()["reason"], "SysctlForbidden");
    device.nodlet(["delete", "pod", "sysctls-unsafe", "sysctls-safe"]).ok();
    device.agent_arguments(["--allowed-unsafe-sysctls", "net.core.somaxconn"]);
    device.stop_agent();
    device.start_agent();
    apply(&device, "sysctls");
    let allowed = device.pod("sysctls-unsafe");
    allowed.wait_ready();
    assert_eq!(output(&allowed, "app", ["demo", "cat", "/proc/sys/net/core/somaxconn"]), "1024");
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
        let pod = device.pod(name);
        pod.wait_ready();
        let status = output(&pod, "app", ["demo", "status"]);
        assert!(status.contains("Seccomp:\t2\n") && status.contains("NoNewPrivs:\t1\n"), "{name}: {status}");
        let made = pod.exec("app", ["demo", "mkdir", "/tmp/directory"]);
        assert_eq!(made.code == 0, makes, "{name}: {made:?}");
    }
    let refused = device.pod("seccomp-deny").exec("app", ["demo", "mkdir", "/tmp/directory"]).refused();
    assert!(refused.contains("Operation not permitted"), "{refused}");
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
    let failed = |pod: &TestPod<'_>, kind: &str, port: u16| {
        let start = format!("Unhealthy: {kind} probe failed: ");
        let refused = format!(":{port}: connect: connection refused");
        pod.events().iter().any(|event| event.starts_with(&start) && event.contains(&refused))
    };
    device.wait_for("the startup probe to fail", || failed(&http, "Startup", 8080));
    device.wait_for("the readiness probe to fail", || failed(&tcp, "Readiness", 8080));
    assert!(!http.is_ready() && !tcp.is_ready());
    assert_eq!(http.container("app").restart_count(), 0, "the liveness probe has not begun");
    http.exec("app", ["demo", "touch", "/tmp/loaded"]).ok();
    tcp.exec("app", ["demo", "touch", "/tmp/open"]).ok();
    http.wait_ready();
    tcp.wait_ready();
    http.exec("app", ["demo", "touch", "/tmp/sick"]).ok();
    device.wait_for("a restart", || http.container("app").restart_count() == 1);
    let events = http.events();
    for expected in [
        "Unhealthy: Liveness probe failed: HTTP probe failed with statuscode: 500",
        "Killing: Container app failed liveness probe, will be restarted",
    ] {
        assert!(events.iter().any(|event| event == expected), "{expected}: {events:?}");
    }
}

#[test]
fn probes_of_grpc_health_checks() {
    let device = Device::start();
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member of the workspace");
    let program = fs::read(project.join(".work/agnhost/agnhost-1.36.3"))
        .expect("agnhost is not built: run `cargo xtask agnhost`, or `cargo xtask check`");
    let image = Image::new("localhost/agnhost:1")
        .file("agnhost", 0o755, &program)
        .directory("tmp", 0o1777)
        .config("Entrypoint", serde_json::json!(["/agnhost"]));
    device.load(&image);
    apply(&device, "probes-grpc");
    let pod = device.pod("probes-grpc");
    pod.wait_ready();
    apply(&device, "pod-information");
    let client = device.pod("pod-information");
    client.wait_ready();
    let url = format!("http://{}:8080/make-not-serving", pod.ip());
    client.exec("app", ["demo", "get", &url]).ok();
    device.wait_for("a restart", || pod.container("app").restart_count() == 1);
    let expected = "Unhealthy: Liveness probe failed: service unhealthy (responded with \"NOT_SERVING\")";
    assert!(pod.events().iter().any(|event| event == expected), "{:?}", pod.events());
    pod.wait_ready();
}
