//! Admission: whether the node accepts a new pod. It compares what the pod requests of the node with the
//! node, and with what the existing pods request (pod-semantics 8.1). Pure, like all of [`super`].
//!
//! An admitted pod stays admitted: an agent that restarts does not decide again. The requests of a pod count
//! until the pod is gone.

use super::preemption;
use super::resources::{ExistingPod, Resource};
use crate::cpus::NO_EXCLUSIVE_CPUS;
use crate::facts::{Amounts, NodeInfo, PodIndex};
use crate::pod::EVICTED;
use crate::pod::resize::Refusal;
use crate::pressure::NodeCondition;
use crate::sorted::SortedMap;

use crate::spec::container::{ContainerPort, DEVICE_DOMAIN, HUGE_PAGES};
use crate::spec::{Pod, QosClass, ResourceRequirements, Taint, sysctl};

/// The outcome of admission for a new pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Admitted,
    /// The pod waits for its room until these pods have ended. The list is empty if only pods that end anyway
    /// are in the way.
    Preempts(Vec<PodIndex>),
    Rejected {
        reason: String,
        message: String,
    },
}

/// A request for a resource that exceeds what is free.
#[derive(Clone, Copy, Debug)]
struct Missing {
    resource: Resource,
    requested: i64,
    used: i64,
    capacity: i64,
}

