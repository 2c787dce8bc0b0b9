//! The sandbox helper: a forked process that makes the namespaces, the link, /dev/shm and the memory volumes
//! of a pod, and sends their descriptors.
//!
//! The supervisor holds the descriptors and enters none of the namespaces. The mount namespace contains only
//! tmpfs mounts and, with a shared PID namespace, its /proc: start helpers copy mounts out of it. The pause
//! process of a shared PID namespace is in another mount namespace, which is empty. If a step fails, the
//! helper undoes what the kernel does not undo by itself.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::{Gid, Pid, Uid};
use serde::{Deserialize, Serialize};

use super::error;
use super::protocol::{self, Message};
use super::saved;
use super::sys::{self, Parent, lacking, used_up};
use nodlet_host::launch::{SandboxConfig, SeccompConfig};
use nodlet_host::netlink::{Netlink, link_index};
use nodlet_kernel::durable;

mod interfaces;

pub(super) use interfaces::{INTERFACES, give_back_interfaces};
use interfaces::{connect, take_interfaces};

/// The place of /dev/shm in the pod's mount namespace.
pub(super) const SHM: &str = "/shm";

/// The place of the /proc of a shared PID namespace in the pod's mount namespace. The pause process mounts it
/// while it is alone in there: mounting a /proc needs a process in its PID namespace with CAP_SYS_ADMIN, and
/// no such process may be where a container is.
const PROC: &str = "/proc";

/// The directory of the memory volumes, by their names, in the pod's mount namespace.
pub(super) const MEMORY_VOLUMES: &str = "/volumes";

/// The OOM score adjustment of the pause process, as the kubelet sets it.
const PAUSE_OOM_SCORE_ADJ: &str = "-998";

/// The number of IDs of a pod's user namespace, as the kubelet's.
pub(super) const IDS: u32 = 65536;

/// The namespaces that a pod's containers join. `None` means the host's; for `pid`, one for each container.
#[derive(Serialize, Deserialize)]
pub(super) struct Namespaces {
    #[serde(with = "saved")]
    pub(super) mnt: OwnedFd,
    #[serde(with = "saved")]
    pub(super) net: Option<OwnedFd>,
    #[serde(with = "saved")]
    pub(super) ipc: Option<OwnedFd>,
    #[serde(with = "saved")]
    pub(super) uts: Option<OwnedFd>,
    #[serde(with = "saved")]
    pub(super) pid: Option<OwnedFd>,
    /// The owner of the other namespaces but `mnt`.
    #[serde(default, with = "saved")]
    pub(super) user: Option<OwnedFd>,
    pub(super) host_pid: bool,
    pub(super) host_ipc: bool,
}

impl Namespaces {
    pub(super) fn descriptors(&self) -> impl Iterator<Item = &OwnedFd> {
        let optional = [&self.net, &self.ipc, &self.uts, &self.pid, &self.user];
        [&self.mnt].into_iter().chain(optional.into_iter().flatten())
    }
}

