//! Tables of all admission predicates and preemption rules.

use super::super::preemption::choose;
use super::*;
use crate::facts::NodePort;
use crate::sim::{container, pod, sidecar};
use crate::spec::container::EXCLUSIVE_CPUS;
use crate::spec::placement::{NodeSelectorOperator, NodeSelectorRequirement, NodeSelectorTerm, Toleration};
use crate::spec::{Container, RestartPolicy};
use crate::spec::{Quantity, Taint};
use nodlet_fuzz::assert_starts_with;

fn node() -> NodeInfo {
    NodeInfo {
        name: "board".into(),
        labels: [("kubernetes.io/os", "linux"), ("zone", "a"), ("rank", "7")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        taints: Vec::new(),
        allocatable: Amounts { pods: 3, cpu: 2000, memory: 1000, ephemeral_storage: 500 },
        devices: [("can0".to_owned(), 1), ("gps".to_owned(), 1), ("led".to_owned(), 3)].into(),
        huge_pages: crate::sorted::SortedMap::new(),
        exclusive_cpus: crate::sorted::SortedMap::new(),
        allows_exclusive_cpus: false,
        allowed_sysctls: vec!["kernel.msg*".into()],
        app_armor: false,
        limited_swap: false,
        pressure: Vec::new(),
        node_ports: Vec::new(),
    }
}

/// A container with these requests: cpu in thousandths, memory and storage in bytes.
fn asks(name: &str, cpu: i64, memory: i64, storage: i64) -> Container {
    let mut container = container(name);
    let some =
        |amount: i64, unit: i128| (amount > 0).then(|| Quantity::from_milli(i128::from(amount) * unit));
    container.resources.cpu_request = some(cpu, 1);
    container.resources.memory_request = some(memory, 1000);
    container.resources.ephemeral_storage_request = some(storage, 1000);
    container
}

fn asking(cpu: i64, memory: i64, storage: i64) -> Pod {
    pod(RestartPolicy::Always).uid("new").with([asks("app", cpu, memory, storage)])
}

fn critical(pod: Pod) -> Pod {
    Pod { priority: 2_000_000_000, ..pod }
}

/// `reason: message`, `admitted`, or the preempted pods.
fn outcome_of(node: &NodeInfo, pod: &Pod, here: &[Pod]) -> String {
    let others: Vec<ExistingPod<'_>> =
        (1..).zip(here).map(|(index, other)| ExistingPod::new(PodIndex(index), other, false)).collect();
    show(admit(node, pod, &others))
}

fn show(outcome: Outcome) -> String {
    match outcome {
        Outcome::Admitted => "admitted".into(),
        Outcome::Preempts(victims) => {
            let victims: Vec<u32> = victims.iter().map(|victim| victim.0).collect();
            format!("preempts {victims:?}")
        }
        Outcome::Rejected { reason, message } => format!("{reason}: {message}"),
    }
}

#[test]
fn a_pod_that_does_not_fit_is_rejected_with_its_first_insufficient_resource() {
    let here = [asking(1800, 900, 0), asking(0, 0, 450)];
    for (pod, expected) in [
        (asking(0, 0, 0), "admitted"),
        // Exact to a thousandth and a byte.
        (asking(200, 100, 50), "admitted"),
        (
            asking(500, 0, 0),
            "OutOfcpu: Node didn't have enough resource: cpu, requested: 500, used: 1800, capacity: 2000",
        ),
        (
            asking(201, 101, 51),
            "OutOfcpu: Node didn't have enough resource: cpu, requested: 201, used: 1800, capacity: 2000",
        ),
        (
            asking(0, 101, 51),
            "OutOfmemory: Node didn't have enough resource: memory, requested: 101, used: 900, capacity: 1000",
        ),
        (
            asking(0, 0, 51),
            "OutOfephemeral-storage: Node didn't have enough resource: ephemeral-storage, requested: 51, used: 450, capacity: 500",
        ),
    ] {
        assert_eq!(outcome_of(&node(), &pod, &here), expected);
    }
    let full = [asking(0, 0, 0), asking(0, 0, 0), asking(2001, 0, 0)];
    let expected = "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3";
    assert_eq!(outcome_of(&node(), &asking(0, 0, 0), &full), expected);
    assert_eq!(outcome_of(&node(), &asking(1, 0, 0), &full), expected, "pods are looked at first");
    // A pod that does not request the exhausted resource is not affected.
    assert_eq!(outcome_of(&node(), &asking(0, 1, 0), &full[1..]), "admitted");
}

#[test]
fn the_request_of_a_pod_is_the_most_that_its_containers_use_at_once() {
    let asked = asking(100, 0, 0).init([
        asks("first", 900, 0, 0),
        Container { sidecar: true, ..asks("side", 300, 0, 0) },
        asks("second", 700, 0, 0),
    ]);
    // 300 of the sidecar and 700 of the init container after it.
    assert_eq!(Amounts::requested(&asked), Amounts { pods: 1, cpu: 1000, ..Amounts::default() });
    let mut none = container("app");
    none.resources.memory_limit = Some(Quantity::from_milli(1_000_000));
    let limited = pod(RestartPolicy::Always).with([none]);
    assert_eq!(Amounts::requested(&limited).memory, 0, "what is unsaid is nothing");
}

fn requirement(key: &str, operator: NodeSelectorOperator, values: &[&str]) -> NodeSelectorRequirement {
    let values = values.iter().map(|value| (*value).to_owned()).collect();
    NodeSelectorRequirement { key: key.into(), operator, values }
}

fn expressions(list: &[NodeSelectorRequirement]) -> NodeSelectorTerm {
    NodeSelectorTerm { match_expressions: list.to_vec(), match_fields: Vec::new() }
}

#[test]
fn a_pod_assigned_to_another_node_is_rejected() {
    use NodeSelectorOperator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
    const NO: &str = "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector: the node has \
         other labels or another name than nodeAffinity requires";
    let fields = |operator, name: &str| NodeSelectorTerm {
        match_expressions: Vec::new(),
        match_fields: vec![requirement("metadata.name", operator, &[name])],
    };
    let one = |key: &str, operator, values: &[&str]| vec![expressions(&[requirement(key, operator, values)])];
    for (terms, matches) in [
        (one("zone", In, &["b", "a"]), true),
        (one("zone", In, &["b"]), false),
        (one("other", In, &["a"]), false),
        (one("zone", NotIn, &["b"]), true),
        (one("zone", NotIn, &["a"]), false),
        (one("other", NotIn, &["a"]), true),
        (one("zone", Exists, &[]), true),
        (one("other", Exists, &[]), false),
        (one("zone", DoesNotExist, &[]), false),
        (one("other", DoesNotExist, &[]), true),
        (one("rank", Gt, &["6"]), true),
        (one("rank", Gt, &["7"]), false),
        (one("rank", Lt, &["8"]), true),
        (one("rank", Lt, &["7"]), false),
        (one("zone", Gt, &["1"]), false),
        (one("rank", Lt, &["x"]), false),
        (one("other", Lt, &["8"]), false),
        (vec![fields(In, "board")], true),
        (vec![fields(In, "other")], false),
        (vec![fields(NotIn, "board")], false),
        (vec![fields(NotIn, "other")], true),
        // All requirements of one term, or those of another term.
        (vec![expressions(&[requirement("zone", In, &["a"]), requirement("rank", In, &["8"])])], false),
        (vec![expressions(&[requirement("rank", In, &["8"])]), fields(In, "board")], true),
        // An empty term matches nothing, and neither does an empty list.
        (vec![NodeSelectorTerm::default()], false),
        (Vec::new(), false),
    ] {
        let mut pod = asking(0, 0, 0);
        pod.spec.placement.node_affinity = Some(terms.clone());
        assert_eq!(outcome_of(&node(), &pod, &[]), if matches { "admitted" } else { NO }, "{terms:?}");
    }
    for (key, value, lacks) in [
        ("zone", "a", None),
        ("zone", "b", Some("nodeSelector requires zone=b, and the node has zone=a")),
        ("other", "", Some("nodeSelector requires other=, and the node has no such label")),
    ] {
        let words = NO.rsplit_once(": ").expect("the kubelet's words, and what is lacking").0;
        let rejected = lacks.map(|lacks| format!("{words}: {lacks}"));
        let mut pod = asking(0, 0, 0);
        pod.spec.placement.node_selector.insert(key.into(), value.into());
        let expected = rejected.clone().unwrap_or("admitted".into());
        assert_eq!(outcome_of(&node(), &pod, &[]), expected, "{key}: {value}");
        // Both have to match.
        pod.spec.placement.node_affinity = Some(one("zone", In, &["b"]));
        assert_eq!(outcome_of(&node(), &pod, &[]), rejected.unwrap_or(NO.into()));
    }
}

#[test]
fn a_no_execute_taint_rejects_pods_without_its_toleration() {
    const NO: &str =
        "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
    let taint = |effect: &str| Taint { key: "lab".into(), value: "x".into(), effect: effect.into() };
    let toleration = |key: &str, exists, value: &str, effect: &str| Toleration {
        key: key.into(),
        exists,
        value: value.into(),
        effect: effect.into(),
    };
    for (toleration, expected) in [
        (toleration("lab", false, "x", "NoExecute"), "admitted"),
        (toleration("lab", false, "x", ""), "admitted"),
        (toleration("lab", true, "", ""), "admitted"),
        (toleration("", true, "", ""), "admitted"),
        (toleration("lab", false, "y", ""), NO),
        (toleration("lap", true, "", ""), NO),
        (toleration("lab", true, "", "NoSchedule"), NO),
    ] {
        let mut pod = asking(0, 0, 0);
        pod.spec.placement.tolerations = vec![toleration.clone()];
        let tainted = NodeInfo { taints: vec![taint("NoExecute")], ..node() };
        assert_eq!(outcome_of(&tainted, &pod, &[]), expected, "{toleration:?}");
    }
    // Taints that only keep a scheduler away do not matter for a pod that is on the node.
    let tainted = NodeInfo { taints: vec![taint("NoSchedule"), taint("PreferNoSchedule")], ..node() };
    assert_eq!(outcome_of(&tainted, &asking(0, 0, 0), &[]), "admitted");
    let tainted = NodeInfo { taints: vec![taint("NoSchedule"), taint("NoExecute")], ..node() };
    assert_eq!(outcome_of(&tainted, &asking(0, 0, 0), &[]), NO);
    assert_eq!(outcome_of(&tainted, &critical(asking(0, 0, 0)), &[]), NO, "critical or not");
}

fn on_port(ip: &str, port: u16, protocol: &str, mut container: Container) -> Container {
    container.ports.push(ContainerPort {
        name: None,
        container_port: port,
        protocol: protocol.into(),
        host_port: port,
        host_ip: ip.into(),
    });
    container
}

#[test]
fn a_pod_does_not_have_a_port_of_the_host_that_a_service_has() {
    const NO: &str = "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod \
                      ports: 30080/TCP is taken by service default/web";
    let taken = NodePort { port: 30080, protocol: "TCP".into(), service: "default/web".into() };
    let node = NodeInfo { node_ports: vec![taken], ..node() };
    for (ip, port, protocol, expected) in [
        ("", 30080, "TCP", NO),
        // A Service has the port at all addresses of the board.
        ("127.0.0.1", 30080, "TCP", NO),
        ("", 30080, "UDP", "admitted"),
        ("", 30081, "TCP", "admitted"),
    ] {
        let pod = asking(0, 0, 0).with([on_port(ip, port, protocol, container("app"))]);
        assert_eq!(outcome_of(&node, &pod, &[]), expected, "{ip} {port} {protocol}");
    }
}

#[test]
fn two_pods_do_not_have_one_port_of_the_host() {
    const NO: &str = "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod \
                      ports: 80/TCP is taken by pod default/web";
    let web = |ip: &str, port, protocol: &str| {
        asking(0, 0, 0).with([on_port(ip, port, protocol, container("app"))])
    };
    for (taken, asked, expected) in [
        (("", 80, "TCP"), ("", 80, "TCP"), NO),
        (("", 80, "TCP"), ("", 81, "TCP"), "admitted"),
        (("", 80, "TCP"), ("", 80, "UDP"), "admitted"),
        (("10.0.0.1", 80, "TCP"), ("10.0.0.1", 80, "TCP"), NO),
        (("10.0.0.1", 80, "TCP"), ("10.0.0.2", 80, "TCP"), "admitted"),
        (("10.0.0.1", 80, "TCP"), ("", 80, "TCP"), NO),
        (("0.0.0.0", 80, "TCP"), ("10.0.0.1", 80, "TCP"), NO),
        (("", 0, "TCP"), ("", 0, "TCP"), "admitted"),
    ] {
        let (taken, asked) = (web(taken.0, taken.1, taken.2), web(asked.0, asked.1, asked.2));
        assert_eq!(outcome_of(&node(), &asked, &[taken]), expected);
    }
    // A sidecar occupies its port as long as the pod runs, an init container does not.
    let with = |init: Container| asking(0, 0, 0).init([on_port("", 80, "TCP", init)]);
    assert_eq!(outcome_of(&node(), &with(sidecar("side")), &[web("", 80, "TCP")]), NO);
    assert_eq!(outcome_of(&node(), &with(container("init")), &[web("", 80, "TCP")]), "admitted");
}

#[test]
fn a_pod_for_another_os_is_rejected_before_any_preemption() {
    let mut labelled = critical(asking(9000, 0, 0));
    labelled.labels.insert("kubernetes.io/os".into(), "windows".into());
    let expected = "PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
    assert_eq!(outcome_of(&node(), &labelled, &[]), expected);
    let mut windows = critical(asking(9000, 0, 0));
    windows.spec.placement.os = "windows".into();
    let expected = "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS";
    assert_eq!(outcome_of(&node(), &windows, &[]), expected);
    let mut linux = asking(0, 0, 0);
    linux.spec.placement.os = "linux".into();
    linux.labels.insert("kubernetes.io/os".into(), "linux".into());
    assert_eq!(outcome_of(&node(), &linux, &[]), "admitted");
}

#[test]
fn a_kernel_parameter_that_the_node_does_not_allow_is_rejected() {
    let setting = |name: &str| {
        let mut pod = asking(0, 0, 0);
        pod.spec.security_context.sysctls = vec![(name.to_owned(), "1".to_owned())];
        outcome_of(&node(), &pod, &[])
    };
    assert_eq!(setting("net.ipv4.tcp_syncookies"), "admitted");
    assert_eq!(setting("kernel.msgmax"), "admitted");
    assert_eq!(setting("kernel.sem"), "SysctlForbidden: forbidden sysctl: \"kernel.sem\" not allowlisted");
}

#[test]
fn admission_checks_run_in_a_fixed_order_and_the_first_failure_is_reported() {
    let mut pod = asking(3000, 0, 0).with([on_port("", 80, "TCP", asks("app", 3000, 0, 0))]);
    pod.spec.placement.node_selector.insert("zone".into(), "b".into());
    let taken = asking(0, 0, 0).with([on_port("", 80, "TCP", container("app"))]);
    let tainted = NodeInfo {
        taints: vec![Taint { key: "a".into(), value: String::new(), effect: "NoExecute".into() }],
        ..node()
    };
    let first = |pod: &Pod| {
        outcome_of(&tainted, pod, std::slice::from_ref(&taken)).split(':').next().map(str::to_owned)
    };
    assert_eq!(first(&pod).as_deref(), Some("OutOfcpu"));
    // No pod is preempted for a critical pod that could not use the room.
    let mut pod = critical(pod);
    assert_eq!(first(&pod).as_deref(), Some("NodeAffinity"));
    pod.spec.placement.node_selector.clear();
    assert_eq!(first(&pod).as_deref(), Some("NodePorts"));
    pod.spec.containers[0].ports.clear();
    assert_eq!(first(&pod).as_deref(), Some("TaintToleration"));
}

/// A pod of class Guaranteed with these requests.
fn guaranteed(cpu: i64, memory: i64) -> Pod {
    let mut app = asks("app", cpu, memory, 0);
    app.resources.cpu_limit.clone_from(&app.resources.cpu_request);
    app.resources.memory_limit.clone_from(&app.resources.memory_request);
    pod(RestartPolicy::Always).with([app])
}

#[test]
fn a_critical_pod_preempts_as_few_as_possible_and_guaranteed_ones_last() {
    let burstable = |cpu, memory| asking(cpu, memory, 0);
    for (what, asked, here, expected) in [
        ("there is room", (500, 0), vec![burstable(1500, 0)], "admitted"),
        ("the only one", (500, 0), vec![burstable(1800, 0)], "preempts [1]"),
        (
            "a burstable one and no guaranteed one",
            (500, 0),
            vec![guaranteed(900, 100), burstable(900, 0)],
            "preempts [2]",
        ),
        (
            "a guaranteed one where burstable ones are not enough",
            (1500, 0),
            vec![guaranteed(1500, 100), burstable(400, 0)],
            "preempts [1]",
        ),
        (
            "both where one is not enough",
            (2000, 0),
            vec![guaranteed(1500, 100), burstable(400, 0)],
            "preempts [2, 1]",
        ),
        (
            "one that is large enough, and not two",
            (700, 0),
            vec![burstable(400, 0), burstable(400, 0), burstable(1100, 0)],
            "preempts [3]",
        ),
        // 300 are missing: the second pod frees enough, and so does the third one, with less memory.
        (
            "of two that are enough the one with less memory",
            (400, 0),
            vec![burstable(900, 0), burstable(500, 20), burstable(500, 10)],
            "preempts [1]",
        ),
        (
            "then the one with less cpu",
            (400, 0),
            vec![burstable(800, 10), burstable(700, 10), burstable(400, 20)],
            "preempts [2]",
        ),
        (
            "of two equal ones the later",
            (400, 0),
            vec![burstable(1000, 0), burstable(1000, 0)],
            "preempts [2]",
        ),
        (
            "each resource counts alike",
            (500, 500),
            vec![burstable(1000, 600), burstable(1000, 400)],
            "preempts [1]",
        ),
    ] {
        // The limit of pods is not exceeded.
        let node = NodeInfo { allocatable: Amounts { pods: 110, ..node().allocatable }, ..node() };
        let new = critical(asking(asked.0, asked.1, 0));
        assert_eq!(outcome_of(&node, &new, &here), expected, "{what}");
    }
    // The place of a pod is a resource too, which best-effort pods have.
    let here = [asking(0, 0, 0), asking(100, 0, 0), guaranteed(100, 100)];
    assert_eq!(outcome_of(&node(), &critical(asking(0, 0, 0)), &here), "preempts [1]");
}

#[test]
fn each_further_victim_is_chosen_by_the_amount_still_missing() {
    let here = [asking(500, 0, 0), asking(600, 0, 0), asking(900, 0, 0)];
    let node = NodeInfo { allocatable: Amounts { pods: 110, ..node().allocatable }, ..node() };
    // 1400 are missing: after 900, 500 are left, for which the first pod suffices.
    assert_eq!(outcome_of(&node, &critical(asking(1400, 0, 0)), &here), "preempts [3, 1]");
}

#[test]
fn the_victim_leaves_the_smallest_squared_share_of_missing_resources() {
    let choice = |here: &[(i64, i64)], need: (i64, i64)| {
        let pods: Vec<Pod> = here.iter().map(|(cpu, memory)| asking(*cpu, *memory, 0)).collect();
        let others: Vec<ExistingPod<'_>> =
            (1..).zip(&pods).map(|(index, pod)| ExistingPod::new(PodIndex(index), pod, false)).collect();
        let need = vec![(Resource::Cpu, need.0), (Resource::Memory, need.1)];
        let victims = choose(&critical(asking(1, 0, 0)), &others, need).expect("they are enough");
        victims.iter().map(|victim| victim.0).collect::<Vec<_>>()
    };
    // Half of both leaves less than all of one and a fifth of the other.
    assert_eq!(choice(&[(500, 250), (1000, 100), (500, 250)], (1000, 500)), [3, 1]);
    // 900 of 1000 thousandths are less than half of them and all ten bytes.
    assert_eq!(choice(&[(900, 0), (500, 10), (500, 0)], (1000, 10)), [2, 3]);
    // The last pod moves to the place of the chosen one, and of equal pods the later one is chosen.
    assert_eq!(choice(&[(900, 0), (500, 0), (500, 0), (500, 0)], (1400, 0)), [1, 3]);
}

#[test]
fn a_start_checks_only_the_resources_that_the_pod_requests() {
    let node = node();
    let fits = |pod: &Pod, others: &[Pod]| {
        fits(&node, pod, others.iter().chain([pod]).map(|pod| (pod, Amounts::requested(pod))))
    };
    // More cpu is in use than exists, since the node has changed.
    let others = [asking(2500, 500, 0)];
    assert!(fits(&asking(0, 500, 0), &others));
    assert!(!fits(&asking(0, 501, 0), &others));
    assert!(!fits(&asking(1, 0, 0), &others));
}

#[test]
fn only_critical_pods_preempt_and_only_pods_of_lower_priority() {
    let class = |priority: i32, pod: Pod| Pod { priority, ..pod };
    let here = [class(2_000_000_000, asking(1800, 0, 0))];
    let high = class(1_999_999_999, asking(500, 0, 0));
    let low = [class(0, asking(1800, 0, 0))];
    let expected =
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 500, used: 1800, capacity: 2000";
    assert_eq!(outcome_of(&node(), &high, &low), expected);
    let expected = "UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 300), ]";
    assert_eq!(outcome_of(&node(), &class(2_000_000_000, asking(500, 0, 0)), &here), expected);
    assert_eq!(outcome_of(&node(), &class(2_000_001_000, asking(500, 0, 0)), &here), "preempts [1]");
    let expected = "UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 100), (res: memory, q: 100), ]";
    assert_eq!(outcome_of(&node(), &class(2_000_001_000, asking(2100, 1100, 0)), &here), expected);
}

#[test]
fn a_terminating_pod_is_awaited_before_another_pod_is_preempted() {
    let (going, stays) = (asking(1000, 0, 0), asking(1000, 0, 0));
    let others = [ExistingPod::new(PodIndex(1), &going, true), ExistingPod::new(PodIndex(2), &stays, false)];
    assert_eq!(show(admit(&node(), &critical(asking(900, 0, 0)), &others)), "preempts []");
    assert_eq!(show(admit(&node(), &critical(asking(1500, 0, 0)), &others)), "preempts [2]");
    // A terminating pod counts until it is gone.
    let expected =
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 900, used: 2000, capacity: 2000";
    assert_eq!(show(admit(&node(), &asking(900, 0, 0), &others)), expected);
}

#[test]
fn the_choice_ends_with_what_is_missing_if_it_cannot_be_met() {
    let pods = [asking(100, 0, 0)];
    let others = [ExistingPod::new(PodIndex(1), &pods[0], false)];
    let need = vec![(Resource::Cpu, 300), (Resource::Memory, 5)];
    assert_eq!(
        choose(&critical(asking(1, 0, 0)), &others, need),
        Err("no set of running pods found to reclaim resources: [(res: cpu, q: 200), (res: memory, q: 5), ]"
            .into())
    );
}

#[test]
fn a_device_has_as_many_users_as_its_file_states() {
    let asking = |name: &str, devices: &[(&str, i64)]| {
        let mut app = container("app");
        app.resources.devices = devices.iter().map(|(name, amount)| ((*name).into(), *amount)).collect();
        pod(RestartPolicy::Always).uid(name).with([app])
    };
    let gps = "OutOfnodlet.dev/gps: Node didn't have enough resource: nodlet.dev/gps, requested: 1, used: 1, capacity: 1";
    let here = [asking("a", &[("gps", 1)]), asking("b", &[("led", 2)])];
    for (asked, expected) in [
        (asking("new", &[("can0", 1), ("led", 1)]), "admitted"),
        (asking("new", &[("gps", 1)]), gps),
        // Pods that use a device are not preempted.
        (critical(asking("new", &[("gps", 1)])), gps),
        (
            asking("new", &[("led", 2)]),
            "OutOfnodlet.dev/led: Node didn't have enough resource: nodlet.dev/led, requested: 2, used: 2, capacity: 3",
        ),
        (
            asking("new", &[("sonar", 1)]),
            "OutOfnodlet.dev/sonar: Node didn't have enough resource: nodlet.dev/sonar, requested: 1, used: 0, capacity: 0",
        ),
    ] {
        assert_eq!(outcome_of(&node(), &asked, &here), expected);
        assert_eq!(
            fits(&node(), &asked, here.iter().chain([&asked]).map(|pod| (pod, Amounts::requested(pod)))),
            expected == "admitted",
            "{expected}"
        );
    }
    // An init container and the containers after it use the device one after the other.
    let mut both = asking("new", &[("gps", 1)]);
    both.spec.init_containers = both.spec.containers.clone();
    assert_eq!(outcome_of(&node(), &both, &[]), "admitted");
    both.spec.containers.extend(both.spec.containers.clone());
    assert!(outcome_of(&node(), &both, &[]).ends_with("requested: 2, used: 0, capacity: 1"));
}

#[test]
fn exclusive_cpus_are_as_many_as_the_node_can_keep_others_off() {
    let asking = |name: &str, count: i64| {
        let mut app = container("app");
        app.resources.exclusive_cpus = vec![(EXCLUSIVE_CPUS.into(), count)];
        pod(RestartPolicy::Always).uid(name).with([app])
    };
    let able = NodeInfo {
        exclusive_cpus: [(EXCLUSIVE_CPUS.to_owned(), 3)].into(),
        allows_exclusive_cpus: true,
        ..node()
    };
    let here = [asking("a", 2)];
    assert_eq!(outcome_of(&able, &asking("b", 1), &here), "admitted");
    let lacks = "OutOfexclusive-cpus: Node didn't have enough resource: exclusive-cpus, requested: 2, used: 2, capacity: 3";
    assert_eq!(outcome_of(&able, &asking("b", 2), &here), lacks);
    assert_eq!(outcome_of(&able, &critical(asking("b", 2)), &here), lacks);
    // Init containers have them before the others.
    let mut both = asking("b", 3);
    both.spec.init_containers = both.spec.containers.clone();
    assert_eq!(outcome_of(&able, &both, &[]), "admitted");
    let unable = NodeInfo { allows_exclusive_cpus: true, ..node() };
    let unable = outcome_of(&unable, &asking("b", 1), &[]);
    assert_starts_with(&unable, "UnexpectedAdmissionError: Allocate failed due to exclusive-cpus.nodlet.dev");
    assert!(unable.contains("CONFIG_CPUSETS"), "{unable}");
    // Without the consent of the operator, a pod waits, and takes none from others.
    let not_allowing = NodeInfo { allows_exclusive_cpus: false, ..able };
    for node in [not_allowing, node()] {
        assert_eq!(outcome_of(&node, &asking("b", 4), &[asking("a", 9)]), "admitted");
    }
}

#[test]
fn huge_pages_of_a_size_are_as_many_as_the_node_has() {
    let asking = |size: &str, bytes: i64| {
        let mut app = container("app");
        app.resources.huge_pages = vec![(size.into(), bytes)];
        pod(RestartPolicy::Always).uid(size).with([app])
    };
    let node = NodeInfo { huge_pages: [("2Mi".to_owned(), 8 << 20)].into(), ..node() };
    let here = [asking("2Mi", 4 << 20)];
    assert_eq!(outcome_of(&node, &asking("2Mi", 4 << 20), &here), "admitted");
    let expected = "OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 6291456, used: 4194304, capacity: 8388608";
    assert_eq!(outcome_of(&node, &asking("2Mi", 6 << 20), &here), expected);
    let expected = "OutOfhugepages-1Gi: Node didn't have enough resource: hugepages-1Gi, requested: 1073741824, used: 0, capacity: 0";
    assert_eq!(outcome_of(&node, &asking("1Gi", 1 << 30), &here), expected);
    // Those of the pod as a whole count in place of those of its containers.
    let mut whole = asking("2Mi", 2 << 20);
    whole.spec.resources =
        Some(std::rc::Rc::new(asking("2Mi", 6 << 20).spec.containers[0].resources.clone()));
    assert!(outcome_of(&node, &whole, &here).starts_with("OutOfhugepages-2Mi"));
}

#[test]
fn a_pod_that_names_an_apparmor_profile_needs_a_kernel_with_apparmor() {
    use crate::spec::container::AppArmorProfile::{self, Localhost, RuntimeDefault, Unconfined};
    const REJECTED: &str = "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host";
    let asks = |of_pod: Option<AppArmorProfile>, own: Option<AppArmorProfile>| {
        let mut container = container("init");
        container.security_context.app_armor = own;
        let mut pod = asking(1, 1, 1);
        pod.spec.init_containers.push(container);
        pod.spec.security_context.app_armor = of_pod;
        pod
    };
    for (of_pod, own, expected) in [
        (None, None, "admitted"),
        (Some(Unconfined), Some(Unconfined), "admitted"),
        (Some(RuntimeDefault), None, REJECTED),
        // As in a kubelet, even if every container has another profile.
        (Some(RuntimeDefault), Some(Unconfined), REJECTED),
        (None, Some(RuntimeDefault), REJECTED),
        (Some(Unconfined), Some(Localhost("strict".into())), REJECTED),
    ] {
        let pod = asks(of_pod, own);
        assert_eq!(outcome_of(&node(), &pod, &[]), expected, "{pod:?}");
        let enabled = NodeInfo { app_armor: true, ..node() };
        assert_eq!(outcome_of(&enabled, &pod, &[]), "admitted", "{pod:?}");
    }
}
