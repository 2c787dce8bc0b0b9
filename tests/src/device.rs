//! [`Device`]: a board for one test, on the machine that runs the tests.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::forward::Forwarder;
use crate::guest::is_guest;
use crate::image::Image;
use crate::namespace::{self, Namespace};
use crate::programs::{demo_archive, nodlet_program};
use crate::ring::RingReader;
use crate::slot::Slot;
use crate::trace::is_over;
use crate::view::View;
use crate::{api, leftovers};

/// How long a condition may take that needs only moments on an idle machine. Two cores that run several tests
/// at once are not idle, and other processors are emulated.
const DEADLINE: Duration = Duration::from_secs(if cfg!(target_arch = "x86_64") { 60 } else { 240 });

/// The interval at which a condition is checked. A test may poll; nodlet may not. In a guest a wait costs
/// nothing, but each check costs much.
fn look() -> Duration {
    Duration::from_millis(if is_guest() { 200 } else { 20 })
}

/// A scratch root with an agent of its own. When it is dropped, the pods are stopped with `nodlet down`, and
/// any remaining process, mount, cgroup, link or file fails the test.
pub struct Device {
    slot: Slot,
    root: PathBuf,
    /// The program of the agent, the supervisors and the verbs from now on.
    program: PathBuf,
    agent: Option<Child>,
    /// The reader of the running agent's ring.
    ring: Option<RingReader>,
    /// Whether the ring is read and replayed.
    replays: bool,
    run: Option<Mount>,
    disk: Option<Mount>,
    is_disk_broken: bool,
    arguments: Vec<String>,
    /// Variables that are set in the environment of the agent.
    environment: Vec<(String, OsString)>,
    /// The directory that the agent sees as /etc.
    etc: Option<PathBuf>,
    /// The network namespace of the agent and of `nodlet down`, if it is not that of the machine.
    namespace: Option<Namespace>,
    /// Takes something of the kernel from later agents.
    lacks: Option<fn(&mut Command)>,
    lacks_sctp: bool,
    /// The number of power cuts.
    boots: u32,
}

/// A file system that a test has mounted. Drop it before the device.
pub struct Mount {
    path: PathBuf,
}

impl Mount {
    /// Mounts the ext4 file system of a block device, or of a file with the option `loop`, at a directory.
    pub fn ext4(of: &Path, at: &Path, options: &str) -> Mount {
        let mounted = Command::new("mount").args(["-t", "ext4", "-o", options]).args([of, at]).output();
        let mounted = mounted.expect("mount is installed");
        assert!(mounted.status.success(), "{}: {mounted:?}", of.display());
        Mount { path: at.to_owned() }
    }

    /// Remounts the file system with other options or flags.
    pub fn remount(&self, flags: nix::mount::MsFlags, options: &str) {
        let none = None::<&str>;
        nix::mount::mount(none, &self.path, none, nix::mount::MsFlags::MS_REMOUNT | flags, Some(options))
            .expect("a tmpfs can be remounted");
    }
}

/// Checks an ext4 file system that is not mounted, as process 1 does at a boot.
///
/// # Panics
/// It cannot be repaired.
pub fn check_file_system(path: &Path) {
    let begun = Instant::now();
    let check = |how: &[&str]| {
        loop {
            let checked = Command::new("e2fsck").args(how).arg(path).output().expect("e2fsck is installed");
            // A process of another test that enters a new mount namespace has a copy of the mount until it leaves its root.
            if String::from_utf8_lossy(&checked.stdout).contains("is in use") && begun.elapsed() < DEADLINE {
                thread::sleep(Duration::from_millis(50));
                continue;
            }
            // The bits 1 and 2 report repairs.
            return (checked.status.code().is_some_and(|code| code & !3 == 0), checked);
        }
    };
    if !check(&["-p"]).0 {
        let (is_whole, checked) = check(&["-y"]);
        assert!(is_whole, "the file system is damaged: {checked:?}");
    }
}

/// The device that is mounted at a path.
fn mounted_device(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/mounts").expect("the kernel lists its mounts");
    let at = |line: &&str| line.split(' ').nth(1).is_some_and(|place| Path::new(place) == path);
    let line = mounts.lines().rfind(at).expect("it is mounted");
    line.split(' ').next().unwrap_or_default().to_owned()
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.path, nix::mount::MntFlags::MNT_DETACH);
    }
}

