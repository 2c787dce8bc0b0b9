//! Looks up devices of the board for containers, and follows the devices while containers run. The registry decides which
//! devices a container gets, and which changes are reported (`registry/src/devices.rs`).
//!
//! Uevents of the kernel, inotify on /dev and, for interfaces, messages about links report changes; they are watched only
//! while a pod requests a device. When a device
//! goes or comes back, its node in the container and the rule of the container's cgroup change with it. The
//! container can replace its nodes at any time, so a helper of the supervisor changes them: `device.rs` there.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use async_channel::Sender;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use smol::Async;

use crate::container_config;
use crate::devices::{self, cdi};
use nodlet_core::facts::{
    Attempt, PodIndex, PodObservation, SandboxFailure, StartFailure, StartFailureReason,
};
use nodlet_core::spec::{Container, Pod};
use nodlet_host::cgroup::CgroupError;
use nodlet_host::launch::{DeviceChange, DeviceNode, ExecConfig};
use nodlet_kube::manifest::{DeviceDefinition, DeviceSource};
use nodlet_registry::{
    DeviceOfRun, DeviceRetry, FoundDevice, NodeEvent, SeenDevices, Wanted, device_events, grant_devices,
    grant_interfaces, interface_returned, requested_devices,
};
use nodlet_supervisor::RENAMED_FILE;

use super::exec::ExecError;
use super::handles::{GivenDevice, Sandbox, write_facts};
use super::{Engine, Shell};

const DEV: &str = "/dev";
const SYS: &str = "/sys";

/// How long a change of the nodes in a container may take. A container may have mounted a file system there that
/// never answers.
const CHANGE_TIME: Duration = Duration::from_secs(10);

/// The state of the devices that pods request.
#[derive(Default)]
pub(super) struct Devices {
    /// The watch of devices, while a pod requests one.
    watch: RefCell<Option<Rc<Watch>>>,
    /// Where each requested device was when a pod last looked.
    seen: RefCell<SeenDevices>,
    /// Runs whose nodes are being changed, each with what ends the delay before a retry.
    changing: RefCell<Vec<(RunKey, Sender<()>)>>,
}

/// A run of a container: the pod, the container and the number of the run.
type RunKey = (PodIndex, String, u32);

fn node_of(definition: &DeviceDefinition, found: FoundDevice) -> DeviceNode {
    DeviceNode {
        path: definition.container_path.as_str().into(),
        block: found.block,
        major: found.major,
        minor: found.minor,
        readable: definition.readable,
        writable: definition.writable,
        mode: None,
        uid: None,
        gid: None,
    }
}

/// Looks a device up.
fn find(definition: &DeviceDefinition) -> Result<FoundDevice, String> {
    devices::find(&definition.source, Path::new(DEV), Path::new(SYS))
}

/// Finds the devices that a container requests.
///
/// # Errors
/// A device is not there; the container has to wait for it.
pub(super) fn of_container(
    shell: &Rc<Shell>,
    container: &Container,
) -> Result<Vec<GivenDevice>, StartFailure> {
    if container.resources.devices.is_empty() {
        return Ok(Vec::new());
    }
    // Watched before it is looked up: no change is missed.
    for (name, _) in &container.resources.devices {
        shell.devices.seen.borrow_mut().add(name);
    }
    watch(shell);
    let look_up = |name: &str| {
        let definition = shell.machine.devices.borrow().get(name);
        let found = definition.as_deref().map(find);
        shell.devices.seen.borrow_mut().record(name, found.clone().and_then(Result::ok));
        definition.zip(found)
    };
    let devices_in_use = devices_in_use(shell);
    let in_use = || devices_in_use.iter().map(|(name, found)| (&**name, *found));
    let directory = shell.paths.device_files();
    let granted = grant_devices(container, look_up, in_use, &directory.to_string_lossy())?;
    let given = granted.into_iter();
    Ok(given
        .map(|(definition, found)| GivenDevice::new(&definition.name, node_of(&definition, found)))
        .collect())
}

