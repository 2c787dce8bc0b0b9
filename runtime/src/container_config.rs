//! Computes the configuration of containers for the supervisor from a Pod and an image. Pure.
//! [`mod@mounts`] has the volumes and devices of a container, and [`run_files`] the files of its runs on disk.
//!
//! An invalid configuration is a `CreateContainerConfigError`, with the kubelet's message.

mod environment;
mod identity;
mod mounts;
pub(crate) mod run_files;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use nodlet_core::sorted::SortedMap;
use nodlet_rootfs::ImageConfig;
use sha2::{Digest, Sha256};

use crate::devices::cdi;
use crate::pod_files::ClusterDns;
use crate::{app_armor, pod_files, seccomp};
use nodlet_core::facts::{Amounts, Attempt, StartFailure, StartFailureReason};
use nodlet_core::spec::{Container, OpenFiles, Pod, QosClass, Quantity, sysctl};
use nodlet_host::launch::{
    CgroupPaths, ContainerConfig, DeviceNode, LogConfig, NetworkConfig, OpenFilesConfig, ProcessConfig,
    SandboxConfig, TerminationMessage, UserConfig,
};
use nodlet_host::network::USER_IDS;
use nodlet_host::paths::Paths;
use nodlet_host::volume::{self, Volumes};
use nodlet_kube::manifest::open_files;

use environment::Variables;
pub(crate) use mounts::block_devices;
use mounts::{absolute, check_devices, mounts};
use nodlet_registry::ConfigObjects;
use run_files::run_directory;

/// Size of a pod's /dev/shm in bytes, as in other container runtimes.
const SHM_SIZE: u64 = 64 << 20;

/// The limits of a container's log.
#[derive(Clone, Copy, Debug)]
pub struct LogLimits {
    /// Maximum size of a log file in bytes (kubelet: `--container-log-max-size`).
    pub max_size: u64,
    /// Maximum number of log files, including the current one (kubelet: `--container-log-max-files`).
    pub max_files: u32,
}

impl Default for LogLimits {
    /// Returns the defaults of the kubelet.
    fn default() -> LogLimits {
        LogLimits { max_size: 10 << 20, max_files: 5 }
    }
}

/// Maximum length of a link's name in /var/log/containers, without `.log`.
const LINK_NAME: usize = 251;

/// Inputs of a container's configuration besides the pod's spec.
pub(crate) struct Facts<'a> {
    /// The pod's address.
    pub ip: Option<Ipv4Addr>,
    /// `status.hostIP`.
    pub host_ip: Option<Ipv4Addr>,
    /// The pod's IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// The second of `status.hostIPs`.
    pub host_ipv6: Option<Ipv6Addr>,
    /// The name of the node (`spec.nodeName`).
    pub node_name: &'a str,
    /// The host name of the machine, which may differ from the node's name.
    pub host_name: &'a str,
    /// The DNS of the cluster.
    pub dns: &'a ClusterDns,
    /// The variables of the Services of the pod's namespace.
    pub services: Vec<(String, String)>,
    /// Memory of the machine in bytes, for the OOM score of burstable pods.
    pub memory: u64,
    /// The leaf.
    pub cgroup: CgroupPaths,
    /// The volumes of the pod.
    pub volumes: &'a Volumes,
    /// Names of the image's layers, lowest first, followed by those of `image_volumes`.
    pub layers: Vec<String>,
    /// The volumes that show an image, with the number of its layers.
    pub image_volumes: &'a [(&'a str, usize)],
    /// The values of variables that come from files, by the variables' names.
    pub file_values: &'a SortedMap<String, String>,
    /// The limits of the log.
    pub logs: LogLimits,
    /// The limit of open files of pods that request none.
    pub open_files: OpenFiles,
    /// The ConfigMaps and Secrets that the pod refers to.
    pub objects: &'a ConfigObjects,
    /// `status.allocatable` of the node.
    pub allocatable: Amounts,
    /// The file that `localhostProfile` names; `None` for other profiles.
    pub seccomp_file: Option<seccomp::ProfileFile>,
    /// The list of loaded AppArmor profiles; `None` if it is not needed or there is no AppArmor.
    pub app_armor_profiles: Option<std::io::Result<String>>,
    /// The devices that the container was given.
    pub devices: Vec<DeviceNode>,
    /// Changes of the container by CDI devices, besides their nodes.
    pub cdi: cdi::Injected,
}

