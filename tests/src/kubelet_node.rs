//! [`KubeletNode`]: a real kubelet with containerd and runc, in a network namespace of its own, which is a node of a
//! [`ControlPlane`]: nodlet is compared with it. `cargo xtask bench --cluster` builds its programs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::control_plane::{ControlPlane, TOKEN};
use crate::image::Image;
use crate::namespace::Namespace;
use crate::programs::{built, demo_archive, demo_program};

/// The image of the sandboxes.
const PAUSE: &str = "localhost/pause:1";

/// A kubelet that has joined a cluster. Everything of it ends with the value.
pub struct KubeletNode {
    /// Its network namespace.
    pub network: Namespace,
    dir: PathBuf,
    /// The name of its cgroup in all hierarchies.
    cgroup: String,
    children: Vec<Child>,
}

impl KubeletNode {
    /// Starts containerd and a kubelet, which joins as kubeadm lets it, and waits until the Node is ready.
    pub fn join(plane: &ControlPlane, name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("nodlet-kubelet-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        for directory in ["bin", "cni"] {
            fs::create_dir_all(dir.join(directory)).expect("/tmp can be written to");
        }
        let cgroup = format!("nodlet-kubelet-{}", std::process::id());
        let network = Namespace::new();
        let address = plane.connect(&network);
        let mut node = Self { network, dir, cgroup, children: Vec::new() };
        node.make_cgroups();
        node.start_containerd();
        node.load_images();
        node.start_kubelet(plane, name, &address);
        plane.wait_for(&format!("get node {name} --no-headers"), |node| node.contains(" Ready "));
        node
    }