/// The interfaces of the host that the containers of a pod request, which move into the pod's network.
///
/// # Errors
/// An interface is not there: the pod has to wait for it. Or the pod has no network of its own.
pub(super) fn interfaces(shell: &Rc<Shell>, pod: &Pod) -> Result<Vec<String>, (SandboxFailure, String)> {
    let definition_of = |name: &str| shell.machine.devices.borrow().get(name);
    grant_interfaces(pod, definition_of, |definition| {
        // Watched before it is looked up: no change is missed.
        watch(shell);
        if let Some(watch) = &*shell.devices.watch.borrow() {
            watch.add_links();
        }
        let found = find(definition);
        shell.devices.seen.borrow_mut().record(&definition.name, found.as_ref().ok().copied());
        found
    })
}

/// Looks the devices of a pod up once more, after the core knows that its sandbox failed: a change that was reported
/// before would be lost.
pub(super) fn look_again(shell: &Rc<Shell>, pod: &Pod) {
    for name in requested_devices(pod) {
        shell.devices.seen.borrow_mut().record(name, None);
    }
    let (later, executor) = (shell.clone(), shell.clone());
    executor.tasks.spawn(async move { look(&later).await });
}

/// Adds CDI devices to `given`: those that the pod requests by annotations, and those that device files name for the
/// resources of the container. Returns what else they change.
///
/// # Errors
/// A device is not defined, or cannot be given.
pub(super) async fn inject(
    shell: &Shell,
    pod: &Pod,
    container: &Container,
    given: &mut Vec<GivenDevice>,
) -> Result<cdi::Injected, StartFailure> {
    let failed = |message: String| StartFailure {
        reason: StartFailureReason::CreateContainerError,
        message: message.into(),
        image: None,
    };
    let mut names = cdi::requested(pod).map_err(failed)?;
    for (name, _) in &container.resources.devices {
        let definition = shell.machine.devices.borrow().get(name);
        if let Some(DeviceSource::Cdi(name)) = definition.as_deref().map(|definition| &definition.source)
            && !names.contains(name)
        {
            names.push(name.clone());
        }
    }
    if names.is_empty() {
        return Ok(cdi::Injected::default());
    }
    let directories = shell.paths.cdi_files();
    let injected =
        shell.stores.storage.run(move || cdi::inject(&names, &directories)).await.map_err(failed)?;
    for node in &injected.nodes {
        given.retain(|other| other.node.path != node.path);
        given.push(GivenDevice::new("", node.clone()));
    }
    Ok(injected)
}

/// The block devices that the container has as volumes (`volumeDevices`). They stay as they were at the start.
///
/// # Errors
/// A volume has files.
pub(super) fn of_volumes(
    pod: &Pod,
    container: &Container,
    sandbox: &Sandbox,
) -> Result<Vec<GivenDevice>, StartFailure> {
    let nodes = container_config::block_devices(pod, container, &sandbox.volumes)?;
    Ok(nodes.into_iter().map(|node| GivenDevice::new("", node)).collect())
}

/// The devices of all running containers that are there, by name; that of a volume has an empty name.
fn devices_in_use(shell: &Shell) -> Vec<(String, FoundDevice)> {
    let pods = shell.pods.borrow();
    let sandboxes = pods.values().filter_map(|pod| pod.sandbox.as_ref());
    let mut in_use = Vec::new();
    for sandbox in sandboxes {
        let runs = sandbox.runs.borrow();
        let devices = runs.values().flat_map(|run| &run.image.devices).filter(|device| !device.is_gone);
        in_use.extend(devices.map(|device| {
            let DeviceNode { block, major, minor, .. } = device.node;
            (device.name.clone(), FoundDevice { block, major, minor })
        }));
    }
    in_use
}

/// Reports the interfaces that did not come back from a pod as they were.
pub(super) fn report_renamed(shell: &Shell, wanted: &Wanted, directory: &Path) {
    if requested_devices(&wanted.pod).next().is_none() {
        return;
    }
    let renamed = std::fs::read_to_string(directory.join(RENAMED_FILE)).unwrap_or_default();
    for (name, how) in renamed.lines().filter_map(|line| line.split_once(' ')) {
        shell.publication.emit(wanted, &interface_returned(name, how));
    }
}

fn is_any_requested(shell: &Shell) -> bool {
    shell.pods.borrow().values().any(|pod| requested_devices(&pod.wanted.pod).next().is_some())
}

/// The descriptors that report changes of devices.
struct Watch {
    uevents: Async<OwnedFd>,
    /// Reports links of the network, once an interface is requested. The uevent of an interface is no substitute: the
    /// kernel sends it before the interface is found by its name.
    links: Async<OwnedFd>,
    watches_links: Cell<bool>,
    inotify: Async<Inotify>,
}

