//! The attributes of an inode.

use crate::members::Timestamp;
use crate::xattr::Xattrs;

/// The number of an inode: its byte offset in the image, divided by 32.
pub(crate) type Nid = u64;

/// The attributes of an inode, besides type and data.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes {
    /// Permissions, setuid, setgid and sticky bit.
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Timestamp,
    pub(crate) xattrs: Xattrs,
}

impl Attributes {
    /// Attributes of a directory that a layer uses but does not name.
    pub(crate) fn implied_directory() -> Attributes {
        Attributes { mode: 0o755, ..Attributes::default() }
    }
}
