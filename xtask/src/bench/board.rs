//! nodlet's side: a device with the demo image whose agent nobody but the measure asks
//! anything, and what its processes take.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nodlet_tests::{Device, demo_archive, manifest};

use super::cpu::{Account, unified, used_in};
use super::scratch::{Scratch, now};
use crate::{Failure, Outcome};

/// The agent does not run yet.
pub(super) fn asleep() -> Device {
    let device = empty();
    device.load_image(demo_archive());
    device
}

/// The same on a disk that has deleted nothing yet.
pub(super) fn asleep_on_a_new_disk() -> Device {
    let mut device = empty();
    device.run_on_a_new_disk();
    device.load_image(demo_archive());
    device
}

fn empty() -> Device {
    let mut device = Device::new();
    // Reading the ring as it comes costs the agent what is to be measured.
    device.replay_nothing();
    device.run_in_memory();
    device
}

pub(super) fn awake() -> Device {
    let mut device = asleep();
    device.start_agent();
    device
}

/// With all that the agent does charged to this account.
pub(super) fn charged(account: &Account) -> Result<Device, Failure> {
    let mut device = asleep();
    account.within(|| device.start_agent())?;
    Ok(device)
}

/// A pod of one container that takes these steps, with the scratch's `/shared`.
pub(super) fn pod(scratch: &Scratch, name: &str, steps: &str, more: &str) -> String {
    let container = manifest::container(
        "app",
        steps,
        &format!("{more}\nvolumeMounts: [{{name: shared, mountPath: /shared}}]"),
    );
    let volumes = format!("volumes: [{{name: shared, hostPath: {{path: {}}}}}]", scratch.shared().display());
    manifest::pod_of(name, &[container], &volumes)
}

/// Renames a manifest into place, at the moment that is given back.
pub(super) fn rename(
    device: &Device,
    name: &str,
    text: &str,
    before: impl FnOnce() -> Outcome,
) -> Result<Duration, Failure> {
    let directory = device.manifests();
    fs::create_dir_all(&directory)?;
    let aside = directory.join(".aside");
    fs::write(&aside, text)?;
    before()?;
    let begun = now()?;
    fs::rename(aside, directory.join(format!("{name}.yaml")))?;
    Ok(begun)
}

/// Takes a pod away and waits until nothing is left of it.
pub(super) fn remove(device: &Device, name: &str) {
    device.remove_manifest(&format!("{name}.yaml"));
    device.pod(name).wait_gone();
}

/// So many pods that do nothing, `pod-0` and on, each with one container.
pub(super) fn sleepers(device: &Device, count: usize) {
    let names: Vec<String> = (0..count).map(|number| format!("pod-{number}")).collect();
    for name in &names {
        device.write_manifest(&format!("{name}.yaml"), &manifest::pod(name, "sleep"));
    }
    for name in &names {
        device.pod(name).wait_ready();
    }
}

/// Processor time of all that is nodlet's but the agent: supervisors, helpers and containers.
pub(super) fn used(device: &Device) -> Result<Duration, Failure> {
    used_in(&own_cgroup(device)?)
}

/// The device's cgroup of v2, in which everything is but the agent.
fn own_cgroup(device: &Device) -> Result<PathBuf, Failure> {
    let unified = unified()?;
    let found = device.cgroups().into_iter().find(|cgroup| cgroup.parent() == Some(unified.as_path()));
    found.ok_or_else(|| "the device has no cgroup in v2".into())
}
