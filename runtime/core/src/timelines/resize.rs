//! Resizes of running pods, and limits of local storage.

use super::*;

fn milli(amount: i64) -> Option<Quantity> {
    Some(Quantity::from_milli(amount.into()))
}

fn resize(sim: &mut Sim, name: &str, cpu: i64) {
    sim.update(&name.into(), |pod| pod.spec.containers[0].resources.cpu_request = milli(cpu));
}

/// The amounts that the status shows as allocated and as actual, and the conditions of a resize.
fn shown(sim: &Sim, name: &str) -> String {
    let status = sim.status(&name.into());
    let app = &status["containerStatuses"][0];
    let of = |value: &serde_json::Value| value["cpu"].as_str().unwrap_or("-").to_owned();
    let mut text = format!("{} {}", of(&app["allocatedResources"]), of(&app["resources"]["requests"]));
    for condition in status["conditions"].as_array().into_iter().flatten() {
        let kind = condition["type"].as_str().unwrap_or_default();
        if let Some(kind) = kind.strip_prefix("PodResize") {
            text += &format!(" {kind} {}", condition["reason"].as_str().unwrap_or("-"));
        }
    }
    text
}

fn resizes(sim: &Sim) -> Vec<&str> {
    let events = sim.events.iter().filter(|event| event.starts_with("Resize"));
    events.filter_map(|event| event.split(':').next()).collect()
}

#[test]
fn a_resize_that_fits_is_carried_out_and_restarts_nothing() {
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    sim.want(asking("web", 300));
    sim.run(5);
    resize(&mut sim, "web", 800);
    sim.run(6);
    assert_eq!(shown(&sim, "web"), "800m 800m");
    sim.traces("0s app#0 start");
    let resources = |cpu: &str| {
        format!(
            "{{\"containers\":[{{\"name\":\"app\",\"resources\":{{\"requests\":{{\"cpu\":\"{cpu}\"}}}}}}],\"generation\":2}}"
        )
    };
    let events: Vec<&String> = sim.events.iter().filter(|event| event.starts_with("Resize")).collect();
    let expected = [
        format!("ResizeStarted: Pod resize started: {}", resources("800m")),
        format!("ResizeCompleted: Pod resize completed: {}", resources("800m")),
    ];
    assert_eq!(events, expected.iter().collect::<Vec<_>>());
    sim.replay();
}

#[test]
fn the_memory_request_of_a_container_that_may_swap_is_resized_only_by_a_restart() {
    for (limited_swap, limit, restarts, expected) in [
        (true, None, false, " Pending Infeasible"),
        (true, None, true, ""),
        // Without a difference between request and limit, the container does not swap.
        (true, Some(64), false, ""),
        (false, None, false, ""),
    ] {
        let mut sim = Sim::empty(|_, _| Fate::Runs).on(NodeInfo { limited_swap, ..small(1000) });
        let bytes = |mib: i64| Some(Quantity::from_milli(i128::from(mib << 20) * 1000));
        let mut web = asking("web", 300);
        let resources = &mut web.spec.containers[0].resources;
        resources.memory_request = bytes(64);
        resources.memory_limit = limit.and_then(bytes);
        resources.memory_resize_restarts = restarts;
        sim.want(web);
        sim.run(5);
        resize(&mut sim, "web", 400);
        sim.run(6);
        assert_eq!(shown(&sim, "web"), "400m 400m", "an amount of cpu is no matter of swap");
        sim.update(&"web".into(), |pod| {
            let resources = &mut pod.spec.containers[0].resources;
            resources.memory_request = bytes(96);
            resources.memory_limit = limit.and(bytes(96));
        });
        sim.run(60);
        let what = format!("{limited_swap} {limit:?} {restarts}");
        assert_eq!(shown(&sim, "web"), format!("400m 400m{expected}"), "{what}");
        if !expected.is_empty() {
            let status = sim.status(&"web".into());
            let pending = condition(&status, "PodResizePending");
            assert_eq!(pending["message"], "In-place resize of containers with swap is not supported.");
        }
    }
}

