//! Tries what a kernel can do. Each trial runs in a child process with its own namespaces, so its mounts and
//! links disappear with the child. This module faces the kernel and judges nothing.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::SigSet;
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::waitpid;
use nodlet_host::cgroup::try_device_filter;
use nodlet_host::netlink::{Netlink, link_index};
use nodlet_host::network::filter;
use nodlet_kernel::process::{exit_now, fork};
use nodlet_kernel::security;
use nodlet_rootfs::assemble::{AssembleError, Backing, LayerTrial, TrialError, try_layer, try_overlay};
use nodlet_runtime::app_armor;
use rustix::fs::XattrFlags;

/// How a running kernel is probed for a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// The namespace's name in /proc/self/ns, and the flag that creates one.
    Namespace(&'static str, libc::c_int),
    SystemCalls,
    Overlay,
    Erofs,
    LayerMount,
    /// A file system of this name, which is mounted without options.
    Mount(&'static str),
    TmpfsAttributes,
    Seccomp,
    Keyring,
    Landlock,
    AppArmor,
    CgroupV2,
    /// The controller's name in cgroup v2.
    Controller(&'static str),
    CpuLimits,
    DeviceFilter,
    Pressure,
    Veth,
    Bridge,
    SenderFilter,
    /// Only the configuration can be judged: other checks inspect a running machine.
    FileAlone,
}

/// The result of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tried {
    /// The feature works; the text says how.
    Works(String),
    /// The kernel lacks the feature; the text has the evidence.
    Lacks(String),
    /// Undetermined: this user may not try, or the trial failed for another reason.
    Unclear(String),
}

/// Seconds after which the child process of a trial is ended.
const PATIENCE: u32 = 30;

/// Runs `attempt` in a child process. This process must have only one thread.
fn in_child(attempt: &dyn Fn() -> Tried) -> Tried {
    let unclear = |what: &str, errno: Errno| Tried::Unclear(format!("{what}: {}", errno.desc()));
    let (reader, writer) = match nix::unistd::pipe() {
        Ok((reader, writer)) => (File::from(reader), File::from(writer)),
        Err(errno) => return unclear("no pipe", errno),
    };
    // Verbs run in one thread, so the child may do what its parent may.
    match fork() {
        Ok(None) => {
            drop(reader);
            nix::unistd::alarm::set(PATIENCE);
            let (kind, text) = match attempt() {
                Tried::Works(text) => (b'w', text),
                Tried::Lacks(text) => (b'l', text),
                Tried::Unclear(text) => (b'u', text),
            };
            let mut writer = writer;
            let _ = writer.write_all(&[&[kind], text.as_bytes()].concat());
            // Buffers that the parent has not flushed yet are not written twice.
            exit_now(0)
        }
        Ok(Some(child)) => {
            drop(writer);
            let (mut reader, mut text) = (reader, String::new());
            let _ = reader.read_to_string(&mut text);
            let _ = waitpid(child, None);
            match text.split_at_checked(1) {
                Some(("w", text)) => Tried::Works(text.to_owned()),
                Some(("l", text)) => Tried::Lacks(text.to_owned()),
                Some((_, text)) => Tried::Unclear(text.to_owned()),
                None => Tried::Unclear(format!("the trial did not end within {PATIENCE} s, or was killed")),
            }
        }
        Err(errno) => unclear("no child process", errno),
    }
}

/// Converts a result. The error numbers in `lack` mean that the kernel lacks the feature.
fn of(result: io::Result<()>, works: &str, lack: &[i32]) -> Tried {
    match result {
        Ok(()) => Tried::Works(works.to_owned()),
        Err(error) => match error.raw_os_error() {
            Some(number) if lack.contains(&number) => {
                Tried::Lacks(format!("the kernel refuses: {}", Errno::from_raw(number).desc()))
            }
            Some(libc::EPERM | libc::EACCES) => Tried::Unclear("not permitted".to_owned()),
            Some(_) | None => Tried::Unclear(format!("failed: {error}")),
        },
    }
}

/// Tries to create a namespace. Without root, reports what the kernel lists.
pub(super) fn namespace(name: &str, flag: libc::c_int, is_root: bool) -> Tried {
    if !is_root {
        return match Path::new("/proc/self/ns").join(name).symlink_metadata() {
            Ok(_) => Tried::Works("the kernel has them".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound && Path::new("/proc/self/ns").is_dir() => {
                Tried::Lacks(format!("there is no /proc/self/ns/{name}"))
            }
            Err(error) => Tried::Unclear(format!("/proc/self/ns/{name}: {error}")),
        };
    }
    in_child(&|| of(new(CloneFlags::from_bits_truncate(flag)), "made one", &[libc::EINVAL]))
}

fn new(flags: CloneFlags) -> io::Result<()> {
    unshare(flags).map_err(io::Error::from)
}

/// Unshares the mount namespace: nobody else sees later mounts.
fn leave_mounts() -> io::Result<()> {
    let none = None::<&str>;
    new(CloneFlags::CLONE_NEWNS)?;
    nix::mount::mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    Ok(())
}

/// Mounts a file system of this kind over a directory that every machine has.
fn mount_over(kind: &str) -> io::Result<PathBuf> {
    let places = ["/tmp", "/run", "/mnt", "/dev"].map(Path::new);
    let place = places.into_iter().find(|place| place.is_dir()).unwrap_or(Path::new("/"));
    nix::mount::mount(Some(kind), place, Some(kind), MsFlags::empty(), None::<&str>)?;
    Ok(place.to_owned())
}

/// Tries to mount a file system of this kind.
pub(super) fn mount(kind: &str) -> Tried {
    in_child(&|| {
        // Message queues belong to an IPC namespace, so the child needs its own.
        let mounted = leave_mounts().and_then(|()| {
            let _ = new(CloneFlags::CLONE_NEWIPC);
            mount_over(kind).map(drop)
        });
        of(mounted, "mounted one", &[libc::ENODEV])
    })
}

/// Tries to set an extended attribute that only root may set, as overlayfs does.
pub(super) fn tmpfs_attributes() -> Tried {
    in_child(&|| {
        let set = leave_mounts().and_then(|()| mount_over("tmpfs")).and_then(|place| {
            Ok(rustix::fs::setxattr(place, c"trusted.overlay.opaque", b"y", XattrFlags::empty())?)
        });
        of(set, "set one", &[libc::EOPNOTSUPP])
    })
}

/// Runs `attempt` in a child process with mounts of its own, in `directory` or on a tmpfs.
fn in_own_mounts(directory: Option<&Path>, attempt: &dyn Fn(&Path) -> Tried) -> Tried {
    in_child(&|| {
        let place = leave_mounts().and_then(|()| match directory {
            Some(directory) => Ok(directory.to_owned()),
            None => mount_over("tmpfs"),
        });
        place.map_or_else(|error| of(Err(error), "", &[]), |place| attempt(&place))
    })
}

/// Tries to mount an overlay on a tmpfs. `data_directory.rs` tries the board's own file system.
pub(super) fn overlay() -> Tried {
    in_own_mounts(None, &|place| match try_overlay(place) {
        Err(TrialError::NoOverlay) => Tried::Lacks("the kernel mounts none".to_owned()),
        Err(error @ (TrialError::Write(_) | TrialError::Overlay(_) | TrialError::Mount(_))) => {
            Tried::Unclear(message(&error))
        }
        Err(TrialError::Change(_) | TrialError::Listed | TrialError::Replace(_)) | Ok(()) => {
            Tried::Works("mounted one".to_owned())
        }
    })
}

/// Tries to mount an overlay with its changes in `directory`, and to change files in it.
pub(super) fn overlay_in(directory: &Path) -> Tried {
    in_own_mounts(Some(directory), &|place| match try_overlay(place) {
        Ok(()) => Tried::Works("changed, removed and replaced files of an image".to_owned()),
        // These errors are the kernel's, not the file system's.
        Err(error @ (TrialError::NoOverlay | TrialError::Write(_) | TrialError::Mount(_))) => {
            Tried::Unclear(message(&error))
        }
        Err(
            error @ (TrialError::Overlay(_)
            | TrialError::Change(_)
            | TrialError::Listed
            | TrialError::Replace(_)),
        ) => Tried::Lacks(message(&error)),
    })
}

fn message(error: &TrialError) -> String {
    format!("failed to {}", nodlet_host::error::chain(error))
}

/// Tries to mount a layer, to find out what EROFS supports.
pub(super) fn erofs(directory: Option<&Path>) -> Tried {
    in_own_mounts(directory, &|place| match try_layer(place) {
        Ok(LayerTrial { has_attributes: true, .. }) => Tried::Works("mounted a layer".to_owned()),
        Ok(LayerTrial { has_attributes: false, .. }) => {
            Tried::Lacks("it has no extended attributes".to_owned())
        }
        Err(TrialError::Mount(AssembleError::NoKernelSupport { feature: "EROFS", .. })) => {
            Tried::Lacks("the kernel mounts none".to_owned())
        }
        Err(error) => Tried::Unclear(message(&error)),
    })
}

/// Tries to mount a layer, to find out how the kernel reads the layer's file.
pub(super) fn layer_mount(directory: Option<&Path>) -> Tried {
    let works = |how: &str| Tried::Works(how.to_owned());
    in_own_mounts(directory, &|place| match try_layer(place) {
        Ok(LayerTrial { backing: Backing::DirectFile, .. }) => works("from the file, past the page cache"),
        Ok(LayerTrial { backing: Backing::DirectLoop, .. }) => {
            works("through a loop device, past the page cache")
        }
        Ok(LayerTrial { backing: Backing::File, .. }) => works("from the file"),
        Ok(LayerTrial { backing: Backing::Loop, .. }) => works("through a loop device"),
        Err(error @ TrialError::Mount(AssembleError::NoKernelSupport { feature, .. }))
            if feature != "EROFS" =>
        {
            Tried::Lacks(message(&error))
        }
        Err(error) => Tried::Unclear(message(&error)),
    })
}

/// Tries to load a seccomp filter that allows every system call.
pub(super) fn seccomp() -> Tried {
    /// BPF_RET | BPF_K
    const RETURN: u16 = 0x06;
    in_child(&|| {
        let filter = [libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW }];
        let loaded = rustix::thread::set_no_new_privs(true)
            .map_err(io::Error::from)
            .and_then(|()| Ok(security::install_filter(&filter, 0)?));
        of(loaded, "loaded a filter", &[libc::EINVAL, libc::ENOSYS])
    })
}

/// Tries to join a new session keyring.
pub(super) fn keyring() -> Tried {
    in_child(&|| of(security::join_session_keyring().map_err(io::Error::from), "made one", &[libc::ENOSYS]))
}

/// Queries Landlock's version.
pub(super) fn landlock() -> Tried {
    match security::landlock_version() {
        Err(Errno::EOPNOTSUPP) => Tried::Lacks("turned off when the kernel was started".to_owned()),
        Err(error) => of(Err(error.into()), "", &[libc::ENOSYS]),
        Ok(version) => Tried::Works(format!("version {version}")),
    }
}

/// Whether the kernel has AppArmor, and the profile of containers that name none.
pub(super) fn app_armor() -> Tried {
    if !app_armor::is_enabled() {
        return Tried::Lacks("not enabled".to_owned());
    }
    let profile = app_armor::DEFAULT;
    match app_armor::loaded() {
        Ok(list) if app_armor::has(&list, profile) => Tried::Works(format!("profile {profile} is loaded")),
        Ok(_) => Tried::Works(format!(
            "profile {profile} is not loaded (apparmor_parser): only containers that name another one are confined"
        )),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Tried::Works("only root can list the loaded profiles".to_owned())
        }
        Err(error) => Tried::Unclear(format!("failed to list the loaded profiles: {error}")),
    }
}

