//! Power cuts in the middle of operations: while the data partition is created, while a push is received, and
//! while an update is received or on trial. The moments are chosen by a seed.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nodlet_build::task::{Outcome, TaskError, seed};
use nodlet_tests::image::Image;
use nodlet_tests::manifest;
use nodlet_tests::ssh::noise;
use serde_json::Value;

use super::super::monitor::Monitor;
use super::super::push::User;
use super::super::update::{self, Program};
use super::super::{Board, PATIENCE, STARTED, text};
use super::Tried;

/// The kernel's first text on the console.
const KERNEL: &str = "Linux version ";

/// The approximate number of writes to the medium from the kernel's entry until the image's pod runs.
const WRITES_OF_FIRST_BOOT: u64 = 36;

/// The approximate number of writes of a push of an image with a pod, and of an update until it is on trial.
const WRITES_OF_PUSH: u64 = 34;
const WRITES_OF_UPDATE: u64 = 22;

/// The size in bytes of a pushed image's layer, which is incompressible.
const LAYER: usize = 1 << 20;

/// The duration of a trial on an emulated board.
const TRIAL: Duration = Duration::from_secs(9);

/// The interval at which writes are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The name of the pushed image; `POD` is that of the pushed pod.
pub(super) const IMAGE: &str = "localhost/cut-off:1";
pub(super) const POD: &str = "cut-off";

/// Random moments.
pub(super) struct Moments {
    bytes: std::vec::IntoIter<u8>,
    pub(super) seed: u64,
}

impl Moments {
    /// Moments by a random seed, or by `$NODLET_SEED`.
    pub(super) fn new() -> Result<Moments, TaskError> {
        let seed = seed()?;
        eprintln!("  power cuts of NODLET_SEED={seed}");
        let mut bytes = noise(1024, seed.wrapping_mul(2)).into_iter();
        // The first bytes are similar for small seeds.
        bytes.nth(255);
        Ok(Moments { bytes, seed })
    }

    /// A random number below this limit.
    fn below(&mut self, limit: u64) -> u64 {
        let [high, low] = [0; 2].map(|_| u64::from(self.bytes.next().unwrap_or_default()));
        (limit * (high << 8 | low)) >> 16
    }
}

/// Boots, and cuts the power between the kernel's entry and the start of the image's pod. Returns whether the
/// board had reported a new data partition.
pub(super) fn during_boot(tried: &Tried<'_>, moments: &mut Moments) -> Result<bool, TaskError> {
    let writes = 1 + moments.below(WRITES_OF_FIRST_BOOT);
    let (mut board, mut monitor) = tried.start("", &[])?;
    board.wait_for("kernel", |board| Ok(board.console()?.contains(KERNEL)))?;
    let entry = monitor.writes()?;
    let begun = Instant::now();
    let mut written = entry;
    while written < entry + writes && !board.console()?.contains(STARTED) {
        if begun.elapsed() > PATIENCE {
            return Err(board.failed(&format!("neither {writes} writes nor a pod that runs")));
        }
        std::thread::sleep(CHECK_INTERVAL);
        written = monitor.writes()?;
    }
    let console = board.console.clone();
    drop(board);
    let console = text(&fs::read(console)?);
    eprintln!(
        "  cut after {} of {writes} writes of the first boot{}",
        written - entry,
        if console.contains(STARTED) { ", when the pod ran" } else { "" }
    );
    Ok(console.contains("(Created)"))
}

/// An image with a pod, as files.
pub(super) struct Pushed {
    archive: String,
    pod: String,
}

impl Pushed {
    /// Writes the demo image with a layer that takes a while to push, and the pod's manifest.
    pub(super) fn write(demo: Image, directory: &Path) -> Result<Pushed, TaskError> {
        let file = |name: &str| directory.join(name).display().to_string();
        let pushed = Pushed { archive: file("cut-off.tar"), pod: file("cut-off.yaml") };
        let image = demo.named(IMAGE).layer().file("srv/noise", 0o644, &noise(LAYER, 7));
        image.file("srv/pushed", 0o644, b"whole\n").write_oci_archive(Path::new(&pushed.archive))?;
        let pod = manifest::pod(POD, "print pushed then sleep").replace("localhost/demo:1", IMAGE);
        fs::write(&pushed.pod, pod)?;
        Ok(pushed)
    }

    /// Pushes, and cuts the power meanwhile or just after the push. Returns whether the push was completed.
    pub(super) fn cut(
        &self,
        board: Board,
        monitor: &mut Monitor,
        user: &User,
        moments: &mut Moments,
    ) -> Result<bool, TaskError> {
        let writes = moments.below(WRITES_OF_PUSH);
        let before = monitor.writes()?;
        let mut push = user.command(&["push", &self.archive, &self.pod, "--retries=0"]);
        let mut push = push.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut written = before;
        let mut ended = None;
        let begun = Instant::now();
        while written < before + writes && ended.is_none() {
            if begun.elapsed() > PATIENCE {
                return Err(board.failed("a push neither writes nor ends"));
            }
            std::thread::sleep(CHECK_INTERVAL);
            ended = push.try_wait()?;
            written = monitor.writes()?;
        }
        drop(board);
        // The push ends when its connection does.
        let said = text(&push.wait_with_output()?.stderr);
        let over = if ended.is_some() { ", when it was over" } else { "" };
        eprintln!("  cut after {} of {writes} writes of a push{over}", written - before);
        match ended {
            Some(status) if !status.success() => Err(TaskError(format!("push: {status}: {said}"))),
            _ => Ok(ended.is_some()),
        }
    }

