//! Carries out probes of all kinds, each once, and returns the results with the kubelet's messages. `pod/probe.rs` of
//! the core decides what follows from a result. The engine runs the commands of exec probes (`engine/exec.rs`).
//!
//! A probe runs on the agent's one thread and ends with its timeout. It makes no blocking call, and its memory
//! does not grow with the response of a container. Only the host name of a probe is looked up on another
//! thread (`prober/lookup.rs`), which ends when no lookup is left.
//!
//! Each probe opens its own connection from the node to the pod's address. A kubelet sets `SO_LINGER` to one
//! second on its sockets. Closing such a socket blocks, so this module does not set the option.
//!
//! Read next: `prober/go_errors.rs`, the texts of failures; `prober/url.rs`, which resolves redirects;
//! `prober/grpc.rs`, the call over HTTP/2. The responses are read by `nodlet_wire::http`.

mod go_errors;
mod grpc;
pub(crate) mod lookup;
mod url;

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use smol::Async;

use nodlet_core::facts::ProbeResult;
use nodlet_core::spec::container::{Container, ContainerPort};
use nodlet_core::spec::probe::{PortOrName, Probe, ProbeAction};
use nodlet_wire::http::{Connection, Head, Stream};
use nodlet_wire::timeout::within;
use nodlet_wire::tls::{Client, TlsError};

use crate::container_config::probe_command;
use go_errors::NO_TLS;
use grpc::grpc;
use url::Url;

/// `User-Agent` of a probe, with the version of Kubernetes whose behaviour nodlet follows.
const USER_AGENT: &str = "kube-probe/1.36";

/// `User-Agent` of a hook.
const LIFECYCLE_AGENT: &str = "kube-lifecycle/1.36";

/// Maximum number of bytes that are read of a body (kubelet: `maxRespBodyLength`).
const BODY: usize = 10 * 1024;

/// Maximum number of bytes that are kept of the output of a command, and of the command in a message (kubelet:
/// `maxReadLength`).
pub(crate) const COMMAND_OUTPUT: usize = 10 * 1024;

/// Maximum number of requests of one probe, redirects included.
const REQUESTS: usize = 10;

/// Timeout of a TLS handshake, independent of the probe's timeout (Go: `TLSHandshakeTimeout`).
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The request of an `httpGet` probe or hook.
pub(crate) struct HttpGet<'a> {
    /// Whether to use TLS. The server's certificate is not verified.
    pub secure: bool,
    /// The host to connect to, if not the pod's address.
    pub host: Option<&'a str>,
    /// The port, or the name of a port of the container.
    pub port: &'a PortOrName,
    /// The path with its query.
    pub path: &'a str,
    /// The headers, in the order of the spec.
    pub headers: &'a [(String, String)],
}

/// Carries out a probe of a container once. Returns after the probe's timeout at the latest.
///
/// `address` returns the address of the pod. `exec` runs a command in the container within the timeout, and returns its
/// exit code and output, `None` if the time was over, or the error of a command that could not be run.
pub(crate) async fn probe(
    container: &Container,
    probe: &Probe,
    address: impl FnOnce() -> IpAddr,
    exec: impl AsyncFnOnce(&[String]) -> Result<Option<(i32, Vec<u8>)>, String>,
) -> ProbeResult {
    let (ports, timeout) = (&container.ports, probe.timeout);
    match &probe.action {
        ProbeAction::Exec(command) => match exec(command).await {
            Ok(Some((code, output))) => exec_result(code, &output),
            Ok(None) => exec_timed_out(&shown_command(container, command), timeout),
            Err(message) => ProbeResult::Error(message.into()),
        },
        ProbeAction::HttpGet { secure, host, port, path, headers } => {
            let get = HttpGet { secure: *secure, host: host.as_deref(), port, path, headers };
            http(address(), ports, &get, timeout).await
        }
        ProbeAction::Grpc { port, service } => grpc(address(), *port, service, timeout).await,
        ProbeAction::TcpSocket { host, port } => tcp(address(), host.as_deref(), port, ports, timeout).await,
    }
}

