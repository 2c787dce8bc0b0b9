//! The worked examples of the documents that nodlet implements: the same manifests and commands, and what
//! each of them shows. If an example needs a cluster, the test covers the behaviour of its pod, and its
//! comment says what replaces the rest.
//!
//! Examples that are tested elsewhere:
//!
//! * the steps of a pod's end (deletion, `Terminating`, preStop, SIGTERM, two more seconds, SIGKILL, a
//!   terminal phase before the object disappears): `hooks.rs`, `the_end_of_a_pod_step_by_step`;
//! * forced deletion: `hooks.rs`, `a_forced_deletion_takes_the_object_away_and_leaves_what_runs_its_grace`;
//! * the ephemeral container `debugger`, as it was added in 2019 and as it is today: `debug.rs`,
//!   `the_example_of_the_documents`;
//! * `X-Custom-Header: Awesome` on the wire: `probes.rs`, `headers_and_the_agent_name_are_sent_as_written`;
//! * the five steps of PodPresets, and the annotation that excludes a pod: `presets.rs`;
//! * liveness probes over HTTP: `tasks.rs`, `probes_over_http_and_tcp`;
//! * readiness gates, and scheduling gates that are removed: `status.rs`;
//! * the sidecars of the Deployment and of the Job: `tasks/pods.rs`, `containers_of_a_pod_work_together`; sidecars that
//!   end last and in reverse order: `init.rs`;
//! * the explanation of `topologySpreadConstraints`: `kubectl.rs`, `kubectl_explains_what_nodlet_acts_on_or_warns_about`;
//! * scripts that end by SIGTERM, or not: `down.rs`;
//! * a Service that a pod finds by its DNS name: `services.rs`, and in a cluster `cluster_network.rs`,
//!   `a_service_is_reached_by_its_address_and_by_its_name_through_kube_proxy_and_coredns`.
//!
//! A pod on a single node cannot test: Deployments and Jobs that replace pods, and lost nodes.

use nodlet_tests::{Device, Kubectl, built_image, manifest};
use serde_json::json;

/// NAME, READY, STATUS and RESTARTS in the single row that `get -f` prints below its headings.
fn row(kubectl: &Kubectl, file: &str) -> Vec<String> {
    let table = kubectl.run(["get", "-f", file]).ok();
    let mut lines = table.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("NAME ")), "{table}");
    lines.next().unwrap_or_default().split_whitespace().take(4).map(str::to_owned).collect()
}

