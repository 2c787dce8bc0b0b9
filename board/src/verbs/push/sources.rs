//! The files of a push, and the kind of each.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use nodlet_core::sorted::SortedMap;
use nodlet_rootfs::parcel::Parcel;

use super::archive::Archive;
use super::options::Push;
use crate::error::VerbError;
use crate::verbs::files::{self, Object};

impl Push {
    /// Reads the manifests and opens the archives. Errors in files are reported before anything is sent.
    pub(super) fn open(&self) -> Result<(Vec<Object>, Vec<Archive>), VerbError> {
        let (mut manifests, mut archives, mut failures) = (Vec::new(), Vec::new(), Vec::new());
        for path in &self.paths {
            let found = expand(path);
            for (path, is_archive) in found.unwrap_or_else(|failure| {
                failures.push(failure);
                Vec::new()
            }) {
                if !is_archive {
                    manifests.push(path);
                    continue;
                }
                match Parcel::open(&path) {
                    Ok(parcel) => archives.push(Archive {
                        path,
                        parcel,
                        sent: 0,
                        spared: 0,
                        compared: SortedMap::new(),
                    }),
                    Err(error) => failures.push(VerbError::chain(&error).of(&path.display().to_string())),
                }
            }
        }
        let (objects, others) = files::read(&manifests, self.validation)?;
        failures.extend(others);
        match failures.pop() {
            None => Ok((objects, archives)),
            Some(last) => {
                for failure in failures {
                    eprintln!("{failure}");
                }
                Err(last)
            }
        }
    }
}

/// The files that a path denotes, and whether each is an archive.
fn expand(path: &Path) -> Result<Vec<(PathBuf, bool)>, VerbError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => VerbError::new(format!("the path \"{}\" does not exist", path.display())),
        _ => VerbError::new(format!("failed to read {}: {error}", path.display())),
    };
    if !std::fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![(path.to_owned(), is_archive(path).map_err(failed)?)]);
    }
    if path.join("index.json").is_file() || path.join("manifest.json").is_file() {
        return Ok(vec![(path.to_owned(), true)]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let has = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
        if name.starts_with('.') || !file.is_file() {
            continue;
        }
        if has(&[".yaml", ".yml", ".json"]) {
            found.push((file, false));
        } else if has(&[".tar", ".tar.gz", ".tgz", ".tar.zst"]) {
            found.push((file, true));
        }
    }
    found.sort();
    if found.is_empty() {
        Err(VerbError::new(format!("{} contains neither manifests nor image archives", path.display())))
    } else {
        Ok(found)
    }
}

/// Whether a file is an archive. A manifest is text, which has no zero bytes and does not begin as compressed
/// files do.
fn is_archive(path: &Path) -> io::Result<bool> {
    // Even an empty one: manifests have other extensions.
    if path.extension().is_some_and(|extension| extension == "tar") {
        return Ok(true);
    }
    let mut beginning = Vec::new();
    std::fs::File::open(path)?.take(512).read_to_end(&mut beginning)?;
    Ok(beginning.contains(&0) || beginning.first().is_some_and(|byte| *byte >= 0x80 || *byte == 0x1f))
}
