//! A client of an API server: JSON over one connection, which is opened when it is needed and kept. Every request has
//! a time limit, and every response a limit of its size.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nodlet_kube::manifest::json;
use nodlet_wire::http::{Connection, Head, HttpError, Request, Stream};
use nodlet_wire::tls::{Client, TlsError, Trust};
use nodlet_wire::{gzip, timeout};
use serde_json::Value;
use smol::Async;

use crate::VALUES;

/// The time limit of a request, with the connection.
pub(crate) const WITHIN: Duration = Duration::from_secs(15);

/// Maximum size of a response in bytes: one page of a list of pods, or one pod. The largest object of a cluster has 1.5
/// MiB, of which each byte may need six in JSON, such as `\u003c`.
pub(crate) const BODY: usize = 10 * 1024 * 1024;

/// Maximum size of one event of a watch in bytes.
pub const EVENT: usize = BODY;

/// Fields of a pod that may have any number of values, whoever creates it.
const LARGE_FIELDS: &[&str] =
    &["annotations", "finalizers", "labels", "managedFields", "ownerReferences", "spec"];

/// The longest `Retry-After` that is obeyed: a server must not silence a board for days.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// The content types of bodies.
pub const JSON: &str = "application/json";
/// A strategic merge patch.
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
/// A merge patch (RFC 7386).
pub const MERGE: &str = "application/merge-patch+json";

