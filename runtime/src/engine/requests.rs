//! Carries out requests of the API: pods are applied and deleted, processes run in containers. An applied object
//! becomes a manifest file; the client is answered when the file is durable.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde_json::Value;

use crate::api::{Accepted, Applied, Preconditions, Reply, Request, Status};
use nodlet_core::facts::{Observation, PodIndex, PodObservation};
use nodlet_core::pod::PodState;
use nodlet_host::launch::ExecConfig;
use nodlet_kube::kinds::Kind;
use nodlet_registry::{
    Decision, DefinitionName, Deletion, Handled, Identity, PodName, Registry, ReplacedPod, RequestOptions,
    Stop, Updating, as_published,
};

use super::message::{Change, PodEnd};
use super::network::netns;
use super::{Engine, stats};

impl Engine {
    /// Carries out a request of the API. Parts that take time continue in a task.
    pub(super) fn answer(&mut self, request: Request) {
        match request {
            request @ (Request::Create { .. }
            | Request::Apply { .. }
            | Request::Update { .. }
            | Request::Delete { .. }
            | Request::Ephemeral(_)) => self.changes.push(Change::Request(Box::new(request))),
            Request::Cluster { sync: true, reply } => {
                let has_credentials = self.shell.paths.cluster_credentials().exists();
                self.cluster.synchronise(has_credentials, reply);
            }
            Request::Cluster { sync: false, reply } => {
                self.follow_cluster();
                let meaning = self.shell.config.sync.map_or("", |_| nodlet_cluster::sync::MEANING);
                let _ = reply.try_send(Ok(meaning));
            }
            Request::Measure { reply } => self.measure(reply),
            Request::Stats { reply } => {
                let shell = self.shell.clone();
                self.shell.tasks.spawn(async move {
                    let _ = reply.try_send(Ok(stats::summary(&shell).await));
                });
            }
            Request::ProbeMetrics { reply } => {
                let _ = reply.try_send(Ok(self.cluster.probe_metrics(&self.shell.pods)));
            }
            Request::Restart { namespace, name, container, reply } => {
                let _ = reply.try_send(self.restart(&namespace, &name, container));
            }
            Request::Exec { namespace, pod, container, command, tty, size, stdio, reply } => {
                let config = ExecConfig { args: command, tty, size, devices: None };
                let exec = self.running(&namespace, &pod, &container).and_then(|(index, number)| {
                    let execs = &self.shell.execs;
                    let exec = execs.exec(index, &container, number, &config, borrowed(&stdio));
                    exec.map_err(|error| Status::internal(error.message()))
                });
                match exec {
                    Ok(exec) => self.shell.tasks.spawn(exec.serve(reply)),
                    Err(status) => drop(reply.try_send(Err(status))),
                }
            }
            Request::Socket { namespace, pod, uid, family, reply } => {
                let socket = self
                    .shown(&namespace, &pod)
                    .filter(|index| self.shell.pods.uid(*index).is_some_and(|shown| *shown.0 == *uid))
                    .ok_or_else(|| Status::not_found("pods", &pod))
                    .and_then(|index| netns::pod_socket(&self.shell.pods, index, family));
                let _ = reply.try_send(socket);
            }
            Request::Attach { namespace, pod, container, stdio, reply } => {
                let running = self.running(&namespace, &pod, &container);
                let execs = self.shell.execs.clone();
                self.shell.tasks.spawn(async move {
                    let attached = async {
                        let (index, number) = running?;
                        let attached = execs.attach(index, &container, number, borrowed(&stdio)).await;
                        attached.map_err(|error| Status::internal(error.message()))
                    };
                    let _ = reply.send(attached.await).await;
                });
            }
        }
    }

    /// Decides on a change that a client asks for.
    pub(super) fn decide(&mut self, request: Request) {
        let options =
            |validation, dry_run, new| RequestOptions { validation, dry_run, new, keeps_claim: false };
        match request {
            Request::Create { object, validation, dry_run, reply } => {
                self.apply(object, options(validation, dry_run, true), reply);
            }
            Request::Apply { object, validation, dry_run, reply } => {
                self.apply(object, options(validation, dry_run, false), reply);
            }
            Request::Update { resource, namespace, name, change, part, validation, dry_run, reply } => {
                let Some(kind) = definition(resource) else {
                    let asked = Updating { change, part, validation, dry_run };
                    return self.update(&namespace, &name, asked, reply);
                };
                let name = (kind, (*namespace).into(), (*name).into());
                match self.registry.change_definition(&name, change) {
                    Ok(changed) => self.apply(changed, options(validation, dry_run, false), reply),
                    Err(status) => drop(reply.try_send(Err(status))),
                }
            }
            Request::Delete { resource, namespace, name, preconditions, grace, dry_run, reply } => {
                match definition(resource) {
                    Some(kind) => {
                        let name = (kind, (*namespace).into(), (*name).into());
                        self.delete_definition(&name, &preconditions, dry_run, reply);
                    }
                    None => self.delete(&namespace, &name, &preconditions, grace, dry_run, reply),
                }
            }
            Request::Ephemeral(asked) => self.change_ephemeral(asked),
            // No other request changes what the board wants.
            request => self.answer(request),
        }
    }

