//! Runs tests in a virtual machine: QEMU boots a Debian kernel, and an initramfs of the test programs with a
//! special first process.
//!
//! Guests are for tests that this machine's kernel cannot run: cgroup v2 with all controllers, and kernels
//! that lack a feature. Debian's kernels have most of what nodlet needs as modules, so a module that is not
//! loaded is a missing feature. QEMU translates every instruction (no KVM is needed), so a guest is some ten
//! times slower than this machine. `tests/src/guest.rs` defines the interface to the guest's first process;
//! `nodlet_dist::kernel` gets the kernel, `nodlet_build::debian` the packages. A guest's timeouts do not depend on this
//! machine's speed: its clock counts executed instructions.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nodlet_build::arguments::Arguments;
use nodlet_build::task::{Outcome, Task, TaskError, work};
use nodlet_build::{cross, debian, go, images, programs, targets};
use nodlet_dist::{deb, kernel};
use nodlet_tests::guest::Part;

mod boot;
mod build;
mod list;
mod run;
mod systemd;

use self::build::{build, without_debug};
use self::list::*;

/// A processor of guests, and how QEMU emulates a machine with it.
struct Processor {
    triple: &'static str,
    machine: &'static [&'static str],
    console: &'static str,
    /// Debian's name of the processor.
    debian: &'static str,
    /// Go's name of the processor.
    go: &'static str,
    /// Debian's package of the kernel; the one for virtual machines if it exists.
    kernel: &'static str,
    /// Debian's package of the kernel with drivers for hardware.
    hardware_kernel: &'static str,
}

const PROCESSORS: &[Processor] = &[
    Processor {
        triple: "x86_64-unknown-linux-musl",
        // Without cmpxchg16b, after which QEMU 7.2 sometimes restores wrong flags.
        machine: &["-machine", "q35", "-cpu", "Nehalem,-cx16,+rdrand"],
        console: "ttyS0",
        debian: "amd64",
        go: "amd64",
        kernel: "linux-image-cloud-amd64",
        hardware_kernel: "linux-image-amd64",
    },
    Processor {
        triple: "aarch64-unknown-linux-musl",
        machine: &["-machine", "virt", "-cpu", "cortex-a53"],
        console: "ttyAMA0",
        debian: "arm64",
        go: "arm64",
        kernel: "linux-image-cloud-arm64",
        hardware_kernel: "linux-image-arm64",
    },
    Processor {
        triple: "riscv64gc-unknown-linux-musl",
        machine: &["-machine", "virt", "-cpu", "rv64", "-bios", "default"],
        console: "ttyS0",
        debian: "riscv64",
        go: "riscv64",
        kernel: "linux-image-riscv64",
        hardware_kernel: "linux-image-riscv64",
    },
    Processor {
        triple: "armv7-unknown-linux-musleabihf",
        // Debian's kernel has no LPAE, so it cannot use addresses above 4 GiB.
        machine: &["-machine", "virt,highmem=off", "-cpu", "cortex-a15"],
        console: "ttyAMA0",
        debian: "armhf",
        go: "arm",
        kernel: "linux-image-armmp",
        hardware_kernel: "linux-image-armmp",
    },
];

impl Processor {
    /// QEMU's program for it, and Debian's package of that.
    fn emulator(&self) -> Result<(&'static str, &'static str), TaskError> {
        Ok(targets::get(self.triple)?.emulator)
    }
}

/// A guest: one boot with its tests.
struct Guest<'a> {
    name: &'static str,
    /// A description of the guest's tests, for people.
    what: &'static str,
    /// Additional arguments of the kernel's command line.
    kernel: &'static str,
    /// What is run: a suite with containers or a program of unit tests, and its arguments (`Run`).
    runs: &'a [&'a str],
    /// Modules that are loaded before the tests: everything that nodlet needs of the kernel.
    modules: &'static [&'static [&'static str]],
    system: System,
    /// Arguments of QEMU for hardware, and so a kernel with drivers for it.
    hardware: &'static [&'static str],
    /// The controllers of cgroup v1 that are mounted, instead of those of v2.
    cgroup_v1: &'static [&'static str],
}

/// The files of a guest besides the tests.
#[derive(Clone, Copy, PartialEq)]
enum System {
    /// Busybox, and what the suites need.
    Tools,
    /// A Debian; the first process becomes its systemd.
    Systemd,
    /// A Debian with firewalls, without systemd.
    Firewalls,
}

/// The timeout without any output, after which a guest hangs, however busy this machine is.
const SILENCE: Duration = Duration::from_secs(1800);

const MEMORY_MIB: u32 = 3072;