    /// The processes of the kubelet, of containerd and of its shims.
    pub fn processes(&self) -> Vec<u32> {
        let ours = self.dir.display().to_string();
        let of = |pid: &u32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).contains(&ours)
        };
        pids().filter(of).collect()
    }

    /// A process in the network namespace of the node.
    pub fn pid(&self) -> u32 {
        self.children.last().expect("the kubelet was started").id()
    }

    fn make_cgroups(&self) {
        for hierarchy in hierarchies() {
            let _ = fs::create_dir(hierarchy.join(&self.cgroup));
            for file in ["cpuset.cpus", "cpuset.mems"] {
                // Without them, cgroup v1 admits no process.
                if let Ok(all) = fs::read(hierarchy.join(file)) {
                    let _ = fs::write(hierarchy.join(&self.cgroup).join(file), all);
                }
            }
        }
    }

    fn start_containerd(&mut self) {
        let dir = self.dir.display().to_string();
        for program in ["containerd-shim-runc-v2", "ctr"] {
            let from = built(&format!("{program}/{program}-2.4.2"));
            fs::copy(&from, self.dir.join("bin").join(program)).unwrap_or_else(|error| {
                panic!("{}: {error}: run `cargo xtask bench --cluster`", from.display())
            });
        }
        // Pods of the node's network need no plugin, but a kubelet without any is not ready.
        let cni = r#"{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}"#;
        fs::write(self.dir.join("cni/10-none.conflist"), cni).expect("written");
        let config = format!(
            "version = 3\nroot = '{dir}/root'\nstate = '{dir}/state'\n[grpc]\naddress = '{dir}/c.sock'\n\
             [plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = '{PAUSE}'\n\
             [plugins.'io.containerd.cri.v1.runtime']\nrestrict_oom_score_adj = true\n\
             [plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['{dir}/bin']\nconf_dir = '{dir}/cni'\n\
             [plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'runc'\n\
             [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n\
             runtime_type = 'io.containerd.runc.v2'\n\
             [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\nBinaryName = 'runc'\n"
        );
        fs::write(self.dir.join("containerd.toml"), config).expect("written");
        self.start("containerd/containerd-2.4.2", &["--config", &format!("{dir}/containerd.toml")]);
        while std::os::unix::net::UnixStream::connect(self.dir.join("c.sock")).is_err() {
            self.check();
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn load_images(&self) {
        let pause = self.dir.join("pause.tar");
        let program = fs::read(demo_program()).expect("the demo program can be read");
        let image = Image::demo(PAUSE, &program).config("Cmd", json!(["sleep"]));
        image.write_oci_archive(&pause).expect("/tmp can be written to");
        for archive in [&pause, demo_archive()] {
            let mut command = Command::new(self.dir.join("bin/ctr"));
            command.arg("-a").arg(self.dir.join("c.sock")).args(["-n", "k8s.io", "images", "import"]);
            let output = command.arg(archive).output().expect("ctr can be run");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }

    fn start_kubelet(&mut self, plane: &ControlPlane, name: &str, address: &str) {
        let dir = self.dir.display().to_string();
        let (authority, server) = (plane.authority(), plane.server());
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: join\n\
             clusters: [{{name: join, cluster: {{server: 'https://{server}', certificate-authority: {0}}}}}]\n\
             contexts: [{{name: join, context: {{cluster: join, user: join}}}}]\n\
             users: [{{name: join, user: {{token: {TOKEN}}}}}]\n",
            authority.display()
        );
        fs::write(self.dir.join("bootstrap.kubeconfig"), kubeconfig).expect("written");
        // The defaults of kubeadm, but for what this machine lacks: cgroup v2, swap off, and room on the disk.
        let config = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\n\
             cgroupDriver: cgroupfs\ncgroupRoot: /{}\ncontainerRuntimeEndpoint: unix://{dir}/c.sock\n\
             authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {}}}}}\n\
             authorization: {{mode: Webhook}}\nrotateCertificates: true\nfailSwapOn: false\n\
             evictionHard: {{memory.available: 1Mi}}\nimageGCHighThresholdPercent: 100\npodLogsDir: {dir}/logs\n",
            self.cgroup,
            authority.display()
        );
        fs::write(self.dir.join("kubelet.yaml"), config).expect("written");
        let below = |file: &str| format!("{dir}/{file}");
        self.start(
            "kubelet/kubelet-1.36.3",
            &[
                "--config",
                &below("kubelet.yaml"),
                "--bootstrap-kubeconfig",
                &below("bootstrap.kubeconfig"),
                "--kubeconfig",
                &below("kubelet.kubeconfig"),
                "--cert-dir",
                &below("pki"),
                "--root-dir",
                &below("kubelet"),
                "--hostname-override",
                name,
                "--node-ip",
                address,
            ],
        );
    }

    fn start(&mut self, program: &str, arguments: &[&str]) {
        let log = self.dir.join(format!("{}.log", program.split('/').next().unwrap_or(program)));
        let log = File::create(log).expect("/tmp can be written to");
        let path = format!("{}/bin:{}", self.dir.display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(built(program));
        command.args(arguments).env("PATH", path).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a descriptor is left")).stderr(log);
        self.network.give_to(&mut command);
        self.children.push(command.spawn().unwrap_or_else(|error| panic!("{program}: {error}")));
    }

    /// Fails if a program has ended.
    fn check(&mut self) {
        for child in &mut self.children {
            let ended = child.try_wait().expect("it is a child");
            assert!(ended.is_none(), "ended: {ended:?}; its log is in {}", self.dir.display());
        }
    }
}

impl Drop for KubeletNode {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for pid in self.processes() {
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(pid.cast_signed()),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
        let cgroups: Vec<PathBuf> = hierarchies().map(|hierarchy| hierarchy.join(&self.cgroup)).collect();
        // A cgroup is empty a moment after its last process was killed.
        for _ in 0..50 {
            cgroups.iter().for_each(|cgroup| empty(cgroup));
            if cgroups.iter().all(|cgroup| !cgroup.exists()) {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let points = mounts.lines().rev().filter_map(|line| line.split(' ').nth(1));
        for point in points.filter(|point| Path::new(point).starts_with(&self.dir)) {
            let _ = nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH);
        }
        if !thread::panicking() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn hierarchies() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.join("cgroup.procs").exists())
}

/// Kills the processes of a cgroup, and removes it with all below it.
fn empty(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            empty(&entry.path());
        }
    }
    for pid in fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default().lines() {
        if let Ok(pid) = pid.parse() {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
    }
    let _ = fs::remove_dir(cgroup);
}
