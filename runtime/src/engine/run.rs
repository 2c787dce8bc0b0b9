//! Starts runs of containers, and resizes them. `reports.rs` reports their events to the core, and `stop.rs` stops them.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::{Rc, Weak};

use nodlet_core::sorted::SortedMap;
use nodlet_rootfs::{Digest, Image, Reference, assemble};

use crate::app_armor;
use crate::container_config::{self, Facts};
use crate::env_file;
use crate::pod_files::{self, NodeFiles, PodFiles};
use crate::seccomp;
use nodlet_core::facts::{Attempt, PodIndex, StartFailure, StartFailureReason};
use nodlet_core::spec::container::{EnvSource, PullPolicy, SeccompProfile};
use nodlet_core::spec::{Container, ContainerIndex, Pod};
use nodlet_host::cgroup::{CgroupError, ContainerLimits, limited_swap};
use nodlet_host::error::chain;
use nodlet_host::launch::MountSource;
use nodlet_host::paths::Paths;
use nodlet_registry::{ConfigObjects, Wanted};

use super::flash::Flash;
pub(super) use super::handles::FACTS;
use super::handles::{ImageFacts, Run, Sandbox, facts_path, write_facts};
use super::images::pull;
use super::{Shell, cleanup, cores, devices, root, services, this_node};

/// The mounted image layers: one mount for each layer on the whole board, so that its pages are cached once. A layer
/// stays mounted as long as a run uses it.
#[derive(Default)]
pub(super) struct Layers {
    mounted: SortedMap<String, Weak<OwnedFd>>,
}

impl Layers {
    fn get(&self, layer: &Digest) -> Option<Rc<OwnedFd>> {
        self.mounted.get(&layer.to_string())?.upgrade()
    }

    /// Returns the mount of the layer that is in use already, or else this one, so that pods of one image share its
    /// layers also after each supervisor has passed its own mounts to a new agent.
    pub(super) fn share(&mut self, layer: &str, mount: OwnedFd) -> Rc<OwnedFd> {
        let known = self.mounted.get(layer).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let mount = Rc::new(mount);
            self.put(layer, &mount);
            mount
        })
    }

    fn put(&mut self, layer: &str, mount: &Rc<OwnedFd>) {
        self.mounted.retain(|_, mount| mount.strong_count() > 0);
        self.mounted.insert(layer.to_owned(), Rc::downgrade(mount));
    }
}

pub(super) fn failure(reason: StartFailureReason, message: impl Into<String>) -> StartFailure {
    StartFailure::new(reason, message.into())
}

/// The end of the text of an `io::Error` that stands for ENOMEM.
const OUT_OF_MEMORY: &str = "(os error 12)";

/// Adds the container's limit of memory to the message of a start that failed for want of memory: in most cases, that
/// limit is too low (`memory: 128m` is one byte). `is_killed` says that the kernel ended a process in the cgroup for it.
pub(super) fn with_memory_limit(
    message: String,
    is_killed: bool,
    pod: &Pod,
    container: ContainerIndex,
) -> String {
    match ContainerLimits::of(pod, container).memory {
        Some(limit) if is_killed || message.contains(OUT_OF_MEMORY) => {
            format!("{message}: resources.limits.memory of the container is {limit}, in bytes")
        }
        Some(_) | None => message,
    }
}

/// Checks that the image of the spec is on the board. The image is leased to the pod, so that it is not removed
/// before the container starts.
pub(super) async fn check_image(
    shell: Rc<Shell>,
    wanted: Rc<Wanted>,
    attempt: Attempt,
) -> Result<(), StartFailure> {
    let container = wanted.pod.spec.container(attempt.container);
    find_image(&shell, &wanted, container.image_pull_policy, &container.image).await.map(drop)
}

