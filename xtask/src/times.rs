//! How long steps and tests took when they last passed here, for those who wait for them.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nodlet_build::task::{Outcome, TaskError, work};

/// The times by name, in a file below `.work`.
pub(crate) struct Times {
    path: PathBuf,
    milliseconds: BTreeMap<String, u128>,
}

impl Times {
    /// Reads the times of what uses this directory of `.work`. There are none without the file.
    pub(crate) fn read(directory: &str) -> Result<Self, TaskError> {
        let path = work(directory)?.join("milliseconds.json");
        let text = fs::read_to_string(&path).unwrap_or_default();
        Ok(Self { path, milliseconds: serde_json::from_str(&text).unwrap_or_default() })
    }

    pub(crate) fn get(&self, name: &str) -> Option<Duration> {
        self.milliseconds.get(name).and_then(|time| (*time).try_into().ok()).map(Duration::from_millis)
    }

    /// Adds times to those in the file, to which another task may have written meanwhile.
    pub(crate) fn add<'a>(directory: &str, times: impl IntoIterator<Item = (&'a str, Duration)>) -> Outcome {
        let mut all = Self::read(directory)?;
        all.milliseconds.extend(times.into_iter().map(|(name, took)| (name.to_owned(), took.as_millis())));
        Ok(fs::write(&all.path, serde_json::to_string_pretty(&all.milliseconds)?)?)
    }
}
