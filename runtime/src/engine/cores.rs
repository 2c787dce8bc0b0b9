//! Exclusive cpus: gives them to runs of containers, and keeps all other containers off them.
//!
//! The cpus of a run are in its facts, which the next agent reads. Which cpus a run gets, and which ones the others
//! share, is decided in `nodlet_core::cpus`; that enough of them are free, at admission.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;

use nodlet_core::cpus;
use nodlet_core::facts::{PodIndex, StartFailure, StartFailureReason};
use nodlet_core::spec::Container;
use nodlet_host::cgroup::CgroupError;
use nodlet_host::error::{causes, chain};
use nodlet_host::paths::Paths;

use super::machine::Machine;
use super::pods::Pods;

/// A run: its pod, its container and its number.
type Key = (PodIndex, String, u32);

fn failure(message: String) -> StartFailure {
    StartFailure::new(StartFailureReason::CreateContainerError, message)
}

/// The exclusive cpus of runs.
pub(super) struct Cores {
    machine: Rc<Machine>,
    pods: Rc<Pods>,
    /// A file that exists as long as containers are kept off cpus.
    mark: PathBuf,
    /// The cpus of runs that are being prepared, which have no facts yet.
    starting: RefCell<Vec<(Key, Vec<u32>)>>,
    /// Whether containers are kept off exclusive cpus.
    is_restricted: Cell<bool>,
}

/// The cpus of a run that is being prepared. Dropped when the run has facts, or will not start.
pub(super) struct Reserved {
    cores: Rc<Cores>,
    key: Key,
    /// The exclusive cpus of the run; empty if it has none.
    pub(super) cpus: Vec<u32>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.cores.starting.borrow_mut().retain(|(key, _)| *key != self.key);
        self.cores.settle();
    }
}

impl Reserved {
    /// The cpus that the run may use, for its cgroup: its own, or those that nobody has. `None` for all.
    pub(super) fn list(&self) -> Option<String> {
        if !self.cpus.is_empty() {
            return Some(cpus::list(&self.cpus));
        }
        self.cores.is_restricted.get().then(|| self.cores.shared())
    }
}

/// The reason why containers without exclusive cpus could not be restricted to the others.
#[derive(Debug, thiserror::Error)]
enum CoresError {
    #[error(transparent)]
    Share(CgroupError),
    #[error("write {path}")]
    Mark { path: PathBuf, source: std::io::Error },
}

impl CoresError {
    /// The text for the event and the log. Advice about full or read-only disks is not for a file on tmpfs.
    fn message(&self) -> String {
        let text = match self {
            CoresError::Share(_) => chain(self),
            CoresError::Mark { .. } => causes(self),
        };
        format!("failed to {text}")
    }
}

impl Cores {
    pub(super) fn new(machine: Rc<Machine>, pods: Rc<Pods>, paths: &Paths) -> Rc<Cores> {
        let mark = paths.run().join("exclusive-cpus");
        Rc::new(Cores { machine, pods, mark, starting: RefCell::default(), is_restricted: Cell::default() })
    }

    /// Reserves the exclusive cpus that a container asks for, and keeps other containers off them. `None` for a container
    /// without any, as long as no other container has any.
    ///
    /// # Errors
    /// The cpus are not free, or the cgroups of other containers cannot be written.
    pub(super) fn reserve(
        self: &Rc<Self>,
        pod: PodIndex,
        container: &Container,
        number: u32,
    ) -> Result<Option<Reserved>, StartFailure> {
        let count = container.resources.exclusive_cpus.first().map_or(0, |(_, count)| *count);
        if count == 0 && !self.is_restricted.get() {
            return Ok(None);
        }
        let all = self.machine.cgroups.cpus();
        // A pod that was admitted before the operator allowed its annotation.
        if count > 0 && all.len() < 2 {
            return Err(failure(cpus::NO_EXCLUSIVE_CPUS.to_owned()));
        }
        let key = (pod, container.name.clone(), number);
        let taken = self.taken(Some(&key));
        let Some(cpus) = cpus::choose(all, &taken, usize::try_from(count).unwrap_or(0)) else {
            let message = format!("{count} exclusive cpus are not free: {} are in use", cpus::list(&taken));
            return Err(failure(message));
        };
        let reserved = Reserved { cores: self.clone(), key: key.clone(), cpus: cpus.clone() };
        if !cpus.is_empty() {
            self.starting.borrow_mut().push((key, cpus));
            self.is_restricted.set(true);
            self.restrict().map_err(|error| failure(error.message()))?;
        }
        Ok(Some(reserved))
    }

    /// Lets all containers use the cpus that a run has left, once it has ended.
    pub(super) fn settle(&self) {
        if !self.is_restricted.get() {
            return;
        }
        if let Err(error) = self.restrict() {
            log::error!("{}", error.message());
        }
    }

    /// Continues where the last agent stopped.
    pub(super) fn resume(&self) {
        self.is_restricted.set(self.mark.exists());
        self.settle();
    }

    /// Writes the cpus that all containers without exclusive ones share.
    fn restrict(&self) -> Result<(), CoresError> {
        let is_restricted = !self.taken(None).is_empty();
        let marked = if is_restricted { nodlet_kernel::own_file::write(&self.mark, "") } else { Ok(()) };
        self.machine.cgroups.share_cpus(&self.shared(), &self.exclusive()).map_err(CoresError::Share)?;
        marked.map_err(|source| CoresError::Mark { path: self.mark.clone(), source })?;
        self.is_restricted.set(is_restricted);
        if !is_restricted {
            let _ = std::fs::remove_file(&self.mark);
        }
        Ok(())
    }

    fn shared(&self) -> String {
        cpus::list(&cpus::rest(self.machine.cgroups.cpus(), &self.taken(None)))
    }

    /// The cpus that runs have, except for one.
    fn taken(&self, except: Option<&Key>) -> Vec<u32> {
        let mut all: Vec<u32> = Vec::new();
        for (index, pod) in self.pods.borrow().iter() {
            let Some(sandbox) = &pod.sandbox else { continue };
            for ((name, number), run) in sandbox.runs.borrow().iter() {
                if except.is_none_or(|(pod, of, at)| (pod, of, at) != (index, name, number)) {
                    all.extend(&run.image.cpus);
                }
            }
        }
        let starting = self.starting.borrow();
        all.extend(starting.iter().filter(|(key, _)| Some(key) != except).flat_map(|(_, cpus)| cpus));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The cgroups of runs with exclusive cpus, as the ends of their paths.
    fn exclusive(&self) -> Vec<PathBuf> {
        let starting = self.starting.borrow();
        let mut all = Vec::new();
        for (index, pod) in self.pods.borrow().iter() {
            let Some(sandbox) = &pod.sandbox else { continue };
            let leaf = |name: &str, number: u32| {
                PathBuf::from(sandbox.cgroup.name()).join(format!("{name}-{number}"))
            };
            for ((name, number), run) in sandbox.runs.borrow().iter() {
                if !run.image.cpus.is_empty() {
                    all.push(leaf(name, *number));
                }
            }
            let of_pod = starting.iter().filter(|((pod, _, _), _)| pod == index);
            all.extend(of_pod.map(|((_, name, number), _)| leaf(name, *number)));
        }
        all
    }
}