#[test]
fn a_resize_waits_until_the_resources_are_free_and_the_pod_runs_on() {
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    sim.want(asking("web", 300));
    let other = sim.want(asking("other", 600));
    sim.run(5);
    resize(&mut sim, "web", 800);
    sim.run(6);
    assert_eq!(shown(&sim, "web"), "300m 300m Pending Deferred");
    let status = sim.status(&"web".into());
    let pending = condition(&status, "PodResizePending");
    let expected = "Node didn't have enough resource: cpu, requested: 800, used: 600, capacity: 1000";
    assert_eq!(pending["message"], expected);
    assert_eq!(pending["observedGeneration"], 2);
    // Neither another agent nor another boot allocates what was not allocated before.
    sim.restart_agent().run(10);
    assert_eq!(shown(&sim, "web"), "300m 300m Pending Deferred");
    sim.reboot().run(20);
    assert_eq!(shown(&sim, "web"), "300m 300m Pending Deferred");
    sim.unwant(&other, None).run(60);
    assert_eq!(shown(&sim, "web"), "800m 800m");
    assert_eq!(
        resizes(&sim),
        ["ResizeDeferred", "ResizeDeferred", "ResizeStarted", "ResizeCompleted"],
        "once in each boot"
    );
}

#[test]
fn an_infeasible_resize_is_not_tried_again_and_another_one_replaces_it() {
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    sim.want(asking("web", 300));
    sim.run(5);
    resize(&mut sim, "web", 1001);
    sim.run(6);
    assert_eq!(shown(&sim, "web"), "300m 300m Pending Infeasible");
    let status = sim.status(&"web".into());
    let message = "Node didn't have enough capacity: cpu, requested: 1001, capacity: 1000";
    assert_eq!(condition(&status, "PodResizePending")["message"], message);
    resize(&mut sim, "web", 300);
    sim.run(7);
    assert_eq!(shown(&sim, "web"), "300m 300m");
    assert_eq!(resizes(&sim), ["ResizeInfeasible"]);
}

#[test]
fn resources_that_become_free_go_to_the_pod_of_the_highest_priority_first() {
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    let low = asking("low", 200);
    let mut high = asking("high", 200);
    high.priority = 100;
    sim.want(low);
    sim.want(high);
    let other = sim.want(asking("other", 600));
    sim.run(5);
    resize(&mut sim, "low", 700);
    resize(&mut sim, "high", 700);
    sim.run(6).unwant(&other, None).run(60);
    assert_eq!(shown(&sim, "high"), "700m 700m");
    assert_eq!(shown(&sim, "low"), "200m 200m Pending Deferred");
}

#[test]
fn a_container_restarts_if_its_policy_requires_it_whatever_the_pods_says() {
    let mut app = container("app");
    app.resources.cpu_request = milli(100);
    app.resources.cpu_resize_restarts = true;
    let two = pod(RestartPolicy::OnFailure).uid("web").with([app, container("other")]);
    let mut sim = Sim::new(two, |_, _| Fate::Runs);
    sim.run(5);
    resize(&mut sim, "web", 200);
    sim.run(60).traces("0s app#0 start, other#0 start; 5s app#0 Term, app#0 exits 143, app#1 start");
    sim.reports("Killing: Container app resize requires restart");
    assert_eq!(shown(&sim, "web"), "200m 200m");
}

#[test]
fn a_failed_resize_is_reported_with_its_cause_and_retried() {
    let mut sim = Sim::empty(|_, _| Fate::Runs);
    sim.want(asking("web", 300));
    sim.run(20).failures(100);
    resize(&mut sim, "web", 200);
    // Without flash nothing is allocated.
    sim.run(25);
    assert_eq!(shown(&sim, "web"), "200m 300m InProgress -");
    sim.failures(0).run(29);
    assert_eq!(shown(&sim, "web"), "200m 300m InProgress -");
    sim.run(31);
    assert_eq!(shown(&sim, "web"), "200m 200m");

    resize(&mut sim, "web", 100);
    let index = sim.node.index_of(&"web".into()).expect("it is here");
    sim.run(31);
    let failure = Some("cannot decrease".into());
    sim.node.observe(sim.now, Observation::Of(index, PodObservation::Resized { generation: 2, failure }));
    sim.run(32);
    assert_eq!(shown(&sim, "web"), "100m 100m", "news of an earlier resize changes nothing");
}

