//! Runs tests in a virtual machine: QEMU boots a Debian kernel, and an initramfs of the test programs with a
//! special first process.
//!
//! Guests are for tests that this machine's kernel cannot run: cgroup v2 with all controllers, and kernels
//! that lack a feature. Debian's kernels have most of what nodlet needs as modules, so a module that is not
//! loaded is a missing feature. QEMU translates every instruction (no KVM is needed), so a guest is some ten
//! times slower than this machine. `tests/src/guest.rs` defines the interface to the guest's first process;
//! `guest/kernel.rs` gets the kernel, `debian.rs` the packages. A guest's timeouts do not depend on this
//! machine's speed: its clock counts executed instructions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nodlet_tests::guest::{CGROUP_V1, CHOSEN, Choice, END, MODULE_LIST, MODULES, ORDERS, SAYS};
use serde_json::Value;

use crate::{
    Failure, Outcome, commit, cross, deb, debian, go, line_of, misused, programs, targets, toolchain, usage,
    work,
};

pub(crate) mod cpio;
pub(crate) mod kernel;
mod systemd;

use self::cpio::Cpio;
use self::kernel::Kernel;

/// A processor of guests, and how QEMU emulates a machine with it.
struct Processor {
    triple: &'static str,
    qemu: &'static str,
    /// The Debian package of the emulator.
    package: &'static str,
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
        qemu: "qemu-system-x86_64",
        package: "qemu-system-x86",
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
        qemu: "qemu-system-aarch64",
        package: "qemu-system-arm",
        machine: &["-machine", "virt", "-cpu", "cortex-a53"],
        console: "ttyAMA0",
        debian: "arm64",
        go: "arm64",
        kernel: "linux-image-cloud-arm64",
        hardware_kernel: "linux-image-arm64",
    },
    Processor {
        triple: "riscv64gc-unknown-linux-musl",
        qemu: "qemu-system-riscv64",
        package: "qemu-system-misc",
        machine: &["-machine", "virt", "-cpu", "rv64", "-bios", "default"],
        console: "ttyS0",
        debian: "riscv64",
        go: "riscv64",
        kernel: "linux-image-riscv64",
        hardware_kernel: "linux-image-riscv64",
    },
    Processor {
        triple: "armv7-unknown-linux-musleabihf",
        qemu: "qemu-system-arm",
        package: "qemu-system-arm",
        // Debian's kernel has no LPAE, so it cannot use addresses above 4 GiB.
        machine: &["-machine", "virt,highmem=off", "-cpu", "cortex-a15"],
        console: "ttyAMA0",
        debian: "armhf",
        go: "arm",
        kernel: "linux-image-armmp",
        hardware_kernel: "linux-image-armmp",
    },
];

/// A guest: one boot with its tests.
struct Guest<'a> {
    name: &'static str,
    /// A description of the guest's tests, for people.
    what: &'static str,
    /// Additional arguments of the kernel's command line.
    kernel: &'static str,
    /// Test programs and their arguments.
    runs: &'a [&'a str],
    /// Modules that are loaded before the tests: everything that nodlet needs of the kernel.
    modules: &'static [&'static str],
    when: When,
    system: System,
    /// Arguments of QEMU for hardware, and so a kernel with drivers for it.
    hardware: &'static [&'static str],
    /// The controllers of cgroup v1 that are mounted, instead of those of v2.
    cgroup_v1: &'static [&'static str],
}

/// When a guest is booted.
#[derive(Clone, Copy, PartialEq)]
enum When {
    /// For every check.
    Always,
    /// For some checks: the commit chooses one of these guests.
    InTurn,
    /// Only by name, because it takes too long.
    ByHand,
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

/// What most guests have in common.
const PLAIN: Guest<'_> = Guest {
    name: "",
    what: "",
    kernel: "",
    runs: &[],
    modules: NEEDED,
    when: When::ByHand,
    system: System::Tools,
    hardware: &[],
    cgroup_v1: &[],
};

/// The crates with unit tests of which some depend on the kernel.
const UNITS: &[&str] = &["nodlet_host", "nodlet_runtime", "nodlet_supervisor"];

/// The modules of Debian's kernels that nodlet needs.
const NEEDED: &[&str] = &["erofs", "overlay", "veth", "bridge", "loop"];

/// Suites that use the real kubectl.
const WITH_KUBECTL: &[&str] = &[
    "init",
    "debug",
    "update",
    "admission",
    "documents",
    "metadata",
    "sessions",
    "claims",
    "resources",
    "configured",
    "config",
];

