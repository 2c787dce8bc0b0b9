//! A medium that keeps what a real one keeps when the power is cut: everything up to the last flush, and any part
//! of the later writes.
//!
//! A [`Medium`] records writes, trims, flushes and the test's own [`Mark`]s in one order. The kernel of this machine
//! uses it as a disk through [`Disk`], and a virtual machine through [`Export`]. [`Record::cuts`] chooses by a seed when
//! the power is cut and what is lost; [`Record::write`] makes the disk that the next boot finds.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::Seed;

mod disk;
mod nbd;

pub use disk::{Disk, HONEST_OPTIONS, make_data_partition};
pub use nbd::Export;

/// The value of a thing before its first operation.
pub const ABSENT: &str = "absent";

/// The bytes that a medium writes as a whole.
const SECTOR: usize = 512;

/// A step of a record.
#[derive(Clone, Debug)]
enum Event {
    /// Bytes were written. A write that must be durable at once (FUA) is followed by a flush: the kernel makes that of
    /// it for a loop device, and QEMU for NBD.
    Write { at: u64, bytes: Vec<u8> },
    /// Bytes were given back; they read as zeros.
    Trim { at: u64, length: u64 },
    /// All earlier writes are durable.
    Flush,
    /// The test has begun or completed something.
    Mark(Mark),
}

/// What a test does to a thing: its new value, and whether the operation was acknowledged.
#[derive(Clone, Debug)]
pub struct Mark {
    thing: String,
    value: String,
    is_acknowledged: bool,
}

/// A disk with a record of everything that is written to it.
pub struct Medium {
    file: File,
    size: u64,
    events: Mutex<Vec<Event>>,
}

impl Medium {
    /// A disk with the content of the file `initial`, which stays as it is. Writes go to the file `current`, which is
    /// replaced.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn new(initial: &Path, current: &Path) -> io::Result<Arc<Medium>> {
        copy(initial, current)?;
        let file = File::options().read(true).write(true).open(current)?;
        let size = file.metadata()?.len();
        Ok(Arc::new(Medium { file, size, events: Mutex::default() }))
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Records that an operation changes a thing to this value, and afterwards that it was acknowledged.
    pub fn during<T>(&self, thing: &str, value: &str, operation: impl FnOnce() -> T) -> T {
        let mark = Mark { thing: thing.to_owned(), value: value.to_owned(), is_acknowledged: false };
        self.events().push(Event::Mark(mark.clone()));
        let done = operation();
        self.events().push(Event::Mark(Mark { is_acknowledged: true, ..mark }));
        done
    }

    /// Records that a thing may have this value from now on, until an operation on it is acknowledged.
    pub fn expect(&self, thing: &str, value: &str) {
        let mark = Mark { thing: thing.to_owned(), value: value.to_owned(), is_acknowledged: false };
        self.events().push(Event::Mark(mark));
    }

    /// The record so far, of a disk that was a copy of `initial`.
    pub fn record(&self, initial: &Path) -> Record {
        Record { initial: initial.to_owned(), events: self.events().clone() }
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().expect("nobody panics with it")
    }

    fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, at)
    }

    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut events = self.events();
        self.file.write_all_at(bytes, at)?;
        events.push(Event::Write { at, bytes: bytes.to_vec() });
        Ok(())
    }

    fn trim(&self, at: u64, length: u64) -> io::Result<()> {
        let mut events = self.events();
        zero(&self.file, at, length)?;
        events.push(Event::Trim { at, length });
        Ok(())
    }

    fn flush(&self) {
        self.events().push(Event::Flush);
    }
}

/// Everything that happened to a medium.
pub struct Record {
    initial: PathBuf,
    events: Vec<Event>,
}

/// What is left of the writes after the last flush.
#[derive(Clone, Copy, Debug)]
enum Unflushed {
    Nothing,
    Prefix,
    Subset,
    /// A subset of the sectors of a subset.
    Torn,
    Everything,
}

/// A moment at which the power is cut, and what is left after that.
#[derive(Debug)]
pub struct Cut {
    /// The number of events before the power is cut.
    at: usize,
    unflushed: Unflushed,
    /// The sectors that are left of each event after the last flush.
    kept: Vec<(usize, Vec<Range<usize>>)>,
}

/// The number of changes that are durable as a whole, the sectors of later ones, and the allowed values.
type State<'a> = (usize, Vec<(usize, Vec<Range<usize>>)>, BTreeMap<&'a str, BTreeSet<&'a str>>);

