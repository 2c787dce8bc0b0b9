//! The guests, and what the suites in them need.

use super::{Guest, System};

/// The common parts of most guests.
pub(super) const PLAIN: Guest<'_> = Guest {
    name: "",
    what: "",
    kernel: "",
    runs: &[],
    modules: NEEDED,
    system: System::Tools,
    hardware: &[],
    cgroup_v1: &[],
};

/// The crates with unit tests of which some depend on the kernel.
pub(super) const UNITS: &[&str] = &["nodlet_host", "nodlet_runtime", "nodlet_supervisor"];

/// The modules of Debian's kernels that nodlet needs.
const BASE: &[&str] = &["erofs", "overlay", "veth", "bridge", "loop"];

/// The modules of most guests.
const NEEDED: &[&[&str]] = &[BASE];

/// Suites that use the real kubectl.
pub(super) const WITH_KUBECTL: &[&str] = &[
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
    "objects",
    "describe",
    "tasks",
];

/// Suites with pods of Kubernetes' own test program.
pub(super) const WITH_AGNHOST: &[&str] = &["documents", "tasks"];

/// Suites that use `ip` of iproute2.
pub(super) const WITH_LINKS: &[&str] = &["devices", "ports", "hardware", "gateway"];

/// iproute2, and the packages with its libraries.
pub(super) const IPROUTE: &[&str] = &[
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
pub(super) const WITH_APPARMOR: &[&str] = &["apparmor"];

/// `apparmor_parser`, and the packages with its libraries.
pub(super) const APPARMOR: &[&str] = &["apparmor", "libapparmor1", "libc6", "libgcc-s1", "libstdc++6"];

/// Suites that make file systems.
pub(super) const WITH_DISKS: &[&str] = &["cores", "full_disk"];

/// The programs that make file systems, and the packages with the libraries of what tests run of them.
pub(super) const DISK_TOOLS: &[&str] = &[
    "btrfs-progs",
    "e2fsprogs",
    "libblkid1",
    "libc6",
    "libcap2",
    "libcom-err2",
    "libext2fs2t64",
    "libinih1",
    "liblzo2-2",
    "libudev1",
    "liburcu8t64",
    "libuuid1",
    "libzstd1",
    "xfsprogs",
    "zlib1g",
];

/// Files of the project that suites read: the suite, and a file or the directory of the files.
pub(super) const FILES: &[(&str, &str)] = &[
    ("tasks", "examples/tasks"),
    ("apparmor", "examples/apparmor"),
    ("examples", "examples"),
    ("examples", "examples/devices"),
    ("gateway", "examples/gateway"),
    ("gateway", "examples/gateway/devices"),
    ("gateway", ".work/images/gateway.oci.tar"),
    ("gateway", ".work/images/nginx.oci.tar"),
];

/// Suites with pods of the images of real software, which are built for this machine's processor.
pub(super) const WITH_IMAGES: &[&str] = &["gateway"];

/// Suites that install the Debian package, and upgrade it to one with a later version.
pub(super) const WITH_PACKAGES: &[&str] = &["package"];

/// The packages for these suites: their files in `/packages` of the guest, and their versions.
pub(super) const PACKAGES: &[(&str, &str)] = &[("nodlet-1.deb", "1.0-1"), ("nodlet-2.deb", "1.0-2")];

/// The modules of packet filters and network address translation that nodlet uses.
const FILTERS: &[&str] =
    &["nf_tables", "nft_chain_nat", "nft_nat", "nft_masq", "nft_ct", "nft_fib_inet", "nf_conntrack_netlink"];

/// The modules of serial devices on USB, and of the lines between them and the host.
const SERIAL: &[&str] = &["virtio_pci", "virtio_console", "xhci_pci", "usbserial", "ftdi_sio"];

/// A serial port on USB, which is wired to a port of the guest, and QEMU's monitor at another port: tests
/// plug devices in and out. CAN cards on one bus.
pub(super) const HARDWARE: &[&str] = &[
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

pub(super) const GUESTS: &[Guest<'_>] = &[
    Guest {
        name: "lacking",
        what: "a kernel from which one feature after the other is taken",
        kernel: "",
        runs: &["lacking --ignored --test-threads=1 --skip memory_controller --skip landlock"],
        modules: NEEDED,
        ..PLAIN
    },
    Guest {
        name: "idle",
        what: "a day in which nothing happens",
        kernel: "",
        runs: &["idle --ignored --test-threads=1"],
        modules: NEEDED,
        ..PLAIN
    },
    Guest {
        name: "off",
        what: "a kernel whose memory controller is off, as many boards have it, and Landlock with it",
        kernel: "cgroup_disable=memory lsm=capability",
        runs: &[
            "lacking --ignored --test-threads=1 doctor_finds when_the_memory_controller without_landlock",
        ],
        modules: NEEDED,
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
        ..PLAIN
    },
    Guest {
        name: "cores",
        what: "several processors, of which containers have some for themselves, swap, and quotas of disks",
        kernel: "",
        runs: &["cores --ignored --test-threads=1"],
        modules: &[BASE, &["ext4", "quota_v2", "xfs", "zram"]],
        ..PLAIN
    },
    Guest {
        name: "disk",
        what: "pods that fill the disk, with cgroup v2",
        runs: &["full_disk --include-ignored --test-threads=1 --nocapture"],
        modules: &[BASE, &["ext4", "quota_v2", "xfs", "btrfs"]],
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
            "objects",
            "describe",
            "users",
            "tasks",
            // Each batch of pods prints a line: a guest that prints nothing for long hangs. The test that is left out
            // reads the sources of the others.
            "fields --nocapture --skip the_rows_that_name",
        ],
        modules: NEEDED,
        ..PLAIN
    },
    Guest {
        name: "links",
        what: "links of pods and of the board, beside the programs of its owner",
        kernel: "",
        runs: &["devices an_interface", "ports", "examples"],
        // ifb and macvlan are no filters, but kinds of links that tests create.
        modules: &[BASE, FILTERS, &["ifb", "macvlan"]],
        ..PLAIN
    },
    Guest {
        name: "gateway",
        what: "a gateway of real software: a broker, a collector of a serial device and a web server",
        runs: &["gateway"],
        modules: &[BASE, FILTERS, SERIAL],
        hardware: HARDWARE,
        ..PLAIN
    },
    Guest {
        name: "hardware",
        what: "devices on USB, which are plugged in and out, and CAN",
        runs: &["hardware --ignored --test-threads=1"],
        modules: &[BASE, SERIAL, &["can_raw", "vcan", "vxcan", "kvaser_pci"]],
        hardware: HARDWARE,
        ..PLAIN
    },
    Guest {
        name: "v1",
        what: "huge pages, where controllers are those of cgroup v1",
        runs: &["limits --ignored --test-threads=1 huge_pages"],
        cgroup_v1: &["cpu,cpuacct", "pids", "devices", "freezer", "hugetlb"],
        ..PLAIN
    },
    Guest {
        name: "firewalls",
        what: "ufw, firewalld and Docker of Debian",
        runs: &["firewalls --include-ignored --test-threads=1 --skip beside_ufw --skip beside_firewalld"],
        modules: &[
            BASE,
            FILTERS,
            &[
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
        ],
        system: System::Firewalls,
        ..PLAIN
    },
    Guest {
        name: "apparmor",
        what: "profiles of AppArmor, where the kernel has it",
        kernel: "apparmor=1 lsm=capability,landlock,yama,apparmor",
        runs: &["apparmor --include-ignored --test-threads=1"],
        modules: NEEDED,
        ..PLAIN
    },
    Guest {
        name: "systemd",
        what: "a service of systemd, beside NetworkManager, networkd and resolved",
        kernel: "systemd.show_status=0",
        runs: &["systemd --ignored --test-threads=1 --skip turned_off"],
        // Includes the module that the tests use as a network card.
        modules: &[BASE, &["dummy"]],
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
        runs: &["systemd --ignored a_machine_that_is_turned_off"],
        modules: NEEDED,
        system: System::Systemd,
        ..PLAIN
    },
];
