//! In which documented fields two specs differ.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// The fields in docs/pods.md: `Type.field`, its type, and whether nodlet acts on it. annotations that
/// nodlet acts on are `Annotation.domain`, or `Annotation.name` without a domain of nodlet.
pub(super) fn documented() -> BTreeMap<String, (String, bool)> {
    let (mut fields, mut owner) = (BTreeMap::new(), "");
    for line in include_str!("../../../docs/pods.md").lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            owner = heading;
        } else if let Some((field, rest)) = line.strip_prefix("| `").and_then(|row| row.split_once("` | ")) {
            // An annotation of nodlet has two columns, and its row says what it does.
            let Some((kind, verdict)) = rest.split_once(" | ") else {
                let name = field.split(['/', ':']).next().unwrap_or_default();
                fields.insert(format!("Annotation.{name}"), ("string".to_owned(), true));
                continue;
            };
            let kind = kind.rsplit(' ').next().unwrap_or_default().to_owned();
            fields.insert(format!("{owner}.{field}"), (kind, verdict.starts_with("acts")));
        }
    }
    fields
}

/// The paths of the values in which two JSON values differ.
pub(super) fn differences(one: &Value, other: &Value, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let before = found.len();
    let mut descend = |key: String, one: &Value, other: &Value| {
        path.push(key);
        differences(one, other, path, found);
        path.pop();
    };
    match (one, other) {
        (Value::Object(_) | Value::Null, Value::Object(_) | Value::Null) => {
            let keys = |value: &Value| {
                value.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect::<BTreeSet<_>>()
            };
            for key in keys(one).union(&keys(other)) {
                descend(key.clone(), &one[key], &other[key]);
            }
        }
        (Value::Array(_) | Value::Null, Value::Array(_) | Value::Null) => {
            let length = |value: &Value| value.as_array().map_or(0, Vec::len);
            for index in 0..length(one).max(length(other)) {
                descend(index.to_string(), &one[index], &other[index]);
            }
        }
        _ => {}
    }
    if one != other && found.len() == before {
        found.push(path.clone());
    }
}

/// The fields through which a path below a pod's spec leads, each as `Type.field`.
pub(super) fn fields_of(path: &[String]) -> Vec<String> {
    thread_local!(static DOCUMENTED: BTreeMap<String, (String, bool)> = documented());
    DOCUMENTED.with(|documented| {
        let mut owner = "PodSpec".to_owned();
        let mut fields = Vec::new();
        for key in path.iter().filter(|key| key.parse::<usize>().is_err()) {
            let field = format!("{owner}.{key}");
            let Some((kind, _)) = documented.get(&field) else { break };
            owner.clone_from(kind);
            fields.push(field);
        }
        fields
    })
}

#[test]
fn differences_are_found_by_the_type_and_name_of_their_field() {
    let one = json!({"containers": [{"name": "a", "env": [{"name": "A", "value": "1"}]}]});
    let found = |other: &Value| {
        let mut paths = Vec::new();
        differences(&one, other, &mut Vec::new(), &mut paths);
        paths.iter().map(|path| fields_of(path).join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(found(&one), Vec::<String>::new());
    let other = json!({"containers": [{"name": "a", "env": [{"name": "A", "value": "2"}]}]});
    assert_eq!(found(&other), ["PodSpec.containers Container.env EnvVar.value"]);
    let other = json!({"containers": [{"name": "b", "env": [{"name": "A", "value": "1"}], "stdin": true}]});
    assert_eq!(found(&other), ["PodSpec.containers Container.name", "PodSpec.containers Container.stdin"]);
    let other =
        json!({"containers": [one["containers"][0].clone()], "volumes": [{"name": "v", "emptyDir": {}}]});
    assert_eq!(found(&other), ["PodSpec.volumes Volume.emptyDir", "PodSpec.volumes Volume.name"]);
}
