//! [`Report`]: answers of both servers to the same requests, compared, with the differences by class.
//!
//! What is no difference is named here, and in `docs/differences.md`: [`EXCEPTIONS`] for texts, and [`plain`] for objects.

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

    /// Whether this is the refusal of a field that a board has no use for, which names the field, or of a value that
    /// could never run, which Kubernetes leaves to its nodes.
    fn is_refused_by_name(&self) -> bool {
        self.code == 422 && STRICTER.iter().any(|text| self.message().contains(text))
    }
}

/// What the refusals of nodlet contain that Kubernetes does not have: of fields that nodlet does not act on, of
/// `lifecycle.stopSignal`, which nodlet acts on without a feature gate, of `emptyDir.medium`, `nodeName`, relative paths
/// of `hostPath` and the length of names, which would keep a pod from starting.
const STRICTER: &[&str] = &[
    "nodlet",
    "lifecycle.stopSignal: ",
    "emptyDir.medium: Unsupported value",
    "hugePages storage requested",
    "this node is ",
    "must be an absolute path",
    "the directory of the pod's logs is named",
];

/// A text of Kubernetes in place of which nodlet has one of its own, on purpose.
struct Exception {
    /// The reason, as `docs/differences.md` gives it.
    name: &'static str,
    /// What Kubernetes' text contains.
    kubernetes: &'static str,
    /// What nodlet's text contains.
    nodlet: &'static str,
}

/// The texts that nodlet has of its own.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        name: "a value of a wrong type is named with its path and the type that would be right",
        kubernetes: "cannot unmarshal",
        nodlet: "Invalid value: ",
    },
    Exception {
        name: "a quantity that cannot be parsed is named with its path",
        kubernetes: "quantities must match the regular expression",
        nodlet: "quantit",
    },
    Exception {
        name: "a quantity that cannot be parsed is named with its path",
        kubernetes: "unable to parse quantity's suffix",
        nodlet: "unable to parse quantity's suffix",
    },
    Exception {
        name: "a time that cannot be parsed is named with its path",
        kubernetes: "parsing time ",
        nodlet: "must be a time as in RFC 3339",
    },
    Exception {
        name: "the version or kind of an object is refused with the one that would be right, after types and names",
        kubernetes: "strict decoding error: unknown field \"metadata\"",
        nodlet: "Object 'apiVersion' is missing",
    },
    Exception {
        name: "the version or kind of an object is refused with the one that would be right, after types and names",
        kubernetes: "no kind ",
        nodlet: "",
    },
    Exception {
        name: "the version or kind of an object is refused with the one that would be right, after types and names",
        kubernetes: "' is missing in ",
        nodlet: "",
    },
    Exception {
        name: "the version or kind of an object is refused with the one that would be right, after types and names",
        kubernetes: "the object provided is unrecognized",
        nodlet: "",
    },
    Exception {
        name: "the version or kind of an object is refused with the one that would be right, after types and names",
        kubernetes: "couldn't get version/kind",
        nodlet: "",
    },
];

