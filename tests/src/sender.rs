//! [`Sender`]: a program that sends UDP from one port for as long as it runs, as sensors and clients of syslog do. The
//! kernel keeps an entry of each, which can outlive what it leads to.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::namespace::Namespace;

/// Sends a word again and again, always from the same port, until it is dropped.
pub struct Sender {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sender {
    /// Begins to send from a namespace to an address at which nobody listens. Returns when the board has refused a packet,
    /// which shows that its kernel has an entry of the sender.
    #[track_caller]
    pub fn begin(from: &Namespace, to: &str, word: &'static str) -> Sender {
        let address = to.to_owned();
        let socket = from.call(move || {
            let any = if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            let socket = UdpSocket::bind(any).expect("a port is free");
            socket.connect(address).expect("there is a route");
            socket
        });
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a time");
        let mut refused = false;
        for _ in 0..1500 {
            let _ = socket.send(word.as_bytes());
            if socket.recv(&mut [0; 1]).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
                refused = true;
                break;
            }
        }
        assert!(refused, "{to} refuses nothing");
        let ends = Arc::new(AtomicBool::new(false));
        let has_ended = ends.clone();
        let thread = std::thread::spawn(move || {
            while !has_ended.load(Ordering::Relaxed) {
                let _ = socket.send(word.as_bytes());
                // Waits for 20 ms, or for a refusal.
                let _ = socket.recv(&mut [0; 1]);
            }
        });
        Sender { ends, thread: Some(thread) }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
