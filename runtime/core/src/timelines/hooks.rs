//! Hooks: what starts after a hook has finished, and how long a stop waits for a hook.

use std::rc::Rc;
use std::time::Duration;

use serde_json::json;

use super::{first, uid};
use crate::facts::*;
use crate::node::Node;
use crate::sim::*;
use crate::spec::probe::PortOrName;
use crate::spec::*;
use crate::time::Anchor;

/// A hook whose result the world decides.
fn asks() -> Option<Hook> {
    Some(Hook::Asks(ProbeAction::Exec(vec!["true".into()])))
}

fn sleeps(seconds: u64) -> Option<Hook> {
    Some(Hook::Sleeps(secs(seconds)))
}

/// A hook that Kubernetes accepts but cannot run.
fn connects() -> Option<Hook> {
    Some(Hook::Asks(ProbeAction::TcpSocket { host: None, port: PortOrName::Port(8080) }))
}

fn post_start(mut container: Container, hook: Option<Hook>) -> Container {
    container.lifecycle.post_start = hook;
    container
}

fn pre_stop(mut container: Container, hook: Option<Hook>) -> Container {
    container.lifecycle.pre_stop = hook;
    container
}

fn of_hooks(sim: &Sim) -> Vec<&str> {
    let of_hooks = |event: &&String| event.contains("Hook") || event.starts_with("Killing");
    sim.events.iter().filter(of_hooks).map(String::as_str).collect()
}

#[test]
fn a_container_has_started_when_its_post_start_hook_is_over_and_then_the_next_begins() {
    let two = pod(RestartPolicy::Always).with([post_start(container("a"), asks()), container("b")]);
    let mut sim = Sim::new(two, |_, _| Fate::Runs).hooks(|_, _, _| HookFate::Succeeds(secs(4)));
    sim.run(3).shows_phase("Pending");
    let a = shown(&sim, "a");
    assert_eq!(a["state"], json!({ "waiting": { "reason": "ContainerCreating" } }));
    assert_eq!(json!([a["ready"], a["started"]]), json!([false, false]));
    sim.run(5).traces("0s a#0 start, a#0 PostStart; 4s b#0 start").shows_phase("Running");
    assert_eq!(shown(&sim, "a")["state"]["running"]["startedAt"], "1970-01-01T00:00:00Z");
    assert_eq!(shown(&sim, "a")["ready"], true);
}

#[test]
fn containers_after_a_sidecar_wait_for_its_post_start_hook() {
    let served = pod(RestartPolicy::Always).init([post_start(sidecar("proxy"), sleeps(7))]);
    let mut sim = Sim::new(served, |_, _| Fate::Runs);
    sim.run(10).traces("0s proxy#0 start; 7s app#0 start");
}

#[test]
fn no_probe_runs_before_the_post_start_hook_has_ended() {
    let mut app = post_start(container("app"), sleeps(25));
    app.liveness_probe = Some(exec_probe());
    let mut sim = Sim::new(pod(RestartPolicy::Always).with([app]), |_, _| Fate::Runs)
        .probes(|_, _, age| ProbeResult::Failure(format!("at {}s", age.as_secs()).into()));
    sim.run(40);
    let asked: Vec<_> = sim.events.iter().filter(|event| event.contains("Liveness")).collect();
    let expected = ["Unhealthy: Liveness probe failed: at 25s", "Unhealthy: Liveness probe failed: at 35s"];
    assert_eq!(asked, expected);
}

#[test]
fn a_failed_post_start_hook_kills_the_container_within_its_grace_with_an_event() {
    let app = pre_stop(post_start(container("app"), asks()), sleeps(2));
    let mut sim =
        Sim::new(pod(RestartPolicy::Always).with([app, container("next")]), scripted("app ignores Term"))
            .hooks(
                |_, _, number| {
                    if number == 0 { HookFate::Fails(secs(1)) } else { HookFate::Succeeds(secs(1)) }
                },
            );
    sim.run(31);
    sim.traces(
        "0s app#0 start, app#0 PostStart; 3s app#0 Term; 31s app#0 Kill, app#0 exits 137, app#1 start, \
         app#1 PostStart",
    );
    assert_eq!(of_hooks(&sim), ["FailedPostStartHook: PostStartHook failed", "Killing: FailedPostStartHook"]);
    let app = first(&sim);
    let failed = json!({ "waiting": { "reason": "PostStartHookError", "message": "it cannot be" } });
    assert_eq!(app["state"], failed);
    assert_eq!(app["lastState"]["terminated"]["exitCode"], 137);
    sim.run(32);
    assert!(first(&sim)["state"]["running"].is_object());
    assert_eq!(first(&sim)["restartCount"], 1);
    sim.traces_last("32s next#0 start");
}

