//! Lifecycle hooks as real processes and requests, and the end of a pod: the order of events, the timeouts,
//! and what is reported.

use std::fs;

use nodlet_tests::image::Image;
use nodlet_tests::{Background, Device, RecordedDevice as Recorded, TestPod, manifest};
use serde_json::{Value, json};

/// A hook `{exec: …}` with these steps.
fn exec(steps: &str) -> String {
    let words: Vec<String> =
        ["/bin/demo"].into_iter().chain(steps.split_whitespace()).map(|word| format!("{word:?}")).collect();
    format!("{{exec: {{command: [{}]}}}}", words.join(", "))
}

/// A container with these hooks and the directory of the host.
fn hooked(name: &str, steps: &str, hooks: &str) -> String {
    manifest::container(name, steps, &format!("{}lifecycle: {{{hooks}}}\n", Recorded::MOUNT))
}

/// The times in seconds at which the agent's ring has this entry for a run of a container.
fn asked(device: &Device, run: &str, what: &str) -> Vec<f64> {
    let ring = device.nodlet(["ring"]).ok();
    let lines = ring.lines().filter(|line| line.contains(&format!("{run} {what}")));
    lines.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

/// Waits until the pod has exactly this event.
fn wait_exact_event(device: &Device, pod: &str, event: &str) {
    device.wait_for(event, || device.pod(pod).events().iter().any(|reported| reported == event));
}

#[test]
fn a_container_is_running_when_its_post_start_hook_is_over_and_then_the_next_begins() {
    let device = Recorded::start();
    let hook = exec("print hook then wait /one/go then append /one/story hook");
    let a = hooked("a", "append /one/story a then print up then sleep", &format!("postStart: {hook}"));
    let web = device.write_recorded("web", &[], &[a, Recorded::noting("b", "sleep", "")], "");
    device.wait_for("the container to run", || device.story() == ["a"]);
    device.wait_for("its hook to run", || !asked(&device, "default/web/a#0", "-> Hook PostStart").is_empty());
    // The container's process exists, but the container has not started.
    device.wait_for("both to run", || device.container_processes().len() == 2);
    let a = web.container("a");
    assert_eq!((a.state(), a.reason().as_str()), ("waiting", "ContainerCreating"));
    assert_eq!((web.phase().as_str(), web.row().1.as_str()), ("Pending", "ContainerCreating"));
    // An exec is possible nevertheless, but not in a container that has no process yet.
    assert_eq!(web.demo("a", "cat /one/story").ok(), "a\n");
    web.demo("b", "id").refused_with("container \"b\" in pod \"web\" is not running");

    device.go();
    web.wait_ready();
    device.wait_story(&["a", "hook", "b"]);
    assert_eq!(web.logs("a"), "up\n", "a hook does not write into the log");
    device.remove_pod("web");
    assert_eq!(device.story().len(), 3);
}

#[test]
fn a_container_whose_post_start_hook_fails_is_killed_and_says_why() {
    let device = Device::start();
    let steps = "wait /tmp/up then print part then eprint no then exit 3";
    let lifecycle = format!("lifecycle: {{postStart: {}}}\n", exec(steps));
    let app = manifest::container("app", "touch /tmp/up then sleep", &lifecycle);
    let web = device.run_pod_of("web", &[app], "");
    web.wait_reason("app", "PostStartHookError");
    let expected = format!(
        "Exec lifecycle hook ([/bin/demo {steps}]) for Container \"app\" in Pod \"web_default({})\" failed - error: \
         command '/bin/demo {steps}' exited with 3: no\n, message: \"part\\nno\\n\"",
        web.uid()
    );
    assert_eq!(web.container("app").message(), expected);
    wait_exact_event(&device, "web", "FailedPostStartHook: PostStartHook failed");
    wait_exact_event(&device, "web", "Killing: FailedPostStartHook");
    // The container gets SIGTERM, and is restarted as after any other end.
    device.wait_for("a restart", || web.container("app").restart_count() >= 1);
    assert_eq!(web.container("app").of_last("exitCode"), 0);
    assert_eq!(web.row().1, "PostStartHookError");
}

#[test]
fn an_http_hook_asks_the_containers_own_server_and_takes_any_answer() {
    let device = Device::start();
    let server = manifest::container(
        "server",
        "serve 8080 /",
        "restartPolicy: Always\nports: [{name: web, containerPort: 8080}]\nstartupProbe: {tcpSocket: {port: web}, periodSeconds: 1}\n\
         lifecycle: {preStop: {httpGet: {path: /status/500, port: web}}}\n",
    );
    let app = manifest::container(
        "app",
        "sleep",
        "lifecycle: {postStart: {httpGet: {path: /headers?a=b, port: 8080, httpHeaders: [{name: X-Who, value: app}]}}, \
         preStop: {httpGet: {path: /redirect, port: 8080}}}\n",
    );
    let web = device.write_pod("web", &manifest::pod_behind("web", &[server], &[app], "")).wait_ready();
    let log = web.logs("server");
    let request = format!(
        "GET /headers?a=b HTTP/1.1\r\nHost: {}:8080\r\nUser-Agent: kube-lifecycle/1.36\r\nAccept: */*\r\n",
        web.ip()
    );
    assert!(log.contains(&request) && log.contains("X-Who: app"), "{log}");
    let mut follow = Background::start(device.command(&["logs", "-f", "web", "-c", "server"]));
    device.wait_for("the log", || follow.saw(|line| line.contains("X-Who")));
    device.remove_pod("web");
    follow.child.wait().expect("it ends with the container");
    for request in ["GET /redirect HTTP/1.1", "GET /healthz HTTP/1.1", "GET /status/500 HTTP/1.1"] {
        device.wait_for(request, || follow.saw(|line| line.contains(request)));
    }
    assert!(!web.has_event("Hook"), "{:?}", web.events());
}

#[test]
fn a_hook_whose_port_does_not_exist_fails_by_name_and_by_number() {
    let device = Device::start();
    for (name, lifecycle) in [
        ("named", "postStart: {httpGet: {port: nope}}"),
        ("closed", "postStart: {httpGet: {port: 9, path: /x}}"),
        ("ends", "preStop: {httpGet: {port: 9}}"),
        ("tcp", "postStart: {tcpSocket: {port: 9}}"),
    ] {
        let app = manifest::container("app", "sleep", &format!("lifecycle: {{{lifecycle}}}\n"));
        device.run_pod_of(name, &[app], "terminationGracePeriodSeconds: 1\n");
    }
    let wait =
        |name: &str| device.pod(name).wait_reason("app", "PostStartHookError").container("app").message();
    let text = |name: &str, path: &str, error: &str| {
        let uid = device.pod(name).uid();
        format!(
            "HTTP lifecycle hook ({path}) for Container \"app\" in Pod \"{name}_default({uid})\" failed - error: {error}"
        )
    };
    assert_eq!(wait("named"), text("named", "/", "strconv.Atoi: parsing \"nope\": invalid syntax"));
    let (message, ip) = (wait("closed"), device.pod("closed").ip());
    let error = format!("Get \"http://{ip}:9/x\": dial tcp {ip}:9: connect: connection refused");
    assert_eq!(message, text("closed", "/x", &error));
    assert!(wait("tcp").starts_with("Cannot run handler: invalid handler: &LifecycleHandler{"));
    device.pod("ends").wait_ready();
    device.remove_pod("ends");
    wait_exact_event(&device, "ends", "FailedPreStopHook: PreStopHook failed");
}

/// Runs a container whose liveness probe kills it, with this grace period in seconds, and waits for its next run.
fn kill_by_probe<'a>(device: &'a Recorded, steps: &str, grace: u32, hook: &str, up: &str) -> TestPod<'a> {
    let alive = device.write_file("/one/alive", "");
    let probe = exec("stat /one/alive");
    let probe = probe.strip_suffix('}').expect("it is a map");
    let app = hooked("app", steps, &format!("preStop: {hook}"));
    let probe = format!(
        "    livenessProbe: {probe}, periodSeconds: 1, failureThreshold: 1, terminationGracePeriodSeconds: {grace}}}\n"
    );
    let web = device.write_recorded("web", &[], &[app + &probe], "terminationGracePeriodSeconds: 1\n");
    web.wait_log("app", up);
    fs::remove_file(alive).expect("it is there");
    device.wait_for("its end", || !asked(device, "default/web/app#0", "<- Exited").is_empty());
    device.write_file("/one/alive", "");
    device.wait_for("its restart", || web.container("app").restart_count() >= 1);
    wait_exact_event(device, "web", "FailedPreStopHook: PreStopHook failed");
    web
}

