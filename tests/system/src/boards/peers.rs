//! `cargo xtask peers`: runs the same pod on the same emulated board with the same kernel and memory, with
//! nodlet and with a kubelet and containerd, in turns. Measures the time from the kernel's entry to the first
//! instruction of the pod's container, which writes CLOCK_MONOTONIC as its first act, and the memory that is
//! left when both have settled.
//!
//! The kubelet is set up as on a carefully built device: a script starts only containerd and the kubelet, all
//! images were loaded in an earlier boot, the API server is turned off, the pod is a file, and the system
//! is on a disk. nodlet's system is entirely in memory.

use std::fs::{self, File};
use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodlet_build::arguments::Arguments;
use nodlet_build::task::{Outcome, Task, TaskError, run as run_command};
use nodlet_build::{cross, debian, go, programs, targets};
use nodlet_dist::image::{DeviceImage, RamForm};
use nodlet_dist::kernel;
use nodlet_dist::profile::{self, Profile, Qemu};
use nodlet_dist::tree::Tree;
use nodlet_tests::image::{DEMO, Image};
use nodlet_tests::manifest;

use super::{Board, build, demo_for, prepare, text};

/// The least memory with which a kubelet does not evict its pods at once.
const MEMORY_MIB: u32 = 512;

/// Seconds for which both may settle before memory is read.
const REST: u32 = 60;

/// The directory into which the container writes its time.
const SHARED: &str = "/run/shared";

const PAUSE: &str = "localhost/pause:1";

/// The measurements of one boot.
#[derive(Debug)]
struct Boot {
    /// Kernel entry → first instruction of the container, in seconds.
    first: f64,
    /// `MemAvailable` after settling, in KiB.
    available: u64,
    /// PSS of all processes but the container's, in KiB.
    share: u64,
}

/// The task `cargo xtask peers`.
pub(crate) const TASK: Task = Task::new(
    "peers",
    "[--rounds N] [PROFILE]",
    "measure kubelet and containerd beside nodlet on an emulated board, from the kernel's entry",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut arguments = Arguments::new(&TASK, arguments);
    let rounds = arguments.one("--rounds")?.unwrap_or(3);
    let name = arguments.names()?.pop().unwrap_or_else(|| "qemu-arm64".to_owned());
    if rounds == 0 {
        return Err(TASK.misused());
    }
    let profile = profile::get(&name)?;
    let Some(qemu) = &profile.qemu else {
        return Err(TaskError(format!("no emulator has the board {name}")));
    };
    programs::provide(&qemu.program, &qemu.package)?;
    for program in ["ssh", "ssh-keygen"] {
        programs::provide(program, "openssh-client")?;
    }
    programs::provide("mke2fs", "e2fsprogs")?;
    measure(&Profile { memory_mib: MEMORY_MIB, ..profile.clone() }, qemu, rounds)
}

