//! Init containers and sidecars as real processes: the order in which they start, restart and end, and how
//! that is shown.

use std::cell::Cell;
use std::fs;

use nodlet_tests::{
    AgentSteps, Background, Device, Kubectl, RecordedDevice as Recorded, TestPod, manifest, seed,
};
use serde_json::Value;

/// A sidecar that appends its name to the story, and then executes these steps.
fn sidecar(name: &str, steps: &str, more: &str) -> String {
    Recorded::noting(name, steps, &format!("restartPolicy: Always\n{more}"))
}

/// The containers of the pod that got SIGTERM and that ended, in order, from the agent's ring.
fn ends(device: &Device, pod: &str) -> Vec<String> {
    let ring = device.nodlet(["ring"]).ok();
    let of = format!("default/{pod}/");
    let lines = ring.lines().filter_map(|line| line.split_once(&of).map(|(_, rest)| rest));
    let ends = lines.filter_map(|line| {
        let (run, what) = line.split_once(' ')?;
        let (name, _) = run.split_once('#')?;
        ["-> Terminate", "<- Exited"].iter().find(|end| what.starts_with(**end))?;
        Some(format!("{} {name}", if what.starts_with("->") { "ask" } else { "end" }))
    });
    ends.collect()
}

#[test]
fn init_containers_run_in_order_share_volumes_and_have_logs_of_their_own() {
    let device = Recorded::start();
    // The directory of the host is in one container, that of the pod in all.
    let work = manifest::mount("work");
    let both = work.replace("}]", "}, {name: one, mountPath: /one}]");
    let init = [
        manifest::container("first", "append /work/steps first then print one then wait /one/go", &both),
        manifest::container("second", "append /work/steps second then print two", &work),
    ];
    let app = manifest::container("app", "cat /work/steps then sleep", &work);
    let text = device.manifest("web", &init, &[app], "");
    let web = device.write_pod("web", &text.replace("volumes: [", "volumes: [{name: work, emptyDir: {}}, "));
    web.wait_log("first", "one");
    assert_eq!(web.row(), ("0/1".into(), "Init:0/2".into()));
    assert_eq!((web.phase().as_str(), web.condition("Initialized").as_str()), ("Pending", "False"));
    for name in ["second", "app"] {
        let waiting = web.container(name);
        assert_eq!((waiting.state(), waiting.reason().as_str()), ("waiting", "PodInitializing"));
        let refused = device.nodlet(["logs", "web", "-c", name]).refused();
        let why = format!("container \"{name}\" in pod \"web\" is waiting to start: PodInitializing");
        assert!(refused.contains(&why), "{refused}");
        let refused = web.demo(name, "id").refused();
        let why = format!("container \"{name}\" in pod \"web\" is not running");
        assert!(refused.contains(&why), "{refused}");
    }
    // A running container accepts an exec, whatever its kind.
    assert_eq!(web.demo("first", "cat /work/steps").ok(), "first\n");

    device.go();
    web.wait_ready();
    web.wait_log("app", "second");
    assert_eq!(web.logs("app"), "first\nsecond\n", "an emptyDir is that of the pod");
    assert_eq!((web.logs("first").as_str(), web.logs("second").as_str()), ("one\n", "two\n"));
    assert_eq!(web.row(), ("1/1".into(), "Running".into()));
    for name in ["first", "second"] {
        let done = web.container(name);
        assert_eq!((done.exit_code(), done.reason().as_str(), done.is_ready()), (Some(0), "Completed", true));
        assert_eq!(done.restart_count(), 0);
    }
    assert_eq!(web.condition("Initialized"), "True");
    // The object reference of an event contains the container's path in the spec.
    let events = device.get("/api/v1/namespaces/default/events").expect("there are events");
    let events = events["items"].as_array().expect("a list");
    let started = |path: &str| {
        events
            .iter()
            .any(|event| event["involvedObject"]["fieldPath"] == path && event["reason"] == "Started")
    };
    assert!(started("spec.initContainers{first}") && started("spec.containers{app}"));
    assert!(!started("spec.containers{first}"));
    // With several containers, the default is printed.
    let logs = device.nodlet(["logs", "web"]);
    assert_eq!(logs.stderr, "Defaulted container \"app\" out of: app, first (init), second (init)\n");
    device.nodlet(["logs", "web", "-c", "third"]).refused_with("container third is not valid for pod web");
}

