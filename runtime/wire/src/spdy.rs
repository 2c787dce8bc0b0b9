//! SPDY/3.1, as much of it as forwarding ports needs: kubectl carries its streams in
//! that, inside of a WebSocket, where no other protocol of this century is spoken.
//!
//! Pure: bytes in, frames out, and back. What arrives is read with zlib and SPDY's
//! dictionary, as kubectl compresses it; what is sent is a zlib stream, too, but of
//! stored blocks, so that there is no compressor here. Windows are not kept, because
//! kubectl keeps none: the connection itself holds back who sends too much.

use std::fmt;

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, TINFL_LZ_DICT_SIZE, decompress, inflate_flags};

use dictionary::{DICTIONARY, DICTIONARY_ID};

mod dictionary;

/// The WebSocket subprotocol: SPDY/3.1 as a stream of bytes in binary messages, in it
/// `portforward.k8s.io`.
pub const PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";

/// Bytes of a frame that is no data. kubectl's have some fifty.
const MAX_CONTROL: usize = 16 * 1024;

/// Bytes of a header block, unpacked.
const MAX_HEADERS: usize = 16 * 1024;

const HEAD: usize = 8;
const FIN: u8 = 1;

/// What the peer says.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    /// A new stream, with what its headers say; of those that are named twice, the last.
    Open {
        /// Odd: all are the client's.
        stream: u32,
        /// Names in lower case.
        headers: Vec<(String, String)>,
        /// Nothing follows on it.
        fin: bool,
    },
    /// Bytes of a stream; a long frame comes in pieces.
    Data {
        /// Of which stream.
        stream: u32,
        /// Some of it.
        bytes: Vec<u8>,
        /// Nothing follows.
        fin: bool,
    },
    /// The stream is no more.
    Reset {
        /// Which.
        stream: u32,
    },
    /// To be answered with the same frame.
    Ping {
        /// What the peer knows it by.
        id: u32,
    },
    /// The peer opens no more streams, and is about to end.
    GoAway,
    /// What needs no answer.
    Other,
}

/// Why this is no SPDY, or none that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpdyError {
    /// Another version than 3.
    Version,
    /// Too long, or too short for what it says to be.
    Length,
    /// Headers that cannot be unpacked, or are not what they say.
    Headers,
}

impl fmt::Display for SpdyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SpdyError::Version => "read a SPDY frame: it is not of version 3",
            SpdyError::Length => "read a SPDY frame: its length is wrong",
            SpdyError::Headers => "read a SPDY frame: its headers cannot be read",
        })
    }
}

impl std::error::Error for SpdyError {}

/// Turns bytes into frames.
#[derive(Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// Of a data frame whose end is to come: its stream, what is missing, its flags.
    begun: Option<(u32, usize, u8)>,
    inflater: Option<Box<Inflater>>,
}

impl Decoder {
    /// More bytes arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame, if enough of it is there.
    ///
    /// # Errors
    /// The peer is not to be talked to any more.
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
            // Replies to what we opened, settings, windows; their headers are nothing to us,
            // and who sends them opens no streams.
            _ => Frame::Other,
        };
        self.bytes.drain(..HEAD + length);
        Ok(Some(frame))
    }
}

/// 31 bits at `at`.
fn number(bytes: &[u8], at: usize) -> Result<u32, SpdyError> {
    let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>()).ok_or(SpdyError::Length)?;
    Ok(u32::from_be_bytes(*bytes) & 0x7fff_ffff)
}

/// The pairs of an unpacked block.
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

/// One zlib stream, flushed behind each block of headers.
struct Inflater {
    state: DecompressorOxide,
    /// The last bytes unpacked, the dictionary before the first.
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

/// Turns what is to be said into frames.
#[derive(Default)]
pub struct Encoder {
    /// The zlib stream of the headers has its beginning.
    begun: bool,
}

impl Encoder {
    /// Opens a stream; with `fin` nothing is sent on it.
    pub fn open(&mut self, stream: u32, headers: &[(&str, &str)], fin: bool) -> Vec<u8> {
        let mut body = stream.to_be_bytes().to_vec();
        // Associated to none, of the highest priority.
        body.extend([0; 6]);
        self.pack(headers, &mut body);
        control(1, if fin { FIN } else { 0 }, &body)
    }

    /// Takes a stream that the peer has opened.
    pub fn reply(&mut self, stream: u32) -> Vec<u8> {
        let mut body = stream.to_be_bytes().to_vec();
        self.pack(&[], &mut body);
        control(2, 0, &body)
    }

    /// A zlib stream of one stored block after the other, each with an empty one behind
    /// it: by that Go's reader sees that it may hand on what it has, and not go on reading.
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

/// Bytes of a stream; with `fin` the last ones.
pub fn data(stream: u32, bytes: &[u8], fin: bool) -> Vec<u8> {
    let [_, x, y, z] = (bytes.len() as u32).to_be_bytes();
    let mut frame = Vec::with_capacity(HEAD + bytes.len());
    frame.extend(stream.to_be_bytes());
    frame.extend([if fin { FIN } else { 0 }, x, y, z]);
    frame.extend(bytes);
    frame
}

/// Ends a stream that was refused.
pub fn refuse(stream: u32) -> Vec<u8> {
    const REFUSED_STREAM: u32 = 3;
    control(3, 0, &[stream.to_be_bytes(), REFUSED_STREAM.to_be_bytes()].concat())
}

/// Answers a ping.
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
