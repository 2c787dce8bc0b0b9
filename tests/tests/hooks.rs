//! Lifecycle hooks as real processes and requests, and the end of a pod: the order of events, the timeouts,
//! and what is reported.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use nodlet_tests::image::Image;
use nodlet_tests::{Device, demo_program, manifest};
use serde_json::{Value, json};

/// The mount of the directory in which the containers of a test record their actions.
const ONE: &str = "volumeMounts: [{name: one, mountPath: /one}]\n";

fn volumes(shared: &str) -> String {
    format!("volumes: [{{name: one, hostPath: {{path: {shared}}}}}]\n")
}

/// A hook `{exec: …}` with these steps.
fn exec(steps: &str) -> String {
    let words: Vec<String> =
        ["/bin/demo"].into_iter().chain(steps.split_whitespace()).map(|word| format!("{word:?}")).collect();
    format!("{{exec: {{command: [{}]}}}}", words.join(", "))
}

/// The actions that the containers of a test have recorded, in order.
fn story(here: &Path) -> Vec<String> {
    let text = fs::read_to_string(here.join("story")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The times in seconds at which the agent's ring has this entry for a run of a container.
fn asked(device: &Device, run: &str, what: &str) -> Vec<f64> {
    let ring = device.nodlet(["ring"]).ok();
    let lines = ring.lines().filter(|line| line.contains(&format!("{run} {what}")));
    lines.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

fn status_word(device: &Device, pod: &str) -> String {
    let table = device.nodlet(["get", "pods", "--no-headers"]).stdout;
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(pod)).unwrap_or_default();
    line.split_whitespace().nth(2).unwrap_or_default().to_owned()
}

fn wait_event(device: &Device, pod: &str, event: &str) {
    device.wait_for(&format!("the event {event}"), || {
        device.pod(pod).events().iter().any(|reported| reported == event)
    });
}

#[test]
fn a_container_is_running_when_its_post_start_hook_is_over_and_then_the_next_begins() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let hook = exec("print aside then wait /one/go then append /one/story hook");
    let a = manifest::container(
        "a",
        "append /one/story a then print up then sleep",
        &format!("{ONE}lifecycle: {{postStart: {hook}}}\n"),
    );
    let b = manifest::container("b", "append /one/story b then sleep", ONE);
    device.write_manifest("web.yaml", &manifest::pod_of("web", &[a, b], &volumes(&shared)));
    let web = device.pod("web");
    device.wait_for("the container to run", || story(&here) == ["a"]);
    device.wait_for("its hook to run", || !asked(&device, "default/web/a#0", "-> Hook PostStart").is_empty());
    // The container's process exists, but the container has not started.
    device.wait_for("both to run", || device.container_processes().len() == 2);
    assert_eq!(
        (web.container("a").state(), web.container("a").reason().as_str()),
        ("waiting", "ContainerCreating")
    );
    assert_eq!(
        (web.phase().as_str(), status_word(&device, "web").as_str()),
        ("Pending", "ContainerCreating")
    );
    // An exec is possible nevertheless, but not in a container that has no process yet.
    assert_eq!(web.exec("a", ["/bin/demo", "cat", "/one/story"]).ok(), "a\n");
    let refused = device.nodlet(["exec", "web", "-c", "b", "--", "/bin/demo", "id"]).refused();
    assert!(refused.contains("container \"b\" in pod \"web\" is not running"), "{refused}");

    fs::write(here.join("go"), "").expect("the root can be written to");
    web.wait_ready();
    device.wait_for("the next to have begun", || story(&here).len() == 3);
    assert_eq!(story(&here), ["a", "hook", "b"]);
    assert_eq!(web.logs("a"), "up\n", "a hook does not write into the log");
    let gone = story(&here).len();
    device.remove_manifest("web.yaml");
    web.wait_gone();
    assert_eq!(story(&here).len(), gone);
}

#[test]
fn a_container_whose_post_start_hook_fails_is_killed_and_says_why() {
    let device = Device::start();
    let hook = exec("wait /tmp/up then print part then eprint no then exit 3");
    let app = manifest::container(
        "app",
        "touch /tmp/up then sleep",
        &format!("lifecycle: {{postStart: {hook}}}\n"),
    );
    device.write_manifest("web.yaml", &manifest::pod_of("web", &[app], ""));
    let web = device.pod("web");
    device.wait_for("it to be reported", || web.container("app").reason() == "PostStartHookError");
    let command = "/bin/demo wait /tmp/up then print part then eprint no then exit 3";
    assert_eq!(
        web.container("app").message(),
        format!(
            "Exec lifecycle hook ([{command}]) for Container \"app\" in Pod \"web_default({})\" failed - error: \
             command '{command}' exited with 3: no\n, message: \"part\\nno\\n\"",
            web.uid()
        )
    );
    wait_event(&device, "web", "FailedPostStartHook: PostStartHook failed");
    wait_event(&device, "web", "Killing: FailedPostStartHook");
    // The container gets SIGTERM, and is restarted as after any other end.
    device.wait_for("a restart", || web.container("app").restart_count() >= 1);
    assert_eq!(web.container("app").of_last("exitCode"), 0);
    assert_eq!(status_word(&device, "web"), "PostStartHookError");
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
    device.write_manifest("web.yaml", &manifest::pod_behind("web", &[server], &[app], ""));
    let web = device.pod("web");
    web.wait_ready();
    let log = web.logs("server");
    let reported = format!(
        "GET /headers?a=b HTTP/1.1\r\nHost: {}:8080\r\nUser-Agent: kube-lifecycle/1.36\r\nAccept: */*\r\n",
        web.ip()
    );
    assert!(log.contains(&reported) && log.contains("X-Who: app"), "{log}");
    let mut follow = device.command(&["logs", "-f", "web", "-c", "server"]);
    let mut follow = follow.stdout(std::process::Stdio::piped()).spawn().expect("nodlet can be run");
    let mut lines = BufReader::new(follow.stdout.take().expect("it is piped"));
    let mut log = String::new();
    while !log.contains("X-Who") {
        assert_ne!(lines.read_line(&mut log).expect("a log is text"), 0, "{log}");
    }
    device.remove_manifest("web.yaml");
    lines.read_to_string(&mut log).expect("it ends with the container");
    follow.wait().expect("it ends");
    web.wait_gone();
    for line in ["GET /redirect HTTP/1.1", "GET /healthz HTTP/1.1", "GET /status/500 HTTP/1.1"] {
        assert!(log.contains(line), "{line}: {log}");
    }
    assert!(!web.events().iter().any(|event| event.contains("Hook")), "{:?}", web.events());
}

#[test]
fn a_hook_whose_port_does_not_exist_fails_by_name_and_by_number() {
    let device = Device::start();
    let pod = |name: &str, lifecycle: &str| {
        let app = manifest::container("app", "sleep", &format!("lifecycle: {{{lifecycle}}}\n"));
        let spec = "terminationGracePeriodSeconds: 1\n";
        device.write_manifest(&format!("{name}.yaml"), &manifest::pod_of(name, &[app], spec));
    };
    pod("named", "postStart: {httpGet: {port: nope}}");
    pod("closed", "postStart: {httpGet: {port: 9, path: /x}}");
    pod("ends", "preStop: {httpGet: {port: 9}}");
    pod("tcp", "postStart: {tcpSocket: {port: 9}}");
    let wait = |name: &str| {
        device.wait_for(name, || device.pod(name).container("app").reason() == "PostStartHookError");
        device.pod(name).container("app").message()
    };
    let text = |name: &str, path: &str, error: &str| {
        let uid = device.pod(name).uid();
        format!(
            "HTTP lifecycle hook ({path}) for Container \"app\" in Pod \"{name}_default({uid})\" failed - error: {error}"
        )
    };
    let said = wait("named");
    assert_eq!(said, text("named", "/", "strconv.Atoi: parsing \"nope\": invalid syntax"));
    let (said, ip) = (wait("closed"), device.pod("closed").ip());
    assert_eq!(
        said,
        text(
            "closed",
            "/x",
            &format!("Get \"http://{ip}:9/x\": dial tcp {ip}:9: connect: connection refused")
        )
    );
    assert!(wait("tcp").starts_with("Cannot run handler: invalid handler: &LifecycleHandler{"));
    device.pod("ends").wait_ready();
    device.remove_manifest("ends.yaml");
    device.pod("ends").wait_gone();
    wait_event(&device, "ends", "FailedPreStopHook: PreStopHook failed");
}

/// A container whose liveness probe fails when `/one/alive` is missing, with this grace period in seconds.
fn alive(steps: &str, grace: u32, hook: &str) -> String {
    let probe = exec("stat /one/alive");
    let probe = probe.strip_suffix('}').expect("it is a map");
    let more = format!(
        "{ONE}lifecycle: {{preStop: {hook}}}\n\
         livenessProbe: {probe}, periodSeconds: 1, failureThreshold: 1, terminationGracePeriodSeconds: {grace}}}\n"
    );
    manifest::container("app", steps, &more)
}

/// Makes the liveness probe kill the pod's container, and waits for its next run.
fn kill_by_probe(device: &Device, here: &Path) {
    let web = device.pod("web");
    fs::remove_file(here.join("alive")).expect("it is there");
    device.wait_for("its end", || !asked(device, "default/web/app#0", "<- Exited").is_empty());
    fs::write(here.join("alive"), "").expect("the root can be written to");
    device.wait_for("its restart", || web.container("app").restart_count() >= 1);
}

#[test]
fn a_pre_stop_hook_that_hangs_has_the_grace_of_the_probe_and_its_container_two_seconds_more() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    fs::write(here.join("alive"), "").expect("the root can be written to");
    let app = alive("ignore-signals then print up then sleep", 3, &exec("sleep"));
    let spec = format!("{}terminationGracePeriodSeconds: 1\n", volumes(&shared));
    device.write_manifest("web.yaml", &manifest::pod_of("web", &[app], &spec));
    device.pod("web").wait_log("app", "up");
    kill_by_probe(&device, &here);
    let one = |what: &str| asked(&device, "default/web/app#0", what)[0];
    let (hook, term, kill) = (one("-> Hook PreStop"), one("-> Terminate"), one("-> Kill"));
    assert!(term - hook >= 2.99 && kill - term >= 1.99, "{hook} {term} {kill}");
    assert_eq!(device.pod("web").container("app").of_last("exitCode"), 137);
    wait_event(&device, "web", "Killing: Container app failed liveness probe, will be restarted");
    wait_event(&device, "web", "FailedPreStopHook: PreStopHook failed");
}

