//! Random timelines, which the world in `sim.rs` checks.
//!
//! A failure prints its seed. `NODLET_SEED=42 NODLET_ROUNDS=1 cargo test -p nodlet-core --lib sim::seeds`
//! runs that seed alone, `cargo xtask long stories` runs many.

use std::panic::catch_unwind;
use std::rc::Rc;
use std::time::Duration;

use nodlet_fuzz::setting;

use super::devices::with_devices;
use super::objects::with_references;
use super::resize::some_resize;
use super::*;
use crate::facts::*;
use crate::pod::PodState;
use crate::pressure::StarvedResource;
use crate::spec::pod::CRITICAL;
use crate::spec::*;

/// Runs one story for each seed, within seconds; `check` sets a random `NODLET_SEED`.
fn for_each_seed(story: fn(u64)) {
    let (first, rounds) = (setting("NODLET_SEED", 0), setting("NODLET_ROUNDS", 400));
    println!("seeds {first} to {}", first.saturating_add(rounds));
    for seed in first..first.saturating_add(rounds) {
        if catch_unwind(|| story(seed)).is_err() {
            panic!("NODLET_SEED={seed} NODLET_ROUNDS=1 runs this story alone");
        }
    }
}

fn fate_of(seed: u64, name: &str, number: u32) -> Fate {
    let salt = name.bytes().fold(u64::from(number), |salt, byte| salt * 31 + u64::from(byte));
    let mut chance = Chance(seed.wrapping_mul(1_000_003) ^ salt);
    let after = Duration::from_millis(chance.below(90_000));
    // An init container that never ends would block its pod for ever, even after the world has healed.
    let kind = if name.starts_with('i') { 4 + chance.below(8) } else { chance.below(12) };
    match kind {
        0..3 => Fate::Runs,
        3 => Fate::IgnoresTerm,
        4..6 => Fate::Exits(0, after),
        6..8 => Fate::Exits(1, after),
        8 => Fate::OutOfMemory(after),
        9 => Fate::FailsToStart(StartFailureReason::CreateContainerError),
        10 => Fate::FailsToStart(StartFailureReason::ErrImagePull),
        11 if chance.percent(30) => Fate::HangsAtStart,
        _ => Fate::FailsToStart(StartFailureReason::RunContainerError),
    }
}

fn some_probe(chance: &mut Chance) -> Option<Probe> {
    let mut probe = exec_probe();
    probe.period = secs(2 + chance.below(40));
    probe.initial_delay = secs(chance.below(5));
    probe.failure_threshold = 1 + chance.below(3) as u32;
    probe.termination_grace_period = chance.percent(30).then_some(secs(1 + chance.below(10)));
    if chance.percent(40) {
        probe.action = ProbeAction::TcpSocket { host: None, port: crate::spec::probe::PortOrName::Port(80) };
    }
    chance.percent(30).then_some(probe)
}

fn some_gates(chance: &mut Chance) -> Vec<String> {
    let count = if chance.percent(25) { 1 + chance.below(2) } else { 0 };
    (0..count).map(|number| format!("gate{number}")).collect()
}

/// Random conditions that a client may set.
fn some_conditions(chance: &mut Chance) -> Vec<ClientCondition> {
    let condition = |number: u64, chance: &mut Chance| ClientCondition {
        kind: format!("gate{number}"),
        status: ["True", "True", "False", "Unknown"][chance.below(4) as usize].into(),
        ..ClientCondition::default()
    };
    (0..chance.below(3)).map(|number| condition(number, chance)).collect()
}

fn some_hook(chance: &mut Chance) -> Option<Hook> {
    let hook = match chance.below(8) {
        0 => Hook::Sleeps(secs(chance.below(30))),
        1 => {
            let port = crate::spec::probe::PortOrName::Port(80);
            Hook::Asks(ProbeAction::TcpSocket { host: None, port })
        }
        _ => Hook::Asks(ProbeAction::Exec(vec!["true".into()])),
    };
    chance.percent(25).then_some(hook)
}