/// How many answers agreed, and the classes of those that did not.
#[derive(Debug, Default)]
pub(crate) struct Report {
    verdicts: Share,
    texts: Share,
    objects: Share,
    own_texts: BTreeMap<&'static str, u32>,
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
            } else {
                self.compare_texts(verb, done, &said(real.message()), &said(ours.message()));
            }
        } else {
            let (mut one, mut other) = (real.body.clone(), ours.body.clone());
            if is_generated(&real.body, &ours.body) {
                one["metadata"]["name"] = other["metadata"]["name"].clone();
            }
            plain(&mut one);
            plain(&mut other);
            if !self.objects.count(one == other) {
                for (path, a, b) in differences(&one, &other) {
                    self.differs(format!("{verb}: object: {path}"), done, &format!("{a} and {b}"));
                }
            }
        }
    }

    fn compare_texts(&mut self, verb: &str, done: &str, real: &str, ours: &str) {
        let own = EXCEPTIONS
            .iter()
            .find(|one| real.contains(one.kubernetes) && ours.contains(one.nodlet))
            .map(|one| one.name)
            .or_else(|| {
                (ours != real && ours.starts_with(real)).then_some("nodlet's text goes on after Kubernetes'")
            });
        if let Some(name) = own {
            *self.own_texts.entry(name).or_default() += 1;
        } else if !self.texts.count(without_generated(real) == without_generated(ours)) {
            let class = format!("{verb}: text: {}", shape(real));
            self.differs(class, done, &format!("\n     K: {real}\n     n: {ours}"));
        }
    }

    fn differs(&mut self, class: String, done: &str, what: &str) {
        let entry = self.classes.entry(class).or_insert_with(|| (0, format!("{done}: {what}")));
        entry.0 += 1;
    }

    /// Fails if fewer answers agree than did in runs with several seeds.
    pub(crate) fn require(&self) {
        // One answer more may differ, since it is more than a thousandth of a short run.
        let below = |share: &Share, thousandths: u64| {
            u64::from(share.equal + 1) * 1000 < u64::from(share.all) * thousandths
        };
        assert!(!below(&self.verdicts, 999), "verdicts: {}", self.verdicts);
        assert!(!below(&self.objects, 999), "objects: {}", self.objects);
        assert!(!below(&self.texts, 985), "texts: {}", self.texts);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "verdicts: {}", self.verdicts)?;
        writeln!(formatter, "texts: {}", self.texts)?;
        writeln!(formatter, "objects: {}", self.objects)?;
        writeln!(formatter, "refused by name: {}", self.refused_by_name)?;
        for (name, count) in &self.own_texts {
            writeln!(formatter, "{count:5} own texts: {name}")?;
        }
        let mut classes: Vec<_> = self.classes.iter().collect();
        classes.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        for (class, (count, example)) in classes {
            let example: String = example.chars().take(900).collect();
            writeln!(formatter, "{count:5} {class}\n      {example}")?;
        }
        Ok(())
    }
}

/// Removes what a server gives to an object and what no two have in common: identity, the status, and what says that
/// a pod is on this board (`spec.nodeName`, and the kubelet's annotations of a pod's source).
fn plain(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        // Nothing has used `selfLink` since Kubernetes 1.20, and nodlet does not keep it.
        let of_server =
            ["uid", "creationTimestamp", "resourceVersion", "managedFields", "generation", "selfLink"];
        for name in of_server {
            metadata.remove(name);
        }
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|key, _| !key.starts_with("kubernetes.io/config."));
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
    }
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("nodeName");
    }
    object["status"] = json!(null);
}

/// A text without what Kubernetes writes of the whole object: the changes of a pod in Go's words, and the patched
/// object of which a field is wrong.
fn said(text: &str) -> String {
    const CHANGES: &str = "(allow it to be set to 1 if it was previously negative)";
    let mut text = text.to_owned();
    if let Some(start) = text.find(CHANGES) {
        text.truncate(start + CHANGES.len());
        text.push_str(if text.contains(" is invalid: [") { "]" } else { "" });
    }
    match text
        .trim_start()
        .strip_prefix("\"\" is invalid: patch: Invalid value: ")
        .and_then(|rest| rest.split_once("}\": ").or_else(|| rest.split_once("}\\n\": ")))
    {
        Some((_, said)) => format!("\"\" is invalid: patch: {said}"),
        None => text,
    }
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

/// A text without the five random characters of a generated name.
fn without_generated(text: &str) -> String {
    let name = text.strip_prefix("Pod \"").and_then(|rest| rest.split_once('"')).map_or("", |(name, _)| name);
    match name.len().checked_sub(5).and_then(|length| name.split_at_checked(length)) {
        Some((prefix, _)) => text.replace(name, prefix),
        None => text.to_owned(),
    }
}

/// Whether both objects got a name with random characters.
fn is_generated(one: &Value, other: &Value) -> bool {
    let of = |object: &Value| {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (prefix, name) = (text("generateName"), text("name"));
        (!prefix.is_empty() && name.starts_with(&prefix)).then_some((prefix, name.len()))
    };
    of(one).is_some() && of(one) == of(other)
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
                let path = format!("{path}.{name}");
                match (first.get(name), second.get(name)) {
                    (Some(one), Some(other)) => differ(one, other, path, found),
                    (_, _) => found.push((path, &one[name.as_str()], &other[name.as_str()])),
                }
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
