use nodlet_fuzz::{assert_contains, assert_ends_with};
use serde_json::{Value, json};

use super::{Existing, Update, compare, keep_all_but_resources, metadata, no_new_gates, resize, status};
use crate::object::check::Field;
use crate::object::field::Errors;

/// A pod with these fields in addition to its one container.
fn pod(spec: Value) -> Value {
    let mut object = json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "u1" },
        "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
    });
    for (key, value) in spec.as_object().expect("an object") {
        object["spec"][key] = value.clone();
    }
    object
}

/// Checks the result of a change: `nothing`, `in place`, `in place, spec`, or the error.
fn check(before: Value, after: Value, expected: &str) {
    let (before, after) = (pod(before), pod(after));
    let said = match compare(&before, &after) {
        Update::Nothing => "nothing".to_owned(),
        Update::InPlace { spec: false } => "in place".to_owned(),
        Update::InPlace { spec: true } => "in place, spec".to_owned(),
        Update::Other(error) => error.to_string().replace("The Pod \"web\" is invalid: ", ""),
    };
    assert_eq!(said, expected, "{before} to {after}");
}

#[test]
fn clients_may_change_only_their_own_metadata() {
    const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/app";
    let with = |fields: Value| {
        let mut object = pod(json!({}));
        for (key, value) in fields.as_object().expect("an object") {
            object["metadata"][key] = value.clone();
        }
        object
    };
    let annotated = |key: &str, value: &str| with(json!({ "annotations": { key: value } }));
    let plain = with(json!({}));
    let check = |old: &Value, new: &Value, expected: &str| {
        let said = metadata(old, new).map_err(|error| error.to_string());
        let said =
            said.map_or_else(|error| error.replace("The Pod \"web\" is invalid: ", ""), |()| String::new());
        assert_eq!(said, expected, "{old} to {new}");
    };
    check(&plain, &with(json!({ "labels": { "a": "b" }, "generateName": "w-" })), "");
    check(&annotated("a", "b"), &annotated("a", "c"), "");
    check(&annotated(APPARMOR, ""), &annotated(APPARMOR, ""), "");
    let path = format!("metadata.annotations[{APPARMOR}]: Forbidden: may not");
    check(&plain, &annotated(APPARMOR, ""), &format!("{path} add AppArmor annotations"));
    check(&annotated(APPARMOR, ""), &plain, &format!("{path} remove or update AppArmor annotations"));
    let mirror = annotated("kubernetes.io/config.mirror", "x");
    let path =
        "metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation";
    check(&plain, &mirror, path);
    let graced = with(json!({ "deletionGracePeriodSeconds": 3 }));
    let path = "metadata.deletionGracePeriodSeconds: Invalid value: 3: field is immutable";
    check(&plain, &graced, path);
    check(&graced, &plain, "");
    for field in ["ownerReferences", "generateName"] {
        match compare(&plain, &with(json!({ field: "x" }))) {
            Update::InPlace { spec: false } => {}
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[test]
fn gates_can_only_be_removed() {
    let gates = |names: &[&str]| {
        let gates: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
        json!({ "schedulingGates": gates })
    };
    check(gates(&["a", "b"]), gates(&["a", "b"]), "nothing");
    check(gates(&["a", "b"]), gates(&["b"]), "in place, spec");
    check(gates(&["a", "b"]), gates(&["b", "a"]), "in place, spec");
    check(gates(&["a"]), json!({}), "in place, spec");
    // A pod is assigned to its node when its last gate is removed.
    check(gates(&["a"]), json!({ "nodeName": "board" }), "in place, spec");
    let added = |index: usize, name: &str| {
        format!(
            "spec.schedulingGates[{index}].name: Forbidden: only deletion is allowed, but found new scheduling gate '{name}'"
        )
    };
    check(gates(&["a"]), gates(&["a"]), "nothing");
    check(gates(&["a"]), gates(&["b"]), &added(0, "b"));
    check(gates(&["a"]), gates(&["c", "a"]), &added(0, "c"));
    check(json!({}), gates(&["a"]), &added(0, "a"));
    let refused = no_new_gates(&pod(json!({})), &pod(gates(&["a"]))).expect_err("it is new");
    assert!(refused.to_string().ends_with(&added(0, "a")), "{refused}");
    assert!(no_new_gates(&pod(gates(&["a", "b"])), &pod(gates(&["b"]))).is_ok());
}

#[test]
fn an_update_may_extend_the_node_selector_of_a_gated_pod_only() {
    let selector = |gated: bool, selector: Value| {
        let gates = if gated { json!([{ "name": "g" }]) } else { json!([]) };
        json!({ "schedulingGates": gates, "nodeSelector": selector })
    };
    check(
        selector(true, json!({ "a": "1" })),
        selector(true, json!({ "a": "1", "b": "2" })),
        "in place, spec",
    );
    let words = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
    for (changed, shown) in [(json!({ "a": "2" }), r#"{"a":"2"}"#), (json!({}), "{}")] {
        let expected = format!("spec.nodeSelector: Invalid value: {shown}: {words}");
        check(selector(true, json!({ "a": "1" })), selector(true, changed), &expected);
    }
    let (before, after) = (pod(selector(false, json!({}))), pod(selector(false, json!({ "a": "1" }))));
    let Update::Other(error) = compare(&before, &after) else { panic!("a node has it") };
    assert!(error.to_string().contains("pod updates may not change fields other than"), "{error}");
}

#[test]
fn the_node_affinity_terms_of_a_gated_pod_can_only_be_extended() {
    let terms = |terms: Value| {
        let required =
            json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } });
        json!({ "schedulingGates": [{ "name": "g" }], "affinity": { "nodeAffinity": required } })
    };
    let one = |key: &str| json!({ "key": key, "operator": "Exists" });
    let path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let a = json!([{ "matchExpressions": [one("a")] }]);
    let a_and_b = json!([{ "matchExpressions": [one("a"), one("b")] }]);
    check(json!({ "schedulingGates": [{ "name": "g" }] }), terms(a.clone()), "in place, spec");
    check(terms(a.clone()), terms(a_and_b.clone()), "in place, spec");
    let wrong = json!([{ "matchExpressions": [one("b"), one("a")] }]);
    let expected = format!(
        "{path}[0]: Invalid value: {}: only additions are allowed (no mutations or deletions)",
        wrong[0]
    );
    check(terms(a.clone()), terms(wrong), &expected);
    let two = json!([a[0], a_and_b[0]]);
    let expected = format!(
        "{path}: Invalid value: {two}: no additions/deletions to non-empty NodeSelectorTerms list are allowed"
    );
    check(terms(a.clone()), terms(two), &expected);
    let gone = json!({ "schedulingGates": [{ "name": "g" }] });
    let expected = format!(
        "{path}: Invalid value: null: no additions/deletions to non-empty NodeSelectorTerms list are allowed"
    );
    check(terms(a), gone, &expected);
}

#[test]
fn tolerations_can_only_be_added() {
    let tolerations = |list: Value| json!({ "tolerations": list });
    let one = json!({ "key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5 });
    let mut longer = one.clone();
    longer["tolerationSeconds"] = 6.into();
    check(tolerations(json!([one])), tolerations(json!([longer])), "in place, spec");
    check(tolerations(json!([one])), tolerations(json!([{ "key": "b" }, one])), "in place, spec");
    let words =
        "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds";
    check(tolerations(json!([one])), tolerations(json!([{ "key": "b" }])), words);
}

#[test]
fn an_update_of_any_other_field_is_rejected_with_its_path() {
    let containers = |list: Value| json!({ "containers": list });
    let two = json!([{ "name": "app", "image": "app:1" }, { "name": "b", "image": "b" }]);
    let words = "spec.containers: Forbidden: pod updates may not add or remove containers";
    check(json!({}), containers(two), words);
    check(
        json!({}),
        json!({ "hostNetwork": true, "containers": [{ "name": "app", "image": "app:1", "tty": true }] }),
        "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,\
         `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
         tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n\
         + spec.containers[0].tty: true\n+ spec.hostNetwork: true",
    );
    let mut labelled = pod(json!({}));
    labelled["metadata"]["labels"] = json!({ "a": "b" });
    assert!(matches!(compare(&pod(json!({})), &labelled), Update::InPlace { spec: false }));
}

#[test]
fn an_update_may_change_images() {
    let with = |image: &str, init: &str| {
        json!({
            "containers": [{ "name": "app", "image": image }],
            "initContainers": [{ "name": "init", "image": init }],
        })
    };
    check(with("app:1", "init:1"), with("app:2", "init:1"), "in place, spec");
    check(with("app:1", "init:1"), with("app:1", "init:2"), "in place, spec");
    let mut renamed = with("app:2", "init:1");
    renamed["containers"][0]["name"] = "web".into();
    let (before, after) = (pod(with("app:1", "init:1")), pod(renamed));
    let Update::Other(error) = compare(&before, &after) else { panic!("it is another container") };
    let error = error.to_string();
    assert_ends_with(&error, "\n- spec.containers[0].name: \"app\"\n+ spec.containers[0].name: \"web\"");
}

#[test]
fn a_deadline_may_be_set_and_made_earlier() {
    let deadline = |seconds: i64| json!({ "activeDeadlineSeconds": seconds });
    check(json!({}), deadline(60), "in place, spec");
    check(deadline(60), deadline(30), "in place, spec");
    check(deadline(60), deadline(60), "nothing");
    check(
        deadline(60),
        deadline(61),
        "spec.activeDeadlineSeconds: Invalid value: 61: must be less than or equal to previous value",
    );
    check(
        deadline(60),
        json!({}),
        "spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value",
    );
}

#[test]
fn a_negative_grace_period_may_become_one_second() {
    let grace = |seconds: i64| json!({ "terminationGracePeriodSeconds": seconds });
    check(grace(-5), grace(1), "in place, spec");
    for (before, after) in [(-5, 2), (30, 1)] {
        let (before, after) = (pod(grace(before)), pod(grace(after)));
        let Update::Other(error) = compare(&before, &after) else { panic!("it is another grace") };
        assert!(error.to_string().contains("pod updates may not change fields other than"), "{error}");
    }
}

fn with_status(status: Value) -> Value {
    let mut object = pod(json!({}));
    object["status"] = status;
    object
}

/// Checks the result of a status update: the client's conditions as `type=status`, or the error.
fn check_status(after: Value, expected: &str) {
    let before = json!({
        "phase": "Running", "qosClass": "BestEffort",
        "conditions": [
            { "type": "example.com/a", "status": "True", "lastProbeTime": null, "lastTransitionTime": null },
            { "type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-31T12:00:00Z" },
        ],
    });
    let said = match status(&with_status(before), &with_status(after.clone())) {
        Ok(update) => {
            let given =
                update.client_conditions.iter().map(|given| format!("{}={}", given.kind, given.status));
            given.chain(update.warnings).collect::<Vec<_>>().join(" ")
        }
        Err(error) => error.to_string().replace("The Pod \"web\" is invalid: ", ""),
    };
    assert_eq!(said, expected, "{after}");
}

#[test]
fn a_status_update_may_set_only_conditions_that_the_node_does_not_own() {
    const OWN: &str = "is set by the node: clients can set only conditions that the node does not set";
    let ready = json!({ "type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-31T12:00:00Z" });
    let one = |kind: &str, status: &str| json!({ "type": kind, "status": status });
    check_status(json!({ "conditions": [one("example.com/b", "False"), ready] }), "example.com/b=False");
    check_status(json!({ "conditions": [] }), "");
    check_status(json!({}), "");
    check_status(json!({ "conditions": [one("DisruptionTarget", "True")] }), "DisruptionTarget=True");
    check_status(json!({ "phase": "Running", "qosClass": "BestEffort" }), "");
    check_status(json!({ "phase": "Failed" }), &format!("status.phase: Forbidden: {OWN}"));
    check_status(json!({ "reason": "Evicted" }), &format!("status.reason: Forbidden: {OWN}"));
    for kind in ["Ready", "PodScheduled", "ContainersReady", "AllContainersRestarting"] {
        let expected = format!("status.conditions[0]: Forbidden: \"{kind}\" {OWN}");
        check_status(json!({ "conditions": [one(kind, "False")] }), &expected);
    }
    check_status(
        json!({ "conditions": [one("a", "Yes")] }),
        "status.conditions[0].status: Unsupported value: \"Yes\": supported values: \"False\", \"True\", \"Unknown\"",
    );
    check_status(
        json!({ "conditions": [one("a", "True"), one("a", "False")] }),
        "status.conditions[1].type: Duplicate value: \"a\"",
    );
    check_status(
        json!({ "conditions": [{ "type": "a", "status": "True", "color": "red" }] }),
        "a=True unknown field \"status.conditions[0].color\"",
    );
    let refused =
        status(&with_status(json!({})), &with_status(json!({ "conditions": [one("a b", "True")] })));
    let refused = refused.expect_err("no name").to_string();
    assert_contains(&refused, "status.conditions[0].Type: Invalid value: \"a b\": name part must consist");
    let many: Vec<Value> = (0..33).map(|number| one(&format!("c{number}"), "True")).collect();
    check_status(
        json!({ "conditions": many }),
        "status.conditions: Too many: 33: must have at most 32 items",
    );
    let long = json!({ "type": "a", "status": "True", "message": "x".repeat(16 * 1024) });
    check_status(
        json!({ "conditions": [long] }),
        "status.conditions: Too long: may not be more than 16384 bytes",
    );
}

#[test]
fn a_condition_with_an_undecodable_time_is_rejected_as_a_bad_request() {
    for field in ["lastProbeTime", "lastTransitionTime"] {
        let given = |time: &str| {
            let mut condition = json!({ "type": "a", "status": "True" });
            condition[field] = time.into();
            status(&with_status(json!({})), &with_status(json!({ "conditions": [condition] })))
        };
        for time in ["2026-01-31T12:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.5+01:00"] {
            assert_eq!(given(time).expect("it is a time").client_conditions.len(), 1, "{time}");
        }
        for time in ["garbage", "", "2026-01-31", "2026-02-30T12:00:00Z", "2026-01-31T12:00:00z"] {
            let error = given(time).expect_err("it is no time");
            assert_eq!(error.status()["code"], 400, "{time}");
            let words = format!(
                "Pod in version \"v1\" cannot be handled as a Pod: parsing time {time:?} as \"2006-01-02T15:04:05Z07:00\""
            );
            assert!(error.to_string().starts_with(&words), "{error}");
        }
    }
}

/// Checks the result of a resize to the resources, containers and resize policies of a spec.
fn check_resize(before: Value, after: Value, expected: &str) {
    let (before, mut after) = (pod(before), pod(after));
    keep_all_but_resources(&before, &mut after);
    let said = match resize(&before, &after, None) {
        Update::Nothing => "nothing".to_owned(),
        Update::InPlace { spec } => format!("in place, {spec}"),
        Update::Other(error) => error.to_string().replace("The Pod \"web\" is invalid: ", ""),
    };
    assert_eq!(said, expected, "{before} to {after}");
}

/// A container with these resources.
fn container(name: &str, resources: Value) -> Value {
    json!({ "name": name, "image": "app:1", "resources": resources })
}

#[test]
fn a_resize_may_change_amounts_of_cpu_and_memory_and_nothing_else() {
    let of = |resources: Value| json!({ "containers": [container("app", resources)] });
    let before = || of(json!({ "requests": { "cpu": "1" }, "limits": { "memory": "1Gi" } }));
    check_resize(before(), before(), "nothing");
    let added = of(json!({ "requests": { "cpu": "2", "memory": "1Mi" }, "limits": { "memory": "2Gi" } }));
    check_resize(before(), added, "in place, true");
    check_resize(of(json!({})), of(json!({ "limits": { "cpu": "1" } })), "in place, true");
    for (resources, expected) in [
        (
            json!({ "limits": { "memory": "1Gi" } }),
            "requests: Forbidden: resource requests cannot be removed",
        ),
        (json!({ "requests": { "cpu": "1" } }), "limits: Forbidden: resource limits cannot be removed"),
        (
            json!({ "requests": { "memory": "1" }, "limits": { "memory": "1" } }),
            "requests: Forbidden: resource requests cannot be removed",
        ),
    ] {
        check_resize(before(), of(resources), &format!("spec.containers[0].resources.{expected}"));
    }
    let storage =
        json!({ "requests": { "cpu": "1" }, "limits": { "memory": "1Gi", "ephemeral-storage": "1" } });
    check_resize(before(), of(storage), "spec: Forbidden: only cpu and memory resources are mutable");
    // Fields that a resize does not concern are left out of it, as by Kubernetes.
    let mut other = before();
    other["containers"][0]["image"] = "app:2".into();
    check_resize(before(), other, "nothing");
    let mut policy = before();
    policy["containers"][0]["resizePolicy"] =
        json!([{ "resourceName": "cpu", "restartPolicy": "NotRequired" }]);
    check_resize(before(), policy, "spec: Forbidden: only cpu and memory resources are mutable");
}

#[test]
fn a_resize_cannot_add_remove_rename_or_reorder_containers() {
    let named = |field: &str, names: &[&str]| {
        let containers: Vec<Value> = names.iter().map(|name| container(name, json!({}))).collect();
        json!({ field: containers })
    };
    for field in ["containers", "initContainers"] {
        let amount = format!("spec.{field}: Forbidden: {field} may not be added or removed on resize");
        check_resize(named(field, &["a"]), named(field, &["a", "b"]), &amount);
        check_resize(named(field, &["a", "b"]), named(field, &["b"]), &amount);
        let name = |index: u8| {
            format!(
                "spec.{field}[{index}].name: Forbidden: {field} may not be renamed or reordered on resize"
            )
        };
        check_resize(named(field, &["a"]), named(field, &["b"]), &name(0));
        let both = format!("\n* {}\n* {}", name(0), name(1));
        check_resize(named(field, &["a", "b"]), named(field, &["b", "a"]), &both);
    }
    // With containers in another order, amounts are not compared.
    let with_amounts = json!({ "containers": [container("a", json!({ "limits": { "cpu": "1" } }))] });
    let renamed = "spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize";
    check_resize(with_amounts, named("containers", &["b"]), renamed);
}

#[test]
fn a_resize_of_init_containers_and_sidecars_is_checked_with_their_own_texts() {
    let of = |resources: Value, restart_policy: Value, resize_policy: Value| {
        let mut init = container("init", resources);
        for (field, value) in [("restartPolicy", restart_policy), ("resizePolicy", resize_policy)] {
            if !value.is_null() {
                init[field] = value;
            }
        }
        json!({ "initContainers": [init] })
    };
    let cpu = |amount: &str| json!({ "requests": { "cpu": amount } });
    let restarts = || json!([{ "resourceName": "cpu", "restartPolicy": "RestartContainer" }]);
    for kind in [Value::Null, json!("Always")] {
        let plain = |resources: Value| of(resources, kind.clone(), Value::Null);
        check_resize(plain(cpu("1")), plain(cpu("2")), "in place, true");
        let removed =
            "spec.initContainers[0].resources.requests: Forbidden: resource requests cannot be removed";
        check_resize(plain(cpu("1")), plain(json!({})), removed);
        let mut storage = cpu("1");
        storage["requests"]["ephemeral-storage"] = "1".into();
        let only = "spec.initContainers[0]: Forbidden: only cpu and memory resources for init or sidecar containers \
                    are mutable";
        check_resize(plain(cpu("1")), plain(storage), only);
    }
    let sidecar = |amount: &str| of(cpu(amount), json!("Always"), restarts());
    check_resize(sidecar("1"), sidecar("2"), "in place, true");
    let init = |amount: &str| of(cpu(amount), Value::Null, restarts());
    check_resize(
        init("1"),
        init("2"),
        "spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of RestartContainer \
         cannot be resized",
    );
    check_resize(init("1"), init("1"), "nothing");
}

#[test]
fn a_resize_of_the_pod_as_a_whole_removes_nothing() {
    let of = |resources: Value| json!({ "resources": resources });
    let both = || of(json!({ "requests": { "cpu": "1" }, "limits": { "memory": "1Gi" } }));
    check_resize(
        both(),
        of(json!({ "requests": { "cpu": "2" }, "limits": { "memory": "2Gi" } })),
        "in place, true",
    );
    check_resize(json!({}), of(json!({ "limits": { "memory": "1Gi" } })), "in place, true");
    check_resize(both(), json!({}), "spec.resources: Forbidden: pod-level resources cannot be removed");
    for (kept, removed) in [("limits", "requests"), ("requests", "limits")] {
        let mut less = json!({});
        less[kept] = both()["resources"][kept].clone();
        let expected =
            format!("spec.resources.{removed}: Forbidden: pod-level resource {removed} cannot be removed");
        check_resize(both(), of(less), &expected);
    }
    let pages =
        of(json!({ "requests": { "cpu": "1" }, "limits": { "memory": "1Gi", "hugepages-2Mi": "2Mi" } }));
    check_resize(both(), pages, "spec: Forbidden: only cpu and memory resources are mutable at pod-level");
}

#[test]
fn a_resize_keeps_the_class_of_the_pod() {
    let before = pod(json!({ "containers": [container("app", json!({ "limits": { "cpu": "1" } }))] }));
    let Update::Other(error) = resize(&before, &before, Some("Burstable")) else { panic!("it was accepted") };
    let expected = "The Pod \"web\" is invalid: spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn an_invalid_object_does_not_hide_changes_that_are_not_possible() {
    let admitted = pod(json!({"nodeName": "board"}));
    let texts = |changed: &Value, found: &[&str]| -> Vec<String> {
        let mut errors = Errors::default();
        let spec = Field::root(&Value::Null, "spec", &mut errors);
        found.iter().for_each(|name| spec.child(name).required(""));
        let errors = Existing::new(&admitted, changed, &admitted).check(changed, errors);
        errors.iter().map(|error| error.to_string().chars().take(80).collect()).collect()
    };
    let none = pod(json!({"nodeName": "board", "containers": []}));
    assert_eq!(
        texts(&none, &["containers"]),
        [
            "spec.containers: Required value",
            "spec.containers: Forbidden: pod updates may not add or remove containers"
        ]
    );
    let mut changed = pod(json!({"nodeName": "", "hostname": "A"}));
    changed["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    changed["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "a"});
    assert_eq!(
        texts(&changed, &["hostname"]),
        [
            "metadata.deletionTimestamp: Invalid value: \"2026-01-01T00:00:00Z\": field is immu",
            "spec.hostname: Required value",
            "metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror",
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*",
        ]
    );
    // A deadline that is too late is the last error.
    let late = pod(json!({"hostname": "b", "activeDeadlineSeconds": 2_147_483_648_i64}));
    let expected = ["spec.activeDeadlineSeconds: Invalid value: 2147483648: must be between 0 and 214"];
    assert_eq!(texts(&late, &[]), expected);
    assert_eq!(texts(&admitted, &[]), Vec::<String>::new());
}
