//! Reads the manifest directories, on the storage thread, since a card may take seconds. There is one read at a time.
//!
//! A caller that needs the result of a read passes a continuation. A read that is requested during another one starts
//! after it. A read of many bytes has several parts; the difference is reported to the core after the last part.
//!
//! Read next: `sources.rs`, which reads the files; `engine/reconcile.rs`, which reports to the core.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

use nodlet_core::facts::Observation;
use nodlet_core::sorted::SortedSet;
use nodlet_core::spec::Uid;
use nodlet_registry::Owner;

use super::Engine;
use crate::durable;
use crate::sources::{Found, LOOK_AGAIN, ManifestDirectories, SAVED_WITHIN};
use crate::store::Recorded;

/// The manifest of a pod could not be removed.
#[derive(Debug)]
pub(super) struct RemoveManifestError {
    path: PathBuf,
    source: io::Error,
}

impl fmt::Display for RemoveManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed to remove {}", self.path.display())
    }
}

impl Error for RemoveManifestError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// Runs in the loop after a read. At most one exists for each request whose file was written or removed.
type Continuation = Box<dyn FnOnce(&mut Engine)>;

/// The state of the reads of the manifest directories.
pub(super) struct ManifestReads {
    /// `None` during a read: then the storage thread has them.
    directories: Option<Box<ManifestDirectories>>,
    /// A task waits for inotify events of the manifest directories.
    is_watched: bool,
    /// There are inotify events that no read has consumed.
    news: bool,
    /// A read was requested during a read.
    asked: bool,
    /// Continuations of the next read.
    waiting: Vec<Continuation>,
    /// The next read includes the records: they were not read yet, or not completely.
    reads_records: bool,
    /// A read is scheduled, see [`Engine::read_again`].
    is_due: bool,
}

/// The result of one part of a read.
struct ReadPart {
    directories: Box<ManifestDirectories>,
    /// `None` if the inotify events were of no interest and nobody requested the read.
    found: Option<Vec<Found>>,
    more: bool,
    recorded: Option<Recorded>,
}

impl ManifestReads {
    pub(super) fn new(directories: ManifestDirectories) -> ManifestReads {
        ManifestReads {
            directories: Some(Box::new(directories)),
            is_watched: false,
            news: false,
            asked: false,
            waiting: Vec::new(),
            reads_records: true,
            is_due: false,
        }
    }
}

impl Engine {
    /// Reads the manifest directories, and reports the difference to the core.
    pub(super) fn read_sources(&mut self) {
        self.manifest_reads.asked = true;
        self.begin_read();
    }

    /// Reads the manifest directories, reports the difference to the core, and then calls `go_on`.
    pub(super) fn read_sources_then(&mut self, go_on: impl FnOnce(&mut Engine) + 'static) {
        self.manifest_reads.waiting.push(Box::new(go_on));
        self.read_sources();
    }

    /// Removes the manifest of a pod from flash, and then calls `go_on`, which stops the pod. The manifest goes first: a
    /// power cut does not bring the pod back. Reads of the sources meanwhile do not stop the pod, since only `go_on` has
    /// the requested grace period.
    ///
    /// After a failure, `go_on` gets the error, and the pod runs on: the caller repeats the removal. If the manifest is
    /// gone nevertheless, because only the sync of its directory failed, the pod ends within its own grace period.
    pub(super) fn remove_pod_manifest(
        &mut self,
        uid: Uid,
        source: PathBuf,
        go_on: impl FnOnce(&mut Engine, Result<(), RemoveManifestError>) + 'static,
    ) {
        self.shell.pods.set_deleted(&uid, true);
        let owner = self.registry.sources.owner_of(&source);
        let of = owner.is_some_and(Owner::replaces_in_place).then_some(&uid);
        let removed = self.shell.stores.remove_manifest(source.clone(), of);
        self.shell.tasks.then(removed, move |engine, removed| {
            engine.read_sources_then(move |engine| {
                engine.shell.pods.set_deleted(&uid, false);
                if removed.is_err() && !engine.registry.desires(&uid) {
                    engine.observe(Observation::Unwanted { uid, grace: None });
                    engine.publish_changed();
                }
                go_on(engine, removed.map_err(|error| RemoveManifestError { path: source, source: error }));
            });
        });
    }

    /// The first read, before the loop begins.
    pub(super) async fn first_read(&mut self) {
        let mut directories = self.manifest_reads.directories.take();
        while let Some(more) = directories {
            let part = self.read_part(more, true).await;
            (directories, _) = self.accept_part(part);
        }
    }

