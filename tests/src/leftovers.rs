//! Finds what a device has on the machine outside of its directory: the processes, mounts, cgroups and links
//! that carry its root's mark. The result of [`find`] must be empty after `nodlet down`. [`sweep`] removes by
//! force what a failed or killed test left, so that the next one starts clean.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sha2::{Digest, Sha256};

/// Everything that exists of the device at `root`, one line each.
pub(crate) fn find(root: &Path) -> Vec<String> {
    let mut left = Vec::new();
    left.extend(processes(root).into_iter().map(|pid| format!("process {pid}: {}", command_line(pid))));
    left.extend(mounts(root).into_iter().map(|mount| format!("mount {}", mount.display())));
    left.extend(cgroups(root).into_iter().map(|cgroup| format!("cgroup {}", cgroup.display())));
    left.extend(links(root).into_iter().map(|link| format!("link {link}")));
    left.extend(run_files(root).into_iter().map(|file| format!("file {}", file.display())));
    left
}

/// Ends and removes everything of the device, as well as possible.
pub(crate) fn sweep(root: &Path) {
    kill_all(root);
    for mount in mounts(root).iter().rev() {
        let _ = umount2(mount, MntFlags::MNT_DETACH);
    }
    for cgroup in cgroups(root).iter().rev() {
        let _ = fs::remove_dir(cgroup);
    }
    for link in links(root) {
        let _ = std::process::Command::new("ip").args(["link", "delete", &link]).output();
    }
}

/// Kills every process of the device, as well as possible.
pub(crate) fn kill_all(root: &Path) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let processes = processes(root);
        if processes.is_empty() || Instant::now() > until {
            break;
        }
        for pid in processes {
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The processes in the cgroups of this device's pods.
pub(crate) fn container_processes(root: &Path) -> Vec<u32> {
    let mark = mark(root);
    let in_pod = |line: &str| line.contains(&mark) && line.contains("/kubepods");
    all_processes()
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.lines().any(in_pod))
        })
        .collect()
}

/// The processes of this device that run nodlet itself, however they were started.
pub(crate) fn own_processes(root: &Path, program: &Path) -> Vec<u32> {
    let mut found = processes(root);
    found.retain(|pid| runs(*pid, program));
    found
}

/// Whether the process runs this program.
pub(crate) fn runs(pid: u32, program: &Path) -> bool {
    // Compare inodes, not paths: supervisors run through a mount of their own.
    let file = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    let wanted = file(program);
    wanted.is_some() && file(Path::new(&format!("/proc/{pid}/exe"))) == wanted
}

/// The number of children of these processes that have ended and were not reaped.
pub(crate) fn zombies_of(parents: &[u32]) -> usize {
    let entries = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let stats = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let zombie_of = |stat: String| -> Option<u32> {
        let (_, rest) = stat.rsplit_once(") Z ")?;
        rest.split(' ').next()?.parse().ok()
    };
    stats.filter_map(zombie_of).filter(|parent| parents.contains(parent)).count()
}

pub(crate) fn processes(root: &Path) -> Vec<u32> {
    let (mark, root) = (mark(root), root.display().to_string());
    all_processes()
        .filter(|pid| {
            *pid != std::process::id()
                && (command_line(*pid).contains(&root)
                    || fs::read_to_string(format!("/proc/{pid}/cgroup"))
                        .is_ok_and(|text| text.contains(&mark)))
        })
        .collect()
}

fn all_processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // Skip zombies, and processes that are about to end and have no memory any more: the kernel counts
    // neither among the processes of a cgroup.
    pids.filter(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok())
}

fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

fn mounts(root: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    points.filter(|point| point.starts_with(root)).collect()
}

/// The cgroups of this device, in all hierarchies. Parents come before their children.
pub(crate) fn cgroups(root: &Path) -> Vec<PathBuf> {
    let mark = mark(root);
    let mut found = Vec::new();
    collect_below(Path::new("/sys/fs/cgroup"), &mut |dir| {
        if dir.to_str().is_some_and(|path| path.contains(&mark)) {
            found.push(dir.to_owned());
        }
    });
    found
}

fn collect_below(dir: &Path, found: &mut impl FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found(&entry.path());
            collect_below(&entry.path(), found);
        }
    }
}

pub(crate) fn links(root: &Path) -> Vec<String> {
    let mark = mark(root);
    let entries = fs::read_dir("/sys/class/net").expect("/sys is mounted");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.contains(&mark)).collect()
}

/// Files in `/run`: nothing of a pod may remain there.
fn run_files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => walk(&entry.path(), found),
                _ => found.push(entry.path()),
            }
        }
    }
    walk(&root.join("run/nodlet"), &mut found);
    found.retain(|file| !file.starts_with(root.join("run/nodlet/manifests")));
    found
}

/// The hash of the root, by which nodlet names its resources on the machine.
fn mark(root: &Path) -> String {
    let digest = Sha256::digest(root.as_os_str().as_encoded_bytes());
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}
