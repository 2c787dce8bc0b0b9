//! Files on tmpfs from which the next agent of this boot restores pods: `pod.json` beside a pod's supervisor, and its
//! status. Written by `sandbox` and `publish`, read by `recover`.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use nodlet_core::facts::{Deletion, Health, StatusHandover};
use nodlet_core::spec::volume::ClaimedVolume;
use nodlet_core::time::{Instant, Moment};
use nodlet_host::paths::Paths;
use nodlet_kernel::durable::{discard, replace_in_memory};
use nodlet_kube::manifest::{AppliedPreset, Priority};
use nodlet_registry::held_updates::Waits;
use nodlet_registry::{Transitions, Wanted};

use crate::records::Records;

/// The content of `pod.json`: all that an agent needs that finds the pod and no manifest of it.
#[derive(Serialize, Deserialize)]
pub(super) struct PodFile {
    pub(super) source: PathBuf,
    pub(super) created: Instant,
    pub(super) ip: Option<Ipv4Addr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ipv6: Option<Ipv6Addr>,
    /// The board's address at which the pod asks for names; none if it asks other name servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name_server: Option<Ipv4Addr>,
    pub(super) object: serde_json::Value,
    /// The presets that were applied at admission. They are included in `object`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) presets: Vec<AppliedPreset>,
    /// The priority that was assigned at admission. It is included in `object`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) priority: Option<Priority>,
    /// `object` without presets and priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) written: Option<Box<RawValue>>,
    /// The PersistentVolumes that the pod uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) claims: Vec<ClaimedVolume>,
}

/// Writes `pod.json` of a pod.
pub(super) fn write_pod(
    paths: &Paths,
    wanted: &Wanted,
    (ip, ipv6): (Option<Ipv4Addr>, Option<Ipv6Addr>),
    name_server: Option<Ipv4Addr>,
    claims: Vec<ClaimedVolume>,
) -> io::Result<()> {
    let directory = paths.run_pod(&wanted.pod.uid.0);
    nodlet_kernel::own_file::make_directory(&directory)?;
    let pod = PodFile {
        source: wanted.source.clone(),
        created: nodlet_host::clock::instant(),
        ip,
        ipv6,
        name_server,
        object: serde_json::from_str(wanted.object.get())?,
        presets: wanted.presets.to_vec(),
        priority: wanted.priority.as_deref().cloned(),
        written: wanted.written.as_deref().map(RawValue::to_owned),
        claims,
    };
    replace_in_memory(&directory.join("pod.json"), serde_json::to_vec(&pod)?)
}

/// Replaces the object in `pod.json`, if that file exists.
pub(super) fn rewrite_object(directory: &Path, wanted: &Wanted) -> io::Result<()> {
    let path = directory.join("pod.json");
    let bytes = match nodlet_kernel::own_file::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        bytes => bytes?,
    };
    let mut pod: PodFile = serde_json::from_slice(&bytes)?;
    pod.object = serde_json::from_str(wanted.object.get())?;
    pod.written = wanted.written.as_deref().map(RawValue::to_owned);
    replace_in_memory(&path, serde_json::to_vec(&pod)?)
}

/// The status of a pod, written for the next agent of this boot. The files are in a directory of their own, since
/// pods without a sandbox have a status, too.
#[derive(Serialize, Deserialize)]
pub(super) struct StatusFile {
    /// The boot that wrote the file: a machine may not empty its run-time directory at boot.
    boot_id: String,
    /// `metadata.creationTimestamp` of a pod from a file.
    pub(super) created: Moment,
    /// The published deletion, where agents before 2026-11-26 left it; now `status` has it.
    #[serde(default, skip_serializing)]
    deletion: Option<Deletion>,
    /// The status as the core hands it over.
    pub(super) status: StatusHandover,
    /// The images that a change which replaces the pod waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) waits: Option<Waits>,
}

impl StatusFile {
    pub(super) fn new(
        boot_id: &str,
        created: Moment,
        status: StatusHandover,
        waits: Option<Waits>,
    ) -> StatusFile {
        StatusFile { boot_id: boot_id.to_owned(), created, deletion: None, status, waits }
    }

