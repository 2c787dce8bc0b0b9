//! What the tests need from the machine. `setup`, or `check --install`, gets it on
//! Debian; `check` alone only says what is missing, because nobody wants packages
//! by surprise.
//!
//! nodlet itself needs none of this: the tools make images for it to load, look
//! at what it wrote, or are what it is compared with.

use std::process::Command;

use crate::{Failure, Outcome, guest, run as run_command};

/// A program and the Debian package that brings it.
const TOOLS: &[(&str, &str)] = &[
    ("buildah", "buildah"),
    ("podman", "podman"),
    ("skopeo", "skopeo"),
    ("crun", "crun"),
    ("conmon", "conmon"),
    ("fsck.erofs", "erofs-utils"),
    ("umoci", "umoci"),
    ("dpkg-deb", "dpkg"),
    ("gzip", "gzip"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
    ("debootstrap", "debootstrap"),
    ("ip", "iproute2"),
    ("openssl", "openssl"),
    ("ssh", "openssh-client"),
];

pub(crate) fn run(_: &[String]) -> Outcome {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    require_root()?;
    run_command(Command::new("apt-get").args(["-qq", "update"]))?;
    run_command(
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["-qq", "-y", "install", "--no-install-recommends"])
            .args(missing.iter().map(|(_, package)| package)),
    )
}

/// Refuses, with the way on, where the tests could not run.
pub(crate) fn require() -> Outcome {
    require_root()?;
    let missing: Vec<&str> = missing().iter().map(|(program, _)| *program).collect();
    if !missing.is_empty() {
        return Err(format!(
            "the tests need {}; `cargo xtask check --install` gets what is missing on Debian",
            missing.join(", ")
        )
        .into());
    }
    if !in_path("go") {
        return Err(
            "the tests build the real kubectl and agnhost: install Go 1.26 or later, and have `go` in PATH"
                .into(),
        );
    }
    Ok(())
}

/// Containers are started for real, and that takes root.
pub(crate) fn require_root() -> Outcome {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1));
    if effective == Some("0") {
        Ok(())
    } else {
        Err(Failure(
            "this starts real containers, and only root may: run it as `sudo -E env PATH=$PATH cargo xtask …`".into(),
        ))
    }
}

fn missing() -> Vec<(&'static str, &'static str)> {
    TOOLS.iter().copied().chain(guest::emulator()).filter(|(program, _)| !in_path(program)).collect()
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps some of them where only root's PATH leads.
    let more = ["/usr/sbin".into(), "/sbin".into()];
    std::env::split_paths(&path).chain(more).any(|dir| dir.join(program).is_file())
}
