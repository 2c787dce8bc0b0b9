//! Tests of watches over a real socket.

use super::*;

/// Reads the events of a watch, one line each.
struct Events(std::io::BufReader<UnixStream>);

impl Events {
    fn of(socket: &std::path::Path, target: &str) -> Events {
        let mut stream = UnixStream::connect(socket).expect("the API listens");
        // HTTP/1.0 has no chunks, so that lines are not split.
        write!(stream, "GET {target} HTTP/1.0\r\n\r\n").expect("sent");
        Events(std::io::BufReader::new(stream))
    }

    fn next(&mut self) -> Option<Value> {
        use std::io::BufRead;
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line.starts_with('{') {
                return serde_json::from_str(&line).ok();
            }
        }
    }

    fn shows(&mut self, kind: &str, name: &str) {
        let event = self.next().expect("another event");
        assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!(kind), &json!(name)));
    }
}

#[test]
fn a_watch_goes_on_where_the_list_ended() {
    let objects = Rc::new(Objects::new(0));
    objects.put(key("web"), pod("web", "Pending"));
    let version = objects.version();
    objects.put(key("db"), pod("db", "Pending"));
    let changing = objects.clone();
    // The client continues the test by a request for a deletion.
    let engine = move |request| match request {
        Request::Delete { name, reply, .. } => {
            match name.as_str() {
                "web" => drop(changing.put(key("web"), pod("web", "Running"))),
                _ => drop(changing.delete(&key(&name))),
            }
            let _ = reply.try_send(Ok(Value::Null));
        }
        other => panic!("{other:?}"),
    };
    with_api(objects, engine, move |socket| {
        let mut all = Events::of(&socket, &format!("/api/v1/pods?watch=true&resourceVersion={version}"));
        all.shows("ADDED", "db");
        let mut running = Events::of(&socket, "/api/v1/pods?watch=1&fieldSelector=status.phase%3DRunning");
        let mut from_the_start = Events::of(
            &socket,
            "/api/v1/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
        );
        from_the_start.shows("ADDED", "db");
        from_the_start.shows("ADDED", "web");
        let end = from_the_start.next().expect("a bookmark");
        assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
        call(&socket, "DELETE", "/api/v1/namespaces/default/pods/web", "", "");
        all.shows("MODIFIED", "web");
        running.shows("ADDED", "web");
        call(&socket, "DELETE", "/api/v1/namespaces/default/pods/db", "", "");
        all.shows("DELETED", "db");
        // The version is from another boot.
        let mut expired = Events::of(&socket, "/api/v1/pods?watch=true&resourceVersion=999999");
        let event = expired.next().expect("an error");
        assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
        assert_eq!(event["object"]["reason"], "Expired");
        assert!(expired.next().is_none(), "and then it ends");
        // The watch ends at the client's own deadline.
        let mut short =
            Events::of(&socket, "/api/v1/pods?watch=true&resourceVersion=999999&timeoutSeconds=0");
        while short.next().is_some() {}
    });
}

#[test]
fn a_watcher_that_does_not_read_uses_no_memory_and_catches_up_later() {
    let objects = Rc::new(Objects::new(0));
    let changing = objects.clone();
    let mut number = 0;
    let engine = move |request| {
        if let Request::Delete { reply, .. } = request {
            for _ in 0..2000 {
                number += 1;
                let mut web = pod("web", "Running");
                web["metadata"]["annotations"] = json!({"filling": format!("{number}{}", "x".repeat(2000))});
                changing.put(key("web"), web);
            }
            let _ = reply.try_send(Ok(Value::Null));
        }
    };
    with_api(objects, engine, |socket| {
        let mut slow = Events::of(&socket, "/api/v1/pods?watch=true");
        // An event before the flood shows that the watch exists.
        for _ in 0..10 {
            assert_eq!(call(&socket, "DELETE", "/api/v1/namespaces/default/pods/web", "", "").0, 200);
        }
        let mut last = Value::Null;
        let mut events = 0;
        while let Some(event) = slow.next() {
            last = event;
            events += 1;
        }
        assert!(events < 20_000, "{events} events cannot have fitted");
        assert_eq!(last["object"]["reason"], "Expired", "{last}");
    });
}
