//! RuntimeClasses (`node.k8s.io/v1`): what pods of a class take besides their containers (`overhead`), and which nodes
//! run them (`scheduling`), applied when a pod is admitted (plugin `RuntimeClass` of Kubernetes), and as `kubectl get
//! runtimeclasses` prints them. Pure.
//!
//! The values that a pod got from its class are stored with the pod, as defaults of LimitRanges are ([`AppliedPreset`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::applied::AppliedPreset;
use super::definition::{self, Read, Reader};
use super::generic;
use super::strategy::{AGE, NAME, Strategy, column};
use crate::object::check::Field;
use crate::object::error::ManifestError;
use crate::object::field::Errors;
use crate::object::rules;
use crate::object::value::{list, map, text};
use crate::pod::validate::{self, resources};
use nodlet_core::spec::Quantity;

/// The only handler, and the name of the class that needs no object.
const HANDLER: &str = "nodlet";

pub(super) static STRATEGY: Strategy = Strategy {
    reader: Some(Reader { read: Read::Rules(rules), check_update }),
    ..Strategy::new(&[NAME, column("Handler", "/handler"), AGE], generic::describe)
};

/// Checks a class (`ValidateRuntimeClass`), and that nodlet provides what it requests.
fn rules(class: &mut Value, _: &Value, errors: &mut Errors) {
    let handler = Field::root(&class["handler"], "handler", errors);
    if handler.text().is_empty() {
        handler.required("");
    } else if handler.check(rules::dns_label) {
        handler.supported(&[HANDLER]);
    }
    if let Some(overhead) = class.get("overhead") {
        resources::overhead(Field::root(overhead, "overhead", errors));
    }
    let scheduling = Field::root(&class["scheduling"], "scheduling", errors);
    scheduling.child("nodeSelector").labels();
    validate::tolerations(scheduling);
    let mut known = BTreeSet::new();
    for toleration in scheduling.items("tolerations") {
        let printed = toleration.value.to_string();
        if !known.insert(printed.clone()) {
            toleration.duplicate_of(&printed);
        }
        if let Some(seconds) = toleration.get("tolerationSeconds") {
            seconds.forbidden("nodlet ends no pod for a taint: remove this field");
        }
    }
}

/// Checks an update of a RuntimeClass (`ValidateRuntimeClassUpdate`).
///
/// # Errors
/// The handler has changed.
fn check_update(old: &Value, new: &Value) -> Result<(), ManifestError> {
    let mut errors = Errors::default();
    definition::immutable(old, new, "handler", &mut errors);
    definition::refuse_update(new, errors)
}

/// Additions to a new pod from its class, which `find` looks up.
///
/// # Errors
/// The message of Kubernetes' admission: the class does not exist, or the pod has another overhead.
pub fn applied(pod: &Value, find: impl Fn(&str) -> Option<Value>) -> Result<Map<String, Value>, String> {
    let spec = &pod["spec"];
    let name = spec["runtimeClassName"].as_str();
    let class = match name {
        None | Some("") => Value::Null,
        Some(name) => match find(name) {
            Some(class) => class,
            None if name == HANDLER => Value::Null,
            None => return Err(format!("pod rejected: RuntimeClass {name:?} not found")),
        },
    };
    let (own, overhead) = (&spec["overhead"], &class["overhead"]["podFixed"]);
    let is_set = map(own).next().is_some();
    if is_set && map(overhead).next().is_none() {
        return Err(
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead".to_owned()
        );
    }
    if is_set && !is_same(own, overhead) {
        return Err("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".to_owned());
    }
    let mut given = Map::new();
    given.insert("overhead".to_owned(), overhead.clone());
    for field in ["nodeSelector", "tolerations"] {
        given.insert(field.to_owned(), class["scheduling"][field].clone());
    }
    given.retain(|_, value| !value.is_null());
    Ok(given)
}

/// Whether two overheads have the same amounts.
fn is_same(one: &Value, other: &Value) -> bool {
    let amounts = |of| map(of).map(|(name, amount)| (name, amount.as_str().map(Quantity::parse)));
    amounts(one).eq(amounts(other))
}

/// Adds to a pod what it got from its class (`setOverhead`, `setScheduling`).
///
/// # Errors
/// The node selectors contradict each other; the message is that of Kubernetes' admission.
pub(crate) fn apply(pod: &mut Value, applied: &AppliedPreset) -> Result<(), String> {
    let spec = &mut pod["spec"];
    if let Some(overhead) = applied.spec.get("overhead") {
        spec["overhead"] = overhead.clone();
    }
    for (key, value) in map(&applied.spec["nodeSelector"]) {
        if let Some(own) = spec["nodeSelector"].get(key).filter(|own| *own != value) {
            let [class, own] = [value, own].map(|value| value.as_str().unwrap_or_default());
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {class}; pod.spec.nodeSelector[{key}] = {own}"
            ));
        }
        spec["nodeSelector"][key] = value.clone();
    }
    let added = list(&applied.spec, "tolerations");
    if !added.is_empty() {
        let all: Vec<&Value> = list(spec, "tolerations").iter().chain(added).collect();
        let mut later = Widest::default();
        let mut is_covered_later: Vec<bool> = all.iter().rev().map(|one| later.add(one)).collect();
        let mut merged = Widest::default();
        let mut kept = Vec::new();
        for toleration in all {
            if is_covered_later.pop() == Some(false) && !merged.covers(toleration) {
                merged.add(toleration);
                kept.push(toleration.clone());
            }
        }
        spec["tolerations"] = Value::Array(kept);
    }
    Ok(())
}