/// Init containers that wait for two Services. A step that resolves names as `nslookup` does replaces it.
#[test]
fn myapp_pod_waits_for_its_two_services() {
    // The image of `sh` and `python3` replaces the example's busybox.
    let mut device = Device::new();
    // The machine's own firewall stays unchanged.
    device.own_network();
    device.start_agent();
    device.load_image(&built_image("python3.oci.tar"));
    let kubectl = Kubectl::new(&device);
    let until = |service: &str| {
        format!(
            "    command: ['sh', '-c', 'until python3 -c \"import socket; socket.gethostbyname(\\\"{service}\\\")\" 2> /dev/null; \
             do echo waiting for {service}; sleep 2; done;']\n"
        )
    };
    let text = format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: myapp-pod
  labels:
    app: myapp
spec:
  containers:
  - name: myapp-container
    image: localhost/python3:1
    command: ['sh', '-c', 'echo The app is running! && sleep 3600']
  initContainers:
  - name: init-myservice
    image: localhost/python3:1
{}  - name: init-mydb
    image: localhost/python3:1
{}",
        until("myservice"),
        until("mydb")
    );
    let myapp = device.file("/myapp.yaml", &text);
    assert_eq!(kubectl.run(["apply", "-f", &myapp]).ok(), "pod/myapp-pod created\n");
    let pod = device.pod("myapp-pod").wait_log("init-myservice", "waiting for myservice");
    assert_eq!(row(&kubectl, &myapp), ["myapp-pod", "0/1", "Init:0/2", "0"]);

    let described = kubectl.run(["describe", "-f", &myapp]).ok();
    // The lines that the example shows, in its order; the example omits others, and so does this test.
    let mut lines = described.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    for reported in [
        "Name: myapp-pod",
        "Namespace: default",
        "Labels: app=myapp",
        "Status: Pending",
        "Init Containers:",
        "init-myservice:",
        "State: Running",
        "init-mydb:",
        "State: Waiting",
        "Reason: PodInitializing",
        "Ready: False",
        "Containers:",
        "myapp-container:",
        "State: Waiting",
        "Reason: PodInitializing",
        "Ready: False",
        "Events:",
    ] {
        assert!(lines.any(|line| line == reported), "{reported:?} comes next in:\n{described}");
    }
    assert!(lines.any(|line| line.starts_with("Normal Started ")), "{described}");
    // The first init container has printed something, and the second has not started.
    assert!(
        kubectl.run(["logs", "myapp-pod", "-c", "init-myservice"]).ok().contains("waiting for myservice\n")
    );
    kubectl
        .run(["logs", "myapp-pod", "-c", "init-mydb"])
        .refused_with("container \"init-mydb\" in pod \"myapp-pod\" is waiting to start: PodInitializing");

    // One Service exists, so the other one is waited for.
    let service = |name: &str, port: u16| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  ports:\n  - protocol: TCP\n    port: 80\n    \
             targetPort: {port}\n"
        )
    };
    assert_eq!(kubectl.apply(&service("myservice", 9376)).ok(), "service/myservice created\n");
    pod.wait_log("init-mydb", "waiting for mydb");
    assert_eq!(row(&kubectl, &myapp), ["myapp-pod", "0/1", "Init:1/2", "0"]);
    let both = format!("{}---\n{}", service("myservice", 9376), service("mydb", 9377));
    let services = device.file("/services.yaml", &both);
    let applied = kubectl.run(["apply", "-f", &services]).ok();
    assert_eq!(applied, "service/myservice unchanged\nservice/mydb created\n");
    pod.wait_ready();
    assert_eq!(row(&kubectl, &myapp), ["myapp-pod", "1/1", "Running", "0"]);
    pod.wait_log("myapp-container", "The app is running!");

    // The syntax of Kubernetes 1.5, init containers in an annotation, has had no effect since 1.8.
    let old = "apiVersion: v1
kind: Pod
metadata:
  name: myapp-old
  annotations:
    pod.beta.kubernetes.io/init-containers: '[{\"name\": \"never\", \"image\": \"busybox:1.28\", \"command\": [\"false\"]}]'
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: myapp-container
    image: localhost/python3:1
    command: ['sh', '-c', 'echo The app is running! && sleep 3600']
";
    kubectl.apply(old).ok();
    device.pod("myapp-old").wait_log("myapp-container", "The app is running!");
    assert!(device.pod("myapp-old").status()["initContainerStatuses"].is_null());
}

const POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];

/// A pod with this policy whose containers, by name and steps, have a directory `/work` in which a file is made.
fn write(device: &Device, name: &str, policy: &str, containers: &[(&str, &str)], more: &str) {
    let more = format!("volumeMounts: [{{name: work, mountPath: /work}}]\n{more}");
    let all: Vec<_> =
        containers.iter().map(|(name, steps)| manifest::container(name, steps, &more)).collect();
    let spec = format!("restartPolicy: {policy}\nvolumes: [{{name: work, emptyDir: {{}}}}]");
    device.run_pod_of(name, &all, &spec);
}

/// "Pod is running and has one container": the states of both, by exit code and policy.
#[test]
fn the_states_of_a_pod_with_one_container() {
    let device = Device::start();
    let cases = [
        ("exits-0-always", 0, "Always", true, "Running"),
        ("exits-0-onfailure", 0, "OnFailure", false, "Succeeded"),
        ("exits-0-never", 0, "Never", false, "Succeeded"),
        ("exits-1-always", 1, "Always", true, "Running"),
        ("exits-1-onfailure", 1, "OnFailure", true, "Running"),
        ("exits-1-never", 1, "Never", false, "Failed"),
    ];
    for (name, code, policy, ..) in cases {
        // Only the first run ends.
        write(
            &device,
            name,
            policy,
            &[("app", &format!("wait /work/go then rm /work/go then exit {code}"))],
            "",
        );
    }
    for (name, code, _, restarted, phase) in cases {
        let pod = device.pod(name);
        device.wait_for("it to run", || pod.container("app").is_running());
        assert_eq!(pod.phase(), "Running");
        pod.tell("app", "/work/go");
        let reason = if code == 0 { "Completed" } else { "Error" };
        let reported = if restarted {
            pod.wait_run("app", 1);
            ["exitCode", "reason"].map(|field| pod.container("app").of_last(field))
        } else {
            pod.wait_phase(phase);
            assert_eq!(pod.container("app").restart_count(), 0);
            ["exitCode", "reason"].map(|field| pod.container("app").of_state(field))
        };
        assert_eq!((pod.phase().as_str(), reported), (phase, [json!(code), json!(reason)]), "{name}");
    }
    let table = device.nodlet(["get", "pod", "exits-1-never", "--no-headers"]).ok();
    assert!(table.contains("Error"), "{table}");
}

