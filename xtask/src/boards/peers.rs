//! `cargo xtask peers`: the same pod on the same emulated board with the same kernel and memory, run by
//! nodlet and by a kubelet with containerd, in turns. Measured from the kernel's entry to the first
//! instruction of the pod's container, which writes CLOCK_MONOTONIC as its first act, and, when both
//! have come to rest, what memory is left.
//!
//! The kubelet has what it would have on a device that was made with care: containerd and it are
//! started by a script and nothing else runs, all images were loaded in a boot before, its API server
//! is turned off, the pod is a file, and its system lies on a disk. nodlet's lies in memory whole.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodlet_tests::image::Image;
use nodlet_tests::manifest;

use super::{Board, build, demo_for, prepare, text};
use crate::guest::cpio::Cpio;
use crate::guest::kernel;
use crate::image::{DeviceImage, RamForm};
use crate::profile::{self, Profile, Qemu};
use crate::{Failure, Outcome, cross, debian, demo_image, go, misused, programs, run as run_command};

/// The least with which a kubelet does not evict its pods at once.
const MEMORY_MIB: u32 = 512;

/// How long both may come to rest before memory is read, in seconds.
const REST: u32 = 60;

/// Where the container writes its time.
const SHARED: &str = "/run/shared";

const PAUSE: &str = "localhost/pause:1";

/// What is measured of one boot.
#[derive(Debug)]
struct Boot {
    /// Kernel entry → first instruction of the container, in seconds.
    first: f64,
    /// `MemAvailable` at rest, in KiB.
    available: u64,
    /// PSS of all processes but the container's, in KiB.
    share: u64,
}

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (mut rounds, mut name) = (3, "qemu-arm64".to_owned());
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--rounds" => {
                let number = words.next().and_then(|number| number.parse().ok());
                rounds = number.filter(|rounds| *rounds > 0).ok_or_else(|| misused("peers"))?;
            }
            option if option.starts_with('-') => return Err(misused("peers")),
            other => name = other.to_owned(),
        }
    }
    let profile = profile::get(&name)?;
    let Some(qemu) = &profile.qemu else {
        return Err(Failure(format!("no emulator has the board {name}")));
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
        // Who begins is another in each round.
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
    let ours = megabytes(&[cross::build(cross::target(&profile.target)?)?])?;
    let theirs = megabytes(&theirs.programs)?;
    println!("| programs | {ours:.1} MB | {theirs:.1} MB | {:.3} |", ours / theirs);
    Ok(())
}

fn megabytes(files: &[PathBuf]) -> Result<f64, Failure> {
    let mut sum = 0;
    for file in files {
        sum += fs::metadata(file)?.len();
    }
    Ok(sum as f64 / 1e6)
}

/// It has the node's network: a kubelet needs a plugin for any other.
fn pod_of_both() -> String {
    let container = manifest::container(
        "app",
        "clock /shared/first then sleep",
        "imagePullPolicy: Never\nvolumeMounts: [{name: shared, mountPath: /shared}]",
    );
    let volume = format!("{{name: shared, hostPath: {{path: {SHARED}, type: DirectoryOrCreate}}}}");
    manifest::pod_of("first", &[container], &format!("hostNetwork: true\nvolumes: [{volume}]"))
}

fn boot_nodlet(qemu: &Qemu, image: &DeviceImage, directory: &Path, key: &Path) -> Result<Boot, Failure> {
    let mut board = Board::boot(qemu, MEMORY_MIB, image, directory, key)?;
    let mut first = None;
    board.wait_for("the pod to write its time", |board| {
        first = text(&board.ssh(&format!("cat {SHARED}/first"), "")?.stdout).trim().parse::<f64>().ok();
        Ok(first.is_some())
    })?;
    let numbers = text(&board.ssh(&format!("busybox sleep {REST}; {MEMORY}"), "")?.stdout);
    let numbers: Vec<u64> = numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let (Some(first), [available, share]) = (first, &numbers[..]) else {
        return Err(board.failed(&format!("no figures of memory: {numbers:?}")));
    };
    board.ssh("nodlet poweroff", "")?;
    board.wait_until_down("powering off")?;
    Ok(Boot { first: first / 1e9, available: *available, share: *share })
}

