//! Tests against servers on loopback, each a thread that sends prepared bytes.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::pin::pin;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use super::*;

mod tls;

pub(super) const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Long enough for a machine with much to do; only probes that should time out have less.
pub(super) const PATIENT: Duration = Duration::from_secs(20);

/// A listener on loopback, and its port.
pub(super) fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind((LOCAL, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

/// The head of a request, or what there is of it.
fn read_request(stream: &mut impl Read) -> String {
    let (mut request, mut byte) = (Vec::new(), [0]);
    while !request.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
        request.push(byte[0]);
    }
    String::from_utf8(request).expect("text")
}

/// A server that gives its connections, in order, to `answer`, with their number and their request.
fn server(
    mut answer: impl FnMut(usize, &str, &mut TcpStream) + Send + 'static,
) -> (u16, mpsc::Receiver<String>) {
    let (listener, port) = listen();
    let (sender, requests) = mpsc::channel();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.expect("a connection");
            let request = read_request(&mut stream);
            answer(number, &request, &mut stream);
            if sender.send(request).is_err() {
                return;
            }
        }
    });
    (port, requests)
}

/// Starts a server that sends the same response to every client.
fn says(text: &'static str) -> (u16, mpsc::Receiver<String>) {
    server(move |_, _, stream| {
        let _ = stream.write_all(text.as_bytes());
    })
}

fn get(port: u16, path: &str, headers: &[(&str, &str)], timeout: Duration) -> ProbeResult {
    let headers: Vec<_> =
        headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let port = &PortOrName::Port(port);
    let get = HttpGet { secure: false, host: None, port, path, headers: &headers };
    smol::block_on(http(LOCAL, &[], &get, timeout))
}

/// A failure of the request for this path, with Go's text.
fn failure(port: u16, path: &str, text: &str) -> ProbeResult {
    ProbeResult::Failure(format!("Get \"http://127.0.0.1:{port}{path}\": {text}").into())
}

fn ask(text: &'static str) -> ProbeResult {
    get(says(text).0, "/", &[], PATIENT)
}

/// Returns the result of a future, and the number of times that it was polled.
pub(super) fn turns<T>(future: impl Future<Output = T>) -> (T, usize) {
    let (mut future, mut turns) = (pin!(future), 0);
    let polled = poll_fn(|context| {
        turns += 1;
        future.as_mut().poll(context)
    });
    (smol::block_on(polled), turns)
}

/// Both ends of a connection, the client's first, whose server has said this already.
fn has_said(bytes: &[u8]) -> (Async<TcpStream>, TcpStream) {
    let (listener, port) = listen();
    let client = TcpStream::connect((LOCAL, port)).expect("a connection");
    let (mut server, _) = listener.accept().expect("a connection");
    server.write_all(bytes).expect("it fits in what a socket takes");
    (Async::new(client).expect("it can be waited for"), server)
}

#[test]
fn a_large_response_does_not_starve_other_tasks() {
    const LENGTH: usize = 32 * 1024;
    let head = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(LENGTH));
    let (client, _server) = has_said(head.as_bytes());
    let mut connection = Connection::new(Stream::Plain(client));
    let (read, turns_taken) = turns(connection.head());
    // Each read is of at most 8 KiB.
    assert!(read.is_ok() && turns_taken >= LENGTH / 8192, "{turns_taken} turns");
    // Frames that nobody knows, and an answer to the settings that is none.
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let unknown = [&[0, 0x40, 0, 99, 0, 0, 0, 0, 0][..], &[0; 0x4000]].concat();
    let refused = [0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 7];
    let frames = [&settings[..], &unknown, &unknown, &refused].concat();
    let (client, _server) = has_said(&frames);
    let (event, turns_taken) = turns(async {
        let stream = Stream::Plain(client);
        let mut connection = nodlet_wire::http2::Connection::open(stream).await.expect("it has begun");
        connection.request(&[], &[]).await.expect("sent");
        connection.next().await.expect("what comes after them")
    });
    assert_eq!(event, (1, nodlet_wire::http2::Event::Reset(7)));
    // Each read is of at most 2 KiB.
    assert!(turns_taken >= LENGTH / 2048, "{turns_taken} turns");
}

