//! What files and earlier agents want of the core: it is told the difference between two readings.

use std::rc::Rc;

use super::on_tmpfs::{self, LeftBehind};
use super::{Engine, PodShell, kernel_news, leave, recover, sandbox};
use crate::node::{Observation, PodState, Record};
use crate::registry::Wanted;
use crate::sources::SAVED_WITHIN;
use crate::spec::{Pod, Uid};
use crate::store::LoadError;
use crate::time::Instant;

impl Engine {
    /// Reads what changed in the manifest directories; from now on, or again when it is time.
    pub(super) fn look_at_sources(&mut self) {
        let shell = &self.shell;
        let mut directories = shell.directories.borrow_mut();
        if directories.read(Instant::now(), &mut self.registry.sources) {
            shell.later(SAVED_WITHIN, Engine::read_sources);
        }
        let heard = directories.unheard().and_then(|watch| kernel_news::hear_sources(shell, watch));
        match &heard {
            Ok(true) => directories.is_heard(),
            Ok(false) => {}
            Err(error) => log::error!("failed to wait for what becomes of the manifest directories: {error}"),
        }
        if directories.is_blind() || heard.is_err() {
            shell.look_again();
        }
    }

    /// Tells the core the difference between what was wanted and what is.
    pub(super) fn read_sources(&mut self) {
        self.look_at_sources();
        let (mut wanted, mut refusals) = self.registry.sources.wanted();
        refusals.extend(self.read_definitions());
        refusals.extend(self.take_priorities(&mut wanted));
        self.hold_back(&mut wanted);
        self.shell.events.borrow_mut().refused(&refusals, self.shell.anchor.get());
        let before = std::mem::take(&mut self.told);
        for (name, old) in before {
            let stays = wanted.get(&name).is_some_and(|new| new.pod.uid == old.pod.uid);
            let unread = !wanted.contains_key(&name)
                && (self.without_class.get(&name).is_some_and(|refused| refused.source == old.source)
                    || self.registry.sources.is_refused(&old.source));
            if unread {
                self.told.insert(name, old);
            } else if !stays && self.is_deleting(&old.pod.uid) {
                // It is stopped by whoever removed its file.
            } else if !stays {
                self.observe(Observation::Unwanted { uid: old.pod.uid.clone(), grace: None });
            } else {
                self.told.insert(name, old);
            }
        }
        let mut news = Vec::new();
        for (name, new) in wanted {
            if self.told.get(&name).is_none_or(|old| !old.says_the_same(&new)) {
                match self.record_of(&new.pod) {
                    Ok(record) => {
                        let left = self.left_behind_of(&new.pod);
                        news.push((name, new, record, left));
                    }
                    Err(short) => {
                        log::error!("{}/{}: {short}; trying again", new.pod.namespace, new.pod.name);
                        self.shell.look_again();
                    }
                }
            }
        }
        // Nobody new takes the room of one that the node has taken before.
        news.sort_by_key(|(_, _, record, left)| {
            let had_place = left.as_ref().is_some_and(|left| left.status.had_place());
            !had_place && record.as_ref().is_none_or(|record| !record.was_judged())
        });
        for (name, new, record, left) in news {
            let (new, conflict) = self.with_presets(new, record.is_some());
            self.want(new.clone(), record, left);
            if let Some(conflict) = conflict {
                self.shell.emit_of(&new, &conflict);
            }
            self.told.insert(name, new);
        }
        self.sweep();
    }

    /// A client deletes the pod, and its file is being removed.
    fn is_deleting(&self, uid: &Uid) -> bool {
        self.shell.pods.borrow().values().any(|entry| entry.deleting && entry.wanted.pod.uid == *uid)
    }

    /// What an agent before left behind of a pod that the core does not know yet.
    fn left_behind_of(&self, pod: &Pod) -> Option<LeftBehind> {
        let is_known = self.node.index_of(&pod.uid).is_some();
        if is_known { None } else { LeftBehind::read(&self.shell, &pod.uid.0) }
    }

