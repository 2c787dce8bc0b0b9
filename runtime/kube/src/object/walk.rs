//! Checks an object against the schema: finds all unknown fields and values of the wrong type, with their
//! paths. Afterwards the object has only known fields, no nulls, and every value is of its field's type.

use std::fmt;

use serde_json::Value as Json;

use super::error::{ManifestCause, ManifestError};
use super::field::{Errors, FieldError, First, Path, cut};
use crate::schema::{self, Field, Shape, Type, Value};
use nodlet_core::spec::Quantity;
use nodlet_core::time::Timestamp;

/// The handling of unknown and duplicate fields (kubectl: `--validate`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Validation {
    /// Unknown and duplicate fields are errors.
    #[default]
    Strict,
    /// Unknown and duplicate fields are dropped with a warning.
    Warn,
    /// Unknown and duplicate fields are dropped.
    Ignore,
}

/// The result of a walk.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Fields that the schema does not have.
    pub(crate) unknown: First<Unknown>,
    /// Values of the wrong type.
    pub(crate) errors: Errors,
}

/// The warnings about unknown fields.
///
/// # Errors
/// There are such fields, and the validation is strict.
pub(crate) fn warnings(
    unknown: First<Unknown>,
    validation: Validation,
) -> Result<Vec<String>, ManifestError> {
    let messages = unknown.texts(ToString::to_string);
    match validation {
        Validation::Strict if !messages.is_empty() => {
            let paths = unknown.into_parts().0.into_iter().map(|unknown| unknown.path).collect();
            Err(ManifestError::new(ManifestCause::Strict { messages, paths }))
        }
        Validation::Warn => Ok(messages),
        Validation::Strict | Validation::Ignore => Ok(Vec::new()),
    }
}

/// A field that its type does not have.
#[derive(Debug)]
pub(crate) struct Unknown {
    pub(crate) path: String,
    /// The field that was probably meant.
    suggestion: Option<&'static str>,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown field \"{}\"", self.path)?;
        match self.suggestion {
            Some(field) => write!(f, " (did you mean \"{field}\"?)"),
            None => Ok(()),
        }
    }
}

/// Walks `object`, which is of the type `owner`.
pub(crate) fn check(object: &mut Json, owner: &str) -> Findings {
    let mut findings = Findings::default();
    if let (Json::Object(map), Some(owner)) = (object, schema::find(owner)) {
        fields(map, owner, None, &mut findings);
    }
    findings
}

fn fields(
    map: &mut serde_json::Map<String, Json>,
    owner: &Type,
    path: Option<&Path<'_>>,
    findings: &mut Findings,
) {
    map.retain(|name, value| {
        let path = path.map_or(Path::root(name), |path| path.child(name));
        let Some(field) = owner.field(name) else {
            findings.unknown.push_with(|| unknown(&path, name, owner));
            return false;
        };
        if is_absent_value(value, field, owner) {
            return false;
        }
        shape(value, field, &path, findings);
        true
    });
}

/// Scalars whose zero Kubernetes cannot distinguish from an absent field, by type. The other scalars are
/// pointers in its types, so that `false` or `0` is an explicit value.
const ZERO_IS_ABSENT: [(&str, &[&str]); 17] = [
    ("Container", &["stdin", "stdinOnce", "tty", "workingDir"]),
    ("ContainerPort", &["hostIP", "hostPort", "name"]),
    ("EmptyDirVolumeSource", &["medium"]),
    ("EnvFromSource", &["prefix"]),
    ("EnvVar", &["value"]),
    ("EphemeralContainer", &["stdin", "stdinOnce", "targetContainerName", "tty", "workingDir"]),
    ("HTTPGetAction", &["host"]),
    ("LocalObjectReference", &["name"]),
    ("ObjectMeta", &["generateName", "name", "namespace", "resourceVersion", "uid"]),
    ("PersistentVolumeClaimVolumeSource", &["readOnly"]),
    ("PodDNSConfigOption", &["name"]),
    (
        "PodSpec",
        &["hostIPC", "hostNetwork", "hostPID", "hostname", "nodeName", "priorityClassName", "subdomain"],
    ),
    ("Probe", &["initialDelaySeconds"]),
    ("ResourceFieldSelector", &["containerName"]),
    ("TCPSocketAction", &["host"]),
    ("Toleration", &["effect", "key", "operator", "value"]),
    ("VolumeMount", &["readOnly", "subPath", "subPathExpr"]),
];

