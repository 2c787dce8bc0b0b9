//! A minimal client of the local API: one request over the unix socket, one JSON object back. Written by
//! hand, so that the tests do not depend on nodlet's own client.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// Sends a GET. Returns the status code and the body, which is `Null` if it is not JSON.
pub(crate) fn get(socket: &Path, path: &str) -> io::Result<(u16, Value)> {
    request(socket, "GET", path, None)
}

pub(crate) fn request(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> io::Result<(u16, Value)> {
    send(socket, method, path, &body.map(Value::to_string).unwrap_or_default())
}

/// Sends a request with any body. Returns the status code and the body of the response.
pub(crate) fn send(socket: &Path, method: &str, path: &str, body: &str) -> io::Result<(u16, Value)> {
    send_as(socket, method, path, "application/json", body)
}

/// Sends a request with a body of another content type to an API on this socket. Returns the status code and the body of
/// the response, which is `Null` if it is not JSON.
///
/// # Errors
/// Nothing answers, or what answers is no HTTP.
pub fn send_as(socket: &Path, method: &str, path: &str, kind: &str, body: &str) -> io::Result<(u16, Value)> {
    let (code, body) = exchange(socket, method, path, kind, body)?;
    Ok((code, serde_json::from_slice(&body).unwrap_or(Value::Null)))
}

/// Sends a request with a body of a content type, for an answer in another. Returns the status code, the headers in lower
/// case, and the body of the response, of which only the first line if it has several.
///
/// # Errors
/// Nothing answers, or what answers is no HTTP.
pub fn send_for_headers(
    socket: &Path,
    method: &str,
    path: &str,
    (kind, accept): (&str, &str),
    body: &str,
) -> io::Result<(u16, String, Value)> {
    let (code, head, body) = whole_exchange(socket, method, path, (kind, accept), body)?;
    let line = body.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let value = serde_json::from_slice(&body).or_else(|_| serde_json::from_slice(line));
    Ok((code, head, value.unwrap_or(Value::Null)))
}

/// Sends a request. Returns the status code and the body of the response as they are.
pub(crate) fn exchange(
    socket: &Path,
    method: &str,
    path: &str,
    kind: &str,
    body: &str,
) -> io::Result<(u16, Vec<u8>)> {
    let (code, _, body) = whole_exchange(socket, method, path, (kind, "application/json"), body)?;
    Ok((code, body))
}

fn whole_exchange(
    socket: &Path,
    method: &str,
    path: &str,
    (kind, accept): (&str, &str),
    body: &str,
) -> io::Result<(u16, String, Vec<u8>)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let written = write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\
         Content-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        // A proxy that has answered closes the connection, though it has not read the body.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !answer.is_empty() => {}
        ended => drop(ended?),
    }
    // So does a server that answers by the head of the request alone.
    if answer.is_empty() {
        written?;
    }
    let (code, body) = split(&answer).ok_or_else(|| io::Error::other("that is no HTTP answer"))?;
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_default();
    // Names of headers are compared in lower case, their values as they are.
    let lower = |line: &str| {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        format!("{}:{value}\n", name.to_ascii_lowercase())
    };
    Ok((code, String::from_utf8_lossy(&answer[..head]).lines().map(lower).collect(), body))
}

fn split(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = str::from_utf8(&answer[..end]).ok()?.to_ascii_lowercase();
    let code = head.split_whitespace().nth(1)?.parse().ok()?;
    let rest = &answer[end + 4..];
    if !head.contains("transfer-encoding: chunked") {
        return Some((code, rest.to_vec()));
    }
    let (mut body, mut rest) = (Vec::new(), rest);
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n")?;
        let length = usize::from_str_radix(str::from_utf8(&rest[..line]).ok()?.trim(), 16).ok()?;
        if length == 0 {
            return Some((code, body));
        }
        body.extend_from_slice(rest.get(line + 2..line + 2 + length)?);
        rest = rest.get(line + 2 + length + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_whole_and_in_chunks() {
        let whole = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(split(whole), Some((404, b"{}".to_vec())));
        let chunked =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"a\r\n4\r\n\":1}\r\n0\r\n\r\n";
        assert_eq!(split(chunked), Some((200, b"{\"a\":1}".to_vec())));
        assert_eq!(split(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{}"), None);
    }
}
