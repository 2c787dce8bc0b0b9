//! PodPresets and PriorityClasses: which there are, how they come and go, and what presets add
//! to a pod when it is admitted, once. What was applied is kept with the pod, on flash and beside
//! its supervisor, so that neither a later preset nor a later agent changes it.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::{Value, json};

use crate::api::{Accepted, Applied as Outcome, Change, FieldValidation, Preconditions, Reply, Status};
use crate::manifest::{self, Applied, Definition, Kind, Validation, priority};
use crate::node::Event;
use crate::objects::Key;
use crate::registry::{Refusal, Wanted};
use crate::time::Instant;

use super::update::{Updating, preconditions};
use super::{Engine, sent};

/// Bytes that presets may add to the object of a pod: what is added is kept for each pod and each of its
/// containers, and a preset is written once for all of them.
const ROOM: usize = 64 * 1024;

/// The reason of the event that tells of presets which contradict a pod, or each other.
const CONFLICT: &str = "PodPresetConflict";

/// Kind, namespace and name.
type Name = (Kind, Rc<str>, Rc<str>);

impl Engine {
    /// Shows what is defined now besides pods. What is said of that which is not.
    pub(super) fn read_definitions(&mut self) -> Vec<Refusal> {
        let (definitions, mut refusals) = self.registry.sources.definitions();
        Self::tell_defaults(&definitions, &mut refusals);
        for name in self.definitions.keys().filter(|name| !definitions.contains_key(*name)) {
            self.shell.objects.delete(&key(name));
        }
        for (name, (definition, _)) in &definitions {
            let known = self.definitions.get(name).is_some_and(|(known, _)| Rc::ptr_eq(known, definition));
            if !known {
                self.shell.objects.put(key(name), self.shown_definition(definition));
            }
        }
        self.definitions = definitions;
        self.show_built_in_classes();
        refusals
    }

    /// Takes a definition from the API: answered when it is durable.
    pub(super) fn accept_definition(
        &mut self,
        kind: Kind,
        mut object: Value,
        (validation, dry_run, new): (FieldValidation, bool, bool),
        reply: Reply<Accepted>,
    ) {
        let version = self.check_version(kind.resource(), &object, new);
        let admitted = version.and_then(|()| self.own(&mut object)).and_then(|()| {
            let node = &self.shell.config.node_name;
            manifest::admit_definition(object, kind, sent::how(validation), node)
                .map_err(|error| sent::refused(&error))
        });
        let judged = admitted.and_then(|definition| Ok((self.outcome_of(&definition, new)?, definition)));
        let (applied, definition) = match judged {
            Ok(judged) => judged,
            Err(status) => return drop(reply.try_send(Err(status))),
        };
        let shown = |object, applied| Accepted { object, applied, warnings: definition.warnings.clone() };
        let name = definition.key();
        if applied == Outcome::Unchanged {
            let object = self.shown_as(&name).unwrap_or_else(|| definition.object.clone());
            return drop(reply.try_send(Ok(shown(object, applied))));
        }
        let (path, qualified) = (self.definition_path(&name), definition.kind.qualified());
        let called = (&*qualified, &*definition.name);
        if dry_run {
            let room = self.has_room(&path, called, &definition.object);
            return drop(reply.try_send(room.map(|()| shown(definition.object.clone(), applied))));
        }
        let bytes = match self.reserve(&path, called, &definition.object) {
            Ok(bytes) => bytes,
            Err(status) => return drop(reply.try_send(Err(status))),
        };
        self.write_reserved(path, bytes, move |engine, written| {
            let accepted = |()| {
                let object = engine.shown_as(&name).unwrap_or(definition.object);
                Accepted { object, applied, warnings: definition.warnings }
            };
            // A client that hung up has changed nothing about what it applied.
            let _ = reply.try_send(written.map(accepted));
        });
    }

