//! Block volumes: devices of the containers that name them.

use std::fs;

use nodlet_tests::{Device, LoopDevice, manifest};
use serde_json::json;

use super::{claim, local, user, volume};

/// The source of a volume of mode `Block`.
fn block(source: &str) -> String {
    format!("{source}, volumeMode: Block")
}

#[test]
fn a_block_volume_is_a_device_of_the_container_and_of_no_other() {
    let device = Device::start();
    let file = device.path("/disk.img");
    fs::write(&file, vec![0; 1 << 20]).expect("it can be written");
    let disk = LoopDevice::attach(&file);
    let node = device.node_name();
    device.write_manifest("v.yaml", &volume("disk", "ReadWriteOnce", &block(&local(&node, disk.path()))));
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOnce", ", volumeMode: Block, volumeName: disk"));
    // Another block volume of the pods, which no container names.
    let unused_file = device.path("/unused.img");
    fs::write(&unused_file, vec![0; 1 << 20]).expect("it can be written");
    let unused = LoopDevice::attach(&unused_file);
    device
        .write_manifest("v2.yaml", &volume("unused", "ReadWriteOnce", &block(&local(&node, unused.path()))));
    device.write_manifest(
        "c2.yaml",
        &claim("more", "ReadWriteOnce", ", volumeMode: Block, volumeName: unused"),
    );
    let device_of = |name: &str, steps: &str, read_only: bool| {
        manifest::pod_of(
            name,
            &[
                manifest::container("app", steps, "volumeDevices: [{name: data, devicePath: /dev/data}]"),
                manifest::container("other", "print up then sleep", ""),
            ],
            &format!(
                "volumes: [{{name: unused, persistentVolumeClaim: {{claimName: more}}}}, \
                 {{name: data, persistentVolumeClaim: {{claimName: data, readOnly: {read_only}}}}}]"
            ),
        )
    };
    device.write_pod("web", &device_of("web", "append /dev/data hello then print up then sleep", false));
    device.pod("web").wait_log("app", "up").wait_log("other", "up");
    device.pod("web").demo("app", "stat /dev/data").ok_with("0660 0:0");
    let content = fs::read(disk.path()).expect("it can be read");
    assert_eq!(&content[..6], b"hello\n");
    let untouched = fs::read(unused.path()).expect("it can be read");
    assert!(untouched.iter().all(|byte| *byte == 0), "the volume that no container names");
    let number = fs::metadata(disk.path()).map(|found| std::os::unix::fs::MetadataExt::rdev(&found));
    let number = number.expect("it is there");
    let (major, minor) =
        (nix::sys::stat::major(number).to_string(), nix::sys::stat::minor(number).to_string());
    device.pod("web").demo("other", &format!("mknod-block /tmp-node {major} {minor}")).ok();
    device.pod("web").demo("other", "open /tmp-node").refused_with("Operation not permitted");
    // An ephemeral container has only the devices that it names itself.
    for (name, devices) in
        [("look", r#", "volumeDevices": [{"name": "data", "devicePath": "/dev/look"}]"#), ("none", "")]
    {
        let path = "/api/v1/namespaces/default/pods/web/ephemeralcontainers";
        let text =
            format!(r#"{{"name": "{name}", "image": "localhost/demo:1", "args": ["sleep"]{devices}}}"#);
        let container: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        let body = json!({"spec": {"ephemeralContainers": [container]}});
        let answer = device.patch(path, "strategic-merge", &body);
        assert_eq!(answer.0, 200, "{answer:?}");
        device.wait_for("the ephemeral container", || device.pod("web").demo(name, "exit 0").code == 0);
    }
    device.pod("web").demo("look", "append /dev/look again").ok();
    assert_eq!(&fs::read(disk.path()).expect("it can be read")[..6], b"again\n");
    device.pod("web").demo("none", &format!("mknod-block /tmp-node {major} {minor}")).ok();
    device.pod("web").demo("none", "open /tmp-node").refused_with("Operation not permitted");
    device.remove_pod("web");
    device.write_pod("ro", &device_of("ro", "print up then sleep", true)).wait_log("app", "up");
    device.pod("ro").demo("app", "append /dev/data x").refused_with("Operation not permitted");
    let (_, mounted) = (device.remove_manifest("ro.yaml"), user("mounted", "sleep"));
    device.pod("ro").wait_gone();
    device.write_manifest("mounted.yaml", &mounted);
    device
        .pod("mounted")
        .wait_message("app", "volume data has volumeMode Block, but is specified in volumeMounts");
}

#[test]
fn a_block_volume_is_local_to_its_node_and_no_host_path() {
    let device = Device::start();
    device.write_manifest(
        "v.yaml",
        &volume("elsewhere", "ReadWriteOnce", &block(&local("other", "/dev/loop0"))),
    );
    device.write_manifest("c.yaml", &claim("data", "ReadWriteOnce", ", volumeMode: Block"));
    let devices = "volumeDevices: [{name: data, devicePath: /dev/data}]";
    let pod = manifest::pod_of(
        "web",
        &[manifest::container("app", "sleep", devices)],
        "volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]",
    );
    device.write_pod("web", &pod).wait_message("app", "pod has unbound immediate PersistentVolumeClaims");
    let source = block("hostPath: {path: /dev/loop0}");
    device.write_manifest("w.yaml", &volume("path", "ReadWriteOnce", &source));
    device.pod("web").wait_message("app", "MapVolume.FindMapperPluginBySpec failed to find BlockVolumeMapper plugin: hostPath of persistentvolume \
         \"path\" cannot have volumeMode Block; use local",
    );
}
