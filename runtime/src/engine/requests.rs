//! What the API asks for: pods applied and deleted, processes in containers.
//! An applied pod is a manifest file of ours; the answer comes when it is durable.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use crate::api::{
    Accepted, Applied, ExecExit, ExecSession, FieldValidation, Preconditions, Reply, Request, Status,
};
use crate::manifest::{self, Kind, Manifest};
use crate::node::{Observation, PodIndex, PodState};
use crate::registry::Wanted;
use crate::spec::{Pod, Uid};
use crate::supervisor::config::ExecConfig;
use crate::time::Instant;

use super::ephemeral::Asked;
use super::exec::{Exec, ExecNews};
use super::sent::{generated_name, how, random_uid, refused, same, strip};
use super::update::{MODIFIED, Updating, another_uid};
use super::{Engine, Shell};

impl Engine {
    /// Answers a request of the API; what takes time goes on in a task.
    pub(super) fn answer(&mut self, request: Request) {
        match request {
            Request::Create { object, validation, dry_run, reply } => {
                self.accept(object, validation, dry_run, true, reply);
            }
            Request::Apply { object, validation, dry_run, reply } => {
                self.accept(object, validation, dry_run, false, reply);
            }
            Request::Update { resource, namespace, name, change, part, validation, dry_run, reply } => {
                let asked = Updating { change, part, validation, dry_run };
                match definition(resource) {
                    Some(kind) => self.update_definition(kind, &name, asked, reply),
                    None => self.update(&namespace, &name, asked, reply),
                }
            }
            Request::Delete { resource, namespace, name, preconditions, grace, dry_run, reply } => {
                match definition(resource) {
                    Some(kind) => {
                        self.delete_definition((kind, &namespace, &name), &preconditions, dry_run, reply);
                    }
                    None => self.delete(&namespace, &name, &preconditions, grace, dry_run, reply),
                }
            }
            Request::Ephemeral { namespace, name, change, validation, dry_run, reply } => {
                self.change_ephemeral(Asked { namespace, name, change, validation, dry_run, reply });
            }
            Request::Exec { namespace, pod, container, command, tty, size, stdio, reply } => {
                let shell = self.shell.clone();
                match self.running(&namespace, &pod, &container) {
                    Ok((index, number)) => {
                        let config = ExecConfig { args: command, tty, size };
                        let stdio_refs = [&stdio[0], &stdio[1], &stdio[2]]
                            .map(|descriptor| descriptor.as_ref().map(std::os::fd::AsFd::as_fd));
                        match shell.exec(index, &container, number, &config, stdio_refs) {
                            Ok(exec) => shell.spawn(session(shell.clone(), exec, reply)),
                            Err(message) => drop(reply.try_send(Err(Status::internal(message)))),
                        }
                    }
                    Err(status) => drop(reply.try_send(Err(status))),
                }
            }
            Request::Socket { namespace, pod, uid, family, reply } => {
                let socket = self
                    .shown(&namespace, &pod)
                    .filter(|index| self.shell.uid(*index).is_some_and(|shown| *shown.0 == *uid))
                    .ok_or_else(|| Status::not_found("pods", &pod))
                    .and_then(|index| self.shell.pod_socket(index, family));
                let _ = reply.try_send(socket);
            }
            Request::Attach { namespace, pod, container, stdio, reply } => {
                let shell = self.shell.clone();
                match self.running(&namespace, &pod, &container) {
                    Ok((index, number)) => self.shell.spawn(async move {
                        let ends = [&stdio[0], &stdio[1], &stdio[2]]
                            .map(|descriptor| descriptor.as_ref().map(std::os::fd::AsFd::as_fd));
                        let answer = match shell.attach(index, &container, number, ends) {
                            Ok(attaching) => attaching.answer().await,
                            Err(message) => Err(message),
                        };
                        let _ = reply.send(answer.map_err(Status::internal)).await;
                    }),
                    Err(status) => drop(reply.try_send(Err(status))),
                }
            }
        }
    }

