//! Tests against servers on loopback, each a thread that sends prepared bytes. The tests with containers use real
//! servers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::prober::tests::{LOCAL, PATIENT, listen};

const SHORT: Duration = Duration::from_millis(100);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END: u8 = 1;
const WHOLE: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        nodlet_wire::hpack::encode(name, value, &mut block);
    }
    block
}

fn head() -> Vec<u8> {
    frame(HEADERS, WHOLE, 1, &fields(&[(":status", "200"), ("content-type", "application/grpc")]))
}

fn message(bytes: &[u8]) -> Vec<u8> {
    let mut message = vec![0];
    message.extend((bytes.len() as u32).to_be_bytes());
    message.extend(bytes);
    frame(DATA, 0, 1, &message)
}

fn trailers(status: &str, text: &str) -> Vec<u8> {
    frame(HEADERS, WHOLE | END, 1, &fields(&[("grpc-status", status), ("grpc-message", text)]))
}

fn healthy() -> Vec<u8> {
    [head(), message(&[8, 1]), trailers("0", "")].concat()
}

/// The server's end of a connection.
struct Server(TcpStream);

impl Server {
    fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).expect("the client says it");
        bytes
    }

    fn say(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    /// Reads the next frame: kind, flags, stream, payload.
    fn frame(&mut self) -> (u8, u8, u32, Vec<u8>) {
        let head = self.read(9);
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        (head[3], head[4], stream, self.read(length as usize))
    }

    /// Reads frames up to the first one of this kind.
    fn until(&mut self, kind: u8) -> Vec<u8> {
        loop {
            let (seen, _, _, payload) = self.frame();
            if seen == kind {
                return payload;
            }
        }
    }

    /// Reads the client's preface and sends the server's settings.
    fn begin(&mut self) {
        assert_eq!(self.read(24), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        self.say(&frame(SETTINGS, 0, 0, &[]));
    }
}

/// A server that does this with its connections, given their number.
fn server(mut part: impl FnMut(usize, &mut Server) + Send + 'static) -> u16 {
    let (listener, port) = listen();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut server = Server(stream.expect("a connection"));
            part(number, &mut server);
            // What was said reaches the client whole, even if not all that it said was read.
            let _ = server.0.shutdown(std::net::Shutdown::Write);
            let _ = server.0.set_read_timeout(Some(PATIENT));
            let _ = std::io::copy(&mut server.0, &mut std::io::sink());
        }
    });
    port
}

/// A server that reads the request and then says this.
fn says(bytes: Vec<u8>) -> u16 {
    server(move |_, server| {
        server.begin();
        server.until(DATA);
        server.say(&bytes);
    })
}

fn ask(port: u16, service: &str, timeout: Duration) -> ProbeResult {
    smol::block_on(grpc(LOCAL, port, service, timeout))
}

/// The text of a failed call.
fn failed(code: &str, text: &str) -> String {
    format!("error: health rpc probe failed: rpc error: code = {code} desc = {text}")
}

/// The text of a call that a server does not implement.
fn unimplemented(text: &str) -> String {
    format!("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {text}")
}

