//! nodlet's side of the benchmarks: a device with the demo image, whose agent gets requests only from the
//! measure, and the resources of its processes.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nodlet_build::task::{Outcome, TaskError};
use nodlet_tests::{Device, demo_archive, manifest};

use super::cpu::{Account, unified, used_in};
use super::scratch::{Scratch, now};

/// A device whose agent does not run yet.
pub(super) fn asleep() -> Device {
    let device = empty();
    device.load_image(demo_archive());
    device
}

/// A device whose agent does not run yet, on a new disk on which nothing was deleted.
pub(super) fn asleep_on_a_new_disk() -> Device {
    let mut device = empty();
    device.run_on_a_new_disk();
    device.load_image(demo_archive());
    device
}

fn empty() -> Device {
    let mut device = Device::new();
    // Reading the ring would cost the agent time, which would be measured.
    device.replay_nothing();
    device.run_in_memory();
    device
}

pub(super) fn awake() -> Device {
    let mut device = asleep();
    device.start_agent();
    device
}

/// A device whose agent is charged to this account.
pub(super) fn charged(account: &Account) -> Result<Device, TaskError> {
    let mut device = asleep();
    account.within(|| device.start_agent())?;
    Ok(device)
}

/// The manifest of a pod with one container that executes these steps, with the scratch's `/shared`.
pub(super) fn pod(scratch: &Scratch, name: &str, steps: &str, more: &str) -> String {
    let container = manifest::container(
        "app",
        steps,
        &format!("{more}\nvolumeMounts: [{{name: shared, mountPath: /shared}}]"),
    );
    let volumes = format!("volumes: [{{name: shared, hostPath: {{path: {}}}}}]", scratch.shared().display());
    manifest::pod_of(name, &[container], &volumes)
}

/// Renames a manifest into place. Returns the time of that.
pub(super) fn rename(
    device: &Device,
    name: &str,
    text: &str,
    before: impl FnOnce() -> Outcome,
) -> Result<Duration, TaskError> {
    let directory = device.manifests();
    fs::create_dir_all(&directory)?;
    let temporary = directory.join(".new");
    fs::write(&temporary, text)?;
    before()?;
    let begun = now()?;
    fs::rename(temporary, directory.join(format!("{name}.yaml")))?;
    Ok(begun)
}

/// Removes a pod and waits until nothing of it is left.
pub(super) fn remove(device: &Device, name: &str) {
    device.remove_manifest(&format!("{name}.yaml"));
    device.pod(name).wait_gone();
}

/// Starts this many idle pods, `pod-0` and so on, each with one container.
pub(super) fn sleepers(device: &Device, count: usize) {
    let names: Vec<String> = (0..count).map(|number| format!("pod-{number}")).collect();
    for name in &names {
        device.write_manifest(&format!("{name}.yaml"), &manifest::pod(name, "sleep"));
    }
    for name in &names {
        device.pod(name).wait_ready();
    }
}

/// The processor time of all of nodlet's processes except the agent: supervisors, helpers and containers.
pub(super) fn used(device: &Device) -> Result<Duration, TaskError> {
    used_in(&own_cgroup(device)?)
}

/// The device's cgroup in v2, which contains everything but the agent.
fn own_cgroup(device: &Device) -> Result<PathBuf, TaskError> {
    let unified = unified()?;
    let found = device.cgroups().into_iter().find(|cgroup| cgroup.parent() == Some(unified.as_path()));
    found.ok_or_else(|| "the device has no cgroup in v2".into())
}