/// Prepares a run (image, cgroup leaf, files, configuration), and requests its start from the supervisor, which
/// reports the result.
pub(super) async fn start(
    shell: Rc<Shell>,
    pod: PodIndex,
    wanted: Rc<Wanted>,
    attempt: Attempt,
    fallback: Option<Rc<str>>,
    objects: ConfigObjects,
) -> Result<(), StartFailure> {
    let shell = &shell;
    let before_image = |failure| StartFailure { before_image: true, ..failure };
    let gone =
        || before_image(failure(StartFailureReason::CreateContainerError, "the pod's sandbox is gone"));
    let sandbox = shell.pods.sandbox(pod).ok_or_else(gone)?;
    let container = wanted.pod.spec.container(attempt.container);
    let create = |error: &(dyn std::error::Error + 'static)| {
        failure(StartFailureReason::CreateContainerError, chain(error))
    };
    let _reservation = shell
        .start_reservations
        .run(shell.pods.unconfirmed_runs())
        .map_err(|error| before_image(create(&error)))?;
    if let Some(why) = shell.config.allowed_annotations.refusal(&wanted.pod) {
        // Only another agent, or other annotations, change that.
        return Err(before_image(failure(StartFailureReason::ObjectNotFound, why)));
    }
    let policy = container.image_pull_policy;
    let found = find_image(shell, &wanted, policy, &container.image).await;
    let (spec_image, (reference, image)) = match (found, fallback) {
        (Ok(found), _) => (container.image.clone(), found),
        (Err(failure), None) => return Err(failure),
        (Err(failure), Some(fallback)) => {
            let found = find_image(shell, &wanted, policy, &fallback).await.map_err(|_| failure)?;
            (fallback.to_string(), found)
        }
    };
    let mut layers = mount_layers(&shell.stores, &shell.layers, &image).await?;
    let mut layer_names: Vec<String> = image.layers.iter().map(Digest::to_string).collect();
    let mut image_volumes = Vec::new();
    for (volume, name, policy) in wanted.pod.spec.image_volumes() {
        if !container.volume_mounts.iter().any(|mount| mount.name == volume) {
            continue;
        }
        let found = find_image(shell, &wanted, policy, name).await;
        let (_, image) = found.map_err(|failure| StartFailure { image: Some(name.into()), ..failure })?;
        let of_volume = mount_layers(&shell.stores, &shell.layers, &image).await?;
        image_volumes.push((volume, of_volume.len()));
        layers.extend(of_volume);
        layer_names.extend(image.layers.iter().map(Digest::to_string));
    }
    if layers.len() > MAX_LAYERS {
        let message = format!(
            "the container's image and the images of its volumes have {} layers: at most {MAX_LAYERS} are possible",
            layers.len()
        );
        return Err(failure(StartFailureReason::CreateContainerError, message));
    }
    if let Some(target) = &container.target {
        check_target(&shell.paths, &wanted, &sandbox, target)?;
    }

    let mut given = shell.devices.of_container(container)?;
    let cdi = shell.devices.inject(&shell.stores.storage, &wanted.pod, container, &mut given).await?;
    given.extend(devices::of_volumes(&wanted.pod, container, &sandbox)?);
    let file_values = read_env_files(&shell.stores, container, &sandbox).await?;
    let host_name = pod_files::host_name().map_err(|error| create(&error))?;
    let memory = u64::try_from(shell.machine.capacity.memory).unwrap_or_default();
    // Read at each start: swap may be added later.
    let swap = if shell.config.limited_swap { root::swap_of_the_machine() } else { 0 };
    let reserved = shell.cores.reserve(pod, container, attempt.number)?;
    let limits = ContainerLimits {
        cpus: reserved.as_ref().and_then(cores::Reserved::list),
        swap: limited_swap(&wanted.pod, attempt.container, memory, swap),
        devices: devices::nodes(&given),
        huge_pages: shell.machine.cgroups.huge_pages().of_container(&wanted.pod, attempt.container),
        ..ContainerLimits::of(&wanted.pod, attempt.container)
    };
    let leaf = sandbox
        .cgroup
        .renew_cpu_limit(&wanted.pod)
        .and_then(|()| sandbox.cgroup.leaf(&container.name, attempt.number, &limits))
        .map_err(|error| {
            let message = chain(&error);
            let message = with_memory_limit(message, false, &wanted.pod, attempt.container);
            failure(StartFailureReason::CreateContainerError, message)
        })?;
    let seccomp_file = match seccomp::effective(&wanted.pod, container) {
        Some(SeccompProfile::Localhost(name)) => {
            let (directory, name) = (shell.paths.seccomp_profiles(), name.clone());
            Some(shell.stores.storage.run(move || seccomp::ProfileFile::read(&directory, &name)).await)
        }
        Some(SeccompProfile::Unconfined | SeccompProfile::RuntimeDefault) | None => None,
    };
    let app_armor_profiles = if app_armor::needs_list(&wanted.pod, container, shell.machine.app_armor) {
        Some(shell.stores.storage.run(app_armor::loaded).await)
    } else {
        None
    };
    let dns = services::dns_of(shell, &wanted.pod.uid);
    let facts = Facts {
        ip: sandbox.ip,
        host_ip: shell.machine.network.borrow().host_ip(),
        ipv6: shell.machine.network.borrow().ipv6_of(&wanted.pod.uid),
        host_ipv6: shell.machine.network.borrow().host_ipv6(),
        node_name: &shell.config.node_name,
        host_name: &host_name,
        dns: &dns,
        services: shell.services.variables(&shell.paths, &wanted),
        memory,
        cgroup: leaf.paths(),
        volumes: &sandbox.volumes,
        layers: layer_names,
        image_volumes: &image_volumes,
        file_values: &file_values,
        logs: shell.config.logs,
        open_files: shell.config.allowed_annotations.open_files,
        objects: &objects,
        devices: limits.devices,
        cdi,
        allocatable: this_node::info(&shell.config, &shell.machine).allocatable,
        seccomp_file,
        app_armor_profiles,
    };
    let made = shell.start_turns.take(
        || container_config::container_config(&wanted.pod, attempt, &image.config, &shell.paths, &facts),
        container_config::size,
    );
    let (config, turn) = match made.await {
        Ok(made) => made,
        Err(failure) => {
            let _ = leaf.remove();
            return Err(failure);
        }
    };
    let image_facts = ImageFacts {
        container_id: config.id.clone(),
        image: reference.to_string(),
        image_id: image.repo_digests.first().cloned().unwrap_or_else(|| image.id.to_string()),
        spec_image,
        stop_signal: container_config::stop_signal(
            container.lifecycle.stop_signal.as_deref().or(image.config.stop_signal.as_deref()),
        ),
        devices: given,
        cpus: reserved.as_ref().map_or_else(Vec::new, |reserved| reserved.cpus.clone()),
    };
    let directory = shell.paths.pod(&wanted.pod.uid.0);
    let (upper, work) = (config.upper_dir.clone(), config.work_dir.clone());
    let message = config.termination_message.as_ref().map(|message| message.file.clone());
    let (looked, resolv_conf) = (directory.clone(), shell.config.resolv_conf.clone());
    let made = shell.stores.storage.run(move || {
        nodlet_kernel::own_file::make_directory(&looked)?;
        container_config::run_files::make_run_directories(&upper, &work)?;
        message.map_or(Ok(()), |file| container_config::run_files::make_termination_file(&file))?;
        Ok(PodFiles::are_missing(&looked).then(|| NodeFiles::read(resolv_conf.as_deref())))
    });
    let made = match made.await {
        Ok(Some(node)) => {
            let ipv6 = shell.machine.network.borrow().ipv6_of(&wanted.pod.uid);
            let (files, _) = pod_files::texts(&wanted.pod, (sandbox.ip, ipv6), &host_name, &node, &dns);
            shell.stores.storage.run(move || files.write(&directory)).await
        }
        made => made.map(drop),
    };
    let made = made.and_then(|()| write_facts(&shell.paths, &wanted, attempt, &image_facts));
    if let Err(error) = made {
        let _ = leaf.remove();
        let (files, why) = (shell.paths.pod(&wanted.pod.uid.0), chain(&error));
        let message = format!("failed to make the container's files below {}: {why}", files.display());
        return Err(failure(StartFailureReason::CreateContainerError, message));
    }
    let key = (container.name.clone(), attempt.number);
    if sandbox.runs.borrow().contains_key(&key) {
        // It has begun: an agent that died had asked for it.
        return Ok(());
    }
    if sandbox.given_up.borrow().get(&container.name) == Some(&attempt.number) {
        let _ = leaf.remove();
        return Err(failure(StartFailureReason::CreateContainerError, "the pod's grace period is over"));
    }
    let descriptors: Vec<BorrowedFd<'_>> = layers.iter().map(|layer| layer.as_fd()).collect();
    let sent = sandbox.supervisor.start(&container.name, attempt.number, &config, &descriptors);
    drop(descriptors);
    if let Err(error) = sent {
        let _ = leaf.remove();
        return Err(create(&error));
    }
    let run = Run { leaf, process: None, started: None, image: image_facts, _layers: layers, turn };
    sandbox.runs.borrow_mut().insert(key, run);
    Ok(())
}