/// The answer of the sandbox helper; there is exactly one.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "a frame of fixed capacity on the stack")]
pub(super) enum Answer {
    /// The namespaces were made. With it: mnt, then those of net, ipc, uts, pid and user that were made.
    Namespaces { pause: Option<i32> },
    /// A step failed, and nothing is left.
    Failed { message: Message },
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
enum SandboxError {
    #[error("read the sandbox's configuration")]
    ReadConfig(#[source] io::Error),
    #[error("open a netlink socket")]
    Netlink(#[source] io::Error),
    #[error("make namespaces")]
    Unshare(#[source] io::Error),
    #[error("make a user namespace")]
    Users(#[source] io::Error),
    #[error("set the host name")]
    Hostname(#[source] io::Error),
    #[error("find the bridge {name}")]
    Bridge { name: String, source: io::Error },
    #[error("make the link {name}")]
    Link { name: String, source: io::Error },
    #[error("move the interface {name} into the pod")]
    Interface { name: String, source: io::Error },
    #[error("set the pod's address and route")]
    Address(#[source] io::Error),
    #[error("set {name}")]
    Sysctl { name: String, source: io::Error },
    #[error("mount /dev/shm and memory volumes")]
    Mounts(#[source] io::Error),
    #[error("start the pause process")]
    Pause(#[source] io::Error),
    #[error("open the new namespaces")]
    Namespace(#[source] io::Error),
}

/// Runs the helper; never returns. `scratch` is a directory on which the root of a mount namespace is built.
pub(super) fn run(config: BorrowedFd, answer: OwnedFd, scratch: &Path) -> ! {
    sys::set_name(c"nodlet:sandbox");
    sys::close_all_but(&[config.as_raw_fd(), answer.as_raw_fd()]);
    let failed = match make(config, answer.as_fd(), scratch) {
        Ok(()) => sys::exit_now(0),
        Err(error) => Answer::Failed { message: error::message(&error) },
    };
    let _ = protocol::send(answer.as_fd(), &failed, &[]);
    sys::exit_now(1)
}

fn make(config: BorrowedFd, answer: BorrowedFd, scratch: &Path) -> Result<(), SandboxError> {
    let config: SandboxConfig = protocol::read_memfd(config).map_err(SandboxError::ReadConfig)?;
    let mut host = Netlink::open().map_err(SandboxError::Netlink)?;
    let host_namespace = File::open("/proc/self/ns/net").map_err(SandboxError::Namespace)?;
    let bridge = config.network.as_ref().map(|network| {
        let index = link_index(&network.bridge);
        index.map_err(|source| SandboxError::Bridge { name: network.bridge.clone(), source })
    });
    let bridge = bridge.transpose()?;
    // In the host's network namespace, which the next step leaves.
    let interfaces = config.network.iter().flat_map(|network| &network.interfaces).map(|name| {
        let index = link_index(name).map(|index| (name.as_str(), index));
        index.map_err(|source| SandboxError::Interface { name: name.clone(), source })
    });
    let interfaces: Vec<(&str, u32)> = interfaces.collect::<Result<_, _>>()?;
    let mut taken = String::new();

    let mut flags = CloneFlags::empty();
    if config.network.is_some() {
        flags |= CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUTS;
    }
    if !config.host_ipc {
        flags |= CloneFlags::CLONE_NEWIPC;
    }
    if config.share_process_namespace {
        flags |= CloneFlags::CLONE_NEWPID;
    }
    let of_host = if config.first_id.is_some() { CloneFlags::empty() } else { flags };
    unshare(CloneFlags::CLONE_NEWNS | of_host)
        .map_err(|error| lacking(error, libc::EINVAL, "CONFIG_NAMESPACES, NET_NS, IPC_NS, UTS_NS or PID_NS"))
        .map_err(|error| SandboxError::Unshare(used_up(error)))?;
    let users = config.first_id.map(|first| Users::make(&config, flags, first)).transpose();
    let users = users.map_err(|error| SandboxError::Users(used_up(error)))?;

    if let (Some(network), Some(bridge)) = (&config.network, bridge) {
        nix::unistd::sethostname(&config.hostname).map_err(|error| SandboxError::Hostname(error.into()))?;
        let result = connect(&mut host, &host_namespace, network, bridge)
            .and_then(|()| set_sysctls(&config, users.as_ref()))
            .and_then(|()| take_interfaces(&mut host, &interfaces, scratch, &mut taken))
            .and_then(|()| finish(&config, users, answer, scratch));
        if result.is_err() {
            let report = give_back_interfaces(&taken, &mut host, &host_namespace);
            if !report.is_empty() {
                let _ = durable::replace_in_memory(&scratch.with_file_name(crate::RENAMED_FILE), report);
            }
            let _ = host.remove_link(&network.host_link);
        }
        result
    } else {
        set_sysctls(&config, users.as_ref()).and_then(|()| finish(&config, users, answer, scratch))
    }
}

/// A user namespace of the pod, and the process that made it. The helper itself stays in the host's user namespace, so
/// that it can make the link and the mounts; it joins the other namespaces, which belong to the new user namespace.
struct Users {
    namespace: OwnedFd,
    /// The socket to the process, which ends when this is closed.
    process: File,
}

impl Users {
    /// Makes a user namespace whose ID 0 is `first` on the host, and namespaces of the kinds `owned` in it.
    fn make(config: &SandboxConfig, owned: CloneFlags, first: u32) -> io::Result<Users> {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let (process, theirs) = (File::from(ours), File::from(theirs));
        let cgroup = config.share_process_namespace.then(|| File::open(&config.pause_cgroup.unified));
        let cgroup = cgroup.transpose()?;
        // A child of the supervisor, as the pause process will be; in its cgroup, which is killed if this fails.
        let cgroup = cgroup.as_ref().map(|cgroup| cgroup.as_fd());
        let Some(pid) = sys::clone(Parent::CallersParent, cgroup)? else {
            drop(process);
            let _ = user_process(config, owned, theirs);
            sys::exit_now(1)
        };
        drop(theirs);
        match receive(&process)?.as_slice() {
            [0] => {}
            [errno, ..] => {
                return Err(lacking(
                    nix::Error::from_raw(i32::from(*errno)),
                    libc::EINVAL,
                    "CONFIG_USER_NS; remove hostUsers: false",
                ));
            }
            [] => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        let about = Path::new("/proc").join(pid.to_string());
        for map in ["uid_map", "gid_map"] {
            fs::write(about.join(map), format!("0 {first} {IDS}"))?;
        }
        let namespace = File::open(about.join("ns/user"))?.into();
        setns(sys::pidfd_open(pid)?, owned & !CloneFlags::CLONE_NEWPID)?;
        Ok(Users { namespace, process })
    }
}

/// Receives a message of at most four bytes; empty if the other side has ended.
fn receive(mut socket: &File) -> io::Result<Vec<u8>> {
    let mut message = vec![0; 4];
    let length = io::Read::read(&mut socket, &mut message)?;
    message.truncate(length);
    Ok(message)
}

/// Runs the process of [`Users`]. Everything that must be done as root of the user namespace is done here.
fn user_process(config: &SandboxConfig, owned: CloneFlags, helper: File) -> io::Result<()> {
    let send = |message: &[u8]| io::Write::write_all(&mut &helper, message);
    // Open the `tasks` files now: only root of the host may open them, and after the helper has made the mounts, the
    // root of both processes is that of the pod.
    let tasks: &[PathBuf] = if config.share_process_namespace { &config.pause_cgroup.v1_tasks } else { &[] };
    let tasks = open_tasks(tasks)?;
    let failed = unshare(CloneFlags::CLONE_NEWUSER | owned).err();
    send(&[failed.map_or(0, |errno| errno as i32 as u8)])?;
    // Now the IDs are mapped.
    if receive(&helper)?.is_empty() {
        return Ok(());
    }
    nix::unistd::setresgid(Gid::from_raw(0), Gid::from_raw(0), Gid::from_raw(0))?;
    nix::unistd::setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0))?;
    // Only the owner of an IPC namespace may set its sysctls, and the kernel reads IDs in a sysctl's value as those of
    // the writer's user namespace.
    let failed = |(at, one)| Some((at, set_sysctl(one).err()?));
    match config.sysctls.iter().enumerate().find_map(failed) {
        None => send(&[0])?,
        Some((at, error)) => send(&[1, at as u8, error.raw_os_error().unwrap_or(libc::EINVAL) as u8])?,
    }
    if receive(&helper)?.is_empty() {
        return Ok(());
    }
    // SAFETY: it was forked from a process with one thread, and has one.
    match sys::clone(Parent::CallersParent, None)? {
        None => pause(&tasks, helper.into(), false),
        Some(pause) => send(&pause.as_raw().to_ne_bytes()),
    }
}

/// Sets the kernel parameters of the pod's own namespaces, which this process is in. Admission has rejected all others.
fn set_sysctls(config: &SandboxConfig, users: Option<&Users>) -> Result<(), SandboxError> {
    let failed = |(name, _): &(String, String), source| SandboxError::Sysctl { name: name.clone(), source };
    let Some(users) = users else {
        return config.sysctls.iter().try_for_each(|one| set_sysctl(one).map_err(|error| failed(one, error)));
    };
    let answer = io::Write::write_all(&mut &users.process, b".").and_then(|()| receive(&users.process));
    match answer.map_err(SandboxError::Users)?.as_slice() {
        [0] => Ok(()),
        [1, at, errno] => {
            let source = io::Error::from_raw_os_error(i32::from(*errno));
            config.sysctls.get(usize::from(*at)).map_or(Ok(()), |one| Err(failed(one, source)))
        }
        _ => Err(SandboxError::Users(io::ErrorKind::UnexpectedEof.into())),
    }
}

fn set_sysctl((name, value): &(String, String)) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(Path::new("/proc/sys").join(name))?;
    io::Write::write_all(&mut file, value.as_bytes())
}

/// Makes the mounts and the pause process, and reports to the supervisor.
fn finish(
    config: &SandboxConfig,
    users: Option<Users>,
    answer: BorrowedFd,
    scratch: &Path,
) -> Result<(), SandboxError> {
    let open = |kind: &str, wanted: bool| -> Result<Option<OwnedFd>, SandboxError> {
        let path = format!("/proc/self/ns/{kind}");
        wanted.then(|| File::open(path).map(OwnedFd::from)).transpose().map_err(SandboxError::Namespace)
    };
    let mnt = open("mnt", true)?;
    let net = open("net", config.network.is_some())?;
    let ipc = open("ipc", !config.host_ipc)?;
    let uts = open("uts", config.network.is_some())?;
    // The host's paths can be opened only before the mounts are made.
    let open_pause = || {
        let cgroup = File::open(&config.pause_cgroup.unified)?;
        Ok((cgroup, open_tasks(&config.pause_cgroup.v1_tasks)?))
    };
    let pause_cgroup =
        config.share_process_namespace.then(open_pause).transpose().map_err(SandboxError::Pause)?;
    // The kernel shows the new PID namespace only after it has a process, when there is no /proc any more.
    let own_namespaces = File::open("/proc/self/ns").map_err(SandboxError::Namespace)?;
    let processes = File::open("/proc").map_err(SandboxError::Namespace)?;
    // The pause process inherits the value: if it were killed, the whole pod would end. Not every process can
    // lower it, which is not a failure.
    let _ = fs::write("/proc/self/oom_score_adj", PAUSE_OOM_SCORE_ADJ);
    mount_memory(config, scratch).map_err(SandboxError::Mounts)?;

    let mut pause_pid = None;
    let mut pid = None;
    if let Some(users) = users.as_ref().filter(|_| pause_cgroup.is_some()) {
        let (child, namespace) = share_processes(users, &processes).map_err(SandboxError::Pause)?;
        (pause_pid, pid) = (Some(child), Some(namespace));
    } else if let Some((cgroup, tasks)) = pause_cgroup {
        let (ready, theirs) = nix::unistd::pipe().map_err(|error| SandboxError::Pause(error.into()))?;
        let forked = sys::clone(Parent::CallersParent, Some(cgroup.as_fd()));
        match forked.map_err(|error| SandboxError::Pause(error.into()))? {
            None => pause(&tasks, theirs, true),
            Some(child) => pause_pid = Some(child),
        }
        drop(theirs);
        if io::Read::read(&mut File::from(ready), &mut [0]).map_err(SandboxError::Pause)? == 0 {
            return Err(SandboxError::Pause(no_proc()));
        }
        pid = Some(open_at(&own_namespaces, c"pid_for_children").map_err(SandboxError::Namespace)?);
    }
    let user = users.map(|users| users.namespace);
    let descriptors = [mnt, net, ipc, uts, pid, user];
    let descriptors: Vec<BorrowedFd> = descriptors.iter().flatten().map(|fd| fd.as_fd()).collect();
    let namespaces = Answer::Namespaces { pause: pause_pid.map(Pid::as_raw) };
    protocol::send(answer, &namespaces, &descriptors).map_err(SandboxError::Namespace)
}

fn no_proc() -> io::Error {
    io::Error::other("it could not mount a /proc of the shared PID namespace")
}

/// Starts the pause process in the pod's user namespace, and mounts the /proc of its PID namespace. Returns the process
/// and the PID namespace. `processes` is the host's /proc.
fn share_processes(users: &Users, processes: &File) -> io::Result<(Pid, OwnedFd)> {
    io::Write::write_all(&mut &users.process, b".")?;
    // The number of the process, and its own message that it is ready, in any order.
    let mut pause = None;
    for _ in 0..2 {
        let message = receive(&users.process)?;
        match <[u8; 4]>::try_from(message.as_slice()) {
            Ok(pid) => pause = Some(i32::from_ne_bytes(pid)),
            Err(_) if message.is_empty() => return Err(no_proc()),
            Err(_) => {}
        }
    }
    let pause = pause.ok_or_else(no_proc)?;
    let namespace = open_at(processes, &CString::new(format!("{pause}/ns/pid"))?)?;
    // No container is in there yet. The pause process could not mount it where the host's user namespace owns the
    // mounts, and this process could not in a mount namespace of the pod, in which no other /proc is visible.
    setns(&namespace, CloneFlags::CLONE_NEWPID)?;
    match sys::clone(Parent::Caller, None)? {
        None => sys::exit_now(if mount_proc().is_ok() { 0 } else { 1 }),
        Some(child) if sys::wait_for(child) == Some(sys::Ended::Exited(0)) => {}
        Some(_) => return Err(no_proc()),
    }
    Ok((Pid::from_raw(pause), namespace))
}

fn mount_proc() -> nix::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), PROC, Some("proc"), flags, None::<&str>)
}

fn open_at(directory: &File, name: &CStr) -> io::Result<OwnedFd> {
    Ok(nodlet_kernel::file::open_at(directory, name, nix::fcntl::OFlag::O_RDONLY)?)
}

fn open_tasks(files: &[std::path::PathBuf]) -> io::Result<Vec<File>> {
    files.iter().map(|file| fs::OpenOptions::new().write(true).open(file)).collect()
}

/// Makes a root that contains only tmpfs, with /dev/shm and the memory volumes in it, and enters it.
fn mount_memory(config: &SandboxConfig, scratch: &Path) -> io::Result<()> {
    let tmpfs = |target: &Path, options: &str| {
        mount(Some("nodlet"), target, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some(options))
            .map_err(|error| lacking(error, libc::ENODEV, "CONFIG_TMPFS"))
    };
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    tmpfs(scratch, "mode=0755,size=64k")?;
    std::env::set_current_dir(scratch)?;
    nix::unistd::pivot_root(".", ".").map_err(|error| {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if error == nix::Error::EINVAL && is_on_initial_root(&mounts) {
            on_initial_root()
        } else {
            error.into()
        }
    })?;
    umount2(".", MntFlags::MNT_DETACH)?;
    std::env::set_current_dir("/")?;
    let first = config.first_id.unwrap_or(0);
    let owner = format!("uid={first},gid={first}");
    fs::create_dir(SHM)?;
    tmpfs(Path::new(SHM), &format!("mode=1777,size={},{owner}", config.shm_size))?;
    fs::create_dir(MEMORY_VOLUMES)?;
    if config.share_process_namespace {
        fs::create_dir(PROC)?;
    }
    for volume in &config.memory_volumes {
        let path = Path::new(MEMORY_VOLUMES).join(&volume.name);
        fs::create_dir(&path)?;
        // Without a limit, all of the machine's memory: the kernel's default would be half of it.
        let size = volume.size.map_or("100%".to_owned(), |size| size.to_string());
        // Accessible to everybody; with fsGroup, new files belong to the group. Under a kubelet, a tmpfs keeps the
        // sticky bit with which the kernel mounts it.
        let sticky = if volume.page_size.is_none() { 0o1000 } else { 0 };
        let options = format!("mode={:o},size={size},{owner}", 0o777 | sticky);
        if let Some(page_size) = volume.page_size {
            let options = format!("{options},pagesize={page_size}");
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            mount(Some("nodlet"), &path, Some("hugetlbfs"), flags, Some(&*options))?;
        } else {
            // The pages of the volume must not wear flash out; Linux before 6.4 has no such option.
            tmpfs(&path, &format!("{options},noswap")).or_else(|error| match error.raw_os_error() {
                Some(libc::EINVAL) => tmpfs(&path, &options),
                _ => Err(error),
            })?;
        }
        if let Some(group) = volume.fs_group {
            std::os::unix::fs::chown(&path, None, Some(first.wrapping_add(group)))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o2777 | sticky))?;
        }
    }
    let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    mount(None::<&str>, "/", None::<&str>, read_only | MsFlags::MS_NOSUID | MsFlags::MS_NODEV, None::<&str>)?;
    Ok(())
}

/// Whether / is the kernel's initial root file system, into which an initramfs is unpacked. The text is that
/// of proc_pid_mountinfo(5).
fn is_on_initial_root(mounts: &str) -> bool {
    mounts.lines().any(|line| {
        let (mount, file_system) = line.split_once(" - ").unwrap_or_default();
        mount.split(' ').nth(4) == Some("/") && file_system.starts_with("rootfs ")
    })
}

fn on_initial_root() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "nodlet runs on the kernel's initial root file system (an initramfs), which no process can leave; \
         let its init mount a tmpfs or a disk and `switch_root` to it before it starts nodlet",
    )
}

/// Enters a new mount namespace with only an empty root. A process with CAP_SYS_PTRACE sees what the pause
/// process sees: an unmasked /proc there would expose the host's settings, writable.
fn enter_empty_root() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("nodlet"), PROC, Some("tmpfs"), flags, Some("mode=0555,nr_inodes=1,size=4k"))?;
    nix::unistd::chdir(PROC)?;
    nix::unistd::pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    nix::unistd::chdir("/")
}