fn config_error(message: impl Into<Box<str>>) -> StartFailure {
    StartFailure::new(StartFailureReason::CreateContainerConfigError, message)
}

fn not_created(message: impl Into<Box<str>>) -> StartFailure {
    StartFailure::new(StartFailureReason::CreateContainerError, message)
}

/// Returns the configuration of the sandbox, which all containers of `pod` share.
///
/// # Errors
/// The host name is too long.
pub(crate) fn sandbox_config(
    pod: &Pod,
    (host_name, dns): (&str, &ClusterDns),
    network: Option<NetworkConfig>,
    pause_cgroup: CgroupPaths,
    memory_of_all_pods: Option<u64>,
) -> Result<SandboxConfig, String> {
    let sysctls = &pod.spec.security_context.sysctls;
    if let Some(network) = network.as_ref().filter(|network| !pod.spec.host_users && network.prefix < 17) {
        return Err(format!(
            "hostUsers: false: there are not enough IDs for all addresses of a pod range of /{}: at least /17 is needed",
            network.prefix
        ));
    }
    Ok(SandboxConfig {
        hostname: pod_files::kernel_name(pod, host_name, dns)?,
        sysctls: sysctls.iter().map(|(name, value)| (sysctl::path(name), value.clone())).collect(),
        first_id: first_id(pod, network.as_ref().map(|network| network.address)),
        network,
        host_ipc: pod.spec.host_ipc,
        host_pid: pod.spec.host_pid,
        share_process_namespace: pod.spec.share_process_namespace,
        shm_size: SHM_SIZE,
        memory_volumes: volume::memory_volumes(pod, memory_of_all_pods),
        pause_cgroup,
    })
}

/// Returns the ID of the host that is ID 0 of a pod with `hostUsers: false`. The kubelet gives each pod the next free
/// 65536 IDs. Here they follow from the pod's address, which no other pod has until all of the sandbox is removed, and
/// which the next agent and the next boot know; all are below 2³¹, as those of the kubelet.
fn first_id(pod: &Pod, address: Option<Ipv4Addr>) -> Option<u32> {
    address.filter(|_| !pod.spec.host_users).map(|address| (address.to_bits() & USER_IDS) << 16)
}

