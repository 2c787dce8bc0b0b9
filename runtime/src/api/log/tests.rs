use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::Request;
use crate::api::tests::{call, key, pod, with_api_on};
use crate::storage_thread::Storage;
use nodlet_registry::objects::Objects;

fn web(count: u64, state: Value, last: Value) -> Value {
    let mut web = pod("web", "Running");
    web["status"]["containerStatuses"] =
        json!([{"name": "app", "restartCount": count, "state": state, "lastState": last}]);
    web
}

fn running(count: u64) -> Value {
    web(count, json!({"running": {}}), json!({}))
}

fn directory(root: &TempDir) -> PathBuf {
    let directory = root.path().join("var/log/pods/default_web_uid-web/app");
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}

fn line(text: &str) -> String {
    format!("2026-01-31T12:00:00.000000001Z stdout F {text}\n")
}

/// Runs the API with a pod that has this status, and `client` in its own thread.
fn with_web<T: Send + 'static>(
    root: &TempDir,
    web: Value,
    client: impl FnOnce(PathBuf) -> T + Send + 'static,
) -> T {
    let objects = Rc::new(Objects::new(0));
    objects.put(key("web"), web);
    with_engine(root, objects, |_| {}, client)
}

/// Runs the API with `engine`, and `client` in its own thread.
fn with_engine<T: Send + 'static>(
    root: &TempDir,
    objects: Rc<Objects>,
    engine: impl FnMut(Request),
    client: impl FnOnce(PathBuf) -> T + Send + 'static,
) -> T {
    with_api_on(Storage::start().expect("the kernel has a thread"), root.path(), objects, engine, client)
}

const LOG: &str = "/api/v1/namespaces/default/pods/web/log";

fn log(socket: &Path, query: &str) -> (u16, String) {
    call(socket, "GET", &format!("{LOG}?{query}"), "", "")
}

fn append(path: &Path, text: &str) {
    let mut file = std::fs::File::options().create(true).append(true).open(path).expect("a log");
    file.write_all(line(text).as_bytes()).expect("written");
}

#[test]
fn the_run_that_is_asked_for_is_shown() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = directory(&root);
    for run in 0..3 {
        append(&directory.join(format!("{run}.log")), &format!("run {run}"));
    }
    let ended = || json!({"terminated": {"exitCode": 1}});
    let waits = |reason: &str| json!({"waiting": {"reason": reason}});
    let running = || json!({"running": {}});
    for (status, query, code, expected) in [
        (web(2, running(), ended()), "", 200, "run 2\n"),
        (web(2, running(), ended()), "previous=true", 200, "run 1\n"),
        (web(2, ended(), ended()), "", 200, "run 2\n"),
        (web(2, waits("CrashLoopBackOff"), ended()), "", 200, "run 2\n"),
        (web(2, waits("CrashLoopBackOff"), ended()), "previous=true", 200, "run 2\n"),
        (web(0, running(), json!({})), "container=app", 200, "run 0\n"),
        (web(0, running(), json!({})), "previous=true", 400, "previous terminated container"),
        (web(0, waits("ContainerCreating"), json!({})), "", 400, "is waiting to start: ContainerCreating"),
        (web(0, waits("ImagePullBackOff"), json!({})), "", 400, "to start: trying and failing to pull image"),
        (web(0, running(), json!({})), "container=db", 400, "container db is not valid for pod web"),
        (json!({"spec": pod("web", "Pending")["spec"]}), "", 400, "is not available"),
    ] {
        let answer = with_web(&root, status, move |socket| log(&socket, query));
        assert_eq!(answer.0, code, "{query}: {}", answer.1);
        assert!(answer.1.contains(expected), "{query}: {}", answer.1);
    }
}