/// A random lifecycle. No postStart hook always fails, so that a container that always runs can start in the
/// end.
fn some_lifecycle(chance: &mut Chance) -> Lifecycle {
    let never_works = |hook: &Hook| matches!(hook, Hook::Asks(ProbeAction::TcpSocket { .. }));
    Lifecycle {
        post_start: some_hook(chance).filter(|hook| !never_works(hook)),
        pre_stop: some_hook(chance),
        stop_signal: None,
    }
}

fn hook_fate_of(seed: u64, name: &str, kind: HookKind, number: u32) -> HookFate {
    let salt =
        name.bytes().fold(u64::from(number) * 2 + kind as u64, |salt, byte| salt * 31 + u64::from(byte));
    let mut chance = Chance(seed.wrapping_mul(7_000_003) ^ salt);
    let after = Duration::from_millis([0, 50, 5_000, 70_000][chance.below(4) as usize]);
    match chance.below(6) {
        0 if kind == HookKind::PreStop => HookFate::Hangs,
        0 | 1 => HookFate::Fails(after),
        _ => HookFate::Succeeds(after),
    }
}

/// A random restart policy. No rule matches exit code 0, or a world without failures would not come to rest.
fn some_own_restart(chance: &mut Chance) -> Option<Rc<OwnRestart>> {
    let policy =
        [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never][chance.below(3) as usize];
    let actions = [RestartAction::Restart, RestartAction::RestartAllContainers];
    let rules = (0..chance.below(3)).map(|number| RestartRule {
        action: actions[chance.below(2) as usize],
        within: true,
        codes: vec![1 + number as i32],
    });
    let own = OwnRestart { policy, rules: rules.collect() };
    chance.percent(25).then(|| Rc::new(own))
}

fn some_pod(chance: &mut Chance, uid: &str) -> Pod {
    let policy = match chance.below(3) {
        0 => RestartPolicy::Always,
        1 => RestartPolicy::OnFailure,
        _ => RestartPolicy::Never,
    };
    let containers = (0..1 + chance.below(3)).map(|number| {
        let mut container = container(&format!("c{number}"));
        container.liveness_probe = some_probe(chance);
        container.readiness_probe = some_probe(chance);
        container.startup_probe = some_probe(chance);
        container.lifecycle = some_lifecycle(chance);
        container.restart = some_own_restart(chance);
        container
    });
    let containers: Vec<_> = containers.collect();
    let init = (0..if chance.percent(60) { chance.below(4) } else { 0 }).map(|number| {
        if chance.percent(50) {
            return Container { restart: some_own_restart(chance), ..container(&format!("i{number}")) };
        }
        let mut container = sidecar(&format!("s{number}"));
        container.liveness_probe = some_probe(chance);
        container.readiness_probe = some_probe(chance);
        container.startup_probe = some_probe(chance);
        container.lifecycle = some_lifecycle(chance);
        container
    });
    let init: Vec<_> = init.collect();
    let mut pod = pod(policy).uid(uid).with(containers).init(init);
    pod.name = if chance.percent(50) { "web".into() } else { uid.into() };
    pod.spec.termination_grace_period = secs(1 + chance.below(40));
    pod.priority = [0, 0, 100, CRITICAL][chance.below(4) as usize];
    pod.spec.scheduling_gates = some_gates(chance);
    pod.spec.readiness_gates = some_gates(chance);
    pod.spec.active_deadline = chance.percent(10).then(|| secs(20 + chance.below(200)));
    pod
}

/// A pod with everything: init containers, sidecars, hooks at both ends, probes of each kind, restart rules,
/// gates.
fn some_whole_pod(chance: &mut Chance, uid: &str) -> Pod {
    loop {
        let pod = some_pod(chance, uid);
        let spec = &pod.spec;
        let any = |has: fn(&Container) -> bool| spec.all_containers().any(has);
        let is_whole = spec.init_containers.iter().any(|one| one.sidecar)
            && spec.init_containers.iter().any(|one| !one.sidecar)
            && any(|one| one.lifecycle.post_start.is_some())
            && any(|one| one.lifecycle.pre_stop.is_some())
            && any(|one| one.liveness_probe.is_some())
            && any(|one| one.readiness_probe.is_some())
            && any(|one| one.startup_probe.is_some())
            && any(|one| one.restart.is_some())
            && !(spec.readiness_gates.is_empty() && spec.scheduling_gates.is_empty());
        if is_whole {
            return pod;
        }
    }
}

