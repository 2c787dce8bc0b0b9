//! Admission by the node: which pods are accepted or rejected and why, and which are preempted for a critical
//! pod.

use nodlet_tests::{Device, Kubectl, TestPod, demo_archive, manifest};
use serde_json::Value;

fn asking(name: &str, steps: &str, cpu: &str, spec: &str) -> String {
    let app = manifest::container("app", steps, &format!("resources: {{requests: {{cpu: {cpu}}}}}"));
    manifest::pod_of(name, &[app], spec)
}

fn class(name: &str, rest: &str) -> String {
    format!("apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {{name: {name}}}\n{rest}\n")
}

const CRITICAL: &str = "priorityClassName: system-node-critical";

fn outcome(device: &Device, pod: &str) -> (String, String, String) {
    let status = device.pod(pod).status();
    let of = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
    (of("phase"), of("reason"), of("message"))
}

/// The [`outcome`] of a pod that the node rejects.
fn rejected(reason: &str, why: &str) -> (String, String, String) {
    ("Failed".into(), reason.into(), format!("Pod was rejected: {why}"))
}

/// A node with exactly one cpu for pods.
fn one_cpu() -> Device {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Device::start_with([&format!("--kube-reserved=cpu={}", cpus - 1), "--node-labels=zone=a,rank=7"])
}

fn node(device: &Device) -> Value {
    device.get("/api/v1/nodes").expect("nodes")["items"][0].clone()
}

#[test]
fn a_pod_that_does_not_fit_is_rejected_for_good_and_disturbs_nobody() {
    let mut device = one_cpu();
    assert_eq!(node(&device)["status"]["allocatable"]["cpu"], "1");
    assert_eq!(node(&device)["metadata"]["labels"]["zone"], "a");
    device.write_manifest("a.yaml", &asking("first", "sleep", "800m", ""));
    device.pod("first").wait_ready();
    device.write_manifest("b.yaml", &asking("large", "sleep", "300m", ""));
    device.write_manifest("c.yaml", &asking("elsewhere", "sleep", "100m", "nodeSelector: {zone: b}"));
    let affinity = |operator: &str, value: &str| {
        format!(
            "affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: \
             [{{matchExpressions: [{{key: rank, operator: {operator}, values: ['{value}']}}]}}]}}}}}}"
        )
    };
    device.write_manifest("d.yaml", &asking("matches", "sleep", "100m", &affinity("Gt", "6")));
    device.pod("matches").wait_ready();
    let message = "Node didn't have enough resource: cpu, requested: 300, used: 800, capacity: 1000";
    device.wait_for("the rejection", || outcome(&device, "large") == rejected("OutOfcpu", message));
    let why = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector: \
               nodeSelector requires zone=b, and the node has zone=a";
    device.wait_for("the other", || outcome(&device, "elsewhere") == rejected("NodeAffinity", why));
    let reported = device.pod("large").events();
    assert!(reported.iter().any(|event| event.contains("OutOfcpu")), "{reported:?}");
    let table = device.nodlet(["get", "pods"]).ok();
    assert!(table.lines().any(|line| line.starts_with("large ") && line.contains("OutOfcpu")), "{table}");
    device.nodlet(["describe", "node"]).ok_with("900m (90%)");

    // Neither a restart of the agent nor a reboot changes the decisions, even though there is space then.
    let born = device.pod("first").born("app");
    device.restart_agent();
    device.pod("first").wait_ready();
    assert_eq!(device.pod("first").born("app"), born, "it was not disturbed");
    device.wait_for("the same", || outcome(&device, "large").1 == "OutOfcpu");
    for name in ["first", "matches"] {
        let record = device.path(&format!("/var/lib/nodlet/records/{}.json", device.pod(name).uid()));
        device.wait_for("that it was taken to be on the card", || record.is_file());
    }
    device.cut_power();
    // A pod that is added during the power cut does not displace them, though its file name sorts before
    // theirs.
    device.write_manifest("0.yaml", &asking("early", "sleep", "500m", ""));
    device.start_agent();
    device.pod("first").wait_ready();
    device.pod("matches").wait_ready();
    device.wait_for("its rejection", || outcome(&device, "early").1 == "OutOfcpu");
    assert_eq!(outcome(&device, "large"), rejected("OutOfcpu", message));
}

