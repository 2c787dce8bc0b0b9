//! The machine shuts down: pods end in the order of their priorities, and run again afterwards. A fake logind
//! is used here; `systemd.rs` uses the real one.

use nodlet_tests::bus::FakeLogind;
use nodlet_tests::{Device, manifest};
use serde_json::Value;

/// A device whose agent delays a shutdown, with these grace periods.
fn device(flags: [&str; 4]) -> (Device, FakeLogind) {
    let mut device = Device::new();
    let bus = device.path("/bus");
    let logind = FakeLogind::listen(&bus);
    device.agent_variable("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={}", bus.display()));
    device.agent_arguments(flags);
    device.start_agent();
    device.load_image(nodlet_tests::demo_archive());
    (device, logind)
}

/// A pod that, when it is asked to end, writes into a file next to those of the others, and takes a second.
fn pod(device: &Device, name: &str, spec: &str) -> String {
    let (shared, _) = device.shared("ends");
    let steps = format!("on-term 0 1 then lock /ends/{name} then print up then sleep");
    manifest::single(
        name,
        &steps,
        "volumeMounts: [{name: ends, mountPath: /ends}]",
        &format!("volumes: [{{name: ends, hostPath: {{path: {shared}}}}}]\n{spec}"),
    )
}

fn ready(device: &Device) -> [Value; 3] {
    let nodes = device.get("/api/v1/nodes").expect("there is one");
    let conditions = nodes["items"][0]["status"]["conditions"].as_array().expect("conditions");
    let ready = conditions.iter().find(|one| one["type"] == "Ready").expect("it is there");
    ["status", "reason", "message"].map(|field| ready[field].clone())
}

/// The time at which the container `app` of a pod ended.
fn ended(device: &Device, name: &str) -> String {
    device.pod(name).container("app").of_state("finishedAt").as_str().unwrap_or_default().to_owned()
}

#[test]
fn pods_end_by_priority_before_the_machine_goes_down_and_run_again_after_it() {
    let flags = ["--shutdown-grace-period", "30s", "--shutdown-grace-period-critical-pods", "10s"];
    let (mut device, logind) = device(flags);
    let mut lock = logind.lock();
    let critical = "priorityClassName: system-node-critical\nrestartPolicy: OnFailure";
    device.write_manifest("critical.yaml", &pod(&device, "critical", critical));
    device.apply(&pod(&device, "usual", ""));
    device.run_pod_with("over", "exit 0", "restartPolicy: Never");
    device.write_manifest("once.yaml", &pod(&device, "once", "restartPolicy: Never"));
    device.pod("over").wait_phase("Succeeded");
    for name in ["critical", "usual", "once"] {
        device.pod(name).wait_log("app", "up");
    }
    assert_eq!(ready(&device), ["True", "KubeletReady", "nodlet answers"]);
    assert!(!lock.is_released());

    logind.prepare_for_shutdown(true);
    device.wait_for("the pods to end", || lock.is_released());
    assert!(device.container_processes().is_empty());
    for name in ["critical", "usual", "once"] {
        let status = device.pod(name).status();
        assert_eq!(
            (&status["phase"], &status["reason"]),
            (&"Failed".into(), &"Terminated".into()),
            "{status}"
        );
        assert_eq!(device.pod(name).condition("DisruptionTarget"), "True");
        assert_eq!(device.pod(name).container("app").exit_code(), Some(0));
    }
    assert!(ended(&device, "usual") < ended(&device, "critical"), "the critical one ends last");
    assert_eq!(ready(&device), ["False", "KubeletNotReady", "node is shutting down"]);
    device.run_pod("late", "print up then sleep");
    device
        .wait_for("the late one to be rejected", || device.pod("late").status()["reason"] == "NodeShutdown");

    device.power_cycle();
    for name in ["critical", "usual", "late"] {
        device.pod(name).wait_log("app", "up");
        device.wait_for("it to run", || device.pod(name).is_ready());
    }
    assert_eq!(device.pod("usual").container("app").restart_count(), 1);
    assert_eq!(device.pod("over").phase(), "Succeeded");
    let once = device.pod("once").status();
    assert_eq!((&once["phase"], &once["reason"]), (&"Failed".into(), &"Terminated".into()), "{once}");
    assert!(!logind.lock().is_released());
}

#[test]
fn a_shutdown_that_is_called_off_brings_back_what_has_ended() {
    let by = "--shutdown-grace-period-by-pod-priority";
    let (device, logind) = device([by, "0=5s,100=20s", "--terminated-pod-gc-threshold", "1"]);
    let mut lock = logind.lock();
    device.apply(&pod(&device, "one", ""));
    device.apply(&pod(&device, "two", ""));
    for name in ["one", "two"] {
        device.pod(name).wait_log("app", "up");
    }
    let uid = device.pod("one").uid();
    logind.prepare_for_shutdown(true);
    device.wait_for("the pods to end", || lock.is_released());
    // The pods are not finished, so the limit for finished pods does not apply to them.
    assert_eq!(device.pods(), ["one", "two"]);
    logind.prepare_for_shutdown(false);
    let mut lock = logind.lock();
    for name in ["one", "two"] {
        device.wait_for("it to run again", || {
            device.pod(name).is_ready() && device.pod(name).container("app").restart_count() == 1
        });
    }
    assert_eq!(device.pod("one").uid(), uid);
    assert_eq!(ready(&device), ["True", "KubeletReady", "nodlet answers"]);
    assert!(!lock.is_released());
}

#[test]
fn down_stops_pods_of_a_higher_priority_after_those_of_a_lower_one_have_ended() {
    let device = Device::start();
    // When it is asked to end, each container prints whether the other is still running.
    device.write_pod("low", &pod(&device, "low", "")).wait_log("app", "up");
    let class = "priorityClassName: system-cluster-critical";
    device.write_pod("high", &pod(&device, "high", class)).wait_log("app", "up");
    let began = std::time::Instant::now();
    device.nodlet(["down"]).ok();
    assert!(began.elapsed() >= std::time::Duration::from_secs(2), "one after the other, each in its second");
    for name in ["low", "high"] {
        let lock = std::fs::File::open(device.path("/ends").join(name)).expect("the container made it");
        lock.try_lock().expect("nobody holds it any more");
    }
}
