//! The files of the runs of a container on disk: writable layers and termination messages.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nodlet_host::paths::Paths;

/// Name of the directory with writable layers and termination messages, in the pod's directory.
const RUNS: &str = "containers";

/// Returns the directory of one run of a container, with its writable layer and termination message.
pub(crate) fn run_directory(paths: &Paths, uid: &str, container: &str, number: u32) -> PathBuf {
    runs_directory(paths, uid).join(container).join(number.to_string())
}

/// Creates the directories of a run's writable layer.
///
/// # Errors
/// A directory cannot be created.
pub(crate) fn make_run_directories(upper: &Path, work: &Path) -> io::Result<()> {
    fs::create_dir_all(upper)?;
    fs::create_dir_all(work)
}

/// Creates the file that is mounted at `terminationMessagePath`. Every user of the container can write to it.
///
/// # Errors
/// The file cannot be created.
pub(crate) fn make_termination_file(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    // An existing file belongs to this run, which may have written to it, so it is not truncated.
    nodlet_kernel::own_file::open_with(path, fs::OpenOptions::new().create(true).append(true))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))
}

/// Returns the directory of all runs of a pod.
pub(crate) fn runs_directory(paths: &Paths, uid: &str) -> PathBuf {
    paths.pod(uid).join(RUNS)
}
