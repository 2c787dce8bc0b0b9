//! Requests changed at random, sent to the API over a real socket: each is
//! answered or refused, and the API is there for the next.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use nodlet_fuzz::fuzz;

use super::tests::{Root, call, key, pod, with_api};
use crate::objects::Objects;

/// A watch goes on until its client goes.
const PATIENCE: Duration = Duration::from_millis(50);

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
        request("PATCH /api/v1/namespaces/default/pods/web", r#"{"metadata":{"labels":{"a":null}}}"#),
        request("DELETE /api/v1/namespaces/default/pods/web?gracePeriodSeconds=5", r#"{"propagationPolicy":"Foreground"}"#),
        b"POST /api/v1/namespaces/default/pods HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n0\r\n\r\n".to_vec(),
        b"GET /api/v1/namespaces/default/pods/web/exec?command=sh&stdin=true&stdout=true&tty=true HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\nsec-websocket-protocol: v5.channel.k8s.io\r\n\r\n".to_vec(),
    ]
}

#[test]
fn requests_changed_at_random_are_answered_or_refused() {
    let objects = Rc::new(Objects::new(10));
    objects.put(key("web"), pod("web", "Running"));
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
    // An engine that is busy with other things: it answers nothing.
    with_api(&Root::new(), objects, drop, move |socket| {
        fuzz("API request", 1500, &requests(), &words, |input| {
            let mut stream = UnixStream::connect(&socket).expect("the API listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
            // One that is refused early may not be read to its end.
            let _ = stream.write_all(input);
            let _ = stream.shutdown(Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.take(1 << 20).read_to_end(&mut answer);
            assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{}", answer.escape_ascii());
        });
        assert_eq!(call(&socket, "GET", "/version", "", "").0, 200, "it is still there");
    });
}
