//! `labelSelector` and `fieldSelector`: parsing of selectors, and matching of objects.

use nodlet_core::sorted::SortedSet;
use serde_json::Value;

use super::Status;

/// The maximum number of requirements in one selector, because each object is compared with all of them.
const MAX_REQUIREMENTS: usize = 64;

/// Fields with a boolean value, as JSON pointers.
const FLAGS: [&str; 2] = ["/spec/hostNetwork", "/spec/unschedulable"];

/// The selector of a list or watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    In(SortedSet<String>),
    NotIn(SortedSet<String>),
    Exists,
    DoesNotExist,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldRequirement {
    /// A JSON pointer.
    pointer: String,
    equal: bool,
    value: String,
}

impl Selector {
    /// Parses the selectors. `known` are the supported fields of the resource.
    pub(super) fn parse(labels: &str, fields: &str, known: &[&str]) -> Result<Selector, Status> {
        let unable =
            |what: &str, why: String| Status::bad_request(format!("unable to parse {what} selector: {why}"));
        let labels = parse_labels(labels).map_err(|why| unable("label", why))?;
        let fields = parse_fields(fields, known).map_err(|why| unable("field", why))?;
        if labels.len() + fields.len() > MAX_REQUIREMENTS {
            return Err(Status::bad_request(format!(
                "a selector can have at most {MAX_REQUIREMENTS} requirements"
            )));
        }
        Ok(Selector { labels, fields })
    }

    /// Whether the selector matches everything, so that objects need not be parsed.
    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.labels.iter().all(|requirement| {
            let value = labels[requirement.key.as_str()].as_str();
            match &requirement.operator {
                Operator::In(values) => value.is_some_and(|value| values.contains(value)),
                Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        }) && self.fields.iter().all(|requirement| {
            let value = match object.pointer(&requirement.pointer) {
                Some(Value::String(text)) => text,
                Some(Value::Bool(true)) => "true",
                // Of these fields, an absent one is shown as false.
                _ if FLAGS.contains(&requirement.pointer.as_str()) => "false",
                _ => "",
            };
            (value == requirement.value) == requirement.equal
        })
    }
}

/// Parses a label selector: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
fn parse_labels(text: &str) -> Result<Vec<Requirement>, String> {
    let mut requirements = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (absent, after) = match rest.strip_prefix('!') {
            Some(after) => (true, after.trim_start()),
            None => (false, rest),
        };
        let end = after.find(|c: char| "=!,() ".contains(c)).unwrap_or(after.len());
        let (key, after) = after.split_at(end);
        if key.is_empty() {
            return Err(format!("found '{}', expected: identifier", first_token(after)));
        }
        let after = after.trim_start();
        let (operator, after) = if absent {
            (Operator::DoesNotExist, after)
        } else if let Some(after) = after.strip_prefix("!=") {
            let (value, after) = value(after);
            (Operator::NotIn([value].into()), after)
        } else if let Some(after) = after.strip_prefix("==").or(after.strip_prefix('=')) {
            let (value, after) = value(after);
            (Operator::In([value].into()), after)
        } else if let Some(after) = word(after, "in") {
            let (values, after) = values(after)?;
            (Operator::In(values), after)
        } else if let Some(after) = word(after, "notin") {
            let (values, after) = values(after)?;
            (Operator::NotIn(values), after)
        } else {
            (Operator::Exists, after)
        };
        requirements.push(Requirement { key: key.into(), operator });
        rest = match after.trim_start() {
            "" => "",
            more => more
                .strip_prefix(',')
                .ok_or_else(|| format!("found '{}', expected: ',' or 'end of string'", first_token(more)))?
                .trim_start(),
        };
    }
    Ok(requirements)
}

fn value(text: &str) -> (String, &str) {
    let text = text.trim_start();
    let end = text.find(|c: char| "=!,() ".contains(c)).unwrap_or(text.len());
    let (value, rest) = text.split_at(end);
    (value.into(), rest)
}

