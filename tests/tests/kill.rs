//! The agent is killed before its n-th step, and the next one continues: no container stops, restarts, runs twice or is
//! lost. `cargo xtask long kills` tests every n, `cargo xtask check` some: `NODLET_SEED` chooses them.

use std::fs;
use std::path::Path;

use nodlet_tests::{AgentSteps, Device, manifest, seed, shard};

/// More steps than the scenario below has, even on a slow machine, on which probes continue meanwhile.
const MOST: u64 = 4_000;

/// A container that holds a lock during its life, so that a second one at the same time is detected, and that
/// records each of its runs with `word`.
fn locked(name: &str, word: &str, steps: &str, more: &str) -> String {
    manifest::container(
        name,
        &format!("lock /one/{name} then append /one/{name}-starts {word} then {steps}"),
        &format!("{more}volumeMounts: [{{name: one, mountPath: /one}}]"),
    )
}

/// A pod of two containers, with probes of every kind and method.
fn web(shared: &str, word: &str) -> String {
    let probes = "startupProbe: {exec: {command: [/bin/demo, stat, /one]}, periodSeconds: 1, timeoutSeconds: 20}\n\
                  readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, timeoutSeconds: 20}\n\
                  livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 20}\n";
    let app = format!("print {word} then serve 8080 /one");
    manifest::pod_of(
        "web",
        &[locked("app", word, &app, probes), locked("beside", word, &format!("print {word} then sleep"), "")],
        &manifest::host_path("one", shared),
    )
}

/// Runs three pods, of which one is replaced, one ends by itself and all are finally removed, with an agent
/// that is killed before this step and restarted. Returns the number of steps of the first agent, or `None` if it was
/// killed.
fn live(kill_before: Option<u64>) -> Option<u64> {
    let mut device = Device::new();
    device.start_agent_with_demo();
    device.stop_agent();
    let revive = |device: &mut Device| {
        if device.agent_is_dead() {
            device.start_agent();
        }
    };
    let (shared, here) = device.shared("one");
    let volumes = manifest::host_path("one", &shared);
    device.write_manifest("web.yaml", &web(&shared, "old"));
    let tick = locked("tick", "run", "print tick 0.05", "");
    device.run_pod_of("tick", &[tick], &volumes);
    let job = locked("job", "run", "print begun then exit 3 0.5", "");
    device.run_pod_of("job", &[job], &format!("restartPolicy: Never\n{volumes}"));
    device.launch_agent();
    let steps = AgentSteps::follow(device.agent_pid(), kill_before);
    device.wait_reviving("all pods to be where they stay", &revive, |device| {
        device.pod("web").is_ready()
            && device.pod("job").phase() == "Failed"
            && device.pod("tick").logs("tick").lines().count() > 20
    });
    device.write_manifest("web.yaml", &web(&shared, "new"));
    device.wait_reviving("the new pod to be ready", &revive, |device| {
        let web = device.pod("web");
        web.is_ready() && web.logs("app").starts_with("new\n") && web.logs("beside") == "new\n"
    });
    let what =
        || format!("killed before step {} of {kill_before:?}, {:?}", steps.made(), steps.killed_before());
    device.wait_reviving("the API", &revive, |device| check(device, &here, &what()).is_some());
    for file in ["web.yaml", "tick.yaml", "job.yaml"] {
        device.remove_manifest(file);
    }
    device.wait_reviving("all pods to be gone", &revive, |device| {
        device.get("/api/v1/pods").is_ok_and(|list| list["items"].as_array().is_some_and(Vec::is_empty))
    });
    assert!(device.container_processes().is_empty(), "{}", what());
    // An agent that finds only the logs of a pod shows no pod, and removes the logs.
    device.wait_for("no logs to be left", || {
        fs::read_dir(device.path("/var/log/pods")).expect("it is there").count() == 0
    });
    for name in ["app", "beside", "tick", "job"] {
        assert!(!here.join(format!("{name}.twice")).exists(), "{}: two of {name} at once", what());
    }
    // This includes the steps of the removal.
    steps.killed_before().is_none().then(|| steps.made())
}

