//! The patches with which a board reports the status of its Node: whatever the sequence of states is, the Node in the
//! cluster has the status of the board, and what other clients report of it stays.

use nodlet_cluster::node;
use nodlet_kube::schema::{self, Field, Type};
use serde_json::{Map, Value, json};

use super::Random;
use crate::patch;

/// Resources that the board advertises, and of some that other clients advertise.
const OWN_RESOURCES: [&str; 5] = ["cpu", "memory", "hugepages-2Mi", "nodlet.dev/gps", "nodlet.dev/camera"];
const RESOURCES_OF_OTHERS: [&str; 2] = ["example.com/dongle", "vendor.example/gpu"];

/// Conditions that the board always reports, and of some that other clients report.
const OWN_CONDITIONS: [&str; 3] = ["DiskPressure", "MemoryPressure", "Ready"];
const CONDITIONS_OF_OTHERS: [&str; 2] = ["NetworkUnavailable", "KernelDeadlock"];

/// The condition that a board reports while it is true, and a node problem detector always.
const SHARED_CONDITION: &str = "ReadonlyFilesystem";

/// Fields of the status that only the board writes, besides the amounts and the conditions.
const OWN_FIELDS: [&str; 7] =
    ["addresses", "images", "nodeInfo", "daemonEndpoints", "declaredFeatures", "features", "runtimeHandlers"];

/// The lists of a Node's status that merge by the type of their elements, as conditions of a Pod do. The schema of the
/// product has no Node.
fn node_status() -> &'static Type {
    let conditions =
        schema::find("PodStatus").and_then(|status| status.field("conditions")).expect("a field");
    let merged =
        |name| Field { name, within: 0, number: 0, shape: conditions.shape, value: schema::Value::Any };
    let fields = Box::leak(Box::new(["addresses", "conditions"].map(merged)));
    Box::leak(Box::new(Type { name: "NodeStatus", fields }))
}

/// The status of a Node in the cluster.
struct Server {
    status: Map<String, Value>,
    of: &'static Type,
}

impl Server {
    fn patch(&mut self, status: &Value) {
        let patch = status.as_object().expect("an object").clone();
        patch::strategic(&mut self.status, patch, Some(self.of)).expect("a patch");
    }

    fn conditions(&self) -> &[Value] {
        self.status.get("conditions").and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    fn condition(&self, kind: &str) -> Option<&Value> {
        self.conditions().iter().find(|one| one["type"] == kind)
    }

    /// What a board keeps of the Node that a request returned.
    fn known(&self) -> Value {
        node::known(&mut json!({ "status": self.status }))
    }

    /// The amounts of the resources that `is_shown` selects.
    fn amounts(&self, field: &str, is_shown: impl Fn(&str) -> bool) -> Map<String, Value> {
        let amounts = self.status.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
        amounts.into_iter().filter(|(name, _)| is_shown(name)).collect()
    }

    /// All that other clients have reported.
    fn of_others(&self) -> Value {
        let is_other = |name: &str| RESOURCES_OF_OTHERS.contains(&name);
        let conditions = self.conditions().iter().filter(|one| {
            let kind = one["type"].as_str().unwrap_or_default();
            CONDITIONS_OF_OTHERS.contains(&kind) || (kind == SHARED_CONDITION && one["status"] == "False")
        });
        json!({
            "capacity": self.amounts("capacity", is_other),
            "allocatable": self.amounts("allocatable", is_other),
            "conditions": conditions.collect::<Vec<_>>(),
            "volumesAttached": self.status.get("volumesAttached"),
        })
    }
}

impl Random {
    fn amounts_of(&mut self, names: &[&str]) -> Map<String, Value> {
        let mut amounts = Map::new();
        for name in names {
            amounts.extend(self.text().map(|text| ((*name).to_owned(), text)));
        }
        amounts
    }