/// `MemAvailable`, and the PSS of all processes but the container's and those that measure, in KiB.
const MEMORY: &str = "busybox awk '/^MemAvailable/ {print $2}' /proc/meminfo; \
    for process in /proc/[0-9]*; do case $(busybox cat $process/comm 2>/dev/null) in demo|sh|busybox) ;; \
    *) busybox cat $process/smaps_rollup 2>/dev/null;; esac; done | busybox awk '/^Pss:/ {sum += $2} END {print sum}'";

/// A board with a kubelet.
struct Peer {
    image: DeviceImage,
    disk: PathBuf,
    programs: Vec<PathBuf>,
}

/// Mounts the disk and goes on there.
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

/// Starts containerd, loads the images once, and starts the kubelet.
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
    /// A disk with all that such a board needs, and an initramfs that mounts it.
    fn make(profile: &Profile, ours: &DeviceImage, demo: &Path, directory: &Path) -> Result<Peer, Failure> {
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
        // runc needs C: Debian's, with the libraries that it is linked with.
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
        let mut cpio = Cpio::new(File::create(&initramfs)?);
        cpio.file("/bin/busybox", 0o755, &fs::read(&busybox)?)?;
        cpio.file("/init", 0o755, FIRST.as_bytes())?;
        cpio.directory("/dev")?;
        let modules = ["virtio_pci", "virtio_blk", "virtio_net", "ext4", "crc32c_generic", "overlay"];
        kernel::of(&profile.kernel, processor)?.add_modules(&mut cpio, &modules)?;
        cpio.end()?.flush()?;
        let ram = RamForm { initramfs, kernel: ours.kernel.clone(), command_line: ours.command_line.clone() };
        let image = DeviceImage { ram: Some(ram), disk: None };
        Ok(Peer { image, disk, programs })
    }

    /// The boot before: images are loaded as a factory would.
    fn load_images(&self, qemu: &Qemu, directory: &Path, key: &Path) -> Outcome {
        let said = self.boot_until_off(qemu, directory, key)?;
        if said.contains("PEER loaded") && said.contains(demo_image::REFERENCE) && said.contains(PAUSE) {
            return Ok(());
        }
        Err(Failure(format!("the images of the kubelet's board were not loaded; its console said:\n{said}")))
    }

    fn boot(&self, qemu: &Qemu, directory: &Path, key: &Path) -> Result<Boot, Failure> {
        let said = self.boot_until_off(qemu, directory, key)?;
        let figures = said.lines().find_map(|line| Some(line.split_once("PEER figures ")?.1));
        let figures = figures.unwrap_or_default().split_whitespace();
        let figures: Vec<u64> = figures.filter_map(|figure| figure.parse().ok()).collect();
        let [first, available, share] = figures[..] else {
            return Err(Failure(format!("no figures of the kubelet's board; its console said:\n{said}")));
        };
        Ok(Boot { first: first as f64 / 1e9, available, share })
    }

    /// Boots, and waits until the board turns itself off; what its console said.
    fn boot_until_off(&self, qemu: &Qemu, directory: &Path, key: &Path) -> Result<String, Failure> {
        let drive = format!("if=virtio,format=raw,file={}", self.disk.display());
        let arguments = ["-drive".to_owned(), drive];
        let mut board =
            Board::boot_with(qemu, MEMORY_MIB, &self.image, directory, key, Some(super::LINK), &arguments)?;
        board.wait_for("the board to go off", |board| Ok(board.emulator.try_wait()?.is_some()))?;
        Ok(text(&fs::read(&board.console)?))
    }
}

/// What holds a pod's namespaces under containerd.
fn pause(profile: &Profile) -> Result<Image, Failure> {
    Ok(demo_for(profile)?.named(PAUSE).config("Cmd", serde_json::json!(["sleep"])))
}

fn script(path: &Path, text: &str) -> Outcome {
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}
