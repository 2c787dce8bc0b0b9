//! WebSocket (RFC 6455), as exec uses it: decodes frames into messages, and encodes messages.
//! Pure: the caller reads and writes the bytes, on the agent's loop or, blocking, in `nodlet exec`.

use data_encoding::BASE64;
use sha1::{Digest, Sha1};

/// The subprotocols of kubectl and nodlet, in order of preference. Each binary message begins with the number of its
/// channel; since v5, channel 255 closes another channel. Before v4, the channel of the result carries text.
pub const PROTOCOLS: [&str; 3] = ["v5.channel.k8s.io", "v4.channel.k8s.io", FIRST];

/// The subprotocol whose channel of the result carries only the text of a failure.
pub const FIRST: &str = "channel.k8s.io";

/// Channel of the process's standard input.
pub const STDIN: u8 = 0;
/// Channel of the process's standard output.
pub const STDOUT: u8 = 1;
/// Channel of the process's standard error.
pub const STDERR: u8 = 2;
/// Channel of the result, one `Status`.
pub const ERROR: u8 = 3;
/// Channel of terminal sizes, such as `{"Width":80,"Height":24}`.
pub const RESIZE: u8 = 4;
/// Channel whose messages close the channel in their payload (v5).
pub const CLOSE: u8 = 255;

/// Maximum size of a message in bytes. kubectl sends 32 KiB at a time.
const MESSAGE_BYTES: usize = 256 * 1024;

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// Text, which exec does not use.
    Text,
    /// The number of a channel, and bytes.
    Binary,
    /// The end of the connection.
    Close,
    /// A request for [`Opcode::Pong`].
    Ping,
    /// The response to [`Opcode::Ping`].
    Pong,
}

/// A complete message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The type of the message.
    pub opcode: Opcode,
    /// The complete payload, unmasked.
    pub payload: Vec<u8>,
}

/// The error of bytes that are not valid WebSocket frames, or that exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A reserved bit or opcode.
    #[error("read a frame: it uses reserved bits")]
    Reserved,
    /// An unmasked frame from a client, or a masked one from a server.
    #[error("read a frame: it is masked as the other side's are")]
    Mask,
    /// A control frame that is too long or fragmented.
    #[error("read a frame: a control frame is long or in pieces")]
    Control,
    /// A continuation without a message, or a message inside of another.
    #[error("read a frame: it does not fit the one before")]
    Fragment,
    /// A message that exceeds the maximum size.
    #[error("read a frame: it is too long")]
    TooLong,
}

/// The role of this end of the connection. Only clients mask their frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends masked frames.
    Client,
    /// Receives masked frames.
    Server,
}

/// Decodes bytes into messages.
#[derive(Debug)]
pub struct Decoder {
    role: Role,
    bytes: Vec<u8>,
    /// The beginning of an incomplete message.
    begun: Option<Message>,
}