#[test]
fn a_hook_that_fails_again_and_again_backs_off_as_a_crash_does() {
    let app = post_start(container("app"), asks());
    let mut sim = Sim::new(pod(RestartPolicy::Always).with([app]), |_, _| Fate::Runs)
        .hooks(|_, _, _| HookFate::Fails(Duration::ZERO));
    sim.run(35);
    let starts: Vec<_> = sim.trace.lines().filter(|line| line.ends_with("start")).collect();
    assert_eq!(starts, ["   0s app#0 start", "   0s app#1 start", "  10s app#2 start", "  30s app#3 start"]);
    let reason = |sim: &Sim| first(sim)["state"]["waiting"]["reason"].clone();
    assert_eq!(reason(&sim), "PostStartHookError");
    sim.run(41);
    assert_eq!(reason(&sim), "CrashLoopBackOff");
    assert_eq!(first(&sim)["restartCount"], 3);
}

#[test]
fn a_pod_that_never_restarts_fails_with_the_start_of_its_container() {
    let app = post_start(container("app"), connects());
    let mut sim = Sim::new(pod(RestartPolicy::Never).with([app]), |_, _| Fate::Runs);
    sim.run(5).shows_phase("Failed");
    assert_eq!(first(&sim)["state"]["terminated"]["exitCode"], 143);
    assert_eq!(of_hooks(&sim), ["FailedPostStartHook: PostStartHook failed", "Killing: FailedPostStartHook"]);
}

#[test]
fn an_empty_handler_has_the_kubelets_error_text() {
    let app = post_start(container("app"), connects());
    let mut sim = Sim::new(pod(RestartPolicy::Always).with([app]), |_, _| Fate::Runs);
    sim.run(1);
    assert_eq!(
        first(&sim)["state"]["waiting"]["message"],
        "Cannot run handler: invalid handler: &LifecycleHandler{Exec:nil,HTTPGet:nil,\
         TCPSocket:&TCPSocketAction{Port:{0 8080 },Host:,},Sleep:nil,}"
    );
}

#[test]
fn a_container_that_ends_under_its_post_start_hook_is_restarted_when_that_is_over() {
    let app = post_start(container("app"), asks());
    let mut sim = Sim::new(pod(RestartPolicy::Always).with([app]), scripted("*#0 exits 3 after 1s"))
        .hooks(|_, _, number| if number == 0 { HookFate::Hangs } else { HookFate::Succeeds(secs(9)) });
    sim.run(5).traces("0s app#0 start, app#0 PostStart; 1s app#0 exits 3, app#1 start, app#1 PostStart");
    assert_eq!(of_hooks(&sim), ["FailedPostStartHook: PostStartHook failed"]);
    assert_eq!(first(&sim)["state"]["waiting"]["reason"], "PostStartHookError");
    assert_eq!(first(&sim)["lastState"]["terminated"]["exitCode"], 3);
}

#[test]
fn a_stop_waits_for_no_post_start_hook() {
    let app = post_start(container("app"), asks());
    let mut sim =
        Sim::new(pod(RestartPolicy::Always).with([app]), |_, _| Fate::Runs).hooks(|_, _, _| HookFate::Hangs);
    sim.run(5).unwant(&uid(), None).run(6);
    assert!(sim.is_gone(&uid()));
    let expected = ["FailedPostStartHook: PostStartHook failed", "Killing: Stopping container app"];
    assert_eq!(of_hooks(&sim), expected);
}

