//! The last few hundred things that the core was told and asked for: for people,
//! for the panic that has to explain itself, and to be told to the core again
//! ([`crate::replay`]), which then asks for the same.
//!
//! An entry is a small copy without text for people, and holds all that decisions
//! hang on. When the ring is full the oldest entry is lost. It is kept apart from
//! [`super::Node`], so that it can still be read when deciding itself has failed.

mod line;

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Node;
use crate::facts::{
    Action, Attempt, Exit, Found, FoundAttempt, FoundStatus, GivenCondition, Health, NodeInfo, Observation,
    Plan, PodIndex, PodObservation, PodPhase, ProbeResult, Record, SandboxFailure, Shutdown, StartFailure,
    StartFailureReason, StartedContainer,
};
use crate::spec::{ContainerIndex, HookKind, ProbeKind, Uid};
use crate::time::{Instant, Moment};
use line::Names;

/// Entries that are kept: some minutes of a busy board, in some thirty kilobytes.
pub const RING_ENTRIES: usize = 512;

/// Bytes of objects that entries hold. With more, the oldest entries are lost
/// before the ring is full; an object that is larger alone is not kept.
const OBJECT_BYTES: usize = 256 * 1024;

/// What took place last, oldest first.
#[derive(Debug, Default)]
pub struct Ring {
    entries: heapless::Deque<Line, RING_ENTRIES>,
    lost: u64,
    object_bytes: usize,
    /// Of the pods that the core knows, for people.
    names: BTreeMap<PodIndex, Rc<Names>>,
}

/// An entry, and when it was made.
#[derive(Debug)]
pub struct Line {
    /// When.
    pub at: Instant,
    /// What.
    pub entry: Entry,
    /// Of the pod that it is about.
    names: Option<Rc<Names>>,
}

/// One thing that was told or asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Entry {
    /// Told: `Wanted`.
    Wanted(Box<Known>),
    /// Told: `Unwanted`.
    Unwanted(Uid, Option<Duration>),
    /// Told: `Hidden`.
    Hidden(Uid),
    /// Told: `Found`.
    Found(Box<FoundPod>),
    /// Told: `Node`.
    Node(Box<NodeInfo>),
    /// Told: `SourcesSeen`.
    SourcesSeen,
    /// Told: `ImagesChanged`.
    ImagesChanged,
    /// Told: `Shutdown`.
    Shutdown(Box<Shutdown>),
    /// Told: `ShutdownCancelled`.
    ShutdownCancelled,
    /// Told of one pod.
    Seen(PodIndex, Seen),
    /// It was asked for a plan.
    Planned {
        /// So many actions of it follow.
        actions: u8,
        /// It is to be asked again at once.
        more: bool,
        /// Else then, if nothing is told before.
        wake_at: Option<Instant>,
    },
    /// Asked for.
    Asked(PodIndex, Asked),
}

/// A pod as the core learned of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Known {
    /// What it is called from here on, if it was not known before.
    pub index: PodIndex,
    /// Its uid.
    pub uid: Uid,
    /// The object as it was admitted.
    pub object: Rc<RawValue>,
    /// What was on flash of it.
    pub record: Option<Box<Record>>,
    /// What an agent before left behind of one that was wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Box<FoundStatus>>,
}

/// A [`Found`], as it was told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FoundPod {
    /// Which pod.
    pub pod: Known,
    /// Its address and the time when it became ready, if its supervisor answered.
    pub sandbox: Option<(Option<Ipv4Addr>, Instant)>,
    /// Its runs.
    pub attempts: Vec<FoundRun>,
    /// What the agent before showed of it.
    #[serde(default)]
    pub status: FoundStatus,
}

/// A [`FoundAttempt`], text and all: it is compared with what is on record.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the field of that name")]
pub struct FoundRun {
    pub attempt: Attempt,
    pub container: StartedContainer,
    pub exit: Option<(Ended, Box<str>)>,
    pub health: Health,
}

