//! Decisions for the whole node: [`Node::observe`] takes observations, [`Node::plan`] returns actions.
//!
//! This crate knows no clock, file, process, socket or log. The node remembers what is in flight: an action
//! is planned once, and its outcome is an [`Observation`]. This module makes the decisions that concern more
//! than one pod: admission, the order in which pods get a scarce resource, and that two pods of one name
//! never run at the same time. Read next: `pod.rs`, the decisions for one pod, then `engine.rs`, which
//! carries out the actions.

mod admission;
mod eviction;
mod preemption;
mod resources;
mod ring;
mod shutdown;
mod terminated;

use std::cmp::Reverse;
use std::rc::Rc;

use admission::Outcome;
use resources::ExistingPod;
pub(crate) use ring::recorded;
pub use ring::{
    EmittedEvent, Entry, Line, Omitted, RING_ENTRIES, RecordDigest, RecordedAction, ReportedPod, Ring,
};

use crate::facts::*;
use crate::pod::{Demand, NodeContext, PodState};
use crate::spec::{ContainerIndex, Pod, ProbeKind, QosClass, Uid};
use crate::time::{Instant, Moment};
use shutdown::ShutdownProgress;

/// A change that the shell has to publish since it last asked: a new status, or a pod that is gone.
#[derive(Clone, Debug)]
pub enum NodeChange {
    /// The status of this pod may differ.
    Status(PodIndex),
    /// The pod is gone, with all its processes and files.
    Gone {
        /// The index that the pod had.
        index: PodIndex,
        /// The pod as it was admitted.
        pod: Rc<Pod>,
        /// The pod was force-deleted; the API no longer returns it.
        was_hidden: bool,
        /// The pod that follows under the same uid, if one does.
        again: Option<Successor>,
    },
}

/// The pod that follows a gone pod under its uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Successor {
    /// The index of the new pod.
    pub index: PodIndex,
    /// Whether a cancelled shutdown of the machine lets the gone pod start again, unchanged. Otherwise the
    /// successor is the pod that a source wanted last.
    pub resumes: bool,
}

/// All pods of this node.
#[derive(Debug, Default)]
pub struct Node {
    /// The pods in the order of their indexes. The sources bound their number: pods beyond [`MAX_PODS`] are
    /// rejected, and listed as such.
    pods: Vec<PodState>,
    next_index: u32,
    sources_seen: bool,
    /// The shutdown of all pods, if one is under way.
    shutdown: Option<ShutdownProgress>,
    /// The place of the pod with which the next plan begins, so that no pod is always the last one.
    first: usize,
    events: Events,
    gone: Vec<NodeChange>,
    /// The pod that was evicted last under pressure, and until when no other one is evicted for what it frees.
    evicted: Option<(PodIndex, Instant)>,
    /// When files of an evicted pod were removed last.
    files_freed_at: Option<Instant>,
    /// The exec probes that hold a place.
    exec_places: heapless::Vec<ExecPlace, EXEC_PROBES_AT_ONCE>,
    /// The fields of the Node object that admission depends on.
    info: Box<NodeInfo>,
}

/// The place of an exec probe that is in flight.
#[derive(Clone, Debug)]
struct ExecPlace {
    pod: PodIndex,
    container: ContainerIndex,
    kind: ProbeKind,
    /// When another probe may have the place, even if this one is still in flight.
    until: Instant,
}

impl Node {
    /// A node without pods.
    pub fn new() -> Self {
        Node::default()
    }

    /// Records an observation. An old or repeated one changes nothing.
    ///
    /// [`Observation::Found`] must be reported first, before any source.
    pub fn observe(&mut self, now: Instant, seen: Observation) {
        match seen {
            Observation::Wanted { pod, record, status } => self.want(now, pod, record, status),
            Observation::Unwanted { uid, grace } => {
                if let Some(pod) = self.of_uid(&uid) {
                    pod.unwant(now, grace);
                }
            }
            Observation::Hidden { uid } => {
                if let Some(pod) = self.of_uid(&uid) {
                    pod.hide();
                }
            }
            Observation::Restart { uid, container } => {
                if let Some(pod) = self.of_uid(&uid) {
                    pod.restart(container.as_deref());
                }
            }
            Observation::SourcesSeen => {
                self.sources_seen = true;
                // `nodlet down` gives each pod its whole grace period.
                for pod in &mut self.pods {
                    if pod.demand() == Demand::Unknown && self.shutdown.is_none() {
                        pod.unwant(now, Some(ORPHAN_GRACE));
                    }
                }
            }
            Observation::Found(found) => self.find(now, *found),
            Observation::Node(info) => self.info = info,
            Observation::ImagesChanged => {
                for pod in &mut self.pods {
                    pod.images_changed(now);
                }
            }
            Observation::Shutdown(shutdown) => {
                self.shutdown.get_or_insert_with(|| ShutdownProgress::new(shutdown));
            }
            Observation::ShutdownCancelled => {
                self.shutdown = None;
                self.pods.iter_mut().for_each(PodState::resume);
            }
            Observation::Starved(starved) => self.relieve(now, &starved),
            Observation::Of(index, seen) => {
                if let Ok(place) = self.place(index) {
                    let frees = matches!(seen, PodObservation::VolumesRemoved | PodObservation::Forgotten);
                    if frees && self.pods[place].is_victim() {
                        self.files_freed_at = Some(now);
                    }
                    self.pods[place].observe(now, seen, &mut self.events);
                }
            }
        }
    }

