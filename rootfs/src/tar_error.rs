//! Why a stream is not an acceptable tar archive, and how messages show it.

use std::io;

/// Why the stream is not an acceptable tar archive.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The stream could not be read further.
    #[error("read the tar archive at byte {offset}")]
    Read {
        /// The offset in the uncompressed archive.
        offset: u64,
        /// The error of reading.
        source: io::Error,
    },
    /// The stream ends before the first header is complete.
    #[error(
        "read the archive: it has fewer bytes than the first header of a tar archive; make one with podman save, \
         docker save, buildah push or skopeo copy"
    )]
    TooShort,
    /// The stream ends too early.
    #[error("read the archive at byte {offset}: it is cut off; copy it, or save the image, again")]
    CutOff {
        /// The offset in the uncompressed archive.
        offset: u64,
    },
    /// A header is inconsistent.
    #[error("read the tar header at byte {offset}: {problem}")]
    Header {
        /// The offset in the uncompressed archive.
        offset: u64,
        /// The field at fault, and the expected value.
        problem: String,
    },
    /// A well-formed member is rejected.
    #[error("read tar member {path}: {problem}")]
    Member {
        /// The member's name.
        path: String,
        /// The error in the member.
        problem: String,
    },
    /// The sparse map at the start of a member's data could not be read.
    #[error("read tar member {path}: sparse map")]
    SparseMap {
        /// The member's name.
        path: String,
        /// The error of reading.
        source: io::Error,
    },
}

impl TarError {
    /// The error of reading the stream at `offset`.
    pub(crate) fn read(offset: u64, source: io::Error) -> TarError {
        match offset {
            _ if !is_cut_off(&source) => TarError::Read { offset, source },
            0 => TarError::TooShort,
            _ => TarError::CutOff { offset },
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
