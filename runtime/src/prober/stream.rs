//! The connection of a probe to a server: plain TCP, or TLS over it.

use std::io;
use std::net::TcpStream;

use smol::Async;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use nodlet_wire::tls::{Client, TlsError};

/// A connection, with or without TLS.
pub(super) enum Stream {
    Plain(Async<TcpStream>),
    Tls(Box<Client>),
}

/// The error of a connection that can no longer be read or written.
#[derive(Debug)]
pub(super) enum StreamError {
    Io(io::Error),
    /// The connection ended without TLS's `close_notify`.
    Cut,
    /// An error of TLS, with Go's message.
    Tls(String),
}

impl Stream {
    /// Returns the TCP socket of the connection.
    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(stream) => stream.get_ref(),
            Stream::Tls(client) => client.socket(),
        }
    }

    /// Reads the available bytes into `buffer`, and returns their number; 0 at the end.
    pub(super) async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, StreamError> {
        match self {
            Stream::Plain(stream) => {
                // As with TLS: a server that always has data must not occupy the thread.
                smol::future::yield_now().await;
                stream.read(buffer).await.map_err(StreamError::Io)
            }
            Stream::Tls(client) => client.read(buffer).await.map_err(error),
        }
    }

    /// Writes all of `bytes`.
    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        match self {
            Stream::Plain(stream) => stream.write_all(bytes).await.map_err(StreamError::Io),
            Stream::Tls(client) => client.write_all(bytes).await.map_err(error),
        }
    }
}

fn error(error: TlsError) -> StreamError {
    match error {
        TlsError::Io(error) => StreamError::Io(error),
        TlsError::Ended => StreamError::Cut,
        TlsError::NoTls(_) | TlsError::Useless | TlsError::Failed(_) => {
            StreamError::Tls(in_gos_words(&error))
        }
    }
}

/// Returns the message of Go's client for an error of TLS, if both detect the same error.
pub(super) fn in_gos_words(error: &TlsError) -> String {
    match error {
        TlsError::Io(error) => super::describe(error),
        TlsError::Ended => "EOF".to_owned(),
        TlsError::NoTls([b'H', b'T', b'T', b'P', b'/']) => super::NO_TLS.to_owned(),
        TlsError::NoTls(_) => "tls: first record does not look like a TLS handshake".to_owned(),
        TlsError::Useless => "tls: too many non-advancing records".to_owned(),
        TlsError::Failed(rustls::Error::AlertReceived(alert)) => {
            let number = u8::from(*alert);
            match ALERTS.iter().find(|(known, _)| *known == number) {
                Some((_, text)) => format!("remote error: tls: {text}"),
                None => format!("remote error: tls: alert({number})"),
            }
        }
        TlsError::Failed(error) => format!("tls: {error}"),
    }
}

/// The texts of TLS alerts (Go: `alertText`).
const ALERTS: &[(u8, &str)] = &[
    (0, "close notify"),
    (10, "unexpected message"),
    (20, "bad record MAC"),
    (21, "decryption failed"),
    (22, "record overflow"),
    (30, "decompression failure"),
    (40, "handshake failure"),
    (42, "bad certificate"),
    (43, "unsupported certificate"),
    (44, "revoked certificate"),
    (45, "expired certificate"),
    (46, "unknown certificate"),
    (47, "illegal parameter"),
    (48, "unknown certificate authority"),
    (49, "access denied"),
    (50, "error decoding message"),
    (51, "error decrypting message"),
    (60, "export restriction"),
    (70, "protocol version not supported"),
    (71, "insufficient security level"),
    (80, "internal error"),
    (86, "inappropriate fallback"),
    (90, "user canceled"),
    (100, "no renegotiation"),
    (109, "missing extension"),
    (110, "unsupported extension"),
    (111, "certificate unobtainable"),
    (112, "unrecognized name"),
    (113, "bad certificate status response"),
    (114, "bad certificate hash value"),
    (115, "unknown PSK identity"),
    (116, "certificate required"),
    (120, "no application protocol"),
    (121, "encrypted client hello required"),
];

#[cfg(test)]
mod tests;