#[test]
fn a_server_that_never_answers_its_hook_is_asked_to_end_when_the_grace_is_over() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    fs::write(here.join("alive"), "").expect("the root can be written to");
    let server = alive("serve 8080 /", 1, "{httpGet: {path: /slow/100, port: 8080}}");
    let spec = format!("{}terminationGracePeriodSeconds: 1\n", volumes(&shared));
    device.write_manifest("web.yaml", &manifest::pod_of("web", &[server], &spec));
    device.pod("web").wait_log("app", "serving");
    kill_by_probe(&device, &here);
    assert_eq!(device.pod("web").container("app").of_last("exitCode"), 0);
    wait_event(&device, "web", "FailedPreStopHook: PreStopHook failed");
}

#[test]
fn a_sleep_holds_the_signal_back_and_is_cut_by_the_grace() {
    let device = Device::start();
    let app = |seconds: u32| {
        let hook = format!(
            "lifecycle: {{postStart: {{sleep: {{seconds: 1}}}}, preStop: {{sleep: {{seconds: {seconds}}}}}}}\n"
        );
        manifest::container("app", "print up then sleep", &hook)
    };
    device.write_manifest("short.yaml", &manifest::pod_of("short", &[app(2)], ""));
    // A pod that is defined by a file cannot be deleted by name.
    device.nodlet_with_input(["apply", "-f", "-"], &manifest::pod_of("long", &[app(25)], "")).ok();
    for name in ["short", "long"] {
        device.pod(name).wait_ready();
    }
    device.remove_manifest("short.yaml");
    device.nodlet(["delete", "pod", "long", "--grace-period=1", "--wait=false"]).ok();
    for name in ["short", "long"] {
        device.pod(name).wait_gone();
    }
    let held = |name: &str| {
        let ring = device.nodlet(["ring"]).ok();
        let at = |what: &str| -> f64 {
            let line =
                ring.lines().find(|line| line.contains(&format!("default/{name}")) && line.contains(what));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
        };
        at("-> Terminate") - at("<- Unwanted")
    };
    assert!((1.99..20.0).contains(&held("short")), "{}", held("short"));
    assert!((0.99..20.0).contains(&held("long")), "{}", held("long"));
    assert!(!device.pod("long").events().iter().any(|event| event.contains("Hook")));
}

