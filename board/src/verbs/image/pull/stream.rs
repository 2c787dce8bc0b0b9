//! The documents of an image in a registry, and the archive that is made of them and of the layers: an OCI image layout
//! as a tar stream, which `nodlet image load` reads.

use std::io::{PipeWriter, Write};

use nodlet_rootfs::{Digest, Platform};
use serde_json::{Value, json};

use super::Wanted;
use super::remote::{Registry, RemoteError};

/// The most layers of an image, as `image load` accepts.
const LAYERS_MAX: usize = 127;

/// The most manifests of an index.
const MANIFESTS_MAX: usize = 256;

/// The largest layer in bytes: the field of a tar header has 11 octal digits.
const LAYER_MAX: u64 = (1 << 33) - 1;

/// The bytes of a block of a tar archive.
const BLOCK: usize = 512;

/// An image in a registry.
pub(super) struct RemoteImage {
    /// Index, manifest and configuration, by their digests.
    documents: Vec<(Digest, Vec<u8>)>,
    name: String,
    layers: Vec<Layer>,
}

/// A layer of an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    blob: Digest,
    size: u64,
    diff_id: Digest,
}

fn invalid(text: impl Into<String>) -> RemoteError {
    RemoteError::Invalid(text.into())
}

/// The value of a document. A registry must not fill the memory: a document of 4 MiB can have a million values, each of
/// which takes hundreds of bytes.
fn parsed(bytes: &[u8], what: &str) -> Result<Value, RemoteError> {
    let parsed = nodlet_kube::manifest::json::value(bytes);
    parsed.map(|(value, _)| value).map_err(|error| invalid(format!("the {what} is invalid: {error}")))
}

fn digest_of(descriptor: &Value) -> Result<Digest, RemoteError> {
    let text = descriptor.get("digest").and_then(Value::as_str).unwrap_or_default();
    Digest::parse(text).map_err(|error| invalid(format!("the manifest is invalid: {error}")))
}

/// Downloads the documents of an image for the wanted platform.
pub(super) async fn documents(
    registry: &mut Registry<'_>,
    wanted: &Wanted,
) -> Result<RemoteImage, RemoteError> {
    let name = wanted.name.digest().or(wanted.name.tag()).unwrap_or("latest");
    let (digest, bytes) = registry.manifest(name).await?;
    let mut manifest = parsed(&bytes, "manifest")?;
    let mut documents = vec![(digest, bytes)];
    if let Some(manifests) = manifest.get("manifests").and_then(Value::as_array) {
        let chosen = choose(manifests, wanted)?;
        if manifests.iter().any(|descriptor| platform_of(descriptor).is_none()) {
            // The index would refer to images for an unknown platform, which are not downloaded.
            documents.clear();
        }
        let (digest, bytes) = registry.manifest(&chosen.to_string()).await?;
        manifest = parsed(&bytes, "manifest")?;
        documents.push((digest, bytes));
    }
    let (Some(config), Some(layers)) =
        (manifest.get("config"), manifest.get("layers").and_then(Value::as_array))
    else {
        return Err(invalid(
            "the manifest has no config and layers: only images of OCI and Docker (schema 2) are supported",
        ));
    };
    if layers.len() > LAYERS_MAX {
        return Err(invalid(format!("{} layers: at most {LAYERS_MAX} are possible", layers.len())));
    }
    let config_digest = digest_of(config)?;
    let bytes = registry.small_blob(&config_digest).await?;
    let config = parsed(&bytes, "configuration")?;
    documents.push((config_digest, bytes));
    let diff_ids =
        config.pointer("/rootfs/diff_ids").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if diff_ids.len() != layers.len() {
        return Err(invalid(format!("{} layers, but {} diff IDs", layers.len(), diff_ids.len())));
    }
    let layer = |(descriptor, diff_id): (&Value, &Value)| {
        let diff_id = Digest::parse(diff_id.as_str().unwrap_or_default())
            .map_err(|error| invalid(format!("the configuration is invalid: {error}")))?;
        let size = descriptor.get("size").and_then(Value::as_u64).filter(|size| *size <= LAYER_MAX);
        let size = size.ok_or_else(|| invalid(format!("the size of a layer must be at most {LAYER_MAX}")))?;
        Ok(Layer { blob: digest_of(descriptor)?, size, diff_id })
    };
    let layers = layers.iter().zip(diff_ids).map(layer).collect::<Result<_, RemoteError>>()?;
    Ok(RemoteImage { documents, name: wanted.name.to_string(), layers })
}