/// Carries out an `httpGet` probe, which succeeds with a status from 200 to 399.
async fn http(ip: IpAddr, ports: &[ContainerPort], get: &HttpGet<'_>, timeout: Duration) -> ProbeResult {
    let port = match resolve_port(get.port, ports) {
        Ok(port) => port,
        Err(message) => return ProbeResult::Error(message.into()),
    };
    let asking = HttpRequest::new(get, ip, port, USER_AGENT);
    match within(timeout, asking.follow()).await {
        Some(Ok(response)) => judge(&response),
        Some(Err(found)) => found,
        None => asking.timed_out(),
    }
}

/// Carries out the `httpGet` of a hook, without a timeout. Any response is a success, whatever its status.
/// Returns the address of a server that was to be asked over TLS and responded only without TLS.
///
/// # Errors
/// No response arrived; the message is Go's.
pub(crate) async fn hook(
    ip: IpAddr,
    ports: &[ContainerPort],
    get: &HttpGet<'_>,
) -> Result<Option<String>, String> {
    let port = resolve_port(get.port, ports)?;
    let ask = async |get: &HttpGet<'_>| match HttpRequest::new(get, ip, port, LIFECYCLE_AGENT).follow().await
    {
        // A response that breaks off counts as a response.
        Ok(_) | Err(ProbeResult::Success | ProbeResult::Warning(_) | ProbeResult::Error(_)) => Ok(()),
        Err(ProbeResult::Failure(message)) => Err(String::from(message)),
    };
    let asked = ask(get).await;
    match asked {
        // A kubelet repeats the request without TLS and without secret headers if the server does not support TLS.
        Err(message) if get.secure && message.ends_with(NO_TLS) => {
            let is_secret = |name: &str| name.eq_ignore_ascii_case("Authorization");
            let headers: Vec<_> = get.headers.iter().filter(|(name, _)| !is_secret(name)).cloned().collect();
            let again = ask(&HttpGet { secure: false, headers: &headers, ..*get }).await;
            again.map(|()| Some(url::join(&host(get.host, ip), port))).map_err(|_| message)
        }
        asked => asked.map(|()| None),
    }
}

/// Carries out a `tcpSocket` probe, which succeeds if the server accepts a connection.
async fn tcp(
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
    let host = self::host(host, ip);
    match within(timeout, dial(&host, port)).await {
        Some(Ok(_closed_at_once)) => ProbeResult::Success,
        Some(Err(message)) => ProbeResult::Failure(message.into()),
        None => ProbeResult::Failure(format!("dial tcp {}: i/o timeout", url::join(&host, port)).into()),
    }
}

/// Returns the host that a probe or hook names, or the address of the pod.
fn host(named: Option<&str>, ip: IpAddr) -> String {
    named.filter(|host| !host.is_empty()).map_or_else(|| ip.to_string(), str::to_owned)
}

/// Returns the result of an `exec` probe, which succeeds with exit code 0.
fn exec_result(code: i32, output: &[u8]) -> ProbeResult {
    if code == 0 {
        ProbeResult::Success
    } else {
        ProbeResult::Failure(String::from_utf8_lossy(output).into())
    }
}

/// Returns the result of an `exec` probe that was killed at its timeout.
fn exec_timed_out(command: &str, timeout: Duration) -> ProbeResult {
    let limit = seconds(timeout);
    ProbeResult::Failure(format!("command timed out: {command:?} timed out after {limit}").into())
}

/// The command of a probe or hook, as a message shows it.
pub(crate) fn shown_command(container: &Container, command: &[String]) -> String {
    let mut shown = probe_command(container, command).unwrap_or_default().join(" ");
    if shown.len() > COMMAND_OUTPUT {
        shown.truncate(shown.floor_char_boundary(COMMAND_OUTPUT));
        shown.shrink_to_fit();
    }
    shown
}