/// Of the tolerations that differ only in their seconds, the two that tolerate most: a Pod can have so many tolerations
/// that comparing each with all others takes minutes.
#[derive(Default)]
struct Widest<'a>(BTreeMap<(&'a str, &'a str, Option<&'a str>), Vec<&'a Value>>);

impl<'a> Widest<'a> {
    /// Adds a toleration. Returns whether another one covers it.
    fn add(&mut self, toleration: &'a Value) -> bool {
        let is_covered =
            self.all_that_may_cover(toleration).any(|other| other != toleration && covers(other, toleration));
        let [key, effect, value] = ["key", "effect", "value"].map(|field| text(toleration, field));
        let exists = text(toleration, "operator") == "Exists";
        let widest = self.0.entry((key, effect, (!exists).then_some(value))).or_default();
        if !widest.contains(&toleration) {
            widest.push(toleration);
            widest.sort_by_key(|one| Reverse(one["tolerationSeconds"].as_i64().unwrap_or(i64::MAX)));
            widest.truncate(2);
        }
        is_covered
    }

    /// Whether one of the tolerations covers this one.
    fn covers(&self, toleration: &Value) -> bool {
        self.all_that_may_cover(toleration).any(|other| covers(other, toleration))
    }

    fn all_that_may_cover<'s>(&'s self, other: &'s Value) -> impl Iterator<Item = &'a Value> + use<'s, 'a> {
        let [key, effect, value] = ["key", "effect", "value"].map(|field| text(other, field));
        let classes = [key, ""].into_iter().flat_map(move |key| {
            let of_key = [effect, ""].into_iter();
            of_key.flat_map(move |effect| [(key, effect, None), (key, effect, Some(value))])
        });
        classes.flat_map(|class| self.0.get(&class).into_iter().flatten().copied())
    }
}

/// Whether a toleration tolerates everything that the other one does (`isSuperset`).
fn covers(toleration: &Value, other: &Value) -> bool {
    let [key, effect] = ["key", "effect"].map(|field| text(toleration, field));
    let exists = text(toleration, "operator") == "Exists";
    let seconds = |of: &Value| of["tolerationSeconds"].as_i64();
    let is_shorter = match (seconds(toleration), seconds(other)) {
        (Some(most), Some(seconds)) => seconds > most,
        (most, _) => most.is_some(),
    };
    toleration == other
        || (key == text(other, "key") || key.is_empty() && exists)
            && (effect == text(other, "effect") || effect.is_empty())
            && !(effect == "NoExecute" && is_shorter)
            && (exists
                || text(other, "operator") != "Exists" && text(toleration, "value") == text(other, "value"))
}

#[cfg(test)]
mod tests {
    use nodlet_fuzz::{Random, cases};
    use serde_json::json;

    use super::*;
    use crate::manifest::{Validation, contents, inject, parse};

    fn class(text: &str) -> Result<Value, String> {
        let text =
            format!("apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {{name: small}}\n{text}\n");
        let read = contents("c.yaml", text.as_bytes(), Validation::Strict, "board");
        read.map(|mut contents| contents.definitions.remove(0).object()).map_err(|error| error.to_string())
    }

