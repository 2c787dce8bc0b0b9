//! Ephemeral containers as real processes: what they see, how long they last, and what they leave, with
//! `nodlet debug` and with the real `kubectl debug`.

use std::process::Stdio;

use nodlet_tests::image::Image;
use nodlet_tests::{Device, Kubectl, Terminal, TestPod, demo_program, manifest};
use serde_json::{Value, json};

/// Runs `nodlet debug` with a container in the pod `web`, with this command instead of the image's.
fn run_debug<const N: usize>(device: &Device, name: &str, flags: [&str; N], steps: &str) {
    let flags = flags.join(" ");
    device.line(&format!("debug web --image localhost/demo:1 -c {name} {flags} -- /bin/demo {steps}")).ok();
}

/// The pod `web`, which writes a file of its own and waits.
fn web(steps: &str, spec: &str) -> String {
    manifest::pod_with("web", steps, spec)
}

#[test]
fn a_debug_container_sees_the_processes_and_files_of_its_target() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let pod = device.write_pod("web", &web("write /secret found then sleep", "")).wait_ready();
    let id = pod.container("app").id();
    let words = "debug web --image localhost/demo:1 --target app -c look -- /bin/demo cat /proc/1/root/secret \
                 then cat /proc/1/cmdline then print . then ls /proc then hostname then exit 3";
    kubectl.line(words).ok_with("Targeting container \"app\"");
    pod.wait_terminated("look");
    let log = pod.logs("look");
    assert!(log.starts_with("found\n/bin/demo\0write\0/secret\0found\0then\0sleep\0.\n1\n"), "{log}");
    assert!(log.ends_with("\nweb\n"), "{log}");
    let debugger = pod.container("look");
    assert_eq!((debugger.exit_code(), debugger.restart_count(), debugger.is_ready()), (Some(3), 0, false));
    assert_eq!((pod.phase().as_str(), pod.is_ready()), ("Running", true));
    assert_eq!((pod.container("app").id(), pod.container("app").restart_count()), (id, 0));
    // Without a target, the container has a PID namespace of its own.
    run_debug(&device, "alone", [], "cat /proc/1/cmdline");
    pod.wait_terminated("alone");
    assert_eq!(pod.logs("alone"), "/bin/demo\0cat\0/proc/1/cmdline\0\n");

    // The container is visible in kubectl.
    let statuses =
        kubectl.run(["get", "pod", "web", "-o", "jsonpath={.status.ephemeralContainerStatuses[*].name}"]);
    assert_eq!(statuses.ok(), "alone look");
    let described = kubectl.run(["describe", "pod", "web"]).ok_with("Ephemeral Containers:\n  look:\n");
    assert!(
        described.contains("spec.ephemeralContainers{look}") || described.contains("Container started"),
        "{described}"
    );
    let ran = kubectl.run(["get", "events", "-o", "jsonpath={.items[*].involvedObject.fieldPath}"]);
    ran.ok_with("spec.ephemeralContainers{look}");
    assert_eq!(kubectl.run(["logs", "web", "-c", "look", "--tail=1"]).ok(), "web\n");
    let row = device.nodlet(["get", "pods", "--no-headers"]).ok();
    assert!(row.contains("1/1") && row.contains("Running"), "{row}");
    // The container has ended and is not restarted, even if an image is loaded.
    device.load_image(nodlet_tests::demo_archive());
    assert_eq!(pod.container("look").restart_count(), 0);
}

