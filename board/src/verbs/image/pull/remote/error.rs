//! Why something was not downloaded.

use std::fmt;
use std::io;

use nodlet_rootfs::Digest;
use nodlet_wire::http::HttpError;
use nodlet_wire::tls::TlsError;
use serde_json::Value;

use super::{IDLE_MAX, PACE};

/// Why something was not downloaded.
#[derive(Debug)]
pub(in crate::verbs::image::pull) enum RemoteError {
    /// The host has no address, or nobody accepts the connection.
    Connect(String),
    /// The connection failed.
    Http(HttpError),
    /// The server cannot be verified.
    Tls(TlsError),
    /// Nothing arrived in time.
    Silent,
    /// Too little arrived in time.
    Slow,
    /// The registry responded with an error.
    Status(u16, String),
    /// The registry accepts none of the known credentials, nor no credentials.
    Unauthorized,
    /// The registry violates the protocol, or what it sends does not fit.
    Broken(&'static str),
    /// A document or blob is not what its digest says.
    Digest { expected: Digest, actual: Digest },
    /// The reader of the download has ended.
    Write(io::Error),
    /// The documents of the image are invalid.
    Invalid(String),
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoteError::Connect(text) => f.write_str(text),
            RemoteError::Http(error) => error.fmt(f),
            RemoteError::Tls(error) => error.fmt(f),
            RemoteError::Silent => write!(f, "the registry sent nothing for {} s", IDLE_MAX.as_secs()),
            RemoteError::Slow => {
                write!(f, "the registry sent less than {} KiB in {} s", PACE.0 / 1024, PACE.1.as_secs())
            }
            RemoteError::Status(404, _) => f.write_str("not found"),
            RemoteError::Status(code, text) => write!(f, "the registry responded with status {code}{text}"),
            RemoteError::Unauthorized => f.write_str(
                "pull access denied, repository does not exist or may require authorization: authorization failed",
            ),
            RemoteError::Broken(what) => f.write_str(what),
            RemoteError::Digest { expected, actual } => {
                write!(f, "the registry sent {actual} instead of {expected}")
            }
            RemoteError::Write(_) => f.write_str("the image cannot be written to the store"),
            RemoteError::Invalid(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for RemoteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RemoteError::Http(error) => error.source(),
            RemoteError::Tls(error) => error.source(),
            RemoteError::Write(source) => Some(source),
            RemoteError::Connect(_) | RemoteError::Silent | RemoteError::Slow => None,
            RemoteError::Status(..) | RemoteError::Unauthorized | RemoteError::Broken(_) => None,
            RemoteError::Digest { .. } | RemoteError::Invalid(_) => None,
        }
    }
}

impl RemoteError {
    pub(in crate::verbs::image::pull) fn is_closed_pipe(&self) -> bool {
        matches!(self, RemoteError::Write(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether another attempt may help.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            RemoteError::Silent | RemoteError::Slow => true,
            RemoteError::Http(error) => {
                matches!(error, HttpError::Io(_) | HttpError::Ended | HttpError::Tls(_))
            }
            RemoteError::Status(code, _) => matches!(code, 408 | 429 | 500..=599),
            // The caller repeats that later.
            RemoteError::Connect(_) | RemoteError::Unauthorized | RemoteError::Broken(_) => false,
            RemoteError::Digest { .. } => false,
            RemoteError::Write(_) | RemoteError::Invalid(_) | RemoteError::Tls(_) => false,
        }
    }
}

impl From<HttpError> for RemoteError {
    fn from(error: HttpError) -> Self {
        RemoteError::Http(error)
    }
}

/// The message of an error response, as the distribution specification has it.
pub(super) fn message(body: &[u8]) -> String {
    let document: Option<Value> = serde_json::from_slice(body).ok();
    let text = document.as_ref().and_then(|document| document.pointer("/errors/0/message")?.as_str());
    let text: String = text.unwrap_or_default().chars().filter(|c| !c.is_control()).take(200).collect();
    if text.is_empty() { text } else { format!(": {text}") }
}
