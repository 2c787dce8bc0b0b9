//! The effect of changes in place on the containers of a pod.

use super::*;

fn image(pod: &mut Pod, container: &str, image: &str) {
    let spec = &mut pod.spec;
    let mut all = spec.containers.iter_mut().chain(&mut spec.init_containers);
    all.find(|one| one.name == container).expect("it has one").image = image.into();
}

/// Changes the image of a container of `u1`.
fn set_image(sim: &mut Sim, container: &str, to: &str) {
    sim.update(&uid(), |pod| image(pod, container, to));
}

#[test]
fn a_container_with_another_image_ends_and_begins_anew_whatever_the_policy_says() {
    for policy in [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never] {
        let mut sim = Sim::new(pod(policy).with([container("app"), container("other")]), |_, _| Fate::Runs);
        sim.run(5);
        set_image(&mut sim, "app", "app:2");
        sim.run(100);
        assert_eq!(
            sim.story(),
            "0s app#0 start, other#0 start; 5s app#0 Term, app#0 exits 143, app#1 start",
            "{policy:?}"
        );
        let killing: Vec<&String> = sim.events.iter().filter(|event| event.starts_with("Killing")).collect();
        assert_eq!(killing, ["Killing: Container app definition changed, will be restarted"]);
        let status = sim.status(&uid());
        assert_eq!(json!([status["phase"], status["observedGeneration"]]), json!(["Running", 2]));
        assert_eq!(first(&sim)["restartCount"], 1);
        assert_eq!(first(&sim)["lastState"]["terminated"]["exitCode"], 143);
        sim.replay();
    }
}

#[test]
fn nobody_is_shown_the_moment_between_the_runs_of_a_container_with_another_image() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.latency(2).run(20);
    let ready = |sim: &Sim| condition(&sim.status(&uid()), "Ready");
    let since = ready(&sim)["lastTransitionTime"].clone();
    set_image(&mut sim, "app", "app:2");
    let mut between = 0;
    for second in 21..60 {
        sim.run(second);
        let is_running = first(&sim)["state"]["running"].is_object();
        let is_between = sim.node.pods().any(PodState::is_replacing_a_run);
        assert_ne!(is_running, is_between, "after {second} s");
        assert_eq!((&ready(&sim)["status"], &ready(&sim)["lastTransitionTime"]), (&"True".into(), &since));
        between += usize::from(is_between);
    }
    assert!(between > 0 && first(&sim)["restartCount"] == 1);
    // No other run follows that of a pod that is deleted meanwhile.
    set_image(&mut sim, "app", "app:3");
    let mut second = 60;
    while !sim.node.pods().any(PodState::is_replacing_a_run) {
        second += 1;
        assert!(second < 100);
        sim.run(second);
    }
    sim.unwant(&uid(), None).run(second);
    assert!(!sim.node.pods().any(PodState::is_replacing_a_run));
}

#[test]
fn a_container_whose_next_run_waits_for_a_sidecar_is_not_ready() {
    let mut with_sidecar = pod(RestartPolicy::Always);
    with_sidecar.spec.init_containers = vec![sidecar("side")];
    let mut sim = Sim::new(with_sidecar, |_, _| Fate::Runs);
    sim.run(20);
    let ready = |sim: &Sim| condition(&sim.status(&uid()), "Ready")["status"].clone();
    assert_eq!(ready(&sim), "True");
    sim.absent.insert("app:1".into());
    sim.restart(&uid(), None).run(60);
    assert!(first(&sim)["state"]["terminated"].is_object(), "{}", first(&sim));
    assert_eq!(ready(&sim), "False");
    sim.absent.clear();
    sim.later(secs(0), Observation::ImagesChanged).run(70);
    assert_eq!((ready(&sim), first(&sim)["restartCount"].clone()), ("True".into(), 1.into()));
    sim.replay();
}

#[test]
fn a_container_that_a_user_restarts_ends_and_begins_anew_whatever_the_policy_says() {
    for policy in [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never] {
        let mut sim = Sim::new(pod(policy).with([container("app"), container("other")]), |_, _| Fate::Runs);
        sim.run(5).restart(&uid(), Some("app")).run(50).restart(&uid(), None).run(100);
        let expected = "0s app#0 start, other#0 start; 5s app#0 Term, app#0 exits 143, app#1 start; 50s app#1 Term, \
             other#0 Term, app#1 exits 143, other#0 exits 143, app#2 start, other#1 start";
        assert_eq!(sim.story(), expected, "{policy:?}");
        let killing: Vec<&String> = sim.events.iter().filter(|event| event.starts_with("Killing")).collect();
        let (app, other) = (
            "Killing: Container app was requested to restart",
            "Killing: Container other was requested to restart",
        );
        assert_eq!(killing, [app, app, other]);
        assert_eq!(first(&sim)["restartCount"], 2);
        sim.replay();
    }
}