/// The reason why a pod was not resized.
pub(super) enum ResizeError {
    /// Which amounts are in effect could not be stored.
    Save(std::io::Error),
    /// A limit is below what is in use, or the cgroups cannot be written.
    Limits(CgroupError),
}

impl ResizeError {
    /// The text for the condition `PodResizeInProgress`.
    pub(super) fn message(&self) -> String {
        match self {
            ResizeError::Save(error) => format!("failed to save the status of the pod: {error}"),
            ResizeError::Limits(error @ CgroupError::BelowUsage { .. }) => error.to_string(),
            ResizeError::Limits(error) => format!("failed to {}", chain(error)),
        }
    }
}

/// Writes the limits of a pod to its cgroup and to those of its running containers.
///
/// # Errors
/// As [`ResizeError::Limits`] says.
pub(super) fn resize(shell: &Shell, pod: PodIndex, wanted: &Wanted) -> Result<(), ResizeError> {
    // A sandbox that is gone is created anew, with the limits.
    let Some(sandbox) = shell.pods.sandbox(pod) else { return Ok(()) };
    let runs = sandbox.runs.borrow();
    let leaves = runs.iter().filter_map(|((name, _), run)| {
        let index = wanted.pod.spec.index_of(name)?;
        Some((run.leaf.clone(), index))
    });
    let leaves: Vec<_> = leaves.collect();
    shell.machine.cgroups.resize(&wanted.pod, &leaves).map_err(ResizeError::Limits)
}

