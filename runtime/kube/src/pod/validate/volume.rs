//! Volumes and their sources.

use std::collections::BTreeMap;

use nodlet_core::sorted::SortedSet;
use serde_json::Value;

use super::container::PULL_POLICIES;
use super::projection;
use crate::object::check::Field;
use crate::object::rules;
use crate::object::value::{list, map, text};
use crate::pod::claim;
use nodlet_core::spec::Quantity;
use nodlet_core::spec::container::HUGE_PAGES;

/// The `medium` of an emptyDir in huge pages; `-` and the size of the pages may follow.
pub(crate) const HUGE_PAGES_MEDIUM: &str = "HugePages";

/// The sources of volumes, in the order in which Kubernetes looks at them.
#[rustfmt::skip]
const SOURCES: [&str; 30] = [
    "emptyDir", "hostPath", "gitRepo", "gcePersistentDisk", "awsElasticBlockStore", "secret", "nfs", "iscsi",
    "glusterfs", "flocker", "persistentVolumeClaim", "rbd", "cinder", "cephfs", "quobyte", "downwardAPI", "fc",
    "flexVolume", "configMap", "azureFile", "vsphereVolume", "photonPersistentDisk", "portworxVolume", "azureDisk",
    "storageos", "projected", "scaleIO", "csi", "ephemeral", "image",
];

/// Validates volumes, and returns the names of the valid ones.
pub(super) fn volumes<'v>(spec: Field<'v, '_>) -> SortedSet<&'v str> {
    let mut names = SortedSet::new();
    for volume in spec.items("volumes") {
        let before = volume.error_count();
        volume_source(volume);
        let name = volume.child("name");
        name.check_required(rules::dns_label);
        if names.contains(name.text()) {
            name.duplicate();
        }
        if volume.error_count() == before {
            names.insert(name.text());
        }
    }
    names
}

fn volume_source(volume: Field<'_, '_>) {
    let sources = SOURCES.iter().filter(|source| volume.get(source).is_some());
    for (index, source) in sources.enumerate() {
        let value = &volume.value[*source];
        let field = volume.child(match *source {
            // Kubernetes' own words.
            "cephfs" if index > 0 => "cephFS",
            "downwardAPI" if index > 0 => "downwarAPI",
            source => source,
        });
        let field = field.with(value);
        match *source {
            "emptyDir" => size_limit(field.child("sizeLimit")),
            _ if index > 0 => field.forbidden("may not specify more than 1 volume type"),
            "hostPath" => host_path(field),
            "secret" => projection::object(field, "secretName"),
            "configMap" => projection::object(field, "name"),
            "downwardAPI" => projection::downward_api(field),
            "projected" => projection::projected(field),
            "persistentVolumeClaim" => field.child("claimName").require(),
            "image" => {
                field.child("reference").require();
                field.child("pullPolicy").one_of(&PULL_POLICIES);
            }
            "ephemeral" => {
                match field.get("volumeClaimTemplate").filter(|template| !template.value.is_null()) {
                    None => field.child("volumeClaimTemplate").required(""),
                    Some(template) => claim::claim_template(template),
                }
            }
            _ => {}
        }
    }
}

/// Checks a `hostPath` volume source.
pub(crate) fn host_path(source: Field<'_, '_>) {
    const TYPES: [&str; 8] =
        ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    let path = source.child("path");
    if path.text().is_empty() {
        return path.required("");
    }
    path.no_back_steps();
    if !path.text().starts_with('/') {
        path.invalid("must be an absolute path");
    }
    source.child("type").supported(&TYPES);
}

fn size_limit(limit: Field<'_, '_>) {
    if Quantity::parse(limit.text()).is_ok_and(|size| size.is_negative()) {
        limit.forbidden("SizeLimit field must be a valid resource quantity");
    }
}

/// Checks `medium` of each emptyDir, which Kubernetes does only when it mounts the volume (`getPageSizeMountOption`).
pub(super) fn huge_pages_media(spec: Field<'_, '_>) {
    for volume in spec.items("volumes") {
        let directory = volume.child("emptyDir");
        let medium = directory.child("medium");
        if ["", "Memory"].contains(&medium.text()) {
            continue;
        }
        let size = match medium.text().strip_prefix(HUGE_PAGES_MEDIUM) {
            Some("") => None,
            Some(size) if size.starts_with('-') => Some(&size[1..]),
            _ => {
                medium.not_supported(&["", "HugePages", "HugePages-<size>", "Memory"]);
                continue;
            }
        };
        let containers = list(spec.value, "containers").iter().chain(list(spec.value, "initContainers"));
        let all = containers.map(|container| &container["resources"]).chain(spec.value.get("resources"));
        let names = all.flat_map(|resources| map(&resources["limits"])).map(|(name, _)| name);
        let sizes: SortedSet<&str> = names.filter_map(|name| name.strip_prefix(HUGE_PAGES)).collect();
        if size.is_some_and(|size| !sizes.contains(size)) || sizes.is_empty() {
            medium.invalid("hugePages storage requested, but there is no resource request for huge pages");
        } else if size.is_none() && sizes.len() > 1 {
            medium.invalid("can't be used if container requests multiple huge page sizes");
        }
    }
}

/// `validateFileKeyRefVolumes`: the agent reads files of emptyDir volumes on disk.
pub(super) fn file_key_volumes(spec: Field<'_, '_>) {
    // Later ones of the same name are invalid.
    let volumes = list(spec.value, "volumes").iter().rev();
    let volumes: BTreeMap<&str, &Value> = volumes.map(|volume| (text(volume, "name"), volume)).collect();
    for container in super::containers(&spec) {
        for variable in container.items("env") {
            let source = variable.child("valueFrom");
            let Some(reference) = source.get("fileKeyRef") else { continue };
            let name = reference.child("volumeName");
            match volumes.get(name.text()) {
                None => name.not_found(),
                Some(volume) if volume.get("emptyDir").is_none() => {
                    name.invalid("referenced volume must be of type emptyDir");
                }
                Some(volume) if !text(&volume["emptyDir"], "medium").is_empty() => {
                    name.forbidden("nodlet reads no files of an emptyDir in memory; leave medium out");
                }
                Some(_) => {}
            }
        }
    }
}
