//! PodPresets: which there are, and what they add to a pod when it is admitted,
//! once. What was applied is kept with the pod, on flash and beside its
//! supervisor, so that neither a later preset nor a later agent changes it.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::Value;

use crate::api::{Accepted, Applied as Outcome, FieldValidation, Reply, Status};
use crate::manifest::{self, Applied, Preset, Validation};
use crate::node::Event;
use crate::objects::Key;
use crate::sources::{Refusal, Wanted};
use crate::time::Instant;

use super::{Engine, requests};

/// The plural of the kind, as in URLs.
pub(super) const RESOURCE: &str = "podpresets";

/// As messages name it.
const QUALIFIED: &str = "podpresets.settings.k8s.io";

/// Bytes that presets may add to the object of a pod: what is added is kept for each pod and each of its
/// containers, and a preset is written once for all of them.
const ROOM: usize = 64 * 1024;

/// The reason of the event that tells of presets which contradict a pod, or each other.
const CONFLICT: &str = "PodPresetConflict";

impl Engine {
    /// Shows the presets that there are now. What is said of those that are not.
    pub(super) fn read_presets(&mut self) -> Vec<Refusal> {
        let (presets, refusals) = self.shell.sources.borrow().presets();
        for name in self.presets.keys().filter(|name| !presets.contains_key(*name)) {
            self.shell.objects.delete(&key(&name.0, &name.1));
        }
        for (name, (preset, _)) in &presets {
            let known = self.presets.get(name).is_some_and(|(known, _)| Rc::ptr_eq(known, preset));
            if !known {
                self.shell.objects.put(key(&name.0, &name.1), self.shown_preset(preset));
            }
        }
        self.presets = presets;
        refusals
    }

    /// Takes a preset from the API: answered when it is durable.
    pub(super) fn accept_preset(
        &mut self,
        mut object: Value,
        validation: FieldValidation,
        dry_run: bool,
        new: bool,
        reply: Reply<Accepted>,
    ) {
        let admitted = self.own(&mut object).and_then(|()| {
            manifest::admit_preset(object, requests::how(validation), &self.shell.config.node_name)
                .map_err(|error| requests::refused(&error))
        });
        let preset = match admitted {
            Ok(preset) => preset,
            Err(status) => return drop(reply.try_send(Err(status))),
        };
        let path = self.preset_path(&preset.namespace, &preset.name);
        let known = self.presets.get(&(preset.namespace.clone(), preset.name.clone()));
        let shown = |object, applied| Accepted { object, applied, warnings: preset.warnings.clone() };
        let applied = match known {
            Some(_) if new => {
                return drop(reply.try_send(Err(Status::already_exists(QUALIFIED, &preset.name))));
            }
            Some((_, source)) if *source != path => {
                let status = defined_by(&preset.name, source);
                return drop(reply.try_send(Err(status)));
            }
            Some((known, _)) if requests::same(&known.object.to_string(), &preset.object) => {
                let known = self.shown_preset(known);
                return drop(reply.try_send(Ok(shown(known, Outcome::Unchanged))));
            }
            Some(_) => Outcome::Configured,
            None => Outcome::Created,
        };
        if dry_run {
            return drop(reply.try_send(Ok(shown(preset.object.clone(), applied))));
        }
        let bytes = serde_json::to_vec_pretty(&preset.object).expect("an object that was JSON before");
        let fault = self.shell.fault.clone();
        let kept = {
            let path = path.clone();
            self.shell.storage.run(move || crate::store::replace(&path, &bytes, &*fault))
        };
        self.shell.then(kept, move |engine, kept| {
            let answer = match kept {
                Ok(()) => {
                    engine.read_sources();
                    engine.publish_changed();
                    let object = engine.preset_object(&preset.namespace, &preset.name);
                    let object = object.unwrap_or(preset.object);
                    Ok(Accepted { object, applied, warnings: preset.warnings })
                }
                Err(error) => Err(Status::internal(format!("failed to write {}: {error}", path.display()))),
            };
            let _ = reply.try_send(answer);
        });
    }

    /// Removes a preset. What it was applied to stays as it is.
    pub(super) fn delete_preset(
        &mut self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        dry_run: bool,
        reply: Reply<Value>,
    ) {
        let known = self.presets.get(&(Rc::from(namespace), Rc::from(name)));
        let object = self.preset_object(namespace, name);
        let (Some((preset, source)), Some(object)) = (known, object) else {
            return drop(reply.try_send(Err(Status::not_found(QUALIFIED, name))));
        };
        let its = preset.object["metadata"]["uid"].as_str().unwrap_or_default();
        if let Some(uid) = uid.filter(|uid| *uid != its) {
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {its}");
            return drop(reply.try_send(Err(Status::conflict(QUALIFIED, name, &why))));
        }
        if *source != self.preset_path(namespace, name) {
            return drop(reply.try_send(Err(defined_by(name, source))));
        }
        if dry_run {
            return drop(reply.try_send(Ok(object)));
        }
        let (fault, source) = (self.shell.fault.clone(), source.clone());
        let removed = {
            let source = source.clone();
            self.shell.storage.run(move || crate::store::remove(&source, &*fault))
        };
        self.shell.then(removed, move |engine, removed| {
            let answer = match removed {
                Ok(()) => {
                    engine.read_sources();
                    engine.publish_changed();
                    Ok(object)
                }
                Err(error) => {
                    Err(Status::internal(format!("failed to remove {}: {error}", source.display())))
                }
            };
            let _ = reply.try_send(answer);
        });
    }