    /// Decides the actions to carry out now.
    pub fn plan(&mut self, now: Instant) -> Plan {
        self.decide_resizes(now);
        if let Some(ending) = &mut self.shutdown {
            ending.advance(now, &self.pods);
        }
        let in_flight: usize = self.pods.iter().map(PodState::starts_in_flight).sum();
        let writes = self.pods.iter().filter(|pod| pod.is_being_written()).count();
        let mut draft =
            Draft::new(STARTS_AT_ONCE.saturating_sub(in_flight), WRITES_AT_ONCE.saturating_sub(writes));
        let count = self.pods.len();
        let count_of =
            |pods: &[PodState], such: fn(&PodState) -> bool| pods.iter().filter(|pod| such(pod)).count();
        let before =
            (count_of(&self.pods, PodState::is_active), count_of(&self.pods, PodState::uses_resources));
        for turn in 0..count {
            let place = (self.first + turn) % count;
            let context = self.node_context(place);
            self.pods[place].plan(now, &mut draft, &mut self.events, context);
        }
        // Pods that restart again and again, and take long to fail, must not delay the others for ever.
        match draft.first_deferred().and_then(|index| self.place(index).ok()) {
            Some(place) => self.first = place,
            None if draft.is_full() => self.first = (self.first + 1) % count.max(1),
            None => {}
        }
        self.plan_exec_probes(now, &mut draft);
        // Pods that ended without a process to wait for make room for the next ones at once.
        let passed = self.shutdown.as_mut().is_some_and(|progress| progress.advance(now, &self.pods));
        let after =
            (count_of(&self.pods, PodState::is_active), count_of(&self.pods, PodState::uses_resources));
        let left = self.drop_gone(now) || before != after;
        self.events.plan(&mut draft);
        // A pod that left may be the one that another pod waits for.
        let more = draft.is_full() || left || passed;
        let mut wake = Wake::new(now, !self.exec_places.is_full());
        if self.exec_places.is_full() {
            self.exec_places.iter().for_each(|place| wake.note(place.until));
        }
        for place in 0..self.pods.len() {
            let context = self.node_context(place);
            self.pods[place].wake(&mut wake, context);
        }
        if let Some(ending) = &self.shutdown {
            ending.wake(&mut wake, &self.pods);
        }
        Plan { actions: draft.actions, wake_at: wake.at, more }
    }

    /// The pod with this index, if it exists.
    pub fn pod(&self, index: PodIndex) -> Option<&PodState> {
        self.place(index).ok().map(|place| &self.pods[place])
    }

    /// The index of the pod with this uid.
    pub fn index_of(&self, uid: &Uid) -> Option<PodIndex> {
        self.pods.iter().find(|pod| pod.pod().uid == *uid).map(PodState::index)
    }

    /// All pods, oldest first.
    pub fn pods(&self) -> impl Iterator<Item = &PodState> {
        self.pods.iter()
    }

    /// Whether, during a shutdown of the machine, no process is left and all records are on flash.
    pub fn is_at_rest(&self) -> bool {
        self.shutdown.is_some() && self.pods.iter().all(PodState::is_at_rest)
    }

    /// Whether no pod is left: after a shutdown, the agent may exit.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// The changes since the last call; removed pods come first.
    pub fn take_changed(&mut self) -> Vec<NodeChange> {
        let gone = self.gone.drain(..);
        let changed = self.pods.iter_mut().filter_map(|pod| {
            let index = pod.index();
            pod.take_changed().then_some(NodeChange::Status(index))
        });
        gone.chain(changed).collect()
    }

