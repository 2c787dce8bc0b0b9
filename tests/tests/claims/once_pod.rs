//! Volumes of claims with the access mode `ReadWriteOncePod`: two pods never use one at the same time.

use std::fs;

use nodlet_tests::Device;

use super::{claim, host_path, offer, user, volume, volume_phase};

const IN_USE: &str =
    "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";

#[test]
fn two_pods_never_use_a_volume_of_read_write_once_pod() {
    let mut device = Device::start();
    let here = device.path("/srv/data");
    offer(&device, "ReadWriteOncePod", &host_path(&here));
    // The lock of the program shows that the other one is dead.
    let steps = "lock /data/lock then print up then ignore-term then sleep";
    let text =
        |name: &str| user(name, steps).replace("spec:\n", "spec:\n  terminationGracePeriodSeconds: 2\n");
    device.write_pod("one", &text("one")).wait_log("app", "up");
    device.write_manifest("two.yaml", &text("two"));
    device.pod("two").wait_message("app", IN_USE);
    // An agent that dies does not make room.
    device.restart_agent();
    device.pod("two").wait_message("app", IN_USE);
    assert_eq!(device.pod("two").container("app").state(), "waiting");
    device.remove_manifest("one.yaml");
    device.pod("two").wait_log("app", "up");
    assert_eq!(device.pod("two").container("app").restart_count(), 0, "it did not start earlier");
    device.kill_everything();
    device.start_agent();
    device.write_manifest("one.yaml", &text("one"));
    device.wait_for("one of them", || {
        ["one", "two"].iter().filter(|name| device.pod(name).container("app").is_running()).count() == 1
    });
}

#[test]
fn a_supervisor_that_dies_alone_gives_no_other_pod_its_volume_of_read_write_once_pod() {
    let device = Device::start();
    let here = device.path("/srv/data");
    offer(&device, "ReadWriteOncePod", &host_path(&here));
    // The lock of the program shows that no other one is alive.
    let steps = "lock /data/lock then print up then ignore-term then sleep";
    let text =
        |name: &str| user(name, steps).replace("spec:\n", "spec:\n  terminationGracePeriodSeconds: 8\n");
    device.write_pod("one", &text("one")).wait_log("app", "up");
    device.write_manifest("two.yaml", &text("two"));
    device.pod("two").wait_message("app", IN_USE);
    let kill_supervisors = || {
        let supervisors = device.supervisors();
        assert_eq!(supervisors.len(), 1, "the other pod has none");
        for supervisor in supervisors.values() {
            let pid = nix::unistd::Pid::from_raw(supervisor.pid.cast_signed());
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("it can be killed");
        }
    };
    let born = device.pod("one").born("app");
    kill_supervisors();
    device.wait_for("the next run of the first pod", || {
        let app = device.pod("one").container("app");
        app.restart_count() == 1 && app.is_running()
    });
    assert_ne!(device.pod("one").born("app"), born);
    device.pod("two").wait_message("app", IN_USE);
    assert_eq!(device.pod("two").container("app").state(), "waiting");
    // A pod that ends, ignores SIGTERM and loses its supervisor: the next one starts after its last process.
    device.remove_manifest("one.yaml");
    device.wait_for("the first pod to end", || {
        device.pod("one").object().is_some_and(|one| one["metadata"]["deletionTimestamp"].is_string())
    });
    assert_eq!(device.pod("two").container("app").state(), "waiting");
    kill_supervisors();
    device.pod("two").wait_log("app", "up");
    assert_eq!(device.pod("two").container("app").restart_count(), 0, "it did not start earlier");
}

/// The processes of a pod's containers.
fn processes_of(uid: &str) -> Vec<nix::unistd::Pid> {
    let all = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let cgroup = format!("/pod{uid}/");
    let is_of_pod = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(&cgroup))
    };
    all.filter(is_of_pod).map(nix::unistd::Pid::from_raw).collect()
}

#[test]
fn a_volume_of_read_write_once_pod_stays_locked_while_a_process_lives_that_nobody_manages() {
    use nix::sys::signal::{Signal, kill};
    let (mut first, other) = (Device::start(), Device::start());
    let here = first.path("/srv/data");
    for (device, path) in [(&first, here.clone()), (&other, other.path("/srv/link/sub"))] {
        offer(device, "ReadWriteOncePod", &host_path(&path));
    }
    first.write_pod("one", &user("one", "print up then ignore-term then sleep")).wait_log("app", "up");
    // The other agent knows the directory by a link, and has another one in it.
    fs::create_dir_all(other.path("/srv")).expect("it can be made");
    std::os::unix::fs::symlink(&here, other.path("/srv/link")).expect("it can be made");
    other.write_manifest("two.yaml", &user("two", "print up then sleep"));
    let event = format!("FailedMount: MountVolume.SetUp failed for volume \"data\" : {IN_USE}");
    other.wait_for(&event, || other.pod("two").events().contains(&event));

    // The agent and the supervisor are dead: the lock is the process's.
    let processes = processes_of(&first.pod("one").uid());
    assert!(!processes.is_empty());
    let supervisors = first.supervisors();
    first.kill_agent();
    for supervisor in supervisors.values() {
        kill(nix::unistd::Pid::from_raw(supervisor.pid.cast_signed()), Signal::SIGKILL).expect("it lives");
    }
    let two = || other.pod("two");
    other.write_manifest("three.yaml", &user("three", "print up then sleep"));
    let waits_too = || other.pod("three").events().contains(&event);
    other.wait_for("another pod to find the lock", waits_too);
    assert!(processes.iter().all(|pid| kill(*pid, None).is_ok()), "the process lives on");
    assert!([two(), other.pod("three")].iter().all(|pod| pod.container("app").state() == "waiting"));

    processes.iter().for_each(|pid| kill(*pid, Signal::SIGKILL).expect("it lives"));
    let is_up = |name: &&str| other.pod(name).container("app").is_running();
    other.wait_for("one of them", || ["two", "three"].iter().filter(|name| is_up(name)).count() == 1);
    // The first agent comes back, and its pod waits.
    first.start_agent();
    first.wait_for(&event, || first.pod("one").events().contains(&event));
    for name in ["two", "three"] {
        other.remove_manifest(&format!("{name}.yaml"));
    }
    for name in ["two", "three"] {
        other.pod(name).wait_gone();
    }
    first.pod("one").wait_running("app");
}

#[test]
fn a_volume_of_read_write_once_pod_stays_exclusive_with_another_claim_and_another_name() {
    let device = Device::start();
    let here = device.path("/srv/data");
    let volume_file = |name: &str| volume(name, "ReadWriteOncePod", &host_path(&here));
    let of = |name: &str, claimed: &str| {
        user(name, "print up then sleep").replace("claimName: data", &format!("claimName: {claimed}"))
    };
    device.write_manifest("v.yaml", &volume_file("disk"));
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOncePod", ""));
    device.write_pod("one", &of("one", "data")).wait_log("app", "up");
    // The same directory under another name, with another claim.
    device.remove_manifest("c.yaml");
    device.remove_manifest("v.yaml");
    device.wait_for("the end of the volume", || volume_phase(&device, "disk") == "none");
    device.write_manifest("v.yaml", &volume_file("again"));
    device.write_manifest("d.yaml", &claim("other", "ReadWriteOncePod", ""));
    device.write_pod("two", &of("two", "other"));
    device.pod("two").wait_message("app", "node has pod using PersistentVolumeClaim");
    device.remove_manifest("one.yaml");
    device.pod("two").wait_log("app", "up");
}
