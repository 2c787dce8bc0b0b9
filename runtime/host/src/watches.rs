//! The agent's one instance of inotify, which all watchers of files share: the kernel allows each user few instances
//! (`fs.inotify.max_user_instances`), and a watch of a file exists only once in an instance.
//!
//! [`Watches::run`] reads the kernel's events and puts each into the inboxes of the watchers that have its watch. The
//! kernel is asked for an instance when the first watcher needs one, and again by each later watcher until it provides
//! it. Without an instance, a watcher polls, as its module says.

use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use nodlet_core::sorted::SortedMap;
use smol::Async;
use smol::channel::{Receiver, Sender, bounded};

/// The events that wait in one inbox. A watcher with more of them learns that events were lost, as
/// from the kernel.
const EVENTS: usize = 64;

/// The most reads with which a watcher takes the kernel's events. Each returns up to 4 KiB of them; what is left comes
/// with the next ones.
const READS: usize = 16;

/// The time until events are read again after the kernel refused it.
const READ_AGAIN: Duration = Duration::from_secs(10);

/// What the kernel reports of a watch without being asked: it is gone.
const GONE: AddWatchFlags = AddWatchFlags::IN_IGNORED.union(AddWatchFlags::IN_UNMOUNT);

/// The shared instance. Clones share it, too.
#[derive(Clone, Debug)]
pub struct Watches(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Empty until the kernel provides an instance.
    instance: OnceLock<Async<Inotify>>,
    table: Mutex<Table>,
    /// Holds a message once there is an instance.
    opened: (Sender<()>, Receiver<()>),
}

/// Which watcher has which watches.
#[derive(Debug, Default)]
struct Table {
    /// The watchers of each watch, and the events that each of them requests.
    watches: SortedMap<WatchDescriptor, Vec<(u64, AddWatchFlags)>>,
    inboxes: SortedMap<u64, Inbox>,
    /// The number of the latest watcher.
    latest: u64,
    /// How many watches were removed.
    removals: u64,
}

/// The events of one watcher that it has not taken.
#[derive(Debug)]
struct Inbox {
    news: News,
    /// Holds a message as long as there are news.
    flag: Sender<()>,
}

/// An event of a watched file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The watch.
    pub watch: WatchDescriptor,
    /// What happened.
    pub what: AddWatchFlags,
    /// The entry of a watched directory.
    pub name: Option<OsString>,
}

/// The events since a watcher took the last ones.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Each event, but for repetitions of the one before.
    pub events: Vec<Event>,
    /// There were more events than the kernel or the inbox keeps.
    pub lost: bool,
}

impl News {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && !self.lost
    }
}

impl Inbox {
    fn put(&mut self, event: Event) {
        // As the kernel does: of one file that is written again and again, one event is enough.
        if self.news.lost || self.news.events.last() == Some(&event) {
            return;
        }
        if self.news.events.len() >= EVENTS {
            return self.lose();
        }
        self.news.events.push(event);
        let _ = self.flag.try_send(());
    }

    fn lose(&mut self) {
        self.news = News { events: Vec::new(), lost: true };
        let _ = self.flag.try_send(());
    }
}

impl Table {
    fn deliver(&mut self, event: InotifyEvent) {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            return self.inboxes.values_mut().for_each(Inbox::lose);
        }
        // None: what happened before the watcher's `add` returned, or after its `remove`.
        let Some(watchers) = self.watches.get(&event.wd) else { return };
        let gone = event.mask.intersects(GONE);
        for (watcher, wanted) in watchers {
            if let Some(inbox) = self.inboxes.get_mut(watcher)
                && (gone || event.mask.intersects(*wanted))
            {
                inbox.put(Event { watch: event.wd, what: event.mask, name: event.name.clone() });
            }
        }
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            self.watches.remove(&event.wd);
        }
    }

    fn subscribe(&mut self, watch: WatchDescriptor, watcher: u64, what: AddWatchFlags) {
        let watchers = self.watches.entry(watch).or_default();
        match watchers.iter_mut().find(|(other, _)| *other == watcher) {
            Some((_, wanted)) => *wanted |= what,
            None => watchers.push((watcher, what)),
        }
    }

    /// Removes the watch for this watcher, and from the kernel if no other one has it.
    fn unsubscribe(&mut self, instance: &Inotify, watch: WatchDescriptor, watcher: u64) {
        let Some(watchers) = self.watches.get_mut(&watch) else { return };
        watchers.retain(|(other, _)| *other != watcher);
        if watchers.is_empty() {
            self.watches.remove(&watch);
            self.removals += 1;
            // The kernel has already removed the watch of a removed file.
            let _ = instance.rm_watch(watch);
        }
    }
}

impl Default for Watches {
    fn default() -> Watches {
        let (instance, table) = (OnceLock::new(), Mutex::default());
        Watches(Arc::new(Shared { instance, table, opened: bounded(1) }))
    }
}

