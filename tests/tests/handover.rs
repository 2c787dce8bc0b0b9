//! Pods must look the same through the API before an agent is killed and with the next agent, whatever was
//! recorded on flash by then.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodlet_tests::{Device, manifest};
use serde_json::Value;

/// The steps of a container that ignores SIGTERM, and prints when it begins to do so.
const DEAF: &str = "ignore-term then print deaf then sleep";

/// Waits until the second changes, and starts another agent: times in a status are in seconds, so a time that the
/// next agent sets anew would then differ.
fn another_agent(device: &mut Device) {
    let second =
        || device.write_file("/tick", "").metadata().and_then(|file| file.modified()).expect("a time");
    let before = second();
    device.wait_for("another second", || {
        second().duration_since(before).is_ok_and(|passed| passed.as_millis() > 1100)
    });
    device.restart_agent();
}

/// Everything that is shown of a pod except the object's version.
fn shown(device: &Device, pod: &str) -> Value {
    let mut object = device.pod(pod).object().expect("the pod is shown");
    object["metadata"].as_object_mut().expect("metadata").remove("resourceVersion");
    object
}

#[test]
fn conditions_of_the_node_keep_their_times() {
    let mut device = Device::start();
    let times = |device: &Device| -> Vec<String> {
        let node = device.get("/api/v1/nodes").expect("nodes")["items"][0].clone();
        let conditions = node["status"]["conditions"].as_array().cloned().expect("conditions");
        conditions.iter().map(|one| format!("{} {}", one["type"], one["lastTransitionTime"])).collect()
    };
    let before = times(&device);
    assert!(before.len() >= 4, "{before:?}");
    for _ in 0..2 {
        another_agent(&mut device);
        assert_eq!(times(&device), before);
    }
}

fn kill_supervisors(device: &Device) {
    for supervisor in device.supervisors().values() {
        kill(Pid::from_raw(supervisor.pid.cast_signed()), Signal::SIGKILL).expect("it can be killed");
    }
}

#[test]
fn a_pod_that_is_deleted_stays_as_it_is_shown_under_the_next_agent() {
    let mut device = Device::start();
    device.apply(&manifest::pod_with("web", DEAF, "terminationGracePeriodSeconds: 40"));
    device.pod("web").wait_log("app", "deaf");
    device.nodlet(["delete", "pod", "web", "--wait=false"]).ok();
    let before = shown(&device, "web");
    assert_eq!(before["status"]["phase"], "Running");
    assert!(before["metadata"]["deletionTimestamp"].is_string(), "{before}");
    another_agent(&mut device);
    assert_eq!(shown(&device, "web"), before);
    device.nodlet(["delete", "pod", "web", "--now"]).ok();
}

#[test]
fn restart_counts_of_what_cannot_be_executed_never_fall_however_many_agents_come() {
    let mut device = Device::start();
    let text = manifest::pod("lost", "x").replace("args: [\"x\"]", "command: [\"/nonexistent\"]");
    device.write_manifest("lost.yaml", &text);
    let count = |device: &Device| device.pod("lost").container("app").restart_count();
    device.wait_for("its first restart", || count(&device) >= 1);
    // Each agent retries at once, long before a record of the retry is on flash.
    for _ in 0..4 {
        let before = count(&device);
        device.restart_agent();
        assert!(count(&device) >= before, "{} after {before}", count(&device));
        device.wait_for("the next run", || count(&device) > before);
        assert_eq!(device.pod("lost").container("app").of_last("reason"), "StartError");
    }
    assert!(count(&device) >= 5);
}

#[test]
fn a_finished_pod_keeps_the_last_states_of_its_containers() {
    let mut device = Device::start();
    let job = manifest::container("app", "fail-once /work/mark then print done", &manifest::mount("work"));
    let spec = "restartPolicy: OnFailure\nvolumes: [{name: work, emptyDir: {}}]";
    device.run_pod_of("job", &[job], spec).wait_phase("Succeeded");
    let before = shown(&device, "job");
    assert_eq!(device.pod("job").container("app").of_last("exitCode"), 1);
    another_agent(&mut device);
    assert_eq!(shown(&device, "job"), before);

    device.power_cycle();
    let after = shown(&device, "job");
    for field in ["state", "lastState", "restartCount"] {
        let of = |object: &Value| object["status"]["containerStatuses"][0][field].clone();
        assert_eq!(of(&after), of(&before), "{field}");
    }
    assert_eq!(after["status"]["startTime"], before["status"]["startTime"]);
}

