//! `status.conditions`: first those that clients set, as a kubelet lists them, then those of the node, with
//! their reasons and messages.

use serde_json::{Value, json};

use super::{name, time};
use crate::facts::PodPhase;
use crate::facts::{ConditionType, IMAGE_UPDATE_PENDING};
use crate::pod::{Condition, EVICTED, PodState, TERMINATED, closed_readiness_gates};
use crate::spec::{ContainerIndex, Role};
use crate::time::{Anchor, Moment};

/// Reason and message of a condition, if it has any.
type ConditionReason = Option<(&'static str, Option<String>)>;

/// The conditions of a pod without scheduling gates.
pub(super) fn of(pod: &PodState, anchor: Anchor) -> Value {
    let may_restart_all = pod
        .pod()
        .spec
        .all_containers()
        .any(|container| container.restart.as_ref().is_some_and(|own| own.may_restart_all()));
    let kinds = ConditionType::ALL.into_iter();
    let is_disrupted = pod.conditions().get(ConditionType::DisruptionTarget).status;
    let kinds = kinds.filter(|kind| match kind {
        ConditionType::AllContainersRestarting => may_restart_all,
        ConditionType::DisruptionTarget => is_disrupted,
        _ => true,
    });
    let own = kinds.map(|kind| {
        let condition = pod.conditions().get(kind);
        show(pod, kind, condition, why(pod, kind, condition.status), anchor)
    });
    // The node's own `DisruptionTarget` replaces that of a client.
    let set = client_conditions(pod).filter(|one| !is_disrupted || one["type"] != "DisruptionTarget");
    set.chain(own).chain(of_resize(pod, anchor)).chain(awaited_images(pod, anchor)).collect()
}

/// The conditions of a pod whose resize waits for resources, or is being carried out.
fn of_resize(pod: &PodState, anchor: Anchor) -> impl Iterator<Item = Value> {
    let show = |kind: &str, generation: u64, since: Moment, reason: &str, message: &str| {
        let mut value = json!({
            "type": kind,
            "status": "True",
            "observedGeneration": generation,
            "lastProbeTime": null,
            "lastTransitionTime": time(since, anchor),
        });
        if !reason.is_empty() {
            value["reason"] = reason.into();
            value["message"] = message.into();
        }
        value
    };
    let pending = pod.pending_resize().and_then(|pending| {
        let refusal = pending.refusal.as_ref()?;
        let generation = pending.wanted.generation;
        Some(show("PodResizePending", generation, pending.since, refusal.reason(), &refusal.message))
    });
    let progress = pod.resize_in_progress().map(|progress| {
        let (reason, message) = progress.error.as_deref().map_or(("", ""), |error| ("Error", error));
        show("PodResizeInProgress", progress.generation, progress.since, reason, message)
    });
    pending.into_iter().chain(progress)
}

/// The condition of a pod whose running containers wait for images.
fn awaited_images(pod: &PodState, anchor: Anchor) -> Option<Value> {
    let missing: Vec<_> = pod.missing_images().collect();
    let (_, first) = missing.first()?;
    let texts = missing.iter().map(|(index, missing)| {
        let container = pod.pod().spec.container(*index);
        format!("container {} waits for image \"{}\": {}", container.name, container.image, missing.message)
    });
    let message = texts.collect::<Vec<_>>().join("; ");
    Some(image_update_pending(pod, anchor, first.since, &first.reason, &message))
}

/// The message for a pod whose next version waits for these images.
pub(super) fn of_missing(images: &[String]) -> String {
    let images: Vec<String> = images.iter().map(|image| format!("\"{image}\"")).collect();
    format!("another version of the pod waits for images that are not on this node: {}", images.join(", "))
}

/// The condition that an update waits for images.
pub(super) fn image_update_pending(
    pod: &PodState,
    anchor: Anchor,
    since: Moment,
    reason: &str,
    message: &str,
) -> Value {
    json!({
        "type": IMAGE_UPDATE_PENDING,
        "status": "True",
        "observedGeneration": pod.generation(),
        "lastProbeTime": null,
        "lastTransitionTime": time(since, anchor),
        "reason": reason,
        "message": message,
    })
}

/// The conditions of a pod with scheduling gates: those that an API server sets on a pod without a node.
pub(super) fn of_gated(pod: &PodState, anchor: Anchor) -> Value {
    let kind = ConditionType::PodScheduled;
    let message = "Scheduling is blocked due to non-empty scheduling gates".to_owned();
    let why = Some(("SchedulingGated", Some(message)));
    let own = show(pod, kind, pod.conditions().get(kind), why, anchor);
    client_conditions(pod).chain([own]).collect()
}

/// The conditions that clients set.
pub(super) fn client_conditions(pod: &PodState) -> impl Iterator<Item = Value> {
    let to_json = |condition| serde_json::to_value(condition).unwrap_or_default();
    pod.client_conditions().iter().map(to_json)
}

fn show(
    pod: &PodState,
    kind: ConditionType,
    condition: Condition,
    why: ConditionReason,
    anchor: Anchor,
) -> Value {
    let mut value = json!({
        "type": kind.as_str(),
        "status": if condition.status { "True" } else { "False" },
        "observedGeneration": pod.generation(),
        "lastProbeTime": null,
        "lastTransitionTime": time(condition.since, anchor),
    });
    if let Some((reason, message)) = why {
        value["reason"] = reason.into();
        if let Some(message) = message {
            value["message"] = message.into();
        }
    }
    value
}

fn why(pod: &PodState, kind: ConditionType, status: bool) -> ConditionReason {
    match kind {
        ConditionType::PodReadyToStartContainers | ConditionType::PodScheduled => None,
        ConditionType::DisruptionTarget => Some(("TerminationByKubelet", Some(why_disrupted(pod)))),
        ConditionType::AllContainersRestarting => match (status, pod.phase()) {
            (_, PodPhase::Succeeded) => Some(("PodCompleted", None)),
            (_, PodPhase::Failed) => Some(("PodFailed", None)),
            (true, _) => Some((
                "RestartAllContainersStarted",
                Some("container exited with restart policy rule".to_owned()),
            )),
            (false, _) => None,
        },
        ConditionType::Initialized => match (status, pod.phase()) {
            (_, PodPhase::Succeeded) => Some(("PodCompleted", None)),
            (true, PodPhase::Pending | PodPhase::Running | PodPhase::Failed) => None,
            (false, _) => Some(("ContainersNotInitialized", Some(incomplete(pod)))),
        },
        ConditionType::ContainersReady => why_not_ready(pod, status),
        ConditionType::Ready if pod.conditions().get(ConditionType::ContainersReady).status => {
            let closed = closed_readiness_gates(&pod.pod().spec.readiness_gates, pod.client_conditions());
            (!status).then_some(("ReadinessGatesNotReady", Some(closed)))
        }
        ConditionType::Ready => why_not_ready(pod, status),
    }
}

fn why_disrupted(pod: &PodState) -> String {
    match pod.shown_terminal_phase() {
        Some(terminal) if matches!(terminal.reason.as_deref(), Some(TERMINATED | EVICTED)) => {
            terminal.message.as_deref().unwrap_or_default().to_owned()
        }
        Some(_) | None => "Pod was preempted by Kubelet to accommodate a critical pod.".to_owned(),
    }
}

fn why_not_ready(pod: &PodState, status: bool) -> ConditionReason {
    match (status, pod.phase()) {
        (true, _) => None,
        (false, PodPhase::Succeeded) => Some(("PodCompleted", None)),
        (false, PodPhase::Failed) => Some(("PodFailed", None)),
        (false, PodPhase::Pending | PodPhase::Running) => Some(("ContainersNotReady", Some(unready(pod)))),
    }
}

fn unready(pod: &PodState) -> String {
    let spec = &pod.pod().spec;
    let indexes = spec.init_indexes().chain(spec.regular_indexes());
    let counted = indexes.filter(|index| spec.role(*index) != Role::Init);
    let names = counted.filter(|index| !pod.health(*index).ready).map(|index| name(pod, index));
    format!("containers with unready status: [{}]", names.collect::<Vec<_>>().join(" "))
}

fn incomplete(pod: &PodState) -> String {
    let spec = &pod.pod().spec;
    let is_complete = |index: &ContainerIndex| match spec.role(*index) {
        Role::Sidecar => pod.health(*index).started,
        Role::Init | Role::Regular | Role::Ephemeral => pod.health(*index).ready,
    };
    let names = spec.init_indexes().filter(|index| !is_complete(index)).map(|index| name(pod, index));
    format!("containers with incomplete status: [{}]", names.collect::<Vec<_>>().join(" "))
}