/// An [`Exit`] without its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the field of that name")]
pub struct Ended {
    pub code: i32,
    pub oom_killed: bool,
    /// The reason is `ContainerStatusUnknown`.
    pub unknown: bool,
    pub started_at: Moment,
    pub finished_at: Moment,
}

/// A [`PodObservation`] without its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the observation of that name")]
pub enum Seen {
    SandboxReady(Option<Ipv4Addr>, Instant),
    SandboxFailed(SandboxFailure),
    SandboxLost,
    SandboxRemoved,
    SandboxRemoveFailed,
    /// Whole: its id is on record, and what differs from that is written.
    Started(Attempt, Box<StartedContainer>),
    StartFailed(Attempt, StartFailureReason),
    ImageChecked(Attempt, Option<StartFailureReason>),
    Exited(Attempt, Box<Ended>),
    Probed(Attempt, ProbeKind, Answer),
    /// And whether it failed.
    Hooked(Attempt, HookKind, bool),
    StopFailed(Attempt),
    Saved(u64),
    SaveFailed,
    Forgotten,
    ForgetFailed,
    /// Whole: what differs from what is on record is written.
    Given(Rc<[GivenCondition]>),
}

/// A [`ProbeResult`] without its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the result of that name")]
pub enum Answer {
    Success,
    Warning,
    Failure,
    Error,
}

/// An [`Action`] without its text, and all else that it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is the action of that name")]
pub enum Asked {
    CreateSandbox,
    Start(Attempt),
    CheckImage(Attempt),
    Probe(Attempt, ProbeKind),
    Hook(Attempt, HookKind),
    Terminate(Attempt),
    Kill(Attempt),
    Discard(Attempt),
    RemoveSandbox,
    Save {
        phase: PodPhase,
        generation: u64,
        /// Of runs and their exit codes.
        digest: u32,
    },
    Forget,
    Emit {
        reason: Rc<str>,
        warning: bool,
        container: Option<ContainerIndex>,
    },
}

impl Ring {
    /// Remembers what `node` is about to be told; of a pod that is told whole,
    /// `object` is what it was admitted from.
    pub fn observed(&mut self, now: Instant, node: &Node, seen: &Observation, object: Option<&Rc<RawValue>>) {
        let known = |uid: &Uid, record: &Option<Box<Record>>, index: Option<PodIndex>| Known {
            index: index.unwrap_or_else(|| node.next_index()),
            uid: uid.clone(),
            object: object
                .filter(|object| object.get().len() <= OBJECT_BYTES)
                .cloned()
                .unwrap_or_else(|| RawValue::NULL.to_owned().into()),
            record: record.clone(),
            status: None,
        };
        let entry = match seen {
            Observation::Wanted { pod, record, status } => Entry::Wanted(Box::new(Known {
                status: status.clone(),
                ..known(&pod.uid, record, node.index_of(&pod.uid))
            })),
            Observation::Unwanted { uid, grace } => Entry::Unwanted(uid.clone(), *grace),
            Observation::Found(found) => Entry::Found(Box::new(FoundPod {
                pod: known(&found.pod.uid, &found.record, None),
                sandbox: found.sandbox.map(|sandbox| (sandbox.ip, sandbox.at)),
                attempts: found.attempts.iter().map(FoundRun::of).collect(),
                status: found.status.clone(),
            })),
            Observation::Node(info) => Entry::Node(info.clone()),
            Observation::SourcesSeen => Entry::SourcesSeen,
            Observation::Hidden { uid } => Entry::Hidden(uid.clone()),
            Observation::ImagesChanged => Entry::ImagesChanged,
            Observation::Shutdown(shutdown) => Entry::Shutdown(Box::new(shutdown.clone())),
            Observation::ShutdownCancelled => Entry::ShutdownCancelled,
            Observation::Of(index, seen) => Entry::Seen(*index, Seen::of(seen)),
        };
        let about = match &entry {
            Entry::Wanted(known) => Some(known.index),
            Entry::Found(found) => Some(found.pod.index),
            Entry::Seen(index, _) => Some(*index),
            Entry::Unwanted(uid, _) | Entry::Hidden(uid) => node.index_of(uid),
            Entry::Node(_)
            | Entry::SourcesSeen
            | Entry::ImagesChanged
            | Entry::Shutdown(_)
            | Entry::ShutdownCancelled
            | Entry::Planned { .. }
            | Entry::Asked(..) => None,
        };
        if let (Observation::Wanted { pod, .. } | Observation::Found(Found { pod, .. }), Some(index)) =
            (seen, about)
        {
            self.names.retain(|index, _| node.pod(*index).is_some());
            // One that is known is what it was until it is gone, whatever is wanted in its place;
            // but it may have more containers now.
            let has_grown = node.pod(index).is_some_and(|known| pod.is_update_of(known.pod()));
            if has_grown || !self.names.contains_key(&index) {
                self.names.insert(index, Rc::new(Names::of(pod)));
            }
        }
        let names = about.and_then(|index| self.name(node, index));
        self.add(Line { at: now, entry, names });
    }

