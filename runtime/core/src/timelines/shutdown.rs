//! The order in which pods end when all of them do, and their state after the reboot.

use super::*;
use crate::spec::pod::CRITICAL;

/// A pod with this name and priority.
fn with_priority(name: &str, priority: i32) -> Pod {
    Pod { priority, ..pod(RestartPolicy::Always).uid(name).named(name) }
}

fn machine(groups: Vec<ShutdownGroup>) -> Observation {
    Observation::Shutdown(Shutdown { scope: ShutdownScope::Machine, groups })
}

/// Ten seconds for most pods, five for critical ones.
fn by_default() -> Vec<ShutdownGroup> {
    ShutdownGroup::of(secs(15), secs(5))
}

/// Shuts down the machine with the default groups.
fn goes_down(sim: &mut Sim) {
    sim.later(secs(0), machine(by_default()));
}

fn of(sim: &Sim, name: &str) -> serde_json::Value {
    sim.status(&name.into())
}

fn alive(sim: &Sim, name: &str) -> Option<u32> {
    sim.alive(&name.into(), 0)
}

/// Three running pods, in the order of their names; those named `slow` ignore the signal.
fn three(pods: [Pod; 3]) -> Sim {
    let slow: Vec<bool> = pods.iter().map(|pod| pod.name.starts_with("slow")).collect();
    let mut sim = Sim::empty(|name, _| if name.starts_with("slow") { Fate::IgnoresTerm } else { Fate::Runs });
    for (mut pod, slow) in pods.into_iter().zip(slow) {
        pod.spec.containers[0].name = if slow { "slow" } else { "app" }.to_owned();
        sim.want(pod);
    }
    sim.run(5).clear_trace();
    sim
}

#[test]
fn pods_end_by_priority_from_the_lowest_and_those_of_a_group_side_by_side() {
    let mut sim =
        three([with_priority("critical", 2_000_000_000), with_priority("low", -5), with_priority("slow", 7)]);
    goes_down(&mut sim);
    sim.run(100);
    sim.traces(
        "5s low/app#0 Term, slow/slow#0 Term, low/app#0 exits 143; 15s critical/app#0 Term, slow/slow#0 \
         Kill, critical/app#0 exits 143, slow/slow#0 exits 137",
    );
    assert!(sim.node.is_at_rest());
}

#[test]
fn a_shutdown_group_without_running_pods_delays_no_other_group() {
    let mut sim = three([with_priority("a", 5), with_priority("b", 20), with_priority("c", 35)]);
    let group = |priority| ShutdownGroup { priority, grace: secs(10) };
    sim.later(secs(0), machine(vec![group(0), group(10), group(20), group(30)])).run(5);
    let order: Vec<&str> = sim.trace.lines().filter(|line| line.ends_with("Term")).collect();
    assert_eq!(order, ["   5s a/app#0 Term", "   5s b/app#0 Term", "   5s c/app#0 Term"]);
}

#[test]
fn a_pod_has_its_own_grace_where_that_is_shorter_than_its_groups() {
    let mut short = with_priority("slow-short", 0);
    short.spec.termination_grace_period = secs(3);
    let mut sim = three([short, with_priority("slow-long", 0), with_priority("next", CRITICAL)]);
    goes_down(&mut sim);
    sim.run(100);
    assert!(sim.trace.contains("   8s slow-short/slow#0 Kill\n"), "{}", sim.trace);
    assert!(sim.trace.contains("  15s slow-long/slow#0 Kill\n"), "{}", sim.trace);
    assert!(sim.trace.contains("  15s next/app#0 Term\n"), "{}", sim.trace);
}

#[test]
fn an_unkillable_pod_delays_the_next_shutdown_group_by_its_grace_at_most() {
    let mut sim = three([with_priority("slow", 0), with_priority("next", CRITICAL), with_priority("a", 0)]);
    sim.failures(100);
    goes_down(&mut sim);
    sim.run(16);
    assert!(sim.trace.contains("  15s next/app#0 Term\n"), "{}", sim.trace);
    assert!(!sim.node.is_at_rest());
}

#[test]
fn without_limits_each_priority_waits_for_those_below_and_each_pod_has_its_own_grace() {
    let mut sim = three([with_priority("last", 9), with_priority("slow", 3), with_priority("first", -1)]);
    sim.later(secs(0), down()).run(100);
    sim.traces(
        "5s first/app#0 Term, first/app#0 exits 143, slow/slow#0 Term; 35s slow/slow#0 Kill, slow/slow#0 \
         exits 137, last/app#0 Term, last/app#0 exits 143",
    );
    assert!(sim.node.is_empty());
}

#[test]
fn a_shutdown_limits_a_terminating_pod_to_the_grace_of_its_group() {
    let mut sim = three([with_priority("slow", 0), with_priority("a", 0), with_priority("b", 0)]);
    sim.unwant(&"slow".into(), None).run(6);
    goes_down(&mut sim);
    sim.run(100);
    assert!(sim.trace.contains("  16s slow/slow#0 Kill\n"), "{}", sim.trace);
    assert!(sim.is_gone(&"slow".into()));
}