/// Suites with pods of Kubernetes' own test program.
const WITH_AGNHOST: &[&str] = &["documents"];

/// Suites that use `ip` of iproute2.
const WITH_LINKS: &[&str] = &["devices", "ports", "hardware"];

/// iproute2, and the packages with its libraries.
const IPROUTE: &[&str] = &[
    "iproute2",
    "libbpf1",
    "libc6",
    "libcap2",
    "libcom-err2",
    "libdb5.3t64",
    "libelf1t64",
    "libgssapi-krb5-2",
    "libk5crypto3",
    "libkeyutils1",
    "libkrb5-3",
    "libkrb5support0",
    "libmnl0",
    "libpcre2-8-0",
    "libselinux1",
    "libssl3t64",
    "libtirpc3t64",
    "libxtables12",
    "libzstd1",
    "zlib1g",
];

/// Suites that load AppArmor profiles.
const WITH_APPARMOR: &[&str] = &["apparmor"];

/// `apparmor_parser`, and the packages with its libraries.
const APPARMOR: &[&str] = &["apparmor", "libapparmor1", "libc6", "libgcc-s1", "libstdc++6"];

/// Suites that make file systems with e2fsprogs.
const WITH_DISKS: &[&str] = &["cores"];

/// e2fsprogs, and the packages with its libraries.
const E2FSPROGS: &[&str] = &["e2fsprogs", "libblkid1", "libc6", "libcom-err2", "libext2fs2t64", "libuuid1"];

/// Files of the project that suites read: the suite, and their directory.
const FILES: &[(&str, &str)] = &[("tasks", "examples/tasks"), ("apparmor", "examples/apparmor")];

/// Suites that install the Debian package, and upgrade it to one with a later version.
const WITH_PACKAGES: &[&str] = &["package"];

/// The packages for these suites: their files in `/packages` of the guest, and their versions.
const PACKAGES: &[(&str, &str)] = &[("nodlet-1.deb", "1.0-1"), ("nodlet-2.deb", "1.0-2")];

/// The modules of packet filters and network address translation that nodlet uses.
const FILTERS: &[&str] = &[
    "erofs",
    "overlay",
    "veth",
    "bridge",
    "loop",
    "nf_tables",
    "nft_chain_nat",
    "nft_nat",
    "nft_masq",
    "nft_ct",
    "nft_fib_inet",
];

/// A serial port on USB, which is wired to a port of the guest, and QEMU's monitor at another port: tests
/// plug devices in and out. CAN cards on one bus.
const HARDWARE: &[&str] = &[
    "-device",
    "qemu-xhci,id=usb",
    "-device",
    "virtio-serial-pci",
    "-chardev",
    "socket,id=serial,path=serial.sock,server=on,wait=off",
    "-chardev",
    "socket,id=wire,path=serial.sock",
    "-device",
    "virtserialport,chardev=wire,name=wire",
    "-chardev",
    "socket,id=monitor,path=monitor.sock,server=on,wait=off",
    "-mon",
    "chardev=monitor,mode=control",
    "-chardev",
    "socket,id=orders,path=monitor.sock",
    "-device",
    "virtserialport,chardev=orders,name=monitor",
    "-chardev",
    "null,id=other",
    "-chardev",
    "null,id=third",
    "-device",
    "usb-serial,chardev=serial,id=gps,serial=A1,bus=usb.0",
    "-object",
    "can-bus,id=bus",
    "-device",
    "kvaser_pci,canbus=bus",
    "-device",
    "kvaser_pci,canbus=bus",
];