    fn accept(
        &mut self,
        object: Value,
        validation: FieldValidation,
        dry_run: bool,
        new: bool,
        reply: Reply<Accepted>,
    ) {
        let kind = object["kind"].as_str().and_then(Kind::named);
        if let Some(kind) = kind.filter(|kind| *kind != Kind::Pod) {
            return self.accept_definition(kind, object, (validation, dry_run, new), reply);
        }
        match self.admit(object, validation, new) {
            Ok((mut manifest, applied)) => {
                manifest.warnings.extend(self.overridden(&manifest.pod));
                if applied != Applied::Unchanged {
                    match self.priority_of(&manifest) {
                        Ok(priority) if dry_run => priority.show(&mut manifest.object),
                        Ok(_) => {}
                        Err(status) => return drop(reply.try_send(Err(status))),
                    }
                }
                let shown = |object: Value, applied, warnings| Accepted { object, applied, warnings };
                let path = self.applied_path(&manifest.pod.namespace, &manifest.pod.name);
                if dry_run
                    && applied != Applied::Unchanged
                    && let Err(status) = self.has_room(&path, ("pods", &manifest.pod.name), &manifest.object)
                {
                    return drop(reply.try_send(Err(status)));
                }
                if dry_run || applied == Applied::Unchanged {
                    let awaited = self.awaited_images(&manifest.pod);
                    let accepted = shown(manifest.object, applied, manifest.warnings);
                    return self.answer_with_images(accepted, awaited, reply);
                }
                self.keep(manifest, applied, reply);
            }
            Err(status) => drop(reply.try_send(Err(status))),
        }
    }

    /// Admits an object and says what applying it does.
    fn admit(
        &self,
        mut object: Value,
        validation: FieldValidation,
        new: bool,
    ) -> Result<(Manifest, Applied), Status> {
        self.check_version("pods", &object, new)?;
        self.own(&mut object)?;
        self.leave_out_known(&mut object);
        let manifest = manifest::admit(object, how(validation), &self.shell.config.node_name)
            .map_err(|error| refused(&error))?;
        let name = (manifest.pod.namespace.clone(), manifest.pod.name.clone());
        let old = self.holds.newest(&name).or_else(|| self.told.get(&name));
        let shown = self.shell.objects.get(&crate::objects::Key::new("pods", &name.0, &name.1));
        match (old, new) {
            (None, true) if shown.is_some() => {
                let mut status = Status::already_exists("pods", &name.1);
                status.message = format!("object is being deleted: {}", status.message);
                Err(status)
            }
            (Some(_), true) => Err(Status::already_exists("pods", &name.1)),
            (None, _) => Ok((manifest, Applied::Created)),
            // What it says is what runs: nothing is kept, unless another file says it that may go.
            (Some(old), false)
                if self.overridden(&manifest.pod).is_none()
                    && same(old.as_written().get(), &manifest.object) =>
            {
                let object = serde_json::from_str(old.object.get()).map_err(Status::internal)?;
                Ok((Manifest { object, ..manifest }, Applied::Unchanged))
            }
            (Some(old), false) => {
                let old = old.clone();
                // What is changed back to what runs is that again, and nothing waits any more.
                if let Some(runs) = self.told.get(&name).filter(|runs| runs.pod.uid != old.pod.uid) {
                    let updated = self.as_update_of(&runs.clone(), manifest.clone())?;
                    if updated.pod.uid == runs.pod.uid {
                        return Ok((updated, Applied::Configured));
                    }
                }
                // Whoever applies another image to a pod that is over wants it to run.
                let is_over = self.node.index_of(&old.pod.uid).and_then(|index| self.node.pod(index));
                let is_over = is_over.is_some_and(PodState::is_over);
                let updated = self.as_update_of(&old, manifest.clone())?;
                match is_over && updated.pod.generation != old.pod.generation {
                    true => Ok((manifest, Applied::Configured)),
                    false => Ok((updated, Applied::Configured)),
                }
            }
        }
    }

