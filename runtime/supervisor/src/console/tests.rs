use std::fs::File;
use std::io::{Read, Write};

use super::*;

/// A console with input, and the container's end of the input pipe.
fn console(stdin_once: bool) -> (Console, File) {
    let (reader, writer) = crate::sys::pipe(true).unwrap();
    (Console::new(Some(writer), stdin_once, false), reader.into())
}

/// The client's ends of its pipes.
struct Far {
    stdin: Option<File>,
    stdout: File,
    stderr: File,
}

fn attach(console: &mut Console) -> Far {
    let pipe = || nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
    let ((stdin, their_stdin), (their_stdout, stdout), (their_stderr, stderr)) = (pipe(), pipe(), pipe());
    console.attach(Some(stdin), [Some(stdout), Some(stderr)], [true, true]).unwrap();
    Far { stdin: Some(their_stdin.into()), stdout: their_stdout.into(), stderr: their_stderr.into() }
}

fn rest_of(mut file: File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn every_client_sees_both_outputs() {
    let (mut console, _container) = console(false);
    let (one, two) = (attach(&mut console), attach(&mut console));
    console.show(Stream::Stdout, b"out");
    console.show(Stream::Stderr, b"err");
    console.close();
    for far in [one, two] {
        assert_eq!((rest_of(far.stdout), rest_of(far.stderr)), ("out".to_owned(), "err".to_owned()));
    }
}

#[test]
fn a_client_that_does_not_read_is_notified_of_the_skipped_bytes() {
    let (mut console, _container) = console(false);
    let (slow, quick) = (attach(&mut console), attach(&mut console));
    let mut quick_out = quick.stdout;
    let line = [b'x'; 1024];
    let mut seen = [0; 1024];
    for _ in 0..1000 {
        console.show(Stream::Stdout, &line);
        quick_out.read_exact(&mut seen).unwrap();
        assert_eq!(seen, line);
    }
    console.close();
    let shown = rest_of(slow.stdout).len();
    assert_eq!(shown, 64 * 1024, "a pipe is as large as that");
    let notice = rest_of(slow.stderr);
    assert!(notice.contains(&format!(" {} bytes of output were skipped", 1000 * 1024 - shown)), "{notice}");
}

#[test]
fn skipped_output_is_reported_despite_closed_streams_and_full_pipes() {
    for open in [[true, false], [false, true]] {
        let (mut console, _container) = console(false);
        let slow = attach(&mut console);
        console.show(Stream::Stdout, &[b'x'; 100 * 1024]);
        console.end(open);
        console.close();
        assert_eq!(rest_of(slow.stdout), "x".repeat(64 * 1024));
        assert!(rest_of(slow.stderr).contains(&format!(" {} bytes", 36 * 1024)), "{open:?}");
    }
    let (mut console, _container) = console(false);
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
    console.attach(None, [Some(writer), None], [true, true]).unwrap();
    console.show(Stream::Stdout, &[b'x'; 100 * 1024]);
    console.close();
    assert!(rest_of(reader.into())[64 * 1024..].contains(&format!(" {} bytes", 36 * 1024)));
}

#[test]
fn a_notice_that_does_not_fit_into_the_pipe_is_sent_later() {
    let (mut console, _container) = console(false);
    let mut slow = attach(&mut console);
    console.show(Stream::Stdout, &[b'x'; 100 * 1024]);
    console.show(Stream::Stderr, &[b'e'; 64 * 1024]);
    let mut read = vec![0; 64 * 1024];
    slow.stdout.read_exact(&mut read).unwrap();
    console.show(Stream::Stdout, b"not shown either");
    slow.stderr.read_exact(&mut read).unwrap();
    console.show(Stream::Stdout, b"again");
    console.close();
    assert_eq!(rest_of(slow.stdout), "again");
    assert!(rest_of(slow.stderr).contains(&format!(" {} bytes", 36 * 1024 + 16)));
}

#[test]
fn a_client_that_reads_again_continues_after_the_notice() {
    let (mut console, _container) = console(false);
    let mut slow = attach(&mut console);
    let piece = vec![b'x'; 100 * 1024];
    console.show(Stream::Stdout, &piece);
    let mut read = vec![0; 64 * 1024];
    slow.stdout.read_exact(&mut read).unwrap();
    console.show(Stream::Stdout, b"again");
    console.close();
    assert_eq!(rest_of(slow.stdout), "again");
    assert!(rest_of(slow.stderr).contains(&format!(" {} bytes", 36 * 1024)));
}

#[test]
fn with_stdin_once_input_ends_with_that_of_the_first_client() {
    let (mut console, container) = console(true);
    let mut far = attach(&mut console);
    far.stdin.as_mut().unwrap().write_all(b"all of it").unwrap();
    console.pump();
    far.stdin = None;
    console.pump();
    assert_eq!(rest_of(container), "all of it");
    console.show(Stream::Stdout, b"and output goes on");
    console.close();
    assert_eq!(rest_of(far.stdout), "and output goes on");
}

#[test]
fn without_stdin_once_input_stays_open_for_another_client() {
    let (mut console, container) = console(false);
    let (mut one, mut two) = (attach(&mut console), attach(&mut console));
    one.stdin.as_mut().unwrap().write_all(b"one ").unwrap();
    one.stdin = None;
    console.pump();
    assert_eq!(rest_of(one.stdout), "");
    two.stdin.as_mut().unwrap().write_all(b"two").unwrap();
    console.pump();
    console.close();
    assert_eq!(rest_of(container), "one two");
}

#[test]
fn at_most_one_piece_of_unread_input_is_buffered_for_a_container() {
    let (mut console, _container) = console(false);
    let far = attach(&mut console);
    let mut stdin = far.stdin.unwrap();
    fcntl(stdin.as_raw_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let mut taken = 0;
    while let Ok(written) = stdin.write(&[b'x'; 4096]) {
        taken += written;
        console.pump();
        console.pump();
    }
    assert!((128 * 1024..=128 * 1024 + PIECE).contains(&taken), "two full pipes and a piece, not {taken}");
    assert!(console.pending.len() <= PIECE);
}

#[test]
fn disconnected_clients_free_their_slots() {
    let (mut console, _container) = console(false);
    for _ in 0..3 * MAX_CLIENTS {
        drop(attach(&mut console));
        console.pump();
    }
    assert!(console.clients.is_empty());
    let _held: Vec<Far> = (0..MAX_CLIENTS).map(|_| attach(&mut console)).collect();
    assert_eq!(
        console.attach(None, [None, None], [true, true]).map_err(|error| error.to_string()),
        Err(format!("attach: {MAX_CLIENTS} clients are attached to the container"))
    );
}

/// The console as the supervisor's next binary has it.
fn taken_over(console: Console) -> Console {
    let saved = serde_json::to_vec(&console).unwrap();
    // An execve keeps the descriptors and drops the memory.
    std::mem::forget(console);
    serde_json::from_slice(&saved).unwrap()
}

#[test]
fn clients_and_input_outlive_the_binary() {
    let (mut console, container) = console(true);
    let mut far = attach(&mut console);
    console.pending = b"left ".to_vec();
    let mut console = taken_over(console);
    assert_eq!(console.descriptors().count(), 4);
    far.stdin.as_mut().unwrap().write_all(b"over").unwrap();
    console.pump();
    console.pump();
    far.stdin = None;
    console.pump();
    assert_eq!(rest_of(container), "left over");
}

#[test]
fn a_client_that_attaches_to_a_terminal_sees_the_waiting_prompt() {
    let attached = |tty: bool, output: &[&[u8]]| {
        let mut console = Console::new(None, false, tty);
        output.iter().for_each(|bytes| console.show(Stream::Stdout, bytes));
        let mut console = taken_over(console);
        let far = attach(&mut console);
        console.close();
        rest_of(far.stdout)
    };
    assert_eq!(attached(true, &[b"hello\r\n", b"/ ", b"# "]), "/ # ");
    assert_eq!(attached(true, &[b"one\r\n/ # ls\r\nbin\r\n/ # "]), "/ # ");
    assert_eq!(attached(true, &[b"/ # ", b"\r\n"]), "", "a line that has ended is in the log");
    let long = [b'x'; PROMPT + 1];
    assert_eq!(attached(true, &[&long]), "", "no prompt is as long");
    assert_eq!(attached(false, &[b"/ # "]), "", "a program that nobody types to");
}

#[test]
fn the_first_client_of_a_container_with_input_sees_earlier_output() {
    let (mut console, _container) = console(false);
    console.show(Stream::Stdout, b"out");
    console.show(Stream::Stderr, b"err");
    let mut console = taken_over(console);
    let (first, second) = (attach(&mut console), attach(&mut console));
    console.show(Stream::Stdout, b" more");
    console.close();
    assert_eq!((rest_of(first.stdout), rest_of(first.stderr)), ("out more".to_owned(), "err".to_owned()));
    assert_eq!((rest_of(second.stdout), rest_of(second.stderr)), (" more".to_owned(), String::new()));
}

#[test]
fn the_first_client_sees_earlier_output_after_the_streams_have_ended() {
    let (mut console, _container) = console(false);
    console.show(Stream::Stdout, b"out");
    console.end([false, false]);
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
    console.attach(None, [Some(writer), None], [false, false]).unwrap();
    assert_eq!(rest_of(reader.into()), "out");
}

fn is_empty(pipe: &OwnedFd) -> bool {
    let mut fds = [nix::poll::PollFd::new(pipe.as_fd(), nix::poll::PollFlags::POLLIN)];
    nix::poll::poll(&mut fds, nix::poll::PollTimeout::ZERO).unwrap() == 0
}

#[test]
fn the_amount_of_skipped_output_is_reported_to_the_first_client() {
    for open in [[true, true], [false, false]] {
        let (mut console, _container) = console(false);
        for _ in 0..65 {
            console.show(Stream::Stdout, &[b'x'; 1024]);
        }
        let pipe = || nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap();
        let ((out, stdout), (err, stderr)) = (pipe(), pipe());
        console.attach(None, [Some(stdout), Some(stderr)], open).unwrap();
        // The container may wait for what this client writes.
        assert!(!is_empty(&err), "it is reported at once");
        console.show(Stream::Stdout, b"more");
        console.close();
        assert_eq!(rest_of(out.into()), if open[0] { "more" } else { "" });
        let notice = rest_of(err.into());
        assert!(notice.contains(&format!(" {} bytes of output were skipped", 65 * 1024)), "{notice}");
    }
}
