//! The six classes of failures that the proposal on pod safety names, under its heading "Testing".

use nodlet_tests::Witness;

use super::{Cluster, stateful_set};

#[test]
fn master_node_partition() {
    let cluster = Cluster::start();
    let plane = &cluster.plane;
    let witness = Witness::new(plane, "db-0");
    plane.apply(&stateful_set(&witness, 1));
    witness.wait_running(1);
    cluster.wait_ready("db-0");
    let first = cluster.uid("db-0", |_| true);
    let (board, other) = cluster.boards_of("db-0");

    // The control plane deletes the pod of a node that it does not reach, and waits: nobody but the node removes it.
    let cut = plane.partition_from(&board.address);
    cluster.wait_terminating("db-0");
    assert!(witness.runs() && witness.starts() == 1);
    assert_eq!(cluster.uid("db-0", |_| true), first);
    assert!(other.device.pods().is_empty(), "another board has the pod");
    drop(cut);

    // The board ends it; only then is there another one.
    let second = cluster.uid("db-0", |uid| uid != first);
    witness.wait_running(2);
    cluster.wait_ready("db-0");
    assert_eq!(cluster.uid("db-0", |_| true), second);

    // A partition from all nodes ends nothing, however long.
    let cut = plane.partition();
    plane.wait_for("get nodes --no-headers", |nodes| nodes.matches("NotReady").count() == 2);
    assert!(witness.runs() && witness.starts() == 2);
    drop(cut);
    plane.wait_for("get nodes --no-headers", |nodes| nodes.matches(" Ready").count() == 2);
    witness.saw_at_most_one();
}