impl Record {
    /// The number of writes.
    pub fn writes(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Write { .. })).count()
    }

    /// The number of flushes.
    pub fn flushes(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Flush)).count()
    }

    /// Cuts the power at this many moments, fewer if the record has fewer different states. Half of the moments, if
    /// there are so many, directly follow a flush after which nothing else is kept: whatever the last flush does not
    /// cover is lost. The others are random. Each part of the record between two marks has its turn, however short it is:
    /// a file system that is made has hundreds of flushes, and an object that is applied a few. No two cuts leave the same
    /// disk and allow the same values.
    pub fn cuts(&self, seed: &mut Seed, count: usize) -> Vec<Cut> {
        /// The random cuts for each one that is wanted, because many are equal.
        const TRIES: usize = 20;
        let begin = self.events.iter().position(|event| matches!(event, Event::Mark(_))).unwrap_or(0);
        let flushes = (begin..self.events.len())
            .filter(|at| matches!(self.events[*at], Event::Flush) && self.flushed(*at) < *at);
        let mut flushes = self.parts(flushes);
        if !flushes.is_empty() {
            let first = below(seed, flushes.len());
            flushes.rotate_left(first);
        }
        let mut cuts = Vec::new();
        let mut seen = HashSet::new();
        while cuts.len() < count.div_ceil(2) && !flushes.is_empty() {
            let mut part = flushes.remove(0);
            let at = part.swap_remove(below(seed, part.len())) + 1;
            if !part.is_empty() {
                flushes.push(part);
            }
            let cut = Cut { at, unflushed: Unflushed::Nothing, kept: Vec::new() };
            if seen.insert(self.state(&cut)) {
                cuts.push(cut);
            }
        }
        for _ in 0..count * TRIES {
            if cuts.len() >= count {
                break;
            }
            let cut = self.cut(seed);
            if seen.insert(self.state(&cut)) {
                cuts.push(cut);
            }
        }
        cuts
    }

    /// What is different between two power cuts whose results are checked: the disk, and the values that are allowed.
    fn state(&self, cut: &Cut) -> State<'_> {
        let is_change = |event: &Event| matches!(event, Event::Write { .. } | Event::Trim { .. });
        let mut durable = self.events[..self.flushed(cut.at)].iter().filter(|event| is_change(event)).count();
        let whole = |(event, kept): &&(usize, Vec<Range<usize>>)| {
            kept.iter().map(Range::len).sum::<usize>() == self.events[*event].sectors()
        };
        let prefix = cut.kept.iter().take_while(whole).count();
        durable += prefix;
        let others = cut.kept[prefix..].iter().filter(|(_, kept)| !kept.is_empty()).cloned().collect();
        (durable, others, self.allowed(cut))
    }

    /// Cuts the power at a random moment. A third of the moments are acknowledgements, when nothing that was promised
    /// may still be lost; another third are just before a flush, when most is not durable yet.
    fn cut(&self, seed: &mut Seed) -> Cut {
        let choice = seed.number() % 3;
        let moments = (0..=self.events.len()).filter(|at| match choice {
            0 => matches!(at.checked_sub(1).map(|last| &self.events[last]), Some(Event::Mark(mark)) if mark.is_acknowledged),
            1 => matches!(self.events.get(*at), Some(Event::Flush)) && self.flushed(*at) < *at,
            _ => true,
        });
        let parts = self.parts(moments);
        let part = if parts.is_empty() { &vec![self.events.len()] } else { seed.choose(&parts) };
        let at = *seed.choose(part);
        let unflushed = *seed.choose(&[
            Unflushed::Nothing,
            Unflushed::Prefix,
            Unflushed::Subset,
            Unflushed::Torn,
            Unflushed::Everything,
        ]);
        let flushed = self.flushed(at);
        let pending: Vec<usize> = (flushed..at)
            .filter(|event| matches!(self.events[*event], Event::Write { .. } | Event::Trim { .. }))
            .collect();
        let prefix = below(seed, pending.len() + 1);
        let mut kept = Vec::new();
        for (number, event) in pending.into_iter().enumerate() {
            let sectors = self.events[event].sectors();
            let whole = std::iter::once(0..sectors).collect();
            let ranges = match unflushed {
                Unflushed::Nothing => Vec::new(),
                Unflushed::Prefix if number >= prefix => Vec::new(),
                Unflushed::Prefix | Unflushed::Everything => whole,
                Unflushed::Subset | Unflushed::Torn if seed.number().is_multiple_of(2) => Vec::new(),
                Unflushed::Torn if matches!(self.events[event], Event::Write { .. }) => {
                    (0..sectors).filter(|_| seed.number().is_multiple_of(2)).map(|one| one..one + 1).collect()
                }
                Unflushed::Subset | Unflushed::Torn => whole,
            };
            kept.push((event, ranges));
        }
        Cut { at, unflushed, kept }
    }

    /// Ascending moments, those between the same two marks together.
    fn parts(&self, moments: impl Iterator<Item = usize>) -> Vec<Vec<usize>> {
        let is_mark = |event: &Event| matches!(event, Event::Mark(_));
        let mut parts: Vec<Vec<usize>> = Vec::new();
        for at in moments {
            match parts.last_mut() {
                Some(part) if part.last().is_some_and(|last| !self.events[*last..at].iter().any(is_mark)) => {
                    part.push(at);
                }
                _ => parts.push(vec![at]),
            }
        }
        parts
    }

    /// The number of events up to the last flush before a moment.
    fn flushed(&self, at: usize) -> usize {
        self.events[..at].iter().rposition(|event| matches!(event, Event::Flush)).map_or(0, |last| last + 1)
    }

    /// Writes the disk after a power cut to a file.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn write(&self, cut: &Cut, path: &Path) -> io::Result<()> {
        copy(&self.initial, path)?;
        let file = File::options().write(true).open(path)?;
        for event in &self.events[..self.flushed(cut.at)] {
            event.apply(&file, &(0..event.sectors()))?;
        }
        cut.kept.iter().try_for_each(|(event, kept)| {
            kept.iter().try_for_each(|sectors| self.events[*event].apply(&file, sectors))
        })
    }

    /// The values that each thing may have after a power cut: the last one that was acknowledged, and those of
    /// operations that began later.
    pub fn allowed(&self, cut: &Cut) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut allowed = BTreeMap::<&str, BTreeSet<&str>>::new();
        for event in &self.events[..cut.at] {
            let Event::Mark(mark) = event else { continue };
            let values = allowed.entry(&mark.thing).or_insert_with(|| BTreeSet::from([ABSENT]));
            if mark.is_acknowledged {
                values.clear();
            }
            values.insert(&mark.value);
        }
        allowed
    }

    /// Describes a power cut, for messages.
    pub fn describe(&self, cut: &Cut) -> String {
        let (flushed, unflushed) = (self.flushed(cut.at), cut.unflushed);
        let marks = self.events[..cut.at].iter().filter_map(|event| match event {
            Event::Mark(Mark { thing, value, is_acknowledged: true }) => Some(format!("{thing}={value}")),
            Event::Mark(Mark { thing, value, .. }) => Some(format!("{thing}→{value}")),
            _ => None,
        });
        let marks: Vec<String> = marks.collect();
        let last = marks[marks.len().saturating_sub(3)..].join(", ");
        let pending = cut.kept.len();
        format!(
            "cut at event {} of {}: flushed up to {flushed}, {unflushed:?} of {pending} later writes; {last}",
            cut.at,
            self.events.len()
        )
    }
}

