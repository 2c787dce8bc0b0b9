//! Lost nodes with a fencing period: a pod of a StatefulSet is deleted by force, starts elsewhere, and its node returns.

use std::time::{Duration, Instant};

use nodlet_tests::Witness;

use super::{Cluster, LEAVES, STAYS, stateful_set};

const PERIOD: Duration = Duration::from_secs(40);

/// A cluster whose boards have a fencing period, with a StatefulSet whose pod runs. A signal does not end it in time.
fn with_db(tolerations: &str) -> (Cluster, Witness) {
    let cluster = Cluster::start_with(&["--fencing-period", "40s"]);
    let witness = Witness::new(&cluster.plane, "db-0");
    // The end of the test does not wait for ten minutes.
    let set = stateful_set(&witness, 600, tolerations);
    cluster
        .plane
        .apply(&set.replace("terminationGracePeriodSeconds: 600", "terminationGracePeriodSeconds: 20"));
    witness.wait_running(1);
    cluster.wait_ready("db-0");
    (cluster, witness)
}

#[test]
fn a_pod_of_a_lost_node_ends_before_force_deletion_starts_it_elsewhere_and_stays_ended_when_the_node_returns()
{
    let (mut cluster, witness) = with_db(LEAVES);
    let (here, there) = cluster.places("db-0");
    cluster.boards[here].device.run_pod("own", "wait /end");
    cluster.boards[here].device.pod("own").wait_ready();
    let born = cluster.boards[here].device.pod("own").born("app");
    let first = cluster.uid("db-0", |_| true);

    let cut = cluster.plane.partition_from(&cluster.boards[here].address);
    let began = Instant::now();
    // The next agent continues to count.
    cluster.boards[here].device.kill_agent();
    cluster.boards[here].device.start_agent();
    cluster.wait_terminating("db-0");
    assert_eq!(witness.starts(), 1);
    witness.wait_ended();
    let took = began.elapsed();
    println!("the last process ended {took:?} after the packets were dropped");
    assert!(took < PERIOD, "{took:?}");
    assert!(took > PERIOD / 4, "{took:?}: the pod may run for a while");

    // As much as this administrator knows, it is safe now.
    assert_eq!(cluster.uid("db-0", |_| true), first);
    cluster.delete_by_force("db-0");
    witness.wait_running(2);
    assert_eq!(cluster.places("db-0"), (there, here));
    cluster.wait_ready("db-0");

    // The node returns.
    drop(cut);
    cluster.wait_nodes_ready();
    let returned = &cluster.boards[here].device;
    returned.wait_for("the ended pod to be gone", || returned.pods() == ["own"]);
    assert_eq!(returned.pod("own").born("app"), born, "pods of files are not concerned");
    assert_eq!(witness.starts(), 2);
    witness.saw_at_most_one();
}

#[test]
fn a_pod_that_is_still_wanted_starts_again_only_after_the_cluster_has_confirmed_it_also_after_a_reboot() {
    let (mut cluster, witness) = with_db(STAYS);
    let (here, _) = cluster.places("db-0");
    let uid = cluster.uid("db-0", |_| true);
    let phase = "get pod db-0 -o jsonpath={.status.phase}";

    let cut = cluster.plane.partition_from(&cluster.boards[here].address);
    witness.wait_ended();
    let board = &cluster.boards[here].device;
    board.wait_for("the reason", || board.pod("db-0").status()["reason"] == "NodeLost");
    drop(cut);
    witness.wait_running(2);
    cluster.wait_ready("db-0");
    assert_eq!(cluster.uid("db-0", |_| true), uid);

    // What an earlier boot knew of the Lease counts for nothing.
    cluster.boards[here].device.run_pod("own", "wait /end");
    cluster.boards[here].device.pod("own").wait_ready();
    let cut = cluster.plane.partition_from(&cluster.boards[here].address);
    cluster.boards[here].device.cut_power();
    cluster.boards[here].device.start_agent();
    cluster.boards[here].device.pod("own").wait_ready();
    assert!(!witness.runs() && witness.starts() == 2, "it waits for the cluster");
    drop(cut);
    witness.wait_running(3);
    cluster.wait_ready("db-0");
    assert_eq!(cluster.plane.line(phase).ok(), "Running");
    assert_eq!(cluster.uid("db-0", |_| true), uid, "no controller saw it fail");
    witness.saw_at_most_one();
}
