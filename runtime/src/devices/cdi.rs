//! Finds the CDI devices that a pod requests by annotations.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use nodlet_core::spec::Pod;
use nodlet_host::launch::{DeviceNode, MountConfig, MountSource, Propagation};
use nodlet_kernel::own_file;
use nodlet_kube::manifest::{CDI_ANNOTATION, CdiEdits, CdiNode, DeviceSource, cdi_edits, cdi_names};

use super::find;

/// Maximum size of a CDI file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Maximum number of files in a directory of CDI files, the first by name.
const MAX_FILES: usize = 256;

/// The changes of a container for the CDI devices of its pod.
#[derive(Debug, Default)]
pub(crate) struct Injected {
    pub(crate) env: Vec<String>,
    pub(crate) nodes: Vec<DeviceNode>,
    pub(crate) mounts: Vec<MountConfig>,
    pub(crate) gids: Vec<u32>,
}

/// The names of the CDI devices that a pod requests.
///
/// # Errors
/// An annotation does not name devices.
pub(crate) fn requested(pod: &Pod) -> Result<Vec<String>, String> {
    let mut names: Vec<String> = Vec::new();
    for (key, value) in pod.annotations.iter().filter(|(key, _)| key.starts_with(CDI_ANNOTATION)) {
        let found = cdi_names(value).map_err(|why| failed(&format!("annotation {key}: {why}")))?;
        for name in found {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
    }
    Ok(names)
}

/// Reads the edits of CDI devices from files. Waits for flash. A file in a later directory takes precedence.
///
/// # Errors
/// The message of containerd about a device that cannot be given.
pub(crate) fn inject(names: &[String], directories: &[PathBuf]) -> Result<Injected, String> {
    let mut injected = Injected::default();
    for name in names {
        let edits = look_up(name, directories).map_err(|why| failed(&why))?;
        for node in &edits.nodes {
            injected.nodes.push(device_node(node).map_err(|why| failed(&format!("device {name}: {why}")))?);
        }
        injected.mounts.extend(edits.mounts.iter().map(|mount| MountConfig {
            source: MountSource::Host(mount.host_path.as_str().into()),
            sub_path: None,
            sub_path_shown: None,
            destination: mount.container_path.as_str().into(),
            read_only: mount.read_only,
            recursive_read_only: false,
            propagation: Propagation::Private,
        }));
        injected.env.extend(edits.env);
        injected.gids.extend(edits.gids);
    }
    Ok(injected)
}

fn failed(why: &str) -> String {
    format!("CDI device injection failed: {why}")
}

fn look_up(name: &str, directories: &[PathBuf]) -> Result<CdiEdits, String> {
    let mut wrong = None;
    for directory in directories.iter().rev() {
        let mut found: Option<(PathBuf, CdiEdits)> = None;
        for path in files(directory) {
            let edits = read(&path)
                .map_err(|error| format!("failed to read {}: {error}", path.display()))
                .and_then(|bytes| {
                    cdi_edits(&path.to_string_lossy(), &bytes, name).map_err(|error| error.to_string())
                });
            match (edits, &found) {
                (Ok(None), _) => {}
                (Ok(Some(_)), Some((other, _))) => {
                    let (one, other) = (other.display(), path.display());
                    return Err(format!("conflicting device {name:?} in {one} and {other}"));
                }
                (Ok(Some(edits)), None) => found = Some((path, edits)),
                (Err(error), _) => wrong = Some(error),
            }
        }
        if let Some((path, edits)) = found {
            // The device may be in this file, too.
            if let Some(error) = wrong {
                log::warn!("{error}; device {name} is that of {}", path.display());
            }
            return Ok(edits);
        }
    }
    // A device that no file defines may be in the file that cannot be read.
    let why = wrong.map_or(String::new(), |error| format!(": {error}"));
    Err(format!("unresolvable CDI devices {name}{why}"))
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_cdi =
        |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json" || extension == "yaml");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_cdi).collect();
    files.sort();
    files.truncate(MAX_FILES);
    files
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    own_file::open_linked(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn device_node(node: &CdiNode) -> Result<DeviceNode, String> {
    let found = find(&DeviceSource::Path(node.host_path.clone()), Path::new("/dev"), Path::new("/sys"))?;
    let has = |letter| node.permissions.contains(letter);
    Ok(DeviceNode {
        path: node.path.as_str().into(),
        block: found.block,
        major: found.major,
        minor: found.minor,
        readable: has('r'),
        writable: has('w'),
        mode: node.mode,
        uid: node.uid,
        gid: node.gid,
    })
}
