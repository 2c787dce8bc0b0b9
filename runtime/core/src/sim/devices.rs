//! Devices of the board that are plugged in and unplugged at any moment: `nodlet.dev/d0` with one user, `d1` with two,
//! and `if0`, a network interface, which is in the pod that has it and returns with the end of its sandbox.

use std::collections::{BTreeMap, BTreeSet};

use super::{Chance, Sim, WorldSandbox, secs};
use crate::facts::*;
use crate::pod::PodState;
use crate::spec::*;

/// The interface among the devices.
const INTERFACE: &str = "if0";

/// The devices, and how many users each may have at once.
const DEVICES: [(&str, i64); 3] = [("d0", 1), ("d1", 2), (INTERFACE, 1)];

/// The devices of the world. None is there before it is plugged in.
#[derive(Clone, Debug, Default)]
pub(super) struct WorldDevices {
    plugged: BTreeSet<&'static str>,
    /// Containers that wait for a device, and whether the core knows: the start has failed for nothing else.
    waiting: BTreeMap<(Uid, ContainerIndex), bool>,
    /// Whether the core is being told of a device: no run may end because of that.
    pub(super) is_news: bool,
    /// The pods of which a start has begun meanwhile. Containers of a pod start one after the other.
    starting: BTreeSet<Uid>,
}

/// Makes containers of a pod request devices, sometimes.
pub(super) fn with_devices(mut pod: Pod, chance: &mut Chance) -> Pod {
    for container in pod.spec.containers.iter_mut().chain(&mut pod.spec.init_containers) {
        for (name, _) in DEVICES {
            if chance.percent(if name == INTERFACE { 8 } else { 15 }) {
                container.resources.devices.push((name.into(), 1));
            }
        }
    }
    pod
}

fn requests(container: &Container, device: &str) -> bool {
    container.resources.devices.iter().any(|(name, _)| **name == *device)
}

fn pod_requests(pod: &Pod, device: &str) -> bool {
    pod.spec.all_containers().any(|container| requests(container, device))
}

impl Sim {
    /// Defines all devices of the node, as its device files do.
    pub(crate) fn define_devices(&mut self) {
        let mut info = self.info.clone().unwrap_or_default();
        info.devices = DEVICES.map(|(name, users)| (name.to_owned(), users)).into();
        self.info = Some(info);
        self.observe_node();
    }

    /// Plugs a device in or unplugs it; one that is there already comes back elsewhere.
    pub(crate) fn change_device(&mut self, device: &str, is_plugged: bool) {
        let (name, _) = DEVICES.into_iter().find(|(name, _)| *name == device).expect("one of the devices");
        self.note_log(&format!("{name} is {}", if is_plugged { "plugged in" } else { "unplugged" }));
        let was_plugged =
            if is_plugged { !self.devices.plugged.insert(name) } else { self.devices.plugged.remove(name) };
        if !is_plugged && name == INTERFACE {
            self.pods.iter_mut().for_each(|world| world.has_interface = false);
        }
        if !was_plugged && !is_plugged {
            return;
        }
        // What is due at this moment has been done, so that what the core does now is because of the device.
        self.settle();
        self.devices.is_news = true;
        for index in self.requesting(name) {
            self.observe(Observation::Of(index, PodObservation::ObjectsChanged));
        }
        let waited = self.devices.waiting.clone();
        self.settle();
        self.devices.is_news = false;
        self.check_started(&waited);
        self.devices.starting.clear();
    }

    /// The pods of the core that request a device.
    fn requesting(&self, device: &str) -> Vec<PodIndex> {
        let pods = self.node.pods().filter(|state| pod_requests(state.pod(), device));
        pods.map(PodState::index).collect()
    }

    /// Plugs in or unplugs a random device.
    pub(super) fn change_some_device(&mut self, chance: &mut Chance) {
        let (name, _) = DEVICES[chance.below(DEVICES.len() as u64) as usize];
        self.change_device(name, chance.percent(60));
    }

    /// Plugs all devices in that are not there.
    pub(super) fn plug_all_devices(&mut self) {
        for (name, _) in DEVICES {
            if !self.devices.plugged.contains(name) {
                self.change_device(name, true);
            }
        }
    }

    /// Whether a device, other than the interface, that a container requests is not there.
    fn lacks_device_now(&self, container: &Container) -> bool {
        let is_missing = |name: &str| name != INTERFACE && !self.devices.plugged.contains(name);
        container.resources.devices.iter().any(|(name, _)| is_missing(name))
    }

    /// Records that a container is to start again, and waits no longer for a device alone.
    pub(super) fn begins_start(&mut self, uid: &Uid, container: ContainerIndex) {
        self.devices.waiting.remove(&(uid.clone(), container));
        if self.devices.is_news {
            self.devices.starting.insert(uid.clone());
        }
    }

    /// Looks the devices of a container up that is to start. Returns whether one is not there.
    pub(super) fn lacks_device(&mut self, uid: &Uid, container: ContainerIndex) -> bool {
        let pod = self.of(uid).pod.clone();
        let spec = pod.spec.container(container);
        if !self.lacks_device_now(spec) {
            self.check_users(&pod, container);
            return false;
        }
        self.devices.waiting.insert((uid.clone(), container), false);
        true
    }

