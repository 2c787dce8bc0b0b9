//! Probes of real containers: what they see, what they cause, and that none waits for another.

use std::collections::BTreeMap;
use std::fs;

use nodlet_tests::steps::Steps;
use nodlet_tests::{Device, TestPod, manifest};

/// Writes a pod with a web server at its port 8080, which is named `web`.
fn serve<'a>(device: &'a Device, name: &'a str, probes: &str) -> TestPod<'a> {
    let more = format!("ports: [{{name: web, containerPort: 8080}}]\n{probes}");
    device.write_single(name, "serve 8080 /srv", &more, "")
}

/// A probe that a slow machine does not fail, with further fields.
fn patient(kind: &str, handler: &str, threshold: u32) -> String {
    format!("{kind}: {{{handler}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: {threshold}}}\n")
}

/// Asks the server whether it is well.
const HEALTH: &str = "httpGet: {path: /healthz, port: web}";

#[test]
fn readiness_follows_what_the_server_says() {
    let device = Device::start();
    let web = serve(&device, "web", &patient("readinessProbe", HEALTH, 2));
    web.wait_ready();
    web.demo("app", "touch /tmp/sick").ok();
    device.wait_for("the pod to be unready", || !web.is_ready());
    let event = "Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 500";
    assert!(web.events().contains(&event.to_owned()), "{:?}", web.events());
    web.demo("app", "rm /tmp/sick").ok();
    web.wait_ready();
    assert_eq!(web.container("app").restart_count(), 0, "readiness never restarts");
}

#[test]
fn a_failing_liveness_probe_restarts_the_container_and_says_why() {
    let device = Device::start();
    // The startup probe excludes failures because a server starts slowly on a busy machine.
    let probes = patient("startupProbe", HEALTH, 600) + &patient("livenessProbe", HEALTH, 2);
    let web = serve(&device, "web", &probes);
    web.wait_ready();
    web.demo("app", "touch /tmp/sick").ok();
    web.wait_run("app", 1);
    let event = "Killing: Container app failed liveness probe, will be restarted";
    assert!(web.events().contains(&event.to_owned()), "{:?}", web.events());
    // The new run has a fresh file system, without the file that makes it sick.
    web.wait_ready();
}

/// A kubelet keeps 10 KiB of the output (`maxReadLength`), and an API server stores an event with all of them.
#[test]
fn the_event_of_a_failed_probe_has_ten_kibibytes_of_its_output() {
    let device = Device::start();
    let handler = "exec: {command: [/bin/demo, line, '20000', then, exit, '1']}";
    let web = serve(&device, "web", &patient("readinessProbe", handler, 3));
    let failed = || web.events().into_iter().find(|event| event.starts_with("Unhealthy: "));
    device.wait_for("the failed probe", || failed().is_some());
    let event = failed().expect("it was there");
    let output = event.strip_prefix("Unhealthy: Readiness probe failed: ").expect(&event);
    assert_eq!(output.len(), 10 * 1024, "{event}");
}

#[test]
fn nothing_else_is_probed_until_the_startup_probe_has_succeeded() {
    let device = Device::start();
    let started = "exec: {command: [/bin/demo, cat, /tmp/started]}";
    let probes = patient("startupProbe", started, 600) + &patient("livenessProbe", started, 1);
    let slow = serve(&device, "slow", &probes);
    slow.wait_event("Unhealthy: Startup probe failed");
    assert!(!slow.is_ready());
    assert_eq!(slow.container("app").restart_count(), 0, "the liveness probe would have failed at once");
    slow.demo("app", "touch /tmp/started").ok();
    slow.wait_ready();
    assert_eq!(slow.container("app").restart_count(), 0);
}

#[test]
fn a_tcp_probe_succeeds_when_somebody_listens() {
    let device = Device::start();
    let probe = |port: u16| format!("readinessProbe: {{tcpSocket: {{port: {port}}}, periodSeconds: 1}}");
    let (open, shut) = (serve(&device, "open", &probe(8080)), serve(&device, "shut", &probe(8081)));
    open.wait_ready();
    shut.wait_event("Readiness probe failed: dial tcp");
    assert!(!shut.is_ready());
}

#[test]
fn redirects_are_followed_to_the_same_host_only() {
    let device = Device::start();
    let probe =
        |path: &str| format!("readinessProbe: {{httpGet: {{path: {path}, port: 8080}}, periodSeconds: 1}}");
    let same = serve(&device, "same", &probe("/redirect"));
    let other = serve(&device, "other", &probe("/redirect-away"));
    same.wait_ready();
    same.wait_log("app", "GET /healthz");
    // A redirect to another host counts as success, with a warning.
    other.wait_ready();
    other.wait_event("ProbeWarning: Readiness probe warning: Probe terminated redirects");
}

#[test]
fn headers_and_the_agent_name_are_sent_as_written() {
    let device = Device::start();
    let headers = "[{name: X-Test, value: here}, {name: Host, value: web.example}]";
    let request = format!("httpGet: {{path: '/headers?a=b', port: 8080, httpHeaders: {headers}}}");
    let web = serve(&device, "web", &format!("readinessProbe: {{{request}, periodSeconds: 1}}"));
    web.wait_ready();
    let log = web.logs("app").to_lowercase();
    for line in [
        "get /headers?a=b http/1.1",
        "host: web.example",
        "x-test: here",
        "user-agent: kube-probe/1.36",
        "accept: */*",
    ] {
        assert!(log.contains(line), "{line:?} in {log}");
    }
}