    /// Reads what the previous agent of this boot wrote; `None` if there is nothing, or it cannot be read.
    pub(super) fn read(paths: &Paths, records: &Records, uid: &str) -> Option<StatusFile> {
        let bytes = nodlet_kernel::own_file::read(&paths.status(uid)).ok()?;
        let mut left: StatusFile = match serde_json::from_slice(&bytes) {
            Ok(left) => left,
            Err(error) => {
                log::error!("{uid}: the status of the previous agent is damaged: {error}");
                return None;
            }
        };
        if let (Some(state), Some(deletion)) = (&mut left.status.state, left.deletion.take()) {
            state.deletion.get_or_insert(deletion);
        }
        (left.boot_id == records.boot_id()).then_some(left)
    }

    /// # Errors
    /// The status cannot be represented as JSON.
    pub(super) fn bytes(&self) -> io::Result<Vec<u8>> {
        Ok(serde_json::to_vec(self)?)
    }
}

/// Writes the status of the pod with this UID for the next agent.
///
/// # Errors
/// The run-time directory cannot be written.
pub(super) fn write_status(paths: &Paths, uid: &str, bytes: &[u8]) -> io::Result<()> {
    replace_in_memory(&paths.status(uid), bytes)
}

/// Writes since when the conditions of the Node have had their status, for the next agent.
///
/// # Errors
/// The run-time directory cannot be written.
pub(super) fn write_transitions(paths: &Paths, transitions: &Transitions) -> io::Result<()> {
    replace_in_memory(&paths.node_conditions(), serde_json::to_vec(transitions)?)
}

/// Reads what [`write_transitions`] wrote; `None` if there is nothing, or it cannot be read.
pub(super) fn read_transitions(paths: &Paths) -> Option<Transitions> {
    serde_json::from_slice(&nodlet_kernel::own_file::read(&paths.node_conditions()).ok()?).ok()
}

/// Removes the written status of a pod that is gone.
pub(super) fn remove_status(paths: &Paths, uid: &str) {
    if let Err(error) = discard(&paths.status(uid)) {
        log::warn!("failed to remove the status file of {uid}: {error}");
    }
}

/// Reads the grace period in seconds of a pod that an agent of an earlier version was deleting.
pub(super) fn read_deletion(directory: &Path) -> Option<u64> {
    nodlet_kernel::own_file::read_to_string(&directory.join("deletion.json")).ok()?.parse().ok()
}

/// Reads the probe results of each container when an agent of an earlier version ended (`started` and `ready` are
/// kept, pod-semantics 5.3).
pub(super) fn read_healths(directory: &Path) -> Vec<Health> {
    let read = nodlet_kernel::own_file::read(&directory.join("health.json")).ok();
    read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Reads the pod's conditions that an agent of an earlier version wrote.
pub(super) fn read_conditions(directory: &Path) -> StatusHandover {
    let read = nodlet_kernel::own_file::read(&directory.join("status.json")).ok();
    read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_published_deletion_is_read_from_where_an_older_agent_left_it() {
        let root = std::env::temp_dir().join(format!("nodlet-on-tmpfs-{}", std::process::id()));
        let (paths, records) = (Paths::new(&root), Records::new(root.join("records")));
        fs::create_dir_all(paths.statuses()).expect("there is room");
        let state = json!({
            "phase": "Running", "start_time": { "ThisBoot": 1 }, "active_since": 1,
            "deletion_grace_period_seconds": 30, "containers": [],
        });
        let left = json!({
            "boot_id": records.boot_id(), "created": { "ThisBoot": 1 },
            "deletion": { "at": 7, "grace": { "secs": 30, "nanos": 0 } },
            "status": { "conditions": [], "state": state },
        });
        write_status(&paths, "uid", left.to_string().as_bytes()).expect("there is room");
        let read = StatusFile::read(&paths, &records, "uid").expect("it is read");
        let deletion = Some(Deletion { at: Instant(7), grace: Duration::from_secs(30) });
        assert_eq!(read.status.state.as_ref().expect("it is there").deletion, deletion);
        let written: serde_json::Value = serde_json::from_slice(&read.bytes().expect("JSON")).expect("JSON");
        assert_eq!(
            (&written["deletion"], written["status"]["state"]["deletion"]["at"].as_u64()),
            (&json!(null), Some(7))
        );
        fs::remove_dir_all(&root).expect("it is ours");
    }
}
