//! The channels of a process on one connection: messages of a WebSocket, or streams of SPDY/3.1, which API servers
//! before 1.36 and kubectl before 1.31 use. Read next: `api/streams.rs`, which transfers their bytes.

use std::time::Duration;

use serde_json::Value;

use super::upgrade::{Carrier, Client};
use nodlet_wire::spdy::{self, Frame, SpdyError};
use nodlet_wire::timeout::within;
use nodlet_wire::websocket::{self, CLOSE, ERROR, FrameError, Opcode, STDERR, STDOUT};

/// The time for a client of SPDY to open its streams, as with a kubelet.
const OPEN_WITHIN: Duration = Duration::from_secs(30);

/// The number of bytes that are read from a client at a time.
pub(super) const PIECE: usize = 32 * 1024;

/// The channels by number, in SPDY's words (`streamType`).
const CHANNELS: [&str; 5] = ["stdin", "stdout", "stderr", "error", "resize"];

/// A message of a client.
#[derive(Debug)]
pub(super) enum Received {
    /// Bytes of a channel.
    Data(u8, Vec<u8>),
    /// A channel has ended.
    End(u8),
    /// A request that is answered with these bytes.
    Reply(Vec<u8>),
    /// The client ends the connection.
    Close,
}

/// How bytes of a channel are sent. A copy can be taken once all channels are open.
#[derive(Clone, Copy)]
pub(super) enum Framing {
    WebSocket {
        /// Whether the result is a `Status`: since v4.
        has_status: bool,
    },
    /// The number of the stream of each channel, 0 if it is not open.
    Spdy([u32; CHANNELS.len()]),
}

impl Framing {
    /// Bytes of a channel.
    pub(super) fn data(self, channel: u8, bytes: &[u8]) -> Vec<u8> {
        match self {
            Framing::WebSocket { .. } => websocket::encode(Opcode::Binary, &[&[channel], bytes], None),
            Framing::Spdy(streams) => match streams[usize::from(channel)] {
                0 => Vec::new(),
                stream => spdy::data(stream, bytes, false),
            },
        }
    }

    /// The last bytes on the connection: the status, and the end of all channels.
    pub(super) fn end(self, status: &Value) -> Vec<u8> {
        let text = status.to_string();
        match self {
            Framing::WebSocket { has_status } => {
                let result = match &status["message"] {
                    _ if has_status => self.data(ERROR, text.as_bytes()),
                    Value::String(why) => self.data(ERROR, why.as_bytes()),
                    // Success has no message.
                    _ => Vec::new(),
                };
                let close = websocket::encode(Opcode::Close, &[&1000u16.to_be_bytes()], None);
                [result, close].concat()
            }
            Framing::Spdy(streams) => {
                let end = |channel: u8, bytes: &[u8]| match streams[usize::from(channel)] {
                    0 => Vec::new(),
                    stream => spdy::data(stream, bytes, true),
                };
                [end(STDOUT, &[]), end(STDERR, &[]), end(ERROR, text.as_bytes())].concat()
            }
        }
    }
}

/// The channels of a client.
pub(super) struct Channels {
    carrier: Carrier,
    decoder: spdy::Decoder,
    encoder: spdy::Encoder,
    framing: Framing,
    /// A channel whose last bytes were returned.
    ended: Option<u8>,
}

/// The client sent bytes that are no frames, and the connection must be closed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChannelError {
    #[error(transparent)]
    WebSocket(FrameError),
    #[error(transparent)]
    Spdy(SpdyError),
}

impl Channels {
    pub(super) fn new(carrier: Carrier) -> Channels {
        let framing = match carrier {
            Carrier::WebSocket { protocol, .. } => {
                Framing::WebSocket { has_status: protocol != websocket::FIRST }
            }
            Carrier::Spdy(_) => Framing::Spdy([0; CHANNELS.len()]),
        };
        let (decoder, encoder) = (spdy::Decoder::default(), spdy::Encoder::default());
        Channels { carrier, decoder, encoder, framing, ended: None }
    }

