//! Carries out probes: asks once and says what came of it, in the kubelet's
//! words. What follows from the answer is decided in `pod/probe.rs`.
//!
//! Everything runs on the agent's one thread and ends with the probe's timeout:
//! no blocking call, no memory that grows with what a container answers. Only a
//! probe that names its host has that looked up on a thread, which ends again
//! (`prober/lookup.rs`).
//! Each probe is a connection of its own, from the node to the pod's
//! address. A kubelet lets its sockets linger for a second; closing one that
//! lingers blocks, so ours do not.
//!
//! Read next: `prober/response.rs` for what is read, `prober/url.rs` for where
//! a redirect leads, `prober/grpc.rs` for the call over HTTP/2.

mod grpc;
mod lookup;
mod response;
mod stream;
mod url;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use nix::errno::Errno;
use smol::{Async, Timer};

use nodlet_core::facts::ProbeResult;
use nodlet_core::spec::container::ContainerPort;
use nodlet_core::spec::probe::PortOrName;
use nodlet_wire::tls::{Client, TlsError};

use response::{ReadError, Response};
use stream::{Stream, StreamError};
use url::Url;

pub(crate) use grpc::grpc;

/// Whom a server is told that it talks to: what follows Kubernetes' version.
const USER_AGENT: &str = "kube-probe/1.36";

/// Whom it is told by a hook.
const LIFECYCLE_AGENT: &str = "kube-lifecycle/1.36";

/// What is said of a server that answers TLS with HTTP.
const NO_TLS: &str = "http: server gave HTTP response to HTTPS client";

/// Requests of one probe, redirects included.
const REQUESTS: usize = 10;

/// For how long a server may shake hands, however long the probe may take (Go: `TLSHandshakeTimeout`).
const HANDSHAKE: Duration = Duration::from_secs(10);

/// What `httpGet` asks for.
pub(crate) struct HttpGet<'a> {
    /// Over TLS, with whomever it is.
    pub secure: bool,
    /// Whom, if not the pod's address.
    pub host: Option<&'a str>,
    /// Where.
    pub port: &'a PortOrName,
    /// With its query.
    pub path: &'a str,
    /// In order.
    pub headers: &'a [(String, String)],
}

/// `httpGet`: healthy is a status of 200 to 399.
pub(crate) async fn http(
    ip: IpAddr,
    ports: &[ContainerPort],
    get: &HttpGet<'_>,
    timeout: Duration,
) -> ProbeResult {
    let port = match resolve_port(get.port, ports) {
        Ok(port) => port,
        Err(message) => return ProbeResult::Error(message.into()),
    };
    let asking = Asking::new(get, ip, port, USER_AGENT);
    let late = async {
        Timer::after(timeout).await;
        asking.timed_out()
    };
    smol::future::or(
        async { asking.follow().await.map_or_else(|found| found, |response| judge(&response)) },
        late,
    )
    .await
}

/// `httpGet` of a hook: well is whatever answers, with whatever status, and there is no timeout.
/// Who was to be asked over TLS and answered only without is named.
///
/// # Errors
/// Why nothing answers, in Go's words.
pub(crate) async fn hook(
    ip: IpAddr,
    ports: &[ContainerPort],
    get: &HttpGet<'_>,
) -> Result<Option<String>, String> {
    let port = resolve_port(get.port, ports)?;
    let ask = async |get: &HttpGet<'_>| match Asking::new(get, ip, port, LIFECYCLE_AGENT).follow().await {
        // An answer that breaks off is one.
        Ok(_) | Err(ProbeResult::Success | ProbeResult::Warning(_) | ProbeResult::Error(_)) => Ok(()),
        Err(ProbeResult::Failure(message)) => Err(String::from(message)),
    };
    let asked = ask(get).await;
    match asked {
        // Of a server that speaks no TLS a kubelet asks once more without, and without what is secret.
        Err(message) if get.secure && message.ends_with(NO_TLS) => {
            let is_secret = |name: &str| name.eq_ignore_ascii_case("Authorization");
            let headers: Vec<_> = get.headers.iter().filter(|(name, _)| !is_secret(name)).cloned().collect();
            let again = ask(&HttpGet { secure: false, headers: &headers, ..*get }).await;
            let host = get.host.filter(|host| !host.is_empty()).map_or_else(|| ip.to_string(), str::to_owned);
            again.map(|()| Some(url::join(&host, port))).map_err(|_| message)
        }
        asked => asked.map(|()| None),
    }
}

