//! Converts volumes, and what they project into files.

use serde_json::Value;

use super::container::{object_reference, resource_field};
use super::{pull_policy, quantity};
use crate::object::value::{flag, list, optional_number, text};
use crate::pod::validate::HUGE_PAGES_MEDIUM;
use nodlet_core::spec::reference::{ConfigKind, ObjectReference};
use nodlet_core::spec::volume::{
    DownwardField, DownwardFile, HostPathType, KeyToPath, Projection, ProjectionKind, ProjectionSource,
};
use nodlet_core::spec::{Volume, VolumeSource};

pub(super) fn volume(volume: &Value) -> Volume {
    let source = if let Some(host) = volume.get("hostPath") {
        VolumeSource::HostPath {
            path: text(host, "path").to_owned(),
            kind: HostPathType::named(text(host, "type")),
        }
    } else if let Some(claim) = volume.get("persistentVolumeClaim") {
        VolumeSource::Claim {
            claim: Some(text(claim, "claimName").into()),
            read_only: flag(claim, "readOnly"),
        }
    } else if let Some(image) = volume.get("image") {
        VolumeSource::Image {
            reference: text(image, "reference").to_owned(),
            pull_policy: pull_policy(text(image, "pullPolicy")),
        }
    } else if volume.get("ephemeral").is_some() {
        VolumeSource::Claim { claim: None, read_only: false }
    } else if let Some(projection) = projection(volume) {
        VolumeSource::Projected(projection)
    } else {
        let directory = &volume["emptyDir"];
        let medium = text(directory, "medium");
        // A limit of zero is no limit.
        let size_limit = quantity(&directory["sizeLimit"]).filter(|size| !size.is_zero());
        match medium.strip_prefix(HUGE_PAGES_MEDIUM) {
            Some(size) => {
                VolumeSource::HugePages { page_size: size.trim_start_matches('-').to_owned(), size_limit }
            }
            None => VolumeSource::EmptyDir { memory: medium == "Memory", size_limit },
        }
    };
    Volume { name: text(volume, "name").to_owned(), source }
}

fn projection(volume: &Value) -> Option<Projection> {
    let kinds = [
        ("configMap", ProjectionKind::ConfigMap),
        ("secret", ProjectionKind::Secret),
        ("downwardAPI", ProjectionKind::DownwardApi),
        ("projected", ProjectionKind::Projected),
    ];
    let (source, kind) = kinds.into_iter().find_map(|(field, kind)| Some((volume.get(field)?, kind)))?;
    let sources = match kind {
        ProjectionKind::ConfigMap => vec![object_source(source, ConfigKind::ConfigMap, "name")],
        ProjectionKind::Secret => vec![object_source(source, ConfigKind::Secret, "secretName")],
        ProjectionKind::DownwardApi => vec![downward_source(source)],
        ProjectionKind::Projected => list(source, "sources").iter().filter_map(projected_source).collect(),
    };
    Some(Projection { kind, default_mode: mode(source, "defaultMode").unwrap_or_default(), sources })
}

fn projected_source(source: &Value) -> Option<ProjectionSource> {
    let object = |field, kind| source.get(field).map(|object| object_source(object, kind, "name"));
    object("configMap", ConfigKind::ConfigMap)
        .or_else(|| object("secret", ConfigKind::Secret))
        .or_else(|| source.get("downwardAPI").map(downward_source))
}

fn object_source(source: &Value, kind: ConfigKind, name: &str) -> ProjectionSource {
    let item = |item: &Value| KeyToPath {
        key: text(item, "key").to_owned(),
        path: text(item, "path").to_owned(),
        mode: mode(item, "mode"),
    };
    ProjectionSource::Object {
        object: ObjectReference { name: text(source, name).to_owned(), ..object_reference(source, kind) },
        items: list(source, "items").iter().map(item).collect(),
    }
}

fn downward_source(source: &Value) -> ProjectionSource {
    let file = |file: &Value| DownwardFile {
        path: text(file, "path").to_owned(),
        mode: mode(file, "mode"),
        field: match file.get("resourceFieldRef") {
            Some(field) => DownwardField::Resource(resource_field(field)),
            None => DownwardField::Field(text(&file["fieldRef"], "fieldPath").to_owned()),
        },
    };
    ProjectionSource::DownwardApi(list(source, "items").iter().map(file).collect())
}

fn mode(owner: &Value, field: &str) -> Option<u32> {
    optional_number(owner, field).and_then(|mode| u32::try_from(mode).ok())
}
