//! Writes and removes files that survive a power cut: after one, a file is either the old or the new one. Unchanged files
//! are not written. In the agent, only the storage thread calls these functions. On a full file system, a file is written
//! in a spare file of the reserve ([`nodlet_host::reserve`]), if its writer may use that.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use nodlet_host::reserve::{Left, Reserve, Spare, is_full};
use nodlet_rootfs::own_file;

/// Injects failures of the card in tests: called before every write, sync, rename and removal.
pub trait Fault: Send + Sync {
    /// Called before a step on `path`.
    ///
    /// # Errors
    /// The step fails with this error.
    fn step(&self, step: Step, path: &Path) -> io::Result<()>;
}

/// One step of a change on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create a new file beside the old one, or a directory.
    Create,
    /// Open a spare file.
    Take,
    /// Write the bytes of the new file.
    Write,
    /// Make the bytes of the new file durable.
    Sync,
    /// Rename the new file over the old one.
    Rename,
    /// Make the directory durable.
    SyncDirectory,
    /// Remove a file.
    Remove,
}

/// The absence of injected failures.
pub struct NoFault;

impl Fault for NoFault {
    fn step(&self, _: Step, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// Replaces the contents of `path` with `bytes`, atomically: after a power cut at any moment, the file is the old or
/// the new one. Writes nothing if the file is already the new one.
///
/// # Errors
/// A step failed. Either the old file still exists, or the new one exists and may not survive a power cut; another
/// call makes it durable.
pub fn replace(
    path: &Path,
    bytes: &[u8],
    fault: &dyn Fault,
    reserve: Option<(&Reserve, Left)>,
) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    if own_file::read(path).is_ok_and(|old| old == bytes) {
        // An earlier attempt that failed, or an agent that was killed, may have renamed the file without making
        // that durable. If it is durable, this writes nothing.
        return sync_directory(directory, fault);
    }
    // Only root may read records and applied objects, even if the directory was removed meanwhile.
    make_directory(directory, 0o700, fault)?;
    let written = replace_by_new(path, directory, bytes, fault);
    let (full, (reserve, left)) = match (written, reserve) {
        (Err(full), Some(reserve)) if is_full(&full) => (full, reserve),
        (Ok(()), _) => return sync_directory(directory, fault),
        (Err(error), _) => return Err(error),
    };
    fault.step(Step::Take, path)?;
    let Some(spare) = reserve.take(bytes.len(), left)? else { return Err(full) };
    replace_by_spare(path, bytes, fault, reserve, spare)?;
    sync_directory(directory, fault)
}

/// Writes a new file beside `path`, and renames it over `path`.
fn replace_by_new(path: &Path, directory: &Path, bytes: &[u8], fault: &dyn Fault) -> io::Result<()> {
    // Readers of the directory ignore a dot file.
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    name.push(".new");
    let new = directory.join(name);
    let written = (|| {
        fault.step(Step::Create, &new)?;
        let mut file = own_file::open_with(&new, OpenOptions::new().write(true).create(true).mode(0o600))?;
        file.set_len(0)?;
        fault.step(Step::Write, &new)?;
        file.write_all(bytes)?;
        fault.step(Step::Sync, &new)?;
        file.sync_all()?;
        fault.step(Step::Rename, path)?;
        fs::rename(&new, path)
    })();
    if written.is_err() {
        // Best effort: the next write of this file truncates it anyway.
        let _ = fs::remove_file(&new);
    }
    written
}

/// Writes a spare file, and renames it over `path`. If that fails, the spare file stays in the reserve.
fn replace_by_spare(
    path: &Path,
    bytes: &[u8],
    fault: &dyn Fault,
    reserve: &Reserve,
    mut spare: Spare,
) -> io::Result<()> {
    fault.step(Step::Write, spare.path())?;
    spare.write(bytes)?;
    fault.step(Step::Sync, spare.path())?;
    spare.sync()?;
    fault.step(Step::Rename, path)?;
    reserve.rename(spare.path(), path)
}

/// Removes `path` durably. The file need not exist.
///
/// # Errors
/// A step failed.
pub fn remove(path: &Path, fault: &dyn Fault) -> io::Result<()> {
    fault.step(Step::Remove, path)?;
    match fs::remove_file(path) {
        Ok(()) => sync_directory(path.parent().ok_or(io::ErrorKind::InvalidInput)?, fault),
        // The removal may not be durable yet: see `replace`.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
            if directory.is_dir() { sync_directory(directory, fault) } else { Ok(()) }
        }
        Err(error) => Err(error),
    }
}

/// Makes a file or directory durable that another program has written, unless it is gone.
///
/// # Errors
/// The file cannot be opened, or its sync failed.
pub(crate) fn sync(path: &Path, fault: &dyn Fault) -> io::Result<()> {
    fault.step(Step::Sync, path)?;
    // Another program may have put a pipe there, which must not block.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let synced =
        OpenOptions::new().read(true).custom_flags(flags).open(path).and_then(|file| file.sync_all());
    match synced {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Read-only file systems and special files have nothing to sync.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EROFS)) => Ok(()),
        other => other,
    }
}

