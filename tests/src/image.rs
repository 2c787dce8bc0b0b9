//! Container images made from files given in a test, in the formats that `podman save` and `docker save`
//! write. The same input always gives the same bytes. Independent of nodlet, so that the two do not share
//! errors.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use flate2::{Compression as Level, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The name of the demo image.
pub const DEMO: &str = "localhost/demo:1";

/// An image that is being built. It starts with one empty layer.
#[derive(Clone)]
pub struct Image {
    reference: String,
    architecture: String,
    config: Value,
    compression: Compression,
    layers: Vec<Vec<Entry>>,
}

/// The compression of layers in an OCI archive. Layers of a docker archive are never compressed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Plain tar.
    None,
    /// gzip, which most tools use.
    Gzip,
}

#[derive(Clone)]
struct Entry {
    path: String,
    mode: u32,
    owner: (u64, u64),
    kind: Kind,
}

/// The processor architecture of this program, as images spell it.
pub const ARCHITECTURE: &str = match std::env::consts::ARCH.as_bytes() {
    b"x86_64" => "amd64",
    b"aarch64" => "arm64",
    _ => std::env::consts::ARCH,
};

#[derive(Clone)]
enum Kind {
    File(Vec<u8>),
    Directory,
    Symlink(String),
    HardLink(String),
}

impl Image {
    /// An image with this name and without files.
    pub fn new(reference: &str) -> Self {
        Self {
            reference: reference.into(),
            // The programs in the image are built for the same architecture as this one.
            architecture: ARCHITECTURE.into(),
            config: json!({}),
            compression: Compression::Gzip,
            layers: vec![Vec::new()],
        }
    }

    /// The demo image: the demo program as its entrypoint, users `root`, `app`
    /// (1000) and `nobody`, a `/tmp`, and a page to serve in `/srv`.
    pub fn demo(reference: &str, program: &[u8]) -> Self {
        Self::new(reference)
            .directory("bin", 0o755)
            .directory("etc", 0o755)
            .directory("srv", 0o755)
            .directory("tmp", 0o1777)
            .file("bin/demo", 0o755, program)
            .file(
                "etc/passwd",
                0o644,
                b"root:x:0:0:root:/:/bin/demo\napp:x:1000:1000:app:/tmp:/bin/demo\nnobody:x:65534:65534:nobody:/:/bin/demo\n",
            )
            .file("etc/group", 0o644, b"root:x:0:\napp:x:1000:\nextra:x:2000:app\nnogroup:x:65534:\n")
            .file("srv/index.html", 0o644, b"hello from the image\n")
            .config("Entrypoint", json!(["/bin/demo"]))
            .config("Env", json!(["PATH=/bin", "IMAGE=demo"]))
    }

    /// Returns this image with another name.
    #[must_use]
    pub fn named(mut self, reference: &str) -> Self {
        self.reference = reference.into();
        self
    }

    /// Adds a regular file to the last layer. Its name may have 100 bytes; a name that leads out of the root
    /// is written unchanged.
    #[must_use]
    pub fn file(self, path: &str, mode: u32, bytes: &[u8]) -> Self {
        self.entry(path, mode, Kind::File(bytes.to_vec()))
    }

    /// Adds a directory to the last layer.
    #[must_use]
    pub fn directory(self, path: &str, mode: u32) -> Self {
        self.entry(path, mode, Kind::Directory)
    }

