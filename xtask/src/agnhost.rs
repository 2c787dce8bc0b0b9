//! agnhost, the program of Kubernetes' own tests, built from Kubernetes' modules
//! (pinned in `xtask/agnhost/go.sum`): servers that were not written with nodlet
//! in mind.

use std::path::PathBuf;
use std::process::Command;

use crate::{Failure, Outcome, project, run as run_command, work};

const VERSION: &str = "1.36.3";

pub(crate) fn run(_: &[String]) -> Outcome {
    println!("{}", build()?.display());
    Ok(())
}

/// Builds it where it is not built yet; that takes some minutes, once.
pub(crate) fn build() -> Result<PathBuf, Failure> {
    let path = work("agnhost")?.join(format!("agnhost-{VERSION}"));
    if path.exists() {
        return Ok(path);
    }
    if Command::new("go").arg("version").output().is_err() {
        return Err("agnhost is built with Go 1.26 or later: install it, and have `go` in PATH".into());
    }
    let new = path.with_extension("new");
    run_command(
        Command::new("go")
            .current_dir(project().join("xtask/agnhost"))
            .env("CGO_ENABLED", "0")
            .args(["build", "-trimpath", "-ldflags", "-s -w", "-o"])
            .arg(&new)
            .arg("k8s.io/kubernetes/test/images/agnhost"),
    )?;
    std::fs::rename(&new, &path)?;
    Ok(path)
}
