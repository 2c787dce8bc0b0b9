//! The answers of other name servers, kept for as long as they may be. Failures are not kept.
//!
//! Times are of a clock that does not jump, since any moment.

use std::collections::BTreeMap;
use std::time::Duration;

use super::message::{Key, Response};

/// Bytes of all kept answers with their names.
const BYTES: usize = 48 * 1024;

/// Bytes of one kept answer: a larger one would displace too many others.
const ANSWER_BYTES: usize = 4 * 1024;

/// Bytes that an entry takes besides its name and its answer: the record and its share of the map.
const ENTRY: usize = 96;

/// Time for which an answer is kept at most, in seconds; a negative one for a shorter time, as somebody may be about
/// to make the name.
const LONGEST: u32 = 300;
const LONGEST_NEGATIVE: u32 = 30;

/// Kept answers.
#[derive(Debug, Default)]
pub struct Cache {
    answers: BTreeMap<Key, Entry>,
    bytes: usize,
    /// Counts the uses.
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    response: Response,
    since: Duration,
    until: Duration,
    used: u64,
}

impl Cache {
    /// The kept answer, with its age in seconds.
    pub fn get(&mut self, now: Duration, key: &Key) -> Option<(&Response, u32)> {
        self.uses += 1;
        let entry = self.answers.get_mut(key).filter(|entry| now < entry.until)?;
        entry.used = self.uses;
        let age = u32::try_from(now.saturating_sub(entry.since).as_secs()).unwrap_or(u32::MAX);
        Some((&entry.response, age))
    }

    /// Keeps an answer that came now, if it may be kept. Expired ones go first, then those that were not used for
    /// longest.
    pub fn insert(&mut self, now: Duration, key: Key, response: Response) {
        let longest = if response.is_positive() { LONGEST } else { LONGEST_NEGATIVE };
        let Some(lifetime) = response.lifetime(&key).filter(|lifetime| *lifetime > 0) else { return };
        if response.size() > ANSWER_BYTES {
            return;
        }
        self.remove(&key);
        let size = size(&key, &response);
        if self.bytes + size > BYTES {
            let expired: Vec<Key> = self
                .answers
                .iter()
                .filter(|(_, entry)| entry.until <= now)
                .map(|(key, _)| key.clone())
                .collect();
            expired.iter().for_each(|key| self.remove(key));
        }
        while self.bytes + size > BYTES {
            let Some(oldest) =
                self.answers.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone())
            else {
                break;
            };
            self.remove(&oldest);
        }
        let until = now + Duration::from_secs(lifetime.min(longest).into());
        self.bytes += size;
        self.answers.insert(key, Entry { response, since: now, until, used: self.uses });
    }

    /// Forgets all: another network may have other answers.
    pub fn clear(&mut self) {
        *self = Cache::default();
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.answers.remove(key) {
            self.bytes -= size(key, &entry.response);
        }
    }
}

fn size(key: &Key, response: &Response) -> usize {
    ENTRY + key.size() + response.size()
}

#[cfg(test)]
mod tests;