/// Makes a random change in place: mostly of an image, sometimes of all images at once.
fn some_update(chance: &mut Chance, pod: &mut Pod) {
    let all = chance.percent(20);
    for container in pod.spec.init_containers.iter_mut().chain(&mut pod.spec.containers) {
        if all || chance.percent(40) {
            container.image = format!("app:{}", chance.below(3));
        }
    }
    if chance.percent(20) {
        pod.labels.insert("a".into(), chance.below(3).to_string());
    }
    if chance.percent(10) {
        let deadline = secs(20 + chance.below(200));
        let earlier = pod.spec.active_deadline.map_or(deadline, |earlier| earlier.min(deadline));
        pod.spec.active_deadline = Some(earlier);
    }
}

/// Shuts down the machine, and sometimes cancels the shutdown.
fn shut_down(sim: &mut Sim, chance: &mut Chance, now: &mut Duration) {
    let groups = ShutdownGroup::of(secs(chance.below(40)), secs(chance.below(10)));
    sim.later(secs(0), Observation::Shutdown(Shutdown { scope: ShutdownScope::Machine, groups }));
    *now += Duration::from_millis(chance.below(60_000));
    sim.run_until(*now);
    match chance.below(4) {
        0 => _ = sim.later(secs(0), Observation::ShutdownCancelled),
        1 => {
            sim.want(pod(RestartPolicy::Always).uid("late").named("late"));
            sim.run_until(*now + secs(1));
            sim.reboot();
        }
        _ => _ = sim.reboot(),
    }
}

/// Adds random requests and a random priority.
fn with_requests(mut pod: Pod, chance: &mut Chance) -> Pod {
    for container in pod.spec.containers.iter_mut().chain(&mut pod.spec.init_containers) {
        let some = |chance: &mut Chance| Some(Quantity::from_milli(chance.below(500).into()));
        container.resources.cpu_request = some(chance).filter(|_| chance.percent(60));
        container.resources.memory_request = some(chance).filter(|_| chance.percent(40));
        if pod.spec.restart_policy != RestartPolicy::Never {
            container.resources.cpu_resize_restarts = chance.percent(20);
            container.resources.memory_resize_restarts = chance.percent(20);
        }
        if chance.percent(5) {
            container.resources.ephemeral_storage_limit = some(chance);
        }
        if chance.percent(30) {
            container.resources.cpu_limit.clone_from(&container.resources.cpu_request);
            container.resources.memory_limit.clone_from(&container.resources.memory_request);
        }
    }
    if chance.percent(10) {
        let size_limit = Some(Quantity::from_milli(chance.below(2000).into()));
        let source = VolumeSource::EmptyDir { memory: chance.percent(20), size_limit };
        pod.spec.volumes.push(Volume { name: "scratch".into(), source });
    }
    pod.priority = [0, 0, 1000, 2_000_000_000, 2_000_001_000][chance.below(5) as usize];
    pod
}

/// Runs a random story of a node: pods are added and removed, operations fail, the agent dies and power is
/// cut.
fn a_life(seed: u64, failures: u64, interruptions: bool) {
    let mut chance = Chance(seed);
    let uids: Vec<Uid> =
        (0..1 + chance.below(4)).map(|number| Uid::from(format!("u{number}").as_str())).collect();
    let pods = uids.iter().map(|uid| some_pod(&mut chance, &uid.0)).collect();
    live(seed, chance, failures, interruptions, pods, 14);
}

