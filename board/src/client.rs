//! An HTTP/1.1 client of the agent's socket: one connection per request, and blocking, because a verb has
//! nothing else to do.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::task::Poll;
use std::time::{Duration, Instant};

use nodlet_wire::http::{Head, HttpError, Reader};
use serde_json::Value;

use crate::arguments::Context;
use crate::error::VerbError;
use crate::verb::Outcome;

pub(crate) mod remote;
pub(crate) mod session;
pub(crate) mod watch;

use remote::Remote;
use watch::Watch;

/// Maximum size in bytes of a response, or of one event of a watch, that a verb keeps in memory. All manifests of a board
/// have 4 MiB, and a list has each object with its status.
const RESPONSE_BYTES: u64 = 32 << 20;

/// A client of the agent of one root, on this machine or on a board.
pub(crate) struct Client {
    root: PathBuf,
    remote: Option<Remote>,
}

impl Client {
    pub(crate) fn new(context: &Context) -> Result<Self, VerbError> {
        let remote = context.board.as_deref().map(|board| Remote::new(board, context.root_given()));
        Ok(Client { remote: remote.transpose()?, ..Client::local(&context.root) })
    }

    /// A client of the agent on this machine, even if the user named a board.
    pub(crate) fn local(root: &std::path::Path) -> Self {
        Client { root: root.into(), remote: None }
    }

    /// The failure to report if a connection ended without a response.
    pub(crate) fn lost(&self, error: &io::Error) -> VerbError {
        match &self.remote {
            Some(remote) => remote.lost(error),
            None => VerbError::disconnected(format!("the connection to the agent was lost: {error}")),
        }
    }

    /// Watches the socket's directory: an agent that starts on this machine puts its socket there.
    pub(crate) fn watch_restart(&self) -> Watch {
        let path = nodlet_runtime::api::socket_path(&self.root);
        Watch::of(path.parent().unwrap_or(&self.root))
    }

    /// Waits after a lost connection until the agent may be running again, here or on the board.
    pub(crate) fn wait_for_agent(&self, within: Duration) {
        match &self.remote {
            Some(remote) => remote.wait_for_agent(within),
            None => drop(self.watch_restart().wait_for_agent(Instant::now() + within)),
        }
    }

