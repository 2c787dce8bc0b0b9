//! An archive of a push, and what is known of its layers.

use std::path::PathBuf;

use nodlet_core::sorted::SortedMap;
use nodlet_rootfs::changes::Changes;
use nodlet_rootfs::parcel::Parcel;

/// An archive to push.
pub(super) struct Archive {
    pub(super) path: PathBuf,
    pub(super) parcel: Parcel,
    /// Bytes of the archive that were sent; `spared` bytes were not, because the board has them.
    pub(super) sent: u64,
    pub(super) spared: u64,
    /// Results of comparisons with the board's layers, by the layer's name in the archive.
    pub(super) compared: SortedMap<String, Compared>,
}

/// The result of a comparison, valid for this base.
pub(super) struct Compared {
    pub(super) base: String,
    pub(super) changes: Changes,
}
