//! The worked examples of the documents that nodlet implements: the same manifests and commands, and what
//! each of them shows. If an example needs a cluster, the test covers the behaviour of its pod, and its
//! comment says what replaces the rest.
//!
//! Examples that are tested elsewhere:
//!
//! * the steps of a pod's end (deletion, `Terminating`, preStop, SIGTERM, two more seconds, SIGKILL, a
//!   terminal phase before the object disappears): `hooks.rs`, `the_end_of_a_pod_step_by_step`;
//! * forced deletion: `hooks.rs`, `a_forced_deletion_takes_the_object_away_and_leaves_what_runs_its_grace`;
//! * the ephemeral container `debugger`, as it was added in 2019 and as it is today: `debug.rs`,
//!   `the_example_of_the_documents`;
//! * `X-Custom-Header: Awesome` on the wire: `probes.rs`, `headers_and_the_agent_name_are_sent_as_written`;
//! * the five steps of PodPresets, and the annotation that excludes a pod: `presets.rs`;
//! * sidecars that end last and in reverse order: `init.rs`;
//! * scripts that end by SIGTERM, or not: `down.rs`;
//! * a Service that a pod finds by its DNS name, which needs a cluster: `cluster_network.rs`,
//!   `a_service_is_reached_by_its_address_and_by_its_name_through_kube_proxy_and_coredns`.
//!
//! A pod on a single node cannot test: Deployments and Jobs that replace pods, Services and their endpoints,
//! and lost nodes. A board alone has no Services, and so no DNS names of them.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodlet_tests::image::Image;
use nodlet_tests::{Device, Kubectl, agnhost_program, manifest};
use serde_json::json;

mod scheduling;

/// A device with the image of `sh`, `tail` and `python3` that replaces the examples' busybox and alpine.
fn device() -> Device {
    let mut device = Device::new();
    device.start_agent();
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this is a member of the workspace");
    let image = project.join(".work/images/python3.oci.tar");
    assert!(image.exists(), "the image is not built: run `cargo xtask images`, or `cargo xtask check`");
    device.load_image(&image);
    device
}

/// Writes a file for commands that name it as in the examples.
fn file(device: &Device, name: &str, text: &str) -> String {
    device.write_file(name, text).display().to_string()
}

/// NAME, READY, STATUS and RESTARTS in the single row that `get -f` prints below its headings.
fn row(kubectl: &Kubectl, file: &str) -> Vec<String> {
    let table = kubectl.run(["get", "-f", file]).ok();
    let mut lines = table.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("NAME ")), "{table}");
    lines.next().unwrap_or_default().split_whitespace().take(4).map(str::to_owned).collect()
}

/// Init containers that wait for two services. The services are names that resolve: here by the file that all
/// containers have at `/etc/hosts`, which replaces the cluster's DNS. Creating a service means writing its
/// name into that file. A step that resolves names replaces `nslookup`.
#[test]
fn myapp_pod_waits_for_its_two_services() {
    let device = device();
    let kubectl = Kubectl::new(&device);
    let (shared, here) = device.shared("dns");
    fs::write(here.join("hosts"), "127.0.0.1 localhost\n").expect("the root can be written to");
    let until = |service: &str| {
        format!(
            "    command: ['sh', '-c', 'until python3 -c \"import socket; socket.gethostbyname(\\\"{service}\\\")\" 2> /dev/null; \
             do echo waiting for {service}; sleep 2; done;']\n    volumeMounts: [{{name: dns, mountPath: /etc/hosts, subPath: hosts}}]\n"
        )
    };
    let text = format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: myapp-pod
  labels:
    app: myapp
spec:
  dnsPolicy: None
  dnsConfig: {{nameservers: [127.0.0.1]}}
  volumes: [{{name: dns, hostPath: {{path: {shared}}}}}]
  containers:
  - name: myapp-container
    image: localhost/python3:1
    command: ['sh', '-c', 'echo The app is running! && sleep 3600']
  initContainers:
  - name: init-myservice
    image: localhost/python3:1
{}  - name: init-mydb
    image: localhost/python3:1
{}",
        until("myservice"),
        until("mydb")
    );
    let myapp = file(&device, "myapp.yaml", &text);
    assert_eq!(kubectl.run(["apply", "-f", &myapp]).ok(), "pod/myapp-pod created\n");
    let pod = device.pod("myapp-pod").wait_log("init-myservice", "waiting for myservice");
    assert_eq!(row(&kubectl, &myapp), ["myapp-pod", "0/1", "Init:0/2", "0"]);

    let described = kubectl.run(["describe", "-f", &myapp]).ok();
    // The lines that the example shows, in its order; the example omits others, and so does this test.
    let mut lines = described.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    for reported in [
        "Name: myapp-pod",
        "Namespace: default",
        "Labels: app=myapp",
        "Status: Pending",
        "Init Containers:",
        "init-myservice:",
        "State: Running",
        "init-mydb:",
        "State: Waiting",
        "Reason: PodInitializing",
        "Ready: False",
        "Containers:",
        "myapp-container:",
        "State: Waiting",
        "Reason: PodInitializing",
        "Ready: False",
        "Events:",
    ] {
        assert!(lines.any(|line| line == reported), "{reported:?} comes next in:\n{described}");
    }
    assert!(lines.any(|line| line.starts_with("Normal Started ")), "{described}");
    // The first init container has printed something, and the second has not started.
    assert!(
        kubectl.run(["logs", "myapp-pod", "-c", "init-myservice"]).ok().contains("waiting for myservice\n")
    );
    let ran = kubectl.run(["logs", "myapp-pod", "-c", "init-mydb"]);
    ran.refused_with("container \"init-mydb\" in pod \"myapp-pod\" is waiting to start: PodInitializing");

    // One service exists, so the other one is waited for.
    let hosts = |services: &str| {
        fs::write(here.join("hosts"), format!("127.0.0.1 localhost\n{services}")).expect("it is there");
    };
    hosts("10.0.0.1 myservice\n");
    pod.wait_log("init-mydb", "waiting for mydb");
    assert_eq!(row(&kubectl, &myapp), ["myapp-pod", "0/1", "Init:1/2", "0"]);
    hosts("10.0.0.1 myservice\n10.0.0.2 mydb\n");
    pod.wait_ready();
    assert_eq!(row(&kubectl, &myapp), ["myapp-pod", "1/1", "Running", "0"]);
    pod.wait_log("myapp-container", "The app is running!");

    // The syntax of Kubernetes 1.5, init containers in an annotation, has had no effect since 1.8.
    let old = "apiVersion: v1