fn measure(profile: &Profile, qemu: &Qemu, rounds: usize) -> Outcome {
    let (directory, key, mut contents) = prepare(profile, "peers")?;
    let pod = directory.join("first.yaml");
    fs::write(&pod, pod_of_both())?;
    contents.pods.push(pod);
    let ours = build(profile, &contents, &directory)?;
    let theirs = Peer::make(profile, &ours, &contents.archives[0], &directory)?;
    theirs.load_images(qemu, &directory, &key)?;

    let (mut nodlet, mut kubelet) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // A different one begins in each round.
        for turn in 0..2 {
            if (round + turn) % 2 == 0 {
                nodlet.push(boot_nodlet(qemu, &ours, &directory, &key)?);
            } else {
                kubelet.push(theirs.boot(qemu, &directory, &key)?);
            }
        }
        eprintln!("round {}: {:?}; {:?}", round + 1, nodlet.last(), kubelet.last());
    }
    let release = go::KUBELET.release;
    let containerd = go::CONTAINERD[0].release;
    println!(
        "{}, {MEMORY_MIB} MiB, {rounds} rounds; medians, in brackets the least and the most\n",
        profile.name
    );
    println!("| what | nodlet | kubelet {release} + containerd {containerd} | nodlet ÷ other |");
    println!("|---|---|---|---|");
    let line = |what: &str, unit: &str, of: &dyn Fn(&Boot) -> f64| {
        let values = |boots: &[Boot]| {
            let mut values: Vec<f64> = boots.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let (ours, theirs) = (values(&nodlet), values(&kubelet));
        let shown = |values: &[f64]| {
            let (least, median, most) = (values[0], values[values.len() / 2], values[values.len() - 1]);
            format!("{median:.1} {unit} ({least:.1} to {most:.1})")
        };
        let ratio = ours[ours.len() / 2] / theirs[theirs.len() / 2];
        println!("| {what} | {} | {} | {ratio:.2} |", shown(&ours), shown(&theirs));
    };
    let taken = |boot: &Boot| (f64::from(MEMORY_MIB) * 1024.0 - boot.available as f64) / 1024.0;
    line("kernel entry → first instruction of the pod", "s", &|boot| boot.first);
    line("memory left, of 512 MiB", "MiB", &|boot| boot.available as f64 / 1024.0);
    line("memory taken, the kernel's with it", "MiB", &taken);
    line("PSS of all processes but the pod's", "MiB", &|boot| boot.share as f64 / 1024.0);
    let ours = megabytes(&[cross::build(targets::get(&profile.target)?)?])?;
    let theirs = megabytes(&theirs.programs)?;
    println!("| programs | {ours:.1} MB | {theirs:.1} MB | {:.3} |", ours / theirs);
    Ok(())
}

fn megabytes(files: &[PathBuf]) -> Result<f64, TaskError> {
    let mut sum = 0;
    for file in files {
        sum += fs::metadata(file)?.len();
    }
    Ok(sum as f64 / 1e6)
}

/// The pod that both run. It uses the node's network, because a kubelet needs a plugin for any other.
fn pod_of_both() -> String {
    let container = manifest::container(
        "app",
        "clock /shared/first then sleep",
        "imagePullPolicy: Never\nvolumeMounts: [{name: shared, mountPath: /shared}]",
    );
    let volume = format!("{{name: shared, hostPath: {{path: {SHARED}, type: DirectoryOrCreate}}}}");
    manifest::pod_of("first", &[container], &format!("hostNetwork: true\nvolumes: [{volume}]"))
}

fn boot_nodlet(qemu: &Qemu, image: &DeviceImage, directory: &Path, key: &Path) -> Result<Boot, TaskError> {
    let mut board = Board::boot(qemu, MEMORY_MIB, image, directory, key)?;
    let mut first = None;
    board.wait_for("the pod to write its time", |board| {
        first = board.output(&format!("cat {SHARED}/first"))?.trim().parse::<f64>().ok();
        Ok(first.is_some())
    })?;
    let numbers = board.output(&format!("busybox sleep {REST}; {MEMORY}"))?;
    let numbers: Vec<u64> = numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let (Some(first), [available, share]) = (first, &numbers[..]) else {
        return Err(board.failed(&format!("no figures of memory: {numbers:?}")));
    };
    board.ssh("nodlet poweroff", "")?;
    board.wait_until_down("powering off")?;
    Ok(Boot { first: first / 1e9, available: *available, share: *share })
}

/// The command that prints `MemAvailable`, and the PSS of all processes but the container's and the measuring
/// ones, in KiB.
const MEMORY: &str = "busybox awk '/^MemAvailable/ {print $2}' /proc/meminfo; \
    for process in /proc/[0-9]*; do case $(busybox cat $process/comm 2>/dev/null) in demo|sh|busybox) ;; \
    *) busybox cat $process/smaps_rollup 2>/dev/null;; esac; done | busybox awk '/^Pss:/ {sum += $2} END {print sum}'";

/// A board with a kubelet.
struct Peer {
    image: DeviceImage,
    disk: PathBuf,
    programs: Vec<PathBuf>,
}

