//! The locks of PersistentVolumes. They outlive agent and supervisor, and hold for all agents of the machine.
//!
//! Each pod with claims has a file, in one directory for all roots, with the identities of its volumes and the
//! cgroups of its processes. A pod has its volumes as long as an agent locks that file or a process is in one of
//! the cgroups. The kernel ends both by itself, so that no lock is left over, and none goes before the last process
//! of the pod.
//!
//! The identity of a volume is that of its directory (device and inode) and not a path: links, bind mounts and other
//! PersistentVolumes of the same directory count. The directories above it belong to it, so that a volume in another
//! one counts, too; so does the device of the file system, which can be a volume itself.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};
use nodlet_kernel::own_file;

use crate::cgroup::may_have_processes;
use crate::paths::Paths;

/// The directory of the files, for all agents of the machine. On tmpfs: a boot ends all locks.
const DIRECTORY: &str = "/run/nodlet-volumes";

/// The lock of the volumes of one pod. Dropping it gives them to others once no process of the pod is left.
#[derive(Debug)]
pub struct VolumeLock {
    path: PathBuf,
    _file: File,
}

/// The lock that a pod needs.
#[derive(Clone, Debug)]
pub struct LockRequest {
    /// The file of the pod.
    file: PathBuf,
    /// The cgroups of the pod's processes.
    cgroups: Vec<PathBuf>,
}

/// A volume to be locked.
pub(super) struct Volume<'a> {
    /// The name of the volume, for errors.
    pub(super) name: &'a str,
    pub(super) path: &'a Path,
    pub(super) is_exclusive: bool,
}

/// A volume in a file.
struct Record {
    is_exclusive: bool,
    /// The volume, and what is above it.
    identities: Vec<String>,
}

/// Why volumes are not locked.
#[derive(Debug)]
pub(super) enum LockError {
    /// Another pod uses the volume of this name, and one of the two needs it alone.
    InUse(String),
    /// The volume of this name cannot be identified or locked.
    Failed(String, io::Error),
}

impl LockRequest {
    /// The lock of the pod `uid`, whose processes are in these cgroups.
    pub fn new(paths: &Paths, uid: &str, cgroups: Vec<PathBuf>) -> LockRequest {
        LockRequest { file: file_of(paths, uid), cgroups }
    }

    /// Locks volumes.
    pub(super) fn take(&self, volumes: &[Volume]) -> Result<VolumeLock, LockError> {
        let mut records = Vec::new();
        for volume in volumes {
            let failed = |error| LockError::Failed(volume.name.to_owned(), error);
            let identities = identities(volume.path).map_err(failed)?;
            records.push(Record { is_exclusive: volume.is_exclusive, identities });
        }
        let name_of = |at: usize| volumes.get(at).map_or("", |volume| volume.name).to_owned();
        let failed = |error| LockError::Failed(name_of(0), error);
        let directory = self.file.parent().unwrap_or(Path::new(DIRECTORY));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        // Of two that look at the same time, the second one sees the file of the first.
        let one_at_a_time = File::open(directory).map_err(failed)?;
        one_at_a_time.lock().map_err(failed)?;
        for entry in fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path == self.file {
                continue;
            }
            let text = match own_file::read_to_string(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                text => text.map_err(failed)?,
            };
            let (cgroups, theirs) = read(&text);
            let conflict = records.iter().position(|mine| theirs.iter().any(|other| mine.excludes(other)));
            let has_processes = || cgroups.iter().any(|cgroup| may_have_processes(cgroup));
            let is_free = !is_locked(&path).map_err(failed)? && !has_processes();
            match conflict {
                // A file that stays locks nothing.
                _ if is_free => {
                    if let Err(error) = fs::remove_file(&path) {
                        log::warn!("failed to remove {}: {error}", path.display());
                    }
                }
                Some(at) => return Err(LockError::InUse(name_of(at))),
                None => {}
            }
        }
        let mut options = OpenOptions::new();
        let file = own_file::open_with(&self.file, options.write(true).create(true).mode(0o600));
        let file = file.map_err(failed)?;
        // An attempt that has not ended yet: a volume that does not answer.
        file.try_lock().map_err(|error| failed(error.into()))?;
        own_file::write(&self.file, self.text(&records)).map_err(failed)?;
        Ok(VolumeLock { path: self.file.clone(), _file: file })
    }

    fn text(&self, records: &[Record]) -> String {
        let mut text = String::new();
        for cgroup in &self.cgroups {
            let _ = writeln!(text, "cgroup {}", cgroup.display());
        }
        for Record { is_exclusive, identities } in records {
            let how = if *is_exclusive { "alone" } else { "shared" };
            let _ = writeln!(text, "{how} {}", identities.join(" "));
        }
        text
    }
}

impl VolumeLock {
    /// The lock of a pod that an earlier agent has made; `None` if the pod has none.
    ///
    /// # Errors
    /// The volume cannot be locked.
    pub fn adopt(paths: &Paths, uid: &str) -> io::Result<Option<VolumeLock>> {
        let path = file_of(paths, uid);
        let opened = own_file::open_with(&path, OpenOptions::new().write(true));
        let Some(file) = own_file::if_exists(opened)? else { return Ok(None) };
        file.try_lock()?;
        Ok(Some(VolumeLock { path, _file: file }))
    }