#[test]
fn a_user_restarts_a_crashing_container_at_once_and_no_finished_one() {
    let mut sim = Sim::new(
        pod(RestartPolicy::OnFailure).with([container("app"), container("done")]),
        scripted("done exits 0 after 1s, *#0 exits 1 after 1s, *#1 exits 1 after 1s"),
    );
    sim.run(5).restart(&uid(), None).run(60);
    sim.traces(
        "0s app#0 start, done#0 start; 1s app#0 exits 1, done#0 exits 0, app#1 start; 2s app#1 exits 1; 5s \
         app#2 start",
    );
}

#[test]
fn a_restart_for_a_new_image_honours_the_grace_and_the_pre_stop_hook() {
    let mut app = container("app");
    app.lifecycle.pre_stop = Some(Hook::Sleeps(secs(4)));
    let mut sim = Sim::new(pod(RestartPolicy::Never).with([app]), scripted("*#0 ignores Term"));
    sim.run(5);
    set_image(&mut sim, "app", "app:2");
    sim.run(100).traces("0s app#0 start; 9s app#0 Term; 35s app#0 Kill, app#0 exits 137, app#1 start");
}

#[test]
fn a_run_stopped_for_a_new_image_that_exits_with_0_is_followed_by_another() {
    let mut sim = Sim::new(pod(RestartPolicy::OnFailure), scripted("*#0 exits 0 after 8s"));
    // The signal is never delivered, and the run ends by itself before the next one.
    sim.run(5).failures(100);
    set_image(&mut sim, "app", "app:2");
    sim.run(6).failures(0).run(60).traces("0s app#0 start; 5s app#0 Term; 8s app#0 exits 0, app#1 start");
    sim.shows_phase("Running");
}

#[test]
fn a_finished_container_does_not_run_again_for_a_new_image() {
    let two = pod(RestartPolicy::OnFailure).with([container("app"), container("job")]);
    let mut sim = Sim::new(two, scripted("job exits 0 after 1s"));
    sim.run(5);
    set_image(&mut sim, "job", "job:2");
    sim.run(100).traces("0s app#0 start, job#0 start; 1s job#0 exits 0").restart_agent().run(200);
    assert_eq!(sim.trace.lines().count(), 3);
}

#[test]
fn init_containers_go_on_with_the_image_that_they_began_with_and_never_run_again() {
    let two = pod(RestartPolicy::Always).init([container("i0"), container("i1")]);
    let mut sim = Sim::new(two, scripted("app runs, * exits 0 after 10s"));
    sim.run(15);
    sim.update(&uid(), |pod| {
        image(pod, "i0", "init:2");
        image(pod, "i1", "init:2");
    });
    sim.run(100).traces("0s i0#0 start; 10s i0#0 exits 0, i1#0 start; 20s i1#0 exits 0, app#0 start");
}

#[test]
fn a_running_sidecar_begins_anew_and_its_pod_stays_initialised() {
    let with = pod(RestartPolicy::Never).init([sidecar("proxy"), container("i1")]);
    let mut sim = Sim::new(with, scripted("i1 exits 0 after 1s"));
    sim.run(5);
    set_image(&mut sim, "proxy", "proxy:2");
    sim.run(100);
    sim.traces(
        "0s proxy#0 start, i1#0 start; 1s i1#0 exits 0, app#0 start; 5s proxy#0 Term, proxy#0 exits 143, \
         proxy#1 start",
    );
    assert!(sim.events.iter().any(|event| event == "Killing: Init container proxy definition changed"));
}

#[test]
fn a_change_of_the_spec_waits_for_a_sidecar_that_is_still_starting() {
    let mut proxy = sidecar("proxy");
    proxy.startup_probe = Some(Probe { period: secs(10), failure_threshold: 9, ..exec_probe() });
    let with = pod(RestartPolicy::Always).init([proxy]);
    let answers = |_: &str, _, age: std::time::Duration| {
        if age >= secs(20) { ProbeResult::Success } else { ProbeResult::Failure("not yet".into()) }
    };
    let mut sim = Sim::new(with, |_, _| Fate::Runs).probes(answers);
    sim.run(5);
    set_image(&mut sim, "proxy", "proxy:2");
    sim.run(19).traces("0s proxy#0 start").run(200);
    assert!(sim.trace.contains("  20s proxy#0 Term\n"), "{}", sim.trace);
    assert_eq!(sim.trace.matches("proxy#1 start").count(), 1, "{}", sim.trace);
}

