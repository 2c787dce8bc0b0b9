//! The part of SPDY/3.1 that port forwarding needs: kubectl sends its streams in SPDY inside of a WebSocket, and
//! supports no newer protocol for them.
//!
//! Pure: decodes bytes into frames, and encodes frames. Received headers are decompressed with zlib and SPDY's
//! dictionary. Sent headers are a zlib stream of stored blocks, so that no compressor is needed. There are no windows
//! for flow control, because kubectl has none: the connection itself limits the sender.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, TINFL_LZ_DICT_SIZE, decompress, inflate_flags};

use dictionary::{DICTIONARY, DICTIONARY_ID};

mod dictionary;

/// The WebSocket subprotocol: a byte stream of SPDY/3.1 in binary messages, which carries `portforward.k8s.io`.
pub const PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";

/// Maximum size of a control frame in bytes. kubectl's have some fifty.
const MAX_CONTROL: usize = 16 * 1024;

/// Maximum size of a decompressed header block in bytes.
const MAX_HEADERS: usize = 16 * 1024;

const HEAD: usize = 8;
const FIN: u8 = 1;

/// A frame from the peer.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    /// A new stream with its headers.
    Open {
        /// The number of the stream, which is odd for a client's.
        stream: u32,
        /// Names in lower case, and values. Of headers with the same name, the last counts.
        headers: Vec<(String, String)>,
        /// Whether the client sends nothing on the stream.
        fin: bool,
    },
    /// Bytes of a stream. A long frame is returned in pieces.
    Data {
        /// The number of the stream.
        stream: u32,
        /// A piece of the data.
        bytes: Vec<u8>,
        /// Whether the stream ends here.
        fin: bool,
    },
    /// The end of a stream by an error or a cancellation.
    Reset {
        /// The number of the stream that was reset.
        stream: u32,
    },
    /// A ping, to which [`pong`] responds.
    Ping {
        /// The peer's id of the ping.
        id: u32,
    },
    /// The peer opens no more streams, and is about to end.
    GoAway,
    /// A frame that needs no response.
    Other,
}

/// The error of bytes that are not valid SPDY, or that exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpdyError {
    /// Another version than 3.
    #[error("read a SPDY frame: it is not of version 3")]
    Version,
    /// A frame that is too long, or too short for its kind.
    #[error("read a SPDY frame: its length is wrong")]
    Length,
    /// Headers that cannot be decompressed or parsed.
    #[error("read a SPDY frame: its headers cannot be read")]
    Headers,
}

/// Decodes bytes into frames.
#[derive(Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// The stream, the number of missing bytes and the flags of an incomplete data frame.
    begun: Option<(u32, usize, u8)>,
    inflater: Option<Box<Inflater>>,
}

impl Decoder {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next frame; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The bytes are invalid. The connection must be closed.
    pub fn frame(&mut self) -> Result<Option<Frame>, SpdyError> {
        if let Some((stream, missing, flags)) = self.begun {
            let length = missing.min(self.bytes.len());
            if length == 0 && missing > 0 {
                return Ok(None);
            }
            let bytes = self.bytes.drain(..length).collect();
            let whole = length == missing;
            self.begun = (!whole).then_some((stream, missing - length, flags));
            return Ok(Some(Frame::Data { stream, bytes, fin: whole && flags & FIN != 0 }));
        }
        let Some(head) = self.bytes.first_chunk::<HEAD>() else { return Ok(None) };
        let [a, b, c, d, flags, x, y, z] = *head;
        let length = u32::from_be_bytes([0, x, y, z]) as usize;
        if a & 0x80 == 0 {
            self.bytes.drain(..HEAD);
            self.begun = Some((u32::from_be_bytes([a, b, c, d]), length, flags));
            return self.frame();
        }
        if (a, b) != (0x80, 3) {
            return Err(SpdyError::Version);
        }
        if length > MAX_CONTROL {
            return Err(SpdyError::Length);
        }
        let Some(body) = self.bytes.get(HEAD..HEAD + length) else { return Ok(None) };
        let frame = match u16::from_be_bytes([c, d]) {
            1 => {
                let packed = body.get(10..).ok_or(SpdyError::Length)?;
                let block = self.inflater.get_or_insert_default().unpack(packed)?;
                Frame::Open { stream: number(body, 0)?, headers: headers(&block)?, fin: flags & FIN != 0 }
            }
            3 => Frame::Reset { stream: number(body, 0)? },
            6 => Frame::Ping { id: number(body, 0)? },
            7 => Frame::GoAway,
            // Replies, settings and windows. Their headers are not decompressed, since a peer that sends replies
            // opens no streams.
            _ => Frame::Other,
        };
        self.bytes.drain(..HEAD + length);
        Ok(Some(frame))
    }
}

/// Reads a number of 31 bits at `at`.
fn number(bytes: &[u8], at: usize) -> Result<u32, SpdyError> {
    let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>()).ok_or(SpdyError::Length)?;
    Ok(u32::from_be_bytes(*bytes) & 0x7fff_ffff)
}

