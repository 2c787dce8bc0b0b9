//! [`RecordedDevice`]: a device with a directory of the host, `/one`, in which containers record what they do.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use crate::device::Device;
use crate::manifest;
use crate::pod::TestPod;

/// A device with a directory that the containers of a test share as `/one`: they append lines to `/one/story`, and
/// wait for `/one/go`.
pub struct RecordedDevice {
    device: Device,
    /// The directory on this machine.
    pub directory: PathBuf,
}

impl Deref for RecordedDevice {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

impl DerefMut for RecordedDevice {
    fn deref_mut(&mut self) -> &mut Device {
        &mut self.device
    }
}

impl RecordedDevice {
    /// A device with the demo image and a running agent.
    pub fn start() -> Self {
        Self::of(Device::start())
    }

    /// Makes the directory on a device.
    pub fn of(device: Device) -> Self {
        let (_, directory) = device.shared("one");
        Self { device, directory }
    }

    /// A pod of these containers, with more lines of YAML in its spec. Containers with the field `MOUNT` have the
    /// directory.
    pub fn manifest(&self, name: &str, init: &[String], containers: &[String], spec: &str) -> String {
        let spec = manifest::host_path("one", self.directory.display()) + spec;
        if init.is_empty() {
            return manifest::pod_of(name, containers, &spec);
        }
        manifest::pod_behind(name, init, containers, &spec)
    }

    /// Writes the manifest of such a pod to a file with the pod's name.
    pub fn write_recorded<'a>(
        &'a self,
        name: &'a str,
        init: &[String],
        containers: &[String],
        spec: &str,
    ) -> TestPod<'a> {
        self.write_pod(name, &self.manifest(name, init, containers, spec))
    }

    /// The field of a container that has the directory.
    pub const MOUNT: &str = "volumeMounts: [{name: one, mountPath: /one}]\n";

    /// A container that appends its name to the story, and then executes these steps.
    pub fn noting(name: &str, steps: &str, more: &str) -> String {
        let steps = format!("append /one/story {name} then {steps}");
        manifest::container(name, &steps, &format!("{}{more}", Self::MOUNT))
    }

    /// Makes the file `/one/go`.
    pub fn go(&self) {
        fs::write(self.directory.join("go"), "").expect("the root can be written to");
    }

    /// The lines of the story so far.
    pub fn story(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.join("story")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until the story has as many lines as these, and asserts that it has these.
    #[track_caller]
    pub fn wait_story(&self, expected: &[&str]) {
        let what = format!("a story of {} lines", expected.len());
        self.wait_for(&what, || self.story().len() >= expected.len());
        assert_eq!(self.story(), expected);
    }
}
