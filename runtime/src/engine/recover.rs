//! Finds the pods of an earlier agent at the start: those whose supervisors still run, and the files of those whose
//! supervisors have died.

mod greet;
mod runs;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nodlet_core::facts::{self, FoundSandbox};
use nodlet_core::spec::volume::ClaimedVolume;
use nodlet_core::time::Moment;
use nodlet_host::cgroup::CgroupError;
use nodlet_host::error::chain;
use nodlet_host::volume;
use nodlet_kube::manifest;
use nodlet_registry::Wanted;
use nodlet_registry::held_updates::Waits;
use nodlet_rootfs::Reference;
use nodlet_supervisor::client::{self, SupervisorError};
use nodlet_wire::timeout::within;

use super::cleanup;
use super::handles::Sandbox;
use super::handover_files::{PodFile, StatusFile, read_conditions, read_deletion, remove_status};
use super::{EngineError, Shell};
use greet::{find_supervisor, finish_starts};
use runs::{Known, adopt_runs, lost_runs};

/// A pod that was found, for the core and for the engine.
pub(super) struct FoundPod {
    pub(super) facts: facts::FoundPod,
    pub(super) wanted: Rc<Wanted>,
    pub(super) created: Moment,
    /// The images that a change which replaces the pod waited for.
    pub(super) waits: Option<Waits>,
    pub(super) sandbox: Option<Sandbox>,
    /// The PersistentVolumes that the pod uses.
    pub(super) claims: Vec<ClaimedVolume>,
}

/// Time within which a supervisor must answer a new agent. It may wait for a slow card; one that takes longer counts
/// as dead.
const GREETING: Duration = Duration::from_secs(20);

/// The reason why the state of a pod is unknown.
enum FindError {
    /// The file that an earlier agent wrote cannot be parsed.
    Unreadable(String),
    /// This agent has a shortage, such as of descriptors; nothing is wrong with the pod.
    Shortage(io::Error),
}

impl FindError {
    fn of_cgroup(error: CgroupError) -> FindError {
        match nodlet_host::error::shortage_behind(&error) {
            Some(short) => FindError::Shortage(short),
            None => FindError::Unreadable(chain(&error)),
        }
    }

    /// The reason for an error of `pod.json`.
    fn of_file(error: io::Error) -> FindError {
        if nodlet_host::error::is_shortage(&error) {
            FindError::Shortage(error)
        } else {
            FindError::Unreadable(format!("pod.json: {error}"))
        }
    }
}

