//! `grpc` probes: the call `grpc.health.v1.Health/Check`, and the kubelet's messages for its results.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use smol::Timer;

use nodlet_core::facts::ProbeResult;
use nodlet_kube::protobuf::{self, Field};

use super::{USER_AGENT, connect, ends, go_errors, seconds, url};
use nodlet_wire::http::Stream;
use nodlet_wire::http2::{BODY, Connection, Event, Http2Error};
use nodlet_wire::timeout::within;

const PATH: &str = "/grpc.health.v1.Health/Check";

/// Delay after the first failed connection; each further delay is [`BACK_OFF_PERCENT`] of the one before, up to
/// [`BACK_OFF_MAX`] (grpc-go: `backoff.DefaultConfig`).
const BACK_OFF: Duration = Duration::from_secs(1);
const BACK_OFF_PERCENT: u32 = 160;
const BACK_OFF_MAX: Duration = Duration::from_secs(120);

/// The codes of gRPC that this file uses.
mod code {
    pub(super) const OK: u32 = 0;
    pub(super) const CANCELED: u32 = 1;
    pub(super) const UNKNOWN: u32 = 2;
    pub(super) const DEADLINE_EXCEEDED: u32 = 4;
    pub(super) const PERMISSION_DENIED: u32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: u32 = 8;
    pub(super) const UNIMPLEMENTED: u32 = 12;
    pub(super) const INTERNAL: u32 = 13;
    pub(super) const UNAVAILABLE: u32 = 14;
    pub(super) const UNAUTHENTICATED: u32 = 16;
}

/// Go's names of all codes of gRPC, indexed by code.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// Names of HTTP/2's error codes, indexed by code (RFC 9113, section 7), and grpc-go's gRPC codes for them.
const RESETS: [(&str, u32); 14] = [
    ("NO_ERROR", code::INTERNAL),
    ("PROTOCOL_ERROR", code::INTERNAL),
    ("INTERNAL_ERROR", code::INTERNAL),
    ("FLOW_CONTROL_ERROR", code::RESOURCE_EXHAUSTED),
    ("SETTINGS_TIMEOUT", code::INTERNAL),
    ("STREAM_CLOSED", code::INTERNAL),
    ("FRAME_SIZE_ERROR", code::INTERNAL),
    ("REFUSED_STREAM", code::UNAVAILABLE),
    ("CANCEL", code::CANCELED),
    ("COMPRESSION_ERROR", code::INTERNAL),
    ("CONNECT_ERROR", code::INTERNAL),
    ("ENHANCE_YOUR_CALM", code::RESOURCE_EXHAUSTED),
    ("INADEQUATE_SECURITY", code::PERMISSION_DENIED),
    ("HTTP_1_1_REQUIRED", code::INTERNAL),
];

/// The HTTP/2 error code for a request that the server has not processed.
const REFUSED_STREAM: u32 = 7;

/// A failed call: a code of gRPC and its message.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    code: u32,
    message: String,
    /// The server has not processed the request, so it can be repeated.
    unprocessed: bool,
}

impl Status {
    fn new(code: u32, message: impl Into<String>) -> Status {
        Status { code, message: message.into(), unprocessed: false }
    }
}

/// Carries out a `grpc` probe of `service`; the empty name stands for the server itself.
pub(crate) async fn grpc(ip: IpAddr, port: u16, service: &str, timeout: Duration) -> ProbeResult {
    let address = SocketAddr::new(ip, port);
    let connected = std::cell::Cell::new(false);
    let asked = async {
        let mut again = true;
        loop {
            let mut connection = reach(address).await;
            connected.set(true);
            match check(&mut connection, address, service, timeout).await {
                Err(status) if status.unprocessed && std::mem::take(&mut again) => {}
                answer => return judge(answer, timeout),
            }
        }
    };
    within(timeout, asked).await.unwrap_or_else(|| {
        let limit = seconds(timeout);
        let text = if connected.get() {
            format!("timeout: health rpc did not complete within {limit}")
        } else {
            let address = url::join(&ip.to_string(), port);
            format!(
                "timeout: failed to connect service {address:?} within {limit}: context deadline exceeded"
            )
        };
        ProbeResult::Failure(text.into())
    })
}

/// Connects to a server that supports HTTP/2, and retries until that succeeds.
async fn reach(address: SocketAddr) -> Connection {
    let mut wait = BACK_OFF;
    loop {
        if let Ok(stream) = connect(address).await
            && let Ok(connection) = Connection::open(Stream::Plain(stream)).await
        {
            return connection;
        }
        Timer::after(wait).await;
        wait = (wait * BACK_OFF_PERCENT / 100).min(BACK_OFF_MAX);
    }
}

