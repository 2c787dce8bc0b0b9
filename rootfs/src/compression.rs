//! Decompresses plain, gzip and zstd streams, which are distinguished by their first bytes. Memory is bounded
//! for any input.
//!
//! Data after a gzip stream must be another gzip stream, as for Go's reader, which other runtimes use: an
//! archive with trailing garbage is rejected there too.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use sha2::{Digest as _, Sha256};

use crate::reference::Digest;

/// The largest zstd window, in bytes. A zstd stream declares how far back it refers, and the decoder needs that
/// much memory. All levels that need no flag stay within this, and every decoder must support it.
const ZSTD_WINDOW_MAX: u64 = 8 * 1024 * 1024;
/// The limit of a stream's expansion: bytes that any stream may expand to, and beyond that a multiple of its
/// own length. Layers of programs compress to a half or a tenth; the gigabyte is for layers with sparse files
/// written as zeros. More is a bomb: zeros cost the sender a thousandth in gzip and next to nothing in zstd,
/// but cost the board time.
pub(crate) const EXPANSION: (u64, u64) = (1024 * 1024 * 1024, 100);
/// Bytes that are read ahead of a decompressor.
const BUFFER: usize = 64 * 1024;
/// Bytes that suffice to recognise a tar archive.
const PEEK: usize = 512;

/// The format of a stream, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Gzip,
    Zstd,
    Tar,
    /// An unsupported compression, by its name.
    Foreign(&'static str),
    Other,
}

impl Format {
    /// Why a stream of this format is rejected, and what to do instead; `None` if it is accepted.
    pub(crate) fn refusal(self) -> Option<String> {
        match self {
            Format::Foreign(name) => Some(format!(
                "{name} compression is not supported: decompress it with `{name} -d` first, or compress \
                 it with gzip or zstd"
            )),
            Format::Gzip | Format::Zstd | Format::Tar | Format::Other => None,
        }
    }
}

/// A stream whose first bytes have been inspected.
pub(crate) struct Peeked<R> {
    pub(crate) format: Format,
    stream: BufReader<Counted<io::Chain<Cursor<Vec<u8>>, R>>>,
    taken: Rc<Cell<u64>>,
}

/// Inspects the first bytes of a stream.
pub(crate) fn peek<R: Read>(mut stream: R) -> io::Result<Peeked<R>> {
    let mut beginning = Vec::with_capacity(PEEK);
    stream.by_ref().take(PEEK as u64).read_to_end(&mut beginning)?;
    let format = match beginning.as_slice() {
        [0x1f, 0x8b, ..] => Format::Gzip,
        // A frame, or a skippable frame before one.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Format::Zstd,
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Format::Foreign("xz"),
        [b'B', b'Z', b'h', b'1'..=b'9', b'1', b'A', b'Y', b'&', b'S', b'Y', ..] => Format::Foreign("bzip2"),
        block if crate::members::begins_tar(block) => Format::Tar,
        _ => Format::Other,
    };
    let taken = Rc::new(Cell::new(0));
    let stream = Counted { stream: Cursor::new(beginning).chain(stream), bytes: Rc::clone(&taken) };
    Ok(Peeked { format, stream: BufReader::with_capacity(BUFFER, stream), taken })
}

impl<'a, R: Read + 'a> Peeked<R> {
    /// The decompressed stream.
    pub(crate) fn decompressed(self) -> Box<dyn Read + 'a> {
        let taken = self.taken;
        match self.format {
            Format::Gzip => Box::new(Bounded { stream: MultiGzDecoder::new(self.stream), taken, given: 0 }),
            Format::Zstd => Box::new(Bounded { stream: Zstd::new(self.stream), taken, given: 0 }),
            Format::Tar | Format::Foreign(_) | Format::Other => Box::new(self.stream),
        }
    }
}

/// A stream that counts the bytes read, in a shared counter.
struct Counted<R> {
    stream: R,
    bytes: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.bytes.set(self.bytes.get() + read as u64);
        Ok(read)
    }
}

/// A decompressed stream that fails if it turns out to be a bomb.
struct Bounded<R> {
    stream: R,
    taken: Rc<Cell<u64>>,
    given: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.given += read as u64;
        let (base, factor) = EXPANSION;
        if self.given > self.taken.get().saturating_mul(factor).saturating_add(base) {
            let problem = format!(
                "{} bytes have become {}: more than {factor} times as much and {} MiB",
                self.taken.get(),
                self.given,
                base / (1024 * 1024)
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        Ok(read)
    }
}

/// Reads the raw stream, including the inspected bytes.
impl<R: Read> Read for Peeked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer)
    }
}

