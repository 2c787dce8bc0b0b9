//! Creates and removes the sandboxes of pods: volumes, cgroup, network and supervisor, which the pod's containers
//! share. [`forget`] removes what outlives a sandbox.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use crate::container_config;
use crate::pod_files::{self, NodeFiles};
use nodlet_core::facts::{Event, PodIndex, PodObservation, SandboxFailure};
use nodlet_core::spec::volume::ClaimedVolume;
use nodlet_core::time::Instant;
use nodlet_host::cgroup::CgroupError;
use nodlet_host::error::{causes, chain};
use nodlet_host::network::NetworkError;
use nodlet_host::volume;
use nodlet_registry::{ConfigObjects, Wanted, memory_of_all_pods};
use nodlet_rootfs::StoreError;
use nodlet_supervisor::END_REASON_FILE;
use nodlet_supervisor::client::{self, Supervisor, SupervisorError, SupervisorEvent, SupervisorState};
use nodlet_wire::timeout::within;

use super::exec::Execs;
use super::flash::remove_tree;
use super::handles::Sandbox;
use super::machine::Machine;
use super::network::{cluster_network, resolver};
use super::volumes::VolumeFailure;
use super::{SUPERVISOR_END, Shell, cleanup, handover_files, reports, services, this_node};

/// Time within which supervisor and namespaces must be ready. Nothing is written to flash for them. One that hangs
/// must not block the pod's deletion.
const SANDBOX_WITHIN: Duration = Duration::from_secs(30);

/// Time until a supervisor is greeted again after its message could not be received because of a shortage, such as of
/// descriptors.
const GREET_AGAIN: Duration = Duration::from_secs(1);

/// A sandbox that was created.
pub(super) struct CreatedSandbox {
    pub(super) ip: Option<Ipv4Addr>,
    /// When the sandbox became ready.
    pub(super) at: Instant,
}

/// The reason why a sandbox could not be created.
pub(super) struct CreateFailure {
    pub(super) reason: SandboxFailure,
    pub(super) message: String,
    /// Whether parts of the sandbox may exist, which [`remove`] removes.
    pub(super) remains: bool,
}

impl CreateFailure {
    fn sandbox(error: impl std::error::Error + 'static) -> CreateFailure {
        CreateFailure::new(SandboxFailure::Sandbox, chain(&error))
    }

    /// A failure after the first part of the sandbox was begun.
    fn new(reason: SandboxFailure, message: String) -> CreateFailure {
        CreateFailure { reason, message, remains: true }
    }

    /// The pod is not tried, for this reason.
    pub(super) fn set_aside(why: String) -> CreateFailure {
        CreateFailure { remains: false, ..CreateFailure::new(SandboxFailure::SetAside, why) }
    }

    /// A failure before anything was begun.
    fn early(error: impl std::error::Error + 'static) -> CreateFailure {
        CreateFailure { remains: false, ..CreateFailure::sandbox(error) }
    }
}

