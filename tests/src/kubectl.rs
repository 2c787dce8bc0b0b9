//! Runs the real kubectl against a device. `cargo xtask kubectl` builds it, and `cargo xtask check` does so
//! before it runs the tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::device::{Device, Ran};
use crate::forward::Forwarder;

/// kubectl with access to the API of one device.
pub struct Kubectl {
    forwarder: Forwarder,
    home: PathBuf,
}

impl Kubectl {
    /// Starts the forwarding; kubectl itself must have been built.
    pub fn new(device: &Device) -> Self {
        assert!(
            program().is_file(),
            "kubectl is not built: run `cargo xtask kubectl`, or `cargo xtask check`"
        );
        Self { forwarder: device.forward(), home: device.path("/home") }
    }

    /// A kubectl command with these arguments, for tests that run it themselves.
    pub fn command<const N: usize>(&self, words: [&str; N]) -> Command {
        let mut command = Command::new(program());
        command
            .arg(format!("--server=http://{}", self.forwarder.address()))
            .args(words)
            // Ignore the configuration of the user who runs the tests: clusters and caches.
            .env("KUBECONFIG", "/dev/null")
            .env("HOME", &self.home);
        command
    }

    /// Cuts all connections, as if the machine that runs kubectl disappeared.
    pub fn cut(&self) {
        self.forwarder.cut();
    }

    /// Runs kubectl with these arguments.
    pub fn run<const N: usize>(&self, words: [&str; N]) -> Ran {
        let output = self.command(words).output().expect("kubectl can be run");
        Ran::new(format!("kubectl {}", words.join(" ")), output)
    }

    /// Runs kubectl with the arguments in a line, which is split at spaces.
    pub fn line(&self, line: &str) -> Ran {
        let output = self.command([]).args(line.split_whitespace()).output().expect("kubectl can be run");
        Ran::new(format!("kubectl {line}"), output)
    }

    /// Runs `kubectl apply` with a manifest.
    pub fn apply(&self, manifest: &str) -> Ran {
        Ran::of(self.command(["apply", "-f", "-"]), "kubectl apply", manifest)
    }
}

pub(crate) fn program() -> PathBuf {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this is a member of the workspace");
    project.join(".work/kubectl/kubectl-1.36.3")
}