#[test]
fn a_container_gets_its_stop_signal_after_its_pre_stop_hook() {
    let app = pre_stop(container("app"), asks());
    let mut sim = Sim::new(pod(RestartPolicy::Always).with([app, container("other")]), |_, _| Fate::Runs)
        .hooks(|_, _, _| HookFate::Succeeds(secs(8)));
    sim.run(5).clear_trace().unwant(&uid(), None).run(60);
    sim.traces("5s app#0 PreStop, other#0 Term, other#0 exits 143; 13s app#0 Term, app#0 exits 143");
    assert_eq!(of_hooks(&sim), ["Killing: Stopping container app", "Killing: Stopping container other"]);
}

#[test]
fn the_time_of_a_pre_stop_hook_counts_towards_the_grace() {
    let app = pre_stop(container("app"), sleeps(20));
    let mut sim = Sim::new(pod(RestartPolicy::Always).with([app]), |_, _| Fate::IgnoresTerm);
    sim.run(5).clear_trace().unwant(&uid(), None).run(60);
    sim.traces("25s app#0 Term; 35s app#0 Kill, app#0 exits 137");
}

#[test]
fn a_pre_stop_hook_that_uses_up_the_grace_leaves_two_seconds_to_end() {
    let app = pre_stop(container("app"), asks());
    let mut sim = Sim::new(pod(RestartPolicy::Always).with([app]), |_, _| Fate::IgnoresTerm)
        .hooks(|_, _, _| HookFate::Hangs);
    sim.run(5).clear_trace().unwant(&uid(), None).run(60);
    sim.traces("5s app#0 PreStop; 35s app#0 Term; 37s app#0 Kill, app#0 exits 137");
    // The hook fails because its process ends with the container.
    assert_eq!(of_hooks(&sim), ["Killing: Stopping container app", "FailedPreStopHook: PreStopHook failed"]);
}

#[test]
fn a_failed_pre_stop_hook_is_reported_and_does_not_delay_the_stop() {
    for hook in [asks(), connects()] {
        let app = pre_stop(container("app"), hook);
        let mut sim = Sim::new(pod(RestartPolicy::Always).with([app]), |_, _| Fate::Runs)
            .hooks(|_, _, _| HookFate::Fails(secs(3)));
        sim.run(5).unwant(&uid(), None).run(9);
        assert!(sim.is_gone(&uid()));
        let expected = ["Killing: Stopping container app", "FailedPreStopHook: PreStopHook failed"];
        assert_eq!(of_hooks(&sim), expected);
    }
}

#[test]
fn a_second_deletion_shortens_the_time_of_the_hook_that_runs_and_runs_no_other() {
    let app = pre_stop(container("app"), asks());
    let mut sim = Sim::new(pod(RestartPolicy::Always).with([app]), |_, _| Fate::IgnoresTerm)
        .hooks(|_, _, _| HookFate::Hangs);
    sim.run(5).clear_trace().unwant(&uid(), None).run(10).unwant(&uid(), Some(secs(60)));
    sim.unwant(&uid(), Some(secs(4))).run(60);
    sim.traces("5s app#0 PreStop; 14s app#0 Term; 16s app#0 Kill, app#0 exits 137");
}

#[test]
fn a_shortened_grace_leaves_what_remains_of_it_to_what_has_ended_its_hook() {
    let app = pre_stop(container("app"), sleeps(3));
    let mut sim = Sim::new(pod(RestartPolicy::Always).with([app]), |_, _| Fate::IgnoresTerm);
    sim.run(5).clear_trace().unwant(&uid(), None).run(6).unwant(&uid(), Some(secs(9))).run(60);
    sim.traces("8s app#0 Term; 15s app#0 Kill, app#0 exits 137");
}

#[test]
fn a_container_that_fails_its_probe_has_the_probes_grace_for_hook_and_end() {
    let mut app = pre_stop(container("app"), sleeps(3));
    app.liveness_probe =
        Some(Probe { failure_threshold: 1, termination_grace_period: Some(secs(5)), ..exec_probe() });
    let mut sim =
        Sim::new(pod(RestartPolicy::Never).with([app]), |_, _| Fate::IgnoresTerm).probes(|_, _, age| {
            if age < secs(10) { ProbeResult::Success } else { ProbeResult::Failure("no".into()) }
        });
    sim.run(60).traces("0s app#0 start; 13s app#0 Term; 15s app#0 Kill, app#0 exits 137");
    assert_eq!(of_hooks(&sim), ["Killing: Container app failed liveness probe"]);
}

