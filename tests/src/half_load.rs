//! [`HalfLoad`]: a load of an image that has received half of its archive.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Stdio};

use crate::device::Device;
use crate::image::{Compression, Image};

/// A load that has received half of its archive through a pipe and has begun a layer. Its input is open.
pub struct HalfLoad {
    /// The process of the verb.
    pub load: Child,
    /// The process that reads the archive.
    pub reader: u32,
}

impl HalfLoad {
    /// Starts the load of an image `localhost/large:1` of 3 MB.
    pub fn start(device: &Device) -> Self {
        let archive = device.path("/large.tar");
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let image = Image::new("localhost/large:1").compression(Compression::None);
        image.file("large", 0o644, &bytes).write_docker_archive(&archive).expect("it can be written");
        let bytes = fs::read(&archive).expect("it can be read");
        let mut load = device.command(&["image", "load", "-"]);
        load.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut load = load.spawn().expect("nodlet can be run");
        let input = load.stdin.as_mut().expect("a pipe");
        input.write_all(&bytes[..bytes.len() / 2]).expect("it reads");
        let staging = device.path("/var/lib/nodlet/images/staging");
        device.wait_for("a layer to be begun", || fs::read_dir(&staging).map_or(0, Iterator::count) == 1);
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", load.id()));
        let reader = children.expect("it runs").split_whitespace().next().and_then(|pid| pid.parse().ok());
        Self { load, reader: reader.expect("a process that reads") }
    }

    /// The text of a file of the process that reads, in /proc.
    pub fn of_reader(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.reader)).expect("it runs")
    }

    /// Ends the input. Returns the error message of the load, which must fail.
    pub fn error(mut self) -> String {
        drop(self.load.stdin.take());
        let mut text = String::new();
        self.load.stderr.take().expect("a pipe").read_to_string(&mut text).expect("text");
        assert_eq!(self.load.wait().expect("it ends").code(), Some(1));
        text
    }
}