    /// Checks `metadata.resourceVersion` and `metadata.uid` that a client sends: the existing object
    /// must have them. A new one has no version, and is given a uid.
    pub(super) fn check_version(
        &self,
        resource: &'static str,
        object: &Value,
        new: bool,
    ) -> Result<(), Status> {
        let metadata = &object["metadata"];
        let text = |field: &str| metadata[field].as_str().filter(|text| !text.is_empty());
        let version = text("resourceVersion").filter(|asked| *asked != "0");
        if new {
            let why = "resourceVersion should not be set on objects to be created";
            return version.map_or(Ok(()), |_| Err(Status::bad_request(why)));
        }
        let uid = text("uid");
        if version.is_none() && uid.is_none() {
            return Ok(());
        }
        let kind = Kind::of_resource(resource);
        let namespace = match kind {
            Some(Kind::PriorityClass) => "",
            Some(Kind::Pod | Kind::PodPreset) | None => text("namespace").unwrap_or("default"),
        };
        let name = text("name").unwrap_or_default();
        let shown = self.shell.objects.get(&crate::objects::Key::new(resource, namespace, name));
        let Some(shown) = shown else { return Ok(()) };
        let conflict = |why: &str| {
            let resource = kind.map_or_else(|| resource.to_owned(), Kind::qualified);
            Err(Status::conflict(&resource, name, why))
        };
        let present: Value = serde_json::from_str(&shown.json).unwrap_or_default();
        let present = present["metadata"]["uid"].as_str().unwrap_or_default();
        if let Some(asked) = uid.filter(|asked| *asked != present) {
            return conflict(&another_uid(asked, present));
        }
        match version {
            Some(asked) if shown.version.to_string() != asked => conflict(MODIFIED),
            Some(_) | None => Ok(()),
        }
    }