#[test]
fn a_pre_stop_hook_that_fails_after_the_next_run_has_begun_is_reported_nevertheless() {
    let app = pre_stop(container("app"), asks());
    let fate = |_: &str, number: u32| if number == 0 { Fate::Exits(1, secs(5)) } else { Fate::Runs };
    let mut sim = Sim::new(pod(RestartPolicy::Always).with([app]), fate);
    sim.run(6).traces("0s app#0 start; 5s app#0 exits 1, app#1 start");
    let index = sim.node.index_of(&uid()).expect("it is here");
    for number in [0, 1, 2] {
        let attempt = Attempt { container: ContainerIndex(0), number };
        let seen =
            PodObservation::Hooked { attempt, kind: HookKind::PreStop, failure: Some("killed".into()) };
        sim.later(secs(0), Observation::Of(index, seen));
    }
    sim.run(7);
    // Only the first run can have had a hook: the second does not end, and the third has not begun.
    assert_eq!(of_hooks(&sim), ["FailedPreStopHook: PreStopHook failed"]);
}

#[test]
fn a_pod_without_a_grace_has_no_time_for_the_hook_of_a_container_that_fails_its_probe() {
    let mut app = pre_stop(container("app"), asks());
    app.startup_probe = Some(Probe { failure_threshold: 1, ..exec_probe() });
    let mut spec = pod(RestartPolicy::Never).with([app]);
    spec.spec.termination_grace_period = secs(0);
    let mut sim =
        Sim::new(spec, |_, _| Fate::IgnoresTerm).probes(|_, _, _| ProbeResult::Failure("no".into()));
    sim.run(60).traces("0s app#0 start, app#0 Term; 2s app#0 Kill, app#0 exits 137");
}

#[test]
fn a_container_that_ends_by_itself_runs_no_pre_stop_hook() {
    let app = pre_stop(container("app"), asks());
    let mut sim = Sim::new(pod(RestartPolicy::Never).with([app]), |_, _| Fate::Exits(0, secs(2)));
    sim.run(10).traces("0s app#0 start; 2s app#0 exits 0");
}

#[test]
fn a_container_that_ends_under_its_pre_stop_hook_is_not_waited_for() {
    let app = pre_stop(container("app"), sleeps(20));
    let mut sim = Sim::new(pod(RestartPolicy::Always).with([app]), |_, _| Fate::Exits(0, secs(8)));
    sim.run(5).unwant(&uid(), None).run(8);
    assert!(sim.is_gone(&uid()));
}

#[test]
fn sidecars_run_their_hooks_with_all_others_and_wait_only_with_their_signal() {
    let served = pod(RestartPolicy::Always)
        .with([pre_stop(container("app"), sleeps(10))])
        .init([pre_stop(sidecar("log"), asks()), pre_stop(sidecar("proxy"), sleeps(15))]);
    let mut sim = Sim::new(served, |_, _| Fate::Runs).hooks(|_, _, _| HookFate::Succeeds(secs(2)));
    sim.run(5).clear_trace().unwant(&uid(), None).run(60);
    sim.traces(
        "5s log#0 PreStop; 15s app#0 Term, app#0 exits 143; 20s proxy#0 Term, proxy#0 exits 143, log#0 \
         Term, log#0 exits 143",
    );
}

#[test]
fn sidecars_still_waiting_when_the_grace_is_over_have_two_seconds() {
    let served = pod(RestartPolicy::Always).init([pre_stop(sidecar("log"), asks())]);
    let mut sim = Sim::new(served, |_, _| Fate::IgnoresTerm).hooks(|_, _, _| HookFate::Hangs);
    sim.run(5).clear_trace().unwant(&uid(), Some(secs(10))).run(60);
    sim.traces(
        "5s app#0 Term, log#0 PreStop; 15s app#0 Kill, log#0 Term, app#0 exits 137; 17s log#0 Kill, log#0 \
         exits 137",
    );
}

