//! Init containers and sidecars as real processes: the order in which they start, restart and end, and how
//! that is shown.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use nodlet_tests::{AgentSteps, Device, Kubectl, manifest, seed};
use serde_json::Value;

/// The mount of the directory in which all containers of a test record their actions.
const ONE: &str = "volumeMounts: [{name: one, mountPath: /one}]\n";

/// A container that appends its name to `/one/story`, then executes these steps.
fn noting(name: &str, steps: &str, more: &str) -> String {
    manifest::container(name, &format!("append /one/story {name} then {steps}"), &format!("{ONE}{more}"))
}

/// A sidecar that appends its name to `/one/story`, then executes these steps.
fn sidecar(name: &str, steps: &str, more: &str) -> String {
    noting(name, steps, &format!("restartPolicy: Always\n{more}"))
}

fn volumes(shared: &str) -> String {
    format!("volumes: [{{name: one, hostPath: {{path: {shared}}}}}]\n")
}

/// The containers of a test that have started so far, in order.
fn story(here: &Path) -> Vec<String> {
    let text = fs::read_to_string(here.join("story")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Waits until exactly these containers have started, in this order.
#[track_caller]
fn wait_story(device: &Device, here: &Path, expected: &[&str]) {
    // A container is running slightly before its first step is done.
    device.wait_for("the last of them to have begun", || story(here).len() >= expected.len());
    assert_eq!(story(here), expected);
}

/// READY and STATUS of a pod, as `get pods` prints them.
fn row(device: &Device, pod: &str) -> (String, String) {
    let table = device.nodlet(["get", "pods", "--no-headers"]).stdout;
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(pod)).unwrap_or_default();
    let mut words = line.split_whitespace().skip(1).map(str::to_owned);
    (words.next().unwrap_or_default(), words.next().unwrap_or_default())
}

fn wait_row(device: &Device, pod: &str, ready: &str, status: &str) {
    device.wait_for(&format!("{pod} to be shown as {ready} {status}"), || {
        row(device, pod) == (ready.to_owned(), status.to_owned())
    });
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
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let init = [
        manifest::container(
            "first",
            "append /work/steps first then print one then wait /one/go",
            "volumeMounts: [{name: one, mountPath: /one}, {name: work, mountPath: /work}]",
        ),
        manifest::container(
            "second",
            "append /work/steps second then print two",
            "volumeMounts: [{name: work, mountPath: /work}]",
        ),
    ];
    let app = manifest::container(
        "app",
        "cat /work/steps then sleep",
        "volumeMounts: [{name: work, mountPath: /work}]",
    );
    let spec =
        format!("volumes: [{{name: one, hostPath: {{path: {shared}}}}}, {{name: work, emptyDir: {{}}}}]");
    device.write_manifest("web.yaml", &manifest::pod_behind("web", &init, &[app], &spec));
    let web = device.pod("web");
    web.wait_log("first", "one");
    assert_eq!(row(&device, "web"), ("0/1".into(), "Init:0/2".into()));
    assert_eq!((web.phase().as_str(), web.condition("Initialized").as_str()), ("Pending", "False"));
    for name in ["second", "app"] {
        let waiting = web.container(name);
        assert_eq!((waiting.state(), waiting.reason().as_str()), ("waiting", "PodInitializing"));
        let refused = device.nodlet(["logs", "web", "-c", name]).refused();
        let why = format!("container \"{name}\" in pod \"web\" is waiting to start: PodInitializing");
        assert!(refused.contains(&why), "{refused}");
        let refused = device.nodlet(["exec", "web", "-c", name, "--", "/bin/demo", "id"]).refused();
        assert!(
            refused.contains(&format!("container \"{name}\" in pod \"web\" is not running")),
            "{refused}"
        );
    }
    // A running container accepts an exec, whatever its kind.
    assert_eq!(web.exec("first", ["/bin/demo", "cat", "/work/steps"]).ok(), "first\n");

    fs::write(here.join("go"), "").expect("the root can be written to");
    web.wait_ready();
    web.wait_log("app", "second");
    assert_eq!(web.logs("app"), "first\nsecond\n", "an emptyDir is that of the pod");
    assert_eq!((web.logs("first").as_str(), web.logs("second").as_str()), ("one\n", "two\n"));
    assert_eq!(row(&device, "web"), ("1/1".into(), "Running".into()));
    for name in ["first", "second"] {
        let done = web.container(name);
        assert_eq!((done.exit_code(), done.reason().as_str(), done.is_ready()), (Some(0), "Completed", true));
        assert_eq!(done.restart_count(), 0);
    }
    assert_eq!(web.condition("Initialized"), "True");
    // The object reference of an event contains the container's path in the spec.
    let events = device.get("/api/v1/namespaces/default/events").expect("there are events");
    let about = |path: &str, reason: &str| {
        events["items"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|event| event["involvedObject"]["fieldPath"] == path && event["reason"] == reason)
    };
    assert!(about("spec.initContainers{first}", "Started") && about("spec.containers{app}", "Started"));
    assert!(!about("spec.containers{first}", "Started"));
    // With several containers, the default is printed.
    let logs = device.nodlet(["logs", "web"]);
    assert_eq!(logs.stderr, "Defaulted container \"app\" out of: app, first (init), second (init)\n");
    let refused = device.nodlet(["logs", "web", "-c", "third"]).refused();
    assert!(refused.contains("container third is not valid for pod web"), "{refused}");
}

#[test]
fn kubectl_shows_init_containers_and_sidecars_as_in_a_cluster() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let (shared, here) = device.shared("one");
    let init =
        [noting("first", "print one then wait /one/go", ""), sidecar("proxy", "print up then sleep", "")];
    let web = manifest::pod_behind("web", &init, &[noting("app", "sleep", "")], &volumes(&shared));
    device.write_manifest("web.yaml", &web);
    device.pod("web").wait_log("first", "one");
    let line = kubectl.run(["get", "pod", "web", "--no-headers"]).ok();
    assert!(line.starts_with("web   0/2   Init:0/2   0 "), "{line}");
    let refused = kubectl.run(["logs", "web", "-c", "app"]).refused();
    assert!(
        refused.contains("container \"app\" in pod \"web\" is waiting to start: PodInitializing"),
        "{refused}"
    );
    fs::write(here.join("go"), "").expect("the root can be written to");
    device.pod("web").wait_ready();
    let line = kubectl.run(["get", "pod", "web", "--no-headers"]).ok();
    assert!(line.starts_with("web   2/2   Running   0 "), "{line}");
    assert_eq!(kubectl.run(["logs", "web", "-c", "proxy"]).ok(), "up\n");
    let said = kubectl.run(["logs", "web"]).stderr;
    assert_eq!(said, "Defaulted container \"app\" out of: app, first (init), proxy (init)\n");
    let described = kubectl.run(["describe", "pod", "web"]).ok();
    let (init, rest) = described
        .split_once("Init Containers:")
        .and_then(|(_, rest)| rest.split_once("\nContainers:"))
        .expect("both");
    assert!(
        init.contains("  first:\n") && init.contains("  proxy:\n") && rest.contains("  app:\n"),
        "{described}"
    );
    assert!(init.contains("Reason:       Completed"), "{described}");
    assert_eq!(kubectl.run(["exec", "web", "-c", "proxy", "--", "/bin/demo", "print", "in"]).ok(), "in\n");
}