#[test]
fn the_run_before_the_last_is_known_where_the_supervisor_dies_with_the_agent() {
    let mut device = Device::start();
    let work = &manifest::mount("work");
    let containers = [
        manifest::container("done", "fail-once /work/mark then print done", work),
        manifest::container("stays", "sleep", ""),
    ];
    let spec = "restartPolicy: OnFailure\nvolumes: [{name: work, emptyDir: {}}]";
    device.run_pod_of("web", &containers, spec);
    let done = |device: &Device| device.pod("web").container("done");
    let ended = |device: &Device| (done(device).exit_code(), done(device).of_last("exitCode").as_i64());
    device.wait_for("its second run to end", || {
        ended(&device) == (Some(0), Some(1)) && device.pod("web").container("stays").is_running()
    });
    device.kill_agent();
    kill_supervisors(&device);
    device.start_agent();
    device.wait_for("another run of what ran", || {
        let stays = device.pod("web").container("stays");
        stays.is_running() && stays.restart_count() == 1
    });
    assert_eq!(ended(&device), (Some(0), Some(1)), "{}", device.pod("web").status());
    assert_eq!(device.pod("web").container("stays").of_last("reason"), "ContainerStatusUnknown");
}

#[test]
fn a_preempted_pod_shows_disruption_target_only_after_it_has_ended() {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let reserved = format!("--kube-reserved=cpu={}", cpus - 1);
    let mut device = Device::start_with([&reserved]);
    let asking = |steps: &str, cpu: &str| {
        [manifest::container("app", steps, &format!("resources: {{requests: {{cpu: {cpu}}}}}"))]
    };
    let victim = device.run_pod_of("victim", &asking(DEAF, "700m"), "terminationGracePeriodSeconds: 5");
    victim.wait_log("app", "deaf");
    let critical = "priorityClassName: system-node-critical";
    device.run_pod_of("needed", &asking("sleep", "500m"), critical);
    victim.wait_event("Preempting");
    device.wait_for("its end", || {
        let status = victim.status();
        let is_over = status["phase"] == "Failed";
        let is_target = status["conditions"].to_string().contains("DisruptionTarget");
        assert_eq!(is_target, is_over, "{status}");
        assert!(!is_over || !status["containerStatuses"].to_string().contains("\"running\""), "{status}");
        is_over
    });
    assert_eq!(victim.condition("DisruptionTarget"), "True");
    device.pod("needed").wait_ready();
    another_agent(&mut device);
    assert_eq!(device.pod("victim").condition("DisruptionTarget"), "True");
}

#[test]
fn a_force_deleted_pod_stays_gone_and_its_successor_keeps_its_times() {
    let mut device = Device::start();
    let text = manifest::pod_with("web", DEAF, "terminationGracePeriodSeconds: 600");
    device.apply(&text);
    device.pod("web").wait_log("app", "deaf");
    let first = device.pod("web").uid();
    device.nodlet(["delete", "pod", "web", "--force"]).ok();
    device.apply(&text);
    device.wait_for("its successor", || device.pods() == ["web"]);
    let before = shown(&device, "web");
    assert_ne!(device.pod("web").uid(), first);
    assert!(before["status"]["startTime"].is_string(), "{before}");
    another_agent(&mut device);
    let after = shown(&device, "web");
    assert_eq!(after["metadata"], before["metadata"]);
    assert_eq!(after["status"]["startTime"], before["status"]["startTime"]);
    device.pod("web").wait_ready();
    assert_eq!(shown(&device, "web")["status"]["startTime"], before["status"]["startTime"]);
    device.nodlet(["delete", "pod", "web", "--now"]).ok();
}

#[test]
fn a_pod_without_a_sandbox_keeps_its_times_and_says_what_is_in_the_way() {
    let mut device = Device::start();
    let volumes = "volumes: [{name: data, hostPath: {path: /not/there, type: Directory}}]";
    device.run_pod_with("web", "sleep", volumes);
    device.pod("web").wait_message("app", "/not/there");
    let before = shown(&device, "web");
    another_agent(&mut device);
    assert_eq!(shown(&device, "web"), before);
}

#[test]
fn only_a_pod_with_a_new_sandbox_gets_a_sandbox_changed_event() {
    let device = Device::start();
    device.run_pod_with("once", "sleep", "restartPolicy: Never");
    device.run_pod("web", "sleep").wait_ready();
    device.pod("once").wait_ready();
    kill_supervisors(&device);
    device.pod("once").wait_phase("Failed");
    device.wait_for("the other one to run again", || {
        device.pod("web").container("app").restart_count() == 1 && device.pod("web").is_ready()
    });
    assert!(!device.pod("once").has_event("SandboxChanged"));
    assert!(device.pod("web").has_event("SandboxChanged"));
}
