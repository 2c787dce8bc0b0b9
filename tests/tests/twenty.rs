//! Twenty pods at once, which is more than a board is expected to have; nothing of them is left afterwards.

use nodlet_tests::Device;

#[test]
fn twenty_pods_start_run_and_go_and_nothing_is_left() {
    let device = Device::start();
    let names: Vec<String> = (0..20).map(|number| format!("pod-{number:02}")).collect();
    for name in &names {
        device.write_single(
            name,
            "write /work/mark here then print up then sleep",
            "volumeMounts: [{name: work, mountPath: /work}]",
            "volumes: [{name: work, emptyDir: {}}]",
        );
    }
    device.wait_all_ready(&names);
    assert_eq!(device.pods(), names);
    let mut addresses: Vec<String> = names.iter().map(|name| device.pod(name).ip()).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 20, "each has an address of its own");
    assert_eq!(device.container_processes().len(), 20);

    for name in &names {
        device.remove_manifest(&format!("{name}.yaml"));
    }
    device.wait_for("all pods to be gone", || device.pods().is_empty());
    assert!(device.container_processes().is_empty());
}

#[test]
fn the_same_name_can_come_and_go_many_times() {
    let device = Device::start();
    let mut uids = Vec::new();
    for round in 0..10 {
        device
            .run_pod("web", &format!("print round-{round} then sleep"))
            .wait_log("app", &format!("round-{round}\n"));
        uids.push(device.pod("web").uid());
        device.remove_pod("web");
    }
    uids.sort();
    uids.dedup();
    assert_eq!(uids.len(), 10, "each is a pod of its own");
}