#[test]
fn chunk_headers_have_the_size_limits_of_go() {
    let flood = |chunk: String, last: &'static str| {
        let (port, _requests) = server(move |_, _, stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            for _ in 0..BODY - 1 {
                if stream.write_all(chunk.as_bytes()).is_err() {
                    return;
                }
            }
            let _ = stream.write_all(last.as_bytes());
        });
        get(port, "/", &[], PATIENT)
    };
    // Go takes 18 bytes for a chunk of one, and 16 KiB beyond all of these together.
    let chunk = |extension: usize| format!("1;{}\r\nx\r\n", "y".repeat(extension));
    assert_eq!(flood(chunk(13), "0\r\n\r\n"), ProbeResult::Success);
    let expected = ProbeResult::Error("chunked encoding contains too much non-data".into());
    assert_eq!(flood(chunk(14), "0\r\n\r\n"), expected);
    assert_eq!(flood(chunk(4000), "0\r\n\r\n"), expected);
}

#[test]
fn a_status_from_200_to_399_is_healthy() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.0 200\r\n\r\nuntil the end",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 1\n\nx",
    ] {
        assert_eq!(ask(answer), ProbeResult::Success, "{answer}");
    }
    let terminated = ProbeResult::Warning("Probe terminated redirects, Response body: ".into());
    assert_eq!(ask("HTTP/1.1 304 Not Modified\r\n\r\n"), terminated);
    for (code, answer) in [
        (400, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
        (503, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"),
    ] {
        let expected = format!("HTTP probe failed with statuscode: {code}");
        assert_eq!(ask(answer), ProbeResult::Failure(expected.into()));
    }
    for (answer, expected) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "unexpected EOF"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "invalid byte in chunk length"),
    ] {
        assert_eq!(ask(answer), ProbeResult::Error(expected.into()), "{answer}");
    }
}