#[test]
fn kubectl_shows_init_containers_and_sidecars_as_in_a_cluster() {
    let device = Recorded::start();
    let kubectl = Kubectl::new(&device);
    let first = Recorded::noting("first", "print one then wait /one/go", "");
    let init = [first, sidecar("proxy", "print up then sleep", "")];
    let web = device.write_recorded("web", &init, &[Recorded::noting("app", "sleep", "")], "");
    web.wait_log("first", "one");
    let line = kubectl.line("get pod web --no-headers").ok();
    assert!(line.starts_with("web   0/2   Init:0/2   0 "), "{line}");
    let refused = kubectl.line("logs web -c app").refused();
    let why = "container \"app\" in pod \"web\" is waiting to start: PodInitializing";
    assert!(refused.contains(why), "{refused}");
    device.go();
    web.wait_ready();
    let line = kubectl.line("get pod web --no-headers").ok();
    assert!(line.starts_with("web   2/2   Running   0 "), "{line}");
    assert_eq!(kubectl.line("logs web -c proxy").ok(), "up\n");
    let hint = kubectl.line("logs web").stderr;
    assert_eq!(hint, "Defaulted container \"app\" out of: app, first (init), proxy (init)\n");
    let described = kubectl.line("describe pod web").ok();
    let (_, rest) = described.split_once("Init Containers:").expect("a section");
    let (init, rest) = rest.split_once("\nContainers:").expect("another section");
    for text in ["  first:\n", "  proxy:\n", "Reason:       Completed"] {
        assert!(init.contains(text), "{text} in {described}");
    }
    assert!(rest.contains("  app:\n"), "{described}");
    assert_eq!(kubectl.line("exec web -c proxy -- /bin/demo print in").ok(), "in\n");
}

#[test]
fn an_init_container_that_fails_is_tried_again_and_holds_the_others_up() {
    let device = Recorded::start();
    let app = [Recorded::noting("app", "sleep", "")];
    let init = |steps: &str| [Recorded::noting("first", steps, "")];
    let once = device.write_recorded("once", &init("fail-once /one/mark"), &app, "");
    once.wait_ready();
    device.wait_story(&["first", "first", "app"]);
    assert_eq!(once.container("first").restart_count(), 1);
    assert_eq!(once.container("first").of_last("exitCode"), 1);
    assert_eq!(once.row().0, "1/1");

    let ever = device.write_recorded("ever", &init("exit 4"), &app, "");
    ever.wait_row("0/1", "Init:CrashLoopBackOff");
    let message = ever.container("first").message();
    let expected = "back-off 10s restarting failed container=first pod=ever_default(";
    assert!(message.starts_with(expected), "{message}");
    assert_eq!(ever.phase(), "Pending");
    assert_eq!(device.story(), ["first", "first", "app", "first", "first"]);
    device.remove_pod("ever");
}

#[test]
fn an_init_container_that_fails_ends_a_pod_that_never_restarts() {
    let device = Recorded::start();
    let first = Recorded::noting("first", "print no then exit 4", "");
    let init = [sidecar("proxy", "sleep", ""), first, Recorded::noting("second", "exit 0", "")];
    let app = [Recorded::noting("app", "exit 0", "")];
    let job = device.write_recorded("job", &init, &app, "restartPolicy: Never\n");
    job.wait_phase("Failed");
    assert_eq!(device.story(), ["proxy", "first"]);
    assert_eq!(job.row(), ("0/2".into(), "Init:Error".into()));
    assert_eq!((job.container("first").exit_code(), job.logs("first")), (Some(4), "no\n".into()));
    assert!(!job.container("proxy").is_running());
    for name in ["second", "app"] {
        assert_eq!(job.container(name).reason(), "PodInitializing");
    }
    assert!(device.container_processes().is_empty());
}