/// Checks what must hold before everything is removed. Returns `None` if the agent died meanwhile.
fn check(device: &Device, here: &Path, what: &str) -> Option<()> {
    let pods = device.get("/api/v1/namespaces/default/pods").ok()?;
    let container = |pod: &str, name: &str| {
        let pods = pods["items"].as_array().expect("a list has items");
        let pod = pods.iter().find(|object| object["metadata"]["name"] == pod).expect("it is there");
        let containers = pod["status"]["containerStatuses"].as_array().expect("it has a status");
        containers.iter().find(|status| status["name"] == name).expect("it has one").clone()
    };
    let ticks = device.nodlet(["logs", "tick"]);
    let begun = device.nodlet(["logs", "job"]);
    if ticks.code != 0 || begun.code != 0 {
        return None;
    }
    for (pod, name, starts) in [
        ("web", "app", "old\nnew\n"),
        ("web", "beside", "old\nnew\n"),
        ("tick", "tick", "run\n"),
        ("job", "job", "run\n"),
    ] {
        assert_eq!(container(pod, name)["restartCount"], 0, "{what}: {name}");
        let noted = fs::read_to_string(here.join(format!("{name}-starts"))).expect("it ran");
        assert_eq!(noted, starts, "{what}: {name}");
    }
    let ended = &container("job", "job")["state"]["terminated"];
    assert_eq!((&ended["exitCode"], &ended["reason"]), (&3.into(), &"Error".into()), "{what}");
    assert_eq!(begun.stdout, "begun\n", "{what}");
    for (number, line) in ticks.stdout.lines().enumerate() {
        assert_eq!(line, format!("tick {number}"), "{what}: a line of the log is lost or there twice");
    }
    Some(())
}

#[test]
#[ignore = "takes long: cargo xtask long kills"]
fn killed_before_any_step_no_container_stops_runs_twice_or_loses_a_thing() {
    let (part, of) = shard();
    let (part, of) = (part as u64, of as u64);
    // As many scenarios at once as the machine can handle.
    let next = std::sync::atomic::AtomicU64::new(part);
    let (covered, end) = (std::sync::atomic::AtomicU64::new(0), std::sync::atomic::AtomicU64::new(MOST));
    let order = std::sync::atomic::Ordering::SeqCst;
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |count| count.get() + 1) {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(of, order);
                    if n >= end.load(order) {
                        return;
                    }
                    if live(Some(n)).is_some() {
                        end.fetch_min(n, order);
                    } else {
                        covered.fetch_add(1, order);
                    }
                }
            });
        }
    });
    let end = end.load(order);
    // The cases of this part, without those that were started at the same time as the first agent that
    // survived.
    let all = (end - part).div_ceil(of);
    println!("killed before {} of {all} steps", covered.load(order).min(all));
    assert!(end < MOST, "{MOST} steps are not enough for these pods");
    assert!(all * of > 20 && covered.load(order) >= all, "is the agent killed?");
}

#[test]
fn killed_before_some_steps_no_container_stops_runs_twice_or_loses_a_thing() {
    let mut seed = seed();
    let steps = live(None).expect("nothing kills it");
    let chosen: Vec<u64> = (0..3).map(|_| 1 + seed.number() % steps).collect();
    let died = chosen.iter().filter(|n| live(Some(**n)).is_none()).count();
    println!("killed before {died} of {chosen:?}, out of {steps} steps");
    assert!(steps > 20 && died > 0, "is the agent killed?");
}

/// Tests that two holders of one lock are detected, on which all tests of this file and of `steps.rs` depend.
#[test]
fn two_running_instances_of_one_container_would_be_detected() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let spec = format!("restartPolicy: Never\n{}", manifest::host_path("one", shared));
    let pod = |name: &str| manifest::pod_of(name, &[locked("app", "run", "print up then sleep", "")], &spec);
    device.write_pod("first", &pod("first")).wait_log("app", "up");
    assert!(!here.join("app.twice").exists());
    device.write_pod("second", &pod("second")).wait_phase("Failed");
    assert!(here.join("app.twice").exists());
    assert_eq!(fs::read_to_string(here.join("app-starts")).expect("it ran"), "run\n");
    assert!(device.pod("first").is_ready());
}

#[test]
fn a_node_that_was_renamed_keeps_its_pods() {
    let mut device = Device::start();
    device.apply(&manifest::pod("web", "sleep"));
    device.pod("web").wait_ready();
    let (born, uid) = (device.pod("web").born("app"), device.pod("web").uid());

    device.kill_agent();
    device.agent_arguments(["--node-name", "renamed"]);
    device.start_agent();
    device.pod("web").wait_ready();
    let object = device.pod("web").object().expect("it is there");
    assert_eq!(object["spec"]["nodeName"], "renamed");
    assert_eq!((device.pod("web").born("app"), device.pod("web").uid()), (born, uid));
    assert_eq!(device.pod("web").container("app").restart_count(), 0);
    let events = device.pod("web").events();
    assert!(!events.iter().any(|event| event.starts_with("FailedValidation")), "{events:?}");

    // After a rename of the node, its applied pods still belong to it.
    assert_eq!(device.nodlet(["down"]).code, 0);
    device.agent_ended();
    device.start_agent();
    device.pod("web").wait_ready();
}
