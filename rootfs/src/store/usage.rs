//! The disk usage of the image store, and its limit.

use std::fs;
use std::os::unix::fs::MetadataExt;

use nix::sys::statvfs::statvfs;
use nodlet_kernel::own_file;

use super::Store;
use super::directory::names_in;
use super::error::StoreError;
use crate::content::ContentError;
use crate::reference::Digest;

/// Total bytes and available bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Total bytes.
    pub capacity: u64,
    /// Available bytes.
    pub available: u64,
}

impl Usage {
    /// Bytes to remove so that at most `low` percent are used; 0 if less than `high` percent are used.
    /// Computed as in the kubelet's image manager.
    pub fn excess(&self, high: u8, low: u8) -> u64 {
        if self.capacity == 0 {
            return 0;
        }
        let percent = |of: u64, percent: u64| (u128::from(of) * u128::from(percent) / 100) as u64;
        let free = (u128::from(self.available) * 100 / u128::from(self.capacity)) as u64;
        if 100_u64.saturating_sub(free) < u64::from(high) {
            return 0;
        }
        percent(self.capacity, 100_u64.saturating_sub(u64::from(low))).saturating_sub(self.available)
    }
}

impl Store {
    /// Bytes that loaded images occupy, without those of the device image.
    pub fn used(&self) -> Result<u64, StoreError> {
        let mut bytes = 0;
        for directory in [self.writable.layers(), self.writable.records(), self.writable.staging()] {
            for name in names_in(&directory)? {
                let path = directory.join(name);
                // Another process may be loading or removing images.
                let found = own_file::if_exists(fs::symlink_metadata(&path))
                    .map_err(|error| ContentError::new("measure", &path, error))?;
                let file = found.filter(fs::Metadata::is_file);
                // Allocated bytes, as the limit of a load counts them: holes occupy nothing.
                bytes += file.map_or(0, |file| file.blocks().saturating_mul(512));
            }
        }
        Ok(bytes)
    }

    /// The usage of the file system for loaded images; `None` if the directory does not exist yet.
    pub fn disk(&self) -> Option<Usage> {
        let stat = statvfs(&self.writable.directory).ok()?;
        // The integer types differ between architectures.
        #[allow(clippy::unnecessary_cast)]
        let [blocks, free, size] =
            [stat.blocks() as u64, stat.blocks_available() as u64, stat.fragment_size() as u64];
        Some(Usage { capacity: blocks.saturating_mul(size), available: free.saturating_mul(size) })
    }

    /// The images that were loaded, and could be removed if nothing used them.
    pub fn loaded(&self) -> Result<Vec<Digest>, StoreError> {
        Ok(self.writable.index()?.images.into_keys().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_from_the_high_threshold_on_is_reduced_to_the_low_threshold() {
        for (capacity, available, high, low, excess) in [
            (1000, 160, 85, 80, 0),
            (1000, 150, 85, 80, 50),
            (1000, 0, 85, 80, 200),
            (1000, 0, 100, 99, 10),
            (1000, 1, 100, 99, 9),
            (0, 0, 85, 80, 0),
            (u64::MAX, 0, 85, 0, u64::MAX),
            (1000, 1000, 1, 0, 0),
        ] {
            let usage = Usage { capacity, available };
            assert_eq!(usage.excess(high, low), excess, "{usage:?} {high} {low}");
        }
    }
}