    /// Records that the core has learnt of a failed start.
    pub(super) fn device_start_failed(&mut self, index: PodIndex, container: ContainerIndex) {
        let uid = self.node.pod(index).map(|state| state.pod().uid.clone());
        if let Some(waits) = uid.and_then(|uid| self.devices.waiting.get_mut(&(uid, container))) {
            *waits = true;
        }
    }

    /// Records that a pod begins anew, and none of its containers waits.
    pub(super) fn forget_device_starts_of(&mut self, uid: &Uid) {
        self.devices.waiting.retain(|(other, _), _| other != uid);
    }

    /// Records that a new agent knows nothing of failed starts.
    pub(super) fn forget_device_starts(&mut self) {
        self.devices.waiting.clear();
    }

    /// Looks up the interface that a pod requests which is created, before anything else of its sandbox exists.
    pub(super) fn find_interface(&mut self, uid: &Uid) -> Result<(), SandboxFailure> {
        if !pod_requests(&self.of(uid).pod, INTERFACE) {
            return Ok(());
        }
        let is_elsewhere = self.pods.iter().any(|world| world.has_interface && world.pod.uid != *uid);
        if is_elsewhere || !self.devices.plugged.contains(INTERFACE) {
            return Err(SandboxFailure::DeviceNotFound);
        }
        Ok(())
    }

    /// Moves the interface into the network of a pod that requests it, as the last step of its sandbox.
    pub(super) fn take_interface(&mut self, uid: &Uid) {
        let world = self.of(uid);
        world.has_interface = pod_requests(&world.pod, INTERFACE);
    }

    /// Returns the interface of a pod whose sandbox is gone to the host, which is news to the pods that wait for it.
    pub(super) fn return_interface(&mut self, uid: &Uid) {
        if std::mem::take(&mut self.of(uid).has_interface) {
            for index in self.requesting(INTERFACE) {
                self.later(secs(0), Observation::Of(index, PodObservation::ObjectsChanged));
            }
        }
    }

    /// Looks the interface up again once the core knows that a sandbox failed for want of it, as the engine does.
    pub(super) fn retry_interface(&mut self, index: PodIndex) {
        let is_free = self.pods.iter().all(|world| !world.has_interface);
        if is_free && self.devices.plugged.contains(INTERFACE) {
            self.later(secs(0), Observation::Of(index, PodObservation::ObjectsChanged));
        }
    }

    /// Checks that a container that starts shares its devices with no more users than they may have.
    fn check_users(&self, pod: &Pod, container: ContainerIndex) {
        for (name, most) in DEVICES {
            if !requests(pod.spec.container(container), name) {
                continue;
            }
            let living = self.pods.iter().flat_map(|world| {
                let users = world.alive.keys().map(|attempt| world.pod.spec.container(attempt.container));
                users.filter(|container| requests(container, name))
            });
            let lost = self.pods.iter().filter(|world| world.orphans && pod_requests(&world.pod, name));
            let users = living.count() + lost.count() + 1;
            assert!(users as i64 <= most, "{}: {name} has {users} users\n{}", pod.uid, self.log);
        }
    }

    /// Checks that a run does not end because a device was plugged in or unplugged.
    pub(super) fn check_no_end(&self, uid: &Uid, attempt: Attempt) {
        assert!(!self.devices.is_news, "{uid}: {attempt:?} ends because of a device\n{}", self.log);
    }

    /// Checks that containers that `waited` for devices which are there have been started at once.
    fn check_started(&self, waited: &BTreeMap<(Uid, ContainerIndex), bool>) {
        for ((uid, container), _) in waited.iter().filter(|(_, is_known)| **is_known) {
            let world = self.pods.iter().find(|world| world.pod.uid == *uid).expect("a pod of this world");
            let state = self.node.index_of(uid).and_then(|index| self.node.pod(index));
            // Nor does a pod start anything that ends, or has ended and waits for its record to be written.
            let goes = |state: &PodState| state.has_terminal_phase() || !state.is_active();
            // Files of volumes are written before a start, and containers of a pod start one after the other: a start
            // may take a while, its record is written first if it is the only one, and its hook belongs to it.
            let is_starting = state.is_some_and(PodState::is_starting_container);
            let is_busy =
                world.updating || world.save_in_flight || is_starting || self.devices.starting.contains(uid);
            let is_made = world.sandbox == WorldSandbox::Exists && !is_busy;
            let may_start = is_made && state.is_some_and(|state| !goes(state));
            // Nor does it start before the sidecars that come first, which may be in back-off, or have restarted and wait
            // for their startup probe.
            let spec = &world.pod.spec;
            let is_regular = spec.role(*container) == Role::Regular;
            let comes_first = |index: &ContainerIndex| {
                spec.role(*index) == Role::Sidecar && (is_regular || *index < *container)
            };
            let mut sidecars = spec.init_indexes().filter(comes_first);
            let is_up = |index: ContainerIndex| {
                world.alive.keys().any(|attempt| attempt.container == index)
                    && state.is_some_and(|state| state.health(index).started)
            };
            let may_start = may_start && sidecars.all(is_up);
            let waits = self.devices.waiting.contains_key(&(uid.clone(), *container));
            let is_there = !self.lacks_device_now(world.pod.spec.container(*container));
            assert!(
                !(may_start && waits && is_there),
                "{uid}: {container:?} misses its device\n{}",
                self.log
            );
        }
    }
}
