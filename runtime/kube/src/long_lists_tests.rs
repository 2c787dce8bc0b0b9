//! The time that reading a Pod takes grows with the length of its lists, not with its square: a manifest of 1 MiB can have
//! tens of thousands of elements in each, and the agent's loop reads it.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::kinds::applied::AppliedPreset;
use crate::kinds::runtime_class;
use crate::manifest::Validation;
use crate::pod::update::Existing;
use crate::pod::{Origin, read, read_new};

/// Lengths of lists. A linear walk takes ten times as long for the longer one, and a walk of all pairs a hundred times.
const SHORT: usize = 300;
const LONG: usize = 3000;

/// Checks that this grows with the length of the list.
fn check(what: &str, read: impl Fn(usize) -> Box<dyn FnOnce()>) {
    // The processor time of this thread does not depend on what else the machine does.
    let time = |length| {
        let run = read(length);
        let now = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock"));
        let before = now();
        run();
        now() - before
    };
    let shortest = |length| (0..3).map(|_| time(length)).min().unwrap_or_default();
    let (short, long) = (shortest(SHORT), shortest(LONG));
    assert!(long < 25 * short, "{what}: {short:?} for {SHORT} elements, {long:?} for {LONG}");
}

/// Checks new pods with these fields beside those of their container, for the index of each element of the list.
fn check_pod(what: &str, spec: impl Fn(&mut dyn FnMut(&dyn Fn(usize) -> Value) -> Value) -> Value) {
    check(what, |length| {
        let mut list = |element: &dyn Fn(usize) -> Value| (0..length).map(element).collect();
        let mut fields = spec(&mut list);
        let mut container = json!({"name": "app", "image": "demo"});
        for field in ["env", "ports", "volumeMounts", "volumeDevices"] {
            if let Some(value) = fields.as_object_mut().and_then(|fields| fields.remove(field)) {
                container[field] = value;
            }
        }
        fields["containers"] = json!([container]);
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "uid": "1"}, "spec": fields});
        Box::new(move || drop(read_new(pod, Validation::Ignore, "board")))
    });
}

#[test]
fn lists_of_a_pod() {
    check_pod("ports", |list| json!({"ports": list(&|n| json!({"containerPort": 80, "hostPort": n + 1}))}));
    check_pod("equal ports", |list| json!({"ports": list(&|_| json!({"containerPort": 80}))}));
    check_pod("variables", |list| json!({"env": list(&|n| json!({"name": format!("A{n}")}))}));
    check_pod(
        "host aliases",
        |list| json!({"hostAliases": list(&|n| json!({"ip": format!("10.0.{}.{}", n / 250, n % 250)}))}),
    );
    check_pod(
        "image pull secrets",
        |list| json!({"imagePullSecrets": list(&|n| json!({"name": format!("a{n}")}))}),
    );
    check_pod("files of a volume", |list| {
        let items = list(&|n| json!({"key": "a", "path": format!("a{n}")}));
        json!({"volumes": [{"name": "v", "configMap": {"name": "m", "items": items}}]})
    });
    check_pod("sysctls", |list| {
        let sysctls = list(&|n| json!({"name": format!("net.a{n}"), "value": "1"}));
        json!({"securityContext": {"sysctls": sysctls}})
    });
    check_pod("topology spread constraints", |list| {
        let constraint =
            |n| json!({"topologyKey": format!("a{n}"), "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1});
        json!({"topologySpreadConstraints": list(&constraint)})
    });
    check_pod("keys of labels", |list| {
        let (keys, others) = (list(&|n| format!("a{n}").into()), list(&|n| format!("b{n}").into()));
        json!({"topologySpreadConstraints": [{
            "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1, "labelSelector": {},
            "matchLabelKeys": keys, "mismatchLabelKeys": others,
        }]})
    });
    check_pod("mounts and devices", |list| {
        let mounts = list(&|n| json!({"name": format!("v{n}"), "mountPath": format!("/m{n}")}));
        let devices = list(&|n| json!({"name": format!("d{n}"), "devicePath": format!("/dev/d{n}")}));
        json!({"volumeMounts": mounts, "volumeDevices": devices})
    });
    check_pod("device files and mounts", |list| {
        let volumes = list(&|n| json!({"name": format!("v{n}"), "hostPath": {"path": "/dev/gps"}}));
        let mounts = list(&|n| json!({"name": format!("w{n}"), "mountPath": format!("/m{n}")}));
        json!({"volumes": volumes, "volumeMounts": mounts})
    });
    check_pod("variables from files", |list| {
        let volumes = list(&|n| json!({"name": format!("v{n}"), "emptyDir": {}}));
        let variable = |n| {
            let reference = json!({"volumeName": format!("v{n}"), "path": "a", "key": "K"});
            json!({"name": format!("A{n}"), "valueFrom": {"fileKeyRef": reference}})
        };
        json!({"volumes": volumes, "env": list(&variable)})
    });
}

#[test]
fn updates_of_lists_of_a_pod() {
    let pod = |field: &str, list: Vec<Value>| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "uid": "1"}, "spec": {
            field: list, "containers": [{"name": "app", "image": "demo"}],
        }})
    };
    for (field, element) in [
        ("schedulingGates", (|n| json!({"name": format!("a{n}")})) as fn(usize) -> Value),
        ("tolerations", |n| json!({"key": format!("a{n}"), "operator": "Exists"})),
    ] {
        check(field, |length| {
            let old = pod(field, (0..length).map(element).collect());
            let old = read_new(old, Validation::Strict, "board").expect("a valid pod").object;
            let new = old.clone();
            Box::new(move || {
                let existing = Existing::new(&old, &new, &old);
                read(new.clone(), Validation::Strict, "board", Origin::Update(existing))
                    .expect("a valid update");
            })
        });
    }
}

#[test]
fn tolerations_of_a_pod_with_a_runtime_class() {
    check("tolerations", |length| {
        let toleration = |n| json!({"key": format!("a{n}"), "operator": "Exists"});
        let mut pod = json!({"spec": {"tolerations": (0..length).map(toleration).collect::<Vec<_>>()}});
        let spec = json!({"tolerations": [{"key": "b", "operator": "Exists"}]});
        let class = AppliedPreset { name: String::new(), version: String::new(), spec };
        Box::new(move || runtime_class::apply(&mut pod, &class).expect("no selector"))
    });
}
