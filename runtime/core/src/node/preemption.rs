//! Chooses the pods that make room for a critical pod that does not fit (pod-semantics 8.2). Pure.
//!
//! As few pods as possible are chosen. Guaranteed pods are chosen only if all others do not suffice, and
//! Burstable pods only if the BestEffort pods do not suffice for the rest. Within a class, the pod after
//! which least is missing is chosen, repeatedly.

use super::resources::{ExistingPod, Resource};
use crate::facts::PodIndex;
use crate::spec::{Pod, QosClass};

/// The missing amount of each resource; every amount is above zero.
pub(super) type Need = Vec<(Resource, i64)>;

/// The pods of `here` to preempt. The error lists what is still missing if all preemptable pods ended.
pub(super) fn choose(preemptor: &Pod, here: &[ExistingPod<'_>], need: Need) -> Result<Vec<PodIndex>, String> {
    let of = |class: QosClass| -> Vec<ExistingPod<'_>> {
        here.iter()
            .copied()
            .filter(|other| other.class == class && is_preemptable(preemptor, other.pod))
            .collect()
    };
    let (best_effort, burstable, guaranteed) =
        (of(QosClass::BestEffort), of(QosClass::Burstable), of(QosClass::Guaranteed));
    let all = best_effort.iter().chain(&burstable);
    let without_others = less(&need, all);
    let left = less(&without_others, &guaranteed);
    if !left.is_empty() {
        return Err(unable(&left));
    }
    let guaranteed = nearest(guaranteed, without_others)?;
    let burstable = nearest(burstable, less(&need, best_effort.iter().chain(&guaranteed)))?;
    let best_effort = nearest(best_effort, less(&need, burstable.iter().chain(&guaranteed)))?;
    Ok([best_effort, burstable, guaranteed].concat().iter().map(|other| other.index).collect())
}

/// Chooses pods of one class until `need` is met, each time the pod after which least is missing.
fn nearest<'a>(mut pods: Vec<ExistingPod<'a>>, mut need: Need) -> Result<Vec<ExistingPod<'a>>, String> {
    let mut chosen = Vec::new();
    while !need.is_empty() {
        let mut best: Option<(usize, f64)> = None;
        for (place, pod) in pods.iter().enumerate() {
            let distance = distance(&need, pod);
            let is_better = best.is_none_or(|(known, least)| {
                distance < least || distance == least && is_smaller(pod, &pods[known])
            });
            if is_better {
                best = Some((place, distance));
            }
        }
        let Some((place, _)) = best else { return Err(unable(&need)) };
        // Removed as a kubelet does it, since the order decides between equal pods.
        let pod = pods.swap_remove(place);
        need = less(&need, [&pod]);
        chosen.push(pod);
    }
    Ok(chosen)
}

/// Whether `preemptor` may preempt `pod`: Kubernetes' `Preemptable`.
fn is_preemptable(preemptor: &Pod, pod: &Pod) -> bool {
    preemptor.is_critical() && !pod.is_critical() || preemptor.priority > pod.priority
}

fn distance(need: &Need, pod: &ExistingPod<'_>) -> f64 {
    let of = |(resource, amount): &(Resource, i64)| {
        let left = amount.saturating_sub(resource.of(&pod.requested)).max(0);
        (left as f64 / *amount as f64).powi(2)
    };
    need.iter().map(of).sum()
}

/// Whether the pod requests less memory than the other, or as much memory and less cpu. Of two equal pods,
/// the later one counts as smaller.
fn is_smaller(pod: &ExistingPod<'_>, other: &ExistingPod<'_>) -> bool {
    (pod.requested.memory, pod.requested.cpu) <= (other.requested.memory, other.requested.cpu)
}

/// The amounts that are still missing when `pods` are gone.
fn less<'a, 'b: 'a>(need: &Need, pods: impl IntoIterator<Item = &'a ExistingPod<'b>> + Clone) -> Need {
    let of = |(resource, amount): &(Resource, i64)| {
        let free =
            pods.clone().into_iter().map(|pod| resource.of(&pod.requested)).fold(0, i64::saturating_add);
        (*resource, amount.saturating_sub(free))
    };
    need.iter().map(of).filter(|(_, amount)| *amount > 0).collect()
}

fn unable(need: &Need) -> String {
    let of = |(resource, amount): &(Resource, i64)| format!("(res: {}, q: {amount}), ", resource.name());
    let all: String = need.iter().map(of).collect();
    format!("no set of running pods found to reclaim resources: [{all}]")
}
