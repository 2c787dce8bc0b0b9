//! What nodlet holds of the machine: the memory of the agent, and everything of
//! a device that could pile up. A test takes both before and after what it does.

use std::fs;
use std::path::Path;

use crate::device::Device;
use crate::leftovers;

/// Memory of a process that no file backs: heap, stacks, what it has written to. So a bound on
/// it holds for every build, whatever the program itself weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Now, in KiB.
    pub now: u64,
    /// The most since [`Memory::forget_peak`], in KiB. The kernel keeps it: no peak is missed.
    pub peak: u64,
}

impl Memory {
    /// Of the process `pid`.
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

    /// Lets the peak of `pid` begin anew.
    pub fn forget_peak(pid: u32) {
        fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("root may forget the peak of any process");
    }
}

/// How many there are of each thing that could be forgotten.
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
    /// Of a device: of all processes of nodlet on it, and below its root.
    pub fn of(device: &Device) -> Holdings {
        let own = device.own_processes();
        let entries = |what: &str| -> usize {
            own.iter().map(|pid| fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count)).sum()
        };
        let mounts = own.iter().map(|pid| {
            fs::read_to_string(format!("/proc/{pid}/mountinfo")).map_or(0, |table| table.lines().count())
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

/// Names below a directory, without following links.
fn files(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => 1 + files(&entry.path()),
            _ => 1,
        })
        .sum()
}

/// Memory of processes as the machine pays for it, in KiB: a page that several of them
/// have counts by their shares (`Pss`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// All of it, pages of files included.
    pub all: u64,
    /// What no file backs.
    pub anon: u64,
}

impl Share {
    /// Of these processes together.
    pub fn of(pids: &[u32]) -> Share {
        pids.iter().fold(Share::default(), |sum, pid| {
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process lives");
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
                number.unwrap_or_else(|| panic!("{name} is in every smaps_rollup"))
            };
            Share { all: sum.all + field("Pss"), anon: sum.anon + field("Pss_Anon") }
        })
    }
}

/// How often threads of nodlet's own processes were put to sleep or pushed aside so far.
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
