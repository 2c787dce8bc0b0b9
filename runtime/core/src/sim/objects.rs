//! ConfigMaps and Secrets that come, change, lose a key and go, and what the files in the volumes of pods show of them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Chance, Sim, WorldPod, secs};
use crate::facts::*;
use crate::spec::container::{EnvFrom, EnvSource, EnvVar};
use crate::spec::reference::{ConfigKind, ObjectReference};
use crate::spec::volume::{KeyToPath, Projection, ProjectionKind, ProjectionSource, VolumeSource};
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
    let some = |chance: &mut Chance| {
        let kind = if chance.percent(30) { ConfigKind::Secret } else { ConfigKind::ConfigMap };
        ObjectReference { kind, ..config_map(&format!("o{}", chance.below(3)), chance.percent(30)) }
    };
    if chance.percent(40) {
        let mut volume = config_volume(some(chance));
        if let VolumeSource::Projected(projection) = &mut volume.source
            && let Some(ProjectionSource::Object { items, .. }) = projection.sources.first_mut()
            && chance.percent(50)
        {
            items.push(KeyToPath { key: KEY.into(), path: KEY.into(), mode: None });
        }
        pod.spec.volumes.push(volume);
    }
    for container in pod.spec.containers.iter_mut().chain(&mut pod.spec.init_containers) {
        if chance.percent(15) {
            let object = some(chance);
            container.env_from.push(EnvFrom { prefix: String::new(), object });
        }
        if chance.percent(10) {
            let value = EnvSource::Key { object: some(chance), key: KEY.into() };
            container.env.push(EnvVar { name: "K".into(), value });
        }
    }
    pod
}

/// The key that some references name, and some versions of an object do not have.
const KEY: &str = "k";

/// The objects that exist, by name, with their versions.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorldObjects {
    versions: BTreeMap<String, u64>,
    /// The objects that exist without [`KEY`].
    without_key: BTreeSet<String>,
    changes: u64,
}

impl WorldObjects {
    /// The present content of a pod's volumes: versions of objects, of which optional ones may be missing.
    fn shown_by(&self, pod: &Pod) -> Result<Shown, SandboxFailure> {
        let mut shown = Shown::new();
        for (_, projection) in pod.spec.projections() {
            for source in &projection.sources {
                let ProjectionSource::Object { object, items } = source else { continue };
                let version = self.versions.get(&object.name).copied();
                let lacks_key = !items.is_empty() && self.without_key.contains(&object.name);
                if (version.is_none() || lacks_key) && !object.optional {
                    return Err(SandboxFailure::ObjectNotFound);
                }
                shown.insert(object.name.clone(), version);
            }
        }
        Ok(shown)
    }

    /// Whether an object, or a key of it, that a container needs for its variables is missing.
    pub(super) fn lacks_variables(&self, container: &Container) -> bool {
        let is_missing =
            |object: &ObjectReference| !object.optional && !self.versions.contains_key(&object.name);
        let lacks_key =
            |object: &ObjectReference| !object.optional && self.without_key.contains(&object.name);
        container.env_from.iter().any(|source| is_missing(&source.object))
            || container.env.iter().any(|variable| match &variable.value {
                EnvSource::Key { object, .. } => is_missing(object) || lacks_key(object),
                EnvSource::Value(_)
                | EnvSource::Field(_)
                | EnvSource::Resource(_)
                | EnvSource::File { .. } => false,
            })
    }
}

/// The versions of the objects that a pod's volumes show.
pub(super) type Shown = BTreeMap<String, Option<u64>>;

impl Sim {
    /// Creates or changes an object, or deletes it.
    pub(crate) fn change_object(&mut self, name: &str, exists: bool) -> &mut Self {
        self.objects.changes += 1;
        self.objects.without_key.remove(name);
        let version = self.objects.changes;
        let before = if exists {
            self.objects.versions.insert(name.into(), version)
        } else {
            self.objects.versions.remove(name)
        };
        if before.is_none() && !exists {
            return self;
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
        self
    }

    /// Changes an object while no agent looks.
    pub(crate) fn change_object_unseen(&mut self, name: &str) {
        self.objects.changes += 1;
        self.objects.versions.insert(name.into(), self.objects.changes);
    }

    /// Changes, creates or deletes a random object.
    pub(super) fn change_some_object(&mut self, chance: &mut Chance) {
        let name = format!("o{}", chance.below(3));
        let (exists, has_key) = (chance.percent(70), chance.percent(75));
        self.change_object(&name, exists);
        if exists && !has_key {
            self.objects.without_key.insert(name);
        }
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
        // An object changes after it was read, and before the core learns that the files are written.
        if !self.weather.latency.is_zero() && self.chance.percent(20) {
            let name = self.of(uid).pod.spec.object_references().next().map(|object| object.name.clone());
            if let Some(name) = name {
                self.change_object(&name, true);
            }
        }
        self.answer_of(index, seen);
    }

    /// Checks that the volumes of a pod whose sandbox lives show the present objects.
    pub(crate) fn check_volumes(&self, world: &WorldPod) {
        let Ok(expected) = self.objects.shown_by(&world.pod) else { return };
        let is_live = world.sandbox == super::WorldSandbox::Exists && world.shown_terminal.is_none();
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
