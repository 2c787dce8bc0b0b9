//! The records of pods, which survive a power cut: one small file for each pod, replaced by
//! [`nodlet_kernel::durable::replace`].
//!
//! Only the storage thread reads and writes these files. Records are read once, when the agent starts
//! ([`Records::read`]), and kept in memory until their pods are found ([`Recorded`]). Later records belong to
//! pods that the agent knows.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::to_raw_value;

use nodlet_core::facts::Record;
use nodlet_core::record_file::{self, Admitted};
use nodlet_core::time::Anchor;
use nodlet_kernel::durable;
use nodlet_kube::manifest::{AppliedPreset, Priority};

/// The error of a record that cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The file or the directory cannot be read.
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: Arc<io::Error> },
    /// The file is damaged.
    #[error("{} is damaged", path.display())]
    Parse { path: PathBuf, source: Arc<serde_json::Error> },
}

impl LoadError {
    /// Whether the cause is a lack of resources of the process or the machine, and not the file.
    pub(crate) fn is_shortage(&self) -> bool {
        matches!(self, LoadError::Read { source, .. } if nodlet_host::error::is_shortage(source))
    }
}

/// Suffix of the files of [`Records::path_of`].
const RECORD: &str = ".json";

/// Suffix of the files of [`Records::ephemeral_path_of`].
const EPHEMERAL: &str = ".ephemeral";

/// Suffix of the files of [`Records::kept_path_of`].
const KEPT: &str = ".kept";

/// The presets and the priority of an admission.
pub(crate) type AdmittedWith = (Vec<AppliedPreset>, Option<Priority>);

/// The records of all pods, in one directory.
pub(crate) struct Records {
    directory: PathBuf,
    boot_id: String,
}

impl Records {
    /// Creates the access to the records in `directory`, which need not exist.
    pub(crate) fn new(directory: PathBuf) -> Records {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Records { directory, boot_id: boot_id.trim().to_owned() }
    }

    /// Returns the id of this boot.
    pub(crate) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Reads all records, ephemeral containers and kept manifests.
    pub(crate) fn read(&self) -> Recorded {
        let failed = |path: &Path, error| LoadError::Read { path: path.to_owned(), source: Arc::new(error) };
        let mut recorded = Recorded::default();
        let read = fs::read_dir(&self.directory).and_then(|entries| {
            for entry in entries {
                let path = entry?.path();
                if uid_of(&path).is_none() {
                    continue;
                }
                match nodlet_kernel::own_file::read(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    read => {
                        let read = read.map_err(|error| failed(&path, error));
                        recorded.files.push((path, read));
                    }
                }
            }
            Ok(())
        });
        if let Err(error) = read
            && error.kind() != io::ErrorKind::NotFound
        {
            recorded.unlisted = Some(failed(&self.directory, error));
        }
        recorded
    }

    /// Returns the record of the pod `uid`; `None` if there is none.
    ///
    /// # Errors
    /// The record cannot be read or parsed.
    pub(crate) fn load(&self, recorded: &Recorded, uid: &str) -> Result<Option<Box<Record>>, LoadError> {
        recorded.parsed(&self.path_of(uid), |bytes| record_file::parse(bytes, &self.boot_id))
    }

