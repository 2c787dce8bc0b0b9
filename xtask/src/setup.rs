//! The requirements of the tests on the machine. `setup`, or `check --install`, installs them on Debian;
//! `check` alone only reports what is missing, because unexpected installations are unwelcome.
//!
//! nodlet itself needs none of this: the tools make images for it to load, inspect what it wrote, or are
//! compared with it.

use std::path::Path;
use std::process::Command;

use nix::sys::statvfs::statvfs;

use crate::guest;
use crate::task::{Failure, Outcome, project, run as run_command, target_dir};
use crate::toolchain;

/// The disk that a whole check needs in a fresh clone, in bytes.
const CHECK_DISK: u64 = 14 << 30;

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
    ("ssh", "openssh-client"),
];

pub(crate) fn run(_: &[String]) -> Outcome {
    // Writes the configuration of builds in this checkout, with the patched crate.
    toolchain::host()?;
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

/// Fails, with a remedy, if the tests could not run.
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

/// Fails if a whole check would fill the disk: that would only be seen in the middle, as the failure of some tool.
/// What earlier checks left here counts as room, because it is used again.
pub(crate) fn require_disk() -> Outcome {
    let stat = statvfs(project()).map_err(|error| Failure(format!("{}: {error}", project().display())))?;
    let free = stat.blocks_available() * stat.fragment_size();
    let room = free + allocated(&target_dir()) + allocated(&project().join(".work"));
    if room >= CHECK_DISK {
        return Ok(());
    }
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    Err(Failure(format!(
        "{} has room for {:.1} GB, and a whole check needs {:.1} GB: free some, or name the steps to run",
        project().display(),
        gigabytes(room),
        gigabytes(CHECK_DISK),
    )))
}

/// The bytes that the files below a directory take on the disk; none if it is missing.
fn allocated(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => allocated(&entry.path()),
        Ok(found) => std::os::unix::fs::MetadataExt::blocks(&found) * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

/// Fails, with a remedy, if one of these programs is missing.
pub(crate) fn require_programs(programs: &[&str]) -> Outcome {
    let missing: Vec<&str> = programs.iter().copied().filter(|program| !in_path(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("install {}: on Debian, `cargo xtask setup` does that", missing.join(", ")).into())
}

/// Fails without root, which is needed to start real containers.
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
    // Debian installs some of them in directories that are only in root's PATH.
    let more = ["/usr/sbin".into(), "/sbin".into()];
    std::env::split_paths(&path).chain(more).any(|dir| dir.join(program).is_file())
}