#[test]
fn a_sidecar_holds_up_what_comes_after_it_until_its_startup_probe_succeeds() {
    let device = Recorded::start();
    let probes = "startupProbe: {exec: {command: [/bin/demo, stat, /one/go]}, periodSeconds: 1, failureThreshold: 100, timeoutSeconds: 20}\n\
                  readinessProbe: {tcpSocket: {port: web}, periodSeconds: 1, timeoutSeconds: 20}\n\
                  ports: [{name: web, containerPort: 8080}]\n";
    let init = [sidecar("proxy", "serve 8080 /one", probes), Recorded::noting("first", "exit 0", "")];
    let web = device.write_recorded("web", &init, &[Recorded::noting("app", "sleep", "")], "");
    web.wait_event("Unhealthy: Startup");
    assert!(web.container("proxy").is_running());
    assert_eq!(web.row(), ("0/2".into(), "Init:0/2".into()));
    device.wait_story(&["proxy"]);
    device.go();
    web.wait_ready();
    device.wait_story(&["proxy", "first", "app"]);
    assert_eq!(web.row(), ("2/2".into(), "Running".into()));
    // The sidecar's port can be forwarded by its name.
    let forward = Background::start(device.command(&["port-forward", "web", "0:web"]));
    device.wait_for("the forwarded port", || forward.saw(|line| line.ends_with("-> 8080")));
}

#[test]
fn a_sidecar_that_ends_is_started_again_and_disturbs_nobody() {
    let device = Recorded::start();
    let first = Recorded::noting("first", "wait /one/mark", "");
    let init = [sidecar("proxy", "fail-once /one/mark then sleep", ""), first];
    let app = [Recorded::noting("app", "sleep", "")];
    let web = device.write_recorded("web", &init, &app, "restartPolicy: Never\n");
    device.wait_for("all to be ready", || web.is_ready() && web.container("proxy").restart_count() == 1);
    device.wait_for("all to have begun", || device.story().len() >= 4);
    let mut begun = device.story();
    assert_eq!(begun.remove(0), "proxy");
    begun.sort();
    assert_eq!(begun, ["app", "first", "proxy"]);
    assert_eq!(web.row(), ("2/2".into(), "Running".into()));
    let table = device.nodlet(["get", "pods", "--no-headers"]).ok();
    assert!(table.contains("Running   1 ("), "restarts of sidecars are those of the pod: {table}");
}

#[test]
fn when_the_work_is_done_the_sidecars_end_one_after_another_and_how_does_not_matter() {
    let device = Recorded::start();
    let init = [sidecar("outer", "on-term 3 then sleep", ""), sidecar("inner", "on-term 5 1 then sleep", "")];
    for (name, policy, code, phase, status) in [
        ("job-0", "Never", 0, "Succeeded", "Completed"),
        ("job-1", "Never", 2, "Failed", "Error"),
        ("job-2", "OnFailure", 0, "Succeeded", "Completed"),
    ] {
        let app = Recorded::noting("app", &format!("exit {code} 1"), "");
        let text = device.manifest(name, &init, &[app], &format!("restartPolicy: {policy}\n"));
        device.write_manifest("job.yaml", &text);
        let job = device.pod(name);
        job.wait_phase(phase);
        assert_eq!(ends(&device, name), ["end app", "ask inner", "end inner", "ask outer", "end outer"]);
        let codes = ["inner", "outer"].map(|name| job.container(name).exit_code());
        assert_eq!(codes, [Some(5), Some(3)]);
        assert_eq!(job.row(), ("0/3".into(), status.into()));
        assert_eq!(device.story(), ["outer", "inner", "app"]);
        assert!(device.container_processes().is_empty());
        fs::remove_file(device.directory.join("story")).expect("it is there");
    }
    let stubborn = sidecar("stubborn", "ignore-term then sleep", "");
    let app = Recorded::noting("app", "exit 0 1", "");
    let spec = "restartPolicy: Never\nterminationGracePeriodSeconds: 1\n";
    device.write_manifest("job.yaml", &device.manifest("job-3", &[stubborn], &[app], spec));
    let job = device.pod("job-3");
    job.wait_phase("Succeeded");
    assert_eq!(job.container("stubborn").exit_code(), Some(137));
    assert_eq!(job.row(), ("0/2".into(), "Completed".into()));
}