#[test]
fn a_pre_stop_hook_that_hangs_has_the_grace_of_the_probe_and_its_container_two_seconds_more() {
    let device = Recorded::start();
    let steps = "ignore-signals then print up then sleep";
    let web = kill_by_probe(&device, steps, 3, &exec("sleep"), "up");
    let one = |what: &str| asked(&device, "default/web/app#0", what)[0];
    let (hook, term, kill) = (one("-> Hook PreStop"), one("-> Terminate"), one("-> Kill"));
    assert!(term - hook >= 2.99 && kill - term >= 1.99, "{hook} {term} {kill}");
    assert_eq!(web.container("app").of_last("exitCode"), 137);
    let killing = "Killing: Container app failed liveness probe, will be restarted";
    wait_exact_event(&device, "web", killing);
}

#[test]
fn a_server_that_never_answers_its_hook_is_asked_to_end_when_the_grace_is_over() {
    let device = Recorded::start();
    let hook = "{httpGet: {path: /slow/100, port: 8080}}";
    let web = kill_by_probe(&device, "serve 8080 /", 1, hook, "serving");
    assert_eq!(web.container("app").of_last("exitCode"), 0);
}

#[test]
fn a_sleep_holds_the_signal_back_and_is_cut_by_the_grace() {
    let device = Device::start();
    let app = |seconds: u32| {
        let hooks =
            format!("postStart: {{sleep: {{seconds: 1}}}}, preStop: {{sleep: {{seconds: {seconds}}}}}");
        manifest::container("app", "print up then sleep", &format!("lifecycle: {{{hooks}}}\n"))
    };
    let short = device.run_pod_of("short", &[app(2)], "");
    // A pod that is defined by a file cannot be deleted by name.
    device.apply(&manifest::pod_of("long", &[app(25)], ""));
    let long = device.pod("long");
    short.wait_ready();
    long.wait_ready();
    device.remove_manifest("short.yaml");
    device.nodlet(["delete", "pod", "long", "--grace-period=1", "--wait=false"]).ok();
    short.wait_gone();
    long.wait_gone();
    for (pod, least) in [("default/short", 1.99), ("default/long", 0.99)] {
        let ring = device.nodlet(["ring"]).ok();
        let at = |what: &str| -> f64 {
            let line = ring.lines().find(|line| line.contains(pod) && line.contains(what));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
        };
        let held = at("-> Terminate") - at("<- Unwanted");
        assert!((least..20.0).contains(&held), "{pod}: {held}");
    }
    assert!(!long.has_event("Hook"));
}