    /// Waits until the client has opened the channel of errors, and as many others as are `wanted`.
    pub(super) async fn open(&mut self, client: &Client, wanted: usize) -> Option<Framing> {
        let opened = async {
            loop {
                let is_open = match &self.framing {
                    Framing::WebSocket { .. } => true,
                    Framing::Spdy(streams) => {
                        streams[usize::from(ERROR)] != 0
                            && streams.iter().filter(|stream| **stream != 0).count() > wanted
                    }
                };
                if is_open {
                    return Some(self.framing);
                }
                match self.next().ok()? {
                    Some(Received::Reply(reply)) => client.write_all(&reply).await.ok()?,
                    // Bytes before all channels are open: no client sends any.
                    Some(_) => return None,
                    None => self.read(client).await?,
                }
            }
        };
        within(OPEN_WITHIN, opened).await.flatten()
    }

    /// Reads more bytes; `None` if the client is gone.
    pub(super) async fn read(&mut self, client: &Client) -> Option<()> {
        let mut piece = vec![0; PIECE];
        match client.read(&mut piece).await {
            Ok(0) | Err(_) => None,
            Ok(read) => {
                self.carrier.push(&piece[..read]);
                Some(())
            }
        }
    }

    /// The next complete part of what the client sent. An error ends the connection.
    pub(super) fn next(&mut self) -> Result<Option<Received>, ChannelError> {
        if let Some(channel) = self.ended.take() {
            return Ok(Some(Received::End(channel)));
        }
        let messages = match &mut self.carrier {
            Carrier::WebSocket { messages, .. } => messages,
            Carrier::Spdy(bytes) => {
                self.decoder.push(&std::mem::take(bytes));
                return self.next_of_spdy();
            }
        };
        while let Some(message) = messages.message().map_err(ChannelError::WebSocket)? {
            match (message.opcode, message.payload.split_first()) {
                (Opcode::Close, _) => return Ok(Some(Received::Close)),
                (Opcode::Ping, _) => {
                    let pong = websocket::encode(Opcode::Pong, &[&message.payload], None);
                    return Ok(Some(Received::Reply(pong)));
                }
                (Opcode::Binary, Some((&CLOSE, [channel]))) => return Ok(Some(Received::End(*channel))),
                (Opcode::Binary, Some((channel, bytes))) => {
                    return Ok(Some(Received::Data(*channel, bytes.to_vec())));
                }
                (Opcode::Binary | Opcode::Text | Opcode::Pong, _) => {}
            }
        }
        Ok(None)
    }

    fn next_of_spdy(&mut self) -> Result<Option<Received>, ChannelError> {
        let Framing::Spdy(streams) = &mut self.framing else { return Ok(None) };
        while let Some(frame) = self.decoder.frame().map_err(ChannelError::Spdy)? {
            let channel_of =
                |stream| streams.iter().position(|open| *open == stream).map(|channel| channel as u8);
            match frame {
                Frame::Open { stream, headers, .. } => {
                    let header = headers.iter().find(|(name, _)| name == "streamtype");
                    let kind = header.and_then(|(_, kind)| CHANNELS.iter().position(|known| known == kind));
                    let free = kind.and_then(|kind| streams.get_mut(kind)).filter(|open| **open == 0);
                    return Ok(Some(Received::Reply(match free {
                        Some(free) if stream != 0 => {
                            *free = stream;
                            self.encoder.reply(stream)
                        }
                        _ => spdy::refuse(stream),
                    })));
                }
                Frame::Data { stream, bytes, fin } => {
                    let Some(channel) = channel_of(stream) else { continue };
                    self.ended = fin.then_some(channel);
                    return Ok(Some(Received::Data(channel, bytes)));
                }
                Frame::Reset { stream } => {
                    if let Some(channel) = channel_of(stream) {
                        return Ok(Some(Received::End(channel)));
                    }
                }
                Frame::Ping { id } => return Ok(Some(Received::Reply(spdy::pong(id)))),
                Frame::GoAway | Frame::Other => {}
            }
        }
        Ok(None)
    }
}
