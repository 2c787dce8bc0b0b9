//! `-f FILE|DIR|-`: reads the manifests in the arguments of a verb.

use std::io::Read;
use std::path::{Path, PathBuf};

use nodlet_kube::kinds::Kind;
use nodlet_kube::manifest::{self, SIZE_LIMIT, Validation};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::VerbError;
use crate::verbs::resources::collection;

/// An object as it was written, and its place in the files.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Object {
    #[serde(rename = "object")]
    pub(crate) value: Value,
    /// `web.yaml` or `web.yaml, document 2`.
    pub(crate) place: String,
    /// Warnings about the text, which an agent does not see.
    #[serde(skip)]
    pub(crate) warnings: Vec<String>,
}

impl Object {
    pub(crate) fn name(&self) -> Option<&str> {
        self.value["metadata"]["name"].as_str().filter(|name| !name.is_empty())
    }

    /// The API path of the object's collection, and the kind as messages print it.
    pub(crate) fn collection(&self, namespace: &str) -> (String, String) {
        let row = self.kind().row();
        (collection(row, Some(namespace)), row.qualified_singular())
    }

    pub(crate) fn is_pod(&self) -> bool {
        self.value["kind"] == Kind::Pod.as_str()
    }

    /// The object's kind; Pod if the kind is missing or unknown.
    pub(crate) fn kind(&self) -> Kind {
        self.value["kind"].as_str().and_then(Kind::named).unwrap_or(Kind::Pod)
    }

    /// The object's name, for verbs that require one.
    pub(crate) fn required_name(&self) -> Result<&str, VerbError> {
        self.name().ok_or_else(|| VerbError::new(format!("{}: metadata.name: Required value", self.place)))
    }
}

/// Reads all objects of all files, in order. Also returns the failures of files and documents that could not
/// be read.
pub(crate) fn read(
    paths: &[PathBuf],
    validation: Validation,
) -> Result<(Vec<Object>, Vec<VerbError>), VerbError> {
    let (mut objects, mut failures) = (Vec::new(), Vec::new());
    for path in paths {
        for file in expand(path)? {
            match read_file(&file, validation) {
                Ok((found, others)) => {
                    objects.extend(found);
                    failures.extend(others);
                }
                Err(failure) => failures.push(failure),
            }
        }
    }
    Ok((objects, failures))
}

/// Expands a directory to the manifests in it, sorted by name.
fn expand(path: &Path) -> Result<Vec<PathBuf>, VerbError> {
    if path.as_os_str() == "-" || !path.is_dir() {
        return Ok(vec![path.into()]);
    }
    let failed =
        |error: std::io::Error| VerbError::new(format!("failed to read {}: {error}", path.display()));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let known = file.extension().is_some_and(|kind| kind == "yaml" || kind == "yml" || kind == "json");
        if known && file.is_file() {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(VerbError::new(format!("there is no .yaml, .yml or .json file in {}", path.display())));
    }
    files.sort();
    Ok(files)
}

/// Whether a file is a tar archive, as images are saved, or compressed with gzip or Zstandard.
fn is_archive(bytes: &[u8]) -> bool {
    bytes.get(257..).is_some_and(|rest| rest.starts_with(b"ustar"))
        || bytes.starts_with(&[0x1f, 0x8b])
        || bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
}

fn read_file(path: &Path, validation: Validation) -> Result<(Vec<Object>, Vec<VerbError>), VerbError> {
    let name = if path.as_os_str() == "-" { "STDIN".into() } else { path.display().to_string() };
    let limit = SIZE_LIMIT as u64 + 1;
    let mut bytes = Vec::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes))
    };
    read.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => VerbError::new(format!("the path \"{name}\" does not exist")),
        _ => VerbError::new(format!("failed to read {name}: {error}")),
    })?;
    if is_archive(&bytes) {
        let text = format!("{name}: this is an archive; load the images in it with 'nodlet image load FILE'");
        return Err(VerbError::new(text));
    }
    let (written, others) = manifest::written(&name, &bytes, validation).map_err(VerbError::new)?;
    let object = |written: manifest::Written| Object {
        value: written.object,
        warnings: written.warnings,
        place: match written.document {
            Some(number) => format!("{name}, document {number}"),
            None => name.clone(),
        },
    };
    Ok((written.into_iter().map(object).collect(), others.into_iter().map(VerbError::new).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_no_manifest_but_may_have_images() {
        let mut tar = vec![b'a'; 257];
        tar.extend_from_slice(b"ustar");
        for bytes in [&tar[..], &[0x1f, 0x8b, 8], &[0x28, 0xb5, 0x2f, 0xfd, 0]] {
            let file = std::env::temp_dir().join(format!("nodlet-archive-{}", std::process::id()));
            std::fs::write(&file, bytes).expect("written");
            let (_, failures) = read(std::slice::from_ref(&file), Validation::Strict)
                .unwrap_or_else(|failure| (Vec::new(), vec![failure]));
            std::fs::remove_file(&file).expect("removed");
            let text = failures[0].to_string();
            assert!(text.ends_with("load the images in it with 'nodlet image load FILE'"), "{text}");
        }
    }

    #[test]
    fn a_directory_means_its_manifests_and_an_invalid_file_affects_no_other() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let directory = scratch.path();
        for (name, text) in [
            ("b.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: b}\n"),
            (
                "a.yml",
                "apiVersion: v1\nkind: Pod\nmetadata: {name: a1}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a2}\n",
            ),
            ("c.json", "{"),
            (
                "d.yaml",
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: d}\n",
            ),
            ("notes.txt", "not a manifest"),
        ] {
            std::fs::write(directory.join(name), text).expect("written");
        }
        let read = read(&[directory.to_owned()], Validation::Strict);
        let (objects, failures) = read.unwrap_or_else(|failure| panic!("{failure}"));
        let names: Vec<_> = objects.iter().filter_map(Object::name).collect();
        assert_eq!(names, ["a1", "a2", "b", "d"]);
        assert!(objects[1].place.ends_with("a.yml, document 2"), "{}", objects[1].place);
        let messages: Vec<String> = failures.iter().map(ToString::to_string).collect();
        assert_eq!(messages.len(), 2, "{messages:?}");
        assert!(messages[0].contains("c.json") && messages[1].contains("d.yaml, document 1"), "{messages:?}");
    }
}