/// Whether Kubernetes reads and shows the value as if the field were absent: a null, a list or map without
/// entries, some zeros.
fn is_absent_value(json: &Json, field: &Field, owner: &Type) -> bool {
    let zero =
        || ZERO_IS_ABSENT.iter().any(|(name, fields)| *name == owner.name && fields.contains(&field.name));
    match (field.shape, json) {
        (_, Json::Null) => true,
        (Shape::List(_), Json::Array(list)) => list.is_empty(),
        (Shape::Map, Json::Object(map)) => map.is_empty(),
        (Shape::One, Json::Bool(false)) => field.value == Value::Bool && zero(),
        (Shape::One, Json::Number(number)) => {
            number.as_i64() == Some(0) && field.value == Value::Int32 && zero()
        }
        (Shape::One, Json::String(text)) => text.is_empty() && field.value == Value::String && zero(),
        _ => false,
    }
}

fn shape(json: &mut Json, field: &Field, path: &Path<'_>, findings: &mut Findings) {
    match (field.shape, json) {
        (Shape::One, json) => value(json, field, path, findings),
        (Shape::List(_), Json::Array(list)) => {
            for (index, element) in list.iter_mut().enumerate() {
                zero_for_null(element, field);
                value(element, field, &path.index(index), findings);
            }
        }
        (Shape::List(_), json) => {
            findings.errors.push_with(|| FieldError::type_invalid(path, json, "must be a list"))
        }
        (Shape::Map, Json::Object(map)) => {
            for (key, element) in map {
                zero_for_null(element, field);
                value(element, field, &path.key(key), findings);
            }
        }
        (Shape::Map, json) => {
            findings.errors.push_with(|| FieldError::type_invalid(path, json, "must be a map"))
        }
    }
}

/// Replaces a null in a list or map by the type's zero, as Kubernetes does.
fn zero_for_null(json: &mut Json, field: &Field) {
    if json.is_null() {
        *json = match field.value {
            Value::Object(_) | Value::Any => Json::Object(serde_json::Map::new()),
            Value::String | Value::Time => Json::String(String::new()),
            Value::Bool => Json::Bool(false),
            Value::Int32 | Value::Int64 | Value::IntOrString | Value::Quantity => Json::from(0),
        };
    }
}

fn value(json: &mut Json, field: &Field, path: &Path<'_>, findings: &mut Findings) {
    let wrong = match field.value {
        Value::String if json.is_boolean() => Some(
            "must be a string: put it in quotes (YAML takes y, n, yes, no, on and off for true or false)"
                .to_owned(),
        ),
        Value::String => (!json.is_string()).then(|| "must be a string: put it in quotes".to_owned()),
        // A client that parses the object would fail.
        Value::Time => (!json.as_str().is_some_and(Timestamp::is_time))
            .then(|| "must be a time as in RFC 3339, such as 2006-01-02T15:04:05Z".to_owned()),
        Value::Bool => (!json.is_boolean()).then(|| "must be true or false, without quotes".to_owned()),
        Value::Int32 => integer(json, i64::from(i32::MIN), i64::from(i32::MAX)),
        Value::Int64 => integer(json, i64::MIN, i64::MAX),
        Value::IntOrString => {
            if json.is_string() {
                None
            } else {
                integer(json, i64::from(i32::MIN), i64::from(i32::MAX))
            }
        }
        Value::Quantity => quantity(json),
        Value::Any => (!json.is_object()).then(|| "must be an object".to_owned()),
        Value::Object(_) => match (&mut *json, field.object()) {
            (Json::Object(map), Some(owner)) => {
                fields(map, owner, Some(path), findings);
                None
            }
            _ => Some("must be an object with fields of its own".to_owned()),
        },
    };
    if let Some(detail) = wrong {
        findings.errors.push_with(|| FieldError::type_invalid(path, json, detail));
    }
}

