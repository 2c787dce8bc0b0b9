//! Makes the bundle's config.json, with the content that containerd would write for the same container.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::User;
use crate::execute;
use crate::sandbox::Namespaces;
use crate::sys;
use nodlet_host::launch::{ContainerConfig, DeviceNode};

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

/// Upper bound of the host devices that a privileged container gets, for a /dev full of them.
const MAX_DEVICES: usize = 1024;

/// The parts that the helper has made for the container.
pub(super) struct Made<'a> {
    pub(super) root: &'a Path,
    pub(super) namespaces: &'a Namespaces,
    pub(super) user: &'a User,
    /// Devices in addition to those that every container has.
    pub(super) devices: Vec<DeviceNode>,
    /// Whether libcontainer mounts /proc, because the container has its own PID namespace or the host's.
    /// Otherwise the helper has attached /proc, and the container's process enters the PID namespace itself.
    pub(super) mounts_proc: bool,
    pub(super) cgroup: Option<&'a Path>,
    /// Whether the container's process sets its groups. libcontainer reads /proc/self first, of which a user namespace
    /// has none where /proc shows another PID namespace.
    pub(super) sets_groups_late: bool,
    /// Whether the container's process has to mount or enter something before it executes its program.
    pub(super) needs_setup_in_container: bool,
    /// A file that the terminal will replace.
    pub(super) console: Option<&'a Path>,
}

pub(super) fn make(config: &ContainerConfig, made: &Made) -> Value {
    // So that libcontainer does not look it up in an /etc/passwd that a volume may have replaced.
    let home = format!("HOME={}", made.user.home);
    let wanted = execute::capability_bits(&config.process.capabilities);
    // Needed to mount, to enter namespaces, and to install a filter without no_new_privs. It is not in the bounding set, so it is gone after the program
    // is executed.
    let mut before = wanted;
    let needs_filter = config.process.seccomp.is_some() && !config.process.no_new_privileges;
    if made.needs_setup_in_container || needs_filter {
        before |= execute::capability_bits(&["CAP_SYS_ADMIN".to_owned()]);
    }
    if made.sets_groups_late {
        before |= execute::capability_bits(&["CAP_SETGID".to_owned()]);
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
                "uid": made.user.uid,
                "gid": made.user.gid,
                "umask": 0o022,
                "additionalGids": if made.sets_groups_late { &[] } else { made.user.groups.as_slice() },
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
        "root": { "path": made.root, "readonly": config.read_only_root },
        "mounts": mounts(config, made),
        "linux": {
            // See `hide_cgroups`.
            "cgroupsPath": "/",
            "namespaces": namespaces(made),
            "maskedPaths": if unmasked { Vec::new() } else { masked_paths() },
            "readonlyPaths": if unmasked { &[] } else { READ_ONLY_PATHS },
            "rootfsPropagation": "slave",
            "devices": made.devices.iter().map(device).collect::<Vec<_>>(),
        },
    })
}

fn mounts(config: &ContainerConfig, made: &Made) -> Vec<Value> {
    let mount = |kind: &str, destination: &str, options: &[&str]| json!({ "type": kind, "source": kind, "destination": destination, "options": options });
    let sys = if config.privileged { "rw" } else { "ro" };
    let mut mounts = Vec::new();
    if made.mounts_proc {
        mounts.push(mount("proc", "/proc", &["nosuid", "noexec", "nodev"]));
    }
    mounts.extend([
        mount("mqueue", "/dev/mqueue", &["nosuid", "noexec", "nodev"]),
        mount("sysfs", "/sys", &["nosuid", "noexec", "nodev", sys]),
    ]);
    if let Some(cgroup) = made.cgroup {
        mounts.push(json!({
            "type": "bind",
            "source": cgroup,
            "destination": "/sys/fs/cgroup",
            "options": ["rbind", "nosuid", "noexec", "nodev", sys],
        }));
    }
    if let Some(console) = made.console {
        mounts.push(json!({
            "type": "bind",
            "source": console,
            "destination": super::CONSOLE,
            "options": ["bind", "nosuid", "noexec"],
        }));
    }
    mounts
}

fn namespaces(made: &Made) -> Vec<Value> {
    let of = made.namespaces;
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
    if made.mounts_proc && !of.host_pid {
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

/// A device that the container asks for. Its node belongs to the container's user unless it names an owner. `first` is
/// the ID of the host that is ID 0 of the container; an ID that the container does not have becomes its last one.
pub(super) fn own_device(device: &DeviceNode, user: &User, first: u32) -> DeviceNode {
    let host = |id: u32| if first == 0 { id } else { first + id.min(0xffff) };
    DeviceNode {
        mode: Some(device.permissions()),
        uid: Some(host(device.uid.unwrap_or(user.uid))),
        gid: Some(host(device.gid.unwrap_or(user.gid))),
        ..device.clone()
    }
}

/// Every device node of the host's /dev.
pub(super) fn host_devices() -> Vec<DeviceNode> {
    let mut devices = Vec::new();
    let mut directories = vec![PathBuf::from("/dev")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(metadata) = entry.metadata() else { continue };
            let kind = metadata.file_type();
            if kind.is_dir() {
                // The container has its own ones of these.
                if !["/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/fd"]
                    .iter()
                    .any(|own| path == Path::new(own))
                {
                    directories.push(path);
                }
            } else if (kind.is_char_device() || kind.is_block_device())
                && devices.len() < MAX_DEVICES
                && path != Path::new("/dev/ptmx")
                && path != Path::new("/dev/console")
            {
                let number = metadata.rdev();
                devices.push(DeviceNode {
                    path,
                    block: kind.is_block_device(),
                    major: libc::major(number),
                    minor: libc::minor(number),
                    readable: true,
                    writable: true,
                    mode: Some(metadata.mode() & 0o7777),
                    uid: Some(metadata.uid()),
                    gid: Some(metadata.gid()),
                });
            }
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_belongs_to_an_id_that_its_container_has() {
        let text = r#"{"path": "/dev/led", "block": false, "major": 1, "minor": 3, "readable": true, "writable": true}"#;
        let device: DeviceNode = serde_json::from_str(text).expect("it is a device");
        let user = User { uid: 7, gid: 8, groups: Vec::new(), home: String::new() };
        let owner = |first: u32, uid: Option<u32>| {
            let own = own_device(&DeviceNode { uid, gid: uid, ..device.clone() }, &user, first);
            (own.uid.expect("it is set"), own.gid.expect("it is set"))
        };
        assert_eq!(owner(0, None), (7, 8));
        assert_eq!(owner(0, Some(70_000)), (70_000, 70_000));
        assert_eq!(owner(0x20_0000, None), (0x20_0007, 0x20_0008));
        assert_eq!(owner(0x20_0000, Some(65_535)), (0x20_ffff, 0x20_ffff));
        // The IDs from 65536 on belong to the next pod.
        assert_eq!(owner(0x20_0000, Some(65_536)), (0x20_ffff, 0x20_ffff));
        assert_eq!(owner(0x20_0000, Some(u32::MAX)), (0x20_ffff, 0x20_ffff));
    }
}