    fn want(
        &mut self,
        now: Instant,
        pod: Rc<Pod>,
        record: Option<Box<Record>>,
        status: Option<Box<StatusHandover>>,
    ) {
        if let Some(place) = self.pods.iter().position(|known| known.pod().uid == pod.uid) {
            let known = &mut self.pods[place];
            let was_gated = known.pod().is_gated();
            known.want(now, pod);
            // The pod counts on this node only from now on.
            if was_gated && !known.pod().is_gated() && known.is_active() {
                self.admit(place, now);
            }
            return;
        }
        let scope = self.shutdown.as_ref().map(|progress| progress.shutdown.scope);
        if scope == Some(ShutdownScope::Agent) {
            return;
        }
        let index = self.new_index();
        // Admission ignores finished pods, and an admitted pod stays admitted.
        let status = status.unwrap_or_default();
        let was_over = status.state.as_ref().is_some_and(|state| state.terminal_phase.is_some());
        let over = was_over || record.as_ref().is_some_and(|record| record.phase.is_terminal());
        if scope.is_some() && !over {
            let message = "Pod was rejected as the node is shutting down.";
            let mut state = PodState::wanted(index, pod, record, &status, now);
            state.reject("NodeShutdown", message, now);
            state.interrupt();
            self.events.warn(index, None, "NodeShutdown", message.into());
            self.pods.push(state);
            return;
        }
        let is_admission_decided =
            status.was_admitted() || record.as_ref().is_some_and(|record| record.is_admission_decided());
        let mut state = PodState::wanted(index, pod, record, &status, now);
        if is_admission_decided {
            state.set_admission_decided();
        }
        let is_new = !is_admission_decided && state.is_active() && !state.pod().is_gated();
        self.pods.push(state);
        if is_new {
            self.admit(self.pods.len() - 1, now);
        }
    }

    /// Decides whether the node admits the pod at `place`, which is new on this node.
    fn admit(&mut self, place: usize, now: Instant) {
        self.pods[place].set_admission_decided();
        let (index, pod) = (self.pods[place].index(), self.pods[place].pod().clone());
        // A pod that replaces another pod of its name takes over that pod's room too.
        let others = self.pods.iter().filter(|other| {
            other.uses_resources() && other.index() != index && !same_name(other.pod(), &pod)
        });
        let others: Vec<ExistingPod<'_>> = others
            .map(|other| ExistingPod {
                is_preempted: other.is_preempted(),
                requested: other.requested(),
                ..ExistingPod::new(other.index(), other.pod(), !other.is_active())
            })
            .collect();
        match admission::admit(&self.info, &pod, &others) {
            Outcome::Admitted => {}
            Outcome::Rejected { reason, message } => {
                self.pods[place].reject(&reason, &message, now);
                self.events.warn(index, None, reason, message.into());
            }
            Outcome::Preempts(victims) => {
                for victim in victims {
                    if let Ok(place) = self.place(victim) {
                        self.pods[place].preempt(now, &mut self.events);
                    }
                }
                self.pods[place].wait_for_room();
            }
        }
    }

    fn find(&mut self, now: Instant, found: FoundPod) {
        let orphan = self.sources_seen && self.shutdown.is_none();
        let mut demand = if orphan { Demand::Unwanted } else { Demand::Unknown };
        if let Some(known) = self.index_of(&found.pod.uid) {
            let Ok(place) = self.place(known) else { return };
            if !self.pods[place].is_new() {
                return;
            }
            // The pod was wanted before it was found: the found state is the true one.
            demand = self.pods[place].demand();
            self.pods.remove(place);
        }
        let index = self.new_index();
        let mut state = PodState::recovered(index, found, demand, now);
        if demand == Demand::Unwanted {
            state.unwant(now, Some(ORPHAN_GRACE));
        }
        self.pods.push(state);
    }

    /// Plans exec probes for the free places. The pods take turns, whatever number of probes each has; of one pod,
    /// the probe comes first that has been due for longest. Waiting probes have a due time and no queue, so
    /// nothing can overflow.
    fn plan_exec_probes(&mut self, now: Instant, draft: &mut Draft) {
        let pods = &self.pods;
        self.exec_places.retain(|place| {
            let mut of_pod = pods.iter().filter(|pod| pod.index() == place.pod);
            now < place.until && of_pod.any(|pod| pod.is_exec_probe_in_flight(place.container, place.kind))
        });
        while !self.exec_places.is_full() && !draft.is_full() {
            let due = |(place, pod): (usize, &PodState)| {
                let (due, container, kind) = pod.oldest_exec_probe().filter(|(due, ..)| *due <= now)?;
                Some((pod.last_exec_probe(), due, place, container, kind))
            };
            let Some((_, _, place, container, kind)) = self.pods.iter().enumerate().filter_map(due).min()
            else {
                break;
            };
            self.pods[place].plan_exec_probe(now, container, kind, draft);
            let pod = self.pods[place].index();
            if self.pods[place].is_exec_probe_in_flight(container, kind) {
                let until = now + EXEC_PROBE_HOLDS_PLACE;
                let _ = self.exec_places.push(ExecPlace { pod, container, kind, until });
            }
        }
    }

