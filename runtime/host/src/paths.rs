//! Every path that nodlet uses, below one root.
//!
//! Only [`Paths::root`] and the files below it are ever written; paths that a pod names itself (`hostPath`)
//! belong to the machine and are not here.

use std::path::{Path, PathBuf};

use nodlet_kernel::durable::Reserve;
use sha2::{Digest, Sha256};

/// The paths of one root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    root: PathBuf,
}

impl Paths {
    /// The paths below `root`, an absolute directory.
    pub fn new(root: &Path) -> Paths {
        Paths { root: root.to_owned() }
    }

    /// `--root`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Eight hex digits that distinguish this root from others on the machine: part of the names of bridge,
    /// links and cgroups.
    pub fn hash(&self) -> String {
        let digest = Sha256::digest(self.root.as_os_str().as_encoded_bytes());
        digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
    }

    fn below(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Manifests that are part of the device image.
    pub fn vendor_manifests(&self) -> PathBuf {
        self.below("usr/lib/nodlet/manifests")
    }

    /// Manifests of the board's operator.
    pub fn site_manifests(&self) -> PathBuf {
        self.below("etc/nodlet/manifests")
    }

    /// Manifests that `apply` and the API have stored.
    pub fn applied_manifests(&self) -> PathBuf {
        self.below("var/lib/nodlet/manifests")
    }

    /// Manifests of the cluster that the board has joined: its pods, and the objects that these refer to.
    pub fn cluster_manifests(&self) -> PathBuf {
        self.below("var/lib/nodlet/cluster")
    }

    /// The network of the cluster's pods. Among the manifests of the cluster, with which it goes.
    pub fn cluster_network(&self) -> PathBuf {
        self.cluster_manifests().join(".network")
    }

    /// The labels of the Node in the cluster. Among the manifests of the cluster, with which they go.
    pub fn cluster_labels(&self) -> PathBuf {
        self.cluster_manifests().join(".labels")
    }

    /// The UID of the Node with which the board has registered. Among the manifests of the cluster, with which it goes.
    pub fn cluster_node(&self) -> PathBuf {
        self.cluster_manifests().join(".node")
    }

    /// The file with the credentials of a board that has joined a cluster.
    pub fn cluster_credentials(&self) -> PathBuf {
        self.below("var/lib/nodlet/cluster.json")
    }

    /// The file in the image with which a board enrols in a cluster by itself.
    pub fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.below("etc/nodlet/bootstrap-kubeconfig")
    }

    /// The mark of a board that has left the cluster of its bootstrap kubeconfig, and so does not enrol again.
    pub fn cluster_left(&self) -> PathBuf {
        self.below("var/lib/nodlet/cluster-left")
    }

    /// The file with the certificate of the kubelet's server, of a board that has joined a cluster.
    pub fn serving_certificate(&self) -> PathBuf {
        self.below("var/lib/nodlet/kubelet-server.json")
    }

    /// Manifests that do not outlive the boot.
    pub fn run_manifests(&self) -> PathBuf {
        self.below("run/nodlet/manifests")
    }

    /// When the Lease in the cluster was last renewed, for the next agent of a board with a fencing period.
    pub fn fencing(&self) -> PathBuf {
        self.below("run/nodlet/fencing")
    }

    /// The spool: content that is being pushed, until it is complete.
    pub fn push(&self) -> PathBuf {
        self.below("var/lib/nodlet/push")
    }

    /// The files that define devices of the board.
    pub fn device_files(&self) -> PathBuf {
        self.below("etc/nodlet/devices")
    }

    /// The directories of CDI files, later ones overriding earlier ones.
    pub fn cdi_files(&self) -> Vec<PathBuf> {
        vec![self.below("etc/cdi"), self.below("var/run/cdi")]
    }

    /// The file with the range of the pods' addresses, if the root has its own.
    pub fn pod_cidr(&self) -> PathBuf {
        self.below("etc/nodlet/pod-cidr")
    }

    /// The file with the ranges of the addresses of Services, if the root has its own.
    pub fn service_cidr(&self) -> PathBuf {
        self.below("etc/nodlet/service-cidr")
    }