#[test]
fn sidecars_run_their_hooks_at_once_and_end_last() {
    let device = Recorded::start();
    let sidecar = |name: &str| {
        let hook = |end: &str| exec(&format!("append /one/story {name}-{end}"));
        let hooks = format!("postStart: {}, preStop: {}", hook("up"), hook("hook"));
        hooked(name, "sleep", &hooks) + "    restartPolicy: Always\n"
    };
    let hook = exec("append /one/story app-hook then wait /one/go");
    let app = hooked("app", "sleep", &format!("preStop: {hook}"));
    let web = device.write_recorded("web", &[sidecar("log"), sidecar("proxy")], &[app], "").wait_ready();
    assert_eq!(device.story(), ["log-up", "proxy-up"]);
    device.remove_manifest("web.yaml");
    device.wait_for("all hooks to run", || device.story().len() == 5);
    let ring = device.nodlet(["ring"]).ok();
    assert!(ring.contains("-> Hook PreStop") && !ring.contains("-> Terminate"), "{ring}");
    assert!(web.container("log").is_running() && web.container("proxy").is_running());
    device.go();
    web.wait_gone();
    let ring = device.nodlet(["ring"]).ok();
    let asked = ring.lines().filter(|line| line.ends_with("-> Terminate"));
    let names: Vec<_> =
        asked.filter_map(|line| line.split("default/web/").nth(1)?.split('#').next()).collect();
    assert_eq!(names, ["app", "proxy", "log"]);
}