#[test]
fn two_pods_of_the_host_do_not_have_one_port() {
    let device = Device::start();
    let web = |name: &str| {
        let app = manifest::container("app", "sleep", "ports: [{containerPort: 18080}]");
        manifest::pod_of(name, &[app], "hostNetwork: true")
    };
    device.write_pod("first", &web("first")).wait_ready();
    device.write_pod("second", &web("second"));
    let why = "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports: 18080/TCP is taken by pod default/first";
    device.wait_for("the rejection", || outcome(&device, "second") == rejected("NodePorts", why));
    assert!(device.pod("first").is_ready());
}

#[test]
fn only_pods_that_tolerate_a_taint_are_admitted() {
    let device = Device::start_with(["--register-with-taints=lab=x:NoExecute"]);
    assert_eq!(node(&device)["spec"]["taints"][0]["key"], "lab");
    device.write_pod("plain", &asking("plain", "sleep", "1m", ""));
    let tolerates = "tolerations: [{key: lab, operator: Exists}]";
    device.write_pod("bears", &asking("bears", "sleep", "1m", tolerates)).wait_ready();
    let why = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
    device.wait_for("the rejection", || outcome(&device, "plain") == rejected("TaintToleration", why));
    let described = device.nodlet(["describe", "node"]).ok();
    assert!(
        described.lines().any(|line| line.starts_with("Taints:") && line.ends_with("lab=x:NoExecute")),
        "{described}"
    );
}

#[test]
fn a_critical_pod_takes_the_room_of_another_when_that_has_ended_with_its_grace() {
    let mut device = one_cpu();
    let grace = "terminationGracePeriodSeconds: 3";
    device.write_manifest("a.yaml", &asking("victim", "ignore-term then sleep", "700m", grace));
    device.write_manifest("b.yaml", &asking("stays", "sleep", "200m", ""));
    for name in ["victim", "stays"] {
        device.pod(name).wait_ready();
    }
    device.write_manifest("c.yaml", &asking("needed", "sleep", "500m", CRITICAL));
    device.pod("needed").wait_ready();
    let (phase, reason, message) = outcome(&device, "victim");
    assert_eq!((phase.as_str(), reason.as_str()), ("Failed", "Preempting"));
    assert_eq!(message, "Preempted in order to admit critical pod");
    assert_eq!(device.pod("victim").condition("DisruptionTarget"), "True");
    assert_eq!(device.pod("victim").container("app").exit_code(), Some(137), "its grace is over");
    assert!(device.pod("stays").is_ready());
    assert_eq!(device.pod("needed").object().expect("it is here")["spec"]["priority"], 2_000_001_000);
    // Admitted pods stay admitted after a power cut, too.
    device.power_cycle();
    for name in ["needed", "stays"] {
        device.pod(name).wait_ready();
    }
    assert_eq!(outcome(&device, "victim").1, "Preempting");
}

