//! Patches crates that do not compile for a target as published, or that are too large for a board.
//! `xtask/patches/NAME-VERSION.patch` is applied to a copy of the crate in `.work/patched`, which replaces
//! the crate in builds for that target only. `Cargo.lock` stays unchanged: those builds use a copy of it, in
//! which the crate has no source, and are as `--locked` as the others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::task::{Failure, Outcome, line_of, plain_cargo, project, run as run_command, work};

/// A crate with a patch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patched {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
}

/// Makes a cargo command use these patched crates.
pub(crate) fn apply(crates: &[Patched], cargo: &mut Command) -> Outcome {
    if crates.is_empty() {
        return Ok(());
    }
    let mut lock = fs::read_to_string(project().join("Cargo.lock"))?;
    let mut place = work("patched")?;
    for one in crates {
        let source = copy(*one, &place)?;
        cargo.arg(format!("--config=patch.crates-io.{}.path={:?}", one.name, source));
        lock = without_source(&lock, *one)?;
    }
    place.push("Cargo.lock");
    write_if_other(&place, &lock)?;
    // A pinned stable cargo supports this unstable option, as for building the standard library.
    cargo.env("RUSTC_BOOTSTRAP", "1").arg("-Zlockfile-path");
    cargo.arg(format!("--config=resolver.lockfile-path={place:?}"));
    Ok(())
}

/// The directory of the crate's patched source. Created if it is missing or the patch has changed.
fn copy(one: Patched, place: &Path) -> Result<PathBuf, Failure> {
    let Patched { name, version } = one;
    let patch = project().join(format!("xtask/patches/{name}-{version}.patch"));
    let text = fs::read(&patch).map_err(|error| format!("failed to read {}: {error}", patch.display()))?;
    let copy = place.join(format!("{name}-{version}"));
    let applied = copy.join(".applied.patch");
    if fs::read(&applied).is_ok_and(|before| before == text) {
        return Ok(copy);
    }
    let aside = copy.with_extension("new");
    for old in [&copy, &aside] {
        if old.exists() {
            fs::remove_dir_all(old)?;
        }
    }
    let published = published(one)?;
    run_command(Command::new("cp").arg("--recursive").arg(&published).arg(&aside))?;
    // Pretends to be outside of any repository, so that git uses the paths unchanged.
    let mut git = Command::new("git");
    git.arg("apply").arg(&patch).current_dir(&aside).env("GIT_CEILING_DIRECTORIES", place);
    run_command(&mut git)?;
    fs::write(aside.join(".applied.patch"), text)?;
    fs::rename(&aside, &copy)?;
    Ok(copy)
}

/// The directory into which cargo unpacked the published crate.
fn published(one: Patched) -> Result<PathBuf, Failure> {
    let mut cargo = plain_cargo();
    cargo.args(["metadata", "--locked", "--format-version", "1"]).stderr(Stdio::inherit());
    let output = cargo.output()?;
    if !output.status.success() {
        return Err(Failure(format!("{}: {}", line_of(&cargo), output.status)));
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .find(|package| package["name"] == one.name && package["version"] == one.version)
        .and_then(|package| Path::new(package["manifest_path"].as_str()?).parent())
        .map(Path::to_owned)
        .ok_or_else(|| no_longer_used(one))
}

/// The lock file as cargo would write it if the crate came from a directory.
fn without_source(lock: &str, one: Patched) -> Result<String, Failure> {
    let head = format!("[[package]]\nname = \"{}\"\nversion = \"{}\"\n", one.name, one.version);
    let (before, after) = lock.split_once(&head).ok_or_else(|| no_longer_used(one))?;
    let mut rest = after;
    for key in ["source = ", "checksum = "] {
        if let Some((_, next)) = rest.starts_with(key).then(|| rest.split_once('\n')).flatten() {
            rest = next;
        }
    }
    Ok(format!("{before}{head}{rest}"))
}

fn no_longer_used(Patched { name, version }: Patched) -> Failure {
    Failure(format!(
        "Cargo.lock has no {name} {version}: look whether xtask/patches/{name}-{version}.patch is needed"
    ))
}

/// Writes a file unless it has this content already: a new modification time would make cargo rebuild.
fn write_if_other(file: &Path, text: &str) -> Outcome {
    if fs::read_to_string(file).is_ok_and(|present| present == text) {
        return Ok(());
    }
    fs::write(file, text).map_err(|error| format!("failed to write {}: {error}", file.display()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Patched = Patched { name: "one", version: "1.0.0" };

    #[test]
    fn a_patched_crate_loses_its_source_in_the_lock_file_and_nothing_else_changes() {
        let other =
            "[[package]]\nname = \"two\"\nversion = \"1.0.0\"\nsource = \"registry\"\nchecksum = \"2\"\n";
        let one = "[[package]]\nname = \"one\"\nversion = \"1.0.0\"\n";
        let needs = "dependencies = [\n \"two\",\n]\n\n";
        let lock = format!("version = 4\n\n{one}source = \"registry\"\nchecksum = \"1\"\n{needs}{other}");
        assert_eq!(without_source(&lock, ONE).unwrap(), format!("version = 4\n\n{one}{needs}{other}"));
    }

    #[test]
    fn a_patch_of_a_version_that_is_not_used_is_an_error_that_names_it() {
        let why = without_source("version = 4\n", ONE).unwrap_err().0;
        assert!(why.contains("no one 1.0.0") && why.contains("xtask/patches/one-1.0.0.patch"), "{why}");
    }
}