    /// Remembers what the core has just asked for. A plan with nothing in it counts, too: that
    /// it was asked for moves stages on, and what is told next may find another one.
    pub fn planned(&mut self, now: Instant, node: &Node, plan: &Plan) {
        let planned =
            Entry::Planned { actions: plan.actions.len() as u8, more: plan.more, wake_at: plan.wake_at };
        self.add(Line { at: now, entry: planned, names: None });
        for (index, action) in &plan.actions {
            let names = self.name(node, *index);
            self.add(Line { at: now, entry: Entry::Asked(*index, Asked::of(action)), names });
        }
    }

    /// The number of the next entry: as many as there have ever been.
    pub fn next(&self) -> u64 {
        self.lost + self.entries.len() as u64
    }

    /// What is remembered from the entry `number` on, oldest first, each with its number.
    pub fn since(&self, number: u64) -> impl Iterator<Item = (u64, &Line)> {
        let skipped = usize::try_from(number.saturating_sub(self.lost)).unwrap_or(usize::MAX);
        let lines = self.entries.iter().enumerate().skip(skipped);
        lines.map(|(place, line)| (self.lost + place as u64, line))
    }

    /// What people call a pod that the core knows.
    fn name(&mut self, node: &Node, index: PodIndex) -> Option<Rc<Names>> {
        if let Some(names) = self.names.get(&index) {
            return Some(names.clone());
        }
        let names = Rc::new(Names::of(node.pod(index)?.pod()));
        self.names.insert(index, names.clone());
        Some(names)
    }

    fn add(&mut self, line: Line) {
        self.object_bytes += line.entry.object_bytes();
        while self.entries.is_full() || self.object_bytes > OBJECT_BYTES {
            let Some(lost) = self.entries.pop_front() else { break };
            self.object_bytes -= lost.entry.object_bytes();
            self.lost += 1;
        }
        let added = self.entries.push_back(line);
        debug_assert!(added.is_ok(), "room was made");
    }
}

/// One line an entry.
impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lost > 0 {
            writeln!(f, "({} older entries are lost)", self.lost)?;
        }
        self.since(0).try_for_each(|(_, line)| writeln!(f, "{line}"))
    }
}

/// Tells two records apart by all of them that a replay can know: its exits have no text.
fn digest(record: &Record) -> u32 {
    let add = |digest: u32, number: u32| (digest ^ number).wrapping_mul(0x0100_0193);
    record.containers.iter().fold(0x811c_9dc5, |digest, container| {
        let exit = container.last_exit.as_ref();
        [
            container.attempts,
            exit.map_or(u32::MAX, |exit| exit.number),
            exit.map_or(0, |exit| exit.code as u32),
        ]
        .into_iter()
        .fold(digest, add)
    })
}

