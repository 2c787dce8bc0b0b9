//! Receives an update, which is a signature and a program, and rejects what this board must not run.
//!
//! The program is processed in pieces, because a board may lack memory for all of it. Errors in its first
//! bytes are reported at once, and nothing is installed before the last byte was verified.

use std::io::{self, Read, Write};

use minisign_verify::{Error as SignatureError, PublicKey, Signature, StreamVerifier};

use super::update_files::Written;
use crate::board_json::Rules;

/// The version of this program.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The largest program that is accepted, in bytes: boards have little space, and nodlet has a third of that
/// size.
pub(super) const MOST_BYTES: u64 = 16 * 1024 * 1024;

/// The largest signature file, in bytes.
pub(crate) const SIGNATURE_BYTES: usize = 4 * 1024;

/// The beginning of every signature file.
pub(crate) const COMMENT: &[u8] = b"untrusted comment:";

/// The mark that every nodlet contains: this text, followed by the version and a newline. It must occur only
/// once in the program, so code that searches for it reads it from here.
#[used]
static MARK: [u8; MARK_BYTES] = mark();

const MARK_BEGIN: &[u8] = b"\nthis program is nodlet v";
const MARK_BYTES: usize = MARK_BEGIN.len() + VERSION.len() + 1;

/// The longest version that is read, in bytes.
const VERSION_BYTES: usize = 64;

const fn mark() -> [u8; MARK_BYTES] {
    let mut mark = [b'\n'; MARK_BYTES];
    let mut at = 0;
    while at < MARK_BEGIN.len() {
        mark[at] = MARK_BEGIN[at];
        at += 1;
    }
    while at < MARK_BYTES - 1 {
        mark[at] = VERSION.as_bytes()[at - MARK_BEGIN.len()];
        at += 1;
    }
    mark
}

/// The beginning of the mark, before the version.
fn mark_begin() -> &'static [u8] {
    // Not from the constant, which would put the text into the program a second time.
    &std::hint::black_box(&MARK)[..MARK_BEGIN.len()]
}

/// The size of an ELF header in bytes.
const HEADER_BYTES: usize = 64;

/// A program that was received and verified.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) version: String,
    pub(super) digest: String,
}

