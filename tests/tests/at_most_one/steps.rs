//! Partitions at each step of the creation, the deletion and the rescheduling of a pod.

use std::fs;

use nodlet_tests::Witness;

use super::{Cluster, STAYS, STAYS_AND_COMES, spec, stateful_set};

/// A pod of the first board, which begins only when the test allows it.
fn pod(witness: &Witness, name: &str) -> String {
    let waits = format!(
        ", nodeName: board-1, initContainers: [{{name: init, image: 'localhost/demo:1', imagePullPolicy: Never, \
         args: [wait, /witness/{name}.go], volumeMounts: [{}]}}]",
        Witness::MOUNT
    );
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {}\n",
        spec(witness, 4, STAYS, &waits)
    )
}

#[test]
fn creation() {
    let cluster = Cluster::start();
    let (plane, board) = (&cluster.plane, &cluster.boards[0]);
    let cut = || plane.partition_from(&board.address);
    let begin = |witness: &Witness, name: &str| {
        fs::write(format!("{}/{name}.go", witness.dir()), "").expect("the test owns the directory");
    };
    let wait_init = |name: &str| {
        let pod = board.device.pod(name);
        board.device.wait_for("the init container", || {
            pod.object()
                .is_some_and(|pod| pod["status"]["initContainerStatuses"][0]["state"]["running"].is_object())
        });
    };

    // The board has not seen the pod.
    let unseen = Witness::new(plane, "unseen");
    let away = cut();
    plane.apply(&pod(&unseen, "unseen"));
    begin(&unseen, "unseen");
    drop(away);
    unseen.wait_running(1);
    cluster.wait_ready("unseen");

    // The board has not seen the first pod of two with one name.
    let twice = Witness::new(plane, "twice");
    let away = cut();
    plane.apply(&pod(&twice, "twice"));
    cluster.delete_by_force("twice");
    plane.apply(&pod(&twice, "twice"));
    begin(&twice, "twice");
    drop(away);
    twice.wait_running(1);
    cluster.wait_ready("twice");
    assert_eq!(twice.starts(), 1);

    // The pod initialises, and goes on without a connection.
    let init = Witness::new(plane, "init");
    plane.apply(&pod(&init, "init"));
    wait_init("init");
    let away = cut();
    begin(&init, "init");
    init.wait_running(1);
    drop(away);
    cluster.wait_ready("init");
    assert_eq!(init.starts(), 1);

    // The pod initialises, while the cluster replaces it.
    let replaced = Witness::new(plane, "replaced");
    plane.apply(&pod(&replaced, "replaced"));
    wait_init("replaced");
    let away = cut();
    cluster.delete_by_force("replaced");
    plane.apply(&pod(&replaced, "replaced"));
    begin(&replaced, "replaced");
    replaced.wait_running(1);
    drop(away);
    replaced.wait_running(2);
    cluster.wait_ready("replaced");

    // The pod runs, and the cluster knows only that it initialises.
    let unreported = Witness::new(plane, "unreported");
    plane.apply(&pod(&unreported, "unreported"));
    wait_init("unreported");
    let away = cut();
    begin(&unreported, "unreported");
    unreported.wait_running(1);
    cluster.delete("unreported");
    assert!(unreported.runs());
    drop(away);
    cluster.wait_gone("unreported");
    assert!(!unreported.runs() && unreported.starts() == 1);

    for witness in [unseen, twice, init, replaced, unreported] {
        witness.saw_at_most_one();
    }
}

#[test]
fn deletion_and_rescheduling() {
    let cluster = Cluster::start();
    let plane = &cluster.plane;
    let witness = Witness::new(plane, "db-0");
    plane.apply(&stateful_set(&witness, 1, STAYS_AND_COMES));
    witness.wait_running(1);
    cluster.wait_ready("db-0");

    // The board has not seen the deletion.
    let mut uid = cluster.uid("db-0", |_| true);
    let (here, there) = cluster.places("db-0");
    plane.line(&format!("cordon board-{}", here + 1)).ok();
    let cut = plane.partition_from(&cluster.boards[here].address);
    cluster.delete("db-0");
    assert!(witness.runs());
    assert_eq!(cluster.uid("db-0", |_| true), uid);
    drop(cut);
    // The pod moves.
    uid = cluster.uid("db-0", |new| new != uid);
    assert_eq!(cluster.places("db-0"), (there, here));
    witness.wait_running(2);
    cluster.wait_ready("db-0");

    // The pod ends without a connection: it is neither removed nor replaced before the board reports that.
    plane.line(&format!("uncordon board-{}", here + 1)).ok();
    plane.line(&format!("cordon board-{}", there + 1)).ok();
    let (here, there) = (there, here);
    cluster.begin_to_end("db-0", here, &witness);
    let board = &cluster.boards[here];
    let cut = plane.partition_from(&board.address);
    witness.let_end();
    witness.wait_ended();
    board.device.wait_for("the pod to be gone", || board.device.pods().is_empty());
    assert_eq!(cluster.uid("db-0", |_| true), uid);
    assert_eq!(witness.starts(), 2);

    // The board to which the next one will be bound is away, too, and that one is replaced before it is seen.
    drop(cut);
    let cut = plane.partition_from(&cluster.boards[there].address);
    let unseen = cluster.uid("db-0", |new| new != uid);
    assert_eq!(cluster.places("db-0"), (there, here));
    cluster.delete_by_force("db-0");
    cluster.uid("db-0", |new| new != unseen && new != uid);
    assert_eq!(witness.starts(), 2);
    drop(cut);
    witness.wait_running(3);
    cluster.wait_ready("db-0");
    assert_eq!(cluster.places("db-0"), (there, here));
    witness.saw_at_most_one();
}