#[test]
fn an_image_that_is_missing_is_looked_for_under_its_new_name_at_once() {
    let mut sim =
        Sim::new(pod(RestartPolicy::Always), |_, _| Fate::FailsToStart(StartFailureReason::ErrImagePull));
    sim.run(50).fates(|_, _| Fate::Runs);
    set_image(&mut sim, "app", "app:2");
    sim.run(60).traces("0s app#0 start; 50s app#0 start").shows_phase("Running");
}

#[test]
fn a_new_image_resets_the_back_off_of_a_crashing_container() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Exits(1, secs(1)));
    sim.run(60);
    assert_eq!(first(&sim)["state"]["waiting"]["reason"], "CrashLoopBackOff");
    let restarts = first(&sim)["restartCount"].as_u64().expect("a count");
    sim.fates(|_, number| if number < 6 { Fate::Exits(1, secs(1)) } else { Fate::Runs });
    set_image(&mut sim, "app", "app:2");
    sim.run(60);
    assert!(sim.trace.ends_with(&format!("  60s app#{} start\n", restarts + 1)), "{}", sim.trace);
    sim.run(72);
    assert!(sim.trace.contains("  71s app"), "its back-off begins anew\n{}", sim.trace);
}

#[test]
fn a_start_already_under_way_does_not_count_as_the_new_image() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Runs);
    sim.latency(2).run(0);
    sim.run_until_traced("app#0 start");
    set_image(&mut sim, "app", "app:2");
    sim.run(100);
    let order: Vec<&str> = sim.trace.lines().map(|line| &line[6..]).collect();
    assert_eq!(order, ["app#0 start", "app#0 Term", "app#0 exits 143", "app#1 start"]);
}

#[test]
fn the_next_agent_completes_an_interrupted_change_of_image() {
    for restart_at in [5, 6, 20, 36] {
        let mut sim = Sim::new(pod(RestartPolicy::Never), scripted("*#0 ignores Term"));
        sim.run(5);
        set_image(&mut sim, "app", "app:2");
        sim.run(restart_at).restart_agent().run(200);
        assert_eq!(sim.trace.matches(" start").count(), 2, "{restart_at}\n{}", sim.trace);
        assert!(sim.trace.ends_with("app#1 start\n"), "{}", sim.trace);
        sim.shows_phase("Running");
    }
}

#[test]
fn a_run_stopped_for_a_new_image_that_ends_without_an_agent_is_followed_up() {
    for redefined in [true, false] {
        let mut changed = pod(RestartPolicy::Never);
        image(&mut changed, "app", "app:2");
        let changed = std::rc::Rc::new(changed);
        let attempt = FIRST_RUN;
        let exit = exit(143, at(2), at(8));
        let health = Health { started: true, redefined, ..Health::default() };
        let run = FoundAttempt { attempt, container: started(at(2), attempt), exit: Some(exit), health };
        let begun = ContainerRecord { name: "app".into(), attempts: 1, ..ContainerRecord::default() };
        let found = FoundPod {
            record: Some(Box::new(Record { containers: vec![begun], ..Record::default() })),
            ..found_pod(changed.clone(), at(1), vec![run])
        };
        let mut node = Node::new();
        let wanted = Observation::Wanted { pod: changed, record: None, status: None };
        for seen in [Observation::Found(Box::new(found)), wanted, Observation::SourcesSeen] {
            node.observe(at(10), seen);
        }
        let plan = node.plan(at(10));
        let begins = plan.actions.iter().any(|(_, action)| match action {
            Action::Start { attempt, .. } => attempt.number == 1,
            _ => false,
        });
        assert_eq!(begins, redefined, "{:?}", plan.actions);
    }
}

#[test]
fn a_power_cut_between_two_images_does_not_complete_the_container() {
    let mut sim =
        Sim::new(pod(RestartPolicy::OnFailure), scripted("*#0 exits 0 after 8s, * fails with ErrImagePull"));
    sim.run(5).failures(100);
    set_image(&mut sim, "app", "app:2");
    sim.run(6).failures(0);
    // The image is missing, and the end of the previous run is on record by now.
    sim.run(400).reboot().fates(|_, _| Fate::Runs).later(secs(0), Observation::ImagesChanged).run(500);
    sim.shows_phase("Running");
    assert_eq!(first(&sim)["restartCount"], 1);
}