/// "Pod is running and has two containers": the first one fails; then, while it is not running, the second
/// one ends.
#[test]
fn the_states_of_a_pod_with_two_containers() {
    let device = Device::start();
    let names = ["two-always", "two-onfailure", "two-never"];
    let ends = ["first", "second"].map(|name| format!("wait /work/{name} then rm /work/{name} then exit 1"));
    for (name, policy) in names.into_iter().zip(POLICIES) {
        write(&device, name, policy, &[("first", &ends[0]), ("second", &ends[1])], "");
    }
    for (name, never) in names.into_iter().zip([false, false, true]) {
        let pod = device.pod(name);
        device.wait_for("both to run", || {
            ["first", "second"].iter().all(|name| pod.container(name).is_running())
        });
        let second = pod.container("second").id();
        pod.tell("first", "/work/first");
        if never {
            device.wait_for("its end", || pod.container("first").exit_code() == Some(1));
        } else {
            pod.wait_run("first", 1);
        }
        assert_eq!(pod.phase(), "Running", "{name}: the second goes on");
        assert_eq!(pod.container("second").id(), second, "{name}");

        // The first one fails again: if the policy allows restarts, it now waits for its back-off.
        if never {
            pod.tell("second", "/work/second");
            pod.wait_phase("Failed");
            assert_eq!(pod.container("second").exit_code(), Some(1));
        } else {
            pod.tell("first", "/work/first");
            pod.wait_reason("first", "CrashLoopBackOff");
            pod.tell("second", "/work/second");
            pod.wait_run("second", 1);
            assert_eq!(pod.phase(), "Running", "{name}");
        }
    }
}

/// "Container runs out of memory": killed, reported as such, and restarted by the policy.
#[test]
fn the_states_of_a_pod_whose_container_runs_out_of_memory() {
    let device = Device::start();
    let names = ["hog-always", "hog-onfailure", "hog-never"];
    for (name, policy) in names.into_iter().zip(POLICIES) {
        // Only the first run uses too much memory.
        let limit = "resources: {limits: {memory: 32Mi}}";
        write(&device, name, policy, &[("app", "hog-once /work/again 200 then sleep")], limit);
    }
    for name in names {
        let pod = device.pod(name);
        let reported = if name == "hog-never" {
            pod.wait_phase("Failed");
            ["exitCode", "reason"].map(|field| pod.container("app").of_state(field))
        } else {
            pod.wait_run("app", 1);
            assert_eq!(pod.phase(), "Running", "{name}");
            ["exitCode", "reason"].map(|field| pod.container("app").of_last(field))
        };
        assert_eq!(reported, [json!(137), json!("OOMKilled")], "{name}");
    }
}

/// A node with exactly one cpu for pods.
fn one_cpu() -> Device {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Device::start_with([&format!("--kube-reserved=cpu={}", cpus - 1)])
}

/// `requests.cpu` of a container.
fn cpu(amount: &str) -> String {
    format!("resources: {{requests: {{cpu: {amount}}}}}")
}