impl Event {
    fn sectors(&self) -> usize {
        match self {
            Event::Write { bytes, .. } => bytes.len().div_ceil(SECTOR),
            Event::Trim { .. } => 1,
            Event::Flush | Event::Mark(_) => 0,
        }
    }

    fn apply(&self, file: &File, sectors: &Range<usize>) -> io::Result<()> {
        match self {
            Event::Write { at, bytes, .. } => {
                let (from, to) = (sectors.start * SECTOR, (sectors.end * SECTOR).min(bytes.len()));
                file.write_all_at(&bytes[from..to], at + from as u64)
            }
            Event::Trim { at, length } => zero(file, *at, *length),
            Event::Flush | Event::Mark(_) => Ok(()),
        }
    }
}

/// A random number below this one, which is not 0.
fn below(seed: &mut Seed, limit: usize) -> usize {
    usize::try_from(seed.number() % limit as u64).expect("it is below a usize")
}

/// Makes a part of a file a hole.
fn zero(file: &File, at: u64, length: u64) -> io::Result<()> {
    use nix::fcntl::{FallocateFlags, fallocate};
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    Ok(fallocate(file.as_raw_fd(), flags, at.cast_signed(), length.cast_signed())?)
}

/// Copies a file without its holes.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    use nix::unistd::{Whence, lseek};
    let _ = fs::remove_file(to);
    let (from, to) = (File::open(from)?, File::create(to)?);
    to.set_len(from.metadata()?.len())?;
    let mut at = 0;
    // `SEEK_DATA` fails behind the last data.
    while let Ok(begin) = lseek(from.as_raw_fd(), at, Whence::SeekData) {
        let end = lseek(from.as_raw_fd(), begin, Whence::SeekHole)?;
        let mut bytes = vec![0; 1 << 20];
        let mut place = begin.cast_unsigned();
        while place < end.cast_unsigned() {
            let length = bytes.len().min((end.cast_unsigned() - place) as usize);
            from.read_exact_at(&mut bytes[..length], place)?;
            to.write_all_at(&bytes[..length], place)?;
            place += length as u64;
        }
        at = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_is_cut_during_short_operations_beside_a_long_one() {
        let mut events = Vec::new();
        let write = |sector: u64| Event::Write { at: sector * 512, bytes: vec![1; 512] };
        for (operation, flushes) in [("long", 500), ("short", 2), ("shorter", 1)] {
            let mark = |is_acknowledged| {
                Event::Mark(Mark { thing: operation.to_owned(), value: "done".to_owned(), is_acknowledged })
            };
            events.push(mark(false));
            events.extend((0..flushes).flat_map(|sector| [write(sector), Event::Flush]));
            events.push(mark(true));
        }
        let record = Record { initial: PathBuf::new(), events };
        for number in 0..20 {
            let cuts = record.cuts(&mut Seed::new(number), 12);
            assert_eq!(cuts.len(), 12, "seed {number}");
            for operation in ["long", "short", "shorter"] {
                let is_during = |cut: &&Cut| {
                    let last =
                        record.events[..cut.at].iter().rev().find(|event| matches!(event, Event::Mark(_)));
                    matches!(last, Some(Event::Mark(mark)) if mark.thing == operation && !mark.is_acknowledged)
                };
                assert!(cuts.iter().any(|cut| is_during(&cut)), "seed {number}: none during {operation}");
            }
        }
    }
}
