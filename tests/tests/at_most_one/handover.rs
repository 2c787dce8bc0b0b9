//! The fifteen steps in which the proposal on pod safety hands a ReadWriteOnce volume over from one node to another.
//! The volume is a directory that exists on one board at a time; the test plays the attach/detach controller, which
//! records in the PersistentVolume by compare and swap where it is attached, and moves it then. A board on which the
//! directory is missing has to wait.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;

use nodlet_tests::{ClusterNode, ControlPlane, Device, Witness};

use super::{CONTROLLERS, Cluster, LEAVES};

/// Where the volume is on a board to which it is attached.
const PATH: &str = "/etc/iscsi-1";

/// A board with an `/etc` of its own, which has joined.
fn join(plane: &ControlPlane, name: &str, arguments: [&str; 6]) -> (ClusterNode, PathBuf) {
    let mut device = Device::new();
    let etc = device.own_etc();
    for file in ["group", "hosts", "machine-id", "passwd"] {
        let _ = fs::copy(format!("/etc/{file}"), etc.join(file));
    }
    let network = device.own_network();
    let address = plane.connect(&network);
    device.agent_arguments(arguments);
    device.start_agent_with_demo();
    (ClusterNode { device, network, address }.enter(plane, name), etc)
}

/// The volume, and who has it.
struct Volume<'a> {
    cluster: &'a Cluster,
    /// `/etc` of each board.
    etc: [PathBuf; 2],
    /// Where the directory is now.
    at: RefCell<PathBuf>,
}

impl<'a> Volume<'a> {
    fn new(cluster: &'a Cluster, etc: [PathBuf; 2]) -> Self {
        let at = cluster.plane.shared("iscsi-1");
        Self { cluster, etc, at: RefCell::new(at) }
    }

    /// Attaches the volume to the board of a pod, or to none, if it still is attached to `from`. Whoever decides with
    /// an old object fails.
    fn attach(&self, from: &str, to: &str) {
        let plane = &self.cluster.plane;
        let read =
            "get pv iscsi-1 -o jsonpath={.metadata.resourceVersion}|{.metadata.annotations.attached-to}";
        let found = plane.line(read).ok();
        let (version, attached) = found.split_once('|').expect("two fields");
        assert_eq!(attached, from);
        let swap = |version: &str| {
            let metadata = format!(
                "{{\"metadata\":{{\"resourceVersion\":\"{version}\",\"annotations\":{{\"attached-to\":\"{to}\"}}}}}}"
            );
            plane.kubectl(["patch", "pv", "iscsi-1", "--type", "merge", "-p", &metadata])
        };
        swap(version).ok();
        assert!(swap("1").refused().contains("the object has been modified"));
        let place = match to {
            "board-1" => self.etc[0].join("iscsi-1"),
            "board-2" => self.etc[1].join("iscsi-1"),
            _ => plane.shared("detached").join("iscsi-1"),
        };
        fs::rename(&*self.at.borrow(), &place).expect("one file system");
        *self.at.borrow_mut() = place;
    }
}

fn pod(witness: &Witness, name: &str, node: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 20
  nodeSelector: {{storagecluster: iscsi-1, kubernetes.io/hostname: {node}}}
  tolerations: [{LEAVES}]
  volumes:
  - {}
  - {{name: data, persistentVolumeClaim: {{claimName: data}}}}
  containers:
  - {{name: app, image: 'localhost/demo:1', imagePullPolicy: Never, args: {},
      volumeMounts: [{}, {{name: data, mountPath: /data}}]}}
",
        witness.volume(),
        witness.steps(6),
        Witness::MOUNT
    )
}