/// The class of the example that preempts nothing, and the pod of the example with the class that may. On a board, as
/// under a kubelet, only critical pods preempt: for all others, preemption is switched off, as by the example's
/// `disablePreemption`.
#[test]
fn pods_of_high_priority_with_preemption_switched_off_end_no_other_and_may_be_ended() {
    let device = one_cpu();
    let kubectl = Kubectl::new(&device);
    for (name, policy) in
        [("high-priority", ""), ("high-priority-nonpreempting", "preemptionPolicy: Never\n")]
    {
        let class = format!(
            "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata:\n  name: {name}\nvalue: 1000000\n{policy}\
             globalDefault: false\ndescription: \"This priority class does not cause other pods to be preempted.\"\n"
        );
        kubectl.apply(&class).ok();
    }
    let apply = |name, amount, class: &str| {
        kubectl.apply(&manifest::single(name, "sleep", &cpu(amount), class)).ok();
    };
    apply("low", "700m", "");
    let low = device.pod("low").wait_ready();
    let born = low.born("app");
    for class in ["high-priority", "high-priority-nonpreempting"] {
        apply(class, "500m", &format!("priorityClassName: {class}"));
        let waits = device.pod(class).wait_phase("Failed");
        assert_eq!(waits.status()["reason"], "OutOfcpu");
        let spec = waits.get("/spec");
        let policy = if class == "high-priority" { "PreemptLowerPriority" } else { "Never" };
        assert_eq!((&spec["priority"], &spec["preemptionPolicy"]), (&json!(1_000_000), &json!(policy)));
        assert_eq!((low.born("app"), low.is_ready()), (born.clone(), true), "{class}");
    }
    // What preempts nothing is preempted as all others.
    apply("shy", "300m", "priorityClassName: high-priority-nonpreempting");
    let shy = device.pod("shy").wait_ready();
    apply("critical", "900m", "priorityClassName: system-node-critical");
    device.pod("critical").wait_ready();
    for victim in [&shy, &low] {
        assert_eq!(victim.status()["reason"], "Preempting");
    }
}

/// Init containers run one after another, so that the largest of them counts, if it asks for more than all containers of
/// the application together. A board has no quotas, and says so; a LimitRange bounds the same sums.
#[test]
fn the_effective_request_of_a_pod_is_that_of_its_largest_init_container() {
    let device = one_cpu();
    let kubectl = Kubectl::new(&device);
    let init = ["500m", "800m"].map(|amount| {
        manifest::container(&format!("init-{amount}"), &format!("print {amount}"), &cpu(amount))
    });
    let apps = ["first", "second"].map(|name| manifest::container(name, "sleep", &cpu("200m")));
    let myapp = manifest::pod_behind("myapp-pod", &init, &apps, "");
    kubectl.apply(&myapp).ok();
    device.pod("myapp-pod").wait_ready();
    let described = kubectl.run(["describe", "nodes"]).ok();
    let mut lines = described.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_pod = lines.find(|words| words.get(1) == Some(&"myapp-pod"));
    assert_eq!(of_pod.expect("it is listed")[2..4], ["800m", "(80%)"], "{described}");
    // What the init containers do not use any more is not available to others.
    kubectl.apply(&manifest::single("other", "sleep", &cpu("300m"), "")).ok();
    let other = device.pod("other").wait_phase("Failed");
    let message =
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 300, used: 800, capacity: 1000";
    assert_eq!(other.status()["message"], message);

    let of_cpu = "metadata: {name: cpu}\nspec";
    kubectl
        .apply(&format!("apiVersion: v1\nkind: ResourceQuota\n{of_cpu}: {{hard: {{requests.cpu: 700m}}}}\n"))
        .refused_with("no matches for kind \"ResourceQuota\" in version \"v1\"");
    let limits = "{limits: [{type: Pod, min: {cpu: 700m}}]}";
    kubectl.apply(&format!("apiVersion: v1\nkind: LimitRange\n{of_cpu}: {limits}\n")).ok();
    kubectl.run(["delete", "pod", "myapp-pod"]).ok();
    kubectl.apply(&myapp).ok();
    kubectl
        .apply(&manifest::single("small", "sleep", &cpu("300m"), ""))
        .refused_with("minimum cpu usage per Pod is 700m, but request is 300m");
}

/// The ports of an init container are no ports of its pod: no Service has them, and here no other pod lacks them.
#[test]
fn ports_of_init_containers_are_shown_and_reserve_nothing() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let ports = "ports: [{name: setup, containerPort: 18089}]";
    let pods = ["first", "second"].map(|name| {
        let init = ["init-myservice", "init-mydb"].map(|name| manifest::container(name, "print done", ports));
        let app = manifest::container("myapp-container", "sleep", "");
        device.write_pod(name, &manifest::pod_behind(name, &init, &[app], "hostNetwork: true"))
    });
    for pod in &pods {
        pod.wait_ready();
        assert_eq!(pod.condition("Initialized"), "True");
    }
    let described = kubectl.run(["describe", "pod", "second"]).ok();
    assert_eq!(described.matches("18089/TCP (setup)").count(), 4, "port and host port of two:\n{described}");
}