/// Creates the sandbox of a pod.
///
/// # Errors
/// The sandbox could not be created. Nothing is removed here: the core plans that, and keeps it up until it succeeds.
pub(super) async fn create(
    shell: Rc<Shell>,
    pod: PodIndex,
    wanted: Rc<Wanted>,
    objects: ConfigObjects,
    claims: Result<Vec<ClaimedVolume>, String>,
) -> Result<CreatedSandbox, CreateFailure> {
    let before = |reason, message| CreateFailure { remains: false, ..CreateFailure::new(reason, message) };
    let claims = claims.map_err(|message| before(SandboxFailure::ObjectNotFound, message))?;
    if !claims.is_empty() {
        let saved = shell.stores.save_bindings(&shell.paths).await;
        saved.map_err(|error| {
            before(SandboxFailure::Mount, format!("failed to save which claims are bound: {error}"))
        })?;
    }
    let ip = shell.machine.network.borrow_mut().allocate(&wanted.pod);
    let made = match ip {
        Ok(ip) => make(&shell, pod, &wanted, ip, objects, claims).await,
        Err(error) => Err(CreateFailure::early(error)),
    };
    match made {
        Ok((sandbox, at)) => {
            let (sandbox, ip) = (Rc::new(sandbox), sandbox_ip(&shell.machine, &wanted));
            if let Some(entry) = shell.pods.borrow_mut().get_mut(&pod) {
                entry.sandbox = Some(sandbox.clone());
            }
            shell.tasks.spawn(listen(shell.clone(), pod, sandbox));
            Ok(CreatedSandbox { ip, at })
        }
        Err(failure) => {
            // What remains may have the address: `remove` releases it.
            if !failure.remains
                && let Err(error) = shell.machine.network.borrow_mut().release(&wanted.pod.uid)
            {
                // The pod keeps its address for the next try.
                let why = RemoveError::Ports(error).message();
                log::error!("{}/{}: {why}", wanted.pod.namespace, wanted.pod.name);
            }
            if failure.reason == SandboxFailure::DeviceNotFound {
                shell.devices.schedule_refresh(&wanted.pod);
            }
            log::warn!(
                "failed to create the sandbox of {}/{}: {}",
                wanted.pod.namespace,
                wanted.pod.name,
                failure.message
            );
            Err(failure)
        }
    }
}

fn sandbox_ip(machine: &Machine, wanted: &Wanted) -> Option<Ipv4Addr> {
    machine.network.borrow().address_of(&wanted.pod.uid)
}

/// The lock that the pod's supervisor holds, so that there is one for each name.
fn lock_name(wanted: &Wanted) -> String {
    format!("{}_{}", wanted.pod.namespace, wanted.pod.name)
}

/// Makes the parts of a sandbox.
async fn make(
    shell: &Rc<Shell>,
    pod: PodIndex,
    wanted: &Rc<Wanted>,
    ip: Option<Ipv4Addr>,
    objects: ConfigObjects,
    mut claims: Vec<ClaimedVolume>,
) -> Result<(Sandbox, Instant), CreateFailure> {
    let _reservation = shell.start_reservations.pod().map_err(CreateFailure::early)?;
    // Processes that an earlier agent could not end; this agent knows nothing else of their pod.
    let earlier = shell.machine.cgroups.known_pod(&wanted.pod).and_then(|cgroup| cgroup.populated());
    if earlier.map_err(CreateFailure::sandbox)? {
        let message = "processes of an earlier sandbox of the pod are alive".to_owned();
        return Err(CreateFailure::new(SandboxFailure::Sandbox, message));
    }
    let volumes = set_up_volumes(shell, pod, wanted, objects, &mut claims).await?;
    let made = make_on(shell, wanted, ip, volumes, claims);
    within(SANDBOX_WITHIN, made).await.unwrap_or_else(|| {
        let seconds = SANDBOX_WITHIN.as_secs();
        let message = format!("failed to make its namespaces within {seconds} s");
        Err(CreateFailure::new(SandboxFailure::Sandbox, message))
    })
}

async fn set_up_volumes(
    shell: &Rc<Shell>,
    pod: PodIndex,
    wanted: &Rc<Wanted>,
    objects: ConfigObjects,
    claims: &mut [ClaimedVolume],
) -> Result<volume::Volumes, CreateFailure> {
    let failed = |failure: VolumeFailure| CreateFailure::new(failure.reason, failure.message);
    let allocatable = this_node::info(&shell.config, &shell.machine).allocatable;
    shell.volumes.write_files(wanted, objects, &allocatable).await.map_err(failed)?;
    let lock =
        || lock_request(shell, wanted).map_err(|error| VolumeFailure::new(SandboxFailure::Sandbox, &error));
    shell.volumes.set_up(&shell.tasks, (pod, wanted), claims, lock).await.map_err(failed)
}