fn answer(bytes: Vec<u8>) -> String {
    match ask(says(bytes), "", PATIENT) {
        ProbeResult::Success => "healthy".to_owned(),
        ProbeResult::Failure(text) => text.into(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_call_is_the_one_that_a_kubelet_makes() {
    let (sender, seen) = mpsc::channel();
    let port = server(move |_, server| {
        server.begin();
        let mut frames = Vec::new();
        loop {
            let frame = server.frame();
            let over = frame.0 == DATA;
            frames.push(frame);
            if over {
                break;
            }
        }
        server.say(&healthy());
        sender.send(frames).expect("it is awaited");
    });
    assert_eq!(ask(port, "web", Duration::from_secs(7)), ProbeResult::Success);
    let frames = seen.recv().expect("the server has seen it");
    // No table for headers, no pushes, lists of headers of 16 KiB.
    assert_eq!(
        frames[0],
        (SETTINGS, 0, 0, [0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 6, 0, 0, 0x40, 0].to_vec())
    );
    assert_eq!(frames[1], (SETTINGS, 1, 0, vec![]));
    let request = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", &format!("127.0.0.1:{port}")),
        ("content-type", "application/grpc"),
        ("user-agent", "kube-probe/1.36"),
        ("te", "trailers"),
        ("grpc-timeout", "7000m"),
    ];
    assert_eq!(frames[2], (HEADERS, WHOLE, 1, fields(&request)));
    assert_eq!(frames[3], (DATA, END, 1, b"\0\0\0\0\x05\x0a\x03web".to_vec()));
    assert_eq!(frames.len(), 4);
}

#[test]
fn only_the_grpc_health_status_serving_is_healthy() {
    let status = |bytes: &[u8]| answer([head(), message(bytes), trailers("0", "")].concat());
    assert_eq!(status(&[8, 1]), "healthy");
    // Later fields count, others do not.
    assert_eq!(
        status(&[8, 2, 0x12, 2, 9, 9, 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8, 8, 1]),
        "healthy"
    );
    for (bytes, expected) in [
        (&[][..], "UNKNOWN"),
        (&[8, 0], "UNKNOWN"),
        (&[8, 2], "NOT_SERVING"),
        (&[8, 3], "SERVICE_UNKNOWN"),
        (&[8, 4], "4"),
    ] {
        assert_eq!(status(bytes), format!("service unhealthy (responded with {expected:?})"));
    }
    for bytes in
        [&[8][..], &[0, 1], &[0x12, 9, 1], &[0x0b], &[8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]]
    {
        let text =
            "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data";
        assert_eq!(status(bytes), failed("Internal", text), "{bytes:?}");
    }
}

#[test]
fn grpc_statuses_are_reported_with_the_kubelets_texts() {
    let malformed = "transport: malformed grpc-status: strconv.ParseInt: parsing \"x\": invalid syntax";
    for (status, text, expected) in [
        ("12", "unknown service", unimplemented("unknown service")),
        ("5", "unknown service", failed("NotFound", "unknown service")),
        ("4", "late", "timeout: health rpc did not complete within 20s".to_owned()),
        ("2", "100%25 wr%C3%B6ng%", failed("Unknown", "100% wröng%")),
        ("99", "", failed("Code(99)", "")),
        ("x", "", failed("Unknown", malformed)),
    ] {
        assert_eq!(answer([head(), trailers(status, text)].concat()), expected, "{status}");
        // Without a head of its own ("trailers only").
        let only = [
            (":status", "200"),
            ("content-type", "application/grpc"),
            ("grpc-status", status),
            ("grpc-message", text),
        ];
        assert_eq!(answer(frame(HEADERS, WHOLE | END, 1, &fields(&only))), expected, "{status}");
    }
}

#[test]
fn a_response_other_than_grpc_is_reported_by_status_and_content_type() {
    let unexpected = |status: &str, content_type: &str| {
        let content_type = format!("transport: received unexpected content-type {content_type:?}");
        format!("unexpected HTTP status code received from server: {status}; {content_type}")
    };
    let unavailable = "unexpected HTTP status code received from server: 503 (Service Unavailable); \
                       malformed header: missing HTTP content-type";
    let nothing = "malformed header: missing HTTP status; malformed header: missing HTTP content-type";
    let malformed = "transport: malformed http-status: strconv.Atoi: parsing \"abc\": invalid syntax";
    let html = [(":status", "404"), ("content-type", "text/html")];
    let other = [(":status", "200"), ("content-type", "application/grpcx")];
    for (head, expected) in [
        (&html[..], unimplemented(&unexpected("404 (Not Found)", "text/html"))),
        (&[(":status", "503")], failed("Unavailable", unavailable)),
        (&other, failed("Unknown", &unexpected("200 (OK)", "application/grpcx"))),
        (&[], failed("Internal", nothing)),
        (&[(":status", "abc")], failed("Internal", malformed)),
    ] {
        assert_eq!(answer(frame(HEADERS, WHOLE, 1, &fields(head))), expected);
    }
    let informational = frame(HEADERS, WHOLE, 1, &fields(&[(":status", "103")]));
    assert_eq!(answer([informational, healthy()].concat()), "healthy");
}

#[test]
fn a_response_may_arrive_in_pieces_of_any_size() {
    let ping = frame(PING, 0, 0, b"12345678");
    let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 1, 0, 0, 99, 0, 0, 0, 1]);
    let unknown = frame(0x77, 0xff, 5, b"anything");
    let block = fields(&[(":status", "200"), ("content-type", "application/grpc+proto")]);
    // Padded, with a priority, and cut between any two bytes.
    let mut padded = vec![3, 0, 0, 0, 0, 7];
    padded.extend(&block);
    padded.extend([0; 3]);
    let whole = frame(HEADERS, WHOLE | 0x8 | 0x20, 1, &padded);
    let pieces = [
        frame(HEADERS, 0, 1, &block[..1]),
        frame(CONTINUATION, 0, 1, &[]),
        frame(CONTINUATION, WHOLE, 1, &block[1..]),
    ];
    let data =
        [frame(DATA, 0, 1, &[]), frame(DATA, 0x8, 1, &[2, 0, 0, 0, 0, 0]), frame(DATA, 0, 1, &[0, 2, 8, 1])];
    for head in [whole, pieces.concat()] {
        let bytes = [
            ping.clone(),
            settings.clone(),
            frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
            frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]),
            unknown.clone(),
            head,
            ping.clone(),
            data.concat(),
            // It goes when it is done with us.
            frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]),
            trailers("0", ""),
        ];
        assert_eq!(answer(bytes.concat()), "healthy");
    }
    // Byte by byte.
    let port = server(|_, server| {
        server.begin();
        server.until(DATA);
        for byte in healthy() {
            server.say(&[byte]);
        }
    });
    assert_eq!(ask(port, "", PATIENT), ProbeResult::Success);
}