kind: Pod
metadata:
  name: myapp-old
  annotations:
    pod.beta.kubernetes.io/init-containers: '[{\"name\": \"never\", \"image\": \"busybox:1.28\", \"command\": [\"false\"]}]'
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: myapp-container
    image: localhost/python3:1
    command: ['sh', '-c', 'echo The app is running! && sleep 3600']
";
    kubectl.apply(old).ok();
    device.pod("myapp-old").wait_log("myapp-container", "The app is running!");
    assert!(device.pod("myapp-old").status()["initContainerStatuses"].is_null());
}

/// The sidecar container of both sidecar examples.
const LOGSHIPPER: &str = "  - name: logshipper
    image: localhost/python3:1
    restartPolicy: Always
    command: ['sh', '-c', 'tail -F /opt/logs.txt']
    volumeMounts: [{name: data, mountPath: /opt}]
";

/// The pod of an example with its sidecar. As the first process of a container, `tail` ignores SIGTERM, so
/// its grace period is one second instead of thirty.
fn beside_logshipper(name: &str, command: &str, policy: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels: {{app: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: {policy}
  containers:
  - name: {name}
    image: localhost/python3:1
    command: ['sh', '-c', '{command}']
    volumeMounts: [{{name: data, mountPath: /opt}}]
  initContainers:
{LOGSHIPPER}  volumes:
  - name: data
    emptyDir: {{}}
"
    )
}

/// The pod that the Deployment `myapp` creates. There is no controller, so it is not replaced.
#[test]
fn the_sidecar_of_a_deployment_ships_its_logs_and_is_started_again() {
    let device = device();
    let command = "while true; do echo \"logging\" >> /opt/logs.txt; sleep 1; done";
    let myapp = device.write_pod("myapp", &beside_logshipper("myapp", command, "Always")).wait_ready();
    myapp.wait_log("logshipper", "logging");
    // The sidecar started before the main container, and counts as a container of the pod.
    let since = |name: &str| myapp.container(name).of_state("startedAt").to_string();
    assert!(since("logshipper") <= since("myapp"));
    assert!(myapp.container("logshipper").is_ready());
    let table = device.nodlet(["get", "pods", "--no-headers"]).ok();
    assert_eq!(table.split_whitespace().take(3).collect::<Vec<_>>(), ["myapp", "2/2", "Running"]);
    // If the sidecar fails, it is restarted, and the main container continues.
    let id = myapp.container("myapp").id();
    end(&device);
    myapp.wait_run("logshipper", 1).wait_ready();
    assert_eq!(myapp.container("myapp").id(), id);
}

/// Kills `tail`, which no signal from its own namespace can do.
fn end(device: &Device) {
    let is_tail = |process: &u32| {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("tail -F") || line.starts_with(b"tail\0")
    };
    let tails: Vec<u32> = device.container_processes().into_iter().filter(is_tail).collect();
    assert!(!tails.is_empty(), "it runs");
    for process in tails {
        // The process may already have ended together with its shell.
        let _ = kill(Pid::from_raw(process.cast_signed()), Signal::SIGKILL);
    }
}

/// The pod that the Job `myjob` creates: it is complete when its main container is, whatever the exit code of
/// its sidecar.
#[test]
fn the_sidecar_of_a_job_does_not_keep_it_from_completing() {
    let device = device();
    let myjob = device
        .write_pod("myjob", &beside_logshipper("myjob", "echo \"logging\" > /opt/logs.txt", "Never"))
        .wait_phase("Succeeded");
    assert_eq!(myjob.container("myjob").exit_code(), Some(0));
    assert_eq!(myjob.container("logshipper").exit_code(), Some(137));
    let table = device.nodlet(["get", "pods", "--no-headers"]).ok();
    assert_eq!(table.split_whitespace().take(3).collect::<Vec<_>>(), ["myjob", "0/2", "Completed"]);
}

const POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];

