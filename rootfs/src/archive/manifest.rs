//! The documents of image archives, with the fields that are used.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::reference::{Reference, ReferenceError};

/// The annotation in which containerd and Docker store the image name.
const ANNOTATION_NAME: &str = "io.containerd.image.name";
/// OCI's annotation, in which Podman and Skopeo store a name or only a tag.
const ANNOTATION_REF_NAME: &str = "org.opencontainers.image.ref.name";

/// The document `index.json`.
#[derive(Deserialize)]
pub(super) struct Index {
    pub(super) manifests: Vec<Descriptor>,
}

/// An image manifest or an index; their fields distinguish them.
#[derive(Deserialize)]
pub(super) struct Manifest {
    pub(super) config: Option<Descriptor>,
    pub(super) layers: Option<Vec<Descriptor>>,
    pub(super) manifests: Option<Vec<Descriptor>>,
}

/// A reference to a blob.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    media_type: Option<String>,
    pub(super) digest: String,
    pub(super) size: Option<u64>,
    pub(super) platform: Option<DescriptorPlatform>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
pub(super) struct DescriptorPlatform {
    pub(super) os: String,
    pub(super) architecture: String,
    pub(super) variant: Option<String>,
}

impl Descriptor {
    pub(super) fn media_type(&self) -> &str {
        self.media_type.as_deref().unwrap_or("an unnamed media type")
    }

    pub(super) fn is_image_config(&self) -> bool {
        matches!(
            self.media_type.as_deref(),
            None | Some(
                "application/vnd.oci.image.config.v1+json" | "application/vnd.docker.container.image.v1+json"
            )
        )
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.media_type().ends_with("+encrypted")
    }

    /// The names of the image. A bare tag is no name.
    pub(super) fn names(&self) -> Vec<Reference> {
        let annotation = |key: &str| self.annotations.as_ref().and_then(|annotations| annotations.get(key));
        let name = annotation(ANNOTATION_NAME)
            .or_else(|| annotation(ANNOTATION_REF_NAME).filter(|name| name.contains(['/', ':'])));
        name.and_then(|name| Reference::parse(name).ok()).into_iter().collect()
    }
}

/// The manifest of one image, which `manifest.json` may have instead of a list.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OneImage {
    pub(super) schema_version: Option<IgnoredAny>,
}

/// One element of a docker archive's `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct DockerImage {
    pub(super) config: String,
    repo_tags: Option<Vec<String>>,
    pub(super) layers: Vec<String>,
}

impl DockerImage {
    pub(super) fn name_count(&self) -> usize {
        self.repo_tags.as_ref().map_or(0, Vec::len)
    }

    pub(super) fn names(&self) -> Result<Vec<Reference>, ReferenceError> {
        self.repo_tags.iter().flatten().map(|name| Reference::parse(name)).collect()
    }
}
