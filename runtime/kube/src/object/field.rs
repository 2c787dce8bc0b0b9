//! Errors about fields, byte for byte as Kubernetes writes them, and the paths that they name.

use std::fmt;

use serde_json::{Value, json};

use crate::kind::Row;

/// The path of a field in an object: `spec.containers[0].resources.limits[cpu]`. It lives on the stack of the
/// walk, and becomes text only for an error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    part: Part<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Part<'a> {
    Child(&'a str),
    Index(usize),
    /// An element of the list of this name.
    Item(&'a str, usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    /// The path of a field of the object itself.
    pub(crate) const fn root(name: &'a str) -> Self {
        Path { parent: None, part: Part::Child(name) }
    }

    pub(crate) const fn child<'b>(&'b self, name: &'b str) -> Path<'b> {
        Path { parent: Some(self), part: Part::Child(name) }
    }

    pub(crate) const fn index(&self, index: usize) -> Path<'_> {
        Path { parent: Some(self), part: Part::Index(index) }
    }

    /// The path of an element of the list of this name.
    pub(crate) const fn item<'b>(&'b self, name: &'b str, index: usize) -> Path<'b> {
        Path { parent: Some(self), part: Part::Item(name, index) }
    }

    pub(crate) const fn key<'b>(&'b self, key: &'b str) -> Path<'b> {
        Path { parent: Some(self), part: Part::Key(key) }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.part {
            Part::Child(name) if self.parent.is_none() => f.write_str(name),
            Part::Child(name) => write!(f, ".{name}"),
            Part::Index(index) => write!(f, "[{index}]"),
            Part::Item(name, index) => write!(f, ".{name}[{index}]"),
            Part::Key(key) => write!(f, "[{key}]"),
        }
    }
}

/// An error about a field. Displayed as `PATH: TEXT[: VALUE][: DETAIL]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The path of the field.
    pub path: String,
    /// The kind of error.
    pub kind: FieldErrorKind,
    /// The value as printed; empty if the kind of error prints none.
    pub value: String,
    /// The rule that was broken; may be empty.
    pub detail: String,
}

/// The kinds of [`FieldError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// A value is missing.
    Required,
    /// The field must not be set here.
    Forbidden,
    /// The value breaks a rule.
    Invalid,
    /// The value is not in the list of supported values.
    NotSupported,
    /// The value occurs twice.
    Duplicate,
    /// The value refers to something that does not exist.
    NotFound,
    /// The value has too many bytes.
    TooLong,
    /// The list has too many items.
    TooMany,
    /// The value is of another type than the field.
    TypeInvalid,
}

impl FieldErrorKind {
    /// `reason` of a cause in a `Status`, the text before the value, and whether the value is printed.
    const fn texts(self) -> (&'static str, &'static str, bool) {
        match self {
            FieldErrorKind::Required => ("FieldValueRequired", "Required value", false),
            FieldErrorKind::Forbidden => ("FieldValueForbidden", "Forbidden", false),
            FieldErrorKind::Invalid => ("FieldValueInvalid", "Invalid value", true),
            FieldErrorKind::NotSupported => ("FieldValueNotSupported", "Unsupported value", true),
            FieldErrorKind::Duplicate => ("FieldValueDuplicate", "Duplicate value", true),
            FieldErrorKind::NotFound => ("FieldValueNotFound", "Not found", true),
            FieldErrorKind::TooLong => ("FieldValueTooLong", "Too long", false),
            FieldErrorKind::TooMany => ("FieldValueTooMany", "Too many", true),
            FieldErrorKind::TypeInvalid => ("FieldValueTypeInvalid", "Invalid value", true),
        }
    }
}

/// Upper bound of the errors that are reported of one object. A text can break some ten thousand rules, each
/// of them with a message longer than itself.
const MAX_REPORTED: usize = 64;

/// The first [`MAX_REPORTED`] items for an object, and the count of further ones.
#[derive(Debug, PartialEq)]
pub(crate) struct First<T> {
    reported: Vec<T>,
    more: usize,
}

/// The errors of an object.
pub(crate) type Errors = First<FieldError>;

impl<T> Default for First<T> {
    fn default() -> Self {
        First { reported: Vec::new(), more: 0 }
    }
}

impl<T> First<T> {
    pub(crate) fn push(&mut self, one: T) {
        self.push_with(|| one);
    }

    /// Adds an item, and formats it only if it is among the first.
    pub(crate) fn push_with(&mut self, one: impl FnOnce() -> T) {
        if !self.is_full() {
            self.reported.push(one());
        } else {
            self.more += 1;
        }
    }

    /// Whether a further item is only counted.
    pub(crate) fn is_full(&self) -> bool {
        self.reported.len() >= MAX_REPORTED
    }