/// A stream of zstd frames, without skippable ones.
struct Zstd<R> {
    stream: R,
    decoder: FrameDecoder,
    /// Whether a frame has begun and not ended.
    within: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(stream: R) -> Zstd<R> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(ZSTD_WINDOW_MAX);
        Zstd { stream, decoder, within: false }
    }

    /// Begins the next frame. Returns `false` at the end of the stream.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.stream.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.stream) {
                Ok(()) => {
                    self.within = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    let skipped = io::copy(&mut self.stream.by_ref().take(length), &mut io::sink())?;
                    if skipped < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.within && !self.begin()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.stream, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            }
            match self.decoder.read(buffer)? {
                0 if !buffer.is_empty() && self.decoder.is_finished() => self.within = false,
                n => return Ok(n),
            }
        }
    }
}

/// A stream that counts and hashes its bytes as they are read.
pub(crate) struct Digesting<R> {
    stream: R,
    state: Sha256,
    bytes: u64,
}

impl<R: Read> Digesting<R> {
    pub(crate) fn new(stream: R) -> Digesting<R> {
        Digesting { stream, state: Sha256::new(), bytes: 0 }
    }

    /// Reads to the end. Returns the digest and the length of the whole stream.
    pub(crate) fn finish(mut self) -> io::Result<(Digest, u64)> {
        let mut buffer = vec![0; BUFFER];
        while self.read(&mut buffer)? > 0 {}
        Ok((Digest::from_bytes(self.state.finalize().into()), self.bytes))
    }
}

impl<R: Read> Read for Digesting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        self.state.update(&buffer[..read]);
        self.bytes += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn unpacked(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut unpacked = Vec::new();
        peek(bytes)?.decompressed().read_to_end(&mut unpacked)?;
        Ok(unpacked)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("in memory");
        encoder.finish().expect("in memory")
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn streams_of_several_members_and_frames_are_read_to_their_end() {
        assert_eq!(unpacked(&[gzip(b"one "), gzip(b"two")].concat()).expect("gzip"), b"one two");
        let skippable = [&0x184d_2a5e_u32.to_le_bytes()[..], &5u32.to_le_bytes(), b"table"].concat();
        let frames =
            [skippable.clone(), zstd(b"one "), zstd(b""), skippable.clone(), zstd(b"two"), skippable];
        assert_eq!(unpacked(&frames.concat()).expect("zstd"), b"one two");
        assert_eq!(unpacked(b"plain").expect("plain"), b"plain");
        assert_eq!(unpacked(b"").expect("empty"), b"");
    }

    #[test]
    fn truncated_streams_and_rubbish_after_them_are_refused() {
        let whole = gzip(&[7; 5000]);
        for end in [whole.len() - 1, whole.len() / 2, 5] {
            assert!(unpacked(&whole[..end]).is_err(), "gzip cut to {end} bytes");
        }
        assert!(unpacked(&[&whole[..], b"rubbish"].concat()).is_err());
        assert!(unpacked(&[&whole[..], &[0; 512]].concat()).is_err());
        let whole = zstd(&[7; 5000]);
        for end in [whole.len() - 1, 6] {
            assert!(unpacked(&whole[..end]).is_err(), "zstd cut to {end} bytes");
        }
        assert!(unpacked(&[&whole[..], b"rubbish"].concat()).is_err());
    }

    /// The bomb has a gibibyte of zeros: a frame of blocks that repeat one byte 128 KiB times.
    #[test]
    fn a_decompression_bomb_is_rejected() {
        let block = |last: u32| (last | 1 << 1 | (128 * 1024) << 3).to_le_bytes();
        let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 7 << 3];
        for _ in 0..9000 {
            bomb.extend_from_slice(&block(0)[..3]);
            bomb.push(0);
        }
        bomb.extend_from_slice(&block(1)[..3]);
        bomb.push(0);
        let mut stream = peek(&bomb[..]).expect("zstd").decompressed();
        let error = io::copy(&mut stream, &mut io::sink()).expect_err("a bomb").to_string();
        assert!(error.ends_with("more than 100 times as much and 1024 MiB"), "{error}");
    }

    #[test]
    fn a_zstd_frame_whose_window_needs_too_much_memory_is_rejected() {
        // A header with a window of 128 MiB, as `zstd --long=27` writes.
        let error = unpacked(&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 17 << 3, 1, 0, 0]).expect_err("too large");
        assert!(error.to_string().contains("window"), "{error}");
    }
}
