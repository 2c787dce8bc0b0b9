//! Objects that agents die of are set aside, and the rest of the board runs. The deaths are real ones: the kernel's OOM
//! killer, and faults.

use std::cell::Cell;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use nodlet_tests::deaths::{die_while_a_task_handles, fault, send};
use nodlet_tests::{Device, MemoryCgroup, manifest};

/// Memory that the agent may use beyond that of an idle one.
const ROOM: u64 = 6 << 20;

/// A pod whose manifest of less than 1 MiB takes many times as much to parse.
fn hostile() -> String {
    let names: Vec<String> = (0..40_000).map(|number| format!("{{name: v{number}}}")).collect();
    manifest::single("hostile", "sleep", &format!("env: [{}]", names.join(", ")), "")
}

fn set_aside_events(device: &Device, name: &str) -> usize {
    let Ok(events) = device.get("/api/v1/events") else { return 0 };
    let of_pod = |event: &&serde_json::Value| {
        event["involvedObject"]["name"] == name
            && event["message"].as_str().is_some_and(|message| message.contains("set aside"))
    };
    events["items"].as_array().unwrap().iter().filter(of_pod).count()
}

#[test]
fn a_manifest_that_exhausts_the_agents_memory_twice_is_set_aside_and_the_other_pods_run() {
    let limited = MemoryCgroup::new("set-aside");
    let mut device = Device::new();
    device.replay_nothing();
    device.start_agent();
    device.load_image(nodlet_tests::demo_archive());
    device.stop_agent();
    device.run_pod("web", "sleep");
    device.run_pod("hostile", "sleep");
    limited.launch(&mut device);
    device.wait_for("the pods", || {
        let is_ready = |name| device.pod(name).is_ready();
        device.get("/api/v1/pods").is_ok() && is_ready("web") && is_ready("hostile")
    });
    let before = device.container_processes();
    limited.limit(ROOM);
    device.write_manifest("hostile.yaml", &hostile());
    let deaths = Cell::new(0);
    let revive = |device: &mut Device| {
        if device.agent_is_dead() {
            deaths.set(deaths.get() + 1);
            assert!(deaths.get() < 5, "{}", device.agent_log());
            limited.launch(device);
        }
    };
    device.wait_reviving("the event", &revive, |device| set_aside_events(device, "hostile") > 0);
    assert_eq!(deaths.get(), 2, "{}", device.agent_log());
    assert_eq!(
        device.container_processes(),
        before,
        "the other pod runs on, and that of the earlier manifest"
    );
    assert_eq!(device.pod("hostile").phase(), "Running");
    let changed = manifest::pod_of("hostile", &[manifest::container("changed", "sleep", "")], "");
    device.write_manifest("hostile.yaml", &changed);
    device.wait_for("the changed pod", || device.pod("hostile").container("changed").is_ready());
    assert_eq!(device.container_processes().len(), before.len());
}

/// A device with an image, a pod that runs, and another one of which the agent dies three times.
fn device_after_deaths(deaths: &[fn(Pid)]) -> Device {
    let mut device = Device::new();
    device.replay_nothing();
    device.start_agent();
    device.load_image(nodlet_tests::demo_archive());
    device.run_pod("web", "sleep");
    device.wait_for("the pod", || device.pod("web").is_ready());
    let web = device.pod("web").uid();
    device.stop_agent();
    device.run_pod("bad", "sleep");
    for kill in deaths {
        die_while_a_task_handles(&mut device, &web, *kill);
    }
    device.start_agent();
    device
}

#[test]
fn a_pod_in_whose_preparation_the_agent_died_twice_is_set_aside_until_somebody_asks_for_it() {
    let device = device_after_deaths(&[fault, fault]);
    device.wait_for("the event", || set_aside_events(&device, "bad") > 0);
    assert_eq!(device.pod("bad").phase(), "Pending");
    assert!(device.pod("web").is_ready());
    assert_eq!(device.container_processes().len(), 1);
    assert!(device.nodlet(["describe", "pod", "bad"]).ok().contains("the agent died 2 times"));
    device.run_pod("other", "sleep");
    device.wait_for("another pod", || device.pod("other").is_ready());
    assert_eq!(device.pod("bad").phase(), "Pending");
    device.nodlet(["restart", "bad"]).ok();
    device.wait_for("the pod", || device.pod("bad").is_ready());
}

#[test]
fn kills_from_outside_set_nothing_aside() {
    let device = device_after_deaths(&[
        |agent| send(agent, Signal::SIGKILL),
        |agent| send(agent, Signal::SIGKILL),
        |agent| send(agent, Signal::SIGSEGV),
    ]);
    device.wait_for("the pod", || device.pod("bad").is_ready());
    assert_eq!(set_aside_events(&device, "bad"), 0);
    assert!(!device.path("run/nodlet/suspects.json").exists());
}
