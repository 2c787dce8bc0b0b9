//! Which devices of the board a container gets, and what changes when a device goes or comes back.
//!
//! Admission counts the users of a device (`core/src/node/admission.rs`). Here, the engine passes what it finds in /dev and
//! /sys: a device that is not there fails the start of its container, which waits until the device appears.
//! `engine/devices.rs` looks devices up, watches them, and changes the nodes in containers.

use std::rc::Rc;
use std::time::Duration;

use nodlet_core::facts::{Event, SandboxFailure, StartFailure, StartFailureReason};
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::container::DEVICE_DOMAIN;
use nodlet_core::spec::{Container, ContainerIndex, Pod};
use nodlet_kube::manifest::{DeviceDefinition, DeviceSource};

/// A device that was found on the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// Whether it is a block device.
    pub block: bool,
    /// The major number; 0 for a network interface.
    pub major: u32,
    /// The minor number, or the index of a network interface.
    pub minor: u32,
}

/// A device that a container gets.
pub(crate) type GrantedDevice = (Rc<DeviceDefinition>, FoundDevice);

/// The result of a look-up: its definition, if a file defines the device, and whether it is there.
pub(crate) type LookedUp = Option<(Rc<DeviceDefinition>, Result<FoundDevice, String>)>;

/// The delays before a change of the devices of a run that failed is tried again.
#[derive(Debug, Default)]
pub struct DeviceRetry {
    failures: u32,
}

impl DeviceRetry {
    /// Records a failure. Returns the delay: a second at first, doubled up to 64 s.
    pub fn failed(&mut self) -> Duration {
        let delay = Duration::from_secs(1 << self.failures);
        self.failures = (self.failures + 1).min(6);
        delay
    }
}

/// The devices that the containers of a pod request; a name may occur several times.
pub fn requested_devices(pod: &Pod) -> impl Iterator<Item = &str> {
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    containers.flat_map(|container| &container.resources.devices).map(|(name, _)| &**name)
}

/// The devices that a container gets. `look_up` finds a device by its name; an interface need not be looked up.
/// `in_use` are the devices of all running containers, by name. `directory` is that of the device files.
///
/// # Errors
/// A device is not there, and the container has to wait for it; or two of the devices exclude each other.
pub fn grant_devices<'a, I>(
    container: &Container,
    mut look_up: impl FnMut(&str) -> LookedUp,
    in_use: impl Fn() -> I,
    directory: &str,
) -> Result<Vec<GrantedDevice>, StartFailure>
where
    I: Iterator<Item = (&'a str, FoundDevice)>,
{
    let mut granted: Vec<GrantedDevice> = Vec::new();
    for (name, _) in &container.resources.devices {
        let Some((definition, found)) = look_up(name) else {
            return Err(missing(format!(
                "device {DEVICE_DOMAIN}{name} is not defined: no file in {directory} has this name"
            )));
        };
        // The pod's sandbox has an interface, and CDI files say what a CDI device is.
        if matches!(definition.source, DeviceSource::Interface(_) | DeviceSource::Cdi(_)) {
            continue;
        }
        let found = found.map_err(|why| {
            let place = place_of(&definition.source);
            missing(format!(
                "device {DEVICE_DOMAIN}{name} was not found ({place}): {why} ({})",
                definition.place
            ))
        })?;
        // Both definitions count their users, as if there were two devices.
        if let Some((other, _)) = in_use().find(|(other, held)| *other != &**name && *held == found) {
            return Err(missing(format!(
                "device {DEVICE_DOMAIN}{name} is in use as {DEVICE_DOMAIN}{other}: two files find the same device ({})",
                definition.place
            )));
        }
        let path = &definition.container_path;
        if let Some((other, _)) = granted.iter().find(|(other, _)| other.container_path == *path) {
            let message = format!(
                "devices {DEVICE_DOMAIN}{} and {DEVICE_DOMAIN}{name} have the same containerPath {path} ({})",
                other.name, definition.place
            );
            return Err(StartFailure::new(StartFailureReason::CreateContainerConfigError, message));
        }
        granted.push((definition, found));
    }
    Ok(granted)
}

/// The interfaces of the host that move into the network of a pod. `definition_of` returns the definition of a device by
/// its name; `look_up` says whether an interface is there.
///
/// # Errors
/// An interface is not there: the pod has to wait for it. Or the pod has no network of its own.
pub fn grant_interfaces(
    pod: &Pod,
    definition_of: impl Fn(&str) -> Option<Rc<DeviceDefinition>>,
    mut look_up: impl FnMut(&DeviceDefinition) -> Result<FoundDevice, String>,
) -> Result<Vec<String>, (SandboxFailure, String)> {
    let mut interfaces: Vec<String> = Vec::new();
    for device in requested_devices(pod) {
        let Some(definition) = definition_of(device) else { continue };
        let DeviceSource::Interface(name) = &definition.source else { continue };
        if pod.spec.host_network {
            let message = format!(
                "device {DEVICE_DOMAIN}{device} is the interface {name}, which moves into the pod's own network; \
                 remove hostNetwork ({})",
                definition.place
            );
            return Err((SandboxFailure::Sandbox, message));
        }
        if let Err(why) = look_up(&definition) {
            let message =
                format!("device {DEVICE_DOMAIN}{device} was not found: {why} ({})", definition.place);
            return Err((SandboxFailure::DeviceNotFound, message));
        }
        if !interfaces.contains(name) {
            interfaces.push(name.clone());
        }
    }
    Ok(interfaces)
}

/// Where each requested device was when it was last looked up; `None` if it was not there.
#[derive(Debug, Default)]
pub struct SeenDevices(SortedMap<String, Option<FoundDevice>>);

impl SeenDevices {
    /// Records the result of a look-up.
    pub fn record(&mut self, name: &str, found: Option<FoundDevice>) {
        self.0.insert(name.to_owned(), found);
    }

    /// Adds a device that has not been looked up yet.
    pub fn add(&mut self, name: &str) {
        self.0.entry(name.to_owned()).or_insert(None);
    }

    /// The names of the devices.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Forgets all devices: no pod requests one.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Looks all devices up again. Returns those that have come, gone or changed their place.
    pub fn refresh(&mut self, mut find: impl FnMut(&str) -> Option<FoundDevice>) -> Vec<String> {
        let mut changed = Vec::new();
        for (name, seen) in self.0.iter_mut() {
            let now = find(name);
            if now != *seen {
                *seen = now;
                changed.push(name.clone());
            }
        }
        changed
    }
}

/// A device of a run, for the events about its changes.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOfRun<'a> {
    /// The name of its definition.
    pub name: &'a str,
    /// The path of its node in the container.
    pub path: &'a str,
    /// Its major and minor number.
    pub number: (u32, u32),
    /// Whether the device is gone: the container has no node of it.
    pub is_gone: bool,
}

