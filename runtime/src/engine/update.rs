//! Changes of a pod that is there: in place, where it stays the same pod, and in its status by
//! others than its node.

use std::rc::Rc;

use serde_json::Value;

use crate::api::{Accepted, Applied, Change, FieldValidation, Part, Reply, Status};
use crate::manifest::update::{self, Update};
use crate::manifest::{self, Manifest, Validation};
use crate::node::{Observation, PodIndex, PodObservation};
use crate::objects::Key;
use crate::registry::Wanted;
use crate::spec::Uid;

use super::Engine;
use super::sent::{how, refused, strip};

/// What is asked for.
pub(super) struct Updating {
    pub(super) change: Change,
    pub(super) part: Part,
    pub(super) validation: FieldValidation,
    pub(super) dry_run: bool,
}

impl Engine {
    pub(super) fn update(&mut self, namespace: &str, name: &str, asked: Updating, reply: Reply<Accepted>) {
        match self.try_update(namespace, name, asked) {
            Ok(Updated::Now(accepted)) => drop(reply.try_send(Ok(accepted))),
            Ok(Updated::Never(manifest)) => {
                let awaited = self.awaited_images(&manifest.pod);
                let Manifest { object, warnings, .. } = *manifest;
                let accepted = Accepted { object, applied: Applied::Configured, warnings };
                self.answer_with_images(accepted, awaited, reply);
            }
            Ok(Updated::WhenKept(manifest)) => self.keep(*manifest, Applied::Configured, reply),
            Err(status) => drop(reply.try_send(Err(status))),
        }
    }

    /// Whether what is asked of a pod next must wait for what it is to be.
    pub(super) fn set_updating(&self, uid: &Uid, updating: bool) {
        let mut pods = self.shell.pods.borrow_mut();
        for entry in pods.values_mut().filter(|entry| entry.wanted.pod.uid == *uid) {
            entry.updating = updating;
        }
    }

    fn try_update(&mut self, namespace: &str, name: &str, asked: Updating) -> Result<Updated, Status> {
        let missing = || Status::not_found("pods", name);
        let index = self.shown(namespace, name).ok_or_else(missing)?;
        let current = self.current(index, namespace, name)?;
        let changed = asked.change.apply(&current)?;
        preconditions(&current, &changed, ("pods", name))?;
        match asked.part {
            Part::Status => self.update_status(index, &current, changed, asked.validation, asked.dry_run),
            Part::Whole => self.update_whole(index, &current, changed, asked.validation, asked.dry_run),
        }
    }

    /// A pod as it is shown, with the version that it is shown in.
    pub(super) fn current(&self, index: PodIndex, namespace: &str, name: &str) -> Result<Value, Status> {
        let mut current = self.object(index).ok_or_else(|| Status::not_found("pods", name))?;
        let version = self.shell.objects.get(&Key::new("pods", namespace, name)).map(|shown| shown.version);
        if let Some(version) = version {
            current["metadata"]["resourceVersion"] = version.to_string().into();
        }
        Ok(current)
    }

    fn update_status(
        &mut self,
        index: PodIndex,
        current: &Value,
        changed: Value,
        validation: FieldValidation,
        dry_run: bool,
    ) -> Result<Updated, Status> {
        let update = update::status(current, &changed).map_err(|error| refused(&error))?;
        let warnings = match validation {
            FieldValidation::Strict if !update.warnings.is_empty() => {
                let all = update.warnings.join(", ");
                return Err(Status::bad_request(format!("strict decoding error: {all}")));
            }
            FieldValidation::Ignore => Vec::new(),
            FieldValidation::Warn | FieldValidation::Strict => update.warnings,
        };
        let given: Rc<[_]> = update.given.into();
        let is_same = self.node.pod(index).is_some_and(|pod| *pod.given() == given);
        let applied = if is_same { Applied::Unchanged } else { Applied::Configured };
        if dry_run {
            return Ok(Updated::Now(Accepted { object: changed, applied, warnings }));
        }
        if !is_same {
            self.observe(Observation::Of(index, PodObservation::Given { conditions: given }));
            self.publish_changed();
        }
        Ok(Updated::Now(self.accepted(index, applied, warnings)?))
    }

