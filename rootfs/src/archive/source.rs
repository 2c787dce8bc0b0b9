//! The sources of an archive's members: a directory, a seekable tar file, or a stream that can be read only
//! once.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;

use super::{ArchiveError, DOCUMENT_MAX, check_document_bytes, invalid};
use crate::members::{Kind, Member, Members};
use crate::tar_error::shown;
use nodlet_kernel::file::open_in_root;

/// The most members of one archive.
const MEMBERS_MAX: usize = 8 * 1024;
/// The longest name of a member that is used, in bytes.
const NAME_MAX: usize = 1024;
/// The most links that are followed from one member to the next.
const LINKS_MAX: usize = 8;

/// A member's stream and its length.
pub(crate) type Opened<'a> = (Box<dyn Read + 'a>, u64);

/// An archive whose members can be read in any order.
pub(crate) trait Seekable {
    /// Opens a member; `None` if it does not exist.
    fn open(&mut self, member: &str) -> Result<Option<Opened<'_>>, ArchiveError>;
}

/// An OCI image layout in a directory. No link in it leads out of it.
pub(crate) struct Directory {
    directory: OwnedFd,
}

impl Directory {
    pub(crate) fn new(directory: OwnedFd) -> Directory {
        Directory { directory }
    }
}

impl Seekable for Directory {
    fn open(&mut self, member: &str) -> Result<Option<Opened<'_>>, ArchiveError> {
        let Some(member) = cleaned(member.as_bytes()) else { return Ok(None) };
        let Ok(member) = CString::new(member) else { return Ok(None) };
        let file = match open_in_root(self.directory.as_fd(), &member) {
            Ok(file) => File::from(file),
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            Err(errno) => return Err(ArchiveError::read(errno.into())),
        };
        let metadata = file.metadata().map_err(ArchiveError::read)?;
        Ok(metadata.is_file().then(|| (Box::new(file) as Box<dyn Read>, metadata.len())))
    }
}

/// A tar file on disk.
pub(crate) struct TarFile {
    file: File,
    members: HashMap<String, Location>,
}

#[derive(Clone, Debug)]
enum Location {
    File { offset: u64, size: u64 },
    Link(String),
}

impl TarFile {
    /// Reads the headers of all members, and seeks over their data.
    pub(crate) fn open(mut file: File) -> Result<TarFile, ArchiveError> {
        file.rewind().map_err(ArchiveError::read)?;
        let length = file.metadata().map_err(ArchiveError::read)?.len();
        let mut members = HashMap::new();
        let mut walk = Members::with_skip(&file, |file, bytes| {
            let bytes = i64::try_from(bytes).map_err(|_| io::ErrorKind::UnexpectedEof)?;
            file.seek(SeekFrom::Current(bytes)).map(|_| ())
        });
        while let Some(member) = walk.next().map_err(ArchiveError::Tar)? {
            let Some(name) = cleaned(&member.path) else { continue };
            let location = match member.kind {
                Kind::File if member.offset.checked_add(member.size).is_none_or(|end| end > length) => {
                    return Err(ArchiveError::CutOff);
                }
                Kind::File => Location::File { offset: member.offset, size: member.size },
                _ => match link_target(&name, &member) {
                    Some(target) => Location::Link(target),
                    None => continue,
                },
            };
            members.insert(name, location);
            bounded(members.len())?;
        }
        finished(walk)?;
        Ok(TarFile { file, members })
    }
}

impl Seekable for TarFile {
    fn open(&mut self, member: &str) -> Result<Option<Opened<'_>>, ArchiveError> {
        let follow = |name: &str| match self.members.get(name)? {
            Location::Link(target) => Some(target.clone()),
            Location::File { .. } => None,
        };
        let Some(name) = cleaned(member.as_bytes()).and_then(|name| followed(name, follow)) else {
            return Ok(None);
        };
        match self.members.get(&name) {
            Some(Location::File { offset, size }) => {
                self.file.seek(SeekFrom::Start(*offset)).map_err(ArchiveError::read)?;
                Ok(Some((Box::new((&self.file).take(*size)), *size)))
            }
            Some(Location::Link(_)) | None => Ok(None),
        }
    }
}

