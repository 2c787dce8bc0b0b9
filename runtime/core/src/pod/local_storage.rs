//! Limits of local storage (`ephemeral-storage`): when the usage of a pod is measured, and when the pod is evicted
//! for it (`localStorageEviction` of the kubelet). A pod without such a limit is never measured.

use std::time::Duration;

use crate::facts::{Action, Draft, Events, Wake};
use crate::spec::{Pod, Quantity, ResourceRequirements};
use crate::time::Instant;

use super::phase::Verdict;
use super::{PodState, Stage};

/// The time between the answer to a measurement and the next one: each reads all directories that the containers can
/// write to. Also the time from the start of a pod to its first one.
const MEASURE_INTERVAL: Duration = Duration::from_secs(30);

/// The grace period of an evicted pod (`immediateEvictionGracePeriodSeconds`).
const EVICTION_GRACE: Duration = Duration::from_secs(1);

/// When the local storage of a pod is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LocalStorage {
    /// Not decided yet.
    #[default]
    Unplanned,
    /// At this time.
    At(Instant),
    /// `MeasureStorage` is in flight.
    Measuring,
}

impl PodState {
    /// Plans a measurement of the pod's local storage, if a limit needs one.
    pub(super) fn plan_measurement(&mut self, now: Instant, draft: &mut Draft) {
        if !self.is_measured() {
            return;
        }
        match self.local_storage {
            LocalStorage::Unplanned => self.local_storage = LocalStorage::At(now + MEASURE_INTERVAL),
            LocalStorage::At(at) if at <= now && draft.push(self.index, Action::MeasureStorage) => {
                self.local_storage = LocalStorage::Measuring;
            }
            LocalStorage::At(_) | LocalStorage::Measuring => {}
        }
    }

    /// Whether the pod has a limit of local storage that may be exceeded now. A critical pod is never evicted.
    fn is_measured(&self) -> bool {
        matches!(self.stage, Stage::Active)
            && self.pod.spec.has_storage_limit()
            && !self.pod.is_critical()
            && self.any_alive()
    }

    /// Records how many bytes the containers use, each with its writable layer and logs, and how many the volumes.
    /// Evicts the pod if that is more than a limit.
    pub(super) fn storage_measured(
        &mut self,
        now: Instant,
        containers: &[u64],
        volumes: u64,
        events: &mut Events,
    ) {
        if self.local_storage != LocalStorage::Measuring {
            return;
        }
        self.local_storage = LocalStorage::At(now + MEASURE_INTERVAL);
        if !self.is_measured() {
            return;
        }
        if let Some(message) = exceeded(&self.pod, containers, volumes) {
            events.warn(self.index, None, "Evicted", message.as_str().into());
            self.outcome.decide(Verdict::failed("Evicted", message));
            self.stop(now, Some(EVICTION_GRACE));
        }
    }

    pub(super) fn wake_measurement(&self, wake: &mut Wake) {
        if let LocalStorage::At(at) = self.local_storage
            && self.is_measured()
        {
            wake.note(at);
        }
    }
}

/// The message about the limit that is exceeded, if one is: that of the pod as a whole, or of a container.
fn exceeded(pod: &Pod, containers: &[u64], volumes: u64) -> Option<String> {
    let bytes = |resources: &ResourceRequirements| {
        resources.ephemeral_storage_limit.as_ref().map(Quantity::value).filter(|bytes| *bytes > 0)
    };
    let is_above = |used: u64, limit: i64| u64::try_from(limit).is_ok_and(|limit| used > limit);
    let all = containers.iter().copied().fold(volumes, u64::saturating_add);
    let limit = pod.spec.effective(bytes);
    if is_above(all, limit) {
        let limit = total(pod, limit);
        return Some(format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
        ));
    }
    pod.spec.containers.iter().zip(containers).find_map(|(container, used)| {
        let limit = container.resources.ephemeral_storage_limit.as_ref()?;
        (limit.value() > 0 && is_above(*used, limit.value())).then(|| {
            format!("Container {} exceeded its local ephemeral storage limit \"{limit}\". ", container.name)
        })
    })
}

/// The limit of the pod as a whole, in the suffixes of its containers' limits.
fn total(pod: &Pod, bytes: i64) -> Quantity {
    let limits = pod.spec.admitted_containers();
    let limits = limits.filter_map(|container| container.resources.ephemeral_storage_limit.clone());
    let sum = limits.reduce(|sum, one| sum.plus(&one)).filter(|sum| sum.value() == bytes);
    sum.unwrap_or_else(|| Quantity::from_milli(i128::from(bytes) * 1000))
}