/// Maximum size in bytes of all values of a container that come from files: the environment of a process is smaller.
const MAX_FILE_VALUES: usize = 2 << 20;

/// Reads the values of the variables of a container that come from files (`fileKeyRef`), by the variables' names. An
/// optional variable without a value is left out.
///
/// # Errors
/// A file cannot be read, or has no such variable; the message is that of the kubelet.
async fn read_env_files(
    stores: &Flash,
    container: &Container,
    sandbox: &Sandbox,
) -> Result<SortedMap<String, String>, StartFailure> {
    let wrong = |message| failure(StartFailureReason::CreateContainerConfigError, message);
    let (mut values, mut bytes) = (SortedMap::new(), 0);
    let mut last: Option<(&str, &str, io::Result<String>)> = None;
    for variable in &container.env {
        let EnvSource::File { volume, path, key, optional } = &variable.value else { continue };
        let Some(MountSource::Host(directory) | MountSource::Projected(directory)) =
            sandbox.volumes.get(volume).cloned()
        else {
            return Err(wrong(format!("cannot find the volume {volume:?} referenced by FileKeyRef")));
        };
        let (place, file) = (directory.join(path), PathBuf::from(path));
        // Several variables in a row are usually of one file.
        if last.as_ref().is_none_or(|(of, at, _)| (*of, *at) != (volume.as_str(), path.as_str())) {
            let read = stores.storage.run(move || env_file::read(&directory, &file)).await;
            last = Some((volume, path, read));
        }
        let value = match &last {
            Some((_, _, Ok(text))) => env_file::value(text, key),
            Some((_, _, Err(error))) => Err(error.to_string()),
            None => Ok(""),
        };
        match value {
            Err(error) => return Err(wrong(format!("couldn't parse env file: {path}: {error}"))),
            Ok("") if *optional => {}
            Ok("") => {
                let place = place.display().to_string();
                return Err(wrong(format!("environment variable key {key:?} not found in file {place:?}")));
            }
            Ok(value) if value.contains('\0') => {
                return Err(wrong(format!("the value of {key:?} in the env file {path} has a null byte")));
            }
            Ok(value) => {
                bytes += value.len();
                if bytes > MAX_FILE_VALUES {
                    let text = format!("the values from env files have more than {MAX_FILE_VALUES} bytes");
                    return Err(wrong(text));
                }
                values.insert(variable.name.clone(), value.to_owned());
            }
        }
    }
    Ok(values)
}

/// Checks that the container whose PID namespace an ephemeral container shares (`targetContainerName`) runs.
///
/// # Errors
/// The container does not run, or has never run.
fn check_target(paths: &Paths, wanted: &Wanted, sandbox: &Sandbox, target: &str) -> Result<(), StartFailure> {
    let runs = sandbox.runs.borrow();
    if runs.iter().any(|((name, _), run)| name == target && run.started.is_some()) {
        return Ok(());
    }
    drop(runs);
    let facts = paths.run_pod(&wanted.pod.uid.0).join(FACTS);
    let number = |file: &String| -> Option<u32> {
        file.strip_suffix(".json")?.strip_prefix(target)?.strip_prefix('_')?.parse().ok()
    };
    match cleanup::names(&facts).iter().filter_map(number).max() {
        None => Err(failure(
            StartFailureReason::CreateContainerConfigError,
            format!("unable to find target container {target}"),
        )),
        Some(number) => {
            let id = read_facts(paths, wanted, target, number).container_id;
            Err(failure(
                StartFailureReason::CreateContainerError,
                format!(
                    "invalid target container: container \"{id}\" is not running - in state CONTAINER_EXITED"
                ),
            ))
        }
    }
}

/// The number of layers that a start can have: their descriptors and that of the configuration are one message.
const MAX_LAYERS: usize = 252;