/// Reads a small document of an archive.
pub(crate) fn read_document(
    source: &mut dyn Seekable,
    member: &str,
) -> Result<Option<Vec<u8>>, ArchiveError> {
    let Some((mut stream, size)) = source.open(member)? else { return Ok(None) };
    if size > DOCUMENT_MAX {
        return Err(invalid(member, format!("{size} bytes: at most {DOCUMENT_MAX} are accepted")));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    stream.read_to_end(&mut bytes).map_err(ArchiveError::read)?;
    Ok(Some(bytes))
}

/// The members of a stream that are kept after it has been read: documents and links.
#[derive(Default)]
pub(crate) struct StreamedMembers {
    documents: BTreeMap<String, Vec<u8>>,
    bytes: u64,
    links: HashMap<String, String>,
}

impl StreamedMembers {
    pub(crate) fn keep_document(&mut self, name: String, bytes: Vec<u8>) -> Result<(), ArchiveError> {
        self.bytes += bytes.len() as u64;
        check_document_bytes(&name, self.bytes)?;
        self.documents.insert(name, bytes);
        bounded(self.documents.len())
    }

    pub(crate) fn keep_link(&mut self, name: String, member: &Member) -> Result<(), ArchiveError> {
        if let Some(target) = link_target(&name, member) {
            self.links.insert(name, target);
        }
        bounded(self.links.len())
    }

    /// The member to which a name leads, through links.
    pub(crate) fn resolve(&self, member: &str) -> Option<String> {
        followed(cleaned(member.as_bytes())?, |name| self.links.get(name).cloned())
    }

    /// A document.
    pub(crate) fn document(&self, member: &str) -> Option<Vec<u8>> {
        self.documents.get(&self.resolve(member)?).cloned()
    }
}

/// Ends the walk through an archive, which must have had members.
pub(crate) fn finished<R: Read>(walk: Members<R>) -> Result<(), ArchiveError> {
    if walk.ended_at_once() {
        return Err(ArchiveError::Foreign {
            problem: "it is empty; copy it, or save the image, again".to_owned(),
        });
    }
    walk.finish().map_err(ArchiveError::Tar)
}

/// Rejects an archive with too many members: their names are kept in memory.
pub(crate) fn bounded(members: usize) -> Result<(), ArchiveError> {
    match members {
        ..=MEMBERS_MAX => Ok(()),
        _ => Err(invalid("the list of members", format!("more than {MEMBERS_MAX}"))),
    }
}

/// Normalises a member's name; `None` for a name outside of the archive.
pub(crate) fn cleaned(name: &[u8]) -> Option<String> {
    let mut components: Vec<&str> = Vec::new();
    let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= NAME_MAX)?;
    for component in name.split('/') {
        match component {
            "" | "." => {}
            ".." => {
                components.pop()?;
            }
            component => components.push(component),
        }
    }
    Some(components.join("/"))
}

/// The target of a link member: old versions of `docker save` share layers by links.
fn link_target(name: &str, member: &Member) -> Option<String> {
    let link = std::str::from_utf8(&member.link).ok()?;
    match member.kind {
        Kind::HardLink => cleaned(link.as_bytes()),
        Kind::Symlink => {
            let directory = name.rsplit_once('/').map_or("", |(directory, _)| directory);
            cleaned(format!("{directory}/{link}").as_bytes())
        }
        Kind::File | Kind::Directory | Kind::CharacterDevice | Kind::BlockDevice | Kind::Fifo => None,
    }
}

fn followed(mut name: String, follow: impl Fn(&str) -> Option<String>) -> Option<String> {
    for _ in 0..LINKS_MAX {
        match follow(&name) {
            Some(target) => name = target,
            None => return Some(name),
        }
    }
    None
}

/// The member's name, escaped for messages.
pub(crate) fn label(member: &Member) -> String {
    shown(&member.path)
}