/// Finds all pods that an earlier agent of this boot left, alive or not.
///
/// # Errors
/// The state of a pod cannot be read. The agent must end, since it would take living pods for dead ones.
pub(super) async fn find_pods(shell: &Rc<Shell>) -> Result<Vec<FoundPod>, EngineError> {
    let mut found = Vec::new();
    let cannot = |source| EngineError::Kernel { what: "the resources for finding pods", source };
    let entries = paths_in(&shell.paths.run_pods()).map_err(cannot)?;
    let (directories, strays): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|path| path.is_dir() && !path.is_symlink());
    for stray in strays {
        log::warn!("{} is not a directory of a pod; removing it", stray.display());
        if let Err(error) = fs::remove_file(&stray) {
            log::error!("failed to remove {}: {error}", stray.display());
        }
    }
    let ours = Rc::new(File::open("/proc/self/exe").map_err(cannot)?);
    // All at once: a supervisor that is slow to answer holds up nobody but itself.
    let lookups = directories.into_iter().map(|directory| {
        let (of_task, ours) = (shell.clone(), ours.clone());
        let lookup = async move { (find_pod(&of_task, &directory, &ours).await, directory) };
        shell.tasks.executor.spawn(lookup)
    });
    for lookup in lookups.collect::<Vec<_>>() {
        let (looked, directory) = lookup.await;
        match looked {
            Ok(pod) => found.push(pod),
            Err(FindError::Shortage(source)) => return Err(cannot(source)),
            Err(FindError::Unreadable(message)) => {
                log::error!("{}: {message}; killing its remaining processes", directory.display());
                let uid = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
                cleanup::end_unreadable(&shell.machine.cgroups, &shell.watches, &uid, &directory).await;
                // The status names runs that no longer exist.
                remove_status(&shell.paths, &uid);
            }
        }
    }
    // Cgroups whose pod has no directory: the agent died between the two, or somebody removed it.
    let is_found = |uid: &str| found.iter().any(|pod: &FoundPod| *pod.wanted.pod.uid.0 == *uid);
    for uid in shell.machine.cgroups.supervised().map_err(EngineError::Cgroups)? {
        match shell.machine.cgroups.known_supervisor(&uid) {
            Ok(cgroup) if !is_found(&uid) => cleanup::empty(&shell.watches, &uid, &[cgroup]).await,
            Ok(_) => {}
            Err(error) => log::error!("failed to look for the supervisor of {uid}: {}", chain(&error)),
        }
    }
    for (uid, cgroup) in shell.machine.cgroups.pods().map_err(EngineError::Cgroups)? {
        if !is_found(&uid) {
            cleanup::empty(&shell.watches, &uid, &[cgroup]).await;
        }
    }
    if let Err(error) = client::remove_free_locks(&shell.paths.locks(), None) {
        log::error!("failed to remove locks of pods that are gone: {error}");
    }
    Ok(found)
}

/// The paths of the entries of a directory; empty if there is no such directory.
fn paths_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}

/// Leases the images of a pod's runs and volumes again: the leases of the last agent may be lost.
async fn lease_images(shell: &Shell, wanted: &Wanted, sandbox: &Sandbox) {
    let volumes = wanted.pod.spec.image_volumes().map(|(_, name, _)| name.to_owned());
    let mut names: Vec<String> = volumes.collect();
    names.extend(sandbox.runs.borrow().values().map(|run| run.image.image_id.clone()));
    let (images, uid) = (shell.stores.images.clone(), wanted.pod.uid.0.to_string());
    let pod = format!("{}/{}", wanted.pod.namespace, wanted.pod.name);
    let leased = shell.stores.storage.run(move || {
        for name in names {
            let Ok(reference) = Reference::parse(&name) else { continue };
            let found = images.find(&reference);
            // An image that is not there is no longer of use to anybody.
            if let Err(error) =
                found.and_then(|image| image.map_or(Ok(()), |image| images.lease(&image.id, &uid, &pod)))
            {
                log::error!("failed to lease {name} to {pod}: {}", chain(&error));
            }
        }
    });
    leased.await;
}

