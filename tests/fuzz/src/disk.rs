//! Disks that fail at the n-th operation of [`nodlet_kernel::durable`], and power cuts there. After each, a reader must
//! find the old content or the new one.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nodlet_kernel::durable::{Decision, Observed, Operation, observe};

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// One operation fails with EIO; all others work.
    Once,
    /// From then on, no space is left for writes.
    Full,
    /// A write is cut short, and then the disk is full.
    Short,
    /// The process dies, and what it has written stays.
    Death,
    /// A power cut: unsynced data is garbage, all renames and removals have happened.
    PowerCut,
    /// A power cut: unsynced data is garbage, no unsynced rename, removal or creation has happened.
    PowerCutBeforeRenames,
    /// A power cut: the latest rename, removal or creation has happened, but earlier ones that are not synced have not.
    PowerCutReordered,
}

/// All kinds of faults.
pub const FAULTS: [Fault; 7] =
    [Fault::Once, Fault::Full, Fault::Short, Fault::Death, POWER_CUTS[0], POWER_CUTS[1], POWER_CUTS[2]];

/// The kinds of power cuts.
pub const POWER_CUTS: [Fault; 3] = [Fault::PowerCut, Fault::PowerCutBeforeRenames, Fault::PowerCutReordered];

impl Fault {
    /// Whether nothing can be written after it.
    pub fn is_final(self) -> bool {
        match self {
            Fault::Death | Fault::PowerCut | Fault::PowerCutBeforeRenames | Fault::PowerCutReordered => true,
            Fault::Once | Fault::Full | Fault::Short => false,
        }
    }
}

/// A change of a directory, which a power cut may undo: the name that it concerns, and what was there before.
struct Change {
    name: PathBuf,
    before: Option<Vec<u8>>,
    /// The former name of a file or directory that was renamed.
    from: Option<PathBuf>,
}

impl Change {
    fn undo(self) {
        match (self.from, self.before) {
            (Some(from), before) => {
                let _ = fs::rename(&self.name, &from);
                if let Some(before) = before {
                    fs::write(&self.name, before).expect("there is room");
                }
            }
            (None, Some(before)) => fs::write(&self.name, before).expect("there is room"),
            (None, None) => {
                let _ = fs::remove_file(&self.name).or_else(|_| fs::remove_dir_all(&self.name));
            }
        }
    }
}

#[derive(Default)]
struct State {
    operations: usize,
    empty_writes: usize,
    /// Files whose data a power cut destroys.
    unsynced: BTreeSet<PathBuf>,
    changes: Vec<Change>,
}

impl State {
    fn note(&mut self, operation: &Operation<'_>) {
        match *operation {
            Operation::CreateDirectory(path) | Operation::Create(path) => {
                let is_file = matches!(operation, Operation::Create(_));
                if is_file {
                    self.unsynced.insert(path.to_owned());
                }
                if fs::symlink_metadata(path).is_err() {
                    self.changes.push(Change { name: path.to_owned(), before: None, from: None });
                }
            }
            Operation::Take(_) => {}
            Operation::Write { path, bytes } => {
                self.empty_writes += usize::from(bytes == 0);
                self.unsynced.insert(path.to_owned());
            }
            Operation::SetLength(path) => drop(self.unsynced.insert(path.to_owned())),
            Operation::Sync(path) => drop(self.unsynced.remove(path)),
            Operation::SyncDirectory(path) => {
                self.changes.retain(|change| change.name.parent() != Some(path));
            }
            Operation::Rename { from, to } => {
                if self.unsynced.remove(from) {
                    self.unsynced.insert(to.to_owned())
                } else {
                    self.unsynced.remove(to)
                };
                self.changes.retain(|change| change.name != from);
                let (before, from) = (fs::read(to).ok(), Some(from.to_owned()));
                self.changes.push(Change { name: to.to_owned(), before, from });
            }
            Operation::Remove(path) => {
                self.unsynced.remove(path);
                if let Ok(before) = fs::read(path) {
                    self.changes.push(Change { name: path.to_owned(), before: Some(before), from: None });
                }
            }
        }
    }

    fn cut(&mut self, fault: Fault) {
        for path in &self.unsynced {
            if let Ok(bytes) = fs::read(path) {
                fs::write(path, vec![0xa5; bytes.len() / 2]).expect("there is room");
            }
        }
        if fault == Fault::PowerCutReordered {
            self.changes.pop();
        }
        self.changes.drain(..).rev().for_each(Change::undo);
    }
}

/// A disk that has a fault at one of the operations of this thread.
#[must_use = "the disk works again when this value is dropped"]
pub struct Disk {
    fault: Fault,
    state: Rc<RefCell<State>>,
    observed: Observed,
}

