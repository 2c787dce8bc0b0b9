//! What priority a pod is admitted with, once: it is kept with the pod, on flash and beside its
//! supervisor, so that neither another class nor a later agent changes it.

use std::rc::Rc;

use crate::api::Status;
use crate::manifest::{Classes, Kind, Manifest, Priority, priority};
use crate::registry::{Refusal, Wanted, WantedByName};
use crate::spec::Uid;

use super::Engine;

impl Engine {
    /// Gives those of `wanted` that are not told yet the priority that they are admitted with. What
    /// is said of those for which there is none, which are wanted no more.
    pub(super) fn take_priorities(&mut self, wanted: &mut WantedByName) -> Vec<Refusal> {
        let before = std::mem::take(&mut self.without_class);
        for (name, new) in wanted.iter_mut() {
            if self.told.get(name).is_some_and(|old| old.says_the_same(new)) {
                continue;
            }
            match self.with_priority(new) {
                Ok(admitted) => *new = Rc::new(admitted),
                Err(why) => {
                    let message = format!("{}: {}", new.source.display(), forbidden(&name.1, &why));
                    let pod = Some((name.0.to_string(), name.1.to_string()));
                    let refusal = Refusal { source: new.source.clone(), pod, message };
                    if before.get(name) != Some(&refusal) {
                        log::error!("{}", refusal.message);
                    }
                    self.without_class.insert(name.clone(), refusal);
                }
            }
        }
        wanted.retain(|name, _| !self.without_class.contains_key(name));
        self.without_class.values().cloned().collect()
    }

    /// Whether what the file of a pod that was found says now is refused for its priority: then it
    /// stays what it is.
    pub(super) fn would_lack_class(&self, found: &Wanted) -> bool {
        let name = (found.pod.namespace.clone(), found.pod.name.clone());
        let (wanted, _) = self.registry.sources.wanted();
        let new = wanted.get(&name).filter(|new| new.source == found.source);
        // What it was admitted with itself it keeps.
        new.is_some_and(|new| {
            let before = found.priority.as_deref().filter(|_| new.pod.uid == found.pod.uid);
            new.with_priority(&self.classes(), before.cloned()).is_err()
        })
    }

    /// That of a pod from the API.
    pub(super) fn priority_of(&self, manifest: &Manifest) -> Result<Priority, Status> {
        let before = self.priority_before(&manifest.pod.uid);
        Priority::of(&manifest.object, &self.classes(), before)
            .map_err(|why| Status::forbidden(forbidden(&manifest.pod.name, &why)))
    }

    pub(super) fn with_priority(&self, new: &Wanted) -> Result<Wanted, String> {
        new.with_priority(&self.classes(), self.priority_before(&new.pod.uid))
    }

    fn priority_before(&self, uid: &Uid) -> Option<Priority> {
        match self.node.index_of(uid).and_then(|index| self.shell.wanted(index)) {
            Some(known) => known.priority.as_deref().cloned(),
            None => self.shell.records.priority(&uid.0),
        }
    }

    fn classes(&self) -> Classes {
        let classes = self.definitions.iter().filter(|(name, _)| name.0 == Kind::PriorityClass);
        classes.map(|(name, (class, _))| (name.2.clone(), priority::class(&class.object))).collect()
    }
}

fn forbidden(pod: &str, why: &str) -> String {
    format!("pods \"{pod}\" is forbidden: {why}")
}
