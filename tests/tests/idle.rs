//! The cost of an idle board. `cargo xtask guest idle` runs this test in a virtual machine, whose clock skips idle
//! time, so that a day takes little time.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use nodlet_tests::{Device, switches};

const PODS: usize = 10;

const DAY: Duration = Duration::from_hours(24);

/// The number of bytes that nodlet's own processes have passed to the kernel in any way.
fn written(device: &Device) -> u64 {
    let io = |pid| fs::read_to_string(format!("/proc/{pid}/io")).expect("the process lives");
    let count = |io: String| io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse::<u64>().ok());
    device.own_processes().into_iter().map(|pid| count(io(pid)).expect("it is counted")).sum()
}

#[test]
#[ignore = "needs a machine of its own, with a clock of its own: cargo xtask guest idle"]
fn idle_pods_cause_no_wakeups_and_no_writes_for_a_day() {
    let device = Device::start_unwatched();
    for number in 0..PODS {
        let name = format!("pod-{number}");
        // The usage of this pod's hostPath volume is determined on a thread, which must not remain.
        let spec = match number {
            0 => format!("volumes: [{{name: host, hostPath: {{path: {}}}}}]", device.shared("host").0),
            _ => String::new(),
        };
        device.run_pod_with(&name, "sleep", &spec);
    }
    device.wait_for("the pods' records", || device.records().len() == PODS);
    let mut before = switches(&device);
    device.wait_for("the agent to settle", || {
        sleep(Duration::from_secs(5));
        let earlier = std::mem::replace(&mut before, switches(&device));
        before == earlier
    });
    let bytes = written(&device);
    // A fixed time, because the test is that nothing happens during it.
    for hour in 1..=24 {
        sleep(DAY / 24);
        assert_eq!(switches(&device) - before, 0, "context switches by hour {hour}");
    }
    assert_eq!(written(&device), bytes, "bytes were written");
}