    fn node_condition(&mut self, kind: &str, status: Option<&str>) -> Value {
        let status = status.unwrap_or(["True", "False"][self.below(2)]);
        let since = ["then", "later"][self.below(2)];
        let mut condition = json!({ "type": kind, "status": status, "lastTransitionTime": since });
        for field in ["reason", "message"] {
            if let Some(text) = self.text() {
                condition[field] = text;
            }
        }
        condition
    }

    /// A status of the board, which has each field or not.
    fn node_status(&mut self) -> Value {
        let addresses = [
            json!([]),
            json!([{ "type": "Hostname", "address": "board" }]),
            json!([{ "type": "InternalIP", "address": "10.0.0.1" }, { "type": "Hostname", "address": "board" }]),
            json!([{ "type": "InternalIP", "address": "10.0.0.2" }, { "type": "InternalIP", "address": "fd00::2" }]),
        ];
        let mut status = json!({ "addresses": addresses[self.below(addresses.len())] });
        let images = (0..self.below(3)).map(|size| json!({ "names": [self.text()], "sizeBytes": size }));
        status["images"] = images.collect();
        for field in ["capacity", "allocatable"] {
            status[field] = self.amounts_of(&OWN_RESOURCES).into();
        }
        for field in OWN_FIELDS {
            let nested = json!({ "a": self.amounts_of(&["b", "c"]), "machineID": self.text() });
            let list = json!([{ "name": self.text(), "features": self.amounts_of(&["b", "c"]) }]);
            let value = match field {
                "addresses" | "images" => continue,
                "declaredFeatures" | "runtimeHandlers" => list,
                _ => without_nulls(nested),
            };
            if self.below(3) > 0 {
                status[field] = value;
            }
        }
        let mut conditions: Vec<Value> =
            OWN_CONDITIONS.into_iter().map(|kind| self.node_condition(kind, None)).collect();
        if self.below(3) == 0 {
            let mut trouble = self.node_condition(SHARED_CONDITION, Some("True"));
            // With a reason and a message always: the board may not know yet that a detector reports it, too.
            (trouble["reason"], trouble["message"]) = ("FilesystemIsReadOnly".into(), "a".into());
            conditions.push(trouble);
        }
        status["conditions"] = conditions.into();
        status
    }

