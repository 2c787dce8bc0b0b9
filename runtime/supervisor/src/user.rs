//! User, groups and home directory of a container's processes. `start` finds them in the image, and each process
//! that is executed later gets them, too.

use serde::{Deserialize, Serialize};

use super::protocol::MAX_GROUPS;

/// User and groups of a container's process, and its home directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: heapless::Vec<u32, MAX_GROUPS>,
    pub(super) home: String,
}
