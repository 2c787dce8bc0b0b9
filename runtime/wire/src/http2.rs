//! A client of HTTP/2 (RFC 9113): one request in clear text ("prior knowledge"), or many without bodies over TLS, whose
//! responses arrive side by side.
//!
//! The server is untrusted. The number of its frames ([`FRAMES`]) and the sizes of each frame and each list of fields
//! are limited. Bodies are limited to the initial windows, unless the caller enlarges them
//! ([`Connection::enlarge`]).

use std::io;
use std::net::TcpStream;

use super::hpack::{self, Field, HpackError};
use crate::http::Stream;
use crate::tls::TlsError;

#[cfg(test)]
mod tests;

/// The preface that a client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Size of a frame's head in bytes.
const HEAD: usize = 9;

/// Maximum size of a frame by default (`SETTINGS_MAX_FRAME_SIZE`).
const FRAME: usize = 16 * 1024;

/// Maximum size of the response's body: the initial window of a stream.
pub const BODY: usize = 65_535;

/// Maximum number of frames from a server. A response needs some ten.
const FRAMES: u32 = 1000;

mod kind {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PUSH_PROMISE: u8 = 5;
    pub(super) const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const WINDOW_UPDATE: u8 = 8;
    pub(super) const CONTINUATION: u8 = 9;
}

mod flag {
    pub(super) const ACK: u8 = 0x1;
    pub(super) const END_STREAM: u8 = 0x1;
    pub(super) const END_HEADERS: u8 = 0x4;
    pub(super) const PADDED: u8 = 0x8;
    pub(super) const PRIORITY: u8 = 0x20;
}

mod setting {
    pub(super) const HEADER_TABLE_SIZE: u16 = 1;
    pub(super) const ENABLE_PUSH: u16 = 2;
    pub(super) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(super) const MAX_FRAME_SIZE: u16 = 5;
    pub(super) const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// A part of the response.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The head or the trailers of the response.
    Headers {
        /// The fields, in the order of the block.
        fields: Vec<Field>,
        /// Whether the stream ends here.
        end: bool,
    },
    /// A head or trailers that exceed the limit.
    TooManyHeaders,
    /// A part of the body.
    Data {
        /// The bytes, without padding.
        bytes: Vec<u8>,
        /// Whether the stream ends here.
        end: bool,
    },
    /// The server reset the stream, with this error code (RFC 9113, section 7).
    Reset(u32),
    /// The server closes the connection and has not processed the request.
    Refused,
    /// The server closes the connection after the responses to all requests so far.
    Closing,
}

