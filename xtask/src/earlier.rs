//! Builds binaries of earlier commits, whose running pods the current nodlet must take over.

use std::path::{Path, PathBuf};
use std::process::Command;

use nodlet_build::targets;
use nodlet_build::task::{Outcome, TaskError, outside, plain_cargo, project, run as run_command, work};

/// An earlier commit.
pub(crate) struct Earlier(&'static str);

/// One commit for each version of the protocol between agent and supervisor that was ever on main:
/// supervisors of that version may run on some board.
pub(crate) const ALL: &[Earlier] = &[
    // Version 1: before kills and upgrades were tested, without attach and port-forward.
    Earlier("b69db2a"),
    // Version 2: with both.
    Earlier("91ee1e9"),
];

impl Earlier {
    /// Builds the commit's binary once, in `.work/earlier`. Returns its path.
    pub(crate) fn build(&self) -> Result<PathBuf, TaskError> {
        let dir = work("earlier")?.join(self.0);
        let built = dir.join("nodlet");
        if built.is_file() {
            return Ok(built);
        }
        // With the configuration of that commit alone.
        let source = outside(&format!("earlier-{}", self.0))?;
        let (target, triple) = (source.join("target"), targets::host()?.triple);
        std::fs::create_dir_all(&dir)?;
        std::fs::create_dir_all(&source)?;
        extract(self.0, &source)?;
        let mut cargo = plain_cargo();
        cargo.current_dir(&source).env("CARGO_TARGET_DIR", &target).env("CARGO_BUILD_TARGET", triple);
        run_command(cargo.args(["build", "--locked", "--package", "nodlet"]))?;
        // Renamed last, so that an existing file is complete.
        let aside = dir.join("nodlet.new");
        std::fs::copy(target.join(triple).join("debug/nodlet"), &aside)?;
        std::fs::rename(&aside, &built)?;
        std::fs::remove_dir_all(&source)?;
        Ok(built)
    }
}

fn extract(commit: &str, source: &Path) -> Outcome {
    let archive = source.with_extension("tar");
    let mut git = Command::new("git");
    git.current_dir(project()).args(["archive", "--output"]).arg(&archive).arg(commit);
    run_command(&mut git)?;
    run_command(
        Command::new("tar").arg("--extract").arg("--file").arg(&archive).arg("--directory").arg(source),
    )?;
    Ok(std::fs::remove_file(&archive)?)
}
