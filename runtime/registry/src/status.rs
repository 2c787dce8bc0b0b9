//! `metav1.Status`: the API's reply to a rejected request.

use nodlet_kube::manifest::ManifestError;
use std::fmt;

use serde_json::{Value, json};

/// A rejection in the words of Kubernetes. Programs read `code` and `reason`, people `message`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    /// The HTTP status.
    pub code: u16,
    /// `NotFound`, `Invalid`, …; empty for an error that Kubernetes does not expect.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
    /// `details`, if there are any.
    pub details: Option<Value>,
}

impl Status {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Status { code, reason, message: message.into(), details: None }
    }

    /// 400: the request itself is wrong.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Status::new(400, "BadRequest", message)
    }

    /// 403: the request is not allowed.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Status::new(403, "Forbidden", message)
    }

    /// 404: the object does not exist.
    pub fn not_found(resource: &str, name: &str) -> Self {
        Status {
            details: Some(details(resource, name)),
            ..Status::new(404, "NotFound", format!("{resource} \"{name}\" not found"))
        }
    }

    /// 404: the path does not exist. The reply has empty `details`, because `kubectl debug` reads them.
    pub fn no_such_path() -> Self {
        Status {
            details: Some(json!({})),
            ..Status::new(404, "NotFound", "the server could not find the requested resource")
        }
    }

    /// 405: the resource does not support the method.
    pub fn method_not_allowed(message: impl Into<String>) -> Self {
        Status::new(405, "MethodNotAllowed", message)
    }

    /// 406: the object cannot be shown in any form that the client accepts.
    pub fn not_acceptable(message: &str) -> Self {
        Status::new(406, "NotAcceptable", message)
    }

    /// 409: an object of this name exists.
    pub fn already_exists(resource: &str, name: &str) -> Self {
        Status {
            details: Some(details(resource, name)),
            ..Status::new(409, "AlreadyExists", format!("{resource} \"{name}\" already exists"))
        }
    }

    /// 409: the object does not meet the preconditions.
    pub(crate) fn conflict(resource: &str, name: &str, why: &str) -> Self {
        Status {
            details: Some(details(resource, name)),
            ..Status::new(
                409,
                "Conflict",
                format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}"),
            )
        }
    }

    /// 410: the version is no longer known, and the client must list again.
    pub fn expired(message: impl Into<String>) -> Self {
        Status::new(410, "Expired", message)
    }

    /// 413: the request is too large. `limit` has a unit if it is not in bytes.
    pub fn too_large(limit: impl fmt::Display) -> Self {
        Status::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {limit}"))
    }

    /// 415: the content type is not supported.
    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Status::new(415, "UnsupportedMediaType", message)
    }

    /// 422: the object is invalid. `kind` has its group, if it has one; `causes` are those of `details`.
    pub fn invalid(kind: &str, name: &str, message: impl Into<String>, causes: Vec<Value>) -> Self {
        let mut details = details(kind, name);
        details["causes"] = causes.into();
        Status { details: Some(details), ..Status::new(422, "Invalid", message) }
    }

    /// 422: the request cannot be performed, independent of the kind of its object. kubectl shows the message
    /// of an invalid object only by its causes, unless nothing else is named.
    pub(crate) fn unprocessable(message: impl Into<String>) -> Self {
        Status { details: Some(json!({})), ..Status::new(422, "Invalid", message) }
    }

    /// 429: too many requests are in progress.
    pub fn too_many_requests(message: impl Into<String>) -> Self {
        Status::new(429, "TooManyRequests", message)
    }

    /// 500: the agent failed.
    pub fn internal(message: impl fmt::Display) -> Self {
        Status::new(500, "InternalError", format!("Internal error occurred: {message}"))
    }

    /// 503: the agent is starting or ending.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Status::new(503, "ServiceUnavailable", message)
    }

    /// 504: the request took too long.
    pub fn timeout(message: impl Into<String>) -> Self {
        Status::new(504, "Timeout", message)
    }

    /// Returns the `Status` object of the reply.
    pub fn to_json(&self) -> Value {
        let mut object = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            object["reason"] = self.reason.into();
        }
        if let Some(details) = &self.details {
            object["details"] = details.clone();
        }
        object
    }
}

/// The `details` of an object. `resource` is the plural of its kind or the kind itself, followed by a dot and its group if it
/// has one.
fn details(resource: &str, name: &str) -> Value {
    match resource.split_once('.') {
        Some((resource, group)) => json!({"name": name, "group": group, "kind": resource}),
        None => json!({"name": name, "kind": resource}),
    }
}

/// The reply to a rejected object.
pub(super) fn refused(error: &ManifestError) -> Status {
    let mut status = error.status();
    let message = status["message"].as_str().unwrap_or_default().to_owned();
    match status["code"].as_u64() {
        Some(422) => {
            let mut invalid = Status::invalid(error.kind_name(), "", message, Vec::new());
            invalid.details = Some(status["details"].take());
            invalid
        }
        Some(_) | None => Status::bad_request(message),
    }
}
