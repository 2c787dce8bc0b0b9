//! The latest observations and actions of the core: for people, for the output of a panic, and for the replay
//! ([`crate::replay`]).
//!
//! An entry is a small copy without texts for people, and contains everything that decisions depend on. When
//! the ring is full, the oldest entry is dropped. The ring is not a part of [`super::Node`], so that it can
//! be read after a panic of the core.

mod line;

use std::convert::Infallible;
use std::fmt;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Node;
use crate::facts::{Action, ClientCondition, Observation, Plan, PodIndex, PodObservation, PodPhase, Record};
use crate::sorted::SortedMap;
use crate::spec::{ContainerIndex, Pod, Uid};
use crate::time::Instant;
use line::Names;

/// Upper bound of the entries: some minutes of a busy board, in some thirty kilobytes.
pub const RING_ENTRIES: usize = 512;

/// Upper bound of the bytes of all objects in entries. Beyond it the oldest entries are dropped before the
/// ring is full. A single object that is larger is not recorded.
const OBJECT_BYTES: usize = 256 * 1024;

/// The latest entries, the oldest first.
#[derive(Debug, Default)]
pub struct Ring {
    entries: heapless::Deque<Line, RING_ENTRIES>,
    lost: u64,
    object_bytes: usize,
    /// The names of the pods that the core knows, for people.
    names: SortedMap<PodIndex, Rc<Names>>,
}

/// An entry, and when it was made.
#[derive(Debug)]
pub struct Line {
    /// When the entry was made.
    pub at: Instant,
    /// The observation, plan or action.
    pub entry: Entry,
    /// The names of the entry's pod.
    names: Option<Rc<Names>>,
}

/// One observation, plan or action.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Entry {
    /// An observation, reported to the core. Exits of found runs have their messages, which are compared
    /// with those on record; all other texts are left out.
    Observed(Observation<Box<ReportedPod>, Omitted>),
    /// The core was asked for a plan.
    Planned {
        /// The number of entries [`Entry::Action`] that follow.
        actions: u8,
        /// The core is to be asked for the next plan at once.
        more: bool,
        /// The time of the next plan, if nothing is observed before and `more` is not set.
        wake_at: Option<Instant>,
    },
    /// An action of the plan, for this pod.
    Action(PodIndex, RecordedAction),
}

/// An action without the record's contents, the text of events and the names of images.
pub type RecordedAction = Action<RecordDigest, EmittedEvent, Omitted>;

/// The place of a text or of an image name. `()` would be `null` in JSON, which is read as none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Omitted {
    /// There is a text or a name, and the ring does not have it.
    Omitted,
}

/// A Pod that was reported to the core.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReportedPod {
    /// The index of the pod from here on, if it was not known before.
    pub index: PodIndex,
    /// The pod's UID.
    pub uid: Uid,
    /// The object from which the Pod was admitted; null if it is too large to be kept.
    pub object: Rc<RawValue>,
}

/// The part of a record by which a replay, which has no messages of exits, distinguishes records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordDigest {
    /// The recorded phase.
    pub phase: PodPhase,
    /// A hash of the containers' runs and exit codes.
    pub digest: u32,
}

/// An event without its message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmittedEvent {
    /// `reason`.
    pub reason: Rc<str>,
    /// `type` is `Warning`.
    pub warning: bool,
    /// The container that the event is about.
    pub container: Option<ContainerIndex>,
}

impl ReportedPod {
    /// The object `null` stands for one that was not kept.
    fn new(index: PodIndex, uid: &Uid, object: Option<&Rc<RawValue>>) -> ReportedPod {
        let kept = object.filter(|object| object.get().len() <= OBJECT_BYTES);
        let object = kept.cloned().unwrap_or_else(|| RawValue::NULL.to_owned().into());
        ReportedPod { index, uid: uid.clone(), object }
    }
}