#[test]
fn sidecars_run_their_hooks_at_once_and_end_last() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let noting = |name: &str, more: &str| {
        let hook = exec(&format!("append /one/story {name}-hook"));
        let more = format!(
            "{ONE}{more}lifecycle: {{postStart: {}, preStop: {hook}}}\n",
            exec(&format!("append /one/story {name}-up"))
        );
        manifest::container(name, "sleep", &more)
    };
    let late = {
        let hook = exec("append /one/story app-hook then wait /one/go");
        manifest::container("app", "sleep", &format!("{ONE}lifecycle: {{preStop: {hook}}}\n"))
    };
    let init = [noting("log", "restartPolicy: Always\n"), noting("proxy", "restartPolicy: Always\n")];
    device.write_manifest("web.yaml", &manifest::pod_behind("web", &init, &[late], &volumes(&shared)));
    let web = device.pod("web");
    web.wait_ready();
    assert_eq!(story(&here), ["log-up", "proxy-up"]);
    device.remove_manifest("web.yaml");
    device.wait_for("all hooks to run", || story(&here).len() == 5);
    let ring = device.nodlet(["ring"]).ok();
    assert!(ring.contains("-> Hook PreStop") && !ring.contains("-> Terminate"), "{ring}");
    assert!(web.container("log").is_running() && web.container("proxy").is_running());
    fs::write(here.join("go"), "").expect("the root can be written to");
    web.wait_gone();
    let ring = device.nodlet(["ring"]).ok();
    let asked = ring.lines().filter(|line| line.ends_with("-> Terminate"));
    let names: Vec<_> =
        asked.filter_map(|line| line.split("default/web/").nth(1)?.split('#').next()).collect();
    assert_eq!(names, ["app", "proxy", "log"]);
}