const GUESTS: &[Guest<'_>] = &[
    Guest {
        name: "lacking",
        what: "a kernel from which one feature after the other is taken",
        kernel: "",
        runs: &["lacking --ignored --test-threads=1 --skip memory_controller --skip landlock"],
        modules: NEEDED,
        when: When::Always,
        ..PLAIN
    },
    Guest {
        name: "idle",
        what: "a day in which nothing happens",
        kernel: "",
        runs: &["idle --ignored --test-threads=1"],
        modules: NEEDED,
        when: When::Always,
        ..PLAIN
    },
    Guest {
        name: "off",
        what: "a kernel whose memory controller is off, as many boards have it, and Landlock with it",
        kernel: "cgroup_disable=memory lsm=capability",
        runs: &["lacking --ignored --test-threads=1 memory_controller landlock"],
        modules: NEEDED,
        when: When::Always,
        ..PLAIN
    },
    Guest {
        name: "v2",
        what: "limits and attacks on them, where cgroup v2 has all controllers",
        kernel: "",
        runs: &[
            "limits --ignored --test-threads=1",
            "cgroup2 --ignored --test-threads=1",
            // This kernel has no packet classifier: filters are attached in the other way.
            "isolation --test-threads=1 a_pod_cannot",
            "nodlet_host cgroup::",
        ],
        modules: NEEDED,
        when: When::Always,
        ..PLAIN
    },
    Guest {
        name: "cores",
        what: "several processors, of which containers have some for themselves, and swap",
        kernel: "",
        runs: &["cores --ignored --test-threads=1"],
        modules: &["erofs", "overlay", "veth", "bridge", "loop", "ext4", "quota_v2"],
        when: When::InTurn,
        ..PLAIN
    },
    Guest {
        name: "all",
        what: "what runs on this machine too, with cgroup v2",
        kernel: "",
        runs: &[
            "nodlet_host cgroup:: network:: volume::",
            "nodlet_runtime prober:: storage:: store::",
            "nodlet_supervisor console:: log::",
            "supervisor",
            "line",
            "restart",
            "reboot",
            "down",
            "ring",
            "init",
            "hooks",
            "policies",
            // The remaining tests use images that are only built for this machine's processor.
            "documents --skip myapp_pod --skip the_sidecar_of",
            "messages",
            "debug",
            "probes",
            "volumes",
            // In the guest `links`, which has iproute2.
            "devices --skip an_interface",
            "network",
            "manifests",
            "update",
            "admission",
            "shutdown",
            "bad",
            "attack",
            "verbs",
            "images",
            "hostile",
            "isolation",
            "files",
            "removal",
            "handover",
            "metadata",
            // Floods of exec, attach, port-forward and logs.
            "sessions a_thousand_at_once",
            "baking",
            "service",
            "upgrade",
            "kill",
            "steps",
            "twenty",
        ],
        modules: NEEDED,
        ..PLAIN
    },
    Guest {
        name: "pods",
        what: "what pods may have, with cgroup v2",
        kernel: "",
        runs: &[
            "resources",
            "claims",
            "confined",
            "configured",
            "config",
            "tasks",
            // This test reads the sources of the others.
            "fields --skip the_rows_that_name",
        ],
        modules: NEEDED,
        ..PLAIN
    },
    Guest {
        name: "links",
        what: "links of pods and of the board, beside the programs of its owner",
        kernel: "",
        runs: &["devices an_interface", "ports"],
        modules: FILTERS,
        ..PLAIN
    },
    Guest {
        name: "hardware",
        what: "devices on USB, which are plugged in and out, and CAN",
        runs: &["hardware --ignored --test-threads=1"],
        modules: &[
            "erofs",
            "overlay",
            "veth",
            "bridge",
            "loop",
            "virtio_pci",
            "virtio_console",
            "xhci_pci",
            "usbserial",
            "ftdi_sio",
            "can_raw",
            "vcan",
            "vxcan",
            "kvaser_pci",
        ],
        when: When::InTurn,
        hardware: HARDWARE,
        ..PLAIN
    },
    Guest {
        name: "v1",
        what: "huge pages, where controllers are those of cgroup v1",
        runs: &["limits --ignored --test-threads=1 huge_pages"],
        when: When::InTurn,
        cgroup_v1: &["cpu,cpuacct", "pids", "devices", "freezer", "hugetlb"],
        ..PLAIN
    },
    Guest {
        name: "firewalls",
        what: "ufw and firewalld of Debian, and the rules of Docker",
        runs: &["firewalls --include-ignored --test-threads=1 --skip beside_ufw --skip beside_firewalld"],
        modules: &[
            "erofs",
            "overlay",
            "veth",
            "bridge",
            "loop",
            "nf_tables",
            "nft_chain_nat",
            "nft_nat",
            "nft_masq",
            "nft_ct",
            "nft_fib_inet",
            // Of the firewalls.
            "nft_compat",
            "nft_limit",
            "nft_log",
            "nft_redir",
            "nft_reject_inet",
            "nft_reject_ipv4",
            "nft_reject_ipv6",
            "nf_conntrack_netbios_ns",
            "nf_conntrack_tftp",
            "nf_conntrack_ftp",
            "nf_log_syslog",
            "ip6t_REJECT",
            "ip6t_rt",
            "ipt_REJECT",
            "xt_LOG",
            "xt_MASQUERADE",
            "xt_addrtype",
            "xt_conntrack",
            "xt_hl",
            "xt_limit",
            "xt_nat",
            "xt_recent",
            "xt_tcpudp",
        ],
        when: When::InTurn,
        system: System::Firewalls,
        ..PLAIN
    },
    Guest {
        name: "apparmor",
        what: "profiles of AppArmor, where the kernel has it",
        kernel: "apparmor=1 lsm=capability,landlock,yama,apparmor",
        runs: &["apparmor --include-ignored --test-threads=1"],
        modules: NEEDED,
        when: When::InTurn,
        ..PLAIN
    },
    Guest {
        name: "systemd",
        what: "a service of systemd, beside NetworkManager, networkd and resolved",
        kernel: "systemd.show_status=0",
        runs: &["systemd --ignored --test-threads=1 --skip turned_off"],
        // Includes the module that the tests use as a network card.
        modules: &["erofs", "overlay", "veth", "bridge", "loop", "dummy"],
        system: System::Systemd,
        ..PLAIN
    },
    Guest {
        name: "package",
        what: "a Debian with systemd on which the package is installed, upgraded, removed and purged",
        kernel: "systemd.show_status=0",
        runs: &["package --ignored --test-threads=1"],
        modules: NEEDED,
        system: System::Systemd,
        ..PLAIN
    },
    Guest {
        name: "poweroff",
        what: "a machine with systemd that is turned off while pods run",
        kernel: "systemd.show_status=0",
        runs: &["systemd --ignored turned_off"],
        modules: NEEDED,
        system: System::Systemd,
        ..PLAIN
    },
];

