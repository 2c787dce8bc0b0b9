//! Whom the node takes, once: what a pod asks of the node, held against what that is and what
//! those ask that are here already (pod-semantics 8.1). Pure, as all of [`super`].
//!
//! What was admitted stays admitted: an agent that starts again judges nobody anew. What a pod
//! requests counts until it is truly gone.

use super::preemption;
use crate::facts::{Amounts, NodeInfo, PodIndex};
use crate::spec::container::ContainerPort;
use crate::spec::{Pod, QosClass, Taint};

/// What a node has so much of, in the order in which it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Pods,
    Cpu,
    Memory,
    EphemeralStorage,
}

impl Resource {
    const ALL: [Resource; 4] = [Resource::Pods, Resource::Cpu, Resource::Memory, Resource::EphemeralStorage];

    pub(super) fn name(self) -> &'static str {
        match self {
            Resource::Pods => "pods",
            Resource::Cpu => "cpu",
            Resource::Memory => "memory",
            Resource::EphemeralStorage => "ephemeral-storage",
        }
    }

    /// The amount of this resource.
    pub(super) fn of(self, amounts: &Amounts) -> i64 {
        match self {
            Resource::Pods => amounts.pods,
            Resource::Cpu => amounts.cpu,
            Resource::Memory => amounts.memory,
            Resource::EphemeralStorage => amounts.ephemeral_storage,
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Resource::Pods => "OutOfpods",
            Resource::Cpu => "OutOfcpu",
            Resource::Memory => "OutOfmemory",
            Resource::EphemeralStorage => "OutOfephemeral-storage",
        }
    }
}

/// A pod that is here while another is judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Other<'a> {
    pub(super) index: PodIndex,
    pub(super) pod: &'a Pod,
    pub(super) requested: Amounts,
    pub(super) class: QosClass,
    /// It is on its way out: what it has will be free, and is not yet.
    pub(super) goes: bool,
    /// It goes to make room: who comes meanwhile is judged as if it had gone, and waits for that.
    pub(super) makes_room: bool,
}

impl<'a> Other<'a> {
    pub(super) fn new(index: PodIndex, pod: &'a Pod, goes: bool) -> Self {
        let (requested, class) = (Amounts::requested(pod), pod.spec.qos_class());
        Other { index, pod, requested, class, goes, makes_room: false }
    }
}

/// What becomes of a pod that comes to the node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Admitted,
    /// These have to end for it, perhaps none but such as end anyway: it waits for its room.
    Preempts(Vec<PodIndex>),
    Rejected {
        reason: &'static str,
        message: String,
    },
}

/// So much of a resource is asked for, and not there.
#[derive(Clone, Copy, Debug)]
struct Missing {
    resource: Resource,
    requested: i64,
    used: i64,
    capacity: i64,
}

/// Judges a pod, with `others` being those that have a place on the node already.
pub(super) fn judge(node: &NodeInfo, pod: &Pod, others: &[Other<'_>]) -> Outcome {
    const OS: &str = "kubernetes.io/os";
    let rejected =
        |reason: &'static str, message: &str| Outcome::Rejected { reason, message: message.to_owned() };
    // Where room helps nothing, nobody has to make any.
    if pod.labels.get(OS).is_some_and(|os| os != "linux") {
        let message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return rejected("PodOSSelectorNodeLabelDoesNotMatch", message);
    }
    let placement = &pod.spec.placement;
    if !placement.os.is_empty() && placement.os != "linux" {
        return rejected("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS");
    }
    // A kubelet judges nobody until those have ended whom it has preempted.
    let stay = || others.iter().filter(|other| !other.makes_room);
    let (missing, unfit) = (missing(node, pod, stay()), unfit(node, pod, stay()));
    match (missing.first(), unfit) {
        (None, None)
            if self::missing(node, pod, others.iter()).is_empty()
                && self::unfit(node, pod, others.iter()).is_none() =>
        {
            Outcome::Admitted
        }
        (None, None) => Outcome::Preempts(Vec::new()),
        // What has another reason than want of room is not helped by room.
        (_, Some((reason, why))) if pod.is_critical() || missing.is_empty() => {
            rejected(reason, &format!("Predicate {reason} failed: {why}"))
        }
        (Some(_), _) if pod.is_critical() => preempt(node, pod, others),
        (Some(Missing { resource, requested, used, capacity }), _) => {
            let name = resource.name();
            let message = format!(
                "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
            );
            Outcome::Rejected { reason: resource.reason(), message }
        }
        (None, Some(_)) => unreachable!("nothing is missing"),
    }
}

/// Whether all of `here`, `pod` among them, fit as far as `pod` asks for something.
pub(super) fn fits<'a>(node: &NodeInfo, pod: &Pod, here: impl Iterator<Item = &'a Pod>) -> bool {
    let used = here.map(Amounts::requested).fold(Amounts::default(), |all, one| all.plus(&one));
    let asked = Amounts::requested(pod);
    Resource::ALL
        .into_iter()
        .all(|resource| resource.of(&asked) == 0 || resource.of(&used) <= resource.of(&node.allocatable))
}