    /// The file with the size limit of the image store, if there is one.
    pub fn image_store_limit(&self) -> PathBuf {
        self.below("etc/nodlet/image-store-limit")
    }

    /// The directory of seccomp profiles that pods name (`localhostProfile`), as below the kubelet's root directory.
    pub fn seccomp_profiles(&self) -> PathBuf {
        self.below("var/lib/nodlet/seccomp")
    }

    /// The records, one durable file for each pod.
    pub fn records(&self) -> PathBuf {
        self.below("var/lib/nodlet/records")
    }

    /// The record of which PersistentVolumeClaims are bound to which volumes.
    pub fn bindings(&self) -> PathBuf {
        self.below("var/lib/nodlet/claims.json")
    }

    /// The record of the addresses and node ports of Services.
    pub fn service_allocations(&self) -> PathBuf {
        self.below("var/lib/nodlet/services.json")
    }

    /// All that survives a reboot, but logs and settings.
    pub fn data(&self) -> PathBuf {
        self.below("var/lib/nodlet")
    }

    /// The record of updates, and their programs.
    pub fn system(&self) -> PathBuf {
        self.below("var/lib/nodlet/system")
    }

    /// The spare files for what must be written when the file system is full.
    pub fn reserve(&self) -> Reserve {
        let targets = vec![
            self.data(),
            self.below("var/lib/nodlet/init"),
            self.system(),
            self.records(),
            self.applied_manifests(),
            self.cluster_manifests(),
        ];
        Reserve::new(self.below("var/lib/nodlet/reserve"), targets)
    }

    /// The files of a pod on disk: volumes and writable layers.
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    /// The parent directory of [`Paths::pod`].
    pub fn pods(&self) -> PathBuf {
        self.below("var/lib/nodlet/pods")
    }

    /// `/var/log`, which may be a link. Files below it are never reached through links: see `log_files.rs`.
    pub fn var_log(&self) -> PathBuf {
        self.below("var/log")
    }

    /// `/var/log/pods`.
    pub fn logs(&self) -> PathBuf {
        self.below("var/log/pods")
    }

    /// `/var/log/pods/<namespace>_<name>_<uid>`.
    pub fn pod_logs(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.logs().join(format!("{namespace}_{name}_{uid}"))
    }

    /// `/var/log/containers`, the links that log shippers follow.
    pub fn log_links(&self) -> PathBuf {
        self.below("var/log/containers")
    }

    /// The files that do not outlive the boot.
    pub fn run(&self) -> PathBuf {
        self.below("run/nodlet")
    }

    /// The files that a supervisor and a later agent share, for all pods.
    pub fn run_pods(&self) -> PathBuf {
        self.run().join("pods")
    }

    /// The files that a supervisor and a later agent share, for one pod.
    pub fn run_pod(&self, uid: &str) -> PathBuf {
        self.run_pods().join(uid)
    }

    /// The handovers of pod statuses to the next agent.
    pub fn statuses(&self) -> PathBuf {
        self.run().join("statuses")
    }

    /// The handover of one pod's status to the next agent.
    pub fn status(&self, uid: &str) -> PathBuf {
        self.statuses().join(format!("{uid}.json"))
    }

    /// The locks, one for each pod name, held by the supervisors.
    pub fn locks(&self) -> PathBuf {
        self.run().join("locks")
    }

    /// The images that pods use.
    fn leases(&self) -> PathBuf {
        self.run().join("leases")
    }

    /// The lock of the agent itself.
    pub fn agent_lock(&self) -> PathBuf {
        self.run().join("agent.lock")
    }

    /// The file with the place of the cgroups of this root's pods.
    pub(crate) fn cgroup_place(&self) -> PathBuf {
        self.run().join("cgroup")
    }

    /// The file with the links that forward packets only because of nodlet. It exists as long as nodlet's
    /// nftables table may.
    pub(crate) fn forwarding(&self) -> PathBuf {
        self.run().join("forwarding")
    }

