//! The configuration of an agent.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::{ClusterDns, Eviction, ImageCollection};
use crate::container_config::LogLimits;
use nodlet_cluster::reporting::Reporting;
use nodlet_cluster::sync::Periodic;
use nodlet_core::facts::{Amounts, ShutdownGroup};
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::Taint;
use nodlet_host::cgroup::PodPidsLimit;
use nodlet_kube::manifest::AllowedAnnotations;

/// Whose Services the board serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServicesOf {
    /// Those of its own manifests.
    #[default]
    Board,
    /// Also those of the cluster that it has joined, instead of kube-proxy.
    Cluster,
    /// None: they are rejected, and pods get the name servers of the machine.
    Nobody,
}

/// The configuration of Services.
#[derive(Clone, Debug)]
pub struct Services {
    /// Whose Services the board serves.
    pub of: ServicesOf,
    /// The ranges of their addresses; `None` for the root's file or the default. kube-apiserver's
    /// `--service-cluster-ip-range`.
    pub cidr: Option<String>,
    /// The ports for Services of the types NodePort and LoadBalancer. kube-apiserver's `--service-node-port-range`.
    pub node_ports: RangeInclusive<u16>,
    /// The ranges of addresses that Services may have as `externalIPs`: an address and the number of its first bits that
    /// count.
    pub external_ips: Vec<(IpAddr, u8)>,
    /// The file with the user who reads the Services of the cluster; `None` for the node itself. kube-proxy's
    /// `--kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
}

impl Default for Services {
    fn default() -> Services {
        Services {
            of: ServicesOf::default(),
            cidr: None,
            node_ports: 30000..=32767,
            external_ips: Vec::new(),
            kubeconfig: None,
        }
    }
}

/// The configuration of an agent.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory that contains all files of the agent.
    pub root: PathBuf,
    /// Name of the node, as `spec.nodeName` and in uids.
    pub node_name: String,
    /// The range of the pods' addresses; `None` for the root's file or the default.
    pub pod_cidr: Option<String>,
    /// Ranges of the pods of the whole cluster, besides those of its Nodes: the `--cluster-cidr` of a cluster.
    pub cluster_cidrs: Vec<(IpAddr, u8)>,
    /// Whether pods of other nodes are reached over routes to the addresses of these.
    pub node_routes: bool,
    /// The DNS of the cluster.
    pub dns: ClusterDns,
    /// The Services that the board serves.
    pub services: Services,
    /// The file with the name servers and search domains for pods; `None` for none. The kubelet's `--resolv-conf`.
    pub resolv_conf: Option<PathBuf>,
    /// Whether pods reach other machines under the address of this one.
    pub masquerade: bool,
    /// Processes that each pod may have.
    pub pod_pids_limit: PodPidsLimit,
    /// Annotations of pods that may request something of the board.
    pub allowed_annotations: AllowedAnnotations,
    /// Kernel parameters, and patterns of them, that pods may set besides the safe ones.
    pub allowed_sysctls: Vec<String>,
    /// Whether containers of burstable pods may swap: the kubelet's `memorySwap.swapBehavior: LimitedSwap`.
    pub limited_swap: bool,
    /// The number of finished applied pods that are kept; `None` to keep all. The control plane's
    /// `--terminated-pod-gc-threshold`.
    pub terminated_pod_gc_threshold: Option<usize>,
    /// Pods at a time, at most [`nodlet_core::facts::MAX_PODS`]. The kubelet's `--max-pods`.
    pub max_pods: usize,
    /// Events that are kept, of all objects.
    pub max_events: usize,
    /// Clients of the API at a time, and half as many of the kubelet's server.
    pub max_connections: usize,
    /// The port of the kubelet's server, which the board has once it has joined a cluster; 0 for none. The kubelet's
    /// `--port`.
    pub kubelet_port: u16,
    /// The thresholds at which unused images are removed; `None` to remove none.
    pub image_collection: Option<ImageCollection>,
    /// When the node is under pressure, and evicts pods.
    pub eviction: Eviction,
    /// Labels of the node besides its own. The kubelet's `--node-labels`.
    pub node_labels: SortedMap<String, String>,
    /// Taints of the node. The kubelet's `--register-with-taints`.
    pub taints: Vec<Taint>,
    /// How much of each container's log is kept.
    pub logs: LogLimits,
    /// Resources that are reserved from pods: the kubelet's `--kube-reserved` and `--system-reserved` together.
    pub reserved: Amounts,
    /// When the board connects to its cluster; `None` for a permanent connection.
    pub sync: Option<Periodic>,
    /// The file with the keys that encrypt what the board stores of its cluster; `None` to store it as it is.
    pub encryption_key_file: Option<PathBuf>,
    /// How much the board reports to its cluster.
    pub reporting: Reporting,
    /// The time without a renewal of its Lease after which no pod of the cluster runs on a joined board; `None` for no
    /// end.
    pub fencing_period: Option<Duration>,
    /// Stop every pod, remove what is left of them, and end (`nodlet down`).
    pub down: bool,
    /// The groups of pods, by priority, in which pods end when the machine shuts down; empty to delay no shutdown.
    pub shutdown_groups: Vec<ShutdownGroup>,
    /// Reason and message of a `Warning` event of the node about the machine, to publish at the start.
    pub warning: Option<(String, String)>,
}