#[test]
fn an_init_container_that_fails_is_tried_again_and_holds_the_others_up() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let app = noting("app", "sleep", "");
    let init = |steps: &str| [noting("first", steps, "")];
    let once = manifest::pod_behind(
        "once",
        &init("fail-once /one/mark"),
        std::slice::from_ref(&app),
        &volumes(&shared),
    );
    device.write_manifest("once.yaml", &once);
    device.pod("once").wait_ready();
    wait_story(&device, &here, &["first", "first", "app"]);
    assert_eq!(device.pod("once").container("first").restart_count(), 1);
    assert_eq!(device.pod("once").container("first").of_last("exitCode"), 1);
    assert_eq!(row(&device, "once").0, "1/1");

    let ever = manifest::pod_behind("ever", &init("exit 4"), &[app], &volumes(&shared));
    device.write_manifest("ever.yaml", &ever);
    wait_row(&device, "ever", "0/1", "Init:CrashLoopBackOff");
    let message = device.pod("ever").container("first").message();
    assert!(
        message.starts_with("back-off 10s restarting failed container=first pod=ever_default("),
        "{message}"
    );
    assert_eq!(device.pod("ever").phase(), "Pending");
    assert_eq!(story(&here), ["first", "first", "app", "first", "first"]);
    device.remove_manifest("ever.yaml");
    device.pod("ever").wait_gone();
}

