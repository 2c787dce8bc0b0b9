//! Makes the bundle's config.json, with the content that containerd would write for the same container.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use serde_json::{Value, json};

use super::{CONSOLE, Container, Paths};
use crate::execute;
use crate::sys;
use nodlet_host::launch::DeviceNode;

/// Paths that are hidden from an unprivileged container.
const MASKED_PATHS: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// Paths that are read-only in an unprivileged container.
const READ_ONLY_PATHS: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

pub(super) fn make(container: &Container, paths: &Paths) -> Value {
    let (config, user) = (&container.config, container.user);
    // So that libcontainer does not look it up in an /etc/passwd that a volume may have replaced.
    let home = format!("HOME={}", user.home);
    let wanted = execute::capability_bits(&config.process.capabilities);
    // Needed to mount, to enter namespaces, and to install a filter without no_new_privs. It is not in the bounding set, so
    // it is gone after the program is executed.
    let mut before = wanted;
    let needs_filter = config.process.seccomp.is_some() && !config.process.no_new_privileges;
    if container.needs_setup_inside() || needs_filter {
        before |= execute::capability_bits(&["CAP_SYS_ADMIN"]);
    }
    if container.sets_groups_late() {
        before |= execute::capability_bits(&["CAP_SETGID"]);
    }
    let before = sys::own_capabilities(before).unwrap_or(0);
    let capabilities = execute::capability_names(before & wanted);
    let before = execute::capability_names(before);
    let unmasked = config.privileged || config.unmasked;
    json!({
        "ociVersion": "1.2.0",
        "process": {
            "terminal": false,
            "user": {
                "uid": user.uid,
                "gid": user.gid,
                "umask": 0o022,
                "additionalGids": if container.sets_groups_late() { &[] } else { user.groups.as_slice() },
            },
            "args": config.process.args,
            "env": [home],
            "cwd": config.process.cwd,
            "capabilities": {
                "bounding": capabilities,
                "effective": before,
                "permitted": before,
                "inheritable": [],
                "ambient": [],
            },
            "noNewPrivileges": config.process.no_new_privileges,
        },
        "root": { "path": paths.root, "readonly": config.read_only_root },
        "mounts": mounts(container, paths),
        "linux": {
            // See `cgroups.rs`.
            "cgroupsPath": "/",
            "namespaces": namespaces(container),
            "maskedPaths": if unmasked { Vec::new() } else { masked_paths() },
            "readonlyPaths": if unmasked { &[] } else { READ_ONLY_PATHS },
            "rootfsPropagation": "slave",
            "devices": container.devices.iter().map(device).collect::<Vec<_>>(),
        },
    })
}

fn mounts(container: &Container, paths: &Paths) -> Vec<Value> {
    let mount = |kind: &str, destination: &str, options: &[&str]| json!({ "type": kind, "source": kind, "destination": destination, "options": options });
    let sys = if container.config.privileged { "rw" } else { "ro" };
    let mut mounts = Vec::new();
    if container.pid_namespace.is_none() {
        mounts.push(mount("proc", "/proc", &["nosuid", "noexec", "nodev"]));
    }
    mounts.extend([
        mount("mqueue", "/dev/mqueue", &["nosuid", "noexec", "nodev"]),
        mount("sysfs", "/sys", &["nosuid", "noexec", "nodev", sys]),
    ]);
    if let Some(cgroup) = &paths.cgroup {
        mounts.push(json!({
            "type": "bind",
            "source": cgroup,
            "destination": "/sys/fs/cgroup",
            "options": ["rbind", "nosuid", "noexec", "nodev", sys],
        }));
    }
    if let Some(console) = &paths.console {
        mounts.push(json!({
            "type": "bind",
            "source": console,
            "destination": CONSOLE,
            "options": ["bind", "nosuid", "noexec"],
        }));
    }
    mounts
}

fn namespaces(container: &Container) -> Vec<Value> {
    let of = container.namespaces;
    let mut namespaces = vec![json!({ "type": "mount" })];
    // A path below /proc/<pid of the supervisor> would be rejected with a user namespace.
    let mut join = |kind: &str, fd: Option<BorrowedFd>| {
        if let Some(fd) = fd {
            namespaces.push(json!({ "type": kind, "path": format!("/proc/self/fd/{}", fd.as_raw_fd()) }));
        }
    };
    join("network", of.net.as_ref().map(AsFd::as_fd));
    join("ipc", of.ipc.as_ref().map(AsFd::as_fd));
    join("uts", of.uts.as_ref().map(AsFd::as_fd));
    join("user", of.user.as_ref().map(AsFd::as_fd));
    if container.pid_namespace.is_none() && !of.host_pid {
        namespaces.push(json!({ "type": "pid" }));
    }
    namespaces
}

/// The fixed paths, and those of this machine's processors.
fn masked_paths() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    // `cpu0`, and not `cpufreq`: there are more of the others than of processors.
    let cpus = entries.filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().strip_prefix(b"cpu").is_some_and(|rest| rest.iter().all(u8::is_ascii_digit))
    });
    let throttles = cpus.map(|cpu| cpu.path().join("thermal_throttle")).filter(|path| path.exists());
    let fixed = MASKED_PATHS.iter().map(|path| (*path).to_owned());
    fixed.chain(throttles.map(|path| path.to_string_lossy().into_owned())).collect()
}

fn device(device: &DeviceNode) -> Value {
    json!({
        "path": device.path,
        "type": if device.block { "b" } else { "c" },
        "major": device.major,
        "minor": device.minor,
        "fileMode": device.mode,
        "uid": device.uid,
        "gid": device.gid,
    })
}