/// Formats whole seconds as Go prints a duration.
fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ ..60 => format!("{seconds}s"),
        seconds @ ..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        seconds => format!("{}h{}m{}s", seconds / 3600, seconds / 60 % 60, seconds % 60),
    }
}

/// Resolves a port that may be the name of a port of the container (kubelet: `ResolveContainerPort`).
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

/// The stage of a request, on which the message of a timeout depends.
#[derive(Clone, Copy)]
enum Stage {
    Dialling,
    Waiting,
    Reading,
}

/// One `httpGet` probe or hook.
struct HttpRequest<'a> {
    now: Cell<Stage>,
    /// The URL of the current request.
    url: RefCell<Url>,
    headers: &'a [(String, String)],
    /// The `User-Agent` unless the spec sets one.
    agent: &'static str,
}

/// A response to a probe.
struct Response {
    head: Head,
    /// The beginning of the body.
    body: Vec<u8>,
}

impl<'a> HttpRequest<'a> {
    fn new(get: &HttpGet<'a>, ip: IpAddr, port: u16, agent: &'static str) -> Self {
        let url = RefCell::new(Url::new(get.secure, &host(get.host, ip), port, get.path));
        HttpRequest { now: Cell::new(Stage::Waiting), url, headers: get.headers, agent }
    }

    /// Sends the request and follows redirects to the same host.
    ///
    /// # Errors
    /// No complete response arrived; the error is the result of the probe.
    async fn follow(&self) -> Result<Response, ProbeResult> {
        let first = self.url.borrow().clone();
        let mut referer = None;
        for requests in 1.. {
            let url = self.url.borrow().clone();
            let response = self.request(&url, &first, referer.as_deref()).await?;
            let redirect = matches!(response.head.status, 301 | 302 | 303 | 307 | 308);
            let location =
                response.head.header("Location").filter(|location| redirect && !location.is_empty());
            let Some(location) = location else { return Ok(response) };
            let next = url.join(location).ok_or_else(|| {
                failed(&url, &format!("failed to parse Location header {location:?}: it is no URL"))
            })?;
            // A redirect to another host is not followed: its health is not the container's.
            if next.host() != first.host() {
                return Ok(response);
            }
            if requests >= REQUESTS {
                return Err(failed(&url, &format!("stopped after {REQUESTS} redirects")));
            }
            referer = match (url.is_secure(), next.is_secure()) {
                // A URL that was requested over TLS is not sent in clear text.
                (true, false) => None,
                (true, true) | (false, _) => Some(url.to_string()),
            };
            self.url.replace(next);
        }
        unreachable!("the loop ends after {REQUESTS} requests")
    }

    /// Returns the result of a probe that has timed out.
    fn timed_out(&self) -> ProbeResult {
        let url = self.url.borrow();
        let message = match self.now.get() {
            Stage::Dialling => format!("dial tcp {}: i/o timeout", url::join(url.host(), url.port())),
            Stage::Waiting => "context deadline exceeded".to_owned(),
            Stage::Reading => {
                let text =
                    "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
                return ProbeResult::Error(text.into());
            }
        };
        failed(&url, &format!("{message} (Client.Timeout exceeded while awaiting headers)"))
    }

