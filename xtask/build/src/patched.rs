//! The one crate that is patched: libcontainer, which does not compile for 32-bit ARM as published, and would give
//! containers wrong ids there. `xtask/patches/NAME-VERSION.patch` is applied to a copy of the crate in `.cargo/host`, and
//! `config.toml` beside it (`toolchain.rs`) makes all builds in this checkout use the copy. `Cargo.lock` stays unchanged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::files;
use crate::targets;
use crate::task::{TaskError, output, plain_cargo, project, run as run_command};

const NAME: &str = "libcontainer";
const VERSION: &str = "0.7.0";

/// The name of the patched crate in the directory `host`. Created if it is missing or the patch has changed.
pub(crate) fn libcontainer(host: &Path) -> Result<String, TaskError> {
    let name = format!("{NAME}-{VERSION}");
    let copy = host.join(&name);
    let patch = project().join(format!("xtask/patches/{NAME}-{VERSION}.patch"));
    let text = files::read(&patch)?;
    let applied = copy.join(".applied.patch");
    if fs::read(&applied).is_ok_and(|before| before == text) {
        return Ok(name);
    }
    // Until the copy is complete, builds use the published crate.
    let aside = copy.with_extension("new");
    for old in [&copy, &aside] {
        if old.exists() {
            fs::remove_dir_all(old)?;
        }
    }
    fs::create_dir_all(host)?;
    run_command(Command::new("cp").arg("--recursive").arg(published()?).arg(&aside))?;
    // Pretends to be outside of any repository, so that git uses the paths unchanged.
    let mut git = Command::new("git");
    git.arg("apply").arg(&patch).current_dir(&aside).env("GIT_CEILING_DIRECTORIES", host);
    run_command(&mut git)?;
    fs::write(aside.join(".applied.patch"), text)?;
    fs::rename(&aside, &copy)?;
    Ok(name)
}

/// The directory into which cargo unpacks the published crate.
fn published() -> Result<PathBuf, TaskError> {
    let mut cargo = plain_cargo();
    // Outside of the checkout, whose configuration may name a copy that is being made.
    cargo.args(["metadata", "--locked", "--format-version", "1"]);
    // Without crates for other systems, which would be downloaded.
    cargo.args(["--filter-platform", targets::host()?.triple, "--manifest-path"]);
    cargo.arg(project().join("Cargo.toml")).current_dir("/").stderr(Stdio::inherit());
    directory(&serde_json::from_str(&output(&mut cargo)?)?)
}

/// The directory of the crate in the output of `cargo metadata`.
fn directory(metadata: &serde_json::Value) -> Result<PathBuf, TaskError> {
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .find(|package| package["name"] == NAME && package["version"] == VERSION)
        .and_then(|package| Path::new(package["manifest_path"].as_str()?).parent())
        .map(Path::to_owned)
        .ok_or_else(|| {
            TaskError(format!(
                "Cargo.lock has no {NAME} {VERSION}: look whether xtask/patches/{NAME}-{VERSION}.patch is needed"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_of_a_version_that_is_not_used_is_an_error_that_names_it() {
        let of = |version: &str| {
            serde_json::json!({ "packages": [
                { "name": NAME, "version": version, "manifest_path": "/crates/one/Cargo.toml" },
            ] })
        };
        assert_eq!(directory(&of(VERSION)).unwrap(), Path::new("/crates/one"));
        let why = directory(&of("9.0.0")).unwrap_err().0;
        assert!(
            why.contains("no libcontainer 0.7.0") && why.contains("xtask/patches/libcontainer-0.7.0.patch"),
            "{why}"
        );
    }
}
