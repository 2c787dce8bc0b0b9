//! Boards behind NAT, which the API server reaches only through konnectivity, whose agents run as pods of the boards.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use nodlet_tests::{ClusterNode as Node, ControlPlane, Ran, konnectivity_archive};

/// A pod on a board, which prints the name of the board.
fn pod(board: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: on-{board}}}
spec:
  nodeName: {board}
  terminationGracePeriodSeconds: 1
  containers:
  - {{name: app, image: 'localhost/demo:1', args: [print, 'this is {board}', then, wait, /end]}}
"
    )
}

#[test]
fn boards_behind_nat_are_reached_by_logs_and_exec_through_konnectivity_alone() {
    let plane = ControlPlane::start_before_nat();
    let boards = ["board-1", "board-2"];
    let _nodes = boards.map(|name| {
        let node = Node::join(&plane, name);
        node.device.load_image(konnectivity_archive());
        node.approve_server(&plane, name);
        node
    });
    for board in boards {
        plane.apply(&pod(board));
        plane.wait_for(&format!("get pod on-{board} --no-headers"), |pod| pod.contains("1/1"));
        // The API server has no way to the board.
        let refused = plane.line(&format!("logs on-{board} --request-timeout=20s"));
        assert_ne!(refused.code, 0, "{refused:?}");
    }

    plane.install_konnectivity();
    let agents = "get pods -n kube-system --no-headers";
    plane.wait_for(agents, |pods| pods.matches("1/1").count() == 2);
    for board in boards {
        let line = format!("logs on-{board} --request-timeout=20s");
        plane.wait_for(&line, |log| log == format!("this is {board}\n"));
        let exec = ["exec", "-i", &format!("on-{board}"), "--", "/bin/demo", "echo"];
        let text = "x".repeat(300_000);
        let echoed = Ran::with_input(plane.command(&exec), &text).stdout;
        assert!(echoed == text, "{} bytes of 300000", echoed.len());
    }
    // Two connections at once: a log that is followed until the other one ends the container. Before its first line, the
    // log could be that of the next container.
    let mut command = plane.command(&["logs", "-f", "on-board-1"]);
    let mut followed = command.stdout(Stdio::piped()).spawn().expect("kubectl can be run");
    let mut log = BufReader::new(followed.stdout.take().expect("it is piped"));
    let mut lines = String::new();
    log.read_line(&mut lines).expect("the pipe is readable");
    let touch = plane.line("exec on-board-1 -- /bin/demo touch /end");
    // The end of the container kills the other process, if that has not ended yet.
    assert!([0, 128 + libc::SIGKILL].contains(&touch.code), "{touch:?}");
    log.read_to_string(&mut lines).expect("the pipe is readable");
    assert!(followed.wait().expect("it is a child").success());
    assert_eq!(lines, "this is board-1\n");

    // Without the agents, the board is out of reach again.
    plane.line("delete daemonset -n kube-system konnectivity-agent").ok();
    plane.wait_for("get pods -n kube-system -o name", str::is_empty);
    let refused = plane.line("logs on-board-2 --request-timeout=20s");
    assert_ne!(refused.code, 0, "{refused:?}");
}