#[test]
fn attaching_shows_what_a_debug_container_has_written_before() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let pod = device.write_pod("web", &web("sleep", "")).wait_ready();
    // The container has written something, and continues, before a client attaches.
    for (name, by_kubectl) in [("ours", false), ("theirs", true)] {
        let steps = format!("print first then eprint second then wait /tmp/go then print {name}");
        run_debug(&device, name, ["-i", "--attach=false"], &steps);
        pod.wait_log(name, "second");
        let words = ["attach", "web", "-c", name];
        let mut command = if by_kubectl { kubectl.command(words) } else { device.command(&words) };
        let seen = |stream: &str| device.path(&format!("/{name}.{stream}"));
        let read = |stream: &str| std::fs::read_to_string(seen(stream)).expect("it is our file");
        let file = |stream: &str| std::fs::File::create(seen(stream)).expect("it is our directory");
        let client = command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err")).spawn();
        device.wait_for("it to see what was written before", || {
            read("out") == "first\n" && read("err").contains("second\n")
        });
        pod.tell(name, "/tmp/go");
        assert!(client.and_then(|mut client| client.wait()).expect("it can be run").success());
        assert_eq!(read("out"), format!("first\n{name}\n"));
    }
    // Input that has ended before the start must not end the session; only the container's input ends.
    let words = ["debug", "web", "-i", "-c", "late", "--image", "localhost/demo:1", "--", "/bin/demo"];
    let steps = ["print", "first", "then", "wait", "/tmp/go", "then", "echo", "then", "print", "last"];
    let mut command = device.command(&words);
    let client = command.args(steps).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    pod.wait_log("late", "first").wait_running("late");
    pod.tell("late", "/tmp/go");
    let output = client.and_then(std::process::Child::wait_with_output).expect("it can be run");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "first\nlast\n");
    // The container ends immediately: before a client attaches, or meanwhile.
    for flag in ["-i", "--attach"] {
        for number in 0..10 {
            let name = format!("at-once{}-{number}", flag.trim_start_matches('-'));
            let words = ["debug", "web", flag, "-c", &name, "--image", "localhost/demo:1", "--", "/bin/demo"];
            let output = device.command(&words).arg("hostname").stdin(Stdio::null()).output();
            assert_eq!(String::from_utf8_lossy(&output.expect("it can be run").stdout), "web\n", "{name}");
        }
    }
}

#[test]
fn the_terminal_of_a_debug_container_can_be_detached_and_attached_again() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let pod = device.write_pod("web", &web("sleep", "")).wait_ready();
    let words = |name: &str| {
        let line = format!(
            "debug -it web -c {name} --image localhost/demo:1 --target app -- /bin/demo tty then ask name? then echo"
        );
        line.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let (mut ours, mut theirs) = (device.command(&[]), kubectl.command([]));
    ours.args(words("ours"));
    theirs.args(words("theirs"));
    for (name, command) in [("ours", ours), ("theirs", theirs)] {
        let mut terminal = Terminal::start(command);
        terminal.wait_for("name? ");
        terminal.type_in("me\r");
        terminal.wait_for("me\r\nme\r\n");
        terminal.type_in("\u{10}\u{11}");
        assert_eq!(terminal.ended(), 0, "{}", terminal.screen());
        let mut terminal = Terminal::start(device.command(&["attach", "-it", "web", "-c", name]));
        terminal.wait_for("try pressing enter");
        terminal.type_in("again\r");
        terminal.wait_for("again\r\nagain\r\n");
        // End of input, which ends the program and with it the session.
        terminal.type_in("\u{4}");
        assert_eq!(terminal.ended(), 0, "{}", terminal.screen());
        pod.wait_terminated(name);
        assert_eq!(pod.container(name).exit_code(), Some(0));
    }
    // If the container has ended before a client could attach, its output is still printed.
    let debug = "debug -i web -c short --image localhost/demo:1 -- /bin/demo print done";
    let said = device.line(debug).ok();
    assert!(said.ends_with("done\n"), "{said}");
}