/// Where an image that is not on the board may come from.
enum Absent {
    /// A registry may have it.
    ToPull,
    /// No registry can be asked; another image may have been meant.
    NotStored(Option<String>),
}

/// Finds the image of this name for a container or a volume, and leases it to the pod.
async fn find_image(
    shell: &Shell,
    wanted: &Wanted,
    policy: PullPolicy,
    name: &str,
) -> Result<(Reference, Image), StartFailure> {
    let reference = Reference::parse(name).map_err(|error| {
        let message = format!("Failed to apply default image tag \"{name}\": {error}");
        failure(StartFailureReason::InvalidImageName, message)
    })?;
    let stores = &shell.stores;
    let (images, wish, holder) = (stores.images.clone(), reference.clone(), wanted.pod.uid.0.to_string());
    let pod = format!("{}/{}", wanted.pod.namespace, wanted.pod.name);
    let root = shell.paths.root().to_owned();
    let found = stores.storage.run(move || {
        let image = images.find(&wish)?;
        match &image {
            Some(image) => images.lease(&image.id, &holder, &pod)?,
            None if policy != PullPolicy::Never && pull::has_registries(&root) => {
                return Ok(Err(Absent::ToPull));
            }
            None => {
                return Ok::<_, nodlet_rootfs::StoreError>(Err(Absent::NotStored(similar_name(
                    &images, &wish,
                ))));
            }
        }
        Ok(image.ok_or(Absent::NotStored(None)))
    });
    match found.await {
        Ok(Ok(image)) => Ok((reference, image)),
        Ok(Err(Absent::ToPull)) => Err(failure(
            StartFailureReason::ImageToPull,
            format!("image {reference} was pulled, but is not on this node"),
        )),
        Ok(Err(Absent::NotStored(similar))) => Err(match policy {
            PullPolicy::Never => failure(
                StartFailureReason::ErrImageNeverPull,
                format!("Container image \"{name}\" is not present with pull policy of Never"),
            ),
            PullPolicy::IfNotPresent | PullPolicy::Always => failure(
                StartFailureReason::ErrImagePull,
                match similar {
                    None => format!("{} load it with 'nodlet image load FILE'", not_here(&reference)),
                    Some(similar) => format!(
                        "{} load it with 'nodlet image load FILE'. {similar} is here: did you mean that?",
                        not_here(&reference)
                    ),
                },
            ),
        }),
        Err(error) => Err(failure(StartFailureReason::ImageInspectError, chain(&error))),
    }
}

fn not_here(reference: &Reference) -> String {
    format!("image {reference} is not on this node, and no registry is configured for it:")
}

/// The name of an image on the board that may have been meant: the same name in another registry, or with another
/// tag. `web:1` stands for `docker.io/library/web:1`, while builders name it `localhost/web:1`.
fn similar_name(images: &nodlet_rootfs::Store, wish: &Reference) -> Option<String> {
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let alike = |name: &String| {
        let known = Reference::parse(name).ok()?;
        let same_name = last(known.path()) == last(wish.path());
        same_name.then_some((known.tag() != wish.tag(), known.domain() != wish.domain()))
    };
    let found =
        images.names().ok()?.into_iter().filter_map(|name| alike(&name).map(|distance| (distance, name)));
    found.min().map(|(_, name)| name)
}

async fn mount_layers(
    stores: &Flash,
    layers: &RefCell<Layers>,
    image: &Image,
) -> Result<Vec<Rc<OwnedFd>>, StartFailure> {
    let mut mounts = Vec::with_capacity(image.layers.len());
    for layer in &image.layers {
        let known = layers.borrow().get(layer);
        let mount = match known {
            Some(mount) => mount,
            None => {
                let (images, wish) = (stores.images.clone(), *layer);
                let mount = move || images.layer_path(&wish).map(|path| assemble::mount_layer(&path));
                let mounted = stores.storage.run(mount).await.ok_or_else(|| {
                    let message = format!("layer {layer} is missing from the store");
                    failure(StartFailureReason::ImageInspectError, message)
                })?;
                let mounted = mounted
                    .map_err(|error| failure(StartFailureReason::CreateContainerError, chain(&error)))?;
                let mount = Rc::new(mounted);
                layers.borrow_mut().put(&layer.to_string(), &mount);
                mount
            }
        };
        mounts.push(mount);
    }
    Ok(mounts)
}

/// Reads what [`write_facts`] wrote; empty if there is no such file.
pub(super) fn read_facts(paths: &Paths, wanted: &Wanted, container: &str, number: u32) -> ImageFacts {
    let read = nodlet_kernel::own_file::read(&facts_path(paths, wanted, container, number)).ok();
    read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}