    /// Creates or replaces an object that a client sends.
    fn apply(&mut self, mut object: Value, asked: RequestOptions, reply: Reply<Accepted>) {
        let asked = asked.of(&object);
        // An object without a known kind is rejected as a Pod.
        let kind = object["kind"].as_str().and_then(Kind::named).unwrap_or(Kind::Pod);
        if kind == Kind::Pod && !asked.dry_run {
            self.release_pod(&Registry::name_of(&object));
        }
        if kind == Kind::Service {
            self.reserve_ports();
        }
        let prepared = self
            .identity()
            .and_then(|identity| self.registry.prepare(kind, &mut object, asked.new, &identity));
        let decision = match prepared {
            Err(status) if !asked.new => Err(status),
            // A new object that has a version is refused for what else is wrong with it first.
            Err(status) => {
                let asked = RequestOptions { dry_run: true, ..asked };
                self.decide_object(kind, object, asked).and(Err(status))
            }
            Ok(()) => self.decide_object(kind, object, asked),
        };
        self.carry_out(decision, None, reply);
    }

    /// The registry's decision on an object that a client creates or replaces.
    fn decide_object(
        &mut self,
        kind: Kind,
        object: Value,
        asked: RequestOptions,
    ) -> Result<Decision, Status> {
        if kind != Kind::Pod {
            return self.registry.apply_definition(kind, object, asked);
        }
        let known = self.known(&Registry::name_of(&object));
        self.registry.apply(object, asked, &known)
    }

    /// Changes a published pod, which stays the same pod.
    fn update(&mut self, namespace: &str, name: &str, asked: Updating, reply: Reply<Accepted>) {
        let index = self.shown(namespace, name);
        let present = index.and_then(|index| self.present(index));
        let decision = self.registry.update(name, asked, present.as_ref());
        self.carry_out(decision, index, reply);
    }

    /// Carries out the registry's decision about the pod `index`, and answers the client.
    fn carry_out(
        &mut self,
        decision: Result<Decision, Status>,
        index: Option<PodIndex>,
        reply: Reply<Accepted>,
    ) {
        // A client that hung up has changed nothing about what it asked for.
        let answer = match decision {
            Err(status) => Err(status),
            Ok(Decision::Reply(accepted, None)) => Ok(accepted),
            Ok(Decision::Reply(accepted, Some(pod))) => {
                let awaited = self.awaited_images(&pod);
                return self.answer_with_images(accepted, awaited, reply);
            }
            Ok(Decision::Published(warnings)) => self.accepted(index, Applied::Unchanged, warnings),
            Ok(Decision::ClientConditions(conditions, warnings)) => {
                if let Some(index) = index {
                    self.observe(Observation::Of(index, PodObservation::ClientConditions { conditions }));
                    self.publish_changed();
                }
                self.accepted(index, Applied::Configured, warnings)
            }
            Ok(Decision::Write(write)) => return self.write(write, reply),
        };
        let _ = reply.try_send(answer);
    }

