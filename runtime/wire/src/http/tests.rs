//! Responses as bytes, cut at each place.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;

/// What a client got for a response: status and body, or the error.
type Got = Result<(u16, String), String>;

const GET: Request<'_> = Request { method: "GET", target: "/", host: "example", headers: &[], body: &[] };

/// Sends a request to a server that answers with `response` and closes. Returns the client's connection as well.
fn ask(request: &Request<'_>, response: &[u8]) -> (Got, Connection, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let response = response.to_vec();
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a client");
        let mut seen = vec![0; 4096];
        let count = socket.read(&mut seen).expect("a request");
        seen.truncate(count);
        // A client that has its error may be gone.
        let _ = socket.write_all(&response);
        seen
    });
    smol::block_on(async {
        let socket = Async::<TcpStream>::connect(address).await.expect("a connection");
        let mut connection = Connection::new(Stream::Plain(socket));
        let got = async {
            let head = connection.send(request).await?;
            let body = connection.body(64).await?;
            Ok((head.status, String::from_utf8_lossy(&body).into_owned()))
        };
        let got = got.await.map_err(|error: HttpError| error.to_string());
        (got, connection, server.join().expect("the server"))
    })
}

#[track_caller]
fn check(response: &str, expected: Result<(u16, &str), &str>) {
    let (got, ..) = ask(&GET, response.as_bytes());
    assert_eq!(
        got,
        expected.map(|(status, body)| (status, body.to_owned())).map_err(str::to_owned),
        "{response:?}"
    );
}

const CHUNKED: &str =
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX: y\r\n\r\n";