async fn find_pod(shell: &Rc<Shell>, directory: &Path, ours: &File) -> Result<FoundPod, FindError> {
    let unreadable = |error: &dyn std::fmt::Display| FindError::Unreadable(format!("pod.json: {error}"));
    let file = directory.join("pod.json");
    // Reading a pipe would never end.
    if !fs::symlink_metadata(&file).map_err(FindError::of_file)?.is_file() {
        return Err(unreadable(&"it is not a file"));
    }
    let bytes = nodlet_kernel::own_file::read(&file).map_err(FindError::of_file)?;
    let mut file: PodFile = serde_json::from_slice(&bytes).map_err(|error| unreadable(&error))?;
    // The pod runs here, whatever the name of the node was when the pod was admitted.
    if let Some(spec) = file.object.get_mut("spec").and_then(serde_json::Value::as_object_mut) {
        spec.insert("nodeName".into(), shell.config.node_name.as_str().into());
    }
    let manifest =
        manifest::read_again(file.object, &shell.config.node_name).map_err(|error| unreadable(&error))?;
    let wanted = Rc::new(Wanted {
        presets: file.presets.into(),
        priority: file.priority.map(Rc::new),
        written: file.written.map(Rc::from),
        ..Wanted::new(manifest, &file.source)
    });
    let uid = wanted.pod.uid.0.clone();
    let mut record = shell.stores.load(&uid).unwrap_or_else(|error| {
        log::error!("{uid}: {}; using the supervisor's state", chain(&error));
        None
    });
    let left = StatusFile::read(&shell.paths, &shell.stores.records, &uid);
    if left.is_none()
        && let Some(grace) = read_deletion(directory)
        && record.as_ref().is_none_or(|record| !record.phase.is_terminal())
    {
        record.get_or_insert_default().deletion_grace_period_seconds = Some(grace);
    }
    let created = Moment::ThisBoot(file.created);
    let created = record.as_ref().and_then(|record| record.start_time).unwrap_or(created);
    let created = left.as_ref().map_or(created, |left| left.created);
    let waits = left.as_ref().and_then(|left| left.waits.clone());
    let cgroup = shell.machine.cgroups.pod(&wanted.pod).map_err(FindError::of_cgroup)?;
    if let Some(ip) = file.ip {
        shell.machine.network.borrow_mut().adopt(&wanted.pod, ip, file.ipv6);
    }
    if let Some(address) = file.name_server {
        shell.services.names.adopt(shell, &wanted, address);
    }
    let found = within(GREETING, find_supervisor(&shell.layers, directory, ours)).await;
    let late = || Err(SupervisorError::Receive(io::ErrorKind::TimedOut.into()));
    let living = match found.unwrap_or_else(late).map_err(SupervisorError::shortage) {
        Ok(living) => living,
        Err(Ok(short)) => return Err(FindError::Shortage(short)),
        Err(Err(error)) => {
            log::error!("the supervisor of {uid} does not answer: {}; killing it", chain(&error));
            None
        }
    };
    let (mut attempts, mut ready, mut sandbox, mut processes) = (Vec::new(), None, None, false);
    if let Some((supervisor, state, layers)) = living {
        if file.name_server.is_some() {
            shell.services.names.take_sockets(&supervisor).await;
        }
        let known = Known::of(finish_starts(&supervisor, &cgroup, state).await);
        for (container, number) in &known.failed {
            // The core plans the failed start again, with the same number.
            if let Err(error) = supervisor.forget(container, *number) {
                log::warn!("{uid}: {}", chain(&error));
            }
        }
        ready = known.ready_at;
        let volumes = volume::known(&volume::Request::new(&wanted.pod, &shell.paths, &file.claims));
        let mut made = Sandbox::new(supervisor, cgroup, file.ip, volumes);
        attempts = adopt_runs(&shell.paths, &wanted, &made, known.runs);
        made.layers = layers;
        lease_images(shell, &wanted, &made).await;
        sandbox = Some(made);
    }
    if ready.is_none() {
        // The agent or the supervisor died while the sandbox was being made: remove the remains; the core begins
        // again.
        sandbox = None;
        if let Err(error) = cleanup::remove_remains(&shell.machine.cgroups, &shell.watches, &wanted).await {
            let why = chain(&error);
            log::error!(
                "failed to remove what is left of {uid}: {why}; it is removed again with the sandbox"
            );
            processes = true;
        }
        attempts = lost_runs(&shell.paths, &wanted, directory, file.created).map_err(FindError::Shortage)?;
    }
    // Processes that could not be killed use the volumes, too.
    let claims = if sandbox.is_some() || processes { file.claims } else { Vec::new() };
    let found = facts::FoundPod {
        pod: wanted.pod.clone(),
        record,
        sandbox: sandbox.as_ref().zip(ready).map(|(sandbox, at)| FoundSandbox { ip: sandbox.ip, at }),
        processes,
        attempts,
        status: left.map_or_else(|| read_conditions(directory), |left| left.status),
    };
    Ok(FoundPod { facts: found, wanted, created, waits, sandbox, claims })
}
