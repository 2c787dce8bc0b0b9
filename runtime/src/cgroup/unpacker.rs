//! The cgroup of the process that unpacks an image: one per root, as loads of
//! one store follow one another. Made for one load, with an agent or without,
//! and taken away by it; what a load that was killed left is taken over by the
//! next, or goes with the rest.

use std::path::PathBuf;

use super::hierarchy::{Controller, Hierarchies, Home};
use super::limits::Target;
use super::{CgroupError, enable, place, tree};
use crate::paths::Paths;

/// A cgroup that bounds memory, and with it the page cache that a load takes
/// from pods. Removed with this value, when the process in it has ended.
#[derive(Debug)]
pub struct UnpackerCgroup {
    directory: PathBuf,
}

impl UnpackerCgroup {
    /// Makes it where the memory controller is, with a limit of so many bytes.
    pub fn make(paths: &Paths, memory: u64) -> Result<UnpackerCgroup, CgroupError> {
        let machine = Hierarchies::find()?;
        let place = place::known(&machine.unified, paths);
        let hierarchies = machine.below(&place)?;
        let parent = super::name(paths);
        let relative = parent.join("unpacker");
        let mount = match hierarchies.home(Controller::Memory) {
            Home::V1(mount) => mount,
            Home::V2 => {
                enable(&hierarchies, &hierarchies.unified)?;
                tree::make(&hierarchies.unified.join(&parent))?;
                enable(&hierarchies, &hierarchies.unified.join(&parent))?;
                &hierarchies.unified
            }
            Home::Missing => {
                return Err(CgroupError::Missing {
                    limit: "a memory limit",
                    option: Controller::Memory.kernel_option(),
                });
            }
        };
        tree::make(&mount.join(&parent))?;
        let directory = mount.join(&relative);
        tree::make(&directory)?;
        // From here on it is removed again, whatever fails.
        let cgroup = UnpackerCgroup { directory };
        Target::new(&hierarchies, &relative).set_memory(memory)?;
        Ok(cgroup)
    }

    /// The file that a process is put in by.
    pub fn procs(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }
}

impl Drop for UnpackerCgroup {
    fn drop(&mut self) {
        let _ = tree::remove(&self.directory);
        // Without an agent there is nothing else in it; with one it stays.
        if let Some(parent) = self.directory.parent() {
            let _ = std::fs::remove_dir(parent);
        }
    }
}
