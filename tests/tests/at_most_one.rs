//! At most one process of a pod, across two boards and a real control plane. The names of the tests in `failures` are
//! the classes of failures in the proposal of Kubernetes on pod safety. That no two processes run at once is what the
//! processes themselves show ([`nodlet_tests::Witness`]); packets are dropped between servers and boards, and no client
//! is stopped.

#[path = "at_most_one/failures.rs"]
mod failures;

use nodlet_tests::{ClusterNode, ControlPlane, Witness};

/// The flags of controllers that notice a lost node after 20 s; a board renews its Lease every 10 s.
const CONTROLLERS: &[&str] =
    &["--node-monitor-grace-period=20s", "--node-monitor-period=1s", "--node-eviction-rate=10"];

/// The flags of an API server whose pods leave an unreachable node after 5 s.
const SERVER: &[&str] = &["--default-unreachable-toleration-seconds=5"];

/// Two boards of a control plane, which notices soon that a node is lost.
struct Cluster {
    boards: [ClusterNode; 2],
    // Dropped after the boards.
    plane: ControlPlane,
}

impl Cluster {
    fn start() -> Self {
        Self::start_with(&[])
    }

    /// Two boards whose agents have these arguments.
    fn start_with(arguments: &[&str]) -> Self {
        let plane = ControlPlane::start_with_flags(CONTROLLERS, SERVER);
        let boards = ["board-1", "board-2"].map(|name| ClusterNode::join_with(&plane, name, arguments));
        Self { boards, plane }
    }

    /// The board on which the cluster has a pod, and the other one.
    fn boards_of(&self, pod: &str) -> (&ClusterNode, &ClusterNode) {
        let [one, two] = &self.boards;
        match self.plane.line(&format!("get pod {pod} -o jsonpath={{.spec.nodeName}}")).ok().as_str() {
            "board-1" => (one, two),
            _ => (two, one),
        }
    }

    /// The UID of a pod of the cluster, once there is one that `condition` accepts.
    #[track_caller]
    fn uid(&self, pod: &str, condition: impl Fn(&str) -> bool) -> String {
        let line = format!("get pod {pod} --ignore-not-found -o jsonpath={{.metadata.uid}}");
        self.plane.wait_for(&line, |uid| !uid.is_empty() && condition(uid))
    }

    #[track_caller]
    fn wait_terminating(&self, pod: &str) {
        let line = format!("get pod {pod} -o jsonpath={{.metadata.deletionTimestamp}}");
        self.plane.wait_for(&line, |time| !time.is_empty());
    }

    #[track_caller]
    fn wait_ready(&self, pod: &str) {
        self.plane.wait_for(&format!("get pod {pod} --no-headers"), |pod| {
            pod.contains("1/1") && pod.contains("Running")
        });
    }
}

/// A StatefulSet with one pod, `db-0`, which takes `end` seconds to end.
fn stateful_set(witness: &Witness, end: u64) -> String {
    format!(
        "
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: db}}
spec:
  serviceName: db
  replicas: 1
  selector: {{matchLabels: {{app: db}}}}
  template:
    metadata: {{labels: {{app: db}}}}
    spec:
      terminationGracePeriodSeconds: 20
      volumes: [{}]
      containers: [{}]
",
        witness.volume(),
        witness.container(end)
    )
}