/// Runs a random story with these pods, of at most `steps` steps.
fn live(seed: u64, mut chance: Chance, failures: u64, interruptions: bool, pods: Vec<Pod>, steps: u64) {
    let uids: Vec<Uid> = pods.iter().map(|pod| pod.uid.clone()).collect();
    let sim = Sim::empty(move |name, number| fate_of(seed, name, number)).probes(move |name, kind, age| {
        let salt = name.len() as u64 + kind as u64 * 7 + age.as_secs() / 20;
        match Chance(seed ^ (salt << 20)).below(10) {
            0..7 => ProbeResult::Success,
            7 => ProbeResult::Error("no".into()),
            _ => ProbeResult::Failure("no".into()),
        }
    });
    let mut sim = sim.hooks(move |name, kind, number| hook_fate_of(seed, name, kind, number));
    sim.chance = Chance(seed ^ 0xabcd);
    let mut of_room = Chance(seed ^ 0x5117);
    if of_room.percent(60) {
        let most = Amounts { pods: 1 + of_room.below(4) as i64, cpu: 1500, memory: 1, ephemeral_storage: 0 };
        sim = sim.on(NodeInfo { allocatable: most, ..NodeInfo::default() });
    }
    let latency = Duration::from_millis([0, 10, 2_000][chance.below(3) as usize]);
    sim.weather = Weather { latency, failures, remains: 50, repeats: 20 };
    let pods: Vec<Pod> = pods.into_iter().map(|pod| with_requests(pod, &mut of_room)).collect();
    let mut of_resizes = Chance(seed ^ 0x9e51);
    let mut of_restarts = Chance(seed ^ 0x4e57);
    let mut of_pressure = Chance(seed ^ 0xd15c);
    let mut of_objects = Chance(seed ^ 0x0b9e);
    let pods: Vec<Pod> = pods.into_iter().map(|pod| with_references(pod, &mut of_objects)).collect();
    let mut of_registry = Chance(seed ^ 0x4e61);
    if of_registry.percent(50) {
        let pull = |_| if of_registry.percent(60) { Ok(" in 1s.") } else { Err("no route") };
        sim.registry = Some((0..60).map(pull).collect());
    }
    for _ in 0..of_objects.below(4) {
        sim.change_some_object(&mut of_objects);
    }
    let mut of_devices = Chance(seed ^ 0xde71);
    let has_devices = of_devices.percent(50);
    let pods: Vec<Pod> = if has_devices {
        pods.into_iter().map(|pod| with_devices(pod, &mut of_devices)).collect()
    } else {
        pods
    };
    if has_devices {
        sim.define_devices();
        for _ in 0..of_devices.below(4) {
            sim.change_some_device(&mut of_devices);
        }
    }
    sim.want(pods[0].clone());
    let mut now = Duration::ZERO;
    for _ in 0..chance.below(steps) {
        now += Duration::from_millis(chance.below(60_000));
        sim.run_until(now);
        if of_objects.percent(30) {
            sim.change_some_object(&mut of_objects);
        }
        if has_devices && of_devices.percent(50) {
            sim.change_some_device(&mut of_devices);
        }
        if of_resizes.percent(40) {
            let which = of_resizes.below(uids.len() as u64) as usize;
            if sim.pods.iter().any(|world| world.pod.uid == uids[which]) {
                sim.update(&uids[which], |pod| some_resize(&mut of_resizes, pod));
                let used = of_resizes.below(2);
                sim.of(&uids[which]).usage = StorageUsage { containers: vec![used], volumes: vec![used] };
                sim.run_until(now);
            }
        }
        if of_restarts.percent(10) {
            let which = of_restarts.below(uids.len() as u64) as usize;
            if sim.pods.iter().any(|world| world.pod.uid == uids[which]) {
                sim.restart(&uids[which], of_restarts.percent(30).then_some("app"));
                sim.run_until(now);
            }
        }
        if of_pressure.percent(10) {
            sim.is_disk_full = of_pressure.percent(30);
            for _ in 0..1 + of_pressure.below(3) {
                let starved = Starved { measured_at: sim.now, ..some_shortage(&mut of_pressure) };
                sim.later(secs(0), Observation::Starved(Box::new(starved)));
                now += Duration::from_millis(of_pressure.below(5_000));
                sim.run_until(now);
            }
        }
        let which = chance.below(uids.len() as u64) as usize;
        let known = sim.pods.iter().find(|world| world.pod.uid == uids[which]).map(|world| world.wanted);
        match chance.below(20) {
            0..4 if known != Some(true) => {
                let here = sim.pods.iter().find(|world| world.pod.uid == uids[which]);
                let pod = here.map_or(pods[which].clone(), |world| (*world.pod).clone());
                sim.want(pod);
            }
            0..4 => {
                let grace = chance.percent(50).then(|| secs(chance.below(40)));
                sim.unwant(&uids[which], grace);
            }
            4 if known == Some(true) && chance.percent(50) => {
                sim.delete_by_force(&uids[which]);
                // The next agent has to know of the deletion while the pod still ends.
                if interruptions && chance.percent(40) {
                    sim.restart_agent();
                }
            }
            4 if known == Some(false) => _ = sim.unwant(&uids[which], Some(secs(chance.below(5)))),
            5 if known.is_some() => {
                sim.lose_sandbox(&uids[which]);
                // The loss may not have been reported to the agent.
                if interruptions && chance.percent(40) {
                    sim.restart_agent();
                }
            }
            6 => _ = sim.later(secs(0), Observation::ImagesChanged),
            7 if interruptions => _ = sim.restart_agent(),
            8 if interruptions => _ = sim.reboot(),
            9 => _ = sim.later(secs(1), outdated_observation(&mut chance)),
            10 => sim.relabel(&uids[which], chance.below(1000)),
            11 => _ = sim.set_client_conditions(&uids[which], some_conditions(&mut chance)),
            12 | 13 => _ = sim.ungate(&uids[which]),
            14 | 15 if known.is_some() => {
                let count = sim.of(&uids[which]).pod.spec.ephemeral_containers.len();
                sim.debug(&uids[which], container(&format!("e{count}")));
            }
            16..19 if known == Some(true) => {
                // Some images are named before they are loaded, and some are removed.
                if chance.percent(30) {
                    sim.absent.insert(format!("app:{}", chance.below(3)));
                }
                if chance.percent(30) {
                    sim.absent.clear();
                    sim.later(secs(0), Observation::ImagesChanged);
                }
                sim.update(&uids[which], |pod| some_update(&mut chance, pod));
            }
            19 if interruptions => shut_down(&mut sim, &mut chance, &mut now),
            _ => {}
        }
    }
    // The world heals, and the wanted pods have to run in the end.
    sim.weather = Weather::default();
    sim.is_disk_full = false;
    sim.absent.clear();
    sim.fates(|name, _| if name.starts_with('i') { Fate::Exits(0, secs(1)) } else { Fate::Runs });
    let mut sim =
        sim.probes(|_, _, _| ProbeResult::Success).hooks(|_, _, _| HookFate::Succeeds(Duration::ZERO));
    for uid in &uids {
        sim.ungate(uid);
    }
    sim.run_until(now + secs(100));
    sim.create_all_objects();
    sim.plug_all_devices();
    sim.run_until(now + secs(700));
    for uid in uids {
        in_the_end(&mut sim, &uid);
    }
    sim.replay();
}

