//! The replay of a ring: reports the recorded observations to another core, and compares the actions. The
//! same observations at the same times must give the same actions, on a board and on any other machine.
//!
//! Reads the output of `nodlet ring -f -o json`. `cargo run -p nodlet-runtime --example replay FILE` replays
//! a file; the tests replay the rings of all agents that they start.

use std::rc::Rc;

use serde::Deserialize;
use serde_json::Value;

use crate::facts::{Plan, PodIndex};
use crate::node::{self, Entry, Node, RecordedAction, ReportedPod};
use crate::spec::Pod;
use crate::time::Instant;

#[derive(Deserialize)]
struct Numbered {
    number: u64,
    at: Instant,
    entry: Entry,
}

/// The size of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The number of observations reported to the core.
    pub observations: u64,
    /// The number of actions that the core planned, each equal to the recorded one.
    pub actions: u64,
}

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A line is not an entry of a ring.
    #[error("read line {0}")]
    Line(u64, #[source] serde_json::Error),
    /// Entries before this one are lost; a replay needs all entries since the agent started.
    #[error("replay: entries before {0} are lost; a replay begins with the agent")]
    Lost(u64),
    /// The pod of this entry is rejected, or was too large to be recorded.
    #[error("admit the pod of entry {0}")]
    Pod(u64, #[source] Box<dyn std::error::Error>),
    /// The core planned another action than the recorded one.
    #[error("decide the same at entry {number}: it asked for {recorded}, and now asks for {replayed}")]
    Different {
        /// The number of the entry.
        number: u64,
        /// The recorded action.
        recorded: String,
        /// The action planned by the replay.
        replayed: String,
    },
}

/// Replays the lines of a ring from its first entry on. The last line may be incomplete, since the agent may
/// have been killed while it was written. `admit` returns the Pod of an object that was admitted on the node
/// of this name.
///
/// # Errors
/// The lines are not a complete ring, or the core decides otherwise than recorded.
pub fn replay<E: std::error::Error + 'static>(
    lines: &str,
    admit: impl Fn(Value, &str) -> Result<Rc<Pod>, E>,
) -> Result<Replayed, ReplayError> {
    let mut replayer = Replayer::default();
    let mut last = lines.lines().enumerate().peekable();
    while let Some((line, text)) = last.next() {
        let Numbered { number, at, entry } = match serde_json::from_str(text) {
            Ok(numbered) => numbered,
            // The line is cut off, since the agent was killed.
            Err(error) if error.is_eof() && last.peek().is_none() => break,
            Err(error) => return Err(ReplayError::Line(line as u64 + 1, error)),
        };
        if number != line as u64 {
            return Err(ReplayError::Lost(number));
        }
        let pod = |known: &ReportedPod| {
            let object: Value = serde_json::from_str(known.object.get()).expect("a raw value is JSON");
            let node = object["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
            admit(object, &node).map_err(|error| ReplayError::Pod(number, Box::new(error)))
        };
        replayer.entry(number, at, entry, pod)?;
    }
    Ok(replayer.replayed)
}

/// A core to which the recorded observations of another core are reported. Its statuses are not read, unlike
/// those of the engine's core, since reading them changes no decision.
#[derive(Default)]
pub(crate) struct Replayer {
    node: Node,
    replayed: Replayed,
    /// The actions of the latest plan that were not compared yet.
    planned: std::vec::IntoIter<(PodIndex, RecordedAction)>,
}

impl Replayer {
    /// Replays the next entry. `pod` returns the Pod of an entry that contains an object.
    pub(crate) fn entry(
        &mut self,
        number: u64,
        at: Instant,
        entry: Entry,
        pod: impl FnOnce(&ReportedPod) -> Result<Rc<Pod>, ReplayError>,
    ) -> Result<(), ReplayError> {
        let different =
            |recorded: String, replayed: String| Err(ReplayError::Different { number, recorded, replayed });
        match entry {
            Entry::Planned { actions, more, wake_at } => {
                let plan = self.node.plan(at);
                let asked: Vec<_> =
                    plan.actions.iter().map(|(pod, action)| (*pod, node::recorded(action))).collect();
                let left = asked.get(usize::from(actions));
                if asked.len() != usize::from(actions) {
                    let replayed = left.or(asked.last()).map_or("nothing".to_owned(), print);
                    return different(
                        format!("{actions} actions"),
                        format!("{}, the last {replayed}", asked.len()),
                    );
                }
                if (more, wake_at) != (plan.more, plan.wake_at) {
                    return different(next(more, wake_at), next_of(&plan));
                }
                self.planned = asked.into_iter();
            }
            Entry::Action(pod, recorded) => {
                let (recorded, now) = ((pod, recorded), self.planned.next());
                if now.as_ref() != Some(&recorded) {
                    let replayed = now.as_ref().map_or("nothing".to_owned(), print);
                    return different(print(&recorded), replayed);
                }
                self.replayed.actions += 1;
            }
            Entry::Observed(seen) => {
                let seen = seen.map(|known| pod(known), |_| Box::default())?;
                self.node.observe(at, seen);
                self.replayed.observations += 1;
            }
        }
        Ok(())
    }
}

/// The action in a form such as `RemoveSandbox of pod 1`, with the parts that lines for people omit.
fn print((pod, asked): &(PodIndex, RecordedAction)) -> String {
    format!("{asked:?} of pod {}", pod.0)
}

fn next_of(plan: &Plan) -> String {
    next(plan.more, plan.wake_at)
}

/// The time of the next plan, for people.
fn next(more: bool, wake_at: Option<Instant>) -> String {
    match (more, wake_at) {
        (true, _) => "the next plan at once".to_owned(),
        (false, Some(at)) => format!("the next plan at {} ns", at.0),
        (false, None) => "the next plan when there is news".to_owned(),
    }
}
