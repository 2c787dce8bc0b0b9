use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;

use nix::sys::socket::{ControlMessage, sendmsg};

use super::*;

/// A message as a bus sends it: kind, what it answers, who sent it, its member, and its body with that signature.
fn message(kind: u8, answers: u32, sender: &str, member: &str, signature: &str, body: &[u8]) -> Vec<u8> {
    fn put(bytes: &mut Vec<u8>, text: &str) {
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.push(0);
    }
    let mut bytes = vec![b'l', kind, 0, 1];
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend([7, 0, 0, 0, 0, 0, 0, 0]);
    for (code, text) in [(3, member), (7, sender), (4, if kind == 3 { "org.example.No" } else { "" })] {
        if !text.is_empty() {
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes.extend([code, 1, b's', 0]);
            put(&mut bytes, text);
        }
    }
    if answers > 0 {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.extend([5, 1, b'u', 0]);
        bytes.extend(answers.to_le_bytes());
    }
    if !signature.is_empty() {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.extend([8, 1, b'g', 0, signature.len() as u8]);
        bytes.extend(signature.as_bytes());
        bytes.push(0);
    }
    let fields = (bytes.len() - message::FIXED) as u32;
    bytes[12..16].copy_from_slice(&fields.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend(body);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    let mut body = (text.len() as u32).to_le_bytes().to_vec();
    body.extend(text.as_bytes());
    body.push(0);
    body
}

/// The bus and logind behind one socket.
struct Fake {
    stream: UnixStream,
    calls: u32,
}

impl Fake {
    fn greet(stream: UnixStream) -> Fake {
        let mut bus = Fake { stream, calls: 0 };
        let uid = nix::unistd::getuid().to_string();
        let uid: String = uid.bytes().map(|digit| format!("{digit:02x}")).collect();
        for (expected, answer) in [
            (&*format!("\0AUTH EXTERNAL {uid}\r\n"), "OK 1234deadbeef\r\n"),
            ("NEGOTIATE_UNIX_FD\r\n", "AGREE_UNIX_FD\r\n"),
            ("BEGIN\r\n", ""),
        ] {
            let mut line = vec![0; expected.len()];
            bus.stream.read_exact(&mut line).expect("it is said");
            assert_eq!(line, expected.as_bytes());
            bus.say(answer.as_bytes());
        }
        bus
    }

    /// The next call; it must contain these words.
    fn called(&mut self, words: &[&str]) {
        let mut call = vec![0; message::FIXED];
        self.stream.read_exact(&mut call).expect("it is said");
        let whole = message::length(&call).expect("it has a length");
        call.resize(whole, 0);
        self.stream.read_exact(&mut call[message::FIXED..]).expect("it is said");
        self.calls += 1;
        assert_eq!(u32::from_le_bytes(call[8..12].try_into().expect("four bytes")), self.calls);
        let said = String::from_utf8_lossy(&call);
        for word in words {
            assert!(said.contains(word), "{word} in {said:?}");
        }
    }

    fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("it listens");
    }

    fn answer(&mut self, signature: &str, body: &[u8]) {
        self.say(&message(2, self.calls, ":1.4", "", signature, body));
    }

    fn shutdown(&mut self, sender: &str, begins: u8) {
        self.say(&message(4, 0, sender, "PrepareForShutdown", "b", &[begins, 0, 0, 0]));
    }

    fn connected(&mut self) {
        self.called(&["Hello"]);
        self.answer("s", &text(":1.9"));
        self.called(&["AddMatch", "member='PrepareForShutdown'", "sender='org.freedesktop.login1'"]);
        self.answer("", &[]);
    }
}

/// `bus` is the other end.
fn with<T>(bus: impl FnOnce(Fake) + Send + 'static, test: impl AsyncFnOnce(PathBuf) -> T) -> T {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("bus");
    let listener = UnixListener::bind(&socket).expect("it can be made");
    let other = thread::spawn(move || bus(Fake::greet(listener.accept().expect("it comes").0)));
    let result = smol::block_on(test(socket));
    other.join().expect("the bus is content");
    result
}

#[test]
fn a_shutdown_inhibitor_is_held_until_the_shutdown_and_then_released() {
    let bus = |mut bus: Fake| {
        bus.connected();
        bus.called(&["InhibitDelayMaxUSec"]);
        let mut body = vec![1, b't', 0, 0, 0, 0, 0, 0];
        body.extend(5_000_000_u64.to_le_bytes());
        bus.answer("v", &body);
        bus.called(&["Inhibit", "shutdown", "nodlet", "delay"]);
        // News that nobody waits for, and the answer in pieces.
        bus.say(&message(4, 0, "org.freedesktop.DBus", "NameAcquired", "s", &text(":1.9")));
        let (ours, theirs) = UnixStream::pair().expect("there are descriptors");
        let answer = message(2, bus.calls, ":1.4", "", "h", &[0, 0, 0, 0]);
        let (socket, raw, first) =
            (bus.stream.as_raw_fd(), [theirs.as_raw_fd()], [io::IoSlice::new(&answer[..20])]);
        let rights = [ControlMessage::ScmRights(&raw)];
        let sent = sendmsg::<()>(socket, &first, &rights, MsgFlags::empty(), None);
        assert_eq!(sent, Ok(20));
        drop(theirs);
        bus.say(&answer[20..]);
        bus.shutdown(":1.4", 1);
        bus.called(&["GetNameOwner", "org.freedesktop.login1"]);
        bus.answer("s", &text(":1.4"));
        // The lock is gone when nobody holds it.
        let mut ours = ours;
        assert_eq!(ours.read(&mut [0]).expect("it ends"), 0);
        bus.shutdown(":1.4", 0);
        bus.called(&["GetNameOwner"]);
        bus.answer("s", &text(":1.4"));
    };
    with(bus, async |socket| {
        let mut logind = Logind::connect(&socket).await.expect("it is there");
        assert_eq!(logind.patience().await.expect("it says so"), Duration::from_secs(5));
        let lock = logind.delay().await.expect("it is given");
        assert!(logind.prepares_for_shutdown().await.expect("it says so"));
        drop(lock);
        assert!(!logind.prepares_for_shutdown().await.expect("it says so"));
    });
}

