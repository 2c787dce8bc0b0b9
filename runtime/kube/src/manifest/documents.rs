//! The documents of a file: YAML or JSON, one or several, with their places for messages. Pure.

use serde_json::Value;

use super::find::FoundObject;
use super::{locate, yaml};
use crate::kind::Kind;
use crate::object::error::{ManifestCause, ManifestError, SIZE_LIMIT, TextError};
use crate::object::field::quoted;
use crate::object::json;
use crate::object::walk::Validation;

/// Upper bound of the lines that a message names; more do not help.
const MAX_LINES: usize = 8;

/// The text of a file.
pub(super) struct Text<'a> {
    pub(super) name: &'a str,
    text: &'a str,
    /// Whether the file has more than one document.
    pub(super) several: bool,
}

impl Text<'_> {
    pub(super) fn empty(&self) -> ManifestError {
        ManifestError { file: self.name.to_owned(), ..ManifestError::new(ManifestCause::Empty) }
    }
}

/// One document of a file, before its kind is known.
pub(crate) struct Document {
    pub(crate) value: Value,
    /// The number of the document in the file, from 1.
    pub(super) number: usize,
    /// The line in which the document begins, from 1.
    line: usize,
    /// Messages about duplicate fields.
    pub(super) duplicates: Vec<String>,
}

pub(super) fn read<'a>(name: &'a str, bytes: &'a [u8]) -> Result<(Text<'a>, Vec<Document>), ManifestError> {
    let refused = |cause: ManifestCause, lines: Vec<usize>| ManifestError {
        file: name.to_owned(),
        lines,
        ..ManifestError::new(cause)
    };
    if bytes.len() > SIZE_LIMIT {
        return Err(refused(ManifestCause::TooLong, vec![]));
    }
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        let cause = ManifestCause::Syntax("the text is in UTF-16: save it in UTF-8".to_owned().into());
        return Err(refused(cause, vec![]));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        refused(ManifestCause::Syntax(TextError::new("the text is not UTF-8", error)), vec![line])
    })?;
    let documents =
        documents(text).map_err(|(line, error)| refused(ManifestCause::Syntax(error), vec![line]))?;
    Ok((Text { name, text, several: documents.len() > 1 }, documents))
}

/// Returns the documents of a text.
///
/// # Errors
/// The text is invalid: the line and the reason.
pub(crate) fn documents(text: &str) -> Result<Vec<Document>, (usize, TextError)> {
    let begins_like_json =
        text.trim_start_matches(|c: char| c == '\u{feff}' || c.is_whitespace()).starts_with('{');
    let json_error = match begins_like_json.then(|| json::read(text)) {
        Some(Ok(documents)) => {
            let text_of = |path: &String| format!("duplicate field \"{path}\"");
            let read = documents.into_iter();
            return Ok(numbered(read.map(|one| (one.value, one.line, one.duplicates.texts(text_of)))));
        }
        Some(Err(error)) if error.is_data() => return Err(json_error_of(error)),
        Some(Err(error)) => Some(error),
        None => None,
    };
    // Text that begins like JSON and is invalid JSON may be YAML in flow style.
    match (yaml::read(text), json_error) {
        (Ok(documents), _) => {
            let text_of = |(key, line): &(String, usize)| {
                format!("line {line}: key {} already set in map", quoted(key))
            };
            let read = documents.into_iter();
            Ok(numbered(read.map(|one| (one.value, one.line, one.duplicates.texts(text_of)))))
        }
        (Err(_), Some(error)) => Err(json_error_of(error)),
        (Err(error), None) => {
            let message = format!("error converting YAML to JSON: {error}");
            Err((error.line, TextError::new(message, error)))
        }
    }
}

fn numbered(read: impl Iterator<Item = (Value, usize, Vec<String>)>) -> Vec<Document> {
    (1..)
        .zip(read)
        .map(|(number, (value, line, duplicates))| Document { value, number, line, duplicates })
        .collect()
}

/// The line of an error, and the error without line and column, which are printed before it.
fn json_error_of(error: serde_json::Error) -> (usize, TextError) {
    let message = error.to_string();
    let message = format!("error converting JSON: {}", message.split(" at line ").next().unwrap_or_default());
    (error.line(), TextError::new(message, error))
}

/// The warnings about fields of a document that are there twice, or the error, which is of the kind of the document's
/// first object.
pub(super) fn duplicates(
    duplicates: &[String],
    validation: Validation,
    objects: &Result<Vec<FoundObject>, String>,
) -> Result<Vec<String>, ManifestError> {
    match validation {
        Validation::Strict if !duplicates.is_empty() => {
            let messages = duplicates.to_vec();
            let kind = objects.iter().flatten().next().map_or(Kind::Pod, |found| found.kind);
            let error = ManifestError::new(ManifestCause::Strict { messages, paths: Vec::new() });
            Err(ManifestError { kind, ..error })
        }
        Validation::Warn => Ok(duplicates.to_vec()),
        Validation::Strict | Validation::Ignore => Ok(Vec::new()),
    }
}

/// Adds the place in the text to an error. `at` is the path of its object.
pub(super) fn with_place(
    mut error: ManifestError,
    text: &Text<'_>,
    document: &Document,
    at: &str,
) -> ManifestError {
    error.file = text.name.to_owned();
    let number = || u32::try_from(document.number).unwrap_or(u32::MAX);
    error.document = text.several.then(number);
    if error.lines.is_empty() {
        let dot = if at.is_empty() { "" } else { "." };
        error.lines = error
            .cause
            .paths()
            .iter()
            .take(MAX_LINES)
            .filter_map(|path| locate::line(text.text, document.number - 1, &format!("{at}{dot}{path}")))
            .collect();
        error.lines.sort_unstable();
        error.lines.dedup();
    }
    if error.lines.is_empty() && text.several {
        error.lines.push(document.line);
    }
    error
}
