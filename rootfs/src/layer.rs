//! Converts one layer: a tar stream, compressed or not, becomes an EROFS image that overlayfs can stack.
//!
//! Members are hostile input. A member that would leave the root, or that cannot be represented faithfully,
//! is rejected by its name. `tree` judges names, `erofs` lays out bytes.

use std::io::{self, Read};

use crate::attributes::Attributes;
use crate::compression::{Digesting, peek};
use crate::content::{ContentError, File};
use crate::erofs::{ErofsError, Finished, S_IFBLK, S_IFCHR, S_IFIFO, Writer};
use crate::members::{Kind, Member, Members};
use crate::reference::Digest;
use crate::tar_error::{TarError, is_cut_off, shown};
use crate::tree::{Bounds, Child, MARK, OtherKind, Place, ROOT, Tree};
use crate::xattr::{Namespace, Xattrs};

/// The longest target of a symbolic link, in bytes.
const TARGET_MAX: usize = 4095;

/// The limits of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerBounds {
    /// Limits of names in memory: some hundred bytes each, six hundred for a directory.
    pub(crate) names: Bounds,
    /// The most bytes of the image, including holes: more than any layer for which a board has space. A hole
    /// of this size is skipped in seconds.
    pub(crate) bytes: u64,
}

impl Default for LayerBounds {
    fn default() -> LayerBounds {
        LayerBounds {
            names: Bounds {
                entries: 256 * 1024,
                directories: 64 * 1024,
                name_bytes: 16 * 1024 * 1024,
                // Sixty-four steps for each entry.
                steps: 16 * 1024 * 1024,
            },
            bytes: 16 * 1024 * 1024 * 1024,
        }
    }
}

/// Why a layer could not be stored.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The stream is not a supported archive.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// A member is rejected.
    #[error("unpack {path}: {problem}")]
    Member {
        /// The member's name.
        path: String,
        /// The error in the member.
        problem: String,
    },
    /// The layer as a whole is rejected.
    #[error("unpack the layer: {problem}")]
    Refused {
        /// The error in the layer.
        problem: String,
    },
    /// The compressed stream could not be read completely.
    #[error("read the layer")]
    Read(#[source] io::Error),
    /// The compressed stream ends too early.
    #[error("read the layer: it is cut off; copy it, or save the image, again")]
    CutOff,
    /// The layer's file could not be written.
    #[error(transparent)]
    Write(ContentError),
}

impl LayerError {
    /// The error of reading the compressed stream.
    pub(crate) fn read(error: io::Error) -> LayerError {
        if is_cut_off(&error) { LayerError::CutOff } else { LayerError::Read(error) }
    }

    fn of(error: ErofsError, refused: impl FnOnce(String) -> LayerError) -> LayerError {
        match error {
            ErofsError::Refused(problem) => refused(problem),
            ErofsError::Read(source) => LayerError::read(source),
            ErofsError::Write(error) => LayerError::Write(error),
        }
    }
}

/// A layer that is written durably, but not yet in its final place.
#[derive(Debug)]
pub(crate) struct Converted {
    /// The digest of the uncompressed stream.
    pub(crate) diff_id: Digest,
    pub(crate) image: Finished,
}

/// Converts the layer in `stream`, and writes it to `file`.
pub(crate) fn convert(
    stream: &mut dyn Read,
    file: File,
    bounds: LayerBounds,
    warn: &mut dyn FnMut(String),
) -> Result<Converted, LayerError> {
    let plain = peek(stream).map_err(LayerError::read)?;
    if let Some(problem) = plain.format.refusal() {
        return Err(LayerError::Refused { problem });
    }
    let mut members = Members::new(Digesting::new(plain.decompressed()));
    let mut layer = Layer { tree: Tree::new(bounds.names), writer: Writer::new(file, bounds.bytes) };
    while let Some(member) = members.next()? {
        let refused = |problem: String| LayerError::Member { path: shown(&member.path), problem };
        layer.add(&member, &mut members, warn).map_err(|error| LayerError::of(error, refused))?;
    }
    let refused = |problem: String| LayerError::Refused { problem };
    layer.tree.settle().map_err(refused)?;
    // The digest also covers data after the archive's end.
    let (diff_id, _) = members.into_inner().finish().map_err(LayerError::read)?;
    let image = layer.writer.finish(&layer.tree, &diff_id).map_err(|error| LayerError::of(error, refused))?;
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
                // Check first: otherwise an hour could be spent on the zeros of a hole.
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
            // Such attributes would tell overlayfs where to look for other files.
            Some((Namespace::Trusted | Namespace::User, rest)) if rest.starts_with(b"overlay.") => {
                warn(left_out("its name is reserved for overlayfs"));
            }
            Some((Namespace::Trusted, rest)) if rest == MARK => {
                warn(left_out("its name is reserved for nodlet"));
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