    pub(crate) fn connect(&self) -> Result<UnixStream, VerbError> {
        if let Some(remote) = &self.remote {
            return remote.connect();
        }
        let path = nodlet_runtime::api::socket_path(&self.root);
        UnixStream::connect(&path).map_err(|error| {
            let root = self.root.display().to_string();
            match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    if root == "/"
                        && let Some(why) = crate::boot::safe_mode::is_safe()
                    {
                        return VerbError::disconnected(why);
                    }
                    let option = if root == "/" { String::new() } else { format!(" --root {root}") };
                    VerbError::disconnected(format!(
                        "nodlet agent is not running under {root}: start it with `nodlet{option} agent` \
                         (no process listens on {})",
                        path.display()
                    ))
                }
                io::ErrorKind::PermissionDenied => VerbError::disconnected(format!(
                    "no permission to open {}: run this as root, or as a member of the group nodlet",
                    path.display()
                )),
                _ => VerbError::disconnected(format!("failed to connect to {}: {error}", path.display())),
            }
        })
    }

    /// Sends one request. A response other than success becomes the error that kubectl would print.
    pub(crate) fn request(
        &self,
        method: &str,
        target: &str,
        accept: &str,
        body: Option<&Value>,
    ) -> Result<Response, VerbError> {
        let response = exchange(self.connect()?, method, target, accept, body);
        let response = response.map_err(|error| self.lost(&error))?;
        match response.code {
            200..300 => Ok(response),
            _ => Err(response.refusal()),
        }
    }

    /// Requests another protocol at `target` with these header lines. Returns the agent's consent.
    pub(crate) fn upgrade(&self, target: &str, headers: &str) -> Result<Response, VerbError> {
        let lost = |error| self.lost(&error);
        let mut stream = self.connect()?;
        let request =
            format!("GET {target} HTTP/1.1\r\nhost: nodlet\r\nconnection: Upgrade\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).map_err(lost)?;
        let response = Response::read(stream, "GET").map_err(lost)?;
        match response.code {
            101 => Ok(response),
            _ => Err(response.refusal()),
        }
    }

    /// Passes every event of a watch, as its type and object, to the caller, until the caller stops or the
    /// agent ends the watch.
    pub(crate) fn watch(
        &self,
        target: &str,
        accept: &str,
        mut show: impl FnMut(&str, &Value) -> Result<WatchFlow, VerbError>,
    ) -> Result<WatchFlow, VerbError> {
        let mut events = BufReader::new(self.request("GET", target, accept, None)?.body);
        let mut line = String::new();
        while (&mut events).take(RESPONSE_BYTES + 1).read_line(&mut line).map_err(VerbError::disconnected)?
            > 0
        {
            let event = parse(line.as_bytes())?;
            line.clear();
            let object = &event["object"];
            match event["type"].as_str() {
                Some("BOOKMARK") | None => {}
                Some("ERROR") => {
                    let code =
                        object["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
                    return Err(VerbError::refused(code, explain(code, &object.to_string())));
                }
                Some(kind) => {
                    if let WatchFlow::Stop = show(kind, object)? {
                        return Ok(WatchFlow::Stop);
                    }
                }
            }
        }
        Ok(WatchFlow::Continue)
    }

    /// The items of a list.
    pub(crate) fn list(&self, target: &str) -> Result<Vec<Value>, VerbError> {
        let mut list = self.json("GET", target, None)?;
        Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    /// Sends a request and parses the response as JSON.
    pub(crate) fn json(&self, method: &str, target: &str, body: Option<&Value>) -> Result<Value, VerbError> {
        self.request(method, target, "application/json", body)?.json()
    }
}

/// Sends one request over a connection, and reads the head of the response.
pub(crate) fn exchange(
    mut stream: UnixStream,
    method: &str,
    target: &str,
    accept: &str,
    body: Option<&Value>,
) -> io::Result<Response> {
    let body = body.map(Value::to_string);
    let mut request = format!(
        "{method} {target} HTTP/1.1\r\nhost: nodlet\r\naccept: {accept}\r\nuser-agent: nodlet/{}\r\nconnection: close\r\n",
        env!("CARGO_PKG_VERSION")
    );
    if let Some(body) = &body {
        let kind = match method {
            "PATCH" => "application/strategic-merge-patch+json",
            _ => "application/json",
        };
        request.push_str(&format!("content-type: {kind}\r\ncontent-length: {}\r\n", body.len()));
    }
    request.push_str("\r\n");
    let sent = stream
        .write_all(request.as_bytes())
        .and_then(|()| stream.write_all(body.as_deref().unwrap_or("").as_bytes()));
    // An agent that rejects a request early closes before it has read the whole body; its response counts.
    match (Response::read(stream, method), sent) {
        (Ok(response), _) => Ok(response),
        (Err(error), Ok(())) | (Err(_), Err(error)) => Err(error),
    }
}

/// Whether a watch continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchFlow {
    Continue,
    Stop,
}

/// The text of an error response, in kubectl's words.
pub(crate) fn explain(code: u16, body: &str) -> String {
    let status: Value = serde_json::from_str(body).unwrap_or_default();
    match (status["reason"].as_str(), status["message"].as_str()) {
        (Some("Invalid"), Some(message)) => invalid(&status, message),
        (Some(reason), Some(message)) => format!("Error from server ({reason}): {message}"),
        _ => format!("Error from server: HTTP status {code}: {}", body.trim()),
    }
}

fn invalid(status: &Value, message: &str) -> String {
    let details = &status["details"];
    let causes = details["causes"].as_array().map_or(&[][..], Vec::as_slice);
    let (Some(kind), Some(name)) = (details["kind"].as_str(), details["name"].as_str()) else {
        return format!("The request is invalid: {message}");
    };
    let cause = |cause: &Value| {
        let text = cause["message"].as_str().unwrap_or("");
        match cause["field"].as_str() {
            Some(field) => format!("{field}: {text}"),
            None => text.into(),
        }
    };
    match causes {
        [] => format!("Error from server (Invalid): {message}"),
        [one] => format!("The {kind} \"{name}\" is invalid: {}", cause(one)),
        several => {
            let lines: Vec<String> = several.iter().map(|one| format!("* {}", cause(one))).collect();
            format!("The {kind} \"{name}\" is invalid: \n{}", lines.join("\n"))
        }
    }
}

/// A response whose body has not been read yet.
pub(crate) struct Response {
    pub(crate) code: u16,
    head: Head,
    pub(crate) body: Body,
}

impl Response {
    /// Writes the body to standard output as it arrives, until the agent ends it.
    pub(crate) fn print(mut self) -> Outcome {
        let mut out = io::stdout().lock();
        let mut bytes = vec![0; 32 * 1024];
        loop {
            let read = self.body.read(&mut bytes).map_err(VerbError::disconnected)?;
            if read == 0 {
                return Ok(ExitCode::SUCCESS);
            }
            out.write_all(&bytes[..read])?;
            out.flush()?;
        }
    }

    /// Reads the head of the response to a request with this method.
    fn read(stream: UnixStream, method: &str) -> io::Result<Response> {
        let mut body = Body { stream, reader: Reader::new(method) };
        loop {
            if let Poll::Ready(head) = body.reader.head().map_err(unreadable)? {
                return Ok(Response { code: head.status, head, body });
            }
            body.fill()?;
        }
    }

    /// The error that kubectl would print for this response.
    fn refusal(self) -> VerbError {
        let (code, text) = (self.code, self.text());
        VerbError::refused(code, explain(code, &text))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    /// The warnings in the response's headers.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.head.all("warning").map(unquote).collect()
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// The body cannot be read, is no JSON, or has more than [`RESPONSE_BYTES`].
    pub(crate) fn json(self) -> Result<Value, VerbError> {
        let mut bytes = Vec::new();
        self.body.take(RESPONSE_BYTES + 1).read_to_end(&mut bytes)?;
        parse(&bytes)
    }

    /// The beginning of the body, as far as it can be read.
    pub(crate) fn text(self) -> String {
        let mut bytes = Vec::new();
        let _ = self.body.take(RESPONSE_BYTES).read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Parses what the agent sent, of which at most one byte more than [`RESPONSE_BYTES`] was read.
fn parse(bytes: &[u8]) -> Result<Value, VerbError> {
    if bytes.len() as u64 > RESPONSE_BYTES {
        return Err(VerbError::new(format!("the agent's response has more than {RESPONSE_BYTES} bytes")));
    }
    serde_json::from_slice(bytes)
        .map_err(|error| VerbError::new(format!("the agent's response is not JSON: {error}")))
}

/// The text of a warning header in the form `299 - "text"`.
fn unquote(warning: &str) -> String {
    let quoted = warning.splitn(3, ' ').nth(2).unwrap_or(warning);
    let mut text = String::new();
    let quoted = quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(quoted);
    let mut rest = quoted.chars();
    while let Some(c) = rest.next() {
        text.extend(if c == '\\' { rest.next() } else { Some(c) });
    }
    text
}

/// A response's body.
pub(crate) struct Body {
    stream: UnixStream,
    reader: Reader,
}

impl Body {
    /// The connection after a protocol upgrade, and the bytes of the new protocol that were already read.
    pub(crate) fn into_stream(self) -> (UnixStream, Vec<u8>) {
        (self.stream, self.reader.buffered().to_vec())
    }

    /// Waits for bytes of the agent.
    fn fill(&mut self) -> io::Result<()> {
        let mut bytes = [0; 8 * 1024];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.reader.end().map_err(unreadable),
            Ok(count) => {
                self.reader.push(&bytes[..count]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if let Poll::Ready(piece) = self.reader.piece(buffer.len()).map_err(unreadable)? {
                let piece = piece.unwrap_or_default();
                buffer[..piece.len()].copy_from_slice(&piece);
                return Ok(piece.len());
            }
            self.fill()?;
        }
    }
}

/// The error of a response that cannot be read.
fn unreadable(error: HttpError) -> io::Error {
    match error {
        HttpError::Ended => {
            io::Error::new(io::ErrorKind::UnexpectedEof, "the agent ended in the middle of its response")
        }
        error => io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
    }
}

impl Context {
    /// The API path of a pod in the namespace.
    pub(crate) fn pod(&self, pod: &str) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", encode(&self.namespace), encode(pod))
    }
}

/// Percent-encodes a value for a URL.
pub(crate) fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(response: &'static [u8]) -> io::Result<(u16, Vec<u8>)> {
        let (mut server, client) = UnixStream::pair()?;
        let server = std::thread::spawn(move || server.write_all(response));
        let mut response = Response::read(client, "GET")?;
        server.join().expect("no panic")?;
        let mut body = Vec::new();
        response.body.read_to_end(&mut body)?;
        Ok((response.code, body))
    }

    #[test]
    fn a_response_ends_at_its_length_or_with_the_connection_and_a_cut_one_is_an_error() {
        for (response, expected) in [
            (&b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokxx"[..], Some(&b"ok"[..])),
            (b"HTTP/1.1 200 OK\r\n\r\nall of it", Some(b"all of it")),
            (b"", None),
            (b"HTTP/1.1\r\n\r\n", None),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok", None),
        ] {
            let read = read(response).ok();
            assert_eq!(
                read,
                expected.map(|body| (200, body.to_vec())),
                "{}",
                String::from_utf8_lossy(response)
            );
        }
    }

    #[test]
    fn a_body_ends_though_the_connection_stays_open() {
        let (mut server, client) = UnixStream::pair().expect("a pair");
        server.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno").expect("written");
        let mut text = String::new();
        Response::read(client, "GET").expect("a head").body.read_to_string(&mut text).expect("a body");
        assert_eq!(text, "no");
        drop(server);
    }

    #[test]
    fn a_response_without_end_is_rejected_before_it_fills_the_memory() {
        let (mut server, client) = UnixStream::pair().expect("a pair");
        let server = std::thread::spawn(move || {
            server.write_all(b"HTTP/1.1 200 OK\r\n\r\n").expect("written");
            (0..).take_while(|_| server.write_all(&[b' '; 1 << 16]).is_ok()).count()
        });
        let failure = Response::read(client, "GET").expect("a head").json().expect_err("it has no end");
        assert_eq!(failure.to_string(), "error: the agent's response has more than 33554432 bytes");
        let pieces = server.join().expect("no panic");
        assert!(pieces < 2 * (32 << 20) / (1 << 16), "{pieces} pieces were read");
    }

    #[test]
    fn refusals_read_as_kubectls() {
        let not_found =
            r#"{"kind":"Status","reason":"NotFound","message":"pods \"x\" not found","code":404}"#;
        assert_eq!(explain(404, not_found), "Error from server (NotFound): pods \"x\" not found");
        let one = r#"{"reason":"Invalid","message":"m","details":{"name":"x","kind":"Pod","causes":[
            {"reason":"FieldValueRequired","field":"spec.containers","message":"Required value"}]}}"#;
        assert_eq!(explain(422, one), "The Pod \"x\" is invalid: spec.containers: Required value");
        let two = r#"{"reason":"Invalid","message":"m","details":{"name":"x","kind":"Pod","causes":[
            {"field":"a","message":"A"},{"field":"b","message":"B"}]}}"#;
        assert_eq!(explain(422, two), "The Pod \"x\" is invalid: \n* a: A\n* b: B");
        assert_eq!(explain(500, "oops\n"), "Error from server: HTTP status 500: oops");
    }

    #[test]
    fn warnings_lose_their_quotes() {
        assert_eq!(
            unquote(r#"299 - "spec.foo: has \"no\" effect, C:\\x""#),
            r#"spec.foo: has "no" effect, C:\x"#
        );
        assert_eq!(unquote(r#"299 - "is \"x\"""#), r#"is "x""#);
        assert_eq!(unquote("odd"), "odd");
    }

    #[test]
    fn values_are_safe_in_a_url() {
        assert_eq!(encode("a=b,c in (d)&/é"), "a%3Db%2Cc%20in%20%28d%29%26%2F%C3%A9");
    }
}
