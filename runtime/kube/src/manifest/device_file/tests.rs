//! Device files, and the mistakes in them.

use super::*;

fn parsed(text: &str) -> Result<Vec<DeviceDefinition>, String> {
    parse_device_file("d.yaml", text.as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn each_source_of_a_device_is_read() {
    let text = "name: gps\npath: /dev/ttyUSB0\n---\nname: modem\nusb: {vendor: \"0403\", product: \"6AB1\", serial: A1}\nshared: 10\n---\nname: led\nsysfs: {subsystem: gpio, match: {label: pinctrl}, path: \"/sys/devices/platform/*\"}\ncontainerPath: /dev/gpiochip0\npermissions: rm\n---\nname: can\ninterface: can0\n";
    let devices = parsed(text).expect("it is right");
    let source = |subsystem: &str, attributes: &[(&str, &str)], path: Option<&str>| DeviceSource::Sysfs {
        subsystem: subsystem.to_owned(),
        attributes: attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        path: path.map(str::to_owned),
    };
    let usb = [("idVendor", "0403"), ("idProduct", "6ab1"), ("serial", "A1")];
    let expected = [
        ("gps", DeviceSource::Path("/dev/ttyUSB0".to_owned()), "/dev/ttyUSB0", 1, "rw", 1),
        ("modem", source("tty", &usb, None), "/dev/modem", 10, "rw", 4),
        ("led", source("gpio", &[("label", "pinctrl")], Some("platform/*")), "/dev/gpiochip0", 1, "r", 8),
        ("can", DeviceSource::Interface("can0".to_owned()), "/dev/can", 1, "rw", 13),
    ];
    for (device, (name, source, path, users, permissions, line)) in devices.iter().zip(expected) {
        assert_eq!((&*device.name, &device.source, &*device.container_path), (name, &source, path));
        assert_eq!((device.users, &*device.place), (users, &*format!("d.yaml:{line}")));
        assert_eq!(
            (device.readable, device.writable),
            (permissions.contains('r'), permissions.contains('w'))
        );
    }
}

#[test]
fn an_invalid_device_file_is_rejected_with_the_line_and_a_valid_alternative() {
    for (text, expected) in [
        ("- 1", "d.yaml:1: not a device: expected fields such as `name: gps`"),
        ("path: /dev/x", "d.yaml:1: name: is missing"),
        ("path: /dev/x\nname: Big_Name", "d.yaml:2: name: \"Big_Name\" is not a name of a device: "),
        ("name: a.b\npath: /dev/x", "d.yaml:1: name: \"a.b\" is not a name of a device: "),
        ("name: a\nname: b\npath: /dev/x", "d.yaml:2: field "),
        ("name: a", "d.yaml:1: name: the device needs exactly one of path, usb, sysfs, interface and cdi"),
        ("name: a\npath: /dev/x\ninterface: can0", "d.yaml:1: name: the device needs exactly one"),
        ("name: a\npath: /dev/x\nmode: 3", "d.yaml:3: mode: unknown field; known are name, path, "),
        ("name: a\npath: /etc/shadow", "d.yaml:2: path: \"/etc/shadow\": must be below /dev/"),
        ("name: a\npath: /dev/../etc/shadow", "d.yaml:2: path: \"/dev/../etc/shadow\": must have no"),
        ("name: a\npath: /dev/mem", "d.yaml:2: path: /dev/mem gives access to the whole machine"),
        ("name: a\npath: 7", "d.yaml:2: path: must be a string: write it in quotes"),
        ("name: a\npath: /dev/tty", "d.yaml:1: name: containers have their own /dev/tty: name another"),
        (
            "name: a\npath: /dev/x\ncontainerPath: /dev/pts/0",
            "d.yaml:3: containerPath: containers have their own",
        ),
        (
            "name: a\npath: /dev/x\ncontainerPath: /etc/x",
            "d.yaml:3: containerPath: \"/etc/x\": must be below",
        ),
        ("name: a\npath: /dev/x\npermissions: rx", "d.yaml:3: permissions: \"rx\": must be r, w, rw or rwm"),
        ("name: a\npath: /dev/x\nshared: true", "d.yaml:3: shared: must be false or the number of users"),
        ("name: a\npath: /dev/x\nshared: 0", "d.yaml:3: shared: must be the number of users, from 1 to 1000"),
        (
            "name: a\nusb: {vendor: 0403, product: \"6001\"}",
            "d.yaml:2: vendor: must be a string: write it in quotes",
        ),
        (
            "name: a\nusb: {vendor: \"403\", product: \"6001\"}",
            "d.yaml:2: vendor: \"403\": must be four hexadecimal",
        ),
        ("name: a\nusb: {vendor: \"0403\"}", "d.yaml:2: usb: product is missing"),
        ("name: a\nsysfs: {subsystem: tty}", "d.yaml:2: sysfs: match or path is missing"),
        (
            "name: a\nsysfs: {subsystem: ../x, path: \"*\"}",
            "d.yaml:2: subsystem: \"../x\": must be a name below",
        ),
        (
            "name: a\nsysfs: {subsystem: tty, match: {../x: y}}",
            "d.yaml:2: match: \"../x\" is not an attribute",
        ),
        ("name: a\ninterface: lo", "d.yaml:2: interface: \"lo\": must be the name of an interface"),
        ("name: a\ncdi: cam", "d.yaml:2: cdi: \"cam\" is no CDI device: must be vendor.com/class=device"),
        ("name: a\ncdi: 'v.com/c=a,v.com/c=b'", "d.yaml:2: cdi: must be one device: write a file for each"),
        (
            "name: a\ncdi: v.com/c=a\npermissions: r",
            "d.yaml:3: permissions: the CDI file defines the nodes: remove",
        ),
        ("name: a\ninterface: can0\nshared: 2", "d.yaml:3: shared: an interface is in one pod at a time"),
        ("name: a\npath: /dev/x\n---\nname: a\npath: /dev/y", "d.yaml:4: name: the file defines \"a\" twice"),
        ("name: [", "d.yaml:"),
    ] {
        let error = parsed(text).expect_err(text);
        assert!(error.starts_with(expected), "{text}\n  {error}\n  {expected}");
    }
}
