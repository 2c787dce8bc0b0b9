//! Requests of clients about pods: apply, update and delete.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use super::admission::{Base, admit, as_update_of, with_identity};
use super::difference::forbidden;
use super::preconditions;
use super::present::{Present, ReplacedPod, as_published};
use super::request::{RequestOptions, refused, same, strip};
use super::sources::SourceFile;
use super::{
    Accepted, Applied, Change, Decision, FieldValidation, Part, PodName, Preconditions, Registry, Status,
    Wanted, Write, Written, ephemeral,
};
use crate::objects::Key;
use nodlet_core::spec::{Pod, Role, Uid};
use nodlet_kube::manifest::update::{self, Existing, Update};
use nodlet_kube::manifest::{self, Manifest};

/// A change of a pod.
#[derive(Debug)]
pub struct Updating {
    /// The change.
    pub change: Change,
    /// The part of the pod that the change is limited to.
    pub part: Part,
    /// The handling of unknown and duplicate fields.
    pub validation: FieldValidation,
    /// Whether to change nothing, and only return the outcome.
    pub dry_run: bool,
}

/// The decision on the deletion of a pod.
#[derive(Debug)]
pub struct Deletion {
    /// The pod whose file must be removed first; none if the file is already gone.
    pub desired: Option<Rc<Wanted>>,
    /// How the pod is stopped then.
    pub stop: Stop,
    /// The pod that was to replace it. It is stopped with its own grace period, unless the other ends before its file
    /// is removed.
    pub replacement: Option<Uid>,
}

/// How a pod is stopped that no source wants any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The grace period, if it is not the pod's own.
    pub grace: Option<Duration>,
    /// The pod is hidden at once: the API no longer returns it, while its processes may still end.
    pub is_forced: bool,
}

impl Stop {
    /// Hides the pod at once; its processes have the grace period of the pod.
    pub const FORCED: Stop = Stop { grace: None, is_forced: true };

    /// Stops a pod within `grace`. A grace period of zero is a deletion by force.
    pub fn within(grace: Option<Duration>) -> Stop {
        if grace == Some(Duration::ZERO) { Stop::FORCED } else { Stop { grace, is_forced: false } }
    }
}

impl Registry {
    /// Namespace and name of a prepared pod.
    pub fn name_of(object: &Value) -> PodName {
        let metadata = &object["metadata"];
        let text = |field: &str| metadata[field].as_str().filter(|text| !text.is_empty());
        (text("namespace").unwrap_or("default").into(), text("name").unwrap_or_default().into())
    }

    /// Decides on a pod that a client sends, after [`Registry::prepare`].
    ///
    /// # Errors
    /// The pod is invalid, or must not exist.
    pub fn apply(
        &mut self,
        mut object: Value,
        options: RequestOptions,
        known: &ReplacedPod,
    ) -> Result<Decision, Status> {
        if let Some(published) = &known.published {
            remove_known_fields(published, &mut object);
        }
        // Kubernetes admits a pod before it validates it.
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let refusal = if options.new { self.policy().refusal(&object) } else { None };
        let manifest =
            manifest::read_new(object, options.validation, &self.node).map_err(|error| match refusal {
                Some(why) if error.is_of_rules() => Status::forbidden(forbidden(&name, &why)),
                Some(_) | None => refused(&error),
            })?;
        let (mut manifest, applied) = self.outcome_of_pod(manifest, options.new, known)?;
        manifest.warnings.extend(self.overridden(&manifest.pod));
        manifest.warnings.extend(self.allowed_annotations.refusal(&manifest.pod));
        let mut file = None;
        if applied != Applied::Unchanged {
            let desired = self.desired.get(&(manifest.pod.namespace.clone(), manifest.pod.name.clone()));
            // An update gets its presets again when its file is read.
            let base = match desired.filter(|desired| desired.pod.uid == manifest.pod.uid) {
                Some(desired) => {
                    Base::Before { presets: Vec::new(), priority: desired.priority.as_deref().cloned() }
                }
                None => Base::New,
            };
            let path = self.applied_path(&manifest.pod.namespace, &manifest.pod.name);
            let wanted = Wanted::of_own_file(&manifest, &path);
            let admitted = admit(base, &wanted, &self.policy())
                .map_err(|why| Status::forbidden(forbidden(&manifest.pod.name, &why.to_string())))?;
            if options.dry_run {
                if let Some(priority) = &admitted.wanted.priority {
                    priority.show(&mut manifest.object);
                }
                self.check_room(&path, ("pods", &manifest.pod.name), &manifest.object)?;
            }
            file = Some(SourceFile::of_pod(wanted)).filter(|_| !options.dry_run);
        }
        match file {
            Some(file) => self.write_pod(manifest, file, applied),
            None => {
                let Manifest { pod, mut object, warnings } = manifest;
                if applied == Applied::Created {
                    object["metadata"]["generation"] = 1.into();
                    object["status"] = json!({"phase": "Pending", "qosClass": pod.spec.qos_class().as_str()});
                }
                Ok(Decision::Reply(Accepted { object, applied, warnings }, Some(pod)))
            }
        }
    }

