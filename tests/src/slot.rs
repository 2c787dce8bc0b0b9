//! Where a device lives and which addresses it has. Many tests run at once, in
//! several processes, and no two may share a directory or an address range: a
//! slot is a number that is held by a lock on a file, so it is free again
//! however its holder ended.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

/// Far more than ever run at once; a bound all the same.
const SLOTS: u8 = 200;

/// Short, because the path of a unix socket may have 107 bytes.
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

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The range for the pods of the device that lives here.
    pub(crate) fn pod_cidr(&self) -> String {
        format!("10.213.{}.0/24", self.number)
    }
}