/// Returns the probe's result for a call (kubelet: `grpcProber.Probe`).
fn judge(answer: Result<u64, Status>, timeout: Duration) -> ProbeResult {
    let text = match answer {
        Ok(1) => return ProbeResult::Success,
        Ok(status) => {
            let status = match status {
                0 => "UNKNOWN".to_owned(),
                2 => "NOT_SERVING".to_owned(),
                3 => "SERVICE_UNKNOWN".to_owned(),
                other => (other as i32).to_string(),
            };
            format!("service unhealthy (responded with {status:?})")
        }
        Err(Status { code: code::UNIMPLEMENTED, message, .. }) => format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
        ),
        Err(Status { code: code::DEADLINE_EXCEEDED, .. }) => {
            format!("timeout: health rpc did not complete within {}", seconds(timeout))
        }
        Err(Status { code, message, .. }) => {
            let code = CODES.get(code as usize).map_or_else(|| format!("Code({code})"), ToString::to_string);
            format!("error: health rpc probe failed: rpc error: code = {code} desc = {message}")
        }
    };
    ProbeResult::Failure(text.into())
}

/// Makes the call and returns `status` of the `HealthCheckResponse`.
async fn check(
    connection: &mut Connection,
    address: SocketAddr,
    service: &str,
    timeout: Duration,
) -> Result<u64, Status> {
    let ends = ends(connection.socket());
    let lost = |error: Http2Error| {
        let what = match error {
            Http2Error::Io(error) => format!("read tcp{ends}: read: {}", go_errors::io(&error)),
            Http2Error::Ended => "EOF".to_owned(),
            Http2Error::Broken(what) => what.to_owned(),
        };
        Status::new(code::UNAVAILABLE, format!("error reading from server: {what}"))
    };
    let authority = url::join(&address.ip().to_string(), address.port());
    let grpc_timeout = format!("{}m", timeout.as_millis().min(99_999_999));
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", PATH),
        (":authority", &authority),
        ("content-type", "application/grpc"),
        ("user-agent", USER_AGENT),
        ("te", "trailers"),
        ("grpc-timeout", &grpc_timeout),
    ];
    connection.request(&fields, &request(service)).await.map_err(lost)?;

    let mut answer = Answer::default();
    loop {
        match connection.next().await.map_err(lost)?.1 {
            Event::Headers { fields, end } => {
                if let Some(status) = answer.headers(&fields, end)? {
                    return Ok(status);
                }
            }
            Event::Closing => {}
            Event::TooManyHeaders => {
                return Err(Status::new(code::INTERNAL, "peer header list size exceeded limit"));
            }
            Event::Data { bytes, end } => {
                answer.data(&bytes)?;
                if end {
                    let text = "server closed the stream without sending trailers";
                    return Err(Status::new(code::INTERNAL, text));
                }
            }
            Event::Reset(number) => {
                let known = RESETS.get(number as usize);
                let (name, code) = known
                    .map(|(name, code)| ((*name).to_owned(), *code))
                    .unwrap_or_else(|| (format!("unknown error code 0x{number:x}"), code::UNKNOWN));
                let message = format!("stream terminated by RST_STREAM with error code: {name}");
                return Err(Status { code, message, unprocessed: number == REFUSED_STREAM });
            }
            Event::Refused => {
                let message = "the stream is rejected because server is draining the connection".to_owned();
                return Err(Status { code: code::UNAVAILABLE, message, unprocessed: true });
            }
        }
    }
}

/// The part of the response that has arrived.
#[derive(Default)]
struct Answer {
    /// A head with the content type of gRPC has arrived.
    begun: bool,
    encoding: Option<String>,
    body: Vec<u8>,
}

impl Answer {
    /// Handles the head of the response, or with `end` its trailers. Returns the result if it is final (grpc-go:
    /// `operateHeaders`).
    fn headers(&mut self, fields: &[nodlet_wire::hpack::Field], end: bool) -> Result<Option<u64>, Status> {
        if self.begun && !end {
            let text = "a HEADERS frame cannot appear in the middle of a stream";
            return Err(Status::new(code::INTERNAL, text));
        }
        let field = |name: &str| {
            let found = fields.iter().rfind(|field| field.name == name.as_bytes());
            found.map(|field| String::from_utf8_lossy(&field.value))
        };
        let content_type = field("content-type");
        let is_grpc = content_type.as_deref().is_some_and(|found| {
            let rest = found.strip_prefix("application/grpc");
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
        });
        if !is_grpc && !self.begun {
            return not_grpc(field(":status").as_deref(), content_type.as_deref(), end).map(|()| None);
        }
        self.begun = true;
        if let Some(encoding) = field("grpc-encoding") {
            self.encoding = Some(encoding.into_owned());
        }
        let status = match field("grpc-status").map(|status| (status.parse::<i32>(), status)) {
            None => code::UNKNOWN,
            Some((Ok(status), _)) => status as u32,
            Some((Err(_), status)) => {
                let why = format!("strconv.ParseInt: parsing {status:?}: invalid syntax");
                return Err(Status::new(code::UNKNOWN, format!("transport: malformed grpc-status: {why}")));
            }
        };
        match status {
            _ if !end => Ok(None),
            code::OK => self.message().map(Some),
            code => Err(Status::new(code, unescaped(&field("grpc-message").unwrap_or_default()))),
        }
    }

