//! Looks at the manifest directories. The storage thread does it, since a card may take seconds for a
//! read; there is one look at a time.
//!
//! A caller that needs the result of a look passes a continuation. A look that is requested during another one starts
//! after it. A look that reads many bytes has several parts; the difference is reported to the core after the last
//! part.
//!
//! Read next: `sources.rs`, which looks; `engine/reconcile.rs`, which reports to the core.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use smol::Async;

use super::Engine;
use crate::sources::{Found, LOOK_AGAIN, ManifestDirectories, SAVED_WITHIN};
use crate::store::Recorded;

/// Runs in the loop after a look. At most one exists for each request whose file was written or removed.
type Continuation = Box<dyn FnOnce(&mut Engine)>;

/// The looks at the manifest directories.
pub(super) struct Looks {
    /// `None` during a look: then the storage thread has them.
    directories: Option<Box<ManifestDirectories>>,
    /// Readable when the kernel has inotify events of the manifest directories.
    watch: Option<Rc<Async<OwnedFd>>>,
    /// A task waits for `watch` to become readable.
    is_watched: bool,
    /// There are inotify events that no look has read.
    news: bool,
    /// A look was requested during a look.
    asked: bool,
    /// Continuations of the next look.
    waiting: Vec<Continuation>,
    /// The registry has the results of some parts of a look, and not of all.
    is_partial: bool,
    /// The next look reads the records, too: they were not read yet, or not completely.
    reads_records: bool,
    /// A look is scheduled, see [`Engine::look_again`].
    is_due: bool,
}

/// The result of one part of a look.
struct Looked {
    directories: Box<ManifestDirectories>,
    /// `None` if the inotify events were of no interest and nobody requested the look.
    found: Option<Vec<Found>>,
    more: bool,
    recorded: Option<Recorded>,
}

impl Looks {
    pub(super) fn new(directories: ManifestDirectories) -> Looks {
        Looks {
            directories: Some(Box::new(directories)),
            watch: None,
            is_watched: false,
            news: false,
            asked: false,
            waiting: Vec::new(),
            is_partial: false,
            reads_records: true,
            is_due: false,
        }
    }

    /// Whether the registry has the results of some parts of a look, and not of all.
    pub(super) fn is_partial(&self) -> bool {
        self.is_partial
    }
}

impl Engine {
    /// Looks at the manifest directories, and reports the difference to the core.
    pub(super) fn read_sources(&mut self) {
        self.looks.asked = true;
        self.begin_look();
    }

    /// Looks at the manifest directories, reports the difference to the core, and then calls `go_on`.
    pub(super) fn read_sources_then(&mut self, go_on: impl FnOnce(&mut Engine) + 'static) {
        self.looks.waiting.push(Box::new(go_on));
        self.read_sources();
    }

    /// The first look, before the loop begins.
    pub(super) async fn first_look(&mut self) {
        let mut directories = self.looks.directories.take();
        while let Some(more) = directories {
            let looked = self.look(more, true).await;
            (directories, _) = self.accept_part(looked);
        }
    }

    /// Schedules one look after [`LOOK_AGAIN`].
    pub(super) fn look_again(&mut self) {
        if !std::mem::replace(&mut self.looks.is_due, true) {
            self.shell.tasks.later(LOOK_AGAIN, |engine| {
                engine.looks.is_due = false;
                engine.read_sources();
            });
        }
    }

    fn begin_look(&mut self) {
        let Some(directories) = self.looks.directories.take() else { return };
        self.looks.news = false;
        let asked = std::mem::take(&mut self.looks.asked);
        let waiting = std::mem::take(&mut self.looks.waiting);
        self.look_on(directories, asked, waiting);
    }

    fn look_on(&mut self, directories: Box<ManifestDirectories>, asked: bool, waiting: Vec<Continuation>) {
        let looked = self.look(directories, asked);
        self.shell.tasks.then(looked, move |engine, looked| {
            let (more, is_news) = engine.accept_part(looked);
            if let Some(directories) = more {
                return engine.look_on(directories, true, waiting);
            }
            if is_news {
                engine.reconcile();
            }
            for go_on in waiting {
                go_on(engine);
            }
            if engine.looks.asked || engine.looks.news {
                engine.begin_look();
            }
        });
    }

    /// One part of a look, on the storage thread.
    fn look(
        &self,
        mut directories: Box<ManifestDirectories>,
        asked: bool,
    ) -> impl Future<Output = Looked> + use<> {
        let records = self.looks.reads_records.then(|| self.shell.stores.records.clone());
        self.shell.stores.storage.run(move || {
            let mut found = Vec::new();
            // Events are taken before the first directory is read: a later change has an event of its own.
            let is_news = directories.is_looking() || directories.drain() || asked;
            let more = is_news && directories.look(nodlet_host::clock::instant(), &mut found);
            let recorded = records.map(|records| records.read());
            Looked { directories, found: is_news.then_some(found), more, recorded }
        })
    }

    /// Reports the result of one part to the registry. Returns the directories if another part follows, and whether
    /// anything was looked at.
    fn accept_part(&mut self, looked: Looked) -> (Option<Box<ManifestDirectories>>, bool) {
        let Looked { mut directories, found, more, recorded } = looked;
        if let Some(recorded) = recorded {
            self.looks.reads_records = recorded.is_short();
            *self.shell.stores.recorded.borrow_mut() = recorded;
        }
        let is_news = found.is_some();
        let devices = &self.shell.machine.devices;
        directories.tell(found.unwrap_or_default(), &mut self.registry.sources, &mut devices.borrow_mut());
        self.device_files_changed();
        self.looks.is_partial = more;
        if more {
            return (Some(directories), is_news);
        }
        if directories.is_any_aside() {
            self.shell.tasks.later(SAVED_WITHIN, Engine::read_sources);
        }
        let watched = self.wait_for_news(&directories);
        if let Err(error) = &watched {
            log::error!("failed to watch the manifest directories: {error}");
        }
        if watched.is_err() || directories.is_blind() {
            self.look_again();
        }
        self.looks.directories = Some(directories);
        (None, is_news)
    }

    /// Starts a look at the next inotify event. Not called during a look, in which the storage thread reads the
    /// events: the descriptor would be readable until then.
    fn wait_for_news(&mut self, directories: &ManifestDirectories) -> std::io::Result<()> {
        if self.looks.is_watched {
            return Ok(());
        }
        let watch = match &self.looks.watch {
            Some(watch) => watch.clone(),
            None => match directories.watch_descriptor()? {
                Some(watch) => self.looks.watch.insert(Rc::new(Async::new_nonblocking(watch)?)).clone(),
                None => return Ok(()),
            },
        };
        self.looks.is_watched = true;
        self.shell.tasks.then(async move { watch.readable().await }, |engine, waited| {
            // After an error there is nothing to wait for.
            if waited.is_ok() {
                (engine.looks.is_watched, engine.looks.news) = (false, true);
                engine.begin_look();
            }
        });
        Ok(())
    }
}
