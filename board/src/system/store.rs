//! Updates on the data partition: `var/lib/nodlet/system` has `state.json` and a file for each
//! nodlet, named by its SHA-256.
//!
//! Whatever is written has another name first, is synced, and is then renamed, and the directory is
//! synced: after a power cut at any moment, the state is the old one or the new one, and it names
//! complete files only. A program is read and compared with its digest before it is executed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

use super::state::State;

/// The state, in the directory.
const STATE: &str = "state.json";

/// What is being written has this end.
const NEW: &str = "new";

/// The file whose lock whoever changes the state has, from the read to the write.
const CHANGES: &str = "changes";

/// A state that is larger is none of ours: it names at most all pods of a board.
const STATE_BYTES: u64 = 256 * 1024;

/// The directory of updates.
#[derive(Clone, Debug)]
pub(super) struct Store {
    directory: PathBuf,
}

/// Nobody else changes the state. Ends with the process, and with each copy that a fork has made.
pub(super) type Lock = Flock<File>;

impl Store {
    pub(super) fn new(root: &Path) -> Store {
        Store { directory: root.join("var/lib/nodlet/system") }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes the directory.
    pub(super) fn create(&self) -> io::Result<()> {
        if self.directory.is_dir() {
            return Ok(());
        }
        fs::create_dir_all(&self.directory)?;
        self.directory.parent().map_or(Ok(()), sync_directory)
    }

    /// The lock, if it is free within that time. Whoever tries an update out has it until that is over.
    pub(super) fn lock(&self, within: Duration) -> io::Result<Option<Lock>> {
        let end = Instant::now() + within;
        let mut directory = File::open(&self.directory)?;
        loop {
            match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Some(lock)),
                Err((file, nix::Error::EWOULDBLOCK)) if Instant::now() < end => directory = file,
                Err((_, nix::Error::EWOULDBLOCK)) => return Ok(None),
                Err((_, error)) => return Err(error.into()),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until nobody else changes the state: unlike [`Store::lock`], which lasts as long as a
    /// trial, this is held for one change.
    pub(super) fn changing(&self) -> io::Result<Lock> {
        let path = self.directory.join(CHANGES);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
    }

    /// The state; the first one if there is none.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub(super) fn read(&self) -> io::Result<State> {
        let path = self.directory.join(STATE);
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
            file => file.map_err(named)?,
        };
        let mut text = Vec::new();
        file.take(STATE_BYTES).read_to_end(&mut text).map_err(named)?;
        serde_json::from_slice(&text).map_err(|error| named(error.into()))
    }

    /// Writes the state. On an error the one before is still there.
    pub(super) fn write(&self, state: &State) -> io::Result<()> {
        let new = self.directory.join(STATE).with_extension(NEW);
        step()?;
        let mut file = File::create(&new)?;
        step()?;
        file.write_all(&serde_json::to_vec(state)?)?;
        step()?;
        file.sync_all()?;
        step()?;
        fs::rename(&new, self.directory.join(STATE))?;
        step()?;
        sync_directory(&self.directory)
    }

    /// An empty file for a program.
    pub(super) fn new_program(&self) -> io::Result<File> {
        let new = self.directory.join(NEW);
        step()?;
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o700).open(new)
    }

    /// Puts what was written to [`Store::new_program`] in its place.
    pub(super) fn add_program(&self, file: &File, digest: &str) -> io::Result<()> {
        step()?;
        file.sync_all()?;
        step()?;
        fs::rename(self.directory.join(NEW), self.program(digest))?;
        step()?;
        sync_directory(&self.directory)
    }

    pub(super) fn program(&self, digest: &str) -> PathBuf {
        self.directory.join(digest)
    }

    /// Removes every file that the state does not need. What remains because of an error is removed
    /// the next time.
    pub(super) fn clean(&self, state: &State) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name.to_str().is_none_or(|name| ![STATE, CHANGES].contains(&name) && !state.needs(name))
                && step().is_ok()
            {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Whether the file of a program has the content that it was installed with.
    pub(super) fn verify(&self, digest: &str) -> Result<(), String> {
        match digest_of(&self.program(digest)) {
            Ok(found) if found == digest => Ok(()),
            Ok(_) => Err("its file is damaged".into()),
            Err(error) => Err(format!("its file cannot be read: {error}")),
        }
    }
}

/// Called before each change of the flash, so that tests can cut the power there.
#[cfg(not(test))]
fn step() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
use super::power::step;

/// A rename lasts once the directory is written.
fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// SHA-256 of a file, in hex.
pub(super) fn digest_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&buffer[..read]),
        }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes to a program and counts what passes.
pub(super) struct Written<'a> {
    file: &'a mut File,
    hash: Sha256,
}

impl<'a> Written<'a> {
    pub(super) fn new(file: &'a mut File) -> Self {
        Written { file, hash: Sha256::new() }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        step()?;
        self.file.write_all(bytes)
    }

    pub(super) fn digest(self) -> String {
        hex(&self.hash.finalize())
    }
}