    /// Returns the ephemeral containers of the pod `uid`; `None` if there are none.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub(crate) fn ephemeral(&self, recorded: &Recorded, uid: &str) -> Result<Option<Value>, LoadError> {
        recorded.parsed(&self.ephemeral_path_of(uid), |bytes| serde_json::from_slice(bytes))
    }

    /// Returns the presets and the priority with which the pod `uid` was admitted; `None` if there is no record of the
    /// pod.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub(crate) fn admitted(&self, recorded: &Recorded, uid: &str) -> Result<Option<AdmittedWith>, LoadError> {
        recorded.parsed(&self.path_of(uid), |bytes| {
            let Admitted { presets, priority } = record_file::admitted(bytes)?;
            let presets = presets.map(|presets| serde_json::from_str(presets.get())).transpose()?;
            let priority = priority.map(|priority| serde_json::from_str(priority.get())).transpose()?;
            Ok((presets.unwrap_or_default(), priority))
        })
    }

    /// Returns the path and the bytes of a file with `record`, and with the presets and the priority of the admission.
    pub(crate) fn render(
        &self,
        uid: &str,
        record: &Record,
        presets: &[AppliedPreset],
        priority: Option<&Priority>,
        anchor: Anchor,
    ) -> (PathBuf, Vec<u8>) {
        let presets = (!presets.is_empty()).then(|| to_raw_value(presets).expect("presets are JSON"));
        let priority = priority.map(|priority| to_raw_value(priority).expect("a priority is JSON"));
        let admitted = Admitted { presets: presets.as_deref(), priority: priority.as_deref() };
        (self.path_of(uid), record_file::render(record, &self.boot_id, admitted, anchor))
    }

    /// Returns the path of the record of `uid`.
    pub(crate) fn path_of(&self, uid: &str) -> PathBuf {
        self.directory.join(format!("{uid}{RECORD}"))
    }

    /// Returns the path of the ephemeral containers of `uid`, which were added to the pod and are in no manifest.
    pub(crate) fn ephemeral_path_of(&self, uid: &str) -> PathBuf {
        self.directory.join(format!("{uid}{EPHEMERAL}"))
    }

    /// Returns the path of the manifest of `uid`, which exists while another version of the pod waits for its images.
    pub(crate) fn kept_path_of(&self, uid: &str) -> PathBuf {
        self.directory.join(format!("{uid}{KEPT}"))
    }

    /// Removes the files of `uid` durably.
    ///
    /// # Errors
    /// A file cannot be removed. The record goes last: without it, nobody would find what else is there.
    pub(crate) fn remove(&self, uid: &str) -> io::Result<()> {
        durable::remove(&self.ephemeral_path_of(uid))?;
        let kept = self.kept_path_of(uid);
        if kept.exists() {
            durable::remove(&kept)?;
        }
        durable::remove(&self.path_of(uid))
    }

    /// Returns the uids that have a file in the directory.
    pub(crate) fn uids(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.directory) else { return Vec::new() };
        entries.filter_map(|entry| Some(uid_of(&entry.ok()?.path())?.to_owned())).collect()
    }
}

/// Returns the uid in the name of a file of [`Records`].
fn uid_of(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    let uid = [RECORD, EPHEMERAL, KEPT].iter().find_map(|end| name.strip_suffix(end))?;
    Some(uid).filter(|uid| !uid.is_empty() && !uid.starts_with('.'))
}

/// The files of [`Records`] as of the start of the agent.
#[derive(Default)]
pub(crate) struct Recorded {
    files: Vec<(PathBuf, Result<Vec<u8>, LoadError>)>,
    /// The error if the directory could not be listed.
    unlisted: Option<LoadError>,
}

impl Recorded {
    fn parsed<T>(
        &self,
        path: &Path,
        parse: impl FnOnce(&[u8]) -> Result<T, serde_json::Error>,
    ) -> Result<Option<T>, LoadError> {
        let bytes = match (self.files.iter().find(|(of, _)| of == path), &self.unlisted) {
            (Some((_, read)), _) => read.as_ref().map_err(Clone::clone)?,
            (None, Some(error)) => return Err(error.clone()),
            (None, None) => return Ok(None),
        };
        let damaged = |error| LoadError::Parse { path: path.to_owned(), source: Arc::new(error) };
        parse(bytes).map(Some).map_err(damaged)
    }

