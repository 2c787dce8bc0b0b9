//! Prepares the root of an agent: its directories, its lock and its API socket.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use smol::Async;

use nodlet_core::facts::{Amounts, MAX_PODS};
use nodlet_host::paths::Paths;
use nodlet_kernel::durable::is_full;
use nodlet_kernel::own_file;

use super::EngineError;

/// Time for which the lock of a killed agent may be held by a process that it has just forked, until that process
/// executes a supervisor.
const HEIRS: Duration = Duration::from_secs(5);

/// Time that a killed agent may take to end, or to be reaped by its parent.
const ENDING: Duration = Duration::from_secs(1);

/// Whether a process exists, be it a zombie.
fn lives(pid: i32) -> bool {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None) != Err(nix::Error::ESRCH)
}

/// Creates the directories of the root, and locks it for this agent.
pub(super) fn take_root(paths: &Paths) -> Result<Flock<File>, EngineError> {
    loop {
        let scratch = paths.scratch_directories();
        for (directory, mode) in paths.directories() {
            let failed = |source| EngineError::Prepare { path: directory.clone(), source };
            // An operator may have put all of nodlet's data elsewhere by a link, but no part of it.
            let is_top = [paths.run(), paths.data()].contains(&directory);
            let is_removed = if scratch.contains(&directory) {
                own_file::clear_directory(&directory).map_err(failed)?
            } else {
                if !(is_top && directory.is_dir()) {
                    own_file::is_directory(&directory).map_err(failed)?;
                }
                false
            };
            make_directory(&directory, mode).map_err(failed)?;
            if is_removed {
                log::warn!("removed {}, which was not a directory, and made it anew", directory.display());
            }
        }
        nodlet_host::log_files::prepare(paths)
            .map_err(|source| EngineError::Prepare { path: paths.var_log(), source })?;
        if let Some(lock) = take_lock(paths)? {
            return Ok(lock);
        }
    }
}

/// Locks the root for this agent. Returns `None` if a `nodlet down` removed the lock file meanwhile: that lock keeps no
/// other agent out.
fn take_lock(paths: &Paths) -> Result<Option<Flock<File>>, EngineError> {
    let path = paths.agent_lock();
    let failed = |source| EngineError::Prepare { path: path.clone(), source };
    // Not through a link: what that leads to would be emptied.
    let mut options = OpenOptions::new();
    let file = own_file::open_with(&path, options.read(true).write(true).create(true).mode(0o600));
    let mut file = match file {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    let begun = nodlet_host::clock::instant();
    let mut lock = loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => break lock,
            Err((mut held, nix::errno::Errno::EWOULDBLOCK)) => {
                let mut pid = String::new();
                let read = held.rewind().and_then(|()| held.read_to_string(&mut pid));
                // None while the other one is about to write it.
                let pid = read.ok().and_then(|_| pid.trim().parse().ok());
                let patience = if pid.is_some_and(lives) { ENDING } else { HEIRS };
                if nodlet_host::clock::instant() > begun + patience {
                    return Err(EngineError::AlreadyRunning { pid, root: paths.root().to_owned() });
                }
                file = held;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err((_, errno)) => return Err(failed(errno.into())),
        }
    };
    if lock.metadata().map_err(failed)?.nlink() == 0 {
        return Ok(None);
    }
    // In place: on a full disk, the block of the last agent's number would be lost to somebody else.
    let pid = format!("{}\n", std::process::id());
    let written = lock
        .rewind()
        .and_then(|()| lock.write_all(pid.as_bytes()))
        .and_then(|()| lock.set_len(pid.len() as u64));
    // The number is only for messages, and an agent that does not start frees no disk.
    let written = written.or_else(|error| if is_full(&error) { Ok(()) } else { Err(error) });
    written.map_err(failed)?;
    Ok(Some(lock))
}

/// Creates a directory with this mode. An existing mode is only set if it differs, since setting it writes to flash.
fn make_directory(directory: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    // Those above it, too.
    fs::DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    let permissions = fs::metadata(directory)?.permissions();
    if permissions.mode() & 0o7777 == mode {
        return Ok(());
    }
    match fs::set_permissions(directory, fs::Permissions::from_mode(mode)) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            log::warn!("failed to set the mode of {} to {mode:o}: {error}", directory.display());
            Ok(())
        }
        set => set,
    }
}

/// Delay between two attempts to open the API's socket on a full disk.
const UNTIL_ROOM: Duration = Duration::from_secs(1);