/// The timeout without any output, after which a guest hangs, however busy this machine is.
const SILENCE: Duration = Duration::from_secs(1800);

const MEMORY_MIB: u32 = 3072;

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (mut wanted, mut choice, mut arguments) = (host()?, None, arguments);
    loop {
        arguments = match arguments {
            [option, triple, rest @ ..] if option == "--target" => {
                wanted = processor(triple)?;
                rest
            }
            [option, text, rest @ ..] if option == "--shard" => {
                choice = Some(Choice::part(text).ok_or_else(|| {
                    Failure(format!("--shard takes a part and of how many, as 2/5; {}", usage("guest")))
                })?);
                rest
            }
            [option, text, rest @ ..] if option == "--some" => {
                let order = format!("some {}", text.replacen('/', " ", 1));
                choice = Some(Choice::of_order(&order).ok_or_else(|| {
                    Failure(format!("--some takes a number and how many tests, as 7/4; {}", usage("guest")))
                })?);
                rest
            }
            [option, ..] if option.starts_with('-') => return Err(misused("guest")),
            _ => break,
        };
    }
    let processor = wanted;
    let Some((name, words)) = arguments.split_first() else { return boot_all(processor, &always(), choice) };
    let guest = GUESTS.iter().find(|guest| guest.name == name).ok_or_else(|| {
        let names: Vec<&str> = GUESTS.iter().map(|guest| guest.name).collect();
        let names = names.join(", ");
        Failure(format!("there is no guest {name:?}, only {names}; {}", usage("guest")))
    })?;
    if words.is_empty() {
        return boot_all(processor, &[guest], choice);
    }
    let run = words.join(" ");
    boot_all(processor, &[&Guest { runs: &[&run], ..*guest }], choice)
}

/// The most test programs in one boot of a guest with another processor: its emulator cannot load an
/// initramfs of many hundreds of MiB, nor can a 32-bit kernel.
const FOREIGN_AT_A_TIME: usize = 10;

/// Boots the guests that are a step of the check.
pub(crate) fn check() -> Outcome {
    let in_turn: Vec<&Guest<'_>> = GUESTS.iter().filter(|guest| guest.when == When::InTurn).collect();
    let chosen = in_turn[commit::number() % in_turn.len()];
    let others: Vec<&str> = in_turn.iter().map(|guest| guest.name).collect();
    eprintln!("of the guests {}, the commit chooses {}", others.join(", "), chosen.name);
    let mut guests = always();
    guests.push(chosen);
    boot_all(host()?, &guests, None)
}

/// The number of tests of one program with another processor, for which a check has time.
const FOREIGN_TESTS: usize = 4;