/// The error of a request.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The server has no address.
    #[error("the server has no address")]
    NoAddress(#[source] io::Error),
    /// No address of the server accepts connections: the last one that was tried, and its error.
    #[error("failed to connect to {0}")]
    Connect(SocketAddr, #[source] io::Error),
    /// The TLS handshake failed.
    #[error(transparent)]
    Tls(TlsError),
    /// The request or its response failed.
    #[error(transparent)]
    Http(HttpError),
    /// The time limit is over.
    #[error("no response within {} s", WITHIN.as_secs())]
    Timeout,
    /// The response is not this, which was requested.
    #[error("the API server sent something else than {0}")]
    Unexpected(&'static str),
    /// The server rejects the request.
    #[error("HTTP {code} {reason}: {message}")]
    Status {
        /// The HTTP status.
        code: u16,
        /// The reason of the `Status` object.
        reason: String,
        /// The message of the `Status` object.
        message: String,
        /// The time after which the server accepts requests again (`Retry-After`), zero by default.
        retry_after: Duration,
    },
}

impl ApiError {
    /// The HTTP status with which the server rejected the request.
    pub fn code(&self) -> Option<u16> {
        match self {
            ApiError::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The error of a `Status` object.
    pub fn of_status(code: u16, status: &Value) -> ApiError {
        let retry_after = Duration::ZERO;
        ApiError::Status {
            code,
            reason: text(&status["reason"]),
            message: text(&status["message"]),
            retry_after,
        }
    }

    /// The error of a response that rejects a request.
    fn of_response(head: &Head, status: &Value) -> ApiError {
        let mut error = ApiError::of_status(head.status, status);
        if let ApiError::Status { retry_after, .. } = &mut error {
            let seconds = head.header("Retry-After").and_then(|seconds| seconds.parse().ok());
            *retry_after = Duration::from_secs(seconds.unwrap_or(0)).min(MAX_RETRY_AFTER);
        }
        error
    }

    /// The least time until the next request.
    pub fn retry_after(&self) -> Duration {
        match self {
            ApiError::Status { retry_after, .. } => *retry_after,
            _ => Duration::ZERO,
        }
    }
}

/// Reads an object, as a response or an event of a watch. Whatever the server sends instead is an error: an index of
/// another value may panic. A pod of more than [`VALUES`] values, alone in its response, is without its spec, so that it
/// does not keep this node from the other pods.
///
/// # Errors
/// The text is not JSON, or not an object, or has too many values.
pub fn object(text: &[u8]) -> Result<Value, ApiError> {
    let unexpected = || ApiError::Unexpected("a JSON object");
    let object = match json::value_without(&[], text, VALUES) {
        Ok(object) => object,
        Err(error) if error.is_data() => {
            let too_large = || ApiError::Http(HttpError::TooLarge);
            let short = json::value_without(LARGE_FIELDS, text, VALUES).map_err(|_| too_large())?;
            let is_pod = |object: &Value| object.get("kind").is_some_and(|kind| kind == "Pod");
            let is_alone = || {
                let items = short.get("items").and_then(Value::as_array).map_or(0, Vec::len);
                short.get("kind").is_some_and(|kind| kind == "PodList") && items == 1
            };
            if !is_pod(&short) && !short.get("object").is_some_and(is_pod) && !is_alone() {
                return Err(too_large());
            }
            short
        }
        Err(_) => return Err(unexpected()),
    };
    Some(object).filter(Value::is_object).ok_or_else(unexpected)
}

/// Reads an object without the fields of these names, as [`object`] reads it.
///
/// # Errors
/// The text is not JSON, or not an object, or the rest has too many values ([`HttpError::TooLarge`]).
pub fn object_without(skipped: &'static [&'static str], text: &[u8]) -> Result<Value, ApiError> {
    match json::value_without(skipped, text, VALUES) {
        Ok(object) if object.is_object() => Ok(object),
        Err(error) if error.is_data() => Err(ApiError::Http(HttpError::TooLarge)),
        Ok(_) | Err(_) => Err(ApiError::Unexpected("a JSON object")),
    }
}

/// Takes the objects out of a list.
///
/// # Errors
/// The response is no list. An error must not be taken for an empty list, because all pods would end.
pub fn items(list: &mut Value) -> Result<Vec<Value>, ApiError> {
    let is_list = list["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match list["items"].take() {
        Value::Array(items) => Ok(items),
        Value::Null if is_list => Ok(Vec::new()),
        _ => Err(ApiError::Unexpected("a list")),
    }
}

/// A text of the server for a message: not longer than a line or a few, and without characters that control a terminal
/// or begin another line of the log.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().chars().filter(|c| !c.is_control()).take(300).collect()
}

/// A random number; without random bytes, there is no jitter.
pub fn random() -> u16 {
    let mut bytes = [0; 2];
    let _ = nodlet_wire::random::unique(&mut bytes);
    u16::from_ne_bytes(bytes)
}

/// How the server is verified.
#[derive(Clone, Debug)]
pub enum Verification {
    /// By its certificate.
    By(Trust),
    /// Not at all. Whatever it sends must be checked in another way.
    None,
}

/// A client of an API server.
pub struct Api {
    addresses: Vec<SocketAddr>,
    host: String,
    authority: String,
    verification: Verification,
    /// The value of `Authorization`.
    authorization: Option<String>,
    connection: Option<Connection>,
}

impl Api {
    /// Creates a client of the server `host` at one of these addresses.
    pub fn new(
        host: &str,
        addresses: Vec<SocketAddr>,
        verification: Verification,
        token: Option<&str>,
    ) -> Api {
        let authority = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let authorization = token.map(|token| format!("Bearer {token}"));
        Api { addresses, host: host.to_owned(), authority, verification, authorization, connection: None }
    }

    /// The fields of a request of HTTP/2 for `target`.
    pub(crate) fn fields<'a>(&'a self, target: &'a str) -> Vec<(&'static str, &'a str)> {
        let mut fields = vec![
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", &*self.authority),
            (":path", target),
        ];
        fields.extend([("accept", JSON), ("user-agent", USER_AGENT)]);
        fields.extend(self.authorization.as_deref().map(|value| ("authorization", value)));
        fields
    }

    /// The headers of each request of HTTP/1.1.
    pub(crate) fn headers(&self) -> Vec<(&'static str, &str)> {
        let mut headers = vec![("Accept", JSON), ("User-Agent", USER_AGENT)];
        headers.extend(self.authorization.as_deref().map(|value| ("Authorization", value)));
        headers
    }

    /// A request of HTTP/1.1 for `target` with such headers.
    pub(crate) fn request<'a>(&'a self, target: &'a str, headers: &'a [(&'a str, &'a str)]) -> Request<'a> {
        Request { method: "GET", target, host: &self.authority, headers, body: &[] }
    }

    /// Sends a request, and returns the object of a successful response.
    ///
    /// # Errors
    /// The request failed, or the server rejected it.
    pub async fn call(
        &mut self,
        method: &str,
        target: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Value, ApiError> {
        let body = body.map_or((JSON, Vec::new()), |(kind, body)| (kind, body.to_string().into_bytes()));
        let (head, body) = self.send(method, target, (body.0, &body.1), None).await?;
        match (object(&body), (200..300).contains(&head.status)) {
            (found, true) => found,
            (found, false) => Err(ApiError::of_response(&head, &found.unwrap_or_default())),
        }
    }

    /// Reads an object or a page of a list without the fields of these names, whatever object they are in. The server may
    /// compress the response.
    ///
    /// # Errors
    /// The request failed, or the server rejected it.
    pub async fn read(&mut self, target: &str, skipped: &'static [&'static str]) -> Result<Value, ApiError> {
        let (head, mut body) = self.send("GET", target, (JSON, &[]), Some("gzip")).await?;
        if head.header("Content-Encoding").is_some_and(|encoding| encoding.eq_ignore_ascii_case("gzip")) {
            body = gzip::decode(&body, BODY).map_err(ApiError::Http)?;
        }
        match head.status {
            200 => object_without(skipped, &body),
            _ => Err(ApiError::of_response(&head, &object(&body).unwrap_or_default())),
        }
    }

    async fn send(
        &mut self,
        method: &str,
        target: &str,
        body: (&str, &[u8]),
        encoding: Option<&str>,
    ) -> Result<(Head, Vec<u8>), ApiError> {
        let kept = self.connection.take();
        let may_be_stale = kept.is_some();
        let mut result = self.exchange(kept, method, target, body, encoding).await;
        // The server may have closed a kept connection before it got the request.
        let is_closed = matches!(
            result,
            Err(ApiError::Http(HttpError::Ended | HttpError::Io(_) | HttpError::Tls(TlsError::Ended)))
        );
        if may_be_stale && is_closed {
            result = self.exchange(None, method, target, body, encoding).await;
        }
        result
    }

    /// Closes the connection, since no request follows soon.
    pub fn close(&mut self) {
        self.connection = None;
    }

    async fn exchange(
        &mut self,
        kept: Option<Connection>,
        method: &str,
        target: &str,
        (kind, body): (&str, &[u8]),
        encoding: Option<&str>,
    ) -> Result<(Head, Vec<u8>), ApiError> {
        within(WITHIN, async {
            let mut connection = match kept {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            let mut headers = self.headers();
            if !body.is_empty() {
                headers.push(("Content-Type", kind));
            }
            headers.extend(encoding.map(|encoding| ("Accept-Encoding", encoding)));
            let request = Request { method, target, host: &self.authority, headers: &headers, body };
            let head = connection.send(&request).await.map_err(ApiError::Http)?;
            let body = connection.body(BODY).await.map_err(ApiError::Http)?;
            self.connection = connection.is_reusable().then_some(connection);
            Ok((head, body))
        })
        .await
    }

    /// Starts a watch on a connection of its own, whose lines are events.
    ///
    /// # Errors
    /// The request failed, or the server rejected it.
    pub async fn watch(&self, target: &str) -> Result<Connection, ApiError> {
        within(WITHIN, async {
            let mut connection = self.connect().await?;
            let headers = self.headers();
            let head = connection.send(&self.request(target, &headers)).await.map_err(ApiError::Http)?;
            if head.status == 200 {
                return Ok(connection);
            }
            let body = connection.body(BODY).await.map_err(ApiError::Http)?;
            Err(ApiError::of_response(&head, &object(&body).unwrap_or_default()))
        })
        .await
    }

    async fn connect(&self) -> Result<Connection, ApiError> {
        Ok(Connection::new(Stream::Tls(Box::new(self.dial(false).await?))))
    }

    /// Opens a connection; if `http2`, one over which the client prefers HTTP/2.
    ///
    /// # Errors
    /// No address accepts connections, or the server is not the right one.
    pub async fn dial(&self, http2: bool) -> Result<Client, ApiError> {
        let mut last = ApiError::NoAddress(io::ErrorKind::NotFound.into());
        // Behind an address that does not answer, the next ones get a share of the time, and so does the request. The last
        // one may take all of it.
        let share = WITHIN / u32::try_from(self.addresses.len() + 1).unwrap_or(u32::MAX);
        for address in &self.addresses {
            let is_last = self.addresses.last() == Some(address);
            let limit = if is_last { WITHIN * 2 } else { share };
            let dialled = timeout::within(limit, Async::<TcpStream>::connect(*address)).await;
            match dialled.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())) {
                Ok(stream) => {
                    // Small requests should not wait for the acknowledgement of the one before.
                    let _ = stream.get_ref().set_nodelay(true);
                    let client = match &self.verification {
                        Verification::By(trust) if http2 => {
                            Client::verified(stream, &self.host, &trust.with_http2()).await
                        }
                        Verification::By(trust) => Client::verified(stream, &self.host, trust).await,
                        Verification::None => Client::unverified(stream, &self.host).await,
                    };
                    return client.map_err(ApiError::Tls);
                }
                Err(error) => last = ApiError::Connect(*address, error),
            }
        }
        Err(last)
    }
}

