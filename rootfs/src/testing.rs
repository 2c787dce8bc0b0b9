//! Helpers of this crate's tests: scratch directories and archives.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};
use tar::{EntryType, Header};
use tempfile::TempDir;

use crate::load::{LoadError, LoadOptions, Loaded};
use crate::platform::Platform;
use crate::reference::Digest;
use crate::store::Store;

/// A directory below /tmp, removed after the test. Other users can enter it.
#[derive(Debug)]
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch::below(&std::env::temp_dir())
    }

    /// A scratch directory in memory, for tests that sync often and simulate power cuts.
    pub(crate) fn in_memory() -> Scratch {
        Scratch::below(Path::new("/dev/shm"))
    }

    fn below(directory: &Path) -> Scratch {
        let enterable = fs::Permissions::from_mode(0o755);
        Scratch(tempfile::Builder::new().permissions(enterable).tempdir_in(directory).unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Runs `body` in a scratch directory, with private mounts. Namespaces belong to a thread.
pub(crate) fn in_own_namespace(body: impl FnOnce(&Path) + Send) {
    let scratch = Scratch::new();
    std::thread::scope(|scope| {
        let body = || {
            unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS)
                .expect("a mount namespace: this test needs root (CAP_SYS_ADMIN)");
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
            body(scratch.path());
        };
        scope.spawn(body).join().unwrap();
    });
}

/// Calls `body` with a pipe in which a thread writes all that is read from `input`.
pub(crate) fn piped<T>(mut input: impl Read + Send, body: impl FnOnce(fs::File) -> T) -> T {
    let (reader, mut writer) = std::io::pipe().unwrap();
    std::thread::scope(|scope| {
        // A load that fails does not read all of it.
        scope.spawn(move || drop(std::io::copy(&mut input, &mut writer)));
        body(fs::File::from(OwnedFd::from(reader)))
    })
}

/// The options of a load for a platform.
pub(crate) fn on(platform: &str) -> LoadOptions {
    LoadOptions { platform: Some(Platform::parse(platform).unwrap()), ..LoadOptions::default() }
}

/// The options of a load for the platform of test images.
pub(crate) fn amd64() -> LoadOptions {
    on("linux/amd64")
}

impl Store {
    /// Loads an archive as a stream.
    pub(crate) fn load(&self, archive: &[u8], options: &LoadOptions) -> Result<Vec<Loaded>, LoadError> {
        piped(archive, |stream| self.load_file(stream, options, &mut |_| {}))
    }
}

#[track_caller]
pub(crate) fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}: is it installed?"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    let set = rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty());
    set.unwrap_or_else(|error| panic!("{name:?}: {error}"));
}

pub(crate) fn xattrs(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut names = vec![0u8; 65536];
    let length =
        rustix::fs::llistxattr(path, &mut names[..]).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let mut xattrs: Vec<(String, Vec<u8>)> = names[..length]
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0u8; 65536];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..])
                .unwrap_or_else(|error| panic!("{path:?}: {error}"));
            value.truncate(length);
            (String::from_utf8(name.to_vec()).unwrap(), value)
        })
        .collect();
    xattrs.sort();
    xattrs
}

/// An archive without members.
pub(crate) fn tar() -> TarBuilder {
    TarBuilder(Vec::new())
}

/// A tar archive with any names, however hostile.
pub(crate) struct TarBuilder(Vec<u8>);

impl TarBuilder {
    pub(crate) fn file(self, name: &str, text: &str) -> TarBuilder {
        self.bytes(name, text.as_bytes())
    }

    pub(crate) fn bytes(self, name: &str, bytes: &[u8]) -> TarBuilder {
        self.entry(EntryType::Regular, name, "", 0o644, bytes)
    }