/// Decides whether the node admits a pod, given `others`, the pods that the node has admitted already.
pub(super) fn admit(node: &NodeInfo, pod: &Pod, others: &[ExistingPod<'_>]) -> Outcome {
    const OS: &str = "kubernetes.io/os";
    if let Some(why) = under_pressure(node, pod) {
        return Outcome::Rejected { reason: EVICTED.to_owned(), message: why };
    }
    let rejected = |reason: &str, message: &str| Outcome::Rejected {
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    // These checks come first: no other pod has to end if the pod is rejected whatever room there is.
    if pod.labels.get(OS).is_some_and(|os| os != "linux") {
        let message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return rejected("PodOSSelectorNodeLabelDoesNotMatch", message);
    }
    let placement = &pod.spec.placement;
    if !placement.os.is_empty() && placement.os != "linux" {
        return rejected("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS");
    }
    for (name, _) in &pod.spec.security_context.sysctls {
        if let Err(why) = sysctl::check(name, &node.allowed_sysctls, pod.spec.host_network, pod.spec.host_ipc)
        {
            return rejected("SysctlForbidden", &format!("forbidden sysctl: {why}"));
        }
    }
    if node.allows_exclusive_cpus
        && node.exclusive_cpus.is_empty()
        && names(pod, |resources| &resources.exclusive_cpus).next().is_some()
    {
        // As of the static policy of a kubelet's cpu manager.
        let why = format!(
            "Allocate failed due to exclusive-cpus.nodlet.dev: {NO_EXCLUSIVE_CPUS}, which is unexpected"
        );
        return rejected("UnexpectedAdmissionError", &why);
    }
    if pod.spec.requires_app_armor() && !node.app_armor {
        return rejected("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host");
    }
    // A kubelet admits no further pod until those that it preempted have ended.
    let stay = || others.iter().filter(|other| !other.is_preempted);
    let (missing, unfit) = (missing(node, pod, stay()), unfit(node, pod, stay()));
    match (missing.first(), unfit) {
        (None, None) => match missing_device(node, pod, stay().map(|other| other.pod)) {
            // No pod is preempted for a device: its user may control a machine.
            Some(rejected) => rejected,
            None if self::missing(node, pod, others.iter()).is_empty()
                && self::unfit(node, pod, others.iter()).is_none()
                && missing_device(node, pod, others.iter().map(|other| other.pod)).is_none() =>
            {
                Outcome::Admitted
            }
            None => Outcome::Preempts(Vec::new()),
        },
        // More room does not help a pod that has another reason for its rejection.
        (_, Some((reason, why))) if pod.is_critical() || missing.is_empty() => {
            rejected(reason, &format!("Predicate {reason} failed: {why}"))
        }
        (Some(_), _) if pod.is_critical() => {
            // Preemption does not help a pod that lacks a device.
            missing_device(node, pod, stay().map(|other| other.pod))
                .unwrap_or_else(|| preempt(node, pod, others))
        }
        (Some(Missing { resource, requested, used, capacity }), _) => {
            let message = not_enough(resource.name(), *requested, *used, *capacity);
            Outcome::Rejected { reason: resource.reason().to_owned(), message }
        }
        (None, Some(_)) => unreachable!("nothing is missing"),
    }
}

/// Why a node under pressure rejects a pod: memory pressure alone concerns only pods that request nothing, and do not
/// tolerate it.
fn under_pressure(node: &NodeInfo, pod: &Pod) -> Option<String> {
    let memory = || Taint {
        key: "node.kubernetes.io/memory-pressure".into(),
        value: Default::default(),
        effect: "NoSchedule".into(),
    };
    let is_borne = match node.pressure[..] {
        [] => true,
        [NodeCondition::MemoryPressure] => {
            pod.spec.qos_class() != QosClass::BestEffort || pod.spec.placement.tolerates(&memory())
        }
        _ => false,
    };
    if is_borne || pod.is_critical() {
        return None;
    }
    let names: Vec<_> = node.pressure.iter().map(|condition| condition.name()).collect();
    Some(format!("The node had condition: [{}]. ", names.join(" ")))
}

/// Whether a running container would need another amount of swap (`disallowResizeForSwappableContainers` of the
/// kubelet).
fn changes_swap(wanted: &Pod, allocated: &Pod) -> bool {
    let containers = wanted.spec.admitted_containers().zip(allocated.spec.admitted_containers());
    containers.map(|(new, old)| (&new.resources, &old.resources)).any(|(new, old)| {
        new.memory_request != old.memory_request
            && !old.memory_resize_restarts
            && (wanted.may_swap(new) || allocated.may_swap(old))
    })
}

/// Whether a pod may have the amounts that `wanted` requests, beside the amounts of the others. `before` are
/// those that the pod has: it may always have less. An amount that the node does not have at all is infeasible, and so is
/// another memory request of a container that may swap and does not restart for it.
pub(super) fn resize(
    node: &NodeInfo,
    wanted: &Pod,
    allocated: &Pod,
    before: &Amounts,
    others: impl Iterator<Item = Amounts>,
) -> Result<(), Refusal> {
    if node.limited_swap && changes_swap(wanted, allocated) {
        let message = "In-place resize of containers with swap is not supported.".into();
        return Err(Refusal { is_infeasible: true, message });
    }
    let used = others.fold(Amounts::default(), |all, one| all.plus(&one));
    let asked = Amounts::requested(wanted);
    for resource in [Resource::Cpu, Resource::Memory] {
        let (name, requested) = (resource.name(), resource.of(&asked));
        let (used, capacity) = (resource.of(&used), resource.of(&node.allocatable));
        let refusal = |is_infeasible, message: String| Refusal { is_infeasible, message: message.into() };
        if requested <= resource.of(before) {
            continue;
        } else if requested > capacity {
            return Err(refusal(
                true,
                format!(
                    "Node didn't have enough capacity: {name}, requested: {requested}, capacity: {capacity}"
                ),
            ));
        } else if requested > capacity.saturating_sub(used) {
            return Err(refusal(
                false,
                format!(
                    "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
                ),
            ));
        }
    }
    Ok(())
}

/// Whether all pods of `here`, each with the amounts that it has, `pod` among them, fit, as far as the resources
/// that `pod` requests are concerned.
pub(super) fn fits<'a>(
    node: &NodeInfo,
    pod: &Pod,
    here: impl Iterator<Item = (&'a Pod, Amounts)> + Clone,
) -> bool {
    for (_, list, capacity) in named(node) {
        let has_enough = names(pod, list).all(|name| {
            let used =
                here.clone().map(|(other, _)| requested(other, list, name)).fold(0, i64::saturating_add);
            used <= capacity.get(name).copied().unwrap_or(0)
        });
        if !has_enough {
            return false;
        }
    }
    let used = here.fold(Amounts::default(), |all, (_, one)| all.plus(&one));
    let asked = Amounts::requested(pod);
    Resource::ALL
        .into_iter()
        .all(|resource| resource.of(&asked) == 0 || resource.of(&used) <= resource.of(&node.allocatable))
}

fn missing<'a>(
    node: &NodeInfo,
    pod: &Pod,
    others: impl Iterator<Item = &'a ExistingPod<'a>>,
) -> Vec<Missing> {
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

/// The message of a kubelet about a resource of which less is free than a pod requests.
fn not_enough(name: &str, requested: i64, used: i64, capacity: i64) -> String {
    format!(
        "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
    )
}

/// The list of amounts of a container by the names of resources.
type List = fn(&ResourceRequirements) -> &Vec<(Box<str>, i64)>;

/// The resources that each node has under names of its own: their prefix, their amounts in a container, and in the
/// node.
fn named(node: &NodeInfo) -> impl Iterator<Item = (&'static str, List, &SortedMap<String, i64>)> {
    let always: [(&str, List, _); 2] = [
        (DEVICE_DOMAIN, |resources| &resources.devices, &node.devices),
        (HUGE_PAGES, |resources| &resources.huge_pages, &node.huge_pages),
    ];
    let exclusive_cpus: (&str, List, _) = ("", |resources| &resources.exclusive_cpus, &node.exclusive_cpus);
    always.into_iter().chain(node.allows_exclusive_cpus.then_some(exclusive_cpus))
}

/// The rejection of a pod that requests more users of a device of the board than the device may have, or more huge
/// pages or exclusive cpus than are free.
fn missing_device<'a>(
    node: &NodeInfo,
    pod: &Pod,
    others: impl Iterator<Item = &'a Pod> + Clone,
) -> Option<Outcome> {
    named(node).find_map(|(prefix, list, capacity)| {
        let mut names: Vec<&str> = names(pod, list).collect();
        names.sort_unstable();
        names.into_iter().find_map(|name| {
            let asked = requested(pod, list, name);
            let used = others.clone().map(|other| requested(other, list, name)).fold(0, i64::saturating_add);
            let capacity = capacity.get(name).copied().unwrap_or(0);
            (asked > capacity.saturating_sub(used)).then(|| {
                let name = format!("{prefix}{name}");
                Outcome::Rejected {
                    reason: format!("OutOf{name}"),
                    message: not_enough(&name, asked, used, capacity),
                }
            })
        })
    })
}

/// The names of resources of a list that a pod requests; a name may occur several times.
fn names(pod: &Pod, list: List) -> impl Iterator<Item = &str> {
    let spec = &pod.spec;
    let containers =
        spec.init_containers.iter().chain(&spec.containers).map(|container| &container.resources);
    containers.chain(spec.resources.as_deref()).flat_map(list).map(|(name, _)| &**name)
}

/// The amount of a resource of a list that a pod requests.
fn requested(pod: &Pod, list: List, name: &str) -> i64 {
    pod.spec.effective(|resources| {
        list(resources).iter().find(|(known, _)| **known == *name).map(|(_, amount)| *amount)
    })
}

/// Why the node does not suit the pod, whatever room there is: the predicate and its reason.
fn unfit<'a>(
    node: &NodeInfo,
    pod: &Pod,
    mut others: impl Iterator<Item = &'a ExistingPod<'a>>,
) -> Option<(&'static str, String)> {
    let placement = &pod.spec.placement;
    let is_borne = |taint: &Taint| taint.effect != "NoExecute" || placement.tolerates(taint);
    if !placement.matches(&node.name, &node.labels) {
        let why = placement.unmatched(&node.labels);
        Some(("NodeAffinity", format!("node(s) didn't match Pod's node affinity/selector: {why}")))
    } else if let Some((port, other)) = others.find_map(|other| {
        let clashes = |port: &&ContainerPort| other.pod.host_ports().any(|(_, taken)| clash(port, taken));
        Some((pod.host_ports().map(|(_, port)| port).find(clashes)?, other.pod))
    }) {
        let ContainerPort { host_port, protocol, .. } = port;
        let owner = format!("{host_port}/{protocol} is taken by pod {}/{}", other.namespace, other.name);
        Some(("NodePorts", format!("node(s) didn't have free ports for the requested pod ports: {owner}")))
    } else if let Some(taken) = node.node_ports.iter().find(|taken| {
        let has = |port: &ContainerPort| port.host_port == taken.port && port.protocol == taken.protocol;
        pod.host_ports().any(|(_, port)| has(port))
    }) {
        let owner = format!("{}/{} is taken by service {}", taken.port, taken.protocol, taken.service);
        Some(("NodePorts", format!("node(s) didn't have free ports for the requested pod ports: {owner}")))
    } else if !node.taints.iter().all(is_borne) {
        Some(("TaintToleration", "node(s) had taints that the pod didn't tolerate".to_owned()))
    } else {
        None
    }
}

fn clash(one: &ContainerPort, other: &ContainerPort) -> bool {
    let is_any = |ip: &str| ip.is_empty() || ip == "0.0.0.0";
    one.host_port == other.host_port
        && one.protocol == other.protocol
        && (one.host_ip == other.host_ip || is_any(&one.host_ip) || is_any(&other.host_ip))
}

/// Chooses the pods to preempt. Resources that pods free which are ending anyway need no victim.
fn preempt(node: &NodeInfo, pod: &Pod, others: &[ExistingPod<'_>]) -> Outcome {
    let stay: Vec<ExistingPod<'_>> = others.iter().copied().filter(|other| !other.is_terminating).collect();
    let need = missing(node, pod, stay.iter())
        .iter()
        .map(|one| (one.resource, one.requested.saturating_sub(one.capacity.saturating_sub(one.used))))
        .collect();
    match preemption::choose(pod, &stay, need) {
        Ok(victims) => Outcome::Preempts(victims),
        Err(why) => Outcome::Rejected {
            reason: "UnexpectedAdmissionError".to_owned(),
            message: format!(
                "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: {why}"
            ),
        },
    }
}

#[cfg(test)]
mod tests;
