//! The last few hundred things that the core was told and asked for, for people
//! and for the panic that has to explain itself.
//!
//! An entry is a small copy without text: what is needed to see, and to tell the
//! core again, in which order things took place. When the ring is full the
//! oldest entry is lost. It is kept apart from [`super::Node`], so that it can
//! still be read when deciding itself has failed.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use super::{
    Action, Attempt, Node, Observation, Plan, PodIndex, PodObservation, PodPhase, ProbeResult,
    SandboxFailure, StartFailureReason,
};
use crate::spec::{ProbeKind, Uid};
use crate::time::{Instant, Moment};

/// Entries that are kept: some minutes of a busy board, in some twenty kilobytes.
pub const RING_ENTRIES: usize = 512;

/// What took place last, oldest first.
#[derive(Debug, Default)]
pub struct Ring {
    entries: heapless::Deque<(Instant, Entry), RING_ENTRIES>,
    lost: u64,
}

/// One thing that was told or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Told: `Wanted`.
    Wanted(PodIndex),
    /// Told: `Unwanted`.
    Unwanted(PodIndex, Option<Duration>),
    /// Told: `Found`, with this many runs and perhaps a living sandbox.
    Found(PodIndex, u16, bool),
    /// Told: `SourcesSeen`.
    SourcesSeen,
    /// Told: `ImagesChanged`.
    ImagesChanged,
    /// Told: `Shutdown`.
    Shutdown,
    /// Told of one pod.
    Seen(PodIndex, Seen),
    /// Asked for.
    Asked(PodIndex, Asked),
}

/// A [`PodObservation`] without its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the observation of that name")]
pub enum Seen {
    SandboxReady(Option<Ipv4Addr>),
    SandboxFailed(SandboxFailure),
    SandboxLost,
    SandboxRemoved,
    SandboxRemoveFailed,
    Started(Attempt, Instant),
    StartFailed(Attempt, StartFailureReason),
    Exited { attempt: Attempt, code: i32, oom_killed: bool, finished_at: Moment },
    Probed(Attempt, ProbeKind, Answer),
    StopFailed(Attempt),
    Saved(u64),
    SaveFailed,
    Forgotten,
    ForgetFailed,
}

/// A [`ProbeResult`] without its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the result of that name")]
pub enum Answer {
    Success,
    Warning,
    Failure,
    Error,
}

/// An [`Action`] without its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the action of that name")]
pub enum Asked {
    CreateSandbox,
    Start(Attempt),
    Probe(Attempt, ProbeKind),
    Terminate(Attempt),
    Kill(Attempt),
    Discard(Attempt),
    RemoveSandbox,
    Save(PodPhase, u64),
    Forget,
    Emit(&'static str),
}

impl Ring {
    /// Remembers what the core has just been told, which `node` knows by now.
    pub fn observed(&mut self, now: Instant, node: &Node, seen: &Observation) {
        let of = |uid: &Uid| node.index_of(uid).unwrap_or(PodIndex(0));
        let entry = match seen {
            Observation::Wanted { pod, .. } => Entry::Wanted(of(&pod.uid)),
            Observation::Unwanted { uid, grace } => Entry::Unwanted(of(uid), *grace),
            Observation::Found(found) => {
                let runs = u16::try_from(found.attempts.len()).unwrap_or(u16::MAX);
                Entry::Found(of(&found.pod.uid), runs, found.sandbox.is_some())
            }
            Observation::SourcesSeen => Entry::SourcesSeen,
            Observation::ImagesChanged => Entry::ImagesChanged,
            Observation::Shutdown => Entry::Shutdown,
            Observation::Of(index, seen) => Entry::Seen(*index, Seen::of(seen)),
        };
        self.add(now, entry);
    }

    /// Remembers what the core has just asked for.
    pub fn planned(&mut self, now: Instant, plan: &Plan) {
        for (index, action) in &plan.actions {
            self.add(now, Entry::Asked(*index, Asked::of(action)));
        }
    }

    /// What is remembered, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &(Instant, Entry)> {
        self.entries.iter()
    }

