//! `cargo xtask release --key FILE`: makes all files of a release, from a checkout without changes: programs, packages,
//! device images, manuals, licences, lists of materials, the sources, checksums and signatures. `docs/releasing.md`
//! describes each file.
//!
//! With the same commit and the same packages of Debian, the files are the same bytes in each directory and at any time;
//! `--twice` tests that: it makes them a second time in a clone of the repository, and compares.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodlet_build::arguments::Arguments;
use nodlet_build::files;
use nodlet_build::targets::{self, TARGETS, Target};
use nodlet_build::task::{
    Outcome, Task, TaskError, git, output, outside, plain_cargo, project, run as run_command, target_dir,
    work,
};
use nodlet_build::toolchain::{self, built, cargo};
use nodlet_build::{crates, cross, deny, programs, stamp, tools};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::profile::{self, Profile};
use crate::tree::{Source, Tree, below};
use crate::{deb, help, image};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The arguments of the task.
#[derive(Debug)]
struct Request {
    /// The secret key of minisign.
    key: PathBuf,
    /// Whether a new key is made, for a test.
    test_key: bool,
    /// Whether everything is made twice.
    twice: bool,
    /// Whether device images are left out, which need packages of Debian.
    no_images: bool,
    targets: Vec<&'static Target>,
}

/// The task `cargo xtask release`.
pub const TASK: Task = Task::new(
    "release",
    "--key FILE | --test-key [--twice] [--no-images] [TARGET]...",
    "build all files of a release, signed with the key of minisign, into target/release-VERSION; --twice compares two",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut request = parse(arguments)?;
    if request.test_key {
        request.key = test_key()?;
    }
    if !request.key.is_file() {
        return Err(TaskError(format!("{} is not a file: `minisign -G` makes a key", request.key.display())));
    }
    let Some(source) = stamp::of(project())? else {
        return Err("a release is made from the repository".into());
    };
    if source.ends_with("dirty") {
        return Err(
            "a release is made from a commit, and this checkout has changes: `git status` lists them".into(),
        );
    }
    programs::provide("minisign", "minisign")?;
    let directory = target_dir().join(format!("release-{VERSION}"));
    make(&request, &source, &directory)?;
    if request.twice {
        twice(&request, &directory)?;
    }
    println!("{}", directory.display());
    Ok(())
}

/// Makes a key without a password, for which minisign would ask, for a release that nobody gets.
fn test_key() -> Result<PathBuf, TaskError> {
    programs::provide("minisign", "minisign")?;
    let key = work("release")?.join("test.key");
    let mut minisign = Command::new("minisign");
    run_command(minisign.args(["-G", "-f", "-W", "-p"]).arg(key.with_extension("pub")).arg("-s").arg(&key))?;
    Ok(key)
}

fn parse(arguments: &[String]) -> Result<Request, TaskError> {
    let mut arguments = Arguments::new(&TASK, arguments);
    let key: Option<PathBuf> = arguments.one("--key")?;
    let [test_key, twice, no_images] =
        ["--test-key", "--twice", "--no-images"].map(|option| arguments.has(option));
    if key.is_some() == test_key {
        return Err(TASK.misused());
    }
    let key = key.map(std::path::absolute).transpose()?.unwrap_or_default();
    let mut request = Request { key, test_key, twice, no_images, targets: Vec::new() };
    for triple in arguments.names()? {
        request.targets.push(targets::get(&triple)?);
    }
    if request.targets.is_empty() {
        request.targets.extend(TARGETS);
    }
    Ok(request)
}

/// Makes all files in a directory, which is made anew.
fn make(request: &Request, source: &str, directory: &Path) -> Outcome {
    let _ = fs::remove_dir_all(directory);
    fs::create_dir_all(directory)?;
    write_public_key(&request.key, &named(directory, "minisign.pub"))?;
    // What is checked in must be what is linked.
    deny::run(&[])?;
    let mut signed = Vec::new();
    for target in &request.targets {
        let program = named(directory, target.triple);
        fs::copy(cross::build(target)?, &program)?;
        deny::require_listed(&program, &crates::linked(target)?)?;
        let package = deb::build(target, &deb::default_version())?;
        fs::copy(&package, directory.join(package.file_name().ok_or("a package has a name")?))?;
        materials(target, source, directory)?;
        signed.push(program);
    }
    manuals(directory)?;
    fs::copy(project().join(deny::TEXTS), named(directory, "licences.txt"))?;
    let of_rust = toolchain::documents()?.join("COPYRIGHT-library.html");
    fs::copy(&of_rust, named(directory, "licences-of-rust.html"))
        .map_err(|error| format!("failed to copy {}: {error}", of_rust.display()))?;
    sources(source, directory)?;
    if !request.no_images {
        for name in profile::known()? {
            device_image(&profile::get(&name)?, request, directory)?;
        }
    }
    let sums = directory.join("SHA256SUMS");
    fs::write(&sums, checksums(directory)?)?;
    signed.push(sums);
    sign(&request.key, source, &signed)
}

