//! Pulls images for pods, one after another, each in a process of its own (`board/src/verbs/image/pull.rs`). The agent
//! waits only for the end of that process, and an agent that pulls nothing has only an unused lock.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_channel::{Receiver, Sender};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use nodlet_core::facts::PodIndex;
use nodlet_kernel::process::{end_with_parent, pidfd_open};
use nodlet_registry::{ConfigObjects, Wanted};
use nodlet_rootfs::{Reference, Store};
use smol::Async;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use crate::storage_thread::Storage;

/// The first argument of the process that pulls an image; the root and the image's name follow.
pub const PULL: &str = "pull";

/// The last argument of that process if it is only to look whether a registry is listed for the image.
pub const CHECK_REGISTRY: &str = "look";

/// The list of registries, below the root. A board without this file pulls nothing.
const REGISTRIES: &str = "etc/containers/registries.conf";

/// The keys of credentials in Secrets of the types `kubernetes.io/dockerconfigjson` and `kubernetes.io/dockercfg`.
const SECRET_KEYS: [&str; 2] = [".dockerconfigjson", ".dockercfg"];

/// The variables of the agent that name proxies.
const PROXIES: [&str; 6] = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"];

/// The most bytes of an error.
const ERROR_MAX: u64 = 4096;

/// The reason why an image was not pulled.
#[derive(thiserror::Error)]
pub(in crate::engine) enum PullError {
    /// The pod is not wanted any more.
    #[error("the pod is not wanted any more")]
    Unwanted,
    /// The process that pulls could not be run.
    #[error("the process that pulls")]
    Process(#[source] io::Error),
    /// The process that pulls has no standard error.
    #[error("the process that pulls has no standard error")]
    NoOutput,
    /// The process that pulls ended without a reason.
    #[error("the process that pulls ended: {0}")]
    Ended(ExitStatus),
    /// The reason that the process gives.
    #[error("{}", .0.trim_end())]
    Reported(String),
}

/// The text: the derived code would be linked without being used.
impl fmt::Debug for PullError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether this board pulls images.
pub(in crate::engine) fn has_registries(root: &Path) -> bool {
    root.join(REGISTRIES).exists()
}

/// The credentials of a pod, as the process that pulls reads them: an array of names of Secrets, each with its text. A
/// missing Secret is skipped, as by a kubelet.
pub(in crate::engine) fn secrets(wanted: &Wanted, objects: &ConfigObjects) -> Vec<u8> {
    let mut pairs = Vec::new();
    for secret in &wanted.pod.spec.image_pull_secrets {
        let Some(data) = objects.get(secret) else { continue };
        if let Some(value) = SECRET_KEYS.iter().find_map(|key| data.data.get(*key)) {
            pairs.push((secret.name.as_str(), String::from_utf8_lossy(value).into_owned()));
        }
    }
    if pairs.is_empty() { Vec::new() } else { serde_json::to_vec(&pairs).unwrap_or_default() }
}

/// The pulls of pods: one takes place, others wait.
pub(in crate::engine) struct Pulls {
    root: PathBuf,
    storage: Storage,
    images: Arc<Store>,
    turn: smol::lock::Mutex<()>,
    /// The pod of each pull that takes place or waits. The pull ends when its sender is dropped.
    under_way: RefCell<Vec<(PodIndex, Sender<Infallible>)>>,
}

impl Pulls {
    /// For the images below this root.
    pub(in crate::engine) fn new(root: &Path, storage: Storage, images: Arc<Store>) -> Pulls {
        let (turn, under_way) = (smol::lock::Mutex::new(()), RefCell::default());
        Pulls { root: root.to_owned(), storage, images, turn, under_way }
    }

    /// Records a pull of a pod; the receiver fails when the pull is to end.
    fn begin(&self, pod: PodIndex) -> Receiver<Infallible> {
        let (sender, end) = async_channel::bounded(1);
        self.under_way.borrow_mut().push((pod, sender));
        end
    }

    /// Ends the pulls of pods that are not wanted any more.
    pub(in crate::engine) fn end(&self, is_wanted: impl Fn(PodIndex) -> bool) {
        // The receiver of a pull that has ended is gone.
        self.under_way.borrow_mut().retain(|(pod, sender)| !sender.is_closed() && is_wanted(*pod));
    }

    /// Pulls an image, after the images that other pods requested earlier. The pull ends with its pod.
    ///
    /// # Errors
    /// There is no image.
    pub(in crate::engine) async fn pull(
        &self,
        pod: PodIndex,
        image: &str,
        secrets: &[u8],
    ) -> Result<Box<str>, PullError> {
        let (asked, end) = (Instant::now(), &self.begin(pod));
        let _turn = match self.turn.try_lock() {
            Some(turn) => turn,
            None => {
                // What no registry is listed for need not wait to learn that.
                run(&self.root, image, &[], Task::Check, end).await?;
                smol::future::or(async { Ok(self.turn.lock().await) }, ended(end)).await?
            }
        };
        let begun = Instant::now();
        if self.find(image).await.is_none() {
            run(&self.root, image, secrets, Task::Pull, end).await?;
        }
        let size = self.find(image).await.unwrap_or_default();
        Ok(format!(
            " in {} ({} including waiting). Image size: {size} bytes.",
            seconds(begun.elapsed()),
            seconds(asked.elapsed())
        )
        .into())
    }

