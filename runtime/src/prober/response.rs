//! Reads an HTTP/1 response from an untrusted server. The size of heads is limited, and only the beginning of the
//! body is kept.

use super::stream::{Stream, StreamError};
use nodlet_wire::http::head_end;

/// Maximum size of a head in bytes.
const HEAD: usize = 64 * 1024;

/// Maximum number of bytes that are read of a body (kubelet: `maxRespBodyLength`).
pub(super) const BODY: usize = 10 * 1024;

/// Maximum size of all heads of chunks beyond their allowance, which is [`CHUNK_HEAD`] for each and two bytes for
/// each byte of data. The limit is Go's.
const EXCESS: usize = 16 * 1024;
const CHUNK_HEAD: usize = 16;

/// Maximum number of informational responses (status 1xx) before the final one.
const INFORMATIONAL: usize = 5;

/// A response to a probe.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    /// The beginning of the body.
    pub(super) body: Vec<u8>,
}

/// A response whose body is not read yet.
pub(super) struct Head(Response);

/// The error of a response that could not be read.
#[derive(Debug)]
pub(super) enum ReadError {
    Stream(StreamError),
    /// The server closed the connection.
    Ended,
    /// The response is invalid; the message is Go's.
    Malformed(String),
}

impl Response {
    /// Returns the value of the first header with this name.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// A connection, with the bytes that were read and not yet parsed.
pub(super) struct Reader {
    stream: Stream,
    buffer: Vec<u8>,
}

impl Reader {
    pub(super) fn new(stream: Stream) -> Reader {
        Reader { stream, buffer: Vec::new() }
    }

    async fn more(&mut self) -> Result<(), ReadError> {
        let mut chunk = [0; 2048];
        match self.stream.read(&mut chunk).await {
            Ok(0) => Err(ReadError::Ended),
            Ok(count) => {
                self.buffer.extend_from_slice(&chunk[..count]);
                Ok(())
            }
            Err(error) => Err(ReadError::Stream(error)),
        }
    }

    /// Reads the head of the response.
    pub(super) async fn head(&mut self) -> Result<Head, ReadError> {
        for _ in 0..=INFORMATIONAL {
            // The end of the last whole line, so that a slow head is not scanned from its start for each byte.
            let mut looked_at = 0;
            let end = loop {
                if let Some(end) = head_end(&self.buffer, &mut looked_at) {
                    break end;
                }
                if self.buffer.len() > HEAD {
                    return Err(ReadError::Malformed(
                        "server response headers exceeded 65536 bytes; aborted".to_owned(),
                    ));
                }
                // The response is not HTTP, so the rest of the head is not awaited.
                if self.buffer.len() >= 5 && !self.buffer.starts_with(b"HTTP/") {
                    return Err(malformed(&self.buffer));
                }
                match self.more().await {
                    Err(ReadError::Ended) if !self.buffer.is_empty() => {
                        return Err(if self.buffer.starts_with(b"HTTP/") {
                            ReadError::Malformed("unexpected EOF".to_owned())
                        } else {
                            malformed(&self.buffer)
                        });
                    }
                    other => other?,
                }
            };
            let head: Vec<u8> = self.buffer.drain(..end).collect();
            let response = parse(&head).ok_or_else(|| malformed(&head))?;
            if !(100..200).contains(&response.status) || response.status == 101 {
                return Ok(Head(response));
            }
        }
        Err(ReadError::Malformed("too many 1xx informational responses".to_owned()))
    }

    /// Reads the beginning of the body.
    pub(super) async fn body(mut self, head: Head) -> Result<Response, ReadError> {
        let Head(mut response) = head;
        if matches!(response.status, 101 | 204 | 304) {
            return Ok(response);
        }
        let chunked =
            response.header("Transfer-Encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
        let length = response.header("Content-Length").and_then(|length| length.trim().parse::<usize>().ok());
        response.body = if chunked {
            self.chunks().await?
        } else if let Some(length) = length {
            let length = length.min(BODY);
            while self.buffer.len() < length {
                self.more().await?;
            }
            self.buffer.truncate(length);
            self.buffer
        } else {
            loop {
                match if self.buffer.len() < BODY { self.more().await } else { Err(ReadError::Ended) } {
                    Ok(()) => {}
                    Err(ReadError::Ended) => break,
                    Err(error) => return Err(error),
                }
            }
            self.buffer.truncate(BODY);
            self.buffer
        };
        Ok(response)
    }

    async fn chunks(&mut self) -> Result<Vec<u8>, ReadError> {
        let mut body = Vec::new();
        let mut excess = 0;
        loop {
            let end = loop {
                if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                    break end + 1;
                }
                if self.buffer.len() > 4096 {
                    return Err(ReadError::Malformed("header line too long".to_owned()));
                }
                self.more().await?;
            };
            let line: Vec<u8> = self.buffer.drain(..end).collect();
            let line = String::from_utf8_lossy(&line);
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16)
                .map_err(|_| ReadError::Malformed("invalid byte in chunk length".to_owned()))?;
            if size == 0 {
                return Ok(body);
            }
            // Go also counts the line end after the data.
            excess = (excess + end + 2).saturating_sub(size.saturating_mul(2).saturating_add(CHUNK_HEAD));
            if excess > EXCESS {
                let what = "chunked encoding contains too much non-data";
                return Err(ReadError::Malformed(what.to_owned()));
            }
            let wanted = size.min(BODY - body.len());
            while self.buffer.len() < wanted {
                self.more().await?;
            }
            body.extend(self.buffer.drain(..wanted));
            if body.len() >= BODY {
                return Ok(body);
            }
            // The body is not full, so the whole chunk was read. Its line end follows.
            while self.buffer.len() < 2 {
                self.more().await?;
            }
            if !self.buffer.starts_with(b"\r\n") {
                return Err(ReadError::Malformed("malformed chunked encoding".to_owned()));
            }
            self.buffer.drain(..2);
        }
    }
}

fn malformed(bytes: &[u8]) -> ReadError {
    let line = bytes.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let line = String::from_utf8_lossy(&line[..line.len().min(100)]);
    ReadError::Malformed(format!("malformed HTTP response {line:?}"))
}

fn parse(head: &[u8]) -> Option<Response> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.lines();
    // "HTTP/1.1 200 OK", in which the reason may be missing.
    let (version, rest) = lines.next()?.split_once(' ')?;
    if !matches!(version, "HTTP/1.0" | "HTTP/1.1") {
        return None;
    }
    let code = rest.split(' ').next().filter(|code| code.len() == 3)?;
    let status = code.parse().ok().filter(|status| *status >= 100)?;
    let headers = lines.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().to_owned()))
    });
    Some(Response { status, headers: headers.collect(), body: Vec::new() })
}
