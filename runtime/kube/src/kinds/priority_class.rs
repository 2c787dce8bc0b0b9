//! PriorityClasses (`scheduling.k8s.io/v1`): named priorities of pods, as they are read, and as `kubectl get` and
//! `kubectl describe priorityclass` print them. Pure.

use serde_json::{Value, json};

use super::definition::{self, Read, Reader};
use super::describe::Tabs;
use super::describe::text::{entries, of};
use super::strategy::{AGE, Column, NAME, Strategy, column, of as column_of};
use crate::object::check::Field;
use crate::object::error::ManifestError;
use crate::object::field::Errors;
use nodlet_core::spec::pod::{CRITICAL, NODE_CRITICAL};

/// The classes that always exist: name, value and description.
pub const BUILT_IN: [(&str, i32, &str); 2] = [
    (
        "system-cluster-critical",
        CRITICAL,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    (
        NODE_CRITICAL,
        CRITICAL + 1000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
];

/// The fields of a PriorityClass that admission uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// `value`.
    pub value: i32,
    /// `globalDefault`.
    pub global_default: bool,
    /// Whether `preemptionPolicy` is `Never`.
    pub never: bool,
}

/// The highest value of a class that is not built in (`HighestUserDefinablePriority`).
const HIGHEST: i64 = 1_000_000_000;

/// The prefix of the names of built-in classes.
const SYSTEM: &str = "system-";

pub(super) static STRATEGY: Strategy = Strategy {
    reader: Some(Reader { read: Read::Rules(rules), check_update }),
    ..Strategy::new(COLUMNS, describe)
};

const COLUMNS: &[Column] = &[
    NAME,
    column_of("Value", "value", |class, field, _| class[field].clone()).with_kind("integer"),
    column_of("Global-Default", "globalDefault", |class, field, _| (class[field] == true).into())
        .with_kind("boolean"),
    AGE,
    column("PreemptionPolicy", "/preemptionPolicy"),
];

fn describe(out: &mut Tabs, class: &Value, _: &[Value]) {
    let metadata = &class["metadata"];
    out.line(0, &format!("Name:\t{}", of(&metadata["name"])));
    out.line(0, &format!("Value:\t{}", class["value"].as_i64().unwrap_or_default()));
    out.line(0, &format!("GlobalDefault:\t{}", class["globalDefault"] == true));
    out.line(0, &format!("PreemptionPolicy:\t{}", of(&class["preemptionPolicy"])));
    out.line(0, &format!("Description:\t{}", of(&class["description"])));
    let annotations = entries(&metadata["annotations"]).into_iter();
    let mut annotations: Vec<String> =
        annotations.map(|(key, value)| format!("{key}={}", of(value))).collect();
    // As kubectl: the texts are sorted, and not the keys.
    annotations.sort();
    let annotations = if annotations.is_empty() { "<none>".to_owned() } else { annotations.join(",") };
    out.line(0, &format!("Annotations:\t{annotations}"));
}

/// The defaults of a class, and `ValidatePriorityClass`.
fn rules(class: &mut Value, metadata: &Value, errors: &mut Errors) {
    for (field, default) in [("value", json!(0)), ("preemptionPolicy", json!("PreemptLowerPriority"))] {
        if class[field].is_null() {
            class[field] = default;
        }
    }
    let (name, value) = (of(&metadata["name"]), class["value"].as_i64().unwrap_or_default());
    if name.starts_with(SYSTEM) {
        if let Some(why) = not_built_in(name, value, class["globalDefault"] == true) {
            Field::root(metadata, "metadata", errors).child("name").forbidden(format!(
                "priority class names with '{SYSTEM}' prefix are reserved for system use only. error: {why}"
            ));
        }
    } else if value > HIGHEST {
        let detail = format!("maximum allowed value of a user defined priority is {HIGHEST}");
        Field::root(&class["value"], "value", errors).forbidden(detail);
    }
    let policy = Field::root(&class["preemptionPolicy"], "preemptionPolicy", errors);
    policy.supported(&["Never", "PreemptLowerPriority"]);
}

/// Reads the relevant fields of a valid PriorityClass.
pub fn class(object: &Value) -> Class {
    Class {
        value: object["value"].as_i64().and_then(|value| i32::try_from(value).ok()).unwrap_or_default(),
        global_default: object["globalDefault"] == true,
        never: object["preemptionPolicy"] == "Never",
    }
}

/// Checks an update of a PriorityClass (`ValidatePriorityClassUpdate`).
///
/// # Errors
/// An immutable field has changed; the message is that of Kubernetes.
fn check_update(old: &Value, new: &Value) -> Result<(), ManifestError> {
    let mut errors = Errors::default();
    if old["value"] != new["value"] {
        Field::root(&new["value"], "value", &mut errors).forbidden("may not be changed in an update.");
    }
    definition::immutable(old, new, "preemptionPolicy", &mut errors);
    definition::refuse_update(new, errors)
}

fn not_built_in(name: &str, value: i64, default: bool) -> Option<String> {
    match BUILT_IN.iter().find(|(known, ..)| *known == name) {
        None => Some(format!("{name} is not a known system priority class")),
        Some((_, right, _)) if i64::from(*right) != value => {
            Some(format!("value of {name} PriorityClass must be {right}"))
        }
        Some(_) if default => Some(format!("globalDefault of {name} PriorityClass must be false")),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::definition::Definition;
    use crate::manifest::{Validation, contents, parse};
    use nodlet_fuzz::assert_ends_with;
    use nodlet_fuzz::cases;

    fn read(text: &str) -> Result<Definition, String> {
        let text = format!("apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\n{text}\n");
        let read = contents("c.yaml", text.as_bytes(), Validation::Strict, "board");
        read.map(|mut contents| contents.definitions.remove(0)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_class_has_the_defaults_of_kubernetes_and_no_namespace() {
        let class =
            read("metadata: {name: high, uid: a}\nvalue: 1000\ndescription: much").expect("it is right");
        assert_eq!(
            class.object(),
            json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": {"name": "high", "uid": "a", "generation": 1},
                "value": 1000, "description": "much", "preemptionPolicy": "PreemptLowerPriority",
            })
        );
        let shy = read("metadata: {name: shy}\nvalue: -5\npreemptionPolicy: Never\nglobalDefault: true")
            .expect("right");
        assert_eq!(self::class(&shy.object()), Class { value: -5, global_default: true, never: true });
        for known in BUILT_IN {
            read(&format!("metadata: {{name: {}}}\nvalue: {}", known.0, known.1)).expect("it is as it is");
        }
    }

    #[test]
    fn an_invalid_priority_class_is_rejected_with_the_errors_of_kubernetes() {
        for [text, expected] in cases(
            r#"
                metadata: {name: a}\nvalue: 1000000001
                    => value: Forbidden: maximum allowed value of a user defined priority is 1000000000
                metadata: {name: system-a}\nvalue: 1
                    => metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-a is not a known system priority class
                metadata: {name: system-node-critical}\nvalue: 1
                    => value of system-node-critical PriorityClass must be 2000001000
                metadata: {name: system-node-critical}\nvalue: 2000001000\nglobalDefault: true
                    => globalDefault of system-node-critical PriorityClass must be false
                metadata: {name: a}\npreemptionPolicy: Always
                    => preemptionPolicy: Unsupported value: "Always": supported values: "Never", "PreemptLowerPriority"
                metadata: {name: a}\nvalue: high => value: Invalid value
                metadata: {name: a}\nvalue: 2147483648 => value: Invalid value
                metadata: {name: A}\nvalue: 1 => metadata.name: Invalid value: "A"
                metadata: {}\nvalue: 1 => metadata.name: Required value: name or generateName is required
                metadata: {name: a}\nvaleu: 1 => unknown field "valeu"
            "#,
        ) {
            let text = &*text.replace("\\n", "\n");

            let refused = read(text).expect_err(text);
            assert!(refused.contains(expected), "{text}: {refused}");
            assert!(refused.contains("PriorityClass"), "{refused}");
        }
        let twice = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: a}\n---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: a}\n";
        let refused =
            parse("c.yaml", twice.as_bytes(), Validation::Strict, "board").expect_err("twice").to_string();
        assert!(refused.contains("priorityclass a is in this file twice"), "{refused}");
        let old = "apiVersion: scheduling.k8s.io/v1beta1\nkind: PriorityClass\nmetadata: {name: a}\n";
        let refused =
            parse("c.yaml", old.as_bytes(), Validation::Strict, "board").expect_err("old").to_string();
        assert!(refused.ends_with("write apiVersion: scheduling.k8s.io/v1"), "{refused}");
    }

    #[test]
    fn the_value_of_an_existing_class_is_immutable() {
        let class =
            |text: &str| read(&format!("metadata: {{name: a}}\n{text}")).expect("it is right").object();
        let old = class("value: 5");
        assert!(check_update(&old, &class("value: 5\ndescription: new\nglobalDefault: true")).is_ok());
        let refused = check_update(&old, &class("value: 6")).expect_err("another value").to_string();
        let expected =
            "The PriorityClass \"a\" is invalid: value: Forbidden: may not be changed in an update.";
        assert_eq!(refused, expected);
        let status = check_update(&old, &class("value: 6")).expect_err("another value").status();
        let expected = "PriorityClass.scheduling.k8s.io \"a\" is invalid: value: Forbidden: may not be changed in an update.";
        assert_eq!(status["message"], expected);
        let details = &status["details"];
        assert_eq!(json!([details["group"], details["kind"]]), json!(["scheduling.k8s.io", "PriorityClass"]));
        let refused =
            check_update(&old, &class("value: 5\npreemptionPolicy: Never")).expect_err("another policy");
        assert_ends_with(&refused, "preemptionPolicy: Invalid value: \"Never\": field is immutable");
    }
}