/// The task `cargo xtask guest`.
pub(crate) const TASK: Task = Task::new(
    "guest",
    "[--all | --target TARGET] [--debug] [--shard PART/OF] [GUEST [SUITE ARGUMENT...]]",
    "run the tests that need a kernel of their own, in QEMU: those of check, those of one virtual machine, or one test",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut arguments = Arguments::new(&TASK, arguments);
    let target: Option<String> = arguments.one("--target")?;
    let processor = target.map_or_else(host, |triple| processor(&triple))?;
    let part = arguments.one::<String>("--shard")?.map(|text| {
        let part = Part::parse(&text).ok_or_else(|| TASK.usage());
        part.map_err(|usage| TaskError(format!("--shard takes a part and of how many, as 2/5; {usage}")))
    });
    let part = part.transpose()?;
    let (is_all, is_debug) = (arguments.has("--all"), arguments.has("--debug"));
    let arguments = &*arguments.names()?;
    if is_all {
        return if is_debug || !arguments.is_empty() { Err(TASK.misused()) } else { whole(part) };
    }
    let guest = |name: &String| {
        GUESTS.iter().find(|guest| guest.name == name).ok_or_else(|| {
            let names: Vec<&str> = GUESTS.iter().map(|guest| guest.name).collect();
            let names = names.join(", ");
            TaskError(format!("unknown guest {name:?}, only {names}; {}", TASK.usage()))
        })
    };
    let (name, words) =
        arguments.split_first().map_or((None, arguments), |(name, words)| (Some(name), words));
    let guest = name.map(guest).transpose()?;
    let nodlet = if is_debug { None } else { Some(shipped(processor)?) };
    let nodlet = nodlet.as_deref();
    match guest {
        None => boot_all(processor, &of_check(), part, nodlet),
        Some(guest) if words.is_empty() => boot_all(processor, &[guest], part, nodlet),
        Some(guest) => {
            let run = words.join(" ");
            boot_all(processor, &[&Guest { runs: &[&run], ..*guest }], part, nodlet)
        }
    }
}

/// The most test programs in one boot of a guest with another processor: its emulator cannot load an
/// initramfs of many hundreds of MiB, nor can a 32-bit kernel.
const FOREIGN_AT_A_TIME: usize = 10;

/// Runs every guest, with every processor, or a part of each guest's tests. Guests that are not portable only run
/// with this machine's own processor: debootstrap executes the packages' programs.
fn whole(part: Option<Part>) -> Outcome {
    let ours = host()?.triple;
    PROCESSORS.iter().try_for_each(|processor| {
        let native = processor.triple == ours;
        let all: Vec<&Guest<'_>> = GUESTS.iter().filter(|guest| native || guest.is_portable()).collect();
        boot_all(processor, &all, part, Some(&shipped(processor)?))
    })
}

/// The binary that boards with this processor get. Built before the tests: a guest without it is of no use.
fn shipped(processor: &Processor) -> Result<PathBuf, TaskError> {
    cross::build(targets::get(processor.triple)?)
}

/// This machine's own processor.
fn host() -> Result<&'static Processor, TaskError> {
    processor(targets::host()?.triple)
}

/// The guest of the check: what this machine's kernel cannot show.
const OF_CHECK: &str = "v2";

fn of_check() -> Vec<&'static Guest<'static>> {
    GUESTS.iter().filter(|guest| guest.name == OF_CHECK).collect()
}

fn processor(triple: &str) -> Result<&'static Processor, TaskError> {
    PROCESSORS.iter().find(|processor| processor.triple == triple).ok_or_else(|| {
        let known: Vec<&str> = PROCESSORS.iter().map(|processor| processor.triple).collect();
        TaskError(format!("no guest has a processor {triple:?}; there are {}", known.join(", ")))
    })
}

