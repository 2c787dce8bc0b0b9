//! `nodlet healthcheck --wait`: waits for an agent that has not started yet, and for pods that are not ready
//! yet.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nodlet_tests::{Device, demo_archive, manifest};

fn start(device: &Device, words: &[&str]) -> Child {
    let mut command = device.command(words);
    command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("nodlet can be started")
}

#[test]
fn a_check_that_waits_ends_when_agent_and_pods_are_there() {
    let mut device = Device::new();
    let begun = Instant::now();
    let mut early = start(&device, &["healthcheck", "--wait", "60s"]);
    // After the timeout, the error says what is missing.
    let late = start(&device, &["healthcheck", "--wait", "1s"]).wait_with_output().expect("a child");
    let said = String::from_utf8_lossy(&late.stderr).into_owned();
    assert!(!late.status.success() && said.contains("agent is not running"), "{said}");
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert!(early.try_wait().expect("a child").is_none(), "it waits");
    device.start_agent();
    assert!(early.wait().expect("a child").success());
    device.load_image(demo_archive());

    let pod = manifest::pod("slow", "sleep").replace(
        "args:",
        "readinessProbe: {exec: {command: [/bin/demo, exit, \"0\"]}, initialDelaySeconds: 3}\n    args:",
    );
    let file = device.path("/slow.yaml");
    std::fs::write(&file, pod).expect("written");
    device.nodlet(["apply", "-f", file.to_str().expect("a path of the tests")]).ok();
    let now = start(&device, &["healthcheck", "--pods"]).wait_with_output().expect("a child");
    assert!(String::from_utf8_lossy(&now.stderr).contains("pod default/slow is not ready"), "{now:?}");
    let mut waiting = start(&device, &["healthcheck", "--pods", "--wait", "60s"]);
    assert!(waiting.wait().expect("a child").success());
    assert!(device.pod("slow").is_ready());
}