    /// What another client reports of the Node.
    fn status_of_others(&mut self, server: &Server) -> Value {
        let mut amounts = || -> Map<String, Value> {
            let name = RESOURCES_OF_OTHERS[self.below(2)];
            [(name.to_owned(), self.text().unwrap_or_default())].into_iter().collect()
        };
        let (capacity, allocatable) = (amounts(), amounts());
        let mut status = json!({ "capacity": capacity, "allocatable": allocatable });
        let kind = CONDITIONS_OF_OTHERS[self.below(2)];
        let mut conditions = vec![self.node_condition(kind, None)];
        // A detector that takes over a condition of the board owns it only when it is no longer the board's.
        if self.below(2) == 0 && server.condition(SHARED_CONDITION).is_none_or(|one| one["status"] == "False")
        {
            conditions.push(self.node_condition(SHARED_CONDITION, Some("False")));
        }
        status["conditions"] = conditions.into();
        status["volumesAttached"] = json!([{ "name": self.text() }]);
        status
    }
}

/// A value as a server stores it.
fn without_nulls(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => fields.retain(|_, field| {
            *field = without_nulls(field.take());
            !field.is_null()
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {}
    }
    value
}

/// The conditions with their own order and without times that change with each report.
fn conditions<'a>(all: impl Iterator<Item = &'a Value>) -> Vec<Value> {
    let mut conditions: Vec<Value> = all.cloned().collect();
    for condition in &mut conditions {
        let fields = condition.as_object_mut().expect("a condition");
        fields.retain(|field, _| !matches!(field.as_str(), "lastHeartbeatTime" | "lastTransitionTime"));
    }
    conditions.sort_by_key(|one| one["type"].as_str().unwrap_or_default().to_owned());
    conditions
}

#[test]
fn after_each_report_the_cluster_has_the_node_of_the_board() {
    let of = node_status();
    for seed in 0..300 {
        let mut random = Random(seed);
        let registered = json!({ "metadata": { "name": "board" }, "status": random.node_status() });
        let mut registered = without_nulls(node::registration(&registered, "registered")["status"].take());
        let status = registered.as_object_mut().map(std::mem::take).expect("a status");
        let mut server = Server { status, of };
        let mut known = server.known();
        for step in 0..20 {
            let place = format!("seed {seed}, step {step}");
            if random.below(2) == 0 {
                let others = random.status_of_others(&server);
                server.patch(&others);
            }
            // Another agent reads the Node when it registers. The control plane and an earlier version may have changed
            // what is the board's.
            if random.below(4) == 0 {
                let mut changed = random.node_status();
                changed["conditions"] = json!([{ "type": "Ready", "status": "Unknown" }]);
                server.patch(&changed);
                known = server.known();
            }
            let local = json!({ "status": random.node_status() });
            let (now, before) = (format!("now {step}"), server.of_others());
            let patch = node::status_patch(&local, &known, &now);
            let seen = known["conditions"].as_array().cloned().unwrap_or_default();
            server.patch(&patch["status"]);

            let local = &local["status"];
            for field in OWN_FIELDS {
                let has = server.status.get(field).cloned().unwrap_or_default();
                assert_eq!(has, local[field], "{place}: {field}: {patch}");
            }
            for field in ["capacity", "allocatable"] {
                let has = server.amounts(field, |name| !RESOURCES_OF_OTHERS.contains(&name));
                assert_eq!(Value::from(has), local[field], "{place}: {field}: {patch}");
            }
            let is_own = |one: &&Value| {
                let kind = one["type"].as_str().unwrap_or_default();
                OWN_CONDITIONS.contains(&kind) || (kind == SHARED_CONDITION && one["status"] == "True")
            };
            let has = conditions(server.conditions().iter().filter(is_own));
            let wanted = conditions(local["conditions"].as_array().expect("conditions").iter());
            assert_eq!(has, wanted, "{place}: {patch}");
            for one in server.conditions().iter().filter(is_own) {
                assert_eq!(one["lastHeartbeatTime"], now, "{place}: {one}");
                // The time of the transition changes with the status that the board has seen, and only then.
                let before = seen.iter().find(|before| before["type"] == one["type"]);
                let Some(before) = before else { continue };
                let since = if before["status"] == one["status"] {
                    &before["lastTransitionTime"]
                } else {
                    &now.as_str().into()
                };
                assert_eq!(&one["lastTransitionTime"], since, "{place}: {one}");
            }
            // The board's own trouble replaces what a detector reported of the same kind.
            let mut kept = before;
            if local["conditions"].as_array().into_iter().flatten().any(|one| one["type"] == SHARED_CONDITION)
            {
                let all = kept["conditions"].as_array_mut().expect("conditions");
                all.retain(|one| one["type"] != SHARED_CONDITION);
            }
            // What others have as capacity is allocatable, as far as the board knows of it.
            for name in RESOURCES_OF_OTHERS {
                let of = |field: &str| known[field].get(name).cloned();
                match (of("capacity"), of("allocatable")) {
                    (Some(capacity), allocatable) if allocatable.as_ref() != Some(&capacity) => {
                        kept["allocatable"][name] = capacity;
                    }
                    (None, Some(_)) => {
                        drop(kept["allocatable"].as_object_mut().expect("amounts").remove(name))
                    }
                    (Some(_) | None, _) => {}
                }
            }
            assert_eq!(server.of_others(), kept, "{place}: {patch}");
            known = server.known();
            let again = json!({ "status": local });
            if node::is_unsettled(&known) {
                server.patch(&node::status_patch(&again, &known, &now)["status"]);
                known = server.known();
            }
            let of_others = server.of_others();
            assert_eq!(of_others["allocatable"], of_others["capacity"], "{place}");
            assert_eq!(of_others["capacity"], kept["capacity"], "{place}");
            let has = server.status.clone();
            server.patch(&node::status_patch(&again, &known, &now)["status"]);
            assert_eq!(server.status, has, "{place}: the same report changes something");
        }
    }
}
