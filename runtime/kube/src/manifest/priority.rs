//! Priorities: the priority that a pod gets at admission, from its class or without one. Pure.
//!
//! A pod keeps its priority, even if the class changes or is deleted later.

use std::rc::Rc;

use nodlet_core::sorted::SortedMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::kinds::priority_class::{BUILT_IN, Class};

/// The fields of a Pod's spec that admission computes, unless they were written.
const COMPUTED: [&str; 3] = ["preemptionPolicy", "priority", "priorityClassName"];

/// The existing classes, by name; the built-in ones need not be among them.
pub type Classes = SortedMap<Rc<str>, Class>;

/// The priority with which a pod was admitted. It is stored with the pod, since it does not change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Priority {
    /// `priorityClassName` as it was written; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    asked: String,
    /// `priorityClassName` as it is shown; it may be the default class.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    class: String,
    value: i32,
    /// Whether `preemptionPolicy` is `Never`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    never: bool,
}

impl Priority {
    /// Computes the priority of a Pod as it was written. `before` is the one with which the same pod was
    /// admitted earlier.
    ///
    /// # Errors
    /// The reason of a rejection, in the words of Kubernetes' admission.
    pub fn of(pod: &Value, classes: &Classes, before: Option<Priority>) -> Result<Priority, String> {
        let spec = &pod["spec"];
        let asked = spec["priorityClassName"].as_str().unwrap_or_default();
        // With another class it is another pod, even with the same uid.
        if let Some(before) = before.filter(|before| before.asked == asked) {
            return Ok(before);
        }
        let built_in = || BUILT_IN.iter().find(|(name, ..)| *name == asked);
        let default = Class { value: 0, global_default: false, never: false };
        let (name, class) = match (asked, classes.get(asked)) {
            ("", _) => {
                let defaults = classes.iter().filter(|(_, class)| class.global_default);
                let least = defaults.min_by_key(|(_, class)| class.value);
                least.map_or(("", default), |(name, class)| (&**name, *class))
            }
            (_, Some(class)) => (asked, *class),
            (_, None) => match built_in() {
                Some((_, value, _)) => (asked, Class { value: *value, ..default }),
                None => return Err(format!("no PriorityClass with name {asked} was found")),
            },
        };
        let computed = Priority {
            asked: asked.to_owned(),
            class: name.to_owned(),
            value: class.value,
            never: class.never,
        };
        let then = |what: &str, given: &str, right: &str| {
            format!(
                "the {what} ({given}) must not be provided in pod spec; priority admission controller computed {right} from the given PriorityClass name"
            )
        };
        if let Some(given) = spec["priority"].as_i64().filter(|given| *given != i64::from(class.value)) {
            return Err(then("integer value of priority", &given.to_string(), &class.value.to_string()));
        }
        if let Some(given) = spec["preemptionPolicy"].as_str().filter(|given| *given != computed.policy()) {
            return Err(then("string value of PreemptionPolicy", given, computed.policy()));
        }
        Ok(computed)
    }

    /// `spec.priority`.
    pub fn value(&self) -> i32 {
        self.value
    }

    /// `spec.priorityClassName`.
    pub fn class(&self) -> &str {
        &self.class
    }

    fn policy(&self) -> &'static str {
        if self.never { "Never" } else { "PreemptLowerPriority" }
    }

    /// Shows the priority in the object of its pod.
    pub fn show(&self, pod: &mut Value) {
        let Some(spec) = pod["spec"].as_object_mut() else { return };
        spec.insert("priority".to_owned(), self.value.into());
        spec.insert("preemptionPolicy".to_owned(), self.policy().into());
        if !self.class.is_empty() {
            spec.insert("priorityClassName".to_owned(), self.class.as_str().into());
        }
    }
}

/// Removes the computed priority fields from a Pod that a client sent back. `shown` is the object that was
/// sent out, and `written` the one that it was made of. A field that the client changed is kept, as a
/// request.
pub fn remove_computed(pod: &mut Value, shown: &Value, written: &Value) {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    for field in COMPUTED {
        if spec.get(field) == shown["spec"].get(field) && written["spec"].get(field).is_none() {
            spec.remove(field);
        }
    }
}

#[cfg(test)]
mod tests {
    use nodlet_fuzz::cases;
    use serde_json::json;

    use super::*;