#[test]
fn a_never_pod_fails_if_its_new_image_cannot_be_executed() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), scripted("*#0 runs, * fails with RunContainerError"));
    sim.run(5);
    set_image(&mut sim, "app", "app:2");
    sim.run(300);
    assert_eq!(sim.trace.matches(" start").count(), 2, "{}", sim.trace);
    sim.shows_phase("Failed");
}

#[test]
fn a_deadline_that_is_set_holds_from_when_the_pod_began() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run(5).update(&uid(), |pod| pod.spec.active_deadline = Some(secs(60))).run(10);
    sim.update(&uid(), |pod| pod.spec.active_deadline = Some(secs(20))).run(100);
    sim.traces("0s app#0 start; 20s app#0 Term, app#0 exits 143");
    assert_eq!(json!([phase(&sim), sim.status(&uid())["reason"]]), json!(["Failed", "DeadlineExceeded"]));
}

#[test]
fn a_later_deadline_or_none_makes_another_pod() {
    let with = |seconds: Option<u64>| {
        let mut pod = pod(RestartPolicy::Always);
        pod.spec.active_deadline = seconds.map(secs);
        pod
    };
    assert!(with(Some(5)).is_update_of(&with(None)));
    assert!(with(Some(5)).is_update_of(&with(Some(6))));
    assert!(!with(Some(6)).is_update_of(&with(Some(5))));
    assert!(!with(None).is_update_of(&with(Some(5))));
}

#[test]
fn a_pod_that_is_over_stays_over_with_another_image() {
    let mut sim = Sim::new(pod(RestartPolicy::Never), |_, _| Fate::Exits(0, secs(1)));
    sim.run(5);
    set_image(&mut sim, "app", "app:2");
    sim.run(100).reboot().run(200).traces("0s app#0 start; 1s app#0 exits 0").shows_phase("Succeeded");
}

#[test]
fn a_pod_that_is_stopped_begins_nothing_anew() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
    sim.run(5);
    set_image(&mut sim, "app", "app:2");
    sim.run(10).unwant(&uid(), Some(secs(5))).run(100);
    sim.traces("0s app#0 start; 5s app#0 Term; 15s app#0 Kill, app#0 exits 137");
    assert!(sim.is_gone(&uid()));
}

/// `app` runs `app:1`, and from second 5 on its pod wants `app:2`, which is not on the board.
fn waiting_for_an_image(policy: RestartPolicy, fate: impl FnMut(&str, u32) -> Fate + 'static) -> Sim {
    let mut sim = Sim::new(pod(policy), fate);
    sim.update(&uid(), |pod| image(pod, "app", "app:1"));
    sim.absent.insert("app:2".into());
    sim.run(5);
    set_image(&mut sim, "app", "app:2");
    sim
}

fn image_condition(sim: &Sim) -> serde_json::Value {
    let status = sim.status(&uid());
    let conditions = status["conditions"].as_array().expect("a list");
    let found = conditions.iter().find(|condition| condition["type"] == "PodImageUpdatePending");
    found.cloned().unwrap_or_default()
}

#[test]
fn a_container_runs_on_while_the_image_of_its_spec_is_not_on_the_board() {
    for policy in [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never] {
        let mut sim = waiting_for_an_image(policy, |_, _| Fate::Runs);
        sim.run(1000);
        assert_eq!(sim.story(), "0s app#0 start", "{policy:?}");
        assert_eq!(first(&sim)["state"]["running"]["startedAt"], "1970-01-01T00:00:00Z");
        assert_eq!(json!([first(&sim)["ready"], phase(&sim)]), json!([true, "Running"]));
        let condition = image_condition(&sim);
        assert_eq!(json!([condition["status"], condition["reason"]]), json!(["True", "ErrImagePull"]));
        assert_eq!(condition["lastTransitionTime"], "1970-01-01T00:00:05Z");
        let message = condition["message"].as_str().expect("a text");
        assert!(message.contains("app:2") && message.contains("app"), "{message}");
        let events: Vec<&String> = sim.events.iter().filter(|event| event.contains("app:2")).collect();
        assert_eq!(
            events,
            [
                "Failed: Failed to pull image \"app:2\": image app:2 is not on this node",
                "BackOff: Back-off pulling image \"app:2\": container app keeps running image \"app:1\" until it \
                 is present"
            ]
        );
        sim.reports("Failed: Error: ErrImagePull");

        sim.load_image("app:2").run(1000).traces_last("1000s app#0 Term, app#0 exits 143, app#1 start");
        assert_eq!(sim.pods[0].image_of(ContainerIndex(0)), Some("app:2"));
        assert_eq!(image_condition(&sim), serde_json::Value::Null);
        sim.replay();
    }
}

