use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use smol::Async;

use super::*;

/// Connects to a server that sends these bytes after the preface, and returns the connection and what the client has
/// sent until it hung up.
fn served(bytes: Vec<u8>) -> (Connection, thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.write_all(&bytes).expect("sent");
        let mut read = Vec::new();
        stream.read_to_end(&mut read).expect("read");
        read
    });
    let stream = Async::new(TcpStream::connect(address).expect("connected")).expect("a socket");
    (smol::block_on(Connection::open(Stream::Plain(stream))).expect("settings"), server)
}

fn encoded(frames: &[(u8, u8, u32, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, flags, stream, payload) in frames {
        frame(*kind, *flags, *stream, payload, &mut bytes);
    }
    bytes
}

/// The status 200, by the static table.
const OK: &[u8] = &[0x88];

#[test]
fn responses_of_many_streams_arrive_side_by_side_and_their_windows_are_enlarged() {
    let goaway = [0, 0, 0, 3, 0, 0, 0, 0];
    let (mut connection, server) = served(encoded(&[
        (kind::SETTINGS, 0, 0, &[]),
        (kind::HEADERS, flag::END_HEADERS, 3, OK),
        (kind::HEADERS, flag::END_HEADERS, 1, OK),
        (kind::DATA, 0, 1, b"one"),
        (kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 9]),
        (kind::DATA, flag::END_STREAM, 3, b"three"),
        (kind::GOAWAY, 0, 0, &goaway),
    ]));
    let events = smol::block_on(async {
        let fields = [(":method", "GET"), (":path", "/a")];
        assert_eq!(connection.request(&fields, &[]).await.expect("sent"), 1);
        assert_eq!(connection.request(&fields, &[]).await.expect("sent"), 3);
        let mut events = Vec::new();
        for _ in 0..5 {
            events.push(connection.next().await.expect("an event"));
        }
        connection.enlarge(0, 100).await.expect("sent");
        connection.cancel(1).await.expect("sent");
        events
    });
    let status = || vec![Field { name: b":status".to_vec(), value: b"200".to_vec() }];
    assert_eq!(
        events,
        [
            (3, Event::Headers { fields: status(), end: false }),
            (1, Event::Headers { fields: status(), end: false }),
            (1, Event::Data { bytes: b"one".to_vec(), end: false }),
            (3, Event::Data { bytes: b"three".to_vec(), end: true }),
            (3, Event::Closing),
        ]
    );
    drop(connection);
    let sent = server.join().expect("it ended");
    let last = encoded(&[
        (kind::WINDOW_UPDATE, 0, 0, &100u32.to_be_bytes()),
        (kind::RST_STREAM, 0, 1, &[0, 0, 0, 8]),
    ]);
    assert!(sent.ends_with(&last), "{sent:?}");
    // A request without a body ends its stream.
    assert!(
        sent.windows(5).any(|head| head == [kind::HEADERS, flag::END_STREAM | flag::END_HEADERS, 0, 0, 0])
    );
}

#[test]
fn a_stream_that_was_never_opened_and_a_window_that_is_exceeded_end_the_connection() {
    for frames in [
        encoded(&[(kind::SETTINGS, 0, 0, &[]), (kind::DATA, 0, 5, b"x")]),
        encoded(&[(kind::SETTINGS, 0, 0, &[]), (kind::DATA, 0, 2, b"x")]),
        [encoded(&[(kind::SETTINGS, 0, 0, &[])]), encoded(&[(kind::DATA, 0, 1, &[0; 16_000][..]); 5])]
            .concat(),
    ] {
        let (mut connection, _server) = served(frames);
        let ended = smol::block_on(async {
            connection.request(&[], &[]).await.expect("sent");
            loop {
                if let Err(error) = connection.next().await {
                    break error;
                }
            }
        });
        assert!(matches!(ended, Http2Error::Broken(_)), "{ended:?}");
    }
}
