//! Resources of running pods: resizes in place, limits of local storage, defaults of namespaces.

use std::fs;

use nodlet_tests::{Device, Kubectl, Ran, TestPod, cpu_quota, manifest};
use serde_json::{Value, json};

/// Patches the resources of the container `app` by the subresource `resize`.
fn resize(kubectl: &Kubectl, pod: &str, resources: &str) -> Ran {
    resize_spec(kubectl, pod, &format!(r#"{{"containers":[{{"name":"app","resources":{resources}}}]}}"#))
}

fn resize_spec(kubectl: &Kubectl, pod: &str, spec: &str) -> Ran {
    let patch = format!(r#"{{"spec":{spec}}}"#);
    kubectl.run(["patch", "pod", pod, "--subresource", "resize", "-p", &patch])
}

/// A pod of one container, with this YAML in it, and a short grace period.
fn pod(name: &str, more: &str) -> String {
    manifest::single(name, "print up then sleep", more, "terminationGracePeriodSeconds: 1")
}

#[track_caller]
fn wait_quota(device: &Device, run: &str, quota: &str) {
    device.wait_for("the cgroup to have the limit", || device.pod("web").cpu_quota(run) == quota);
}

/// Waits until the pod `web` has no condition about a resize in progress.
#[track_caller]
fn wait_complete(device: &Device) {
    let in_progress = || device.pod("web").whole_condition("PodResizeInProgress");
    device.wait_for("the resize to be complete", || in_progress().is_null());
}

/// The request of cpu that the pod `web` has been allocated.
fn allocated(device: &Device) -> Value {
    device.pod("web").get("/status/containerStatuses/0/allocatedResources/cpu")
}

#[track_caller]
fn check_memory(pod: TestPod<'_>, run: &str, mib: u64) {
    assert_eq!(pod.memory_limit(run), (mib << 20).to_string());
}

#[test]
fn a_pod_is_resized_while_it_runs_and_restarts_only_for_what_requires_it() {
    let mut device = Device::start();
    let kubectl = Kubectl::new(&device);
    let more = "resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]\n\
                resources: {requests: {cpu: 50m, memory: 16Mi}, limits: {cpu: 100m, memory: 64Mi}}";
    let web = device.run_applied("web", &pod("web", more));
    let born = web.born("app");
    assert_eq!((web.cpu_quota("app-0"), web.cpu_quota("")), ("10000".into(), "10000".into()));

    resize(&kubectl, "web", r#"{"limits":{"cpu":"300m"}}"#).ok();
    wait_quota(&device, "app-0", "30000");
    assert_eq!(web.cpu_quota(""), "30000");
    assert_eq!(web.born("app"), born);
    wait_complete(&device);
    let status = web.status();
    let shown = &status["containerStatuses"][0];
    assert_eq!(shown["resources"]["limits"]["cpu"], "300m", "{shown}");
    assert_eq!(shown["allocatedResources"], json!({"cpu": "50m", "memory": "16Mi"}));
    assert_eq!(status["observedGeneration"], 2);

    // The next agent knows what is allocated, and so does the next one after a power cut.
    device.restart_agent();
    let web = device.pod("web");
    assert_eq!((web.born("app"), web.cpu_quota("app-0")), (born, "30000".into()));

    resize(&kubectl, "web", r#"{"limits":{"memory":"48Mi"}}"#).ok();
    web.wait_run("app", 1);
    web.wait_ready();
    device.wait_for("the pod to have the limit", || web.memory_limit("") == (48 << 20).to_string());
    check_memory(web, "app-1", 48);
    for reason in ["ResizeStarted", "ResizeCompleted", "Killing"] {
        assert!(web.has_event(reason), "{reason}: {:?}", web.events());
    }
    let described = kubectl.line("describe pod web").ok();
    assert!(described.contains("Container app resize requires restart"), "{described}");
}

#[test]
fn a_container_restarts_only_for_the_resource_and_policy_that_it_names() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    // Each policy, and how often the container has restarted after a resize of memory, and after one of cpu.
    let policies = [
        ("none", "", [0, 0]),
        ("memory", "{resourceName: memory, restartPolicy: RestartContainer}", [1, 1]),
        ("memory-not", "{resourceName: memory, restartPolicy: NotRequired}", [0, 0]),
        ("cpu", "{resourceName: cpu, restartPolicy: RestartContainer}", [0, 1]),
    ];
    for (name, policy, _) in policies {
        let resources = "{requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 100m, memory: 32Mi}}";
        device.apply(&pod(name, &format!("resizePolicy: [{policy}]\nresources: {resources}")));
    }
    device.wait_all_ready(policies.map(|(name, ..)| name));
    for (step, limit) in
        [r#"{"limits":{"memory":"48Mi"}}"#, r#"{"limits":{"cpu":"200m"}}"#].iter().enumerate()
    {
        policies.iter().for_each(|(name, ..)| drop(resize(&kubectl, name, limit).ok()));
        for (name, policy, restarts) in &policies {
            let pod = device.pod(name);
            device.wait_for(&format!("the resize of {name}"), || {
                let events = pod.events();
                let done = events.iter().filter(|event| event.contains("ResizeCompleted")).count();
                done == step + 1 && pod.is_ready()
            });
            assert_eq!(pod.container("app").restart_count(), restarts[step], "{policy:?} after {limit}");
        }
    }
}

#[test]
fn a_resize_whose_state_cannot_be_saved_changes_no_cgroup_until_it_can() {
    let mut device = Device::start();
    let kubectl = Kubectl::new(&device);
    let web = device.run_applied("web", &pod("web", "resources: {limits: {cpu: 100m, memory: 64Mi}}"));
    let (uid, born) = (web.uid(), web.born("app"));
    // A directory is where the file would be written.
    let statuses = fs::read_dir(device.path("/run/nodlet/statuses")).expect("it exists").flatten();
    let status = statuses.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains(&uid));
    let status = status.expect("the pod has one");
    let name = status.file_name().expect("a file").to_string_lossy();
    let in_the_way = status.with_file_name(format!(".{name}.new"));
    fs::create_dir(&in_the_way).expect("it can be made");
    resize(&kubectl, "web", r#"{"limits":{"cpu":"300m"},"requests":{"cpu":"300m"}}"#).ok();
    device.wait_for("the failure", || {
        let shown = web.whole_condition("PodResizeInProgress");
        shown["reason"] == "Error"
            && shown["message"].to_string().contains("failed to save the status of the pod")
    });
    let cgroup = web.cgroup("app-0", "cpu");
    assert_eq!(cpu_quota(cgroup.clone()), "10000");
    // The agent dies before it can be saved: the next one carries the resize out.
    device.kill_agent();
    assert_eq!(cpu_quota(cgroup), "10000");
    fs::remove_dir(&in_the_way).expect("it is empty");
    device.start_agent();
    wait_quota(&device, "app-0", "30000");
    wait_complete(&device);
    assert_eq!(device.pod("web").born("app"), born);
}

#[test]
fn a_resize_that_does_not_fit_is_shown_and_does_not_disturb_the_pod() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let resources = "resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {memory: 64Mi}}";
    let text = manifest::single("web", "hog 24 then print up then sleep", resources, "");
    let web = device.run_applied("web", &text);
    web.wait_log("app", "up");
    let born = web.born("app");

    resize(&kubectl, "web", r#"{"requests":{"cpu":"1000"}}"#).ok();
    device.wait_for("the condition", || !web.whole_condition("PodResizePending").is_null());
    let pending = web.whole_condition("PodResizePending");
    assert_eq!((&pending["status"], &pending["reason"]), (&"True".into(), &"Infeasible".into()));
    let message = pending["message"].as_str().expect("a text");
    let words = "Node didn't have enough capacity: cpu, requested: 1000000, capacity: ";
    assert!(message.starts_with(words), "{message}");
    assert_eq!(allocated(&device), "50m");

    // Less memory than the container uses.
    resize(&kubectl, "web", r#"{"requests":{"cpu":"50m","memory":"8Mi"},"limits":{"memory":"8Mi"}}"#).ok();
    let in_progress = || web.whole_condition("PodResizeInProgress");
    device.wait_for("the error", || in_progress()["reason"] == "Error");
    assert!(web.whole_condition("PodResizePending").is_null(), "{}", web.status());
    let error = in_progress()["message"].as_str().expect("a text").to_owned();
    assert!(error.starts_with("cannot decrease memory limits: ["), "{error}");
    assert!(error.contains("attempting to set pod memory limit (8388608) below current usage ("), "{error}");
    assert!(error.contains("attempting to set container \"app\" memory limit (8388608)"), "{error}");
    check_memory(web, "app-0", 64);
    assert_eq!(web.get("/status/containerStatuses/0/resources/limits/memory"), "64Mi");

    resize(&kubectl, "web", r#"{"requests":{"memory":"40Mi"},"limits":{"memory":"80Mi"}}"#).ok();
    device.wait_for("the limit", || web.memory_limit("app-0") == (80 << 20).to_string());
    wait_complete(&device);
    assert_eq!(web.born("app"), born);
}

#[test]
fn a_deferred_resize_waits_through_a_power_cut_and_a_finished_one_is_in_effect_after_it() {
    let mut device = Device::start();
    let kubectl = Kubectl::new(&device);
    let node = device.get("/api/v1/nodes").expect("there is a node");
    let cpu = node["items"][0]["status"]["allocatable"]["cpu"].as_str().expect("a quantity").to_owned();
    let cpu: u64 = match cpu.strip_suffix('m') {
        Some(milli) => milli.parse().expect("a number"),
        None => cpu.parse::<u64>().expect("a number") * 1000,
    };
    let used = cpu - 100;
    let resources = "resources: {requests: {cpu: 50m, memory: 16Mi}, limits: {cpu: 100m, memory: 64Mi}}";
    device.apply(&pod("web", resources));
    device.apply(&pod("other", &format!("resources: {{requests: {{cpu: {used}m}}}}")));
    device.wait_all_ready(["web", "other"]);
    let run = |device: &Device| format!("app-{}", device.pod("web").container("app").restart_count());
    resize(&kubectl, "web", r#"{"requests":{"cpu":"60m"},"limits":{"cpu":"300m"}}"#).ok();
    wait_quota(&device, "app-0", "30000");
    device.wait_for("the request to be allocated", || allocated(&device) == "60m");
    wait_complete(&device);
    resize(&kubectl, "web", r#"{"requests":{"cpu":"250m"},"limits":{"cpu":"400m"}}"#).ok();
    let message =
        format!("Node didn't have enough resource: cpu, requested: 250, used: {used}, capacity: {cpu}");
    let is_deferred = |device: &Device| {
        let pending = device.pod("web").whole_condition("PodResizePending");
        pending["reason"] == "Deferred" && pending["message"] == message.as_str()
    };
    device.wait_for("the resize to be deferred", || is_deferred(&device));
    device.pod("web").wait_event("ResizeDeferred");
    assert_eq!((allocated(&device), device.pod("web").cpu_quota("app-0")), ("60m".into(), "30000".into()));
    drop(kubectl);

    // Cgroups, processes and /run are gone. What was carried out is in effect, and what was not still is not.
    device.power_cycle();
    device.wait_for("both pods", || {
        ["web", "other"].iter().all(|name| device.pod(name).is_ready()) && is_deferred(&device)
    });
    let (web, after) = (device.pod("web"), run(&device));
    assert_eq!((web.cpu_quota(&after), web.cpu_quota("")), ("30000".into(), "30000".into()));
    check_memory(web, &after, 64);
    assert_eq!(web.get("/status/containerStatuses/0/resources/limits/cpu"), "300m");
    assert_eq!(allocated(&device), "60m");
    assert!(web.whole_condition("PodResizeInProgress").is_null(), "{}", web.status());

    device.nodlet(["delete", "pod", "other"]).ok();
    device.wait_for("the deferred resize", || {
        web.whole_condition("PodResizePending").is_null() && allocated(&device) == "250m"
    });
    wait_quota(&device, &after, "40000");
    assert_eq!(run(&device), after, "it needs no restart");
}

#[test]
fn only_cpu_and_memory_of_applied_pods_can_be_resized() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let resources = "resources: {requests: {cpu: 50m}, limits: {memory: 64Mi}}";
    device.write_pod("file", &pod("file", resources));
    device.apply(&pod("web", resources));
    device.wait_all_ready(["file", "web"]);
    let refused = resize(&kubectl, "file", r#"{"requests":{"cpu":"60m"}}"#).refused();
    assert!(
        refused.contains("is forbidden: it is defined by") && refused.contains("edit that file"),
        "{refused}"
    );
    for (resources, expected) in [
        (
            r#"{"requests":{"cpu":null}}"#,
            "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
        ),
        (
            r#"{"limits":{"cpu":"50m"},"requests":{"memory":"64Mi"}}"#,
            "Pod QOS Class may not change as a result of resizing",
        ),
        (
            r#"{"limits":{"ephemeral-storage":"1Gi"}}"#,
            "spec: Forbidden: only cpu and memory resources are mutable",
        ),
        (r#"{"requests":{"cpu":"-1"}}"#, "must be greater than or equal to 0"),
    ] {
        resize(&kubectl, "web", resources).refused_with(expected);
    }
    let patch = r#"{"spec":{"containers":[{"name":"app","resources":{"requests":{"cpu":"60m"}}}]}}"#;
    kubectl
        .run(["patch", "pod", "web", "-p", patch])
        .refused_with("pod updates may not change fields other than");
    // Everything else in the request is ignored, as by Kubernetes.
    let both = patch.replacen('{', r#"{"metadata":{"labels":{"a":"b"}},"#, 1).replacen(
        r#""name":"app","#,
        r#""name":"app","image":"other","#,
        1,
    );
    kubectl.run(["patch", "pod", "web", "--subresource", "resize", "-p", &both]).ok();
    let web = device.pod("web");
    assert_eq!(web.get("/spec/containers/0/image"), "localhost/demo:1");
    assert_eq!(web.get("/spec/containers/0/resources/requests/cpu"), "60m");
    assert_eq!(web.get("/metadata/labels/a"), Value::Null);
}

#[test]
fn a_pod_that_writes_more_than_its_local_storage_is_evicted_and_another_is_not() {
    let device = Device::start();
    let write = |name: &str, steps: &str, limit: &str| {
        let limits = format!("resources: {{limits: {{ephemeral-storage: {limit}}}}}");
        let text = manifest::single(name, &format!("{steps} then print up then sleep"), &limits, "");
        device.write_pod(name, &text);
    };
    write("much", "spam 600000", "128Ki");
    write("little", "spam 600000", "1Gi");
    // `/etc/hosts` is a file of the pod, outside of its containers' layers.
    let text = "x".repeat(64 << 10);
    let files = ["hosts", "hostname", "resolv.conf"].map(|file| format!("append /etc/{file} {text}"));
    write("hosts", &files.join(" then "), "128Ki");
    device.pod("much").wait_ready();
    device.wait_within(std::time::Duration::from_secs(120), "the pod to be evicted", || {
        device.pod("much").phase() == "Failed" && device.pod("hosts").phase() == "Failed"
    });
    let message = "Pod ephemeral local storage usage exceeds the total limit of containers 128Ki. ";
    for name in ["much", "hosts"] {
        let status = device.pod(name).status();
        assert_eq!((&status["reason"], &status["message"]), (&"Evicted".into(), &message.into()), "{status}");
    }
    assert!(device.pod("much").has_event("Evicted"));
    assert_eq!(device.pod("little").phase(), "Running");
}

#[test]
fn limit_ranges_of_files_and_clients_give_defaults_and_bounds_to_new_pods() {
    let mut device = Device::start();
    let kubectl = Kubectl::new(&device);
    device.write_manifest(
        "range.yaml",
        "apiVersion: v1\nkind: LimitRange\nmetadata: {name: memory}\nspec:\n  limits:\n  - type: Container\n    \
         default: {memory: 64Mi}\n    defaultRequest: {memory: 16Mi}\n    max: {memory: 128Mi}\n",
    );
    device.wait_for("the range", || kubectl.line("get limitranges").ok().contains("memory"));
    let web = device.run_applied("web", &pod("web", ""));
    check_memory(web, "app-0", 64);
    assert_eq!(
        web.get("/metadata/annotations")["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: memory request for container app; memory limit for container app"
    );
    device.try_apply(&pod("large", "resources: {limits: {memory: 1Gi}}")).refused_with(
        "pods \"large\" is forbidden: maximum memory usage per Container is 128Mi, but limit is 1Gi",
    );
    resize(&kubectl, "web", r#"{"limits":{"memory":"256Mi"}}"#)
        .refused_with("maximum memory usage per Container is 128Mi, but limit is 256Mi");

    // An admitted pod keeps what it was admitted with.
    let born = web.born("app");
    device.remove_manifest("range.yaml");
    device.wait_for("the range to go", || !kubectl.line("get limitranges").ok().contains("memory"));
    device.restart_agent();
    assert_eq!(device.pod("web").born("app"), born);
    device.power_cycle();
    device.pod("web").wait_ready();
    check_memory(device.pod("web"), "app-1", 64);
}

#[test]
fn a_runtime_class_adds_its_overhead_to_the_pod_and_keeps_it() {
    let mut device = Device::start();
    let kubectl = Kubectl::new(&device);
    let pod = |name: &str, memory: &str| {
        let limits = format!("resources: {{limits: {{cpu: 100m, memory: {memory}}}}}");
        manifest::single(name, "print up then sleep", &limits, "runtimeClassName: small\n")
    };
    let text = pod("web", "64Mi");
    device
        .try_apply(&text)
        .refused_with("pods \"web\" is forbidden: pod rejected: RuntimeClass \"small\" not found");
    let class = |handler: &str| {
        format!(
            "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {{name: small}}\nhandler: {handler}\n\
             overhead: {{podFixed: {{cpu: 50m, memory: 16Mi}}}}\n"
        )
    };
    device
        .try_apply(&class("runc"))
        .refused_with("handler: Unsupported value: \"runc\": supported values: \"nodlet\"");
    device.apply(&class("nodlet"));
    let list = kubectl.line("get runtimeclasses").ok();
    assert!(list.contains("HANDLER") && list.contains("small") && list.contains("nodlet"), "{list}");
    let web = device.run_applied("web", &text);
    check_memory(web, "app-0", 64);
    check_memory(web, "", 80);
    assert_eq!(web.cpu_quota(""), "15000");
    assert_eq!(web.get("/spec/overhead"), json!({"cpu": "50m", "memory": "16Mi"}));
    assert_eq!(web.get("/status/qosClass"), "Guaranteed");

    // The pod keeps its overhead without its class. A pod from a file waits for its class.
    kubectl.line("delete runtimeclass small").ok();
    device.power_cycle();
    device.pod("web").wait_ready();
    check_memory(device.pod("web"), "", 80);
    let late = device.write_pod("late", &pod("late", "32Mi"));
    device.wait_logged("pod rejected: RuntimeClass \"small\" not found");
    device.write_manifest("class.yaml", &class("nodlet"));
    late.wait_ready();
    check_memory(late, "", 48);
}

#[test]
fn the_resources_of_a_pod_as_a_whole_are_resized_and_shown_in_its_status() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let resources = "resources: {requests: {cpu: 50m, memory: 16Mi}, limits: {cpu: 200m, memory: 64Mi}}";
    let web = device.run_applied("web", &manifest::pod_with("web", "print up then sleep", resources));
    let (born, status) = (web.born("app"), web.status());
    assert_eq!(status["allocatedResources"], json!({"cpu": "50m", "memory": "16Mi"}));
    assert_eq!(status["resources"]["limits"], json!({"cpu": "200m", "memory": "64Mi"}));
    let larger = r#"{"resources":{"requests":{"cpu":"100m"},"limits":{"memory":"128Mi"}}}"#;
    resize_spec(&kubectl, "web", larger).ok();
    let shown = || web.get("/status/resources/limits/memory");
    device.wait_for("the limit in the status", || shown() == "128Mi");
    assert_eq!(web.get("/status/allocatedResources/cpu"), "100m");
    check_memory(web, "", 128);
    assert_eq!(web.born("app"), born);
}

#[test]
fn an_agent_that_may_not_let_pods_swap_says_why() {
    let device = Device::start_with(["--memory-swap-behavior=LimitedSwap"]);
    let meminfo = fs::read_to_string("/proc/meminfo").expect("it can be read");
    let has_swap = !meminfo.lines().any(|line| line.starts_with("SwapTotal:") && line.ends_with(" 0 kB"));
    let is_v1 = std::path::Path::new("/sys/fs/cgroup/memory").exists();
    let text = "--memory-swap-behavior LimitedSwap has no effect: ";
    let expected = match (has_swap, is_v1) {
        (false, _) => format!("{text}the machine has no swap"),
        (true, true) => format!("{text}the memory controller is not cgroup v2's"),
        (true, false) => return assert!(!device.agent_log().contains(text)),
    };
    assert!(device.agent_log().contains(&expected), "{}", device.agent_log());
}

/// The soft and the hard limit of open files that the kernel shows for a process of the pod.
fn open_files(device: &Device, pod: &str, process: &str) -> String {
    let limits = device.pod(pod).demo("app", &format!("cat /proc/{process}/limits")).ok();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap_or_default();
    line.split_whitespace().take(2).collect::<Vec<_>>().join(":")
}

#[test]
fn the_limit_of_open_files_is_that_of_the_board_or_what_the_pod_requests_within_it() {
    let annotated = |name: &str, limit: &str| {
        let annotations = format!("metadata:\n  annotations: {{io.podman.annotations.ulimit: {limit:?}}}\n");
        manifest::pod(name, "print up then sleep").replacen("metadata:\n", &annotations, 1)
    };
    let mut device = Device::start();
    device.run_pod("web", "print up then sleep").wait_ready();
    let limit = open_files(&device, "web", "1");
    // Without CAP_SYS_RESOURCE, the hard limit of the agent, which is that of this test, is the most.
    let (_, own) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).expect("it is known");
    let (most, bounded) = (1 << 20, own.min(1 << 20));
    assert!([format!("{most}:{most}"), format!("{bounded}:{bounded}")].contains(&limit), "{limit}");
    assert_eq!(open_files(&device, "web", "self"), limit);

    device.restart_agent_with(["--default-ulimit=nofile=500:1000"]);
    assert_eq!(open_files(&device, "web", "self"), limit, "a container that runs keeps its limit");
    device.run_pod("own", "print up then sleep");
    device.write_pod("less", &annotated("less", "nofile=100:200"));
    device.write_pod("more", &annotated("more", "nofile=1001"));
    for (pod, expected) in [("own", "500:1000"), ("less", "100:200")] {
        device.pod(pod).wait_ready();
        assert_eq!(open_files(&device, pod, "1"), expected, "{pod}");
        assert_eq!(open_files(&device, pod, "self"), expected, "{pod}: exec");
    }
    let why = "annotation io.podman.annotations.ulimit: the operator of this board does not allow annotations to request \
               more open files; start nodlet agent with --allowed-annotations=io.podman.annotations.ulimit, or request at \
               most nofile=1000";
    device.wait_for("the pod to wait", || device.pod("more").container("app").message() == why);
    assert_eq!(device.pod("more").container("app").reason(), "CreateContainerConfigError");
    let said = device.try_apply(&annotated("warned", "nofile=9,nproc=5:5")).stderr;
    assert!(said.contains("nodlet acts on nofile, and nproc has no effect"), "{said}");

    // With consent, up to what the kernel gives; beyond that, the container says why it does not start.
    let consent = "--allowed-annotations=io.podman.annotations.ulimit";
    device.restart_agent_with(["--default-ulimit=nofile=500:1000", consent]);
    let most = device.write_pod("most", &annotated("most", "nofile=1073741824"));
    device.pod("more").wait_ready();
    assert_eq!(open_files(&device, "more", "1"), "1001:1001");
    device.wait_for("the start to fail", || {
        most.container("app").message().contains("set the limit of open files")
    });
    let message = most.container("app").message();
    assert!(message.contains("CAP_SYS_RESOURCE and fs.nr_open of at least 1073741824"), "{message}");
}