impl Watch {
    fn new() -> io::Result<Watch> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkKObjectUEvent;
        let uevents = socket(AddressFamily::Netlink, SockType::Datagram, flags, protocol)?;
        bind(uevents.as_raw_fd(), &NetlinkAddr::new(0, 1))?;
        let links = socket(AddressFamily::Netlink, SockType::Datagram, flags, SockProtocol::NetlinkRoute)?;
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        Ok(Watch {
            uevents: Async::new_nonblocking(uevents)?,
            links: Async::new_nonblocking(links)?,
            watches_links: Cell::new(false),
            inotify: Async::new_nonblocking(inotify)?,
        })
    }

    /// Watches the links of the network.
    fn add_links(&self) {
        if self.watches_links.replace(true) {
            return;
        }
        let group = NetlinkAddr::new(0, libc::RTMGRP_LINK as u32);
        if let Err(error) = bind(self.links.get_ref().as_raw_fd(), &group) {
            log::warn!("failed to watch interfaces: {error}");
        }
    }

    /// Watches the directories of the paths that definitions name, and links if one names an interface. Directories
    /// that do not exist are watched when their parent reports them.
    fn add_directories(&self, shell: &Shell) {
        let names = shell.devices.seen.borrow();
        let files = shell.machine.devices.borrow();
        for definition in names.names().filter_map(|name| files.get(name)) {
            let path = match &definition.source {
                DeviceSource::Path(path) => path,
                DeviceSource::Interface(_) => {
                    self.add_links();
                    continue;
                }
                DeviceSource::Sysfs { .. } | DeviceSource::Cdi(_) => continue,
            };
            let mut directories: Vec<&Path> = Path::new(path).ancestors().skip(1).collect();
            // From /dev downwards.
            directories.retain(|directory| directory.starts_with(DEV));
            for directory in directories.into_iter().rev() {
                let what = AddWatchFlags::IN_CREATE
                    | AddWatchFlags::IN_DELETE
                    | AddWatchFlags::IN_MOVED_TO
                    | AddWatchFlags::IN_MOVED_FROM
                    | AddWatchFlags::IN_ONLYDIR;
                if self.inotify.get_ref().add_watch(directory, what).is_err() {
                    break;
                }
            }
        }
    }

    /// Waits for a change, and reads what is known of it.
    async fn changed(&self) -> io::Result<()> {
        let sockets = smol::future::or(self.uevents.readable(), self.links.readable());
        smol::future::or(sockets, self.inotify.readable()).await?;
        let mut message = [0; 2048];
        for socket in [&self.uevents, &self.links] {
            // After ENOBUFS, changes were lost; the devices are looked up in any case.
            while matches!(
                recv(socket.get_ref().as_raw_fd(), &mut message, MsgFlags::empty()),
                Ok(_) | Err(nix::Error::ENOBUFS)
            ) {}
        }
        while self.inotify.get_ref().read_events().is_ok() {}
        Ok(())
    }
}

/// Watches devices, unless they are watched already, until no pod requests one.
pub(super) fn watch(shell: &Rc<Shell>) {
    if let Some(watch) = &*shell.devices.watch.borrow() {
        return watch.add_directories(shell);
    }
    let watch = match Watch::new() {
        Ok(watch) => Rc::new(watch),
        Err(error) => {
            log::warn!("failed to watch devices: {error}; pods see a change of devices only when they start");
            return;
        }
    };
    *shell.devices.watch.borrow_mut() = Some(watch.clone());
    let (shell, executor) = (shell.clone(), shell.clone());
    // Uevents begin with the socket; the directories of pods whose start is being prepared are added by the task,
    // which then looks at once.
    executor.tasks.spawn(async move {
        loop {
            watch.add_directories(&shell);
            look(&shell).await;
            if !is_any_requested(&shell) {
                break;
            }
            if let Err(error) = watch.changed().await {
                log::warn!("failed to watch devices: {error}");
                break;
            }
        }
        *shell.devices.watch.borrow_mut() = None;
        if !is_any_requested(&shell) {
            shell.devices.seen.borrow_mut().clear();
        }
    });
}

