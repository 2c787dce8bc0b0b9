//! A client of HTTP/1.1 over TCP or TLS, for servers that are not trusted to be well-behaved: API servers and
//! registries. Heads are bounded, and a body is read piece by piece, so that its reader decides how much it keeps.
//!
//! A connection carries one request after the other. Nothing here has a timeout: the caller drops a future that takes
//! too long, and with it the connection. Redirects are the caller's as well.
//!
//! ```text
//! let mut connection = Connection::new(Stream::Tls(Box::new(Client::verified(socket, host, &trust).await?)));
//! let head = connection.send(&Request { method: "GET", target: "/version", host, headers: &[], body: &[] }).await?;
//! let body = connection.body(64 * 1024).await?;            // or piece().await? until it is None
//! if connection.is_reusable() { /* the next request */ }
//! ```

use std::io;
use std::net::TcpStream;

use smol::Async;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use crate::tls::{Client, TlsError};

#[cfg(test)]
mod tests;

/// Maximum size of a head in bytes.
const MAX_HEAD: usize = 32 * 1024;

/// Maximum size of the line before a chunk in bytes.
const MAX_CHUNK_LINE: usize = 256;

/// Maximum number of trailers after the last chunk.
const MAX_TRAILERS: usize = 32;

/// Maximum number of informational responses (status 1xx) before the final one.
const MAX_INFORMATIONAL: usize = 5;

/// Maximum number of bytes of one read.
const PIECE: usize = 8 * 1024;

/// The connection to a server.
pub enum Stream {
    /// Plain TCP.
    Plain(Async<TcpStream>),
    /// TLS.
    Tls(Box<Client>),
}

impl Stream {
    /// The TCP socket of the connection.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(stream) => stream.get_ref(),
            Stream::Tls(client) => client.socket(),
        }
    }
}

/// The error of a request. The connection is of no use any more.
#[derive(Debug)]
pub enum HttpError {
    /// Reading or writing failed.
    Io(io::Error),
    /// An error of TLS.
    Tls(TlsError),
    /// The server closed the connection before the end of the response.
    Ended,
    /// A head, a line or the body is larger than allowed.
    TooLarge,
    /// The response is not HTTP/1.1; the text names the part.
    Malformed(&'static str),
}

impl std::fmt::Display for HttpError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HttpError::Io(_) => formatter.write_str("the connection failed"),
            HttpError::Tls(error) => error.fmt(formatter),
            HttpError::Ended => formatter.write_str("the server closed the connection"),
            HttpError::TooLarge => formatter.write_str("the response is too large"),
            HttpError::Malformed(part) => write!(formatter, "the response has an invalid {part}"),
        }
    }
}

impl std::error::Error for HttpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            HttpError::Io(source) => Some(source),
            HttpError::Tls(error) => error.source(),
            HttpError::Ended | HttpError::TooLarge | HttpError::Malformed(_) => None,
        }
    }
}

/// A request. Header `Content-Length` is added; `target` and headers must not contain line ends.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// The header `Host`.
    pub host: &'a str,
    /// Further headers.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body.
    pub body: &'a [u8],
}

/// The head of a response.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// The status.
    pub status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    /// The value of the first header with this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// The rest of the body that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// All was read.
    Read,
    /// This many bytes follow.
    Length(u64),
    /// The head of a chunk follows.
    ChunkHead,
    /// This many bytes of a chunk follow.
    Chunk(u64),
    /// The line end after a chunk follows.
    ChunkEnd,
    /// At most this many trailers follow, and an empty line.
    Trailers(usize),
    /// The body ends with the connection.
    ToEnd,
}

/// A connection, on which one request follows the other.
pub struct Connection {
    stream: Stream,
    buffer: Vec<u8>,
    body: Body,
    /// Bytes of a line that [`Connection::line`] has not seen the end of.
    line: Vec<u8>,
    /// The server keeps the connection.
    keeps: bool,
}