/// `tcpSocket`: healthy is what takes a connection.
pub(crate) async fn tcp(
    ip: IpAddr,
    host: Option<&str>,
    port: &PortOrName,
    ports: &[ContainerPort],
    timeout: Duration,
) -> ProbeResult {
    let port = match resolve_port(port, ports) {
        Ok(port) => port,
        Err(message) => return ProbeResult::Error(message.into()),
    };
    let host = host.filter(|host| !host.is_empty()).map_or_else(|| ip.to_string(), str::to_owned);
    let dialled = async {
        match dial(&host, port).await {
            Ok(_closed_at_once) => ProbeResult::Success,
            Err(message) => ProbeResult::Failure(message.into()),
        }
    };
    let late = async {
        Timer::after(timeout).await;
        ProbeResult::Failure(format!("dial tcp {}: i/o timeout", url::join(&host, port)).into())
    };
    smol::future::or(dialled, late).await
}

/// `exec`: healthy is an exit code of 0.
pub(crate) fn exec_result(code: i32, output: &[u8]) -> ProbeResult {
    if code == 0 {
        ProbeResult::Success
    } else {
        ProbeResult::Failure(String::from_utf8_lossy(output).into())
    }
}

/// An `exec` that was killed when its time was over.
pub(crate) fn exec_timed_out(command: &[String], timeout: Duration) -> ProbeResult {
    let command = command.join(" ");
    ProbeResult::Failure(
        format!("command timed out: {command:?} timed out after {}", seconds(timeout)).into(),
    )
}

/// As Go prints whole seconds.
fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ ..60 => format!("{seconds}s"),
        seconds @ ..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        seconds => format!("{}h{}m{}s", seconds / 3600, seconds / 60 % 60, seconds % 60),
    }
}

/// A number, or the name of a port of the container (kubelet: `ResolveContainerPort`).
fn resolve_port(port: &PortOrName, ports: &[ContainerPort]) -> Result<u16, String> {
    let name = match port {
        PortOrName::Port(port) => return Ok(*port),
        PortOrName::Name(name) => name,
    };
    if let Some(port) = ports.iter().find(|port| port.name.as_deref() == Some(name)) {
        return Ok(port.container_port);
    }
    match name.parse::<i64>() {
        Ok(number) => match u16::try_from(number) {
            Ok(port) if port > 0 => Ok(port),
            Ok(_) | Err(_) => Err(format!("invalid port number: {number}")),
        },
        Err(_) => Err(format!("strconv.Atoi: parsing {name:?}: invalid syntax")),
    }
}

/// How far a request has come: a timeout is told by it.
#[derive(Clone, Copy)]
enum Stage {
    Dialling,
    Waiting,
    Reading,
}

/// One `httpGet` probe.
struct Asking<'a> {
    now: Cell<Stage>,
    /// The URL asked now.
    url: RefCell<Url>,
    headers: &'a [(String, String)],
    /// Who asks.
    agent: &'static str,
}

/// A request that came to no answer.
enum RequestError {
    /// Told as Go's client tells it, after the URL.
    Failed(String),
    /// The answer began well and broke off: nothing is known.
    Body(String),
}

impl<'a> Asking<'a> {
    fn new(get: &HttpGet<'a>, ip: IpAddr, port: u16, agent: &'static str) -> Self {
        let host = get.host.filter(|host| !host.is_empty()).map_or_else(|| ip.to_string(), str::to_owned);
        let url = RefCell::new(Url::new(get.secure, &host, port, get.path));
        Asking { now: Cell::new(Stage::Waiting), url, headers: get.headers, agent }
    }
}

