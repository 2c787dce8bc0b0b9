//! Stops runs of containers, and discards what ended runs leave: their handles, cgroups, writable layers and logs.

use std::path::{Path, PathBuf};

use crate::container_config;
use crate::storage_thread::Storage;
use nodlet_core::facts::{Attempt, PodIndex, PodObservation};
use nodlet_host::cgroup::CgroupError;
use nodlet_host::error::chain;
use nodlet_host::log_files;
use nodlet_host::paths::Paths;
use nodlet_kernel::process::pidfd_send_signal;
use nodlet_registry::Wanted;

use super::handles::{Run, Sandbox, facts_path};
use super::pods::Pods;
use super::tasks::Tasks;
use super::{cleanup, flash, log_name};

/// Requests the supervisor to drop its data of a run.
pub(super) fn forget(sandbox: &Sandbox, container: &str, number: u32) {
    if let Err(error) = sandbox.supervisor.forget(container, number) {
        // The supervisor keeps the data of one run too many. If it died, that is reported elsewhere.
        log::debug!("{}", chain(&error));
    }
}

/// The reason why a run could not be stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum StopError {
    #[error("signal the container")]
    Signal(#[source] std::io::Error),
    #[error("kill the container")]
    Kill(#[source] CgroupError),
}

/// Sends the stop signal to the first process of the run.
pub(super) fn terminate(pods: &Pods, pod: PodIndex, attempt: Attempt) -> Result<(), StopError> {
    let sent = with_run(pods, pod, attempt, |run| {
        let (Some(process), Some(started)) = (&run.process, &run.started) else { return Ok(()) };
        pidfd_send_signal(process, started.stop_signal)
    });
    match sent {
        // ESRCH: it ended by itself, and its exit is on the way.
        Some(Err(error)) if error != nix::Error::ESRCH => Err(StopError::Signal(error.into())),
        Some(Ok(()) | Err(_)) | None => Ok(()),
    }
}

/// Sends SIGKILL to every process of the run. Gives up its start if that is under way.
pub(super) fn kill(pods: &Pods, pod: PodIndex, attempt: Attempt) -> Result<(), StopError> {
    let killed = with_run(pods, pod, attempt, |run| {
        run.leaf.kill()?;
        if run.started.is_none() {
            // Without its cgroup, the supervisor cannot begin a start that it has not begun yet. The cgroup stays as long
            // as it has processes, which are dying.
            let _ = run.leaf.remove();
        }
        Ok(())
    });
    if let (None, Some(wanted), Some(sandbox)) = (&killed, pods.wanted(pod), pods.sandbox(pod)) {
        // It is being prepared, or has ended meanwhile.
        let name = wanted.pod.spec.container(attempt.container).name.clone();
        sandbox.given_up.borrow_mut().insert(name, attempt.number);
    }
    killed.unwrap_or(Ok(())).map_err(StopError::Kill)
}

fn with_run<T>(pods: &Pods, pod: PodIndex, attempt: Attempt, act: impl FnOnce(&Run) -> T) -> Option<T> {
    let wanted = pods.wanted(pod)?;
    let name = wanted.pod.spec.container(attempt.container).name.clone();
    let sandbox = pods.sandbox(pod)?;
    let runs = sandbox.runs.borrow();
    runs.get(&(name, attempt.number)).map(act)
}

/// Drops the handle of a run that has ended, with its layers, and removes its cgroup.
pub(super) fn forget_what_ended(pods: &Pods, pod: PodIndex, seen: &PodObservation) {
    let PodObservation::Exited { attempt, .. } = seen else { return };
    let (Some(wanted), Some(sandbox)) = (pods.wanted(pod), pods.sandbox(pod)) else { return };
    let name = wanted.pod.spec.container(attempt.container).name.clone();
    if let Some(run) = sandbox.runs.borrow_mut().remove(&(name, attempt.number))
        && let Err(error) = run.leaf.remove()
    {
        let why = chain(&error);
        log::error!("failed to remove the cgroup of {}: {why}", log_name(&wanted, *attempt));
    }
}

/// Removes the writable layers of a run and of earlier ones, and the logs of runs before the last two. Failures are only
/// logged: the next discard of the container tries again, and finally `RemoveVolumes` or `Forget`, which the core repeats.
pub(super) fn discard(
    (tasks, storage, paths): (&Tasks, &Storage, &Paths),
    sandbox: Option<&Sandbox>,
    wanted: &Wanted,
    attempt: Attempt,
) {
    let name = wanted.pod.spec.container(attempt.container).name.clone();
    // The newest run stays with the supervisor, ended or not: a later agent learns from
    // it how often the container was restarted and how it ended last.
    if let Some(earlier) = attempt.number.checked_sub(1) {
        if let Some(sandbox) = sandbox {
            forget(sandbox, &name, earlier);
        }
        let facts = facts_path(paths, wanted, &name, earlier);
        // A start that failed early wrote none.
        if let Err(error) = nodlet_kernel::durable::discard(&facts) {
            log::error!("failed to remove {}: {error}", facts.display());
        }
    }
    let (paths, number) = (paths.clone(), attempt.number);
    let (namespace, pod) = (wanted.pod.namespace.to_string(), wanted.pod.name.to_string());
    let uid = wanted.pod.uid.0.to_string();
    let runs = container_config::run_files::run_directory(&paths, &uid, &name, number);
    let earlier = storage.run(move || earlier_runs(&runs, number));
    let directory = paths.pod_logs(&namespace, &pod, &uid).join(&name);
    let storage = storage.clone();
    let logs =
        storage.run(move || log_files::remove_earlier_runs(&paths, (&namespace, &pod, &uid), &name, number));
    tasks.spawn(async move {
        if let Err(error) = logs.await {
            log::error!("failed to remove earlier logs from {}: {error}", directory.display());
        }
        for directory in earlier.await {
            if let Err(error) = flash::remove_tree(&storage, directory.clone()).await {
                log::error!("failed to remove {}: {error}", directory.display());
            }
        }
    });
}

/// The directories of the run with `number`, which is `directory`, and of earlier runs, which an agent that died may
/// have left.
fn earlier_runs(directory: &Path, number: u32) -> Vec<PathBuf> {
    let Some(runs) = directory.parent() else { return Vec::new() };
    let is_earlier = |name: &String| name.parse::<u32>().is_ok_and(|found| found <= number);
    cleanup::names(runs).into_iter().filter(is_earlier).map(|name| runs.join(name)).collect()
}