impl Entry {
    fn object_bytes(&self) -> usize {
        match self {
            Entry::Wanted(pod) => pod.object.get().len(),
            Entry::Found(found) => {
                let given = found.status.given.iter().flatten().map(GivenCondition::bytes);
                found.pod.object.get().len() + given.sum::<usize>()
            }
            Entry::Seen(_, Seen::Given(given)) => given.iter().map(GivenCondition::bytes).sum(),
            Entry::Unwanted(..)
            | Entry::Hidden(_)
            | Entry::Node(_)
            | Entry::SourcesSeen
            | Entry::ImagesChanged
            | Entry::Shutdown(_)
            | Entry::ShutdownCancelled
            | Entry::Seen(..)
            | Entry::Planned { .. }
            | Entry::Asked(..) => 0,
        }
    }
}

impl FoundRun {
    fn of(found: &FoundAttempt) -> Self {
        FoundRun {
            attempt: found.attempt,
            container: found.container.clone(),
            exit: found.exit.as_ref().map(|exit| (Ended::of(exit), exit.message.clone())),
            health: found.health,
        }
    }

    /// As it was told.
    pub fn told(&self) -> FoundAttempt {
        FoundAttempt {
            attempt: self.attempt,
            container: self.container.clone(),
            exit: self
                .exit
                .as_ref()
                .map(|(ended, message)| Exit { message: message.clone(), ..ended.told() }),
            health: self.health,
        }
    }
}

impl Ended {
    fn of(exit: &Exit) -> Self {
        Ended {
            code: exit.code,
            oom_killed: exit.oom_killed,
            unknown: exit.reason.is_some(),
            started_at: exit.started_at,
            finished_at: exit.finished_at,
        }
    }

    fn told(self) -> Exit {
        Exit {
            code: self.code,
            oom_killed: self.oom_killed,
            reason: self.unknown.then_some(crate::pod::STATUS_UNKNOWN),
            message: "".into(),
            started_at: self.started_at,
            finished_at: self.finished_at,
        }
    }
}

impl Seen {
    fn of(seen: &PodObservation) -> Self {
        match seen {
            PodObservation::SandboxReady { ip, at } => Seen::SandboxReady(*ip, *at),
            PodObservation::SandboxFailed { reason, .. } => Seen::SandboxFailed(*reason),
            PodObservation::SandboxLost => Seen::SandboxLost,
            PodObservation::SandboxRemoved => Seen::SandboxRemoved,
            PodObservation::SandboxRemoveFailed { .. } => Seen::SandboxRemoveFailed,
            PodObservation::Started { attempt, container } => Seen::Started(*attempt, container.clone()),
            PodObservation::StartFailed { attempt, failure } => Seen::StartFailed(*attempt, failure.reason),
            PodObservation::ImageChecked { attempt, failure } => {
                Seen::ImageChecked(*attempt, failure.as_ref().map(|failure| failure.reason))
            }
            PodObservation::Exited { attempt, exit } => Seen::Exited(*attempt, Box::new(Ended::of(exit))),
            PodObservation::Probed { attempt, kind, result } => {
                let answer = match result {
                    ProbeResult::Success => Answer::Success,
                    ProbeResult::Warning(_) => Answer::Warning,
                    ProbeResult::Failure(_) => Answer::Failure,
                    ProbeResult::Error(_) => Answer::Error,
                };
                Seen::Probed(*attempt, *kind, answer)
            }
            PodObservation::Hooked { attempt, kind, failure } => {
                Seen::Hooked(*attempt, *kind, failure.is_some())
            }
            PodObservation::StopFailed { attempt, .. } => Seen::StopFailed(*attempt),
            PodObservation::Saved { generation } => Seen::Saved(*generation),
            PodObservation::SaveFailed { .. } => Seen::SaveFailed,
            PodObservation::Forgotten => Seen::Forgotten,
            PodObservation::ForgetFailed { .. } => Seen::ForgetFailed,
            PodObservation::Given { conditions } => Seen::Given(conditions.clone()),
        }
    }