impl Asking<'_> {
    /// Asks, and follows redirects to the same host. The error is what a probe makes of having
    /// no answer.
    async fn follow(&self) -> Result<Response, ProbeResult> {
        let first = self.url.borrow().clone();
        let mut referer = None;
        for requests in 1.. {
            let url = self.url.borrow().clone();
            let response = match self.request(&url, &first, referer.as_deref()).await {
                Ok(response) => response,
                Err(RequestError::Failed(message)) => return Err(failed(&url, &message)),
                Err(RequestError::Body(message)) => return Err(ProbeResult::Error(message.into())),
            };
            let redirect = matches!(response.status, 301 | 302 | 303 | 307 | 308);
            let location = response.header("Location").filter(|location| redirect && !location.is_empty());
            let Some(location) = location else { return Ok(response) };
            let Some(next) = url.join(location) else {
                let message = format!("failed to parse Location header {location:?}: it is no URL");
                return Err(failed(&url, &message));
            };
            // Another host is none of the container's health.
            if next.host() != first.host() {
                return Ok(response);
            }
            if requests >= REQUESTS {
                return Err(failed(&url, &format!("stopped after {REQUESTS} redirects")));
            }
            referer = match (url.is_secure(), next.is_secure()) {
                // What was asked for in secret is not told in the open.
                (true, false) => None,
                (true, true) | (false, _) => Some(url.to_string()),
            };
            self.url.replace(next);
        }
        unreachable!("the loop ends after {REQUESTS} requests")
    }

    /// What a probe says when its time is over.
    fn timed_out(&self) -> ProbeResult {
        let url = self.url.borrow();
        match self.now.get() {
            Stage::Dialling => {
                let address = url::join(url.host(), url.port());
                failed(
                    &url,
                    &format!(
                        "dial tcp {address}: i/o timeout (Client.Timeout exceeded while awaiting headers)"
                    ),
                )
            }
            Stage::Waiting => {
                failed(&url, "context deadline exceeded (Client.Timeout exceeded while awaiting headers)")
            }
            Stage::Reading => ProbeResult::Error(
                "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
                    .into(),
            ),
        }
    }

    async fn request(&self, url: &Url, first: &Url, referer: Option<&str>) -> Result<Response, RequestError> {
        let text = self.text(url, first, referer).map_err(RequestError::Failed)?;
        self.now.set(Stage::Dialling);
        let stream = dial(url.host(), url.port()).await.map_err(RequestError::Failed)?;
        self.now.set(Stage::Waiting);
        let mut stream = match url.is_secure() {
            true => shake_hands(stream, url.host()).await.map_err(RequestError::Failed)?,
            false => Stream::Plain(stream),
        };
        let ends = ends(stream.socket());
        let failed = |operation: &str, error: StreamError| {
            RequestError::Failed(match error {
                StreamError::Io(error) => format!("{operation} tcp{ends}: {operation}: {}", describe(&error)),
                StreamError::Cut => "unexpected EOF".to_owned(),
                StreamError::Tls(what) => what,
            })
        };
        stream.write_all(text.as_bytes()).await.map_err(|error| failed("write", error))?;
        let mut reader = response::Reader::new(stream);
        let head = reader.head().await.map_err(|error| match error {
            ReadError::Stream(error) => failed("read", error),
            ReadError::Ended => RequestError::Failed("EOF".to_owned()),
            ReadError::Malformed(what) => {
                RequestError::Failed(format!("net/http: HTTP/1.x transport connection broken: {what}"))
            }
        })?;
        self.now.set(Stage::Reading);
        reader.body(head).await.map_err(|error| match error {
            ReadError::Stream(StreamError::Io(error)) => RequestError::Body(describe(&error)),
            ReadError::Stream(StreamError::Tls(what)) => RequestError::Body(what),
            ReadError::Stream(StreamError::Cut) | ReadError::Ended => {
                RequestError::Body("unexpected EOF".to_owned())
            }
            ReadError::Malformed(what) => RequestError::Body(what),
        })
    }

    /// The bytes of the request, in the order in which Go's client writes them.
    fn text(&self, url: &Url, first: &Url, referer: Option<&str>) -> Result<String, String> {
        let named = |wanted: &str| {
            let found = self.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.as_str())
        };
        for (name, value) in self.headers {
            // What could begin a header of its own.
            if value.bytes().any(|byte| (byte < b' ' && byte != b'\t') || byte == 0x7f) {
                return Err(format!("net/http: invalid header field value for {:?}", canonical(name)));
            }
        }
        // The wished host holds for the URL of the probe, and where a redirect names none.
        let wished = named("Host").filter(|host| !host.is_empty() && url.authority() == first.authority());
        let authority = url.authority();
        let host = wished.unwrap_or(&authority);
        if host.bytes().any(|byte| byte <= b' ' || byte >= 0x7f) {
            return Err("http: invalid Host header".to_owned());
        }
        let mut text = format!("GET {} HTTP/1.1\r\nHost: {host}\r\n", url.target());
        let mut write = |name: &str, value: &str| {
            for part in [name, ": ", value.trim(), "\r\n"] {
                text.push_str(part);
            }
        };
        match named("User-Agent") {
            Some("") => {}
            Some(agent) => write("User-Agent", agent),
            None => write("User-Agent", self.agent),
        }
        match named("Accept") {
            // An empty one takes it away.
            Some(_) => {}
            None => write("Accept", "*/*"),
        }
        write("Connection", "close");
        if let Some(referer) = referer {
            write("Referer", referer);
        }
        for (name, value) in self.headers {
            let name = canonical(name);
            let ours = matches!(
                &*name,
                "Host" | "User-Agent" | "Connection" | "Content-Length" | "Transfer-Encoding" | "Trailer"
            );
            let taken_away = name == "Accept" && value.is_empty();
            if !ours && !taken_away {
                write(&name, value);
            }
        }
        text.push_str("\r\n");
        Ok(text)
    }
}

