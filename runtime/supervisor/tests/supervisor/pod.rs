//! A pod in a temporary root, with its own cgroups, and a supervisor; the test acts as the supervisor's
//! agent.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodlet_host::launch::{
    CgroupPaths, ContainerConfig, ExecConfig, LogConfig, MountConfig, MountSource, NetworkConfig,
    ProcessConfig, Propagation, SandboxConfig, TerminationMessage, UserConfig,
};
use nodlet_supervisor::client::{Supervisor, SupervisorError, SupervisorEvent, SupervisorState};
use nodlet_supervisor::{ExitRecord, client::StartedProcess};

/// How long a test waits for an event that must come: far longer than the event takes on a machine with a
/// dozen other tasks.
const PATIENCE: Duration = Duration::from_secs(120);

/// Puts the program of the containers at `path`: the test's own binary, of a hundred megabytes. It is copied
/// once for all pods of a test that exist at the same time; later pods have a link to the copy.
fn provide_program(path: &Path) {
    static LAST: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap();
    let is_linked = last.as_ref().is_some_and(|last| fs::hard_link(last, path).is_ok());
    if !is_linked {
        fs::copy("/proc/self/exe", path).expect("there is space in /tmp");
    }
    *last = Some(path.to_owned());
}

/// The unified hierarchy of this machine.
pub(crate) fn unified() -> &'static Path {
    let hybrid = Path::new("/sys/fs/cgroup/unified");
    if hybrid.exists() { hybrid } else { Path::new("/sys/fs/cgroup") }
}

pub(crate) struct Pod {
    pub(crate) root: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) cgroup: PathBuf,
    name: String,
    supervisor: RefCell<Option<Supervisor>>,
    next_leaf: Cell<u32>,
}

impl Pod {
    /// Makes a root, an image and a supervisor, without a sandbox.
    pub(crate) fn bare(name: &str) -> Pod {
        let name = format!("{name}-{}", std::process::id());
        let root = PathBuf::from(format!("/tmp/nodlet-test-{name}"));
        let dir = root.join("run/nodlet/pods/uid");
        let cgroup = unified().join(format!("nodlet-test-{name}"));
        for path in
            [&dir, &root.join("layer/etc"), &root.join("layer/bin"), &cgroup, &cgroup.join("supervisors")]
        {
            fs::create_dir_all(path).expect("these tests need root");
        }
        let program = root.join("layer/bin/program");
        provide_program(&program);
        fs::write(
            root.join("layer/etc/passwd"),
            "root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1001::/srv:/bin/sh\n",
        )
        .unwrap();
        fs::write(root.join("layer/etc/group"), "web:x:1001:\nlogs:x:4:web\n").unwrap();
        let pod = Pod { root, dir, cgroup, name, supervisor: RefCell::default(), next_leaf: Cell::default() };
        let supervisors = [pod.cgroup.join("supervisors")];
        let supervisor = Supervisor::spawn(&pod.dir, &pod.lock_name(), &supervisors).expect("it starts");
        pod.supervisor.replace(Some(supervisor));
        pod.hello();
        pod
    }

    /// Makes a pod with a sandbox without a link.
    pub(crate) fn new(name: &str) -> Pod {
        Pod::with(name, |_| {})
    }