    /// Gives an object what only the server gives, and takes from it what clients must not say.
    pub(super) fn own(&self, object: &mut Value) -> Result<(), Status> {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            strip(metadata);
            if let Some(prefix) = metadata.get("generateName").and_then(Value::as_str).map(str::to_owned)
                && metadata.get("name").is_none_or(Value::is_null)
            {
                metadata.insert("name".into(), generated_name(&prefix)?.into());
            }
            metadata.insert("uid".into(), random_uid()?.into());
            let now = self.shell.anchor.get().timestamp(Instant::now());
            metadata.insert("creationTimestamp".into(), now.to_string().into());
        }
        if let Some(fields) = object.as_object_mut() {
            fields.remove("status");
        }
        Ok(())
    }

    /// Makes an applied pod durable, and answers when it is.
    pub(super) fn keep(&mut self, manifest: Manifest, applied: Applied, reply: Reply<Accepted>) {
        let path = self.applied_path(&manifest.pod.namespace, &manifest.pod.name);
        let bytes = match self.reserve(&path, ("pods", &manifest.pod.name), &manifest.object) {
            Ok(bytes) => bytes,
            Err(status) => return drop(reply.try_send(Err(status))),
        };
        self.set_updating(&manifest.pod.uid, true);
        let awaited = self.awaited_images(&manifest.pod);
        self.write_reserved(path, bytes, move |engine, written| {
            engine.set_updating(&manifest.pod.uid, false);
            let accepted = |()| {
                // With what presets have added to it, if it is the one that is told.
                let told = (manifest.pod.namespace.clone(), manifest.pod.name.clone());
                let told = engine.told.get(&told).filter(|told| told.pod.uid == manifest.pod.uid);
                let told = told.and_then(|told| serde_json::from_str(told.object.get()).ok());
                let object = told.unwrap_or(manifest.object);
                Accepted { object, applied, warnings: manifest.warnings }
            };
            // A client that hung up has changed nothing about what it applied.
            match written.map(accepted) {
                Ok(accepted) => engine.answer_with_images(accepted, awaited, reply),
                Err(status) => drop(reply.try_send(Err(status))),
            }
        });
    }

    /// What to warn of if another file wins over what is applied for a pod.
    fn overridden(&self, pod: &Pod) -> Option<String> {
        let path = self.applied_path(&pod.namespace, &pod.name);
        let file = self.registry.sources.overriding(&path, &pod.namespace, &pod.name)?;
        Some(format!(
            "{} overrides this: pod \"{}\" is as that file says until it is gone from there",
            file.display(),
            pod.name
        ))
    }

    pub(super) fn applied_path(&self, namespace: &str, name: &str) -> PathBuf {
        self.shell.paths.applied_manifests().join(format!("{namespace}_{name}.json"))
    }

    fn delete(
        &mut self,
        namespace: &str,
        name: &str,
        preconditions: &Preconditions,
        grace: Option<u64>,
        dry_run: bool,
        reply: Reply<Value>,
    ) {
        let (index, told) = match self.deletable(namespace, name, preconditions) {
            Ok(found) => found,
            Err(status) => return drop(reply.try_send(Err(status))),
        };
        // A grace of nothing that the pod itself has is as good as one that is asked for (`BeforeDelete`).
        let of_pod = || self.shell.wanted(index).map(|wanted| wanted.pod.spec.termination_grace_period);
        let grace = grace.map(Duration::from_secs).or_else(|| of_pod().filter(Duration::is_zero));
        let name = name.to_owned();
        match told {
            Some(told) if !dry_run => {
                // Gone from flash before it is stopped: a power cut does not bring it back. Whoever
                // reads the sources meanwhile does not know with what grace it is stopped.
                self.set_deleting(&told.pod.uid, true);
                let (fault, source) = (self.shell.fault.clone(), told.source.clone());
                let removed = self.shell.storage.run(move || crate::store::remove(&source, &*fault));
                self.shell.then(removed, move |engine, removed| {
                    let uid = &told.pod.uid;
                    let answer = match removed {
                        Ok(()) => {
                            engine.read_sources();
                            engine.set_deleting(uid, false);
                            if engine.shell.uid(index).is_some_and(|ends| ends != *uid) {
                                // The replacement, which has not begun.
                                engine.observe(Observation::Unwanted { uid: uid.clone(), grace: None });
                            }
                            engine.stop(index, &name, grace)
                        }
                        Err(error) => {
                            engine.set_deleting(uid, false);
                            // The file may be gone all the same, and that have been noticed.
                            if !engine.told.values().any(|told| told.pod.uid == *uid) {
                                engine.observe(Observation::Unwanted { uid: uid.clone(), grace: None });
                            }
                            let source = told.source.display();
                            Err(Status::internal(format!("failed to remove {source}: {error}")))
                        }
                    };
                    let _ = reply.try_send(answer);
                });
            }
            Some(_) | None if dry_run => {
                let _ = reply.try_send(self.object(index).ok_or_else(|| Status::not_found("pods", &name)));
            }
            Some(_) | None => drop(reply.try_send(self.stop(index, &name, grace))),
        }
    }

    /// Whether a deletion of the pod is under way that stops it with a grace of its own.
    fn set_deleting(&self, uid: &Uid, deleting: bool) {
        let mut pods = self.shell.pods.borrow_mut();
        for entry in pods.values_mut().filter(|entry| entry.wanted.pod.uid == *uid) {
            entry.deleting = deleting;
        }
    }

    /// The pod of a name, and the manifest of ours that it comes from unless it is being deleted already.
    fn deletable(
        &self,
        namespace: &str,
        name: &str,
        preconditions: &Preconditions,
    ) -> Result<(PodIndex, Option<Rc<Wanted>>), Status> {
        let index = self.shown(namespace, name).ok_or_else(|| Status::not_found("pods", name))?;
        let wanted = self.shell.wanted(index).ok_or_else(|| Status::not_found("pods", name))?;
        preconditions.check("Pod", name, &self.current(index, namespace, name)?)?;
        let told = self.told.get(&(Rc::from(namespace), Rc::from(name)));
        // An applied replacement that waits for the end of the pod is deleted with it, unless the
        // client means the one that ends.
        let replaces =
            |told: &Wanted| told.source == self.applied_path(namespace, name) && preconditions.uid.is_none();
        let told = told.filter(|told| told.pod.uid == wanted.pod.uid || replaces(told)).cloned();
        match &told {
            Some(told) if told.source != self.applied_path(namespace, name) => {
                Err(self.defined_by_file(name, &told.source, "remove that file, or the pod from it"))
            }
            Some(_) | None => Ok((index, told)),
        }
    }

    /// Refuses to change a pod that a file defines. What is part of the device's image nobody can
    /// change there.
    pub(super) fn defined_by_file(&self, name: &str, file: &Path, remedy: &str) -> Status {
        let remedy = if file.starts_with(self.shell.paths.vendor_manifests()) {
            let site = self.shell.paths.site_manifests();
            format!("a pod of its name in {} takes its place", site.display())
        } else {
            remedy.to_owned()
        };
        Status::forbidden(format!(
            "pods \"{name}\" is forbidden: it is defined by {}; {remedy}",
            file.display()
        ))
    }

    /// Stops a pod that no source wants any more; the pod as it is then.
    pub(super) fn stop(
        &mut self,
        index: PodIndex,
        name: &str,
        grace: Option<Duration>,
    ) -> Result<Value, Status> {
        let gone = || Status::not_found("pods", name);
        let uid = self.shell.uid(index).ok_or_else(gone)?;
        // By force the object goes at once, and what runs has the grace that it was promised.
        let forced = grace == Some(Duration::ZERO);
        self.observe(Observation::Unwanted { uid, grace: grace.filter(|_| !forced) });
        let object = self.object(index).ok_or_else(gone);
        if forced {
            self.hide(index);
        }
        self.publish_changed();
        object
    }

    /// The pod that is shown under a name.
    pub(super) fn shown(&self, namespace: &str, name: &str) -> Option<PodIndex> {
        let pods = self.shell.pods.borrow();
        let mut indexes = pods
            .iter()
            .filter(|(_, pod)| *pod.wanted.pod.namespace == *namespace && *pod.wanted.pod.name == *name)
            .filter(|(index, _)| !self.is_hidden(**index));
        indexes.next().map(|(index, _)| *index)
    }

    /// The run of a container that executes now.
    fn running(&self, namespace: &str, pod: &str, container: &str) -> Result<(PodIndex, u32), Status> {
        let index = self.shown(namespace, pod).ok_or_else(|| Status::not_found("pods", pod))?;
        let not_running = || {
            Status::internal(format!("unable to upgrade connection: container not found (\"{container}\")"))
        };
        let sandbox = self.shell.sandbox(index).ok_or_else(not_running)?;
        let runs = sandbox.runs.borrow();
        let newest = runs.iter().filter(|((name, _), run)| name == container && run.started.is_some());
        newest.map(|((_, number), _)| *number).max().map(|number| (index, number)).ok_or_else(not_running)
    }
}