#[test]
fn a_pod_that_is_deleted_ends_its_sidecars_last_in_reverse_order() {
    let device = Recorded::start();
    let slow = "on-term 0 1 then sleep";
    let init = [sidecar("a", slow, ""), Recorded::noting("first", "exit 0", ""), sidecar("b", slow, "")];
    let apps = [Recorded::noting("left", slow, ""), Recorded::noting("right", "sleep", "")];
    device.write_recorded("web", &init, &apps, "").wait_ready();
    device.remove_pod("web");
    let ends = ends(&device, "web");
    let place =
        |what: &str| ends.iter().position(|end| end == what).unwrap_or_else(|| panic!("{what}: {ends:?}"));
    assert!(place("ask left") < place("end right"), "regular containers end side by side: {ends:?}");
    assert!(place("end left") < place("ask b") && place("end right") < place("ask b"), "{ends:?}");
    assert!(place("end b") < place("ask a"), "{ends:?}");
    let events = device.pod("web").events();
    assert_eq!(events.iter().filter(|event| event.starts_with("Killing: ")).count(), 4);
}

#[test]
fn sidecars_that_wait_when_the_grace_is_over_are_ended_all_at_once() {
    let device = Recorded::start();
    let steps = "ignore-term then sleep";
    let init = [sidecar("a", steps, ""), sidecar("b", steps, "")];
    let app = [Recorded::noting("app", steps, "")];
    device.write_recorded("web", &init, &app, "terminationGracePeriodSeconds: 2\n").wait_ready();
    device.remove_pod("web");
    let ends = ends(&device, "web");
    assert_eq!(ends[0], "ask app");
    let place = |what: &str| ends.iter().position(|end| *end == what);
    assert!(place("ask a") < place("end b") && place("ask b") < place("end a"), "{ends:?}");
}

/// The containers of [`long`], in the order in which they start.
const ORDER: [&str; 4] = ["first", "proxy", "second", "app"];

/// The pod of the tests in which something dies: each of its containers records its runs.
fn long<'a>(device: &'a Recorded, policy: &str) -> TestPod<'a> {
    let locked = |name: &str, steps: &str, more: &str| {
        let steps = format!("lock /one/{name} then append /one/story {name} then {steps}");
        manifest::container(name, &steps, &format!("{}{more}", Recorded::MOUNT))
    };
    let probe = "restartPolicy: Always\nstartupProbe: {exec: {command: [/bin/demo, stat, /one]}, periodSeconds: 1, timeoutSeconds: 20}\n";
    let init = [
        locked("first", "print done", ""),
        locked("proxy", "print up then sleep", probe),
        locked("second", "print done", ""),
    ];
    let app = [locked("app", "print up then sleep", "")];
    device.write_recorded("web", &init, &app, &format!("restartPolicy: {policy}\n"))
}

#[test]
fn an_agent_that_is_killed_at_any_moment_runs_no_init_container_twice() {
    let steps = begin_and_end("Always", None);
    // The numbers of steps differ from start to start: these lie between all kinds of them.
    const PARTS: u64 = 8;
    let first = 1 + seed().number() % (steps / PARTS);
    let kills = (0..PARTS).zip(["Always", "Never"].into_iter().cycle());
    let killed = kills.filter(|(number, policy)| {
        let before = first + number * steps / PARTS;
        // An agent that is killed makes no more steps.
        begin_and_end(policy, Some(before)) == before
    });
    assert!(killed.count() > 2, "is the agent killed?");
}