/// Looks up the requested devices. Lets pods start whose devices have changed, and changes the nodes of running
/// containers.
pub(super) async fn look(shell: &Rc<Shell>) {
    let changed = {
        let files = shell.machine.devices.borrow();
        let find = |name: &str| find(&*files.get(name)?).ok();
        shell.devices.seen.borrow_mut().look_again(find)
    };
    let pods: Vec<(PodIndex, Rc<Wanted>)> =
        shell.pods.borrow().iter().map(|(index, pod)| (*index, pod.wanted.clone())).collect();
    for (pod, wanted) in pods {
        let is_news = requested_devices(&wanted.pod).any(|name| changed.iter().any(|other| *other == name));
        if is_news {
            shell.tasks.report(pod, PodObservation::ObjectsChanged).await;
        }
        let runs: Vec<(String, u32)> = match shell.pods.sandbox(pod) {
            Some(sandbox) => {
                let runs = sandbox.runs.borrow();
                let with_devices = runs.iter().filter(|(_, run)| !run.image.devices.is_empty());
                with_devices.map(|(key, _)| key.clone()).collect()
            }
            None => Vec::new(),
        };
        for (container, number) in runs {
            follow(shell, (pod, container, number), is_news);
        }
    }
}

/// Watches devices again that runs have, which an earlier agent has started.
pub(super) fn resume(shell: &Rc<Shell>) {
    let mut names: Vec<String> = Vec::new();
    for pod in shell.pods.borrow().values() {
        if pod.sandbox.is_some() {
            names.extend(requested_devices(&pod.wanted.pod).map(str::to_owned));
        }
    }
    if names.is_empty() {
        return;
    }
    for name in names {
        shell.devices.seen.borrow_mut().add(&name);
    }
    watch(shell);
}

/// Makes the devices of a run as they are on the board, in a task, unless one does so already: with `is_news`, that one
/// waits no longer before it tries again.
pub(super) fn follow(shell: &Rc<Shell>, key: RunKey, is_news: bool) {
    let mut changing = shell.devices.changing.borrow_mut();
    if let Some((_, retry)) = changing.iter().find(|(other, _)| *other == key) {
        if is_news {
            // An earlier notice that was not read yet ends the delay as well.
            let _ = retry.try_send(());
        }
        return;
    }
    if difference(shell, &key).is_none() {
        return;
    }
    let (retry, news) = async_channel::bounded(1);
    changing.push((key.clone(), retry));
    let (shell, executor) = (shell.clone(), shell.clone());
    executor.tasks.spawn(async move {
        let mut retry = DeviceRetry::default();
        // What changes meanwhile is the next difference.
        while let Some(change) = difference(&shell, &key) {
            let Err(error) = apply(&shell, &key, change).await else {
                retry = DeviceRetry::default();
                continue;
            };
            // A further change of the device ends the delay.
            let delay = retry.failed();
            log::warn!(
                "failed to change the devices of container {}: {}; trying again in {} s",
                key.1,
                error.message(),
                delay.as_secs()
            );
            let late = async {
                smol::Timer::after(delay).await;
            };
            smol::future::or(late, async { news.recv().await.unwrap_or_default() }).await;
        }
        shell.devices.changing.borrow_mut().retain(|(other, _)| *other != key);
    });
}

/// The present devices of a run, if they differ from those that it has or that its nodes show.
fn difference(shell: &Shell, (pod, container, number): &RunKey) -> Option<Vec<GivenDevice>> {
    let sandbox = shell.pods.sandbox(*pod)?;
    let runs = sandbox.runs.borrow();
    let run = runs.get(&(container.clone(), *number))?;
    // Until its process runs, it has what was found for its start.
    run.process.as_ref()?;
    let files = shell.machine.devices.borrow();
    let present = run.image.devices.iter().map(|given| {
        if given.name.is_empty() {
            return given.clone();
        }
        let found = files.get(&given.name);
        let found = found.and_then(|definition| Some(node_of(&definition, find(&definition).ok()?)));
        match found {
            Some(node) => GivenDevice::new(&given.name, node),
            None => GivenDevice { is_gone: true, ..GivenDevice::new(&given.name, given.node.clone()) },
        }
    });
    let present: Vec<GivenDevice> = present.collect();
    (present != run.image.devices).then_some(present)
}

/// The reason why the devices of a run could not be changed.
#[derive(Debug)]
enum ApplyError {
    Rule(CgroupError),
    Nodes(ExecError),
    NoAnswer,
}

