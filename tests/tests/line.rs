//! The straight line from an archive and a manifest file to a process, which outlives the agent that started
//! it.

use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodlet_tests::{Device, manifest};

#[test]
fn a_manifest_and_an_archive_become_a_running_process() {
    let device = Device::start();
    let web = device.run_pod("web", "print hello then sleep");
    web.wait_phase("Running");
    web.wait_log("app", "hello");

    let app = web.container("app");
    assert!(app.is_running() && app.is_ready());
    assert_eq!(app.restart_count(), 0);
    for condition in ["PodScheduled", "Initialized", "ContainersReady", "Ready"] {
        assert_eq!(web.condition(condition), "True", "{condition}");
    }
    let table = device.nodlet(["get", "pods"]).ok();
    let row: Vec<&str> = table.lines().last().unwrap_or_default().split_whitespace().collect();
    assert_eq!(row[..4], ["web", "1/1", "Running", "0"], "{table}");
    assert_eq!(device.container_processes().len(), 1);
}

#[test]
fn no_container_notices_that_the_agent_was_killed() {
    let mut device = Device::start();
    device.run_pod("tick", "print tick 0.02").wait_log("app", "tick 3\n");
    let (born, id) = (device.pod("tick").born("app"), device.pod("tick").container("app").id());

    device.kill_agent();
    let log = || {
        let pods =
            std::fs::read_dir(device.path("/var/log/pods")).expect("logs are where the kubelet has them");
        let pod = pods.flatten().find(|dir| dir.file_name().to_string_lossy().starts_with("default_tick_"));
        std::fs::read_to_string(pod.expect("the pod has a log").path().join("app/0.log")).unwrap_or_default()
    };
    let before = log().lines().count();
    device
        .wait_for("the container to go on logging without an agent", || log().lines().count() > before + 10);

    device.start_agent();
    let tick = device.pod("tick");
    tick.wait_ready();
    assert_eq!(tick.born("app"), born, "it is the same process");
    assert_eq!(tick.container("app").id(), id);
    assert_eq!(tick.container("app").restart_count(), 0);
    let lines = tick.logs("app");
    for (number, line) in lines.lines().enumerate() {
        assert_eq!(line, format!("tick {number}"), "no line is lost and none comes twice");
    }
}

#[test]
fn an_exit_while_the_agent_is_away_is_reported_with_its_true_code_and_time() {
    let mut device = Device::start();
    device
        .run_pod_with("job", "on-term 7 then print ready then sleep", "restartPolicy: Never")
        .wait_log("app", "ready");
    device.kill_agent();

    let process = device.container_processes()[0];
    kill(Pid::from_raw(process.cast_signed()), Signal::SIGTERM).expect("the container's process is there");
    device.wait_for("the container to end", || device.container_processes().is_empty());
    let ended = now();
    // Kubernetes' times are whole seconds: the agent must return in a later one.
    device.wait_for("the clock to move on", || now() > ended + 2);
    device.start_agent();

    device.pod("job").wait_phase("Failed");
    let app = device.pod("job").container("app");
    assert_eq!(app.exit_code(), Some(7));
    assert_eq!(app.reason(), "Error");
    let finished = seconds_of(app.of_state("finishedAt").as_str().expect("it says when"));
    assert!((ended - 1..=ended + 1).contains(&finished), "finished at {finished}, not at {ended}");
}

#[test]
fn a_pod_that_is_finished_never_runs_again() {
    let mut device = Device::start();
    let (shared, here) = device.shared("ran");
    let app = manifest::container("app", "append /ran/times once", &manifest::mount("ran"));
    let spec = manifest::host_path("ran", &shared) + "restartPolicy: OnFailure";
    device.run_pod_of("job", &[app], &spec).wait_phase("Succeeded");
    assert_eq!(device.pod("job").container("app").reason(), "Completed");

    device.restart_agent();
    device.pod("job").wait_phase("Succeeded");
    // A later pod that runs shows that the agent has read all files.
    device.run_pod("other", "sleep").wait_phase("Running");
    assert_eq!(std::fs::read_to_string(here.join("times")).unwrap_or_default(), "once\n");
}

#[test]
fn a_pod_whose_manifest_is_removed_is_gone_when_its_last_process_is() {
    let device = Device::start();
    device.run_pod("web", "forks 2 then print up then sleep").wait_log("app", "up");
    assert_eq!(device.container_processes().len(), 3);
    device.remove_pod("web");
    assert!(device.container_processes().is_empty());
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs().cast_signed()
}

/// The seconds since 1970 of a time such as `2026-01-31T12:00:00Z`, by the civil calendar.
fn seconds_of(time: &str) -> i64 {
    let number = |from: usize, to: usize| -> i64 { time[from..to].parse().expect("an RFC 3339 time") };
    let (year, month, day) = (number(0, 4), number(5, 7), number(8, 10));
    // Years begin in March, so that the leap day is the last day of a year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1 - 719_468;
    days * 86400 + number(11, 13) * 3600 + number(14, 16) * 60 + number(17, 19)
}

#[test]
fn times_are_read_as_the_calendar_has_them() {
    assert_eq!(seconds_of("1970-01-01T00:00:00Z"), 0);
    assert_eq!(seconds_of("2000-03-01T00:00:01Z"), 951_868_801);
    assert_eq!(seconds_of("2026-11-21T10:41:12Z"), 1_795_257_672);
}