/// Opens the API's socket, in place of one that an earlier agent left. Returns `None` if the disk has no inode for it:
/// the agent must run to free one.
pub(super) fn listen(paths: &Paths) -> Result<Option<Async<UnixListener>>, EngineError> {
    match crate::api::listen(paths.root()) {
        Err(error) if is_full(&error) => Ok(None),
        listener => listener.map(Some),
    }
    .map_err(|source| EngineError::Prepare { path: paths.api_socket(), source })
}

/// Opens the API's socket as soon as the disk has an inode for it.
pub(super) async fn listen_when_there_is_room(paths: &Paths) -> Result<Async<UnixListener>, EngineError> {
    log::warn!("the disk is full: the API opens when {} can be made", paths.api_socket().display());
    loop {
        smol::Timer::after(UNTIL_ROOM).await;
        if let Some(listener) = listen(paths)? {
            return Ok(listener);
        }
    }
}

/// The capacity of the machine, and of the file system that pods write to.
pub(super) fn capacity_of_the_machine(paths: &Paths, max_pods: usize) -> Amounts {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let records = paths.records();
    let disk = records.ancestors().find_map(|directory| nix::sys::statvfs::statvfs(directory).ok());
    // Their types are others on other machines.
    #[allow(clippy::unnecessary_cast)]
    let storage = disk.map_or(0, |disk| (disk.blocks() as u64).saturating_mul(disk.fragment_size() as u64));
    let bounded = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    Amounts {
        pods: max_pods.min(MAX_PODS) as i64,
        cpu: cpus as i64 * 1000,
        memory: bounded(memory_of_the_machine()),
        ephemeral_storage: bounded(storage),
    }
}

/// The memory of the machine in bytes; zero if it cannot be read, which counts as very little.
fn memory_of_the_machine() -> u64 {
    of_meminfo("MemTotal:")
}

/// The swap of the machine in bytes; zero if it cannot be read.
pub(super) fn swap_of_the_machine() -> u64 {
    of_meminfo("SwapTotal:")
}

/// A field of `/proc/meminfo` in bytes; zero if it cannot be read.
pub(super) fn of_meminfo(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_directory_of_nodlet_is_refused_with_its_path_and_left_as_it_is() {
        let root = std::env::temp_dir().join(format!("nodlet-root-other-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let (paths, precious) = (Paths::new(&root), root.join("precious"));
        fs::create_dir_all(&precious).unwrap();
        fs::write(precious.join("keep"), "").unwrap();
        fs::create_dir_all(paths.data()).unwrap();
        let place = paths.records();
        let refused = || {
            let error = take_root(&paths).map(drop).unwrap_err();
            let text = nodlet_host::error::chain(&error).to_string();
            assert!(text.contains(&format!("{}: it is not a directory", place.display())), "{text}");
            fs::remove_file(&place).unwrap();
        };
        std::os::unix::fs::symlink(&precious, &place).unwrap();
        refused();
        nix::unistd::mkfifo(&place, nix::sys::stat::Mode::S_IRWXU).unwrap();
        refused();
        drop(take_root(&paths).unwrap());
        assert!(precious.join("keep").exists() && fs::read_dir(&precious).unwrap().count() == 1);
        // All of the data may be elsewhere.
        fs::rename(paths.data(), root.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(root.join("elsewhere"), paths.data()).unwrap();
        drop(take_root(&paths).unwrap());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn an_agent_that_is_about_to_end_is_waited_for_and_one_that_stays_is_not() {
        let root = std::env::temp_dir().join(format!("nodlet-root-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let paths = Paths::new(&root);
        let first = take_root(&paths).unwrap();
        // It lives: this process.
        assert!(matches!(take_root(&paths), Err(EngineError::AlreadyRunning { pid: Some(_), .. })));
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(first);
        });
        drop(take_root(&paths).unwrap());
        ends.join().unwrap();
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_lock_that_nodlet_down_removed_meanwhile_is_taken_anew() {
        let root = std::env::temp_dir().join(format!("nodlet-root-down-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let paths = Paths::new(&root);
        let first = take_root(&paths).unwrap();
        let of_next = paths.clone();
        let next = std::thread::spawn(move || take_root(&of_next).unwrap());
        let opened = || {
            let descriptors = fs::read_dir("/proc/self/fd").unwrap().flatten();
            descriptors
                .filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == paths.agent_lock()))
                .count()
        };
        while opened() < 2 {
            std::thread::yield_now();
        }
        // As `nodlet down` does at its end.
        fs::remove_dir_all(paths.run()).unwrap();
        drop(first);
        let next = next.join().unwrap();
        assert_eq!(next.metadata().unwrap().ino(), fs::metadata(paths.agent_lock()).unwrap().ino());
        assert!(matches!(take_root(&paths), Err(EngineError::AlreadyRunning { .. })));
        drop(next);
        fs::remove_dir_all(root).unwrap();
    }
}