    /// The size of an image on the board.
    async fn find(&self, image: &str) -> Option<u64> {
        let (images, reference) = (self.images.clone(), Reference::parse(image).ok()?);
        let found = self.storage.run(move || images.find(&reference)).await;
        found.ok().flatten().map(|image| image.size)
    }
}

/// Waits for the end of a pull whose pod is not wanted any more.
async fn ended<T>(end: &Receiver<Infallible>) -> Result<T, PullError> {
    let _ = end.recv().await;
    Err(PullError::Unwanted)
}

/// A duration with milliseconds, as Go prints it.
fn seconds(duration: Duration) -> String {
    let text = |seconds: u64, millis: u32| {
        let digits = format!("{seconds}.{millis:03}");
        format!("{}s", digits.trim_end_matches('0').trim_end_matches('.'))
    };
    match (duration.as_secs(), duration.subsec_millis()) {
        (0, millis) => format!("{millis}ms"),
        (seconds @ ..60, millis) => text(seconds, millis),
        (seconds @ ..3600, millis) => format!("{}m{}", seconds / 60, text(seconds % 60, millis)),
        (seconds, millis) => {
            format!("{}h{}m{}", seconds / 3600, seconds / 60 % 60, text(seconds % 60, millis))
        }
    }
}

/// The task of a process that reads from registries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    /// Check that a registry is listed for the image.
    Check,
    Pull,
}

/// Runs the process, and kills it if the pull is to end. Returns when the process is gone.
async fn run(
    root: &Path,
    image: &str,
    secrets: &[u8],
    task: Task,
    end: &Receiver<Infallible>,
) -> Result<(), PullError> {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("nodlet")
        .arg(PULL)
        .arg(root)
        .arg(image)
        .args((task == Task::Check).then_some(CHECK_REGISTRY))
        .env_clear()
        .envs(PROXIES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    end_with_parent(&mut command, Signal::SIGKILL);
    let mut process = command.spawn().map_err(PullError::Process)?;
    let talked = smol::future::or(talk(&mut process, secrets), ended(end)).await;
    if talked.is_err() {
        let _ = process.kill();
    }
    // A process that syncs the image store ends only when the card has answered.
    let status = exited(&mut process).await.map_err(PullError::Process)?;
    match talked? {
        _ if status.success() => Ok(()),
        text if text.is_empty() => Err(PullError::Ended(status)),
        text => Err(PullError::Reported(String::from_utf8_lossy(&text).into_owned())),
    }
}

/// Sends the credentials to the process. Returns the bytes of its standard error, at most [`ERROR_MAX`] of them.
async fn talk(process: &mut Child, secrets: &[u8]) -> Result<Vec<u8>, PullError> {
    if let Some(input) = process.stdin.take() {
        // If the process ends early, its error explains why.
        let _ = Async::new(input).map_err(PullError::Process)?.write_all(secrets).await;
    }
    let errors = process.stderr.take().ok_or(PullError::NoOutput)?;
    let mut errors = Async::new(errors).map_err(PullError::Process)?;
    let (mut text, mut piece) = (Vec::new(), [0; 512]);
    loop {
        match errors.read(&mut piece).await.map_err(PullError::Process)? {
            0 => return Ok(text),
            count if text.len() as u64 + count as u64 <= ERROR_MAX => text.extend_from_slice(&piece[..count]),
            _ => {}
        }
    }
}

/// Waits until a child has exited, without blocking the thread, and reaps it.
async fn exited(process: &mut Child) -> io::Result<ExitStatus> {
    // The child is not reaped yet, so that its number is not that of another process.
    let descriptor = pidfd_open(Pid::from_raw(process.id().cast_signed()))?;
    Async::new(descriptor)?.readable().await?;
    process.wait()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use nodlet_core::error::causes;

    use super::*;

    #[test]
    fn the_reason_is_that_of_the_process_or_of_the_kernel() {
        let reported = PullError::Reported("no registry has it\n".to_owned());
        assert_eq!(causes(&reported), "no registry has it");
        let process = PullError::Process(io::Error::from_raw_os_error(libc::EMFILE));
        assert_eq!(causes(&process), "the process that pulls: No file descriptors available (os error 24)");
        let ended = PullError::Ended(ExitStatus::from_raw(libc::SIGKILL));
        assert_eq!(causes(&ended), "the process that pulls ended: signal: 9 (SIGKILL)");
    }

    #[test]
    fn a_pull_ends_when_its_pod_is_not_wanted() {
        let root = std::env::temp_dir().join(format!("nodlet-pulls-{}", std::process::id()));
        let images = Arc::new(Store::open(&root).expect("an empty store"));
        let pulls = Pulls::new(&root, Storage::start().expect("a thread"), images);
        let (stays, goes, over) = (PodIndex(1), PodIndex(2), PodIndex(3));
        let [kept, ended, done] = [stays, goes, over].map(|pod| pulls.begin(pod));
        drop(done);
        pulls.end(|pod| pod != goes);
        assert!(ended.is_closed());
        assert!(!kept.is_closed());
        assert_eq!(pulls.under_way.borrow().len(), 1);
    }

    #[test]
    fn other_tasks_run_while_a_killed_process_ends() {
        let executor = smol::LocalExecutor::new();
        let mut child = Command::new("/bin/sleep").arg("1000").spawn().expect("the machine has sleep");
        let id = child.id();
        let waiting = executor.spawn(async move { exited(&mut child).await });
        while executor.try_tick() {}
        assert!(!waiting.is_finished());
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(id as i32), nix::sys::signal::SIGKILL)
            .expect("it is a child");
        let status = smol::block_on(executor.run(waiting)).expect("the kernel has pidfds");
        assert_eq!(status.signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn durations_are_written_as_go_does() {
        for (millis, expected) in
            [(0, "0ms"), (345, "345ms"), (1_200, "1.2s"), (61_050, "1m1.05s"), (3_600_000, "1h0m0s")]
        {
            assert_eq!(seconds(Duration::from_millis(millis)), expected);
        }
    }
}
