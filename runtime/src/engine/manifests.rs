//! Reads the manifest directories, on the storage thread, since a card may take seconds. There is one read at a time.
//!
//! A read that is requested during another one starts after it. A read of many bytes has several parts; the registry
//! learns of all of them after the last one, and the core then learns of the difference. What the agent itself writes or
//! removes enters the registry without a read (`engine/changes.rs`).
//!
//! Read next: `sources.rs`, which reads the files; `engine/reconcile.rs`, which reports to the core.

use std::path::{Path, PathBuf};

use nodlet_core::sorted::{SortedMap, SortedSet};
use nodlet_kernel::durable;

use super::Engine;
use super::message::{ManifestNews, Message, ReadPart};
use crate::sources::{ManifestDirectories, OwnChange, Parsed, RESCAN_INTERVAL, SAVED_WITHIN};

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
    /// What the parts of the present read have found.
    parsed: Vec<Parsed>,
    /// Files that the agent has written or removed since the last read began.
    own: SortedMap<PathBuf, OwnChange>,
    /// The next read includes the records: they were not read yet, or not completely.
    reads_records: bool,
    /// A read is scheduled, see [`Engine::read_again`].
    is_due: bool,
}

impl ManifestReads {
    pub(super) fn new(directories: ManifestDirectories) -> ManifestReads {
        ManifestReads {
            directories: Some(Box::new(directories)),
            is_watched: false,
            news: false,
            asked: false,
            parsed: Vec::new(),
            own: SortedMap::new(),
            reads_records: true,
            is_due: false,
        }
    }

    /// Records that the agent has written or removed a file, and that the registry knows it.
    pub(super) fn set_own(&mut self, path: &Path, change: OwnChange) {
        self.own.insert(path.to_owned(), change);
    }

    /// The directories for the next read, and whether it was requested; `None` if there is no reason for one, and
    /// during another one. While a change is being written, inotify may report that write before its stamp is known:
    /// the read begins after it.
    fn next_read(&mut self, is_writing: bool) -> Option<(Box<ManifestDirectories>, bool)> {
        if is_writing || !(self.asked || self.news) {
            return None;
        }
        let mut directories = self.directories.take()?;
        for (path, change) in std::mem::take(&mut self.own) {
            directories.set_own(&path, change);
        }
        self.news = false;
        Some((directories, std::mem::take(&mut self.asked)))
    }
}

impl Engine {
    /// Reads the manifest directories, and reports the difference to the core.
    pub(super) fn read_sources(&mut self) {
        self.manifest_reads.asked = true;
        self.begin_read();
    }

    /// The first read, before the loop begins.
    pub(super) async fn first_read(&mut self) {
        let mut directories = self.manifest_reads.directories.take();
        while let Some(more) = directories {
            let part = self.read_part(more, true).await;
            (directories, _) = self.accept_part(part);
        }
    }

    /// Schedules one read after [`RESCAN_INTERVAL`].
    pub(super) fn read_again(&mut self) {
        if !std::mem::replace(&mut self.manifest_reads.is_due, true) {
            self.shell.tasks.later(RESCAN_INTERVAL, Message::Manifests(ManifestNews::Due));
        }
    }

    /// Begins the next read, if one is due.
    pub(super) fn begin_read(&mut self) {
        // There may be room for manifests beyond the quota now.
        if self.registry.sources.take_freed_room() {
            self.manifest_reads.asked = true;
        }
        if let Some((directories, asked)) = self.manifest_reads.next_read(self.changes.is_writing()) {
            self.continue_read(directories, asked);
        }
    }

    fn continue_read(&mut self, directories: Box<ManifestDirectories>, asked: bool) {
        let part = self.read_part(directories, asked);
        self.shell.tasks.then(part, |part| Message::Manifests(ManifestNews::Part(part)));
    }

    /// Continues with what a task has reported of the manifest directories.
    pub(super) fn manifest_news(&mut self, news: ManifestNews) {
        match news {
            ManifestNews::Part(part) => {
                let (more, is_news) = self.accept_part(part);
                if let Some(directories) = more {
                    return self.continue_read(directories, true);
                }
                if is_news {
                    self.reconcile();
                }
                self.begin_read();
            }
            ManifestNews::Changed => {
                (self.manifest_reads.is_watched, self.manifest_reads.news) = (false, true);
                self.begin_read();
            }
            ManifestNews::Saved => self.read_sources(),
            ManifestNews::Due => {
                self.manifest_reads.is_due = false;
                self.read_sources();
            }
        }
    }