/// The path of a file of this release.
fn named(directory: &Path, what: &str) -> PathBuf {
    directory.join(format!("nodlet-{VERSION}-{what}"))
}

/// Writes the manual pages and the completions for shells, as an archive.
fn manuals(directory: &Path) -> Outcome {
    run_command(cargo()?.args(["build", "--locked", "--package", "nodlet"]))?;
    let archive = deb::manuals(&help::of(&built("debug", "nodlet")?)?)?;
    Ok(fs::write(named(directory, "manuals.tar.gz"), archive)?)
}

/// Writes the lists of materials (SBOM) of a program, which plugins of cargo make, in two forms.
fn materials(target: &Target, source: &str, directory: &Path) -> Outcome {
    let seconds = image::source_date()?.to_string();
    let mut cyclonedx = Command::new(tools::CARGO_CYCLONEDX.provide()?);
    cyclonedx.args(["cyclonedx", "--format", "json", "--spec-version", "1.5", "--no-build-deps", "--target"]);
    cyclonedx.arg(target.triple).args(["--override-filename", "sbom", "--manifest-path"]);
    cyclonedx
        .arg(project().join("board/Cargo.toml"))
        .env("SOURCE_DATE_EPOCH", &seconds)
        .current_dir(project());
    let made = run_command(&mut cyclonedx);
    // The plugin writes one file beside the manifest of each crate of the workspace.
    let written = project().join("board/sbom.json");
    let text = files::read_text(&written);
    for entry in members()? {
        let _ = fs::remove_file(entry.join("sbom.json"));
    }
    made?;
    let list = independent(serde_json::from_str(&text?)?, source);
    write_json(&named(directory, &format!("{}.cdx.json", target.triple)), &list)?;

    let mut spdx = Command::new(tools::CARGO_SBOM.provide()?);
    spdx.args([
        "sbom",
        "--output-format",
        "spdx_json_2_3",
        "--cargo-package",
        "nodlet",
        "--project-directory",
    ]);
    spdx.arg(project());
    let list = of_target(serde_json::from_str(&output(&mut spdx)?)?, &crates::names(target)?);
    write_json(&named(directory, &format!("{}.spdx.json", target.triple)), &independent(list, source))
}

/// A list in the form of SPDX with only the crates that are linked into the program for a target: the plugin lists those of
/// all systems.
fn of_target(mut list: Value, linked: &BTreeSet<(String, String)>) -> Value {
    let is_linked = |package: &Value| {
        let text = |field: &str| package[field].as_str().unwrap_or_default().to_owned();
        linked.contains(&(text("name"), text("versionInfo")))
    };
    let Some(packages) = list["packages"].as_array_mut() else { return list };
    let (kept, dropped): (Vec<Value>, Vec<Value>) = packages.drain(..).partition(is_linked);
    *packages = kept;
    let dropped: BTreeSet<String> = dropped.iter().map(|package| package["SPDXID"].to_string()).collect();
    if let Some(relationships) = list["relationships"].as_array_mut() {
        let names = ["spdxElementId", "relatedSpdxElement"];
        relationships.retain(|one| names.iter().all(|name| !dropped.contains(&one[*name].to_string())));
    }
    list
}