    /// Drops pods that are gone, and returns whether there were any.
    fn drop_gone(&mut self, now: Instant) -> bool {
        if !self.pods.iter().any(PodState::is_dropped) {
            return false;
        }
        let (dropped, kept): (Vec<_>, Vec<_>) = self.pods.drain(..).partition(PodState::is_dropped);
        self.pods = kept;
        self.first = if self.pods.is_empty() { 0 } else { self.first % self.pods.len() };
        for mut pod in dropped {
            let record = pod.take_record_to_resume();
            let resized = pod.take_wanted_amounts();
            let again = pod.take_successor().and_then(|again| {
                let resumes = Rc::ptr_eq(&again, pod.pod());
                self.want(now, again, record, None);
                if let Some(successor) = self.of_uid(&pod.pod().uid) {
                    successor.inherit_fence(pod.fence());
                }
                // It continues with what was allocated to it.
                if let Some(wanted) = resized.filter(|_| resumes) {
                    self.want(now, wanted, None, None);
                }
                self.index_of(&pod.pod().uid).map(|index| Successor { index, resumes })
            });
            let was_hidden = pod.is_hidden();
            self.gone.push(NodeChange::Gone {
                index: pod.index(),
                pod: pod.pod().clone(),
                was_hidden,
                again,
            });
        }
        true
    }

    /// The state of the node on which the decisions for the pod at `place` depend.
    fn node_context(&self, place: usize) -> NodeContext {
        let pod = &self.pods[place];
        let name_is_free = pod.asks_for_sandbox()
            && self.pods.iter().all(|other| {
                other.index() == pod.index()
                    || !same_name(other.pod(), pod.pod())
                    || (other.is_gone() && !(other.is_active() && other.index() < pod.index()))
            });
        let end = self.shutdown.as_ref().and_then(|progress| progress.end_of(pod.pod()));
        let shutdown = self.shutdown.as_ref().map(|progress| progress.shutdown.scope);
        let may_begin =
            name_is_free && pod.fence() == Fence::Open && (!pod.waits_for_room() || self.has_room_for(pod));
        NodeContext { may_begin, shutdown, end }
    }

    /// Whether an admitted pod, which waits for preempted pods to end, fits beside the pods that still occupy
    /// resources.
    fn has_room_for(&self, pod: &PodState) -> bool {
        let here = self.pods.iter().filter(|other| other.uses_resources());
        let here = here.map(|other| (&**other.pod(), other.requested()));
        admission::fits(&self.info, pod.pod(), here)
    }

    /// Decides on the resizes of pods that the node has not decided on, or that wait for resources: those first that
    /// need no more than before, then those of a higher priority, of guaranteed pods, and that wait for longest
    /// (`sortPendingResizes`).
    fn decide_resizes(&mut self, now: Instant) {
        if self.shutdown.is_some() || self.pods.iter().all(|pod| pod.undecided_resize().is_none()) {
            return;
        }
        let rank = |pod: &PodState| {
            let pending = pod.undecided_resize()?;
            let (before, wanted) = (Amounts::requested(pod.pod()), Amounts::requested(&pending.wanted));
            let since = match pending.since {
                Moment::ThisBoot(at) => at,
                Moment::Earlier(_) => Instant(0),
            };
            let is_lower = pod.pod().spec.qos_class() != QosClass::Guaranteed;
            Some((wanted.max(&before) != before, Reverse(pod.pod().priority), is_lower, since, pod.index()))
        };
        let mut pending: Vec<_> = self.pods.iter().filter_map(rank).collect();
        pending.sort_unstable();
        for (.., index) in pending {
            let Ok(place) = self.place(index) else { continue };
            let Some(wanted) = self.pods[place].undecided_resize().map(|pending| pending.wanted.clone())
            else {
                continue;
            };
            let others = self.pods.iter().filter(|other| other.uses_resources() && other.index() != index);
            let others = others.map(PodState::requested);
            let before = &self.pods[place];
            match admission::resize(&self.info, &wanted, before.pod(), &before.requested(), others) {
                Ok(()) => self.pods[place].allocate_resize(now, &mut self.events),
                Err(refusal) => self.pods[place].refuse_resize(now, refusal, &mut self.events),
            }
        }
    }

    fn of_uid(&mut self, uid: &Uid) -> Option<&mut PodState> {
        self.pods.iter_mut().find(|pod| pod.pod().uid == *uid)
    }

    fn place(&self, index: PodIndex) -> Result<usize, usize> {
        self.pods.binary_search_by_key(&index, PodState::index)
    }

    /// The index of the next new pod.
    fn next_index(&self) -> PodIndex {
        PodIndex(self.next_index + 1)
    }

    fn new_index(&mut self) -> PodIndex {
        let index = self.next_index();
        self.next_index = index.0;
        index
    }
}

fn same_name(one: &Pod, other: &Pod) -> bool {
    one.name == other.name && one.namespace == other.namespace
}
