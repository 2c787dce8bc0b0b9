//! [`Monitor`]: QEMU's monitor, at a port of the guest.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};

use serde_json::{Value, json};

use crate::guest::port;

/// QEMU's monitor, with which devices are plugged in and out.
pub struct Monitor(File, BufReader<File>);

impl Monitor {
    /// Connects to the monitor, at the port of the guest with that name.
    pub fn connect() -> Monitor {
        let port = port("monitor");
        let mut monitor = Monitor(port.try_clone().expect("a descriptor"), BufReader::new(port));
        monitor.order("qmp_capabilities", &json!({}));
        monitor
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("QEMU runs");
        serde_json::from_str(&line).expect("QEMU's monitor speaks JSON")
    }

    fn order(&mut self, what: &str, arguments: &Value) {
        writeln!(self.0, "{}", json!({"execute": what, "arguments": arguments})).expect("QEMU runs");
        loop {
            let answer = self.next();
            assert!(answer["error"].is_null(), "{what}: {answer}");
            if !answer["return"].is_null() {
                return;
            }
        }
    }

    /// Plugs a USB serial port in, whose wire is a character device of QEMU.
    pub fn plug(&mut self, id: &str, serial: &str, wire: &str) {
        // Also if nothing is at the other end.
        let arguments = json!({"driver": "usb-serial", "bus": "usb.0", "id": id, "serial": serial, "chardev": wire,
            "always-plugged": true});
        self.order("device_add", &arguments);
    }

    /// Unplugs a device, and waits until it is gone.
    pub fn unplug(&mut self, id: &str) {
        writeln!(self.0, "{}", json!({"execute": "device_del", "arguments": {"id": id}})).expect("QEMU runs");
        // The event may precede the answer.
        let (mut is_answered, mut is_gone) = (false, false);
        while !is_answered || !is_gone {
            let answer = self.next();
            assert!(answer["error"].is_null(), "{id}: {answer}");
            is_answered |= !answer["return"].is_null();
            is_gone |= answer["event"] == "DEVICE_DELETED" && answer["data"]["device"] == id;
        }
    }
}
