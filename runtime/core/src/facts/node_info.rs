//! The node as far as admission depends on it: labels, taints, allocatable resources.

use serde::{Deserialize, Serialize};

use super::MAX_PODS;
use crate::pressure::NodeCondition;
use crate::sorted::SortedMap;
use crate::spec::{Pod, Quantity, ResourceRequirements, Taint};

/// An amount of each resource: cpu in thousandths, memory and storage in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts {
    /// `pods`.
    pub pods: i64,
    /// `cpu`.
    pub cpu: i64,
    /// `memory`.
    pub memory: i64,
    /// `ephemeral-storage`.
    pub ephemeral_storage: i64,
}

impl Amounts {
    /// The amounts that a pod requests.
    pub fn requested(pod: &Pod) -> Amounts {
        let of = |amount: fn(&ResourceRequirements) -> Option<i64>| pod.spec.effective(amount);
        Amounts {
            pods: 1,
            cpu: of(|resources| resources.cpu_request.as_ref().map(Quantity::milli_value)),
            memory: of(|resources| resources.memory_request.as_ref().map(Quantity::value)),
            ephemeral_storage: of(|resources| {
                resources.ephemeral_storage_request.as_ref().map(Quantity::value)
            }),
        }
    }

    /// The larger one of both amounts, of each resource.
    #[must_use]
    pub(crate) fn max(&self, other: &Amounts) -> Amounts {
        Amounts {
            pods: self.pods.max(other.pods),
            cpu: self.cpu.max(other.cpu),
            memory: self.memory.max(other.memory),
            ephemeral_storage: self.ephemeral_storage.max(other.ephemeral_storage),
        }
    }

    /// The sum of both amounts.
    #[must_use]
    pub fn plus(&self, other: &Amounts) -> Amounts {
        Amounts {
            pods: self.pods.saturating_add(other.pods),
            cpu: self.cpu.saturating_add(other.cpu),
            memory: self.memory.saturating_add(other.memory),
            ephemeral_storage: self.ephemeral_storage.saturating_add(other.ephemeral_storage),
        }
    }
}

/// A port of the board that a Service has.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NodePort {
    /// `nodePort`.
    pub port: u16,
    /// `protocol`: `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The Service, as `NAMESPACE/NAME`.
    pub service: String,
}

/// The fields of the Node object that admission depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.labels`.
    pub labels: SortedMap<String, String>,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// `status.allocatable`.
    pub allocatable: Amounts,
    /// The devices in `status.allocatable`, by the part of their name behind [`DEVICE_DOMAIN`]: how many
    /// containers may use each at a time.
    ///
    /// [`DEVICE_DOMAIN`]: crate::spec::container::DEVICE_DOMAIN
    #[serde(default, skip_serializing_if = "SortedMap::is_empty")]
    pub devices: SortedMap<String, i64>,
    /// The bytes in huge pages in `status.allocatable`, by the size of the pages, such as `2Mi`.
    #[serde(default, skip_serializing_if = "SortedMap::is_empty")]
    pub huge_pages: SortedMap<String, i64>,
    /// How many cpus containers may have for themselves, under the name [`EXCLUSIVE_CPUS`]. Empty if the kernel cannot
    /// keep other containers off them.
    ///
    /// [`EXCLUSIVE_CPUS`]: crate::spec::container::EXCLUSIVE_CPUS
    #[serde(default, skip_serializing_if = "SortedMap::is_empty")]
    pub exclusive_cpus: SortedMap<String, i64>,
    /// Whether the operator allows pods to have exclusive cpus (`--allowed-annotations`). Otherwise, no pod takes any: one
    /// that requests them is admitted, and its containers wait for the operator.
    #[serde(default)]
    pub allows_exclusive_cpus: bool,
    /// Kernel parameters that pods may set besides the safe ones (`--allowed-unsafe-sysctls`).
    #[serde(default)]
    pub allowed_sysctls: Vec<String>,
    /// Whether the kernel has AppArmor, and it is enabled.
    #[serde(default)]
    pub app_armor: bool,
    /// Whether containers of burstable pods may swap (`LimitedSwap`, with cgroup v2).
    #[serde(default)]
    pub limited_swap: bool,
    /// The ports of the board that Services have (`nodePort`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_ports: Vec<NodePort>,
    /// The conditions about pressure whose status is true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pressure: Vec<NodeCondition>,
}

/// A node without a Node object: it has room for [`MAX_PODS`] pods, whatever they request.
impl Default for NodeInfo {
    fn default() -> Self {
        let all = i64::MAX;
        let allocatable = Amounts { pods: MAX_PODS as i64, cpu: all, memory: all, ephemeral_storage: all };
        NodeInfo {
            name: String::new(),
            labels: SortedMap::new(),
            taints: Vec::new(),
            allocatable,
            devices: SortedMap::new(),
            huge_pages: SortedMap::new(),
            exclusive_cpus: SortedMap::new(),
            allows_exclusive_cpus: false,
            allowed_sysctls: Vec::new(),
            app_armor: false,
            limited_swap: false,
            node_ports: Vec::new(),
            pressure: Vec::new(),
        }
    }
}