/// The events about a device of a run that was `old` and is `new`.
pub fn device_events(container: ContainerIndex, old: DeviceOfRun<'_>, new: DeviceOfRun<'_>) -> Vec<Event> {
    let event = |device: &DeviceOfRun<'_>, warning: bool, reason: &'static str, what: &str| {
        let DeviceOfRun { name, path, number: (major, minor), .. } = device;
        let message = format!("device {DEVICE_DOMAIN}{name} ({path}, {major}:{minor}) {what}");
        Event { warning, reason: reason.into(), message: message.into(), container: Some(container) }
    };
    let lost = (!old.is_gone).then(|| event(&old, true, "DeviceLost", "is gone"));
    let found = (!new.is_gone).then(|| event(&new, false, "DeviceFound", "is present again"));
    lost.into_iter().chain(found).collect()
}

/// The event about an interface that did not come back from a pod as it was: `how` is its new name, `changed` and the
/// settings that differ, or `lost` and the reason.
pub fn interface_returned(name: &str, how: &str) -> Event {
    let (reason, message) = match how.split_once(' ') {
        Some(("changed", settings)) => (
            "InterfaceChanged",
            format!("interface {name} came back from the pod with other settings than before: {settings}"),
        ),
        Some((_, why)) => {
            ("InterfaceLost", format!("interface {name} did not come back from the pod: {why}"))
        }
        None => (
            "InterfaceRenamed",
            format!("interface {name} came back from the pod as {how}: another interface has its name"),
        ),
    };
    Event { warning: true, reason: reason.into(), message: message.into(), container: None }
}

/// Where a device is looked for, for messages.
fn place_of(source: &DeviceSource) -> String {
    match source {
        DeviceSource::Path(path) => path.clone(),
        DeviceSource::Interface(name) => format!("the interface {name}"),
        DeviceSource::Cdi(name) => format!("the CDI device {name}"),
        DeviceSource::Sysfs { subsystem, attributes, path } => {
            let mut text = format!("a device of the subsystem {subsystem}");
            for (at, (key, value)) in attributes.iter().enumerate() {
                text += &format!("{}{key}={value}", if at == 0 { " with " } else { ", " });
            }
            if let Some(path) = path {
                text += &format!(" at {path}");
            }
            text
        }
    }
}

fn missing(message: String) -> StartFailure {
    StartFailure::new(StartFailureReason::ObjectNotFound, message)
}
