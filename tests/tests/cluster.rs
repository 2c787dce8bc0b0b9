//! A real Kubernetes control plane, to which boards are nodes.

use nodlet_tests::{ControlPlane, Namespace};

/// A Deployment of one pod.
const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: localhost/demo:1}]
";

#[test]
fn a_pod_stays_pending_in_a_cluster_without_nodes() {
    let plane = ControlPlane::start();
    plane.apply(DEPLOYMENT);
    let pods = plane.wait_for("get pods --no-headers", |pods| !pods.is_empty());
    assert!(pods.contains("web-") && pods.contains("Pending"), "{pods}");
    let why = "get pods -o jsonpath={.items[*].status.conditions[*].message}";
    let why = plane.wait_for(why, |message| !message.is_empty());
    assert!(why.contains("no nodes available to schedule pods"), "{why}");

    // What a board that joins reads without credentials, signed with its token.
    let info = plane.wait_for("get configmap cluster-info -n kube-public -o yaml", |info| {
        info.contains("jws-kubeconfig-abcdef")
    });
    assert!(info.contains(&plane.server()), "{info}");
}

#[test]
fn a_partition_drops_packets_between_boards_and_the_control_plane() {
    let plane = ControlPlane::start();
    let (one, other) = (Namespace::new(), Namespace::new());
    let addresses = [&one, &other].map(|board| plane.connect(board));
    let reaches = |board: &Namespace| {
        let server = plane.server().parse().expect("an address");
        board.call(move || {
            std::net::TcpStream::connect_timeout(&server, std::time::Duration::from_secs(1)).is_ok()
        })
    };
    assert!(reaches(&one) && reaches(&other));
    let cut = plane.partition_from(&addresses[0]);
    assert!(!reaches(&one) && reaches(&other));
    drop(cut);
    assert!(reaches(&one));
    let cut = plane.partition();
    assert!(!reaches(&one) && !reaches(&other));
    drop(cut);
    assert!(reaches(&one) && reaches(&other));
}