#[test]
fn a_container_that_ignores_every_signal_and_daemons_out_of_its_session_end_with_their_grace() {
    let device = Device::start();
    for (name, steps, spec) in [
        ("deaf", "ignore-signals then print up then sleep", ""),
        ("daemons", "daemon sleep then daemon sleep then print up then sleep", ""),
        ("shared", "daemon sleep then print up then sleep", "shareProcessNamespace: true\n"),
        (
            "deaf-shared",
            "daemon sleep then ignore-signals then print up then sleep",
            "shareProcessNamespace: true\n",
        ),
    ] {
        let spec = format!("terminationGracePeriodSeconds: 1\n{spec}");
        device.write_manifest(&format!("{name}.yaml"), &manifest::pod_with(name, steps, &spec));
    }
    let names = ["deaf", "daemons", "shared", "deaf-shared"];
    for name in names {
        device.pod(name).wait_log("app", "up");
        device.remove_manifest(&format!("{name}.yaml"));
    }
    for name in names {
        device.pod(name).wait_gone();
    }
    assert!(device.container_processes().is_empty(), "nothing of them is left");
    for name in ["deaf", "deaf-shared"] {
        assert_eq!(asked(&device, &format!("default/{name}/app#0"), "-> Kill").len(), 1, "{name}");
    }
    assert_eq!(asked(&device, "default/daemons/app#0", "-> Kill").len(), 0);
}

#[test]
fn the_signal_of_a_container_comes_before_that_of_its_image() {
    let device = Device::start();
    let program = fs::read(demo_program()).expect("the demo program is built");
    device.load(&Image::demo("localhost/stops:1", &program).config("StopSignal", "SIGKILL".into()));
    let app = manifest::container(
        "app",
        "ignore-term then on-term 7 then on-signal SIGUSR1 then print up then sleep",
        "lifecycle: {stopSignal: SIGUSR1}\n",
    );
    let text = manifest::pod_of("web", &[app], "os: {name: linux}\n")
        .replace("localhost/demo:1", "localhost/stops:1");
    device.write_manifest("web.yaml", &text);
    let web = device.pod("web");
    web.wait_log("app", "up");
    device.remove_manifest("web.yaml");
    web.wait_gone();
    let ring = device.nodlet(["ring"]).ok();
    assert!(ring.contains("default/web/app#0 <- Exited with 7"), "{ring}");
    let refused = text.replace("  os: {name: linux}\n", "").replace("name: web", "name: other");
    let refused = device.nodlet_with_input(["apply", "-f", "-"], &refused).refused();
    assert!(
        refused.contains("spec.containers[0].lifecycle.stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`"),
        "{refused}"
    );
}

