//! Resizes: changes of the amounts of cpu and memory of a pod in place (`pods/resize`).
//!
//! ```text
//!  want ──► pending ──the node has room──► Recording ──on flash──► Ending ──nothing to end──► Writing
//!            │   ▲                            ▲                       ▲                        │   │
//!            ▼   │ resources become free      │ another resize        └──again── Failed ◄──────┘   ▼
//!      Deferred, Infeasible                                                                     complete
//! ```
//!
//! `PodState::pod` has the amounts that are allocated to the pod. A wanted amount that the node does not have is
//! pending, and changes nothing. Allocated amounts are on flash before a cgroup has them. Containers whose
//! `resizePolicy` requires it then end as those do whose image changed, before the cgroups are written.

use std::fmt::Write;
use std::rc::Rc;

use crate::facts::{Action, Amounts, Draft, Events, HandedOverResize, Wake};
use crate::spec::{Container, ContainerIndex, Pod, Quantity, ResourceRequirements};
use crate::time::{Instant, Moment};

use super::container::Run;
use super::{PodState, SYNC_RETRY};

/// The resize of a pod: at most one that waits for resources, and one that is being carried out.
#[derive(Debug, Default)]
pub(super) struct Resize {
    pending: Option<Box<Pending>>,
    progress: Option<Box<Progress>>,
}

/// Amounts that are wanted and not allocated.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The pod with these amounts.
    pub(crate) wanted: Rc<Pod>,
    /// Why they are not allocated; `None` before the node has decided.
    pub(crate) refusal: Option<Refusal>,
    /// `lastTransitionTime` of the condition.
    pub(crate) since: Moment,
}

/// Why a resize is not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Whether the node can never have the amounts.
    pub(crate) is_infeasible: bool,
    /// `message` of the condition.
    pub(crate) message: Box<str>,
}

impl Refusal {
    /// `reason` of the condition.
    pub(crate) fn reason(&self) -> &'static str {
        if self.is_infeasible { "Infeasible" } else { "Deferred" }
    }
}

/// Amounts that are allocated and not in effect yet.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The generation of the pod with these amounts.
    pub(crate) generation: u64,
    /// `lastTransitionTime` of the condition.
    pub(crate) since: Moment,
    /// The pod with the amounts in effect.
    pub(crate) actuated: Rc<Pod>,
    /// Why the cgroups could not be written.
    pub(crate) error: Option<Box<str>>,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The allocation is being written to flash.
    Recording,
    /// Containers that need a restart are ending.
    Ending,
    /// `Resize` is in flight.
    Writing,
    /// The cgroups could not be written.
    Failed { retry_at: Instant },
}

impl Resize {
    fn is_none(&self) -> bool {
        self.pending.is_none() && self.progress.is_none()
    }
}

impl PodState {
    /// Records the amounts that a source wants for the pod. Returns the pod without those that are not allocated.
    pub(super) fn want_amounts(&mut self, now: Instant, pod: Rc<Pod>) -> Rc<Pod> {
        let pending = self.resize.pending.take();
        if pod.has_amounts_of(&self.pod) || self.is_rejected() || self.pod.is_gated() {
            self.changed |= pending.is_some();
            return pod;
        }
        let mut allocated = Pod::clone(&pod);
        allocated.set_amounts_of(&self.pod);
        self.resize.pending = Some(match pending {
            Some(known) if known.wanted.has_amounts_of(&pod) => Box::new(Pending { wanted: pod, ..*known }),
            Some(_) | None => Box::new(Pending { wanted: pod, refusal: None, since: Moment::ThisBoot(now) }),
        });
        self.touch();
        Rc::new(allocated)
    }

    /// The amounts that the pod occupies of the node: those allocated, or those in effect if these are more.
    pub(crate) fn requested(&self) -> Amounts {
        let allocated = Amounts::requested(&self.pod);
        match &self.resize.progress {
            Some(progress) => allocated.max(&Amounts::requested(&progress.actuated)),
            None => allocated,
        }
    }

    /// The resize that waits for resources.
    pub(crate) fn pending_resize(&self) -> Option<&Pending> {
        self.resize.pending.as_deref().filter(|_| self.is_active())
    }

    /// Takes the pod with the amounts that are wanted and not allocated, for the pod that follows this one.
    pub(crate) fn take_wanted_amounts(&mut self) -> Option<Rc<Pod>> {
        self.resize.pending.take().map(|pending| pending.wanted)
    }

    /// The resize that the node has to decide on.
    pub(crate) fn undecided_resize(&self) -> Option<&Pending> {
        let is_final = |refusal: &Refusal| refusal.is_infeasible;
        self.pending_resize()
            .filter(|pending| self.may_run() && !pending.refusal.as_ref().is_some_and(is_final))
    }

    /// The resize that is being carried out.
    pub(crate) fn resize_in_progress(&self) -> Option<&Progress> {
        self.resize.progress.as_deref()
    }

