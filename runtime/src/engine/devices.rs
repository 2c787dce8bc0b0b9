//! Looks up devices of the board for containers. The registry decides which devices a container gets, and which changes
//! are reported (`registry/src/devices.rs`).
//!
//! Read next: `devices/watch.rs`, which notices changes; `devices/change.rs`, which changes the nodes of running containers.

mod change;
mod watch;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use async_channel::Sender;

use crate::container_config;
use crate::devices::{self, cdi};
use crate::storage_thread::Storage;
use nodlet_core::facts::{PodIndex, SandboxFailure, StartFailure, StartFailureReason};
use nodlet_core::spec::{Container, Pod};
use nodlet_host::launch::DeviceNode;
use nodlet_host::paths::Paths;
use nodlet_host::watches::Watches;
use nodlet_kube::manifest::{DeviceDefinition, DeviceSource};
use nodlet_registry::{
    FoundDevice, NodeEvent, SeenDevices, Wanted, grant_devices, grant_interfaces, interface_returned,
    requested_devices,
};
use nodlet_supervisor::RENAMED_FILE;

use super::Engine;
use super::exec::Execs;
use super::handles::{GivenDevice, Sandbox};
use super::machine::Machine;
use super::pods::Pods;
use super::publication::Publication;
use super::tasks::Tasks;
pub(super) use change::nodes;
use watch::Watch;

const DEV: &str = "/dev";
const SYS: &str = "/sys";

/// The devices that pods request.
pub(super) struct Devices {
    /// What they use of the rest of the engine.
    parts: DeviceParts,
    /// The watch of devices, while a pod requests one.
    watch: RefCell<Option<Rc<Watch>>>,
    /// Where each requested device was when a pod last looked.
    seen: RefCell<SeenDevices>,
    /// Runs whose nodes are being changed, each with what ends the delay before a retry.
    changing: RefCell<Vec<(RunKey, Sender<()>)>>,
}

/// What [`Devices`] use of the rest of the engine.
pub(super) struct DeviceParts {
    pub(super) paths: Paths,
    pub(super) watches: Watches,
    pub(super) machine: Rc<Machine>,
    pub(super) pods: Rc<Pods>,
    pub(super) execs: Rc<Execs>,
    pub(super) publication: Rc<Publication>,
    pub(super) tasks: Rc<Tasks>,
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

impl Devices {
    pub(super) fn new(parts: DeviceParts) -> Rc<Devices> {
        let (watch, seen, changing) = (RefCell::default(), RefCell::default(), RefCell::default());
        Rc::new(Devices { parts, watch, seen, changing })
    }

    /// Finds the devices that a container requests.
    ///
    /// # Errors
    /// A device is not there; the container has to wait for it.
    pub(super) fn of_container(
        self: &Rc<Self>,
        container: &Container,
    ) -> Result<Vec<GivenDevice>, StartFailure> {
        if container.resources.devices.is_empty() {
            return Ok(Vec::new());
        }
        // Watched before it is looked up: no change is missed.
        for (name, _) in &container.resources.devices {
            self.seen.borrow_mut().add(name);
        }
        self.watch();
        let look_up = |name: &str| {
            let definition = self.parts.machine.devices.borrow().get(name);
            let found = definition.as_deref().map(find);
            self.seen.borrow_mut().record(name, found.clone().and_then(Result::ok));
            definition.zip(found)
        };
        let devices_in_use = self.devices_in_use();
        let in_use = || devices_in_use.iter().map(|(name, found)| (&**name, *found));
        let directory = self.parts.paths.device_files();
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
    pub(super) fn interfaces(self: &Rc<Self>, pod: &Pod) -> Result<Vec<String>, (SandboxFailure, String)> {
        let definition_of = |name: &str| self.parts.machine.devices.borrow().get(name);
        grant_interfaces(pod, definition_of, |definition| {
            // Watched before it is looked up: no change is missed.
            self.watch();
            if let Some(watch) = &*self.watch.borrow() {
                watch.add_links();
            }
            let found = find(definition);
            self.seen.borrow_mut().record(&definition.name, found.as_ref().ok().copied());
            found
        })
    }

    /// Adds CDI devices to `given`: those that the pod requests by annotations, and those that device files name for the
    /// resources of the container. Returns what else they change.
    ///
    /// # Errors
    /// A device is not defined, or cannot be given.
    pub(super) async fn inject(
        &self,
        storage: &Storage,
        pod: &Pod,
        container: &Container,
        given: &mut Vec<GivenDevice>,
    ) -> Result<cdi::Injected, StartFailure> {
        let failed = |message| StartFailure::new(StartFailureReason::CreateContainerError, message);
        let mut names = cdi::requested(pod).map_err(failed)?;
        for (name, _) in &container.resources.devices {
            let definition = self.parts.machine.devices.borrow().get(name);
            if let Some(DeviceSource::Cdi(name)) = definition.as_deref().map(|definition| &definition.source)
                && !names.contains(name)
            {
                names.push(name.clone());
            }
        }
        if names.is_empty() {
            return Ok(cdi::Injected::default());
        }
        let directories = self.parts.paths.cdi_files();
        let injected = storage.run(move || cdi::inject(&names, &directories)).await.map_err(failed)?;
        for node in &injected.nodes {
            given.retain(|other| other.node.path != node.path);
            given.push(GivenDevice::new("", node.clone()));
        }
        Ok(injected)
    }

    /// The devices of all running containers that are there, by name; that of a volume has an empty name.
    fn devices_in_use(&self) -> Vec<(String, FoundDevice)> {
        let pods = self.parts.pods.borrow();
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
    pub(super) fn report_renamed(&self, wanted: &Wanted, directory: &Path) {
        if requested_devices(&wanted.pod).next().is_none() {
            return;
        }
        let renamed =
            nodlet_kernel::own_file::read_to_string(&directory.join(RENAMED_FILE)).unwrap_or_default();
        for (name, how) in renamed.lines().filter_map(|line| line.split_once(' ')) {
            self.parts.publication.emit(wanted, &interface_returned(name, how));
        }
    }
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
            let devices = self.shell.devices.clone();
            self.shell.tasks.spawn(async move { devices.refresh().await });
        }
    }
}