    /// One part of a read, on the storage thread.
    fn read_part(
        &self,
        mut directories: Box<ManifestDirectories>,
        asked: bool,
    ) -> impl Future<Output = ReadPart> + use<> {
        let records = self.manifest_reads.reads_records.then(|| self.shell.stores.records.clone());
        self.shell.stores.storage.run(move || {
            let mut entries = Vec::new();
            // Events are taken before the first directory is read: a later change has an event of its own.
            let is_news = directories.is_looking() || directories.drain() || asked;
            let more = is_news && directories.scan(nodlet_host::clock::instant(), &mut entries);
            let recorded = records.map(|records| records.read());
            ReadPart { directories, entries: is_news.then_some(entries), more, recorded }
        })
    }

    /// Reports the result of one part to the registry. Returns the directories if another part follows, and whether
    /// anything was read.
    fn accept_part(&mut self, part: ReadPart) -> (Option<Box<ManifestDirectories>>, bool) {
        let ReadPart { mut directories, entries, more, recorded } = part;
        if let Some(recorded) = recorded {
            self.manifest_reads.reads_records = recorded.is_short();
            *self.shell.stores.recorded.borrow_mut() = recorded;
        }
        let is_news = entries.is_some();
        let (sources, handling) = (&mut self.registry.sources, &self.shell.handling);
        let reads = &mut self.manifest_reads;
        let mut devices = self.shell.machine.devices.borrow_mut();
        reads.parsed.extend(directories.parse(entries.unwrap_or_default(), &mut devices, handling));
        drop(devices);
        if more {
            return (Some(directories), is_news);
        }
        directories.report(
            std::mem::take(&mut reads.parsed),
            |path| reads.own.contains_key(path),
            sources,
            handling,
        );
        self.device_files_changed();
        self.sync_files(directories.take_unsynced());
        if directories.is_any_renamed() {
            self.shell.tasks.later(SAVED_WITHIN, Message::Manifests(ManifestNews::Saved));
        }
        self.wait_for_news(&directories);
        if directories.is_incomplete() {
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
            if let Err(error) = durable::sync(&path) {
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
        self.shell.tasks.then(changed, |()| Message::Manifests(ManifestNews::Changed));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use nodlet_host::watches::Watches;
    use nodlet_registry::{Owner, SourceDirectory};

    use super::*;
    use crate::at_rest::AtRest;
    use crate::sources::Stamp;

    #[test]
    fn events_during_a_write_wait_for_its_end_and_are_then_known_as_the_agents_own() {
        let directory = std::env::temp_dir().join(format!("nodlet-reads-{}", std::process::id()));
        fs::create_dir(&directory).expect("a directory");
        let source = SourceDirectory { path: directory.clone(), owner: Owner::Client, hint: None };
        let at_rest = Arc::new(AtRest::of(None));
        let mut directories = ManifestDirectories::new(&[source], None, "node", at_rest, Watches::default());
        assert!(!directories.scan(nodlet_host::clock::instant(), &mut Vec::new()));
        let mut reads = ManifestReads::new(directories);
        assert!(reads.next_read(false).is_none(), "there is no reason");
        let path = directory.join("default_web.json");
        fs::write(directory.join(".new"), "{}").expect("written");
        fs::rename(directory.join(".new"), &path).expect("renamed");
        let stamp = fs::File::open(&path).and_then(|file| Stamp::of_file(&file)).expect("it is there");
        reads.news = true;
        assert!(reads.next_read(true).is_none(), "the stamp is not known yet");
        reads.set_own(&path, OwnChange::Written(Some(stamp)));
        let (mut directories, is_requested) =
            reads.next_read(false).expect("it waits for the end of the write");
        assert!(!directories.drain() && !is_requested, "the file is as the agent wrote it");
        reads.news = true;
        assert!(reads.next_read(false).is_none(), "another read is under way");
        fs::remove_dir_all(&directory).expect("removed");
    }
}
