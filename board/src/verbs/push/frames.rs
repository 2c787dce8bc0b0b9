//! The protocol between a push and a board: messages, which are JSON, and pieces of layers.
//!
//! Each is a frame: a byte for its kind, four bytes for its length, the most significant first, and that many
//! bytes. `docs/push.md` has the messages.

use std::io::{self, Read, Write};

use serde_json::Value;

/// The version of the protocol.
pub(crate) const VERSION: u64 = 1;

/// The most bytes of a message: documents and manifests of a push must fit, and the board's memory must
/// suffice.
pub(crate) const MESSAGE_MAX: usize = 4 * 1024 * 1024;

/// The most values in one message: a thousand manifests.
const VALUES_MAX: usize = 100_000;

/// The most bytes of a piece of a layer.
pub(crate) const PIECE_MAX: usize = 64 * 1024;

const MESSAGE: u8 = b'm';
const PIECE: u8 = b'p';

/// A received frame.
#[derive(Debug, PartialEq)]
pub(crate) enum Frame {
    Message(Value),
    Piece(Vec<u8>),
}

/// The reading and the writing end of a connection.
pub(crate) struct Wire<R, W> {
    pub(crate) from: R,
    pub(crate) to: W,
}

impl<R: Read, W: Write> Wire<R, W> {
    pub(crate) fn send(&mut self, message: &Value) -> io::Result<()> {
        let bytes = message.to_string().into_bytes();
        if bytes.len() > MESSAGE_MAX {
            Err(invalid("a message is longer than the maximum"))
        } else {
            self.frame(MESSAGE, &bytes)
        }
    }

    pub(crate) fn piece(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.frame(PIECE, bytes)
    }

    fn frame(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).map_err(|_| invalid("a frame is too long"))?;
        let mut frame = Vec::with_capacity(5 + bytes.len());
        frame.push(kind);
        frame.extend(length.to_be_bytes());
        frame.extend(bytes);
        self.to.write_all(&frame)?;
        self.to.flush()
    }

    pub(crate) fn receive(&mut self) -> io::Result<Frame> {
        let mut head = [0; 5];
        self.from.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let length = u32::from_be_bytes(length) as usize;
        let most = match kind {
            MESSAGE => MESSAGE_MAX,
            PIECE => PIECE_MAX,
            _ => return Err(invalid("not a push: a frame must begin with the byte m or p")),
        };
        if length > most {
            return Err(invalid("a frame is longer than the maximum"));
        }
        // The buffer grows with the data that arrives: a length alone costs no memory.
        let mut bytes = Vec::new();
        (&mut self.from).take(length as u64).read_to_end(&mut bytes)?;
        if bytes.len() < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(match kind {
            PIECE => Frame::Piece(bytes),
            _ if values(&bytes) > VALUES_MAX => {
                return Err(invalid("a message has too many values: send the manifests in parts"));
            }
            _ => Frame::Message(serde_json::from_slice(&bytes)?),
        })
    }

    /// Receives a message where no piece is allowed.
    pub(crate) fn message(&mut self) -> io::Result<Value> {
        match self.receive()? {
            Frame::Message(message) => Ok(message),
            Frame::Piece(_) => Err(invalid("expected a message, got a piece of a layer")),
        }
    }
}

/// An upper bound of the number of values in a JSON message. In memory a value takes up to a hundred times
/// its bytes in the message.
fn values(message: &[u8]) -> usize {
    let (mut values, mut in_text, mut escaped) = (1, false, false);
    for byte in message {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    values
}

pub(crate) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn receive(bytes: &[u8]) -> io::Result<Frame> {
        Wire { from: bytes, to: io::sink() }.receive()
    }

    #[test]
    fn a_message_with_too_many_values_is_rejected() {
        assert_eq!(values(br#"{"a,[{": [1, 2, {"b\"": "\\"}], "c": []}"#), 8);
        let receive = |values: usize| {
            let text = format!("[{}]", vec!["0"; values].join(","));
            receive(
                &[&b"m"[..], &u32::try_from(text.len()).expect("small").to_be_bytes(), text.as_bytes()]
                    .concat(),
            )
        };
        assert!(matches!(receive(VALUES_MAX - 1), Ok(Frame::Message(_))));
        assert_eq!(receive(VALUES_MAX + 1).err().map(|error| error.kind()), Some(io::ErrorKind::InvalidData));
    }

    #[test]
    fn push_frames_round_trip_and_malformed_frames_are_rejected() {
        let mut said = Wire { from: io::empty(), to: Vec::new() };
        said.send(&json!({"a": 1})).expect("memory");
        said.piece(b"xyz").expect("memory");
        let mut heard = Wire { from: &said.to[..], to: io::sink() };
        assert_eq!(heard.receive().expect("whole"), Frame::Message(json!({"a": 1})));
        assert_eq!(heard.receive().expect("whole"), Frame::Piece(b"xyz".to_vec()));
        for end in 0..said.to.len() - 8 {
            let error = receive(&said.to[..end.min(11)]).expect_err("cut off");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{end}");
        }
        for wrong in
            [&b"x\0\0\0\0"[..], b"p\xff\xff\xff\xff", b"m\x01\0\0\0", b"m\0\0\0\x02{]", b"GET / HTTP"]
        {
            assert_eq!(receive(wrong).expect_err("refused").kind(), io::ErrorKind::InvalidData, "{wrong:?}");
        }
        assert!(Wire { from: &b"p\0\0\0\0"[..], to: io::sink() }.message().is_err());
    }
}