    /// Sends one request. If the body cannot be read after a valid head, the result of the probe is unknown.
    async fn request(&self, url: &Url, first: &Url, referer: Option<&str>) -> Result<Response, ProbeResult> {
        let failed = |message: String| failed(url, &message);
        let text = self.text(url, first, referer).map_err(failed)?;
        self.now.set(Stage::Dialling);
        let stream = dial(url.host(), url.port()).await.map_err(failed)?;
        self.now.set(Stage::Waiting);
        let stream = if url.is_secure() {
            shake_hands(stream, url.host()).await.map_err(failed)?
        } else {
            Stream::Plain(stream)
        };
        let ends = ends(stream.socket());
        let mut connection = Connection::new(stream);
        let written = connection.write("GET", text.as_bytes()).await;
        written.map_err(|error| failed(go_errors::stream("write", &ends, &error)))?;
        let head = connection.head().await;
        let head = head.map_err(|error| failed(go_errors::head(&ends, &error, connection.buffered())))?;
        self.now.set(Stage::Reading);
        let mut body = Vec::new();
        while body.len() < BODY {
            let piece = connection.piece().await;
            let piece = piece.map_err(|error| ProbeResult::Error(go_errors::body(&error).into()))?;
            let Some(piece) = piece else { break };
            body.extend_from_slice(&piece);
        }
        body.truncate(BODY);
        Ok(Response { head, body })
    }

    /// Returns the text of the request, with the headers in the order of Go's client.
    fn text(&self, url: &Url, first: &Url, referer: Option<&str>) -> Result<String, String> {
        let named = |wanted: &str| {
            let found = self.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.as_str())
        };
        for (name, value) in self.headers {
            // Control characters could start another header.
            if value.bytes().any(|byte| (byte < b' ' && byte != b'\t') || byte == 0x7f) {
                return Err(format!("net/http: invalid header field value for {:?}", canonical(name)));
            }
        }
        // The `Host` of the spec applies to the URL of the probe, and to redirects without a host.
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
        if named("Accept").is_none() {
            write("Accept", "*/*");
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
            // An empty value removes this header.
            let is_removed = name == "Accept" && value.is_empty();
            if !ours && !is_removed {
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

/// Returns the probe's result for a response (kubelet: `DoHTTPProbe`).
fn judge(response: &Response) -> ProbeResult {
    match response.head.status {
        200..300 => ProbeResult::Success,
        300..400 => {
            let body = String::from_utf8_lossy(&response.body);
            ProbeResult::Warning(format!("Probe terminated redirects, Response body: {body}").into())
        }
        status => ProbeResult::Failure(format!("HTTP probe failed with statuscode: {status}").into()),
    }
}

/// Returns the canonical form of a header's name: `X-My-Header` for `x-my-header`.
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
    // The probe's timeout also bounds the lookup.
    let found = lookup::lookup(host).await.map_err(|error| format!("dial tcp: lookup {host}: {error}"))?;
    let address = found.iter().find(|address| address.is_ipv4()).or(found.first());
    match address {
        Some(ip) => connect(SocketAddr::new(*ip, port)).await,
        None => Err(format!("dial tcp: lookup {host}: no such host")),
    }
}

async fn connect(address: SocketAddr) -> Result<Async<TcpStream>, String> {
    let connected = Async::<TcpStream>::connect(address).await;
    connected.map_err(|error| format!("dial tcp {address}: connect: {}", go_errors::io(&error)))
}

/// Performs the TLS handshake on a connection; the error is Go's text. The probe's own timeout usually ends it
/// earlier.
async fn shake_hands(stream: Async<TcpStream>, host: &str) -> Result<Stream, String> {
    let ends = ends(stream.get_ref());
    match within(HANDSHAKE, Client::unverified(stream, host)).await {
        Some(Ok(client)) => Ok(Stream::Tls(Box::new(client))),
        Some(Err(TlsError::Io(error))) => Err(format!("read tcp{ends}: read: {}", go_errors::io(&error))),
        Some(Err(error)) => Err(go_errors::tls(&error)),
        None => Err("net/http: TLS handshake timeout".to_owned()),
    }
}

/// Returns both addresses of a connection, in the form that Go prints after an operation.
fn ends(socket: &TcpStream) -> String {
    match (socket.local_addr(), socket.peer_addr()) {
        (Ok(local), Ok(remote)) => format!(" {local}->{remote}"),
        (Ok(_) | Err(_), Ok(_) | Err(_)) => String::new(),
    }
}

#[cfg(test)]
mod tests;