/// Boots guests one after the other. Their tests use this binary of nodlet, or one with debug information.
fn boot_all(
    processor: &Processor,
    guests: &[&Guest<'_>],
    part: Option<Part>,
    nodlet: Option<&Path>,
) -> Outcome {
    let (qemu, package) = processor.emulator()?;
    programs::provide(qemu, package)?;
    let tools = debian::package("busybox-static", processor.debian)?;
    let dir = work(&format!("guest/{}", processor.debian))?;
    let mut programs = build(processor, guests)?;
    if processor.triple != host()?.triple {
        programs = without_debug(&programs, &dir.join("programs"))?;
    }
    if let Some(nodlet) = nodlet {
        programs.insert("nodlet".to_owned(), nodlet.to_owned());
    }
    programs.insert("busybox".to_owned(), tools.join("usr/bin/busybox"));
    if guests.iter().any(|guest| guest.runs_any_of(WITH_KUBECTL)) {
        programs.insert("kubectl".to_owned(), go::KUBECTL.build(Some(processor.go))?);
    }
    if guests.iter().any(|guest| guest.runs_any_of(WITH_AGNHOST)) {
        programs.insert("agnhost".to_owned(), go::AGNHOST.build(Some(processor.go))?);
    }
    if guests.iter().any(|guest| guest.runs_any_of(WITH_PACKAGES)) {
        for (name, version) in PACKAGES {
            programs.insert((*name).to_owned(), deb::build(targets::get(processor.triple)?, version)?);
        }
    }
    if guests.iter().any(|guest| guest.runs_any_of(WITH_IMAGES)) {
        images::build()?;
    }
    let mut passed = 0;
    let at_a_time = if processor.triple == host()?.triple { usize::MAX } else { FOREIGN_AT_A_TIME };
    let boots =
        guests.iter().flat_map(|guest| guest.runs.chunks(at_a_time).map(|runs| Guest { runs, ..**guest }));
    let (mut count_of_boots, mut failures, mut releases) = (0, Vec::new(), BTreeSet::new());
    for guest in boots {
        count_of_boots += 1;
        eprintln!("guest {}: {}", guest.name, guest.what);
        let begun = Instant::now();
        let initramfs = dir.join(format!("{}.cpio", guest.name));
        let package = if guest.hardware.is_empty() { processor.kernel } else { processor.hardware_kernel };
        let kernel = kernel::of(package, processor.debian)?;
        let system = match guest.system {
            System::Tools => None,
            System::Systemd => Some(systemd::get(processor.debian, &systemd::SYSTEMD)?),
            System::Firewalls => Some(systemd::get(processor.debian, &systemd::FIREWALLS)?),
        };
        let system = system.as_deref().map(|dir| (dir, processor.console));
        guest.write_initramfs(processor, &initramfs, &kernel, &programs, system, part)?;
        let log = dir.join(format!("{}.log", guest.name));
        let said = guest.boot(processor, &kernel, &initramfs, &log)?;
        fs::remove_file(&initramfs)?;
        let counts = match guest.judge(&said, part) {
            Ok(counts) => counts,
            Err(why) => {
                // The other guests still run: readers of CI's output cannot try again.
                failures.push(format!(
                    "guest {}: {why}; all that it said:\n{said}\nalso in {}",
                    guest.name,
                    log.display()
                ));
                continue;
            }
        };
        for (run, count) in guest.runs.iter().zip(&counts) {
            eprintln!("  {count:>4} of {run}");
        }
        let count: u32 = counts.iter().sum();
        eprintln!("guest {}: {count} tests passed in {:.0?}", guest.name, begun.elapsed());
        passed += count;
        releases.insert(kernel.release);
    }
    if !failures.is_empty() {
        return Err(TaskError(failures.join("\n")));
    }
    let releases = releases.into_iter().collect::<Vec<_>>().join(" and ");
    eprintln!("{passed} tests passed in {count_of_boots} boots of Linux {releases}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::run::Run;
    use super::*;

    const GUEST: Guest<'_> =
        Guest { name: "one", what: "", kernel: "", runs: &["line", "supervisor x"], modules: &[], ..PLAIN };

    #[test]
    fn guests_have_kubectl_for_each_suite_that_drives_a_device_with_it() {
        for run in GUESTS.iter().flat_map(|guest| guest.runs) {
            let suite = Run::parse(run).suite;
            let source = nodlet_build::task::project().join(format!("tests/tests/{suite}.rs"));
            let Ok(text) = fs::read_to_string(source) else { continue };
            assert!(!text.contains("Kubectl::new") || WITH_KUBECTL.contains(&suite), "{suite} needs kubectl");
        }
    }

    #[test]
    fn a_guest_is_believed_only_if_every_run_ended_well_and_ran_tests() {
        let well = "boot\n\nguest: run /tests/suites line::\ntest result: ok. 2 passed; 0 failed\n\nguest: exit 0\n\
             \nguest: run /tests/supervisor x\ntest result: 40 passed; 0 failed []\n\nguest: exit 0\n\nguest: the end\n";
        assert_eq!(GUEST.judge(well, None), Ok(vec![2, 40]));
        for (from, to) in [
            ("guest: exit 0\n\nguest: the end", "guest: exit 1\n\nguest: the end"),
            ("ok. 2 passed", "ok. 0 passed"),
            ("guest: the end", "guest: failed to load the module erofs"),
            ("guest: run /tests/suites line::\n", ""),
            ("guest: the end\n", "Kernel panic"),
        ] {
            assert!(GUEST.judge(&well.replace(from, to), None).is_err(), "{from} -> {to}");
        }
    }

    #[test]
    fn a_part_of_the_tests_counts_only_if_all_chosen_tests_passed() {
        let part = Part::parse("2/5");
        let well = "guest: run /tests/suites line::\nguest: tests in this part: 0\nguest: exit 0\n\
             guest: run /tests/supervisor x\nguest: tests in this part: 2\n\
             test result: 2 passed; 0 failed []\nguest: exit 0\nguest: the end\n";
        assert_eq!(GUEST.judge(well, part), Ok(vec![0, 2]));
        for (from, to) in [
            ("part: 2", "part: 3"),
            ("part: 0", "part: 1"),
            ("guest: tests in this part: 0\n", ""),
            ("test result: 2 passed", "no result"),
            ("guest: the end\n", ""),
        ] {
            assert!(GUEST.judge(&well.replace(from, to), part).is_err(), "{from} -> {to}");
        }
    }
}
