//! Forwards TCP to a unix socket, because kubectl does not support unix sockets. People use `ssh -L
//! port:api.sock` for this.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A forwarder, which runs until it is dropped.
pub struct Forwarder {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
    /// The connections to the socket, including closed ones.
    inside: Arc<Mutex<Vec<UnixStream>>>,
}

impl Forwarder {
    /// Listens on a free port of 127.0.0.1 for connections to `socket`.
    pub fn start(socket: &Path) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let ended = Arc::new(AtomicBool::new(false));
        let (seen, socket) = (Arc::clone(&ended), PathBuf::from(socket));
        let all: Arc<Mutex<Vec<UnixStream>>> = Arc::default();
        let made = Arc::clone(&all);
        thread::spawn(move || {
            for connection in listener.incoming() {
                if seen.load(Ordering::SeqCst) {
                    return;
                }
                // The client notices a failed connection: the agent may be dead on purpose.
                let Ok(outside) = connection else { continue };
                let Ok(inside) = UnixStream::connect(&socket) else { continue };
                made.lock().unwrap_or_else(PoisonError::into_inner).extend(inside.try_clone());
                if let Err(error) = join(outside, inside) {
                    eprintln!("forwarder: {error}");
                }
            }
        });
        Ok(Self { address, ended, inside: all })
    }

    /// Cuts all existing connections. Otherwise the agent may not notice a client that is killed while it is
    /// blocked, behind the data that it had sent before.
    pub fn cut(&self) {
        for inside in self.inside.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = inside.shutdown(Shutdown::Both);
        }
    }

    /// The address `127.0.0.1:PORT`.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // Wakes the thread, which then notices the end.
        let _ = TcpStream::connect(self.address);
    }
}

fn join(outside: TcpStream, inside: UnixStream) -> io::Result<()> {
    let (mut from_outside, mut to_inside) = (outside.try_clone()?, inside.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from_outside, &mut to_inside);
        let _ = to_inside.shutdown(Shutdown::Write);
    });
    let (mut from_inside, mut to_outside) = (inside, outside);
    thread::spawn(move || {
        let _ = io::copy(&mut from_inside, &mut to_outside);
        let _ = to_outside.shutdown(Shutdown::Write);
        // The list keeps the descriptor open: shut it down, so that a writer notices that nobody reads.
        let _ = from_inside.shutdown(Shutdown::Read);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    #[test]
    fn bytes_and_the_end_of_the_stream_pass_both_ways() {
        let socket = std::env::temp_dir().join(format!("nodlet-forward-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&socket).unwrap();
        let server = thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut question = String::new();
            connection.read_to_string(&mut question).unwrap();
            connection.write_all(format!("{question}!").as_bytes()).unwrap();
        });
        let forwarder = Forwarder::start(&socket).unwrap();
        let mut client = TcpStream::connect(forwarder.address()).unwrap();
        client.write_all(b"hello").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        server.join().unwrap();
        std::fs::remove_file(&socket).unwrap();
        assert_eq!(answer, "hello!");
    }
}