/// Guests that are known to boot with each processor.
const FOREIGN: &[&str] = &["v2", "lacking", "idle", "off"];

/// Runs a few tests with another processor. The number chooses the processor, the program, and its tests;
/// consecutive numbers choose the processors in turn.
pub(crate) fn foreign(number: usize) -> Outcome {
    let ours = host()?.triple;
    let processors: Vec<&Processor> =
        PROCESSORS.iter().filter(|processor| processor.triple != ours).collect();
    let mut runs = Vec::new();
    for guest in GUESTS.iter().filter(|guest| FOREIGN.contains(&guest.name)) {
        runs.extend(guest.runs.iter().map(|run| Guest { runs: std::slice::from_ref(run), ..*guest }));
    }
    let (processor, number) = (processors[number % processors.len()], number / processors.len());
    let (guest, number) = (&runs[number % runs.len()], number / runs.len());
    let (triple, name, run) = (processor.triple, guest.name, guest.runs.join(" "));
    eprintln!("$ cargo xtask guest --target {triple} --some {number}/{FOREIGN_TESTS} {name} {run}");
    boot_all(processor, &[guest], Some(Choice::Some { number, count: FOREIGN_TESTS }))
}

/// Runs every guest, with every processor, or a part of each guest's tests. Guests that are not portable only run
/// with this machine's own processor: debootstrap executes the packages' programs.
pub(crate) fn whole(part: &str) -> Outcome {
    let choice = Some(part).filter(|part| *part != "1/1").and_then(Choice::part);
    let ours = host()?.triple;
    PROCESSORS.iter().try_for_each(|processor| {
        let native = processor.triple == ours;
        let all: Vec<&Guest<'_>> = GUESTS.iter().filter(|guest| native || guest.is_portable()).collect();
        boot_all(processor, &all, choice)
    })
}

/// The emulator of guests with this machine's processor, and its Debian package.
pub(crate) fn emulator() -> Option<(&'static str, &'static str)> {
    host().ok().map(|processor| (processor.qemu, processor.package))
}

/// This machine's own processor.
fn host() -> Result<&'static Processor, Failure> {
    processor(targets::host()?.triple)
}

fn always() -> Vec<&'static Guest<'static>> {
    GUESTS.iter().filter(|guest| guest.when == When::Always).collect()
}

fn processor(triple: &str) -> Result<&'static Processor, Failure> {
    PROCESSORS.iter().find(|processor| processor.triple == triple).ok_or_else(|| {
        let known: Vec<&str> = PROCESSORS.iter().map(|processor| processor.triple).collect();
        Failure(format!("no guest has a processor {triple:?}; there are {}", known.join(", ")))
    })
}