fn integer(json: &Json, low: i64, high: i64) -> Option<String> {
    match json {
        Json::Number(number) if number.as_i64().is_some_and(|value| (low..=high).contains(&value)) => None,
        Json::Number(number) if number.is_f64() => Some("must be an integer".to_owned()),
        Json::Number(_) => Some(format!("must be an integer from {low} to {high}")),
        Json::String(text) if text.parse::<i64>().is_ok() => {
            Some("must be an integer, without quotes".to_owned())
        }
        Json::Null | Json::Bool(_) | Json::String(_) | Json::Array(_) | Json::Object(_) => {
            Some("must be an integer".to_owned())
        }
    }
}

/// Replaces a number by the text of its quantity.
fn quantity(json: &mut Json) -> Option<String> {
    let text = match json {
        Json::String(text) => text.trim().to_owned(),
        Json::Number(number) => number_text(number),
        Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => {
            return Some("must be a quantity, such as 500m or 64Mi".to_owned());
        }
    };
    match Quantity::parse(&text) {
        Ok(_) => {
            *json = Json::String(text);
            None
        }
        Err(error) => Some(error.to_string()),
    }
}

/// A number as Go writes it in JSON: without an exponent up to 10^21.
fn number_text(number: &serde_json::Number) -> String {
    match number.as_f64() {
        Some(value) if number.is_f64() && (1e-6..1e21).contains(&value.abs()) => format!("{value}"),
        Some(_) | None => number.to_string(),
    }
}

fn unknown(path: &Path<'_>, name: &str, owner: &Type) -> Unknown {
    let nearest = owner
        .fields
        .iter()
        .map(|field| (distance(name, field.name), field.name))
        .min()
        .filter(|(distance, field)| *distance <= 2 && *distance < field.len() / 2);
    Unknown { path: cut(path.to_string()), suggestion: nearest.map(|(_, field)| field) }
}

