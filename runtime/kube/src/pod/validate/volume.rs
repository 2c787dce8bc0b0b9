//! Volumes and their sources.

use nodlet_core::sorted::SortedSet;
use serde_json::Value;

use super::projection;
use crate::object::check::{invalid, no_back_steps, one_of};
use crate::object::field::{Errors, FieldError, Path};
use crate::object::rules;
use crate::object::value::{list, map, text};
use crate::pod::claim;
use nodlet_core::spec::Quantity;
use nodlet_core::spec::container::HUGE_PAGES;

/// The values of `pullPolicy`, in the order of printing.
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

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
pub(super) fn volumes<'a>(volumes: &'a [Value], path: &Path<'_>, errors: &mut Errors) -> SortedSet<&'a str> {
    let mut names = SortedSet::new();
    for (index, volume) in volumes.iter().enumerate() {
        let path = path.index(index);
        let before = errors.len();
        volume_source(volume, &path, errors);
        let name = text(volume, "name");
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            invalid(&path.child("name"), name, rules::dns_label(name), errors);
        }
        if names.contains(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        if errors.len() == before {
            names.insert(name);
        }
    }
    names
}

fn volume_source(volume: &Value, path: &Path<'_>, errors: &mut Errors) {
    let sources = SOURCES.iter().filter(|source| volume.get(**source).is_some());
    for (index, source) in sources.enumerate() {
        let path = path.child(match *source {
            // Kubernetes' own words.
            "cephfs" if index > 0 => "cephFS",
            "downwardAPI" if index > 0 => "downwarAPI",
            source => source,
        });
        let value = &volume[*source];
        match *source {
            "emptyDir" => size_limit(value, &path.child("sizeLimit"), errors),
            _ if index > 0 => {
                errors.push(FieldError::forbidden(&path, "may not specify more than 1 volume type"))
            }
            "hostPath" => host_path(value, &path, errors),
            "secret" => projection::object(value, "secretName", &path, errors),
            "configMap" => projection::object(value, "name", &path, errors),
            "downwardAPI" => projection::downward_api(value, &path, errors),
            "projected" => projection::projected(value, &path, errors),
            "persistentVolumeClaim" if text(value, "claimName").is_empty() => {
                errors.push(FieldError::required(&path.child("claimName"), ""));
            }
            "image" => {
                if text(value, "reference").is_empty() {
                    errors.push(FieldError::required(&path.child("reference"), ""));
                }
                one_of(&path.child("pullPolicy"), text(value, "pullPolicy"), &PULL_POLICIES, errors);
            }
            "ephemeral" => match value.get("volumeClaimTemplate").filter(|template| !template.is_null()) {
                None => errors.push(FieldError::required(&path.child("volumeClaimTemplate"), "")),
                Some(template) => {
                    claim::claim_template(template, &path.child("volumeClaimTemplate"), errors);
                }
            },
            _ => {}
        }
    }
}

/// Checks a `hostPath` volume source.
pub(crate) fn host_path(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    const TYPES: [&str; 8] =
        ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    let host = text(source, "path");
    if host.is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
        return;
    }
    no_back_steps(host, &path.child("path"), errors);
    if !host.starts_with('/') {
        errors.push(FieldError::invalid(&path.child("path"), host, "must be an absolute path"));
    }
    let kind = text(source, "type");
    if !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(&path.child("type"), kind, &TYPES));
    }
}

fn size_limit(source: &Value, path: &Path<'_>, errors: &mut Errors) {
    let size = Quantity::parse(text(source, "sizeLimit"));
    if size.is_ok_and(|size| size.is_negative()) {
        errors.push(FieldError::forbidden(path, "SizeLimit field must be a valid resource quantity"));
    }
}

/// Checks `medium` of each emptyDir, which Kubernetes does only when it mounts the volume (`getPageSizeMountOption`).
pub(super) fn huge_pages_media(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (index, volume) in list(spec, "volumes").iter().enumerate() {
        let medium = text(&volume["emptyDir"], "medium");
        if ["", "Memory"].contains(&medium) {
            continue;
        }
        let path = path.index(index);
        let path = path.child("emptyDir");
        let path = path.child("medium");
        let size = match medium.strip_prefix(HUGE_PAGES_MEDIUM) {
            Some("") => None,
            Some(size) if size.starts_with('-') => Some(&size[1..]),
            _ => {
                let media = ["", "HugePages", "HugePages-<size>", "Memory"];
                errors.push(FieldError::not_supported(&path, medium, &media));
                continue;
            }
        };
        let containers = list(spec, "containers").iter().chain(list(spec, "initContainers"));
        let all = containers.map(|container| &container["resources"]).chain(spec.get("resources"));
        let names = all.flat_map(|resources| map(&resources["limits"])).map(|(name, _)| name);
        let sizes: SortedSet<&str> = names.filter_map(|name| name.strip_prefix(HUGE_PAGES)).collect();
        if size.is_some_and(|size| !sizes.contains(size)) || sizes.is_empty() {
            let detail = "hugePages storage requested, but there is no resource request for huge pages";
            errors.push(FieldError::invalid(&path, medium, detail));
        } else if size.is_none() && sizes.len() > 1 {
            let detail = "can't be used if container requests multiple huge page sizes";
            errors.push(FieldError::invalid(&path, medium, detail));
        }
    }
}

/// `validateFileKeyRefVolumes`: the agent reads files of emptyDir volumes on disk.
pub(super) fn file_key_volumes(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        for (index, container) in list(spec, field).iter().enumerate() {
            for (place, variable) in list(container, "env").iter().enumerate() {
                let Some(reference) = variable["valueFrom"].get("fileKeyRef") else { continue };
                let name = text(reference, "volumeName");
                let path = path.child(field);
                let path = path.index(index);
                let path = path.child("env");
                let path = path.index(place);
                let path = path.child("valueFrom");
                let path = path.child("fileKeyRef");
                let path = path.child("volumeName");
                match list(spec, "volumes").iter().find(|volume| volume["name"] == name) {
                    None => errors.push(FieldError::not_found(&path, name)),
                    Some(volume) if volume.get("emptyDir").is_none() => errors.push(FieldError::invalid(
                        &path,
                        name,
                        "referenced volume must be of type emptyDir",
                    )),
                    Some(volume) if !text(&volume["emptyDir"], "medium").is_empty() => {
                        let detail = "nodlet reads no files of an emptyDir in memory; leave medium out";
                        errors.push(FieldError::forbidden(&path, detail));
                    }
                    Some(_) => {}
                }
            }
        }
    }
}