/// Steps 1 to 11, without step 8: the user terminates the first pod later.
fn up_to_step_11(cluster: &Cluster, volume: &Volume<'_>, witness: &Witness) {
    let plane = &cluster.plane;
    // 1: an administrator makes the volume, for nodes with a label. 2: a user claims it.
    plane.apply(&format!(
        "
apiVersion: v1
kind: PersistentVolume
metadata: {{name: iscsi-1}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteOnce]
  storageClassName: manual
  hostPath: {{path: {PATH}, type: Directory}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: manual
  resources: {{requests: {{storage: 1Gi}}}}
"
    ));
    plane.wait_for("get pvc data -o jsonpath={.status.phase}", |phase| phase == "Bound");
    // 3, 4: a pod with the claim is bound to node A. 5: the node waits for the volume.
    plane.apply(&pod(witness, "pod-1", "board-1"));
    let waits = |pod: &'static str| {
        plane.wait_for(&format!("describe pod {pod}"), |described| described.contains("FailedMount"));
    };
    waits("pod-1");
    assert_eq!(witness.starts(), 0);
    // 6: the volume is attached to node A. 7: the pod runs.
    volume.attach("", "board-1");
    witness.wait_running(1);
    cluster.wait_ready("pod-1");
    // 9, 10: another pod with the claim is bound to node B. 11: that node waits, too.
    plane.apply(&pod(witness, "pod-2", "board-2"));
    waits("pod-2");
    assert_eq!(witness.starts(), 1);
}

fn cluster(arguments: &str) -> (Cluster, [PathBuf; 2]) {
    let plane = ControlPlane::start_with(CONTROLLERS);
    let (flag, value) = arguments.split_once(' ').expect("a flag and its value");
    let join = |name: &str| {
        join(&plane, name, ["--node-name", name, "--node-labels", "storagecluster=iscsi-1", flag, value])
    };
    let ((one, etc_1), (two, etc_2)) = (join("board-1"), join("board-2"));
    (Cluster { boards: [one, two], plane }, [etc_1, etc_2])
}

#[test]
fn a_partition_after_step_11_delays_the_handover_of_a_volume_until_the_first_node_returns() {
    let (cluster, etc) = cluster("--fencing-period 0");
    let witness = Witness::new(&cluster.plane, "volume");
    let volume = Volume::new(&cluster, etc);
    up_to_step_11(&cluster, &volume, &witness);

    // 8: the user terminates the first pod, of which node A does not hear: steps 12 to 15 do not follow.
    let cut = cluster.plane.partition_from(&cluster.boards[0].address);
    cluster.delete("pod-1");
    cluster.plane.wait_for("get nodes --no-headers", |nodes| nodes.contains("NotReady"));
    cluster.uid("pod-1", |_| true);
    assert!(witness.runs() && witness.starts() == 1);
    drop(cut);

    // 12: node A completes the deletion. 13: the volume is detached. 14: it is attached to node B. 15: the pod runs.
    cluster.wait_gone("pod-1");
    assert!(!witness.runs(), "a pod is deleted when its last process has ended");
    volume.attach("board-1", "none");
    volume.attach("none", "board-2");
    witness.wait_running(2);
    cluster.wait_ready("pod-2");
    witness.saw_at_most_one();
}

#[test]
fn a_fencing_period_lets_the_handover_of_a_volume_continue_without_the_first_node() {
    let (cluster, etc) = cluster("--fencing-period 40s");
    let witness = Witness::new(&cluster.plane, "volume");
    let volume = Volume::new(&cluster, etc);
    up_to_step_11(&cluster, &volume, &witness);
    let cut = cluster.plane.partition_from(&cluster.boards[0].address);
    cluster.delete("pod-1");
    // What a fencing controller knows by the time is what the processes show.
    witness.wait_ended();
    cluster.uid("pod-1", |_| true);
    cluster.delete_by_force("pod-1");
    volume.attach("board-1", "none");
    volume.attach("none", "board-2");
    witness.wait_running(2);
    cluster.wait_ready("pod-2");
    drop(cut);
    cluster.wait_nodes_ready();
    let returned = &cluster.boards[0].device;
    returned.wait_for("the first pod to be gone", || returned.pods().is_empty());
    assert_eq!(witness.starts(), 2);
    witness.saw_at_most_one();
}