#[test]
fn a_malformed_http_response_fails_with_the_error_of_go() {
    let broken = "net/http: HTTP/1.x transport connection broken: ";
    for (answer, broken, expected) in [
        ("", "", "EOF"),
        ("SSH-2.0-x\r\n", broken, "malformed HTTP response \"SSH-2.0-x\""),
        ("HTTP/1.1 2x0 OK\r\n\r\n", broken, "malformed HTTP response \"HTTP/1.1 2x0 OK\""),
        ("HTTP/1.1 200 OK\r\nno colon\r\n\r\n", broken, "malformed MIME header line"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", broken, "bad Content-Length"),
        ("HTTP/1.1 200 OK\r\nX: ", broken, "unexpected EOF"),
    ] {
        let (port, _requests) = says(answer);
        assert_eq!(
            get(port, "/", &[], PATIENT),
            failure(port, "/", &[broken, expected].concat()),
            "{answer:?}"
        );
    }
}

#[test]
fn the_request_is_the_one_that_a_kubelet_sends() {
    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let (port, requests) = says(OK);
    for (headers, expected) in [
        (&[][..], "Host: {own}\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nConnection: close\r\n"),
        (
            &[
                ("x-two", "1"),
                ("X-Two", "2"),
                ("Host", "web.example"),
                ("accept", "text/plain"),
                ("user-agent", "me"),
            ],
            "Host: web.example\r\nUser-Agent: me\r\nConnection: close\r\nX-Two: 1\r\nX-Two: 2\r\nAccept: text/plain\r\n",
        ),
        (
            &[("Accept", ""), ("User-Agent", ""), ("Content-Length", "7")],
            "Host: {own}\r\nConnection: close\r\n",
        ),
    ] {
        assert_eq!(get(port, "/h?q=1", headers, PATIENT), ProbeResult::Success);
        let expected = expected.replace("{own}", &format!("127.0.0.1:{port}"));
        let request = requests.recv().expect("a request");
        assert_eq!(request, format!("GET /h?q=1 HTTP/1.1\r\n{expected}\r\n"));
    }
    for (name, value, expected) in [
        ("x-a", "b\r\nEvil: c", "net/http: invalid header field value for \"X-A\""),
        ("Host", "a b", "http: invalid Host header"),
    ] {
        assert_eq!(get(port, "/", &[(name, value)], PATIENT), failure(port, "/", expected));
    }
    assert!(requests.try_recv().is_err(), "nothing was sent");
}

#[test]
fn a_silent_server_fails_the_probe_at_its_timeout() {
    let (hold, held) = mpsc::channel::<()>();
    let (port, _requests) = server(move |_, _, _| {
        let _ = held.recv();
    });
    let begun = Instant::now();
    let result = get(port, "/x", &[], Duration::from_millis(50));
    let expected = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    assert_eq!(result, failure(port, "/x", expected));
    assert!(begun.elapsed() < PATIENT);
    drop(hold);
}

#[test]
fn a_slow_endless_body_times_out_and_a_huge_one_is_truncated() {
    let (hold, held) = mpsc::channel::<()>();
    let (port, _requests) = server(move |_, _, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab");
        let _ = held.recv();
    });
    let result = get(port, "/", &[], Duration::from_millis(50));
    let expected = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
    assert_eq!(result, ProbeResult::Error(expected.into()));
    drop(hold);

    for head in ["HTTP/1.1 307 R\r\n\r\n", "HTTP/1.1 307 R\r\nContent-Length: 999999999\r\n\r\n"] {
        let (port, _requests) = server(move |_, _, stream| {
            let _ = stream.write_all(head.as_bytes());
            while stream.write_all(&[b'x'; 4096]).is_ok() {}
        });
        let ProbeResult::Warning(text) = get(port, "/", &[], PATIENT) else { panic!("no warning") };
        assert_eq!(text.len(), "Probe terminated redirects, Response body: ".len() + BODY);
    }
    let (port, _requests) = server(|_, _, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream.write_all(b"X-Long: 1\r\n").is_ok() {}
    });
    let ProbeResult::Failure(text) = get(port, "/", &[], PATIENT) else { panic!("no failure") };
    assert!(text.ends_with("server response headers exceeded 65536 bytes; aborted"), "{text}");
}

#[test]
fn redirects_are_followed_on_the_same_host_only() {
    let (port, requests) = server(|number, _, stream| {
        let text = match number {
            0 => "HTTP/1.1 302 Found\r\nLocation: /next?x\r\nContent-Length: 0\r\n\r\n",
            _ => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        };
        let _ = stream.write_all(text.as_bytes());
    });
    assert_eq!(get(port, "/", &[("Host", "web"), ("X-A", "b")], PATIENT), ProbeResult::Success);
    requests.recv().expect("the first request");
    let second = requests.recv().expect("the second request");
    assert!(second.starts_with("GET /next?x HTTP/1.1\r\nHost: web\r\n"), "{second}");
    let referer = format!("Referer: http://127.0.0.1:{port}/\r\n");
    assert!(second.contains("X-A: b\r\n") && second.contains(&referer), "{second}");

    let (port, _requests) =
        says("HTTP/1.1 301 Moved\r\nLocation: http://192.0.2.1/\r\nContent-Length: 4\r\n\r\ngone");
    let expected = ProbeResult::Warning("Probe terminated redirects, Response body: gone".into());
    assert_eq!(get(port, "/", &[], PATIENT), expected);

    let (port, requests) = says("HTTP/1.1 308 Again\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(get(port, "/", &[], PATIENT), failure(port, "/again", "stopped after 10 redirects"));
    assert_eq!((0..REQUESTS).filter(|_| requests.recv_timeout(PATIENT).is_ok()).count(), REQUESTS);
    assert!(requests.try_recv().is_err());
}

#[test]
fn a_refused_connection_fails_tcp_and_http_probes() {
    let (listener, port) = listen();
    let connect = || smol::block_on(tcp(LOCAL, None, &PortOrName::Port(port), &[], PATIENT));
    assert_eq!(connect(), ProbeResult::Success);
    drop(listener);
    let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(connect(), ProbeResult::Failure(refused.as_str().into()));
    assert_eq!(get(port, "/", &[], PATIENT), failure(port, "/", &refused));
}

#[test]
fn a_host_that_accepts_no_connection_fails_the_probe_at_its_timeout() {
    // A listener whose queue is full: further connections hang.
    let (listener, port) = listen();
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).expect("a number"))
        .expect("shorter");
    let address = SocketAddr::new(LOCAL, port);
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(20)) {
        waiting.push(stream);
        assert!(waiting.len() < 100, "the queue has no end");
    }
    let short = Duration::from_millis(20);
    let dialled = format!("dial tcp {address}: i/o timeout");
    let result = smol::block_on(tcp(LOCAL, None, &PortOrName::Port(port), &[], short));
    assert_eq!(result, ProbeResult::Failure(dialled.as_str().into()));
    let expected = format!("{dialled} (Client.Timeout exceeded while awaiting headers)");
    assert_eq!(get(port, "/", &[], short), failure(port, "/", &expected));
}

