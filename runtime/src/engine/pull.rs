//! Pulls images for pods, one after another, each in a process of its own (`board/src/verbs/image/pull.rs`). The agent
//! waits only for the end of that process, and an agent that pulls nothing has only an unused lock.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use async_channel::{Receiver, Sender};
use nodlet_core::facts::PodIndex;
use nodlet_registry::{ConfigObjects, Wanted};
use nodlet_rootfs::Reference;
use smol::Async;
use smol::io::{AsyncReadExt, AsyncWriteExt};

use super::Shell;

/// The first argument of the process that pulls an image; the root and the image's name follow.
pub const PULL: &str = "pull";

/// The last argument of that process if it is only to look whether a registry is listed for the image.
pub const LOOK: &str = "look";

/// The list of registries, below the root. A board without this file pulls nothing.
const REGISTRIES: &str = "etc/containers/registries.conf";

/// The keys of credentials in Secrets of the types `kubernetes.io/dockerconfigjson` and `kubernetes.io/dockercfg`.
const SECRET_KEYS: [&str; 2] = [".dockerconfigjson", ".dockercfg"];

/// The most bytes of an error.
const ERROR_MAX: u64 = 4096;

/// Whether this board pulls images.
pub(super) fn has_registries(root: &Path) -> bool {
    root.join(REGISTRIES).exists()
}

/// The credentials of a pod, as the process that pulls reads them: an array of names of Secrets, each with its text. A
/// missing Secret is skipped, as by a kubelet.
pub(super) fn secrets(wanted: &Wanted, objects: &ConfigObjects) -> Vec<u8> {
    let mut pairs = Vec::new();
    for secret in &wanted.pod.spec.image_pull_secrets {
        let Some(data) = objects.get(secret) else { continue };
        if let Some(value) = SECRET_KEYS.iter().find_map(|key| data.data.get(*key)) {
            pairs.push((secret.name.as_str(), String::from_utf8_lossy(value).into_owned()));
        }
    }
    match pairs.is_empty() {
        true => Vec::new(),
        false => serde_json::to_vec(&pairs).unwrap_or_default(),
    }
}

/// A process that is killed when the value is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The pulls of pods: one takes place, others wait.
#[derive(Default)]
pub(super) struct Pulls {
    turn: smol::lock::Mutex<()>,
    /// The pod of each pull that takes place or waits. The pull ends when its sender is dropped.
    under_way: RefCell<Vec<(PodIndex, Sender<Infallible>)>>,
}

impl Pulls {
    /// Records a pull of a pod; the receiver fails when the pull is to end.
    fn begin(&self, pod: PodIndex) -> Receiver<Infallible> {
        let (sender, end) = async_channel::bounded(1);
        self.under_way.borrow_mut().push((pod, sender));
        end
    }

    /// Ends the pulls of pods that are not wanted any more.
    pub(super) fn end(&self, is_wanted: impl Fn(PodIndex) -> bool) {
        // The receiver of a pull that has ended is gone.
        self.under_way.borrow_mut().retain(|(pod, sender)| !sender.is_closed() && is_wanted(*pod));
    }
}

/// Pulls an image, after the images that other pods requested earlier. The pull ends with its pod.
///
/// # Errors
/// Why there is no image.
pub(super) async fn pull(
    shell: Rc<Shell>,
    pod: PodIndex,
    image: Rc<str>,
    secrets: Vec<u8>,
) -> Result<Box<str>, Box<str>> {
    let end = shell.pulls.begin(pod);
    let ended = async {
        let _ = end.recv().await;
        Err("the pod is not wanted any more".into())
    };
    smol::future::or(pull_in_turn(&shell, &image, &secrets), ended).await
}

async fn pull_in_turn(shell: &Shell, image: &str, secrets: &[u8]) -> Result<Box<str>, Box<str>> {
    let asked = Instant::now();
    let failed = |error: String| error.trim_end().to_owned().into_boxed_str();
    let _turn = match shell.pulls.turn.try_lock() {
        Some(turn) => turn,
        None => {
            // What no registry is listed for need not wait to learn that.
            run(shell.paths.root(), image, &[], Task::Look).await.map_err(failed)?;
            shell.pulls.turn.lock().await
        }
    };
    let begun = Instant::now();
    if find(shell, image).await.is_none() {
        run(shell.paths.root(), image, secrets, Task::Pull).await.map_err(failed)?;
    }
    let size = find(shell, image).await.unwrap_or_default();
    Ok(format!(
        " in {} ({} including waiting). Image size: {size} bytes.",
        seconds(begun.elapsed()),
        seconds(asked.elapsed())
    )
    .into())
}

/// The size of an image on the board.
async fn find(shell: &Shell, image: &str) -> Option<u64> {
    let (images, reference) = (shell.stores.images.clone(), Reference::parse(image).ok()?);
    let found = shell.stores.storage.run(move || images.find(&reference)).await;
    found.ok().flatten().map(|image| image.size)
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

/// What the process does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Task {
    /// It only looks for the registry in the list.
    Look,
    Pull,
}

async fn run(root: &Path, image: &str, secrets: &[u8], task: Task) -> Result<(), String> {
    let failed = |error: io::Error| format!("the process that pulls: {error}");
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("nodlet")
        .arg(PULL)
        .arg(root)
        .arg(image)
        .args((task == Task::Look).then_some(LOOK))
        .env_clear()
        .current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: between fork and exec only a system call is made.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let mut process = Process(command.spawn().map_err(failed)?);
    if let Some(input) = process.0.stdin.take() {
        // If the process ends early, its error explains why.
        let _ = Async::new(input).map_err(failed)?.write_all(secrets).await;
    }
    let errors = process.0.stderr.take().ok_or("the process that pulls has no standard error")?;
    let mut errors = Async::new(errors).map_err(failed)?;
    let (mut text, mut piece) = (Vec::new(), [0; 512]);
    loop {
        match errors.read(&mut piece).await.map_err(failed)? {
            0 => break,
            count if text.len() as u64 + count as u64 <= ERROR_MAX => text.extend_from_slice(&piece[..count]),
            _ => {}
        }
    }
    // It has closed its standard error, because it has ended.
    match process.0.wait().map_err(failed)? {
        status if status.success() => Ok(()),
        status if text.is_empty() => Err(format!("the process that pulls ended: {status}")),
        _ => Err(String::from_utf8_lossy(&text).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_ends_when_its_pod_is_not_wanted() {
        let pulls = Pulls::default();
        let (stays, goes, over) = (PodIndex(1), PodIndex(2), PodIndex(3));
        let [kept, ended, done] = [stays, goes, over].map(|pod| pulls.begin(pod));
        drop(done);
        pulls.end(|pod| pod != goes);
        assert!(ended.is_closed());
        assert!(!kept.is_closed());
        assert_eq!(pulls.under_way.borrow().len(), 1);
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
