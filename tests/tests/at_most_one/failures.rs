//! The six classes of failures that the proposal on pod safety names, under its heading "Testing".

use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodlet_tests::{Witness, demo_program};

use super::{Cluster, LEAVES, STAYS, stateful_set};

/// A cluster with a StatefulSet, whose pod runs.
fn with_db(end: u64, tolerations: &str) -> (Cluster, Witness) {
    let cluster = Cluster::start();
    let witness = Witness::new(&cluster.plane, "db-0");
    cluster.plane.apply(&stateful_set(&witness, end, tolerations));
    witness.wait_running(1);
    cluster.wait_ready("db-0");
    (cluster, witness)
}

#[test]
fn master_node_partition() {
    let (cluster, witness) = with_db(1, LEAVES);
    let plane = &cluster.plane;
    let first = cluster.uid("db-0", |_| true);
    let (here, there) = cluster.places("db-0");

    // The control plane deletes the pod of a node that it does not reach, and waits: nobody but the node removes it.
    let cut = plane.partition_from(&cluster.boards[here].address);
    cluster.wait_terminating("db-0");
    assert!(witness.runs() && witness.starts() == 1);
    assert_eq!(cluster.uid("db-0", |_| true), first);
    assert!(cluster.boards[there].device.pods().is_empty(), "another board has the pod");
    drop(cut);

    // The board ends it; only then is there another one.
    cluster.uid("db-0", |uid| uid != first);
    witness.wait_running(2);
    cluster.wait_nodes_ready();
    cluster.wait_ready("db-0");

    // A partition from all nodes ends nothing, and the cluster sees both soon after it.
    let starts = witness.starts();
    let cut = plane.partition();
    plane.wait_for("get nodes --no-headers", |nodes| nodes.matches("NotReady").count() == 2);
    assert!(witness.runs() && witness.starts() == starts);
    drop(cut);
    cluster.wait_nodes_ready();
    witness.saw_at_most_one();
}

#[test]
fn node_node_partition() {
    let (cluster, witness) = with_db(1, STAYS);
    let plane = &cluster.plane;
    let [one, two] = &cluster.boards;
    let reaches = || {
        let mut command = Command::new("timeout");
        command.arg("3").arg(demo_program()).arg("connect").arg(format!("{}:10250", two.address));
        one.network.give_to(&mut command);
        command.status().expect("there is a program timeout").success()
    };
    assert!(reaches());
    let cut = plane.partition_between_boards();
    assert!(!reaches());

    // The boards need each other for nothing: the pod runs on, and moves.
    assert!(witness.runs() && witness.starts() == 1);
    let (here, there) = cluster.places("db-0");
    plane.line(&format!("cordon board-{}", here + 1)).ok();
    let first = cluster.uid("db-0", |_| true);
    cluster.delete("db-0");
    cluster.uid("db-0", |uid| uid != first);
    assert_eq!(cluster.places("db-0"), (there, here));
    witness.wait_running(2);
    drop(cut);
    assert!(reaches());
    cluster.wait_ready("db-0");
    assert_eq!(witness.starts(), 2);
    witness.saw_at_most_one();
}

#[test]
fn master_etcd_partition() {
    let (cluster, witness) = with_db(1, STAYS);
    let plane = &cluster.plane;
    // Nothing ends while the control plane can neither read nor write.
    let cut = plane.partition_from_etcd();
    let is_unready = || plane.line("get --raw /readyz --request-timeout=10s").code != 0;
    cluster.boards[0].device.wait_for("the API server to miss etcd", is_unready);
    assert!(witness.runs() && witness.starts() == 1);
    drop(cut);
    cluster.wait_nodes_ready();
    cluster.wait_ready("db-0");
    assert_eq!(witness.starts(), 1);

    // A pod ends while its board cannot report that: another one starts only after the report.
    let first = cluster.uid("db-0", |_| true);
    let (here, _) = cluster.places("db-0");
    cluster.begin_to_end("db-0", here, &witness);
    let board = &cluster.boards[here];
    let cut = plane.partition_from_etcd();
    witness.let_end();
    witness.wait_ended();
    board.device.wait_for("the API server to miss etcd", is_unready);
    assert_eq!(witness.starts(), 1);
    drop(cut);
    cluster.uid("db-0", |uid| uid != first);
    witness.wait_running(2);
    cluster.wait_ready("db-0");
    witness.saw_at_most_one();
}