fn boot_all(processor: &Processor, guests: &[&Guest<'_>], choice: Option<Choice>) -> Outcome {
    programs::provide(processor.qemu, processor.package)?;
    let tools = debian::package("busybox-static", processor.debian)?;
    let dir = work(&format!("guest/{}", processor.debian))?;
    let mut programs = build(processor, guests)?;
    if processor.triple != host()?.triple {
        programs = without_debug(&programs, &dir.join("programs"))?;
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
        guest.write_initramfs(processor, &initramfs, &kernel, &programs, system, choice)?;
        let log = dir.join(format!("{}.log", guest.name));
        let said = guest.boot(processor, &kernel, &initramfs, &log)?;
        fs::remove_file(&initramfs)?;
        let counts = match guest.judge(&said, choice) {
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
        return Err(Failure(failures.join("\n")));
    }
    let releases = releases.into_iter().collect::<Vec<_>>().join(" and ");
    eprintln!("{passed} tests passed in {count_of_boots} boots of Linux {releases}");
    Ok(())
}

/// The cargo arguments that build the program in the containers.
const DEMO: &str = "rustc --package nodlet-tests --bin demo";

/// Builds the programs that these guests run, and those that they need for it. Returns them by name.
fn build(processor: &Processor, guests: &[&Guest<'_>]) -> Result<BTreeMap<String, PathBuf>, Failure> {
    let runs = guests.iter().flat_map(|guest| guest.runs).filter_map(|run| run.split(' ').next());
    let tests: BTreeSet<String> = runs
        .map(
            |program| if UNITS.contains(&program) { "--lib".to_owned() } else { format!("--test {program}") },
        )
        .collect();
    let tests: Vec<String> = tests.into_iter().collect();
    let tests = format!(
        "test --no-run --package nodlet-host --package nodlet-runtime --package nodlet-supervisor --package nodlet-tests {}",
        tests.join(" ")
    );
    let mut programs = BTreeMap::new();
    for words in [
        "build --bin nodlet --bin guest-init --package nodlet --package nodlet-tests",
        "build --package nodlet-runtime --example replay",
        &tests,
        // Last, because the tests' build makes a program with the same name.
        DEMO,
    ] {
        let mut build = cross::cargo_for_triple(processor.triple)?;
        build.args(words.split(' ')).args(["--quiet", "--message-format=json-render-diagnostics"]);
        if words == DEMO {
            // Debug information is most of the program, and each image with it is hashed.
            build.args(["--", "-Cstrip=symbols"]);
        }
        eprintln!("$ {}", line_of(&build));
        let output = build.stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(Failure(format!("{}: {}", line_of(&build), output.status)));
        }
        for line in output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let message: Value = serde_json::from_slice(line)?;
            if message["profile"]["test"] == words.starts_with("test")
                && let (Some(path), Some(name)) =
                    (message["executable"].as_str(), message["target"]["name"].as_str())
            {
                programs.insert(name.to_owned(), path.into());
            }
        }
    }
    Ok(programs)
}

/// Copies of the programs without debug information, which is most of their size: not every emulated machine
/// supports a file of hundreds of MiB.
fn without_debug(
    programs: &BTreeMap<String, PathBuf>,
    dir: &Path,
) -> Result<BTreeMap<String, PathBuf>, Failure> {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir)?;
    let objcopy = toolchain::objcopy()?;
    let mut copies = BTreeMap::new();
    for (name, program) in programs {
        let copy = dir.join(name);
        let output = Command::new(&objcopy).arg("--strip-debug").arg(program).arg(&copy).output();
        let output = output.map_err(|error| format!("failed to run {}: {error}", objcopy.display()))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Failure(format!("{} {}: {why}", objcopy.display(), program.display())));
        }
        copies.insert(name.clone(), copy);
    }
    Ok(copies)
}