#[test]
fn an_init_container_that_fails_ends_a_pod_that_never_restarts() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let init = [
        sidecar("proxy", "sleep", ""),
        noting("first", "print no then exit 4", ""),
        noting("second", "exit 0", ""),
    ];
    let spec = format!("restartPolicy: Never\n{}", volumes(&shared));
    let job = manifest::pod_behind("job", &init, &[noting("app", "exit 0", "")], &spec);
    device.write_manifest("job.yaml", &job);
    let job = device.pod("job");
    job.wait_phase("Failed");
    assert_eq!(story(&here), ["proxy", "first"]);
    assert_eq!(row(&device, "job"), ("0/2".into(), "Init:Error".into()));
    assert_eq!((job.container("first").exit_code(), job.logs("first")), (Some(4), "no\n".into()));
    assert!(!job.container("proxy").is_running());
    for name in ["second", "app"] {
        assert_eq!(job.container(name).reason(), "PodInitializing");
    }
    assert!(device.container_processes().is_empty());
}

#[test]
fn a_sidecar_holds_up_what_comes_after_it_until_its_startup_probe_succeeds() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let probes = "startupProbe: {exec: {command: [/bin/demo, stat, /one/go]}, periodSeconds: 1, failureThreshold: 100, timeoutSeconds: 20}\n\
                  readinessProbe: {tcpSocket: {port: web}, periodSeconds: 1, timeoutSeconds: 20}\n\
                  ports: [{name: web, containerPort: 8080}]\n";
    let init = [sidecar("proxy", "serve 8080 /one", probes), noting("first", "exit 0", "")];
    let web = manifest::pod_behind("web", &init, &[noting("app", "sleep", "")], &volumes(&shared));
    device.write_manifest("web.yaml", &web);
    let web = device.pod("web");
    device.wait_for("a probe to have failed", || {
        web.events().iter().any(|event| event.starts_with("Unhealthy: Startup"))
    });
    assert!(web.container("proxy").is_running());
    assert_eq!(row(&device, "web"), ("0/2".into(), "Init:0/2".into()));
    wait_story(&device, &here, &["proxy"]);
    fs::write(here.join("go"), "").expect("the root can be written to");
    web.wait_ready();
    wait_story(&device, &here, &["proxy", "first", "app"]);
    assert_eq!(row(&device, "web"), ("2/2".into(), "Running".into()));
    // The sidecar's port can be forwarded by its name.
    let mut forward = device.command(&["port-forward", "web", "0:web"]);
    let mut forward = forward.stdout(std::process::Stdio::piped()).spawn().expect("it can be run");
    let mut line = String::new();
    let mut output = std::io::BufReader::new(forward.stdout.take().expect("it is piped"));
    std::io::BufRead::read_line(&mut output, &mut line).expect("it says where it listens");
    forward.kill().expect("it runs");
    forward.wait().expect("it was killed");
    assert!(line.trim_end().ends_with("-> 8080"), "{line}");
}

#[test]
fn a_sidecar_that_ends_is_started_again_and_disturbs_nobody() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let init =
        [sidecar("proxy", "fail-once /one/mark then sleep", ""), noting("first", "wait /one/mark", "")];
    let spec = format!("restartPolicy: Never\n{}", volumes(&shared));
    let web = manifest::pod_behind("web", &init, &[noting("app", "sleep", "")], &spec);
    device.write_manifest("web.yaml", &web);
    let web = device.pod("web");
    device.wait_for("all to be ready", || web.is_ready() && web.container("proxy").restart_count() == 1);
    device.wait_for("all to have begun", || story(&here).len() >= 4);
    let mut begun = story(&here);
    assert_eq!(begun.remove(0), "proxy");
    begun.sort();
    assert_eq!(begun, ["app", "first", "proxy"]);
    assert_eq!(row(&device, "web"), ("2/2".into(), "Running".into()));
    let table = device.nodlet(["get", "pods", "--no-headers"]).ok();
    assert!(table.contains("Running   1 ("), "restarts of sidecars are those of the pod: {table}");
}

