//! crun, with and without conmon, which supervises containers elsewhere. Containers run the demo program in
//! the namespaces of `crun spec`, all with one root file system.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nodlet_build::task::{Outcome, TaskError, output};
use nodlet_tests::demo_program;
use serde_json::{Value, json};

use super::scratch::{Scratch, detaching, wait};

/// The size in bytes at which conmon's log is rotated, as nodlet's file is.
const LOG_SIZE: &str = "10485760";

pub(super) struct Crun<'a> {
    scratch: &'a Scratch,
    directory: PathBuf,
    state: PathBuf,
    spec: Value,
    /// Containers to delete at the end.
    containers: RefCell<Vec<String>>,
}

impl<'a> Crun<'a> {
    pub(super) fn new(scratch: &'a Scratch) -> Result<Self, TaskError> {
        let directory = scratch.directory("crun")?;
        let root = directory.join("rootfs");
        for inside in ["bin", "shared", "dev", "proc", "sys", "tmp"] {
            fs::create_dir_all(root.join(inside))?;
        }
        fs::copy(demo_program(), root.join("bin/demo"))?;
        let _ = fs::remove_file(directory.join("config.json"));
        output(Command::new("crun").arg("spec").current_dir(&directory))
            .map(drop)
            .map_err(|TaskError(why)| format!("{why}; `cargo xtask setup` installs it on Debian"))?;
        let mut spec: Value = serde_json::from_slice(&fs::read(directory.join("config.json"))?)?;
        spec["process"]["terminal"] = json!(false);
        spec["process"]["env"] = json!(["PATH=/bin"]);
        spec["mounts"].as_array_mut().ok_or("crun's spec has mounts")?.push(json!({
            "destination": "/shared", "type": "bind", "source": scratch.shared(), "options": ["rbind", "rw"]
        }));
        Ok(Self { scratch, directory, state: scratch.run("crun")?, spec, containers: RefCell::default() })
    }

    /// Prepares a container that executes these steps of the demo program, without starting it. Returns its
    /// ID.
    pub(super) fn prepare(&self, steps: &str) -> Result<String, TaskError> {
        let id = format!("nodlet-bench-{}-{}", std::process::id(), self.scratch.name("crun"));
        let args: Vec<&str> = std::iter::once("/bin/demo").chain(steps.split_whitespace()).collect();
        let mut spec = self.spec.clone();
        spec["process"]["args"] = json!(args);
        spec["linux"]["cgroupsPath"] = json!(self.scratch.cgroup(&format!("crun/{id}")));
        spec["root"]["path"] = json!(self.directory.join("rootfs"));
        let bundle = self.directory.join(&id);
        fs::create_dir_all(&bundle)?;
        fs::write(bundle.join("config.json"), spec.to_string())?;
        self.containers.borrow_mut().push(id.clone());
        Ok(id)
    }

    /// Runs `crun run --detach`, which ends when the container's program is executed.
    pub(super) fn run(&self, id: &str) -> Outcome {
        let mut command = self.command();
        command.args(["run", "--detach", "--bundle"]).arg(self.directory.join(id)).arg(id);
        detaching(&mut command, &self.directory.join("said"))
    }

    /// The command `crun exec`.
    pub(super) fn exec(&self, id: &str, words: &[&str]) -> Command {
        let mut command = self.command();
        command.arg("exec").arg(id).arg("/bin/demo").args(words);
        command
    }

    /// Starts the container below a conmon, as podman does. Returns conmon's process ID.
    pub(super) fn run_below_conmon(&self, id: &str) -> Result<u32, TaskError> {
        let bundle = self.directory.join(id);
        let sockets = self.scratch.run("sockets")?;
        let mut conmon = self.scratch.command("conmon");
        conmon
            .args(["--api-version", "1", "--runtime"])
            .arg(program("crun")?)
            .args(["--cid", id, "--cuuid", id, "--name", id, "--bundle"])
            .arg(&bundle)
            .arg("--container-pidfile")
            .arg(bundle.join("pid"))
            .arg("--conmon-pidfile")
            .arg(bundle.join("conmon.pid"))
            .arg("--log-path")
            .arg(format!("k8s-file:{}", bundle.join("log").display()))
            .args(["--log-size-max", LOG_SIZE, "--exit-dir"])
            .arg(self.scratch.run("exits")?)
            .arg("--socket-dir-path")
            .arg(&sockets)
            .arg(format!("--runtime-arg=--root={}", self.state.display()));
        detaching(&mut conmon, &self.directory.join("said"))?;
        let read = |name: &str| {
            let file = bundle.join(name);
            wait(&format!("conmon's {}", file.display()), Duration::from_millis(5), || {
                fs::read_to_string(&file).ok()?.trim().parse::<u32>().ok()
            })
        };
        read("pid")?;
        output(self.command().args(["start", id]))?;
        read("conmon.pid")
    }

    fn delete(&self, id: &str) -> Outcome {
        self.containers.borrow_mut().retain(|known| known != id);
        output(self.command().args(["delete", "--force", id]))?;
        Ok(fs::remove_dir_all(self.directory.join(id))?)
    }

    pub(super) fn delete_all(&self) -> Outcome {
        let all = self.containers.borrow().clone();
        all.iter().try_for_each(|id| self.delete(id))
    }

    fn command(&self) -> Command {
        let mut command = self.scratch.command("crun");
        command.arg("--root").arg(&self.state);
        command
    }
}

impl Drop for Crun<'_> {
    fn drop(&mut self) {
        for id in self.containers.take() {
            // crun does not know a container that never started.
            let _ = output(self.command().args(["delete", "--force", &id]));
        }
    }
}

/// The path of a program: conmon needs the path of the runtime.
fn program(name: &str) -> Result<PathBuf, TaskError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file());
    found
        .ok_or_else(|| TaskError(format!("{name} is not in PATH; `cargo xtask setup` installs it on Debian")))
}
