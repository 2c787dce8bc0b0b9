//! Sparse files in tar: the old GNU map in headers, and the three PAX forms
//! (0.0 and 0.1 in records, 1.0 at the start of the data).

use std::io::{self, Read};

use tar::GnuSparseHeader;

use crate::tar_error::{TarError, shown};

/// The most holes and pieces of one sparse file.
pub(super) const SEGMENTS_MAX: usize = 16 * 1024;

/// A segment of a file: data that is stored in the archive, or zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Data(u64),
    Hole(u64),
}

/// The reason why a sparse map cannot be read.
pub(super) enum MapError {
    Refused(String),
    Read(io::Error),
}

impl MapError {
    /// The error of the member `path`.
    pub(super) fn of(self, path: &[u8]) -> TarError {
        let path = shown(path);
        match self {
            MapError::Refused(problem) => TarError::Member { path, problem },
            MapError::Read(source) => TarError::SparseMap { path, source },
        }
    }
}

/// The positions of the stored pieces of a sparse file.
#[derive(Debug, Default)]
pub(super) struct Map {
    pub(super) real_size: u64,
    /// The file's name: in the PAX forms, the member's own name is made up.
    pub(super) name: Option<Vec<u8>>,
    /// Whether the map precedes the data (form 1.0).
    pub(super) map_in_data: bool,
    /// The offset and length of each piece.
    pieces: Vec<(u64, u64)>,
    /// The offset of form 0.0, which has offset and length in two records.
    offset: Option<u64>,
}

impl Map {
    pub(super) fn of(real_size: u64) -> Map {
        Map { real_size, ..Map::default() }
    }

    pub(super) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    pub(super) fn push_gnu(&mut self, piece: &GnuSparseHeader) -> io::Result<()> {
        self.pieces.push((piece.offset()?, piece.length()?));
        Ok(())
    }

    /// Processes a record `GNU.sparse.<name>`.
    pub(super) fn pax_record(&mut self, name: &[u8], value: &[u8]) -> Result<(), String> {
        let number = |value: &[u8]| {
            decimal(value)
                .ok_or_else(|| format!("PAX record GNU.sparse.{}: must be a decimal number", shown(name)))
        };
        match name {
            b"major" => match number(value)? {
                0 => {}
                1 => self.map_in_data = true,
                version => return Err(format!("sparse files of version {version} are not supported")),
            },
            b"name" => self.name = Some(value.to_vec()),
            b"realsize" | b"size" => self.real_size = number(value)?,
            b"offset" => self.offset = Some(number(value)?),
            b"numbytes" => {
                let offset = self.offset.take().ok_or("PAX record GNU.sparse.numbytes without an offset")?;
                self.pieces.push((offset, number(value)?));
            }
            b"map" => {
                let numbers: Vec<u64> = match value {
                    b"" => Vec::new(),
                    value => value.split(|b| *b == b',').map(number).collect::<Result<_, _>>()?,
                };
                if !numbers.len().is_multiple_of(2) {
                    return Err("PAX record GNU.sparse.map: must be pairs of offset and length".to_owned());
                }
                self.pieces = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            }
            _ => {}
        }
        if self.pieces.len() > SEGMENTS_MAX {
            Err(format!("a sparse file of more than {SEGMENTS_MAX} pieces"))
        } else {
            Ok(())
        }
    }

    /// Reads the map of form 1.0: decimal lines, padded to a block.
    pub(super) fn read_map(
        &mut self,
        reader: &mut impl Read,
        position: &mut u64,
        stored: u64,
    ) -> Result<(), MapError> {
        let start = *position;
        let mut block = [0; 512];
        let mut used = block.len();
        let refused = |problem: String| MapError::Refused(format!("sparse map: {problem}"));
        let mut line = |what: &str| -> Result<u64, MapError> {
            let mut digits = Vec::new();
            loop {
                if used == block.len() {
                    if *position - start + 512 > stored {
                        return Err(refused("longer than the member".to_owned()));
                    }
                    reader.read_exact(&mut block).map_err(MapError::Read)?;
                    *position += 512;
                    used = 0;
                }
                let byte = block[used];
                used += 1;
                match byte {
                    b'\n' => break,
                    _ if digits.len() < 20 => digits.push(byte),
                    _ => return Err(refused(format!("{what} has too many digits"))),
                }
            }
            decimal(&digits).ok_or_else(|| refused(format!("{what} must be a decimal number")))
        };
        let count = line("the number of pieces")?;
        if count > SEGMENTS_MAX as u64 {
            return Err(MapError::Refused(format!(
                "a sparse file of {count} pieces: at most {SEGMENTS_MAX} are accepted"
            )));
        }
        for _ in 0..count {
            let piece = (line("an offset")?, line("a length")?);
            self.pieces.push(piece);
        }
        Ok(())
    }

    /// The segments of the file from its first byte to its last, for `stored` bytes of data.
    pub(super) fn segments(&self, stored: u64) -> Result<Vec<Segment>, String> {
        let mut segments = Vec::with_capacity(self.pieces.len() * 2 + 1);
        let (mut at, mut taken) = (0u64, 0u64);
        for (offset, length) in self.pieces.iter().copied() {
            if offset < at {
                return Err("sparse map: pieces overlap or are out of order".to_owned());
            }
            segments.push(Segment::Hole(offset - at));
            segments.push(Segment::Data(length));
            at = offset.checked_add(length).ok_or("sparse map: larger than any file")?;
            taken = taken.checked_add(length).ok_or("sparse map: larger than any file")?;
        }
        if at > self.real_size || taken != stored {
            return Err(format!(
                "sparse map: {taken} bytes up to byte {at} in a file of {} with {stored} stored",
                self.real_size
            ));
        }
        segments.push(Segment::Hole(self.real_size - at));
        Ok(segments)
    }
}

fn decimal(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}
