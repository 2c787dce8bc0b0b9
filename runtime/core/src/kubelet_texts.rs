//! The texts that clients and people know from Kubernetes' own kubelet, word for word: the whole text that an input
//! yields, as the sources of Kubernetes 1.36.3 print it. The file of Kubernetes that has the text is named beside it.
//!
//! Whole texts of admission are in the tests of `kube/src/kinds/limit_range.rs` and `kube/src/manifest/priority.rs`, of
//! claims and of combined events in those of `registry`, and of hooks and target containers in the container tests.

use serde_json::Value;

use crate::facts::*;
use crate::sim::*;
use crate::spec::container::ContainerPort;
use crate::spec::placement::Taint;
use crate::spec::*;

/// The pod `web` of this test.
fn web() -> Pod {
    pod(RestartPolicy::Always)
}

/// A pod that requests this much cpu, in thousandths.
fn asking(name: &str, cpu: i64) -> Pod {
    let mut app = container("app");
    app.resources.cpu_request = Some(Quantity::from_milli(i128::from(cpu)));
    pod(RestartPolicy::Always).uid(name).named(name).with([app])
}

/// A pod with this port of the host.
fn on_port(name: &str) -> Pod {
    let port = ContainerPort {
        name: None,
        container_port: 80,
        protocol: "TCP".into(),
        host_port: 8080,
        host_ip: String::new(),
    };
    let app = Container { ports: vec![port], ..container("app") };
    pod(RestartPolicy::Always).uid(name).named(name).with([app])
}

fn node(cpu: i64) -> NodeInfo {
    let allocatable = Amounts { cpu, ..NodeInfo::default().allocatable };
    NodeInfo { name: "board".into(), allocatable, ..NodeInfo::default() }
}

/// Condition `kind` of the pod `uid`: reason and message.
fn condition(sim: &Sim, uid: &str, kind: &str) -> [String; 2] {
    let status = sim.status(&uid.into());
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let found =
        conditions.into_iter().find(|condition| condition["type"] == kind).cloned().unwrap_or_default();
    ["reason", "message"].map(|field| found[field].as_str().unwrap_or_default().to_owned())
}

/// The status of the first container of the pod `u1`.
fn first(sim: &Sim) -> Value {
    sim.status(&"u1".into())["containerStatuses"][0].clone()
}

/// The events of the pods with this reason, each as `REASON: MESSAGE`, without repetitions.
fn events<'a>(sim: &'a Sim, reason: &str) -> Vec<&'a str> {
    let with_reason = |event: &&str| event.split_once(": ").is_some_and(|(of, _)| of == reason);
    let mut events: Vec<&str> = sim.events.iter().map(String::as_str).filter(with_reason).collect();
    events.dedup();
    events
}

