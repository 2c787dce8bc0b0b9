//! Programs of crates.io that a task needs. They are built once, for this machine, and kept in `.work/tools`.

use std::path::PathBuf;
use std::process::Command;

use crate::task::{TaskError, plain_cargo, run as run_command, work};

/// A program of crates.io, in the version that was tested. The version has its own lock file.
pub struct Tool {
    name: &'static str,
    version: &'static str,
}

/// Reads the list of crates in a program.
pub(crate) const RUST_AUDIT_INFO: Tool = Tool { name: "rust-audit-info", version: "0.5.4" };

/// Writes a software bill of materials in the form of CycloneDX.
pub const CARGO_CYCLONEDX: Tool = Tool { name: "cargo-cyclonedx", version: "0.5.9" };

/// Writes a software bill of materials in the form of SPDX.
pub const CARGO_SBOM: Tool = Tool { name: "cargo-sbom", version: "0.10.0" };

impl Tool {
    /// The path of the program, which is built if it is missing.
    pub fn provide(&self) -> Result<PathBuf, TaskError> {
        let root = work("tools")?.join(format!("{}-{}", self.name, self.version));
        let program = root.join("bin").join(self.name);
        if !program.is_file() {
            run_command(&mut self.install(&root))?;
        }
        Ok(program)
    }

    fn install(&self, root: &std::path::Path) -> Command {
        let mut cargo = plain_cargo();
        // Outside of the checkout, whose configuration is that of nodlet.
        cargo.current_dir("/").args(["install", "--locked", "--root"]).arg(root);
        cargo.arg(format!("{}@{}", self.name, self.version));
        // Not for speed: the programs run for a moment.
        cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0").env("CARGO_PROFILE_RELEASE_LTO", "off");
        cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        for ours in ["CARGO_BUILD_TARGET", "CARGO_TARGET_DIR", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
            cargo.env_remove(ours);
        }
        cargo
    }
}
