//! Ephemeral containers: given to a pod that is there, by the API alone. No manifest says them,
//! so they have a file of their own beside the pod's record, and go with the pod.
//!
//! The answer comes when they are on flash. The core is told of the pod with more containers
//! than before, as of any other that is wanted.

use std::fs;
use std::io;
use std::rc::Rc;

use serde_json::Value;

use crate::api::{Accepted, Applied, Change, FieldValidation, Reply, Status};
use crate::manifest;
use crate::node::{Observation, PodIndex, PodState, StartFailure, StartFailureReason};
use crate::registry::Wanted;

use super::run::{self, failure};
use super::sandbox::Sandbox;
use super::sent::{how, refused};
use super::update::preconditions;
use super::{Engine, Shell, leave, on_tmpfs};

/// Bytes of the ephemeral containers of all pods together, as JSON: some hundreds of them.
/// Nothing of them goes before their pod does.
const ROOM: usize = 512 * 1024;

/// Requests for one pod that may wait for the one before.
const WAITING: usize = 64;

/// What becomes of a pod's ephemeral containers.
#[derive(Default)]
pub(super) struct Gift {
    /// They are being written.
    writing: bool,
    /// Who is next.
    waiting: Vec<Asked>,
}

/// A request for them.
pub(super) struct Asked {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) change: Change,
    pub(super) validation: FieldValidation,
    pub(super) dry_run: bool,
    pub(super) reply: Reply<Accepted>,
}

impl Engine {
    /// Changes the ephemeral containers of a pod; answered when that is durable.
    pub(super) fn change_ephemeral(&mut self, mut asked: Asked) {
        let Some(index) = self.shown(&asked.namespace, &asked.name) else {
            return drop(asked.reply.try_send(Err(Status::not_found("pods", &asked.name))));
        };
        if let Some(pod) = self.shell.pods.borrow_mut().get_mut(&index)
            && pod.gift.writing
        {
            if pod.gift.waiting.len() < WAITING {
                pod.gift.waiting.push(asked);
            } else {
                let why = "as many changes of this pod as it takes are under way, please try again later";
                let _ = asked.reply.try_send(Err(Status::too_many_requests(why)));
            }
            return;
        }
        let wanted = match self.changed(index, &mut asked) {
            Ok((wanted, Applied::Configured)) if !asked.dry_run => wanted,
            Ok((wanted, applied)) => {
                let object = self.object(index).map(|shown| with_list(shown, &wanted));
                let accepted =
                    object.map(|object| Accepted { object, applied, warnings: wanted.warnings.clone() });
                let accepted = accepted.ok_or_else(|| Status::not_found("pods", &asked.name));
                return drop(asked.reply.try_send(accepted));
            }
            Err(status) => return drop(asked.reply.try_send(Err(status))),
        };
        self.keep_ephemeral(index, wanted, asked);
    }

    /// The pod as it is asked for.
    fn changed(&self, index: PodIndex, asked: &mut Asked) -> Result<(Rc<Wanted>, Applied), Status> {
        let gone = || Status::not_found("pods", &asked.name);
        let old = self.shell.wanted(index).ok_or_else(gone)?;
        if self.node.pod(index).is_none_or(PodState::is_unwanted) {
            let why = "the object is being deleted: nothing starts in it any more";
            return Err(Status::conflict("pods", &asked.name, why));
        }
        let mut object: Value = serde_json::from_str(old.object.get()).map_err(Status::internal)?;
        let current = self.current(index, &asked.namespace, &asked.name)?;
        let change = std::mem::replace(&mut asked.change, Change::Replace(Value::Null));
        let new = change.apply(&current)?;
        preconditions(&current, &new, ("pods", &asked.name))?;
        let list = match &new["spec"]["ephemeralContainers"] {
            Value::Null => Vec::new(),
            Value::Array(list) => list.clone(),
            _ => return Err(Status::bad_request("spec.ephemeralContainers: must be a list")),
        };
        // Each that is added is a change of the spec.
        let added = list.len().saturating_sub(old.pod.spec.ephemeral_containers.len());
        object["metadata"]["generation"] = (old.pod.generation + added as u64).into();
        object["spec"]["nodeName"] = self.shell.config.node_name.as_str().into();
        let before: Value = serde_json::from_str(old.object.get()).map_err(Status::internal)?;
        let mut manifest =
            manifest::admit_ephemeral(object, list, how(asked.validation), &self.shell.config.node_name)
                .map_err(|error| refused(&error))?;
        manifest.warnings = manifest::new_warnings(manifest.warnings, &before);
        let others = self.shell.pods.borrow().values().map(|pod| text_of(&pod.wanted)).sum::<usize>();
        let wanted = old.changed(manifest);
        if others - text_of(&old) + text_of(&wanted) > ROOM {
            let why = "the ephemeral containers of all pods together take more room than there is: delete a pod \
                       that has some";
            return Err(Status::forbidden(format!("pods \"{}\" is forbidden: {why}", asked.name)));
        }
        let same = wanted.pod.spec.ephemeral_containers.len() == old.pod.spec.ephemeral_containers.len();
        Ok((Rc::new(wanted), if same { Applied::Unchanged } else { Applied::Configured }))
    }