    fn classes() -> Classes {
        let class = |value, global_default, never| Class { value, global_default, never };
        [
            ("high", class(1000, false, false)),
            ("shy", class(500, false, true)),
            ("usual", class(7, true, false)),
            ("other", class(9, true, false)),
        ]
        .map(|(name, class)| (name.into(), class))
        .into()
    }

    fn show(priority: Result<Priority, String>) -> String {
        priority.map_or_else(
            |error| error,
            |priority| format!("{:?} {} {}", priority.class, priority.value, priority.policy()),
        )
    }

    #[test]
    fn a_pod_has_the_priority_of_its_class_or_of_the_default_class() {
        for [spec, with_defaults, expected] in cases(
            r#"
                {} => false => "" 0 PreemptLowerPriority
                {"priorityClassName": ""} => false => "" 0 PreemptLowerPriority
                // Several default classes, which only a race can produce: the one with the lowest value applies.
                {} => true => "usual" 7 PreemptLowerPriority
                {"priorityClassName": "high"} => true => "high" 1000 PreemptLowerPriority
                {"priorityClassName": "shy"} => true => "shy" 500 Never
                {"priorityClassName": "system-cluster-critical"}
                    => false
                    => "system-cluster-critical" 2000000000 PreemptLowerPriority
                {"priorityClassName": "system-node-critical"}
                    => true
                    => "system-node-critical" 2000001000 PreemptLowerPriority
                {"priorityClassName": "low"} => true => no PriorityClass with name low was found
                {"priorityClassName": "high", "priority": 1000, "preemptionPolicy": "PreemptLowerPriority"}
                    => true
                    => "high" 1000 PreemptLowerPriority
                {"priorityClassName": "high", "priority": 1}
                    => true
                    => the integer value of priority (1) must not be provided in pod spec; priority admission controller computed 1000 from the given PriorityClass name
                {"priority": 2000001000}
                    => false
                    => the integer value of priority (2000001000) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name
                {"priorityClassName": "shy", "preemptionPolicy": "PreemptLowerPriority"}
                    => true
                    => the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in pod spec; priority admission controller computed Never from the given PriorityClass name
                {"preemptionPolicy": "Never"}
                    => false
                    => the string value of PreemptionPolicy (Never) must not be provided in pod spec; priority admission controller computed PreemptLowerPriority from the given PriorityClass name
            "#,
        ) {
            let spec: Value = serde_json::from_str(spec).expect("JSON");
            let with_defaults = with_defaults == "true";

            let classes = if with_defaults { classes() } else { Classes::new() };
            assert_eq!(show(Priority::of(&json!({"spec": spec}), &classes, None)), expected, "{spec}");
        }
    }

    #[test]
    fn a_pod_keeps_the_priority_that_it_was_admitted_with() {
        let pod = json!({"spec": {"priorityClassName": "high"}});
        let before = Priority::of(&pod, &classes(), None).unwrap();
        assert_eq!(Priority::of(&pod, &Classes::new(), Some(before.clone())), Ok(before.clone()));
        // A pod with another class is another pod.
        let other = json!({"spec": {"priorityClassName": "shy"}});
        assert_eq!(show(Priority::of(&other, &classes(), Some(before))), "\"shy\" 500 Never");
        // A pod without a class name keeps the default class.
        let plain = json!({"spec": {}});
        let before = Priority::of(&plain, &classes(), None).unwrap();
        let expected = "\"usual\" 7 PreemptLowerPriority";
        assert_eq!(show(Priority::of(&plain, &Classes::new(), Some(before.clone()))), expected);
        let usual = json!({"spec": {"priorityClassName": "usual"}});
        let expected = "no PriorityClass with name usual was found";
        assert_eq!(show(Priority::of(&usual, &Classes::new(), Some(before))), expected);
    }

    #[test]
    fn computed_priority_fields_are_removed_when_an_object_is_sent_back() {
        let written = json!({"spec": {"priorityClassName": "high"}});
        let mut shown = written.clone();
        Priority::of(&written, &classes(), None).unwrap().show(&mut shown);
        assert_eq!(
            shown["spec"],
            json!({"priorityClassName": "high", "priority": 1000, "preemptionPolicy": "PreemptLowerPriority"})
        );
        let mut back = shown.clone();
        remove_computed(&mut back, &shown, &written);
        assert_eq!(back, written);
        let mut changed = shown.clone();
        changed["spec"]["priority"] = 1.into();
        remove_computed(&mut changed, &shown, &written);
        assert_eq!(changed["spec"], json!({"priorityClassName": "high", "priority": 1}), "it is asked for");
    }
}