    /// A change of all but the status: only what makes no other pod of it.
    fn update_whole(
        &mut self,
        index: PodIndex,
        current: &Value,
        mut changed: Value,
        validation: FieldValidation,
        dry_run: bool,
    ) -> Result<Updated, Status> {
        let wanted = self.shell.wanted(index).ok_or_else(|| Status::internal("the pod is gone"))?;
        let (namespace, name) = (&wanted.pod.namespace, &wanted.pod.name);
        if self.shell.pods.borrow().get(&index).is_some_and(|entry| entry.updating) {
            return Err(Status::conflict("pods", name, MODIFIED));
        }
        let told = self.told.get(&(namespace.clone(), name.clone()));
        let told = told.filter(|told| told.pod.uid == wanted.pod.uid).cloned();
        let Some(told) = told else {
            return Err(Status::conflict("pods", name, "the pod is being deleted"));
        };
        update::metadata(current, &changed).map_err(|error| refused(&error))?;
        if let Some(held) = self.holds.of(&wanted.pod.uid) {
            let why = format!(
                "another version of the pod, from {}, waits for its images: change that, or remove it first",
                held.new.source.display()
            );
            return Err(Status::conflict("pods", name, &why));
        }
        if let Some(fields) = changed.as_object_mut() {
            fields.remove("status");
        }
        // They change by a subresource of their own, and are in no manifest.
        let known = ephemeral_containers(current).to_vec();
        let changes_ephemeral = ephemeral_containers(&changed) != known;
        self.leave_out_known(&mut changed);
        if let Some(metadata) = changed.get_mut("metadata").and_then(Value::as_object_mut) {
            strip(metadata);
            metadata.insert("uid".into(), (*told.pod.uid.0).into());
        }
        let mut manifest = manifest::admit_update(changed, how(validation), &self.shell.config.node_name)
            .map_err(|error| refused(&error))?;
        let mut old: Value = serde_json::from_str(told.object.get()).map_err(Status::internal)?;
        if changes_ephemeral && !known.is_empty() {
            old["spec"]["ephemeralContainers"] = known.into();
        }
        manifest.warnings = manifest::new_warnings(manifest.warnings, &old);
        told.leave_out_priority(&mut old);
        match update::compare(&old, &manifest.object) {
            Update::Nothing => {
                Ok(Updated::Now(self.accepted(index, Applied::Unchanged, manifest.warnings)?))
            }
            Update::Other(_) | Update::InPlace { .. }
                if told.source != self.applied_path(namespace, name) =>
            {
                Err(self.defined_by_file(name, &told.source, "edit that file"))
            }
            Update::Other(error) => Err(refused(&error)),
            Update::InPlace { .. } => {
                let manifest = self.as_update_of(&told, manifest)?;
                if dry_run {
                    return Ok(Updated::Never(Box::new(manifest)));
                }
                Ok(Updated::WhenKept(Box::new(manifest)))
            }
        }
    }

    /// An admitted object that takes the place of `old`: with its identity, if it may be the same pod.
    pub(super) fn as_update_of(&self, old: &Wanted, manifest: Manifest) -> Result<Manifest, Status> {
        let mut before: Value = serde_json::from_str(old.object.get()).map_err(Status::internal)?;
        old.leave_out_priority(&mut before);
        update::no_new_gates(&before, &manifest.object).map_err(|error| refused(&error))?;
        // What comes from a file or a client knows nothing of presets; what was read from here, and
        // patched, has them. Either would be given those of `old`.
        let mut after = manifest.object.clone();
        if !old.presets.is_empty() && manifest::inject(&mut after, &old.presets).is_err() {
            return Ok(manifest);
        }
        let applied = old.source == self.applied_path(&old.pod.namespace, &old.pod.name);
        let spec = match update::compare(&before, &after) {
            _ if !applied => return Ok(manifest),
            Update::Other(_) => return Ok(manifest),
            Update::Nothing => false,
            Update::InPlace { spec } => spec,
        };
        let Manifest { mut object, warnings, .. } = manifest;
        let generation = old.pod.generation + u64::from(spec);
        let metadata = &mut object["metadata"];
        metadata["uid"] = (*old.pod.uid.0).into();
        metadata["generation"] = generation.into();
        match before["metadata"].get("creationTimestamp") {
            Some(created) => metadata["creationTimestamp"] = created.clone(),
            None => drop(metadata.as_object_mut().map(|metadata| metadata.remove("creationTimestamp"))),
        }
        let admitted = manifest::admit(object, Validation::Ignore, &self.shell.config.node_name)
            .map_err(|error| refused(&error))?;
        Ok(Manifest { warnings, ..admitted })
    }

    fn accepted(&self, index: PodIndex, applied: Applied, warnings: Vec<String>) -> Result<Accepted, Status> {
        let object = self.object(index).ok_or_else(|| Status::internal("the pod is gone"))?;
        Ok(Accepted { object, applied, warnings })
    }
}

/// `spec.ephemeralContainers`; empty if there are none.
fn ephemeral_containers(pod: &Value) -> &[Value] {
    pod["spec"]["ephemeralContainers"].as_array().map_or(&[], Vec::as_slice)
}

/// What came of it.
enum Updated {
    /// It is so.
    Now(Accepted),
    /// Answers a dry run with the object as it would become.
    Never(Box<Manifest>),
    /// It is to be made durable first.
    WhenKept(Box<Manifest>),
}

/// kubectl reads the pod again then, and patches that.
pub(super) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// The words for a `metadata.uid` that is another object's.
pub(super) fn another_uid(asked: &str, present: &str) -> String {
    format!("Precondition failed: UID in precondition: {asked}, UID in object meta: {present}")
}

/// Whoever names a version or a uid means that one and no other.
pub(super) fn preconditions(
    current: &Value,
    changed: &Value,
    (resource, name): (&str, &str),
) -> Result<(), Status> {
    let of = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (uid, asked) = (of(current, "uid"), of(changed, "uid"));
    if !asked.is_empty() && asked != uid {
        return Err(Status::conflict(resource, name, &another_uid(&asked, &uid)));
    }
    let (version, asked) = (of(current, "resourceVersion"), of(changed, "resourceVersion"));
    if !asked.is_empty() && asked != version {
        return Err(Status::conflict(resource, name, MODIFIED));
    }
    Ok(())
}
