//! Finds the images in an archive: an OCI image layout or the output of `docker save`.
//!
//! This module decides which images are wanted and which layers they have. It gets only the small documents, by their
//! digests; `load` reads the layers, once it is known that they are wanted.

use std::io;

use serde::{Deserialize, Serialize};

use crate::config::Document;
use crate::platform::Platform;
use crate::reference::{Digest, DigestError, Reference};
use crate::tar_error::{TarError, is_cut_off};

mod manifest;
pub(crate) mod source;

use manifest::{Descriptor, DockerImage, Index, Manifest, OneImage};

/// The largest document (index, manifest, configuration) that is read, in bytes.
pub(crate) const DOCUMENT_MAX: u64 = 4 * 1024 * 1024;
/// The most bytes of all documents of one archive. One image's documents have some 10 KiB.
pub(crate) const DOCUMENTS_MAX: u64 = 8 * 1024 * 1024;
/// The most layers of one image: the kernel cannot mount more over one another.
const LAYERS_MAX: usize = 127;
/// The most images that are examined in one archive, including those for other platforms.
const DESCRIPTORS_MAX: usize = 256;
/// The deepest nesting of indexes.
const NESTING_MAX: usize = 4;
/// The most names in one archive: each name stays in the store's index.
const NAMES_MAX: usize = 1024;

/// Why an archive has no image that can be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The archive is neither an OCI image layout nor a docker archive.
    #[error(
        "read the archive: it has neither index.json (an OCI image layout) nor manifest.json (a docker archive); make one \
         with podman save, docker save, buildah push or skopeo copy"
    )]
    Unrecognised,
    /// The format is one that other tools support, but nodlet does not.
    #[error("read the archive: {problem}")]
    Foreign {
        /// The format, and what to do instead.
        problem: String,
    },
    /// The archive could not be read.
    #[error("read the archive")]
    Read(#[source] io::Error),
    /// The archive ends too early.
    #[error("read the archive: it is cut off; copy it, or save the image, again")]
    CutOff,
    /// The file is not a tar archive, or is damaged.
    #[error(transparent)]
    Tar(TarError),
    /// A document in the archive is invalid.
    #[error("read {} in the archive: {problem}", .member.escape_debug())]
    Document {
        /// The document's name in the archive.
        member: String,
        /// The error in the document.
        problem: String,
    },
    /// A part that another part refers to is missing.
    #[error("read {}: it is not in the archive, though its manifest names it", .member.escape_debug())]
    Missing {
        /// The missing part's name in the archive.
        member: String,
    },
    /// A digest that nodlet cannot verify.
    #[error("read {} in the archive", .member.escape_debug())]
    Digest {
        /// The document that contains the digest.
        member: String,
        /// The error in the digest.
        source: DigestError,
    },
    /// The archive has images, but none for the platform.
    #[error("find an image for {wanted}: the archive has {}", listed(.available))]
    NoPlatform {
        /// The wanted platform.
        wanted: Platform,
        /// The platforms of the archive's images.
        available: Vec<String>,
    },
}

impl ArchiveError {
    /// The error of reading the archive.
    pub(crate) fn read(error: io::Error) -> ArchiveError {
        if is_cut_off(&error) { ArchiveError::CutOff } else { ArchiveError::Read(error) }
    }
}

/// The platforms of an archive, for a message.
fn listed(platforms: &[String]) -> String {
    match platforms {
        [] => "none".to_owned(),
        _ => format!("{}; --platform of nodlet image load chooses one", platforms.join(", ")),
    }
}

/// Reads a small document of an archive by its name; `None` if it does not exist.
pub(crate) type ReadDocument<'d> = dyn FnMut(&str) -> Result<Option<Vec<u8>>, ArchiveError> + 'd;

/// The platform for which images are wanted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Wanted {
    pub(crate) platform: Platform,
    /// Whether the user requested this platform by name.
    pub(crate) is_explicit: bool,
}

impl Wanted {
    fn rank(&self, platform: &Platform) -> Option<usize> {
        if self.is_explicit { self.platform.rank_of_explicit(platform) } else { self.platform.rank(platform) }
    }
}