    /// The run that it is about.
    fn attempt(&self) -> Option<Attempt> {
        match self {
            Seen::Started(attempt, _)
            | Seen::StartFailed(attempt, _)
            | Seen::ImageChecked(attempt, _)
            | Seen::Exited(attempt, _)
            | Seen::Probed(attempt, ..)
            | Seen::Hooked(attempt, ..)
            | Seen::StopFailed(attempt) => Some(*attempt),
            Seen::SandboxReady(..)
            | Seen::SandboxFailed(_)
            | Seen::SandboxLost
            | Seen::SandboxRemoved
            | Seen::SandboxRemoveFailed
            | Seen::Saved(_)
            | Seen::SaveFailed
            | Seen::Forgotten
            | Seen::ForgetFailed
            | Seen::Given(_) => None,
        }
    }

    /// As it was told, without the text.
    pub fn told(&self) -> PodObservation {
        let message: Box<str> = "".into();
        match self {
            Seen::SandboxReady(ip, at) => PodObservation::SandboxReady { ip: *ip, at: *at },
            Seen::SandboxFailed(reason) => PodObservation::SandboxFailed { reason: *reason, message },
            Seen::SandboxLost => PodObservation::SandboxLost,
            Seen::SandboxRemoved => PodObservation::SandboxRemoved,
            Seen::SandboxRemoveFailed => PodObservation::SandboxRemoveFailed { message },
            Seen::Started(attempt, container) => {
                PodObservation::Started { attempt: *attempt, container: container.clone() }
            }
            Seen::StartFailed(attempt, reason) => PodObservation::StartFailed {
                attempt: *attempt,
                failure: StartFailure { reason: *reason, message },
            },
            Seen::ImageChecked(attempt, reason) => PodObservation::ImageChecked {
                attempt: *attempt,
                failure: reason.map(|reason| StartFailure { reason, message }),
            },
            Seen::Exited(attempt, exit) => {
                PodObservation::Exited { attempt: *attempt, exit: Box::new(exit.told()) }
            }
            Seen::Probed(attempt, kind, answer) => {
                let result = match answer {
                    Answer::Success => ProbeResult::Success,
                    Answer::Warning => ProbeResult::Warning(message),
                    Answer::Failure => ProbeResult::Failure(message),
                    Answer::Error => ProbeResult::Error(message),
                };
                PodObservation::Probed { attempt: *attempt, kind: *kind, result }
            }
            Seen::Hooked(attempt, kind, failed) => {
                PodObservation::Hooked { attempt: *attempt, kind: *kind, failure: failed.then_some(message) }
            }
            Seen::StopFailed(attempt) => PodObservation::StopFailed { attempt: *attempt, message },
            Seen::Saved(generation) => PodObservation::Saved { generation: *generation },
            Seen::SaveFailed => PodObservation::SaveFailed { message },
            Seen::Forgotten => PodObservation::Forgotten,
            Seen::ForgetFailed => PodObservation::ForgetFailed { message },
            Seen::Given(conditions) => PodObservation::Given { conditions: conditions.clone() },
        }
    }
}

impl Asked {
    /// The run that it is about.
    fn attempt(&self) -> Option<Attempt> {
        match self {
            Asked::Start(attempt)
            | Asked::CheckImage(attempt)
            | Asked::Probe(attempt, _)
            | Asked::Hook(attempt, _)
            | Asked::Terminate(attempt)
            | Asked::Kill(attempt)
            | Asked::Discard(attempt) => Some(*attempt),
            Asked::CreateSandbox
            | Asked::RemoveSandbox
            | Asked::Save { .. }
            | Asked::Forget
            | Asked::Emit { .. } => None,
        }
    }

