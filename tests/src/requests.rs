//! Requests and waits that many tests make in the same order.

use crate::{Device, Ran, TestPod, manifest};

impl Device {
    /// A device with an agent and without images.
    pub fn start_without_images() -> Self {
        let mut device = Self::new();
        device.start_agent();
        device
    }

    /// Writes the manifest of a pod of one container ([`manifest::single`]) to a file of its name.
    pub fn write_single<'a>(&'a self, name: &'a str, steps: &str, more: &str, spec: &str) -> TestPod<'a> {
        self.write_pod(name, &manifest::single(name, steps, more, spec))
    }

    /// Waits until each of these pods is ready.
    #[track_caller]
    pub fn wait_all_ready<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) {
        for name in names {
            self.pod(name.as_ref()).wait_ready();
        }
    }

    /// Does what [`Device::apply`] does, and may fail.
    pub fn try_apply(&self, manifest: &str) -> Ran {
        self.nodlet_with_input(["apply", "-f", "-"], manifest)
    }

    /// Applies the manifest of the pod `name`, and waits until the pod is ready.
    #[track_caller]
    pub fn run_applied<'a>(&'a self, name: &'a str, manifest: &str) -> TestPod<'a> {
        self.apply(manifest);
        self.pod(name).wait_ready()
    }

    /// Writes a file of the device for a command. Returns its path.
    pub fn file(&self, inside: &str, content: impl AsRef<[u8]>) -> String {
        self.write_file(inside, content).display().to_string()
    }
}