#[test]
fn a_container_that_ignores_every_signal_and_daemons_out_of_its_session_end_with_their_grace() {
    const SHARED: &str = "shareProcessNamespace: true\n";
    let device = Device::start();
    let pods = [
        ("deaf", "ignore-signals then print up then sleep", ""),
        ("daemons", "daemon sleep then daemon sleep then print up then sleep", ""),
        ("shared", "daemon sleep then print up then sleep", SHARED),
        ("deaf-shared", "daemon sleep then ignore-signals then print up then sleep", SHARED),
    ];
    for (name, steps, spec) in pods {
        device.run_pod_with(name, steps, &format!("terminationGracePeriodSeconds: 1\n{spec}"));
    }
    for (name, ..) in pods {
        device.pod(name).wait_log("app", "up");
        device.remove_manifest(&format!("{name}.yaml"));
    }
    pods.iter().for_each(|(name, ..)| device.pod(name).wait_gone());
    assert!(device.container_processes().is_empty(), "nothing of them is left");
    for (name, kills) in [("deaf", 1), ("deaf-shared", 1), ("daemons", 0)] {
        assert_eq!(asked(&device, &format!("default/{name}/app#0"), "-> Kill").len(), kills, "{name}");
    }
}

#[test]
fn the_signal_of_a_container_comes_before_that_of_its_image() {
    let device = Device::start();
    device.load(&Image::of_demo("localhost/stops:1").config("StopSignal", "SIGKILL".into()));
    let steps = "ignore-term then on-term 7 then on-signal SIGUSR1 then print up then sleep";
    let app = manifest::container("app", steps, "lifecycle: {stopSignal: SIGUSR1}\n");
    let text = manifest::pod_of("web", &[app], "os: {name: linux}\n");
    let text = manifest::with_image(&text, "localhost/stops:1");
    device.write_pod("web", &text).wait_log("app", "up");
    device.remove_pod("web");
    device.nodlet(["ring"]).ok_with("default/web/app#0 <- Exited with 7");
    let other = text.replace("  os: {name: linux}\n", "").replace("name: web", "name: other");
    let error = "spec.containers[0].lifecycle.stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`";
    device.reject(&other, error);
}

#[test]
fn an_agent_that_dies_under_hooks_runs_none_again_that_is_over() {
    let mut device = Recorded::start();
    let note = |word: &str| exec(&format!("append /one/story {word}"));
    let hooks = format!("postStart: {}, preStop: {}", note("started"), note("stopped"));
    let done = hooked("done", "ignore-term then sleep", &hooks);
    let cut = hooked("cut", "sleep", &format!("preStop: {}", note("cut then wait /one/go")));
    device.write_recorded("web", &[], &[done, cut], "terminationGracePeriodSeconds: 10\n").wait_ready();
    let born = device.pod("web").born("done");
    device.restart_agent();
    assert_eq!(device.pod("web").wait_ready().born("done"), born);
    device.remove_manifest("web.yaml");
    device.wait_for("both hooks to run", || device.story().len() == 3);
    device.wait_for("one to be over", || !asked(&device, "default/web/done#0", "-> Terminate").is_empty());
    device.restart_agent();
    device.wait_for("the other to run again", || device.story().len() == 4);
    device.go();
    device.pod("web").wait_gone();
    let mut story = device.story();
    story.sort();
    assert_eq!(story, ["cut", "cut", "started", "stopped"]);
}