    /// Schedules one read after [`LOOK_AGAIN`].
    pub(super) fn read_again(&mut self) {
        if !std::mem::replace(&mut self.manifest_reads.is_due, true) {
            self.shell.tasks.later(LOOK_AGAIN, |engine| {
                engine.manifest_reads.is_due = false;
                engine.read_sources();
            });
        }
    }

    fn begin_read(&mut self) {
        let Some(directories) = self.manifest_reads.directories.take() else { return };
        self.manifest_reads.news = false;
        let asked = std::mem::take(&mut self.manifest_reads.asked);
        let waiting = std::mem::take(&mut self.manifest_reads.waiting);
        self.continue_read(directories, asked, waiting);
    }

    fn continue_read(
        &mut self,
        directories: Box<ManifestDirectories>,
        asked: bool,
        waiting: Vec<Continuation>,
    ) {
        let part = self.read_part(directories, asked);
        self.shell.tasks.then(part, move |engine, part| {
            let (more, is_news) = engine.accept_part(part);
            if let Some(directories) = more {
                return engine.continue_read(directories, true, waiting);
            }
            if is_news {
                engine.reconcile();
            }
            for go_on in waiting {
                go_on(engine);
            }
            if engine.manifest_reads.asked || engine.manifest_reads.news {
                engine.begin_read();
            }
        });
    }

    /// One part of a read, on the storage thread.
    fn read_part(
        &self,
        mut directories: Box<ManifestDirectories>,
        asked: bool,
    ) -> impl Future<Output = ReadPart> + use<> {
        let records = self.manifest_reads.reads_records.then(|| self.shell.stores.records.clone());
        self.shell.stores.storage.run(move || {
            let mut found = Vec::new();
            // Events are taken before the first directory is read: a later change has an event of its own.
            let is_news = directories.is_looking() || directories.drain() || asked;
            let more = is_news && directories.look(nodlet_host::clock::instant(), &mut found);
            let recorded = records.map(|records| records.read());
            ReadPart { directories, found: is_news.then_some(found), more, recorded }
        })
    }

    /// Reports the result of one part to the registry. Returns the directories if another part follows, and whether
    /// anything was read.
    fn accept_part(&mut self, part: ReadPart) -> (Option<Box<ManifestDirectories>>, bool) {
        let ReadPart { mut directories, found, more, recorded } = part;
        if let Some(recorded) = recorded {
            self.manifest_reads.reads_records = recorded.is_short();
            *self.shell.stores.recorded.borrow_mut() = recorded;
        }
        let is_news = found.is_some();
        let devices = &self.shell.machine.devices;
        directories.report(
            found.unwrap_or_default(),
            &mut self.registry.sources,
            &mut devices.borrow_mut(),
            &self.shell.handling,
        );
        self.device_files_changed();
        self.registry.sources.is_partial = more;
        if more {
            return (Some(directories), is_news);
        }
        self.sync_files(directories.take_unsynced());
        if directories.is_any_aside() {
            self.shell.tasks.later(SAVED_WITHIN, Engine::read_sources);
        }
        self.wait_for_news(&directories);
        if directories.is_blind() {
            self.read_again();
        }
        self.manifest_reads.directories = Some(directories);
        (None, is_news)
    }

    /// Makes files durable that other programs have written, one after another between the other jobs of the
    /// storage thread. Nobody waits for that: a pod starts before its file is durable.
    fn sync_files(&self, mut paths: SortedSet<PathBuf>) {
        if paths.is_empty() {
            return;
        }
        // The job runs although nobody waits for its value.
        drop(self.shell.stores.storage.run_in_parts(move || {
            // In descending order, a directory comes after its files.
            let path = paths.pop_last()?;
            if let Err(error) = durable::sync(&path, &durable::NoFault) {
                log::warn!("failed to sync {}: {error}; a power cut may undo its change", path.display());
            }
            paths.is_empty().then_some(())
        }));
    }

    /// Starts a read at the next inotify event. Not called during a read, in which the storage thread takes the
    /// events.
    fn wait_for_news(&mut self, directories: &ManifestDirectories) {
        if self.manifest_reads.is_watched {
            return;
        }
        let Some(changed) = directories.changed() else { return };
        self.manifest_reads.is_watched = true;
        self.shell.tasks.then(changed, |engine, ()| {
            (engine.manifest_reads.is_watched, engine.manifest_reads.news) = (false, true);
            engine.begin_read();
        });
    }
}
