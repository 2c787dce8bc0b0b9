//! Sends randomly changed requests to the API over a real socket: each is answered or rejected, and the API
//! serves the next one.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use nodlet_fuzz::fuzz;

use super::tests::{call, pod, pods, with_api};

/// The time to wait for an answer: a watch does not end until its client disconnects.
const PATIENCE: Duration = Duration::from_millis(25);

fn requests() -> Vec<Vec<u8>> {
    let request = |head: &str, body: &str| {
        format!("{head} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    };
    let body = pod("web", "Pending").to_string();
    vec![
        request("GET /api/v1/pods?labelSelector=app%3Dweb,b%20in%20(c,d)&fieldSelector=status.phase!=Running&limit=5", ""),
        request("GET /api/v1/namespaces/default/pods?watch=1&resourceVersion=0&timeoutSeconds=1", ""),
        request("GET /api/v1/namespaces/default/pods/web/log?container=app&tailLines=3&sinceSeconds=9&timestamps=true", ""),
        request("GET /openapi/v3/api/v1?hash=x", ""),
        request("POST /api/v1/namespaces/default/pods?dryRun=All&fieldValidation=Strict", &body),
        request("PUT /api/v1/namespaces/default/pods/web", &body),
        request("PUT /apis/settings.k8s.io/v1alpha1/namespaces/default/podpresets/p", r#"{"apiVersion":"settings.k8s.io/v1alpha1","kind":"PodPreset","metadata":{"name":"p"},"spec":{"env":[{"name":"A"}]}}"#),
        request("PATCH /api/v1/namespaces/default/pods/web", r#"{"metadata":{"labels":{"a":null}}}"#),
        request("DELETE /api/v1/namespaces/default/pods/web?gracePeriodSeconds=5", r#"{"propagationPolicy":"Foreground"}"#),
        b"POST /api/v1/namespaces/default/pods HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n0\r\n\r\n".to_vec(),
        b"GET /api/v1/namespaces/default/pods/web/exec?command=sh&stdin=true&stdout=true&tty=true HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\nsec-websocket-protocol: v5.channel.k8s.io\r\n\r\n".to_vec(),
    ]
}

/// Repairs an input so that it is valid HTTP: the parser of HTTP rejects nine in ten requests that are
/// changed anywhere, so that nothing else would be tested.
fn mended(input: &[u8]) -> Vec<u8> {
    let end = input.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or(input.len());
    let (head, body) = (&input[..end], input.get(end + 4..).unwrap_or_default());
    let mut lines = head.split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let from = first.iter().position(|byte| *byte == b' ').unwrap_or(0);
    let to = first.windows(6).rposition(|end| end == b" HTTP/").unwrap_or(first.len()).max(from);
    let method: String =
        first[..from].iter().filter(|byte| byte.is_ascii_uppercase()).map(|b| *b as char).collect();
    let mut target = "/".to_owned();
    for byte in first[from..to].trim_ascii_start().iter().skip_while(|byte| **byte == b'/') {
        if byte.is_ascii_alphanumeric() || b"/?&=%,():!.-_~+".contains(byte) {
            target.push(*byte as char)
        } else {
            target += &format!("%{byte:02x}")
        }
    }
    let method = if method.is_empty() { "GET" } else { &method };
    let mut request = format!("{method} {target} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n", body.len());
    let mut closes = true;
    for line in lines.filter_map(|line| std::str::from_utf8(line.trim_ascii()).ok()) {
        let Some((name, value)) = line.split_once(':') else { continue };
        let (name, value) = (name.to_ascii_lowercase(), value.trim());
        let is_name =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let upgrades = name == "connection" && value == "upgrade";
        if is_name
            && value.bytes().all(|byte| (b' '..=b'~').contains(&byte))
            && (upgrades || !["host", "content-length", "transfer-encoding", "connection"].contains(&&*name))
        {
            closes &= !upgrades;
            request += &format!("{name}: {value}\r\n");
        }
    }
    if closes {
        request += "connection: close\r\n";
    }
    [request.as_bytes(), b"\r\n", body].concat()
}

/// Returns the answer, and whether it is complete: a watch does not end until its client disconnects.
fn ask(socket: &Path, request: &[u8], goes: bool) -> (Vec<u8>, bool) {
    ask_patiently(socket, request, goes, PATIENCE)
}

/// Asks, and waits for the first byte of the answer for this time.
fn ask_patiently(socket: &Path, request: &[u8], goes: bool, patience: Duration) -> (Vec<u8>, bool) {
    let mut stream = UnixStream::connect(socket).expect("the API listens");
    stream.set_read_timeout(Some(patience)).expect("a timeout can be set");
    // The server may not read all of a request that it rejects early.
    let _ = stream.write_all(request);
    if goes {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = vec![0];
    let first = stream.read(&mut answer);
    answer.truncate(*first.as_ref().unwrap_or(&0));
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    let end = first.and_then(|_| stream.take(1 << 20).read_to_end(&mut answer));
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{}", answer.escape_ascii());
    (answer, end.map_or_else(|error| error.kind() != ErrorKind::WouldBlock, |_| true))
}

#[test]
fn requests_changed_at_random_are_answered_or_refused() {
    let words: [&[u8]; 12] = [
        b"%",
        b"%00",
        b"%ff",
        b"%2e%2e/",
        b"\r\n",
        b"\r\n\r\n",
        b"content-length: 99\r\n",
        b"content-length: -1\r\n",
        b"transfer-encoding: chunked\r\n",
        b"accept: application/json;as=Table;v=v1;g=meta.k8s.io\r\n",
        b"&",
        b"[[[[[[[[",
    ];
    // The API runs in its own thread, so that a panic is reported with the seed of the input that caused it.
    let (say, listening) = mpsc::channel();
    let (done, over) = mpsc::channel::<()>();
    let api = std::thread::spawn(move || {
        // The engine of this test never answers.
        with_api(pods(&[("web", "Running")]), drop, move |socket| {
            say.send(socket).expect("somebody waits for it");
            let _ = over.recv();
        });
    });
    let socket = listening.recv().expect("the API listens");
    for request in requests() {
        // On a busy machine, the largest document takes longer than a client of the fuzzer waits.
        let (answer, _) = ask_patiently(&socket, &mended(&request), false, Duration::from_secs(60));
        assert!(!answer.is_empty(), "{}", request.escape_ascii());
    }
    let (answered, served) = (Cell::new(0), Cell::new(0));
    fuzz("API request", 1500, &requests(), &words, |input| {
        // A client that disconnects at once gets no answer, and must not affect others.
        ask(&socket, input, true);
        let (answer, ended) = ask(&socket, &mended(input), false);
        // Only this client notices a panic, because the executor keeps it with the connection.
        let text = String::from_utf8_lossy(&answer);
        let head = text.split("\r\n\r\n").next().unwrap_or_default();
        let is_whole = !head.contains("\r\ntransfer-encoding: chunked") || text.ends_with("0\r\n\r\n");
        assert!(!ended || (!answer.is_empty() && is_whole), "it ends with {text:?}");
        answered.set(answered.get() + u32::from(!answer.is_empty()));
        served.set(served.get() + u32::from(answer.starts_with(b"HTTP/1.1 200")));
        assert_eq!(call(&socket, "GET", "/version", "", "").0, 200, "it is there for the next");
    });
    println!(
        "API request: {} were answered, {} of them with what was asked for",
        answered.get(),
        served.get()
    );
    drop(done);
    api.join().expect("it does not panic");
}
