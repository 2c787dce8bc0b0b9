//! Splits an archive for sending it to another machine: the small documents that describe the wanted images,
//! and the layers one by one, of which that machine may already have some.
//!
//! Both sides find the layers in the documents ([`wanted`]). The receiver need not trust anything else,
//! because it assembles an archive again, which [`Store::load_all`] validates.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::time::Instant;

use crate::archive::source::{Directory, Seekable, TarFile, cleaned, read_document};
use crate::archive::{ArchiveError, Planned, Wanted, plan};
use crate::changes::{self, Blocks, Changes};
use crate::compression::{Format, peek};
use crate::platform::Platform;
use crate::reference::Digest;
#[cfg(doc)]
use crate::store::Store;

/// Documents by name in an archive.
pub type DocumentTexts = BTreeMap<String, Vec<u8>>;

/// A layer's stream as stored in the archive, and its length.
pub type Layer<'a> = (Box<dyn Read + 'a>, u64);

/// A layer of a wanted image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The digest of the uncompressed layer.
    pub diff_id: Digest,
    /// The digest of the layer as stored in the archive, if the archive names it.
    pub blob: Option<Digest>,
    /// The layer's name in the archive.
    pub member: String,
}

/// An archive to send.
pub struct Parcel {
    archive: Box<dyn Seekable>,
}

impl Parcel {
    /// Opens an archive, or an OCI image layout that is a directory.
    pub fn open(path: &Path) -> Result<Parcel, ArchiveError> {
        let mut file = File::open(path).map_err(ArchiveError::read)?;
        if file.metadata().map_err(ArchiveError::read)?.is_dir() {
            return Ok(Parcel { archive: Box::new(Directory::new(file.into())) });
        }
        let peeked = peek(&mut file).map_err(ArchiveError::read)?;
        if let Some(problem) = peeked.format.refusal() {
            return Err(ArchiveError::Foreign { problem });
        }
        let file = match peeked.format {
            Format::Tar | Format::Other | Format::Foreign(_) => {
                drop(peeked);
                file
            }
            // An archive that is compressed as a whole is not seekable.
            Format::Gzip | Format::Zstd => unnamed(&mut peeked.decompressed()).map_err(ArchiveError::read)?,
        };
        Ok(Parcel { archive: Box::new(TarFile::open(file)?) })
    }

    /// The documents that describe the images for this platform.
    pub fn documents(&mut self, platform: &Platform) -> Result<DocumentTexts, ArchiveError> {
        let mut seen = DocumentTexts::new();
        let mut read = |member: &str| {
            let found = read_document(&mut *self.archive, member)?;
            if let (Some(bytes), Some(name)) = (&found, member_path(member)) {
                seen.insert(name, bytes.clone());
            }
            Ok(found)
        };
        plan(&mut read, &of(platform))?;
        Ok(seen)
    }

    /// A layer's stream and length; `None` if the archive lacks it.
    pub fn layer(&mut self, member: &str) -> Result<Option<Layer<'_>>, ArchiveError> {
        self.archive.open(member)
    }

    /// The changed blocks from which a board rebuilds a layer, given the list of its base's blocks and the
    /// first `from` bytes, which it has. `None` if that needs more than `bytes`, or takes longer than until
    /// `end`.
    pub fn changes(
        &mut self,
        member: &str,
        blocks: &Blocks,
        from: u64,
        bytes: u64,
        end: Instant,
    ) -> Result<Option<Changes>, ArchiveError> {
        let Some((stream, _)) = self.archive.open(member)? else { return Ok(None) };
        let found = peek(stream).and_then(|layer| {
            let bounds = changes::Bounds { bytes, end };
            changes::compare(&mut layer.decompressed(), blocks, from, &bounds, temporary()?)
        });
        found.map_err(ArchiveError::read)
    }
}

/// An image for the requested platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedImage {
    /// The digest of the image's configuration.
    pub id: Digest,
    /// The image's names, or its ID if it has none.
    pub names: Vec<String>,
    /// The image's layers, lowest first.
    pub layers: Vec<Part>,
}

/// The images for this platform that these documents describe.
pub fn wanted(documents: &DocumentTexts, platform: &Platform) -> Result<Vec<WantedImage>, ArchiveError> {
    let mut read = |member: &str| Ok(member_path(member).and_then(|name| documents.get(&name).cloned()));
    let planned = plan(&mut read, &of(platform))?;
    let image = |image: Planned| WantedImage {
        id: image.id,
        names: match image.names.as_slice() {
            [] => vec![image.id.to_string()],
            names => names.iter().map(ToString::to_string).collect(),
        },
        layers: image
            .layers
            .into_iter()
            .map(|layer| Part { diff_id: layer.diff_id, blob: layer.blob, member: layer.member })
            .collect(),
    };
    Ok(planned.into_iter().map(image).collect())
}

/// Normalises a member's name. Returns `None` for a name that leads out of the archive.
pub fn member_path(name: &str) -> Option<String> {
    cleaned(name.as_bytes()).filter(|name| !name.is_empty())
}

fn of(platform: &Platform) -> Wanted {
    Wanted { platform: platform.clone(), is_explicit: false }
}

/// A file that is deleted when it is closed.
fn temporary() -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE)
        .open(std::env::temp_dir())
}

fn unnamed(stream: &mut dyn Read) -> io::Result<File> {
    let mut file = temporary()?;
    io::copy(stream, &mut file)?;
    file.rewind()?;
    Ok(file)
}