/// A target without bytes that would end it or the line: it may contain names that a server has sent.
fn encoded(target: &str) -> String {
    let mut text = String::with_capacity(target.len());
    for byte in target.bytes() {
        match byte {
            b'!'..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

impl Connection {
    /// Creates a connection for requests on `stream`.
    pub fn new(stream: Stream) -> Connection {
        Connection { stream, buffer: Vec::new(), body: Body::Read, line: Vec::new(), keeps: true }
    }

    /// Whether another request may be sent: the last response was read, and the server keeps the connection.
    pub fn is_reusable(&self) -> bool {
        self.keeps && self.body == Body::Read
    }

    /// The TCP socket of the connection.
    pub fn socket(&self) -> &TcpStream {
        self.stream.socket()
    }

    /// Sends a request, and reads the head of the response.
    ///
    /// # Errors
    /// The request could not be sent, or the response is invalid.
    pub async fn send(&mut self, request: &Request<'_>) -> Result<Head, HttpError> {
        let Request { method, target, host, headers, body } = request;
        let target = encoded(target);
        let mut bytes = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n").into_bytes();
        let mut add = |name: &str, value: &str| {
            for part in [name, ": ", value, "\r\n"] {
                bytes.extend_from_slice(part.as_bytes());
            }
        };
        for (name, value) in *headers {
            add(name, value);
        }
        if !body.is_empty() || !matches!(*method, "GET" | "HEAD" | "DELETE") {
            add("Content-Length", &body.len().to_string());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body);
        self.keeps = false;
        match &mut self.stream {
            Stream::Plain(stream) => stream.write_all(&bytes).await.map_err(HttpError::Io)?,
            Stream::Tls(client) => client.write_all(&bytes).await.map_err(HttpError::Tls)?,
        }
        for _ in 0..=MAX_INFORMATIONAL {
            let head = self.head().await?;
            if (100..200).contains(&head.status) {
                continue;
            }
            let is =
                |name: &str, value: &str| head.header(name).is_some_and(|is| is.eq_ignore_ascii_case(value));
            self.keeps = !is("Connection", "close");
            self.body = if *method == "HEAD" || matches!(head.status, 204 | 304) {
                Body::Read
            } else if is("Transfer-Encoding", "chunked") {
                Body::ChunkHead
            } else if let Some(length) = head.header("Content-Length") {
                match length.parse().map_err(|_| HttpError::Malformed("Content-Length"))? {
                    0 => Body::Read,
                    length => Body::Length(length),
                }
            } else {
                self.keeps = false;
                Body::ToEnd
            };
            return Ok(head);
        }
        Err(HttpError::Malformed("number of informational responses"))
    }

    /// The next piece of the body; `None` at its end. May be dropped and called again without losing bytes.
    ///
    /// # Errors
    /// The body is cut or malformed.
    pub async fn piece(&mut self) -> Result<Option<Vec<u8>>, HttpError> {
        loop {
            // Between a change of the buffer and that of the state, nothing is awaited.
            let left = match self.body {
                Body::Read => return Ok(None),
                Body::Length(left) | Body::Chunk(left) => left,
                Body::ToEnd => u64::MAX,
                Body::ChunkHead => {
                    let line = self.text_line().await?;
                    self.body = match chunk_size(&line).ok_or(HttpError::Malformed("chunk size"))? {
                        0 => Body::Trailers(MAX_TRAILERS),
                        size => Body::Chunk(size),
                    };
                    continue;
                }
                Body::ChunkEnd => {
                    if !self.text_line().await?.is_empty() {
                        return Err(HttpError::Malformed("end of a chunk"));
                    }
                    self.body = Body::ChunkHead;
                    continue;
                }
                Body::Trailers(more) => {
                    let is_last = self.text_line().await?.is_empty();
                    self.body = match (is_last, more) {
                        (true, _) => Body::Read,
                        (false, 0) => return Err(HttpError::Malformed("number of trailers")),
                        (false, more) => Body::Trailers(more - 1),
                    };
                    continue;
                }
            };
            if self.buffer.is_empty() {
                match self.fill().await {
                    Err(HttpError::Ended) if self.body == Body::ToEnd => {
                        self.body = Body::Read;
                        return Ok(None);
                    }
                    filled => filled?,
                }
            }
            let count = self.buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let piece: Vec<u8> = self.buffer.drain(..count).collect();
            let left = left - count as u64;
            self.body = match (self.body, left) {
                (Body::Chunk(_), 0) => Body::ChunkEnd,
                (Body::Chunk(_), left) => Body::Chunk(left),
                (Body::Length(_), 0) => Body::Read,
                (Body::Length(_), left) => Body::Length(left),
                (other, _) => other,
            };
            return Ok(Some(piece));
        }
    }

    /// The rest of the body.
    ///
    /// # Errors
    /// The body is cut, malformed, or longer than `limit`.
    pub async fn body(&mut self, limit: usize) -> Result<Vec<u8>, HttpError> {
        let mut body = Vec::new();
        while let Some(piece) = self.piece().await? {
            if body.len() + piece.len() > limit {
                return Err(HttpError::TooLarge);
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }

    /// The next line of the body without its end, for a watch; `None` at the end of the body. May be dropped and
    /// called again without losing bytes.
    ///
    /// # Errors
    /// The body is cut or malformed, or the line is longer than `limit`.
    pub async fn line(&mut self, limit: usize) -> Result<Option<Vec<u8>>, HttpError> {
        let mut looked_at = 0;
        loop {
            if let Some(end) = self.line[looked_at..].iter().position(|byte| *byte == b'\n') {
                let rest = self.line.split_off(looked_at + end + 1);
                let mut line = std::mem::replace(&mut self.line, rest);
                line.pop();
                return Ok(Some(line));
            }
            looked_at = self.line.len();
            if looked_at > limit {
                return Err(HttpError::TooLarge);
            }
            match self.piece().await? {
                Some(piece) => self.line.extend_from_slice(&piece),
                None if self.line.is_empty() => return Ok(None),
                None => return Ok(Some(std::mem::take(&mut self.line))),
            }
        }
    }

    /// The next line of the framing.
    async fn text_line(&mut self) -> Result<String, HttpError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned());
            }
            if self.buffer.len() > MAX_CHUNK_LINE {
                return Err(HttpError::TooLarge);
            }
            self.fill().await?;
        }
    }

    async fn head(&mut self) -> Result<Head, HttpError> {
        let mut looked_at = 0;
        let end = loop {
            if let Some(end) = head_end(&self.buffer, &mut looked_at) {
                break end;
            }
            if self.buffer.len() > MAX_HEAD {
                return Err(HttpError::TooLarge);
            }
            if self.buffer.len() >= 5 && !self.buffer.starts_with(b"HTTP/") {
                return Err(HttpError::Malformed("status line"));
            }
            self.fill().await?;
        };
        let head: Vec<u8> = self.buffer.drain(..end).collect();
        let text = String::from_utf8_lossy(&head);
        let mut lines = text.lines();
        let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 "));
        let status = status.and_then(|line| line.get(..3)).and_then(|code| code.parse().ok());
        let status = status.filter(|status| *status >= 100).ok_or(HttpError::Malformed("status line"))?;
        let headers = lines.filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_owned(), value.trim().to_owned()))
        });
        Ok(Head { status, headers: headers.collect() })
    }

    /// Reads available bytes into the buffer.
    async fn fill(&mut self) -> Result<(), HttpError> {
        let mut chunk = [0; PIECE];
        let count = match &mut self.stream {
            Stream::Plain(stream) => {
                // A server that always has data must not occupy the thread.
                smol::future::yield_now().await;
                stream.read(&mut chunk).await.map_err(HttpError::Io)?
            }
            Stream::Tls(client) => client.read(&mut chunk).await.map_err(|error| match error {
                TlsError::Ended => HttpError::Ended,
                error => HttpError::Tls(error),
            })?,
        };
        self.buffer.extend_from_slice(&chunk[..count]);
        if count == 0 { Err(HttpError::Ended) } else { Ok(()) }
    }
}

/// The size in the line before a chunk.
fn chunk_size(line: &str) -> Option<u64> {
    let size = line.split(';').next().unwrap_or_default().trim();
    let is_hex = !size.is_empty() && size.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(size, 16).ok())?
}

/// The end of a head, including its empty line. `from` is the start of a line, and advances over complete lines.
pub fn head_end(bytes: &[u8], from: &mut usize) -> Option<usize> {
    while let Some(at) = bytes[*from..].iter().position(|byte| *byte == b'\n') {
        let line = &bytes[*from..*from + at];
        *from += at + 1;
        if matches!(line, b"" | b"\r") {
            return Some(*from);
        }
    }
    None
}
