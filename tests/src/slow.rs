//! A directory on a slow card: a file system in user space that answers when the test lets it.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use nix::mount::{MntFlags, umount2};

use crate::Device;
use crate::fuse::{self, Answers, FILE, ROOT, ask};

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
        let card = Arc::<Card>::default();
        fuse::mount(&path, card.clone());
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
}

impl Answers for Card {
    fn answer(&self, opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, nix::Error> {
        if opcode == ask::INIT {
            return Ok(fuse::greeting());
        }
        let mut state = self.state();
        while state.is_stalled {
            state.is_asked = true;
            state = self.answers.wait(state).expect("nobody panics with it");
        }
        let number = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("eight bytes"));
        match opcode {
            ask::LOOKUP if body.strip_suffix(b"\0") == Some(state.name.as_bytes()) => {
                Ok(fuse::entry(FILE, &attributes(FILE, &state)))
            }
            ask::LOOKUP => Err(nix::Error::ENOENT),
            ask::GETATTR => Ok(fuse::kept(&attributes(node, &state))),
            ask::OPEN => Ok(fuse::opened()),
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

/// The attributes of a node in this state.
fn attributes(node: u64, state: &State) -> Vec<u8> {
    match node {
        ROOT => fuse::attributes(node, 0, libc::S_IFDIR | 0o755, state.version),
        _ => fuse::attributes(node, state.text.len() as u64, libc::S_IFREG | 0o644, state.version),
    }
}