/// The steps of a pod's end according to the documents. A pod is deleted; it is shown as `Terminating`, with
/// the time by which it is gone; hooks run, and one is still running when the grace period is over; each
/// container gets SIGTERM, and is killed two seconds later; the pod is in a terminal phase before it
/// disappears.
#[test]
fn the_end_of_a_pod_step_by_step() {
    let device = Device::start();
    let lifecycle = format!("lifecycle: {{preStop: {}}}\n", exec("sleep"));
    let slow = manifest::container("slow", "ignore-signals then sleep", &lifecycle);
    let quick = manifest::container("quick", "on-term 4 then print up then sleep", "");
    let text = manifest::pod_of("web", &[slow, quick], "terminationGracePeriodSeconds: 30\n");
    device.apply(&text);
    let web = device.pod("web");
    web.wait_ready();
    web.wait_log("quick", "up");
    let mut watch = device.command(&["get", "pods", "web", "--watch", "-o", "json"]);
    let watch = watch.stdout(std::process::Stdio::piped()).spawn().expect("nodlet can be run");

    // The default is the pod's own grace period.
    device.nodlet(["delete", "pod", "web", "--wait=false"]).ok();
    let object = web.object().expect("it is there as long as a process is");
    assert_eq!(object["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(object["metadata"]["deletionTimestamp"].is_string());
    // The deletion counts as one change, however often it is requested.
    assert_eq!(
        (&object["metadata"]["generation"], &object["status"]["observedGeneration"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(web.row().1, "Terminating");
    // A container without a hook ends at once; one with a hook does not get SIGTERM yet.
    device.wait_for("the other to end", || web.container("quick").exit_code() == Some(4));
    assert!(web.container("slow").is_running());
    assert!(asked(&device, "default/web/slow#0", "-> Terminate").is_empty());
    // A grace period can be shortened, but not extended.
    device.nodlet(["delete", "pod", "web", "--grace-period=60", "--wait=false"]).ok();
    let object = web.object().expect("it goes");
    assert_eq!(object["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(object["metadata"]["generation"], 2);
    device.nodlet(["delete", "pod", "web", "--grace-period=3", "--wait=false"]).ok();
    device.wait_for("the shorter grace to be shown", || {
        web.object().is_none_or(|object| object["metadata"]["deletionGracePeriodSeconds"] == 3)
    });
    web.wait_gone();
    let one = |what: &str| asked(&device, "default/web/slow#0", what);
    assert_eq!((one("-> Hook PreStop").len(), one("-> Terminate").len(), one("-> Kill").len()), (1, 1, 1));
    assert!(one("-> Kill")[0] - one("-> Terminate")[0] >= 1.99);

    nix::sys::signal::kill(nix::unistd::Pid::from_raw(watch.id() as i32), nix::sys::signal::Signal::SIGTERM)
        .expect("it runs");
    let seen = watch.wait_with_output().expect("it ends").stdout;
    let seen: Vec<Value> =
        serde_json::Deserializer::from_slice(&seen).into_iter().filter_map(Result::ok).collect();
    let last = seen.last().expect("it was watched");
    assert_eq!(last["status"]["phase"], "Failed", "the last that is seen of it is how it ended");
    let ended = |index: usize| &last["status"]["containerStatuses"][index]["state"]["terminated"]["exitCode"];
    assert_eq!((ended(0), ended(1)), (&json!(4), &json!(137)));
}

#[test]
fn a_forced_deletion_takes_the_object_away_and_leaves_what_runs_its_grace() {
    let device = Recorded::start();
    let hook = exec("append /one/story hook then wait /one/go");
    let app = hooked("app", "append /one/story up then sleep", &format!("preStop: {hook}"));
    let text = device.manifest("web", &[], &[app], "");
    device.apply(&text);
    let web = device.pod("web").wait_ready();
    device.wait_story(&["up"]);
    let uid = web.uid();
    device.nodlet(["delete", "pod", "web", "--force"]).ok();
    assert!(device.pods().is_empty(), "nobody is shown it any more");
    device.wait_story(&["up", "hook"]);
    assert_eq!(device.container_processes().len(), 2, "it and its hook go on");
    device.nodlet(["logs", "web"]).refused_with("pods \"web\" not found");
    // A new pod with the same name is accepted, and starts when the last process is gone.
    device.apply(&text);
    device.wait_for("the new one to be shown", || device.pods() == ["web"]);
    assert_ne!(web.uid(), uid);
    assert_eq!((web.phase().as_str(), device.story().len()), ("Pending", 2));
    device.go();
    web.wait_ready();
    device.wait_story(&["up", "hook", "up"]);
    assert_eq!(device.container_processes().len(), 1);
}

#[test]
fn a_pod_whose_own_grace_is_nothing_is_gone_at_once_when_it_is_deleted() {
    let device = Device::start();
    let spec = "terminationGracePeriodSeconds: 0";
    device.apply(&manifest::pod_with("web", "ignore-term then sleep", spec));
    let web = device.pod("web").wait_ready();
    let (code, _) = device.request("DELETE", "/api/v1/namespaces/default/pods/web", None);
    assert_eq!(code, 200);
    assert!(web.object().is_none(), "its object goes first");
    device.wait_for("its process to end", || device.container_processes().is_empty());
}
