//! The gateway of `examples/gateway`, with real software: a broker, a collector that reads a device, and a web server on
//! a port of the host. A block device with lines of text takes the place of the serial device.

use std::fs;
use std::path::{Path, PathBuf};

use nodlet_tests::{Device, LoopDevice};

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
    let lines = device.path("/readings");
    // One sector.
    let text = format!("boot.\n{}", "meter=20.5\nmeter=21.50\n".repeat(22));
    assert_eq!(text.len(), 512);
    fs::write(&lines, text).expect("a file");
    let readings = LoopDevice::over(&lines);
    let definition = fs::read_to_string(example.join("devices/meter.yaml")).expect("it is text");
    let usb = "usb: {vendor: \"067b\", product: \"2303\"}";
    assert!(definition.contains(usb), "{definition}");
    let directory = device.path("/etc/nodlet/devices");
    fs::create_dir_all(&directory).expect("a directory");
    let definition = definition.replace(usb, &format!("path: {}", readings.path()));
    fs::write(directory.join("meter.yaml"), definition).expect("a file");
    // It was rejected without the definition: the node had no such device.
    assert_eq!(device.pod("collector").status()["reason"], "OutOfnodlet.dev/meter");
    device.nodlet(["delete", "pod", "collector"]).ok();
    device.nodlet(["apply", "-f", &example.join("gateway.yaml").display().to_string()]).ok();
    let collector = device.pod("collector");
    collector.wait_log("collector", "published meter=21.50");
    collector.wait_ready();
    let page = world.demo(&format!("get http://{BOARD}:8080/"));
    assert_eq!(page.as_deref().map(str::trim), Ok("meter=21.50"));
}
