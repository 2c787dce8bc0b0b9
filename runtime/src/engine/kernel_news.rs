//! The kernel's news as ours: signals, images, manifests, the clock. Each is a
//! descriptor that is waited for; nothing is polled.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use smol::Async;

use super::{EngineError, News, Shell};

/// The signals that end an agent.
fn ends() -> SigSet {
    SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT])
}

/// Keeps the signals that end an agent for its loop. Before the first thread is made: one
/// that does not block them would die of them, and all others with it.
pub(super) fn block_ends() -> Result<(), EngineError> {
    let failed = |errno: nix::Error| EngineError::Kernel { what: "a signal mask", source: errno.into() };
    ends().thread_block().map_err(failed)
}

/// Tasks that turn the kernel's news into ours.
pub(super) fn watch(shell: &Rc<Shell>) -> Result<(), EngineError> {
    let failed = |what| move |source: io::Error| EngineError::Kernel { what, source };

    let signals = SignalFd::with_flags(&ends(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|errno| failed("a signalfd")(errno.into()))?;
    watch_one(shell, duplicate(&signals).map_err(failed("a signalfd"))?, "signalfd", move || {
        matches!(signals.read_signal(), Ok(Some(_))).then_some(News::Terminate)
    })?;

    let images = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)
        .map_err(|errno| failed("inotify")(errno.into()))?;
    for path in shell.images.watch_paths() {
        fs::create_dir_all(&path).map_err(|source| EngineError::Prepare { path: path.clone(), source })?;
        images
            .add_watch(&path, AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CREATE)
            .map_err(|errno| EngineError::Prepare { path, source: errno.into() })?;
    }
    watch_one(shell, duplicate(&images).map_err(failed("inotify"))?, "inotify", move || {
        images.read_events().is_ok().then_some(News::ImagesChanged)
    })?;

    let sources = duplicate(&shell.sources.borrow().descriptor()).map_err(failed("inotify"))?;
    let task = readable(sources).map_err(failed("inotify"))?;
    let sender = shell.news.clone();
    shell.spawn(async move {
        // The loop reads the news themselves; here is only that there are some.
        while task.readable().await.is_ok() && sender.send(News::SourcesChanged).await.is_ok() {
            smol::future::yield_now().await;
        }
    });

    let clock = TimerFd::new(ClockId::CLOCK_REALTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)
        .map_err(|errno| failed("a timerfd")(errno.into()))?;
    arm(&clock).map_err(|errno| failed("a timerfd")(errno.into()))?;
    watch_one(shell, duplicate(&clock).map_err(failed("a timerfd"))?, "timerfd", move || {
        // ECANCELED: the clock was set. The timer itself is never due.
        let _ = clock.wait();
        let _ = arm(&clock);
        Some(News::ClockSet)
    })
}

/// Arms a timer that never comes due and is cancelled when the clock is set.
fn arm(clock: &TimerFd) -> nix::Result<()> {
    let never = nix::sys::time::TimeSpec::from_duration(Duration::from_secs(u64::from(u32::MAX) * 16));
    clock.set(
        Expiration::OneShot(never),
        TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET,
    )
}

fn duplicate(descriptor: &impl AsFd) -> io::Result<OwnedFd> {
    descriptor.as_fd().try_clone_to_owned()
}

fn readable(descriptor: OwnedFd) -> io::Result<Async<OwnedFd>> {
    Async::new_nonblocking(descriptor)
}

/// Tells the loop what `take` makes of the descriptor each time it is readable.
fn watch_one(
    shell: &Shell,
    descriptor: OwnedFd,
    what: &'static str,
    mut take: impl FnMut() -> Option<News> + 'static,
) -> Result<(), EngineError> {
    let descriptor = readable(descriptor).map_err(|source| EngineError::Kernel { what, source })?;
    let sender = shell.news.clone();
    shell.spawn(async move {
        while descriptor.readable().await.is_ok() {
            if let Some(news) = take()
                && sender.send(news).await.is_err()
            {
                return;
            }
        }
    });
    Ok(())
}