#[test]
fn a_request_waits_until_the_server_has_room_for_it() {
    let service = "s".repeat(100_000);
    let port = server(|_, server| {
        assert_eq!(server.read(24).len(), 24);
        // Ten bytes of the stream are all that it takes at first.
        server.say(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 10]));
        assert_eq!(server.until(DATA).len(), 10);
        // Less than nothing, and then more than all.
        server.say(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
        server.say(&frame(WINDOW_UPDATE, 0, 1, &1_000_000_u32.to_be_bytes()));
        let mut length = 10;
        while length < 65_535 {
            length += server.until(DATA).len();
        }
        assert_eq!(length, 65_535, "the window of the connection");
        server.say(&frame(WINDOW_UPDATE, 0, 0, &1_000_000_u32.to_be_bytes()));
        while length < 100_009 {
            let (kind, flags, _, payload) = server.frame();
            if kind == DATA {
                length += payload.len();
                assert_eq!(flags == END, length == 100_009);
            }
        }
        server.say(&healthy());
    });
    assert_eq!(ask(port, &service, PATIENT), ProbeResult::Success);
}

#[test]
fn a_broken_grpc_connection_is_reported_as_unavailable() {
    let unavailable = |text: &str| failed("Unavailable", &format!("error reading from server: {text}"));
    let protocol = "connection error: PROTOCOL_ERROR";
    for (bytes, expected) in [
        (vec![], "EOF"),
        (head(), "EOF"),
        (head()[..20].to_vec(), "EOF"),
        (vec![0xff; 9], "http2: frame too large"),
        (frame(HEADERS, WHOLE, 1, &[0xff, 0xff]), "connection error: COMPRESSION_ERROR"),
        (frame(HEADERS, WHOLE, 3, &[]), protocol),
        (frame(DATA, 0, 2, &[]), protocol),
        (frame(5, WHOLE, 1, &[0; 4]), protocol),
        (frame(CONTINUATION, WHOLE, 1, &[]), protocol),
        ([frame(HEADERS, 0, 1, &[]), frame(PING, 0, 0, &[0; 8])].concat(), protocol),
        (frame(DATA, 0x8, 1, &[5, 0]), protocol),
        (frame(DATA, 0x8, 1, &[]), protocol),
        (frame(HEADERS, 0x20 | WHOLE, 1, &[0; 4]), protocol),
        (frame(SETTINGS, 0, 1, &[]), protocol),
        (frame(SETTINGS, 0, 0, &[0; 5]), "connection error: FRAME_SIZE_ERROR"),
        (frame(SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]), "connection error: FLOW_CONTROL_ERROR"),
        (frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1]), protocol),
        (frame(WINDOW_UPDATE, 0, 1, &[0; 4]), protocol),
        (frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes()), "connection error: FLOW_CONTROL_ERROR"),
        (frame(RST_STREAM, 0, 1, &[0]), "connection error: FRAME_SIZE_ERROR"),
        (frame(GOAWAY, 0, 0, &[0]), "connection error: FRAME_SIZE_ERROR"),
    ] {
        assert_eq!(answer(bytes.clone()), unavailable(expected), "{bytes:?}");
    }
    for (code, name, grpc) in [
        (0, "NO_ERROR", "Internal"),
        (8, "CANCEL", "Canceled"),
        (11, "ENHANCE_YOUR_CALM", "ResourceExhausted"),
        (99, "unknown error code 0x63", "Unknown"),
    ] {
        let expected = format!("stream terminated by RST_STREAM with error code: {name}");
        assert_eq!(answer(frame(RST_STREAM, 0, 1, &u32::to_be_bytes(code))), failed(grpc, &expected));
    }
}