/// The output and the exit code of a command.
#[derive(Debug, Clone)]
pub struct Ran {
    /// The command, for messages.
    pub command: String,
    /// The command's exit code; 128 + N if signal N ended it.
    pub code: i32,
    /// The command's standard output.
    pub stdout: String,
    /// The command's standard error.
    pub stderr: String,
}

impl Ran {
    /// The effect of a command, by its output.
    pub fn new(command: String, output: Output) -> Self {
        let status = output.status;
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { command, code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// Returns the standard output of a command, which must have succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert!(self.code == 0, "{self:#?}");
        self.stdout
    }

    /// Returns the standard error of a command, which must have failed.
    #[track_caller]
    pub fn refused(self) -> String {
        assert!(self.code != 0, "{self:#?}");
        self.stderr
    }
}

impl Device {
    /// A device with the demo image and a running agent.
    pub fn start() -> Self {
        let mut device = Self::new();
        device.start_agent();
        device.load_image(demo_archive());
        device
    }

    /// A device with the demo image and a running agent, whose ring the harness does not follow. So the agent
    /// gets no requests but the test's; following the ring has a cost at each step.
    pub fn start_unwatched() -> Self {
        let mut device = Self::new();
        device.replays = false;
        device.start_agent();
        device.load_image(demo_archive());
        device
    }