#[test]
fn a_debug_container_outlives_the_agent_and_ends_with_its_pod() {
    let mut device = Device::start();
    let (shared, here) = device.shared("one");
    let app = manifest::container("app", "sleep", "");
    let volume =
        format!("volumes: [{{name: one, hostPath: {{path: {shared}}}}}]\nterminationGracePeriodSeconds: 2");
    device.run_pod_of("web", &[app], &volume).wait_ready();
    // A custom ephemeral container, added by sending a Pod that has it.
    let (code, mut object) =
        device.request("GET", "/api/v1/namespaces/default/pods/web/ephemeralcontainers", None);
    assert_eq!(code, 200);
    // The version may have changed by then.
    object["metadata"]["resourceVersion"] = Value::Null;
    object["spec"]["ephemeralContainers"] = json!([{
        "name": "look", "image": "localhost/demo:1", "targetContainerName": "app",
        "args": ["append", "/one/story", "look", "then", "ignore-term", "then", "sleep"],
        "volumeMounts": [{"name": "one", "mountPath": "/one"}],
    }]);
    let target = "/api/v1/namespaces/default/pods/web/ephemeralcontainers";
    let (code, given) = device.request("PUT", target, Some(&object));
    assert_eq!(code, 200, "{given}");
    assert_eq!(given["spec"]["ephemeralContainers"][0]["terminationMessagePath"], "/dev/termination-log");
    let is_running = |device: &Device| device.pod("web").container("look").is_running();
    device.wait_for("it to run", || is_running(&device));
    let id = device.pod("web").container("look").id();
    device.restart_agent();
    device.wait_for("it to be found", || is_running(&device));
    assert_eq!(device.pod("web").container("look").id(), id);
    assert_eq!(device.pod("web").demo("look", "cat /one/story").ok(), "look\n");
    device.stop_agent();
    device.start_agent();
    device.wait_for("it to be found", || is_running(&device));
    assert_eq!(device.pod("web").container("app").restart_count(), 0);
    assert_eq!(std::fs::read_to_string(here.join("story")).expect("it was written"), "look\n");
    device.remove_pod("web");
    assert!(device.container_processes().is_empty());
    let left = device.records();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_debug_container_keeps_its_status_and_stays_ended_after_a_power_cut() {
    let mut device = Device::start();
    device.write_pod("web", &web("sleep", "")).wait_ready();
    run_debug(&device, "runs", [], "sleep");
    run_debug(&device, "waits", ["--image", "localhost/none:1"], "sleep");
    device.pod("web").wait_running("runs").wait_reason("waits", "ErrImagePull");
    let record = device.path(&format!("/var/lib/nodlet/records/{}.json", device.pod("web").uid()));
    device.wait_for("its not having begun to be on the card", || {
        std::fs::read_to_string(&record).is_ok_and(|text| text.contains(r#"{"name":"waits","attempts":0"#))
    });
    device.power_cycle();
    device.pod("web").wait_ready().wait_terminated("runs");
    let runs = device.pod("web").container("runs");
    assert_eq!((runs.exit_code(), runs.reason().as_str()), (Some(137), "ContainerStatusUnknown"));
    assert_eq!(runs.restart_count(), 0);
    assert_eq!(device.pod("web").container("waits").state(), "waiting");
    let object = device.pod("web").object().expect("it is there");
    assert_eq!(object["spec"]["ephemeralContainers"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_debug_container_waits_for_its_target_and_ends_with_it() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let mount = "volumeMounts: [{name: one, mountPath: /one}]";
    let containers = [
        manifest::container("app", "wait /one/go then rm /one/go then exit 1", mount),
        manifest::container("none", "sleep", "").replace("localhost/demo:1", "localhost/none:1"),
    ];
    let spec = format!("volumes: [{{name: one, hostPath: {{path: {shared}}}}}]");
    let pod = device.run_pod_of("web", &containers, &spec).wait_running("app");
    run_debug(&device, "beside", ["--target", "app"], "sleep");
    pod.wait_running("beside");
    run_debug(&device, "never", ["--target", "none"], "sleep");
    pod.wait_reason("never", "CreateContainerConfigError");
    assert_eq!(pod.container("never").message(), "unable to find target container none");
    // The end of the first process in the namespace kills all others.
    std::fs::write(here.join("go"), "").expect("it is our directory");
    pod.wait_terminated("beside");
    assert_eq!(pod.container("beside").exit_code(), Some(137));
    device.wait_for("the target to run again", || {
        pod.container("app").restart_count() > 0 && pod.container("app").is_running()
    });
    assert_eq!(pod.container("beside").state(), "terminated");
    // While the target waits for its next run, there is no namespace to join.
    std::fs::write(here.join("go"), "").expect("it is our directory");
    pod.wait_reason("app", "CrashLoopBackOff");
    run_debug(&device, "late", ["--target", "app"], "sleep");
    pod.wait_reason("late", "CreateContainerError");
    let message = pod.container("late").message();
    assert!(message.starts_with("invalid target container: container \""), "{message}");
    assert!(message.ends_with("\" is not running - in state CONTAINER_EXITED"), "{message}");
    pod.wait_running("late");
}

#[test]
fn debug_containers_wait_for_their_image_and_those_added_at_the_same_time_all_run_once() {
    let device = Device::start();
    let pod = device.write_pod("web", &web("sleep", "")).wait_ready();
    run_debug(
        &device,
        "never",
        ["--image", "localhost/tools:1", "--image-pull-policy", "Never"],
        "print seen",
    );
    run_debug(&device, "later", ["--image", "localhost/tools:1"], "print seen");
    pod.wait_reason("never", "ErrImageNeverPull");
    device.wait_for("it to say why it waits", || {
        ["ErrImagePull", "ImagePullBackOff"].contains(&pod.container("later").reason().as_str())
    });
    assert!(pod.is_ready());
    let program = std::fs::read(demo_program()).expect("it is built");
    device.load(&Image::demo("localhost/tools:1", &program));
    let names: Vec<String> = (0..12).map(|number| format!("look-{number}")).collect();
    std::thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| run_debug(&device, name, [], "print seen"));
        }
    });
    for name in ["never", "later"].into_iter().chain(names.iter().map(String::as_str)) {
        pod.wait_terminated(name);
        assert_eq!(pod.logs(name), "seen\n", "{name}");
    }
}

#[test]
fn invalid_changes_of_debug_containers_are_rejected_as_by_kubernetes() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    device.write_pod("web", &web("sleep", "")).wait_ready();
    run_debug(&device, "look", [], "sleep");
    let target = "/api/v1/namespaces/default/pods/web/ephemeralcontainers";
    let (_, object) = device.request("GET", target, None);
    let put = |containers: Value| {
        let mut changed = object.clone();
        changed["spec"]["ephemeralContainers"] = containers;
        changed["metadata"]["resourceVersion"] = Value::Null;
        let (code, status) = device.request("PUT", target, Some(&changed));
        (code, status["message"].as_str().unwrap_or_default().to_owned())
    };
    let invalid = |rest: &str| (422, format!("Pod \"web\" is invalid: spec.ephemeralContainers{rest}"));
    assert_eq!(
        put(json!([])),
        invalid(": Forbidden: existing ephemeral containers \"look\" may not be removed\n")
    );
    let mut other = object["spec"]["ephemeralContainers"][0].clone();
    other["image"] = "localhost/other:1".into();
    let (code, message) = put(json!([other]));
    assert_eq!(code, 422);
    assert!(message.contains("existing ephemeral containers \"look\" may not be changed\n"), "{message}");
    kubectl.line("debug web --image localhost/demo:1 --target none -c b").refused_with(
        "The Pod \"web\" is invalid: spec.ephemeralContainers[1].targetContainerName: Not found: \"none\"",
    );
    let ran = device.nodlet(["debug", "web", "--image", "localhost/demo:1", "-c", "app"]);
    ran.refused_with("spec.ephemeralContainers[1].name: Duplicate value: \"app\"");
    let ran = device.nodlet(["debug", "none", "--image", "localhost/demo:1"]);
    ran.refused_with("Error from server (NotFound): pods \"none\" not found");
    let old = json!({"apiVersion": "v1", "kind": "EphemeralContainers", "metadata": {"name": "web"}, "ephemeralContainers": []});
    let old_file = device.write_file("/tmp/old.json", old.to_string());
    let ran = kubectl.run(["replace", "--raw", target, "-f", &old_file.display().to_string()]);
    ran.refused_with("use `kubectl debug` or `nodlet debug`");
    // No part of it was stored, and the existing containers continue.
    let (_, after) = device.request("GET", target, None);
    // The unchanged object requests no change.
    let pod = "/api/v1/namespaces/default/pods/web";
    let (_, whole) = device.request("GET", pod, None);
    let (code, answer) = device.request("PUT", &format!("{pod}?dryRun=All"), Some(&whole));
    assert_eq!(code, 200, "{answer}");
    assert_eq!(after["spec"]["ephemeralContainers"], object["spec"]["ephemeralContainers"]);
    assert!(device.pod("web").is_ready());
    let words = ["debug", "web", "--attach", "--image", "localhost/demo:1", "-c", "typo", "--", "bash"];
    let refused = device.nodlet(words).refused_with("container typo did not start: ");
    assert!(refused.contains("\"bash\""), "{refused}");
}