impl Ring {
    /// Records an observation, before it is reported to `node`. If the observation contains a Pod, `object`
    /// is the object from which the Pod was admitted.
    pub fn observed(&mut self, now: Instant, node: &Node, seen: &Observation, object: Option<&Rc<RawValue>>) {
        let known = |pod: &Rc<Pod>| {
            let index = match seen {
                Observation::Wanted { .. } => node.index_of(&pod.uid),
                // A pod that is found is not known before.
                _ => None,
            };
            Box::new(ReportedPod::new(index.unwrap_or_else(|| node.next_index()), &pod.uid, object))
        };
        let Ok(kept) = seen.map(|pod| Ok::<_, Infallible>(known(pod)), |_| Omitted::Omitted);
        let about = match &kept {
            Observation::Wanted { pod, .. } => Some(pod.index),
            Observation::Found(found) => Some(found.pod.index),
            Observation::Of(index, _) => Some(*index),
            Observation::Unwanted { uid, .. }
            | Observation::Hidden { uid }
            | Observation::Restart { uid, .. } => node.index_of(uid),
            Observation::Node(_)
            | Observation::SourcesSeen
            | Observation::ImagesChanged
            | Observation::Shutdown(_)
            | Observation::ShutdownCancelled
            | Observation::Starved(_) => None,
        };
        let pod = match seen {
            Observation::Wanted { pod, .. } => Some(pod),
            Observation::Found(found) => Some(&found.pod),
            _ => None,
        };
        if let (Some(pod), Some(index)) = (pod, about) {
            self.names.retain(|index, _| node.pod(*index).is_some());
            // A known pod keeps its names until it is gone, even if another spec is wanted in its place; but
            // it may have more containers now.
            let has_grown = node.pod(index).is_some_and(|known| pod.is_update_of(known.pod()));
            if has_grown || !self.names.contains_key(&index) {
                self.names.insert(index, Rc::new(Names::of(pod)));
            }
        }
        let names = about.and_then(|index| self.name(node, index));
        self.add(Line { at: now, entry: Entry::Observed(kept), names });
    }

    /// Records a plan and its actions. An empty plan is recorded as well, since planning alone can change the
    /// stage of a pod.
    pub fn planned(&mut self, now: Instant, node: &Node, plan: &Plan) {
        let planned =
            Entry::Planned { actions: plan.actions.len() as u8, more: plan.more, wake_at: plan.wake_at };
        self.add(Line { at: now, entry: planned, names: None });
        for (index, action) in &plan.actions {
            let names = self.name(node, *index);
            self.add(Line { at: now, entry: Entry::Action(*index, recorded(action)), names });
        }
    }

    /// The number of the next entry, which is the number of all earlier entries, dropped ones included.
    pub fn next(&self) -> u64 {
        self.lost + self.entries.len() as u64
    }

    /// The recorded entries from `number` on, oldest first, each with its number.
    pub fn since(&self, number: u64) -> impl Iterator<Item = (u64, &Line)> {
        let skipped = usize::try_from(number.saturating_sub(self.lost)).unwrap_or(usize::MAX);
        let lines = self.entries.iter().enumerate().skip(skipped);
        lines.map(|(place, line)| (self.lost + place as u64, line))
    }

    /// The names of a pod that the core knows.
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

/// The recorded part of an action.
pub(crate) fn recorded(action: &Action) -> RecordedAction {
    action.map(
        |record| RecordDigest { phase: record.phase, digest: digest(record) },
        |event| EmittedEvent {
            reason: (&*event.reason).into(),
            warning: event.warning,
            container: event.container,
        },
        |_| Omitted::Omitted,
    )
}

/// A hash of the parts of a record that a replay can know.
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
        let Entry::Observed(seen) = self else { return 0 };
        let bytes_of =
            |conditions: &[ClientCondition]| conditions.iter().map(ClientCondition::bytes).sum::<usize>();
        match seen {
            Observation::Wanted { pod, .. } => pod.object.get().len(),
            Observation::Found(found) => {
                found.pod.object.get().len() + found.status.client_conditions.as_deref().map_or(0, bytes_of)
            }
            Observation::Of(_, PodObservation::ClientConditions { conditions }) => bytes_of(conditions),
            Observation::Unwanted { .. }
            | Observation::Hidden { .. }
            | Observation::Restart { .. }
            | Observation::Node(_)
            | Observation::SourcesSeen
            | Observation::ImagesChanged
            | Observation::Shutdown(_)
            | Observation::ShutdownCancelled
            | Observation::Starved(_)
            | Observation::Of(..) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Attempt, ContainerRecord, FoundPod, RecordedExit, StatusHandover};
    use crate::time::Moment;