#[test]
fn an_invalid_grpc_response_is_reported_as_an_internal_error() {
    let data = |bytes: &[u8]| frame(DATA, 0, 1, bytes);
    let compressed = || data(&[1, 0, 0, 0, 2, 8, 1]);
    let gzip = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-encoding", "gzip")];
    let gzip = frame(HEADERS, WHOLE, 1, &fields(&gzip));
    let none = "cardinality violation: received no response message from non-server-streaming RPC";
    let two =
        "cardinality violation: expected <EOF> for non server-streaming RPCs, but received another message";
    for (head, body, expected) in [
        (head(), frame(DATA, END, 1, &[]), "server closed the stream without sending trailers"),
        (head(), head(), "a HEADERS frame cannot appear in the middle of a stream"),
        (head(), Vec::new(), none),
        (head(), message(&[8, 1]).repeat(2), two),
        (head(), data(&[0, 0]), "unexpected EOF"),
        (head(), data(&[0, 0, 0, 0, 3, 8, 1]), "unexpected EOF"),
        (head(), data(&[2, 0, 0, 0, 0]), "grpc: received unexpected payload format 2"),
        (head(), compressed(), "grpc: compressed flag set with identity or empty encoding"),
        (gzip, compressed(), "grpc: Decompressor is not installed for grpc-encoding \"gzip\""),
    ] {
        assert_eq!(answer([head, body, trailers("0", "")].concat()), failed("Internal", expected));
    }
    let huge = [head(), data(&[0, 0x7f, 0, 0, 0])].concat();
    let expected = "grpc: received message larger than max (2130706432 vs. 65530)";
    assert_eq!(answer(huge), failed("ResourceExhausted", expected));
}