/// The lock of the PersistentVolumes of a pod: its processes, and those of its supervisor, have it.
fn lock_request(shell: &Shell, wanted: &Wanted) -> Result<volume::LockRequest, CgroupError> {
    let (cgroups, uid) = (&shell.machine.cgroups, &wanted.pod.uid.0);
    let cgroups =
        vec![cgroups.known_supervisor(uid)?.directory(), cgroups.known_pod(&wanted.pod)?.directory()];
    Ok(volume::LockRequest::new(&shell.paths, uid, cgroups))
}

/// Makes the parts of a sandbox other than its volumes.
async fn make_on(
    shell: &Rc<Shell>,
    wanted: &Rc<Wanted>,
    ip: Option<Ipv4Addr>,
    volumes: volume::Volumes,
    claims: Vec<ClaimedVolume>,
) -> Result<(Sandbox, Instant), CreateFailure> {
    let pod = &wanted.pod;
    let uid = &pod.uid.0;
    let directory = shell.paths.run_pod(uid);
    let interfaces =
        shell.devices.interfaces(pod).map_err(|(reason, message)| CreateFailure::new(reason, message))?;
    let ipv6 = shell.machine.network.borrow().ipv6_of(&pod.uid);
    let name_server = shell.services.names.join(shell, wanted).await;
    let dns = services::dns_of(shell, &pod.uid);
    handover_files::write_pod(&shell.paths, wanted, (ip, ipv6), name_server, claims)
        .map_err(CreateFailure::sandbox)?;
    if let Some(ip) = ip {
        let connected = shell.machine.network.borrow_mut().connect(pod, ip);
        shell.firewall.follow(connected.map_err(CreateFailure::sandbox)?);
        // The bridge may be new.
        shell.services.repair_routes();
    }
    let host_name = pod_files::host_name().map_err(CreateFailure::sandbox)?;
    let file = shell.config.resolv_conf.clone();
    let node = shell.stores.storage.run(move || NodeFiles::read(file.as_deref())).await;
    let (files, left_out) = pod_files::texts(pod, (ip, ipv6), &host_name, &node, &dns);
    let on_disk = shell.paths.pod(uid);
    shell.stores.storage.run(move || files.write(&on_disk)).await.map_err(CreateFailure::sandbox)?;
    resolver::report_left_out(&shell.publication, wanted, left_out);
    if let Some(message) = cluster_network::missing_dns(shell, wanted) {
        let reason = "MissingClusterDNS".into();
        let event = Event { container: None, warning: true, reason, message: message.into() };
        shell.publication.emit(wanted, &event);
    }
    let cgroup = shell.machine.cgroups.pod(pod).map_err(CreateFailure::sandbox)?;
    let mut network = ip.map(|ip| shell.machine.network.borrow().config(&pod.uid, ip));
    if let Some(network) = &mut network {
        network.interfaces = interfaces;
    }
    let config = container_config::sandbox_config(
        pod,
        (&host_name, &dns),
        network,
        cgroup.pause_paths(pod.spec.share_process_namespace).map_err(CreateFailure::sandbox)?,
        memory_of_all_pods(&this_node::facts(&shell.config, &shell.machine)),
    );
    let config = config.map_err(|error| CreateFailure::sandbox(std::io::Error::other(error)))?;
    let own_cgroup = shell.machine.cgroups.supervisor(uid).map_err(CreateFailure::sandbox)?;
    let own_paths = shell.machine.cgroups.supervisor_paths(&own_cgroup);
    let supervisor =
        Supervisor::spawn(&directory, &lock_name(wanted), &own_paths).map_err(CreateFailure::sandbox)?;
    supervisor.hello().await.map_err(CreateFailure::sandbox)?;
    supervisor.create_sandbox(&config).map_err(CreateFailure::sandbox)?;
    loop {
        match supervisor.next().await.map_err(CreateFailure::sandbox)? {
            SupervisorEvent::SandboxReady { at } => {
                shell.services.names.keep_sockets(&supervisor);
                return Ok((Sandbox::new(supervisor, cgroup, ip, volumes), at));
            }
            SupervisorEvent::SandboxFailed { message } => {
                return Err(CreateFailure::new(SandboxFailure::Sandbox, format!("failed to {message}")));
            }
            other => log::debug!("{uid}: {other:?} before the sandbox was ready"),
        }
    }
}