impl ApplyError {
    fn message(&self) -> String {
        match self {
            ApplyError::Rule(error) => nodlet_host::error::chain(error),
            ApplyError::Nodes(error) => error.message(),
            ApplyError::NoAnswer => "the container's /dev does not answer".to_owned(),
        }
    }
}

/// Changes the rule of the run's cgroup, then the nodes in the container. What the nodes show is stored before and after:
/// whatever fails, this agent or the next one tries again.
async fn apply(
    shell: &Rc<Shell>,
    (pod, container, number): &RunKey,
    mut new: Vec<GivenDevice>,
) -> Result<(), ApplyError> {
    let gone = || ApplyError::Nodes(ExecError::Gone);
    let wanted = shell.pods.wanted(*pod).ok_or_else(gone)?;
    let index = wanted.pod.spec.index_of(container).ok_or_else(gone)?;
    let sandbox = shell.pods.sandbox(*pod).ok_or_else(gone)?;
    let attempt = Attempt { container: index, number: *number };
    let store = |devices: &[GivenDevice]| {
        let mut runs = sandbox.runs.borrow_mut();
        let run = runs.get_mut(&(container.clone(), *number)).ok_or_else(gone)?;
        let (old, new) = (nodes(&run.image.devices), nodes(devices));
        if old != new && !wanted.pod.spec.container(index).security_context.privileged {
            run.leaf.change_devices(&old, &new).map_err(ApplyError::Rule)?;
        }
        run.image.devices = devices.to_vec();
        if let Err(error) = write_facts(&shell.paths, &wanted, attempt, &run.image) {
            // The next agent looks again.
            log::warn!("failed to store the devices of container {container}: {error}");
        }
        Ok(())
    };
    let (mut change, mut events) = (DeviceChange::default(), Vec::new());
    {
        let runs = sandbox.runs.borrow();
        let old = &runs.get(&(container.clone(), *number)).ok_or_else(gone)?.image.devices;
        for (old, new) in old.iter().zip(&mut new).filter(|(old, new)| *old != *new) {
            let shown = old.shown.as_deref().unwrap_or(old);
            if !shown.is_gone {
                change.gone.push(shown.node.clone());
            }
            if !new.is_gone {
                change.added.push(new.node.clone());
            }
            events.extend(device_events(index, of_run(shown), of_run(new)));
            new.shown = Some(Box::new(shown.clone()));
        }
    }
    store(&new)?;
    let config = ExecConfig { args: vec![container.clone()], tty: false, size: None, devices: Some(change) };
    let exec = shell.execs.exec(&shell.pods, *pod, container, *number, &config, [None, None, None]);
    let exec = exec.map_err(ApplyError::Nodes)?;
    let late = async {
        smol::Timer::after(CHANGE_TIME).await;
        Err(ApplyError::NoAnswer)
    };
    let ended = async { exec.ended().await.map_err(ApplyError::Nodes) };
    let ended = smol::future::or(ended, late).await;
    if ended.is_err() {
        exec.kill(&shell.pods);
    }
    ended?;
    new.iter_mut().for_each(|device| device.shown = None);
    store(&new)?;
    events.iter().for_each(|event| shell.publication.emit(&wanted, event));
    Ok(())
}

/// The nodes of those devices that are there.
pub(super) fn nodes(devices: &[GivenDevice]) -> Vec<DeviceNode> {
    devices.iter().filter(|device| !device.is_gone).map(|device| device.node.clone()).collect()
}

fn of_run(device: &GivenDevice) -> DeviceOfRun<'_> {
    let DeviceNode { path, major, minor, .. } = &device.node;
    let path = path.to_str().unwrap_or_default();
    DeviceOfRun { name: &device.name, path, number: (*major, *minor), is_gone: device.is_gone }
}

impl Engine {
    /// Acts on changes of the device files: shows the devices as resources of the node, and looks them up.
    pub(super) fn device_files_changed(&mut self) {
        let (has_changed, refused) = self.shell.machine.devices.borrow_mut().take_news();
        for message in refused {
            log::error!("{message}");
            self.shell.publication.emit_of_node(NodeEvent::InvalidDeviceFile(&message));
        }
        if has_changed {
            self.publish_node();
            self.observe_node();
            let shell = self.shell.clone();
            self.shell.tasks.spawn(async move { look(&shell).await });
        }
    }
}