#[test]
fn when_the_work_is_done_the_sidecars_end_one_after_another_and_how_does_not_matter() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let init = [sidecar("outer", "on-term 3 then sleep", ""), sidecar("inner", "on-term 5 1 then sleep", "")];
    let cases = [("Never", 0, "Succeeded"), ("Never", 2, "Failed"), ("OnFailure", 0, "Succeeded")];
    for (number, (policy, code, phase)) in cases.into_iter().enumerate() {
        let name = format!("job-{number}");
        let spec = format!("restartPolicy: {policy}\n{}", volumes(&shared));
        let app = noting("app", &format!("exit {code} 1"), "");
        device.write_manifest("job.yaml", &manifest::pod_behind(&name, &init, &[app], &spec));
        let job = device.pod(&name);
        job.wait_phase(phase);
        assert_eq!(ends(&device, &name), ["end app", "ask inner", "end inner", "ask outer", "end outer"]);
        assert_eq!(
            (job.container("inner").exit_code(), job.container("outer").exit_code()),
            (Some(5), Some(3))
        );
        let status = if code == 0 { "Completed" } else { "Error" };
        assert_eq!(row(&device, &name), ("0/3".into(), status.into()));
        assert_eq!(story(&here), ["outer", "inner", "app"]);
        assert!(device.container_processes().is_empty());
        fs::remove_file(here.join("story")).expect("it is there");
    }
}

#[test]
fn a_pod_that_is_deleted_ends_its_sidecars_last_in_reverse_order() {
    let device = Device::start();
    let (shared, _) = device.shared("one");
    let init = [
        sidecar("a", "on-term 0 1 then sleep", ""),
        noting("first", "exit 0", ""),
        sidecar("b", "on-term 0 1 then sleep", ""),
    ];
    let apps = [noting("left", "on-term 0 1 then sleep", ""), noting("right", "sleep", "")];
    device.write_manifest("web.yaml", &manifest::pod_behind("web", &init, &apps, &volumes(&shared)));
    device.pod("web").wait_ready();
    device.remove_manifest("web.yaml");
    device.pod("web").wait_gone();
    let ends = ends(&device, "web");
    let place =
        |what: &str| ends.iter().position(|end| end == what).unwrap_or_else(|| panic!("{what}: {ends:?}"));
    assert!(place("ask left") < place("end right"), "regular containers end side by side: {ends:?}");
    assert!(place("end left") < place("ask b") && place("end right") < place("ask b"), "{ends:?}");
    assert!(place("end b") < place("ask a"), "{ends:?}");
    let killing =
        device.pod("web").events().into_iter().filter(|event| event.starts_with("Killing: ")).count();
    assert_eq!(killing, 4);
}

#[test]
fn sidecars_that_wait_when_the_grace_is_over_are_ended_all_at_once() {
    let device = Device::start();
    let (shared, _) = device.shared("one");
    let init = [sidecar("a", "ignore-term then sleep", ""), sidecar("b", "ignore-term then sleep", "")];
    let app = noting("app", "ignore-term then sleep", "");
    let spec = format!("terminationGracePeriodSeconds: 2\n{}", volumes(&shared));
    device.write_manifest("web.yaml", &manifest::pod_behind("web", &init, &[app], &spec));
    device.pod("web").wait_ready();
    device.remove_manifest("web.yaml");
    device.pod("web").wait_gone();
    let ends = ends(&device, "web");
    assert_eq!(ends[0], "ask app");
    let asked = |name: &str| ends.iter().position(|end| *end == format!("ask {name}"));
    let ended = |name: &str| ends.iter().position(|end| *end == format!("end {name}"));
    assert!(asked("a") < ended("b") && asked("b") < ended("a"), "{ends:?}");
}

