//! [`Witness`]: what the processes in containers themselves show of how many of them run, whatever an API says.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::control_plane::ControlPlane;

/// How long a condition may take: as long as the detection of a lost node and the end of its pods.
const DEADLINE: Duration = Duration::from_secs(180);

/// A directory that all boards of a control plane share, as boards with the same network file system do. Each process
/// of a container with [`Witness::steps`] has a lock there until it ends, and a line in a journal. The kernel releases
/// the lock with the last process, so that a second process that finds it taken has run beside the first one.
pub struct Witness {
    dir: PathBuf,
    name: String,
}

impl Witness {
    /// The witness of one identity, such as the pod of a StatefulSet.
    pub fn new(plane: &ControlPlane, name: &str) -> Self {
        let witness = Self { dir: plane.shared("witness"), name: name.to_owned() };
        witness.let_end();
        witness
    }

    /// From now on, no process with [`Witness::steps`] ends by a signal that it can handle before
    /// [`Witness::let_end`].
    pub fn hold(&self) {
        fs::remove_file(self.end()).expect("the test owns the directory");
    }

    /// Lets processes end, also those that wait for that.
    pub fn let_end(&self) {
        fs::write(self.end(), "").expect("the test owns the directory");
    }

    fn end(&self) -> PathBuf {
        self.dir.join(format!("{}.end", self.name))
    }

    /// The directory in the namespaces of the boards.
    pub fn dir(&self) -> String {
        self.dir.display().to_string()
    }

    /// The volume of a pod with the directory.
    pub fn volume(&self) -> String {
        format!("{{name: witness, hostPath: {{path: {}, type: Directory}}}}", self.dir())
    }

    /// The arguments of a container of the demo image that runs until it is stopped, and then takes `end` seconds to
    /// end, or until [`Witness::let_end`]. It needs [`Witness::MOUNT`].
    pub fn steps(&self, end: u64) -> String {
        let name = &self.name;
        format!(
            "[on-term, '0', '{end}', /witness/{name}.end, then, lock, /witness/{name}, then, append, /witness/{name}.journal, started, then, sleep]"
        )
    }

    /// The mount of the directory in a container.
    pub const MOUNT: &'static str = "{name: witness, mountPath: /witness}";

    /// A whole container, `app`, which has `end` seconds to do after its signal.
    pub fn container(&self, end: u64) -> String {
        format!(
            "{{name: app, image: 'localhost/demo:1', imagePullPolicy: Never, args: {}, volumeMounts: [{}]}}",
            self.steps(end),
            Self::MOUNT
        )
    }

    /// How many processes have been started so far.
    pub fn starts(&self) -> usize {
        fs::read_to_string(self.dir.join(format!("{}.journal", self.name)))
            .unwrap_or_default()
            .lines()
            .count()
    }

    /// Whether a process has the lock now. This test takes no lock itself: that could make a process fail.
    pub fn runs(&self) -> bool {
        let Ok(file) = fs::metadata(self.dir.join(&self.name)) else { return false };
        let device = file.dev();
        let lock = format!("{:02x}:{:02x}:{} ", libc::major(device), libc::minor(device), file.ino());
        let locks = fs::read_to_string("/proc/locks").expect("/proc is mounted");
        // A process that waits for a lock, of which there are none here, has a line with an arrow.
        locks.lines().any(|line| line.contains("FLOCK") && !line.contains("->") && line.contains(&lock))
    }

    /// Panics if two processes ever ran at once.
    #[track_caller]
    pub fn saw_at_most_one(&self) {
        let twice = self.dir.join(format!("{}.twice", self.name));
        assert!(!twice.exists(), "two processes of {} ran at once", self.name);
    }

    /// Waits until so many processes have started, and the last one runs.
    #[track_caller]
    pub fn wait_running(&self, starts: usize) {
        self.wait(&format!("start {starts} of {}", self.name), || self.starts() == starts && self.runs());
    }

    /// Waits until no process runs.
    #[track_caller]
    pub fn wait_ended(&self) {
        self.wait(&format!("{} to end", self.name), || !self.runs());
    }

    #[track_caller]
    fn wait(&self, what: &str, condition: impl Fn() -> bool) {
        let begun = Instant::now();
        while !condition() {
            self.saw_at_most_one();
            let (starts, runs) = (self.starts(), self.runs());
            assert!(begun.elapsed() < DEADLINE, "{what}: {starts} starts, runs: {runs}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}