    fn add(&mut self, now: Instant, entry: Entry) {
        if self.entries.is_full() {
            self.entries.pop_front();
            self.lost += 1;
        }
        let added = self.entries.push_back((now, entry));
        debug_assert!(added.is_ok(), "room was made");
    }
}

/// One line an entry.
impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lost > 0 {
            writeln!(f, "({} older entries are lost)", self.lost)?;
        }
        for (at, entry) in &self.entries {
            let millis = at.0 / 1_000_000;
            write!(f, "{:>7}.{:03} ", millis / 1000, millis % 1000)?;
            match entry {
                Entry::Seen(pod, seen) => writeln!(f, "pod {} <- {seen:?}", pod.0)?,
                Entry::Asked(pod, asked) => writeln!(f, "pod {} -> {asked:?}", pod.0)?,
                Entry::Wanted(_) | Entry::Unwanted(..) | Entry::Found(..) => writeln!(f, "{entry:?}")?,
                Entry::SourcesSeen | Entry::ImagesChanged | Entry::Shutdown => writeln!(f, "{entry:?}")?,
            }
        }
        Ok(())
    }
}

impl Seen {
    fn of(seen: &PodObservation) -> Self {
        match seen {
            PodObservation::SandboxReady { ip, at: _ } => Seen::SandboxReady(*ip),
            PodObservation::SandboxFailed { reason, .. } => Seen::SandboxFailed(*reason),
            PodObservation::SandboxLost => Seen::SandboxLost,
            PodObservation::SandboxRemoved => Seen::SandboxRemoved,
            PodObservation::SandboxRemoveFailed { .. } => Seen::SandboxRemoveFailed,
            PodObservation::Started { attempt, container } => Seen::Started(*attempt, container.at),
            PodObservation::StartFailed { attempt, failure } => Seen::StartFailed(*attempt, failure.reason),
            PodObservation::Exited { attempt, exit } => Seen::Exited {
                attempt: *attempt,
                code: exit.code,
                oom_killed: exit.oom_killed,
                finished_at: exit.finished_at,
            },
            PodObservation::Probed { attempt, kind, result } => {
                let answer = match result {
                    ProbeResult::Success => Answer::Success,
                    ProbeResult::Warning(_) => Answer::Warning,
                    ProbeResult::Failure(_) => Answer::Failure,
                    ProbeResult::Error(_) => Answer::Error,
                };
                Seen::Probed(*attempt, *kind, answer)
            }
            PodObservation::StopFailed { attempt, .. } => Seen::StopFailed(*attempt),
            PodObservation::Saved { generation } => Seen::Saved(*generation),
            PodObservation::SaveFailed { .. } => Seen::SaveFailed,
            PodObservation::Forgotten => Seen::Forgotten,
            PodObservation::ForgetFailed { .. } => Seen::ForgetFailed,
        }
    }
}

impl Asked {
    fn of(action: &Action) -> Self {
        match action {
            Action::CreateSandbox => Asked::CreateSandbox,
            Action::Start(attempt) => Asked::Start(*attempt),
            Action::Probe(attempt, kind) => Asked::Probe(*attempt, *kind),
            Action::Terminate(attempt) => Asked::Terminate(*attempt),
            Action::Kill(attempt) => Asked::Kill(*attempt),
            Action::Discard(attempt) => Asked::Discard(*attempt),
            Action::RemoveSandbox => Asked::RemoveSandbox,
            Action::Save { record, generation } => Asked::Save(record.phase, *generation),
            Action::Forget => Asked::Forget,
            Action::Emit(event) => Asked::Emit(event.reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_loses_the_oldest_and_says_how_many() {
        let (node, mut ring) = (Node::new(), Ring::default());
        for second in 0..RING_ENTRIES as u64 + 3 {
            ring.observed(Instant(second * 1_000_000_000), &node, &Observation::ImagesChanged);
        }
        assert_eq!(ring.entries().count(), RING_ENTRIES);
        let text = ring.to_string();
        assert!(text.starts_with("(3 older entries are lost)\n      3.000 ImagesChanged\n"), "{text}");
    }

    #[test]
    fn the_ring_fits_into_thirty_kilobytes() {
        assert!(size_of::<Ring>() <= 30 * 1024, "{}", size_of::<Ring>());
    }
}
