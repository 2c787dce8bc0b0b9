//! Bounds: of wake-ups and writes to flash, of pods, and of actions in flight.

use super::*;

#[test]
fn an_idle_pod_plans_no_action_and_no_wake_up() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run(100);
    let plan = sim.node.plan(at(100));
    assert!(plan.actions.is_empty());
    assert_eq!((plan.wake_at, plan.more), (None, false));
}

#[test]
fn a_crashing_pod_writes_its_counts_at_most_every_five_minutes() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Exits(1, secs(5)));
    sim.run(3600);
    let saves = sim.of(&uid()).saves;
    assert!((2..=13).contains(&saves), "{saves} saves in an hour");
}

#[test]
fn containers_that_run_once_and_cannot_be_created_do_not_wear_out_the_card() {
    let two = pod(RestartPolicy::Never).with([container("a"), container("b")]);
    let mut sim = Sim::new(two, |_, _| Fate::FailsToStart(StartFailureReason::CreateContainerError));
    sim.run(3600);
    let saves = sim.of(&uid()).saves;
    assert!((2..=30).contains(&saves), "{saves} saves in an hour");
    assert!(sim.trace.matches("start").count() > 600, "each is tried every ten seconds");
}

#[test]
fn a_pod_changed_by_presets_is_recorded_on_flash_at_once() {
    let mut pod = pod(RestartPolicy::Always);
    let saves = |pod: Pod, seconds: u64| {
        let mut sim = Sim::new(pod, |_, _| Fate::Runs);
        sim.run(seconds);
        sim.of(&uid()).saves
    };
    assert_eq!((saves(pod.clone(), 1), saves(pod.clone(), 3600)), (0, 1));
    pod.annotations.insert(format!("{}p", crate::spec::pod::PRESET_MARK), "7".into());
    assert_eq!((saves(pod.clone(), 1), saves(pod, 3600)), (1, 2));
}

#[test]
fn the_pod_that_is_one_too_many_is_refused_and_never_runs() {
    let mut sim = Sim::empty(|_, _| Fate::Runs);
    for number in 0..=MAX_PODS {
        sim.want(pod(RestartPolicy::Always).uid(&format!("u{number}")).named(&format!("p{number}")));
    }
    sim.run(30);
    assert_eq!(sim.trace.matches("start").count(), MAX_PODS);
    let status = sim.status(&format!("u{MAX_PODS}").as_str().into());
    assert_eq!(json!([status["phase"], status["reason"]]), json!(["Failed", "OutOfpods"]));
    let expected =
        "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 110, capacity: 110";
    assert_eq!(status["message"], expected);
    assert!(status.get("containerStatuses").is_none());
    assert!(sim.largest_plan <= MAX_ACTIONS);
}

#[test]
fn only_so_many_starts_are_in_flight_at_once() {
    let mut sim = Sim::empty(|_, _| Fate::Runs);
    sim.latency(5);
    for number in 0..40 {
        sim.want(pod(RestartPolicy::Always).uid(&format!("u{number}")).named(&format!("p{number}")));
    }
    sim.run(0);
    assert_eq!(sim.log.matches("create sandbox").count(), STARTS_AT_ONCE);
    sim.run(200);
    assert_eq!(sim.trace.matches("start").count(), 40);
}

#[test]
fn starts_that_are_slow_to_fail_hold_up_no_pod_for_ever() {
    let mut sim = Sim::empty(scripted("good runs, * fails with CreateContainerConfigError"));
    sim.latency(30);
    for number in 0..3 * STARTS_AT_ONCE {
        sim.want(pod(RestartPolicy::Always).uid(&format!("u{number}")).named(&format!("p{number}")));
    }
    let good = pod(RestartPolicy::Always).with([container("good")]).uid("last").named("last");
    sim.want(good);
    sim.run(300);
    assert!(sim.trace.contains("good#0 start"), "{}", sim.trace);
}

#[test]
fn only_so_many_records_are_written_at_once() {
    let mut sim = Sim::empty(|_, _| Fate::Runs);
    sim.latency(5);
    let refused = 2 * WRITES_AT_ONCE + 7;
    for number in 0..MAX_PODS + refused {
        sim.want(pod(RestartPolicy::Always).uid(&format!("u{number}")).named(&format!("p{number}")));
    }
    sim.run(0);
    assert_eq!(sim.log.matches(" save Failed").count(), WRITES_AT_ONCE);
    sim.run(1000);
    assert_eq!(sim.log.matches(" save Failed").count(), refused, "each is written once");
    for number in MAX_PODS..MAX_PODS + refused {
        sim.unwant(&format!("u{number}").as_str().into(), None);
    }
    sim.run(1000);
    assert_eq!(sim.log.matches(" forget").count(), WRITES_AT_ONCE);
    sim.run(1200);
    assert_eq!(sim.node.pods().count(), MAX_PODS);
}

#[test]
fn actions_beyond_the_limit_of_a_plan_follow_in_the_next_plan() {
    let mut sim = Sim::empty(|_, _| Fate::IgnoresTerm);
    for number in 0..3 * MAX_ACTIONS {
        sim.want(pod(RestartPolicy::Always).uid(&format!("u{number}")).named(&format!("p{number}")));
    }
    sim.run(100);
    sim.largest_plan = 0;
    for number in 0..3 * MAX_ACTIONS {
        sim.unwant(&format!("u{number}").as_str().into(), Some(secs(10)));
    }
    sim.run(100);
    assert_eq!(sim.trace.matches("100s").count(), 3 * MAX_ACTIONS, "all are asked in the same second");
    assert_eq!(sim.largest_plan, MAX_ACTIONS);
    sim.run(110);
    assert!(sim.node.is_empty(), "each is killed, taken down and forgotten");
}

#[test]
fn the_state_of_a_pod_takes_less_than_four_kibibytes() {
    use crate::pod::container::ContainerState;
    let text = 2 * (64 + 64 + 128);
    let record = size_of::<Record>() + size_of::<ContainerRecord>() + text;
    let container = size_of::<ContainerState>()
        + 2 * size_of::<Ended>()
        + size_of::<RunIdentity>()
        + size_of::<StartedContainer>()
        + text;
    let all = size_of::<PodState>() + container + 2 * record;
    assert!(all < 4096, "{all} bytes");
}