const USER_AGENT: &str = concat!("nodlet/", env!("CARGO_PKG_VERSION"));

/// Limits the time of a request.
pub async fn within<T>(
    time: Duration,
    request: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    timeout::within(time, request).await.unwrap_or(Err(ApiError::Timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_server_control_no_terminal() {
        let status = serde_json::json!({ "reason": "\u{1b}[2JNo", "message": "a\r\nerror: b\u{9b}31m" });
        assert_eq!(ApiError::of_status(403, &status).to_string(), "HTTP 403 [2JNo: aerror: b31m");
        assert_eq!(text(&"x".repeat(100_000).into()).len(), 300);
    }

    #[test]
    fn a_pod_of_too_many_values_is_read_without_its_spec_and_nothing_else_is() {
        use serde_json::json;

        let many = json!(vec![0; VALUES]);
        let pod =
            |kind: &str| json!({ "kind": kind, "metadata": { "uid": "1", "labels": &many }, "spec": &many });
        let read = |sent: Value| object(sent.to_string().as_bytes());
        let short = json!({ "kind": "Pod", "metadata": { "uid": "1" } });
        assert_eq!(read(pod("Pod")).expect("readable"), short);
        let event = read(json!({ "type": "ADDED", "object": pod("Pod") })).expect("readable");
        assert_eq!(event, json!({ "type": "ADDED", "object": &short }));
        let list = |items: &[Value]| json!({ "kind": "PodList", "items": items });
        assert_eq!(read(list(&[pod("Pod")])).expect("readable")["items"], json!([short]));
        let data = json!({ "kind": "Pod", "status": &many });
        for large in [list(&[pod("Pod"), pod("Pod")]), pod("ConfigMap"), data, many] {
            assert!(matches!(read(large), Err(ApiError::Http(HttpError::TooLarge))));
        }
        assert!(matches!(read(json!([1])), Err(ApiError::Unexpected(_))));
    }

    #[test]
    fn a_server_behind_an_address_that_does_not_answer_is_reached_at_its_next_one() {
        use std::net::TcpListener;

        let listen = || TcpListener::bind("127.0.0.1:0").expect("a port");
        let (silent, other) = (listen(), listen());
        let address = silent.local_addr().expect("bound");
        // Nobody accepts them: when the queue of the socket is full, the kernel answers no more.
        let waits = || TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
        let connections: Vec<_> = std::iter::from_fn(waits).collect();
        assert!(!connections.is_empty());
        let addresses = vec![address, other.local_addr().expect("bound")];
        let api = Api::new("localhost", addresses, Verification::None, None);
        let accepted = std::thread::spawn(move || drop(other.accept().expect("a connection")));
        // Who accepts it closes it at once.
        let dialled = smol::block_on(within(WITHIN, api.dial(false)));
        assert!(matches!(dialled, Err(ApiError::Tls(_))), "{:?}", dialled.err());
        accepted.join().expect("accepted");
    }

    #[test]
    fn only_objects_are_taken_from_the_server() {
        assert_eq!(object(b" {\"a\":[]} ").ok(), Some(serde_json::json!({ "a": [] })));
        for other in ["", "\"x\"", "[]", "[{}]", "5", "null", "true", "{", "{}{}"] {
            let error = object(other.as_bytes()).expect_err(other);
            assert!(matches!(error, ApiError::Unexpected("a JSON object")), "{other}: {error}");
        }
    }

    #[test]
    fn a_response_without_a_list_is_not_an_empty_list() {
        let of = |mut list: Value| items(&mut list).ok();
        assert_eq!(
            of(serde_json::json!({ "kind": "PodList", "items": [{}] })),
            Some(vec![serde_json::json!({})])
        );
        for empty in [serde_json::json!([]), Value::Null] {
            assert_eq!(of(serde_json::json!({ "kind": "PodList", "items": empty })), Some(Vec::new()));
        }
        for other in [serde_json::json!({ "a": 1 }), Value::Null, 7.into()] {
            assert_eq!(of(serde_json::json!({ "kind": "Unknown", "items": other })), None, "{other}");
        }
    }
}