/// Too little of a resource, of which the usage of no pod is known.
fn some_shortage(chance: &mut Chance) -> Starved {
    let resources = [StarvedResource::EphemeralStorage, StarvedResource::Inodes, StarvedResource::Memory];
    Starved {
        resource: resources[chance.below(3) as usize],
        threshold: 2,
        available: 1,
        measured_at: at(0),
        usage: Vec::new(),
    }
}

fn outdated_observation(chance: &mut Chance) -> Observation {
    let attempt = Attempt { container: ContainerIndex(chance.below(4) as u8), number: 900 };
    let index = PodIndex(chance.below(6) as u32);
    let exit = Exit {
        code: 1,
        oom_killed: false,
        unknown: false,
        message: "".into(),
        started_at: crate::time::Moment::ThisBoot(at(0)),
        finished_at: crate::time::Moment::ThisBoot(at(0)),
    };
    let seen = match chance.below(4) {
        2 => PodObservation::Hooked { attempt, kind: HookKind::PostStart, failure: Some("".into()) },
        0 => PodObservation::Exited { attempt, exit: Box::new(exit) },
        1 => PodObservation::Saved { generation: 900 },
        _ => PodObservation::Probed {
            attempt,
            kind: ProbeKind::Liveness,
            result: ProbeResult::Failure("".into()),
        },
    };
    Observation::Of(if chance.percent(50) { index } else { PodIndex(900) }, seen)
}

