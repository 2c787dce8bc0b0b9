//! Why something was not downloaded.

use std::io;

use nodlet_rootfs::Digest;
use nodlet_wire::http::HttpError;
use nodlet_wire::tls::TlsError;
use serde_json::Value;

use super::{IDLE_MAX, PACE};

/// Why something was not downloaded.
#[derive(Debug, thiserror::Error)]
pub(in crate::verbs::image::pull) enum RemoteError {
    /// The host has no address, or nobody accepts the connection.
    #[error("{0}")]
    Connect(String),
    /// The connection failed.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The server cannot be verified.
    #[error(transparent)]
    Tls(TlsError),
    /// Nothing arrived in time.
    #[error("the registry sent nothing for {} s", IDLE_MAX.as_secs())]
    Silent,
    /// Too little arrived in time.
    #[error("the registry sent less than {} KiB in {} s", PACE.0 / 1024, PACE.1.as_secs())]
    Slow,
    /// The registry responded with an error.
    #[error("{}", of_status(*.0, .1))]
    Status(u16, String),
    /// The registry accepts none of the known credentials, nor no credentials.
    #[error(
        "pull access denied, repository does not exist or may require authorization: authorization failed"
    )]
    Unauthorized,
    /// The registry violates the protocol, or what it sends does not fit.
    #[error("{0}")]
    Broken(&'static str),
    /// A document or blob is not what its digest says.
    #[error("the registry sent {actual} instead of {expected}")]
    Digest { expected: Digest, actual: Digest },
    /// The reader of the download has ended.
    #[error("the image cannot be written to the store")]
    Write(#[source] io::Error),
    /// The documents of the image are invalid.
    #[error("{0}")]
    Invalid(String),
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

fn of_status(code: u16, message: &str) -> String {
    if code == 404 {
        "not found".to_owned()
    } else {
        format!("the registry responded with status {code}{message}")
    }
}

/// The message of an error response, as the distribution specification has it.
pub(super) fn message(body: &[u8]) -> String {
    let document: Option<Value> = serde_json::from_slice(body).ok();
    let text = document.as_ref().and_then(|document| document.pointer("/errors/0/message")?.as_str());
    let text: String = text.unwrap_or_default().chars().filter(|c| !c.is_control()).take(200).collect();
    if text.is_empty() { text } else { format!(": {text}") }
}
