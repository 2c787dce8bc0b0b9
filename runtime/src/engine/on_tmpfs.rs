//! What is kept of a pod beside its supervisor, for an agent that comes later in
//! this boot: written by `sandbox` and `publish`, read by `recover`.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::manifest::{Applied, Priority};
use crate::node::{FoundStatus, Health};
use crate::sources::Wanted;
use crate::time::Instant;

use super::Shell;

/// What is kept of a pod beside its supervisor, on tmpfs: enough for an agent
/// that finds it and no manifest of it.
#[derive(Serialize, Deserialize)]
pub(super) struct OnTmpfs {
    pub(super) source: PathBuf,
    pub(super) created: Instant,
    pub(super) ip: Option<Ipv4Addr>,
    pub(super) object: serde_json::Value,
    /// What was applied to it when it was admitted, and is in `object`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) presets: Vec<Applied>,
    /// The priority likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) priority: Option<Priority>,
    /// `object` without that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) written: Option<Box<RawValue>>,
}

/// Writes down what a later agent must know of the pod.
pub(super) fn write_pod(shell: &Shell, wanted: &Wanted, ip: Option<Ipv4Addr>) -> io::Result<()> {
    let directory = shell.paths.run_pod(&wanted.pod.uid.0);
    fs::create_dir_all(&directory)?;
    let pod = OnTmpfs {
        source: wanted.source.clone(),
        created: Instant::now(),
        ip,
        object: serde_json::from_str(wanted.object.get())?,
        presets: wanted.presets.to_vec(),
        priority: wanted.priority.as_deref().cloned(),
        written: wanted.written.as_deref().map(RawValue::to_owned),
    };
    let new = directory.join("pod.json.new");
    fs::write(&new, serde_json::to_vec(&pod)?)?;
    fs::rename(new, directory.join("pod.json"))
}

/// Writes down the pod as it is now, if anything is written down of it.
pub(super) fn rewrite_object(directory: &Path, wanted: &Wanted) -> io::Result<()> {
    let path = directory.join("pod.json");
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        bytes => bytes?,
    };
    let mut pod: OnTmpfs = serde_json::from_slice(&bytes)?;
    pod.object = serde_json::from_str(wanted.object.get())?;
    pod.written = wanted.written.as_deref().map(RawValue::to_owned);
    let new = directory.join("pod.json.new");
    fs::write(&new, serde_json::to_vec(&pod)?)?;
    fs::rename(new, path)
}

/// The file of [`write_deletion`].
const DELETION: &str = "deletion.json";

/// Writes down that a pod is being deleted, with this grace.
///
/// # Errors
/// If the pod's run-time directory cannot be written.
pub(super) fn write_deletion(directory: &Path, grace: Duration) -> io::Result<()> {
    let new = directory.join("deletion.json.new");
    fs::write(&new, grace.as_secs().to_string())?;
    fs::rename(new, directory.join(DELETION))
}

/// The grace in seconds of a pod that an earlier agent was deleting.
pub(super) fn read_deletion(directory: &Path) -> Option<u64> {
    fs::read_to_string(directory.join(DELETION)).ok()?.parse().ok()
}

/// What probes had found of each container when an earlier agent ended (`started`
/// and `ready` stay what they are, pod-semantics 5.3).
pub(super) fn read_healths(directory: &Path) -> Vec<Health> {
    fs::read(directory.join(HEALTH))
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

/// The file of [`read_healths`].
const HEALTH: &str = "health.json";

/// Writes down what probes have found, for a later agent.
///
/// # Errors
/// If the pod's run-time directory cannot be written.
pub(super) fn write_healths(directory: &Path, healths: &[Health]) -> io::Result<()> {
    let new = directory.join("health.json.new");
    fs::write(&new, serde_json::to_vec(healths)?)?;
    fs::rename(new, directory.join(HEALTH))
}

/// The file of [`read_status`].
const STATUS: &str = "status.json";

/// What an earlier agent showed of the pod.
pub(super) fn read_status(directory: &Path) -> FoundStatus {
    let read = fs::read(directory.join(STATUS)).ok();
    read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Writes down what is shown of the pod, for a later agent.
///
/// # Errors
/// If the pod's run-time directory cannot be written.
pub(super) fn write_status(directory: &Path, status: &FoundStatus) -> io::Result<()> {
    let new = directory.join("status.json.new");
    fs::write(&new, serde_json::to_vec(status)?)?;
    fs::rename(new, directory.join(STATUS))
}
