//! The number of consecutive crash loops, in a file that survives power cuts. Only children of process 1 and
//! the command line use it. Read next: `init/crash.rs`, which decides when the number changes.

use std::io;
use std::path::{Path, PathBuf};

use nodlet_host::paths::Paths;
use nodlet_kernel::durable::{self, Headroom};
use nodlet_kernel::own_file;

use super::console::say;
use super::read_own_short;

/// The file with the number of consecutive crash loops.
pub(crate) const FILE: &str = "/var/lib/nodlet/init/crash-loops";

/// Reads the count of crash loops. A file without a number counts as 0, so that the board tries a normal
/// boot.
pub(crate) fn read() -> u32 {
    match read_own_short(FILE) {
        Ok(Some(text)) => text.trim().parse().unwrap_or_else(|_| {
            say(format_args!("{FILE} does not contain a number; ignoring it"));
            0
        }),
        Ok(None) => 0,
        Err(error) => {
            say(format_args!("failed to read {FILE}: {error}"));
            0
        }
    }
}

/// Whether the previous boot of this root ended with a crash loop, and no agent has run well since.
pub(crate) fn is_counted(root: &Path) -> bool {
    let text = own_file::read_to_string(&below(root, FILE)).unwrap_or_default();
    text.trim().parse::<u32>().is_ok_and(|count| count > 0)
}

/// Writes the count.
pub(crate) fn write(root: &Path, count: u32) -> io::Result<()> {
    replace(root, FILE, format!("{count}\n").as_bytes())
}

/// Makes `bytes` the durable content of a file below `root`, on a full disk too: what an agent does because of that
/// disk must not be forgotten.
pub(crate) fn replace(root: &Path, file: &str, bytes: &[u8]) -> io::Result<()> {
    durable::replace(&below(root, file), bytes, Some((&Paths::new(root).reserve(), Headroom::None)))
}

/// Resets the count of crash loops, so that the next boot is not into safe mode.
pub(crate) fn remove() -> io::Result<()> {
    durable::remove(Path::new(FILE))
}

pub(crate) fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}
