//! The engine's handles of sandboxes and of the runs in them: sockets, cgroups and process descriptors, with the
//! facts of a run that are reported to the core. `sandbox.rs` and `run.rs` create and use them.

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;

use nodlet_core::facts::{Attempt, StartedContainer};
use nodlet_core::sorted::SortedMap;
use nodlet_host::cgroup::{Leaf, PodCgroup};
use nodlet_host::launch::DeviceNode;
use nodlet_host::paths::Paths;
use nodlet_host::volume;
use nodlet_registry::Wanted;
use nodlet_supervisor::client::Supervisor;

use super::turns::Turn;

/// A sandbox that exists.
pub(super) struct Sandbox {
    pub(super) supervisor: Supervisor,
    pub(super) cgroup: PodCgroup,
    pub(super) ip: Option<Ipv4Addr>,
    /// Mounts that a container may ask for, by volume name.
    pub(super) volumes: volume::Volumes,
    /// By container name and number, which identify a run to the supervisor.
    pub(super) runs: RefCell<SortedMap<(String, u32), Run>>,
    /// Mounts of the layers of runs that an earlier agent started, so that later runs share them.
    pub(super) layers: Vec<Rc<OwnedFd>>,
    /// The supervisor was asked to end: that it hangs up is no loss of the sandbox.
    pub(super) ending: Cell<bool>,
    /// By container name, the newest run that was killed while its start was being prepared.
    pub(super) given_up: RefCell<SortedMap<String, u32>>,
    /// Woken when the supervisor has hung up.
    pub(super) gone: (async_channel::Sender<()>, async_channel::Receiver<()>),
}

impl Sandbox {
    pub(super) fn new(
        supervisor: Supervisor,
        cgroup: PodCgroup,
        ip: Option<Ipv4Addr>,
        volumes: volume::Volumes,
    ) -> Sandbox {
        Sandbox {
            supervisor,
            cgroup,
            ip,
            volumes,
            runs: RefCell::default(),
            layers: Vec::new(),
            ending: Cell::new(false),
            given_up: RefCell::default(),
            gone: async_channel::bounded(1),
        }
    }
}

/// A run of a container that was started.
pub(super) struct Run {
    pub(super) leaf: Leaf,
    /// Set once its process has been executed.
    pub(super) process: Option<OwnedFd>,
    pub(super) started: Option<StartedContainer>,
    /// Known before that.
    pub(super) image: ImageFacts,
    /// Keeps the layers below its root file system mounted, to be shared.
    pub(super) _layers: Vec<Rc<OwnedFd>>,
    /// Kept until its process is executed, if its configuration is large.
    pub(super) turn: Option<Turn>,
}

/// The image of a run, as its status has it, and what else is known of a run when it is started.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct ImageFacts {
    pub(super) container_id: String,
    pub(super) image: String,
    pub(super) image_id: String,
    /// `image` of the spec, to compare a later spec with.
    #[serde(default)]
    pub(super) spec_image: String,
    pub(super) stop_signal: i32,
    /// The devices of the board that the run was given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) devices: Vec<GivenDevice>,
    /// The exclusive cpus of the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) cpus: Vec<u32>,
}

/// A device that a run of a container was given.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct GivenDevice {
    /// The name of its definition; empty for a CDI device and for a volume, which stay as they were at the start.
    pub(super) name: String,
    pub(super) node: DeviceNode,
    /// Whether the device is gone: the container has no node of it at present.
    #[serde(default)]
    pub(super) is_gone: bool,
    /// The device as the container's nodes may still show it, until these are changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shown: Option<Box<GivenDevice>>,
}

impl GivenDevice {
    pub(super) fn new(name: &str, node: DeviceNode) -> GivenDevice {
        GivenDevice { name: name.to_owned(), node, is_gone: false, shown: None }
    }
}

/// Writes the data of a run that the next agent needs and the supervisor does not have. The file is among the pod's
/// run-time files, which are lost with the boot as the containers are.
pub(super) fn write_facts(
    paths: &Paths,
    wanted: &Wanted,
    attempt: Attempt,
    facts: &ImageFacts,
) -> std::io::Result<()> {
    let name = &wanted.pod.spec.container(attempt.container).name;
    let path = facts_path(paths, wanted, name, attempt.number);
    std::fs::create_dir_all(path.parent().expect("it lies in the pod's directory"))?;
    let bytes = serde_json::to_vec(facts).expect("strings and a number");
    nodlet_kernel::durable::replace_in_memory(&path, bytes)
}

/// The directory of the files `<container>_<number>.json` of [`write_facts`], within the pod's run-time directory.
pub(super) const FACTS: &str = "runs";

pub(super) fn facts_path(paths: &Paths, wanted: &Wanted, container: &str, number: u32) -> PathBuf {
    paths.run_pod(&wanted.pod.uid.0).join(FACTS).join(format!("{container}_{number}.json"))
}