#[test]
fn a_hanging_card_delays_log_readers_only() {
    let root = tempfile::tempdir().expect("a directory");
    append(&directory(&root).join("0.log"), "at last");
    let objects = Rc::new(Objects::new(0));
    objects.put(key("web"), running(0));
    let storage = Storage::start().expect("the kernel has a thread");
    let (answer, card) = std::sync::mpsc::channel::<()>();
    drop(storage.run(move || card.recv()));
    with_api_on(
        storage,
        root.path(),
        objects,
        |_| {},
        move |socket| {
            let path = "/api/v1/namespaces/default/pods/web";
            let reader = socket.clone();
            let reader = std::thread::spawn(move || log(&reader, "tailLines=1"));
            for _ in 0..3 {
                assert_eq!(call(&socket, "GET", path, "", "").0, 200);
            }
            assert!(!reader.is_finished());
            answer.send(()).expect("the card waits");
            let (code, text) = reader.join().expect("it is answered");
            assert!(code == 200 && text.contains("at last\n"), "{code} {text}");
        },
    );
}

/// Tests that a file that never responds is not opened, because it would block the storage thread.
#[test]
fn a_log_request_neither_blocks_on_a_fifo_nor_shows_the_target_of_a_link() {
    let root = tempfile::tempdir().expect("a directory");
    let path = directory(&root).join("0.log");
    let secret = root.path().join("secret");
    std::fs::write(&secret, line("the machine's")).expect("written");
    with_web(&root, running(0), move |socket| {
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        let (code, text) = log(&socket, "");
        assert!(code == 500 && text.contains("0.log: not a regular file"), "{code} {text}");
        std::fs::remove_file(&path).expect("it is there");
        std::os::unix::fs::symlink(&secret, &path).expect("a link");
        let (code, text) = log(&socket, "");
        assert!(code == 500 && text.contains("failed to open"), "{code} {text}");
    });
}

#[test]
fn options_narrow_what_is_shown() {
    let root = tempfile::tempdir().expect("a directory");
    let path = directory(&root).join("0.log");
    for number in 0..3000 {
        append(&path, &format!("line {number} {}", "x".repeat(30)));
    }
    append(&path, "last");
    with_web(&root, running(0), |socket| {
        // The text contains chunks of the transfer encoding, so that only parts of it are compared.
        for (query, is_shown, expected) in [
            ("tailLines=1", true, "\r\nlast\n\r\n"),
            ("tailLines=1", false, "line"),
            ("tailLines=2000", true, "\r\nline 1001 "),
            ("tailLines=2000", false, "line 1000 "),
            ("tailLines=9999", true, "line 0 "),
            ("tailLines=0", false, "line"),
            ("limitBytes=4", true, "\r\nline\r\n"),
            ("timestamps=true&tailLines=1", true, "2026-01-31T12:00:00.000000001Z last"),
            ("sinceTime=2026-02-01T00:00:00Z", false, "line"),
        ] {
            let (code, body) = log(&socket, query);
            assert_eq!((code, body.contains(expected)), (200, is_shown), "{query}: {expected}");
        }
        for (query, expected) in [
            ("sinceTime=2026-02-01T00:00:00Z&sinceSeconds=3", "at most one of sinceTime or sinceSeconds"),
            ("sinceSeconds=0", "must be a number greater than or equal to 1"),
            ("sinceTime=yesterday%C3%A9", "must be a time"),
            ("tailLines=-1", "tailLines: Invalid value"),
            ("stream=Stdout&tailLines=1", "mutually exclusive"),
        ] {
            let (code, body) = log(&socket, query);
            assert!(code == 400 && body.contains(expected), "{query}: {code} {body}");
        }
    });
}

#[test]
fn following_goes_on_over_rotations_and_ends_with_the_container() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = directory(&root);
    let path = directory.join("0.log");
    append(&path, "before");
    let objects = Rc::new(Objects::new(0));
    objects.put(key("web"), running(0));
    let changing = objects.clone();
    // The client requests a deletion to make the container end.
    let engine = move |request| {
        if let Request::Delete { reply, .. } = request {
            changing.put(key("web"), web(0, json!({"terminated": {"exitCode": 0}}), json!({})));
            let _ = reply.try_send(Ok(Value::Null));
        }
    };
    with_engine(&root, objects, engine, move |socket| {
        let mut stream = UnixStream::connect(&socket).expect("the API listens");
        write!(stream, "GET {LOG}?follow=true HTTP/1.0\r\n\r\n").expect("sent");
        let mut reader = BufReader::new(stream);
        let mut next = || loop {
            let mut text = String::new();
            assert!(reader.read_line(&mut text).expect("more") > 0, "the log ended early");
            if !text.contains(':') && text.trim() != "" && !text.starts_with("HTTP") {
                return text.trim().to_owned();
            }
        };
        assert_eq!(next(), "before");
        append(&path, "live");
        assert_eq!(next(), "live");
        for rotation in 0..3 {
            append(&path, &format!("last of {rotation}"));
            std::fs::rename(&path, directory.join(format!("0.log.{rotation}"))).expect("renamed");
            append(&path, &format!("first after {rotation}"));
            assert_eq!(next(), format!("last of {rotation}"));
            assert_eq!(next(), format!("first after {rotation}"));
        }
        append(&path, "words");
        call(&socket, "DELETE", "/api/v1/namespaces/default/pods/web", "", "");
        assert_eq!(next(), "words");
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("the end");
        assert_eq!(rest, "");
    });
}