    /// Pods' files have one underscore in their names.
    fn preset_path(&self, namespace: &str, name: &str) -> PathBuf {
        self.shell.paths.applied_manifests().join(format!("podpreset_{namespace}_{name}.json"))
    }

    fn preset_object(&self, namespace: &str, name: &str) -> Option<Value> {
        let shown = self.shell.objects.get(&key(namespace, name))?;
        serde_json::from_str(&shown.json).ok()
    }

    /// The object as it is shown: created when it was first seen.
    fn shown_preset(&self, preset: &Preset) -> Value {
        let mut object = preset.object.clone();
        let metadata = &mut object["metadata"];
        if metadata.get("creationTimestamp").is_none_or(Value::is_null) {
            let shown = self.shell.objects.get(&key(&preset.namespace, &preset.name));
            let shown = shown.and_then(|shown| serde_json::from_str::<Value>(&shown.json).ok());
            let created = shown.map(|mut shown| shown["metadata"]["creationTimestamp"].take());
            metadata["creationTimestamp"] = created
                .filter(Value::is_string)
                .unwrap_or_else(|| self.shell.anchor.get().timestamp(Instant::now()).to_string().into());
        }
        object
    }

    /// `new` as it is admitted: as it was, if it was before (`recorded`), or with all presets that are for
    /// it now. If these contradict it or each other, with none, and that is told.
    pub(super) fn with_presets(&self, new: Rc<Wanted>, recorded: bool) -> (Rc<Wanted>, Option<Event>) {
        let uid = &new.pod.uid;
        let known = self.node.index_of(uid).and_then(|index| self.shell.wanted(index));
        let presets: Vec<Applied> = match known {
            Some(known) => known.presets.to_vec(),
            None if recorded => self.shell.records.presets(&uid.0),
            None => return self.admit_with_presets(new),
        };
        match self.inject(&new, presets) {
            Ok(injected) => (injected.unwrap_or(new), None),
            Err(error) => {
                log::error!("{}/{}: {error}; it goes on without", new.pod.namespace, new.pod.name);
                (new, None)
            }
        }
    }

    fn admit_with_presets(&self, new: Rc<Wanted>) -> (Rc<Wanted>, Option<Event>) {
        if self.presets.is_empty() {
            return (new, None);
        }
        let Ok(object) = serde_json::from_str::<Value>(new.object.get()) else { return (new, None) };
        let for_it = self.presets.values().filter(|(preset, _)| preset.is_for(&object));
        let presets: Vec<Applied> = for_it
            .map(|(preset, _)| {
                let shown = self.shell.objects.get(&key(&preset.namespace, &preset.name));
                preset.applied(shown.map_or(0, |shown| shown.version))
            })
            .collect();
        let names: Vec<String> = presets.iter().map(|preset| preset.name.clone()).collect();
        match self.inject(&new, presets) {
            Ok(injected) => (injected.unwrap_or(new), None),
            Err(error) => {
                let message = format!(
                    "conflict occurred while applying podpresets: {} on pod: {} err: {error}",
                    names.join(","),
                    new.pod.name
                );
                let event =
                    Event { warning: true, reason: CONFLICT, message: message.into(), container: None };
                (new, Some(event))
            }
        }
    }

    /// `wanted` with `presets`; `None` where there are none.
    fn inject(&self, wanted: &Wanted, presets: Vec<Applied>) -> Result<Option<Rc<Wanted>>, String> {
        if presets.is_empty() {
            return Ok(None);
        }
        let mut object = serde_json::from_str(wanted.object.get()).map_err(|error| error.to_string())?;
        manifest::inject(&mut object, &presets)?;
        let manifest = manifest::admit(object, Validation::Ignore, &self.shell.config.node_name)
            .map_err(|error| error.to_string())?;
        let injected = wanted.with_presets(manifest, presets.into());
        let kept: usize = injected.presets.iter().map(|preset| preset.spec.to_string().len()).sum();
        let added = injected.object.get().len().saturating_sub(wanted.object.get().len());
        if added.max(kept) > ROOM {
            return Err(format!("they add more than {} KiB to it", ROOM / 1024));
        }
        Ok(Some(Rc::new(injected)))
    }
}

fn defined_by(name: &str, file: &Path) -> Status {
    Status::forbidden(format!(
        "{QUALIFIED} \"{name}\" is forbidden: it is defined by {}; change that file",
        file.display()
    ))
}

fn key(namespace: &str, name: &str) -> Key {
    Key::new(RESOURCE, namespace, name)
}