#[test]
fn the_new_image_of_a_running_container_is_pulled_and_a_failed_pull_is_repeated() {
    let mut sim = waiting_for_an_image(RestartPolicy::Always, |_, _| Fate::Runs);
    sim.registry = Some([Err("no route"), Ok(" in 1.5s.")].into());
    sim.run(100);
    let pulling = "Pulling: Pulling image \"app:2\"".to_owned();
    sim.traces("0s app#0 start; 5s pull app:2");
    assert_eq!(image_condition(&sim)["reason"], "ErrImagePull");
    assert!(sim.events.contains(&pulling));
    sim.reports("Failed: Failed to pull image \"app:2\": no route").run(1000);
    sim.traces("0s app#0 start; 5s pull app:2; 305s pull app:2, app#0 Term, app#0 exits 143, app#1 start");
    let pulls: Vec<&String> =
        sim.events.iter().filter(|event| event.contains("ull") && event.contains("app:2")).collect();
    let expected = Some("Pulled: Successfully pulled image \"app:2\" in 1.5s.");
    assert_eq!(pulls.last().map(|event| &***event), expected);
    assert_eq!(pulls.iter().filter(|event| ***event == pulling).count(), 2);
    assert_eq!(image_condition(&sim), serde_json::Value::Null);
    sim.replay();
}

#[test]
fn a_pulled_image_that_is_gone_again_is_reported_and_pulled_later() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.run(5).latency(2);
    sim.registry = Some([Ok(" in 1s."), Ok(" in 1s.")].into());
    sim.absent.insert("app:3".into());
    set_image(&mut sim, "app", "app:3");
    let mut now = secs(5);
    while !sim.trace.contains("pull app:3") {
        now += Duration::from_millis(10);
        sim.run_until(now);
    }
    // Removed before the container got it.
    sim.absent.insert("app:3".into());
    sim.run(200);
    assert_eq!(image_condition(&sim)["reason"], "ErrImagePull", "{}", sim.trace);
    sim.run(1000);
    assert_eq!(sim.trace.matches("pull app:3").count(), 2, "{}", sim.trace);
    assert_eq!(sim.pods[0].image_of(ContainerIndex(0)), Some("app:3"), "{}", sim.trace);
}

#[test]
fn changing_back_to_the_running_image_restarts_nothing() {
    let mut sim = waiting_for_an_image(RestartPolicy::Always, |_, _| Fate::Runs);
    sim.run(10);
    set_image(&mut sim, "app", "app:1");
    sim.load_image("app:2").run(100).traces("0s app#0 start");
    assert_eq!(image_condition(&sim), serde_json::Value::Null);
}

#[test]
fn an_answer_about_an_image_that_is_wanted_no_longer_is_not_believed() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::Runs);
    sim.absent.insert("app:3".into());
    sim.run(5).latency(2);
    // The first image is checked when the second one is wanted already.
    set_image(&mut sim, "app", "app:2");
    sim.run(5);
    set_image(&mut sim, "app", "app:3");
    sim.run(100).traces("0s app#0 start").load_image("app:3").run(200);
    assert_eq!(sim.pods[0].image_of(ContainerIndex(0)), Some("app:3"));
    assert_eq!(first(&sim)["restartCount"], 1);
}

#[test]
fn a_container_that_crashes_while_its_new_image_is_missing_runs_its_old_image_again() {
    let mut sim = waiting_for_an_image(RestartPolicy::Always, scripted("*#0 exits 1 after 20s"));
    sim.run(100).traces("0s app#0 start; 20s app#0 exits 1, app#1 start");
    assert_eq!(sim.pods[0].image_of(ContainerIndex(0)), Some("app:1"));
    assert_eq!(image_condition(&sim)["reason"], "ErrImagePull");
    let failures = sim.events.iter().filter(|event| event.starts_with("Failed: Failed to pull")).count();
    assert_eq!(failures, 1, "it is said once: {:?}", sim.events);
    sim.load_image("app:2").run(200);
    assert_eq!(sim.pods[0].image_of(ContainerIndex(0)), Some("app:2"));
}