/// The reason why this board does not accept a program.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    /// The program or its signature is not acceptable.
    #[error("{0}")]
    Rejected(String),
    #[error("{0}")]
    Signature(SignatureError),
    #[error("it cannot be read")]
    Read(#[source] io::Error),
    #[error("it cannot be written")]
    Write(#[source] io::Error),
}

impl From<String> for ReceiveError {
    fn from(why: String) -> Self {
        ReceiveError::Rejected(why)
    }
}

impl From<&str> for ReceiveError {
    fn from(why: &str) -> Self {
        ReceiveError::Rejected(why.to_owned())
    }
}

/// Reads the signature that may precede a program in the same stream.
///
/// # Errors
/// The signature does not end within [`SIGNATURE_BYTES`], or reading the stream fails.
pub(super) fn leading_signature(stream: &mut impl io::BufRead) -> io::Result<Option<String>> {
    if !stream.fill_buf()?.starts_with(COMMENT) {
        return Ok(None);
    }
    let mut text = Vec::new();
    let mut limited = stream.take(SIGNATURE_BYTES as u64);
    for _ in 0..4 {
        io::BufRead::read_until(&mut limited, b'\n', &mut text)?;
    }
    if !text.ends_with(b"\n") {
        return Err(io::Error::other("the signature before the program does not end after four lines"));
    }
    String::from_utf8(text).map(Some).map_err(io::Error::other)
}

/// A signature, and the profile's key that it was made with.
pub(super) struct Signed {
    signature: Signature,
    key: PublicKey,
}

/// Checks whether the signature may be used. Returns `None` if there is none and the profile accepts that.
///
/// # Errors
/// Why the signature, or its absence, is not accepted.
pub(super) fn signed(rules: &Rules, text: Option<&str>) -> Result<Option<Signed>, String> {
    let Some(text) = text else {
        if rules.allow_unsigned {
            return Ok(None);
        }
        return Err(if rules.keys.is_empty() {
            "this board accepts no updates: its profile has neither update.keys nor \
                     update.allow-unsigned"
                .into()
        } else {
            "it is not signed: sign it with `minisign -Sm FILE`, which writes FILE.minisig, with \
                      a key that the board's profile names in update.keys"
                .into()
        });
    };
    let signature =
        Signature::decode(text).map_err(|_| "the signature is not a minisign signature".to_owned())?;
    for key in &rules.keys {
        let key = PublicKey::from_base64(key).map_err(|_| {
            format!("the board's profile has {key:?} in update.keys, which is not a valid key")
        })?;
        match key.verify_stream(&signature).map(drop) {
            Ok(()) => return Ok(Some(Signed { signature, key })),
            Err(SignatureError::UnsupportedLegacyMode) => {
                return Err("the signature is of minisign's legacy kind: make it with minisign 0.10 or \
                            newer, without -l"
                    .into());
            }
            Err(_) => {}
        }
    }
    Err("it is signed with a key that the board's profile does not name in update.keys".into())
}

/// The bytes of a program that are read at once.
const PIECE: usize = 64 * 1024;

/// Copies a program of at most `most` bytes from `stream` to `file`. `own` has the first bytes of this
/// program.
///
/// # Errors
/// Why this board cannot run the program.
pub(super) fn program(
    stream: &mut impl Read,
    signed: Option<&Signed>,
    own: &[u8],
    file: &mut dyn Write,
    most: u64,
) -> Result<Received, ReceiveError> {
    let mut written = Written::new(file);
    let mut verifier: Option<StreamVerifier<'_>> = match signed {
        Some(Signed { signature, key }) => {
            Some(key.verify_stream(signature).map_err(ReceiveError::Signature)?)
        }
        None => None,
    };
    let mut scan = Scan::default();
    let mut length = 0_u64;
    let mut end_of_headers = None;
    let mut piece = Vec::with_capacity(PIECE);
    loop {
        piece.clear();
        let read = stream.by_ref().take(PIECE as u64).read_to_end(&mut piece).map_err(ReceiveError::Read)?;
        if length == 0 {
            check_header(&piece, own)?;
            end_of_headers = Some(end_by_headers(&piece).ok_or("it is cut off")?);
        }
        length += read as u64;
        if length > most {
            return Err(format!("it is too large: more than {most} bytes").into());
        }
        scan.search(&piece);
        if let Some(verifier) = &mut verifier {
            verifier.update(&piece);
        }
        written.write_all(&piece).map_err(ReceiveError::Write)?;
        if read < PIECE {
            break;
        }
    }
    if end_of_headers.is_none_or(|end| length < end) {
        return Err(
            format!("the file is incomplete: it has {length} bytes, fewer than its headers require").into()
        );
    }
    if let Some(mut verifier) = verifier {
        verifier.finalize().map_err(|_| "the signature is of other content")?;
    }
    let version = scan.version().ok_or("it is not a nodlet program, or one without support for updates")?;
    Ok(Received { version, digest: written.digest() })
}

/// Compares the processor architecture in a program's header with this program's own.
fn check_header(bytes: &[u8], own: &[u8]) -> Result<(), String> {
    if bytes.is_empty() {
        return Err("it is empty".into());
    }
    if !bytes.starts_with(b"\x7fELF") {
        return Err("it is not a program: it has no ELF header".into());
    }
    let (Some(header), Some(own)) = (bytes.get(..HEADER_BYTES), own.get(..HEADER_BYTES)) else {
        return Err("it is cut off".into());
    };
    let machine = |header: &[u8]| u16::from_le_bytes([header[18], header[19]]);
    // Word size and byte order, then the processor.
    if header[4..6] != own[4..6] || machine(header) != machine(own) {
        let name = |header: &[u8]| match machine(header) {
            40 => "armv7".to_owned(),
            62 => "x86-64".to_owned(),
            183 => "aarch64".to_owned(),
            243 => "riscv64".to_owned(),
            other => format!("ELF machine {other}"),
        };
        return Err(format!("it is for {}, and this board is {}", name(header), name(own)));
    }
    Ok(())
}