/// A pod that a shutdown has ended, and whose container exited with 0 after it was asked to end.
fn ended_with_0(policy: RestartPolicy) -> Sim {
    let mut sim = Sim::new(pod(policy), scripted("*#0 exits 0 after 12s"));
    sim.run(5).failures(100);
    goes_down(&mut sim);
    sim.run(6).failures(0).run(40);
    sim
}

#[test]
fn a_pod_ended_by_a_shutdown_is_shown_as_by_a_kubelet_and_runs_again() {
    for policy in [RestartPolicy::Always, RestartPolicy::OnFailure] {
        let mut sim = ended_with_0(policy);
        let status = sim.status(&uid());
        let message = "Pod was terminated in response to imminent node shutdown.";
        assert_eq!(json!([status["phase"], status["reason"]]), json!(["Failed", "Terminated"]), "{status}");
        assert_eq!(status["message"], message);
        let conditions = status["conditions"].as_array().expect("a list");
        let target =
            conditions.iter().find(|one| one["type"] == "DisruptionTarget").expect("it is published");
        assert_eq!(
            json!([target["status"], target["reason"], target["message"]]),
            json!(["True", "TerminationByKubelet", message])
        );
        assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], 0);
        assert!(sim.node.is_at_rest());
        assert!(sim.node.terminated_beyond(0, |_| true).is_empty(), "it is not over");

        sim.reboot().run(60);
        assert_eq!(
            (phase(&sim).as_str(), alive(&sim, "u1")),
            ("Running", Some(1)),
            "{policy:?}\n{}",
            sim.trace
        );
        let status = sim.status(&uid());
        assert!(status["reason"].is_null(), "{status}");
    }
}

#[test]
fn after_the_reboot_an_interrupted_container_waits_and_its_end_is_the_last_state_of_the_next_run() {
    // A cluster forbids a container of this policy to run again once its state is an exit with 0.
    let mut sim = ended_with_0(RestartPolicy::OnFailure);
    sim.reboot().latency(4);
    let mut waited = false;
    while alive(&sim, "u1").is_none() {
        sim.run_until(sim.now.since(at(0)) + std::time::Duration::from_millis(100));
        let container = sim.status(&uid())["containerStatuses"][0].clone();
        if container["state"]["running"].is_null() {
            assert_eq!(container["state"]["waiting"]["reason"], "ContainerCreating", "{container}");
            waited = true;
        }
        assert!(sim.now < at(90), "{}", sim.trace);
    }
    assert!(waited);
    sim.run(95);
    let container = sim.status(&uid())["containerStatuses"][0].clone();
    assert_eq!(container["lastState"]["terminated"]["exitCode"], 0, "{container}");
    assert_eq!(container["restartCount"], 1);
}

#[test]
fn finished_pods_and_never_pods_do_not_run_again_after_a_shutdown() {
    let finished = pod(RestartPolicy::OnFailure).uid("finished").named("finished");
    let once = pod(RestartPolicy::Never).uid("once").named("once").with([container("runs")]);
    let half = pod(RestartPolicy::OnFailure).uid("half").named("half");
    let half = half.with([container("app"), container("runs")]);
    let mut sim = Sim::empty(|name, _| if name == "app" { Fate::Exits(0, secs(1)) } else { Fate::Runs });
    for pod in [finished, once, half] {
        sim.want(pod);
    }
    sim.run(5);
    goes_down(&mut sim);
    sim.run(30);
    assert_eq!(of(&sim, "finished")["phase"], "Succeeded");
    sim.reboot().run(60);
    assert_eq!(of(&sim, "finished")["phase"], "Succeeded");
    assert_eq!(
        (&of(&sim, "once")["phase"], &of(&sim, "once")["reason"]),
        (&"Failed".into(), &"Terminated".into())
    );
    assert_eq!(sim.alive(&"once".into(), 0), None);
    // Of the third pod, one container had succeeded, and the other one restarts.
    assert_eq!((sim.alive(&"half".into(), 0), sim.alive(&"half".into(), 1)), (None, Some(1)));
}

