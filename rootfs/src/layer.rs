//! One layer: a tar stream, compressed or not, becomes an EROFS image that
//! overlayfs can put over others.
//!
//! Members are hostile input. What would leave the root, or cannot be kept as
//! it is meant, is refused by the member's name. Names are judged in `tree`,
//! bytes are laid out in `erofs`.

use std::fmt;
use std::io::{self, Read};

use crate::archive::is_cut_off;
use crate::compression::{Digesting, peek};
use crate::content::{ContentError, File};
use crate::erofs::{Attributes, ErofsError, Finished, Namespace, S_IFBLK, S_IFCHR, S_IFIFO, Writer, Xattrs};
use crate::members::{Kind, Member, Members, TarError, shown};
use crate::reference::Digest;
use crate::tree::{Bounds, Child, MARK, OtherKind, Place, ROOT, Tree};

/// Longest target of a symbolic link.
const TARGET_MAX: usize = 4095;

/// How large a layer may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerBounds {
    /// Names held in memory: some hundred bytes each, six hundred for a directory.
    pub(crate) names: Bounds,
    /// Bytes of the image, holes included: more than any layer that a board has room
    /// for, and a hole as large is passed over in seconds.
    pub(crate) bytes: u64,
}

impl Default for LayerBounds {
    fn default() -> LayerBounds {
        LayerBounds {
            names: Bounds {
                entries: 256 * 1024,
                directories: 64 * 1024,
                name_bytes: 16 * 1024 * 1024,
                // Sixty-four for each entry.
                steps: 16 * 1024 * 1024,
            },
            bytes: 16 * 1024 * 1024 * 1024,
        }
    }
}

/// Why a layer could not be stored.
#[derive(Debug)]
pub enum LayerError {
    /// The stream is no archive that is taken.
    Tar(TarError),
    /// A member that is refused.
    Member {
        /// Its name.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The layer as a whole is refused.
    Refused {
        /// What is wrong with it.
        problem: String,
    },
    /// The compressed stream could not be read to its end.
    Read(io::Error),
    /// The store could not be written.
    Write(ContentError),
}

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayerError::Tar(error) => error.fmt(f),
            LayerError::Member { path, problem } => write!(f, "unpack {path}: {problem}"),
            LayerError::Refused { problem } => write!(f, "unpack the layer: {problem}"),
            LayerError::Read(error) if is_cut_off(error) => {
                write!(f, "read the layer: it is cut off; copy it, or save the image, again")
            }
            LayerError::Read(_) => write!(f, "read the layer"),
            LayerError::Write(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LayerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LayerError::Tar(error) => error.source(),
            LayerError::Member { .. } | LayerError::Refused { .. } => None,
            LayerError::Read(source) => {
                Some(source).filter(|source| !is_cut_off(source)).map(|source| source as _)
            }
            LayerError::Write(error) => error.source(),
        }
    }
}

impl From<TarError> for LayerError {
    fn from(error: TarError) -> LayerError {
        LayerError::Tar(error)
    }
}

/// A layer that is written and durable, though not yet in its place.
#[derive(Debug)]
pub(crate) struct Converted {
    /// The digest of the uncompressed stream.
    pub(crate) diff_id: Digest,
    pub(crate) image: Finished,
}

/// Writes the layer that `stream` holds into `file`.
pub(crate) fn convert(
    stream: &mut dyn Read,
    file: File,
    bounds: LayerBounds,
    warn: &mut dyn FnMut(String),
) -> Result<Converted, LayerError> {
    let plain = peek(stream).map_err(LayerError::Read)?;
    if let Some(problem) = plain.format.refusal() {
        return Err(LayerError::Refused { problem });
    }
    let mut members = Members::new(Digesting::new(plain.decompressed()));
    let mut layer = Layer { tree: Tree::new(bounds.names), writer: Writer::new(file, bounds.bytes) };
    while let Some(member) = members.next()? {
        let refused = |problem: String| LayerError::Member { path: shown(&member.path), problem };
        layer.add(&member, &mut members, warn).map_err(|error| match error {
            ErofsError::Refused(problem) => refused(problem),
            ErofsError::Read(source) => LayerError::Read(source),
            ErofsError::Write(error) => LayerError::Write(error),
        })?;
    }
    layer.tree.settle().map_err(|problem| LayerError::Refused { problem })?;
    // The digest covers what follows the archive's end, too.
    let (diff_id, _) = members.into_inner().finish().map_err(LayerError::Read)?;
    let image = layer.writer.finish(&layer.tree, &diff_id).map_err(|error| match error {
        ErofsError::Refused(problem) => LayerError::Refused { problem },
        ErofsError::Read(source) => LayerError::Read(source),
        ErofsError::Write(error) => LayerError::Write(error),
    })?;
    Ok(Converted { diff_id, image })
}