/// Returns the configuration of one run of a container.
///
/// # Errors
/// The configuration is invalid; the message is that of a `CreateContainerConfigError`.
pub(crate) fn container_config(
    pod: &Pod,
    attempt: Attempt,
    image: &ImageConfig,
    paths: &Paths,
    facts: &Facts<'_>,
) -> Result<ContainerConfig, StartFailure> {
    let container = pod.spec.container(attempt.container);
    identity::check_non_root(pod, container, image)?;
    let id = container_id(pod, &container.name, attempt.number);
    let run = run_directory(paths, &pod.uid.0, &container.name, attempt.number);
    let privileged = container.security_context.privileged;
    let variables = environment::variables(pod, container, facts)?;
    let mut mounts = mounts(pod, container, paths, facts, &variables)?;
    let capabilities = identity::capabilities(&container.security_context);
    let args = arguments(container, image, &variables)?;
    let program_shown = program_shown(container, image, &args, &variables);
    let (mut user, mut env) = (user(pod, container, image), environment::of(pod, image, variables, facts));
    for mount in &facts.cdi.mounts {
        // As in containerd, a device's mount takes the place of another one.
        mounts.retain(|other| other.destination != mount.destination);
        mounts.push(mount.clone());
    }
    mounts.sort_by(|a, b| a.destination.cmp(&b.destination));
    for pair in &facts.cdi.env {
        let name = pair.split_inclusive('=').next().unwrap_or_default();
        env.retain(|other| !other.starts_with(name));
        env.push(pair.clone());
    }
    user.additional_gids.extend(&facts.cdi.gids);
    check_devices(&facts.devices, &mounts)?;
    let message_path = &container.termination_message_path;
    let logs = paths.pod_logs(&pod.namespace, &pod.name, &pod.uid.0).join(&container.name);
    Ok(ContainerConfig {
        name: container.name.clone(),
        process: ProcessConfig {
            args,
            program_shown,
            env,
            cwd: working_directory(container, image),
            user,
            seccomp: seccomp::config(pod, container, &capabilities, facts.seccomp_file.as_ref())
                .map_err(not_created)?,
            app_armor: app_armor::profile(pod, container, facts.app_armor_profiles.as_ref())
                .map_err(not_created)?,
            open_files: Some(match open_files(pod, facts.open_files.hard) {
                Some(limit) => OpenFilesConfig { limit, is_required: true },
                None => OpenFilesConfig { limit: facts.open_files, is_required: false },
            }),
            capabilities,
            no_new_privileges: container.security_context.no_new_privileges,
        },
        layers: facts.layers.clone(),
        image_volumes: facts.image_volumes.iter().map(|(_, layers)| *layers).collect(),
        upper_dir: run.join("upper"),
        work_dir: run.join("work"),
        read_only_root: container.security_context.read_only_root_filesystem,
        writable_paths: writable_paths(container, image)?,
        mounts,
        privileged,
        unmasked: container.security_context.unmasked,
        first_id: first_id(pod, facts.ip),
        devices: facts.devices.clone(),
        cgroup: facts.cgroup.clone(),
        oom_score_adj: oom_score_adj(pod, container, facts.memory),
        rtprio: container.resources.rtprio,
        stdin: container.stdin,
        stdin_once: container.stdin_once,
        tty: container.tty,
        // Elsewhere it sees the target's processes anyway.
        target: container.target.clone().filter(|_| !pod.spec.host_pid && !pod.spec.share_process_namespace),
        log: LogConfig {
            path: logs.join(format!("{}.log", attempt.number)),
            link: paths.log_links().join(link_name(&pod.namespace, &pod.name, &container.name, &id)),
            max_size: facts.logs.max_size,
            max_files: facts.logs.max_files,
        },
        termination_message: (!message_path.is_empty()).then(|| TerminationMessage {
            // On disk, as all that a container can write to: it would take the memory of /run.
            file: run.join("termination-log"),
            path: absolute(message_path),
            fallback_to_logs: container.termination_message_fallback_to_logs,
        }),
        id,
    })
}

/// Returns about how many bytes a configuration has that come from the pod.
pub(crate) fn size(config: &ContainerConfig) -> usize {
    let mounts = config.mounts.iter().map(|mount| {
        let sub_path = mount.sub_path.as_ref().map_or(0, |path| path.as_os_str().len());
        sub_path + mount.destination.as_os_str().len()
    });
    bytes_of(&config.process.args) + bytes_of(&config.process.env) + mounts.sum::<usize>()
}

/// Returns the bytes of all words.
pub(crate) fn bytes_of(words: &[String]) -> usize {
    words.iter().map(String::len).sum()
}

/// The most volumes of an image that stay writable in a read-only root: each is a mount.
const MAX_IMAGE_VOLUMES: usize = 64;

/// Returns the volumes of the image. In a writable root they need nothing: what a container writes there goes to its
/// writable layer, which lives as long as the volume that containerd makes.
fn writable_paths(container: &Container, image: &ImageConfig) -> Result<Vec<PathBuf>, StartFailure> {
    if !container.security_context.read_only_root_filesystem {
        return Ok(Vec::new());
    }
    let count = image.volumes.len();
    if count > MAX_IMAGE_VOLUMES {
        return Err(not_created(format!(
            "readOnlyRootFilesystem: the image declares {count} volumes, of which at most {MAX_IMAGE_VOLUMES} can stay writable"
        )));
    }
    Ok(image.volumes.iter().map(|path| mounts::absolute(path)).collect())
}