#[test]
fn a_rejected_pod_has_the_texts_of_a_kubelet() {
    // pkg/kubelet/lifecycle/predicate.go, pkg/kubelet/sysctl/allowlist.go, plugins of pkg/scheduler
    let mut labelled = web();
    labelled.labels.insert("kubernetes.io/os".into(), "windows".into());
    let mut windows = web();
    windows.spec.placement.os = "windows".into();
    let mut unsafe_sysctl = web();
    unsafe_sysctl.spec.security_context.sysctls = vec![("kernel.msgmax".into(), "1".into())];
    let mut sysctl_of_host = web();
    sysctl_of_host.spec.host_network = true;
    sysctl_of_host.spec.security_context.sysctls =
        vec![("net.ipv4.ip_local_port_range".into(), "1024 2048".into())];
    let mut elsewhere = web();
    elsewhere.spec.placement.node_selector.insert("zone".into(), "a".into());
    let taint = Taint { key: "lab".into(), value: String::new(), effect: "NoExecute".into() };
    let tainted = NodeInfo { taints: vec![taint], ..node(1000) };
    for (info, pods, reason, message) in [
        (
            node(1000),
            vec![labelled],
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ),
        (
            node(1000),
            vec![windows],
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ),
        (
            node(1000),
            vec![unsafe_sysctl],
            "SysctlForbidden",
            "forbidden sysctl: \"kernel.msgmax\" not allowlisted",
        ),
        (
            node(1000),
            vec![sysctl_of_host],
            "SysctlForbidden",
            "forbidden sysctl: \"net.ipv4.ip_local_port_range\" not allowed with host Net enabled",
        ),
        (
            node(1000),
            vec![asking("first", 800), asking("late", 300)],
            "OutOfcpu",
            "Node didn't have enough resource: cpu, requested: 300, used: 800, capacity: 1000",
        ),
        (
            node(1000),
            vec![elsewhere],
            "NodeAffinity",
            // What follows the words of the kubelet is nodlet's.
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector: nodeSelector requires \
             zone=a, and the node has no such label",
        ),
        (
            node(1000),
            vec![on_port("first"), on_port("late")],
            "NodePorts",
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports: 8080/TCP is taken \
             by pod default/first",
        ),
        (
            tainted,
            vec![web()],
            "TaintToleration",
            "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
        ),
    ] {
        let mut sim = Sim::empty(|_, _| Fate::Runs).on(info);
        let mut last = None;
        for pod in pods {
            last = Some(sim.want(pod));
            sim.run_until(sim.now.since(at(0)) + secs(1));
        }
        let status = sim.status(&last.expect("a pod"));
        assert_eq!((&status["phase"], &status["reason"]), (&"Failed".into(), &reason.into()));
        // pkg/kubelet/kubelet.go
        assert_eq!(status["message"], format!("Pod was rejected: {message}"));
        assert_eq!(events(&sim, reason), [format!("{reason}: {message}")]);
    }
}

#[test]
fn a_pod_that_ends_with_the_node_has_the_texts_of_a_kubelet() {
    // pkg/kubelet/nodeshutdown/nodeshutdown_manager.go
    let mut sim = Sim::new(web(), |_, _| Fate::Runs);
    sim.run_until(secs(5));
    let groups = ShutdownGroup::of(secs(15), secs(5));
    sim.later(secs(0), Observation::Shutdown(Shutdown { scope: ShutdownScope::Machine, groups }));
    sim.run_until(secs(6));
    let late = sim.want(web().uid("late").named("late"));
    sim.run_until(secs(7));
    let expected = "Pod was terminated in response to imminent node shutdown.";
    assert_eq!(sim.status(&"u1".into())["message"], expected);
    let rejected = "Pod was rejected as the node is shutting down.";
    assert_eq!(sim.status(&late)["message"], format!("Pod was rejected: {rejected}"));
    assert_eq!(events(&sim, "NodeShutdown"), [format!("NodeShutdown: {rejected}")]);
}

#[test]
fn a_preempted_pod_has_the_texts_of_a_kubelet() {
    // pkg/kubelet/preemption/preemption.go
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(node(1000));
    sim.want(asking("victim", 600));
    sim.run_until(secs(5));
    let mut critical = asking("needed", 500);
    critical.priority = 2_000_001_000;
    critical.spec.priority_class_name = "system-node-critical".into();
    sim.want(critical);
    sim.run_until(secs(60));
    let message = "Preempted in order to admit critical pod";
    assert_eq!(sim.status(&"victim".into())["message"], message);
    assert_eq!(events(&sim, "Preempting"), [format!("Preempting: {message}")]);
    let expected = ["TerminationByKubelet", "Pod was preempted by Kubelet to accommodate a critical pod."];
    assert_eq!(condition(&sim, "victim", "DisruptionTarget"), expected);
}

#[test]
fn a_pod_without_sandbox_has_the_texts_of_a_kubelet() {
    // pkg/kubelet/kuberuntime/kuberuntime_manager.go
    let mut sim = Sim::new(web(), |_, _| Fate::Runs);
    sim.weather.failures = 100;
    sim.run_until(secs(5));
    let expected = ["FailedCreatePodSandBox: Failed to create pod sandbox: no such device"];
    assert_eq!(events(&sim, "FailedCreatePodSandBox"), expected);
    sim.weather.failures = 0;
    sim.run_until(secs(30));
    sim.lose_sandbox(&"u1".into());
    sim.run_until(secs(31));
    let expected = ["SandboxChanged: Pod sandbox changed, it will be killed and re-created."];
    assert_eq!(events(&sim, "SandboxChanged"), expected);
    // pkg/kubelet/kubelet_pods.go
    let expected =
        "The container could not be located when the pod was deleted.  The container used to be Running";
    assert_eq!(first(&sim)["lastState"]["terminated"]["message"], expected);
}