/// Runs PID 1 of a shared PID namespace: it adopts orphans, and does nothing else. Every container of the pod
/// can see it, so it has nothing worth taking: no capability, no descriptor, an empty root.
fn pause(tasks: &[File], ready: OwnedFd, mounts_proc: bool) -> ! {
    use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
    const NOBODY: u32 = 65535;
    for mut file in tasks {
        let _ = io::Write::write_all(&mut file, b"0");
    }
    sys::set_name(c"pause");
    if mounts_proc && mount_proc().is_err() || enter_empty_root().is_err() {
        sys::exit_now(1);
    }
    let _ = nix::unistd::setsid();
    // The kernel then reaps orphans by itself.
    let _ = nodlet_kernel::signal::ignore(Signal::SIGCHLD);
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
    let _ = nix::unistd::setgroups(&[]);
    let id = (nix::unistd::Gid::from_raw(NOBODY), nix::unistd::Uid::from_raw(NOBODY));
    let dropped =
        nix::unistd::setresgid(id.0, id.0, id.0).and_then(|()| nix::unistd::setresuid(id.1, id.1, id.1));
    if dropped.is_err() {
        sys::exit_now(1);
    }
    let _ = rustix::thread::set_no_new_privs(true);
    sys::set_dumpable(false);
    // It goes with the supervisor, whatever takes that.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    sys::close_all_but(&[ready.as_raw_fd()]);
    // A kernel without filters runs it all the same: without a container's help, it makes no other call.
    let _ = sys::install_filter(&pause_filter());
    // Containers may start now.
    let _ = nix::unistd::write(&ready, b".");
    drop(ready);
    loop {
        nix::unistd::pause();
    }
}

