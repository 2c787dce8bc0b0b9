use nodlet_fuzz::Random;
use serde_json::{Value, json};

use super::{EarlierPorts, conflict, is_in, overlapping};

use crate::manifest::{Validation, read_new};

/// The warnings of a new pod with these fields beside its one container.
fn warnings(name: &str, spec: Value) -> Vec<String> {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": "1"},
        "spec": {"containers": [{"name": "app", "image": "demo"}]},
    });
    for (field, value) in spec.as_object().expect("fields of the spec") {
        pod["spec"][field] = value.clone();
    }
    let mut warnings = read_new(pod, Validation::Strict, "board").expect("a valid pod").warnings;
    warnings.retain(|warning| !warning.contains("has no effect: nodlet"));
    warnings
}

fn container(fields: Value) -> Value {
    let mut container = json!({"name": "app", "image": "demo"});
    for (field, value) in fields.as_object().expect("fields of the container") {
        container[field] = value.clone();
    }
    json!({"containers": [container]})
}

#[test]
fn a_usual_pod_has_no_warnings() {
    assert_eq!(warnings("web", json!({})), [""; 0]);
    let twice = json!({"env": [{"name": "A", "value": "a"}, {"name": "A", "value": "$(A):b"}]});
    assert_eq!(warnings("web", container(twice)), [""; 0]);
}

#[test]
fn names_that_are_no_labels_and_negative_grace_periods_are_warned_about() {
    assert_eq!(
        warnings("a.b", json!({})),
        [
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is \
          recommended: [must not contain dots]"
        ]
    );
}

#[test]
fn repeated_variables_and_ports_are_warned_about() {
    let hides = "hides previous definition of \"A\", which may be dropped when using apply";
    let repeated = json!({"env": [{"name": "A", "value": "a"}, {"name": "A", "value": "b"}, {"name": "A", "value": "$(A)"}]});
    assert_eq!(
        warnings("web", container(repeated)),
        [1, 2].map(|index| format!("spec.containers[0].env[{index}]: {hides}"))
    );
    let ports = json!({"ports": [
        {"name": "a", "containerPort": 80}, {"containerPort": 80}, {"containerPort": 80, "hostPort": 8080},
        {"containerPort": 81, "hostPort": 81}, {"containerPort": 81, "hostPort": 81, "hostIP": "10.0.0.1"},
        {"containerPort": 82, "hostIP": "10.0.0.1"}]});
    assert_eq!(
        warnings("web", container(ports)),
        [
            "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]",
            "spec.containers[0].ports[2]: overlapping port definition with spec.containers[0].ports[0]",
            "spec.containers[0].ports[2]: overlapping port definition with spec.containers[0].ports[1]",
            "spec.containers[0].ports[4]: dangerously ambiguous port definition with spec.containers[0].ports[3]",
            "spec.containers[0].ports[5]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:82 Protocol:TCP HostIP:10.0.0.1}",
        ]
    );
    let two = json!({"containers": [
        {"name": "app", "image": "demo", "ports": [{"name": "a", "containerPort": 80}]},
        {"name": "b", "image": "demo", "ports": [{"name": "a", "containerPort": 81}]}]});
    assert_eq!(
        warnings("web", two),
        [
            "spec.containers[1].ports[0]: duplicate port name \"a\" with spec.containers[0].ports[0], services and probes \
          that select ports by name will use spec.containers[0].ports[0]"
        ]
    );
}

#[test]
fn selectors_of_nothing_and_deprecated_labels_are_warned_about() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let term = json!({"topologyKey": "kubernetes.io/hostname"});
    let spec = json!({
        "topologySpreadConstraints":
            [{"maxSkew": 1, "topologyKey": "beta.kubernetes.io/arch", "whenUnsatisfiable": "ScheduleAnyway"}],
        "affinity": {
            "nodeAffinity": {preferred: [{"weight": 1, "preference": {"matchExpressions":
                [{"key": "node-role.kubernetes.io/master", "operator": "In", "values": ["-a"]}]}}]},
            "podAffinity": {required: [term], preferred: [{"weight": 1, "podAffinityTerm": term}]},
            "podAntiAffinity": {required: [term]},
        },
    });
    let found = warnings("web", spec);
    let expected = [
        format!("spec.affinity.nodeAffinity.{preferred}[0].preference.matchExpressions[0].key: node-role.kubernetes.io/master is use \"node-role.kubernetes.io/control-plane\" instead"),
        format!("spec.affinity.nodeAffinity.{preferred}[0].preference.matchExpressions[0].values[0]: -a is invalid, a valid label must be"),
        "spec.topologySpreadConstraints[0].topologyKey: beta.kubernetes.io/arch is deprecated since v1.14; use \"kubernetes.io/arch\" instead".to_owned(),
        "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod".to_owned(),
        format!("spec.affinity.podAffinity.{required}[0].labelSelector: a null labelSelector results in matching no pod"),
        format!("spec.affinity.podAffinity.{preferred}[0].podAffinityTerm.labelSelector: a null labelSelector results in matching no pod"),
        format!("spec.affinity.podAntiAffinity.{required}[0].labelSelector: a null labelSelector results in matching no pod"),
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(&expected) {
        assert!(found.starts_with(expected), "{found} does not begin with {expected}");
    }
}