#[test]
fn a_crashing_container_has_the_texts_of_a_kubelet() {
    // pkg/kubelet/kuberuntime/kuberuntime_manager.go; pkg/kubelet/util/format/pod.go
    let mut sim = Sim::new(web(), |_, _| Fate::Exits(1, secs(1)));
    sim.run_until(secs(950));
    let waiting = &first(&sim)["state"]["waiting"];
    assert_eq!(waiting["reason"], "CrashLoopBackOff");
    assert_eq!(waiting["message"], "back-off 5m0s restarting failed container=app pod=web_default(u1)");
    let expected = ["BackOff: Back-off restarting failed container app in pod web_default(u1)"];
    assert_eq!(events(&sim, "BackOff"), expected);
}

#[test]
fn a_killed_container_has_the_texts_of_a_kubelet() {
    // pkg/kubelet/kuberuntime/kuberuntime_container.go, kuberuntime_manager.go; pkg/kubelet/kubelet.go
    let killed = |sim: &Sim| events(sim, "Killing").into_iter().map(str::to_owned).collect::<Vec<_>>();
    let mut sim = Sim::new(web().init([sidecar("proxy")]), |_, _| Fate::Runs);
    sim.run_until(secs(5));
    sim.update(&"u1".into(), |pod| {
        for container in pod.spec.containers.iter_mut().chain(&mut pod.spec.init_containers) {
            container.image = "app:2".into();
        }
    });
    sim.run_until(secs(40));
    assert_eq!(
        killed(&sim),
        [
            "Killing: Container app definition changed, will be restarted",
            "Killing: Init container proxy definition changed",
        ]
    );
    sim.unwant(&"u1".into(), None);
    sim.run_until(secs(80));
    assert_eq!(killed(&sim)[2..], ["Killing: Stopping container app", "Killing: Stopping container proxy"]);

    let mut sim = Sim::new(web(), |_, _| Fate::IgnoresTerm);
    sim.run_until(secs(5));
    sim.unwant(&"u1".into(), Some(secs(2)));
    sim.run_until(secs(6));
    sim.weather.failures = 100;
    sim.of(&"u1".into()).gone_by = None;
    sim.run_until(secs(100));
    assert_eq!(events(&sim, "FailedKillPod"), ["FailedKillPod: error killing pod: no"]);
}

#[test]
fn a_pod_that_exceeds_a_limit_has_the_texts_of_a_kubelet() {
    // pkg/kubelet/active_deadline.go
    let mut with_deadline = web();
    with_deadline.spec.active_deadline = Some(secs(3));
    let mut sim = Sim::new(with_deadline, |_, _| Fate::Runs);
    sim.run_until(secs(40));
    let message = "Pod was active on the node longer than the specified deadline";
    assert_eq!(sim.status(&"u1".into())["message"], message);
    assert_eq!(events(&sim, "DeadlineExceeded"), [format!("DeadlineExceeded: {message}")]);

    // pkg/kubelet/eviction/helpers.go
    for (used, volumes, message) in [
        (257, 0, "Container app exceeded its local ephemeral storage limit \"256Mi\". "),
        (250, 263, "Pod ephemeral local storage usage exceeds the total limit of containers 512Mi. "),
    ] {
        let limited = |name: &str| {
            let mut container = container(name);
            container.resources.ephemeral_storage_limit = Quantity::parse("256Mi").ok();
            container
        };
        let mut sim = Sim::new(web().with(["app", "other"].map(limited)), |_, _| Fate::Runs);
        sim.of(&"u1".into()).usage =
            StorageUsage { containers: vec![used << 20, 0], volumes: vec![volumes << 20] };
        sim.run_until(secs(300));
        assert_eq!(sim.status(&"u1".into())["message"], message);
        assert_eq!(events(&sim, "Evicted"), [format!("Evicted: {message}")]);
    }
}

