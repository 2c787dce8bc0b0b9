//! Reports to the core the difference between the pods that manifests want now and those that they wanted before, and
//! the pods that an earlier agent left.

use std::rc::Rc;

use super::handover_files::{self, StatusFile};
use super::pod_objects::created;
use super::pods::PodShell;
use super::{Engine, cleanup, recover, sandbox};
use crate::records::{LoadError, Recorded};
use nodlet_core::facts::{Observation, PodObservation, Record};
use nodlet_core::pod::PodState;
use nodlet_core::spec::{Pod, Uid};
use nodlet_host::error::chain;
use nodlet_registry::held_updates::{LookUp, read_kept};
use nodlet_registry::{
    self as registry, AdmittedPods, Base, DefinitionName, Difference, Problem, Read, Refusal, Wanted,
    WantedByName,
};

impl Engine {
    /// Reports to the core the difference between the pods that sources want now and those that they wanted before.
    /// Reads no file. The types of the registry hold the order of the steps.
    pub(super) fn reconcile(&mut self) {
        let (now, began) = self.times();
        // Before Services are completed: the refusals of the read name those that do not get their ports.
        if self.registry.has_services() {
            self.reserve_ports();
        } else if self.shell.services.are_served() {
            // The list of sockets is long to read; it is read anew for the ports of the first Service (`serve_services`).
            self.reserve_host_ports();
        }
        let mut read = self.registry.read(&now, &began);
        let mut changed = std::mem::take(&mut read.changed);
        let (admitted, problems) = self.admit(read);
        let due = self.hold_back(admitted);
        let difference = self.registry.difference(due, self.changes.removing());
        self.report_difference(difference, &problems);
        changed.extend(self.bind_claims());
        self.report_changed_objects(&changed);
        self.serve_services();
        // The core knows more of these pods than their files as they were when the agent began.
        let node = &self.node;
        self.shell.stores.recorded.borrow_mut().retain(|uid| node.index_of(&Uid::from(uid)).is_none());
        self.sweep();
    }

    /// Admits the pods that are new or changed, and shows all rejections.
    fn admit(&mut self, mut read: Read) -> (AdmittedPods, Vec<(Rc<Wanted>, Problem)>) {
        let mut refusals = std::mem::take(&mut read.refusals);
        let new = self.registry.unadmitted(&read);
        let bases = new.into_iter().map(|(name, new)| (name, self.base_of(new))).collect();
        let handling = &self.shell.handling;
        let (admitted, admissions) =
            self.registry.admit_all(read, bases, |file| file.map(|file| handling.in_loop(file)));
        for message in &admissions.new_refusals {
            log::error!("{message}");
        }
        refusals.extend(admissions.refusals);
        self.shell.publication.refused(&refusals);
        (admitted, admissions.problems)
    }

    fn report_difference(&mut self, difference: Difference, problems: &[(Rc<Wanted>, Problem)]) {
        for uid in difference.unwanted {
            self.observe(Observation::Unwanted { uid, grace: None });
        }
        let mut news = Vec::new();
        for (_, new) in difference.wanted {
            match self.record_of(&new.pod) {
                Ok(record) => {
                    let left = self.status_file_of(&new.pod);
                    news.push((new, record, left));
                }
                Err(short) => {
                    log::error!("{}/{}: {short}; trying again", new.pod.namespace, new.pod.name);
                    self.shell.stores.is_short.set(true);
                }
            }
        }
        registry::sort_admitted_first(&mut news, |(_, record, left)| {
            (record.as_deref(), left.as_ref().map(|left| &left.status))
        });
        for (new, record, left) in news {
            self.want(&new, record, left);
            for (_, problem) in problems.iter().filter(|(of, _)| Rc::ptr_eq(of, &new)) {
                match problem {
                    Problem::Conflict(event) => self.shell.publication.emit(&new, event),
                    Problem::Lost(why) => log::error!("{why}"),
                }
            }
            self.registry.set_desired(new);
        }
    }

    /// Continues when the images of a change were looked up.
    pub(super) fn images_looked_up(&mut self, look_up: LookUp, present: Vec<bool>) {
        if self.registry.held_updates.looked_up(look_up, present) {
            self.reconcile();
        }
    }

    /// Reports changes of objects to the pods that refer to them.
    fn report_changed_objects(&mut self, changed: &[DefinitionName]) {
        let affected = self.node.pods().filter(|pod| registry::refers_to(pod.pod(), changed));
        let affected: Vec<_> = affected.map(PodState::index).collect();
        for pod in affected {
            self.observe(Observation::Of(pod, PodObservation::ObjectsChanged));
        }
    }

    /// Publishes all non-pod objects from files. Returns the refusals, and the names of the changed objects.
    pub(super) fn read_definitions(&mut self) -> (Vec<Refusal>, Vec<DefinitionName>) {
        let (now, began) = self.times();
        self.registry.read_definitions(&now, &began)
    }

    /// The wall time of now, and that of the start of the agent.
    fn times(&self) -> (String, String) {
        let machine = &self.shell.machine;
        (machine.timestamp(nodlet_host::clock::instant()), machine.timestamp(machine.began))
    }

    /// Has held changes decided again after images were added or removed.
    pub(super) fn images_changed(&mut self) {
        if self.registry.held_updates.images_changed() {
            self.reconcile();
        }
    }

