//! Whether the node can write its records, on which each start of a pod depends: the condition `ReadonlyFilesystem` of the
//! node problem detector. A full file system is pressure instead.

use crate::time::Instant;

/// Whether the node can write its records.
#[derive(Debug, Default)]
pub struct RecordsDisk(Option<Broken>);

#[derive(Debug)]
struct Broken {
    why: String,
    since: Instant,
    /// The whole file system is read-only: a failed write says nothing more.
    is_read_only: bool,
}

impl RecordsDisk {
    /// Takes note of a write: `error` says why it failed. Returns whether [`RecordsDisk::broken`] has changed.
    pub fn written(&mut self, now: Instant, error: Option<String>) -> bool {
        match (&self.0, error) {
            (Some(Broken { is_read_only: true, .. }), Some(_)) => false,
            (_, error) => self.show(now, error, false),
        }
    }

    /// Takes note of a measurement: `why` names a file system that is read-only. Another error stays until a record is
    /// written. Returns whether [`RecordsDisk::broken`] has changed.
    pub fn measured(&mut self, now: Instant, why: Option<String>) -> bool {
        match (&self.0, why) {
            (Some(Broken { is_read_only: false, .. }), None) => false,
            (_, why) => self.show(now, why, true),
        }
    }

    /// Why records cannot be written, and since when.
    pub fn broken(&self) -> Option<(&str, Instant)> {
        self.0.as_ref().map(|broken| (broken.why.as_str(), broken.since))
    }

    fn show(&mut self, now: Instant, why: Option<String>, is_read_only: bool) -> bool {
        let is_new = self.0.as_ref().map(|broken| &broken.why) != why.as_ref();
        if is_new {
            // The transition is that of the condition, not of its message.
            let since = self.0.as_ref().map_or(now, |broken| broken.since);
            self.0 = why.map(|why| Broken { why, since, is_read_only });
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(why: &str) -> Option<String> {
        Some(why.into())
    }

    #[test]
    fn a_failed_write_is_shown_until_a_record_is_written() {
        let mut disk = RecordsDisk::default();
        let at = Instant;
        assert!(disk.written(at(1), text("EIO")) && !disk.written(at(2), text("EIO")));
        assert_eq!(disk.broken(), Some(("EIO", at(1))));
        // That the file system is not read-only does not mean that it can be written to.
        assert!(!disk.measured(at(3), None));
        assert!(disk.written(at(4), text("EROFS")));
        assert_eq!(disk.broken(), Some(("EROFS", at(1))));
        assert!(disk.written(at(5), None) && !disk.written(at(6), None));
        assert_eq!(disk.broken(), None);
    }

    #[test]
    fn a_read_only_file_system_is_shown_rather_than_the_writes_that_fail_for_it() {
        let mut disk = RecordsDisk::default();
        let at = Instant;
        assert!(disk.written(at(1), text("EROFS")) && disk.measured(at(2), text("read-only")));
        assert!(!disk.written(at(3), text("EROFS")) && !disk.measured(at(4), text("read-only")));
        assert_eq!(disk.broken(), Some(("read-only", at(1))));
        assert!(disk.measured(at(5), None));
        assert_eq!(disk.broken(), None);
    }
}
