//! Adds ephemeral containers to pods at the request of clients. They are in no manifest, so they have a file of their
//! own beside the pod's record, and are removed with the pod.
//!
//! The registry decides on them (`registry/src/ephemeral.rs`). A client is answered when they are on flash. Then the
//! pod with the added containers is reported to the core as any wanted pod.

use std::io;
use std::rc::Rc;

use serde_json::Value;

use crate::api::{Accepted, Applied, Change, EphemeralRequest, Status};
use nodlet_core::facts::{Observation, PodIndex};
use nodlet_core::pod::PodState;
use nodlet_host::error::chain;
use nodlet_registry::{Wanted, ephemeral_of, with_ephemeral, without_ephemeral};

use super::{Engine, handover_files};

impl Engine {
    /// Changes the ephemeral containers of a pod, and answers the client when they are durable.
    pub(super) fn change_ephemeral(&mut self, mut asked: EphemeralRequest) {
        let Some(index) = self.shown(&asked.namespace, &asked.name) else {
            return drop(asked.reply.try_send(Err(Status::not_found("pods", &asked.name))));
        };
        let change = std::mem::replace(&mut asked.change, Change::Replace(Value::Null));
        let changed = match self.present(index) {
            Some(present) => {
                let all: Vec<Rc<Wanted>> =
                    self.shell.pods.borrow().values().map(|pod| pod.wanted.clone()).collect();
                self.registry.change_ephemeral(&asked.name, change, asked.validation, &present, &all)
            }
            None => Err(Status::not_found("pods", &asked.name)),
        };
        let wanted = match changed {
            Ok((wanted, Applied::Configured)) if !asked.dry_run => wanted,
            Ok((wanted, applied)) => {
                let object = self.object(index).map(|shown| with_ephemeral(shown, &wanted));
                let accepted =
                    object.map(|object| Accepted { object, applied, warnings: wanted.warnings.clone() });
                let accepted = accepted.ok_or_else(|| Status::not_found("pods", &asked.name));
                return drop(asked.reply.try_send(accepted));
            }
            Err(status) => return drop(asked.reply.try_send(Err(status))),
        };
        self.write_ephemeral(index, wanted, asked);
    }

    /// Adds the ephemeral containers to the pod when they are on flash, and answers the client.
    pub(super) fn ephemeral_written(
        &mut self,
        index: PodIndex,
        wanted: &Rc<Wanted>,
        asked: EphemeralRequest,
        written: io::Result<()>,
    ) {
        let answer = match written {
            Ok(()) => self.add_ephemeral(index, wanted, &asked.name),
            Err(error) => {
                let path = self.shell.stores.records.ephemeral_path_of(&wanted.pod.uid.0);
                let why = chain(&error);
                Err(Status::internal(format!("failed to write {}: {why}", path.display())))
            }
        };
        let answer = answer.map(|object| Accepted {
            object,
            applied: Applied::Configured,
            warnings: wanted.warnings.clone(),
        });
        // A client that hung up has changed nothing about what it asked for.
        let _ = asked.reply.try_send(answer);
    }

    /// Adds ephemeral containers that are on flash to a pod. Returns the pod as it is published then.
    fn add_ephemeral(&mut self, index: PodIndex, wanted: &Rc<Wanted>, name: &str) -> Result<Value, Status> {
        if self.node.pod(index).is_none_or(PodState::is_unwanted) {
            // The pod was removed meanwhile, and perhaps its record: they go with it.
            let path = self.shell.stores.records.ephemeral_path_of(&wanted.pod.uid.0);
            let removed = self.shell.stores.remove(path.clone());
            // If that fails, the sweep of the next agent removes the file.
            let failed = move |error| format!("failed to remove {}: {error}", path.display());
            self.shell.tasks.log_failure(removed, failed);
            return Err(Status::not_found("pods", name));
        }
        // The pod's labels may have changed meanwhile.
        let known = self.shell.pods.wanted(index).ok_or_else(|| Status::not_found("pods", name))?;
        let wanted = &if known.is_same_as(wanted) {
            wanted.clone()
        } else {
            self.add_ephemeral_again(&without_ephemeral(&known), ephemeral_of(wanted))
        };
        let directory = self.shell.paths.run_pod(&wanted.pod.uid.0);
        if let Err(error) = handover_files::rewrite_object(&directory, wanted) {
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

    /// A pod that a source wants, with the ephemeral containers that were added to it.
    pub(super) fn with_ephemeral(&self, wanted: &Rc<Wanted>) -> Rc<Wanted> {
        let uid = &wanted.pod.uid;
        let known = self.node.index_of(uid).and_then(|index| self.shell.pods.wanted(index));
        let list = match known {
            Some(known) if known.pod.spec.ephemeral_containers.is_empty() => return wanted.clone(),
            Some(known) => ephemeral_of(&known),
            None => match self.shell.stores.ephemeral(&uid.0) {
                Ok(Some(list)) => list,
                Ok(None) => return wanted.clone(),
                Err(error) => {
                    let (namespace, name) = (&wanted.pod.namespace, &wanted.pod.name);
                    let error = chain(&error);
                    log::error!(
                        "{namespace}/{name}: {error}; the pod continues without its ephemeral containers"
                    );
                    return wanted.clone();
                }
            },
        };
        self.add_ephemeral_again(wanted, list)
    }

    /// The pod `plain` of a manifest, with these ephemeral containers.
    fn add_ephemeral_again(&self, plain: &Rc<Wanted>, list: Value) -> Rc<Wanted> {
        self.shell.publication.admitted(self.registry.add_ephemeral_again(plain, list))
    }
}