    /// Writes them down, and tells the core.
    fn keep_ephemeral(&mut self, index: PodIndex, wanted: Rc<Wanted>, asked: Asked) {
        let uid = wanted.pod.uid.0.clone();
        let path = self.shell.records.ephemeral_path_of(&uid);
        let bytes = list_of(&wanted).to_string().into_bytes();
        let fault = self.shell.fault.clone();
        if let Some(pod) = self.shell.pods.borrow_mut().get_mut(&index) {
            pod.gift.writing = true;
        }
        let kept = {
            let path = path.clone();
            self.shell.storage.run(move || crate::store::replace(&path, &bytes, &*fault))
        };
        self.shell.then(kept, move |engine, kept| {
            let waiting = match engine.shell.pods.borrow_mut().get_mut(&index) {
                Some(pod) => {
                    pod.gift.writing = false;
                    std::mem::take(&mut pod.gift.waiting)
                }
                None => Vec::new(),
            };
            let answer = match kept {
                Ok(()) => engine.give(index, &wanted, &asked.name),
                Err(error) => Err(Status::internal(format!(
                    "failed to write {}: {}",
                    path.display(),
                    crate::error::chain(&error)
                ))),
            };
            let answer = answer.map(|object| Accepted {
                object,
                applied: Applied::Configured,
                warnings: wanted.warnings.clone(),
            });
            // A client that hung up has changed nothing about what it asked for.
            let _ = asked.reply.try_send(answer);
            for asked in waiting {
                engine.change_ephemeral(asked);
            }
        });
    }

    /// They are on flash: the pod has them from now on.
    fn give(&mut self, index: PodIndex, wanted: &Rc<Wanted>, name: &str) -> Result<Value, Status> {
        if self.node.pod(index).is_none_or(PodState::is_unwanted) {
            // It went meanwhile, and perhaps its record already: they go with it.
            let path = self.shell.records.ephemeral_path_of(&wanted.pod.uid.0);
            let fault = self.shell.fault.clone();
            let removed = self.shell.storage.run(move || crate::store::remove(&path, &*fault));
            self.shell.spawn(async move { drop(removed.await) });
            return Err(Status::not_found("pods", name));
        }
        // Meanwhile its labels may be others.
        let known = self.shell.wanted(index).ok_or_else(|| Status::not_found("pods", name))?;
        let wanted = &self.merged(&without(&known), list_of(wanted));
        let directory = self.shell.paths.run_pod(&wanted.pod.uid.0);
        if let Err(error) = on_tmpfs::rewrite_object(&directory, wanted) {
            // What a later agent finds on flash it adds again.
            log::warn!("failed to write down the ephemeral containers of {}: {error}", wanted.pod.uid);
        }
        let seen = Observation::Wanted { pod: wanted.pod.clone(), record: None, status: None };
        self.observe_with(seen, Some(wanted));
        if let Some(pod) = self.shell.pods.borrow_mut().get_mut(&index) {
            pod.wanted = wanted.clone();
        }
        self.publish(index);
        self.object(index).ok_or_else(|| Status::not_found("pods", name))
    }

    /// Takes from an object that is applied the ephemeral containers that the pod has, and what was
    /// computed of its priority: whoever read it here and sends it back asks for nothing else.
    pub(super) fn leave_out_known(&self, object: &mut Value) {
        let metadata = &object["metadata"];
        let text = |field: &str| metadata[field].as_str().filter(|text| !text.is_empty());
        let (namespace, name) = (text("namespace").unwrap_or("default"), text("name").unwrap_or_default());
        let Some(known) = self.shown(namespace, name).and_then(|index| self.shell.wanted(index)) else {
            return;
        };
        known.leave_out_priority(object);
        if !known.pod.spec.ephemeral_containers.is_empty()
            && object["spec"]["ephemeralContainers"] == list_of(&known)
            && let Some(spec) = object["spec"].as_object_mut()
        {
            spec.remove("ephemeralContainers");
        }
    }

