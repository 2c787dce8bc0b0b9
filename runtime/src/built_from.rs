//! What this program was built from: the commit, its date, the target and the crates. `nodlet version` and `/version`
//! show it, and the ELF file has it in a form that needs no running program: a line of text, and the section `.dep-v0`.
//!
//! The commit is written into the finished program by `cargo xtask cross`, so that a commit needs no new build. A
//! distribution sets `NODLET_COMMIT` and `NODLET_COMMIT_DATE` when it compiles. Other builds know no commit.

use serde_json::{Map, Value, json};

/// The target triple.
pub const TARGET: &str = env!("NODLET_TARGET");

/// The line of text in the program. It must occur only once in the program, because `cargo xtask cross` looks for its
/// beginning and replaces the blanks that follow.
#[used]
static STAMP: [u8; STAMP_BYTES] = stamp();

const BEGIN: &[u8] = b"\nthis program is built from commit ";
/// A commit, a blank, the date of the commit as `2026-01-31T12:00:00Z`, a blank, and `clean` or `dirty`.
const COMMIT_BYTES: usize = 40;
const DATE_BYTES: usize = 20;
const STATE_BYTES: usize = 5;
const FIELDS_BYTES: usize = COMMIT_BYTES + 1 + DATE_BYTES + 1 + STATE_BYTES;
const END: &[u8] = b" for ";
const STAMP_BYTES: usize = BEGIN.len() + FIELDS_BYTES + END.len() + TARGET.len() + 1;

const fn stamp() -> [u8; STAMP_BYTES] {
    let mut stamp = [b' '; STAMP_BYTES];
    copy(&mut stamp, 0, BEGIN);
    if let (Some(commit), Some(date)) = (option_env!("NODLET_COMMIT"), option_env!("NODLET_COMMIT_DATE")) {
        assert!(commit.len() == COMMIT_BYTES, "NODLET_COMMIT has the 40 digits of a commit");
        assert!(date.len() == DATE_BYTES, "NODLET_COMMIT_DATE has the form 2026-01-31T12:00:00Z");
        copy(&mut stamp, BEGIN.len(), commit.as_bytes());
        copy(&mut stamp, BEGIN.len() + COMMIT_BYTES + 1, date.as_bytes());
        copy(&mut stamp, BEGIN.len() + COMMIT_BYTES + 1 + DATE_BYTES + 1, b"clean");
    }
    copy(&mut stamp, BEGIN.len() + FIELDS_BYTES, END);
    copy(&mut stamp, BEGIN.len() + FIELDS_BYTES + END.len(), TARGET.as_bytes());
    stamp[STAMP_BYTES - 1] = b'\n';
    stamp
}

const fn copy(to: &mut [u8; STAMP_BYTES], at: usize, from: &[u8]) {
    let mut index = 0;
    while index < from.len() {
        to[at + index] = from[index];
        index += 1;
    }
}

/// The commit that this program was built from.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Commit<'a> {
    /// The 40 digits.
    pub hash: &'a str,
    /// The time of the commit, in UTC.
    pub date: &'a str,
    /// Whether there were uncommitted changes.
    pub is_dirty: bool,
}

/// The commit that this program was built from; `None` if the build did not name it.
pub fn commit() -> Option<Commit<'static>> {
    // The bytes of the finished program, not those that the compiler knows.
    let stamp: &'static [u8; STAMP_BYTES] = std::hint::black_box(&STAMP);
    read(&stamp[BEGIN.len()..][..FIELDS_BYTES])
}

fn read(fields: &[u8]) -> Option<Commit<'_>> {
    let mut words = std::str::from_utf8(fields).ok()?.split_ascii_whitespace();
    let (hash, date) = (words.next()?, words.next()?);
    Some(Commit { hash, date, is_dirty: words.next() == Some("dirty") })
}

/// `version`, and `-dirty` after it if the program was built with uncommitted changes, as Kubernetes' own versions have it.
pub fn version(version: &str) -> String {
    let suffix = if commit().is_some_and(|commit| commit.is_dirty) { "-dirty" } else { "" };
    format!("{version}{suffix}")
}

