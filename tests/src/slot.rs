//! The directory and the addresses of a device. Many tests run at once, in several processes, and no two may
//! share a directory or an address range. A slot is a number, reserved by a lock on a file, so it is free
//! again however its owner ended.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

/// The number of slots: far more than tests ever run at once.
const SLOTS: u8 = 200;

/// The directory of all slots. Its path is short, because the path of a unix socket may only have 107 bytes.
const ALL: &str = "/tmp/nodlet-tests";

pub(crate) struct Slot {
    number: u8,
    dir: PathBuf,
    _lock: File,
}

impl Slot {
    pub(crate) fn take() -> Self {
        fs::create_dir_all(ALL).expect("/tmp can be written to");
        for number in 0..SLOTS {
            let lock = fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(Path::new(ALL).join(format!("{number}.lock")))
                .expect("a lock file can be opened below /tmp");
            match lock.try_lock() {
                Ok(()) => {
                    let dir = Path::new(ALL).join(number.to_string());
                    fs::create_dir_all(&dir).expect("/tmp can be written to");
                    return Self { number, dir, _lock: lock };
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => panic!("failed to lock a slot in {ALL}: {error}"),
            }
        }
        panic!("all {SLOTS} slots in {ALL} are taken");
    }

    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The address range for the pods of the device in this slot.
    pub(crate) fn pod_cidr(&self) -> String {
        format!("10.213.{}.0/24", self.number)
    }
}
