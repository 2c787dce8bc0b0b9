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

/// The files of one volume.
///
/// # Errors
/// An object or key is missing that is not optional, in the kubelet's words (`MakePayload`, `collectData`).
pub(crate) fn of(
    pod: &Pod,
    projection: &Projection,
    objects: &ConfigObjects,
    allocatable: &Amounts,
) -> Result<ProjectedFiles, String> {
    let mut files = ProjectedFiles::new();
    let mut errors: Vec<String> = Vec::new();
    for source in &projection.sources {
        let made = match source {
            ProjectionSource::Object { object, items } => match objects.get(object) {
                None if !object.optional => Err(not_found(object)),
                None => Ok(Files::new()),
                Some(data) => of_object(&data, object, items, projection.default_mode),
            },
            ProjectionSource::DownwardApi(items) => of_pod(pod, items, projection.default_mode, allocatable),
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
) -> Result<Files, String> {
    if items.is_empty() {
        let all = data.data.iter().chain(&data.binary_data);
        let file = |content: &Arc<[u8]>| ProjectedFile { content: content.clone(), mode: default_mode };
        return Ok(all.map(|(key, content)| (key.clone(), file(content))).collect());
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
                return Err(match object.kind {
                    ConfigKind::ConfigMap => {
                        format!("configmap references non-existent config key: {}", item.key)
                    }
                    ConfigKind::Secret => format!("references non-existent secret key: {}", item.key),
                });
            }
        };
        files.insert(clean(&item.path), ProjectedFile { content, mode: item.mode.unwrap_or(default_mode) });
    }
    Ok(files)
}

fn of_pod(
    pod: &Pod,
    items: &[DownwardFile],
    default_mode: u32,
    allocatable: &Amounts,
) -> Result<Files, String> {
    let mut files = Files::new();
    for item in items {
        let content = match &item.field {
            DownwardField::Field(path) => downward_api::metadata(pod, path),
            DownwardField::Resource(field) => downward_api::resource(pod, None, field, allocatable)?,
        };
        let file = ProjectedFile {
            content: Arc::from(content.into_bytes()),
            mode: item.mode.unwrap_or(default_mode),
        };
        files.insert(clean(&item.path), file);
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