    /// Adds a symbolic link to the last layer.
    #[must_use]
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(path, 0o777, Kind::Symlink(target.into()))
    }

    /// Adds a hard link to the last layer.
    #[must_use]
    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(path, 0o644, Kind::HardLink(target.into()))
    }

    /// Sets the owner and group of the last entry.
    #[must_use]
    pub fn owned_by(mut self, user: u64, group: u64) -> Self {
        let last = self.layers.last_mut().and_then(|layer| layer.last_mut());
        last.expect("something was added before").owner = (user, group);
        self
    }

    /// Starts another layer on top.
    #[must_use]
    pub fn layer(mut self) -> Self {
        self.layers.push(Vec::new());
        self
    }

    /// Sets a field of the image's own `config`, spelled as there: `Cmd`, `User`, `StopSignal`.
    #[must_use]
    pub fn config(mut self, field: &str, value: Value) -> Self {
        self.config[field] = value;
        self
    }

    /// Sets the architecture that the image is for, in Go's spelling; the default is [`ARCHITECTURE`].
    #[must_use]
    pub fn architecture(mut self, architecture: &str) -> Self {
        self.architecture = architecture.into();
        self
    }

    /// Sets the compression of layers in an OCI archive; the default is gzip.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Writes the image as `podman save --format oci-archive` does.
    pub fn write_oci_archive(&self, path: &Path) -> io::Result<()> {
        let mut blobs = Vec::new();
        let layers = self.tars()?;
        let mut descriptors = Vec::new();
        for layer in &layers {
            let (blob, media_type) = match self.compression {
                Compression::None => (layer.clone(), "application/vnd.oci.image.layer.v1.tar"),
                Compression::Gzip => (gzip(layer)?, "application/vnd.oci.image.layer.v1.tar+gzip"),
            };
            descriptors.push(descriptor(media_type, &blob));
            blobs.push(blob);
        }
        let config = json_bytes(&self.image_config(&layers));
        let manifest = json_bytes(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": descriptors,
        }));
        let mut top = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
        top["annotations"] = json!({ "org.opencontainers.image.ref.name": self.reference });
        blobs.extend([config, manifest]);

        let mut archive = tar::Builder::new(File::create(path)?);
        append(&mut archive, "oci-layout", &json_bytes(&json!({ "imageLayoutVersion": "1.0.0" })))?;
        append(&mut archive, "index.json", &json_bytes(&json!({ "schemaVersion": 2, "manifests": [top] })))?;
        for blob in &blobs {
            append(&mut archive, &format!("blobs/sha256/{}", hex(blob)), blob)?;
        }
        archive.into_inner()?.flush()
    }

    /// Writes the image as `docker save` does.
    pub fn write_docker_archive(&self, path: &Path) -> io::Result<()> {
        let layers = self.tars()?;
        let config = json_bytes(&self.image_config(&layers));
        let config_name = format!("{}.json", hex(&config));
        let names: Vec<String> = layers.iter().map(|layer| format!("{}/layer.tar", hex(layer))).collect();
        // As `docker save ID` writes it.
        let tags = if self.reference.is_empty() { Value::Null } else { json!([self.reference]) };
        let manifest = json!([{ "Config": config_name, "RepoTags": tags, "Layers": names }]);

        let mut archive = tar::Builder::new(File::create(path)?);
        for (name, layer) in names.iter().zip(&layers) {
            append(&mut archive, name, layer)?;
        }
        append(&mut archive, &config_name, &config)?;
        append(&mut archive, "manifest.json", &json_bytes(&manifest))?;
        archive.into_inner()?.flush()
    }

    fn entry(mut self, path: &str, mode: u32, kind: Kind) -> Self {
        let entry = Entry { path: path.into(), mode, owner: (0, 0), kind };
        self.layers.last_mut().expect("there is always a layer").push(entry);
        self
    }

    fn tars(&self) -> io::Result<Vec<Vec<u8>>> {
        self.layers.iter().map(|entries| tar_of(entries)).collect()
    }

    fn image_config(&self, layers: &[Vec<u8>]) -> Value {
        let diff_ids: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", hex(layer))).collect();
        json!({
            "architecture": self.architecture,
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": self.config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        })
    }
}

fn tar_of(entries: &[Entry]) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(entry.mode);
        header.set_uid(entry.owner.0);
        header.set_gid(entry.owner.1);
        header.set_mtime(1_767_225_600); // 2026-01-01: the bytes must not depend on the day
        header.set_size(0);
        match &entry.kind {
            Kind::File(bytes) => {
                header.set_entry_type(tar::EntryType::Regular);
                header.set_size(bytes.len() as u64);
                if is_honest(&entry.path) {
                    archive.append_data(&mut header, &entry.path, bytes.as_slice())?;
                } else {
                    header.as_old_mut().name[..entry.path.len()].copy_from_slice(entry.path.as_bytes());
                    header.set_cksum();
                    archive.append(&header, bytes.as_slice())?;
                }
            }
            Kind::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                archive.append_data(&mut header, format!("{}/", entry.path), io::empty())?;
            }
            Kind::Symlink(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                archive.append_link(&mut header, &entry.path, target)?;
            }
            Kind::HardLink(target) => {
                header.set_entry_type(tar::EntryType::Link);
                archive.append_link(&mut header, &entry.path, target)?;
            }
        }
    }
    archive.into_inner()
}

/// Whether the tar crate accepts the name: it rejects names that would leave the directory, which a test
/// needs.
fn is_honest(path: &str) -> bool {
    !path.starts_with('/') && !path.split('/').any(|part| part == "..")
}

fn append(archive: &mut tar::Builder<File>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(bytes.len() as u64);
    archive.append_data(&mut header, name, bytes)
}

fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Level::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": format!("sha256:{}", hex(bytes)), "size": bytes.len() })
}

fn json_bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a Value is always JSON")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl Fn(&Path) -> io::Result<()>) -> Vec<u8> {
        let path = std::env::temp_dir().join(format!("nodlet-image-{:?}.tar", std::thread::current().id()));
        write(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        bytes
    }

    #[test]
    fn the_same_files_give_the_same_archive() {
        let image = || Image::demo(DEMO, b"program").layer().file("etc/more", 0o600, b"more");
        for write in [Image::write_oci_archive, Image::write_docker_archive] {
            assert_eq!(written(|path| write(&image(), path)), written(|path| write(&image(), path)));
        }
    }

    #[test]
    fn every_blob_of_an_oci_archive_has_the_name_of_its_digest() {
        let bytes = written(|path| Image::demo(DEMO, b"program").write_oci_archive(path));
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut blobs = 0;
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            io::copy(&mut entry, &mut content).unwrap();
            if let Some(name) = path.strip_prefix("blobs/sha256/") {
                assert_eq!(name, hex(&content));
                blobs += 1;
            }
        }
        assert_eq!(blobs, 3, "a layer, a config and a manifest");
    }
}