/// Lets a pod begin, by an agent that is killed before this step and restarted, and removes it. Returns the number of steps
/// of the first agent.
fn begin_and_end(policy: &str, kill_before: Option<u64>) -> u64 {
    let mut device = Recorded::of(Device::new());
    device.start_agent_with_demo();
    device.stop_agent();
    long(&device, policy);
    device.launch_agent();
    let steps = AgentSteps::follow(device.agent_pid(), kill_before);
    let revive = |device: &mut Device| {
        if device.agent_is_dead() {
            device.start_agent();
        }
    };
    let what = || format!("before step {} of {kill_before:?}, {:?}", steps.made(), steps.killed_before());
    device.wait_reviving("the pod to be ready", &revive, |device| device.pod("web").is_ready());
    device.wait_story(&ORDER);
    for name in ORDER {
        assert!(!device.path(&format!("one/{name}.twice")).exists(), "two of {name} at once, {}", what());
        // An agent that was just killed shows no status.
        let count = Cell::new(-1);
        device.wait_reviving("the container's status", &revive, |device| {
            count.set(device.pod("web").container(name).restart_count());
            count.get() >= 0
        });
        assert_eq!(count.get(), 0, "{name} {}", what());
    }
    device.remove_manifest("web.yaml");
    device.wait_reviving("the pod to be gone", &revive, |device| {
        device.get("/api/v1/pods").is_ok_and(|list| list["items"] == Value::Array(Vec::new()))
    });
    steps.made()
}

#[test]
fn an_init_container_goes_on_under_the_next_agent() {
    let mut device = Recorded::start();
    let init = [Recorded::noting("first", "wait /one/go then print done", "")];
    device.write_recorded("web", &init, &[Recorded::noting("app", "sleep", "")], "");
    let born = |device: &Device| {
        device.wait_for("it to begin", || device.pod("web").container("first").is_running());
        device.pod("web").born("first")
    };
    let before = born(&device);
    device.restart_agent();
    assert_eq!(born(&device), before);
    device.kill_agent();
    // The container ends while no agent runs.
    device.go();
    device.wait_for("it to end", || device.container_processes().is_empty());
    device.start_agent();
    device.pod("web").wait_ready();
    device.wait_story(&["first", "app"]);
    assert_eq!(device.pod("web").logs("first"), "done\n");
}