#[test]
fn an_exec_probe_that_overruns_is_killed_with_all_it_started() {
    let device = Device::start();
    let handler = "exec: {command: [/bin/demo, forks, \"2\", then, sleep]}";
    let probe = format!("readinessProbe: {{{handler}, periodSeconds: 3600, timeoutSeconds: 5}}");
    let slow = device.write_single("slow", "sleep", &probe, "");
    device.wait_for("the probe and its children", || device.container_processes().len() == 4);
    device.wait_for("only the container to be left", || device.container_processes().len() == 1);
    device.wait_for("the event", || {
        slow.events().iter().any(|event| {
            event.starts_with("Unhealthy: Readiness probe failed: command") && event.contains("timed out")
        })
    });
    assert_eq!(slow.container("app").restart_count(), 0);
}

#[test]
fn a_probe_that_is_over_before_it_has_a_name_is_not_lost() {
    let device = Device::start();
    let steps = Steps::hold_a_name(device.agent_pid());
    // There is only one probe, so no later one can compensate for its loss.
    let probe = "readinessProbe: {exec: {command: [/bin/demo, exit, \"0\"]}, periodSeconds: 3600, timeoutSeconds: 3600}";
    let quick = device.write_single("quick", "sleep", probe, "").wait_ready();
    assert!(steps.of(&quick.uid()).held, "no helper was held back");
    device.wait_for("the probe's cgroup to go", || {
        !device.cgroups().iter().any(|cgroup| cgroup.to_string_lossy().contains("/exec-"))
    });
    drop(steps);
}

#[test]
fn a_probe_that_hangs_holds_up_no_other() {
    let device = Device::start();
    let names = ["hang0", "hang1", "hang2", "hang3", "hang4", "hang5"];
    let slow = "httpGet: {path: /slow/3600, port: 8080}, periodSeconds: 1, timeoutSeconds: 3600";
    let pods = names.map(|name| serve(&device, name, &format!("readinessProbe: {{{slow}}}")));
    for pod in &pods {
        pod.wait_log("app", "GET /slow/3600");
    }
    serve(&device, "quick", &format!("readinessProbe: {{{HEALTH}, periodSeconds: 1}}")).wait_ready();
    for pod in pods {
        assert_eq!(pod.logs("app").matches("GET /slow/3600").count(), 1, "it hangs still");
        assert!(!pod.is_ready());
    }
}

#[test]
fn exec_probes_that_wait_leave_their_places_and_each_pod_gets_its_turn() {
    const OF_A_POD: usize = 4;
    const PODS: [&str; 3] = ["a", "b", "c"];
    const CONTAINERS: usize = 6;
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let (_, running) = device.shared("one/running");

    // Each probe has a file in the directory while it runs.
    let probed = |name: &str| {
        let steps = format!(
            "append /one/asked {name} then touch /one/running/{name} then wait /one/go then sleep 1 then rm /one/running/{name}"
        );
        let command: Vec<String> = steps.split(' ').map(|word| format!("{word:?}")).collect();
        let handler = format!("exec: {{command: [/bin/demo, {}]}}", command.join(", "));
        let mount = "volumeMounts: [{name: one, mountPath: /one}]\n";
        manifest::container(name, "sleep", &format!("{mount}{}", patient("readinessProbe", &handler, 3)))
    };
    let volume = format!("volumes: [{{name: one, hostPath: {{path: {shared}}}}}]");
    for pod in PODS {
        let containers: Vec<_> = (0..CONTAINERS).map(|number| probed(&format!("{pod}{number}"))).collect();
        device.run_pod_of(pod, &containers, &volume);
    }
    // Probes that wait leave their places to those of other pods; but each pod has a bound of its own.
    let of = |pod: &str| {
        let names = fs::read_dir(&running).expect("it is there").flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with(pod)).count()
    };
    device
        .wait_for("as many probes of each pod as it may have", || PODS.iter().all(|pod| of(pod) == OF_A_POD));
    // A probe that needs no place is performed nevertheless.
    serve(&device, "web", &format!("readinessProbe: {{{HEALTH}, periodSeconds: 1}}")).wait_ready();
    assert!(PODS.iter().all(|pod| of(pod) == OF_A_POD));
    fs::write(here.join("go"), "").expect("the root can be written to");

    let asked = || {
        let mut times = BTreeMap::new();
        for name in fs::read_to_string(here.join("asked")).unwrap_or_default().lines() {
            *times.entry(name.to_owned()).or_insert(0_usize) += 1;
        }
        times
    };
    device.wait_for("three turns of each", || {
        asked().len() == CONTAINERS * PODS.len() && asked().values().all(|times| *times >= 3)
    });
    let times = asked();
    assert!(times.values().all(|times| *times <= 5), "no turns: {times:?}");
    device.wait_all_ready(PODS);
}
