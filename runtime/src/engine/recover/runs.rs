//! The runs of a pod that was found: those that its supervisor knows, and those of a supervisor that died.

use std::io;
use std::path::Path;

use nodlet_core::facts::{Attempt, FoundAttempt, Health, User};
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::ContainerIndex;
use nodlet_core::time::Instant;
use nodlet_host::error::chain;
use nodlet_host::paths::Paths;
use nodlet_registry::Wanted;
use nodlet_supervisor::ExitRecord;
use nodlet_supervisor::client::{StartedProcess, SupervisorEvent, SupervisorState};

use crate::engine::cleanup::names;
use crate::engine::handles::{Run, Sandbox};
use crate::engine::handover_files::read_healths;
use crate::engine::reports;
use crate::engine::run::{self};

/// The state that a supervisor has reported, by run.
#[derive(Default)]
pub(super) struct Known {
    pub(super) ready_at: Option<Instant>,
    pub(super) runs: SortedMap<(String, u32), KnownRun>,
    /// Starts that failed while no agent ran.
    pub(super) failed: Vec<(String, u32)>,
}

pub(super) struct KnownRun {
    process: StartedProcess,
    /// Set if the run has ended; with its exit record, if there is one.
    exit: Option<Option<ExitRecord>>,
}

impl Known {
    pub(super) fn of(state: SupervisorState) -> Known {
        let mut known = Known::default();
        for event in state.events {
            match event {
                SupervisorEvent::SandboxReady { at } => known.ready_at = Some(at),
                SupervisorEvent::Started { container, number, process } => {
                    known.runs.insert((container, number), KnownRun { process, exit: None });
                }
                SupervisorEvent::Exited { container, number, exit } => {
                    if let Some(run) = known.runs.get_mut(&(container, number)) {
                        run.exit = Some(exit);
                    }
                }
                SupervisorEvent::StartFailed { container, number, .. } => {
                    known.failed.push((container, number))
                }
                // Processes that an earlier agent asked for have nobody who waits for them.
                SupervisorEvent::SandboxFailed { .. }
                | SupervisorEvent::ExecStarted { .. }
                | SupervisorEvent::ExecFailed { .. }
                | SupervisorEvent::ExecExited { .. }
                | SupervisorEvent::Attached { .. }
                | SupervisorEvent::AttachFailed { .. } => {}
            }
        }
        known
    }
}

/// Adds the runs that are alive to `sandbox`. Returns all runs, for the core.
pub(super) fn adopt_runs(
    paths: &Paths,
    wanted: &Wanted,
    sandbox: &Sandbox,
    runs: SortedMap<(String, u32), KnownRun>,
) -> Vec<FoundAttempt> {
    let mut attempts = Vec::new();
    let healths = read_healths(&paths.run_pod(&wanted.pod.uid.0));
    for ((name, number), known) in runs {
        let Some(index) = wanted.pod.spec.index_of(&name) else { continue };
        let facts = run::read_facts(paths, wanted, &name, number);
        let at = known.process.at;
        let container = reports::started_container(&facts, at, known.process.user);
        let leaf = sandbox.cgroup.known_leaf(&name, number);
        let exit = known.exit.map(|record| reports::exit_of(record, at, reports::oom_killed(&leaf)));
        let attempt = Attempt { container: index, number };
        if exit.is_none()
            && let Err(error) = leaf.kill_execs()
        {
            // Nobody waits for what an earlier agent had executed.
            log::error!("failed to kill what was executed in {name}#{number}: {}", chain(&error));
        }
        if exit.is_some() {
            // Its end is reported to the core here, and never again.
            if let Err(error) = leaf.remove() {
                log::error!("failed to remove the cgroup of {name}#{number}: {}", chain(&error));
            }
        } else {
            let run = Run {
                leaf,
                process: known.process.pidfd,
                started: Some(container.clone()),
                image: facts,
                _layers: Vec::new(),
                turn: None,
            };
            sandbox.runs.borrow_mut().insert((name, number), run);
        }
        let health = healths.get(usize::from(index.0)).copied().unwrap_or_default();
        attempts.push(FoundAttempt { attempt, container, exit, health });
    }
    attempts
}

/// The newest run of each container, after the supervisor died while no agent ran. How a run ended is known only if
/// there is an exit record.
pub(super) fn lost_runs(
    paths: &Paths,
    wanted: &Wanted,
    directory: &Path,
    created: Instant,
) -> io::Result<Vec<FoundAttempt>> {
    let newest = |name: &str| {
        let numbers = names(&directory.join(run::FACTS));
        let of =
            |file: &String| file.strip_suffix(".json")?.strip_prefix(name)?.strip_prefix('_')?.parse().ok();
        numbers.iter().filter_map(of).max()
    };
    let lost = |index: ContainerIndex| {
        let name = &wanted.pod.spec.container(index).name;
        let Some(number) = newest(name) else { return Ok(None) };
        let exit = ExitRecord::read(directory, name, number)?;
        let at = exit.as_ref().map_or(created, |exit| exit.started_at);
        let user = User::default();
        Ok(Some(FoundAttempt {
            attempt: Attempt { container: index, number },
            container: reports::started_container(&run::read_facts(paths, wanted, name, number), at, user),
            exit: exit.map(|record| reports::exit_of(Some(record), at, false)),
            health: Health::default(),
        }))
    };
    wanted.pod.spec.container_indexes().filter_map(|index| lost(index).transpose()).collect()
}