#[test]
fn all_containers_run_again_in_order_in_a_new_sandbox() {
    let device = Recorded::start();
    let web = long(&device, "Always");
    web.wait_ready();
    for supervisor in device.supervisors().values() {
        let pid = nix::unistd::Pid::from_raw(supervisor.pid.cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("a supervisor can be killed");
    }
    device.wait_for("all of it to run again", || web.is_ready() && web.container("app").restart_count() == 1);
    device.wait_story(&[ORDER, ORDER].concat());
    for name in ORDER {
        assert_eq!(web.container(name).restart_count(), 1, "{name}");
    }
    assert_eq!(web.container("proxy").of_last("reason"), "ContainerStatusUnknown");
    assert_eq!(web.container("first").of_last("exitCode"), 0);
    assert_eq!(web.condition("Initialized"), "True");
}

#[test]
fn after_a_power_cut_a_pod_is_initialised_again_unless_it_never_restarts() {
    let mut device = Recorded::start();
    long(&device, "OnFailure").wait_ready();
    let init = [Recorded::noting("slow", "wait /one/never", "")];
    let work = [Recorded::noting("work", "exit 0", "")];
    let job = device.write_recorded("job", &init, &work, "restartPolicy: Never\n");
    device.wait_for("the job to begin", || job.container("slow").is_running());
    let record = device.path(&format!("/var/lib/nodlet/records/{}.json", device.pod("web").uid()));
    device.wait_for("the record to be written", || {
        let record: Value =
            serde_json::from_slice(&fs::read(&record).unwrap_or_default()).unwrap_or_default();
        let containers = record["containers"].as_array().cloned().unwrap_or_default();
        ORDER.iter().all(|name| containers.iter().any(|one| one["name"] == *name && one["attempts"] == 1))
    });
    device.power_cycle();
    let (web, job) = (device.pod("web"), device.pod("job"));
    web.wait_ready();
    job.wait_phase("Failed");
    device.wait_for("all to have begun", || device.story().len() >= 9);
    let (slow, begun): (Vec<_>, Vec<_>) = device.story().into_iter().partition(|name| name == "slow");
    assert_eq!(slow.len(), 1);
    assert_eq!(begun, [ORDER, ORDER].concat());
    for name in ORDER {
        assert_eq!(web.container(name).restart_count(), 1, "{name}");
    }
    assert_eq!(job.container("slow").reason(), "ContainerStatusUnknown");
    assert_eq!(job.container("work").reason(), "PodInitializing");
    job.wait_row("0/1", "Init:ContainerStatusUnknown");
}

#[test]
fn clients_can_attach_to_a_running_init_container() {
    let device = Recorded::start();
    let first = [Recorded::noting("first", "echo", "stdin: true\nstdinOnce: true\n")];
    let web = device.write_recorded("web", &first, &[Recorded::noting("app", "sleep", "")], "");
    device.wait_for("it to begin", || web.container("first").is_running());
    device
        .nodlet(["attach", "web", "-c", "app"])
        .refused_with("container \"app\" in pod \"web\" is not running");
    device.nodlet_with_input(["attach", "-i", "web", "-c", "first"], "hello\n").ok();
    web.wait_ready();
    device.wait_story(&["first", "app"]);
    assert_eq!(web.logs("first"), "hello\n");
}

#[test]
fn invalid_init_containers_are_rejected_by_field_and_affect_no_other_pod() {
    const ONLY_SIDECARS: &str = "Forbidden: may not be set for init containers without restartPolicy=Always";
    let device = Device::start();
    let good = device.run_pod("good", "sleep").wait_ready();
    let pod = |name: &str, init: &str, fields: &str, container: &str| {
        let init = [manifest::container(init, "exit 0", fields)];
        manifest::pod_behind(name, &init, &[manifest::container(container, "sleep", "")], "")
    };
    for (init, fields, path, error) in [
        ("first", "livenessProbe: {exec: {command: [/bin/demo]}}", "livenessProbe", ONLY_SIDECARS),
        ("first", "lifecycle: {preStop: {exec: {command: [/bin/demo]}}}", "lifecycle", ONLY_SIDECARS),
        (
            "first",
            "restartPolicy: Always\nlifecycle: {preStop: {exec: {command: []}}}",
            "lifecycle.preStop.exec.command",
            "Required value",
        ),
        (
            "first",
            "restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]",
            "restartPolicy",
            "Required value: must specify restartPolicy when restart rules are used",
        ),
        (
            "first",
            "restartPolicy: Sometimes",
            "restartPolicy",
            "Unsupported value: \"Sometimes\": supported values: \"Always\", \"Never\", \"OnFailure\"",
        ),
        ("app", "", "name", "Duplicate value: \"app\""),
    ] {
        device.reject(&pod("bad", init, fields, "app"), &format!("spec.initContainers[0].{path}: {error}"));
    }
    // A missing image delays the containers after it, and is named.
    let text = pod("late", "app", "", "main").replacen("localhost/demo:1", "localhost/absent:1", 1);
    let late = device.write_pod("late", &text);
    device.wait_for("the image to be missed", || late.row().1.starts_with("Init:ErrImagePull"));
    assert_eq!(late.container("main").reason(), "PodInitializing");
    assert_eq!(device.pods(), ["good", "late"]);
    assert!(good.is_ready());
}