/// The kind of what is no pod.
fn definition(resource: &str) -> Option<Kind> {
    Kind::of_resource(resource).filter(|kind| *kind != Kind::Pod)
}

/// Passes on how an executed process begins and ends; kills it when nobody waits any more.
async fn session(shell: Rc<Shell>, exec: Exec, reply: Reply<ExecSession>) {
    let (exit, receiver) = async_channel::bounded(1);
    match exec.news.recv().await {
        Ok(ExecNews::Started { terminal }) => {
            if reply.send(Ok(ExecSession { terminal, exit: receiver })).await.is_err() {
                shell.kill_exec(&exec);
                return;
            }
        }
        Ok(ExecNews::Failed(message)) => {
            let _ = reply.send(Err(Status::internal(message))).await;
            return;
        }
        Ok(ExecNews::Exited(code)) => {
            let _ = exit.try_send(ExecExit::Code(code));
            let _ = reply.send(Ok(ExecSession { terminal: None, exit: receiver })).await;
            return;
        }
        Err(_) => {
            let _ = reply.send(Err(Status::internal("the container is gone"))).await;
            return;
        }
    }
    let ended = async {
        Some(match exec.news.recv().await {
            Ok(ExecNews::Exited(code)) => ExecExit::Code(code),
            Ok(ExecNews::Failed(message)) => ExecExit::Failed(message),
            Ok(ExecNews::Started { .. }) => ExecExit::Failed("it was reported started twice".into()),
            Err(_) => ExecExit::Failed("the container is gone".into()),
        })
    };
    let abandoned = async {
        exit.closed().await;
        None
    };
    match smol::future::or(ended, abandoned).await {
        Some(end) => drop(exit.try_send(end)),
        None => shell.kill_exec(&exec),
    }
}