fn missing<'a>(node: &NodeInfo, pod: &Pod, others: impl Iterator<Item = &'a Other<'a>>) -> Vec<Missing> {
    let used = others.fold(Amounts::default(), |all, other| all.plus(&other.requested));
    let asked = Amounts::requested(pod);
    let of = |resource: Resource| Missing {
        resource,
        requested: resource.of(&asked),
        used: resource.of(&used),
        capacity: resource.of(&node.allocatable),
    };
    let is_missing =
        |one: &Missing| one.requested > 0 && one.requested > one.capacity.saturating_sub(one.used);
    Resource::ALL.into_iter().map(of).filter(is_missing).collect()
}

/// Why the pod is none for this node, whatever room there is: the predicate and its reason.
fn unfit<'a>(
    node: &NodeInfo,
    pod: &Pod,
    mut others: impl Iterator<Item = &'a Other<'a>>,
) -> Option<(&'static str, &'static str)> {
    let placement = &pod.spec.placement;
    let is_borne = |taint: &Taint| taint.effect != "NoExecute" || placement.tolerates(taint);
    if !placement.matches(&node.name, &node.labels) {
        Some(("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"))
    } else if others
        .any(|other| host_ports(pod).any(|port| host_ports(other.pod).any(|taken| clash(port, taken))))
    {
        Some(("NodePorts", "node(s) didn't have free ports for the requested pod ports"))
    } else if !node.taints.iter().all(is_borne) {
        Some(("TaintToleration", "node(s) had taints that the pod didn't tolerate"))
    } else {
        None
    }
}

/// Ports of the host that a pod has as long as it runs.
fn host_ports(pod: &Pod) -> impl Iterator<Item = &ContainerPort> {
    let sidecars = pod.spec.init_containers.iter().filter(|container| container.sidecar);
    let containers = sidecars.chain(&pod.spec.containers);
    containers.flat_map(|container| &container.ports).filter(|port| port.host_port > 0)
}

fn clash(one: &ContainerPort, other: &ContainerPort) -> bool {
    let is_any = |ip: &str| ip.is_empty() || ip == "0.0.0.0";
    one.host_port == other.host_port
        && one.protocol == other.protocol
        && (one.host_ip == other.host_ip || is_any(&one.host_ip) || is_any(&other.host_ip))
}

/// What is free when those are gone that go anyway needs nobody else to go.
fn preempt(node: &NodeInfo, pod: &Pod, others: &[Other<'_>]) -> Outcome {
    let stay: Vec<Other<'_>> = others.iter().copied().filter(|other| !other.goes).collect();
    let need = missing(node, pod, stay.iter())
        .iter()
        .map(|one| (one.resource, one.requested.saturating_sub(one.capacity.saturating_sub(one.used))))
        .collect();
    match preemption::choose(pod, &stay, need) {
        Ok(victims) => Outcome::Preempts(victims),
        Err(why) => Outcome::Rejected {
            reason: "UnexpectedAdmissionError",
            message: format!(
                "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: {why}"
            ),
        },
    }
}

#[cfg(test)]
mod tests;