#[test]
fn an_endless_response_fails_after_a_bounded_number_of_bytes() {
    let endless = |bytes: Vec<u8>| {
        let (sender, sent) = mpsc::channel();
        let port = server(move |_, server| {
            server.begin();
            server.until(DATA);
            server.say(&head());
            let mut count = 0;
            while server.0.write_all(&bytes).is_ok() {
                count += bytes.len();
            }
            sender.send(count).expect("it is awaited");
        });
        let ProbeResult::Failure(text) = ask(port, "", PATIENT) else { panic!("no failure") };
        // What the kernel holds for us counts, too.
        assert!(sent.recv_timeout(PATIENT).expect("we hung up") < 64 << 20);
        text
    };
    let mut begins = vec![0, 0, 0, 0xff, 0xf0];
    begins.resize(16 * 1024, 0);
    for (bytes, error) in [
        (frame(PING, 1, 0, &[0; 8]), "ENHANCE_YOUR_CALM"),
        (frame(DATA, 0, 1, &[0, 0, 0, 0, 9]), "ENHANCE_YOUR_CALM"),
        (frame(DATA, 0, 1, &begins), "FLOW_CONTROL_ERROR"),
    ] {
        let expected = format!("desc = error reading from server: connection error: {error}");
        let text = endless(bytes);
        assert!(text.ends_with(&expected), "{text}");
    }

    let port = server(|_, server| {
        server.begin();
        server.until(DATA);
        server.say(&frame(HEADERS, 0, 1, &[]));
        while server.0.write_all(&frame(CONTINUATION, 0, 1, &[0; 1024])).is_ok() {}
    });
    let ProbeResult::Failure(text) = ask(port, "", PATIENT) else { panic!("no failure") };
    assert!(text.ends_with("code = Internal desc = peer header list size exceeded limit"), "{text}");
}

#[test]
fn a_request_that_was_not_looked_at_is_made_once_more() {
    for refusal in [frame(RST_STREAM, 0, 1, &[0, 0, 0, 7]), frame(GOAWAY, 0, 0, &[0; 8])] {
        let once = refusal.clone();
        let port = server(move |number, server| {
            server.begin();
            server.until(DATA);
            server.say(&if number == 0 { once.clone() } else { healthy() });
        });
        assert_eq!(ask(port, "", PATIENT), ProbeResult::Success);
        let text = answer(refusal);
        assert!(text.starts_with(&failed("Unavailable", "")), "{text}");
    }
}

#[test]
fn a_grpc_probe_fails_at_its_timeout_if_no_http2_server_responds() {
    let unreached = |port: u16| {
        let address = format!("127.0.0.1:{port}");
        format!("timeout: failed to connect service {address:?} within 0s: context deadline exceeded")
    };
    // Silent; of another protocol; of none; gone at once.
    let (hold, held) = mpsc::channel::<()>();
    let silent = server(move |_, _| {
        let _ = held.recv();
    });
    let http1 = server(|_, server| server.say(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"));
    let acknowledges = server(|_, server| server.say(&frame(SETTINGS, 1, 0, &[])));
    let gone = server(|_, _| {});
    for port in [silent, http1, acknowledges, gone] {
        assert_eq!(ask(port, "", SHORT), ProbeResult::Failure(unreached(port).into()));
    }
    drop(hold);
    // Nobody; but somebody a little later.
    let (_, port) = listen();
    assert_eq!(ask(port, "", SHORT), ProbeResult::Failure(unreached(port).into()));
    let late = server(|number, server| {
        if number > 0 {
            server.begin();
            server.until(DATA);
            server.say(&healthy());
        }
    });
    assert_eq!(ask(late, "", PATIENT), ProbeResult::Success);
}

#[test]
fn a_grpc_call_without_a_response_fails_at_its_timeout() {
    let (hold, held) = mpsc::channel::<()>();
    let port = server(move |_, server| {
        server.begin();
        server.until(DATA);
        let _ = held.recv();
    });
    let text = "timeout: health rpc did not complete within 1s";
    assert_eq!(ask(port, "", Duration::from_secs(1)), ProbeResult::Failure(text.into()));
    drop(hold);
}

#[test]
fn any_response_of_a_grpc_server_ends_the_call() {
    for seed in 0..300 {
        let mut random = nodlet_fuzz::Random::of(seed);
        let mut bytes = [head(), frame(PING, 0, 0, &[0; 8]), message(&[8, 1]), trailers("0", "")].concat();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len());
            match random.below(3) {
                0 => bytes[at] = random.below(256) as u8,
                1 => bytes.truncate(at + 1),
                _ => bytes.insert(at, random.below(256) as u8),
            }
        }
        assert!(!matches!(ask(says(bytes), "", PATIENT), ProbeResult::Error(_)), "seed {seed}");
    }
}
