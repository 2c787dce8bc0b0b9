//! Pods whose node cannot renew its Lease: they end in time, and start again when the cluster has confirmed them.

use std::rc::Rc;

use super::*;

/// Reports a fence of the pod, which has the same index as long as nothing follows it.
fn fence(sim: &mut Sim, fence: Fence) {
    let index = sim.node.index_of(&uid()).expect("the pod exists");
    sim.later(secs(0), Observation::Of(index, PodObservation::Fence(fence)));
}

const CLOSED: Fence = Fence::Closed { grace: Duration::from_secs(8) };

fn running(policy: RestartPolicy, fate: impl FnMut(&str, u32) -> Fate + 'static) -> Sim {
    let mut sim = Sim::new(pod(policy), fate);
    sim.run(5).clear_trace();
    sim
}

fn alive(sim: &Sim) -> Option<u32> {
    sim.alive(&uid(), 0)
}

#[test]
fn a_closed_fence_ends_a_pod_within_its_grace_and_an_open_one_starts_it_again() {
    for policy in [RestartPolicy::Always, RestartPolicy::OnFailure] {
        let mut sim = running(policy, |_, number| if number == 0 { Fate::IgnoresTerm } else { Fate::Runs });
        fence(&mut sim, CLOSED);
        sim.run(100).traces("5s app#0 Term; 13s app#0 Kill, app#0 exits 137");
        let status = sim.status(&uid());
        assert_eq!(json!([status["phase"], status["reason"]]), json!(["Failed", "NodeLost"]));
        assert_eq!(condition(&status, "DisruptionTarget")["status"], "True");
        // The fence is reported once, however often it is closed.
        fence(&mut sim, CLOSED);
        sim.run(101);
        let lost = sim.events.iter().filter(|event| event.starts_with("NodeLost: ")).count();
        assert_eq!(lost, 1, "{:?}", sim.events);
        fence(&mut sim, Fence::Open);
        sim.run(110);
        assert_eq!((alive(&sim), &sim.status(&uid())["phase"]), (Some(1), &"Running".into()), "{}", sim.log);
    }
}

#[test]
fn a_pod_that_must_not_run_twice_stays_failed() {
    let mut sim = running(RestartPolicy::Never, |_, _| Fate::Runs);
    fence(&mut sim, CLOSED);
    sim.run(20);
    fence(&mut sim, Fence::Open);
    sim.run(200);
    assert_eq!((alive(&sim), &sim.status(&uid())["phase"]), (None, &"Failed".into()));
    sim.reboot().run(300);
    assert_eq!((alive(&sim), &sim.status(&uid())["reason"]), (None, &"NodeLost".into()));
}

#[test]
fn a_held_pod_goes_on_and_a_new_one_waits() {
    let mut sim = running(RestartPolicy::Always, scripted("*#0 exits 1 after 20s"));
    fence(&mut sim, Fence::Held);
    sim.run(60);
    assert_eq!(alive(&sim), Some(1), "{}", sim.log);

    for held in [Fence::Held, CLOSED] {
        let mut node = Node::new();
        let pod = Rc::new(pod(RestartPolicy::Always));
        node.observe(at(0), Observation::Wanted { pod, record: None, status: None });
        let index = node.index_of(&uid()).expect("the pod exists");
        let mut begins = |fence: Fence| {
            node.observe(at(1), Observation::Of(index, PodObservation::Fence(fence)));
            let actions = node.plan(at(1)).actions;
            actions.iter().any(|(_, action)| matches!(action, Action::CreateSandbox))
        };
        assert!(!begins(held) && begins(Fence::Open));
    }
}

#[test]
fn a_fence_that_closes_again_keeps_the_pod_ended() {
    for after in 0..16 {
        let mut sim = running(RestartPolicy::Always, |_, _| Fate::IgnoresTerm);
        sim.latency(1);
        fence(&mut sim, CLOSED);
        sim.run(6 + after);
        fence(&mut sim, Fence::Open);
        sim.run(7 + after);
        fence(&mut sim, CLOSED);
        sim.run(100);
        assert_eq!(alive(&sim), None, "{after}: {}", sim.log);
        fence(&mut sim, Fence::Open);
        sim.run(150);
        assert!(alive(&sim).is_some(), "{after}: {}", sim.log);
    }
}

#[test]
fn a_pod_that_is_deleted_while_its_fence_is_closed_is_gone_and_one_of_its_name_may_start() {
    for at in [6, 30] {
        let mut sim = running(RestartPolicy::Always, |_, _| Fate::IgnoresTerm);
        fence(&mut sim, CLOSED);
        sim.run(at).unwant(&uid(), None);
        sim.want(pod(RestartPolicy::Always).uid("u2"));
        sim.run(60);
        assert!(sim.is_gone(&uid()), "{}", sim.log);
        assert_eq!(sim.alive(&"u2".into(), 0), Some(0), "{}", sim.log);
    }
}

#[test]
fn a_fence_closes_anew_for_the_next_agent() {
    for at in 5..20 {
        let mut sim = running(RestartPolicy::Always, |_, _| Fate::IgnoresTerm);
        fence(&mut sim, CLOSED);
        sim.run(at).restart_agent();
        fence(&mut sim, CLOSED);
        sim.run(60);
        assert_eq!(alive(&sim), None, "{at}: {}", sim.log);
        fence(&mut sim, Fence::Open);
        sim.run(90);
        assert!(alive(&sim).is_some(), "{at}: {}", sim.log);
    }
}
