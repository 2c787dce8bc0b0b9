//! Devices of the board: their files, the resource `nodlet.dev/<name>`, and the devices in containers.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nodlet_tests::{Device, manifest};

mod interfaces;
mod watches;

/// A node in /dev, which stands for a device that is plugged in. It is removed when it is dropped.
struct Node(PathBuf);

impl Node {
    /// Names a node of this test alone, which does not exist yet.
    fn named(name: &str) -> Node {
        Node(PathBuf::from(format!("/dev/nodlet-{}-{name}", std::process::id())))
    }

    /// Names a node, and plugs it in as the first loop device.
    fn plugged(name: &str) -> Node {
        let node = Node::named(name);
        node.plug(0);
        node
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("it is ASCII")
    }

    /// Plugs in the loop device with this number: it exists on every machine, and can be opened.
    fn plug(&self, minor: u64) {
        mknod(&self.0, SFlag::S_IFBLK, Mode::from_bits_truncate(0o600), makedev(7, minor)).expect("root may");
    }

    fn unplug(&self) {
        fs::remove_file(&self.0).expect("it is plugged in");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn define(device: &Device, file: &str, text: &str) {
    let directory = device.path("/etc/nodlet/devices");
    fs::create_dir_all(&directory).expect("the root can be written to");
    let new = device.write_file(&format!("/etc/nodlet/.{file}"), text);
    fs::rename(new, directory.join(file)).expect("it is the same file system");
}

/// Writes the file of a device with this name, and waits for its resource.
fn offer(device: &Device, name: &str, rest: &str) {
    define(device, &format!("{name}.yaml"), &format!("name: {name}\n{rest}"));
    device.wait_for("the resource", || resource(device, "capacity", name) == "1");
}

fn resource(device: &Device, list: &str, name: &str) -> serde_json::Value {
    let nodes = device.get("/api/v1/nodes").expect("the API has a node");
    nodes["items"][0]["status"][list][format!("nodlet.dev/{name}")].clone()
}

fn asking(name: &str, steps: &str, devices: &str) -> String {
    asking_with(name, steps, devices, "")
}

fn asking_with(name: &str, steps: &str, devices: &str, more: &str) -> String {
    let more = format!("resources: {{limits: {{{devices}}}}}\n{more}");
    manifest::pod_of(name, &[manifest::container("app", steps, &more)], "restartPolicy: Never")
}

#[test]
fn a_container_gets_its_device_and_no_other() {
    let device = Device::start();
    let node = Node::plugged("gps");
    offer(&device, "gps", &format!("path: {}\ncontainerPath: /dev/gps\n", node.path()));
    assert_eq!(resource(&device, "allocatable", "gps"), "1");
    let steps = "stat /dev/gps then open /dev/gps then print open then sleep";
    let user = "securityContext: {runAsUser: 1000, runAsGroup: 2000, capabilities: {drop: [ALL]}}";
    device.write_pod("nav", &asking_with("nav", steps, "nodlet.dev/gps: 1", user));
    device.pod("nav").wait_log("app", "block 0660 1000:2000 7,0\nopen\n");
    device.pod("nav").demo("app", "open /dev/gps").ok();

    // The device is exclusive.
    device.write_pod("late", &asking("late", "sleep", "nodlet.dev/gps: 1")).wait_phase("Failed");
    let status = device.pod("late").status();
    assert_eq!(status["reason"], "OutOfnodlet.dev/gps");
    assert_eq!(
        status["message"],
        "Pod was rejected: Node didn't have enough resource: nodlet.dev/gps, requested: 1, used: 1, capacity: 1"
    );
    device.write_pod("unknown", &asking("unknown", "sleep", "nodlet.dev/sonar: 1")).wait_phase("Failed");
    assert_eq!(device.pod("unknown").status()["reason"], "OutOfnodlet.dev/sonar");

    // A container without devices cannot make its way to one.
    let steps = "mknod-block /dev/other 7 0 then print made then open /dev/other";
    device.run_pod_with("thief", steps, "restartPolicy: Never").wait_phase("Failed");
    let log = device.pod("thief").logs("app");
    assert!(log.starts_with("made\n") && log.contains("Operation not permitted"), "{log}");

    // The device is free when its pod is gone.
    device.remove_pod("nav");
    device.write_pod("next", &asking("next", "open /dev/gps then sleep", "nodlet.dev/gps: 1")).wait_ready();
    let down = device.nodlet(["down"]);
    assert_eq!(down.code, 0, "{}", down.stderr);
    assert!(!down.stderr.contains("DeviceLost"), "{}", down.stderr);
}

#[test]
fn a_device_that_may_only_be_read_is_not_written() {
    let device = Device::start();
    let node = Node::plugged("ro");
    let text =
        format!("name: disk\npath: {}\npermissions: r\nshared: 2\ncontainerPath: /dev/x/disk\n", node.path());
    define(&device, "disk.yaml", &text);
    device.wait_for("the resource", || resource(&device, "allocatable", "disk") == "2");
    let steps = "stat /dev/x/disk then open /dev/x/disk then print open then append /dev/x/disk no";
    device.write_pod("one", &asking("one", steps, "nodlet.dev/disk: 1")).wait_phase("Failed");
    let log = device.pod("one").logs("app");
    assert!(
        log.starts_with("block 0440 0:0 7,0\nopen\n") && log.contains("Operation not permitted"),
        "{log}"
    );
    for name in ["two", "three"] {
        device.write_pod(name, &asking(name, "sleep", "nodlet.dev/disk: 1")).wait_ready();
    }
    device.write_pod("four", &asking("four", "sleep", "nodlet.dev/disk: 1")).wait_phase("Failed");
}

#[test]
fn a_wrong_device_file_is_reported_with_its_line_and_the_others_stay() {
    let device = Device::start();
    offer(&device, "good", "path: /dev/absent\n");
    for (file, text, expected) in [
        (
            "bad.yaml",
            "path: /dev/x\nname: No_Label\n",
            "bad.yaml:2: name: \"No_Label\" is not a name of a device",
        ),
        (
            "mem.yaml",
            "name: mem\npath: /dev/mem\n",
            "mem.yaml:2: path: /dev/mem gives access to the whole machine",
        ),
        (
            "other.yaml",
            "name: good\npath: /dev/y\n",
            "other.yaml:1: name: nodlet.dev/good is not defined here",
        ),
        ("good.yaml", "name: good\npath: 7\n", "good.yaml:2: path: must be a string"),
    ] {
        define(&device, file, text);
        device.wait_logged(expected);
        let list = device.get("/api/v1/namespaces/default/events").expect("the API lists events");
        let events = list["items"].to_string();
        assert!(events.contains("InvalidDeviceFile"), "{events}");
        assert_eq!(resource(&device, "capacity", "good"), "1");
    }
    let fifo = device.path("/etc/nodlet/devices/fifo.yaml");
    mknod(&fifo, SFlag::S_IFIFO, Mode::S_IRWXU, 0).expect("made");
    let said = format!("{}: it is not a regular file: replace it by one", fifo.display());
    device.wait_logged(&said);
    fs::remove_file(device.path("/etc/nodlet/devices/good.yaml")).expect("it is there");
    device.wait_for("the other definition", || {
        device.agent_log().contains("other.yaml") && {
            define(&device, "good.yaml", "name: better\npath: /dev/absent\n");
            resource(&device, "capacity", "better") == "1"
        }
    });
}

#[test]
fn a_pod_waits_for_its_device_and_follows_it_while_it_runs() {
    let mut device = Device::start();
    let node = Node::named("usb");
    offer(&device, "usb", &format!("path: {}\ncontainerPath: /dev/usb\n", node.path()));
    device.write_manifest(
        "modem.yaml",
        &asking("modem", "open /dev/usb then print open then sleep", "nodlet.dev/usb: 1"),
    );
    let missing = format!("device nodlet.dev/usb was not found ({0}): {0} does not exist", node.path());
    device.pod("modem").wait_event(&missing);
    let app = || device.pod("modem").container("app");
    device.wait_for("the reason and the message", || {
        let app = app();
        app.reason() == "CreateContainerConfigError" && app.message().contains("usb.yaml:1")
    });

    node.plug(0);
    // It is unplugged when the container has opened it.
    device.pod("modem").wait_log("app", "open").wait_ready();
    let id = device.pod("modem").container("app").id();
    // It comes back with another number.
    node.unplug();
    device.pod("modem").wait_event("DeviceLost: device nodlet.dev/usb (/dev/usb, 7:0) is gone");
    device.wait_for("the node to go", || device.pod("modem").demo("app", "stat /dev/usb").code != 0);
    let mknod = ["/bin/demo", "mknod-block", "/dev/old", "7", "0"];
    device.pod("modem").exec("app", mknod).ok();
    device.pod("modem").demo("app", "open /dev/old").refused_with("Operation not permitted");
    // What the container puts in its place is replaced.
    device.pod("modem").demo("app", "link /etc/passwd /dev/usb").ok();
    node.plug(1);
    device.pod("modem").wait_event("DeviceFound: device nodlet.dev/usb (/dev/usb, 7:1) is present again");
    device.wait_for("the node", || {
        device.pod("modem").demo("app", "stat /dev/usb").stdout == "block 0660 0:0 7,1\n"
    });
    device.pod("modem").demo("app", "open /dev/usb").ok();
    device.pod("modem").demo("app", "open /dev/old").refused();
    assert_eq!(device.pod("modem").container("app").id(), id, "the container was not restarted");

    // Another agent follows it too, also what changed while no agent ran.
    device.kill_agent();
    node.unplug();
    node.plug(2);
    device.start_agent();
    device.wait_for("the new number", || {
        device.pod("modem").demo("app", "stat /dev/usb").stdout == "block 0660 0:0 7,2\n"
    });
    node.unplug();
    device.pod("modem").wait_event("DeviceLost: device nodlet.dev/usb (/dev/usb, 7:2) is gone");
}

#[test]
fn a_device_is_found_by_its_attributes_as_soon_as_the_kernel_has_it() {
    let device = Device::start();
    let text = "sysfs: {subsystem: mem, path: \"virtual/mem/kmsg\"}\ncontainerPath: /dev/log-of-kernel\n";
    offer(&device, "kmsg", text);
    let steps =
        "stat /dev/log-of-kernel then append /dev/log-of-kernel nodlet-test then print written then sleep";
    device.write_pod("log", &asking("log", steps, "nodlet.dev/kmsg: 1"));
    device.pod("log").wait_log("app", "char 0660 0:0 1,11\nwritten\n");

    // Loop devices appear with a uevent, without a file in /dev that anybody watches.
    let minor = 500 + u64::from(std::process::id() % 500);
    offer(&device, "loop", &format!("sysfs: {{subsystem: block, path: \"virtual/block/loop{minor}\"}}\n"));
    device
        .write_pod("late", &asking("late", "open /dev/loop then print open then sleep", "nodlet.dev/loop: 1"))
        .wait_event("device nodlet.dev/loop was not found");
    let control = fs::File::open("/dev/loop-control").expect("the kernel has loop devices");
    let change = |request: libc::c_ulong| {
        use std::os::fd::AsRawFd;
        // SAFETY: the request takes a number, and no pointer.
        let result = unsafe { libc::ioctl(control.as_raw_fd(), request as _, minor as libc::c_long) };
        assert!(result >= 0, "{}", std::io::Error::last_os_error());
    };
    change(0x4c80);
    device.pod("late").wait_log("app", "open").wait_ready();
    change(0x4c81);
    device.pod("late").wait_event("DeviceLost: device nodlet.dev/loop");
}

#[test]
fn a_volume_does_not_get_the_node_of_a_device() {
    let device = Device::start();
    let (shared, here) = device.shared("host");
    let node = Node::plugged("cover");
    offer(&device, "disk", &format!("path: {}\ncontainerPath: /dev/x/disk\n", node.path()));
    for (name, place) in [("dev", "/dev"), ("x", "/dev/x"), ("disk", "/dev/x/disk")] {
        let more = format!(
            "resources: {{limits: {{nodlet.dev/disk: 1}}}}\nvolumeMounts: [{{name: v, mountPath: {place}}}]"
        );
        let container = manifest::container("app", "sleep", &more);
        let volumes = format!("volumes: [{{name: v, hostPath: {{path: {shared}}}}}]");
        device.write_manifest("p.yaml", &manifest::pod_of(name, &[container], &volumes));
        let expected = format!("the volume mounted at {place} covers the device at /dev/x/disk");
        device.pod(name).wait_event(&expected);
        device.remove_manifest("p.yaml");
        device.pod(name).wait_gone();
    }
    assert_eq!(fs::read_dir(&here).expect("it is there").count(), 0);
    assert!(Path::new(node.path()).exists());
}

#[test]
fn a_pod_gets_no_cdi_device_by_an_annotation_that_the_operator_does_not_allow() {
    let device = Device::start_with(["--allowed-annotations=vendor.com/cam=front"]);
    let (library, here) = device.shared("usr/lib/cam");
    fs::write(here.join("key"), "secret\n").expect("the root can be written to");
    fs::create_dir_all(device.path("/etc/cdi")).expect("the root can be written to");
    let edits = format!(
        "{{\"containerEdits\": {{\"mounts\": [{{\"hostPath\": \"{library}\", \"containerPath\": \"/opt/cam\"}}]}}, \"name\": "
    );
    let text = format!(
        "{{\"cdiVersion\": \"0.6.0\", \"kind\": \"vendor.com/cam\", \"devices\": [{edits}\"front\"}}, {edits}\"rear\"}}]}}"
    );
    fs::write(device.path("/etc/cdi/cam.json"), text).expect("it can be written");
    let restricted = "securityContext: {runAsUser: 1000, runAsNonRoot: true}";
    let pod = |name: &str, devices: &str| {
        let pod = manifest::pod_with(name, "cat /opt/cam/key then sleep", restricted);
        let meta = format!("  name: {name}\n");
        pod.replacen(&meta, &format!("{meta}  annotations: {{cdi.k8s.io/cams: {devices:?}}}\n"), 1)
    };
    let why = "annotation cdi.k8s.io/cams: the operator of this board does not allow annotations to request \
               vendor.com/cam=rear; start nodlet agent with --allowed-annotations=vendor.com/cam=rear, or name it in a \
               device file (cdi: vendor.com/cam=rear)";
    device.write_manifest("file.yaml", &pod("file", "vendor.com/cam=rear"));
    let applied = device
        .nodlet_with_input(["apply", "-f", "-"], &pod("thief", "vendor.com/cam=front,vendor.com/cam=rear"));
    assert!(applied.stderr.contains(why), "{applied:?}");
    applied.ok();
    for name in ["file", "thief"] {
        device.wait_for("the container to wait", || device.pod(name).container("app").message() == why);
        device.pod(name).wait_event(why);
    }
    // What is allowed stays possible, and an annotation that changes takes effect.
    let patch = |value: &str| {
        let body = serde_json::json!({"metadata": {"annotations": {"cdi.k8s.io/cams": value}}});
        device.patch("/api/v1/namespaces/default/pods/thief", "merge", &body)
    };
    let (status, patched) = patch("vendor.com/cam=front");
    assert_eq!(status, 200, "{patched}");
    device.pod("thief").wait_log("app", "secret");
    assert_eq!(device.pod("file").container("app").message(), why);
}

#[test]
fn a_pod_gets_cdi_devices_by_an_annotation() {
    let device = Device::start_with(["--allowed-annotations=vendor.com/cam=*"]);
    let node = Node::plugged("cdi");
    let (library, here) = device.shared("usr/lib/cam");
    fs::write(here.join("lens"), "sharp\n").expect("the root can be written to");
    for directory in ["/etc/cdi", "/var/run/cdi"] {
        fs::create_dir_all(device.path(directory)).expect("the root can be written to");
    }
    let fifo = device.path("/var/run/cdi/fifo.yaml");
    mknod(&fifo, SFlag::S_IFIFO, Mode::S_IRWXU, 0).expect("made");
    let edits =
        |device: &str, more: &str| format!("{{\"name\": \"{device}\", \"containerEdits\": {{{more}}}}}");
    let front = edits(
        "front",
        &format!(
            "\"deviceNodes\": [{{\"path\": \"/dev/video0\", \"hostPath\": \"{}\", \"permissions\": \"r\"}}], \
             \"mounts\": [{{\"hostPath\": \"{library}\", \"containerPath\": \"/opt/cam\", \"options\": [\"ro\"]}}]",
            node.path()
        ),
    );
    let hooked = edits("hooked", "\"hooks\": [{\"hookName\": \"createContainer\", \"path\": \"/bin/sh\"}]");
    let text = format!(
        "{{\"cdiVersion\": \"0.6.0\", \"kind\": \"vendor.com/cam\", \"containerEdits\": {{\"env\": [\"CAM=old\"]}}, \
         \"devices\": [{front}, {hooked}]}}"
    );
    fs::write(device.path("/etc/cdi/cam.json"), &text).expect("it can be written");
    // The later directory takes precedence.
    fs::write(device.path("/var/run/cdi/cam.json"), text.replace("CAM=old", "CAM=new"))
        .expect("it can be written");
    let annotated = |name: &str, devices: &str, steps: &str| {
        let pod = manifest::pod_with(name, steps, "restartPolicy: Never");
        let meta = format!("  name: {name}\n");
        pod.replacen(&meta, &format!("{meta}  annotations: {{cdi.k8s.io/cams: {devices:?}}}\n"), 1)
    };
    let steps =
        "env then cat /opt/cam/lens then stat /dev/video0 then open /dev/video0 then append /dev/video0 x";
    device.write_pod("eye", &annotated("eye", "vendor.com/cam=front", steps)).wait_phase("Failed");
    let log = device.pod("eye").logs("app");
    assert!(log.contains("CAM=new\n") && !log.contains("CAM=old"), "{log}");
    assert!(log.contains("sharp\nblock 0440 0:0 7,0\n") && log.contains("Operation not permitted"), "{log}");
    let said = format!("{}: it is not a regular file: remove it", fifo.display());
    assert_eq!(device.agent_log().matches(&said).count(), 1, "{}", device.agent_log());
    fs::remove_file(&fifo).expect("it is there");
    for (name, devices, expected) in [
        (
            "rear",
            "vendor.com/cam=rear",
            "CDI device injection failed: unresolvable CDI devices vendor.com/cam=rear",
        ),
        ("hooked", "vendor.com/cam=hooked", "containerEdits: field hooks is not supported"),
    ] {
        device.write_pod(name, &annotated(name, devices, "sleep")).wait_event(expected);
    }
    let refused =
        device.nodlet_with_input(["apply", "-f", "-"], &annotated("wrong", "cam", "sleep")).refused();
    let expected = "metadata.annotations[cdi.k8s.io/cams]: Invalid value: \"cam\": \"cam\" is no CDI device";
    assert!(refused.contains(expected), "{refused}");

    // A device file makes it a resource: it is counted, and the other container does not get it.
    offer(&device, "cam", "cdi: vendor.com/cam=front\n");
    let wanted = "resources: {limits: {nodlet.dev/cam: 1}}\n";
    let counted = |name: &str| {
        let one = manifest::container("one", "env then stat /dev/video0 then print up then sleep", wanted);
        let two = manifest::container("two", "env then print up then sleep", "");
        manifest::pod_of(name, &[one, two], "")
    };
    device.write_pod("counted", &counted("counted")).wait_log("one", "up").wait_log("two", "up");
    let log = device.pod("counted").logs("one");
    assert!(log.contains("CAM=new\n") && log.contains("block 0440 0:0 7,0\n"), "{log}");
    assert!(!device.pod("counted").logs("two").contains("CAM="));
    device.write_pod("more", &counted("more")).wait_event("OutOfnodlet.dev/cam");
}

#[test]
fn a_container_cannot_lead_a_device_to_another_place() {
    let device = Device::start();
    let node = Node::plugged("led");
    offer(&device, "led", &format!("path: {}\ncontainerPath: /dev/x/led\n", node.path()));
    let more = "resources: {limits: {nodlet.dev/led: 1}}\nvolumeMounts: [{name: v, mountPath: /v}]\n\
                securityContext: {capabilities: {add: [SYS_ADMIN]}}";
    let pod = manifest::pod_of(
        "led",
        &[manifest::container("app", "print started then sleep", more)],
        "volumes: [{name: v, emptyDir: {}}]",
    );
    let led = device.write_pod("led", &pod).wait_log("app", "started");
    // A link in place of the directory leads into the volume.
    let steps = ["/bin/demo", "rename", "/dev/x", "/dev/y", "then", "link", "/v", "/dev/x"];
    led.exec("app", steps).ok();
    node.unplug();
    let failures = || device.agent_log().matches("failed to change the devices of container app").count();
    device.wait_for("the failure", || failures() > 0);
    node.plug(1);
    device.wait_for("a failure with the new device", || failures() > 1);
    assert_eq!(led.demo("app", "ls /v").ok(), "");
    let events = || led.events().iter().filter(|event| event.contains("Device")).cloned().collect::<Vec<_>>();
    assert_eq!(events(), [""; 0], "nothing has changed for the container");
    // What has failed is tried again, without a further change of the device.
    led.demo("app", "rm /dev/x then rename /dev/y /dev/x").ok();
    device.pod("led").wait_event("DeviceLost: device nodlet.dev/led (/dev/x/led, 7:0) is gone");
    device.pod("led").wait_event("DeviceFound: device nodlet.dev/led (/dev/x/led, 7:1) is present again");
    assert_eq!(led.demo("app", "stat /dev/x/led").ok(), "block 0660 0:0 7,1\n");
    led.demo("app", "open /dev/x/led").ok();
    // Of a file system in its place nodlet makes no use.
    node.unplug();
    device.pod("led").wait_event("DeviceLost: device nodlet.dev/led (/dev/x/led, 7:1) is gone");
    led.demo("app", "mount proc proc /dev/x").ok();
    node.plug(2);
    device.wait_logged("the container has mounted a file system over its directory");
    assert!(led.container("app").is_running());
}

#[test]
fn a_change_that_an_agent_did_not_complete_is_made_by_the_next_one() {
    let mut device = Device::start();
    let node = Node::plugged("left");
    offer(&device, "left", &format!("path: {}\ncontainerPath: /dev/x/left\n", node.path()));
    device.write_pod("left", &asking("left", "print started then sleep", "nodlet.dev/left: 1"));
    device.pod("left").wait_log("app", "started");
    let dev = PathBuf::from(format!("/proc/{}/root/dev", device.container_processes()[0]));
    let number = || {
        let found = fs::symlink_metadata(dev.join("x/left")).ok()?;
        Some(std::os::unix::fs::MetadataExt::rdev(&found))
    };
    // The rule of the cgroup changes, and the nodes in the container do not.
    fs::rename(dev.join("x"), dev.join("y")).expect("it is there");
    fs::write(dev.join("x"), "").expect("it can be written");
    node.unplug();
    node.plug(1);
    device.wait_logged("failed to change the devices of container app");
    device.kill_agent();
    fs::remove_file(dev.join("x")).expect("it is there");
    fs::rename(dev.join("y"), dev.join("x")).expect("it is there");
    assert_eq!(number(), Some(makedev(7, 0)));
    device.start_agent();
    device.wait_for("the new node", || number() == Some(makedev(7, 1)));
    device.pod("left").wait_event("DeviceFound: device nodlet.dev/left (/dev/x/left, 7:1) is present again");
    device.pod("left").demo("app", "open /dev/x/left").ok();
}

#[test]
fn a_device_file_that_changes_or_goes_changes_the_devices_of_running_containers() {
    let device = Device::start();
    let (one, other) = (Node::named("one"), Node::named("other"));
    one.plug(0);
    other.plug(1);
    let file = |node: &Node| format!("name: gps\npath: {}\ncontainerPath: /dev/gps\n", node.path());
    define(&device, "gps.yaml", &file(&one));
    device.wait_for("the resource", || resource(&device, "capacity", "gps") == "1");
    // Its users are its own: the helper makes nodes with IDs of the host.
    let more =
        "resources: {limits: {nodlet.dev/gps: 1}}\nsecurityContext: {runAsUser: 1000, runAsGroup: 2000}";
    for (name, spec) in [("nav", ""), ("own", "hostUsers: false")] {
        let pod = manifest::pod_of(
            name,
            &[manifest::container("app", "stat /dev/gps then print up then sleep", more)],
            spec,
        );
        device.write_manifest("pod.yaml", &pod);
        device.pod(name).wait_log("app", "block 0660 1000:2000 7,0\nup\n");
        let stat = || device.pod(name).demo("app", "stat /dev/gps");
        define(&device, "gps.yaml", &file(&other));
        device.pod(name).wait_event("DeviceFound: device nodlet.dev/gps (/dev/gps, 7:1) is present again");
        assert_eq!(stat().ok(), "block 0660 1000:2000 7,1\n");
        let open = device.pod(name).demo("app", "open /dev/gps");
        assert_eq!(open.code, 0, "{}", open.stderr);
        fs::remove_file(device.path("/etc/nodlet/devices/gps.yaml")).expect("it is there");
        device.pod(name).wait_event("DeviceLost: device nodlet.dev/gps (/dev/gps, 7:1) is gone");
        assert_ne!(stat().code, 0);
        define(&device, "gps.yaml", &file(&one));
        device.pod(name).wait_event("DeviceFound: device nodlet.dev/gps (/dev/gps, 7:0) is present again");
        assert_eq!(stat().ok(), "block 0660 1000:2000 7,0\n");
        device.remove_manifest("pod.yaml");
        device.pod(name).wait_gone();
    }
}