/// An image to load.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Planned {
    pub(crate) id: Digest,
    /// The configuration document, byte for byte.
    pub(crate) config: String,
    pub(crate) names: Vec<Reference>,
    pub(crate) manifest: Option<Digest>,
    /// Digests by which the image may be requested: those of its manifest and its index.
    pub(crate) digests: Vec<Digest>,
    pub(crate) layers: Vec<PlannedLayer>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PlannedLayer {
    pub(crate) diff_id: Digest,
    /// The digest of the blob as stored in the archive, if the archive names it.
    pub(crate) blob: Option<Digest>,
    /// The blob's length, if the archive names it.
    pub(crate) size: Option<u64>,
    /// The blob's name in the archive.
    pub(crate) member: String,
}

/// Finds the wanted images in an archive.
pub(crate) fn plan(documents: &mut ReadDocument<'_>, wanted: &Wanted) -> Result<Vec<Planned>, ArchiveError> {
    // They are kept in memory.
    let mut bytes = 0;
    let documents: &mut ReadDocument<'_> = &mut |member| {
        let found = documents(member)?;
        bytes += found.as_ref().map_or(0, |bytes| bytes.len() as u64);
        check_document_bytes(member, bytes).map(|()| found)
    };
    let docker = documents("manifest.json")?.map(|bytes| docker_manifest(&bytes)).transpose()?;
    let Some(index) = parsed::<Index>(documents, "index.json")? else {
        let docker = docker.ok_or(ArchiveError::Unrecognised)?;
        return docker_images(documents, docker, wanted);
    };
    let mut search = Search { documents, seen: 0, manifests: Vec::new() };
    for (group, descriptor) in index.manifests.iter().enumerate() {
        let names = descriptor.names();
        search.visit(descriptor, Group { number: group, names }, &[], 0)?;
    }
    let found = search.manifests;
    let mut planned = choose(found, wanted)?;
    // `docker save` writes both formats, but the names only in the older one.
    for image in docker.into_iter().flatten() {
        let config = documents(&image.config)?;
        let Some(id) = config.map(|bytes| Digest::of(&bytes)) else { continue };
        for planned in planned.iter_mut().filter(|planned| planned.id == id) {
            let mut names = docker_names(&image)?;
            names.retain(|name| !planned.names.contains(name));
            planned.names.extend(names);
        }
    }
    Ok(planned)
}

/// Checks the bytes of all documents read up to this one.
pub(crate) fn check_document_bytes(member: &str, bytes: u64) -> Result<(), ArchiveError> {
    match bytes {
        ..=DOCUMENTS_MAX => Ok(()),
        _ => Err(invalid(member, format!("more than {DOCUMENTS_MAX} bytes of documents in one archive"))),
    }
}

/// The error of an invalid document.
pub(crate) fn invalid(member: &str, problem: impl Into<String>) -> ArchiveError {
    ArchiveError::Document { member: member.to_owned(), problem: problem.into() }
}

/// Reads and parses a document of the archive; `None` if it does not exist.
fn parsed<T: serde::de::DeserializeOwned>(
    documents: &mut ReadDocument<'_>,
    member: &str,
) -> Result<Option<T>, ArchiveError> {
    documents(member)?.map(|bytes| from_json(member, &bytes)).transpose()
}

/// Parses `manifest.json`. In docker archives it has a list of images. The `dir:` format of skopeo and podman
/// has the manifest of one image there, whose name is not recorded.
fn docker_manifest(bytes: &[u8]) -> Result<Vec<DockerImage>, ArchiveError> {
    let member = "manifest.json";
    let wrong = |problem: String| invalid(member, problem);
    if bytes.trim_ascii_start().starts_with(b"{")
        && from_json::<OneImage>(member, bytes)?.schema_version.is_some()
    {
        return Err(ArchiveError::Foreign {
            problem: "it is what `skopeo copy … dir:` and `podman save --format docker-dir` write, which is not supported: \
                      save it as a docker-archive, an oci-archive or an OCI image layout (oci:DIR, oci-dir)"
                .to_owned(),
        });
    }
    let images: Vec<DockerImage> = from_json(member, bytes)?;
    if images.len() > DESCRIPTORS_MAX {
        return Err(wrong(format!("{} images: at most {DESCRIPTORS_MAX} are accepted", images.len())));
    }
    match images.iter().map(DockerImage::name_count).sum::<usize>() {
        count if count > NAMES_MAX => Err(wrong(format!("{count} names: at most {NAMES_MAX} are accepted"))),
        _ => Ok(images),
    }
}