#[test]
fn a_later_agent_leaves_the_old_run_until_the_image_is_there() {
    let mut sim = waiting_for_an_image(RestartPolicy::Never, |_, _| Fate::Runs);
    for at in [5, 20, 40] {
        sim.run(at).restart_agent();
    }
    sim.run(100).traces("0s app#0 start");
    let condition = image_condition(&sim);
    assert_eq!(json!([condition["status"], condition["reason"]]), json!(["True", "ErrImagePull"]));
    assert_eq!(condition["lastTransitionTime"], "1970-01-01T00:00:05Z");
    let failures = sim.events.iter().filter(|event| event.starts_with("Failed: Failed to pull")).count();
    assert_eq!(failures, 1, "it is said once: {:?}", sim.events);
    sim.load_image("app:2").run(200);
    assert_eq!(sim.pods[0].image_of(ContainerIndex(0)), Some("app:2"));
}

#[test]
fn an_image_that_is_still_missing_is_missing_since_it_was_looked_for_first() {
    let mut sim = waiting_for_an_image(RestartPolicy::Always, |_, _| Fate::Runs);
    sim.run(20).latency(2).load_image("another:1");
    // Before and after the check whether that was the image.
    for at in [20, 30] {
        sim.run(at);
        assert_eq!(image_condition(&sim)["lastTransitionTime"], "1970-01-01T00:00:05Z", "{at}");
    }
    // Nothing is known of another image yet.
    sim.absent.insert("app:3".into());
    set_image(&mut sim, "app", "app:3");
    sim.run(30);
    assert_eq!(image_condition(&sim), serde_json::Value::Null);
    sim.restart_agent().run(40);
    let condition = image_condition(&sim);
    assert!(condition["message"].as_str().is_some_and(|text| text.contains("app:3")), "{condition}");
}

#[test]
fn after_a_power_cut_the_image_that_ran_before_runs_again_until_the_new_one_is_there() {
    // At once, and after all writes have settled on flash.
    for cut_at in [6, 500] {
        let with = pod(RestartPolicy::Always).init([container("i0")]);
        let mut sim = Sim::new(with, scripted("i0 exits 0 after 1s"));
        sim.absent.extend(["app:2".to_owned(), "i0:2".to_owned()]);
        sim.update(&uid(), |pod| {
            image(pod, "app", "app:1");
            image(pod, "i0", "i0:1");
        });
        sim.run(5);
        sim.update(&uid(), |pod| {
            image(pod, "app", "app:2");
            image(pod, "i0", "i0:2");
        });
        sim.run(cut_at).reboot().run(1000).shows_phase("Running");
        // The record has the image as the status shows it.
        let image = sim.pods[0].image_of(ContainerIndex(0));
        assert_eq!(image, Some("docker.io/library/app:1"), "{}", sim.trace);
        assert_eq!(image_condition(&sim)["reason"], "ErrImagePull");
        sim.load_image("app:2").run(2000);
        assert_eq!(sim.pods[0].image_of(ContainerIndex(0)), Some("app:2"), "{}", sim.trace);
    }
}

#[test]
fn a_pod_that_is_stopped_waits_for_no_image() {
    let mut sim = waiting_for_an_image(RestartPolicy::Always, |_, _| Fate::Runs);
    sim.run(10).unwant(&uid(), None).run(100).traces("0s app#0 start; 10s app#0 Term, app#0 exits 143");
    assert!(sim.node.is_empty());
}

#[test]
fn a_pod_that_stops_waits_for_no_image() {
    let mut slow = pod(RestartPolicy::Always);
    slow.spec.containers[0].lifecycle.pre_stop = Some(Hook::Sleeps(secs(20)));
    let mut sim = Sim::new(slow, |_, _| Fate::Runs);
    sim.update(&uid(), |pod| image(pod, "app", "app:1"));
    sim.absent.insert("app:2".into());
    sim.run(5);
    set_image(&mut sim, "app", "app:2");
    sim.run(20);
    assert_ne!(image_condition(&sim), serde_json::Value::Null);
    sim.unwant(&uid(), Some(secs(30))).run(25);
    assert_eq!(image_condition(&sim), serde_json::Value::Null);
    assert!(first(&sim)["state"]["running"].is_object(), "its hook runs");
}
