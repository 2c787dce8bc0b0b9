//! A guest whose first process becomes systemd, with NetworkManager and systemd-resolved: a system made by
//! debootstrap, fetched once into `.work/guest`, with nodlet installed as `docs/systemd.md` describes. It
//! is in memory, so that each boot begins with the same state. `tests/tests/systemd.rs` runs in it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodlet_build::task::{TaskError, project, run as run_command, work};
use nodlet_dist::tree::Tree;

/// The Debian release. It has systemd 257; DelegateSubgroup= needs 254.
const SUITE: &str = "trixie";

/// A Debian: the name of its directory, and its packages.
pub(super) struct Debian {
    name: &'static str,
    packages: &'static str,
}

/// The system with systemd, including the shells for which nodlet's package has completion.
pub(super) const SYSTEMD: Debian = Debian {
    name: "debian",
    packages: "systemd,systemd-sysv,systemd-resolved,udev,dbus,network-manager,iproute2,fish,zsh",
};

/// The system with firewalls, one of which is Docker.
pub(super) const FIREWALLS: Debian = Debian {
    name: "firewalls",
    packages: "ufw,firewalld,iptables,nftables,iproute2,dbus,libpam-systemd,docker.io,docker-cli",
};

/// Directories that no test inspects, and those that each boot fills itself. Tests start the services that
/// would otherwise start.
const EMPTY: &[&str] = &[
    "dev",
    "proc",
    "run",
    "sys",
    "etc/systemd/system/multi-user.target.wants",
    "usr/lib/udev/hwdb.d",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/zoneinfo",
    "var/cache/apt",
    "var/lib/apt",
    "var/log",
];

/// Files of `board/systemd`, and their destinations.
const OURS: &[(&str, &str)] = &[
    ("nodlet.service", "/usr/lib/systemd/system/nodlet.service"),
    ("05-nodlet.network", "/usr/lib/systemd/network/05-nodlet.network"),
    ("80-nodlet-networkmanager.conf", "/usr/lib/NetworkManager/conf.d/80-nodlet.conf"),
];

/// The service that executes the orders once systemd is up. It continues until the end, possibly of the
/// machine, because it ignores the signal that requests it to stop.
const SERVICE: &str = "[Unit]\nAfter=basic.target\n\n[Service]\nType=exec\nExecStart=/init\n\
    KillSignal=SIGURG\nTimeoutStopSec=600\n\
    StandardOutput=tty\nStandardError=tty\nTTYPath=/dev/console\n";

/// A system for a processor in Debian's spelling. Created if it does not exist.
pub(super) fn get(processor: &str, debian: &Debian) -> Result<PathBuf, TaskError> {
    let dir = work(&format!("guest/{processor}"))?.join(debian.name);
    let made_of = dir.with_extension("packages");
    if !dir.is_dir() || fs::read_to_string(&made_of).ok().as_deref() != Some(debian.packages) {
        // Created under another name and renamed, so that an existing directory is complete.
        let aside = dir.with_extension("new");
        let _ = fs::remove_dir_all(&aside);
        let mut debootstrap = Command::new("debootstrap");
        debootstrap.args(["--variant=minbase", &format!("--arch={processor}")]);
        debootstrap.arg(format!("--include={}", debian.packages)).arg(SUITE).arg(&aside);
        run_command(debootstrap.arg(nodlet_build::debian::mirror()?).stdout(io::stderr()))?;
        let _ = fs::remove_dir_all(&dir);
        fs::rename(&aside, &dir)?;
        fs::write(made_of, debian.packages)?;
    }
    Ok(dir)
}

/// Adds nodlet, which the system has without its package, to the initramfs of a guest.
pub(super) fn install_nodlet(tree: &mut Tree, nodlet: Vec<u8>) -> io::Result<()> {
    tree.file("/usr/bin/nodlet", 0o755, nodlet);
    for (name, path) in OURS {
        tree.file(path, 0o644, fs::read(project().join("board/systemd").join(name))?);
    }
    Ok(())
}

/// Adds the system to the initramfs of a guest.
pub(super) fn install(tree: &mut Tree, system: &Path, console: &str) -> io::Result<()> {
    tree.copy(system, EMPTY)?;
    tree.file("/etc/hostname", 0o644, b"guest\n");
    // Without a machine ID, systemd assumes the very first boot, and prompts.
    tree.file("/etc/machine-id", 0o444, b"6e6f646c65740000000000000000f00d\n");
    tree.file("/etc/systemd/system/guest.service", 0o644, SERVICE);
    tree.link("/etc/systemd/system/multi-user.target.wants/guest.service", "../guest.service");
    tree.link("/etc/systemd/system/default.target", "/usr/lib/systemd/system/multi-user.target");
    // The tests use the console.
    tree.link(&format!("/etc/systemd/system/serial-getty@{console}.service"), "/dev/null");
    Ok(())
}

/// Adds a system without its systemd to the initramfs of a guest.
pub(super) fn install_without(tree: &mut Tree, system: &Path) -> io::Result<()> {
    tree.copy(system, &[EMPTY, &["usr/lib/systemd"]].concat())
}