/// Runs another test of this file in a user namespace in which all instances of inotify are in use, so that no other
/// process is affected.
#[test]
fn following_goes_on_when_the_instances_of_inotify_are_used_up() {
    let other = "api::log::tests::following_goes_on_over_rotations_and_ends_with_the_container";
    let script = "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\"";
    let program = std::env::current_exe().expect("this program");
    let run = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", script, "sh"])
        .arg(program)
        .args(["--exact", other, "--nocapture"])
        .output()
        .expect("unshare of util-linux runs");
    let text = [run.stdout, run.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(run.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn the_last_line_of_a_file_without_ends_of_lines_is_not_looked_for_without_end() {
    let root = tempfile::tempdir().expect("a directory");
    let path = directory(&root).join("0.log");
    append(&path, "first");
    // The file consists of zeros and has the maximum size of the file system: a pod that collects logs can
    // make one.
    let file = std::fs::File::options().write(true).open(&path).expect("a log");
    file.set_len(1 << 42).expect("it has no blocks");
    let answer = with_web(&root, running(0), |socket| log(&socket, "tailLines=1&limitBytes=10"));
    // The response contains only the end of the chunks.
    assert_eq!((answer.0, answer.1.as_str()), (200, "0\r\n\r\n"));
}

#[test]
fn a_log_that_is_not_followed_ends_where_it_was_when_it_was_requested() {
    let root = tempfile::tempdir().expect("a directory");
    let file = directory(&root).join("0.log");
    // More than a client and the socket take without reading.
    (0..20_000).for_each(|number| append(&file, &format!("line {number} {:200}", "")));
    let path = file.clone();
    let lines = with_web(&root, running(0), move |socket| {
        let mut stream = UnixStream::connect(socket).expect("the API listens");
        write!(stream, "GET {LOG}?tailLines=10000 HTTP/1.0\r\n\r\n").expect("sent");
        let mut first = [0; 1];
        stream.read_exact(&mut first).expect("an answer");
        append(&path, "late");
        let mut rest = String::new();
        stream.read_to_string(&mut rest).expect("the rest");
        let lines = rest.lines().filter(|line| line.starts_with("line") || *line == "late");
        lines.map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(lines.len(), 10_000, "{:?}", lines.last());
    assert!(lines.last().is_some_and(|line| line.starts_with("line 19999")), "{:?}", lines.last());
}

#[test]
fn log_requests_do_not_follow_symbolic_links() {
    let root = tempfile::tempdir().expect("a directory");
    let directory = directory(&root);
    let elsewhere = root.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("made");
    append(&elsewhere.join("0.log"), "a secret");
    for (place, target) in [
        (directory.join("0.log"), elsewhere.join("0.log")),
        (directory.clone(), elsewhere.clone()),
        (directory.parent().expect("there is one").to_owned(), root.path().to_owned()),
    ] {
        let _ = std::fs::remove_dir_all(&place);
        std::os::unix::fs::symlink(&target, &place).expect("linked");
        for query in ["", "follow=true", "tailLines=1"] {
            let answer = with_web(&root, running(0), move |socket| log(&socket, query));
            assert_eq!(answer.0, 500, "{} {query}: {}", place.display(), answer.1);
            assert!(!answer.1.contains("a secret"), "{}", answer.1);
        }
        std::fs::remove_file(&place).expect("removed");
        let _ = std::fs::create_dir_all(&directory);
    }
}