    /// The pods that an earlier boot kept running.
    pub(super) fn kept(&self) -> WantedByName {
        let read = |bytes: Option<&[u8]>| {
            let wanted = read_kept(bytes?, &self.shell.config.node_name)?;
            let admitted = registry::admit(self.base_of(&wanted), &wanted, &self.registry.policy()).ok()?;
            let wanted = self.shell.publication.admitted(admitted);
            Some(((wanted.pod.namespace.clone(), wanted.pod.name.clone()), wanted))
        };
        let recorded = self.shell.stores.recorded.borrow();
        let kept = recorded.kept().filter_map(|(path, bytes)| {
            let kept = read(bytes);
            if kept.is_none() {
                log::error!("{} is damaged; its pod will not be restored", path.display());
            }
            kept
        });
        kept.collect()
    }

    /// The presets and the priority with which a pod was admitted before, from memory or from its record.
    pub(super) fn base_of(&self, new: &Wanted) -> Base {
        let uid = &new.pod.uid;
        let known = self.node.index_of(uid).and_then(|index| self.shell.pods.wanted(index));
        Base::of(new, known.as_deref(), || self.shell.stores.admitted(&uid.0).map_err(drop))
    }

    /// The status that the previous agent wrote of a pod; `None` if the core knows the pod already.
    fn status_file_of(&self, pod: &Pod) -> Option<StatusFile> {
        let is_known = self.node.index_of(&pod.uid).is_some();
        if is_known {
            None
        } else {
            StatusFile::read(&self.shell.paths, &self.shell.stores.records, &pod.uid.0)
        }
    }

    /// The record of a pod; `None` if the core knows the pod already.
    ///
    /// # Errors
    /// The record cannot be read now because of a shortage, such as of descriptors or memory.
    fn record_of(&self, pod: &Pod) -> Result<Option<Box<Record>>, LoadError> {
        if self.node.index_of(&pod.uid).is_some() {
            return Ok(None);
        }
        self.shell.stores.load(&pod.uid.0).or_else(|error| {
            if error.is_shortage() {
                return Err(error);
            }
            let error = chain(&error);
            let record = Record::unknown(&pod.spec, &error);
            let then = if record.is_some() { "it counts as failed" } else { "it starts as if it were new" };
            log::error!("{}/{}: {error}; {then}", pod.namespace, pod.name);
            Ok(record)
        })
    }

    pub(super) fn want(&mut self, anew: &Rc<Wanted>, record: Option<Box<Record>>, left: Option<StatusFile>) {
        let file = self.registry.sources.handled(&anew.source);
        let _mark = file.map(|file| self.shell.handling.in_loop(file));
        let created = left.as_ref().map_or_else(|| created(record.as_deref()), |left| left.created);
        let status = left.map(|left| Box::new(left.status));
        let wanted = self.with_ephemeral(anew);
        let seen = Observation::Wanted { pod: wanted.pod.clone(), record, status };
        self.observe_with(seen, Some(&wanted));
        let Some(index) = self.node.index_of(&wanted.pod.uid) else { return };
        let goes = self.node.pod(index).is_some_and(PodState::is_unwanted);
        let mut pods = self.shell.pods.borrow_mut();
        match pods.get_mut(&index) {
            // A pod that is being removed keeps its spec.
            Some(_) if goes => {}
            Some(pod) => {
                pod.wanted = wanted.clone();
                drop(pods);
                // The published status is saved before the object: a later agent must recognise runs that end
                // because of the change.
                self.publish(index);
                let directory = self.shell.paths.run_pod(&wanted.pod.uid.0);
                if let Err(error) = handover_files::rewrite_object(&directory, &wanted) {
                    // A later agent reads the change in the manifest again.
                    log::warn!("failed to save the change of {}: {error}", wanted.pod.uid);
                }
            }
            None => {
                pods.insert(index, PodShell::new(wanted, created));
                drop(pods);
                self.fence_pod(index);
            }
        }
    }

    pub(super) fn observe_found(&mut self, found: recover::FoundPod) {
        let uid = found.wanted.pod.uid.clone();
        if let Some(waits) = found.waits {
            self.registry.held_updates.adopt(uid.clone(), waits);
        }
        let unread = self.registry.is_unread(&found.wanted);
        self.observe_with(Observation::Found(Box::new(found.facts)), Some(&found.wanted));
        let Some(index) = self.node.index_of(&uid) else { return };
        if unread {
            // Its file is there and wrong: it stays wanted.
            let seen = Observation::Wanted { pod: found.wanted.pod.clone(), record: None, status: None };
            self.observe_with(seen, Some(&found.wanted));
            self.registry.set_desired(found.wanted.clone());
        }
        let sandbox = found.sandbox.map(Rc::new);
        self.adopt_claims(index, &uid.0, found.claims);
        let pod = PodShell { sandbox, ..PodShell::new(found.wanted, found.created) };
        if let Some(sandbox) = &pod.sandbox {
            self.shell.tasks.spawn(sandbox::listen(self.shell.clone(), index, sandbox.clone()));
        }
        self.shell.pods.borrow_mut().insert(index, pod);
    }

    /// Removes the files of pods of earlier boots that no source wants; not while a file is refused, since it is
    /// unknown which pods that file wants.
    pub(super) fn sweep(&mut self) {
        if !self.swept && self.registry.all_read() {
            self.swept = true;
            let known = self.node.pods().map(|pod| pod.pod().uid.0.to_string()).collect();
            cleanup::sweep(&self.shell.tasks, &self.shell.stores, self.shell.paths.clone(), known);
            *self.shell.stores.recorded.borrow_mut() = Recorded::default();
        }
    }
}
