//! The Pod and its pod-wide fields.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use super::{
    Container, ContainerIndex, Placement, Quantity, ResourceRequirements, RestartPolicy, Role, Volume,
};

/// `metadata.uid`: the identity of a pod. Same name and another uid is another pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Uid(pub Rc<str>);

impl std::fmt::Display for Uid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        Uid(text.into())
    }
}

/// An admitted Pod: identity and spec. A changed manifest makes another one, but for what may
/// change in place ([`Pod::is_update_of`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// `metadata.name`, a DNS subdomain of at most 253 bytes.
    pub name: Rc<str>,
    /// `metadata.namespace`, `default` where none was given.
    pub namespace: Rc<str>,
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.generation`: 1, and one more for each change of the spec in place.
    pub generation: u64,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// `spec.priority`: that of its class, as it was when the pod was admitted.
    pub priority: i32,
    /// `spec`.
    pub spec: PodSpec,
}

/// The least priority of what the node cannot do without (`SystemCriticalPriority`).
pub const CRITICAL: i32 = 2_000_000_000;

/// The class of what the node itself is nothing without.
pub const NODE_CRITICAL: &str = "system-node-critical";

impl Pod {
    /// Presets were applied to it when it was admitted.
    pub fn has_presets(&self) -> bool {
        self.annotations.keys().any(|key| key.starts_with(PRESET_MARK))
    }

    /// It was admitted with something that may be different if that is looked for again.
    pub fn is_admitted_for_good(&self) -> bool {
        self.has_presets() || !self.spec.priority_class_name.is_empty()
    }

    /// Others make room for it. No pod is critical for coming from a file.
    pub fn is_critical(&self) -> bool {
        self.priority >= CRITICAL
    }

    /// It goes last when memory is short, whatever it requests. The class counts, and no number.
    pub fn is_node_critical(&self) -> bool {
        self.is_critical() && self.spec.priority_class_name == NODE_CRITICAL
    }
}

/// What each PodPreset that was applied leaves among the annotations, with its name behind it.
pub const PRESET_MARK: &str = "podpreset.admission.kubernetes.io/podpreset-";

/// `spec` of a Pod: what nodlet acts on, with defaults applied.
#[derive(Clone, Debug, PartialEq)]
pub struct PodSpec {
    /// `containers`, at least one, in the order of the manifest.
    pub containers: Vec<Container>,
    /// `initContainers`, sidecars among them, in the order of the manifest.
    pub init_containers: Vec<Container>,
    /// `ephemeralContainers`, in the order in which they came.
    pub ephemeral_containers: Vec<Container>,
    /// `volumes`.
    pub volumes: Vec<Volume>,
    /// `restartPolicy`; `Always` by default.
    pub restart_policy: RestartPolicy,
    /// `terminationGracePeriodSeconds`; 30 s by default, a negative one is 1 s.
    pub termination_grace_period: Duration,
    /// `activeDeadlineSeconds`.
    pub active_deadline: Option<Duration>,
    /// `hostNetwork`.
    pub host_network: bool,
    /// `hostPID`.
    pub host_pid: bool,
    /// `hostIPC`.
    pub host_ipc: bool,
    /// `shareProcessNamespace`.
    pub share_process_namespace: bool,
    /// `hostname`; the pod's name where none was given (see [`PodSpec::hostname_for`]).
    pub hostname: Option<String>,
    /// `subdomain`.
    pub subdomain: Option<String>,
    /// `hostAliases`: address and names.
    pub host_aliases: Vec<HostAlias>,
    /// `dnsPolicy`.
    pub dns_policy: DnsPolicy,
    /// `dnsConfig`.
    pub dns_config: DnsConfig,
    /// `securityContext` of the pod.
    pub security_context: PodSecurityContext,
    /// `conditionType` of each of `readinessGates`.
    pub readiness_gates: Vec<String>,
    /// `name` of each of `schedulingGates`.
    pub scheduling_gates: Vec<String>,
    /// `priorityClassName`; empty for none.
    pub priority_class_name: String,
    /// On which node it may run.
    pub placement: Placement,
}

impl Pod {
    /// It waits for gates to be removed: as far as a node is concerned it is not here yet.
    pub fn is_gated(&self) -> bool {
        !self.spec.scheduling_gates.is_empty()
    }

    /// Whether it is the same pod as `old` and differs in nothing but what may change in place:
    /// labels, annotations, images, a deadline that is set or earlier, gates that are gone, tolerations,
    /// and ephemeral containers that were added.
    pub fn is_update_of(&self, old: &Pod) -> bool {
        let gates = &self.spec.scheduling_gates;
        if !self.spec.ephemeral_containers.starts_with(&old.spec.ephemeral_containers) {
            return false;
        }
        if self.uid != old.uid || !gates.iter().all(|gate| old.spec.scheduling_gates.contains(gate)) {
            return false;
        }
        let (deadline, earlier) = (self.spec.active_deadline, old.spec.active_deadline);
        if deadline.is_none() && earlier.is_some() || earlier.is_some_and(|earlier| deadline > Some(earlier))
        {
            return false;
        }
        let mut munged = self.clone();
        let lists = [
            (&mut munged.spec.containers, &old.spec.containers),
            (&mut munged.spec.init_containers, &old.spec.init_containers),
        ];
        for (containers, old) in lists {
            for (container, old) in containers.iter_mut().zip(old) {
                container.image.clone_from(&old.image);
            }
        }
        munged.spec.active_deadline = earlier;
        munged.generation = old.generation;
        munged.labels.clone_from(&old.labels);
        munged.annotations.clone_from(&old.annotations);
        munged.spec.scheduling_gates.clone_from(&old.spec.scheduling_gates);
        munged.spec.ephemeral_containers.clone_from(&old.spec.ephemeral_containers);
        // What is asked of the node is decided on once: before that it may become more.
        if old.is_gated() {
            munged.spec.placement.clone_from(&old.spec.placement);
        }
        munged.spec.placement.tolerations.clone_from(&old.spec.placement.tolerations);
        munged == *old
    }
}

/// One entry of `hostAliases`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAlias {
    /// `ip`.
    pub ip: String,
    /// `hostnames`.
    pub hostnames: Vec<String>,
}

/// `dnsPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DnsPolicy {
    /// The cluster's DNS; the node's where there is no cluster.
    #[default]
    ClusterFirst,
    /// As `ClusterFirst`, for host network pods too.
    ClusterFirstWithHostNet,
    /// The node's.
    Default,
    /// Only `dnsConfig`.
    None,
}