    /// What is on flash of a pod that the core does not know yet.
    ///
    /// # Errors
    /// It cannot be read now, for want of something that has nothing to do with it.
    fn record_of(&self, pod: &Pod) -> Result<Option<Box<Record>>, LoadError> {
        if self.node.index_of(&pod.uid).is_some() {
            return Ok(None);
        }
        self.shell.records.load(&pod.uid.0).or_else(|error| {
            if error.is_shortage {
                return Err(error);
            }
            let record = Record::unknown(&pod.spec, &error.message);
            let then = if record.is_some() { "it counts as failed" } else { "it starts as if it were new" };
            log::error!("{}/{}: {error}; {then}", pod.namespace, pod.name);
            Ok(record)
        })
    }

    pub(super) fn want(&mut self, anew: Rc<Wanted>, record: Option<Box<Record>>, left: Option<LeftBehind>) {
        let created =
            left.as_ref().map_or_else(|| self.shell.created(record.as_deref()), |left| left.created);
        let deletion = left.as_ref().and_then(|left| left.deletion);
        let status = left.map(|left| Box::new(left.status));
        let wanted = self.with_ephemeral(&anew);
        let seen = Observation::Wanted { pod: wanted.pod.clone(), record, status };
        self.observe_with(seen, Some(&wanted));
        let Some(index) = self.node.index_of(&wanted.pod.uid) else { return };
        let goes = self.node.pod(index).is_some_and(PodState::is_unwanted);
        let mut pods = self.shell.pods.borrow_mut();
        match pods.get_mut(&index) {
            // To its end it is what it was.
            Some(pod) if goes => pod.again = Some(anew),
            Some(pod) => {
                pod.wanted = wanted.clone();
                drop(pods);
                // What the core knows nothing of may be another. What ends for the change is
                // written down before the change is, or a later agent might not see that it is one.
                self.publish(index);
                let directory = self.shell.paths.run_pod(&wanted.pod.uid.0);
                if let Err(error) = on_tmpfs::rewrite_object(&directory, &wanted) {
                    // What a later agent finds in its manifest it takes up again.
                    log::warn!("failed to write down the change of {}: {error}", wanted.pod.uid);
                }
            }
            None => drop(pods.insert(index, PodShell { deletion, ..PodShell::new(wanted, created) })),
        }
    }

    pub(super) fn observe_found(&mut self, found: recover::FoundPod) {
        let uid = found.wanted.pod.uid.clone();
        if let Some(waits) = found.waits {
            self.holds.adopt(uid.clone(), waits);
        }
        let unread =
            self.registry.sources.is_refused(&found.wanted.source) || self.would_lack_class(&found.wanted);
        self.observe_with(Observation::Found(found.found), Some(&found.wanted));
        let Some(index) = self.node.index_of(&uid) else { return };
        if unread {
            // Its file is there and wrong: it stays wanted.
            let seen = Observation::Wanted { pod: found.wanted.pod.clone(), record: None, status: None };
            self.observe_with(seen, Some(&found.wanted));
            let name = (found.wanted.pod.namespace.clone(), found.wanted.pod.name.clone());
            self.told.insert(name, found.wanted.clone());
        }
        let sandbox = found.sandbox.map(Rc::new);
        let pod =
            PodShell { sandbox, deletion: found.deletion, ..PodShell::new(found.wanted, found.created) };
        if let Some(sandbox) = &pod.sandbox {
            self.shell.spawn(sandbox::listen(self.shell.clone(), index, sandbox.clone()));
        }
        self.shell.pods.borrow_mut().insert(index, pod);
    }

    /// Removes what earlier boots left of pods that nobody wants; not while a file is
    /// refused, for then nobody can say what it wants.
    pub(super) fn sweep(&mut self) {
        let all_read = self.without_class.is_empty() && self.registry.sources.wanted().1.is_empty();
        if !self.swept && all_read {
            self.swept = true;
            let known = self.node.pods().map(|pod| pod.pod().uid.0.to_string()).collect();
            leave::sweep(&self.shell, &known);
        }
    }
}
