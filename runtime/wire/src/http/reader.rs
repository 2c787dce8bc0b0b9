//! Reads one response of HTTP/1 (RFC 9112) without I/O: the caller passes the bytes that arrive ([`Reader::push`]), and
//! takes the head and then the body, piece by piece. Every client of HTTP/1 uses this reader.
//!
//! Servers are not trusted: each part has a maximum size, and the reader keeps no more than one part that is not
//! complete yet, and the bytes of the last push. The limits are those of Go's client, with which kubelets probe.

use std::task::Poll;

use super::HttpError;

/// Maximum size of a head in bytes.
const MAX_HEAD: usize = 64 * 1024;

/// Maximum number of headers. Each takes 32 bytes of the stack while a head is parsed.
const MAX_HEADERS: usize = 256;

/// Maximum size of the line before a chunk in bytes.
const MAX_CHUNK_LINE: usize = 4 * 1024;

/// Maximum size of all lines before chunks beyond their allowance, which is [`CHUNK_LINE`] for each chunk and two bytes
/// for each byte of data.
const MAX_EXCESS: u64 = 16 * 1024;
const CHUNK_LINE: u64 = 16;

/// Maximum size of the trailers after the last chunk in bytes.
const MAX_TRAILERS: usize = 8 * 1024;

/// Maximum number of informational responses (status 1xx) before the final one.
const MAX_INFORMATIONAL: usize = 5;

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

    /// The values of all headers with this name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self.headers.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str())
    }
}

/// The next part of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Head,
    /// So many bytes of the body.
    Length(u64),
    /// The line before a chunk.
    ChunkLine,
    /// So many bytes of a chunk.
    Chunk(u64),
    /// The line end after a chunk.
    ChunkEnd,
    /// The trailers and their empty line.
    Trailers,
    /// The body ends with the connection.
    UntilClose,
    /// All was read.
    Nothing,
}

/// Reads one response.
pub struct Reader {
    /// Bytes that were not taken yet.
    buffer: Vec<u8>,
    /// The start of the first line of the buffer in which the end of the head or of the trailers may be.
    searched: usize,
    next: Next,
    /// Whether the request was HEAD or CONNECT, whose responses differ.
    is_head: bool,
    is_connect: bool,
    informational: usize,
    excess: u64,
    keeps: bool,
}

impl Reader {
    /// Creates a reader of the response to a request with this method.
    pub fn new(method: &str) -> Reader {
        Reader {
            buffer: Vec::new(),
            searched: 0,
            next: Next::Head,
            is_head: method == "HEAD",
            is_connect: method == "CONNECT",
            informational: 0,
            excess: 0,
            keeps: false,
        }
    }

    /// Passes bytes that the server has sent.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Reports that the server has closed the connection. Call this only when a part is pending.
    ///
    /// # Errors
    /// The response is not complete.
    pub fn end(&mut self) -> Result<(), HttpError> {
        if self.next != Next::UntilClose {
            return Err(HttpError::Ended);
        }
        self.next = Next::Nothing;
        Ok(())
    }

    /// Whether all was read, and the server keeps the connection for another request.
    pub fn is_reusable(&self) -> bool {
        self.keeps && self.next == Next::Nothing && self.buffer.is_empty()
    }

    /// Bytes that were not taken: of an invalid head, or of another protocol after an upgrade.
    pub fn buffered(&self) -> &[u8] {
        &self.buffer
    }

    /// Takes the head of the final response; informational responses are skipped, but for 101, an upgrade.
    ///
    /// # Errors
    /// The head is malformed or too large; it stays [buffered](Self::buffered).
    pub fn head(&mut self) -> Result<Poll<Head>, HttpError> {
        loop {
            let end = self.empty_line();
            // The rest of the buffer may be of the body.
            if end.unwrap_or(self.buffer.len()) > MAX_HEAD {
                return Err(HttpError::TooLarge);
            }
            let Some(end) = end else {
                // The rest of a head is not awaited if the response is not HTTP.
                if self.buffer.len() >= 5 && !self.buffer.starts_with(b"HTTP/") {
                    return Err(HttpError::Malformed("status line"));
                }
                return Ok(Poll::Pending);
            };
            let (head, keeps) = parse(&self.buffer[..end])?;
            if (100..200).contains(&head.status) && head.status != 101 {
                self.informational += 1;
                if self.informational > MAX_INFORMATIONAL {
                    return Err(HttpError::Malformed("number of informational responses"));
                }
                self.take(end);
                continue;
            }
            let length = content_length(&head)?;
            let is_chunked = is_chunked(&head)?;
            let has_no_body = self.is_head
                || matches!(head.status, 101 | 204 | 304)
                || self.is_connect && (200..300).contains(&head.status);
            self.next = match length {
                _ if has_no_body => Next::Nothing,
                _ if is_chunked => Next::ChunkLine,
                Some(0) => Next::Nothing,
                Some(length) => Next::Length(length),
                None => Next::UntilClose,
            };
            self.keeps = keeps && head.status != 101 && self.next != Next::UntilClose;
            self.take(end);
            return Ok(Poll::Ready(head));
        }
    }

