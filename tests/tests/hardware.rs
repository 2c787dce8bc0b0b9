//! Devices that are plugged in and out, and CAN interfaces, in the guest `hardware`: a serial port on USB, of which the
//! other end of the wire is a port of the guest, and two CAN cards on one bus. QEMU's monitor is another port.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use nodlet_tests::{Device, Monitor, demo_program, manifest};

fn define(device: &Device, name: &str, text: &str) {
    device.write_file(&format!("/etc/nodlet/devices/{name}.yaml"), format!("name: {name}\n{text}\n"));
    device.wait_for("the resource", || {
        let nodes = device.get("/api/v1/nodes").expect("the API has a node");
        nodes["items"][0]["status"]["capacity"][format!("nodlet.dev/{name}")] == "1"
    });
}

fn asking(name: &str, steps: &str, device: &str) -> String {
    let more = format!("resources: {{limits: {{nodlet.dev/{device}: 1}}}}");
    manifest::pod_of(name, &[manifest::container("app", steps, &more)], "")
}

/// A port of the guest: to write to, and to read from.
fn port(name: &str) -> (File, BufReader<File>) {
    let port = nodlet_tests::guest::port(name);
    (port.try_clone().expect("a descriptor"), BufReader::new(port))
}

#[test]
#[ignore = "needs a serial port on USB: cargo xtask guest hardware"]
fn a_serial_port_on_usb_is_found_by_its_serial_number_and_followed_while_its_container_runs() {
    let device = Device::start();
    let mut monitor = Monitor::connect();
    let (mut to, mut from) = port("wire");
    let mut hear = || {
        let mut line = String::new();
        from.read_line(&mut line).expect("the other end of the wire");
        line.trim_end().to_owned()
    };
    define(&device, "gps", "usb: {vendor: \"0403\", product: \"6001\", serial: A1}\ncontainerPath: /dev/gps");
    // Another one of the same kind, which nobody may have.
    monitor.plug("other", "B2", "other");
    device.wait_for("the other port", || fs::exists("/dev/ttyUSB1").expect("/dev is there"));

    device.write_pod("nav", &asking("nav", "append /dev/gps up then sleep", "gps")).wait_ready();
    assert_eq!(hear(), "up");
    let nav = device.pod("nav");
    let id = nav.container("app").id();
    let node = || nav.demo("app", "stat /dev/gps").stdout;
    assert_eq!(node(), "char 0660 0:0 188,0\n");
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| nav.demo("app", "ask-line /dev/gps position").ok());
        assert_eq!(hear(), "position");
        to.write_all(b"fix\n").expect("the other end of the wire");
        assert_eq!(answer.join().expect("it answers"), "fix\n");
    });
    assert_eq!(hear(), "fix", "the terminal's echo");

    monitor.unplug("gps");
    nav.wait_event("DeviceLost: device nodlet.dev/gps (/dev/gps, 188:0) is gone");
    device.wait_for("the node to go", || node().is_empty());
    let old = ["/bin/demo", "mknod", "/dev/old", "188", "0"];
    nav.exec("app", old).ok();
    nav.demo("app", "open /dev/old").refused_with("Operation not permitted");

    // A third one takes its number, so that it comes back with another one.
    monitor.plug("third", "C3", "third");
    device.wait_for("the third port", || fs::exists("/dev/ttyUSB0").expect("/dev is there"));
    monitor.plug("gps", "A1", "serial");
    nav.wait_event("DeviceFound: device nodlet.dev/gps (/dev/gps, 188:2) is present again");
    device.wait_for("the node", || node() == "char 0660 0:0 188,2\n");
    nav.demo("app", "append /dev/gps again").ok();
    assert_eq!(hear(), "again");
    nav.demo("app", "open /dev/old").refused();
    assert_eq!(nav.container("app").id(), id, "the container was not restarted");
    for id in ["other", "third"] {
        monitor.unplug(id);
    }
}

#[track_caller]
fn ip(words: &str) {
    let ran = Command::new("ip").args(words.split(' ')).output().expect("the guest has ip");
    assert!(ran.status.success(), "{words}: {}", String::from_utf8_lossy(&ran.stderr));
}

fn exists(interface: &str) -> bool {
    fs::exists(format!("/sys/class/net/{interface}")).expect("/sys is there")
}

/// A program that receives one frame on an interface of the machine.
struct Listener(Child, BufReader<std::process::ChildStdout>);

impl Listener {
    fn on(interface: &str) -> Listener {
        let mut command = Command::new(demo_program());
        command.args(["can-receive", interface, "1"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the demo program can be run");
        let output = child.stdout.take().expect("it is piped");
        let mut listener = Listener(child, BufReader::new(output));
        assert_eq!(listener.line(), "listening");
        listener
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("it is text");
        line.trim_end().to_owned()
    }

    fn frame(mut self) -> String {
        let line = self.line();
        assert!(self.0.wait().expect("it is our child").success());
        line
    }
}

fn send(interface: &str, text: &str) {
    let sent = Command::new(demo_program()).args(["can-send", interface, "291", text]).status();
    assert!(sent.expect("the demo program can be run").success());
}

#[test]
#[ignore = "needs a kernel with CAN: cargo xtask guest hardware"]
fn a_virtual_can_interface_moves_into_the_pod_and_comes_back() {
    let mut device = Device::start();
    ip("link add vcan0 type vcan");
    define(&device, "can", "interface: vcan0");
    device
        .write_pod("bus", &asking("bus", "can-receive vcan0 2 then sleep", "can"))
        .wait_log("app", "listening");
    assert!(!exists("vcan0"), "it is in the pod alone");
    let bus = device.pod("bus");
    bus.demo("app", "can-send vcan0 291 one").ok();
    bus.wait_log("app", "291 one");
    // A frame of another pod or of the host does not get there; of this pod it does, also after another agent came.
    device.restart_agent();
    device.pod("bus").demo("app", "can-send vcan0 7 two").ok();
    device.pod("bus").wait_log("app", "7 two");
    device.remove_pod("bus");
    assert!(exists("vcan0"), "it came back");
    ip("link set vcan0 up");
    let listener = Listener::on("vcan0");
    send("vcan0", "back");
    assert_eq!(listener.frame(), "291 back");
    ip("link delete vcan0");
}

#[test]
#[ignore = "needs CAN cards: cargo xtask guest hardware"]
fn a_can_card_exchanges_frames_with_another_one_on_the_bus_while_it_is_in_the_pod() {
    let device = Device::start();
    for interface in ["can0", "can1"] {
        ip(&format!("link set {interface} type can bitrate 125000"));
    }
    ip("link set can1 up");
    define(&device, "can", "interface: can0");
    device
        .write_pod("bus", &asking("bus", "can-receive can0 2 then sleep", "can"))
        .wait_log("app", "listening");
    assert!(!exists("can0"), "it is in the pod alone");
    let listener = Listener::on("can1");
    device.pod("bus").exec("app", ["/bin/demo", "can-send", "can0", "291", "from pod"]).ok();
    assert_eq!(listener.frame(), "291 from pod");
    send("can1", "to pod");
    device.pod("bus").wait_log("app", "291 to pod");
    device.remove_pod("bus");
    assert!(exists("can0"), "it came back");
    // It still has its bit rate.
    ip("link set can0 up");
    let listener = Listener::on("can1");
    send("can0", "back");
    assert_eq!(listener.frame(), "291 back");
}