fn in_the_end(sim: &mut Sim, uid: &Uid) {
    let Some(world) = sim.pods.iter().find(|world| world.pod.uid == *uid).cloned() else { return };
    if !world.wanted {
        assert!(sim.is_gone(uid) && !world.volumes, "{uid} is not gone\n{}", sim.log);
        return;
    }
    // A rejected pod stays rejected, without container statuses.
    if sim.node.index_of(uid).and_then(|index| sim.node.pod(index)).is_some_and(PodState::is_rejected) {
        assert!(world.begun.iter().all(Vec::is_empty), "{uid} was rejected, and began\n{}", sim.log);
        assert_eq!(sim.status(uid)["phase"], "Failed");
        return;
    }
    sim.check_volumes(&world);
    sim.check_resized(&world);
    let rivals = sim.pods.iter().filter(|other| other.wanted && other.pod.name == world.pod.name).count();
    let status = sim.status(uid);
    let phase = status["phase"].as_str().unwrap_or_default();
    let over = phase == "Succeeded" || phase == "Failed";
    assert_eq!(over, world.shown_terminal.is_some(), "{uid} is {phase}");
    assert!(!over || !world.volumes, "{uid} is over, and has its volumes\n{}", sim.log);
    for index in world.pod.spec.container_indexes() {
        let (spec, role) = (world.pod.spec.container(index), world.pod.spec.role(index));
        let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
        let shown = lists
            .iter()
            .filter_map(|list| status[*list].as_array())
            .flatten()
            .find(|status| status["name"] == spec.name.as_str())
            .expect("a status for each container");
        match sim.alive(uid, index.0) {
            Some(number) => {
                assert!(shown["state"]["running"].is_object(), "{uid} runs and shows {shown}");
                assert_eq!(shown["restartCount"], number, "{uid}");
                assert_eq!(shown["ready"], role != Role::Ephemeral, "{uid}: {shown}");
                if matches!(role, Role::Regular | Role::Sidecar) {
                    assert_eq!(world.image_of(index), Some(spec.image.as_str()), "{uid}\n{}", sim.log);
                }
            }
            None => {
                assert!(shown["state"]["running"].is_null(), "{uid} does not run and shows {shown}");
                let code = shown["state"]["terminated"]["exitCode"].as_i64();
                let own = spec.restart.as_ref();
                let rule = |code: i32| own.is_some_and(|own| own.action(code).is_some());
                let stopped = world.stopped.contains(&index);
                let may_be_still = over
                    || rivals > 1
                    || match (role, own.map_or(world.pod.spec.restart_policy, |own| own.policy)) {
                        (Role::Init, _) => code == Some(0),
                        // No rule applies to a kill after a failed probe.
                        (_, _) if !stopped && code.is_some_and(|code| rule(code as i32)) => false,
                        (Role::Sidecar, _) | (Role::Regular, RestartPolicy::Always) => false,
                        (Role::Regular, RestartPolicy::OnFailure) => code == Some(0),
                        (Role::Regular, RestartPolicy::Never) | (Role::Ephemeral, _) => code.is_some(),
                    };
                assert!(may_be_still, "{uid}/{} is stuck: {shown}\n{}", spec.name, sim.log);
            }
        }
    }
}

#[test]
fn whatever_happens_in_a_quiet_world_no_rule_is_broken() {
    for_each_seed(|seed| a_life(seed, 0, false));
}

#[test]
fn whatever_fails_no_rule_is_broken() {
    for_each_seed(|seed| a_life(seed, 15, false));
}

#[test]
fn whenever_the_agent_dies_or_the_power_is_cut_no_rule_is_broken() {
    for_each_seed(|seed| a_life(seed, 5, true));
}

#[test]
fn an_agent_that_dies_in_a_quiet_world_leaves_everything_in_order() {
    for_each_seed(|seed| a_life(seed, 0, true));
}

/// A story of one pod, with more features than a random pod usually has.
#[test]
fn whatever_befalls_a_pod_that_has_everything_no_rule_is_broken() {
    for_each_seed(|seed| {
        let mut chance = Chance(seed);
        let pod = some_whole_pod(&mut chance, "u0");
        live(seed, chance, seed % 3 * 5, true, vec![pod], 40);
    });
}