fn from_json<T: serde::de::DeserializeOwned>(member: &str, bytes: &[u8]) -> Result<T, ArchiveError> {
    serde_json::from_slice(bytes).map_err(|error| invalid(member, error.to_string()))
}

fn blob_member(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Parses a digest that a document has.
fn digest(member: &str, text: &str) -> Result<Digest, ArchiveError> {
    Digest::parse(text).map_err(|source| ArchiveError::Digest { member: member.to_owned(), source })
}

/// Reads the blob with this digest, and verifies it.
fn blob(documents: &mut ReadDocument<'_>, digest: &Digest) -> Result<Option<Vec<u8>>, ArchiveError> {
    let member = blob_member(digest);
    match documents(&member)? {
        Some(bytes) if Digest::of(&bytes) != *digest => {
            let actual = Digest::of(&bytes);
            Err(invalid(&member, format!("its content has digest {actual}: the archive is damaged")))
        }
        found => Ok(found),
    }
}

/// A group of descriptors at the top of an archive. Each stands for one image, or several stand for the same
/// image on several platforms; the latter share a group.
#[derive(Clone, Debug)]
struct Group {
    number: usize,
    names: Vec<Reference>,
}

/// An image manifest that was found, with its group and platform.
struct FoundManifest {
    group: Group,
    platform: Platform,
    /// `None` if the archive omits the parts of another platform.
    image: Option<Planned>,
}

struct Search<'a, 'd> {
    documents: &'a mut ReadDocument<'d>,
    seen: usize,
    manifests: Vec<FoundManifest>,
}

impl Search<'_, '_> {
    fn visit(
        &mut self,
        descriptor: &Descriptor,
        group: Group,
        above: &[Digest],
        depth: usize,
    ) -> Result<(), ArchiveError> {
        let at = "index.json";
        self.seen += 1;
        if self.seen > DESCRIPTORS_MAX || depth > NESTING_MAX {
            let problem =
                format!("more than {DESCRIPTORS_MAX} manifests, or indexes nested deeper than {NESTING_MAX}");
            return Err(invalid(at, problem));
        }
        let id = digest(at, &descriptor.digest)?;
        let member = blob_member(&id);
        let stated =
            descriptor.platform.as_ref().map(|p| Platform::new(&p.os, &p.architecture, p.variant.as_deref()));
        let Some(bytes) = blob(self.documents, &id)? else {
            // An archive may have only one of the platforms in its index.
            return self.omit(group, stated, ArchiveError::Missing { member });
        };
        let mut digests = above.to_vec();
        digests.push(id);
        let manifest: Manifest = from_json(&member, &bytes)?;
        if let Some(manifests) = manifest.manifests {
            for descriptor in &manifests {
                self.visit(descriptor, group.clone(), &digests, depth + 1)?;
            }
            return Ok(());
        }
        let wrong = |problem: String| invalid(&member, problem);
        let (Some(config), Some(layers)) = (manifest.config, manifest.layers) else {
            return Err(invalid(
                &member,
                "neither an image manifest (config, layers) nor an index (manifests)",
            ));
        };
        if !config.is_image_config() {
            // Image layouts may also contain signatures and the like.
            let problem = format!("{} is not the configuration of a container image", config.media_type());
            return self.omit(group, stated, wrong(problem));
        }
        let config_digest = digest(&member, &config.digest)?;
        let config_member = blob_member(&config_digest);
        let Some(bytes) = blob(self.documents, &config_digest)? else {
            return self.omit(group, stated, ArchiveError::Missing { member: config_member });
        };
        let (text, document) = document(&config_member, bytes)?;
        let mut planned = Vec::with_capacity(layers.len().min(LAYERS_MAX));
        if layers.len() != document.diff_ids.len() {
            return Err(wrong(format!(
                "{} layers, but {} diff IDs in the configuration",
                layers.len(),
                document.diff_ids.len()
            )));
        }
        for (layer, diff_id) in layers.iter().zip(&document.diff_ids) {
            let blob = digest(&member, &layer.digest)?;
            if layer.is_encrypted() {
                return Err(wrong(format!("layer {blob} is encrypted: encrypted images are not supported")));
            }
            let member = blob_member(&blob);
            planned.push(PlannedLayer { diff_id: *diff_id, blob: Some(blob), size: layer.size, member });
        }
        let image = Planned {
            id: config_digest,
            config: text,
            names: group.names.clone(),
            manifest: Some(id),
            digests,
            layers: planned,
        };
        let platform = stated.unwrap_or(document.platform);
        self.manifests.push(FoundManifest { group, platform, image: Some(image) });
        Ok(())
    }

    /// Notes a manifest without an image, which is an error unless the index names its platform.
    fn omit(
        &mut self,
        group: Group,
        platform: Option<Platform>,
        error: ArchiveError,
    ) -> Result<(), ArchiveError> {
        let platform = platform.ok_or(error)?;
        self.manifests.push(FoundManifest { group, platform, image: None });
        Ok(())
    }
}

/// Chooses the image of each group that fits best. Descriptors with the same name, or without a name, form
/// one group: the same image for several platforms.
fn choose(found: Vec<FoundManifest>, wanted: &Wanted) -> Result<Vec<Planned>, ArchiveError> {
    let mut available: Vec<String> = Vec::new();
    for found in &found {
        let shown = match found.image {
            Some(_) => found.platform.to_string(),
            None => format!("{} (named, but not included)", found.platform),
        };
        if !available.contains(&shown) && found.platform.os != "unknown" {
            available.push(shown);
        }
    }
    let same = |a: &Group, b: &Group| a.number == b.number || a.names == b.names;
    let best: Vec<Option<usize>> = found
        .iter()
        .map(|this| {
            let group = found.iter().filter(|other| other.image.is_some() && same(&this.group, &other.group));
            group.filter_map(|other| wanted.rank(&other.platform)).min()
        })
        .collect();
    let mut planned: Vec<Planned> = Vec::new();
    for (found, best) in found.into_iter().zip(best) {
        let Some(image) = found.image else { continue };
        let fits = best.is_some() && wanted.rank(&found.platform) == best;
        let known = planned.iter().any(|planned| planned.id == image.id && planned.names == image.names);
        if !fits || known {
            continue;
        }
        let layers = image.layers.len();
        if layers == 0 || layers > LAYERS_MAX {
            let problem = format!("an image of {layers} layers: must be 1 to {LAYERS_MAX}");
            return Err(invalid(&blob_member(&image.id), problem));
        }
        planned.push(image);
    }
    if planned.is_empty() {
        Err(ArchiveError::NoPlatform { wanted: wanted.platform.clone(), available })
    } else {
        Ok(planned)
    }
}

fn docker_names(image: &DockerImage) -> Result<Vec<Reference>, ArchiveError> {
    image.names().map_err(|error| invalid("manifest.json", format!("RepoTags: {error}")))
}

fn docker_images(
    documents: &mut ReadDocument<'_>,
    images: Vec<DockerImage>,
    wanted: &Wanted,
) -> Result<Vec<Planned>, ArchiveError> {
    let mut found = Vec::new();
    for (number, image) in images.into_iter().enumerate() {
        let missing = || ArchiveError::Missing { member: image.config.clone() };
        let bytes = documents(&image.config)?.ok_or_else(missing)?;
        let id = Digest::of(&bytes);
        let (config, document) = document(&image.config, bytes)?;
        if image.layers.len() != document.diff_ids.len() {
            let (layers, diff_ids) = (image.layers.len(), document.diff_ids.len());
            let problem = format!("{layers} layers, but {diff_ids} diff IDs in {}", image.config);
            return Err(invalid("manifest.json", problem));
        }
        let names = docker_names(&image)?;
        let layer = |(member, diff_id)| PlannedLayer { diff_id, blob: None, size: None, member };
        let layers = image.layers.into_iter().zip(document.diff_ids).map(layer).collect();
        let group = Group { number, names: names.clone() };
        let image = Some(Planned { id, config, names, manifest: None, digests: Vec::new(), layers });
        found.push(FoundManifest { group, platform: document.platform, image });
    }
    choose(found, wanted)
}

fn document(member: &str, bytes: Vec<u8>) -> Result<(String, Document), ArchiveError> {
    let document = Document::parse(&bytes).map_err(|error| invalid(member, error.to_string()))?;
    document.config.check().map_err(|problem| invalid(member, problem))?;
    let text = String::from_utf8(bytes).map_err(|error| invalid(member, error.to_string()))?;
    Ok((text, document))
}