struct Layer {
    tree: Tree,
    writer: Writer,
}

impl Layer {
    fn add(
        &mut self,
        member: &Member,
        content: &mut dyn Read,
        warn: &mut dyn FnMut(String),
    ) -> Result<(), ErofsError> {
        let place = self.tree.place(&member.path).map_err(ErofsError::Refused)?;
        let (parent, name) = match place {
            Place::In(parent, name) => (parent, name),
            Place::Root if member.kind == Kind::Directory => {
                let attributes = attributes(member, warn)?;
                return self.tree.set_attributes(ROOT, attributes).map_err(ErofsError::Refused);
            }
            Place::Root => return Err(ErofsError::Refused("the root can only be a directory".to_owned())),
            Place::Whiteout(parent, name) => {
                return self.tree.put_whiteout(parent, name).map_err(ErofsError::Refused);
            }
            Place::Opaque(directory) => {
                self.tree.directories[directory].opaque = true;
                return Ok(());
            }
            Place::Ignored => return Ok(()),
        };
        let result = match member.kind {
            Kind::Directory => self.tree.put_directory(parent, name, attributes(member, warn)?),
            Kind::HardLink => self.tree.link(parent, name, &member.link),
            Kind::File => {
                // Before an hour is spent on the zeros of a hole.
                self.writer.require(member.size)?;
                let nid = self.writer.file(&attributes(member, warn)?, content)?;
                self.tree.put(parent, name, Child::Other { nid, kind: OtherKind::File })
            }
            Kind::Symlink => {
                let target = &*member.link;
                if target.is_empty() || target.len() > TARGET_MAX || target.contains(&0) {
                    let problem =
                        format!("the target of a symbolic link must be 1 to {TARGET_MAX} bytes, none NUL");
                    return Err(ErofsError::Refused(problem));
                }
                let nid = self.writer.symlink(&attributes(member, warn)?, target)?;
                self.tree.put(parent, name, Child::Symlink { nid, target: target.into() })
            }
            Kind::CharacterDevice | Kind::BlockDevice | Kind::Fifo => {
                let (mode, kind) = match member.kind {
                    Kind::CharacterDevice => (S_IFCHR, OtherKind::CharacterDevice),
                    Kind::BlockDevice => (S_IFBLK, OtherKind::BlockDevice),
                    _ => (S_IFIFO, OtherKind::Fifo),
                };
                let nid = self.writer.node(mode, &attributes(member, warn)?, member.device, 1)?;
                self.tree.put(parent, name, Child::Other { nid, kind })
            }
        };
        result.map_err(ErofsError::Refused)
    }
}

fn attributes(member: &Member, warn: &mut dyn FnMut(String)) -> Result<Attributes, ErofsError> {
    let mut xattrs = Xattrs::default();
    for (name, value) in &member.xattrs {
        let left_out = |reason: &str| {
            format!("{}: extended attribute {} is left out: {reason}", shown(&member.path), shown(name))
        };
        match Namespace::split(name) {
            // They would tell the overlay where to look for other files.
            Some((Namespace::Trusted | Namespace::User, rest)) if rest.starts_with(b"overlay.") => {
                warn(left_out("it means something to overlayfs"));
            }
            Some((Namespace::Trusted, rest)) if rest == MARK => {
                warn(left_out("it means something to nodlet"));
            }
            Some((namespace, rest)) => xattrs.push(namespace, rest, value).map_err(ErofsError::Refused)?,
            None => warn(left_out("Linux keeps only user, trusted, security and POSIX ACLs")),
        }
    }
    let mode = (member.mode & 0o7777) as u16;
    Ok(Attributes { mode, uid: member.uid, gid: member.gid, mtime: member.mtime, xattrs })
}

#[cfg(test)]
mod tests;