    /// An empty device, without a running agent.
    pub fn new() -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "these tests start real containers and need root: sudo -E cargo xtask check"
        );
        let slot = Slot::take();
        let root = slot.root();
        leftovers::sweep(&root);
        let _ = fs::remove_dir_all(&root);
        let _ = fs::remove_file(slot.dir().join("agent.log"));
        fs::create_dir_all(&root).expect("/tmp can be written to");
        let program = nodlet_program();
        Self {
            slot,
            root,
            program,
            agent: None,
            ring: None,
            replays: true,
            run: None,
            disk: None,
            is_disk_broken: false,
            arguments: Vec::new(),
            environment: Vec::new(),
            etc: None,
            namespace: None,
            lacks: None,
            lacks_sctp: false,
            boots: 0,
        }
    }

    /// Installs another binary for every later start of nodlet, as an upgrade does.
    pub fn install(&mut self, program: &Path) {
        self.program = program.to_owned();
    }

    /// Sets further arguments for every later start of the agent.
    pub fn agent_arguments<const N: usize>(&mut self, arguments: [&str; N]) {
        self.set_agent_arguments(&arguments);
    }

    pub(crate) fn set_agent_arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    }

    /// Sets a variable in the environment of every later agent.
    pub fn agent_variable(&mut self, name: &str, value: impl Into<OsString>) {
        self.environment.push((name.to_owned(), value.into()));
    }

    /// Gives every later agent an `/etc` of its own, which has only what the test puts there. The agent sees
    /// it in a mount namespace; the machine's own stays unchanged.
    pub fn own_etc(&mut self) -> PathBuf {
        let etc = self.slot.dir().join("etc");
        let _ = fs::remove_dir_all(&etc);
        fs::create_dir_all(&etc).expect("/tmp can be written to");
        self.etc = Some(etc.clone());
        etc
    }

    /// Gives every later agent a network namespace of its own, in which tests can change the firewall.
    pub fn own_network(&mut self) -> Namespace {
        let namespace = Namespace::new();
        self.namespace = Some(namespace.clone());
        namespace
    }

    /// Gives every later agent the network namespace of another device: two agents run on one machine.
    pub fn share_network(&mut self, namespace: &Namespace) {
        self.namespace = Some(namespace.clone());
    }

    /// Makes every later agent run as on a kernel without nf_tables, or with it again.
    pub fn lack_nftables(&mut self, lacks: bool) {
        self.lacks = lacks.then_some(namespace::without_nftables);
    }

    /// Makes every later agent run as if the kernel had no instance of inotify left for its user.
    pub fn lack_inotify(&mut self) {
        self.lacks = Some(namespace::without_inotify);
    }

    /// Makes every later agent run as on a kernel that does not track SCTP connections, or that does again.
    pub fn lack_sctp(&mut self, lacks: bool) {
        self.lacks_sctp = lacks;
    }

    /// Stops reading the ring of this agent and of later ones. For tests in which more happens at once than
    /// the ring holds, since a replay begins with the first entry; and for tests that would measure the
    /// reading.
    pub fn replay_nothing(&mut self) {
        self.replays = false;
        if let Some(ring) = self.ring.take() {
            ring.forget();
        }
    }

    /// The directory that is this device's `/`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Converts a path of the device to a path of this machine.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.root.join(inside.trim_start_matches('/'))
    }

    /// A directory that a pod can mount as a hostPath and the test can inspect: its path in the manifest, and
    /// its path on this machine.
    pub fn shared(&self, name: &str) -> (String, PathBuf) {
        let path = self.path(name);
        fs::create_dir_all(&path).expect("the root can be written to");
        (path.display().to_string(), path)
    }

    /// Mounts a tmpfs at a path of the device, until the mount is dropped.
    pub fn mount_tmpfs(&self, inside: &str, options: &str) -> Mount {
        self.mount_tmpfs_with(inside, nix::mount::MsFlags::empty(), options)
    }

    fn mount_tmpfs_with(&self, inside: &str, flags: nix::mount::MsFlags, options: &str) -> Mount {
        let path = self.path(inside);
        fs::create_dir_all(&path).expect("the root can be written to");
        let tmpfs = Some("tmpfs");
        nix::mount::mount(tmpfs, &path, tmpfs, flags, Some(options)).expect("root can mount a tmpfs");
        Mount { path }
    }

    /// Mounts a tmpfs at `/run`, as on every board. Leftover files in it are not checked then.
    pub fn run_in_memory(&mut self) {
        self.run = Some(self.mount_tmpfs("/run", "mode=0755"));
    }

    /// Mounts a tmpfs at `/run` with `noexec`, `nosuid`, `nodev` and `noatime`, as an initramfs of Debian does for the
    /// first three. Leftover files in it are not checked then.
    pub fn run_in_memory_without_programs(&mut self) {
        use nix::mount::MsFlags;
        let flags = MsFlags::MS_NOEXEC | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOATIME;
        self.run = Some(self.mount_tmpfs_with("/run", flags, "mode=0755"));
    }

    /// Mounts a new ext4 file system at `/var`, which must still be empty. As on a board that boots, nothing
    /// was deleted there in the last minutes: ext4 takes long to find an inode among those deleted recently.
    pub fn run_on_a_new_disk(&mut self) {
        self.run_on_a_disk_made_with("mkfs.ext4", &[], "");
    }

    /// Mounts a new file system at `/var` that `mkfs.ext4` or `mkfs.xfs` makes with more arguments, with these options
    /// of mount.
    pub fn run_on_a_disk_made_with(&mut self, program: &str, arguments: &[&str], options: &str) {
        // The smallest that mkfs.xfs makes has 300 MiB.
        let mib = if program == "mkfs.xfs" { 512 } else { 256 };
        self.run_on_a_disk_of(mib, program, arguments, options);
    }

    /// Mounts a file system as [`Device::run_on_a_disk_made_with`] does, of this size, also of `mkfs.btrfs`.
    pub fn run_on_a_disk_of(&mut self, mib: u64, program: &str, arguments: &[&str], options: &str) {
        let (image, var) = (self.slot.dir().join("disk.img"), self.path("/var"));
        let usual = match program {
            "mkfs.xfs" | "mkfs.btrfs" => "-q -f",
            _ => "-q -F -E lazy_itable_init=0,lazy_journal_init=0",
        };
        let file = fs::File::create(&image).expect("/tmp can be written to");
        file.set_len(mib << 20).expect("it has no bytes yet");
        fs::create_dir_all(&var).expect("the root can be written to");
        let run = |command: &mut Command| {
            let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
            assert!(status.success(), "{command:?}: {status}");
        };
        run(Command::new(program).args(usual.split(' ')).args(arguments).arg(&image));
        let options = format!("loop,{options}");
        run(Command::new("mount").args(["-o", options.trim_end_matches(',')]).arg(&image).arg(&var));
        // The image is deleted when it is unmounted.
        let _ = fs::remove_file(&image);
        self.disk = Some(Mount { path: var });
    }

    /// Mounts the ext4 file system of a block device at `/var`, which must be empty.
    pub fn run_on(&mut self, device: &str, options: &str) {
        self.mount_disk(Path::new(device), options);
    }

    /// Mounts a copy of a disk at `/var` as process 1 does at a boot: it is checked first.
    pub fn run_on_a_copy(&mut self, image: &Path) {
        check_file_system(image);
        self.mount_disk(image, "loop,noatime");
    }

    /// Makes ext4 find an error on the disk of `/var`, which was mounted with `errors=remount-ro`: it accepts no more
    /// writes. After [`Device::cut_power`], it is checked and accepts them again.
    pub fn break_disk(&mut self) {
        self.is_disk_broken = true;
        let device = mounted_device(&self.disk.as_ref().expect("there is a disk").path);
        let name = device.rsplit('/').next().unwrap_or_default();
        fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "a test").expect("it is ext4");
    }

    /// Unmounts the disk of `/var`.
    pub fn run_on_nothing(&mut self) {
        self.disk = None;
    }

    fn mount_disk(&mut self, of: &Path, options: &str) {
        let var = self.path("/var");
        fs::create_dir_all(&var).expect("the root can be written to");
        self.disk = Some(Mount::ext4(of, &var, options));
    }

    /// Puts `/run` on the file system of `/var`, as on a machine whose run-time directory is no tmpfs.
    pub fn run_beside_data(&mut self) {
        let (beside, path) = (self.path("/var/run-time"), self.path("/run"));
        for directory in [&beside, &path] {
            fs::create_dir_all(directory).expect("the root can be written to");
        }
        let none = None::<&str>;
        nix::mount::mount(Some(&beside), &path, none, nix::mount::MsFlags::MS_BIND, none)
            .expect("root can mount a directory");
        self.run = Some(Mount { path });
    }

    /// The names of the complete files of pods' records. Names that begin with a dot are the reserve's and of files that
    /// are being written.
    pub fn records(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("/var/lib/nodlet/records")).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| !name.starts_with('.')).collect()
    }

    /// The file system that was mounted at `/var`.
    pub fn disk(&self) -> &Mount {
        self.disk.as_ref().expect("a disk was made")
    }

    // The agent:

    /// Starts the agent and waits until its API responds.
    pub fn start_agent(&mut self) {
        self.launch_agent();
        self.wait_for("the agent's API to answer", || self.get("/version").is_ok());
        // Otherwise a replay might have no entries.
        self.wait_for("the agent's ring to be read", || self.ring.as_ref().is_none_or(RingReader::reads));
    }

    /// Starts the agent without waiting: it may be meant to die.
    pub fn launch_agent(&mut self) {
        assert!(self.agent.is_none(), "the agent runs already");
        let log = || {
            let path = self.slot.dir().join("agent.log");
            fs::OpenOptions::new().create(true).append(true).open(path).expect("/tmp can be written to")
        };
        let agent = self
            .agent_command()
            .arg("--root")
            .arg(&self.root)
            .args(["agent", "--pod-cidr", &self.slot.pod_cidr()])
            // The machine's own firewall and forwarding stay unchanged.
            .args((self.namespace.is_none() && self.knows("--masquerade")).then_some("--masquerade=false"))
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log())
            .stderr(log())
            .spawn()
            .expect("the agent can be started");
        self.agent = Some(agent);
        // Another version may have no ring, or another core.
        let replays = self.replays && self.program == nodlet_program();
        self.ring = replays.then(|| RingReader::start(self.socket()));
    }

    /// Whether the agent has this flag: an earlier version may lack it.
    fn knows(&self, flag: &str) -> bool {
        self.program == nodlet_program() || {
            let help = Command::new(&self.program).args(["agent", "--help"]).output();
            help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains(flag))
        }
    }

    /// Replays the agent's observations to the core, which must decide the same.
    fn replay(&mut self) {
        if let Some(ring) = self.ring.take() {
            ring.replay(&self.slot.dir().join("ring.json"));
        }
    }

    /// The command that starts the agent. After a power cut the agent sees another boot ID and a restarted
    /// clock.
    fn agent_command(&self) -> Command {
        let mut view = View::default();
        if let Some(etc) = &self.etc {
            view = view.file(etc, "/etc");
        }
        if self.boots > 0 {
            let boot_id = self.slot.dir().join("boot-id");
            let text = format!("{:08x}-0000-4000-8000-000000000000\n", self.boots);
            fs::write(&boot_id, text).expect("/tmp can be written to");
            view = view.file(&boot_id, "/proc/sys/kernel/random/boot_id").clock(MINUTE);
        }
        let settings = Path::new("/proc/sys/net/netfilter");
        if self.lacks_sctp && settings.exists() {
            let none = self.slot.dir().join("no-settings");
            fs::create_dir_all(&none).expect("/tmp can be written to");
            view = view.file(&none, "/proc/sys/net/netfilter");
        }
        let mut command = Command::new(&self.program);
        self.enter_network(&mut command);
        view.give_to(&mut command);
        if let Some(take) = self.lacks {
            take(&mut command);
        }
        command
    }

    /// Cuts the power: kills the agent, all supervisors and all containers, without a chance to write to the
    /// disk, and removes everything that no reboot keeps: mounts, cgroups, links and `/run`. The agent is not
    /// started again.
    pub fn cut_power(&mut self) {
        // The agent first, because it writes to the disk: it would record the end of the others.
        self.kill_agent();
        self.lose_memory();
    }

    /// Ends the pods and the agent in order, and removes everything that no reboot keeps. The agent is not started again.
    pub fn reboot(&mut self) {
        self.nodlet(["down"]).ok();
        assert_eq!(self.agent_ended(), 0);
        self.lose_memory();
    }

    fn lose_memory(&mut self) {
        // Held open, the device stays while it is not mounted.
        let disk = self.disk.as_ref().map(|disk| {
            let device = mounted_device(&disk.path);
            (fs::File::open(&device).expect("a device that is mounted"), device)
        });
        leftovers::sweep(&self.root);
        fs::remove_dir_all(self.path("/run")).expect("the agent has run");
        if let Some((_held, device)) = disk {
            if std::mem::take(&mut self.is_disk_broken) {
                check_file_system(Path::new(&device));
            }
            let status = Command::new("mount").arg(device).arg(self.path("/var")).status();
            assert!(status.is_ok_and(|status| status.success()), "the disk is mounted again");
        }
        self.boots += 1;
    }

    /// Kills all processes, the agent first. Everything else stays.
    pub fn kill_everything(&mut self) {
        self.kill_agent();
        leftovers::kill_all(&self.root);
    }

    /// Kills the agent by SIGKILL, without notice.
    pub fn kill_agent(&mut self) {
        let mut agent = self.agent.take().expect("the agent runs");
        agent.kill().expect("a child can be killed");
        agent.wait().expect("a child can be waited for");
        self.replay();
    }

    /// Requests the agent to end and returns its exit code.
    pub fn stop_agent(&mut self) -> i32 {
        let agent = self.agent.as_ref().expect("the agent runs");
        let pid = nix::unistd::Pid::from_raw(agent.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("a child can be signalled");
        self.agent_ended()
    }

    /// Waits for an agent that ends by itself. Returns its exit code (128 + N for signal N).
    pub fn agent_ended(&mut self) -> i32 {
        let mut agent = self.agent.take().expect("the agent was started");
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = agent.try_wait().expect("a child can be waited for") {
                self.replay();
                return status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            }
            if Instant::now() > until {
                self.agent = Some(agent);
                panic!("the agent does not end\n{}", self.diagnosis());
            }
            thread::sleep(look());
        }
    }

    /// Whether the agent has ended by itself; if so, the device no longer has one.
    pub fn agent_is_dead(&mut self) -> bool {
        let dead = match &mut self.agent {
            // To wait for a process that this one traces would also tell of its stops.
            Some(agent) if !is_over(agent.id().cast_signed()) => false,
            Some(agent) => {
                // An error is that a tracer in this process has waited before.
                let _ = agent.wait();
                true
            }
            None => true,
        };
        if dead {
            self.agent = None;
            self.replay();
        }
        dead
    }

    /// Waits for a condition while the agent may die repeatedly. `revive` is called before each check, and
    /// may restart the agent.
    #[track_caller]
    pub fn wait_reviving(
        &mut self,
        what: &str,
        revive: &dyn Fn(&mut Device),
        condition: impl Fn(&Device) -> bool,
    ) {
        let until = Instant::now() + DEADLINE;
        loop {
            revive(self);
            if condition(self) {
                return;
            }
            assert!(Instant::now() < until, "waited {DEADLINE:?} in vain for {what}\n{}", self.diagnosis());
            thread::sleep(look());
        }
    }

    /// The agent's process id.
    pub fn agent_pid(&self) -> u32 {
        self.agent.as_ref().expect("the agent runs").id()
    }

    /// The log of the agent, over all its starts.
    pub fn agent_log(&self) -> String {
        fs::read_to_string(self.slot.dir().join("agent.log")).unwrap_or_default()
    }

    // Images and manifests:

    /// Loads an image archive or layout with `nodlet image load`.
    #[track_caller]
    pub fn load_image(&self, path: &Path) {
        self.nodlet(["image", "load", &path.display().to_string()]).ok();
    }

    /// Writes an image made in the test to an archive, and loads it.
    #[track_caller]
    pub fn load(&self, image: &Image) {
        let path = self.slot.dir().join("image.tar");
        image.write_oci_archive(&path).expect("/tmp can be written to");
        self.load_image(&path);
        let _ = fs::remove_file(&path);
    }

    /// The directory of this device's manifests.
    pub fn manifests(&self) -> PathBuf {
        self.path("/etc/nodlet/manifests")
    }

    /// Writes a manifest atomically: to a temporary file, which is then renamed.
    pub fn write_manifest(&self, file: &str, text: &str) {
        let dir = self.manifests();
        fs::create_dir_all(&dir).expect("the root can be written to");
        let aside = dir.join(format!(".{file}.new"));
        fs::write(&aside, text).expect("the root can be written to");
        fs::rename(&aside, dir.join(file)).expect("the root can be written to");
    }

    /// Removes a manifest.
    pub fn remove_manifest(&self, file: &str) {
        fs::remove_file(self.manifests().join(file)).expect("the manifest is there");
    }

    // Requests:

    /// Runs a verb of nodlet against this device.
    pub fn nodlet<const N: usize>(&self, words: [&str; N]) -> Ran {
        self.nodlet_with_input(words, "")
    }

    /// Runs a verb of nodlet against this device, with this standard input.
    pub fn nodlet_with_input<const N: usize>(&self, words: [&str; N], input: &str) -> Ran {
        self.run(&words, input)
    }

    pub(crate) fn run(&self, words: &[&str], input: &str) -> Ran {
        let mut command = self.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("nodlet can be started");
        // A command without input may have ended already.
        let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
        let output = child.wait_with_output().expect("a child can be waited for");
        Ran::new(format!("nodlet {}", words.join(" ")), output)
    }

    /// The command of a verb of nodlet, for tests that run it themselves: in the background, or on a
    /// terminal.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(&self.root).args(words);
        self.enter_network(&mut command);
        command
    }

    fn enter_network(&self, command: &mut Command) {
        if let Some(namespace) = &self.namespace {
            namespace.give_to(command);
        }
    }

    /// The path of the API's socket.
    pub fn socket(&self) -> PathBuf {
        self.path("/run/nodlet/api.sock")
    }

    /// Sends a GET to the API; any response but a success is an error.
    pub fn get(&self, path: &str) -> Result<Value, String> {
        match api::get(&self.socket(), path) {
            Ok((200..300, body)) => Ok(body),
            Ok((code, body)) => Err(format!("{code} {body}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The text in the API's response to a GET; empty if it is an error.
    pub fn text(&self, path: &str) -> String {
        let answer = api::exchange(&self.socket(), "GET", path, "", "").expect("the API answers");
        if answer.0 == 200 { String::from_utf8_lossy(&answer.1).into_owned() } else { String::new() }
    }

    /// Sends a request to the API. Returns the code and the body of the response.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        api::request(&self.socket(), method, path, body).expect("the API answers")
    }

    /// Sends a POST with any body to the API. Returns the code and the body of the response.
    pub fn post(&self, path: &str, body: &str) -> (u16, Value) {
        api::send(&self.socket(), "POST", path, body).expect("the API answers")
    }

    /// Like [`Device::post`]; `None` if the agent disconnected the client, which had taken too long while others waited.
    pub fn try_post(&self, path: &str, body: &str) -> Option<(u16, Value)> {
        api::send(&self.socket(), "POST", path, body).ok()
    }

    /// Sends a PATCH of type `json`, `merge` or `strategic-merge`. Returns the code and the body of the
    /// response.
    pub fn patch(&self, path: &str, kind: &str, body: &Value) -> (u16, Value) {
        let kind = format!("application/{kind}-patch+json");
        let answer = api::send_as(&self.socket(), "PATCH", path, &kind, &body.to_string());
        answer.expect("the API answers")
    }

    /// Forwards a TCP port to the API.
    pub fn forward(&self) -> Forwarder {
        Forwarder::start(&self.socket()).expect("127.0.0.1 has a free port")
    }

    /// The names of all existing pods, sorted.
    pub fn pods(&self) -> Vec<String> {
        let list = self.get("/api/v1/pods").expect("the API lists pods");
        let items = list["items"].as_array().expect("a list has items");
        let mut names: Vec<String> =
            items.iter().filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect();
        names.sort();
        names
    }

    /// The processes of this device's containers.
    pub fn container_processes(&self) -> Vec<u32> {
        leftovers::container_processes(&self.root)
    }

    /// The cgroups of this device.
    pub fn cgroups(&self) -> Vec<PathBuf> {
        leftovers::cgroups(&self.root)
    }

    /// The nodlet binary that is installed on this device.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The processes of nodlet on this device: the agent, the supervisors and their helpers.
    pub fn own_processes(&self) -> Vec<u32> {
        leftovers::own_processes(&self.root, &self.program)
    }

    /// Waits until the condition is true. If it is not within `DEADLINE`, the test fails and prints the
    /// device's state.
    #[track_caller]
    pub fn wait_for(&self, what: &str, condition: impl FnMut() -> bool) {
        self.wait_within(DEADLINE, what, condition);
    }

    /// Waits until the condition is true, with a deadline of the test's own, for tests of how long something
    /// takes.
    #[track_caller]
    pub fn wait_within(&self, deadline: Duration, what: &str, mut condition: impl FnMut() -> bool) {
        let until = Instant::now() + deadline;
        while !condition() {
            assert!(Instant::now() < until, "waited {deadline:?} in vain for {what}\n{}", self.diagnosis());
            thread::sleep(look());
        }
    }

    /// The device's state, for people who debug a failed test.
    fn diagnosis(&self) -> String {
        let pods = match self.get("/api/v1/pods") {
            Ok(list) => list["items"].as_array().map_or_else(String::new, |pods| {
                pods.iter().map(|pod| format!("{} {:#}\n", pod["metadata"]["name"], pod["status"])).collect()
            }),
            Err(error) => format!("(no answer: {error})"),
        };
        let log = self.agent_log();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(60)..].join("\n");
        format!("--- pods\n{pods}\n--- end of the agent's log\n{tail}\n---")
    }
}

impl Default for Device {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.diagnosis());
            self.end();
            if let Some(mut agent) = self.agent.take() {
                let _ = agent.kill();
                let _ = agent.wait();
            }
            leftovers::sweep(&self.root);
        } else {
            let ended = self.end();
            (self.run, self.disk) = (None, None);
            let left = leftovers::find(&self.root);
            leftovers::sweep(&self.root);
            assert!(ended.is_none(), "{}", ended.unwrap_or_default());
            assert!(left.is_empty(), "left behind after `nodlet down`:\n{}", left.join("\n"));
        }
        (self.run, self.disk) = (None, None);
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl Device {
    /// Runs `nodlet down`, with or without an agent, which also ends the agent. Returns what went wrong.
    fn end(&mut self) -> Option<String> {
        if self.agent.is_none() && !self.path("/run/nodlet").exists() {
            return None;
        }
        let down = self.nodlet(["down"]);
        if down.code != 0 {
            return Some(format!("{down:#?}\n{}", self.diagnosis()));
        }
        let mut agent = self.agent.take()?;
        let ended = agent.try_wait().is_ok_and(|status| status.is_some());
        if !ended {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        if !thread::panicking() {
            self.replay();
        }
        (!ended).then(|| format!("the agent still ran after `nodlet down`\n{}", self.diagnosis()))
    }
}

/// The uptime of a new boot, in seconds.
const MINUTE: i64 = 60;
