//! Builds nodlet as a distribution does: only from the archive of the sources of a release, with an empty `CARGO_HOME`, with
//! crates fetched first and no network afterwards, for this machine's C library. `docs/building.md` tells
//! distributions what they need to know; this task tests that it is true.

use std::fs;
use std::process::Command;

use nodlet_build::elf;
use nodlet_build::task::{
    Outcome, Task, TaskError, outside, plain_cargo, project, run as run_command, target_dir,
};
use nodlet_dist::release;

/// The task `cargo xtask distribution`.
pub(crate) const TASK: Task =
    Task::new("distribution", "", "build as a distribution does: stable Rust, this C library, offline", run);

pub(crate) fn run(_: &[String]) -> Outcome {
    let program = build()?;
    let headers = elf::read(&fs::read(&program)?)?;
    let linked = if headers.interpreter { "dynamic" } else { "static" };
    println!("{}: {} bytes, {linked}", program.display(), fs::metadata(&program)?.len());
    run_command(Command::new(&program).arg("--help").stdout(std::process::Stdio::null()))
}

fn build() -> Result<std::path::PathBuf, TaskError> {
    let (version, host) = compiler()?;
    if version.contains("nightly") || version.contains("beta") {
        return Err(TaskError(format!("rustc {version} is not a stable Rust")));
    }
    let dir = outside("distribution")?;
    let (source, home) = (dir.join("source"), dir.join("cargo-home"));
    fs::create_dir_all(&source)?;
    let archive = release::source_archive(&dir)?;
    let mut tar = Command::new("tar");
    run_command(
        tar.arg("--extract").arg("--strip-components=1").arg("--file").arg(&archive).arg("-C").arg(&source),
    )?;
    let cargo = || {
        let mut command = plain_cargo();
        command.current_dir(&source).env("CARGO_HOME", &home);
        command.env("CARGO_TARGET_DIR", target_dir().join("distribution"));
        for ours in ["CARGO_BUILD_TARGET", "RUSTC_BOOTSTRAP", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
            command.env_remove(ours);
        }
        command
    };
    run_command(cargo().args(["fetch", "--locked", "--target"]).arg(&host))?;
    run_command(cargo().args(["build", "--release", "--locked", "--offline", "--package", "nodlet"]))?;
    fs::remove_dir_all(&dir)?;
    Ok(target_dir().join("distribution/release/nodlet"))
}

/// The compiler's version, and its default target.
fn compiler() -> Result<(String, String), TaskError> {
    let output = Command::new("rustc").arg("-vV").current_dir(project()).output()?;
    let text = String::from_utf8(output.stdout)?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map(str::to_owned).ok_or_else(|| TaskError(format!("`rustc -vV` names no {name}")))
    };
    Ok((field("release")?, field("host")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_and_host_of_the_compiler_are_read() {
        let (version, host) = compiler().unwrap();
        assert!(version.starts_with(char::is_numeric), "{version}");
        assert!(host.contains("-linux-"), "{host}");
    }
}
