//! [`Device`]: a board for one test, on the machine that runs the tests.

mod agent;
mod disk;
mod ran;

pub use self::disk::{Mount, check_file_system};
pub use self::ran::Ran;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::forward::Forwarder;
use crate::guest::is_guest;
use crate::image::Image;
use crate::namespace::{self, Namespace};
use crate::programs::nodlet_program;
use crate::ring::RingReader;
use crate::slot::Slot;
use crate::{api, leftovers};

/// How long a condition may take that needs only moments on an idle machine. Two cores that run several tests
/// at once are not idle, and other processors are emulated.
const DEADLINE: Duration = Duration::from_secs(if cfg!(target_arch = "x86_64") { 60 } else { 240 });

/// The interval at which a condition is checked. A test may poll; nodlet may not. In a guest a wait costs
/// nothing, but each check costs much.
fn poll_interval() -> Duration {
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

impl Device {
    /// A device with the demo image and a running agent.
    pub fn start() -> Self {
        Self::start_with([])
    }

    /// A device with the demo image and a running agent, whose ring the harness does not follow. So the agent
    /// gets no requests but the test's; following the ring has a cost at each step.
    pub fn start_unwatched() -> Self {
        let mut device = Self::new();
        device.replays = false;
        device.start_agent_with_demo();
        device
    }

    /// A device with the demo image and a running agent that has these arguments.
    pub fn start_with<const N: usize>(arguments: [&str; N]) -> Self {
        let mut device = Self::new();
        device.agent_arguments(arguments);
        device.start_agent_with_demo();
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

    /// The names of the complete files of pods' records. Names that begin with a dot are the reserve's and of files that
    /// are being written.
    pub fn records(&self) -> Vec<String> {
        let directory = "/var/lib/nodlet/records";
        let mut names = if self.path(directory).exists() { self.names(directory) } else { Vec::new() };
        names.retain(|name| !name.starts_with('.'));
        names
    }

    /// The names of what is in a directory of the device, sorted.
    ///
    /// # Panics
    /// There is no such directory.
    #[track_caller]
    pub fn names(&self, inside: &str) -> Vec<String> {
        let path = self.path(inside);
        let entries =
            fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
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

    /// Writes a file of the device, and the directories above it.
    pub fn write_file(&self, inside: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(inside);
        fs::create_dir_all(path.parent().expect("a file is in a directory"))
            .expect("the root can be written to");
        fs::write(&path, content).expect("the root can be written to");
        path
    }

    // Requests:

    /// Runs a verb of nodlet against this device.
    pub fn nodlet<const N: usize>(&self, words: [&str; N]) -> Ran {
        self.nodlet_with_input(words, "")
    }

    /// Runs a verb of nodlet against this device, with the arguments in a line, which is split at spaces.
    pub fn line(&self, line: &str) -> Ran {
        self.run(&line.split_whitespace().collect::<Vec<_>>(), "")
    }

    /// Runs a verb of nodlet against this device, with this standard input.
    pub fn nodlet_with_input<const N: usize>(&self, words: [&str; N], input: &str) -> Ran {
        self.run(&words, input)
    }

    pub(crate) fn run(&self, words: &[&str], input: &str) -> Ran {
        Ran::of(self.command(words), &format!("nodlet {}", words.join(" ")), input)
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

    /// Creates or changes the objects of a manifest, by `nodlet apply`.
    #[track_caller]
    pub fn apply(&self, manifest: &str) -> String {
        self.nodlet_with_input(["apply", "-f", "-"], manifest).ok()
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

    /// Sends a PATCH as [`Device::patch`] does, which must succeed. Returns the object.
    #[track_caller]
    pub fn patched(&self, path: &str, kind: &str, body: &Value) -> Value {
        let (code, answer) = self.patch(path, kind, body);
        assert_eq!(code, 200, "{answer}");
        answer
    }

    /// The name of the node.
    pub fn node_name(&self) -> String {
        let nodes = self.get("/api/v1/nodes").expect("the API lists its node");
        nodes["items"][0]["metadata"]["name"].as_str().expect("a node has a name").to_owned()
    }

    /// The status of a condition of the node, as a client sees it that asks once; empty if the node lacks it.
    pub fn node_condition(&self, kind: &str) -> String {
        let node = self.get("/api/v1/nodes").expect("the API lists its node")["items"][0].take();
        let conditions = node["status"]["conditions"].as_array();
        let found = conditions.and_then(|all| all.iter().find(|one| one["type"] == kind));
        found.and_then(|one| one["status"].as_str()).unwrap_or_default().to_owned()
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
            thread::sleep(poll_interval());
        }
    }

    /// Waits until the log of the agent contains this text.
    #[track_caller]
    pub fn wait_logged(&self, text: &str) {
        self.wait_for(&format!("{text:?} in the agent's log"), || self.agent_log().contains(text));
    }

    /// Requires that the log of the agent does not contain this text.
    #[track_caller]
    pub fn assert_not_logged(&self, text: &str) {
        let log = self.agent_log();
        assert!(!log.contains(text), "{text:?} is in:\n{log}");
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
