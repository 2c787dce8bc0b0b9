//! Restart policies and the back-off between runs, on real exits.

use nodlet_tests::Device;

#[test]
fn a_crash_is_backed_off_and_tried_again_after_ten_seconds() {
    let device = Device::start();
    let crash = device.run_pod("crash", "print boom then exit 1");
    // The first restart is immediate, the second waits for the back-off.
    device.wait_for("the second run to have failed", || {
        crash.container("app").restart_count() == 1 && crash.container("app").reason() == "CrashLoopBackOff"
    });
    let ended = crash.container("app").of_last("finishedAt");
    assert_eq!(crash.phase(), "Running", "a pod that will be restarted is not over");
    assert!(!crash.is_ready());
    let app = crash.container("app");
    assert_eq!(app.of_last("exitCode"), 1);
    assert!(
        app.message().starts_with("back-off 10s restarting failed container=app pod=crash_default("),
        "{}",
        app.message()
    );

    device.wait_for("the third run to have failed", || {
        crash.container("app").restart_count() == 2 && crash.container("app").reason() == "CrashLoopBackOff"
    });
    // The times are those of the status, because a busy machine may delay this test.
    let began = crash.container("app").of_last("startedAt");
    let waited = (second_of_day(&began) + DAY - second_of_day(&ended)) % DAY;
    assert!((9..15).contains(&waited), "the back-off was {waited} s, not ten");
}

const DAY: u32 = 24 * 60 * 60;

/// The second of the day of a time such as `2026-01-31T23:59:59Z`.
fn second_of_day(time: &serde_json::Value) -> u32 {
    let (_, time) = time.as_str().and_then(|time| time.split_once('T')).expect("it is a time");
    time.trim_end_matches('Z').split(':').fold(0, |sum, part| sum * 60 + part.parse::<u32>().expect("digits"))
}

#[test]
fn counts_and_how_the_last_run_ended_outlive_the_agent_and_the_power() {
    let mut device = Device::start();
    device.run_pod("web", "wait /tmp/go then exit 7");
    let reported = |device: &Device| {
        let app = device.pod("web").container("app");
        (app.restart_count(), app.of_last("exitCode").as_i64(), app.of_last("reason"))
    };
    device.wait_for("it to run", || device.pod("web").container("app").is_running());
    device.pod("web").tell("app", "/tmp/go");
    device.pod("web").wait_run("app", 1);
    assert_eq!(reported(&device), (1, Some(7), "Error".into()));
    let before = device.pod("web").container("app").id();

    device.restart_agent();
    device.wait_for("the pod to be shown", || device.pod("web").container("app").is_running());
    assert_eq!(
        (reported(&device), device.pod("web").container("app").id()),
        ((1, Some(7), "Error".into()), before)
    );

    let record = device.path(&format!("/var/lib/nodlet/records/{}.json", device.pod("web").uid()));
    device.wait_for("the count to be on the card", || {
        std::fs::read_to_string(&record).is_ok_and(|record| record.contains("\"attempts\":2"))
    });
    device.power_cycle();
    device.wait_for("a run of this boot", || device.pod("web").container("app").is_running());
    assert_eq!(reported(&device), (2, Some(137), "ContainerStatusUnknown".into()));
}

#[test]
fn a_pod_whose_file_of_this_boot_is_damaged_runs_again() {
    let mut device = Device::start();
    device.run_pod("web", "sleep").wait_ready();
    for is_pipe in [false, true] {
        device.kill_agent();
        let mut pods = std::fs::read_dir(device.path("/run/nodlet/pods")).expect("it is there");
        let file = pods.next().expect("one pod").expect("it is read").path().join("pod.json");
        if is_pipe {
            std::fs::remove_file(&file).expect("it is there");
            nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).expect("it is gone");
        } else {
            std::fs::write(&file, "damaged").expect("it can be written");
        }
        device.start_agent();
        device
            .wait_for("another run", || device.pod("web").demo("app", "print here").stdout.contains("here"));
    }
}