/// `dnsConfig`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsConfig {
    /// `nameservers`, at most 3.
    pub nameservers: Vec<String>,
    /// `searches`, at most 32.
    pub searches: Vec<String>,
    /// `options`, as `name` or `name:value`.
    pub options: Vec<String>,
}

/// `securityContext` of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSecurityContext {
    /// `runAsUser`.
    pub run_as_user: Option<u32>,
    /// `runAsGroup`.
    pub run_as_group: Option<u32>,
    /// `runAsNonRoot`.
    pub run_as_non_root: Option<bool>,
    /// `supplementalGroups`.
    pub supplemental_groups: Vec<u32>,
    /// `fsGroup`.
    pub fs_group: Option<u32>,
}

/// `status.qosClass`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QosClass {
    /// Every container has cpu and memory limits equal to its requests.
    Guaranteed,
    /// Neither of the others.
    Burstable,
    /// No request and no limit anywhere.
    BestEffort,
}

impl Pod {
    /// The same as its manifest says: what is begun anew has no ephemeral containers.
    pub fn without_ephemeral(mut self) -> Pod {
        // Each was a change of the spec.
        self.generation = self.generation.saturating_sub(self.spec.ephemeral_containers.len() as u64);
        self.spec.ephemeral_containers.clear();
        self
    }
}

impl PodSpec {
    /// The container at `index`.
    pub fn container(&self, index: ContainerIndex) -> &Container {
        let place = usize::from(index.0);
        let Some(place_of_init) = place.checked_sub(self.containers.len()) else {
            return &self.containers[place];
        };
        match place_of_init.checked_sub(self.init_containers.len()) {
            None => &self.init_containers[place_of_init],
            Some(ephemeral) => &self.ephemeral_containers[ephemeral],
        }
    }