/// "Pod is running and has one container": the states of both, by exit code and policy.
#[test]
fn the_states_of_a_pod_with_one_container() {
    let device = Device::start();
    let name = |code: i32, policy: &str| format!("exits-{code}-{}", policy.to_lowercase());
    for code in [0, 1] {
        for policy in POLICIES {
            let name = name(code, policy);
            let spec = format!("restartPolicy: {policy}");
            // Only the first run ends.
            let steps = format!("wait /work/go then rm /work/go then exit {code}");
            let app = manifest::container("app", &steps, "volumeMounts: [{name: work, mountPath: /work}]");
            let spec = format!("{spec}\nvolumes: [{{name: work, emptyDir: {{}}}}]");
            device.run_pod_of(&name, &[app], &spec);
        }
    }
    for (code, policy, restarted, phase) in [
        (0, "Always", true, "Running"),
        (0, "OnFailure", false, "Succeeded"),
        (0, "Never", false, "Succeeded"),
        (1, "Always", true, "Running"),
        (1, "OnFailure", true, "Running"),
        (1, "Never", false, "Failed"),
    ] {
        let name = name(code, policy);
        let pod = device.pod(&name).wait_running("app");
        assert_eq!(pod.phase(), "Running");
        pod.tell("app", "/work/go");
        if restarted {
            pod.wait_run("app", 1);
            assert_eq!(pod.container("app").of_last("exitCode"), code);
        } else {
            device.wait_for("it to be over", || pod.container("app").exit_code() == Some(code.into()));
            pod.wait_phase(phase);
            assert_eq!(pod.container("app").restart_count(), 0);
        }
        assert_eq!(pod.phase(), phase, "{name}");
        let reason = if code == 0 { "Completed" } else { "Error" };
        let app = pod.container("app");
        let reported = if restarted { app.of_last("reason") } else { app.of_state("reason") };
        assert_eq!(reported, reason, "{name}");
    }
}

/// "Pod is running and has two containers": the first one fails; then, while it is not running, the second
/// one ends.
#[test]
fn the_states_of_a_pod_with_two_containers() {
    let device = Device::start();
    let name = |policy: &str| format!("two-{}", policy.to_lowercase());
    let mount = "volumeMounts: [{name: work, mountPath: /work}]";
    for policy in POLICIES {
        let ends = |name: &str| {
            let steps = format!("wait /work/{name} then rm /work/{name} then exit 1");
            manifest::container(name, &steps, mount)
        };
        let spec = format!("restartPolicy: {policy}\nvolumes: [{{name: work, emptyDir: {{}}}}]");
        device.run_pod_of(&name(policy), &[ends("first"), ends("second")], &spec);
    }
    for policy in POLICIES {
        let (name, never) = (name(policy), policy == "Never");
        let pod = device.pod(&name);
        pod.wait_running("first").wait_running("second");
        let second = pod.container("second").id();
        pod.tell("first", "/work/first");
        if never {
            device.wait_for("the first to end", || pod.container("first").exit_code() == Some(1));
        } else {
            pod.wait_run("first", 1);
        }
        assert_eq!(pod.phase(), "Running", "{name}: the second goes on");
        assert_eq!(pod.container("second").id(), second, "{name}");

        // The first one fails again: if the policy allows restarts, it now waits for its back-off.
        if !never {
            pod.tell("first", "/work/first");
            pod.wait_reason("first", "CrashLoopBackOff");
        }
        pod.tell("second", "/work/second");
        if never {
            pod.wait_phase("Failed");
            assert_eq!(pod.container("second").exit_code(), Some(1));
        } else {
            pod.wait_run("second", 1);
            assert_eq!(pod.phase(), "Running", "{name}");
        }
    }
}

