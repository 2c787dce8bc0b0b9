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
