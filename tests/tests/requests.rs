//! The agent dies, or its connection does, at each of its requests in the life of a pod of the cluster, before or after the
//! API server has performed the request: the pod runs once, and ends once, and the cluster learns of both.
//!
//! The check tests one request of seven; `cargo xtask long requests` tests all.

use nodlet_tests::{ClusterNode, ControlPlane, Device, Witness, shard};

/// One request of so many is tested.
const PARTS: usize = 7;

/// More requests than the life of a pod takes.
const MOST: usize = 80;

struct Board {
    device: Device,
    plane: ControlPlane,
}

impl Board {
    fn start() -> Self {
        let mut plane = ControlPlane::start();
        let device = ClusterNode::join_through_faults(&mut plane, 1);
        Self { device, plane }
    }

    /// Whether a request has ended with this fault.
    fn has_ended(&self, fault: &str) -> bool {
        self.plane.ended_request().starts_with(fault)
    }

    /// One life of a pod, in which one request ends with the fault, after which `then` is called. Returns that request;
    /// empty if there were fewer.
    fn live(&mut self, kind: &str, number: usize, order: &str, then: fn(&mut Self)) -> String {
        let name = format!("{kind}-{number}-{order}");
        let witness = Witness::new(&self.plane, &name);
        let fault = format!("{kind} {number} {order} {name}");
        self.plane.set_fault(&fault);
        self.plane.create(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{nodeName: board-1, \
             volumes: [{}], containers: [{}]}}}}",
            witness.volume(),
            witness.container(0)
        ));
        let mut handled = false;
        let line = format!("get pod {name} --ignore-not-found --no-headers");
        let mut wait = |board: &mut Self, condition: &dyn Fn(&str) -> bool| {
            loop {
                if !handled && board.has_ended(&fault) {
                    handled = true;
                    then(board);
                    board.plane.set_fault("");
                }
                let mut is_met = false;
                board.plane.wait_for(&line, |pod| {
                    is_met = condition(pod);
                    is_met || !handled && board.has_ended(&fault)
                });
                if is_met {
                    return;
                }
            }
        };
        wait(self, &|pod| pod.contains("1/1") && pod.contains("Running"));
        self.plane.line(&format!("delete pod {name} --wait=false")).ok();
        wait(self, &str::is_empty);
        witness.wait_ended();
        self.device.pod(&name).wait_gone();
        witness.saw_at_most_one();
        assert_eq!(witness.starts(), 1, "{fault}");
        if self.has_ended(&fault) { self.plane.ended_request() } else { String::new() }
    }

    /// Lives with each request that is to be tested.
    fn live_all(&mut self, kind: &str, then: fn(&mut Self)) {
        let (part, of) = match std::env::var_os("NODLET_SHARD") {
            Some(_) => shard(),
            None => (1, PARTS),
        };
        for order in ["before", "after"] {
            let mut tested = 0;
            for number in (part..MOST).step_by(of) {
                let ended = self.live(kind, number, order, then);
                if ended.is_empty() {
                    break;
                }
                println!("{ended}");
                tested += 1;
            }
            assert!(tested > 0, "{kind} {order}");
        }
    }
}

#[test]
fn an_agent_that_is_killed_at_any_request_runs_a_pod_once() {
    Board::start().live_all("hold", |board| {
        board.device.kill_agent();
        board.plane.set_fault("");
        board.device.start_agent();
    });
}

#[test]
fn a_connection_that_is_cut_at_any_request_delays_the_life_of_a_pod() {
    Board::start().live_all("cut", |board| {
        // The back-off of a board that fails often would take most of the time.
        board.plane.set_fault("");
        board.device.wait_for("a connection", || board.device.nodlet(["sync"]).code == 0);
    });
}