impl Watches {
    /// A watcher without watches.
    ///
    /// # Errors
    /// The kernel provides no instance.
    pub fn watcher(&self) -> io::Result<Watcher> {
        if self.0.instance.get().is_none() {
            let new = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
            // Another thread may have been faster.
            let _ = self.0.instance.set(Async::new_nonblocking(new)?);
            let _ = self.0.opened.0.try_send(());
        }
        let (flag, flagged) = bounded(1);
        let mut table = self.0.table();
        table.latest += 1;
        let number = table.latest;
        table.inboxes.insert(number, Inbox { news: News::default(), flag });
        drop(table);
        Ok(Watcher { shared: self.0.clone(), number, flagged })
    }

    /// Hands out the kernel's events for ever.
    pub async fn run(self) {
        while self.0.instance.get().is_none() && self.0.opened.1.recv().await.is_ok() {}
        let Some(instance) = self.0.instance.get() else { return };
        loop {
            let read = match instance.readable().await {
                // One read, after which other tasks have a turn.
                Ok(()) => self.0.read(1),
                Err(error) => Err(error),
            };
            if let Err(error) = read {
                log::warn!("failed to read events of inotify: {error}");
                self.0.table().inboxes.values_mut().for_each(Inbox::lose);
                smol::Timer::after(READ_AGAIN).await;
            }
        }
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the kernel's events into the inboxes.
    fn read(&self, times: usize) -> io::Result<()> {
        let Some(instance) = self.instance.get() else { return Ok(()) };
        let mut table = self.table();
        for _ in 0..times {
            match instance.get_ref().read_events() {
                Ok(events) => events.into_iter().for_each(|event| table.deliver(event)),
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// One user of the shared instance, with watches and an inbox of its own. Dropping it removes its watches.
#[derive(Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
    number: u64,
    flagged: Receiver<()>,
}

impl Watcher {
    /// Watches a file or directory. Read what is there afterwards: earlier changes are not reported. Adding the same
    /// one again changes nothing.
    ///
    /// # Errors
    /// It does not exist, or the kernel has no watch left.
    pub fn add(&self, path: &Path, what: AddWatchFlags) -> nix::Result<WatchDescriptor> {
        self.add_while(path, what, || {})
    }

    /// Does [`Watcher::add`]; `others` is what other threads do between its two steps.
    fn add_while(
        &self,
        path: &Path,
        what: AddWatchFlags,
        others: impl FnOnce(),
    ) -> nix::Result<WatchDescriptor> {
        let instance = self.instance()?;
        // Another watcher may want other events of the same file.
        let and = what | AddWatchFlags::from_bits_retain(libc::IN_MASK_ADD);
        // Not with the table locked: the path may lead over a slow card, for which no other thread is to wait.
        let removals = self.shared.table().removals;
        let mut watch = instance.add_watch(path, and)?;
        others();
        let mut table = self.shared.table();
        if table.removals != removals {
            // The watch of the same file may have been removed meanwhile. Now, the kernel has the path in memory.
            watch = instance.add_watch(path, and)?;
        }
        table.subscribe(watch, self.number, what);
        Ok(watch)
    }

    /// Removes a watch.
    pub fn remove(&self, watch: WatchDescriptor) {
        if let Ok(instance) = self.instance() {
            self.shared.table().unsubscribe(instance, watch, self.number);
        }
    }

    /// Takes the events up to now, without waiting.
    pub fn take(&self) -> News {
        if let Err(error) = self.shared.read(READS) {
            log::warn!("failed to read events of inotify: {error}");
            return News { events: Vec::new(), lost: true };
        }
        let mut table = self.shared.table();
        // With the table locked, so that the flag is set if and only if there are news.
        let _ = self.flagged.try_recv();
        table.inboxes.get_mut(&self.number).map(|inbox| std::mem::take(&mut inbox.news)).unwrap_or_default()
    }

    /// Waits until there are events to take. [`Watches::run`] must run meanwhile.
    pub fn changed(&self) -> impl Future<Output = ()> + Send + use<> {
        let flagged = self.flagged.clone();
        async move {
            let _ = flagged.recv().await;
        }
    }

    fn instance(&self) -> nix::Result<&Inotify> {
        // There is one, since there is a watcher.
        self.shared.instance.get().map(Async::get_ref).ok_or(Errno::EBADF)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        table.inboxes.remove(&self.number);
        let has = |watchers: &[(u64, AddWatchFlags)]| watchers.iter().any(|(other, _)| *other == self.number);
        let own: Vec<WatchDescriptor> =
            table.watches.iter().filter(|(_, watchers)| has(watchers)).map(|(watch, _)| *watch).collect();
        if let Some(instance) = self.shared.instance.get() {
            own.into_iter().for_each(|watch| table.unsubscribe(instance.get_ref(), watch, self.number));
        }
    }
}

#[cfg(test)]
mod tests;
