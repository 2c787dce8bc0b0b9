//! One request over HTTP/2 in clear text (RFC 9113, "prior knowledge"), and its
//! answer: stream 1 of a connection that has no other.
//!
//! The server is trusted with nothing. What it may say before the answer is over
//! has a number ([`FRAMES`]), each frame and each list of fields a size, and of a
//! body it may send what fits in the window that it has from the start: none is
//! ever opened again.

use std::io;
use std::net::TcpStream;

use smol::Async;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use super::hpack::{self, Field, HpackError};

/// With what a client begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of a frame's head.
const HEAD: usize = 9;

/// The largest frame that anybody may send who was not told otherwise (`SETTINGS_MAX_FRAME_SIZE`).
const FRAME: usize = 16 * 1024;

/// What the answer's body may have: the window that a stream begins with.
pub const BODY: usize = 65_535;

/// Frames that a server may send. An answer takes some ten.
const FRAMES: u32 = 1000;

/// The only stream.
const STREAM: u32 = 1;

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

/// What became known of the answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Its head, or what follows its body.
    Headers {
        /// The fields, in the order of the block.
        fields: Vec<Field>,
        /// Nothing follows on the stream.
        end: bool,
    },
    /// As above, and more than anybody wants to know.
    TooManyHeaders,
    /// Some of its body.
    Data {
        /// The bytes, without padding.
        bytes: Vec<u8>,
        /// Nothing follows on the stream.
        end: bool,
    },
    /// There will be none, for this reason of RFC 9113's section 7.
    Reset(u32),
    /// The server is going and has not looked at the request.
    Refused,
}

/// Why the connection is of no use, any more.
#[derive(Debug)]
pub enum Http2Error {
    /// Reading or writing failed.
    Io(io::Error),
    /// The server closed the connection.
    Ended,
    /// In Go's words.
    Broken(&'static str),
}

const PROTOCOL: Http2Error = Http2Error::Broken("connection error: PROTOCOL_ERROR");
const FLOW_CONTROL: Http2Error = Http2Error::Broken("connection error: FLOW_CONTROL_ERROR");
const FRAME_SIZE: Http2Error = Http2Error::Broken("connection error: FRAME_SIZE_ERROR");

/// A connection.
pub struct Connection {
    stream: Async<TcpStream>,
    received: Vec<u8>,
    frames: u32,
    /// Of the request's body.
    unsent: Vec<u8>,
    sent_all: bool,
    /// What may be sent on the connection, and on the stream; a server may take back what it gave.
    windows: [i64; 2],
    initial_window: i64,
    max_frame: usize,
    /// What the server may still send.
    room: usize,
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Connection {
    /// Begins, and waits until the server has begun.
    pub async fn open(stream: Async<TcpStream>) -> Result<Connection, Http2Error> {
        let mut connection = Connection {
            stream,
            received: Vec::new(),
            frames: 0,
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

    /// The socket below.
    pub fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Sends a request; what does not fit in the server's window follows when it does.
    pub async fn request(&mut self, fields: &[(&str, &str)], body: &[u8]) -> Result<(), Http2Error> {
        let mut block = Vec::new();
        for (name, value) in fields {
            hpack::encode(name, value, &mut block);
        }
        let mut rest = &block[..];
        let mut bytes = Vec::new();
        let mut kind = kind::HEADERS;
        loop {
            let (part, after) = rest.split_at(rest.len().min(self.max_frame));
            let flags = if after.is_empty() { flag::END_HEADERS } else { 0 };
            frame(kind, flags, STREAM, part, &mut bytes);
            if after.is_empty() {
                break;
            }
            (rest, kind) = (after, kind::CONTINUATION);
        }
        self.write(&bytes).await?;
        self.unsent = body.to_vec();
        self.send().await
    }

    /// What comes next of the answer.
    pub async fn next(&mut self) -> Result<Event, Http2Error> {
        loop {
            let frame = self.frame().await?;
            let ours = frame.stream == STREAM;
            match frame.kind {
                kind::DATA if ours => return self.data(frame),
                kind::HEADERS if ours => return self.headers(frame).await,
                kind::RST_STREAM if ours => {
                    let code = frame.payload.first_chunk::<4>().ok_or(FRAME_SIZE)?;
                    return Ok(Event::Reset(u32::from_be_bytes(*code)));
                }
                kind::SETTINGS => self.settings(&frame).await?,
                kind::PING if frame.flags & flag::ACK == 0 => {
                    let mut answer = Vec::new();
                    self::frame(kind::PING, flag::ACK, 0, &frame.payload, &mut answer);
                    self.write(&answer).await?;
                }
                kind::GOAWAY => {
                    let last = frame.payload.first_chunk::<4>().ok_or(FRAME_SIZE)?;
                    if u32::from_be_bytes(*last) & 0x7fff_ffff < STREAM {
                        return Ok(Event::Refused);
                    }
                }
                kind::WINDOW_UPDATE => self.window_update(&frame).await?,
                // There is no other stream, and nobody asked for one.
                kind::DATA | kind::HEADERS | kind::PUSH_PROMISE | kind::CONTINUATION => return Err(PROTOCOL),
                _ => {}
            }
        }
    }

    fn data(&mut self, frame: Frame) -> Result<Event, Http2Error> {
        // Padding counts.
        self.room = self.room.checked_sub(frame.payload.len()).ok_or(FLOW_CONTROL)?;
        let end = frame.flags & flag::END_STREAM != 0;
        Ok(Event::Data { bytes: unpadded(&frame)?.to_vec(), end })
    }

    async fn headers(&mut self, frame: Frame) -> Result<Event, Http2Error> {
        let end = frame.flags & flag::END_STREAM != 0;
        let mut block = unpadded(&frame)?;
        if frame.flags & flag::PRIORITY != 0 {
            block = block.split_at_checked(5).ok_or(PROTOCOL)?.1;
        }
        let mut block = block.to_vec();
        let mut last = frame.flags & flag::END_HEADERS != 0;
        while !last {
            let more = self.frame().await?;
            if more.kind != kind::CONTINUATION || more.stream != STREAM {
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
                // Larger frames than these nobody has to send.
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
            STREAM => &mut self.windows[1],
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

    /// Sends what fits of the request's body.
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
            frame(kind::DATA, flags, STREAM, &part, &mut bytes);
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
            // As in `tls.rs`: a server may always have something to say.
            smol::future::yield_now().await;
            let mut chunk = [0; 2048];
            match self.stream.read(&mut chunk).await {
                Ok(0) => return Err(Http2Error::Ended),
                Ok(count) => self.received.extend_from_slice(&chunk[..count]),
                Err(error) => return Err(Http2Error::Io(error)),
            }
        }
        Ok(())
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Http2Error> {
        self.stream.write_all(bytes).await.map_err(Http2Error::Io)
    }
}

/// The payload without its padding.
fn unpadded(frame: &Frame) -> Result<&[u8], Http2Error> {
    if frame.flags & flag::PADDED == 0 {
        return Ok(&frame.payload);
    }
    let (padding, rest) = frame.payload.split_first().ok_or(PROTOCOL)?;
    let length = rest.len().checked_sub(usize::from(*padding)).ok_or(PROTOCOL)?;
    Ok(&rest[..length])
}

/// Appends a frame, whose payload fits in one.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8], bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend_from_slice(payload);
}