    pub(crate) fn directory(self, name: &str) -> TarBuilder {
        self.entry(EntryType::Directory, name, "", 0o755, &[])
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> TarBuilder {
        self.entry(EntryType::Symlink, name, target, 0o777, &[])
    }

    pub(crate) fn hard_link(self, name: &str, target: &str) -> TarBuilder {
        self.entry(EntryType::Link, name, target, 0o644, &[])
    }

    pub(crate) fn entry(
        mut self,
        kind: EntryType,
        name: &str,
        link: &str,
        mode: u32,
        data: &[u8],
    ) -> TarBuilder {
        if name.len() > 100 {
            self = self.entry(EntryType::GNULongName, "././@LongLink", "", 0, format!("{name}\0").as_bytes());
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(data.len() as u64);
        let gnu = header.as_gnu_mut().unwrap();
        let name = &name.as_bytes()[..name.len().min(100)];
        gnu.name[..name.len()].copy_from_slice(name);
        gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    /// Adds a PAX header for the next member.
    pub(crate) fn pax(self, records: &[(&str, &str)]) -> TarBuilder {
        let mut bytes = String::new();
        for (key, value) in records {
            let rest = format!(" {key}={value}\n");
            let length =
                (1..).find(|digits| (rest.len() + digits).to_string().len() == *digits).unwrap() + rest.len();
            bytes += &format!("{length}{rest}");
        }
        self.entry(EntryType::XHeader, "PaxHeaders/a", "", 0, bytes.as_bytes())
    }

    /// Adds a file whose header declares `size` bytes, whatever is stored of it.
    pub(crate) fn with_size(self, name: &str, size: u64, data: &[u8]) -> TarBuilder {
        let field = format!("{size:011o}\0");
        match field.len() {
            12 => self.resized(name, field.as_bytes(), data),
            _ => {
                let mut field = [0; 12];
                field[0] = 0x80;
                field[4..].copy_from_slice(&size.to_be_bytes());
                self.resized(name, &field, data)
            }
        }
    }

    /// Adds a file with these bytes as its size field.
    pub(crate) fn with_size_field(self, name: &str, field: &[u8; 12]) -> TarBuilder {
        self.resized(name, field, &[])
    }

    fn resized(mut self, name: &str, field: &[u8], data: &[u8]) -> TarBuilder {
        let at = self.0.len();
        self = self.entry(EntryType::Regular, name, "", 0o644, data);
        let mut header = Header::new_old();
        header.as_mut_bytes().copy_from_slice(&self.0[at..at + 512]);
        header.as_mut_bytes()[124..136].copy_from_slice(field);
        header.set_cksum();
        self.0[at..at + 512].copy_from_slice(header.as_bytes());
        self
    }

    /// An archive that was written elsewhere.
    pub(crate) fn of(bytes: Vec<u8>) -> TarBuilder {
        TarBuilder(bytes)
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

/// The compression of a [`TestImage`]'s layers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// An image to write as an archive.
pub(crate) struct TestImage {
    pub(crate) name: Option<&'static str>,
    pub(crate) platform: &'static str,
    /// The layers' tar streams, lowest first.
    pub(crate) layers: Vec<Vec<u8>>,
    pub(crate) compression: Compression,
    /// Further fields of the configuration's `config`, as JSON.
    pub(crate) config: &'static str,
}

impl TestImage {
    pub(crate) fn new(name: &'static str, layers: Vec<Vec<u8>>) -> TestImage {
        let config = r#"{"Entrypoint":["/bin/app"],"User":"www"}"#;
        TestImage {
            name: Some(name),
            platform: "linux/amd64",
            layers,
            compression: Compression::None,
            config,
        }
    }

    pub(crate) fn on(self, platform: &'static str) -> TestImage {
        TestImage { platform, ..self }
    }

    pub(crate) fn compressed(self, compression: Compression) -> TestImage {
        TestImage { compression, ..self }
    }

    pub(crate) fn configuration(&self) -> String {
        let platform = Platform::parse(self.platform).unwrap();
        let variant = platform.variant.map(|v| format!(r#","variant":"{v}""#)).unwrap_or_default();
        let diff_ids: Vec<String> =
            self.layers.iter().map(|layer| format!("\"{}\"", Digest::of(layer))).collect();
        format!(
            r#"{{"os":"{}","architecture":"{}"{variant},"config":{},"rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#,
            platform.os,
            platform.architecture,
            self.config,
            diff_ids.join(",")
        )
    }

    pub(crate) fn id(&self) -> Digest {
        Digest::of(self.configuration().as_bytes())
    }

    pub(crate) fn blobs(&self) -> Vec<Vec<u8>> {
        let compressed = |layer: &Vec<u8>| match self.compression {
            Compression::None => layer.clone(),
            Compression::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(layer).unwrap();
                encoder.finish().unwrap()
            }
            Compression::Zstd => {
                ruzstd::encoding::compress_to_vec(&layer[..], ruzstd::encoding::CompressionLevel::Fastest)
            }
        };
        self.layers.iter().map(compressed).collect()
    }

    pub(crate) fn manifest(&self) -> String {
        let layers: Vec<String> = self
            .blobs()
            .iter()
            .map(|blob| descriptor("application/vnd.oci.image.layer.v1.tar", blob, ""))
            .collect();
        format!(
            r#"{{"schemaVersion":2,"config":{},"layers":[{}]}}"#,
            descriptor("application/vnd.oci.image.config.v1+json", self.configuration().as_bytes(), ""),
            layers.join(",")
        )
    }

    fn manifest_descriptor(&self) -> String {
        let platform = Platform::parse(self.platform).unwrap();
        let variant = platform.variant.map(|v| format!(r#","variant":"{v}""#)).unwrap_or_default();
        let name = self
            .name
            .map(|name| format!(r#","annotations":{{"org.opencontainers.image.ref.name":"{name}"}}"#));
        let more = format!(
            r#","platform":{{"os":"{}","architecture":"{}"{variant}}}{}"#,
            platform.os,
            platform.architecture,
            name.unwrap_or_default()
        );
        descriptor("application/vnd.oci.image.manifest.v1+json", self.manifest().as_bytes(), &more)
    }
}

fn descriptor(media_type: &str, bytes: &[u8], more: &str) -> String {
    format!(r#"{{"mediaType":"{media_type}","digest":"{}","size":{}{more}}}"#, Digest::of(bytes), bytes.len())
}

/// Writes an OCI image layout, with layers before the documents, as tools do.
pub(crate) fn oci_archive(images: &[TestImage]) -> TarBuilder {
    let mut blobs: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut add = |bytes: Vec<u8>| blobs.insert(format!("blobs/sha256/{}", Digest::of(&bytes).hex()), bytes);
    for image in images {
        image.blobs().into_iter().for_each(|blob| drop(add(blob)));
        add(image.configuration().into_bytes());
        add(image.manifest().into_bytes());
    }
    let manifests: Vec<String> = images.iter().map(TestImage::manifest_descriptor).collect();
    let archive =
        blobs.into_iter().fold(tar().directory("blobs/"), |tar, (name, bytes)| tar.bytes(&name, &bytes));
    archive
        .file("index.json", &format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, manifests.join(",")))
        .file("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#)
}

/// Writes the older format of `docker save`: layers in directories, repeated ones as links.
pub(crate) fn docker_archive(images: &[TestImage]) -> TarBuilder {
    let mut archive = tar();
    let mut written: BTreeMap<Digest, String> = BTreeMap::new();
    let mut manifests = Vec::new();
    for (number, image) in images.iter().enumerate() {
        let mut members = Vec::new();
        for (depth, layer) in image.layers.iter().enumerate() {
            let member = format!("image{number}-{depth}/layer.tar");
            archive = match written.get(&Digest::of(layer)) {
                Some(first) => archive.symlink(&member, &format!("../{first}")),
                None => archive.bytes(&member, layer),
            };
            written.entry(Digest::of(layer)).or_insert_with(|| member.clone());
            members.push(format!("\"{member}\""));
        }
        let config = format!("{}.json", image.id().hex());
        archive = archive.file(&config, &image.configuration());
        let tags = image.name.map_or("null".to_owned(), |name| format!("[\"{name}\"]"));
        manifests
            .push(format!(r#"{{"Config":"{config}","RepoTags":{tags},"Layers":[{}]}}"#, members.join(",")));
    }
    archive.file("manifest.json", &format!("[{}]", manifests.join(",")))
}