    /// What is kept of an action.
    pub fn of(action: &Action) -> Self {
        match action {
            Action::CreateSandbox => Asked::CreateSandbox,
            Action::Start { attempt, fallback: _ } => Asked::Start(*attempt),
            Action::CheckImage(attempt) => Asked::CheckImage(*attempt),
            Action::Probe(attempt, kind) => Asked::Probe(*attempt, *kind),
            Action::Hook(attempt, kind) => Asked::Hook(*attempt, *kind),
            Action::Terminate(attempt) => Asked::Terminate(*attempt),
            Action::Kill(attempt) => Asked::Kill(*attempt),
            Action::Discard(attempt) => Asked::Discard(*attempt),
            Action::RemoveSandbox => Asked::RemoveSandbox,
            Action::Save { record, generation } => {
                Asked::Save { phase: record.phase, generation: *generation, digest: digest(record) }
            }
            Action::Forget => Asked::Forget,
            Action::Emit(event) => Asked::Emit {
                reason: event.reason.into(),
                warning: event.warning,
                container: event.container,
            },
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
            ring.observed(Instant(second * 1_000_000_000), &node, &Observation::ImagesChanged, None);
        }
        assert_eq!(ring.since(0).count(), RING_ENTRIES);
        assert_eq!(ring.next(), RING_ENTRIES as u64 + 3);
        assert_eq!(ring.since(ring.next() - 1).map(|(number, _)| number).collect::<Vec<_>>(), [514]);
        let text = ring.to_string();
        assert!(text.starts_with("(3 older entries are lost)\n      3.000 <- ImagesChanged\n"), "{text}");
    }

    #[test]
    fn the_ring_fits_into_thirty_kilobytes() {
        assert!(size_of::<Ring>() <= 30 * 1024, "{}", size_of::<Ring>());
    }

    #[test]
    fn what_was_given_is_kept_whole_and_counts_as_what_it_takes() {
        let given: Rc<[GivenCondition]> = [GivenCondition {
            kind: "example.com/a".into(),
            status: "True".into(),
            message: "x".repeat(1000),
            ..GivenCondition::default()
        }]
        .into();
        let entry = Entry::Seen(PodIndex(1), Seen::Given(given.clone()));
        assert!(entry.object_bytes() > 1000);
        let text = serde_json::to_string(&entry).expect("JSON");
        let Entry::Seen(_, Seen::Given(read)) = serde_json::from_str(&text).expect("it is read again") else {
            panic!("{text}");
        };
        assert_eq!(read, given);
        // As an agent wrote it that knew of no conditions.
        let known = r#"{"index":1,"uid":"a","object":null,"record":null}"#;
        let old = format!(r#"{{"Found":{{"pod":{known},"sandbox":null,"attempts":[]}}}}"#);
        let Entry::Found(found) = serde_json::from_str(&old).expect("it is read") else { panic!("{old}") };
        assert_eq!(found.status, FoundStatus::default());
    }

    #[test]
    fn large_objects_push_older_entries_out() {
        let mut ring = Ring::default();
        let object = |bytes: usize| -> Rc<RawValue> {
            RawValue::from_string(format!("\"{}\"", "x".repeat(bytes - 2))).expect("JSON").into()
        };
        let mut add = |object| {
            let pod = Known { index: PodIndex(1), uid: "a".into(), object, record: None, status: None };
            ring.add(Line { at: Instant(2), entry: Entry::Wanted(Box::new(pod)), names: None });
            (ring.entries.len(), ring.lost, ring.object_bytes)
        };
        assert_eq!(add(object(OBJECT_BYTES / 2)), (1, 0, OBJECT_BYTES / 2));
        assert_eq!(add(object(OBJECT_BYTES / 2)), (2, 0, OBJECT_BYTES));
        assert_eq!(add(object(OBJECT_BYTES / 2 + 1)), (1, 2, OBJECT_BYTES / 2 + 1));
    }
}
