//! Why a stream is not an acceptable tar archive, and how messages show it.

use std::fmt;
use std::io;

/// Why the stream is not an acceptable tar archive.
#[derive(Debug)]
pub enum TarError {
    /// The stream could not be read further.
    Read {
        /// The offset in the uncompressed archive.
        offset: u64,
        /// The error of reading.
        source: io::Error,
    },
    /// A header is inconsistent.
    Header {
        /// The offset in the uncompressed archive.
        offset: u64,
        /// The field at fault, and the expected value.
        problem: String,
    },
    /// A well-formed member is rejected.
    Member {
        /// The member's name.
        path: String,
        /// The error in the member.
        problem: String,
    },
    /// The sparse map at the start of a member's data could not be read.
    SparseMap {
        /// The member's name.
        path: String,
        /// The error of reading.
        source: io::Error,
    },
}

impl fmt::Display for TarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TarError::Read { offset: 0, source } if is_cut_off(source) => {
                write!(
                    f,
                    "read the archive: it has fewer bytes than the first header of a tar archive; make one with \
                     podman save, docker save, buildah push or skopeo copy"
                )
            }
            TarError::Read { offset, source } if is_cut_off(source) => {
                write!(
                    f,
                    "read the archive at byte {offset}: it is cut off; copy it, or save the image, again"
                )
            }
            TarError::Read { offset, .. } => write!(f, "read the tar archive at byte {offset}"),
            TarError::Header { offset, problem } => {
                write!(f, "read the tar header at byte {offset}: {problem}")
            }
            TarError::Member { path, problem } => write!(f, "read tar member {path}: {problem}"),
            TarError::SparseMap { path, .. } => write!(f, "read tar member {path}: sparse map"),
        }
    }
}

impl std::error::Error for TarError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TarError::Read { source, .. } if is_cut_off(source) => None,
            TarError::Read { source, .. } | TarError::SparseMap { source, .. } => Some(source),
            TarError::Header { .. } | TarError::Member { .. } => None,
        }
    }
}

/// Whether the stream ended prematurely.
pub(crate) fn is_cut_off(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof
}

/// Formats the bytes of a name for people.
pub(crate) fn shown(name: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(name).chars().take(256).collect();
    text.escape_debug().to_string()
}