/// The pod of the tests in which something dies: each of its containers records its runs.
fn long(shared: &str, policy: &str) -> String {
    let locked = |name: &str, steps: &str, more: &str| {
        manifest::container(
            name,
            &format!("lock /one/{name} then append /one/story {name} then {steps}"),
            &format!("{ONE}{more}"),
        )
    };
    let probe = "restartPolicy: Always\nstartupProbe: {exec: {command: [/bin/demo, stat, /one]}, periodSeconds: 1, timeoutSeconds: 20}\n";
    let init = [
        locked("first", "print done", ""),
        locked("proxy", "print up then sleep", probe),
        locked("second", "print done", ""),
    ];
    let spec = format!("restartPolicy: {policy}\n{}", volumes(shared));
    manifest::pod_behind("web", &init, &[locked("app", "print up then sleep", "")], &spec)
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
    let mut device = Device::new();
    device.start_agent();
    device.load_image(nodlet_tests::demo_archive());
    device.stop_agent();
    let (shared, here) = device.shared("one");
    device.write_manifest("web.yaml", &long(&shared, policy));
    device.launch_agent();
    let steps = AgentSteps::follow(device.agent_pid(), kill_before);
    let revive = |device: &mut Device| {
        if device.agent_is_dead() {
            device.start_agent();
        }
    };
    let what = || format!("before step {} of {kill_before:?}, {:?}", steps.made(), steps.killed_before());
    device.wait_reviving("the pod to be ready", &revive, |device| device.pod("web").is_ready());
    wait_story(&device, &here, &["first", "proxy", "second", "app"]);
    for name in ["first", "proxy", "second", "app"] {
        assert!(!here.join(format!("{name}.twice")).exists(), "two of {name} at once, {}", what());
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
    let mut device = Device::start();
    let (shared, here) = device.shared("one");
    let init = [noting("first", "wait /one/go then print done", "")];
    device.write_manifest(
        "web.yaml",
        &manifest::pod_behind("web", &init, &[noting("app", "sleep", "")], &volumes(&shared)),
    );
    let running = |device: &Device| {
        device.wait_for("it to begin", || device.pod("web").container("first").is_running())
    };
    running(&device);
    let born = device.pod("web").born("first");
    device.kill_agent();
    device.start_agent();
    running(&device);
    assert_eq!(device.pod("web").born("first"), born);
    device.kill_agent();
    // The container ends while no agent runs.
    fs::write(here.join("go"), "").expect("the root can be written to");
    device.wait_for("it to end", || device.container_processes().is_empty());
    device.start_agent();
    device.pod("web").wait_ready();
    wait_story(&device, &here, &["first", "app"]);
    assert_eq!(device.pod("web").logs("first"), "done\n");
}

#[test]
fn all_containers_run_again_in_order_in_a_new_sandbox() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    device.write_manifest("web.yaml", &long(&shared, "Always"));
    let web = device.pod("web");
    web.wait_ready();
    for supervisor in device.supervisors().values() {
        let pid = nix::unistd::Pid::from_raw(supervisor.pid.cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("a supervisor can be killed");
    }
    device.wait_for("all of it to run again", || web.is_ready() && web.container("app").restart_count() == 1);
    let order = ["first", "proxy", "second", "app"];
    wait_story(&device, &here, &[order, order].concat());
    for name in order {
        assert_eq!(web.container(name).restart_count(), 1, "{name}");
    }
    assert_eq!(web.container("proxy").of_last("reason"), "ContainerStatusUnknown");
    assert_eq!(web.container("first").of_last("exitCode"), 0);
    assert_eq!(web.condition("Initialized"), "True");
}

#[test]
fn after_a_power_cut_a_pod_is_initialised_again_unless_it_never_restarts() {
    let mut device = Device::start();
    let (shared, here) = device.shared("one");
    device.write_manifest("web.yaml", &long(&shared, "OnFailure"));
    let init = [noting("slow", "wait /one/never", "")];
    let spec = format!("restartPolicy: Never\n{}", volumes(&shared));
    let job = manifest::pod_behind("job", &init, &[noting("work", "exit 0", "")], &spec);
    device.pod("web").wait_ready();
    device.write_manifest("job.yaml", &job);
    device.wait_for("the job to begin", || device.pod("job").container("slow").is_running());
    let uid = device.pod("web").uid();
    device.wait_for("the record to be written", || {
        let path = device.path(&format!("/var/lib/nodlet/records/{uid}.json"));
        let record: Value = serde_json::from_slice(&fs::read(path).unwrap_or_default()).unwrap_or_default();
        let of = |name: &str| {
            record["containers"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|one| one["name"] == name)
                .map(|one| one["attempts"].clone())
        };
        ["first", "proxy", "second", "app"].iter().all(|name| of(name) == Some(1.into()))
    });
    device.cut_power();
    device.start_agent();
    device.pod("web").wait_ready();
    device.pod("job").wait_phase("Failed");
    let order = ["first", "proxy", "second", "app"];
    device.wait_for("all to have begun", || story(&here).len() >= 9);
    let begun: Vec<String> = story(&here).into_iter().filter(|name| name != "slow").collect();
    assert_eq!(begun, [order, order].concat());
    assert_eq!(story(&here).iter().filter(|name| *name == "slow").count(), 1);
    for name in order {
        assert_eq!(device.pod("web").container(name).restart_count(), 1, "{name}");
    }
    assert_eq!(device.pod("job").container("slow").reason(), "ContainerStatusUnknown");
    assert_eq!(device.pod("job").container("work").reason(), "PodInitializing");
    wait_row(&device, "job", "0/1", "Init:ContainerStatusUnknown");
}

#[test]
fn clients_can_attach_to_a_running_init_container() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let first = manifest::container(
        "first",
        "append /one/story first then echo",
        &format!("{ONE}stdin: true\nstdinOnce: true\n"),
    );
    device.write_manifest(
        "web.yaml",
        &manifest::pod_behind("web", &[first], &[noting("app", "sleep", "")], &volumes(&shared)),
    );
    device.wait_for("it to begin", || device.pod("web").container("first").is_running());
    let refused = device.nodlet(["attach", "web", "-c", "app"]).refused();
    assert!(refused.contains("container \"app\" in pod \"web\" is not running"), "{refused}");
    device.nodlet_with_input(["attach", "-i", "web", "-c", "first"], "hello\n").ok();
    device.pod("web").wait_ready();
    wait_story(&device, &here, &["first", "app"]);
    assert_eq!(device.pod("web").logs("first"), "hello\n");
}