    /// Returns the files of [`Records::kept_path_of`], with their contents if they were readable.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (&Path, Option<&[u8]>)> {
        let all = self.files.iter().map(|(path, read)| (&**path, read.as_deref().ok()));
        all.filter(|(path, _)| path.extension().is_some_and(|end| end == &KEPT[1..]))
    }

    /// Whether a file could not be read because the process or the machine lacked resources.
    pub(crate) fn is_short(&self) -> bool {
        let mut errors = self.files.iter().filter_map(|(_, read)| read.as_ref().err()).chain(&self.unlisted);
        errors.any(LoadError::is_shortage)
    }

    /// Keeps only the files of pods whose uid `keep` accepts.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.files.retain(|(path, _)| uid_of(path).is_some_and(&keep));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use nodlet_core::facts::*;
    use nodlet_core::time::{Instant, Moment, Timestamp};

    #[test]
    fn a_record_of_this_boot_keeps_its_instants_and_one_of_another_only_wall_time() {
        let directory = tempfile::tempdir().expect("a directory");
        let exit = RecordedExit {
            number: 2,
            code: 3,
            reason: "Error".into(),
            message: "gone".into(),
            started_at: Moment::ThisBoot(Instant(5)),
            finished_at: Moment::Earlier(Timestamp(7)),
            id: None,
        };
        let record = Record {
            phase: PodPhase::Running,
            start_time: Some(Moment::ThisBoot(Instant(4))),
            containers: vec![ContainerRecord {
                name: "app".into(),
                attempts: 3,
                last_exit: Some(exit.clone()),
                previous_exit: Some(RecordedExit { number: 1, id: Some("ab".repeat(32)), ..exit }),
                process: Some(RunProcess {
                    user: User { uid: 7, gid: 8, supplemental_groups: vec![9] },
                    stop_signal: 2,
                }),
                decided: Some(Moment::ThisBoot(Instant(6))),
                ..ContainerRecord::default()
            }],
            client_conditions: vec![ClientCondition {
                kind: "example.com/a".into(),
                status: "True".into(),
                message: "so".into(),
                last_transition_time: Some("2026-01-31T12:00:00Z".into()),
                observed_generation: Some(2),
                ..ClientCondition::default()
            }],
            last: Some(Box::new(LastShown {
                conditions: vec![FoundCondition {
                    kind: ConditionType::Ready,
                    status: false,
                    since: Moment::ThisBoot(Instant(8)),
                }],
                ip: Some(Ipv4Addr::new(10, 85, 0, 2)),
            })),
            ..Record::default()
        };
        let mut records = Records { directory: directory.path().into(), boot_id: "one".into() };
        let preset =
            AppliedPreset { name: "p".into(), version: "7".into(), spec: serde_json::json!({"env": []}) };
        let presets = [preset];
        let (path, bytes) = records.render("uid", &record, &presets, None, Anchor(1000));
        durable::replace(&path, &bytes, None).expect("written");
        assert_eq!(records.load(&records.read(), "uid").ok(), Some(Some(Box::new(record))));
        let admitted =
            records.admitted(&records.read(), "uid").expect("it is readable").expect("there is a record");
        assert_eq!(admitted, (presets.to_vec(), None));
        assert_eq!(records.admitted(&records.read(), "other").ok(), Some(None));
        // Of no pod: its directory would be that of all.
        fs::write(directory.path().join(".json"), "{}").expect("written");
        assert_eq!(records.uids(), ["uid"]);
        // Left where the card failed between the two.
        fs::write(records.ephemeral_path_of("other"), "[]").expect("written");
        let mut uids = records.uids();
        uids.sort();
        assert_eq!(uids, ["other", "uid"]);

        records.boot_id = "two".into();
        let later = records.load(&records.read(), "uid").expect("it is readable").expect("still there");
        assert_eq!(later.start_time, Some(Moment::Earlier(Timestamp(1004))));
        let exit = later.containers[0].last_exit.as_ref().expect("the exit is kept");
        assert_eq!(
            (exit.started_at, exit.finished_at),
            (Moment::Earlier(Timestamp(1005)), Moment::Earlier(Timestamp(7)))
        );
        assert_eq!(later.containers[0].decided, Some(Moment::Earlier(Timestamp(1006))));
        let last = later.last.expect("it is kept");
        assert_eq!(last.conditions[0].since, Moment::Earlier(Timestamp(1008)));
        assert_eq!(last.ip, Some(Ipv4Addr::new(10, 85, 0, 2)));
        // As they were before containers had names in it.
        fs::write(&path, br#"{"version":1,"boot_id":"two","phase":"Running","containers":[{"attempts":3}]}"#)
            .expect("written");
        let old = records.load(&records.read(), "uid").expect("it is readable").expect("it is there");
        assert_eq!(old.containers, [ContainerRecord { attempts: 3, ..ContainerRecord::default() }]);
        assert_eq!(old.client_conditions, [], "nor was anything given then");
        let admitted =
            records.admitted(&records.read(), "uid").expect("it is readable").expect("there is a record");
        assert_eq!(admitted, (Vec::new(), None), "nor were there presets");
        fs::write(&path, b"{").expect("torn");
        let damaged = records.load(&records.read(), "uid").expect_err("it is torn");
        let damaged = nodlet_host::error::causes(&damaged);
        assert!(damaged.starts_with(&format!("{} is damaged: EOF", path.display())), "{damaged}");
        assert!(records.admitted(&records.read(), "uid").is_err());
        fs::remove_file(&path).expect("it was there");
        fs::create_dir(&path).expect("nothing is there");
        let unreadable = records.load(&records.read(), "uid").expect_err("it is a directory");
        let unreadable = nodlet_host::error::causes(&unreadable);
        assert!(unreadable.starts_with(&format!("failed to read {}: ", path.display())), "{unreadable}");
        fs::remove_dir(&path).expect("it was there");
        assert!(records.load(&records.read(), "uid").is_ok_and(|record| record.is_none()));
    }
}