#[test]
fn an_idle_resized_pod_plans_no_action() {
    let mut sim = Sim::empty(|_, _| Fate::Runs);
    let web = sim.want(asking("web", 300));
    sim.run(5);
    resize(&mut sim, "web", 200);
    sim.run(400);
    let saves = sim.of(&web).saves;
    sim.run(4000);
    assert_eq!(sim.of(&web).saves, saves);
}

fn usage_of(containers: Vec<u64>, volumes: Vec<u64>) -> StorageUsage {
    StorageUsage { containers, volumes }
}

/// A pod whose containers have these limits of local storage, in MiB, and use this much, with its volumes.
fn with_usage(limits: &[u64], used: &[u64], volumes: u64) -> Sim {
    let limited = |(number, limit): (usize, &u64)| {
        let mut container = container(&format!("c{number}"));
        let limit = Quantity::parse(&format!("{limit}Mi")).ok();
        container.resources.ephemeral_storage_limit = limit.filter(|limit| !limit.is_zero());
        container
    };
    let containers: Vec<_> = limits.iter().enumerate().map(limited).collect();
    let mut sim = Sim::new(pod(RestartPolicy::Always).uid("web").with(containers), |_, _| Fate::IgnoresTerm);
    sim.of(&"web".into()).usage = usage_of(used.iter().map(|mib| mib << 20).collect(), vec![volumes << 20]);
    sim.run(300);
    sim
}

