//! The two ways to end an agent: `nodlet down`, which also ends all pods, and SIGTERM, which ends nothing
//! else. The harness checks after every test that nothing is left behind.

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, mkdirat};
use nodlet_tests::{Device, manifest};

#[test]
fn down_stops_the_pods_in_order_and_gives_them_their_grace() {
    let device = Device::start();
    let (shared, here) = device.shared("ends");
    let steps = "forks 2 then on-term 0 1 then lock /ends/lock then print up then sleep";
    let app = manifest::container("app", steps, "volumeMounts: [{name: ends, mountPath: /ends}]");
    let spec = format!("volumes: [{{name: ends, hostPath: {{path: {shared}}}}}]");
    device.run_pod_of("web", &[app], &spec).wait_log("app", "up");
    device.nodlet(["down"]).ok();
    assert!(device.container_processes().is_empty());
    let lock = std::fs::File::open(here.join("lock")).expect("the container made it");
    lock.try_lock().expect("nobody holds it any more");
}

#[test]
fn after_down_what_has_finished_stays_finished_and_the_rest_continues_its_counts() {
    let mut device = Device::start();
    for (name, steps, policy) in [
        ("job", "print done", "Never"),
        ("once", "print up then sleep", "Never"),
        ("web", "print up then sleep", "Always"),
    ] {
        device.run_pod_with(name, steps, &format!("restartPolicy: {policy}"));
    }
    device.pod("job").wait_phase("Succeeded");
    device.pod("once").wait_log("app", "up");
    device.pod("web").wait_log("app", "up");
    let of = |device: &Device, name: &str| device.pod(name).status();
    let (job, web) = (of(&device, "job"), of(&device, "web"));
    device.nodlet(["down"]).ok();
    assert_eq!(device.agent_ended(), 0);
    device.start_agent();
    device.pod("web").wait_ready();
    let now = of(&device, "web");
    assert_eq!(now["startTime"], web["startTime"]);
    assert_eq!(now["containerStatuses"][0]["restartCount"], 1, "{now}");
    assert!(now["containerStatuses"][0]["lastState"]["terminated"].is_object(), "{now}");
    assert_eq!(of(&device, "job")["containerStatuses"], job["containerStatuses"]);
    // Neither does another `down` forget what has finished, whether an agent runs or not.
    device.nodlet(["down"]).ok();
    assert_eq!(device.agent_ended(), 0);
    device.nodlet(["down"]).ok();
    device.start_agent();
    device.pod("web").wait_ready();
    assert_eq!(of(&device, "job")["containerStatuses"], job["containerStatuses"]);
    assert_eq!(device.pod("once").phase(), "Failed");
    device.nodlet(["down"]).ok();
}

#[test]
fn after_an_orderly_reboot_applied_pods_continue_their_ages_and_counts() {
    let mut device = Device::start();
    let (shared, _) = device.shared("marks");
    let apply = |name: &str, steps: &str, policy: &str| {
        let app = manifest::container("app", steps, "volumeMounts: [{name: marks, mountPath: /marks}]");
        let volume = format!("{{name: marks, hostPath: {{path: {shared}}}}}");
        let spec = format!("restartPolicy: {policy}\nvolumes: [{volume}]");
        device.apply(&manifest::pod_of(name, &[app], &spec));
    };
    apply("job", "print done", "Never");
    apply("web", "fail-once /marks/web then print up then sleep", "Always");
    apply("new", "print up then sleep", "Always");
    device.pod("job").wait_phase("Succeeded");
    device.pod("web").wait_log("app", "up");
    device.pod("new").wait_log("app", "up");
    device.pod("web").wait_ready();
    device.pod("new").wait_ready();
    let of = |device: &Device, name: &str| device.pod(name).object().expect("it exists");
    let names = ["job", "web", "new"];
    let before = names.map(|name| of(&device, name));
    let restarts = |pod: &serde_json::Value| pod["status"]["containerStatuses"][0]["restartCount"].clone();
    assert_eq!(before.each_ref().map(restarts), [0, 1, 0]);

    device.reboot();
    device.start_agent();
    device.pod("web").wait_ready();
    device.pod("new").wait_ready();
    let now = names.map(|name| of(&device, name));
    for (now, before) in now.iter().zip(&before) {
        // AGE of `nodlet get` is the time since the pod was created.
        for field in ["/metadata/creationTimestamp", "/metadata/uid", "/status/startTime"] {
            assert_eq!(now.pointer(field), before.pointer(field), "{field}: {now}");
            assert!(now.pointer(field).is_some(), "{field}: {now}");
        }
    }
    assert_eq!(now.each_ref().map(restarts), [0, 2, 1]);
    assert_eq!(now[0]["status"]["containerStatuses"], before[0]["status"]["containerStatuses"]);
    for pod in &now[1..] {
        let last = &pod["status"]["containerStatuses"][0]["lastState"]["terminated"];
        assert!(last.is_object(), "{pod}");
    }
}

#[test]
fn a_term_ends_the_agent_and_leaves_the_pods() {
    let mut device = Device::start();
    let born = device.run_pod("web", "print up then sleep").wait_log("app", "up").born("app");
    assert_eq!(device.stop_agent(), 0);
    let log = device.agent_log();
    assert!(
        log.contains("the agent ends, and leaves its pods (1) to the next agent or to nodlet down"),
        "{log}"
    );
    assert_eq!(device.container_processes().len(), 1);
    device.start_agent();
    device.pod("web").wait_ready();
    assert_eq!(device.pod("web").born("app"), born);
}

