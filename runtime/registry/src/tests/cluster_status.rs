//! The patches with which a board reports the status of a pod to a cluster: whatever the sequence of states is, the patched
//! status is that of the board, and what others set stays.

use serde_json::{Map, Value, json};

use crate::patch::{self, PatchKind};

mod node;

/// The types of conditions that a board sets, and of some that others set.
const OWN: [&str; 6] = [
    "PodScheduled",
    "Ready",
    "ContainersReady",
    "PodResizePending",
    "PodResizeInProgress",
    "PodImageUpdatePending",
];
const OF_OTHERS: [&str; 2] = ["example.com/gate", "DisruptionTarget"];

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % limit
    }

    /// One of three texts, or none.
    fn text(&mut self) -> Option<Value> {
        let all = ["a", "b", "c"];
        all.get(self.below(4)).map(|text| (*text).into())
    }

    fn addresses(&mut self) -> Value {
        (0..self.below(3)).map(|_| json!({ "ip": format!("10.0.0.{}", self.below(4)) })).collect()
    }

    fn amounts(&mut self) -> Value {
        let mut amounts = Map::new();
        for name in ["cpu", "memory"] {
            amounts.extend(self.text().map(|text| (name.to_owned(), text)));
        }
        amounts.into()
    }

    fn condition(&mut self, kind: &str) -> Value {
        let status = ["True", "False"][self.below(2)];
        let mut condition = json!({ "type": kind, "status": status, "lastProbeTime": null });
        for field in ["reason", "message", "lastTransitionTime"] {
            if let Some(text) = self.text() {
                condition[field] = text;
            }
        }
        condition
    }

    /// A status of the board.
    fn status(&mut self) -> Value {
        let mut status = json!({ "phase": "Running", "qosClass": "Burstable" });
        for field in ["message", "reason", "podIP", "hostIP", "startTime"] {
            if let Some(text) = self.text() {
                status[field] = text;
            }
        }
        for field in ["podIPs", "hostIPs"] {
            if self.below(2) == 0 {
                status[field] = self.addresses();
            }
        }
        if self.below(2) == 0 {
            status["resources"] = json!({ "limits": self.amounts(), "requests": self.amounts() });
        }
        if self.below(2) == 0 {
            status["allocatedResources"] = self.amounts();
        }
        for field in ["containerStatuses", "initContainerStatuses"] {
            if self.below(3) > 0 {
                let state =
                    if self.below(2) == 0 { json!({ "running": {} }) } else { json!({ "waiting": {} }) };
                status[field] = json!([{ "name": "a", "state": state, "lastState": {} }]);
            }
        }
        let mut conditions = Vec::new();
        for kind in OWN {
            if self.below(3) > 0 {
                conditions.push(self.condition(kind));
            }
        }
        status["conditions"] = conditions.into();
        status
    }
}

/// A status without fields that are empty, and without an order of its conditions, of the types that `is_shown` selects.
fn comparable(status: &Value, is_shown: impl Fn(&str) -> bool) -> Value {
    let mut status = status.clone();
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|one| is_shown(one["type"].as_str().unwrap_or_default()));
    for condition in &mut conditions {
        // The time at which the scheduler assigned the pod is kept.
        if let Some(fields) = condition.as_object_mut().filter(|fields| fields["type"] == "PodScheduled") {
            fields.remove("lastTransitionTime");
        }
        condition.as_object_mut().expect("a condition").retain(|_, value| !value.is_null());
    }
    conditions.sort_by_key(|one| one["type"].as_str().unwrap_or_default().to_owned());
    status["conditions"] = conditions.into();
    let is_empty = |value: &Value| value.is_null() || *value == json!([]) || *value == json!({});
    let fields = status.as_object_mut().expect("a status");
    fields.retain(|_, value| !is_empty(value));
    status
}

#[test]
fn after_each_patch_the_cluster_has_the_status_of_the_board() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut server =
            json!({ "kind": "Pod", "metadata": { "uid": "u" }, "status": { "qosClass": "Burstable" } });
        let scheduled = json!({ "type": "PodScheduled", "status": "True", "lastTransitionTime": "then" });
        server["status"]["conditions"] = json!([scheduled]);
        for step in 0..20 {
            let kind = OF_OTHERS[random.below(2)];
            if random.below(3) == 0 {
                let others = json!({ "status": { "conditions": [random.condition(kind)] } });
                patch::apply(&mut server, &others, PatchKind::Strategic, "Pod").expect("a patch");
            }
            let before = server.clone();
            let local = json!({
                "metadata": { "uid": "u" },
                "spec": { "readinessGates": [{ "conditionType": OF_OTHERS[0] }] },
                "status": random.status(),
            });
            let Some(patch) = nodlet_cluster::pods::status_patch(&local, &server["status"]) else { continue };
            patch::apply(&mut server, &patch, PatchKind::Strategic, "Pod").expect("a patch");
            let is_own = |kind: &str| OWN.contains(&kind);
            let (has, wanted) = (comparable(&server["status"], is_own), comparable(&local["status"], is_own));
            assert_eq!(has, wanted, "seed {seed}, step {step}: {patch}");
            let of_others =
                |object: &Value| comparable(&object["status"], |kind| !is_own(kind))["conditions"].clone();
            assert_eq!(of_others(&server), of_others(&before), "seed {seed}, step {step}: {patch}");
            assert_eq!(
                nodlet_cluster::pods::status_patch(&local, &server["status"]),
                None,
                "seed {seed}, step {step}"
            );
        }
    }
}
