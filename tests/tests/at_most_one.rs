//! At most one process of a pod, across two boards and a real control plane. The names of the tests in `failures` are
//! the classes of failures in the proposal of Kubernetes on pod safety. That no two processes run at once is what the
//! processes themselves show ([`nodlet_tests::Witness`]); packets are dropped between servers and boards, and no client
//! is stopped.

mod failures;
mod fencing;
mod handover;
mod steps;

use nodlet_tests::{ClusterNode, ControlPlane, Witness};

/// The flags of controllers that notice a lost node after 20 s; a board renews its Lease every 10 s.
const CONTROLLERS: &[&str] =
    &["--node-monitor-grace-period=20s", "--node-monitor-period=1s", "--node-eviction-rate=10"];

/// The tolerations of a pod that the cluster deletes soon after its node is lost.
const LEAVES: &str =
    "{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 2}";

/// The tolerations of a pod that stays on a lost node.
const STAYS: &str = "{operator: Exists, effect: NoExecute}";

/// Those of a pod that stays on a lost node, and that the scheduler binds to one: without them, it does so only until it
/// has noticed the loss.
const STAYS_AND_COMES: &str = "{operator: Exists, effect: NoExecute}, \
     {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoSchedule}, \
     {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoSchedule}";

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
        let plane = ControlPlane::start_with(CONTROLLERS);
        let boards = ["board-1", "board-2"].map(|name| ClusterNode::join_with(&plane, name, arguments));
        Self { boards, plane }
    }

    /// The places of the board to which the cluster has bound a pod, and of the other one.
    #[track_caller]
    fn places(&self, pod: &str) -> (usize, usize) {
        let line = format!("get pod {pod} --ignore-not-found -o jsonpath={{.spec.nodeName}}");
        match self.plane.wait_for(&line, |node| !node.is_empty()).as_str() {
            "board-1" => (0, 1),
            _ => (1, 0),
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
        self.plane.wait_for(&format!("get pod {pod} --ignore-not-found --no-headers"), |pod| {
            pod.contains("1/1") && pod.contains("Running")
        });
    }

    #[track_caller]
    fn wait_gone(&self, pod: &str) {
        self.plane.wait_for(&format!("get pod {pod} --ignore-not-found -o name"), str::is_empty);
    }

    /// Waits until the cluster shows both boards as Ready.
    #[track_caller]
    fn wait_nodes_ready(&self) {
        self.plane.wait_for("get nodes --no-headers", |nodes| {
            nodes.lines().filter(|node| node.split_whitespace().nth(1) == Some("Ready")).count() == 2
        });
    }

    #[track_caller]
    fn delete(&self, pod: &str) {
        self.plane.line(&format!("delete pod {pod} --wait=false")).ok();
    }

    /// Deletes a pod of a board, and returns when the board has begun to end it: the pod waits for
    /// [`Witness::let_end`], however long the next steps of the test take.
    #[track_caller]
    fn begin_to_end(&self, pod: &str, board: usize, witness: &Witness) {
        let device = &self.boards[board].device;
        let ends = || device.agent_log().matches("Killing Stopping").count();
        let before = ends();
        witness.hold();
        self.delete(pod);
        device.wait_for("the end to begin", || ends() > before);
    }

    #[track_caller]
    fn delete_by_force(&self, pod: &str) {
        self.plane.line(&format!("delete pod {pod} --force --grace-period=0 --wait=false")).ok();
    }
}

/// The spec of a pod which takes `end` seconds to end, and may take ten minutes.
fn spec(witness: &Witness, end: u64, tolerations: &str, more: &str) -> String {
    format!(
        "{{terminationGracePeriodSeconds: 600, volumes: [{}], containers: [{}], tolerations: [{tolerations}]{more}}}",
        witness.volume(),
        witness.container(end)
    )
}

/// A StatefulSet with one pod, `db-0`, which takes `end` seconds to end.
fn stateful_set(witness: &Witness, end: u64, tolerations: &str) -> String {
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
    spec: {}
",
        spec(witness, end, tolerations, "")
    )
}
