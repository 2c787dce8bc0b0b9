//! The directory and the addresses of a device. Many tests run at once, in several processes, and no two may
//! share a directory or an address range. A slot is a number, reserved by a lock on a file, so it is free
//! again however its owner ended.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use crate::leftovers;

/// The number of slots: far more than tests ever run at once.
const SLOTS: u8 = 200;

/// The directory of all slots. Its path is short, because the path of a unix socket may only have 107 bytes.
const ALL: &str = "/tmp/nodlet-tests";

pub(crate) struct Slot {
    number: u8,
    dir: PathBuf,
    _lock: File,
}

/// Ends and removes the devices of tests that were killed. Devices of tests that run are left alone.
///
/// # Panics
/// `/tmp` cannot be written to.
pub fn sweep_devices() {
    for slot in (0..SLOTS).filter(|number| dir(*number).exists()).filter_map(Slot::try_take) {
        leftovers::sweep(&slot.root());
    }
}

fn dir(number: u8) -> PathBuf {
    Path::new(ALL).join(number.to_string())
}

impl Slot {
    pub(crate) fn take() -> Self {
        (0..SLOTS).find_map(Self::try_take).unwrap_or_else(|| panic!("all {SLOTS} slots in {ALL} are taken"))
    }

    /// `None` if another test has this slot.
    fn try_take(number: u8) -> Option<Self> {
        fs::create_dir_all(ALL).expect("/tmp can be written to");
        let lock = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(Path::new(ALL).join(format!("{number}.lock")))
            .expect("a lock file can be opened below /tmp");
        match lock.try_lock() {
            Ok(()) => {
                let dir = dir(number);
                fs::create_dir_all(&dir).expect("/tmp can be written to");
                Some(Self { number, dir, _lock: lock })
            }
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Error(error)) => panic!("failed to lock a slot in {ALL}: {error}"),
        }
    }

    /// The root directory of the device.
    pub(crate) fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The address range for the Services of the device in this slot.
    pub(crate) fn service_cidr(&self) -> String {
        format!("10.214.{}.0/24", self.number)
    }

    /// The address range for the pods of the device in this slot.
    pub(crate) fn pod_cidr(&self) -> String {
        format!("10.213.{}.0/24", self.number)
    }
}
