//! The manifests in `examples/tasks/`, one for each of the usual tasks with Pods: each does what it says.

use std::fs;
use std::path::{Path, PathBuf};

use nodlet_tests::{Device, TestPod};

/// The directory of the manifests.
fn tasks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member of the workspace").join("examples/tasks")
}

/// Applies the manifest of a task.
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
fn every_task_has_a_test() {
    let source = include_str!("tasks.rs");
    let mut names: Vec<String> = fs::read_dir(tasks())
        .expect("there are tasks")
        .map(|entry| entry.expect("it is there").path())
        .map(|path| path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned())
        .collect();
    names.sort();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        assert!(source.contains(&format!("apply(&device, \"{name}\")")), "no test applies {name}.yaml");
    }
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
    let quota = |pod: &TestPod<'_>| {
        let name = format!("pod{}", pod.uid());
        let of_pod = device.cgroups().into_iter().filter(|path| path.ends_with(&name));
        let read = |path: PathBuf| {
            let files = ["cpu.cfs_quota_us", "cpu.max"];
            files.into_iter().find_map(|file| fs::read_to_string(path.join(file)).ok())
        };
        of_pod.filter_map(read).next().expect("a limit of cpu")
    };
    assert!(quota(&limited).starts_with("10000"), "{}", quota(&limited));
    let refused = device.pod("cpu-too-large");
    refused.wait_phase("Failed");
    assert_eq!(refused.status()["reason"], "OutOfcpu");

    apply(&device, "assign-pod-level-resources");
    let whole = device.pod("pod-level-resources");
    whole.wait_ready();
    assert!(quota(&whole).starts_with("20000"), "{}", quota(&whole));
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
    assert_eq!(output(&secured, "app", ["demo", "id"]), "uid=1000 gid=3000 groups=2000,3000,4000");
    let status = |container: &str, field: &str| {
        let text = output(&secured, container, ["demo", "status"]);
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
        line.expect("a field of the kernel").trim().to_owned()
    };
    assert_eq!(
        (status("app", "CapBnd"), status("app", "NoNewPrivs")),
        ("0000000000000000".into(), "1".into())
    );
    let owner = output(&secured, "app", ["demo", "stat", "/data/file"]);
    assert!(owner.contains("1000") && owner.contains("2000"), "{owner}");
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
    let told = |container: &str| {
        let container = failed.container(container);
        (container.exit_code(), container.message().trim().to_owned())
    };
    assert_eq!(told("app"), (Some(3), "no sensor found".into()));
    assert_eq!(told("from-log"), (Some(4), "last words".into()));
}
