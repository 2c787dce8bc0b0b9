//! What a board costs that has nothing to do. `cargo xtask guest` runs this, in a machine of its own: its
//! clock goes on at once where nothing happens, so that a day of it takes no day.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use nodlet_tests::{Device, manifest, switches};

const PODS: usize = 10;

const DAY: Duration = Duration::from_hours(24);

/// Bytes that nodlet's own processes have handed to the kernel in whatever way.
fn written(device: &Device) -> u64 {
    let io = |pid| fs::read_to_string(format!("/proc/{pid}/io")).expect("the process lives");
    let count = |io: String| io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse::<u64>().ok());
    device.own_processes().into_iter().map(|pid| count(io(pid)).expect("it is counted")).sum()
}

#[test]
#[ignore = "needs a machine of its own, with a clock of its own: cargo xtask guest"]
fn nobody_wakes_up_or_writes_in_a_day_of_pods_that_do_nothing() {
    let device = Device::start_unwatched();
    for number in 0..PODS {
        let name = format!("pod-{number}");
        // What one of them takes of the machine is asked for on a thread, which is not to stay.
        let spec = match number {
            0 => format!("volumes: [{{name: host, hostPath: {{path: {}}}}}]", device.shared("host").0),
            _ => String::new(),
        };
        device.write_manifest(&format!("{name}.yaml"), &manifest::pod_with(&name, "sleep", &spec));
    }
    let records =
        || fs::read_dir(device.path("/var/lib/nodlet/records")).map_or(0, |records| records.count());
    device.wait_for("the pods' records", || records() == PODS);
    let mut before = switches(&device);
    device.wait_for("the agent to settle", || {
        sleep(Duration::from_secs(5));
        let earlier = std::mem::replace(&mut before, switches(&device));
        before == earlier
    });
    let bytes = written(&device);
    // A wait for a time, because what is tested is that nothing takes place in it.
    for hour in 1..=24 {
        sleep(DAY / 24);
        assert_eq!(switches(&device) - before, 0, "context switches by hour {hour}");
    }
    assert_eq!(written(&device), bytes, "bytes were written");
}