#[test]
fn a_pod_waits_for_its_priority_class_and_keeps_what_it_was() {
    let mut device = Device::start();
    device.write_manifest("a.yaml", &asking("web", "sleep", "1m", "priorityClassName: high"));
    let why = "pods \"web\" is forbidden: no PriorityClass with name high was found";
    device.wait_for("the refusal", || device.nodlet(["get", "events"]).ok().contains(why));
    assert_eq!(device.pods(), Vec::<String>::new());
    device.write_manifest("y.yaml", &class("low", "value: 1"));
    device.wait_for("another class", || device.nodlet(["get", "pc", "low"]).code == 0);
    assert_eq!(device.agent_log().matches(why).count(), 1, "it is logged once");
    device.write_manifest("z.yaml", &class("high", "value: 1000\npreemptionPolicy: Never"));
    device.pod("web").wait_ready();
    let priority = |device: &Device| {
        let object = device.pod("web").object().expect("it is here");
        (object["spec"]["priority"].clone(), object["spec"]["preemptionPolicy"].clone())
    };
    assert_eq!(priority(&device), (1000.into(), "Never".into()));
    let described = device.nodlet(["describe", "pod", "web"]).ok();
    assert!(
        described.lines().any(|line| line.starts_with("Priority:") && line.ends_with(" 1000")),
        "{described}"
    );
    // Neither a change nor the removal of the class, a restart of the agent nor a reboot changes the pod's
    // priority.
    let born = device.pod("web").born("app");
    device.write_manifest("z.yaml", &class("high", "value: 5"));
    device.wait_for("the other class", || device.nodlet(["get", "pc"]).ok().contains(" 5 "));
    device.remove_manifest("z.yaml");
    device.restart_agent();
    device.pod("web").wait_ready();
    assert_eq!((priority(&device), device.pod("web").born("app")), ((1000.into(), "Never".into()), born));
    device.power_cycle();
    device.pod("web").wait_ready();
    assert_eq!(priority(&device), (1000.into(), "Never".into()));
    // An edit that names a missing class leaves the pod unchanged.
    let uid = device.pod("web").uid();
    device.write_manifest("a.yaml", &asking("web", "sleep", "2m", "priorityClassName: higher"));
    let why = "pods \"web\" is forbidden: no PriorityClass with name higher was found";
    device.wait_for("the refusal", || device.nodlet(["get", "events"]).ok().contains(why));
    let born = device.pod("web").born("app");
    let stays = |device: &Device| {
        assert_eq!(device.pod("web").uid(), uid);
        assert!(device.pod("web").is_ready());
        assert_eq!(device.pod("web").born("app"), born);
    };
    stays(&device);
    // A new agent that finds both the pod and the edited file also leaves the pod unchanged.
    device.restart_agent();
    device.wait_for("the refusal", || device.nodlet(["get", "events"]).ok().contains(why));
    stays(&device);
    device.run_pod("other", "sleep").wait_ready();
    stays(&device);
}