#[test]
fn ports_have_numbers_or_names_of_the_container() {
    let port = |name: &str, container_port| ContainerPort {
        name: Some(name.into()),
        container_port,
        protocol: "TCP".into(),
        host_port: 0,
        host_ip: String::new(),
    };
    let ports = [port("web", 8080), port("9", 7)];
    let name = |name: &str| PortOrName::Name(name.to_owned());
    for (wanted, expected) in [
        (PortOrName::Port(80), Ok(80)),
        (name("web"), Ok(8080)),
        (name("9"), Ok(7)),
        (name("81"), Ok(81)),
        (name("0"), Err("invalid port number: 0")),
        (name("65536"), Err("invalid port number: 65536")),
        (name("other"), Err("strconv.Atoi: parsing \"other\": invalid syntax")),
    ] {
        assert_eq!(resolve_port(&wanted, &ports), expected.map_err(str::to_owned), "{wanted:?}");
    }
    let result = smol::block_on(tcp(LOCAL, None, &name("other"), &ports, PATIENT));
    assert!(matches!(result, ProbeResult::Error(_)), "{result:?}");
}

#[test]
fn an_exec_is_healthy_with_an_exit_code_of_zero() {
    assert_eq!(exec_result(0, b"fine"), ProbeResult::Success);
    assert_eq!(exec_result(1, b"not\xfffine\n"), ProbeResult::Failure("not\u{fffd}fine\n".into()));
    for (seconds, printed) in [(1, "1s"), (90, "1m30s"), (3660, "1h1m0s")] {
        let expected = format!("command timed out: \"sh -c x\" timed out after {printed}");
        let result = exec_timed_out("sh -c x", Duration::from_secs(seconds));
        assert_eq!(result, ProbeResult::Failure(expected.into()));
    }
}

#[test]
fn a_named_host_is_looked_up() {
    let (port, requests) = says("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let nowhere = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let numbered = &PortOrName::Port(port);
    let get = HttpGet { secure: false, host: Some("localhost"), port: numbered, path: "/", headers: &[] };
    let result = smol::block_on(http(nowhere, &[], &get, PATIENT));
    assert_eq!(result, ProbeResult::Success);
    assert!(requests.recv().expect("a request").contains(&format!("Host: localhost:{port}\r\n")));
    let result = smol::block_on(tcp(nowhere, Some("127.0.0.1"), &PortOrName::Port(port), &[], PATIENT));
    assert_eq!(result, ProbeResult::Success);
}