#[test]
fn invalid_init_containers_are_rejected_by_field_and_affect_no_other_pod() {
    let device = Device::start();
    device.write_manifest("good.yaml", &manifest::pod("good", "sleep"));
    device.pod("good").wait_ready();
    let probe = "{exec: {command: [/bin/demo]}}";
    for (more, said) in [
        (
            format!("livenessProbe: {probe}"),
            "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
        ),
        (
            "lifecycle: {preStop: {exec: {command: [/bin/demo]}}}".into(),
            "spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers without restartPolicy=Always",
        ),
        (
            "restartPolicy: Always\nlifecycle: {preStop: {exec: {command: []}}}".into(),
            "spec.initContainers[0].lifecycle.preStop.exec.command: Required value",
        ),
        (
            "restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]".into(),
            "spec.initContainers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
        ),
        (
            "restartPolicy: Sometimes".into(),
            "spec.initContainers[0].restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"Never\", \"OnFailure\"",
        ),
    ] {
        let init = [manifest::container("first", "exit 0", &more)];
        let text = manifest::pod_behind("bad", &init, &[manifest::container("app", "sleep", "")], "");
        let refused = device.nodlet_with_input(["apply", "-f", "-"], &text).refused();
        assert!(refused.contains(said), "{refused}");
    }
    let same = [manifest::container("app", "exit 0", "")];
    let text = manifest::pod_behind("bad", &same, &[manifest::container("app", "sleep", "")], "");
    let refused = device.nodlet_with_input(["apply", "-f", "-"], &text).refused();
    assert!(refused.contains("spec.initContainers[0].name: Duplicate value: \"app\""), "{refused}");
    // A missing image delays the containers after it, and is named.
    let text = manifest::pod_behind("late", &same, &[manifest::container("main", "sleep", "")], "").replacen(
        "localhost/demo:1",
        "localhost/absent:1",
        1,
    );
    device.write_manifest("late.yaml", &text);
    device.wait_for("the image to be missed", || row(&device, "late").1.starts_with("Init:ErrImagePull"));
    assert_eq!(device.pod("late").container("main").reason(), "PodInitializing");
    assert_eq!(device.pods(), ["good", "late"]);
    assert!(device.pod("good").is_ready());
}
