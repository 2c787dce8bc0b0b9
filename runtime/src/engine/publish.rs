//! What people see: the Pod object as it was admitted, with today's status.

use serde_json::Value;

use crate::node::{PodIndex, Record};
use crate::objects::Key;
use crate::sources::Wanted;
use crate::status;
use crate::time::{Instant, Moment};

use super::{Engine, Shell};

impl Engine {
    /// Shows a pod as it is now, or takes away one that is gone.
    pub(super) fn publish(&mut self, pod: PodIndex) {
        let object = self.object(pod);
        match object {
            Some(object) => {
                if let Some(wanted) = self.shell.wanted(pod)
                    && !self.has_predecessor(pod, &wanted)
                {
                    self.shell.objects.put(key(&wanted), object);
                }
            }
            None => {
                let Some(gone) = self.shell.pods.borrow_mut().remove(&pod) else { return };
                // A successor of the same name is another object, and may be there already.
                let key = key(&gone.wanted);
                let shown = self.shell.objects.get(&key);
                let ours = |json: &str| {
                    serde_json::from_str::<Value>(json)
                        .is_ok_and(|shown| shown["metadata"]["uid"] == *gone.wanted.pod.uid.0)
                };
                if shown.is_some_and(|shown| ours(&shown.json)) {
                    self.shell.objects.delete(&key);
                }
                self.show_successor(&gone.wanted);
            }
        }
    }

    /// One name shows one pod: the older, until it is gone.
    fn has_predecessor(&self, pod: PodIndex, wanted: &Wanted) -> bool {
        let pods = self.shell.pods.borrow();
        pods.range(..pod).any(|(_, older)| key(&older.wanted) == key(wanted))
    }

    /// A pod that waited for the end of another of its name was not shown until now.
    fn show_successor(&mut self, gone: &Wanted) {
        let name = (gone.pod.namespace.clone(), gone.pod.name.clone());
        let successor = self.told.get(&name).and_then(|wanted| self.node.index_of(&wanted.pod.uid));
        if let Some(successor) = successor
            && let (Some(object), Some(wanted)) = (self.object(successor), self.shell.wanted(successor))
        {
            self.shell.objects.put(key(&wanted), object);
        }
    }

    /// The object of a pod; `None` if the core has dropped it.
    pub(super) fn object(&self, pod: PodIndex) -> Option<Value> {
        let state = self.node.pod(pod)?;
        let (wanted, created) = {
            let pods = self.shell.pods.borrow();
            let entry = pods.get(&pod)?;
            (entry.wanted.clone(), entry.created)
        };
        let anchor = self.shell.anchor.get();
        let mut object: Value = serde_json::from_slice(&wanted.object).ok()?;
        let metadata = &mut object["metadata"];
        if metadata.get("creationTimestamp").is_none_or(Value::is_null) {
            metadata["creationTimestamp"] = created.timestamp(anchor).to_string().into();
        }
        metadata["generation"] = 1.into();
        if let Some((at, grace)) = state.deletion() {
            metadata["deletionTimestamp"] = anchor.timestamp(at + grace).to_string().into();
            metadata["deletionGracePeriodSeconds"] = grace.as_secs().into();
        }
        object["spec"]["nodeName"] = self.shell.config.node_name.as_str().into();
        let host_ip = self.shell.network.borrow().host_ip();
        object["status"] = status::of(state, anchor, host_ip);
        Some(object)
    }
}

/// The place of a pod's object in the store.
pub(super) fn key(wanted: &Wanted) -> Key {
    Key::new("pods", &wanted.pod.namespace, &wanted.pod.name)
}

impl Shell {
    /// `metadata.creationTimestamp` of a pod from a file: when it was first seen, as far as that is known.
    pub(super) fn created(&self, record: Option<&Record>) -> Moment {
        record.and_then(|record| record.start_time).unwrap_or(Moment::ThisBoot(Instant::now()))
    }
}
