//! Resources of running pods: resizes in place, limits of local storage, defaults of namespaces.

use std::fs;
use std::path::PathBuf;

use nodlet_tests::{Device, Kubectl, manifest};

/// The cgroup of the newest run of a container, in the hierarchy of a controller of version 1, or in version 2.
fn cgroup_of(device: &Device, pod: &str, run: &str, controller: &str) -> PathBuf {
    let end = format!("pod{}/{run}", device.pod(pod).uid());
    let groups = device.cgroups();
    let mut found = groups.iter().filter(|group| {
        group.ends_with(&end) || run.is_empty() && group.ends_with(end.trim_end_matches('/'))
    });
    let of_controller = |group: &&PathBuf| group.starts_with(format!("/sys/fs/cgroup/{controller}"));
    let all: Vec<&PathBuf> = found.by_ref().collect();
    let own = all.iter().copied().find(of_controller).or(all.first().copied());
    own.unwrap_or_else(|| panic!("{pod} has no cgroup {run} among {groups:?}")).clone()
}

/// The content of the first of these files that exists.
fn read(cgroup: &std::path::Path, v1: &str, v2: &str) -> String {
    let text = fs::read_to_string(cgroup.join(v1)).or_else(|_| fs::read_to_string(cgroup.join(v2)));
    text.expect("the controller is on").split_whitespace().next().unwrap_or_default().to_owned()
}

fn memory(device: &Device, pod: &str, run: &str) -> String {
    read(&cgroup_of(device, pod, run, "memory"), "memory.limit_in_bytes", "memory.max")
}

fn quota(device: &Device, pod: &str, run: &str) -> String {
    read(&cgroup_of(device, pod, run, "cpu"), "cpu.cfs_quota_us", "cpu.max")
}

/// Applies a pod through the API.
fn apply(device: &Device, text: &str) {
    device.nodlet_with_input(["apply", "-f", "-"], text).ok();
}

fn patch(kubectl: &Kubectl, pod: &str, resources: &str) -> nodlet_tests::Ran {
    let patch = format!(r#"{{"spec":{{"containers":[{{"name":"app","resources":{resources}}}]}}}}"#);
    kubectl.run(["patch", "pod", pod, "--subresource", "resize", "-p", &patch])
}

fn condition<'a>(status: &'a serde_json::Value, kind: &str) -> Option<&'a serde_json::Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

const MIB: u64 = 1 << 20;