    pub(crate) fn with(name: &str, change: impl FnOnce(&mut SandboxConfig)) -> Pod {
        let pod = Pod::bare(name);
        let mut config = pod.sandbox();
        change(&mut config);
        pod.client(|supervisor| supervisor.create_sandbox(&config)).unwrap();
        match pod.next() {
            SupervisorEvent::SandboxReady { .. } => pod,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn sandbox(&self) -> SandboxConfig {
        let pause = self.cgroup.join("pause");
        fs::create_dir_all(&pause).unwrap();
        SandboxConfig {
            sysctls: Vec::new(),
            hostname: "web-0".to_owned(),
            network: None,
            first_id: None,
            host_ipc: false,
            host_pid: false,
            share_process_namespace: false,
            shm_size: 1 << 20,
            memory_volumes: Vec::new(),
            pause_cgroup: CgroupPaths { unified: pause, v1_tasks: Vec::new() },
        }
    }

    pub(crate) fn lock_name(&self) -> String {
        format!("default_{}", self.name)
    }

    pub(crate) fn client<T>(&self, act: impl FnOnce(&Supervisor) -> T) -> T {
        act(self.supervisor.borrow().as_ref().expect("it is connected"))
    }

    pub(crate) fn hello(&self) -> SupervisorState {
        self.client(|supervisor| patiently("an answer to hello", supervisor.hello())).expect("it answers")
    }

    /// Events as an agent receives them after it has connected: those in the answer to hello, then the later
    /// ones.
    pub(crate) fn events(&self) -> impl Iterator<Item = SupervisorEvent> {
        let known = self.hello().events.into_iter();
        known.chain(std::iter::repeat_with(|| self.next()))
    }

    /// Closes the connection, as a killed agent does.
    pub(crate) fn disconnect(&self) {
        self.supervisor.replace(None);
    }

    /// Connects as a new agent, and sends hello.
    pub(crate) fn reconnect(&self) -> SupervisorState {
        self.connect();
        self.hello()
    }

    /// Connects as a new agent, without sending hello.
    pub(crate) fn connect(&self) {
        let supervisor = Supervisor::connect(&self.dir).unwrap().expect("it lives");
        self.supervisor.replace(Some(supervisor));
    }

    pub(crate) fn next(&self) -> SupervisorEvent {
        self.client(|supervisor| patiently("news", supervisor.next())).expect("it lives")
    }

    /// The config of a container that runs `program` as root, in its own leaf.
    pub(crate) fn container(&self, name: &str, program: &[&str]) -> ContainerConfig {
        let number = self.next_leaf.replace(self.next_leaf.get() + 1);
        let leaf = self.cgroup.join(format!("{name}-{number}"));
        let (upper_dir, work_dir) =
            (self.root.join(format!("upper/{number}")), self.root.join(format!("work/{number}")));
        for path in [&leaf, &upper_dir, &work_dir] {
            fs::create_dir_all(path).unwrap();
        }
        let mut args = vec!["/bin/program".to_owned(), "program".to_owned()];
        args.extend(program.iter().map(|op| (*op).to_owned()));
        ContainerConfig {
            rtprio: 0,
            image_volumes: Vec::new(),
            devices: Vec::new(),
            id: format!("{number:064x}"),
            name: name.to_owned(),
            process: ProcessConfig {
                program_shown: None,
                open_files: None,
                args,
                env: vec!["PATH=/bin".to_owned(), "GREETING=hello".to_owned()],
                cwd: "/".into(),
                user: UserConfig::default(),
                capabilities: ["CAP_CHOWN", "CAP_KILL", "CAP_NET_RAW", "CAP_DAC_OVERRIDE", "CAP_MKNOD"]
                    .map(str::to_owned)
                    .to_vec(),
                no_new_privileges: false,
                seccomp: None,
                app_armor: None,
            },
            layers: vec!["sha256:0".to_owned()],
            upper_dir,
            work_dir,
            read_only_root: false,
            writable_paths: Vec::new(),
            mounts: Vec::new(),
            unmasked: false,
            first_id: None,
            privileged: false,
            cgroup: CgroupPaths { unified: leaf, v1_tasks: Vec::new() },
            oom_score_adj: 500,
            stdin: false,
            stdin_once: false,
            tty: false,
            target: None,
            log: LogConfig {
                path: self.root.join(format!("var/log/pods/{name}/{number}.log")),
                link: self.root.join(format!("var/log/containers/{name}-{number}.log")),
                max_size: 0,
                max_files: 5,
            },
            termination_message: None,
        }
    }

    pub(crate) fn ask_to_start(&self, config: &ContainerConfig) {
        let layer: OwnedFd = fs::File::open(self.root.join("layer")).unwrap().into();
        let layers: [BorrowedFd; 1] = [layer.as_fd()];
        self.client(|supervisor| supervisor.start(&config.name, config_number(config), config, &layers))
            .unwrap();
    }

    pub(crate) fn start(&self, config: &ContainerConfig) -> StartedProcess {
        self.ask_to_start(config);
        match self.next() {
            SupervisorEvent::Started { container, number, process } => {
                assert_eq!((container.as_str(), number), (config.name.as_str(), config_number(config)));
                process
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn exited(&self) -> ExitRecord {
        match self.next() {
            SupervisorEvent::Exited { exit, .. } => exit.expect("there is a record"),
            other => panic!("{other:?}"),
        }
    }

    /// Runs `program` to its end. Returns the exit and the output.
    pub(crate) fn run(&self, config: &ContainerConfig) -> (ExitRecord, String) {
        self.start(config);
        let exit = self.exited();
        (exit, self.output(config))
    }

    /// Requests the execution of a program in a container.
    pub(crate) fn ask_to_exec(
        &self,
        id: u32,
        config: &ContainerConfig,
        args: &[&str],
        tty: bool,
        stdio: [Option<BorrowedFd>; 3],
    ) {
        let exec = ExecConfig {
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            tty,
            size: None,
            devices: None,
        };
        let number = config_number(config);
        self.client(|supervisor| supervisor.exec(id, &config.name, number, &exec, stdio)).unwrap();
    }

    /// Executes a program to its end. Returns the exit code, and the output on stdout.
    pub(crate) fn exec(&self, id: u32, config: &ContainerConfig, program: &[&str]) -> (i32, String) {
        let mut args = vec!["/bin/program", "program"];
        args.extend(program);
        let (mut reader, writer) = std::io::pipe().unwrap();
        self.ask_to_exec(id, config, &args, false, [None, Some(writer.as_fd()), None]);
        drop(writer);
        match self.next() {
            SupervisorEvent::ExecStarted { id: started, .. } => assert_eq!(started, id),
            other => panic!("{other:?}"),
        }
        let mut output = String::new();
        reader.read_to_string(&mut output).unwrap();
        match self.next() {
            SupervisorEvent::ExecExited { id: exited, code } => {
                assert_eq!(exited, id);
                (code, output)
            }
            other => panic!("{other:?}"),
        }
    }

    /// PID of the supervisor.
    pub(crate) fn pid(&self) -> i32 {
        self.hello().pid
    }

    /// Content of a container's log, of both streams. An unfinished last line is left out.
    pub(crate) fn output(&self, config: &ContainerConfig) -> String {
        let log = fs::read(&config.log.path).unwrap_or_default();
        let whole = log.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let log = std::str::from_utf8(&log[..whole]).expect("the tests write text");
        log.lines().map(|line| line.splitn(4, ' ').nth(3).expect("CRI format").to_owned() + "\n").collect()
    }

    /// Waits until a container has written `text`.
    pub(crate) fn wait_for_output(&self, config: &ContainerConfig, text: &str) {
        wait_until(&format!("{text:?} in the log"), || self.output(config).contains(text));
    }
}

/// The number of an attempt, for tests to which it does not matter: the number of the leaf.
pub(crate) fn config_number(config: &ContainerConfig) -> u32 {
    u32::from_str_radix(&config.id[56..], 16).unwrap()
}

impl Drop for Pod {
    fn drop(&mut self) {
        remove(&self.cgroup, &self.root);
    }
}

/// Removes the remains of a test that ended and had this `pid`.
pub(crate) fn clean_up(pid: u32) {
    let suffix = format!("-{pid}");
    for entry in fs::read_dir(unified()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("nodlet-test-") && name.ends_with(&suffix) {
            remove(&entry.path(), &Path::new("/tmp").join(name));
        }
    }
}

fn remove(cgroup: &Path, root: &Path) {
    let directories = |path: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    };
    let _ = fs::write(cgroup.join("cgroup.kill"), "1");
    wait_until("empty cgroup", || {
        fs::read_to_string(cgroup.join("cgroup.events")).unwrap_or_default().lines().next()
            != Some("populated 1")
    });
    for group in directories(cgroup) {
        directories(&group).iter().for_each(|below| drop(fs::remove_dir(below)));
        let _ = fs::remove_dir(group);
    }
    let _ = fs::remove_dir(cgroup);
    let _ = fs::remove_dir_all(root);
}

/// Whether no supervisor listens in `dir` any more. A busy supervisor may accept no connection for a moment.
pub(crate) fn is_dead(dir: &Path) -> bool {
    match Supervisor::connect(dir) {
        Ok(supervisor) => supervisor.is_none(),
        Err(SupervisorError::Occupied) => false,
        Err(error) => panic!("{error}"),
    }
}

/// The open descriptors of a process, and its children, including the dead ones.
pub(crate) fn possessions(pid: i32) -> (Vec<String>, String) {
    let mut open: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| Some(fs::read_link(entry.ok()?.path()).ok()?.to_string_lossy().into_owned()))
        .collect();
    open.sort();
    (open, fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap())
}

/// Stops a process, and waits until it has stopped.
pub(crate) fn stop(pid: i32) {
    send(pid, Signal::SIGSTOP);
    let status = || fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    wait_until("stop of a process", || status().contains("State:\tT"));
}

/// Sends a signal to a process.
pub(crate) fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

/// Makes a file in the root of a process.
pub(crate) fn touch(process: &StartedProcess, file: &str) {
    fs::write(format!("/proc/{}/root/{file}", process.pid), "").unwrap();
}

/// Waits for a future, at most [`PATIENCE`].
pub(crate) fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    let limited = nodlet_wire::timeout::within(PATIENCE, future);
    smol::block_on(limited).unwrap_or_else(|| panic!("no {what} in {PATIENCE:?}"))
}

/// Waits for a condition, at most [`PATIENCE`].
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(std::time::Instant::now() < end, "no {what} in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The config of a link for a sandbox.
pub(crate) fn link(bridge: &str, number: u8) -> NetworkConfig {
    NetworkConfig {
        bridge: bridge.to_owned(),
        host_link: format!("ndtest{}{number}", std::process::id() % 10_000),
        address: std::net::Ipv4Addr::new(10, 211, 7, number),
        prefix: 24,
        gateway: std::net::Ipv4Addr::new(10, 211, 7, 1),
        ipv6: None,
        hairpin: false,
        interfaces: Vec::new(),
    }
}

/// Makes a container's termination message file. Returns its config.
pub(crate) fn termination_message(pod: &Pod, fallback_to_logs: bool) -> TerminationMessage {
    let file = pod.root.join("message");
    fs::write(&file, "").unwrap();
    TerminationMessage { file, path: "/dev/termination-log".into(), fallback_to_logs }
}

/// A volume that is mounted as it is.
pub(crate) fn mount(source: MountSource, destination: &str) -> MountConfig {
    MountConfig {
        source,
        sub_path: None,
        sub_path_shown: None,
        destination: destination.into(),
        read_only: false,
        recursive_read_only: false,
        propagation: Propagation::Private,
    }
}