/// The end of a program by its headers: that of its segments, or of its table of sections, which a linker may leave out.
/// `None` if the first bytes do not contain the headers.
fn end_by_headers(start: &[u8]) -> Option<u64> {
    let number = |at: usize, bytes: usize| {
        let field = start.get(at..at.checked_add(bytes)?)?;
        Some(field.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    // The bytes of an offset, and the places of both tables, of their entries' sizes and numbers, and of a segment's offset
    // and size: of 32 bits and of 64.
    let (word, tables, sizes, [offset, size]) = match start.get(4)? {
        1 => (4, 28, 42, [4_usize, 16]),
        _ => (8, 32, 54, [8, 32]),
    };
    let (segments, sections) = (number(tables, word)?, number(tables + word, word)?);
    let mut end = sections.checked_add(number(sizes + 4, 2)? * number(sizes + 6, 2)?)?;
    for index in 0..number(sizes + 2, 2)? {
        let at = usize::try_from(segments.checked_add(index * number(sizes, 2)?)?).ok()?;
        let (offset, size) = (at.checked_add(offset)?, at.checked_add(size)?);
        end = end.max(number(offset, word)?.checked_add(number(size, word)?)?);
    }
    Some(end)
}

/// Searches a program, piece by piece, for its version.
#[derive(Default)]
struct Scan {
    /// The end of the previous piece, or the bytes after the mark once it was found.
    rest: Vec<u8>,
    has_mark: bool,
}

impl Scan {
    fn search(&mut self, piece: &[u8]) {
        if self.has_mark {
            let room = VERSION_BYTES.saturating_sub(self.rest.len()).min(piece.len());
            self.rest.extend_from_slice(&piece[..room]);
            return;
        }
        let mark = mark_begin();
        self.rest.extend_from_slice(piece);
        if let Some(at) = find(&self.rest, mark) {
            self.has_mark = true;
            self.rest.drain(..at + mark.len());
            self.rest.truncate(VERSION_BYTES);
        } else {
            let kept = self.rest.len().min(mark.len() - 1);
            self.rest.drain(..self.rest.len() - kept);
        }
    }

    /// The version after the mark.
    fn version(&self) -> Option<String> {
        let end = self.rest.iter().position(|&byte| byte == b'\n').filter(|_| self.has_mark)?;
        let version = std::str::from_utf8(&self.rest[..end]).ok()?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+');
        (!version.is_empty() && version.chars().all(is_plain)).then(|| version.to_owned())
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    // Most positions already differ in the first byte.
    text.windows(wanted.len()).position(|place| place[0] == wanted[0] && place == wanted)
}

/// Whether one version is older than another, in the order of Semantic Versioning: a pre-release is older
/// than its release.
pub(super) fn is_older(version: &str, than: &str) -> bool {
    let parts = |version: &str| {
        let plain = version.split('+').next().unwrap_or_default();
        let (numbers, pre) = plain.split_once('-').unwrap_or((plain, ""));
        let numbers: Vec<u64> = numbers.split('.').map(|number| number.parse().unwrap_or(0)).collect();
        // A numeric identifier is less than an alphanumeric one.
        let pre = pre
            .split('.')
            .map(|part| (part.parse().map_or((1, 0), |number: u64| (0, number)), part.to_owned()));
        let pre: Vec<((u8, u64), String)> = if plain.contains('-') { pre.collect() } else { Vec::new() };
        (numbers, pre.is_empty(), pre)
    };
    parts(version) < parts(than)
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Cursor, Seek, SeekFrom};

    use super::*;

    /// Less than boards accept, because tests are not optimised.
    const MOST: u64 = 300_000;

    fn rules(keys: &[&str]) -> Rules {
        Rules { keys: keys.iter().map(|&key| key.to_owned()).collect(), ..Rules::default() }
    }

    /// A key and a signature from minisign-verify's documentation.
    const KEY: &str = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
    const OTHER_KEY: &str = "RWSmKgqR0+t5rJ6ZyJzkWS5p0VmBT5TX2tMMnYVxmJWSYkSmnYVxmJWS";
    const SIGNATURE: &str = "untrusted comment: signature from minisign secret key\n\
        RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=\n\
        trusted comment: timestamp:1633700835\tfile:test\tprehashed\n\
        wLMDjy9FLAuxZ3q4NlEvkgtyhrr0gtTu6KC4KBJdITbbOeAi1zBIYo0v4iTgt8jJpIidRJnp94ABQkJAgAooBQ==\n";
    const LEGACY: &str = "untrusted comment: signature from minisign secret key\n\
        RWQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=\n\
        trusted comment: timestamp:1633700835\tfile:test\tprehashed\n\
        wLMDjy9FLAuxZ3q4NlEvkgtyhrr0gtTu6KC4KBJdITbbOeAi1zBIYo0v4iTgt8jJpIidRJnp94ABQkJAgAooBQ==\n";

    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").expect("it runs")
    }

    fn receive(bytes: &[u8]) -> Result<Received, ReceiveError> {
        let file = nix::sys::memfd::memfd_create(c"update", nix::sys::memfd::MemFdCreateFlag::empty());
        let mut file = std::fs::File::from(file.expect("there is memory"));
        let received = program(&mut Cursor::new(bytes), None, &own(), &mut file, MOST)?;
        let mut copied = Vec::new();
        file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut copied)).expect("it is ours");
        assert_eq!(copied, bytes);
        Ok(received)
    }

    /// A program of this many bytes: this program's header, a mark at `at`, and section headers that end at
    /// its end.
    fn program_of(length: usize, version: &str, at: usize) -> Vec<u8> {
        let mut bytes = own()[..HEADER_BYTES].to_vec();
        let start = (length - 64).to_le_bytes();
        if bytes[4] == 1 {
            bytes[32..36].copy_from_slice(&start[..4]);
            bytes[44..50].copy_from_slice(&[0, 0, 64, 0, 1, 0]);
        } else {
            bytes[40..48].copy_from_slice(&start);
            bytes[56..62].copy_from_slice(&[0, 0, 64, 0, 1, 0]);
        }
        bytes.resize(length, 0);
        let mark = [mark_begin(), version.as_bytes(), b"\n"].concat();
        bytes[at..at + mark.len()].copy_from_slice(&mark);
        bytes
    }

    #[test]
    fn this_program_contains_its_version_once() {
        let own = own();
        let begin = find(&own, mark_begin()).expect("it is there");
        let rest = &own[begin + MARK_BEGIN.len()..];
        assert!(rest.starts_with(format!("{VERSION}\n").as_bytes()));
        assert_eq!(find(rest, mark_begin()), None);
    }

    #[test]
    fn a_program_is_copied_and_its_version_found_wherever_it_stands() {
        let piece = PIECE;
        for at in [100, piece - 60, piece - 30, piece - 20, piece - 5, piece, 2 * piece - 25, 2 * piece + 7] {
            for length in [2 * piece + 100, 3 * piece, 3 * piece + 1] {
                let received = receive(&program_of(length, "1.2.3-rc.1", at)).expect("it is right");
                assert_eq!(received.version, "1.2.3-rc.1", "at {at} of {length}");
            }
        }
    }

    #[test]
    fn a_program_that_this_board_cannot_run_is_rejected_with_the_reason() {
        let check = |bytes: &[u8], words: &str| {
            let why = receive(bytes).expect_err(words).to_string();
            assert!(why.contains(words), "{why}");
        };
        check(b"", "it is empty");
        check(b"#!/bin/sh\n", "it is not a program");
        let own = program_of(200_000, "1.0.0", 500);
        check(&own[..40], "it is cut off");
        check(&own[..own.len() - 1], "the file is incomplete: it has");
        check(&own[..own.len() / 2], "the file is incomplete: it has");
        // A linker may leave out the table of sections.
        let mut stripped = own.clone();
        let end = (own.len() as u64).to_le_bytes();
        let (tables, sizes, segment, word) =
            if own[4] == 1 { (28, 42, 200 + 16, 4) } else { (32, 54, 200 + 32, 8) };
        stripped[tables..tables + 2 * word].fill(0);
        stripped[tables] = 200;
        stripped[sizes..sizes + 8].copy_from_slice(&[56, 0, 1, 0, 0, 0, 0, 0]);
        stripped[segment..segment + word].copy_from_slice(&end[..word]);
        assert!(receive(&stripped).is_ok());
        check(&stripped[..stripped.len() - 1], "the file is incomplete: it has");
        // A table of segments outside of the file's beginning.
        stripped[tables..tables + word].fill(0xff);
        check(&stripped, "it is cut off");
        let mut other = own.clone();
        other[18] = if own[18] == 183 { 62 } else { 183 };
        check(&other, "it is for ");
        let mut narrow = own.clone();
        narrow[4] = 3 - narrow[4];
        check(&narrow, "and this board is ");
        let right = program_of(1000, "1.0.0", 500);
        let mut none = right.clone();
        none[501] = b'T';
        check(&none, "it is not a nodlet program");
        check(&program_of(1000, "1.0 0", 500), "it is not a nodlet program");
        check(&program_of(1000, "", 500), "it is not a nodlet program");
        check(&program_of(usize::try_from(MOST).expect("it fits") + 1, "1.0.0", 500), "it is too large");
    }

    #[test]
    fn a_signature_is_of_a_known_key_and_of_the_modern_kind() {
        let check = |rules: &Rules, text: Option<&str>, words: &str| {
            let why = signed(rules, text).err().expect(words);
            assert!(why.contains(words), "{why}");
        };
        check(&rules(&[]), None, "accepts no updates");
        check(&rules(&[KEY]), None, "it is not signed");
        check(&rules(&[KEY]), Some("nonsense"), "not a minisign signature");
        check(&rules(&[KEY]), Some(&SIGNATURE[..200]), "not a minisign signature");
        check(&rules(&[]), Some(SIGNATURE), "does not name in update.keys");
        check(&rules(&[OTHER_KEY]), Some(SIGNATURE), "does not name in update.keys");
        check(&rules(&["nonsense"]), Some(SIGNATURE), "which is not a valid key");
        check(&rules(&[KEY]), Some(LEGACY), "legacy");
        assert!(signed(&rules(&[OTHER_KEY, KEY]), Some(SIGNATURE)).is_ok_and(|signed| signed.is_some()));
        let open = Rules { allow_unsigned: true, ..rules(&[]) };
        assert!(signed(&open, None).is_ok_and(|signed| signed.is_none()));
        // A wrong signature is rejected even if the profile accepts unsigned updates.
        check(&open, Some(SIGNATURE), "does not name in update.keys");
    }

    #[test]
    fn a_signature_of_something_else_is_rejected() {
        let signed = signed(&rules(&[KEY]), Some(SIGNATURE)).expect("it is right");
        let file = nix::sys::memfd::memfd_create(c"update", nix::sys::memfd::MemFdCreateFlag::empty());
        let mut file = std::fs::File::from(file.expect("there is memory"));
        let why = program(
            &mut Cursor::new(program_of(1000, "1.0.0", 500)),
            signed.as_ref(),
            &own(),
            &mut file,
            MOST,
        );
        assert_eq!(why.expect_err("it is another").to_string(), "the signature is of other content");
    }

    #[test]
    fn a_signature_may_precede_the_program() {
        let bytes = [SIGNATURE.as_bytes(), b"\x7fELF..."].concat();
        let mut stream = BufReader::new(Cursor::new(bytes));
        let read = leading_signature(&mut stream).expect("it is complete");
        assert_eq!(read.as_deref(), Some(SIGNATURE));
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("it is in memory");
        assert_eq!(rest, b"\x7fELF...");
        let none = leading_signature(&mut BufReader::new(Cursor::new(b"\x7fELF...")));
        assert_eq!(none.expect("there is none"), None);
        let endless = vec![b'x'; 100_000];
        let endless = [COMMENT, &endless].concat();
        assert!(leading_signature(&mut BufReader::new(Cursor::new(endless))).is_err());
    }

    #[test]
    fn versions_are_compared_as_semantic_versioning_does() {
        for (version, than, older) in [
            ("0.1.0", "0.1.0", false),
            ("0.1.0", "0.2.0", true),
            ("0.10.0", "0.9.9", false),
            ("1.0.0-rc.1", "1.0.0", true),
            ("1.0.0", "1.0.0-rc.1", false),
            ("1.0.0-rc.1", "0.9.0", false),
            ("1.0.0-rc.2", "1.0.0-rc.10", true),
            ("1.0.0-rc", "1.0.0-rc.1", true),
            ("1.0.0-7", "1.0.0-rc", true),
            ("1.0.0+a", "1.0.0+b", false),
        ] {
            assert_eq!(is_older(version, than), older, "{version} {than}");
        }
    }
}