    /// What a source wants, with the ephemeral containers that the pod was given.
    pub(super) fn with_ephemeral(&self, wanted: &Rc<Wanted>) -> Rc<Wanted> {
        let uid = &wanted.pod.uid;
        let known = self.node.index_of(uid).and_then(|index| self.shell.wanted(index));
        let list = match known {
            Some(known) if known.pod.spec.ephemeral_containers.is_empty() => return wanted.clone(),
            Some(known) => list_of(&known),
            None => match self.on_flash(&uid.0) {
                Ok(Some(list)) => list,
                Ok(None) => return wanted.clone(),
                Err(error) => {
                    let (namespace, name) = (&wanted.pod.namespace, &wanted.pod.name);
                    log::error!("{namespace}/{name}: {error}; it is without ephemeral containers");
                    return wanted.clone();
                }
            },
        };
        self.merged(wanted, list)
    }

    /// A pod as its manifest says, with these ephemeral containers.
    fn merged(&self, plain: &Rc<Wanted>, list: Value) -> Rc<Wanted> {
        let again = serde_json::from_str(plain.object.get()).map_err(|error| error.to_string());
        let again = again.and_then(|object: Value| {
            let object = put_list(object, list);
            manifest::admit_again(object, &self.shell.config.node_name).map_err(|error| error.to_string())
        });
        match again {
            Ok(manifest) => Rc::new(plain.changed(manifest)),
            Err(error) => {
                // What they refer to is no longer there, so this is another pod than they were given to.
                let (namespace, name) = (&plain.pod.namespace, &plain.pod.name);
                log::warn!("{namespace}/{name}: {error}; it is without ephemeral containers");
                plain.clone()
            }
        }
    }

    fn on_flash(&self, uid: &str) -> Result<Option<Value>, String> {
        let path = self.shell.records.ephemeral_path_of(uid);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| format!("{} is damaged: {error}", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("failed to read {}: {error}", path.display())),
        }
    }
}

/// The same as its manifest says.
pub(super) fn without(wanted: &Rc<Wanted>) -> Rc<Wanted> {
    if wanted.pod.spec.ephemeral_containers.is_empty() {
        return wanted.clone();
    }
    let mut object = serde_json::from_str(wanted.object.get()).unwrap_or(Value::Null);
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("ephemeralContainers");
    }
    let pod = Rc::new((*wanted.pod).clone().without_ephemeral());
    object["metadata"]["generation"] = pod.generation.into();
    Rc::new(wanted.changed(manifest::Manifest { pod, object, warnings: Vec::new() }))
}

/// Whether the container in whose processes another one is to look is there.
pub(super) fn check_target(
    shell: &Shell,
    wanted: &Wanted,
    sandbox: &Sandbox,
    target: &str,
) -> Result<(), StartFailure> {
    let runs = sandbox.runs.borrow();
    if runs.iter().any(|((name, _), run)| name == target && run.started.is_some()) {
        return Ok(());
    }
    drop(runs);
    let facts = shell.paths.run_pod(&wanted.pod.uid.0).join(run::FACTS);
    let number = |file: &String| -> Option<u32> {
        file.strip_suffix(".json")?.strip_prefix(target)?.strip_prefix('_')?.parse().ok()
    };
    match leave::names(&facts).iter().filter_map(number).max() {
        None => Err(failure(
            StartFailureReason::CreateContainerConfigError,
            format!("unable to find target container {target}"),
        )),
        Some(number) => {
            let id = run::read_facts(shell, wanted, target, number).container_id;
            Err(failure(
                StartFailureReason::CreateContainerError,
                format!(
                    "invalid target container: container \"{id}\" is not running - in state CONTAINER_EXITED"
                ),
            ))
        }
    }
}

/// `spec.ephemeralContainers` as it was admitted.
fn list_of(wanted: &Wanted) -> Value {
    let mut object: Value = serde_json::from_str(wanted.object.get()).unwrap_or(Value::Null);
    object["spec"]["ephemeralContainers"].take()
}

/// An object of a pod that has none, with them.
fn put_list(mut object: Value, list: Value) -> Value {
    let generation = object["metadata"]["generation"].as_u64().unwrap_or(1);
    let added = list.as_array().map_or(0, Vec::len);
    object["metadata"]["generation"] = (generation + added as u64).into();
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("ephemeralContainers".to_owned(), list);
    }
    object
}

/// What is shown of a pod, as it would be with the ephemeral containers of `wanted`.
fn with_list(mut shown: Value, wanted: &Wanted) -> Value {
    if !wanted.pod.spec.ephemeral_containers.is_empty() {
        shown["spec"]["ephemeralContainers"] = list_of(wanted);
    }
    shown
}

/// About so many bytes the ephemeral containers of a pod take.
fn text_of(wanted: &Wanted) -> usize {
    if wanted.pod.spec.ephemeral_containers.is_empty() { 0 } else { list_of(wanted).to_string().len() }
}