#[test]
fn shutdown_signals_from_bus_peers_other_than_logind_are_ignored() {
    let bus = |mut bus: Fake| {
        bus.connected();
        bus.shutdown(":1.66", 1);
        bus.called(&["GetNameOwner"]);
        bus.answer("s", &text(":1.4"));
        bus.shutdown(":1.4", 1);
        bus.called(&["GetNameOwner"]);
        // Meanwhile it says otherwise: that comes next.
        bus.shutdown(":1.4", 0);
        bus.answer("s", &text(":1.4"));
        bus.called(&["GetNameOwner"]);
        bus.answer("s", &text(":1.4"));
    };
    with(bus, async |socket| {
        let mut logind = Logind::connect(&socket).await.expect("it is there");
        assert!(logind.prepares_for_shutdown().await.expect("it says so"));
        assert!(!logind.prepares_for_shutdown().await.expect("it says so"));
    });
}

#[test]
fn a_flood_of_bus_messages_does_not_starve_other_tasks() {
    let bus = |mut bus: Fake| {
        bus.connected();
        let much = message(4, 0, ":1.66", "PrepareForShutdown", "s", &text("soon")).repeat(100);
        // It ends when nobody listens any more.
        while bus.stream.write_all(&much).is_ok() {}
    };
    with(bus, async |socket| {
        let mut logind = Logind::connect(&socket).await.expect("it is there");
        let others = async {
            for _ in 0..1000 {
                smol::future::yield_now().await;
            }
            true
        };
        let heard = async { logind.prepares_for_shutdown().await.expect("it goes on") };
        // Half of what there is to read is there at once: without a turn in between it would all be read first.
        let mut read = std::pin::pin!(heard);
        let mut turns = std::pin::pin!(others);
        let mut polls = 0;
        let had_turns = std::future::poll_fn(|context| {
            polls += 1;
            assert!(read.as_mut().poll(context).is_pending(), "nobody goes down");
            turns.as_mut().poll(context)
        });
        assert!(had_turns.await);
        assert_eq!(polls, 1001, "each read gives the others a turn");
    });
}

#[test]
fn a_refusal_by_logind_and_a_closed_connection_are_reported() {
    let bus = |mut bus: Fake| {
        bus.connected();
        bus.called(&["Inhibit"]);
        bus.say(&message(3, bus.calls, ":1.4", "", "s", &text("it goes down already")));
        bus.called(&["Inhibit"]);
        bus.answer("", &[]);
    };
    with(bus, async |socket| {
        let mut logind = Logind::connect(&socket).await.expect("it is there");
        let refused = logind.delay().await.expect_err("it is not given").to_string();
        assert_eq!(refused, "Inhibit: it goes down already: org.example.No");
        let nothing = logind.delay().await.expect_err("nothing came").to_string();
        assert!(nothing.contains("without a descriptor"), "{nothing}");
        let ended = logind.prepares_for_shutdown().await.expect_err("it has ended");
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
    });
}

#[test]
fn invalid_bytes_from_the_bus_only_end_the_connection() {
    let good = [
        message(4, 0, ":1.4", "PrepareForShutdown", "b", &[1, 0, 0, 0]),
        message(2, 3, ":1.4", "", "s", &text("x")),
        message(3, 3, ":1.4", "", "s", &text("x")),
        message(2, 3, ":1.4", "", "v", &[1, b't', 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]),
    ];
    let mut seed = 7_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    };
    for message in &good {
        assert!(Message::parse(message).is_some());
        for cut in 0..message.len() {
            let _ = Message::parse(&message[..cut]);
            let _ = message::length(&message[..cut]);
        }
        for _ in 0..20_000 {
            let mut bad = message.clone();
            for _ in 0..1 + random() % 4 {
                let place = random() % bad.len();
                bad[place] = random() as u8;
            }
            let _ = Message::parse(&bad);
            assert!(message::length(&bad).is_none_or(|length| length <= 64 * 1024));
        }
    }
    let mut long = good[0].clone();
    long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(message::length(&long), None);
    let mut neither = good[0].clone();
    neither[good[0].len() - 4] = 2;
    assert!(Message::parse(&neither).is_none(), "a boolean is one of two");
}

#[test]
fn an_encoded_bus_call_decodes_to_the_same_call() {
    let call = message::call(5, ["org.example.A", "/a", "org.example.B", "Do"], &["one", "", "three"]);
    assert_eq!(message::length(&call), Some(call.len()));
    let read = Message::parse(&call).expect("it is whole");
    assert_eq!((read.kind, &*read.member, read.body), (Kind::Other, "Do", Body::Text("one".to_owned())));
}
