//! What tests do with a [`Device`] and its pods in more than one step.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::device::{Device, Ran};
use crate::image::Image;
use crate::pod::TestPod;
use crate::programs::demo_program;

impl Device {
    /// Applies a manifest, which must be rejected with this text.
    #[track_caller]
    pub fn reject(&self, manifest: &str, expected: &str) {
        self.nodlet_with_input(["apply", "-f", "-"], manifest).refused_with(expected);
    }
}

impl Ran {
    /// Runs a command with this input, which the command need not read.
    pub fn with_input(command: Command, input: &str) -> Self {
        let name = format!("{command:?}");
        Self::of(command, &name, input)
    }
}

impl TestPod<'_> {
    /// READY and STATUS of the pod, as `nodlet get pods` prints them.
    pub fn row(&self) -> (String, String) {
        let table = self.device().nodlet(["get", "pods", "--no-headers"]).stdout;
        let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = rows.find(|row| row[0] == self.name()).unwrap_or_else(|| vec![""; 3]);
        (row[1].to_owned(), row[2].to_owned())
    }

    /// Waits until READY and STATUS of the pod are these.
    #[track_caller]
    pub fn wait_row(&self, ready: &str, status: &str) {
        let what = format!("{} to be shown as {ready} {status}", self.name());
        self.device().wait_for(&what, || self.row() == (ready.to_owned(), status.to_owned()));
    }

    /// The directory of the pod's durable files on this machine.
    pub fn directory(&self) -> PathBuf {
        self.device().path(&format!("/var/lib/nodlet/pods/{}", self.uid()))
    }

    /// The directory of an emptyDir of the pod on this machine.
    pub fn empty_dir(&self, volume: &str) -> PathBuf {
        self.directory().join("volumes/kubernetes.io~empty-dir").join(volume)
    }
}

impl Image {
    /// The demo image under another name.
    pub fn of_demo(reference: &str) -> Self {
        Self::demo(reference, &fs::read(demo_program()).expect("the demo program is built"))
    }
}