    /// What the container at `index` is to the pod.
    pub fn role(&self, index: ContainerIndex) -> Role {
        let place = usize::from(index.0);
        if place < self.containers.len() {
            Role::Regular
        } else if place >= self.admitted_count() {
            Role::Ephemeral
        } else if self.container(index).sidecar {
            Role::Sidecar
        } else {
            Role::Init
        }
    }

    /// How many containers there are, init containers and all.
    pub fn container_count(&self) -> usize {
        self.admitted_count() + self.ephemeral_containers.len()
    }

    /// How many there were when the pod was admitted.
    fn admitted_count(&self) -> usize {
        self.containers.len() + self.init_containers.len()
    }

    /// All containers, in the order of their indexes.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.admitted_containers().chain(&self.ephemeral_containers)
    }

    /// Those that the pod was admitted with, which alone count for what it is given.
    pub fn admitted_containers(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().chain(&self.init_containers)
    }

    /// Indexes of all containers.
    pub fn container_indexes(&self) -> impl Iterator<Item = ContainerIndex> + use<> {
        (0..self.container_count()).map(index)
    }

    /// Indexes of `containers`, in the order of the manifest.
    pub fn regular_indexes(&self) -> impl Iterator<Item = ContainerIndex> + use<> {
        (0..self.containers.len()).map(index)
    }

    /// Indexes of `initContainers`, in the order of the manifest.
    pub fn init_indexes(&self) -> impl DoubleEndedIterator<Item = ContainerIndex> + use<> {
        (self.containers.len()..self.admitted_count()).map(index)
    }

    /// Indexes of `ephemeralContainers`, in the order in which they came.
    pub fn ephemeral_indexes(&self) -> impl Iterator<Item = ContainerIndex> + use<> {
        (self.admitted_count()..self.container_count()).map(index)
    }

    /// Which container has this name: no two of a pod have the same.
    pub fn index_of(&self, name: &str) -> Option<ContainerIndex> {
        self.all_containers().position(|container| container.name == name).map(index)
    }

    /// Where the container at `index` stands in the object, as events say it.
    pub fn field_path(&self, index: ContainerIndex) -> String {
        let list = match self.role(index) {
            Role::Regular => "containers",
            Role::Init | Role::Sidecar => "initContainers",
            Role::Ephemeral => "ephemeralContainers",
        };
        format!("spec.{list}{{{}}}", self.container(index).name)
    }

    /// What the pod as a whole takes at most of something: all that runs in the end, or what
    /// runs while an init container does, whichever is more. `amount` is what one container takes.
    pub fn effective(&self, amount: impl Fn(&ResourceRequirements) -> i64) -> i64 {
        let of = |container: &Container| amount(&container.resources);
        let regular = self.containers.iter().map(of).fold(0, i64::saturating_add);
        let (mut sidecars, mut most) = (0_i64, 0);
        for container in &self.init_containers {
            let while_it_runs = sidecars.saturating_add(of(container));
            if container.sidecar {
                sidecars = while_it_runs;
            }
            most = most.max(while_it_runs);
        }
        regular.saturating_add(sidecars).max(most)
    }

    /// `status.qosClass`. Only cpu and memory count, and only what is more than
    /// nothing: a request of zero is no request, and so unlike its limit.
    pub fn qos_class(&self) -> QosClass {
        let given = |quantity: &Option<Quantity>| quantity.clone().filter(|quantity| !quantity.is_zero());
        let mut any = false;
        let mut guaranteed = true;
        for container in self.admitted_containers() {
            let resources = &container.resources;
            for (request, limit) in [
                (given(&resources.cpu_request), given(&resources.cpu_limit)),
                (given(&resources.memory_request), given(&resources.memory_limit)),
            ] {
                any |= request.is_some() || limit.is_some();
                guaranteed &= limit.is_some() && request == limit;
            }
        }
        match (any, guaranteed) {
            (false, _) => QosClass::BestEffort,
            (true, true) => QosClass::Guaranteed,
            (true, false) => QosClass::Burstable,
        }
    }
}

/// No pod has more containers than an index has numbers (`MAX_CONTAINERS`).
fn index(place: usize) -> ContainerIndex {
    ContainerIndex(place as u8)
}
