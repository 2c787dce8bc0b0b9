//! Has the manifest directories looked at: on the storage thread, since a card may take seconds
//! for a read, and one look at a time.
//!
//! Whoever needs to know what is in them now gives a continuation. A request that comes during a
//! look is served by the next one, which begins later than the request. A look that reads much comes
//! in parts; the core is told of the difference when all are here.
//!
//! Read next: `sources.rs`, which looks; `engine/wants.rs`, which tells the core.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use smol::Async;

use super::Engine;
use crate::sources::{Found, LOOK_AGAIN, ManifestDirectories, SAVED_WITHIN};
use crate::store::Recorded;

/// What goes on in the loop after a look. There is at most one for each client of the API and each pod
/// that is removed.
type Continuation = Box<dyn FnOnce(&mut Engine)>;

/// The looks at the manifest directories.
pub(super) struct Looks {
    /// `None` during a look: then the storage thread has them.
    directories: Option<Box<ManifestDirectories>>,
    /// Readable when the kernel has news of them.
    watch: Option<Rc<Async<OwnedFd>>>,
    /// A task waits for news.
    is_watched: bool,
    /// There was news during a look.
    news: bool,
    /// A look was asked for during a look.
    asked: bool,
    waiting: Vec<Continuation>,
    /// The registry knows some of what a look found, and not all.
    is_partial: bool,
    /// What is on flash of pods was not read yet, or not all of it.
    reads_records: bool,
    /// A look is due that nobody else asks for.
    is_due: bool,
}

/// A part of a look.
struct Looked {
    directories: Box<ManifestDirectories>,
    /// `None` if the kernel's news concerned nobody.
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

    /// Whether the registry knows some of what a look found, and not all.
    pub(super) fn is_partial(&self) -> bool {
        self.is_partial
    }
}

impl Engine {
    /// Has the manifest directories looked at, and the core told of the difference.
    pub(super) fn read_sources(&mut self) {
        self.looks.asked = true;
        self.begin_look();
    }

    /// As [`Engine::read_sources`], and goes on when the core was told.
    pub(super) fn read_sources_then(&mut self, go_on: impl FnOnce(&mut Engine) + 'static) {
        self.looks.waiting.push(Box::new(go_on));
        self.read_sources();
    }

    /// Looks when the agent begins, before the loop does.
    pub(super) async fn first_look(&mut self) {
        let mut directories = self.looks.directories.take();
        while let Some(more) = directories {
            let looked = self.look(more, true).await;
            (directories, _) = self.take_in(looked);
        }
    }

    /// Reads the manifest directories after a while, however often that is asked for.
    pub(super) fn look_again(&mut self) {
        if !std::mem::replace(&mut self.looks.is_due, true) {
            self.shell.later(LOOK_AGAIN, |engine| {
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
        self.shell.then(looked, move |engine, looked| {
            let (more, is_news) = engine.take_in(looked);
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

    /// A part of a look, on the storage thread.
    fn look(
        &self,
        mut directories: Box<ManifestDirectories>,
        asked: bool,
    ) -> impl Future<Output = Looked> + use<> {
        let records = self.looks.reads_records.then(|| self.shell.records.clone());
        self.shell.storage.run(move || {
            let mut found = Vec::new();
            // What the kernel has to say by now is seen by this look.
            let is_news = directories.drain() || asked;
            let more = is_news && directories.look(nodlet_host::clock::instant(), &mut found);
            let recorded = records.map(|records| records.read());
            Looked { directories, found: is_news.then_some(found), more, recorded }
        })
    }

    /// Tells the registry what a part of a look found. The directories, if there is more to look at, and
    /// whether there was anything to look at.
    fn take_in(&mut self, looked: Looked) -> (Option<Box<ManifestDirectories>>, bool) {
        let Looked { mut directories, found, more, recorded } = looked;
        if let Some(recorded) = recorded {
            self.looks.reads_records = recorded.is_short();
            *self.shell.recorded.borrow_mut() = recorded;
        }
        let is_news = found.is_some();
        directories.tell(found.unwrap_or_default(), &mut self.registry.sources);
        self.looks.is_partial = more;
        if more {
            return (Some(directories), is_news);
        }
        if directories.is_any_aside() {
            self.shell.later(SAVED_WITHIN, Engine::read_sources);
        }
        let watched = self.wait_for_news(&directories);
        if let Err(error) = &watched {
            log::error!("failed to wait for what becomes of the manifest directories: {error}");
        }
        if watched.is_err() || directories.is_blind() {
            self.look_again();
        }
        self.looks.directories = Some(directories);
        (None, is_news)
    }

    /// Begins a look when the kernel has news. Not during one: the storage thread takes the news,
    /// and until then there is nothing to wait for.
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
        self.shell.then(async move { watch.readable().await }, |engine, waited| {
            // It cannot be waited for after an error.
            if waited.is_ok() {
                (engine.looks.is_watched, engine.looks.news) = (false, true);
                engine.begin_look();
            }
        });
        Ok(())
    }
}