#[test]
fn kubectl_makes_changes_and_removes_priority_classes() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let apply = |rest: &str| kubectl.apply(&class("high", rest));
    for said in ["created", "unchanged"] {
        let applied = apply("value: 1000\nglobalDefault: true").ok();
        assert_eq!(applied.trim(), format!("priorityclass.scheduling.k8s.io/high {said}"));
    }
    let table = kubectl.run(["get", "priorityclasses"]).ok();
    assert!(table.lines().next().is_some_and(|line| line.contains("GLOBAL-DEFAULT")), "{table}");
    assert!(table.contains("system-node-critical") && table.contains("2000001000"), "{table}");
    let described = kubectl.run(["describe", "pc", "high"]).ok();
    assert!(described.contains("1000") && described.contains("PreemptLowerPriority"), "{described}");
    // Applying the default class again does not conflict with itself.
    let applied = apply("value: 1000\nglobalDefault: true\ndescription: usual").ok();
    assert_eq!(applied.trim(), "priorityclass.scheduling.k8s.io/high configured");
    apply("value: 1001\nglobalDefault: true")
        .refused_with("value: Forbidden: may not be changed in an update.");
    let other = kubectl.apply(&class("other", "value: 1\nglobalDefault: true"));
    other.refused_with("PriorityClass high is already marked as default. Only one default can exist");
    // A pod without a class gets the default class, and keeps it after the class is deleted.
    kubectl.apply(&manifest::pod("web", "sleep")).ok();
    device.pod("web").wait_ready();
    assert_eq!(
        kubectl.run(["get", "pod", "web", "-o", "jsonpath={.spec.priorityClassName} {.spec.priority}"]).ok(),
        "high 1000"
    );
    let ran = kubectl.run(["delete", "pc", "system-node-critical"]);
    ran.refused_with("this is a system priority class and cannot be deleted");
    let said = device.nodlet(["delete", "pc", "high"]).ok();
    assert_eq!(said.trim_end(), "priorityclass.scheduling.k8s.io \"high\" deleted", "as kubectl says it");
    // An update in place does not replace the pod.
    let uid = device.pod("web").uid();
    kubectl.run(["label", "pod", "web", "tier=front"]).ok();
    let web = device.pod("web").object().expect("it is here");
    assert_eq!(
        (web["metadata"]["uid"].as_str(), &web["spec"]["priority"]),
        (Some(uid.as_str()), &1000.into())
    );
    let mut wrong: Value = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "wrong"},
        "spec": {"priority": 7, "containers": [{"name": "app", "image": "demo"}]},
    });
    let (code, answer) = device.post("/api/v1/namespaces/default/pods", &wrong.to_string());
    assert_eq!(code, 403, "{answer}");
    assert_eq!(
        answer["message"],
        "pods \"wrong\" is forbidden: the integer value of priority (7) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name"
    );
    wrong["spec"]["priorityClassName"] = "none".into();
    let (_, answer) = device.post("/api/v1/namespaces/default/pods", &wrong.to_string());
    assert_eq!(answer["message"], "pods \"wrong\" is forbidden: no PriorityClass with name none was found");
    // The path of the request determines the kind.
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let bare = serde_json::json!({"metadata": {"name": "bare"}, "value": 3});
    let (code, answer) = device.post(classes, &bare.to_string());
    assert_eq!((code, &answer["kind"]), (201, &"PriorityClass".into()), "{answer}");
    let (code, answer) = device.request("PUT", &format!("{classes}/bare"), Some(&serde_json::json!({})));
    assert!(code == 422 || code == 400, "{code} {answer}");
    assert!(!answer["message"].to_string().contains("kind: Pod"), "{answer}");
}

#[test]
fn the_lower_of_two_global_default_classes_applies_until_it_is_removed() {
    let device = Device::start();
    device.write_manifest("high.yaml", &class("high", "value: 1000\nglobalDefault: true"));
    device.write_manifest("low.yaml", &class("low", "value: 5\nglobalDefault: true"));
    device.run_pod_with("one", "sleep", "priorityClassName: high");
    device.run_pod("two", "sleep");
    let (one, two) = (device.pod("one"), device.pod("two"));
    one.wait_ready();
    two.wait_ready();
    let priority = |pod: &TestPod| pod.object().map(|pod| pod["spec"]["priority"].clone());
    assert_eq!((priority(&one), priority(&two)), (Some(1000.into()), Some(5.into())));
    let reported = device.pod("high").events();
    let why = "globalDefault of PriorityClass high is ignored: low is the default, because its value is lower or its name comes first";
    assert!(reported.iter().any(|event| event.contains(why)), "{reported:?}");
    device.remove_manifest("low.yaml");
    device.run_pod("three", "sleep").wait_ready();
    assert_eq!(priority(&device.pod("three")), Some(1000.into()), "the other's turn");
    assert_eq!(priority(&two), Some(5.into()), "it is what it was");
}

#[test]
fn an_excessive_reservation_is_reported_and_pods_without_requests_run() {
    let mut device = Device::new();
    device.agent_arguments(["--kube-reserved=cpu=9000,memory=1Mi"]);
    device.load_image(demo_archive());
    device.start_agent();
    let log = device.agent_log();
    assert!(log.contains("Resource \"cpu\" has a reservation of 9000000m but capacity of "), "{log}");
    assert!(!log.contains("\"memory\""), "{log}");
    assert_eq!(node(&device)["status"]["allocatable"]["cpu"], "0");
    device.run_pod("modest", "sleep").wait_ready();
    device.write_manifest("b.yaml", &asking("asks", "sleep", "1m", ""));
    device.wait_for("the rejection", || outcome(&device, "asks").1 == "OutOfcpu");
}