/// Logs that the supervisor of a pod was lost, with its last message.
fn report_loss(shell: &Shell, pod: PodIndex, error: &(dyn std::error::Error + 'static)) {
    let Some(wanted) = shell.pods.wanted(pod) else { return };
    let (namespace, name) = (&wanted.pod.namespace, &wanted.pod.name);
    let why = chain(error);
    log::error!("lost the supervisor of {namespace}/{name}: {why}; its containers are killed");
    if let Ok(words) =
        nodlet_kernel::own_file::read_to_string(&shell.paths.run_pod(&wanted.pod.uid.0).join(END_REASON_FILE))
    {
        log::error!("its last message: {}", words.trim());
    }
}

/// Reports the events of a supervisor until it hangs up.
pub(super) async fn listen(shell: Rc<Shell>, pod: PodIndex, sandbox: Rc<Sandbox>) {
    loop {
        match sandbox.supervisor.next().await.map_err(SupervisorError::shortage) {
            Ok(event) => reports::report_event(&shell, pod, &sandbox, event).await,
            Err(Ok(short)) => {
                log::error!(
                    "failed to receive from the supervisor of a pod: {short}; requesting its state again"
                );
                if let Some(state) = greet_again(&shell.execs, pod, &sandbox.supervisor).await {
                    for event in state.events {
                        reports::report_event(&shell, pod, &sandbox, event).await;
                    }
                }
            }
            Err(Err(error)) => {
                let _ = sandbox.gone.0.try_send(());
                if sandbox.ending.get() {
                    return;
                }
                report_loss(&shell, pod, &error);
                let killed = cleanup::kill(&sandbox.cgroup, &shell.watches).await;
                if let Err(error) = &killed {
                    log::error!("{}; they are killed again with the sandbox", chain(error));
                }
                shell.execs.lost(pod);
                reports::report_records(&shell, pod, &sandbox).await;
                let processes = killed.is_err();
                shell.tasks.report(pod, PodObservation::SandboxLost { processes }).await;
                return;
            }
        }
    }
}

/// Greets a supervisor again, so that it reports its whole state, as soon as that can be received. Returns `None` if
/// the supervisor is dead, which the next receive reports.
async fn greet_again(execs: &Execs, pod: PodIndex, supervisor: &Supervisor) -> Option<SupervisorState> {
    loop {
        smol::Timer::after(GREET_AGAIN).await;
        let attaching = execs.attaching(pod);
        match supervisor.hello().await.map_err(SupervisorError::shortage) {
            Ok(state) => {
                // The repeated state does not include attached clients.
                for id in attaching {
                    let message = "the agent ran out of a resource and lost the reply; try again";
                    execs.failed(pod, id, message.to_owned());
                }
                return Some(state);
            }
            Err(Ok(_)) => {}
            Err(Err(_)) => return None,
        }
    }
}

/// A part of a sandbox that could not be removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RemoveError {
    #[error(transparent)]
    Processes(cleanup::CleanupError),
    #[error("failed to remove {path}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("failed to close its hostPorts")]
    Ports(#[source] NetworkError),
}

impl RemoveError {
    /// The text for the event and the log. Advice about full or read-only disks is not for a directory on tmpfs.
    pub(super) fn message(&self) -> String {
        match self {
            RemoveError::Processes(_) | RemoveError::Ports(_) => chain(self),
            RemoveError::Directory { .. } => causes(self),
        }
    }
}

/// Ends the supervisor, and removes the sandbox. Called again after a failure.
///
/// # Errors
/// A part of the sandbox could not be removed.
pub(super) async fn remove(shell: Rc<Shell>, pod: PodIndex, wanted: Rc<Wanted>) -> Result<(), RemoveError> {
    let sandbox = shell.pods.borrow_mut().get_mut(&pod).and_then(|entry| entry.sandbox.take());
    if let Some(sandbox) = sandbox {
        sandbox.ending.set(true);
        // A supervisor that hung up already takes no frame; killing what is left is the same either way.
        let _ = sandbox.supervisor.end();
        if within(SUPERVISOR_END, sandbox.gone.1.recv()).await.is_none() {
            log::error!(
                "the supervisor of {}/{} does not end; killing it",
                wanted.pod.namespace,
                wanted.pod.name
            );
        }
        shell.execs.lost(pod);
    }
    let killed = cleanup::remove_remains(&shell.machine.cgroups, &shell.watches, &wanted).await;
    killed.map_err(RemoveError::Processes)?;
    let layers = container_config::run_files::runs_directory(&shell.paths, &wanted.pod.uid.0);
    if let Err(error) = remove_tree(&shell.stores.storage, layers).await {
        // The layers are removed with the pod at the latest.
        log::warn!(
            "failed to remove the writable layers of {}/{}: {error}",
            wanted.pod.namespace,
            wanted.pod.name
        );
    }
    let directory = shell.paths.run_pod(&wanted.pod.uid.0);
    shell.devices.report_renamed(&wanted, &directory);
    // The directory has volumes with files of containers: the removal enters no mount.
    if let Err(source) = remove_tree(&shell.stores.storage, directory.clone()).await {
        return Err(RemoveError::Directory { path: directory, source });
    }
    shell.machine.network.borrow_mut().release(&wanted.pod.uid).map_err(RemoveError::Ports)?;
    shell.services.names.leave(&shell, &wanted.pod.uid);
    Ok(())
}

/// A part of a pod that could not be removed and outlives its sandbox.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForgetError {
    #[error("failed to remove its volumes")]
    Volumes(#[source] io::Error),
    #[error("failed to remove its image leases")]
    Leases(#[source] StoreError),
    #[error("failed to remove its record")]
    Record(#[source] io::Error),
    #[error("failed to remove the lock {name}")]
    Lock { name: String, source: io::Error },
}

/// Removes all that outlives a sandbox: volumes, logs, image leases, records and locks. Called again after a failure.
///
/// # Errors
/// Something of it could not be removed.
pub(super) async fn forget(shell: Rc<Shell>, wanted: Rc<Wanted>) -> Result<(), ForgetError> {
    let paths = shell.paths.clone();
    let records = shell.stores.records.clone();
    let images = shell.stores.images.clone();
    let (uid, namespace, name) =
        (wanted.pod.uid.0.to_string(), wanted.pod.namespace.to_string(), wanted.pod.name.to_string());
    let volumes = remove_tree(&shell.stores.storage, paths.pod(&uid)).await;
    let removed = shell.stores.storage.run(move || {
        volumes.map_err(ForgetError::Volumes)?;
        // Another pod that collects logs can be in their way: it must not keep this one. The next agent's
        // sweep removes them.
        if let Err(error) = nodlet_host::log_files::remove_pod(&paths, &namespace, &name, &uid) {
            log::error!("failed to remove the logs of {namespace}/{name}: {error}");
        }
        images.release(&uid).map_err(ForgetError::Leases)?;
        // Last: without the record nobody would find what else is there.
        records.remove(&uid).map_err(ForgetError::Record)
    });
    removed.await?;
    let lock = lock_name(&wanted);
    client::remove_free_locks(&shell.paths.locks(), Some(&lock))
        .map_err(|source| ForgetError::Lock { name: lock, source })
}
