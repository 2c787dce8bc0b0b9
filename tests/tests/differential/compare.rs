//! [`Report`]: answers of both servers to the same requests, compared, with the differences by class.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

/// What a server answered to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn accepted(&self) -> bool {
        self.code < 300
    }

    fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or("no message")
    }

    /// Whether this is the refusal of a field that a board has no use for, which names the field.
    fn is_refused_by_name(&self) -> bool {
        self.code == 422 && self.message().contains("nodlet")
    }
}

/// How many answers agreed, and the classes of those that did not.
#[derive(Debug, Default)]
pub(crate) struct Report {
    verdicts: Share,
    texts: Share,
    objects: Share,
    refused_by_name: u32,
    classes: BTreeMap<String, (u32, String)>,
}

#[derive(Debug, Default)]
struct Share {
    equal: u32,
    all: u32,
}

impl Share {
    fn count(&mut self, equal: bool) -> bool {
        self.all += 1;
        self.equal += u32::from(equal);
        equal
    }
}

impl fmt::Display for Share {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = u64::from(self.equal) * 10_000 / u64::from(self.all.max(1));
        write!(formatter, "{} of {} ({}.{:02} %)", self.equal, self.all, hundredths / 100, hundredths % 100)
    }
}

impl Report {
    /// Compares the answers to a request.
    pub(crate) fn compare(&mut self, verb: &str, done: &str, real: &Answer, ours: &Answer) {
        if real.accepted() && ours.is_refused_by_name() {
            self.refused_by_name += 1;
            return;
        }
        if !self.verdicts.count(real.accepted() == ours.accepted()) {
            let refusal = if real.accepted() { ours } else { real };
            let class = format!(
                "{verb}: only {} accepts, the other: {}",
                if real.accepted() { "Kubernetes" } else { "nodlet" },
                shape(refusal.message())
            );
            self.differs(class, done, refusal.message());
        } else if !real.accepted() {
            if ours.is_refused_by_name() {
                self.refused_by_name += 1;
            } else if !self.texts.count(real.message() == ours.message()) {
                let class = format!("{verb}: text: {}", shape(real.message()));
                let both = format!("\n     K: {}\n     n: {}", real.message(), ours.message());
                self.differs(class, done, &both);
            }
        } else {
            let (mut one, mut other) = (real.body.clone(), ours.body.clone());
            plain(&mut one);
            plain(&mut other);
            if !self.objects.count(one == other) {
                for (path, a, b) in differences(&one, &other) {
                    self.differs(format!("{verb}: object: {path}"), done, &format!("{a} and {b}"));
                }
            }
        }
    }

    fn differs(&mut self, class: String, done: &str, what: &str) {
        let entry = self.classes.entry(class).or_insert_with(|| (0, format!("{done}: {what}")));
        entry.0 += 1;
    }

    /// Fails if fewer answers agree than is our target.
    pub(crate) fn require(&self) {
        let below = |share: &Share, thousandths: u64| {
            u64::from(share.equal) * 1000 < u64::from(share.all) * thousandths
        };
        assert!(!below(&self.verdicts, 999), "verdicts: {}", self.verdicts);
        assert!(!below(&self.objects, 999), "objects: {}", self.objects);
        assert!(!below(&self.texts, 950), "texts: {}", self.texts);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "verdicts: {}", self.verdicts)?;
        writeln!(formatter, "texts: {}", self.texts)?;
        writeln!(formatter, "objects: {}", self.objects)?;
        writeln!(formatter, "refused by name: {}", self.refused_by_name)?;
        let mut classes: Vec<_> = self.classes.iter().collect();
        classes.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        for (class, (count, example)) in classes {
            let example: String = example.chars().take(900).collect();
            writeln!(formatter, "{count:5} {class}\n      {example}")?;
        }
        Ok(())
    }
}

/// Removes what a server gives to an object and what no two have in common.
fn plain(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for name in ["uid", "creationTimestamp", "resourceVersion", "managedFields", "generation"] {
            metadata.remove(name);
        }
    }
    object["status"] = json!(null);
}

/// A text without its numbers and quoted values: the class of a message.
fn shape(text: &str) -> String {
    let mut shape = String::new();
    let mut quoted = false;
    for letter in text.chars().take(600) {
        if letter == '"' {
            quoted = !quoted;
            shape.push('"');
        } else if !quoted && !letter.is_ascii_digit() {
            shape.push(letter);
        }
    }
    shape.chars().take(260).collect()
}

/// The paths at which two values differ, with both values.
fn differences<'a>(one: &'a Value, other: &'a Value) -> Vec<(String, &'a Value, &'a Value)> {
    let mut found = Vec::new();
    differ(one, other, String::new(), &mut found);
    found
}

fn differ<'a>(
    one: &'a Value,
    other: &'a Value,
    path: String,
    found: &mut Vec<(String, &'a Value, &'a Value)>,
) {
    match (one, other) {
        (Value::Object(first), Value::Object(second)) => {
            let names: std::collections::BTreeSet<_> = first.keys().chain(second.keys()).collect();
            for name in names {
                differ(&one[name.as_str()], &other[name.as_str()], format!("{path}.{name}"), found);
            }
        }
        (Value::Array(first), Value::Array(second)) if first.len() == second.len() => {
            for (one, other) in first.iter().zip(second) {
                differ(one, other, format!("{path}[]"), found);
            }
        }
        _ if one != other => found.push((path, one, other)),
        _ => {}
    }
}
