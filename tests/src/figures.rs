//! The resources that nodlet uses: the memory of the agent, and everything on a device that could accumulate.
//! A test measures both before and after its actions.

use std::fs;
use std::path::Path;

use crate::device::Device;
use crate::leftovers;

/// Memory of a process that no file backs: heap, stacks and written pages. So a bound on it holds for every
/// build, whatever the size of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The current amount, in KiB.
    pub now: u64,
    /// The peak since [`Memory::forget_peak`], in KiB. The kernel records it, so no peak is missed.
    pub peak: u64,
}

impl Memory {
    /// Measures the process `pid`.
    pub fn of(pid: u32) -> Memory {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            number.unwrap_or_else(|| panic!("{name} is in every status of a process"))
        };
        let files = field("RssFile") + field("RssShmem");
        Memory { now: field("RssAnon"), peak: field("VmHWM").saturating_sub(files) }
    }

    /// Resets the recorded peak of `pid`.
    pub fn forget_peak(pid: u32) {
        fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("root may forget the peak of any process");
    }
}

/// The numbers of resources that could leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is what its name says")]
pub struct Holdings {
    pub descriptors: usize,
    pub processes: usize,
    pub zombies: usize,
    pub mounts: usize,
    pub cgroups: usize,
    pub links: usize,
    pub files: usize,
}

impl Holdings {
    /// Counts the resources of all nodlet processes on a device, and files below its root.
    pub fn of(device: &Device) -> Holdings {
        let own = device.own_processes();
        let entries = |what: &str| -> usize {
            own.iter().map(|pid| fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count)).sum()
        };
        // Other tests run beside, and mount and unmount in the same namespace.
        let root = device.root().display().to_string();
        let mounts = own.iter().map(|pid| {
            let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
            let is_of_another = |mount: &str| mount.contains("/tmp/nodlet-tests/") && !mount.contains(&root);
            table.lines().filter(|mount| !is_of_another(mount)).count()
        });
        Holdings {
            descriptors: entries("fd"),
            processes: leftovers::processes(device.root()).len(),
            zombies: leftovers::zombies_of(&own),
            mounts: mounts.sum(),
            cgroups: device.cgroups().len(),
            links: leftovers::links(device.root()).len(),
            files: files(device.root()),
        }
    }
}

/// The number of names below a directory, without following links.
fn files(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => 1 + files(&entry.path()),
            _ => 1,
        })
        .sum()
}

/// Memory of processes as the machine is charged for it, in KiB: a page shared by several processes counts in
/// shares (`Pss`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The total, including pages of files.
    pub all: u64,
    /// Memory that no file backs.
    pub anon: u64,
}

impl Share {
    /// Measures these processes together. One that has ended meanwhile has no memory.
    pub fn of(pids: &[u32]) -> Share {
        pids.iter().fold(Share::default(), |sum, pid| {
            let Ok(text) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else { return sum };
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
                number.unwrap_or_else(|| panic!("{name} is in every smaps_rollup"))
            };
            Share { all: sum.all + field("Pss"), anon: sum.anon + field("Pss_Anon") }
        })
    }
}

/// The number of context switches so far of the threads of nodlet's processes.
pub fn switches(device: &Device) -> u64 {
    let threads = device
        .own_processes()
        .into_iter()
        .flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives").flatten());
    let counts = threads.map(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>()
    });
    counts.sum()
}
