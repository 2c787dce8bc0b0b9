//! The Pod and its pod-wide fields.

use std::rc::Rc;
use std::time::Duration;

use crate::sorted::SortedMap;

use super::container::{AppArmorProfile, ContainerPort, EnvSource, SeccompProfile};
use super::reference::{ObjectReference, PullPolicy};
use super::volume::{Projection, ProjectionSource, VolumeSource};
use super::{
    Container, ContainerIndex, Placement, Quantity, ResourceRequirements, RestartPolicy, Role, Volume,
};

/// `metadata.uid`: the identity of a pod. A pod with the same name and another uid is another pod.
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

/// An admitted Pod: identity and spec. A changed manifest makes another pod, except for what may change in
/// place ([`Pod::is_update_of`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// `metadata.name`, a DNS subdomain of at most 253 bytes.
    pub name: Rc<str>,
    /// `metadata.namespace`; `default` if none was given.
    pub namespace: Rc<str>,
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.generation`: starts at 1 and grows by 1 with each change of the spec in place.
    pub generation: u64,
    /// `metadata.labels`.
    pub labels: SortedMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: SortedMap<String, String>,
    /// `spec.priority`: the value of the pod's priority class when the pod was admitted.
    pub priority: i32,
    /// `spec`.
    pub spec: PodSpec,
}

/// The lowest priority of a critical pod (`SystemCriticalPriority`).
pub const CRITICAL: i32 = 2_000_000_000;

/// The priority class of pods without which the node itself does not work.
pub const NODE_CRITICAL: &str = "system-node-critical";

impl Pod {
    /// Whether presets, or defaults of LimitRanges, were applied to the pod when it was admitted.
    pub(crate) fn has_presets(&self) -> bool {
        self.annotations.keys().any(|key| key.starts_with(PRESET_MARK) || key == LIMIT_RANGER)
    }

    /// Whether the pod was admitted with values that a later lookup (of presets, of its classes) might
    /// change.
    pub(crate) fn is_admitted_for_good(&self) -> bool {
        self.has_presets() || self.spec.has_runtime_class || !self.spec.priority_class_name.is_empty()
    }

    /// Whether the pod is critical, so that others are preempted for it. Unlike a kubelet's, a pod from a
    /// file is not critical for that reason.
    pub(crate) fn is_critical(&self) -> bool {
        self.priority >= CRITICAL
    }

    /// Whether a container with these resources may swap with `LimitedSwap`: that of a burstable pod which is not critical, if it requests
    /// memory and may use more (`GetContainerSwapBehavior` of the kubelet).
    pub fn may_swap(&self, resources: &ResourceRequirements) -> bool {
        let bytes = |amount: &Option<Quantity>| amount.as_ref().map(Quantity::value);
        let request = bytes(&resources.memory_request);
        request.is_some()
            && request != bytes(&resources.memory_limit)
            && self.spec.qos_class() == QosClass::Burstable
            && !self.is_critical()
    }

    /// Whether the pod is killed last when memory is short, whatever it requests. This depends on its
    /// priority class and not on the number of its priority alone.
    pub fn is_node_critical(&self) -> bool {
        self.is_critical() && self.spec.priority_class_name == NODE_CRITICAL
    }
}

/// The prefix of the annotation that each applied PodPreset leaves; the preset's name follows it.
pub const PRESET_MARK: &str = "podpreset.admission.kubernetes.io/podpreset-";

/// The annotation of a pod that has defaults of LimitRanges.
pub const LIMIT_RANGER: &str = "kubernetes.io/limit-ranger";

/// `spec` of a Pod: the fields on which nodlet acts, with defaults applied.
#[derive(Clone, Debug, PartialEq)]
pub struct PodSpec {
    /// `containers`, at least one, in the order of the manifest.
    pub containers: Vec<Container>,
    /// `initContainers`, sidecars among them, in the order of the manifest.
    pub init_containers: Vec<Container>,
    /// `ephemeralContainers`, in the order in which they were added.
    pub ephemeral_containers: Vec<Container>,
    /// `volumes`.
    pub volumes: Vec<Volume>,
    /// `restartPolicy`; `Always` by default.
    pub restart_policy: RestartPolicy,
    /// `terminationGracePeriodSeconds`; 30 s by default; a negative value means 1 s.
    pub termination_grace_period: Duration,
    /// `activeDeadlineSeconds`.
    pub active_deadline: Option<Duration>,
    /// `hostNetwork`.
    pub host_network: bool,
    /// `hostUsers`; `true` by default.
    pub host_users: bool,
    /// `hostPID`.
    pub host_pid: bool,
    /// `hostIPC`.
    pub host_ipc: bool,
    /// `shareProcessNamespace`.
    pub share_process_namespace: bool,
    /// `hostname`; without it, the pod's name applies.
    pub hostname: Option<String>,
    /// `hostnameOverride`: the host name as it is written.
    pub hostname_override: Option<String>,
    /// `setHostnameAsFQDN`.
    pub hostname_as_fqdn: bool,
    /// `subdomain`.
    pub subdomain: Option<String>,
    /// `enableServiceLinks`: whether containers have variables of the Services of the namespace.
    pub service_links: bool,
    /// `hostAliases`: address and names.
    pub host_aliases: Vec<HostAlias>,
    /// `dnsPolicy`.
    pub dns_policy: DnsPolicy,
    /// `dnsConfig`.
    pub dns_config: DnsConfig,
    /// `securityContext` of the pod.
    pub security_context: PodSecurityContext,
    /// `imagePullSecrets`.
    pub image_pull_secrets: Vec<ObjectReference>,
    /// `conditionType` of each of `readinessGates`.
    pub readiness_gates: Vec<String>,
    /// `name` of each of `schedulingGates`.
    pub scheduling_gates: Vec<String>,
    /// `priorityClassName`; empty if none was given.
    pub priority_class_name: String,
    /// `serviceAccountName`; `default` by default.
    pub service_account_name: Box<str>,
    /// `resources`: those of the pod as a whole, which then apply instead of the sums of its containers.
    pub resources: Option<Rc<ResourceRequirements>>,
    /// `overhead`, as requests and as limits: what the runtime class of the pod takes besides its containers.
    pub overhead: Option<Rc<ResourceRequirements>>,
    /// Whether the pod names a runtime class.
    pub has_runtime_class: bool,
    /// The fields that decide on which node the pod may run.
    pub placement: Placement,
}

impl Pod {
    /// Whether the pod waits for its scheduling gates to be removed: no node has it yet.
    pub fn is_gated(&self) -> bool {
        !self.spec.scheduling_gates.is_empty()
    }

    /// The PersistentVolumeClaims that the pod uses: the name of each volume, that of its claim, and whether the claim
    /// is made for this pod (`ephemeral`).
    pub fn claims(&self) -> impl Iterator<Item = (&str, String, bool)> {
        self.spec.volumes.iter().filter_map(|volume| {
            let VolumeSource::Claim { claim, .. } = &volume.source else { return None };
            let name = claim.clone().unwrap_or_else(|| format!("{}-{}", self.name, volume.name));
            Some((&*volume.name, name, claim.is_none()))
        })
    }

    /// The ports of the host that the pod occupies as long as it runs, with their containers.
    pub fn host_ports(&self) -> impl Iterator<Item = (&Container, &ContainerPort)> {
        let sidecars = self.spec.init_containers.iter().filter(|container| container.sidecar);
        let containers = sidecars.chain(&self.spec.containers);
        let ports =
            containers.flat_map(|container| container.ports.iter().map(move |port| (container, port)));
        ports.filter(|(_, port)| port.host_port > 0)
    }

    /// Whether this is the same pod as `old` and differs only in what may change in place: labels,
    /// annotations, images, a deadline that is set or moved earlier, removed gates, tolerations, amounts of cpu
    /// and memory, and added ephemeral containers.
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
        // The placement is decided on once: as long as the pod is gated, it may change.
        if old.is_gated() {
            munged.spec.placement.clone_from(&old.spec.placement);
        }
        munged.spec.placement.tolerations.clone_from(&old.spec.placement.tolerations);
        if !munged.has_amounts_of(old) {
            // The cgroup of a pod depends on its class.
            if munged.spec.qos_class() != old.spec.qos_class() {
                return false;
            }
            munged.set_amounts_of(old);
        }
        munged == *old
    }

    /// Whether the amounts of cpu and memory are those of `other`, a version of the same pod.
    pub fn has_amounts_of(&self, other: &Pod) -> bool {
        self.requirements()
            .map(ResourceRequirements::resizable)
            .eq(other.requirements().map(ResourceRequirements::resizable))
    }

    /// Replaces the amounts of cpu and memory by those of `other`, a version of the same pod.
    pub(crate) fn set_amounts_of(&mut self, other: &Pod) {
        let amounts = other.requirements().map(|one| one.resizable().map(Clone::clone));
        self.set_amounts(amounts);
    }

    /// The amounts of cpu and memory as texts, for [`Pod::set_allocation`]. Empty for a pod that never has any.
    pub(crate) fn allocation(&self) -> Vec<[String; 4]> {
        if self.spec.qos_class() == QosClass::BestEffort {
            return Vec::new();
        }
        let text = |amount: &Option<Quantity>| amount.as_ref().map(Quantity::to_string).unwrap_or_default();
        self.requirements().map(|one| one.resizable().map(text)).collect()
    }

    /// Replaces the amounts of cpu and memory by those that [`Pod::allocation`] returned for an earlier version of the
    /// pod.
    pub(crate) fn set_allocation(&mut self, allocation: &[[String; 4]]) {
        // An empty text is no quantity.
        let amount = |text: &String| Quantity::parse(text).ok();
        self.set_amounts(allocation.iter().map(|one| one.each_ref().map(amount)));
    }

    fn set_amounts(&mut self, amounts: impl Iterator<Item = [Option<Quantity>; 4]>) {
        let spec = &mut self.spec;
        let of_containers = spec.containers.iter_mut().chain(&mut spec.init_containers);
        let of_containers = of_containers.map(|container| &mut container.resources);
        for (one, amounts) in of_containers.chain(spec.resources.as_mut().map(Rc::make_mut)).zip(amounts) {
            one.set_resizable(amounts);
        }
    }

    /// The resources of each container with which the pod was admitted, then those of the pod as a whole.
    fn requirements(&self) -> impl Iterator<Item = &ResourceRequirements> {
        let of_containers = self.spec.admitted_containers().map(|container| &container.resources);
        of_containers.chain(self.spec.resources.as_deref())
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
    /// The cluster's DNS; the node's DNS without a cluster.
    #[default]
    ClusterFirst,
    /// Like `ClusterFirst`, for host network pods too.
    ClusterFirstWithHostNet,
    /// The node's DNS.
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
    /// Whether `fsGroupChangePolicy` is `Always`: a volume is searched for files of another group at each mount.
    pub fs_group_always: bool,
    /// Whether `supplementalGroupsPolicy` is `Strict`: processes do not get the groups of the image's user.
    pub strict_groups: bool,
    /// `sysctls`: names and values.
    pub sysctls: Vec<(String, String)>,
    /// `seccompProfile`, for containers without their own.
    pub seccomp: Option<SeccompProfile>,
    /// `appArmorProfile`, for containers without their own.
    pub app_armor: Option<AppArmorProfile>,
}

/// `status.qosClass`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QosClass {
    /// Every container has cpu and memory limits equal to its requests.
    Guaranteed,
    /// Neither `Guaranteed` nor `BestEffort`.
    Burstable,
    /// No container has a request or a limit.
    BestEffort,
}

impl Pod {
    /// The pod as its manifest has it: a new run of a pod has no ephemeral containers.
    pub fn without_ephemeral(mut self) -> Pod {
        // Each ephemeral container was added by a change of the spec.
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

    /// The role of the container at `index`.
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

    /// The number of all containers, including init and ephemeral containers.
    pub(crate) fn container_count(&self) -> usize {
        self.admitted_count() + self.ephemeral_containers.len()
    }

    /// The number of containers with which the pod was admitted.
    fn admitted_count(&self) -> usize {
        self.containers.len() + self.init_containers.len()
    }

    /// All containers, in the order of their indexes.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.admitted_containers().chain(&self.ephemeral_containers)
    }

    /// The containers with which the pod was admitted; only these count for the pod's resources.
    pub fn admitted_containers(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().chain(&self.init_containers)
    }

    /// Whether the pod cannot run without AppArmor: it names a profile (`isRequired`).
    pub(crate) fn requires_app_armor(&self) -> bool {
        let of_containers = self.all_containers().map(|container| &container.security_context.app_armor);
        std::iter::once(&self.security_context.app_armor)
            .chain(of_containers)
            .flatten()
            .any(|profile| *profile != AppArmorProfile::Unconfined)
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

    /// The ConfigMaps and Secrets that the pod refers to, each as often as it is referred to.
    pub fn object_references(&self) -> impl Iterator<Item = &ObjectReference> {
        let of_containers = self.all_containers().flat_map(|container| {
            let keys = container.env.iter().filter_map(|variable| match &variable.value {
                EnvSource::Key { object, .. } => Some(object),
                EnvSource::Value(_)
                | EnvSource::Field(_)
                | EnvSource::Resource(_)
                | EnvSource::File { .. } => None,
            });
            container.env_from.iter().map(|source| &source.object).chain(keys)
        });
        let sources = self.projections().flat_map(|(_, projection)| &projection.sources);
        let of_volumes = sources.filter_map(|source| match source {
            ProjectionSource::Object { object, .. } => Some(object),
            ProjectionSource::DownwardApi(_) => None,
        });
        of_containers.chain(of_volumes).chain(&self.image_pull_secrets)
    }

    /// The volumes whose files the agent writes, with their names.
    pub fn projections(&self) -> impl Iterator<Item = (&str, &Projection)> {
        self.volumes.iter().filter_map(|volume| {
            let VolumeSource::Projected(projection) = &volume.source else { return None };
            Some((&*volume.name, projection))
        })
    }

    /// The volumes that show an image: the name, the image, and its pull policy.
    pub fn image_volumes(&self) -> impl Iterator<Item = (&str, &str, PullPolicy)> {
        self.volumes.iter().filter_map(|volume| {
            let VolumeSource::Image { reference, pull_policy } = &volume.source else { return None };
            Some((&*volume.name, &**reference, *pull_policy))
        })
    }

    /// Whether volumes of the pod depend on other objects: their files show them, or they are the volumes of claims.
    pub(crate) fn depends_on_objects(&self) -> bool {
        self.volumes.iter().any(|volume| match volume.source {
            VolumeSource::Projected(_) | VolumeSource::Claim { .. } => true,
            VolumeSource::EmptyDir { .. }
            | VolumeSource::HugePages { .. }
            | VolumeSource::HostPath { .. }
            | VolumeSource::Image { .. } => false,
        })
    }

    /// Indexes of `ephemeralContainers`, in the order in which they were added.
    pub(crate) fn ephemeral_indexes(&self) -> impl Iterator<Item = ContainerIndex> + use<> {
        (self.admitted_count()..self.container_count()).map(index)
    }

    /// The index of the container with this name, which is unique in the pod.
    pub fn index_of(&self, name: &str) -> Option<ContainerIndex> {
        self.all_containers().position(|container| container.name == name).map(index)
    }

    /// The path of the container at `index` in the object, as events name it.
    pub fn field_path(&self, index: ContainerIndex) -> String {
        let list = match self.role(index) {
            Role::Regular => "containers",
            Role::Init | Role::Sidecar => "initContainers",
            Role::Ephemeral => "ephemeralContainers",
        };
        format!("spec.{list}{{{}}}", self.container(index).name)
    }

    /// The most of a resource that the pod takes (`PodRequests`, `PodLimits`): the amount in `resources` of the
    /// pod, or else what its containers take together; and the overhead. `amount` returns what one container
    /// takes; zero and nothing are the same.
    pub fn effective(&self, amount: impl Fn(&ResourceRequirements) -> Option<i64>) -> i64 {
        let of_pod = self.resources.as_deref().and_then(&amount);
        let overhead = self.overhead.as_deref().and_then(&amount).unwrap_or(0);
        of_pod.unwrap_or_else(|| self.of_containers(amount)).saturating_add(overhead)
    }

    /// The most of a resource that the containers take together: the sum for the regular containers and
    /// sidecars, or the sum while an init container runs, whichever is larger.
    fn of_containers(&self, amount: impl Fn(&ResourceRequirements) -> Option<i64>) -> i64 {
        let of = |container: &Container| amount(&container.resources).unwrap_or(0);
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

    /// The bytes in huge pages of this size that the pod may use.
    pub fn huge_pages(&self, size: &str) -> i64 {
        self.effective(|resources| resources.huge_pages_of(size))
    }

    /// Whether a container has a limit of `ephemeral-storage`.
    pub(crate) fn has_storage_limit(&self) -> bool {
        let is_limited = |container: &Container| {
            container.resources.ephemeral_storage_limit.as_ref().is_some_and(|limit| !limit.is_zero())
        };
        self.admitted_containers().any(is_limited)
    }

    /// The limit of a container: its own, or else that of the pod as a whole. `limit` returns the limit, if it
    /// is above zero.
    pub fn limit_of<T>(
        &self,
        container: &Container,
        limit: impl Fn(&ResourceRequirements) -> Option<T>,
    ) -> Option<T> {
        limit(&container.resources).or_else(|| self.resources.as_deref().and_then(limit))
    }

    /// The addition to each container's own memory request for the order of out-of-memory kills: its
    /// part of what the pod as a whole requests and no container does (`remainingPodMemReqPerContainer`).
    /// Bytes.
    pub fn remaining_memory_request(&self) -> i64 {
        let bytes = |resources: &ResourceRequirements| resources.memory_request.as_ref().map(Quantity::value);
        let Some(of_pod) = self.resources.as_deref().and_then(bytes) else { return 0 };
        let count = i64::try_from(self.admitted_count()).unwrap_or(i64::MAX).max(1);
        of_pod.saturating_sub(self.of_containers(bytes)).max(0) / count
    }

    /// `status.qosClass`. Only cpu and memory count, and only amounts above zero: a request of zero counts as
    /// no request, and so differs from its limit. `resources` of the pod count instead of its containers'.
    pub fn qos_class(&self) -> QosClass {
        let given = |quantity: &Option<Quantity>| quantity.clone().filter(|quantity| !quantity.is_zero());
        let mut any = false;
        let mut guaranteed = true;
        let of_containers = self.admitted_containers().map(|container| &container.resources);
        let containers_count = self.resources.is_none();
        for resources in
            self.resources.as_deref().into_iter().chain(of_containers.filter(|_| containers_count))
        {
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