/// Parses the names and values of a decompressed header block.
fn headers(block: &[u8]) -> Result<Vec<(String, String)>, SpdyError> {
    fn length(block: &[u8]) -> Result<(usize, &[u8]), SpdyError> {
        let (length, rest) = block.split_first_chunk::<4>().ok_or(SpdyError::Headers)?;
        Ok((u32::from_be_bytes(*length) as usize, rest))
    }
    let text = |block: &mut &[u8]| -> Result<String, SpdyError> {
        let (length, rest) = length(block)?;
        let (text, rest) = rest.split_at_checked(length).ok_or(SpdyError::Headers)?;
        *block = rest;
        String::from_utf8(text.to_vec()).map_err(|_| SpdyError::Headers)
    };
    let (count, mut rest) = length(block)?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        pairs.push((text(&mut rest)?, text(&mut rest)?));
    }
    Ok(pairs)
}

/// The zlib stream of the peer's headers, which is flushed after each block.
struct Inflater {
    state: DecompressorOxide,
    /// The latest decompressed bytes, which start with the dictionary.
    window: [u8; TINFL_LZ_DICT_SIZE],
    at: usize,
    begun: bool,
}

impl Default for Inflater {
    fn default() -> Self {
        let mut window = [0; TINFL_LZ_DICT_SIZE];
        window[..DICTIONARY.len()].copy_from_slice(DICTIONARY);
        Inflater { state: DecompressorOxide::new(), window, at: DICTIONARY.len(), begun: false }
    }
}

impl Inflater {
    fn unpack(&mut self, mut packed: &[u8]) -> Result<Vec<u8>, SpdyError> {
        if !self.begun {
            let (head, rest) = packed.split_first_chunk::<6>().ok_or(SpdyError::Headers)?;
            let [method, flags, id @ ..] = *head;
            let valid = method & 0x0f == 8 && u16::from_be_bytes([method, flags]).is_multiple_of(31);
            if !valid || flags & 0x20 == 0 || u32::from_be_bytes(id) != DICTIONARY_ID {
                return Err(SpdyError::Headers);
            }
            (packed, self.begun) = (rest, true);
        }
        let mut block = Vec::new();
        loop {
            let flags = inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
            let (status, read, written) =
                decompress(&mut self.state, packed, &mut self.window, self.at, flags);
            block.extend_from_slice(&self.window[self.at..self.at + written]);
            self.at = (self.at + written) % TINFL_LZ_DICT_SIZE;
            packed = &packed[read..];
            if block.len() > MAX_HEADERS {
                return Err(SpdyError::Length);
            }
            match status {
                TINFLStatus::NeedsMoreInput => return Ok(block),
                TINFLStatus::HasMoreOutput => {}
                _ => return Err(SpdyError::Headers),
            }
        }
    }
}

/// Encodes frames with headers.
#[derive(Default)]
pub struct Encoder {
    /// Whether the head of the zlib stream has been sent.
    begun: bool,
}

impl Encoder {
    /// Returns a frame that opens a stream; with `fin`, no data is sent on the stream.
    pub fn open(&mut self, stream: u32, headers: &[(&str, &str)], fin: bool) -> Vec<u8> {
        let mut body = stream.to_be_bytes().to_vec();
        // No associated stream, highest priority.
        body.extend([0; 6]);
        self.pack(headers, &mut body);
        control(1, if fin { FIN } else { 0 }, &body)
    }

    /// Returns a frame that accepts a stream of the peer.
    pub fn reply(&mut self, stream: u32) -> Vec<u8> {
        let mut body = stream.to_be_bytes().to_vec();
        self.pack(&[], &mut body);
        control(2, 0, &body)
    }

    /// Appends headers as a stored block of the zlib stream. An empty block follows, after which Go's reader returns
    /// the headers without waiting for more bytes.
    fn pack(&mut self, headers: &[(&str, &str)], to: &mut Vec<u8>) {
        if !self.begun {
            to.extend([0x78, 0x20]);
            to.extend(DICTIONARY_ID.to_be_bytes());
            self.begun = true;
        }
        let mut block = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            block.extend((text.len() as u32).to_be_bytes());
            block.extend(text.as_bytes());
        }
        let length = block.len() as u16;
        to.push(0);
        to.extend(length.to_le_bytes());
        to.extend((!length).to_le_bytes());
        to.extend(block);
        to.extend([0, 0, 0, 0xff, 0xff]);
    }
}

/// Returns a frame with bytes of a stream; `fin` ends the stream.
pub fn data(stream: u32, bytes: &[u8], fin: bool) -> Vec<u8> {
    let [_, x, y, z] = (bytes.len() as u32).to_be_bytes();
    let mut frame = Vec::with_capacity(HEAD + bytes.len());
    frame.extend(stream.to_be_bytes());
    frame.extend([if fin { FIN } else { 0 }, x, y, z]);
    frame.extend(bytes);
    frame
}

/// Returns a frame that rejects a stream.
pub fn refuse(stream: u32) -> Vec<u8> {
    const REFUSED_STREAM: u32 = 3;
    control(3, 0, &[stream.to_be_bytes(), REFUSED_STREAM.to_be_bytes()].concat())
}

/// Returns the response to a ping.
pub fn pong(id: u32) -> Vec<u8> {
    control(6, 0, &id.to_be_bytes())
}

fn control(kind: u16, flags: u8, body: &[u8]) -> Vec<u8> {
    let [_, x, y, z] = (body.len() as u32).to_be_bytes();
    let mut frame = vec![0x80, 3];
    frame.extend(kind.to_be_bytes());
    frame.extend([flags, x, y, z]);
    frame.extend(body);
    frame
}

#[cfg(test)]
mod tests;