    /// Pushes until the pod is ready.
    pub(super) fn push(&self, user: &User) -> Outcome {
        let pushed = user.nodlet(&["push", &self.archive, &self.pod, "--wait=5m"])?;
        let said = text(&pushed.stdout) + &text(&pushed.stderr);
        if pushed.status.success() && said.ends_with(&format!("pod/{POD} ready\n")) {
            return Ok(());
        }
        Err(TaskError(format!("the push: {}: {said}", pushed.status)))
    }

    /// Requires that either everything of the push exists and runs or nothing does, and pushes the same
    /// again.
    pub(super) fn require_whole_or_nothing(&self, board: &mut Board, user: &User, was_done: bool) -> Outcome {
        board.wait_for("end of the push that was cut off", |board| {
            Ok(board.ssh("[ ! -e /var/lib/nodlet/push/redo.json ]", "")?.status.success())
        })?;
        let images = board.output("nodlet image ls")?;
        let pods = board.output("nodlet get pods -o name")?;
        let [has_image, has_pod] = [images.contains(IMAGE), pods.contains(&format!("pod/{POD}\n"))];
        if has_image != has_pod || (was_done && !has_pod) {
            return Err(board.failed(&format!(
                "a push that was {} left the images\n{images}and the pods\n{pods}",
                if was_done { "done" } else { "cut off" }
            )));
        }
        eprintln!("  of the push is there {}", if has_pod { "all" } else { "nothing" });
        if has_pod {
            self.require_running(board)?;
        }
        self.push(user).map_err(|TaskError(why)| board.failed(&format!("after a power cut, {why}")))?;
        self.require_running(board)
    }

    fn require_running(&self, board: &mut Board) -> Outcome {
        board.wait_for("pod that was pushed to write its log", |board| {
            Ok(board.output(&format!("nodlet logs {POD}"))? == "pushed\n")
        })?;
        board.expect(&format!("nodlet exec {POD} -- /bin/demo cat /srv/pushed"), "", "whole\n")
    }
}

/// Pushes an update, and cuts the power while it is received or on trial.
pub(super) fn cut_update(
    tried: &Tried<'_>,
    board: Board,
    monitor: &mut Monitor,
    user: &User,
    program: &Program,
    moments: &mut Moments,
) -> Outcome {
    let [file, output] = ["nodlet-update", "update.log"].map(|name| tried.directory.join(name));
    fs::write(&file, program.bytes())?;
    let _ = fs::remove_file(file.with_extension("minisig"));
    let writes = moments.below(WRITES_OF_UPDATE);
    let trial = (moments.below(2) == 1).then(|| TRIAL.mul_f64(moments.below(1000) as f64 / 1000.0));
    let before = monitor.writes()?;
    let mut push = user.command(&["push", "--system", &file.display().to_string()]);
    let mut push = push.stdout(File::create(&output)?).stderr(Stdio::inherit()).spawn()?;
    let begun = Instant::now();
    let (mut written, mut on_trial, mut ended) = (before, None, None);
    while ended.is_none() {
        if begun.elapsed() > PATIENCE {
            return Err(board.failed("the update is neither received nor on trial"));
        }
        std::thread::sleep(CHECK_INTERVAL);
        ended = push.try_wait()?;
        written = monitor.writes()?;
        if on_trial.is_none() && fs::read_to_string(&output)?.contains("on trial") {
            on_trial = Some(Instant::now());
        }
        let is_due = match (trial, on_trial) {
            (None, _) => written >= before + writes,
            (Some(moment), Some(on_trial)) => on_trial.elapsed() >= moment,
            (Some(_), None) => false,
        };
        if is_due {
            break;
        }
    }
    drop(board);
    let _ = push.kill();
    push.wait()?;
    let over = if ended.is_some() { ", when it was over" } else { "" };
    match trial {
        Some(moment) => eprintln!("  cut {moment:.1?} into the trial of an update{over}"),
        None => eprintln!("  cut after {} of {writes} writes of an update{over}", written - before),
    }
    match ended {
        Some(status) if !status.success() => Err(TaskError(format!("the update: {status}"))),
        _ => Ok(()),
    }
}

/// Requires that after a power cut the previous or the new nodlet runs and all pods are ready, and installs
/// the same update again.
pub(super) fn require_either_and_install(board: &mut Board, user: &User, program: &Program) -> Outcome {
    board.expect("nodlet healthcheck --pods --wait 5m", "", "")?;
    let mut status = Value::Null;
    board.wait_for("end of a trial", |board| {
        status = serde_json::from_slice(&board.ssh("nodlet system -o json", "")?.stdout).unwrap_or_default();
        Ok(status["running"].is_object() && status["trial"].is_null())
    })?;
    eprintln!("  nodlet {} runs, from {}", status["running"]["version"], status["running"]["from"]);
    if update::runs(board, &program.version, "kept").is_ok() {
        board.expect("nodlet system rollback", "", &format!("nodlet {} runs next\n", update::VERSION))?;
    }
    board
        .wait_for("nodlet of the image", |board| Ok(update::runs(board, update::VERSION, "image").is_ok()))?;
    board.expect("nodlet healthcheck --pods --wait 5m", "", "")?;
    update::install(user, &program.unsigned(), 0, &format!("nodlet {} is kept", program.version))?;
    update::runs(board, &program.version, "kept")?;
    board.expect("nodlet healthcheck --pods --wait 5m", "", "")
}
