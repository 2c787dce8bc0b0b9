//! `metav1.Status`: how the API says no, and how it says yes when there is
//! nothing to show.

use std::fmt;

use serde_json::{Value, json};

/// A refusal, as Kubernetes words it. Programs read `code` and `reason`, people `message`.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The HTTP status.
    pub code: u16,
    /// `NotFound`, `Invalid`, …
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
    /// `details`, where there are any.
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

    /// 403: not here, whoever asks.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Status::new(403, "Forbidden", message)
    }

    /// 404: no such object.
    pub fn not_found(resource: &str, name: &str) -> Self {
        Status {
            details: Some(details(resource, name)),
            ..Status::new(404, "NotFound", format!("{resource} \"{name}\" not found"))
        }
    }

    /// 404: no such path. Its `details` are empty, but there: `kubectl debug` looks into them.
    pub fn no_such_path() -> Self {
        Status {
            details: Some(json!({})),
            ..Status::new(404, "NotFound", "the server could not find the requested resource")
        }
    }

    /// 405: not with this resource.
    pub fn method_not_allowed(message: impl Into<String>) -> Self {
        Status::new(405, "MethodNotAllowed", message)
    }

    /// 409: there is one of this name.
    pub fn already_exists(resource: &str, name: &str) -> Self {
        Status {
            details: Some(details(resource, name)),
            ..Status::new(409, "AlreadyExists", format!("{resource} \"{name}\" already exists"))
        }
    }

    /// 409: the object is another than the one that was meant.
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

    /// 410: the version is no longer known; list again.
    pub fn expired(message: impl Into<String>) -> Self {
        Status::new(410, "Expired", message)
    }

    /// 413: more than is read; the limit with its unit, if it is not bytes.
    pub fn too_large(limit: impl fmt::Display) -> Self {
        Status::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {limit}"))
    }

    /// 415: another content type is needed.
    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Status::new(415, "UnsupportedMediaType", message)
    }

    /// 422: an object that is not valid. `causes` are those of `details`.
    pub fn invalid(kind: &str, name: &str, message: impl Into<String>, causes: Vec<Value>) -> Self {
        Status {
            details: Some(json!({"name": name, "kind": kind, "causes": causes})),
            ..Status::new(422, "Invalid", message)
        }
    }

    /// 422: a request that cannot be carried out, of whatever kind its object is. kubectl shows the
    /// message of an invalid object only by its causes, unless nothing else is named.
    pub(crate) fn unprocessable(message: impl Into<String>) -> Self {
        Status { details: Some(json!({})), ..Status::new(422, "Invalid", message) }
    }

    /// 429: as much is under way as may be.
    pub fn too_many_requests(message: impl Into<String>) -> Self {
        Status::new(429, "TooManyRequests", message)
    }

    /// 500: something here failed.
    pub fn internal(message: impl fmt::Display) -> Self {
        Status::new(500, "InternalError", format!("Internal error occurred: {message}"))
    }

    /// 503: the agent is starting or ending.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Status::new(503, "ServiceUnavailable", message)
    }

    /// 504: it took too long.
    pub fn timeout(message: impl Into<String>) -> Self {
        Status::new(504, "Timeout", message)
    }

    /// The object that is sent.
    pub fn to_json(&self) -> Value {
        let mut object = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(details) = &self.details {
            object["details"] = details.clone();
        }
        object
    }
}

/// Which object, by the plural of its kind, with its group behind a dot if it has one.
fn details(resource: &str, name: &str) -> Value {
    match resource.split_once('.') {
        Some((resource, group)) => json!({"name": name, "group": group, "kind": resource}),
        None => json!({"name": name, "kind": resource}),
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}
