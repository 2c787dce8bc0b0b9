//! Eviction under pressure: which pod ends when the node has too little of a resource, and the message about it. The
//! order and the texts are the kubelet's (pod-semantics 8.5). Pure, like all of [`super`].

use std::cmp::Reverse;
use std::fmt::Write;
use std::time::Duration;

use super::Node;
use crate::facts::{PodIndex, PodUsage, Starved};
use crate::pod::{NODE_LOW, PodState};
use crate::pressure::StarvedResource;
use crate::spec::{Quantity, ResourceRequirements};
use crate::time::Instant;

/// The time for which no other pod is evicted while an evicted one ends (`podCleanupTimeout`), unless its files are what
/// is missing.
const CLEANUP: Duration = Duration::from_secs(30);

impl Node {
    /// Evicts a pod, unless an evicted one is about to free what is missing.
    pub(super) fn relieve(&mut self, now: Instant, starved: &Starved) {
        let waits = match starved.resource {
            // However long that takes: the next victim would not free what the first one occupies. What was measured
            // before the files of a victim were gone says nothing about the room that is there now.
            StarvedResource::EphemeralStorage | StarvedResource::Inodes => {
                self.pods.iter().any(PodState::has_files_of_victim)
                    || self.files_freed_at.is_some_and(|at| starved.measured_at <= at)
            }
            StarvedResource::Memory | StarvedResource::Pids => self.evicted.is_some_and(|(index, until)| {
                now < until && self.pod(index).is_some_and(PodState::uses_resources)
            }),
        };
        if waits || self.shutdown.is_some() {
            return;
        }
        // A pod between two runs of its containers has no process, and files that may take all that is missing.
        let holds_something = |pod: &&PodState| {
            pod.any_alive() || starved.usage(pod.index()).is_some_and(|usage| usage.total > 0)
        };
        let candidates = self.pods.iter().filter(|pod| pod.may_be_evicted()).filter(holds_something);
        let Some(victim) = candidates.min_by_key(|pod| rank(pod, starved)).map(PodState::index) else {
            return;
        };
        let Ok(place) = self.place(victim) else { return };
        let message = message(&self.pods[place], starved);
        self.pods[place].evict(now, message, &mut self.events);
        self.evicted = Some((victim, now + CLEANUP));
    }
}

impl Starved {
    fn usage(&self, pod: PodIndex) -> Option<&PodUsage> {
        self.usage.iter().find(|(index, _)| *index == pod).map(|(_, usage)| usage)
    }
}

/// The place of a pod in the order of eviction; of pods with the same rank, the oldest one comes first. A pod whose usage is
/// unknown comes last: it began after the pods were measured, and the shortage before.
fn rank(pod: &PodState, starved: &Starved) -> impl Ord + use<> {
    let usage = starved.usage(pod.index()).map(|usage| i64::try_from(usage.total).unwrap_or(i64::MAX));
    let request = match starved.resource {
        StarvedResource::Memory => pod.requested().memory,
        StarvedResource::EphemeralStorage => pod.requested().ephemeral_storage,
        StarvedResource::Inodes | StarvedResource::Pids => 0,
    };
    let above = usage.map_or(i64::MAX, |usage| usage.saturating_sub(request));
    // Requests play no part where there are none of a resource.
    let within = starved.resource != StarvedResource::Pids && above <= 0;
    (usage.is_none(), within, pod.pod().priority, Reverse(above))
}

/// The message about an eviction: what is missing, and which containers use more than they request.
fn message(pod: &PodState, starved: &Starved) -> String {
    let resource = starved.resource.name();
    let (threshold, available) = (bytes(starved.threshold), bytes(starved.available));
    let mut text = format!("{NODE_LOW}{resource}. Threshold quantity: {threshold}, available: {available}. ");
    let request: fn(&ResourceRequirements) -> Option<&Quantity> = match starved.resource {
        StarvedResource::Memory => |resources| resources.memory_request.as_ref(),
        StarvedResource::EphemeralStorage => |resources| resources.ephemeral_storage_request.as_ref(),
        StarvedResource::Inodes | StarvedResource::Pids => return text,
    };
    let Some(usage) = starved.usage(pod.index()) else { return text };
    let spec = &pod.pod().spec;
    let mut above = |what: &str, name: &str, used: u64, request: Option<&Quantity>| {
        let requested = request.map_or(0, Quantity::value);
        if i64::try_from(used).unwrap_or(i64::MAX) > requested || what == "Pod" {
            let request = request.map_or_else(|| "0".to_owned(), Quantity::to_string);
            let used = bytes(used);
            let _ = write!(
                text,
                "{what} {name} was using {used}, request is {request}, has larger consumption of {resource}. "
            );
        }
    };
    if starved.resource == StarvedResource::Memory
        && let Some(of_pod) = spec.resources.as_deref().and_then(request)
    {
        above("Pod", &pod.pod().name, usage.total, Some(of_pod));
    }
    for (name, used) in &usage.containers {
        let mut containers = spec.containers.iter().chain(&spec.init_containers);
        if let Some(container) = containers.find(|container| *container.name == **name) {
            above("Container", name, *used, request(&container.resources));
        }
    }
    text
}

/// A number of bytes as Kubernetes prints it.
fn bytes(bytes: u64) -> Quantity {
    Quantity::binary(bytes)
}