    /// The file with the routes to pods of other nodes that nodlet has made in this boot.
    pub(crate) fn routes(&self) -> PathBuf {
        self.run().join("routes")
    }

    /// The page in which the agent marks what it handles.
    pub fn marks(&self) -> PathBuf {
        self.run().join("handling")
    }

    /// The file with the objects in whose handling agents died.
    pub fn suspects(&self) -> PathBuf {
        self.run().join("suspects.json")
    }

    /// The file that says since when the conditions of the Node have had their status.
    pub fn node_conditions(&self) -> PathBuf {
        self.run().join("node-conditions.json")
    }

    /// The socket of the local API.
    pub fn api_socket(&self) -> PathBuf {
        self.run().join("api.sock")
    }

    /// The directories that the agent creates at its start, with their modes. Log directories are not among
    /// them, since a container may have replaced these: see `log_files.rs`.
    pub fn directories(&self) -> Vec<(PathBuf, u32)> {
        vec![
            (self.run(), 0o755),
            (self.run_pods(), 0o700),
            (self.statuses(), 0o700),
            (self.locks(), 0o700),
            // A process that can open this directory can lock it, and delay every start.
            (self.leases(), 0o700),
            (self.run().join("manifests"), 0o755),
            (self.data(), 0o755),
            // A process that can open a directory can lock it, and with these two delay every load and start.
            // Files in these two can be opened by any process that knows the name.
            (self.below("var/lib/nodlet/images"), 0o711),
            (self.below("var/lib/nodlet/images/staging"), 0o711),
            (self.applied_manifests(), 0o700),
            (self.records(), 0o700),
            // The files of containers in there, setuid programs among them, must be accessible to the
            // containers alone.
            (self.pods(), 0o700),
        ]
    }

    /// Those of [`Paths::directories`] whose content nodlet makes anew. What is in the place of one is removed when an agent
    /// starts; in the place of another directory, it is refused. Containers are found by their cgroups if the files of
    /// their supervisors are gone.
    pub fn scratch_directories(&self) -> Vec<PathBuf> {
        vec![
            self.run_pods(),
            self.statuses(),
            self.locks(),
            self.leases(),
            self.below("var/lib/nodlet/images/staging"),
        ]
    }

    /// The directories that `nodlet down` removes: everything but images, manifests, records and settings. The one with
    /// the agent's lock is the last.
    pub fn removed_by_down(&self) -> Vec<PathBuf> {
        vec![self.pods(), self.run()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_below_the_root_and_each_root_has_distinct_names() {
        let paths = Paths::new(Path::new("/tmp/a"));
        let mut all = vec![
            paths.cluster_manifests(),
            paths.vendor_manifests(),
            paths.site_manifests(),
            paths.applied_manifests(),
            paths.run_manifests(),
        ];
        all.extend(paths.directories().into_iter().map(|(path, _)| path));
        all.extend(paths.removed_by_down());
        all.extend([
            paths.pod("u"),
            paths.run_pod("u"),
            paths.api_socket(),
            paths.agent_lock(),
            paths.cgroup_place(),
            paths.pod_cidr(),
            paths.device_files(),
            paths.image_store_limit(),
        ]);
        assert!(all.iter().all(|path| path.starts_with("/tmp/a")), "{all:?}");
        assert_eq!(paths.hash().len(), 8);
        assert_ne!(paths.hash(), Paths::new(Path::new("/tmp/b")).hash());
        let closed = |path: PathBuf| paths.directories().contains(&(path, 0o700));
        assert!(closed(paths.pods()) && closed(paths.records()) && closed(paths.leases()));
        let all = paths.directories();
        assert!(paths.scratch_directories().iter().all(|path| all.iter().any(|(other, _)| other == path)));
        assert_eq!(
            paths.removed_by_down().last(),
            Some(&paths.run()),
            "the lock stays until the rest is removed"
        );
        for kept in [paths.applied_manifests(), paths.records()] {
            assert!(!paths.removed_by_down().iter().any(|path| kept.starts_with(path)), "{kept:?}");
        }
    }
}
