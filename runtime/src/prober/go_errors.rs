//! The texts of Go's HTTP client, with which a kubelet reports failed probes.

use std::io;

use nix::errno::Errno;
use nodlet_wire::http::HttpError;
use nodlet_wire::tls::TlsError;

/// Error for a server that responds to a TLS handshake with HTTP.
pub(super) const NO_TLS: &str = "http: server gave HTTP response to HTTPS client";

/// Returns the message for an error of an operation, such as `read`, on a connection between `ends`.
pub(super) fn stream(operation: &str, ends: &str, error: &HttpError) -> String {
    match error {
        HttpError::Io(error) => format!("{operation} tcp{ends}: {operation}: {}", io(error)),
        error => body(error),
    }
}

/// Returns the message for a head that could not be read. `buffered` are the bytes of the head.
pub(super) fn head(ends: &str, error: &HttpError, buffered: &[u8]) -> String {
    let what = match error {
        HttpError::Ended if buffered.is_empty() => return "EOF".to_owned(),
        HttpError::Ended if buffered.starts_with(b"HTTP/") => "unexpected EOF".to_owned(),
        HttpError::Ended | HttpError::Malformed("status line") => {
            let line = buffered.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
            format!("malformed HTTP response {:?}", String::from_utf8_lossy(&line[..line.len().min(100)]))
        }
        HttpError::TooLarge => "server response headers exceeded 65536 bytes; aborted".to_owned(),
        HttpError::Malformed("header") => "malformed MIME header line".to_owned(),
        HttpError::Malformed("number of informational responses") => {
            "too many 1xx informational responses".to_owned()
        }
        HttpError::Malformed("Content-Length") => "bad Content-Length".to_owned(),
        HttpError::Malformed("Transfer-Encoding") => "unsupported transfer encoding".to_owned(),
        error => return stream("read", ends, error),
    };
    format!("net/http: HTTP/1.x transport connection broken: {what}")
}

/// Returns the message for a body that could not be read.
pub(super) fn body(error: &HttpError) -> String {
    match error {
        HttpError::Io(error) => io(error),
        HttpError::Ended | HttpError::Tls(TlsError::Ended) => "unexpected EOF".to_owned(),
        HttpError::Tls(error) => tls(error),
        HttpError::TooLarge => "header line too long".to_owned(),
        HttpError::Malformed("chunk size") => "invalid byte in chunk length".to_owned(),
        HttpError::Malformed("end of a chunk") => "malformed chunked encoding".to_owned(),
        HttpError::Malformed(_) => "chunked encoding contains too much non-data".to_owned(),
    }
}

/// Returns the message for an error of the kernel: its text in lower case, without the number.
pub(super) fn io(error: &io::Error) -> String {
    let Some(number) = error.raw_os_error() else { return error.to_string() };
    let text = Errno::from_raw(number).desc();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_ascii_lowercase().to_string() + letters.as_str()).unwrap_or_default()
}

/// Returns the message for an error of TLS, if Go detects the same one.
pub(super) fn tls(error: &TlsError) -> String {
    match error {
        TlsError::Io(error) => io(error),
        TlsError::Ended => "EOF".to_owned(),
        TlsError::NoTls([b'H', b'T', b'T', b'P', b'/']) => NO_TLS.to_owned(),
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