#[test]
fn down_reports_what_it_removes_and_what_stays_and_that_is_so() {
    let mut device = Device::start();
    let app = manifest::container(
        "app",
        "write /work/file up then print up then sleep",
        "volumeMounts: [{name: work, mountPath: /work}]",
    );
    let text = manifest::pod_of("web", &[app], "volumes: [{name: work, emptyDir: {}}]");
    device.apply(&text);
    device.pod("web").wait_log("app", "up");
    let logs = device.path("/var/log/pods");
    let volumes = device.path(&format!("/var/lib/nodlet/pods/{}/volumes", device.pod("web").uid()));
    let names = |directory: &str| device.names(directory);
    let kept =
        ["/var/lib/nodlet/images/images", "/var/lib/nodlet/images/layers", "/var/lib/nodlet/manifests"];
    let before = kept.map(names);
    assert!(before.iter().all(|names| !names.is_empty()), "{before:?}");
    assert!(volumes.exists() && fs::read_dir(&logs).expect("it is there").next().is_some());
    assert_eq!(
        device.nodlet(["down"]).ok(),
        "all pods have ended; images, manifests and records stay, logs and emptyDirs are removed: the next agent starts \
         the pods again, except those that have finished and those of restartPolicy Never that had started\n"
    );
    assert_eq!(kept.map(names), before);
    assert!(!names("/var/lib/nodlet/records").is_empty());
    assert!(!volumes.exists() && fs::read_dir(&logs).is_ok_and(|mut logs| logs.next().is_none()));
    assert_eq!(device.agent_ended(), 0);
    device.start_agent();
    device.pod("web").wait_ready();
}

#[test]
fn two_agents_cannot_share_a_root() {
    let device = Device::start();
    let root = device.root().display().to_string();
    let second = std::process::Command::new(nodlet_tests::nodlet_program())
        .args(["agent", "--root", &root, "--pod-cidr", "10.213.250.0/24"])
        .output()
        .expect("nodlet can be run");
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("already") || said.contains("another"), "{said}");
}

#[test]
fn a_colliding_pod_range_is_reported() {
    let mut device = Device::new();
    // Loopback's own range is in use on every machine.
    device.agent_arguments(["--pod-cidr", "127.0.0.0/24"]);
    device.launch_agent();
    assert_ne!(device.agent_ended(), 0);
    assert!(device.agent_log().contains("127.0.0.0/24"), "{}", device.agent_log());
}

#[test]
fn down_removes_what_unknown_pods_left_however_deep_and_nothing_that_is_mounted_there() {
    let mut device = Device::start();
    let pods = device.path("/var/lib/nodlet/pods");
    // Deeper than an agent's limit of descriptors and than the longest path. It exists before the others.
    let volumes = pods.join("a0/volumes");
    fs::create_dir_all(&volumes).expect("the root can be written to");
    let mut at = File::open(&volumes).expect("it is there");
    for _ in 0..3000 {
        mkdirat(Some(at.as_raw_fd()), "d", Mode::S_IRWXU).expect("made");
        at = File::open(format!("/proc/self/fd/{}/d", at.as_raw_fd())).expect("opened");
    }
    drop(at);
    let foreign = device.path("/foreign");
    fs::create_dir_all(&foreign).expect("the root can be written to");
    fs::write(foreign.join("file"), "x").expect("the root can be written to");
    let tmpfs = device.mount_tmpfs("/var/lib/nodlet/pods/a1/volumes/memory", "");
    let (file, directory) = (pods.join("a1/volumes/memory/file"), pods.join("a1/volumes/x"));
    fs::write(&file, "").expect("it can be written to");
    fs::create_dir_all(&directory).expect("the root can be written to");
    for (source, target) in [(foreign.join("file"), file), (foreign.clone(), directory)] {
        let none = None::<&str>;
        mount(Some(&source), &target, none, MsFlags::MS_BIND, none).expect("root can mount");
    }
    device.nodlet(["down"]).ok();
    drop(tmpfs);
    assert_eq!(fs::read_to_string(foreign.join("file")).expect("it stays"), "x");
    assert!(!pods.exists(), "{:?} is left", fs::read_dir(&pods).map(Iterator::count));
    assert_eq!(device.agent_ended(), 0);
}

#[test]
fn an_interrupted_down_reports_which_pods_it_waited_for_and_can_be_repeated() {
    let mut device = Device::start();
    device.run_pod_with("deaf", "ignore-term then print up then sleep", "terminationGracePeriodSeconds: 60");
    device.pod("deaf").wait_log("app", "up");
    device.remove_manifest("deaf.yaml");
    device.run_pod("web", "print up then sleep").wait_log("app", "up");
    let log = device.path("/down.log");
    let mut down = std::process::Command::new(nodlet_tests::nodlet_program())
        .args(["--root", &device.root().display().to_string(), "down"])
        .stderr(File::create(&log).expect("the root can be written to"))
        .spawn()
        .expect("nodlet can be run");
    let said = || fs::read_to_string(&log).unwrap_or_default();
    device.wait_for("what it waits for", || said().contains("default/web/app#0 exited with 0"));
    let pid = nix::unistd::Pid::from_raw(down.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("it runs");
    assert_eq!(down.wait().expect("it ends").code(), Some(1));
    assert!(said().contains("interrupted while ") && said().contains(" had not ended"), "{}", said());
    assert!(!said().contains("cgroups of this machine: remove"), "{}", said());
    assert_eq!(device.container_processes().len(), 1);
    device.nodlet(["down", "--shutdown-grace-period", "1s"]).ok();
    assert!(device.container_processes().is_empty());
    assert_eq!(device.agent_ended(), 0);
}