    /// Adds a part of the body. Rejects a message as soon as its length exceeds the limit.
    fn data(&mut self, bytes: &[u8]) -> Result<(), Status> {
        self.body.extend_from_slice(bytes);
        let Some([flag, length @ ..]) = self.body.first_chunk::<5>() else { return Ok(()) };
        if *flag > 1 {
            let text = format!("grpc: received unexpected payload format {flag}");
            return Err(Status::new(code::INTERNAL, text));
        }
        let length = u32::from_be_bytes(*length) as usize;
        if length > BODY - 5 {
            let text = format!("grpc: received message larger than max ({length} vs. {})", BODY - 5);
            return Err(Status::new(code::RESOURCE_EXHAUSTED, text));
        }
        Ok(())
    }

    /// Returns the status in the single message of the body.
    fn message(&self) -> Result<u64, Status> {
        let internal = |text: &str| Err(Status::new(code::INTERNAL, text));
        let Some(([flag, length @ ..], rest)) = self.body.split_first_chunk::<5>() else {
            return if self.body.is_empty() {
                internal("cardinality violation: received no response message from non-server-streaming RPC")
            } else {
                internal("unexpected EOF")
            };
        };
        let length = u32::from_be_bytes(*length) as usize;
        let Some((message, rest)) = rest.split_at_checked(length) else { return internal("unexpected EOF") };
        if *flag == 1 {
            return match self.encoding.as_deref() {
                None | Some("" | "identity") => {
                    internal("grpc: compressed flag set with identity or empty encoding")
                }
                Some(encoding) => {
                    internal(&format!("grpc: Decompressor is not installed for grpc-encoding {encoding:?}"))
                }
            };
        }
        if !rest.is_empty() {
            return internal(
                "cardinality violation: expected <EOF> for non server-streaming RPCs, but received another message",
            );
        }
        match status(message) {
            Some(status) => Ok(status),
            None => internal(
                "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data",
            ),
        }
    }
}

/// The error of a response that is not of gRPC, unless it is informational.
fn not_grpc(status: Option<&str>, content_type: Option<&str>, end: bool) -> Result<(), Status> {
    let content_type = match content_type {
        None => "malformed header: missing HTTP content-type".to_owned(),
        Some(other) => format!("transport: received unexpected content-type {other:?}"),
    };
    let (code, text) = match status.map(|status| (status.parse::<u32>(), status)) {
        None => (code::INTERNAL, "malformed header: missing HTTP status".to_owned()),
        Some((Err(_), status)) => {
            let why = format!("strconv.Atoi: parsing {status:?}: invalid syntax");
            return Err(Status::new(code::INTERNAL, format!("transport: malformed http-status: {why}")));
        }
        Some((Ok(100..200), _)) if !end => return Ok(()),
        Some((Ok(status @ 100..200), _)) => {
            let text = format!(
                "protocol error: informational header with status code {status} must not have END_STREAM set"
            );
            return Err(Status::new(code::INTERNAL, text));
        }
        Some((Ok(status), _)) => {
            let code = match status {
                400 => code::INTERNAL,
                401 => code::UNAUTHENTICATED,
                403 => code::PERMISSION_DENIED,
                404 => code::UNIMPLEMENTED,
                429 | 502..=504 => code::UNAVAILABLE,
                _ => code::UNKNOWN,
            };
            let known =
                u16::try_from(status).ok().and_then(|status| hyper::StatusCode::from_u16(status).ok());
            let reason = known.and_then(|status| status.canonical_reason()).unwrap_or_default();
            (code, format!("unexpected HTTP status code received from server: {status} ({reason})"))
        }
    };
    Err(Status::new(code, format!("{text}; {content_type}")))
}

/// Encodes a gRPC message with a `HealthCheckRequest`, whose first field is `service`.
fn request(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            message.push(length as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        message.extend_from_slice(service.as_bytes());
    }
    let mut body = vec![0];
    body.extend((message.len() as u32).to_be_bytes());
    body.extend(message);
    body
}

/// Returns `status` of a `HealthCheckResponse`: field 1, of which the last occurrence counts. Returns `None` for
/// invalid protobuf.
fn status(mut message: &[u8]) -> Option<u64> {
    let mut status = 0;
    while !message.is_empty() {
        if let (1, Field::Number(value)) = protobuf::field(&mut message)? {
            status = value;
        }
    }
    Some(status)
}

/// Decodes the percent-encoding of `grpc-message` (grpc-go: `decodeGrpcMessage`).
fn unescaped(message: &str) -> String {
    let bytes = message.as_bytes();
    let mut text = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let hex = bytes.get(at + 1..at + 3).filter(|_| *byte == b'%');
        let hex = hex.and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                text.push(byte);
                at += 3;
            }
            None => {
                text.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests;
