//! [`Forwarding`]: a port of this machine that nodlet or kubectl forwards to a pod.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

/// A forwarder in the background, which ends with the value.
pub struct Forwarding {
    child: Child,
    port: u16,
    errors: mpsc::Receiver<String>,
}

impl Forwarding {
    /// Starts the command, which prints the port of this machine that it listens on.
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be run");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let first = lines.next().expect("it says where it listens").expect("it is text");
        let port = first.strip_prefix("Forwarding from 127.0.0.1:").and_then(|rest| rest.split(' ').next());
        let port = port.and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("{first}"));
        // Keep reading; otherwise the forwarder would block on its own output.
        std::thread::spawn(move || lines.for_each(drop));
        let (say, errors) = mpsc::channel();
        let words = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        std::thread::spawn(move || words.map_while(Result::ok).for_each(|line| drop(say.send(line))));
        Self { child, port, errors }
    }

    /// A new connection through the forwarder.
    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).expect("it listens")
    }

    /// Sends these bytes, ends the input, and returns the complete response.
    pub fn ask(&self, bytes: &[u8]) -> Vec<u8> {
        exchange(self.connect(), bytes)
    }

    /// Waits for a line on stderr that contains this text.
    pub fn wait_for_error(&self, text: &str) {
        let deadline = std::time::Duration::from_secs(60);
        while !self.errors.recv_timeout(deadline).expect("it says why").contains(text) {}
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn exchange(connection: TcpStream, bytes: &[u8]) -> Vec<u8> {
    let mut back = connection.try_clone().expect("a descriptor can be copied");
    let reading = std::thread::spawn(move || {
        let mut answer = Vec::new();
        back.read_to_end(&mut answer).map(|_| answer)
    });
    (&connection).write_all(bytes).expect("it is taken");
    connection.shutdown(Shutdown::Write).expect("it is open");
    reading.join().expect("no reader panics").expect("it is read to its end")
}