#[test]
fn what_hides_or_repeats_something_else_is_warned_about() {
    let spec = json!({
        "volumes": [
            {"name": "a", "configMap": {"name": "c", "items": [{"key": "a", "path": "x"}, {"key": "b", "path": "x/y"}]}},
            {"name": "b", "projected": {"sources": [
                {"secret": {"name": "s", "items": [{"key": "a", "path": "x"}]}},
                {"downwardAPI": {"items": [{"path": "x/y", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}}],
        "hostAliases": [{"ip": "2001:DB8::1", "hostnames": ["a"]}, {"ip": "2001:DB8::1", "hostnames": ["b"]}],
    });
    assert_eq!(
        warnings("web", spec),
        [
            "volume \"a\" (ConfigMap \"c\"): overlapping paths: \"x/y\" with \"x\"",
            "volume \"b\" (Projected): overlapping paths: \"x/y\" (DownwardAPI) with \"x\" (Secret \"s\")",
            "spec.hostAliases[1].ip: duplicate ip \"2001:DB8::1\"",
            "spec.hostAliases[0].ip: IPv6 address \"2001:DB8::1\" should be in RFC 5952 canonical format (\"2001:db8::1\")",
            "spec.hostAliases[1].ip: IPv6 address \"2001:DB8::1\" should be in RFC 5952 canonical format (\"2001:db8::1\")",
        ]
    );
}

#[test]
fn counted_conflicts_of_ports_are_those_of_all_pairs() {
    for seed in 0..400 {
        let mut random = Random::of(seed);
        let port = |_| {
            let port = ([80, 81][random.below(2)], ["TCP", "UDP"][random.below(2)]);
            (port, ([0, 1, 2][random.below(3)], ["", "10.0.0.1", "10.0.0.2"][random.below(3)]))
        };
        let ports: Vec<_> = (0..12).map(port).collect();
        let mut earlier = EarlierPorts::default();
        for (at, (port, host)) in ports.iter().enumerate() {
            let before = ports[..at].iter().filter(|(other, _)| other == port);
            let expected = before.filter(|(_, other)| conflict(*host, *other).is_some()).count();
            assert_eq!(earlier.add(*port, host.0, host.1), expected, "{:?}", &ports[..=at]);
        }
    }
}

#[test]
fn overlapping_paths_are_those_of_all_pairs() {
    for seed in 0..400 {
        let mut random = Random::of(seed);
        const PARTS: [&str; 7] = ["a", "b", "a.b", "a-b", "", "/", "/"];
        let path = |_| (0..1 + random.below(6)).map(|_| PARTS[random.below(7)]).collect::<String>();
        let paths: Vec<String> = (0..10).map(path).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).filter(|path| !path.is_empty()).collect();
        let before = |index: usize| {
            let others = paths[..index].iter();
            others.filter(|other| is_in(other, paths[index]) || is_in(paths[index], other)).count()
        };
        let counts: Vec<usize> = (0..paths.len()).map(before).collect();
        let found = (0..paths.len()).filter(|index| counts[*index] > 0).collect();
        assert_eq!(overlapping(&paths), (counts.iter().sum(), found), "{paths:?}");
    }
}

#[test]
fn the_first_warnings_about_many_ports_and_paths_are_reported_and_the_others_counted() {
    let ports: Vec<Value> = (0..20).map(|_| json!({"containerPort": 80})).collect();
    let all = warnings("web", container(json!({"ports": ports})));
    assert_eq!(all.len(), 65);
    let of = |one: usize, other: usize| {
        let path = |index| format!("spec.containers[0].ports[{index}]");
        format!("{}: duplicate port definition with {}", path(one), path(other))
    };
    assert_eq!(all[..3], [of(1, 0), of(2, 0), of(2, 1)]);
    assert_eq!(all[64], format!("and {} more", 20 * 19 / 2 - 64));
    let paths = ["x", "a/b", "y", "a", "a/b/c", "z"].into_iter().chain(std::iter::repeat_n("q", 12));
    let items: Vec<Value> = paths.map(|path| json!({"key": "k", "path": path})).collect();
    let all =
        warnings("web", json!({"volumes": [{"name": "v", "configMap": {"name": "m", "items": items}}]}));
    let of =
        |one, other| format!("volume \"v\" (ConfigMap \"m\"): overlapping paths: \"{one}\" with \"{other}\"");
    assert_eq!(all[..4], [of("a", "a/b"), of("a/b/c", "a/b"), of("a/b/c", "a"), of("q", "q")]);
    assert_eq!((all.len(), &*all[64]), (65, "and 5 more"));
}