fn platform_of(descriptor: &Value) -> Option<Platform> {
    let platform = descriptor.get("platform")?;
    let text = |key: &str| platform.get(key).and_then(Value::as_str);
    Some(Platform::new(text("os")?, text("architecture")?, text("variant")))
}

/// The manifest of an index that fits the platform best.
fn choose(manifests: &[Value], wanted: &Wanted) -> Result<Digest, RemoteError> {
    if manifests.len() > MANIFESTS_MAX {
        return Err(invalid(format!("{} manifests: at most {MANIFESTS_MAX} are accepted", manifests.len())));
    }
    let rank = |descriptor: &&Value| {
        let platform = platform_of(descriptor)?;
        if wanted.is_explicit {
            wanted.platform.rank_of_explicit(&platform)
        } else {
            wanted.platform.rank(&platform)
        }
    };
    let ranked = manifests.iter().filter_map(|descriptor| Some((rank(&descriptor)?, descriptor)));
    let Some((_, best)) = ranked.min_by_key(|(rank, _)| *rank) else {
        let mut available: Vec<String> =
            manifests.iter().filter_map(platform_of).map(|platform| platform.to_string()).collect();
        available.retain(|platform| !platform.starts_with("unknown"));
        return Err(invalid(format!(
            "no match for platform {}: the registry has {}",
            wanted.platform,
            if available.is_empty() { "none".to_owned() } else { available.join(", ") }
        )));
    };
    digest_of(best)
}

impl RemoteImage {
    /// The layers to download, each once.
    pub(super) fn missing_layers(
        &self,
        is_here: impl Fn(&Digest) -> bool,
    ) -> Result<Vec<Layer>, RemoteError> {
        let mut missing: Vec<Layer> = Vec::new();
        for layer in &self.layers {
            match missing.iter().find(|known| known.blob == layer.blob) {
                Some(known) if known.size != layer.size => {
                    return Err(invalid(format!("layer {} has two sizes", layer.blob)));
                }
                Some(_) => {}
                None if is_here(&layer.diff_id) => {}
                None => missing.push(*layer),
            }
        }
        Ok(missing)
    }

    /// Writes the archive with these layers.
    pub(super) async fn send(
        &self,
        registry: &mut Registry<'_>,
        layers: &[Layer],
        mut writer: PipeWriter,
    ) -> Result<(), RemoteError> {
        let first = self.documents.first().map(|(digest, bytes)| (digest, bytes.len()));
        let (digest, size) = first.ok_or(RemoteError::Broken("the image has no manifest"))?;
        let annotations = json!({ "io.containerd.image.name": self.name });
        let index = json!({
            "schemaVersion": 2,
            "manifests": [{ "digest": digest.to_string(), "size": size, "annotations": annotations }],
        });
        let mut small = |name: &str, bytes: &[u8]| {
            writer.write_all(&header(name, bytes.len() as u64))?;
            writer.write_all(bytes)?;
            writer.write_all(padding(bytes.len() as u64))
        };
        small("index.json", index.to_string().as_bytes()).map_err(RemoteError::Write)?;
        for (digest, bytes) in &self.documents {
            small(&member(digest), bytes).map_err(RemoteError::Write)?;
        }
        for layer in layers {
            writer.write_all(&header(&member(&layer.blob), layer.size)).map_err(RemoteError::Write)?;
            registry.blob(&layer.blob, layer.size, &mut |piece| writer.write_all(piece)).await?;
            writer.write_all(padding(layer.size)).map_err(RemoteError::Write)?;
        }
        writer.write_all(&[0; 2 * BLOCK]).map_err(RemoteError::Write)
    }
}

fn member(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// The header of a file in a tar archive.
fn header(name: &str, size: u64) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// The padding of a file's last block.
fn padding(size: u64) -> &'static [u8] {
    &[0; BLOCK][..(size.next_multiple_of(BLOCK as u64) - size) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_with_a_million_values_is_refused() {
        assert_eq!(parsed(b"{\"a\":[1]}", "manifest").ok(), Some(json!({ "a": [1] })));
        for value in ["{\"a\":0},", "[],", "0,"] {
            let document = format!("{{\"layers\":[{}0]}}", value.repeat(1_000_000));
            let refused = parsed(document.as_bytes(), "manifest").map_err(|error| error.to_string());
            assert!(refused.as_ref().is_err_and(|why| why.contains("25000 values")), "{value} {refused:?}");
        }
        assert!(parsed(b"{} {}", "manifest").is_err() && parsed(b"", "manifest").is_err());
    }
}