/// Tries the system calls by which agent and supervisors wait.
pub(super) fn system_calls() -> Tried {
    in_child(&|| {
        use rustix::event::{EventfdFlags, epoll, eventfd};
        use rustix::fs::inotify;
        use rustix::net::{AddressFamily, SocketType, socket};
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let watches = inotify::init(inotify::CreateFlags::empty());
        let is_used_up = watches.as_ref().is_err_and(|error| *error == rustix::io::Errno::MFILE);
        let made = [
            ("epoll", epoll::create(epoll::CreateFlags::empty()).is_ok()),
            ("eventfd", eventfd(0, EventfdFlags::empty()).is_ok()),
            ("signalfd", SignalFd::new(&SigSet::empty()).is_ok()),
            ("timerfd", timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::empty()).is_ok()),
            ("inotify", is_used_up || watches.is_ok()),
            ("unix sockets", socket(AddressFamily::UNIX, SocketType::STREAM, None).is_ok()),
            ("IPv4 sockets", socket(AddressFamily::INET, SocketType::STREAM, None).is_ok()),
        ];
        let lacking: Vec<&str> = made.iter().filter(|(_, made)| !made).map(|(name, _)| *name).collect();
        if !lacking.is_empty() {
            return Tried::Lacks(format!("failed: {}", lacking.join(", ")));
        }
        if is_used_up {
            return Tried::Unclear(
                "fs.inotify.max_user_instances is used up by processes of this user: an agent that starts notices \
                 changes of manifests, images, devices and followed logs only from time to time"
                    .to_owned(),
            );
        }
        let locked = File::open("/proc/self/exe").and_then(|file| {
            Ok(rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared)?)
        });
        of(locked, "epoll, eventfd, signalfd, timerfd, inotify, sockets, locks", &[libc::ENOSYS])
    })
}

