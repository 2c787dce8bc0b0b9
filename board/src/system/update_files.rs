//! The storage of updates on the data partition: `var/lib/nodlet/system` has `state.json` and a file for each
//! nodlet, named by its SHA-256.
//!
//! Every file is written under a temporary name, synced and renamed, and then the directory is synced. So
//! after a power cut at any moment the state is the old one or the new one, and names only complete files. The
//! state is written on a full disk, too: the end of a trial must be recorded. A program is compared with its
//! digest before it is executed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nodlet_host::paths::Paths;
use nodlet_kernel::durable::{self, Headroom, SLACK_PREFIX, Staged};
use nodlet_kernel::own_file;
use sha2::{Digest, Sha256};

use super::state::State;

/// The file name of the state.
const STATE: &str = "state.json";

/// The name of a program that is being written.
const NEW: &str = "new";

/// The file whose lock is held for each change of the state, from the read to the write.
const CHANGES: &str = "changes";

/// The largest state file that is read, in bytes: the state names at most all pods of a board.
const STATE_BYTES: u64 = 256 * 1024;

/// The directory of updates.
#[derive(Clone, Debug)]
pub(super) struct UpdateFiles {
    directory: PathBuf,
    paths: Paths,
}

/// A lock of the updates. It ends with the process, including all copies made by forks.
pub(super) type Lock = Flock<File>;

impl UpdateFiles {
    pub(super) fn new(root: &Path) -> UpdateFiles {
        let paths = Paths::new(root);
        UpdateFiles { directory: paths.system(), paths }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Creates the directory, and the file of [`UpdateFiles::changing`] while there is an inode for it.
    pub(super) fn create(&self) -> io::Result<()> {
        if !self.directory.is_dir() {
            fs::create_dir_all(&self.directory)?;
            self.directory.parent().map_or(Ok(()), durable::sync_directory)?;
        }
        self.changing().map(drop)
    }

    /// Takes the lock if it becomes free within that time. The process that watches a trial has the lock
    /// until the trial ends.
    pub(super) fn lock(&self, within: Duration) -> io::Result<Option<Lock>> {
        let end = Instant::now() + within;
        let mut directory = own_file::open_directory(&self.directory)?;
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

    /// Waits for the lock of changes. Unlike [`UpdateFiles::lock`], which is held for a whole trial, it is held for
    /// one change of the state.
    pub(super) fn changing(&self) -> io::Result<Lock> {
        let path = self.directory.join(CHANGES);
        let file = own_file::open_with(&path, OpenOptions::new().write(true).create(true).mode(0o600))?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
    }

    /// Reads the state; the default state if there is no file.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub(super) fn read(&self) -> io::Result<State> {
        let path = self.directory.join(STATE);
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let file = own_file::if_exists(own_file::open(&path)).map_err(named)?;
        let Some(file) = file else { return Ok(State::default()) };
        let mut text = Vec::new();
        file.take(STATE_BYTES).read_to_end(&mut text).map_err(named)?;
        serde_json::from_slice(&text).map_err(|error| named(error.into()))
    }

    /// Writes the state. If that fails, the previous state remains.
    pub(super) fn write(&self, state: &State) -> io::Result<()> {
        let text = serde_json::to_vec(state)?;
        durable::replace(&self.directory.join(STATE), &text, Some((&self.paths.reserve(), Headroom::None)))
    }

    /// Creates an empty file for a program.
    pub(super) fn new_program(&self) -> io::Result<Staged> {
        Staged::create(&self.directory.join(NEW), 0o700)
    }

    /// Makes the file of [`UpdateFiles::new_program`] durable under its final name, and closes it: an executable that is open
    /// for writing cannot be executed.
    pub(super) fn add_program(&self, file: Staged, digest: &str) -> io::Result<()> {
        file.commit(&self.program(digest))
    }

    pub(super) fn program(&self, digest: &str) -> PathBuf {
        self.directory.join(digest)
    }

    /// Removes every file that the state does not need. Files that could not be removed are removed the next
    /// time.
    pub(super) fn clean(&self, state: &State) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        for entry in entries.flatten() {
            let is_needed = |name: &str| {
                [STATE, CHANGES].contains(&name) || name.starts_with(SLACK_PREFIX) || state.needs(name)
            };
            if !entry.file_name().to_str().is_some_and(is_needed) {
                let _ = durable::discard(&entry.path());
            }
        }
    }

    /// Checks that a program's file still has the content with which it was installed.
    pub(super) fn verify(&self, digest: &str) -> Result<(), VerifyError> {
        match digest_of(&self.program(digest)) {
            Ok(found) if found == digest => Ok(()),
            Ok(_) => Err(VerifyError::Damaged),
            Err(error) => Err(VerifyError::Read(error)),
        }
    }
}

/// The reason why a program's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum VerifyError {
    #[error("its file is damaged")]
    Damaged,
    #[error("its file cannot be read")]
    Read(#[source] io::Error),
}

/// The SHA-256 of a file, in hex.
pub(super) fn digest_of(path: &Path) -> io::Result<String> {
    let mut file = own_file::open(path)?;
    let mut written = Written::new(io::sink());
    io::copy(&mut file, &mut written)?;
    Ok(written.digest())
}

/// Writes to a program file and hashes the bytes written.
pub(super) struct Written<W> {
    file: W,
    hash: Sha256,
}

impl<W: Write> Written<W> {
    pub(super) fn new(file: W) -> Self {
        Written { file, hash: Sha256::new() }
    }

    pub(super) fn digest(self) -> String {
        self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl<W: Write> Write for Written<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