    /// The pod with the amounts in effect.
    pub(crate) fn actuated(&self) -> &Pod {
        self.resize.progress.as_ref().map_or(&self.pod, |progress| &progress.actuated)
    }

    /// Records that the node does not have the amounts that are pending.
    pub(crate) fn refuse_resize(&mut self, now: Instant, refusal: Refusal, events: &mut Events) {
        let Some(pending) = &mut self.resize.pending else { return };
        if pending.refusal.as_ref() == Some(&refusal) {
            return;
        }
        let reason = refusal.reason();
        if pending.refusal.as_ref().is_none_or(|before| before.reason() != reason) {
            let event = if refusal.is_infeasible { "ResizeInfeasible" } else { "ResizeDeferred" };
            let text = event_text(&format!("Pod resize {reason}"), &pending.wanted, &refusal.message);
            events.warn(self.index, None, event, text);
            pending.since = Moment::ThisBoot(now);
        }
        pending.refusal = Some(refusal);
        self.changed = true;
    }

    /// Allocates the amounts that are pending.
    pub(crate) fn allocate_resize(&mut self, now: Instant, events: &mut Events) {
        let Some(pending) = self.resize.pending.take() else { return };
        let before = std::mem::replace(&mut self.pod, pending.wanted);
        let actuated = self.resize.progress.take().map_or(before, |progress| progress.actuated);
        events.note(self.index, None, "ResizeStarted", event_text("Pod resize started", &self.pod, ""));
        self.resize.progress = Some(Box::new(Progress {
            generation: self.pod.generation,
            since: Moment::ThisBoot(now),
            actuated,
            error: None,
            step: Step::Recording,
        }));
        self.volume_files.mark_outdated(&self.pod.spec);
        self.touch();
    }

    /// Plans the next step of a resize.
    pub(super) fn plan_resize(&mut self, now: Instant, draft: &mut Draft, events: &mut Events) {
        if self.resize.is_none() {
            return;
        }
        if !self.is_active() {
            // A pod that runs again, because a shutdown was cancelled, still has the pending resize.
            self.changed |= self.resize.progress.take().is_some();
            return;
        }
        if !self.may_run() {
            return;
        }
        let Some(progress) = &mut self.resize.progress else { return };
        if progress.step == Step::Recording && self.journal.has_allocation(&self.pod.allocation()) {
            progress.step = Step::Ending;
            let mut any = false;
            for (index, container) in self.containers.indexed_mut() {
                let requires = requires_restart(&progress.actuated, &self.pod, index);
                if requires && matches!(container.run(), Run::Running) && !container.is_redefined() {
                    container.redefine();
                    any = true;
                }
            }
            if any {
                self.touch();
            }
        }
        let Some(progress) = &mut self.resize.progress else { return };
        let is_due = match progress.step {
            Step::Ending => true,
            Step::Failed { retry_at } => retry_at <= now,
            Step::Recording | Step::Writing => false,
        };
        // A start in flight may have read the limits before they changed.
        let is_ending = self.containers.iter().any(|one| one.is_redefined() && one.is_alive());
        if !is_due || is_ending || self.containers.starts_in_flight() > 0 || self.sandbox.is_creating() {
            return;
        }
        if self.sandbox.is_absent() {
            self.resized(events);
        } else if self.sandbox.is_ready()
            && draft.push(self.index, Action::Resize { generation: progress.generation })
        {
            progress.step = Step::Writing;
        }
    }

    /// Records whether the cgroups have the amounts that are allocated.
    pub(super) fn resize_written(
        &mut self,
        now: Instant,
        generation: u64,
        failure: Option<Box<str>>,
        events: &mut Events,
    ) {
        let is_asked = |progress: &&mut Box<Progress>| {
            progress.generation == generation && progress.step == Step::Writing
        };
        let Some(progress) = self.resize.progress.as_mut().filter(is_asked) else { return };
        let Some(message) = failure else { return self.resized(events) };
        progress.step = Step::Failed { retry_at: now + SYNC_RETRY };
        if progress.error.is_none() {
            progress.since = Moment::ThisBoot(now);
            let text = event_text("Pod resize error", &self.pod, &message);
            events.warn(self.index, None, "ResizeError", text);
        }
        progress.error = Some(message);
        self.changed = true;
    }

    fn resized(&mut self, events: &mut Events) {
        self.resize.progress = None;
        let text = event_text("Pod resize completed", &self.pod, "");
        events.note(self.index, None, "ResizeCompleted", text);
        self.changed = true;
    }

    /// Whether a write of the allocation with these amounts is due. A record of a version that could not resize pods is
    /// not written anew until there is a resize.
    pub(super) fn is_allocation_due(&self, allocated: &[[String; 4]]) -> bool {
        let on_flash = self.journal.on_flash().map_or(&[][..], |record| &record.allocated);
        on_flash != allocated && (!on_flash.is_empty() || !self.resize.is_none())
    }

    pub(super) fn wake_resize(&self, wake: &mut Wake) {
        if let Some(Step::Failed { retry_at }) = self.resize.progress.as_ref().map(|progress| progress.step) {
            wake.note(retry_at);
        }
    }