#[test]
fn probes_and_hooks_have_the_texts_of_a_kubelet() {
    // pkg/kubelet/prober/prober.go, pkg/kubelet/kuberuntime/kuberuntime_manager.go
    let probed = || web().with([Container { liveness_probe: Some(exec_probe()), ..container("app") }]);
    let answered = |result: fn() -> ProbeResult| {
        let mut sim = Sim::new(probed(), |_, _| Fate::Runs).probes(move |_, _, _| result());
        sim.run_until(secs(105));
        sim
    };
    let warned = answered(|| ProbeResult::Warning("moved".into()));
    assert_eq!(events(&warned, "ProbeWarning"), ["ProbeWarning: Liveness probe warning: moved"]);
    let errored = answered(|| ProbeResult::Error("no memory".into()));
    let expected = ["Unhealthy: Liveness probe errored and resulted in success state: no memory"];
    assert_eq!(events(&errored, "Unhealthy"), expected);
    let failed = answered(|| ProbeResult::Failure("it is ill".into()));
    assert_eq!(events(&failed, "Unhealthy"), ["Unhealthy: Liveness probe failed: it is ill"]);
    let expected = ["Killing: Container app failed liveness probe, will be restarted"];
    assert_eq!(events(&failed, "Killing"), expected);

    // pkg/kubelet/kuberuntime/kuberuntime_container.go
    let asks = || Some(Hook::Asks(ProbeAction::Exec(vec!["true".into()])));
    let mut app = container("app");
    app.lifecycle.post_start = asks();
    let mut sim = Sim::new(web().with([app]), |_, _| Fate::Runs).hooks(|_, _, _| HookFate::Fails(secs(1)));
    sim.run_until(secs(5));
    assert_eq!(events(&sim, "FailedPostStartHook"), ["FailedPostStartHook: PostStartHook failed"]);
    assert_eq!(events(&sim, "Killing"), ["Killing: FailedPostStartHook"]);
    let mut app = container("app");
    app.lifecycle.pre_stop = asks();
    let mut sim = Sim::new(web().with([app]), |_, _| Fate::Runs).hooks(|_, _, _| HookFate::Fails(secs(1)));
    sim.run_until(secs(5));
    sim.unwant(&"u1".into(), None);
    sim.run_until(secs(40));
    assert_eq!(events(&sim, "FailedPreStopHook"), ["FailedPreStopHook: PreStopHook failed"]);
}

#[test]
fn readiness_gates_have_the_texts_of_a_kubelet() {
    // pkg/kubelet/status/generate.go
    let mut gated = web();
    gated.spec.readiness_gates = vec!["example.com/a".into(), "example.com/b".into()];
    let mut sim = Sim::new(gated, |_, _| Fate::Runs);
    sim.run_until(secs(5));
    assert_eq!(
        condition(&sim, "u1", "Ready"),
        [
            "ReadinessGatesNotReady",
            "corresponding condition of pod readiness gate \"example.com/a\" does not exist., \
             corresponding condition of pod readiness gate \"example.com/b\" does not exist."
        ]
    );
    let set = |kind: &str, status: &str| ClientCondition {
        kind: kind.into(),
        status: status.into(),
        ..ClientCondition::default()
    };
    sim.set_client_conditions(
        &"u1".into(),
        vec![set("example.com/a", "True"), set("example.com/b", "Unknown")],
    );
    sim.run_until(secs(6));
    assert_eq!(
        condition(&sim, "u1", "Ready"),
        [
            "ReadinessGatesNotReady",
            "the status of pod readiness gate \"example.com/b\" is not \"True\", but Unknown"
        ]
    );
}

#[test]
fn a_resize_has_the_texts_of_a_kubelet() {
    // pkg/kubelet/events/resize.go
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(node(1000));
    let uid = sim.want(asking("web", 300));
    sim.run_until(secs(5));
    sim.update(&uid, |pod| pod.spec.containers[0].resources.cpu_request = Some(Quantity::from_milli(800)));
    sim.run_until(secs(6));
    let resources = "{\"containers\":[{\"name\":\"app\",\"resources\":{\"requests\":{\"cpu\":\"800m\"}}}],\"generation\":2}";
    assert_eq!(events(&sim, "ResizeStarted"), [format!("ResizeStarted: Pod resize started: {resources}")]);
    assert_eq!(
        events(&sim, "ResizeCompleted"),
        [format!("ResizeCompleted: Pod resize completed: {resources}")]
    );
}