#[test]
fn bodies_have_a_length_are_chunked_or_end_with_the_connection() {
    check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", Ok((200, "hello")));
    check("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n", Ok((201, "")));
    check(CHUNKED, Ok((200, "hello world")));
    check("HTTP/1.1 500 Oh\r\n\r\nwhy", Ok((500, "why")));
    check("HTTP/1.1 204 No Content\r\n\r\n", Ok((204, "")));
    check("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", Ok((304, "")));
    check("HTTP/1.0 200\nContent-Length: 1\n\nx", Ok((200, "x")));
    let head = Request { method: "HEAD", ..GET };
    let (got, connection, _) = ask(&head, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    assert_eq!((got, connection.is_reusable()), (Ok((200, String::new())), true));
    let connect = Request { method: "CONNECT", ..GET };
    let (got, connection, _) = ask(&connect, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    assert!(got == Ok((200, String::new())) && connection.into_stream().is_some());
}

#[test]
fn invalid_and_large_responses_are_errors() {
    check("SSH-2.0-x\r\n", Err("the response has an invalid status line"));
    check("HTTP/1.1 20 OK\r\n\r\n", Err("the response has an invalid status line"));
    check("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", Err("the response has an invalid Content-Length"));
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    check(&format!("{chunked}+5\r\nhello\r\n"), Err("the response has an invalid chunk size"));
    check(&format!("{chunked}5\r\nhelloworld\r\n"), Err("the response has an invalid end of a chunk"));
    check(&format!("{chunked}{}", "1".repeat(600)), Err("the response has an invalid chunk size"));
    check(&format!("{chunked}5;{}", "x".repeat(5000)), Err("the response is too large"));
    check(
        &format!("{chunked}{}", format!("1;{}\r\nx\r\n", "x".repeat(4000)).repeat(5)),
        Err("the response has an invalid number of bytes between chunks"),
    );
    check(&format!("{chunked}0\r\n{}", "X: y\r\n".repeat(3000)), Err("the response is too large"));
    check(&format!("{chunked}ffffffffff\r\n{}", "x".repeat(100)), Err("the response is too large"));
    let head = |headers: &str| format!("HTTP/1.1 200 OK\r\n{headers}");
    check(&head(&format!("X: {}", "x".repeat(64 * 1024))), Err("the response is too large"));
    check(&head(&format!("{}\r\n", "X: y\r\n".repeat(257))), Err("the response is too large"));
    check(&head("no colon\r\n\r\n"), Err("the response has an invalid header"));
    check(&head("Transfer-Encoding: gzip\r\n\r\n"), Err("the response has an invalid Transfer-Encoding"));
    let two = "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab";
    check(&head(two), Err("the response has an invalid Content-Length"));
    check(
        &"HTTP/1.1 102 Processing\r\n\r\n".repeat(9),
        Err("the response has an invalid number of informational responses"),
    );
}

#[test]
fn parts_that_are_too_large_are_errors_however_many_bytes_arrive_at_once() {
    let value = |length: usize| "x".repeat(length);
    let of_head = |length| format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: {}\r\n\r\n", value(length));
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let of_line = |length| format!("{chunked}1;{}\r\nx\r\n0\r\n\r\n", value(length));
    let of_trailers = |length| format!("{chunked}0\r\nX: {}\r\n\r\n", value(length));
    let read = |response: &str, at_once: usize| {
        let (mut reader, mut pieces) = (Reader::new("GET"), response.as_bytes().chunks(at_once));
        let mut next = |reader: &mut Reader| reader.push(pieces.next().expect("a whole response"));
        while reader.head()?.is_pending() {
            next(&mut reader);
        }
        loop {
            match reader.piece(64)? {
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => return Ok::<(), HttpError>(()),
                Poll::Pending => next(&mut reader),
            }
        }
    };
    let cases: [(&dyn Fn(usize) -> String, usize); 3] =
        [(&of_head, 64 * 1024), (&of_line, 4 * 1024), (&of_trailers, 8 * 1024)];
    for (response, limit) in cases {
        for at_once in [1000, usize::MAX] {
            assert!(read(&response(limit - 64), at_once).is_ok(), "{limit} {at_once}");
            let result = read(&response(limit), at_once);
            assert!(matches!(result, Err(HttpError::TooLarge)), "{limit} {at_once}: {result:?}");
        }
    }
}

#[test]
fn a_response_that_is_cut_is_never_taken_for_a_whole_one() {
    for end in 0..CHUNKED.len() {
        let (got, ..) = ask(&GET, &CHUNKED.as_bytes()[..end]);
        assert_eq!(got, Err("the server closed the connection".to_owned()), "{end}");
    }
}

#[test]
fn bytes_of_another_protocol_follow_the_head_of_an_upgrade() {
    let mut reader = Reader::new("GET");
    reader.push(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nhello");
    let Ok(Poll::Ready(head)) = reader.head() else { panic!("no head") };
    assert_eq!((head.status, head.header("upgrade")), (101, Some("x")));
    assert!(matches!(reader.piece(8), Ok(Poll::Ready(None))));
    assert_eq!(reader.buffered(), b"hello");
    assert!(!reader.is_reusable());
}

#[test]
fn any_bytes_are_read_alike_however_they_are_cut() {
    let parts = [
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 100 C\r\n\r\n",
        "HTTP/1.0 404\n",
        "Content-Length: 3\r\n",
        "X: y\r\n",
        "\r\n",
        "\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "3\r\nabc\r\n",
        "2;x\r\nab\r\n",
        "0\r\n",
        "abc",
        "\r",
        "\0",
    ];
    let read = |bytes: &[u8], size: usize| {
        let (mut reader, mut pieces) = (Reader::new("GET"), bytes.chunks(size));
        let mut fill = |reader: &mut Reader| match pieces.next() {
            Some(piece) => {
                reader.push(piece);
                Ok(())
            }
            None => reader.end(),
        };
        let head = loop {
            match reader.head()? {
                Poll::Ready(head) => break head,
                Poll::Pending => fill(&mut reader)?,
            }
        };
        let mut body = Vec::new();
        loop {
            match reader.piece(2)? {
                Poll::Ready(Some(piece)) => body.extend(piece),
                Poll::Ready(None) => return Ok((head, body)),
                Poll::Pending => fill(&mut reader)?,
            }
        }
    };
    let read = |bytes: &[u8], size| read(bytes, size).map_err(|error: HttpError| error.to_string());
    let mut random = nodlet_fuzz::Random::of(34);
    for _ in 0..5000 {
        let text: String = (0..random.below(9)).map(|_| *random.pick(&parts)).collect();
        let whole = read(text.as_bytes(), usize::MAX);
        for size in [1, 2, 7] {
            assert_eq!(read(text.as_bytes(), size), whole, "{text:?} by {size}");
        }
    }
}

#[test]
fn a_connection_is_reusable_after_a_whole_response() {
    let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let post = Request { method: "POST", headers: &[("Accept", "a/b")], body: b"text", ..GET };
    let (got, connection, seen) = ask(&post, whole);
    assert_eq!(got, Ok((200, "ok".to_owned())));
    assert!(connection.is_reusable());
    let expected = "POST / HTTP/1.1\r\nHost: example\r\nAccept: a/b\r\nContent-Length: 4\r\n\r\ntext";
    assert_eq!(String::from_utf8_lossy(&seen), expected);
    let (_, connection, _) =
        ask(&GET, b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
    assert!(!connection.is_reusable());
    let (_, connection, _) = ask(&GET, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok");
    assert!(!connection.is_reusable());
    let (_, connection, _) = ask(&GET, b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nokHTTP/1.1 200 OK\r\n");
    assert!(!connection.is_reusable(), "its next response would be that of nobody's request");
}

#[test]
fn a_watch_is_read_line_by_line() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a client");
        assert!(socket.read(&mut [0; 4096]).expect("a request") > 0);
        let lines = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{a}\r\n4\r\n\n{b}\r\n5\r\n\n{c}\n\r\n0\r\n\r\n";
        socket.write_all(lines.as_bytes()).expect("a response");
    });
    smol::block_on(async {
        let socket = Async::<TcpStream>::connect(address).await.expect("a connection");
        let mut connection = Connection::new(Stream::Plain(socket));
        connection.send(&GET).await.expect("a head");
        for expected in ["{a}", "{b}", "{c}"] {
            let line = connection.line(16).await.expect("a line").expect("one more");
            assert_eq!(String::from_utf8_lossy(&line), expected);
        }
        assert_eq!(connection.line(16).await.expect("the end"), None);
        assert!(connection.is_reusable());
    });
    server.join().expect("the server");
}

#[test]
fn a_read_that_is_dropped_at_any_byte_loses_none() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let (ask, asked) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a client");
        socket.set_nodelay(true).expect("a socket");
        assert!(socket.read(&mut [0; 4096]).expect("a request") > 0);
        let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{a}\r\n4\r\n\n{b}\r\n1\r\n\n\r\n0\r\nX: y\r\n\r\n";
        let (head, body) = text.split_at(text.find("3\r").expect("a chunk"));
        socket.write_all(head.as_bytes()).expect("a head");
        for byte in body.bytes() {
            asked.recv().expect("a client");
            socket.write_all(&[byte]).expect("a byte");
        }
    });
    smol::block_on(async {
        let socket = Async::<TcpStream>::connect(address).await.expect("a connection");
        let mut connection = Connection::new(Stream::Plain(socket));
        connection.send(&GET).await.expect("a head");
        let mut lines = Vec::new();
        loop {
            let late = async {
                smol::Timer::after(std::time::Duration::from_millis(3)).await;
                None
            };
            let line = async { Some(connection.line(16).await.expect("a line")) };
            match smol::future::or(line, late).await {
                Some(Some(line)) => lines.push(String::from_utf8_lossy(&line).into_owned()),
                Some(None) => break,
                None => drop(ask.send(())),
            }
        }
        assert_eq!(lines, ["{a}", "{b}"]);
        assert!(connection.is_reusable());
    });
    server.join().expect("the server");
}

#[test]
fn no_name_in_a_target_ends_the_line_of_the_request() {
    let target = "/a%2F?b=c d\r\nX: y\r\n\r\n\0\u{e9}";
    let (got, _, seen) = ask(&Request { target, ..GET }, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(got, Ok((200, String::new())));
    let line = "GET /a%2F?b=c%20d%0D%0AX:%20y%0D%0A%0D%0A%00%C3%A9 HTTP/1.1";
    assert_eq!(String::from_utf8_lossy(&seen), format!("{line}\r\nHost: example\r\n\r\n"));
}
