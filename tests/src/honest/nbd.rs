//! [`Export`]: a medium as the disk of a virtual machine, by the protocol NBD
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>) over a unix socket.

use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::Medium;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

/// The fixed newstyle handshake, without zeros at its end.
const HANDSHAKE: u16 = 0b11;

const OPTION_ABORT: u32 = 2;
const OPTION_INFO: u32 = 6;
const OPTION_GO: u32 = 7;

const ACKNOWLEDGED: u32 = 1;
const INFORMATION: u32 = 3;
const UNSUPPORTED: u32 = (1 << 31) + 1;

/// The medium has flags, flushes, trims and writes of zeros. It has no FUA, in place of which a client flushes.
const FLAGS: u16 = 0b110_0101;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;

/// The most bytes of one request that the server accepts.
const REQUEST: usize = 64 << 20;

const INPUT_OUTPUT: u32 = 5;
const INVALID: u32 = 22;

/// The present client, and whether none is accepted any more.
#[derive(Default)]
struct Line {
    client: Option<UnixStream>,
    is_over: bool,
}

/// A socket with a medium for one client after another, until it is dropped.
pub struct Export {
    socket: PathBuf,
    line: Arc<Mutex<Line>>,
}

impl Export {
    /// Serves a medium on a new socket at this path.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn new(medium: Arc<Medium>, socket: &Path) -> io::Result<Export> {
        let _ = fs::remove_file(socket);
        let listener = UnixListener::bind(socket)?;
        let line = Arc::new(Mutex::new(Line::default()));
        let export = Export { socket: socket.to_owned(), line: line.clone() };
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                {
                    let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
                    if line.is_over {
                        return;
                    }
                    line.client = client.try_clone().ok();
                }
                serve(&medium, &client);
            }
        });
        Ok(export)
    }

    /// The name of the medium for QEMU.
    pub fn url(&self) -> String {
        format!("nbd:unix:{}", self.socket.display())
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let client = {
            let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
            line.is_over = true;
            line.client.take()
        };
        if let Some(client) = client {
            let _ = client.shutdown(Shutdown::Both);
        }
        // Ends the thread, which may wait for a client.
        let _ = UnixStream::connect(&self.socket);
        let _ = fs::remove_file(&self.socket);
    }
}

/// Serves one client until it leaves.
fn serve(medium: &Medium, client: &UnixStream) {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let served =
        negotiate(medium, client).and_then(|goes| if goes { transmit(medium, client) } else { Ok(()) });
    match served {
        // A client that is killed does not disconnect.
        Err(error) if !matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe) => {
            eprintln!("nbd: {error}");
        }
        Ok(()) | Err(_) => {}
    }
}

