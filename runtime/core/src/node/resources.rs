//! The resources of a node, and the pods that occupy them while another pod is admitted.

use crate::facts::{Amounts, PodIndex};
use crate::spec::{Pod, QosClass};

/// A resource that a node has a limited amount of, in the order in which admission checks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Pods,
    Cpu,
    Memory,
    EphemeralStorage,
}

impl Resource {
    pub(super) const ALL: [Resource; 4] =
        [Resource::Pods, Resource::Cpu, Resource::Memory, Resource::EphemeralStorage];

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

    pub(super) fn reason(self) -> &'static str {
        match self {
            Resource::Pods => "OutOfpods",
            Resource::Cpu => "OutOfcpu",
            Resource::Memory => "OutOfmemory",
            Resource::EphemeralStorage => "OutOfephemeral-storage",
        }
    }
}

/// An existing pod, while the admission of another pod is decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExistingPod<'a> {
    pub(super) index: PodIndex,
    pub(super) pod: &'a Pod,
    pub(super) requested: Amounts,
    pub(super) class: QosClass,
    /// Whether the pod is terminating: its resources will be free, but are not yet.
    pub(super) is_terminating: bool,
    /// Whether the pod was preempted: admission ignores this pod, and the new pod waits until it is gone.
    pub(super) is_preempted: bool,
}

impl<'a> ExistingPod<'a> {
    pub(super) fn new(index: PodIndex, pod: &'a Pod, is_terminating: bool) -> Self {
        let (requested, class) = (Amounts::requested(pod), pod.spec.qos_class());
        ExistingPod { index, pod, requested, class, is_terminating, is_preempted: false }
    }
}
