//! The cgroup of the process that unpacks an image: one for each root, because loads into one store run one
//! after another. A load makes it, with an agent or without, and removes it. If a load was killed, the next
//! one takes over its cgroup, or it is removed with the others.
//!
//! Loads that wait for one another have made the cgroup by then. Therefore each holds a shared lock on it,
//! and only a load that gets the exclusive lock removes it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::hierarchy::{Controller, ControllerHierarchy, Hierarchies};
use super::limits::Target;
use super::{CgroupError, enable, place, tree};
use crate::paths::Paths;

/// How often the cgroup is made again because another load removed it meanwhile.
const ATTEMPTS: usize = 16;

/// A cgroup that limits memory, and with it the page cache that a load takes from pods. Dropping the value
/// removes the cgroup; the process in it must have ended.
#[derive(Debug)]
pub struct UnpackerCgroup {
    directory: PathBuf,
    /// The shared lock; `None` only while the value is being dropped.
    held: Option<Flock<File>>,
}

impl UnpackerCgroup {
    /// Makes the cgroup in the hierarchy of the memory controller, with a limit of `memory` bytes.
    pub fn make(paths: &Paths, memory: u64) -> Result<UnpackerCgroup, CgroupError> {
        let machine = Hierarchies::find()?;
        let place = place::known(&machine.unified, paths);
        let hierarchies = machine.below(&place)?;
        let parent = super::name(paths);
        let relative = parent.join("unpacker");
        let (mount, v2) = match hierarchies.hierarchy_of(Controller::Memory) {
            ControllerHierarchy::V1(mount) => (mount, false),
            ControllerHierarchy::V2 => (hierarchies.unified.as_path(), true),
            ControllerHierarchy::Missing => {
                return Err(CgroupError::Missing {
                    limit: "a memory limit",
                    option: Controller::Memory.kernel_option(),
                });
            }
        };
        let directory = mount.join(&relative);
        let mut failed = CgroupError::file("make", &directory)(Errno::EBUSY.into());
        for _ in 0..ATTEMPTS {
            let enable = |directory: &Path| if v2 { enable(&hierarchies, directory) } else { Ok(()) };
            let made = enable(mount)
                .and_then(|()| tree::make(&mount.join(&parent)))
                .and_then(|()| enable(&mount.join(&parent)))
                .and_then(|()| tree::make(&directory));
            match made.and_then(|()| lock(&directory)) {
                Ok(Some(held)) => {
                    // From here on the cgroup is removed if something fails.
                    let cgroup = UnpackerCgroup { directory: directory.clone(), held: Some(held) };
                    match Target::new(&hierarchies, &relative).set_memory(memory) {
                        Ok(()) => return Ok(cgroup),
                        // The parent was made again meanwhile, and its controllers are not enabled yet.
                        Err(error) => failed = error,
                    }
                }
                Ok(None) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Err(failed)
    }

    /// The file by which a process is moved into the cgroup.
    pub fn procs(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }
}

/// Locks the cgroup against removal; `None` if it was removed before.
fn lock(directory: &Path) -> Result<Option<Flock<File>>, CgroupError> {
    let failed = |source: io::Error| CgroupError::file("lock", directory)(source);
    let file = File::open(directory).map_err(failed)?;
    let held = Flock::lock(file, FlockArg::LockShared).map_err(|(_, errno)| failed(errno.into()))?;
    Ok(is_at(&held, directory).then_some(held))
}

/// Whether `file` is still the cgroup at `directory`, and not one that was removed and made again.
fn is_at(file: &File, directory: &Path) -> bool {
    let (opened, named) = (file.metadata(), fs::metadata(directory));
    opened.is_ok_and(|opened| named.is_ok_and(|named| named.ino() == opened.ino()))
}

impl Drop for UnpackerCgroup {
    fn drop(&mut self) {
        drop(self.held.take());
        let Ok(file) = File::open(&self.directory) else { return };
        let Ok(alone) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { return };
        if !is_at(&alone, &self.directory) {
            return;
        }
        let _ = tree::remove(&self.directory);
        // Without an agent the parent is empty now; with one, removing it fails.
        if let Some(parent) = self.directory.parent() {
            let _ = fs::remove_dir(parent);
        }
    }
}