#[test]
fn an_agent_that_dies_under_hooks_runs_none_again_that_is_over() {
    let mut device = Device::start();
    let (shared, here) = device.shared("one");
    let done = manifest::container(
        "done",
        "ignore-term then sleep",
        &format!(
            "{ONE}lifecycle: {{postStart: {}, preStop: {}}}\n",
            exec("append /one/story started"),
            exec("append /one/story stopped")
        ),
    );
    let cut = manifest::container(
        "cut",
        "sleep",
        &format!("{ONE}lifecycle: {{preStop: {}}}\n", exec("append /one/story cut then wait /one/go")),
    );
    let spec = format!("{}terminationGracePeriodSeconds: 10\n", volumes(&shared));
    device.write_manifest("web.yaml", &manifest::pod_of("web", &[done, cut], &spec));
    device.pod("web").wait_ready();
    let born = device.pod("web").born("done");
    device.kill_agent();
    device.start_agent();
    device.pod("web").wait_ready();
    assert_eq!(device.pod("web").born("done"), born);
    device.remove_manifest("web.yaml");
    device.wait_for("both hooks to run", || story(&here).len() == 3);
    device.wait_for("one to be over", || !asked(&device, "default/web/done#0", "-> Terminate").is_empty());
    device.kill_agent();
    device.start_agent();
    device.wait_for("the other to run again", || story(&here).len() == 4);
    fs::write(here.join("go"), "").expect("the root can be written to");
    device.pod("web").wait_gone();
    let mut reported = story(&here);
    reported.sort();
    assert_eq!(reported, ["cut", "cut", "started", "stopped"]);
}

/// The steps of a pod's end according to the documents. A pod is deleted; it is shown as `Terminating`, with
/// the time by which it is gone; hooks run, and one is still running when the grace period is over; each
/// container gets SIGTERM, and is killed two seconds later; the pod is in a terminal phase before it
/// disappears.
#[test]
fn the_end_of_a_pod_step_by_step() {
    let device = Device::start();
    let slow = manifest::container(
        "slow",
        "ignore-signals then sleep",
        &format!("lifecycle: {{preStop: {}}}\n", exec("sleep")),
    );
    let quick = manifest::container("quick", "on-term 4 then print up then sleep", "");
    let text = manifest::pod_of("web", &[slow, quick], "terminationGracePeriodSeconds: 30\n");
    device.nodlet_with_input(["apply", "-f", "-"], &text).ok();
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
    assert_eq!(status_word(&device, "web"), "Terminating");
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
    let codes: Vec<_> = last["status"]["containerStatuses"]
        .as_array()
        .expect("containers")
        .iter()
        .map(|one| one["state"]["terminated"]["exitCode"].as_i64())
        .collect();
    assert_eq!(codes, [Some(4), Some(137)]);
}

#[test]
fn a_forced_deletion_takes_the_object_away_and_leaves_what_runs_its_grace() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let hook = exec("append /one/story hook then wait /one/go");
    let app = manifest::container(
        "app",
        "append /one/story up then sleep",
        &format!("{ONE}lifecycle: {{preStop: {hook}}}\n"),
    );
    let text = manifest::pod_of("web", &[app], &volumes(&shared));
    device.nodlet_with_input(["apply", "-f", "-"], &text).ok();
    device.pod("web").wait_ready();
    device.wait_for("it to be up", || story(&here) == ["up"]);
    let uid = device.pod("web").uid();
    device.nodlet(["delete", "pod", "web", "--force"]).ok();
    assert!(device.pods().is_empty(), "nobody is shown it any more");
    device.wait_for("its hook to run", || story(&here) == ["up", "hook"]);
    assert_eq!(device.container_processes().len(), 2, "it and its hook go on");
    let refused = device.nodlet(["logs", "web"]).refused();
    assert!(refused.contains("pods \"web\" not found"), "{refused}");
    // A new pod with the same name is accepted, and starts when the last process is gone.
    device.nodlet_with_input(["apply", "-f", "-"], &text).ok();
    device.wait_for("the new one to be shown", || device.pods() == ["web"]);
    assert_ne!(device.pod("web").uid(), uid);
    assert_eq!((device.pod("web").phase().as_str(), story(&here).len()), ("Pending", 2));
    fs::write(here.join("go"), "").expect("the root can be written to");
    device.pod("web").wait_ready();
    device.wait_for("the new one to be up", || story(&here) == ["up", "hook", "up"]);
    assert_eq!(device.container_processes().len(), 1);
}

#[test]
fn a_pod_whose_own_grace_is_nothing_is_gone_at_once_when_it_is_deleted() {
    let device = Device::start();
    let text = manifest::pod_with("web", "ignore-term then sleep", "terminationGracePeriodSeconds: 0");
    let file = device.path("/web.yaml");
    std::fs::write(&file, text).expect("the root can be written to");
    device.nodlet(["apply", "-f", &file.display().to_string()]).ok();
    device.pod("web").wait_ready();
    let (code, _) = device.request("DELETE", "/api/v1/namespaces/default/pods/web", None);
    assert_eq!(code, 200);
    assert!(device.pod("web").object().is_none(), "its object goes first");
    device.wait_for("its process to end", || device.container_processes().is_empty());
}