    /// Returns the outcome of applying a pod, and the pod with its resulting identity.
    fn outcome_of_pod(
        &self,
        manifest: Manifest,
        is_new: bool,
        known: &ReplacedPod,
    ) -> Result<(Manifest, Applied), Status> {
        let name = (manifest.pod.namespace.clone(), manifest.pod.name.clone());
        let desired = self.desired.get(&name);
        let Some(old) = known.waiting.as_ref().or(desired) else {
            let is_published = self.objects.get(&Key::new("pods", &name.0, &name.1)).is_some();
            if is_new && is_published {
                let mut status = Status::already_exists("pods", &name.1);
                status.message = format!("object is being deleted: {}", status.message);
                return Err(status);
            }
            return Ok((manifest, Applied::Created));
        };
        if is_new {
            return Err(Status::already_exists("pods", &name.1));
        }
        // The running pod has this spec already, so that nothing is written, unless the pod comes from
        // another file, which may be removed later.
        if self.overridden(&manifest.pod).is_none() && same(old.as_written().get(), &manifest.object) {
            let object = serde_json::from_str(old.object.get()).map_err(Status::internal)?;
            return Ok((Manifest { object, ..manifest }, Applied::Unchanged));
        }
        // A change back to the spec of the running pod cancels the waiting change.
        if let Some(runs) = desired.filter(|runs| runs.pod.uid != old.pod.uid) {
            let updated = as_update_of(runs, self.is_applied(runs), manifest.clone())?;
            if updated.pod.uid == runs.pod.uid {
                return Ok((updated, Applied::Configured));
            }
        }
        let updated = as_update_of(old, self.is_applied(old), manifest.clone())?;
        // Another image for a finished pod makes it a new pod, which runs.
        if known.has_terminal_phase && updated.pod.generation != old.pod.generation {
            Ok((manifest, Applied::Configured))
        } else {
            Ok((updated, Applied::Configured))
        }
    }

    /// The decision to write the file of an applied pod, if the quota suffices.
    fn write_pod(&self, manifest: Manifest, file: SourceFile, applied: Applied) -> Result<Decision, Status> {
        let Manifest { pod, object, warnings } = manifest;
        let path = self.applied_path(&pod.namespace, &pod.name);
        let text = self.text_within_quota(&path, ("pods", &pod.name), &object)?;
        let (file, of) = (file.with_text(&text), Written::Pod(pod));
        Ok(Decision::Write(Box::new(Write { path, text, file, of, object, applied, warnings })))
    }

    /// The warning about a file that overrides an applied pod.
    fn overridden(&self, pod: &Pod) -> Option<String> {
        let path = self.applied_path(&pod.namespace, &pod.name);
        let file = self.sources.overriding(&path, &pod.namespace, &pod.name)?;
        Some(format!(
            "{} overrides this: pod \"{}\" is defined by that file until it is removed from it",
            file.display(),
            pod.name
        ))
    }

    /// Decides on a change of a published pod that keeps its identity.
    ///
    /// # Errors
    /// The pod does not exist, does not meet the preconditions, or does not allow the change.
    pub fn update(
        &mut self,
        name: &str,
        updating: Updating,
        present: Option<&Present>,
    ) -> Result<Decision, Status> {
        let present = present.ok_or_else(|| Status::not_found("pods", name))?;
        let current = self.current(present);
        let Updating { change, part, validation, dry_run } = updating;
        let replaces = matches!(change, Change::Replace(_));
        let mut changed = change.apply(&current)?;
        // A manifest that is sent again names no node.
        if replaces && changed["spec"].is_object() && changed["spec"]["nodeName"].is_null() {
            changed["spec"]["nodeName"] = current["spec"]["nodeName"].clone();
        }
        preconditions::check(&current, &changed, ("pods", name))?;
        match part {
            Part::Status => update_status(&current, changed, validation, dry_run, present),
            Part::Whole => self.update_spec(&current, changed, (validation, dry_run), false, present),
            Part::Resize => self.update_spec(&current, changed, (validation, dry_run), true, present),
        }
    }

