//! Reports events of the kernel to the loop: signals, changes of images, and changes of the clock. Each has a
//! descriptor that a task polls. A watch that the kernel refuses is tried again. All watchers of files share one
//! instance of inotify (`host/src/watches.rs`). Events of manifest directories are handled in `engine/manifests.rs`.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use nix::sys::inotify::AddWatchFlags;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nodlet_host::watches::{Watcher, Watches};
use nodlet_rootfs::Store as Images;
use smol::Async;

use super::EngineError;
use super::flash::Flash;
use super::message::Message;
use super::tasks::Tasks;

/// Time until a watch that the kernel refused is tried again.
const WATCH_AGAIN: Duration = Duration::from_secs(60);

/// The signals that end an agent.
fn ends() -> SigSet {
    SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT])
}

/// Blocks the signals that end an agent, so that its loop can read them. Called before the first thread is created: a
/// signal would kill the process if one of its threads did not block it.
pub(super) fn block_ends() -> Result<(), EngineError> {
    ends().thread_block().map_err(failed("a signal mask"))
}

fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> EngineError {
    move |error| EngineError::Kernel { what, source: error.into() }
}

/// Spawns the tasks that report events of the kernel.
pub(super) fn watch(
    tasks: &Rc<Tasks>,
    watches: &Watches,
    stores: &Rc<Flash>,
    down: bool,
) -> Result<(), EngineError> {
    let signals = SignalFd::with_flags(&ends(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(failed("a signalfd"))?;
    watch_one(tasks, duplicate(&signals).map_err(failed("a signalfd"))?, "signalfd", move || {
        matches!(signals.read_signal(), Ok(Some(_))).then_some(Message::Terminate)
    })?;

    tasks.spawn(watches.clone().run());
    if !down {
        for path in stores.images.watch_paths() {
            // Images and manifests that are baked in: what is here is trusted.
            use std::os::unix::fs::DirBuilderExt;
            let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(&path);
            made.map_err(|source| EngineError::Prepare { path, source })?;
        }
        report_images(tasks.clone(), watches.clone(), stores.clone());
    }

    let clock = TimerFd::new(ClockId::CLOCK_REALTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)
        .map_err(failed("a timerfd"))?;
    arm(&clock, None).map_err(failed("a timerfd"))?;
    watch_one(tasks, duplicate(&clock).map_err(failed("a timerfd"))?, "timerfd", move || {
        // ECANCELED: the clock was set. A timer that is due was armed for the end of the clock.
        if clock.wait().is_err() {
            let _ = arm(&clock, None);
        }
        Some(Message::ClockSet)
    })
}

/// Reports to the loop that images were loaded, as soon as the kernel provides a watch.
fn report_images(tasks: Rc<Tasks>, watches: Watches, stores: Rc<Flash>) {
    let first = watch_images(&watches, &stores.images);
    tasks.clone().spawn(async move {
        let (mut watched, mut is_reported) = (first, false);
        let images = loop {
            match watched {
                Ok(images) => break images,
                Err(error) => {
                    if !std::mem::replace(&mut is_reported, true) {
                        log::warn!(
                            "failed to watch the images: {error} (see fs.inotify.max_user_instances and \
                             fs.inotify.max_user_watches); until that is possible pods that lack one wait \
                             for the end of their back-off"
                        );
                    }
                    smol::Timer::after(WATCH_AGAIN).await;
                    let (watches, images) = (watches.clone(), stores.images.clone());
                    watched = stores.storage.run(move || watch_images(&watches, &images)).await;
                    // Images that were loaded meanwhile were not reported.
                    tasks.send(Message::ImagesChanged).await;
                }
            }
        };
        loop {
            images.changed().await;
            if !images.take().is_empty() {
                tasks.send(Message::ImagesChanged).await;
            }
        }
    });
}

fn watch_images(watches: &Watches, images: &Images) -> io::Result<Watcher> {
    let watcher = watches.watcher()?;
    for path in images.watch_paths() {
        watcher.add(&path, AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CREATE)?;
    }
    Ok(watcher)
}

/// Waits until the clock is set, or shows `time` (seconds since 1970) on its own; `None` to wait only for the former.
pub(super) async fn clock_shows(time: Option<i64>) {
    let clock = TimerFd::new(ClockId::CLOCK_REALTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK);
    let armed = clock.and_then(|clock| arm(&clock, time).map(|()| clock)).map_err(io::Error::from);
    let waited = match armed.and_then(|clock| readable(duplicate(&clock)?)) {
        Ok(clock) => clock.readable().await,
        Err(error) => Err(error),
    };
    if let Err(error) = waited {
        log::warn!("failed to watch the clock: {error}");
        smol::Timer::after(WATCH_AGAIN).await;
    }
}

/// Arms a timer that expires at `at` (seconds since 1970), or never, and that is cancelled when the clock is set.
fn arm(clock: &TimerFd, at: Option<i64>) -> nix::Result<()> {
    // A C library whose seconds have 32 bits knows none later than 2038.
    let latest = if cfg!(target_pointer_width = "32") { i32::MAX as u64 } else { u64::from(u32::MAX) * 16 };
    let at = at.and_then(|at| u64::try_from(at).ok()).map_or(latest, |at| at.min(latest));
    clock.set(
        Expiration::OneShot(nix::sys::time::TimeSpec::from_duration(Duration::from_secs(at))),
        TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET,
    )
}

fn duplicate(descriptor: &impl AsFd) -> io::Result<OwnedFd> {
    descriptor.as_fd().try_clone_to_owned()
}

fn readable(descriptor: OwnedFd) -> io::Result<Async<OwnedFd>> {
    Async::new_nonblocking(descriptor)
}

/// Calls `take` each time the descriptor is readable, and reports the result to the loop.
fn watch_one(
    tasks: &Rc<Tasks>,
    descriptor: OwnedFd,
    what: &'static str,
    mut take: impl FnMut() -> Option<Message> + 'static,
) -> Result<(), EngineError> {
    let descriptor = readable(descriptor).map_err(failed(what))?;
    let tasks = tasks.clone();
    tasks.clone().spawn(async move {
        while descriptor.readable().await.is_ok() {
            if let Some(message) = take() {
                tasks.send(message).await;
            }
        }
    });
    Ok(())
}
