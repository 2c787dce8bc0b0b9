//! ConfigMaps that come, change and go, and what the files in the volumes of pods show of them.

use std::collections::BTreeMap;

use super::{Chance, Sim, WorldPod, secs};
use crate::facts::*;
use crate::spec::container::EnvFrom;
use crate::spec::reference::{ConfigKind, ObjectReference};
use crate::spec::volume::{Projection, ProjectionKind, ProjectionSource, VolumeSource};
use crate::spec::*;

/// A reference to a ConfigMap.
pub(crate) fn config_map(name: &str, optional: bool) -> ObjectReference {
    ObjectReference { kind: ConfigKind::ConfigMap, name: name.into(), optional }
}

/// A volume that shows a ConfigMap.
pub(crate) fn config_volume(object: ObjectReference) -> Volume {
    let sources = vec![ProjectionSource::Object { object, items: Vec::new() }];
    let projection = Projection { kind: ProjectionKind::ConfigMap, default_mode: 0o644, sources };
    Volume { name: "config".into(), source: VolumeSource::Projected(projection) }
}

/// A container with the variables of a ConfigMap.
pub(crate) fn with_variables(mut container: Container, object: ObjectReference) -> Container {
    container.env_from.push(EnvFrom { prefix: String::new(), object });
    container
}

/// Makes a pod refer to ConfigMaps, sometimes.
pub(super) fn with_references(mut pod: Pod, chance: &mut Chance) -> Pod {
    let some = |chance: &mut Chance| config_map(&format!("o{}", chance.below(3)), chance.percent(30));
    if chance.percent(40) {
        let object = some(chance);
        pod.spec.volumes.push(config_volume(object));
    }
    for container in pod.spec.containers.iter_mut().chain(&mut pod.spec.init_containers) {
        if chance.percent(15) {
            let object = some(chance);
            container.env_from.push(EnvFrom { prefix: String::new(), object });
        }
    }
    pod
}

/// The objects that exist, by name, with their versions.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorldObjects {
    versions: BTreeMap<String, u64>,
    changes: u64,
}

impl WorldObjects {
    /// What the volumes of a pod would show now: versions of objects, of which optional ones may be missing.
    fn shown_by(&self, pod: &Pod) -> Result<Shown, SandboxFailure> {
        let mut shown = Shown::new();
        for (_, projection) in pod.spec.projections() {
            for source in &projection.sources {
                let ProjectionSource::Object { object, .. } = source else { continue };
                let version = self.versions.get(&object.name).copied();
                if version.is_none() && !object.optional {
                    return Err(SandboxFailure::ObjectNotFound);
                }
                shown.insert(object.name.clone(), version);
            }
        }
        Ok(shown)
    }

    /// Whether an object that a container needs for its variables is missing.
    pub(super) fn lacks_variables(&self, container: &Container) -> bool {
        let mut needed = container.env_from.iter().filter(|source| !source.object.optional);
        needed.any(|source| !self.versions.contains_key(&source.object.name))
    }
}

/// The versions of the objects that a pod's volumes show.
pub(super) type Shown = BTreeMap<String, Option<u64>>;

impl Sim {
    /// Creates or changes an object, or deletes it.
    pub(crate) fn change_object(&mut self, name: &str, exists: bool) {
        self.objects.changes += 1;
        let version = self.objects.changes;
        let before = match exists {
            true => self.objects.versions.insert(name.into(), version),
            false => self.objects.versions.remove(name),
        };
        if before.is_none() && !exists {
            return;
        }
        let refers = |world: &WorldPod| world.pod.spec.object_references().any(|object| object.name == name);
        let affected: Vec<PodIndex> = self
            .pods
            .iter()
            .filter(|world| refers(world))
            .filter_map(|world| self.node.index_of(&world.pod.uid))
            .collect();
        for index in affected {
            self.later(secs(0), Observation::Of(index, PodObservation::ObjectsChanged));
        }
    }

    /// Changes an object while no agent looks.
    pub(crate) fn change_object_unseen(&mut self, name: &str) {
        self.objects.changes += 1;
        self.objects.versions.insert(name.into(), self.objects.changes);
    }

    /// Changes, creates or deletes a random object.
    pub(super) fn change_some_object(&mut self, chance: &mut Chance) {
        let name = format!("o{}", chance.below(3));
        self.change_object(&name, chance.percent(70));
    }

    /// Writes the files in the volumes of a pod, as the engine does for a new sandbox.
    pub(super) fn write_volumes(&mut self, uid: &Uid) -> Result<(), SandboxFailure> {
        let pod = self.of(uid).pod.clone();
        let shown = self.objects.shown_by(&pod)?;
        self.of(uid).shown = shown;
        Ok(())
    }

    /// Carries out `UpdateVolumes`.
    pub(super) fn update_volumes(&mut self, uid: &Uid, index: PodIndex) {
        self.note_log(&format!("{uid} update volumes"));
        self.of(uid).updating = true;
        let written = if self.fails() { Err(SandboxFailure::Mount) } else { self.write_volumes(uid) };
        let seen = match written {
            Ok(()) => PodObservation::VolumesUpdated,
            Err(reason) => PodObservation::VolumesUpdateFailed { reason, message: "it cannot be".into() },
        };
        self.answer_of(index, seen);
    }

    /// Checks that the volumes of a pod whose sandbox lives show the present objects.
    pub(crate) fn check_volumes(&self, world: &WorldPod) {
        let Ok(expected) = self.objects.shown_by(&world.pod) else { return };
        let is_live = world.sandbox == super::WorldSandbox::Made && world.shown_terminal.is_none();
        assert!(
            !is_live || world.shown == expected,
            "{}: its volumes are outdated\n{}",
            world.pod.uid,
            self.log
        );
    }

    /// Creates every object anew.
    pub(super) fn create_all_objects(&mut self) {
        for number in 0..3 {
            self.change_object(&format!("o{number}"), true);
        }
        self.later(secs(0), Observation::ImagesChanged);
    }
}