impl Disk {
    /// A disk with this fault at the operation `at`, of which the first is 1.
    pub fn failing(fault: Fault, at: usize) -> Disk {
        Disk::new(fault, at, false)
    }

    /// A disk that has room for no new file, with this fault at the operation `at`.
    pub fn full_and_failing(fault: Fault, at: usize) -> Disk {
        Disk::new(fault, at, true)
    }

    /// A disk that works and counts its operations.
    pub fn counting() -> Disk {
        Disk::failing(Fault::Once, usize::MAX)
    }

    fn new(fault: Fault, at: usize, is_full: bool) -> Disk {
        let state = Rc::new(RefCell::new(State::default()));
        let observing = Rc::clone(&state);
        let observed = observe(move |operation| {
            if is_full && matches!(operation, Operation::Create(_)) {
                return Decision::Fail(libc::ENOSPC);
            }
            let mut state = observing.borrow_mut();
            state.operations += 1;
            let failed = state.operations >= at;
            // A full disk may report it only when data is synced or a directory grows; it always allows removals.
            let writes = !matches!(operation, Operation::Remove(_));
            let decision = match fault {
                Fault::Once if state.operations == at => Decision::Fail(libc::EIO),
                Fault::Full if failed && writes => Decision::Fail(libc::ENOSPC),
                Fault::Short if state.operations == at && writes => Decision::Short(7, libc::ENOSPC),
                Fault::Short if failed && writes => Decision::Fail(libc::ENOSPC),
                fault if fault.is_final() && failed => Decision::Fail(libc::EIO),
                _ => Decision::Proceed,
            };
            if matches!(decision, Decision::Proceed) {
                state.note(operation);
            }
            decision
        });
        Disk { fault, state, observed }
    }

    /// How many operations there were.
    pub fn operations(&self) -> usize {
        self.state.borrow().operations
    }

    /// How many writes had no bytes.
    pub fn empty_writes(&self) -> usize {
        self.state.borrow().empty_writes
    }

    /// Makes the disk work again. If its fault is a power cut, what was not durable is lost.
    pub fn repair(self) {
        drop(self.observed);
        if POWER_CUTS.contains(&self.fault) {
            self.state.borrow_mut().cut(self.fault);
        }
    }
}

/// A change to be tested with each fault at each of its operations.
pub struct Trial<'a, S> {
    /// A directory for the trials, best on tmpfs.
    pub scratch: &'a Path,
    /// Whether the disk has no room for new files.
    pub is_full: bool,
    /// Fills a new directory.
    pub prepare: &'a dyn Fn(&Path),
    /// Makes the change. Returns whether it succeeded.
    pub change: &'a dyn Fn(&Path) -> bool,
    /// What a reader finds.
    pub read: &'a dyn Fn(&Path) -> S,
}

impl<S: Debug + PartialEq> Trial<'_, S> {
    /// Tries the change with each of these faults at each of its operations. A reader must then find what was there before,
    /// or all of the change, and the latter if it succeeded. `check` is called after each with the directory, the fault,
    /// and whether a reader finds what was there before. After that, another change must not be obstructed. Returns the
    /// number of operations.
    ///
    /// # Panics
    /// If a reader finds anything else.
    pub fn with_each_of(&self, faults: &[Fault], check: &dyn Fn(&Path, Fault, bool)) -> usize {
        let Trial { scratch, prepare, change, read, is_full } = self;
        let prepared = |name: &str| {
            let root = scratch.join(name);
            fs::create_dir(&root).expect("a scratch directory");
            prepare(&root);
            root
        };
        let root = prepared("undisturbed");
        let before = read(&root);
        let disk = Disk::new(Fault::Once, usize::MAX, *is_full);
        assert!(change(&root), "it does not succeed without a fault");
        let operations = disk.operations();
        assert_eq!(disk.empty_writes(), 0, "empty writes");
        disk.repair();
        let after = read(&root);
        assert_ne!(before, after);
        fs::remove_dir_all(&root).expect("it is there");
        for fault in faults {
            // One more: a power cut after everything has been reported as done.
            for at in 1..=operations + 1 {
                let root = prepared(&format!("{fault:?}-{at}"));
                let disk = Disk::new(*fault, at, *is_full);
                let succeeded = change(&root);
                disk.repair();
                let now = read(&root);
                assert!(now == before || now == after, "{fault:?} at {at} of {operations}: {now:#?}");
                assert!(!succeeded || now == after, "{fault:?} at {at}: reported as done, and is not");
                check(&root, *fault, now == before);
                // Leftovers must not obstruct the next change.
                change(&root);
                assert_eq!(read(&root), after, "{fault:?} at {at}, done again");
                fs::remove_dir_all(&root).expect("it is there");
            }
        }
        operations
    }
}