/// The script of the initramfs: mounts the disk and continues there.
const FIRST: &str = "#!/bin/busybox sh
/bin/busybox mkdir -p /proc /disk
/bin/busybox mount -t proc proc /proc
for name in $(/bin/busybox cat /usr/lib/nodlet/modules/list); do
    /bin/busybox insmod /usr/lib/nodlet/modules/$name
done
until [ -b /dev/vda ]; do
    [ -d /dev/pts ] || /bin/busybox mount -t devtmpfs dev /dev
    /bin/busybox usleep 10000
done
/bin/busybox mount -t ext4 /dev/vda /disk
exec /bin/busybox switch_root /disk /sbin/init
";

/// The script on the disk: starts containerd, loads the images once, and starts the kubelet.
const SECOND: &str = r#"#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mount --make-rshared /
hostname peer
ip link set lo up
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.2.2
containerd --config /etc/containerd/config.toml >/var/log/containerd.log 2>&1 &
until [ -S /run/containerd/containerd.sock ]; do usleep 10000; done
if [ ! -e /etc/images-are-loaded ]; then
    for image in /images/*; do
        ctr --namespace k8s.io images import --all-platforms $image >>/var/log/import.log 2>&1 ||
            echo "PEER failed to import $image: $(cat /var/log/import.log)" >/dev/console
    done
    ctr --namespace k8s.io images ls >/var/log/images.log 2>&1
    touch /etc/images-are-loaded
    sync
    echo "PEER loaded $(cat /var/log/images.log)" >/dev/console
    poweroff -f
fi
kubelet --config /etc/kubelet.yaml --hostname-override peer --node-ip 10.0.2.15 >/var/log/kubelet.log 2>&1 &
waited=0
until [ -s /run/shared/first ]; do
    waited=$((waited + 1))
    if [ $waited -gt 3000 ]; then
        echo "PEER no pod: $(tail -n 40 /var/log/kubelet.log)" >/dev/console
        poweroff -f
    fi
    usleep 50000
done
sleep REST
echo PEER figures $(cat /run/shared/first) $(MEMORY) >/dev/console
sync
poweroff -f
"#;

const CONTAINERD: &str = "version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = \"localhost/pause:1\"
";

const KUBELET: &str = "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: /etc/kubernetes/manifests
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
enableServer: false
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
";

impl Peer {
    /// Creates a disk with everything that such a board needs, and an initramfs that mounts it.
    fn make(profile: &Profile, ours: &DeviceImage, demo: &Path, directory: &Path) -> Result<Peer, TaskError> {
        let processor = &profile.debian;
        let root = directory.join("root");
        let _ = fs::remove_dir_all(&root);
        for made in [
            "bin",
            "sbin",
            "usr/bin",
            "etc/containerd",
            "etc/kubernetes/manifests",
            "images",
            "proc",
            "sys",
            "dev",
        ] {
            fs::create_dir_all(root.join(made))?;
        }
        for made in ["run", "tmp", "var/log", "var/lib", "root"] {
            fs::create_dir_all(root.join(made))?;
        }
        let busybox = debian::package("busybox-static", processor)?.join("usr/bin/busybox");
        fs::copy(&busybox, root.join("bin/busybox"))?;
        for name in [
            "sh", "mount", "mkdir", "hostname", "ip", "usleep", "touch", "sync", "poweroff", "cat", "tail",
            "sleep", "umount",
        ] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name))?;
        }
        let mut programs = Vec::new();
        for program in go::CONTAINERD.iter().chain([&go::KUBELET]) {
            let built = program.build(Some(profile.architecture()))?;
            fs::copy(&built, root.join("usr/bin").join(program.name))?;
            if program.name != "ctr" {
                programs.push(built);
            }
        }
        // runc is a C program: use Debian's, with the libraries that it is linked with.
        for package in ["libc6", "libseccomp2", "runc"] {
            let files = debian::package(package, processor)?;
            run_command(Command::new("cp").arg("-a").arg(files.join("usr")).arg(&root))?;
        }
        std::os::unix::fs::symlink("usr/lib", root.join("lib"))?;
        let runc =
            ["usr/sbin/runc", "usr/bin/runc"].iter().map(|path| root.join(path)).find(|path| path.exists());
        programs.push(runc.ok_or("Debian's package has no runc")?);
        script(
            &root.join("sbin/init"),
            &SECOND.replace("REST", &REST.to_string()).replace("MEMORY", MEMORY),
        )?;
        fs::write(root.join("etc/containerd/config.toml"), CONTAINERD)?;
        fs::write(root.join("etc/kubelet.yaml"), KUBELET)?;
        fs::write(root.join("etc/resolv.conf"), "nameserver 10.0.2.3\n")?;
        fs::write(root.join("etc/hosts"), "127.0.0.1 localhost\n")?;
        fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
        fs::write(root.join("etc/kubernetes/manifests/first.yaml"), pod_of_both())?;
        fs::copy(demo, root.join("images/demo.tar"))?;
        pause(profile)?.write_oci_archive(&root.join("images/pause.tar"))?;

        let disk = directory.join("peer.disk");
        let _ = fs::remove_file(&disk);
        File::create(&disk)?.set_len(2 << 30)?;
        run_command(Command::new("mke2fs").args(["-q", "-t", "ext4", "-d"]).arg(&root).arg(&disk))?;
        let ours = ours.ram.as_ref().ok_or("the image does not fit into the board's memory")?;
        let initramfs = directory.join("peer.initramfs");
        let mut tree = Tree::default();
        tree.file("/bin/busybox", 0o755, fs::read(&busybox)?);
        tree.file("/init", 0o755, FIRST);
        tree.directory("/dev");
        let modules = ["virtio_pci", "virtio_blk", "virtio_net", "ext4", "crc32c_generic", "overlay"];
        kernel::of(&profile.kernel, processor)?.add_modules(&mut tree, &modules)?;
        tree.write_cpio(BufWriter::new(File::create(&initramfs)?))?;
        let ram = RamForm { initramfs, kernel: ours.kernel.clone(), command_line: ours.command_line.clone() };
        let image = DeviceImage { ram: Some(ram), disk: None };
        Ok(Peer { image, disk, programs })
    }

    /// Boots once to load the images, as a factory would.
    fn load_images(&self, qemu: &Qemu, directory: &Path, key: &Path) -> Outcome {
        let said = self.boot_until_off(qemu, directory, key)?;
        if said.contains("PEER loaded") && said.contains(DEMO) && said.contains(PAUSE) {
            return Ok(());
        }
        Err(TaskError(format!(
            "the images of the kubelet's board were not loaded; its console said:\n{said}"
        )))
    }

    fn boot(&self, qemu: &Qemu, directory: &Path, key: &Path) -> Result<Boot, TaskError> {
        let said = self.boot_until_off(qemu, directory, key)?;
        let figures = said.lines().find_map(|line| Some(line.split_once("PEER figures ")?.1));
        let figures = figures.unwrap_or_default().split_whitespace();
        let figures: Vec<u64> = figures.filter_map(|figure| figure.parse().ok()).collect();
        let [first, available, share] = figures[..] else {
            return Err(TaskError(format!("no figures of the kubelet's board; its console said:\n{said}")));
        };
        Ok(Boot { first: first as f64 / 1e9, available, share })
    }

    /// Boots, and waits until the board turns itself off. Returns the console output.
    fn boot_until_off(&self, qemu: &Qemu, directory: &Path, key: &Path) -> Result<String, TaskError> {
        let drive = format!("if=virtio,format=raw,file={}", self.disk.display());
        let arguments = ["-drive".to_owned(), drive];
        let mut board =
            Board::boot_with(qemu, MEMORY_MIB, &self.image, directory, key, Some(super::LINK), &arguments)?;
        board.wait_for("the board to go off", |board| Ok(board.emulator.try_wait()?.is_some()))?;
        Ok(text(&fs::read(&board.console)?))
    }
}

/// The image whose process holds a pod's namespaces under containerd.
fn pause(profile: &Profile) -> Result<Image, TaskError> {
    Ok(demo_for(profile)?.named(PAUSE).config("Cmd", serde_json::json!(["sleep"])))
}

fn script(path: &Path, text: &str) -> Outcome {
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}
