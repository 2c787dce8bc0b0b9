//! `cargo xtask setup`: installs what the tests need and this machine lacks.

use std::path::Path;
use std::process::Command;

use nix::sys::statvfs::statvfs;
use nodlet_build::requirements::{missing, require_root};
use nodlet_build::task::{Outcome, Task, TaskError, project, run as run_command, target_dir};
use nodlet_build::toolchain;

/// The disk that a whole check needs in a fresh clone, in bytes.
const CHECK_DISK: u64 = 14 << 30;

/// The task `cargo xtask setup`.
pub(crate) const TASK: Task =
    Task::new("setup", "", "install what the tests need and this machine lacks (Debian, root)", run);

pub(crate) fn run(_: &[String]) -> Outcome {
    // Writes the configuration of builds in this checkout, with the patched crate.
    toolchain::host()?;
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    require_root()?;
    run_command(Command::new("apt-get").args(["-qq", "update"]))?;
    run_command(
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["-qq", "-y", "install", "--no-install-recommends"])
            .args(missing.iter().map(|(_, package)| package)),
    )
}

/// Fails if a whole check would fill the disk: that would only be seen in the middle, as the failure of some tool.
/// What earlier checks left here counts as room, because it is used again.
pub(crate) fn require_disk() -> Outcome {
    let stat = statvfs(project()).map_err(|error| TaskError(format!("{}: {error}", project().display())))?;
    let free = stat.blocks_available() * stat.fragment_size();
    let room = free + allocated(&target_dir()) + allocated(&project().join(".work"));
    if room >= CHECK_DISK {
        return Ok(());
    }
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    Err(TaskError(format!(
        "{} has room for {:.1} GB, and a whole check needs {:.1} GB: free some, or name the steps to run",
        project().display(),
        gigabytes(room),
        gigabytes(CHECK_DISK),
    )))
}

/// The bytes that the files below a directory take on the disk; none if it is missing.
fn allocated(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => allocated(&entry.path()),
        Ok(found) => std::os::unix::fs::MetadataExt::blocks(&found) * 512,
        Err(_) => 0,
    });
    sizes.sum()
}