fn take<const N: usize>(mut client: &UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn take_all(mut client: &UnixStream, length: u32) -> io::Result<Vec<u8>> {
    if length as usize > REQUEST {
        return Err(io::Error::other(format!("a request has {length} bytes")));
    }
    let mut bytes = vec![0; length as usize];
    client.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Negotiates with a client. Returns whether requests follow.
fn negotiate(medium: &Medium, mut client: &UnixStream) -> io::Result<bool> {
    client.write_all(
        &[&MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &HANDSHAKE.to_be_bytes()].concat(),
    )?;
    let _: [u8; 4] = take(client)?;
    loop {
        if u64::from_be_bytes(take(client)?) != OPTION_MAGIC {
            return Err(io::Error::other("not an option"));
        }
        let option = u32::from_be_bytes(take(client)?);
        let length = u32::from_be_bytes(take(client)?);
        take_all(client, length)?;
        let reply = |kind: u32, data: &[u8]| {
            let head = [&REPLY_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes()].concat();
            let size = (data.len() as u32).to_be_bytes();
            (&*client).write_all(&[&head[..], &size, data].concat())
        };
        match option {
            OPTION_GO | OPTION_INFO => {
                let export = [&[0, 0][..], &medium.size().to_be_bytes(), &FLAGS.to_be_bytes()].concat();
                reply(INFORMATION, &export)?;
                reply(ACKNOWLEDGED, &[])?;
                if option == OPTION_GO {
                    return Ok(true);
                }
            }
            OPTION_ABORT => {
                reply(ACKNOWLEDGED, &[])?;
                return Ok(false);
            }
            _ => reply(UNSUPPORTED, &[])?,
        }
    }
}

fn transmit(medium: &Medium, mut client: &UnixStream) -> io::Result<()> {
    loop {
        if u32::from_be_bytes(take(client)?) != REQUEST_MAGIC {
            return Err(io::Error::other("not a request"));
        }
        let _flags: [u8; 2] = take(client)?;
        let command = u16::from_be_bytes(take(client)?);
        let cookie: [u8; 8] = take(client)?;
        let at = u64::from_be_bytes(take(client)?);
        let length = u32::from_be_bytes(take(client)?);
        let is_within = at.checked_add(length.into()).is_some_and(|end| end <= medium.size());
        let sent = if command == WRITE { take_all(client, length)? } else { Vec::new() };
        let mut data = Vec::new();
        let done = match command {
            DISCONNECT => return Ok(()),
            FLUSH => {
                medium.flush();
                Ok(())
            }
            _ if !is_within => Err(io::ErrorKind::InvalidInput.into()),
            READ if length as usize <= REQUEST => {
                data.resize(length as usize, 0);
                medium.read(&mut data, at)
            }
            WRITE => medium.write(&sent, at),
            TRIM | WRITE_ZEROES => medium.trim(at, length.into()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        };
        let error = match &done {
            Ok(()) => 0,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => INVALID,
            Err(_) => INPUT_OUTPUT,
        };
        let head = [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &error.to_be_bytes(), &cookie].concat();
        client.write_all(&head)?;
        if done.is_ok() {
            client.write_all(&data)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::honest::ABSENT;

    /// A client that has gone through the handshake.
    fn client(export: &Export) -> UnixStream {
        let client = UnixStream::connect(export.socket.as_path()).expect("it listens");
        let greeting: [u8; 18] = take(&client).expect("a greeting");
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        (&client).write_all(&3_u32.to_be_bytes()).expect("it reads");
        // A name of no length, and no wish.
        let option = |number: u32, data: &[u8]| {
            let head = [&b"IHAVEOPT"[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data];
            (&client).write_all(&head.concat()).expect("it reads");
            let reply: [u8; 20] = take(&client).expect("a reply");
            assert_eq!(&reply[8..12], number.to_be_bytes());
            let length = u32::from_be_bytes(reply[16..].try_into().expect("four bytes"));
            (u32::from_be_bytes(reply[12..16].try_into().expect("four bytes")), take_all(&client, length))
        };
        assert_eq!(option(8, &[]).0, UNSUPPORTED, "structured replies");
        let (kind, information) = option(OPTION_GO, &[0; 6]);
        assert_eq!(kind, INFORMATION);
        let information = information.expect("a size");
        assert_eq!(information[2..10], 4096_u64.to_be_bytes());
        assert_eq!(information[10..], FLAGS.to_be_bytes());
        let _: [u8; 20] = take(&client).expect("an acknowledgement");
        client
    }

    /// Sends a request, and returns the error of the reply.
    fn ask(mut client: &UnixStream, command: u16, at: u64, length: u32, data: &[u8]) -> u32 {
        let head = [&REQUEST_MAGIC.to_be_bytes()[..], &[0, 0], &command.to_be_bytes(), b"a cookie"];
        let rest = [&at.to_be_bytes()[..], &length.to_be_bytes(), data].concat();
        client.write_all(&[&head.concat()[..], &rest].concat()).expect("it reads");
        let reply: [u8; 16] = take(client).expect("a reply");
        assert_eq!(&reply[8..], b"a cookie");
        u32::from_be_bytes(reply[4..8].try_into().expect("four bytes"))
    }

    #[test]
    fn what_a_client_writes_and_flushes_is_in_the_record_and_outlives_the_client() {
        let directory = std::env::temp_dir().join(format!("nodlet-nbd-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("/tmp can be written to");
        let (initial, current) = (directory.join("initial"), directory.join("current"));
        fs::write(&initial, [b'i'; 4096]).expect("/tmp can be written to");
        let medium = Medium::new(&initial, &current).expect("/tmp can be written to");
        let export = Export::new(medium.clone(), &directory.join("socket")).expect("a socket");
        let first = client(&export);
        assert_eq!(ask(&first, READ, 0, 4, &[]), 0);
        assert_eq!(&take::<4>(&first).expect("data"), b"iiii");
        medium.during("thing", "new", || {
            assert_eq!(ask(&first, WRITE, 512, 512, &[b'w'; 512]), 0);
            assert_eq!(ask(&first, FLUSH, 0, 0, &[]), 0);
        });
        assert_eq!(ask(&first, TRIM, 0, 512, &[]), 0);
        for (command, at, length) in [(READ, 4000, 97), (TRIM, u64::MAX, 1), (99, 0, 1)] {
            assert_eq!(ask(&first, command, at, length, &[]), INVALID);
        }
        assert_eq!(ask(&first, WRITE, 4096, 1, b"x"), INVALID);
        drop(first);
        // The next client, as after a reboot, finds what the one before has written.
        let second = client(&export);
        assert_eq!(ask(&second, READ, 510, 4, &[]), 0);
        assert_eq!(&take::<4>(&second).expect("data"), &[0, 0, b'w', b'w']);
        let record = medium.record(&initial);
        assert_eq!((record.writes(), record.flushes()), (1, 1));
        let state = directory.join("state");
        let mut is_trimmed = [false; 2];
        for cut in record.cuts(&mut crate::seed(), 20) {
            record.write(&cut, &state).expect("/tmp can be written to");
            let found = fs::read(&state).expect("it was written");
            if record.allowed(&cut).get("thing").is_some_and(|allowed| !allowed.contains(ABSENT)) {
                assert_eq!(found[512..1024], [b'w'; 512], "{}", record.describe(&cut));
            }
            is_trimmed[usize::from(found[0] == 0)] = true;
        }
        // It was not flushed.
        assert_eq!(is_trimmed, [true; 2]);
        drop(export);
        assert!(!directory.join("socket").exists());
        // The present client is cut off.
        assert!(take::<1>(&second).is_err());
        fs::remove_dir_all(directory).expect("it is there");
    }
}