    /// Takes the next bytes of the body, at most `limit`; `None` at its end.
    ///
    /// # Errors
    /// The body is malformed.
    pub fn piece(&mut self, limit: usize) -> Result<Poll<Option<Vec<u8>>>, HttpError> {
        loop {
            let left = match self.next {
                Next::Nothing | Next::Head => return Ok(Poll::Ready(None)),
                Next::Length(left) | Next::Chunk(left) => left,
                Next::UntilClose => u64::MAX,
                Next::ChunkLine => {
                    let line = httparse::parse_chunk_size(&self.buffer);
                    let (length, size) = match line.map_err(|_| HttpError::Malformed("chunk size"))? {
                        httparse::Status::Complete((length, size)) => (length, Some(size)),
                        httparse::Status::Partial => (self.buffer.len(), None),
                    };
                    if length > MAX_CHUNK_LINE {
                        return Err(HttpError::TooLarge);
                    }
                    let Some(size) = size else { return Ok(Poll::Pending) };
                    self.begin_chunk(length, size)?;
                    continue;
                }
                Next::ChunkEnd => {
                    match &self.buffer[..] {
                        [] | [b'\r'] => return Ok(Poll::Pending),
                        [b'\r', b'\n', ..] => self.take(2),
                        _ => return Err(HttpError::Malformed("end of a chunk")),
                    }
                    self.next = Next::ChunkLine;
                    continue;
                }
                Next::Trailers => {
                    let end = self.empty_line();
                    if end.unwrap_or(self.buffer.len()) > MAX_TRAILERS {
                        return Err(HttpError::TooLarge);
                    }
                    let Some(end) = end else { return Ok(Poll::Pending) };
                    self.take(end);
                    self.next = Next::Nothing;
                    continue;
                }
            };
            if self.buffer.is_empty() {
                return Ok(Poll::Pending);
            }
            let count = self.buffer.len().min(limit).min(usize::try_from(left).unwrap_or(usize::MAX));
            let piece = self.buffer.drain(..count).collect();
            self.next = match (self.next, left - count as u64) {
                (Next::Chunk(_), 0) => Next::ChunkEnd,
                (Next::Chunk(_), left) => Next::Chunk(left),
                (Next::Length(_), 0) => Next::Nothing,
                (Next::Length(_), left) => Next::Length(left),
                (next, _) => next,
            };
            return Ok(Poll::Ready(Some(piece)));
        }
    }

    /// Takes a chunk's line of `length` bytes.
    fn begin_chunk(&mut self, length: usize, size: u64) -> Result<(), HttpError> {
        if size == 0 {
            self.next = Next::Trailers;
        } else {
            // Go also counts the line end after the data.
            let allowed = size.saturating_mul(2).saturating_add(CHUNK_LINE);
            self.excess = (self.excess + length as u64 + 2).saturating_sub(allowed);
            if self.excess > MAX_EXCESS {
                return Err(HttpError::Malformed("number of bytes between chunks"));
            }
            self.next = Next::Chunk(size);
        }
        self.take(length);
        Ok(())
    }

    /// The end of the first empty line in the buffer. Does not search a complete line twice, however slowly it arrives.
    fn empty_line(&mut self) -> Option<usize> {
        while let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
            let line = &self.buffer[self.searched..self.searched + at];
            let is_empty = matches!(line, b"" | b"\r");
            self.searched += at + 1;
            if is_empty {
                return Some(self.searched);
            }
        }
        None
    }

    fn take(&mut self, count: usize) {
        self.buffer.drain(..count);
        self.searched = 0;
    }
}

/// Parses a head. Also returns whether it allows to keep the connection.
fn parse(bytes: &[u8]) -> Result<(Head, bool), HttpError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let mut parser = httparse::ParserConfig::default();
    parser.allow_spaces_after_header_name_in_responses(true);
    let parsed = parser.parse_response(&mut response, bytes);
    let status = response.code.filter(|status| *status >= 100);
    let status = status.ok_or(HttpError::Malformed("status line"))?;
    match parsed {
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Err(HttpError::TooLarge),
        Ok(httparse::Status::Partial) | Err(_) => return Err(HttpError::Malformed("header")),
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let headers = response.headers.iter().map(|header| (header.name.to_owned(), text(header.value)));
    let head = Head { status, headers: headers.collect() };
    let keeps = response.version == Some(1)
        && !head.header("Connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    Ok((head, keeps))
}

fn content_length(head: &Head) -> Result<Option<u64>, HttpError> {
    let mut length = None;
    for value in head.all("Content-Length") {
        let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
        let number = value.parse().ok().filter(|_| is_number);
        if number.is_none() || length.is_some() && length != number {
            return Err(HttpError::Malformed("Content-Length"));
        }
        length = number;
    }
    Ok(length)
}

fn is_chunked(head: &Head) -> Result<bool, HttpError> {
    match head.header("Transfer-Encoding") {
        None => Ok(false),
        Some(coding) if coding.eq_ignore_ascii_case("chunked") => Ok(true),
        Some(_) => Err(HttpError::Malformed("Transfer-Encoding")),
    }
}