#[test]
fn a_pod_that_exceeds_a_limit_of_local_storage_is_evicted() {
    let text = |limits: &[u64], used: &[u64], volumes: u64| -> String {
        let mut sim = with_usage(limits, used, volumes);
        let status = sim.status(&"web".into());
        assert_eq!(status["phase"] == "Failed", status["reason"] == "Evicted", "{status}");
        sim.replay();
        let message = status["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(message.is_empty(), !sim.events.contains(&format!("Evicted: {message}")));
        message
    };
    assert_eq!(text(&[1024, 0], &[1024, 0], 0), "");
    assert_eq!(text(&[0, 0], &[9999, 9999], 9999), "");
    let expected = "Container c0 exceeded its local ephemeral storage limit \"512Mi\". ";
    assert_eq!(text(&[512, 1024], &[513, 3], 9), expected);
    let expected = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ";
    assert_eq!(text(&[512, 512], &[500, 500], 25), expected);
    // Containers without a limit count, as with a kubelet.
    let expected = "Pod ephemeral local storage usage exceeds the total limit of containers 512Mi. ";
    assert_eq!(text(&[512, 0], &[0, 513], 0), expected);
    with_usage(&[1], &[2], 0).traces("0s c0#0 start; 30s c0#0 Term; 32s c0#0 Kill, c0#0 exits 137");
}

#[test]
fn a_resize_that_waits_is_not_lost_by_a_shutdown_that_is_cancelled() {
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    sim.want(asking("web", 300));
    let other = sim.want(asking("other", 600));
    sim.run(5);
    resize(&mut sim, "web", 800);
    sim.run(6);
    let groups = ShutdownGroup::of(secs(20), secs(5));
    sim.later(secs(0), Observation::Shutdown(Shutdown { scope: ShutdownScope::Machine, groups })).run(60);
    sim.later(secs(0), Observation::ShutdownCancelled).run(100);
    assert_eq!(shown(&sim, "web"), "300m 300m Pending Deferred");
    sim.unwant(&other, None).run(160);
    assert_eq!(shown(&sim, "web"), "800m 800m");
    sim.replay();
}

/// A pod whose emptyDir volumes have these names, media and limits.
fn with_empty_dirs(volumes: &[(&str, bool, &str)]) -> Pod {
    let volume = |(name, memory, limit): &(&str, bool, &str)| {
        let source = VolumeSource::EmptyDir { memory: *memory, size_limit: Quantity::parse(limit).ok() };
        Volume { name: (*name).into(), source }
    };
    let mut pod = pod(RestartPolicy::Always).uid("web");
    pod.spec.volumes = volumes.iter().map(volume).collect();
    pod
}

#[test]
fn a_pod_whose_empty_dir_exceeds_its_limit_is_evicted_once_with_the_shortest_grace_period() {
    let volumes =
        [("memory", true, "1"), ("all", false, ""), ("logs", false, "3Mi"), ("cache", false, "1Mi")];
    let mut sim = Sim::new(with_empty_dirs(&volumes), |_, _| Fate::IgnoresTerm);
    let limit = 1 << 20;
    sim.of(&"web".into()).usage = usage_of(vec![u64::MAX], vec![9 * limit, 9 * limit, 3 * limit, limit]);
    sim.run(300);
    assert_eq!(sim.status(&"web".into())["phase"], "Running", "at their limits");
    sim.of(&"web".into()).usage.volumes[3] += 1;
    sim.run(600);
    let message = "Usage of EmptyDir volume \"cache\" exceeds the limit \"1Mi\". ";
    // 30 s after the start, and then each minute.
    sim.traces("0s app#0 start; 330s app#0 Term; 332s app#0 Kill, app#0 exits 137");
    assert_eq!(sim.log.matches("measure LimitedVolumes").count(), 6, "{}", sim.log);
    let status = sim.status(&"web".into());
    assert_eq!(json!([status["phase"], status["reason"]]), json!(["Failed", "Evicted"]));
    assert_eq!(status["message"], message);
    assert_eq!(sim.events.iter().filter(|event| **event == format!("Evicted: {message}")).count(), 1);
    sim.replay();
}

#[test]
fn an_empty_dir_of_a_pod_with_a_limit_of_local_storage_is_measured_with_it_and_named_first() {
    let mut web = with_empty_dirs(&[("cache", false, "1Mi")]);
    web.spec.containers[0].resources.ephemeral_storage_limit = Quantity::parse("2Mi").ok();
    let mut sim = Sim::new(web, |_, _| Fate::Runs);
    sim.run(59);
    sim.of(&"web".into()).usage = usage_of(vec![0], vec![9 << 20]);
    sim.run(70);
    assert_eq!(sim.log.matches("measure Pod").count(), 2, "{}", sim.log);
    let message = "Usage of EmptyDir volume \"cache\" exceeds the limit \"1Mi\". ";
    assert_eq!(sim.status(&"web".into())["message"], message);
}

#[test]
fn no_emptydir_of_a_critical_pod_or_of_one_without_processes_is_measured() {
    let measured = |pod: Pod, fate: Fate| {
        let mut sim = Sim::new(pod, move |_, _| fate.clone());
        sim.of(&"web".into()).usage = usage_of(vec![0], vec![9 << 20]);
        sim.run(300);
        (sim.log.matches("measure").count(), sim.status(&"web".into())["phase"].clone())
    };
    let web = || with_empty_dirs(&[("cache", false, "1Mi")]);
    let critical = Pod { priority: 2_000_000_000, ..web() };
    assert_eq!(measured(critical, Fate::Runs), (0, "Running".into()));
    assert_eq!(measured(with_empty_dirs(&[("cache", true, "1Mi")]), Fate::Runs), (0, "Running".into()));
    let mut once = web();
    once.spec.restart_policy = RestartPolicy::Never;
    assert_eq!(measured(once, Fate::Exits(0, secs(20))), (0, "Succeeded".into()));
    // A measurement that the core did not ask for.
    let mut sim = Sim::new(web(), |_, _| Fate::Runs);
    sim.run(5);
    let index = sim.node.index_of(&"web".into()).expect("it is here");
    let seen = PodObservation::StorageMeasured(Box::new(StorageUsage {
        containers: vec![0],
        volumes: vec![9 << 20],
    }));
    sim.later(secs(0), Observation::Of(index, seen)).run(100);
    assert_eq!(sim.status(&"web".into())["phase"], "Running");
}

#[test]
fn a_container_at_its_limit_of_local_storage_stays_and_the_total_is_printed_as_its_limits_are() {
    let message = |limits: &[u64], used: &[u64], volumes: u64| {
        let sim = with_usage(limits, used, volumes);
        sim.status(&"web".into())["message"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(message(&[512, 1024], &[512, 1024], 0), "");
    assert_eq!(message(&[512, 1024], &[512, 1023], 1), "");
    let total = "Pod ephemeral local storage usage exceeds the total limit of containers 1536Mi. ";
    assert_eq!(message(&[512, 1024], &[512, 1024], 1), total);
}

#[test]
fn no_resize_is_decided_while_the_machine_shuts_down() {
    let fate = |name: &str, _| if name == "slow" { Fate::IgnoresTerm } else { Fate::Runs };
    let mut sim = Sim::empty(fate).on(small(1000));
    let mut web = asking("web", 300);
    web.priority = 2_000_000_000;
    sim.want(web);
    sim.want(asking("other", 600));
    let mut slow = asking("slow", 50);
    slow.spec.containers[0].name = "slow".into();
    sim.want(slow);
    sim.run(5);
    resize(&mut sim, "web", 800);
    sim.run(6);
    let groups = ShutdownGroup::of(secs(20), secs(5));
    sim.later(secs(0), Observation::Shutdown(Shutdown { scope: ShutdownScope::Machine, groups })).run(12);
    // The other pod has made room, and the last of the first group keeps the next one from ending.
    let [other, slow, web] = ["other", "slow", "web"].map(|name| sim.alive(&name.into(), 0));
    assert!(other.is_none() && slow.is_some() && web.is_some(), "{}", sim.log);
    assert_eq!(shown(&sim, "web"), "300m 300m Pending Deferred");
}

#[test]
fn a_resize_to_the_last_free_amount_is_carried_out() {
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    sim.want(asking("web", 300));
    sim.run(5);
    resize(&mut sim, "web", 1000);
    sim.run(6);
    assert_eq!(shown(&sim, "web"), "1 1");
    resize(&mut sim, "web", 600);
    sim.run(7);
    sim.want(asking("other", 100));
    sim.run(8);
    resize(&mut sim, "other", 401);
    sim.run(9);
    assert_eq!(shown(&sim, "other"), "100m 100m Pending Deferred");
    resize(&mut sim, "other", 400);
    sim.run(10);
    assert_eq!(shown(&sim, "other"), "400m 400m");
}

#[test]
fn the_status_of_a_pod_shows_the_amounts_of_the_pod_as_a_whole_while_they_are_resized() {
    let of_pod = |cpu: i64| {
        let cpu_request = milli(cpu);
        Some(std::rc::Rc::new(crate::spec::ResourceRequirements { cpu_request, ..Default::default() }))
    };
    let mut sim = Sim::empty(|_, _| Fate::Runs).on(small(1000));
    let mut web = asking("web", 100);
    web.spec.resources = of_pod(300);
    sim.want(web);
    sim.want(asking("plain", 100));
    sim.run(5);
    let shown = |sim: &Sim| {
        let status = sim.status(&"web".into());
        format!("{} {}", status["allocatedResources"]["cpu"], status["resources"]["requests"]["cpu"])
    };
    assert_eq!(shown(&sim), r#""300m" "300m""#);
    sim.update(&"web".into(), |pod| pod.spec.resources = of_pod(600)).run(6);
    assert_eq!(shown(&sim), r#""600m" "600m""#);
    // More than is free changes nothing.
    sim.update(&"web".into(), |pod| pod.spec.resources = of_pod(950)).run(7);
    assert_eq!(shown(&sim), r#""600m" "600m""#);
    assert_eq!(sim.status(&"plain".into()).get("resources"), None);
    assert_eq!(sim.trace.matches("start").count(), 2, "nothing is restarted: {}", sim.trace);
    sim.replay();
}