fn failed(url: &Url, message: &str) -> ProbeResult {
    ProbeResult::Failure(format!("Get \"{url}\": {message}").into())
}

/// kubelet: `DoHTTPProbe`.
fn judge(response: &Response) -> ProbeResult {
    match response.status {
        200..300 => ProbeResult::Success,
        300..400 => {
            let body = String::from_utf8_lossy(&response.body);
            ProbeResult::Warning(format!("Probe terminated redirects, Response body: {body}").into())
        }
        status => ProbeResult::Failure(format!("HTTP probe failed with statuscode: {status}").into()),
    }
}

/// `x-my-header` as `X-My-Header`.
fn canonical(name: &str) -> String {
    let mut start = true;
    let letter = |letter: char| {
        let written = if start { letter.to_ascii_uppercase() } else { letter.to_ascii_lowercase() };
        start = letter == '-';
        written
    };
    name.chars().map(letter).collect()
}

/// Connects to a host by address or name; the error is Go's text.
async fn dial(host: &str, port: u16) -> Result<Async<TcpStream>, String> {
    if let Ok(ip) = host.parse() {
        return connect(SocketAddr::new(ip, port)).await;
    }
    // A probe that names a host has asked for a look-up; its timeout bounds it.
    let found = lookup::lookup(host).await.map_err(|error| format!("dial tcp: lookup {host}: {error}"))?;
    let address = found.iter().find(|address| address.is_ipv4()).or(found.first());
    match address {
        Some(ip) => connect(SocketAddr::new(*ip, port)).await,
        None => Err(format!("dial tcp: lookup {host}: no such host")),
    }
}

async fn connect(address: SocketAddr) -> Result<Async<TcpStream>, String> {
    let connected = Async::<TcpStream>::connect(address).await;
    connected.map_err(|error| format!("dial tcp {address}: connect: {}", describe(&error)))
}

/// TLS over a connection; the error is Go's text. The probe's own timeout ends it earlier, as a rule.
async fn shake_hands(stream: Async<TcpStream>, host: &str) -> Result<Stream, String> {
    let ends = ends(stream.get_ref());
    let shaken = async {
        match Client::unverified(stream, host).await {
            Ok(client) => Ok(Stream::Tls(Box::new(client))),
            Err(TlsError::Io(error)) => Err(format!("read tcp{ends}: read: {}", describe(&error))),
            Err(error) => Err(stream::in_gos_words(&error)),
        }
    };
    let late = async {
        Timer::after(HANDSHAKE).await;
        Err("net/http: TLS handshake timeout".to_owned())
    };
    smol::future::or(shaken, late).await
}

/// Both ends of a connection, as Go writes them behind an operation.
fn ends(socket: &TcpStream) -> String {
    match (socket.local_addr(), socket.peer_addr()) {
        (Ok(local), Ok(remote)) => format!(" {local}->{remote}"),
        (Ok(_) | Err(_), Ok(_) | Err(_)) => String::new(),
    }
}

/// An error as Go prints it: the kernel's words in lower case, without the number.
fn describe(error: &io::Error) -> String {
    let Some(number) = error.raw_os_error() else { return error.to_string() };
    let text = Errno::from_raw(number).desc();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_ascii_lowercase().to_string() + letters.as_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