#[test]
fn a_pod_is_resized_while_it_runs_and_restarts_only_for_what_requires_it() {
    let mut device = Device::start();
    let kubectl = Kubectl::new(&device);
    let app = manifest::container(
        "app",
        "print up then sleep",
        "resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]\n\
         resources: {requests: {cpu: 50m, memory: 16Mi}, limits: {cpu: 100m, memory: 64Mi}}",
    );
    apply(&device, &manifest::pod_of("web", &[app], "terminationGracePeriodSeconds: 1"));
    device.pod("web").wait_ready();
    let born = device.pod("web").born("app");
    assert_eq!((quota(&device, "web", "app-0"), quota(&device, "web", "")), ("10000".into(), "10000".into()));

    patch(&kubectl, "web", r#"{"limits":{"cpu":"300m"}}"#).ok();
    device.wait_for("the cgroup to have the limit", || quota(&device, "web", "app-0") == "30000");
    assert_eq!(quota(&device, "web", ""), "30000");
    assert_eq!(device.pod("web").born("app"), born);
    device.wait_for("the resize to be complete", || {
        condition(&device.pod("web").status(), "PodResizeInProgress").is_none()
    });
    let status = device.pod("web").status();
    let shown = &status["containerStatuses"][0];
    assert_eq!(shown["resources"]["limits"]["cpu"], "300m", "{shown}");
    assert_eq!(shown["allocatedResources"], serde_json::json!({"cpu": "50m", "memory": "16Mi"}));
    assert_eq!(status["observedGeneration"], 2);

    // The next agent knows what is allocated, and so does the next one after a power cut.
    device.kill_agent();
    device.start_agent();
    assert_eq!(device.pod("web").born("app"), born);
    assert_eq!(quota(&device, "web", "app-0"), "30000");

    patch(&kubectl, "web", r#"{"limits":{"memory":"48Mi"}}"#).ok();
    device.wait_for("the container to be another", || {
        device.pod("web").container("app").restart_count() == 1 && device.pod("web").is_ready()
    });
    device.wait_for("the pod to have the limit", || memory(&device, "web", "") == (48 * MIB).to_string());
    assert_eq!(memory(&device, "web", "app-1"), (48 * MIB).to_string());
    let events = device.pod("web").events();
    for reason in ["ResizeStarted", "ResizeCompleted", "Killing"] {
        assert!(events.iter().any(|event| event.contains(reason)), "{reason}: {events:?}");
    }
    assert!(
        kubectl.run(["describe", "pod", "web"]).ok().contains("Container app resize requires restart"),
        "{events:?}"
    );
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
        let more = format!(
            "resizePolicy: [{policy}]\nresources: {{requests: {{cpu: 10m, memory: 16Mi}}, limits: {{cpu: 100m, memory: 32Mi}}}}"
        );
        let app = manifest::container("app", "print up then sleep", &more);
        apply(&device, &manifest::pod_of(name, &[app], "terminationGracePeriodSeconds: 1"));
    }
    for (name, ..) in &policies {
        device.pod(name).wait_ready();
    }
    for (step, limit) in
        [r#"{"limits":{"memory":"48Mi"}}"#, r#"{"limits":{"cpu":"200m"}}"#].iter().enumerate()
    {
        policies.iter().for_each(|(name, ..)| drop(patch(&kubectl, name, limit).ok()));
        for (name, policy, restarts) in &policies {
            let count = || device.pod(name).container("app").restart_count();
            device.wait_for(&format!("the resize of {name}"), || {
                let done = |event: &String| event.contains("ResizeCompleted");
                device.pod(name).events().iter().filter(|event| done(event)).count() == step + 1
                    && device.pod(name).is_ready()
            });
            assert_eq!(count(), restarts[step], "{policy:?} after {limit}");
        }
    }
}

#[test]
fn a_resize_whose_state_cannot_be_saved_changes_no_cgroup_until_it_can() {
    let mut device = Device::start();
    let kubectl = Kubectl::new(&device);
    let app =
        manifest::container("app", "print up then sleep", "resources: {limits: {cpu: 100m, memory: 64Mi}}");
    apply(&device, &manifest::pod_of("web", &[app], ""));
    device.pod("web").wait_ready();
    let born = device.pod("web").born("app");
    // A directory is where the file would be written.
    let uid = device.pod("web").uid();
    let statuses = device.path("/run/nodlet/statuses");
    let known = fs::read_dir(&statuses).expect("it exists").flatten().map(|entry| entry.path());
    let status = known.into_iter().find(|path| path.to_string_lossy().contains(&uid));
    let status = status.expect("the pod has one");
    let name = status.file_name().expect("a file").to_string_lossy();
    let in_the_way = status.with_file_name(format!(".{name}.new"));
    fs::create_dir(&in_the_way).expect("it can be made");
    patch(&kubectl, "web", r#"{"limits":{"cpu":"300m"},"requests":{"cpu":"300m"}}"#).ok();
    let in_progress = || condition(&device.pod("web").status(), "PodResizeInProgress").cloned();
    device.wait_for("the failure", || {
        in_progress().is_some_and(|shown| {
            shown["reason"] == "Error"
                && shown["message"].to_string().contains("failed to save the status of the pod")
        })
    });
    let cgroup = cgroup_of(&device, "web", "app-0", "cpu");
    let own_quota = || read(&cgroup, "cpu.cfs_quota_us", "cpu.max");
    assert_eq!(own_quota(), "10000");
    // The agent dies before it can be saved: the next one carries the resize out.
    device.kill_agent();
    assert_eq!(own_quota(), "10000");
    fs::remove_dir(&in_the_way).expect("it is empty");
    device.start_agent();
    device.wait_for("the cgroup to have the limit", || quota(&device, "web", "app-0") == "30000");
    device.wait_for("the resize to be complete", || {
        condition(&device.pod("web").status(), "PodResizeInProgress").is_none()
    });
    assert_eq!(device.pod("web").born("app"), born);
}

#[test]
fn a_resize_that_does_not_fit_is_shown_and_does_not_disturb_the_pod() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let app = manifest::container(
        "app",
        "hog 24 then print up then sleep",
        "resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {memory: 64Mi}}",
    );
    apply(&device, &manifest::pod_of("web", &[app], ""));
    device.pod("web").wait_ready();
    device.pod("web").wait_log("app", "up");
    let born = device.pod("web").born("app");

    patch(&kubectl, "web", r#"{"requests":{"cpu":"1000"}}"#).ok();
    device.wait_for("the condition", || condition(&device.pod("web").status(), "PodResizePending").is_some());
    let status = device.pod("web").status();
    let pending = condition(&status, "PodResizePending").expect("it is shown").clone();
    assert_eq!((&pending["status"], &pending["reason"]), (&"True".into(), &"Infeasible".into()));
    let message = pending["message"].as_str().expect("a text");
    assert!(
        message.starts_with("Node didn't have enough capacity: cpu, requested: 1000000, capacity: "),
        "{message}"
    );
    assert_eq!(status["containerStatuses"][0]["allocatedResources"]["cpu"], "50m");

    // Less memory than the container uses.
    patch(&kubectl, "web", r#"{"requests":{"cpu":"50m","memory":"8Mi"},"limits":{"memory":"8Mi"}}"#).ok();
    device.wait_for("the error", || {
        condition(&device.pod("web").status(), "PodResizeInProgress")
            .is_some_and(|one| one["reason"] == "Error")
    });
    let status = device.pod("web").status();
    assert!(condition(&status, "PodResizePending").is_none(), "{status}");
    let error = condition(&status, "PodResizeInProgress").expect("it is shown")["message"].clone();
    let error = error.as_str().expect("a text");
    assert!(error.starts_with("cannot decrease memory limits: ["), "{error}");
    assert!(error.contains("attempting to set pod memory limit (8388608) below current usage ("), "{error}");
    assert!(error.contains("attempting to set container \"app\" memory limit (8388608)"), "{error}");
    assert_eq!(memory(&device, "web", "app-0"), (64 * MIB).to_string());
    assert_eq!(status["containerStatuses"][0]["resources"]["limits"]["memory"], "64Mi");

    patch(&kubectl, "web", r#"{"requests":{"memory":"40Mi"},"limits":{"memory":"80Mi"}}"#).ok();
    device.wait_for("the limit", || memory(&device, "web", "app-0") == (80 * MIB).to_string());
    device
        .wait_for("no condition", || condition(&device.pod("web").status(), "PodResizeInProgress").is_none());
    assert_eq!(device.pod("web").born("app"), born);
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
    let pod = |name: &str, resources: &str| {
        let resources = format!("resources: {{{resources}}}");
        let app = manifest::container("app", "print up then sleep", &resources);
        manifest::pod_of(name, &[app], "terminationGracePeriodSeconds: 1")
    };
    apply(&device, &pod("web", "requests: {cpu: 50m, memory: 16Mi}, limits: {cpu: 100m, memory: 64Mi}"));
    apply(&device, &pod("other", &format!("requests: {{cpu: {}m}}", cpu - 100)));
    device.pod("web").wait_ready();
    device.pod("other").wait_ready();
    let run = |device: &Device| format!("app-{}", device.pod("web").container("app").restart_count());
    let allocated = |device: &Device| {
        device.pod("web").status()["containerStatuses"][0]["allocatedResources"]["cpu"].clone()
    };
    patch(&kubectl, "web", r#"{"requests":{"cpu":"60m"},"limits":{"cpu":"300m"}}"#).ok();
    device.wait_for("the cgroup to have the limit", || quota(&device, "web", "app-0") == "30000");
    device.wait_for("the resize to be complete", || {
        condition(&device.pod("web").status(), "PodResizeInProgress").is_none() && allocated(&device) == "60m"
    });
    patch(&kubectl, "web", r#"{"requests":{"cpu":"250m"},"limits":{"cpu":"400m"}}"#).ok();
    let is_deferred = |device: &Device| {
        let status = device.pod("web").status();
        let pending = condition(&status, "PodResizePending").cloned().unwrap_or_default();
        let used = cpu - 100;
        let message =
            format!("Node didn't have enough resource: cpu, requested: 250, used: {used}, capacity: {cpu}");
        pending["reason"] == "Deferred" && pending["message"] == message.as_str()
    };
    device.wait_for("the resize to be deferred", || is_deferred(&device));
    let deferred = || device.pod("web").events().iter().any(|event| event.contains("ResizeDeferred"));
    device.wait_for("the event", deferred);
    assert_eq!((allocated(&device), quota(&device, "web", "app-0")), ("60m".into(), "30000".into()));
    drop(kubectl);

    // Cgroups, processes and /run are gone. What was carried out is in effect, and what was not still is not.
    device.cut_power();
    device.start_agent();
    device.wait_for("both pods", || {
        ["web", "other"].iter().all(|name| device.pod(name).is_ready()) && is_deferred(&device)
    });
    let after = run(&device);
    assert_eq!((quota(&device, "web", &after), quota(&device, "web", "")), ("30000".into(), "30000".into()));
    assert_eq!(memory(&device, "web", &after), (64 * MIB).to_string());
    let status = device.pod("web").status();
    assert_eq!(status["containerStatuses"][0]["resources"]["limits"]["cpu"], "300m", "{status}");
    assert_eq!(allocated(&device), "60m");
    assert!(condition(&status, "PodResizeInProgress").is_none(), "{status}");

    device.nodlet(["delete", "pod", "other"]).ok();
    device.wait_for("the deferred resize", || {
        condition(&device.pod("web").status(), "PodResizePending").is_none() && allocated(&device) == "250m"
    });
    device.wait_for("the cgroup to have the limit", || quota(&device, "web", &after) == "40000");
    assert_eq!(run(&device), after, "it needs no restart");
}

#[test]
fn only_cpu_and_memory_of_applied_pods_can_be_resized() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let resources = "resources: {requests: {cpu: 50m}, limits: {memory: 64Mi}}";
    let app = manifest::container("app", "print up then sleep", resources);
    device.write_manifest("file.yaml", &manifest::pod_of("file", std::slice::from_ref(&app), ""));
    apply(&device, &manifest::pod_of("web", &[app], ""));
    device.pod("file").wait_ready();
    device.pod("web").wait_ready();
    let refused = patch(&kubectl, "file", r#"{"requests":{"cpu":"60m"}}"#).refused();
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
        let refused = patch(&kubectl, "web", resources).refused();
        assert!(refused.contains(expected), "{resources}: {refused}");
    }
    let patch = r#"{"spec":{"containers":[{"name":"app","resources":{"requests":{"cpu":"60m"}}}]}}"#;
    let refused = kubectl.run(["patch", "pod", "web", "-p", patch]).refused();
    assert!(refused.contains("pod updates may not change fields other than"), "{refused}");
    // Everything else in the request is ignored, as by Kubernetes.
    let both = r#"{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"app","image":"other","resources":{"requests":{"cpu":"60m"}}}]}}"#;
    kubectl.run(["patch", "pod", "web", "--subresource", "resize", "-p", both]).ok();
    let object = device.pod("web").object().expect("it is there");
    assert_eq!(object["spec"]["containers"][0]["image"], "localhost/demo:1");
    assert_eq!(object["spec"]["containers"][0]["resources"]["requests"]["cpu"], "60m");
    assert_eq!(object["metadata"]["labels"]["a"], serde_json::Value::Null);
}

#[test]
fn a_pod_that_writes_more_than_its_local_storage_is_evicted_and_another_is_not() {
    let device = Device::start();
    let pod = |name: &str, limit: &str| {
        let limits = format!("resources: {{limits: {{ephemeral-storage: {limit}}}}}");
        let app = manifest::container("app", "spam 600000 then print up then sleep", &limits);
        manifest::pod_of(name, &[app], "")
    };
    device.write_manifest("much.yaml", &pod("much", "128Ki"));
    device.write_manifest("little.yaml", &pod("little", "1Gi"));
    // `/etc/hosts` is a file of the pod, outside of its containers' layers.
    let text = "x".repeat(64 << 10);
    let app = manifest::container(
        "app",
        &format!(
            "append /etc/hosts {text} then append /etc/hostname {text} then append /etc/resolv.conf {text} then print up then sleep"
        ),
        "resources: {limits: {ephemeral-storage: 128Ki}}",
    );
    device.write_manifest("hosts.yaml", &manifest::pod_of("hosts", &[app], ""));
    device.pod("much").wait_ready();
    device.wait_within(std::time::Duration::from_secs(120), "the pod to be evicted", || {
        device.pod("much").phase() == "Failed" && device.pod("hosts").phase() == "Failed"
    });
    let message = "Pod ephemeral local storage usage exceeds the total limit of containers 128Ki. ";
    for name in ["much", "hosts"] {
        let status = device.pod(name).status();
        assert_eq!((&status["reason"], &status["message"]), (&"Evicted".into(), &message.into()), "{status}");
    }
    assert!(device.pod("much").events().iter().any(|event| event.contains("Evicted")));
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
    let app = manifest::container("app", "print up then sleep", "");
    apply(&device, &manifest::pod_of("web", &[app], ""));
    device.pod("web").wait_ready();
    assert_eq!(memory(&device, "web", "app-0"), (64 * MIB).to_string());
    let object = device.pod("web").object().expect("it is there");
    assert_eq!(
        object["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: memory request for container app; memory limit for container app"
    );
    let large = manifest::container("app", "sleep", "resources: {limits: {memory: 1Gi}}");
    let refused =
        device.nodlet_with_input(["apply", "-f", "-"], &manifest::pod_of("large", &[large], "")).refused();
    let expected =
        "pods \"large\" is forbidden: maximum memory usage per Container is 128Mi, but limit is 1Gi";
    assert!(refused.contains(expected), "{refused}");
    let refused = patch(&kubectl, "web", r#"{"limits":{"memory":"256Mi"}}"#).refused();
    assert!(refused.contains("maximum memory usage per Container is 128Mi, but limit is 256Mi"), "{refused}");

    // An admitted pod keeps what it was admitted with.
    let born = device.pod("web").born("app");
    device.remove_manifest("range.yaml");
    device.wait_for("the range to go", || !kubectl.line("get limitranges").ok().contains("memory"));
    device.kill_agent();
    device.start_agent();
    assert_eq!(device.pod("web").born("app"), born);
    device.cut_power();
    device.start_agent();
    device.pod("web").wait_ready();
    assert_eq!(memory(&device, "web", "app-1"), (64 * MIB).to_string());
}

#[test]
fn a_runtime_class_adds_its_overhead_to_the_pod_and_keeps_it() {
    let mut device = Device::start();
    let kubectl = Kubectl::new(&device);
    let app = |memory: &str| {
        let limits = format!("resources: {{limits: {{cpu: 100m, memory: {memory}}}}}");
        manifest::container("app", "print up then sleep", &limits)
    };
    let web = manifest::pod_of("web", &[app("64Mi")], "runtimeClassName: small\n");
    let refused = device.nodlet_with_input(["apply", "-f", "-"], &web).refused();
    assert!(
        refused.contains("pods \"web\" is forbidden: pod rejected: RuntimeClass \"small\" not found"),
        "{refused}"
    );
    let class = |handler: &str| {
        format!(
            "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {{name: small}}\nhandler: {handler}\n\
             overhead: {{podFixed: {{cpu: 50m, memory: 16Mi}}}}\n"
        )
    };
    let refused = device.nodlet_with_input(["apply", "-f", "-"], &class("runc")).refused();
    assert!(
        refused.contains("handler: Unsupported value: \"runc\": supported values: \"nodlet\""),
        "{refused}"
    );
    apply(&device, &class("nodlet"));
    let list = kubectl.line("get runtimeclasses").ok();
    assert!(list.contains("HANDLER") && list.contains("small") && list.contains("nodlet"), "{list}");
    apply(&device, &web);
    device.pod("web").wait_ready();
    assert_eq!(memory(&device, "web", "app-0"), (64 * MIB).to_string());
    assert_eq!(memory(&device, "web", ""), (80 * MIB).to_string());
    assert_eq!(quota(&device, "web", ""), "15000");
    let object = device.pod("web").object().expect("it is there");
    assert_eq!(object["spec"]["overhead"], serde_json::json!({"cpu": "50m", "memory": "16Mi"}));
    assert_eq!(object["status"]["qosClass"], "Guaranteed");

    // The pod keeps its overhead without its class. A pod from a file waits for its class.
    kubectl.line("delete runtimeclass small").ok();
    device.cut_power();
    device.start_agent();
    device.pod("web").wait_ready();
    assert_eq!(memory(&device, "web", ""), (80 * MIB).to_string());
    let late = manifest::pod_of("late", &[app("32Mi")], "runtimeClassName: small\n");
    device.write_manifest("late.yaml", &late);
    device.wait_for("the message about the class", || {
        device.agent_log().contains("pod rejected: RuntimeClass \"small\" not found")
    });
    device.write_manifest("class.yaml", &class("nodlet"));
    device.pod("late").wait_ready();
    assert_eq!(memory(&device, "late", ""), (48 * MIB).to_string());
}

#[test]
fn the_resources_of_a_pod_as_a_whole_are_resized_and_shown_in_its_status() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let app = manifest::container("app", "print up then sleep", "");
    let resources = "resources: {requests: {cpu: 50m, memory: 16Mi}, limits: {cpu: 200m, memory: 64Mi}}";
    apply(&device, &manifest::pod_of("web", &[app], resources));
    device.pod("web").wait_ready();
    let born = device.pod("web").born("app");
    let status = device.pod("web").status();
    assert_eq!(status["allocatedResources"], serde_json::json!({"cpu": "50m", "memory": "16Mi"}));
    assert_eq!(status["resources"]["limits"], serde_json::json!({"cpu": "200m", "memory": "64Mi"}));
    let larger = r#"{"spec":{"resources":{"requests":{"cpu":"100m"},"limits":{"memory":"128Mi"}}}}"#;
    kubectl.run(["patch", "pod", "web", "--subresource", "resize", "-p", larger]).ok();
    device.wait_for("the limit in the status", || {
        device.pod("web").status()["resources"]["limits"]["memory"] == "128Mi"
    });
    assert_eq!(device.pod("web").status()["allocatedResources"]["cpu"], "100m");
    assert_eq!(memory(&device, "web", ""), (128 * MIB).to_string());
    assert_eq!(device.pod("web").born("app"), born);
}

#[test]
fn an_agent_that_may_not_let_pods_swap_says_why() {
    let mut device = Device::new();
    device.agent_arguments(["--memory-swap-behavior=LimitedSwap"]);
    device.start_agent();
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
    let limits = device.pod(pod).exec("app", ["/bin/demo", "cat", &format!("/proc/{process}/limits")]).ok();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap_or_default();
    line.split_whitespace().take(2).collect::<Vec<_>>().join(":")
}

#[test]
fn the_limit_of_open_files_is_that_of_the_board_or_what_the_pod_requests_within_it() {
    let annotated = |name: &str, limit: &str| {
        let annotations = format!("metadata:\n  annotations: {{io.podman.annotations.ulimit: {limit:?}}}\n");
        manifest::pod(name, "print up then sleep").replacen("metadata:\n", &annotations, 1)
    };
    let mut device = Device::new();
    device.start_agent();
    device.load_image(nodlet_tests::demo_archive());
    device.write_manifest("web.yaml", &manifest::pod("web", "print up then sleep"));
    device.pod("web").wait_ready();
    let limit = open_files(&device, "web", "1");
    // Without CAP_SYS_RESOURCE, the hard limit of the agent, which is that of this test, is the most.
    let (_, own) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).expect("it is known");
    let (most, bounded) = (1 << 20, own.min(1 << 20));
    assert!([format!("{most}:{most}"), format!("{bounded}:{bounded}")].contains(&limit), "{limit}");
    assert_eq!(open_files(&device, "web", "self"), limit);

    device.stop_agent();
    device.agent_arguments(["--default-ulimit=nofile=500:1000"]);
    device.start_agent();
    assert_eq!(open_files(&device, "web", "self"), limit, "a container that runs keeps its limit");
    device.write_manifest("own.yaml", &manifest::pod("own", "print up then sleep"));
    device.write_manifest("less.yaml", &annotated("less", "nofile=100:200"));
    device.write_manifest("more.yaml", &annotated("more", "nofile=1001"));
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
    let warned = device.nodlet_with_input(["apply", "-f", "-"], &annotated("warned", "nofile=9,nproc=5:5"));
    let said = warned.stderr.clone();
    assert!(said.contains("nodlet acts on nofile, and nproc has no effect"), "{said}");

    // With consent, up to what the kernel gives; beyond that, the container says why it does not start.
    device.stop_agent();
    let consent = "--allowed-annotations=io.podman.annotations.ulimit";
    device.agent_arguments(["--default-ulimit=nofile=500:1000", consent]);
    device.start_agent();
    device.write_manifest("most.yaml", &annotated("most", "nofile=1073741824"));
    device.pod("more").wait_ready();
    assert_eq!(open_files(&device, "more", "1"), "1001:1001");
    let most = device.pod("most");
    device.wait_for("the start to fail", || {
        most.container("app").message().contains("set the limit of open files")
    });
    let message = most.container("app").message();
    assert!(message.contains("CAP_SYS_RESOURCE and fs.nr_open of at least 1073741824"), "{message}");
}