    /// Adds to the count of further items, which are not formatted.
    pub(crate) fn add_more(&mut self, more: usize) {
        self.more += more;
    }

    pub(crate) fn extend(&mut self, ones: impl IntoIterator<Item = T>) {
        ones.into_iter().for_each(|one| self.push(one));
    }

    /// Adds all items of another list.
    pub(crate) fn append(&mut self, other: Self) {
        let (ones, more) = other.into_parts();
        self.extend(ones);
        self.more += more;
    }

    /// The number of all items, including the unreported ones.
    pub(crate) fn len(&self) -> usize {
        self.reported.len() + self.more
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.reported.iter()
    }

    /// The reported items, and the count of further ones.
    pub(crate) fn into_parts(self) -> (Vec<T>, usize) {
        (self.reported, self.more)
    }

    /// The text of each item; the last text says how many are not reported.
    pub(crate) fn texts(&self, text: impl Fn(&T) -> String) -> Vec<String> {
        self.reported.iter().map(text).chain(and_more(self.more)).collect()
    }
}

/// The text that follows the reported items.
fn and_more(more: usize) -> Option<String> {
    (more > 0).then(|| format!("and {more} more"))
}

/// The longest path that is reported: keys of maps may be as long as a file.
const MAX_PATH: usize = 1024;

/// Cuts a path to at most [`MAX_PATH`] bytes.
pub(crate) fn cut(mut path: String) -> String {
    if path.len() > MAX_PATH {
        path.truncate(path.floor_char_boundary(MAX_PATH));
        path.push('…');
        path.shrink_to_fit();
    }
    path
}

impl FieldError {
    pub(crate) fn new(
        path: &Path<'_>,
        kind: FieldErrorKind,
        value: String,
        detail: impl Into<String>,
    ) -> Self {
        FieldError { path: cut(path.to_string()), kind, value, detail: detail.into() }
    }

    pub(crate) fn type_invalid(path: &Path<'_>, value: &Value, detail: impl Into<String>) -> Self {
        Self::new(path, FieldErrorKind::TypeInvalid, printed(value), detail)
    }

    /// The text after the path.
    pub fn body(&self) -> String {
        let (_, text, prints_value) = self.kind.texts();
        let mut text = text.to_owned();
        if prints_value {
            text.push_str(": ");
            text.push_str(&self.value);
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

/// The API server's answer (HTTP 422) if it rejects an object of the kind of `row`. `more` is the count of errors that
/// are not among `errors`.
pub(crate) fn invalid_status(row: &Row, name: &str, errors: &[FieldError], more: usize) -> Value {
    let mut texts: Vec<String> = Vec::new();
    for error in errors {
        let text = error.to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.extend(and_more(more));
    let all = if texts.len() == 1 { texts.remove(0) } else { format!("[{}]", texts.join(", ")) };
    let causes: Vec<Value> = errors
        .iter()
        .map(|error| json!({ "reason": error.kind.texts().0, "field": error.path, "message": error.body() }))
        .collect();
    let mut status = json!({
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "reason": "Invalid",
        "code": 422,
        "message": format!("{} {} is invalid: {all}", row.qualified_kind(), quoted(name)),
        "details": { "name": name, "kind": row.name, "causes": causes },
    });
    if !row.group().is_empty() {
        status["details"]["group"] = row.group().into();
    }
    status
}

/// The errors as a text for people, as kubectl prints it.
pub(crate) fn invalid_text(kind: &str, name: &str, errors: &[FieldError], more: usize) -> String {
    let head = format!("The {kind} {} is invalid: ", quoted(name));
    match errors {
        [error] if more == 0 => format!("{head}{error}"),
        errors => {
            let texts: Vec<String> = errors.iter().map(ToString::to_string).chain(and_more(more)).collect();
            format!("{head}\n* {}", texts.join("\n* "))
        }
    }
}

/// The longest value that is printed, so that a message stays readable.
const PRINTED: usize = 8192;

/// A string in the format of Go's `%q`, cut where an error would become too long.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().find(|(index, _)| *index >= PRINTED) {
        None => go_quoted(text),
        Some((index, _)) => {
            let mut cut = go_quoted(&text[..index]);
            cut.insert(cut.len() - 1, '…');
            cut
        }
    }
}

/// A string in the format of Go's `%q`.
pub fn go_quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x0b' => out.push_str("\\v"),
            c if u32::from(c) < 0x20 || c == '\x7f' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c.is_control() || (c.is_whitespace() && c != ' ') => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)))
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A value as an error prints it: strings quoted, everything else as JSON.
pub(crate) fn printed(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            let mut text = value.to_string();
            if text.len() > PRINTED {
                text.truncate(text.floor_char_boundary(PRINTED));
                text.push('…');
            }
            text
        }
    }
}