fn word<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.strip_prefix(word).filter(|rest| rest.starts_with([' ', '(']))
}

fn values(text: &str) -> Result<(SortedSet<String>, &str), String> {
    let text = text.trim_start();
    let inner =
        text.strip_prefix('(').ok_or_else(|| format!("found '{}', expected: '('", first_token(text)))?;
    let (inner, rest) = inner.split_once(')').ok_or("found '', expected: ',' or ')'")?;
    Ok((inner.split(',').map(|value| value.trim().into()).collect(), rest))
}

fn first_token(text: &str) -> &str {
    text.split_inclusive([',', ' ', ')']).next().unwrap_or("")
}

fn parse_fields(text: &str, known: &[&str]) -> Result<Vec<FieldRequirement>, String> {
    let mut requirements = Vec::new();
    for term in text.split(',').map(str::trim).filter(|term| !term.is_empty()) {
        let (name, equal, value) = if let Some((name, value)) = term.split_once("!=") {
            (name, false, value)
        } else if let Some((name, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
            (name, true, value)
        } else {
            return Err(format!("invalid selector: '{term}'; can't understand '{term}'"));
        };
        if !known.contains(&name) {
            return Err(format!("field label not supported: {name} (supported: {})", known.join(", ")));
        }
        requirements.push(FieldRequirement {
            pointer: format!("/{}", name.replace('.', "/")),
            equal,
            value: value.into(),
        });
    }
    Ok(requirements)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FIELDS: &[&str] = &["metadata.name", "spec.hostNetwork", "status.phase"];

    #[test]
    fn selectors_choose_as_kubernetes_does() {
        let object = json!({
            "metadata": {"name": "web", "labels": {"app": "web", "tier": "front", "app.kubernetes.io/name": "x"}},
            "status": {"phase": "Running"},
        });
        for (labels, fields, expected) in [
            ("", "", true),
            ("app=web", "", true),
            ("app==web,tier=front", "", true),
            ("app = web , tier = front", "", true),
            ("app=db", "", false),
            ("app!=db", "", true),
            ("none!=db", "", true),
            ("none=", "", false),
            ("app", "", true),
            ("!app", "", false),
            ("!none", "", true),
            ("app in (web, db),tier notin (back)", "", true),
            ("app in (db)", "", false),
            ("app.kubernetes.io/name=x", "", true),
            ("index=1", "", false),
            ("", "metadata.name=web", true),
            ("", "metadata.name!=web", false),
            ("app=web", "metadata.name=web,status.phase!=Failed", true),
            ("", "status.phase=", false),
            ("", "spec.hostNetwork=false", true),
            ("", "spec.hostNetwork=true", false),
        ] {
            let selector = Selector::parse(labels, fields, FIELDS).expect(labels);
            assert_eq!(selector.matches(&object), expected, "{labels} {fields}");
        }
    }

    #[test]
    fn wrong_selectors_are_refused() {
        let many = "a,".repeat(MAX_REQUIREMENTS + 1);
        for (labels, fields, expected) in [
            ("=web", "", "unable to parse label selector: found '=web', expected: identifier"),
            ("app in web", "", "unable to parse label selector: found 'web', expected: '('"),
            ("app in (web", "", "unable to parse label selector: found '', expected: ',' or ')'"),
            (
                "app=web tier",
                "",
                "unable to parse label selector: found 'tier', expected: ',' or 'end of string'",
            ),
            (
                "",
                "spec.foo=1",
                "unable to parse field selector: field label not supported: spec.foo \
                 (supported: metadata.name, spec.hostNetwork, status.phase)",
            ),
            (
                "",
                "metadata.name",
                "unable to parse field selector: invalid selector: 'metadata.name'; \
                can't understand 'metadata.name'",
            ),
            (&many, "", "a selector can have at most 64 requirements"),
        ] {
            let refused = Selector::parse(labels, fields, FIELDS).expect_err(labels);
            assert_eq!(refused.message, expected);
            assert_eq!(refused.code, 400);
        }
    }
}