/// The fields of this build in the object of `kubectl version`, and the target and the crates besides. `buildDate` is the
/// date of the commit: the same sources give the same bytes at any time.
pub fn fields() -> Map<String, Value> {
    let commit = commit();
    let state = match commit {
        None => "",
        Some(Commit { is_dirty: true, .. }) => "dirty",
        Some(_) => "clean",
    };
    let commit = commit.unwrap_or(Commit { date: "1970-01-01T00:00:00Z", ..Commit::default() });
    let mut fields = Map::new();
    fields.insert("gitCommit".into(), commit.hash.into());
    fields.insert("gitTreeState".into(), state.into());
    fields.insert("buildDate".into(), commit.date.into());
    fields.insert("compiler".into(), "rustc".into());
    let architecture = nodlet_registry::architecture(std::env::consts::ARCH);
    fields.insert("platform".into(), format!("linux/{architecture}").into());
    fields.insert("target".into(), TARGET.into());
    fields.insert("crates".into(), json!(crates()));
    fields
}

/// The list of crates in the format of cargo-auditable, which `rust-audit-info` and others read.
#[cfg(nodlet_crates)]
#[used]
#[unsafe(link_section = ".dep-v0")]
static CRATES: [u8; include_bytes!(concat!(env!("OUT_DIR"), "/crates.z")).len()] =
    *include_bytes!(concat!(env!("OUT_DIR"), "/crates.z"));

/// The crates of other authors in this program, each as `NAME VERSION`; empty if the build did not list them.
#[cfg(nodlet_crates)]
pub fn crates() -> Vec<String> {
    use std::io::Read as _;
    let mut list = Vec::new();
    let compressed: &[u8] = std::hint::black_box(&CRATES);
    // The header of zlib has two bytes, and its checksum is not needed for bytes of the program itself.
    let mut deflated = flate2::read::DeflateDecoder::new(compressed.get(2..).unwrap_or_default());
    match deflated.read_to_end(&mut list) {
        Ok(_) => names(&list),
        Err(_) => Vec::new(),
    }
}

/// The crates of other authors in this program, each as `NAME VERSION`; empty if the build did not list them.
#[cfg(not(nodlet_crates))]
pub fn crates() -> Vec<String> {
    Vec::new()
}

/// The crates of other authors in a list in the format of cargo-auditable.
#[cfg_attr(not(nodlet_crates), allow(dead_code, reason = "only programs with a list read it"))]
fn names(list: &[u8]) -> Vec<String> {
    let list: Value = serde_json::from_slice(list).unwrap_or_default();
    let packages = list["packages"].as_array().into_iter().flatten();
    let foreign = packages.filter(|package| package["source"] != "local");
    let text = |package: &Value, field: &str| package[field].as_str().unwrap_or_default().to_owned();
    foreign.map(|package| format!("{} {}", text(package, "name"), text(package, "version"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_is_read_from_the_bytes_that_a_build_has_written() {
        let hash = "4a83cd04d2f0a1114a83cd04d2f0a1114a83cd04";
        let of = |state: &str| format!("{hash} 2026-01-31T12:00:00Z {state}");
        let clean = Commit { hash, date: "2026-01-31T12:00:00Z", is_dirty: false };
        assert_eq!(read(of("clean").as_bytes()), Some(clean));
        assert_eq!(read(of("dirty").as_bytes()), Some(Commit { is_dirty: true, ..clean }));
        assert_eq!(of("dirty").len(), FIELDS_BYTES);
        assert_eq!(read(&[b' '; FIELDS_BYTES]), None);
    }

    #[test]
    fn a_build_without_a_commit_still_names_its_target() {
        let fields = fields();
        assert_eq!(fields["target"], TARGET);
        assert!(TARGET.contains("linux"), "{TARGET}");
        let stamp = String::from_utf8_lossy(&STAMP);
        assert!(stamp.starts_with("\nthis program is built from commit "), "{stamp}");
        assert!(stamp.ends_with(&format!(" for {TARGET}\n")), "{stamp}");
    }

    #[test]
    fn only_crates_of_other_authors_are_named() {
        let list = br#"{"packages":[{"name":"libcontainer","version":"0.7.0","source":"crates.io"},
            {"name":"nodlet","version":"0.2.0","source":"local","root":true,"dependencies":[0]}]}"#;
        assert_eq!(names(list), ["libcontainer 0.7.0"]);
        assert!(names(b"no JSON").is_empty());
    }
}