impl Guest<'_> {
    /// Whether the guest exists with other processors: a Debian and hardware are only made for this machine's.
    fn is_portable(&self) -> bool {
        self.system == System::Tools && self.hardware.is_empty()
    }

    fn runs_any_of(&self, suites: &[&str]) -> bool {
        self.runs.iter().filter_map(|run| run.split(' ').next()).any(|run| suites.contains(&run))
    }

    fn write_initramfs(
        &self,
        processor: &Processor,
        path: &Path,
        kernel: &Kernel,
        programs: &BTreeMap<String, PathBuf>,
        system: Option<(&Path, &str)>,
        choice: Option<Choice>,
    ) -> Outcome {
        let failed = |error: io::Error| Failure(format!("failed to write {}: {error}", path.display()));
        let program = |name: &str| {
            programs.get(name).ok_or_else(|| Failure(format!("there is no test program {name:?}")))
        };
        let mut orders = format!("load {}\n", self.modules.join(" "));
        for controllers in self.cgroup_v1 {
            orders.push_str(&format!("{CGROUP_V1} {controllers}\n"));
        }
        if let Some(choice) = choice {
            orders.push_str(&format!("{choice}\n"));
        }
        let mut wanted = vec!["nodlet", "demo"];
        for run in self.runs {
            orders.push_str(&format!("run /tests/{run}\n"));
            wanted.extend(run.split(' ').next());
        }
        let mut cpio = Cpio::new(BufWriter::new(File::create(path).map_err(failed)?));
        let is_systemd = self.system == System::Systemd;
        if let Some((system, console)) = system.filter(|_| is_systemd) {
            systemd::install(&mut cpio, system, console).map_err(failed)?;
            if self.runs_any_of(WITH_PACKAGES) {
                for (name, _) in PACKAGES {
                    let package = fs::read(program(name)?)?;
                    cpio.file(&format!("/packages/{name}"), 0o644, &package).map_err(failed)?;
                }
            } else {
                systemd::install_nodlet(&mut cpio, &fs::read(program("nodlet")?)?).map_err(failed)?;
            }
        } else {
            if let Some((system, _)) = system {
                systemd::install_without(&mut cpio, system).map_err(failed)?;
            }
            for (suites, packages, programs) in [
                (WITH_LINKS, IPROUTE, &["/usr/sbin/ip"][..]),
                (WITH_APPARMOR, APPARMOR, &["/usr/sbin/apparmor_parser"]),
                (WITH_DISKS, E2FSPROGS, &["/usr/sbin/mkfs.ext4", "/usr/bin/lsattr"]),
            ] {
                if system.is_some() || !self.runs_any_of(suites) {
                    continue;
                }
                debian::fetch(packages, processor.debian)?;
                for package in packages {
                    cpio.tree(&debian::package(package, processor.debian)?, &["usr/share"])
                        .map_err(failed)?;
                }
                // Busybox, which is installed later, leaves these.
                for program in programs {
                    let name = program.rsplit('/').next().unwrap_or_default();
                    cpio.link(&format!("/bin/{name}"), program).map_err(failed)?;
                }
                cpio.link("/lib64", "usr/lib64").map_err(failed)?;
                cpio.link("/lib", "usr/lib").map_err(failed)?;
            }
            cpio.file("/bin/busybox", 0o755, &fs::read(program("busybox")?)?).map_err(failed)?;
        }
        cpio.file("/init", 0o755, &fs::read(program("guest-init")?)?).map_err(failed)?;
        // At the paths at which the tests look for them, which is where they were built.
        for (suites, name, at) in [
            (WITH_KUBECTL, "kubectl", go::KUBECTL.path(None)?),
            (WITH_AGNHOST, "agnhost", go::AGNHOST.path(None)?),
        ] {
            if self.runs_any_of(suites) {
                let at = at.display().to_string();
                cpio.file(&at, 0o755, &fs::read(program(name)?)?).map_err(failed)?;
            }
        }
        for (_, directory) in FILES.iter().filter(|(suite, _)| self.runs_any_of(&[suite])) {
            for entry in fs::read_dir(crate::project().join(directory))? {
                let path = entry?.path();
                if path.is_file() {
                    cpio.file(&path.display().to_string(), 0o644, &fs::read(&path)?).map_err(failed)?;
                }
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        for name in wanted {
            cpio.file(&format!("/tests/{name}"), 0o755, &fs::read(program(name)?)?).map_err(failed)?;
        }
        cpio.file("/tests/examples/replay", 0o755, &fs::read(program("replay")?)?).map_err(failed)?;
        let modules = kernel.modules(self.modules)?;
        let mut list = String::new();
        for module in &modules {
            let words: Vec<&str> =
                std::iter::once(&module.name).chain(&module.needs).map(String::as_str).collect();
            list.push_str(&words.join(" "));
            list.push('\n');
            cpio.file(&format!("{MODULES}/{}.ko", module.name), 0o644, &module.bytes).map_err(failed)?;
        }
        cpio.file(MODULE_LIST, 0o644, list.as_bytes()).map_err(failed)?;
        cpio.file(ORDERS, 0o644, orders.as_bytes()).map_err(failed)?;
        cpio.end().map(drop).map_err(failed)
    }

    /// Boots the guest, and returns all of its output until it was off.
    fn boot(
        &self,
        processor: &Processor,
        kernel: &Kernel,
        initramfs: &Path,
        log: &Path,
    ) -> Result<String, Failure> {
        // The output of an earlier guest must not count if the emulator does not start.
        File::create(log)?;
        let mut qemu = Command::new(processor.qemu);
        qemu.args(processor.machine)
            .args(["-accel", "tcg", "-smp", if self.name == "cores" { "4" } else { "1" }])
            // The guest's clock counts its instructions, two nanoseconds each, and skips idle time: the
            // guest's deadlines do not depend on how busy this machine is.
            .args(["-icount", "shift=1,sleep=off", "-rtc", "clock=vm"])
            .args(["-m", &MEMORY_MIB.to_string(), "-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-nic", "none"])
            .arg("-serial")
            .arg(format!("file:{}", log.display()))
            .arg("-kernel")
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(initramfs)
            .arg("-append")
            // Only errors: warnings would interrupt the tests' output.
            .arg(format!("console={} panic=-1 mitigations=off loglevel=1 {}", processor.console, self.kernel))
            .args(self.hardware)
            // Where the sockets between parts of the hardware are.
            .current_dir(log.parent().unwrap_or(Path::new("/")))
            .stdin(Stdio::null());
        // SAFETY: one system call, which is async-signal-safe. It makes the guest end with the process that
        // waits for it.
        unsafe { qemu.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?)) };
        let mut qemu = qemu.spawn().map_err(|error| {
            format!(
                "failed to run {}: {error}; Debian's package {} has it",
                processor.qemu, processor.package
            )
        })?;
        let mut heard = (0, Instant::now());
        let hung = loop {
            if qemu.try_wait()?.is_some() {
                break false;
            }
            let length = fs::metadata(log).map_or(0, |log| log.len());
            if length != heard.0 {
                heard = (length, Instant::now());
            } else if heard.1.elapsed() > SILENCE {
                qemu.kill()?;
                qemu.wait()?;
                break true;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let said = String::from_utf8_lossy(&fs::read(log)?).replace('\r', "");
        if hung {
            return Err(
                format!("guest {}: it said nothing more for {SILENCE:?} after\n{said}", self.name).into()
            );
        }
        Ok(said)
    }

    /// The number of passed tests in each run. Fails unless all wanted tests ran and passed. With a part of
    /// the tests, a run may have none.
    fn judge(&self, said: &str, choice: Option<Choice>) -> Result<Vec<u32>, String> {
        let says = |what: &str| said.lines().filter(|line| *line == format!("{SAYS}{what}")).count();
        for run in self.runs {
            if says(&format!("run /tests/{run}")) == 0 {
                return Err(format!("it did not run {run}"));
            }
        }
        if says("exit 0") != self.runs.len() || !said.lines().any(|line| line == END) {
            return Err("not all went well".to_owned());
        }
        let mut passed = said.lines().filter_map(passed);
        if choice.is_none() {
            let passed: Vec<u32> = passed.collect();
            if passed.len() != self.runs.len() || passed.contains(&0) {
                return Err("a program ran no test".to_owned());
            }
            return Ok(passed);
        }
        let chosen =
            said.lines().filter_map(|line| line.strip_prefix(SAYS)?.strip_prefix(CHOSEN)?.parse().ok());
        let chosen: Vec<u32> = chosen.collect();
        let ran = chosen.iter().all(|count| *count == 0 || passed.next() == Some(*count));
        if chosen.len() != self.runs.len() || !ran || passed.next().is_some() {
            return Err("a program did not run the tests that were chosen".to_owned());
        }
        if chosen.iter().all(|count| *count == 0) {
            return Err("there are fewer tests than parts".to_owned());
        }
        Ok(chosen)
    }
}

/// Parses `test result: ok. 3 passed; …`, or the supervisor tests' format `test result: 3 passed; …`.
fn passed(line: &str) -> Option<u32> {
    line.strip_prefix("test result: ")?.split(" passed").next()?.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: Guest<'_> =
        Guest { name: "one", what: "", kernel: "", runs: &["line", "supervisor x"], modules: &[], ..PLAIN };

    #[test]
    fn guests_have_kubectl_for_each_suite_that_drives_a_device_with_it() {
        for run in GUESTS.iter().flat_map(|guest| guest.runs) {
            let suite = run.split(' ').next().unwrap();
            let source = crate::project().join(format!("tests/tests/{suite}.rs"));
            let Ok(text) = fs::read_to_string(source) else { continue };
            assert!(!text.contains("Kubectl::new") || WITH_KUBECTL.contains(&suite), "{suite} needs kubectl");
        }
    }

    #[test]
    fn a_guest_is_believed_only_if_every_run_ended_well_and_ran_tests() {
        let well = "boot\n\nguest: run /tests/line\ntest result: ok. 2 passed; 0 failed\n\nguest: exit 0\n\
             \nguest: run /tests/supervisor x\ntest result: 40 passed; 0 failed []\n\nguest: exit 0\n\nguest: the end\n";
        assert_eq!(GUEST.judge(well, None), Ok(vec![2, 40]));
        for (from, to) in [
            ("guest: exit 0\n\nguest: the end", "guest: exit 1\n\nguest: the end"),
            ("ok. 2 passed", "ok. 0 passed"),
            ("guest: the end", "guest: failed to load the module erofs"),
            ("guest: run /tests/line\n", ""),
            ("guest: the end\n", "Kernel panic"),
        ] {
            assert!(GUEST.judge(&well.replace(from, to), None).is_err(), "{from} -> {to}");
        }
    }

    #[test]
    fn a_part_of_the_tests_counts_only_if_all_chosen_tests_passed() {
        let part = Choice::part("2/5");
        let well = "guest: run /tests/line\nguest: tests in this part: 0\nguest: exit 0\n\
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
