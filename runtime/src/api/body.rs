//! Bodies of requests and responses.

use std::pin::Pin;
use std::time::Duration;

use futures_lite::Stream;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Response, StatusCode, header};
use serde_json::Value;

use super::place::{Held, Places};
use super::{BODY_BYTES, Exchange, Status};
use nodlet_kube::kinds::Kind;
use nodlet_kube::manifest;
use nodlet_kube::protobuf::{self, ProtobufError};
use nodlet_wire::timeout::within;

/// Time within which the whole body of a request must arrive.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// The body of a response: bytes, or a stream that is polled for the next piece only after the client has read the
/// last one ([`super::answer::Answer`]).
pub(super) enum Body {
    Whole(Option<Bytes>),
    Stream(Pin<Box<dyn Stream<Item = Bytes>>>),
}

impl Body {
    pub(super) fn stream(pieces: impl Stream<Item = Bytes> + 'static) -> Body {
        Body::Stream(Box::pin(pieces))
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Body {
        Body::Whole(Some(bytes.into()))
    }
}

pub(super) fn json(code: StatusCode, json: impl Into<Body>) -> Response<Body> {
    let mut response = text(json);
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

pub(super) fn value(code: StatusCode, value: &Value) -> Response<Body> {
    json(code, value.to_string())
}

pub(super) fn text(text: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain"));
    response
}

pub(super) fn refuse(status: &Status) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = value(code, &status.to_json());
    if code == StatusCode::TOO_MANY_REQUESTS {
        // In seconds; kubectl comes again by itself then.
        response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
    }
    response
}

/// Characters of all warnings together, beyond which each is cut to [`WARNING`] (`truncateAtTotalRunes`).
const WARNINGS: usize = 4 * 1024;

/// `truncateItemRunes`.
const WARNING: usize = 256;

/// Adds the header by which kubectl prints `Warning: …`.
pub(super) fn warn(response: &mut Response<Body>, warnings: &[String]) {
    let all: usize = warnings.iter().map(|warning| warning.chars().count()).sum();
    let (of_each, count) = if all > WARNINGS { (WARNING, WARNINGS / WARNING) } else { (all, warnings.len()) };
    for warning in warnings.iter().take(count) {
        let escaped: String = warning
            .chars()
            .take(of_each)
            .filter(|c| !c.is_control())
            .flat_map(|c| matches!(c, '"' | '\\').then_some('\\').into_iter().chain([c]))
            .collect();
        if let Ok(line) = header::HeaderValue::from_bytes(format!("299 - \"{escaped}\"").as_bytes()) {
            response.headers_mut().append(header::WARNING, line);
        }
    }
}

/// All of a request's body as JSON, null if there is none, and its room among `places`, for as long
/// as the object is there: sixty clients who send a little less than is taken are not to fill the
/// memory, neither with text nor with what comes of it. The rest are the texts about fields
/// that occur twice.
pub(super) async fn read(exchange: Exchange<'_>) -> Result<(Value, Held, Vec<String>), Status> {
    let headers = exchange.request.headers();
    if let Some(kind) = headers.get(header::CONTENT_TYPE)
        && !kind.as_bytes().starts_with(b"application/json")
        && !is_protobuf(headers)
    {
        let kind = String::from_utf8_lossy(kind.as_bytes());
        return Err(Status::unsupported_media_type(format!(
            "the body of the request was in an unknown format - accepted media types include: application/json, not {kind}"
        )));
    }
    read_any(exchange).await
}

/// Content type of requests from typed clients.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn is_protobuf(headers: &header::HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(PROTOBUF.as_bytes()))
}

/// Reads the object in the body of a request, whatever the content type of its JSON is, or from protobuf.
pub(super) async fn read_any(exchange: Exchange<'_>) -> Result<(Value, Held, Vec<String>), Status> {
    let Exchange { api, request, place, .. } = exchange;
    let places = &api.places;
    let is_protobuf = is_protobuf(request.headers());
    let collected = within(BODY_WITHIN, collect(places, request.into_body()))
        .await
        .ok_or_else(|| Status::timeout("the body of the request did not arrive in time"))?;
    let (bytes, text) = collected?;
    // From now on, the client waits for the agent.
    place.mark_served();
    let held = places.hold_object(if is_protobuf { cost_of_protobuf(&bytes) } else { cost(&bytes) })?;
    drop(text);
    let (object, repeated) = parsed(&bytes, is_protobuf)?;
    Ok((object, held, repeated))
}

/// The object of a body, null if there is none, and a text for each field that occurs twice.
fn parsed(bytes: &[u8], is_protobuf: bool) -> Result<(Value, Vec<String>), Status> {
    if bytes.is_empty() {
        return Ok((Value::Null, Vec::new()));
    }
    if is_protobuf {
        let object = protobuf::object(bytes, manifest::VALUES, |kind| {
            kind == "DeleteOptions" || Kind::named(kind).is_some()
        });
        return object.map(|object| (object, Vec::new())).map_err(|error| match error {
            // What a user of kubectl can do instead.
            ProtobufError::Unsupported(kind) => Status::unsupported_media_type(format!(
                "nodlet reads objects of the kind {kind:?} in JSON only, not in protobuf: let kubectl write it: \
                 `kubectl create … --dry-run=client -o yaml | kubectl create -f -`"
            )),
            ProtobufError::Malformed => Status::bad_request(
                "the object provided is unrecognized: it is not a valid protobuf message of its kind",
            ),
            ProtobufError::ContentEncoding => {
                Status::bad_request("the object provided is unrecognized: its contentEncoding must be empty")
            }
            ProtobufError::TooManyValues => too_many_values(),
        });
    }
    manifest::json::value(bytes).map_err(|error| {
        if error.is_data() {
            too_many_values()
        } else {
            Status::bad_request(format!("the object provided is unrecognized: it is not JSON: {error}"))
        }
    })
}

fn too_many_values() -> Status {
    Status::too_large(format!("{} values: send several objects one by one", manifest::VALUES))
}

/// Returns an upper bound of the memory for a text and its parsed value. A list or an object starts with space for
/// several values, and each further value follows a comma. Strings are in the text and in the value.
pub(super) fn cost(text: &[u8]) -> usize {
    let values = text.iter().map(|byte| match byte {
        b'{' => 800,
        b'[' => 200,
        b',' => 100,
        _ => 0,
    });
    text.len() * 2 + values.sum::<usize>()
}

/// Text and bytes in base64 beside the request, and 400 bytes for each value. A map, which begins with space for several,
/// counts as one more value, and a message of two bytes may begin one.
fn cost_of_protobuf(body: &[u8]) -> usize {
    body.len() * 2 + body.len().min(manifest::VALUES) * 400
}

/// The bytes of a body, and the room that they take.
async fn collect(places: &Places, body: Incoming) -> Result<(Vec<u8>, Vec<Held>), Status> {
    let mut body = Limited::new(body, BODY_BYTES);
    let (mut bytes, mut held) = (Vec::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            if error.is::<LengthLimitError>() {
                Status::too_large(BODY_BYTES)
            } else {
                Status::bad_request(format!("failed to read the body of the request: {error}"))
            }
        })?;
        if let Ok(data) = frame.into_data() {
            held.push(places.hold(data.len())?);
            bytes.extend_from_slice(&data);
        }
    }
    Ok((bytes, held))
}