#[test]
fn a_resize_that_is_not_carried_out_has_the_texts_of_a_kubelet() {
    // pkg/kubelet/events/resize.go, pkg/kubelet/allocation/allocation_manager.go, pkg/kubelet/kubelet.go
    let summary = |cpu: &str, generation: u64, error: &str| {
        format!(
            "{{\"containers\":[{{\"name\":\"app\",\"resources\":{{\"requests\":{{\"cpu\":\"{cpu}\"}}}}}}],\
             \"generation\":{generation},\"error\":\"{error}\"}}"
        )
    };
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(node(1000));
    let uid = sim.want(asking("web", 300));
    sim.want(asking("other", 600));
    sim.run_until(secs(5));
    let amount = |milli: i128| {
        move |pod: &mut Pod| pod.spec.containers[0].resources.cpu_request = Some(Quantity::from_milli(milli))
    };
    sim.update(&uid, amount(800));
    sim.run_until(secs(6));
    let error = "Node didn't have enough resource: cpu, requested: 800, used: 600, capacity: 1000";
    let text = summary("800m", 2, error);
    assert_eq!(events(&sim, "ResizeDeferred"), [format!("ResizeDeferred: Pod resize Deferred: {text}")]);
    assert_eq!(condition(&sim, "web", "PodResizePending"), ["Deferred", error]);
    sim.update(&uid, amount(1001));
    sim.run_until(secs(7));
    let error = "Node didn't have enough capacity: cpu, requested: 1001, capacity: 1000";
    let text = summary("1001m", 3, error);
    assert_eq!(
        events(&sim, "ResizeInfeasible"),
        [format!("ResizeInfeasible: Pod resize Infeasible: {text}")]
    );
    assert_eq!(condition(&sim, "web", "PodResizePending"), ["Infeasible", error]);

    let mut sim = Sim::empty(|_, _| Fate::Runs).on(node(1000));
    let uid = sim.want(asking("web", 300));
    sim.run_until(secs(5));
    // The write to the cgroups fails.
    sim.weather.latency = secs(2);
    sim.update(&uid, amount(800));
    while !sim.log.contains("web resize 2") {
        sim.run_until(sim.now.since(at(0)) + std::time::Duration::from_millis(10));
    }
    let index = sim.node.index_of(&uid).expect("it is here");
    let failure = PodObservation::Resized { generation: 2, failure: Some("no".into()) };
    sim.node.observe(sim.now, Observation::Of(index, failure));
    sim.run_until(sim.now.since(at(0)) + secs(1));
    let text = summary("800m", 2, "no");
    assert_eq!(events(&sim, "ResizeError"), [format!("ResizeError: Pod resize error: {text}")]);
    assert_eq!(condition(&sim, "web", "PodResizeInProgress"), ["Error", "no"]);
}

#[test]
fn a_restart_of_all_containers_has_the_texts_of_a_kubelet() {
    // pkg/kubelet/status/generate.go, pkg/kubelet/kubelet_pods.go
    let rule = RestartRule { action: RestartAction::RestartAllContainers, within: true, codes: vec![42] };
    let restart = OwnRestart { policy: RestartPolicy::Never, rules: vec![rule] };
    let app = Container { restart: Some(std::rc::Rc::new(restart)), ..container("app") };
    let both = pod(RestartPolicy::Never).with([app, container("other")]);
    let mut sim = Sim::new(both, |name, number| match (name, number) {
        ("app", 0) => Fate::Exits(42, secs(5)),
        _ => Fate::IgnoresTerm,
    });
    sim.run_until(secs(6));
    let expected = ["RestartAllContainersStarted", "container exited with restart policy rule"];
    assert_eq!(condition(&sim, "u1", "AllContainersRestarting"), expected);
    sim.run_until(secs(100));
    let expected = "The container is removed because RestartAllContainers in place";
    assert_eq!(first(&sim)["lastState"]["terminated"]["message"], expected);
}
