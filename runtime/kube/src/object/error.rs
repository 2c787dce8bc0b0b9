//! Reasons why a manifest is rejected, for people with file, document and line, or as an answer of the API.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use super::field::{self, Errors, FieldError};
use crate::kind::Kind;

/// Maximum size of a manifest in bytes.
pub const SIZE_LIMIT: usize = 10 * 1024 * 1024;

/// The reason why a manifest is rejected. It is displayed with the file, document and line.
#[derive(Clone, Debug)]
pub struct ManifestError {
    /// The name of the file as it was given; empty for objects from the API.
    pub file: String,
    /// The number of the document in the file, from 1; `None` if it is the only one.
    pub document: Option<u32>,
    /// The lines of the errors, from 1, as far as they are known.
    pub lines: Vec<usize>,
    /// The cause.
    pub cause: ManifestCause,
    /// The kind of the rejected object.
    pub kind: Kind,
}

/// The cause of a rejection.
#[derive(Clone, Debug)]
pub enum ManifestCause {
    /// The manifest is longer than [`SIZE_LIMIT`].
    TooLong,
    /// The manifest is not text, not YAML, or not JSON.
    Syntax(TextError),
    /// The manifest has no object.
    Empty,
    /// The manifest is an object of a kind that nodlet does not accept.
    Kind(String),
    /// The object has unknown or repeated fields.
    Strict {
        /// The message for each field.
        messages: Vec<String>,
        /// The paths of the fields, as far as they are known.
        paths: Vec<String>,
    },
    /// The object breaks rules.
    Invalid {
        /// `metadata.name`, as far as it is known.
        name: String,
        /// The broken rules, as many as are reported.
        errors: Vec<FieldError>,
        /// How many further rules are broken.
        more: usize,
    },
    /// Another document has a pod of the same name.
    Repeated {
        /// `NAMESPACE/NAME`.
        name: String,
    },
}

impl ManifestError {
    pub(crate) fn new(cause: ManifestCause) -> Self {
        ManifestError { file: String::new(), document: None, lines: Vec::new(), cause, kind: Kind::Pod }
    }

    /// The error of an object that breaks rules.
    pub(crate) fn invalid(object: &Value, errors: Errors) -> Self {
        ManifestError::invalid_name(object["metadata"]["name"].as_str().unwrap_or_default(), errors)
    }

    /// The error of an object of this name that breaks rules.
    pub(crate) fn invalid_name(name: &str, errors: Errors) -> Self {
        let (errors, more) = errors.into_parts();
        ManifestError::new(ManifestCause::Invalid { name: name.to_owned(), errors, more })
    }

    pub(crate) fn of_kind(message: String) -> Self {
        ManifestError::new(ManifestCause::Kind(message))
    }

    /// The answer of the API: a `Status` of Kubernetes, with its HTTP code in `code`.
    pub fn status(&self) -> Value {
        let (code, reason) = match &self.cause {
            ManifestCause::Invalid { name, errors, more } => {
                return field::invalid_status(self.kind.row(), name, errors, *more);
            }
            ManifestCause::TooLong => (413, "RequestEntityTooLarge"),
            ManifestCause::Syntax(_)
            | ManifestCause::Empty
            | ManifestCause::Kind(_)
            | ManifestCause::Strict { .. }
            | ManifestCause::Repeated { .. } => (400, "BadRequest"),
        };
        json!({
            "apiVersion": "v1",
            "kind": "Status",
            "metadata": {},
            "status": "Failure",
            "reason": reason,
            "code": code,
            "message": self.cause.text(self.kind),
        })
    }

    /// Whether the object could be read, and breaks rules.
    pub fn is_of_rules(&self) -> bool {
        match &self.cause {
            ManifestCause::Invalid { errors, .. } => {
                !errors.iter().any(|error| error.kind == field::FieldErrorKind::TypeInvalid)
            }
            _ => false,
        }
    }

    /// The kind of the rejected object.
    pub fn kind_name(&self) -> &'static str {
        self.kind.as_str()
    }
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut place = Vec::new();
        if !self.file.is_empty() {
            place.push(self.file.clone());
        }
        place.extend(self.document.map(|document| format!("document {document}")));
        let lines: Vec<String> = self.lines.iter().map(ToString::to_string).collect();
        match &lines[..] {
            [] => {}
            [line] => place.push(format!("line {line}")),
            lines => place.push(format!("lines {}", lines.join(", "))),
        }
        if !place.is_empty() {
            write!(f, "{}: ", place.join(", "))?;
        }
        f.write_str(&self.cause.text(self.kind))
    }
}

impl Error for ManifestError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            ManifestCause::Syntax(error) => error.source(),
            ManifestCause::TooLong
            | ManifestCause::Empty
            | ManifestCause::Kind(_)
            | ManifestCause::Strict { .. }
            | ManifestCause::Invalid { .. }
            | ManifestCause::Repeated { .. } => None,
        }
    }
}

/// The reason why a text from outside cannot be read. It is displayed with the words of its source, since Kubernetes
/// prints both as one text.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct TextError {
    message: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl TextError {
    /// Returns an error with this complete text and this source.
    pub fn new(message: impl Into<String>, source: impl Error + Send + Sync + 'static) -> TextError {
        TextError { message: message.into(), source: Some(Arc::new(source)) }
    }
}

impl From<String> for TextError {
    fn from(message: String) -> TextError {
        TextError { message, source: None }
    }
}

impl ManifestCause {
    /// The paths of the wrong fields.
    pub(crate) fn paths(&self) -> Vec<&str> {
        match self {
            ManifestCause::Strict { paths, .. } => paths.iter().map(String::as_str).collect(),
            ManifestCause::Invalid { errors, .. } => errors.iter().map(|error| error.path.as_str()).collect(),
            ManifestCause::Repeated { .. } => vec!["metadata.name"],
            ManifestCause::TooLong
            | ManifestCause::Syntax(_)
            | ManifestCause::Empty
            | ManifestCause::Kind(_) => Vec::new(),
        }
    }

    fn text(&self, kind: Kind) -> String {
        let (kind, version) = (kind.as_str(), kind.version());
        match self {
            ManifestCause::TooLong => format!("longer than {} MiB", SIZE_LIMIT / 1024 / 1024),
            ManifestCause::Syntax(error) => error.to_string(),
            ManifestCause::Kind(message) => message.clone(),
            ManifestCause::Empty => {
                "there is no object in it: a Pod has apiVersion, kind, metadata and spec".to_owned()
            }
            ManifestCause::Strict { messages, .. } => format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {}",
                messages.join(", ")
            ),
            ManifestCause::Invalid { name, errors, more } => field::invalid_text(kind, name, errors, *more),
            ManifestCause::Repeated { name } => {
                let kind = kind.to_ascii_lowercase();
                format!("{kind} {name} is in this file twice: give one of them another name or namespace")
            }
        }
    }
}