    /// Ends the lock of a pod whose last process is gone.
    ///
    /// # Errors
    /// Its file cannot be removed; the next pod with a claim removes it.
    pub fn release(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

impl Record {
    /// Whether one of two pods cannot have its volume while the other one has its own.
    fn excludes(&self, other: &Record) -> bool {
        let has = |one: &Record, other: &Record| {
            one.identities.first().is_some_and(|own| other.identities.contains(own))
        };
        (self.is_exclusive || other.is_exclusive) && (has(self, other) || has(other, self))
    }
}

/// Two roots may have pods with the same UID.
fn file_of(paths: &Paths, uid: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{}-{uid}", paths.hash()))
}

/// The identity of a volume, followed by those of what it is in.
fn identities(path: &Path) -> io::Result<Vec<String>> {
    let device = |number: u64| format!("{}:{}", major(number), minor(number));
    let path = path.canonicalize()?;
    let found = fs::metadata(&path)?;
    if found.rdev() != 0 {
        return Ok(vec![device(found.rdev())]);
    }
    let mut identities = Vec::new();
    for directory in path.ancestors() {
        let found = fs::metadata(directory)?;
        identities.push(format!("{}/{}", device(found.dev()), found.ino()));
    }
    identities.push(device(found.dev()));
    Ok(identities)
}

fn read(text: &str) -> (Vec<&Path>, Vec<Record>) {
    let (mut cgroups, mut records) = (Vec::new(), Vec::new());
    for (kind, rest) in text.lines().filter_map(|line| line.split_once(' ')) {
        match kind {
            "cgroup" => cgroups.push(Path::new(rest)),
            kind => records.push(Record {
                is_exclusive: kind == "alone",
                identities: rest.split(' ').map(str::to_owned).collect(),
            }),
        }
    }
    (cgroups, records)
}

/// Whether an agent locks a file.
fn is_locked(path: &Path) -> io::Result<bool> {
    match own_file::open(path)?.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine {
        scratch: tempfile::TempDir,
    }

    impl Machine {
        fn request(&self, pod: &str) -> LockRequest {
            let file = self.scratch.path().join("locks").join(pod);
            LockRequest { file, cgroups: vec![self.cgroup(pod)] }
        }

        fn cgroup(&self, pod: &str) -> PathBuf {
            self.scratch.path().join("cgroups").join(pod)
        }

        fn populate(&self, pod: &str, is_populated: bool) {
            fs::create_dir_all(self.cgroup(pod)).expect("a directory");
            let text = format!("populated {}\nfrozen 0\n", u8::from(is_populated));
            fs::write(self.cgroup(pod).join("cgroup.events"), text).expect("a file");
        }

        fn take(&self, pod: &str, path: &str, is_exclusive: bool) -> Result<VolumeLock, String> {
            let path = self.scratch.path().join(path);
            let taken = self.request(pod).take(&[Volume { name: "v", path: &path, is_exclusive }]);
            taken.map_err(|error| match error {
                LockError::InUse(name) => format!("{name} is in use"),
                LockError::Failed(name, error) => format!("{name}: {error}"),
            })
        }
    }

    fn machine() -> Machine {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        for directory in ["data/sub/deep", "other"] {
            fs::create_dir_all(scratch.path().join(directory)).expect("a directory");
        }
        std::os::unix::fs::symlink("data", scratch.path().join("link")).expect("a link");
        Machine { scratch }
    }

    #[test]
    fn links_and_nested_directories_are_the_same_volume_and_others_are_not() {
        let machine = machine();
        let held = machine.take("a", "data/sub", true).expect("nobody uses it");
        for same in ["data/sub", "link/sub", "link", "data", "data/sub/deep", "link/sub/deep/../.."] {
            assert_eq!(machine.take("b", same, false).expect_err(same), "v is in use");
            assert_eq!(machine.take("b", same, true).expect_err(same), "v is in use");
        }
        machine.take("b", "other", true).expect("another directory").release().expect("its file goes");
        held.release().expect("its file goes");
        let one = machine.take("a", "data", false).expect("nobody uses it");
        let two = machine.take("b", "data/sub", false).expect("both share it");
        assert_eq!(machine.take("c", "link", true).expect_err("two use it"), "v is in use");
        drop((one, two));
        machine.take("c", "link", true).expect("no process is left of them");
        let files: Vec<_> =
            fs::read_dir(machine.scratch.path().join("locks")).expect("it is there").collect();
        assert_eq!(files.len(), 1, "the files of dead pods go: {files:?}");
    }

    #[test]
    fn a_lock_outlives_the_agent_as_long_as_a_process_of_the_pod() {
        let machine = machine();
        let held = machine.take("a", "data", true).expect("nobody uses it");
        assert_eq!(machine.take("b", "data", true).expect_err("an agent has it"), "v is in use");
        machine.populate("a", true);
        drop(held);
        assert_eq!(machine.take("b", "data", true).expect_err("a process has it"), "v is in use");
        machine.populate("a", false);
        machine.take("b", "data", true).expect("the last process is gone");
        assert!(!machine.request("a").file.exists());
    }

    #[test]
    fn a_device_excludes_the_directories_of_its_file_system() {
        let directory = Record {
            is_exclusive: false,
            identities: ["8:1/12", "8:1/2", "0:5/1", "8:1"].map(str::to_owned).into(),
        };
        let device = |number: &str| Record { is_exclusive: true, identities: vec![number.to_owned()] };
        assert!(directory.excludes(&device("8:1")) && device("8:1").excludes(&directory));
        assert!(!directory.excludes(&device("8:2")));
    }
}