#[test]
fn concurrent_controller_execution() {
    let (mut cluster, witness) = with_db(1, STAYS);
    for server in ["kube-controller-manager", "kube-scheduler"] {
        cluster.plane.run_another(server);
    }
    for round in 2..6 {
        let uid = cluster.uid("db-0", |_| true);
        let (here, _) = cluster.places("db-0");
        cluster.plane.line(&format!("cordon board-{}", here + 1)).ok();
        cluster.delete("db-0");
        cluster.uid("db-0", |new| new != uid);
        witness.wait_running(round);
        cluster.wait_ready("db-0");
        cluster.plane.line(&format!("uncordon board-{}", here + 1)).ok();
    }
    witness.saw_at_most_one();
}

#[test]
fn kubelet_failures() {
    let (mut cluster, witness) = with_db(1, STAYS);
    // Killed before it learns of a deletion: the pod runs on, and nobody else removes it.
    let first = cluster.uid("db-0", |_| true);
    let (here, _) = cluster.places("db-0");
    cluster.plane.line(&format!("cordon board-{}", 2 - here)).ok();
    cluster.boards[here].device.kill_agent();
    cluster.delete("db-0");
    assert!(witness.runs());
    assert_eq!(cluster.uid("db-0", |_| true), first);
    cluster.boards[here].device.start_agent();
    let second = cluster.uid("db-0", |uid| uid != first);
    witness.wait_running(2);
    cluster.wait_ready("db-0");

    // Killed while the pod ends.
    cluster.begin_to_end("db-0", here, &witness);
    // The signal follows: nobody would send it after that.
    cluster.boards[here].device.pod("db-0").wait_log("app", "stopping");
    cluster.boards[here].device.kill_agent();
    witness.let_end();
    witness.wait_ended();
    assert_eq!(cluster.uid("db-0", |_| true), second);
    cluster.boards[here].device.start_agent();
    let third = cluster.uid("db-0", |uid| uid != second);
    witness.wait_running(3);
    cluster.wait_ready("db-0");

    // One that hangs until the cluster has lost the node.
    let agent = Pid::from_raw(cluster.boards[here].device.agent_pid().cast_signed());
    kill(agent, Signal::SIGSTOP).expect("it runs");
    cluster.plane.wait_for("get nodes --no-headers", |nodes| nodes.contains("NotReady"));
    cluster.delete("db-0");
    cluster.wait_terminating("db-0");
    assert!(witness.runs() && witness.starts() == 3);
    kill(agent, Signal::SIGCONT).expect("it runs");
    cluster.uid("db-0", |uid| uid != third);
    witness.wait_running(4);
    cluster.wait_ready("db-0");

    // A power cut, and a boot without a connection: the same pod starts again, and only once.
    let fourth = cluster.uid("db-0", |_| true);
    let cut = cluster.plane.partition_from(&cluster.boards[here].address);
    cluster.boards[here].device.cut_power();
    witness.wait_ended();
    cluster.boards[here].device.start_agent();
    witness.wait_running(5);
    cluster.delete("db-0");
    assert!(witness.runs());
    drop(cut);
    cluster.uid("db-0", |uid| uid != fourth);
    witness.wait_running(6);
    witness.saw_at_most_one();
}

#[test]
fn controller_failures() {
    let (mut cluster, witness) = with_db(1, STAYS);
    // The controllers are away while the pod ends: nobody replaces it until they return.
    let (here, _) = cluster.places("db-0");
    cluster.begin_to_end("db-0", here, &witness);
    cluster.plane.kill("kube-controller-manager");
    witness.let_end();
    cluster.wait_gone("db-0");
    assert!(!witness.runs() && witness.starts() == 1);
    cluster.plane.kill("kube-scheduler");
    cluster.plane.restart("kube-controller-manager");
    let second = cluster.uid("db-0", |_| true);
    assert_eq!(witness.starts(), 1);
    cluster.plane.restart("kube-scheduler");
    witness.wait_running(2);
    cluster.wait_ready("db-0");

    // The API server is away while the pod ends, and with it the scheduler, which may end itself without one.
    let (here, _) = cluster.places("db-0");
    cluster.begin_to_end("db-0", here, &witness);
    cluster.plane.kill("kube-scheduler");
    cluster.plane.kill("kube-apiserver");
    witness.let_end();
    witness.wait_ended();
    assert_eq!(witness.starts(), 2);
    cluster.plane.restart("kube-apiserver");
    cluster.plane.wait_for("get --raw /readyz", |ready| ready == "ok");
    cluster.plane.restart("kube-scheduler");
    cluster.uid("db-0", |uid| uid != second);
    witness.wait_running(3);
    cluster.wait_ready("db-0");
    witness.saw_at_most_one();
}
