//! The real kubectl, built from Kubernetes' own Go modules (pinned in
//! `xtask/kubectl/go.sum`): there is no better witness that the local API is
//! Kubernetes'.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Failure, Outcome, project, run as run_command, work};

const VERSION: &str = "1.36.3";

pub(crate) fn run(_: &[String]) -> Outcome {
    println!("{}", build()?.display());
    Ok(())
}

/// Builds it where it is not built yet; that takes some minutes, once.
pub(crate) fn build() -> Result<PathBuf, Failure> {
    let path = path()?;
    build_at(&path, None)?;
    Ok(path)
}

/// The same for a guest's processor, as Go calls it.
pub(crate) fn build_for(processor: &str) -> Result<PathBuf, Failure> {
    let path = work("kubectl")?.join(format!("kubectl-{VERSION}-{processor}"));
    build_at(&path, Some(processor))?;
    Ok(path)
}

/// Where the tests look for it.
pub(crate) fn path() -> Result<PathBuf, Failure> {
    Ok(work("kubectl")?.join(format!("kubectl-{VERSION}")))
}

fn build_at(path: &Path, processor: Option<&str>) -> Outcome {
    if path.exists() {
        return Ok(());
    }
    if Command::new("go").arg("version").output().is_err() {
        return Err("kubectl is built with Go 1.26 or later: install it, and have `go` in PATH".into());
    }
    let (major, minor) = VERSION.split_once('.').ok_or("a version has dots")?;
    let minor = minor.split('.').next().unwrap_or(minor);
    let of = "k8s.io/component-base/version";
    let new = path.with_extension("new");
    run_command(
        Command::new("go")
            .current_dir(project().join("xtask/kubectl"))
            .env("CGO_ENABLED", "0")
            .envs(processor.map(|processor| ("GOARCH", processor)))
            .args(["build", "-trimpath", "-ldflags"])
            .arg(format!(
                "-s -w -X {of}.gitVersion=v{VERSION} -X {of}.gitMajor={major} -X {of}.gitMinor={minor}"
            ))
            .arg("-o")
            .arg(&new)
            .arg("."),
    )?;
    std::fs::rename(&new, path)?;
    Ok(())
}