/// The directories of the workspace's own crates.
fn members() -> Result<Vec<PathBuf>, TaskError> {
    let metadata =
        output(plain_cargo().args(["metadata", "--locked", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let manifests = metadata["packages"].as_array().into_iter().flatten();
    let directories = manifests.filter_map(|package| Path::new(package["manifest_path"].as_str()?).parent());
    Ok(directories.map(Path::to_owned).collect())
}

/// A list of materials without what differs at each run: its time is that of the commit, its number is computed from the
/// commit, and it names no directory of this machine.
fn independent(mut list: Value, source: &str) -> Value {
    let date = source.split(' ').nth(1).unwrap_or_default();
    let digits = files::digits(&Sha256::digest(source.as_bytes()));
    let number = format!(
        "{}-{}-4{}-8{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[13..16],
        &digits[17..20],
        &digits[20..32]
    );
    if list["bomFormat"].is_string() {
        list["serialNumber"] = format!("urn:uuid:{number}").into();
        list["metadata"]["timestamp"] = date.into();
    }
    if list["spdxVersion"].is_string() {
        list["documentNamespace"] = format!("https://spdx.org/spdxdocs/nodlet-{VERSION}-{number}").into();
        list["creationInfo"]["created"] = date.into();
        for field in ["packages", "relationships", "files"] {
            if let Some(entries) = list[field].as_array_mut() {
                entries.sort_by_key(Value::to_string);
            }
        }
    }
    let text = list.to_string().replace(&project().display().to_string(), "/nodlet");
    serde_json::from_str(&text).unwrap_or_else(|_| json!({}))
}

fn write_json(path: &Path, value: &Value) -> Outcome {
    Ok(fs::write(path, serde_json::to_string_pretty(value)? + "\n")?)
}

/// Writes the archive of the sources of the present checkout into a directory, and returns its path.
pub fn source_archive(directory: &Path) -> Result<PathBuf, TaskError> {
    let source = stamp::of(project())?.unwrap_or_default();
    sources(&source, directory)?;
    Ok(named(directory, "source.tar.gz"))
}

/// Writes the archive of the sources, in which the patched crate is in its place, so that a plain `cargo build` uses it. The
/// file `COMMIT` names the commit for programs that are built from there.
fn sources(source: &str, directory: &Path) -> Outcome {
    let top = format!("nodlet-{VERSION}");
    let mut tree = Tree::default();
    for name in git(project(), &["ls-files", "-z"])?.split_terminator('\0') {
        let path = project().join(name);
        let source = Source { name: format!("{top}/{name}"), metadata: fs::metadata(&path)?, path };
        tree.add(&source.name, &source)?;
    }
    let patched = toolchain::patched()?;
    let name = patched.file_name().and_then(|name| name.to_str()).ok_or("a crate's name is text")?.to_owned();
    for source in below(&patched)?.iter().filter(|source| source.metadata.is_file()) {
        tree.add(&format!("{top}/.cargo/host/{name}/{}", source.name), source)?;
    }
    let config = format!("# The patched crate in place of the published one.\npaths = [\"host/{name}\"]\n");
    tree.file(&format!("{top}/.cargo/host/config.toml"), 0o644, config);
    let mut words = source.split(' ');
    let commit = format!("{}\n{}\n", words.next().unwrap_or_default(), words.next().unwrap_or_default());
    tree.file(&format!("{top}/COMMIT"), 0o644, commit);
    let archive = deb::archive_of(&tree, "", image::of_source()?)?;
    files::write(&named(directory, "source.tar.gz"), archive)
}

/// Builds the image of a board without pods, for the targets of the release.
fn device_image(profile: &Profile, request: &Request, directory: &Path) -> Outcome {
    if !request.targets.iter().any(|target| target.triple == profile.target) {
        return Ok(());
    }
    if !profile.firmware.is_empty() {
        eprintln!("{}: no image, because its boot loader has files that are not free", profile.name);
        return Ok(());
    }
    let built = work(&format!("release/{}", profile.name))?;
    let image = image::build(profile, &image::Contents::default(), &built)?;
    let named_after = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        named(directory, &format!("{}-{name}", profile.name))
    };
    for file in image.files() {
        fs::copy(file, named_after(file))?;
    }
    let packages = built.join("packages");
    fs::copy(&packages, named_after(&packages))?;
    Ok(fs::write(named(directory, &format!("{}-licences.txt", profile.name)), image::licences_of(profile)?)?)
}

/// The SHA-256 of all files in a directory, in the form of `sha256sum`.
fn checksums(directory: &Path) -> Result<String, TaskError> {
    let mut sums = String::new();
    for file in below(directory)? {
        let digits = files::digits(&Sha256::digest(fs::read(&file.path)?));
        sums.push_str(&format!("{digits}  {}\n", file.name));
    }
    Ok(sums)
}

/// Writes the public key of a secret key. minisign asks for its password, so that a wrong one is noticed at the beginning.
fn write_public_key(key: &Path, to: &Path) -> Outcome {
    run_command(Command::new("minisign").args(["-R", "-f", "-s"]).arg(key).arg("-p").arg(to))
}

/// Signs files with minisign, which asks for the password of the key. The trusted comment names the commit instead of the
/// time, so that the signature of the same bytes is the same.
fn sign(key: &Path, source: &str, files: &[PathBuf]) -> Outcome {
    let mut minisign = Command::new("minisign");
    minisign.arg("-S").arg("-s").arg(key).args(["-t", &format!("nodlet {VERSION}, commit {source}"), "-m"]);
    run_command(minisign.args(files))
}

/// Makes the release again in a clone of the repository, and requires the same files.
fn twice(request: &Request, first: &Path) -> Outcome {
    let directory = outside("release")?;
    run_command(Command::new("git").args(["clone", "--quiet"]).arg(project()).arg(&directory))?;
    let mut cargo = plain_cargo();
    cargo.current_dir(&directory).args(["xtask", "release", "--key"]).arg(&request.key);
    if request.no_images {
        cargo.arg("--no-images");
    }
    cargo.args(request.targets.iter().map(|target| target.triple));
    for ours in ["CARGO_BUILD_TARGET", "CARGO_TARGET_DIR"] {
        cargo.env_remove(ours);
    }
    run_command(&mut cargo)?;
    require_same(first, &directory.join("target").join(first.file_name().ok_or("a release has a name")?))?;
    println!("the files of both directories are the same");
    Ok(fs::remove_dir_all(&directory)?)
}

/// Requires that two directories have the same files.
fn require_same(first: &Path, second: &Path) -> Outcome {
    let read = |directory: &Path| -> Result<BTreeMap<String, Vec<u8>>, TaskError> {
        below(directory)?.into_iter().map(|file| Ok((file.name, fs::read(file.path)?))).collect()
    };
    let (first, second) = (read(first)?, read(second)?);
    let names = first.keys().chain(second.keys());
    let mut different: Vec<String> =
        names.filter(|name| first.get(*name) != second.get(*name)).cloned().collect();
    different.sort();
    different.dedup();
    if different.is_empty() && !first.is_empty() {
        Ok(())
    } else {
        Err(TaskError(format!("built twice, these files differ: {}", different.join(", "))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "4a83cd04d2f0a1114a83cd04d2f0a1114a83cd04 2026-01-31T12:00:00Z clean";

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("xtask-release-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn without_a_key_nothing_is_made() {
        assert!(run(&[]).unwrap_err().0.contains("--key FILE"));
        let why = run(&["--key".into(), "/nowhere/key".into()]).unwrap_err().0;
        assert!(why.contains("/nowhere/key") && why.contains("minisign -G"), "{why}");
        assert_eq!(parse(&["--key".into(), "k".into()]).unwrap().targets.len(), TARGETS.len());
    }

    #[test]
    fn lists_of_materials_of_one_commit_are_the_same_at_any_time_and_in_any_directory() {
        let list = |number: &str, time: &str, place: &str| {
            json!({
                "spdxVersion": "SPDX-2.3", "documentNamespace": format!("https://example.com/{number}"),
                "creationInfo": { "created": time, "creators": ["Tool: cargo-sbom"] },
                "packages": [{ "name": "b", "downloadLocation": place }, { "name": "a" }],
            })
        };
        let here = format!("file://{}/board", project().display());
        let one = independent(list("1", "2026-01-01T00:00:00Z", &here), SOURCE);
        let other = independent(list("2", "2026-02-02T00:00:00Z", "file:///nodlet/board"), SOURCE);
        assert_eq!(one, other);
        assert_eq!(one["creationInfo"]["created"], "2026-01-31T12:00:00Z");
        let bom = independent(
            json!({ "bomFormat": "CycloneDX", "serialNumber": "urn:uuid:1", "metadata": {} }),
            SOURCE,
        );
        let number = bom["serialNumber"].as_str().unwrap();
        assert!(number.starts_with("urn:uuid:") && number.len() == 45, "{number}");
        assert_ne!(independent(bom.clone(), "another commit"), bom);
    }

    #[test]
    fn crates_of_other_systems_are_not_in_the_list_of_a_target() {
        let package =
            |name: &str| json!({ "name": name, "versionInfo": "1.0.0", "SPDXID": format!("SPDXRef-{name}") });
        let needs = |one: &str, other: &str| json!({ "spdxElementId": format!("SPDXRef-{one}"), "relatedSpdxElement": format!("SPDXRef-{other}") });
        let list = json!({
            "packages": [package("nodlet"), package("windows"), package("libc")],
            "relationships": [needs("nodlet", "libc"), needs("nodlet", "windows"), needs("windows", "libc")],
        });
        let linked = ["nodlet", "libc"].map(|name| (name.to_owned(), "1.0.0".to_owned()));
        let list = of_target(list, &BTreeSet::from(linked));
        assert_eq!(list["packages"], json!([package("nodlet"), package("libc")]));
        assert_eq!(list["relationships"], json!([needs("nodlet", "libc")]));
    }

    #[test]
    fn a_file_that_differs_or_is_missing_is_named() {
        let dir = scratch("same");
        let (one, other) = (dir.join("one"), dir.join("other"));
        for directory in [&one, &other] {
            fs::create_dir_all(directory).unwrap();
            fs::write(directory.join("program"), "1").unwrap();
        }
        require_same(&one, &other).unwrap();
        fs::write(other.join("program"), "2").unwrap();
        fs::write(one.join("package"), "1").unwrap();
        assert!(require_same(&one, &other).unwrap_err().0.ends_with("these files differ: package, program"));
        fs::remove_dir_all(&dir).unwrap();
    }

    /// Who unpacks the archive and calls cargo gets the patched crate, without any task of this workspace.
    #[test]
    fn the_archive_of_the_sources_builds_with_the_patched_crate_and_names_its_commit() {
        let dir = scratch("sources");
        toolchain::host().unwrap();
        sources(SOURCE, &dir).unwrap();
        let archive = named(&dir, "source.tar.gz");
        let first = fs::read(&archive).unwrap();
        sources(SOURCE, &dir).unwrap();
        assert!(first == fs::read(&archive).unwrap(), "made again, the archive differs");
        run_command(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&dir)).unwrap();
        let unpacked = dir.join(format!("nodlet-{VERSION}"));
        let commit = fs::read_to_string(unpacked.join("COMMIT")).unwrap();
        assert_eq!(commit, "4a83cd04d2f0a1114a83cd04d2f0a1114a83cd04\n2026-01-31T12:00:00Z\n");
        let mut cargo = plain_cargo();
        cargo.current_dir(&unpacked).args(["metadata", "--locked", "--offline", "--format-version", "1"]);
        let output = cargo.args(["--filter-platform", targets::host().unwrap().triple]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
        let packages = metadata["packages"].as_array().unwrap();
        let libcontainer = packages.iter().find(|package| package["name"] == "libcontainer").unwrap();
        let manifest = libcontainer["manifest_path"].as_str().unwrap();
        assert!(manifest.starts_with(unpacked.to_str().unwrap()), "{manifest}");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn every_place_that_names_the_version_names_this_one() {
        for (path, text) in [
            (
                "board/packages/yocto/meta-nodlet/recipes-containers/nodlet/nodlet.bb",
                format!("PV = \"{VERSION}\"\n"),
            ),
            ("docs/packages.md", format!("nodlet_{VERSION}-1_arm64.deb")),
            ("CHANGELOG.md", format!("\n## {VERSION} - 2")),
            ("SECURITY.md", format!("| {}.x, the latest release |", VERSION.rsplit_once('.').unwrap().0)),
        ] {
            let content = fs::read_to_string(project().join(path)).unwrap();
            assert!(content.contains(&text), "{path} does not have {text:?}");
        }
    }

    #[test]
    fn checksums_are_those_that_sha256sum_verifies() {
        let dir = scratch("sums");
        fs::write(dir.join("nodlet"), "a program").unwrap();
        let sums = checksums(&dir).unwrap();
        fs::write(dir.join("SHA256SUMS"), sums).unwrap();
        let verified =
            Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&dir).output();
        assert_eq!(String::from_utf8(verified.unwrap().stdout).unwrap(), "nodlet: OK\n");
        fs::remove_dir_all(&dir).unwrap();
    }
}
