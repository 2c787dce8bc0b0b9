//! A directory on a slow card: a file system in user space that answers when the test lets it. The protocol
//! is that of `linux/fuse.h`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::Device;

/// Bytes of a request; the kernel asks for room for at least 8 KiB.
const REQUEST: usize = 64 << 10;

/// Bytes before the body of a request.
const HEADER: usize = 40;

const ROOT: u64 = 1;

/// The one file.
const FILE: u64 = 2;

/// Requests, as `enum fuse_opcode` numbers them.
mod ask {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
}

/// A directory with one file, on a card whose reads may take as long as the test wants. Drop it
/// before the device.
pub struct SlowDirectory {
    path: PathBuf,
    card: Arc<Card>,
}

#[derive(Default)]
struct Card {
    state: Mutex<State>,
    answers: Condvar,
}

#[derive(Default)]
struct State {
    name: String,
    text: String,
    /// Counts the texts: the time at which the file was changed.
    version: u64,
    is_stalled: bool,
    /// A read waits.
    is_asked: bool,
}

impl SlowDirectory {
    /// Puts the directory at a path of the device, with a file of this name and text. It answers at once.
    pub fn mount(device: &Device, inside: &str, name: &str, text: &str) -> Self {
        let path = device.path(inside);
        std::fs::create_dir_all(&path).expect("the root can be written to");
        let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("the kernel has FUSE");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", fuse.as_raw_fd());
        mount(Some("slow"), &path, Some("fuse"), MsFlags::empty(), Some(&*options)).expect("root can mount");
        let card = Arc::<Card>::default();
        let serving = card.clone();
        thread::spawn(move || serving.serve(fuse));
        let slow = Self { path, card };
        name.clone_into(&mut slow.card.state().name);
        slow.write(text);
        slow
    }

    /// Changes the file, without a notification.
    pub fn write(&self, text: &str) {
        let mut state = self.card.state();
        text.clone_into(&mut state.text);
        state.version += 1;
    }

    /// Stops answering reads.
    pub fn stall(&self) {
        let mut state = self.card.state();
        (state.is_stalled, state.is_asked) = (true, false);
    }

    /// Whether a reader waits for an answer.
    pub fn is_awaited(&self) -> bool {
        self.card.state().is_asked
    }

    /// Answers all reads again.
    pub fn recover(&self) {
        self.card.state().is_stalled = false;
        self.card.answers.notify_all();
    }
}

impl Drop for SlowDirectory {
    fn drop(&mut self) {
        self.recover();
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
    }
}

impl Card {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    /// Answers until the file system is unmounted everywhere.
    fn serve(&self, mut fuse: File) {
        let mut request = vec![0; REQUEST];
        loop {
            let Ok(size) = fuse.read(&mut request) else { return };
            let number = |at: usize| u64::from_le_bytes(request[at..at + 8].try_into().expect("eight bytes"));
            let opcode = (number(0) >> 32) as u32;
            let body = &request[HEADER..size];
            if [ask::FORGET, ask::BATCH_FORGET, ask::INTERRUPT].contains(&opcode) {
                continue;
            }
            let answer = self.answer(opcode, number(16), body);
            let (error, data) = match answer {
                Ok(data) => (0, data),
                Err(errno) => (-(errno as i32), Vec::new()),
            };
            let mut reply = Vec::new();
            reply.extend((16 + data.len() as u32).to_le_bytes());
            reply.extend(error.to_le_bytes());
            reply.extend(number(8).to_le_bytes());
            reply.extend(data);
            // The reader may have died.
            let _ = fuse.write_all(&reply);
        }
    }

    fn answer(&self, opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, nix::Error> {
        if opcode == ask::INIT {
            return Ok(greeting());
        }
        let mut state = self.state();
        while state.is_stalled {
            state.is_asked = true;
            state = self.answers.wait(state).expect("nobody panics with it");
        }
        let number = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("eight bytes"));
        match opcode {
            ask::LOOKUP if body.strip_suffix(b"\0") == Some(state.name.as_bytes()) => {
                // The node, which must not be cached.
                let mut entry = [FILE, 0, 0, 0, 0].map(u64::to_le_bytes).concat();
                entry.extend(attributes(FILE, &state));
                Ok(entry)
            }
            ask::LOOKUP => Err(nix::Error::ENOENT),
            ask::GETATTR => {
                let mut kept = [0_u64; 2].map(u64::to_le_bytes).concat();
                kept.extend(attributes(node, &state));
                Ok(kept)
            }
            // `FOPEN_DIRECT_IO`: the kernel keeps no pages.
            ask::OPEN => Ok([0_u64, 1].map(u64::to_le_bytes).concat()),
            ask::OPENDIR => Ok([0_u64, 0].map(u64::to_le_bytes).concat()),
            ask::READ => {
                let from = (number(8) as usize).min(state.text.len());
                let size = number(16) as u32 as usize;
                Ok(state.text.as_bytes()[from..].iter().take(size).copied().collect())
            }
            ask::READDIR if number(8) == 0 => {
                let mut entry = [FILE, 1].map(u64::to_le_bytes).concat();
                entry.extend((state.name.len() as u32).to_le_bytes());
                entry.extend(u32::from(libc::DT_REG).to_le_bytes());
                entry.extend(state.name.as_bytes());
                entry.resize(entry.len().next_multiple_of(8), 0);
                Ok(entry)
            }
            ask::READDIR | ask::RELEASE | ask::RELEASEDIR | ask::FLUSH => Ok(Vec::new()),
            _ => Err(nix::Error::ENOSYS),
        }
    }
}

/// `struct fuse_init_out` of protocol 7.31, without anything that may be left out.
fn greeting() -> Vec<u8> {
    let mut greeting = [7_u32, 31, 0, 0, 0, 4096, 1].map(u32::to_le_bytes).concat();
    greeting.resize(64, 0);
    greeting
}

/// `struct fuse_attr`.
fn attributes(node: u64, state: &State) -> Vec<u8> {
    let (size, mode) = if node == ROOT {
        (0, libc::S_IFDIR | 0o755)
    } else {
        (state.text.len() as u64, libc::S_IFREG | 0o644)
    };
    let time = state.version;
    let mut attributes = [node, size, 0, time, time, time].map(u64::to_le_bytes).concat();
    attributes.extend([0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_le_bytes).concat());
    attributes
}