/// Returns a unique id of a run, with 64 hexadecimal digits.
fn container_id(pod: &Pod, container: &str, number: u32) -> String {
    let digest = Sha256::digest(format!("{}/{container}/{number}", pod.uid));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the command of a container. `command` overrides both Entrypoint and Cmd of the image; `args` overrides Cmd.
fn arguments(
    container: &Container,
    image: &ImageConfig,
    variables: &Variables,
) -> Result<Vec<String>, StartFailure> {
    let (mut command, args) = match (&container.command, &container.args) {
        (Some(command), args) => {
            (expand_all(command, variables)?, expand_all(args.as_deref().unwrap_or_default(), variables)?)
        }
        (None, Some(args)) => (image.entrypoint.clone(), expand_all(args, variables)?),
        (None, None) => (image.entrypoint.clone(), image.cmd.clone()),
    };
    command.extend(args);
    if command.is_empty() {
        return Err(not_created("no command specified: neither the container nor its image names one"));
    }
    Ok(command)
}

/// Returns what messages show of a program whose name, or the `PATH` to it, has a value of a Secret.
fn program_shown(
    container: &Container,
    image: &ImageConfig,
    args: &[String],
    variables: &Variables,
) -> Option<Box<str>> {
    // The program is the first word of `args` if neither the container nor the image names a command.
    let is_of_image = container.command.is_none() && !image.entrypoint.is_empty();
    let written = container.command.iter().chain(&container.args).flatten().next().filter(|_| !is_of_image);
    let hidden = written.filter(|written| variables.hides(written));
    let in_hidden = || args.first().filter(|_| variables.hides("$(PATH)"));
    hidden.or_else(in_hidden).map(|shown| shown.as_str().into())
}

fn expand_all(words: &[String], variables: &Variables) -> Result<Vec<String>, StartFailure> {
    words.iter().map(|word| environment::expand(word, variables)).collect()
}

/// Returns the command of an exec probe. As with a kubelet, only variables with plain values are expanded.
///
/// # Errors
/// The command is longer than the kernel accepts.
pub(crate) fn probe_command(container: &Container, command: &[String]) -> Result<Vec<String>, String> {
    let words = expand_all(command, &environment::plain(container));
    words.map_err(|failure| failure.message.into())
}

fn working_directory(container: &Container, image: &ImageConfig) -> PathBuf {
    let named = container.working_dir.as_deref().filter(|named| !named.is_empty());
    let named = named.unwrap_or(if image.working_dir.is_empty() { "/" } else { &image.working_dir });
    Path::new("/").join(named)
}

fn user(pod: &Pod, container: &Container, image: &ImageConfig) -> UserConfig {
    let (of_pod, own) = (&pod.spec.security_context, &container.security_context);
    let mut additional_gids = of_pod.supplemental_groups.clone();
    additional_gids.extend(of_pod.fs_group);
    UserConfig {
        strict_groups: of_pod.strict_groups,
        image_user: image.user.clone(),
        run_as_user: own.run_as_user.or(of_pod.run_as_user),
        run_as_group: own.run_as_group.or(of_pod.run_as_group),
        additional_gids,
    }
}

fn link_name(namespace: &str, pod: &str, container: &str, id: &str) -> String {
    let mut name = format!("{pod}_{namespace}_{container}-{id}");
    name.truncate(LINK_NAME);
    name + ".log"
}

/// Returns the OOM score adjustment of a container (kubelet: `GetContainerOOMScoreAdjust`).
fn oom_score_adj(pod: &Pod, container: &Container, memory: u64) -> i32 {
    const LAST: i32 = -997;
    if pod.is_node_critical() {
        return LAST;
    }
    match pod.spec.qos_class() {
        QosClass::Guaranteed => LAST,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let request = |container: &Container| {
                container.resources.memory_request.as_ref().map_or(0, Quantity::value)
            };
            // A sidecar is not to go before those that it is there for.
            let least = pod.spec.containers.iter().map(request).min().filter(|_| container.sidecar);
            let request = request(container)
                .max(least.unwrap_or(0))
                .saturating_add(pod.spec.remaining_memory_request());
            let share = 1000 * i128::from(request) / i128::from(memory.max(1));
            (1000 - share).clamp(3, 999) as i32
        }
    }
}

/// Parses STOPSIGNAL, a name or a number. Returns SIGTERM if it is missing or unknown.
pub(crate) fn stop_signal(named: Option<&str>) -> i32 {
    named.and_then(nodlet_rootfs::signal_of).unwrap_or(libc::SIGTERM)
}

#[cfg(test)]
mod tests;
