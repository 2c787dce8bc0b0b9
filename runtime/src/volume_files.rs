//! The files of `configMap`, `secret`, `downwardAPI` and `projected` volumes, computed from the pod and the objects that it
//! refers to. Pure; `volume::write_projected` writes them.

use std::sync::Arc;

use nodlet_cluster::trust;
use nodlet_core::facts::Amounts;
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::Pod;
use nodlet_core::spec::reference::{ConfigKind, ObjectReference};
use nodlet_core::spec::volume::{DownwardField, DownwardFile, KeyToPath, Projection, ProjectionSource};
use nodlet_host::volume::{ProjectedFile, ProjectedFiles};
use nodlet_registry::{ConfigData, ConfigObjects};

use crate::downward_api;

/// Bytes of all files of one pod that the agent writes into memory. A manifest can name a long annotation, or a large
/// object, any number of times.
const MOST_BYTES: u64 = 32 << 20;

/// Bytes of a file besides its content, as `volume::write_projected` counts them.
const FILE_OVERHEAD: u64 = 4096;

/// The rest of the bytes that the files of one pod may have: [`MOST_BYTES`], or the pod's limit of memory, because the
/// files are in memory.
pub(crate) struct Room<'a> {
    remaining: u64,
    all: u64,
    /// The texts of the pod's fields, which all files that show a field share: a long annotation is in memory once.
    fields: SortedMap<&'a str, Arc<[u8]>>,
}

impl<'a> Room<'a> {
    pub(crate) fn new(memory_limit: Option<u64>) -> Room<'a> {
        let all = memory_limit.unwrap_or(MOST_BYTES).min(MOST_BYTES);
        Room { remaining: all, all, fields: SortedMap::new() }
    }

    fn field(&mut self, pod: &Pod, path: &'a str) -> Arc<[u8]> {
        let text = || downward_api::metadata(pod, path).into_bytes().into();
        self.fields.entry(path).or_insert_with(text).clone()
    }

    fn take(&mut self, content: &[u8]) -> Result<(), String> {
        let rest = self.remaining.checked_sub(content.len() as u64 + FILE_OVERHEAD);
        self.remaining = rest.ok_or_else(|| {
            format!(
                "the files of the pod's configMap, secret, downwardAPI and projected volumes are in memory, and need \
                 more than {} bytes: they may need as much as the pod's memory limit, and at most {MOST_BYTES} bytes",
                self.all
            )
        })?;
        Ok(())
    }
}

/// The files of one volume, which take their bytes from `room`.
///
/// # Errors
/// The files need more than `room`, or an object or key is missing that is not optional, in the kubelet's words
/// (`MakePayload`, `collectData`).
pub(crate) fn of<'a>(
    pod: &Pod,
    projection: &'a Projection,
    objects: &ConfigObjects,
    allocatable: &Amounts,
    room: &mut Room<'a>,
) -> Result<ProjectedFiles, String> {
    let mut files = ProjectedFiles::new();
    let mut errors: Vec<String> = Vec::new();
    for source in &projection.sources {
        let made = match source {
            ProjectionSource::Object { object, items } => match objects.get(object) {
                None if !object.optional => Err(not_found(object)),
                None => Ok(Files::new()),
                Some(data) => of_object(&data, object, items, projection.default_mode, room),
            },
            ProjectionSource::DownwardApi(items) => {
                of_pod(pod, items, projection.default_mode, allocatable, room)
            }
        };
        match made {
            Ok(made) => files.extend(made),
            Err(error) if errors.contains(&error) => {}
            Err(error) => errors.push(error),
        }
    }
    match &*errors {
        [] => Ok(files),
        [one] => Err(one.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}

/// The error of Kubernetes' API about a missing object.
pub(crate) fn not_found(object: &ObjectReference) -> String {
    format!("{} {:?} not found", object.kind.resource(), object.name)
}

type Files = SortedMap<String, ProjectedFile>;

fn of_object(
    data: &ConfigData,
    object: &ObjectReference,
    items: &[KeyToPath],
    default_mode: u32,
    room: &mut Room<'_>,
) -> Result<Files, String> {
    if items.is_empty() {
        let all = data.data.iter().chain(&data.binary_data);
        let file = |(key, content): (&String, &Arc<[u8]>)| {
            room.take(content)?;
            Ok((key.clone(), ProjectedFile { content: content.clone(), mode: default_mode }))
        };
        return all.map(file).collect();
    }
    let mut files = Files::new();
    for item in items {
        let content = match data.data.get(&item.key).or_else(|| data.binary_data.get(&item.key)) {
            Some(content) => content.clone(),
            None if object.optional => continue,
            // What the cluster says about it stands in the object.
            None if object.name.starts_with(trust::PREFIX) && data.data.contains_key(trust::MISSING) => {
                return Err(String::from_utf8_lossy(&data.data[trust::MISSING]).into_owned());
            }
            None => {
                let what = match object.kind {
                    ConfigKind::ConfigMap => "configmap references non-existent config key",
                    ConfigKind::Secret => "references non-existent secret key",
                };
                return Err(format!("{what}: {}", item.key));
            }
        };
        room.take(&content)?;
        files.insert(clean(&item.path), ProjectedFile { content, mode: item.mode.unwrap_or(default_mode) });
    }
    Ok(files)
}

fn of_pod<'a>(
    pod: &Pod,
    items: &'a [DownwardFile],
    default_mode: u32,
    allocatable: &Amounts,
    room: &mut Room<'a>,
) -> Result<Files, String> {
    let mut files = Files::new();
    for item in items {
        let content = match &item.field {
            DownwardField::Field(path) => room.field(pod, path),
            DownwardField::Resource(field) => {
                Arc::from(downward_api::resource(pod, None, field, allocatable)?.into_bytes())
            }
        };
        room.take(&content)?;
        files.insert(clean(&item.path), ProjectedFile { content, mode: item.mode.unwrap_or(default_mode) });
    }
    Ok(files)
}

/// The path without empty components and `.`, so that two spellings of one path are one file.
fn clean(path: &str) -> String {
    let components: Vec<&str> =
        path.split('/').filter(|component| !component.is_empty() && *component != ".").collect();
    components.join("/")
}

#[cfg(test)]
mod tests;
