//! What hands that broke nodlet found: each test here failed once.

use nodlet_tests::{Device, manifest};

#[test]
fn a_run_that_is_over_is_known_to_the_next_agent_however_the_last_one_died() {
    let mut device = Device::start();
    device.write_manifest("crash.yaml", &manifest::pod("crash", "print boom then exit 4"));
    device.wait_for("the second run to have failed", || {
        let app = device.pod("crash").container("app");
        app.restart_count() == 1 && app.reason() == "CrashLoopBackOff"
    });
    device.kill_agent();
    device.start_agent();
    device.wait_for("its restarts to be counted on", || {
        let app = device.pod("crash").container("app");
        app.restart_count() >= 2 && app.of_last("exitCode") == 4
    });
    let before = device.nodlet(["logs", "-p", "crash"]).ok();
    assert_eq!(before, "boom\n");
}

#[test]
fn a_pod_whose_file_is_wrong_stays_when_the_agent_is_another() {
    let mut device = Device::start();
    device.write_manifest("web.yaml", &manifest::pod("web", "print up then sleep"));
    device.pod("web").wait_ready();
    let born = device.pod("web").born("app");
    device.write_manifest("web.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspecs: {}\n");
    device.wait_for("the refusal to be told", || {
        device
            .pod("web")
            .events()
            .iter()
            .any(|event| event.contains("FailedValidation") && event.contains("specs"))
    });
    device.kill_agent();
    device.start_agent();
    device.pod("web").wait_ready();
    assert_eq!(device.pod("web").born("app"), born);
    device.remove_manifest("web.yaml");
    device.pod("web").wait_gone();
}

#[test]
fn a_run_that_was_lost_with_its_supervisor_while_no_agent_looked_is_counted() {
    let mut device = Device::start();
    device.write_manifest("web.yaml", &manifest::pod("web", "print up then sleep"));
    device.write_manifest(
        "job.yaml",
        &manifest::pod_with("job", "print up then sleep", "restartPolicy: Never"),
    );
    device.pod("web").wait_ready();
    device.pod("job").wait_ready();
    device.kill_agent();
    for pid in device.own_processes() {
        let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("a supervisor can be killed");
    }
    device.start_agent();
    device.wait_for("web to run again", || device.pod("web").container("app").restart_count() == 1);
    let lost = device.pod("web").container("app");
    assert_eq!(
        (lost.of_last("exitCode"), lost.of_last("reason")),
        (137.into(), "ContainerStatusUnknown".into())
    );
    device.pod("job").wait_phase("Failed");
    let lost = device.pod("job").container("app");
    assert_eq!((lost.exit_code(), lost.reason().as_str()), (Some(137), "ContainerStatusUnknown"));
}

#[test]
fn a_deletion_goes_on_with_its_whole_grace_under_the_next_agent() {
    let mut device = Device::start();
    device.write_manifest(
        "slow.yaml",
        &manifest::pod_with(
            "slow",
            "on-term 0 4 then print up then sleep",
            "terminationGracePeriodSeconds: 30",
        ),
    );
    device.pod("slow").wait_log("app", "up");
    let log = device.path("/var/log/pods");
    device.remove_manifest("slow.yaml");
    device.pod("slow").wait_log("app", "stopping");
    device.kill_agent();
    let since = std::time::Instant::now();
    device.start_agent();
    device.pod("slow").wait_gone();
    // An orphan would have had one second; it needs the rest of its four.
    assert!(since.elapsed() > std::time::Duration::from_millis(2500), "killed after {:?}", since.elapsed());
    assert_eq!(std::fs::read_dir(log).expect("it stays").count(), 0);
}

#[test]
fn what_was_executed_for_a_client_of_an_agent_that_died_does_not_stay() {
    let mut device = Device::start();
    device.write_manifest("web.yaml", &manifest::pod("web", "print up then sleep"));
    device.pod("web").wait_ready();
    let mut exec = device
        .command(&["exec", "web", "--", "/bin/demo", "print", "in", "then", "sleep"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("nodlet can be run");
    device.wait_for("the second process", || device.container_processes().len() == 2);
    device.kill_agent();
    assert!(!exec.wait().expect("it ends").success());
    device.start_agent();
    device.wait_for("the first process to be alone", || device.container_processes().len() == 1);
    assert_eq!(device.pod("web").container("app").restart_count(), 0);
}