#[test]
fn a_sidecar_that_fails_its_probe_during_termination_is_only_reported() {
    let mut proxy = sidecar("proxy");
    proxy.liveness_probe = Some(Probe { failure_threshold: 1, ..exec_probe() });
    let mut app = container("app");
    app.liveness_probe = Some(Probe { failure_threshold: 1, ..exec_probe() });
    let served = pod(RestartPolicy::Always).with([app]).init([proxy]);
    let mut sim = Sim::new(served, |_, _| Fate::IgnoresTerm).probes(|_, _, age| match age {
        age if age < secs(15) => ProbeResult::Success,
        _ => ProbeResult::Failure("no".into()),
    });
    sim.run(12).clear_trace().unwant(&uid(), Some(secs(20))).run(60);
    let unhealthy = sim.events.iter().filter(|event| event.starts_with("Unhealthy"));
    assert_eq!(unhealthy.collect::<Vec<_>>(), ["Unhealthy: Liveness probe failed: no"]);
    sim.traces(
        "12s app#0 Term; 32s app#0 Kill, proxy#0 Term, app#0 exits 137; 34s proxy#0 Kill, proxy#0 exits 137",
    );
}

#[test]
fn an_agent_that_starts_anew_gives_the_whole_grace_and_runs_no_hook_again_that_is_over() {
    let both = pod(RestartPolicy::Always)
        .with([post_start(pre_stop(container("done"), asks()), asks()), pre_stop(container("cut"), asks())]);
    let mut sim = Sim::new(both, |_, _| Fate::IgnoresTerm).hooks(|name, _, _| match name {
        "done" => HookFate::Succeeds(secs(1)),
        _ => HookFate::Succeeds(secs(15)),
    });
    sim.run(5).unwant(&uid(), None).run(10).clear_trace().restart_agent().unwant(&uid(), None).run(60);
    assert!(sim.trace.contains("cut#0 PreStop"), "{}", sim.trace);
    assert!(!sim.trace.contains("done#0 PreStop") && !sim.trace.contains("PostStart"), "{}", sim.trace);
    assert!(sim.is_gone(&uid()));
}

#[test]
fn a_pod_past_its_active_deadline_fails_while_it_is_initialised() {
    let mut late = pod(RestartPolicy::Never).init([container("first")]);
    late.spec.active_deadline = Some(secs(20));
    let mut sim = Sim::new(late, |_, _| Fate::IgnoresTerm);
    sim.run(60).traces("0s first#0 start; 20s first#0 Term; 50s first#0 Kill, first#0 exits 137");
    assert_eq!(sim.status(&uid())["reason"], "DeadlineExceeded");
    sim.shows_phase("Failed");
}

#[test]
fn a_failed_post_start_hook_is_shown_after_an_exit_without_an_agent_only_if_the_container_restarts() {
    for (policy, expected) in
        [(RestartPolicy::Always, Some("PostStartHookError")), (RestartPolicy::Never, None)]
    {
        // The preStop hook keeps the run from its signal.
        let app = pre_stop(post_start(container("app"), connects()), sleeps(25));
        let pod = pod(policy).with([app, pre_stop(container("other"), sleeps(25))]);
        let mut sim = Sim::new(pod.clone(), |_, _| Fate::Runs);
        sim.run(5);
        let before = sim.node.pods().next().expect("it runs").handover();
        let attempt = FIRST_RUN;
        let exit = exit(3, at(0), at(6));
        let container = started(at(0), attempt);
        let health = Health::default();
        let mut node = Node::new();
        node.observe(
            at(7),
            Observation::Found(Box::new(FoundPod {
                status: before,
                ..found_pod(
                    Rc::new(pod),
                    at(0),
                    vec![FoundAttempt { attempt, container, exit: Some(exit), health }],
                )
            })),
        );
        let status = crate::status::of(node.pods().next().expect("it is found"), Anchor(0), None);
        let state = &status["containerStatuses"][0]["state"];
        assert_eq!(state["waiting"]["reason"].as_str(), expected, "{policy:?}: {state}");
    }
}