/// The system calls of the pause process from the time at which containers may start.
const PAUSE_CALLS: &[libc::c_long] = &[
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_ppoll,
    #[cfg(any(target_arch = "x86_64", target_arch = "arm"))]
    libc::SYS_pause,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit_group,
];

/// `AUDIT_ARCH_*` of this processor.
const AUDIT_ARCH: u64 = if cfg!(target_arch = "x86_64") {
    0xc000_003e
} else if cfg!(target_arch = "aarch64") {
    0xc000_00b7
} else if cfg!(target_arch = "riscv64") {
    0xc000_00f3
} else {
    0x4000_0028
};

/// Returns a filter that allows only [`PAUSE_CALLS`]; all others fail with EPERM. containerd gives the pause process its
/// default profile, which allows far more.
fn pause_filter() -> SeccompConfig {
    // `struct sock_filter`: the code, how many instructions are skipped if it holds and if not, the value.
    let instruction = |code: u64, if_true: u64, if_false: u64, value: u64| {
        code | if_true << 16 | if_false << 24 | value << 32
    };
    let (load, if_equal, end) = (0x20, 0x15, 0x06);
    let refuse = instruction(end, 0, 0, 0x0005_0000 | libc::EPERM as u64);
    let mut program = vec![
        instruction(load, 0, 0, 4),
        instruction(if_equal, 1, 0, AUDIT_ARCH),
        refuse,
        instruction(load, 0, 0, 0),
    ];
    let count = PAUSE_CALLS.len();
    for (at, call) in PAUSE_CALLS.iter().enumerate() {
        program.push(instruction(if_equal, (count - at) as u64, 0, *call as u64));
    }
    program.extend([refuse, instruction(end, 0, 0, 0x7fff_0000)]);
    SeccompConfig { flags: libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW as u32, program }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_initial_root_file_system_is_known_by_its_type() {
        let initramfs = "1 1 0:2 / / rw - rootfs rootfs rw,size=100k\n\
                         20 1 0:19 / /proc rw,relatime - proc proc rw\n";
        assert!(super::is_on_initial_root(initramfs));
        // The mount of a root that was switched to covers the initial root.
        let disk = "21 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n22 21 0:20 / /proc rw - proc proc rw\n";
        let named = "21 1 0:30 / / rw - tmpfs rootfs rw\n22 21 0:2 / /rootfs rw - rootfs rootfs rw\n";
        assert!(!super::is_on_initial_root(disk) && !super::is_on_initial_root(named));
    }
}