impl Decoder {
    /// Creates a decoder for frames that `role` receives.
    pub fn new(role: Role) -> Self {
        Decoder { role, bytes: Vec::new(), begun: None }
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next message; `None` if more bytes are needed. This is not an iterator, since messages may follow
    /// after `None`.
    pub fn message(&mut self) -> Result<Option<Message>, FrameError> {
        while let Some(frame) = self.frame()? {
            let Frame { end, opcode, payload } = frame;
            match (opcode, &mut self.begun) {
                (Some(opcode @ (Opcode::Close | Opcode::Ping | Opcode::Pong)), _) => {
                    return Ok(Some(Message { opcode, payload }));
                }
                (Some(opcode), None) if end => return Ok(Some(Message { opcode, payload })),
                (Some(opcode), begun @ None) => *begun = Some(Message { opcode, payload }),
                (None, Some(begun)) => {
                    if begun.payload.len() + payload.len() > MESSAGE_BYTES {
                        return Err(FrameError::TooLong);
                    }
                    begun.payload.extend_from_slice(&payload);
                    if end {
                        return Ok(self.begun.take());
                    }
                }
                (Some(_), Some(_)) | (None, None) => return Err(FrameError::Fragment),
            }
        }
        Ok(None)
    }

    fn frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let [first, second, ..] = self.bytes[..] else { return Ok(None) };
        if first & 0x70 != 0 {
            return Err(FrameError::Reserved);
        }
        let end = first & 0x80 != 0;
        let opcode = match first & 0x0f {
            0 => None,
            1 => Some(Opcode::Text),
            2 => Some(Opcode::Binary),
            8 => Some(Opcode::Close),
            9 => Some(Opcode::Ping),
            10 => Some(Opcode::Pong),
            _ => return Err(FrameError::Reserved),
        };
        let masked = second & 0x80 != 0;
        if masked != (self.role == Role::Server) {
            return Err(FrameError::Mask);
        }
        let (length, mut at) = match second & 0x7f {
            126 => match self.bytes.get(2..4) {
                Some(&[a, b]) => (u64::from(u16::from_be_bytes([a, b])), 4),
                _ => return Ok(None),
            },
            127 => match self.bytes.get(2..10).and_then(|bytes| bytes.try_into().ok()) {
                Some(bytes) => (u64::from_be_bytes(bytes), 10),
                None => return Ok(None),
            },
            short => (u64::from(short), 2),
        };
        let control = matches!(opcode, Some(Opcode::Close | Opcode::Ping | Opcode::Pong));
        if control && (!end || length > 125) {
            return Err(FrameError::Control);
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > MESSAGE_BYTES {
            return Err(FrameError::TooLong);
        }
        let mut mask = [0; 4];
        if masked {
            match self.bytes.get(at..at + 4) {
                Some(bytes) => mask.copy_from_slice(bytes),
                None => return Ok(None),
            }
            at += 4;
        }
        let Some(payload) = self.bytes.get(at..at + length) else { return Ok(None) };
        let payload = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        self.bytes.drain(..at + length);
        Ok(Some(Frame { end, opcode, payload }))
    }
}

struct Frame {
    end: bool,
    /// The type of the message; `None` for a continuation.
    opcode: Option<Opcode>,
    payload: Vec<u8>,
}

/// Encodes a message as one frame. A client must pass a mask. Random masks protect proxies; on a unix socket there is
/// no proxy, so any mask is sufficient.
pub fn encode(opcode: Opcode, parts: &[&[u8]], mask: Option<[u8; 4]>) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut frame = Vec::with_capacity(length + 14);
    frame.push(
        0x80 | match opcode {
            Opcode::Text => 1,
            Opcode::Binary => 2,
            Opcode::Close => 8,
            Opcode::Ping => 9,
            Opcode::Pong => 10,
        },
    );
    let bit = if mask.is_some() { 0x80 } else { 0 };
    match length {
        0..=125 => frame.push(bit | length as u8),
        126..=0xffff => {
            frame.push(bit | 126);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            frame.push(bit | 127);
            frame.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    let mask = mask.inspect(|mask| frame.extend_from_slice(mask)).unwrap_or_default();
    let payload = parts.iter().copied().flatten().zip(mask.iter().cycle());
    frame.extend(payload.map(|(byte, mask)| byte ^ mask));
    frame
}

/// `Sec-WebSocket-Accept` for a client's `Sec-WebSocket-Key`.
pub fn accept_key(key: &str) -> String {
    let mut hash = Sha1::new();
    hash.update(key.as_bytes());
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    BASE64.encode(&hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes all messages in `bytes`, pushed in pieces of several sizes.
    fn decode(role: Role, bytes: &[u8]) -> Result<Vec<Message>, FrameError> {
        let mut results = Vec::new();
        for piece in [1, 2, 7, bytes.len().max(1)] {
            let mut decoder = Decoder::new(role);
            let mut messages = Vec::new();
            let result = (|| {
                for bytes in bytes.chunks(piece) {
                    decoder.push(bytes);
                    while let Some(message) = decoder.message()? {
                        messages.push(message);
                    }
                }
                Ok(messages)
            })();
            results.push(result);
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{results:?}");
        results.remove(0)
    }

    fn binary(payload: &[u8]) -> Message {
        Message { opcode: Opcode::Binary, payload: payload.to_vec() }
    }

    #[test]
    fn encoded_messages_are_decoded_to_the_same_messages() {
        for length in [0, 1, 125, 126, 1000, 65_535, 65_536, 100_000] {
            let payload: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            let masked = encode(Opcode::Binary, &[&payload], Some([1, 2, 3, 4]));
            let plain = encode(Opcode::Binary, &[&payload[..length / 2], &payload[length / 2..]], None);
            let mut decoder = Decoder::new(Role::Server);
            decoder.push(&masked);
            assert_eq!(decoder.message(), Ok(Some(binary(&payload))), "{length}");
            let mut decoder = Decoder::new(Role::Client);
            decoder.push(&plain);
            assert_eq!(decoder.message(), Ok(Some(binary(&payload))), "{length}");
        }
    }

    #[test]
    fn the_examples_of_the_rfc_are_read() {
        let hello = Message { opcode: Opcode::Text, payload: b"Hello".to_vec() };
        let masked = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
        assert_eq!(decode(Role::Server, &masked), Ok(vec![hello.clone()]));
        let fragmented = [0x01, 0x03, 0x48, 0x65, 0x6c, 0x89, 0x00, 0x80, 0x02, 0x6c, 0x6f];
        let ping = Message { opcode: Opcode::Ping, payload: Vec::new() };
        assert_eq!(decode(Role::Client, &fragmented), Ok(vec![ping, hello]));
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn websocket_protocol_violations_are_rejected() {
        for (bytes, expected) in [
            (&[0xc2, 0x00][..], FrameError::Reserved),
            (&[0x83, 0x00], FrameError::Reserved),
            (&[0x82, 0x80, 0, 0, 0, 0], FrameError::Mask),
            (&[0x09, 0x00], FrameError::Control),
            (&[0x89, 126, 0, 200], FrameError::Control),
            (&[0x80, 0x00], FrameError::Fragment),
            (&[0x02, 0x00, 0x82, 0x00], FrameError::Fragment),
            (&[0x82, 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], FrameError::TooLong),
        ] {
            assert_eq!(decode(Role::Client, bytes), Err(expected), "{bytes:x?}");
        }
        assert_eq!(decode(Role::Server, &[0x82, 0x00]), Err(FrameError::Mask));
        // Small pieces without an end.
        let mut decoder = Decoder::new(Role::Client);
        decoder.push(&[0x02, 0x00]);
        let mut piece = vec![0x00, 127];
        piece.extend_from_slice(&100_000u64.to_be_bytes());
        piece.extend_from_slice(&vec![0; 100_000]);
        let refused = (0..10).find_map(|_| {
            decoder.push(&piece);
            decoder.message().err()
        });
        assert_eq!(refused, Some(FrameError::TooLong));
    }
}