    /// Adds to a written pod what its published object has besides: the status, and the fields of the server.
    pub(super) fn complete(&self, object: &mut Value) {
        let metadata = &object["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        let index = self.shown(text("namespace"), text("name")).filter(|_| object["kind"] == "Pod");
        let present = index.and_then(|index| self.present(index));
        if let Some(present) = present.filter(|present| *present.wanted.pod.uid.0 == *text("uid")) {
            as_published(&self.registry.current(&present), object);
        }
    }

    /// Generates an identity for an object that a client sends.
    fn identity(&self) -> Result<Identity, Status> {
        let (mut uid, mut suffix) = ([0; 16], [0; 5]);
        nodlet_wire::random::unique(&mut uid).map_err(Status::internal)?;
        nodlet_wire::random::unique(&mut suffix).map_err(Status::internal)?;
        Ok(Identity::new(uid, suffix, self.shell.machine.timestamp(nodlet_host::clock::instant())))
    }

    /// Collects what the registry needs to know of the pod that an applied object replaces.
    fn known(&self, name: &PodName) -> ReplacedPod {
        let published = self.shown(&name.0, &name.1).and_then(|index| self.shell.pods.wanted(index));
        let waiting = self.registry.held_updates.newest(name).cloned();
        let newest = waiting.as_ref().or_else(|| self.registry.desired(name));
        let index = newest.and_then(|newest| self.node.index_of(&newest.pod.uid));
        let has_terminal_phase =
            index.and_then(|index| self.node.pod(index)).is_some_and(PodState::has_terminal_phase);
        ReplacedPod { published, waiting, has_terminal_phase }
    }

    fn accepted(
        &self,
        index: Option<PodIndex>,
        applied: Applied,
        warnings: Vec<String>,
    ) -> Result<Accepted, Status> {
        let present = index.and_then(|index| self.present(index));
        let present = present.ok_or_else(|| Status::internal("the pod is gone"))?;
        Ok(Accepted { object: self.registry.current(&present), applied, warnings })
    }

    /// Deletes an object that is not a pod.
    fn delete_definition(
        &mut self,
        name: &DefinitionName,
        preconditions: &Preconditions,
        dry_run: bool,
        reply: Reply<Value>,
    ) {
        match self.registry.delete_definition(name, preconditions) {
            Ok((object, path)) if !dry_run => self.remove(object, path, reply),
            found => drop(reply.try_send(found.map(|(object, _)| object))),
        }
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
        let index = self.shown(namespace, name);
        let present = index.and_then(|index| self.present(index));
        let deletion = self.registry.delete(name, preconditions, grace, present.as_ref());
        let (index, Deletion { desired, stop, replacement }) = match (index, deletion) {
            (Some(index), Ok(deletion)) => (index, deletion),
            (None, Ok(_)) => return,
            (_, Err(status)) => return drop(reply.try_send(Err(status))),
        };
        let name = name.to_owned();
        match desired {
            Some(desired) if !dry_run => {
                let replaced = replacement.and_then(|_| self.shell.pods.uid(index).zip(self.object(index)));
                let end = PodEnd::Deleted { index, name, stop, replaced, reply };
                self.remove_pod(desired.pod.uid.clone(), desired.source.clone(), end);
            }
            Some(_) | None if dry_run => {
                let _ = reply.try_send(self.object(index).ok_or_else(|| Status::not_found("pods", &name)));
            }
            Some(_) | None => drop(reply.try_send(self.stop(index, &name, stop))),
        }
    }

    /// Stops a pod that no source wants any more. Returns the pod as it is then.
    pub(super) fn stop(&mut self, index: PodIndex, name: &str, stop: Stop) -> Result<Value, Status> {
        let gone = || Status::not_found("pods", name);
        let uid = self.shell.pods.uid(index).ok_or_else(gone)?;
        self.observe(Observation::Unwanted { uid, grace: stop.grace });
        let object = self.object(index).ok_or_else(gone);
        if stop.is_forced {
            self.hide(index);
        }
        self.publish_changed();
        object
    }

    /// Restarts the containers of a pod, or the one with this name. Returns the pod as it is then.
    fn restart(&mut self, namespace: &str, name: &str, container: Option<Box<str>>) -> Result<Value, Status> {
        self.release_pod(&(namespace.into(), name.into()));
        let index = self.shown(namespace, name);
        let present = index.and_then(|index| self.present(index));
        let uid = self.registry.restart(name, container.as_deref(), present.as_ref())?;
        self.observe(Observation::Restart { uid, container });
        self.publish_changed();
        index.and_then(|index| self.object(index)).ok_or_else(|| Status::not_found("pods", name))
    }

    /// Tries a pod again that is set aside, because a client asks for the pod.
    fn release_pod(&mut self, (namespace, name): &PodName) {
        let Some(index) = self.shown(namespace, name) else { return };
        let Some(uid) = self.shell.pods.uid(index) else { return };
        if self.shell.handling.release(Handled::object_of_pod(&uid.0)) {
            self.observe(Observation::Of(index, PodObservation::ObjectsChanged));
        }
    }

    /// The newest run of a container, if it executes now.
    fn running(&self, namespace: &str, pod: &str, container: &str) -> Result<(PodIndex, u32), Status> {
        let index = self.shown(namespace, pod).ok_or_else(|| Status::not_found("pods", pod))?;
        let not_running = || {
            Status::internal(format!("unable to upgrade connection: container not found (\"{container}\")"))
        };
        let sandbox = self.shell.pods.sandbox(index).ok_or_else(not_running)?;
        let runs = sandbox.runs.borrow();
        let newest = runs.iter().filter(|((name, _), run)| name == container && run.started.is_some());
        newest.map(|((_, number), _)| *number).max().map(|number| (index, number)).ok_or_else(not_running)
    }
}

/// The kind of a resource; `None` for pods and unknown resources.
fn definition(resource: &str) -> Option<Kind> {
    Kind::of_resource(resource).filter(|kind| *kind != Kind::Pod)
}

/// The descriptors of the streams of a process.
fn borrowed(stdio: &[Option<OwnedFd>; 3]) -> [Option<BorrowedFd<'_>>; 3] {
    stdio.each_ref().map(|stream| stream.as_ref().map(AsFd::as_fd))
}