/// Tries to load the eBPF program that denies containers access to devices.
pub(super) fn device_filter() -> Tried {
    in_child(&|| of(try_device_filter(), "loaded a program", &[libc::ENOSYS, libc::EINVAL]))
}

const BRIDGE: &str = "doctor0";
const LINK: &str = "doctor1";

/// Creates two network namespaces: this process enters one, the descriptor refers to the other.
fn two_networks() -> io::Result<OwnedFd> {
    new(CloneFlags::CLONE_NEWNET)?;
    let other = File::open("/proc/self/ns/net")?;
    new(CloneFlags::CLONE_NEWNET)?;
    Ok(other.into())
}

/// Tries to create a bridge.
pub(super) fn bridge() -> Tried {
    in_child(&|| {
        let made = two_networks().and_then(|_| Netlink::open()?.add_bridge(BRIDGE));
        of(made, "made one", &[libc::EOPNOTSUPP])
    })
}

/// Tries to create a veth pair between two network namespaces.
pub(super) fn veth() -> Tried {
    const HARDWARE: [u8; 6] = [0x0a, 0x58, 10, 85, 0, 2];
    in_child(&|| {
        let made = two_networks().and_then(|other| {
            let raw: RawFd = other.as_raw_fd();
            // No bridge is used: a bridge is another feature.
            Netlink::open()?.add_veth(LINK, 0, ("eth0", HARDWARE), raw)
        });
        of(made, "made a pair between two namespaces", &[libc::EOPNOTSUPP])
    })
}

