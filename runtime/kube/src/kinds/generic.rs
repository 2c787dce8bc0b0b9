//! Kinds that kubectl has no columns and no description for: name and creation as a row, and each field below each
//! other as a description.

use serde_json::Value;

use super::describe::Tabs;
use super::describe::text::{entries, head};
use super::strategy::{Column, NAME, column};

pub(super) const COLUMNS: &[Column] =
    &[NAME, column("Created At", "/metadata/creationTimestamp").with_kind("date")];

/// Fields of `metadata` that are described before all others, or omitted.
const NAMED_FIELDS: [&str; 5] = ["annotations", "labels", "managedFields", "name", "namespace"];

/// Describes an object.
pub(super) fn describe(out: &mut Tabs, object: &Value, _: &[Value]) {
    head(out, object);
    let mut rest = object.clone();
    if let Some(metadata) = rest["metadata"].as_object_mut() {
        metadata.retain(|field, _| !NAMED_FIELDS.contains(&field.as_str()));
    }
    fields(out, 0, &rest);
}

/// `printUnstructuredContent`.
fn fields(out: &mut Tabs, level: usize, object: &Value) {
    for (field, value) in entries(object) {
        let title = title(field);
        match value {
            Value::Object(_) => {
                out.line(level, &format!("{title}:"));
                self::fields(out, level + 1, value);
            }
            Value::Array(list) => {
                out.line(level, &format!("{title}:"));
                for one in list {
                    match one {
                        Value::Object(_) => self::fields(out, level + 1, one),
                        one => out.line(level + 1, &scalar(one)),
                    }
                }
            }
            value => out.line(level, &format!("{title}:\t{}", scalar(value))),
        }
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<nil>".to_owned(),
        other => other.to_string(),
    }
}

/// The words of a field's name (`smartLabelFor`): `apiVersion` is `API Version`.
fn title(field: &str) -> String {
    const ACRONYMS: [&str; 4] = ["API", "URL", "UID", "GUID"];
    if !field.chars().all(|letter| letter.is_ascii_alphabetic() || letter == '-') {
        return field.to_owned();
    }
    let words = words(field).into_iter().map(|word| {
        let upper = word.to_ascii_uppercase();
        if ACRONYMS.contains(&upper.as_str()) {
            upper
        } else if word.chars().all(|letter| letter.is_ascii_lowercase()) {
            format!("{}{}", &upper[..1], &word[1..])
        } else {
            word
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A new word begins with a capital behind a small letter, and with the last of capitals before one,
/// unless those are an abbreviation; dashes are words, too.
fn words(field: &str) -> Vec<String> {
    let letters: Vec<char> = field.chars().collect();
    let is = |place: Option<usize>, such: fn(&char) -> bool| {
        place.and_then(|place| letters.get(place)).is_some_and(such)
    };
    let mut words: Vec<String> = Vec::new();
    for (place, letter) in letters.iter().enumerate() {
        let before = |many: usize| place.checked_sub(many);
        let follows_abbreviation =
            is(before(1), char::is_ascii_uppercase) && is(before(2), char::is_ascii_uppercase);
        let begins = match letter {
            '-' => !is(before(1), |letter| *letter == '-'),
            _ if is(before(1), |letter| *letter == '-') => true,
            'A'..='Z' if is(before(1), char::is_ascii_lowercase) => true,
            'A'..='Z' => is(Some(place + 1), char::is_ascii_lowercase) && !follows_abbreviation,
            _ => false,
        };
        match words.last_mut().filter(|_| !begins) {
            Some(word) => word.push(*letter),
            None => words.push(letter.to_string()),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::Strategy;

    #[test]
    fn names_of_fields_become_words() {
        for (field, expected) in [
            ("apiVersion", "API Version"),
            ("uid", "UID"),
            ("creationTimestamp", "Creation Timestamp"),
            ("matchLabels", "Match Labels"),
            ("hostIP", "Host IP"),
            ("podIPs", "Pod I Ps"),
            ("targetWWNs", "Target WWNs"),
            ("my-app", "My - App"),
            ("example.com/a", "example.com/a"),
            ("a_b", "a_b"),
        ] {
            assert_eq!(title(field), expected);
        }
    }

    #[test]
    fn list_elements_are_described_on_separate_lines() {
        let preset = serde_json::json!({
            "metadata": {"name": "a", "labels": {"x": "y"}, "uid": "7"},
            "spec": {"env": [{"name": "A", "value": "1"}, {"name": "B"}], "words": ["one", 2, null]},
        });
        assert_eq!(
            Strategy::new(COLUMNS, describe).describe(&preset, &[], None),
            "Name:         a\nNamespace:    \nLabels:       x=y\nAnnotations:  <none>\nMetadata:\n  UID:  7\nSpec:\n  \
             Env:\n    Name:   A\n    Value:  1\n    Name:   B\n  Words:\n    one\n    2\n    <nil>\n"
        );
    }
}