/// The error of a connection that can no longer be used.
#[derive(Debug)]
pub enum Http2Error {
    /// Reading or writing failed.
    Io(io::Error),
    /// The server closed the connection.
    Ended,
    /// The server violated the protocol; the message is Go's.
    Broken(&'static str),
}

const PROTOCOL: Http2Error = Http2Error::Broken("connection error: PROTOCOL_ERROR");
const FLOW_CONTROL: Http2Error = Http2Error::Broken("connection error: FLOW_CONTROL_ERROR");
const FRAME_SIZE: Http2Error = Http2Error::Broken("connection error: FRAME_SIZE_ERROR");

/// A connection to a server.
pub struct Connection {
    stream: Stream,
    received: Vec<u8>,
    frames: u32,
    /// The number of the newest stream, to which the body and its window belong; 0 before the first request.
    newest: u32,
    /// The part of the request's body that is not sent yet.
    unsent: Vec<u8>,
    sent_all: bool,
    /// Send windows of the connection and the stream. A server may reduce the stream's window below zero.
    windows: [i64; 2],
    initial_window: i64,
    max_frame: usize,
    /// Bytes of the body that the server may still send.
    room: usize,
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Connection {
    /// Sends the preface, and waits for the settings of the server.
    pub async fn open(stream: Stream) -> Result<Connection, Http2Error> {
        let mut connection = Connection {
            stream,
            received: Vec::new(),
            frames: 0,
            newest: 0,
            unsent: Vec::new(),
            sent_all: false,
            windows: [BODY as i64; 2],
            initial_window: BODY as i64,
            max_frame: FRAME,
            room: BODY,
        };
        let mut settings = Vec::new();
        for (name, value) in [
            (setting::HEADER_TABLE_SIZE, 0),
            (setting::ENABLE_PUSH, 0),
            (setting::MAX_HEADER_LIST_SIZE, hpack::MAX_LIST as u32),
        ] {
            settings.extend(name.to_be_bytes());
            settings.extend(value.to_be_bytes());
        }
        let mut hello = PREFACE.to_vec();
        frame(kind::SETTINGS, 0, 0, &settings, &mut hello);
        connection.write(&hello).await?;
        let first = connection.frame().await?;
        if first.kind != kind::SETTINGS || first.flags & flag::ACK != 0 {
            return Err(PROTOCOL);
        }
        connection.settings(&first).await?;
        Ok(connection)
    }

    /// Returns the TCP socket of the connection.
    pub fn socket(&self) -> &TcpStream {
        self.stream.socket()
    }

    /// Ends a stream whose response is of no interest any more.
    pub async fn cancel(&mut self, stream: u32) -> Result<(), Http2Error> {
        const CANCEL: u32 = 8;
        let mut bytes = Vec::new();
        frame(kind::RST_STREAM, 0, stream, &CANCEL.to_be_bytes(), &mut bytes);
        self.write(&bytes).await
    }

    /// Allows the server to send so many more bytes of bodies, of all streams (0) or of one. It may then also send
    /// [`FRAMES`] more frames.
    pub async fn enlarge(&mut self, stream: u32, by: u32) -> Result<(), Http2Error> {
        if stream == 0 {
            self.room += by as usize;
            self.frames = 0;
        }
        let mut bytes = Vec::new();
        frame(kind::WINDOW_UPDATE, 0, stream, &by.to_be_bytes(), &mut bytes);
        self.write(&bytes).await
    }

    /// Sends a request, and returns the number of its stream. [`Connection::next`] sends the part of the body that
    /// exceeds the server's window; an earlier request must not have a body.
    pub async fn request(&mut self, fields: &[(&str, &str)], body: &[u8]) -> Result<u32, Http2Error> {
        self.newest += if self.newest == 0 { 1 } else { 2 };
        let mut block = Vec::new();
        for (name, value) in fields {
            hpack::encode(name, value, &mut block);
        }
        let mut rest = &block[..];
        let mut bytes = Vec::new();
        let mut kind = kind::HEADERS;
        let mut flags = if body.is_empty() { flag::END_STREAM } else { 0 };
        loop {
            let (part, after) = rest.split_at(rest.len().min(self.max_frame));
            flags |= if after.is_empty() { flag::END_HEADERS } else { 0 };
            frame(kind, flags, self.newest, part, &mut bytes);
            if after.is_empty() {
                break;
            }
            (rest, kind, flags) = (after, kind::CONTINUATION, 0);
        }
        self.write(&bytes).await?;
        self.unsent = body.to_vec();
        self.send().await?;
        Ok(self.newest)
    }

    /// Waits for the next part of a response. Returns it with the number of its stream.
    pub async fn next(&mut self) -> Result<(u32, Event), Http2Error> {
        loop {
            let frame = self.frame().await?;
            let stream = frame.stream;
            let ours = stream % 2 == 1 && stream <= self.newest;
            match frame.kind {
                kind::DATA if ours => return Ok((stream, self.data(frame)?)),
                kind::HEADERS if ours => return Ok((stream, self.headers(frame).await?)),
                kind::RST_STREAM if ours => {
                    let code = frame.payload.first_chunk::<4>().ok_or(FRAME_SIZE)?;
                    return Ok((stream, Event::Reset(u32::from_be_bytes(*code))));
                }
                kind::SETTINGS => self.settings(&frame).await?,
                kind::PING if frame.flags & flag::ACK == 0 => {
                    let mut answer = Vec::new();
                    self::frame(kind::PING, flag::ACK, 0, &frame.payload, &mut answer);
                    self.write(&answer).await?;
                }
                kind::GOAWAY => {
                    let last = frame.payload.first_chunk::<4>().ok_or(FRAME_SIZE)?;
                    let is_refused = u32::from_be_bytes(*last) & 0x7fff_ffff < self.newest;
                    return Ok((self.newest, if is_refused { Event::Refused } else { Event::Closing }));
                }
                kind::WINDOW_UPDATE => self.window_update(&frame).await?,
                // There is no other stream.
                kind::DATA | kind::HEADERS | kind::PUSH_PROMISE | kind::CONTINUATION => return Err(PROTOCOL),
                _ => {}
            }
        }
    }

    fn data(&mut self, frame: Frame) -> Result<Event, Http2Error> {
        // Padding counts against the window.
        self.room = self.room.checked_sub(frame.payload.len()).ok_or(FLOW_CONTROL)?;
        let end = frame.flags & flag::END_STREAM != 0;
        Ok(Event::Data { bytes: unpadded(&frame)?.to_vec(), end })
    }

    async fn headers(&mut self, frame: Frame) -> Result<Event, Http2Error> {
        let (end, stream) = (frame.flags & flag::END_STREAM != 0, frame.stream);
        let mut block = unpadded(&frame)?;
        if frame.flags & flag::PRIORITY != 0 {
            block = block.split_at_checked(5).ok_or(PROTOCOL)?.1;
        }
        let mut block = block.to_vec();
        let mut last = frame.flags & flag::END_HEADERS != 0;
        while !last {
            let more = self.frame().await?;
            if more.kind != kind::CONTINUATION || more.stream != stream {
                return Err(PROTOCOL);
            }
            block.extend_from_slice(&more.payload);
            if block.len() > hpack::MAX_LIST {
                return Ok(Event::TooManyHeaders);
            }
            last = more.flags & flag::END_HEADERS != 0;
        }
        match hpack::decode(&block) {
            Ok(fields) => Ok(Event::Headers { fields, end }),
            Err(HpackError::TooLarge) => Ok(Event::TooManyHeaders),
            Err(HpackError::Malformed) => Err(Http2Error::Broken("connection error: COMPRESSION_ERROR")),
        }
    }

    async fn settings(&mut self, frame: &Frame) -> Result<(), Http2Error> {
        if frame.stream != 0 {
            return Err(PROTOCOL);
        }
        if frame.flags & flag::ACK != 0 {
            return Ok(());
        }
        let (settings, []) = frame.payload.as_chunks::<6>() else { return Err(FRAME_SIZE) };
        for [name @ .., a, b, c, d] in settings {
            let value = u32::from_be_bytes([*a, *b, *c, *d]);
            match u16::from_be_bytes(*name) {
                setting::INITIAL_WINDOW_SIZE if value > i32::MAX as u32 => return Err(FLOW_CONTROL),
                setting::INITIAL_WINDOW_SIZE => {
                    self.windows[1] += i64::from(value) - self.initial_window;
                    self.initial_window = i64::from(value);
                }
                // The client need not send larger frames, so the value is only checked.
                setting::MAX_FRAME_SIZE if !(FRAME as u32..1 << 24).contains(&value) => return Err(PROTOCOL),
                _ => {}
            }
        }
        let mut answer = Vec::new();
        self::frame(kind::SETTINGS, flag::ACK, 0, &[], &mut answer);
        self.write(&answer).await?;
        self.send().await
    }

    async fn window_update(&mut self, frame: &Frame) -> Result<(), Http2Error> {
        let by = frame.payload.first_chunk::<4>().ok_or(FRAME_SIZE)?;
        let by = i64::from(u32::from_be_bytes(*by) & 0x7fff_ffff);
        let window = match frame.stream {
            0 => &mut self.windows[0],
            stream if stream == self.newest => &mut self.windows[1],
            // An earlier request has no body.
            stream if stream % 2 == 1 && stream < self.newest => return Ok(()),
            _ => return Err(PROTOCOL),
        };
        *window += by;
        if by == 0 {
            return Err(PROTOCOL);
        }
        if *window > i64::from(i32::MAX) {
            return Err(FLOW_CONTROL);
        }
        self.send().await
    }

    /// Sends the part of the request's body that fits into the windows.
    async fn send(&mut self) -> Result<(), Http2Error> {
        while !self.unsent.is_empty() && !self.sent_all {
            let window = self.windows[0].min(self.windows[1]).max(0);
            let length = self.unsent.len().min(self.max_frame).min(window as usize);
            if length == 0 {
                break;
            }
            let part: Vec<u8> = self.unsent.drain(..length).collect();
            for window in &mut self.windows {
                *window -= length as i64;
            }
            self.sent_all = self.unsent.is_empty();
            let flags = if self.sent_all { flag::END_STREAM } else { 0 };
            let mut bytes = Vec::new();
            frame(kind::DATA, flags, self.newest, &part, &mut bytes);
            self.write(&bytes).await?;
        }
        Ok(())
    }

    async fn frame(&mut self) -> Result<Frame, Http2Error> {
        self.frames += 1;
        if self.frames > FRAMES {
            return Err(Http2Error::Broken("connection error: ENHANCE_YOUR_CALM"));
        }
        self.fill(HEAD).await?;
        let mut head = [0; HEAD];
        head.copy_from_slice(&self.received[..HEAD]);
        let [a, b, c, kind, flags, stream @ ..] = head;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        if length > FRAME {
            return Err(Http2Error::Broken("http2: frame too large"));
        }
        self.fill(HEAD + length).await?;
        let payload = self.received[HEAD..HEAD + length].to_vec();
        self.received.drain(..HEAD + length);
        Ok(Frame { kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff, payload })
    }

    async fn fill(&mut self, length: usize) -> Result<(), Http2Error> {
        while self.received.len() < length {
            let mut chunk = [0; 2048];
            let count = self.stream.read(&mut chunk).await.map_err(of_tls)?;
            if count == 0 {
                return Err(Http2Error::Ended);
            }
            self.received.extend_from_slice(&chunk[..count]);
        }
        Ok(())
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Http2Error> {
        self.stream.write_all(bytes).await.map_err(of_tls)
    }
}

fn of_tls(error: TlsError) -> Http2Error {
    match error {
        TlsError::Ended => Http2Error::Ended,
        TlsError::Io(error) => Http2Error::Io(error),
        error => Http2Error::Io(io::Error::other(error.to_string())),
    }
}

/// Returns the payload without its padding.
fn unpadded(frame: &Frame) -> Result<&[u8], Http2Error> {
    if frame.flags & flag::PADDED == 0 {
        return Ok(&frame.payload);
    }
    let (padding, rest) = frame.payload.split_first().ok_or(PROTOCOL)?;
    let length = rest.len().checked_sub(usize::from(*padding)).ok_or(PROTOCOL)?;
    Ok(&rest[..length])
}

/// Appends a frame to `bytes`. The payload must fit into one frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8], bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
}
