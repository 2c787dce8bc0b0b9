//! The requirements of the tests on the machine. `cargo xtask setup`, or `check --install`, installs them on Debian; other
//! tasks only report what is missing, because unexpected installations are unwelcome.
//!
//! nodlet itself needs none of this: the tools make images for it to load, inspect what it wrote, or are
//! compared with it.

use std::path::Path;

use crate::programs::on_path;
use crate::targets;
use crate::task::{Outcome, TaskError};

/// The programs, and the Debian package that has each.
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
    ("nft", "nftables"),
    ("iptables-nft", "iptables"),
    ("openssl", "openssl"),
    ("curl", "curl"),
    ("dig", "bind9-dnsutils"),
    ("nc.openbsd", "netcat-openbsd"),
    ("ssh", "openssh-client"),
];

/// Fails, with a remedy, if the tests could not run.
pub fn require() -> Outcome {
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

/// Fails, with a remedy, if one of these programs is missing.
pub fn require_programs(programs: &[&str]) -> Outcome {
    let missing: Vec<&str> = programs.iter().copied().filter(|program| !in_path(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("install {}: on Debian, `cargo xtask setup` does that", missing.join(", ")).into())
}

/// Fails without root, which is needed to start real containers.
pub fn require_root() -> Outcome {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().nth(1));
    if effective == Some("0") {
        Ok(())
    } else {
        Err(TaskError(
            "this starts real containers, and only root may: run it as `sudo -E env PATH=$PATH cargo xtask …`".into(),
        ))
    }
}

/// The programs that this machine lacks, each with the Debian package that has it.
pub fn missing() -> Vec<(&'static str, &'static str)> {
    let emulator = targets::host().ok().map(|target| target.emulator);
    TOOLS.iter().copied().chain(emulator).filter(|(program, _)| !in_path(program)).collect()
}

fn in_path(program: &str) -> bool {
    // Debian installs some of them in directories that are only in root's PATH.
    on_path(program) || ["/usr/sbin", "/sbin"].iter().any(|dir| Path::new(dir).join(program).is_file())
}