fn sync_directory(directory: &Path, fault: &dyn Fault) -> io::Result<()> {
    fault.step(Step::SyncDirectory, directory)?;
    own_file::open_directory(directory)?.sync_all()
}

/// Creates `directory` with this mode, and its missing parents, durably.
fn make_directory(directory: &Path, mode: u32, fault: &dyn Fault) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(parent) = directory.parent() {
        make_directory(parent, 0o755, fault)?;
    }
    fault.step(Step::Create, directory)?;
    match fs::DirBuilder::new().mode(mode).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    directory.parent().map_or(Ok(()), |parent| sync_directory(parent, fault))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Fails the step with this number and all later steps, as a power cut does.
    struct CutAt {
        left: AtomicUsize,
    }

    impl Fault for CutAt {
        fn step(&self, _: Step, _: &Path) -> io::Result<()> {
            let left = self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(1)));
            match left {
                Ok(0) | Err(0) => Err(io::Error::from_raw_os_error(libc::EIO)),
                Ok(_) | Err(_) => Ok(()),
            }
        }
    }

    /// Fails the first step of this kind, and records all steps.
    struct FailOnce {
        step: Step,
        steps: std::sync::Mutex<Vec<Step>>,
    }

    impl FailOnce {
        fn of(step: Step) -> FailOnce {
            FailOnce { step, steps: std::sync::Mutex::default() }
        }

        fn take(&self) -> Vec<Step> {
            std::mem::take(&mut *self.steps.lock().expect("nobody panics with it"))
        }
    }

    impl Fault for FailOnce {
        fn step(&self, step: Step, _: &Path) -> io::Result<()> {
            let mut steps = self.steps.lock().expect("nobody panics with it");
            let first = !steps.contains(&step);
            steps.push(step);
            if first && step == self.step { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
        }
    }

    #[test]
    fn a_retry_syncs_the_directory_whose_sync_failed() {
        let directory = scratch("again");
        let path = directory.join("record.json");
        let fault = FailOnce::of(Step::SyncDirectory);
        replace(&path, b"new", &fault, None).expect_err("the card fails");
        assert_eq!(fs::read(&path).ok().as_deref(), Some(&b"new"[..]), "it is there all the same");
        let before = fault.take();
        assert_eq!(before.last(), Some(&Step::SyncDirectory));
        let fault = FailOnce { step: Step::Remove, ..fault };
        replace(&path, b"new", &fault, None).expect("the card works again");
        assert_eq!(fault.take(), [Step::SyncDirectory]);

        let fault = FailOnce::of(Step::SyncDirectory);
        remove(&path, &fault).expect_err("the card fails");
        assert!(!path.exists());
        remove(&path, &fault).expect("the card works again");
        assert_eq!(fault.take(), [Step::Remove, Step::SyncDirectory, Step::Remove, Step::SyncDirectory]);
        remove(&directory.join("none/record.json"), &fault).expect("what never was is gone");
        fs::remove_dir_all(directory).expect("the scratch directory goes");
    }

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("nodlet-durable-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a scratch directory");
        path
    }

    #[test]
    fn a_file_is_the_old_or_the_new_one_at_whatever_step_the_plug_is_pulled() {
        let directory = scratch("cut");
        let path = directory.join("a/b/record.json");
        let mut finished = false;
        for cut in 0..20 {
            let _ = fs::remove_dir_all(directory.join("a"));
            if cut % 2 == 0 {
                replace(&path, b"old", &NoFault, None).expect("the old file is written");
            }
            let old = fs::read(&path).ok();
            let fault = CutAt { left: AtomicUsize::new(cut) };
            let result = replace(&path, b"new", &fault, None);
            let now = fs::read(&path).ok();
            assert!(now == old || now.as_deref() == Some(b"new"), "cut at step {cut}: {now:?}");
            if result.is_ok() {
                assert_eq!(now.as_deref(), Some(&b"new"[..]));
                finished = true;
            }
            let leftovers: Vec<_> = fs::read_dir(path.parent().expect("it has a parent"))
                .map(|entries| entries.flatten().filter(|entry| entry.path() != path).collect())
                .unwrap_or_default();
            assert!(leftovers.is_empty(), "cut at step {cut} left {leftovers:?}");
        }
        assert!(finished, "no run was long enough to finish");
        fs::remove_dir_all(directory).expect("the scratch directory goes");
    }

    /// A file that is renamed before its bytes are durable may be empty after a power cut. No file system shows that
    /// before.
    #[test]
    fn a_file_is_synced_before_its_rename_and_its_directory_after_it() {
        let directory = scratch("order");
        let fault = FailOnce { step: Step::Remove, steps: std::sync::Mutex::default() };
        let written = [Step::Create, Step::Write, Step::Sync, Step::Rename, Step::SyncDirectory];
        for bytes in ["one", "two"] {
            replace(&directory.join("record.json"), bytes.as_bytes(), &fault, None).expect("it is written");
            assert_eq!(fault.take(), written);
        }
        replace(&directory.join("a/record.json"), b"new", &fault, None).expect("it is written");
        let made = [Step::Create, Step::SyncDirectory];
        assert_eq!(fault.take(), [&made[..], &written].concat(), "a directory that was made is durable, too");
        fs::remove_dir_all(directory).expect("the scratch directory goes");
    }

    /// A full file system: fails each step of this kind on a new file, and records all steps.
    struct Full {
        step: Step,
        number: i32,
        steps: std::sync::Mutex<Vec<Step>>,
    }

    impl Fault for Full {
        fn step(&self, step: Step, _: &Path) -> io::Result<()> {
            self.steps.lock().expect("nobody panics with it").push(step);
            // The rename of a spare file has the same target.
            let uses_spare = self.steps.lock().expect("nobody panics with it").contains(&Step::Take);
            let fails = step == self.step && !uses_spare;
            if fails { Err(io::Error::from_raw_os_error(self.number)) } else { Ok(()) }
        }
    }

    fn reserve(directory: &Path) -> Reserve {
        let reserve = Reserve::new(directory.join("reserve"), vec![directory.to_owned()]);
        while !reserve.replenish().expect("there is room") {}
        reserve
    }

    #[test]
    fn a_write_that_fails_for_lack_of_room_at_any_step_uses_a_spare_file() {
        let directory = scratch("full");
        let path = directory.join("record.json");
        let reserve = reserve(&directory);
        let spares = || fs::read_dir(directory.join("reserve")).expect("it is readable").count();
        for (step, number) in [Step::Create, Step::Write, Step::Sync, Step::Rename]
            .into_iter()
            .flat_map(|step| [libc::ENOSPC, libc::EDQUOT].map(|number| (step, number)))
        {
            for old in [None, Some(&b"old"[..])] {
                let _ = fs::remove_file(&path);
                if let Some(old) = old {
                    fs::write(&path, old).expect("there is room");
                }
                let fault = Full { step, number, steps: std::sync::Mutex::default() };
                let error = replace(&path, b"new", &fault, None).expect_err("there is no reserve");
                assert!(is_full(&error));
                assert_eq!(fs::read(&path).ok().as_deref(), old);
                let before = spares();
                let fault = Full { step, number, steps: std::sync::Mutex::default() };
                replace(&path, b"new", &fault, Some((&reserve, Left::None))).expect("there is a reserve");
                assert_eq!(fs::read(&path).ok().as_deref(), Some(&b"new"[..]), "{step:?}");
                assert_eq!(spares(), before - 1, "{step:?}");
                let steps = fault.steps.into_inner().expect("nobody panicked with it");
                let spare = [Step::Take, Step::Write, Step::Sync, Step::Rename, Step::SyncDirectory];
                assert!(steps.ends_with(&spare), "{steps:?}");
            }
        }
        // No other error uses it.
        let fault = Full { step: Step::Write, number: libc::EIO, steps: std::sync::Mutex::default() };
        let before = spares();
        replace(&path, b"more", &fault, Some((&reserve, Left::None))).expect_err("the card fails");
        assert_eq!(spares(), before);
        fs::remove_dir_all(directory).expect("the scratch directory goes");
    }

    /// Has no room for new files, and loses power at a step with a spare file.
    struct CutOfSpare {
        at: usize,
        steps: AtomicUsize,
        is_spare: std::sync::atomic::AtomicBool,
    }

    impl Fault for CutOfSpare {
        fn step(&self, step: Step, _: &Path) -> io::Result<()> {
            if step == Step::Create {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            if step == Step::Take {
                self.is_spare.store(true, Ordering::SeqCst);
            }
            let at =
                self.steps.fetch_add(usize::from(self.is_spare.load(Ordering::SeqCst)), Ordering::SeqCst);
            if at >= self.at { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
        }
    }

    #[test]
    fn a_file_is_the_old_or_the_new_one_whenever_the_plug_is_pulled_while_a_spare_file_is_used() {
        let directory = scratch("cut-spare");
        let path = directory.join("record.json");
        let reserve = reserve(&directory);
        let mut finished = false;
        for at in 0..8 {
            fs::write(&path, b"old").expect("there is room");
            let (steps, is_spare) = (AtomicUsize::new(0), false.into());
            let fault = CutOfSpare { at, steps, is_spare };
            let result = replace(&path, b"new", &fault, Some((&reserve, Left::None)));
            let now = fs::read(&path).expect("there is one");
            assert!(now == b"old" || now == b"new", "cut at step {at}: {now:?}");
            assert!(result.is_err() || now == b"new");
            finished |= result.is_ok();
            while !reserve.replenish().expect("there is room") {}
        }
        assert!(finished, "no run was long enough to finish");
        fs::remove_dir_all(directory).expect("the scratch directory goes");
    }

    #[test]
    fn a_file_with_unchanged_content_is_not_written() {
        let directory = scratch("same");
        let path = directory.join("record.json");
        replace(&path, b"same", &NoFault, None).expect("written once");
        let fault = FailOnce::of(Step::Create);
        replace(&path, b"same", &fault, None).expect("there is nothing to write");
        assert_eq!(fault.take(), [Step::SyncDirectory]);
        fs::remove_dir_all(directory).expect("the scratch directory goes");
    }
}