#[test]
fn the_end_of_an_agent_that_takes_its_pods_down_is_like_that_of_its_machine() {
    let finished = pod(RestartPolicy::OnFailure).uid("finished").named("finished");
    let once = pod(RestartPolicy::Never).uid("once").named("once").with([container("runs")]);
    // Exits with 0 when it is asked to end, and has not finished by that.
    let asked = pod(RestartPolicy::OnFailure).uid("asked").named("asked").with([container("asked")]);
    let mut sim = Sim::empty(scripted("app exits 0 after 1s, asked#0 exits 0 after 6s"));
    for pod in [finished, once, asked] {
        sim.want(pod);
    }
    sim.run(5);
    let started = of(&sim, "asked")["startTime"].clone();
    sim.failures(100).later(secs(0), down()).run(7).failures(0).run(60);
    assert!(sim.node.is_empty(), "{}", sim.log);
    sim.reboot().run(90);
    assert_eq!(of(&sim, "finished")["phase"], "Succeeded");
    let once = of(&sim, "once");
    assert_eq!(json!([once["phase"], once["reason"]]), json!(["Failed", "Terminated"]));
    let asked = of(&sim, "asked");
    assert_eq!((&asked["phase"], &asked["startTime"]), (&"Running".into(), &started), "{asked}");
    assert_eq!(asked["containerStatuses"][0]["restartCount"], 1);
    assert_eq!(asked["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 0);
    assert_eq!(sim.alive(&"once".into(), 0), None);
}

#[test]
fn a_start_that_is_under_way_then_runs_again_whatever_it_ends_with() {
    let mut sim = Sim::new(pod(RestartPolicy::OnFailure), scripted("*#0 exits 0 after 0s"));
    sim.latency(4);
    sim.run_until_traced("app#0 start");
    goes_down(&mut sim);
    sim.run(60);
    assert!(sim.node.is_at_rest() && sim.trace.contains("app#0 exits 0"), "{}", sim.trace);
    sim.reboot().run(90);
    assert_eq!(alive(&sim, "u1"), Some(1), "{}", sim.trace);
}

#[test]
fn a_pod_added_during_a_shutdown_is_rejected_and_runs_after_the_reboot() {
    let mut sim = three([with_priority("slow", 0), with_priority("a", 0), with_priority("b", 0)]);
    goes_down(&mut sim);
    sim.run(6);
    sim.want(with_priority("late", 0));
    sim.run(7);
    let late = of(&sim, "late");
    assert_eq!(json!([late["phase"], late["reason"]]), json!(["Failed", "NodeShutdown"]));
    assert_eq!(late["message"], "Pod was rejected: Pod was rejected as the node is shutting down.");
    sim.run(100);
    assert!(sim.node.is_at_rest() && sim.of(&"late".into()).record.is_none());
    sim.reboot().run(120);
    assert_eq!(alive(&sim, "late"), Some(0));
}

#[test]
fn when_the_machine_stays_after_all_everything_begins_again() {
    let mut sim = three([with_priority("slow", 0), with_priority("a", 0), with_priority("b", CRITICAL)]);
    goes_down(&mut sim);
    sim.run(6);
    sim.want(with_priority("late", 0));
    sim.run(7).later(secs(0), Observation::ShutdownCancelled).run(100);
    let expected = [Some(1), Some(1), Some(0), Some(0)];
    assert_eq!(["slow", "a", "b", "late"].map(|name| alive(&sim, name)), expected);
    for name in ["slow", "a", "b", "late"] {
        assert_eq!(of(&sim, name)["phase"], "Running", "{name}");
    }
    let count = sim.resumed.len();
    assert!(count > 0 && sim.resumed.iter().all(|resumes| *resumes), "{:?}", sim.resumed);
    // The next shutdown has the same effect.
    goes_down(&mut sim);
    sim.run(200);
    assert!(sim.node.is_at_rest());
}

#[test]
fn a_pod_deleted_after_a_shutdown_ended_it_is_removed() {
    let mut sim = three([with_priority("a", 0), with_priority("b", 0), with_priority("c", 0)]);
    goes_down(&mut sim);
    sim.run(6);
    assert_eq!(of(&sim, "a")["phase"], "Failed");
    sim.unwant(&"a".into(), None).run(10);
    assert!(sim.is_gone(&"a".into()), "{}", sim.log);
}

#[test]
fn all_pods_run_again_after_a_power_cut_during_a_shutdown() {
    for cut_at in 5..17 {
        let mut sim = three([with_priority("slow", 0), with_priority("a", 0), with_priority("b", CRITICAL)]);
        sim.latency(1);
        goes_down(&mut sim);
        sim.run(cut_at).reboot().run(60);
        for name in ["slow", "a", "b"] {
            assert!(alive(&sim, name).is_some(), "{name} after {cut_at}\n{}", sim.log);
        }
    }
}

#[test]
fn a_pod_belongs_to_the_last_group_that_is_not_above_it() {
    let group = |priority| ShutdownGroup { priority, grace: secs(u64::from(priority.unsigned_abs())) };
    let groups = vec![group(10), group(20), group(30)];
    for (priority, seconds) in [(-1, 10), (0, 10), (10, 10), (19, 10), (20, 20), (29, 20), (30, 30), (99, 30)]
    {
        let mut slow = with_priority("slow", priority);
        slow.spec.termination_grace_period = secs(100);
        let mut sim = three([slow, with_priority("a", 0), with_priority("b", 0)]);
        sim.later(secs(0), machine(groups.clone())).run(200);
        let (asked, killed) =
            (sim.trace.find("slow/slow#0 Term"), format!("{:>4}s slow/slow#0 Kill", 5 + seconds));
        assert!(asked.is_some() && sim.trace.contains(&killed), "{priority}\n{}", sim.trace);
    }
    let [usual, critical] = by_default()[..] else { panic!("two groups") };
    assert_eq!((usual.priority, usual.grace), (0, secs(10)));
    assert_eq!((critical.priority, critical.grace), (2_000_000_000, secs(5)));
}