#[test]
fn a_debug_container_gets_the_capabilities_of_its_profile() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let pod = device.write_pod("web", &web("sleep", "")).wait_ready();
    let effective = |name: &str| {
        let log = pod.logs(name);
        let line = log.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap_or_default().to_owned();
        u64::from_str_radix(&line, 16).expect("a set of capabilities")
    };
    const NET_ADMIN: u64 = 1 << 12;
    const SYS_PTRACE: u64 = 1 << 19;
    const SYS_ADMIN: u64 = 1 << 21;
    for (profile, has, has_not) in [
        ("general", SYS_PTRACE, NET_ADMIN | SYS_ADMIN),
        ("baseline", 0, NET_ADMIN | SYS_PTRACE | SYS_ADMIN),
        ("netadmin", NET_ADMIN, SYS_ADMIN),
        ("sysadmin", SYS_ADMIN | SYS_PTRACE, 0),
    ] {
        let line = format!(
            "debug web --image localhost/demo:1 --profile {profile} -c {profile} -- /bin/demo status"
        );
        kubectl.line(&line).ok();
        pod.wait_terminated(profile);
        let caps = effective(profile);
        // The machine itself may lack some of the capabilities.
        let possible = u64::from_str_radix(
            std::fs::read_to_string("/proc/self/status")
                .expect("it is there")
                .lines()
                .find_map(|line| line.strip_prefix("CapBnd:\t"))
                .expect("every process has it"),
            16,
        )
        .expect("a set of capabilities");
        assert_eq!((caps & has, caps & has_not), (has & possible, 0), "{profile}: {caps:x}");
    }
    // The image runs as root, which this profile does not allow.
    kubectl.line("debug web --image localhost/demo:1 --profile restricted -c r").ok();
    device.pod("web").wait_message("r", "runAsNonRoot");
}

