//! The documents' examples of what a scheduler does in a cluster: priorities, requests, ports and gates.

use nodlet_tests::{Device, Kubectl, manifest};
use serde_json::json;

use super::{file, row};

/// A node with exactly one cpu for pods.
fn one_cpu() -> Device {
    let mut device = Device::new();
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let reserved = format!("--kube-reserved=cpu={}", cpus - 1);
    device.agent_arguments([&*reserved]);
    device.load_image(nodlet_tests::demo_archive());
    device.start_agent();
    device
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
    let apply = |name: &str, amount: &str, class: &str| {
        let app = manifest::container("app", "sleep", &cpu(amount));
        kubectl.apply(&manifest::pod_of(name, &[app], class)).ok();
    };
    apply("low", "700m", "");
    let low = device.pod("low").wait_ready();
    let born = low.born("app");
    for class in ["high-priority", "high-priority-nonpreempting"] {
        apply(class, "500m", &format!("priorityClassName: {class}"));
        let waits = device.pod(class).wait_phase("Failed");
        assert_eq!(waits.status()["reason"], "OutOfcpu");
        let spec = waits.object().expect("it is here")["spec"].clone();
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
    let of_pod: Vec<&str> = described
        .lines()
        .find(|line| line.split_whitespace().nth(1) == Some("myapp-pod"))
        .unwrap_or_else(|| panic!("it is listed in:\n{described}"))
        .split_whitespace()
        .collect();
    assert_eq!(of_pod[2..4], ["800m", "(80%)"], "{described}");
    // What the init containers do not use any more is not available to others.
    let app = manifest::container("app", "sleep", &cpu("300m"));
    kubectl.apply(&manifest::pod_of("other", &[app], "")).ok();
    let other = device.pod("other").wait_phase("Failed");
    let message =
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 300, used: 800, capacity: 1000";
    assert_eq!(other.status()["message"], message);

    let quota =
        "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: cpu}\nspec: {hard: {requests.cpu: 700m}}\n";
    kubectl.apply(quota).refused_with("no matches for kind \"ResourceQuota\" in version \"v1\"");
    let limits = "apiVersion: v1\nkind: LimitRange\nmetadata: {name: cpu}\nspec: {limits: [{type: Pod, min: {cpu: 700m}}]}\n";
    kubectl.apply(limits).ok();
    kubectl.run(["delete", "pod", "myapp-pod"]).ok();
    kubectl.apply(&myapp).ok();
    let app = manifest::container("app", "sleep", &cpu("300m"));
    let refused = kubectl.apply(&manifest::pod_of("small", &[app], ""));
    refused.refused_with("minimum cpu usage per Pod is 700m, but request is 300m");
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
        device.write_pod(name, &manifest::pod_behind(name, &init, &[app], "hostNetwork: true"));
        device.pod(name)
    });
    for pod in &pods {
        pod.wait_ready();
        assert_eq!(pod.condition("Initialized"), "True");
    }
    let described = kubectl.run(["describe", "pod", "second"]).ok();
    assert_eq!(described.matches("18089/TCP (setup)").count(), 4, "port and host port of two:\n{described}");
}

/// A pod waits without a node until its last gate is removed.
#[test]
fn a_pod_with_scheduling_gates_waits_until_they_are_removed() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let gates = "schedulingGates: [{name: example.com/foo}, {name: example.com/bar}]";
    let text = file(&device, "test-pod.yaml", &manifest::pod_with("test-pod", "sleep", gates));
    kubectl.run(["apply", "-f", &text]).ok();
    assert_eq!(row(&kubectl, &text), ["test-pod", "0/1", "SchedulingGated", "0"]);
    let gates_left = "jsonpath={.spec.schedulingGates}";
    let shown = kubectl.run(["get", "pod", "test-pod", "-o", gates_left]).ok();
    assert_eq!(shown, "[{\"name\":\"example.com/foo\"},{\"name\":\"example.com/bar\"}]");
    let test = device.pod("test-pod");
    let reason = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].reason}";
    assert_eq!(kubectl.run(["get", "pod", "test-pod", "-o", reason]).ok(), "SchedulingGated");
    assert_eq!((test.phase().as_str(), test.condition("PodScheduled").as_str()), ("Pending", "False"));
    file(&device, "test-pod.yaml", &manifest::pod("test-pod", "sleep"));
    assert_eq!(kubectl.run(["apply", "-f", &text]).ok(), "pod/test-pod configured\n");
    test.wait_ready();
    assert_eq!(kubectl.run(["get", "pod", "test-pod", "-o", gates_left]).ok(), "");
    assert_eq!(test.condition("PodScheduled"), "True");
}

/// A board has no scheduler that could spread pods, and its explanation says that.
#[test]
fn kubectl_explains_pod_spec_topology_spread_constraints() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let explained = kubectl.run(["explain", "Pod.spec.topologySpreadConstraints"]).ok();
    for part in [
        "KIND:       Pod\n",
        "FIELD: topologySpreadConstraints <[]TopologySpreadConstraint>\n",
        "nodlet schedules nothing",
        "  maxSkew\t<integer> -required-\n",
        "  topologyKey\t<string> -required-\n",
        "  whenUnsatisfiable\t<string> -required-\n",
        "  labelSelector\t<LabelSelector>\n",
    ] {
        assert!(explained.contains(part), "{part:?} is in:\n{explained}");
    }
}