    #[test]
    fn a_full_ring_drops_the_oldest_records_and_counts_them() {
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
    fn a_found_pod_is_named_from_its_first_line_on() {
        let mut sim =
            crate::sim::Sim::new(crate::sim::pod(crate::spec::RestartPolicy::Always).named("web"), |_, _| {
                crate::sim::Fate::Runs
            });
        sim.run_until(crate::sim::secs(5));
        let pod = sim.node.pods().next().expect("it is here").pod().clone();
        let found = FoundPod {
            pod,
            record: None,
            sandbox: None,
            processes: false,
            attempts: Vec::new(),
            status: StatusHandover::default(),
        };
        let (node, mut ring) = (Node::new(), Ring::default());
        ring.observed(Instant(0), &node, &Observation::Found(Box::new(found)), None);
        let text = ring.to_string();
        assert!(text.contains("default/web <- Found"), "{text}");
    }

    #[test]
    fn records_that_differ_in_a_replay_have_different_digests() {
        let exit = |number, code| {
            let at = Moment::ThisBoot(Instant(0));
            let (reason, message) = (String::new(), String::new());
            Some(RecordedExit { number, code, reason, message, started_at: at, finished_at: at, id: None })
        };
        let one = |attempts, last_exit| ContainerRecord { attempts, last_exit, ..ContainerRecord::default() };
        let containers = [
            vec![],
            vec![one(0, None)],
            vec![one(1, None)],
            vec![one(2, None)],
            vec![one(1, exit(0, 0))],
            vec![one(1, exit(0, 1))],
            vec![one(1, exit(1, 0))],
            vec![one(1, None), one(2, None)],
            vec![one(2, None), one(1, None)],
        ];
        let digests: std::collections::BTreeSet<u32> = containers
            .iter()
            .map(|containers| digest(&Record { containers: containers.clone(), ..Record::default() }))
            .collect();
        assert_eq!(digests.len(), containers.len());
    }

    #[test]
    fn the_ring_fits_into_thirty_kilobytes() {
        assert!(size_of::<Ring>() <= 30 * 1024, "{}", size_of::<Ring>());
    }

    #[test]
    fn the_ring_records_client_conditions_whole_and_counts_their_size() {
        let given: Rc<[ClientCondition]> = [ClientCondition {
            kind: "example.com/a".into(),
            status: "True".into(),
            message: "x".repeat(1000),
            ..ClientCondition::default()
        }]
        .into();
        let entry = Entry::Observed(Observation::Of(
            PodIndex(1),
            PodObservation::ClientConditions { conditions: given.clone() },
        ));
        assert!(entry.object_bytes() > 1000);
        let text = serde_json::to_string(&entry).expect("JSON");
        let Entry::Observed(Observation::Of(_, PodObservation::ClientConditions { conditions: read })) =
            serde_json::from_str(&text).expect("it is read again")
        else {
            panic!("{text}");
        };
        assert_eq!(read, given);
        // As an agent wrote it that knew of no conditions.
        let known = r#"{"index":1,"uid":"a","object":null}"#;
        let old = format!(r#"{{"Observed":{{"Found":{{"pod":{known},"sandbox":null,"attempts":[]}}}}}}"#);
        let Entry::Observed(Observation::Found(found)) = serde_json::from_str(&old).expect("it is read")
        else {
            panic!("{old}")
        };
        assert_eq!(found.status, StatusHandover::default());
    }

    #[test]
    fn a_start_with_another_image_to_fall_back_on_is_read_as_such() {
        let attempt = Attempt { container: ContainerIndex(0), number: 1 };
        for fallback in [None, Some(Omitted::Omitted)] {
            let recorded: RecordedAction = Action::Start { attempt, fallback };
            let text = serde_json::to_string(&recorded).expect("JSON");
            assert_eq!(
                serde_json::from_str::<RecordedAction>(&text).expect("it is read again"),
                recorded,
                "{text}"
            );
        }
    }

    #[test]
    fn large_objects_push_older_entries_out() {
        let mut ring = Ring::default();
        let object = |bytes: usize| -> Rc<RawValue> {
            RawValue::from_string(format!("\"{}\"", "x".repeat(bytes - 2))).expect("JSON").into()
        };
        let mut add = |object| {
            let pod = Box::new(ReportedPod { index: PodIndex(1), uid: "a".into(), object });
            let wanted = Observation::Wanted { pod, record: None, status: None };
            ring.add(Line { at: Instant(2), entry: Entry::Observed(wanted), names: None });
            (ring.entries.len(), ring.lost, ring.object_bytes)
        };
        assert_eq!(add(object(OBJECT_BYTES / 2)), (1, 0, OBJECT_BYTES / 2));
        assert_eq!(add(object(OBJECT_BYTES / 2)), (2, 0, OBJECT_BYTES));
        assert_eq!(add(object(OBJECT_BYTES / 2 + 1)), (1, 2, OBJECT_BYTES / 2 + 1));
    }
}
