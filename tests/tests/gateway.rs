//! The gateway of `examples/gateway`, with real software: a broker, a collector that reads a device, and a web server on
//! a port of the host. The serial device is QEMU's on USB in the guest, and a virtual terminal elsewhere.

use std::fs;
use std::path::{Path, PathBuf};

use nodlet_tests::{Device, Monitor, SerialLine};
use serde_json::{Value, json};

/// The board's address on the link to the world.
const BOARD: &str = "192.0.2.2";

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member of the workspace")
}

/// The path of an image that `cargo xtask images` built.
fn image(file: &str) -> PathBuf {
    let path = project().join(".work/images").join(file);
    assert!(path.exists(), "{file} is not built: run `cargo xtask images`, or `cargo xtask check`");
    path
}

#[test]
fn the_gateway_publishes_and_shows_what_its_device_sends() {
    let mut device = Device::new();
    let (board, world) = (device.own_network(), nodlet_tests::Namespace::new());
    board.connect("eth0", &world, "lan0");
    board.ip(&format!("address add {BOARD}/24 dev eth0"));
    world.ip("address add 192.0.2.1/24 dev lan0");
    board.ip("route add default via 192.0.2.1");
    device.start_agent();
    device.load_image(&image("gateway.oci.tar"));
    device.load_image(&image("nginx.oci.tar"));

    let example = project().join("examples/gateway");
    let applied = device.nodlet(["apply", "-f", &example.join("gateway.yaml").display().to_string()]).ok();
    assert_eq!(applied.lines().filter(|line| line.ends_with(" created")).count(), 5, "{applied}");
    device.pod("broker").wait_ready();

    // The device is defined, and plugged in, when the pods are there already.
    let mut meter = SerialLine::open().expect("a USB serial port or a virtual terminal, and root");
    let definition = fs::read_to_string(example.join("devices/meter.yaml")).expect("it is text");
    let usb = "usb: {vendor: \"0403\", product: \"6001\"}";
    assert!(definition.contains(usb), "{definition}");
    let directory = device.path("/etc/nodlet/devices");
    fs::create_dir_all(&directory).expect("a directory");
    let definition = definition.replace(usb, &meter.selector());
    fs::write(directory.join("meter.yaml"), definition).expect("a file");
    // It was rejected without the definition: the node had no such device.
    assert_eq!(device.pod("collector").status()["reason"], "OutOfnodlet.dev/meter");
    device.nodlet(["delete", "pod", "collector"]).ok();
    device.nodlet(["apply", "-f", &example.join("gateway.yaml").display().to_string()]).ok();
    let collector = device.pod("collector");
    collector.wait_log("collector", "reading /dev/meter");
    for reading in ["meter=20.5", "meter=21.50"] {
        meter.send(&format!("{reading}\n")).expect("the line is up");
        collector.wait_log("collector", &format!("published {reading}"));
        collector.wait_ready();
        let page = world.demo(&format!("get http://{BOARD}:8080/"));
        assert_eq!(page.as_deref().map(str::trim), Ok(reading));
    }
    let node = "import os; s = os.stat('/dev/meter'); print(oct(s.st_mode), s.st_uid)";
    let node = collector.exec("collector", ["python3", "-c", node]).ok();
    assert_eq!(node, "0o20440 65534\n", "the collector may only read, and is no root");

    let broker = device.pod("broker");
    let read = || broker.exec("mosquitto", ["cat", "/etc/broker/mosquitto.conf"]).ok();
    let changed = format!("{}max_connections 16\n", read());
    patch(&device, "configmaps/broker", &json!({"data": {"mosquitto.conf": changed}}));
    device.wait_for("the changed file", || read() == changed);
    assert_eq!(broker.container("mosquitto").restart_count(), 0);
    change_credentials_and_topic(&device);
    collector.wait_log("collector", "reading /dev/meter");
    meter.send("meter=21.75\n").expect("the line is up");
    collector.wait_log("collector", "published meter=21.75");

    // The collector outlives its meter, if that can be unplugged.
    if !matches!(meter, SerialLine::Usb(_)) {
        return;
    }
    let mut monitor = Monitor::connect();
    monitor.unplug("gps");
    device.wait_for("the event", || collector.has_event("DeviceLost"));
    let page = world.demo(&format!("get http://{BOARD}:8080/"));
    assert_eq!(page.as_deref().map(str::trim), Ok("meter=21.75"));
    monitor.plug("gps", "A1", "serial");
    let lines = |text: &str| collector.logs("collector").lines().filter(|line| *line == text).count();
    device.wait_for("the meter to be read again", || lines("reading /dev/meter") == 2);
    meter.send("meter=22.00\n").expect("the line is up");
    collector.wait_log("collector", "published meter=22.00");
    assert_eq!(collector.container("collector").restart_count(), 1);
}

/// Changes an object of the gateway.
fn patch(device: &Device, object: &str, change: &Value) {
    let path = format!("/api/v1/namespaces/default/{object}");
    let (code, patched) = device.patch(&path, "merge", change);
    assert_eq!(code, 200, "{patched}");
}

/// Changes the Secret and the topic. Both arrive in the files of the running collector at once, and in its variables
/// when its container restarts. The broker accepts them when its init container has written the passwords again.
fn change_credentials_and_topic(device: &Device) {
    let collector = device.pod("collector");
    let read = |file: &str| collector.exec("collector", ["cat", file]).ok();
    let has_variable = |line: &str| read("/proc/1/environ").split('\0').any(|variable| variable == line);
    let before = ["MQTT_USER=collector", "TOPIC=meters/1"];
    let after = ["MQTT_USER=cellar", "TOPIC=meters/2"];
    let program = read("/program/collect.py");
    patch(device, "secrets/mqtt", &json!({"stringData": {"user": "cellar", "password": "changed"}}));
    let changed = program.replace("Publishes each line", "Publishes every line");
    patch(device, "configmaps/collector", &json!({"data": {"topic": "meters/2", "collect.py": changed}}));
    device.wait_for("the changed password", || read("/credentials/password") == "changed");
    device.wait_for("the changed program", || read("/program/collect.py") == changed);
    assert!(before.into_iter().all(has_variable), "{}", read("/proc/1/environ"));
    // Nor has a process that is executed now the new values.
    let executed = collector.exec("collector", ["env"]).ok();
    assert!(before.iter().all(|line| executed.lines().any(|variable| variable == *line)), "{executed}");
    assert_eq!(collector.container("collector").restart_count(), 0);

    device.nodlet(["delete", "pod", "broker"]).ok();
    let example = fs::read_to_string(project().join("examples/gateway/gateway.yaml")).expect("it is text");
    let is_broker = |object: &&str| object.contains("kind: Pod\nmetadata:\n  name: broker\n");
    let broker = example.split("---\n").find(is_broker).expect("the pod of the broker");
    device.apply(broker);
    device.pod("broker").wait_ready();
    let interrupt = "import os, signal; os.kill(1, signal.SIGINT)";
    collector.exec("collector", ["python3", "-c", interrupt]).ok();
    device.wait_for("the restart", || {
        let container = collector.container("collector");
        container.restart_count() == 1 && container.is_running()
    });
    assert!(after.into_iter().all(has_variable), "{}", read("/proc/1/environ"));
}