/// A pod with fields of every form that protobuf has: numbers, amounts, names of ports, lists, maps, and messages within
/// messages.
const FULL: &str = r#"
nodeSelector: {kubernetes.io/os: linux}
terminationGracePeriodSeconds: 1
hostAliases: [{ip: 192.0.2.9, hostnames: [db, cache]}]
dnsPolicy: None
dnsConfig: {nameservers: [192.0.2.53], options: [{name: ndots, value: "2"}, {name: edns0}]}
tolerations: [{key: lamp, operator: Exists, effect: NoExecute, tolerationSeconds: 60}]
securityContext: {supplementalGroups: [7, 2147483647], fsGroup: 2000, sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: "0"}]}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/os, operator: In, values: [linux]}]}]
initContainers:
- name: first
  image: localhost/demo:1
  imagePullPolicy: Never
  command: [/bin/demo, exit, '0']
volumes:
- name: scratch
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: all
  projected:
    defaultMode: 288
    sources:
    - downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}
    - configMap: {name: absent, optional: true, items: [{key: a, path: b, mode: 256}]}
"#;

/// Of the container of [`FULL`].
const FULL_CONTAINER: &str = r#"
env:
- {name: EMPTY, value: ""}
- {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
- {name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
- {name: OPTIONAL, valueFrom: {secretKeyRef: {name: absent, key: a, optional: true}}}
envFrom: [{prefix: P_, configMapRef: {name: absent, optional: true}}]
ports: [{name: web, containerPort: 8080}]
resources: {requests: {cpu: 10m, memory: 8Mi}, limits: {memory: 64Mi}}
readinessProbe: {httpGet: {path: /bin/demo, port: web, httpHeaders: [{name: A, value: b}]}, periodSeconds: 1}
livenessProbe: {tcpSocket: {port: 8080}, initialDelaySeconds: 1, failureThreshold: 4, terminationGracePeriodSeconds: 2}
startupProbe: {exec: {command: [/bin/demo, exit, '0']}, periodSeconds: 1}
lifecycle: {preStop: {sleep: {seconds: 1}}}
securityContext: {runAsUser: 1000, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
volumeMounts: [{name: scratch, mountPath: /scratch}, {name: all, mountPath: /all, readOnly: true}]
"#;

/// kubectl sends the new pod as protobuf.
#[test]
fn kubectl_debugs_the_node_and_a_copy_of_a_pod_that_has_all_fields_of_the_first() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let container = manifest::container("web", "serve 8080 /", FULL_CONTAINER.trim());
    device.run_pod_of("web", &[container], FULL.trim()).wait_ready();
    let object = |name: &str| -> Value {
        serde_json::from_str(&kubectl.line(&format!("get pod {name} -o json")).ok()).expect("JSON")
    };
    let keep = "--keep-labels --keep-annotations --keep-liveness --keep-readiness --keep-startup";
    let words =
        format!("debug web --image localhost/demo:1 --copy-to copy {keep} -c look -- /bin/demo sleep");
    kubectl.line(&words).ok();
    device.pod("copy").wait_ready();
    let (first, mut copy) = (object("web")["spec"].take(), object("copy")["spec"].take());
    let added = copy["containers"].as_array_mut().expect("containers").pop().expect("the added one");
    assert_eq!((&added["name"], &added["command"]), (&json!("look"), &json!(["/bin/demo", "sleep"])));
    assert_eq!(copy["shareProcessNamespace"].take(), true);
    copy.as_object_mut().expect("a map").remove("shareProcessNamespace");
    assert_eq!(copy, first);

    // The command of the copy's container is another one, and the first pod goes.
    let words = "debug copy --copy-to second --container web --replace -- /bin/demo sleep";
    kubectl.line(words).ok();
    device.pod("second").wait_ready();
    assert_eq!(object("second")["spec"]["containers"][0]["command"], json!(["/bin/demo", "sleep"]));
    device.wait_for("the copy to be replaced", || device.pods() == ["second", "web"]);
    // Again under a name that is there.
    let ran = kubectl.line("debug web --copy-to second --image localhost/demo:1 -- /bin/demo sleep");
    ran.refused_with("pods \"second\" already exists");

    let node = kubectl.line("get nodes -o name").ok();
    kubectl.line(&format!("debug {} --image localhost/demo:1 -- /bin/demo sleep", node.trim())).ok();
    device.wait_for("the pod of the debugger", || device.pods().len() == 3);
    let name = device.pods().remove(0);
    assert!(name.starts_with("node-debugger-"), "{name}");
    let mounts = device.pod(&name).wait_ready().demo("debugger", "cat /proc/mounts");
    assert!(mounts.stdout.contains(" /host "), "{mounts:?}");
}

/// The example "Contoh: Kontainer Sementara" of the documents, in its form since Kubernetes 1.22.
#[test]
fn the_example_of_the_documents() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let nginx = manifest::container("nginx", "serve 8080 /", "");
    let pod = manifest::pod_of("example-pod", &[nginx], "shareProcessNamespace: true");
    let file =
        |name: &str, text: &str| device.write_file(&format!("/tmp/{name}"), text).display().to_string();
    kubectl.run(["create", "-f", &file("example-pod.yaml", &pod)]).ok();
    device.pod("example-pod").wait_ready();

    // The object as it was written in 2019.
    let debugger = json!({
        "command": ["/bin/demo", "ask", "/ #", "then", "echo"],
        "image": "localhost/demo:1",
        "imagePullPolicy": "IfNotPresent",
        "name": "debugger",
        "stdin": true,
        "tty": true,
        "terminationMessagePolicy": "File",
    });
    let ec = json!({
        "apiVersion": "v1", "kind": "EphemeralContainers", "metadata": {"name": "example-pod"},
        "ephemeralContainers": [debugger],
    });
    let target = "/api/v1/namespaces/default/pods/example-pod/ephemeralcontainers";
    let ran = kubectl.run(["replace", "--raw", target, "-f", &file("ec.json", &ec.to_string())]);
    ran.refused_with("kubectl debug");

    // The current form: the same container in a Pod, or by `kubectl debug`.
    let mut object: Value =
        serde_json::from_str(&kubectl.run(["get", "--raw", target]).ok()).expect("the pod is JSON");
    object["spec"]["ephemeralContainers"] = json!([debugger]);
    object["metadata"]["resourceVersion"] = Value::Null;
    let answer = kubectl.run(["replace", "--raw", target, "-f", &file("pod.json", &object.to_string())]).ok();
    let answer: Value = serde_json::from_str(&answer).expect("the pod is JSON");
    assert_eq!(answer["spec"]["ephemeralContainers"][0]["name"], "debugger");
    device.pod("example-pod").wait_running("debugger");

    // `kubectl describe` shows the container.
    let described = kubectl.run(["describe", "pod", "example-pod"]).ok();
    let (_, section) = described.split_once("Ephemeral Containers:\n").expect("there is a section");
    let mut lines = section.lines().map(str::trim);
    let mut next = |start: &str| {
        let line = lines.next().unwrap_or_default();
        assert!(line.starts_with(start), "{line} and not {start}:\n{described}");
        line[start.len()..].trim().to_owned()
    };
    next("debugger:");
    assert!(next("Container ID:").starts_with("nodlet://"));
    assert_eq!(next("Image:"), "localhost/demo:1");
    next("Image ID:");
    assert_eq!((next("Port:"), next("Host Port:")), ("<none>".into(), "<none>".into()));
    next("Command:");
    assert_eq!(["/bin/demo", "ask", "/ #", "then", "echo"].map(&mut next), ["", "", "", "", ""]);
    assert_eq!(next("State:"), "Running");
    next("Started:");
    assert_eq!((next("Ready:"), next("Restart Count:")), ("False".into(), "0".into()));
    assert_eq!((next("Environment:"), next("Mounts:")), ("<none>".into(), "<none>".into()));

    // `kubectl attach` connects to the container.
    let mut terminal = Terminal::start(kubectl.command(["attach", "-it", "example-pod", "-c", "debugger"]));
    terminal.wait_for("/ # ");
    terminal.type_in("ps auxww\r");
    terminal.wait_for("ps auxww\r\nps auxww\r\n");
    terminal.type_in("\u{10}\u{11}");
    assert_eq!(terminal.ended(), 0, "{}", terminal.screen());

    // With a shared process namespace, the container sees the processes of all containers.
    let pod = device.pod("example-pod");
    let name = |process: &str| pod.demo("debugger", &format!("cat /proc/{process}/cmdline")).ok();
    assert_eq!(pod.demo("debugger", "cat /proc/1/comm").ok(), "pause\n");
    let processes = pod.demo("debugger", "ls /proc").ok();
    let others = processes.lines().filter(|line| line.parse::<u32>().is_ok_and(|number| number > 1));
    let names: Vec<String> = others.filter(|process| is_living(&pod, process)).map(name).collect();
    assert!(names.iter().any(|name| name.starts_with("/bin/demo\0serve\0")), "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("/bin/demo\0ask\0")), "{names:?}");
    // So does one with a target: pause, the two containers, and itself.
    let words = "debug example-pod --image localhost/demo:1 --target nginx -c targeted -- /bin/demo ls /proc then sleep";
    kubectl.line(words).ok();
    let log = pod.wait_log("targeted", "uptime").logs("targeted");
    assert!(log.lines().filter(|line| line.parse::<u32>().is_ok()).count() >= 4, "{log}");
}

/// Whether the process lives longer than it takes to inspect it.
fn is_living(pod: &TestPod, process: &str) -> bool {
    pod.demo("debugger", &format!("stat /proc/{process}/cmdline")).code == 0
}