    /// What it does to apply it, if that may be.
    fn outcome_of(&self, new: &Definition, is_new: bool) -> Result<Outcome, Status> {
        let (name, qualified) = (new.key(), new.kind.qualified());
        let known = self.definitions.get(&name);
        let shown = self.shown_as(&name);
        if is_new && shown.is_some() {
            return Err(Status::already_exists(&qualified, &new.name));
        }
        if let Some((_, source)) = known.filter(|(_, source)| *source != self.definition_path(&name)) {
            return Err(defined_by(&name, source));
        }
        if new.kind == Kind::PriorityClass {
            if let Some(old) = &shown {
                priority::check_update(old, &new.object).map_err(|error| sent::refused(&error))?;
            }
            let defaults = self.definitions.iter().filter(|(other, (class, _))| {
                **other != name
                    && other.0 == Kind::PriorityClass
                    && priority::class(&class.object).global_default
            });
            if let Some(((_, _, other), _)) = defaults.into_iter().next()
                && priority::class(&new.object).global_default
            {
                return Err(Status::forbidden(one_default(&new.name, other)));
            }
        }
        Ok(match known {
            Some((known, _)) if sent::same(&known.object.to_string(), &new.object) => Outcome::Unchanged,
            _ if shown.is_some() => Outcome::Configured,
            _ => Outcome::Created,
        })
    }

    /// Changes a definition that is there.
    pub(super) fn update_definition(
        &mut self,
        kind: Kind,
        name: &str,
        asked: Updating,
        reply: Reply<Accepted>,
    ) {
        let key = (kind, Rc::from(""), Rc::from(name));
        let changed = match self.shown_as(&key) {
            Some(current) => change(&current, asked.change, name),
            None => Err(Status::not_found(&kind.qualified(), name)),
        };
        match changed {
            Ok(changed) => {
                self.accept_definition(kind, changed, (asked.validation, asked.dry_run, false), reply);
            }
            Err(status) => drop(reply.try_send(Err(status))),
        }
    }

