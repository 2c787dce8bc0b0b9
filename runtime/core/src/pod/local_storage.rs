//! Limits of local storage: when the usage of a pod is measured, and when the pod is evicted for it
//! (`localStorageEviction` of the kubelet). The limits are `ephemeral-storage` of containers, and `sizeLimit` of
//! emptyDir volumes on disk. A pod without such a limit is never measured.

use std::time::Duration;

use crate::facts::{Action, Draft, Events, StorageScope, StorageUsage, Wake};
use crate::spec::{Pod, Quantity, ResourceRequirements, VolumeSource};
use crate::time::Instant;

use super::PodState;

/// The time from the start of a pod to its first measurement.
const FIRST_MEASUREMENT: Duration = Duration::from_secs(30);

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

/// The time between the answer to a measurement and the next one. A measurement reads all directories of its scope. That
/// of volumes alone is as rare as the kubelet's (`volumeStatsAggPeriod`).
fn interval(scope: StorageScope) -> Duration {
    Duration::from_secs(match scope {
        StorageScope::LimitedVolumes => 60,
        StorageScope::Pod => 30,
    })
}

impl PodState {
    /// Plans a measurement of the pod's local storage, if a limit needs one.
    pub(super) fn plan_measurement(&mut self, now: Instant, draft: &mut Draft) {
        let Some(scope) = self.measured_scope() else { return };
        match self.local_storage {
            LocalStorage::Unplanned => self.local_storage = LocalStorage::At(now + FIRST_MEASUREMENT),
            LocalStorage::At(at) if at <= now && draft.push(self.index, Action::MeasureStorage(scope)) => {
                self.local_storage = LocalStorage::Measuring;
            }
            LocalStorage::At(_) | LocalStorage::Measuring => {}
        }
    }

    /// The local storage of the pod for which a limit may be exceeded now. A critical pod is never evicted.
    fn measured_scope(&self) -> Option<StorageScope> {
        let spec = &self.pod.spec;
        let is_limited =
            || spec.volumes.iter().any(|volume| StorageScope::LimitedVolumes.has_volume(&volume.source));
        let scope = if spec.has_storage_limit() {
            StorageScope::Pod
        } else if is_limited() {
            StorageScope::LimitedVolumes
        } else {
            return None;
        };
        // Between two runs of its containers, a pod has a sandbox and its files.
        (self.may_be_evicted() && (self.any_alive() || self.sandbox.is_ready())).then_some(scope)
    }

    /// Records how much the pod uses. Evicts the pod if that is more than a limit.
    pub(super) fn storage_measured(&mut self, now: Instant, usage: &StorageUsage, events: &mut Events) {
        if self.local_storage != LocalStorage::Measuring {
            return;
        }
        self.local_storage = LocalStorage::Unplanned;
        let Some(scope) = self.measured_scope() else { return };
        self.local_storage = LocalStorage::At(now + interval(scope));
        let above = volume_above_limit(&self.pod, usage);
        if let Some(message) = above.or_else(|| total_above_limit(&self.pod, usage)) {
            self.evict(now, message, events);
        }
    }

    pub(super) fn wake_measurement(&self, wake: &mut Wake) {
        if let LocalStorage::At(at) = self.local_storage
            && self.measured_scope().is_some()
        {
            wake.note(at);
        }
    }
}

fn is_above(used: u64, limit: i64) -> bool {
    u64::try_from(limit).is_ok_and(|limit| used > limit)
}

/// The message about the emptyDir that exceeds its `sizeLimit`, if one does.
fn volume_above_limit(pod: &Pod, usage: &StorageUsage) -> Option<String> {
    pod.spec.volumes.iter().zip(&usage.volumes).find_map(|(volume, used)| match &volume.source {
        VolumeSource::EmptyDir { memory: false, size_limit: Some(limit) }
            if is_above(*used, limit.value()) =>
        {
            Some(format!("Usage of EmptyDir volume {:?} exceeds the limit \"{limit}\". ", volume.name))
        }
        _ => None,
    })
}

/// The message about the limit of `ephemeral-storage` that is exceeded, if one is: that of the pod as a whole, or of a
/// container.
fn total_above_limit(pod: &Pod, usage: &StorageUsage) -> Option<String> {
    let bytes = |resources: &ResourceRequirements| {
        resources.ephemeral_storage_limit.as_ref().map(Quantity::value).filter(|bytes| *bytes > 0)
    };
    if !pod.spec.has_storage_limit() {
        return None;
    }
    let all = usage.containers.iter().chain(&usage.volumes).copied().fold(0, u64::saturating_add);
    let limit = pod.spec.effective(bytes);
    if is_above(all, limit) {
        let limit = total(pod, limit);
        return Some(format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
        ));
    }
    pod.spec.containers.iter().zip(&usage.containers).find_map(|(container, used)| {
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