    /// Decides on a change of everything except the status, within the fields that may change in place, or on a
    /// resize.
    fn update_spec(
        &mut self,
        current: &Value,
        mut changed: Value,
        (validation, dry_run): (FieldValidation, bool),
        resizes: bool,
        present: &Present,
    ) -> Result<Decision, Status> {
        let Pod { namespace, name, uid, .. } = &*present.wanted.pod;
        let desired = self.desired.get(&(namespace.clone(), name.clone()));
        let Some(desired) = desired.filter(|desired| desired.pod.uid == *uid).cloned() else {
            return Err(Status::conflict("pods", name, "the pod is being deleted"));
        };
        if resizes {
            update::keep_all_but_resources(current, &mut changed);
        }
        if let Some(waiting) = &present.waiting {
            let why = format!(
                "another version of the pod, from {}, waits for its images: change that version, or remove it first",
                waiting.source.display()
            );
            return Err(Status::conflict("pods", name, &why));
        }
        if let Some(fields) = changed.as_object_mut() {
            fields.remove("status");
        }
        // Ephemeral containers change through their own subresource, and are in no manifest.
        let known = ephemeral_containers(current).to_vec();
        let changes_ephemeral = ephemeral_containers(&changed) != known;
        let mut old: Value = serde_json::from_str(desired.object.get()).map_err(Status::internal)?;
        if changes_ephemeral && !known.is_empty() {
            old["spec"]["ephemeralContainers"] = known.into();
        }
        desired.remove_computed_priority(&mut old);
        let existing =
            (self.is_applied(&desired) && !resizes).then(|| Existing::new(current, &changed, &old));
        if existing.is_none() {
            update::metadata(current, &changed).map_err(|error| refused(&error))?;
        }
        remove_known_fields(&present.wanted, &mut changed);
        if let Some(metadata) = changed.get_mut("metadata").and_then(Value::as_object_mut) {
            strip(metadata);
            metadata.insert("uid".into(), (*uid.0).into());
        }
        let mut manifest = manifest::read_update(changed, validation, &self.node, existing)
            .map_err(|error| refused(&error))?;
        manifest.warnings = manifest::new_warnings(manifest.warnings, &old);
        let refusal = |pod: &Pod| self.allowed_annotations.refusal(pod);
        let before = refusal(&desired.pod);
        manifest.warnings.extend(refusal(&manifest.pod).filter(|why| before.as_ref() != Some(why)));
        let compared = if resizes {
            let class = desired.pod.spec.qos_class();
            let left = (class != manifest.pod.spec.qos_class()).then(|| class.as_str());
            update::resize(&old, &manifest.object, left)
        } else {
            update::compare(&old, &manifest.object)
        };
        match compared {
            Update::Nothing => Ok(Decision::Published(manifest.warnings)),
            Update::Other(_) | Update::InPlace { .. } if !self.is_applied(&desired) => {
                Err(self.defined_by_file(name, &desired.source, "edit that file"))
            }
            Update::Other(error) => Err(refused(&error)),
            Update::InPlace { spec } => {
                if resizes {
                    let limits = self.policy().check_limits(&manifest.object);
                    limits.map_err(|why| Status::forbidden(forbidden(name, &why)))?;
                }
                let manifest = if resizes {
                    with_identity(&desired, &old, manifest, spec)
                } else {
                    as_update_of(&desired, true, manifest)?
                };
                if !dry_run {
                    let path = self.applied_path(namespace, &manifest.pod.name);
                    let file = SourceFile::of_pod(Wanted::of_own_file(&manifest, &path));
                    return self.write_pod(manifest, file, Applied::Configured);
                }
                let Manifest { pod, mut object, warnings } = manifest;
                if let Some(priority) = &desired.priority {
                    priority.show(&mut object);
                }
                as_published(current, &mut object);
                let accepted = Accepted { object, applied: Applied::Configured, warnings };
                Ok(Decision::Reply(accepted, Some(pod)))
            }
        }
    }

    /// Decides on the deletion of the pod that is published under a name.
    ///
    /// # Errors
    /// The pod does not exist, does not meet the preconditions, or is defined by a file.
    pub fn delete(
        &self,
        name: &str,
        preconditions: &Preconditions,
        grace: Option<u64>,
        present: Option<&Present>,
    ) -> Result<Deletion, Status> {
        let present = present.ok_or_else(|| Status::not_found("pods", name))?;
        preconditions.check("Pod", name, &self.current(present))?;
        let pod = &present.wanted.pod;
        // An applied replacement that waits for the end of the pod is deleted with it, unless the client
        // names the UID of the pod that ends.
        let replaces = |desired: &Wanted| self.is_applied(desired) && preconditions.uid.is_none();
        let desired = self.desired.get(&(pod.namespace.clone(), pod.name.clone()));
        let desired = desired.filter(|desired| desired.pod.uid == pod.uid || replaces(desired));
        if let Some(desired) = desired.filter(|desired| !self.is_applied(desired)) {
            let remedy = "remove that file, or the pod from it";
            return Err(self.defined_by_file(name, &desired.source, remedy));
        }
        // A pod's own grace period of zero has the same effect as a requested one (`BeforeDelete`).
        let own = Some(pod.spec.termination_grace_period).filter(Duration::is_zero);
        let stop = Stop::within(grace.map(Duration::from_secs).or(own));
        let replacement = desired.map(|desired| &desired.pod.uid).filter(|uid| **uid != pod.uid);
        Ok(Deletion { desired: desired.cloned(), stop, replacement: replacement.cloned() })
    }