    /// Removes a definition. What pods were admitted with stays as it is.
    pub(super) fn delete_definition(
        &mut self,
        name: (Kind, &str, &str),
        preconditions: &Preconditions,
        dry_run: bool,
        reply: Reply<Value>,
    ) {
        let name: Name = (name.0, name.1.into(), name.2.into());
        let (object, source) = match self.deletable_definition(&name, preconditions) {
            Ok(found) => found,
            Err(status) => return drop(reply.try_send(Err(status))),
        };
        if dry_run {
            return drop(reply.try_send(Ok(object)));
        }
        let fault = self.shell.fault.clone();
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

    fn deletable_definition(
        &self,
        name: &Name,
        preconditions: &Preconditions,
    ) -> Result<(Value, PathBuf), Status> {
        let qualified = name.0.qualified();
        let object = self.shown_as(name).ok_or_else(|| Status::not_found(&qualified, &name.2))?;
        if name.0 == Kind::PriorityClass && priority::BUILT_IN.iter().any(|(known, ..)| **known == *name.2) {
            return Err(Status::forbidden(format!(
                "{qualified} \"{}\" is forbidden: this is a system priority class and cannot be deleted",
                name.2
            )));
        }
        preconditions.check(&name.0.qualified_kind(), &name.2, &object)?;
        let Some((_, source)) = self.definitions.get(name) else {
            return Err(Status::not_found(&qualified, &name.2));
        };
        if *source != self.definition_path(name) {
            return Err(defined_by(name, source));
        }
        Ok((object, source.clone()))
    }

    /// Of several default classes in files, that of the least value is the default; the others
    /// are classes like any other.
    fn tell_defaults(definitions: &crate::registry::DefinitionsByName, refusals: &mut Vec<Refusal>) {
        let mut defaults: Vec<(i32, &Name, &PathBuf)> = definitions
            .iter()
            .filter(|(name, _)| name.0 == Kind::PriorityClass)
            .map(|(name, (class, source))| (priority::class(&class.object), name, source))
            .filter(|(class, ..)| class.global_default)
            .map(|(class, name, source)| (class.value, name, source))
            .collect();
        defaults.sort();
        let Some(((_, first, _), others)) = defaults.split_first() else { return };
        for (_, name, source) in others {
            let message = format!(
                "{}: globalDefault of PriorityClass {} is not obeyed: {} is the default: its value is less, or its name comes first",
                source.display(),
                name.2,
                first.2
            );
            refusals.push(Refusal { source: (*source).clone(), pod: None, message });
        }
    }

    fn show_built_in_classes(&self) {
        for (name, value, description) in priority::BUILT_IN {
            let name: Name = (Kind::PriorityClass, "".into(), name.into());
            if self.definitions.contains_key(&name) || self.shell.objects.get(&key(&name)).is_some() {
                continue;
            }
            let created = self.shell.anchor.get().timestamp(self.shell.began).to_string();
            let object = json!({
                "apiVersion": Kind::PriorityClass.version(),
                "kind": Kind::PriorityClass.as_str(),
                "metadata": { "name": &*name.2, "uid": &*name.2, "creationTimestamp": created },
                "value": value,
                "description": description,
                "preemptionPolicy": "PreemptLowerPriority",
            });
            self.shell.objects.put(key(&name), object);
        }
    }

    /// Pods' files have one underscore in their names.
    fn definition_path(&self, name: &Name) -> PathBuf {
        let kind = name.0.as_str().to_lowercase();
        self.shell.paths.applied_manifests().join(format!("{kind}_{}_{}.json", name.1, name.2))
    }

    fn shown_as(&self, name: &Name) -> Option<Value> {
        let shown = self.shell.objects.get(&key(name))?;
        serde_json::from_str(&shown.json).ok()
    }

    /// The object as it is shown: created when it was first seen.
    fn shown_definition(&self, definition: &Definition) -> Value {
        let mut object = definition.object.clone();
        let metadata = &mut object["metadata"];
        if metadata.get("creationTimestamp").is_none_or(Value::is_null) {
            let created = self
                .shown_as(&definition.key())
                .map(|mut shown| shown["metadata"]["creationTimestamp"].take());
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
        if !self.definitions.keys().any(|name| name.0 == Kind::PodPreset) {
            return (new, None);
        }
        let Ok(object) = serde_json::from_str::<Value>(new.object.get()) else { return (new, None) };
        let for_it = self.definitions.values().filter(|(preset, _)| preset.is_for(&object));
        let presets: Vec<Applied> = for_it
            .map(|(preset, _)| {
                let shown = self.shell.objects.get(&key(&preset.key()));
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

/// A definition as it is asked for.
fn change(current: &Value, change: Change, name: &str) -> Result<Value, Status> {
    let mut changed = change.apply(current)?;
    let kind = current["kind"].as_str().and_then(Kind::named);
    preconditions(current, &changed, (&kind.map_or_else(String::new, Kind::qualified), name))?;
    if changed["metadata"]["name"] != *name {
        return Err(Status::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({name})",
            changed["metadata"]["name"]
        )));
    }
    for field in ["apiVersion", "kind"] {
        changed[field] = current[field].clone();
    }
    Ok(changed)
}

fn one_default(class: &str, other: &str) -> String {
    format!(
        "{} \"{class}\" is forbidden: PriorityClass {other} is already marked as default. Only one default can exist",
        Kind::PriorityClass.qualified()
    )
}

fn defined_by(name: &Name, file: &Path) -> Status {
    Status::forbidden(format!(
        "{} \"{}\" is forbidden: it is defined by {}; change that file",
        name.0.qualified(),
        name.2,
        file.display()
    ))
}

fn key(name: &Name) -> Key {
    Key::new(name.0.resource(), &name.1, &name.2)
}