/// Tries to attach a filter to a link.
pub(super) fn sender_filter() -> Tried {
    in_child(&|| {
        let supported = two_networks().and_then(|_| {
            let mut netlink = Netlink::open()?;
            let _ = netlink.add_bridge(BRIDGE);
            // Without bridges, use the link that every namespace has.
            let index = link_index(BRIDGE).or_else(|_| link_index("lo"))?;
            Ok(filter::is_supported(&mut netlink, index))
        });
        match supported {
            Ok(true) => Tried::Works("attached a program to a link".to_owned()),
            Ok(false) => Tried::Lacks("the kernel attaches no program to a link".to_owned()),
            Err(error) => of(Err(error), "", &[]),
        }
    })
}

/// A directory for trials on the file system under test. It is removed with its contents on drop.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Creates a scratch directory in `directory`.
    pub(super) fn new(directory: &Path) -> io::Result<Scratch> {
        use std::os::unix::fs::DirBuilderExt;
        let path = directory.join(format!(".nodlet-doctor-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Scratch(path))
    }

    /// Creates an empty directory in the scratch directory.
    pub(super) fn directory(&self, name: &str) -> Option<PathBuf> {
        let path = self.0.join(name);
        fs::create_dir(&path).ok().map(|()| path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("Warning: failed to remove {}: {error}", self.0.display());
        }
    }
}