    /// The incomplete resize, for the next agent.
    pub(super) fn handed_over_resize(&self) -> Option<Box<HandedOverResize>> {
        if self.resize.is_none() {
            return None;
        }
        let refusal = self.resize.pending.as_ref().and_then(|pending| {
            let refusal = pending.refusal.as_ref()?;
            Some((refusal.is_infeasible, refusal.message.clone(), pending.since))
        });
        let progress = self.resize.progress.as_ref();
        Some(Box::new(HandedOverResize {
            refusal,
            progress: progress.map(|progress| (progress.generation, progress.since)),
            actuated: progress.map_or_else(Vec::new, |progress| progress.actuated.allocation()),
            error: progress.and_then(|progress| progress.error.clone()),
        }))
    }

    /// Restores the amounts that were allocated; the present ones of the pod are those wanted.
    pub(super) fn restore_allocation(
        &mut self,
        allocated: &[[String; 4]],
        left: Option<&HandedOverResize>,
        now: Instant,
    ) {
        let with = |pod: &Rc<Pod>, allocation: &[[String; 4]]| {
            let mut of_before = Pod::clone(pod);
            of_before.set_allocation(allocation);
            Rc::new(of_before)
        };
        if !allocated.is_empty() && self.pod.allocation() != allocated {
            let of_before = with(&self.pod, allocated);
            // What the pod is now decides what it is: a change of its class is no resize.
            if self.pod.is_update_of(&of_before) && !self.pod.has_amounts_of(&of_before) {
                let wanted = std::mem::replace(&mut self.pod, of_before);
                let known = left.and_then(|left| left.refusal.clone());
                let since = known.as_ref().map_or(Moment::ThisBoot(now), |(_, _, since)| *since);
                let refusal = known.map(|(is_infeasible, message, _)| Refusal { is_infeasible, message });
                self.resize.pending = Some(Box::new(Pending { wanted, refusal, since }));
            }
        }
        if let Some((left, (generation, since))) = left.and_then(|left| Some((left, left.progress?))) {
            let actuated = with(&self.pod, &left.actuated);
            let error = left.error.clone();
            let step = Step::Recording;
            self.resize.progress = Some(Box::new(Progress { generation, since, actuated, error, step }));
        }
    }
}

/// Whether the change of the amounts requires a restart of the container.
fn requires_restart(before: &Pod, after: &Pod, index: ContainerIndex) -> bool {
    if usize::from(index.0) >= before.spec.admitted_containers().count() {
        return false;
    }
    let (old, new) = (&before.spec.container(index).resources, &after.spec.container(index).resources);
    let [old_cpu, old_memory] = [&old.resizable()[..2], &old.resizable()[2..]].map(<[_]>::to_vec);
    let [new_cpu, new_memory] = [&new.resizable()[..2], &new.resizable()[2..]].map(<[_]>::to_vec);
    new.cpu_resize_restarts && old_cpu != new_cpu || new.memory_resize_restarts && old_memory != new_memory
}

/// The message of an event about a resize: the text, then the resources of the containers as JSON.
fn event_text(what: &str, pod: &Pod, error: &str) -> Box<str> {
    let mut text = format!("{what}: {{");
    for (list, containers) in
        [("initContainers", &pod.spec.init_containers), ("containers", &pod.spec.containers)]
    {
        if containers.is_empty() {
            continue;
        }
        let all: Vec<String> = containers.iter().map(summary).collect();
        let _ = write!(text, "\"{list}\":[{}],", all.join(","));
    }
    let _ = write!(text, "\"generation\":{}", pod.generation);
    if !error.is_empty() {
        let _ = write!(text, ",\"error\":{}", serde_json::Value::from(error));
    }
    text.push('}');
    text.into()
}

fn summary(container: &Container) -> String {
    let list = |name: &str, amounts: [(&str, &Option<Quantity>); 3]| {
        let given = amounts.iter().filter_map(|(resource, amount)| {
            amount.as_ref().map(|amount| format!("\"{resource}\":\"{amount}\""))
        });
        let given: Vec<String> = given.collect();
        (!given.is_empty()).then(|| format!("\"{name}\":{{{}}}", given.join(",")))
    };
    let ResourceRequirements { cpu_limit, cpu_request, memory_limit, memory_request, .. } =
        &container.resources;
    let storage =
        (&container.resources.ephemeral_storage_limit, &container.resources.ephemeral_storage_request);
    let (cpu, disk, memory) = ("cpu", "ephemeral-storage", "memory");
    let lists = [
        list("limits", [(cpu, cpu_limit), (disk, storage.0), (memory, memory_limit)]),
        list("requests", [(cpu, cpu_request), (disk, storage.1), (memory, memory_request)]),
    ];
    let lists: Vec<String> = lists.into_iter().flatten().collect();
    format!("{{\"name\":\"{}\",\"resources\":{{{}}}}}", container.name, lists.join(","))
}