/// The number of letters to change, add, remove or swap to get from one name to the other; upper and lower
/// case count as equal.
fn distance(from: &str, to: &str) -> usize {
    // Names of very different lengths need no comparison.
    if from.len().abs_diff(to.len()) > 2 {
        return usize::MAX;
    }
    let from: Vec<char> = from.to_ascii_lowercase().chars().collect();
    let to: Vec<char> = to.to_ascii_lowercase().chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in to.iter().enumerate() {
            let mut cost = (last[j] + usize::from(a != b)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == to[j - 1] && from[i - 1] == *b {
                cost = cost.min(before[j - 1] + 1);
            }
            row.push(cost);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[to.len()]
}

#[cfg(test)]
mod tests {
    use nodlet_fuzz::cases;
    use serde_json::{Value as Json, json};

    use super::check;
    use crate::schema;

    fn walk(mut object: Json) -> (Json, Vec<String>) {
        let findings = check(&mut object, "Pod");
        let errors = findings.errors.iter().map(ToString::to_string);
        (object, findings.unknown.iter().map(ToString::to_string).chain(errors).collect())
    }

    #[test]
    fn unknown_fields_are_reported_with_their_path_and_a_similar_field() {
        for [object, expected] in cases(
            r#"
                {"spek": {}} => unknown field "spek" (did you mean "spec"?)
                {"spec": {"containers": [{}, {"comand": []}]}}
                    => unknown field "spec.containers[1].comand" (did you mean "command"?)
                {"spec": {"hostnetwork": true}} => unknown field "spec.hostnetwork" (did you mean "hostNetwork"?)
                {"spec": {"restartPolcy": ""}} => unknown field "spec.restartPolcy" (did you mean "restartPolicy"?)
                {"spec": {"replicas": 3}} => unknown field "spec.replicas"
                {"spec": {"containers": [{"resources": {"limit": {}}}]}}
                    => unknown field "spec.containers[0].resources.limit" (did you mean "limits"?)
                {"metadata": {"x": 1}} => unknown field "metadata.x"
            "#,
        ) {
            let object: Json = serde_json::from_str(object).expect("JSON");

            let (after, found) = walk(object);
            assert_eq!(found, [expected]);
            assert!(!after.to_string().contains("comand"), "an unknown field is dropped");
        }
    }

    #[test]
    fn values_of_the_wrong_type_are_reported_with_the_right_type() {
        for (object, expected) in [
            (json!({"spec": []}), "spec: Invalid value: []: must be an object with fields of its own"),
            (
                json!({"spec": {"containers": {"a": 1}}}),
                "spec.containers: Invalid value: {\"a\":1}: must be a list",
            ),
            (
                json!({"spec": {"containers": ["x"]}}),
                "spec.containers[0]: Invalid value: \"x\": must be an object with fields of its own",
            ),
            (
                json!({"spec": {"containers": [{"args": ["a", 1]}]}}),
                "spec.containers[0].args[1]: Invalid value: 1: must be a string: put it in quotes",
            ),
            (
                json!({"metadata": {"labels": {"a": true}}}),
                "metadata.labels[a]: Invalid value: true: must be a string: put it in quotes (YAML takes y, n, yes, no, on \
                 and off for true or false)",
            ),
            (json!({"metadata": {"labels": "x"}}), "metadata.labels: Invalid value: \"x\": must be a map"),
            (
                json!({"spec": {"hostNetwork": "true"}}),
                "spec.hostNetwork: Invalid value: \"true\": must be true or false, without quotes",
            ),
            (
                json!({"spec": {"activeDeadlineSeconds": "5"}}),
                "spec.activeDeadlineSeconds: Invalid value: \"5\": must be an integer, without quotes",
            ),
            (
                json!({"spec": {"activeDeadlineSeconds": 1.5}}),
                "spec.activeDeadlineSeconds: Invalid value: 1.5: must be an integer",
            ),
            (
                json!({"spec": {"priority": 3_000_000_000_u64}}),
                "spec.priority: Invalid value: 3000000000: must be an integer from -2147483648 to 2147483647",
            ),
            (
                json!({"spec": {"containers": [{"resources": {"limits": {"memory": "1K"}}}]}}),
                "spec.containers[0].resources.limits[memory]: Invalid value: \"1K\": unable to parse quantity's suffix",
            ),
            (
                json!({"spec": {"containers": [{"livenessProbe": {"tcpSocket": {"port": true}}}]}}),
                "spec.containers[0].livenessProbe.tcpSocket.port: Invalid value: true: must be an integer",
            ),
        ] {
            assert_eq!(walk(object).1, [expected]);
        }
    }

    #[test]
    fn fields_with_empty_values_count_as_missing() {
        let (after, found) = walk(json!({
            "spec": {"hostname": null, "subdomain": "", "hostPID": false, "volumes": [], "containers": [null, {"env": null, "args": [null]}], "nodeSelector": {"a": null}},
            "metadata": {"creationTimestamp": null}, "status": null,
        }));
        assert!(found.is_empty(), "{found:?}");
        assert_eq!(
            after,
            json!({"spec": {"containers": [{}, {"args": [""]}], "nodeSelector": {"a": ""}}, "metadata": {}})
        );
    }

    #[test]
    fn each_field_whose_zero_counts_as_absent_is_in_the_schema() {
        for (owner, fields) in super::ZERO_IS_ABSENT {
            for field in fields {
                assert!(schema::find(owner).unwrap().field(field).is_some(), "{owner}.{field}");
            }
        }
    }

    #[test]
    fn numbers_in_quantity_fields_become_quantities() {
        let limits =
            |value: Json| json!({"spec": {"containers": [{"resources": {"limits": {"cpu": value}}}]}});
        for (written, read) in
            [(json!(1), "1"), (json!(0.5), "0.5"), (json!(1e9), "1000000000"), (json!(" 2 "), "2")]
        {
            assert_eq!(walk(limits(written)), (limits(json!(read)), vec![]));
        }
    }
}