/// "Container runs out of memory": killed, reported as such, and restarted by the policy.
#[test]
fn the_states_of_a_pod_whose_container_runs_out_of_memory() {
    let device = Device::start();
    for policy in POLICIES {
        let name = format!("hog-{}", policy.to_lowercase());
        let more = "resources: {limits: {memory: 32Mi}}\nvolumeMounts: [{name: work, mountPath: /work}]";
        // Only the first run uses too much memory.
        let app = manifest::container("app", "hog-once /work/again 200 then sleep", more);
        let spec = format!("restartPolicy: {policy}\nvolumes: [{{name: work, emptyDir: {{}}}}]");
        device.run_pod_of(&name, &[app], &spec);
    }
    for policy in POLICIES {
        let name = format!("hog-{}", policy.to_lowercase());
        let pod = device.pod(&name);
        let reported = |state: &dyn Fn(&str) -> serde_json::Value| (state("exitCode"), state("reason"));
        let oom = (137.into(), "OOMKilled".into());
        if policy == "Never" {
            pod.wait_phase("Failed");
            assert_eq!(reported(&|field| pod.container("app").of_state(field)), oom);
        } else {
            pod.wait_run("app", 1);
            assert_eq!(reported(&|field| pod.container("app").of_last(field)), oom, "{name}");
            assert_eq!(pod.phase(), "Running", "{name}");
        }
    }
}

/// The liveness example unchanged: agnhost responds for ten seconds and then no more.
#[test]
fn liveness_http_is_restarted_when_its_server_turns_sick() {
    let device = Device::start();
    device.load(
        &Image::new("registry.k8s.io/e2e-test-images/agnhost:2.40")
            .file("agnhost", 0o755, &agnhost_program())
            .directory("tmp", 0o1777)
            .config("Entrypoint", json!(["/agnhost"])),
    );
    device.write_manifest(
        "liveness.yaml",
        "apiVersion: v1
kind: Pod
metadata:
  labels:
    test: liveness
  name: liveness-http
spec:
  containers:
  - args:
    - liveness
    image: registry.k8s.io/e2e-test-images/agnhost:2.40
    livenessProbe:
      httpGet:
        # when \"host\" is not defined, \"PodIP\" will be used
        # when \"scheme\" is not defined, \"HTTP\" scheme will be used
        path: /healthz
        port: 8080
        httpHeaders:
        - name: X-Custom-Header
          value: Awesome
      initialDelaySeconds: 15
      timeoutSeconds: 1
    name: liveness
",
    );
    let pod = device.pod("liveness-http").wait_running("liveness");
    assert_eq!(pod.container("liveness").restart_count(), 0);
    device.wait_within(std::time::Duration::from_secs(120), "it to be restarted", || {
        pod.container("liveness").restart_count() == 1
    });
    let events = pod.events();
    for event in [
        "Unhealthy: Liveness probe failed: HTTP probe failed with statuscode: 500",
        "Killing: Container liveness failed liveness probe, will be restarted",
    ] {
        assert!(events.iter().any(|reported| reported == event), "{events:?}");
    }
}

/// The readiness gate of the example: a missing condition counts as `False`, and `Ready` follows the
/// condition, together with `ContainersReady`.
#[test]
fn the_readiness_gate_feature_1_is_unmet_until_its_condition_is_set() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let spec = "readinessGates: [{conditionType: www.example.com/feature-1}]";
    let web = device.run_pod_with("web", "sleep", spec);
    device.wait_for("its container to be ready", || web.condition("ContainersReady") == "True");
    assert_eq!(web.condition("Ready"), "False");
    let say = |status: &str| {
        let patch = json!({ "status": { "conditions": [
            { "type": "www.example.com/feature-1", "status": status,
              "lastProbeTime": null, "lastTransitionTime": "2018-01-01T00:00:00Z" }] } });
        let patch = patch.to_string();
        kubectl.run(["patch", "pod", "web", "--subresource=status", "-p", &patch]).ok();
    };
    say("False");
    assert_eq!(
        (web.condition("Ready").as_str(), web.condition("ContainersReady").as_str()),
        ("False", "True")
    );
    say("True");
    web.wait_ready();
    assert_eq!(web.condition("www.example.com/feature-1"), "True");
    say("False");
    device.wait_for("it to be unready", || !web.is_ready());
    assert_eq!(web.container("app").restart_count(), 0);
}
