//! The resources of the machine that pods use: capacity, cgroups and network; and the wall clock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::devices::DeviceFiles;
use nodlet_core::facts::{Amounts, NodePort};
use nodlet_core::pressure::{Pressure, RecordsDisk, Thresholds};
use nodlet_core::sorted::SortedMap;
use nodlet_core::time::{Anchor, Instant};
use nodlet_host::cgroup::Cgroups;
use nodlet_host::network::Network;
use nodlet_registry::Transitions;
use serde_json::Value;

use super::shutdown::ShutdownState;

/// The settings that decide when the node has a condition of pressure.
#[derive(Clone, Debug)]
pub struct Eviction {
    /// The thresholds of the signals: the kubelet's `--eviction-hard`.
    pub thresholds: Thresholds,
    /// The time for which a condition outlasts its threshold: the kubelet's `--eviction-pressure-transition-period`.
    pub transition: Duration,
}

impl Default for Eviction {
    fn default() -> Eviction {
        Eviction { thresholds: Thresholds::default(), transition: Duration::from_secs(300) }
    }
}

/// The machine of this node.
pub(super) struct Machine {
    /// The capacity of the machine, including what is reserved.
    pub(super) capacity: Amounts,
    pub(super) cgroups: Cgroups,
    pub(super) network: RefCell<Network>,
    /// The ports of the board that Services have.
    pub(super) node_ports: RefCell<Vec<NodePort>>,
    /// The devices of the board that pods may request.
    pub(super) devices: RefCell<DeviceFiles>,
    pub(super) installed: Installed,
    /// Whether AppArmor is enabled.
    pub(super) app_armor: bool,
    /// When this agent started.
    pub(super) began: Instant,
    pub(super) shutdown: Rc<ShutdownState>,
    /// The pressure on the machine's resources.
    pub(super) pressure: RefCell<Pressure>,
    /// Labels of the Node in the cluster that this board has joined.
    pub(super) cluster_labels: RefCell<SortedMap<String, String>>,
    /// Whether the last attempt to store these labels failed.
    pub(super) unstored_labels: Cell<bool>,
    /// `status.images` of the Node.
    pub(super) images: RefCell<Value>,
    /// Whether records can be written.
    pub(super) records_disk: RefCell<RecordsDisk>,
    /// Since when the conditions of the Node have had their status; `None` before they are published.
    pub(super) transitions: RefCell<Option<Transitions>>,
    anchor: Cell<Anchor>,
}

impl Machine {
    pub(super) fn new(capacity: Amounts, cgroups: Cgroups, network: Network, eviction: &Eviction) -> Machine {
        let began = nodlet_host::clock::instant();
        Machine {
            capacity,
            cgroups,
            network: RefCell::new(network),
            node_ports: RefCell::default(),
            devices: RefCell::default(),
            installed: Installed::read(),
            app_armor: crate::app_armor::is_enabled(),
            began,
            shutdown: Rc::new(ShutdownState::new(began)),
            pressure: RefCell::new(Pressure::new(eviction.thresholds.clone(), eviction.transition, began)),
            cluster_labels: RefCell::default(),
            unstored_labels: Cell::default(),
            images: RefCell::new(Value::Array(Vec::new())),
            records_disk: RefCell::default(),
            transitions: RefCell::default(),
            anchor: Cell::new(nodlet_host::clock::anchor()),
        }
    }

    /// The anchor that converts times of this boot to wall time.
    pub(super) fn anchor(&self) -> Anchor {
        self.anchor.get()
    }

    /// Reads the anchor again after the clock was set.
    pub(super) fn clock_was_set(&self) {
        self.anchor.set(nodlet_host::clock::anchor());
    }

    /// The wall time of a time of this boot, in the format of objects.
    pub(super) fn timestamp(&self, at: Instant) -> String {
        self.anchor().timestamp(at).to_string()
    }
}

/// The identity of the installed system.
const MACHINE_ID: &str = "/etc/machine-id";

/// The files whose first readable one has the UUID of the machine, in the order of the kubelet (`GetSystemUUID` of
/// cAdvisor): firmware, the device tree of a machine or of a virtual machine, and the installed system.
const SYSTEM_UUIDS: [&str; 4] = [
    "/sys/class/dmi/id/product_uuid",
    "/proc/device-tree/system-id",
    "/proc/device-tree/vm,uuid",
    MACHINE_ID,
];

/// Contents of files of the machine, read when the agent starts.
pub(super) struct Installed {
    pub(super) machine_id: String,
    pub(super) system_uuid: String,
    pub(super) os_image: String,
}

impl Installed {
    pub(super) fn read() -> Installed {
        Installed {
            machine_id: first_line(MACHINE_ID),
            system_uuid: first_identity(&SYSTEM_UUIDS),
            os_image: os_image(),
        }
    }
}

/// The content of the first of these files that can be read, without the NUL that ends a property of a device tree;
/// empty if none can be read.
fn first_identity(paths: &[&str]) -> String {
    let text = paths.iter().find_map(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    text.trim_end_matches('\0').trim().to_owned()
}

/// The first line of a file; empty if it cannot be read.
pub(super) fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// `PRETTY_NAME` of /etc/os-release.
fn os_image() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("Linux").trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_readable_file_identifies_the_system_without_its_nul() {
        let dir = std::env::temp_dir().join(format!("nodlet-identity-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let path = |name: &str| dir.join(name).to_str().expect("a text").to_owned();
        let (missing, tree, file) = (path("missing"), path("tree"), path("file"));
        std::fs::write(&tree, b"0a1b-2c\0").expect("a file");
        std::fs::write(&file, "0123abcd\n").expect("a file");
        assert_eq!(first_identity(&[&missing, &tree, &file]), "0a1b-2c");
        assert_eq!(first_identity(&[&missing, &file, &tree]), "0123abcd");
        assert_eq!(first_identity(&[&missing]), "");
        std::fs::remove_dir_all(&dir).expect("it is removed");
    }
}
