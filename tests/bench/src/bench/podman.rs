//! podman, with its own storage, and with only its Debian package: containers have no network, which would
//! need another package.

use std::path::{Path, PathBuf};
use std::process::Command;

use nodlet_build::task::{Outcome, TaskError, output};
use nodlet_tests::demo_archive;

use super::scratch::{Scratch, detaching};

/// podman's own default limits cannot be set without CAP_SYS_RESOURCE.
const LIMITS: [&str; 4] = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"];

pub(super) struct Podman<'a> {
    scratch: &'a Scratch,
    directory: PathBuf,
    run: PathBuf,
}

impl<'a> Podman<'a> {
    /// A podman that has the demo image.
    pub(super) fn new(scratch: &'a Scratch) -> Result<Self, TaskError> {
        let podman = Self { scratch, directory: scratch.directory("podman")?, run: scratch.run("podman")? };
        output(&mut podman.load(demo_archive()))
            .map(drop)
            .map_err(|TaskError(why)| format!("{why}; `cargo xtask setup` installs it on Debian"))?;
        Ok(podman)
    }

    /// The command `podman load`.
    pub(super) fn load(&self, archive: &Path) -> Command {
        let mut command = self.command();
        command.args(["load", "--quiet", "--input"]).arg(archive);
        command
    }

    pub(super) fn remove_image(&self, reference: &str) -> Outcome {
        output(self.command().args(["rmi", "--force", reference])).map(drop)
    }

    /// Runs `podman run --detach` with these steps of the demo program; `name` must be new.
    pub(super) fn run(&self, name: &str, steps: &str) -> Outcome {
        let mut command = self.command();
        command.args(["run", "--detach", "--name", name, "--network", "none"]).args(LIMITS);
        command.arg("--cgroup-parent").arg(self.scratch.cgroup("podman"));
        command.arg("--volume").arg(format!("{}:/shared", self.scratch.shared().display()));
        command.arg("localhost/demo:1").args(steps.split_whitespace());
        detaching(&mut command, &self.directory.join("said"))
    }

    /// The command `podman exec`.
    pub(super) fn exec(&self, name: &str, words: &[&str]) -> Command {
        let mut command = self.command();
        command.args(["exec", name, "/bin/demo"]).args(words);
        command
    }

    pub(super) fn remove_all(&self) -> Outcome {
        output(self.command().args(["rm", "--force", "--all", "--time", "0"])).map(drop)
    }

    fn command(&self) -> Command {
        let mut command = self.scratch.command("podman");
        command.arg("--root").arg(self.directory.join("root"));
        command.arg("--runroot").arg(self.run.join("run")).arg("--tmpdir").arg(self.run.join("tmp"));
        command.args(["--storage-driver", "overlay", "--cgroup-manager", "cgroupfs", "--runtime", "crun"]);
        command.args(["--events-backend", "none"]);
        command
    }
}

impl Drop for Podman<'_> {
    fn drop(&mut self) {
        let _ = self.remove_all();
        // podman's storage mounts itself, in the view.
        let _ = output(self.scratch.command("umount").arg("--lazy").arg(self.directory.join("root/overlay")));
    }
}