    fn pod(spec: &str) -> Value {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{containers: [{{name: app, image: i}}], {spec}}}\n"
        );
        parse("p.yaml", text.as_bytes(), Validation::Strict, "board").expect("valid").remove(0).object
    }

    fn admitted(pod: &Value, class: &Value) -> Result<Value, String> {
        let spec = applied(pod, |name| (name == "small").then(|| class.clone()))?;
        let mut pod = pod.clone();
        let applied =
            AppliedPreset { name: String::new(), version: String::new(), spec: Value::Object(spec) };
        inject(&mut pod, &[applied])?;
        Ok(pod["spec"].take())
    }

    const SMALL: &str = "handler: nodlet\noverhead: {podFixed: {memory: 16Mi, cpu: 250m}}\nscheduling:\n  \
                         nodeSelector: {zone: a}\n  tolerations: [{key: lab, operator: Exists}]";

    #[test]
    fn a_pod_gets_overhead_node_selector_and_tolerations_of_its_class() {
        let small = class(SMALL).expect("valid");
        let spec = admitted(&pod("runtimeClassName: small"), &small).expect("nothing contradicts it");
        assert_eq!(spec["overhead"], json!({"cpu": "250m", "memory": "16Mi"}));
        assert_eq!(spec["nodeSelector"], json!({"zone": "a"}));
        assert_eq!(spec["tolerations"], json!([{"key": "lab", "operator": "Exists"}]));
        // What the pod has already stays, and a toleration that another one covers is left out.
        let own = "runtimeClassName: small, overhead: {cpu: 250m, memory: 16Mi}, nodeSelector: {zone: a, rank: b}, \
                   tolerations: [{key: lab, value: x, effect: NoExecute}, {key: k, operator: Exists, effect: NoExecute}]";
        let spec = admitted(&pod(own), &small).expect("nothing contradicts it");
        assert_eq!(spec["nodeSelector"], json!({"rank": "b", "zone": "a"}));
        assert_eq!(
            spec["tolerations"],
            json!([{"key": "k", "operator": "Exists", "effect": "NoExecute"}, {"key": "lab", "operator": "Exists"}])
        );
        let plain = admitted(&pod("runtimeClassName: small"), &class("handler: nodlet").expect("valid"));
        assert_eq!(plain.expect("it requests nothing"), pod("runtimeClassName: small")["spec"]);
        assert_eq!(
            admitted(&pod("runtimeClassName: nodlet"), &small).expect("built in")["overhead"],
            Value::Null
        );
    }

    #[test]
    fn a_pod_that_contradicts_its_class_is_rejected_with_the_texts_of_kubernetes() {
        let small = class(SMALL).expect("valid");
        for [spec, expected] in cases(
            r#"
            runtimeClassName: kata => pod rejected: RuntimeClass "kata" not found
            runtimeClassName: small, overhead: {cpu: 1}
                => pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead
            overhead: {cpu: 1} => pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead
            runtimeClassName: small, nodeSelector: {zone: b}
                => conflict: runtimeClass.scheduling.nodeSelector[zone] = a; pod.spec.nodeSelector[zone] = b
            "#,
        ) {
            assert_eq!(admitted(&pod(spec), &small), Err(expected.to_owned()), "{spec}");
        }
    }

    #[test]
    fn an_invalid_runtime_class_is_rejected_with_the_field() {
        for [text, expected] in cases(
            r#"
                overhead: {} => handler: Required value
                handler: A_b => handler: Invalid value: "A_b": a lowercase RFC 1123 label
                handler: runc => handler: Unsupported value: "runc": supported values: "nodlet"
                handler: nodlet\noverhead: {podFixed: {cpu: -1}} => overhead.limits[cpu]: Invalid value: "-1"
                handler: nodlet\noverhead: {podFixed: {example.com/gpu: 1}}
                    => overhead.limits[example.com/gpu]: Unsupported value: "example.com/gpu"
                handler: nodlet\nscheduling: {nodeSelector: {a b: c}} => scheduling.nodeSelector: Invalid value
                handler: nodlet\nscheduling: {tolerations: [{key: a, operator: Exists}, {key: a, operator: Exists}]}
                    => scheduling.tolerations[1]: Duplicate value
                handler: nodlet\nscheduling: {tolerations: [{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 1}]}
                    => scheduling.tolerations[0].tolerationSeconds: Forbidden
                handler: nodlet\noverheads: {} => unknown field "overheads"
            "#,
        ) {
            let text = &*text.replace("\\n", "\n");

            let refused = class(text).expect_err(text);
            assert!(refused.contains(expected), "{text}: {refused}");
        }
        let (old, new) = (json!({"handler": "nodlet"}), json!({"handler": "other", "kind": "RuntimeClass"}));
        let refused = check_update(&old, &new).expect_err("another handler").to_string();
        assert!(refused.ends_with("handler: Invalid value: \"other\": field is immutable"), "{refused}");
        assert!(check_update(&old, &old).is_ok());
    }

    #[test]
    fn merged_tolerations_are_those_that_no_other_of_all_covers() {
        for seed in 0..500 {
            let mut random = Random::of(seed);
            let toleration = |_| {
                let mut one = json!({});
                for (field, values) in [
                    ("key", &["a", "b", ""][..]),
                    ("effect", &["NoExecute", "NoSchedule", ""]),
                    ("operator", &["Exists", "Equal", ""]),
                    ("value", &["x", "y", ""]),
                ] {
                    match values[random.below(3)] {
                        "" if random.one_in(2) => {}
                        value => one[field] = value.into(),
                    }
                }
                if random.one_in(2) {
                    one["tolerationSeconds"] = random.below(3).into();
                }
                one
            };
            let all: Vec<Value> = (0..8).map(toleration).collect();
            let mut expected: Vec<Value> = Vec::new();
            for (index, one) in all.iter().enumerate() {
                let later = &all[index + 1..];
                if !expected.iter().any(|other| covers(other, one))
                    && !later.iter().any(|other| other != one && covers(other, one))
                {
                    expected.push(one.clone());
                }
            }
            let mut pod = json!({"spec": {"tolerations": all[..4]}});
            let class = json!({"tolerations": all[4..]});
            let applied = AppliedPreset { name: String::new(), version: String::new(), spec: class };
            apply(&mut pod, &applied).expect("no selector");
            assert_eq!(pod["spec"]["tolerations"], Value::Array(expected), "{all:?}");
        }
    }
}