    /// Decides whether the containers of a pod can be restarted, or the one with this name. Returns the UID of the pod.
    ///
    /// # Errors
    /// The pod does not exist, has finished or is being deleted, or has no such container.
    pub fn restart(
        &self,
        name: &str,
        container: Option<&str>,
        present: Option<&Present>,
    ) -> Result<Uid, Status> {
        let present = present.ok_or_else(|| Status::not_found("pods", name))?;
        let pod = &present.wanted.pod;
        if present.is_unwanted {
            return Err(Status::conflict("pods", name, "the pod is being deleted"));
        }
        if present.has_terminal_phase {
            return Err(Status::conflict(
                "pods",
                name,
                "the pod has finished, and its containers do not run again: delete it, and apply its manifest",
            ));
        }
        if let Some(container) = container {
            let indexes = pod.spec.init_indexes().chain(pod.spec.regular_indexes());
            let mut named = indexes.filter(|index| *pod.spec.container(*index).name == *container);
            match named.next().map(|index| pod.spec.role(index)) {
                Some(Role::Regular | Role::Sidecar) => {}
                Some(Role::Init | Role::Ephemeral) => {
                    return Err(Status::bad_request(format!(
                        "container {container} is an init container, and init containers do not run again"
                    )));
                }
                None => {
                    return Err(Status::bad_request(format!(
                        "container {container} is not valid for pod {name}"
                    )));
                }
            }
        }
        Ok(pod.uid.clone())
    }

    /// Whether a finished pod may be removed when there are more than are kept: only a pod that a client applied. A
    /// file of the user stays, and with it its pod.
    pub fn may_collect(&self, wanted: &Wanted) -> bool {
        self.is_applied(wanted)
    }

    /// Rejects a change of a pod that no client defines, with the hint of its source, or else with `remedy`.
    fn defined_by_file(&self, name: &str, file: &Path, remedy: &str) -> Status {
        let hint = self.sources.directory_of(file).and_then(|directory| directory.hint.as_deref());
        Status::forbidden(format!(
            "pods \"{name}\" is forbidden: it is defined by {}; {}",
            file.display(),
            hint.unwrap_or(remedy)
        ))
    }
}

/// Decides on a change of client conditions.
fn update_status(
    current: &Value,
    changed: Value,
    validation: FieldValidation,
    dry_run: bool,
    present: &Present,
) -> Result<Decision, Status> {
    let update = update::status(current, &changed).map_err(|error| refused(&error))?;
    let warnings = match validation {
        FieldValidation::Strict if !update.warnings.is_empty() => {
            let all = update.warnings.join(", ");
            return Err(Status::bad_request(format!("strict decoding error: {all}")));
        }
        FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn | FieldValidation::Strict => update.warnings,
    };
    let new: Rc<[_]> = update.client_conditions.into();
    let is_same = present.client_conditions == new;
    if dry_run {
        let applied = if is_same { Applied::Unchanged } else { Applied::Configured };
        return Ok(Decision::Reply(Accepted { object: changed, applied, warnings }, None));
    }
    Ok(if is_same { Decision::Published(warnings) } else { Decision::ClientConditions(new, warnings) })
}

/// Removes the pod's ephemeral containers and its computed priority from an applied object, since a client that
/// read the object and sends it back does not request them.
fn remove_known_fields(known: &Wanted, object: &mut Value) {
    known.remove_computed_priority(object);
    if !known.pod.spec.ephemeral_containers.is_empty()
        && object["spec"]["ephemeralContainers"] == ephemeral::list_of(known)
        && let Some(spec) = object["spec"].as_object_mut()
    {
        spec.remove("ephemeralContainers");
    }
}

/// `spec.ephemeralContainers`; empty if there are none.
fn ephemeral_containers(pod: &Value) -> &[Value] {
    pod["spec"]["ephemeralContainers"].as_array().map_or(&[], Vec::as_slice)
}
