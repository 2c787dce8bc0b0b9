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

mod reader;
#[cfg(test)]
mod tests;

use std::io;
use std::net::TcpStream;
use std::task::Poll;

use smol::Async;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use crate::tls::{Client, TlsError};

pub use reader::{Head, Reader};

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

    /// Reads available bytes into `buffer`, and returns their number; 0 at the end.
    ///
    /// # Errors
    /// The connection failed, or ended without TLS's `close_notify`.
    pub async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, TlsError> {
        match self {
            Stream::Plain(stream) => {
                // As with TLS: a server that always has data must not occupy the thread.
                smol::future::yield_now().await;
                stream.read(buffer).await.map_err(TlsError::Io)
            }
            Stream::Tls(client) => client.read(buffer).await,
        }
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn write_all(&mut self, bytes: &[u8]) -> Result<(), TlsError> {
        match self {
            Stream::Plain(stream) => stream.write_all(bytes).await.map_err(TlsError::Io),
            Stream::Tls(client) => client.write_all(bytes).await,
        }
    }
}

/// The error of a request. The connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Reading or writing failed.
    #[error("the connection failed")]
    Io(#[source] io::Error),
    /// An error of TLS.
    #[error(transparent)]
    Tls(TlsError),
    /// The server closed the connection before the end of the response.
    #[error("the server closed the connection")]
    Ended,
    /// A head, a line or the body is larger than allowed.
    #[error("the response is too large")]
    TooLarge,
    /// The response is not HTTP/1.1; the text names the part.
    #[error("the response has an invalid {0}")]
    Malformed(&'static str),
}

impl From<TlsError> for HttpError {
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::Io(error) => HttpError::Io(error),
            error => HttpError::Tls(error),
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

impl Request<'_> {
    /// The request as it is sent.
    fn to_bytes(self) -> Vec<u8> {
        let Request { method, target, host, headers, body } = self;
        let mut bytes = format!("{method} {} HTTP/1.1\r\nHost: {host}\r\n", encoded(target)).into_bytes();
        let mut add = |name: &str, value: &str| {
            for part in [name, ": ", value, "\r\n"] {
                bytes.extend_from_slice(part.as_bytes());
            }
        };
        for (name, value) in headers {
            add(name, value);
        }
        if !body.is_empty() || !matches!(method, "GET" | "HEAD" | "DELETE" | "CONNECT") {
            add("Content-Length", &body.len().to_string());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body);
        bytes
    }
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

/// A connection, on which one request follows the other.
pub struct Connection {
    stream: Stream,
    reader: Reader,
    /// Bytes of a line that [`Connection::line`] has not seen the end of.
    line: Vec<u8>,
}

impl Connection {
    /// Creates a connection for requests on `stream`.
    pub fn new(stream: Stream) -> Connection {
        Connection { stream, reader: Reader::new("GET"), line: Vec::new() }
    }

    /// Whether another request may be sent: the last response was read, and the server keeps the connection.
    pub fn is_reusable(&self) -> bool {
        self.reader.is_reusable()
    }

    /// The TCP socket of the connection.
    pub fn socket(&self) -> &TcpStream {
        self.stream.socket()
    }

    /// Bytes that the server has sent and that were not taken ([`Reader::buffered`]).
    pub fn buffered(&self) -> &[u8] {
        self.reader.buffered()
    }

    /// The stream, for another protocol after an upgrade. `None` if the server has already sent bytes of it.
    pub fn into_stream(self) -> Option<Stream> {
        self.reader.buffered().is_empty().then_some(self.stream)
    }

    /// Sends a request, and reads the head of the response.
    ///
    /// # Errors
    /// The request could not be sent, or the response is invalid.
    pub async fn send(&mut self, request: &Request<'_>) -> Result<Head, HttpError> {
        self.write(request.method, &request.to_bytes()).await?;
        self.head().await
    }

    /// Sends a request as its bytes.
    ///
    /// # Errors
    /// It could not be sent.
    pub async fn write(&mut self, method: &str, request: &[u8]) -> Result<(), HttpError> {
        self.reader = Reader::new(method);
        Ok(self.stream.write_all(request).await?)
    }

    /// Reads the head of the response.
    ///
    /// # Errors
    /// It is cut or malformed.
    pub async fn head(&mut self) -> Result<Head, HttpError> {
        loop {
            if let Poll::Ready(head) = self.reader.head()? {
                return Ok(head);
            }
            self.fill().await?;
        }
    }

    /// The next piece of the body; `None` at its end. May be dropped and called again without losing bytes.
    ///
    /// # Errors
    /// The body is cut or malformed.
    pub async fn piece(&mut self) -> Result<Option<Vec<u8>>, HttpError> {
        loop {
            if let Poll::Ready(piece) = self.reader.piece(PIECE)? {
                return Ok(piece);
            }
            self.fill().await?;
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

    /// Passes available bytes to the reader.
    async fn fill(&mut self) -> Result<(), HttpError> {
        let mut chunk = [0; PIECE];
        match self.stream.read(&mut chunk).await? {
            0 => self.reader.end(),
            count => {
                self.reader.push(&chunk[..count]);
                Ok(())
            }
        }
    }
}
